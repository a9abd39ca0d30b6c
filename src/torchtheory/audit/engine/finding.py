"""Audit findings: what theory says about a problem, registered by name.

A finding is a function of a `Problem` and the
`FindingRecord` it fills:

```python
@finding("largest-weight", area="capacity", title="Largest weight", cost="parameters")
def largest_weight(problem: Problem, record: FindingRecord) -> None:
    largest = max(float(p.abs().max()) for p in problem.parameters.values())
    size = record.quantity("largest-weight", "largest weight", largest)
    if largest > 1e4:
        record.defect(
            f"A weight is as large as {largest:.2g}.", number=size, usual=below(100),
            action="Use weight decay.",
        )
```

Where a hypothesis of `needs` fails, the engine records *not applicable* with its reason. A finding
that runs out of time is stopped and says that, and nothing else; what it recorded before stays.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from torchtheory.core import catalogue
from torchtheory.core.budget import stopped_after, within
from torchtheory.core.checks import as_function, described
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import InvalidInput, ModelRaised, OutOfTime, TorchTheoryError
from torchtheory.core.estimate import Estimate
from torchtheory.core.figure import LateFigure
from torchtheory.core.foreign_text import printable
from torchtheory.core.intervals import Interval
from torchtheory.core.naming import check_name, same_function
from torchtheory.core.quantity import Quantity
from torchtheory.core.random import as_generator
from torchtheory.core.record import Record
from torchtheory.core.usual import Usual
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import size_words
from torchtheory.report.results import quantity_words
from torchtheory.report.wording import counted, tally

#: What a finding needs to do, cheapest first; findings run in this order.
Cost = Literal["parameters", "forward", "gradient", "curvature", "training"]
COSTS: tuple[Cost, ...] = ("parameters", "forward", "gradient", "curvature", "training")

#: How the time is divided among findings that could use more of it.
WEIGHTS: dict[Cost, float] = {
    "parameters": 1.0,
    "forward": 2.0,
    "gradient": 4.0,
    "curvature": 8.0,
    "training": 16.0,
}

#: A hypothesis looks at the problem and returns why it fails, or None when it is met.
Hypothesis = Callable[[Problem], str | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A registered finding."""

    name: str
    area: Area
    title: str
    cost: Cost
    covers: tuple[str, ...]
    needs: tuple[Hypothesis, ...]
    whole: bool
    function: Callable[[Problem, FindingRecord], None]


@dataclass(slots=True)
class FindingRecord(Record):
    """What a finding fills.

    Attributes:
        name, title, area, cost: of the finding.
        confidence: of every statistical statement.
        generator: source of randomness.
        headlines: what it says, in a sentence each.
        assessments: what it says about areas, for the first screen of the report.
        advice: what else to do, in sentences.
        quantities: the numbers it found, with their errors.
        complete: whether it came to its end.
        seconds: how long it took.
    """

    name: str = field(kw_only=True)
    title: str = field(kw_only=True)
    area: Area = field(kw_only=True)
    cost: Cost = field(kw_only=True)
    confidence: float = 0.95
    generator: torch.Generator = field(default_factory=torch.Generator)
    headlines: list[str] = field(default_factory=list)
    assessments: list[Assessment] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    complete: bool = True
    seconds: float = 0.0

    @property
    def section(self) -> str:
        """The report's heading it stands under."""
        return self.area.question

    @property
    def warnings(self) -> list[str]:
        """The defects it found, in sentences."""
        return [a.sentence for a in self.assessments if a.state is State.DEFECT]

    @property
    def sampled(self) -> bool:
        """Whether more time would make it better: it ran out of it, or used a part of the data."""
        return (
            not self.complete
            or any(q.sampled for q in self.quantities)
            or any(c.undone for c in self.claims)
        )

    @property
    def says_something(self) -> bool:
        """Whether it found anything but that it does not apply."""
        held = any(c.verdict is not Verdict.NOT_APPLICABLE for c in self.claims)
        return held or bool(self.quantities or self.assessments or self.headlines or self.tables)

    def __repr__(self) -> str:
        """Title, what it says, its numbers, and what its claims came to."""
        lines = [self.title + ("" if self.complete else " (not complete: out of time)")]
        lines += [f"  {a!r}" for a in self.assessments]
        assessed = {a.sentence for a in self.assessments}
        lines += [f"  {s}" for s in self.headlines if s not in assessed]
        lines += [f"  {q.label}: {quantity_words(q)}" for q in self.quantities]
        about = [c for c in self.claims if not c.self_check]
        if about:
            lines.append(f"  {counted(len(about), 'claim')}: {tally(about)}")
        return printable("\n".join(lines))

    def headline(self, sentence: str) -> None:
        """Say what was found in a sentence, at the top of the finding."""
        self.headlines.append(sentence)

    def defect(
        self,
        sentence: str,
        *,
        number: Quantity | None = None,
        usual: Usual | None = None,
        action: str = "",
        figure: str = "",
        area: Area | None = None,
    ) -> None:
        """Say that something is wrong with the network or its data, and what to do about it.

        Args:
            sentence: what is wrong, with its number, for a reader who knows no theory.
            number: the quantity that decided; none for what is so or is not.
            usual: what is usual of it, such as `below(0.05)`, wherever there is a number. Unless
                the whole range of the number lies outside of these limits, the state becomes
                *open*, whatever the sentence says.
            action: what to do.
            figure: name of this finding's figure that shows it.
            area: what it is about; the finding's own unless given.
        """
        self._assess(State.DEFECT, sentence, number, usual, action, figure, area)

    def look(
        self,
        sentence: str,
        *,
        number: Quantity | None = None,
        usual: Usual | None = None,
        action: str = "",
        figure: str = "",
        area: Area | None = None,
    ) -> None:
        """Say that something is worth a look, though it need not be wrong; see `defect`."""
        self._assess(State.LOOK, sentence, number, usual, action, figure, area)

    def fine(
        self,
        sentence: str,
        *,
        number: Quantity | None = None,
        usual: Usual | None = None,
        figure: str = "",
        area: Area | None = None,
    ) -> None:
        """Say that an area is as it should be, and by which number; see `defect`.

        Unless the whole range of the number lies within the limits of `usual`, the state is *open*.
        """
        self._assess(State.FINE, sentence, number, usual, "", figure, area)

    def open(
        self, number: Quantity, usual: Usual, *, figure: str = "", area: Area | None = None
    ) -> None:
        """Say that a number may be usual or not, wherever in its range it lies; see `defect`.

        What is said, and what would decide it, follows from the number and its limits.
        """
        sentence = (
            f"{number.label[:1].upper()}{number.label[1:]} is {size_words(number)}, and usual is "
            f"{usual}: whether it is usual cannot be told."
        )
        where = self.area if area is None else Area(area)
        action = _would_decide(number, usual)
        self.assessments.append(
            Assessment(where, State.OPEN, sentence, number, usual, action, figure, self.name)
        )

    def _assess(
        self,
        state: State,
        sentence: str,
        number: Quantity | None,
        usual: Usual | None,
        action: str,
        figure: str,
        area: Area | None,
    ) -> None:
        if (number is None) != (usual is None):
            given = "what is usual" if number is None else f"the number {number.name!r}"
            raise InvalidInput(
                f"{given} was given alone: a number and what is usual of it come together"
            )
        if number is not None and usual is not None:
            if not isinstance(usual, Usual):
                raise InvalidInput(
                    f"what is usual of {number.name!r} needs limits, as below(0.05) has: not "
                    f"{described(usual)}"
                )
            sure = usual.holds_all_of if state is State.FINE else usual.holds_none_of
            if not sure(number):
                self.open(number, usual, figure=figure, area=area)
                return
        where = self.area if area is None else Area(area)
        self.assessments.append(
            Assessment(where, state, sentence, number, usual or "", action, figure, self.name)
        )

    def figure(
        self,
        name: str,
        plot: Callable[[Any], object],
        *,
        caption: str = "",
        grid: tuple[int, int] = (1, 1),
        size: tuple[float, float] | None = None,
    ) -> None:
        """Record a figure; it is drawn when it is looked at, and takes none of the time there is.

        `plot` must not change what it draws; see `torchtheory.core.figure.draw`.
        """
        self._refuse_second(name, [f.name for f in self.figures], "figure")
        self.figures.append(LateFigure(name, plot, caption=caption, grid=grid, size=size))

    def not_done(self, id: str | Sequence[str], statement: str, reason: str) -> Claim:
        """Record that there was no time or memory to check a statement; more would help."""
        self.complete = False
        return Record.not_done(self, id, statement, reason)

    def not_applicable(
        self,
        id: str | Sequence[str],
        statement: str,
        reason: str,
        *,
        samples: Samples | None = None,
    ) -> Claim:
        """Record that a statement does not apply, and which hypothesis fails.

        Args:
            samples: those that the reason was seen on, where it is one about the data. Seen on a
                part of them, it is not known of all: the statement is then not done.
        """
        if samples is None or len(samples) >= samples.population:
            return Record.not_applicable(self, id, statement, reason)
        # the finding itself has come to its end, on the samples it was given
        return Record.not_done(
            self,
            id,
            statement,
            f"on {len(samples):,} of {samples.population:,} samples {reason}; of all of them that "
            "is not known",
        )

    def advise(self, sentence: str) -> None:
        """Say what to do, where theory supports a sentence and nothing is wrong."""
        self.advice.append(sentence)

    def quantity(
        self,
        name: str,
        label: str,
        value: float | Interval | Estimate,
        *,
        error: float | None = None,
        low: float | None = None,
        high: float | None = None,
        basis: str = "",
        unit: str = "",
        samples: Samples | None = None,
    ) -> Quantity:
        """Record a number with its error; two audits are compared by these.

        The range covers everything that made the number. One that was measured on a part of the
        samples is about all of them, so it needs a range; a number that is none is not recorded,
        and a note says so.

        Args:
            name: lower-case words and hyphens.
            label: what it is, for people.
            value: the number; an interval or an estimate brings its own error.
            error: half-width of its range.
            low, high: the range itself; the value where neither is given.
            basis: what the range rests on, in words; needed with `error`, `low` or `high`.
            unit: what it is counted in.
            samples: those it was measured on.
        """
        check_name(name, "quantity")
        if name in [q.name for q in self.quantities]:
            raise InvalidInput(f"there is already a quantity named {name!r}")
        if isinstance(value, Interval):
            number, low, high = value.estimate, value.low, value.high
            basis = basis or f"{value.confidence:.4g} {value.test}"
        elif isinstance(value, Estimate):
            number, error = value.value, 2 * value.standard_error
            basis = basis or f"two standard errors, {value.samples} samples"
        else:
            number = float(value)
        if error is not None:
            low, high = number - error, number + error
        if not basis and (low is not None or high is not None):
            raise InvalidInput(f"say what the range of {name!r} rests on: basis=")
        used, population = (0, 0) if samples is None else (len(samples), samples.population)
        if low is None and high is None and used < population:
            raise InvalidInput(
                f"{name!r} was measured on {used} of {population} samples, so it needs a range"
            )
        made = Quantity(
            name,
            label,
            number,
            number if low is None else float(low),
            number if high is None else float(high),
            basis or "exact",
            unit,
            used,
            population,
        )
        if math.isnan(number) or math.isnan(made.low) or math.isnan(made.high):
            self.note(f"Not a number, so not listed: {label}.")
        else:
            self.quantities.append(made)
        return made

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "area": str(self.area),
            "section": self.section,
            "cost": self.cost,
            "seconds": round(self.seconds, 3),
            "complete": self.complete,
            "headlines": list(self.headlines),
            "assessments": [a.to_json() for a in self.assessments],
            "warnings": self.warnings,
            "advice": list(self.advice),
            "quantities": [q.to_json() for q in self.quantities],
            **self.content_json(),
            "figures": [
                {**f.to_json(), "file": f"figures/{self.name}-{f.name}.png"} for f in self.figures
            ],
        }


_FINDINGS: dict[str, Finding] = {}


def finding(
    name: str,
    *,
    area: str,
    title: str,
    cost: Cost,
    covers: Sequence[str] = (),
    needs: Sequence[Hypothesis] = (),
    whole: bool = False,
) -> Callable[[Callable[[Problem, FindingRecord], None]], Callable[[Problem, FindingRecord], None]]:
    """Register a finding.

    Args:
        name: lower-case words and hyphens.
        area: what it is about, one of `torchtheory.core.diagnosis.Area`.
        title: one line for people.
        cost: what it needs to do, one of `COSTS`.
        covers: catalogue ids it speaks about.
        needs: hypotheses on the problem.
        whole: whether it gets all samples that are kept, because it asks for nothing but the
            outputs there, which are known. Others get as many as a gradient is cheap for.
    """
    check_name(name, "finding")
    if area not in list(Area):
        raise InvalidInput(f"area must be one of {', '.join(Area)}, not {area!r}")
    if cost not in COSTS:
        raise InvalidInput(f"cost must be one of {', '.join(COSTS)}, not {cost!r}")
    if isinstance(covers, str):
        raise InvalidInput(
            f"covers must list catalogue ids such as ['N-08'], not {described(covers)}"
        )
    ids = tuple(catalogue.entry(i).id for i in covers)
    for need in needs:
        as_function(need, f"what finding {name} needs")

    def register(
        function: Callable[[Problem, FindingRecord], None],
    ) -> Callable[[Problem, FindingRecord], None]:
        as_function(function, f"finding {name}")
        if name in _FINDINGS and not same_function(_FINDINGS[name].function, function):
            raise InvalidInput(f"two findings are named {name!r}")
        _FINDINGS[name] = Finding(name, Area(area), title, cost, ids, tuple(needs), whole, function)
        return function

    return register


def all_findings() -> Mapping[str, Finding]:
    """Every finding, those of torchtheory and those registered so far, in the report's order."""
    package = importlib.import_module("torchtheory.audit.findings")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)

    def place(item: tuple[str, Finding]) -> tuple[int, int]:
        return list(Area).index(item[1].area), COSTS.index(item[1].cost)

    return dict(sorted(_FINDINGS.items(), key=place))


def examine(
    found: Finding,
    problem: Problem,
    *,
    confidence: float,
    seed: int,
    seconds: float = math.inf,
    at_most: float | None = None,
) -> FindingRecord:
    """Run one finding; whatever goes wrong inside it becomes a reason, never an exception.

    Args:
        seconds: time it plans with; one that refines an estimate asks
            `torchtheory.core.budget.time_left`.
        at_most: time after which it is stopped; the same unless told.
    """
    record = FindingRecord(
        name=found.name,
        title=found.title,
        area=found.area,
        cost=found.cost,
        confidence=confidence,
        generator=as_generator(seed),
    )
    start = time.perf_counter()
    last = seconds if at_most is None else max(seconds, at_most)
    gradients = torch.is_grad_enabled()
    late = reason = None
    try:
        with within(seconds, last), stopped_after(last):
            reason = next((r for need in found.needs if (r := need(problem)) is not None), None)
            if reason is None:
                found.function(problem, record)
    except OutOfTime:
        late = _late(time.perf_counter() - start, last)
    except ModelRaised as error:
        reason = _known_cause(error.raised) or str(error)
    except TorchTheoryError as error:
        reason = str(error)
    except (Exception, SystemExit) as error:
        reason = _known_cause(error) or _in_words(error)
    finally:
        torch.set_grad_enabled(gradients)  # what was stopped may not have put it back
    statement = rf"\text{{{_words(found.title)}}}"
    if late is not None:
        record.not_done(found.covers, statement, late)
    elif reason is not None:
        record.not_applicable(found.covers, statement, reason)
    record.seconds = time.perf_counter() - start
    return record


def _would_decide(number: Quantity, usual: Usual) -> str:
    """How many samples, or what else, would put a range on one side of what is usual."""
    needed = usual.samples_to_decide(number)
    if needed is None:
        more = "More samples" if number.used and not number.sampled else "A larger budget"
        return f"{more} may decide it."
    needed = max(needed, number.used + 1)
    if number.sampled and needed <= number.population:
        there = f"{needed:,} of the {number.population:,} samples"
        return f"About {there} would decide it: give a larger budget."
    return f"About {needed:,} samples would decide it, and {number.used:,} were looked at."


def _late(seconds: float, at_most: float) -> str:
    if at_most < 0.05:
        return "no time was left for it; give a larger budget"
    return f"stopped after {seconds:.2g} s for want of time; give a larger budget"


def _in_words(error: BaseException) -> str:
    """Why a finding could not be made, of an error that nobody turned into a sentence before."""
    sentence = " ".join(str(error).split())[:300]
    return f"could not be computed: {type(error).__name__}: {sentence}"


def _known_cause(error: BaseException) -> str | None:
    """What torch means by an error, where its own words are about something else."""
    sentence = " ".join(str(error).split())[:300]
    if isinstance(error, NotImplementedError) and "derivative" in sentence:
        return f"torch has no derivative of a function that the model uses: {sentence}"
    if "modified by an inplace operation" in sentence:
        return (
            "the model cannot be differentiated: it writes in place to what a derivative of an "
            "earlier layer needs"
        )
    return None


def _words(title: str) -> str:
    return title.replace("\\", "").replace("{", "(").replace("}", ")")
