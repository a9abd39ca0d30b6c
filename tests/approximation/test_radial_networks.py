"""Functions of a length with two hidden layers, and the comparison of depths."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.depth.comparison import compare_depth, equal_widths
from torchtheory.approximation.depth.radial import (
    RadialShells,
    absolute_sum_network,
    radial_shells,
    squared_length_network,
    squared_length_size,
    sum_over_coordinates,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.nets.feedforward import mlp, parameter_count


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_radial_networks_keep_their_bound(d, k, m, seed):
    # teeth of slope 2: no smoothness to profit from
    def teeth(s):
        return ((s * 1.7) % 1.0 - 0.5).abs() * 2 / 1.7

    made = squared_length_network(teeth, d, k, m, lipschitz=2.0)
    x = torch.rand(300, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert (made(x) - teeth(x.square().sum(1))).abs().max() <= made.bound + 1e-12
    assert made.bound == pytest.approx(2 * d * (1 / (4 * k * k) + 1 / (2 * m)))


@given(st.floats(0.1, 10), st.integers(1, 50), st.floats(0.001, 1.0))
def test_sizes_give_the_error(lipschitz, d, error):
    k, m = squared_length_size(lipschitz, d, error)
    assert lipschitz * d * (1 / (4 * k * k) + 1 / (2 * m)) <= error * (1 + 1e-6)


def test_sum_over_coordinates_with_two_hidden_layers():
    f = mlp([1, 3, 4, 2], generator=1)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        wanted = sum(f(x[:, i : i + 1]) for i in range(5))
    assert torch.allclose(sum_over_coordinates(f, 5)(x), wanted)


@given(st.integers(1, 8), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_broken_lines_of_the_one_norm_are_exact(d, seed):
    g = torch.Generator().manual_seed(seed)
    knots = torch.rand(4, generator=g, dtype=torch.float64).sort().values * d + torch.arange(4)
    values = torch.randn(4, generator=g, dtype=torch.float64)
    net = absolute_sum_network(knots, values, d)
    x = torch.randn(50, d, generator=g, dtype=torch.float64)
    wanted = np.interp(x.abs().sum(1).numpy(), knots.numpy(), values.numpy())
    assert torch.allclose(net(x)[:, 0], torch.as_tensor(wanted), atol=1e-10)


def test_shells_by_hand():
    shells = RadialShells(
        2, torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([1.0, -1.0]).double()
    )
    x = torch.tensor([[0.0, 0.0], [0.6, 0.6], [1.0, 0.0], [0.0, 1.9], [2.0, 0.0]]).double()
    assert shells(x).tolist() == [1, 1, -1, -1, 0]
    net = shells.network(400, 1e-3)
    assert torch.allclose(net(x)[:, 0], shells(x), atol=1e-9)
    assert [m.out_features for m in net if isinstance(m, nn.Linear)] == [800, 4, 1]


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_shells_are_met_away_from_their_radii(d, number, seed):
    shells = radial_shells(d, number, 1.5, generator=seed)
    pieces, ramp = 30, 1e-3
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(200, d, generator=g, dtype=torch.float64)
    x = 1.5 * torch.rand(200, 1, generator=g).double() * x / x.norm(dim=1, keepdim=True)
    gap = shells.radii[1:].square() - x.square().sum(1, keepdim=True)
    clear = ~((gap >= 0) & (gap <= shells.blur(pieces, ramp))).any(1)
    away = (shells.network(pieces, ramp)(x)[:, 0] - shells(x)).abs()
    assert not clear.any() or away[clear].max() < 1e-8


@given(st.integers(1, 40), st.integers(60, 5000))
def test_equal_widths_fill_the_budget(d, budget):
    shallow, deep = equal_widths(d, budget)
    for widths, wider in (
        ((d, shallow, 1), (d, shallow + 1, 1)),
        ((d, deep, deep, 1), (d, deep + 1, deep + 1, 1)),
    ):
        assert parameter_count(widths) <= budget < parameter_count(wider)


def test_comparison_is_reproducible_and_refuses():
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
    runs = [
        compare_depth(lambda x: x[:, 0].abs(), x, x, parameters=80, steps=20, generator=4)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].shallow, runs[1].shallow)
    assert len(runs[0].deep) == 3
    with pytest.raises(InvalidInput):
        compare_depth(lambda x: 0 * x[:, 0], x, x, parameters=80)
    with pytest.raises(NonFinite):
        compare_depth(lambda x: x[:, 0] / 0, x, x, parameters=80)
    with pytest.raises(InvalidInput):
        equal_widths(10, 5)
    with pytest.raises(ShapeMismatch):
        compare_depth(lambda x: x[:, 0], x, x[:, 0], parameters=80)


def test_refusals():
    with pytest.raises(ShapeMismatch):
        sum_over_coordinates(mlp([2, 3, 1]), 2)
    with pytest.raises(InvalidInput):
        squared_length_network(torch.sin, 2, 3, 4, lipschitz=-1.0)
    with pytest.raises(InvalidInput):
        radial_shells(2, 0, 1.0)
    with pytest.raises(InvalidInput):
        squared_length_size(1.0, 2, math.nan)
    shells = RadialShells(2, torch.tensor([0.0, 1, 2]).double(), torch.tensor([1.0, -1]).double())
    with pytest.raises(InvalidInput):
        shells.network(10, 3.5)
    with pytest.raises(ShapeMismatch):
        shells(torch.zeros(2, 3).double())
