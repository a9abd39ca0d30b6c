"""Compositions and trees of networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.depth.compositional import (
    SmoothFunction,
    bilinear_network,
    composite_network,
    tree_levels,
    tree_network,
    tree_values,
)
from torchtheory.approximation.polynomials.products import product_network
from torchtheory.core.errors import InvalidInput, ShapeMismatch

SINE = SmoothFunction(torch.sin, lambda k: 1.0)


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x[:, 0] + 0.5 * x[:, 1])


@pytest.mark.parametrize("cells", [1, 3])
def test_bilinear_network_against_scipy(cells: int) -> None:
    knots = np.linspace(-1, 1, cells + 1)
    grid = torch.cartesian_prod(torch.from_numpy(knots), torch.from_numpy(knots))
    values = wave(grid).reshape(cells + 1, cells + 1).numpy()
    reference = RegularGridInterpolator((knots, knots), values)
    made = bilinear_network(wave, cells, 14, curvature=1.0)
    x = 2 * torch.rand(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    np.testing.assert_allclose(made(x).numpy(), reference(x.numpy()), atol=2 * 4.0**-15)
    assert float((made(x) - wave(x)).abs().max()) <= made.bound


@given(st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=15)
def test_tree_keeps_its_promise(x: float, y: float) -> None:
    node = bilinear_network(wave, 4, 5, lipschitz=1.0, curvature=1.0)
    tree = tree_network([node] * 3, 4, lipschitz=1.5)
    point = torch.tensor([[x, y, y, -x]], dtype=torch.float64)
    assert abs(float(tree(point) - tree_values([wave] * 3, point))) <= tree.bound
    assert tree.bound == pytest.approx(node.bound * 2.5)


def test_tree_is_its_nodes_in_their_order() -> None:
    fs = [lambda x, k=k: (x[:, 0] * k - x[:, 1]) / 8 for k in range(1, 8)]
    nodes = [bilinear_network(f, 1, 12, curvature=1e-9) for f in fs]
    x = 2 * torch.rand(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 1
    level = [float(fs[i](x[:1, 2 * i : 2 * i + 2])) for i in range(4)]
    level = [(level[0] * 5 - level[1]) / 8, (level[2] * 6 - level[3]) / 8]
    assert float(tree_values(fs, x)[0]) == pytest.approx((level[0] * 7 - level[1]) / 8)
    tree = tree_network(nodes, 8, lipschitz=1.0)
    torch.testing.assert_close(tree(x), tree_values(fs, x), atol=1e-6, rtol=0)


def test_composite_chain() -> None:
    made = composite_network([SINE], {(2,): 1.0}, 1e-3)
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)
    assert float((made(x) - torch.sin(x**2)).abs().max()) <= made.bound <= 1e-3
    assert SINE.remainder(3) == 1 / 24


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="degree 12"):
        SmoothFunction(torch.sin, lambda k: 100.0**k).taylor_degree(1e-3)
    with pytest.raises(InvalidInput, match="curvature"):
        bilinear_network(wave, 2, 3)
    with pytest.raises(ShapeMismatch, match="binary tree"):
        tree_levels([None] * 5, 6)
    node = bilinear_network(wave, 1, 3, curvature=1.0)
    with pytest.raises(ShapeMismatch, match="equally many layers"):
        tree_network([node, node, bilinear_network(wave, 1, 4, curvature=1.0)], 4, lipschitz=1.0)
    other = Approximant(product_network(3, 2.0).network, 1.0, ((-2.0, 2.0),) * 2, "X-27")
    with pytest.raises(InvalidInput, match="two variables"):
        tree_network([other], 2, lipschitz=1.0)
