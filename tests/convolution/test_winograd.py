"""Convolutions with fewer multiplications: equal to torch's, forward and backward."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.convolution.winograd import Tiles, minimal_filtering
from torchtheory.core.errors import InvalidInput
from torchtheory.core.workspace import Workspace

POINTS = [Fraction(p) for p in ("0", "1", "-1", "1/2", "-1/2", "2", "-2", "3", "-3", "4")]


@given(st.integers(1, 6), st.integers(1, 5), st.randoms(use_true_random=False))
def test_as_many_multiplications_as_points(outputs: int, taps: int, random) -> None:
    points = random.sample(POINTS, outputs + taps - 2)
    of = minimal_filtering(outputs, taps, points)
    assert len(of.A) == len(of.B) == len(of.G) == outputs + taps - 1
    generator = torch.Generator().manual_seed(random.randrange(10**6))
    x = torch.randn(outputs + taps - 1, generator=generator, dtype=torch.float64)
    w = torch.randn(taps, generator=generator, dtype=torch.float64)
    expected = x.unfold(0, taps, 1) @ w
    found = of.A.T @ ((of.G @ w) * (of.B.T @ x))
    assert torch.allclose(found, expected, atol=1e-7)  # far points make large roundings


def test_by_hand() -> None:
    """Winograd's F(2, 3), up to the scales of rows: a + b at 1, a - b at -1, b at infinity."""
    of = minimal_filtering(2, 3, (0, 1, -1))
    assert of.A.tolist() == [[1, 0], [1, 1], [1, -1], [0, 1]]
    assert of.G.tolist() == [[1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]]


@pytest.mark.parametrize("points", [(0, 1, 1), (0, 1), (0, 1, 2, 3)])
def test_points_that_do_not_fit_are_refused(points: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="2 outputs and 3 taps need 3 different points"):
        minimal_filtering(2, 3, points)


SIZES = [((16, 16), (1, 1)), ((7, 5), (1, 1)), ((9, 6), (0, 0)), ((6, 11), (2, 1)),
         ((3, 3), (0, 0)), ((5, 5), (3, 4)), ((1, 8), (1, 0))]  # fmt: skip


def _given(size: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(size))
    x = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)
    w = torch.randn(4, 3, 3, 3, generator=generator, dtype=torch.float64)
    return x.to(dtype), w.to(dtype)


def _backward(tiles: Tiles, x: Tensor, w: Tensor, outer: Tensor, space: Workspace) -> list[Tensor]:
    """Derivatives in x and in w."""
    points = tiles.of_outputs(outer.permute(2, 3, 0, 1), space)
    products = (points.flatten(1, -2) @ tiles.filters(w)).view(*points.shape[:-1], -1)
    of_inputs = tiles.of_inputs(x.permute(2, 3, 0, 1))
    sums = torch.einsum("ptno,ptni->poi", points, of_inputs)
    taps = tiles.at_filters(sums, sums.new_empty(9, *sums.shape[1:]))
    to_x = tiles.at_inputs(products, space, "test").permute(2, 3, 0, 1)
    return [to_x, taps.permute(1, 2, 0).reshape(w.shape)]


@pytest.mark.parametrize(("size", "padding"), SIZES)
def test_equals_torch(size: tuple[int, int], padding: tuple[int, int]) -> None:
    x, w = _given(size, torch.float64)
    tiles = Tiles(size, padding, x)
    expected = F.conv2d(x, w, padding=padding)
    y = tiles.convolved(x.permute(2, 3, 0, 1), w)
    assert torch.allclose(y.permute(2, 3, 0, 1), expected, atol=1e-12)
    space = Workspace(x)
    for seed, samples in enumerate((2, 1, 2)):  # later in memory that was used for another number
        x = x[:samples] if samples < 2 else _given(size, torch.float64)[0]
        expected = F.conv2d(x, w, padding=padding)
        outer = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed)).to(x)
        to_x = torch.nn.grad.conv2d_input(x.shape, w, outer, padding=padding)
        to_w = torch.nn.grad.conv2d_weight(x, w.shape, outer, padding=padding)
        found = _backward(tiles, x, w, outer, space)
        assert torch.allclose(found[0], to_x, atol=1e-12)
        assert torch.allclose(found[1], to_w, atol=1e-12)


def test_roundings_of_single_precision() -> None:
    """To about 1e-6, as the module says; the direct way is right to 2e-7."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 64, 16, 16, generator=generator)
    w = torch.randn(32, 64, 3, 3, generator=generator)
    exact = F.conv2d(x.double(), w.double(), padding=1)
    y = Tiles((16, 16), (1, 1), x).convolved(x.permute(2, 3, 0, 1), w).permute(2, 3, 0, 1)
    assert y.dtype == torch.float32
    assert float((y - exact).norm() / exact.norm()) < 3e-6


def test_filters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"filters of 3 x 3 do not fit into \[2, 8\]"):
        Tiles((2, 8), (0, 0), torch.zeros(()))
