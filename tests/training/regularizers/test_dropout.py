"""Dropout: conventions, ensembles by enumeration, the penalty in closed form."""

import copy
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import clopper_pearson
from torchtheory.nets.feedforward import drawn_linear, mlp
from torchtheory.training.regularizers.dropout import (
    UnitDropout,
    WeightDropout,
    all_masks,
    dropout_penalty,
    dropout_regression,
    ensemble_mean,
    geometric_mean,
    mask_probabilities,
    penalty_per_unit,
    sampled_mean,
)

seeds = st.integers(0, 10_000)


def _gaussian(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_masks_by_hand() -> None:
    assert all_masks(3).tolist() == [list(map(float, b)) for b in product((0, 1), repeat=3)]
    keep = torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64)
    assert float(mask_probabilities(all_masks(3), keep)[0b101]) == pytest.approx(0.9 * 0.5 * 0.2)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_probabilities_sum_to_one(keep: list[float]) -> None:
    total = mask_probabilities(all_masks(len(keep)), torch.tensor(keep, dtype=torch.float64)).sum()
    assert float(total) == pytest.approx(1)


def test_unit_dropout_conventions() -> None:
    keep = torch.tensor([1.0, 0.25])
    x = torch.ones(4000, 2)
    plain, inverted = UnitDropout(keep, inverted=False), UnitDropout(keep)
    for layer, value in ((plain, 1.0), (inverted, 4.0)):
        out = layer(x)
        assert set(out[:, 0].tolist()) == {1.0}
        assert set(out[:, 1].tolist()) == {0.0, value}
        interval = clopper_pearson(int((out[:, 1] > 0).sum()), len(x), confidence=0.9999)
        assert interval.low <= 0.25 <= interval.high
    assert torch.equal(plain.eval()(x), x * keep)
    assert torch.equal(inverted.eval()(x), x)
    assert UnitDropout(0.5, generator=3)(x).equal(UnitDropout(0.5, generator=3)(x))
    again = copy.deepcopy(inverted.train())
    assert torch.equal(again(x), inverted(x))


def test_torch_dropout_is_the_inverted_one() -> None:
    x = torch.ones(2000)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = nn.Dropout(0.2)(x)
    ours = UnitDropout(0.8)(x)
    assert set(theirs.unique().tolist()) == set(ours.unique().tolist()) == {0.0, 1.25}
    state = torch.get_rng_state()
    UnitDropout(0.8)(x)
    assert torch.equal(state, torch.get_rng_state())


def test_weight_dropout_has_the_right_moments() -> None:
    layer = drawn_linear(3, 2, generator=1)
    x = _gaussian(2, 1, 3)
    draws = WeightDropout(layer, 0.5, generator=3)(x.expand(20_000, -1)).detach()
    assert torch.allclose(draws.mean(0), layer(x)[0].detach(), atol=0.05)
    variance = (layer.weight.detach() * x).square().sum(1)
    assert torch.allclose(draws.var(0), variance, rtol=0.06)
    covariance = torch.cov(draws.T)[0, 1]
    assert abs(float(covariance)) < 0.05 * float(variance.prod().sqrt())


@given(seeds, st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_weight_scaling_is_exact_for_affine_outputs(seed: int, units: int) -> None:
    head = drawn_linear(units, 3, generator=seed)
    x = _gaussian(seed, 4, units)
    keep = 0.05 + 0.9 * torch.rand(units, generator=torch.Generator().manual_seed(seed)).double()
    with torch.no_grad():
        scaled = head(keep * x)
        assert torch.allclose(ensemble_mean(head, x, keep), scaled, atol=1e-12)
        assert torch.allclose(geometric_mean(head, x, keep), scaled.softmax(-1), atol=1e-12)


def test_ensemble_of_all_masks_by_hand() -> None:
    x = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    keep = torch.tensor([0.5, 0.25], dtype=torch.float64)
    mean = ensemble_mean(lambda z: z.sum(-1, keepdim=True).square(), x, keep)
    assert float(mean) == pytest.approx(0.125 * 9 + 0.375 * 4 + 0.125 * 25)


def test_chunks_and_sampling_agree_with_the_whole() -> None:
    net = mlp([13, 5, 2], "tanh", generator=0)
    x = _gaussian(1, 3, 13)
    with torch.no_grad():
        exact = ensemble_mean(net, x, 0.7)
        masks = all_masks(13)
        p = mask_probabilities(masks, 0.7)
        whole = torch.einsum("b,bsk->sk", p, net(masks[:, None] * x))
        assert torch.allclose(exact, whole, atol=1e-12)
        sampled = sampled_mean(net, x, 0.7, 20_000, generator=2)
    assert torch.allclose(sampled, exact, atol=0.02)


@given(seeds, st.floats(0.0, 0.9))
@settings(max_examples=25, deadline=None)
def test_theorem_74_by_enumeration(seed: int, p: float) -> None:
    net = mlp([3, 4, 5, 2], "relu", generator=seed)
    x, y = _gaussian(seed, 6, 3), _gaussian(seed + 1, 6, 2)
    report = dropout_penalty(net, x, y, p)
    with torch.no_grad():
        hidden, head = net[:-1](x), net[-1]
        risk = ensemble_mean(lambda a: (y - head(a / (1 - p))).square().sum(-1), hidden, 1 - p)
    assert report.risk_with_dropout == pytest.approx(float(risk.mean()), rel=1e-10)
    assert report.total >= 0


def test_penalty_ignores_the_models_own_dropout_and_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    x, y = _gaussian(0, 5, 3), _gaussian(1, 5, 1)
    first, second = dropout_penalty(net, x, y, 0.5), dropout_penalty(net, x, y, 0.5)
    assert first.risk == second.risk
    assert net.training


@given(seeds, st.floats(0.05, 0.9))
@settings(max_examples=25, deadline=None)
def test_dropout_regression_minimizes_the_exhaustive_risk(seed: int, p: float) -> None:
    x, y = _gaussian(seed, 12, 4), _gaussian(seed + 1, 12)
    w = dropout_regression(x, y, p).requires_grad_()
    risk = ensemble_mean(lambda a: (y - (a / (1 - p)) @ w).square(), x, 1 - p).mean()
    (gradient,) = torch.autograd.grad(risk, w)
    assert float(gradient.abs().max()) < 1e-10
    both = dropout_regression(x, torch.stack([y, 2 * y], 1), p)
    assert torch.allclose(both[:, 1], 2 * w.detach())


def test_without_dropout_it_is_least_squares() -> None:
    x, y = _gaussian(0, 9, 3), _gaussian(1, 9)
    assert torch.allclose(dropout_regression(x, y, 0.0), torch.linalg.lstsq(x, y).solution)


def test_bad_input_is_refused() -> None:
    for keep in (0.0, 1.5, -0.1, float("nan")):
        with pytest.raises(InvalidInput, match="keep"):
            UnitDropout(keep)
    for drop in (1.0, -0.1, float("nan")):
        with pytest.raises(InvalidInput, match="drop probability"):
            penalty_per_unit(torch.ones(1, 2), torch.ones(3, 2), drop)
    with pytest.raises(InvalidInput, match="sample them"):
        all_masks(21)
    with pytest.raises(ShapeMismatch):
        ensemble_mean(torch.relu, torch.ones(3), 0.5)
    with pytest.raises(InvalidInput, match="samples"):
        sampled_mean(torch.relu, torch.ones(1, 3), 0.5, 0)
    with pytest.raises(ShapeMismatch):
        penalty_per_unit(torch.ones(1, 2), torch.ones(3, 4), 0.5)
    with pytest.raises(UnsupportedModel, match="last layer"):
        dropout_penalty(
            nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2), torch.ones(1, 2), 0.5
        )
    with pytest.raises(ShapeMismatch, match="targets"):
        dropout_penalty(nn.Linear(2, 2), torch.ones(3, 2), torch.ones(3), 0.5)
    with pytest.raises(UnsupportedModel):
        WeightDropout(nn.ReLU(), 0.5)
    with pytest.raises(InvalidInput, match="zero on the whole"):
        dropout_regression(torch.zeros(3, 2), torch.ones(3), 0.5)
    with pytest.raises(InvalidInput, match="independent"):
        dropout_regression(torch.ones(3, 2), torch.ones(3), 0.0)
    with pytest.raises(NonFinite):
        dropout_regression(torch.full((3, 2), torch.nan), torch.ones(3), 0.5)
    with pytest.raises(ShapeMismatch):
        dropout_regression(torch.ones(3, 2), torch.ones(4), 0.5)
