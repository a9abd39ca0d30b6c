"""What a person sees of an audit, a finding, a claim and their numbers in a console."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import types
from dataclasses import replace

import pytest

from torchtheory.audit.engine.diagnosis import PICTURES
from torchtheory.audit.engine.quantities import QuantityTable
from torchtheory.core.claim import claim, not_done
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import MissingPackage, UnknownName
from torchtheory.core.quantity import Quantity
from torchtheory.labs.engine.registry import listed_labs
from torchtheory.labs.manifest import PACKAGE, labs_by_id
from torchtheory.report.audit_parts import audit_parts
from torchtheory.report.numbers import number_words
from torchtheory.report.results import quantity_table, quantity_words

from .examples import HOSTILE, SHARE, audit, finding


def test_an_audit_shows_its_verdict_and_areas() -> None:
    text = repr(audit())
    lines = text.splitlines()
    assert lines[:2] == [
        "What theory says about MLP",
        "One defect: A quarter of the units is dead.",
    ]
    assert "✗ defect        Uses its capacity    A quarter of the units is dead." in lines
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 88
    assert "\x1b" not in repr(audit(hostile=True))


def test_a_finding_shows_what_it_says() -> None:
    first = audit().findings[0]
    assert repr(first).splitlines() == [
        "Units that never fire",
        "  defect (Uses its capacity): A quarter of the units is dead. Use a leaky activation.",
        "  On all samples 12 units are dead.",
        "  share of dead units: 0.25 (0.2 to 0.3), from 512 of 3,088 samples",
        "  6 claims: 4 hold, 1 vacuous, 1 not applicable",
    ]
    assert repr(finding(title="Curvature\x1b", complete=False)) == (
        "Curvature (not complete: out of time)"
    )


def test_a_claim_shows_its_comparison() -> None:
    made = claim("N-08", "a", promised=1.0, relation="<=", measured=[0.5, 2.0], reason="b\x1b")
    assert repr(made) == (
        "Claim N-08 violated: measured 2 <= promised 1 (worst of 2 cases)\n  a\n  b"
    )
    assert repr(not_done("", "a", "no time")) == "Claim not done\n  a\n  no time"


def test_the_numbers_are_a_table() -> None:
    told = audit()
    second = Quantity("trace", "trace of the Hessian", 11_173_962.0, 0.0, math.inf, "a test")
    told.findings[1].quantities.append(second)
    table = told.quantities
    assert isinstance(table, QuantityTable)
    assert [(row.finding, row.name) for row in table] == [
        ("finding-0", "share"),
        ("finding-1", "trace"),
    ]
    assert table["share"] == table[0]
    assert table["share"] != table[1]
    assert (table[0].used, table[0].population, table[0].basis) == (512, 3088, "jackknife")
    assert repr(table).splitlines() == [
        "finding    number                value",
        "finding-0  share of dead units   0.25 (0.2 to 0.3), from 512 of 3,088 samples",
        "finding-1  trace of the Hessian  11.2 million (0 to ∞)",
    ]
    assert repr(table[1:]).count("\n") == 1
    shown = audit(hostile=True).quantities._repr_html_()
    assert "<script" not in shown
    assert "share of dead units&lt;script" in shown
    assert repr(QuantityTable([])) == "no numbers"
    with pytest.raises(UnknownName, match="did you mean 'share'"):
        table["shares"]


def test_a_data_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        audit().quantities.to_pandas()
    frame = types.ModuleType("pandas")
    frame.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", frame)
    rows = audit().quantities.to_pandas()
    assert rows[0]["label"] == "share of dead units"
    assert list(rows[0])[:5] == ["finding", "name", "label", "value", "low"]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_data_frame() -> None:
    frame = audit().quantities.to_pandas()
    assert frame.loc[0, "high"] == 0.3


@pytest.mark.parametrize("state", State)
def test_assessments_survive_json(state: State) -> None:
    for number in (None, SHARE, replace(SHARE, value=math.inf, high=math.inf)):
        made = Assessment(
            Area.FIT, state, HOSTILE, number, "below 1", "do it", "figure", "a-finding"
        )
        assert Assessment.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made
    told = audit()
    kept = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert [Assessment.from_json(a) for a in kept["diagnosis"]] == told.diagnosis
    again = [Assessment.from_json(a) for f in kept["findings"] for a in f["assessments"]]
    assert again == [a for f in told.findings for a in f.assessments]


def test_verdicts() -> None:
    told = audit()
    first, second, third = told.findings
    assert told.verdict == "One defect: A quarter of the units is dead."
    second.defect("Gradients vanish.")
    assert told.verdict == ("Two defects, in signals and capacity: Gradients vanish.")
    first.assessments.clear()
    second.assessments.clear()
    second.look("Gradients shrink.")
    assert told.verdict == "No defect was found; worth a look: signals."
    third.complete = second.complete = False
    assert told.verdict.startswith("Most of this audit is not done: 2 of 3 findings that may apply")
    assert told.verdict.endswith("no defect was found; worth a look: signals.")
    assert audit_parts(told).state is State.LOOK
    second.assessments.clear()
    assert audit_parts(told).state is State.UNMEASURED, "what is mostly undone is not fine"
    third.complete = True
    assert audit_parts(told).state is State.FINE
    second.complete = True
    assert told.verdict == "Nothing wrong was found in the one area that was measured, of eight."
    for area in Area:
        first.fine("Fine.", area=area)
    assert told.verdict == "Nothing wrong was found in any of the eight areas."
    told.interrupted = True
    assert told.verdict.startswith("The audit was interrupted. Of what it has: nothing wrong")


def test_pictures_are_few_and_the_most_serious_first() -> None:
    told = audit()
    assert len(told.pictures) <= PICTURES
    told.findings[2].defect("Worse.", figure="mistakes")
    told.findings[2].defect("Gone.", figure="no-such-figure")
    names = [name for name, _ in told.pictures]
    assert names == ["finding-0", "finding-2", "finding-1"]
    told.findings[0].assessments.clear()
    told.findings[1].assessments.clear()
    told.findings[1].fine("Fine.", figure="mistakes")
    told.findings[0].name = "risk"
    told.findings[0].figures[1] = replace(told.findings[0].figures[1], name="risk")
    pictures = [(name, figure.name) for name, figure in told.pictures]
    assert pictures == [("finding-2", "mistakes"), ("risk", "risk"), ("finding-1", "mistakes")]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (0.1209, "0.121"),
        (-0.00012345, "-0.000123"),
        (9.999e-5, "0.0001"),
        (9.99e-5, "9.99 × 10⁻⁵"),
        (999.6, "1,000"),
        (12345, "12,300"),
        (999_999, "1 million"),
        (-2.5e9, "-2.5 billion"),
        (3e17, "300 quadrillion"),
        (1.26e178, "1.26 × 10¹⁷⁸"),
        (math.inf, "∞"),
    ],
)
def test_numbers_of_three_digits(value: float, words: str) -> None:
    assert number_words(value) == words


def test_labs_of_an_id_are_those_that_cover_it() -> None:
    found = {(name, i) for i, names in labs_by_id().items() for name in names}
    shipped = [lab for lab in listed_labs().values() if lab.module.startswith(f"{PACKAGE}.")]
    assert found == {(lab.name, i) for lab in shipped for i in lab.covers}


def test_a_range_too_narrow_to_see_is_left_out() -> None:
    narrow = Quantity("a", "a", 0.24774, 0.247741, 0.247743, "Lanczos", "per step")
    assert quantity_words(narrow) == "0.248 per step"
    assert quantity_words(replace(narrow, high=0.3)) == "0.248 per step (0.248 to 0.3)"
    assert quantity_table([narrow]).columns == ("quantity", "value", "range", "the range is")
    assert quantity_table([SHARE]).columns[-1] == "measured on"
