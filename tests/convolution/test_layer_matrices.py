"""Layers as matrices and operators, against torch's own layers and against scipy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.signal
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import (
    CONVOLUTIONS,
    PADDINGS,
    TRANSPOSED,
    convolution_layer,
    convolution_map,
    layer_matrix,
    layer_operator,
    matrix_of_map,
    toeplitz_matrix,
)
from torchtheory.core.errors import InvalidType, ShapeMismatch, TorchTheoryError, UnsupportedModel


def by_impulses(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The matrix of the linear part of a layer, column by column."""
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    basis = torch.eye(zero.numel(), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        matrix: Tensor = (layer(basis) - layer(zero)).flatten(1).T
    return matrix


def check(layer: Any, shape: tuple[int, ...]) -> None:
    exact = by_impulses(layer, shape)
    found = layer_matrix(layer, shape)
    assert found.is_sparse
    assert found.is_coalesced()
    torch.testing.assert_close(found.to_dense(), exact, rtol=0, atol=1e-13)
    operator = layer_operator(layer, shape)
    seed = torch.Generator().manual_seed(1)
    u, v = (torch.randn(n, 2, dtype=torch.float64, generator=seed) for n in operator.shape)
    torch.testing.assert_close(operator @ v, exact @ v, rtol=0, atol=1e-12)
    torch.testing.assert_close(operator.T @ u, exact.T @ u, rtol=0, atol=1e-12)
    frobenius = convolution_map(layer, shape).frobenius_norm()
    assert frobenius == pytest.approx(float(exact.norm()), rel=1e-12)


@pytest.mark.parametrize("mode", PADDINGS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_every_kind(dims: int, mode: Any) -> None:
    torch.manual_seed(0)
    shape = (2, *(5, 6, 4)[:dims])
    for stride, padding, dilation, groups, taps in itertools.product(
        (1, 2), (0, 2), (1, 2), (1, 2), (1, 2, 3)
    ):
        if dilation * (taps - 1) > 3 + 2 * padding:
            continue
        layer = CONVOLUTIONS[dims - 1](
            2, 4, taps, stride, padding, dilation, groups, padding_mode=mode, dtype=torch.float64
        )
        check(layer, shape)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("mode", PADDINGS)
@pytest.mark.parametrize("taps", [2, 3, (1, 4)])
def test_padding_same(mode: Any, taps: Any) -> None:
    """Also with an even number of taps, where torch pads one more behind the image."""
    torch.manual_seed(1)
    for dilation in (1, 2):
        layer = nn.Conv2d(
            2, 3, taps, padding="same", dilation=dilation, padding_mode=mode, dtype=torch.float64
        )
        check(layer, (2, 7, 8))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions(dims: int) -> None:
    torch.manual_seed(2)
    shape = (2, *(4, 3, 2)[:dims])
    for stride, padding, dilation, groups, extra in itertools.product(
        (1, 2, 3), (0, 1), (1, 2), (1, 2), (0, 1)
    ):
        if extra >= max(stride, dilation):
            continue
        layer = TRANSPOSED[dims - 1](
            2, 4, 3, stride, padding, extra, groups, dilation=dilation, dtype=torch.float64
        )
        check(layer, shape)


def test_a_transposed_layer_is_the_adjoint() -> None:
    torch.manual_seed(3)
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False, dtype=torch.float64)
    back = nn.ConvTranspose2d(5, 3, 3, stride=2, padding=1, bias=False, dtype=torch.float64)
    back.weight.data.copy_(layer.weight.data)
    forward = layer_matrix(layer, (3, 7, 9)).to_dense()
    torch.testing.assert_close(layer_matrix(back, (5, 4, 5)).to_dense(), forward.T)


def test_factors_of_channels() -> None:
    torch.manual_seed(4)
    factors = torch.randn(4, dtype=torch.float64)
    for layer in (
        nn.Conv2d(2, 4, 3, groups=2, dtype=torch.float64),
        nn.ConvTranspose2d(2, 4, 3, groups=2, dtype=torch.float64),
        nn.ConvTranspose1d(2, 4, 3, dtype=torch.float64),
    ):
        shape = (2, 5) if isinstance(layer, nn.ConvTranspose1d) else (2, 5, 4)
        found = convolution_map(layer, shape)
        plain = matrix_of_map(found).to_dense().reshape(4, -1, found.shape[1])
        scaled = matrix_of_map(found.scaled(factors)).to_dense().reshape(plain.shape)
        torch.testing.assert_close(scaled, factors[:, None, None] * plain)


@given(
    n=st.integers(1, 9), m=st.integers(1, 6), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_toeplitz_matrices_against_numpy(n: int, m: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    h, x = random.normal(size=m), random.normal(size=n)
    full = toeplitz_matrix(torch.from_numpy(h), n)
    assert full.shape == (n + m - 1, n)
    np.testing.assert_allclose(full.numpy() @ x, np.convolve(x, h), atol=1e-12)
    # constant along diagonals, H_ij = h_{i-j}
    for i, j in itertools.product(range(n + m - 1), range(n)):
        assert float(full[i, j]) == (h[i - j] if 0 <= i - j < m else 0.0)
    if n >= m:
        valid = toeplitz_matrix(torch.from_numpy(h), n, "valid")
        np.testing.assert_allclose(valid.numpy() @ x, np.convolve(x, h, "valid"), atol=1e-12)
    around = toeplitz_matrix(torch.from_numpy(h), n, "circular").numpy() @ x
    by_hand = [sum(h[t] * x[(i - t) % n] for t in range(m)) for i in range(n)]
    np.testing.assert_allclose(around, by_hand, atol=1e-12)


def test_toeplitz_in_the_plane_and_in_space() -> None:
    random = np.random.default_rng(0)
    h, x = random.normal(size=(2, 3)), random.normal(size=(4, 5))
    for extent in ("full", "valid"):
        made = toeplitz_matrix(torch.from_numpy(h), (4, 5), extent).numpy() @ x.ravel()
        exact = scipy.signal.convolve2d(x, h, mode=extent)
        np.testing.assert_allclose(made, exact.ravel(), atol=1e-12)
    h, x = random.normal(size=(2, 2, 2)), random.normal(size=(3, 3, 4))
    made = toeplitz_matrix(torch.from_numpy(h), (3, 3, 4)).numpy() @ x.ravel()
    np.testing.assert_allclose(made, scipy.signal.convolve(x, h).ravel(), atol=1e-12)


def test_the_exercise() -> None:
    """D = 4, K = 2, counting from 1: rows (h2 h1 0 0), (0 h2 h1 0), (0 0 h2 h1)."""
    found = toeplitz_matrix(torch.tensor([1.0, 2.0]), 4, "valid")
    assert found.tolist() == [[2, 1, 0, 0], [0, 2, 1, 0], [0, 0, 2, 1]]


def test_flip_is_the_convolution_of_mathematics() -> None:
    """The sum of the lectures, loop by loop, and torch's layer with kernels turned around."""
    torch.manual_seed(5)
    kernels, bias = torch.randn(2, 3, 3, 2).double(), torch.randn(2).double()
    x = torch.randn(3, 6, 5).double()
    stride, padding = (2, 1), (1, 0)
    layer = convolution_layer(kernels, bias, stride=stride, padding=padding, flip=True)
    out = layer(x[None])[0].detach()
    for m, i, j in itertools.product(*map(range, out.shape)):
        total = float(bias[m])
        for c, u, v in itertools.product(range(3), range(3), range(2)):
            row, column = i * stride[0] + u - padding[0], j * stride[1] + v - padding[1]
            if 0 <= row < 6 and 0 <= column < 5:
                total += float(x[c, row, column] * kernels[m, c, 2 - u, 1 - v])
        assert float(out[m, i, j]) == pytest.approx(total, abs=1e-12)
    plain = convolution_layer(kernels, bias, stride=stride, padding=padding)
    turned = F.conv2d(x[None], kernels.flip(2, 3), bias, stride, padding)[0]
    torch.testing.assert_close(out, turned)
    torch.testing.assert_close(
        plain(x[None])[0].detach(), F.conv2d(x[None], kernels, bias, stride, padding)[0]
    )
    one = convolution_layer(kernels[:1, :1], flip=True)(x[None, :1])[0, 0].detach()
    exact = scipy.signal.convolve2d(x[0].numpy(), kernels[0, 0].numpy(), mode="valid")
    np.testing.assert_allclose(one.numpy(), exact, atol=1e-12)


def test_nothing_random_is_touched() -> None:
    before = torch.random.get_rng_state()
    layer = convolution_layer(torch.ones(1, 1, 2))
    layer_matrix(layer, (1, 4))
    assert bool((torch.random.get_rng_state() == before).all())
    assert layer.weight.requires_grad
    assert layer.bias is None


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "shape", "kind", "words"),
    [
        (nn.Linear(3, 3), (3,), InvalidType, "a convolution layer of torch.nn is needed"),
        (nn.Conv2d(3, 4, 3), (3, 32), ShapeMismatch, "3 dimensions, channels first"),
        (nn.Conv2d(3, 4, 3), (1, 8, 8), ShapeMismatch, "takes 3 channels, and the input has 1"),
        (nn.Conv2d(3, 4, 5), (3, 4, 9), ShapeMismatch, "does not fit"),
        (nn.Conv2d(3, 4, 3), (3, 0, 9), TorchTheoryError, "whole number >= 1"),
        (Doubled(1, 1, 3), (1, 9, 9), UnsupportedModel, "forward pass of its own"),
        (nn.LazyConv2d(4, 3), (1, 9, 9), UnsupportedModel, "no weights yet"),
        (
            nn.Conv1d(1, 1, 9, padding=4, padding_mode="reflect"),
            (1, 4),
            ShapeMismatch,
            "reflect padding by 4 needs a longer input",
        ),
        (nn.ConvTranspose1d(1, 1, 2, padding=4), (1, 3), ShapeMismatch, "would be empty"),
    ],
)
def test_refusals(layer: Any, shape: tuple[int, ...], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        layer_matrix(layer, shape)


def test_other_refusals() -> None:
    with pytest.raises(TorchTheoryError, match="does not fit a signal of 2"):
        toeplitz_matrix(torch.ones(3), 2, "valid")
    with pytest.raises(TorchTheoryError, match="as many sizes"):
        toeplitz_matrix(torch.ones(3, 3), (2, 2, 2))
    with pytest.raises(TorchTheoryError, match="no extent is named"):
        toeplitz_matrix(torch.ones(3), 5, "same")  # type: ignore[arg-type]
    with pytest.raises(TorchTheoryError, match="must be finite"):
        toeplitz_matrix(torch.tensor([1.0, math.nan]), 5)
    for setting, words in ({"stride": 0}, "stride"), ({"padding": -1}, "padding"):
        with pytest.raises(TorchTheoryError, match=rf"{words}\[0\] must be a whole number"):
            layer_matrix(convolution_layer(torch.ones(1, 1, 3), **setting), (1, 5))
    with pytest.raises(TorchTheoryError, match="do not divide into 2 groups"):
        convolution_layer(torch.ones(3, 1, 2), groups=2)
    with pytest.raises(TorchTheoryError, match="no padding mode is named"):
        convolution_layer(torch.ones(3, 1, 2), padding_mode="mirror")
    with pytest.raises(TorchTheoryError, match="more than this machine has to spare"):
        layer_matrix(nn.Conv2d(64, 64, 7, padding=3), (64, 2048, 2048))


def test_shapes_that_are_none_and_complex_weights_are_refused() -> None:
    with pytest.raises(TorchTheoryError, match="shape of one input"):
        convolution_map(nn.Conv2d(2, 3, 3), 8)  # type: ignore[arg-type]
    with pytest.raises(TorchTheoryError, match="complex"):
        convolution_map(nn.Conv2d(2, 3, 3, dtype=torch.complex64), (2, 8, 8))
