"""Slices through the loss of a network."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnknownName
from torchtheory.core.model import flatten
from torchtheory.core.problem import Problem
from torchtheory.nets.feedforward import mlp
from torchtheory.optimization.curvature import hessian_operator
from torchtheory.optimization.landscape import (
    eigen_directions,
    grid_minima,
    loss_slice,
    losses_at,
    probe_segment,
    random_directions,
    slice_valleys,
)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem_of(seed=0, *, classes=0, chunk=512):
    net = mlp([2, 5, max(classes, 1)], "tanh", random=seed)
    x = normal(seed + 1, 11, 2)
    y = torch.arange(11) % classes if classes else normal(seed + 2, 11, 1)
    return Problem(net, (x, y), task="multiclass" if classes else "regression", chunk=chunk)


def line_problem():
    """(1 - ab)², by hand."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    one = torch.ones(1, 1).double()
    return Problem(net, (one, one), task="regression")


@pytest.mark.parametrize("classes", [0, 3])
def test_losses_agree_with_the_problem_one_by_one_and_in_chunks(classes):
    problem, small = problem_of(classes=classes), problem_of(classes=classes, chunk=4)
    theta = flatten(problem.parameters)
    points = theta + normal(5, 7, len(theta))
    found = losses_at(problem, points, together=3)
    assert torch.allclose(found, losses_at(problem, points, together=1), atol=1e-12)
    assert torch.allclose(found, losses_at(small, points), atol=1e-12)
    own = losses_at(problem, theta[None])
    assert float(own) == pytest.approx(problem.risk(problem.train), abs=1e-12)


def test_the_model_is_not_changed():
    problem = problem_of()
    before = flatten(problem.parameters).clone()
    loss_slice(problem, random_directions(problem), torch.linspace(-1, 1, 3).double())
    assert torch.equal(before, flatten(problem.parameters))


def test_a_plane_by_hand():
    grid = torch.tensor([0.0, 1.0, 2.0]).double()
    found = loss_slice(line_problem(), torch.eye(2).double(), grid, centre=torch.zeros(2).double())
    assert found.values.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 9.0]]
    assert found.minima == 1


def test_directions_are_scaled():
    problem = problem_of()
    draws = random_directions(problem, 2, random=3)
    named = problem.parameters
    first = draws[0][: named["0.weight"].numel()].view_as(named["0.weight"])
    assert torch.allclose(first.norm(dim=1), named["0.weight"].norm(dim=1))
    assert float(random_directions(problem, 1, scaling="unit").norm()) == pytest.approx(1)
    assert not torch.equal(draws[0], draws[1])


def test_eigen_directions_agree_with_the_dense_hessian():
    problem = problem_of()
    values, vectors = eigen_directions(problem, 3)
    dense = hessian_operator(problem).to_dense()
    assert torch.allclose(values, torch.linalg.eigvalsh(dense).flip(0)[:3], atol=1e-5)
    assert torch.allclose(vectors @ dense, values[:, None] * vectors, atol=1e-4)


@given(seed=st.integers(0, 10**6), rows=st.integers(3, 7), columns=st.integers(3, 7))
@settings(max_examples=25, deadline=None)
def test_grid_minima_by_brute_force(seed, rows, columns):
    values = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))
    found = grid_minima(values)
    for i in range(rows):
        for j in range(columns):
            inside = 0 < i < rows - 1 and 0 < j < columns - 1
            lowest = inside and bool(
                (values[i - 1 : i + 2, j - 1 : j + 2] < values[i, j]).sum() == 0
            )
            assert bool(found[i, j]) == lowest


def test_valleys_of_a_line_and_of_a_narrow_convex_valley():
    problem = line_problem()
    grid = torch.linspace(-2, 2, 12).double()
    line = loss_slice(problem, torch.ones(1, 2).double(), grid, centre=torch.zeros(2).double())
    assert sorted(slice_valleys(problem, line).flatten().round(decimals=4).tolist()) == [-1.0, 1.0]
    # least squares with a condition number of 10⁴, its valley oblique to the grid
    x = torch.tensor([[1.0, 1.3], [0.01, -0.01]]).double()
    convex = Problem(nn.Linear(2, 1, bias=False).double(), (x, x[:, :1]), task="regression")
    plane = loss_slice(convex, torch.eye(2).double(), grid, centre=torch.zeros(2).double())
    assert plane.minima > 1
    assert len(slice_valleys(convex, plane)) == 1


def test_the_example_with_six_parameters():
    net = mlp([1, 2, 1], "relu", last_bias=False)
    x, y = torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
    problem = Problem(net, (x, y), task="regression")
    theta = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, -1.0]).double()
    other = torch.tensor([1.0, 1.0, 0.0, 1.0, -1.0, 1.0]).double()
    found = probe_segment(problem, theta, other)
    assert float(found.losses[0]) == float(found.losses[-1]) == 0
    assert (found.excess, found.at, found.barrier) == (0.5, 0.5, 0.5)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_linear_models_are_convex(seed):
    source = torch.Generator().manual_seed(seed)
    x, y, a, b = (
        torch.randn(*shape, dtype=torch.float64, generator=source)
        for shape in ((6, 3), (6, 1), (3,), (3,))
    )
    problem = Problem(nn.Linear(3, 1, bias=False).double(), (x, y), task="regression")
    found = probe_segment(problem, a, b)
    assert found.excess <= 1e-12
    assert found.barrier <= 1e-12


def test_bad_input():
    problem = problem_of()
    theta = flatten(problem.parameters)
    with pytest.raises(ShapeMismatch, match="parameters"):
        losses_at(problem, torch.ones(2, 3).double())
    with pytest.raises(NonFinite):
        losses_at(problem, theta[None] * math.nan)
    with pytest.raises(InvalidInput, match="one or two"):
        loss_slice(problem, torch.ones(3, len(theta)).double(), torch.ones(1).double())
    with pytest.raises(ShapeMismatch, match="directions"):
        loss_slice(problem, torch.ones(1, 2).double(), torch.ones(1).double())
    with pytest.raises(InvalidInput, match="increase"):
        loss_slice(problem, theta[None], torch.tensor([1.0, 0.0]).double())
    with pytest.raises(UnknownName):
        random_directions(problem, scaling="filter")
    with pytest.raises(ShapeMismatch, match="3 points"):
        grid_minima(torch.ones(2, 5))
    with pytest.raises(ShapeMismatch, match="entries"):
        probe_segment(problem, theta, theta[1:])
    with pytest.raises(InvalidInput, match="at least 3"):
        probe_segment(problem, theta, theta, count=2)
