"""Pages of results: every entry of the catalogue with what the finished runs of its labs found.

A run is a directory `LAB/PRESET-SEED` as `torchtheory lab run` keeps it. Only its files are read,
so that a page can be made without importing any lab.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from PIL import Image

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Verdict
from torchtheory.labs.engine.coverage import CoveredEntry, coverage
from torchtheory.report import wording
from torchtheory.report.mathml import formula, prose
from torchtheory.report.numbers import number_html
from torchtheory.report.plain_math import plain_prose

#: Pictures are shown about half as wide; the rest is for screens with small pixels.
PICTURE_WIDTH = 640
SHOWN_WIDTH = 320


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a site shows of a run."""

    lab: str
    claims: tuple[Claim, ...]
    errata: tuple[tuple[str, Claim], ...]
    problems: tuple[str, ...]
    picture: Path | None
    caption: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The first figure of a run, scaled."""

    address: str
    caption: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ErratumShown:
    """An error of a source with its counterexamples."""

    text: catalogue.Erratum
    claims: tuple[Claim, ...]


@dataclass(slots=True)
class Results:
    """Pages (title and Markdown) and pictures by their address, and one line about them."""

    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    images: dict[str, bytes] = field(default_factory=dict)
    summary: str = ""


def read_runs(root: Path) -> dict[str, FinishedRun]:
    """The run of each lab that a directory holds: `full` before `quick`, then the first seed."""
    found: dict[str, tuple[tuple[bool, int], Path]] = {}
    for config_file in root.glob("*/*/config.json"):
        try:
            config = json.loads(config_file.read_text("utf-8"))
            rank = (config["preset"] != "full", config["seed"])
            # a digest in the name says that parameters were set: that is not the lab as it ships
            if config_file.parent.name != f"{config['preset']}-{config['seed']}":
                continue
            if config["lab"] not in found or rank < found[config["lab"]][0]:
                found[config["lab"]] = (rank, config_file.parent)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    runs = {}
    for lab, (_, directory) in sorted(found.items()):
        try:
            runs[lab] = _read_run(lab, directory)
        except (OSError, ValueError, KeyError, TypeError):  # written by another version
            continue
    return runs


def result_pages(root: Path) -> Results:
    """One page for each room, an index, and the errata, from the runs in `root`."""
    runs = read_runs(root)
    results = Results()
    covered = coverage().entries
    refuted = _refuted(runs)
    shown: dict[str, Verdict] = {}  # the verdict of each entry that has a section
    rooms = [room for room in catalogue.ROOMS if any(e.entry.room == room for e in covered)]
    pages = {}
    for room in rooms:
        inside = [e for e in covered if e.entry.room == room]
        pages[f"results/{room}.md"] = (
            room,
            _room_page(room, inside, runs, refuted, results.images, shown),
        )
    met = {key for keys in refuted.values() for key in keys}
    results.pages["results/index.md"] = ("Overview", _index(rooms, covered, runs, shown, len(met)))
    results.pages["results/errata.md"] = ("Errata", _errata_page(refuted, shown))
    results.pages.update(pages)
    results.summary = (
        f"{len(runs)} runs in {root.name}: {len(shown)} of {len(covered)} entries have a result"
    )
    return results


def _read_run(lab: str, directory: Path) -> FinishedRun:
    data = json.loads((directory / "claims.json").read_text("utf-8"))
    picture, caption = None, ""
    if data["figures"]:
        first = data["figures"][0]
        picture, caption = directory / "figures" / f"{first['name']}.png", first["caption"]
        if not picture.exists():
            picture = None
    return FinishedRun(
        lab,
        tuple(Claim.from_json(c) for c in data["claims"]),
        tuple((e["key"], Claim.from_json(e["claim"])) for e in data["errata"]),
        tuple(data["problems"]),
        picture,
        caption,
    )


def _refuted(runs: dict[str, FinishedRun]) -> dict[str, dict[str, ErratumShown]]:
    """By entry, the errata that runs met."""
    texts = catalogue.errata()
    claims: dict[str, list[Claim]] = {}
    for run in runs.values():
        for key, claim in run.errata:
            claims.setdefault(key, []).append(claim)
    found: dict[str, dict[str, ErratumShown]] = {}
    for key, text in texts.items():
        if key in claims:
            found.setdefault(text.id, {})[key] = ErratumShown(text, tuple(claims[key]))
    return found


def _room_page(
    room: str,
    covered: Sequence[CoveredEntry],
    runs: dict[str, FinishedRun],
    refuted: dict[str, dict[str, ErratumShown]],
    images: dict[str, bytes],
    shown: dict[str, Verdict],
) -> str:
    with_result: list[tuple[CoveredEntry, list[FinishedRun]]] = []
    without: list[CoveredEntry] = []
    for one in covered:
        finished = [runs[lab] for lab in one.labs if lab in runs]
        if any(one.entry.id in c.ids for run in finished for c in _all_claims(run)):
            with_result.append((one, finished))
        else:
            without.append(one)
    lines = [f"# Results: {room}", "", _counts_sentence(covered, with_result), ""]
    pictured: set[str] = set()
    source = ""
    for one, finished in with_result:
        entry = one.entry
        if entry.source != source:
            source = entry.source
            lines += [f"## {escape(catalogue.sources()[source].title)}", ""]
        claims = [c for run in finished for c in run.claims if entry.id in c.ids]
        errata = list(refuted.get(entry.id, {}).values())
        picture = None
        for run in finished:
            if picture is None and run.lab not in pictured:
                pictured.add(run.lab)
                picture = _picture(run, images)
        html = _template().render(
            entry=entry,
            labs=one.labs,
            claims=claims,
            errata=errata,
            picture=picture,
            problems=[{"lab": r.lab, "text": p} for r in finished for p in _about(r, entry.id)],
        )
        shown[entry.id] = _worst(claims)
        lines += [f"### {_heading(entry)}", "", "".join(_lines(html)), ""]
    if without:
        lines += ["## Without a result", "", *_table(without, runs), ""]
    return "\n".join(lines)


def _lines(html: str) -> Iterator[str]:
    # one line: a blank line would end the block of HTML for Markdown
    for line in html.splitlines():
        if line.strip():
            yield line.strip() + " "


def _heading(entry: catalogue.Entry) -> str:
    return f"{entry.id} {escape(entry.name)} {{ #{entry.id.lower()} }}"


def _about(run: FinishedRun, id: str) -> list[str]:
    """What is wrong with a run, as far as it concerns an entry."""
    return [p for p in run.problems if id in p or not any(i in p for i in catalogue.entries())]


def _all_claims(run: FinishedRun) -> list[Claim]:
    return [*run.claims, *(c for _, c in run.errata)]


def _worst(claims: Sequence[Claim]) -> Verdict:
    order = (Verdict.VIOLATED, Verdict.HOLDS, Verdict.VACUOUS, Verdict.NOT_APPLICABLE)
    found = {c.verdict for c in claims}
    return next((v for v in order if v in found), Verdict.HOLDS)


def _counts_sentence(
    covered: Sequence[CoveredEntry], with_result: Sequence[tuple[CoveredEntry, object]]
) -> str:
    total = wording.counted(len(covered), "entry", "entries")
    return (
        f"Of {total} of the [catalogue](index.md), {len(with_result)} have a result here: each "
        "statement with what it promises and what was measured, how much better the promise could "
        "have been, and the same check with a hypothesis broken, which must fail."
    )


def _table(entries: Sequence[CoveredEntry], runs: dict[str, FinishedRun]) -> list[str]:
    rows = ["| id | result | source | what makes it |", "|---|---|---|---|"]
    for one in entries:
        if one.labs:
            left = [lab for lab in one.labs if lab not in runs]
            how = ", ".join(f"`torchtheory lab run {lab}`" for lab in left or one.labs)
        else:
            how = "background only" if one.entry.background else "no lab yet"
        name, place = (
            escape(text).replace("|", "&#124;") for text in (one.entry.name, one.entry.citation)
        )
        id = f'<span id="{one.entry.id.lower()}">{one.entry.id}</span>'
        rows.append(f"| {id} | {name} | {place} | {how} |")
    return rows


def _index(
    rooms: Sequence[str],
    covered: Sequence[CoveredEntry],
    runs: dict[str, FinishedRun],
    shown: dict[str, Verdict],
    errata: int,
) -> str:
    claims = [c for run in runs.values() for c in run.claims]
    controls = wording.controls(claims)
    failing = sorted(run.lab for run in runs.values() if run.problems)
    lines = [
        "# Results",
        "",
        f"The catalogue has {wording.counted(len(covered), 'entry', 'entries')}: theorems, "
        "constructions, algorithms, figures and tables of the sources below. Each is an experiment "
        "with a verdict, or will be. These pages are made from finished runs of the labs (`make "
        "labs`, or `torchtheory lab run NAME` for one of them).",
        "",
        f"There are {wording.counted(len(runs), 'run')} with "
        f"{wording.counted(len(claims), 'claim')}"
        + (f" ({wording.tally(claims)})" if claims else "")
        + f", {wording.counted(len(controls), 'control')} that must fail, of which "
        f"{sum(c.verdict is Verdict.VIOLATED for c in controls):,} do, and "
        f"[{wording.counted(errata, 'erratum', 'errata')}](errata.md) of the sources with the "
        "numbers that refute them.",
        "",
        "| room | entries | with a result | hold | violated | a lab, but no run | no lab |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for room in rooms:
        inside = [e for e in covered if e.entry.room == room]
        done = [e for e in inside if e.entry.id in shown]
        waiting = sum(bool(e.labs) for e in inside) - len(done)
        verdicts = [shown[e.entry.id] for e in done]
        numbers = (
            len(inside),
            len(done),
            len(done) - verdicts.count(Verdict.VIOLATED),
            verdicts.count(Verdict.VIOLATED),
            waiting,
            len(inside) - len(done) - waiting,
        )
        lines.append(f"| [{room}]({room}.md) | " + " | ".join(map(str, numbers)) + " |")
    if failing:
        lines += ["", "Runs that fail: " + ", ".join(f"`{lab}`" for lab in failing) + "."]
    lines += ["", "The sources:", ""]
    for source in catalogue.sources().values():
        authors = f", {source.authors}" if source.authors else ""
        lines.append(f"- {escape(source.title)}{escape(authors)}")
    return "\n".join(lines) + "\n"


def _errata_page(refuted: dict[str, dict[str, ErratumShown]], shown: dict[str, Verdict]) -> str:
    entries = catalogue.entries()
    place = {id: k for k, id in enumerate(entries)}
    texts = sorted(catalogue.errata().values(), key=lambda e: (place[e.id], e.key))
    lines = [
        "# Errata",
        "",
        "What the sources print wrongly, in our words, and what is true. Each is refuted by a "
        "lab: `torchtheory errata` shows the numbers, and so does the entry where it has a result.",
        "",
    ]
    source = ""
    for text in texts:
        entry = entries[text.id]
        if entry.source != source:
            source = entry.source
            lines += [f"## {escape(catalogue.sources()[source].title)}", ""]
        title = f"{entry.id} {escape(entry.name)}"
        link = f'<a href="{entry.room}.html#{entry.id.lower()}">{title}</a>'
        state = "refuted" if text.key in refuted.get(text.id, {}) else "no run here"
        lines += [
            f'<section class="result"><p class="place"><b>{link}</b> · {escape(entry.where)}'
            f' · {state}</p><dl class="erratum"><dt>Printed</dt><dd>{prose(text.printed)}</dd>'
            f"<dt>Correct</dt><dd>{prose(text.correct)}</dd></dl></section>",
            "",
        ]
    return "\n".join(lines)


def _picture(run: FinishedRun, images: dict[str, bytes]) -> Picture | None:
    if run.picture is None:
        return None
    name = f"{run.lab}.webp"
    try:
        with Image.open(run.picture) as image:
            panels = image.width > 2 * image.height
            width = min(PICTURE_WIDTH * 3 // 2 if panels else PICTURE_WIDTH, image.width)
            height = round(image.height * width / image.width)
            scaled = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    except OSError:  # no picture, or half of one
        return None
    buffer = io.BytesIO()
    scaled.save(buffer, "WEBP", quality=82, method=4)
    images[f"results/pictures/{name}"] = buffer.getvalue()
    shown = min(SHOWN_WIDTH, width)
    return Picture(f"pictures/{name}", run.caption, shown, round(height * shown / width))


@cache
def _template() -> Template:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(formula=formula, prose=prose, number=number_html, plain=plain_prose)
    made.globals.update(
        wording=wording,
        marks=wording.MARKS,
    )
    return made.get_template("entry.html")
