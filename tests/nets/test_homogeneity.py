"""Homogeneity, smoothed margins, their flow, and the KKT audit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    NotConverged,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.data.synthetic import separable_gaussians
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm
from torchtheory.generalization.implicit_bias.kkt import margin_kkt, network_kkt
from torchtheory.generalization.implicit_bias.smoothed_margin import (
    follow_margin,
    growing_margin,
    smoothed_minimum,
)
from torchtheory.nets.homogeneity import (
    measure_homogeneity,
    network_margins,
    require_homogeneous,
)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def relu_net(bias: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 1, bias=bias))


def test_degrees_of_networks() -> None:
    x = draw(6, 1, 8, 8)
    convolution = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(18, 3, bias=False),
    )  # fmt: skip
    assert measure_homogeneity(convolution, x).degree == 2
    invariant = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.LayerNorm(4, elementwise_affine=False)
    )
    found = measure_homogeneity(invariant.double(), draw(5, 3))
    # layer normalization adds a small number to the variance: not exactly of degree 0
    assert found.degree is None or found.degree <= 0


def test_biases_at_zero_do_not_pass() -> None:
    net = relu_net(bias=True)
    for name, p in net.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(p)
    found = measure_homogeneity(net, draw(5, 3))
    assert found.degree is None
    assert "2.bias" in found.reason
    assert "0.bias" not in found.reason  # the first layer's biases do no harm


def test_model_is_left_alone() -> None:
    net = relu_net().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    measure_homogeneity(net, draw(5, 3).float())
    assert net.training
    assert all(bool((v == before[k]).all()) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_several_classes() -> None:
    net = nn.Linear(2, 3, bias=False).double()
    x, y = draw(4, 2), torch.tensor([0, 2, 1, 2])
    margins, theta = network_margins(net, x, y)
    out = net(x)
    assert margins(theta).shape == (4, 2)
    assert torch.allclose(margins(theta)[1], out[1, 2] - out[1, :2])


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (torch.ones(2, 3), torch.tensor([0, 1]), LabelOutOfRange),
        (torch.ones(2, 3), torch.ones(3), ShapeMismatch),
        (torch.full((2, 3), math.nan), torch.ones(2), NonFinite),
        (torch.ones(2, 3), [1, 1], InvalidType),
        ([[1.0, 2.0, 3.0]], torch.ones(1), InvalidType),
    ],
)
def test_refused_samples(x: torch.Tensor, y: torch.Tensor, error: type[Exception]) -> None:
    with pytest.raises(error):
        network_margins(relu_net(), x, y)


def test_refused_models() -> None:
    tanh = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False))
    with pytest.raises(UnsupportedModel, match="homogeneous"):
        require_homogeneous(tanh, draw(4, 3).float())
    with pytest.raises(UnsupportedModel, match=r"with 2\.bias at 0"):
        network_kkt(relu_net(bias=True), draw(4, 3).float(), torch.ones(4))
    with pytest.raises(InvalidInput, match="misclassified"):
        margin_kkt(lambda w: w, torch.tensor([1.0, -1.0]), 1.0)
    with pytest.raises(InvalidInput, match="multipliers"):
        margin_kkt(lambda w: w, torch.ones(2), 1.0, multipliers="hinge")  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=8),
    st.floats(0.01, 100),
)
def test_smoothed_minimum_between_its_bounds(values: list[float], beta: float) -> None:
    q = torch.tensor(values, dtype=torch.float64)
    smooth = float(smoothed_minimum(q, beta))
    assert min(values) - 1e-9 <= smooth <= min(values) + math.log(len(values)) / beta + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 300), min_size=1, max_size=6))
def test_growing_margin_is_below_the_margin(values: list[float]) -> None:
    q = torch.tensor(values, dtype=torch.float64)
    for loss in ("exponential", "logistic"):
        assert float(growing_margin(q, 2.0, 2.0, loss=loss)) <= min(values) / 4 + 1e-9


def test_flow_in_closed_form() -> None:
    # one sample x = (3, 4): w stays on the line, w = s x / 25, and e^{s} = 1 + 25 t
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    curve = follow_margin(lambda w: (x @ w)[None], torch.zeros(2).double(), [1.0, 50.0])
    assert torch.allclose(curve.points, torch.tensor([[1.0], [50.0]]).double() * x / 25)
    expected = torch.log(torch.expm1(curve.levels) / 25)
    assert torch.allclose(curve.log_risk_times, expected, atol=1e-5)
    assert torch.allclose(curve.margin_times, curve.levels / 25, atol=1e-6)


def test_flow_refuses() -> None:
    start = torch.zeros(1).double()
    with pytest.raises(InvalidInput, match="increase"):
        follow_margin(lambda w: w, start, [-1.0, 2.0])
    with pytest.raises(ShapeMismatch):
        follow_margin(lambda w: w, start.float(), [1.0])
    # a misclassified point for every w: the risk cannot fall below its minimum, 1 at w = 0
    with pytest.raises(NotConverged):
        follow_margin(lambda w: torch.cat([w, -w]), start + 1, [0.5], most=500)


def test_best_multipliers_are_those_of_the_hard_margin() -> None:
    x, y, *_ = separable_gaussians(12, 3, margin=0.2, generator=3)
    z = y[:, None] * x
    machine = hard_margin_svm(x, y)
    found = margin_kkt(lambda w: z @ w, 5 * machine.weight, 1.0)
    assert found.relative_epsilon < 1e-8
    assert found.normalized_margin == pytest.approx(machine.margin)
    assert torch.allclose(found.multipliers, machine.multipliers, atol=1e-7)


def test_best_multipliers_minimize_the_gap() -> None:
    z, w = 1 + 0.3 * draw(5, 3), torch.tensor([1.0, 0.7, 1.2], dtype=torch.float64)

    def margins(v: torch.Tensor) -> torch.Tensor:
        return (z @ v) ** 2 / 2  # homogeneous of degree 2

    found = margin_kkt(margins, w, 2.0)
    hat = w / margins(w).min().sqrt()
    slopes, slack = (z @ hat)[:, None] * z, margins(hat) - 1

    def gap(l: torch.Tensor) -> float:  # noqa: E741
        return float((hat - l @ slopes).square().sum() / 2 + l @ slack)

    by_scipy = minimize(
        lambda l: gap(torch.from_numpy(l)),  # noqa: E741
        [0.1] * 5, bounds=[(0, None)] * 5, method="L-BFGS-B", options={"ftol": 1e-14},
    )  # fmt: skip
    assert found.gap == pytest.approx(gap(found.multipliers))
    assert found.gap == pytest.approx(by_scipy.fun, abs=1e-6)
    for kind in ("exponential", "logistic"):
        assert margin_kkt(margins, w, 2.0, multipliers=kind).gap >= found.gap - 1e-12
    given_ones = margin_kkt(margins, w, 2.0, multipliers=found.multipliers)
    assert given_ones.epsilon == pytest.approx(found.epsilon)


def test_network_audit_of_a_few_samples_and_of_classes() -> None:
    net = relu_net().double()
    x = draw(60, 3)
    x = x[net(x)[:, 0] != 0]  # where all units are off there is no side to be on
    y = torch.where(net(x)[:, 0] > 0, 1, -1)
    whole, few = network_kkt(net, x, y), network_kkt(net, x, y, most=10)
    assert few.multipliers.shape == (len(x),)
    assert int((few.multipliers > 0).sum()) <= 10
    assert few.gap >= whole.gap - 1e-9
    classes = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False))
    x = draw(60, 3).float()
    x = x[(classes(x) != 0).any(1)]
    found = network_kkt(classes, x, classes(x).argmax(1), multipliers="logistic")
    assert found.multipliers.shape == (len(x), 2)
    assert 0 <= found.cosine <= 1
