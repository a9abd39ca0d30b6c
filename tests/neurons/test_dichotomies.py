"""Cover's count, the list of labelings, and the linear programs that confirm both."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.data.synthetic import xor
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.dichotomies import (
    capacity_curve,
    count_dichotomies,
    count_dichotomies_by_programs,
    cover_count,
    cover_fraction,
    in_general_position,
    realizable_dichotomies,
)
from torchtheory.neurons.separability import separate
from torchtheory.neurons.threshold_neuron import boolean_inputs


def gaussian(s: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(s, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 80), st.integers(1, 40))
def test_formula_recursion_and_distribution(s: int, n: int) -> None:
    count = cover_count(s, n)
    assert count == 2 * sum(math.comb(s - 1, i) for i in range(n))
    if n > 1:
        assert cover_count(s + 1, n) == count + cover_count(s, n - 1)
        assert cover_count(s + 1, n) > count
    assert cover_count(s, n, bias=True) == cover_count(s, n + 1)
    assert (count == 2**s) == (s <= n)
    assert cover_fraction(s, n) == pytest.approx(binom.cdf(n - 1, s - 1, 0.5), rel=1e-9)
    assert cover_fraction(2 * n, n) == 0.5


def test_known_counts() -> None:
    known = {(4, 2): 8, (4, 3): 14, (5, 3): 22, (6, 3): 32, (8, 4): 128}
    assert all(cover_count(*key) == value for key, value in known.items())


@pytest.mark.parametrize(("s", "n"), [(1, 3), (3, 3), (6, 2), (8, 3), (9, 4), (12, 5), (30, 2)])
def test_points_in_general_position(s: int, n: int) -> None:
    x = gaussian(s, n)
    assert in_general_position(x)
    found = realizable_dichotomies(x)
    assert len(found) == cover_count(s, n)
    assert torch.equal(torch.sign(x @ found.weights.T).T, found.labels)
    assert len(torch.unique(found.labels, dim=0)) == len(found)
    assert len(realizable_dichotomies(x[:, : n - 1] if n > 1 else x, bias=True)) == cover_count(
        s, n - 1 if n > 1 else n, bias=True
    )


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_position_against_linear_programs(seed: int, s: int, n: int, bias: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-1, 3, (s, n), generator=g).double()
    assert count_dichotomies(x, bias=bias) == count_dichotomies_by_programs(x, bias=bias)


def test_each_labeling_is_the_right_one() -> None:
    x = gaussian(6, 3, seed=4)
    listed = {tuple(row) for row in realizable_dichotomies(x).labels.tolist()}
    for labels in product((-1.0, 1.0), repeat=6):
        assert (labels in listed) == bool(separate(x, torch.tensor(labels), bias=False))


@pytest.mark.parametrize(("n", "count"), [(1, 4), (2, 14), (3, 104), (4, 1882)])
def test_threshold_functions_of_the_cube(n: int, count: int) -> None:
    assert count_dichotomies(boolean_inputs(n).double(), bias=True) == count


def test_the_two_missing_labelings_of_the_square() -> None:
    x, y = xor()
    found = realizable_dichotomies(x, bias=True)
    assert len(found) == 14
    assert not (found.labels == y).all(1).any()
    assert not (found.labels == -y).all(1).any()
    assert torch.equal(torch.sign(homogeneous(x) @ found.weights.T).T, found.labels)


def test_special_positions_have_fewer() -> None:
    x = gaussian(5, 3)
    parallel = torch.cat([x, -3 * x[:1]])
    assert not in_general_position(parallel)
    assert count_dichotomies(parallel) == cover_count(5, 3) < cover_count(6, 3)
    coplanar = torch.cat([x[:2], (x[0] + x[1]).unsqueeze(0), x[2:]])
    assert count_dichotomies(coplanar) < cover_count(6, 3)
    origin = torch.cat([x, torch.zeros(1, 3)])
    assert count_dichotomies(origin) == 0
    assert not in_general_position(origin)


def test_dtype_and_curve() -> None:
    found = realizable_dichotomies(gaussian(4, 2).float())
    assert found.labels.dtype == found.weights.dtype == torch.float32
    load, share = capacity_curve(20, largest_load=3.0)
    assert len(load) == 60
    assert share[39] == 0.5
    assert bool((share.diff() <= 0).all())


def test_bad_input_is_refused() -> None:
    for call in (
        lambda: cover_count(0, 2),
        lambda: cover_count(2, 0),
        lambda: cover_count(2.0, 1),
        lambda: realizable_dichotomies(gaussian(63, 1)),
        lambda: count_dichotomies_by_programs(gaussian(21, 2)),
        lambda: capacity_curve(3, largest_load=0.1),
        lambda: capacity_curve(3, largest_load=math.inf),
    ):
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(NonFinite):
        count_dichotomies(gaussian(3, 2) * math.nan)
