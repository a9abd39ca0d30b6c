"""What a report needs to know of a lab run or an audit, whatever class it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area, Assessment
from torchtheory.core.figure import Figure
from torchtheory.core.quantity import Quantity
from torchtheory.core.record import Cell, Table
from torchtheory.core.statement import CounterExample
from torchtheory.core.teaching import Teaching
from torchtheory.report.numbers import number_text, number_words


class Content(Protocol):
    """Anything that collected results, as `torchtheory.core.record.Record` does."""

    @property
    def claims(self) -> Sequence[Claim]: ...
    @property
    def errata(self) -> Sequence[CounterExample]: ...
    @property
    def tables(self) -> Sequence[Table]: ...
    @property
    def figures(self) -> Sequence[Figure]: ...
    @property
    def notes(self) -> Sequence[str]: ...


class ParameterText(Protocol):
    """What a page says of a parameter: its value in either preset, what it takes, its meaning."""

    @property
    def name(self) -> str: ...
    @property
    def quick(self) -> Any: ...
    @property
    def full(self) -> Any: ...
    @property
    def kind(self) -> str: ...
    @property
    def range(self) -> str: ...
    @property
    def meaning(self) -> str: ...


class LabText(Protocol):
    """What a page says of an experiment, and how a command finds it."""

    @property
    def name(self) -> str: ...
    @property
    def room(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def teaching(self) -> Teaching: ...
    @property
    def covers(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> Mapping[str, ParameterText]: ...
    @property
    def address(self) -> str | None: ...


class LabRun(Content, Protocol):
    """A run of an experiment: its results, and why it fails if it does."""

    @property
    def lab(self) -> LabText: ...
    @property
    def preset(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def passed(self) -> bool: ...
    @property
    def applies(self) -> bool: ...


class AuditFinding(Content, Protocol):
    """One finding of an audit: results under a title."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def area(self) -> Area: ...
    @property
    def headlines(self) -> Sequence[str]: ...
    @property
    def assessments(self) -> Sequence[Assessment]: ...
    @property
    def advice(self) -> Sequence[str]: ...
    @property
    def quantities(self) -> Sequence[Quantity]: ...
    @property
    def complete(self) -> bool: ...
    @property
    def seconds(self) -> float: ...


class AuditResult(Protocol):
    """An audit: the short answer, what was examined, the findings in order, labs by entry."""

    @property
    def title(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def diagnosis(self) -> Sequence[Assessment]: ...
    @property
    def pictures(self) -> Sequence[tuple[str, Figure]]: ...
    @property
    def facts(self) -> Mapping[str, str]: ...
    @property
    def findings(self) -> Sequence[AuditFinding]: ...
    @property
    def mostly_undone(self) -> bool: ...
    @property
    def labs(self) -> Mapping[str, Sequence[str]]: ...
    @property
    def seconds(self) -> float: ...


def quantity_table(quantities: Sequence[Quantity]) -> Table:
    """A finding's numbers with their errors, as a table.

    >>> one = Quantity("share", "share of dead units", 0.25, 0.2, 0.3, "two standard errors")
    >>> quantity_table([one]).rows
    (('share of dead units', 0.25, '[0.2, 0.3]', 'two standard errors'),)
    """
    columns: dict[str, list[Cell]] = {
        "quantity": [f"{q.label} ({q.unit})" if q.unit else q.label for q in quantities],
        "value": [q.value for q in quantities],
    }
    if not all(q.exact for q in quantities):
        columns["range"] = [
            "–" if q.exact else f"[{number_text(q.low)}, {number_text(q.high)}]" for q in quantities
        ]
        columns["the range is"] = [q.basis for q in quantities]
    if any(q.sampled for q in quantities):
        columns["measured on"] = [sample_words(q) or "–" for q in quantities]
    rows = tuple(zip(*columns.values(), strict=True))
    return Table("numbers", tuple(columns), rows)


def sample_words(quantity: Quantity) -> str:
    """On how many samples a number was measured; empty where no samples made it.

    >>> sample_words(Quantity("a", "a", 1.0, 0.0, 2.0, "jackknife", used=512, population=3088))
    '512 of 3,088 samples'
    """
    if not quantity.population:
        return ""
    if not quantity.sampled:
        return f"all {quantity.population:,} samples"
    return f"{quantity.used:,} of {quantity.population:,} samples"


def quantity_words(quantity: Quantity) -> str:
    """A number with its range and its samples, in a line a table can hold.

    The range is left out where it is too narrow to be seen.

    >>> quantity_words(Quantity("a", "a", 0.25, 0.2, 0.3, "jackknife", used=512, population=3088))
    '0.25 (0.2 to 0.3), from 512 of 3,088 samples'
    >>> quantity_words(Quantity("a", "a", 8.0, 8.0, 8.0, "exact", "units"))
    '8 units'
    """
    value, low, high = map(number_words, (quantity.value, quantity.low, quantity.high))
    said = f"{value} {quantity.unit}".strip()
    if not low == value == high:
        said += f" ({low} to {high})"
    return f"{said}, from {sample_words(quantity)}" if quantity.sampled else said
