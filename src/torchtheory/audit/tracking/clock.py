"""How long measuring takes, of the time that passes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class MeasuringClock:
    """A clock for the whole time and one for the measurements; both run from the start.

    Attributes:
        costs: what each quantity took when it was last measured.
        served: what each took all in all.
    """

    def __init__(self) -> None:
        self._begun = self._since = time.perf_counter()
        self._before = 0.0
        self._running = True
        self.costs: dict[str, float] = {}
        self.served: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since tracking began."""
        return time.perf_counter() - self._begun

    @property
    def own(self) -> float:
        """Seconds of these that went into measuring."""
        return self._before + (time.perf_counter() - self._since if self._running else 0.0)

    def start(self) -> None:
        """A measurement begins."""
        self._since, self._running = time.perf_counter(), True

    def stop(self) -> None:
        """A measurement ends."""
        self._before, self._running = self.own, False

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count what is done inside as the cost of one quantity."""
        begun = time.perf_counter()
        yield
        self.costs[name] = time.perf_counter() - begun
        self.served[name] = self.served.get(name, 0.0) + self.costs[name]
