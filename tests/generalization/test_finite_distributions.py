"""Finite laws, Bayes functions and risks, against hand computation and scikit-learn."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import mean_squared_error
from sklearn.metrics import zero_one_loss as sklearn_zero_one

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.generalization.learning.bayes import (
    bayes_classifier,
    bayes_regression,
    classification_excess,
    regression_excess,
)
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution, multisets
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.training.losses.surrogates import quadratic_loss, zero_one_loss

SEEDS = st.integers(0, 2**32 - 1)


def law_of(seed: int, points: int, labels: torch.Tensor) -> FiniteDistribution:
    generator = torch.Generator().manual_seed(seed)
    joint = torch.rand(points, len(labels), generator=generator, dtype=torch.float64)
    joint = joint * (torch.rand(joint.shape, generator=generator) > 0.3)  # some atoms without mass
    joint[0, 0] += 0.1
    return FiniteDistribution.from_joint(
        torch.arange(points).double(), labels.double(), joint / joint.sum()
    )


def test_by_hand() -> None:
    law = FiniteDistribution.of([2.0, 1.0, 2.0], [1.0, -1.0, -1.0], [0.5, 0.25, 0.25])
    assert law.points.tolist() == [1.0, 2.0]
    assert law.marginal.tolist() == [0.25, 0.75]
    assert law.conditional_mean.tolist() == pytest.approx([-1, 1 / 3])
    best = bayes_classifier(law)
    assert best.values.tolist() == [-1, 1]
    assert best.risk == pytest.approx(0.25)
    assert bayes_regression(law).risk == pytest.approx(0.75 * (1 - 1 / 9))


def test_sign_of_zero_is_one_and_points_without_mass_do_no_harm() -> None:
    law = FiniteDistribution.of([0.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [0.5, 0.5, 0.0])
    best = bayes_classifier(law)
    assert best.values.tolist() == [1, 1]
    assert best.risk == 0.5
    assert law.conditional_mean.tolist() == [0, 0]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 7))
def test_classification_identity_for_all_classifiers(seed: int, points: int) -> None:
    law = law_of(seed, points, torch.tensor([-1.0, 1.0]))
    every = all_labelings(points)
    risks, best = law.risk(every, zero_one_loss), bayes_classifier(law)
    torch.testing.assert_close(risks, best.risk + classification_excess(law, every))
    assert float(risks.min()) == pytest.approx(best.risk, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 7))
def test_regression_identity(seed: int, points: int) -> None:
    law = law_of(seed, points, torch.tensor([-2.0, 0.0, 0.5, 3.0]))
    values = torch.randn(9, points, generator=torch.Generator().manual_seed(seed)).double()
    risks, best = law.risk(values, quadratic_loss), bayes_regression(law)
    torch.testing.assert_close(risks, best.risk + regression_excess(law, values))
    assert bool((risks >= best.risk - 1e-12).all())


def test_empirical_law_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 200).astype(float), rng.choice([-1.0, 1.0], 200)
    law = FiniteDistribution.of(torch.tensor(x), torch.tensor(y))
    f = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).double()
    said = f[x.astype(int)].numpy()
    assert float(law.risk(f, zero_one_loss)) == pytest.approx(sklearn_zero_one(y, said))
    assert float(law.risk(f, quadratic_loss)) == pytest.approx(mean_squared_error(y, said))


def test_draws_follow_the_law() -> None:
    mass = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0]).double()
    law = FiniteDistribution.of(torch.arange(6).double(), torch.zeros(6).double(), mass)
    counts = torch.bincount(law.draw(20_000, generator=1), minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    kept = [1, 3, 4]
    assert stats.chisquare(counts[kept].numpy(), 20_000 * mass[kept].numpy()).pvalue > 1e-3
    torch.testing.assert_close(law.draw(5, generator=3), law.draw(5, generator=3))


def test_empirical_masses_count() -> None:
    law = FiniteDistribution.of([0.0, 1.0, 2.0], [0.0, 0.0, 0.0])
    drawn = torch.tensor([[0, 0, 2, 1], [2, 2, 2, 2]])
    assert law.empirical_masses(drawn).tolist() == [[0.5, 0.25, 0.25], [0, 0, 1]]
    with pytest.raises(EmptyData):
        law.empirical_masses(torch.zeros(3, 0, dtype=torch.int64))


@pytest.mark.parametrize(("kinds", "size"), [(1, 3), (3, 1), (3, 4), (5, 3)])
def test_multisets_against_all_sequences(kinds: int, size: int) -> None:
    chosen, orderings = multisets(kinds, size)
    wanted = Counter(tuple(sorted(s)) for s in itertools.product(range(kinds), repeat=size))
    assert dict(zip(map(tuple, chosen.tolist()), orderings.tolist(), strict=True)) == wanted


def test_all_samples_have_probability_one() -> None:
    law = law_of(3, 3, torch.tensor([-1.0, 1.0]))
    samples, chance = law.all_samples(4)
    assert float(chance.sum()) == pytest.approx(1)
    torch.testing.assert_close(chance @ law.empirical_masses(samples), law.mass)


def test_dtype_is_kept() -> None:
    law = FiniteDistribution.of(torch.arange(2.0), torch.tensor([-1.0, 1.0]))
    assert law.risk(torch.ones(2), zero_one_loss).dtype == torch.float32
    assert bayes_classifier(law).values.dtype == torch.float32


def test_refusals() -> None:
    x, y = [0.0, 1.0], [1.0, -1.0]
    with pytest.raises(InvalidInput, match=r"sum to 0\.9"):
        FiniteDistribution.of(x, y, [0.5, 0.4])
    with pytest.raises(InvalidInput, match="negative"):
        FiniteDistribution.of(x, y, [1.5, -0.5])
    with pytest.raises(ShapeMismatch):
        FiniteDistribution.of(x, [1.0])
    with pytest.raises(ShapeMismatch):
        FiniteDistribution.of(x, y, [1.0])
    with pytest.raises(EmptyData):
        FiniteDistribution.of([], [])
    with pytest.raises(NonFinite):
        FiniteDistribution.of([0.0, float("nan")], y)
    with pytest.raises(ShapeMismatch, match="values"):
        FiniteDistribution.of(x, y).risk(torch.ones(3), zero_one_loss)
    with pytest.raises(ShapeMismatch):
        regression_excess(FiniteDistribution.of(x, y), torch.ones(3))
    with pytest.raises(LabelOutOfRange):
        bayes_classifier(FiniteDistribution.of(x, [0.0, 1.0]))
    with pytest.raises(InvalidInput, match="too many"):
        multisets(100, 10)
    with pytest.raises(InvalidInput):
        multisets(0, 1)
