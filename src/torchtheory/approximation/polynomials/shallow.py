r"""Polynomials in several variables, and so smooth functions, by one hidden layer of a smooth unit.

All derivatives of $w\mapsto\sigma(w\cdot x+b)$ at 0 are monomials,
$\partial_w^\alpha\sigma(w\cdot x+b)|_{w=0}=x^\alpha\sigma^{(|\alpha|)}(b)$, and differences
of the units $\sigma(h\,j\cdot x+b)$, $j\in\{0,\dots,m\}^d$, tend to them. With
$N=(m+1)^d$ units whose weights do not depend on the function its error is that of the best
polynomial, $N^{-n/d}$ for $n$ derivatives. Sources: Mathematical Aspects of Deep
Learning, Theorems 1.18 and 3.8 (Mhaskar), where the second names Taylor polynomials: for one layer
the polynomial has to be good on the whole cube.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.polynomials.divided_differences import (
    ROUNDOFF,
    activation_derivative,
    largest_derivative,
    monomial_error,
    smooth_layer,
)
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import all_finite, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch

#: Units of a hidden layer.
MOST_UNITS = 1 << 14

#: Squared norms of frequencies that are counted, which takes its 3/2 power: half a minute.
MOST_SQUARE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class ShallowPolynomial(Approximant):
    """A polynomial as one hidden layer on the unit cube; its bound is the sum of two parts.

    Attributes:
        truncation: error of the differences in exact arithmetic; falls with the step.
        rounding: what double precision can add; grows as the step falls.
    """

    truncation: float
    rounding: float


def shallow_polynomial(
    coefficients: Tensor, activation: str, bias: float, step: float
) -> ShallowPolynomial:
    r"""$\sum_\alpha c_\alpha x^\alpha$ on $[0,1]^d$ by $(m+1)^d$ units.

    $$
    x^\alpha\approx\frac1{h^{|\alpha|}\sigma^{(|\alpha|)}(b)}\sum_{j\le\alpha}
    (-1)^{|\alpha-j|}\prod_i\binom{\alpha_i}{j_i}\,\sigma(h\,j\cdot x+b)
    $$

    Every monomial uses the same units. The output weights are put together in exact arithmetic
    and rounded once; they are of size $h^{-|\alpha|}$. A difference quotient of order
    $k$ errs by $\frac k2h\max|\sigma^{(k+1)}|/|\sigma^{(k)}(b)|$.

    Args:
        coefficients: `[m + 1] * d`; entry $\alpha$ is $c_\alpha$.
        activation: a smooth one, as for
            `monomial_network`; ReLU never
            qualifies, since its second derivative vanishes.
        bias: $b$, where no derivative up to the degree vanishes;
            `good_bias` finds one.
        step: $h$.

    >>> xy = shallow_polynomial(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), "exp", 0.0, 1e-4)
    >>> x = torch.tensor([[0.5, 0.25]]).double()
    >>> abs(xy(x).item() - 0.125) < 1e-4, xy.size.units
    (True, 4)
    """
    positive_number(step, "step")
    if coefficients.ndim < 1 or len(set(coefficients.shape)) != 1:
        raise ShapeMismatch(
            f"coefficients are [m + 1] * d, one axis a variable, not {list(coefficients.shape)}"
        )
    all_finite(coefficients, "the coefficients of a polynomial")
    d, side = coefficients.ndim, coefficients.shape[0]
    if side**d > MOST_UNITS:
        raise InvalidInput(f"{side}^{d} units are more than {MOST_UNITS}: lower the degree")
    point = torch.tensor(float(bias), dtype=torch.float64)
    weights: dict[tuple[int, ...], Fraction] = {}
    truncation, top = 0.0, 0
    for alpha in itertools.product(range(side), repeat=d):
        c = float(coefficients[alpha])
        if c == 0:
            continue
        order = sum(alpha)
        top = max(top, order)
        truncation += abs(c) * monomial_error(order, activation, bias, step).truncation
        slope = Fraction(float(activation_derivative(activation, point, order)))
        scale = Fraction(c) / (Fraction(step) ** order * slope)
        for j in itertools.product(*[range(a + 1) for a in alpha]):
            sign = (-1) ** (order - sum(j))
            ways = math.prod(math.comb(a, i) for a, i in zip(alpha, j, strict=True))
            weights[j] = weights.get(j, Fraction(0)) + sign * ways * scale
    grid = list(itertools.product(range(side), repeat=d))
    first = torch.tensor(grid, dtype=torch.float64) * step
    out = torch.tensor([[float(weights.get(j, 0)) for j in grid]], dtype=torch.float64)
    network = chain(
        [(first, torch.full((len(grid),), float(bias)).double()), (out, out.new_zeros(1))],
        [smooth_layer(activation)],
    )
    low, high = bias, bias + top * step
    size = largest_derivative(activation, 0, low, high) + largest_derivative(
        activation, 1, low, high
    ) * max(abs(low), abs(high))
    rounding = (len(grid) + 8) * ROUNDOFF * float(out.abs().sum()) * size
    return ShallowPolynomial(
        network=network,
        bound=truncation + rounding,
        domain=((0.0, 1.0),) * d,
        theorem="X-17",
        truncation=truncation,
        rounding=rounding,
    )


@dataclass(frozen=True, slots=True)
class SpanDistance:
    """How far a function is from all that one hidden layer can say.

    Attributes:
        units: hidden units.
        mean_square: distance in $L_2$, the least possible.
        largest: sup of the same fit on the nodes.
        weight: size of the largest output weight that the fit needs, to about a digit.
    """

    units: int
    mean_square: float
    largest: float
    weight: float


def exponential_span(
    function: Function, degree: int, dimension: int, *, panels: int = 32
) -> SpanDistance:
    r"""The best $L_2((0,1)^d)$ fit by the units $e^{j\cdot x}$, $j\in\{0..m\}^d$.

    The first layer does not depend on the function, and only the output weights are fitted, so
    the fit is linear in the function. With $u_i=e^{x_i}$ the units are the monomials in
    $u$: the distance is found in the basis of Chebyshev polynomials in $u$, which
    spans the same functions and, unlike the units, is well conditioned.

    Args:
        degree: $m$, with $(m+1)^d$ units.
        panels: pieces of each side, with an 8-point Gauss rule; even, so that a kink at 1/2 falls
            between two.

    Cost: a QR factorization of `[8 * panels, m + 1]` and $O((8\,\text{panels})^d)$ memory.

    >>> exponential_span(torch.exp, 1, 1).mean_square < 1e-12
    True
    """
    whole_number(degree, "degree", least=0)
    whole_number(dimension, "dimension", least=1)
    whole_number(panels, "panels", least=1)
    if (8 * panels) ** dimension > 1 << 20 or 8 * panels <= degree:
        raise InvalidInput(
            f"{8 * panels} nodes a side in {dimension} dimensions are too many for the memory, or "
            f"too few for degree {degree}: change the panels"
        )
    roots, rule = np.polynomial.legendre.leggauss(8)
    nodes = ((np.arange(panels)[:, None] + (roots + 1) / 2) / panels).reshape(-1)
    weights = np.sqrt(np.tile(rule / 2 / panels, panels))
    shifted = 2 * (np.exp(nodes) - 1) / (math.e - 1) - 1
    basis = np.polynomial.chebyshev.chebvander(shifted, degree)
    q, r = np.linalg.qr(weights[:, None] * basis)
    x = torch.cartesian_prod(*[torch.from_numpy(nodes)] * dimension).reshape(-1, dimension)
    values = values_of(function, x).numpy().reshape([len(nodes)] * dimension)
    scale = values
    for axis in range(dimension):
        scale = scale * weights.reshape([-1 if k == axis else 1 for k in range(dimension)])
    fitted = scale
    for axis in range(dimension):
        fitted = np.moveaxis(np.tensordot(q.T, fitted, (1, axis)), 0, axis)
    coefficients = fitted
    for axis in range(dimension):
        solved = np.linalg.solve(r, np.moveaxis(coefficients, axis, 0).reshape(degree + 1, -1))
        shape = np.moveaxis(coefficients, axis, 0).shape
        coefficients = np.moveaxis(solved.reshape(shape), 0, axis)
    back = coefficients
    for axis in range(dimension):
        back = np.moveaxis(np.tensordot(basis, back, (1, axis)), 0, axis)
    left = values - back
    for axis in range(dimension):
        left = left * weights.reshape([-1 if k == axis else 1 for k in range(dimension)])
    return SpanDistance(
        units=(degree + 1) ** dimension,
        mean_square=float(np.sqrt((left**2).sum())),
        largest=float(np.abs(values - back).max()),
        weight=float(np.abs(_in_powers(coefficients)).max()),
    )


def kolmogorov_width(units: int, dimension: int) -> float:
    r"""The distance some $g$ with $\|g\|_{W^{1,2}}\le1$ keeps from *any* first layer.

    Of any space of dimension $m$ the unit ball of $W^{1,2}((0,1)^d)$ has a member at
    $L_2$ distance $(1+\lambda_{m+1})^{-1/2}$, with
    $\lambda_1\le\lambda_2\le\dots$ the eigenvalues $\pi^2|k|^2$,
    $k\in\mathbb N_0^d$, of the Laplacian with Neumann conditions; `units` and a constant
    span $m=$ `units + 1` dimensions.

    Time $O(ds^{3/2})$ and memory $O(s)$ for $s=\lambda_{m+1}/\pi^2$, about $m^{2/d}$.

    >>> round(kolmogorov_width(1, 1), 6) == round((1 + 4 * math.pi**2) ** -0.5, 6)
    True
    >>> round(kolmogorov_width(100, 8), 6) == round((1 + 4 * math.pi**2) ** -0.5, 6)
    True
    """
    whole_number(units, "units", least=0)
    whole_number(dimension, "dimension", least=1)
    place = units + 1  # 0 is the first eigenvalue
    square = place**2 if dimension == 1 else _square_norm(place, dimension)
    return 1 / math.sqrt(1 + math.pi**2 * square)


def _square_norm(place: int, dimension: int) -> int:
    r"""The entry `place`, counted from 0, of all $|k|^2$, $k\in\mathbb N_0^d$, in order.

    The lattice points are counted by their norms and not listed: those in $d$ dimensions with
    $|k|^2=s$ are those in $d-1$ with $s-j^2$, over all $j$.
    """
    if place <= dimension:
        return min(place, 1)  # the unit vectors come first
    # the ball of squared radius s lies in a cube of (√s + 1)^d points
    limit = max(2, int((place ** (1 / dimension) - 1) ** 2))
    while True:
        if limit > MOST_SQUARE:
            raise InvalidInput(
                f"{place - 1:,} units have frequencies of squared norms beyond {MOST_SQUARE:,} in "
                f"{dimension} dimensions, too many to count: take fewer units"
            )
        counts = np.zeros(limit + 1, dtype=np.int64)
        counts[0] = 1
        for _ in range(dimension):
            last, counts = counts, np.zeros_like(counts)
            for j in range(math.isqrt(limit) + 1):
                counts[j * j :] += last[: limit + 1 - j * j]
            np.minimum(counts, place + 1, out=counts)  # as many as are asked for are enough
        below = counts.cumsum()
        if below[-1] > place:
            return int(np.searchsorted(below, place, side="right"))
        limit *= 2


def _in_powers(coefficients: np.ndarray) -> np.ndarray:
    """Chebyshev coefficients in the shifted variable as powers of u, axis by axis."""
    rows = np.eye(len(coefficients))
    offset, slope = -(math.e + 1) / (math.e - 1), 2 / (math.e - 1)
    for k in range(1, len(rows)):
        times = offset * rows[k - 1] + slope * np.roll(rows[k - 1], 1)
        rows[k] = times if k == 1 else 2 * times - rows[k - 2]
    for axis in range(coefficients.ndim):
        coefficients = np.moveaxis(np.tensordot(rows.T, coefficients, (1, axis)), 0, axis)
    return coefficients
