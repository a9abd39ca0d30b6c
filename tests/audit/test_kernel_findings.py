"""Findings about the tangent kernel."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.engine.ranges import largest_eigenvalue_range
from torchtheory.audit.findings import kernels
from torchtheory.audit.findings.kernels import ROWS
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import InvalidInput
from torchtheory.models.samples import Samples


def _data(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    return x, (x[:, 0] > 0).long()


def _net(*sizes: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _table(report: Audit, finding: str, name: str) -> dict[str, float]:
    found = next(f for f in report.findings if f.name == finding)
    return {str(r[0]): r[1] for t in found.tables if t.name == name for r in t.rows}  # type: ignore[misc]


def test_linear_regression_by_hand() -> None:
    x, _ = _data(20)
    y = x @ torch.tensor([1.0, 2.0, 3.0])
    net = nn.Linear(3, 1, bias=False)
    report = tt.audit(net, (x, y[:, None]), only=["tangent-kernel"], budget=None)
    values = torch.linalg.eigvalsh((x.T @ x).double())
    spectrum = _table(report, "tangent-kernel", "spectrum")
    assert spectrum["largest eigenvalue"] == pytest.approx(float(values[-1]), rel=1e-6)
    assert spectrum["condition number"] == pytest.approx(float(values[-1] / values[0]), rel=1e-4)
    assert spectrum["rank above rounding"] == 3
    # the mean squared error has Hessian 2 x'x / n
    limit = spectrum["largest stable step of the linearized network"]
    assert limit == pytest.approx(20 / float(values[-1]), rel=1e-6)
    assert [c.verdict for c in report.self_checks] == [Verdict.HOLDS]


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_every_task(task: str) -> None:
    x, y = _data()
    outputs = 2 if task == "multiclass" else 1
    targets = y if task == "multiclass" else y.float()[:, None]
    report = tt.audit(
        _net(3, 8, outputs), (x, targets), task=task, only=["tangent-kernel"], budget=None
    )
    (check,) = report.self_checks
    assert check.verdict is Verdict.HOLDS
    assert check.control is not None
    assert check.control.verdict is Verdict.VIOLATED
    assert not report.warnings
    assert not report.looks


class StraightThrough(nn.Module):
    """Rounds, and pretends not to in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.outer(h + (torch.sign(h) - h).detach())


def test_a_backward_that_is_not_the_derivative_is_caught() -> None:
    report = tt.audit(StraightThrough(), _data(), only=["tangent-kernel"], budget=None)
    assert [c.verdict for c in report.claims] == [Verdict.NOT_APPLICABLE]
    assert "straight-through" in report.claims[0].reason


def test_many_samples_are_drawn_from() -> None:
    x, y = _data(ROWS)
    report = tt.audit(_net(3, 4, 2), (x, y), only=["tangent-kernel"], budget=None)
    assert _table(report, "tangent-kernel", "spectrum")["rows (samples × outputs)"] == ROWS
    sentence, *_ = report.findings[0].headlines
    assert f"(from {ROWS // 2} of {ROWS:,} training samples)" in sentence
    # what a part of the samples cannot tell is not told
    assert "fast-share" not in [q.name for q in report.findings[0].quantities]
    assert all(q.low < q.value < q.high for q in report.findings[0].quantities)


def test_too_many_outputs() -> None:
    x, _ = _data(4)
    wide = nn.Linear(3, ROWS + 1)
    report = tt.audit(wide, (x, torch.zeros(4, ROWS + 1)), only=["tangent-kernel"], budget=None)
    assert report.claims[0].verdict is Verdict.NOT_APPLICABLE
    assert f"{ROWS + 1} outputs" in report.claims[0].reason


def test_frozen_parameters_do_not_count() -> None:
    net = _net(3, 8, 2)
    net[0].requires_grad_(False)
    report = tt.audit(net, _data(), only=["tangent-kernel"], budget=None)
    assert [c.verdict for c in report.self_checks] == [Verdict.HOLDS]
    net.requires_grad_(False)  # as for inference: then all count
    report = tt.audit(net, _data(), only=["tangent-kernel"], budget=None)
    assert [c.verdict for c in report.self_checks] == [Verdict.HOLDS]


def test_laziness_needs_the_initial_weights() -> None:
    report = tt.audit(_net(3, 8, 2), _data(), only=["laziness"], budget=None)
    assert report.claims[0].verdict is Verdict.NOT_APPLICABLE
    assert "--initial-weights" in report.claims[0].reason


def test_laziness_of_a_network_that_did_not_move_and_of_one_that_did() -> None:
    net = _net(3, 8, 2)
    still = tt.audit(net, _data(), only=["laziness"], budget=None, initial=net.state_dict())
    assert _table(still, "laziness", "laziness")["parameters: ‖θ − θ₀‖ / ‖θ₀‖"] == 0
    assert "was lazy" in still.findings[0].headlines[0]
    moved = _net(3, 8, 2)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(2)
    report = tt.audit(moved, _data(), only=["laziness"], budget=None, initial=net)
    assert _table(report, "laziness", "laziness")["parameters: ‖θ − θ₀‖ / ‖θ₀‖"] == pytest.approx(1)
    assert "not lazy" in report.findings[0].headlines[0]
    assert all(math.isfinite(v) for v in _table(report, "laziness", "laziness").values())


def test_initial_weights_of_another_network_are_refused() -> None:
    with pytest.raises(InvalidInput, match="another architecture"):
        tt.audit(_net(3, 8, 2), _data(), initial=_net(3, 8, 8, 2))


@pytest.mark.parametrize("population", [24, 100])
def test_the_top_of_a_kernel_is_that_of_dense_eigenvectors(population: int) -> None:
    """All samples, and folds that judge the direction of the others."""
    n, rows = 24, 2
    draw = torch.Generator().manual_seed(0)
    jacobian = torch.randn(n * rows, 9, generator=draw, dtype=torch.float64)
    jacobian[:, 0] *= 3
    square = jacobian @ jacobian.T
    samples = Samples(torch.zeros(n, 1), torch.zeros(n), total=population)

    def record() -> Any:
        return SimpleNamespace(generator=torch.Generator().manual_seed(7), confidence=0.95)

    found = kernels._top_of_mean(square, samples, record())
    value, vectors = torch.linalg.eigh(square)
    top = float(value[-1]) / n
    if population == n:
        assert (found.low, found.estimate) == (pytest.approx(top), pytest.approx(top))
        assert top < found.high < top * (1 + 1e-5)
        return
    order = torch.randperm(n, generator=record().generator)
    outside = []
    for fold in torch.tensor_split(order, kernels.FOLDS):
        others = torch.tensor([k for k in range(n * rows) if k // rows not in fold.tolist()])
        judged = (fold[:, None] * rows + torch.arange(rows)).flatten()
        value, vectors = torch.linalg.eigh(jacobian[others].T @ jacobian[others])
        form = (jacobian[judged] @ vectors[:, -1]).square()
        outside.append(form.reshape(-1, rows).sum(1))
    value, vectors = torch.linalg.eigh(jacobian.T @ jacobian)
    expected = largest_eigenvalue_range(
        top,
        (jacobian @ vectors[:, -1]).square().reshape(n, rows).sum(1),
        torch.cat(outside),
        used=n, unseen=n, population=population, residual=0.0, confidence=0.95, folds=True,
    )  # fmt: skip
    for name in ("low", "estimate", "high"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4), name
