"""Sharpness of user's models, Dinh's rescaling, and the margin of robust linear parameters."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.generalization.flatness.parameter_robustness import robust_parameter_ball
from torchtheory.generalization.flatness.rescaling import (
    LayerPair,
    balanced,
    block_hessian,
    rescalable_pairs,
    rescale_pair,
    rescaled,
    sharpening_factor,
)
from torchtheory.generalization.flatness.sharpness import (
    ball_sharpness,
    hessian_sharpness,
    noise_sharpness,
    relative_hessian,
)
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def fill(net: nn.Module, seed: int = 0) -> nn.Module:
    net = net.double()
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(randn(*p.shape, seed=seed + k) / 2)
    return net


def quadratic(curvatures: list[float]) -> Problem:
    """Loss sum_i c_i w_i² / 2 at w = 0, from a linear model with one input a direction."""
    n = len(curvatures)
    x = torch.diag((torch.tensor(curvatures, dtype=torch.float64) * n / 2).sqrt())
    net = nn.Linear(n, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    return Problem(net, (x, torch.zeros(n, 1).double()), task="regression")


def relu_net(seed: int = 0) -> nn.Module:
    return fill(
        nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), seed
    )


def dense_hessian(problem: Problem) -> Tensor:
    like = problem.parameters
    loss = problem.objective(problem.train)
    return torch.func.hessian(lambda v: loss(unflatten(v, like)))(flatten(like))


@settings(max_examples=5, deadline=None)
@given(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=5), st.floats(0.01, 3.0))
def test_measures_of_a_quadratic(curvatures: list[float], radius: float) -> None:
    problem = quadratic(curvatures)
    exact = radius**2 * max(curvatures) / 2
    found = ball_sharpness(problem, radius, starts=1)
    assert found.value <= exact * (1 + 1e-9)  # never above the maximum
    assert found.value >= 0.9 * exact
    assert float(found.direction.norm()) <= radius * (1 + 1e-9)
    curvature = hessian_sharpness(problem)
    assert curvature.largest == pytest.approx(max(curvatures), rel=1e-6)
    assert curvature.trace.value == pytest.approx(sum(curvatures), rel=1e-9)
    assert radius**2 * curvature.largest / 2 == pytest.approx(exact, rel=1e-6)


def test_noise_on_a_quadratic_and_by_direct_average() -> None:
    problem = quadratic([1.0, 3.0])
    found = noise_sharpness(problem, 0.5, draws=100, confidence=0.999)
    assert found.low < 0.25 * 4 / 2 < found.high
    assert found.trials == 100
    assert found.estimate == noise_sharpness(problem, 0.5, draws=100).estimate


def test_ball_with_a_single_parameter_by_a_grid() -> None:
    net = fill(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh()))
    x = randn(20, 1)
    problem = Problem(net, (x, x.sin()), task="regression")
    name = next(iter(problem.parameters))
    at = problem.parameters[name]
    grid = torch.linspace(-0.7, 0.7, 71).double()
    risks = [problem.at({name: at + t}).risk(problem.train) for t in grid]
    best = max(risks) - problem.risk(problem.train)
    found = ball_sharpness(problem, 0.7)
    assert found.value == pytest.approx(best, rel=1e-3)
    moved = problem.at({name: at + found.direction.view_as(at)}).risk(problem.train)
    assert found.value == pytest.approx(moved - found.loss, rel=1e-9)


def test_hessian_is_the_dense_one_in_chunks() -> None:
    net = fill(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    data = randn(30, 3, seed=9), torch.arange(30) % 3
    exact = dense_hessian(Problem(net, data))
    small = Problem(net, data, chunk=16)
    found = hessian_sharpness(small, count=3)
    values = torch.linalg.eigvalsh(exact).flip(0)
    torch.testing.assert_close(found.eigenvalues.values, values[:3], atol=1e-8, rtol=1e-6)
    assert found.trace.value == pytest.approx(float(exact.trace()), rel=1e-9)
    scale = flatten(small.parameters).abs()
    torch.testing.assert_close(relative_hessian(small).to_dense(), scale[:, None] * exact * scale)
    whole = ball_sharpness(Problem(net, data), 0.1, steps=3, starts=0).value
    assert ball_sharpness(small, 0.1, steps=3, starts=0).value == pytest.approx(whole, rel=1e-8)


def test_models_are_left_alone() -> None:
    net = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2)
    )
    net[4].weight.grad = torch.ones(2, 4)
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    problem = Problem(net, (randn(12, 3).float(), torch.arange(12) % 2))
    ball_sharpness(problem, 0.1, steps=2)
    noise_sharpness(problem, 0.1, draws=3, relative=True)
    hessian_sharpness(problem, trace_samples=6)
    assert net.training
    assert net[3].training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(net[4].weight.grad, torch.ones(2, 4))
    assert net[0].weight.grad is None
    assert torch.equal(state, torch.get_rng_state())


def test_bad_input_of_the_measures() -> None:
    problem = quadratic([1.0, 2.0])
    with pytest.raises(InvalidInput, match="radius must be a positive"):
        ball_sharpness(problem, 0.0)
    with pytest.raises(InvalidInput, match="noise must be a positive"):
        noise_sharpness(problem, math.nan)
    with pytest.raises(InvalidInput, match="starts must be a whole number >= 0"):
        ball_sharpness(problem, 1.0, starts=-1)
    with pytest.raises(NonFinite, match="finite"):
        ball_sharpness(problem, 1.0, parameters={"weight": torch.full((1, 2), math.nan).double()})
    overflow = Problem(
        nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.zeros(2, 1) + 0.5), task="regression"
    )
    with pytest.raises(NonFinite, match="smaller perturbation"):
        ball_sharpness(overflow, 1e30)

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    empty = Problem(Constant(), (torch.ones(2, 1), torch.ones(2, 1)), task="regression")
    with pytest.raises(UnsupportedModel, match="no parameter"):
        ball_sharpness(empty, 1.0)


@settings(max_examples=5, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 1), st.integers(0, 50))
def test_rescaling_keeps_the_function_and_scales_the_blocks(
    factor: float, which: int, seed: int
) -> None:
    net = relu_net(seed)
    pair = rescalable_pairs(net)[which]
    other = rescaled(net, factor, pair)
    x, y = randn(20, 3, seed=seed), randn(20, 2, seed=seed + 1)
    torch.testing.assert_close(other(x), net(x), rtol=1e-9, atol=1e-9)
    before, after = Problem(net, (x, y)), Problem(other, (x, y))
    for name, power in ((f"{pair.incoming}.bias", -2), (f"{pair.outgoing}.weight", 2)):
        old = block_hessian(before, name).to_dense()
        new = block_hessian(after, name).to_dense()
        torch.testing.assert_close(new, old * factor**power, rtol=1e-6, atol=1e-9 * factor**power)


def test_relative_measures_do_not_see_the_rescaling() -> None:
    net = relu_net()
    other = rescaled(net, 30.0)
    data = randn(20, 3), randn(20, 2, seed=1)
    mine, yours = Problem(net, data), Problem(other, data)
    torch.testing.assert_close(
        relative_hessian(mine).to_dense(), relative_hessian(yours).to_dense(), rtol=1e-7, atol=1e-9
    )
    a = noise_sharpness(mine, 0.1, relative=True, draws=5)
    b = noise_sharpness(yours, 0.1, relative=True, draws=5)
    assert a.estimate == pytest.approx(b.estimate, rel=1e-9)
    c, d = (ball_sharpness(p, 0.1, relative=True, steps=3, starts=0) for p in (mine, yours))
    assert c.value == pytest.approx(d.value, rel=1e-6)
    assert hessian_sharpness(yours).largest > 2 * hessian_sharpness(mine).largest


def test_convolutions_and_balanced_form() -> None:
    net = fill(
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4),
            nn.ReLU(), nn.Linear(4, 3),
        )
    )  # fmt: skip
    assert rescalable_pairs(net) == [LayerPair("0", "4"), LayerPair("4", "6")]
    x = randn(5, 1, 6, 6)
    other = rescaled(rescaled(net, 7.0), 0.01, LayerPair("4", "6"))
    torch.testing.assert_close(other(x), net(x))
    for (name, p), q in zip(
        balanced(net).named_parameters(), balanced(other).parameters(), strict=True
    ):
        torch.testing.assert_close(p, q, msg=name)
    form = balanced(other)
    torch.testing.assert_close(form(x), net(x))
    first = torch.cat([form[0].weight.flatten(), form[0].bias]).norm().item()
    assert first == pytest.approx(form[4].weight.norm().item(), rel=1e-9)
    assert sum(float(p.square().sum()) for p in form.parameters()) < sum(
        float(p.square().sum()) for p in net.parameters()
    )


def test_sharpening_reaches_its_target() -> None:
    net = relu_net()
    data = randn(20, 3), randn(20, 2, seed=1)
    problem = Problem(net, data)
    for pair in rescalable_pairs(net):
        factor = sharpening_factor(problem, 1e5, pair)
        assert hessian_sharpness(Problem(rescaled(net, factor, pair), data)).largest >= 1e5


def test_what_cannot_be_rescaled() -> None:
    tanh = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    normalized = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    shared = nn.Linear(2, 2)
    tied = nn.Sequential(shared, nn.ReLU(), shared)
    for net in (tanh, normalized, tied):
        assert rescalable_pairs(net) == []
        with pytest.raises(UnsupportedModel, match="positively homogeneous"):
            rescaled(net, 2.0)
    net = relu_net()
    with pytest.raises(InvalidInput, match="cannot be scaled"):
        rescaled(net, 2.0, LayerPair("0", "4"))
    with pytest.raises(InvalidInput, match="positive number"):
        rescaled(net, -1.0)
    with pytest.raises(InvalidType, match=r"torch\.nn\.Module"):
        rescalable_pairs("net")  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        rescale_pair({}, LayerPair("0", "2"), 2.0)
    with pytest.raises(UnknownName):
        block_hessian(Problem(net, (randn(4, 3), randn(4, 2))), "weight")
    dead = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    nn.init.constant_(dead[0].bias, -100.0)
    with pytest.raises(InvalidInput, match="there is none"):
        sharpening_factor(Problem(dead, (torch.ones(2, 1), torch.zeros(2, 1) + 0.5)), 10.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 1000))
def test_robust_ball_of_a_linear_classifier(d: int, n: int, seed: int) -> None:
    theta, x = randn(d, seed=seed), randn(n, d, seed=seed + 1)
    y = (x @ theta).sign()
    found = robust_parameter_ball(theta, x, y)
    assert found.margin >= found.promised_margin * (1 - 1e-12)
    assert float(found.worst.norm()) == pytest.approx(found.radius)
    at_edge = (y * (x @ (theta + found.worst))).min()
    assert abs(float(at_edge)) < 1e-9
    inside = randn(200, d, seed=seed + 2)
    inside = 0.999 * found.radius * inside / inside.norm(dim=1, keepdim=True)
    assert bool(((theta + inside) @ x.T * y > 0).all())


def test_bad_input_of_the_robust_ball() -> None:
    x, y = torch.eye(2), torch.tensor([1.0, -1.0])
    with pytest.raises(InvalidInput, match="does not separate"):
        robust_parameter_ball(torch.zeros(2), x, y)
    with pytest.raises(InvalidInput, match="origin"):
        robust_parameter_ball(torch.ones(2), torch.zeros(2, 2), y)
    with pytest.raises(ShapeMismatch):
        robust_parameter_ball(torch.ones(3), x, y)
