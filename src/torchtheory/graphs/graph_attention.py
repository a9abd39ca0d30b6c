r"""Graph attention: a coupling matrix that is learned, $Q$ in the place of the GCN's $\bar A$.

Source: Deep Learning (notes), section 7.4; Veličković et al. (2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.edge_products import (
    EdgePattern,
    edge_spread,
    edge_sums,
    incoming_pattern,
    row_softmax,
)
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.message_passing import check_features
from torchtheory.nets.activations.table import Activation, as_layer


class GraphAttention(nn.Module):
    r"""$\Xi=QXV^\top$, $q_{ij}=\mathrm{softmax}_{j\in N(i)}\,\rho(u^\top[Vx_i,Vx_j,x_{ij}])$.

    The softmax is over the nodes $j$ whose edges reach $i$, and over $i$ itself unless `loops` is
    False; $x_{ij}$ are the graph's edge features. Each head has its own $V$ and $u$; the heads'
    results stand side by side, or are averaged. Scores use no weights of edges; parallel edges are
    as many terms of the softmax, but a loop is one term if `loops`.

    A score is the sum of a number for $i$, one for $j$ and one for the edge, so no feature vector
    is ever made per edge: time $O(HE c+Md\,Hc)$ with $c$ outputs for each of $H$ heads, memory
    $O(HE+HMc)$, also for derivatives.

    Args:
        inputs: number of features $d$.
        outputs: per head, $c$.
        heads: $H$.
        edge_features: how many each edge has; 0 for none. At the loops that are added they are
            the mean over the edges that reach the node (0 if none does).
        activation: $\rho$; the leaky ReLU with slope 0.2 unless given.
        loops: whether a node attends to itself.
        joined: whether heads stand side by side, `[M, H c]`, or are averaged, `[M, c]`.
        bias: whether a bias is added, 0 at the start.

    Attributes:
        values: $V$ of all heads, one below the other, `[H c, d]`.
        receiving, sending, along: the parts of $u$ for $Vx_i$ and $Vx_j$, `[H, c]`, and for the
            edge's features, `[H, e]` or None.

    >>> layer = GraphAttention(3, 4, heads=2)
    >>> layer(torch.ones(5, 3).double(), torch.ones(5, 5)).shape
    torch.Size([5, 8])
    """

    along: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        heads: int = 1,
        edge_features: int = 0,
        activation: str | Activation | Callable[..., Any] | None = None,
        loops: bool = True,
        joined: bool = True,
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.inputs = whole_number(inputs, "inputs", least=1)
        self.outputs = whole_number(outputs, "outputs", least=1)
        self.heads = whole_number(heads, "heads", least=1)
        self.edge_features = whole_number(edge_features, "edge_features", least=0)
        self.loops, self.joined = loops, joined
        self.activation = nn.LeakyReLU(0.2) if activation is None else as_layer(activation)
        source = as_generator(generator)

        def drawn(*shape: int, fan: int) -> nn.Parameter:
            draws = torch.rand(shape, generator=source, dtype=dtype)
            return nn.Parameter((2 * draws - 1) * math.sqrt(6 / fan))

        self.values = drawn(heads * outputs, inputs, fan=inputs + heads * outputs)
        self.receiving = drawn(heads, outputs, fan=heads + outputs)
        self.sending = drawn(heads, outputs, fan=heads + outputs)
        along = drawn(heads, edge_features, fan=heads + edge_features) if edge_features else None
        self.register_parameter("along", along)
        width = heads * outputs if joined else outputs
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(width, dtype=dtype)) if bias else None
        )

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        values, q, pattern = self._attended(x, graph)
        made = edge_sums(q, values, pattern)  # [H, M, c]
        made = made.transpose(0, 1).reshape(graph.nodes, -1) if self.joined else made.mean(0)
        return made if self.bias is None else made + self.bias

    def projections(self) -> Tensor:
        """$V$ of each head, `[H, c, d]`."""
        return self.values.reshape(self.heads, self.outputs, self.inputs)

    def attention(self, x: Tensor, graph: GraphSource) -> Tensor:
        r"""The coupling matrices $Q$ of the heads, written down: `[H, M, M]`, row $i$ sums to 1."""
        graph = as_graph(graph)
        _, q, pattern = self._attended(x, graph)
        dense = q.new_zeros(self.heads, graph.nodes, graph.nodes)
        dense[:, pattern.rows, pattern.columns] = q
        return dense

    def _attended(self, x: Tensor, graph: Graph) -> tuple[Tensor, Tensor, EdgePattern]:
        check_features(x, graph, width=self.inputs, dimensions=2, like=self.values)
        pattern, _ = incoming_pattern(graph, loops=self.loops)
        projected = nn.functional.linear(x, self.values)
        values = projected.reshape(graph.nodes, self.heads, -1).transpose(0, 1).contiguous()
        # u on V x is V^T u on x, which is narrower
        matrices = self.projections()
        both = torch.cat(
            [
                torch.einsum("hcd,hc->hd", matrices, self.receiving),
                torch.einsum("hcd,hc->hd", matrices, self.sending),
            ]
        )
        receiving, sending = (x @ both.T).T.contiguous().chunk(2)
        scores = edge_spread(receiving, sending, pattern)
        if self.along is not None:
            scores = scores + self.along @ self._edges(graph, x.dtype).T
        elif graph.edge_features is not None:
            raise InvalidInput(
                f"the graph has {graph.edge_features.shape[1]} features per edge and the layer "
                f"none: build it with edge_features={graph.edge_features.shape[1]}"
            )
        scores = self.activation(scores)
        if graph.copies is not None:
            scores = scores + self._copies(graph, x.dtype).log()
        return values, row_softmax(scores, pattern), pattern

    def _copies(self, graph: Graph, dtype: torch.dtype) -> Tensor:
        """How many edges the entries of the pattern stand for, `[entries]`."""
        assert graph.copies is not None
        pattern, number = incoming_pattern(graph, loops=self.loops)
        copies = graph.copies.to(dtype)[number.clamp(min=0)]
        once = (number < 0) | ((pattern.rows == pattern.columns) & self.loops)
        return torch.where(once, torch.ones_like(copies), copies)

    def _edges(self, graph: Graph, dtype: torch.dtype) -> Tensor:
        """The features of the pattern's entries, `[entries, e]`."""
        features = graph.edge_features
        if features is None or features.shape[1] != self.edge_features:
            found = "none" if features is None else str(features.shape[1])
            raise ShapeMismatch(
                f"the layer takes {self.edge_features} features per edge, and the graph has {found}"
            )
        if features.requires_grad:  # what is kept would hold on to one computation's derivatives
            return _entry_features(graph, features.to(dtype), self.loops)
        key = ("edge features", self.loops, dtype)
        return graph.kept(key, lambda: _entry_features(graph, features.to(dtype), self.loops))

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, heads={self.heads}"


def _entry_features(graph: Graph, features: Tensor, loops: bool) -> Tensor:
    pattern, number = incoming_pattern(graph, loops=loops)
    proper = graph.sources != graph.targets  # an old loop is replaced, as an added one is made
    chosen = graph.targets[proper]
    sums = features.new_zeros(graph.nodes, features.shape[1])
    sums = sums.index_add(0, chosen, features[proper])
    means = sums / torch.bincount(chosen, minlength=graph.nodes).clamp(min=1).unsqueeze(1)
    made = features[number.clamp(min=0)] if len(features) else means[pattern.rows]
    if loops:
        loop = pattern.rows == pattern.columns
        made = torch.where(loop.unsqueeze(1), means[pattern.rows], made)
    return made
