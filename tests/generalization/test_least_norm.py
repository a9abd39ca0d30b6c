"""Interpolants, the one gradient descent finds, and ridge by its spectrum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.implicit_bias.least_norm import (
    closest_interpolant,
    effective_degrees,
    least_squares_step_limit,
    quadratic_iterate,
    ridge_predictions,
    solution_set,
)


def gaussian(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_line_of_interpolants() -> None:
    found = solution_set(torch.tensor([[3.0, 4.0]]).double(), torch.tensor([25.0]).double())
    assert torch.allclose(found.particular, torch.tensor([3.0, 4.0]).double())
    assert found.dimension == 1
    assert found.residual < 1e-12
    assert torch.allclose(found.null_space[:, 0].abs(), torch.tensor([0.8, 0.6]).double())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 6), st.integers(1, 5))
def test_closest_among_interpolants(seed: int, n: int, extra: int, rank: int) -> None:
    d, rank = n + extra, min(rank, n)
    x = gaussian(seed, n, rank) @ gaussian(seed + 1, rank, d)
    start = gaussian(seed + 2, d)
    y = x @ gaussian(seed + 3, d)
    w = closest_interpolant(x, y, start)
    found = solution_set(x, y)
    assert found.dimension == d - rank
    assert torch.allclose(x @ w, y, atol=1e-8)
    assert float((found.null_space.T @ (w - start)).abs().max() if d > rank else 0) < 1e-8
    # numpy's minimum-norm solution is an independent one
    least = np.linalg.lstsq(x.numpy(), (y - x @ start).numpy(), rcond=1e-10)[0]
    assert np.allclose((w - start).numpy(), least, atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 12))
def test_quadratic_iterate_is_the_iteration(seed: int, d: int, steps: int) -> None:
    root = gaussian(seed, d, d)
    h, goal, w = root @ root.T, gaussian(seed + 1, d), gaussian(seed + 2, d)
    start, eta = w, 1.9 / float(torch.linalg.matrix_norm(h, 2))
    for _ in range(steps):
        w = w - eta * h @ (w - goal)
    assert torch.allclose(quadratic_iterate(h, goal, eta, steps, start), w, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 8), st.floats(0.01, 10))
def test_ridge_against_scikit_learn(seed: int, n: int, d: int, penalty: float) -> None:
    x, y = gaussian(seed, n, d), gaussian(seed + 1, n)
    theirs = Ridge(alpha=penalty, fit_intercept=False).fit(x.numpy(), y.numpy())
    assert np.allclose(ridge_predictions(x, y, penalty).numpy(), theirs.predict(x.numpy()))
    hat = x @ torch.linalg.solve(x.T @ x + penalty * torch.eye(d).double(), x.T)
    assert effective_degrees(x, penalty) == pytest.approx(float(hat.trace()), rel=1e-9)


def test_step_limit() -> None:
    assert least_squares_step_limit(torch.tensor([[3.0, 4.0]])) == pytest.approx(1 / 25)


def test_refused() -> None:
    x, y = torch.eye(2), torch.ones(2)
    with pytest.raises(EmptyData):
        solution_set(torch.zeros(0, 2), torch.zeros(0))
    with pytest.raises(ShapeMismatch, match=r"the shape \[2\], not \[3\]"):
        closest_interpolant(x, y, torch.ones(3))
    with pytest.raises(NonFinite):
        closest_interpolant(x, y, torch.tensor([1.0, float("nan")]))
    with pytest.raises(ShapeMismatch):
        solution_set(x, torch.ones(2, 2))
    with pytest.raises(InvalidInput, match="is 0"):
        least_squares_step_limit(torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="symmetric"):
        quadratic_iterate(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), y, 0.1, 1)
    with pytest.raises(ShapeMismatch, match="square"):
        quadratic_iterate(torch.ones(2, 3), y, 0.1, 1)
    with pytest.raises(InvalidInput, match="penalty"):
        ridge_predictions(x, y, 0.0)
