"""Algorithmic stability: the bound, its constants, coupled runs and the measuring tool."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.generalization.stability import (
    distance_bound,
    logistic_constants,
    measure_stability,
    replace_example,
    stability_bound,
)
from torchtheory.optimization.descent.iterates import trajectory
from torchtheory.optimization.descent.minibatch import minibatch_direction

seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def logistic(theta, x, y):
    return torch.nn.functional.softplus(-y * (theta * x).sum(-1))


def linear(theta, z):
    return (theta * z).sum(-1)


def exact_difference(loss, examples, etas, samples, *, old=0, new=None):
    """Trajectories on both samples for every sequence of indices: [T, n^T, p] each."""
    every = torch.tensor(list(itertools.product(range(samples), repeat=len(etas))))[..., None]
    start = torch.zeros(len(every), examples[0].shape[1], dtype=torch.float64)
    new = samples if new is None else new
    return [
        trajectory(minibatch_direction(loss, examples, i), start, etas)[1:]
        for i in (every, replace_example(every, old, new))
    ]


def test_bounds_by_hand():
    assert stability_bound(2.0, 1.0, [1.0, 0.5], samples=4).tolist() == [2.0, 3.0]
    assert distance_bound(2.0, 1.0, [1.0, 0.5], samples=4).tolist() == [1.0, 1.5]
    assert logistic_constants(torch.tensor([[0.6, 0.8]])) == pytest.approx((1.0, 0.25))


@given(seeds, st.floats(0.1, 3))
@settings(max_examples=15, deadline=None)
def test_linear_losses_attain_the_bound(seed, lipschitz):
    z = normal(seed, 3, 2)
    z = lipschitz * z / z.norm(dim=1, keepdim=True)
    etas = [0.3, 1.0, 0.7]
    first, second = exact_difference(linear, [torch.cat([z, -z[:1]])], etas, 3)
    assert torch.allclose(
        (first - second).norm(dim=-1).mean(1), distance_bound(lipschitz, 0.0, etas, 3)
    )
    change = (linear(second, z[0]) - linear(first, z[0])).mean(1)
    assert torch.allclose(change, stability_bound(lipschitz, 0.0, etas, 3))


@given(seeds, st.floats(0.05, 1.0))
@settings(max_examples=20, deadline=None)
def test_logistic_regression_obeys_the_bound_exactly(seed, relative):
    x, y = normal(seed, 4, 2), normal(seed + 1, 4).sign()
    lipschitz, smooth = logistic_constants(x)
    etas = [2 * relative / smooth] * 4
    first, second = exact_difference(logistic, [x, y], etas, 3)
    distance = (first - second).norm(dim=-1).mean(1)
    assert bool((distance <= distance_bound(lipschitz, smooth, etas, 3) + 1e-12).all())
    for probe in range(4):
        change = logistic(first, x[probe], y[probe]) - logistic(second, x[probe], y[probe])
        bound = stability_bound(lipschitz, smooth, etas, 3)
        assert bool((change.mean(1).abs() <= bound + 1e-12).all())


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_logistic_constants_bound_gradients_and_curvature(seed):
    x, theta = 2 * normal(seed, 5, 3), normal(seed + 1, 3)
    lipschitz, smooth = logistic_constants(x)
    for row in x:
        slope = torch.func.grad(logistic)(theta, row, torch.tensor(1.0))
        curvature = torch.func.hessian(logistic)(theta, row, torch.tensor(1.0))
        assert float(slope.norm()) <= lipschitz + 1e-12
        assert float(torch.linalg.matrix_norm(curvature, 2)) <= smooth + 1e-12


def test_replacing_is_per_run_where_asked():
    indices = torch.tensor([[[0], [1]], [[0], [1]]])
    old, new = torch.tensor([[[0]], [[1]]]), torch.tensor([[[7]], [[8]]])
    assert replace_example(indices, old, new)[..., 0].tolist() == [[7, 1], [0, 8]]


def test_expected_gap_is_the_gap_for_the_mean():
    # estimating a mean with squared loss: E[J - Ĵ] = 2 σ²/n exactly
    random = torch.Generator().manual_seed(0)
    n, found = 10, []

    def mean(x, y, seed):
        center = x.mean()
        return lambda a, b: (a - center).square()

    for _ in range(300):
        x = torch.randn(n, dtype=torch.float64, generator=random)
        other = torch.randn(5, dtype=torch.float64, generator=random)
        found.append(
            measure_stability(mean, x, x, other, other, runs=1, generator=random).expected_gap
        )
    found = torch.tensor(found)
    error = float(found.std()) / math.sqrt(len(found))
    assert float(found.mean()) == pytest.approx(2 / n, abs=4 * error)
    assert error < 0.02


def test_measured_stability_averages_over_seeds_and_keeps_the_data():
    x = torch.arange(4.0)

    def noisy(x, y, seed):
        shift = torch.randn((), generator=torch.Generator().manual_seed(seed))
        center = x.mean() + shift
        return lambda a, b: (a - center).abs()

    found = measure_stability(noisy, x, x, torch.tensor([10.0]), torch.zeros(1), runs=6)
    assert found.differences.shape == (6, 1, 5)
    assert found.stability <= 2.5 + 1e-6  # the mean moves by at most 10/4
    assert found.standard_error >= 0
    assert torch.equal(x, torch.arange(4.0))
    single = measure_stability(noisy, x, x, torch.tensor([10.0]), torch.zeros(1), runs=1)
    assert math.isnan(single.standard_error)


def test_measuring_works_on_a_network():
    x, y = normal(0, 12, 2), (normal(1, 12) > 0).double()

    def train(a, b, seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = torch.nn.Sequential(
                torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
            ).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(net(a)[:, 0], b).backward()
            optimizer.step()
        return lambda u, v: torch.nn.functional.binary_cross_entropy_with_logits(
            net(u)[:, 0], v, reduction="none"
        )

    found = measure_stability(train, x[:10], y[:10], x[10:], y[10:], runs=3)
    assert found.differences.shape == (3, 2, 12)
    assert 0 < found.stability < 1
    assert not found.differences.requires_grad


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match="exceeds 2/β"):
        stability_bound(1.0, 0.25, [8.1], samples=10)
    with pytest.raises(InvalidInput, match="Lipschitz"):
        stability_bound(-1.0, 0.25, [1.0], samples=10)
    with pytest.raises(InvalidInput, match="finite"):
        stability_bound(1.0, 0.25, [math.nan], samples=10)
    with pytest.raises(EmptyData):
        stability_bound(1.0, 0.25, [1.0], samples=0)
    with pytest.raises(ShapeMismatch):
        logistic_constants(torch.zeros(3))
    x = torch.zeros(3)
    with pytest.raises(ShapeMismatch, match="same number"):
        measure_stability(lambda *_: None, x, x[:2], x, x)
    with pytest.raises(EmptyData):
        measure_stability(lambda *_: None, x, x, x[:0], x[:0])
    with pytest.raises(ShapeMismatch, match="one number an example"):
        measure_stability(lambda *_: lambda a, b: a.sum(), x, x, x, x)
