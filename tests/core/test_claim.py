"""Claims: the verdict follows from the numbers, and from nothing else."""

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

from torchtheory.core.claim import (
    RELATIONS,
    Claim,
    Verdict,
    claim,
    not_applicable,
    split_ids,
    with_control,
)
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnknownName
from torchtheory.core.intervals import Interval, clopper_pearson

HOLDS, VIOLATED, VACUOUS = Verdict.HOLDS, Verdict.VIOLATED, Verdict.VACUOUS
INF, NAN = math.inf, math.nan


def make(relation: Any, promised: Any, measured: Any, **more: Any) -> Claim:
    return claim("N-08", "x", promised=promised, relation=relation, measured=measured, **more)


def between(low: float, high: float) -> Interval:
    middle = low if low == high else (low + high) / 2
    return Interval(middle, low, high, 0.99, 100, "a test")


@pytest.mark.parametrize(
    ("relation", "promised", "measured", "verdict"),
    [
        ("<=", 1.0, 1.0, HOLDS),
        ("<=", 1.0, 1.0000001, VIOLATED),
        ("<", 1.0, 1.0, VIOLATED),
        ("<", 1.0, 0.9999999, HOLDS),
        (">=", 1.0, 1.0, HOLDS),
        (">=", 1.0, 0.9999999, VIOLATED),
        (">", 1.0, 1.0, VIOLATED),
        (">", 1.0, 1.0000001, HOLDS),
        ("==", 1.0, 1.0, HOLDS),
        ("==", 1.0, 1.0000001, VIOLATED),
        ("<=", True, False, HOLDS),
        ("==", True, True, HOLDS),
    ],
)
def test_relations_without_tolerance(
    relation: str, promised: float, measured: float, verdict: Verdict
) -> None:
    assert make(relation, promised, measured).verdict is verdict


@pytest.mark.parametrize(
    ("relation", "promised", "measured", "tolerance", "verdict"),
    [
        # below 1 the tolerance is absolute, above it relative
        ("<=", 0.1, 0.19, 0.1, HOLDS),
        ("<=", 0.1, 0.21, 0.1, VIOLATED),
        ("<=", 100.0, 109.0, 0.1, HOLDS),
        ("<=", 100.0, 111.0, 0.1, VIOLATED),
        ("<=", -100.0, -91.0, 0.1, HOLDS),
        ("<=", -100.0, -89.0, 0.1, VIOLATED),
        (">=", 100.0, 91.0, 0.1, HOLDS),
        (">=", 100.0, 89.0, 0.1, VIOLATED),
        ("==", 0.0, 1e-7, 1e-6, HOLDS),
        ("==", 0.0, -1e-5, 1e-6, VIOLATED),
        ("==", 1e6, 1e6 + 0.5, 1e-6, HOLDS),
        ("==", 1e6, 1e6 + 2, 1e-6, VIOLATED),
    ],
)
def test_tolerance_scales_with_the_promise(
    relation: str, promised: float, measured: float, tolerance: float, verdict: Verdict
) -> None:
    assert make(relation, promised, measured, tolerance=tolerance).verdict is verdict


@pytest.mark.parametrize(
    ("relation", "promised", "low", "high", "verdict"),
    [
        ("~", 0.5, 0.4, 0.6, HOLDS),
        ("~", 0.4, 0.4, 0.6, HOLDS),
        ("~", 0.39, 0.4, 0.6, VIOLATED),
        ("slope", -0.5, -0.6, -0.4, HOLDS),
        ("slope", -0.3, -0.6, -0.4, VIOLATED),
        # an inequality is refuted only by the whole interval
        ("<=", 0.5, 0.4, 0.6, HOLDS),
        ("<=", 0.39, 0.4, 0.6, VIOLATED),
        ("<", 0.4, 0.4, 0.6, VIOLATED),
        (">=", 0.5, 0.4, 0.6, HOLDS),
        (">=", 0.61, 0.4, 0.6, VIOLATED),
        (">", 0.6, 0.4, 0.6, VIOLATED),
        ("~", 7.0, -INF, INF, HOLDS),
    ],
)
def test_confidence_intervals(
    relation: str, promised: float, low: float, high: float, verdict: Verdict
) -> None:
    interval = between(low, high)
    measured = 0.0 if math.isinf(low) else interval.estimate
    assert make(relation, promised, measured, interval=interval).verdict is verdict


def test_tolerance_widens_the_interval() -> None:
    near = between(0.4, 0.6)
    assert make("~", 0.7, 0.5, interval=near, tolerance=0.11).verdict is HOLDS
    assert make("~", 0.7, 0.5, interval=near, tolerance=0.09).verdict is VIOLATED


def test_a_measurement_lies_in_its_own_interval() -> None:
    with pytest.raises(InvalidInput, match="outside its own confidence interval"):
        make("<=", 0.7, 100.0, interval=between(0.4, 0.6))
    with pytest.raises(InvalidInput, match="outside its own confidence interval"):
        make("~", 0.5, NAN, interval=between(0.4, 0.6))


@pytest.mark.parametrize(
    ("relation", "promised", "measured", "verdict"),
    [
        ("<=", INF, 5.0, HOLDS),
        ("<=", -INF, 5.0, VIOLATED),
        ("<=", 5.0, INF, VIOLATED),
        ("<=", 5.0, -INF, HOLDS),
        ("<=", INF, INF, HOLDS),
        ("<", INF, INF, VIOLATED),
        (">=", -INF, 5.0, HOLDS),
        (">=", INF, 5.0, VIOLATED),
        ("==", INF, INF, HOLDS),
        ("==", INF, -INF, VIOLATED),
        ("==", INF, 5.0, VIOLATED),
        ("==", 5.0, INF, VIOLATED),
    ],
)
@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_infinity_on_either_side(
    relation: str, promised: float, measured: float, verdict: Verdict, tolerance: float
) -> None:
    if relation == "<":
        tolerance = 0.0
    assert make(relation, promised, measured, tolerance=tolerance).verdict is verdict


@pytest.mark.parametrize("relation", ["<=", "<", ">=", ">", "=="])
@pytest.mark.parametrize(("promised", "measured"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN)])
def test_nan_never_holds(relation: str, promised: float, measured: float) -> None:
    assert make(relation, promised, measured).verdict is VIOLATED
    if relation != "==":
        assert make(relation, promised, measured, trivial=1.0).verdict is VIOLATED


def test_arrays_are_reduced_to_their_worst_entry() -> None:
    worst = make("<=", [1.0, 10.0, 2.0], [0.5, 12.0, 2.5])
    assert (worst.promised, worst.measured, worst.cases) == (2.0, 2.5, 3)  # 25 % against 20 %
    assert worst.verdict is VIOLATED
    assert make(">=", 0, torch.tensor([3, 1, 2])).measured == 1
    assert make("==", 5.0, np.array([[5.0, 4.0], [7.5, 5.0]])).measured == 7.5


@pytest.mark.parametrize(
    ("relation", "promised", "measured"),
    [
        ("<=", [INF, 1.0], [5.0, 3.0]),
        (">=", [-INF, 1.0], [5.0, -3.0]),
        ("<=", [1.0, 2.0, 3.0], [0.0, NAN, 0.0]),
        ("==", [INF, 1.0], [INF, 2.0]),
        ("<=", [1e308, 1.0], [-1e308, 1.5]),
    ],
)
def test_one_violated_entry_suffices(
    relation: str, promised: list[float], measured: list[float]
) -> None:
    assert make(relation, promised, measured).verdict is VIOLATED


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.sampled_from(["<=", "<", ">=", ">", "=="]),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
)
def test_an_array_holds_exactly_when_every_entry_does(
    relation: str, pairs: list[tuple[float, float]]
) -> None:
    each = [make(relation, p, m).verdict is HOLDS for p, m in pairs]
    promised, measured = zip(*pairs, strict=True)
    assert (make(relation, promised, measured).verdict is HOLDS) == all(each)


def test_shapes_are_not_broadcast() -> None:
    column, row = torch.zeros(3, 1), torch.zeros(3)
    with pytest.raises(ShapeMismatch, match=r"\[3, 1\] and measured \[3\]"):
        make("==", column, row)
    assert make("==", 0.0, row).cases == 3
    assert make("==", row, 0.0).cases == 3


@pytest.mark.parametrize(
    ("relation", "promised", "trivial", "verdict"),
    [
        ("<=", 0.9, 1.0, HOLDS),
        ("<=", 1.0, 1.0, VACUOUS),
        ("<=", INF, 1.0, VACUOUS),
        (">=", 0.1, 0.0, HOLDS),
        (">=", 0.0, 0.0, VACUOUS),
        (">", -0.1, 0.0, VACUOUS),
    ],
)
def test_vacuous(relation: str, promised: float, trivial: float, verdict: Verdict) -> None:
    assert make(relation, promised, 0.5, trivial=trivial).verdict is verdict


def test_a_refuted_promise_is_violated_even_where_it_would_be_vacuous() -> None:
    assert make("<=", 1.3, 1.5, trivial=1.0).verdict is VIOLATED


def test_not_applicable() -> None:
    none = not_applicable("N-08", "x", "the data is not separable")
    assert none.verdict is Verdict.NOT_APPLICABLE
    assert Claim.from_json(json.loads(json.dumps(none.to_json()))) == none
    with pytest.raises(InvalidInput, match="why nothing was measured"):
        not_applicable("N-08", "x", "")


def test_the_verdict_cannot_be_passed() -> None:
    with pytest.raises(TypeError):
        Claim(("N-08",), "x", 1.0, "<=", 0.0, verdict=HOLDS)  # type: ignore[call-arg]
    made = make("<=", 1.0, 2.0)
    with pytest.raises(TypeError):
        dataclasses.replace(made, verdict=HOLDS)  # type: ignore[call-arg]
    with pytest.raises((AttributeError, TypeError)):  # frozen, and slots
        made.verdict = HOLDS  # type: ignore[misc]
    forged = {**made.to_json(), "verdict": "holds"}
    assert Claim.from_json(forged).verdict is VIOLATED


@given(
    st.sampled_from(RELATIONS),
    numbers,
    numbers,
    st.floats(0, 10),
    st.none() | st.floats(allow_nan=False),
    st.integers(0, 2),
)
def test_json_keeps_the_claim_and_its_verdict(
    relation: Any,
    promised: float,
    measured: float,
    tolerance: float,
    trivial: float | None,
    control: int,
) -> None:
    more: dict[str, Any] = {}
    if relation in ("~", "slope"):
        if math.isnan(measured):
            measured = 0.0
        more["interval"] = Interval(measured, -INF, measured, 0.95, 7, "a test")
    if relation not in ("<", ">"):
        more["tolerance"] = tolerance
    if relation in ("<", "<=", ">", ">="):
        more["trivial"] = trivial
    made = make(relation, promised, measured, **more)
    for _ in range(control):
        made = with_control(made, make("<=", 0.0, 1.0))
    text = json.dumps(made.to_json(), allow_nan=False)
    back = Claim.from_json(json.loads(text))
    assert back.verdict is made.verdict
    # as text, for NaN is not equal to itself
    assert repr(dataclasses.astuple(back)) == repr(dataclasses.astuple(made))
    assert json.loads(text)["verdict"] == str(made.verdict)


def test_json_has_the_source_and_strings_for_what_is_not_finite() -> None:
    data = make("<=", INF, NAN).to_json()
    assert (data["promised"], data["measured"]) == ("inf", "nan")
    assert data["source"] == "Deep Learning (notes), §1.2, Theorem 1.3"
    assert data["id"] == "N-08"


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"relation": "≤"}, InvalidInput, "relation must be one of"),
        ({"tolerance": -1.0}, InvalidInput, "tolerance must be"),
        ({"tolerance": NAN}, InvalidInput, "tolerance must be"),
        ({"relation": "<", "tolerance": 0.1}, InvalidInput, "strict"),
        ({"relation": "~"}, InvalidInput, "confidence interval"),
        ({"relation": "slope"}, InvalidInput, "confidence interval"),
        ({"relation": "==", "trivial": 1.0}, InvalidInput, "vacuous"),
        ({"trivial": NAN}, InvalidInput, "NaN"),
        ({"measured": []}, InvalidInput, "empty"),
        ({"measured": [1, 2], "interval": between(0, 1)}, InvalidInput, "one number"),
        ({"measured": "0.5"}, InvalidType, "real number"),
        ({"measured": None}, InvalidType, "real number"),
        ({"measured": 1j}, InvalidType, "real number"),
        ({"measured": torch.tensor(1j)}, InvalidType, "real number"),
        ({"measured": [[1.0], [2.0, 3.0]]}, InvalidType, "real number"),
        ({"measured": [10**400]}, InvalidType, "real number"),
        ({"id": "N-99999"}, UnknownName, "catalogue entry"),
    ],
)
def test_ill_formed_claims_are_refused(
    arguments: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    given = {"id": "N-08", "promised": 1.0, "relation": "<=", "measured": 0.5} | arguments
    with pytest.raises(error, match=sentence):
        claim(given.pop("id"), "x", **given)


def test_ids() -> None:
    assert split_ids("N-06, N-07") == split_ids(["N-06", "N-07"]) == ("N-06", "N-07")
    assert split_ids("") == ()
    assert claim("", "x", promised=1, relation="<=", measured=0).source == ""
    assert make("<=", 1, np.float32(0.5)).to_json()["measured"] == 0.5
    assert type(make("<=", 1, 0, trivial=np.float32(2)).trivial) is float


def test_the_slack_of_a_high_probability_is_that_of_failure() -> None:
    def made(hits: int, promised: float) -> Claim:
        found = clopper_pearson(hits, 1000)
        return claim(
            (), "x", promised=promised, relation=">=", measured=found.estimate, interval=found
        )

    # by the end of the interval that decides: 1 - high is the least probability of failure
    end = clopper_pearson(990, 1000).high
    assert made(990, 0.95).slack == pytest.approx(0.05 / (1 - end))
    assert made(1000, 0.95).slack == math.inf
    assert made(990, 0.95).weaknesses == ("loose",)
    assert made(960, 0.95).weaknesses == ()
    # of a small probability the share of hits itself is what is bounded
    assert made(400, 0.2).slack == pytest.approx(clopper_pearson(400, 1000).high / 0.2)
    assert not made(400, 0.2).about_failures
