"""Covering and packing numbers against exhaustive search, and Dudley's and Haussler's bounds."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.complexity.covering import (
    covering_bounds,
    covering_dimension,
    covering_number,
    dudley_bound,
    haussler_bound,
    packing_number,
    sample_distances,
    separation_radii,
    vc_rademacher_bound,
)
from torchtheory.generalization.complexity.rademacher import exact_rademacher, finite_class
from torchtheory.generalization.vc.hypothesis_sets import all_labelings, labelings_with_changes


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_distances_against_scipy() -> None:
    values = normal(6, 4)
    expected = torch.from_numpy(cdist(values, values)) / 2
    torch.testing.assert_close(sample_distances(values), expected)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 8), st.floats(0, 2.5), st.integers(0, 1000))
def test_numbers_against_exhaustive_search(h: int, alpha: float, seed: int) -> None:
    values = normal(h, 3, seed=seed)
    near = sample_distances(values) <= alpha
    cover = next(
        k
        for k in range(1, h + 1)
        if any(bool(near[list(c)].any(0).all()) for c in itertools.combinations(range(h), k))
    )
    graph = nx.Graph()
    graph.add_nodes_from(range(h))
    graph.add_edges_from((i, j) for i in range(h) for j in range(i) if not near[i, j])
    packing = max(len(c) for c in nx.find_cliques(graph))
    assert covering_number(values, alpha) == cover
    assert packing_number(values, alpha) == packing
    low, high = covering_bounds(values, alpha)
    assert low <= cover <= high <= packing
    assert packing_number(values, 2 * alpha) <= cover


def test_radii_decrease_and_cover() -> None:
    values = normal(40, 3)
    radii = separation_radii(values)
    assert radii[0] == math.inf
    assert bool((radii[1:].diff() <= 1e-12).all())
    assert separation_radii(torch.ones(3, 2)).tolist() == [math.inf, 0.0, 0.0]


def test_losses_are_half_as_far_apart() -> None:
    functions = labelings_with_changes(7, 2)
    y = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    for alpha in (0.3, 0.45, 0.6):
        assert covering_number((1 - functions * y) / 2, alpha) == covering_number(
            functions, 2 * alpha
        )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 1000))
def test_dudley_is_above_the_complexity(h: int, m: int, seed: int) -> None:
    values = normal(h, m, seed=seed)
    assert exact_rademacher(finite_class(values), m) <= dudley_bound(values) + 1e-12


def test_dudley_by_hand() -> None:
    # two functions at distance 2: the infimum of 4ε + 12 √(ln 2 / m) (1 - ε) over ε in [0, 1]
    for m in (4, 100):
        values = torch.stack([torch.ones(m), -torch.ones(m)]).double()
        slope = 12 * math.sqrt(math.log(2) / m)
        assert dudley_bound(values) == pytest.approx(min(4.0, slope))


def test_haussler_is_above_the_packing_of_all_labelings() -> None:
    for m in (3, 5):
        for alpha in (0.2, 0.7, 1.1, 1.9):
            assert packing_number(all_labelings(m), alpha) <= haussler_bound(m, alpha)
    assert haussler_bound(2, 0.0) == math.inf


def test_vc_bound_is_dudley_with_haussler() -> None:
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 400_000
    for v in (1, 3):
        root = torch.tensor([1.0]).double() + math.log(v + 1) + v * (2 * math.e / grid**2).log()
        expected = 12 * float(root.sqrt().mean()) / 2 / math.sqrt(50)
        assert vc_rademacher_bound(v, 50) == pytest.approx(expected, rel=1e-5)


def test_dimension_of_a_torus_and_a_segment() -> None:
    points = torch.rand(3000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    angle = 2 * math.pi * points
    torus = torch.cat([angle.cos(), angle.sin()], 1)
    assert covering_dimension(torus).estimate == pytest.approx(2, abs=0.3)
    flat = torch.cat([points[:, :1]] * 3, 1)
    assert covering_dimension(flat).estimate == pytest.approx(1, abs=0.15)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ShapeMismatch):
        separation_radii(torch.zeros(3))
    with pytest.raises(EmptyData):
        dudley_bound(torch.zeros(0, 2))
    with pytest.raises(NonFinite):
        covering_bounds(torch.tensor([[math.inf]]), 0.1)
    with pytest.raises(InvalidInput):
        covering_number(torch.eye(2), -1.0)
    with pytest.raises(InvalidInput):
        covering_number(torch.zeros(401, 1), 1.0)
    with pytest.raises(InvalidInput):
        haussler_bound(0, 0.5)
    with pytest.raises(EmptyData):
        vc_rademacher_bound(1, 0)
    with pytest.raises(InvalidInput):
        covering_dimension(torch.rand(50, 2))
