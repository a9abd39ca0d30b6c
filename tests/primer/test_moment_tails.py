"""Bernstein under moment conditions, and chi-square tails."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchtheory.core.errors import InvalidInput
from torchtheory.primer.moment_tails import (
    chi_square_radii,
    chi_square_radius,
    moment_bernstein_exponent,
    moment_bernstein_radius,
    moment_constants,
    moment_generating_bound,
    moment_generating_exponent,
    moment_limits,
    nonnegative_mean_floor,
    sample_log_moments,
)

POSITIVE = st.floats(0.01, 100)


@given(st.integers(1, 1000), POSITIVE, POSITIVE, st.floats(0.01, 50))
def test_the_exponent_at_the_radius_is_the_level(k, variance, scale, level):
    t = moment_bernstein_radius(k, variance, scale, math.exp(-level))
    assert math.isclose(moment_bernstein_exponent(t, k, variance, scale), -level, rel_tol=1e-9)


@given(st.integers(1, 50), POSITIVE, POSITIVE, POSITIVE, st.floats(0, 0.999))
def test_the_exponent_is_the_least_over_all_rates(k, variance, scale, t, share):
    rate = share / scale
    other = -rate * t + k * math.log(moment_generating_bound(rate, variance, scale)) if (
        variance * rate**2 / (1 - share) < 1000
    ) else math.inf  # fmt: skip
    assert moment_bernstein_exponent(t, k, variance, scale) <= other + 1e-9 * (1 + abs(other))


def test_the_radius_written_out():
    assert math.isclose(moment_bernstein_radius(8, 4.0, 3.0, math.exp(-1)), 8 + 3)
    assert math.isclose(nonnegative_mean_floor(2.0, 4, 2.0, 3.0, math.exp(-2)), 2 - (8 + 6) / 4)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=9))
def test_fitted_constants_satisfy_the_condition_and_are_the_least(logs):
    moments = torch.tensor(logs, dtype=torch.float64)
    found = moment_constants(moments)
    limits = moment_limits(found.orders, found.variance, found.scale)
    assert bool((moments <= limits + 1e-9).all())
    assert bool((moments > moment_limits(found.orders, found.variance, 0.99 * found.scale)).any())


def test_moments_of_samples():
    x = torch.tensor([1.0, -2.0, 0.0])
    expected = torch.tensor([5 / 3, 9 / 3, 17 / 3], dtype=torch.float64)
    torch.testing.assert_close(sample_log_moments(x, 4).exp(), expected)
    with pytest.raises(InvalidInput, match="all samples are 0"):
        sample_log_moments(torch.zeros(3), 4)


@given(st.integers(1, 2000), st.floats(0.001, 1))
def test_chi_square_stays_in_the_radius(k, share):
    level = max(share * k, math.log(2) + 1e-6)
    if level > min(k, 500):
        return
    gamma = 2 * math.exp(-level)
    radius = chi_square_radius(k, gamma)
    outside = stats.chi2.sf(k + radius, k) + stats.chi2.cdf(k - radius, k)
    assert outside <= gamma
    below, above = chi_square_radii(k, gamma)
    assert below <= radius
    assert above <= radius * (1 + 1e-12)
    assert stats.chi2.sf(k + above, k) <= gamma / 2
    assert stats.chi2.cdf(k - below, k) <= gamma / 2


def test_the_radius_is_refused_where_it_is_no_bound():
    assert math.isclose(chi_square_radius(10, 1e-3), 4 * math.sqrt(10 * math.log(2000)))
    with pytest.raises(InvalidInput, match="chi_square_radii"):
        chi_square_radius(1, 2.25e-7)
    radius = 4 * math.sqrt(math.log(2 / 2.25e-7))
    assert stats.chi2.sf(1 + radius, 1) > 100 * 2.25e-7


@pytest.mark.parametrize("k", [1, 2, 3, 10, 30, 100, 1000])
def test_the_radius_is_given_exactly_where_the_statement_holds(k):
    for exponent in (1, 3, 4, 6, 9, 12, 15, 26, 28, 79, 82, 300):
        gamma = 10.0**-exponent
        radius = 4 * math.sqrt(k * (math.log(2) + exponent * math.log(10)))
        if stats.chi2.sf(k + radius, k) + stats.chi2.cdf(k - radius, k) <= gamma:
            assert math.isclose(chi_square_radius(k, gamma), radius)
        else:
            with pytest.raises(InvalidInput, match="no bound here"):
                chi_square_radius(k, gamma)


def test_exponentials_beyond_the_largest_number():
    assert moment_generating_bound(0.9999, 1.0, 1.0) == math.inf
    assert moment_generating_bound(0.99, 1.0, 1.0) == pytest.approx(math.exp(0.99**2 / 0.02))
    assert moment_generating_bound(1e200, 1.0, 1e-250) == math.inf
    # as the scale falls, the exponent of a Gaussian
    assert moment_bernstein_exponent(3.0, 2, 1.0, 1e-200) == pytest.approx(-9 / 4)
    assert moment_generating_exponent(0.9999, 1.0, 1.0) == pytest.approx(0.9999**2 / 2e-4)
    assert moment_constants(torch.tensor([800.0, 900.0]).double()).variance == math.inf


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidInput, match="scale"):
        moment_bernstein_radius(1, 1.0, 0.0, 0.1)
    with pytest.raises(InvalidInput, match="rate"):
        moment_generating_bound(1.0, 1.0, 1.0)
    with pytest.raises(InvalidInput, match="orders 2 and 3"):
        moment_constants(torch.zeros(1))
