"""Over-smoothing: repeated coupling forgets everything but degrees, at a rate the graph tells."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn

from torchtheory.core.random import numpy_generator
from torchtheory.graphs.convolutions import GCN, GraphConvolution
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import as_graph, graph_union
from torchtheory.graphs.laplacians import gcn_coupling, graph_laplacian
from torchtheory.graphs.over_smoothing import (
    dirichlet_energy,
    layer_energies,
    second_modulus,
    smoothing_curve,
    smoothing_limit,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.graphs.graph_layers import random_graph
from torchtheory.labs.nets.comparing import gap


@lab(
    "over-smoothing",
    room="graphs",
    covers=["N-106"],
    title="Deep graph networks smooth: features approach a limit at the rate of the second eigenvalue",
    full={"nodes": 200, "depth": 60, "dimension": 16},
    least={"nodes": 8, "depth": 12, "dimension": 9},
    most={"dimension": 18},
)
def over_smoothing(run: Run, nodes: int = 24, depth: int = 30, dimension: int = 10) -> None:
    """What becomes of features under repeated coupling, and inside deep networks.

    The powers of the coupling matrix approach a projection at the exact rate of its second largest
    modulus, component by component; without loops, on a bipartite graph, they never do. What is left
    is the same for all nodes after division by the root of their degree. The Dirichlet energy falls
    with the square of the rate, also through ReLU and weights; layers that add their input break that
    bound and keep more. On hypercubes, where the rate is known, it is found without a matrix.

    Args:
        nodes: of the random graph.
        depth: how often features are coupled.
        dimension: of the hypercube, with two to that power nodes.
    """
    graph = random_graph(run, nodes)
    powers(run, graph, depth)
    curves(run, graph, depth)
    energies(run, graph)
    hypercubes(run, dimension)
    pictures(run, depth)


def powers(run: Run, graph: Graph, depth: int) -> None:
    """The limit and the rate."""
    graphs = [graph, as_graph(nx.star_graph(7)), graph_union([graph, nx.cycle_graph(5)])]
    depths = [1, 5, min(depth, 30)]  # further on rounding is all that is left

    def errors(graphs: list[Graph], limits: list[Tensor]) -> list[float]:
        return [
            float(torch.linalg.matrix_norm(power(g, k) - limit, 2) ** (1 / k))
            for g, limit in zip(graphs, limits, strict=True)
            for k in depths
        ]

    says = run.states("N-106", r"\|\bar A^k-\lim\|_2=|\lambda|_{(2)}^k")
    limits = [smoothing_limit(torch.eye(g.nodes, dtype=torch.float64), g) for g in graphs]
    rates = [second_modulus(g) for g in graphs for _ in depths]
    says.equal(errors(graphs, limits), rates, within=1e-6, where="k-th roots; a random graph, a star, two components")
    doubled = [graph_union([g, g]) for g in graphs]
    says.fails("two copies, with the limit of a connected graph", errors(doubled, [joint_limit(g) for g in doubled]))
    says = run.states("N-106", r"\lim\bar A^k=D^{1/2}\mathbf 1\mathbf 1^\top D^{1/2}/\mathbf 1^\top D\mathbf 1")
    rate = second_modulus(graph)
    many = int(math.log(1e-10) / math.log(rate)) + 1
    says.equal(gap(power(graph, many), joint_limit(graph)), within=1e-9, where=f"k = {many}")
    tree = as_graph(nx.random_labeled_tree(graph.nodes, seed=numpy_generator(run.generator)))
    unlooped = torch.eye(tree.nodes, dtype=torch.float64) - graph_laplacian(tree, normalized=True).dense()
    roots = tree.degrees().sqrt()
    away = gap(torch.linalg.matrix_power(unlooped, many), torch.outer(roots, roots) / (roots @ roots))
    says.fails("no loops, on a tree: -1 is an eigenvalue", away)
    x = run.randn(graph.nodes, 3)
    last = power(graph, many) @ x

    def differing(rows: Tensor) -> float:
        return float((rows - rows[0]).abs().max())

    says = run.states("N-106", r"(D^{-1/2}\bar A^kX)_m-(D^{-1/2}\bar A^kX)_n\to0")
    says.equal(differing(last / (1 + graph.degrees()).sqrt().unsqueeze(1)), within=1e-8, where=f"k = {many}")
    says.fails("not divided by the roots of the degrees, which differ", differing(last))


def power(graph: Graph, k: int) -> Tensor:
    made: Tensor = torch.linalg.matrix_power(gcn_coupling(graph).dense(), k)
    return made


def joint_limit(graph: Graph) -> Tensor:
    """What the limit is if the graph is connected."""
    roots = (1 + graph.degrees()).sqrt()
    return torch.outer(roots, roots) / (roots @ roots)


def curves(run: Run, graph: Graph, depth: int) -> None:
    """Distances and energies against their bounds."""
    second = slowest(graph)
    starts = [second, run.randn(graph.nodes, 4)]
    found = [smoothing_curve(graph, x, depth) for x in starts]
    says = run.states("N-106", r"\|\bar A^kX-\lim\|_F\le|\lambda|_{(2)}^k\|X-\lim\|_F")
    says.at_most(
        torch.cat([c.distances for c in found]),
        torch.cat([c.bound for c in found]),
        within=1e-9,
        where="the second eigenvector, random features",
    )
    both = graph_union([graph, graph])
    apart = run.randn(2 * graph.nodes, 4)
    limit = joint_limit(both) @ apart
    away = torch.stack([torch.linalg.matrix_norm(power(both, k) @ apart - limit) for k in range(depth + 1)])
    promised = away[0] * found[0].rate ** torch.arange(depth + 1)
    says.fails("two copies, with the limit of a connected graph", away, promised=promised)
    tail = torch.arange(depth // 2, depth + 1)
    rate = torch.tensor(found[0].rate, dtype=torch.float64).log()
    says = run.states("N-106", r"\log\|\bar A^kX-\lim\|_F=k\log|\lambda|_{(2)}+c")
    says.slope(tail, found[0].distances[tail].log(), float(rate), 1e-6, against=(0.0, 2 * float(rate)), log=False)
    says.fails("two copies, with the limit of a connected graph", tail, away[tail].log())
    run.curves(
        "curves",
        range(depth + 1),
        {"distance": found[1].distances, "Dirichlet energy": found[1].energies, "spread over nodes": found[1].spread},
        {"distance": found[1].bound, "Dirichlet energy": found[1].energy_bound},
        axes=("depth", "random features"),
        log="y",
        caption="Repeated coupling, with the bounds from the second eigenvalue dashed.",
    )


def slowest(graph: Graph) -> Tensor:
    """The eigenvector of the second largest modulus, `[M, 1]`."""
    values, vectors = torch.linalg.eigh(gcn_coupling(graph).dense())
    found: Tensor = vectors[:, values.abs().argsort()[-2]].unsqueeze(1)
    return found


def energies(run: Run, graph: Graph) -> None:
    """What layers do to the energy."""
    width = 6
    second = slowest(graph)
    rate = second_modulus(graph)

    def ratios(residual: bool) -> list[float]:
        """Energy after a layer over what is promised: a linear one on the worst start, then ReLU."""
        found = []
        for k in range(6):
            layer = GraphConvolution(width, width, bias=False, generator=run.generator)
            weight = layer.linear.weight.detach()
            x = second @ torch.linalg.svd(weight).Vh[:1] if k == 0 else run.randn(graph.nodes, width)
            out = layer(x, graph).detach()
            if k:
                out = out.relu()
            out = out + x if residual else out
            promised = rate**2 * torch.linalg.matrix_norm(weight, 2) ** 2 * dirichlet_energy(x, graph)
            found.append(float(dirichlet_energy(out, graph) / promised))
        return found

    says = run.states("N-106", r"E(\sigma(\bar AXW))\le|\lambda|_{(2)}^2\|W\|_2^2\,E(X)")
    says.at_most(
        ratios(False), 1.0, within=1e-9, where="ratios; a linear layer on its worst features, layers with ReLU"
    )
    says.fails("layers that add their input", ratios(True))


def hypercubes(run: Run, dimension: int) -> None:
    """The rate without a matrix."""
    sizes = [dimension - 1, dimension]
    says = run.states("N-106", r"\text{hypercube}:\ |\lambda|_{(2)}=(n-1)/(n+1)")
    found = [second_modulus(hypercube(n), generator=run.generator) for n in sizes]
    says.equal(found, [(n - 1) / (n + 1) for n in sizes], within=1e-8, where=f"{2**dimension:,} nodes, by products")
    folded = [second_modulus(hypercube(n, folded=True), generator=run.generator) for n in sizes]
    says.fails("opposite corners joined as well", folded)


def hypercube(n: int, *, folded: bool = False) -> Graph:
    corners = torch.arange(2**n)
    flips = [1 << k for k in range(n)] + [2**n - 1] * folded
    ends = torch.cat([corners ^ f for f in flips])
    return as_graph(torch.stack([corners.repeat(len(flips)), ends]))


class Residual(nn.Module):
    """A GCN whose layers add their input."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, graph).relu()
        return x


def pictures(run: Run, depth: int) -> None:
    club = as_graph(nx.karate_club_graph())
    sides = torch.tensor([nx.karate_club_graph().nodes[i]["club"] == "Mr. Hi" for i in range(club.nodes)])
    x = run.randn(club.nodes, 2)
    shown = [0, 2, 8, 32]
    rows = {k: (torch.linalg.matrix_power(gcn_coupling(club).dense(), k) @ x) for k in shown}
    deep = GCN([16] * 17, bias=False, generator=run.generator)
    start = run.randn(club.nodes, 16)
    plain = layer_energies(deep, start, club)
    added = layer_energies(Residual(deep.layers), start, club)

    def plot(axes: Any) -> None:
        for ax, k in zip(axes[0], shown, strict=True):
            for side, color in ((True, "tab:blue"), (False, "tab:orange")):
                ax.plot(*rows[k][sides == side].T, "o", ms=4, color=color)
            reach = 1.1 * float(rows[k].abs().max())  # each at its own scale
            ax.set(title=f"after {k} couplings", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")

    caption = "Two features of the nodes of the karate club, each at its own scale: a line through 0 is left."
    run.figure("collapse", plot, grid=(1, 4), size=(13, 3.4), caption=caption)
    outputs = [i for i, n in enumerate(plain.names) if n.startswith("layers")]
    others = [i for i, n in enumerate(added.names) if n.startswith("layers")]
    run.curves(
        "layers",
        range(1, 17),
        {"GCN": plain.shares[outputs], "layers that add their input": added.shares[others]},
        axes=("layer", "Dirichlet energy over squared norm"),
        log="y",
        caption="Energy inside two networks of 16 layers with the same random weights.",
    )
