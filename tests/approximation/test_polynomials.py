"""Bernstein's and Landau's polynomials against scipy, exact arithmetic and each other."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.polynomials.bernstein import (
    bernstein_approximant,
    bernstein_basis,
    bernstein_degree,
    binomial_moment,
    far_bound,
    power_coefficients,
    split_residual,
)
from torchtheory.approximation.polynomials.landau import (
    kernel_moment,
    landau_approximant,
    landau_bound,
    landau_constant,
)
from torchtheory.core.errors import EmptyData, InvalidInput

X = torch.linspace(0, 1, 33, dtype=torch.float64)


@pytest.mark.parametrize("m", [0, 1, 5, 200])
def test_basis_is_the_binomial_law(m: int) -> None:
    expected = stats.binom.pmf(np.arange(m + 1), m, X.numpy()[:, None])
    np.testing.assert_allclose(bernstein_basis(m, X).numpy(), expected, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.fractions(0, 1))
def test_moments(m: int, x: Fraction) -> None:
    assert binomial_moment(m, x, 0) == 1
    assert binomial_moment(m, x, 1) == 0
    assert binomial_moment(m, x, 2) == x * (1 - x) / m


@settings(max_examples=20, deadline=None)
@given(st.floats(-3, 3), st.floats(0.1, 4), st.integers(1, 40), st.floats(0.3, 5))
def test_bernstein_keeps_its_promise(low: float, length: float, m: int, rho: float) -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(rho * x)

    made = bernstein_approximant(g, m, (low, low + length), lipschitz=rho)
    assert measured_error(g, made, most_points=1025).lower <= made.bound + 1e-12


def test_power_coefficients_are_the_same_polynomial() -> None:
    values = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    alpha = power_coefficients(values)
    expected = bernstein_basis(3, X) @ values
    found = sum(float(a) * X**k for k, a in enumerate(alpha))
    torch.testing.assert_close(found, expected)
    with pytest.raises(EmptyData):
        power_coefficients([])


def test_residual_parts_bound_the_error() -> None:
    near, far = split_residual(torch.exp, 20, X, 0.1)
    made = bernstein_approximant(torch.exp, 20, lipschitz=math.e)
    assert ((torch.exp(X) - made(X)).abs() <= near + far + 1e-12).all()
    assert float(far.max()) <= far_bound(20, 0.1, math.e - 1)
    assert bernstein_degree(0.5, 0.25, 1.0) == 17


@pytest.mark.parametrize("n", [0, 1, 3, 10])
def test_kernel_integrals(n: int) -> None:
    for power in (0, 1, 2):
        value, _ = integrate.quad(lambda u, p=power: u**p * (1 - u * u) ** n, -1, 1)
        assert float(kernel_moment(n, power)) == pytest.approx(value, abs=1e-12)
    assert kernel_moment(n, 0) == landau_constant(n)
    assert kernel_moment(n, 2) == landau_constant(n + 1) / (2 * (n + 1))


def test_landau_is_a_polynomial_of_degree_2n() -> None:
    made = landau_approximant(torch.cos, 3, (-1.0, 2.0), lipschitz=1.0)
    x = np.linspace(-1, 2, 40)
    y = made(torch.from_numpy(x)).numpy()
    fit = np.polynomial.Polynomial.fit(x, y, 6)
    np.testing.assert_allclose(fit(x), y, atol=1e-12)
    with_less = np.polynomial.Polynomial.fit(x, y, 5)
    assert np.abs(with_less(x) - y).max() > 1e-9


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 6), st.floats(-3, 3), st.integers(1, 200))
def test_landau_keeps_its_promise(rho: float, phase: float, n: int) -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(rho * x + phase)

    made = landau_approximant(g, n, lipschitz=rho, panels=32)
    assert measured_error(g, made, most_points=513).lower <= made.bound + 1e-9


def test_landau_bound_by_hand() -> None:
    assert landau_bound(99, 0.5, 0.1, 1.0) == pytest.approx(0.14)


def test_refused() -> None:
    with pytest.raises(InvalidInput):
        bernstein_basis(3, torch.tensor([1.5]))
    with pytest.raises(InvalidInput):
        bernstein_approximant(torch.sin, 0, lipschitz=1.0)
    with pytest.raises(InvalidInput):
        landau_approximant(torch.sin, 0, lipschitz=1.0)
    with pytest.raises(InvalidInput):
        landau_constant(-1)
    with pytest.raises(InvalidInput):
        far_bound(10, 0.0, 1.0)
