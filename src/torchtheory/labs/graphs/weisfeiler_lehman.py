"""Color refinement, and graphs that message passing cannot tell apart."""

from __future__ import annotations

import itertools
import math
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn

from torchtheory.core.random import numpy_generator
from torchtheory.graphs.convolutions import GCN, GraphIsomorphism
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_attention import GraphAttention
from torchtheory.graphs.graph_reading import GraphSource, as_graph, graph_union
from torchtheory.graphs.message_passing import MessagePassing, OnGraph, pooled_nodes
from torchtheory.graphs.weisfeiler_lehman import (
    gnn_distinguishes,
    plot_colored_graphs,
    wl_colors,
    wl_distinguishes,
    wl_kernel,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import mlp
from torchtheory.training import fit


@lab(
    "weisfeiler-lehman",
    room="graphs",
    covers=["N-109"],
    errata=["weisfeiler-lehman-decides"],
    title="What color refinement does not tell apart, no message passing does",
    full={"graphs": 400, "nodes": 40},
    least={"graphs": 10, "nodes": 6},
)
def weisfeiler_lehman(run: Run, graphs: int = 20, nodes: int = 12) -> None:
    """The Weisfeiler-Lehman test against networkx and brute force; networks against the test.

    Partitions are those of networkx's hashes, round by round, and isomorphic graphs always have
    the same colors. A hexagon and two triangles have them too: GCN, graph attention and the graph
    isomorphism network have the same outputs on both, as they are drawn and after training, whose
    loss cannot fall below log 2. Pairs of nodes, colored in the folklore way, tell them apart. The
    picture shows pairs of graphs that share their colors.

    Args:
        graphs: random graphs that are compared.
        nodes: of each.
    """
    partitions(run, graphs, nodes)
    soundness(run, graphs, nodes)
    pairs_of_nodes(run)
    networks(run)
    trained(run)
    as_strong(run, graphs)
    pictures(run)


HEXAGON = nx.cycle_graph(6)
TRIANGLES = nx.disjoint_union_all([nx.cycle_graph(3)] * 2)


def random_graph(run: Run, nodes: int, edges: int) -> nx.Graph:
    return nx.gnm_random_graph(nodes, edges, seed=int(torch.randint(2**31, (), generator=run.generator)))


def partitions(run: Run, graphs: int, nodes: int) -> None:
    """N-109: color by color as networkx has them."""
    rounds = 4
    wrong, coarser = [], []
    for k in range(graphs):
        graph = random_graph(run, nodes, nodes + k % nodes)
        nx.set_node_attributes(graph, "x", "label")
        theirs = nx.weisfeiler_lehman_subgraph_hashes(graph, node_attr="label", iterations=rounds)
        ours = wl_colors(graph, rounds=rounds)
        assert ours.history is not None
        # a partition that is stable early stays as it is
        history = [*ours.history[1:], *([ours.colors] * (rounds - ours.rounds))]
        wrong.append(sum(not same(h.tolist(), [theirs[v][t] for v in graph]) for t, h in enumerate(history)))
        coarser.append(sum(not same(c, [theirs[v][t] for v in graph]) for t, c in enumerate(by_sets(graph, rounds))))
    says = run.states("N-109", r"c_{t+1}(v)=\mathrm{hash}\bigl(c_t(v),\{\!\{c_t(u):u\in N(v)\}\!\}\bigr)")
    says.equal(wrong, where=f"partitions of {graphs} random graphs that are not networkx's, {rounds} rounds each")
    says.fails("the set of the neighbors' colors in the place of the multiset", max(coarser))


def by_sets(graph: nx.Graph, rounds: int) -> list[list[int]]:
    """Refinement that forgets how often a color occurs."""
    colors, found = dict.fromkeys(graph, 0), []
    for _ in range(rounds):
        seen = {v: (colors[v], frozenset(colors[u] for u in graph[v])) for v in graph}
        numbers: dict[Any, int] = {}
        colors = {v: numbers.setdefault(s, len(numbers)) for v, s in seen.items()}
        found.append([colors[v] for v in graph])
    return found


def same(a: list[Any], b: list[Any]) -> bool:
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


def soundness(run: Run, graphs: int, nodes: int) -> None:
    """N-109: never wrong about graphs that are the same."""
    told, other = 0, 0
    for k in range(graphs):
        graph = random_graph(run, nodes, nodes + k % nodes)
        order = torch.randperm(nodes, generator=run.generator)
        turned = as_graph(graph).relabeled(order)
        told += wl_distinguishes(graph, turned)
        graph.remove_edge(*next(iter(graph.edges)))
        other += wl_distinguishes(graph, turned)
    says = run.states("N-109", r"G\cong H\Rightarrow\text{the same colors}")
    says.equal(told / graphs, where=f"share of {graphs} renumbered graphs that the test tells apart")
    says.fails("an edge less", other / graphs)
    run.refutes("weisfeiler-lehman-decides", r"\text{the same colors}\iff G\cong H").equal(
        float(wl_distinguishes(HEXAGON, TRIANGLES)),
        float(not nx.is_isomorphic(HEXAGON, TRIANGLES)),
        where="hexagon and two triangles: 1 if the test tells them apart, 1 if they differ by brute force",
    )
    says = run.states("N-109", r"P_4\text{ and }K_{1,3}\text{ are told apart}")
    says.equal(float(wl_distinguishes(nx.path_graph(4), nx.star_graph(3))), 1.0)
    says.fails("all nodes of the same degree: hexagon and triangles", float(wl_distinguishes(HEXAGON, TRIANGLES)))
    marked = torch.tensor([1, 0, 0, 0, 0, 0])
    says = run.states("N-109", r"C_6\text{ and }2C_3\text{ are not}")
    says.equal(float(wl_distinguishes(HEXAGON, TRIANGLES)))
    says.fails("one node marked in each", float(wl_distinguishes(HEXAGON, TRIANGLES, (marked, marked))))
    kernel = wl_kernel([HEXAGON, TRIANGLES, nx.path_graph(6)], rounds=3)
    says = run.states("N-109", r"k(C_6,\cdot)=k(2C_3,\cdot)\text{ for the subtree kernel}")
    says.equal((kernel[0] - kernel[1]).abs().max().item(), where="against hexagon, triangles and a path")
    says.fails("the path in the place of the triangles", (kernel[0] - kernel[2]).abs().max().item())


def shrikhande() -> nx.Graph:
    made = nx.Graph()
    for a, b in itertools.product(range(4), repeat=2):
        made.add_edges_from(((a, b), ((a + x) % 4, (b + y) % 4)) for x, y in ((1, 0), (0, 1), (1, 1)))
    return nx.convert_node_labels_to_integers(made)


def rook() -> nx.Graph:
    return nx.convert_node_labels_to_integers(nx.line_graph(nx.complete_bipartite_graph(4, 4)))


def pairs_of_nodes(run: Run) -> None:
    """N-109, in two dimensions."""
    says = run.states("N-109", r"\text{the folklore test of dimension }2\text{ tells }C_6\text{ from }2C_3")
    says.equal(float(wl_distinguishes(HEXAGON, TRIANGLES, dimension=2)), 1.0)
    says.fails("dimension 1", float(wl_distinguishes(HEXAGON, TRIANGLES)))
    assert not nx.is_isomorphic(rook(), shrikhande())
    says = run.states("N-109", r"\text{and not the rook's graph from Shrikhande's, both }(16,6,2,2)")
    says.equal(float(wl_distinguishes(rook(), shrikhande(), dimension=2)))
    less = shrikhande()
    less.remove_edge(0, next(iter(less[0])))
    more = rook()
    more.remove_edge(0, next(iter(more[0])))
    says.fails("an edge less in each: no longer strongly regular", float(wl_distinguishes(more, less, dimension=2)))


class Attending(nn.Module):
    """Two layers of graph attention."""

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()
        self.first = GraphAttention(2, 8, heads=2, generator=source)
        self.second = GraphAttention(16, 3, generator=source)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        made: Tensor = self.second(torch.tanh(self.first(x, graph)), graph)
        return made


class Isomorphism(nn.Module):
    """Layers of the graph isomorphism network, summed over each graph."""

    def __init__(self, source: torch.Generator, outputs: int = 2, layers: int = 3, mean: bool = False) -> None:
        super().__init__()
        inner = [mlp([2 if k == 0 else 8, 8, 8], "tanh", generator=source) for k in range(layers)]
        self.layers = nn.ModuleList(
            MessagePassing(None, _Sum(net), "mean") if mean else GraphIsomorphism(net) for net in inner
        )
        self.head = mlp([8, outputs], generator=source)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x, graph))
        made: Tensor = self.head(pooled_nodes(x, graph, "mean"))
        return made


class _Sum(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        made: Tensor = self.net(x + z)
        return made


def networks(run: Run) -> None:
    """N-109: outputs to rounding, with the weights as drawn."""
    source = run.generator
    nets = [GCN([2, 8, 8, 3], "tanh", generator=source), Attending(source), Isomorphism(source)]
    numbers = torch.arange(6, dtype=torch.float64)[:, None].expand(6, 2)
    says = run.states("N-109", r"\text{constant features: }f(C_6)=f(2C_3)\text{ for GCN, GAT and GIN}")
    said = "largest difference of the outputs, of their size"
    says.equal([gnn_distinguishes(n, HEXAGON, TRIANGLES).difference for n in nets], within=1e-12, where=said)
    told = [gnn_distinguishes(n, HEXAGON, TRIANGLES, (numbers, numbers)).difference for n in nets]
    says.fails("the number of each node as its feature", told)


class Pooled(nn.Module):
    """The mean over the nodes of each graph."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        return pooled_nodes(self.inside(x, graph), graph, "mean")


def trained(run: Run) -> None:
    """N-109: training does not help."""
    source = run.generator
    losses = []
    hard, easy = (graph_union(pair) for pair in ([HEXAGON, TRIANGLES], [nx.path_graph(4), nx.star_graph(3)]))
    for made in (
        lambda: Pooled(GCN([2, 8, 8, 2], "tanh", generator=source)),
        lambda: Pooled(Attending(source)),
        lambda: Isomorphism(source),
    ):
        net = made()
        losses.append(train(net, hard, run.seed))
        difference = gnn_distinguishes(net, HEXAGON, TRIANGLES).difference
    says = run.states("N-109", r"\text{trained to tell }C_6\text{ from }2C_3:\ \text{loss}\ge\log2")
    says.at_least(losses, math.log(2), within=1e-9, where="GCN, GAT and GIN, cross-entropy of the two graphs")
    easily = [train(Pooled(GCN([2, 8, 8, 2], "tanh", generator=source)), easy, run.seed)]
    easily.append(train(Isomorphism(source), easy, run.seed))
    says.fails("a path and a star, which the test tells apart", easily)
    says = run.states("N-109", r"\text{trained: }f(C_6)=f(2C_3)")
    says.equal(difference, within=1e-12, where="GIN, largest difference of the outputs, of their size")
    says.fails("a path and a star", gnn_distinguishes(net, nx.path_graph(4), nx.star_graph(3)).difference)


def train(net: nn.Module, union: Graph, seed: int) -> float:
    """The mean cross-entropy after training to name the graphs of a union by their numbers."""
    inside = OnGraph(net, union)

    class AllAtOnce(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inside(x[0])
            return made[None]

    x, y = torch.ones(1, union.nodes, 2).double(), torch.arange(2)[None]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs[0], targets[0])

    whole = AllAtOnce()
    fit(whole, (x, y), epochs=40, batch_size=1, learning_rate=0.05, loss=loss, task="labeling", seed=seed)
    with torch.no_grad():
        return float(loss(whole(x), y))


def as_strong(run: Run, graphs: int) -> None:
    """N-109: sums see as much as the test does, means do not."""
    rng = numpy_generator(run.generator)
    gin, mean = Isomorphism(run.generator, layers=5), Isomorphism(run.generator, layers=5, mean=True)
    cases = []
    for _ in range(graphs):
        a, b = (nx.gnm_random_graph(7, 8, seed=int(rng.integers(2**31))) for _ in range(2))
        cases.append((wl_distinguishes(a, b), *(bool(gnn_distinguishes(n, a, b)) for n in (gin, mean))))
    says = run.states("N-109", r"\text{sums over neighbors, generic weights: as strong as the test}")
    says.equal(
        sum(test != net for test, net, _ in cases) / graphs,
        where=f"share of {graphs} pairs of graphs of 7 nodes and 8 edges where the two disagree",
    )
    says.fails("means over neighbors", sum(test != net for test, _, net in cases) / graphs)


def pictures(run: Run) -> None:
    decalin = nx.cycle_graph(6)
    nx.add_path(decalin, [0, 6, 7, 8, 9, 1])
    joined = nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5))
    joined.add_edge(0, 5)
    groups = [
        ([HEXAGON, TRIANGLES], ["hexagon", "two triangles"]),
        ([decalin, joined], ["two hexagons, an edge shared", "two pentagons, joined by an edge"]),
    ]
    says = run.states("N-109", r"\text{two fused hexagons and two joined pentagons have the same colors}")
    says.equal(float(wl_distinguishes(decalin, joined)), where="the carbon skeletons of decalin and bicyclopentyl")
    moved = nx.Graph(joined)
    moved.remove_edge(0, 5)
    moved.add_edges_from([(0, 5), (1, 6)])
    says.fails("a second edge between the pentagons", float(wl_distinguishes(decalin, moved)))

    def plot(axes: Any) -> None:
        flat = list(axes.flatten())
        for k, (shown, titles) in enumerate(groups):
            plot_colored_graphs(flat[2 * k : 2 * k + 2], shown, titles)

    run.figure(
        "confusable",
        plot,
        grid=(2, 2),
        size=(6.4, 4.6),
        caption="Graphs in each row have the same colors, so that no message-passing network tells them apart.",
    )
