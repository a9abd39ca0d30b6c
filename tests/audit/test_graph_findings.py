"""Findings about networks on graphs: defects are found, healthy twins are not accused."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import State
from torchtheory.graphs.bottlenecks import tree_matching
from torchtheory.graphs.convolutions import GCN, GraphConvolution
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.message_passing import OnGraph, pooled_nodes
from torchtheory.graphs.node_classification import fit_nodes
from torchtheory.graphs.node_samples import OnNodes, TakesGraph

ABOUT = ["over-smoothing", "graph-reach", "node-order"]


def communities(seed: int, size: int = 20) -> tuple[Graph, Tensor, Tensor]:
    """Two groups with more edges inside than between, noisy features of the group."""
    source = torch.Generator().manual_seed(seed)
    sbm = nx.stochastic_block_model([size] * 2, [[0.3, 0.03], [0.03, 0.3]], seed=seed)
    made = nx.Graph(sbm.edges)
    made.add_nodes_from(sbm)
    nx.add_path(made, range(2 * size))  # connected, and with nodes far apart
    graph = as_graph(nx.to_numpy_array(made, nodelist=range(2 * size)))
    y = (torch.arange(2 * size) >= size).long()
    x = torch.randn(2 * size, 4, generator=source, dtype=torch.float64)
    x[:, 0] += 2 * y - 1
    return graph, x, y


def trained(network: nn.Module, x: Tensor, graph: Graph, y: Tensor, steps: int = 60) -> nn.Module:
    known = torch.arange(0, len(y), 2)
    return fit_nodes(network, x, graph, y, known, steps=steps, rate=0.02).network


def audited(model: nn.Module, y: Tensor, seed: int = 0, only: list[str] = ABOUT) -> Audit:
    nodes = torch.arange(len(y))
    return tt.audit(
        model,
        (nodes[::2], y[::2]),
        (nodes[1::2], y[1::2]),
        only=only,
        seed=seed,
        budget="60s",
    )


def the(found: Audit, name: str) -> FindingRecord:
    (one,) = [f for f in found.findings if f.name == name]
    return one


def states(record: FindingRecord) -> list[State]:
    return [a.state for a in record.assessments]


@pytest.mark.slow
def test_healthy_networks_are_not_accused() -> None:
    for seed in range(20):
        graph, x, y = communities(seed)
        net = trained(GCN([4, 8, 2], generator=seed), x, graph, y)
        found = audited(OnNodes(net, graph, x, distance=2), y, seed)
        for name in ABOUT:
            record = the(found, name)
            assert record.complete
            assert set(states(record)) <= {State.FINE}, (seed, record)
        assert not [c for c in found.claims if c.broken]


def test_layers_that_make_nodes_alike_are_found() -> None:
    for seed in range(3):
        graph, x, y = communities(seed)
        deep = GCN([4] + [8] * 40 + [2], "tanh", generator=seed)
        # drawn small, trained a little: the usual way to get there
        found = audited(OnNodes(trained(deep, x, graph, y, steps=5), graph, x), y, seed)
        record = the(found, "over-smoothing")
        assert states(record) == [State.DEFECT], record
        assert "alike" in record.warnings[0]
        assert record.quantities[0].value < 0.03


def test_little_difference_with_right_answers_is_worth_a_look_only() -> None:
    graph, x, y = communities(0)

    class Amplified(nn.Module):
        """Means over neighbors many times, then a head that makes much of what is left."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(GraphConvolution(4, 4, bias=False) for _ in range(12))
            self.head = nn.Linear(4, 2, dtype=torch.float64)
            with torch.no_grad():
                for layer in self.layers:
                    layer.linear.weight.copy_(torch.eye(4))  # type: ignore[union-attr, operator]

        def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
            for layer in self.layers:
                x = layer(x, graph)
            degrees = (as_graph(graph).degrees() + 1).sqrt()[:, None]
            made: Tensor = self.head(x / degrees)
            return made

    net = Amplified()
    with torch.no_grad():
        rows = net.layers
        z = x
        for layer in rows:
            z = layer(z, graph)
        z = z / (graph.degrees() + 1).sqrt()[:, None]
        way = z[y == 1].mean(0) - z[y == 0].mean(0)
        middle = (z[y == 1].mean(0) + z[y == 0].mean(0)) / 2
        net.head.weight.copy_(torch.stack([-way, way]) * 1e4)
        net.head.bias.copy_(torch.stack([way @ middle, -way @ middle]) * 1e4)
    record = the(audited(OnNodes(net, graph, x), y, only=["over-smoothing"]), "over-smoothing")
    assert State.DEFECT not in states(record)


def test_depth_less_than_the_distance_is_found() -> None:
    graph = as_graph(nx.path_graph(30))
    source = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=source, dtype=torch.float64)
    y = (torch.arange(30) % 2).long()
    for layers, wanted in ((2, State.DEFECT), (5, State.FINE)):
        net = GCN([2] + [6] * (layers - 1) + [2], "tanh", generator=1)
        record = the(audited(OnNodes(net, graph, x, distance=4), y), "graph-reach")
        assert states(record) == [wanted], record
    # nobody said how far: no judgment, but the number and the edge
    record = the(audited(OnNodes(net, graph, x), y), "graph-reach")
    assert states(record) == []
    assert "up to 5 edges" in record.headlines[0]
    assert "the edge between 14 and 15" in record.headlines[0]
    assert [c.verdict.value for c in record.claims] == ["holds", "holds"]


def test_little_left_over_a_long_way_is_worth_a_look() -> None:
    graph, x, y = communities(1)
    thin = as_graph(nx.barbell_graph(15, 6))
    features = torch.randn(thin.nodes, 2, generator=torch.Generator().manual_seed(0)).double()
    labels = (torch.arange(thin.nodes) % 2).long()
    net = GCN([2] + [4] * 7 + [2], "tanh", generator=0)
    record = the(audited(OnNodes(net, thin, features, distance=8), labels), "graph-reach")
    assert states(record) == [State.LOOK], record
    assert "narrowest" in record.assessments[0].sentence
    assert graph.nodes == len(x) == len(y)


def test_weights_by_node_are_seen() -> None:
    graph, x, y = communities(2)

    class Numbered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = GCN([4, 8, 2])
            draws = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
            self.each = nn.Parameter(draws.double())

        def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
            made: Tensor = self.inside(x + self.each, graph)
            return made

    record = the(audited(OnNodes(Numbered(), graph, x), y, only=["node-order"]), "node-order")
    assert states(record) == [State.LOOK]
    assert record.quantities[0].value > 0.01


def test_networks_of_edges_and_of_matrices() -> None:
    from torch_geometric.nn import GCNConv

    graph, x, y = communities(3)

    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(4, 8).double(), GCNConv(8, 2).double()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            made: Tensor = self.second(torch.relu(self.first(x, edge_index)), edge_index)
            return made

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2, dtype=torch.float64)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            made: Tensor = self.linear(adjacency @ x)
            return made

    for net, takes in ((Theirs(), "edge_index"), (Dense(), "adjacency")):
        found = audited(OnNodes(net, graph, x, takes), y)  # type: ignore[arg-type]
        assert State.DEFECT not in states(the(found, "over-smoothing"))
        assert states(the(found, "node-order")) == [State.FINE]
        assert len(the(found, "graph-reach").headlines) == 1
    assert isinstance(OnNodes(Theirs(), graph, x, "edge_index").network, TakesGraph)


def test_graphs_as_samples() -> None:
    task = tree_matching(2, 40, classes=2)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = GCN([task.x.shape[-1], 6, 2])

        def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
            made: Tensor = self.inside(x, graph).mean(-2)
            return made

    found = tt.audit(OnGraph(Whole(), task.graph), (task.x, task.y), only=ABOUT, budget="60s")
    assert states(the(found, "node-order")) == [State.FINE]
    # it gives one answer for all nodes, so that nothing is heard node by node
    assert the(found, "graph-reach").claims[0].verdict.value == "not applicable"
    assert pooled_nodes(torch.ones(7, 1), task.graph).shape == (1, 1)


def test_other_models_are_told_how() -> None:
    found = tt.audit(nn.Linear(3, 2), (torch.randn(20, 3), torch.arange(20) % 2), only=ABOUT)
    for name in ABOUT:
        reasons = [c.reason for c in the(found, name).claims]
        assert all("OnNodes(network, graph, x)" in r for r in reasons)
