"""How commands answer: results on stdout, one line on stderr for what went wrong."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchtheory.core.foreign_text import json_text, one_line

if TYPE_CHECKING:
    from torchtheory.report.terminal import Terminal

#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED = 130

# Wider than any row of a list.
_ENDLESS = 10_000


def console() -> Terminal:
    """The terminal, as rich sees it at this moment."""
    from torchtheory.report.terminal import Terminal

    return Terminal()


def list_console() -> Terminal:
    """The same for a list; one line per row where a program reads it and no width is asked for."""
    from torchtheory.report.terminal import Terminal

    read_by_people = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Terminal() if read_by_people else Terminal(width=_ENDLESS)


def print_json(data: object) -> None:
    """JSON on stdout, escaped where the terminal knows no Unicode; NaN is an error."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json_text(data, ascii_only=not unicode))


def print_place(page: Path) -> None:
    """Where the report is, in one piece: a path that is wrapped cannot be copied."""
    console().print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """One line on stderr, whatever the sentence quotes."""
    try:
        print(f"torchtheory: {one_line(sentence)}", file=sys.stderr, flush=True)
    except OSError:  # nobody listens
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Give up a stream that takes nothing.

    Python writes what is left in its buffer when it ends, and would fail a second time.
    """
    with suppress(OSError, ValueError):  # what is no file has no buffer below it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
