"""Theorem, symbols, idea, changes and exercises on a page, in a terminal and in Markdown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from torchtheory.labs.engine.registry import Lab, find_lab, lab
from torchtheory.labs.engine.run import Run, run_lab
from torchtheory.report import wording
from torchtheory.report.html import index_page, run_fragment, run_page
from torchtheory.report.lab_markdown import lab_markdown
from torchtheory.report.lab_terminal import print_lab
from torchtheory.report.terminal import print_run

from .examples import HOSTILE, Page, empty_run


def taught(run: Run, size: int = 3, kind: bool = True) -> None:
    r"""Sizes are counted.

    Theorem:
        Let $\mathcal A$ be a set.
        *Finite*: it has $n$ elements.
        Then it has $2^n$ subsets.

    Symbols:
        $n$, $\mathcal A$: a number and a set.

    Idea:
        Each element is in or out.

    Try:
        size=5: $2^5$ subsets.
        --preset full: as many as the source has.

    Exercise:
        Count the subsets of the empty set.
        check: count == 1
        answer: count = 1

    Args:
        size: of the set, $n$.
    """
    says = run.states("N-08", "a=2^n")
    says.equal(2**size, 2**size)
    says.fails("the empty set left out", 2**size - 1)
    run.assumes(kind, f"a set of {size} is not kind")


@pytest.fixture
def made(own_registry: None) -> Lab:
    lab(
        "zz-subsets", room="neurons", covers=["N-08", "N-06"], title="There are $2^n$ subsets",
        full={"size": 6}, least={"size": 2}, most={"size": 9},
    )(taught)  # fmt: skip
    return find_lab("zz-subsets")


def test_a_page_teaches_before_it_measures(made: Lab) -> None:
    text = run_page(run_lab(made))
    words = Page(text).words()
    order = ("Theorem", "Symbols", "Idea of the proof", "Statements", "What to try", "Exercise")
    places = [text.index(f"<h2>{heading}</h2>") for heading in order]
    assert places == sorted(places)
    for said in (
        "Finite: it has", "a number and a set.", "Each element is in or out.",
        "An answer count = 1", "Solved when this is true: count == 1", "a whole number, 2 to 9",
    ):  # fmt: skip
        assert said in words
    assert words.count(wording.CONTROL) == 1
    assert "ℱ" not in words
    assert "𝒜" in words
    assert "--set size=5" in words
    assert "in place of" not in words, "the lab's own changes are suggested, and no other"
    assert "Each element is in or out." in run_fragment(run_lab(made))


def test_a_terminal_and_markdown_say_the_same(made: Lab) -> None:
    stream = io.StringIO()
    print_lab(made, Console(file=stream, width=100))
    shown = " ".join(stream.getvalue().split())
    markdown = lab_markdown(made)
    for said in ("Finite", "a number and a set.", "Each element is in or out.", "count == 1"):
        assert said in shown
        assert said in markdown
    assert "Then it has 2ⁿ subsets." in shown
    assert "Then it has $2^n$ subsets." in markdown
    assert "2 to 9" in shown
    assert "- `size` = 3, in full 6 (a whole number, 2 to 9): of the set, $n$.\n" in markdown
    assert "count = 1" not in shown, "the answer is behind a fold, and a terminal has none"
    assert wording.CONTROL in markdown


def test_a_lab_without_sections_is_shown_as_before() -> None:
    words = Page(run_page(empty_run())).words()
    headings = ("Theorem", "Idea of the proof", "Exercise", wording.CONTROL)
    assert not any(heading in words for heading in headings)


def test_a_run_outside_of_its_theorem_says_why_and_does_not_fail(made: Lab) -> None:
    run = run_lab(made, settings={"kind": False})
    assert (run.passed, run.problems) == (True, [])
    assert run.claims[-1].ids == ("N-06",), "what was judged before stays judged"
    assert run.claims[-1].reason == "a set of 3 is not kind"
    run.claims = run.claims[-1:]
    assert wording.outcome(run) == ("does not apply", run.claims[0].verdict)
    assert "Does not apply" in Page(run_page(run)).words()
    assert "does not apply" in Page(index_page([run])).words()
    stream = io.StringIO()
    print_run(run, Console(file=stream, width=100))
    assert "does not apply: 1 claim: 1 not applicable" in stream.getvalue()
    # but a lab whose own preset is outside of its theorem has shown nothing
    own = run_lab(made)
    own.claims = run.claims
    assert not own.passed


def test_what_a_lab_teaches_is_escaped(own_registry: None) -> None:
    def function(run: Run) -> None: ...

    function.__doc__ = (
        f"A.\n\nTheorem:\n    *{HOSTILE}*: {HOSTILE}.\n    Then {HOSTILE}.\n\n"
        f"Symbols:\n    $x$: {HOSTILE}\n\nIdea:\n    {HOSTILE}\n\nExercise:\n    {HOSTILE}\n"
    )
    lab("zz-hostile", room="neurons", covers=["N-08"], title="t")(function)
    assert "<script>" not in run_page(run_lab("zz-hostile"))
