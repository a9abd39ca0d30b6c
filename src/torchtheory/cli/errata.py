"""`torchtheory errata`: the errors of the sources, with the numbers that refute them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtheory.cli.options import DEFAULT_RUNS, Json
from torchtheory.cli.output import complain, console, print_json
from torchtheory.core.outputs import refuse_directory


def errata(
    query: Annotated[
        list[str] | None, typer.Argument(help="Words in the text, the id or the source.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Directory of finished runs; missing ones are added to it.")
    ] = DEFAULT_RUNS,
    anew: Annotated[
        bool, typer.Option("--run", help="Run the labs and compute the numbers anew (minutes).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Errors of the sources: what is printed, what is right, and a counterexample's numbers.

    The numbers are those of the labs' quick runs, kept with the package; labs whose numbers are
    not kept are run first.

    Examples:

      torchtheory errata

      torchtheory errata Novikoff --json

      torchtheory errata Novikoff --run
    """
    from torchtheory.labs.engine.coverage import find_errata
    from torchtheory.labs.engine.lists import print_errata
    from torchtheory.labs.engine.store import RunStore

    store = RunStore(out)
    refuse_directory(out)
    found = find_errata(" ".join(query or ()), store, anew=anew)
    if as_json:
        print_json({"errata": [e.to_json() for e in found]})
    else:
        print_errata(found, console())
    without = [e for e in found if not e.claims]
    for erratum in without:
        complain(f"erratum {erratum.text.key} has no numbers: lab {erratum.lab} did not finish")
    if without:
        raise typer.Exit(1)
