r"""Graphs $G=(V,E)$ as everything on graphs takes them: a number of nodes and a list of edges.

`as_graph` reads networkx graphs, dense and sparse adjacency matrices, lists of edges and the
`Data` of PyTorch Geometric. The adjacency matrix has $a_{ij}$ for the edge from $i$ to $j$, as
networkx and scipy have it; messages go along the edges, so node $m$ hears the nodes $n$ with
$a_{nm}\ne0$. Source: Deep Learning (notes), section 7.4, Definition 7.3.
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

from torchtheory.core.checks import all_finite, described, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    MissingPackage,
    NonFinite,
    ShapeMismatch,
)

#: What `as_graph` reads.
GraphSource = Any

_Kept = TypeVar("_Kept")


class Graph:
    r"""A graph with `nodes` nodes, numbered from 0, and edges `[2, E]`.

    An undirected graph lists each edge in both directions (a loop once). The edges are sorted by
    target, then source, so that what reaches a node stands together; none is listed twice, and an
    edge of weight 0 is no edge. A graph does not change; what is computed from it once is kept.

    Attributes:
        nodes: their number $M$.
        edges: sources in row 0 and targets in row 1, `[2, E]` of int64.
        weights: of the edges, `[E]`, or None if all are 1.
        directed: whether an edge may be without its reverse.
        edge_features: `[E, e]` in the order of the edges, or None.
        names: what the nodes were called where they came from, or None.
        membership: the number of the graph each node belongs to in a union, `[M]`, or None.

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
        names: Sequence[Hashable] | None = None,
        membership: Tensor | None = None,
    ) -> None:
        self.nodes = nodes
        self.edges = edges
        self.weights = weights
        self.directed = directed
        self.edge_features = edge_features
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

        >>> as_graph(nx.star_graph(3)).degrees().tolist()
        [3.0, 1.0, 1.0, 1.0]
        """
        weights = self.edge_weights(dtype)
        return weights.new_zeros(self.nodes).index_add_(0, self.targets, weights)

    def pointers(self) -> Tensor:
        """Where the edges that reach each node begin: those of m are `pointers[m:m+2]`; `[M+1]`."""
        return self.kept("pointers", lambda: row_pointers(self.targets, self.nodes))

    def components(self) -> Tensor:
        """The number of the component of each node, `[M]` from 0; directions do not count.

        Time and memory: $O(M+E)$.

        >>> as_graph(torch.tensor([[0], [2]]), nodes=4, directed=False).components().tolist()
        [0, 1, 0, 2]
        """
        _, labels = connected_components(self._pattern(), directed=False)
        return torch.as_tensor(labels, dtype=torch.int64, device=self.device)

    def distances(self, sources: Tensor | Sequence[int] | int | None = None) -> Tensor:
        r"""Numbers of edges on shortest paths, `[S, M]` from each of `sources` (all unless given).

        Infinite where no path leads; weights do not count. One source gives `[M]`. Time
        $O(S(E+M\log M))$, memory $O(SM)$.

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
            names=None if self.names is None else [self.names[i] for i in taken.tolist()],
            membership=None if self.membership is None else self.membership[taken],
        )

    def undirected(self, who: str) -> Graph:
        """The graph itself, refused if it is directed; `who` needs it so, in words."""
        if self.directed:
            without = _first_without_reverse(self.edges, self.edge_weights(), self.nodes)
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
        """As `torch_geometric.data.Data`, with features `x[M, d]` if given; needs that package."""
        try:
            from torch_geometric.data import Data  # type: ignore[import-untyped]
        except ImportError as missing:
            raise MissingPackage(
                "PyTorch Geometric is not installed: pip install torch-geometric"
            ) from missing
        made = Data(x=x, edge_index=self.edges, edge_attr=self.edge_features)
        made.num_nodes = self.nodes
        if self.weights is not None:
            made.edge_weight = self.weights
        if self.membership is not None:
            made.batch = self.membership
        return made

    def _pattern(self) -> scipy.sparse.csr_matrix:
        sources, targets = self.edges.cpu().numpy()
        ones = np.ones(len(sources), dtype=np.int8)
        return scipy.sparse.csr_matrix((ones, (sources, targets)), (self.nodes, self.nodes))


def as_graph(
    source: GraphSource,
    *,
    nodes: int | None = None,
    weights: Tensor | None = None,
    edge_features: Tensor | None = None,
    directed: bool | None = None,
) -> Graph:
    r"""The `Graph` that anything describes.

    Args:
        source: one of

            * a `Graph`, returned as it is;
            * a networkx graph: nodes in its order, `weight` of the edges if any has it (1 for the
              others); weights of parallel edges are added;
            * an adjacency matrix `[M, M]`: torch or numpy, dense or sparse, or scipy's;
            * edges `[2, E]` of whole numbers, sources above targets;
            * PyTorch Geometric's `Data`, or anything with an `edge_index`: its `num_nodes`,
              `edge_weight` and `edge_attr` are read (an `edge_attr` of one number per edge is
              the weights, unless there is an `edge_weight`).
        nodes: for edges, how many nodes there are; the largest number + 1 unless given.
        weights: for edges, one per edge `[E]`; those of an edge that is listed twice are added.
            Without them an edge that is listed twice is one.
        edge_features: for edges, `[E, e]`; no edge may then be listed twice.
        directed: whether an edge may be without its reverse. None: it is directed if some edge
            is. False: missing reverses are added to a list of edges (with the same weight and
            features), and a matrix must be symmetric.

    >>> as_graph(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    Graph(nodes=2, edges=1, weighted)
    >>> as_graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    Graph(nodes=3, edges=3, directed)
    >>> as_graph(torch.tensor([[0, 7], [1, 0]]), nodes=5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: with 5 nodes an edge joins two of 0 to 4, and edge 1 ...
    """
    if isinstance(source, Graph):
        _refuse_extras("a Graph", nodes, weights, edge_features)
        return source if directed is not False else source.undirected("directed=False")
    if isinstance(source, nx.Graph):
        _refuse_extras("a networkx graph", nodes, weights, edge_features)
        return _from_networkx(source, directed)
    if hasattr(source, "edge_index"):
        _refuse_extras("an object with edge_index", nodes, weights, edge_features)
        return _from_data(source, directed)
    if scipy.sparse.issparse(source):
        return _from_matrix(source.tocoo(), directed, nodes, weights, edge_features)
    if isinstance(source, np.ndarray):
        if source.dtype.kind not in "iufb":
            raise InvalidType(f"a graph is given by real numbers, not {described(source)}")
        source = torch.as_tensor(source.astype(int) if source.dtype.kind == "u" else source)
    if not isinstance(source, Tensor):
        raise InvalidType(
            "a graph is a networkx graph, an adjacency matrix, edges [2, E] or PyTorch Geometric's "
            f"Data, not {described(source)}"
        )
    if _is_edges(source, nodes, weights, edge_features):
        return _from_edges(source, nodes, weights, edge_features, directed, symmetrize=True)
    return _from_matrix(source, directed, nodes, weights, edge_features)


def graph_union(graphs: Sequence[GraphSource]) -> Graph:
    r"""Several graphs as one, side by side: the adjacency matrix is block-diagonal.

    Networks on graphs treat them as if each came alone, since no edge joins two of them. The
    `membership` of the union says which node came from which graph.

    >>> both = graph_union([nx.path_graph(2), nx.path_graph(3)])
    >>> both, both.membership.tolist()
    (Graph(nodes=5, edges=3), [0, 0, 1, 1, 1])
    """
    parts = [as_graph(g) for g in graphs]
    if not parts:
        raise EmptyData("a union needs at least one graph")
    featured = [g.edge_features for g in parts if g.edge_features is not None]
    if featured and len(featured) < len(parts):
        raise InvalidInput("either all graphs of a union have edge features, or none")
    widths = sorted({f.shape[1] for f in featured})
    if len(widths) > 1:
        raise ShapeMismatch(f"the graphs of a union have edge features of different sizes {widths}")
    starts = np.cumsum([0, *(g.nodes for g in parts)]).tolist()
    weighted = [g.weights.dtype for g in parts if g.weights is not None]
    dtype = torch.float64 if torch.float64 in weighted else torch.float32
    return Graph(
        starts[-1],
        torch.cat([g.edges + s for g, s in zip(parts, starts[:-1], strict=True)], 1),
        torch.cat([g.edge_weights(dtype) for g in parts]) if weighted else None,
        directed=any(g.directed for g in parts),
        edge_features=torch.cat(featured) if featured else None,
        membership=torch.repeat_interleave(
            torch.arange(len(parts), device=parts[0].device),
            torch.tensor([g.nodes for g in parts], device=parts[0].device),
        ),
    )


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


# -- what comes in ---------------------------------------------------------------------------------


def _refuse_extras(what: str, *extras: object) -> None:
    if any(e is not None for e in extras):
        raise InvalidInput(
            f"nodes=, weights= and edge_features= belong to a list of edges, and {what} has its own"
        )


def _is_edges(
    source: Tensor, nodes: int | None, weights: Tensor | None, edge_features: Tensor | None
) -> bool:
    if source.layout is not torch.strided or source.ndim != 2 or source.shape[0] != 2:
        return False
    if source.is_floating_point() or source.dtype == torch.bool or source.is_complex():
        return False
    if source.shape[1] != 2 or any(e is not None for e in (nodes, weights, edge_features)):
        return True
    raise InvalidInput(
        "a 2 x 2 array of whole numbers can be two edges or an adjacency matrix: give nodes= with "
        "edges, or the matrix as floating-point numbers"
    )


def _from_networkx(source: nx.Graph, directed: bool | None) -> Graph:
    if directed is False and source.is_directed():
        source = source.to_undirected()
    names = list(source.nodes)
    place = {name: i for i, name in enumerate(names)}
    listed = list(source.edges(data="weight"))
    edges = torch.tensor([[place[i], place[j]] for i, j, _ in listed], dtype=torch.int64)
    weights = None
    if any(w is not None for *_, w in listed):
        try:
            values = [1.0 if w is None else float(w) for *_, w in listed]
        except (TypeError, ValueError):
            raise InvalidType("the weights of the edges must be real numbers") from None
        weights = torch.tensor(values, dtype=torch.float64)
    elif source.is_multigraph():
        weights = torch.ones(len(listed), dtype=torch.float64)
    edges = edges.reshape(-1, 2).T
    if not source.is_directed():
        proper = edges[0] != edges[1]
        edges = torch.cat([edges, edges[:, proper].flip(0)], 1)
        weights = None if weights is None else torch.cat([weights, weights[proper]])
    return _from_edges(edges, len(names), weights, None, directed, names=names)


def _from_data(source: Any, directed: bool | None) -> Graph:
    edges = source.edge_index
    if not isinstance(edges, Tensor):
        raise InvalidType(f"edge_index must be a tensor [2, E], not {described(edges)}")
    weights = getattr(source, "edge_weight", None)
    features = getattr(source, "edge_attr", None)
    if weights is None and isinstance(features, Tensor) and features.numel() == edges.shape[-1]:
        weights, features = features.flatten(), None
    made = _from_edges(
        edges, getattr(source, "num_nodes", None), weights, features, directed, symmetrize=True
    )
    membership = getattr(source, "batch", None)
    if isinstance(membership, Tensor):
        made.membership = membership
    return made


def _from_matrix(
    source: Any,
    directed: bool | None,
    nodes: int | None,
    weights: Tensor | None,
    edge_features: Tensor | None,
) -> Graph:
    _refuse_extras("an adjacency matrix", nodes, weights, edge_features)
    shape = list(source.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeMismatch(
            f"an adjacency matrix is [M, M], and edges are [2, E] of whole numbers, not {shape}"
        )
    if isinstance(source, Tensor):
        if source.is_complex():
            raise InvalidType("the entries of an adjacency matrix must be real numbers")
        source = source.detach()
        entries = source.to_sparse_coo().coalesce()
        edges, values = entries.indices(), entries.values()
    else:
        source.sum_duplicates()
        edges = torch.as_tensor(np.stack([source.row, source.col]).astype(np.int64))
        values = torch.as_tensor(source.data)
    if not values.is_floating_point():
        values = values.to(torch.float64)
    made = _from_edges(edges, shape[0], values, None, None)
    return made if directed is not False else made.undirected("directed=False")


def _from_edges(
    edges: Tensor,
    nodes: int | None,
    weights: Tensor | None,
    edge_features: Tensor | None,
    directed: bool | None,
    *,
    names: Sequence[Hashable] | None = None,
    symmetrize: bool = False,
) -> Graph:
    """The graph of a list of edges, checked, merged and sorted."""
    edges, count = _checked_edges(edges, nodes)
    weights = _checked_weights(weights, edges)
    if edge_features is not None:
        _check_edge_features(edge_features, edges)
        edge_features = edge_features.detach()
    if symmetrize and directed is False:
        edges, weights, edge_features = _with_reverses(edges, weights, edge_features, count)
    keys = edges[1] * count + edges[0]
    merged, inverse = torch.unique(keys, return_inverse=True)
    if edge_features is not None and len(merged) < len(keys):
        raise InvalidInput("an edge with features is listed twice: merge its features first")
    if weights is not None:
        weights = weights.new_zeros(len(merged)).index_add_(0, inverse, weights)
    if edge_features is not None:
        edge_features = edge_features[torch.argsort(inverse)]
    if weights is not None:
        present = weights != 0
        merged, weights = merged[present], weights[present]
        edge_features = None if edge_features is None else edge_features[present]
        weights = None if bool((weights == 1).all()) else weights
    edges = torch.stack([merged % count, torch.div(merged, count, rounding_mode="floor")])
    ones = weights if weights is not None else torch.ones(len(merged), device=edges.device)
    found = _first_without_reverse(edges, ones, count) is not None
    return Graph(
        count,
        edges,
        weights,
        directed=found or directed is True,
        edge_features=edge_features,
        names=names,
    )


def _checked_edges(edges: Tensor, nodes: int | None) -> tuple[Tensor, int]:
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise ShapeMismatch(f"edges must be [2, E], sources above targets, not {list(edges.shape)}")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise InvalidType(f"edges must be numbers of nodes, not {described(edges)}")
    edges = edges.to(torch.int64)
    if nodes is None:
        if edges.shape[1] == 0:
            raise EmptyData("a graph without edges needs nodes=, the number of its nodes")
        nodes = int(edges.max()) + 1
    count = whole_number(nodes, "nodes", least=0)
    if count == 0:
        raise EmptyData("the graph is empty: at least one node is needed")
    wrong = ((edges < 0) | (edges >= count)).any(0)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        i, j = edges[:, at].tolist()
        raise InvalidInput(
            f"with {count} nodes an edge joins two of 0 to {count - 1}, and edge {at} is {i} to {j}"
        )
    return edges, count


def _checked_weights(given: Any, edges: Tensor) -> Tensor | None:
    if given is None:
        return None
    weights: Tensor = torch.as_tensor(given)
    if weights.shape != (edges.shape[1],):
        raise ShapeMismatch(
            f"weights must hold one number per edge, [{edges.shape[1]}], not {list(weights.shape)}"
        )
    if weights.is_complex():
        raise InvalidType("the weights of edges must be real numbers")
    weights = weights.detach().to(edges.device)
    if weights.dtype not in (torch.float32, torch.float64):
        weights = weights.to(torch.float64)
    wrong = ~torch.isfinite(weights)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        i, j = edges[:, at].tolist()
        raise NonFinite(
            f"the weights of edges must be finite, and that from {i} to {j} is {float(weights[at])}"
        )
    return weights


def _check_edge_features(features: Tensor, edges: Tensor) -> None:
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise InvalidType(
            f"edge features must be a tensor of floating-point numbers, not {described(features)}"
        )
    if features.ndim != 2 or len(features) != edges.shape[1]:
        raise ShapeMismatch(
            f"edge features must be [{edges.shape[1]}, e], one row per edge, "
            f"not {list(features.shape)}"
        )
    all_finite(features, "the edge features")


def _with_reverses(
    edges: Tensor, weights: Tensor | None, features: Tensor | None, count: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The edges and the reverses of those that have none."""
    keys, back = edges[1] * count + edges[0], edges[0] * count + edges[1]
    added = ~torch.isin(back, keys)
    edges = torch.cat([edges, edges[:, added].flip(0)], 1)
    if weights is not None:
        weights = torch.cat([weights, weights[added]])
        merged, inverse = torch.unique(edges[1] * count + edges[0], return_inverse=True)
        total = weights.new_zeros(len(merged)).index_add_(0, inverse, weights)
        rows = torch.stack([merged % count, torch.div(merged, count, rounding_mode="floor")])
        different = _first_without_reverse(rows, total, count)
        if different is not None:
            i, j = different
            raise InvalidInput(
                f"in an undirected graph an edge weighs the same both ways, and the weights from "
                f"{i} to {j} and back differ"
            )
    return edges, weights, features if features is None else torch.cat([features, features[added]])


def _first_without_reverse(edges: Tensor, weights: Tensor, count: int) -> tuple[int, int] | None:
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
