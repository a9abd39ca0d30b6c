"""Dual activations: closed forms against quadrature, expansions against their own bounds."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnknownName
from torchtheory.kernels.dual_activations import (
    CLOSED_FORMS,
    HermiteExpansion,
    PiecewiseLinear,
    activation_layer,
    angle_and_rest,
    dual_activation,
    dual_moments,
)
from torchtheory.nets.activations import activation, nth_derivative
from torchtheory.primer.gaussian_pairs import gaussian_pair_mean


def pairs(count: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    k11, k22 = (4 * torch.rand(count, generator=g, dtype=torch.float64) + 0.05 for _ in range(2))
    # at the very ends the angle is the square root of a rounding error
    rho = torch.linspace(-0.999, 0.999, count, dtype=torch.float64)
    return k11, rho * (k11 * k22).sqrt(), k22


def slope(layer: nn.Module, name: str) -> object:
    if name in ("heaviside", "sign"):
        return torch.zeros_like
    return lambda z: nth_derivative(layer, z, 1)


@pytest.mark.parametrize("name", [*CLOSED_FORMS, "leaky relu", "parametric relu", "tanh"])
def test_moments_are_those_of_the_quadrature_in_the_plane(name: str) -> None:
    k11, k12, k22 = pairs()
    dual = dual_activation(name)
    layer = dual.layer()
    derivative = slope(layer, name)
    found = dual_moments(name, k11, k12, k22)
    assert found.slopes is not None
    tolerance = 1e-12 + found.error
    for ours, f in ((found.values, layer), (found.slopes, derivative)):
        theirs = gaussian_pair_mean(f, f, k11, k22, k12)
        assert float((ours - theirs).abs().max()) <= tolerance
    diagonal = dual.on_diagonal(k11)
    again = gaussian_pair_mean(layer, layer, k11, k11, k11)
    assert torch.allclose(diagonal.values, again, atol=1e-8)


@pytest.mark.parametrize("name", ["relu", "erf", "gelu", "sin"])
def test_values_agree_with_the_double_integral(name: str) -> None:
    a, b, c = 1.3, 0.4, 0.7
    layer = activation_layer(name)

    @cache
    def f(t: float) -> float:
        return float(layer(torch.tensor(t, dtype=torch.float64)))

    determinant = a * c - b * b

    def density(u: float, v: float) -> float:
        power = (c * u * u - 2 * b * u * v + a * v * v) / determinant
        return math.exp(-power / 2) / (2 * math.pi * math.sqrt(determinant))

    nodes, weights = np.polynomial.legendre.leggauss(40)
    # on four squares, so that a kink at 0 is on their edges
    total = 0.0
    for u, w1 in zip(4.5 * nodes + 4.5, 4.5 * weights, strict=True):
        for v, w2 in zip(4.5 * nodes + 4.5, 4.5 * weights, strict=True):
            for s, t in ((u, v), (u, -v), (-u, v), (-u, -v)):
                total += w1 * w2 * f(s) * f(t) * density(s, t)
    k = [torch.tensor(t, dtype=torch.float64) for t in (a, b, c)]
    assert abs(float(dual_moments(name, *k).values) - total) < 1e-9


def test_relu_by_hand() -> None:
    k = torch.ones(4, dtype=torch.float64)
    cosine = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    found = dual_moments("relu", k, cosine, k)
    assert found.slopes is not None
    at_sixty = (math.sqrt(3) / 2 + math.pi / 3) / (2 * math.pi)
    assert torch.allclose(found.values, k.new_tensor([0.5, at_sixty, 1 / (2 * math.pi), 0.0]))
    assert torch.allclose(found.slopes, k.new_tensor([1 / 2, 1 / 3, 1 / 4, 0.0]), atol=1e-7)


@given(
    st.floats(-2, 2),
    st.floats(0.1, 2),
    st.floats(0.01, 5),
    st.floats(0.01, 5),
    st.floats(-1, 1),
)
@settings(max_examples=60, deadline=None)
def test_piecewise_linear_is_built_from_relu(
    negative: float, positive: float, k11: float, k22: float, rho: float
) -> None:
    """phi = b relu(z) - a relu(-z): its moments are ReLU's at the covariance and its opposite."""
    a, c = (torch.tensor(k, dtype=torch.float64) for k in (k11, k22))
    b = rho * (a * c).sqrt()
    ours = dual_moments(PiecewiseLinear(negative, positive), a, b, c)
    same, opposite = (dual_moments("relu", a, sign * b, c) for sign in (1, -1))
    assert ours.slopes is not None
    assert same.slopes is not None
    assert opposite.slopes is not None
    squares, product = negative**2 + positive**2, 2 * negative * positive
    assert torch.allclose(ours.values, squares * same.values - product * opposite.values)
    assert torch.allclose(ours.slopes, squares * same.slopes + product * opposite.slopes, atol=1e-9)


@given(st.floats(0.05, 3), st.floats(0.05, 3), st.floats(-0.98, 0.98))
@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize("name", ["erf", "gelu", "sin", "gaussian", "tanh", "softplus"])
def test_slopes_are_the_derivative_in_the_covariance(
    name: str, k11: float, k22: float, rho: float
) -> None:
    """d/dk12 E phi(z) phi(z') = E phi'(z) phi'(z'), for every activation."""
    a, c = (torch.tensor(k, dtype=torch.float64) for k in (k11, k22))
    b, step = rho * (a * c).sqrt(), 1e-5
    up, down = (dual_moments(name, a, b + s, c, slopes=False).values for s in (step, -step))
    slopes = dual_moments(name, a, b, c).slopes
    assert slopes is not None
    assert abs(float((up - down) / (2 * step) - slopes)) < 1e-6


def test_expansion_error_is_a_bound_and_falls_with_terms() -> None:
    k11, k12, k22 = pairs(21)
    row = activation("relu")
    exact = dual_moments("relu", k11, k12, k22)
    bounds = []
    for terms in (5, 20, 80):
        dual = HermiteExpansion(row, terms=terms)
        found = dual_moments(dual, k11, k12, k22)
        assert found.slopes is not None
        assert exact.slopes is not None
        worst = max(
            float((found.values - exact.values).abs().max()),
            float((found.slopes - exact.slopes).abs().max()),
        )
        assert worst <= found.error + 1e-12
        bounds.append(found.error)
    assert bounds[0] > bounds[1] > bounds[2] > 0
    assert dual_moments(HermiteExpansion(nn.SiLU()), k11, k12, k22).error < 1e-13


def test_small_angles_keep_their_digits_in_single_precision() -> None:
    t = torch.logspace(-6, 0, 25, dtype=torch.float64)
    distance = 2 * (t / 2).sin().square()
    found, rest = angle_and_rest(distance.float())
    assert torch.allclose(found.double(), t, rtol=1e-6)
    # the rest is of order t^3 and enters beside the distance, of order t^2
    assert float(((rest.double() - (t.sin() - t * t.cos())) / t).abs().max()) < 1e-6


def test_zero_variance_is_no_trouble() -> None:
    zero, one = torch.zeros(1), torch.ones(1)
    for name in CLOSED_FORMS:
        found = dual_moments(name, zero, zero, one)
        assert found.slopes is not None
        assert bool(torch.isfinite(found.values).all())
        assert bool(torch.isfinite(found.slopes).all())
    assert float(dual_moments("relu", zero, zero, one).values) == 0.0
    assert float(dual_moments("cos", zero, zero, zero).values) == 1.0


def test_names_modules_and_functions_find_their_closed_form() -> None:
    for given_, name in (
        (nn.ReLU(), "relu"),
        (nn.ReLU, "relu"),
        (torch.relu, "relu"),
        (nn.Identity(), "linear"),
        (nn.GELU(), "gelu"),
        (torch.sin, "sin"),
        (activation("gaussian"), "gaussian"),
        (activation("power relu", k=1), "relu"),
    ):
        assert dual_activation(given_) is CLOSED_FORMS[name]
    leaky = dual_activation(nn.LeakyReLU(0.3))
    assert isinstance(leaky, PiecewiseLinear)
    assert (leaky.negative, leaky.positive) == (0.3, 1.0)
    prelu = dual_activation(nn.PReLU(init=0.2))
    assert isinstance(prelu, PiecewiseLinear)
    assert prelu.negative == pytest.approx(0.2)
    assert isinstance(dual_activation(nn.GELU(approximate="tanh")), HermiteExpansion)
    assert isinstance(activation_layer(PiecewiseLinear(0.0, 1.0)), nn.ReLU)


def test_bad_input_is_refused() -> None:
    one = torch.ones(2)
    with pytest.raises(InvalidInput, match="variance"):
        dual_moments("relu", -one, one, one)
    with pytest.raises(InvalidInput, match="covariance"):
        dual_moments("relu", one, 2 * one, one)
    with pytest.raises(ShapeMismatch):
        dual_moments("relu", one, torch.ones(3), one)
    with pytest.raises(InvalidType):
        dual_moments("relu", one.long(), one, one)
    with pytest.raises(UnknownName):
        dual_activation("rellu")
    with pytest.raises(InvalidType):
        dual_activation(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        PiecewiseLinear(0.0, 0.0)
    with pytest.raises(InvalidInput):
        HermiteExpansion(torch.tanh, terms=0)
