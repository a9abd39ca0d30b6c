"""Statements: every verb measures once, `fails` is the same check, and a check knows its power."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Verdict, claim
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson, fit_slope, mean_interval
from torchtheory.core.record import Record
from torchtheory.core.statement import Statement

HOLDS, VIOLATED, VACUOUS = Verdict.HOLDS, Verdict.VIOLATED, Verdict.VACUOUS
INF, NAN = math.inf, math.nan
KEY = next(iter(catalogue.errata()))
NEAR, FAR = Interval(0.5, 0.4, 0.6, 0.99, 9, "t"), Interval(0.9, 0.8, 1.0, 0.99, 9, "t")
WIDTHS = [10.0, 20.0, 40.0, 80.0]


def says() -> Statement:
    return Record().states("N-08", "x")


def bound(relation: Any, promised: Any, measured: Any, **more: Any) -> Claim:
    return claim("N-08", "x", promised=promised, relation=relation, measured=measured, **more)


@pytest.mark.parametrize(
    ("verb", "good", "bad", "promised", "relation"),
    [
        ("equal", 1.0, 1.5, 1.0, "=="),
        ("at_most", 1.0, 1.5, 1.0, "<="),
        ("at_least", 1.0, 0.5, 1.0, ">="),
        ("below", 0.5, 1.0, 1.0, "<"),
        ("above", 1.5, 1.0, 1.0, ">"),
        ("mean", [0.9, 1.0, 1.1], [2.4, 2.5, 2.6], 1.0, "~"),
        ("share", [True] * 9 + [False], [False] * 99 + [True], 0.9, ">="),
    ],
)
def test_every_verb_has_its_relation_and_its_control(
    verb: str, good: Any, bad: Any, promised: float, relation: str
) -> None:
    record = Record()
    statement = record.states(["N-06", "N-08"], "x")
    made = getattr(statement, verb)(good, promised, where="here")
    assert (made.relation, made.promised, made.reason) == (relation, promised, "here")
    assert made.verdict is HOLDS
    controlled = statement.fails("broken", bad)
    assert record.claims == [controlled]
    control = controlled.control
    assert control is not None
    assert control.verdict is VIOLATED
    assert (control.relation, control.promised, control.reason) == (relation, promised, "broken")
    assert control.ids == made.ids == ("N-06", "N-08")


def test_a_slope_is_fitted_to_both() -> None:
    statement = says()
    made = statement.slope(WIDTHS, [w**-0.5 for w in WIDTHS], -0.5, 1e-9, against=(-1.0, 0.0))
    assert made.verdict is HOLDS
    assert (made.accepted, made.weaknesses) == ((), ())
    control = statement.fails("broken", WIDTHS, [1 / w for w in WIDTHS]).control
    assert control is not None
    assert control.interval == fit_slope(WIDTHS, [1 / w for w in WIDTHS])
    line = says().slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 2.0, 1e-9, log=False)
    assert line.verdict is HOLDS


def test_the_tolerance_of_a_slope_counts_wherever_it_stands() -> None:
    fit = Interval(-0.55, -0.56, -0.54, 0.99, 9, "t")
    loosely: Any = says().slope
    made = [
        loosely(fit, -0.5, 0.05),
        loosely(fit, -0.5, within=0.05),
        loosely(fit, promised=-0.5, within=0.05),
    ]
    assert [(c.promised, c.tolerance, c.verdict) for c in made] == [(-0.5, 0.05, HOLDS)] * 3
    assert loosely(fit, promised=-0.5).verdict is VIOLATED
    y = [w**-0.55 for w in WIDTHS]
    assert says().slope(WIDTHS, y, -0.5, within=0.1).verdict is HOLDS
    assert says().slope(WIDTHS, y, promised=-0.5).verdict is VIOLATED
    for wrong in ((fit,), (WIDTHS, y), (fit, 1.0, 0.1, 0.1)):
        with pytest.raises(InvalidInput, match="slope takes x, y"):
            loosely(*wrong)


def test_confidence_goes_to_claim_and_control() -> None:
    samples, broken = [0.9, 1.0, 1.1], [1.9, 2.0, 2.1]
    statement = says()
    made = statement.mean(samples, 1.0, confidence=0.9)
    assert made.interval == mean_interval(samples, 0.9)
    control = statement.fails("broken", broken).control
    assert control is not None
    assert control.interval == mean_interval(broken, 0.9)
    statement = says()
    hits = statement.share(torch.tensor([True, True, False]), 0.5, confidence=0.8)
    assert hits.interval == clopper_pearson(2, 3, 0.8)
    with pytest.raises(InvalidInput, match=r"confidence 0.8 and its control 0.99; they must be"):
        statement.fails("broken", clopper_pearson(0, 90, 0.99))


def test_intervals_in_place_of_observations() -> None:
    for verb in ("mean", "slope", "at_most", "at_least", "below", "above", "share"):
        statement = says()
        made = getattr(statement, verb)(NEAR, 0.5)
        assert made.interval is NEAR
        assert made.measured == 0.5
        assert made.verdict is HOLDS
    for verb, broken in (("mean", FAR), ("slope", FAR), ("at_most", FAR), ("below", FAR)):
        statement = says()
        getattr(statement, verb)(NEAR, 0.5)
        control = statement.fails("broken", broken).control
        assert control is not None
        assert control.verdict is VIOLATED
    # a fit, and observations of its control
    statement = says()
    statement.slope(Interval(-0.5, -0.6, -0.4, 0.99, 9, "t"), -0.5)
    assert statement.fails("broken", WIDTHS, WIDTHS).control is not None
    with pytest.raises(InvalidInput, match="statistical"):
        says().equal(NEAR, 0.5)


def test_arrays_are_one_claim_about_every_entry() -> None:
    made = says().equal(np.array([1.0, 2.0]), torch.tensor([1.0, 2.5]), 0.1)
    assert (made.cases, made.violations, made.measured, made.promised) == (2, 1, 2.0, 2.5)
    assert says().equal([1e-9, -1e-9], within=1e-8).verdict is HOLDS
    made = says().at_most([1.0, 2.0, 7.0], [1.0, 3.0, 5.0])
    assert (made.cases, made.violations, made.verdict) == (3, 1, VIOLATED)
    with pytest.raises(ShapeMismatch):
        says().at_most([1.0, 2.0], [1.0, 2.0, 3.0])


def test_trivial_and_loose_belong_to_bounds() -> None:
    assert says().at_most(0.2, 1.3, trivial=1.0).verdict is VACUOUS
    assert says().above(0.5, -0.1, trivial=0.0).verdict is VACUOUS
    made = says().at_most(1.0, 18.0, loose="the constant of the proof")
    assert (made.slack, made.loose, made.weaknesses) == (18.0, "the constant of the proof", ())
    assert says().at_most(1.0, 18.0).weaknesses == ("loose",)
    with pytest.raises(InvalidInput, match="only a bound can be loose"):
        bound("==", 1.0, 1.0, loose="no")
    with pytest.raises(InvalidInput, match="only a bound can be loose"):
        bound("~", 1.0, 0.5, interval=NEAR, loose="no")


def test_alternatives_are_excluded_or_accepted() -> None:
    good = says().mean(NEAR, 0.5, against=(0.0, 1.0))
    assert (good.against, good.accepted, good.weaknesses) == ((0.0, 1.0), (), ())
    weak = says().mean(NEAR, 0.5, against=(0.0, 0.55))
    assert (weak.verdict, weak.accepted, weak.weaknesses) == (HOLDS, (0.55,), ("unresolved",))
    # a tolerance widens what is accepted as it widens what holds
    assert says().mean(NEAR, 0.5, 0.1, against=0.65).accepted == (0.65,)
    assert says().slope(NEAR, 0.5).weaknesses == ("unresolved",)
    with pytest.raises(InvalidInput, match="what is promised"):
        says().mean(NEAR, 0.5, against=(0.0, 0.5))
    with pytest.raises(InvalidInput, match="finite"):
        says().mean(NEAR, 0.5, against=(NAN,))
    with pytest.raises(InvalidInput, match="finite"):
        says().mean(NEAR, 0.5, against=(INF,))
    with pytest.raises(InvalidType, match="against must be"):
        says().mean(NEAR, 0.5, against="0")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="statistical equation"):
        bound("<=", 1.0, 0.5, against=(2.0,))


def test_a_control_that_rarely_fails_is_weak() -> None:
    for broken, weak in (([2.0, 2.0, 0.0], ()), ([2.0, 0.0, 0.0, 2.0], ("control",)), ([2.0], ())):
        statement = says()
        statement.at_most(1.0, 1.0)
        made = statement.fails("broken", broken)
        assert made.weaknesses == weak
    # one that never fails is no weakness, but a failed run
    statement = says()
    statement.at_most(1.0, 1.0)
    assert statement.fails("broken", [0.0, 0.0]).weaknesses == ()


def test_fails_belongs_to_its_own_check() -> None:
    record = Record()
    first, second = record.states("N-06", "x"), record.states("N-08", "y")
    first.at_most(0, 1)
    second.at_most(0, 2)
    record.not_applicable("N-08", "z", "no data")
    first.fails("broken", 5)
    controls = [c.control for c in record.claims]
    assert controls[0] is not None
    assert controls[0].ids == ("N-06",)
    assert controls[1:] == [None, None]
    with pytest.raises(InvalidInput, match="has a control already"):
        first.fails("broken in another way", 6)
    first.at_most(0, 1)
    first.fails("broken in another way", 6)
    assert len(record.claims) == 4
    assert record.claims[3].control is not None


def test_fails_may_promise_something_else() -> None:
    statement = says()
    statement.at_most([1.0, 2.0], [2.0, 3.0])
    control = statement.fails("broken", [1.0, 2.0], promised=[0.5, 3.0]).control
    assert control is not None
    assert (control.promised, control.violations, control.cases) == (0.5, 1, 2)
    # the claim's own trivial value does not excuse its control
    statement = says()
    statement.at_most(0.5, 0.9, trivial=1.0)
    control = statement.fails("broken", 1.1, promised=1.0).control
    assert control is not None
    assert control.verdict is VIOLATED


def test_what_cannot_fail_is_refused() -> None:
    with pytest.raises(InvalidInput, match="before you say what fails"):
        says().fails("broken", 1.0)
    erratum = Record().refutes(KEY, "x")
    erratum.at_most(2, 1)
    with pytest.raises(InvalidInput, match="must fail itself"):
        erratum.fails("broken", 3)
    statement = says()
    statement.at_most(0, 1)
    with pytest.raises(InvalidInput, match="took one argument"):
        statement.fails("broken", 2, 1)
    with pytest.raises(InvalidInput, match="took one argument"):
        statement.fails("broken")
    statement.slope(WIDTHS, WIDTHS, 1.0, 1e-9)
    with pytest.raises(InvalidInput, match="took x and y"):
        statement.fails("broken", WIDTHS)
    statement.mean([0.0, 1.0], 0.5)
    with pytest.raises(EmptyData, match="two observations"):
        statement.fails("broken", [1.0])
    with pytest.raises(InvalidInput, match="one True or False each"):
        statement.share([0.3, 0.9], 0.5)


def test_an_erratum_is_recorded_apart() -> None:
    record = Record()
    made = record.refutes(KEY, "x").below(1, 1)
    assert record.claims == []
    assert [(e.key, e.claim) for e in record.errata] == [(KEY, made)]


@pytest.mark.parametrize(
    ("relation", "promised", "measured", "slack"),
    [
        ("<=", 6.0, 2.0, 3.0),
        ("<", 6.0, 2.0, 3.0),
        (">=", 2.0, 6.0, 3.0),
        (">", 2.0, 6.0, 3.0),
        ("<=", 6.0, 6.0, 1.0),
        ("<=", 2.0, 6.0, 1.0),  # violated
        # a negative promise is better where it is larger in size, or smaller
        ("<=", -2.0, -6.0, 3.0),
        (">=", -6.0, -2.0, 3.0),
        ("<=", -6.0, -2.0, 1.0),
        (">=", -2.0, -6.0, 1.0),
        # it could be 0
        ("<=", 6.0, 0.0, INF),
        ("<=", 6.0, -1.0, INF),
        (">=", -6.0, 0.0, INF),
        (">=", -6.0, 1.0, INF),
        # the other side of 0 is a violation
        ("<=", -6.0, 1.0, 1.0),
        ("<=", -6.0, -0.0, 1.0),
        (">=", 6.0, -1.0, 1.0),
        (">=", 6.0, 0.0, 1.0),
        # no ratio to nothing
        ("<=", 0.0, -1.0, None),
        ("<=", 0.0, 0.0, None),
        (">=", 0.0, 5.0, None),
        # infinity
        ("<=", INF, 5.0, INF),
        ("<=", INF, INF, 1.0),
        ("<", INF, 5.0, None),  # it is finite
        (">", -INF, 5.0, None),
        (">=", -INF, 5.0, INF),
        (">=", 5.0, INF, INF),
        ("<=", -5.0, -INF, INF),
        ("<=", 1.0, NAN, None),
        # of several cases the nearest counts
        ("<=", [9.0, 4.0], [1.0, 2.0], 2.0),
        ("<=", [0.0, 4.0], [0.0, 1.0], 4.0),
        (">=", 1.0, [3.0, 2.0], 2.0),
        ("==", 6.0, 6.0, None),
    ],
)
def test_slack(relation: str, promised: Any, measured: Any, slack: float | None) -> None:
    made = bound(relation, promised, measured)
    assert made.slack == slack
    assert Claim.from_json(json.loads(json.dumps(made.to_json()))).slack == slack


def test_a_slack_that_reads_three_is_not_loose() -> None:
    assert bound("<=", 3.04, 1.0).weaknesses == ()
    assert bound("<=", 3.06, 1.0).weaknesses == ("loose",)


positive = st.floats(1e-100, 1e100)


@given(st.sampled_from(["<=", "<", ">=", ">"]), st.lists(st.tuples(positive, positive), min_size=1))
def test_slack_is_how_much_better_the_promise_could_be(
    relation: str, pairs: list[tuple[float, float]]
) -> None:
    less = relation in ("<=", "<")
    promised = np.array([max(p) if less else min(p) for p in pairs])
    measured = np.array([min(p) if less else max(p) for p in pairs])
    made = bound(relation, promised, measured)
    assert made.slack is not None
    assert made.slack >= 1

    def with_promise_better_by(factor: float) -> Verdict:
        better = promised / factor if less else promised * factor
        return bound(relation, better, measured).verdict

    assert with_promise_better_by(made.slack * (1 - 1e-9)) is HOLDS
    assert with_promise_better_by(made.slack * (1 + 1e-6)) is VIOLATED


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.sampled_from(["<=", ">=", "=="]),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_violations_are_counted_as_the_verdict_is_found(
    relation: str, pairs: list[tuple[float, float]], tolerance: float
) -> None:
    each = [bound(relation, p, m, tolerance=tolerance) for p, m in pairs]
    promised, measured = zip(*pairs, strict=True)
    made = bound(relation, promised, measured, tolerance=tolerance)
    assert made.violations == sum(c.verdict is VIOLATED for c in each)
    assert (made.verdict is VIOLATED) == (made.violations > 0)
    assert [c.violations for c in each] == [int(c.verdict is VIOLATED) for c in each]


def test_files_without_the_new_fields_are_read() -> None:
    statement = says()
    statement.at_most([1.0, 2.0], 18.0)
    data = statement.fails("broken", [20.0, 1.0]).to_json()
    for old in (data, data["control"]):
        for name in ("violations", "slack", "loose", "against"):
            del old[name]
    back = Claim.from_json(data)
    assert (back.slack, back.loose, back.against, back.violations) == (None, "", (), 0)
    assert back.verdict is HOLDS
    assert back.weaknesses == ()  # what was not counted is not held against it
    assert back.control is not None
    assert back.control.verdict is VIOLATED


def test_json_keeps_slack_reasons_and_alternatives() -> None:
    statement = says()
    statement.at_most([1.0, 2.0], INF, loose="why")
    made = statement.fails("broken", [NAN, 1.0], promised=0.5)
    other = says().slope(NEAR, 0.5, against=(0.0, 1.0))
    for kept in (made, other):
        text = json.dumps(kept.to_json(), allow_nan=False)
        back = Claim.from_json(json.loads(text))
        assert repr(dataclasses.astuple(back)) == repr(dataclasses.astuple(kept))


def test_what_is_no_statement_is_refused_in_a_sentence() -> None:
    run = Record()
    refused: list[tuple[Any, Any, str]] = [
        (5, "x", "a statement names catalogue ids such as 'N-08', not 5"),
        ([5], "x", r"a statement names catalogue ids such as 'N-08', not \[5\]"),
        (None, "x", "not None"),
        ("N-08", 5, "a statement is LaTeX in a string, not 5"),
        ("N-9999", "x", "N-9999"),
    ]
    for ids, text, sentence in refused:
        with pytest.raises((InvalidType, InvalidInput), match=sentence):
            run.states(ids, text)
    assert run.states((), "x").ids == ()


@pytest.mark.parametrize("observed", ["abc", b"3", None, {"a": 1}, object(), ["a"], "3"])
def test_what_holds_no_numbers_is_refused_in_a_sentence(observed: Any) -> None:
    says = Record().states("N-08", "x")
    checks = (
        lambda: says.equal(observed, 1),
        lambda: says.at_most(observed, 1),
        lambda: says.mean(observed, 1),
        lambda: says.slope([1, 2, 3], observed, 1),
        lambda: says.slope(observed, [1, 2, 3], 1),
        lambda: says.share(observed, 0.5),
    )
    for check in checks[1:] if observed is None else checks:
        with pytest.raises((InvalidType, InvalidInput), match=r"number|slope takes"):
            check()


def test_a_control_says_first_what_is_broken() -> None:
    says = Record().states("N-08", "x")
    says.at_most(1, 2)
    with pytest.raises(InvalidInput, match=r"which hypothesis is broken, in words, not 3"):
        says.fails(3)  # type: ignore[arg-type]


def test_a_tolerance_as_large_as_the_promise_is_a_weakness() -> None:
    assert says().equal(0.02, 0.01, 0.01).weaknesses == ("tolerance",)
    assert says().equal(0.0, 0.01, 0.01).verdict is HOLDS  # which is why
    assert says().equal(0.01, 0.02, 0.01).weaknesses == ()
    assert says().at_most(0.5, 0.5, 1.0).weaknesses == ("tolerance",)
    # one promise of several is enough, and one of 0 has no size to compare with
    assert says().equal([0.001, 3.0], [0.0, 3.0], 0.01).weaknesses == ()
    assert says().equal(0.001, 0.0, 0.01).weaknesses == ()
    back = Claim.from_json(says().equal(0.02, 0.01, 0.01).to_json())
    assert back.weaknesses == ("tolerance",)


def test_alternatives_farther_than_half_and_twice_the_promise() -> None:
    wide = Interval(0.5, 0.2, 0.8, 0.99, 9, "t")
    assert says().slope(wide, 0.5, against=(5.0,)).weaknesses == ("far",)
    # the interval excludes 0.25 and 1, so that nothing is hidden by the far alternative
    assert says().slope(NEAR, 0.5, against=(5.0,)).weaknesses == ()
    assert "far" not in says().slope(wide, 0.5, against=(0.0, 5.0)).weaknesses


@pytest.mark.parametrize(("other", "narrow"), [(0.65, True), (0.71, False), (0.29, False)])
def test_what_an_interval_just_misses_is_narrow(other: float, narrow: bool) -> None:
    assert ("narrow" in says().slope(NEAR, 0.5, against=(other,)).weaknesses) is narrow
    statement = says()
    statement.slope(Interval(other, other - 0.1, other + 0.1, 0.99, 9, "t"), other, against=(9.0,))
    made = statement.fails("broken", NEAR)
    assert ("narrow" in made.weaknesses) is narrow


def test_a_claim_at_another_confidence_is_judged_anew() -> None:
    samples = np.linspace(0.0, 1.0, 50)
    statement = says()
    statement.mean(samples, 0.6, against=(0.9,), confidence=0.7)
    made = statement.fails("broken", samples + 0.2)
    assert (made.verdict, made.control.verdict) == (VIOLATED, VIOLATED)  # type: ignore[union-attr]
    wider = made.at(0.9999)
    assert (wider.verdict, wider.violations) == (HOLDS, 0)
    assert wider.control is not None
    assert wider.control.interval is not None
    assert (wider.control.verdict, wider.control.interval.confidence) == (HOLDS, 0.9999)
    share = says().share([True] * 95 + [False] * 5, 0.99, confidence=0.9)
    assert (share.verdict, share.at(0.9999).verdict) == (VIOLATED, HOLDS)
    assert share.at(0.9999) == says().share([True] * 95 + [False] * 5, 0.99, confidence=0.9999)
    exact = says().equal(1.0, 1.0)
    assert exact.at(0.9) == exact
