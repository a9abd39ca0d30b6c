"""The audit of a measure's order against the order of the gaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.generalization.order_preservation import compare_orders, order_table, precedes

numbers = st.lists(st.integers(-5, 5), min_size=3, max_size=12)


def test_by_hand_with_ties() -> None:
    # pairs: ab concordant, ac merged, ad discordant, bc discordant, bd discordant, cd split
    found = compare_orders([0.0, 1.0, 2.0, 2.0], [5.0, 7.0, 5.0, 4.0], names=list("abcd"))
    assert (found.concordant, found.discordant, found.merged, found.split) == (1, 3, 1, 1)
    assert found.kendall.estimate == pytest.approx(-2 / 6)
    assert [(p.better, p.worse) for p in found.misleading] == [("a", "d"), ("b", "c"), ("b", "d")]
    assert found.misleading[0].gap_difference == 2.0
    assert found.misleading[0].measure_difference == 1.0
    assert found.regret == 2.0
    assert not found.preserved


@given(numbers, st.data())
@settings(max_examples=60, deadline=None)
def test_counts_and_scipy(gaps: list[int], data: st.DataObject) -> None:
    n = len(gaps)
    measure = data.draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n))
    found = compare_orders(gaps, measure)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    signs = [np.sign(gaps[i] - gaps[j]) * np.sign(measure[i] - measure[j]) for i, j in pairs]
    assert found.concordant == sum(s > 0 for s in signs)
    assert found.discordant == sum(s < 0 for s in signs) == len(found.misleading)
    assert found.kendall.estimate == pytest.approx(sum(signs) / len(pairs))
    assert found.kendall.low <= found.kendall.estimate <= found.kendall.high
    assert found.approximate.low <= found.approximate.estimate <= found.approximate.high
    assert found.regret >= 0
    if len(set(gaps)) > 1 and len(set(measure)) > 1:
        assert found.kendall_ties == pytest.approx(stats.kendalltau(gaps, measure).statistic)
        assert found.spearman == pytest.approx(stats.spearmanr(gaps, measure).statistic)
    else:
        assert math.isnan(found.kendall_ties)


@given(numbers)
@settings(max_examples=40, deadline=None)
def test_only_the_order_matters(gaps: list[int]) -> None:
    assert compare_orders(gaps, [math.exp(g) for g in gaps]).preserved
    assert compare_orders(gaps, gaps).regret == 0
    order = precedes(gaps)
    assert bool((order | order.mT).all())
    assert bool(order.diagonal().all())
    through = order.double() @ order.double() > 0
    assert bool((order | ~through).all())


def test_undecided_pairs_count_neither_way() -> None:
    gaps, measure = [0.0, 0.1, 1.0], [3.0, 2.0, 1.0]
    found = compare_orders(gaps, measure, radii=[0.06, 0.06, 0.06])
    assert (found.undecided, found.discordant, found.concordant) == (1, 2, 0)
    assert compare_orders(gaps, measure, radii=[0.0] * 3).discordant == 3


def test_hoeffding_radius_by_hand() -> None:
    found = compare_orders(range(100), range(100), confidence=0.9).kendall
    assert found.low == pytest.approx(1 - math.sqrt(2 * math.log(20) / 50))
    assert found.high == 1


def test_infinite_bounds_are_values() -> None:
    found = compare_orders([0.1, 0.2, 0.3], [1.0, math.inf, math.inf])
    assert (found.concordant, found.merged) == (2, 1)


def test_table_is_sorted() -> None:
    found = order_table(torch.tensor([1.0, 2.0, 3.0]), {"no": [3, 1, 2], "yes": [1, 2, 3]})
    assert list(found) == ["yes", "no"]
    blurred = order_table([1.0, 2.0, 3.0], {"yes": [1, 2, 3]}, radii=[0.6, 0.6, 0.3])
    assert (blurred["yes"].undecided, blurred["yes"].concordant) == (1, 2)


def test_refused() -> None:
    with pytest.raises(EmptyData, match="three"):
        compare_orders([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ShapeMismatch):
        compare_orders([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ShapeMismatch, match="names"):
        compare_orders([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], names=["a"])
    with pytest.raises(NonFinite):
        compare_orders([1.0, 2.0, math.inf], [1.0, 2.0, 3.0])
    with pytest.raises(NonFinite):
        compare_orders([1.0, 2.0, 3.0], [1.0, 2.0, math.nan])
    with pytest.raises(InvalidType):
        compare_orders(["small", "large", "huge"], [1.0, 2.0, 3.0])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="radii"):
        compare_orders([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], radii=[-1.0, 0.0, 0.0])
    with pytest.raises(InvalidInput, match="confidence"):
        compare_orders([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], confidence=1.0)
    with pytest.raises(EmptyData):
        order_table([1.0, 2.0, 3.0], {})
