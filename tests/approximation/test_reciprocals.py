"""Division by ReLU networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.polynomials.reciprocals import (
    rational_network,
    reciprocal_error,
    reciprocal_factors,
    reciprocal_network,
)
from torchtheory.core.errors import InvalidInput


@given(st.floats(0.05, 0.9), st.floats(1e-3, 0.5))
@settings(max_examples=8, deadline=None)
def test_reciprocal_keeps_its_promise(low: float, error: float) -> None:
    a = reciprocal_network(low, error)
    x = torch.linspace(low, 1, 501, dtype=torch.float64)
    assert float((a(x) - 1 / x).abs().max()) <= a.bound <= error
    assert a.size.width <= 11


def test_factors_by_hand() -> None:
    # (1/2)^(2^k) * 2 <= 1/8 first at k = 2
    assert reciprocal_factors(0.5, 0.125) == 2
    assert reciprocal_error(0.01, 10, 2) == float("inf")


def test_rational_function() -> None:
    p, q = {(1, 0): 1.0, (0, 1): 1.0}, {(0, 0): 2.0, (1, 1): 1.0}
    made = rational_network(p, q, 0.05, low=1.0, high=3.0, largest=2.0)
    x = 2 * torch.rand(500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    truth = x.sum(1) / (2 + x.prod(1))
    assert float((made(x) - truth).abs().max()) <= made.bound <= 0.05
    total = made.numerator + made.denominator + made.product
    assert made.bound == pytest.approx(total)


@pytest.mark.parametrize("low", [0.0, 1.0, -0.5, float("nan")])
def test_denominators_stay_away_from_zero(low: float) -> None:
    with pytest.raises(InvalidInput, match="low"):
        reciprocal_network(low, 0.1)


def test_bad_ranges_are_refused() -> None:
    one = {(0,): 1.0}
    with pytest.raises(InvalidInput, match="high"):
        rational_network(one, one, 0.1, low=2.0, high=1.0, largest=1.0)
    with pytest.raises(InvalidInput, match="low"):
        rational_network(one, one, 0.1, low=-1.0, high=1.0, largest=1.0)
