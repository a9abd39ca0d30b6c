"""A cause of a larger error on new data, with what speaks for it."""

from __future__ import annotations

from dataclasses import dataclass

from torchtheory.core.intervals import Interval


@dataclass(frozen=True, slots=True)
class Cause:
    """A rival of over-fitting.

    Attributes:
        kind: in a word, such as `scale`, `orientation`, `names`, `drift`.
        words: what is the matter, a clause.
        evidence: what was measured, a clause.
        action: what to do about it.
        saved: error that it accounts for, with its range.
        explains: whether, beyond doubt, no more than half of the gap is left without it.
        left: mean error that is left where it is undone, if it can be undone.
    """

    kind: str
    words: str
    evidence: str
    action: str
    saved: Interval
    explains: bool
    left: Interval | None = None

    @property
    def sentence(self) -> str:
        """Both clauses."""
        return f"{self.words}: {self.evidence}"
