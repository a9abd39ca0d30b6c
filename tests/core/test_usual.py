"""Limits of what is usual, and what a range on both sides of them means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import Area, State
from torchtheory.core.errors import InvalidInput
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import Usual, above, below, between

numbers = st.floats(-1e3, 1e3)


def quantity(low: float, value: float, high: float, used: int = 100, all_: int = 100) -> Quantity:
    return Quantity("share", "share of units", value, low, high, "a test", "", used, all_)


def record() -> FindingRecord:
    return FindingRecord(name="a", title="A", area=Area.FIT, cost="forward")


@given(st.tuples(numbers, numbers, numbers).map(sorted), numbers)
def test_what_is_said_holds_over_the_whole_range(ends: list[float], limit: float) -> None:
    number = quantity(*ends)
    for say, wanted in (("fine", State.FINE), ("look", State.LOOK), ("defect", State.DEFECT)):
        for usual in (below(limit), above(limit)):
            made = record()
            getattr(made, say)("A sentence.", number=number, usual=usual)
            (said,) = made.assessments
            if number.low == number.high == limit:
                continue
            inside = number.high <= limit if usual.high == limit else number.low >= limit
            outside = number.low >= limit if usual.high == limit else number.high <= limit
            sure = inside if wanted is State.FINE else outside
            assert said.state is (wanted if sure else State.OPEN)


def test_an_open_question_says_its_range_and_what_would_decide_it() -> None:
    made = record()
    made.open(quantity(0.0, 0.05, 0.15, 50, 1000), below(0.1))
    made.open(quantity(0.0, 0.05, 0.15, 50, 50), below(0.1))
    made.open(quantity(0.0, 0.1, 0.15, 50, 50), below(0.1))
    one, two, three = made.assessments
    assert one.sentence.startswith("Share of units is between 0 and 0.15, and usual is below 0.1")
    assert one.action == "About 200 of the 1,000 samples would decide it: give a larger budget."
    assert two.action == "About 200 samples would decide it, and 50 were looked at."
    assert three.action == "More samples may decide it."  # all there are were looked at


def test_limits() -> None:
    assert (below(2).low, below(2).high) == (-math.inf, 2)
    assert (between(1, 2).low, between(1, 2).high, str(between(1, 2))) == (1, 2, "between 1 and 2")
    with pytest.raises(InvalidInput, match="nothing is usual between 2 and 1"):
        Usual("nothing", low=2, high=1)
