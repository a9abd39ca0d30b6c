"""Least squares and logistic regression against references and calculus."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch.nn.functional import binary_cross_entropy_with_logits

from torchtheory.core.errors import (
    InvalidInput,
    LabelOutOfRange,
    NonFinite,
    NotConverged,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.data.synthetic import linear_sample, logistic_sample, separable_gaussians
from torchtheory.neurons.regression import (
    NoMinimizer,
    least_squares,
    logistic_gradient,
    logistic_hessian,
    logistic_loss,
    logistic_regression,
    logistic_smoothness,
)
from torchtheory.neurons.separability import max_margin

seeds = st.integers(0, 10_000)


def test_a_line_by_hand() -> None:
    x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    fit = least_squares(x, torch.tensor([1.0, 2.0, 4.0]), intercept=True)
    assert float(fit.weight) == pytest.approx(1.5)
    assert float(fit.bias) == pytest.approx(5 / 6)
    assert fit.loss == pytest.approx(0.5 / 6)


@given(seeds, st.integers(1, 12), st.integers(1, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_least_squares_against_references(seed: int, s: int, d: int, intercept: bool) -> None:
    x, y, *_ = linear_sample(s, d, generator=seed)
    fit = least_squares(x, y, intercept=intercept)
    reference = LinearRegression(fit_intercept=intercept).fit(x.numpy(), y.numpy())
    assert np.allclose(fit.weight, reference.coef_, atol=1e-7)
    assert np.allclose(fit.bias, reference.intercept_, atol=1e-7)
    assert torch.allclose(x.T @ fit.residual, torch.zeros(d).double(), atol=1e-8)
    assert fit.loss == pytest.approx(0.5 * float(fit.residual.square().sum()))
    if not intercept:
        assert fit.rank == np.linalg.matrix_rank(x.numpy())
        assert np.allclose(fit.weight, np.linalg.lstsq(x.numpy(), y.numpy(), rcond=None)[0])


def test_rank_deficiency_is_said_and_the_norm_is_least() -> None:
    x, y, *_ = linear_sample(20, 6, rank=3, generator=1)
    fit = least_squares(x, y)
    assert (fit.rank, fit.unique) == (3, False)
    assert least_squares(x[:, :2], y).unique
    w = torch.zeros(6, dtype=torch.float64)
    for _ in range(5000):
        w = w - x.T @ (x @ w - y) / torch.linalg.matrix_norm(x, ord=2) ** 2
    assert torch.allclose(w, fit.weight, atol=1e-8)


def test_several_targets_and_dtype() -> None:
    x, y, *_ = linear_sample(9, 2, dtype=torch.float32)
    fit = least_squares(x, torch.stack([y, 2 * y], 1))
    assert fit.weight.shape == (2, 2)
    assert fit.weight.dtype == torch.float32
    assert torch.allclose(fit.weight[:, 1], 2 * fit.weight[:, 0], atol=1e-5)
    assert torch.allclose(fit.weight[:, 0], least_squares(x, y).weight, atol=1e-5)
    zero = least_squares(torch.zeros(3, 2), torch.ones(3))
    assert zero.rank == 0
    assert not zero.weight.any()


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_logistic_calculus(seed: int) -> None:
    x, y, *_ = logistic_sample(15, 3, signal=3.0, generator=seed)
    w = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    w.requires_grad_()
    loss = logistic_loss(w, x, y)
    assert float(loss.detach()) == pytest.approx(
        float(binary_cross_entropy_with_logits(x @ w.detach(), y))
    )
    (gradient,) = torch.autograd.grad(loss, w)
    w = w.detach()
    assert torch.allclose(logistic_gradient(w, x, y), gradient)
    hessian = torch.autograd.functional.hessian(lambda v: logistic_loss(v, x, y), w)
    assert torch.allclose(logistic_hessian(w, x), hessian)
    values = torch.linalg.eigvalsh(hessian)
    assert float(values[0]) >= -1e-12
    assert float(values[-1]) <= logistic_smoothness(x) + 1e-12
    assert logistic_smoothness(x) <= float(x.square().sum(1).max()) / 4 + 1e-12


def test_loss_does_not_overflow() -> None:
    x, y = torch.tensor([[1.0]]), torch.tensor([0])
    assert float(logistic_loss(torch.tensor([1e4]), x, y)) == 1e4


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_logistic_regression_against_scikit_learn(intercept: bool, ridge: float) -> None:
    x, y, *_ = logistic_sample(200, 4, signal=2.0, generator=5)
    fit = logistic_regression(x, y, ridge=ridge, intercept=intercept)
    penalty = np.inf if ridge == 0 else 1 / (ridge * len(x))
    reference = LogisticRegression(
        C=penalty, fit_intercept=intercept, tol=1e-12, max_iter=10_000, solver="newton-cholesky"
    ).fit(x.numpy(), y.numpy())
    assert fit.converged
    assert fit.minimizer_exists
    assert np.allclose(fit.weight, reference.coef_[0], atol=1e-6)
    assert np.allclose(fit.bias, reference.intercept_, atol=1e-6)
    assert np.allclose(fit.probability(x), reference.predict_proba(x.numpy())[:, 1], atol=1e-6)


def test_methods_agree() -> None:
    x, y, *_ = logistic_sample(100, 3, signal=2.0, generator=2)
    newton = logistic_regression(x, y, ridge=0.01)
    descent = logistic_regression(x, y, ridge=0.01, method="gradient")
    assert descent.converged
    assert torch.allclose(descent.weight, newton.weight, atol=1e-6)
    assert bool((descent.losses.diff() <= 1e-14).all())
    a, b = (
        logistic_regression(x, y, ridge=0.01, method="stochastic", steps=30, generator=7)
        for _ in range(2)
    )
    assert torch.equal(a.weight, b.weight)
    assert float(a.losses[-1] - newton.losses[-1]) < 0.01
    assert len(a.losses) == 31


def test_repeated_features_still_converge() -> None:
    x, y, *_ = logistic_sample(60, 2, generator=3)
    fit = logistic_regression(torch.cat([x, x], 1), y)
    assert fit.converged
    assert torch.allclose(fit.weight[:2], fit.weight[2:], atol=1e-8)
    assert torch.allclose(2 * fit.weight[:2], logistic_regression(x, y).weight, atol=1e-7)


@pytest.mark.parametrize("method", ["newton", "gradient", "stochastic"])
def test_separable_data_have_no_minimizer(method: str) -> None:
    x, signs, *_ = separable_gaussians(40, 3, margin=0.3, generator=1)
    with pytest.warns(NoMinimizer, match="grow for ever"):
        fit = logistic_regression(x, (signs + 1) / 2, method=method, steps=20)
    assert not fit.converged
    assert not fit.minimizer_exists
    assert bool((signs * (x @ fit.runaway) >= -1e-9).all())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logistic_regression(x, (signs + 1) / 2, ridge=1e-3).converged


def test_direction_tends_to_the_largest_margin() -> None:
    x = torch.tensor([[1.0, 0.0]] * 5 + [[0.0, 1.0]], dtype=torch.float64)
    y = torch.ones(6)
    best = max_margin(x, y, bias=False).weight
    gaps = []
    for steps in (10, 300, 3000):
        with pytest.warns(NoMinimizer):
            w = logistic_regression(x, y, method="gradient", steps=steps, tolerance=1e-300).weight
        gaps.append(1 - float(w @ best / w.norm()))
    assert gaps[0] > gaps[1] > gaps[2]


def test_touching_classes_and_one_class() -> None:
    x = torch.tensor([[0.0], [1.0], [1.0], [2.0]], dtype=torch.float64)
    with pytest.warns(NoMinimizer):
        logistic_regression(x, torch.tensor([0, 0, 1, 1]), intercept=True)
    with pytest.warns(NoMinimizer):
        fit = logistic_regression(x, torch.ones(4), intercept=True, ridge=0.1, steps=5)
    assert fit.runaway.tolist() == [0.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logistic_regression(x, torch.tensor([0, 0, 1, 0]), intercept=True).converged


def test_float32() -> None:
    x, y, *_ = logistic_sample(100, 3, generator=0, dtype=torch.float32)
    fit = logistic_regression(x, y, intercept=True)
    assert fit.converged
    assert fit.weight.dtype == fit.losses.dtype == torch.float32
    exact = logistic_regression(x.double(), y, intercept=True)
    assert torch.allclose(fit.weight.double(), exact.weight, atol=1e-4)


def test_bad_input_is_refused() -> None:
    x, y, *_ = logistic_sample(10, 2)
    with pytest.raises(LabelOutOfRange, match="0 or 1"):
        logistic_regression(x, 2 * y - 1)
    with pytest.raises(InvalidInput):
        logistic_regression(x, y, ridge=-1.0)
    with pytest.raises(UnknownName):
        logistic_regression(x, y, method="sgd")
    with pytest.raises(InvalidInput):
        logistic_regression(x, y, method="gradient", step=0.0)
    with pytest.raises(InvalidInput):
        logistic_regression(x, y, steps=0)
    with pytest.raises(NotConverged, match="smaller"):
        logistic_regression(x, y, ridge=1.0, method="gradient", step=1e200, steps=9)
    with pytest.raises(ShapeMismatch):
        least_squares(x, torch.ones(10, 1, 1))
    with pytest.raises(ShapeMismatch):
        least_squares(x, torch.ones(9))
    with pytest.raises(NonFinite):
        least_squares(x, torch.full((10,), torch.inf))
