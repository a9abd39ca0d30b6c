"""Critical points of the spherical spin glass and of smooth functions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.optimization.landscape.critical_points import critical_point
from torchtheory.optimization.landscape.spin_glass import (
    SphericalSpinGlass,
    critical_points_of,
    critical_points_of_glass,
    descend_gradient_norm,
    expected_index,
)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_the_energy_is_the_sum(degree):
    J, s = normal(1, *[3] * degree), normal(2, 3)
    total = 0.0
    for place in torch.cartesian_prod(*[torch.arange(3)] * degree).tolist():
        total += float(J[tuple(place)]) * math.prod(float(s[i]) for i in place)
    found = SphericalSpinGlass(J).energy(s)
    assert float(found) == pytest.approx(total * 3 ** (-(degree - 1) / 2))


@given(seed=st.integers(0, 10**6), degree=st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_derivatives_on_the_sphere_agree_with_great_circles(seed, degree):
    glass = SphericalSpinGlass.random(4, degree, generator=seed)
    source = torch.Generator().manual_seed(seed + 1)
    s, v = (torch.randn(4, dtype=torch.float64, generator=source) for _ in range(2))
    s = glass.to_sphere(s)
    v = v - (v @ s) / 4 * s
    v = v / v.norm()

    def along(t):
        # a great circle of unit speed on the sphere of radius 2
        return glass.energy(torch.cos(t / 2) * s + 2 * torch.sin(t / 2) * v)

    gradient, hessian = glass.derivatives(s[None])
    zero = torch.zeros((), dtype=torch.float64)
    first, second = torch.func.grad(along), torch.func.grad(torch.func.grad(along))
    assert float(first(zero)) == pytest.approx(float(gradient[0] @ v), abs=1e-9)
    assert float(second(zero)) == pytest.approx(float(v @ hessian[0] @ v), abs=1e-8)
    assert float((hessian[0] @ s).abs().max()) < 1e-9
    assert float((gradient[0] @ s).abs()) < 1e-9


def test_degree_two_finds_eigenvectors():
    A = normal(3, 5, 5)
    A = (A + A.T) / 2
    values, vectors = torch.linalg.eigh(A)
    found = critical_points_of_glass(SphericalSpinGlass(A), vectors.T + 0.01)
    assert torch.allclose(found.values, values * math.sqrt(5), atol=1e-6)
    assert found.index.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_critical_points_of_a_glass_are_critical_and_different():
    glass = SphericalSpinGlass.random(8, generator=4)
    found = critical_points_of_glass(glass, normal(5, 60, 8))
    assert len(found.values) > 5
    assert float(found.gradient_norms.max()) <= 1e-8
    assert torch.allclose(found.points.norm(dim=1), torch.full_like(found.values, math.sqrt(8)))
    assert float(torch.pdist(found.points).min()) > 1e-4
    assert bool((found.values.diff() >= 0).all())
    # H is odd for p = 3: the opposite points are critical, with the other index
    mirrored = critical_points_of_glass(glass, -found.points)
    assert torch.allclose(mirrored.values.flip(0), -found.values, atol=1e-7)
    assert torch.allclose(mirrored.index.flip(0), 1 - found.index)


def test_single_precision_counts_the_same_directions():
    glass = SphericalSpinGlass.random(8, generator=4)
    found = critical_points_of_glass(glass, normal(5, 40, 8))
    rough = critical_points_of_glass(
        SphericalSpinGlass(glass.couplings.float()), found.points.float()
    )
    # the couplings of the second are divided by n once more
    assert torch.allclose(rough.values * 8, found.values.float(), atol=1e-3)
    assert torch.allclose(rough.index, found.index.float())


def test_a_function_against_the_classification_of_single_points():
    def wells(x):
        return ((x.square() - 1).square() + 0.3 * x).sum()

    found = critical_points_of(wells, 1.2 * normal(9, 80, 2))
    assert len(found.values) == 9
    single = critical_points_of(wells, 1.2 * normal(9, 80, 2).float())
    assert len(single.values) == 9
    for point, index in zip(found.points, found.index, strict=True):
        single = critical_point(wells, point, tolerance=1e-5)
        assert single.kind != "not stationary"
        assert single.index / 2 == pytest.approx(float(index))


def test_a_function_without_critical_points():
    found = critical_points_of(lambda x: x.sum() + x.square().sum() * 0, normal(6, 3, 2))
    assert len(found.values) == 0


@pytest.mark.parametrize("energy", [-1.5, -0.4, 0.0, 1.2])
def test_the_expected_index_is_the_integral_of_the_semicircle(energy):
    x = energy * math.sqrt(3 / 2)
    share, _ = quad(lambda u: math.sqrt(4 - u * u) / (2 * math.pi), -2, x)
    found = float(expected_index(torch.tensor(energy, dtype=torch.float64), 3))
    assert found == pytest.approx(share, abs=1e-8)


def test_bad_input():
    with pytest.raises(ShapeMismatch, match="axes"):
        SphericalSpinGlass(torch.ones(3))
    with pytest.raises(ShapeMismatch, match="axes"):
        SphericalSpinGlass(torch.ones(3, 4))
    with pytest.raises(NonFinite):
        SphericalSpinGlass(torch.full((2, 2), math.nan))
    glass = SphericalSpinGlass.random(3)
    with pytest.raises(ShapeMismatch, match="spins"):
        glass.energy(torch.ones(4).double())
    with pytest.raises(InvalidType, match="convert one"):
        glass.energy(torch.ones(3))
    with pytest.raises(InvalidInput, match="norm 0"):
        critical_points_of_glass(glass, torch.zeros(1, 3).double())
    with pytest.raises(ShapeMismatch, match="one value"):
        critical_points_of(lambda x: x, torch.ones(1, 3))
    with pytest.raises(InvalidInput, match="too many for memory"):
        SphericalSpinGlass.random(10_000, 3)
    with pytest.raises(InvalidInput, match="at least 2"):
        expected_index(torch.zeros(1), 1)
    with pytest.raises(ShapeMismatch, match="starts"):
        descend_gradient_norm(glass.derivatives, torch.ones(3).double())
    with pytest.raises(InvalidInput, match="tolerance"):
        descend_gradient_norm(glass.derivatives, torch.ones(1, 3).double(), tolerance=0.0)
