"""Equal rows: found by their hashes, and more of them than chance explains."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.core.intervals import clopper_pearson
from torchtheory.data.duplicates import equal_rows, row_digests, shared_rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_groups_are_those_of_a_direct_comparison(rows: list[tuple[int, int]]) -> None:
    found = equal_rows(row_digests(torch.tensor(rows)))
    direct = [[k for k, row in enumerate(rows) if row == key] for key in dict.fromkeys(rows)]
    assert found == [g for g in direct if len(g) > 1]


def test_digests_see_all_parts_and_types() -> None:
    ids, weight = torch.tensor([[1, 2], [1, 2], [1, 2]]), torch.tensor([0.5, 0.5, 0.25])
    a, b, c = row_digests(ids, weight)
    assert a == b != c
    images = torch.rand(2000, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images[1999] = images[3]
    assert equal_rows(row_digests(images)) == [[3, 1999]]
    assert equal_rows(row_digests(images.bfloat16()[[0, 1, 0]])) == [[0, 2]]
    with pytest.raises(ShapeMismatch):
        row_digests(ids, weight[:2])


def test_shared_rows_by_hand() -> None:
    train, test = torch.tensor([5.0, 6.0, 5.0, 7.0]), torch.tensor([1.0, 5.0, 7.0])
    found = shared_rows(row_digests(train), row_digests(test))
    assert (found.test, found.train) == ([1, 2], [0, 3])
    assert shared_rows(row_digests(train), row_digests(test[:1])).p_value == 1.0
    with pytest.raises(EmptyData):
        shared_rows(row_digests(train), [])


def test_the_p_value_of_pairs_is_that_of_splitting_them() -> None:
    """Four pairs and twelve other rows, each pair split: the chance by counting."""
    n, pairs = 20, 4
    train = row_digests(torch.arange(10.0))
    test = row_digests(torch.cat([torch.arange(4.0), torch.arange(20.0, 26.0)]))
    rest = n - 2 * pairs
    exact = 2**pairs * math.comb(rest, 10 - pairs) / math.comb(n, 10)
    draws = [shared_rows(train, test, seed).p_value for seed in range(20)]
    assert sum(draws) / len(draws) == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize("values", [3, 30, 1000])
def test_independent_samples_of_a_discrete_law_are_rarely_accused(values: int) -> None:
    generator = torch.Generator().manual_seed(0)
    alarms, trials = 0, 300
    for seed in range(trials):
        x = torch.randint(0, values, (120,), generator=generator)
        alarms += shared_rows(row_digests(x[:80]), row_digests(x[80:]), seed).p_value <= 0.05
    assert clopper_pearson(alarms, trials, 0.99).low <= 0.05


def test_many_groups() -> None:
    x = torch.arange(4000.0)
    found = shared_rows(row_digests(x), row_digests(x))
    assert len(found.test) == 4000
    assert found.p_value == 0.001
