"""The catalogue and the errata as terminal tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from torchtheory.core import catalogue
from torchtheory.core.statement import CounterExample
from torchtheory.labs.engine.coverage import STATUSES, Coverage, RefutedStatement
from torchtheory.report.terminal import erratum_block

_COUNTED = (*STATUSES, "loose", "unresolved")
_STYLES = {"covered": "green", "background": "dim", "missing": "yellow"}


def print_coverage(found: Coverage, console: Console, *, summary_only: bool = False) -> None:
    """The entries with the labs that exercise them, or only how many there are of each source."""
    if summary_only:
        console.print(_by_source(found))
        console.print(
            "torchtheory index WORD lists what matches; --missing what no lab covers yet; --loose "
            "what is checked only from afar."
        )
        return
    if not found.entries:
        console.print(
            "0 entries match; a word stands in the name, source or id of a result (torchtheory index "
            "without words counts them by source)",
            highlight=False,
        )
        return
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    grid.add_column("id", no_wrap=True)
    grid.add_column("status", no_wrap=True)
    grid.add_column("result", overflow="fold")
    grid.add_column("source", overflow="fold")
    grid.add_column("labs", overflow="fold")
    weak = any(e.power.words for e in found.entries)
    if weak:
        grid.add_column("checks", overflow="fold")
    for e in found.entries:
        grid.add_row(
            e.entry.id,
            Text(e.status, style=_STYLES[e.status]),
            Text(e.entry.name),
            Text(e.entry.citation),
            ", ".join(e.labs),
            *([Text(e.power.words, style="yellow")] if weak else ()),
        )
    console.print(grid)
    counts = ", ".join(f"{found.count(status)} {status}" for status in STATUSES)
    weak_ones = f"; {found.loose} loose, {found.unresolved} unresolved"
    console.print(f"{len(found.entries)} entries: {counts}{weak_ones}")


def print_errata(found: Sequence[RefutedStatement], console: Console) -> None:
    """Each error: what is printed, what is right, the counterexample's numbers."""
    for error in found:
        citation = catalogue.entry(error.text.id).citation
        console.print(Text.assemble((citation, "bold"), (f"  lab {error.lab}", "dim")))
        for claim in error.claims:
            console.print(erratum_block(CounterExample(error.text.key, claim)))
    matching = "errata" if found else "errata match; a word stands in the text, the id or the source"
    console.print(f"{len(found)} {matching}", highlight=False)


def _by_source(found: Coverage) -> Grid:
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    for column in ("source", "entries", *_COUNTED):
        grid.add_column(column, justify="left" if column == "source" else "right")
    total: Counter[str] = Counter()
    for key, source in catalogue.sources().items():
        of_source = Coverage(tuple(e for e in found.entries if e.entry.source == key))
        counts = Counter[str](e.status for e in of_source.entries)
        counts.update(loose=of_source.loose, unresolved=of_source.unresolved)
        total += counts
        grid.add_row(f"{key}: {source.title}", *_numbers(counts))
    grid.add_row("all", *_numbers(total), style="bold")
    return grid


def _numbers(counts: Counter[str]) -> list[str]:
    entries = sum(counts[s] for s in STATUSES)
    return [str(entries), *(str(counts[c]) for c in _COUNTED)]
