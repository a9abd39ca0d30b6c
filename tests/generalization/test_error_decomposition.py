"""The decompositions on random problems, and exact step functions against all cuts."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.generalization.interpolation.step_functions import best_steps, greedy_steps
from torchtheory.generalization.learning.error_decomposition import decompose_error

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 20), st.integers(1, 8))
def test_both_decompositions(seed: int, hypotheses: int, samples: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    risks = torch.rand(hypotheses, generator=generator).double()
    empirical = torch.rand(samples, hypotheses, generator=generator).double()
    chosen = torch.randint(0, hypotheses, (samples,), generator=generator)
    terms = decompose_error(risks, empirical, chosen, -0.3)
    assert bool((terms.excess <= terms.bound + 1e-12).all())
    torch.testing.assert_close(terms.sum, terms.excess)
    assert bool((terms.optimization >= 0).all())
    assert bool((terms.estimation >= 0).all())
    exact = decompose_error(risks, empirical, empirical.argmin(1), -0.3)
    assert exact.optimization.abs().max() == 0
    assert exact.search.abs().max() == 0


def test_terms_by_hand() -> None:
    risks, empirical = torch.tensor([0.5, 0.25]).double(), torch.tensor([0.125, 0.5]).double()
    terms = decompose_error(risks, empirical, torch.tensor(1), 0.125)
    assert terms.excess.item() == 0.125
    assert terms.approximation.item() == 0.125
    assert terms.generalization.item() == 0.375
    assert terms.optimization.item() == 0.375
    assert terms.estimation.item() == 0.25
    assert terms.search.item() == -0.25


def least_error(w: Tensor, t: Tensor, pieces: int) -> float:
    """By trying all cuts."""
    k, best = len(w), float("inf")
    for cuts in itertools.combinations(range(1, k), pieces - 1):
        total = 0.0
        for a, b in itertools.pairwise([0, *cuts, k]):
            mass = float(w[a:b].sum())
            mean = float((w[a:b] * t[a:b]).sum()) / mass if mass else 0.0
            total += float((w[a:b] * (t[a:b] - mean) ** 2).sum())
        best = min(best, total)
    return best


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 7))
def test_best_steps_against_all_cuts(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = torch.rand(2, k, generator=generator).double()
    w = w * (torch.rand(2, k, generator=generator) > 0.3)  # some points without weight
    t = torch.randn(2, k, generator=generator).double()
    best, greedy = best_steps(w, t, k), greedy_steps(w, t, k)
    for pieces, row in itertools.product(range(1, k + 1), range(2)):
        error = float((w[row] * (best[pieces - 1, row] - t[row]) ** 2).sum())
        assert error == pytest.approx(least_error(w[row], t[row], pieces), abs=1e-10)
        assert int((best[pieces - 1, row].diff() != 0).sum()) < pieces
        rough = float((w[row] * (greedy[pieces - 1, row] - t[row]) ** 2).sum())
        assert rough >= error - 1e-10
        assert int((greedy[pieces - 1, row].diff() != 0).sum()) < pieces


def test_greedy_steps_against_a_regression_tree() -> None:
    generator = torch.Generator().manual_seed(0)
    x, t = torch.arange(30).double()[:, None], torch.randn(30, generator=generator).double()
    found = greedy_steps(torch.ones(30).double(), t, 8)
    for leaves in range(2, 9):
        tree = DecisionTreeRegressor(max_leaf_nodes=leaves).fit(x.numpy(), t.numpy())
        torch.testing.assert_close(found[leaves - 1], torch.as_tensor(tree.predict(x.numpy())))


def test_steps_are_threshold_networks() -> None:
    generator = torch.Generator().manual_seed(2)
    x, t = torch.arange(20).double(), torch.randn(20, generator=generator).double()
    values = best_steps(torch.ones(20).double(), t, 5)[4]
    jumps = values.diff()
    at = (jumps != 0).nonzero().flatten()
    hidden = torch.heaviside(x[:, None] - (x[at] + 0.5), torch.zeros(()).double())
    assert hidden.shape == (20, 4)
    torch.testing.assert_close(values[0] + hidden @ jumps[at], values)


def test_a_greedy_search_can_miss_the_best() -> None:
    t = torch.tensor([1.0, 0.0, 0.0, 1.0, 2.0]).double()
    w = torch.ones(5).double()
    best, greedy = best_steps(w, t, 3)[2], greedy_steps(w, t, 3)[2]
    assert (best - t).square().sum().item() == pytest.approx(1 / 2)  # 1 | 0 0 | 1 2
    assert (greedy - t).square().sum().item() == pytest.approx(2 / 3)  # 1 0 0 | 1 | 2


def test_refusals() -> None:
    risks = torch.rand(3)
    with pytest.raises(ShapeMismatch):
        decompose_error(risks, torch.rand(2, 4), torch.zeros(2, dtype=torch.int64), 0.0)
    with pytest.raises(ShapeMismatch):
        decompose_error(risks, torch.rand(2, 3), torch.zeros(3, dtype=torch.int64), 0.0)
    with pytest.raises(InvalidInput, match="left the class"):
        decompose_error(risks, torch.rand(3), torch.tensor(3), 0.0)
    with pytest.raises(ShapeMismatch):
        best_steps(torch.ones(3), torch.ones(4), 1)
    with pytest.raises(InvalidInput):
        best_steps(torch.ones(3), torch.ones(3), 4)
    with pytest.raises(InvalidInput):
        greedy_steps(-torch.ones(3), torch.ones(3), 1)
