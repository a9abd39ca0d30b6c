"""Tasks as callables, test-set intervals, and tasks made of unlabeled data."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.generalization.learning.bayes import bayes_regression
from torchtheory.generalization.learning.tasks import (
    LearningTask,
    induced_distribution,
    loss_interval,
    prediction_task,
    self_supervised_task,
    split_fibers,
)
from torchtheory.training.losses.surrogates import quadratic_loss


def uniform(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, 2, generator=generator, dtype=torch.float64)


def test_interval_by_hand() -> None:
    found = loss_interval(torch.tensor([0.0, 1.0, 1.0, 0.0]), delta=2 / math.e**2)
    assert found.estimate == 0.5
    assert found.high - found.estimate == pytest.approx(math.sqrt(2 / 8))
    wide = loss_interval(torch.tensor([0.0, 1.0, 1.0, 0.0]), delta=2 / math.e**2, high=3)
    assert wide.high - wide.estimate == pytest.approx(1.5)


def test_interval_covers_a_known_risk() -> None:
    task = prediction_task(lambda n, g: (z := uniform(n, g), z[:, 0]), quadratic_loss)
    hits = 0
    for seed in range(200):  # (1/2 - U)² has mean 1/12
        found = task.risk_interval(lambda x: torch.full_like(x[:, 0], 0.5), 50, seed, delta=0.1)
        hits += found.low <= 1 / 12 <= found.high
    assert hits >= 180


def test_task_draws_are_reproducible_and_a_loss_may_be_anything() -> None:
    task = LearningTask(lambda f, z: f(z).abs(), uniform)
    torch.testing.assert_close(task.draw(4, 7), task.draw(4, 7))
    assert task.mean_loss(lambda z: z[:, 0] - z[:, 0], task.draw(3)).item() == 0
    with pytest.raises(EmptyData):
        task.draw(0)


def test_self_supervised_task_applies_both_transformations() -> None:
    task = self_supervised_task(uniform, lambda z: z[:, :1], lambda z: z[:, 1], quadratic_loss)
    x, y = task.draw(5, 3)
    z = uniform(5, torch.Generator().manual_seed(3))
    torch.testing.assert_close(x, z[:, :1])
    torch.testing.assert_close(y, z[:, 1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12))
def test_bayes_risk_vanishes_iff_labels_are_constant_on_fibers(
    seed: int, features: int, labels: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.arange(12).double()
    mass = torch.rand(12, generator=generator).double() + 0.01
    t1 = torch.randint(0, features, (12,), generator=generator).double()
    t2 = torch.randint(0, labels, (12,), generator=generator).double()
    law = induced_distribution(z, mass / mass.sum(), lambda _: t1, lambda _: t2)
    pairs = {}
    for a, b in zip(t1.tolist(), t2.tolist(), strict=True):
        pairs.setdefault(a, set()).add(b)
    split = {a for a, found in pairs.items() if len(found) > 1}
    assert set(law.points[split_fibers(law)].tolist()) == split
    assert (bayes_regression(law).risk < 1e-12) == (not split)


def test_injective_features_determine_the_label() -> None:
    z = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).double()
    mass = torch.tensor([0.2, 0.3, 0.5]).double()
    law = induced_distribution(z, mass, lambda z: 2 * z[:, 0] + z[:, 1], lambda z: z.prod(1))
    assert bayes_regression(law).risk == 0
    assert law.conditional_mean.tolist() == [0, 0, 1]


def test_fiber_without_mass_does_not_count() -> None:
    z = torch.arange(3).double()
    mass = torch.tensor([0.5, 0.0, 0.5]).double()
    law = induced_distribution(z, mass, lambda z: z // 2, lambda z: z)
    assert len(split_fibers(law)) == 0


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="outside"):
        loss_interval(torch.tensor([0.0, 2.0]))
    with pytest.raises(NonFinite):
        loss_interval(torch.tensor([0.0, float("nan")]))
    with pytest.raises(EmptyData):
        loss_interval(torch.tensor([]))
    with pytest.raises(ShapeMismatch):
        loss_interval(torch.zeros(2, 2))
