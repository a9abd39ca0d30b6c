"""How many threads are worth their while, and work that they share.

The threads of one operation wait for each other. Where another process holds a core, all of them
wait for the one that stands in its queue, and one thread is several times as fast as two. Where
operations are small, threads that each do operations of their own are faster as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

import torch

T = TypeVar("T")

#: Numbers and operations of a trial: long enough to be shared among threads, ten milliseconds in
#: all.
_NUMBERS, _OPERATIONS = 2**17, 8

#: Seconds after which a choice is made anew.
_LASTS = 3.0


class UsefulThreads:
    """Sets torch to the number of threads that is fastest now, at most those it had at first.

    A process-wide setting: use it inside of something that puts it back, such as `process_kept`.

    >>> threads = UsefulThreads()
    >>> before = torch.get_num_threads()
    >>> 1 <= threads.choose() <= before
    True
    >>> torch.set_num_threads(before)
    """

    def __init__(self) -> None:
        self.most = torch.get_num_threads()
        self._until = -float("inf")

    def choose(self) -> int:
        """Try the largest number and its halves, unless that was done a moment ago."""
        if self.most > 1 and time.perf_counter() >= self._until:
            best, fastest = self.most, _trial(self.most)
            while best > 1 and (halved := _trial(best // 2)) < fastest:
                best, fastest = best // 2, halved
            torch.set_num_threads(best)
            self._until = time.perf_counter() + _LASTS
        return torch.get_num_threads()


def _trial(threads: int) -> float:
    torch.set_num_threads(threads)
    x = torch.ones(_NUMBERS)
    x.tanh_()  # threads are made at their first use
    start = time.perf_counter()
    for _ in range(_OPERATIONS):
        x.tanh_()
    return time.perf_counter() - start


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations inside this block are done by one thread, and none waits for the next of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)  # also what threads that are made later begin with


class SideBySide:
    """Runs shares of some work at once, each in a thread that does its operations alone.

    The first share is done by the thread that asks for them. Threads are kept for the next time.

    >>> SideBySide()([lambda stop: torch.get_num_threads(), lambda stop: 2])
    [1, 2]
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0

    def __call__(self, shares: Sequence[Callable[[threading.Event], T]]) -> list[T]:
        """What the shares return, in their order.

        Args:
            shares: functions of an event. It is set when another share was interrupted or failed:
                what can stop early should.
        """
        stop = threading.Event()
        if len(shares) - 1 > self._threads:
            self._threads = len(shares) - 1
            self._pool = ThreadPoolExecutor(
                self._threads, "share", initializer=torch.set_num_threads, initargs=(1,)
            )

        def done(share: Callable[[threading.Event], T]) -> T:
            try:
                return share(stop)
            except BaseException:
                stop.set()  # now, and not when the shares before it are done
                raise

        others = []
        with one_thread():
            try:
                for share in shares[1:]:
                    assert self._pool is not None
                    others.append(self._pool.submit(copy_context().run, done, share))
                return [done(shares[0]), *(other.result() for other in others)]
            finally:
                stop.set()
                wait(others)
