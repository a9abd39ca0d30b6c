r"""In- and equivariance on graphs, $f(PX,PAP^\top)=f(X,A)$ and $f(PX,PAP^\top)=Pf(X,A)$.

Source: Deep Learning (notes), section 7.4, Definitions 7.4 and 7.5 (with $P$ on the other side in
the latter, where it belongs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_function, one_of, whole_number
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.equivariance.actions import Actions
from torchtheory.equivariance.measure import Equivariance, measure_equivariance
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.message_passing import check_features

Form = Literal["graph", "adjacency", "edges"]


def graph_equivariance(
    function: Callable[..., Tensor],
    x: Tensor,
    graph: GraphSource,
    *,
    takes: Form = "graph",
    invariant: bool = False,
    orders: int = 16,
    generator: RandomSource = None,
) -> Equivariance:
    r"""How far a function on graphs is from $f(PX,PAP^\top)=Pf(X,A)$, over random orders $P$.

    Args:
        function: a network or function of features and a graph.
        x: features `[M, d]`.
        graph: anything that `as_graph` reads.
        takes: what the function takes besides features: a `graph`, a dense `adjacency` matrix
            `[M, M]`, or `edges` `[2, E]` as PyTorch Geometric's layers do.
        invariant: ask for $f(PX,PAP^\top)=f(X,A)$ instead.
        orders: how many to try.
        generator: of the orders.

    The network runs in evaluation mode and in double precision where its code allows that, and is
    not changed. Time: `orders` + 1 evaluations; memory $O(M+E)$ besides
    the function's own.

    >>> from torchtheory.graphs.convolutions import GCN
    >>> graph_equivariance(GCN([2, 5, 3]), torch.rand(4, 2).double(), torch.ones(4, 4)).exact
    True
    """
    as_function(function, "function")
    one_of(takes, "takes", ("graph", "adjacency", "edges"))
    whole_number(orders, "orders", least=1)
    graph = as_graph(graph)
    check_features(x, graph, dimensions=2)
    source = as_generator(generator)
    drawn = [tuple(torch.randperm(graph.nodes, generator=source).tolist()) for _ in range(orders)]
    # the nodes' own numbers go along with their features, and say how the graph is relabeled
    numbers = torch.arange(graph.nodes, device=x.device).to(x.dtype)
    packed = torch.cat([x.detach(), numbers.unsqueeze(1)], 1).unsqueeze(0)

    def reordered(order: Any, rows: Tensor) -> Tensor:
        return rows[:, list(order)]

    actions = Actions(
        drawn,
        reordered,
        None if invariant else reordered,
        name="relabelings of the nodes",
    )
    return measure_equivariance(
        _Packed(function, graph, takes), actions, packed, elements=orders, generator=source
    )


class _Packed(nn.Module):
    """A function of features and graph as one of a tensor `[n, M, d + 1]`, nodes' numbers last."""

    def __init__(self, function: Callable[..., Tensor], graph: Graph, takes: Form) -> None:
        super().__init__()
        self.function = function
        self.graph, self.takes = graph, takes

    def forward(self, packed: Tensor) -> Tensor:
        found = []
        for one in packed:
            x, order = one[:, :-1], one[:, -1].long()
            graph = self.graph.relabeled(order)
            given: Any = graph
            if self.takes != "graph":
                given = graph.listed_edges() if self.takes == "edges" else graph.adjacency(x.dtype)
            found.append(self.function(x, given))
        return torch.stack(found)
