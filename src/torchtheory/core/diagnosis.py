"""What an audit comes to in an area a reader asks about: fine, open, worth a look, a defect.

A finding *assesses*: it says in which state an area is, by which number, what is usual, and what to
do. Where the range of that number lies in part within what is usual and in part outside of it,
neither can be said, and the state is *open*. The diagnosis of an area is the most serious thing
that was said about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torchtheory.core.quantity import Quantity


class Area(StrEnum):
    """What a reader wants to know of a network, in the order of the report."""

    DATA = "data"
    FIT = "fit"
    GENERALIZATION = "generalization"
    CALIBRATION = "calibration"
    TRAINING = "training"
    SIGNALS = "signals"
    CAPACITY = "capacity"
    ROBUSTNESS = "robustness"

    @property
    def question(self) -> str:
        """How the report names it."""
        return _NAMES[self]


_NAMES = {
    Area.DATA: "The data",
    Area.FIT: "Fits the data",
    Area.GENERALIZATION: "Will generalize",
    Area.CALIBRATION: "Calibrated",
    Area.TRAINING: "Trained to the end, and stably",
    Area.SIGNALS: "Signals and gradients",
    Area.CAPACITY: "Uses its capacity",
    Area.ROBUSTNESS: "Robust",
}


class State(StrEnum):
    """How serious it is, the most serious first."""

    DEFECT = "defect"
    LOOK = "look here"
    OPEN = "open"
    FINE = "fine"
    UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a finding says about an area.

    Attributes:
        area: what it is about.
        state: how serious it is.
        sentence: what was found, for a reader who knows no theory.
        number: the quantity that decided, if one did.
        usual: what is usual of that number, such as `"below 0.05"`.
        action: what to do, one sentence; empty where nothing is to be done.
        figure: name of the finding's figure that shows it, if one does.
        finding: name of the finding.
    """

    area: Area
    state: State
    sentence: str
    number: Quantity | None = None
    usual: str = ""
    action: str = ""
    figure: str = ""
    finding: str = ""

    def __repr__(self) -> str:
        """State, area, sentence and action, as a person would say them."""
        said = f"{self.state} ({self.area.question}): {self.sentence}"
        return f"{said} {self.action}".strip()

    def to_json(self) -> dict[str, Any]:
        words = ("area", "state", "sentence", "usual", "action", "figure", "finding")
        return {
            **{k: str(getattr(self, k)) for k in words},
            "number": None if self.number is None else self.number.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Assessment:
        """Inverse of `to_json`."""
        number = data["number"]
        return cls(
            **{
                **data,
                "area": Area(data["area"]),
                "state": State(data["state"]),
                "number": None if number is None else Quantity.from_json(number),
            }
        )


def most_serious(said: Iterable[Assessment], area: Area) -> Assessment | None:
    """What decides about an area: the first of the most serious things said about it.

    >>> fine = Assessment(Area.FIT, State.FINE, "It errs on 1 % of the training data.")
    >>> bad = Assessment(Area.FIT, State.DEFECT, "Half of the units are dead.")
    >>> most_serious([fine, bad], Area.FIT).sentence
    'Half of the units are dead.'
    """
    order = list(State)
    found = [a for a in said if a.area is area]
    return min(found, key=lambda a: order.index(a.state)) if found else None


def diagnose(said: Sequence[Assessment], silent: dict[Area, str]) -> list[Assessment]:
    """One assessment for each area; `silent` says why nothing was measured where nothing was."""
    return [
        most_serious(said, area)
        or Assessment(
            area, State.UNMEASURED, silent.get(area, "Nothing was measured about this area.")
        )
        for area in Area
    ]
