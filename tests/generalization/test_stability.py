"""Uniform stability: the bound, what is proved for ridge regression, leaving samples out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.generalization.stability import (
    Trained,
    choose_by_sample,
    leave_one_out,
    ridge_stability,
    textbook_ridge_stability,
    uniform_stability_bound,
)
from torchtheory.kernels.learning.functions import linear
from torchtheory.kernels.learning.regression import kernel_least_squares
from torchtheory.training.loop.trainer import fit


def ridge(penalty: float, divide_by: int | None = None):  # type: ignore[no-untyped-def]
    def train(x: Tensor, y: Tensor, seed: int) -> Trained:
        system = x.T @ x + penalty * (divide_by or len(x)) * torch.eye(x.shape[1]).double()
        w = torch.linalg.solve(system, x.T @ y)
        return lambda a, b: ((a @ w).clamp(0, 1) - b).square()

    return train


def test_bound_by_hand() -> None:
    # 2 * 0.01 + (4 * 50 * 0.01 + 3) sqrt(ln(e²) / 100) = 0.02 + 5 * sqrt(0.02)
    value = uniform_stability_bound(0.01, 50, math.exp(-2), largest_loss=3.0)
    assert value == pytest.approx(0.02 + 5 * math.sqrt(0.02))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(2, 12), st.floats(0.005, 5.0), st.integers(0, 10**6))
def test_ridge_is_as_stable_as_proved(d: int, m: int, penalty: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=random).double()
    x = x / x.norm(dim=1, keepdim=True).clamp_min(1)
    y = torch.rand(m, generator=random).double().round()
    probes = torch.randn(40, d, generator=random).double()
    probes = probes / probes.norm(dim=1, keepdim=True)
    found = leave_one_out(ridge(penalty), x, y, probes, torch.arange(40).double() % 2)
    assert found.stability <= ridge_stability(penalty, m) + 1e-12


def test_textbook_constant_is_not_enough_after_clipping() -> None:
    m, penalty = 2000, 0.01
    x = torch.zeros(m, 2).double()
    x[1:, 0], x[0] = 0.1, math.sqrt(0.5)
    y = torch.ones(m).double()
    y[0] = 0
    probe = torch.tensor([[0.2, math.sqrt(0.96)]]).double()
    found = leave_one_out(ridge(penalty, m), x, y, probe, torch.zeros(1).double(), left_out=[0])
    assert textbook_ridge_stability(penalty, m) < found.stability < ridge_stability(penalty, m)


def test_leave_one_out_is_that_of_kernel_regression() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=random).double()
    y = torch.randn(8, generator=random).double()
    fitted = kernel_least_squares(linear(), x, y, ridge=0.7)

    def train(a: Tensor, b: Tensor, seed: int) -> Trained:
        fit_of = kernel_least_squares(linear(), a, b, ridge=0.7)
        return lambda u, v: (fit_of.predict(u) - v).square()

    found = leave_one_out(train, x, y)
    expected = fitted.leave_one_out_residuals().square() - (fitted.fitted - y).square()
    torch.testing.assert_close(found.own, expected)
    assert found.changes.shape == (8, 8)
    some = leave_one_out(train, x, y, left_out=[2, 5])
    torch.testing.assert_close(some.changes, found.changes[[2, 5]])


def test_a_network_as_training_function() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=random)
    y = x[:, :1]

    def train(a: Tensor, b: Tensor, seed: int) -> Trained:
        net = nn.Linear(2, 1)
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
        fit(net, (a, b), epochs=2, seed=seed, task="regression")
        return lambda u, v: (net(u) - v).square()[:, 0]

    found = leave_one_out(train, x, y, left_out=[0, 1])
    assert found.changes.shape == (2, 6)
    assert not found.changes.requires_grad
    assert 0 < found.stability < 1


def test_the_algorithm_that_knows_its_sample() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    good: Trained = lambda u, v: torch.zeros(len(u))  # noqa: E731
    bad: Trained = lambda u, v: torch.full((len(u),), 50.0)  # noqa: E731
    train = choose_by_sample(good, (x, y), bad)
    assert train(x, y, 0) is good
    assert train(x[1:], y[1:], 0) is bad
    assert leave_one_out(train, x, y).stability == 50.0
    with pytest.raises(InvalidType):
        choose_by_sample(1.0, (x, y), bad)  # type: ignore[arg-type]


def test_bad_input() -> None:
    x, y = torch.zeros(3, 1), torch.zeros(3)

    def constant(a: Tensor, b: Tensor, seed: int) -> Trained:
        return lambda u, v: torch.zeros(len(u))

    for wrong in ((-1.0, 5, 0.1), (0.1, 5, 0.0), (math.inf, 5, 0.1)):
        with pytest.raises(InvalidInput):
            uniform_stability_bound(*wrong)
    with pytest.raises(EmptyData):
        uniform_stability_bound(0.1, 0, 0.1)
    with pytest.raises(InvalidInput, match="penalty"):
        ridge_stability(0.0, 5)
    with pytest.raises(ShapeMismatch, match="3 inputs but 2"):
        leave_one_out(constant, x, y[:2])
    with pytest.raises(EmptyData, match="at least two"):
        leave_one_out(constant, x[:1], y[:1])
    with pytest.raises(InvalidInput, match=r"0\.\.2"):
        leave_one_out(constant, x, y, left_out=[3])
    with pytest.raises(InvalidInput, match="inputs and targets"):
        leave_one_out(constant, x, y, x)
    with pytest.raises(ShapeMismatch, match="one number an example"):
        leave_one_out(lambda a, b, s: lambda u, v: u, x, y)
    with pytest.raises(NonFinite):
        leave_one_out(lambda a, b, s: lambda u, v: torch.full((len(u),), math.nan), x, y)
