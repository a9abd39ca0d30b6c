"""Color refinement: networkx's partitions, the coarsest stable one, and what it cannot see."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.graphs import weisfeiler_lehman
from torchtheory.graphs.convolutions import GCN, GraphIsomorphism
from torchtheory.graphs.graph_attention import GraphAttention
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.message_passing import pooled_nodes
from torchtheory.graphs.weisfeiler_lehman import (
    folklore_wl,
    gnn_distinguishes,
    wl_colors,
    wl_distinguishes,
    wl_kernel,
)
from torchtheory.nets.feedforward import mlp

HEXAGON = nx.cycle_graph(6)
TRIANGLES = nx.disjoint_union_all([nx.cycle_graph(3)] * 2)


def shrikhande() -> nx.Graph:
    made = nx.Graph()
    for a, b in itertools.product(range(4), repeat=2):
        for da, db in ((1, 0), (0, 1), (1, 1)):
            made.add_edge((a, b), ((a + da) % 4, (b + db) % 4))
    return made


def rook() -> nx.Graph:
    return nx.line_graph(nx.complete_bipartite_graph(4, 4))


def same_partition(a: list[object], b: list[object]) -> bool:
    pairs = set(zip(a, b, strict=True))
    return len(pairs) == len(set(a)) == len(set(b))


@given(st.integers(1, 30), st.floats(0.05, 0.6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_partitions_are_networkx(nodes: int, density: float, seed: int) -> None:
    graph = nx.gnp_random_graph(nodes, density, seed=seed)
    # with a label for all: networkx's own first labels are degrees, joined without a separator
    nx.set_node_attributes(graph, "x", "label")
    theirs = nx.weisfeiler_lehman_subgraph_hashes(graph, node_attr="label", iterations=4)
    for k in range(4):
        ours = wl_colors(graph, rounds=k + 1).colors.tolist()
        assert same_partition(ours, [theirs[v][k] for v in graph])


def test_two_graphs_as_networkx_compares_them() -> None:
    told = 0
    for seed in range(60):
        a = nx.gnm_random_graph(7, 8, seed=seed)
        b = nx.gnm_random_graph(7, 8, seed=seed + 1000)
        for g in (a, b):
            nx.set_node_attributes(g, "x", "label")
        hashes = [
            nx.weisfeiler_lehman_graph_hash(g, node_attr="label", iterations=7) for g in (a, b)
        ]
        ours = wl_distinguishes(a, b)
        assert ours == (hashes[0] != hashes[1])
        if ours:
            assert not nx.is_isomorphic(a, b)
        told += ours
    assert 40 < told < 60


@given(st.integers(2, 25), st.floats(0.05, 0.5), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_colors_do_not_depend_on_numbering(nodes: int, density: float, seed: int) -> None:
    graph = as_graph(nx.gnp_random_graph(nodes, density, seed=seed))
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    found, turned = wl_colors(graph), wl_colors(graph.relabeled(order))
    assert torch.equal(found.colors[order], turned.colors)
    assert found.stable
    assert found.rounds < nodes
    assert not wl_distinguishes(graph, graph.relabeled(order))
    assert not wl_distinguishes(graph, graph.relabeled(order), dimension=2)


def test_known_pairs() -> None:
    assert wl_distinguishes(nx.path_graph(4), nx.star_graph(3))
    assert not wl_distinguishes(HEXAGON, TRIANGLES)
    assert not nx.is_isomorphic(HEXAGON, TRIANGLES)
    assert wl_distinguishes(HEXAGON, TRIANGLES, dimension=2)
    # strongly regular with the same numbers: not even pairs of nodes see a difference
    assert not nx.is_isomorphic(rook(), shrikhande())
    assert not wl_distinguishes(rook(), shrikhande(), dimension=2)
    assert wl_distinguishes(nx.path_graph(4), nx.path_graph(5))
    labels = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 1, 1, 0, 1, 0])
    assert wl_distinguishes(HEXAGON, TRIANGLES, labels)


def test_pairs_refine_nodes() -> None:
    graph = nx.gnp_random_graph(15, 0.2, seed=3)
    pairs = folklore_wl(graph)
    nodes = wl_colors(graph)
    diagonal = pairs.colors.diagonal()
    for a, b in itertools.combinations(range(15), 2):
        if nodes.colors[a] != nodes.colors[b]:
            assert diagonal[a] != diagonal[b]
    assert folklore_wl(graph, rounds=1).rounds == 1


def test_a_path_takes_half_as_many_rounds_as_it_has_nodes() -> None:
    found = wl_colors(nx.path_graph(40))
    assert (found.rounds, found.count) == (19, 20)
    assert found.history is None
    part = wl_colors(nx.path_graph(40), rounds=3)
    assert not part.stable
    assert part.history is not None
    assert [int(c.max()) + 1 for c in part.history] == [1, 2, 3, 4]


def test_weights_directions_and_labels_are_seen() -> None:
    heavy = as_graph(torch.tensor([[0, 1.0, 0], [1, 0, 2], [0, 2, 0]]))
    assert wl_colors(heavy).count == 3
    assert wl_colors(nx.path_graph(3)).count == 2
    arrow = as_graph(torch.tensor([[0, 1], [1, 2]]), nodes=3)
    assert wl_colors(arrow).count == 3
    assert wl_colors(HEXAGON, torch.tensor([1, 0, 0, 0, 0, 0])).count == 4
    assert wl_colors(HEXAGON, torch.eye(6)).count == 6
    assert wl_colors(as_graph(torch.zeros(3, 3))).count == 1


def test_sums_that_collide_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers so poor that different multisets have one sum: the answer is right all the same."""
    good = weisfeiler_lehman._random_numbers
    tried = []

    def poor(count: int, seed: int) -> torch.Tensor:
        tried.append(seed)
        return good(count, seed) if seed > 7 else torch.zeros(count, dtype=torch.int64)

    graph = nx.gnp_random_graph(20, 0.2, seed=1)
    wanted = wl_colors(graph).colors.tolist(), wl_colors(graph, rounds=2).colors.tolist()
    pairs = folklore_wl(graph).colors.flatten().tolist()
    monkeypatch.setattr(weisfeiler_lehman, "_random_numbers", poor)
    found = wl_colors(graph).colors.tolist(), wl_colors(graph, rounds=2).colors.tolist()
    assert all(same_partition(a, b) for a, b in zip(wanted, found, strict=True))
    assert same_partition(folklore_wl(graph).colors.flatten().tolist(), pairs)
    assert max(tried) > 7


def test_kernel_by_hand() -> None:
    k = wl_kernel([HEXAGON, TRIANGLES, nx.path_graph(6)], rounds=4)
    assert torch.equal(k[0], k[1])
    assert torch.equal(k, k.T)
    assert k[0, 0] == 5 * 36
    # the path's inner nodes look like a cycle's until the ends are felt: 6, 4, 2, 0, 0
    assert k[0, 2] == 6 * (6 + 4 + 2)
    assert float(torch.linalg.eigvalsh(k)[0]) > -1e-9


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GraphAttention(2, 8, heads=2)
        self.second = GraphAttention(16, 3)

    def forward(self, x: torch.Tensor, graph: object) -> torch.Tensor:
        made: torch.Tensor = self.second(torch.tanh(self.first(x, graph)), graph)
        return made


class Isomorphism(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GraphIsomorphism(mlp([2 if k == 0 else 8, 8, 8], "tanh", generator=k)) for k in range(3)
        )

    def forward(self, x: torch.Tensor, graph: object) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, graph)
        return pooled_nodes(x, graph, "sum")


@pytest.mark.parametrize("network", [GCN([2, 8, 8, 3], "tanh"), Attention(), Isomorphism()])
def test_networks_see_no_more_than_the_test(network: nn.Module) -> None:
    same = gnn_distinguishes(network, HEXAGON, TRIANGLES)
    assert not same
    assert same.difference < 1e-12
    ids = torch.arange(6).double()[:, None].expand(6, 2)
    assert gnn_distinguishes(network, HEXAGON, TRIANGLES, (ids, ids))
    if not isinstance(network, Attention):  # whose outputs on constant features are constant
        assert gnn_distinguishes(network, nx.path_graph(4), nx.star_graph(3))
    assert network.training


def test_refused() -> None:
    with pytest.raises(EmptyData):
        wl_colors(nx.Graph())
    with pytest.raises(ShapeMismatch, match="labels of 6 nodes"):
        wl_colors(HEXAGON, torch.zeros(5))
    with pytest.raises(InvalidInput, match="dimension"):
        wl_distinguishes(HEXAGON, TRIANGLES, dimension=3)
    with pytest.raises(InvalidInput, match="at most 512 nodes"):
        folklore_wl(nx.path_graph(600))
    with pytest.raises(EmptyData, match="at least one graph"):
        wl_kernel([])
    with pytest.raises(ShapeMismatch, match="one row"):
        gnn_distinguishes(GCN([2, 3]), HEXAGON, TRIANGLES, torch.ones(6, 2).double())
    with pytest.raises(InvalidInput, match="give features="):
        gnn_distinguishes(nn.Identity(), HEXAGON, TRIANGLES)


def test_outputs_that_are_not_numbers_tell_nothing() -> None:
    with pytest.raises(NonFinite):
        gnn_distinguishes(
            GCN([1, 1]), nx.path_graph(4), nx.star_graph(3), torch.tensor([torch.nan]).double()
        )


def test_the_difference_is_relative_to_the_larger_output() -> None:
    class Total(nn.Module):
        def forward(self, x: torch.Tensor, graph: object) -> torch.Tensor:
            return x.sum(0)

    ones = torch.ones(6, 1).double()
    found = gnn_distinguishes(Total(), HEXAGON, TRIANGLES, (ones, 1.5 * ones), tolerance=0.25)
    assert found.difference == pytest.approx(1 / 3)  # 6 against 9
    assert found.rounding == 0.25
