"""Moments of random matrices, gradients at initialization, and the report on a network."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import mlp
from torchtheory.optimization.initial_scale import initialization_report
from torchtheory.optimization.linear_networks.initial_gradients import (
    gaussian_gradient_bound,
    gaussian_gradient_moment,
    gradient_second_moments,
    sample_gradients,
    softmax_gradient_bound,
)
from torchtheory.optimization.linear_networks.matrix_moments import (
    forward_norms,
    fourth_moments,
    gram_moments,
    per_layer,
    sandwiched_norm,
    three_valued_matrices,
)
from torchtheory.tracing.watching import watch_signals

seeds = st.integers(0, 10**6)
kurtoses = st.sampled_from([1.0, 1.5, 3.0, 7.0])


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def squared(gradient):
    return gradient.square().sum((-2, -1))


# -- moments --------------------------------------------------------------------------------------


@given(st.floats(1, 20))
def test_three_valued_entries_have_their_kurtosis(kappa):
    matrices, chance = three_valued_matrices(1, 2, kappa)
    entry = matrices[:, 0, 1]
    moments = [float(chance @ entry**k) for k in (0, 1, 2, 3, 4)]
    assert moments == pytest.approx([1, 0, 1, 0, kappa])


@given(seeds, kurtoses, st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_moments_of_one_matrix_are_sums(seed, kappa, p, q):
    sigma, x, a = 0.7, normal(seed, q), normal(seed + 1, 2, p)
    matrices, chance = three_valued_matrices(p, q, kappa)
    w = sigma * matrices
    after = w @ x
    assert float(chance @ after.square().sum(1)) == pytest.approx(
        forward_norms([q, p], sigma)[-1] * float(x.square().sum())
    )
    fourth = fourth_moments(x, [q, p], sigma, kappa)[-1]
    assert float(chance @ after.square().sum(1).square()) == pytest.approx(fourth.euclidean)
    assert float(chance @ after.pow(4).sum(1)) == pytest.approx(fourth.entries)
    assert float(chance @ squared(a @ w)) == pytest.approx(
        sandwiched_norm(a, torch.eye(q, dtype=torch.float64), sigma)
    )
    grams = w @ w.mT
    gram = gram_moments([q, p], sigma, kappa)[-1]
    diagonal = grams.diagonal(dim1=1, dim2=2)
    assert float(chance @ diagonal.sum(1).square()) == pytest.approx(gram.trace)
    assert float(chance @ squared(grams)) == pytest.approx(gram.norm)
    assert float(chance @ diagonal.square().sum(1)) == pytest.approx(gram.diagonal)


@given(st.integers(1, 30), st.integers(0, 12), st.floats(0.1, 2))
def test_gram_norm_in_closed_form(d, m, sigma):
    a, b = float(d * (d + 2)), float(d * (d - 1))
    exact = sigma ** (4 * m) / 3 * (a ** (m + 1) - b ** (m + 1))
    assert gram_moments([d] * (m + 1), sigma)[-1].norm == pytest.approx(exact)


def test_two_layers_of_unequal_widths_and_kurtoses():
    first, chance = three_valued_matrices(2, 1, 5.0)
    second, other = three_valued_matrices(3, 2, 2.0)
    products = second[:, None] @ first
    weights = other[:, None] * chance
    x = torch.tensor([1.5], dtype=torch.float64)
    squares = (products @ x).square().sum(-1)
    found = fourth_moments(x, [1, 2, 3], 1.0, [5.0, 2.0])[-1]
    assert float((weights * squares.square()).sum()) == pytest.approx(found.euclidean)
    norm = gram_moments([1, 2, 3], 1.0, [5.0, 2.0])[-1].norm
    assert float((weights * squared(products @ products.mT)).sum()) == pytest.approx(norm)


# -- gradients ------------------------------------------------------------------------------------


@given(seeds, st.lists(st.integers(1, 5), min_size=2, max_size=5), st.booleans())
@settings(max_examples=15, deadline=None)
def test_sample_gradients_are_autograds(seed, widths, softmax):
    layers = [normal(seed + k, p, q) for k, (q, p) in enumerate(pairwise(widths))]
    x, y = normal(seed + 10, widths[0]), torch.softmax(normal(seed + 11, widths[-1]), 0)

    def loss(*weights):
        z = x
        for w in weights:
            z = w @ z
        if softmax:
            return nn.functional.cross_entropy(z[None], y[None])
        return (z - y).square().sum() / 2

    free = [w.requires_grad_() for w in layers]
    truth = torch.autograd.grad(loss(*free), free)
    found = sample_gradients(layers, x, y, "cross-entropy" if softmax else "square")
    for a, b in zip(found, truth, strict=True):
        assert torch.allclose(a, b, atol=1e-10)
        assert int(torch.linalg.matrix_rank(a, atol=1e-8)) <= 1


@given(seeds, kurtoses)
@settings(max_examples=8, deadline=None)
def test_second_moments_over_every_network(seed, kappa):
    widths, sigmas, kappas = [2, 1, 2], [0.8, 0.5], [kappa, 3.0]
    x, y = normal(seed, 2), normal(seed + 1, 2)
    first, chance = three_valued_matrices(1, 2, kappa)
    second, other = three_valued_matrices(2, 1, 3.0)
    layers = [sigmas[0] * first, sigmas[1] * second[:, None]]
    exact = gradient_second_moments(x, y, widths, sigmas, kappas)
    weights = other[:, None] * chance
    found = [
        float((weights * squared(g)).sum())
        for g in sample_gradients(
            [w.expand(len(second), len(first), *w.shape[-2:]) for w in layers], x, y
        )
    ]
    assert found == pytest.approx(exact)


@given(st.integers(1, 12), st.integers(1, 8), st.floats(0.1, 2), st.floats(0, 3), st.floats(0, 3))
@settings(max_examples=50, deadline=None)
def test_closed_form_is_the_recursion_and_half_the_bound(d, depth, sigma, a, b):
    x, y = torch.zeros(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    x[0], y[-1] = a, b
    exact = gradient_second_moments(x, y, [d] * (depth + 1), sigma)
    closed = [
        gaussian_gradient_moment(k, depth, d, sigma, a**4, (a * b) ** 2)
        for k in range(1, depth + 1)
    ]
    assert closed == pytest.approx(exact, rel=1e-9, abs=1e-300)
    limit = gaussian_gradient_bound(depth, d, sigma, a**4, (a * b) ** 2)
    assert all(2 * v <= limit * (1 + 1e-9) for v in closed)


def test_the_example_of_two_layers():
    sigma = math.sqrt(0.5)
    assert gaussian_gradient_moment(1, 2, 2, sigma, 1.0, 1.0) == pytest.approx(3.5)
    assert gaussian_gradient_bound(2, 2, sigma, 1.0, 1.0) == pytest.approx(16 / 3 + 2)
    assert gaussian_gradient_moment(1, 400, 50, 2.0, 1.0, 1.0) == math.inf
    # a term with the factor 0 is 0, however large the other factor
    assert gaussian_gradient_moment(1, 400, 50, 2.0, 0.0, 0.0) == 0.0
    assert gaussian_gradient_moment(1, 3, 50, 1e-200, 1.0, 0.0) == 0.0


def test_numbers_per_layer_in_every_form():
    by_list = forward_norms([3, 2, 4], [0.5, 2.0])
    assert forward_norms([3, 2, 4], torch.tensor([0.5, 2.0])) == by_list
    assert forward_norms([3, 2, 4], (0.5, 2)) == by_list
    assert forward_norms([3, 2], torch.tensor(0.5)) == forward_norms([3, 2], 0.5)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_softmax_bound_is_its_formula(seed):
    sigmas, widths = normal(seed, 3).abs().tolist(), [3, 4, 2, 5]
    x = normal(seed + 1, 3)
    for k, bound in enumerate(softmax_gradient_bound(x.float(), widths, sigmas)):
        others = math.prod(s**2 for j, s in enumerate(sigmas) if j != k)
        assert bound == pytest.approx(2 * float(x.square().sum()) * 4 * 2 * 5 * others, rel=1e-5)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_softmax_bound_holds_without_the_mean_over_labels(seed):
    widths, sigma = [3, 4, 2, 3], 0.9
    layers = [sigma * normal(seed + k, 400, p, q) for k, (q, p) in enumerate(pairwise(widths))]
    x, y = normal(seed + 5, 3), torch.eye(3, dtype=torch.float64)[seed % 3]
    limits = softmax_gradient_bound(x, widths, sigma)
    for g, limit in zip(sample_gradients(layers, x, y, "cross-entropy"), limits, strict=True):
        assert float(squared(g).mean()) < limit


# -- the report -----------------------------------------------------------------------------------


def problem_of(net, inputs=20):
    x = normal(0, 40, inputs)
    return Problem(net.double(), (x, normal(1, 40, 1)), task="regression")


def test_report_finds_the_deviation_of_he():
    net = mlp([20] + [80] * 8 + [1], "relu", bias=False, generator=0)
    before = {k: p.clone() for k, p in net.state_dict().items()}
    report = initialization_report(problem_of(net), draws=3)
    assert report.growth == pytest.approx(math.log(math.sqrt(1 / 6)), abs=0.1)
    assert report.growth_predicted == pytest.approx(report.growth, abs=0.1)
    assert report.growth_repaired == pytest.approx(0, abs=1e-3)
    assert report.layers[3].advised == pytest.approx(math.sqrt(2 / 80), rel=0.1)
    assert [r.fan_in for r in report.layers] == [20] + [80] * 8
    assert all(torch.equal(before[k], p) for k, p in net.state_dict().items())


def test_report_scales_down_what_explodes():
    class Loud(nn.Linear):
        def reset_parameters(self):
            nn.init.normal_(self.weight, std=1.0)
            nn.init.zeros_(self.bias)

    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (Loud(20, 20), nn.Tanh())]
    report = initialization_report(problem_of(nn.Sequential(*layers, Loud(20, 1))))
    assert report.growth > 0.05
    assert report.factor < 1
    assert report.growth_repaired == pytest.approx(0, abs=1e-3)


def test_report_says_what_it_cannot_tell():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(20, 20)
            self.norm = nn.LayerNorm(20)

        def forward(self, x):
            return x + self.inner(self.norm(x)).relu()

    net = nn.Sequential(Skip(), Skip(), Skip(), nn.Linear(20, 1))
    report = initialization_report(problem_of(net), draws=1)
    assert report.growth_predicted is None
    assert any("No prediction" in note for note in report.notes)
    assert [r.layer for r in report.layers] == ["0.inner", "1.inner", "2.inner", "3"]


def test_initial_weights_stand_in_for_layers_that_cannot_be_drawn():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(normal(3, 5, 5))
            self.b = nn.Parameter(normal(4, 1, 5))

        def forward(self, x):
            return nn.functional.linear(nn.functional.linear(x, self.a).relu(), self.b)

    x, net = normal(0, 10, 5), Own()
    with pytest.raises(UnsupportedModel, match="initial"):
        initialization_report(Problem(net, (x, normal(1, 10, 1)), task="regression"))
    start = {k: 0.1 * p.detach() for k, p in net.named_parameters()}
    known = Problem(net, (x, normal(1, 10, 1)), task="regression", initial=start)
    report = initialization_report(known)
    first, last = watch_signals(known, known.train, start)
    assert report.growth == pytest.approx(math.log(first.backward / last.backward))
    assert "began with" in report.notes[0]


# -- refusals -------------------------------------------------------------------------------------


def test_refusals():
    x = torch.zeros(2)
    with pytest.raises(InvalidInput, match="kurtosis"):
        fourth_moments(x, [2, 2], 1.0, 0.5)
    with pytest.raises(InvalidInput, match="deviation"):
        forward_norms([2, 2], -1.0)
    with pytest.raises(InvalidInput, match="widths"):
        forward_norms([2, 0], 1.0)
    with pytest.raises(InvalidInput, match="widths"):
        forward_norms([2.5, 2], 1.0)
    with pytest.raises(InvalidType, match="deviations"):
        forward_norms([2, 2], "large")
    with pytest.raises(InvalidType, match="dtype"):
        sample_gradients([torch.ones(2, 2).double()], x, x)
    with pytest.raises(ShapeMismatch):
        per_layer([1.0], 2, "deviations")
    with pytest.raises(NonFinite):
        gram_moments([2, 2], math.nan)
    with pytest.raises(NonFinite):
        fourth_moments(x / 0, [2, 2], 1.0)
    with pytest.raises(ShapeMismatch):
        fourth_moments(x, [3, 2], 1.0)
    with pytest.raises(InvalidInput, match="more than"):
        three_valued_matrices(4, 4, 3.0)
    with pytest.raises(EmptyData):
        sample_gradients([], x, x)
    with pytest.raises(ShapeMismatch, match="layer 1"):
        sample_gradients([torch.ones(2, 3)], x, x)
    with pytest.raises(ShapeMismatch):
        sample_gradients([torch.ones(3, 2)], x, x)
    with pytest.raises(UnknownName):
        sample_gradients([torch.ones(2, 2)], x, x, "hinge")
    with pytest.raises(EmptyData):
        gradient_second_moments(x, x, [2], 1.0)
    with pytest.raises(ShapeMismatch):
        gradient_second_moments(x, torch.zeros(3), [2, 2], 1.0)
    with pytest.raises(InvalidInput, match="layer"):
        gaussian_gradient_moment(3, 2, 2, 1.0, 1.0, 1.0)
    with pytest.raises(InvalidInput, match="positive"):
        gaussian_gradient_bound(2, 2, 0.0, 1.0, 1.0)
    with pytest.raises(InvalidInput, match="rho"):
        gaussian_gradient_bound(2, 2, 1.0, -1.0, 0.0)
    with pytest.raises(ShapeMismatch):
        softmax_gradient_bound(x, [3, 2], 1.0)
    with pytest.raises(InvalidInput, match="deviation"):
        softmax_gradient_bound(x, [2, 2], -1.0)
    with pytest.raises(NonFinite):
        gradient_second_moments(x, x / 0, [2, 2], 1.0)
    with pytest.raises(InvalidType, match="double"):
        sandwiched_norm(torch.ones(2, 2, dtype=torch.long), torch.eye(2), 1.0)
    with pytest.raises(UnsupportedModel, match="two layers"):
        initialization_report(problem_of(nn.Linear(20, 1)))
    with pytest.raises(InvalidInput, match="draw"):
        initialization_report(problem_of(nn.Linear(20, 1)), draws=0)
