"""The rationals are dense in the reals, constructively."""

from __future__ import annotations

import math
from fractions import Fraction

from torchtheory.core.errors import InvalidInput, NonFinite


def rational_between(a: float | Fraction, b: float | Fraction) -> Fraction:
    r"""A rational $p/q$ with $a<p/q<b$.

    $q=\lfloor1/(b-a)\rfloor+1$ makes the grid $\mathbb Z/q$ finer than the gap, and
    $p=\lfloor qa\rfloor+1$ is its first point beyond $a$. Floats are taken as the
    rationals they are and all arithmetic is exact (Foundations of Deep Learning, Theorem 10).

    >>> rational_between(Fraction(3, 10), Fraction(4, 10))
    Fraction(4, 11)
    >>> rational_between(1.0, math.nextafter(1.0, 2.0)) > 1
    True
    """
    for end in (a, b):
        if not math.isfinite(end):
            raise NonFinite(f"the ends must be finite, and one is {end}")
    low, high = Fraction(a), Fraction(b)
    if not low < high:
        raise InvalidInput(f"there is nothing between {a} and {b}: the first must be smaller")
    q = math.floor(1 / (high - low)) + 1
    return Fraction(math.floor(q * low) + 1, q)
