"""The density of Eldan and Shamir: its lengths, draws, and tubes on spheres."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from torchtheory.approximation.depth.ball_measure import (
    draw_band_limited,
    length_distribution,
    sphere_tube_share,
)
from torchtheory.approximation.depth.band_limited import band_limited_root
from torchtheory.core.errors import InvalidInput


@given(st.integers(1, 9), st.floats(0.01, 6.0))
@settings(max_examples=25, deadline=None)
def test_distribution_is_the_integral_of_the_density(n, rho):
    surface = 2 * math.pi ** (n / 2) / special.gamma(n / 2)
    r = np.linspace(1e-6, rho, 20_001)
    density = surface * band_limited_root(torch.as_tensor(r), n).numpy() ** 2 * r ** (n - 1)
    found = float(length_distribution(torch.tensor([rho], dtype=torch.float64), n))
    assert found == pytest.approx(integrate.simpson(density, x=r), abs=2e-5)


def test_distribution_increases_to_one():
    rho = torch.linspace(0, 60, 100, dtype=torch.float64)
    found = length_distribution(rho, 4)
    assert found[0] == 0
    assert (found.diff() >= -1e-12).all()
    assert 0.98 < found[-1] < 1


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_draws_have_the_distribution(n):
    x = draw_band_limited(3000, n, generator=5)
    assert x.shape == (3000, n)
    lengths = x.norm(dim=1).clamp(max=50.0)
    ranks = length_distribution(lengths, n)
    ranks = ranks[lengths < 50]
    top = float(length_distribution(torch.tensor([50.0], dtype=torch.float64), n))
    assert stats.kstest(ranks.numpy(), "uniform", args=(0, top)).pvalue > 1e-3
    assert abs(len(ranks) / 3000 - top) < 0.02
    if n > 1:
        assert (x / x.norm(dim=1, keepdim=True)).mean(0).abs().max() < 0.1


@given(st.integers(2, 12), st.floats(1.0, 5.0))
@settings(max_examples=20, deadline=None)
def test_share_of_a_sphere_by_its_angle(d, ratio):
    # within distance r of the line: the angle to it is at most arcsin(r/ρ)
    weight = [
        integrate.quad(lambda t: math.sin(t) ** (d - 2), 0, end)[0]
        for end in (math.asin(1 / ratio), math.pi / 2)
    ]
    assert sphere_tube_share(d, ratio) == pytest.approx(weight[0] / weight[1], abs=1e-8)


def test_refusals():
    with pytest.raises(InvalidInput):
        length_distribution(torch.tensor([-1.0]), 2)
    with pytest.raises(InvalidInput):
        length_distribution(torch.tensor([math.inf]), 2)
    with pytest.raises(InvalidInput):
        draw_band_limited(0, 2)
    with pytest.raises(InvalidInput):
        sphere_tube_share(1, 2.0)
    with pytest.raises(InvalidInput):
        sphere_tube_share(3, 0.5)
