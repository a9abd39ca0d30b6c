"""Time that may be spent: a deadline that whatever runs inside it keeps."""

from __future__ import annotations

import math
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

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


#: Seconds after which a deadline is called out again: the first call may be lost in a destructor.
_AGAIN = 0.5

#: Seconds after which one looks again whether the interpreter can be interrupted.
_SHORTLY = 0.01


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Stop whatever runs inside this block after so many seconds, wherever it is.

    `check_time` stops what asks for the time; this stops the rest, as Ctrl-C would: at the next
    step of the interpreter, so a single long call of torch still comes to its end. Imports, and
    context managers that put things back, are let through first.

    It needs the alarm signal of the main thread. In other threads, on systems without it and where
    an alarm is set already, nothing but `check_time` keeps the time.

    Raises:
        OutOfTime: inside the block.
    """
    if seconds == math.inf or not _alarm_is_free():
        yield
        return
    over = False

    def call_out(number: int, frame: FrameType | None) -> None:
        if over:
            return
        if _is_delicate(frame):
            signal.setitimer(signal.ITIMER_REAL, _SHORTLY, _AGAIN)
            return
        raise OutOfTime("the time given to it was used up")

    handler = signal.signal(signal.SIGALRM, call_out)
    shown, sys.unraisablehook = sys.unraisablehook, _without_deadlines(sys.unraisablehook)
    signal.setitimer(signal.ITIMER_REAL, max(1e-6, seconds), _AGAIN)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        sys.unraisablehook = shown


def _alarm_is_free() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        and signal.getsignal(signal.SIGALRM) is not None  # one of another language stays
    )


def _is_delicate(frame: FrameType | None) -> bool:
    """Whether a module is imported, a context entered or left, a destructor run: let it through."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("__enter__", "__exit__", "__del__") or code.co_filename.startswith(
            "<frozen importlib"
        ):
            return True
        frame = frame.f_back
    return False


def _without_deadlines(shown: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Python prints what is raised in a destructor; a deadline there is called out again."""

    def show(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, OutOfTime):
            shown(unraisable)

    return show
