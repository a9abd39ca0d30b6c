"""How many threads are worth their while on a machine that others use as well.

The threads of one operation wait for each other. Where another process holds a core, all of them
wait for the one that stands in its queue, and one thread is several times as fast as two.
"""

from __future__ import annotations

import time

import torch

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
