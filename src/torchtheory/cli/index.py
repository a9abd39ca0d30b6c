"""`torchtheory index`: the catalogue of results, and which labs exercise them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtheory.cli.options import DEFAULT_RUNS, Json, check_room
from torchtheory.cli.output import list_console, print_json


def index(
    query: Annotated[list[str] | None, typer.Argument(help="Words in name, source or id.")] = None,
    source: Annotated[str | None, typer.Option(help="Only this source.")] = None,
    room: Annotated[str | None, typer.Option(help="Only this room.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only what no lab covers yet.")
    ] = False,
    loose: Annotated[
        bool,
        typer.Option("--loose", help="Only what loose bounds or unresolved equations check."),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Directory of finished runs; they know more of the checks.")
    ] = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """The catalogue of results, and which labs exercise them.

    Examples:

      torchtheory index ntk

      torchtheory index gradient descent --room optimization

      torchtheory index --source notes --missing

      torchtheory index --room kernels --loose
    """
    from torchtheory.labs.engine.coverage import coverage
    from torchtheory.labs.engine.lists import print_coverage
    from torchtheory.labs.engine.store import RunStore

    check_room(room)
    words = " ".join(query or ())
    found = coverage(
        words,
        source=source,
        room=room,
        missing_only=missing,
        loose_only=loose,
        store=RunStore(out),
    )
    if as_json:
        print_json(found.to_json())
    else:
        everything = not (words or source or room or missing or loose)
        print_coverage(found, list_console(), summary_only=everything)
