r"""Where a graph is narrow, what comes through, and a task that does not.

$\bar A=D^{-1/2}(A+I)D^{-1/2}$ is that of the random walk $P=D^{-1}(A+I)$, of which $d$ is
stationary. A walk that is in $S$ at first and outside after $k$ steps has crossed in one of them,
and each crossing has the same chance, so that for every set $S$ of nodes

$$
\sum_{i\in S,\,j\notin S}\sqrt{d_id_j}\,(\bar A^k)_{ij}\le k\,|\partial S|,
$$

with $|\partial S|$ the weight of the edges between $S$ and the rest; equality at $k=1$. With the
bound of `graph_sensitivity`, the sensitivities of a GCN over all $|S|\,|S^c|$ pairs share
$\alpha^{k-1}\prod\|W_\ell\|\,k\,|\partial S|$ between them: over a narrow place little is left for
each, however wide the layers are.

The narrowest place is that of the least conductance $\phi(S)=|\partial S|/\min(d(S),d(S^c))$.
Cheeger's inequality finds one that is nearly as narrow: with $\lambda$ the gap between the two
largest eigenvalues of $\bar A$, the best of the sets $\{v:f(v)\le t\}$ of the second eigenvector
$D^{1/2}f$ has $\lambda/2\le\min_S\phi(S)\le\phi\le\sqrt{2\lambda}$. The *bottleneck edge* is the
one across it whose weight raises $\lambda$ most,
$\partial\lambda/\partial a_{ij}=(f_i-f_j)^2-\lambda(f_i^2+f_j^2)$ with $\sum d_if_i^2=1$.

Source: Deep Learning (notes), section 7.4; U. Alon and E. Yahav, On the bottleneck of graph neural
networks (2021), for the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.laplacians import gcn_coupling

#: Up to so many nodes all eigenvalues are computed; beyond, two by Lanczos' method.
DENSE = 800


@dataclass(frozen=True, slots=True)
class Bottleneck:
    r"""The narrow place of a connected graph.

    Attributes:
        side: which nodes are on the smaller side, `[M]`.
        crossing: the edges across, `[2, c]`, from that side to the other.
        edge: the one of them whose weight matters most to the gap.
        width: their weight, $|\partial S|$.
        conductance: $\phi(S)$.
        gap: $\lambda$.
    """

    side: Tensor
    crossing: Tensor
    edge: tuple[int, int]
    width: float
    conductance: float
    gap: float

    @property
    def least_conductance(self) -> tuple[float, float]:
        """What the conductance of the narrowest place lies between."""
        return self.gap / 2, self.conductance

    def __repr__(self) -> str:
        few = int(self.side.sum())
        return (
            f"Bottleneck({few} of {len(self.side)} nodes behind {self.crossing.shape[1]} edges, "
            f"such as {self.edge}; conductance {self.conductance:.3g})"
        )


def bottleneck(graph: GraphSource) -> Bottleneck:
    r"""A narrowest place of a graph up to Cheeger's inequality, and the edge that matters most.

    Args:
        graph: undirected, connected, with at least two nodes and weights above 0.

    Time: the eigenvalues of a matrix, $O(M^3)$ up to 800 nodes and Lanczos' method beyond; then
    $O(E+M\log M)$.

    >>> found = bottleneck(nx.barbell_graph(5, 0))     # two cliques and an edge between them
    >>> sorted(found.edge), round(found.conductance, 3)
    ([4, 5], 0.038)
    """
    graph = as_graph(graph).undirected("a bottleneck").nonnegative("a bottleneck")
    if graph.nodes < 2:
        raise InvalidInput("a bottleneck lies between two nodes, and the graph has one")
    parts = int(graph.components().max()) + 1
    if parts > 1:
        raise InvalidInput(
            f"the graph has {parts} components, and nothing passes between them: ask for the "
            "bottleneck of one"
        )
    degrees, gap, f = _second_eigenvector(graph)
    order = f.argsort()
    place = torch.empty_like(order)
    place[order] = torch.arange(graph.nodes)
    proper = graph.edges[0].cpu() < graph.edges[1].cpu()
    edges, weights = graph.edges.cpu()[:, proper], graph.edge_weights(torch.float64).cpu()[proper]
    first = torch.minimum(place[edges[0]], place[edges[1]])
    last = torch.maximum(place[edges[0]], place[edges[1]])
    # an edge is cut by the sets that hold its first end and not its last
    steps = torch.zeros(graph.nodes + 1, dtype=torch.float64)
    steps.index_add_(0, first, weights).index_add_(0, last, -weights)
    cut = steps.cumsum(0)[: graph.nodes - 1]
    volume = degrees[order].cumsum(0)[:-1]
    conductances = cut / torch.minimum(volume, degrees.sum() - volume)
    best = int(conductances.argmin())
    side = torch.zeros(graph.nodes, dtype=torch.bool)
    side[order[: best + 1]] = True
    if side.sum() > graph.nodes / 2:
        side = ~side
    across = side[edges[0]] != side[edges[1]]
    ends = edges[:, across]
    ends = torch.where(side[ends[0]], ends, ends.flip(0))
    i, j = ends
    gain = (f[i] - f[j]).square() - gap * (f[i].square() + f[j].square())
    named = ends[:, int(gain.argmax())].tolist()
    return Bottleneck(
        side,
        ends,
        (named[0], named[1]),
        float(weights[across].sum()),
        float(conductances[best]),
        gap,
    )


def crossing_share(graph: GraphSource, side: Tensor, layers: int) -> tuple[float, float]:
    r"""$\sum_{i\in S,j\notin S}\sqrt{d_id_j}(\bar A^k)_{ij}$ and its bound $k\,|\partial S|$.

    Args:
        side: $S$, `[M]` of booleans, neither empty nor all.
        layers: $k$.

    Time: $k$ sparse products with one vector.

    >>> path = nx.path_graph(4)
    >>> crossing_share(path, torch.tensor([True, True, False, False]), 1)
    (1.0, 1.0)
    """
    graph = as_graph(graph).undirected("a bottleneck").nonnegative("a bottleneck")
    if not isinstance(side, Tensor) or side.dtype != torch.bool or side.shape != (graph.nodes,):
        raise ShapeMismatch(
            f"a side is true or false for each of the {graph.nodes} nodes, not {described(side)}"
        )
    if bool(side.all()) or not bool(side.any()):
        raise InvalidInput("both sides need a node, and one of them is empty")
    layers = whole_number(layers, "layers", least=0)
    coupling = gcn_coupling(graph, dtype=torch.float64)
    roots = graph.coupled_degrees().sqrt()
    walked = roots * ~side
    for _ in range(layers):
        walked = coupling @ walked
    i, j = graph.edges
    width = float((graph.edge_weights(torch.float64) * (side[i] & ~side[j])).sum())
    return float((roots * side) @ walked), layers * width


def _second_eigenvector(graph: Graph) -> tuple[Tensor, float, Tensor]:
    """Degrees, the gap, and f with sum d f^2 = 1."""
    degrees = graph.coupled_degrees().cpu()
    coupling = gcn_coupling(graph, dtype=torch.float64)
    if graph.nodes <= DENSE:
        values, vectors = torch.linalg.eigh(coupling.dense().cpu())
        second, vector = float(values[-2]), vectors[:, -2]
    else:
        pattern = coupling.pattern
        entries = (coupling.values.numpy(), (pattern.rows.numpy(), pattern.columns.numpy()))
        matrix = scipy.sparse.csr_matrix(entries, coupling.shape)
        start = np.linspace(-1.0, 1.0, graph.nodes)  # its own start would be random
        found, columns = _two_largest(matrix, start)
        at = int(found.argmin())
        second, vector = float(found[at]), torch.as_tensor(columns[:, at])
    return degrees, max(0.0, 1.0 - second), vector / degrees.sqrt()


def _two_largest(matrix: scipy.sparse.csr_matrix, start: np.ndarray) -> tuple[Any, Any]:
    """The two largest eigenvalues, at most 1, and their eigenvectors."""
    try:
        made = scipy.sparse.linalg.eigsh(matrix, k=2, which="LA", v0=start, maxiter=200)
    except scipy.sparse.linalg.ArpackNoConvergence:
        # a long thin graph: the gap is tiny, but its matrix is easily factorized
        made = scipy.sparse.linalg.eigsh(matrix.tocsc(), k=2, sigma=1 + 1e-6, v0=start)
    return made[0], made[1]


# ------------------------------------------------------------------------------------- the task


@dataclass(frozen=True, slots=True)
class TreeMatching:
    """A binary tree whose root is asked for the class of one of its leaves.

    Attributes:
        graph: the tree, the root is node 0, edges in both directions.
        x: features `[n, M, 2 L + classes]`, L leaves: the key that the root asks for, the key of a
            leaf, its class, each as one among many; 0 elsewhere.
        y: the class of the leaf with that key, `[n]`.
    """

    graph: Graph
    x: Tensor
    y: Tensor


def tree_matching(
    depth: int,
    samples: int,
    *,
    classes: int | None = None,
    told: bool = False,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> TreeMatching:
    r"""Which class has the leaf whose key the root asks for? All $2^r$ must come through its edges.

    Each leaf has a key, a random order of $1,\dots,2^r$, and a random class. The root asks for one
    key. With as many layers as the tree is deep, a leaf cannot know what is asked, so that what
    reaches the root in vectors of a fixed width must hold all keys and classes.

    Args:
        depth: $r$.
        samples: how many.
        classes: of the leaves; as many as there are leaves unless given.
        told: whether only the leaf that is asked for shows its key. Then the others can be silent,
            and one class is all that must come through.
        generator: randomness.

    >>> task = tree_matching(2, 5)
    >>> task.graph, task.x.shape, task.y.shape
    (Graph(nodes=7, edges=6), torch.Size([5, 7, 12]), torch.Size([5]))
    """
    depth = whole_number(depth, "depth", least=1, most=12)
    samples = whole_number(samples, "samples", least=1)
    leaves = 2**depth
    classes = leaves if classes is None else whole_number(classes, "classes", least=2)
    source = as_generator(generator)
    tree = as_graph(nx.balanced_tree(2, depth))
    first = tree.nodes - leaves
    keys = torch.rand(samples, leaves, generator=source).argsort(1)
    kinds = torch.randint(classes, (samples, leaves), generator=source)
    asked = torch.randint(leaves, (samples,), generator=source)
    x = torch.zeros(samples, tree.nodes, 2 * leaves + classes, dtype=dtype)
    x[torch.arange(samples), 0, asked] = 1.0
    meant = keys == asked[:, None]
    shown = torch.nn.functional.one_hot(keys, leaves).to(dtype)
    x[:, first:, leaves : 2 * leaves] = shown * meant[..., None] if told else shown
    x[:, first:, 2 * leaves :] = torch.nn.functional.one_hot(kinds, classes).to(dtype)
    return TreeMatching(tree, x, kinds[meant])
