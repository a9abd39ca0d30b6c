"""Results as HTML: self-contained pages and notebook cells, without JavaScript or network.

Figures stand in the page as `<img>` with a data address. That costs a third more bytes than the
bare SVG, and buys isolation: matplotlib numbers its clip paths and glyphs alike in each drawing, an
image keeps those ids to itself, ignores the page's style, and runs nothing.

The words of a lab are its author's, with `$formulas$` in them. Those of an audit quote names and
messages of the user's model, so a dollar in them is a dollar.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from torchtheory import __version__
from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.core.figure import Figure
from torchtheory.core.foreign_text import printable
from torchtheory.core.record import Cell
from torchtheory.report import wording
from torchtheory.report.audit_parts import (
    OUR_ERROR,
    STATE_MARKS,
    audit_parts,
    check_words,
    short_facts,
    task_line,
    timing_table,
)
from torchtheory.report.lab_parts import cited_results, parameter_rows, suggestions
from torchtheory.report.mathml import formula, paragraphs, prose
from torchtheory.report.notation import Symbol, notation
from torchtheory.report.numbers import duration, number_html
from torchtheory.report.plain_math import formula_spans, plain_prose
from torchtheory.report.results import AuditResult, LabRun, LabText, quantity_table

# What a page shows of a long table; the whole of it is in claims.json.
_ROWS_OF_A_PAGE = 200
_ROWS_OF_A_CELL = 40


def run_page(run: LabRun) -> str:
    """A complete page on one lab run: what is true, pictures of it, statements, what to try."""
    return page("run.html", run.lab.title, run=run, rows=_ROWS_OF_A_PAGE)


def run_fragment(run: LabRun) -> str:
    """The same as a piece of HTML for a notebook, with styles that touch nothing else."""
    return fragment("run.html", run=run)


def index_page(
    runs: Sequence[LabRun],
    *,
    links: Sequence[str] | None = None,
    title: str = "The executable book",
    thumbnails: bool = True,
) -> str:
    """A page over many runs, by room.

    Args:
        runs: the runs, in any order.
        links: address of each run's report relative to this page; `LAB/PRESET-SEED/report.html`
            unless told.
        title: heading of the page.
        thumbnails: show each run's first figure, which the browser loads from `figures/` beside
            the report when it comes into view.
    """
    if links is None:
        links = [f"{r.lab.name}/{r.preset}-{r.seed}/report.html" for r in runs]
    if len(links) != len(runs):
        raise ShapeMismatch(f"there are {len(runs)} runs and {len(links)} links; give one each")
    for link in links:
        if urlsplit(link).scheme or link.startswith(("/", "\\")):
            raise InvalidInput(f"a link must be relative to the index page, and {link!r} is not")
    rows = [_Row.of(run, link, thumbnails) for run, link in zip(runs, links, strict=True)]
    rooms: dict[str, list[_Row]] = {}
    for row in sorted(rows, key=lambda r: (wording.room_order(r.run.lab.room), r.run.lab.name)):
        rooms.setdefault(row.run.lab.room, []).append(row)
    claims = [c for run in runs for c in run.claims]
    return page(
        "index.html",
        title,
        title=title,
        rooms=rooms,
        total=len(rows),
        passed=sum(r.passed for r in rows),
        claims=claims,
        checks=wording.controls(claims),
        errata=sum(len(run.errata) for run in runs),
        seconds=sum(run.seconds for run in runs),
        thumbnails=any(r.thumbnail for r in rows),
    )


def audit_page(audit: AuditResult) -> str:
    """A complete page on an audit: the answer on its first screen, the rest in folds."""
    parts = audit_parts(audit)
    return page(
        "audit.html",
        audit.title,
        plain_words=True,
        kind="audit",
        audit=audit,
        parts=parts,
        rows=_ROWS_OF_A_PAGE,
    )


def audit_fragment(audit: AuditResult) -> str:
    """The same as a piece of HTML for a notebook."""
    return fragment("audit.html", plain_words=True, audit=audit, parts=audit_parts(audit))


@dataclass(frozen=True, slots=True)
class _Row:
    """A run on the index page."""

    run: LabRun
    link: str
    thumbnail: str | None
    passed: bool
    problems: int
    controls: int

    @classmethod
    def of(cls, run: LabRun, link: str, thumbnails: bool) -> _Row:
        thumbnail = None
        if thumbnails and run.figures:
            directory = link.rpartition("/")[0]
            thumbnail = f"{directory}/figures/{run.figures[0].name}.png".lstrip("/")
        problems = run.problems
        return cls(
            run, link, thumbnail, not problems, len(problems), len(wording.controls(run.claims))
        )


def page(
    template: str, name: str, *, plain_words: bool = False, kind: str = "", **context: Any
) -> str:
    """A complete page from a template.

    Args:
        template: what the page contains.
        name: the browser's title.
        plain_words: nothing in the words is a formula.
        kind: a class of the page, for a style of its own.
        context: what the template needs.
    """
    environment = _environment(plain_words)
    body = _render(environment, template, level=1, **context)
    title = name if plain_words else plain_prose(name)
    whole = environment.get_template("page.html")
    report = template.removesuffix(".html")  # what it is recognized by when it is replaced
    shown = {"body": body, "title": title, "kind": kind, "report": report}
    return printable(whole.render(version=__version__, **shown))


def fragment(template: str, *, plain_words: bool = False, **context: Any) -> str:
    """A template's content for a notebook cell; see `page`."""
    environment = _environment(plain_words)
    body = _render(environment, template, level=3, rows=_ROWS_OF_A_CELL, **context)
    return printable(environment.get_template("fragment.html").render(body=body))


def _render(environment: Environment, template: str, **context: Any) -> Markup:
    # Every template escapes what it is given, so its result is markup.
    return Markup(environment.get_template(template).render(**context))


@cache
def _environment(plain_words: bool) -> Environment:
    said = escape if plain_words else prose
    shown_as_text = str if plain_words else plain_prose

    def cell(value: Cell) -> Markup:
        if isinstance(value, bool):
            return Markup("yes") if value else Markup("no")
        return said(value) if isinstance(value, str) else number_html(value)

    def alternative(figure: Figure) -> str:
        return shown_as_text(figure.caption) or figure.name

    made = Environment(
        loader=PackageLoader("torchtheory.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        formula=formula,
        prose=prose,
        said=said,
        paragraphs=paragraphs,
        number=number_html,
        duration=duration,
        shown=wording.shown,
        image=_image,
        alternative=alternative,
        counted=wording.counted,
    )
    made.globals.update(
        wording=wording,
        Verdict=Verdict,
        mark=lambda verdict: wording.MARKS[verdict],
        slug=_slug,
        cell=cell,
        numeric_columns=wording.numeric_columns,
        citation=_citation,
        in_short=_in_short,
        quantity_table=quantity_table,
        state_mark=lambda state: STATE_MARKS[state],
        our_error=OUR_ERROR,
        short_facts=short_facts,
        task_line=task_line,
        timing_table=timing_table,
        check_words=check_words,
        lab_text=_lab_text,
        notation=_notation,
        suggestions=suggestions,
        parameter_rows=parameter_rows,
        cited_results=cited_results,
    )
    return made


def _lab_text(lab: LabText) -> tuple[str, str]:
    """The first paragraph of a lab's description, and the others."""
    first, *rest = re.split(r"\n\s*\n", lab.description.strip(), maxsplit=1)
    return first, "".join(rest)


def _notation(run: LabRun) -> list[Symbol]:
    statements = [c.statement for c in [*run.claims, *(e.claim for e in run.errata)]]
    taught = [
        piece
        for text in run.lab.teaching.prose
        for is_formula, piece in formula_spans(text)
        if is_formula
    ]
    return notation([*taught, *statements])


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def _citation(id: str) -> str:
    try:
        return catalogue.entry(id).citation
    except UnknownName:
        return ""


def _image(figure: Figure) -> dict[str, Any]:
    """Address, size in pixels and shape of a figure."""
    size: tuple[float, float] | None = None
    if figure.svg is not None:
        kind, data = "svg+xml", figure.svg.encode()
        box = re.search(r'viewBox="\s*[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)', figure.svg)
        if box:  # in points
            size = float(box[1]) * 4 / 3, float(box[2]) * 4 / 3
    else:
        kind, data = "png", figure.png
        if data[12:16] == b"IHDR":  # drawn at 160 dots an inch, shown at 96
            size = int.from_bytes(data[16:20]) * 0.6, int.from_bytes(data[20:24]) * 0.6
    address = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    if size is None or 0 in size:
        return {"address": address, "width": None, "height": None, "wide": True}
    width, height = round(size[0]), round(size[1])
    return {"address": address, "width": width, "height": height, "wide": width > 640}


def _in_short(claims: Sequence[Claim]) -> str:
    return wording.tally(claims) or "no claims"
