"""Momentum, Adam, decay, projections and schedules against definitions and against torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, RMSprop
from torch.optim import lr_scheduler as schedulers

from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.training.optimizers.adam import UncorrectedAdam
from torchtheory.training.optimizers.momentum import (
    HeavyBall,
    Nesterov,
    effective_step,
    nesterov_iterate,
)
from torchtheory.training.optimizers.projection import onto_ball
from torchtheory.training.optimizers.schedules import PowerLaw, robbins_monro
from torchtheory.training.regularizers.decay import weight_decay_groups

momenta = st.floats(0, 0.95)
rates = st.floats(0.001, 0.1)


def bumpy(theta):
    return theta.square().sum() / 2 + torch.cos(3 * theta).sum()


def walk(make, steps=15, start=(1.0, -2.0, 0.3)):
    theta = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = make([theta])

    def closure():
        optimizer.zero_grad()
        loss = bumpy(theta)
        loss.backward()
        return loss

    points = [theta.detach().clone()]
    for _ in range(steps):
        optimizer.step(closure)
        points.append(theta.detach().clone())
    return torch.stack(points), optimizer, closure


# -- momentum -----------------------------------------------------------------------------------


def test_heavy_ball_by_hand():
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    optimizer = HeavyBall([x], lr=0.5, momentum=0.5)
    for expected in (1.0, 0.0, -0.5, -0.5):  # x/2 plus half the last move
        x.grad = x.detach().clone()
        optimizer.step()
        assert x.item() == pytest.approx(expected, abs=1e-15)


@given(rates, momenta)
@settings(max_examples=15, deadline=None)
def test_heavy_ball_is_sgd_with_momentum_at_a_constant_rate(lr, beta):
    ours, *_ = walk(lambda p: HeavyBall(p, lr=lr, momentum=beta))
    torchs, *_ = walk(lambda p: SGD(p, lr=lr, momentum=beta))
    assert torch.allclose(ours, torchs, atol=1e-12)


@given(rates, st.floats(0.01, 0.95))
@settings(max_examples=15, deadline=None)
def test_nesterov_is_torchs_after_the_change_of_variables(lr, beta):
    ours, *_ = walk(lambda p: Nesterov(p, lr=lr, momentum=beta), steps=8)
    theta = torch.tensor([1.0, -2.0, 0.3], dtype=torch.float64, requires_grad=True)
    optimizer = SGD([theta], lr=lr, momentum=beta, nesterov=True)
    for step in range(8):
        assert torch.allclose(nesterov_iterate(optimizer, theta), ours[step], atol=1e-12)
        optimizer.zero_grad()
        bumpy(theta).backward()
        optimizer.step()


def test_nesterov_sequence_starts_with_a_plain_step_and_counts_up():
    x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = Nesterov([x], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = x.square().sum() / 2
        loss.backward()
        return loss

    iterates = [1.0, 1.0]
    for t in range(1, 6):
        optimizer.step(closure)
        chi = iterates[-1] + (t - 1) / (t + 2) * (iterates[-1] - iterates[-2])
        iterates.append(0.9 * chi)
        assert x.item() == pytest.approx(iterates[-1], abs=1e-15)


def test_nesterov_returns_the_loss_at_the_extrapolated_point():
    x = torch.tensor([1.0], requires_grad=True)
    optimizer = Nesterov([x], lr=0.5, momentum=0.5)

    def closure():
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0


def test_nesterov_is_back_where_it_was_when_the_closure_raises():
    points, optimizer, _ = walk(lambda p: Nesterov(p, lr=0.01, momentum=0.9), steps=3)

    def broken():
        raise RuntimeError("no loss today")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(broken)
    assert torch.equal(optimizer.param_groups[0]["params"][0].detach(), points[-1])


def test_nesterov_leaves_parameters_without_gradient_alone():
    a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimizer = Nesterov([a, b], lr=0.1, momentum=0.9)

    def closure():
        optimizer.zero_grad()
        loss = a.square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert b.item() == 1.0
    assert a.item() != 1.0


@given(rates, momenta, st.integers(1, 60))
def test_effective_step_is_the_sum_of_powers(eta, beta, met):
    expected = eta * sum(beta**k for k in range(met))
    assert effective_step(eta, beta, met) == pytest.approx(expected, rel=1e-9)
    assert effective_step(eta, beta, met) <= effective_step(eta, beta) * (1 + 1e-12)


# -- every optimizer in torch's interface -------------------------------------------------------

OURS = {
    "heavy ball": lambda p: HeavyBall(p, lr=0.05, momentum=0.7),
    "nesterov": lambda p: Nesterov(p, lr=0.05),
    "adam": lambda p: UncorrectedAdam(p, lr=0.05),
}


@pytest.mark.parametrize("make", OURS.values(), ids=OURS.keys())
def test_state_dict_round_trip_continues_the_same_run(make):
    whole, *_ = walk(make, steps=12)
    first, optimizer, _ = walk(make, steps=6)
    saved = optimizer.state_dict()
    theta = first[-1].clone().requires_grad_()
    resumed = make([theta])
    resumed.load_state_dict(saved)

    def closure():
        resumed.zero_grad()
        loss = bumpy(theta)
        loss.backward()
        return loss

    for _ in range(6):
        resumed.step(closure)
    assert torch.equal(theta.detach(), whole[-1])


@pytest.mark.parametrize("make", OURS.values(), ids=OURS.keys())
def test_parameter_groups_have_their_own_rate(make):
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = make([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.2}])

    def closure():
        optimizer.zero_grad()
        loss = a.sum() + b.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert torch.allclose(2 * (1 - a), 1 - b)


@pytest.mark.parametrize("make", OURS.values(), ids=OURS.keys())
def test_schedulers_of_torch_work(make):
    theta = torch.ones(1, requires_grad=True)
    optimizer = make([theta])
    schedule = schedulers.LambdaLR(optimizer, PowerLaw(1.0))

    def closure():
        optimizer.zero_grad()
        loss = theta.sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        schedule.step()
    assert schedule.get_last_lr()[0] == pytest.approx(0.05 / 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: HeavyBall(p, lr=0.0), "learning rate"),
        (lambda p: HeavyBall(p, momentum=1.0), r"\[0, 1\)"),
        (lambda p: Nesterov(p, lr=math.nan), "learning rate"),
        (lambda p: Nesterov(p, momentum=-0.1), "momentum"),
        (lambda p: UncorrectedAdam(p, betas=(0.9, 1.0)), "second beta"),
        (lambda p: UncorrectedAdam(p, eps=-1.0), "eps"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make([torch.zeros(1, requires_grad=True)])


def test_nesterov_without_closure_says_what_to_do():
    optimizer = Nesterov([torch.zeros(1, requires_grad=True)])
    with pytest.raises(InvalidInput, match="closure"):
        optimizer.step()


def test_nesterov_iterate_refuses_what_it_cannot_read():
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(InvalidType, match="SGD"):
        nesterov_iterate(Adam([x]), x)
    with pytest.raises(InvalidInput, match="own iterate"):
        nesterov_iterate(SGD([x], lr=0.1, momentum=0.9), x)
    optimizer = SGD([x], lr=0.1, momentum=0.9, nesterov=True)
    with pytest.raises(InvalidInput, match="not among"):
        nesterov_iterate(optimizer, torch.zeros(1))


# -- Adam and decay -----------------------------------------------------------------------------


@given(st.floats(0, 0.99), st.floats(0, 0.999), rates)
@settings(max_examples=15, deadline=None)
def test_uncorrected_adam_is_torchs_with_rate_and_eps_put_back(beta, alpha, lr):
    ours, *_ = walk(lambda p: UncorrectedAdam(p, lr=lr, betas=(beta, alpha), eps=1e-3), steps=10)
    theta = torch.tensor([1.0, -2.0, 0.3], dtype=torch.float64, requires_grad=True)
    optimizer = Adam([theta], betas=(beta, alpha))
    for t in range(1, 11):
        root = math.sqrt(1 - alpha**t)
        optimizer.param_groups[0].update(lr=lr * (1 - beta**t) / root, eps=1e-3 / root)
        optimizer.zero_grad()
        bumpy(theta).backward()
        optimizer.step()
    assert torch.allclose(theta.detach(), ours[-1], atol=1e-10)


def test_uncorrected_adam_without_mean_is_rmsprop():
    ours, *_ = walk(lambda p: UncorrectedAdam(p, lr=0.01, betas=(0.0, 0.99)))
    torchs, *_ = walk(lambda p: RMSprop(p, lr=0.01, alpha=0.99))
    assert torch.allclose(ours, torchs, atol=1e-12)


def test_weight_decay_groups_cover_every_trainable_parameter_once():
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.LayerNorm(4), nn.Linear(4, 1))
    net[2].weight.requires_grad_(False)
    groups = weight_decay_groups(net, 0.01)
    together = [p for g in groups for p in g["params"]]
    trainable = [p for p in net.parameters() if p.requires_grad]
    assert {id(p) for p in together} == {id(p) for p in trainable}
    assert len(together) == len(trainable)
    assert [p.ndim for p in groups[0]["params"]] == [3]
    SGD(groups, lr=0.1)
    with pytest.raises(InvalidInput, match="at least 0"):
        weight_decay_groups(net, -1.0)
    with pytest.raises(InvalidType, match=r"nn\.Module"):
        weight_decay_groups([net], 0.1)


# -- projections --------------------------------------------------------------------------------

project = onto_ball(0.7, center=0.1)
vectors = st.lists(st.floats(-5, 5), min_size=4, max_size=4).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


@given(vectors, vectors)
def test_projections_are_idempotent_and_do_not_expand(x, y):
    assert torch.allclose(project(project(x)), project(x), atol=1e-12)
    assert float((project(x) - project(y)).norm()) <= float((x - y).norm()) + 1e-12


@given(vectors, vectors)
def test_projections_are_the_nearest_points(x, y):
    inside, p = project(y), project(x)
    # the variational inequality, which characterizes the nearest point of a convex set
    assert float((x - p) @ (inside - p)) <= 1e-9


def test_projections_work_on_batches():
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    one_by_one = torch.stack([project(row) for row in x.reshape(-1, 4)]).reshape(3, 5, 4)
    assert torch.allclose(project(x), one_by_one, atol=1e-6)


def test_a_ball_without_radius_is_refused():
    with pytest.raises(InvalidInput, match="radius"):
        onto_ball(0.0)


# -- schedules ----------------------------------------------------------------------------------


@given(st.floats(-0.5, 3), st.floats(0.01, 100))
def test_power_laws_are_decided_exactly(p, c):
    found = robbins_monro(PowerLaw(p, c))
    assert found.exact
    assert found.sum_diverges is (p <= 1)
    assert found.squares_converge is (p > 0.5)


@given(
    st.floats(0.0, 2.0).filter(lambda p: min(abs(p - 0.5), abs(p - 1)) > 1e-3),
    st.floats(0.01, 10),
    st.floats(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_fitted_tails_agree_with_the_truth(p, c, offset):
    found = robbins_monro(lambda k: c / (k + 1 + offset) ** p)
    assert not found.exact
    assert found.exponent.estimate == pytest.approx(p, abs=1e-4)
    assert found.satisfied is (0.5 < p <= 1)


def test_logarithms_decide_at_the_critical_exponent():
    def schedule(power):
        return lambda k: 1 / ((k + 2) * math.log(k + 2) ** power)

    assert robbins_monro(schedule(0.5)).sum_diverges is True
    assert robbins_monro(schedule(2)).sum_diverges is False
    assert robbins_monro(schedule(1)).sum_diverges is None


def test_a_schedule_that_wavers_too_much_is_left_open():
    found = robbins_monro(lambda k: (1 + 0.2 * math.sin(k)) / (k + 1))
    assert found.sum_diverges is None
    assert found.squares_converge is True
    assert found.satisfied is None


@pytest.mark.parametrize(
    ("make", "diverges", "converge"),
    [
        (lambda o: schedulers.ConstantLR(o), True, False),
        (lambda o: schedulers.LinearLR(o), True, False),
        (lambda o: schedulers.MultiStepLR(o, [3, 9]), True, False),
        (lambda o: schedulers.ExponentialLR(o, 0.9), False, True),
        (lambda o: schedulers.StepLR(o, 10), False, True),
        (lambda o: schedulers.PolynomialLR(o, 10), False, True),
        (lambda o: schedulers.CosineAnnealingLR(o, 10), True, False),
        (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 10), True, False),
        (lambda o: schedulers.LambdaLR(o, PowerLaw(0.75)), True, True),
    ],
)
def test_schedulers_are_answered_as_they_behave(make, diverges, converge):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = make(optimizer)
    found = robbins_monro(scheduler)
    assert (found.sum_diverges, found.squares_converge) == (diverges, converge)
    seen = []
    for _ in range(400):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    late = sum(seen[200:])
    # what the verdict says shows in the rates themselves: they go on or they are over
    assert (late > 0.05) is diverges


def test_power_law_schedule_survives_its_state_dict():
    def fresh(p):
        optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        return schedulers.LambdaLR(optimizer, PowerLaw(p))

    other = fresh(0.9)
    other.load_state_dict(fresh(0.6).state_dict())
    assert other.lr_lambdas[0].exponent == 0.6


def test_bad_schedules_are_refused():
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(InvalidInput, match=">= 0"):
        robbins_monro(lambda k: -1.0)
    with pytest.raises(InvalidInput, match="grows"):
        robbins_monro(schedulers.ExponentialLR(optimizer, 1.1))
    with pytest.raises(InvalidType, match="OneCycleLR"):
        robbins_monro(schedulers.OneCycleLR(optimizer, 0.1, 10))
    with pytest.raises(InvalidType, match="function"):
        robbins_monro([0.1, 0.01])
    with pytest.raises(InvalidInput, match="no power tail"):
        robbins_monro(lambda k: float(k % 2))
    with pytest.raises(InvalidInput):
        PowerLaw(1.0, scale=0.0)
