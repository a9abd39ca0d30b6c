"""What a terminal shows, at 80 and 120 columns, without color and without markup."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval
from torchtheory.core.usual import below
from torchtheory.report.audit_parts import STATE_MARKS
from torchtheory.report.terminal import print_audit, print_run, print_runs

from .examples import (
    ERRATUM,
    HOSTILE,
    SHARE,
    audit,
    described,
    empty_run,
    failing_run,
    finding,
    full_run,
    hostile_run,
)


def printed(show: Callable[..., None], *arguments: Any, width: int = 80, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False)
    show(*arguments, console, **options)
    text = out.getvalue()
    assert "\x1b" not in text
    assert all(cell_len(line) <= width for line in text.splitlines())
    return text


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_everything_fits_the_width(width: int, verbose: bool) -> None:
    for run in (full_run(), failing_run(), empty_run()):
        printed(print_run, run, width=width, verbose=verbose)
    printed(print_runs, [full_run(), failing_run()], width=width)
    printed(print_audit, audit(), width=width, details=verbose)


def test_a_run_in_short() -> None:
    text = printed(print_run, full_run(), width=120)
    line = next(line for line in text.splitlines() if "t ≤ R²/γ²" in line)
    assert line.split() == ["✓", "holds", "t", "≤", "R²/γ²", "96", "≤", "100", "N-06", "N-07"]
    for word in ("worst of 3", "[0.0212, 0.0437]", "at 95 %", "○ vacuous", "– not applicable"):
        assert word in text
    for word in ("off by 2e-13", "± 3.1e-9", "1.3e19", "∞", "BatchNorm", f"erratum  {ERRATUM}"):
        assert word in text
    assert "refuted" in text
    assert "control:" not in text
    assert "by-dimension" not in text
    assert "Margins below 10⁻³ were drawn again." in text
    assert flat(text).endswith(
        "passes: 6 claims: 4 hold, 1 vacuous, 1 not applicable · "
        "1 control, violated as it must be · 1 erratum refuted "
        f"try: torchtheory lab run perceptron-novikoff --module {described.__module__} --seeds 20"
    )


def test_a_run_in_full() -> None:
    text = flat(printed(print_run, full_run(), width=120, verbose=True))
    assert "control: violated, as it must be, in all 3 cases – the labels are" in text
    assert "the promise could be 2.4 times smaller" in text
    assert "12,000 ≰ 100" in text
    assert "The number of updates is at most R²/γ²." in text
    assert "- it never ends on data that cannot be separated." in text
    assert "samples=200 · margin=0.1 · widths=16, 32 · bias=yes" in text
    assert catalogue.entry("N-08").citation in text
    assert "Clopper-Pearson, 1,000 observations" in text
    assert "Updates against d." in text
    assert "mistakes: Updates stay below R²." in text


def test_a_weak_check_says_so() -> None:
    run = empty_run()
    run.states("N-08", "a").at_most(1, 18)
    run.states("N-08", "b").at_least(36, 2, loose="the constant $c$ of the proof")
    run.states("N-08", "c").mean(Interval(0.5, 0.4, 0.6, 0.99, 9, "t"), 0.5, against=(0, 0.55))
    run.states("N-08", "d").mean(Interval(0.5, 0.4, 0.6, 0.99, 9, "t"), 0.5, against=(0, 1))
    short = flat(printed(print_run, run, width=120))
    assert "the promise could be 18 times smaller" in short
    assert "excludes 0, but would accept 0.55 as well" in short
    assert "18 times larger" not in short
    assert "excludes 0 and 1" not in short
    full = flat(printed(print_run, run, width=120, verbose=True))
    assert "the promise could be 18 times larger: the constant c of the proof" in full
    assert "excludes 0 and 1" in full
    told = audit()
    told.findings = [finding(claims=run.claims)]
    assert "18 times" not in flat(printed(print_audit, told, width=120))
    assert "18 times smaller" in flat(printed(print_audit, told, width=120, details=True))


def test_a_failing_run_says_why() -> None:
    text = flat(printed(print_run, failing_run()))
    assert "1.00002 ≰ 1" in text
    assert "✗ N-08: Lₜ₊₁ ≤ Lₜ is violated" in text
    assert "the control of N-08 did not fail" in text
    assert "control:" in text
    assert "fails: 1 claim: 1 violated" in text


def test_color_comes_with_words() -> None:
    out = io.StringIO()
    print_run(
        failing_run(), Console(file=out, width=80, force_terminal=True, color_system="standard")
    )
    assert "\x1b[1;31m✗ violated" in out.getvalue()


def test_many_runs_end_with_counts() -> None:
    runs = [full_run("b-lab", "kernels"), full_run("a-lab", "nets"), failing_run()]
    text = printed(print_runs, runs)
    places = [text.index(word) for word in ("nets", "a-lab", "failing-lab", "kernels", "b-lab")]
    assert places == sorted(places)
    assert "✗ fails" in text
    assert "failing-lab (quick, seed 0)" in text
    assert "3 labs, 1 failing" in text
    assert "13 claims: 8 hold, 1 violated, 2 vacuous, 2 not applicable" in flat(text)
    assert flat(printed(print_runs, [full_run()])).split("─")[-1].count("none failing") == 1
    assert "no labs" in printed(print_runs, [])


def test_the_first_screen_of_an_audit() -> None:
    text = printed(print_audit, audit())
    assert len(text.splitlines()) <= 40
    assert "One defect: A quarter of the units is dead." in text
    for area in Area:
        assert area.question in flat(text).replace("Signals and gradients", area.question) or (
            area.question.split()[0] in text
        )
    for state, mark in STATE_MARKS.items():
        assert f"{mark} {state}" in text
    assert "0.25 (0.2 to 0.3), from 512 of 3,088 samples" in flat(text)
    assert "usual: below 0.05" in flat(text)
    assert "→ Use a leaky activation." in text
    assert "26,122 parameters · took 4.2 s" in text
    assert "Clopper-Pearson" not in text


@pytest.mark.parametrize("times", [1, 4, 30])
def test_the_first_screen_fits_however_much_is_said(times: int) -> None:
    told = audit()
    told.findings[0].assessments.clear()
    told.findings[2].checks("N-08", r"\text{broken}").at_most(2.0, 1.0)
    for area in Area:
        told.findings[0].defect(
            "Something is wrong with it, and here is why. " * times,
            number=replace(SHARE, label="a label of some length " * times),
            usual=below(0.05, "below 0.05, " * times),
            action="Do this first. " * times,
            area=area,
        )
    told.facts["samples"] = "many " * 40 * times
    text = printed(print_audit, told)
    assert len(text.splitlines()) <= 40
    assert text.count("✗ defect") == len(Area)
    assert text.count("→ Do this first.") == len(Area)
    assert "error of torchtheory" in flat(text)
    assert "…" in text or times == 1


def test_the_details_of_an_audit() -> None:
    text = flat(printed(print_audit, audit(), details=True))
    for word in (
        "Units that never fire On all samples 12 units are dead.",
        "The loss is β-smooth",
        "→ Lower the learning rate.",
        "What does not apply, and why",
        "Not done for lack of time or memory",
        "19 claims about the network: 12 hold, 3 vacuous, 3 not applicable, 1 not done.",
        "1 self-check, which holds.",
        "Clopper-Pearson, 1,000 observations",
        catalogue.entry("N-08").citation,
        "torchtheory lab run perceptron-novikoff",
    ):
        assert word in text
    assert text.count("The network has a BatchNorm layer.") == 1
    assert "by-dimension" not in text, "what a table is called inside is not shown"


def test_a_sign_is_wavy_where_the_numbers_alone_would_not_do() -> None:
    run = empty_run()
    interval = Interval(0.9125, 0.897, 0.928, 0.99, 100, "Student t")
    run.claims += [
        Claim((), "a", 0.9131, ">=", 0.9125, interval=interval),
        Claim((), "b", 1.0, "<=", 1.05, tolerance=0.1),
        Claim((), "c", 0.138, "==", 0.1379, tolerance=5e-4),
        Claim((), "d", 0.0, "==", 1e-9, tolerance=1e-6),
        Claim((), "e", 0.0, "==", 0.0),
    ]
    text = flat(printed(print_run, run, width=120))
    assert "✓ holds a 0.9125 ≳ 0.9131" in text
    assert "✓ holds b 1.05 ≲ 1" in text
    assert "✓ holds c 0.1379 ≈ 0.138" in text
    assert "✓ holds d 1e-9 ≈ 0 ± 1e-6" in text
    assert "✓ holds e 0 = 0" in text


def test_long_tables_are_cut() -> None:
    run = empty_run()
    run.table("huge", ["n"], [[n] for n in range(5000)], caption="Numbers.")
    text = flat(printed(print_run, run, verbose=True))
    assert "Numbers. (the first 20 of 5,000 rows)" in text


def test_text_is_never_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    markup = "[bold red]x[/bold red] [link=file:///x]y[/link] [/] :smile:"
    run = full_run()
    run.note(markup)
    run.parameters["name"] = markup
    run.table("markup", [markup], [[markup]], caption=markup)
    run.not_applicable("N-08", rf"\text{{{markup}}}", markup)
    text = flat(printed(print_run, run, width=200, verbose=True))
    assert text.count("[bold red]x[/bold red]") == 7
    assert text.count(":smile:") == 7
    bad = catalogue.Erratum(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    monkeypatch.setattr(catalogue, "errata", lambda: {HOSTILE: bad})
    printed(print_run, hostile_run(), verbose=True)
    printed(print_audit, audit(hostile=True), details=True)
