"""Stationary points: what they are, and how long runs stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.eigenvalues import extremal_eigenvalues
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.problem import Problem
from torchtheory.optimization.critical_points import classify, critical_point, escape_times
from torchtheory.optimization.curvature import hessian_operator


@given(st.integers(0, 10**6), st.lists(st.sampled_from([-2.0, -0.5, 0.7, 3.0]), min_size=1))
@settings(max_examples=30, deadline=None)
def test_quadratic_forms_in_any_basis(seed, signs):
    signs = signs[:6]
    size = len(signs)
    random = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=random))
    matrix = basis * torch.tensor(signs, dtype=torch.float64) @ basis.T
    found = critical_point(lambda x: x @ matrix @ x / 2, torch.zeros(size, dtype=torch.float64))
    assert found.index == sum(s < 0 for s in signs)
    assert torch.allclose(found.eigenvalues, torch.tensor(sorted(signs)).double(), atol=1e-9)
    expected = "minimum" if min(signs) > 0 else "maximum" if max(signs) < 0 else "saddle"
    assert found.kind == expected


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x[0] ** 3 - 3 * x[0] * x[1] ** 2, "degenerate"),
        (lambda x: x[0] ** 4 + x[1] ** 4, "degenerate"),
        (lambda x: x[0] ** 2 - x[1] ** 2 + x[0] ** 3, "saddle"),
        (lambda x: torch.cos(x).sum(), "maximum"),
        (lambda x: x[0] + x[1] ** 2, "not stationary"),
    ],
)
def test_kinds_at_the_origin(function, kind):
    assert critical_point(function, torch.zeros(2, dtype=torch.float64)).kind == kind


def test_a_saddle_with_a_flat_direction_is_still_a_saddle():
    found = critical_point(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(3, dtype=torch.float64))
    assert (found.kind, found.index) == ("saddle", 1)


def test_a_deep_linear_network_has_a_degenerate_point_at_zero():
    # f = w3 w2 w1 x: gradient and Hessian vanish at 0; with two factors it is a strict saddle
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    kinds = []
    for depth in (2, 3):
        layers = [nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(depth)]
        net = nn.Sequential(*layers)
        for p in net.parameters():
            nn.init.zeros_(p)
        ends = extremal_eigenvalues(hessian_operator(Problem(net, (x, 3 * x), task="regression")))
        kinds.append(classify(ends.smallest, ends.largest, 1e-9))
    assert kinds == ["saddle", "degenerate"]


def test_escape_times_by_hand():
    points = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[3.0, 4.0], [1.0, 0.0]]])
    assert escape_times(points, torch.zeros(2), 4.9).tolist() == [1, 2]
    assert escape_times(points, torch.tensor([0.0, 5.0]), 4.9).tolist() == [0, 0]


def test_bad_input_is_refused():
    with pytest.raises(ShapeMismatch, match="one point"):
        critical_point(lambda x: x.sum(), torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="NaN"):
        critical_point(lambda x: x.abs().sqrt().sum(), torch.zeros(2))
    with pytest.raises(InvalidInput, match="exceeds"):
        classify(1.0, 0.0, 1e-9)
    with pytest.raises(InvalidInput, match="tolerance"):
        classify(0.0, 1.0, -1.0)
    with pytest.raises(InvalidInput, match="radius"):
        escape_times(torch.zeros(3, 2), torch.zeros(2), 0.0)
    with pytest.raises(ShapeMismatch):
        escape_times(torch.zeros(3, 2), torch.zeros(3), 1.0)
