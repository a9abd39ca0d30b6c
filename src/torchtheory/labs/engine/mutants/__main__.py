"""The command: `python -m torchtheory.labs.engine.mutants --room nets`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchtheory.core.catalogue import ROOMS
from torchtheory.core.errors import TorchTheoryError, UnknownName
from torchtheory.labs.engine.mutants.hunt import Settings, hunt, print_bag
from torchtheory.labs.engine.registry import listed_labs


def main(
    room: Annotated[str | None, typer.Option(help="Only labs and functions of this room.")] = None,
    lab: Annotated[list[str] | None, typer.Option(help="Only these labs.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Mutants tried side by side.")] = 1,
    per_function: Annotated[int, typer.Option(min=1, help="Mutants of a function.")] = 4,
    sample: Annotated[int | None, typer.Option(min=1, help="Try so many, drawn.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="What is drawn follows from it.")] = 0,
    limit: Annotated[float, typer.Option(min=1, help="Seconds for the tests of one.")] = 60.0,
    tests: Annotated[Path, typer.Option(help="The directory of the tests.")] = Path("tests"),
    out: Annotated[Path, typer.Option(help="Where what is finished is kept.")] = Path("torchtheory-mutants"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Make library functions wrong, one at a time; a lab or a test must turn red.

    Exit code 1 if a mutant survives that is not listed as equivalent in labs/debts.toml.
    """
    try:
        if room is not None and room not in ROOMS:
            raise UnknownName("room", room, ROOMS)
        known = listed_labs()
        for name in lab or []:
            if name not in known:
                raise UnknownName("lab", name, known)
        chosen = [one for one in known.values() if (room is None or one.room == room) and (not lab or one.name in lab)]
        settings = Settings(
            per_function=per_function, sample=sample, seed=seed, limit=limit, tests=tests, out=out,
            jobs=jobs,
        )  # fmt: skip
        bag = hunt(chosen, settings, room)
    except TorchTheoryError as error:
        print(f"mutants: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(bag.to_json(), indent=1, ensure_ascii=False))
    else:
        print_bag(bag, Console())
    raise typer.Exit(1 if bag.survivors else 0)


if __name__ == "__main__":
    typer.run(main)
