"""Audit findings: what theory says about a problem, registered by name.

A finding is a function of a :class:`~torchtheory.core.problem.Problem` and the
:class:`FindingRecord` it fills::

    @finding("dead-units", section="Capacity", title="Units that never fire",
             cost="forward", needs=[deterministic])
    def dead_units(problem: Problem, record: FindingRecord) -> None:
        ...

Where a hypothesis of ``needs`` fails, the engine records *not applicable* with its reason.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from torchtheory.core import catalogue
from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.core.figure import check_name
from torchtheory.core.lab import same_function
from torchtheory.core.problem import Problem
from torchtheory.core.random import as_generator
from torchtheory.core.record import Record

#: What a finding needs to do, cheapest first; findings run in this order.
Cost = Literal["parameters", "forward", "gradient", "curvature"]
COSTS: tuple[Cost, ...] = ("parameters", "forward", "gradient", "curvature")

#: The report's headings, in its order.
SECTIONS = (
    "Capacity",
    "Signal propagation",
    "Curvature",
    "Kernel",
    "Generalization",
    "Margins",
    "Symmetries and invariances",
)

#: A hypothesis looks at the problem and returns why it fails, or None when it is met.
Hypothesis = Callable[[Problem], str | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A registered finding."""

    name: str
    section: str
    title: str
    cost: Cost
    covers: tuple[str, ...]
    needs: tuple[Hypothesis, ...]
    function: Callable[[Problem, FindingRecord], None]


@dataclass(slots=True)
class FindingRecord(Record):
    """What a finding fills.

    Attributes:
        name, title, section, cost: of the finding.
        confidence: of every statistical statement.
        generator: source of randomness.
        headlines: sentences for the top of the report.
        seconds: how long it took.
    """

    name: str = field(kw_only=True)
    title: str = field(kw_only=True)
    section: str = field(kw_only=True)
    cost: Cost = field(kw_only=True)
    confidence: float = 0.95
    generator: torch.Generator = field(default_factory=torch.Generator)
    headlines: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def headline(self, sentence: str) -> None:
        """Say something on top of the report."""
        self.headlines.append(sentence)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "section": self.section,
            "cost": self.cost,
            "seconds": round(self.seconds, 3),
            **self.content_json(),
            "figures": [
                {**f.to_json(), "file": f"figures/{self.name}-{f.name}.png"} for f in self.figures
            ],
        }


_FINDINGS: dict[str, Finding] = {}


def finding(
    name: str,
    *,
    section: str,
    title: str,
    cost: Cost,
    covers: Sequence[str] = (),
    needs: Sequence[Hypothesis] = (),
) -> Callable[[Callable[[Problem, FindingRecord], None]], Callable[[Problem, FindingRecord], None]]:
    """Register a finding.

    Args:
        name: lower-case words and hyphens.
        section: heading of the report it stands under; one of :data:`SECTIONS` or a new one.
        title: one line for people.
        cost: what it needs to do, one of :data:`COSTS`.
        covers: catalogue ids it speaks about.
        needs: hypotheses on the problem.
    """
    check_name(name, "finding")
    if cost not in COSTS:
        raise InvalidInput(f"cost must be one of {', '.join(COSTS)}, not {cost!r}")
    ids = tuple(catalogue.entry(i).id for i in covers)

    def register(
        function: Callable[[Problem, FindingRecord], None],
    ) -> Callable[[Problem, FindingRecord], None]:
        if name in _FINDINGS and not same_function(_FINDINGS[name].function, function):
            raise InvalidInput(f"two findings are named {name!r}")
        _FINDINGS[name] = Finding(name, section, title, cost, ids, tuple(needs), function)
        return function

    return register


def findings() -> Mapping[str, Finding]:
    """Every finding, those of torchtheory and those registered so far, in the report's order."""
    package = importlib.import_module("torchtheory.audit")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)

    def place(item: tuple[str, Finding]) -> tuple[int, int]:
        section, cost = item[1].section, item[1].cost
        return SECTIONS.index(section) if section in SECTIONS else len(SECTIONS), COSTS.index(cost)

    return dict(sorted(_FINDINGS.items(), key=place))


def examine(found: Finding, problem: Problem, *, confidence: float, seed: int) -> FindingRecord:
    """Run one finding; whatever goes wrong inside it becomes a reason, never an exception."""
    record = FindingRecord(
        name=found.name,
        title=found.title,
        section=found.section,
        cost=found.cost,
        confidence=confidence,
        generator=as_generator(seed),
    )
    start = time.perf_counter()
    try:
        reason = next((r for need in found.needs if (r := need(problem)) is not None), None)
        if reason is None:
            found.function(problem, record)
    except TorchTheoryError as error:
        reason = str(error)
    except Exception as error:
        sentence = " ".join(str(error).split())[:300]
        reason = f"could not be computed: {type(error).__name__}: {sentence}"
    if reason is not None:
        record.not_applicable(found.covers, rf"\text{{{_words(found.title)}}}", reason)
    record.seconds = time.perf_counter() - start
    return record


def _words(title: str) -> str:
    return title.replace("\\", "").replace("{", "(").replace("}", ")")
