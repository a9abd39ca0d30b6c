r"""Taylor polynomials of functions of one variable, with their remainder.

Source: Foundations of Deep Learning, section 1.3.3, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, NonFinite

Scalar = Callable[[Tensor], Tensor]
HIGHEST_ORDER = 12


def derivative(function: Scalar, x: Tensor, order: int = 1) -> Tensor:
    r"""$f^{(j)}(x)$ at every entry of `x`, by nested automatic differentiation.

    `function` acts on every entry by itself, so that the gradient of the sum of its values is
    its derivative at each. The cost grows exponentially for most functions (log at order 10
    takes seconds), and orders beyond 12 are refused.

    >>> derivative(torch.sin, torch.tensor([0.0, torch.pi / 2]), 3).round(decimals=4).tolist()
    [-1.0, 0.0]
    """
    if isinstance(order, bool) or not isinstance(order, int) or not 0 <= order <= HIGHEST_ORDER:
        raise InvalidInput(f"the order must be a whole number from 0 to 12, not {order!r}")
    if order == 0:
        return function(x)

    def slope(at: Tensor) -> Tensor:
        made: Tensor = torch.func.grad(lambda t: function(t).sum())(at)
        return made

    return derivative(slope, x, order - 1)


@dataclass(frozen=True, slots=True)
class TaylorPolynomial:
    r"""$P_k(x)=\sum_{j\le k}\frac{f^{(j)}(a)}{j!}(x-a)^j$, called like a function.

    Attributes:
        function: $f$.
        center: $a$.
        coefficients: `[k + 1]`, $f^{(j)}(a)/j!$, constant term first.
    """

    function: Scalar
    center: float
    coefficients: Tensor

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    def __call__(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for c in self.coefficients.flip(0):
            total = total * (x - self.center) + c
        return total

    def truncate(self, degree: int) -> TaylorPolynomial:
        """The polynomial of a lower degree, without differentiating again."""
        if not 0 <= degree <= self.degree:
            raise InvalidInput(f"a polynomial of degree {self.degree} has none of degree {degree}")
        return TaylorPolynomial(self.function, self.center, self.coefficients[: degree + 1])

    def remainder(self, x: Tensor) -> Tensor:
        r"""$f(x)-P_k(x)$."""
        return self.function(x) - self(x)

    def relative_remainder(self, x: Tensor) -> Tensor:
        r"""$h_k(x)=(f(x)-P_k(x))/(x-a)^k$, which tends to 0 as $x\to a$."""
        return self.remainder(x) / (x - self.center) ** self.degree

    def remainder_bound(self, x: Tensor, largest_derivative: float | Tensor) -> Tensor:
        r"""$M|x-a|^{k+1}/(k+1)!$, where $|f^{(k+1)}|\le M$ between a and x."""
        power = self.degree + 1
        return largest_derivative * (x - self.center).abs() ** power / math.factorial(power)


def taylor_polynomial(function: Scalar, center: float, degree: int) -> TaylorPolynomial:
    r"""The Taylor polynomial of a function of one variable, its derivatives by autodiff.

    Args:
        function: $f$, applied to a tensor entry by entry.
        center: $a$.
        degree: $k$, at most 12.

    >>> sine = taylor_polynomial(torch.sin, 0.0, 3)
    >>> sine.coefficients.tolist() == [0, 1, 0, -1 / 6]
    True
    >>> x = torch.tensor(0.5, dtype=torch.float64)
    >>> bool(sine.remainder(x).abs() <= sine.remainder_bound(x, 1.0))
    True
    """
    if not math.isfinite(center):
        raise NonFinite(f"the center must be a finite number, not {center}")
    at = torch.tensor(center, dtype=torch.float64)
    values = [derivative(function, at, j) / math.factorial(j) for j in range(degree + 1)]
    if not values:
        raise InvalidInput(f"the degree must be a whole number >= 0, not {degree}")
    coefficients = torch.stack(values)
    if not bool(torch.isfinite(coefficients).all()):
        raise NonFinite(f"a derivative of order at most {degree} at {center} is not finite")
    return TaylorPolynomial(function, center, coefficients)
