"""The numbers of the errata's counterexamples, kept with the package.

`torchtheory errata` prints them at once: they are what the labs' quick runs at seed 0 gave, and stand
in `catalogue/errata-numbers.json`, by lab and by the erratum's key. Whoever changes a lab that refutes
something makes its numbers anew:

    python -m torchtheory.labs.engine.errata_numbers hopfield-capacity

Without names, this makes those of every lab that refutes something, which takes ten minutes or more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from torchtheory.core.claim import Claim
from torchtheory.core.errors import FileProblem, TorchTheoryError
from torchtheory.core.files import read_json
from torchtheory.core.statement import CounterExample
from torchtheory.labs.engine.many import Failure, run_many
from torchtheory.labs.engine.registry import find_lab, listed_labs
from torchtheory.labs.engine.run import Run
from torchtheory.labs.engine.store import RunStore

PATH = Path(__file__).resolve().parents[2] / "catalogue" / "errata-numbers.json"

#: The counterexamples of each lab, by the erratum's key.
KeptNumbers = Mapping[str, Mapping[str, tuple[Claim, ...]]]

# What a claim's data leave out: the catalogue and the claim itself know it.
_DERIVED = ("source", "verdict")
_USUAL = {
    "tolerance": 0.0,
    "blunt": False,
    "reason": "",
    "trivial": None,
    "interval": None,
    "cases": 1,
    "violations": 0,
    "slack": None,
    "loose": "",
    "against": [],
    "control": None,
    "self_check": False,
}


def kept_numbers(path: Path | None = None) -> KeptNumbers:
    """The counterexamples of the file; none where there is no file."""
    return _read(path or PATH)


@cache
def _read(path: Path) -> KeptNumbers:
    if not path.exists():
        return {}
    try:
        return {
            lab: {key: tuple(Claim.from_json(_USUAL | claim) for claim in claims) for key, claims in found.items()}
            for lab, found in read_json(path).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileProblem(f"{path} cannot be read: {type(error).__name__}: {error}") from None


def numbers_of(errata: Iterable[CounterExample]) -> dict[str, tuple[Claim, ...]]:
    """The counterexamples of a run by key, in the order in which it met them."""
    found: dict[str, tuple[Claim, ...]] = {}
    for e in errata:
        found[e.key] = (*found.get(e.key, ()), e.claim)
    return found


def write_numbers(numbers: KeptNumbers, path: Path | None = None) -> None:
    """Write the file: a line for each counterexample, labs in the order of their names."""
    lines = []
    for lab in sorted(numbers):
        entries = []
        for key, claims in numbers[lab].items():
            rows = ",\n".join(f"      {_line(c)}" for c in claims)
            entries.append(f"    {json.dumps(key)}: [\n{rows}\n    ]")
        lines.append(f"  {json.dumps(lab)}: {{\n" + ",\n".join(entries) + "\n  }")
    (path or PATH).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    _read.cache_clear()


def _line(claim: Claim) -> str:
    data = {
        name: value
        for name, value in claim.to_json().items()
        if name not in _DERIVED and not (name in _USUAL and value == _USUAL[name])
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def main(
    labs: Annotated[list[str] | None, typer.Argument(help="Labs; all that refute something if none.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are taken up.")] = Path(
        "torchtheory-runs"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Labs run side by side.")] = 1,
) -> None:
    """Run labs and write the numbers of the errata they refute to the package."""
    known = listed_labs()
    chosen = [find_lab(name) for name in labs or [one.name for one in known.values() if one.errata]]
    # labs that are gone or refute nothing any more leave the file
    numbers: dict[str, Mapping[str, tuple[Claim, ...]]] = {
        lab: n for lab, n in kept_numbers().items() if lab in known and known[lab].errata
    }
    failed = 0
    for outcome in run_many(chosen, RunStore(out), jobs=jobs):
        name = outcome.lab.name
        if isinstance(outcome, Failure) or not _refuted(outcome):
            failed += 1
            sentence = outcome.sentence if isinstance(outcome, Failure) else "an erratum is not refuted"
            print(f"{name}: {sentence}", file=sys.stderr)
            continue
        numbers[name] = numbers_of(outcome.errata)
        write_numbers(numbers)  # each at once, so that an interrupted call loses nothing
    raise typer.Exit(1 if failed else 0)


def _refuted(run: Run) -> bool:
    return not any("erratum" in problem for problem in run.problems)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TorchTheoryError as error:
        sys.exit(f"errata_numbers: {error}")
