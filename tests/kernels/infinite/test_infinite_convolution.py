"""Kernels of convolutional networks with infinitely many channels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch, UnknownName
from torchtheory.kernels.infinite import convolution as infinite_convolution
from torchtheory.kernels.infinite.convolution import convolutional_kernels
from torchtheory.kernels.infinite.dense import limit_kernels
from torchtheory.kernels.infinite.parametrization import ntk_convolutional
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.nets.infinite_width.dual_activations import dual_moments


def images(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, channels, height, width, generator=g, dtype=torch.float64)


def literal(x: Tensor, y: Tensor, depth: int, readout: str, weight: float, bias: float) -> Tensor:
    """Tangent kernel of two images by the formula, with the pixels of both in one covariance."""
    height, width = x.shape
    pixels = [(i, j) for i in range(height) for j in range(width)]
    place = {p: n for n, p in enumerate(pixels)}
    both = torch.cat([x.reshape(1, -1), y.reshape(1, -1)], 1)
    k = both.T @ both
    count = len(pixels)

    def filtered(k: Tensor) -> Tensor:
        out = torch.zeros_like(k)
        for s, t in ((0, 0), (0, 1), (1, 0), (1, 1)):
            for p, q in ((p, q) for p in pixels for q in pixels):
                for d in ((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)):
                    a = (p[0] + d[0], p[1] + d[1])
                    b = (q[0] + d[0], q[1] + d[1])
                    if a in place and b in place:
                        out[s * count + place[p], t * count + place[q]] += (
                            k[s * count + place[a], t * count + place[b]] / 9
                        )
        return weight * out

    k = filtered(k) + bias
    theta = k
    for layer in range(1, depth):
        variance = k.diagonal()
        k11, k22 = variance[:, None].expand_as(k), variance[None].expand_as(k)
        found = dual_moments("relu", k11, k, k22)
        assert found.slopes is not None
        k, theta = found.values, theta * found.slopes
        if layer < depth - 1:
            k = filtered(k) + bias
            theta = filtered(theta) + k
    block = torch.stack([k[:count, count:], theta[:count, count:]])
    mean = block.mean((1, 2)) if readout == "mean" else block.diagonal(0, 1, 2).mean(1)
    sigma = weight * mean[0] + bias
    return weight * mean[1] + sigma


@pytest.mark.parametrize("readout", ["mean", "flatten"])
@pytest.mark.parametrize("depth", [2, 3])
def test_formula_pixel_by_pixel(readout: str, depth: int) -> None:
    x = images(2, 1, 3, 2)
    found = convolutional_kernels(
        x[:1],
        x[1:],
        depth=depth,
        readout=readout,
        bias_variance=0.2,  # type: ignore[arg-type]
    )
    wanted = literal(x[0, 0], x[1, 0], depth, readout, 2.0, 0.2)
    assert float(found.ntk) == pytest.approx(float(wanted), abs=1e-7)


@pytest.mark.parametrize("readout", ["mean", "flatten"])
@pytest.mark.parametrize("padding", ["zeros", "circular"])
def test_blocks_symmetry_and_many_channels(
    readout: str, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images(4, 2, 4, 4)
    chosen = {"readout": readout, "padding": padding, "bias_variance": 0.3}
    half = convolutional_kernels(x, depth=3, **chosen)  # type: ignore[arg-type]
    monkeypatch.setattr(infinite_convolution, "_AT_ONCE", 600)
    whole = convolutional_kernels(x, x, depth=3, **chosen)  # type: ignore[arg-type]
    assert torch.allclose(half.nngp, whole.nngp)
    assert torch.allclose(half.ntk, whole.ntk, atol=1e-6)
    nets = [
        ntk_convolutional(
            [2, 150, 150],
            1,
            (4, 4),
            generator=seed,
            dtype=torch.float64,
            **chosen,  # type: ignore[arg-type]
        )
        for seed in range(6)
    ]
    measured = torch.stack([empirical_ntk(net, x, outputs="trace") for net in nets]).mean(0)
    assert float((measured / half.ntk - 1).abs().max()) < 0.15


def test_one_pixel_is_a_dense_network() -> None:
    x = images(5, 7, 1, 1)
    dense = limit_kernels(x.flatten(1), depth=4, activation="erf", bias_variance=0.1)
    for readout in ("mean", "flatten"):
        found = convolutional_kernels(
            x,
            depth=4,
            readout=readout,  # type: ignore[arg-type]
            kernel_size=1,
            activation="erf",
            bias_variance=0.1,
        )
        assert torch.allclose(found.nngp, dense.nngp)
        assert torch.allclose(found.ntk, dense.ntk)


def test_pooling_on_a_torus_does_not_see_shifts() -> None:
    x = images(3, 1, 4, 5)
    moved = x.roll((1, 2), (2, 3))
    for readout, invariant in (("mean", True), ("flatten", False)):
        chosen = {"depth": 3, "readout": readout, "padding": "circular"}
        k = convolutional_kernels(x, **chosen).ntk  # type: ignore[arg-type]
        shifted = convolutional_kernels(x, moved, **chosen).ntk  # type: ignore[arg-type]
        assert torch.allclose(k, shifted, atol=1e-6) is invariant


def test_blank_images_are_no_trouble() -> None:
    x = images(2, 1, 4, 4)
    x[0] = 0
    found = convolutional_kernels(x, depth=3)
    assert bool(torch.isfinite(found.ntk).all())
    assert float(found.ntk[0, 0]) == 0.0


def test_bad_input_is_refused() -> None:
    x = images(2, 1, 3, 3)
    with pytest.raises(ShapeMismatch):
        convolutional_kernels(x[0], depth=2)
    with pytest.raises(ShapeMismatch):
        convolutional_kernels(x, images(2, 1, 4, 3), depth=2)
    with pytest.raises(InvalidInput, match="odd"):
        convolutional_kernels(x, depth=2, kernel_size=2)
    with pytest.raises(InvalidInput, match="depth"):
        convolutional_kernels(x, depth=1)
    with pytest.raises(UnknownName):
        convolutional_kernels(x, depth=2, readout="max")  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        convolutional_kernels(x, depth=2, padding="mirror")  # type: ignore[arg-type]
    with pytest.raises(InvalidType):
        convolutional_kernels(x.long(), depth=2)
    with pytest.raises(NonFinite):
        convolutional_kernels(x * math.nan, depth=2)
    with pytest.raises(InvalidInput):
        convolutional_kernels(x, x.float(), depth=2)


@pytest.mark.parametrize("activation", ["sign", "heaviside"])
@pytest.mark.parametrize("readout", ["flatten", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_images_under_a_step(activation: str, readout: str, dtype: torch.dtype) -> None:
    """The square root at equal points must not turn rounding into an angle, layer after layer."""
    x = images(2, 3, 4, 5).to(dtype)[[0, 0, 1]]
    found = convolutional_kernels(x, depth=5, activation=activation, readout=readout)
    for kernel in (found.nngp, found.ntk):
        same = torch.stack([kernel[0, 1], kernel[1, 0], kernel[1, 1]])
        level = 100 * torch.finfo(dtype).eps * float(kernel[0, 0])
        assert float((same - kernel[0, 0]).abs().max()) <= level
