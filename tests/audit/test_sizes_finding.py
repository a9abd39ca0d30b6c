"""Findings about sizes: a small memorizer, and networks no wider than their input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.audit.findings.sizes import relu_widths
from torchtheory.core.claim import Verdict


def _findings(model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, FindingRecord]:
    report = tt.audit(model, data, only=["memorizer", "width"])
    return {f.name: f for f in report.findings}


def _mlp(d: int, *widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in zip((d, *widths[:-1]), widths, strict=True):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(("outputs", "targets"), [(3, "classes"), (1, "signs"), (2, "numbers")])
def test_the_memorizer_is_built_and_exact(outputs: int, targets: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 5)
    y = {
        "classes": torch.arange(80) % 3,
        "signs": (torch.arange(80) % 2).float(),
        "numbers": torch.randn(80, 2),
    }[targets]
    found = _findings(_mlp(5, 16, outputs), (x, y))["memorizer"]
    (claim,) = found.claims
    assert claim.verdict == Verdict.HOLDS
    assert claim.self_check
    assert claim.control is not None
    assert claim.control.verdict == Verdict.VIOLATED
    needed = next(q.value for q in found.quantities if q.name == "memorizer-parameters")
    assert needed == 5 + 1 + 2 * 80 + outputs * 81


def test_equal_inputs_are_named() -> None:
    found = _findings(_mlp(2, 4, 2), (torch.ones(10, 2), torch.arange(10) % 2))
    assert "equal" in found["memorizer"].claims[0].reason


def test_a_narrow_network_never_rises_on_some_way() -> None:
    torch.manual_seed(1)
    data = torch.randn(60, 6), torch.arange(60) % 2
    found = _findings(_mlp(6, 6, 5, 2), data)["width"]
    (claim,) = found.claims
    assert claim.verdict == Verdict.HOLDS
    assert claim.control is not None
    assert claim.control.verdict == Verdict.VIOLATED
    assert found.notes


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (_mlp(3, 8, 2), "wider"),
        (nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(), nn.Linear(2, 2)), "plain"),
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), "layer '1' is a Tanh"),
        (nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 3), nn.Flatten()), "Unflatten"),
    ],
)
def test_other_networks_get_a_reason(model: nn.Module, why: str) -> None:
    data = torch.randn(20, 3), torch.arange(20) % 2
    (claim,) = _findings(model, data)["width"].claims
    assert claim.verdict == Verdict.NOT_APPLICABLE
    assert why in claim.reason


def test_widths_of_chains() -> None:
    assert relu_widths(_mlp(4, 7, 3, 2)) == [7, 3]
    assert relu_widths(nn.Linear(2, 2)) == []
    assert relu_widths(nn.Sequential(nn.Flatten(), nn.Conv1d(1, 1, 1))) == []
