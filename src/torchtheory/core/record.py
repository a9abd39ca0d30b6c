"""What an experiment or an audit finding collects: claims, errata, tables, figures, notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchtheory.core import catalogue
from torchtheory.core.claim import (
    Claim,
    Relation,
    Values,
    Verdict,
    claim,
    json_number,
    not_applicable,
    with_control,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.core.figure import Figure, draw
from torchtheory.core.intervals import Interval
from torchtheory.core.naming import check_name

Cell = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class Control:
    """The same check with a hypothesis broken; it must come out violated.

    It takes the claim's statement, relation and tolerance, so it cannot be another check.

    Attributes:
        broken: which hypothesis is broken, and how.
        measured: what was measured then.
        promised: what the statement would promise then; the claim's own promise unless told.
        interval: confidence interval of the measurement, where it is statistical.
    """

    broken: str
    measured: Values
    promised: Values | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A small table: column names and rows of plain cells."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def to_json(self) -> dict[str, Any]:
        rows = [[json_number(c) if isinstance(c, float) else c for c in r] for r in self.rows]
        return {
            "name": self.name,
            "caption": self.caption,
            "columns": list(self.columns),
            "rows": rows,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Table:
        """Inverse of :meth:`to_json`."""
        rows = tuple(
            tuple(float(c) if c in ("inf", "-inf", "nan") else c for c in r) for r in data["rows"]
        )
        return cls(data["name"], tuple(data["columns"]), rows, data["caption"])


@dataclass(frozen=True, slots=True)
class CounterExample:
    """An error of a source with the numbers that refute it; its claim must be violated."""

    key: str
    claim: Claim

    @property
    def text(self) -> catalogue.Erratum:
        return erratum_text(self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "id": self.text.id,
            "printed": self.text.printed,
            "correct": self.text.correct,
            "claim": self.claim.to_json(),
        }


@dataclass(slots=True)
class Record:
    """Collects results; the run of a lab and a finding of the audit both are one."""

    claims: list[Claim] = field(default_factory=list)
    errata: list[CounterExample] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def claim(
        self,
        id: str | Sequence[str],
        statement: str,
        *,
        promised: Values,
        relation: Relation,
        measured: Values,
        tolerance: float = 0.0,
        reason: str = "",
        trivial: float | None = None,
        interval: Interval | None = None,
        control: Control | None = None,
    ) -> Claim:
        """Record a statement met by a measurement; see :func:`torchtheory.core.claim.claim`."""
        made = claim(
            id,
            statement,
            promised=promised,
            relation=relation,
            measured=measured,
            tolerance=tolerance,
            reason=reason,
            trivial=trivial,
            interval=interval,
        )
        if control is not None:
            broken = claim(
                id,
                statement,
                promised=promised if control.promised is None else control.promised,
                relation=relation,
                measured=control.measured,
                tolerance=tolerance,
                reason=control.broken,
                interval=control.interval,
            )
            made = with_control(made, broken)
        self.claims.append(made)
        return made

    def not_applicable(self, id: str | Sequence[str], statement: str, reason: str) -> Claim:
        """Record that a statement does not apply, and which hypothesis fails."""
        made = not_applicable(id, statement, reason)
        self.claims.append(made)
        return made

    def erratum(
        self,
        key: str,
        statement: str,
        *,
        promised: Values,
        relation: Relation,
        measured: Values,
        tolerance: float = 0.0,
        reason: str = "",
        interval: Interval | None = None,
    ) -> Claim:
        """Record the counterexample to a printed statement; ``key`` names it in the errata."""
        made = claim(
            erratum_text(key).id,
            statement,
            promised=promised,
            relation=relation,
            measured=measured,
            tolerance=tolerance,
            reason=reason,
            interval=interval,
        )
        self.errata.append(CounterExample(key, made))
        return made

    def table(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        caption: str = "",
    ) -> None:
        """Record a table; cells are text or numbers (one-element tensors count as numbers)."""
        check_name(name, "table")
        plain = tuple(tuple(_cell(c) for c in row) for row in rows)
        for row in plain:
            if len(row) != len(columns):
                raise ShapeMismatch(
                    f"table {name!r} has {len(columns)} columns but a row of {len(row)} cells"
                )
        self._refuse_second(name, [t.name for t in self.tables], "table")
        self.tables.append(Table(name, tuple(columns), plain, caption))

    def figure(
        self,
        name: str,
        plot: Callable[[Any], object],
        *,
        caption: str = "",
        grid: tuple[int, int] = (1, 1),
        size: tuple[float, float] | None = None,
    ) -> None:
        """Draw and record a figure; see :func:`torchtheory.core.figure.draw`."""
        self._refuse_second(name, [f.name for f in self.figures], "figure")
        self.figures.append(draw(name, plot, caption=caption, grid=grid, size=size))

    def note(self, sentence: str) -> None:
        """Record something the reader should know."""
        self.notes.append(sentence)

    def count(self, verdict: Verdict) -> int:
        """How many claims came to this verdict."""
        return sum(c.verdict is verdict for c in self.claims)

    def content_json(self) -> dict[str, Any]:
        """Everything collected, as plain data (figures by file name)."""
        return {
            "claims": [c.to_json() for c in self.claims],
            "errata": [e.to_json() for e in self.errata],
            "tables": [t.to_json() for t in self.tables],
            "figures": [f.to_json() for f in self.figures],
            "notes": list(self.notes),
        }

    @staticmethod
    def _refuse_second(name: str, taken: list[str], kind: str) -> None:
        if name in taken:
            raise InvalidInput(f"there is already a {kind} named {name!r}")


def erratum_text(key: str) -> catalogue.Erratum:
    """The words of an erratum, by its key."""
    known = catalogue.errata()
    if key not in known:
        raise UnknownName("erratum", key, known)
    return known[key]


def _cell(value: Any) -> Cell:
    if isinstance(value, torch.Tensor) or hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
