r"""Which of two functions grows faster: $o$, $O$ and $\Omega$ by ratios.

$f=o(g)$ if $f/g\to0$; $f=O(g)$ if $|f|\le Cg$, and $f=\Omega(g)$ if $|f|\ge C'g$ with a $C'>0$,
both for all large $n$. For polynomials the leading terms decide. For other functions the ratio is
followed along $n=2^{2^k}$, where a power of $n$ doubles its exponent at each step, a power of
$\log n$ is multiplied by a constant, and what converges stands still.

Source: Foundations of Deep Learning, section 12.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torchtheory.core.checks import as_function, described
from torchtheory.core.errors import InvalidInput, NonFinite

Number = float | Fraction

#: The places $2^{2^k}$ at which functions are compared, and how many neighbors of each: an
#: oscillation is not to be met at even numbers only.
_LEVELS, _WINDOW = range(3, 8), 8

#: A ratio that changes by less than this factor from $n$ to $n^2$ stands still. At the last level
#: $\log\log n$ still gains 15 %, and what converges like $1/\log n$ is within 1 %.
_STILL = math.log(1.08)


@dataclass(frozen=True, slots=True)
class Growth:
    r"""How $f$ grows, measured by $g$.

    Attributes:
        little_o: whether $f=o(g)$.
        big_o: whether $f=O(g)$.
        omega: whether $f=\Omega(g)$.
        largest, smallest: of $|f|/g$ at the largest places; for polynomials both are the limit.
        exact: whether this is a proof (polynomials) or what the ratio looks like.
    """

    little_o: bool
    big_o: bool
    omega: bool
    largest: float
    smallest: float
    exact: bool


def growth_compare(f: Callable[[int], Number], g: Callable[[int], Number]) -> Growth:
    r"""Follow $|f(n)|/g(n)$ along $n=2^{2^k}$ and its neighbors, up to $2^{128}$.

    What is seen there is evidence, not a proof. Functions of integers should compute with
    integers: their ratio is taken exactly, however large they are.

    Args:
        f, g: functions of a positive integer, $g>0$; for example `lambda n: n**2`.

    >>> found = growth_compare(lambda n: n * math.log(n), lambda n: n)
    >>> found.little_o, found.big_o, found.omega
    (False, False, True)
    """
    as_function(f, "f")
    as_function(g, "g")
    highest, lowest = [], []
    for level in _LEVELS:
        ratios = [_log_ratio(f(n), g(n), n) for n in range(2**2**level, 2**2**level + _WINDOW)]
        highest.append(max(ratios))
        lowest.append(min(ratios))
    rising = highest[-1] - highest[-2] > _STILL
    # the largest ratios fall without end, or are 0 already
    vanishing = highest[-1] == -math.inf or highest[-2] - highest[-1] > _STILL
    sinking = lowest[-1] == -math.inf or lowest[-2] - lowest[-1] > _STILL
    return Growth(
        vanishing, not rising, not sinking, _power(highest[-1]), _power(lowest[-1]), exact=False
    )


def polynomial_growth(f: Sequence[Number], g: Sequence[Number]) -> Growth:
    r"""The same for polynomials, exactly: the limit of $|f|/g$ is that of the leading terms.

    Args:
        f, g: coefficients from the highest power down; the first of $g$ that is not 0 is positive.

    >>> found = polynomial_growth([6, -2, 0, 0, 5], [1, 0, 0, 0, 0])     # 6n⁴ - 2n³ + 5 = O(n⁴)
    >>> found.big_o, found.omega, found.little_o, found.largest
    (True, True, False, 6.0)
    """
    (top, degree), (bottom, other) = _leading(f), _leading(g)
    if not bottom > 0:
        raise InvalidInput(f"g must be positive for large n, and its leading term is {bottom}")
    if top == 0 or degree < other:
        limit = 0.0
    else:
        limit = abs(float(top / bottom)) if degree == other else math.inf
    return Growth(limit == 0, limit < math.inf, limit > 0, limit, limit, exact=True)


def _leading(coefficients: Sequence[Number]) -> tuple[Fraction, int]:
    """The leading coefficient and its power; (0, 0) for the zero polynomial."""
    for place, value in enumerate(coefficients):
        if not math.isfinite(value):
            raise NonFinite(f"a coefficient is {value}")
        if value != 0:
            return Fraction(value), len(coefficients) - 1 - place
    return Fraction(0), 0


def _log_ratio(top: Number, bottom: Number, n: int) -> float:
    for value, name in ((top, "f"), (bottom, "g")):
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
            raise InvalidInput(f"{name} must give a number, not {described(value)}")
        if not math.isfinite(value if isinstance(value, float) else 0):
            raise NonFinite(
                f"{name} is {value} at n = 2^{n.bit_length() - 1}: compare logarithms of "
                "functions that grow so fast"
            )
    if not bottom > 0:
        raise InvalidInput(f"g must be positive for large n, and at n = {n} it is {bottom}")
    return _log(top if top >= 0 else -top) - _log(bottom)


def _log(value: Number) -> float:
    if value == 0:
        return -math.inf
    if isinstance(value, Fraction):
        return math.log(value.numerator) - math.log(value.denominator)
    return math.log(value)  # of an integer of any size


def _power(logarithm: float) -> float:
    return math.exp(logarithm) if logarithm < 700 else math.inf
