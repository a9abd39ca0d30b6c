r"""The Weisfeiler-Lehman test, and graphs that message passing cannot tell apart.

Color refinement begins with one color for all nodes (or one per label) and gives two nodes
different colors as soon as they differ in their own color or in the multiset of their neighbors':

$$ c_{t+1}(v)=\mathrm{hash}\bigl(c_t(v),\{\!\{c_t(u):u\in N(v)\}\!\}\bigr), $$

until the partition is stable, after fewer than $M$ rounds. Graphs with different histograms of
colors are not isomorphic. Equal histograms prove nothing: the test can refute an isomorphism and
never confirm one. Whatever a message-passing network computes at a node after $t$ layers is a
function of $c_t$, so no such network tells apart what the test does not.

The folklore test of dimension 2 colors pairs of nodes,
$c_{t+1}(u,v)=\mathrm{hash}\bigl(c_t(u,v),\{\!\{(c_t(u,w),c_t(w,v)):w\in V\}\!\}\bigr)$, and is
strictly stronger.

Multisets are compared by sums of random 64-bit numbers modulo $2^{64}$, one per color. Equal
multisets have equal sums, so that every split is right; and that none was missed is verified
without hashing: a partition that refines the first one and in which nodes of a color have equal
sorted lists of neighbors' colors is stable, and the coarsest such partition is unique.

Source: Deep Learning (notes), section 7.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import (
    all_finite,
    as_module,
    described,
    nonnegative_number,
    whole_number,
)
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.figure import COLORS
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph, graph_union
from torchtheory.models.model import evaluation_mode

#: The folklore test keeps a color for each pair and compares lists of M; beyond so many nodes that
#: takes minutes.
MOST_FOLKLORE_NODES = 512


@dataclass(frozen=True, slots=True)
class WLColors:
    """Colors of a graph's nodes by color refinement.

    Attributes:
        colors: `[M]`, whole numbers from 0. They do not depend on the numbering of the nodes: a
            graph whose nodes are renumbered has the same colors at the same nodes.
        rounds: after how many rounds; the next one would change nothing if `stable`.
        stable: whether the partition is stable.
        history: colors after each round, from the first colors on, `[rounds + 1, M]`; kept if a
            number of rounds was asked for.
    """

    colors: Tensor
    rounds: int
    stable: bool
    history: Tensor | None = field(repr=False)

    @property
    def count(self) -> int:
        """Number of colors."""
        return int(self.colors.max()) + 1

    @property
    def histogram(self) -> Tensor:
        """How many nodes have each color, `[count]`."""
        return torch.bincount(self.colors)


def wl_colors(
    graph: GraphSource, labels: Tensor | None = None, *, rounds: int | None = None
) -> WLColors:
    r"""The stable colors of a graph, or those after some rounds.

    Weights of edges are part of what a node sees of its neighbors, where there are any; of a
    directed graph, the neighbors are those whose edges reach a node.

    Args:
        graph: whatever `as_graph` reads.
        labels: of the nodes, `[M]` or `[M, d]`; nodes with different labels have different colors
            from the first.
        rounds: at most so many; until the partition is stable unless given.

    Time: $O(M\log M+E)$ per round, and one sort of the edges at the end (or per round if `rounds`
    is given) for the verification. Random graphs take few rounds, a path of $M$ nodes $M/2$.

    >>> import networkx as nx
    >>> wl_colors(nx.star_graph(3)).histogram.sort().values.tolist()
    [1, 3]
    >>> wl_colors(nx.cycle_graph(6)).count
    1
    """
    graph = as_graph(graph)
    if rounds is not None:
        rounds = whole_number(rounds, "rounds", least=0)
    seed = 0
    while True:
        found = _refined(graph, _first_colors(graph, labels), rounds, seed)
        if found is not None:
            return found
        seed += 1  # two multisets had one sum, which happens once in 10^9 graphs: other numbers


def wl_distinguishes(
    a: GraphSource,
    b: GraphSource,
    labels: tuple[Tensor, Tensor] | None = None,
    *,
    dimension: int = 1,
) -> bool:
    """Whether the test shows that two graphs are not isomorphic.

    False says nothing: graphs that the test does not tell apart may or may not be isomorphic.

    Args:
        a, b: graphs.
        labels: of their nodes, `[M]` or `[M, d]`.
        dimension: 1 for color refinement, 2 for the folklore test on pairs.

    >>> import networkx as nx
    >>> hexagon, triangles = nx.cycle_graph(6), nx.disjoint_union_all([nx.cycle_graph(3)] * 2)
    >>> wl_distinguishes(hexagon, triangles), wl_distinguishes(hexagon, triangles, dimension=2)
    (False, True)
    """
    dimension = whole_number(dimension, "dimension", least=1, most=2)
    graphs = [as_graph(a), as_graph(b)]
    if graphs[0].nodes != graphs[1].nodes:
        return True
    both = graph_union(graphs)
    joined = None
    if labels is not None:
        pairs = zip(labels, graphs, strict=True)
        joined = torch.cat([_as_labels(given, g).to(torch.float64) for given, g in pairs])
    if dimension == 1:
        halves = torch.split(wl_colors(both, joined).colors, graphs[0].nodes)
    else:
        pairs_of = folklore_wl(both, joined).colors
        first, size = graphs[0].nodes, both.nodes
        halves = (
            pairs_of[:first, :first].flatten(),
            pairs_of[first:size, first:size].flatten(),
        )
    return not torch.equal(halves[0].sort().values, halves[1].sort().values)


def folklore_wl(
    graph: GraphSource, labels: Tensor | None = None, *, rounds: int | None = None
) -> WLColors:
    r"""Stable colors of the ordered pairs of nodes, `[M, M]`, by the folklore test of dimension 2.

    Pairs begin with the colors of their nodes, whether they are the same node, and the weights of
    the edges between them. It sees what color refinement cannot, such as triangles, and is as
    strong as the test that is usually called 3-WL; strongly regular graphs with the same numbers
    defeat it.

    Time: $O(M^3)$ per round, memory $O(M^2)$; the verification sorts $M^3$ numbers.

    >>> import networkx as nx
    >>> folklore_wl(nx.cycle_graph(6)).count      # pairs at distances 0 to 3
    4
    """
    graph = as_graph(graph)
    size = graph.nodes
    if size > MOST_FOLKLORE_NODES:
        raise InvalidInput(
            f"the test on pairs compares {size}^3 colors per round, and takes graphs of at most "
            f"{MOST_FOLKLORE_NODES} nodes"
        )
    if rounds is not None:
        rounds = whole_number(rounds, "rounds", least=0)
    nodes = _first_colors(graph, labels)
    A = graph.adjacency(torch.float64)
    kinds = [nodes[:, None].expand(size, size), nodes.expand(size, size)]
    rows = torch.stack([k.double() for k in kinds] + [torch.eye(size).double(), A, A.T], -1)
    first = _numbered(rows.flatten(0, 1)).reshape(size, size)
    seed = 0
    while True:
        found = _refined_pairs(first, rounds, seed)
        if found is not None:
            return found
        seed += 1


def wl_kernel(graphs: Sequence[GraphSource], *, rounds: int = 3) -> Tensor:
    r"""The subtree kernel of graphs: $k(G,H)=\sum_{t\le T}\sum_c n_t(G,c)\,n_t(H,c)$, `[K, K]`.

    $n_t(G,c)$ counts the nodes of color $c$ after $t$ rounds. Graphs that the test does not tell
    apart have the same row.

    >>> import networkx as nx
    >>> wl_kernel([nx.path_graph(3), nx.cycle_graph(3)], rounds=1).tolist()
    [[14.0, 12.0], [12.0, 18.0]]
    """
    if not isinstance(graphs, list | tuple) or not graphs:
        raise EmptyData("a kernel needs a list of at least one graph")
    union = graph_union(graphs)
    found = wl_colors(union, rounds=whole_number(rounds, "rounds", least=0))
    assert union.membership is not None
    assert found.history is not None
    # a partition that is stable early stays as it is
    wanted = [*found.history, *([found.colors] * (rounds - found.rounds))]
    count = len(graphs)
    kernel = torch.zeros(count, count, dtype=torch.float64)
    for colors in wanted:
        places = union.membership * (int(colors.max()) + 1) + colors
        size = count * (int(colors.max()) + 1)
        counts = torch.bincount(places, minlength=size).reshape(count, -1).double()
        kernel += counts @ counts.T
    return kernel


# ------------------------------------------------------------------------------------- networks


@dataclass(frozen=True, slots=True)
class Distinction:
    """How far a network's outputs on two graphs are apart.

    Attributes:
        difference: largest difference of the outputs, node by node in sorted order, of their size.
        rounding: what rounding can make of nothing.
    """

    difference: float
    rounding: float

    def __bool__(self) -> bool:
        return self.difference > self.rounding


def gnn_distinguishes(
    network: nn.Module,
    a: GraphSource,
    b: GraphSource,
    features: tuple[Tensor, Tensor] | Tensor | None = None,
    *,
    tolerance: float | None = None,
) -> Distinction:
    """Whether a network `network(x, graph)` has different outputs on two graphs.

    Outputs per node `[M, c]` are compared as multisets, outputs per graph as they are. Run in
    evaluation mode and without gradients.

    Args:
        network: any module of features `[M, d]` and a `Graph`.
        features: for the two graphs, or one row `[d]` that all nodes have; ones unless given, as
            wide as the first layer of weights takes them.
        tolerance: differences up to so many times the size of the outputs count as rounding;
            a million units in the last place unless given.

    >>> import networkx as nx
    >>> from torchtheory.graphs.convolutions import GCN
    >>> hexagon, triangles = nx.cycle_graph(6), nx.disjoint_union_all([nx.cycle_graph(3)] * 2)
    >>> bool(gnn_distinguishes(GCN([2, 8, 8, 3]), hexagon, triangles))
    False
    """
    as_module(network, "the network")
    graphs = [as_graph(a), as_graph(b)]
    if features is None or isinstance(features, Tensor):
        row = features if isinstance(features, Tensor) else _ones_for(network)
        if row.ndim != 1:
            raise ShapeMismatch(
                f"features that all nodes have are one row [d], not {list(row.shape)}; give a pair "
                "of tensors for features of their own"
            )
        given = [row.expand(g.nodes, -1) for g in graphs]
    else:
        given = list(features)
    with evaluation_mode(network), torch.no_grad():
        outputs = [network(x, g) for x, g in zip(given, graphs, strict=True)]
    first, second = (_as_multiset(y, g) for y, g in zip(outputs, graphs, strict=True))
    eps = torch.finfo(first.dtype).eps
    rounding = 1e6 * eps if tolerance is None else nonnegative_number(tolerance, "tolerance")
    if first.shape != second.shape:
        return Distinction(float("inf"), rounding)
    size = max(float(first.abs().max()), float(second.abs().max()), 1e-300)
    return Distinction(float((first - second).abs().max()) / size, rounding)


def _ones_for(network: nn.Module) -> Tensor:
    for module in network.modules():
        if isinstance(module, nn.Linear):
            return torch.ones(module.in_features, dtype=module.weight.dtype)
        width = getattr(module, "inputs", None)  # a layer on graphs
        if isinstance(width, int):
            return torch.ones(width, dtype=next(module.parameters()).dtype)
    raise InvalidInput("the network has no layer of weights to tell its inputs: give features=")


def _as_multiset(y: Any, graph: Graph) -> Tensor:
    """Rows of a node-wise output in an order that does not depend on the nodes' numbering."""
    if not isinstance(y, Tensor):
        raise InvalidType(f"the network must return one tensor, not {described(y)}")
    all_finite(y, "the network's output")
    if y.ndim != 2 or len(y) != graph.nodes:
        return y.flatten()
    # sorted by a direction in which rows that differ do so, whatever rounding does to the others
    weights = torch.linspace(1.0, 2.0, y.shape[1], dtype=y.dtype, device=y.device).sqrt()
    return y[(y @ weights).argsort(stable=True)]


# ------------------------------------------------------------------------------------ refinement


def _first_colors(graph: Graph, labels: Tensor | None) -> Tensor:
    if graph.nodes == 0:
        raise EmptyData("a graph without nodes has no colors")
    if labels is None:
        return torch.zeros(graph.nodes, dtype=torch.int64)
    return _numbered(_as_labels(labels, graph))


def _as_labels(labels: Tensor, graph: Graph) -> Tensor:
    if not isinstance(labels, Tensor) or labels.ndim not in (1, 2) or len(labels) != graph.nodes:
        raise ShapeMismatch(
            f"labels of {graph.nodes} nodes are [{graph.nodes}] or [{graph.nodes}, d], not "
            f"{described(labels)}"
        )
    return labels.detach().reshape(graph.nodes, -1)


def _numbered(rows: Tensor) -> Tensor:
    """The number of each row among the different ones, in their order."""
    places: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return places


def _random_numbers(count: int, seed: int) -> Tensor:
    """64-bit numbers, the same for the same seed; the first ones do not depend on the count."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=source)


def _grouped(colors: Tensor, sums: Tensor) -> Tensor | None:
    """Numbers of the different sums; None if one stands for two colors."""
    ordered, places = sums.sort()
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    number = new.cumsum(0) - 1
    made = torch.empty_like(number)
    made[places] = number
    owner = torch.empty(int(number[-1]) + 1, dtype=colors.dtype)
    owner[made] = colors
    return made if torch.equal(owner.index_select(0, made), colors) else None


def _refined(graph: Graph, colors: Tensor, rounds: int | None, seed: int) -> WLColors | None:
    """Color refinement with one set of random numbers; None if two multisets had one sum."""
    colors = colors.cpu()
    edges, starts = graph.edges.cpu(), graph.pointers().cpu()
    sources = edges[0]
    kinds = _kinds(graph)
    own = _random_numbers(graph.nodes, 2 * seed)
    others = _random_numbers(graph.nodes, 2 * seed + 1)
    factors = None
    if kinds is not None:  # an odd factor per weight, modulo 2^64
        factors = 2 * _random_numbers(int(kinds.max()) + 1, 2**20 + seed)[kinds] + 1
    history, done, stable = [colors], 0, False
    before = int(colors.max()) + 1
    while rounds is None or done < rounds:
        seen = others.index_select(0, colors).index_select(0, sources)
        seen = seen if factors is None else seen * factors
        total = torch.cat([seen.new_zeros(1), seen.cumsum(0)])
        sums = own.index_select(0, colors) + total.index_select(0, starts).diff()
        made = _grouped(colors, sums)
        if made is None:
            return None
        if rounds is not None and not _same_neighbors(graph, colors, made, kinds):
            return None
        count = int(made.max()) + 1
        if count == before:  # as many colors, none of them in two: the same partition
            stable = True
            break
        colors, before, done = made, count, done + 1
        if rounds is not None:
            history.append(colors)
    if stable and not _same_neighbors(graph, colors, colors, kinds):
        return None
    return WLColors(colors, done, stable, None if rounds is None else torch.stack(history))


def _kinds(graph: Graph) -> Tensor | None:
    """The number of each edge's weight among the different ones; None if all are alike."""
    if graph.weights is None:
        return None
    found: Tensor = torch.unique(graph.weights.cpu(), return_inverse=True)[1]
    return found if int(found.max()) > 0 else None


def _same_neighbors(graph: Graph, before: Tensor, after: Tensor, kinds: Tensor | None) -> bool:
    """Whether nodes of one color `after` had the same color and neighbors' colors `before`."""
    edges, starts = graph.edges.cpu(), graph.pointers().cpu()
    # one node of each color to compare the others with
    leader = torch.empty(int(after.max()) + 1, dtype=torch.int64)
    leader[after] = torch.arange(graph.nodes)
    model = leader.index_select(0, after)
    degrees = starts.diff()
    for seen in (degrees, before):
        if not torch.equal(seen, seen.index_select(0, model)):
            return False
    if kinds is None and int(before.max()) == 0:
        return True  # all neighbors look alike, and there are as many
    # a node that is alone in its color needs no comparison
    shared = torch.bincount(after).index_select(0, after) > 1
    kept = shared.index_select(0, edges[1]).nonzero()[:, 0]
    seen = before.index_select(0, edges[0].index_select(0, kept))
    if kinds is not None:
        seen = seen * (int(kinds.max()) + 1) + kinds.index_select(0, kept)
    targets = edges[1].index_select(0, kept)
    width = int(seen.max()) + 1 if len(seen) else 1
    # lists of neighbors' colors, each sorted; targets are ascending already
    lists = (targets * width + seen).sort().values - targets * width
    begin = torch.zeros(graph.nodes, dtype=torch.int64)
    begin[1:] = torch.where(shared, degrees, 0).cumsum(0)[:-1]
    within = torch.arange(len(lists)) - begin.index_select(0, targets)
    there = begin.index_select(0, model.index_select(0, targets)) + within
    return torch.equal(lists, lists.index_select(0, there))


def _refined_pairs(colors: Tensor, rounds: int | None, seed: int) -> WLColors | None:
    size = len(colors)
    count = int(colors.max()) + 1
    own = _random_numbers(size * size, 3 * seed)
    left, right = (_random_numbers(size * size, 3 * seed + k) for k in (1, 2))
    history, done, stable = [colors], 0, False
    while rounds is None or done < rounds:
        # sum over w of left[c(u, w)] right[c(w, v)] modulo 2^64
        sums = own[colors] + left[colors] @ right[colors]
        made = _grouped(colors.flatten(), sums.flatten())
        if made is None:
            return None
        made = made.reshape(size, size)
        if rounds is not None and not _same_triangles(colors, made):
            return None
        now = int(made.max()) + 1
        if now == count:
            stable = True
            break
        colors, count, done = made, now, done + 1
        if rounds is not None:
            history.append(colors)
    if stable and not _same_triangles(colors, colors):
        return None
    return WLColors(colors, done, stable, None if rounds is None else torch.stack(history))


def _same_triangles(before: Tensor, after: Tensor) -> bool:
    """Whether pairs of one color `after` had the same color and lists of pairs `before`."""
    size = len(before)
    flat = after.flatten()
    leader = torch.empty(int(flat.max()) + 1, dtype=torch.int64)
    leader[flat] = torch.arange(size * size)
    if not torch.equal(before.flatten(), before.flatten()[leader][flat]):
        return False
    width = int(before.max()) + 1

    def lists(pairs: Tensor) -> Tensor:
        u, v = pairs // size, pairs % size
        return (before[u] * width + before.T[v]).sort(-1).values

    wanted = torch.cat([lists(part) for part in torch.split(leader, 2**20 // size + 1)])
    return all(
        torch.equal(lists(part), wanted[flat[part]])
        for part in torch.split(torch.arange(size * size), 2**20 // size + 1)
    )


# --------------------------------------------------------------------------------------- picture


def plot_colored_graphs(axes: Any, graphs: Sequence[GraphSource], titles: Sequence[str]) -> None:
    """Graphs side by side, nodes in their Weisfeiler-Lehman colors, which all of them share.

    Args:
        axes: matplotlib's, one per graph.
    """
    import networkx as nx

    made = [as_graph(g) for g in graphs]
    colors = torch.split(wl_colors(graph_union(made)).colors, [g.nodes for g in made])
    for ax, graph, shown, title in zip(axes, made, colors, titles, strict=True):
        drawn = graph.to_networkx()
        places = _places(drawn)
        tints = [COLORS[c % len(COLORS)] for c in shown.tolist()]
        nx.draw_networkx_edges(drawn, places, ax=ax, edge_color="0.6", width=1.2)
        nx.draw_networkx_nodes(
            drawn, places, ax=ax, node_color=tints, node_size=130, edgecolors="white"
        )
        ax.set_title(title, fontsize=9)
        ax.set_aspect("equal")
        ax.axis("off")
        ax.margins(0.15)


def _places(drawn: Any) -> dict[Any, Any]:
    """Components on circles side by side."""
    import networkx as nx

    places: dict[Any, Any] = {}
    across = 0.0
    for part in nx.connected_components(drawn.to_undirected()):
        inside = drawn.subgraph(part)
        regular = len({d for _, d in inside.degree()}) == 1
        found = (
            nx.circular_layout(inside)
            if regular
            else nx.kamada_kawai_layout(inside.to_undirected())
        )
        radius = max(1.0, len(part) / 4)
        for node, (x, y) in found.items():
            places[node] = (across + radius * x, radius * y)
        across += 2 * radius + 0.8
    return places
