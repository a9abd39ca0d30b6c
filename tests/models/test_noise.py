"""Models that draw random numbers, with their noise fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal

from torchtheory.core.errors import InvalidInput
from torchtheory.models.noise import Noise, SharedNoise
from torchtheory.models.problem import Problem


class Noisy(nn.Module):
    """A linear map, and noise that a function of the hidden values adds."""

    def __init__(self, noise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.noise(self.first(x)))
        return out


def time_first(h: Tensor) -> Tensor:
    return h + torch.randn(5, len(h), 8).mean(0)


def per_position(h: Tensor) -> Tensor:
    return h + torch.randn(4 * len(h), 2).reshape(len(h), 8)


def weights(h: Tensor) -> Tensor:
    return h @ (torch.eye(8) + 0.1 * torch.randn(8, 8)).to(h)


def code(h: Tensor) -> Tensor:
    return F.one_hot(Categorical(logits=h).sample(), 8).to(h)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "randn_like": lambda h: h + torch.randn_like(h),
    "randn": lambda h: h + torch.randn(len(h), 8),
    "randn of a size": lambda h: h + torch.randn(h.shape, device=h.device, dtype=h.dtype),
    "rand": lambda h: h * torch.rand(*h.shape),
    "rand_like": lambda h: h * torch.rand_like(h),
    "normal": lambda h: torch.normal(h, torch.ones_like(h)),
    "normal_": lambda h: h + torch.empty_like(h).normal_(0, 0.1),
    "uniform_": lambda h: h + torch.empty_like(h).uniform_(-1, 1),
    "exponential_": lambda h: h + torch.empty_like(h).exponential_(2.0),
    "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
    "randint": lambda h: h + torch.randint(0, 5, (len(h), 8)),
    "reparameterized": lambda h: Normal(h, 0.5).rsample(),
    "gate": lambda h: h * Bernoulli(probs=torch.full_like(h, 0.3)).sample(),
    "code": code,
    "dropout": lambda h: F.dropout(h, 0.4),
    "dropout of channels": lambda h: F.dropout2d(h.reshape(-1, 4, 2, 1), 0.4).reshape(-1, 8),
    "gumbel": lambda h: F.gumbel_softmax(h, tau=0.5),
    "one for all": lambda h: h + torch.randn(1).to(h),
    "time first": time_first,
    "per position": per_position,
    "weights": weights,
}


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


@pytest.mark.parametrize("name", DRAWS)
def test_a_function_of_the_sample_again(name: str) -> None:
    x, y = data()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Noisy(DRAWS[name])
        before = torch.get_rng_state()
        p = Problem(net, (x, y))
        assert torch.equal(torch.get_rng_state(), before)
    assert p.draws_random_numbers
    assert p.deterministic
    assert "fixed to one draw" in p.remarks["randomness"]
    whole = p.function(p.parameters, p.train.x)
    for index in (torch.tensor([3]), torch.tensor([7, 2, 7]), torch.arange(19, -1, -1)):
        part = p.function(p.parameters, p.train.x[index])
        assert torch.allclose(part, whole[index], atol=1e-5)
    # vmap, one sample at a time, is the same function
    each = torch.vmap(lambda row: p.function(p.parameters, row[None])[0])(p.train.x)
    assert torch.allclose(each, whole, atol=1e-5)
    exact = p.in_precision(torch.float64)
    assert torch.allclose(exact.function(exact.parameters, exact.train.x).float(), whole, atol=1e-4)
    other = p.at_draw(12345)
    assert not torch.allclose(other.function(p.parameters, p.train.x), whole, atol=1e-4)


def test_the_average_over_draws_is_the_expectation() -> None:
    """The mean loss over shared draws against that of independent noise, in closed form."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.scale * torch.randn_like(x)

    x = torch.zeros(10, 2)
    p = Problem(Shifted(), (x, x), task="regression")
    losses = torch.tensor([p.at_draw(k).risk(p.train) for k in range(400)])
    # a draw's loss is half of the sum of two squares of normal numbers of variance 1/4
    assert abs(float(losses.mean()) - 0.25) < 4 * 0.25 / np.sqrt(400)
    assert float(losses.std()) == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize(
    ("draw", "mean", "variance"),
    [
        (lambda: torch.randn(4000), 0.0, 1.0),
        (lambda: torch.rand(4000), 0.5, 1 / 12),
        (lambda: torch.bernoulli(torch.full((4000,), 0.3)), 0.3, 0.21),
        (lambda: torch.empty(4000).exponential_(2.0), 0.5, 0.25),
        (lambda: torch.randint(1, 5, (4000,)).float(), 2.5, 1.25),
        (lambda: torch.normal(1.0, 2.0, (4000,)), 1.0, 4.0),
        (lambda: torch.multinomial(torch.tensor([0.2, 0.8]), 4000, True).float(), 0.8, 0.16),
        (lambda: F.dropout(torch.ones(4000), 0.2), 1.0, 0.25),
    ],
)
def test_the_laws(draw: Callable[[], Tensor], mean: float, variance: float) -> None:
    with SharedNoise(Noise(0), batch=1):
        values = draw().double()
    # five standard deviations of the mean, and of the variance with kurtosis up to nine
    assert abs(float(values.mean()) - mean) < 5 * np.sqrt(variance / 4000)
    assert abs(float(values.var()) - variance) < 5 * variance * np.sqrt(8 / 4000) + 1e-12


def test_draws_without_replacement_differ() -> None:
    with SharedNoise(Noise(0), batch=1):
        drawn = torch.multinomial(torch.ones(50, 6), 4)
    assert all(len(set(row)) == 4 for row in drawn.tolist())


def test_nobody_else_draws_less() -> None:
    """A model without noise, and the process, know nothing of it."""
    x, y = data()
    p = Problem(nn.Linear(4, 3), (x, y))
    assert not p.draws_random_numbers
    assert "randomness" not in p.remarks
    with pytest.raises(InvalidInput, match="draws no random numbers"):
        p.at_draw(1)


@pytest.mark.parametrize(
    "noise",
    [
        lambda h: h + torch.from_numpy(np.random.default_rng().normal(size=(len(h), 8))).float(),
        lambda h: h[torch.randperm(len(h))],
        lambda h: h + torch.poisson(torch.ones_like(h)),
    ],
)
def test_noise_that_cannot_be_fixed_is_said(noise: Any) -> None:
    x, y = data()
    p = Problem(Noisy(noise), (x, y))
    assert not p.deterministic
    assert "could not be fixed" in p.remarks["randomness"]
