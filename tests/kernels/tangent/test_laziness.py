"""How lazy a training was: exact cases, any module, and what is refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.laziness import (
    kernel_drift,
    kernel_target_alignment,
    measure_laziness,
    summed,
)
from torchtheory.kernels.tangent.linearization import linearization_gap, linearize
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.trainer import fit


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained() -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    start = mlp([2, 6, 2], "tanh", generator=0)
    end, x, y = copy.deepcopy(start), randn(7, 2), randn(7, 2, seed=1)
    fit(end, (x, y), epochs=10, optimizer="sgd", learning_rate=0.5)
    return start, end, x, y


def test_by_hand() -> None:
    # f = v w x from (3, 4) to (3, 6): moved by 2 of 5, the kernel is (v^2 + w^2) x x'
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.fill_(3.0)
        net[1].weight.fill_(6.0)
    start = {"0.weight": torch.tensor([[3.0]]), "1.weight": torch.tensor([[4.0]])}
    report = measure_laziness(net, start, torch.tensor([[1.0], [-2.0]]).double())
    assert math.isclose(report.relative_movement, 2 / 5)
    assert report.movement_by_parameter == {"0.weight": 0.0, "1.weight": 0.5}
    assert math.isclose(report.kernel_drift, 45 / 25 - 1)
    assert math.isclose(report.output_change, 12)
    assert report.linearization_gap < 1e-12  # only one of two factors moved
    assert report.alignment_before is None
    assert report.note == "all 2 inputs"


def test_agrees_with_its_parts() -> None:
    start, end, x, y = trained()
    report = measure_laziness(end, start, x, y)
    kernels = empirical_ntk(start, x), empirical_ntk(end, x)
    assert math.isclose(report.kernel_drift, kernel_drift(*kernels), rel_tol=1e-9)
    gap = float(linearization_gap(end, start, x).max())
    assert math.isclose(report.linearization_gap, gap, rel_tol=1e-9)
    assert math.isclose(report.relative_gap, gap / report.output_change, rel_tol=1e-9)
    gram = y @ y.T
    for kernel, found in zip(
        kernels, (report.alignment_before, report.alignment_after), strict=True
    ):
        k = summed(kernel)
        cosine = float((k * gram).sum() / (k.norm() * gram.norm()))
        assert found is not None
        assert math.isclose(found, cosine, rel_tol=1e-9)
    for given_as in (start.state_dict(), dict(start.named_parameters())):
        assert measure_laziness(end, given_as, x, y) == report


def test_a_linear_model_is_lazy() -> None:
    start, _, x, y = trained()
    lin = linearize(start)
    before = copy.deepcopy(lin)
    fit(lin, (x, y), epochs=10, optimizer="sgd", learning_rate=0.5)
    report = measure_laziness(lin, before, x)
    assert report.relative_movement > 0.01
    assert report.kernel_drift < 1e-12
    assert report.relative_gap < 1e-12


def test_mode_buffers_and_frozen_layers_are_left_alone() -> None:
    net = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(), nn.Linear(4, 2)
    )
    net = net.double().train()
    net[0].requires_grad_(False)
    start = copy.deepcopy(net)
    fit(net, (randn(20, 3), torch.arange(20) % 2), epochs=3, optimizer="sgd", learning_rate=0.1)
    kept = copy.deepcopy(net.state_dict())
    report = measure_laziness(net, start, randn(20, 3), torch.arange(20) % 2)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(v, kept[k]) for k, v in net.state_dict().items())
    assert not any(k.startswith("0.") for k in report.movement_by_parameter)
    assert report.kernel_drift > 0


def test_inputs_beyond_the_limit_and_many_outputs() -> None:
    start, end, _, _ = trained()
    x = randn(50, 2, seed=4)
    report = measure_laziness(end, start, x, limit=5)
    assert (report.samples, report.note) == (5, "5 of 50 inputs, drawn at random")
    assert measure_laziness(end, start, x, limit=5) == report
    assert measure_laziness(end, start, x, limit=5, generator=1) != report
    wide = mlp([2, 3, 200], "tanh", generator=0)
    report = measure_laziness(wide, mlp([2, 3, 200], "tanh", generator=1), x[:4])
    assert report.note.endswith("summed over the outputs")


@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_alignment_is_a_cosine(seed: int, scale: float) -> None:
    rows, y = randn(6, 4, seed=seed), randn(6, seed=seed + 1)
    kernel = rows @ rows.T
    found = kernel_target_alignment(kernel, y)
    assert -1e-12 <= found <= 1 + 1e-12
    assert math.isclose(found, kernel_target_alignment(scale * kernel, y), rel_tol=1e-9)
    assert math.isclose(kernel_target_alignment(torch.outer(y, y), y), 1, rel_tol=1e-9)


def test_alignment_with_classes() -> None:
    labels = torch.tensor([3, 3, 5, 5])
    ideal = torch.tensor([[1.0, 1, -1, -1]]).double()
    assert math.isclose(kernel_target_alignment(ideal.T @ ideal, labels), 1, rel_tol=1e-12)


def test_refused() -> None:
    start, end, x, y = trained()
    with pytest.raises(EmptyData):
        measure_laziness(end, start, x[:0])
    with pytest.raises(ShapeMismatch, match="7 inputs but 3 targets"):
        measure_laziness(end, start, x, y[:3])
    with pytest.raises(InvalidInput, match="limit"):
        measure_laziness(end, start, x, limit=0)
    with pytest.raises(ShapeMismatch):
        measure_laziness(end, mlp([2, 5, 2], generator=0), x)
    with pytest.raises(ShapeMismatch):
        kernel_drift(torch.eye(2), torch.eye(3))
    with pytest.raises(ShapeMismatch):
        kernel_target_alignment(torch.eye(2), torch.ones(3))
    broken = copy.deepcopy(start)
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    with pytest.raises(NonFinite):
        measure_laziness(broken, start, x)
