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

#: When what runs should be done, and when it is stopped.
_ends: ContextVar[tuple[float, float]] = ContextVar(
    "torchtheory_ends", default=(math.inf, math.inf)
)


def seconds_of(amount: str | float | None) -> float:
    """A number of seconds from `"120s"`, `"2min"`, `"1h"`, a number, or None for no limit.

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
def within(seconds: float, at_most: float | None = None) -> Iterator[None]:
    """Whatever runs inside this block plans for so many seconds, and is stopped at the latest.

    Args:
        seconds: what `time_left` counts down from.
        at_most: when `check_time` stops what overruns them; at once unless told.

    Blocks nest; the earliest end counts.
    """
    now, (planned, last) = time.monotonic(), _ends.get()
    ends = (
        min(planned, now + seconds),
        min(last, now + (seconds if at_most is None else max(seconds, at_most))),
    )
    token = _ends.set(ends)
    try:
        yield
    finally:
        _ends.reset(token)


def time_left() -> float:
    """Seconds that are planned for the innermost block; infinite outside any.

    >>> time_left()
    inf
    """
    return _ends.get()[0] - time.monotonic()


def check_time() -> None:
    """Stop here if the time is used up; every evaluation of a model asks.

    Raises:
        OutOfTime: if it is.
    """
    last = _ends.get()[1]
    if last < math.inf and time.monotonic() > last:
        raise OutOfTime("the time given to it was used up")
