"""Labels as distributions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.training.losses.label_smoothing import (
    check_confusion,
    smooth_labels,
    smoothed_cross_entropy,
    smoothed_gap,
    smoothed_label_entropy,
    uniform_confusion,
)


def random_confusion(classes: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    m = torch.rand(classes, classes, generator=g, dtype=torch.float64) + 0.01
    return m / m.sum(0)


def test_by_hand() -> None:
    pi = torch.tensor([[0.9, 0.2, 0.0], [0.1, 0.5, 0.0], [0.0, 0.3, 1.0]])
    assert torch.equal(smooth_labels(torch.tensor([1]), pi), torch.tensor([[0.2, 0.5, 0.3]]))
    assert uniform_confusion(4, 0.4)[:, 0].tolist() == pytest.approx([0.7, 0.1, 0.1, 0.1])
    assert smoothed_gap(10, 0.1) == pytest.approx(math.log(91))
    assert smoothed_gap(3, 0.0) == math.inf
    assert smoothed_gap(3, 1.0) == 0.0
    assert smoothed_label_entropy(torch.eye(3))[0] == 0.0


@given(st.integers(2, 8), st.floats(0, 1), st.integers(0, 10**6))
def test_uniform_smoothing_is_torchs(classes: int, epsilon: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(5, classes, generator=g, dtype=torch.float64)
    y = torch.randint(0, classes, (5,), generator=g)
    ours = smoothed_cross_entropy(z, y, uniform_confusion(classes, epsilon))
    theirs = F.cross_entropy(z, y, label_smoothing=epsilon)
    assert torch.isclose(ours, theirs, rtol=1e-10)


@given(st.integers(2, 7), st.integers(0, 10**6))
def test_the_entropy_is_the_least_loss(classes: int, seed: int) -> None:
    pi = random_confusion(classes, seed)
    y = torch.arange(classes)
    at_best = smoothed_cross_entropy(pi.T.log() + 3.0, y, pi)
    assert torch.isclose(at_best, smoothed_label_entropy(pi).mean(), rtol=1e-10)
    g = torch.Generator().manual_seed(seed)
    elsewhere = torch.randn(classes, classes, generator=g, dtype=torch.float64)
    assert smoothed_cross_entropy(elsewhere, y, pi) >= at_best - 1e-12


@given(st.integers(2, 20), st.floats(0.001, 0.999))
def test_the_gap_is_where_the_gradient_vanishes(classes: int, epsilon: float) -> None:
    z = torch.zeros(1, classes, dtype=torch.float64)
    z[0, 0] = smoothed_gap(classes, epsilon)
    z.requires_grad_()
    loss = smoothed_cross_entropy(z, torch.tensor([0]), uniform_confusion(classes, epsilon))
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.abs().max() < 1e-12


REFUSED: list[tuple[type[Exception], str, Any]] = [
    (InvalidInput, "classes must be", lambda: uniform_confusion(1, 0.1)),
    (InvalidInput, r"\[0, 1\]", lambda: uniform_confusion(3, 1.1)),
    (InvalidInput, r"\[0, 1\]", lambda: uniform_confusion(3, math.nan)),
    (InvalidType, "floating-point", lambda: check_confusion(torch.eye(2).long())),
    (ShapeMismatch, r"\[classes, classes\]", lambda: check_confusion(torch.ones(2, 3))),
    (ShapeMismatch, "for 2 classes, and there are 3", lambda: check_confusion(torch.eye(2), 3)),
    (NonFinite, "is nan", lambda: check_confusion(torch.eye(2) * math.nan)),
    (InvalidInput, "negative", lambda: check_confusion(torch.tensor([[1.5, 0], [-0.5, 1]]))),
    (InvalidInput, "sums to", lambda: check_confusion(torch.ones(2, 2))),
    (LabelOutOfRange, "classes 0..1", lambda: smooth_labels(torch.tensor([2]), torch.eye(2))),
    (InvalidType, "whole numbers", lambda: smooth_labels(torch.tensor([0.5]), torch.eye(2))),
]


@pytest.mark.parametrize(("error", "sentence", "call"), REFUSED)
def test_refused(error: type[Exception], sentence: str, call: Any) -> None:
    with pytest.raises(error, match=sentence):
        call()
