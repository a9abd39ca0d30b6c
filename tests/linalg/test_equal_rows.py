"""Rows that are equal up to rounding."""

from __future__ import annotations

import pytest
import torch

from torchtheory.core.random import as_generator, gaussian
from torchtheory.linalg.equal_rows import copied_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_equal_rows_all_but_one_are_copies(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 30, generator=draw, dtype=dtype)
    assert not copied_rows(rows, 1e-5).any()
    rows[[7, 100, 101]] = rows[3].clone()
    rows[200] = 5 * rows[3]  # parallel, and no copy
    copied = copied_rows(rows, 1e-5)
    assert int(copied.sum()) == 3
    assert set(copied.nonzero().flatten().tolist()) < {3, 7, 100, 101}


@pytest.mark.parametrize(("off", "copies"), [(0.9e-3, 1), (1.1e-3, 0)])
def test_how_near_is_relative_to_the_length(off: float, copies: int) -> None:
    rows = torch.tensor([[100.0, 0.0], [100.0, 100 * off], [-3.0, 1.0]], dtype=torch.float64)
    assert int(copied_rows(rows, 1e-3).sum()) == copies


def test_few_rows_and_none() -> None:
    assert copied_rows(torch.zeros(0, 3), 1e-5).shape == (0,)
    assert copied_rows(torch.ones(1, 3), 1e-5).tolist() == [False]
    assert int(copied_rows(torch.ones(20, 3), 1e-5).sum()) == 19


def test_copies_in_a_row_count_each() -> None:
    """The third is a copy of the second, though too far from the first."""
    rows = torch.tensor([[100.0, 0.0], [100.09, 0.0], [100.18, 0.0]], dtype=torch.float64)
    assert int(copied_rows(rows, 1e-3).sum()) == 2


def test_a_row_between_two_copies_hides_neither() -> None:
    """Its projection lies between theirs, and it is far from both."""
    first = gaussian(3, 4, generator=as_generator(0), dtype=torch.float64)[:, 0]
    first = first / first.norm()
    across = torch.linalg.svd(first[None]).Vh[1]  # orthogonal to the first direction
    row = 5 * first
    rows = torch.stack([row, row + 1e-6 * first, row + 0.5e-6 * first + 2 * across])
    assert copied_rows(rows, 1e-5).tolist() in ([True, False, False], [False, True, False])
