"""The squaring network against the interpolant, and its recurrent form against torch's RNN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.polynomials.squaring import (
    RecurrentSquare,
    recurrent_square,
    square_network,
    squaring_levels,
)
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.expressivity.pieces import affine_pieces


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_it_is_the_interpolant_of_the_parabola(levels: int) -> None:
    x = np.linspace(0, 1, 1237)
    knots = np.linspace(0, 1, 2**levels + 1)
    expected = np.interp(x, knots, knots**2)
    found = square_network(levels)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-15)
    pieces = affine_pieces(square_network(levels).network, 0.0, 1.0)
    np.testing.assert_allclose(pieces.kinks.numpy(), knots[1:-1], atol=1e-15)


def test_one_level_by_hand() -> None:
    square = square_network(1)  # x - hat(x) / 4
    x = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    assert square(x).tolist() == [0.125, 0.25, 0.625]
    assert square.size.parameters == 7


@given(st.floats(0, 1), st.integers(1, 12))
def test_error_is_one_sided_and_bounded(x: float, levels: int) -> None:
    a = square_network(levels)
    gap = a(torch.tensor([x], dtype=torch.float64)).item() - x * x
    assert -1e-15 <= gap <= a.bound + 1e-15


@given(st.floats(0, 1), st.integers(1, 15))
@settings(max_examples=30)
def test_recurrent_network_gives_the_same(x: float, steps: int) -> None:
    point = torch.tensor([x], dtype=torch.float64)
    gap = recurrent_square(steps)(point) - square_network(steps)(point)
    assert gap.abs().item() <= 1e-15


def test_recurrent_network_is_a_torch_rnn() -> None:
    steps = 6
    ours = RecurrentSquare(steps)
    rnn = torch.nn.RNN(2, 4, nonlinearity="relu", bias=False, batch_first=True).double()
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(ours.step.weight)
        rnn.weight_ih_l0.copy_(torch.cat([ours.start.weight, ours.start.bias[:, None]], 1))
    x = torch.rand(20, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    signal = torch.zeros(20, steps, 2, dtype=torch.float64)  # (x, 1) first, silence afterwards
    signal[:, 0] = torch.cat([x, torch.ones_like(x)], 1)
    with torch.no_grad():
        expected = ours.read(rnn(signal)[0][:, -1])
    torch.testing.assert_close(ours(x), expected, atol=1e-15, rtol=0)


@given(st.floats(1e-9, 0.5), st.floats(0.1, 10.0))
def test_levels_are_the_fewest(error: float, scale: float) -> None:
    n = squaring_levels(error, scale)
    assert scale * 4.0 ** -(n + 1) <= error
    assert n == 1 or scale * 4.0**-n > error * (1 - 1e-12)


@pytest.mark.parametrize("levels", [0, -1, 1.5, True])
def test_bad_levels_are_refused(levels: object) -> None:
    for build in (square_network, recurrent_square):
        with pytest.raises((InvalidInput, InvalidType), match="whole number"):
            build(levels)  # type: ignore[operator]


@pytest.mark.parametrize("error", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_errors_are_refused(error: float) -> None:
    with pytest.raises(InvalidInput, match="positive"):
        squaring_levels(error)
