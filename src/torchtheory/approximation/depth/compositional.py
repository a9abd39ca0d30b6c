r"""Functions that are compositions, by networks that follow the composition.

A chain $g_1\circ\dots\circ g_k\circ l$ of smooth functions of one variable after a
polynomial takes the Taylor polynomials of its parts; a binary tree of functions of two variables
takes a network for each of its $d-1$ nodes. Errors are handed on through Lipschitz
constants, and the exact clipping $\sigma(x+1)-\sigma(x-1)-1$ keeps what is handed on in
$[-1,1]$, where the next part is understood. Source: Mathematical Aspects of Deep Learning,
section 3.6.1 (Liang and Srikant; Poggio and others).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant, box_grid
from torchtheory.approximation.layer_maps import (
    Maps,
    affine_map,
    layer_maps_of,
    merge_maps,
    relu_chain,
)
from torchtheory.approximation.network_calculus import block_diagonal
from torchtheory.approximation.polynomials.products import product_network
from torchtheory.approximation.polynomials.relu import (
    Polynomial,
    polynomial_levels,
    polynomial_network,
)
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.primer.taylor import HIGHEST_ORDER, Scalar, taylor_polynomial

SQUARE = ((-1.0, 1.0), (-1.0, 1.0))


@dataclass(frozen=True, slots=True)
class SmoothFunction:
    r"""A function from $[-1,1]$ to $[-1,1]$ with bounds of its derivatives.

    Attributes:
        function: $g$, applied to a tensor entry by entry.
        derivative_bound: $k\mapsto M_k\ge\max_{[-1,1]}|g^{(k)}|$, for
            $k=1,\dots,13$; $M_1$ is the Lipschitz constant.
    """

    function: Scalar
    derivative_bound: Callable[[int], float]

    def taylor_degree(self, error: float) -> int:
        r"""The least $k$ with $M_{k+1}/(k+1)!\le\epsilon$, the remainder at 0.

        >>> SmoothFunction(torch.sin, lambda k: 1.0).taylor_degree(1e-3)
        6
        """
        positive_number(error, "error")
        for k in range(1, HIGHEST_ORDER + 1):
            if self.remainder(k) <= error:
                return k
        raise InvalidInput(
            f"a Taylor polynomial of degree {HIGHEST_ORDER} errs by {self.remainder(12):.2g}, "
            f"more than {error:.2g}"
        )

    def remainder(self, degree: int) -> float:
        """The largest error on [-1, 1] of the Taylor polynomial at 0."""
        return self.derivative_bound(degree + 1) / math.factorial(degree + 1)


def composite_network(
    outer: Sequence[SmoothFunction], inner: Polynomial, error: float
) -> Approximant:
    r"""$g_1\circ\dots\circ g_k\circ l$ on $[-1,1]^d$ within $\epsilon$.

    Each of the $k+1$ parts gets an equal share of $\epsilon$, divided by the product
    of the Lipschitz constants of the functions after it; half of a share is for the Taylor
    remainder, half for the products. Depth and size are polynomials of $\log(1/\epsilon)$.

    Args:
        outer: $g_1,\dots,g_k$, the outermost first.
        inner: $l$, with $|l|\le1$ on the cube.
        error: $\epsilon$.

    >>> sine = SmoothFunction(torch.sin, lambda k: 1.0)
    >>> made = composite_network([sine, sine], {(1, 1): 1.0}, 0.01)
    >>> x = torch.tensor([[0.5, -0.8]], dtype=torch.float64)
    >>> bool((made(x) - torch.sin(torch.sin(x.prod(1)))).abs() <= made.bound <= 0.01)
    True
    """
    positive_number(error, "error")
    share = error / (len(outer) + 1)
    lipschitz = [g.derivative_bound(1) for g in outer]
    budget = [share / math.prod(lipschitz[:i]) for i in range(len(outer) + 1)]
    first = polynomial_network(inner, polynomial_levels(inner, budget[-1]))
    maps, total = layer_maps_of(first), first.bound
    for g, slope, part in zip(outer[::-1], lipschitz[::-1], budget[-2::-1], strict=True):
        degree = g.taylor_degree(part / 2)
        series = taylor_polynomial(g.function, 0.0, degree).coefficients.tolist()
        terms: Polynomial = {(k,): c for k, c in enumerate(series) if c != 0 or k == 0}
        made = polynomial_network(terms, polynomial_levels(terms, part / 2))
        maps = merge_maps(layer_maps_of(made), merge_maps(_clip(1), maps))
        total = slope * total + g.remainder(degree) + made.bound
    return Approximant(relu_chain(maps), total, first.domain, "X-51")


def bilinear_network(
    function: Function,
    cells: int,
    levels: int,
    *,
    lipschitz: float = math.inf,
    curvature: float = math.inf,
) -> Approximant:
    r"""The bilinear interpolant of a function on $[-1,1]^2$ as a ReLU network.

    With hats $\psi_j$ on $m+1$ equal points and the broken lines $C_j(x)$
    through the values in column $j$, the interpolant is $\sum_j\psi_j(y)C_j(x)$:
    $m+1$ products after a linear map of $2m$ ReLUs, $O(m^2)$ weights. With
    $h=2/m$ the error is at most

    $$
    \min\{\lambda h,\ \tfrac14\kappa h^2\}+2\max|f|\,4^{-(n+1)},
    $$

    $\lambda$ a Lipschitz constant in each variable, $\kappa\ge|f_{xx}|,|f_{yy}|$; at
    any point at most two hats are not 0, and a product with 0 is exactly 0.

    >>> made = bilinear_network(lambda x: x.prod(1), 2, 6, curvature=1e-9)
    >>> bool((made(torch.tensor([[0.3, -0.6]]).double()) + 0.18).abs() <= made.bound)
    True
    """
    whole_number(cells, "cells", least=1)
    if not (lipschitz > 0 and curvature > 0) or math.isinf(min(lipschitz, curvature)):
        raise InvalidInput(
            "a bound needs the Lipschitz constant or a bound of the curvature, > 0 (lipschitz = "
            f"{lipschitz!r}, curvature = {curvature!r})"
        )
    knots = torch.linspace(-1, 1, cells + 1, dtype=torch.float64)
    values = values_of(function, box_grid(SQUARE, cells + 1)).reshape(cells + 1, cells + 1)
    largest = max(float(values.abs().max()), 1e-300)
    # rows: ψ_0, C_0, ψ_1, C_1, ...; a broken line is its first value and its changes of slope
    weight, bias = [], []
    for j in range(cells + 1):
        for column, which in ((torch.eye(cells + 1).double()[j], 1), (values[:, j] / largest, 0)):
            slopes = column.diff() / knots.diff()
            bends = torch.cat([slopes[:1], slopes.diff()])
            row = torch.zeros(2, cells, dtype=torch.float64)
            row[which] = bends
            weight.append(row.flatten())
            bias.append(column[0])
    ramps = (torch.eye(2, dtype=torch.float64).repeat_interleave(cells, 0), -knots[:-1].repeat(2))
    gates = layer_maps_of(product_network(levels))
    many = [(block_diagonal(*[w] * (cells + 1)), b.repeat(cells + 1)) for w, b in gates]
    maps = merge_maps(many, [ramps, (torch.stack(weight), torch.stack(bias))])
    maps = merge_maps(affine_map([[largest] * (cells + 1)]), maps)
    h = 2 / cells
    error = min(lipschitz * h, curvature * h * h / 4) + 2 * largest * 4.0 ** -(levels + 1)
    return Approximant(relu_chain(maps), error, SQUARE, "X-52")


def tree_values(nodes: Sequence[Function], x: Tensor) -> Tensor:
    r"""A binary tree of functions of two variables at points `x[n, d]`: `[n]`.

    Args:
        nodes: $d-1$ functions from `[n, 2]` to `[n]`, the leaves' first, from left to
            right, the root last.

    >>> add = lambda x: x.sum(1)
    >>> tree_values([add, add, add], torch.tensor([[1.0, 2.0, 3.0, 4.0]])).item()
    10.0
    """
    tree_levels(nodes, x.shape[-1])
    rest = list(nodes)
    while x.shape[1] > 1:
        pairs = x.reshape(len(x), -1, 2)
        x = torch.stack([rest.pop(0)(pairs[:, i]) for i in range(pairs.shape[1])], 1)
    return x[:, 0]


def tree_levels(nodes: Sequence[object], inputs: int) -> int:
    """The height of the tree; refuses anything but a power of 2 inputs and one node less.

    >>> tree_levels([None] * 7, 8)
    3
    """
    if inputs < 2 or inputs & (inputs - 1) or len(nodes) != inputs - 1:
        raise ShapeMismatch(
            f"a full binary tree has 2, 4, 8, ... inputs d and d - 1 nodes, not {inputs} and "
            f"{len(nodes)}"
        )
    return inputs.bit_length() - 1


def tree_network(nodes: Sequence[Approximant], inputs: int, lipschitz: float) -> Approximant:
    r"""The tree of networks for a tree of functions from $[-1,1]^2$ to $[-1,1]$.

    If the functions of the nodes are $\lambda$-Lipschitz in the sup norm and each network
    is within $\delta$ of its function, the tree errs by at most
    $\delta\sum_{k<\log_2d}\lambda^k$: what comes from a level below is clipped to
    $[-1,1]$, which brings it closer, and multiplied by $\lambda$. The weights are
    those of the nodes together.

    Args:
        nodes: $d-1$ networks of two variables and equal depth, in the order of
            `tree_values`.

    >>> times = bilinear_network(lambda x: x.prod(1), 2, 6, curvature=1e-9)
    >>> tree_network([times] * 3, 4, lipschitz=2.0).bound == 3 * times.bound
    True
    """
    height = tree_levels(nodes, inputs)
    positive_number(lipschitz, "lipschitz")
    if any(node.domain != SQUARE for node in nodes):
        raise InvalidInput(
            "the nodes are networks of two variables on [-1, 1]², not on "
            f"{next(node.domain for node in nodes if node.domain != SQUARE)}"
        )
    rest = [layer_maps_of(node) for node in nodes]
    if len({len(maps) for maps in rest}) > 1:
        raise ShapeMismatch(
            f"the nodes must have equally many layers, not {sorted({len(maps) for maps in rest})}; "
            "use the same number of levels"
        )
    maps: Maps = affine_map(torch.eye(inputs).tolist())
    width = inputs // 2
    while width:
        level, rest = rest[:width], rest[width:]
        layers = [
            (block_diagonal(*(m[i][0] for m in level)), torch.cat([m[i][1] for m in level]))
            for i in range(len(level[0]))
        ]
        maps = merge_maps(
            layers, maps if 2 * width == inputs else merge_maps(_clip(2 * width), maps)
        )
        width //= 2
    delta = max(node.bound for node in nodes)
    bound = delta * sum(lipschitz**k for k in range(height))
    return Approximant(relu_chain(maps), bound, ((-1.0, 1.0),) * inputs, "X-52")


def _clip(count: int) -> Maps:
    """Every number to [-1, 1], exactly."""
    one = [(torch.ones(2, 1).double(), torch.tensor([1.0, -1.0]).double())]
    one.append((torch.tensor([[1.0, -1.0]]).double(), torch.tensor([-1.0]).double()))
    return [(block_diagonal(*[w] * count), b.repeat(count)) for w, b in one]
