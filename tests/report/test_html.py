"""Pages and fragments: complete, escaped, self-contained, well-formed."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.intervals import Interval
from torchtheory.labs.engine.parameters import Limits
from torchtheory.labs.engine.registry import Lab, _parameters
from torchtheory.labs.engine.run import Run
from torchtheory.report.html import audit_fragment, audit_page, index_page, run_fragment, run_page
from torchtheory.report.lab_parts import suggestions
from torchtheory.report.markdown import audit_markdown

from .examples import (
    ERRATUM,
    HOSTILE,
    Page,
    audit,
    empty_run,
    failing_run,
    full_run,
    hostile_run,
)

Renderer = Callable[[], str]
EVERYTHING: dict[str, Renderer] = {
    "run page": lambda: run_page(full_run()),
    "run fragment": lambda: run_fragment(full_run()),
    "failing page": lambda: run_page(failing_run()),
    "empty page": lambda: run_page(empty_run()),
    "empty fragment": lambda: run_fragment(empty_run()),
    "index": lambda: index_page([full_run(), failing_run(), empty_run()]),
    "empty index": lambda: index_page([]),
    "audit page": lambda: audit_page(audit()),
    "audit fragment": lambda: audit_fragment(audit()),
}


@pytest.fixture
def hostile_errata(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = catalogue.Erratum(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    monkeypatch.setattr(catalogue, "errata", lambda: {HOSTILE: bad})


@pytest.mark.parametrize("made", EVERYTHING.values(), ids=EVERYTHING.keys())
def test_is_well_formed_and_refers_to_nothing_outside(made: Renderer) -> None:
    text = made()
    page = Page(text)
    assert "script" not in page.tags
    assert "://" not in text
    assert not re.search(r"@import|url\(", text)
    for address in page.values("src") + page.values("href"):
        assert address.startswith(("data:image/", "#")) or not re.match(r"\w+:|/", address)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    anchors = {a[1:] for a in page.values("href") if a.startswith("#")}
    assert anchors <= set(ids)


@pytest.mark.usefixtures("hostile_errata")
@pytest.mark.parametrize(
    "made",
    [
        lambda: run_page(hostile_run()),
        lambda: run_fragment(hostile_run()),
        lambda: index_page([hostile_run()], links=["a/report.html"]),
        lambda: index_page([hostile_run()], links=['a"><script>/report.html']),
        lambda: index_page([], title=HOSTILE),
        lambda: audit_page(audit(hostile=True)),
        lambda: audit_fragment(audit(hostile=True)),
    ],
)
def test_nothing_a_user_writes_becomes_markup(made: Renderer) -> None:
    text = made()
    page = Page(text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert all(src.startswith("data:image/") or "figures/" in src for src in page.values("src"))
    for _, name, value in page.attributes:
        assert not name.startswith("on")
        assert "javascript:" not in value
    assert set(page.values("style")) <= {"text-align:left", "text-align:right"}
    assert "<script" not in text.lower()


def test_a_page_says_everything() -> None:
    run = full_run()
    page = Page(run_page(run))
    words = page.words()
    for word in (
        "Passes",
        "perceptron-novikoff",
        "quick",
        "nets",
        "4.2 s",
        "16, 32",
        "yes",
        "BatchNorm",
    ):
        assert word in words
    for verdict in ("holds", "vacuous", "not applicable"):
        assert verdict in words
    assert "control: violated, as it must be, in all 3 cases – the labels are shuffled" in words
    assert "96 worst of 3 ≤ 100" in words
    assert "12,000 worst of 3 ≰ 100" in words
    assert "0.031 [0.0212, 0.0437] at 95 % ≤ 0.05" in words
    assert "Clopper-Pearson, 1,000 observations" in words
    assert "off by 2 × 10−13 = 3.142 tolerance 3.1 × 10−9" in words
    assert "1.3 × 1019 < ∞" in words
    assert "trivially 1" in words
    assert "10<sup>−13</sup>" in run_page(run)
    assert catalogue.entry("N-08").citation in words
    assert "6 claims: 4 hold, 1 vacuous, 1 not applicable" in words
    assert "1 control, violated as it must be" in words
    assert "1 erratum refuted" in words


def part(text: str, first: str, last: str) -> str:
    """The words of a part of a page."""
    start = text.index(first)
    return Page(text[start : text.index(last, start) + len(last)]).words()


def test_a_lab_page_shows_its_figures_before_all_else() -> None:
    run = full_run()
    run.states("N-08", r"\mathbb E x \le 1").at_most(1, 1)
    text = run_page(run)
    places = [
        text.index(mark)
        for mark in (
            "<h1>",
            '<div class="description">',
            '<p class="outcome">',
            "<img",
            "<h2>What is done</h2>",
            "<h2>Statements</h2>",
            "<h3>Symbols</h3>",
            "<h2>What to try</h2>",
            "<h2>Tables</h2>",
            "<h2>Where it stands</h2>",
        )
    ]
    assert places == sorted(places)
    header = part(text, "<header>", "</header>")
    assert "The number of updates is at most" in header, "one paragraph"
    assert "Look at updates" not in header, "and no more"
    cited = part(text, '<ul class="cited">', "</ul>")
    for i in run.lab.covers:
        assert f"{i} {catalogue.entry(i).name} {catalogue.entry(i).citation}" in cited


def tunable(run: Run, samples: int = 200, widths: tuple[int, ...] = (8, 16)) -> None:
    """Networks of several widths.

    Args:
        samples: how many points
            are drawn.
    """


def tunable_run(**settings: Any) -> Run:
    parameters = _parameters(tunable, {"samples": 2000}, Limits())
    lab = Lab("tunable", "nets", "T", ("N-08",), (), parameters, tunable)
    return Run(lab=lab, parameters=lab.configure("quick", settings))


def test_a_lab_page_says_what_to_try_and_what_parameters_mean() -> None:
    run = tunable_run(widths="4")
    words = Page(run_page(run)).words()
    command = f"torchtheory lab run tunable --module {__name__}"
    assert f"{command} --set samples=2000 samples 2000 in place of 200" in words
    assert f"{command} --seeds 20" in words
    assert f"{command} --preset full" in words
    assert "samples 200 200 2000 a whole number, 1 or more how many points are drawn." in words
    assert "widths 4 8, 16 8, 16 whole numbers separated by commas" in words
    assert "Args" not in words
    # a run at the value of the other preset is told the first again
    assert f"{command} --set samples=200 " in Page(run_page(tunable_run(samples=2000))).words()
    # and the settings work
    line = suggestions(run.lab, run.parameters)[0].options
    name, value = line.removeprefix("--set ").split("=")
    assert run.lab.configure("quick", {name: value})["samples"] == 2000


def test_a_lab_no_command_can_find_has_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tunable_run()
    monkeypatch.setattr(tunable, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    words = Page(run_page(run)).words()
    assert "torchtheory lab run" not in words
    assert "how many points are drawn." in words


def test_a_lab_page_defines_what_means_one_thing_only() -> None:
    run = empty_run()
    run.states("N-08", r"\mathbb E\|x\|_2\le\lambda_{\max}(A)").at_most(1, 1)
    text = run_page(run)
    symbols = part(text, '<dl class="symbols">', "</dl>")
    assert "expected value" in symbols
    assert "largest eigenvalue" in symbols
    assert symbols.count("norm") == 0, "of a vector or of a matrix"
    assert "Symbols" not in Page(run_page(empty_run())).words()


def test_a_page_says_what_the_checks_could_show() -> None:
    run = empty_run()
    says = run.states("N-08", "a")
    says.at_most([1, 2], 18)
    says.fails("broken", [20, 1, 19])
    run.states("N-08", "b").at_least(2, 1, loose="the constant $c$")
    run.states("N-08", "c").at_most(1, 1.04)
    run.states("N-08", "d").mean(Interval(0.5, 0.4, 0.6, 0.99, 9, "t"), 0.5, against=(-1, 0))
    words = Page(run_page(run)).words()
    assert "the promise could be 9 times smaller" in words
    assert "violated, as it must be, in 2 of 3 cases – broken" in words
    assert "the promise could be 2 times larger: the constant c" in words
    assert words.count("the promise could be") == 2  # 1.04 is met
    assert "excludes -1 and 0" in words


def test_an_erratum_shows_what_is_printed_what_is_right_and_the_numbers() -> None:
    words = Page(run_page(full_run())).words()
    printed = catalogue.errata()[ERRATUM].printed.split("$")[0].strip()
    assert printed in words
    assert "Measured 1.5 ≮ promised 1: refutedTake d=2." in words


def test_an_erratum_that_is_not_refuted_is_called_out() -> None:
    run = full_run()
    run.refutes(ERRATUM, "a").at_most(0.5, 1)
    text = run_page(run)
    assert "holds, so not refuted" in text
    assert 'class="erratum failed"' in text


def test_a_failing_page_says_why_and_tells_close_numbers_apart() -> None:
    text = run_page(failing_run())
    words = Page(text).words()
    assert "Fails" in words
    assert "Why it fails" in words
    assert "1.00002 ≰ 1" in words
    assert "control: holds, but it must be violated" in words
    assert "is violated" in words
    assert "L_{t+1}" not in words, "the formula of a problem is set, not shown as source"


def test_an_empty_run_still_makes_a_page() -> None:
    words = Page(run_page(empty_run())).words()
    assert "no claims" in words
    assert "no claim has a control" in words


def test_numbers_that_are_no_numbers() -> None:
    run = empty_run()
    nan, inf = float("nan"), float("inf")
    run.claims += [
        Claim(("N-08",), "a", 1.0, "<=", nan),
        Claim(("N-08",), "a", -inf, ">=", inf, tolerance=1e-9),
        Claim((), "a", inf, "==", inf),
    ]
    run.table("odd", ["x"], [[nan], [inf], [-inf], [10**400], [-(10**5000)], [5e-324]])
    words = Page(run_page(run)).words()
    for word in ("NaN ≰ 1", "∞ ≥ −∞", "∞ = ∞", "10400", "−105000", "4.941 × 10−324"):
        assert word in words


def test_formulas_are_mathml_that_can_break() -> None:
    page = Page(run_page(full_run()))
    assert page.tags.count("math") > 10
    assert "mfrac" in page.tags
    assert "msqrt" in page.tags
    assert "wbr" in page.tags


def test_figures_stand_in_the_page() -> None:
    page = Page(run_page(full_run()))
    sources = page.values("src")
    assert [s.split(";")[0] for s in sources] == ["data:image/svg+xml", "data:image/png"]
    assert page.values("alt") == ["Updates stay below R².", "Three seeds."]
    assert [w for w in page.values("width") if w.isdigit()] == ["480", "960"]  # not mspace
    assert [v for t, n, v in page.attributes if t == "figure" and n == "class"][:2] == [
        "wide",
        "table",
    ]


def test_a_huge_table_is_cut_and_says_so() -> None:
    run = empty_run()
    run.table("huge", ["n", "square"], [[n, n * n] for n in range(100_000)], caption="Squares.")
    text = run_page(run)
    assert len(text) < 100_000
    assert "Squares. The first 200 of 100,000 rows are shown." in Page(text).words()
    assert "The first 40 of 100,000 rows" in run_fragment(run)


def test_tables_have_headers_and_right_aligned_numbers() -> None:
    page = Page(run_page(full_run()))
    assert set(page.values("scope")) == {"col", "row"}
    assert "n" in page.values("class")


def test_a_fragment_brings_no_page_and_scopes_its_style() -> None:
    text = run_fragment(full_run())
    page = Page(text)
    assert not {"html", "head", "body", "h1", "h2"} & set(page.tags)
    assert page.tags[0] == "div"
    assert page.values("class")[0] == "torchtheory"
    style = re.sub(r"/\*.*?\*/", "", text[text.index("<style>") + 7 : text.index("</style>")])
    for selector in re.findall(r"([^{};]+)\{", style):
        assert selector.strip().startswith("@container") or ".torchtheory" in selector
    assert full_run()._repr_html_() == text


def test_headings_step_by_one() -> None:
    for made in (run_page(full_run()), audit_page(audit()), index_page([full_run()])):
        levels = [int(t[1]) for t in Page(made).tags if re.fullmatch(r"h\d", t)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def many_runs() -> list[Run]:
    rooms = [*catalogue.ROOMS, "elsewhere"]
    return [full_run(f"lab-{k}", rooms[k % len(rooms)]) for k in range(120)]


def test_an_index_of_120_labs_is_small_and_lazy() -> None:
    text = index_page(many_runs())
    page = Page(text)
    assert len(text.encode()) < 300_000
    assert page.tags.count("img") == 120
    assert page.values("loading") == ["lazy"] * 120
    assert "lab-3/quick-7/figures/mistakes.png" in page.values("src")
    assert "lab-3/quick-7/report.html" in page.values("href")
    assert "data:" not in text
    assert "120 labs pass" in page.words()


def test_an_index_orders_rooms_as_the_catalogue_does() -> None:
    text = index_page([full_run("a", "elsewhere"), full_run("b", "nets"), full_run("c", "primer")])
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == ["primer", "nets", "elsewhere"]


def test_an_index_counts_what_fails() -> None:
    words = Page(index_page([full_run(), failing_run()], title="Two labs")).words()
    assert "1 of 2 labs fails" in words
    assert "7 claims: 4 hold, 1 violated, 1 vacuous, 1 not applicable" in words


def test_an_index_takes_relative_links_only() -> None:
    run = full_run()
    text = index_page([run], links=["x/full-1/report.html"], thumbnails=False)
    assert 'href="x/full-1/report.html"' in text
    assert "<img" not in text
    assert 'src="figures/mistakes.png"' in index_page([run], links=["report.html"])
    with pytest.raises(ShapeMismatch):
        index_page([run], links=[])
    for bad in ("javascript:alert(1)", "https://example.org", "//example.org", "/etc/passwd"):
        with pytest.raises(InvalidInput):
            index_page([run], links=[bad])


def test_an_audit_begins_with_the_diagnosis() -> None:
    page = Page(audit_page(audit()))
    words = page.words()
    start = words.index("What theory says about MLP One defect: A quarter of the units is dead.")
    places = [words.index(area.question, start) for area in Area]
    assert places == sorted(places)
    row = words[words.index("Uses its capacity", start) :]
    assert row.startswith(
        "Uses its capacity ✗ defect A quarter of the units is dead. "
        "0.25 (0.2 to 0.3), from 512 of 3,088 samples share of dead units usual: below 0.05 "
        "Use a leaky activation. Robust – not measured"
    )
    for state in State:
        assert str(state) in words
        assert state.replace(" ", "-") in " ".join(page.values("class"))
    assert "26,122 parameters · took 4.2 s" in words
    assert "forward" not in words, "what a finding costs is no matter of the reader's"


def test_the_first_pictures_are_those_of_what_was_found() -> None:
    told = audit()
    assert [(name, f.name) for name, f in told.pictures] == [
        ("finding-0", "panels"),
        ("finding-1", "mistakes"),
    ]
    text = audit_page(told)
    first = text[: text.index("<details")]
    assert first.count("<img") == 2
    assert text.count("<img") == 6, "a picture above is not repeated below"
    assert Page(text).words().count("Its picture stands above.") == 2
    for f in told.findings:
        f.assessments.clear()
    told.findings[2].name = "risk"
    told.findings[2].figures[0] = replace(told.findings[2].figures[0], name="risk")
    assert [(name, f.name) for name, f in told.pictures] == [
        ("risk", "risk"),
        ("finding-1", "mistakes"),
    ]


def test_everything_else_folds_open_by_area() -> None:
    page = Page(audit_page(audit()))
    words = page.words()
    assert {"capacity", "signals", "data", "not-applicable", "not-done", "checked", "sources"} <= (
        set(page.values("id"))
    )
    assert page.tags.count("details") == page.tags.count("summary")
    before = page.attributes[: page.attributes.index(("div", "id", "signals"))]
    assert ("details", "open", "") not in before
    assert "On all samples 12 units are dead." in words
    assert "→ Lower the learning rate." in words
    assert "Inputs are of one scale. From: The loss is" in words


def test_what_does_not_apply_is_said_once() -> None:
    told = audit()
    assert sum(c.reason == "The network has a BatchNorm layer." for c in told.claims) == 3
    for words in (Page(audit_page(told)).words(), audit_markdown(told)):
        assert words.count("The network has a BatchNorm layer.") == 1
        at = words.index("What does not apply, and why", words.index("Uses its capacity"))
        late = words.index("Stopped after 2 s for want of time.")
        assert at < words.index("The network has a BatchNorm layer.") < late
        assert words.rindex("Not done for lack of time or memory", 0, late) > at


def test_self_checks_are_no_claims_about_the_network() -> None:
    told = audit()
    words = Page(audit_page(told)).words()
    assert "1 self-check, which holds." in words
    assert "19 claims about the network: 12 hold, 3 vacuous, 3 not applicable, 1 not done" in words
    assert "An error of torchtheory" not in words
    told.findings[2].checks("N-08", r"\text{broken}").at_most(2.0, 1.0)
    words = Page(audit_page(told)).words()
    assert words.index("An error of torchtheory") < words.index("What was found")
    assert "this is an error of torchtheory, not of your network" in words
    assert told.verdict.startswith("One defect"), "it does not hide the defect"
    for f in told.findings:
        f.assessments.clear()
    assert "please report it" in told.verdict


def test_an_area_that_nobody_looked_at_is_no_fold() -> None:
    told = audit()
    silent = Assessment(Area.ROBUSTNESS, State.UNMEASURED, "Weights alone do not tell.")
    told.findings[0].assessments.append(silent)
    page = Page(audit_page(told))
    assert "Weights alone do not tell." in page.words()
    assert "robustness" not in page.values("id")


def test_sources_name_the_place_and_the_lab() -> None:
    page = Page(audit_page(audit()))
    words = page.words()
    assert catalogue.entry("N-08").citation in words
    assert "torchtheory lab run perceptron-novikoff" in words
    assert "source-n-08" in page.values("id")
    assert "#source-n-08" in page.values("href")


def test_a_notebook_cell_has_the_same_without_addresses() -> None:
    text = audit_fragment(audit())
    page = Page(text)
    assert page.values("id") == []
    assert page.values("href") == []
    assert "nav" not in page.tags
    assert "One defect: A quarter of the units is dead." in page.words()
    for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL):
        for selector in re.findall(r"([^{};]+)\{", re.sub(r"/\*.*?\*/", "", style)):
            assert selector.strip().startswith(("@container", "@media")) or all(
                ".torchtheory" in one for one in re.split(r",(?![^(]*\))", selector)
            ), selector


def test_an_audit_without_findings() -> None:
    empty = audit()
    empty.findings, empty.facts = [], {}
    words = Page(audit_page(empty)).words()
    assert "There is no finding." in words
    assert "Nothing was measured." in words
    assert words.count("– not measured") == len(Area)
    assert "no claims about the network" in audit_fragment(empty)
