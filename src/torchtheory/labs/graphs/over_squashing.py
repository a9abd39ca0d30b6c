"""How far nodes of a graph network hear, and what a narrow place leaves of it."""

from __future__ import annotations

from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn

from torchtheory.core.figure import COLORS
from torchtheory.graphs.bottlenecks import bottleneck, crossing_share, tree_matching
from torchtheory.graphs.convolutions import GCN, GraphConvolution, GraphIsomorphism
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.graph_sensitivity import (
    layers_needed,
    receptive_field,
    sensitivity_bound,
    sensitivity_by_distance,
)
from torchtheory.graphs.message_passing import OnGraph
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import mlp
from torchtheory.training import fit


@lab(
    "over-squashing",
    room="graphs",
    covers=["N-105", "N-107"],
    title="Nodes hear as far as there are layers, and little through a narrow place",
    full={"graphs": 20, "depths": 4, "samples": 4000, "epochs": 60},
    least={"graphs": 2, "depths": 3, "samples": 100, "epochs": 10},
)
def over_squashing(run: Run, graphs: int = 3, depths: int = 3, samples: int = 1000, epochs: int = 15) -> None:
    """Jacobians of graph networks by distance, their bound, the bottleneck, and a task it spoils.

    The derivative of a node's output by another node's input is exactly 0 if the two are further
    apart than there are layers, and not otherwise, so that all-to-all exchange needs as many as
    the diameter. Within reach it is bounded by the weights' norms and a power of the coupling
    matrix, met by rotations without activation. Across a cut, what all pairs share is bounded by
    the number of layers times the width of the cut. Training accuracy falls with the depth of a
    tree whose root is asked for one of its leaves. Four leaves still come through with enough
    training; eight do not, although one of them alone does. At depth 4 even one alone is not
    learned in a few passes, so that a failure there would not be the bottleneck's.

    Args:
        graphs: random graphs.
        depths: of the trees, from 1 on; at least 3.
        samples: questions to train on.
        epochs: passes over them.
    """
    reach(run, graphs)
    bounds(run, graphs)
    across(run)
    trees(run, depths, samples, epochs)


def connected_graph(run: Run, nodes: int, extra: int) -> nx.Graph:
    graph = nx.path_graph(nodes)
    for _ in range(extra):
        i, j = torch.randint(nodes, (2,), generator=run.generator).tolist()
        if i != j:
            graph.add_edge(i, j)
    return graph


def reach(run: Run, graphs: int) -> None:
    """N-105: exact zeros beyond the depth, and only there."""
    cases: list[float] = []
    broken: list[float] = []
    gaps: list[float] = []
    missing: list[float] = []
    for k in range(graphs):
        graph = as_graph(connected_graph(run, 9, k))
        shortcut = graph.to_networkx()
        shortcut.add_edge(0, 8)
        apart = graph.distances()
        x = run.randn(9, 2)
        for depth in (1, 3):
            net = GCN([2] + [5] * (depth - 1) + [2], "tanh", generator=run.generator)
            for node in (0, 4, 8):
                near = (apart[node] <= depth).nonzero()[:, 0].tolist()
                cases.append(float(receptive_field(net, x, graph, node).tolist() != near))
            far = (apart[0] <= depth).nonzero()[:, 0].tolist()
            if apart[0, 8] > depth:
                broken.append(float(receptive_field(net, x, shortcut, 0).tolist() != far))
        needed = layers_needed(graph)
        for layers, into in ((needed, gaps), (needed - 1, missing)):
            net = GCN([2] + [5] * (layers - 1) + [2], "tanh", generator=run.generator)
            heard = sensitivity_by_distance(net, x, graph).norms
            into.append(float((heard == 0).sum()))
    says = run.states("N-105", r"\partial\xi_i/\partial x_j=0\iff\mathrm{dist}(i,j)>k")
    says.equal(cases, where="nodes whose receptive field is another one; tanh, random weights, 1 and 3 layers")
    says.fails("an edge that the distances do not know", broken)
    says = run.states("N-105", r"k\ge\mathrm{diam}\,G:\ \text{all nodes hear of each other}")
    says.equal(gaps, where="pairs with an exact 0, at as many layers as the diameter")
    says.fails("a layer less", missing)


def turned(run: Run, depth: int, width: int = 3, scale: float = 1.0, activation: Any = nn.Identity) -> GCN:
    """A GCN whose matrices are rotations, up to a scale."""
    net = GCN([width] * (depth + 1), activation, bias=False, generator=run.generator)
    with torch.no_grad():
        for layer in net.layers:
            assert isinstance(layer, GraphConvolution)
            layer.linear.weight.copy_(scale * torch.linalg.qr(run.randn(width, width)).Q)
    return net


def bounds(run: Run, graphs: int) -> None:
    """N-107: the bound by weights and coupling, and its tight case."""
    norms, limits, beyond, short = [], [], [], []
    for k in range(graphs):
        graph = as_graph(connected_graph(run, 8, 2 * k))
        x = run.randn(8, 3)
        for net in (turned(run, 3), turned(run, 4, scale=0.7), turned(run, 3, activation=nn.Tanh)):
            found = sensitivity_by_distance(net, x, graph, nodes=[0, 5])
            norms.append(found.norms.flatten())
            limits.append(torch.cat([sensitivity_bound(net, graph, i) for i in (0, 5)]))
        steep = turned(run, 3, activation=lambda v: torch.tanh(2 * v))
        found = sensitivity_by_distance(steep, 0.01 * x, graph, nodes=[0, 5])
        heard = found.norms.flatten() > 0
        beyond.append(found.norms.flatten()[heard])
        short.append(torch.cat([sensitivity_bound(steep, graph, i, slope=1.0) for i in (0, 5)])[heard])
    says = run.states("N-107", r"\|\partial\xi_i/\partial x_j\|\le\prod_\ell\|W_\ell\|\cdot(\bar A^k)_{ij}")
    says.at_most(torch.cat(norms), torch.cat(limits), within=1e-10, where="rotations, met without activation; tanh")
    says.fails("an activation with slopes up to 2", torch.cat(beyond), promised=torch.cat(short))
    curves(run)


def curves(run: Run) -> None:
    depth = 8
    shown, promised = {}, {}
    for name, graph in (
        ("path", nx.path_graph(33)),
        ("two cliques and a path", nx.barbell_graph(12, 7)),
        ("binary tree", nx.balanced_tree(2, 4)),
    ):
        net = turned(run, depth, activation=nn.Tanh)
        made = as_graph(graph)
        found = sensitivity_by_distance(net, 0.3 * run.randn(made.nodes, 3), made, nodes=16, generator=run.seed)
        rows = torch.stack([sensitivity_bound(net, made, i) for i in found.nodes.tolist()])
        top = depth + 1
        at = [found.apart == r for r in range(top)]
        shown[name] = [float(found.norms[a].mean()) for a in at]
        promised[name] = [float(rows[a].mean()) for a in at]
    run.curves(
        "distances",
        range(depth + 1),
        shown,
        promised,
        axes=("distance (edges)", "mean sensitivity ‖∂ξᵢ/∂xⱼ‖"),
        log="y",
        beside=True,
        caption=f"What a node of a GCN with {depth} layers hears of others (tanh, rotations), with the bound dashed.",
    )


def dumbbell(run: Run, size: int, edges: int) -> nx.Graph:
    """Two cliques, so many edges between them, the nodes in random order."""
    graph = nx.disjoint_union(nx.complete_graph(size), nx.complete_graph(size))
    graph.add_edges_from((k, size + k) for k in range(edges))
    order = torch.randperm(2 * size, generator=run.generator).tolist()
    return nx.relabel_nodes(graph, dict(enumerate(order)))


def across(run: Run) -> None:
    """N-107: what comes through a cut, and which edge it is."""
    shares, limits, other = [], [], []
    sums: list[float] = []
    heavy: list[float] = []
    for edges in (1, 2, 3):
        source = dumbbell(run, 6, edges)
        graph = as_graph(nx.to_numpy_array(source, nodelist=range(12)))
        side = bottleneck(graph).side
        wider = source.copy()
        inside, outside = ([v for v in range(12) if bool(side[v]) is s] for s in (True, False))
        wider.add_edges_from((a, b) for a in inside[:4] for b in outside[:4])
        rewired = as_graph(nx.to_numpy_array(wider, nodelist=range(12)))
        for layers in (1, 2, 4):
            share, limit = crossing_share(graph, side, layers)
            shares.append(share)
            limits.append(limit)
            other.append(crossing_share(rewired, side, layers)[0])
            roots = (graph.degrees() + 1).sqrt()
            for scale, into in ((1.0, sums), (2.0, heavy)):
                net = turned(run, layers, scale=scale)
                heard = sensitivity_by_distance(net, run.randn(12, 3), graph, nodes=12).norms
                into.append(float((roots[:, None] * heard * roots)[side][:, ~side].sum()))
    says = run.states("N-107", r"\sum_{i\in S,j\notin S}\sqrt{d_id_j}(\bar A^k)_{ij}\le k\,|\partial S|")
    says.at_most(shares, limits, within=1e-10, where="two cliques of 6 with 1 to 3 edges between, 1 to 4 layers")
    says.fails("16 edges more across, with the old width", other, promised=limits)
    says = run.states(
        "N-107",
        r"\sum_{i\in S,j\notin S}\sqrt{d_id_j}\,\|\partial\xi_i/\partial x_j\|\le\prod\|W_\ell\|\,k\,|\partial S|",
    )
    says.at_most(sums, limits, within=1e-10, where="measured on networks of rotations")
    says.fails("weights of norm 2 instead of 1", heavy)
    hits, lost = [], []
    for _ in range(4):
        source = dumbbell(run, 6, 1)
        (bridge,) = nx.bridges(source)
        hits.append(float(set(bottleneck(nx.to_numpy_array(source, nodelist=range(12))).edge) == set(bridge)))
        second = source.copy()
        free = [v for v in range(12) if v not in bridge]
        second.add_edges_from((a, b) for a in free for b in bridge)
        lost.append(float(set(bottleneck(nx.to_numpy_array(second, nodelist=range(12))).edge) == set(bridge)))
    says = run.states("N-107", r"\text{the bottleneck edge is the bridge between two cliques}")
    says.equal(hits, 1.0, where="shares of hits, nodes in random order")
    says.fails("both of its ends joined to all nodes: no bottleneck there", lost)
    picture(run)


def picture(run: Run) -> None:
    graph = nx.barbell_graph(7, 2)
    tree = nx.balanced_tree(2, 4)
    groups = [(graph, "two cliques"), (tree, "binary tree")]

    def plot(axes: Any) -> None:
        for ax, (shown, title) in zip(axes.flatten(), groups, strict=True):
            found = bottleneck(shown)
            places = nx.kamada_kawai_layout(shown)
            tints = [COLORS[0] if inside else COLORS[2] for inside in found.side.tolist()]
            nx.draw_networkx_edges(shown, places, ax=ax, edge_color="0.7")
            nx.draw_networkx_edges(shown, places, [found.edge], ax=ax, edge_color=COLORS[1], width=3.5)
            nx.draw_networkx_nodes(shown, places, ax=ax, node_color=tints, node_size=45)
            ax.set_title(f"{title}, conductance {found.conductance:.2g}", fontsize=9)
            ax.axis("off")

    run.figure(
        "bottlenecks",
        plot,
        grid=(1, 2),
        size=(6.6, 3.2),
        caption="The two sides of the narrowest place, and the edge across it that matters most.",
    )


class Asked(nn.Module):
    """Layers of the graph isomorphism network with shortcuts; the root answers."""

    def __init__(self, inputs: int, width: int, layers: int, classes: int, source: torch.Generator) -> None:
        super().__init__()
        kind = torch.float32
        self.first = mlp([inputs, width], generator=source, dtype=kind)
        self.layers = nn.ModuleList(
            GraphIsomorphism(mlp([width, width, width], generator=source, dtype=kind)) for _ in range(layers)
        )
        self.head = mlp([width, classes], generator=source, dtype=kind)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = h + torch.relu(layer(h, graph))
        made: Tensor = self.head(h[..., 0, :])
        return made


def trees(run: Run, depths: int, samples: int, epochs: int) -> None:
    """N-107: a question whose answer must come through the root's two edges."""
    classes, width = 4, 16

    def accuracy(depth: int, alone: bool) -> float:
        task = tree_matching(depth, samples, classes=classes, told=alone, generator=run.generator, dtype=torch.float32)
        x = task.x
        if alone:  # what shows no key says nothing
            x = x * (x[..., : 2 * 2**depth].amax(-1, keepdim=True) > 0)
        net = OnGraph(Asked(x.shape[-1], width, depth + 1, classes, run.generator), task.graph)
        fit(net, (x, task.y), epochs=epochs, batch_size=50, learning_rate=0.005, seed=run.seed)
        with torch.no_grad():
            return float((net(x).argmax(-1) == task.y).double().mean())

    range_ = list(range(1, depths + 1))
    asked = [accuracy(d, False) for d in range_]
    alone = [accuracy(d, True) for d in range_]
    says = run.states(
        "N-107", r"\text{width fixed: training accuracy at depth }3\text{ is below that at depth }1\text{ by }0.3"
    )
    says.at_most(asked[2], asked[0] - 0.3, where=f"width {width}, {samples} questions, {classes} classes")
    says.fails("only the leaf that is asked for speaks: one class is all that must come through", alone[2])
    run.curves(
        "trees",
        range_,
        {"all leaves speak": asked, "the one that is asked for speaks": alone},
        {"chance": 1 / classes},
        axes=("depth of the tree", "training accuracy"),
        ylim=(0, 1.05),
        caption=f"The root of a binary tree is asked for the class of one leaf; networks of width {width}.",
    )
