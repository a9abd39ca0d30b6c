r"""Early stopping: watch the validation error, and stop when it no longer falls.

Source: notes "Deep Learning", section 8.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtheory.core.checks import nonnegative_number
from torchtheory.core.errors import InvalidInput


@dataclass(slots=True)
class EarlyStopping:
    r"""Stop after `patience` checks in a row without improvement.

    A check *improves* when its value lies more than `min_improvement` below the best so far.
    NaN never improves.

    Attributes:
        patience: how many checks without improvement are endured, at least 1.
        min_improvement: what a value must gain on the best to count, at least 0.
        best: the best value so far.
        best_check: the number of the check (from 1) that gave it; 0 before the first.
        checks: how many values were seen.

    >>> stopping = EarlyStopping(patience=2)
    >>> [stopping.update(error) for error in (5, 4, 3, 3, 3)]
    [False, False, False, False, True]
    >>> stopping.best, stopping.best_check, stopping.checks
    (3, 3, 5)
    """

    patience: int
    min_improvement: float = 0.0
    best: float = math.inf
    best_check: int = 0
    checks: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.patience, bool) or not isinstance(self.patience, int):
            raise InvalidInput(f"patience is a whole number of checks, not {self.patience!r}")
        if self.patience < 1:
            raise InvalidInput(f"patience must be at least 1, not {self.patience}")
        nonnegative_number(self.min_improvement, "min_improvement")

    def update(self, value: float) -> bool:
        """Take the value of a check; True when it is time to stop."""
        self.checks += 1
        if value < self.best - self.min_improvement:
            self.best, self.best_check = value, self.checks
        return self.checks - self.best_check >= self.patience

    @property
    def improved(self) -> bool:
        """Whether the last check was the best so far."""
        return self.checks > 0 and self.best_check == self.checks
