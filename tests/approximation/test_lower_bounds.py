"""What no network of a size can do: continuous parameters, labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.piecewise.bumps import BumpSum
from torchtheory.approximation.rates.lower_bounds import (
    antipodal_witness,
    continuous_selection_floor,
    continuous_selection_minimum,
    label_cells,
    linear_witness,
    selection_cells,
    vc_minimum_weights,
    weights_vc_bound,
)
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch


@given(parameters=st.integers(0, 10**6), d=st.integers(1, 6))
def test_cells_are_the_first_number_with_more_cells_than_parameters(
    parameters: int, d: int
) -> None:
    m = selection_cells(parameters, d)
    assert m**d > parameters
    assert m == 1 or (m - 1) ** d <= parameters


@given(error=st.floats(1e-6, 0.4), n=st.integers(1, 4), d=st.integers(1, 3))
def test_minimum_is_the_first_number_the_floor_allows(error: float, n: int, d: int) -> None:
    needed = continuous_selection_minimum(error, n, d)
    assert continuous_selection_floor(needed, n, d) <= error * (1 + 1e-6)
    if needed > 0:
        assert continuous_selection_floor(needed - 1, n, d) > error * (1 - 1e-6)


def test_lipschitz_floor_by_hand() -> None:
    # three numbers, four cells, a hat of slope 2 on each: 2 * (1/8)
    assert continuous_selection_floor(3, 1, 1, lipschitz=2.0) == 0.25
    assert continuous_selection_minimum(0.25, 1, 1, lipschitz=2.0) == 3


@settings(max_examples=15, deadline=None)
@given(m=st.integers(1, 8), n=st.integers(1, 3), d=st.integers(1, 2), seed=st.integers(0, 10**6))
def test_linear_encoders_confuse_a_function_with_its_negative(
    m: int, n: int, d: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.rand(3 * m, d, generator=generator, dtype=torch.float64)
    mix = torch.randn(m, 3 * m, generator=generator, dtype=torch.float64)

    def encode(f: BumpSum) -> torch.Tensor:
        return mix @ f(nodes)

    w = linear_witness(encode, m, n, d)
    assert w.residual < 1e-10
    assert float(w.function(w.peaks).abs().max()) == pytest.approx(w.radius)
    assert w.radius == pytest.approx(continuous_selection_floor(m, n, d))
    error = w.worst_error(encode, lambda code: lambda x: (x.sum(1) * code.sum()).sin())
    assert error >= w.radius - 1e-12


def test_a_nonlinear_encoder_is_met() -> None:
    nodes = torch.tensor([[0.1], [0.4], [0.8]]).double()

    def encode(f: BumpSum) -> torch.Tensor:
        values = 20 * f(nodes)
        return values.exp() - values.flip(0) ** 3

    with pytest.raises(InvalidInput, match="not linear"):
        linear_witness(encode, 3, 1)
    w = antipodal_witness(encode, 3, 1, generator=1)
    assert w.residual < 1e-8


def test_a_nonlinear_encoder_in_the_plane_is_met() -> None:
    nodes = torch.tensor([[0.2, 0.3], [0.7, 0.6], [0.4, 0.9]]).double()
    w = antipodal_witness(lambda f: torch.atan(9 * f(nodes)), 3, 1, dimension=2, generator=0)
    assert w.function(w.peaks).shape == (4,)  # more cells than parameters
    assert w.residual < 1e-8


def test_an_encoder_that_jumps_is_not_claimed_to_be_met() -> None:
    def sign(f: BumpSum) -> torch.Tensor:
        return torch.where(f(torch.tensor([[0.25]]).double()) >= 0, 1.0, -1.0)

    with pytest.raises(NotConverged, match="2 attempts"):
        antipodal_witness(sign, 1, 1, attempts=2)


@given(error=st.floats(1e-9, 1e-3), n=st.integers(1, 3), d=st.integers(1, 4))
def test_the_least_weights_are_the_first_that_can_shatter(error: float, n: int, d: int) -> None:
    points = label_cells(error, n, d) ** d
    weights = vc_minimum_weights(error, n, d)
    assert weights_vc_bound(weights) >= points
    assert weights == 1 or weights_vc_bound(weights - 1) < points
    assert vc_minimum_weights(error, n, d, layers=3) >= max(weights, 3)


def test_levels_are_told_apart() -> None:
    # hat of height 1/2N: three errors of 0.01 fit under it up to N = 16
    assert label_cells(0.01, 1, 1) == 16
    assert label_cells(0.9, 1, 1) == 0
    assert vc_minimum_weights(0.9, 1, 1) == 1


def test_high_dimension_has_exact_numbers() -> None:
    assert vc_minimum_weights(0.01, 1, 1000) > 10**600


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="smoothness 1"):
        continuous_selection_floor(3, 2, 1, lipschitz=1.0)
    with pytest.raises(InvalidInput, match="derivative is 0"):
        label_cells(0.1, 1, 1, derivative=1)
    with pytest.raises(InvalidInput, match="0 or 1"):
        weights_vc_bound(3, derivative=2)
    with pytest.raises(ShapeMismatch, match="2 numbers"):
        linear_witness(lambda f: torch.zeros(3), 2, 1)
    with pytest.raises(NonFinite):
        linear_witness(lambda f: torch.full((2,), torch.nan), 2, 1)
