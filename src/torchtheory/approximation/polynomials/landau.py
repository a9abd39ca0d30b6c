r"""Landau's proof of Weierstrass' theorem: smoothing by a polynomial kernel.

$P_n(x)=\frac1{J_n}\int_0^1f(t)\,[1-(t-x)^2]^n\,dt$ is a polynomial of degree $2n$, and
the kernel concentrates at $t=x$. The function is extended by 0, and must therefore vanish
at *both* ends: the straight line through its end values is subtracted first and added afterwards.
Source: Foundations of Deep Learning, Problem 1 of section 3.5.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, Box, as_box
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number


def landau_constant(n: int) -> Fraction:
    r"""$J_n=\int_{-1}^1(1-u^2)^n\,du=2^{2n+1}(n!)^2/(2n+1)!$, exactly.

    >>> landau_constant(1)
    Fraction(4, 3)
    """
    whole_number(n, "n", least=0)
    return Fraction(2 ** (2 * n + 1) * math.factorial(n) ** 2, math.factorial(2 * n + 1))


def kernel_moment(n: int, power: int) -> Fraction:
    r"""$\int_{-1}^1u^p(1-u^2)^n\,du$ term by term, exactly.

    >>> kernel_moment(1, 0), kernel_moment(0, 2)
    (Fraction(4, 3), Fraction(2, 3))
    """
    whole_number(n, "n", least=0)
    whole_number(power, "power", least=0)
    if power % 2:
        return Fraction(0)
    return sum(
        (Fraction((-1) ** j * math.comb(n, j) * 2, 2 * j + power + 1) for j in range(n + 1)),
        Fraction(0),
    )


class LandauForm(nn.Module):
    r"""$\ell(x)+\sum_iw_i\,[1-(t_i-t(x))^2]^n$ with $t(x)=(x-a)/(b-a)$.

    Args:
        nodes, masses: $t_i$ and $w_i$, `[q]`.
        n: the power.
        line: value at the left end and rise over the interval of $\ell$.
        domain: the interval.
    """

    nodes: Tensor
    masses: Tensor

    def __init__(
        self, nodes: Tensor, masses: Tensor, n: int, line: tuple[float, float], domain: Box
    ) -> None:
        super().__init__()
        self.register_buffer("nodes", nodes)
        self.register_buffer("masses", masses)
        self.n, self.line = n, line
        ((self.low, self.high),) = domain

    def forward(self, x: Tensor) -> Tensor:
        t = (x - self.low) / (self.high - self.low)
        kernel = (1 - (self.nodes - t) ** 2) ** self.n
        start, rise = self.line
        return start + rise * t + (kernel @ self.masses).unsqueeze(1)

    def series(self) -> np.polynomial.Chebyshev:
        r"""The polynomial's $2n+1$ coefficients, in Chebyshev polynomials of the interval.

        `.convert(kind=np.polynomial.Polynomial, domain=(-1, 1))` makes them powers of
        $x$, whose coefficients grow beyond any accuracy from $n$ about 15 on.
        """

        def values(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            with torch.no_grad():
                at: np.ndarray[Any, Any] = self(torch.from_numpy(x).unsqueeze(1))[:, 0].numpy()
            return at

        made: np.polynomial.Chebyshev = np.polynomial.Chebyshev.interpolate(
            values, max(2 * self.n, 1), domain=[self.low, self.high]
        )
        return made


def landau_approximant(
    function: Function,
    n: int,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    lipschitz: float,
    remove_line: bool = True,
    panels: int = 128,
) -> Approximant:
    r"""Landau's polynomial of degree $2n$ for a Lipschitz function.

    With $L=b-a$, the function without its line is $2\rho L$-Lipschitz in
    $t\in[0,1]$ and at most $\rho L$ large, so $\epsilon/2=2\rho L\delta$ in

    $$
    |f-P_n|\le\frac\epsilon2+\frac M{\delta^2(n+1)}
    $$

    and the best $\delta=(n+1)^{-1/3}$ promise $3\rho L\,(n+1)^{-1/3}$.

    Args:
        function: $f$, from `[k]` to `[k]`.
        n: half the degree.
        lipschitz: $\rho$.
        remove_line: without it the polynomial of the source, for a function that is 0 at the ends.
        panels: the integral is an 8-point Gauss rule on each of so many pieces.

    >>> line = landau_approximant(lambda x: 3 * x, 2, lipschitz=3.0)
    >>> round(line(torch.tensor([1.0], dtype=torch.float64)).item(), 12)
    3.0
    """
    whole_number(n, "n", least=1)
    whole_number(panels, "panels", least=1)
    positive_number(lipschitz, "lipschitz")
    ((low, high),) = box = as_box(interval)
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(8))
    starts = torch.arange(panels, dtype=torch.float64).unsqueeze(1)
    t = ((starts + (nodes + 1) / 2) / panels).flatten()
    w = (weights / (2 * panels)).repeat(panels)
    line = (0.0, 0.0)
    if remove_line:
        first, last = values_of(function, torch.tensor([[low], [high]]).double()).tolist()
        line = (first, last - first)
    values = values_of(function, (low + (high - low) * t).unsqueeze(1))
    masses = w * (values - line[0] - line[1] * t) / float(landau_constant(n))
    bound = 3 * lipschitz * (high - low) * (n + 1) ** (-1 / 3)
    return Approximant(LandauForm(t, masses, n, line, box), bound, box, "L-089")


def landau_bound(n: int, delta: float, half_error: float, largest: float) -> float:
    r"""$\epsilon/2+M/\delta^2(n+1)$ for a function with modulus $(\delta,\epsilon/2)$.

    >>> landau_bound(99, 0.5, 0.1, 1.0)
    0.14
    """
    whole_number(n, "n", least=0)
    return half_error + positive_number(largest, "largest") / (
        positive_number(delta, "delta") ** 2 * (n + 1)
    )
