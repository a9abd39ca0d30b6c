"""Stochastic descent with a constant step: budgets, plans, exact least squares."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import nn

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.problem import Problem
from torchtheory.optimization.curvature import gradient
from torchtheory.optimization.descent import trajectory
from torchtheory.optimization.layer_noise import LayerNoise, gradient_noise_by_layer
from torchtheory.optimization.minibatch import minibatch_direction
from torchtheory.optimization.stochastic_rates import (
    example_gradients,
    expected_least_squares_error,
    gradient_variance,
    mean_square_contraction,
    stationarity_bound,
    stationarity_plan,
    step_budget,
    stochastic_error_floor,
)

seeds = st.integers(0, 10**6)
positive = st.floats(0.1, 10)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def half_square(theta, x, y):
    return ((theta * x).sum(-1) - y).square() / 2


def quartic(theta, x):
    return (theta - x).pow(4).sum(-1)


@given(seeds, st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_example_gradients_by_hand(seed, n):
    x, theta = normal(seed, n, 3), normal(seed + 1, 2, 3)
    found = example_gradients(quartic, theta, x)
    rows = [[4 * (point - a).pow(3) for a in x] for point in theta]
    assert torch.allclose(found, torch.stack([torch.stack(r) for r in rows]))
    each = torch.stack([torch.stack(r) for r in rows])
    assert torch.allclose(gradient_variance(quartic, theta, x), each.var(1, unbiased=False).sum(-1))


@given(seeds, st.floats(0.001, 0.3))
@settings(max_examples=20, deadline=None)
def test_budget_is_the_mean_over_examples(seed, eta):
    x, points, goal = normal(seed, 4, 2), normal(seed + 1, 3, 5, 2), normal(seed + 2, 2)
    steps = [eta, 2 * eta, 3 * eta]
    budget = step_budget(quartic, [x], points, goal, steps)
    each = example_gradients(quartic, points, x)
    ends = points[:, :, None] - torch.tensor(steps).double().reshape(3, 1, 1, 1) * each
    assert torch.allclose(budget.after, (ends - goal).square().sum(-1).mean(-1))
    assert budget.progress.shape == (3, 5)


@given(positive, positive, positive, st.integers(1, 10**4))
@settings(max_examples=50, deadline=None)
def test_planned_step_is_the_best_one(gap, smoothness, bound, count):
    constants = {"gap": gap, "smoothness": smoothness, "gradient_bound": bound}
    plan = stationarity_plan(**constants, iterations=count)
    assert math.isclose(plan.bound, stationarity_bound(plan.step, count, **constants))
    best = minimize_scalar(
        lambda s: stationarity_bound(math.exp(s), count, **constants), bounds=(-15, 15)
    )
    assert plan.bound <= best.fun * (1 + 1e-9)


@given(positive, positive, positive, st.floats(1e-3, 1))
@settings(max_examples=50, deadline=None)
def test_fewest_iterations_for_a_tolerance(gap, smoothness, bound, tolerance):
    constants = {"gap": gap, "smoothness": smoothness, "gradient_bound": bound}
    plan = stationarity_plan(**constants, tolerance=tolerance)
    assert plan.bound <= tolerance * (1 + 1e-9)
    if plan.iterations > 1:
        fewer = stationarity_plan(**constants, iterations=plan.iterations - 1)
        assert fewer.bound > tolerance * (1 - 1e-9)


@given(seeds, st.booleans())
@settings(max_examples=15, deadline=None)
def test_exact_error_is_the_mean_over_all_sequences(seed, consistent):
    n, d, steps = 3, 2, [0.1, 0.05, 0.2]
    x, start = normal(seed, n, d), normal(seed + 1, d)
    y = x @ normal(seed + 2, d) if consistent else normal(seed + 3, n)
    goal = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    every = torch.tensor(list(itertools.product(range(n), repeat=len(steps))))
    scaled = [math.sqrt(n) * x, math.sqrt(n) * y]
    direction = minibatch_direction(half_square, scaled, every[..., None])
    points = trajectory(direction, start.expand(len(every), -1), steps)
    exact = expected_least_squares_error(x, y, start, steps)
    assert torch.allclose(exact.distance, (points - goal).square().sum(-1).mean(1))
    each = example_gradients(half_square, points, *scaled)
    assert torch.allclose(exact.noise, each.square().sum(-1).mean(-1).mean(1))
    assert torch.allclose(exact.gradient, each.mean(-2).square().sum(-1).mean(1))


@given(seeds, st.floats(0.05, 1.9))
@settings(max_examples=25, deadline=None)
def test_consistent_systems_contract_below_the_limit(seed, part):
    x = normal(seed, 6, 3)
    eta = part / (6 * float(x.square().sum(1).max()))
    factor = mean_square_contraction(x, eta)
    assert factor < 1
    start = normal(seed + 1, 3)
    path = expected_least_squares_error(x, torch.zeros(6).double(), start, [eta] * 5).distance
    assert (path[1:] <= factor * path[:-1] * (1 + 1e-9)).all()


def test_the_exercises_step_alone_does_not_contract():
    for n in (4, 5, 12):
        assert math.isclose(mean_square_contraction(torch.eye(n).double(), 0.5), n / 4)


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_floor_holds_from_every_start(seed):
    x, y, start = normal(seed, 7, 3), normal(seed + 1, 7), normal(seed + 2, 3)
    eta = 1 / (2 * float(torch.linalg.matrix_norm(x, 2)) ** 2)
    floor = stochastic_error_floor(x, y, eta)
    assert floor > 0
    path = expected_least_squares_error(x, y, start, [eta] * 8)
    assert (path.distance[1:] >= eta**2 * path.noise[:-1] * (1 - 1e-9)).all()
    assert (path.distance[1:] >= floor * (1 - 1e-9)).all()
    assert stochastic_error_floor(x, x @ start, eta) < 1e-20


def test_noise_by_layer_is_that_of_single_gradients():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    problem = Problem(net, (normal(0, 9, 3), torch.arange(9) % 3), chunk=4)
    found = gradient_noise_by_layer(problem)
    rows = torch.stack([gradient(problem, problem.train.at(torch.tensor([k]))) for k in range(9)])
    start = 0
    assert [row.layer for row in found] == ["0", "2"]
    for row in found:
        own = rows[:, start : start + row.parameters]
        start += row.parameters
        assert row.signal == pytest.approx(float(own.mean(0).square().sum()))
        assert row.noise == pytest.approx(float(own.var(0, unbiased=False).sum()))
        assert row.batch == pytest.approx(row.noise / row.signal)
    assert start == rows.shape[1]


def test_noise_vanishes_where_every_example_is_fitted():
    net = nn.Linear(2, 1).double()
    x = normal(1, 6, 2)
    problem = Problem(net, (x, net(x).detach()), task="regression")
    rows = gradient_noise_by_layer(problem, problem.train.first(4))
    assert [row.layer for row in rows] == ["weight", "bias"]
    assert all(row.noise < 1e-25 for row in rows)
    assert LayerNoise("", 1, 0.0, 1.0).batch == math.inf
    assert LayerNoise("", 1, 0.0, 0.0).batch == 0.0


def test_refusals():
    x, y = normal(0, 4, 2), normal(1, 4)
    with pytest.raises(EmptyData):
        example_gradients(quartic, torch.zeros(2))
    with pytest.raises(ShapeMismatch):
        example_gradients(half_square, torch.zeros(2), x, y[:2])
    with pytest.raises(ShapeMismatch):
        step_budget(quartic, [x], x, torch.zeros(2), [0.1])
    with pytest.raises(InvalidInput, match="give one"):
        stationarity_plan(gap=1.0, smoothness=1.0, gradient_bound=1.0)
    with pytest.raises(InvalidInput, match="gradients"):
        stationarity_plan(gap=1.0, smoothness=1.0, gradient_bound=0.0, iterations=3)
    with pytest.raises(InvalidInput, match="one iteration"):
        stationarity_plan(gap=1.0, smoothness=1.0, gradient_bound=1.0, iterations=0)
    with pytest.raises(InvalidInput):
        stationarity_bound(-1.0, 3, gap=1.0, smoothness=1.0, gradient_bound=1.0)
    with pytest.raises(InvalidInput, match="unique"):
        expected_least_squares_error(torch.ones(4, 2).double(), y, torch.zeros(2).double(), [0.1])
    with pytest.raises(ShapeMismatch):
        expected_least_squares_error(x, y[:2], torch.zeros(2).double(), [0.1])
    with pytest.raises(NonFinite):
        mean_square_contraction(x / 0, 0.1)
    with pytest.raises(InvalidInput, match="up to"):
        stochastic_error_floor(x, y, 10.0)
