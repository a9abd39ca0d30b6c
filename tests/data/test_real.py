"""The small real data sets, and random splits."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.data.real import digits, split


def test_digits_are_scikit_learns() -> None:
    x, y = digits(torch.float64)
    raw = load_digits()
    assert torch.equal(x * 16, torch.as_tensor(raw.data))
    assert y.tolist() == raw.target.tolist()
    assert digits()[0].dtype == torch.float32


def test_split_is_a_partition_that_follows_the_seed() -> None:
    x, y = torch.arange(10.0)[:, None], torch.arange(10)
    train, test = split(x, y, 0.3, 5)
    assert (len(train[0]), len(test[0])) == (7, 3)
    assert sorted([*train[1].tolist(), *test[1].tolist()]) == list(range(10))
    assert torch.equal(train[0][:, 0].long(), train[1])
    assert torch.equal(split(x, y, 0.3, 5)[0][1], train[1])
    assert not torch.equal(split(x, y, 0.3, 6)[0][1], train[1])
    generator, state = torch.Generator().manual_seed(5), torch.get_rng_state()
    assert torch.equal(split(x, y, 0.3, generator)[0][1], train[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_refused() -> None:
    x, y = torch.zeros(4, 1), torch.zeros(4)
    for fraction in (-0.1, 0.0, 1.0, 1.5, math.nan):
        with pytest.raises(InvalidInput, match="test_fraction"):
            split(x, y, fraction)
    with pytest.raises(ShapeMismatch, match="4 inputs but 3 targets"):
        split(x, y[:3], 0.5)
