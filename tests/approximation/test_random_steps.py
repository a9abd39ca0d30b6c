"""Pairs of steps, exponentials and means of steps drawn from a function."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.barron.random_steps import (
    MeanOfSteps,
    draw_step_pairs,
    sampled_exponentials,
    step_pair_network,
)
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def wave(frequency=4.0, phase=0.7):
    return PlaneWaves(
        torch.ones(1).double(),
        torch.tensor([[frequency]]).double(),
        torch.tensor([phase]).double(),
    )


@given(st.floats(0.2, 12.0), st.floats(-6.0, 6.0), st.floats(-1.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_mean_over_the_threshold_is_the_wave(frequency, phase, z):
    # the integral over u in [0, 1] of the pair, by the midpoint rule, without any draw
    u = (torch.arange(20_000).double() + 0.5) / 20_000
    up = -torch.sin(u * frequency + phase) * (z > u)
    down = torch.sin(phase - u * frequency) * (-z > u)
    found = frequency * float((up + down).mean())
    assert found == pytest.approx(math.cos(frequency * z + phase) - math.cos(phase), abs=2e-3)


def test_pairs_are_unbiased_and_bounded():
    f = wave()
    pairs = draw_step_pairs(f, 40_000, generator=1)
    x = torch.tensor([[-0.9], [-0.3], [0.0], [0.5], [1.0]]).double()
    values = pairs(x)
    assert values.abs().max() <= f.barron_constant
    away = (values.mean(1) + f.at_origin() - f(x)).abs()
    assert (away <= 5 * values.std(1) / 200 + 1e-12).all()
    assert values[2].abs().max() == 0  # neither step is up at the origin


@given(st.integers(0, 1000), st.floats(0.5, 3.0))
@settings(max_examples=15, deadline=None)
def test_networks_are_means_of_their_pairs(seed, radius):
    f = GaussianBump(3, 0.8, center=[0.1, 0.0, -0.2])
    pairs = draw_step_pairs(f, 30, radius, generator=seed)
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed)).double()
    wanted = pairs(x).mean(1) + f.at_origin()
    assert torch.allclose(step_pair_network(pairs)(x)[:, 0], wanted)
    for units, number in (("relu", 120), ("sigmoid", 60)):
        net = step_pair_network(pairs, units, width=1e-9)
        assert net[0].out_features == number
        assert torch.allclose(net(x)[:, 0], wanted, atol=1e-6)


def test_exponentials_are_exact_at_the_origin_and_unbiased():
    f = wave()
    made = [sampled_exponentials(f, 1, generator=seed) for seed in range(40)]
    x = torch.tensor([[0.0], [0.4]]).double()
    values = torch.stack([m(x) for m in made])
    assert torch.allclose(values[:, 0].real, f(x[:1]).expand(40))
    # a single frequency: the real part has no variance at all, the imaginary one is a coin
    assert torch.allclose(values[:, 1].real, f(x[1:]).expand(40))
    assert len(values[:, 1].imag.round(decimals=9).unique()) == 2


def test_exponential_error_is_the_variance():
    f = GaussianBump(2, 0.5)
    x = torch.tensor([[0.6, -0.5]]).double()
    errors = [
        float((sampled_exponentials(f, 20, generator=s)(x) - f(x)).abs().square())
        for s in range(400)
    ]
    assert sum(errors) / 400 <= f.barron_constant**2 / 20


def test_mean_of_steps_bounds():
    def ramps(n, g):
        t = torch.rand(n, generator=g, dtype=torch.float64)
        return torch.ones(n, 1).double(), t, torch.where(t < 0.5, 2.0, -1.0).double()

    f = MeanOfSteps(ramps, -1.0, 2.0)
    assert f.error_bound(9) == pytest.approx(9 / 36)
    x = torch.tensor([[0.25], [2.0]]).double()
    values = torch.stack([f.subsample(9, seed)(x)[:, 0] for seed in range(600)])
    exact = torch.tensor([0.5, 0.5]).double()
    errors = (values - exact).square()
    assert (errors.mean(0) <= f.error_bound(9)).all()
    assert ((values.mean(0) - exact).abs() < 5 * values.std(0) / 600**0.5).all()
    with pytest.raises(InvalidInput):
        MeanOfSteps(ramps).subsample(50)


def test_refusals():
    pairs = draw_step_pairs(wave(), 4)
    with pytest.raises(ShapeMismatch):
        pairs(torch.zeros(3, 2).double())
    with pytest.raises(InvalidInput):
        step_pair_network(pairs, "tanh")
    with pytest.raises(InvalidInput):
        step_pair_network(pairs, "relu", width=0.0)
    with pytest.raises(InvalidInput):
        draw_step_pairs(wave(), 0)
    with pytest.raises(ShapeMismatch):
        sampled_exponentials(wave(), 3)(torch.zeros(3).double())
    with pytest.raises(ShapeMismatch):
        MeanOfSteps(lambda n, g: (torch.ones(n, 1), torch.ones(1), torch.ones(n))).subsample(3)
