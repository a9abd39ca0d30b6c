r"""Yarotsky's approximator: local Taylor polynomials, glued by a partition of unity, as ReLUs.

$$
f_1=\sum_{m\in\{0..N\}^d}\phi_mP_m,\qquad
P_m(x)=\sum_{|\alpha|<n}\frac{D^\alpha f(m/N)}{\alpha!}(x-m/N)^\alpha,
$$

and every product $\phi_m(x)(x-m/N)^\alpha$ of $d+|\alpha|$ factors in $[-1,1]$
is a tree of approximate multiplications that is exactly 0 where a factor is. Two errors add up:
that of Taylor, and that of the products. Sources: Mathematical Aspects of Deep Learning,
Theorem 3.10 (Yarotsky; Gühring et al.) and Theorem 1.25.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain, compose, stack
from torchtheory.approximation.piecewise.boxes import relu_bump
from torchtheory.approximation.piecewise.function_norms import multi_indices, partial_derivatives
from torchtheory.approximation.piecewise.partition_of_unity import (
    partition_of_unity_values,
    patch_centers,
)
from torchtheory.approximation.piecewise.shifted_sums import Copies, ShiftedSum
from torchtheory.approximation.polynomials.products import many_product_network
from torchtheory.approximation.polynomials.squaring import squaring_levels
from torchtheory.approximation.targets import Function
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite

#: Shifted networks altogether; their number is about (1 / error) ** (d / n).
MOST_COPIES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothApproximant(Approximant):
    r"""A network on $[0,1]^d$ for a smooth function; its bound is the sum of two parts.

    Attributes:
        taylor_error: bound of $\|f-f_1\|_\infty$.
        product_error: bound of what the approximate products add.
        cells: $N$.
        levels: depth of each squaring.
    """

    network: ShiftedSum
    taylor_error: float
    product_error: float
    cells: int
    levels: int


def taylor_error(smoothness: int, dimension: int, cells: int, norm: float = 1.0) -> float:
    r"""$\|f-f_1\|_\infty\le\frac{R}{n!}\bigl(\frac{2d}{3N}\bigr)^n$ where all derivatives of
    order $n$ are at most $R$.

    The functions $\phi_m$ are an average, and vanish beyond $\frac2{3N}$ in each
    coordinate; the printed bound $2^dd^nN^{-n}/n!$ does not use either.

    >>> taylor_error(2, 1, 10) < 2 / 2 / 10**2
    True
    """
    whole_number(smoothness, "smoothness", least=1)
    whole_number(dimension, "dimension", least=1)
    whole_number(cells, "cells", least=1)
    positive_number(norm, "norm")
    return norm * (2 * dimension / (3 * cells)) ** smoothness / math.factorial(smoothness)


def taylor_cells(smoothness: int, dimension: int, error: float, norm: float = 1.0) -> int:
    r"""The fewest $N$ with `taylor_error` at most `error`.

    >>> taylor_cells(1, 1, 0.1), round(taylor_error(1, 1, 7), 4)
    (7, 0.0952)
    """
    positive_number(error, "error")
    most = float((norm / (error * math.factorial(smoothness))) ** (1 / smoothness))
    cells = max(1, math.ceil(2 * dimension / 3 * most - 1e-9))
    while taylor_error(smoothness, dimension, cells, norm) > error:
        cells += max(1, cells >> 48)  # adding 1 to what floats cannot hold would never end
    return cells


def product_error(smoothness: int, dimension: int, levels: int, norm: float = 1.0) -> float:
    r"""$2^dR\,4^{-(\ell+1)}\sum_{|\alpha|<n}(d+|\alpha|-1)/\alpha!$ for squares of
    $\ell$ levels.

    At a point only $2^d$ of the $\phi_m$ are positive, and a tree of $k$
    factors errs by $(k-1)4^{-(\ell+1)}$.

    >>> product_error(1, 1, 3)                 # a factor alone needs no product
    0.0
    """
    whole_number(smoothness, "smoothness", least=1)
    whole_number(dimension, "dimension", least=1)
    positive_number(norm, "norm")
    # the sum of 1/alpha! over the alpha of degree j is d^j / j!
    terms = sum((dimension + j - 1) * dimension**j / math.factorial(j) for j in range(smoothness))
    return float(2.0**dimension * norm * 4.0 ** -(levels + 1) * terms)


def cells_and_levels(
    smoothness: int, dimension: int, error: float, norm: float = 1.0
) -> tuple[int, int]:
    r"""The least $N$ and levels $\ell$ with which either part of the error is at most
    half of `error`.

    >>> cells, levels = cells_and_levels(2, 1, 0.01)
    >>> cells, levels, taylor_error(2, 1, cells) + product_error(2, 1, levels) <= 0.01
    (7, 4, True)
    """
    positive_number(error, "error")
    cells = taylor_cells(smoothness, dimension, error / 2, norm)
    scale = 4 * product_error(smoothness, dimension, 0, norm)
    return cells, squaring_levels(error / 2, scale) if scale else 1


def smooth_network(
    function: Function,
    smoothness: int,
    dimension: int,
    error: float | None = None,
    *,
    norm: float = 1.0,
    cells: int | None = None,
    levels: int | None = None,
) -> SmoothApproximant:
    r"""A ReLU network within `error` of a function with $n$ bounded derivatives.

    $N$ and the levels are the least for which each part of the error is at most half of
    `error`, unless given: about $\epsilon^{-d/n}$ patches, $\log(1/\epsilon)$ layers.

    Args:
        function: from `[k, d]` to `[k]` or `[k, 1]`, differentiable
            $n-1$ times by automatic differentiation.
        smoothness: $n$.
        dimension: $d$.
        norm: $R$, a bound of all derivatives up to order $n$ on the cube; the
            promise is wrong if it is too small.

    >>> made = smooth_network(torch.sin, 2, 1, 0.01)
    >>> x = torch.linspace(0, 1, 101, dtype=torch.float64)
    >>> bool((made(x) - torch.sin(x)).abs().max() <= made.bound <= 0.01)
    True
    """
    whole_number(smoothness, "smoothness", least=1)
    whole_number(dimension, "dimension", least=1)
    positive_number(norm, "norm")
    if error is not None:
        least = cells_and_levels(smoothness, dimension, error, norm)
        cells, levels = cells or least[0], levels or least[1]
    if cells is None or levels is None:
        raise InvalidInput(
            f"give the error, or the number of cells and of levels (cells = {cells!r}, levels = "
            f"{levels!r})"
        )
    whole_number(cells, "cells", least=1)
    whole_number(levels, "levels", least=1)
    monomials = math.comb(smoothness - 1 + dimension, dimension)
    if (cells + 1) ** dimension * monomials > MOST_COPIES:
        raise InvalidInput(
            f"{cells + 1} patches a side in {dimension} dimensions make more than {MOST_COPIES} "
            "products: ask for a larger error"
        )
    indices = multi_indices(dimension, smoothness - 1)
    centers = patch_centers(cells, dimension)
    values = partial_derivatives(function, centers, smoothness - 1)
    if not all(bool(torch.isfinite(v).all()) for v in values.values()):
        raise NonFinite("the function or a derivative of it is not finite at a center of a patch")
    reach = torch.full((dimension,), 2 / (3 * cells), dtype=torch.float64)
    groups = []
    for alpha in indices:
        factors = values[alpha] / math.prod(map(math.factorial, alpha))
        if bool(factors.any()):
            groups.append(Copies(local_monomial(alpha, cells, levels), centers, factors, reach))
    if not groups:
        raise InvalidInput("the function and its derivatives vanish at every center")
    network = ShiftedSum(groups)
    parts = (
        taylor_error(smoothness, dimension, cells, norm),
        product_error(smoothness, dimension, levels, norm),
    )
    return SmoothApproximant(
        network=network,
        bound=sum(parts),
        domain=((0.0, 1.0),) * dimension,
        theorem="X-31",
        taylor_error=parts[0],
        product_error=parts[1],
        cells=cells,
        levels=levels,
    )


def local_monomial(alpha: tuple[int, ...], cells: int, levels: int) -> torch.nn.Sequential:
    r"""$x^\alpha\prod_k\psi(3Nx_k)$ as a ReLU network on $[-1,1]^d$.

    >>> term = local_monomial((1,), 2, 6)
    >>> term(torch.tensor([[0.125], [0.5]]).double()).flatten().tolist()
    [0.125, 0.0]
    """
    d = len(alpha)
    third = 1 / (3 * cells)
    eye = torch.eye(d, dtype=torch.float64)
    picks = [chain([(eye[k : k + 1], eye.new_zeros(1))], []) for k in range(d)]
    trapezoid = relu_bump(-third, third, third)
    parts = [compose(trapezoid, pick) for pick in picks]
    parts += [picks[k] for k in range(d) for _ in range(alpha[k])]
    return compose_product(parts, levels)


def compose_product(parts: list[torch.nn.Sequential], levels: int) -> torch.nn.Sequential:
    """The product of networks with values in [-1, 1], by a tree of approximate products."""
    return compose(_tree(len(parts), levels), stack(*parts))


@cache
def _tree(factors: int, levels: int) -> torch.nn.Sequential:
    """Kept, because every monomial of the same degree asks for it; nobody may change it."""
    gate = many_product_network(factors, levels).network
    assert isinstance(gate, torch.nn.Sequential)
    return gate


def taylor_patches(function: Function, smoothness: int, cells: int, x: Tensor) -> Tensor:
    r"""$f_1(x)=\sum_m\phi_m(x)P_m(x)$ with exact products, no network: `[k, d]` to `[k]`.

    Time and memory $O(k(N+1)^d)$.

    >>> x = torch.tensor([[0.25], [0.875]]).double()
    >>> taylor_patches(lambda x: 2 * x + 1, 2, 3, x).round(decimals=12).tolist()
    [1.5, 2.75]
    """
    centers = patch_centers(cells, x.shape[1])
    weights = partition_of_unity_values(cells, x)
    values = partial_derivatives(function, centers, smoothness - 1)
    local = torch.zeros_like(weights)
    for alpha, value in values.items():
        power = torch.ones_like(weights)
        for k, a in enumerate(alpha):
            power = power * (x[:, k : k + 1] - centers[:, k]) ** a
        local += power * (value / math.prod(map(math.factorial, alpha)))
    return (weights * local).sum(1)
