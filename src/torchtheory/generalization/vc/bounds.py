r"""From the growth function or the VC dimension to a bound on the risk, with every constant.

For the 0-1 loss of a binary class, with probability at least $1-\delta$ and for all
$f\in\mathcal F$ at once, $R(f)\le R_S(f)+\text{radius}$. A radius of 1 or more says
nothing: it is *vacuous*.
Sources: Foundations of Deep Learning, section 8.3; Mathematical Aspects of Deep Learning,
Theorem 1.21.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torchtheory.core.checks import open_fraction, positive_number, whole_number
from torchtheory.core.errors import InvalidInput


def growth_radius(log_growth: float, n: int, delta: float) -> float:
    r"""$2\sqrt{2(\log S_{\mathcal F}(2n)+\log(2/\delta))/n}$ (Vapnik-Chervonenkis).

    Args:
        log_growth: $\log S_{\mathcal F}(2n)$, of *twice* the sample size.
        n: sample size.
        delta: the probability that the bound fails.

    Source: Foundations of Deep Learning, Theorem 60.

    >>> from torchtheory.generalization.vc.growth import growth_halfspaces
    >>> round(growth_radius(math.log(growth_halfspaces(2000, 2)), 1000, 0.05), 5)
    0.38874
    """
    _check(n, delta)
    if not log_growth >= 0:
        raise InvalidInput(f"a growth function is at least 1, its logarithm not {log_growth}")
    return 2 * math.sqrt(2 * (log_growth + math.log(2 / delta)) / n)


def vc_radius(dimension: int, n: int, delta: float, *, sharp: bool = False) -> float:
    r"""$2\sqrt{2(h(\log(2n)+1)+\log(2/\delta))/n}$ for VC dimension $h\le2n$.

    The growth function is replaced by $(2en/h)^h$; the printed form also drops
    $-h\log h$, which `sharp` keeps.

    Source: Foundations of Deep Learning, section 8.3.

    >>> round(vc_radius(3, 1000, 0.05), 5), round(vc_radius(3, 1000, 0.05, sharp=True), 5)
    (0.48573, 0.45778)
    """
    _check(n, delta)
    if not 1 <= dimension <= 2 * n:
        raise InvalidInput(f"the VC dimension must lie in 1..2n = {2 * n}, not {dimension}")
    each = 1 + math.log(2 * n / dimension if sharp else 2 * n)
    return growth_radius(dimension * each, n, delta)


def vc_sample_size(dimension: int, radius: float, delta: float, *, sharp: bool = False) -> int:
    r"""Smallest $n$ whose `vc_radius` is at most `radius`; proportional to $h$
    up to a logarithm.

    >>> n = vc_sample_size(3, 0.1, 0.05)
    >>> vc_radius(3, n, 0.05) <= 0.1 < vc_radius(3, n - 1, 0.05)
    True
    """
    positive_number(radius, "radius")
    # decreasing from n = h/2 on: the derivative of (h log(2n) + ...)/n is negative there
    least = max(1, (dimension + 1) // 2)
    return first_whole_number(
        lambda n: vc_radius(dimension, n, delta, sharp=sharp) <= radius, least
    )


def vc_rate(dimension: int, n: int, delta: float, *, constant: float = 1.0) -> float:
    r"""$c\sqrt{(h+\log(1/\delta))/n}$, two-sided, *up to the constant* $c$.

    The theorem says that a universal $c$ exists and does not name it: with the default 1
    this is an order of magnitude, not a certificate. $h=0$ is refused unless
    $\delta\le\tfrac12$: one function, $\delta\to1$ would leave nothing.

    Source: Mathematical Aspects of Deep Learning, Theorem 1.21.

    >>> vc_rate(1, 100, math.exp(-3))
    0.2
    """
    _check(n, delta)
    if dimension < 0 or not constant > 0:
        raise InvalidInput(
            "the VC dimension is not negative, and the constant positive (dimension = "
            f"{dimension!r}, constant = {constant!r})"
        )
    if dimension == 0 and delta > 0.5:
        raise InvalidInput(
            f"with VC dimension 0 and delta = {delta} the right side is near 0 whatever the "
            "sample; take delta <= 1/2"
        )
    return constant * math.sqrt((dimension + math.log(1 / delta)) / n)


def first_whole_number(holds: Callable[[int], bool], least: int) -> int:
    """Smallest whole number from `least` on that `holds`, which must be monotone.

    Doubling, then bisection.

    >>> first_whole_number(lambda n: n * n >= 1000, 1)
    32
    """
    high = least
    while not holds(high):
        if high > 1 << 200:
            raise InvalidInput("no sample size below 2^200 is enough")
        high = 2 * high
    low = least - 1 if high == least else high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check(n: int, delta: float) -> None:
    whole_number(n, "the sample size", least=1)
    open_fraction(delta, "delta")
