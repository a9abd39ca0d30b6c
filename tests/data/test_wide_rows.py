"""What is computed in parts is what is computed at once, and wide rows are not copied."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchtheory.data import columns, wide_rows
from torchtheory.data.columns import common_share, telling_columns
from torchtheory.data.neighbors import comparable, standardizer
from torchtheory.data.shift import column_shift


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_rows, "AT_ONCE", 50)
    monkeypatch.setattr(columns, "AT_ONCE", 50)


def test_parts_are_the_rows_in_order(few_at_once: None) -> None:
    x = normal(13, 4, 5)
    found = list(wide_rows.parts(x))
    assert [len(part) for part in found] == [2] * 6 + [1]
    assert torch.equal(torch.cat(found), x.flatten(1))
    assert all(part.data_ptr() >= x.data_ptr() for part in found)  # views of it
    assert len(list(wide_rows.parts(normal(3, 80)))) == 3  # one row at a time, if need be


def test_columns_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(120, 3, 4), 2 * normal(90, 3, 4, seed=1) + 1
    labels = torch.arange(120) % 3, torch.arange(90) % 2 * 3  # one class in both, two in neither
    whole = column_shift(x, y, labels)
    monkeypatch.setattr(wide_rows, "AT_ONCE", 50)
    found = column_shift(x, y, labels)
    for name in ("columns", "shift", "shift_p_value", "ratio", "ratio_p_value"):
        assert torch.allclose(getattr(found, name), getattr(whole, name), rtol=1e-9), name
    # samples of classes that are in one of them only count for nothing
    of_both = column_shift(x[labels[0] == 0], y[labels[1] == 0])
    assert torch.allclose(found.shift, of_both.shift)
    assert torch.allclose(found.ratio, of_both.ratio)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_telling_columns_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(60, 9)
    x[:, 4] = 3.0
    labels = (x[:, 7] > 0).long() if kind == "classes" else 2 * x[:, 7] - 1
    whole = telling_columns(x, labels)
    assert [c.column for c in whole] == [7]
    monkeypatch.setattr(columns, "AT_ONCE", 120)
    (found,) = telling_columns(x, labels)
    assert found.column == 7
    assert found.explained == pytest.approx(whole[0].explained)


def test_scales_and_components_in_parts(few_at_once: None) -> None:
    x = normal(200, 100) * torch.linspace(0.1, 10, 100)
    z = standardizer(x)(x)
    assert torch.allclose(z, ((x - x.mean(0)) / x.std(0)).clamp(-3, 3), atol=1e-4)
    rows = comparable(x)(x)
    assert rows.shape == (200, 64)
    # components of standardized rows: of the same lengths, but for what 36 directions hold
    assert float(rows.square().sum() / z.square().sum()) > 0.64


def test_of_wide_rows_only_some_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(500, 3, 100)
    monkeypatch.setattr(wide_rows, "COPIED", 40 * 300)
    assert wide_rows.rows_within(500, 300) == 40
    assert wide_rows.rows_within(500, 300, least=65) == 65
    z = standardizer(x)(x)
    assert float(z.square().mean()) == pytest.approx(1, abs=0.1)  # one scale, from 40 rows
    assert comparable(x)(x).shape == (500, 64)
    assert common_share(x.flatten(1)).shape == (300,)


def test_a_class_of_one_sample_does_not_hide_what_varies() -> None:
    """Its values are so large that all others would be rounding beside their sum."""
    x, y = normal(200, 2), normal(80, 2, seed=1)
    classes = torch.zeros(200).long()
    x[100:], classes[100:] = 1e7, 5
    found = column_shift(x, y, (classes, torch.zeros(80).long()))
    assert found.columns.tolist() == [0, 1]
    assert bool((found.shift.abs() < 1).all())
