"""Singular values by Fourier against decompositions of the whole matrix."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.convolution import spectra
from torchtheory.convolution.layer_matrices import (
    CONVOLUTIONS,
    TRANSPOSED,
    convolution_layer,
    convolution_map,
    layer_matrix,
)
from torchtheory.convolution.spectra import (
    convolution_norm,
    convolution_singular_values,
    singular_value_bounds,
    symbol,
)
from torchtheory.core.errors import UnsupportedModel


def decomposed(layer: Any, shape: tuple[int, ...]) -> Tensor:
    values: Tensor = torch.linalg.svdvals(layer_matrix(layer, shape).to_dense().double())
    return values


def circular(
    dims: int, inputs: int, outputs: int, taps: int, stride: int, dilation: int, groups: int
) -> nn.Module | None:
    """A layer whose output has 1 / stride as many places as its input, where there is one."""
    reach = dilation * (taps - 1) + 1
    if reach > stride and (reach - stride) % 2:
        return None
    padding = max(0, (reach - stride) // 2)
    return CONVOLUTIONS[dims - 1](
        inputs, outputs, taps, stride, padding, dilation, groups, padding_mode="circular",
        dtype=torch.float64,
    )  # fmt: skip


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_circular_layers_exactly(dims: int) -> None:
    torch.manual_seed(0)
    sizes = (6, 12, 6)[:dims] if dims < 3 else (2, 6, 4)
    checked = 0
    for stride, dilation, groups, taps, (a, b) in itertools.product(
        (1, 2), (1, 2), (1, 2), (1, 2, 3), ((2, 4), (4, 2))
    ):
        layer = circular(dims, a, b, taps, stride, dilation, groups)
        if layer is None or (dims == 3 and (stride, groups) == (1, 2)):
            continue
        shape = (a, *sizes)
        exact = decomposed(layer, shape)
        found = convolution_singular_values(layer, shape)  # type: ignore[arg-type]
        assert found.shape == exact.shape
        assert float((found - exact).abs().max()) < 1e-10 * float(exact[0])
        norm = convolution_norm(layer, shape)  # type: ignore[arg-type]
        assert norm.exact
        assert norm.upper == pytest.approx(float(exact[0]), rel=1e-10)
        checked += 1
    assert checked > 10


def test_small_singular_values_are_accurate() -> None:
    """A Gram matrix alone would lose half of the digits of what is nearly singular."""
    torch.manual_seed(1)
    layer = circular(1, 3, 3, 3, 1, 1, 1)
    assert isinstance(layer, nn.Conv1d)
    with torch.no_grad():
        layer.weight[2] = layer.weight[1] * (1 + 1e-9)  # one direction is nearly lost
    exact = decomposed(layer, (3, 16))
    found = convolution_singular_values(layer, (3, 16))
    assert float(exact[-1]) < 1e-8 * float(exact[0])
    assert float((found - exact).abs().max()) < 1e-10 * float(exact[0])


def test_against_frequency_by_frequency_numpy() -> None:
    """The formula of Sedghi, Gupta and Long for stride 1: the SVD of the two-dimensional FFT."""
    torch.manual_seed(2)
    layer = circular(2, 5, 7, 3, 1, 1, 1)
    assert isinstance(layer, nn.Conv2d)
    kernel = layer.weight.detach().permute(2, 3, 0, 1).numpy()
    transform = np.fft.fft2(kernel, (10, 9), axes=(0, 1))
    peer = np.sort(np.linalg.svd(transform, compute_uv=False).ravel())[::-1]
    found = convolution_singular_values(layer, (5, 10, 9)).numpy()
    np.testing.assert_allclose(found, peer, atol=1e-10 * peer[0])


def test_known_spectra() -> None:
    """|1 + 2 cos ω| of (1, 1, 1); windows that tile are as orthogonal as their filters."""
    ones = convolution_layer(torch.ones(1, 1, 3).double(), padding=1, padding_mode="circular")
    exact = (1 + 2 * torch.cos(2 * math.pi * torch.arange(8).double() / 8)).abs()
    found = convolution_singular_values(ones, (1, 8))
    torch.testing.assert_close(found, exact.sort(descending=True).values, atol=1e-12, rtol=0)
    patches = nn.Conv2d(3, 8, 4, stride=4, dtype=torch.float64)  # zero padding of 0
    own = torch.linalg.svdvals(patches.weight.detach().flatten(1))
    found = convolution_singular_values(patches, (3, 16, 16)).reshape(8, -1)
    torch.testing.assert_close(found, own[:, None].expand(8, 16), atol=1e-12, rtol=0)


def test_float32_layers_are_computed_in_double() -> None:
    torch.manual_seed(3)
    layer = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")
    found = convolution_singular_values(layer, (2, 6, 6))
    assert found.dtype == torch.float64
    assert float((found - decomposed(layer, (2, 6, 6))).abs().max()) < 1e-10


def test_the_symbol_has_the_singular_values() -> None:
    torch.manual_seed(4)
    layer = nn.Conv2d(4, 2, 3, stride=3, groups=2, dtype=torch.float64)
    blocks = symbol(layer, (4, 6, 9))
    assert blocks.shape == (2, 3, 2, 36)
    values = torch.linalg.svdvals(blocks).flatten().sort(descending=True).values
    torch.testing.assert_close(values, decomposed(layer, (4, 6, 9)), atol=1e-12, rtol=0)


@pytest.fixture
def no_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers are treated as large ones, which cannot be decomposed to compare."""
    monkeypatch.setattr(spectra, "DENSE", 0)


@pytest.mark.usefixtures("no_dense")
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate", "transposed"])
def test_norms_are_between_their_bounds(mode: Any, certain: bool) -> None:
    torch.manual_seed(5)
    errors = []
    for stride, padding, dilation, groups, taps in itertools.product(
        (1, 2), (0, 1), (1, 2), (1, 2), (2, 3)
    ):
        shape = (2, 11, 9)
        if mode == "transposed":
            layer: Any = nn.ConvTranspose2d(
                2, 4, taps, stride, padding, groups=groups, dilation=dilation, dtype=torch.float64
            )
        else:
            layer = nn.Conv2d(
                2, 4, taps, stride, padding, dilation, groups, padding_mode=mode,
                dtype=torch.float64,
            )  # fmt: skip
        exact = float(decomposed(layer, shape)[0])
        found = convolution_norm(layer, shape, certain=certain)
        assert found.lower <= exact * (1 + 1e-12)
        assert exact <= found.upper * (1 + 1e-11)
        assert found.failure == 0 or not certain
        errors.append(found.error)
    # the tightness that the docstrings promise: random products where the torus is loose
    assert certain or max(errors) < 0.05


@pytest.mark.usefixtures("no_dense")
def test_bounds_from_random_products_say_that_they_may_fail() -> None:
    torch.manual_seed(8)
    layer = nn.Conv1d(2, 2, 4, 3, 1, padding_mode="replicate", dtype=torch.float64)
    safe, random = (convolution_norm(layer, (2, 13), certain=c) for c in (True, False))
    assert random.upper < 0.9 * safe.upper
    assert safe.failure == 0
    assert random.failure == spectra.FAILURE


@pytest.mark.usefixtures("no_dense")
def test_the_twist_is_exact_for_three_symmetric_taps() -> None:
    for n in (5, 12, 31):
        layer = convolution_layer(torch.ones(1, 1, 3).double(), padding=1)
        found = convolution_norm(layer, (1, n), certain=True)
        assert found.upper == pytest.approx(1 + 2 * math.cos(math.pi / (n + 1)), rel=1e-12)
        assert found.lower == pytest.approx(found.upper, rel=1e-4)
    square = convolution_layer(torch.ones(1, 1, 3, 3).double(), padding=1)
    found = convolution_norm(square, (1, 8, 8), certain=True)
    assert found.upper == pytest.approx((1 + 2 * math.cos(math.pi / 9)) ** 2, rel=1e-12)


@pytest.mark.parametrize("n", [4, 5, 8, 11])
def test_upper_bounds_are_exact_for_second_differences(n: int) -> None:
    """The half-twisted torus of n + 1 places, odd or even, has 2 - 2 cos(πk/(n + 1)), and so has
    (1, -2, 1) on n places between zeros."""
    layer = convolution_layer(torch.tensor([[[1.0, -2.0, 1.0]]]).double(), padding=1)
    low, high = singular_value_bounds(layer, (1, n))
    exact = 2 - 2 * torch.cos(math.pi * torch.arange(n, 0, -1).double() / (n + 1))
    torch.testing.assert_close(high, exact, atol=1e-12, rtol=0)
    assert bool((low <= exact + 1e-12).all())


@settings(max_examples=30)
@given(
    n=st.integers(3, 9), taps=st.integers(1, 4), stride=st.integers(1, 3),
    padding=st.integers(0, 3), transposed=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_all_singular_values_are_between_their_bounds(
    n: int, taps: int, stride: int, padding: int, transposed: bool, seed: int
) -> None:
    if taps > n + 2 * padding or (transposed and (n - 1) * stride + taps <= 2 * padding):
        return
    torch.manual_seed(seed)
    kind = TRANSPOSED[1] if transposed else CONVOLUTIONS[1]
    layer = kind(2, 3, taps, stride, padding, dtype=torch.float64)
    exact = decomposed(layer, (2, n, n + 1))
    low, high = singular_value_bounds(layer, (2, n, n + 1))
    assert low.shape == high.shape == exact.shape
    assert bool((low <= exact + 1e-11).all())
    assert bool((exact <= high + 1e-11).all())


def test_bounds_of_large_layers_are_close() -> None:
    """The largest singular value is nearly known, and the median one the better, the larger."""
    torch.manual_seed(6)
    layer = nn.Conv2d(8, 8, 3, padding=1, dtype=torch.float64)
    norm = convolution_norm(layer, (8, 64, 64))
    assert not norm.exact
    assert norm.failure == 0
    assert norm.error < 0.01
    ratios = []
    for n in (16, 32, 64):
        low, high = singular_value_bounds(layer, (8, n, n))
        middle = len(low) // 2
        ratios.append(float(high[middle] / low[middle]))
    assert ratios[0] > ratios[1] > ratios[2]
    assert ratios[2] < 1.3


def test_trivial_layers() -> None:
    zero = nn.Conv2d(2, 3, 3, padding=1)
    with torch.no_grad():
        zero.weight.zero_()
    found = convolution_norm(zero, (2, 40, 40))
    assert (found.lower, found.upper, found.exact, found.error) == (0.0, 0.0, True, 0.0)
    with torch.no_grad():
        zero.weight.fill_(math.nan)
    assert math.isnan(convolution_norm(zero, (2, 40, 40)).upper)


def test_refusals() -> None:
    with pytest.raises(UnsupportedModel, match="gives bounds only"):
        convolution_singular_values(nn.Conv2d(1, 1, 3, padding=1), (1, 8, 8))
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")
    with pytest.raises(UnsupportedModel, match="reflect padding"):
        singular_value_bounds(layer, (1, 8, 8))
    with pytest.raises(UnsupportedModel, match="commutes with shifts"):
        symbol(nn.Conv1d(1, 1, 3, padding=1), (1, 8))


def test_what_is_cyclic() -> None:
    """A stride that does not divide the size, or a padding that changes it, is no torus."""
    for layer, size, expected in (
        (nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"), 7, True),
        (nn.Conv1d(1, 1, 3, padding=2, padding_mode="circular"), 7, False),
        (nn.Conv1d(1, 1, 3, padding=1, stride=2, padding_mode="circular"), 8, True),
        (nn.Conv1d(1, 1, 3, padding=1, stride=2, padding_mode="circular"), 7, False),
        (nn.Conv1d(1, 1, 1), 7, True),
        (nn.Conv1d(1, 1, 3), 7, False),
    ):
        assert convolution_map(layer, (1, size)).cyclic is expected


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(("stride", "padding", "size"), [(3, 1, 3), (2, 2, 2), (3, 2, 3)])
def test_one_window_that_reflects_is_no_torus(
    mode: Any, stride: int, padding: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window as large as the image shifts like one of a torus, and meets other places."""
    if mode == "reflect" and padding >= size:
        return
    layer = nn.Conv1d(
        2, 3, 3, stride, padding, dilation=2, bias=False, padding_mode=mode, dtype=torch.float64
    )
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0)))
    largest = float(decomposed(layer, (2, size))[0])
    found = convolution_norm(layer, (2, size))
    assert found.exact
    assert found.upper == pytest.approx(largest, rel=1e-9)
    monkeypatch.setattr(spectra, "DENSE", 0)
    certain = convolution_norm(layer, (2, size), certain=True)
    assert certain.lower <= largest * (1 + 1e-9)
    assert largest <= certain.upper * (1 + 1e-9)


def test_certain_bounds_where_they_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases in which a torus that is too small, or a padding's norm that is, would be seen."""
    monkeypatch.setattr(spectra, "DENSE", 0)
    # a torus of four places would join the padding on the left with the last pixel
    layer = convolution_layer(torch.ones(1, 1, 3, dtype=torch.float64), stride=2, padding=1)
    found = convolution_norm(layer, (1, 4), certain=True)
    assert found.upper >= math.sqrt(2.5 + math.sqrt(1.25)) * (1 - 1e-12)
    # the pixel at the edge three times: the padding alone
    layer = convolution_layer(
        torch.ones(1, 1, 1, dtype=torch.float64), padding=2, padding_mode="replicate"
    )
    found = convolution_norm(layer, (1, 5), certain=True)
    assert found.upper == pytest.approx(math.sqrt(3), rel=1e-12)
    assert found.lower == pytest.approx(math.sqrt(3), rel=1e-3)


def test_all_singular_values_where_interlacing_is_met() -> None:
    """One difference of two places lacks one row of the torus, whose values are 2 and 0."""
    kernel = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    low, high = singular_value_bounds(convolution_layer(kernel), (1, 2))
    assert low.tolist() == pytest.approx([math.sqrt(2)])
    assert high.tolist() == pytest.approx([math.sqrt(2)])
