"""Several audits on one page: checkpoints of a training, or models to choose from."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtheory.audit.comparison.recorded import AuditSource, RecordedAudit, read_audit
from torchtheory.audit.comparison.rows import relative_difference
from torchtheory.core.console import Console, Grid, Text, box
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.figure import COLORS, Figure, draw, label_text
from torchtheory.core.marks import marked_markdown, record_text
from torchtheory.core.outputs import write_outputs
from torchtheory.core.quantity import Quantity
from torchtheory.core.record import Table
from torchtheory.report.audit_parts import STATE_MARKS
from torchtheory.report.html import page
from torchtheory.report.markdown import inline_text, table_text
from torchtheory.report.numbers import number_text
from torchtheory.report.terminal import marked
from torchtheory.report.wording import counted

#: Most quantities that are drawn.
CURVES = 9

_STYLES = {
    State.DEFECT: "bold red",
    State.LOOK: "yellow",
    State.OPEN: "cyan",
    State.FINE: "green",
}

# Names below a figure.
_TICKS = 8

# Exact numbers that agree to this share differ by rounding only.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over the audits; None where an audit does not have it."""

    finding: str
    quantities: tuple[Quantity | None, ...]

    @property
    def known(self) -> list[tuple[int, Quantity]]:
        return [(k, q) for k, q in enumerate(self.quantities) if q is not None]

    @property
    def label(self) -> str:
        return self.known[-1][1].label

    @property
    def spread(self) -> float:
        """How much it varies, from 0 to 1."""
        values = [q.value for _, q in self.known]
        return relative_difference(min(values), max(values))


@dataclass(frozen=True, slots=True)
class AuditSeries:
    """Several audits in an order.

    Attributes:
        names: what to call each.
        audits: the audits, read back.
        links: address of each report relative to the page; empty where there is none.
    """

    names: list[str]
    audits: list[RecordedAudit]
    links: list[str] = field(default_factory=list)

    @property
    def summary(self) -> list[str]:
        """The series in a few sentences."""
        bad = [n for n, a in zip(self.names, self.audits, strict=True) if a.warnings]
        count = counted(len(self.audits), "audit")
        if not bad:
            return [f"{count}; no defect was found in any."]
        named = ", ".join(bad[:4]) + (f" and {len(bad) - 4} more" if len(bad) > 4 else "")
        return [f"{count}; there are defects in {len(bad)}: {named}."]

    @property
    def curves(self) -> list[Curve]:
        """The main quantities that vary: those that decide about an area first, at most nine."""
        deciding = {
            (a.finding, a.number.name)
            for audit in self.audits
            for a in audit.diagnosis
            if a.number is not None
        }
        names = dict.fromkeys(
            (f.name, name)
            for a in self.audits
            for f in a.findings.values()
            for name in f.quantities
        )
        found = []
        for finding, name in names:
            row = tuple(_quantity(a, finding, name) for a in self.audits)
            curve = Curve(finding, row)
            if len(curve.known) >= 2 and curve.spread > _ROUNDING:
                found.append(((finding, name) not in deciding, -curve.spread, curve))
        return [c for *_, c in sorted(found, key=lambda entry: entry[:2])][:CURVES]

    @property
    def areas(self) -> list[Area]:
        """The areas that an audit measured something about."""
        measured = {
            a.area
            for audit in self.audits
            for a in audit.diagnosis
            if a.state is not State.UNMEASURED
        }
        return [area for area in Area if area in measured]

    @property
    def silence(self) -> str:
        """Which areas no audit measured anything about; empty if there is none."""
        others = [a.question for a in Area if a not in self.areas]
        return f"Not measured in any: {', '.join(others)}." if others else ""

    def state(self, place: int, area: Area) -> Assessment | None:
        """What an audit says about an area."""
        return next((a for a in self.audits[place].diagnosis if a.area is area), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "audits": [
                {
                    "name": name,
                    "title": audit.title,
                    "report": self.links[k] if k < len(self.links) else "",
                    "verdict": audit.verdict,
                    "seconds": round(audit.seconds, 3),
                    "diagnosis": [a.to_json() for a in audit.diagnosis],
                }
                for k, (name, audit) in enumerate(zip(self.names, self.audits, strict=True))
            ],
            "curves": [
                {
                    "finding": c.finding,
                    "name": c.known[-1][1].name,
                    "label": c.label,
                    "values": [None if q is None else q.to_json() for q in c.quantities],
                }
                for c in self.curves
            ],
        }

    def save(self, directory: str | Path) -> Path:
        """Write `index.html`, `series.md` and `series.json`; returns the page.

        The directory is made if needed; other files in it are left alone.
        """
        texts = {
            "series.json": record_text("series", self.to_json()),
            "series.md": marked_markdown("series", series_markdown(self)),
            "index.html": series_page(self),
        }
        return write_outputs(directory, texts) / "index.html"


def series(
    sources: Sequence[AuditSource],
    *,
    names: Sequence[str] | None = None,
    links: Sequence[str] | None = None,
) -> AuditSeries:
    """Several audits side by side, in the order given.

    Args:
        sources: audits, what their `to_json` gives, `audit.json` files, or directories.
        names: what to call them; their titles unless given.
        links: address of each one's report, relative to the page.

    >>> made = {"title": "net", "facts": {}, "findings": []}
    >>> series([made, made], names=["epoch 1", "epoch 2"]).summary
    ['2 audits; no defect was found in any.']
    """
    audits = [read_audit(source) for source in sources]
    if not audits:
        raise InvalidInput("a series needs at least one audit")
    for given, what in ((names, "names"), (links, "links")):
        if given is not None and len(given) != len(audits):
            raise ShapeMismatch(f"there are {len(audits)} audits and {len(given)} {what}")
    return AuditSeries(
        [str(n) for n in names] if names is not None else [a.title for a in audits],
        audits,
        list(links or ()),
    )


def series_page(made: AuditSeries) -> str:
    """A complete page, without JavaScript or network."""
    return page(
        "series.html",
        f"{len(made.audits)} audits",
        plain_words=True,
        series=made,
        marks=STATE_MARKS,
        classes={State.DEFECT: "violated", State.LOOK: "vacuous", State.FINE: "holds"},
        figures=curve_figures(made),
        numbers=_numbers(made),
        rows=60,
    )


def series_markdown(made: AuditSeries) -> str:
    """The same as Markdown."""
    rows = tuple(
        (name, *(_cell(made.state(k, area)) for area in made.areas))
        for k, name in enumerate(made.names)
    )
    areas = Table("areas", ("audit", *(a.question for a in made.areas)), rows, made.silence)
    blocks = ["\n".join(inline_text(s) for s in made.summary), table_text(areas)]
    if numbers := _numbers(made):
        blocks += [table_text(t) for t in numbers]
    blocks.append(
        "\n".join(
            f"- {inline_text(name)}: {inline_text(audit.verdict)}"
            for name, audit in zip(made.names, made.audits, strict=True)
        )
    )
    return "\n\n".join(blocks) + "\n"


def print_series(made: AuditSeries, console: Console) -> None:
    """A table of the states, then one sentence about each audit."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("audit", overflow="fold", min_width=14)
    for area in made.areas:
        grid.add_column(Text(str(area)), justify="center", overflow="fold", min_width=5)
    for k, name in enumerate(made.names):
        said = [made.state(k, area) for area in made.areas]
        states = [State.UNMEASURED if a is None else a.state for a in said]
        grid.add_row(
            Text(name), *(Text(STATE_MARKS[s], style=_STYLES.get(s, "dim")) for s in states)
        )
    console.print(grid)
    if made.silence:
        console.print(Text(made.silence, style="dim"))
    console.print()
    for name, audit in zip(made.names, made.audits, strict=True):
        mark, style = ("!", "bold red") if audit.warnings else ("•", "")
        console.print(marked(mark, f"{name}: {audit.verdict}", style))


def curve_figures(made: AuditSeries) -> list[Figure]:
    """The main quantities over the audits, with their ranges, a figure each."""
    return [_figure(k, curve, made.names) for k, curve in enumerate(made.curves, 1)]


def _figure(number: int, curve: Curve, names: Sequence[str]) -> Figure:
    every = math.ceil(len(names) / _TICKS)
    ticks = range(0, len(names), every)
    short = [label_text(textwrap.shorten(names[k], 14, placeholder="…")) for k in ticks]
    places, values = [k for k, _ in curve.known], [q.value for _, q in curve.known]
    ends = [
        [max(0.0, q.value - q.low) for _, q in curve.known],
        [max(0.0, q.high - q.value) for _, q in curve.known],
    ]
    ranged = all(map(math.isfinite, [*ends[0], *ends[1]]))

    def plot(ax: Any) -> None:
        bars = ends if ranged else None
        ax.errorbar(places, values, bars, fmt="o-", color=COLORS[0], markersize=4, capsize=2)
        ax.set_title(label_text(textwrap.fill(curve.label, 44)), fontsize=9)
        if min(values) > 0 and max(values) > 100 * min(values):
            ax.set_yscale("log")
        elif all(v == round(v) for v in values):
            ax.yaxis.get_major_locator().set_params(integer=True)
        ax.set_xlim(-0.5, len(names) - 0.5)
        ax.set_xticks(ticks, short, rotation=30, ha="right", fontsize=8)

    return draw(f"curve-{number}", plot, size=(4.2, 2.6))


def _quantity(audit: RecordedAudit, finding: str, name: str) -> Quantity | None:
    found = audit.findings.get(finding)
    quantity = None if found is None else found.quantities.get(name)
    finite = quantity is not None and math.isfinite(quantity.value)
    return quantity if finite else None


def _numbers(made: AuditSeries) -> list[Table]:
    if not (curves := made.curves):
        return []
    rows = tuple((c.label, *(_shown(q) for q in c.quantities)) for c in curves)
    return [Table("numbers", ("quantity", *made.names), rows)]


def _shown(q: Quantity | None) -> str:
    if q is None:
        return "–"
    value = number_text(q.value, 3)
    return value if q.exact else f"{value} [{number_text(q.low, 3)}, {number_text(q.high, 3)}]"


def _cell(said: Assessment | None) -> str:
    return "–" if said is None else f"{STATE_MARKS[said.state]} {said.state}"
