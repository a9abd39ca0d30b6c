"""What is usual of a number: words for people, and limits that a range can be held against."""

from __future__ import annotations

import math

from torchtheory.core.errors import InvalidInput
from torchtheory.core.quantity import Quantity

#: A question that takes so many times the samples there are will not be decided by more of them.
_HOPELESS = 1e2

#: Fewest samples whose range says how it shrinks with more of them.
_FEWEST = 10


class Usual(str):
    """What is usual of a number, in words, with its limits.

    Attributes:
        low, high: the least and the largest value that is usual; one of them at least is finite.
        closed: whether the limits themselves are usual. Of those that are not, a number may be
            called either.

    >>> Usual("below 0.05", high=0.05).high
    0.05
    """

    low: float
    high: float
    closed: bool

    def __new__(
        cls, words: str, *, low: float = -math.inf, high: float = math.inf, closed: bool = False
    ) -> Usual:
        if not low <= high:
            raise InvalidInput(f"nothing is usual between {low:g} and {high:g}")
        if low == -math.inf and high == math.inf:
            raise InvalidInput(f"{words!r} has no limit that a number could be held against")
        if low == high and not closed:
            raise InvalidInput(f"nothing lies between {low:g} and {high:g}: close the limits")
        made = super().__new__(cls, words)
        made.low, made.high, made.closed = low, high, closed
        return made

    def holds_all_of(self, number: Quantity) -> bool:
        """Whether the number is usual wherever in its range the true value lies."""
        return self.low <= number.low and number.high <= self.high

    def holds_none_of(self, number: Quantity) -> bool:
        """Whether the number is unusual wherever in its range the true value lies."""
        if self.closed:
            return number.high < self.low or number.low > self.high
        return number.high <= self.low or number.low >= self.high

    def samples_to_decide(self, number: Quantity) -> int | None:
        r"""About how many samples would put the whole range on one side of the nearest limit.

        Ranges shrink like $n^{-1/2}$, so $n(w/d)^2$ of them do, where $w$ is how far the range
        reaches towards the limit and $d$ how far the value is from it. None where hardly any
        samples made the number, or no number of them that could be had would do.

        >>> number = Quantity("a", "a", 0.05, 0.0, 0.15, "t", used=50, population=90)
        >>> Usual("below 0.1", high=0.1).samples_to_decide(number)
        200
        """
        distance = min(abs(number.value - self.low), abs(number.value - self.high))
        reach = max(number.high - number.value, number.value - number.low)
        if number.used < _FEWEST or not 0 < reach < math.inf or not distance > 0:
            return None
        factor = (reach / distance) ** 2
        return math.ceil(number.used * factor * (1 - 1e-9)) if factor < _HOPELESS else None


def below(limit: float, words: str = "") -> Usual:
    """Usual is less than a limit.

    >>> below(0.05), below(0.1, "below 10%")
    ('below 0.05', 'below 10%')
    """
    return Usual(words or f"below {limit:g}", high=limit)


def above(limit: float, words: str = "") -> Usual:
    """Usual is more than a limit; see `below`."""
    return Usual(words or f"above {limit:g}", low=limit)


def at_most(limit: float, words: str = "") -> Usual:
    """Usual is a limit or less; of a count, 0 and none of it.

    >>> at_most(0, "0").holds_none_of(Quantity("a", "a", 0.0, 0.0, 3.0, "t"))   # it may be 0
    False
    """
    return Usual(words or f"at most {limit:g}", high=limit, closed=True)


def at_least(limit: float, words: str = "") -> Usual:
    """Usual is a limit or more; see `at_most`."""
    return Usual(words or f"{limit:g} or more", low=limit, closed=True)


def between(low: float, high: float, words: str = "") -> Usual:
    """Usual is what lies between two limits; see `below`."""
    return Usual(words or f"between {low:g} and {high:g}", low=low, high=high)
