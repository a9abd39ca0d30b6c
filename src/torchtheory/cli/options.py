"""What several commands take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from torchtheory.core.catalogue import ROOMS
from torchtheory.core.errors import InvalidInput, UnknownName

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
Model = Annotated[
    str | None,
    typer.Option(help="Your model: package.module:factory, or a .pt2 file of torch.export."),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="An .npz file, a directory of .npy or IDX files, a .csv or .tsv file, or "
        "package.module:loader."
    ),
]
Output = Annotated[
    str | None,
    typer.Option(help="Key or position of the output meant, if the model returns several."),
]

#: What `--out` promises, for the help of every command that writes.
REPLACED = (
    "Only earlier reports of torchtheory are replaced: another file, a directory or a link at the "
    "place of one is refused before the work."
)

#: Where runs of labs are kept unless the user names another directory.
DEFAULT_RUNS = Path("torchtheory-runs")


def check_room(room: str | None) -> None:
    """Refuse the name of a room that does not exist; no name is every room."""
    if room is not None and room not in ROOMS:
        raise UnknownName("room", room, ROOMS)


def position_or_key(output: str | None) -> int | str | None:
    """What `Output` means: a short row of digits is a position, anything else a key.

    >>> position_or_key("1"), position_or_key("logits")
    (1, 'logits')
    """
    if output is not None and re.fullmatch("[0-9]{1,9}", output):
        return int(output)
    return output


def refuse_without_model(given: dict[str, object]) -> None:
    """Refuse options that say something about a model where none is given."""
    if names := [name for name, value in given.items() if value is not None]:
        raise InvalidInput(
            f"{' and '.join(names)} {'goes' if len(names) == 1 else 'go'} with --model"
        )
