"""Sentences of the audit say no more than the ranges of their numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtheory as tt
from torchtheory.audit.comparison.compare import compare
from torchtheory.audit.findings import optimization, point_reached, robustness
from torchtheory.core.diagnosis import State
from torchtheory.core.intervals import Interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.audit_parts import AreaRow
from torchtheory.report.terminal import _said_of


def blobs(count: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=source)
    x = 3.0 * nn.functional.one_hot(y, 3) + torch.randn(count, 3, generator=source)
    return x, y


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=source))
    return net


def nearest_corner() -> nn.Module:
    """The sensible classifier of the blobs."""
    net = nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
        net.bias.zero_()
    return net


def test_one_sample_does_not_tell_how_gradients_change(monkeypatch: pytest.MonkeyPatch) -> None:
    only = ["gradients-by-depth"]
    area = {a.area.name.lower(): a for a in tt.audit(network(), blobs(), only=only).diagnosis}
    assert area["signals"].state is State.FINE
    monkeypatch.setattr(Problem, "affordable", lambda *_, **__: 1)
    report = tt.audit(network(), blobs(), only=only)
    area = {a.area.name.lower(): a for a in report.diagnosis}
    assert area["signals"].state is State.UNMEASURED
    assert len(report.undone) == 1


def test_few_samples_do_not_show_usual_robustness(monkeypatch: pytest.MonkeyPatch) -> None:
    def robust() -> tuple[State, Any]:
        report = tt.audit(nearest_corner(), blobs(), only=["certified-radius"])
        (state,) = (a.state for a in report.diagnosis if a.area.name.lower() == "robustness")
        (number,) = (
            q for f in report.findings for q in f.quantities
            if q.name == "relative-boundary-distance"
        )  # fmt: skip
        return state, number

    state, number = robust()
    assert state is State.FINE
    monkeypatch.setattr(robustness, "SMALL", (number.value + number.high) / 2)
    assert robust()[0] is State.OPEN


@pytest.mark.parametrize("low", [-1.0, 0.5])
def test_the_stable_step_is_told_by_its_range(low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = optimization._sharpness

    def vague(*given: Any) -> Interval:
        found = honest(*given)
        return replace(found, low=low * found.estimate, high=4 * found.estimate)

    monkeypatch.setattr(optimization, "_sharpness", vague)
    (found,) = tt.audit(network(), blobs(), only=["curvature"]).findings
    (limit,) = (q for q in found.quantities if q.name == "step-limit")
    assert len(found.headlines) == 1
    if low < 0:
        assert "too few samples to tell" in found.headlines[0]
        assert not any("learning rate" in advice for advice in found.advice)
    else:
        assert f"above {limit.high:.3g} is unstable" in found.headlines[0]
        assert any(f"below {limit.low:.3g}" in advice for advice in found.advice)


def test_a_gain_of_anything_tells_nothing_about_the_point() -> None:
    samples = Samples(torch.zeros(32, 1), torch.zeros(32), total=1200)
    gain = Interval(0.2, 0.0, math.inf, 0.95, 32, "")
    smallest = Interval(-0.8, -40.0, 0.3, 0.95, 32, "")
    words = point_reached._point_in_words(gain, smallest, False, False, samples)
    assert "inf" not in words
    assert "cannot be told" in words
    assert "no direction of negative curvature" not in words


def test_renamed_labels_are_counted_on_all_test_samples() -> None:
    x, y = blobs(400, seed=3)
    new = torch.tensor([1, 2, 0])
    report = tt.audit(nearest_corner(), blobs(), (x, new[y]), only=["labels"])
    (sentence,) = (w for w in report.warnings if "renamed" in w)
    true = float((nearest_corner()(x).argmax(1) != y).double().mean())
    assert f"on {true:.1%} with these names" in sentence


def test_a_number_on_the_first_screen_has_a_name() -> None:
    row = AreaRow(
        "Robust", State.FINE, "✓", "Fine.", "0.159 (0.129 to 0.189), from 64 of 597",
        "median smallest perturbation", "above 0.03 for a network of this kind", "",
    )  # fmt: skip
    for room, least in ((52, 1), (60, 1), (52, 2)):
        number = " ".join(_said_of(row, room, 3, least)[1].plain.split())
        assert number.startswith("median smallest perturbation: ")
        assert "0.159 (0.129 to 0.189)" in number


def test_a_comparison_speaks_in_sentences_and_titles() -> None:
    short = tt.audit(network(), blobs(), only=["layers"])
    longer = tt.audit(network(), blobs(), only=["layers", "input-scale"])
    found = compare(short, longer)
    words = repr(found)
    assert words.splitlines()[: len(found.summary)] == found.summary
    assert "Inputs of the scale that the network was trained on" in words
    assert "input-scale" not in words
