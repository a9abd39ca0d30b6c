"""Smoothed classifiers: the radius of a linear one is known."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.robustness.smoothing import (
    ABSTAIN,
    SmoothedClassifier,
    largest_radius,
    probability_lower_bound,
)


def half_space(d: int = 5) -> nn.Linear:
    net = nn.Linear(d, 2).double()
    with torch.no_grad():
        net.weight.zero_()
        net.weight[0, 0], net.weight[1, 0] = 1.0, -1.0
        net.bias.zero_()
    return net


def test_the_radius_of_a_linear_classifier_is_never_too_large_and_tight() -> None:
    net, sigma = half_space(), 0.5
    distances = torch.linspace(0.1, 1.0, 60).double()
    x = torch.zeros(60, 5).double()
    x[:, 0] = distances
    found = SmoothedClassifier(net, sigma).certify(x, 4000, confidence=0.999, generator=3)
    certain = ~found.abstained
    assert (found.classes[certain] == 0).all()
    # each holds with probability 0.999: three failures of 60 have probability below 1e-4
    assert int((found.radii > distances).sum()) <= 2
    near = (distances < 0.8) & certain
    assert (found.radii[near] > 0.75 * distances[near] - 0.03).all()


def test_coverage_is_what_is_promised() -> None:
    """At confidence 0.9 the radius exceeds the truth in at most a tenth of the trials."""
    net, distance = half_space(1), 0.3
    x = torch.full((2000, 1), distance).double()
    found = SmoothedClassifier(net, 0.5).certify(x, 100, confidence=0.9, generator=0)
    failures = int((found.radii > distance).sum())
    assert stats.binomtest(failures, 2000, 0.1, alternative="greater").pvalue > 1e-4
    # and the bound is not idle: it fails sometimes (its discreteness costs a little)
    assert failures > 2000 * 0.03


def test_votes_and_abstention() -> None:
    net = half_space(3)
    smooth = SmoothedClassifier(net, 1.0, chunk=64)
    x = torch.zeros(1, 3).double()  # on the boundary
    votes = smooth.votes(x, 1000, 0)
    assert votes.sum() == 1000
    assert torch.equal(votes, smooth.votes(x, 1000, 0))
    assert smooth.predict(x, 200).item() == ABSTAIN
    assert smooth.certify(x, 200).radii.item() == 0
    far = torch.tensor([[3.0, 0.0, 0.0]]).double()
    assert smooth.predict(far, 200).item() == 0
    assert smooth.certify(-far, 200).classes.item() == 1
    assert (
        smooth.certify(far, 100, confidence=0.999).radii.item() <= largest_radius(1.0, 100) + 1e-12
    )


def test_the_curve_and_one_logit() -> None:
    one = nn.Linear(2, 1).double()
    with torch.no_grad():
        one.weight.copy_(torch.tensor([[1.0, 0.0]]))
        one.bias.zero_()
    x = torch.tensor([[1.0, 0.0], [-0.2, 0.0], [0.5, 0.0]]).double()
    y = torch.tensor([1, 0, 0])
    found = SmoothedClassifier(one, 0.5).certify(x, 2000)
    shares = [i.estimate for i in found.accuracy(y, [0.0, 0.1, 0.5, 5.0])]
    assert shares == [2 / 3, 2 / 3, 1 / 3, 0.0]
    with pytest.raises(ShapeMismatch):
        found.accuracy(y[:2], [0.0])


def test_bad_input() -> None:
    net = half_space()
    with pytest.raises(InvalidInput, match="sigma"):
        SmoothedClassifier(net, 0.0)
    with pytest.raises(InvalidInput, match="trials"):
        SmoothedClassifier(net, 1.0).votes(torch.zeros(1, 5).double(), 0)
    with pytest.raises(InvalidInput, match="confidence"):
        SmoothedClassifier(net, 1.0).certify(torch.zeros(1, 5).double(), 10, confidence=1.0)
    with pytest.raises(InvalidInput, match="hits"):
        probability_lower_bound(torch.tensor([11]), 10, 0.9)
    for k in (0, 3, 10):
        low = probability_lower_bound(torch.tensor([k]), 10, 0.95).item()
        exact = stats.binomtest(k, 10, alternative="greater").proportion_ci(0.95).low
        assert low == pytest.approx(exact, abs=1e-9)


def test_outputs_that_are_no_scores_are_refused() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * math.nan

    x = torch.zeros(2, 4)
    with pytest.raises(InvalidInput, match="not numbers"):
        SmoothedClassifier(Nothing(), 0.5).certify(x, 10)
    with pytest.raises(ShapeMismatch, match="one row of scores"):
        SmoothedClassifier(nn.Unflatten(1, (2, 2)), 0.5).certify(x, 10)


@pytest.mark.parametrize(("hits", "told"), [(60, False), (61, True)])
def test_a_class_is_told_by_the_two_sided_test(
    hits: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoothed = SmoothedClassifier(nn.Linear(2, 2), 0.5)
    monkeypatch.setattr(smoothed, "votes", lambda *_: torch.tensor([[hits, 100 - hits]]))
    assert (stats.binomtest(hits, 100).pvalue <= 0.05) == told
    assert (int(smoothed.predict(torch.zeros(1, 2), 100, confidence=0.95)) == 0) == told
