"""Bias and variance of linear estimators, on a design and over Gaussian designs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.generalization.interpolation.bias_variance import (
    decompose_estimates,
    decompose_predictions,
    excess_risk,
    gaussian_bias_variance,
    gaussian_variance_factor,
)
from torchtheory.generalization.interpolation.minimum_norm import (
    copied_signs_moment,
    design_bias_variance,
    minimum_norm_weights,
    one_sample_variance,
)
from torchtheory.neurons.regression import least_squares


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), p=st.integers(1, 6), r=st.integers(1, 9))
def test_mean_excess_risk_is_bias_plus_variance(seed: int, p: int, r: int) -> None:
    root, planted, weights = randn(p, p, seed=seed), randn(p, seed=seed + 1), randn(r, p, seed=seed)
    moment = root @ root.T
    parts = decompose_estimates(weights, planted, moment)
    mean = excess_risk(weights, planted, moment).mean()
    assert torch.allclose(parts.total, mean, rtol=1e-10, atol=1e-10)
    assert min(parts.bias, parts.variance) >= -1e-12


def test_predictions_of_a_linear_model_have_the_parts_of_its_weights() -> None:
    x, weights, planted = randn(40, 3), randn(7, 3, seed=1), randn(3, seed=2)
    by_weights = decompose_estimates(weights, planted, x.T @ x / 40)
    by_values = decompose_predictions(weights @ x.T, x @ planted)
    assert torch.allclose(by_weights.bias, by_values.bias)
    assert torch.allclose(by_weights.variance, by_values.variance)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 7), d=st.integers(1, 7))
def test_design_parts_by_enumerating_the_noise(seed: int, m: int, d: int) -> None:
    phi, planted, root = randn(m, d, seed=seed), randn(d, seed=seed + 1), randn(d, d, seed=seed + 2)
    moment, sigma = root @ root.T, 0.6
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=m))).double()
    y = phi @ planted + sigma * signs  # noise of fair signs: the mean over all is exact
    weights = minimum_norm_weights(phi.expand(len(y), m, d), y)
    exact = design_bias_variance(phi, planted, moment, sigma**2)
    parts = decompose_estimates(weights, planted, moment)
    assert torch.allclose(exact.bias, parts.bias, rtol=1e-6, atol=1e-8)
    assert torch.allclose(exact.variance, parts.variance, rtol=1e-6, atol=1e-8)
    if d <= m:
        assert exact.bias < 1e-8


def test_batched_fit_is_the_fit_of_the_nets_room() -> None:
    phi, y = randn(2, 5, 9), randn(2, 5, seed=3)
    both = torch.stack([least_squares(a, b).weight for a, b in zip(phi, y, strict=True)])
    assert torch.allclose(minimum_norm_weights(phi, y), both)


def test_gaussian_closed_forms() -> None:
    assert gaussian_variance_factor(32, 8) == 8 / 23
    assert gaussian_variance_factor(8, 32) == 8 / 23
    assert [gaussian_variance_factor(10, p) for p in (9, 10, 11)] == [math.inf] * 3
    n, p, kept, dropped, noise = 10, 25, 2.0, 0.5, 0.3
    risk = kept * (1 - n / p) + (dropped + noise) * (1 + n / (p - n - 1))  # Belkin, Hsu and Xu
    assert float(gaussian_bias_variance(n, p, kept, dropped, noise).total) == pytest.approx(
        risk - noise
    )
    exact = gaussian_bias_variance(10, 10, 1.0, 0.0, 0.0)  # nothing but the truth to fit
    assert float(exact.total) == 0.0


def test_gaussian_mean_over_designs() -> None:
    designs = randn(3000, 6, 20)
    traces = design_bias_variance(designs, torch.ones(20).double(), torch.eye(20).double(), 1.0)
    assert float(traces.variance.mean()) == pytest.approx(6 / 13, rel=0.02)
    assert float(traces.bias.mean()) == pytest.approx(20 * (1 - 6 / 20), rel=0.02)


@pytest.mark.parametrize(("d", "copies", "value"), [
    (1, (), 1.0), (9, range(10, 21), 1 / 9), (20, range(10, 21), 0.38),
])  # fmt: skip
def test_one_sample_variance(d: int, copies: range, value: float) -> None:
    assert float(one_sample_variance(copied_signs_moment(d, copies))) == pytest.approx(value)


def test_one_sample_variance_by_enumeration() -> None:
    d, copies = 6, (3, 5)
    moment = copied_signs_moment(d, copies)
    free = [i for i in range(d) if i + 1 not in copies]
    traces = []
    for signs in itertools.product([-1.0, 1.0], repeat=len(free)):
        x = torch.zeros(d).double()
        x[free] = torch.tensor(signs).double()
        x[[c - 1 for c in copies]] = float(x[0])
        traces.append(torch.trace(torch.linalg.pinv(torch.outer(x, x)) @ moment))
    assert float(torch.stack(traces).mean()) == pytest.approx(float(one_sample_variance(moment)))


def test_refusals() -> None:
    eye, one = torch.eye(2), torch.ones(2)
    with pytest.raises(ShapeMismatch):
        excess_risk(torch.ones(3), one, eye)
    with pytest.raises(ShapeMismatch):
        excess_risk(one, one, torch.eye(3))
    with pytest.raises(InvalidInput, match="symmetric"):
        excess_risk(one, one, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(NonFinite):
        excess_risk(one, one, eye * math.nan)
    with pytest.raises(ShapeMismatch):
        decompose_estimates(one, one, eye)
    with pytest.raises(ShapeMismatch):
        decompose_predictions(torch.ones(3, 4), torch.ones(5))
    with pytest.raises(EmptyData):
        decompose_predictions(torch.ones(0, 4), torch.ones(4))
    with pytest.raises(InvalidInput):
        gaussian_bias_variance(0, 1, 1.0, 1.0, 1.0)
    with pytest.raises(InvalidInput):
        gaussian_bias_variance(3, 1, -1.0, 1.0, 1.0)
    with pytest.raises(InvalidInput):
        design_bias_variance(eye, one, eye, -1.0)
    with pytest.raises(ShapeMismatch):
        design_bias_variance(torch.ones(2, 3), one, eye, 1.0)
    with pytest.raises(InvalidType):
        minimum_norm_weights(torch.ones(2, 2, dtype=torch.long), one)
    with pytest.raises(NonFinite):
        minimum_norm_weights(eye * math.inf, one)
    with pytest.raises(ShapeMismatch):
        minimum_norm_weights(eye, torch.ones(3))
    with pytest.raises(InvalidInput):
        one_sample_variance(2 * eye)
    with pytest.raises(InvalidInput):
        copied_signs_moment(4, (1,))
