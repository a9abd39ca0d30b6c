"""Results in a terminal: tables that read well at 80 columns, in color or through a pipe."""

from __future__ import annotations

import io
import re
import textwrap
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
from torchtheory.core.diagnosis import Assessment, State
from torchtheory.core.foreign_text import printable
from torchtheory.core.quantity import LONGEST_LABEL
from torchtheory.core.record import Cell, Table
from torchtheory.core.statement import CounterExample
from torchtheory.report import wording
from torchtheory.report.audit_parts import (
    OUR_ERROR,
    AreaRow,
    AuditParts,
    FindingPart,
    audit_parts,
    check_words,
    short_facts,
    task_line,
)
from torchtheory.report.lab_parts import suggestion_line, suggestions
from torchtheory.report.numbers import duration, number_text
from torchtheory.report.plain_math import plain, plain_prose
from torchtheory.report.results import AuditResult, Content, LabRun, quantity_table

_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.VACUOUS: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.NOT_DONE: "dim",
}
_STATE_STYLES = {
    State.DEFECT: "bold red",
    State.LOOK: "yellow",
    State.OPEN: "cyan",
    State.FINE: "green",
    State.UNMEASURED: "dim",
}
# From this width on, words need not be broken.
WIDE = 110
# Below this width an area's name is broken more often.
_NARROW = 72
# Lines of the first screen of an audit, at 80 columns, and the cuts that are tried until it fits:
# most lines of a sentence, a number and an action where something needs a look; then of a sentence
# and a number where nothing does.
_SCREEN = 38
_CUTS = (
    (9, 9, 9),
    (9, 3, 2),
    (9, 3, 1),
    (9, 2, 1),
    (5, 2, 1),
    (4, 2, 1),
    (3, 2, 1),
    (2, 2, 1),
    (2, 1, 1),
    (2, 0, 1),
    (1, 0, 1),
)
_SERIOUS = (State.DEFECT, State.LOOK)
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
        for paragraph in docstring_paragraphs(run.lab.description):
            console.print()
            console.print(Text(paragraph))
    console.print()
    if verbose and wording.controls(run.claims):
        console.print(Text(wording.CONTROL, style="dim"))
        console.print()
    # a bound far from an experiment that was chosen for it is worth a word, one of an audit is not
    _print_content(run, console, verbose, plain_prose, tables=verbose or not run.claims, weak=True)
    for problem in run.problems:
        console.print(marked("✗", plain_prose(problem), "bold red"))
    word, verdict = wording.outcome(run)
    style = f"bold {_STYLES[verdict]}"
    console.print(Text.assemble((word, style), f": {wording.summary(run)}"))
    if line := suggestion_line(suggestions(run.lab, run.parameters)):
        console.print(Text(f"try: {line}", style="dim"))


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
        word, verdict = wording.outcome(run)
        if verdict is Verdict.VIOLATED:
            failing.append(run)
        grid.add_row(
            _word(word, wording.MARKS[verdict], _STYLES[verdict]),
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


def print_audit(audit: AuditResult, console: Console, details: bool = False) -> None:
    """Print an audit: the verdict, and a table of the areas, on one screen of 80 columns.

    Its words quote names and messages of the user's model: a dollar in them is a dollar.

    Args:
        audit: what was found.
        console: where to.
        details: also every finding with its numbers and claims, what does not apply, what was not
            done, the self-checks and the sources.
    """
    parts = audit_parts(audit)
    console.print(_first_screen(parts, console))
    if details:
        _print_details(parts, console)


def audit_text(audit: AuditResult, width: int = 88) -> str:
    """The first screen as plain text, for `repr` and logs."""
    out = io.StringIO()
    console = Terminal(file=out, width=width, color_system=None, force_terminal=False)
    console.print(_first_screen(audit_parts(audit), console))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _first_screen(parts: AuditParts, console: Console) -> RenderableType:
    """Title, verdict, areas and facts, cut until they fit a screen of 80 columns."""
    made: RenderableType = ""
    for lines in _CUTS:
        made = _screen(parts, console.width, *lines)
        if len(console.render_lines(made)) <= _SCREEN:
            break
    return made


def _screen(
    parts: AuditParts, width: int, serious: int, sentence: int, number: int
) -> RenderableType:
    """The first screen, with at most so many lines for each thing that is said; see `_CUTS`."""
    audit = parts.audit
    style = _STATE_STYLES[parts.state]
    blocks: list[RenderableType] = [
        Text(audit.title, style="bold", no_wrap=True, overflow="ellipsis"),
        Text(_cut(audit.verdict, width, serious + 3), style=style),
    ]
    if line := task_line(audit):
        blocks.append(Text(_cut(line, width, max(3, min(serious, 5))), style="dim"))
    for title, claim in parts.broken:
        words = f"{plain_prose(title)}: {plain(claim.statement)}. {OUR_ERROR}"
        blocks.append(marked("✗", _cut(words, width - 2, serious + 2), "bold red"))
    states, names = 14, 19 if width >= _NARROW else 12
    grid = Grid.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, width=states)
    grid.add_column(width=names)
    grid.add_column(overflow="fold", ratio=1)
    room = max(20, width - (states + 2 + names + 2))
    for row in parts.rows:
        lines = (serious, serious) if row.state in _SERIOUS else (sentence, number)
        grid.add_row(
            _word(str(row.state), row.mark, _STATE_STYLES[row.state]),
            Text(row.name),
            Group(*_said_of(row, room, *lines)),
        )
    blocks += ["", grid, ""]
    facts = " · ".join(short_facts(audit))
    blocks.append(Text(_cut(facts, width, min(serious, 2)), style="dim"))
    return Group(*blocks)


def _said_of(row: AreaRow, room: int, sentence: int, number: int) -> list[Text]:
    """What was found, the number that decides, and what to do, in at most so many lines each."""
    said = []
    # what is open is a number and what is usual of it, and the sentence says no more
    undecided = row.state is State.OPEN and bool(row.number)
    if (sentence and not undecided) or not row.number:
        style = "dim" if row.state is State.UNMEASURED else ""
        said.append(Text(_cut(row.sentence, room, sentence or 1), style=style))
    if row.number:
        words = f"{row.label}: {row.number}"
        if len(textwrap.wrap(words, room)) > number:  # where lines are few, its samples go first
            words = f"{row.label}: {row.number.partition(', from ')[0]}"
        usual = f"{words}; usual: {row.usual}"
        if row.usual and (undecided or len(textwrap.wrap(usual, room)) <= number):
            words = usual
        if len(row.label) > LONGEST_LABEL:  # of somebody else's finding
            words = _cut(_named(row.label, row.number, room, min(number, 2)), room, number)
        style = "" if undecided else "dim"
        said.append(Text(textwrap.fill(printable(words), room), style=style))
    if row.action:
        style = "bold" if row.state in _SERIOUS else ""
        said.append(Text(_cut(f"→ {row.action}", room, max(sentence, 1)), style=style))
    return said


def _named(label: str, words: str, room: int, lines: int) -> str:
    """A number behind its name, which is cut where both do not fit: never the number.

    >>> _named("error rate on new data", "0.031 (0.02 to 0.05)", 36, 1)
    'error rate …: 0.031 (0.02 to 0.05)'
    """
    parts = label.split()
    for count in range(len(parts), 0, -1):
        short = " ".join(parts[:count]) + (" …" if count < len(parts) else "")
        if len(textwrap.wrap(f"{short}: {words}", room)) <= lines:
            return f"{short}: {words}"
    return words


def _cut(words: str, width: int, lines: int) -> str:
    """The words, at most so many lines of them."""
    found = textwrap.wrap(printable(words), max(8, width), max_lines=lines, placeholder=" …")
    return "\n".join(found)


def _print_details(parts: AuditParts, console: Console) -> None:
    audit = parts.audit
    if audit.facts:
        _rule(console, "What was audited")
        facts = Grid.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, value in audit.facts.items():
            facts.add_row(Text(name), Text(str(value)))
        console.print(facts)
    for area in parts.areas:
        _rule(console, f"{area.row.mark} {area.row.name}")
        for said, _ in area.said_elsewhere:
            _print_assessment(said, console)
        for part in area.findings:
            _print_finding(part, console)
    for heading, omissions in (
        ("What does not apply, and why", parts.inapplicable),
        ("Not done for lack of time or memory", parts.undone),
    ):
        if omissions:
            _rule(console, heading)
        for omission in omissions:
            console.print(marked("–", omission.reason, ""))
            named = "; ".join([*map(plain, omission.statements), *omission.ids])
            console.print(Padding(Text(named, style="dim"), (0, 0, 0, 2)))
    _rule(console, "How this was checked")
    about = parts.claims
    counts = f": {wording.tally(about)}" if about else ""
    console.print(Text(f"{wording.counted(len(about), 'claim')} about the network{counts}."))
    console.print(Text(check_words(parts.self_checks)))
    if parts.self_checks:
        console.print(_claims(parts.self_checks, console.width, True, False, str))
    if parts.references:
        _rule(console, "Sources")
    for one in parts.references:
        console.print(Text.assemble((one.id, "bold"), f" {one.name}"))
        console.print(Padding(Text(one.citation, style="dim"), (0, 0, 0, 2)))
        for lab in one.labs[:1]:
            console.print(Padding(Text(f"torchtheory lab run {lab}", style="dim"), (0, 0, 0, 2)))


def _print_finding(part: FindingPart, console: Console) -> None:
    finding = part.finding
    console.print()
    console.print(Text(plain_prose(finding.title), style="bold"))  # its author's words
    for sentence in part.sentences:
        console.print(Text(sentence))
    for said in finding.assessments:
        _print_assessment(said, console)
    for sentence in finding.advice:
        console.print(marked("→", sentence, "bold"))
    if finding.quantities:
        console.print(_data(quantity_table(finding.quantities), str, named=False))
        console.print()
    if part.claims:
        console.print(_claims(part.claims, console.width, True, False, str))
        console.print()
    _print_rest(finding, console, True, str, tables=True, named=False)


def _print_assessment(said: Assessment, console: Console) -> None:
    row = AreaRow.of(said)
    usual = f" Usual: {row.usual}." if row.usual else ""
    action = f" {row.action}" if row.action else ""
    words = f"{row.state}: {row.sentence}{usual}{action}"
    console.print(marked(row.mark, words, _STATE_STYLES[row.state]))


def _rule(console: Console, heading: str) -> None:
    console.print()
    console.rule(Text(heading, style="bold"), align="left", characters="─")


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
    _print_rest(content, console, verbose, read, tables=tables)


def _print_rest(
    content: Content,
    console: Console,
    verbose: bool,
    read: Reading,
    *,
    tables: bool,
    named: bool = True,
) -> None:
    """Everything but the claims; `named`: with the names of tables and figures."""
    for erratum in content.errata:
        console.print(erratum_block(erratum))
    if tables:
        for table in content.tables:
            console.print(_data(table, read, named=named))
            console.print()
    if verbose:
        for figure in content.figures:
            name = figure.name if named else "picture"
            console.print(marked("▪", f"{name}: {read(figure.caption)}", "dim"))
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


def _data(table: Table, read: Reading, *, named: bool = True) -> RenderableType:
    caption = read(table.caption)
    if len(table.rows) > _ROWS:
        caption = f"{caption} (the first {_ROWS} of {len(table.rows):,} rows)".strip()
    title = Text.assemble((table.name, "bold"), f": {caption}" if caption else "")
    if not named:
        title = Text(caption)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, numeric in zip(table.columns, wording.numeric_columns(table), strict=True):
        justify: Literal["left", "right"] = "right" if numeric else "left"
        grid.add_column(Text(read(column)), overflow="fold", justify=justify)
    for row in table.rows[:_ROWS]:
        grid.add_row(*[_cell(value, read) for value in row])
    return Group(title, grid) if title else grid


def _cell(value: Cell, read: Reading) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, str):
        return Text(read(value))
    return Text(number_text(value))


def docstring_paragraphs(docstring: str) -> list[str]:
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
