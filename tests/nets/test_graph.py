"""Networks on directed acyclic graphs."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import mlp
from torchtheory.nets.graph import GraphNetwork, layered_graph, neuron_graph


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=20, deadline=None)
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    name=st.sampled_from(["tanh", "relu", "gaussian"]),
)
def test_layered_graphs_are_dense_networks(widths: list[int], name: str) -> None:
    net = mlp(widths, name, generator=4)
    chain = GraphNetwork(layered_graph(widths, name))
    for i in range(1, len(widths)):
        chain.vertex(i)[0].load_state_dict(net[2 * i - 2].state_dict())
    x = randn(6, widths[0])
    assert torch.equal(chain(x), net(x))
    neurons = neuron_graph(net)
    torch.testing.assert_close(neurons(x), net(x))
    assert neurons.graph.number_of_nodes() == sum(widths)


def test_the_same_seed_gives_the_same_weights_as_a_dense_network() -> None:
    chain = GraphNetwork(layered_graph([2, 3, 1], "tanh"), generator=5)
    x = randn(3, 2)
    assert torch.equal(chain(x), mlp([2, 3, 1], "tanh", generator=5)(x))


def test_hand_worked_graph() -> None:
    graph = nx.DiGraph([("a", "sum"), ("b", "sum"), ("sum", "out"), ("a", "out")])
    graph.nodes["sum"]["activation"] = "relu"
    net = GraphNetwork(graph)
    with torch.no_grad():
        for v, weights in (("sum", [[1.0, 1.0]]), ("out", [[2.0, -1.0]])):
            net.vertex(v)[0].weight.copy_(torch.tensor(weights))
            net.vertex(v)[0].bias.zero_()
    x = torch.tensor([[1.0, 2.0], [1.0, -5.0]], dtype=torch.float64)
    assert net(x).flatten().tolist() == [2 * 3 - 1, -1]
    assert net.values(x)["sum"].flatten().tolist() == [3, 0]


def test_gradients_by_gradcheck() -> None:
    graph = nx.DiGraph([(0, 2), (1, 2), (0, 3), (2, 3), (2, 4), (3, 5), (4, 5), (1, 5)])
    for v in graph:
        graph.nodes[v].update(width=1 + v % 2, activation="tanh")
    net = GraphNetwork(graph)
    x = randn(3, net.features).requires_grad_()
    assert torch.autograd.gradcheck(net, (x,))


def test_vertices_may_be_any_module_and_outputs_are_joined() -> None:
    graph = nx.DiGraph([("x", "norm"), ("x", "y")])
    graph.nodes["x"]["width"] = 3
    graph.nodes["norm"].update(module=nn.LayerNorm(3, dtype=torch.float64), width=3)
    net = GraphNetwork(graph)
    x = randn(4, 3)
    torch.testing.assert_close(net(x)[:, :3], nn.functional.layer_norm(x, (3,)))
    assert net(x).shape == (4, 4)
    graph.nodes["norm"]["width"] = 2
    with pytest.raises(ShapeMismatch, match="width 2"):
        GraphNetwork(graph)(x)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="cycle"):
        GraphNetwork(nx.DiGraph([(0, 1), (1, 2), (2, 1)]))
    with pytest.raises(InvalidInput, match="edge"):
        GraphNetwork(nx.DiGraph())
    with pytest.raises(InvalidType):
        GraphNetwork(nx.Graph([(0, 1)]))
    bad = nx.DiGraph([(0, 1)])
    bad.nodes[0]["width"] = 0
    with pytest.raises(InvalidInput, match="width of 0"):
        GraphNetwork(bad)
    with pytest.raises(ShapeMismatch):
        GraphNetwork(nx.DiGraph([(0, 1)]))(torch.zeros(2, 2).double())
    with pytest.raises(UnsupportedModel):
        neuron_graph(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
