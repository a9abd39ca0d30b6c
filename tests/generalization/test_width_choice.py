"""The width with the least bound on the total error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from torchtheory.core.errors import InvalidInput
from torchtheory.generalization.learning.width_choice import (
    approximation_bound,
    approximation_constant,
    choose_width,
    estimation_order,
)


def test_by_hand() -> None:
    assert approximation_constant(3.0, 2.0) == 144.0
    assert approximation_bound(12, 3.0, 2.0) == 12.0
    assert estimation_order(5, 2, 100, 3.0) == pytest.approx(0.3 * math.log(100))


@given(st.integers(1, 20), st.integers(2, 10**6), st.floats(0.01, 100), st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_least_of_all_widths(d: int, m: int, a: float, b: float) -> None:
    found = choose_width(d, m, a, b)

    def total(n: float) -> float:
        return a / n + b * n * d * math.log(m) / m

    assert found.total == pytest.approx(total(found.width))
    near = range(max(1, found.width - 3), found.width + 4)
    assert found.total <= min(total(n) for n in near) * (1 + 1e-12)
    assert found.total >= 2 * math.sqrt(a * b * d * math.log(m) / m) * (1 - 1e-12)
    assert a / found.balance == pytest.approx(estimation_order(found.balance, d, m, b))
    best = minimize_scalar(lambda s: total(math.exp(s)), bounds=(-30, 30), method="bounded")
    assert math.log(found.balance) == pytest.approx(best.x, abs=1e-3)


def test_refused() -> None:
    for arguments in ((0, 100, 1.0), (1, 1, 1.0), (1, 100, 0.0), (1, 100, float("nan"))):
        with pytest.raises(InvalidInput):
            choose_width(*arguments)
    with pytest.raises(InvalidInput, match="width"):
        approximation_bound(0, 1.0)
    with pytest.raises(InvalidInput, match="radius"):
        approximation_constant(1.0, -1.0)
