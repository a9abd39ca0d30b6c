"""Shrinkage by weight decay and by early stopping."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.training.regularizers.shrinkage import (
    LARGEST_RATIO,
    WORST_RATIO_AT,
    early_stopping_factors,
    factor_ratio,
    matching_steps,
    shrink,
    weight_decay_factors,
)

seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 6), st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_shrinkage_is_ridge_regression(seed: int, d: int, mu: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(d + 8, d, generator=generator, dtype=torch.float64)
    y = torch.randn(d + 8, generator=generator, dtype=torch.float64)
    best = torch.linalg.lstsq(x, y).solution
    moved = shrink(x.T @ x / len(x), best, mu)
    ridge = Ridge(alpha=mu * len(x), fit_intercept=False).fit(x.numpy(), y.numpy())
    assert np.allclose(moved.minimizer, ridge.coef_, atol=1e-9)
    assert bool(((moved.factors > 0) & (moved.factors < 1)).all())
    assert float(moved.minimizer.norm()) <= float(best.norm()) + 1e-12


@given(seeds, st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_early_stopping_is_gradient_descent(seed: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    h, best = a @ a.T, torch.randn(4, generator=generator, dtype=torch.float64)
    eigenvalues, basis = torch.linalg.eigh(h)
    step = 1.5 / float(eigenvalues[-1])  # overshoots in the steepest direction
    theta = torch.zeros(4, dtype=torch.float64)
    for _ in range(steps):
        theta = theta - step * h @ (theta - best)
    factors = early_stopping_factors(eigenvalues, step, steps)
    assert torch.allclose(basis.T @ theta, factors * (basis.T @ best), atol=1e-10)


def test_small_factors_survive_rounding() -> None:
    factor = early_stopping_factors(torch.tensor([1e-12], dtype=torch.float64), 1e-6, 10)
    assert float(factor) == pytest.approx(1e-17, rel=1e-9)
    exact = early_stopping_factors(torch.tensor([1.0], dtype=torch.float64), 1.0, 0)
    assert float(exact) == 0


def test_the_worst_ratio() -> None:
    assert math.exp(WORST_RATIO_AT) == pytest.approx(1 + WORST_RATIO_AT + WORST_RATIO_AT**2)
    x = torch.cat([torch.zeros(1).double(), torch.logspace(-9, 9, 4001, dtype=torch.float64)])
    ratio = factor_ratio(x)
    assert float(ratio.max()) <= LARGEST_RATIO + 1e-12
    assert float(ratio.max()) == pytest.approx(LARGEST_RATIO, abs=1e-4)
    assert pytest.approx(1.29843, abs=1e-5) == LARGEST_RATIO
    assert float(ratio.min()) >= 1 - 1e-12


@given(st.floats(1e-4, 0.1), st.floats(1e-3, 10.0))
@settings(max_examples=40, deadline=None)
def test_matching_time_agrees_to_first_order(step: float, mu: float) -> None:
    lam = torch.tensor([1e-6 * mu], dtype=torch.float64)
    stopped = early_stopping_factors(lam, step, matching_steps(step, mu))
    assert float(stopped / weight_decay_factors(lam, mu)) == pytest.approx(1, abs=2e-6)


def test_bad_input_is_refused() -> None:
    eye = torch.eye(2)
    for decay in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="weight decay"):
            shrink(eye, torch.ones(2), decay)
    with pytest.raises(ShapeMismatch, match="square"):
        shrink(torch.ones(2, 3), torch.ones(2), 1.0)
    with pytest.raises(ShapeMismatch, match="vector"):
        shrink(eye, torch.ones(3), 1.0)
    with pytest.raises(InvalidInput, match="symmetric"):
        shrink(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.ones(2), 1.0)
    with pytest.raises(InvalidInput, match="positive definite"):
        shrink(-2 * eye, torch.ones(2), 1.0)
    with pytest.raises(NonFinite):
        shrink(torch.full((2, 2), torch.nan), torch.ones(2), 1.0)
    with pytest.raises(InvalidInput, match="whole number"):
        early_stopping_factors(torch.tensor([3.0]), 1.0, 1.5)
    with pytest.raises(InvalidInput, match="steps"):
        early_stopping_factors(torch.tensor([1.0]), 1.0, -1)
    with pytest.raises(InvalidInput, match="step size"):
        matching_steps(0.0, 1.0)
    with pytest.raises(InvalidInput, match="ratio"):
        factor_ratio(torch.tensor([-1.0]))
