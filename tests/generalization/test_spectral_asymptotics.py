"""Marchenko and Pastur's law and effective ranks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.interpolation.spectral_asymptotics import (
    asymptotic_variance,
    effective_ranks,
    marchenko_pastur_cdf,
    marchenko_pastur_density,
    marchenko_pastur_support,
)


@pytest.mark.parametrize("ratio", [0.2, 0.9, 1.0, 1.5, 4.0])
def test_density_integrates_to_the_cdf(ratio: float) -> None:
    low, high = marchenko_pastur_support(ratio)

    def density(x: float) -> float:
        return float(marchenko_pastur_density(torch.tensor(x).double(), ratio))

    zero = max(0.0, 1 - 1 / ratio)
    for share in (0.1, 0.5, 0.9):
        x = low + share * (high - low)
        mass = integrate.quad(density, low, x, limit=200)[0]
        cdf = float(marchenko_pastur_cdf(torch.tensor(x).double(), ratio))
        assert cdf == pytest.approx(zero + mass, abs=1e-4)


@pytest.mark.parametrize("ratio", [0.3, 2.5])
def test_variance_is_the_mean_of_the_inverse_eigenvalue(ratio: float) -> None:
    low, high = marchenko_pastur_support(ratio)
    inverse = integrate.quad(
        lambda x: float(marchenko_pastur_density(torch.tensor(x).double(), ratio)) / x, low, high
    )[0]
    assert ratio * inverse == pytest.approx(asymptotic_variance(ratio), rel=1e-5)


def test_asymptotic_variance_values() -> None:
    values = [asymptotic_variance(k) for k in (0.5, 2.0, 3.0, 1.0)]
    assert values == [1.0, 1.0, 0.5, math.inf]
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidInput):
            asymptotic_variance(bad)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(1e-3, 10), min_size=1, max_size=40),
    m=st.integers(1, 20),
    c=st.floats(0.1, 3),
)
def test_effective_ranks_by_the_definition(values: list[float], m: int, c: float) -> None:
    ordered = sorted(values, reverse=True)
    qualified = [
        k for k in range(len(ordered)) if sum(ordered[k:]) >= c * m * ordered[k] * (1 + 1e-9)
    ]
    found = effective_ranks(torch.tensor(values).double(), m, c)
    if found is None:
        assert not qualified
        return
    k = found.index
    assert sum(ordered[k:]) >= c * m * ordered[k] * (1 - 1e-9)
    assert not qualified or k <= qualified[0]
    tail = m * sum(v * v for v in ordered[k:]) / sum(ordered[k:]) ** 2
    assert found.head == k / m
    assert found.size == pytest.approx(k / m + tail)


def test_effective_ranks_refusals() -> None:
    with pytest.raises(ShapeMismatch):
        effective_ranks(torch.eye(2), 3)
    with pytest.raises(InvalidInput):
        effective_ranks(torch.tensor([-1.0]), 3)
    with pytest.raises(InvalidInput):
        effective_ranks(torch.zeros(3), 3)
    with pytest.raises(InvalidInput):
        effective_ranks(torch.ones(3), 0)
    with pytest.raises(NonFinite):
        effective_ranks(torch.tensor([math.nan]), 3)
