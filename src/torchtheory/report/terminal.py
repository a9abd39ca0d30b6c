"""Results in a terminal: tables that read well at 80 columns, in color or through a pipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.console import (
    Console,
    ConsoleOptions,
    Grid,
    Group,
    Padding,
    RenderableType,
    Segment,
    Text,
    box,
)
from torchtheory.core.foreign_text import printable
from torchtheory.core.record import Cell, Table
from torchtheory.core.statement import CounterExample
from torchtheory.report import wording
from torchtheory.report.numbers import duration, number_text
from torchtheory.report.plain_math import plain, plain_prose
from torchtheory.report.results import AuditResult, Content, LabRun, by_section, quantity_table

_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.VACUOUS: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.NOT_DONE: "dim",
}
# From this width on, words need not be broken.
WIDE = 110
_ROWS = 20

#: What turns words into what is shown: formulas of a lab's author, or a user's words as they are.
Reading = Callable[[str], str]


class Terminal(Console):
    """A console that shows no control character of the text it is given, whoever wrote it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # what rich itself wants of the terminal
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def print_run(run: LabRun, console: Console, verbose: bool = False) -> None:
    """Print one lab run.

    Args:
        run: the run.
        console: where to.
        verbose: also the description, parameters, reasons, controls, tables and figures; without
            it, tables are shown only where there is no claim.
    """
    _heading(console, run.lab.title, f"{run.lab.room}/{run.lab.name}")
    settings = [f"{run.preset}, seed {run.seed}"]
    if verbose:
        settings += [f"{name}={wording.shown(v)}" for name, v in run.parameters.items()]
    console.print(Text(" · ".join([*settings, duration(run.seconds)]), style="dim"))
    if verbose and run.lab.description:
        for paragraph in _paragraphs(run.lab.description):
            console.print()
            console.print(Text(paragraph))
    console.print()
    # a bound far from an experiment that was chosen for it is worth a word, one of an audit is not
    _print_content(run, console, verbose, plain_prose, tables=verbose or not run.claims, weak=True)
    for problem in run.problems:
        console.print(marked("✗", plain_prose(problem), "bold red"))
    word, style = ("passes", "bold green") if run.passed else ("fails", "bold red")
    console.print(Text.assemble((word, style), f": {wording.summary(run)}"))


def print_runs(runs: Sequence[LabRun], console: Console) -> None:
    """Print a table of many runs, the reasons of those that fail, and the counts."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("verdict", no_wrap=True)
    grid.add_column("lab", overflow="fold")
    for name in ("claims", "controls", "errata", "time"):
        grid.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(runs, key=lambda r: (wording.room_order(r.lab.room), r.lab.name))
    room = None
    failing = []
    for run in ordered:
        if run.lab.room != room:
            room = run.lab.room
            if grid.row_count:
                grid.add_row()
            grid.add_row("", Text(room, style="bold"))
        passed = run.passed
        if not passed:
            failing.append(run)
        grid.add_row(
            _word("passes", "✓", "green") if passed else _word("fails", "✗", "bold red"),
            Text(run.lab.name),
            str(len(run.claims)),
            str(len(wording.controls(run.claims))),
            str(len(run.errata)) if run.errata else "–",
            duration(run.seconds),
        )
    if runs:
        console.print(grid)
        console.print()
    for run in failing:
        console.print(Text.assemble((run.lab.name, "bold"), f" ({run.preset}, seed {run.seed})"))
        for problem in run.problems:
            console.print(marked("✗", plain_prose(problem), "red"))
    claims = [c for run in runs for c in run.claims]
    parts = [
        f"{wording.counted(len(runs), 'lab')}, {len(failing) or 'none'} failing"
        if runs
        else "no labs",
        f"{wording.counted(len(claims), 'claim')}"
        + (f": {wording.tally(claims)}" if claims else ""),
        wording.counted(len(wording.controls(claims)), "control"),
        wording.counted(sum(len(r.errata) for r in runs), "erratum", "errata"),
        duration(sum(r.seconds for r in runs)),
    ]
    console.print(Text(" · ".join(parts), style="bold red" if failing else "bold"))


def print_audit(audit: AuditResult, console: Console, verbose: bool = False) -> None:
    """Print an audit: the facts, the short answer, then each section's findings.

    Its words quote names and messages of the user's model: a dollar in them is a dollar.
    """
    console.print(Text(audit.title, style="bold"))
    if audit.facts:
        facts = Grid.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, value in audit.facts.items():
            facts.add_row(Text(name), Text(str(value)))
        console.print(facts)
    console.print()
    for sentence in audit.summary:
        wrong = sentence in audit.warnings
        mark, style = ("!", "bold red") if wrong else ("•", "")
        console.print(marked(mark, sentence, style))
    for section, found in by_section(audit.findings).items():
        console.print()
        console.rule(Text(section, style="bold"), align="left", characters="─")
        for finding in found:
            console.print(
                Text.assemble(
                    (plain_prose(finding.title), "bold"),  # its author's words, not the user's
                    (f"  {finding.cost}, {duration(finding.seconds)}", "dim"),
                )
            )
            for sentence in finding.warnings:
                console.print(marked("!", sentence, "bold red"))
            for sentence in finding.advice:
                console.print(marked("→", sentence, "bold"))
            if finding.quantities:
                console.print(_data(quantity_table(finding.quantities), str))
                console.print()
            _print_content(finding, console, verbose, str, tables=True)
    claims = [c for f in audit.findings for c in f.claims]
    counts = f": {wording.tally(claims)}" if claims else ""
    console.print(Text(wording.counted(len(claims), "claim") + counts, style="bold"))


def _print_content(
    content: Content,
    console: Console,
    verbose: bool,
    read: Reading,
    *,
    tables: bool,
    weak: bool = False,
) -> None:
    if content.claims:
        console.print(_claims(content.claims, console.width, verbose, weak, read))
        console.print()
    for erratum in content.errata:
        console.print(erratum_block(erratum))
    if tables:
        for table in content.tables:
            console.print(_data(table, read))
            console.print()
    if verbose:
        for figure in content.figures:
            console.print(marked("▪", f"{figure.name}: {read(figure.caption)}", "dim"))
    for note in content.notes:
        console.print(marked("•", read(note), ""))


def _claims(claims: Sequence[Claim], width: int, verbose: bool, weak: bool, read: Reading) -> Grid:
    wide = width >= WIDE
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), expand=True)
    grid.add_column("verdict", width=16 if wide else 10)
    grid.add_column("statement", ratio=5, min_width=20, overflow="fold")
    grid.add_column("measured", justify="right", max_width=18, overflow="fold")
    grid.add_column("", width=1)
    grid.add_column("promised", max_width=12, overflow="fold")
    grid.add_column("id", max_width=20 if wide else 6, overflow="fold")
    for claim in claims:
        details = [Text(plain(claim.statement))]
        if claim.reason and (verbose or claim.verdict is not Verdict.HOLDS):
            details.append(Text(read(claim.reason), style="dim"))
        if verbose or (weak and claim.weaknesses):
            details += [Text(read(w), style="dim") for w in wording.power_words(claim)]
        if verbose and claim.interval is not None:
            details.append(Text(wording.interval_basis(claim), style="dim"))
        if verbose and (source := wording.source(claim)):
            details.append(Text(source, style="dim italic"))
        grid.add_row(
            _word(str(claim.verdict), wording.MARKS[claim.verdict], _STYLES[claim.verdict]),
            Group(*details),
            *_comparison(claim),
            Text((" " if wide else "\n").join(wording.few(claim.ids)), style="dim"),
        )
        control = claim.control
        if control is not None and (verbose or control.verdict is not Verdict.VIOLATED):
            good = control.verdict is Verdict.VIOLATED
            grid.add_row(
                Text("  control:", style="dim" if good else "bold red"),
                Text.assemble(
                    (wording.control_words(control), "" if good else "bold red"),
                    (f" – {read(control.reason)}" if control.reason else "", "dim"),
                ),
                *_comparison(control),
                "",
            )
    return grid


def _comparison(claim: Claim) -> tuple[RenderableType, RenderableType, RenderableType]:
    how = wording.claim_relation(claim)
    if how is None:
        return "–", "", ""
    measured = [number_text(claim.measured, how.digits)]
    if claim.interval is not None:
        low, high = number_text(claim.interval.low, 3), number_text(claim.interval.high, 3)
        measured += [f"[{low}, {high}]", wording.at_confidence(claim)]
    if claim.cases > 1:
        measured.append(f"worst of {claim.cases:,}")
    if how.off is not None:
        measured.append(f"off by {number_text(how.off, 2)}")
    promised = [number_text(claim.promised, how.digits)]
    if how.margin is not None:
        promised.append(f"± {number_text(how.margin, 2)}")
    return _lines(measured), how.relation, _lines(promised)


def _lines(lines: list[str]) -> Text:
    text = Text(lines[0])
    for line in lines[1:]:
        text.append("\n" + line, style="dim")
    return text


def erratum_block(erratum: CounterExample) -> RenderableType:
    claim, text = erratum.claim, erratum.text
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    good = claim.verdict is Verdict.VIOLATED
    grid.add_row(
        Text("erratum"),
        Text.assemble(
            (erratum.key, "bold"),
            f" ({text.id}) ",
            (wording.erratum_words(claim), "green" if good else "bold red"),
        ),
    )
    grid.add_row(Text("printed"), Text(plain_prose(text.printed)))
    grid.add_row(Text("correct"), Text(plain_prose(text.correct)))
    numbers = [plain(claim.statement)]
    how = wording.claim_relation(claim)
    if how is not None:
        measured = number_text(claim.measured, how.digits)
        promised = number_text(claim.promised, how.digits)
        numbers.append(f"measured {measured} {how.relation} promised {promised}")
    if claim.reason:
        numbers.append(plain_prose(claim.reason))
    grid.add_row(Text("example"), Text("; ".join(numbers)))
    return Padding(grid, (0, 0, 1, 0))


def _data(table: Table, read: Reading) -> RenderableType:
    caption = read(table.caption)
    if len(table.rows) > _ROWS:
        caption = f"{caption} (the first {_ROWS} of {len(table.rows):,} rows)".strip()
    title = Text.assemble((table.name, "bold"), f": {caption}" if caption else "")
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, numeric in zip(table.columns, wording.numeric_columns(table), strict=True):
        justify: Literal["left", "right"] = "right" if numeric else "left"
        grid.add_column(Text(read(column)), overflow="fold", justify=justify)
    for row in table.rows[:_ROWS]:
        grid.add_row(*[_cell(value, read) for value in row])
    return Group(title, grid)


def _cell(value: Cell, read: Reading) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, str):
        return Text(read(value))
    return Text(number_text(value))


def _paragraphs(docstring: str) -> list[str]:
    """Paragraphs whose lines are joined, lists whose items keep theirs."""
    found = []
    for block in re.split(r"\n\s*\n", docstring.strip()):
        items = re.split(r"(?m)^\s*(?=[-*] )", block)
        text = "\n".join(" ".join(item.split()) for item in items if item.strip())
        found.append(plain_prose(text).replace("``", "`"))
    return found


def _heading(console: Console, title: str, place: str) -> None:
    console.print(
        Text.assemble((plain_prose(title), "bold"), (f"  {place}" if place else "", "dim"))
    )


def _word(word: str, mark: str, style: str) -> Text:
    return Text(f"{mark} {word}", style=style)


def marked(mark: str, sentence: str, style: str) -> RenderableType:
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style=style), Text(sentence, style=style))
    return grid
