"""Which library functions a lab takes numbers from: watched while it runs, not listed by hand."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torchtheory.core.catalogue import ROOMS
from torchtheory.labs.engine.mutants.mutations import Function, has_numbers

_ROOMS = tuple(f"torchtheory.{room}." for room in ROOMS)
_LABS = "torchtheory.labs."


@contextmanager
def watched_calls() -> Iterator[set[Function]]:
    """The functions of the rooms that labs call inside this block and that return numbers.

    A call by way of torch or of `torchtheory.core` counts as the lab's; one by another function of
    the library does not. Functions made inside of functions are left out: they have no address.
    """
    found: set[Function] = set()
    known: dict[CodeType, Function | None] = {}

    def profile(frame: FrameType, event: str, result: Any) -> None:
        if event != "return":
            return
        code = frame.f_code
        if code not in known:
            known[code] = _function(frame)
        function = known[code]
        if function is None or function in found or not _by_a_lab(frame):
            return
        if has_numbers(result):
            found.add(function)

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _function(frame: FrameType) -> Function | None:
    """The function that runs in a frame, if it is one of a room's own."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    # what Python calls by itself (a length, a step of an iteration) is no formula
    special = code.co_name.startswith("__") and code.co_name != "__call__"
    nameless = special or "<" in code.co_qualname + code.co_filename
    lazily = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if nameless or code.co_flags & lazily or not module.startswith(_ROOMS):
        return None
    return Function(module, code.co_qualname)


def _by_a_lab(frame: FrameType) -> bool:
    caller = frame.f_back
    while caller is not None:
        module = str(caller.f_globals.get("__name__", ""))
        if module.startswith("torchtheory.") and not module.startswith("torchtheory.core."):
            return module.startswith(_LABS)
        caller = caller.f_back
    return False
