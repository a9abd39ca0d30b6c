"""A number of a finding, with what is known of its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtheory.core.claim import json_number
from torchtheory.core.foreign_text import printable

#: Longest name of a number that a narrow terminal shows in full, as it does all of torchtheory's.
LONGEST_LABEL = 80

#: Relative rounding of a sum in single precision.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number people ask for and two audits can be compared by.

    Attributes:
        name: lower-case words and hyphens, unique in its finding.
        label: what it is, for people.
        value: the number.
        low, high: where the true value may lie; equal to the value for an exact number.
        basis: what `low` and `high` rest on, in words.
        unit: what it is counted in; empty for a pure number.
        used, population: of how many samples it was measured on how many; both 0 for a number that
            no samples made.
    """

    name: str
    label: str
    value: float
    low: float
    high: float
    basis: str
    unit: str = ""
    used: int = 0
    population: int = 0

    def __repr__(self) -> str:
        """Label, value, range, and on how many samples it was measured.

        >>> Quantity("gap", "gap of the errors", 0.25, 0.2, 0.3, "a test", used=8, population=90)
        gap of the errors: 0.25 [0.2, 0.3] (a test), 8 of 90 samples
        """
        said = f"{self.label}: {self.value:.4g} {self.unit}".rstrip()
        if not self.exact:
            said += f" [{self.low:.4g}, {self.high:.4g}] ({self.basis})"
        if self.sampled:
            said += f", {self.used:,} of {self.population:,} samples"
        return printable(said)

    @property
    def sampled(self) -> bool:
        """Whether it was measured on a part of the samples it is about."""
        return self.used < self.population

    @property
    def exact(self) -> bool:
        """Whether there is no error to speak of."""
        return self.low == self.value == self.high

    def differs_from(self, other: Quantity) -> bool:
        """Whether the two ranges have no number in common, rounding aside.

        Counts have no rounding; other numbers are sums that a larger batch adds in another order.

        >>> one, two = (Quantity("a", "a", v, v, v, "exact") for v in (0.7631, 0.7631 + 1e-8))
        >>> one.differs_from(two)
        False
        >>> one, two = (Quantity("a", "a", v, v, v, "exact") for v in (10_000_001, 10_000_002))
        >>> one.differs_from(two)
        True
        """
        gap = max(self.low - other.high, other.low - self.high)
        if not gap > 0:
            return False
        counts = all(q.exact and float(q.value).is_integer() for q in (self, other))
        return counts or gap > ROUNDING * max(abs(self.value), abs(other.value))

    def to_json(self) -> dict[str, Any]:
        numbers = {k: json_number(getattr(self, k)) for k in ("value", "low", "high")}
        words = {k: getattr(self, k) for k in ("name", "label", "basis", "unit")}
        return {**words, **numbers, "used": self.used, "population": self.population}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Quantity:
        """Inverse of `to_json`."""
        return cls(**{**data, **{k: float(data[k]) for k in ("value", "low", "high")}})
