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
from torchtheory.nets.activations.table import activation, nth_derivative
from torchtheory.nets.infinite_width.dual_activations import (
    CLOSED_FORMS,
    activation_layer,
    dual_activation,
    dual_moments,
)
from torchtheory.nets.infinite_width.duals.angles import half_angle_and_rest
from torchtheory.nets.infinite_width.duals.closed_forms import PiecewiseLinear
from torchtheory.nets.infinite_width.duals.hermite import HermiteExpansion
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
    half, rest = half_angle_and_rest(distance.float())
    assert torch.allclose(2 * half.double(), t, rtol=1e-6)
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


DIFFERENTIABLE = [*CLOSED_FORMS, "leaky relu"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_both_moments(name: str) -> None:
    given = tuple(k.requires_grad_() for k in pairs(6))

    def both(k11: Tensor, k12: Tensor, k22: Tensor) -> tuple[Tensor, Tensor]:
        found = dual_moments(name, k11, k12, k22)
        assert found.slopes is not None
        return found.values, found.slopes

    assert torch.autograd.gradcheck(both, given)


@pytest.mark.parametrize(
    "name", [n for n in DIFFERENTIABLE if "heaviside" not in n and n != "sign"]
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradients_at_equal_and_opposite_points(name: str, sign: float) -> None:
    """By k12 it is the slopes (Price); along k11 = k22 = |k12| that of the one-dimensional mean."""
    k = torch.tensor([0.3, 1.0, 2.7], dtype=torch.float64)
    k11, k12, k22 = k.clone(), sign * k, k.clone()
    given = [t.requires_grad_() for t in (k11, k12, k22)]
    found = dual_moments(name, *given)
    by_11, by_12, by_22 = torch.autograd.grad(found.values.sum(), given)
    assert found.slopes is not None
    assert torch.allclose(by_12, found.slopes.detach(), atol=1e-12)
    assert torch.allclose(by_11, by_22, atol=1e-12)
    h = 1e-5
    with torch.no_grad():
        ahead, behind = (dual_moments(name, k + s, sign * (k + s), k + s).values for s in (h, -h))
    assert torch.allclose(by_11 + sign * by_12 + by_22, (ahead - behind) / (2 * h), atol=1e-8)


def test_where_there_is_no_derivative_it_is_refused() -> None:
    k = torch.ones(2, dtype=torch.float64, requires_grad=True)
    for name in ("relu", "abs", "leaky relu"):
        slopes = dual_moments(name, k, k.detach(), k.detach()).slopes
        assert slopes is not None
        with pytest.raises(InvalidInput, match="equal or opposite points has no derivative"):
            slopes.sum().backward()
    for name in ("sign", "heaviside"):
        with pytest.raises(InvalidInput, match="equal or opposite points has no derivative"):
            dual_moments(name, k, -k.detach(), k.detach()).values.sum().backward()
    zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(InvalidInput, match="moments of relu have no derivative where a variance"):
        dual_moments("relu", zero, zero, k)
    with pytest.raises(InvalidInput, match="the expansion of tanh is not differentiated"):
        dual_moments("tanh", k, k, k)
    with torch.no_grad():
        assert bool(torch.isfinite(dual_moments("tanh", k, k, k).values).all())


@pytest.mark.parametrize("name", ["heaviside", "sign", "relu", "abs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_and_opposite_points_are_exact(name: str, dtype: torch.dtype) -> None:
    k = (0.01 + 10 * torch.rand(50, dtype=torch.float64)).to(dtype)
    dual, unit = dual_activation(name), 4 * torch.finfo(dtype).eps
    same, diagonal = dual_moments(name, k, k, k), dual.on_diagonal(k)
    assert torch.allclose(same.values, diagonal.values, rtol=unit)
    assert same.slopes is not None
    assert diagonal.slopes is not None
    assert torch.allclose(same.slopes, diagonal.slopes, rtol=unit)
    opposite = dual_moments(name, k, -k, k)
    expected = {"heaviside": 0 * k, "sign": 0 * k - 1, "relu": 0 * k, "abs": k}[name]
    assert torch.allclose(opposite.values, expected, rtol=unit, atol=unit)


def kinked_mean(f: object, kinks: tuple[float, ...], variance: float, rho: float) -> float:
    """E f(z) f(z') with panels that end at the kinks of f, inside and outside."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    scale = math.sqrt(variance)

    def panels(mean: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
        # 40 panels of one deviation's quarter, cut at the kinks: nodes and masses [..., n]
        ends = np.linspace(-9, 9, 41) * deviation + mean[..., None]
        cuts = np.broadcast_to(np.array(kinks), (*mean.shape, len(kinks)))
        ends = np.sort(np.concatenate([ends, np.clip(cuts, ends[..., :1], ends[..., -1:])], -1), -1)
        middle, half = (ends[..., 1:] + ends[..., :-1]) / 2, np.diff(ends) / 2
        z = (middle[..., None] + half[..., None] * nodes).reshape(*mean.shape, -1)
        mass = (half[..., None] * weights).reshape(*mean.shape, -1)
        density = np.exp(-(((z - mean[..., None]) / deviation) ** 2) / 2)
        return z, mass * density / (deviation * math.sqrt(2 * math.pi))

    z, mass = panels(np.zeros(()), scale)
    if rho == 1:
        return float((mass * f(z) ** 2).sum())  # type: ignore[operator]
    inner, inside = panels(rho * z, scale * math.sqrt(1 - rho**2))
    return float((mass * f(z) * (inside * f(inner)).sum(-1)).sum())  # type: ignore[operator]


@pytest.mark.parametrize("variance", [0.5, 1.0, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("rho", [-0.5, 0.9, 1.0])
def test_kinks_elsewhere_than_at_zero_are_in_the_stated_error(variance: float, rho: float) -> None:
    cases = {
        nn.Hardswish(): (
            (-3.0, 3.0),
            lambda z: z * np.clip(z + 3, 0, 6) / 6,
            lambda z: np.where(z <= -3, 0, np.where(z >= 3, 1, (2 * z + 3) / 6)),
        ),
        nn.Hardtanh(): (
            (-1.0, 1.0),
            lambda z: np.clip(z, -1, 1),
            lambda z: 1.0 * (np.abs(z) < 1),
        ),
    }
    k = torch.tensor([variance], dtype=torch.float64)
    for layer, (kinks, f, derivative) in cases.items():
        found = dual_moments(layer, k, rho * k, k)
        assert found.slopes is not None
        allowed = found.error + 1e-12  # rounding
        for ours, function in ((found.values, f), (found.slopes, derivative)):
            theirs = kinked_mean(function, kinks, variance, rho)
            assert abs(float(ours) - theirs) <= allowed
        assert found.error < 0.3
