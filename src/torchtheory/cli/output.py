"""How commands answer: results on stdout, one line on stderr for what went wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED = 130


def console() -> Console:
    """The terminal, as rich sees it at this moment."""
    from rich.console import Console

    return Console()


def print_json(data: object) -> None:
    """JSON on stdout, escaped where the terminal knows no Unicode; NaN is an error."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, indent=1, allow_nan=False, ensure_ascii=not unicode))


def print_place(page: Path) -> None:
    """Where the report is, in one piece: a path that is wrapped cannot be copied."""
    console().print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """One line on stderr, whatever the sentence quotes: no line breaks, no control characters."""
    line = "".join(c for c in " ".join(sentence.split()) if c.isprintable())
    print(f"torchtheory: {line}", file=sys.stderr)
