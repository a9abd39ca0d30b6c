"""Checks that are weaker than they should be, and the list of those that are known.

A check has power or it is not a check. Six weaknesses are seen in the numbers of a run:

- *loose*: every case of a bound stays more than a factor of 3 below the promise, so that a promise
  three times as good would hold as well. Meet the bound in its extremal case, or say with
  `loose="…"` why no case can come near it.
- *unresolved*: a statistical equation names no alternatives (`against=…`) that its interval must
  exclude.
- *control*: the control fails in half of its cases or fewer.
- *tolerance*: the tolerance is as large as the promise, so that 0 in its place would hold as well.
- *far*: the alternatives of a statistical equation are so far away that half or twice the promise is
  met as well.
- *narrow*: the interval of a control, or of a check with alternatives, just misses what it must
  exclude; one twice as wide would not. At some seed it will not miss it: take more samples.

A new lab has none of them: its test fails if it has. What older labs still owe stands in
`labs/debts.toml`, table by table, as `lab = ["N-08#2"]`: the second claim of the lab's quick run at
seed 0 that has exactly these ids. The file only shrinks. A debt that was paid has to leave it, or the
lab's test fails as well; `python -m torchtheory.labs.engine.debts --prune` takes out what was paid.
Its other tables, `[seeds]` and `[mutants]`, belong to the checks of those names and are left as they
are.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from torchtheory.core.catalogue import ROOMS
from torchtheory.core.claim import Weakness
from torchtheory.core.errors import FileProblem, TorchTheoryError
from torchtheory.labs.engine.many import Failure, run_many
from torchtheory.labs.engine.registry import find_lab, listed_labs
from torchtheory.labs.engine.run import Run
from torchtheory.labs.engine.store import RunStore

PATH = Path(__file__).resolve().parent.parent / "debts.toml"
KINDS: tuple[Weakness, ...] = ("loose", "unresolved", "control", "tolerance", "far", "narrow")
TABLES = (*KINDS, "seeds", "mutants")

#: The keys of weak claims of each lab, by the kind of weakness.
Debts = Mapping[Weakness, Mapping[str, tuple[str, ...]]]

_HEADING = "# What labs owe: checks weaker than they should be (see engine/debts.py). It only shrinks.\n"
_WIDTH = 100


def read_debts(path: Path | None = None) -> Debts:
    """The weak claims that are known, from the file; none where there is no file."""
    path = path or PATH
    tables = _tables(path)
    found: dict[Weakness, dict[str, tuple[str, ...]]] = {}
    for kind in KINDS:
        table = tables.get(kind, {})
        for lab, keys in table.items():
            if not (isinstance(keys, list) and all(isinstance(k, str) for k in keys)):
                raise FileProblem(f"{path}: [{kind}] {lab} must be a list of keys such as 'N-08#2'")
        found[kind] = {lab: tuple(keys) for lab, keys in table.items()}
    return found


def outstanding(run: Run, debts: Debts | None = None) -> list[tuple[str, Weakness]]:
    """The run's weaknesses that are not in the file: what a new lab must not have."""
    known = read_debts() if debts is None else debts
    return [(k, kind) for k, kind in run.weaknesses if k not in known[kind].get(run.lab.name, ())]


def paid(run: Run, debts: Debts | None = None) -> list[tuple[str, Weakness]]:
    """The lab's entries in the file that its run (quick, seed 0) no longer shows."""
    known = read_debts() if debts is None else debts
    owed = set(run.weaknesses)
    listed = [(k, kind) for kind in KINDS for k in known[kind].get(run.lab.name, ())]
    return [entry for entry in listed if entry not in owed]


def pruned(debts: Debts, runs: Iterable[Run]) -> Debts:
    """The debts without those that these runs have paid, and without labs that do not exist."""
    gone = {(run.lab.name, *entry) for run in runs for entry in paid(run, debts)}
    labs = listed_labs()
    return {
        kind: {
            lab: tuple(k for k in keys if (lab, k, kind) not in gone)
            for lab, keys in debts[kind].items()
            if lab in labs
        }
        for kind in KINDS
    }


def first_debts(runs: Iterable[Run]) -> Debts:
    """All weaknesses of these runs, for a file that does not exist yet."""
    found: dict[Weakness, dict[str, tuple[str, ...]]] = {kind: {} for kind in KINDS}
    for run in runs:
        for key, kind in run.weaknesses:
            found[kind][run.lab.name] = (*found[kind].get(run.lab.name, ()), key)
    return found


def write_debts(debts: Debts, path: Path | None = None) -> None:
    """Write the tables of weaknesses; whatever else the file holds stays as it is."""
    path = path or PATH
    kept = _sections(path.read_text("utf-8")) if path.exists() else {"": _HEADING}
    rooms = {lab.name: lab.room for lab in listed_labs().values()}
    for kind in KINDS:
        kept[kind] = f"[{kind}]\n" + "".join(_lines(debts[kind], rooms))
    for name in TABLES:
        kept.setdefault(name, f"[{name}]\n")
    kept[""] = kept.get("") or _HEADING
    order = ["", *TABLES, *(name for name in kept if name not in ("", *TABLES))]
    text = "\n".join(kept[name].strip("\n") + "\n" for name in order)
    tomllib.loads(text)  # nothing is written that could not be read
    path.write_text(text, encoding="utf-8")


def print_debts(console: Console, path: Path | None = None) -> None:
    """How much each room owes of each kind."""
    rooms = {lab.name: lab.room for lab in listed_labs().values()}
    path = path or PATH
    debts, tables = read_debts(path), _tables(path)
    counts: Counter[tuple[str, str]] = Counter()
    for kind in KINDS:
        for lab, keys in debts[kind].items():
            counts[rooms.get(lab, "no such lab"), kind] += len(keys)
    for name in TABLES[len(KINDS) :]:
        for lab, owed in tables.get(name, {}).items():
            counts[rooms.get(lab, "of no room"), name] += len(owed) if isinstance(owed, list) else 1
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    grid.add_column("room")
    for name in TABLES:
        grid.add_column(name, justify="right")
    met = {room for room, _ in counts}
    for room in [*(r for r in ROOMS if r in met), *sorted(met - set(ROOMS))]:
        grid.add_row(room, *(str(counts[room, name]) for name in TABLES))
    totals = [sum(n for (_, name), n in counts.items() if name == one) for one in TABLES]
    grid.add_row("all", *map(str, totals), style="bold")
    console.print(grid)


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FileProblem(f"cannot read {path}: {error}") from None


def _sections(text: str) -> dict[str, str]:
    """The file cut at its table headings; what precedes the first has the name ''."""
    pieces = re.split(r"(?m)^(?=\[)", text)
    found = {}
    for piece in pieces:
        heading = re.match(r"\[(.+?)\]", piece)
        found[heading[1] if heading else ""] = piece
    return found


def _lines(table: Mapping[str, tuple[str, ...]], rooms: Mapping[str, str]) -> Iterable[str]:
    """A lab per line, under its room, in the order of the list of labs."""
    room = None
    places = {name: k for k, name in enumerate(rooms)}
    for lab in sorted(table, key=lambda name: (places.get(name, len(places)), name)):
        if not table[lab]:
            continue
        if rooms.get(lab, "") != room:
            room = rooms.get(lab, "")
            yield f"# {room}\n"
        keys = [json.dumps(k) for k in table[lab]]
        line = f"{lab} = [{', '.join(keys)}]\n"
        yield line if len(line) <= _WIDTH else f"{lab} = [\n" + "".join(f"    {k},\n" for k in keys) + "]\n"


def main(
    prune: Annotated[bool, typer.Option("--prune", help="Run what owes; take out what was paid.")] = False,
    begin: Annotated[bool, typer.Option("--begin", help="Run every lab; write the file if there is none.")] = False,
    runs: Annotated[Path, typer.Option(help="Directory of finished runs.")] = Path("torchtheory-runs"),
    jobs: Annotated[int, typer.Option(min=1, help="Labs run side by side.")] = 1,
) -> None:
    """What the labs owe: weak checks, counted by room. The file never grows."""
    try:
        if prune and begin:
            raise typer.BadParameter("--begin writes the file and --prune shortens it: choose one")
        if begin and any(kind in _tables(PATH) for kind in KINDS):
            raise FileProblem(f"{PATH} has begun already; what is new in it would be a weaker lab")
        if prune or begin:
            debts = read_debts()
            owing = {name for kind in KINDS for name in debts[kind]}
            chosen = [find_lab(name) for name in listed_labs() if begin or name in owing]
            outcomes = list(run_many(chosen, RunStore(runs), jobs=jobs))
            made = [run for run in outcomes if isinstance(run, Run)]
            failed = [one for one in outcomes if isinstance(one, Failure)]
            for one in failed:
                print(f"debts: {one.lab.name} did not finish: {one.sentence}", file=sys.stderr)
            if begin and failed:
                raise FileProblem("nothing is written while a lab does not finish")
            write_debts(first_debts(made) if begin else pruned(debts, made))
        print_debts(Console())
    except TorchTheoryError as error:
        print(f"debts: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
