"""Two audits side by side: in a terminal, on a page, as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtheory.audit.comparison import words
from torchtheory.audit.comparison.rows import Change, QuantityChange
from torchtheory.core.console import Console, Grid, Text, box
from torchtheory.core.figure import COLORS, Figure, draw, label_text
from torchtheory.core.record import Table
from torchtheory.report.html import fragment, page
from torchtheory.report.markdown import inline_text, table_text
from torchtheory.report.numbers import number_text
from torchtheory.report.plain_math import plain
from torchtheory.report.terminal import WIDE, marked

if TYPE_CHECKING:
    from torchtheory.audit.comparison.compare import Comparison

_STYLES = {
    Change.CHANGED: "bold yellow",
    Change.DIFFERENT: "yellow",
    Change.WITHIN: "",
    Change.EQUAL: "dim",
    Change.INCOMPARABLE: "bold red",
}
# Below this width the mark stands without its word.
_NARROW = 72
# Rows of the figure, and the least number of them worth drawing.
_DOTS = 14
_FEWEST = 2


def print_comparison(comparison: Comparison, console: Console, verbose: bool = False) -> None:
    """Print what changed.

    Args:
        comparison: of two audits.
        console: where to.
        verbose: also the numbers that are equal, the defects that remain, and how changes were
            decided.
    """
    one, two = comparison.names
    console.print(Text.assemble((one, "bold"), (" → ", "dim"), (two, "bold")))
    console.print()
    for sentence in comparison.summary:
        serious = sentence in comparison.cautions
        mark, style = ("!", "bold red") if serious else ("•", "")
        console.print(marked(mark, sentence, style))
    turned = [a for a in comparison.areas if verbose or a.turn != "same"]
    if turned:
        _rule(console, "Areas")
        for area in turned:
            style = "bold red" if area.turn == "worse" else ""
            console.print(marked(words.TURNS[area.turn], words.area_sentence(area), style))
    shown = [q for q in comparison.quantities if verbose or q.change is not Change.EQUAL]
    if shown:
        _rule(console, "Numbers")
        console.print(_numbers(shown, one, two, console.width, verbose))
    if comparison.claims:
        _rule(console, "Claims with another verdict")
        for claim in comparison.claims:
            style = "bold red" if claim.worse else ""
            turn = f"{words.verdict(claim.first)} → {words.verdict(claim.second)}"
            console.print(Text.assemble((turn, style), f"  {plain(claim.claim.statement)}"))
            place = " ".join(filter(None, (claim.finding, claim.claim.id)))
            console.print(Text(f"  {place}", style="dim"))
            for name, side in ((one, claim.first), (two, claim.second)):
                if numbers := words.comparison_of(side):
                    console.print(Text(f"  {name}: {numbers}", style="dim"))
    warnings = [w for w in comparison.warnings if verbose or w.state != "remains"]
    if warnings:
        _rule(console, "Defects")
        for warning in warnings:
            mark, style = ("!", "bold red") if warning.state == "new" else ("•", "")
            console.print(marked(mark, f"{warning.state}: {warning.sentence}", style))
    if comparison.gaps:
        _rule(console, "Findings of one audit only")
        for finding, first, second, reason in words.gap_rows(comparison):
            told = f"{finding}: {one} {first}, {two} {second}; {reason}"
            console.print(marked("•", told, ""))
    if comparison.facts:
        _rule(console, "Facts that differ")
        facts = Grid.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        facts.add_column(overflow="fold")
        for fact, pair in comparison.facts.items():
            facts.add_row(Text(fact), *map(Text, pair))
        console.print(facts)
    notes = [*comparison.remarks, *(words.notes(comparison) if verbose else [])]
    if notes:
        console.print()
    for note in notes:
        console.print(marked("•", note, "dim"))


def comparison_page(comparison: Comparison) -> str:
    """A complete page, without JavaScript or network."""
    one, two = comparison.names
    return page("comparison.html", f"{one} → {two}", plain_words=True, **_context(comparison))


def comparison_fragment(comparison: Comparison) -> str:
    """The same as a piece of HTML for a notebook."""
    return fragment("comparison.html", plain_words=True, **_context(comparison))


def comparison_markdown(comparison: Comparison) -> str:
    """The same as Markdown, for pull requests and wikis."""
    one, two = comparison.names
    blocks = [f"# {inline_text(one)} → {inline_text(two)}"]
    said = comparison.summary
    blocks.append(
        "\n".join(
            f"- **{inline_text(s)}**" if s in comparison.cautions else f"- {inline_text(s)}"
            for s in said
        )
    )
    for heading, table in _tables(comparison):
        blocks += [f"## {heading}", table_text(table, formulas=["statement"])]
    if notes := [*comparison.remarks, *words.notes(comparison)]:
        blocks.append("\n".join(f"- {inline_text(n)}" for n in notes))
    return "\n\n".join(blocks) + "\n"


def ratio_figure(comparison: Comparison) -> Figure | None:
    """The ratios of the numbers with their ranges, or None where fewer than two have one.

    What changed comes first, in color; what did not is gray, as far as there is room.
    """
    rows = [q for q in comparison.quantities if q.ratio is not None and q.change != Change.EQUAL]
    if sum(q.beyond_error for q in rows) < _FEWEST:
        return None
    rows = rows[:_DOTS]
    return draw(
        "ratios",
        lambda ax: _plot_ratios(ax, rows, comparison.names),
        caption="Ratio of the second to the first, with the range the two errors leave. Filled: "
        "changed; hollow: within the error.",
        size=(7.2, 1.0 + 0.27 * len(rows)),
    )


def _plot_ratios(ax: Any, rows: Sequence[QuantityChange], names: tuple[str, str]) -> None:
    for k, row in enumerate(rows):
        ratio = row.ratio
        assert ratio is not None
        color = COLORS[0] if row.beyond_error else "#8a8f98"
        if (span := row.ratio_range) is not None and span[0] < span[1]:
            ax.plot(span, (k, k), color=color, linewidth=2, solid_capstyle="butt")
        fill = color if row.beyond_error else "white"
        ax.plot(ratio, k, "o", color=color, markerfacecolor=fill, markersize=6)
    ax.axvline(1.0, color="black", linewidth=0.8)
    ax.set_xscale("log")
    _readable_ticks(ax)
    labels = [textwrap.shorten(r.label, 52, placeholder=" …") for r in rows]
    ax.set_yticks(range(len(rows)), [label_text(label) for label in labels])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    one, two = (textwrap.shorten(n, 30, placeholder=" …") for n in names)
    ax.set_xlabel(label_text(f"{two} / {one}"))
    ax.grid(visible=False, axis="y")


def _readable_ticks(ax: Any) -> None:
    """Ticks at round numbers: at powers of ten alone an axis from 0.5 to 3 would have one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = ax.get_xlim()
    low, high = min(low, 1 / 1.1), max(high, 1.1)
    ax.set_xlim(low, high)
    decades = high / low
    if decades < 3:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))
    elif decades < 300:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        ax.xaxis.set_major_locator(LogLocator(numticks=8))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number_text(x, 3)))


def _context(comparison: Comparison) -> dict[str, Any]:
    figure = ratio_figure(comparison)
    return {
        "comparison": comparison,
        "words": words,
        "figures": [] if figure is None else [figure],
        "beyond": [q for q in comparison.quantities if q.change is not Change.EQUAL],
        "equal": [q for q in comparison.quantities if q.change is Change.EQUAL],
    }


def _tables(comparison: Comparison) -> list[tuple[str, Table]]:
    """Everything but the summary, as tables under headings."""
    one, two = comparison.names
    found = []
    if comparison.areas:
        areas = tuple((a.area.question, a.first.state, a.second.state) for a in comparison.areas)
        found.append(("Areas", Table("areas", ("area", one, two), areas)))
    if comparison.quantities:
        columns = ("quantity", one, two, "factor", "", "decided by")
        rows = tuple(
            (
                words.labeled(q),
                *(" ".join(c).strip() for c in words.cells(q)),
                words.factor(q),
                f"{words.MARKS[q.change]} {q.change}",
                words.decided(q),
            )
            for q in comparison.quantities
        )
        found.append(("Numbers", Table("numbers", columns, rows)))
    if comparison.claims:
        claims = tuple(
            (
                c.claim.statement,
                c.finding,
                words.told(c.first),
                words.told(c.second),
            )
            for c in comparison.claims
        )
        columns_of_claims = ("statement", "finding", one, two)
        found.append(("Claims with another verdict", Table("claims", columns_of_claims, claims)))
    if comparison.warnings:
        warned = tuple((w.state, w.sentence, w.finding) for w in comparison.warnings)
        found.append(("Defects", Table("defects", ("", "defect", "finding"), warned)))
    if comparison.gaps:
        gaps = tuple(words.gap_rows(comparison))
        columns_of_gaps = ("finding", one, two, "why")
        found.append(("Findings of one audit only", Table("findings", columns_of_gaps, gaps)))
    if comparison.facts:
        facts = tuple((name, *pair) for name, pair in comparison.facts.items())
        found.append(("Facts that differ", Table("facts", ("fact", one, two), facts)))
    return found


def _numbers(rows: Sequence[QuantityChange], one: str, two: str, width: int, verbose: bool) -> Grid:
    wide = width >= WIDE
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("", no_wrap=True)
    grid.add_column("quantity", min_width=16, overflow="fold")
    for name in (one, two):
        grid.add_column(Text(name), justify="right", overflow="fold", max_width=26 if wide else 16)
    grid.add_column("factor", justify="right", no_wrap=True)
    if verbose and wide:
        grid.add_column("decided by", overflow="fold", style="dim")
    for row in rows:
        word = str(row.change) if wide else row.change.split()[0] if width >= _NARROW else ""
        label = Text(words.labeled(row))
        if verbose and not wide:
            label.append(f"\n{words.decided(row)}", style="dim")
        cells = [
            Text(f"{words.MARKS[row.change]} {word}".strip(), style=_STYLES[row.change]),
            label,
            # the range on a line of its own, where there is one
            *(Text((" " if wide else "\n").join(c).strip()) for c in words.cells(row)),
            Text(words.factor(row)),
        ]
        grid.add_row(*cells, *([Text(words.decided(row))] if verbose and wide else []))
    return grid


def _rule(console: Console, heading: str) -> None:
    console.print()
    console.rule(Text(heading, style="bold"), align="left", characters="─")
