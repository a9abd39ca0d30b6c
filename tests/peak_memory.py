"""The most memory that a function takes, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from torchtheory.core.memory import resident_memory

T = TypeVar("T")


def peak_of_child(
    work: Callable[[T, int], object], prepare: Callable[[], T], memory: int, seconds: float = 300.0
) -> int:
    """The most bytes a fresh process takes for `work(prepare(), memory)`, above what it began with.

    Both are functions of a module. What `prepare` makes and the imports it needs do not count; a
    process of its own is needed because the peak of one never falls.

    Raises:
        MemoryError: if the process did not come to its end in time.
    """
    here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(
        target=_report_peak, args=(there, work, prepare, memory)
    )
    child.start()
    there.close()
    try:
        if not here.poll(seconds):
            raise MemoryError(f"the process was not done after {seconds:g} seconds")
        return int(here.recv())
    except EOFError:
        raise MemoryError("the process ended before it said what it took") from None
    finally:
        child.kill()
        child.join()


def _report_peak(
    pipe: Connection, work: Callable[[T, int], object], prepare: Callable[[], T], memory: int
) -> None:
    made = prepare()
    before = resident_memory()
    work(made, memory)
    pipe.send(max(0, resident_memory(peak=True) - before))
