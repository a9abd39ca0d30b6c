"""Time that may be spent: a deadline that whatever runs inside it keeps."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torchtheory.core.errors import InvalidInput, OutOfTime

_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

_deadline: ContextVar[float] = ContextVar("torchtheory_deadline", default=math.inf)


def seconds_of(amount: str | float | None) -> float:
    """A number of seconds from ``"120s"``, ``"2min"``, ``"1h"``, a number, or None for no limit.

    >>> seconds_of("2min"), seconds_of("90"), seconds_of(1.5), seconds_of(None)
    (120.0, 90.0, 1.5, inf)
    """
    if amount is None:
        return math.inf
    seconds = math.nan
    if isinstance(amount, int | float) and not isinstance(amount, bool):
        seconds = float(amount)
    else:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(amount).lower())
        if found is not None and found[2] in _UNITS:
            seconds = float(found[1]) * _UNITS[found[2]]
    if not seconds > 0:
        raise InvalidInput(
            f"a time must be positive, such as '90s', '2min' or a number of seconds, not {amount!r}"
        )
    return seconds


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Whatever calls :func:`check_time` inside this block must be done in so many seconds.

    Blocks nest; the earliest end counts.
    """
    token = _deadline.set(min(_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def time_left() -> float:
    """Seconds until the end of the innermost block; infinite outside any.

    >>> time_left()
    inf
    """
    return _deadline.get() - time.monotonic()


def check_time() -> None:
    """Stop here if the time is used up; every evaluation of a model asks.

    Raises:
        OutOfTime: if it is.
    """
    if _deadline.get() < math.inf and time_left() < 0:
        raise OutOfTime("the time given to it was used up")
