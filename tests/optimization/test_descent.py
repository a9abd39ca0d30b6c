"""Descent, its certificates, mini-batches and noise."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch, UnknownName
from torchtheory.optimization.certificates.convergence import (
    accelerated_bound,
    averaged_descent_bound,
    first_critical,
    geometric_bound,
    iterations_to_critical_point,
    polyak_lojasiewicz_constant,
    sufficient_decrease,
)
from torchtheory.optimization.descent.iterates import (
    average_iterate,
    descend,
    gradient_descent,
    gradient_of,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.descent.minibatch import (
    draw_batches,
    minibatch_direction,
    minibatch_gradient,
)
from torchtheory.optimization.descent.noise import (
    accumulated_variance,
    with_gaussian_noise,
    with_unit_noise,
)
from torchtheory.training.optimizers.projection import onto_ball

seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bowl(theta):
    return theta.square().sum(-1) / 2


# -- descent ------------------------------------------------------------------------------------


@given(seeds, st.floats(0.01, 0.4))
@settings(max_examples=20, deadline=None)
def test_quadratic_has_the_closed_form(seed, eta):
    root = normal(seed, 3, 3)
    matrix, start = root @ root.T / 3, normal(seed + 1, 3)
    run = gradient_descent(lambda x: (x @ matrix * x).sum(-1) / 2, start, eta, 6)
    power = torch.linalg.matrix_power(torch.eye(3, dtype=torch.float64) - eta * matrix, 6)
    assert torch.allclose(run.points[-1], power @ start, atol=1e-9)


def test_a_batch_of_starts_is_as_many_runs():
    starts = normal(0, 4, 2, 3)

    def h(x):
        return torch.cos(x).sum(-1) + x[..., 0] ** 2

    together = gradient_descent(h, starts, 0.1, 5)
    assert together.points.shape == (6, 4, 2, 3)
    assert together.values.shape == together.gradient_norms.shape == (6, 4, 2)
    alone = gradient_descent(h, starts[2, 1], 0.1, 5)
    assert torch.allclose(together.points[:, 2, 1], alone.points)


def test_gradient_does_not_touch_its_argument_and_follows_the_dtype():
    theta = torch.ones(2, dtype=torch.float32)
    slope = gradient_of(lambda x: x.square().sum(-1))(theta, 0)
    assert slope.dtype == torch.float32
    assert not theta.requires_grad
    assert not slope.requires_grad
    assert torch.equal(gradient_of(lambda x: torch.zeros(x.shape[:-1]))(theta, 0), torch.zeros(2))


def test_descend_is_torchs_sgd():
    theta = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    rates = [0.1, 0.05, 0.2]
    ours = last_iterate(gradient_of(lambda x: torch.sin(x).sum(-1)), theta.detach().clone(), rates)
    optimizer = torch.optim.SGD([theta], lr=1.0)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        torch.sin(theta).sum().backward()
        optimizer.step()
    assert torch.allclose(theta.detach(), ours, atol=1e-15)


def test_projection_is_applied_after_every_step():
    path = list(
        descend(lambda t, k: -torch.ones_like(t), torch.zeros(1), [0.4] * 5, onto_ball(1.0))
    )
    assert [round(x.item(), 6) for x in path] == [0, 0.4, 0.8, 1, 1, 1]


def test_average_leaves_the_last_iterate_out():
    path = trajectory(gradient_of(bowl), torch.ones(2), [0.5, 0.25, 0.1])
    mean = average_iterate(gradient_of(bowl), torch.ones(2), [0.5, 0.25, 0.1])
    assert torch.allclose(mean, path[:3].mean(0))


def test_bad_descents_are_refused():
    with pytest.raises(InvalidType, match="floating-point"):
        gradient_descent(bowl, torch.ones(2, dtype=torch.int64), 0.1, 1)
    with pytest.raises(ShapeMismatch, match="vectors"):
        gradient_descent(bowl, torch.tensor(1.0), 0.1, 1)
    with pytest.raises(InvalidInput, match="is nan"):
        gradient_descent(bowl, torch.tensor([math.nan]), 0.1, 1)
    with pytest.raises(InvalidInput, match="positive"):
        gradient_descent(bowl, torch.ones(2), 0.0, 1)
    with pytest.raises(ShapeMismatch, match="one value a vector"):
        gradient_descent(lambda x: x, torch.ones(2), 0.1, 1)
    with pytest.raises(InvalidInput, match="step size"):
        descend(gradient_of(bowl), torch.ones(2), [-1.0])
    with pytest.raises(ShapeMismatch, match="direction"):
        list(descend(lambda t, k: t[..., :1], torch.ones(2), [0.1]))
    with pytest.raises(InvalidInput, match="at least one"):
        average_iterate(gradient_of(bowl), torch.ones(2), [])


# -- certificates -------------------------------------------------------------------------------


@given(seeds, st.floats(0.05, 1.95))
@settings(max_examples=25, deadline=None)
def test_cosines_decrease_as_promised(seed, eta):
    run = gradient_descent(lambda x: torch.cos(x).sum(-1), 3 * normal(seed, 5, 2), eta, 10)
    assert float(sufficient_decrease(run.values, run.gradient_norms, eta, 1.0).min()) >= -1e-12


def test_decrease_shows_a_constant_that_is_too_small():
    run = gradient_descent(lambda x: 2 * x.square().sum(-1), torch.ones(1), 0.4, 1)
    assert float(sufficient_decrease(run.values, run.gradient_norms, 0.4, 1.0)) < 0
    assert float(sufficient_decrease(run.values, run.gradient_norms, 0.4, 4.0)) == pytest.approx(
        0, abs=1e-6
    )


def test_iterations_by_hand_and_hitting_times():
    assert iterations_to_critical_point(2.0, 0.5, 1.0) == 2
    assert iterations_to_critical_point(1.0, 0.0, 0.1) == 1
    assert iterations_to_critical_point(1.0, 2.0, 0.1) == 400  # not 401 by rounding
    norms = torch.tensor([[2.0, 0.5], [0.4, 2.0]])
    assert first_critical(norms, 0.45).tolist() == [1, 2]


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_best_gradient_obeys_the_lemma(seed):
    run = gradient_descent(
        lambda x: (x.square() / (1 + x.square())).sum(-1), 4 * normal(seed, 6, 1), 0.5, 60
    )
    times = torch.arange(1, 62).double()[:, None]
    best = run.gradient_norms.square().cummin(0).values
    assert bool((best <= 2 * 2.0 / times * run.values[0] + 1e-12).all())


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_polyak_lojasiewicz_constant_of_a_singular_quadratic(seed):
    factor = normal(seed, 4, 2)
    matrix = factor @ factor.T
    spectrum = torch.linalg.eigvalsh(matrix)
    x = normal(seed + 1, 200, 4)
    values, slopes = (x @ matrix * x).sum(-1) / 2, (x @ matrix).norm(dim=-1)
    found = polyak_lojasiewicz_constant(values, slopes, 0.0)
    assert spectrum[2] * (1 - 1e-9) <= found <= spectrum[3] * (1 + 1e-9)


def test_polyak_lojasiewicz_constant_agrees_with_scipy():
    def ratio(x):
        return 0.5 * (2 * x + 3 * math.sin(2 * x)) ** 2 / (x**2 + 3 * math.sin(x) ** 2)

    exact = minimize_scalar(ratio, bounds=(1.8, 2.6), method="bounded", options={"xatol": 1e-12})
    grid = torch.linspace(0.01, 20, 200_001, dtype=torch.float64)
    found = polyak_lojasiewicz_constant(
        grid**2 + 3 * torch.sin(grid) ** 2, (2 * grid + 3 * torch.sin(2 * grid)).abs(), 0.0
    )
    assert found == pytest.approx(exact.fun, rel=1e-6)


def test_bounds_by_hand():
    assert geometric_bound(torch.tensor([1.0, 2.0]), 1.0, 4.0, 2).tolist() == [
        [1.0, 2.0],
        [0.75, 1.5],
        [0.5625, 1.125],
    ]
    assert accelerated_bound(3.0, 1.0, 2).tolist() == [4.5, 2.0]
    assert averaged_descent_bound(25, radius=2.0, lipschitz=3.0) == pytest.approx(1.2)


def test_impossible_certificates_are_refused():
    with pytest.raises(InvalidInput, match="impossible"):
        geometric_bound(1.0, 2.0, 1.0, 3)
    with pytest.raises(InvalidInput, match="below the infimum"):
        polyak_lojasiewicz_constant(torch.tensor([0.0]), torch.tensor([1.0]), 1.0)
    with pytest.raises(InvalidInput, match="any constant"):
        polyak_lojasiewicz_constant(torch.tensor([1.0]), torch.tensor([1.0]), 1.0)
    with pytest.raises(ShapeMismatch, match="differ"):
        sufficient_decrease(torch.zeros(3), torch.zeros(2), 1.0, 1.0)
    with pytest.raises(ShapeMismatch, match="at least 2"):
        sufficient_decrease(torch.zeros(1), torch.zeros(1), 1.0, 1.0)
    with pytest.raises(InvalidInput, match="tolerance"):
        iterations_to_critical_point(1.0, 1.0, 0.0)
    with pytest.raises(InvalidInput, match="gap"):
        iterations_to_critical_point(1.0, -1.0, 0.1)
    with pytest.raises(InvalidInput):
        averaged_descent_bound(0)


# -- mini-batches -------------------------------------------------------------------------------


def logistic(theta, x, y):
    return torch.nn.functional.softplus(-y * (theta * x).sum(-1))


@given(seeds, st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_subsets_are_unbiased(seed, size):
    x, y, theta = normal(seed, 6, 2), normal(seed + 1, 6).sign(), normal(seed + 2, 2)
    chosen = torch.tensor(list(itertools.combinations(range(6), size)))
    each = minibatch_gradient(logistic, theta.expand(len(chosen), -1), x[chosen], y[chosen])
    assert torch.allclose(each.mean(0), minibatch_gradient(logistic, theta, x, y), atol=1e-12)


def test_minibatch_gradient_agrees_with_torch_func():
    x, y, theta = normal(0, 7, 3), normal(1, 7).sign(), normal(2, 3)
    single = torch.func.vmap(torch.func.grad(logistic), (None, 0, 0))(theta, x, y)
    assert torch.allclose(minibatch_gradient(logistic, theta, x, y), single.mean(0), atol=1e-14)


@pytest.mark.parametrize("sampling", ["subset", "replacement", "epoch"])
def test_batches_have_their_shape_and_follow_the_seed(sampling):
    first = draw_batches(12, 3, 9, trials=(2, 5), sampling=sampling, generator=4)
    assert first.shape == (2, 5, 9, 3)
    assert 0 <= int(first.min()) <= int(first.max()) < 12
    assert torch.equal(first, draw_batches(12, 3, 9, trials=(2, 5), sampling=sampling, generator=4))
    assert not torch.equal(
        first, draw_batches(12, 3, 9, trials=(2, 5), sampling=sampling, generator=5)
    )


def test_an_epoch_shows_every_example_once():
    order = draw_batches(12, 3, 8, trials=(5,), sampling="epoch").reshape(5, 2, 12)
    assert torch.equal(order.sort(-1).values, torch.arange(12).expand(5, 2, 12))


def test_subsets_have_no_example_twice_and_all_are_equally_likely():
    chosen = draw_batches(4, 2, 6000, generator=0)
    assert bool((chosen[:, 0] != chosen[:, 1]).all())
    pairs = torch.bincount((chosen.sort(1).values * torch.tensor([4, 1])).sum(1), minlength=16)
    seen = pairs[pairs > 0].double()
    assert len(seen) == 6
    # chi square with 5 degrees of freedom: 20.5 has probability 0.001
    assert float(((seen - 1000) ** 2 / 1000).sum()) < 20.5


def test_bad_batches_are_refused():
    with pytest.raises(EmptyData):
        draw_batches(0, 1, 1)
    with pytest.raises(InvalidInput, match="does not exist"):
        draw_batches(3, 4, 1)
    with pytest.raises(InvalidInput, match="evenly"):
        draw_batches(5, 2, 1, sampling="epoch")
    with pytest.raises(UnknownName):
        draw_batches(5, 2, 1, sampling="random")
    with pytest.raises(InvalidInput, match="outside"):
        minibatch_direction(logistic, [torch.zeros(3, 2), torch.zeros(3)], torch.tensor([[3]]))
    with pytest.raises(ShapeMismatch, match="rows"):
        minibatch_direction(logistic, [torch.zeros(3, 2), torch.zeros(2)], torch.tensor([[0]]))
    with pytest.raises(EmptyData):
        minibatch_direction(logistic, [], torch.tensor([[0]]))


# -- noise --------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 4), st.floats(0, 1))
@settings(max_examples=15, deadline=None)
def test_unit_noise_has_length_one_and_the_right_mean(seed, size, length):
    g = normal(seed, size)
    g = length * g / g.norm()
    draws = with_unit_noise(lambda t, k: g.expand_as(t), seed)(
        torch.zeros(4000, size, dtype=torch.float64), 0
    )
    assert torch.allclose(draws.norm(dim=1), torch.ones(4000, dtype=torch.float64))
    # a mean of 4000 unit vectors is within 6/√4000 of its expectation but for one in a million
    assert float((draws.mean(0) - g).norm()) < 6 / math.sqrt(4000)


def test_unit_noise_refuses_long_gradients():
    with pytest.raises(InvalidInput, match="norm"):
        with_unit_noise(lambda t, k: 2 * torch.ones_like(t))(torch.zeros(1, 2), 0)


@given(st.floats(-2, 2), st.floats(0.01, 0.9), st.integers(0, 30))
def test_accumulated_variance_is_its_recursion(curvature, step, count):
    variance = 0.0
    for _ in range(count):
        variance = (1 - step * curvature) ** 2 * variance + (step * 1.5) ** 2
    assert accumulated_variance(curvature, step, 1.5, count) == pytest.approx(
        variance, rel=1e-6, abs=1e-12
    )


def test_accumulated_variance_in_the_limit():
    assert accumulated_variance(1.0, 0.2, 3.0) == pytest.approx(0.2 / 1.8 * 9)
    assert accumulated_variance(-1.0, 0.2, 3.0) == math.inf
    assert accumulated_variance(1.0, 0.2, 0.0) == 0.0
    with pytest.raises(InvalidInput):
        accumulated_variance(1.0, 0.0, 1.0)


def test_gaussian_noise_is_fresh_and_reproducible():
    still = with_gaussian_noise(lambda t, k: torch.zeros_like(t), 1.0, 3)
    first, second = still(torch.zeros(4), 0), still(torch.zeros(4), 1)
    assert not torch.equal(first, second)
    again = with_gaussian_noise(lambda t, k: torch.zeros_like(t), 1.0, 3)
    assert torch.equal(first, again(torch.zeros(4), 0))
    with pytest.raises(InvalidInput):
        with_gaussian_noise(lambda t, k: t, -1.0)


def test_the_bound_of_averaged_descent_is_met_by_its_hardest_functions() -> None:
    """One step: the average is the start, and a slope of G loses all of RG. More steps: a gentler
    slope s = aG keeps the average of the iterates back, s (R - eta s (K - 1) / 2)."""
    radius, lipschitz = 2.0, 3.0
    assert averaged_descent_bound(1, radius, lipschitz) == pytest.approx(radius * lipschitz)
    for steps in (4, 25, 400):
        eta = radius / (lipschitz * math.sqrt(steps))
        slope = lipschitz * math.sqrt(steps) / max(1, steps - 1)
        average = sum(eta * slope * k for k in range(steps)) / steps
        share = slope * (radius - average) / averaged_descent_bound(steps, radius, lipschitz)
        assert 0.5 <= share <= 1
