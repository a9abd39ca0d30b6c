"""What several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtheory.core.catalogue import ROOMS
from torchtheory.core.errors import UnknownName

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]

#: Where runs of labs are kept unless the user names another directory.
DEFAULT_RUNS = Path("torchtheory-runs")


def check_room(room: str | None) -> None:
    """Refuse the name of a room that does not exist; no name is every room."""
    if room is not None and room not in ROOMS:
        raise UnknownName("room", room, ROOMS)
