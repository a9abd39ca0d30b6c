"""Risk under attack: exact for linear models, a bound elsewhere."""

import math

import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.core.random import as_generator, gaussian
from torchtheory.robustness.adversarial_risk import (
    gaussian_adversarial_error,
    linear_adversarial_margins,
    linear_adversarial_risk,
    linear_flip,
    robust_accuracy,
)
from torchtheory.robustness.attacks.balls import random_perturbation
from torchtheory.robustness.attacks.gradient_steps import PGD


def normal(*shape, seed=0):
    return gaussian(*shape, generator=as_generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_no_perturbation_gives_less_than_the_linear_margin(norm):
    w, x = normal(5), normal(30, 5, seed=1)
    y = torch.where(normal(30, seed=2) > 0, 1, -1)
    least = linear_adversarial_margins(w, x, y, 0.4, norm, bias=0.3)
    for seed in range(20):
        moved = x + random_perturbation(x, 0.4, norm, as_generator(seed))
        assert bool((y * (moved @ w + 0.3) >= least - 1e-12).all())


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_true_risk_of_two_gaussians_is_what_samples_show(norm):
    w, mean = normal(4), normal(4, seed=3) / 2
    root = normal(4, 4, seed=4) / 2
    n, radius, bias = 200_000, 0.1, 0.2
    y = torch.where(normal(n, seed=5) > 0, 1.0, -1.0).double()
    x = y[:, None] * mean + normal(n, 4, seed=6) @ root.T
    exact = gaussian_adversarial_error(w, mean, root @ root.T, radius, norm, bias=bias)
    seen = float(
        (linear_adversarial_margins(w, x, y, radius, norm, bias=bias) <= 0).double().mean()
    )
    assert abs(seen - exact) < 5 * math.sqrt(exact * (1 - exact) / n)
    assert exact > gaussian_adversarial_error(w, mean, root @ root.T, 0.0, norm, bias=bias)


def test_flip():
    w, x = normal(7), normal(12, 7, seed=1)
    flip = linear_flip(w, x, bias=0.4)
    torch.testing.assert_close(flip.after, -flip.before)
    torch.testing.assert_close(flip.lengths, 2 * flip.before.abs() / w.norm())
    slow = linear_flip(w, x, bias=0.4, rate=0.01)
    torch.testing.assert_close(slow.after, slow.before * (1 - 0.01 * w @ w))


def test_intervals_and_counts():
    net = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    net.weight.data.copy_(torch.eye(2))
    x = torch.tensor([[1.0, 0.0]] * 8 + [[0.1, 0.0]] * 8 + [[0.0, 1.0]] * 4, dtype=torch.float64)
    found = robust_accuracy(net, (x, torch.zeros(20, dtype=torch.long)), PGD(0.2))
    assert found.value.estimate == 0.4
    assert found.clean.estimate == 0.8
    assert found.value.low < 0.4 < found.value.high
    assert found.result.gradients[-4:].sum() == 0  # wrong from the start: not attacked


def test_refused():
    w, x, y = torch.ones(2), torch.eye(2), torch.tensor([1, -1])
    with pytest.raises(LabelOutOfRange):
        linear_adversarial_risk(w, x, y + 1, 0.1)
    with pytest.raises(ShapeMismatch):
        linear_adversarial_risk(torch.eye(2), x, y, 0.1)
    with pytest.raises(InvalidInput, match="radius"):
        linear_adversarial_margins(w, x, y, -0.1)
    with pytest.raises(InvalidInput, match="no sign"):
        linear_flip(0 * w, x)
    with pytest.raises(InvalidInput, match="covariance"):
        gaussian_adversarial_error(w, w, 0.0, 0.1)
    with pytest.raises(LabelOutOfRange, match="from 0 to 1"):
        linear_adversarial_margins(torch.eye(2), x, torch.tensor([0, 2]), 0.1)
    with pytest.raises(ShapeMismatch, match="covariance"):
        gaussian_adversarial_error(w, w, torch.eye(3), 0.1)
