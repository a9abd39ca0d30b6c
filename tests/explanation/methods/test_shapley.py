"""Shapley values against all orders of joining."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.explanation.methods.shapley import shapley, shapley_of_sets


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(d: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(d, 10), nn.Tanh(), nn.Linear(10, 2)).double()


def by_orders(scores: Tensor) -> Tensor:
    """The mean over all orders of what a feature adds when it joins."""
    p = scores.shape[1].bit_length() - 1
    total = torch.zeros(len(scores), p, dtype=torch.float64)
    orders = list(itertools.permutations(range(p)))
    for order in orders:
        there = 0
        for i in order:
            total[:, i] += scores[:, there | 1 << i] - scores[:, there]
            there |= 1 << i
    return total / len(orders)


@settings(max_examples=25, deadline=None)
@given(p=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_values_of_any_game(p: int, seed: int) -> None:
    scores = points(2, 2**p, seed)
    found = shapley_of_sets(scores)
    assert torch.allclose(found, by_orders(scores))
    assert torch.allclose(found.sum(1), scores[:, -1] - scores[:, 0])


def test_a_network_with_a_background_and_groups() -> None:
    net, x, background = network(6), points(3, 6), points(4, 6, 1)
    groups = torch.tensor([0, 1, 1, 2, 3, 0])
    sets = torch.tensor(list(itertools.product([0, 1], repeat=4))).flip(1).bool()  # bit 0 first
    with torch.no_grad():
        scores = torch.stack(
            [
                torch.stack(
                    [net(torch.where(s[groups], row, background))[:, 1].mean() for s in sets]
                )
                for row in x
            ]
        )
    found = shapley(net, x, 1, features=groups, background=background)
    wanted = by_orders(scores)
    totals = torch.zeros(3, 4, dtype=torch.float64).index_add_(1, groups, found.relevance)
    assert torch.allclose(totals, wanted)
    assert torch.allclose(found.relevance[:, 1], found.relevance[:, 2])
    assert torch.allclose(found.reference, net(background)[:, 1].mean().expand(3))
    assert float(found.gap.abs().max()) < 1e-12  # type: ignore[union-attr]
    assert found.forwards == 1 + 2**4 * 4


def test_single_precision_adds_up() -> None:
    net, x = network(10).float(), points(2, 10).float()
    exact = shapley(network(10), points(2, 10), 0)
    found = shapley(net, x, 0)
    assert torch.allclose(found.relevance.double(), exact.relevance, atol=1e-5)
    assert float(found.gap.abs().max()) < 1e-6  # type: ignore[union-attr]


def test_many_samples_in_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(6), points(9, 6)
    whole = shapley(net, x, 1).relevance
    # by its module: the room's front has a function of that name
    monkeypatch.setattr(sys.modules[shapley.__module__], "_SCORES_AT_ONCE", 128)
    assert torch.allclose(shapley(net, x, 1).relevance, whole)


def test_sampled_values_have_honest_errors() -> None:
    net, x = network(6), 2 * points(1, 6)
    exact = shapley(net, x, 1).relevance
    found = shapley(net, x.expand(300, -1), 1, permutations=60, generator=5)
    assert found.error is not None
    hits = (found.relevance - exact).abs() <= float(stats.t.ppf(0.975, 29)) * found.error
    for k in range(6):
        assert stats.binomtest(int(hits[:, k].sum()), 300, 0.95).pvalue > 1e-4
    assert torch.allclose(found.error.square().mean(0).sqrt(), found.relevance.std(0), rtol=0.2)
    # each order adds up by itself
    assert float(found.gap.abs().max()) < 1e-12  # type: ignore[union-attr]


def test_two_pairs_of_orders_have_an_honest_error() -> None:
    net, x = network(6), 2 * points(1, 6)
    found = shapley(net, x.expand(3000, -1), 1, permutations=4, generator=5)
    assert found.error is not None
    assert torch.allclose(found.error.square().mean(0), found.relevance.var(0), rtol=0.25)


def test_opposite_orders_are_exact_for_pairs_of_features() -> None:
    class Pairs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1) ** 2

    x = points(4, 7)
    exact = shapley(Pairs(), x)
    found = shapley(Pairs(), x, permutations=4)
    assert torch.allclose(found.relevance, exact.relevance)
    assert float(found.error.max()) < 1e-7  # type: ignore[union-attr]


def test_sampling_stops_when_the_errors_are_small() -> None:
    net, x = network(6), points(3, 6)
    found = shapley(net, x, 1, permutations=100_000, within=0.01)
    assert float(found.error.max()) <= 0.01  # type: ignore[union-attr]
    assert found.forwards < 20_000
    # the largest error decides, also where all others are 0
    one = torch.cat([3 * x[:1], torch.zeros(50, 6).double()])
    begun = shapley(net, one, 1, permutations=64, generator=0)
    half = float(begun.error.max()) / 2  # type: ignore[union-attr]
    uneven = shapley(net, one, 1, permutations=100_000, within=half, generator=0)
    assert float(uneven.error.max()) <= half  # type: ignore[union-attr]
    few = shapley(net, x, 1, permutations=64, within=1e-9)
    assert few.forwards == 2 + 64 * 5
    assert float(few.error.max()) > 1e-9  # type: ignore[union-attr]


def test_one_feature_has_everything() -> None:
    net, x = nn.Linear(1, 1).double(), points(3, 1)
    for found in (shapley(net, x), shapley(net, x, permutations=4)):
        assert torch.allclose(found.relevance, net.weight * x)


def test_images_by_patches() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 36, 1)).double()
    x = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    found = shapley(net, x, patch=2)
    terms = (net[1].weight.reshape(2, 6, 6) * x).detach()
    wanted = terms.reshape(2, 2, 3, 2, 3, 2).sum((1, 3, 5))
    assert torch.allclose(found.relevance.reshape(2, 2, 3, 2, 3, 2).sum((1, 3, 5)), wanted)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match=r"21 features have 2\^21 sets.*permutations=200"):
        shapley(nn.Linear(21, 1), torch.zeros(1, 21))
    with pytest.raises(InvalidInput, match="pairs of opposite orders: 8, not 7"):
        shapley(nn.Linear(2, 1), torch.zeros(1, 2), permutations=7)
    with pytest.raises(InvalidInput, match="within= goes with permutations="):
        shapley(nn.Linear(2, 1), torch.zeros(1, 2), within=0.1)
    with pytest.raises(InvalidInput, match=r"2\^p scores of sets"):
        shapley_of_sets(torch.zeros(1, 6))
