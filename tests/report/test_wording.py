"""The words for what a claim came to."""

from __future__ import annotations

import math

import pytest

from torchtheory.core.claim import Claim, Relation, claim
from torchtheory.report.wording import control_words, power_words, slack_words

INF = math.inf


def bound(relation: Relation, promised: float, measured: float) -> Claim:
    return claim("N-08", "x", promised=promised, relation=relation, measured=measured)


@pytest.mark.parametrize(
    ("relation", "promised", "measured", "words"),
    [
        ("<=", 18.0, 1.0, "the promise could be 18 times smaller"),
        (">=", 1.0, 18.0, "the promise could be 18 times larger"),
        ("<", 1.543e9, 1.1, "the promise could be 1.4e9 times smaller"),
        ("<=", -1.0, -2.5, "the promise could be 2.5 times as far below 0"),
        (">=", -2.5, -1.0, "the promise could be 2.5 times as near to 0"),
        ("<=", 1.0, 0.0, "0 does not put it to the test"),
        (">=", -1.0, 0.0, "0 does not put it to the test"),
        ("<=", INF, 1.0, "any number would meet it"),
        (">=", 1.0, INF, "any promise would be met"),
        ("<", INF, 1.0, ""),
        ("<=", 1.04, 1.0, ""),
        ("<=", 1.0, 1.0, ""),
        ("<=", 0.0, -1.0, ""),
        ("<=", 1.0, 2.0, ""),
        ("==", 1.0, 1.0, ""),
    ],
)
def test_slack(relation: Relation, promised: float, measured: float, words: str) -> None:
    assert slack_words(bound(relation, promised, measured)) == words


def test_why_a_bound_is_loose_is_said_even_where_it_is_met() -> None:
    made = claim("N-08", "x", promised=1.0, relation="<=", measured=1.0, loose="the constant")
    assert power_words(made) == ["loose: the constant"]
    assert power_words(bound("<=", 1.0, 1.0)) == []


def test_controls_count_their_cases() -> None:
    def words(*measured: float) -> str:
        return control_words(
            claim("N-08", "x", promised=1.0, relation="<=", measured=list(measured))
        )

    assert words(2.0) == "violated, as it must be"
    assert words(2.0, 3.0) == "violated, as it must be, in all 2 cases"
    assert words(2.0, 0.0, 0.0) == "violated, as it must be, in 1 of 3 cases"
    assert words(0.0, 0.0) == "holds, but it must be violated"
    old = Claim((), "", 1.0, "<=", 9.0, cases=40)
    assert control_words(old) == "violated, as it must be"
