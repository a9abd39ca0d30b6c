r"""Bernstein's proof of Weierstrass' theorem: polynomials as expectations.

$q_m(x)=\mathbb E f(K/m)$ with $K$ binomial, $m$ trials of probability
$x$: by the law of large numbers it tends to $f(x)$, uniformly. Source: Foundations of
Deep Learning, section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, Box, as_box
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import first_entry, positive_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput


def bernstein_basis(degree: int, x: Tensor) -> Tensor:
    r"""$b^m_k(x)=\binom mkx^k(1-x)^{m-k}$, `[n, m + 1]` at points `x[n]` of [0, 1].

    Through logarithms, with a relative rounding error of about $m\log m$ units. They are
    not negative, sum to 1, and each is largest at $k/m$. Time: $O(nm)$.

    >>> bernstein_basis(2, torch.tensor([0.5], dtype=torch.float64)).round(decimals=12).tolist()
    [[0.25, 0.5, 0.25]]
    """
    whole_number(degree, "degree", least=0)
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise InvalidInput(
            "Bernstein's polynomials are used on [0, 1], and a point lies outside: "
            f"{first_entry(x, 'x', ~((x >= 0) & (x <= 1)))}"
        )
    k = torch.arange(degree + 1, dtype=x.dtype, device=x.device)
    choices = math.lgamma(degree + 1) - torch.lgamma(k + 1) - torch.lgamma(degree - k + 1)
    x = x.unsqueeze(-1)
    powers = torch.xlogy(k, x) + torch.special.xlog1py(degree - k, -x)
    return torch.exp(choices + powers)


class BernsteinForm(nn.Module):
    r"""$\sum_kc_kb^m_k$ on an interval, from `[n, 1]` to `[n, 1]`.

    Args:
        values: $c_0,\dots,c_m$.
        domain: the interval that is mapped to [0, 1] by $x\mapsto(x-a)/(b-a)$.
    """

    values: Tensor

    def __init__(self, values: Tensor, domain: Box) -> None:
        super().__init__()
        self.register_buffer("values", values)
        ((self.low, self.high),) = domain

    def forward(self, x: Tensor) -> Tensor:
        t = (x[:, 0] - self.low) / (self.high - self.low)
        return bernstein_basis(len(self.values) - 1, t) @ self.values.unsqueeze(1)


def bernstein_approximant(
    function: Function,
    degree: int,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    lipschitz: float,
) -> Approximant:
    r"""The Bernstein polynomial $q_m(x)=\sum_kf(k/m)\,b^m_k(x)$ of a Lipschitz function.

    On [a, b] it is taken of $f\circ\varphi$, $\varphi(t)=(1-t)a+tb$, and composed with
    $\varphi^{-1}$. The promise is $\rho(b-a)/2\sqrt m$, as
    $|f(x)-q_m(x)|\le\rho\,\mathbb E|x-K/m|\le\rho\sqrt{x(1-x)/m}$.

    >>> square = bernstein_approximant(lambda x: x**2, 4, lipschitz=2.0)
    >>> round(square(torch.tensor([0.5], dtype=torch.float64)).item(), 12)   # x² + x(1-x)/m
    0.3125
    """
    whole_number(degree, "degree", least=1)
    positive_number(lipschitz, "lipschitz")
    ((low, high),) = box = as_box(interval)
    knots = torch.linspace(low, high, degree + 1, dtype=torch.float64)
    form = BernsteinForm(values_of(function, knots.unsqueeze(1)), box)
    bound = lipschitz * (high - low) / (2 * math.sqrt(degree))
    return Approximant(form, bound, box, "L-078")


def split_residual(
    function: Function, degree: int, x: Tensor, delta: float
) -> tuple[Tensor, Tensor]:
    r"""What near and far lattice points contribute to $|f(x)-q_m(x)|$, `[n]` each.

    $\sum|f(x)-f(k/m)|\,b^m_k(x)$ over $|x-k/m|\le\delta$ and over the rest.

    >>> near, far = split_residual(lambda x: x, 1, torch.tensor([0.5]).double(), 0.25)
    >>> near.item(), far.item()
    (0.0, 0.5)
    """
    positive_number(delta, "delta")
    lattice = torch.arange(degree + 1, dtype=torch.float64) / degree
    gaps = values_of(function, x.unsqueeze(1)).unsqueeze(1) - values_of(
        function, lattice.unsqueeze(1)
    )
    residual = gaps.abs() * bernstein_basis(degree, x)
    near = (x.unsqueeze(1) - lattice).abs() <= delta
    return (residual * near).sum(1), (residual * ~near).sum(1)


def far_bound(degree: int, delta: float, spread: float) -> float:
    r"""$R/4m\delta^2$: what far lattice points contribute at most (Chebyshev).

    >>> far_bound(4, 0.5, 1.0)
    0.25
    """
    return positive_number(spread, "spread") / (4 * degree * positive_number(delta, "delta") ** 2)


def bernstein_degree(error: float, delta: float, spread: float) -> int:
    r"""The least whole $m>R/2\epsilon\delta^2$: then $\|f-q_m\|_\infty<\epsilon$.

    Args:
        error: $\epsilon$.
        delta: with $|x-y|\le\delta\Rightarrow|f(x)-f(y)|\le\epsilon/2$.
        spread: $R\ge\max|f(x)-f(y)|$.

    >>> bernstein_degree(0.5, 0.25, 1.0)
    17
    """
    positive_number(error, "error")
    positive_number(delta, "delta")
    positive_number(spread, "spread")
    return math.floor(spread / (2 * error * delta**2)) + 1


def binomial_moment(degree: int, x: Fraction, power: int, *, first: int = 0) -> Fraction:
    r"""$\sum_{k\ge k_0}(x-k/m)^p\,b^m_k(x)$ in exact arithmetic.

    For $k_0=0$: 1, 0 and $x(1-x)/m$ for $p=0,1,2$.

    >>> binomial_moment(3, Fraction(1, 4), 2)
    Fraction(1, 16)
    """
    whole_number(degree, "degree", least=1)
    whole_number(power, "power", least=0)
    return sum(
        (
            (x - Fraction(k, degree)) ** power
            * math.comb(degree, k)
            * x**k
            * (1 - x) ** (degree - k)
            for k in range(first, degree + 1)
        ),
        Fraction(0),
    )


def power_coefficients(values: Sequence[float] | Tensor) -> list[Fraction]:
    r"""Coefficients of 1, x, x², ... of $\sum_kc_kb^m_k(x)$, exactly.

    $\alpha_j=\binom mj\Delta^jc_0$; floats are taken as the rationals they are.

    >>> power_coefficients([0.0, 0.5, 1.0])
    [Fraction(0, 1), Fraction(1, 1), Fraction(0, 1)]
    """
    row = [Fraction(float(v)) for v in values]
    if not row:
        raise EmptyData("a polynomial needs at least one value")
    m = len(row) - 1
    made = []
    for j in range(m + 1):
        made.append(math.comb(m, j) * row[0])
        row = [b - a for a, b in pairwise(row)]
    return made
