"""Perfect splines as bumps, sums of them, and the labels they carry."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.memorization.label_coding import (
    label_function,
    read_labels,
    sawtooth_position,
    sine_frequency,
    sobolev_grid_norm,
)
from torchtheory.approximation.piecewise.bumps import BumpSum, SplineBump, cells_of
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.expressivity.folding import sawtooth_network


def test_the_bump_of_two_derivatives_by_hand() -> None:
    x = torch.tensor([0.0, 0.125, 0.25, 0.375, -0.375, 0.5]).double().unsqueeze(1)
    # parabolas of second derivative -16, 16: 1 - 8 t² inside a quarter, 8 (1/2 - t)² outside
    assert SplineBump(2)(x).tolist() == pytest.approx([1, 0.875, 0.5, 0.125, 0.125, 0])


@pytest.mark.parametrize("n", range(1, 9))
def test_derivatives_are_derivatives_and_within_their_norms(n: int) -> None:
    bump = SplineBump(n)
    x = torch.linspace(-0.6, 0.6, 20001, dtype=torch.float64).unsqueeze(1)
    step = float(x[1] - x[0])
    for k in range(n):
        values, slope = bump.derivative(x, (k,)), bump.derivative(x, (k + 1,))
        summed = values[0] + ((slope[1:] + slope[:-1]) / 2 * step).cumsum(0)
        assert (summed - values[1:]).abs().max() < 5e-3 * bump.derivative_norms[k]
        assert values.abs().max() <= bump.derivative_norms[k] * (1 + 1e-9)
        assert values.abs().max() >= bump.derivative_norms[k] * 0.99
    assert bump(x[x.abs().flatten() > 0.5]).abs().max() == 0


@pytest.mark.parametrize("n", range(1, 6))
def test_no_other_bump_of_the_support_has_a_smaller_top_derivative(n: int) -> None:
    t = np.linspace(-0.5, 0.5, 4001)
    for extra in (0, 1, 2):
        other = np.polynomial.Polynomial([1, 0, -4]) ** (n + extra)
        assert np.abs(other.deriv(n)(t)).max() >= SplineBump(n).derivative_norms[n] * (1 - 1e-6)


def test_the_norm_in_several_dimensions_is_the_maximum_over_all_derivatives() -> None:
    bump = SplineBump(3, 2)
    norms = bump.derivative_norms
    brute = max(
        math.prod(norms[k] for k in alpha)
        for alpha in itertools.product(range(4), repeat=2)
        if sum(alpha) <= 3
    )
    assert bump.sobolev_norm == pytest.approx(brute)
    assert SplineBump(2, 2).moment(2) == pytest.approx(SplineBump(2).moment(2) ** 2)


def test_moments_against_sums() -> None:
    x = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000 - 0.5
    for n in (1, 2, 5):
        values = SplineBump(n)(x.unsqueeze(1))
        assert SplineBump(n).moment(1) == pytest.approx(float(values.mean()), rel=1e-6)
        assert SplineBump(n).moment(2) == pytest.approx(float(values.square().mean()), rel=1e-6)


def test_dtype_follows_the_points() -> None:
    assert SplineBump(2)(torch.zeros(3, 1)).dtype == torch.float32
    index, _ = cells_of(torch.tensor([[0.4, 0.9]]), 10)
    assert index.tolist() == [49]


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 4), d=st.integers(1, 2), side=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_label_functions_hold_their_labels_inside_the_ball(
    n: int, d: int, side: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (side**d,), generator=generator)
    f = label_function(y, n, d)
    assert torch.equal(read_labels(f, f), y)
    assert sobolev_grid_norm(f, 11) <= 1 + 1e-9
    noise = torch.rand(len(y), generator=generator, dtype=torch.float64) - 0.5
    assert torch.equal(read_labels(lambda x: f(x) + 0.99 * f.height * noise, f), y)


def test_a_sum_is_its_bumps() -> None:
    v = torch.tensor([1.0, -2.0, 0.5]).double()
    f = BumpSum(v, 3, 0.1, SplineBump(2))
    x = torch.linspace(0, 1, 97, dtype=torch.float64)
    by_hand = sum(0.1 * v[i] * SplineBump(2)((3 * x - i - 0.5).unsqueeze(1)) for i in range(3))
    assert torch.allclose(f(x), torch.as_tensor(by_hand), atol=1e-15)
    assert torch.equal((-f)(x), -f(x))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_sines_hold_any_labels(labels: list[int]) -> None:
    theta = sine_frequency(torch.tensor(labels))
    read = [int(math.sin(theta * 2.0**-i) > 0) for i in range(1, len(labels) + 1)]
    assert read == labels


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=50))
def test_a_sawtooth_holds_any_labels(labels: list[int]) -> None:
    count = len(labels)
    x = sawtooth_position(torch.tensor(labels)) * 2.0 ** torch.arange(1 - count, 1).double()
    with torch.no_grad():
        values = sawtooth_network(count)(x[:, None])[:, 0]
    assert (values > 0.5).long().tolist() == labels
    # binary fractions of at most 52 digits, so nothing is rounded; the last one keeps them off 1/2
    assert (values - 0.5).abs().min() >= 2.0 ** -(count + 1)


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="at most 12"):
        SplineBump(13)
    with pytest.raises(InvalidInput, match="whole number"):
        SplineBump(0)
    with pytest.raises(ShapeMismatch, match="2 dimensions"):
        SplineBump(1, 2)(torch.zeros(3, 1))
    with pytest.raises(InvalidInput, match="up to order 1"):
        SplineBump(1).derivative(torch.zeros(3, 1), (2,))
    with pytest.raises(InvalidInput, match="power is 1 or 2"):
        SplineBump(1).moment(3)
    with pytest.raises(LabelOutOfRange):
        label_function(torch.tensor([0, 2]), 1)
    with pytest.raises(ShapeMismatch, match="do not fill"):
        label_function(torch.tensor([0, 1, 1]), 1, 2)
    with pytest.raises(ShapeMismatch):
        sine_frequency(torch.zeros(41))
    with pytest.raises(ShapeMismatch, match="from 1 to 50"):
        sawtooth_position(torch.zeros(51))
