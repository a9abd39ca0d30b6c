"""`torchtheory index`: the catalogue of results, and which labs exercise them."""

from __future__ import annotations

from typing import Annotated

import typer

from torchtheory.cli.options import Json, check_room
from torchtheory.cli.output import console, print_json


def index(
    query: Annotated[list[str] | None, typer.Argument(help="Words in name, source or id.")] = None,
    source: Annotated[str | None, typer.Option(help="Only this source.")] = None,
    room: Annotated[str | None, typer.Option(help="Only this room.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only what no lab covers yet.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The catalogue of results, and which labs exercise them.

    Examples:

      torchtheory index ntk

      torchtheory index gradient descent --room optimization

      torchtheory index --source notes --missing
    """
    from torchtheory.labs.engine.coverage import coverage
    from torchtheory.labs.engine.lists import print_coverage

    check_room(room)
    words = " ".join(query or ())
    found = coverage(words, source=source, room=room, missing_only=missing)
    if as_json:
        print_json(found.to_json())
    else:
        everything = not (words or source or room or missing)
        print_coverage(found, console(), summary_only=everything)
