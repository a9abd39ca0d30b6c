"""How long measuring takes, of the time that passes, and what there is time for."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

#: Seconds that measuring may take in any case: a training so short that they are more than its
#: share is over before anyone notices them.
GRACE = 0.1

#: What is this many times cheaper than a quantity is measured whenever that one is.
COMPANION = 4.0


class MeasuringClock:
    """A clock for the whole time and one for the measurements; both begin with `reset`.

    Attributes:
        counts: how often each quantity was measured.
        around: what the last measurement took besides its quantities (the copy of the weights).
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.around = self._counted = 0.0
        self._taken: dict[str, deque[float]] = {}
        self.reset()

    def reset(self) -> None:
        """Training begins: nothing was spent yet."""
        self._begun = self._since = time.perf_counter()
        self._before, self._running = 0.0, False

    @property
    def total(self) -> float:
        """Seconds since training began."""
        return time.perf_counter() - self._begun

    @property
    def own(self) -> float:
        """Seconds of these that went into measuring."""
        return self._before + (time.perf_counter() - self._since if self._running else 0.0)

    @property
    def training(self) -> float:
        """Seconds of these that did not."""
        return self.total - self.own

    def start(self) -> None:
        """A measurement begins."""
        self._since, self._running, self._counted = time.perf_counter(), True, 0.0

    def stop(self) -> None:
        """A measurement ends."""
        self.around = max(0.0, time.perf_counter() - self._since - self._counted)
        self._before, self._running = self.own, False

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count what is done inside as the cost of one quantity."""
        begun = time.perf_counter()
        yield
        taken = time.perf_counter() - begun
        self._taken.setdefault(name, deque(maxlen=3)).append(taken)
        self.counts[name] = self.counts.get(name, 0) + 1
        self._counted += taken

    @property
    def costs(self) -> dict[str, float]:
        """What each quantity takes, from its last three measurements.

        The middle one, or the smaller of two: the first includes what is loaded and prepared once.
        """
        return {name: sorted(taken)[len(taken) // 3] for name, taken in self._taken.items()}


class Timetable:
    """What may be measured now, so that measuring stays below a share of the training time.

    Where time is short, a quantity that costs four times as much is measured half as often: with
    frequencies like one over the root of the cost, the curves are on the whole as fine as the time
    allows. What is much cheaper than a quantity is measured whenever that one is, so that the cheap
    ones are known at every step that is measured. What is due but too expensive now is waited for,
    so that nothing starves; what one more measurement of everything costs is held back for the end
    of the training.

    Args:
        clock: what was spent, and what each quantity took.
        passes: about how many forward passes each quantity costs, by name: what is not known yet
            is planned with it.
        share: of the training time that measuring may take.
    """

    def __init__(self, clock: MeasuringClock, passes: Mapping[str, float], share: float) -> None:
        self.clock, self.passes, self.share = clock, passes, share

    def cost(self, name: str) -> float:
        """Seconds a quantity will take: what it took, or as its passes suggest.

        What was measured once may have loaded and prepared things then, so it is planned with the
        smaller of the two.
        """
        known, counts = self.clock.costs, self.clock.counts
        if counts.get(name, 0) > 1:
            return known[name]
        settled = [other for other in known if counts[other] > 1] or list(known)
        # the slowest pace: what is cheap shares its passes with others, or needs none
        pace = max((known[other] / self.passes[other] for other in settled), default=0.0)
        return min(known.get(name, math.inf), self.passes[name] * pace)

    @property
    def left(self) -> float:
        """Seconds that measuring may still take now."""
        return max(GRACE, self.share * self.clock.training) - self.clock.own

    def due(self, names: Sequence[str]) -> list[str]:
        """What to measure now, in the course of a training."""
        held = sum(self.cost(name) for name in names if name in self.clock.counts)
        room = self.left - held - 2 * self.clock.around
        chosen: list[str] = []
        for name in sorted(names, key=self._turn):
            # whatever costs next to nothing beside it is read at the same step
            along = [n for n in names if COMPANION * self.cost(n) <= self.cost(name) and n != name]
            new = [n for n in (name, *along) if n not in chosen]
            room -= sum(map(self.cost, new))
            if room < 0:
                break
            chosen += new
        return chosen

    def last(self, names: Sequence[str]) -> list[str]:
        """What to measure at the end of a training, cheap things first."""
        room = self.left - self.clock.around
        chosen: list[str] = []
        for name in sorted(names, key=self.cost):
            room -= self.cost(name)
            if room < 0:
                break
            chosen.append(name)
        return chosen

    def _turn(self, name: str) -> float:
        return (self.clock.counts.get(name, 0) + 1) * math.sqrt(self.cost(name))
