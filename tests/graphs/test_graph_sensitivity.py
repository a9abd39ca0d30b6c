"""What nodes hear of each other: exact zeros beyond the depth, bounds that are met, bottlenecks."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.graphs.bottlenecks import bottleneck, crossing_share, tree_matching
from torchtheory.graphs.convolutions import GCN
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.graph_sensitivity import (
    layers_needed,
    node_jacobian,
    receptive_field,
    sensitivity,
    sensitivity_bound,
    sensitivity_by_distance,
)
from torchtheory.graphs.laplacians import gcn_coupling


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def connected(nodes: int, density: float, seed: int) -> nx.Graph:
    graph = nx.gnp_random_graph(nodes, density, seed=seed)
    nx.add_path(graph, range(nodes))
    return graph


def turned(depth: int, width: int = 3) -> GCN:
    """A GCN without activations whose matrices are 0.8 times rotations."""
    net = GCN([width] * (depth + 1), nn.Identity, bias=False)
    with torch.no_grad():
        for k, layer in enumerate(net.layers):
            layer.linear.weight.copy_(0.8 * torch.linalg.qr(drawn(width, width, seed=k)).Q)  # type: ignore[union-attr, operator]
    return net


def test_blocks_are_those_of_the_whole_jacobian() -> None:
    graph = as_graph(connected(6, 0.2, 1))
    net, x = GCN([2, 5, 3], "tanh", generator=2), drawn(6, 2)
    whole = torch.autograd.functional.jacobian(lambda z: net(z, graph), x)
    for i in range(6):
        torch.testing.assert_close(node_jacobian(net, x, graph, i), whole[i].permute(1, 0, 2))


@given(st.integers(2, 14), st.floats(0.0, 0.2), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_exactly_zero_beyond_the_depth_and_only_there(
    nodes: int, density: float, depth: int, seed: int
) -> None:
    graph = as_graph(connected(nodes, density, seed))
    net = GCN([2] + [6] * (depth - 1) + [2], "tanh", generator=seed)
    x = drawn(nodes, 2, seed=seed)
    near = graph.distances() <= depth
    for i in (0, nodes // 2, nodes - 1):
        blocks = node_jacobian(net, x, graph, i)
        assert bool((blocks[~near[i]] == 0).all())
        assert receptive_field(net, x, graph, i).tolist() == near[i].nonzero()[:, 0].tolist()


@given(st.integers(2, 10), st.floats(0.0, 0.4), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_bound_holds_and_is_met(nodes: int, density: float, depth: int, seed: int) -> None:
    graph = as_graph(connected(nodes, density, seed))
    x = drawn(nodes, 3, seed=seed)
    loose = GCN([3] + [5] * (depth - 1) + [2], "relu", generator=seed)
    for i in (0, nodes - 1):
        bound = sensitivity_bound(loose, graph, i)
        norms = torch.linalg.matrix_norm(node_jacobian(loose, x, graph, i), 2)
        assert bool((norms <= bound + 1e-12).all())
        # independent of the sparse products
        powers = torch.linalg.matrix_power(gcn_coupling(graph).dense(), depth)[i]
        factor = math.prod(
            float(torch.linalg.svdvals(layer.linear.weight.detach())[0])  # type: ignore[union-attr, arg-type]
            for layer in loose.layers
        )
        torch.testing.assert_close(bound, factor * powers)
        tight = turned(depth)
        norms = torch.linalg.matrix_norm(node_jacobian(tight, x, graph, i), 2)
        torch.testing.assert_close(norms, sensitivity_bound(tight, graph, i), atol=1e-12, rtol=1e-9)


def test_steep_activations_count_between_layers_only() -> None:
    graph, x = as_graph(nx.path_graph(5)), drawn(5, 3)
    for depth in (1, 2, 4):
        net = turned(depth)
        net.activation = Doubled()
        norms = torch.linalg.matrix_norm(node_jacobian(net, x, graph, 1), 2)
        bound = sensitivity_bound(net, graph, 1, slope=2.0)
        torch.testing.assert_close(norms, bound, atol=1e-12, rtol=1e-9)
    assert float(sensitivity_bound(GCN([3, 3, 3], nn.SELU), graph, 1)[1]) == pytest.approx(
        1.7580993408473766 * float(sensitivity_bound(GCN([3, 3, 3], "relu"), graph, 1)[1])
    )


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_directed_graphs_are_heard_along_their_edges() -> None:
    graph = as_graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), nodes=4, directed=True)
    net, x = turned(2), drawn(4, 3)
    assert receptive_field(net, x, graph, 3).tolist() == [1, 2, 3]
    assert receptive_field(net, x, graph, 0).tolist() == [0]
    found = sensitivity(net, x, graph, 3, 1)
    assert found.distance == 2
    assert found.norm == pytest.approx(found.bound)
    curve = sensitivity_by_distance(net, x, graph)
    assert curve.reach == 2
    assert curve.pairs.tolist() == [4, 3, 2, 1]
    assert float(curve.mean[3]) == 0
    assert sensitivity(net, x, graph, 0, 3).distance == math.inf


def test_curves_by_distance() -> None:
    graph = as_graph(nx.cycle_graph(12))
    net, x = turned(3), drawn(12, 3)
    curve = sensitivity_by_distance(net, x, graph, nodes=100)
    assert curve.distances.tolist() == list(range(7))
    row = torch.linalg.matrix_power(gcn_coupling(graph).dense(), 3)[0]
    torch.testing.assert_close(curve.mean, 0.8**3 * row[:7], atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(curve.largest, curve.mean, atol=1e-12, rtol=1e-9)
    assert curve.reach == 3
    assert curve.felt(0.2) == 2  # 7, 6, 3, 1 of 27
    chosen = sensitivity_by_distance(net, x, graph, nodes=[4])
    assert chosen.pairs.tolist() == [1, 2, 2, 2, 2, 2, 1]


def test_layers_needed() -> None:
    assert layers_needed(nx.path_graph(7)) == 6
    assert layers_needed(nx.balanced_tree(2, 3)) == 6
    with pytest.raises(InvalidInput, match="the graph has 3 components"):
        layers_needed(torch.zeros(3, 3))
    with pytest.raises(InvalidInput, match="along the directions"):
        layers_needed(as_graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), nodes=4, directed=True))


def test_sensitivity_refuses() -> None:
    x, path = drawn(4, 3), nx.path_graph(4)
    with pytest.raises(InvalidInput, match="node"):
        node_jacobian(turned(2), x, path, 4)
    with pytest.raises(ShapeMismatch):
        node_jacobian(turned(2), drawn(5, 3), path, 0)
    with pytest.raises(UnsupportedModel, match="for a GCN"):
        sensitivity_bound(nn.Linear(2, 2), path, 0)  # type: ignore[arg-type]
    odd = GCN([3, 3, 3], torch.sin)
    with pytest.raises(UnsupportedModel, match="give slope="):
        sensitivity_bound(odd, path, 0)
    assert float(sensitivity_bound(odd, path, 0, slope=1.0)[0]) > 0


# ------------------------------------------------------------------------------------ bottlenecks


def conductance_of(graph: nx.Graph, side: set[int]) -> float:
    degree = {v: d + 1 for v, d in graph.degree()}
    inside = sum(degree[v] for v in side)
    return float(nx.cut_size(graph, side) / min(inside, sum(degree.values()) - inside))


@given(st.integers(3, 9), st.floats(0.0, 0.5), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_cheeger(nodes: int, density: float, seed: int) -> None:
    graph = connected(nodes, density, seed)
    found = bottleneck(graph)
    side = set(found.side.nonzero()[:, 0].tolist())
    assert found.conductance == pytest.approx(conductance_of(graph, side))
    assert found.width == nx.cut_size(graph, side)
    assert len(side) <= nodes / 2
    least = min(
        conductance_of(graph, set(s))
        for r in range(1, nodes)
        for s in itertools.combinations(range(nodes), r)
    )
    assert found.gap / 2 <= least + 1e-12
    assert least <= found.conductance + 1e-12
    assert found.conductance <= math.sqrt(2 * found.gap) + 1e-12
    assert tuple(found.edge) in [tuple(e) for e in found.crossing.T.tolist()]


def test_the_edge_is_the_bridge_also_by_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    for cliques in (nx.barbell_graph(6, 0), nx.barbell_graph(4, 0)):
        half = len(cliques) // 2
        assert sorted(bottleneck(cliques).edge) == [half - 1, half]
    monkeypatch.setattr("torchtheory.graphs.bottlenecks.DENSE", 3)
    other = bottleneck(nx.barbell_graph(6, 0))
    assert sorted(other.edge) == [5, 6]
    tree = bottleneck(nx.balanced_tree(2, 3))
    assert 0 in tree.edge


def test_the_edge_raises_the_gap_most() -> None:
    graph = nx.barbell_graph(5, 0)
    graph.add_edge(0, 9)
    found = bottleneck(graph)
    step = 1e-5
    gains = {}
    for i, j in found.crossing.T.tolist():
        other = nx.Graph(graph)
        other[i][j]["weight"] = 1 + step
        gains[i, j] = (bottleneck(other).gap - found.gap) / step
    assert gains[found.edge] == pytest.approx(max(gains.values()), rel=1e-3)


@given(st.integers(2, 9), st.floats(0.0, 0.5), st.integers(0, 6), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_little_comes_across(nodes: int, density: float, layers: int, seed: int) -> None:
    graph = as_graph(connected(nodes, density, seed))
    side = torch.rand(nodes, generator=torch.Generator().manual_seed(seed)) < 0.5
    side[0], side[-1] = True, False
    share, bound = crossing_share(graph, side, layers)
    A = gcn_coupling(graph).dense()
    roots = (graph.degrees() + 1).sqrt()
    walks = roots[:, None] * torch.linalg.matrix_power(A, layers) * roots
    assert share == pytest.approx(float(walks[side][:, ~side].sum()))
    assert share <= bound + 1e-9
    if layers == 1:
        assert share == pytest.approx(bound)


def test_bottlenecks_refuse() -> None:
    with pytest.raises(InvalidInput, match="2 components"):
        bottleneck(torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="has one"):
        bottleneck(torch.zeros(1, 1))
    with pytest.raises(InvalidInput, match="undirected"):
        bottleneck(as_graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), nodes=4, directed=True))
    with pytest.raises(InvalidInput, match="both sides need a node"):
        crossing_share(nx.path_graph(3), torch.ones(3, dtype=torch.bool), 2)
    with pytest.raises(ShapeMismatch, match="true or false"):
        crossing_share(nx.path_graph(3), torch.ones(3), 2)


def test_tree_matching() -> None:
    task = tree_matching(3, 50, generator=1)
    assert task.graph.nodes == 15
    assert task.x.shape == (50, 15, 24)
    for x, y in zip(task.x, task.y, strict=True):
        asked = int(x[0, :8].argmax())
        leaf = [v for v in range(7, 15) if x[v, 8 + asked] == 1]
        assert len(leaf) == 1
        assert int(x[leaf[0], 16:].argmax()) == int(y)
        assert bool((x[1:7] == 0).all())
    told = tree_matching(3, 50, told=True, generator=1)
    assert torch.equal(told.y, task.y)
    shown = told.x[:, 7:, 8:16].sum((1, 2))
    assert bool((shown == 1).all())
    same = told.x[:, 7:, 8:16] * told.x[:, :1, :8]
    assert bool((same.sum((1, 2)) == 1).all())


@pytest.mark.parametrize("steep", [nn.LeakyReLU(5.0), nn.ELU(5.0)])
def test_slopes_left_of_zero_count(steep: nn.Module) -> None:
    graph, x = as_graph(nx.path_graph(5)), drawn(5, 3)
    net = turned(3)
    net.activation = steep
    norms = torch.linalg.matrix_norm(node_jacobian(net, -1e-6 * x.abs(), graph, 1), 2)
    bound = sensitivity_bound(net, graph, 1)
    assert bool((norms <= bound * (1 + 1e-9)).all())
    relu = turned(3)
    relu.activation = nn.ReLU()
    torch.testing.assert_close(bound, 25 * sensitivity_bound(relu, graph, 1))


def test_long_thin_graphs_have_a_tiny_gap() -> None:
    nodes = 900  # more than are computed with a dense matrix
    found = bottleneck(nx.path_graph(nodes))
    assert sorted(found.edge) == [nodes // 2 - 1, nodes // 2]
    # a free path as a cycle of twice the length, with loops at its inner nodes
    assert found.gap == pytest.approx((math.pi / nodes) ** 2 / 3, rel=0.01)
