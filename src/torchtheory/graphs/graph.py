r"""Graphs $G=(V,E)$ as everything on graphs takes them: a number of nodes and a list of edges.

`as_graph` in `torchtheory.graphs.graph_reading` makes one of anything that describes a
graph. The adjacency matrix has $a_{ij}$ for the edge from $i$ to $j$, as networkx and scipy have
it; messages go along the edges, so node $m$ hears the nodes $n$ with $a_{nm}\ne0$. Source: Deep
Learning (notes), section 7.4, Definition 7.3.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import networkx as nx
import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components, shortest_path
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    MissingPackage,
)

_Kept = TypeVar("_Kept")


class Graph:
    r"""A graph with `nodes` nodes, numbered from 0, and edges `[2, E]`.

    An undirected graph lists each edge in both directions (a loop once). The edges are sorted by
    target, then source, so that what reaches a node stands together. Parallel edges are one whose
    weight is the sum of theirs (1 each if they have none), and an edge of weight 0 is no edge. A
    graph does not change; what is computed from it once is kept.

    Attributes:
        nodes: their number $M$.
        edges: sources in row 0 and targets in row 1, `[2, E]` of int64.
        weights: of the edges, `[E]`, or None if all are 1.
        directed: whether an edge may be without its reverse.
        edge_features: `[E, e]` in the order of the edges, or None.
        copies: how many parallel edges each one stands for, `[E]`, or None if all are single.
        names: what the nodes were called where they came from, or None.
        membership: the number of the graph each node belongs to in a union, `[M]`, or None.

    >>> from torchtheory.graphs.graph_reading import as_graph
    >>> triangle = as_graph(nx.complete_graph(3))
    >>> triangle
    Graph(nodes=3, edges=3)
    >>> triangle.edges.tolist()
    [[1, 2, 0, 2, 0, 1], [0, 0, 1, 1, 2, 2]]
    """

    def __init__(
        self,
        nodes: int,
        edges: Tensor,
        weights: Tensor | None,
        *,
        directed: bool,
        edge_features: Tensor | None = None,
        copies: Tensor | None = None,
        names: Sequence[Hashable] | None = None,
        membership: Tensor | None = None,
    ) -> None:
        self.nodes = nodes
        self.edges = edges
        self.weights = weights
        self.directed = directed
        self.edge_features = edge_features
        self.copies = copies
        self.names = None if names is None else tuple(names)
        self.membership = membership
        self._kept: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        loops = int((self.edges[0] == self.edges[1]).sum())
        count = self.edges.shape[1] if self.directed else (self.edges.shape[1] + loops) // 2
        extra = ", directed" * self.directed + ", weighted" * (self.weights is not None)
        return f"Graph(nodes={self.nodes}, edges={count}{extra})"

    @property
    def device(self) -> torch.device:
        return self.edges.device

    @property
    def sources(self) -> Tensor:
        """Where the edges start, `[E]`."""
        return self.edges[0]

    @property
    def targets(self) -> Tensor:
        """Where the edges end, `[E]`, ascending."""
        return self.edges[1]

    def listed_edges(self) -> Tensor:
        """The edges with parallel ones as often as they are there, `[2, >= E]`."""
        return self.edges if self.copies is None else self.edges.repeat_interleave(self.copies, 1)

    def kept(self, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
        """What `make` returns, made at the first call with this key and kept for the others."""
        if key not in self._kept:
            self._kept[key] = make()
        found: _Kept = self._kept[key]
        return found

    def edge_weights(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weights `[E]`, ones if there are none; float64 unless they or `dtype` say other."""
        if self.weights is None:
            return torch.ones(self.edges.shape[1], dtype=dtype or torch.float64, device=self.device)
        return self.weights if dtype is None else self.weights.to(dtype)

    def adjacency(self, dtype: torch.dtype | None = None) -> Tensor:
        r"""The matrix $A$ `[M, M]`, $a_{ij}$ the weight of the edge from $i$ to $j$.

        >>> from torchtheory.graphs.graph_reading import as_graph
        >>> as_graph(nx.path_graph(3)).adjacency().tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
        """
        weights = self.edge_weights(dtype)
        dense = torch.zeros(self.nodes, self.nodes, dtype=weights.dtype, device=self.device)
        dense[self.sources, self.targets] = weights
        return dense

    def sparse(self, dtype: torch.dtype | None = None) -> Tensor:
        """$A$ as a sparse CSR tensor `[M, M]`; memory $O(M+E)$."""
        weights, edges = self.edge_weights(dtype), self.edges
        if self.directed:  # the edges are sorted by target, and rows are sources
            order = torch.argsort(self.sources, stable=True)
            edges, weights = edges[:, order], weights[order]
            return csr(row_pointers(edges[0], self.nodes), edges[1], weights)
        return csr(self.pointers(), edges[0], weights)

    def degrees(self, dtype: torch.dtype | None = None) -> Tensor:
        r"""$d_m=\sum_na_{nm}$ `[M]`: the weight that reaches each node; a loop counts once.

        >>> from torchtheory.graphs.graph_reading import as_graph
        >>> as_graph(nx.star_graph(3)).degrees().tolist()
        [3.0, 1.0, 1.0, 1.0]
        """
        weights = self.edge_weights(dtype)
        return weights.new_zeros(self.nodes).index_add_(0, self.targets, weights)

    def coupled_degrees(self) -> Tensor:
        r"""$d_m=1+\sum_na_{nm}$ `[M]` in float64: with the loop that `gcn_coupling` adds to nodes
        without one."""
        loops = self.targets[self.sources == self.targets]
        found = torch.ones(self.nodes, dtype=torch.float64, device=self.device)
        found[loops] = 0.0
        return found.index_add_(0, self.targets, self.coupling_weights().double())

    def coupling_weights(self) -> Tensor:
        """The weights `[E]` with which `gcn_coupling` takes the edges, float64 if there are none.

        A loop that is listed several times without weights is one loop there, as in the coupling of
        PyTorch Geometric: what it stands for is the node itself.
        """
        weights = self.edge_weights()
        if self.copies is None:
            return weights
        again = (self.sources == self.targets) & (weights == self.copies)
        return torch.where(again, torch.ones_like(weights), weights)

    def without_loops(self) -> Graph:
        """The graph without the edges from a node to itself; kept."""
        return self.kept("without loops", self._without_loops)

    def _without_loops(self) -> Graph:
        proper = self.sources != self.targets
        if bool(proper.all()):
            return self
        return Graph(
            self.nodes,
            self.edges[:, proper],
            None if self.weights is None else self.weights[proper],
            directed=self.directed,
            edge_features=None if self.edge_features is None else self.edge_features[proper],
            copies=None if self.copies is None else self.copies[proper],
            names=self.names,
            membership=self.membership,
        )

    def pointers(self) -> Tensor:
        """Where the edges that reach each node begin: those of m are `pointers[m:m+2]`; `[M+1]`."""
        return self.kept("pointers", lambda: row_pointers(self.targets, self.nodes))

    def components(self) -> Tensor:
        """The number of the component of each node, `[M]` from 0; directions do not count.

        Time and memory: $O(M+E)$.

        >>> from torchtheory.graphs.graph_reading import as_graph
        >>> as_graph(torch.tensor([[0], [2]]), nodes=4, directed=False).components().tolist()
        [0, 1, 0, 2]
        """
        _, labels = connected_components(self._pattern(), directed=False)
        return torch.as_tensor(labels, dtype=torch.int64, device=self.device)

    def distances(self, sources: Tensor | Sequence[int] | int | None = None) -> Tensor:
        r"""Numbers of edges on shortest paths, `[S, M]` from each of `sources` (all unless given).

        Infinite where no path leads; weights do not count. One source gives `[M]`. Time
        $O(S(E+M\log M))$, memory $O(SM)$.

        >>> from torchtheory.graphs.graph_reading import as_graph
        >>> as_graph(nx.path_graph(4)).distances(0).tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        if sources is None:
            index = np.arange(self.nodes)
        else:
            index = np.atleast_1d(np.asarray(sources))
            if index.dtype.kind not in "iu" or index.ndim != 1:
                raise InvalidType(f"sources must be numbers of nodes, not {described(sources)}")
            if len(index) and not 0 <= index.min() <= index.max() < self.nodes:
                wrong = index[(index < 0) | (index >= self.nodes)][0]
                raise InvalidInput(
                    f"the nodes are numbered from 0 to {self.nodes - 1}, and a source is {wrong}"
                )
        found = shortest_path(self._pattern(), directed=True, unweighted=True, indices=index)
        single = sources is not None and np.ndim(sources) == 0
        return torch.as_tensor(found[0] if single else found, device=self.device)

    def diameter(self) -> float:
        r"""The largest distance of two nodes, infinite if some cannot be reached.

        In an undirected graph the distances $d$ from a node bound the largest distance $e$ from
        every other one, $\max(d,e_0-d)\le e\le e_0+d$, so that searches from few nodes do (all of
        them at worst, as in a cycle or a directed graph). Memory $O(M)$ per search, in blocks.

        >>> from torchtheory.graphs.graph_reading import as_graph
        >>> as_graph(nx.cycle_graph(7)).diameter()
        3.0
        """
        if not self.directed:
            return self._diameter_by_bounds()
        block = max(1, 2**22 // self.nodes)
        largest = 0.0
        for start in range(0, self.nodes, block):
            ends = range(start, min(start + block, self.nodes))
            largest = max(largest, float(self.distances(list(ends)).max()))
            if math.isinf(largest):
                break
        return largest

    def _diameter_by_bounds(self) -> float:
        low, high = np.zeros(self.nodes), np.full(self.nodes, np.inf)
        largest, by_high = 0.0, True
        while True:
            # only a node whose bound exceeds what was found can add to it
            open_nodes = np.flatnonzero((high > largest) & (low != high))
            if len(open_nodes) == 0:
                return largest
            best = np.argmax(high[open_nodes]) if by_high else np.argmin(low[open_nodes])
            chosen = open_nodes[best]
            by_high = not by_high
            away = self.distances(int(chosen)).cpu().numpy()
            reach = float(away.max())
            if math.isinf(reach):
                return reach
            largest = max(largest, reach)
            low = np.maximum(low, np.maximum(away, reach - away))
            high = np.minimum(high, reach + away)
            high[chosen] = low[chosen] = reach

    def relabeled(self, order: Tensor | Sequence[int]) -> Graph:
        r"""The graph whose node $i$ is this one's node `order[i]`: adjacency $PAP^\top$.

        With $P$ the permutation matrix that takes rows in this order, features become `x[order]`.

        >>> from torchtheory.graphs.graph_reading import as_graph
        >>> as_graph(nx.path_graph(3)).relabeled([1, 0, 2]).degrees().tolist()
        [2.0, 1.0, 1.0]
        """
        taken = torch.as_tensor(order, dtype=torch.int64, device=self.device)
        if taken.shape != (self.nodes,) or not torch.equal(
            taken.sort().values, torch.arange(self.nodes, device=self.device)
        ):
            raise InvalidInput(
                f"the order must hold each of the numbers 0 to {self.nodes - 1} once, "
                f"not {described(order)}"
            )
        place = torch.empty_like(taken)
        place[taken] = torch.arange(self.nodes, device=self.device)
        edges = place[self.edges]
        by = torch.argsort(edges[1] * self.nodes + edges[0])
        return Graph(
            self.nodes,
            edges[:, by],
            None if self.weights is None else self.weights[by],
            directed=self.directed,
            edge_features=None if self.edge_features is None else self.edge_features[by],
            copies=None if self.copies is None else self.copies[by],
            names=None if self.names is None else [self.names[i] for i in taken.tolist()],
            membership=None if self.membership is None else self.membership[taken],
        )

    def undirected(self, who: str) -> Graph:
        """The graph itself, refused if it is directed; `who` needs it so, in words."""
        if self.directed:
            without = first_without_reverse(self.edges, self.edge_weights(), self.nodes)
            reason = "this one is declared to be directed"
            if without is not None:
                i, j = without
                reason = f"the edge from {i} to {j} has no reverse of the same weight"
            raise InvalidInput(
                f"{who} needs an undirected graph, and {reason}; as_graph(edges, directed=False) "
                "adds reverses to a list of edges"
            )
        return self

    def nonnegative(self, who: str) -> Graph:
        """The graph itself, refused if a weight is negative; `who` needs none, in words."""
        if self.weights is not None and bool((self.weights < 0).any()):
            at = int((self.weights < 0).nonzero()[0])
            i, j = self.edges[:, at].tolist()
            raise InvalidInput(
                f"{who} needs weights >= 0, and the edge from {i} to {j} has "
                f"{float(self.weights[at]):g}"
            )
        return self

    def to_networkx(self) -> nx.Graph:
        """As `networkx.Graph` or `DiGraph`, with `weight` where there are weights."""
        made = nx.DiGraph() if self.directed else nx.Graph()
        made.add_nodes_from(range(self.nodes))
        pairs = self.edges.T.tolist()
        if self.weights is None:
            made.add_edges_from(pairs)
        else:
            made.add_weighted_edges_from(
                (i, j, w) for (i, j), w in zip(pairs, self.weights.tolist(), strict=True)
            )
        return made

    def to_pyg(self, x: Tensor | None = None) -> Any:
        """As `torch_geometric.data.Data`, with features `x[M, d]` if given; needs that package.

        Parallel edges are listed as often as they are there, each with its share of the weight.
        """
        try:
            from torch_geometric.data import Data  # type: ignore[import-untyped]
        except ImportError as missing:
            raise MissingPackage(
                "PyTorch Geometric is not installed: pip install torch-geometric"
            ) from missing
        weights = self.weights
        if self.copies is not None:
            each = (self.edge_weights() / self.copies).repeat_interleave(self.copies)
            weights = None if bool((each == 1).all()) else each
        made = Data(x=x, edge_index=self.listed_edges(), edge_attr=self.edge_features)
        made.num_nodes = self.nodes
        if weights is not None:
            made.edge_weight = weights
        if self.membership is not None:
            made.batch = self.membership
        return made

    def _pattern(self) -> scipy.sparse.csr_matrix:
        """The edges as scipy takes them; kept, since a diameter asks for it many times."""
        return self.kept("pattern", self._made_pattern)

    def _made_pattern(self) -> scipy.sparse.csr_matrix:
        sources, targets = self.edges.cpu().numpy()
        ones = np.ones(len(sources), dtype=np.int8)
        return scipy.sparse.csr_matrix((ones, (sources, targets)), (self.nodes, self.nodes))


def csr(pointers: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """A square CSR tensor: the entries of row m are `pointers[m]` to `pointers[m + 1]`."""
    _hush()
    size = len(pointers) - 1
    return torch.sparse_csr_tensor(pointers, columns, values, (size, size), check_invariants=False)


@functools.cache
def _hush() -> None:
    """Torch calls all of CSR a beta version, once per process: let it, unheard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


def row_pointers(rows: Tensor, size: int) -> Tensor:
    """Where each of `size` rows begins among entries that are sorted by row, `[size + 1]`."""
    counts = torch.bincount(rows, minlength=size)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def first_without_reverse(edges: Tensor, weights: Tensor, count: int) -> tuple[int, int] | None:
    """An edge whose reverse is missing or weighs something else; the edges are sorted."""
    if edges.shape[1] == 0:
        return None
    keys, back = edges[1] * count + edges[0], edges[0] * count + edges[1]
    place = torch.searchsorted(keys, back).clamp_(max=len(keys) - 1)
    rounding = 8 * torch.finfo(weights.dtype).eps
    other = keys[place] != back
    other |= (weights[place] - weights).abs() > rounding * weights.abs()
    if not bool(other.any()):
        return None
    i, j = edges[:, int(other.nonzero()[0])].tolist()
    return i, j
