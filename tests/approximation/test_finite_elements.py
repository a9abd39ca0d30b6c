"""Finite elements and splines as networks: exact, and refused where the formula is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline, LinearNDInterpolator

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.piecewise.finite_elements import (
    Mesh,
    affine_pieces_around,
    convex_star,
    cube_mesh,
    finite_element_network,
    interpolate_linearly,
    line_mesh,
    nodal_network,
)
from torchtheory.approximation.piecewise.hats import hat_interpolant
from torchtheory.approximation.piecewise.splines import spline_network
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch


def test_hat_by_hand() -> None:
    hat = nodal_network(line_mesh(torch.tensor([0.0, 1.0, 3.0]).double()), 1)
    x = torch.tensor([[-1.0], [0.0], [0.5], [1.0], [2.0], [3.0], [4.0]]).double()
    assert torch.allclose(hat(x)[:, 0], torch.tensor([0, 0, 0.5, 1, 0.5, 0, 0]).double())


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([(1, 4), (2, 3), (3, 1)]), st.integers(0, 10**6))
def test_function_is_the_interpolant(shape: tuple[int, int], seed: int) -> None:
    d, cells = shape
    g = torch.Generator().manual_seed(seed)
    mesh = cube_mesh(cells, d)
    values = torch.randn(len(mesh.nodes), dtype=torch.float64, generator=g)
    x = torch.rand(100, d, dtype=torch.float64, generator=g)
    network = finite_element_network(mesh, values)
    assert torch.allclose(network(x)[:, 0], interpolate_linearly(mesh, values, x), atol=1e-11)
    assert torch.allclose(network(mesh.nodes)[:, 0], values, atol=1e-11)


@pytest.mark.parametrize(("cells", "dimension"), [(1, 1), (5, 1), (1, 2), (4, 2)])
def test_two_networks_of_one_space(cells: int, dimension: int) -> None:
    """Minima of pieces and hats by absolute values are the same interpolant."""
    mesh = cube_mesh(cells, dimension)

    def steep(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(7 * x.reshape(len(x), -1).sum(1))

    values = steep(mesh.nodes)
    box = ((0.0, 1.0),) * dimension
    hats = hat_interpolant(steep, cells, box, curvature=49.0 * dimension)
    generator = torch.Generator().manual_seed(cells)
    x = torch.rand(200, dimension, dtype=torch.float64, generator=generator)
    minima = finite_element_network(mesh, values)(x)[:, 0]
    assert torch.allclose(hats.network(x)[:, 0], minima, atol=1e-12)
    if dimension == 1:
        line = np.interp(x[:, 0].numpy(), mesh.nodes[:, 0].numpy(), values.numpy())
        assert np.allclose(minima.numpy(), line, atol=1e-12)


def test_against_scipy() -> None:
    from scipy.spatial import Delaunay

    g = torch.Generator().manual_seed(3)
    nodes = torch.rand(12, 2, dtype=torch.float64, generator=g)
    triangles = Delaunay(nodes.numpy())
    values = torch.randn(12, dtype=torch.float64, generator=g)
    mesh = Mesh(nodes, torch.from_numpy(triangles.simplices.astype(np.int64)))
    x = nodes.mean(0) + 0.1 * torch.randn(50, 2, dtype=torch.float64, generator=g)
    scipy = LinearNDInterpolator(triangles, values.numpy())(x.numpy())
    inside = ~np.isnan(scipy)
    ours = interpolate_linearly(mesh, values, x[torch.from_numpy(inside)])
    assert np.allclose(ours.numpy(), scipy[inside], atol=1e-12)


def test_a_star_with_a_dent_is_refused() -> None:
    mesh = cube_mesh(3, 2)
    nodes = mesh.nodes.clone()
    nodes[10] = torch.tensor([0.42, 0.5])
    dented = Mesh(nodes, mesh.simplices)
    wrong = [i for i in range(len(nodes)) if not convex_star(dented, i)]
    assert wrong
    with pytest.raises(InvalidInput, match="convex"):
        nodal_network(dented, wrong[0])
    gradients, constants = affine_pieces_around(dented, wrong[0])
    assert gradients.shape == (len(constants), 2)


def test_bad_meshes() -> None:
    square = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]]).double()
    far = torch.cat([square, torch.tensor([[3.0, 0.0]]).double()])
    with pytest.raises(InvalidInput, match="convex"):
        Mesh(far, torch.tensor([[0, 1, 2], [1, 4, 3]]))
    with pytest.raises(InvalidInput, match="belong"):
        Mesh(square, torch.tensor([[0, 1, 2]]))
    with pytest.raises(InvalidInput, match="same point"):
        Mesh(torch.cat([square, square[:1]]), torch.tensor([[0, 1, 2], [1, 2, 3], [4, 1, 2]]))
    with pytest.raises(InvalidInput, match="volume"):
        Mesh(torch.tensor([[0.0, 0], [1, 0], [2, 0], [0, 1]]).double(),
             torch.tensor([[0, 1, 2], [0, 1, 3]]))  # fmt: skip
    with pytest.raises(ShapeMismatch):
        Mesh(square, torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(NonFinite):
        Mesh(square * float("nan"), torch.tensor([[0, 1, 2], [1, 2, 3]]))
    with pytest.raises(ShapeMismatch):
        finite_element_network(cube_mesh(1, 2), torch.zeros(3))
    with pytest.raises(InvalidInput, match="fewer"):
        finite_element_network(cube_mesh(40, 2), torch.zeros(41 * 41))
    with pytest.raises(InvalidInput, match="outside"):
        interpolate_linearly(cube_mesh(1, 2), torch.zeros(4), torch.tensor([[2.0, 2.0]]))
    with pytest.raises(InvalidInput, match="nodes 0 to"):
        nodal_network(cube_mesh(1, 2), 9)


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_splines_against_scipy(degree: int) -> None:
    g = torch.Generator().manual_seed(degree)
    c = torch.randn(6, dtype=torch.float64, generator=g)
    knots = 0.5 + 0.25 * np.arange(6 + degree + 1)
    x = torch.linspace(float(knots[degree]), float(knots[6]), 50, dtype=torch.float64)
    exact = BSpline(knots, c.numpy(), degree)(x.numpy())
    net = spline_network(c, degree, start=0.5, spacing=0.25)
    assert np.allclose(net(x.unsqueeze(1))[:, 0].numpy(), exact, atol=1e-9)
    assert network_size(net).units == 6 + degree + 1


def test_cubic_spline_of_data_by_hand() -> None:
    """At the middle knot the cubic B-spline is 2/3, at its neighbors 1/6."""
    net = spline_network(torch.ones(1).double(), 3)
    values = net(torch.tensor([[1.0], [2.0], [3.0]]).double())[:, 0]
    assert torch.allclose(values, torch.tensor([1 / 6, 2 / 3, 1 / 6]).double())
    with pytest.raises(ShapeMismatch):
        spline_network(torch.ones(2, 2), 1)
    with pytest.raises(NonFinite):
        spline_network(torch.tensor([float("inf")]), 1)
