"""Networks on functions: projections, energies, inner products, blurs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from torchtheory.approximation.architectures.function_convnets import (
    CellGrid,
    blur_filter,
    blur_threshold_convnet,
    discretize,
    distance_to_steps,
    energy_convnet,
    inner_product_convnet,
    step_image,
)
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch


def bump(amplitude: float, x: float, y: float, width: float):  # type: ignore[no-untyped-def]
    center = torch.tensor([x, y], dtype=torch.float64)

    def image(points: torch.Tensor) -> torch.Tensor:
        far = (points - center).square().sum(1)
        return amplitude * torch.exp(-far / (2 * width**2))[None]

    return image


@settings(max_examples=10, deadline=None)
@given(st.floats(-2, 2), st.floats(-1, 1), st.floats(-1, 1), st.floats(0.3, 0.6))
def test_projection(amplitude: float, x: float, y: float, width: float) -> None:
    image = bump(amplitude, x, y, width)
    for cells in (8, 16, 32):
        grid = CellGrid(4.0, cells)
        c = discretize(image, grid, nodes=6)
        apart = float(distance_to_steps(image, c, grid, nodes=6))
        norm = math.pi * width**2 * amplitude**2
        # Pythagoras, and the bound of Poincaré with the gradient's norm, amplitude² π
        assert float(c.square().sum()) + apart**2 == pytest.approx(norm, rel=1e-3, abs=1e-9)
        assert apart <= grid.scale / math.pi * abs(amplitude) * math.sqrt(math.pi) + 1e-4
        again = discretize(step_image(c, grid), grid)
        torch.testing.assert_close(again, c)


def test_filter_is_the_integral_of_the_blur() -> None:
    w = blur_filter(0.3, 0.5)
    middle = len(w) // 2
    for k in (0, 1, 2, 5):
        found, _ = integrate.dblquad(
            lambda y, x: stats.norm.pdf(x - y, scale=0.5), 0, 0.3, 0.3 * k, 0.3 * (k + 1)
        )
        assert float(w[middle + k]) == pytest.approx(found / 0.3, rel=1e-8)


def test_networks_compute_what_they_promise() -> None:
    grid = CellGrid(3.0, 16)
    image, other = bump(1.2, 0.3, -0.2, 0.5), bump(0.7, 0.0, 0.4, 0.6)
    c, e = discretize(image, grid), discretize(other, grid)
    energy = energy_convnet(grid, 1.2, 50)
    assert abs(float(energy(image)) - float(c.square().sum())) <= energy.error
    assert energy.error == pytest.approx((6 * 1.2 / 50) ** 2)
    product = inner_product_convnet(other, grid)
    assert float(product(image)) == pytest.approx(float((c * e).sum()), rel=1e-12)
    blurred = blur_threshold_convnet(grid, 0.4, 0.0)(c)
    # a Gaussian blurred is a wider Gaussian
    wide = math.hypot(0.5, 0.4)
    exact = bump(1.2 * (0.5 / wide) ** 2, 0.3, -0.2, wide)
    bound = grid.scale / math.pi * 1.2 * math.sqrt(math.pi) * 2
    assert float(distance_to_steps(exact, blurred, grid)) <= bound


def test_refused() -> None:
    grid = CellGrid(1.0, 6)
    with pytest.raises(InvalidInput):
        CellGrid(0.0, 4)
    with pytest.raises(InvalidInput):
        energy_convnet(grid, 1.0, 4)
    with pytest.raises(ShapeMismatch):
        discretize(lambda x: torch.ones(3), grid)
    with pytest.raises(NonFinite):
        discretize(lambda x: torch.full((len(x),), torch.nan), grid)
    with pytest.raises(ShapeMismatch):
        step_image(torch.ones(1, 1, 5, 6), grid)
    with pytest.raises(ShapeMismatch):
        inner_product_convnet(lambda x: torch.ones(2, len(x)), grid)
    with pytest.raises(InvalidInput):
        blur_threshold_convnet(grid, 0.5, -1.0)
