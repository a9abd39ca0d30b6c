"""Exponents of heavy tails, against samples whose law is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.primer.power_laws import (
    LEAST,
    fit_power_law,
    power_law_against,
    power_law_p_value,
)


def pareto(seed: int, count: int, exponent: float, cutoff: float = 1.0) -> torch.Tensor:
    """By inversion: the tail above x is (x / cutoff) ** (1 - exponent)."""
    uniform = np.random.default_rng(seed).random(count)
    return torch.from_numpy(cutoff * (1 - uniform) ** (-1 / (exponent - 1)))


def exponential(seed: int, count: int) -> torch.Tensor:
    return torch.from_numpy(1 + np.random.default_rng(seed).exponential(1.0, count))


def test_by_hand() -> None:
    # logarithms 0, 0, 3 over the cutoff 2: mean 1, so 1 + 1 / 1
    law = fit_power_law(torch.tensor([2.0, 2.0, 2 * math.e**3]).double(), cutoff=2.0)
    assert law.exponent == pytest.approx(2.0)
    assert law.standard_error == pytest.approx(1 / math.sqrt(3))
    assert (law.cutoff, law.tail) == (pytest.approx(2.0), 3)
    # two of three values at the cutoff, where the law has none of its mass
    assert law.distance == pytest.approx(2 / 3)


@pytest.mark.parametrize("exponent", [1.5, 2.5, 4.0])
def test_the_exponent_of_samples(exponent: float) -> None:
    errors = []
    for seed in range(60):
        law = fit_power_law(pareto(seed, 400, exponent, 0.1), cutoff=0.1)
        assert law.tail == 400
        errors.append((law.exponent - exponent) / law.standard_error)
    # standardized errors: 5 of 60 beyond 2.58 have probability below 1e-3 each way
    assert sum(abs(e) > 2.58 for e in errors) <= 5
    assert 0.7 < float(np.std(errors)) < 1.4


def test_the_cutoff_is_found() -> None:
    for seed in range(5):
        below = torch.from_numpy(np.random.default_rng(100 + seed).random(2000))
        law = fit_power_law(torch.cat([below, pareto(seed, 2000, 3.0)]))
        assert 0.9 < law.cutoff < 1.6
        assert abs(law.exponent - 3.0) < 5 * law.standard_error


def test_scaling_moves_the_cutoff_alone() -> None:
    values = pareto(0, 300, 2.2)
    one, two = fit_power_law(values), fit_power_law(7 * values)
    assert two.exponent == pytest.approx(one.exponent, rel=1e-9)
    assert two.cutoff == pytest.approx(7 * one.cutoff, rel=1e-9)


def test_the_p_value_tells_laws_apart() -> None:
    true = [power_law_p_value(v, fit_power_law(v), generator=s)
            for s, v in ((s, pareto(s, 500, 2.5)) for s in range(10))]  # fmt: skip
    # uniform under the law: 6 of 10 below 0.1 have probability 1.4e-4
    assert sum(p < 0.1 for p in true) < 6
    # uniform values fall off faster than any power, beyond every cutoff that leaves a tail
    even = torch.linspace(0.5, 1.5, 1000)
    assert power_law_p_value(even, fit_power_law(even)) == 0.01
    again = [power_law_p_value(even, fit_power_law(even), generator=3) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("seed", range(5))
def test_the_likelier_law(seed: int) -> None:
    tail = exponential(seed, 1000)
    ratio = power_law_against(tail, fit_power_law(tail, 1.0), "exponential")
    assert ratio.normalized < 0
    assert ratio.p_value < 1e-3
    heavy = pareto(seed, 1000, 2.5)
    law = fit_power_law(heavy, 1.0)
    ratio = power_law_against(heavy, law, "exponential")
    assert ratio.normalized > 0
    assert ratio.p_value < 0.05
    # a lognormal comes as near as one likes: never much worse, and better only by chance
    assert power_law_against(heavy, law, "lognormal").normalized < 1.0
    bell = torch.from_numpy(np.random.default_rng(seed).lognormal(0.0, 0.5, 4000))
    bell = bell[bell >= 1]
    ratio = power_law_against(bell, fit_power_law(bell, 1.0), "lognormal")
    assert ratio.normalized < 0
    assert ratio.p_value < 1e-3


def test_what_has_no_tail_is_refused() -> None:
    with pytest.raises(InvalidInput, match=f"at least {LEAST} values"):
        fit_power_law(torch.ones(LEAST - 1))
    with pytest.raises(InvalidInput, match="all values of the tail are the same"):
        fit_power_law(torch.ones(100))
    with pytest.raises(InvalidInput, match="positive values"):
        fit_power_law(torch.zeros(100))
    with pytest.raises(NonFinite):
        fit_power_law(torch.full((100,), math.nan))
    with pytest.raises(InvalidInput, match="positive cutoff"):
        fit_power_law(torch.ones(100), cutoff=0.0)
    with pytest.raises(InvalidInput, match="fewer than two"):
        fit_power_law(torch.ones(100), cutoff=2.0)


def test_the_p_value_is_that_of_a_normal_law() -> None:
    heavy = pareto(3, 400, 2.5)
    ratio = power_law_against(heavy, fit_power_law(heavy, 1.0), "exponential")
    normal = math.erfc(abs(ratio.normalized) / math.sqrt(2))
    assert ratio.p_value == pytest.approx(normal, rel=1e-9)


@pytest.mark.parametrize(
    ("exponent", "tail", "bulk", "alpha", "cutoff", "sigma", "distance"),
    [
        # what WeightWatcher 0.7.7 says of a diagonal matrix with these squared singular values
        (2.5, 150, 0, 2.508519, 1.002228, 0.123170, 0.004487),
        (3.0, 60, 90, 3.008174, 0.960000, 0.249083, 0.009916),
        (4.5, 100, 50, 4.529913, 1.001433, 0.352991, 0.006733),
    ],
)
def test_spectra_have_the_exponents_of_weightwatcher(
    exponent: float,
    tail: int,
    bulk: int,
    alpha: float,
    cutoff: float,
    sigma: float,
    distance: float,
) -> None:
    beyond = (1 - (torch.arange(tail).double() + 0.5) / tail).pow(-1 / (exponent - 1))
    below = 0.2 + 0.8 * (torch.arange(bulk).double() + 0.5) / max(bulk, 1)
    spectrum = torch.cat([beyond, below])
    same = fit_power_law(spectrum, cutoff=cutoff * (1 - 1e-6))
    assert same.exponent == pytest.approx(alpha, abs=2e-5)
    assert same.standard_error == pytest.approx(sigma, abs=1e-5)
    # it measures the distance on one side of the steps; the other side is at most a step farther
    assert distance - 1e-5 <= same.distance <= distance + 1 / same.tail
    # and of all cutoffs ours is at least as close
    assert fit_power_law(spectrum).distance <= same.distance + 1e-5
