"""The rows of a comparison of two audits: a number, a claim, a warning, a finding of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torchtheory.audit.comparison.recorded import Made, Tally
from torchtheory.core.claim import Claim, Verdict, json_number
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.quantity import Quantity


class Change(StrEnum):
    """What became of a number."""

    CHANGED = "changed"
    DIFFERENT = "different"
    WITHIN = "within the error"
    EQUAL = "equal"
    INCOMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """A number both audits have.

    Attributes:
        finding, title: name and title of the finding it belongs to.
        first, second: the number in each audit.
        change: what became of it.
        criterion: how that was decided, in words.
        p_value: of the test, where one was made.
        tallies: the counts, where the number is an error rate and its table holds them.
    """

    finding: str
    title: str
    first: Quantity
    second: Quantity
    change: Change
    criterion: str
    p_value: float | None = None
    tallies: tuple[Tally, Tally] | None = None

    @property
    def name(self) -> str:
        return self.second.name

    @property
    def label(self) -> str:
        return self.second.label

    @property
    def beyond_error(self) -> bool:
        return self.change in (Change.CHANGED, Change.DIFFERENT)

    @property
    def difference(self) -> float:
        """The second minus the first; zero where both are the same infinity."""
        if self.first.value == self.second.value:
            return 0.0
        return self.second.value - self.first.value

    @property
    def ratio(self) -> float | None:
        """The second over the first, where both are finite numbers of the same sign."""
        a, b = self.first.value, self.second.value
        if not (math.isfinite(a) and math.isfinite(b)) or a * b <= 0 or a == 0:
            return None
        ratio = b / a
        return ratio if 0 < ratio < math.inf else None

    @property
    def ratio_range(self) -> tuple[float, float] | None:
        """Where the ratio may lie; None where a range reaches zero or has no end."""
        a, b = self.first, self.second
        ends = (a.low, a.high, b.low, b.high)
        if self.ratio is None or not all(map(math.isfinite, ends)):
            return None
        if not (all(e > 0 for e in ends) or all(e < 0 for e in ends)):
            return None
        quotients = [q / p for q in (b.low, b.high) for p in (a.low, a.high)]
        return min(quotients), max(quotients)

    @property
    def sure(self) -> float:
        r"""How large the change is at least, from 0 to 1.

        $|p - q| / (|p| + |q|)$ of the ends $p, q$ of the two ranges that are nearest
        to each other; 0 where the ranges have a number in common.
        """
        if not self.beyond_error:
            return 0.0
        a, b = sorted((self.first, self.second), key=lambda q: q.value)
        if a.high >= b.low:  # a test tells apart what the ranges do not
            return relative_difference(self.first.value, self.second.value) / 2
        return relative_difference(a.high, b.low)

    def to_json(self) -> dict[str, Any]:
        span = self.ratio_range
        return {
            "finding": self.finding,
            "name": self.name,
            "label": self.label,
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "difference": json_number(self.difference),
            "ratio": self.ratio,
            "ratio_range": None if span is None else [json_number(r) for r in span],
            "change": str(self.change),
            "criterion": self.criterion,
            "p_value": self.p_value,
        }


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """A claim whose verdict is another, or that only one of two findings states."""

    finding: str
    title: str
    first: Claim | None
    second: Claim | None

    @property
    def claim(self) -> Claim:
        made = self.second or self.first
        assert made is not None
        return made

    @property
    def worse(self) -> bool:
        """Whether what held, or was not stated, is violated now, or a promise became vacuous."""
        if self.second is None:
            return False
        if self.second.verdict is Verdict.VIOLATED:
            return True
        return (
            self.second.verdict is Verdict.VACUOUS
            and self.first is not None
            and self.first.verdict is Verdict.HOLDS
        )

    def to_json(self) -> dict[str, Any]:
        def side(claim: Claim | None) -> dict[str, Any] | None:
            if claim is None:
                return None
            return {
                "verdict": str(claim.verdict),
                "promised": json_number(claim.promised),
                "relation": claim.relation,
                "measured": json_number(claim.measured),
                "reason": claim.reason,
            }

        return {
            "finding": self.finding,
            "id": self.claim.id,
            "statement": self.claim.statement,
            "first": side(self.first),
            "second": side(self.second),
            "worse": self.worse,
        }


#: How serious the states of an area are; that it is open or was not measured says nothing.
_SERIOUS = {State.FINE: 0, State.LOOK: 1, State.DEFECT: 2}


@dataclass(frozen=True, slots=True)
class AreaChange:
    """What each audit says about an area."""

    area: Area
    first: Assessment
    second: Assessment

    @property
    def turn(self) -> str:
        """`worse`, `better`, `same`, or `unknown` where only one of the two measured it."""
        one, two = self.first.state, self.second.state
        if one is two:
            return "same"
        if one not in _SERIOUS or two not in _SERIOUS:
            return "unknown"
        return "worse" if _SERIOUS[two] > _SERIOUS[one] else "better"

    def to_json(self) -> dict[str, Any]:
        return {
            "area": str(self.area),
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "turn": self.turn,
        }


@dataclass(frozen=True, slots=True)
class WarningChange:
    """A defect, or something worth a look, of one audit or of both.

    Attributes:
        finding, title: name and title of the finding it belongs to.
        first, second: the sentence in each audit, or None.
        examined: whether the finding is whole in both; if not, nothing is known of the other.
        action: what to do about it, where it is there still.
    """

    finding: str
    title: str
    first: str | None
    second: str | None
    examined: bool
    action: str = ""

    @property
    def state(self) -> str:
        """`new`, `gone`, `remains`, or that only one of the two was examined."""
        if self.first is not None and self.second is not None:
            return "remains"
        if not self.examined:
            return f"examined only in the {'second' if self.first is None else 'first'}"
        return "new" if self.first is None else "gone"

    @property
    def sentence(self) -> str:
        return self.second or self.first or ""

    def to_json(self) -> dict[str, Any]:
        return {
            "finding": self.finding,
            "first": self.first,
            "second": self.second,
            "state": self.state,
            "action": self.action,
        }


@dataclass(frozen=True, slots=True)
class FindingGap:
    """A finding that one audit made and the other did not, or not to its end.

    Attributes:
        finding, title: its name and title.
        first, second: how far each audit came with it.
        reason: why not further, in a sentence.
    """

    finding: str
    title: str
    first: Made
    second: Made
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "finding": self.finding,
            "first": self.first,
            "second": self.second,
            "reason": self.reason,
        }


def relative_difference(a: float, b: float) -> float:
    """The difference over the sum of the sizes: 0 for equal numbers, 1 for opposite signs."""
    if a == b:
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return 1.0
    return abs(a / 2 - b / 2) / (abs(a) / 2 + abs(b) / 2)
