"""Differences of activations, and the best uniform fit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.polynomials.divided_differences import (
    activation_derivative,
    best_difference_step,
    good_bias,
    largest_derivative,
    leshno_network,
    logistic_zeros,
    monomial_error,
    monomial_network,
    smooth_layer,
)
from torchtheory.approximation.universality.uniform_fit import (
    best_uniform_fit,
    random_units,
    span_error,
)
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.activations.table import logistic_derivative_polynomial, nth_derivative

NAMES = ["exp", "sin", "cos", "logistic", "tanh", "softplus"]
X = torch.linspace(-1, 1, 201, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_closed_derivatives(name: str) -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for order in range(5):
        expected = nth_derivative(smooth_layer(name), z, order)
        torch.testing.assert_close(
            activation_derivative(name, z, order), expected, rtol=1e-9, atol=1e-11
        )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 4),
    st.floats(-6, -0.5),
    st.floats(-1.5, 1.5),
    st.booleans(),
)
def test_monomials_keep_their_promise(
    name: str, order: int, exponent: float, bias: float, central: bool
) -> None:
    point = torch.tensor(bias, dtype=torch.float64)
    if abs(float(activation_derivative(name, point, order))) < 1e-3:
        return
    net = monomial_network(order, name, bias, 10**exponent, central=central)
    assert float((net(X) - X**order).abs().max()) <= net.bound
    assert net.size.units == order + 1


def test_identity_by_hand() -> None:
    # sin at 0: sin(hx) / h
    net = monomial_network(1, "sin", 0.0, 0.5)
    torch.testing.assert_close(net(X), torch.sin(0.5 * X) / 0.5)


def test_best_step_is_near_the_least_error() -> None:
    h = best_difference_step(2, "exp", 0.0)
    totals = [monomial_error(2, "exp", 0.0, h * f).total for f in (0.1, 1.0, 10.0)]
    assert min(totals) == totals[1]
    assert best_difference_step(2, "exp", 0.0, central=True) > h


def test_good_bias_avoids_zeros() -> None:
    b, worst = good_bias("tanh", 5)
    assert abs(b) > 0.05
    assert worst > 0
    with pytest.raises(InvalidInput):
        monomial_network(2, "tanh", 0.0, 0.1)


@pytest.mark.parametrize("interval", [(0.0, 1.0), (-2.0, 3.0)])
def test_leshno_network_keeps_its_promise(interval: tuple[float, float]) -> None:
    made = leshno_network(torch.sin, 3, "logistic", 0.9, 1e-3, interval, lipschitz=1.0)
    assert measured_error(torch.sin, made).lower <= made.bound
    assert made.bound == pytest.approx(made.polynomial + made.truncation + made.rounding)
    assert made.size.units == 4


def test_uniform_fit_is_chebyshevs() -> None:
    x = torch.cos(torch.arange(61, dtype=torch.float64) * math.pi / 60)
    for k in (1, 2, 3, 4):
        powers = torch.stack([x**j for j in range(k + 1)], dim=1)
        fit = best_uniform_fit(powers, x ** (k + 1))
        assert fit.error == pytest.approx(2.0**-k, abs=1e-7)
        residual = (x ** (k + 1) - powers @ fit.coefficients).abs().max()
        assert float(residual) == pytest.approx(fit.error, abs=1e-6)
    repeated = torch.stack([x, x, x + 1e-15], dim=1)
    assert best_uniform_fit(repeated, torch.ones_like(x)).error == pytest.approx(1.0, abs=1e-6)


def test_random_units_are_nested() -> None:
    few, many = (random_units("tanh", m, X, generator=3) for m in (4, 9))
    torch.testing.assert_close(few, many[:, :4])
    assert span_error(many, X**2) < span_error(few, X**2)
    with pytest.raises(InvalidInput):
        random_units("tanh", 0, X)


@pytest.mark.parametrize("order", [12, 15, 20])
@pytest.mark.parametrize("activation", ["exp", "sin", "cos", "tanh"])
def test_high_derivatives_that_do_not_vanish(order: int, activation: str) -> None:
    made = monomial_network(order, activation, 0.7, 0.1)
    assert made.size.units == order + 1
    with pytest.raises(InvalidInput, match="is 0 at 0"):
        monomial_network(order + order % 2, "sin", 0.0, 0.1)


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("order", [0, 1, 2, 5, 9])
def test_largest_derivatives_are_no_smaller_than_any_value(activation: str, order: int) -> None:
    """On intervals whose largest value lies between the points of a grid as well."""
    source = torch.Generator().manual_seed(order)
    for low, length in (torch.rand(20, 2, generator=source) * torch.tensor([8.0, 3.0])).tolist():
        z = torch.linspace(low - 4, low - 4 + length, 20001, dtype=torch.float64)
        values = activation_derivative(activation, z, order).abs()
        most = largest_derivative(activation, order, float(z[0]), float(z[-1]))
        # where the logistic function is near 1, the terms of its polynomials cancel
        coefficients = logistic_derivative_polynomial(order)
        rounding = 2.0**order * sum(map(abs, coefficients)) * len(coefficients) * 2**-52
        assert float(values.max()) <= most + rounding
        assert most <= float(values.max()) * (1 + 1e-4)


def test_zeros_of_derivatives_of_the_logistic_function() -> None:
    for order in range(2, 13):
        zeros = torch.tensor(logistic_zeros(order), dtype=torch.float64)
        assert len(zeros) == order - 1
        assert bool((zeros.diff() > 0).all())
        size = largest_derivative("logistic", order, -20.0, 20.0)
        assert float(activation_derivative("logistic", zeros, order).abs().max()) < 1e-8 * size
