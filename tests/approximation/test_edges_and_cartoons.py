"""Hats, horizons, cartoons, best terms: worked cases, identities, refused input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.interpolate import LinearNDInterpolator
from sklearn.linear_model import orthogonal_mp

from torchtheory.approximation.certificates import measured_error, network_size
from torchtheory.approximation.dictionaries.best_terms import (
    best_terms_errors,
    greedy_terms,
    haar_transform,
    inverse_haar_transform,
    largest_terms,
)
from torchtheory.approximation.dictionaries.cartoon_networks import (
    cartoon_error,
    cartoon_network,
    polygon_distance,
)
from torchtheory.approximation.dictionaries.cartoons import cartoon
from torchtheory.approximation.dictionaries.horizons import (
    boundary_exponent,
    gated_network,
    heaviside_error,
    heaviside_network,
    horizon_error,
    horizon_network,
    indicator_bound,
    indicator_network,
    lp_distance,
)
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.hats import hat_interpolant, hat_layers
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch

SQUARE = ((0.0, 1.0), (0.0, 1.0))


def waves(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1])


@pytest.mark.parametrize("cells", [1, 2, 3, 6])
def test_hats_are_the_piecewise_linear_interpolant(cells: int) -> None:
    made = hat_interpolant(waves, cells, SQUARE, curvature=13.0)
    first, second, nodes = hat_layers(cells, SQUARE)
    x = torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(cells))
    hats = torch.relu(torch.relu(x @ first[0].T + first[1]) @ second[0].T + second[1])
    assert (hats.sum(1) - 1).abs().max() < 1e-12  # a partition of unity
    assert (made(nodes) - waves(nodes)).abs().max() < 1e-12
    assert measured_error(waves, made, most_points=1 << 12).lower <= made.bound
    # an affine function is met everywhere
    line = hat_interpolant(lambda z: 2 * z[:, 0] - z[:, 1] + 0.5, cells, SQUARE, curvature=1.0)
    assert (line(x) - (2 * x[:, 0] - x[:, 1] + 0.5)).abs().max() < 1e-12


def test_hats_agree_with_scipy() -> None:
    made = hat_interpolant(waves, 1, SQUARE, curvature=13.0)
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]).double()
    below = LinearNDInterpolator(corners.numpy(), waves(corners).numpy())
    x = torch.tensor([[0.6, 0.2], [0.9, 0.5], [0.3, 0.1]]).double()
    np.testing.assert_allclose(made(x).numpy(), below(x.numpy()), atol=1e-12)
    with pytest.raises(InvalidInput, match="1 or 2 dimensions"):
        hat_layers(2, ((0.0, 1.0),) * 3)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 0.9), st.floats(0.5, 4.0))
def test_heaviside_error_is_the_integral(delta: float, p: float) -> None:
    net = heaviside_network(delta)

    def gap(x: float) -> float:
        return float(abs(float(net(torch.tensor([[x]]).double())) - 1.0) ** p)

    value, _ = integrate.quad(gap, 0, delta, limit=50)
    assert heaviside_error(delta, p) == pytest.approx(value ** (1 / p), rel=1e-5)
    assert network_size(net).parameters == 5


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 0.9), st.floats(-0.2, 0.2), st.floats(0.01, 0.3), st.floats(0.5, 3.0))
def test_horizon_error_of_flat_boundaries(
    level: float, apart: float, delta: float, p: float
) -> None:
    net = heaviside_network(delta)

    def gap(y: float) -> float:
        ramp = float(net(torch.tensor([[level + apart - y]]).double()))
        return float(abs(float(y <= level) - ramp) ** p)

    marks = [min(max(v, 0.0), 1.0) for v in (level, level + apart, level + apart - delta)]
    value, _ = integrate.quad(gap, 0, 1, points=sorted(set(marks)), limit=100)
    found = horizon_error(
        lambda x: 0 * x + level, lambda x: 0 * x + level + apart, delta, p, points=4
    )
    assert found**p == pytest.approx(value, abs=1e-6)
    assert found**p <= abs(apart) + delta + 1e-12


def test_horizon_network_in_three_dimensions() -> None:
    surface = hat_interpolant(lambda x: 0.3 + 0.2 * x[:, 0] * x[:, 1], 8, SQUARE, curvature=0.2)
    net = horizon_network(surface, 0.01)
    x = torch.tensor([[0.5, 0.5, 0.2], [0.5, 0.5, 0.6]]).double()
    assert net(x).tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert net.bound == pytest.approx(surface.bound + 0.01)
    with pytest.raises(InvalidInput, match="sup norm"):
        horizon_network(relu_interpolant(torch.sin, 4, (0.0, 2.0), curvature=1.0), 0.1)


def test_indicator_of_a_square_by_hand() -> None:
    corners = torch.tensor([[0.2, 0.2], [0.8, 0.2], [0.8, 0.8], [0.2, 0.8]]).double()
    center = torch.tensor([0.5, 0.5]).double()
    net = indicator_network(corners, center, 1e-3)
    truth = lambda x: ((x >= 0.2) & (x <= 0.8)).all(1).double()  # noqa: E731
    found = lp_distance(truth, lambda x: net(x)[:, 0], 1.0, points=200)
    assert found <= indicator_bound(corners, center, 1e-3) + 1e-3
    assert network_size(net).parameters <= 20 * 4
    with pytest.raises(InvalidInput, match="counter-clockwise"):
        indicator_network(corners.flip(0), center, 1e-3)
    with pytest.raises(ShapeMismatch):
        indicator_network(corners[:2], center, 1e-3)
    with pytest.raises(NonFinite):
        indicator_network(corners * math.nan, center, 1e-3)


@settings(max_examples=20, deadline=None)
@given(st.floats(-1.0, 1.0), st.sampled_from([0.0, 1.0]))
def test_gate_opens_and_closes(value: float, gate: float) -> None:
    zero = torch.zeros(1, 1).double()
    net = gated_network(
        chain([(zero, torch.tensor([gate], dtype=torch.float64))], []),
        chain([(zero, torch.tensor([value], dtype=torch.float64))], []),
        1.0,
    )
    assert float(net(zero)) == pytest.approx(gate * value, abs=1e-12)


def test_exponents() -> None:
    assert boundary_exponent(2.0, 3) == 2.0
    with pytest.raises(InvalidInput):
        boundary_exponent(2.0, 1)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3]))
def test_cartoons_keep_their_norms(seed: int, smoothness: int) -> None:
    drawing = cartoon(smoothness, generator=seed)
    parts = (drawing.background, drawing.inside, drawing.radius)
    assert all(part.norm_bound(smoothness) <= 1 + 1e-12 for part in parts)
    curve = drawing.boundary(torch.linspace(0, 6.2, 500, dtype=torch.float64))
    assert bool(((curve > 0) & (curve < 1)).all())
    again = cartoon(smoothness, generator=seed)
    assert torch.equal(drawing.image(8), again.image(8))


def test_cartoon_network_and_its_error() -> None:
    drawing = cartoon(2, generator=3)
    net = cartoon_network(drawing, 24)
    values = lambda x: net(x)[:, 0]  # noqa: E731
    width = 1.2 * polygon_distance(drawing, 24) + 1e-3
    polar = cartoon_error(drawing, values, width, points=48)
    assert polar == pytest.approx(lp_distance(drawing, values, 2.0, points=500), rel=0.1)
    with pytest.raises(ShapeMismatch):
        drawing.indicator(torch.zeros(3))
    with pytest.raises(InvalidInput):
        cartoon(0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.integers(1, 2), st.integers(0, 1000))
def test_haar_is_orthonormal(levels: int, axes: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*([2**levels] * axes), dtype=torch.float64, generator=g)
    c = haar_transform(x)
    assert float(c.norm()) == pytest.approx(float(x.norm()))
    assert (inverse_haar_transform(c) - x).abs().max() < 1e-12


def test_haar_by_hand() -> None:
    c = haar_transform(torch.tensor([4.0, 2.0, 5.0, 5.0]).double())
    assert c.tolist() == pytest.approx([8.0, -2.0, math.sqrt(2), 0.0])
    with pytest.raises(ShapeMismatch):
        haar_transform(torch.zeros(3))
    with pytest.raises(InvalidInput):
        largest_terms(torch.zeros(3), 4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 16))
def test_tail_is_the_error_of_the_largest(seed: int, terms: int) -> None:
    x = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    kept = largest_terms(x, terms)
    assert float((x - kept).norm()) == pytest.approx(
        float(best_terms_errors(x, [terms])[0]), abs=1e-12
    )


def test_greedy_terms_are_those_of_scikit_learn() -> None:
    g = torch.Generator().manual_seed(0)
    d = torch.randn(30, 50, dtype=torch.float64, generator=g)
    d = d / d.norm(dim=0)
    y = torch.randn(30, dtype=torch.float64, generator=g)
    found = greedy_terms(d, y, 6)
    peer = orthogonal_mp(d.numpy(), y.numpy(), n_nonzero_coefs=6)
    assert sorted(found.chosen.tolist()) == np.flatnonzero(peer).tolist()
    np.testing.assert_allclose(found.coefficients.numpy(), peer[found.chosen.numpy()], atol=1e-10)
    assert bool((found.errors.diff() <= 1e-12).all())
    with pytest.raises(InvalidInput, match="independent"):
        greedy_terms(d, y, 40)


def test_pixels_are_the_cells() -> None:
    drawing = cartoon(1, generator=1)
    assert torch.equal(drawing.image(5).flatten(), drawing(cell_centers(SQUARE, 5)))


def test_edge_is_the_mean_of_four_points() -> None:
    drawing = cartoon(2, generator=3)
    fine = drawing.indicator(cell_centers(SQUARE, 12)).reshape(6, 2, 6, 2)
    edge = drawing.edge(6)
    assert torch.equal(edge, fine.mean((1, 3)))
    assert set(edge.flatten().tolist()) <= {0.0, 0.25, 0.5, 0.75, 1.0}
