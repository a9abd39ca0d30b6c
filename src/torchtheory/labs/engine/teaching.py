"""What a lab says before it computes: whether it is all there, and which labs still owe it.

A lab states its theorem, defines its symbols, gives the idea, says what to try and sets an exercise
(`torchtheory.core.teaching`). A new lab has all five sections: its test fails if one is missing.
Labs that were written before stand in `labs/teaching_debts.toml`. The file only shrinks: a lab that
has its sections has to leave it, and `python -m torchtheory.labs.engine.teaching --prune` takes out
those that do. Without the option the command counts what each room owes.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from torchtheory.core.claim import Claim
from torchtheory.core.errors import FileProblem, InvalidInput
from torchtheory.labs.engine.registry import Lab, labs
from torchtheory.labs.engine.run import Run
from torchtheory.report.faults import formula_faults, prose_faults
from torchtheory.report.letters import defined_letters, letters

PATH = Path(__file__).resolve().parent.parent / "teaching_debts.toml"

_HEADING = "# Labs that do not teach yet (see engine/teaching.py). The list only shrinks.\n"


def read_owing(path: Path | None = None) -> tuple[str, ...]:
    """The names of labs that still owe a section."""
    path = path or PATH
    try:
        names = tomllib.loads(path.read_text("utf-8"))["labs"]
    except (OSError, ValueError, KeyError) as error:
        raise FileProblem(f"cannot read {path}: {error}") from None
    if not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise FileProblem(f"{path}: labs must be a list of names of labs")
    return tuple(names)


def write_owing(names: Iterable[str], path: Path | None = None) -> None:
    """Write the list, a name per line."""
    lines = "".join(f"    {json.dumps(name)},\n" for name in sorted(names))
    (path or PATH).write_text(f"{_HEADING}labs = [\n{lines}]\n", encoding="utf-8")


def debt_faults(lab: Lab, owing: Collection[str]) -> list[str]:
    """Why a lab and the list of those that owe something do not agree."""
    missing = lab.teaching.missing
    if missing and lab.name not in owing:
        return [f"its docstring has no section {', '.join(missing)}"]
    if not missing and lab.name in owing:
        return ["it has all sections: take it out of teaching_debts.toml"]
    return []


def text_faults(lab: Lab) -> list[str]:
    """What a reader would stumble over in a lab's own words, before it is run.

    Formulas that do not close, LaTeX outside of dollars, changes that the lab would refuse.
    """
    words = [lab.title, lab.description, *(p.meaning for p in lab.parameters.values())]
    found = [f for text in (*words, *lab.teaching.prose) for f in prose_faults(text)]
    for change in lab.teaching.changes:
        try:
            lab.configure("quick", change.values)
        except InvalidInput as error:
            found.append(f"Try: {error}")
    return found


def run_faults(run: Run) -> list[str]:
    """The same of what a run says: statements, reasons, controls, notes, tables and captions."""
    claims = _all_claims(run)
    found = [f"{f}: {c.statement}" for c in claims for f in formula_faults(c.statement)]
    said = [text for c in claims for text in (c.reason, c.loose)]
    said += [*run.notes, *(f.caption for f in run.figures)]
    for table in run.tables:
        cells = [cell for row in (table.columns, *table.rows) for cell in row]
        said += [table.caption, *(cell for cell in cells if isinstance(cell, str))]
    return found + [f"{f}: {text}" for text in dict.fromkeys(said) for f in prose_faults(text)]


def undefined_letters(run: Run) -> list[str]:
    """Letters of a run's statements that its lab's section Symbols does not define.

    Empty for a lab without that section, which stands among the debts.
    """
    taught = run.lab.teaching
    if not taught.symbols:
        return []
    known = defined_letters((d.symbols, d.meaning) for d in taught.symbols)
    met = {letter for c in _all_claims(run) for letter in letters(c.statement)}
    return sorted(met - known)


def solves(task: Any) -> bool:
    """Whether an exercise's answer makes its check true; code of ours, with torch and tt at hand."""
    import torch

    import torchtheory as tt

    names: dict[str, Any] = {"torch": torch, "tt": tt}
    exec(task.answer, names)
    return bool(eval(task.check, names))


def _all_claims(run: Run) -> list[Claim]:
    made = [*run.claims, *(e.claim for e in run.errata)]
    return made + [c.control for c in run.claims if c.control is not None]


def main(
    prune: Annotated[bool, typer.Option("--prune", help="Take out the labs that owe nothing.")] = False,
) -> None:
    """How many labs of each room still owe a theorem, symbols, an idea, changes or an exercise."""
    found = labs()
    if prune:
        write_owing(name for name in read_owing() if name in found and found[name].teaching.missing)
    owing = set(read_owing())
    grid = Grid("room", "labs", "owe", box=None, header_style="bold", pad_edge=False)
    rooms = Counter(lab.room for lab in found.values())
    owed = Counter(lab.room for lab in found.values() if lab.name in owing)
    for room, count in sorted(rooms.items()):
        grid.add_row(room, str(count), str(owed[room]))
    grid.add_row("all", str(len(found)), str(owed.total()), style="bold")
    Console().print(grid)


if __name__ == "__main__":
    typer.run(main)
