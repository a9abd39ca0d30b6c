"""Algorithmic robustness: the bound, grids, and the oscillation of a loss within cells."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.algorithmic_robustness import (
    Grid,
    best_grid,
    cell_oscillation,
    measure_robustness,
    robustness_bound,
    samples_for_robustness,
)
from torchtheory.models.problem import Problem


def test_bound_by_hand_and_inverted() -> None:
    # sqrt((2 * 8 ln 2 + 2 ln 2) / (72 ln 2)) = 1/2
    m = 72 * math.log(2)
    assert robustness_bound(0.25, 8, m, 0.5, width=2.0) == pytest.approx(1.25)
    assert samples_for_robustness(0.25, 8, 1.25, 0.5, width=2.0) == pytest.approx(m)
    assert samples_for_robustness(0.5, 8, 0.5, 0.1) == math.inf
    assert samples_for_robustness(0.0, math.inf, 1.0, 0.1) == math.inf


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 5), st.integers(0, 1000))
def test_oscillation_against_all_pairs(m: int, n: int, cells: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    a, b = torch.rand(m, generator=random), torch.rand(n, generator=random)
    i = torch.randint(cells, (m,), generator=random)
    j = torch.randint(cells, (n,), generator=random)
    values, where = torch.cat([a, b]).double(), torch.cat([i, j])
    pairs = [
        abs(float(values[s] - values[t]))
        for s in range(m)
        for t in range(m + n)
        if where[s] == where[t]
    ]
    found = cell_oscillation(a, i, b, j)
    assert found.oscillation == pytest.approx(max(pairs), abs=1e-12)
    assert found.met == len(set(i.tolist()))
    assert found.compared == sum(k in set(i.tolist()) for k in j.tolist())
    assert found.compared + found.alone == n


def test_grid_by_hand() -> None:
    grid = Grid(0.0, 1.0, 2, 2, classes=2)
    assert grid.count == 8
    assert grid.diameter == pytest.approx(math.sqrt(0.5))
    x = torch.tensor([[0.1, 0.1], [0.2, 0.4], [0.1, 0.6], [1.0, 1.0], [0.1, 0.1]])
    cells = grid(x, torch.tensor([0, 0, 0, 0, 1])).tolist()
    assert cells[0] == cells[1]
    assert len({cells[0], cells[2], cells[3], cells[4]}) == 4
    assert Grid(0.0, 1.0, 100, 10_000).count == math.inf
    images = Grid(0.0, 1.0, 2, 4)(torch.rand(3, 2, 2), torch.zeros(3))
    assert images.shape == (3,)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 100))
def test_points_of_a_cell_are_within_its_diameter(d: int, intervals: int, seed: int) -> None:
    grid = Grid(-2.0, 3.0, intervals, d)
    x = torch.rand(60, d, generator=torch.Generator().manual_seed(seed)).double() * 5 - 2
    cells = grid(x, torch.zeros(60))
    distances = torch.cdist(x, x)[cells[:, None] == cells]
    assert float(distances.max()) <= grid.diameter + 1e-12


def test_a_network_and_its_lipschitz_constant() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    constant = math.prod(
        float(torch.linalg.matrix_norm(m.weight.detach(), 2)) for m in (net[0], net[2])
    )
    random = torch.Generator().manual_seed(0)
    x = torch.rand(100, 2, generator=random).double()
    loss = lambda o, y: (o - y).abs().mean()  # noqa: E731
    problem = Problem(net, (x, torch.ones(100, 1)), loss=loss, task="regression", chunk=33)
    other = torch.rand(500, 2, generator=random).double(), torch.ones(500, 1)
    net.train()
    for k in (1, 3, 9):
        grid = Grid(0.0, 1.0, k, 2)
        found = measure_robustness(problem, grid, other)
        assert found.oscillation <= constant * grid.diameter
        assert found.met <= grid.count
    assert net.training
    with torch.no_grad():
        values = (net(torch.cat([x, other[0]])) - 1).abs()[:, 0]
    whole = measure_robustness(problem, Grid(0.0, 1.0, 1, 2), other).oscillation
    high, low = values[:100].max() - values.min(), values.max() - values[:100].min()
    assert whole == pytest.approx(float(torch.maximum(high, low)))


def test_best_grid_is_the_best() -> None:
    grid, bound = best_grid(2.0, 2, 50_000, 0.05, classes=3)
    others = []
    for k in range(1, 60):
        g = Grid(0.0, 1.0, k, 2, 3)
        others.append(robustness_bound(2.0 * g.diameter, g.count, 50_000, 0.05))
    assert bound == pytest.approx(min(others))
    assert grid.intervals == 1 + others.index(min(others))
    assert best_grid(0.0, 5, 100, 0.1)[0].intervals == 1


def test_bad_input() -> None:
    for wrong in ((-1.0, 2, 5, 0.1), (0.0, 0, 5, 0.1), (0.0, 2, 5, 1.0), (math.nan, 2, 5, 0.1)):
        with pytest.raises(InvalidInput):
            robustness_bound(*wrong)
    with pytest.raises(EmptyData):
        robustness_bound(0.0, 2, 0, 0.1)
    with pytest.raises(InvalidInput, match="box"):
        Grid(1.0, 0.0, 2, 1)
    with pytest.raises(InvalidInput, match="at least one interval"):
        Grid(0.0, 1.0, 0, 1)
    grid = Grid(0.0, 1.0, 2, 1)
    with pytest.raises(InvalidInput, match="outside"):
        grid(torch.tensor([[1.5]]), torch.zeros(1))
    with pytest.raises(ShapeMismatch, match="1 dimensions"):
        grid(torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(ShapeMismatch, match="one label"):
        Grid(0.0, 1.0, 2, 1, classes=2)(torch.zeros(1, 1), torch.zeros(1, 2))
    one, none = torch.zeros(1), torch.zeros(0)
    with pytest.raises(EmptyData):
        cell_oscillation(none, none.long(), one, one.long())
    with pytest.raises(NonFinite):
        cell_oscillation(one / 0, one.long(), one, one.long())
    with pytest.raises(ShapeMismatch):
        cell_oscillation(one, torch.zeros(2), one, one.long())
    problem = Problem(nn.Linear(1, 1), (torch.zeros(2, 1), torch.ones(2, 1) / 2))

    def wrong_cells(x: Tensor, y: Tensor) -> Tensor:
        return x

    with pytest.raises(ShapeMismatch, match="one whole number"):
        measure_robustness(problem, wrong_cells, (torch.zeros(1, 1), torch.ones(1, 1)))


@pytest.mark.parametrize("labels", [[0, 2], [0, -1], [0.0, 0.5], [1, 7]])
def test_labels_outside_the_classes_are_refused(labels) -> None:
    grid = Grid(0.0, 1.0, 2, dimension=1, classes=2)
    x = torch.tensor([[0.1], [0.9]])
    assert grid(x, torch.tensor([0, 1])).tolist() == [0, 1]
    with pytest.raises(InvalidInput, match="labels"):
        grid(x, torch.tensor(labels))
