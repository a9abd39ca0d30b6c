"""The support vector machine, KKT conditions, and flows to very late times."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.svm import SVC

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.data.synthetic import separable_gaussians
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm, kkt_residuals
from torchtheory.generalization.implicit_bias.separable_flow import (
    EXPONENTIAL,
    LOGISTIC,
    POLYNOMIAL,
    check_loss,
    exponential_tail,
    residual_certificate,
    separable_flow,
)
from torchtheory.neurons.separability import NotSeparable

POINTS = torch.tensor([[1.0, 1.0], [1.0, -2.0]], dtype=torch.float64)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_kkt_and_an_independent_solver(seed: int, d: int) -> None:
    x, y, *_ = separable_gaussians(12, d, margin=0.3, generator=seed)
    found = hard_margin_svm(x, y)
    z = y[:, None] * x
    residuals = kkt_residuals(
        lambda w: w @ w / 2,
        found.weight,
        inequalities=lambda w: 1 - z @ w,
        multipliers=found.multipliers,
    )
    assert residuals.largest < 1e-8
    assert float(found.multipliers.sum()) == pytest.approx(float(found.weight.square().sum()))
    theirs = minimize(
        lambda w: w @ w / 2,
        2 * found.weight.numpy(),
        jac=lambda w: w,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda w: z.numpy() @ w - 1,
            "jac": lambda w: z.numpy(),
        },
        options={"ftol": 1e-14},
    )
    assert np.allclose(found.weight.numpy(), theirs.x, atol=1e-5)


def test_against_scikit_learn() -> None:
    x, y, *_ = separable_gaussians(30, 3, margin=0.3, generator=3)
    mirrored = torch.cat([x, -x])  # symmetric under the origin, so that the bias is 0
    labels = torch.cat([y, -y])
    theirs = SVC(C=1e10, kernel="linear", tol=1e-10).fit(mirrored.numpy(), labels.numpy())
    assert np.allclose(hard_margin_svm(x, y).weight.numpy(), theirs.coef_[0], atol=1e-4)


def test_kkt_with_an_equality() -> None:
    # min (a² + b²)/2 with a + b = 2 and a <= 1/2: at (1/2, 3/2) with μ = -3/2 and λ = 1
    found = kkt_residuals(
        lambda w: w @ w / 2,
        torch.tensor([0.5, 1.5]),
        inequalities=lambda w: w[:1] - 0.5,
        multipliers=torch.ones(1),
        equalities=lambda w: w.sum()[None] - 2,
        equality_multipliers=torch.tensor([-1.5]),
    )
    assert found.largest == 0
    off = kkt_residuals(lambda w: w @ w / 2, torch.tensor([3.0, 4.0]))
    assert (off.stationarity, off.slackness) == (5.0, 0.0)


def test_refused_kkt() -> None:
    with pytest.raises(InvalidInput, match="go together"):
        kkt_residuals(torch.sum, torch.ones(2), inequalities=lambda w: w)
    with pytest.raises(ShapeMismatch, match="one length"):
        kkt_residuals(torch.sum, torch.ones(2), inequalities=lambda w: w, multipliers=torch.ones(3))
    with pytest.raises(ShapeMismatch, match="vector"):
        kkt_residuals(torch.sum, torch.ones(2, 2))
    with pytest.raises(NotSeparable):
        hard_margin_svm(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 1]))


def test_losses() -> None:
    assert check_loss(LOGISTIC.value).satisfied
    assert math.isinf(check_loss(EXPONENTIAL.value).smoothness)
    assert check_loss(POLYNOMIAL.value).satisfied
    hinge = check_loss(lambda u: (1 - u).clamp(min=0))
    assert not hinge.satisfied
    assert math.isinf(hinge.smoothness)
    assert not check_loss(lambda u: 1 - torch.tanh(u)).steep
    doubled = exponential_tail(lambda u: torch.exp(-2 * u) * 3)
    assert (round(doubled.rate, 9), round(doubled.constant, 6), doubled.tight) == (2, 6, True)
    assert not exponential_tail(lambda u: (1 - u).clamp(min=0)).tight


@pytest.mark.parametrize("loss", [EXPONENTIAL, LOGISTIC, POLYNOMIAL])
def test_log_slope_is_the_derivative(loss: object) -> None:
    assert loss in (EXPONENTIAL, LOGISTIC, POLYNOMIAL)
    u = torch.linspace(-3, 8, 40, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.value(u).sum(), u)  # type: ignore[attr-defined]
    assert torch.allclose((-slope).log(), loss.log_slope(u))  # type: ignore[attr-defined]


@settings(max_examples=5, deadline=None)
@given(st.floats(-2, 2), st.floats(0, 1e12))
def test_flow_in_closed_form(u: float, time: float) -> None:
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    start = torch.tensor([u, 0.0], dtype=torch.float64)
    flow = separable_flow(pair, torch.ones(2), [time], start=start)
    assert float(flow.weights[0, 0]) == pytest.approx(math.log(2 * time + math.exp(u)), abs=1e-7)
    assert float(flow.losses[0]) == pytest.approx(2 / (2 * time + math.exp(u)), rel=1e-6)


def test_flow_against_small_steps_and_other_labels() -> None:
    x, y = torch.tensor([[1.0, 1.0], [-1.0, 2.0]]).double(), torch.tensor([1.0, -1.0]).double()
    z, w = y[:, None] * x, torch.zeros(2).double()
    for _ in range(20_000):
        w = w + 5e-5 * torch.sigmoid(-z @ w) @ z
    flow = separable_flow(x, y, [0.0, 1.0], loss=LOGISTIC)
    assert torch.allclose(flow.weights[1], w, atol=1e-4)
    assert not flow.weights[0].any()
    assert torch.allclose(flow.shares.sum(1), torch.ones(2).double())


def test_certificate() -> None:
    found = residual_certificate(POINTS, torch.ones(2))
    expected = torch.tensor([2 * math.log(1.5) + math.log(3), math.log(1.5) - math.log(3)]) / 3
    assert torch.allclose(found.offset, expected.double(), atol=1e-7)
    assert found.growth(1.0) == 0
    flow = separable_flow(POINTS, torch.ones(2), [1e7])
    residual = flow.weights[0] - found.limit * math.log(1e7) - found.offset
    assert float(residual.abs().max()) < 1e-6
    with pytest.raises(InvalidInput, match="from 1 on"):
        found.growth(0.5)
    touching = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InvalidInput, match="perturb"):
        residual_certificate(touching, torch.ones(2))


def test_refused_flow() -> None:
    for times in ([-1.0], [1.0, 1.0], [math.inf]):
        with pytest.raises(InvalidInput, match="increasing"):
            separable_flow(POINTS, torch.ones(2), times)
    with pytest.raises(ShapeMismatch):
        separable_flow(POINTS, torch.ones(2), [])
    with pytest.raises(ShapeMismatch, match="start"):
        separable_flow(POINTS, torch.ones(2), [1.0], start=torch.ones(3))
