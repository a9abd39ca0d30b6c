"""Two audits side by side: sentences, terminal, page, Markdown, figure."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from torchtheory.audit.comparison.compare import Comparison, compare
from torchtheory.audit.comparison.page import (
    comparison_fragment,
    comparison_markdown,
    comparison_page,
    print_comparison,
    ratio_figure,
)
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.record import Table

from ..report.examples import HOSTILE, Page

pytestmark = pytest.mark.draws


def finding(name: str, bad: str = "", **parts: Any) -> dict[str, Any]:
    lists: dict[str, Any] = {"warnings": [], "claims": [], "tables": [], "quantities": []}
    words = {"name": name, "title": name.capitalize() + bad, "section": "Curvature" + bad}
    return {**words, "complete": True, **lists, **parts}


def one_audit(
    sharpness: float, errors: int, promised: float, warning: str, facts: dict[str, str], bad: str
) -> dict[str, Any]:
    test = clopper_pearson(errors, 1000)
    curvature = [
        Quantity(
            "sharpness", "sharpness" + bad, sharpness, 0.96 * sharpness, 1.04 * sharpness,
            "residual" + bad, "loss" + bad,
        ),
        Quantity("trace", "trace", 10 * sharpness, 9.0 * sharpness, 12.0 * sharpness, "errors"),
        Quantity("layers", "layers", 3.0, 3.0, 3.0, "exact"),
    ]  # fmt: skip
    rate = Quantity("test-error", "test error", test.estimate, test.low, test.high, "exact")
    table = Table("risk", ("data", "samples", "errors"), (("test", 1000, errors),))
    bound = Claim(("M-29" + bad,), r"R \le 1" + bad, promised, "<=", 0.2, trivial=1.0)
    missing = Claim((), "x" + bad, None, None, None, reason="no ReLU" + bad)
    said = [
        Assessment(Area.TRAINING, State.DEFECT, warning, action="Mend it." + bad).to_json(),
        Assessment(
            Area.FIT, State.LOOK if promised > 1 else State.FINE, "It fits." + bad
        ).to_json(),
        Assessment(Area.DATA, State.FINE, "The data are good." + bad).to_json(),
    ]
    made = [
        finding(
            "curvature",
            bad,
            quantities=[q.to_json() for q in curvature],
            warnings=[warning],
            assessments=said,
        ),
        finding("risk", bad, quantities=[rate.to_json()], tables=[table.to_json()]),
        finding("bounds", bad, claims=[_plain(bound)]),
        finding("regions", bad, claims=[_plain(missing)])
        if promised > 1
        else finding("regions", bad, quantities=[curvature[2].to_json()]),
    ]
    title = f"net {sharpness}" + bad
    return {"title": title, "facts": facts, "findings": made, "diagnosis": said}


def _plain(claim: Claim) -> dict[str, Any]:
    """A claim's data where the catalogue does not know its id."""
    data = Claim((), *[getattr(claim, k) for k in ("statement", "promised", "relation")],
                 claim.measured, reason=claim.reason, trivial=claim.trivial).to_json()  # fmt: skip
    return {**data, "id": claim.id}


def example(bad: str = "") -> Comparison:
    first = one_audit(0.25, 18, 1.3, "Half of the units are dead." + bad, {"seed": "0"}, bad)
    second = one_audit(1.6, 21, 0.4, "The step is too large." + bad, {"seed": "1" + bad}, bad)
    return compare(first, second)


def printed(comparison: Comparison, width: int = 80, verbose: bool = False) -> str:
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=width), verbose=verbose)
    return out.getvalue()


def test_the_summary_says_what_changed() -> None:
    assert example().summary == [
        "Of 4 numbers in both audits, 2 changed beyond the error, 1 agrees within the error, "
        "1 is equal.",
        "The sharpness rose from 0.25 ± 0.01 to 1.6 ± 0.064 (6.4-fold).",
        "The test error changed from 1.8 % to 2.1 %, which is within the error "
        "(Fisher's exact test, p = 0.75).",
        "1 claim has another verdict (Bounds: vacuous → holds).",
        "New defect: The step is too large.",
        "No longer a defect: Half of the units are dead.",
    ]


def test_the_summary_of_equal_audits() -> None:
    one = finding("curvature", quantities=[Quantity("x", "x", 1.0, 1.0, 1.0, "exact").to_json()])
    pair = [{"title": t, "facts": {}, "findings": [one]} for t in "ab"]
    assert compare(*pair).summary == [
        "The two audits agree exactly in 1 number, all that they share."
    ]
    empty = [{"title": t, "facts": {"samples": t}, "findings": []} for t in "ab"]
    assert compare(*empty).summary == [
        "The two are not audits on the same data (samples: a and b), so their numbers may not be "
        "comparable.",
        "The two audits have no number in common, so there is nothing to compare.",
    ]


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_terminal_keeps_its_width(width: int, verbose: bool) -> None:
    text = printed(example(), width, verbose)
    assert max(map(len, text.splitlines())) <= width
    assert ("≠ changed" if width >= 80 else "≠") in text
    assert "× 6.4" in text
    assert "vacuous → holds" in text
    assert "new: The step is too large." in text
    assert "regions: net 0.25 not made, net 1.6 made; no ReLU" in " ".join(text.split())
    assert ("both are exact" in text) == verbose


def test_markup_of_a_terminal_is_shown_as_it_is() -> None:
    text = printed(example("[red]x[/red]"), 140)
    assert "[red]x[/red]" in text


def test_the_page_is_well_formed_and_refers_to_nothing_outside() -> None:
    for text in (comparison_page(example()), comparison_fragment(example())):
        page = Page(text)
        assert "script" not in page.tags
        assert "://" not in text
        words = page.words()
        for part in ("6.4-fold", "within the error", "Half of the units are dead.", "no ReLU"):
            assert part in words
        assert any(v.startswith("data:image/svg") for v in page.values("src"))


def test_what_an_audit_says_is_never_markup() -> None:
    text = comparison_page(example(HOSTILE))
    page = Page(text)
    assert not {"script", "iframe", "object", "form"} & set(page.tags)
    assert not [n for _, n, _ in page.attributes if n.startswith("on")]
    assert all(v.startswith("data:image/") for v in page.values("src"))
    assert HOSTILE in page.words()
    markdown = comparison_markdown(example(HOSTILE))
    assert "<script" not in re.sub(r"\\<", "", markdown)


def test_a_comment_on_a_pull_request() -> None:
    text = example().to_markdown()
    assert text.startswith("<!-- torchtheory compare -->\n\n### Audit: net 0.25 → net 1.6")
    assert (
        "**1 new defect; 1 defect gone; 2 of 4 numbers have changed beyond the error bars.**"
        in text
    )
    assert "| Fits the data | ⚠️ look here: It fits. | ✅ fine |" in text
    assert "The 2 other areas are as they were: 1 ❌ defect, 1 ✅ fine." in text
    assert "- The step is too large. *Mend it.*" in text
    assert "**Defects that are gone**\n\n- Half of the units are dead." in text
    assert "sharpness (loss) | 0.25 ± 0.01 | 1.6 ± 0.064 | × 6.4 |" in text
    assert "test error" not in text  # within the error
    assert "layers" not in text


def test_a_comment_where_nothing_changed() -> None:
    one = {**finding("a", quantities=[Quantity("x", "x", 1.0, 1.0, 1.0, "exact").to_json()])}
    pair = [{"title": t, "facts": {}, "findings": [one]} for t in "ab"]
    text = compare(*pair).to_markdown()
    assert "**None of 1 number has changed beyond the error bars.**" in text
    assert "|" not in text


@pytest.mark.parametrize("bad", ["", HOSTILE, " a | b "])
@pytest.mark.parametrize("made", [comparison_markdown, Comparison.to_markdown])
def test_tables_of_markdown_keep_their_columns(bad: str, made: Any) -> None:
    text = made(example(bad))
    assert "# net 0.25" in text or "### Audit: net 0.25" in text
    assert "<script" not in re.sub(r"\\<", "", text)
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1, lines


def test_the_figure_is_drawn_only_where_it_says_something() -> None:
    figure = ratio_figure(example())
    assert figure is not None
    assert figure.svg is not None
    assert "sharpness" in figure.svg
    assert "layers" not in figure.svg  # the same in both
    one = finding("a", quantities=[Quantity("x", "x", 1.0, 1.0, 1.0, "exact").to_json()])
    two = finding("a", quantities=[Quantity("x", "x", 2.0, 2.0, 2.0, "exact").to_json()])
    pair = [{"title": t, "facts": {}, "findings": [f]} for t, f in (("a", one), ("b", two))]
    assert ratio_figure(compare(*pair)) is None


@pytest.mark.parametrize("label", ["cost in $ of $x", r"\frac{1}", "$\\broken{$", "ℓ₂ norm"])
def test_no_label_breaks_the_figure(label: str) -> None:
    def one(scale: float) -> dict[str, Any]:
        numbers = [Quantity(n, label, scale * k, scale * k, scale * k, "exact").to_json()
                   for k, n in ((1, "x"), (1e-7, "y"), (1e9, "z"))]  # fmt: skip
        return {
            "title": label * int(scale),
            "facts": {},
            "findings": [finding("a", quantities=numbers)],
        }

    found = compare(one(1.0), one(2.0))
    assert ratio_figure(found) is not None
    Page(comparison_page(found))
