"""Training with a fixed kernel, in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from sklearn.kernel_ridge import KernelRidge
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.kernels.tangent.dynamics import (
    DescentRule,
    FlowRule,
    HeavyBallRule,
    KernelTraining,
)
from torchtheory.kernels.tangent.kernel import empirical_ntk

seeds = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features(seed, n=6, m=4, p=12):
    """Feature matrices of training and test points, and the kernels they make."""
    both = normal(seed, n + m, p) / math.sqrt(p)
    train, test = both[:n], both[n:]
    return train, test, train @ train.T, test @ train.T


def test_one_point_by_hand():
    # f' = -3 (f - 5) from 1, and at the test point g' = -2 (f - 5) from 7
    flow = KernelTraining(torch.tensor([[3.0]]), torch.tensor([5.0]), torch.tensor([1.0]), rate=1.0)
    t = math.log(2) / 3
    assert flow.train(t) == pytest.approx(3.0)
    assert flow.test(torch.tensor([[2.0]]), t, torch.tensor([7.0])) == pytest.approx(
        7 + 2 / 3 * 4 * 0.5
    )
    assert flow.loss(t) == pytest.approx(2.0)
    assert flow.rank == 1


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_flow_is_the_matrix_exponential(seed):
    _, _, kernel, cross = features(seed)
    y, start, begin = normal(seed + 1, 6), normal(seed + 2, 6), normal(seed + 3, 4)
    flow = KernelTraining(kernel, y, start, rate=0.7)
    for t in (0.0, 0.3, 5.0):
        left = torch.from_numpy(expm(-0.7 * t * kernel.numpy()))
        assert torch.allclose(flow.train(t), y + left @ (start - y), atol=1e-10)
        influence = cross @ torch.linalg.solve(kernel, torch.eye(6).double() - left)
        assert torch.allclose(flow.influence(cross, t), influence, atol=1e-7)
        expected = begin + influence @ (y - start)
        assert torch.allclose(flow.test(cross, t, begin), expected, atol=1e-7)


def test_flow_against_a_solver_in_parameters():
    train, test, kernel, cross = features(3)
    y, theta = normal(4, 6), normal(5, 12)

    def velocity(_, point):
        return train.numpy().T @ (y.numpy() - train.numpy() @ point) * 2 / 6

    times = torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)
    solved = solve_ivp(
        velocity, (0, 9), theta.numpy(), t_eval=times.numpy(), rtol=1e-11, atol=1e-12
    )
    points = torch.from_numpy(solved.y.T)
    flow = KernelTraining(kernel, y, train @ theta, rate=2 / 6)
    assert torch.allclose(flow.train(times), points @ train.T, atol=1e-8)
    assert torch.allclose(flow.test(cross, times, test @ theta), points @ test.T, atol=1e-8)
    mean_squares = (points @ train.T - y).square().mean(1)
    assert torch.allclose(flow.loss(times), mean_squares, atol=1e-8)


def test_the_limit_is_kernel_regression_without_penalty():
    _, _, kernel, cross = features(8)
    y = normal(9, 6, 3)
    flow = KernelTraining(kernel, y)
    reference = KernelRidge(alpha=1e-13, kernel="precomputed").fit(kernel.numpy(), y.numpy())
    expected = torch.from_numpy(reference.predict(cross.numpy()))
    assert torch.allclose(flow.test(cross, math.inf), expected, atol=1e-7)
    assert torch.allclose(flow.test(cross, 1e7), expected, atol=1e-7)
    assert torch.allclose(flow.train(math.inf), y)


def test_a_singular_kernel_learns_what_it_can():
    train, test, kernel, cross = features(10, p=3)
    y = normal(11, 6)
    flow = KernelTraining(kernel, y)
    assert flow.rank == 3
    theta = torch.linalg.lstsq(train, y).solution
    for time in (1e9, 1e15, math.inf):
        assert torch.allclose(flow.train(time), train @ theta, atol=1e-9)
        assert torch.allclose(flow.test(cross, time), test @ theta, atol=1e-9)
    assert flow.time_to_fit(0.1).isinf().sum() == 3


def test_shapes_follow_times_and_targets():
    _, _, kernel, cross = features(0)
    flow = KernelTraining(kernel, normal(1, 6, 2))
    assert flow.train(1.0).shape == (6, 2)
    assert flow.train([1.0, 2.0, 3.0]).shape == (3, 6, 2)
    assert flow.test(cross, torch.ones(3, 5)).shape == (3, 5, 4, 2)
    assert flow.loss(torch.ones(3, 5)).shape == (3, 5)
    assert flow.residual(torch.ones(3, 5)).shape == (3, 5, 6)
    single = KernelTraining(kernel.float(), normal(1, 6).float())
    assert single.test(cross.float(), [1.0]).dtype == torch.float32


def test_a_kernel_per_output_is_flattened_as_the_outputs_are():
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, other = normal(20, 4, 3), normal(21, 3, 3)
    kernel, cross = empirical_ntk(net, x), empirical_ntk(net, other, x)
    y, start, begin = normal(22, 4, 2), normal(23, 4, 2), normal(24, 3, 2)
    flow = KernelTraining(kernel, y, start, rate=0.5)
    f, g, h = start.clone(), begin.clone(), 1e-3
    for _ in range(400):  # the midpoint rule in function space
        middle = f - h / 2 * 0.5 * torch.einsum("nmcd,md->nc", kernel, f - y)
        g = g - h * 0.5 * torch.einsum("nmcd,md->nc", cross, middle - y)
        f = f - h * 0.5 * torch.einsum("nmcd,md->nc", kernel, middle - y)
    assert torch.allclose(flow.train(0.4), f, atol=1e-5)
    assert torch.allclose(flow.test(cross, 0.4, begin), g, atol=1e-5)
    same = torch.einsum("nm,cd->nmcd", kernel[..., 0, 0], torch.eye(2).double())
    shared = KernelTraining(kernel[..., 0, 0], y, start)
    assert torch.allclose(
        KernelTraining(same, y, start).train([0.1, 1.0]), shared.train([0.1, 1.0])
    )


@given(seeds, st.floats(0.05, 1.3), st.sampled_from([0.0, 0.3, 0.9, 0.99]))
@settings(max_examples=30, deadline=None)
def test_steps_are_those_of_torch(seed, relative, momentum):
    train, test, kernel, cross = features(seed)
    y, theta = normal(seed + 1, 6), normal(seed + 2, 12)
    flow = KernelTraining(kernel, y, train @ theta)
    step = relative * flow.stability_limit(momentum)  # below, at and beyond the limit
    moving = theta.clone().requires_grad_()
    optimizer = torch.optim.SGD([moving], lr=step, momentum=momentum)
    points = [theta]
    for _ in range(25):
        optimizer.zero_grad()
        ((train @ moving - y).square().sum() / 2).backward()
        optimizer.step()
        points.append(moving.detach().clone())
    path = torch.stack(points)
    steps = torch.arange(26)
    ball = flow.with_rule(HeavyBallRule(step, momentum))
    size = path.abs().max()
    assert torch.allclose(ball.train(steps) / size, path @ train.T / size, atol=1e-9)
    assert torch.allclose(
        ball.test(cross, steps, test @ theta) / size, path @ test.T / size, atol=1e-9
    )
    if momentum == 0:
        plain = flow.with_rule(DescentRule(step))
        assert torch.equal(plain.train(steps), ball.train(steps))


@pytest.mark.parametrize("momentum", [0.25, 0.81])
def test_heavy_ball_near_its_double_roots(momentum):
    # ηλ = (1 ± √β)² makes the roots equal; around it the formulas change
    edges = torch.tensor([(1 - momentum**0.5) ** 2, (1 + momentum**0.5) ** 2]).double()
    size = torch.cat([edges + shift for shift in (-1e-6, -1e-12, 0.0, 1e-12, 1e-6)])
    size = torch.cat([size, edges[:1] / 2 * (1 + 1e-9), edges[:1] / 2 * (1 - 1e-9)])
    rule = HeavyBallRule(1.0, momentum)
    steps = torch.arange(60).double()
    before, now = torch.ones_like(size), torch.ones_like(size)
    rows = []
    for _ in steps:
        rows.append(now)
        before, now = now, (1 + momentum - size) * now - momentum * before
    expected = torch.stack(rows)
    assert torch.allclose(rule.residual(size, steps), expected, atol=1e-9)
    assert torch.allclose(rule.response(size, steps), (1 - expected) / size, atol=1e-8)


def test_responses_keep_their_digits_at_small_eigenvalues():
    tiny = torch.tensor([0.0, 1e-30, 1e-18, 1e-13]).double()
    t = torch.tensor([7.0]).double()
    assert torch.allclose(FlowRule().response(tiny, t), t, rtol=1e-11)
    assert torch.allclose(DescentRule(0.5).response(tiny, t), t / 2, rtol=1e-11)
    # Σ_{j=1}^{7} (1 - β^j) / (1 - β) at β = 1/2
    ball = HeavyBallRule(0.5, 0.5).response(tiny, t)
    assert torch.allclose(ball, 0.5 * 2 * (t - (1 - 0.5**7)), rtol=1e-11)


@given(seeds, st.sampled_from([0.0, 0.5, 0.9]))
@settings(max_examples=20, deadline=None)
def test_the_stability_limit_separates_decay_from_growth(seed, momentum):
    _, _, kernel, _ = features(seed)
    y = normal(seed + 1, 6)
    flow = KernelTraining(kernel, y, rate=1 / 3)
    limit = flow.stability_limit(momentum)
    below = flow.with_rule(HeavyBallRule(0.999 * limit, momentum))
    above = flow.with_rule(HeavyBallRule(1.001 * limit, momentum))
    assert (below.rule.contraction(below.eigenvalues / 3) < 1).all()
    assert above.rule.contraction(above.eigenvalues / 3)[-1] > 1
    assert torch.allclose(below.train(math.inf), y)
    assert above.loss(60_000) > 1e3 * above.loss(0)


def test_time_to_fit_is_the_time_to_fit():
    flow = KernelTraining(torch.diag(torch.tensor([0.5, 1.0, 4.0]).double()), normal(0, 3), rate=3)
    times = flow.time_to_fit(1e-3)
    assert torch.allclose(times, -math.log(1e-3) / (3 * flow.eigenvalues))
    assert torch.allclose(flow.residual(times).diagonal(), torch.full((3,), 1e-3).double())
    descent = flow.with_rule(DescentRule(0.05))
    steps = descent.time_to_fit(1e-3).ceil()
    assert (descent.residual(steps).diagonal() <= 1e-3 * (1 + 1e-9)).all()
    assert (descent.residual(steps - 1).diagonal() > 1e-3).all()
    assert flow.with_rule(DescentRule(0.3)).time_to_fit(1e-3)[-1] == math.inf


def test_an_ensemble_is_columns():
    _, _, kernel, _ = features(2)
    y, starts = normal(3, 6), normal(4, 6, 5)
    flow = KernelTraining(kernel, y[:, None].expand(6, 5), starts)
    one = KernelTraining(kernel, y, starts[:, 2].contiguous())
    assert torch.allclose(flow.train([1.0, 2.0])[..., 2], one.train([1.0, 2.0]))


def test_bad_input_is_refused():
    kernel, y = torch.eye(3), torch.ones(3)
    flow = KernelTraining(kernel, y)
    with pytest.raises(ShapeMismatch, match=r"\[n, n, C, C\]"):
        KernelTraining(torch.ones(3), y)
    with pytest.raises(ShapeMismatch, match="does not fit"):
        KernelTraining(kernel, torch.ones(4))
    with pytest.raises(ShapeMismatch, match="does not fit"):
        KernelTraining(torch.ones(2, 2, 3, 3), torch.ones(3, 2))
    with pytest.raises(InvalidInput, match="symmetric"):
        KernelTraining(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.ones(2))
    with pytest.raises(InvalidInput, match="negative eigenvalue"):
        KernelTraining(-kernel, y)
    with pytest.raises(InvalidInput, match="float64"):
        KernelTraining(kernel.double(), y)
    with pytest.raises(NonFinite):
        KernelTraining(kernel, y * math.nan)
    with pytest.raises(InvalidType):
        KernelTraining(kernel, torch.ones(3, dtype=torch.long))
    with pytest.raises(InvalidType):
        KernelTraining([[1.0]], torch.ones(1))
    with pytest.raises(ShapeMismatch, match="start"):
        KernelTraining(kernel, y, torch.ones(2))
    with pytest.raises(InvalidInput, match="rate"):
        KernelTraining(kernel, y, rate=0.0)
    with pytest.raises(ShapeMismatch, match="test and training"):
        flow.test(torch.ones(2, 4), 1.0)
    with pytest.raises(NonFinite):
        flow.test(torch.ones(2, 3) * math.inf, 1.0)
    with pytest.raises(InvalidInput, match=">= 0"):
        flow.train(-1.0)
    with pytest.raises(InvalidInput, match="whole"):
        flow.with_rule(DescentRule(0.1)).train(0.5)
    with pytest.raises(InvalidInput, match="stability"):
        flow.with_rule(DescentRule(2.0)).train(math.inf)
    with pytest.raises(InvalidInput, match="momentum"):
        HeavyBallRule(0.1, 1.0)
    with pytest.raises(InvalidInput, match="step"):
        DescentRule(math.nan)
    with pytest.raises(InvalidInput, match="tolerance"):
        flow.time_to_fit(1.0)
