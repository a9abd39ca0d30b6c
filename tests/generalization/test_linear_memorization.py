"""Theorem 2.1 and Corollary 2.2: memorizing targets, and interpolants far from the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.generalization.memorization.linear import far_interpolant, memorize_targets


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000))
def test_any_targets_are_memorized(m: int, more: int, s: int, seed: int) -> None:
    phi, y = randn(m, m + more, seed=seed), randn(m, s, seed=seed + 1)
    found = memorize_targets(phi, y)
    torch.testing.assert_close(phi @ found.weights, y, atol=1e-7, rtol=1e-7)
    expected = np.linalg.lstsq(phi.numpy(), y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(found.weights.numpy(), expected, atol=1e-7)
    assert found.norm == pytest.approx(float(found.weights.norm()))


def test_dependent_rows_are_refused_with_the_reason() -> None:
    phi = randn(50, 80)
    with pytest.raises(InvalidInput, match="rank 50 and there are 51"):
        memorize_targets(torch.cat([phi, phi[:1]]), randn(51, 3))
    with pytest.raises(InvalidInput, match="5 rows in 3 dimensions"):
        memorize_targets(randn(5, 3), randn(5))


@pytest.mark.parametrize("low_rank", [False, True])
@pytest.mark.parametrize("error", [0.0, 0.3])
def test_far_interpolant(low_rank: bool, error: float) -> None:
    if low_rank:  # Corollary 2.2: fewer columns than rows
        basis = randn(15, 20, seed=1)
        phi, test = randn(60, 15, seed=2) @ basis, randn(60, 15, seed=3) @ basis
    else:
        phi, test = randn(20, 60, seed=2), randn(20, 60, seed=3)
    star = randn(phi.shape[1], 2, seed=4)
    found = far_interpolant(phi, test, star, error=error, distance=1e3, generator=7)
    for rows, change in ((phi, found.train_change), (test, found.test_change)):
        torch.testing.assert_close(
            rows @ found.weights, rows @ star + error * change, atol=1e-9, rtol=1e-9
        )
        assert float(change.norm()) <= 1 + 1e-12
    assert found.norm >= 1e3
    assert found.distance >= 1e3
    apart = error**2 * found.within.square().sum() + found.beyond.square().sum()
    assert found.distance**2 == pytest.approx(float(apart), rel=1e-12)
    assert float((found.within.T @ found.beyond).abs().max()) < 1e-8
    again = far_interpolant(phi, test, star, error=error, distance=1e3, generator=7)
    assert torch.equal(found.weights, again.weights)


def test_features_that_are_all_zero() -> None:
    zero = torch.zeros(2, 3).double()
    found = far_interpolant(zero, zero, torch.zeros(3).double(), error=1.0, distance=5.0)
    assert found.norm == pytest.approx(5.0)
    assert float(found.train_change.norm()) == 0


def test_full_rank_is_refused() -> None:
    with pytest.raises(InvalidInput, match="full rank 6"):
        far_interpolant(randn(4, 6), randn(4, 6, seed=1), randn(6), distance=1.0)


def test_bad_input() -> None:
    phi = randn(3, 6)
    with pytest.raises(ShapeMismatch):
        memorize_targets(phi, randn(4))
    with pytest.raises(NonFinite):
        memorize_targets(phi, torch.full((3,), math.inf))
    with pytest.raises(InvalidType):
        memorize_targets(phi.long(), randn(3))
    with pytest.raises(ShapeMismatch, match="6 columns"):
        far_interpolant(phi, randn(2, 5), randn(6), distance=1.0)
    with pytest.raises(InvalidInput, match="the distance"):
        far_interpolant(phi, phi, randn(6), distance=-1.0)
    with pytest.raises(InvalidInput, match="the error"):
        far_interpolant(phi, phi, randn(6), error=math.nan, distance=1.0)
