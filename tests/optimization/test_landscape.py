"""Slices through the loss of a network."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import update_bn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.models.model import flatten
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import mlp
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.landscape.low_loss_paths import path_losses
from torchtheory.optimization.landscape.parameter_space import (
    losses_at,
    point_vector,
    segment_losses,
)
from torchtheory.optimization.landscape.slices import (
    eigen_directions,
    grid_minima,
    loss_slice,
    probe_segment,
    random_directions,
    slice_valleys,
)
from torchtheory.optimization.landscape.trained_paths import bend_path


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem_of(seed=0, *, classes=0, chunk=512):
    net = mlp([2, 5, max(classes, 1)], "tanh", generator=seed)
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
    found = loss_slice(line_problem(), torch.eye(2).double(), grid, center=torch.zeros(2).double())
    assert found.values.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 9.0]]
    assert found.minima == 1


def test_directions_are_scaled():
    problem = problem_of()
    draws = random_directions(problem, 2, generator=3)
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
    line = loss_slice(problem, torch.ones(1, 2).double(), grid, center=torch.zeros(2).double())
    assert sorted(slice_valleys(problem, line).flatten().round(decimals=4).tolist()) == [-1.0, 1.0]
    # least squares with a condition number of 10⁴, its valley oblique to the grid
    x = torch.tensor([[1.0, 1.3], [0.01, -0.01]]).double()
    convex = Problem(nn.Linear(2, 1, bias=False).double(), (x, x[:, :1]), task="regression")
    plane = loss_slice(convex, torch.eye(2).double(), grid, center=torch.zeros(2).double())
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
    with pytest.raises(ShapeMismatch, match="parameters"):
        probe_segment(problem, theta, theta[1:])
    with pytest.raises(InvalidInput, match="at least 3"):
        probe_segment(problem, theta, theta, count=2)
    with pytest.raises(UnknownName, match="statistics"):
        losses_at(problem, theta[None], statistics="new")
    with pytest.raises(InvalidInput, match="another architecture"):
        point_vector(problem, nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 1)))
    with pytest.raises(InvalidType, match="by name"):
        point_vector(problem, 3.0)
    with pytest.raises(InvalidInput, match="at least 2"):
        segment_losses(problem, theta, theta, 1)
    with pytest.raises(InvalidInput, match="learning_rate"):
        bend_path(problem, theta, theta, learning_rate=0.0)


# ------------------------------------------------------------------ networks as users have them


def images(seed, count=40):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 6, 6, generator=source)
    return x, torch.randint(0, 3, (count,), generator=source)


def convolutional(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)
        )
        for _ in range(3):  # running statistics of its own
            net(3 * torch.randn(20, 1, 6, 6) + 9 * seed)
    return net


def test_a_network_its_state_dict_and_its_vector_are_the_same_point():
    problem = Problem(convolutional(0), images(1))
    other = convolutional(1)
    theta = torch.cat([p.detach().reshape(-1) for p in other.parameters()])
    for point in (other, other.state_dict(), theta, theta.double()):
        assert torch.equal(point_vector(problem, point), theta)


@pytest.mark.parametrize("chunk", [40, 10])
def test_statistics_are_renewed_as_torch_does_it(chunk):
    """At both ends of a segment, against a copy of each network whose statistics torch renews."""
    nets = convolutional(0), convolutional(1)
    x, y = images(1)
    before = [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]
    problem = Problem(nets[0], (x, y), chunk=chunk)
    found = probe_segment(problem, *nets, count=3)
    expected = []
    for net in nets:
        own = copy.deepcopy(net)
        update_bn(x.split(chunk), own)
        with torch.no_grad():
            expected.append(float(nn.functional.cross_entropy(own.eval()(x), y)))
    assert found.losses[[0, 2]].tolist() == pytest.approx(expected, rel=1e-5)
    kept = probe_segment(problem, *nets, count=3, statistics="kept").losses
    assert float(kept[0]) == pytest.approx(problem.risk(problem.train), rel=1e-5)
    assert abs(float(kept[2]) - expected[1]) > 1e-3  # those of the first do not fit the second
    for net, then in zip(nets, before, strict=True):
        assert net.training
        assert all(torch.equal(then[k], v) for k, v in net.state_dict().items())
        assert not net[1]._forward_pre_hooks


def test_slices_of_a_convolutional_network_with_eigenvectors_and_filters():
    problem = Problem(convolutional(0), images(1)).in_precision(torch.float64)
    values, vectors = eigen_directions(problem, 2, which="both")
    dense = torch.linalg.eigvalsh(hessian_operator(problem).to_dense())
    assert values.tolist() == pytest.approx([float(dense[-1]), float(dense[0])], abs=1e-6)
    step = 1e-3
    line = loss_slice(problem, vectors[:1], torch.tensor([-step, 0.0, step]).double())
    second = float(line.values[0] - 2 * line.values[1] + line.values[2]) / step**2
    assert second == pytest.approx(float(values[0]), rel=1e-3)
    draw = random_directions(problem, 1)[0]
    filters = draw[:27].reshape(3, 9).norm(dim=1)
    assert torch.allclose(filters, problem.parameters["0.weight"].reshape(3, 9).norm(dim=1))


class Tied(nn.Module):
    """A weight used twice, and a branch on a number that vmap cannot take."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden if self.first.weight.sum().item() > 0 else -hidden)


def test_tied_weights_and_models_that_vmap_does_not_understand():
    x = normal(0, 5, 2)
    net = Tied().double()
    problem = Problem(net, (x, x), task="regression")
    points = normal(1, 4, 4)
    expected = []
    for theta in points:
        W = theta.reshape(2, 2)
        hidden = x @ W.T
        expected.append(float(((hidden if W.sum() > 0 else -hidden) @ W.T - x).square().mean()))
    assert losses_at(problem, points).tolist() == pytest.approx(expected)
    assert len(point_vector(problem, net)) == 4


def test_a_bent_path_goes_around_what_the_straight_one_meets():
    nets = []
    x, y = images(1, 60)
    for seed in (0, 1):
        net = convolutional(seed)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        nets.append(net)
    state = torch.get_rng_state()
    problem = Problem(nets[0], (x, y))
    straight = probe_segment(problem, *nets, count=11)
    corners = bend_path(problem, *nets, steps=150, batch=60)
    bent = path_losses(problem, corners, count=6)
    assert torch.equal(corners[0], point_vector(problem, nets[0]))
    assert torch.equal(corners[2], point_vector(problem, nets[1]))
    assert torch.equal(bent[[0, 1], [0, -1]], straight.losses[[0, -1]])
    assert float(bent.max()) < 0.5 * float(straight.losses.max())
    assert torch.equal(state, torch.get_rng_state())
    assert not nets[0][1]._forward_pre_hooks
