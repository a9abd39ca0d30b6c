"""What changed between two audits, beyond the error bars."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from torch import nn

from torchtheory.audit.comparison.compare import compare, fisher_p_value
from torchtheory.audit.comparison.page import (
    comparison_markdown,
    comparison_page,
    print_comparison,
)
from torchtheory.audit.comparison.recorded import Tally, read_audit
from torchtheory.audit.comparison.rows import Change
from torchtheory.audit.engine.audit import Audit, audit
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType, TorchTheoryError
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.record import Table


def number(
    name: str, value: float, low: float | None = None, high: float | None = None, unit: str = ""
) -> dict[str, Any]:
    ends = value if low is None else low, value if high is None else high
    return Quantity(name, name.replace("-", " "), value, *ends, "by hand", unit).to_json()


def finding(name: str = "curvature", **parts: Any) -> dict[str, Any]:
    plain = {"complete": True, "section": "Curvature", "title": name.capitalize()}
    lists: dict[str, Any] = {"warnings": [], "claims": [], "tables": [], "quantities": []}
    return {"name": name, **plain, **lists, **parts}


def made(*findings: dict[str, Any], title: str = "net", **facts: str) -> dict[str, Any]:
    return {"title": title, "facts": facts, "findings": list(findings)}


def stated(
    statement: str, promised: float, measured: float, trivial: float | None = None
) -> dict[str, Any]:
    return Claim(("M-29",), statement, promised, "<=", measured, trivial=trivial).to_json()


def not_applicable(statement: str, reason: str) -> dict[str, Any]:
    return Claim(("M-29",), statement, None, None, None, reason=reason).to_json()


def rates(errors: int, samples: int, train_errors: int = 0) -> dict[str, Any]:
    interval = clopper_pearson(errors, samples)
    table = Table(
        "risk",
        ("data", "samples", "errors"),
        (("train", samples, train_errors), ("test", samples, errors)),
    )
    return finding(
        "risk",
        quantities=[
            number("train-error", train_errors / samples),
            number("test-error", errors / samples, interval.low, interval.high),
        ],
        tables=[table.to_json()],
    )


def changes(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, Change]:
    found = compare(made(finding(quantities=first)), made(finding(quantities=second)))
    return {q.name: q.change for q in found.quantities}


def test_each_kind_of_number() -> None:
    first = [
        number("moved", 1.0, 0.9, 1.1),
        number("noisy", 1.0, 0.9, 1.1),
        number("touching", 1.0, 0.9, 1.1),
        number("counted", 7.0),
        number("same", 7.0),
        number("rounded", 1.0),
        number("infinite", math.inf),
        number("undefined", math.nan),
        number("converted", 1.0, unit="s"),
        number("gone", 1.0),
    ]
    second = [
        number("moved", 1.3, 1.2, 1.4),
        number("noisy", 1.15, 1.05, 1.3),
        number("touching", 1.2, 1.1, 1.3),
        number("counted", 8.0),
        number("same", 7.0),
        number("rounded", 1.0 + 1e-7),
        number("infinite", math.inf),
        number("undefined", 1.0),
        number("converted", 1.0, unit="ms"),
    ]
    assert changes(first, second) == {
        "moved": Change.CHANGED,
        "noisy": Change.WITHIN,
        "touching": Change.WITHIN,
        "counted": Change.DIFFERENT,
        "same": Change.EQUAL,
        "rounded": Change.EQUAL,
        "infinite": Change.EQUAL,
        "undefined": Change.INCOMPARABLE,
        "converted": Change.INCOMPARABLE,
    }


def test_what_a_later_version_adds_is_left_out() -> None:
    first = made(finding(quantities=[{**number("x", 1.0), "added": 1}], added=2), added="3")
    second = {**made(finding(quantities=[number("x", 1.0)])), "added": 4}
    assert [q.change for q in compare(first, second).quantities] == [Change.EQUAL]


def test_texts_of_megabytes_are_cut() -> None:
    """A title, a name, a fact or a sentence that no audit wrote does not fill a page."""
    long = "$<x" * 2_000_000
    claim = {**stated(long, 1.0, 0.5), "reason": long}
    odd = finding(
        quantities=[number(long, 1.0)], warnings=[long], claims=[claim],
        tables=[Table("a", ("data", "samples", "errors"), ((long, 9, 1),)).to_json()],
    ) | {"name": long, "title": long, "section": long}  # fmt: skip
    found = compare({**made(odd, title=long), "facts": {long: long}}, made(finding()))
    assert len(json.dumps(found.to_json())) < 50_000


def test_an_exact_number_inside_the_other_range_is_within_the_error() -> None:
    assert changes([number("x", 1.0)], [number("x", 1.1, 0.9, 1.3)]) == {"x": Change.WITHIN}
    assert changes([number("x", 1.0)], [number("x", 1.1, 1.05, 1.2)]) == {"x": Change.CHANGED}


def test_the_clearest_change_comes_first() -> None:
    first = [number(n, 1.0, 0.9, 1.1) for n in ("little", "none", "much", "more-but-unsure")]
    second = [
        number("little", 1.3, 1.2, 1.4),
        number("none", 1.0, 0.9, 1.1),
        number("much", 9.0, 8.9, 9.1),
        number("more-but-unsure", 20.0, 1.5, 38.5),
    ]
    found = compare(made(finding(quantities=first)), made(finding(quantities=second)))
    assert [q.name for q in found.quantities] == ["much", "more-but-unsure", "little", "none"]
    assert [q.sure for q in found.quantities] == pytest.approx(
        [7.8 / 10.0, 0.4 / 2.6, 0.1 / 2.3, 0.0]
    )


ENDS = st.tuples(*[st.floats(0.01, 100.0)] * 3).map(sorted)


@given(ENDS, ENDS, st.floats(0.01, 100.0))
def test_change_needs_no_order_and_no_scale(a: list[float], b: list[float], scale: float) -> None:
    one = number("x", a[1], a[0], a[2])
    two = number("x", b[1], b[0], b[2])
    there = compare(made(finding(quantities=[one])), made(finding(quantities=[two])))
    back = compare(made(finding(quantities=[two])), made(finding(quantities=[one])))
    (q,), (r,) = there.quantities, back.quantities
    assert q.change is r.change
    assert q.sure == pytest.approx(r.sure)
    assert q.difference == -r.difference
    assert q.ratio is not None
    assert r.ratio is not None
    assert q.ratio * r.ratio == pytest.approx(1.0)
    span = q.ratio_range
    assert span is not None
    assert span[0] <= q.ratio <= span[1]
    # a change beyond the error leaves no room for a ratio of one
    if q.change is Change.CHANGED:
        assert not span[0] <= 1.0 <= span[1]
    elif q.change is Change.WITHIN:
        assert span[0] * (1 - 1e-12) <= 1.0 <= span[1] * (1 + 1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (-1.0, 1.0), (1.0, math.inf), (0.0, 0.0)])
def test_no_ratio_where_it_has_no_sense(a: float, b: float) -> None:
    found = compare(
        made(finding(quantities=[number("x", a)])), made(finding(quantities=[number("x", b)]))
    )
    assert found.quantities[0].ratio is None
    json.dumps(found.to_json(), allow_nan=False)


def test_error_rates_are_tested_by_their_counts() -> None:
    # 50 and 73 of 1000: the intervals overlap, and yet the rates differ at 95 %
    found = compare(made(rates(50, 1000)), made(rates(73, 1000)))
    row = next(q for q in found.quantities if q.name == "test-error")
    assert not row.first.differs_from(row.second)
    assert row.change is Change.CHANGED
    assert row.p_value == pytest.approx(
        stats.fisher_exact([[50, 950], [73, 927]]).pvalue, rel=1e-12
    )
    stricter = compare(
        made(rates(50, 1000), confidence="0.99"), made(rates(73, 1000), confidence="0.99")
    )
    assert next(q for q in stricter.quantities if q.p_value).change is Change.WITHIN
    # errors on the training data are no sample of anything
    assert next(q for q in found.quantities if q.name == "train-error").p_value is None


def test_without_the_counts_ranges_decide() -> None:
    one, two = rates(50, 1000), rates(73, 1000)
    two["tables"] = []
    found = compare(made(one), made(two))
    row = next(q for q in found.quantities if q.name == "test-error")
    assert (row.change, row.criterion) == (Change.WITHIN, "the ranges overlap")


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_fisher_by_enumeration(n: int, m: int, data: st.DataObject) -> None:
    k, j = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))

    def weight(errors: int) -> int:
        return math.comb(n, errors) * math.comb(m, k + j - errors)

    possible = range(max(0, k + j - m), min(n, k + j) + 1)
    tail = sum(weight(e) for e in possible if weight(e) <= weight(k))
    expected = tail / math.comb(n + m, k + j)
    assert fisher_p_value(Tally(k, n), Tally(j, m)) == pytest.approx(expected, rel=1e-9)


def test_claims_are_matched_by_id_and_statement() -> None:
    first = finding(
        claims=[
            stated("R \\le 1", 1.3, 0.2, trivial=1.0),
            stated("a \\le b", 1.0, 0.5),
            stated("with 10 samples", 1.0, 0.5),
            stated("stays", 1.0, 0.5),
            stated("dropped", 1.0, 0.5),
        ]
    )
    second = finding(
        claims=[
            stated("a \\le b", 1.0, 2.0),
            stated("stays", 1.0, 0.25),
            stated("R \\le 1", 0.4, 0.2, trivial=1.0),
            stated("with 20 samples", 1.0, 2.0),
        ]
    )
    found = compare(made(first), made(second))
    told = {
        c.claim.statement: tuple(None if s is None else str(s.verdict) for s in (c.first, c.second))
        for c in found.claims
    }
    assert told == {
        "a \\le b": ("holds", "violated"),
        "with 20 samples": ("holds", "violated"),
        "R \\le 1": ("vacuous", "holds"),
        "dropped": ("holds", None),
    }
    assert [c.worse for c in found.claims] == [True, True, False, False]
    assert found.worsened


def test_a_verdict_is_computed_again() -> None:
    first, second = (finding(claims=[stated("a \\le b", 1.0, 0.5)]) for _ in range(2))
    second["claims"][0]["verdict"] = "violated"
    assert compare(made(first), made(second)).claims == []


def test_warnings_come_go_and_remain() -> None:
    first = finding(warnings=["A weight is as large as 2e4.", "Half of the units are dead."])
    second = finding(warnings=["A weight is as large as 31,000.", "The step is too large."])
    found = compare(made(first), made(second))
    assert [(w.state, w.sentence) for w in found.warnings] == [
        ("new", "The step is too large."),
        ("gone", "Half of the units are dead."),
        ("remains", "A weight is as large as 31,000."),
    ]
    assert found.worsened


def test_a_warning_has_not_gone_if_nobody_looked() -> None:
    first = finding(warnings=["The step is too large."])
    reason = "stopped after 2 s, its part of the time; give a larger budget"
    second = finding(claims=[not_applicable("\\text{Curvature}", reason)], complete=False)
    (warning,) = compare(made(first), made(second)).warnings
    assert warning.state == "examined only in the first"
    (warning,) = compare(made(), made(first)).warnings
    assert warning.state == "examined only in the second"


def test_findings_of_one_audit_only_have_a_reason() -> None:
    reason = "the network has no ReLU"
    whole = [finding(n, quantities=[number("x", 1.0)]) for n in ("a", "b", "c", "d")]
    first = made(*whole)
    second = made(
        finding("a", claims=[not_applicable("\\text{A}", reason)]),
        finding("b", quantities=[number("x", 1.0)], complete=False),
        interrupted="before c, e",
    )
    found = {g.finding: g for g in compare(first, second).gaps}
    assert found["a"].reason == reason
    assert (found["b"].first, found["b"].second) == ("made", "made in part")
    assert found["c"].reason == "the audit was interrupted before it"
    assert found["d"].reason == "it was not among the findings of that audit"


def test_facts_that_differ_are_cautions_where_they_matter() -> None:
    first = made(samples="200 train, 100 test", confidence="0.95", seed="0", model="MLP")
    same = compare(first, made(samples="200 train, 100 test", confidence="0.95", model="CNN"))
    assert same.cautions == []
    assert same.facts == {"seed": ("0", "–"), "model": ("MLP", "CNN")}
    other = compare(first, made(samples="50 train, no test set", confidence="0.99", seed="1"))
    assert len(other.cautions) == 2
    assert "200 train, 100 test and 50 train, no test set" in other.cautions[0]
    assert all("may not be comparable" in c for c in other.cautions)
    assert any("seed: 0 and 1" in r for r in other.remarks)
    assert other.confidence == 0.99


def assessed(state: State, sentence: str, area: Area = Area.TRAINING) -> dict[str, Any]:
    return Assessment(area, state, sentence, action="Do it.", finding="curvature").to_json()


def diagnosed(*said: dict[str, Any], **facts: str) -> dict[str, Any]:
    defects = [a["sentence"] for a in said if a["state"] == State.DEFECT]
    one = finding(assessments=list(said), warnings=defects, quantities=[number("x", 1.0)])
    return {**made(one, **facts), "diagnosis": list(said)}


def test_areas_turn() -> None:
    fine, look, bad = (assessed(s, str(s)) for s in (State.FINE, State.LOOK, State.DEFECT))
    none = assessed(State.UNMEASURED, "Not measured.")
    turns = {
        (one["state"], two["state"]): compare(diagnosed(one), diagnosed(two)).areas[0].turn
        for one in (fine, look, bad, none)
        for two in (fine, look, bad, none)
    }
    assert turns[State.FINE, State.LOOK] == turns[State.LOOK, State.DEFECT] == "worse"
    assert turns[State.DEFECT, State.FINE] == "better"
    assert all(turn == "same" for (one, two), turn in turns.items() if one == two)
    unknown = {pair for pair, turn in turns.items() if turn == "unknown"}
    assert unknown == {p for p in turns if (p[0] == State.UNMEASURED) != (p[1] == State.UNMEASURED)}


def test_a_new_defect_comes_with_its_action() -> None:
    found = compare(diagnosed(), diagnosed(assessed(State.DEFECT, "It diverges.")))
    assert [(w.state, w.sentence, w.action) for w in found.warnings] == [
        ("new", "It diverges.", "Do it.")
    ]
    assert found.worsened
    looked = compare(diagnosed(), diagnosed(assessed(State.LOOK, "It is slow.")))
    assert [w.state for w in looked.looks] == ["new"]
    assert not looked.worsened


def test_records_of_early_versions_have_no_areas() -> None:
    old = made(finding(quantities=[number("x", 1.0)], warnings=["The step is too large."]))
    found = compare(old, diagnosed(assessed(State.FINE, "Good.")))
    assert found.areas == []
    assert [w.state for w in found.warnings] == ["gone"]
    assert "areas" not in found.to_markdown()


def test_areas_of_later_versions_are_left_out() -> None:
    strange = {**assessed(State.FINE, "x"), "area": "taste"}
    found = compare(diagnosed(strange), diagnosed(strange))
    assert found.areas == []


def not_done(statement: str) -> dict[str, Any]:
    reason = "no time was left for it"
    return Claim(("M-29",), statement, None, None, None, reason=reason, undone=True).to_json()


def test_what_was_not_done_has_not_changed() -> None:
    held = finding(claims=[stated("a", 1.0, 0.5), stated("b", 1.0, 0.5)])
    late = finding(claims=[not_done("a")], complete=False)
    for pair in ((held, late), (late, held)):
        found = compare(made(pair[0]), made(pair[1]))
        assert found.claims == []
        assert not found.worsened
        assert [g.reason for g in found.gaps] == ["no time was left for it"]
    # what does not apply is something else: a hypothesis of the theorem failed
    (row,) = compare(made(held), made(finding(claims=[
        not_applicable("a", "no ReLU"), stated("b", 1.0, 0.5)]))).claims  # fmt: skip
    assert str(row.claim.verdict) == "not applicable"


def test_self_checks_are_not_compared() -> None:
    one, two = (Claim((), "a", 1.0, "<=", value, self_check=True).to_json() for value in (0.5, 2.0))
    found = compare(made(finding(claims=[one])), made(finding(claims=[two])))
    assert found.claims == []
    assert not found.worsened


def test_the_same_data_are_recognized() -> None:
    sizes = {"samples": "10 train, no test set"}
    same = compare(made(data="ab12", **sizes), made(data="ab12", **sizes))
    assert same.cautions == []
    assert same.remarks == []
    other = compare(made(data="ab12", **sizes), made(data="cd34", **sizes))
    assert "the samples are others" in other.cautions[0]
    unknown = compare(made(**sizes), made(data="cd34", **sizes))
    assert unknown.cautions == []
    assert any("do not record" in r for r in unknown.remarks)
    # a busy machine takes fewer samples of the same data, and ranges cover that
    busy = compare(made(data="a", **sizes), made(data="a", **{**sizes, "sub-sampled": "5 of 10"}))
    assert busy.cautions == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "is not the record of an audit"),
        ('{"lab": "hopfield", "claims": []}', "that of a lab run"),
        ('{"steps": [], "quantities": []}', "that of a tracked training"),
        (
            '{"title": "x", "facts": {"versions": "torchtheory 0.0.3, torch 2"}, '
            '"findings": [{"name": "risk"}]}',
            r"another version \(torchtheory 0.0.3\)",
        ),
        ('{"title": "x", "findings": [{"name": "risk", "quantities": [1]}]}', "cannot read"),
        ("\ud800", "not a text file"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "audit.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FileProblem, match=sentence):
        read_audit(file)


def test_missing_files_and_other_objects(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="there is no file"):
        read_audit(tmp_path / "nothing.json")
    with pytest.raises(FileProblem, match=r"no audit\.json in"):
        read_audit(str(tmp_path))
    with pytest.raises(FileProblem, match="File name too long"):
        read_audit("a" * 5000)
    os.mkfifo(tmp_path / "audit.json")
    for endless in (tmp_path, tmp_path / "audit.json", "/dev/zero"):
        with pytest.raises(FileProblem, match="is not a file"):
            read_audit(endless)
    with pytest.raises(InvalidInput, match="not the record of an audit"):
        read_audit({"a": 1})
    with pytest.raises(InvalidType, match="not from a int"):
        read_audit(3)  # type: ignore[arg-type]


HOSTILE = (
    *(None, True, -1, 0, 10**18, 10**400, -(10**400), 1e308, -1e308, 5e-324, "\ud800", "$", "**"),
    *("", "x", "inf", "nan", "1_0", math.inf, math.nan, [], {}, [[]], [None], {"a": {}}, "\x1b[2J"),
)


def changed(data: Any, draw: random.Random) -> Any:
    """The record with one of its values replaced or dropped, or a row cut short."""
    place, key, inner = data, None, data
    while isinstance(inner, dict | list) and inner and (key is None or draw.random() < 0.95):
        place, key = inner, draw.choice([*inner] if isinstance(inner, dict) else range(len(inner)))
        inner = inner[key]
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = copy.deepcopy(draw.choice(HOSTILE))
    return data


def test_any_record_is_compared_or_refused(tmp_path: Path) -> None:
    whole = made(
        rates(7, 100),
        finding(
            quantities=[number("sharpness", 2.0, 1.0, 3.0), number("norm", 4.0, unit="m")],
            claims=[stated("a", 1.0, 0.5, 2.0), not_applicable("b", "no")],
            warnings=["It is 3 times too large."],
            assessments=[assessed(State.DEFECT, "It is 3 times too large.")],
        ),
        confidence="0.95",
    )
    whole["diagnosis"] = [assessed(State.LOOK, "x"), assessed(State.FINE, "y", Area.FIT)]
    claim = whole["findings"][1]["claims"][0]
    claim["interval"] = clopper_pearson(7, 100).to_json()
    draw, refused = random.Random(0), 0
    console = Console(file=io.StringIO(), width=80)
    for k in range(400):
        other = copy.deepcopy(whole)
        for _ in range(draw.choice((1, 1, 3))):
            changed(other, draw)
        file = tmp_path / f"{k}.json"
        file.write_text(json.dumps(other))
        pair = (whole, file) if k % 2 else (file, whole)
        try:
            found = compare(*pair)
        except TorchTheoryError:
            refused += 1
            continue
        print_comparison(found, console, verbose=True)
        json.dumps(found.to_json(), allow_nan=False, ensure_ascii=False).encode()
        comparison_markdown(found).encode()
        comparison_page(found).encode()
        found.to_markdown().encode()
    assert 50 < refused < 350


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        '{"findings": ' + "[" * 900 + "]" * 900 + "}",
        '{"title": "x", "facts": {"a": ' + "[" * 900 + "]" * 900 + '}, "findings": []}',
        '{"title": "\\ud800", "findings": []}',
        '{"title": "x", "findings": [], "seconds": ' + "9" * 5000 + "}",
    ],
)
def test_records_of_odd_shapes(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with contextlib.suppress(FileProblem):
        comparison_page(compare(tmp_path / "a.json", made())).encode()


def test_the_same_audit_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(made()))
    with pytest.raises(InvalidInput, match="the same file"):
        compare(file, tmp_path)
    one = made()
    with pytest.raises(InvalidInput, match="the same audit"):
        compare(one, one)


def test_names(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.json").write_text(json.dumps(made()))
    assert compare(tmp_path / "before", tmp_path / "after").names == ("before", "after")
    assert compare(made(title="a"), made(title="b")).names == ("a", "b")
    assert compare(made(), made()).names == ("first", "second")
    assert compare(made(), made(), names=("x", "y")).names == ("x", "y")


@pytest.fixture(scope="module")
def audits() -> tuple[Audit, Audit]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    good, bad = nn.Linear(4, 2, dtype=torch.float64), nn.Linear(4, 2, dtype=torch.float64)
    with torch.no_grad():
        for model, sign in ((good, 1.0), (bad, -1.0)):
            model.weight.zero_()
            model.bias.zero_()
            model.weight[1, 0] = sign
    data = ((x[:60], y[:60]), (x[60:], y[60:]))
    only = ["risk", "layers"]
    return (
        audit(good, *data, only=only, budget=None, title="good"),
        audit(bad, *data, only=only, budget=None, title="bad"),
    )


def test_two_real_networks(audits: tuple[Audit, Audit], tmp_path: Path) -> None:
    good, bad = audits
    found = compare(good, bad)
    rows = {q.name: q for q in found.quantities}
    # one is always right and the other always wrong
    error = rows["test-error"]
    assert (error.first.value, error.second.value) == (0.0, 1.0)
    assert error.change is Change.CHANGED
    assert error.criterion == "Fisher's exact test"
    assert error.p_value == pytest.approx(2 / math.comb(120, 60))
    assert found.facts == {}
    assert found.cautions == []
    good.save(tmp_path / "good")
    bad.save(tmp_path / "bad")
    again = compare(tmp_path / "good", str(tmp_path / "bad" / "audit.json"))
    assert again.to_json() == found.to_json() == compare(good.to_json(), bad.to_json()).to_json()


def test_it_is_saved(audits: tuple[Audit, Audit], tmp_path: Path) -> None:
    found = compare(*audits)
    page = found.save(tmp_path / "out")
    assert sorted(p.name for p in page.parent.iterdir()) == [
        "comparison.html",
        "comparison.json",
        "comparison.md",
    ]
    kept = json.loads((page.parent / "comparison.json").read_text())
    assert kept == {"made_by": "torchtheory comparison", **found.to_json()}
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem, match="cannot write to"):
        found.save(tmp_path / "file")
