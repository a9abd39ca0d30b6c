"""Progress bars that nest, go to stderr, and vanish where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

_display: ContextVar[Progress | None] = ContextVar("torchtheory_progress", default=None)
_hidden: ContextVar[bool] = ContextVar("torchtheory_progress_hidden", default=False)


@contextmanager
def hidden() -> Iterator[None]:
    """Show no progress inside this block."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def display() -> Iterator[None]:
    """One display for all bars inside this block; nested blocks share the outermost."""
    if _hidden.get() or _display.get() is not None or not _someone_looks():
        yield
        return
    # here, for most of the library runs where nobody looks
    from torchtheory.core.console import (
        BarColumn,
        Console,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        token = _display.set(bars)
        try:
            yield
        finally:
            _display.reset(token)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a progress bar.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with display():
        bars = _display.get()
        if bars is None or _hidden.get():
            yield from items
            return
        task = bars.add_task(description, total=total)
        try:
            for item in items:
                yield item
                bars.advance(task)
        finally:
            bars.remove_task(task)


def _someone_looks() -> bool:
    return (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
