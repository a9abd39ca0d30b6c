"""The program: its commands, and how it ends."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from torchtheory import __version__
from torchtheory.cli import audit, compare, doctor, errata, explain, index, lab, network, size
from torchtheory.cli.output import INTERRUPTED, complain, discard
from torchtheory.core.errors import TorchTheoryError

app = typer.Typer(
    name="torchtheory",
    help="The executable mathematics of deep learning, on PyTorch.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(audit.audit)
app.command()(explain.explain)
app.command()(network.network)
app.command()(compare.compare)
app.command()(index.index)
app.command()(errata.errata)
app.command()(size.size)
app.command()(doctor.doctor)
app.add_typer(lab.app, name="lab")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchtheory {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: a foreseeable mistake becomes one line on stderr and exit code 2."""
    _open_streams()
    try:
        code = _run(list(arguments) if arguments is not None else None)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in "torchtheory index | head"
        discard(sys.stdout)
        code = 1
    except OSError as error:  # without a file it is stdout, such as one on a full disk
        discard(sys.stdout)
        what = (
            "cannot write the output" if error.filename is None else f"cannot use {error.filename}"
        )
        complain(f"{what}: {error.strerror}")
        code = 2
    sys.exit(code)


def _open_streams() -> None:
    """A stream that is closed swallows what is written; one that cannot show ≤ shows ? instead."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - till the end
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="torchtheory", standalone_mode=False)
    except TorchTheoryError as error:
        complain(str(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:  # the parser's own errors have no common public class
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message:  # empty when only the help was asked for, and shown
            complain(message)
        return 2
    if code == INTERRUPTED:
        complain("interrupted; what was finished before is kept")
    return code if isinstance(code, int) else 0
