"""Bounds for networks with frozen gates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.generalization.paths.two_phase_bounds import (
    FeatureLaw,
    measure_feature_law,
    path_weight_sizes,
    two_phase_gap_bound,
)
from torchtheory.generalization.paths.two_phase_margins import (
    ball_complexity,
    best_two_phase_margin_bound,
    class_margins,
    feature_radius,
    margin_loss,
    two_phase_margin_bound,
)
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.nets.feedforward import mlp

COIN = FeatureLaw(0, 0, 1, 1, 0, 0, paths=1, outputs=1)


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_radii_by_hand() -> None:
    law = FeatureLaw(2.0, 3.0, 1.5, 0.5, 4.0, 2.5, paths=7, outputs=2)
    found = two_phase_gap_bound(law, 1.25, 2.5, 50, 0.06)

    def radius(bound: float, variance: float, log: float) -> float:
        return 2 * bound / (3 * 50) * log + math.sqrt(2 * variance / 50 * log)

    beta = (
        radius(2.0, 3.0, math.log(3 * 7 / 0.06)),
        radius(1.5, 0.5, math.log(6 * 2 * 7 / 0.06)),
        radius(4.0, 2.5, math.log(3 / 0.06)),
    )
    assert (found.feature_radius, found.product_radius, found.label_radius) == pytest.approx(beta)
    assert found.value == pytest.approx(beta[0] * 1.25 + 2 * beta[1] * 2.5 + beta[2])
    sharper = two_phase_gap_bound(law, 1.25, 2.5, 50, 0.06, relaxed=False)
    assert sharper.value < found.value


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_constants_equal_the_listed_ones(seed: int) -> None:
    net = mlp([2, 3, 2, 1], generator=seed)
    x, y = normal(seed, 9, 2), normal(seed + 1, 9, 2)
    masses = torch.softmax(normal(seed + 2, 9), 0)
    exact = measure_feature_law(net, (x, y), masses=masses, listed=True)
    quick = measure_feature_law(net, (x, y), masses=masses)
    z = path_features(net, x).features
    mean = z.mT @ (masses[:, None] * z)
    single = mean - z[:, :, None] * z[:, None, :]
    second = torch.einsum("i,ijk,ikl->jl", masses, single, single)
    assert exact.feature_bound == pytest.approx(float(torch.linalg.eigvalsh(single).max()))
    assert exact.feature_variance == pytest.approx(float(torch.linalg.eigvalsh(second)[-1]))
    v = y[:, :, None] * z[:, None, :]
    v = v - torch.einsum("i,ijk->jk", masses, v)
    assert exact.product_bound == pytest.approx(float(v.abs().max()))
    variance = torch.einsum("i,ijk->jk", masses, v.square())
    assert exact.product_variance == pytest.approx(float(variance.max()))
    c = masses @ y.square().sum(1) - y.square().sum(1)
    assert exact.label_bound == pytest.approx(float(c.abs().max()))
    assert exact.label_variance == pytest.approx(float(masses @ c.square()))
    assert (exact.paths, exact.outputs) == (z.shape[1], 2)
    assert quick.product_bound >= exact.product_bound
    assert quick.product_variance >= exact.product_variance
    assert replace(quick, product_bound=0, product_variance=0) == replace(
        exact, product_bound=0, product_variance=0
    )


def test_sizes_of_path_weights() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(2, 2),
    ).double()  # fmt: skip
    weights = path_features(net, normal(0, 1, 1, 4, 4)).weights
    found = path_weight_sizes(net, (1, 4, 4))
    assert found == pytest.approx((float(weights.square().sum()), float(weights.abs().sum())))


def test_refused_laws_and_bounds() -> None:
    net, x = mlp([2, 3, 1]), torch.zeros(4, 2)
    with pytest.raises(InvalidInput, match="finite"):
        FeatureLaw(float("nan"), 0, 1, 1, 0, 0, paths=1, outputs=1)
    with pytest.raises(InvalidInput, match="path"):
        FeatureLaw(0, 0, 1, 1, 0, 0, paths=0, outputs=1)
    with pytest.raises(ShapeMismatch):
        measure_feature_law(net, (x, torch.zeros(3)))
    with pytest.raises(NonFinite):
        measure_feature_law(net, (x, torch.full((4,), float("inf"))))
    with pytest.raises(InvalidInput, match="masses"):
        measure_feature_law(net, (x, torch.zeros(4)), masses=torch.ones(4))
    with pytest.raises(EmptyData):
        two_phase_gap_bound(COIN, 1.0, 1.0, 0, 0.1)
    with pytest.raises(InvalidInput, match="delta"):
        two_phase_gap_bound(COIN, 1.0, 1.0, 10, 1.5)
    with pytest.raises(InvalidInput, match="squared_norm"):
        two_phase_gap_bound(COIN, -1.0, 1.0, 10, 0.5)


@given(st.integers(0, 10_000), st.floats(0.05, 5))
@settings(max_examples=30, deadline=None)
def test_margin_loss_lies_between_indicators(seed: int, rho: float) -> None:
    outputs = normal(seed, 40, 3)
    outputs[:5] = 1.0
    labels = torch.arange(40) % 3
    t, loss = class_margins(outputs, labels), margin_loss(outputs, labels, rho)
    others = outputs.clone()
    others[torch.arange(40), labels] = -torch.inf
    assert torch.equal(t, outputs[torch.arange(40), labels] - others.max(1).values)
    wrong = (t <= 0).double()
    assert bool((wrong <= loss).all())
    assert bool((loss <= (t < rho).double()).all())
    order = t.argsort()
    assert bool((loss[order].diff() <= 1e-12).all())


def test_margin_bound_by_hand_and_on_a_grid() -> None:
    outputs = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]]).repeat(50, 1)
    labels = torch.tensor([0, 1]).repeat(50)
    found = two_phase_margin_bound(
        outputs, labels, 1.0, feature_radius=0.2, weight_radius=0.1, delta=0.05
    )
    tail = math.sqrt(math.log(20) / 200)
    assert found == pytest.approx(0.25 + 2 * 9 * 0.02 / 10 + tail)
    grid = best_two_phase_margin_bound(
        outputs, labels, [1.0], [0.1], feature_radius=0.2, weight_norm=0.1, delta=0.05
    )
    assert grid == pytest.approx((found, 1.0, 0.1))
    wide = best_two_phase_margin_bound(
        outputs, labels, [0.5, 1.0], [0.05, 0.1], feature_radius=0.2, weight_norm=0.1, delta=0.05
    )
    union = math.sqrt(math.log(80) / 200)
    assert wide == pytest.approx((2 * 9 * 0.02 / (0.5 * 10) + union, 0.5, 0.1))
    with pytest.raises(InvalidInput, match="wider grid"):
        best_two_phase_margin_bound(
            outputs, labels, [1.0], [0.05], feature_radius=0.2, weight_norm=0.1, delta=0.05
        )
    with pytest.raises(EmptyData):
        best_two_phase_margin_bound(
            outputs, labels, [], [0.05], feature_radius=0.2, weight_norm=0.1, delta=0.05
        )


def test_complexity_of_the_ball() -> None:
    net = mlp([2, 4, 3, 1], generator=1)
    x = normal(3, 6, 2)
    z = path_features(net, x).features
    assert feature_radius(net, x) == pytest.approx(float(z.square().sum(1).mean().sqrt()))
    signs = torch.tensor([[(i >> k) % 2 * 2 - 1 for k in range(6)] for i in range(64)]).double()
    found = ball_complexity(z @ z.mT, 2.0, signs)
    assert torch.allclose(found, 2 * (signs @ z).norm(dim=1))
    # Jensen over all signs
    assert float(found.mean()) <= 2.0 * feature_radius(net, x) * math.sqrt(6)


def test_refused_margins() -> None:
    outputs = torch.zeros(3, 2)
    with pytest.raises(InvalidType, match="whole numbers"):
        class_margins(outputs, torch.zeros(3))
    with pytest.raises(LabelOutOfRange):
        class_margins(outputs, torch.tensor([0, 1, 2]))
    with pytest.raises(ShapeMismatch):
        class_margins(outputs, torch.tensor([0, 1]))
    with pytest.raises(ShapeMismatch):
        class_margins(torch.zeros(3), torch.tensor([0, 1, 1]))
    with pytest.raises(NonFinite):
        class_margins(outputs / 0, torch.tensor([0, 1, 1]))
    with pytest.raises(EmptyData):
        class_margins(outputs[:0], torch.tensor([], dtype=torch.long))
    with pytest.raises(InvalidInput, match="margin"):
        margin_loss(outputs, torch.tensor([0, 1, 1]), 0.0)
    with pytest.raises(ShapeMismatch):
        ball_complexity(torch.eye(3), 1.0, torch.ones(2, 4))
