r"""How wide a network should be: approximation error against estimation error.

For a target with Barron constant $C_f$ on the ball of radius $r$, a network with
$n$ hidden units can come as near as $A/n$ in mean square, $A=(2rC_f)^2$, and
finding it from $M$ samples in $d$ dimensions costs $B\,nd\ln M/M$. The total

$$
E(n) = \frac An + B\,\frac{nd}M\ln M
$$

is least at $n^\star=\sqrt{AM/(Bd\ln M)}$, where both terms are equal and
$E(n^\star)=2\sqrt{ABd\ln M/M}$. The rate in $n$ does not contain $d$; the
constant $A$ may, and may grow exponentially with it.

Source: Mathematical Foundations of Deep Learning (slides), "Barron's Theorem".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtheory.core.checks import positive_number
from torchtheory.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class WidthChoice:
    r"""The balance of the two errors.

    Attributes:
        width: the whole number of units with the least total.
        balance: $n^\star$, where both terms are equal.
        approximation, estimation: the two terms at `width`.
    """

    width: int
    balance: float
    approximation: float
    estimation: float

    @property
    def total(self) -> float:
        """The least total error of a whole number of units."""
        return self.approximation + self.estimation


def approximation_bound(width: float, barron_constant: float, radius: float = 1.0) -> float:
    r"""$(2rC_f)^2/n$.

    >>> approximation_bound(100, 2.0)
    0.16
    """
    positive_number(width, "width")
    return approximation_constant(barron_constant, radius) / width


def approximation_constant(barron_constant: float, radius: float = 1.0) -> float:
    r"""$A=(2rC_f)^2$.

    >>> approximation_constant(2.0, 0.5)
    4.0
    """
    positive_number(barron_constant, "barron_constant")
    positive_number(radius, "radius")
    return (2 * radius * barron_constant) ** 2


def estimation_order(width: float, dimension: int, samples: int, constant: float = 1.0) -> float:
    r"""$B\,nd\ln M/M$; the theory leaves the constant $B$ open.

    >>> round(estimation_order(10, 2, 1000), 6)
    0.138155
    """
    positive_number(width, "width")
    positive_number(constant, "constant")
    _sizes(dimension, samples)
    return constant * width * dimension * math.log(samples) / samples


def choose_width(
    dimension: int, samples: int, approximation: float, estimation: float = 1.0
) -> WidthChoice:
    r"""The width with the least $A/n+B\,nd\ln M/M$.

    Args:
        dimension: $d$.
        samples: $M$, 2 or more.
        approximation: $A$, e.g. `approximation_constant` of the target.
        estimation: $B$, e.g. the variance of the noise.

    >>> found = choose_width(3, 10_000, 16.0, 0.25)
    >>> found.width, round(found.balance, 2), round(found.total, 4)
    (152, 152.19, 0.2103)
    """
    positive_number(approximation, "approximation")
    positive_number(estimation, "estimation")
    _sizes(dimension, samples)
    slope = estimation_order(1, dimension, samples, estimation)
    balance = math.sqrt(approximation / slope)
    low = max(1, math.floor(balance))
    width = min((low, low + 1), key=lambda n: approximation / n + slope * n)
    return WidthChoice(width, balance, approximation / width, slope * width)


def _sizes(dimension: int, samples: int) -> None:
    if dimension < 1 or samples < 2:
        raise InvalidInput(
            f"take dimension 1 and 2 samples or more, not {dimension!r} and {samples!r}"
        )
