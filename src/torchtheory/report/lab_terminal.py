"""A lab in a terminal: what it states, what it takes and what to try."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from torchtheory.core.teaching import Teaching
from torchtheory.report.lab_parts import cited_results, suggestions, takes
from torchtheory.report.plain_math import plain_prose
from torchtheory.report.results import LabText
from torchtheory.report.terminal import docstring_paragraphs, marked
from torchtheory.report.wording import shown


def print_lab(lab: LabText, console: Console) -> None:
    """Print what a lab claims, does and takes."""
    console.print(Text(f"{lab.name} ({lab.room})", style="bold"))
    console.print(Text(plain_prose(lab.title)))
    console.print()
    for paragraph in docstring_paragraphs(lab.description):
        console.print(Text(paragraph))
        console.print()
    print_teaching(lab.teaching, console)
    for one in cited_results(lab.covers):
        console.print(Text(f"  {one.id}  {one.name}: {one.citation}"))
    if lab.parameters:
        console.print()
        console.print(_parameters(lab))
    if to_try := suggestions(lab):
        console.print()
        console.print(Text("What to try", style="bold"))
    for command in to_try:
        console.print(Text(f"  {command.command}"), soft_wrap=True)
        console.print(Padding(Text(plain_prose(command.purpose), style="dim"), (0, 0, 0, 4)))
    for exercise in lab.teaching.exercises:
        console.print()
        console.print(Text("Exercise", style="bold"))
        console.print(_indented(exercise.task))
        if exercise.check:
            console.print(
                Padding(Text(f"solved when: {exercise.check}", style="dim"), (0, 0, 0, 2))
            )


def print_teaching(teaching: Teaching, console: Console) -> None:
    """Print theorem, symbols and idea, as far as they are written."""
    for theorem in teaching.theorems:
        console.print(Text("Theorem", style="bold"))
        if theorem.given:
            console.print(_indented(theorem.given))
        for one in theorem.hypotheses:
            said = marked("•", f"{one.name}: {plain_prose(one.text)}", "")
            console.print(Padding(said, (0, 0, 0, 2)))
        console.print(_indented(theorem.conclusion))
        console.print()
    if teaching.symbols:
        console.print(Text("Symbols", style="bold"))
        console.print(_table((d.symbols, d.meaning) for d in teaching.symbols))
        console.print()
    if teaching.idea:
        console.print(Text("Idea of the proof", style="bold"))
        console.print(_indented(teaching.idea))
        console.print()


def _parameters(lab: LabText) -> Grid:
    columns = ["parameter", "takes", "quick", "full"]
    explained = any(p.meaning for p in lab.parameters.values())
    table = Grid(*columns, *(["meaning"] if explained else []), box=None, header_style="bold")
    for p in lab.parameters.values():
        row = [p.name, takes(p), shown(p.quick), shown(p.full)]
        meaning = [plain_prose(p.meaning)] if explained else []
        table.add_row(*map(Text, [*row, *meaning]))
    return table


def _table(rows: Iterable[tuple[str, str]]) -> Grid:
    grid = Grid.grid(padding=(0, 0, 0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain_prose(cell)) for cell in row))
    return grid


def _indented(text: str) -> Padding:
    return Padding(Text(plain_prose(text)), (0, 0, 0, 2))
