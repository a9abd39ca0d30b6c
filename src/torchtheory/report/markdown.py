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
from torchtheory.core.foreign_text import one_line
from torchtheory.core.record import Cell, Table
from torchtheory.report import wording
from torchtheory.report.numbers import duration, number_text
from torchtheory.report.plain_math import formula_spans
from torchtheory.report.results import AuditFinding, AuditResult, by_section, quantity_table

_ROWS = 40


def audit_markdown(audit: AuditResult) -> str:
    """The whole audit: summary, facts, then each section with claims, numbers and tables.

    Figures are linked as `figures/FINDING-FIGURE.png`, where `Audit.save` puts them.
    """
    claims = [c for f in audit.findings for c in f.claims]
    blocks = [f"# {inline_text(audit.title)}"]
    if audit.summary:
        blocks.append("\n".join(f"- {_bold(s, s in audit.warnings)}" for s in audit.summary))
    if audit.facts:
        blocks.append(
            " · ".join(f"{inline_text(k)}: {inline_text(v)}" for k, v in audit.facts.items())
        )
    blocks.append(f"{wording.counted(len(claims), 'claim')}: {wording.tally(claims) or 'none'}")
    for heading, found in by_section(audit.findings).items():
        blocks.append(f"## {_title(heading)}")
        for finding in found:
            blocks += _finding(finding)
    return "\n\n".join(blocks) + "\n"


def _finding(finding: AuditFinding) -> list[str]:
    blocks = [f"### {_title(finding.title)}"]
    said = [f"- **{inline_text(s)}**" for s in finding.warnings]
    said += [f"- → {inline_text(s)}" for s in finding.advice]
    if said:
        blocks.append("\n".join(said))
    if finding.quantities:
        blocks.append(table_text(quantity_table(finding.quantities)))
    if finding.claims:
        blocks.append(_claims(finding.claims))
    for figure in finding.figures:
        place = quote(f"figures/{finding.name}-{figure.name}.png")
        blocks.append(f"![{inline_text(figure.caption or figure.name)}]({place})")
    blocks += [table_text(table) for table in finding.tables]
    if finding.notes:
        blocks.append("\n".join(f"- {inline_text(note)}" for note in finding.notes))
    blocks.append(
        f"*{inline_text(f'{finding.name}, {finding.cost}')}, {duration(finding.seconds)}*"
    )
    return blocks


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


def _title(words: str) -> str:
    pieces = formula_spans(one_line(words))
    return "".join(f"${_formula(p)}$" if is_formula else _escaped(p) for is_formula, p in pieces)


def _formula(latex: str) -> str:
    r"""A bar would end the cell of a table, a `<` may begin a tag."""
    plain = one_line(latex).replace(r"\|", r"\Vert ").replace("|", r"\vert ")
    return plain.replace("<", r"\lt ").replace("$", r"\$")


def _bold(sentence: str, bold: bool) -> str:
    return f"**{inline_text(sentence)}**" if bold else inline_text(sentence)
