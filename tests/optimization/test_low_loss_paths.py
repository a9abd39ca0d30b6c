"""Constructed paths between networks with one hidden layer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import nn

from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch, UnsupportedModel
from torchtheory.kernels.infinite.wide_layer import fit_last_layer
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import mlp
from torchtheory.optimization.landscape.low_loss_paths import (
    LEGS,
    last_layer_problem,
    low_loss_path,
    make_monotone,
    minimize_last_layer,
    path_losses,
)
from torchtheory.optimization.landscape.parameter_space import losses_at
from torchtheory.tracing.layer_features import last_hidden_features


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem_of(width=6, seed=0, *, outputs=1, bias=True, last_bias=True):
    net = mlp([2, width, outputs], "relu", bias=bias, last_bias=last_bias, generator=seed)
    return Problem(net, (normal(1, 9, 2), normal(2, 9, outputs)), task="regression")


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(2, 9),
    outputs=st.integers(1, 3),
    bias=st.booleans(),
    last_bias=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_the_legs_do_what_they_promise(seed, width, outputs, bias, last_bias):
    problem = problem_of(width, outputs=outputs, bias=bias, last_bias=last_bias)
    size = len(flatten(problem.parameters))
    start, end = normal(seed, size), normal(seed + 1, size)
    path = low_loss_path(problem, start, end)
    assert torch.equal(path.corners[0], start)
    assert torch.equal(path.corners[-1], end)
    assert len(path.corners) == len(LEGS) + 1
    losses = path_losses(problem, path.corners, count=9)
    for leg in (1, 2, 4, 5):
        assert torch.allclose(losses[leg], losses[leg, :1].expand(9), rtol=1e-9)
    assert float(losses[3].max()) <= float(torch.maximum(losses[3, 0], losses[3, -1])) * (1 + 1e-9)
    x = problem.train.x
    rows = torch.cat([x, torch.ones(len(x), 1)], 1) if bias else x
    reach = float(rows.square().sum(1).mean().sqrt()) / math.sqrt(outputs)
    for leg, shift, home in ((0, path.start_shift, 0), (6, path.end_shift, -1)):
        allowed = math.sqrt(float(losses[leg, home])) + shift * reach
        assert math.sqrt(float(losses[leg].max())) <= allowed * (1 + 1e-9)


def test_a_path_by_hand():
    net = mlp([1, 2, 1], "relu", bias=False)
    one = torch.ones(1, 1).double()
    problem = Problem(net, (one, one), task="regression")
    # two units 1 and 2 with output weights 3 and 5; the other end has units 4 and 6
    path = low_loss_path(
        problem, torch.tensor([1.0, 2, 3, 5]).double(), torch.tensor([4.0, 6, 7, 8]).double()
    )
    expected = [
        [1, 2, 3, 5], [1, 1, 3, 5], [1, 1, 8, 0], [1, 6, 8, 0],
        [1, 6, 0, 15], [6, 6, 0, 15], [6, 6, 7, 8], [4, 6, 7, 8],
    ]  # fmt: skip
    assert path.corners.tolist() == expected
    assert path.start_distances.tolist() == [1.0]
    assert path.end_distances.tolist() == [2.0]
    assert (path.start_shift, path.end_shift) == (5.0, 14.0)


def test_the_last_layer_is_solved():
    problem = problem_of(4)
    fit = minimize_last_layer(problem)
    exact = fit_last_layer(problem.model, problem.train.x, problem.train.y).model
    with torch.no_grad():
        best = float((exact(problem.train.x) - problem.train.y).square().mean())
    assert fit.risk == pytest.approx(best, abs=1e-9)
    convex = last_layer_problem(problem)
    assert convex.risk(convex.train) == pytest.approx(problem.risk(problem.train), abs=1e-12)


def test_a_logistic_last_layer_against_scikit_learn():
    net = mlp([2, 3, 1], "tanh", generator=4)
    x = normal(5, 60, 2)
    y = (normal(6, 60) > 0).double()
    problem = Problem(net, (x, y), task="binary")
    fit = minimize_last_layer(problem, tolerance=1e-6)
    features = last_hidden_features(net, x).numpy()
    other = LogisticRegression(C=1e10, tol=1e-10, max_iter=10_000).fit(features, y.numpy())
    weight = torch.as_tensor(other.coef_)
    logits = torch.as_tensor(features) @ weight.T + torch.as_tensor(other.intercept_)
    loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y)
    assert fit.risk == pytest.approx(float(loss), abs=1e-6)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_any_path_from_a_bad_start_can_be_made_monotone(seed):
    problem = problem_of(8)
    good = fit_last_layer(problem.model, problem.train.x, problem.train.y).model
    end = flatten({k: p.detach() for k, p in good.named_parameters()})
    source = torch.Generator().manual_seed(seed)
    steps = torch.randn(12, len(end), dtype=torch.float64, generator=source)
    named = unflatten(steps[0], problem.parameters)
    named["2.weight"].mul_(20)
    points = torch.cat([steps, end[None]])
    found = make_monotone(problem, points, tail=5)
    assert float(found.losses.diff().max()) < 0
    assert torch.allclose(found.points[0], points[0])
    assert torch.equal(found.points[-1], end)
    assert torch.allclose(found.losses, losses_at(problem, found.points))


def test_bad_input():
    problem = problem_of()
    theta = flatten(problem.parameters)
    with pytest.raises(ShapeMismatch, match="parameters"):
        low_loss_path(problem, theta[1:], theta[1:])
    deep = Problem(mlp([2, 3, 3, 1]), (normal(1, 4, 2), normal(2, 4, 1)), task="regression")
    with pytest.raises(UnsupportedModel, match="one hidden layer"):
        low_loss_path(deep, flatten(deep.parameters), flatten(deep.parameters))
    narrow = problem_of(1)
    point = flatten(narrow.parameters)
    with pytest.raises(UnsupportedModel, match="two hidden units"):
        low_loss_path(narrow, point, point)
    with pytest.raises(InvalidInput, match="two corners"):
        path_losses(problem, theta[None])
    good = fit_last_layer(problem.model, problem.train.x, problem.train.y).model
    best = flatten({k: p.detach() for k, p in good.named_parameters()})
    with pytest.raises(InvalidInput, match="zero function"):
        make_monotone(problem, torch.stack([best, theta]))
    bad = theta.clone()
    unflatten(bad, problem.parameters)["2.weight"].fill_(50)
    with pytest.raises(InvalidInput, match="zero on all samples"):
        make_monotone(problem, torch.stack([bad, 0 * bad]))
    with pytest.raises(InvalidInput, match="best point of its ray"):
        make_monotone(problem, torch.stack([bad, best * 0.5]))
    with pytest.raises(NotConverged, match="gradient"):
        minimize_last_layer(problem, steps=1)
    with pytest.raises(InvalidInput, match="tolerance"):
        minimize_last_layer(problem, tolerance=0.0)


def test_a_network_in_single_precision_and_two_networks_as_ends():
    nets = [mlp([2, 6, 1], "relu", generator=seed).float() for seed in (0, 1)]
    problem = Problem(nets[0], (normal(1, 9, 2).float(), normal(2, 9, 1).float()))
    fit = minimize_last_layer(problem)
    assert fit.gradient_norm <= 1e-8
    assert all(p.dtype == torch.float32 for p in fit.parameters.values())
    path = low_loss_path(problem, nets[0], nets[1].state_dict())
    losses = path_losses(problem, path.corners, count=3)
    other = Problem(nets[1], (problem.train.x, problem.train.y))
    assert float(losses[0, 0]) == pytest.approx(problem.risk(problem.train), rel=1e-5)
    assert float(losses[-1, -1]) == pytest.approx(other.risk(other.train), rel=1e-5)
