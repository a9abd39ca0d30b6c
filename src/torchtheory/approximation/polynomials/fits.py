r"""The polynomial of a degree that is nearest to a function, and the degree an error needs.

Weierstrass: every continuous function on $[a,b]$ is within any $\epsilon$ of a
polynomial. The nearest polynomial of a degree is found by a linear program on the extrema of a
Chebyshev polynomial, in Chebyshev's basis. Interpolation at equally spaced points, in contrast,
may diverge (Runge). Source: Mathematical Foundations of Deep Learning (slides),
"Stone-Weierstrass"; Deep Learning (notes), Theorem 2.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.interpolate import BarycentricInterpolator
from torch import Tensor, nn

from torchtheory.approximation.certificates import (
    Approximant,
    Box,
    as_box,
    measured_error,
)
from torchtheory.approximation.targets import Function, values_of
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import NotConverged


def chebyshev_basis(degree: int, t: Tensor) -> Tensor:
    r"""$T_k(t)=\cos(k\arccos t)$ for $k\le$ degree, `[n, degree + 1]` on [-1, 1].

    >>> chebyshev_basis(2, torch.tensor([0.5]).double()).round(decimals=12).tolist()
    [[1.0, 0.5, -0.5]]
    """
    whole_number(degree, "degree", least=0)
    k = torch.arange(degree + 1, dtype=t.dtype, device=t.device)
    return torch.cos(k * torch.arccos(t.clamp(-1, 1)).unsqueeze(-1))


class ChebyshevForm(nn.Module):
    r"""$\sum_kc_kT_k$ on an interval, from `[n, 1]` to `[n, 1]`.

    Args:
        coefficients: $c_0,\dots,c_m$.
        domain: the interval that is mapped to [-1, 1].
    """

    coefficients: Tensor

    def __init__(self, coefficients: Tensor, domain: Box) -> None:
        super().__init__()
        self.register_buffer("coefficients", coefficients)
        ((self.low, self.high),) = domain

    def forward(self, x: Tensor) -> Tensor:
        t = (2 * x[:, 0] - self.low - self.high) / (self.high - self.low)
        return chebyshev_basis(len(self.coefficients) - 1, t) @ self.coefficients.unsqueeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestPolynomial(Approximant):
    """The polynomial nearest to a function on many points.

    Its bound is infinite: what the function does between the points is not known;
    `measured_error` tells more.

    Attributes:
        floor: the distance on the points; no polynomial of the degree is nearer on the interval.
    """

    floor: float


def best_polynomial(
    function: Function, degree: int, interval: tuple[float, float] = (0.0, 1.0)
) -> NearestPolynomial:
    r"""The polynomial of a degree that is nearest to a function in the sup norm.

    Its `floor` is the distance on $24m+61$ extrema of a Chebyshev polynomial, for degree
    $m$: no polynomial of that degree comes closer on these points, nor on the interval; the
    error on the interval is a little larger for a function that these points resolve. Time: a
    linear program of that many rows.

    >>> line = best_polynomial(torch.square, 1)                    # x - 1/8
    >>> round(line.floor, 9), round(line(torch.zeros(1).double()).item(), 9)
    (0.125, -0.125)
    """
    whole_number(degree, "degree", least=0)
    ((low, high),) = box = as_box(interval)
    count = 12 * (2 * degree + 5)
    t = torch.cos(torch.arange(count + 1, dtype=torch.float64) * math.pi / count)
    x = (low + high) / 2 + (high - low) / 2 * t
    found = best_uniform_fit(chebyshev_basis(degree, t), values_of(function, x.unsqueeze(1)))
    return NearestPolynomial(
        network=ChebyshevForm(found.coefficients, box),
        bound=math.inf,
        domain=box,
        theorem="S-32",
        floor=found.error,
    )


def weierstrass_degree(
    function: Function,
    error: float,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    most: int = 64,
) -> tuple[int, NearestPolynomial]:
    r"""The least degree whose nearest polynomial has a measured sup error below $\epsilon$.

    >>> weierstrass_degree(torch.square, 0.2)[0], weierstrass_degree(torch.square, 0.1)[0]
    (1, 2)
    """
    positive_number(error, "error")
    for degree in range(whole_number(most, "most", least=0) + 1):
        made = best_polynomial(function, degree, interval)
        if made.floor < error and measured_error(function, made, most_points=1 << 12).lower < error:
            return degree, made
    raise NotConverged(f"no polynomial of degree {most} or less is within {error:g}: raise most=")


def equispaced_interpolant(
    function: Function, degree: int, interval: tuple[float, float] = (0.0, 1.0)
) -> Function:
    r"""The polynomial through `degree + 1` equally spaced values, at every number of a tensor.

    >>> square = equispaced_interpolant(torch.square, 4)
    >>> round(square(torch.tensor([0.5]).double()).item(), 12)
    0.25
    """
    whole_number(degree, "degree", least=0)
    ((low, high),) = as_box(interval)
    knots = torch.linspace(low, high, degree + 1, dtype=torch.float64)
    made = BarycentricInterpolator(
        knots.numpy(), values_of(function, knots.unsqueeze(1)).numpy(), rng=0
    )

    def polynomial(x: Tensor) -> Tensor:
        return torch.as_tensor(made(x.detach().cpu().double().numpy())).to(x)

    return polynomial
