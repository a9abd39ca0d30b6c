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

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates import stochastic_rates
from torchtheory.optimization.certificates.stochastic_rates import (
    example_gradients,
    expected_least_squares_error,
    gradient_variance,
    mean_square_contraction,
    stationarity_bound,
    stationarity_plan,
    stationary_least_squares_error,
    step_budget,
    stochastic_error_floor,
)
from torchtheory.optimization.curvature.layer_noise import LayerNoise, gradient_noise_by_layer
from torchtheory.optimization.curvature.noise_scale import gradient_noise_scale
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.optimization.descent.iterates import trajectory
from torchtheory.optimization.descent.minibatch import (
    draw_batches,
    minibatch_direction,
    minibatch_gradient,
)
from torchtheory.optimization.descent.noise import accumulated_variance

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
    plan = stationarity_plan(**constants, steps=count)
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
    if plan.steps > 1:
        fewer = stationarity_plan(**constants, steps=plan.steps - 1)
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
    means = points[1:].cumsum(0) / torch.tensor([1.0, 2.0, 3.0]).double().reshape(3, 1, 1)
    assert torch.allclose(exact.averaged, (means - goal).square().sum(-1).mean(1))


@given(seeds, st.floats(0.3, 0.9))
@settings(max_examples=4, deadline=None)
def test_stationary_error_is_where_the_recursion_ends(seed, part):
    x, y = torch.linalg.qr(normal(seed, 6, 2)).Q, normal(seed + 1, 6)
    eta = part / (6 * float(x.square().sum(1).max()))
    limit = stationary_least_squares_error(x, y, eta)
    count = 1000
    path = expected_least_squares_error(x, y, normal(seed + 2, 2), [eta] * count)
    assert limit.distance == pytest.approx(float(path.distance[-1]), rel=1e-6)
    assert limit.gradient == pytest.approx(float(path.gradient[-1]), rel=1e-6)
    # twice the count takes off the term of order 1/k²
    half, whole = count // 2 * path.averaged[count // 2 - 1], count * path.averaged[-1]
    assert limit.averaged == pytest.approx(float(2 * whole - half), rel=0.02)
    assert stationary_least_squares_error(x, x @ y[:2], eta).distance < 1e-20


def test_step_budget_in_pieces(monkeypatch):
    x, points, goal = normal(0, 4, 2), normal(1, 7, 5, 2), normal(2, 2)
    whole = step_budget(quartic, [x], points, goal, [0.1] * 7)
    monkeypatch.setattr(stochastic_rates, "HELD", 50)
    parts = step_budget(quartic, [x], points, goal, [0.1] * 7)
    assert torch.allclose(whole.progress, parts.progress)
    assert torch.allclose(whole.noise, parts.noise)


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
        stationarity_plan(gap=1.0, smoothness=1.0, gradient_bound=0.0, steps=3)
    with pytest.raises(InvalidInput, match="one iteration"):
        stationarity_plan(gap=1.0, smoothness=1.0, gradient_bound=1.0, steps=0)
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
    with pytest.raises(InvalidType, match="float"):
        mean_square_contraction(torch.ones(3, 1, dtype=torch.long), 0.1)
    with pytest.raises(NonFinite):
        expected_least_squares_error(x, y, torch.zeros(2).double(), [math.nan])
    with pytest.raises(InvalidInput, match="too long"):
        stationary_least_squares_error(x, y, 10.0)
    with pytest.raises(EmptyData):
        step_budget(quartic, [], x, torch.zeros(2), [0.1] * 4)
    problem = Problem(nn.Linear(2, 1).double(), (x, y[:, None]), task="regression")
    with pytest.raises(EmptyData):
        gradient_noise_by_layer(problem, problem.train.first(0))


# -- the noise scale ------------------------------------------------------------------------------


def point_problem(x):
    """Half the squared distance of one parameter vector from the targets: gradients w - x."""

    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(x.shape[1], dtype=x.dtype))

        def forward(self, inputs):
            return self.w.expand(len(inputs), -1)

    def half(outputs, y):
        return (outputs - y).square().sum(1).mean() / 2

    return Problem(Point(), (x, x), loss=half, task="regression")


@given(seeds, st.booleans())
@settings(max_examples=15, deadline=None)
def test_jackknife_of_the_noise_scale_by_leaving_out(seed, complete):
    rows = normal(seed, 7, 4) + 2

    def ratio(part):
        variance = float(part.var(0).sum())
        whole = float(rows.mean(0).square().sum())
        signal = whole if complete else float(part.mean(0).square().sum()) - variance / len(part)
        return 2 * variance / signal

    found = gradient_noise_scale(rows @ rows.T, 2, complete=complete)
    without = torch.tensor([ratio(rows[torch.arange(7) != i]) for i in range(7)])
    if float(without.min()) > 0:  # every estimate of the squared norm is positive
        radius = 2 * math.sqrt(6 / 7 * float((without - without.mean()).square().sum()))
        assert found.value == pytest.approx(ratio(rows))
        assert found.high == pytest.approx(found.value + radius, rel=1e-5)
        assert found.low == pytest.approx(max(0.0, found.value - radius), rel=1e-5, abs=1e-6)


def test_noise_scale_refusals():
    with pytest.raises(InvalidInput, match="3 groups"):
        gradient_noise_scale(torch.eye(2), 1)
    with pytest.raises(InvalidInput, match="one sample"):
        gradient_noise_scale(torch.eye(4), 0)
    with pytest.raises(ShapeMismatch):
        gradient_noise_scale(torch.ones(3, 4), 1)
    with pytest.raises(NonFinite):
        gradient_noise_scale(torch.full((3, 3), math.nan), 1)


# -- batches and noise ----------------------------------------------------------------------------


def test_minibatch_gradient_refuses_what_it_cannot_differentiate():
    x, y = normal(0, 4, 2), normal(1, 4)
    with pytest.raises(InvalidType, match="floating-point"):
        minibatch_gradient(half_square, torch.zeros(2, dtype=torch.long), x, y)
    with pytest.raises(ShapeMismatch, match="one number an example"):
        minibatch_gradient(lambda t, a, b: half_square(t, a, b).mean(), torch.zeros(2), x, y)
    with pytest.raises(ShapeMismatch, match="one number an example"):
        minibatch_gradient(half_square, normal(2, 2), x.expand(3, 4, 2), y.expand(3, 4))
    with pytest.raises(EmptyData):
        minibatch_gradient(half_square, torch.zeros(2), x[:0], y[:0])
    with pytest.raises(InvalidInput, match="whole numbers"):
        draw_batches(4, 2.0, 3)
    with pytest.raises(ShapeMismatch, match="whole numbers"):
        minibatch_direction(half_square, [x, y], torch.zeros(2, 1))


def test_minibatch_gradient_leaves_its_arguments_alone():
    x, y, theta = normal(0, 4, 2), normal(1, 4), normal(2, 2).requires_grad_()
    found = minibatch_gradient(half_square, theta, x, y)
    assert theta.grad is None
    assert not found.requires_grad
    assert minibatch_gradient(half_square, theta.float(), x.float(), y.float()).dtype == torch.float


def test_accumulated_variance_beyond_floats():
    assert accumulated_variance(-1.0, 1.0, 1.0, 10**6) == math.inf
    with pytest.raises(NonFinite):
        accumulated_variance(math.nan, 1.0, 1.0)


@pytest.mark.parametrize("step", [0.01, 0.1])
@pytest.mark.parametrize("start", [0.0, 0.8])
def test_the_bound_of_stationarity_is_met_on_a_quadratic(step: float, start: float) -> None:
    """On L x^2 / 2, with noise that makes E D^2 = sigma^2 at each step, all that the proof leaves
    out is the value at the end: the mean of squared gradients is the bound minus that."""
    smoothness, bound, steps = 2.0, 1.7, 5000
    square, total = start**2, 0.0
    for _ in range(steps):
        gradient = smoothness**2 * square
        assert gradient <= bound**2
        total += gradient
        square = square - 2 * step * smoothness * square + step**2 * bound**2
    gap = smoothness * start**2 / 2
    promised = stationarity_bound(step, steps, gap=gap, smoothness=smoothness, gradient_bound=bound)
    left_out = smoothness * square / 2 / (step * steps)
    assert total / steps == pytest.approx(promised - left_out, rel=1e-9)
    assert left_out < 0.02 * promised
