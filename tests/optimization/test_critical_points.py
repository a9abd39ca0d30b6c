"""Stationary points: what they are, and how long runs stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.linalg.eigenvalues import extremal_eigenvalues
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.descent.objectives import objective_of
from torchtheory.optimization.landscape.critical_points import (
    classify,
    critical_point,
    escape_times,
    landscape_probe,
    lower_point,
)
from torchtheory.optimization.landscape.low_loss_paths import minimize_last_layer
from torchtheory.optimization.landscape.network_points import classify_network


@given(st.integers(0, 10**6), st.lists(st.sampled_from([-2.0, -0.5, 0.7, 3.0]), min_size=1))
@settings(max_examples=30, deadline=None)
def test_quadratic_forms_in_any_basis(seed, signs):
    signs = signs[:6]
    size = len(signs)
    random = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=random))
    matrix = basis * torch.tensor(signs, dtype=torch.float64) @ basis.T
    found = critical_point(lambda x: x @ matrix @ x / 2, torch.zeros(size, dtype=torch.float64))
    assert found.index == sum(s < 0 for s in signs)
    assert torch.allclose(found.eigenvalues, torch.tensor(sorted(signs)).double(), atol=1e-9)
    expected = "minimum" if min(signs) > 0 else "maximum" if max(signs) < 0 else "saddle"
    assert found.kind == expected


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x[0] ** 3 - 3 * x[0] * x[1] ** 2, "degenerate"),
        (lambda x: x[0] ** 4 + x[1] ** 4, "degenerate"),
        (lambda x: x[0] ** 2 - x[1] ** 2 + x[0] ** 3, "saddle"),
        (lambda x: torch.cos(x).sum(), "maximum"),
        (lambda x: x[0] + x[1] ** 2, "not stationary"),
    ],
)
def test_kinds_at_the_origin(function, kind):
    assert critical_point(function, torch.zeros(2, dtype=torch.float64)).kind == kind


def test_a_saddle_with_a_flat_direction_is_still_a_saddle():
    found = critical_point(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(3, dtype=torch.float64))
    assert (found.kind, found.index) == ("saddle", 1)


def test_a_deep_linear_network_has_a_degenerate_point_at_zero():
    # f = w3 w2 w1 x: gradient and Hessian vanish at 0; with two factors it is a strict saddle
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    kinds = []
    for depth in (2, 3):
        layers = [nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(depth)]
        net = nn.Sequential(*layers)
        for p in net.parameters():
            nn.init.zeros_(p)
        ends = extremal_eigenvalues(hessian_operator(Problem(net, (x, 3 * x), task="regression")))
        kinds.append(classify(ends.smallest, ends.largest, 1e-9))
    assert kinds == ["saddle", "degenerate"]


def test_escape_times_by_hand():
    points = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[3.0, 4.0], [1.0, 0.0]]])
    assert escape_times(points, torch.zeros(2), 4.9).tolist() == [1, 2]
    assert escape_times(points, torch.tensor([0.0, 5.0]), 4.9).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("function", "label", "evidence"),
    [
        (lambda x: x[..., 0] ** 2 + x[..., 1] ** 2, "local minimum", "Hessian"),
        (lambda x: -(x[..., 0] ** 2) - x[..., 1] ** 2, "local maximum", "Hessian"),
        (lambda x: x[..., 0] ** 2 - x[..., 1] ** 2, "strict saddle", "Hessian"),
        (lambda x: x[..., 0] ** 2 - x[..., 1] ** 4, "degenerate saddle", "search"),
        (lambda x: x[..., 0] ** 3 - 3 * x[..., 0] * x[..., 1] ** 2, "degenerate saddle", "search"),
        (lambda x: x[..., 0] ** 2 + x[..., 1] ** 4, "local minimum", "search"),
        (lambda x: -(x[..., 0] ** 2) + x[..., 1] ** 4, "strict saddle", "search"),
        (lambda x: -(x[..., 0] ** 2) + 0 * x[..., 1], "local maximum", "search"),
        (lambda x: (x.norm(dim=-1) - 1).clamp(min=0) ** 3, "plateau", "search"),
        (lambda x: x[..., 0] + x[..., 1] ** 2, "not stationary", "gradient"),
    ],
)
def test_labels_at_the_origin(function, label, evidence):
    origin = torch.full((2,), 1e-12, dtype=torch.float64)
    found = landscape_probe(function, origin)
    assert (found.label, found.evidence) == (label, evidence)
    low, high = found.index
    assert 0 <= low <= high <= 2
    assert (found.direction is not None) == (low > 0)
    if found.lower is not None:
        assert float(function(found.lower)) < found.value
        assert float(found.lower.norm()) <= 0.1 + 1e-9


def test_a_known_infimum_makes_a_minimum_global():
    bowl = torch.zeros(1, dtype=torch.float64)

    def square(x):
        return x[..., 0] ** 2

    assert landscape_probe(square, bowl, infimum=0.0).label == "global minimum"
    assert landscape_probe(square, bowl, infimum=-1.0).label == "local minimum"


def test_the_loss_of_a_network_and_the_network_unchanged():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    problem = Problem(net, (x, x.sum(1, keepdim=True)), task="regression")
    loss, theta = objective_of(problem)
    assert float(loss(theta)) == pytest.approx(problem.risk(problem.train))
    assert loss(torch.stack([theta, theta + 1])).shape == (2,)
    assert landscape_probe(loss, theta).label == "not stationary"
    # all weights 0 and the mean as output: the gradient in the hidden weights vanishes as well
    flat = torch.zeros_like(theta)
    flat[-1] = 4 / 3
    assert landscape_probe(loss, flat).label in ("strict saddle", "degenerate saddle")
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_search_stays_in_its_ball_and_follows_the_seed():
    def slope(x):
        return x.sum(-1)

    center = torch.ones(3, dtype=torch.float64)
    found = lower_point(slope, center, 0.5, generator=1)
    assert float((found - center).norm()) == pytest.approx(0.5)
    assert torch.equal(found, lower_point(slope, center, 0.5, generator=1))


def test_bad_input_is_refused():
    with pytest.raises(ShapeMismatch, match="one point"):
        landscape_probe(lambda x: x.sum(-1), torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="radius"):
        landscape_probe(lambda x: x.sum(-1), torch.zeros(2), radius=0.0)
    with pytest.raises(InvalidInput, match="tolerance"):
        landscape_probe(lambda x: x.sum(-1), torch.zeros(2), tolerance=-1.0)
    with pytest.raises(InvalidInput, match="trials"):
        lower_point(lambda x: x.sum(-1), torch.zeros(2), 1.0, trials=0)
    with pytest.raises(ShapeMismatch, match="one point"):
        critical_point(lambda x: x.sum(), torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="is nan"):
        critical_point(lambda x: x.abs().sqrt().sum(), torch.zeros(2))
    with pytest.raises(ShapeMismatch, match="one value"):
        critical_point(lambda x: x.square(), torch.zeros(2))
    with pytest.raises(InvalidInput, match="tolerance"):
        critical_point(lambda x: x.sum(), torch.zeros(2), tolerance=-1.0)
    with pytest.raises(InvalidType):
        critical_point(lambda x: x.sum(), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InvalidInput, match="exceeds"):
        classify(1.0, 0.0, 1e-9)
    with pytest.raises(InvalidInput, match="tolerance"):
        classify(0.0, 1.0, -1.0)
    with pytest.raises(NonFinite):
        classify(float("nan"), 1.0, 1e-9)
    loss, theta = objective_of(Problem(nn.Linear(2, 1), (torch.ones(3, 2), torch.ones(3, 1))))
    with pytest.raises(ShapeMismatch, match="3 trainable parameters"):
        loss(theta[1:])
    with pytest.raises(InvalidInput, match="radius"):
        escape_times(torch.zeros(3, 2), torch.zeros(2), 0.0)
    with pytest.raises(ShapeMismatch):
        escape_times(torch.zeros(3, 2), torch.zeros(3), 1.0)


# ------------------------------------------------------------------- from products with the Hessian


def network_problem(seed, width):
    source = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(30, k, dtype=torch.float64, generator=source) for k in (3, 1))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1)).double()
    return Problem(net, (x, y), task="regression")


@pytest.mark.parametrize(("seed", "width"), [(0, 12), (1, 80), (2, 80), (4, 80)])
def test_the_index_of_a_network_against_its_dense_spectrum(seed, width):
    problem = network_problem(seed, width)
    found = classify_network(problem, probes=8, steps=45)
    dense = torch.linalg.eigvalsh(hessian_operator(problem).to_dense())
    assert found.kind == "not stationary"
    assert found.smallest == pytest.approx(float(dense[0]), abs=1e-3)
    assert found.largest == pytest.approx(float(dense[-1]), abs=1e-3)
    assert float(dense[0]) - found.residual <= found.smallest  # an error bar
    for share, exact in (
        (found.index, (dense < -found.flat).double().mean()),
        (found.zeros, (dense.abs() <= found.flat).double().mean()),
    ):
        if width == 12:  # 61 parameters: all of the matrix
            assert (share.value, share.standard_error) == (pytest.approx(float(exact)), 0)
        else:  # 401 parameters, fewer products than that
            assert share.standard_error > 0
            assert abs(share.value - float(exact)) <= share.standard_error
    theta = problem.parameters
    step = unflatten(1e-2 * found.direction, theta)
    sides = [problem.at({k: p + s * step[k] for k, p in theta.items()}) for s in (1, -1)]
    assert sum(side.risk(problem.train) for side in sides) / 2 < found.loss


def test_kinds_of_networks():
    x = torch.linspace(-1, 1, 11, dtype=torch.float64)[:, None]
    line = nn.Linear(1, 1).double()
    problem = Problem(line, (x, x**3), task="regression")
    assert classify_network(problem).kind == "not stationary"
    best = minimize_last_layer(problem)
    assert classify_network(problem.at(best.parameters)).kind == "minimum"

    # a third parameter that does nothing: the Hessian is singular
    class Idle(nn.Linear):
        def __init__(self):
            super().__init__(1, 1)
            self.idle = nn.Parameter(torch.ones(1))

    idle = Problem(Idle().double(), (x, x**3), task="regression").at(best.parameters)
    found = classify_network(idle)
    assert found.kind == "degenerate"
    assert (found.index.value, found.zeros.value) == (0, pytest.approx(1 / 3))
    assert found.direction is None
    with pytest.raises(InvalidInput, match="tolerance"):
        classify_network(problem, tolerance=1.0)


def test_all_eigenvalues_0_count_as_0():
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data, net = (x, x[:, :1]), nn.Linear(4, 1).double()
    problem = Problem(net, data, loss=lambda f, y: (f * y).mean(), task="regression")
    for probes in (2, 5):  # from random vectors, and from all of the matrix
        found = classify_network(problem, probes=probes, steps=1)
        assert (found.flat, found.index.value, found.zeros.value) == (0, 0, 1)
