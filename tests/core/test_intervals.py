"""Confidence intervals against exact enumeration, scipy and numpy."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.intervals import (
    Interval,
    clopper_pearson,
    fit_slope,
    hoeffding_radius,
    largest_mean_interval,
    mean_interval,
    median_interval,
    quantile_interval,
)


@pytest.mark.parametrize("n", [1, 2, 7, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_clopper_pearson_covers_every_proportion(n: int, confidence: float) -> None:
    intervals = [clopper_pearson(k, n, confidence) for k in range(n + 1)]
    for p in np.linspace(0, 1, 101):
        mass = stats.binom.pmf(np.arange(n + 1), n, p)
        covered = sum(m for m, i in zip(mass, intervals, strict=True) if i.low <= p <= i.high)
        assert covered >= confidence - 1e-12


@given(st.integers(1, 400), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.999]))
def test_clopper_pearson_is_scipys(n: int, share: float, confidence: float) -> None:
    k = round(share * n)
    ours = clopper_pearson(k, n, confidence)
    theirs = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
    assert ours.low == pytest.approx(theirs.low, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=1e-9)
    assert ours.low <= ours.estimate <= ours.high


def test_hoeffding_golden_values() -> None:
    assert hoeffding_radius(1000, 0.05) == pytest.approx(0.042947, abs=5e-7)
    assert hoeffding_radius(1000, 0.05, -1, 1) == pytest.approx(2 * hoeffding_radius(1000, 0.05))


def test_mean_interval_is_scipys() -> None:
    x = np.random.default_rng(0).normal(size=50)
    for values in (x, torch.as_tensor(x), x.tolist()):
        ours = mean_interval(values, 0.9)
        low, high = stats.t.interval(0.9, 49, loc=x.mean(), scale=stats.sem(x))
        assert (ours.low, ours.high) == (pytest.approx(low), pytest.approx(high))
        assert ours.trials == 50
    assert mean_interval(torch.tensor([1, 2, 3], dtype=torch.bfloat16)).estimate == 2


def test_the_largest_mean_of_one_column_is_its_mean() -> None:
    x = np.random.default_rng(0).exponential(size=(30, 1))
    one, same = largest_mean_interval(x, 0.9), mean_interval(x, 0.9)
    assert (one.estimate, one.low, one.high) == pytest.approx((same.estimate, same.low, same.high))


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_the_range_of_the_largest_mean_knows_that_it_was_chosen(ahead: float) -> None:
    rng = np.random.default_rng(3)
    truth = np.zeros(60)
    truth[7] = ahead
    hits = chosen = 0
    for _ in range(200):
        x = truth + rng.normal(size=(25, 60))
        found = largest_mean_interval(torch.as_tensor(x), 0.95)
        assert found.low <= found.estimate <= found.high
        hits += found.low <= ahead <= found.high
        alone = mean_interval(x[:, x.mean(0).argmax()], 0.95)
        chosen += alone.low <= ahead <= alone.high
    assert hits >= 180  # of a range that misses with 5 %, fewer have a chance of 1 in 1,000
    assert ahead or chosen < 100  # the range of the chosen column alone


def test_slope_is_numpys_and_scipys() -> None:
    rng = np.random.default_rng(1)
    x = np.geomspace(1, 100, 12)
    y = 3 * x**-0.7 * np.exp(0.1 * rng.normal(size=12))
    ours = fit_slope(x, y, 0.95)
    slope, covariance = np.polyfit(np.log(x), np.log(y), 1, cov="unscaled")
    residuals = np.log(y) - np.polyval(slope, np.log(x))
    error = math.sqrt(covariance[0, 0] * (residuals**2).sum() / 10)
    radius = stats.t.isf(0.025, 10) * error
    assert ours.estimate == pytest.approx(slope[0])
    assert (ours.low, ours.high) == pytest.approx((slope[0] - radius, slope[0] + radius))
    line = fit_slope(x, 2 * x + 1, log=False)
    assert line.estimate == pytest.approx(2)
    assert line.test == "least squares"


def test_slope_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    x = np.geomspace(1, 50, 8)
    hits = 0
    for _ in range(400):
        found = fit_slope(x, x**0.5 * np.exp(0.3 * rng.normal(size=8)), 0.9)
        hits += found.low <= 0.5 <= found.high
    assert stats.binomtest(hits, 400, 0.9).pvalue > 1e-4


@pytest.mark.parametrize("n", [1, 9, 60])
@pytest.mark.parametrize("level", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_quantile_interval_covers_the_quantile_and_is_not_wasteful(
    n: int, level: float, confidence: float
) -> None:
    made = quantile_interval(range(1, n + 1), level, confidence)
    first = 0 if math.isinf(made.low) else int(made.low)
    last = n + 1 if math.isinf(made.high) else int(made.high)
    below = stats.binom(n, level).cdf  # how many of n observations lie below the quantile
    missed = below(first - 1), 1 - below(last - 1)
    assert max(missed) <= (1 - confidence) / 2 + 1e-12
    # one order statistic further in on either side would miss it too often
    assert below(first) > (1 - confidence) / 2
    assert 1 - below(last - 2) > (1 - confidence) / 2


def test_median_interval_is_that_of_the_middle() -> None:
    x = np.array([3.0, math.inf, 1.0, 2.0, math.inf, math.inf])
    assert median_interval(x).estimate == math.inf
    assert median_interval([4.0, 1.0, 2.0]).estimate == 2.0
    assert median_interval(x) == quantile_interval(x, 0.5)


def test_json_round_trip_with_infinite_ends() -> None:
    for made in (clopper_pearson(3, 10), Interval(np.float32(1), -math.inf, math.inf, 0.9, 3, "t")):
        text = json.dumps(made.to_json(), allow_nan=False)
        assert Interval.from_json(json.loads(text)) == made


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: clopper_pearson(0, 0), EmptyData),
        (lambda: clopper_pearson(-1, 5), InvalidInput),
        (lambda: clopper_pearson(6, 5), InvalidInput),
        (lambda: clopper_pearson(1, 5, 1.0), InvalidInput),
        (lambda: clopper_pearson(1, 5, math.nan), InvalidInput),
        (lambda: hoeffding_radius(0, 0.1), EmptyData),
        (lambda: hoeffding_radius(5, 0.0), InvalidInput),
        (lambda: hoeffding_radius(5, 0.1, 1, 1), InvalidInput),
        (lambda: quantile_interval([], 0.5), EmptyData),
        (lambda: quantile_interval([1.0], 1.0), InvalidInput),
        (lambda: quantile_interval([1.0, math.nan], 0.5), NonFinite),
        (lambda: mean_interval([1.0]), EmptyData),
        (lambda: mean_interval([1.0, math.nan]), NonFinite),
        (lambda: largest_mean_interval([1.0, 2.0]), ShapeMismatch),
        (lambda: largest_mean_interval([[1.0, 2.0]]), EmptyData),
        (lambda: largest_mean_interval([[], []]), EmptyData),
        (lambda: largest_mean_interval([[1.0], [math.nan]]), NonFinite),
        (lambda: fit_slope([1, 2], [1, 2]), EmptyData),
        (lambda: fit_slope([1, 1, 1], [1, 2, 3]), EmptyData),
        (lambda: fit_slope([1, 2, 3], [1, 2]), ShapeMismatch),
        (lambda: fit_slope([1, 2, 3], [1, -2, 3]), InvalidInput),
        (lambda: fit_slope([1, 2, 3], [1, math.inf, 3]), NonFinite),
    ],
)
def test_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


X = [0.3, 1.1, 0.7, 2.9, 1.8, 0.2, 1.3, 2.2, 0.9, 1.6]


@pytest.mark.parametrize(
    "made",
    [
        lambda c: clopper_pearson(7, 40, c),
        lambda c: mean_interval(X, c),
        lambda c: quantile_interval(range(200), 0.4, c),
        lambda c: largest_mean_interval(np.reshape(X, (5, 2)), c),
        lambda c: fit_slope(range(1, 11), X, c),
        lambda c: fit_slope(range(1, 11), X, c, log=False),
    ],
)
def test_an_interval_is_made_again_at_another_confidence(made: Any) -> None:
    first = made(0.9)
    assert first.at(0.9) == first
    assert first.at(0.9995) == made(0.9995)
    assert pickle.loads(pickle.dumps(first)).at(0.99) == made(0.99)
    assert "again" not in first.to_json()


def test_an_interval_that_nobody_can_make_again_is_stretched() -> None:
    kept = Interval.from_json(mean_interval(np.linspace(0, 1, 100_000), 0.9).to_json())
    exact = mean_interval(np.linspace(0, 1, 100_000), 0.999)
    assert kept.at(0.999).low == pytest.approx(exact.low, rel=1e-6)
    assert kept.at(0.999).high == pytest.approx(exact.high, rel=1e-6)
    # what was changed since is stretched as it is, not made again
    cut = replace(mean_interval(X, 0.9), low=0.0)
    half = replace(cut, again=None)
    assert cut.at(0.99) == half.at(0.99)
    one_sided = Interval(2.0, 2.0, math.inf, 0.9, 5, "t").at(0.99)
    assert (one_sided.low, one_sided.high) == (2.0, math.inf)
    below = Interval(2.0, -math.inf, 3.0, 0.9, 5, "t").at(0.99)
    assert below.low == -math.inf
    assert below.high == pytest.approx(2 + stats.norm.ppf(0.99) / stats.norm.ppf(0.9))
    endless = Interval(math.inf, 2.0, math.inf, 0.9, 5, "t").at(0.99)
    assert (endless.low, endless.high) == (-math.inf, math.inf)
    exact_value = Interval(2.0, 2.0, 2.0, 1.0, 1, "exact")
    assert exact_value.at(0.99) is exact_value
    with pytest.raises(InvalidInput, match="confidence"):
        cut.at(1.0)
