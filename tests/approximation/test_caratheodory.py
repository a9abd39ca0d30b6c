"""Few terms for many, chosen one by one, and wide networks pruned with them."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.barron.caratheodory import few_terms, prune_units
from torchtheory.approximation.barron.maurey import maurey_error
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import mlp


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_one_by_one_is_never_worse_than_the_mean_over_draws(seed, k):
    g = torch.Generator().manual_seed(seed)
    points = torch.randn(7, 4, generator=g, dtype=torch.float64)
    weights = torch.randn(7, generator=g, dtype=torch.float64)
    made = few_terms(points, weights, k)
    assert made.error <= made.bound + 1e-9 <= made.worst + 1e-8
    assert made.bound**2 == pytest.approx(maurey_error(points, weights, k).expected)
    assert int(made.coefficients.count_nonzero()) <= k
    assert float(made.coefficients.abs().sum()) == pytest.approx(float(weights.abs().sum()))
    assert (made.coefficients * weights >= 0).all()


def test_greedy_choice_by_brute_force():
    g = torch.Generator().manual_seed(3)
    points = torch.randn(4, 2, generator=g, dtype=torch.float64)
    weights = torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64)
    mass = weights.abs().sum()
    values = mass * weights.sign()[:, None] * points
    target, chosen = weights @ points, []
    for t in range(1, 5):
        sums = [
            (values[[*chosen, j]].sum(0) - t * target).norm() if weights[j] else math.inf
            for j in range(4)
        ]
        chosen.append(min(range(4), key=lambda j: float(sums[j])))
    counts = torch.tensor([chosen.count(j) for j in range(4)])
    made = few_terms(points, weights, 4)
    assert torch.allclose(made.coefficients, mass * weights.sign() * counts / 4)
    every = [
        float((values[list(c)].mean(0) - target).norm())
        for c in itertools.product([0, 1, 3], repeat=4)
    ]
    assert min(every) <= made.error + 1e-12


def test_sampled_terms_are_multiples_of_the_mass():
    points, weights = torch.eye(5).double(), torch.tensor([1.0, -1.0, 2.0, 0.0, 4.0]).double()
    made = few_terms(points, weights, 16, method="sample", generator=1)
    counts = made.coefficients.abs() / 8 * 16
    assert torch.equal(counts, counts.round())
    assert counts.sum() == 16
    assert counts[3] == 0


@given(st.integers(0, 1000), st.sampled_from([0.02, 0.1, 1.0]))
@settings(max_examples=20, deadline=None)
def test_pruned_networks_keep_the_bound(seed, keep):
    g = torch.Generator().manual_seed(seed)
    net = mlp([3, 120, 1], generator=g)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(3)
    before = [p.detach().clone() for p in net.parameters()]
    x = 2 * torch.randn(40, 3, generator=g, dtype=torch.float64)
    made = prune_units(net, x, keep)
    with torch.no_grad():
        error = float((made.model(x) - net(x)).square().mean().sqrt())
    assert made.error == pytest.approx(error)
    assert error <= made.bound + 1e-9
    assert made.units <= keep * 120 + 1e-9
    kept = made.model[2].weight[0] != 0
    assert torch.equal(made.model[0].weight[kept], net[0].weight[kept])
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_network_without_outer_weights_is_pruned_to_nothing():
    net = mlp([2, 200, 1])
    nn.init.zeros_(net[2].weight)
    made = prune_units(net, torch.ones(3, 2, dtype=torch.float64))
    assert made.error == made.bound == made.units == 0


def test_refusals():
    points, weights = torch.eye(3).double(), torch.ones(3).double()
    with pytest.raises(InvalidInput):
        few_terms(points, weights, 2, method="best")
    with pytest.raises(ShapeMismatch):
        few_terms(points, torch.ones(2).double(), 2)
    with pytest.raises(InvalidInput):
        few_terms(points, weights, 0)
    net, x = mlp([2, 200, 1]), torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(UnsupportedModel):
        prune_units(mlp([2, 200, 1], "tanh"), x)
    with pytest.raises(ShapeMismatch):
        prune_units(net, torch.zeros(3, 3, dtype=torch.float64))
    with pytest.raises(NonFinite):
        prune_units(net, x / 0)
    with pytest.raises(InvalidInput):
        prune_units(net, x, keep=0.001)
    with pytest.raises(InvalidInput):
        prune_units(net, x, keep=1.5)
