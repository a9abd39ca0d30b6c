"""The table of derivatives by matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.primer.matrix_calculus import (
    derivative_error,
    draw_letters,
    matrix_derivatives,
    verify_derivative,
)

size = st.integers(1, 5)


@given(st.sampled_from(list(matrix_derivatives())), size, size, size, st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_row_against_finite_differences(name, k, m, n, seed):
    row = matrix_derivatives()[name]
    letters = draw_letters(row, {"k": k, "m": m, "n": n}, seed)
    assert derivative_error(row, letters) < 1e-10
    closed = row.slope(letters)
    assert closed.shape == letters[row.by].shape
    at = letters[row.by]
    for entry in range(min(3, at.numel())):
        unit = torch.zeros(at.numel(), dtype=at.dtype)
        unit[entry] = 1e-5
        ends = [row.value({**letters, row.by: at + s * unit.view_as(at)}) for s in (1, -1)]
        slope = float(ends[0] - ends[1]) / 2e-5
        assert slope == pytest.approx(float(closed.reshape(-1)[entry]), abs=1e-5, rel=1e-6)


def test_by_hand():
    row = matrix_derivatives()["least-squares"]
    letters = {
        "A": torch.tensor([[1.0, 2.0]]),
        "x": torch.tensor([1.0, 1.0]),
        "y": torch.tensor([5.0]),
    }
    assert row.slope(letters).tolist() == [[-4.0, -4.0]]


def test_bad_input_is_refused():
    with pytest.raises(UnknownName, match="quadratic-form"):
        verify_derivative("quadratic-fom")
    with pytest.raises(InvalidInput, match="size n"):
        draw_letters(matrix_derivatives()["trace"], {"m": 2})
    row = matrix_derivatives()["trace"]
    with pytest.raises(InvalidInput, match="letter A"):
        derivative_error(row, {"X": torch.ones(2, 3)})
    with pytest.raises(ShapeMismatch, match="size m"):
        derivative_error(row, {"X": torch.ones(2, 3), "A": torch.ones(3, 4)})
    with pytest.raises(InvalidInput, match="trials"):
        verify_derivative("trace", trials=0)
