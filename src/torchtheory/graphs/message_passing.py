r"""Message passing, $x_m\mapsto\phi\big(x_m,\bigoplus_{n\to m}\psi(x_n)\big)$, and pooling.

Layers on graphs take features and a graph, `layer(x, graph)`: one row of `x` per node, and anything
that `as_graph` reads. Several graphs at once are a union (`graph_union`); several sets of features
on one graph are `[..., M, d]`. Source: Deep Learning (notes), section 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_function, described, one_of
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.graphs.edge_products import EdgePattern, incoming_pattern, row_maxima
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.laplacians import neighbor_sums

Aggregation = Literal["sum", "mean", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = ("sum", "mean", "max")


class MessagePassing(nn.Module):
    r"""$\xi_m=\phi\big(x_m,\bigoplus_{n:\,a_{nm}\ne0}\psi(x_n)\big)$.

    Args:
        message: $\psi$, from features `[..., M, d]` to messages `[..., M, c]`, node by node; the
            identity if None.
        update: $\phi(x,z)$, from features and aggregated messages to new features, node by node;
            the second of the two if None.
        aggregate: $\bigoplus$: `sum`, $\sum_na_{nm}\psi(x_n)$; `mean`, that over $\sum_na_{nm}$;
            or `max`, entry by entry over the neighbors, whatever their weights. Where there is no
            neighbor all three are 0.

    Messages are computed per node, not per edge. Time: $M$ messages and $O(Ec)$; memory $O(Mc)$.

    >>> star = torch.zeros(3, 3)
    >>> star[0, 1:] = star[1:, 0] = 1
    >>> MessagePassing()(torch.ones(3, 1), star).flatten().tolist()  # a sum counts neighbors
    [2.0, 1.0, 1.0]
    """

    def __init__(
        self,
        message: Callable[[Tensor], Tensor] | None = None,
        update: Callable[[Tensor, Tensor], Tensor] | None = None,
        aggregate: Aggregation = "sum",
    ) -> None:
        super().__init__()
        # a module that is assigned is registered with its parameters, a function is kept as it is
        self.message = None if message is None else as_function(message, "message")
        self.update = None if update is None else as_function(update, "update")
        self.aggregate: Aggregation = one_of(aggregate, "aggregate", AGGREGATIONS)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        check_features(x, graph)
        messages = x if self.message is None else self.message(x)
        gathered = aggregated(messages, graph, self.aggregate)
        return gathered if self.update is None else self.update(x, gathered)

    def extra_repr(self) -> str:
        return f"aggregate={self.aggregate!r}"


def aggregated(messages: Tensor, graph: Graph, how: Aggregation) -> Tensor:
    """What reaches each node, summed, averaged or maximized: `[..., M, c]` to the same."""
    if how == "max":
        pattern, _ = incoming_pattern(graph)
        if messages.ndim == 2:
            return row_maxima(messages, pattern)
        beside = messages.movedim(-2, 0)
        return row_maxima(beside.flatten(1), pattern).reshape(beside.shape).movedim(0, -2)
    sums = neighbor_sums(graph) @ messages
    if how == "sum":
        return sums
    degrees = graph.nonnegative("a mean over neighbors").degrees(messages.dtype)
    return sums / torch.where(degrees > 0, degrees, 1.0).unsqueeze(-1)


def pooled_nodes(x: Tensor, graph: GraphSource, how: Aggregation = "mean") -> Tensor:
    """One row per graph of a union from its nodes' rows `x[M, c]`: `[graphs, c]`.

    A graph that is no union gives one row.

    >>> from torchtheory.graphs.graph_reading import graph_union
    >>> both = graph_union([torch.zeros(2, 2), torch.zeros(1, 1)])
    >>> pooled_nodes(torch.tensor([[1.0], [3.0], [7.0]]), both).flatten().tolist()
    [2.0, 7.0]
    """
    graph = as_graph(graph)
    check_features(x, graph, dimensions=2)
    one_of(how, "how", AGGREGATIONS)
    member = graph.membership
    if member is None:
        member = torch.zeros(graph.nodes, dtype=torch.int64, device=graph.device)
    count = int(member.max()) + 1
    if how == "max":
        size = max(count, graph.nodes)  # a square pattern: row g lists the nodes of graph g
        order = torch.argsort(member, stable=True)
        return row_maxima(x, EdgePattern(size, member[order], order))[:count]
    sums = x.new_zeros(count, x.shape[1]).index_add(0, member, x)
    if how == "sum":
        return sums
    return sums / torch.bincount(member, minlength=count).clamp(min=1).unsqueeze(-1).to(x.dtype)


class OnGraph(nn.Module):
    """A network on graphs with its graph: a module of the features alone.

    What takes a module of one tensor, such as the training loop or the tools that watch a network,
    can then be used. The network itself is shared, not copied.

    >>> path = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> OnGraph(MessagePassing(), path)(torch.tensor([[1.0], [4.0]])).flatten().tolist()
    [4.0, 1.0]
    """

    def __init__(self, network: nn.Module, graph: GraphSource) -> None:
        super().__init__()
        self.network = network
        self.graph = as_graph(graph)

    def forward(self, x: Tensor) -> Any:
        return self.network(x, self.graph)


def check_features(
    x: Tensor,
    graph: Graph,
    *,
    width: int | None = None,
    dimensions: int | None = None,
    like: Tensor | None = None,
) -> None:
    """Refuse features that do not fit the graph or the layer, in one sentence.

    Args:
        width: how many features a node must have.
        dimensions: 2 where one set of features is needed.
        like: a weight whose precision they must have.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(
            f"features must be a tensor of floating-point numbers, not {described(x)}"
        )
    wanted = f"[{graph.nodes}, {'d' if width is None else width}]"
    odd = x.ndim < 2 or (dimensions is not None and x.ndim != dimensions)
    if odd or x.shape[-2] != graph.nodes or (width is not None and x.shape[-1] != width):
        raise ShapeMismatch(
            f"a graph of {graph.nodes} nodes takes features {wanted} here, one row per node, "
            f"not {list(x.shape)}"
        )
    if x.device != graph.device:
        raise InvalidInput(
            f"the features are on {x.device} and the graph on {graph.device}: move one of them"
        )
    if like is not None and x.dtype != like.dtype:
        raise InvalidType(
            f"the layer's weights are {like.dtype} and the features {x.dtype}: convert one "
            f"of them, for example by layer.to({x.dtype})"
        )
