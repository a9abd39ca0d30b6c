"""What a report needs to know of a lab run or an audit, whatever class it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchtheory.core.claim import Claim
from torchtheory.core.figure import Figure
from torchtheory.core.quantity import Quantity
from torchtheory.core.record import Table
from torchtheory.core.statement import CounterExample
from torchtheory.report.numbers import number_text


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


class LabText(Protocol):
    """What a page says of an experiment."""

    @property
    def name(self) -> str: ...
    @property
    def room(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def description(self) -> str: ...


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


class AuditFinding(Content, Protocol):
    """One finding of an audit: results under a title."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def section(self) -> str: ...
    @property
    def cost(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def quantities(self) -> Sequence[Quantity]: ...
    @property
    def warnings(self) -> Sequence[str]: ...
    @property
    def advice(self) -> Sequence[str]: ...


class AuditResult(Protocol):
    """An audit: what was examined, the short answer, and the findings in order."""

    @property
    def title(self) -> str: ...
    @property
    def summary(self) -> Sequence[str]: ...
    @property
    def facts(self) -> Mapping[str, str]: ...
    @property
    def findings(self) -> Sequence[AuditFinding]: ...
    @property
    def warnings(self) -> Sequence[str]: ...


def by_section(findings: Sequence[AuditFinding]) -> dict[str, list[AuditFinding]]:
    """Findings under their headings, both in the order they came."""
    sections: dict[str, list[AuditFinding]] = {}
    for found in findings:
        sections.setdefault(found.section, []).append(found)
    return sections


def quantity_table(quantities: Sequence[Quantity]) -> Table:
    """A finding's numbers with their errors, as a table.

    >>> one = Quantity("share", "share of dead units", 0.25, 0.2, 0.3, "two standard errors")
    >>> quantity_table([one]).rows
    (('share of dead units', 0.25, '[0.2, 0.3]', 'two standard errors'),)
    """
    labels = [f"{q.label} ({q.unit})" if q.unit else q.label for q in quantities]
    if all(q.exact for q in quantities):
        exact = tuple((label, q.value) for label, q in zip(labels, quantities, strict=True))
        return Table("quantities", ("quantity", "value"), exact)
    rows = tuple(
        (
            label,
            q.value,
            "–" if q.exact else f"[{number_text(q.low)}, {number_text(q.high)}]",
            q.basis,
        )
        for label, q in zip(labels, quantities, strict=True)
    )
    return Table("quantities", ("quantity", "value", "range", "the range is"), rows)
