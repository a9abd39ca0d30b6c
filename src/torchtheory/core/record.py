"""What an experiment or an audit finding collects: claims, errata, tables, figures, notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchtheory.core.claim import (
    Claim,
    Values,
    json_number,
    not_applicable,
    not_done,
)
from torchtheory.core.curves import plot_curves
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.figure import Figure, draw
from torchtheory.core.intervals import Interval
from torchtheory.core.naming import check_name
from torchtheory.core.statement import CounterExample, Statement, erratum_text

Cell = str | float | int | bool | None


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
        """Inverse of `to_json`."""
        rows = tuple(
            tuple(float(c) if c in ("inf", "-inf", "nan") else c for c in r) for r in data["rows"]
        )
        return cls(data["name"], tuple(data["columns"]), rows, data["caption"])


@dataclass(slots=True)
class Record:
    """Collects results; the run of a lab and a finding of the audit both are one."""

    claims: list[Claim] = field(default_factory=list)
    errata: list[CounterExample] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def states(self, ids: str | Sequence[str], text: str) -> Statement:
        """A statement (LaTeX) of these catalogue ids; its verbs record claims about it."""
        return Statement(self, ids, text)

    def checks(self, ids: str | Sequence[str], text: str) -> Statement:
        """A statement that only an error of ours could break: it tells how numbers were checked.

        Its claims do not count among those about the network or the theorem at hand.
        """
        return Statement(self, ids, text, self_check=True)

    def refutes(self, key: str, text: str) -> Statement:
        """What a source prints wrongly (LaTeX); its verbs record counterexamples.

        `key` names it in the errata.
        """
        return Statement(self, erratum_text(key).id, text, key)

    def not_applicable(self, id: str | Sequence[str], statement: str, reason: str) -> Claim:
        """Record that a statement does not apply, and which hypothesis fails."""
        made = not_applicable(id, statement, reason)
        self.claims.append(made)
        return made

    def not_done(self, id: str | Sequence[str], statement: str, reason: str) -> Claim:
        """Record that there was no time or memory to check a statement, and nothing else."""
        made = not_done(id, statement, reason)
        self.claims.append(made)
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
        """Draw and record a figure; see `torchtheory.core.figure.draw`."""
        self._refuse_second(name, [f.name for f in self.figures], "figure")
        self.figures.append(draw(name, plot, caption=caption, grid=grid, size=size))

    def curves(
        self,
        name: str,
        x: Values,
        measured: Mapping[str, Values | Sequence[Interval]],
        promised: Mapping[str, Values] | None = None,
        *,
        axes: tuple[str, str],
        log: str = "",
        at: Mapping[str, float] | None = None,
        ylim: tuple[float | None, float | None] | None = None,
        beside: bool = False,
        caption: str = "",
    ) -> None:
        """Record a line plot: what was measured with marks, what is promised dashed.

        Args:
            x: the common abscissae, `[n]`.
            measured: label and ordinates `[n]` of each measured line; a list of intervals has
                error bars.
            promised: the same for bounds and limits; a number is a horizontal line. Under the
                label of a measured line it takes that line's color.
            axes: what stands at the two axes.
            log: `"x"`, `"y"` or `"xy"` for logarithmic axes.
            at: label and abscissa of vertical lines.
            ylim: the ends of the vertical axis; None leaves an end to the data.
            beside: puts the legend to the right of the plot, where it hides no line.
        """

        def plot(ax: Any) -> None:
            plot_curves(
                ax,
                x,
                measured,
                promised or {},
                axes=axes,
                log=log,
                at=at or {},
                ylim=ylim,
                beside=beside,
            )

        self.figure(name, plot, caption=caption, size=(6.6, 3.2) if beside else None)

    def note(self, sentence: str) -> None:
        """Record something the reader should know."""
        self.notes.append(sentence)

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


def _cell(value: Any) -> Cell:
    if isinstance(value, torch.Tensor) or hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
