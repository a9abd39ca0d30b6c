"""What is proved about the size of networks, as terminal tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from torchtheory.approximation.rates.budget import SizeEstimate, SizeTable
from torchtheory.approximation.rates.theorems import FUNCTION_CLASSES

#: Larger numbers are shown as powers of ten.
_LONGEST = 7


def print_sizes(found: SizeTable, console: Console) -> None:
    """Lower bounds, upper bounds, and what does not apply, each by size."""
    s = found.setting
    console.print(Text(f"{found.function_class}: {FUNCTION_CLASSES[found.function_class]}"))
    asked = f"n = {s.smoothness:g}, d = {s.dimension}, p = {s.p:g}, error {s.error:g}"
    console.print(Text(asked, style="bold"))
    _side(console, "Needed: no network of the kind does with less", found.lower)
    _side(console, "Enough: some network of the kind does", found.upper)
    if found.silent:
        console.print(Text("\nNot applicable here", style="bold"))
        for row, reason in found.silent:
            console.print(Text(f"  {row.id} ({row.name}): {reason}", style="dim"))
    if not all(e.constant_known for e in (*found.lower, *found.upper)):
        console.print(
            Text(
                f"\n~ is an order: its constant is unknown and was taken to be {found.constant:g}.",
                style="dim",
            )
        )


def print_classes(console: Console) -> None:
    """The classes of functions by name."""
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    grid.add_column("class", no_wrap=True)
    grid.add_column("functions", overflow="fold")
    for name, words in FUNCTION_CLASSES.items():
        grid.add_row(name, Text(words))
    console.print(grid)


def shown_size(estimate: SizeEstimate) -> str:
    """The number, or its power of ten; ~ before an order.

    >>> from torchtheory.approximation.rates.budget import size_needed
    >>> [shown_size(e) for e in size_needed("barron", dimension=9, error=0.01).upper]
    ['~3981', '40000']
    """
    short = estimate.log10_size < _LONGEST
    number = str(estimate.size) if short else f"10^{estimate.log10_size:.1f}"
    return number if estimate.constant_known else f"~{number}"


def _side(console: Console, heading: str, estimates: Sequence[SizeEstimate]) -> None:
    console.print(Text(f"\n{heading}", style="bold"))
    if not estimates:
        console.print(Text("  nothing of the table applies", style="dim"))
        return
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    grid.add_column("size", justify="right", no_wrap=True)
    grid.add_column("of", no_wrap=True)
    grid.add_column("constant", no_wrap=True)
    grid.add_column("networks", overflow="fold")
    grid.add_column("error in", overflow="fold")
    grid.add_column("theorem", overflow="fold")
    for e in estimates:
        row = e.theorem
        constant = "known" if e.constant_known else "unknown"
        grid.add_row(
            shown_size(e),
            row.counts,
            constant,
            Text(_networks(e)),
            Text(e.norm),
            Text(f"{row.id}: {row.name}"),
        )
    console.print(grid)


def _networks(e: SizeEstimate) -> str:
    row = e.theorem
    depth = row.depth
    if e.layers is not None and e.layers > 3:
        depth = f"{e.layers} layers"
    elif e.log10_layers is not None:
        depth = f"~10^{e.log10_layers:.1f} layers"
    words = [f"{row.activation} activation", depth] if depth != "any" else [
        "any" if row.activation == "any" else f"{row.activation} activation, any depth"
    ]  # fmt: skip
    if row.side == "lower" and row.continuous:
        words.append("weights continuous in the function")
    if row.encodable:
        words.append("weights of few bits")
    return ", ".join(words)
