"""What changed between two audits, as a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtheory.audit.comparison import words
from torchtheory.audit.comparison.rows import AreaChange, WarningChange
from torchtheory.core.diagnosis import Assessment, State
from torchtheory.core.record import Table
from torchtheory.report.markdown import inline_text, table_text
from torchtheory.report.wording import counted

if TYPE_CHECKING:
    from torchtheory.audit.comparison.compare import Comparison

#: A comment that no reader sees, by which a program finds its own comment to replace it.
MARKER = "<!-- torchtheory compare -->"

#: Rows of each table, which a comment has no room for more of.
ROWS = 15

_MARKS = {
    State.DEFECT: "❌",
    State.LOOK: "⚠️",
    State.OPEN: "❔",
    State.FINE: "✅",
    State.UNMEASURED: "–",
}


def pull_request_text(comparison: Comparison) -> str:
    """Areas whose state changed, new and gone defects, numbers beyond their error bars.

    What is the same in both is counted and not shown.
    """
    one, two = comparison.names
    blocks = [MARKER, f"### Audit: {inline_text(one)} → {inline_text(two)}"]
    blocks.append(f"**{_verdict(comparison)}**")
    blocks += [f"> {inline_text(c)}" for c in comparison.cautions]
    turned = [a for a in comparison.areas if a.turn != "same"]
    if turned:
        rows = tuple((a.area.question, _state(a.first), _state(a.second)) for a in turned)
        blocks.append(table_text(Table("areas", ("area", one, two), rows)))
    if comparison.areas and len(turned) < len(comparison.areas):
        blocks.append(_the_same(comparison.areas, turned))
    for heading, state, rows_of in (
        ("New defects", "new", comparison.warnings),
        ("Defects that are gone", "gone", comparison.warnings),
        ("New, and worth a look", "new", comparison.looks),
    ):
        blocks += _listed(heading, [w for w in rows_of if w.state == state])
    changed = comparison.changed
    if changed:
        numbers = tuple(
            (
                words.labeled(q),
                *(" ".join(c).strip() for c in words.cells(q)),
                words.factor(q),
            )
            for q in changed[:ROWS]
        )
        blocks.append("**Changed beyond the error bars**")
        blocks.append(table_text(Table("numbers", ("number", one, two, "factor"), numbers)))
        if len(changed) > ROWS:
            blocks.append(f"And {len(changed) - ROWS} more.")
    if worse := [c for c in comparison.claims if c.worse]:
        claims = tuple(
            (c.claim.statement, words.verdict(c.first), words.told(c.second)) for c in worse[:ROWS]
        )
        blocks.append("**Promises of theory that no longer hold**")
        table = Table("claims", ("statement", one, two), claims)
        blocks.append(table_text(table, formulas=["statement"]))
    notes = [*comparison.remarks]
    if comparison.gaps:
        notes.append(
            f"{counted(len(comparison.gaps), 'finding')} of only one audit, or only in part."
        )
    if notes:
        listed = "\n".join(f"- {inline_text(n)}" for n in notes)
        blocks.append(
            f"<details><summary>Not all else is equal</summary>\n\n{listed}\n\n</details>"
        )
    return "\n\n".join(blocks) + "\n"


def _verdict(comparison: Comparison) -> str:
    new = sum(w.state == "new" for w in comparison.warnings)
    gone = sum(w.state == "gone" for w in comparison.warnings)
    beyond, total = len(comparison.changed), len(comparison.quantities)
    parts = []
    if new:
        parts.append(counted(new, "new defect"))
    if worse := sum(c.worse for c in comparison.claims):
        parts.append(f"{counted(worse, 'promise')} of theory no longer met")
    if gone:
        parts.append(f"{counted(gone, 'defect')} gone")
    if not total:
        parts.append("no number in common")
    else:
        has = "has" if beyond <= 1 else "have"
        parts.append(
            f"{beyond or 'none'} of {counted(total, 'number')} {has} changed beyond the error bars"
        )
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _state(said: Assessment) -> str:
    mark = f"{_MARKS[said.state]} {said.state}"
    if said.state is State.UNMEASURED:
        return str(said.state)
    return f"{mark}: {said.sentence}" if said.state is not State.FINE else mark


def _the_same(areas: Sequence[AreaChange], turned: Sequence[AreaChange]) -> str:
    same = [a.second.state for a in areas if a.turn == "same"]
    counts = [(same.count(state), state) for state in State if state in same]
    told = ", ".join(f"{n} {_MARKS[state]} {state}" for n, state in counts)
    others = "other areas are" if turned else "areas are all"
    return f"The {len(same)} {others} as they were: {told}."


def _listed(heading: str, rows: Sequence[WarningChange]) -> list[str]:
    if not rows:
        return []
    lines = []
    for row in rows[:ROWS]:
        action = f" *{inline_text(row.action)}*" if row.action else ""
        lines.append(f"- {inline_text(row.sentence)}{action}")
    if len(rows) > ROWS:
        lines.append(f"- and {len(rows) - ROWS} more")
    return [f"**{heading}**", "\n".join(lines)]
