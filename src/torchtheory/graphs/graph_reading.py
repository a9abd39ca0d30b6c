r"""Graphs from what they come in as: networkx, matrices, lists of edges, PyTorch Geometric.

`as_graph` reads them all, and everything on graphs calls it; `graph_union` puts several side by
side. Source: Deep Learning (notes), section 7.4, Definition 7.3.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.graphs.graph import Graph, first_without_reverse

#: What `as_graph` reads.
GraphSource = Any


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
        weights: for edges, one per edge `[E]`, 1 each unless given; those of an edge that is
            listed several times are added. Without weights it thus weighs as much as it is often
            listed, which is how layers of PyTorch Geometric count it. Weights, also those of a
            matrix, are constants: no derivative is taken in them.
        edge_features: for edges, `[E, e]`; no edge may then be listed twice. Derivatives are taken
            in them if they ask for it.
        directed: whether an edge may be without its reverse. None: it is directed if some edge
            is. False: missing reverses are added to edges and networkx graphs (with the same
            weight and features, as often as the edge is listed), and a matrix must be symmetric.

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
    copied = [
        torch.ones_like(g.sources) if g.copies is None else g.copies
        for g in parts
        if any(other.copies is not None for other in parts)
    ]
    return Graph(
        starts[-1],
        torch.cat([g.edges + s for g, s in zip(parts, starts[:-1], strict=True)], 1),
        torch.cat([g.edge_weights(dtype) for g in parts]) if weighted else None,
        directed=any(g.directed for g in parts),
        edge_features=torch.cat(featured) if featured else None,
        copies=torch.cat(copied) if copied else None,
        membership=torch.repeat_interleave(
            torch.arange(len(parts), device=parts[0].device),
            torch.tensor([g.nodes for g in parts], device=parts[0].device),
        ),
    )


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
    names = list(source.nodes)
    place = {name: i for i, name in enumerate(names)}
    listed = list(source.edges(data="weight"))
    edges = torch.tensor([[place[i], place[j]] for i, j, _ in listed], dtype=torch.int64)
    weights = None
    if any(w is not None for *_, w in listed):
        values = [1.0 if w is None else _real(w) for *_, w in listed]
        weights = torch.tensor(values, dtype=torch.float64)
    elif source.is_multigraph():
        weights = torch.ones(len(listed), dtype=torch.float64)
    edges = edges.reshape(-1, 2).T
    if not source.is_directed():
        proper = edges[0] != edges[1]
        edges = torch.cat([edges, edges[:, proper].flip(0)], 1)
        weights = None if weights is None else torch.cat([weights, weights[proper]])
    return _from_edges(edges, len(names), weights, None, directed, names=names, symmetrize=True)


def _real(weight: Any) -> float:
    try:
        return float(weight)
    except (TypeError, ValueError):
        raise InvalidType(
            f"the weights of the edges must be real numbers, not {described(weight)}"
        ) from None


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
            raise InvalidType(
                f"the entries of an adjacency matrix must be real numbers, not {source.dtype}"
            )
        source = source.detach()
        entries = source.to_sparse_coo().coalesce()
        edges, values = entries.indices(), entries.values()
    else:
        if source.dtype.kind not in "iufb":
            raise InvalidType(f"an adjacency matrix must be real, not {source.dtype}")
        source = source.copy()  # scipy merges in place, and may have handed out the user's own
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
    if symmetrize and directed is False:
        edges, weights, edge_features = _with_reverses(edges, weights, edge_features, count)
    keys = edges[1] * count + edges[0]
    merged, inverse, copies = torch.unique(keys, return_inverse=True, return_counts=True)
    several = len(merged) < len(keys)
    if edge_features is not None and several:
        raise InvalidInput("an edge with features is listed twice: merge its features first")
    if weights is not None:
        weights = weights.new_zeros(len(merged)).index_add_(0, inverse, weights)
    elif several:
        weights = copies.to(torch.float64)
    if edge_features is not None:
        edge_features = edge_features[torch.argsort(inverse)]
    if weights is not None:
        present = weights != 0
        merged, weights, copies = merged[present], weights[present], copies[present]
        edge_features = None if edge_features is None else edge_features[present]
        weights = None if bool((weights == 1).all()) else weights
    edges = torch.stack([merged % count, torch.div(merged, count, rounding_mode="floor")])
    ones = weights if weights is not None else torch.ones(len(merged), device=edges.device)
    found = first_without_reverse(edges, ones, count) is not None
    return Graph(
        count,
        edges,
        weights,
        directed=found or directed is True,
        edge_features=edge_features,
        copies=copies if several and bool((copies > 1).any()) else None,
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
        raise InvalidType(f"the weights of edges must be real numbers, not {weights.dtype}")
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
    """The edges and the reverses of those that have none, or have it less often."""
    keys, back = edges[1] * count + edges[0], edges[0] * count + edges[1]
    if weights is None and features is None:
        merged, often = torch.unique(keys, return_counts=True)
        reverse = (merged % count) * count + torch.div(merged, count, rounding_mode="floor")
        place = torch.searchsorted(merged, reverse).clamp_(max=max(0, len(merged) - 1))
        known = torch.where(merged[place] == reverse, often[place], 0)
        missing = torch.repeat_interleave(reverse, (often - known).clamp(min=0))
        rows = torch.stack([missing % count, torch.div(missing, count, rounding_mode="floor")])
        return torch.cat([edges, rows], 1), None, None
    added = ~torch.isin(back, keys)
    edges = torch.cat([edges, edges[:, added].flip(0)], 1)
    if weights is not None:
        weights = torch.cat([weights, weights[added]])
        merged, inverse = torch.unique(edges[1] * count + edges[0], return_inverse=True)
        total = weights.new_zeros(len(merged)).index_add_(0, inverse, weights)
        rows = torch.stack([merged % count, torch.div(merged, count, rounding_mode="floor")])
        different = first_without_reverse(rows, total, count)
        if different is not None:
            i, j = different
            raise InvalidInput(
                f"in an undirected graph an edge weighs the same both ways, and the weights from "
                f"{i} to {j} and back differ"
            )
    return edges, weights, features if features is None else torch.cat([features, features[added]])
