"""Learners on finite spaces and the census over all targets, against plain loops."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.generalization.learning.learners import (
    majority,
    memorize,
    minimize_errors,
    nearest_neighbor,
    outside_hypothesis_set,
    train_network,
)
from torchtheory.generalization.learning.no_free_lunch import (
    missed_mass,
    no_free_lunch_bound,
    slow_distribution,
    target_census,
)
from torchtheory.generalization.vc.hypothesis_sets import (
    all_labelings,
    labelings_with_changes,
    threshold_network_labelings,
)


def plane(points: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(points, 2, generator=generator, dtype=torch.float64)


def arbitrary(points: int, seed: int):
    """A learner without any sense: a hash of the labeled sample decides every point."""

    def rule(seen: Tensor, labels: Tensor) -> Tensor:
        weights = torch.arange(1, points + 1).double() * 1.7 + seed
        key = ((seen + 1) * (labels + 3)).sum(1, keepdim=True).double()
        return torch.where(torch.sin(key * weights) < 0, -1.0, 1.0).double()

    return rule


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 1000))
def test_every_learner_is_a_coin_outside_its_sample(points: int, m: int, seed: int) -> None:
    census = target_census(arbitrary(points, seed), points, m)
    if m < points or census.mean_unseen_error is not None:
        assert census.mean_unseen_error == Fraction(1, 2)
    assert census.mean_risk >= no_free_lunch_bound(points, m)
    assert float(census.risks.max()) >= float(no_free_lunch_bound(points, m))
    assert float(census.risks.mean()) == pytest.approx(float(census.mean_risk))


def test_census_against_plain_loops() -> None:
    points, m = 4, 3
    rule = minimize_errors(labelings_with_changes(points, 1))
    census = target_census(rule, points, m)
    for number, target in enumerate(all_labelings(points)):
        total = 0.0
        for sample in itertools.product(range(points), repeat=m):
            seen = torch.tensor([sorted(sample)])
            decided = rule(seen, target[seen])[0]
            total += float((decided != target).double().mean())
        assert float(census.risks[number]) == pytest.approx(total / points**m)


@pytest.mark.parametrize(("points", "m"), [(2, 1), (5, 2), (6, 3)])
def test_equality_for_learners_that_reproduce_their_sample(points: int, m: int) -> None:
    for rule in (
        nearest_neighbor(plane(points)),
        memorize(points, -1.0),
        minimize_errors(all_labelings(points)),
    ):
        assert target_census(rule, points, m).mean_risk == no_free_lunch_bound(points, m)
    assert target_census(majority(points), points, m).mean_risk >= no_free_lunch_bound(points, m)


def test_prior_knowledge_is_lunch() -> None:
    thresholds = labelings_with_changes(8, 1)
    census = target_census(minimize_errors(thresholds), 8, 4, thresholds)
    assert census.mean_unseen_error is not None
    assert census.mean_unseen_error < Fraction(1, 4)


def test_nearest_neighbor_against_scikit_learn() -> None:
    x = plane(7)
    rule = nearest_neighbor(x)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        seen = torch.randperm(7, generator=generator)[:3]
        labels = torch.randint(0, 2, (3,), generator=generator).double() * 2 - 1
        peer = KNeighborsClassifier(1).fit(x[seen].numpy(), labels.numpy())
        assert rule(seen[None], labels[None])[0].tolist() == peer.predict(x.numpy()).tolist()


def test_error_minimizer_is_optimal_and_stays_in_its_class() -> None:
    thresholds = labelings_with_changes(5, 1)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randint(0, 5, (50, 4), generator=generator)
    labels = torch.randint(0, 2, (50, 4), generator=generator).double() * 2 - 1
    decided = minimize_errors(thresholds)(seen, labels)
    errors = (decided.gather(1, seen) != labels).sum(1)
    best = (thresholds[:, seen] != labels).sum(-1).amin(0)
    assert errors.tolist() == best.tolist()
    assert outside_hypothesis_set(minimize_errors(thresholds), thresholds, 3) == 0
    assert outside_hypothesis_set(nearest_neighbor(plane(5)), thresholds, 3) > 0


def test_trained_network_is_the_same_alone_and_in_a_batch() -> None:
    rule = train_network(plane(5), 3, steps=30, rate=0.5, generator=4)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randint(0, 5, (6, 3), generator=generator)
    labels = torch.randint(0, 2, (6, 3), generator=generator).double() * 2 - 1
    together = rule(seen, labels)
    for i in range(6):
        assert rule(seen[i : i + 1], labels[i : i + 1]).tolist() == together[i : i + 1].tolist()
    assert not together.requires_grad


def test_hypothesis_sets() -> None:
    every = all_labelings(4)
    assert len({tuple(f) for f in every.tolist()}) == 16
    for changes in range(4):
        found = labelings_with_changes(4, changes)
        wanted = {
            tuple(f)
            for f in every.tolist()
            if sum(a != b for a, b in itertools.pairwise(f)) <= changes
        }
        assert {tuple(f) for f in found.tolist()} == wanted
        assert len(found) == len(wanted)
    # two hidden units on a line: intervals and their complements
    line = torch.arange(5).double()[:, None]
    two = threshold_network_labelings(line, 2)
    assert {tuple(f) for f in two.tolist()} == {
        tuple(f) for f in labelings_with_changes(5, 2).tolist()
    }


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 2.0), st.floats(0.1, 1.0))
def test_slow_distribution_is_slower_than_its_rates(power: float, scale: float) -> None:
    m = torch.arange(1, 61).double()
    rates = scale / 16 * m**-power
    mass = slow_distribution(rates)
    assert float(mass.sum()) == pytest.approx(1)
    assert bool((mass >= 0).all())
    assert bool((missed_mass(mass, m) / 2 >= 3 * rates).all())
    tails = 1 - mass.cumsum(0)[:60]
    assert bool((tails >= 8 * rates - 1e-12).all())
    assert bool((mass[1:61] <= tails / (32 * m) + 1e-12).all())


def test_missed_mass_by_simulation() -> None:
    mass = torch.tensor([0.5, 0.3, 0.2]).double()
    drawn = torch.multinomial(
        mass.expand(20_000, 3), 4, True, generator=torch.Generator().manual_seed(0)
    )
    unseen = torch.ones(20_000, 3).double().scatter(1, drawn, 0.0) @ mass
    exact = float(missed_mass(mass, torch.tensor([4]))[0])
    assert float(unseen.mean()) == pytest.approx(exact, abs=4 * float(unseen.std()) / 20_000**0.5)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="decide"):
        target_census(lambda seen, labels: labels, 4, 2)
    with pytest.raises(InvalidInput, match="decide"):
        target_census(lambda seen, labels: torch.zeros(len(seen), 4), 4, 2)
    with pytest.raises(ShapeMismatch):
        target_census(majority(4), 4, 2, torch.ones(2, 3))
    with pytest.raises(LabelOutOfRange):
        target_census(majority(4), 4, 2, torch.zeros(2, 4))
    with pytest.raises(InvalidInput):
        all_labelings(40)
    with pytest.raises(InvalidInput):
        labelings_with_changes(3, 3)
    with pytest.raises(InvalidInput):
        threshold_network_labelings(plane(3), 3)
    with pytest.raises(LabelOutOfRange):
        memorize(3, 0.0)
    with pytest.raises(LabelOutOfRange):
        minimize_errors(torch.zeros(2, 2))
    with pytest.raises(ShapeMismatch):
        nearest_neighbor(torch.zeros(3))
    with pytest.raises(InvalidInput):
        slow_distribution(torch.tensor([0.2, 0.1]))
    with pytest.raises(InvalidInput):
        slow_distribution(torch.tensor([0.01, 0.02]))
    with pytest.raises(InvalidInput):
        no_free_lunch_bound(0, 1)
