"""Staircases, broken lines, boxes: worked cases, bounds, refused input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.certificates import (
    Approximant,
    as_box,
    mean_error,
    measured_error,
    network_size,
    sup_distance,
)
from torchtheory.approximation.piecewise.boxes import (
    box_indicator,
    box_network,
    cell_centers,
    folklore_size,
    margin_volume,
    piecewise_constant,
    relu_bump,
    wall_distance,
)
from torchtheory.approximation.piecewise.interpolants import relu_interpolant, threshold_interpolant
from torchtheory.approximation.polynomials.squaring import square_network
from torchtheory.approximation.targets import values_of
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnsupportedModel


@settings(max_examples=25, deadline=None)
@given(st.floats(0.5, 9), st.floats(-3, 3), st.floats(0.05, 1), st.floats(-2, 2), st.floats(0.2, 3))
def test_staircase_keeps_its_promise(
    rho: float, phase: float, error: float, low: float, length: float
) -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(rho * x + phase)

    for value_at in ("left", "middle"):
        made = threshold_interpolant(g, rho, error, (low, low + length), value_at=value_at)  # type: ignore[arg-type]
        assert measured_error(g, made, most_points=4096).lower <= made.bound + 1e-9
        assert made.size.units == math.ceil(rho * (low + length - low) / error)
    line = relu_interpolant(g, 7, (low, low + length), lipschitz=rho, curvature=rho**2)
    assert measured_error(g, line, most_points=4096).lower <= line.bound + 1e-9


def test_broken_line_is_numpys() -> None:
    x = torch.linspace(-1, 2, 101, dtype=torch.float64)
    made = relu_interpolant(torch.exp, 5, (-1.0, 2.0), lipschitz=8.0)
    knots = np.linspace(-1, 2, 6)
    np.testing.assert_allclose(
        made(x).numpy(), np.interp(x.numpy(), knots, np.exp(knots)), atol=1e-12
    )


def test_staircase_by_hand() -> None:
    made = threshold_interpolant(lambda x: x**2, 2.0, 1.0)
    x = torch.tensor([0.0, 0.49, 0.5, 1.0]).double()
    assert made(x).tolist() == [0.0, 0.0, 0.25, 0.25]
    found = measured_error(lambda x: x**2, made)
    assert (found.lower, found.where.item(), found.upper) == (0.75, 1.0, math.inf)


def test_exact_comparison_of_broken_lines() -> None:
    class Tent(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x - 1 / 3)

    made = relu_interpolant(lambda x: torch.relu(x - 1 / 3), 2, lipschitz=1.0)
    found = measured_error(Tent(), made)
    # the line through (0, 0) and (1/2, 1/6) is 1/9 at the kink
    assert found.lower == found.upper
    assert found.lower == pytest.approx(1 / 9, abs=1e-12)
    assert found.where.item() == pytest.approx(1 / 3, abs=1e-12)


def test_sup_distance_and_its_certificate() -> None:
    found = sup_distance(lambda x: x, lambda x: x**2, (0.0, 1.0), lipschitz=1.0)
    assert found.lower == 0.25
    assert found.upper == pytest.approx(0.25 + found.resolution / 2)
    assert sup_distance(lambda x: x, lambda x: x**2, (0.0, 1.0)).upper == math.inf
    square = sup_distance(lambda x: x[:, 0] * x[:, 1], lambda x: 0 * x[:, 0], ((-1, 1), (-1, 3)))
    assert square.lower == 3.0
    with pytest.raises(NonFinite):
        sup_distance(torch.log, torch.exp, (0.0, 1.0))
    with pytest.raises(ShapeMismatch):
        values_of(lambda x: x.sum(), torch.ones(3, 1))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.floats(0.02, 0.4), st.integers(0, 2**16))
def test_box_is_one_inside_and_zero_beyond(d: int, ramp: float, seed: int) -> None:
    box = [(0.0, 0.5), (-0.2, 0.9), (0.3, 0.4)][:d]
    x = (
        2 * torch.rand(400, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        - 0.6
    )
    y = box_indicator(box, ramp)(x)[:, 0]
    away = wall_distance(x, box)
    torch.testing.assert_close(y[away == 0], torch.ones_like(y[away == 0]))
    torch.testing.assert_close(y[away >= ramp], torch.zeros_like(y[away >= ramp]))
    assert (y >= -1e-12).all()
    assert (y <= 1 + 1e-12).all()
    size = network_size(box_indicator(box, ramp))
    assert (size.depth, size.units) == (3, 4 * d + 1)


def test_box_network_shares_walls() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return x[:, 0] - x[:, 1] ** 2

    x = torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = box_network(g, 2, 3.0, 0.4, shared=False)
    shared = box_network(g, 2, 3.0, 0.4)
    torch.testing.assert_close(own(x), shared(x))
    assert own.size.units == folklore_size(3.0, 0.4, 2).units
    assert shared.size.units == folklore_size(3.0, 0.4, 2).shared_units
    assert mean_error(g, shared, 2000, generator=0).high <= shared.bound
    zero = box_network(lambda x: 0 * x[:, 0], 2, 1.0, 0.5)
    assert not zero(x).any()


def test_piecewise_constant_cells() -> None:
    made = piecewise_constant(lambda x: x, 4, 1.0, (0.0, 2.0))
    assert made(torch.tensor([0.0, 0.49, 0.5, 2.0]).double()).tolist() == [0.25, 0.25, 0.75, 1.75]
    assert made.bound == 0.25
    assert measured_error(lambda x: x, made).lower == pytest.approx(0.25, abs=1e-12)
    assert cell_centers(((0.0, 1.0), (0.0, 2.0)), 1).tolist() == [[0.5, 1.0]]
    assert margin_volume([2.0], 0.5) == 1.0


def test_refused() -> None:
    for wrong in ({"lipschitz": 0.0}, {"error": -1.0}, {"interval": (1.0, 0.0)}):
        with pytest.raises(InvalidInput):
            threshold_interpolant(torch.sin, **{"lipschitz": 1.0, "error": 0.1, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        threshold_interpolant(torch.sin, 1.0, 0.1, value_at="right")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        relu_interpolant(torch.sin, 3)
    with pytest.raises(InvalidInput):
        relu_bump(0.0, 1.0, 0.0)
    with pytest.raises(InvalidInput):
        as_box([(0.0, math.inf)])
    with pytest.raises(InvalidInput):
        as_box("ab")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel):
        network_size(nn.ReLU())
    with pytest.raises(NonFinite):
        threshold_interpolant(lambda x: 1 / x, 1.0, 0.1)
    made = threshold_interpolant(torch.sin, 1.0, 0.1)
    with pytest.raises(ShapeMismatch):
        made(torch.ones(3, 2).double())
    assert isinstance(made, Approximant)


def test_a_grid_that_meets_every_knot_is_not_believed() -> None:
    knots = torch.linspace(0, 1, 2049, dtype=torch.float64)
    teeth = (torch.arange(2049) % 2).double()

    def zigzag(x: torch.Tensor) -> torch.Tensor:
        i = torch.searchsorted(knots, x).clamp(1, 2048)
        return torch.lerp(teeth[i - 1], teeth[i], (x - knots[i - 1]) * 2048)

    found = sup_distance(zigzag, torch.zeros_like, (0.0, 1.0))
    assert found.lower > 0.99


@pytest.mark.parametrize("frequency", [3**7, 4096, 5120, 65536])
@pytest.mark.parametrize("dimension", [1, 2])
def test_no_period_hides_from_the_points(frequency: int, dimension: int) -> None:
    def waves(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(frequency * math.pi * x).prod(1)

    box = ((0.0, 1.0),) * dimension
    found = sup_distance(waves, lambda x: 0 * x[:, 0], box)
    assert 0.99 < found.lower <= 1 + 1e-12
    assert found.upper == math.inf
    certified = sup_distance(waves, lambda x: 0 * x[:, 0], box, lipschitz=frequency * math.pi)
    assert certified.lower <= 1 + 1e-12
    assert certified.upper >= 1


@pytest.mark.parametrize("levels", [3, 8, 11, 13])
def test_a_sawtooth_between_its_bounds(levels: int) -> None:
    made = square_network(levels)
    true = 4.0 ** -(levels + 1)
    found = measured_error(torch.square, made, curvature=2.0)
    assert 0.999 * true < found.lower <= true * (1 + 1e-6)
    assert true * (1 - 1e-6) <= found.upper < 1.01 * true
    by_slopes = measured_error(torch.square, made, lipschitz=2.0)
    assert true * (1 - 1e-6) <= by_slopes.upper < math.inf


def test_upper_bounds_in_general() -> None:
    smooth = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    box = ((0.0, 1.0), (-1.0, 1.0))
    made = Approximant(smooth, 1.0, box, "L-071")
    found = measured_error(lambda x: torch.sin(3 * x[:, 0]), made, lipschitz=3.0, most_points=4096)
    fine = sup_distance(lambda x: torch.sin(3 * x[:, 0]), made, box)
    assert found.lower <= found.upper < math.inf
    assert fine.lower <= found.upper
    assert fine.upper == math.inf
    # steps have no Lipschitz constant, and a smooth or wide network no pieces
    steps = threshold_interpolant(torch.sin, 1.0, 0.1)
    for refused in (
        lambda: measured_error(torch.sin, steps, lipschitz=1.0),
        lambda: measured_error(lambda x: x[:, 0], made, curvature=0.0),
    ):
        with pytest.raises(UnsupportedModel):
            refused()
    with pytest.raises(InvalidInput):
        sup_distance(torch.sin, torch.cos, (0.0, 1.0), lipschitz=-1.0)
