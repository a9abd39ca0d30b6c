"""The two-layer linear network: gradients, curvature, and the list of its critical points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.optimization.landscape.critical_points import critical_point
from torchtheory.optimization.linear_networks.deep import deep_linear_function, flat_layers
from torchtheory.optimization.linear_networks.second_moments import (
    Covariances,
    least_squares_map,
    reduced_rank_regression,
)
from torchtheory.optimization.linear_networks.two_layer import (
    alternating_minimization,
    best_input_factor,
    best_output_factor,
    critical_form_residual,
    two_layer_curvature,
    two_layer_gradients,
    two_layer_hessian,
)
from torchtheory.optimization.linear_networks.two_layer_critical_points import (
    escape_direction,
    linear_critical_points,
)

seeds = st.integers(0, 10**6)


def draw(seed, samples=30, inputs=4, outputs=3):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, inputs, dtype=torch.float64, generator=random)
    slope = torch.randn(inputs, outputs, dtype=torch.float64, generator=random)
    y = x @ slope + 0.3 * torch.randn(samples, outputs, dtype=torch.float64, generator=random)
    return x, y, random


def diagonal(*roots):
    size = torch.tensor(roots, dtype=torch.float64)
    eye = torch.eye(len(roots), dtype=torch.float64)
    return Covariances(eye, torch.diag(size), torch.diag(size.square()))


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_risk_gradient_and_curvature_are_those_of_the_samples(seed):
    x, y, random = draw(seed)
    moments = Covariances.from_samples(x, y)
    U, V, dU, dV = (torch.randn(n, 2, dtype=torch.float64, generator=random) for n in (3, 4, 3, 4))

    def loss(U, V):
        return (y - x @ V @ U.T).square().sum(1).mean()

    assert torch.allclose(moments.risk(U @ V.T), loss(U, V))
    for found, exact in zip(
        two_layer_gradients(U, V, moments), torch.func.grad(loss, (0, 1))(U, V), strict=True
    ):
        assert torch.allclose(found, exact)
    t = torch.zeros((), dtype=torch.float64)
    second = torch.func.grad(torch.func.grad(lambda t: loss(U + t * dU, V + t * dV)))(t)
    assert torch.allclose(two_layer_curvature(U, V, dU, dV, moments), second)
    function = deep_linear_function((4, 2, 3), moments)
    exact = torch.func.hessian(function)(flat_layers([V.T, U]))
    assert torch.allclose(two_layer_hessian(U, V, moments), exact, atol=1e-10)


def test_least_squares_and_principal_components_of_other_libraries():
    x, y, _ = draw(3)
    moments = Covariances.from_samples(x, y)
    fit = LinearRegression(fit_intercept=False).fit(x.numpy(), y.numpy())
    assert np.allclose(least_squares_map(moments).numpy(), fit.coef_)
    centered = x - x.mean(0)
    best = reduced_rank_regression(Covariances.from_samples(centered, centered), 2)
    rows = PCA(2).fit(centered.numpy()).components_
    assert np.allclose(best.map.numpy(), rows.T @ rows)
    assert reduced_rank_regression(moments, 0).value == pytest.approx(float(moments.yy.trace()))


@given(seeds, st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_every_listed_point_is_critical_with_its_value_and_index(seed, width):
    x, y, random = draw(seed)
    moments = Covariances.from_samples(x, y)
    function = deep_linear_function((4, width, 3), moments)
    mixing = torch.eye(width).double() * 2 + 0.3 * torch.randn(
        width, width, dtype=torch.float64, generator=random
    )
    for rank in range(width + 1):
        points = linear_critical_points(moments, width, rank=rank, mixing=mixing)
        assert len(points) == math.comb(3, rank)
        for p in points:
            theta = flat_layers([p.V.T, p.U])
            assert max(float(g.abs().max()) for g in two_layer_gradients(p.U, p.V, moments)) < 1e-9
            assert float(function(theta)) == pytest.approx(p.value)
            assert critical_point(function, theta, 1e-8).index == p.index
            assert critical_form_residual(p.U, p.V, moments) < 1e-9
            if p.escape is not None:
                assert p.escape.curvature < 0
    assert points[0].label == "global minimum"


def spectrum_data(inputs, outputs, explained, *, rank=None, condition=1.0, dtype=torch.float64):
    """Second moments such that Σ has the given eigenvalues, and Σxx rank and condition."""
    random = torch.Generator().manual_seed(inputs + 10 * outputs)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    seen = inputs if rank is None else rank
    scales = torch.cat([condition ** -torch.linspace(0, 0.5, seen), torch.zeros(inputs - seen)])
    x = normal(40, inputs) * scales.double() @ torch.linalg.qr(normal(inputs, inputs)).Q
    left = torch.linalg.svd(x, full_matrices=False).U[:, :seen]
    roots = torch.tensor(explained, dtype=torch.float64).sqrt()
    inside = left @ torch.linalg.qr(normal(seen, len(roots))).Q * roots
    y = 40**0.5 * inside @ torch.linalg.qr(normal(outputs, len(roots))).Q.T
    return Covariances.from_samples(x.to(dtype), y.to(dtype))


SHAPES = {
    "distinct": lambda: spectrum_data(4, 3, [4.0, 2.0, 1.0]),
    "repeated": lambda: spectrum_data(4, 4, [3.0, 3.0, 3.0, 1.0]),
    "all equal": lambda: spectrum_data(3, 3, [2.0, 2.0, 2.0]),
    "singular inputs": lambda: spectrum_data(5, 3, [4.0, 2.0, 1.0], rank=3),
    "rank-deficient": lambda: spectrum_data(4, 4, [4.0, 2.0]),
    "more outputs": lambda: spectrum_data(2, 4, [3.0, 1.0]),
    "ill-conditioned": lambda: spectrum_data(4, 3, [3.0, 3.0, 1.0], condition=1e6),
    "float32": lambda: spectrum_data(4, 3, [3.0, 3.0, 1.0], dtype=torch.float32),
}


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("name", SHAPES)
def test_index_and_escape_against_dense_hessians(name, width):
    moments = SHAPES[name]()
    function = deep_linear_function((moments.inputs, width, moments.outputs), moments)
    points = linear_critical_points(moments, width, rank="all")
    most = min(width, moments.outputs)
    assert len(points) == sum(math.comb(moments.outputs, r) for r in range(most + 1))
    optimum = reduced_rank_regression(moments, width).value
    rounding = 1e-4 if moments.xx.dtype == torch.float32 else 1e-7
    scale = float(moments.yy.trace())
    for p in points:
        spectrum = torch.linalg.eigvalsh(torch.func.hessian(function)(flat_layers([p.V.T, p.U])))
        assert int((spectrum < -rounding * spectrum.abs().max()).sum()) == p.index
        assert (p.label == "global minimum") == (p.value < optimum + rounding * scale)
        assert (p.escape is None) == (p.index == 0)
        again = escape_direction(p.U, p.V, moments)
        assert (again is None) == (p.escape is None)
        for way in (p.escape, again):
            if way is not None:
                full = len(p.chosen) == width
                promised = 2 * (way.loses - way.gains) if full else -4 * way.gains
                assert way.curvature == pytest.approx(promised, rel=1e-3)
                assert way.curvature < 0


def test_ways_down_where_unused_columns_of_V_are_not_zero_and_beside_such_points():
    moments = spectrum_data(4, 3, [4.0, 2.0, 1.0])
    point = linear_critical_points(moments, 2, rank=1)[1]
    free = torch.linalg.svd(moments.yx - point.U @ point.V.T @ moments.xx).Vh[-1]
    V = point.V.clone()
    V[:, 1] = 3 * free
    assert max(float(g.abs().max()) for g in two_layer_gradients(point.U, V, moments)) < 1e-9
    spectrum = torch.linalg.eigvalsh(two_layer_hessian(point.U, V, moments))
    assert int((spectrum < -1e-8).sum()) == point.index
    assert escape_direction(point.U, V, moments).curvature < -1
    # a solver stops where the gradient is small: U has then full rank, by rounding
    random = torch.Generator().manual_seed(0)
    near = point.U + 1e-7 * torch.randn(3, 2, dtype=torch.float64, generator=random)
    assert escape_direction(near, V, moments, tolerance=1e-5).curvature < -1


def test_escape_turns_the_worst_direction_towards_the_best():
    moments = diagonal(3.0, 2.0, 1.0)
    points = {p.chosen: p for p in linear_critical_points(moments, 2)}
    assert {k: p.index for k, p in points.items()} == {(0, 1): 0, (0, 2): 1, (1, 2): 2}
    assert points[1, 2].escape.curvature == pytest.approx(2 * (1 - 9))
    assert points[0, 2].escape.curvature == pytest.approx(2 * (1 - 4))
    assert points[0, 1].escape is None


@pytest.mark.parametrize("roots", [(2.0, 2.0, 1.0), (2.0, 1.0, 0.0)])
def test_saddles_are_strict_with_repeated_and_with_zero_eigenvalues(roots):
    moments = diagonal(*roots)
    best = reduced_rank_regression(moments, 2).value
    for rank in range(3):
        for p in linear_critical_points(moments, 2, rank=rank):
            lowest = float(torch.linalg.eigvalsh(two_layer_hessian(p.U, p.V, moments))[0])
            assert (p.label == "global minimum") == (p.value < best + 1e-9)
            assert (lowest < -1e-6) == (p.label == "strict saddle")


def test_saddles_are_strict_where_inputs_span_a_plane_only():
    x, y, random = draw(5)
    x[:, 3] = 0
    moments = Covariances.from_samples(x, y)
    assert not moments.invertible
    for p in linear_critical_points(moments, 2)[1:]:
        # what V does where no input is changes neither the risk nor the way down
        hidden = p.V.clone()
        hidden[3] = torch.randn(2, dtype=torch.float64, generator=random)
        assert escape_direction(p.U, hidden, moments).curvature < -1e-6


def test_a_wide_network_reaches_the_unconstrained_optimum():
    x, y, _ = draw(7)
    moments = Covariances.from_samples(x, y)
    fit = alternating_minimization(moments, 6, sweeps=2)
    assert torch.allclose(fit.U @ fit.V.T, least_squares_map(moments))


@given(seeds)
@settings(max_examples=4, deadline=None)
def test_alternating_minimization_falls_to_the_optimum(seed):
    x, y, _ = draw(seed)
    moments = Covariances.from_samples(x, y)
    fit = alternating_minimization(moments, 3, generator=seed)
    assert float(fit.risks.diff().max()) < 1e-10
    assert float(fit.risks[-1]) == pytest.approx(reduced_rank_regression(moments, 3).value)
    assert float(two_layer_gradients(fit.U, fit.V, moments)[0].abs().max()) < 1e-8


def test_half_steps_with_a_factor_that_lost_rank():
    moments = diagonal(2.0, 1.0)
    U = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    V = best_input_factor(U, moments)
    assert float(two_layer_gradients(U, V, moments)[1].abs().max()) < 1e-12
    U = best_output_factor(0 * V, moments)
    assert not U.any()


def test_bad_input_is_refused():
    moments = diagonal(2.0, 1.0)
    with pytest.raises(InvalidInput, match="no critical point"):
        escape_direction(torch.ones(2, 1).double(), torch.ones(2, 1).double(), moments)
    with pytest.raises(InvalidInput, match="invertible"):
        linear_critical_points(moments, 2, mixing=torch.zeros(2, 2).double())
    with pytest.raises(InvalidInput, match="width"):
        linear_critical_points(moments, 0)
    with pytest.raises(InvalidInput, match="rank"):
        linear_critical_points(moments, 2, rank=3)
    with pytest.raises(InvalidType, match="convert one"):
        linear_critical_points(moments, 2, mixing=torch.eye(2))
    with pytest.raises(InvalidType, match="convert one"):
        two_layer_gradients(torch.ones(2, 1), torch.ones(2, 1), moments)
    with pytest.raises(InvalidType, match="int64"):
        best_output_factor(torch.ones(2, 1).long(), moments)
    with pytest.raises(ShapeMismatch, match="the network 1"):
        alternating_minimization(moments, 1, start=torch.ones(2, 2).double())
    with pytest.raises(ShapeMismatch, match="one a hidden unit"):
        two_layer_gradients(torch.ones(2, 1).double(), torch.ones(2, 2).double(), moments)
    with pytest.raises(InvalidInput, match="no second moments"):
        Covariances(torch.eye(1), 2 * torch.eye(1), torch.eye(1))
    with pytest.raises(ShapeMismatch, match="yx must be"):
        Covariances(torch.eye(2), torch.ones(2, 1), torch.eye(1))
    with pytest.raises(InvalidInput, match="is nan"):
        best_input_factor(torch.full((2, 1), math.nan).double(), moments)
    with pytest.raises(InvalidInput, match="whole number"):
        reduced_rank_regression(moments, -1)
    big = Covariances(torch.eye(30), torch.eye(30), torch.eye(30))
    with pytest.raises(InvalidInput, match="classes"):
        linear_critical_points(big, 10)
