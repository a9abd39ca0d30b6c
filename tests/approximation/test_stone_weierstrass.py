"""Cosine networks, ridge sums and lifting."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.universality.ridge_sums import (
    lift_networks,
    monomial_as_ridges,
    ridge_interval,
)
from torchtheory.approximation.universality.stone_weierstrass import (
    CosineNetwork,
    algebra_conditions,
    separating_cosine,
)
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch


def draw(units: int, d: int, seed: int) -> CosineNetwork:
    g = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(*s, dtype=torch.float64, generator=g) for s in ((units, d), (units,), (units,))
    ]
    return CosineNetwork(*made)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**16))
def test_cosines_are_an_algebra(m: int, n: int, d: int, seed: int) -> None:
    f, g = draw(m, d, seed), draw(n, d, seed + 1)
    x = torch.randn(20, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 2))
    torch.testing.assert_close((f * g)(x), f(x) * g(x), rtol=0, atol=1e-11)
    torch.testing.assert_close((f + g)(x), f(x) + g(x), rtol=0, atol=1e-11)
    torch.testing.assert_close((f * g).network()(x)[:, 0], f(x) * g(x), rtol=0, atol=1e-11)
    assert (f * g).units == 2 * m * n


def test_separation_value() -> None:
    x, y = torch.tensor([[1.0, 2.0, 3.0], [0.5, -2.0, 7.0]], dtype=torch.float64)
    unit = separating_cosine(x, y)
    values = unit(torch.stack([x, y]))
    assert values[0].item() == pytest.approx(math.cos(1), abs=1e-12)
    assert values[1].item() == pytest.approx(1.0, abs=1e-12)
    with pytest.raises(InvalidInput):
        separating_cosine(x, x)


def test_conditions_see_what_is_missing() -> None:
    x = torch.linspace(0, 1, 11, dtype=torch.float64)
    found = algebra_conditions(torch.stack([x, x**2], 1), torch.stack([x, x**2], 1))
    assert found.nonvanishing == 0
    assert found.product_gap > 1e-3
    same = algebra_conditions(torch.ones(4, 1), torch.ones(4, 1))
    assert (same.separation, same.product_gap) == (0.0, pytest.approx(0.0, abs=1e-6))
    with pytest.raises(ShapeMismatch):
        algebra_conditions(torch.ones(4, 1), torch.ones(3, 1))


@pytest.mark.parametrize("exponents", [(1,), (3,), (1, 1), (2, 1), (1, 1, 1), (2, 0, 2)])
def test_monomials_are_ridge_sums(exponents: tuple[int, ...]) -> None:
    ridges = monomial_as_ridges(exponents)
    for x in product(range(-2, 3), repeat=len(exponents)):
        assert ridges(x) == math.prod(v**e for v, e in zip(x, exponents, strict=True))


def test_lifting_keeps_its_promise() -> None:
    box = [(-1.0, 1.0), (0.0, 2.0)]
    ridges = monomial_as_ridges([1, 1])
    parts = [
        relu_interpolant(torch.square, 30, ridge_interval(t, box), curvature=2.0)
        for t in ridges.directions
    ]
    net = lift_networks(ridges.directions, parts, [float(c) for c in ridges.coefficients], box)
    error = measured_error(lambda x: x[:, 0] * x[:, 1], net, most_points=4000).lower
    assert 0 < error <= net.bound
    assert net.size.units == 60


def test_refused() -> None:
    with pytest.raises(ShapeMismatch):
        CosineNetwork(torch.ones(2, 1), torch.ones(1), torch.ones(2))
    with pytest.raises(ShapeMismatch):
        draw(1, 2, 0) * draw(1, 3, 0)
    with pytest.raises(InvalidInput):
        monomial_as_ridges([-1])
    with pytest.raises(EmptyData):
        monomial_as_ridges([0, 0])
    part = relu_interpolant(torch.square, 3, (-1.0, 1.0), curvature=2.0)
    with pytest.raises(InvalidInput):
        lift_networks([[1, 1]], [part], [1.0], [(-1.0, 1.0)] * 2)
    with pytest.raises(ShapeMismatch):
        lift_networks([[1]], [], [], [(-1.0, 1.0)])
