r"""An audit as Markdown: for pull requests, wikis and chat, where a page cannot be opened.

Formulas stay LaTeX between dollar signs, which GitHub, GitLab and notebooks render. They stand in
the statements of claims and the titles of findings; all other words may quote the user's model, and
mean themselves, whatever characters they have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from urllib.parse import quote

from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Assessment
from torchtheory.core.figure import Figure
from torchtheory.core.foreign_text import one_line
from torchtheory.core.record import Cell, Table
from torchtheory.report import wording
from torchtheory.report.audit_parts import (
    OUR_ERROR,
    AreaRow,
    AuditParts,
    FindingPart,
    Omission,
    Reference,
    audit_parts,
    check_words,
    short_facts,
    task_line,
    timing_table,
)
from torchtheory.report.numbers import number_text
from torchtheory.report.plain_math import formula_spans
from torchtheory.report.results import AuditResult, quantity_table

_ROWS = 40

#: Code hosts refuse a comment of more than 65,536 characters; some are left for what a bot adds.
_LONGEST = 60_000
_CUT = "*The rest was too long for a comment; it is in `report.html`.*"


def audit_markdown(audit: AuditResult) -> str:
    """The verdict and the table of areas, and the rest in folds: it fits a pull request.

    What would be too long for a comment there is left out and said to be in the page: first the
    tables, then the claims of findings, then the last folds.

    Figures are linked as `figures/FINDING-FIGURE.png`, where `Audit.save` puts them.
    """
    parts = audit_parts(audit)
    head = _head(parts)
    folds: list[str] = []
    for tables, claims in ((True, True), (False, True), (False, False)):
        folds = _folds(parts, tables=tables, claims=claims)
        if sum(map(len, [head, *folds])) <= _LONGEST:
            return "\n\n".join([head, *folds, *([] if tables else [_CUT])]) + "\n"
    while folds and sum(map(len, [head, *folds])) > _LONGEST:
        folds.pop()
    return "\n\n".join([head, *folds, _CUT]) + "\n"


def _head(parts: AuditParts) -> str:
    """What stands outside of folds: title, verdict, table of areas, what was audited."""
    audit = parts.audit
    blocks = [f"# {inline_text(audit.title)}", f"**{inline_text(audit.verdict)}**"]
    if line := task_line(audit):
        blocks.append(inline_text(line))
    blocks += [
        f"- **✗ {prose_text(title)}: ${_formula(claim.statement)}$. {OUR_ERROR}**"
        for title, claim in parts.broken
    ]
    if parts.rows:
        blocks.append(_areas(parts.rows))
    blocks.append(inline_text(" · ".join(short_facts(audit))))
    return "\n\n".join(blocks)


def _folds(parts: AuditParts, *, tables: bool, claims: bool) -> list[str]:
    """Everything else; without the tables or the claims of findings if told."""
    audit = parts.audit
    folds = []
    if audit.pictures:
        folds.append(_fold("Pictures", [_picture(name, f) for name, f in audit.pictures]))
    if audit.facts:
        facts = [f"- {inline_text(k)}: {inline_text(v)}" for k, v in audit.facts.items()]
        folds.append(_fold("What was audited", ["\n".join(facts)]))
    for area in parts.areas:
        inside = ["\n".join(_assessment(said) for said, _ in area.said_elsewhere)]
        for part in area.findings:
            inside += _finding(part, tables=tables, claims=claims)
        folds.append(_fold(f"{area.row.mark} {area.row.name}: {area.row.state}", inside))
    for heading, omissions in (
        ("What does not apply, and why", parts.inapplicable),
        ("Not done for lack of time or memory", parts.undone),
    ):
        if omissions:
            folds.append(_fold(heading, ["\n".join(map(_omission, omissions))]))
    about = parts.claims
    counts = f": {wording.tally(about)}" if about else ""
    inside = [f"{wording.counted(len(about), 'claim')} about the network{counts}."]
    inside.append(check_words(parts.self_checks))
    if parts.self_checks and claims:
        inside.append(_claims(parts.self_checks))
    if audit.findings:
        inside.append(table_text(timing_table(audit.findings)))
    folds.append(_fold("How this was checked", inside))
    if parts.references:
        folds.append(_fold("Sources", ["\n".join(map(_reference, parts.references))]))
    return folds


def _fold(heading: str, inside: Sequence[str]) -> str:
    """Blocks that open on demand; the heading is ours, no word of it comes from outside."""
    opening = f"<details>\n<summary>{heading}</summary>"
    return "\n\n".join([opening, *(block for block in inside if block), "</details>"])


def _areas(rows: Sequence[AreaRow]) -> str:
    lines = [
        "| area | state | what was found | number | usual | what to do |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        number = f"{row.label}: {row.number}" if row.number else ""
        cells = map(inline_text, (row.sentence, number, row.usual, row.action))
        lines.append(f"| {row.name} | {row.mark} {row.state} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _assessment(said: Assessment) -> str:
    row = AreaRow.of(said)
    words = f"{row.sentence} Usual: {row.usual}." if row.usual else row.sentence
    line = f"- {row.mark} {row.state}: {inline_text(words)}"
    return f"{line} **{inline_text(row.action)}**" if row.action else line


def _omission(omission: Omission) -> str:
    formulas = ", ".join(f"${_formula(statement)}$" for statement in omission.statements)
    ids = f" ({inline_text(', '.join(omission.ids))})" if omission.ids else ""
    return f"- {inline_text(omission.reason)} {formulas}{ids}"


def _reference(one: Reference) -> str:
    labs = "".join(f"; `torchtheory lab run {lab}`" for lab in one.labs[:1])
    return f"- **{one.id}** {inline_text(one.name)} ({inline_text(one.citation)}){labs}"


def _picture(finding: str, figure: Figure) -> str:
    place = quote(f"figures/{finding}-{figure.name}.png")
    return f"![{inline_text(figure.caption or figure.name)}]({place})"


def _finding(part: FindingPart, *, tables: bool, claims: bool) -> list[str]:
    finding = part.finding
    blocks = [f"### {prose_text(finding.title)}"]
    said = [f"- {inline_text(s)}" for s in part.sentences]
    said += [_assessment(a) for a in finding.assessments]
    said += [f"- → {inline_text(s)}" for s in finding.advice]
    if said:
        blocks.append("\n".join(said))
    if finding.quantities:
        blocks.append(table_text(quantity_table(finding.quantities)))
    if part.claims and claims:
        blocks.append(_claims(part.claims))
    blocks += [_picture(finding.name, figure) for figure in part.figures]
    blocks += [table_text(table) for table in finding.tables if tables]
    if finding.notes:
        blocks.append("\n".join(f"- {inline_text(note)}" for note in finding.notes))
    return blocks if len(blocks) > 1 else []  # all it has may have been left out for its length


def _claims(claims: Sequence[Claim]) -> str:
    lines = ["| verdict | statement | measured | | promised |", "|---|---|---:|:-:|:---|"]
    for claim in claims:
        statement = f"${_formula(claim.statement)}$"
        if claim.reason:
            statement += f" {inline_text(claim.reason)}"
        for words in wording.power_words(claim):
            statement += f" *{inline_text(words)}*"
        if claim.ids:
            statement += f" ({inline_text(', '.join(claim.ids))})"
        how = wording.claim_relation(claim)
        numbers = ("–", "", "–")
        if how is not None:
            numbers = (
                number_text(claim.measured, how.digits),
                how.relation,
                number_text(claim.promised, how.digits),
            )
        mark = wording.MARKS[claim.verdict]
        lines.append(f"| {mark} {claim.verdict} | {statement} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def table_text(table: Table, formulas: Collection[str] = ()) -> str:
    """A table in Markdown; the columns named in `formulas` hold LaTeX."""
    numeric = wording.numeric_columns(table)
    latex = [column in formulas for column in table.columns]
    lines = [
        "| " + " | ".join(inline_text(c) for c in table.columns) + " |",
        "|" + "|".join("---:" if n else "---" for n in numeric) + "|",
    ]
    for row in table.rows[:_ROWS]:
        cells = (_cell(cell, is_latex) for cell, is_latex in zip(row, latex, strict=True))
        lines.append("| " + " | ".join(cells) + " |")
    caption = inline_text(table.caption)
    if len(table.rows) > _ROWS:
        caption = f"{caption} The first {_ROWS} of {len(table.rows)} rows.".strip()
    return "\n".join(lines) + (f"\n\n{caption}" if caption else "")


def _cell(value: Cell, is_latex: bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return number_text(value)
    return f"${_formula(value)}$" if is_latex else inline_text(value)


# Marks, formulas and references to characters; a hyphen or plus that begins a list; the punctuation
# of addresses that become links by themselves.
_MARKUP = re.compile(r"[\\`*_<>\[\]|#~$&]|^[-+=]|:(?=//)|(?<=www)\.", re.IGNORECASE)


def inline_text(words: str) -> str:
    r"""Words that mean themselves: nothing in them is taken for markup.

    >>> print(inline_text("[layer](http://a.b) <b> costs $5 & `more`"))
    \[layer\](http\://a.b) \<b\> costs \$5 \& \`more\`
    """
    escaped = _escaped(one_line(str(words)))
    return re.sub(r"^(\d{1,9})([.)])(?=\s|$)", r"\1\\\2", escaped)  # the first of a list


def _escaped(words: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", words)


def prose_text(words: str) -> str:
    r"""Words of ours with `$formulas$` and code in them, on one line.

    >>> print(prose_text("at most $n_1<2$ *steps* of `x*y`"))
    at most $n_1\lt 2$ \*steps\* of `x*y`
    """
    pieces = formula_spans(one_line(words))
    return "".join(f"${_formula(p)}$" if is_formula else _with_code(p) for is_formula, p in pieces)


def _with_code(words: str) -> str:
    """Escaped but for what stands between backticks."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", words)
    return "".join(p if k % 2 else _escaped(p) for k, p in enumerate(pieces))


def _formula(latex: str) -> str:
    r"""A bar would end the cell of a table, a `<` may begin a tag."""
    plain = one_line(latex).replace(r"\|", r"\Vert ").replace("|", r"\vert ")
    return plain.replace("<", r"\lt ").replace("$", r"\$")
