"""What is said of weights alone: values, scale, origin, spectra, tails, units, statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchtheory.audit.bare_weights.spectra import spectra, tails
from torchtheory.audit.bare_weights.survey import Survey
from torchtheory.audit.bare_weights.training_traces import origin, statistics
from torchtheory.audit.bare_weights.values import scale, units, values
from torchtheory.audit.bare_weights.wording import say_unseen
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import Area


@dataclass(frozen=True, slots=True)
class WeightFinding:
    """A finding about weights alone: as those of an audit, of a survey instead of a problem.

    Attributes:
        name, area, title: as those of any finding.
        function: fills the record.
        of_parts: whether it has something to say where only a part of the tensors was looked at.
    """

    name: str
    area: Area
    title: str
    function: Callable[[Survey, FindingRecord], None]
    of_parts: bool = False

    def __call__(self, found: Survey, record: FindingRecord) -> None:
        if found.unseen and not self.of_parts:
            say_unseen(found, record, self.title)
        else:
            self.function(found, record)


FINDINGS: tuple[WeightFinding, ...] = (
    WeightFinding("weight-origin", Area.TRAINING, "Has it been trained?", origin),
    WeightFinding("weight-statistics", Area.TRAINING, "Running statistics", statistics),
    WeightFinding("weight-values", Area.SIGNALS, "The numbers in the weights", values, True),
    WeightFinding("weight-norms", Area.SIGNALS, "Sizes of the layers", scale),
    WeightFinding("weight-spectra", Area.CAPACITY, "Ranks of the layers", spectra),
    WeightFinding("weight-tails", Area.CAPACITY, "Heavy tails of the spectra", tails),
    WeightFinding("weight-units", Area.CAPACITY, "Units without weights, and copies", units),
)
