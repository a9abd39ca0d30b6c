"""Random networks with two layers, and the step that flips them."""

import copy
import math

import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import mean_interval
from torchtheory.robustness import random_networks
from torchtheory.robustness.random_networks import (
    flip_curve,
    flip_length_median,
    gradient_factors,
    gradient_lower_bound,
    mean_squared_gradient,
    one_step_attack,
    random_steps,
    random_two_layer,
    slope_constants,
    slope_log_moments,
    sphere_points,
    squared_slope_floor,
)


def test_the_network_is_its_formula():
    net = random_two_layer(7, 5, "tanh", generator=3)
    x = sphere_points(4, 5, torch.Generator().manual_seed(0))
    w, a = net[0].weight, net[2].weight[0] * math.sqrt(7)
    assert set(a.tolist()) <= {-1.0, 1.0} or torch.allclose(a.abs(), torch.ones_like(a))
    torch.testing.assert_close(net(x)[:, 0], (torch.tanh(x @ w.T) @ a) / math.sqrt(7))
    wide = random_two_layer(400, 300, generator=1)[0].weight
    assert abs(float(wide.square().mean()) * 300 - 1) < 0.03


@pytest.mark.parametrize("shape", [(3, 6), (2, 2, 3)])
def test_the_step_is_its_formula_and_leaves_the_model_alone(shape):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 9), nn.Softplus(), nn.Linear(9, 1)).double()
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(*shape, dtype=torch.float64)
    step = one_step_attack(net, x)
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(point).sum(), point)
    f = net(x)[:, 0].detach()
    norms = slope.flatten(1).norm(dim=1)
    rate = (2 * f / norms**2).reshape(-1, *[1] * (x.ndim - 1))
    torch.testing.assert_close(step.moved, x - rate * slope)
    torch.testing.assert_close(step.lengths, (step.moved - x).flatten(1).norm(dim=1))
    torch.testing.assert_close(step.lengths, 2 * f.abs() / norms)
    torch.testing.assert_close(step.relative, step.lengths / x.flatten(1).norm(dim=1))
    torch.testing.assert_close(step.after, net(step.moved)[:, 0].detach())
    assert step.success.tolist() == (step.after * step.before < 0).tolist()
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    other_way = one_step_attack(net, x, multiple=-0.5)
    torch.testing.assert_close(other_way.moved, x + 0.5 * rate * slope)


def test_a_linear_function_turns_to_its_negative():
    net = nn.Linear(5, 1, bias=False).double()
    step = one_step_attack(net, torch.randn(6, 5, dtype=torch.float64))
    torch.testing.assert_close(step.after, -step.before)
    assert bool(step.success.all())


def test_without_a_gradient_nothing_moves():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    x = torch.ones(2, 3, dtype=torch.float64)
    step = one_step_attack(net, x)
    assert torch.equal(step.moved, x)
    assert not bool(step.success.any())
    assert bool(step.lengths.isinf().all())


@pytest.mark.parametrize("function", ["relu", "tanh", torch.sin])
def test_many_networks_at_once_are_steps_on_single_ones(function):
    g = torch.Generator().manual_seed(5)
    w, a = torch.randn(6, 8, 4, generator=g).double() / 2, torch.randn(6, 8, generator=g).double()
    x = sphere_points(6, 4, g)
    many = random_networks._drawn_steps(w, a, x, random_networks.as_layer(function))
    for i in range(6):
        net = nn.Sequential(
            random_networks.dense(w[i]),
            random_networks.as_layer(function),
            random_networks.dense(a[i : i + 1]),
        )
        one = one_step_attack(net, x[i : i + 1])
        for name in ("before", "after", "gradient_norms", "lengths", "relative", "moved"):
            torch.testing.assert_close(getattr(many, name)[i : i + 1], getattr(one, name))


def test_chunks_change_the_draws_only(monkeypatch):
    whole = random_steps(3000, 5, 4, "tanh", generator=1)
    monkeypatch.setattr(random_networks, "_WEIGHTS", 100)
    parts = random_steps(300, 5, 4, "tanh", generator=2)
    assert len(parts.before) == 300
    assert parts.moved.shape == (300, 4)
    one, other = (mean_interval(s.before.square(), 0.9999) for s in (whole, parts))
    assert one.low < other.high
    assert other.low < one.high
    long = random_steps(5, 5, 4, length=7.0)
    torch.testing.assert_close(long.lengths / long.relative, torch.full((5,), 7.0).double())


@pytest.mark.parametrize("function", ["relu", "tanh", "softplus"])
def test_the_mean_squared_gradient(function):
    steps = random_steps(4000, 10, 3, function, generator=4)
    found = mean_interval(steps.gradient_norms.square(), 0.9999)
    assert found.low < mean_squared_gradient(function, 3) < found.high


def test_flips_get_shorter_like_the_root_of_the_dimension():
    curve = flip_curve([25, 400], 100, "tanh", trials=200, generator=0)
    assert curve.predicted == [flip_length_median("tanh") / 5, flip_length_median("tanh") / 20]
    assert 2.5 < curve.relative[0].estimate / curve.relative[1].estimate < 6
    assert curve.success[1].estimate > 0.9


def test_the_bounds_of_the_gradient():
    net = random_two_layer(50, 400, "tanh", generator=2)
    x = sphere_points(3, 400, torch.Generator().manual_seed(1))
    floor = gradient_lower_bound(net, x, 0.05)
    slopes = 1 - torch.tanh(x @ net[0].weight.T) ** 2
    torch.testing.assert_close(floor.mean_square, slopes.square().mean(1).detach())
    printed = 1 - 5 * math.sqrt(math.log(40) / 400)
    torch.testing.assert_close(floor.bound, printed * floor.mean_square.sqrt())
    assert bool((floor.sharper > floor.bound).all())
    sharper = math.sqrt((399 - 2 * math.sqrt(399 * math.log(20))) / 400)
    assert gradient_factors(400, 0.05) == pytest.approx((printed, sharper))
    assert gradient_factors(92, 0.05)[0] == 0  # d <= 25 log(2/γ): nothing is said
    assert gradient_factors(93, 0.05)[0] > 0


def test_moments_of_the_derivative():
    torch.testing.assert_close(
        slope_log_moments(lambda z: z**2 / 2, 5).exp(),
        torch.tensor([3.0, 15.0, 105.0, 945.0], dtype=torch.float64),
    )
    found = slope_constants("relu")
    assert (found.variance, found.scale) == pytest.approx((0.5, 1 / 3))
    expected = 0.5 - math.sqrt(4 * 0.5 * math.log(20) / 1000) - math.log(20) / 3000
    assert squared_slope_floor("relu", 1000, 0.05) == pytest.approx(expected)


def test_bad_input_is_refused():
    x = sphere_points(2, 6, torch.Generator())
    net = random_two_layer(4, 6)
    with pytest.raises(ShapeMismatch, match="one output"):
        one_step_attack(nn.Linear(6, 2).double(), x)
    with pytest.raises(InvalidInput, match="length"):
        gradient_lower_bound(net, 2 * x, 0.05)
    with pytest.raises(InvalidInput, match="gamma"):
        gradient_lower_bound(net, x, 0.9)
    with pytest.raises(UnsupportedModel, match="random_two_layer"):
        gradient_lower_bound(nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1)), x, 0.05)
    with pytest.raises(InvalidInput, match="derivative vanishes"):
        flip_length_median("heaviside")
