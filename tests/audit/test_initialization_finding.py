"""The finding about fresh weights and the scale that lets gradients survive the depth."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import torchtheory as tt
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.claim import Verdict


def _found(model: nn.Module, width: int = 32) -> FindingRecord:
    x = torch.randn(60, width, generator=torch.Generator().manual_seed(0))
    report = tt.audit(model, (x, (x[:, 0] > 0).long()), only=["initialization"], budget=None)
    return report.findings[0]


def _deep(depth: int, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*blocks, nn.Linear(width, 2))


def test_deep_relu_layers_need_the_deviation_of_he() -> None:
    net = _deep(10)
    found = _found(net)
    (claim,) = found.claims
    assert claim.verdict == Verdict.HOLDS
    assert claim.control is not None
    assert claim.control.verdict == Verdict.VIOLATED
    scale = next(q.value for q in found.quantities if q.name == "advised-scale")
    # torch draws with variance 1 / (3 fan-in), and 2 / fan-in keeps the gradient
    assert scale == pytest.approx(math.sqrt(6), rel=0.2)
    assert "vanish" in found.advice[0]


def test_two_layers_need_no_advice() -> None:
    assert not _found(_deep(1)).advice


def test_a_single_layer_has_no_depth() -> None:
    (claim,) = _found(nn.Linear(32, 2)).claims
    assert claim.verdict == Verdict.NOT_APPLICABLE


def test_the_model_is_left_alone() -> None:
    net = _deep(3)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    _found(net)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
