"""What a report needs to know of an audit, whatever class it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torchtheory.core.claim import Claim
from torchtheory.core.figure import Figure
from torchtheory.core.record import CounterExample, Table


class Content(Protocol):
    """Anything that collected results, as :class:`torchtheory.core.record.Record` does."""

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


def by_section(findings: Sequence[AuditFinding]) -> dict[str, list[AuditFinding]]:
    """Findings under their headings, both in the order they came."""
    sections: dict[str, list[AuditFinding]] = {}
    for found in findings:
        sections.setdefault(found.section, []).append(found)
    return sections
