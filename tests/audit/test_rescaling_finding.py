"""Layers scaled against each other: the function stays, the sharpness does not."""

from __future__ import annotations

import torch
from torch import nn

from torchtheory.audit.engine.audit import audit
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.claim import Verdict


def _found(activation: nn.Module) -> FindingRecord:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), activation, nn.Linear(8, 3))
    report = audit(net, (x, torch.arange(60) % 3), only=["rescaling-symmetry"], budget=None)
    return report.findings[0]


def test_the_function_stays_and_the_sharpness_does_not() -> None:
    found = _found(nn.ReLU())
    (claim,) = found.claims
    assert claim.verdict is Verdict.HOLDS
    assert claim.self_check
    assert claim.control is not None
    assert claim.control.verdict is Verdict.VIOLATED
    (ratio,) = found.quantities
    # at factor a the block of the second layer grows like a squared: four times from 2 to 4
    assert ratio.value > 4
    assert found.figures[0].name == "sharpness"


def test_channels_of_a_convolution_past_a_normalization() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(),
        nn.Linear(6, 3),
    )  # fmt: skip
    x = torch.randn(60, 1, 5, generator=torch.Generator().manual_seed(0))
    report = audit(net, (x, torch.arange(60) % 3), only=["rescaling-symmetry"], budget=None)
    (claim,) = report.findings[0].claims
    assert claim.verdict is Verdict.HOLDS
    assert "layers 1 and 5" in claim.reason


def test_a_network_without_homogeneous_activations_is_told_so() -> None:
    (claim,) = _found(nn.Tanh()).claims
    assert claim.verdict is Verdict.NOT_APPLICABLE
    assert "positively homogeneous" in claim.reason
