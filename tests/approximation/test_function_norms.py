"""Norms of functions on boxes: closed forms, another module, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.approximation.piecewise.function_norms import (
    box_sobolev_norm,
    holder_constant,
    holder_norm,
    into_unit_ball,
    multi_indices,
    network_lipschitz_norm,
    partial_derivatives,
    smooth_norm,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.nets.feedforward import mlp
from torchtheory.primer.function_spaces import sobolev_norm


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(0, 4))
def test_number_of_multi_indices(d: int, n: int) -> None:
    found = multi_indices(d, n)
    assert len(found) == len(set(found)) == math.comb(n + d, d)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 10**6))
def test_derivatives_of_monomials(a: int, b: int, seed: int) -> None:
    x = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5
    found = partial_derivatives(lambda x: x[:, 0] ** a * x[:, 1] ** b, x, 3)
    for (i, j), value in found.items():
        exact = math.perm(a, i) * math.perm(b, j) * x[:, 0] ** (a - i) * x[:, 1] ** (b - j)
        assert torch.allclose(value, exact * (i <= a and j <= b))


def test_the_line_agrees_with_the_other_module() -> None:
    for n in (0, 1, 2):
        ours = box_sobolev_norm(torch.sin, n, 2.0, (0.0, 3.0), panels=16)
        assert ours.value == pytest.approx(sobolev_norm(torch.sin, n, 2, 0.0, 3.0), rel=1e-10)
        assert ours.direction == "quadrature"


def test_a_grid_is_a_lower_bound() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sin(5 * x[:, 0]) * x[:, 1]

    box = ((0.0, 1.0), (0.0, 1.0))
    values = [smooth_norm(f, 1, box, points=n).value for n in (3, 5, 9, 17)]
    assert values == sorted(values)
    assert values[-1] <= 5.0 + 1e-12
    assert box_sobolev_norm(f, 1, math.inf, box).direction == "lower bound"


def test_holder_constants_by_hand() -> None:
    assert holder_constant(lambda x: 3 * x, 1.0, (0.0, 2.0)).value == pytest.approx(3.0)
    # |x - y| / |x - y|^(1/2) is largest for the ends
    assert holder_constant(lambda x: x, 0.5, (0.0, 4.0)).value == pytest.approx(2.0)
    assert holder_norm(lambda x: x**2 / 2, 1, 1.0, (-3.0, 1.0)).value == pytest.approx(4.5)


def test_network_norm() -> None:
    net = mlp([1, 8, 8, 1], generator=0)
    exact = network_lipschitz_norm(net, (-2.0, 3.0))
    x = torch.linspace(-2, 3, 20001, dtype=torch.float64).unsqueeze(1).requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x)
    seen = max(float(net(x).detach().abs().max()), float(slope.abs().max()))
    assert exact.value == pytest.approx(seen, rel=1e-3)
    assert exact.value >= seen - 1e-12


def test_unit_ball() -> None:
    box = ((0.0, 1.0), (0.0, 1.0))
    f = into_unit_ball(lambda x: 7 * x[:, 0] * x[:, 1], 1, 2.0, box)
    assert float(box_sobolev_norm(f, 1, 2.0, box)) == pytest.approx(1.0)
    with pytest.raises(InvalidInput, match="is 0"):
        into_unit_ball(lambda x: 0 * x, 1, 2.0, (0.0, 1.0))


def test_refused() -> None:
    with pytest.raises(InvalidInput, match="exponent"):
        holder_constant(torch.sin, 1.5, (0.0, 1.0))
    with pytest.raises(InvalidInput, match="pairs"):
        holder_constant(lambda x: x[:, 0], 1.0, ((0.0, 1.0), (0.0, 1.0)), points=200)
    with pytest.raises(InvalidInput, match="memory"):
        smooth_norm(lambda x: x[:, 0], 1, ((0.0, 1.0),) * 4, points=65)
    with pytest.raises(NonFinite):
        smooth_norm(lambda x: 1 / x, 0, (0.0, 1.0))
    with pytest.raises(ShapeMismatch):
        partial_derivatives(lambda x: x, torch.zeros(3, 2), 1)
    with pytest.raises(ShapeMismatch):
        partial_derivatives(torch.sin, torch.zeros(3), 1)
    with pytest.raises(InvalidInput, match="exponent"):
        box_sobolev_norm(torch.sin, 1, 0.5, (0.0, 1.0))
