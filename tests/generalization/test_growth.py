import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    LabelOutOfRange,
    ShapeMismatch,
)
from torchtheory.generalization.vc.growth import (
    different_labelings,
    growth_halfspaces,
    growth_intervals,
    growth_on,
    growth_signed_thresholds,
    growth_thresholds,
    halfspaces,
    homogeneous_halfspaces,
    intervals,
    log_sauer_polynomial,
    rectangles,
    sauer_bound,
    shattered_subsets,
    shatters,
    signed_thresholds,
    thresholds,
    vc_dimension_on,
)
from torchtheory.generalization.vc.hypothesis_sets import all_labelings

seeds = st.integers(0, 2**31 - 1)


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_three_points_on_a_line_by_hand() -> None:
    x = torch.tensor([[2.0], [0.0], [1.0]])
    rows = {tuple(r) for r in thresholds(x).int().tolist()}
    assert rows == {(1, 1, 1), (1, -1, 1), (1, -1, -1), (-1, -1, -1)}
    gap = {tuple(r) for r in all_labelings(3).int().tolist()} - {
        tuple(r) for r in intervals(x).int().tolist()
    }
    assert gap == {(1, 1, -1)}  # the two ends without the middle
    assert len(signed_thresholds(x)) == 6


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), seeds)
def test_listed_restrictions_meet_the_closed_forms(n: int, seed: int) -> None:
    line, plane = points(n, 1, seed), points(n, 2, seed)
    assert len(thresholds(line)) == growth_thresholds(n)
    assert len(signed_thresholds(line)) == growth_signed_thresholds(n)
    assert len(intervals(line)) == growth_intervals(n)
    assert len(halfspaces(plane)) == growth_halfspaces(n, 2)
    assert len(homogeneous_halfspaces(plane)) == growth_halfspaces(n, 2, bias=False)
    for restriction, x in ((thresholds, line), (intervals, line), (rectangles, plane)):
        found = restriction(x)
        assert len(torch.unique(found, dim=0)) == len(found)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), seeds)
def test_boxes_are_what_their_smallest_box_says(n: int, seed: int) -> None:
    x = points(n, 2, seed)
    listed = {tuple(r) for r in rectangles(x).int().tolist()}
    brute = {(-1,) * n}
    for labels in all_labelings(n)[1:]:
        inside = x[labels > 0]
        hull = ((x >= inside.amin(0)) & (x <= inside.amax(0))).all(1)
        if bool((hull == (labels > 0)).all()):
            brute.add(tuple(labels.int().tolist()))
    assert listed == brute


def test_equal_points_get_equal_labels() -> None:
    x = torch.tensor([[1.0], [1.0], [0.0]])
    for restriction in (thresholds, signed_thresholds, intervals):
        found = restriction(x)
        assert bool((found[:, 0] == found[:, 1]).all())
    assert len(thresholds(x)) == 3


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), seeds)
def test_sauer_shelah_and_pajor_for_random_finite_classes(number: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 2, (number, k), generator=generator).double() * 2 - 1
    table = torch.unique(table, dim=0)
    h = vc_dimension_on(table)
    assert len(table) <= sauer_bound(k, h)
    # Pajor: at least as many subsets are shattered as there are functions
    assert len(table) <= sum(len(shattered_subsets(table, m)) for m in range(k + 1))
    for m in range(1, k + 1):
        assert growth_on(table, m) <= sauer_bound(m, h)
        assert (growth_on(table, m) == 2**m) == (m <= h)


@given(st.integers(1, 30), st.integers(0, 170))
def test_the_polynomial_form_is_larger_from_h_on(h: int, extra: int) -> None:
    n = h + extra
    assert math.log(sauer_bound(n, h)) <= log_sauer_polynomial(n, h) + 1e-12
    assert sauer_bound(min(n, h), h) == 2 ** min(n, h)


def test_boxes_in_the_plane_shatter_the_diamond_only() -> None:
    diamond = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
    assert shatters(rectangles, diamond)
    assert not shatters(rectangles, torch.cat([diamond, torch.zeros(1, 2)]))
    assert not shatters(rectangles, torch.tensor([[0.0, 0], [1, 1], [2, 2], [3, 3]]))


def test_refused() -> None:
    with pytest.raises(ShapeMismatch, match=r"\[n, 1\]"):
        thresholds(torch.zeros(3, 2))
    with pytest.raises(ShapeMismatch):
        halfspaces(torch.zeros(3))
    with pytest.raises(EmptyData):
        intervals(torch.zeros(0, 1))
    with pytest.raises(EmptyData):
        different_labelings(torch.zeros(0, 3))
    with pytest.raises(ShapeMismatch):
        different_labelings(torch.zeros(3))
    with pytest.raises(LabelOutOfRange):
        vc_dimension_on(torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="1 to 2"):
        growth_on(torch.ones(1, 2), 3)
    with pytest.raises(InvalidInput, match="from n = h"):
        log_sauer_polynomial(2, 3)
    with pytest.raises(InvalidInput, match="n must be"):
        growth_thresholds(0)
    with pytest.raises(InvalidInput, match="too many"):
        rectangles(torch.randn(60, 6, generator=torch.Generator().manual_seed(0)))
