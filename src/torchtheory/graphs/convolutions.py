r"""Convolutions on graphs: GCN, GIN, Chebyshev polynomials, polynomials of the Laplacian.

Each takes features `[..., M, d]` and a graph, `layer(x, graph)`, and has the values and derivatives
of its counterpart in PyTorch Geometric on the same weights (`torchtheory.graphs.pyg`
carries them over). Source: Deep Learning (notes), sections 7.4 and 7.5; Kipf and Welling (2017),
Xu et al. (2019) and Defferrard et al. (2016) for GCN, GIN and Chebyshev layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.graphs.edge_products import SparseMatrix
from torchtheory.graphs.graph import Graph
from torchtheory.graphs.graph_reading import GraphSource, as_graph
from torchtheory.graphs.laplacians import gcn_coupling, graph_laplacian, neighbor_sums
from torchtheory.graphs.message_passing import check_features
from torchtheory.nets.activations.table import Activation, as_layer
from torchtheory.nets.feedforward import drawn_linear


class GraphConvolution(nn.Module):
    r"""The GCN layer without its activation: $\bar AXW+\mathbf 1b^\top$.

    $\bar A=D^{-1/2}(A+I)D^{-1/2}$ is `gcn_coupling`, made once per graph. The product is taken in
    the cheaper order: $(\bar AX)W$ if there are fewer inputs than outputs, or as many and the
    features need no derivative, and $\bar A(XW)$ otherwise.

    Args:
        inputs, outputs: numbers of features $d$, $d'$.
        bias: whether there is $b$, 0 at the start.

    Time $O(Mdd'+E\min(d,d'))$, memory $O(Md')$.

    Attributes:
        linear: holds $W^\top$ `[outputs, inputs]`.
        bias: `[outputs]`, or None.

    >>> layer = GraphConvolution(3, 2)
    >>> layer(torch.ones(4, 3).double(), torch.ones(4, 4)).shape
    torch.Size([4, 2])
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.linear = drawn_linear(inputs, outputs, bias=False, generator=generator, dtype=dtype)
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(outputs, dtype=dtype)) if bias else None
        )

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        check_features(x, graph, width=self.inputs, like=self.linear.weight)
        coupling = gcn_coupling(graph)
        first = self.inputs < self.outputs or (self.inputs == self.outputs and not x.requires_grad)
        weight = self.linear.weight
        if first:
            return nn.functional.linear(coupling @ x, weight, self.bias)
        made = coupling @ nn.functional.linear(x, weight)
        return made if self.bias is None else made + self.bias

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}"


class GCN(nn.Module):
    r"""Graph convolutions with an activation between: $\bar A(\bar AXW_0)_+W_1$ for two.

    Args:
        widths: numbers of features from the input to the output, at least two.
        activation: between the layers, none after the last; a name, a module or a function.

    The outputs are one row of logits per node; `probabilities` takes the softmax of each row.

    >>> net = GCN([5, 16, 3])
    >>> net.probabilities(torch.ones(4, 5).double(), torch.ones(4, 4)).sum(1).round().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: str | Activation | Callable[..., Any] = "relu",
        *,
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if not isinstance(widths, list | tuple):
            raise InvalidType(f"widths must be a list such as [16, 8, 2], not {described(widths)}")
        if len(widths) < 2:
            raise InvalidInput(
                f"a network has an input and an output width, and {list(widths)} has {len(widths)}"
            )
        source = as_generator(generator)
        self.layers = nn.ModuleList(
            GraphConvolution(a, b, bias=bias, generator=source, dtype=dtype)
            for a, b in pairwise(widths)
        )
        self.activation = as_layer(activation)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x, graph))
        made: Tensor = self.layers[-1](x, graph)
        return made

    def probabilities(self, x: Tensor, graph: GraphSource) -> Tensor:
        """The chances of the classes, `[..., M, classes]`."""
        return self(x, graph).softmax(-1)  # type: ignore[no-any-return]


class GraphIsomorphism(nn.Module):
    r"""The GIN layer $\xi_m=\mathrm{network}\big((1+\varepsilon)x_m+\sum_na_{nm}x_n\big)$.

    Args:
        network: any module of features, node by node.
        epsilon: $\varepsilon$.
        learned: whether $\varepsilon$ is a parameter.

    >>> layer = GraphIsomorphism(nn.Identity(), epsilon=0.5)
    >>> layer(torch.ones(3, 1), torch.ones(3, 3) - torch.eye(3)).flatten().tolist()
    [3.5, 3.5, 3.5]
    """

    epsilon: Tensor

    def __init__(self, network: nn.Module, *, epsilon: float = 0.0, learned: bool = False) -> None:
        super().__init__()
        self.network = as_module(network, "network")
        given = next(network.parameters(), torch.zeros(0))
        value = torch.tensor([float(epsilon)], dtype=given.dtype, device=given.device)
        if learned:
            self.epsilon = nn.Parameter(value)
        else:
            self.register_buffer("epsilon", value)

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        check_features(x, graph, like=next(self.network.parameters(), None))
        made: Tensor = self.network((1 + self.epsilon) * x + neighbor_sums(graph) @ x)
        return made


class ChebyshevConvolution(nn.Module):
    r"""$\sum_{k=0}^KT_k(\hat L)XW_k+\mathbf 1b^\top$ with $\hat L=\frac2\lambda L-I$.

    Chebyshev's polynomials come from $T_k=2\hat LT_{k-1}-T_{k-2}$, so that node $m$ sees the
    nodes up to $K$ edges away and no eigenvalue problem is solved.

    Args:
        inputs, outputs: numbers of features.
        degree: $K$; PyTorch Geometric counts the $K+1$ terms instead.
        normalized: whether $L$ is $I-D^{-1/2}AD^{-1/2}$ (with 1 on the diagonal at isolated nodes)
            or $D-A$. Loops of the graph are left out, as in PyTorch Geometric.
        largest: $\lambda$. Unless given an upper bound of the largest eigenvalue, 2 or twice the
            largest degree, so that the eigenvalues of $\hat L$ lie in $[-1,1]$.

    Time $O(KEd+KMdd')$, memory $O(KMd)$ for derivatives.

    Attributes:
        weight: `[degree + 1, inputs, outputs]`.
        bias: `[outputs]`, or None.

    >>> layer = ChebyshevConvolution(3, 2, degree=4)
    >>> layer(torch.ones(4, 3).double(), torch.ones(4, 4) - torch.eye(4)).shape
    torch.Size([4, 2])
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        degree: int,
        *,
        normalized: bool = True,
        largest: float | None = None,
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.inputs = whole_number(inputs, "inputs", least=1)
        self.outputs = whole_number(outputs, "outputs", least=1)
        self.degree = whole_number(degree, "degree", least=0)
        self.normalized = normalized
        self.largest = None if largest is None else positive_number(largest, "largest")
        self.weight = _uniform((degree + 1, inputs, outputs), inputs, generator, dtype)
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(outputs, dtype=dtype)) if bias else None
        )

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        check_features(x, graph, width=self.inputs, like=self.weight)
        scaled = scaled_laplacian(graph, normalized=self.normalized, largest=self.largest)
        before, now = x, x
        made = x @ self.weight[0]
        for k in range(1, self.degree + 1):
            now, before = (scaled @ x, x) if k == 1 else (2 * (scaled @ now) - before, now)
            made = made + now @ self.weight[k]
        return made if self.bias is None else made + self.bias

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, degree={self.degree}"


def scaled_laplacian(
    graph: GraphSource, *, normalized: bool = True, largest: float | None = None
) -> SparseMatrix:
    r"""$\hat L=\frac2\lambda L-I$, which Chebyshev's polynomials are taken of; kept with the graph.

    Loops of the graph are left out. $\lambda$ is `largest`; unless given 2 for the normalized
    Laplacian, and twice the largest degree for the other one, which bound the spectrum.
    """
    graph = as_graph(graph).without_loops()
    base = graph_laplacian(graph, normalized=normalized)
    key = ("scaled laplacian", normalized, largest)
    made: SparseMatrix = graph.kept(key, lambda: _scaled(graph, base, normalized, largest))
    return made


def _scaled(
    graph: Graph, base: SparseMatrix, normalized: bool, largest: float | None
) -> SparseMatrix:
    degrees = graph.degrees()
    if largest is None:
        largest = 2.0 if normalized else 2 * float(degrees.max())
    values = base.values * (2 / largest if largest > 0 else 0.0)
    loop = base.pattern.rows == base.pattern.columns
    if normalized:  # at isolated nodes, I - 0
        values[loop] += torch.where(degrees > 0, 0.0, 2 / largest).to(values)
    values[loop] -= 1
    return SparseMatrix(base.pattern, values, symmetric=True)


class PolynomialGraphConvolution(nn.Module):
    r"""$\xi_m=\sum_{n=1}^Np_{mn}(L)\,x_n+b_m\mathbf 1$, $p_{mn}(L)=\sum_{k=0}^K\alpha_{mnk}L^k$.

    $x_n$ is the $n$-th of $N$ input channels over all nodes and $\xi_m$ the $m$-th output channel.
    The polynomials are evaluated by Horner's scheme with sparse products: node $i$ sees the nodes
    up to $K$ edges away.

    Args:
        inputs, outputs: numbers of channels.
        degree: $K$.
        normalized: which Laplacian.

    Time $O(KEd'+KMdd')$, memory $O(KMd')$ for derivatives.

    Attributes:
        coefficients: $\alpha$, `[outputs, inputs, degree + 1]`.
        bias: $b$, `[outputs]`.

    >>> layer = PolynomialGraphConvolution(3, 2, degree=4)
    >>> sum(p.numel() for p in layer.parameters()) == 2 * 3 * 5 + 2
    True
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        degree: int,
        *,
        normalized: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.inputs = whole_number(inputs, "inputs", least=1)
        self.outputs = whole_number(outputs, "outputs", least=1)
        self.degree = whole_number(degree, "degree", least=0)
        self.normalized = normalized
        shape = (outputs, inputs, degree + 1)
        self.coefficients = _uniform(shape, inputs * (degree + 1), generator, dtype)
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))

    def forward(self, x: Tensor, graph: GraphSource) -> Tensor:
        graph = as_graph(graph)
        check_features(x, graph, width=self.inputs, like=self.coefficients)
        L = graph_laplacian(graph, normalized=self.normalized)
        made = x @ self.coefficients[..., self.degree].T
        for k in range(self.degree - 1, -1, -1):
            made = L @ made + x @ self.coefficients[..., k].T
        return made + self.bias

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, degree={self.degree}"


def _uniform(
    shape: tuple[int, ...], fan_in: int, generator: RandomSource, dtype: torch.dtype
) -> nn.Parameter:
    draws = torch.rand(shape, generator=as_generator(generator), dtype=dtype)
    return nn.Parameter((2 * draws - 1) / math.sqrt(fan_in))
