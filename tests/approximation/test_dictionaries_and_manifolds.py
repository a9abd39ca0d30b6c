"""Dictionary networks, ReLU wavelets, shearlets, manifolds: identities and peers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from sklearn.datasets import make_swiss_roll
from torch import nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.dictionaries.best_terms import best_terms_errors
from torchtheory.approximation.dictionaries.networks import (
    dictionary_element,
    dictionary_network,
    haar_generator,
    haar_generator_error,
)
from torchtheory.approximation.dictionaries.shearlets import (
    parabolic_scaling,
    shear,
    shearlet,
    shearlet_frame,
)
from torchtheory.approximation.dictionaries.wavelets import (
    bump_constant,
    bump_network,
    wavelet_generator,
    wavelet_grid,
)
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.manifold_networks import (
    Chart,
    chart_inverse,
    chart_weights,
    l1_terms_bound,
    manifold_network,
    tangent_charts,
)
from torchtheory.approximation.piecewise.manifolds import (
    circle_curve,
    intrinsic_dimension,
    random_frame,
    swiss_roll,
    swiss_roll_sheet,
)
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_dictionary_network_is_the_sum(seed: int, terms: int) -> None:
    g = torch.Generator().manual_seed(seed)
    matrices = torch.randn(terms, 2, 2, dtype=torch.float64, generator=g)
    shifts = torch.randn(terms, 2, dtype=torch.float64, generator=g)
    c = torch.randn(terms, dtype=torch.float64, generator=g)
    bump = bump_network(2)
    net = dictionary_network(bump, matrices, shifts, c)
    x = 3 * torch.randn(40, 2, dtype=torch.float64, generator=g)
    total = sum(
        c[i] * dictionary_element(lambda z: bump(z)[:, 0], matrices[i], shifts[i])(x)
        for i in range(terms)
    )
    assert (net(x)[:, 0] - total).abs().max() < 1e-10
    # a unit of the first layer reads both coordinates once the matrix is full
    assert network_size(net).parameters <= terms * (network_size(bump).parameters + 8)


def test_dictionary_refuses() -> None:
    bump = bump_network(1)
    one = torch.ones(1, 1, 1).double()
    with pytest.raises(InvalidInput, match="singular"):
        dictionary_network(bump, 0 * one, torch.zeros(1, 1), torch.ones(1))
    with pytest.raises(ShapeMismatch):
        dictionary_network(bump, one, torch.zeros(2, 1), torch.ones(1))
    with pytest.raises(ShapeMismatch):
        dictionary_network(bump_network(2), one, torch.zeros(1, 1), torch.ones(1))


@pytest.mark.parametrize("kind", [(0,), (1,), (0, 1), (1, 1)])
def test_haar_generator_is_close(kind: tuple[int, ...]) -> None:
    ramp = 0.02
    net = haar_generator(kind, ramp)
    x = cell_centers(((-0.2, 1.2),) * len(kind), 2800 if len(kind) == 1 else 280)
    exact = torch.ones(len(x), dtype=torch.float64)
    for j, k in enumerate(kind):
        inside = ((x[:, j] >= 0) & (x[:, j] < 1)).double()
        exact *= inside * (1 if k == 0 else torch.where(x[:, j] < 0.5, 1.0, -1.0))
    error = float(((net(x)[:, 0] - exact) ** 2).mean().sqrt()) * 1.4 ** (len(kind) / 2)
    assert 0 < error <= haar_generator_error(kind, ramp)
    with pytest.raises(InvalidInput):
        haar_generator(kind, 0.3)


def test_bump_integral_by_scipy() -> None:
    net = bump_network(2)
    axis = torch.linspace(-3, 3, 241, dtype=torch.float64)
    values = net(torch.cartesian_prod(axis, axis)).reshape(241, 241).numpy()
    value = integrate.simpson(integrate.simpson(values, x=axis.numpy()), x=axis.numpy())
    assert value == pytest.approx(1.0, abs=1e-3)
    assert 1 / bump_constant(2) == pytest.approx(4 * (2 + 2 * 2 + 8 / 6))
    line = wavelet_generator(1)
    x = cell_centers(((-6.0, 6.0),), 1200)
    assert abs(float(line(x).mean())) < 1e-12
    matrices, shifts = wavelet_grid(2, 2)
    assert len(matrices) == len(shifts) == 9 + 25
    with pytest.raises(InvalidInput):
        wavelet_grid(4, 1)


def test_shearlet_matrices_and_norms() -> None:
    assert float(torch.linalg.det(shear(5) @ parabolic_scaling(3))) == pytest.approx(2**4.5)
    gauss = lambda x: torch.exp(-(x**2).sum(1))  # noqa: E731
    x = cell_centers(((-4.0, 4.0), (-4.0, 4.0)), 400)
    norms = [float((shearlet(gauss, j, k)(x) ** 2).mean() * 64) for j, k in ((0, 0), (2, 1))]
    assert norms == pytest.approx([math.pi / 2] * 2, rel=1e-6)


@pytest.mark.parametrize(("size", "scales"), [(16, 1), (32, 3), (48, 2)])
def test_shearlet_frame_is_parseval(size: int, scales: int) -> None:
    frame = shearlet_frame(size, scales)
    g = torch.Generator().manual_seed(size)
    image = torch.randn(size, size, dtype=torch.float64, generator=g)
    c = frame.analyze(image)
    assert sum(float(v.square().sum()) for v in c) == pytest.approx(float(image.square().sum()))
    assert (frame.synthesize(c) - image).abs().max() < 1e-12
    # the adjoint, for coefficients that come from no image
    d = [torch.randn(v.shape, dtype=torch.float64, generator=g) for v in c]
    left = sum(float((a * b).sum()) for a, b in zip(c, d, strict=True))
    assert left == pytest.approx(float((image * frame.synthesize(d)).sum()), rel=1e-9, abs=1e-9)
    assert sum(a * b for a, b in frame.grids) < 12 * size**2
    with pytest.raises(ShapeMismatch):
        frame.analyze(image[:-1])
    with pytest.raises(InvalidInput):
        frame.largest(image, 0)


def test_shearlet_frame_refuses() -> None:
    for size, scales in ((15, 1), (17, 1), (16, 4)):
        with pytest.raises(InvalidInput):
            shearlet_frame(size, scales)


def test_swiss_roll_is_that_of_scikit_learn() -> None:
    x, t = make_swiss_roll(50, random_state=0)
    u = torch.tensor(np.stack([t, x[:, 1]], 1))
    np.testing.assert_allclose(swiss_roll_sheet()(u).numpy(), x, atol=1e-12)
    flat, wide = swiss_roll_sheet()(u), swiss_roll_sheet(40, generator=1)(u)
    assert (torch.cdist(flat, flat) - torch.cdist(wide, wide)).abs().max() < 1e-6
    with pytest.raises(InvalidInput, match="fit"):
        random_frame(3, 2)
    with pytest.raises(InvalidInput, match="noise"):
        swiss_roll(10, noise=-1.0)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_intrinsic_dimension_of_cubes(d: int) -> None:
    x = torch.rand(1500, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    x = x @ random_frame(d, 20, generator=0)
    assert intrinsic_dimension(x) == pytest.approx(d, rel=0.12)
    if d > 1:
        # in single precision, and far from the origin, where inner products lose the distances
        shifted = x.float() + 30
        assert intrinsic_dimension(shifted) == pytest.approx(intrinsic_dimension(x), rel=0.02)
    with pytest.raises(InvalidInput, match="equal"):
        intrinsic_dimension(torch.zeros(20, 2))
    with pytest.raises(InvalidInput):
        intrinsic_dimension(x[:5])


def test_circle_network_does_not_see_the_space() -> None:
    found = []
    for ambient in (2, 9, 50):
        circle = circle_curve(ambient, generator=0)
        u = circle.draw(500, 0)
        charts = tangent_charts(circle(u), 1, 0.6, 0.3)
        fresh = circle.draw(300, 1)
        assert (chart_weights(charts, circle(fresh)).sum(1) - 1).abs().max() < 1e-12
        net = manifold_network(circle, lambda v: torch.cos(2 * v[:, 0]), charts, 24, u)
        error = float((net(circle(fresh)) - torch.cos(2 * fresh[:, 0])).abs().max())
        found.append((len(charts), net.terms, net.other_parameters, error))
        assert net.projection_parameters == 2 * len(charts) * ambient or ambient == 2
        assert network_size(net.network).depth == 4
        assert isinstance(net.network, nn.Sequential)
    assert found[1][:3] == found[2][:3]
    assert found[1][3] == pytest.approx(found[2][3], abs=1e-9)
    assert found[1][3] < 0.02


def test_chart_inverse_is_the_arcsine_and_refuses_beyond() -> None:
    circle = circle_curve()
    chart = Chart(
        torch.tensor([1.0, 0.0]).double(),
        torch.tensor([[0.0, 1.0]]).double(),
        torch.tensor([[1.0, 0.0]]).double(),
        0.9,
        0.6,
    )
    z = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64).unsqueeze(1)
    u = chart_inverse(circle, chart, z, torch.zeros_like(z))
    np.testing.assert_allclose(u.numpy(), np.arcsin(z.numpy()), atol=1e-10)
    with pytest.raises(NotConverged, match="smaller radius"):
        chart_inverse(circle, chart, 2 * torch.ones(1, 1).double(), torch.zeros(1, 1).double())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 20))
def test_l1_bound(values: list[float], terms: int) -> None:
    c = torch.tensor(values, dtype=torch.float64)
    if float(c.abs().sum()) == 0:
        return
    tail = float(best_terms_errors(c, [min(terms, len(c))])[0])
    assert tail <= l1_terms_bound(float(c.abs().sum()), terms) + 1e-12


def test_charts_need_numbers() -> None:
    with pytest.raises(NonFinite):
        tangent_charts(torch.full((40, 3), torch.nan), 2, 1.0, 1.0)
    single = tangent_charts(circle_curve()(circle_curve().draw(300, 0)).float(), 1, 0.6, 0.3)
    assert single[0].center.dtype == torch.float64
