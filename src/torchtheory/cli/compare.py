"""`torchtheory compare`: what changed between two audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtheory.cli.options import REPLACED, Json
from torchtheory.cli.output import console, print_json, print_place
from torchtheory.core.errors import InvalidInput
from torchtheory.core.outputs import Place, refuse_places
from torchtheory.report.files import COMPARISON

DEFAULT_COMPARISON = Path("torchtheory-comparison")


def compare(
    first: Annotated[Path, typer.Argument(help="An audit: its audit.json, or its directory.")],
    second: Annotated[Path, typer.Argument(help="The audit to compare with it.")],
    out: Annotated[
        Path, typer.Option(help=f"Directory for the report. {REPLACED}")
    ] = DEFAULT_COMPARISON,
    verbose: Annotated[
        bool, typer.Option(help="Show equal numbers and how it was decided.")
    ] = False,
    fail_on_worse: Annotated[
        bool, typer.Option("--fail-on-worse", help="Exit with 1 on a new defect or violation.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print a table for a pull request, and nothing else."),
    ] = False,
    as_json: Json = False,
) -> None:
    """What changed between two audits, beyond the error bars.

    Examples:

      torchtheory compare before/ after/

      torchtheory compare a/audit.json b/audit.json --fail-on-worse --json

      torchtheory compare before/ after/ --markdown > comment.md
    """
    if markdown and as_json:
        raise InvalidInput("--markdown and --json both print on stdout; give one of them")
    refuse_places([Place(out, COMPARISON)], [first, second])
    from torchtheory.audit.comparison.compare import compare as compare_audits
    from torchtheory.audit.comparison.page import print_comparison

    found = compare_audits(first, second)
    page = found.save(out)
    if as_json:
        print_json(found.to_json())
    elif markdown:
        print(found.to_markdown(), end="")
    else:
        print_comparison(found, console(), verbose=verbose)
        print_place(page)
    raise typer.Exit(1 if fail_on_worse and found.worsened else 0)
