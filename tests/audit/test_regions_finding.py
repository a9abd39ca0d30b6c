"""Findings about linear regions: patterns, pieces on segments, cells on a plane."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.audit.findings.regions import NEAR, _covered, piecewise_linear
from torchtheory.core.claim import Verdict
from torchtheory.models.problem import Problem

NAMES = ["activation-patterns", "affine-pieces", "plane-slice"]


def _rings(n: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    return x, (x.norm(dim=1) > 1).long()


def _mlp(*widths: int, outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in zip((2, *widths), (*widths, outputs), strict=False):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _findings(model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, FindingRecord]:
    report = tt.audit(model, data, only=NAMES)
    return {f.name: f for f in report.findings}


def _quantity(record: FindingRecord, name: str) -> float:
    return next(q.value for q in record.quantities if q.name == name)


def test_a_classifier_is_taken_apart() -> None:
    found = _findings(_mlp(12, 12), _rings())
    for name in NAMES:
        assert found[name].complete
        assert all(c.verdict == Verdict.HOLDS for c in found[name].claims)
    assert [c.self_check for name in NAMES[1:] for c in found[name].claims].count(False) == 1
    for name in NAMES[1:]:
        controls = [c.control for c in found[name].claims if c.control is not None]
        assert controls
        assert all(c.verdict == Verdict.VIOLATED for c in controls)
        assert found[name].figures
    assert _quantity(found["activation-patterns"], "switching-units") == 24
    assert _quantity(found["affine-pieces"], "affine-pieces") >= 1


def test_patterns_of_a_single_unit_are_two() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.fill_(0.0)
    x = torch.linspace(-1, 1, 40)[:, None]
    found = _findings(net, (x, x.abs()))
    assert "2 different activation patterns among 40" in found["activation-patterns"].notes[0]
    assert not found["plane-slice"].figures  # a line holds no plane


def test_one_output_and_several_classes_and_regression() -> None:
    x, y = _rings()
    for net, targets in (
        (_mlp(6, outputs=1), y.float()),
        (_mlp(6, outputs=3), torch.arange(len(x)) % 3),
        (_mlp(6, outputs=2), torch.randn(len(x), 2)),
    ):
        found = _findings(net, (x, targets))
        assert all(c.verdict == Verdict.HOLDS for f in found.values() for c in f.claims)
        assert found["plane-slice"].figures


def test_a_convolutional_network_with_pooling() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    data = torch.randn(30, 1, 8, 8), torch.arange(30) % 3
    found = _findings(net, data)
    assert all(f.complete for f in found.values())
    assert all(c.verdict == Verdict.HOLDS for f in found.values() for c in f.claims)


def test_pairs_are_random_also_where_the_data_are_sorted() -> None:
    """Sorted by class or in turns: both kinds of pairs are met, and segments between classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    for y in (torch.arange(60) // 30, torch.arange(60) % 2):
        shifted = x + 6.0 * y[:, None]
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        with torch.no_grad():  # scores ρ(x1 + x2 - 6) and ρ(6 - x1 - x2)
            net[0].weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
            net[0].bias.copy_(torch.tensor([-6.0, 6.0]))
            net[2].weight.copy_(torch.eye(2).flip(0))
            net[2].bias.zero_()
        found = _findings(net, (shifted, y))
        same = _quantity(found["activation-patterns"], "pattern-distance-one-class")
        other = _quantity(found["activation-patterns"], "pattern-distance-two-classes")
        assert same < 0.2 < 0.8 < other
        assert _quantity(found["affine-pieces"], "affine-pieces") >= 1


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Linear(2, 2),
    ],
)
def test_other_networks_are_refused_with_a_reason(net: nn.Module) -> None:
    problem = Problem(net, _rings())
    reason = piecewise_linear(problem)
    assert reason is not None
    if len(list(net.children())):
        assert "Tanh" in reason
    found = _findings(net, _rings())
    assert all(c.verdict == Verdict.NOT_APPLICABLE for f in found.values() for c in f.claims)


def test_equal_samples_have_no_way_between_them() -> None:
    found = _findings(_mlp(4), (torch.ones(20, 2), torch.arange(20) % 2))
    assert "equal" in found["affine-pieces"].claims[0].reason
    assert "plane" in found["plane-slice"].claims[0].reason


def test_little_time_follows_less_and_says_so() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(),
                        nn.Linear(300, 2))  # fmt: skip
    x = torch.randn(50, 20)
    report = tt.audit(net, (x, torch.arange(50) % 2), only=NAMES, budget="2s")
    assert {f.name for f in report.findings} == set(NAMES)


def test_length_of_overlapping_neighborhoods() -> None:
    assert math.isclose(_covered(torch.tensor([0.5]).double()), 2 * NEAR)
    assert math.isclose(_covered(torch.tensor([0.5, 0.5 + NEAR], dtype=torch.float64)), 3 * NEAR)
    assert math.isclose(_covered(torch.zeros(1).double()), NEAR)
