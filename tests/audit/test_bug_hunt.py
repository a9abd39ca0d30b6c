"""Defects are named by the finding they belong to, and healthy networks are not accused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import audit_resnet_fashion
import audit_sequences
import bug_hunt
import torchtheory as tt
from torchtheory.core.diagnosis import Assessment, State

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", bug_hunt.DEFECTS)
def test_the_defect_is_named_and_its_twin_is_not_accused(name: str, seed: int) -> None:
    defect = bug_hunt.DEFECTS[name]
    said = _accusations(bug_hunt.audit_case(name, seed, True), defect.finding)
    named = [a for a in said if defect.words in a.sentence]
    assert named, said
    assert all(a.action for a in named)
    healthy = bug_hunt.audit_case(name, seed, False)
    assert not any(defect.words in a.sentence for a in _accusations(healthy, defect.finding))
    assert healthy.warnings == []
    assert healthy.violated == []


def _accusations(report: tt.audit.Audit, finding: str) -> list[Assessment]:
    (found,) = (f for f in report.findings if f.name == finding)
    return [a for a in found.assessments if a.state in (State.DEFECT, State.LOOK)]


def _healthy(name: str) -> tuple[nn.Module, Any, Any]:
    """Architectures as torch initializes them, trained until they know something."""
    (x, y), test = bug_hunt.data(0, 200)
    if name in ("lstm", "transformer"):
        train, test = audit_sequences.sequences(200, 6), audit_sequences.sequences(200, 6)
        net = audit_sequences.Recurrent(8) if name == "lstm" else audit_sequences.Attention(8, 6)
        audit_sequences.fit(net, *train, 40)
        return net, train, test
    if name == "tanh":
        net = nn.Sequential(nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh())
        net.append(nn.Linear(20, 10))
    else:
        x, test = x.reshape(-1, 1, 8, 8), (test[0].reshape(-1, 1, 8, 8), test[1])
        net = audit_resnet_fashion.resnet(8, 4)
    return bug_hunt.fit(net, (x, y), rate=0.05, epochs=12), (x, y), test


@pytest.mark.parametrize("name", ["lstm", "transformer", "tanh", "resnet"])
def test_usual_architectures_are_not_accused(name: str) -> None:
    torch.manual_seed(0)
    net, train, test = _healthy(name)
    report = tt.audit(net, train, test, only=bug_hunt.FINDINGS, budget=None)
    assert report.warnings == []
    assert report.violated == []


def test_a_last_layer_that_begins_with_zeros_is_no_defect() -> None:
    torch.manual_seed(0)
    train, _ = bug_hunt.data(0)
    model = bug_hunt.mlp(64, 32, 32, 10)
    nn.init.zeros_(model[4].weight)
    start = copy.deepcopy(model.state_dict())
    bug_hunt.fit(model, train)
    report = tt.audit(
        model, train, initial=start, only=["gradients-by-depth", "units"], budget=None
    )
    assert report.warnings == []
    assert report.findings[-1].notes == [
        "Layer 4 began with weights of 0, which let no gradient pass."
    ]


def test_a_network_of_dead_units_is_said_to_be_constant_not_to_lack_an_activation() -> None:
    report = bug_hunt.audit_case("dead-units", 0, True)
    (found,) = (f for f in report.findings if f.name == "linearity")
    assert found.warnings == [
        "The output does not depend on the input: it is the same at every point tried."
    ]
