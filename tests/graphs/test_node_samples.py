"""Nodes as samples: one row per number asked for, whatever else is in the batch."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.graphs.convolutions import GCN
from torchtheory.graphs.message_passing import pooled_nodes
from torchtheory.graphs.node_samples import OnNodes, TakesGraph


def test_rows_of_the_whole_output() -> None:
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    net = GCN([2, 4, 3])
    model = OnNodes(net, nx.path_graph(5), x)
    whole = net(x, nx.path_graph(5))
    torch.testing.assert_close(model(torch.tensor([4, 0, 4])), whole[[4, 0, 4]])
    torch.testing.assert_close(model(torch.tensor([[1], [2]])), whole[1:3])
    assert "x" in model.state_dict()
    assert [p is q for p, q in zip(model.parameters(), net.parameters(), strict=True)] == [True] * 4


def test_what_the_network_takes() -> None:
    class Seen(nn.Module):
        def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            self.given = given
            return x

    for takes, shape in (("edge_index", (2, 8)), ("adjacency", (5, 5))):
        net = Seen()
        OnNodes(net, nx.path_graph(5), torch.ones(5, 1), takes)(torch.tensor([0]))  # type: ignore[arg-type]
        assert net.given.shape == shape
    assert TakesGraph(GCN([1, 2]), "graph")(torch.ones(5, 1).double(), nx.path_graph(5)).shape == (
        5,
        2,
    )


def test_refused() -> None:
    path, x = nx.path_graph(5), torch.ones(5, 1).double()
    with pytest.raises(ShapeMismatch):
        OnNodes(GCN([1, 2]), path, torch.ones(4, 1).double())
    with pytest.raises(InvalidType, match="by their numbers"):
        OnNodes(GCN([1, 2]), path, x)(torch.zeros(3))
    with pytest.raises(InvalidInput, match="takes"):
        OnNodes(GCN([1, 2]), path, x, "edges")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="distance"):
        OnNodes(GCN([1, 2]), path, x, distance=0)

    class Whole(nn.Module):
        def forward(self, x: torch.Tensor, graph: object) -> torch.Tensor:
            return pooled_nodes(x, graph)

    with pytest.raises(InvalidInput, match="one row per node"):
        OnNodes(Whole(), path, x)(torch.tensor([0]))
