"""Columns that carry nothing, repeat another, or give the label away."""

from __future__ import annotations

import pytest
import torch

from torchtheory.core.errors import ShapeMismatch
from torchtheory.data.columns import (
    common_share,
    constant_columns,
    copied_columns,
    telling_columns,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_constant_columns_and_common_values() -> None:
    x = normal(100, 4)
    x[:, 2] = -7.5
    x[5:, 3] = 0.0
    assert constant_columns(x) == [2]
    assert common_share(x)[2:].tolist() == pytest.approx([1.0, 0.95])
    with pytest.raises(ShapeMismatch):
        constant_columns(x.reshape(100, 2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_in_other_units(dtype: torch.dtype) -> None:
    x = normal(300, 6).to(dtype)
    x[:, 3] = 100 - 2 * x[:, 1]
    x[:, 5] = x[:, 0]
    assert copied_columns(x) == [(0, 5), (1, 3)]
    x[:, 5] += 1e-2 * normal(300, seed=1)  # strongly correlated, and no copy
    assert copied_columns(x) == [(1, 3)]
    assert copied_columns(x[:2]) == []


def test_categories_and_rare_values_are_no_copies() -> None:
    flag = (normal(200) > 0).float()
    assert copied_columns(torch.stack([flag, 1 - flag], 1)) == []
    assert copied_columns(torch.stack([flag, 3 * flag], 1)) == [(0, 1)]
    rare = torch.zeros(200, 2)
    rare[3] = 1.0
    assert copied_columns(rare) == []


def test_telling_columns_of_classes() -> None:
    x = normal(200, 4)
    y = (x[:, 1] > 0).long()
    (found,) = telling_columns(x, y)
    assert found.column == 1
    assert 0.5 < found.explained < 0.8  # 2 / pi of the variance
    x[:, 3] = 5.0 - y
    best = max(telling_columns(x, y), key=lambda c: c.explained)
    assert best.column == 3
    assert best.explained == pytest.approx(1.0)
    assert telling_columns(x, torch.zeros(200).long()) == []


def test_few_samples_separate_by_chance() -> None:
    x, y = normal(8, 400), torch.arange(8) % 2
    low, high = x[y == 0], x[y == 1]
    by_chance = (low.amax(0) < high.amin(0)) | (high.amax(0) < low.amin(0))
    assert bool(by_chance.any())
    assert telling_columns(x, y) == []


def test_telling_columns_of_numbers() -> None:
    x = normal(100, 3)
    (found,) = telling_columns(x, 3 - 2 * x[:, 2].double())
    assert found.column == 2
    assert found.explained == pytest.approx(1.0)
    assert telling_columns(x, x.sum(1).double()) == []
    assert telling_columns(x, torch.ones(100).double()) == []
