"""The band-limited density and the tubes around lines."""

import math

import mpmath
import pytest
import torch
from scipy import stats

from torchtheory.approximation.depth.band_limited import (
    band_limited_root,
    covered_share,
    tube_share,
    tubes_needed,
    unit_volume_radius,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_ball_of_volume_one(n):
    volume = math.pi ** (n / 2) / math.gamma(n / 2 + 1) * unit_volume_radius(n) ** n
    assert volume == pytest.approx(1)
    # the transform at 0 is the volume
    assert float(band_limited_root(torch.zeros(1), n)[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 9, 68, 151, 400, 1000])
def test_any_dimension_and_any_length(n):
    lengths = [0.0, 1e-30, 1e-6, 0.05, 0.3, 1.0, 2.5]
    ball = mpmath.gamma(mpmath.mpf(n) / 2 + 1) ** (mpmath.mpf(1) / n) / mpmath.sqrt(mpmath.pi)
    exact = [mpmath.hyp0f1(mpmath.mpf(n) / 2 + 1, -((mpmath.pi * ball * z) ** 2)) for z in lengths]
    found = band_limited_root(torch.tensor(lengths, dtype=torch.float64), n)
    expected = torch.tensor([float(v) for v in exact], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_three_dimensions_by_hand():
    x = torch.tensor([0.3, 1.7], dtype=torch.float64)
    z = 2 * math.pi * x
    by_hand = 4 * math.pi * (torch.sin(z) - z * torch.cos(z)) / z**3
    torch.testing.assert_close(band_limited_root(x, 3, 1.0), by_hand)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_share_of_a_tube_is_the_beta_distribution_s(n):
    assert tube_share(n, 2.0) == pytest.approx(stats.beta((n - 1) / 2, 1.5).cdf(0.25))
    assert tube_share(n, 1.0) == 1.0
    assert tubes_needed(1.0, n, 1.0) == 1


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput):
        tube_share(3, 0.5)
    with pytest.raises(InvalidInput):
        band_limited_root(torch.tensor([-1.0]), 2)
    with pytest.raises(ShapeMismatch):
        covered_share(torch.ones(2, 3), torch.ones(1, 2))
    with pytest.raises(InvalidInput):
        covered_share(torch.ones(2, 2), torch.ones(1, 2))
    with pytest.raises(InvalidInput):
        tubes_needed(0.0, 3, 2.0)
