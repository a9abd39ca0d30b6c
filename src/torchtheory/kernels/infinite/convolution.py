r"""Convolutional networks with infinitely many channels: both kernels, image by image.

The network has $L-1$ convolutions of stride 1 that keep the image's size, each followed by
the activation, and a dense layer on top. As the numbers of channels grow, pre-activations at the
pixels $p$ of $x$ and $p'$ of $x'$ become Gaussian with the covariance

$$
\Sigma^l_{pp'}=\frac{\sigma_w^2}{k^2}\sum_{\delta}
\mathbb E\,\varphi(z_{p+\delta})\varphi(z'_{p'+\delta})+\sigma_b^2,
$$

a sum over the filter's $k\times k$ places, with $\frac1c\sum_cx_{cp}x'_{cp'}$ in place
of the expectation in the first layer, and the tangent kernel is
$\Theta^l_{pp'}=\Sigma^l_{pp'}+\frac{\sigma_w^2}{k^2}\sum_\delta
\Theta^{l-1}_{p+\delta,p'+\delta}\,\mathbb E\varphi'(z_{p+\delta})\varphi'(z'_{p'+\delta})$.
With global average pooling the dense layer sees the mean over all pairs of pixels; flattened, only
the mean over $p=p'$, and then nothing else is needed on the way: weight sharing leaves no
trace in the kernel. These are the infinite-width convolutional models of Foundations of Deep
Learning, Figure 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch, UnknownName
from torchtheory.kernels.infinite.dense import LimitKernels
from torchtheory.kernels.infinite.parametrization import Readout, check_variances
from torchtheory.nets.infinite_width.dual_activations import AnyActivation, dual_activation
from torchtheory.nets.infinite_width.duals.moments import DualActivation, Prepared

Padding = Literal["zeros", "circular"]

_AT_ONCE = 100_000  # pairs of pixels in one block: its few buffers stay near the processor


def convolutional_kernels(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    depth: int,
    readout: Readout = "mean",
    kernel_size: int = 3,
    activation: AnyActivation = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    padding: Padding = "zeros",
) -> LimitKernels:
    r"""The kernel at initialization and the tangent kernel of a convolutional network.

    Args:
        x1, x2: images `[n, c, h, w]` and `[m, c, h, w]`; without `x2`, `x1` with itself, of
            which half the matrix is computed.
        depth: affine layers: `depth - 1` convolutions and the dense one, so at least 2.
        readout: `mean` (global average pooling) or `flatten`.
        kernel_size: side $k$ of the filter, odd.
        padding: `zeros`, counted in the fan-in as torch's layers do, or `circular`.

    It is the limit of `ntk_convolutional`. Time
    $O(nmL(hw)^2)$ with `mean` and $O(nmLhw)$ with `flatten`; memory beyond the
    result is that of blocks of about $\max(10^5,(hw)^2)$ pairs of pixels. No gradient flows
    to the images. Use float64 for nearly equal images: angles come from rounded cosines here.

    Example: one pixel makes a dense network of the channels.

    >>> from torchtheory.kernels.infinite.dense import limit_kernels
    >>> x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> k = convolutional_kernels(x[:, :, None, None], depth=3, kernel_size=1)
    >>> torch.allclose(k.ntk, limit_kernels(x, depth=3).ntk)
    True
    """
    a = _images(x1, "x1")
    b = a if x2 is None else _images(x2, "x2")
    if a.shape[1:] != b.shape[1:]:
        raise ShapeMismatch(
            f"the images of x1 are {list(a.shape[1:])} and those of x2 {list(b.shape[1:])}"
        )
    if (a.dtype, a.device) != (b.dtype, b.device):
        raise InvalidInput(
            f"x1 and x2 must have one dtype and one device: convert one (a is {described(a)}, b is "
            f"{described(b)})"
        )
    whole_number(depth, "depth", least=2)
    if whole_number(kernel_size, "kernel_size", least=1) % 2 == 0:
        raise InvalidInput(f"the side of the filter must be odd, not {kernel_size}")
    if readout not in ("flatten", "mean"):
        raise UnknownName("readout", str(readout), ("flatten", "mean"))
    if padding not in ("zeros", "circular"):
        raise UnknownName("padding", str(padding), ("zeros", "circular"))
    check_variances(weight_variance, bias_variance)
    model = _Model(
        depth,
        dual_activation(activation),
        kernel_size,
        float(weight_variance),
        float(bias_variance),
        padding,
        pooled=readout == "mean",
    )
    with torch.no_grad():
        return model.kernels(a, b, symmetric=x2 is None)


class _Model:
    """The recursion, on blocks of pairs of images."""

    def __init__(
        self,
        depth: int,
        dual: DualActivation,
        side: int,
        weight: float,
        bias: float,
        padding: Padding,
        *,
        pooled: bool,
    ) -> None:
        self.depth, self.dual, self.side = depth, dual, side
        self.weight, self.bias, self.pooled = weight, bias, pooled
        self.padding = padding

    def kernels(self, a: Tensor, b: Tensor, *, symmetric: bool) -> LimitKernels:
        one, diagonal, tangents = self._layers(a)
        other = one if symmetric else self._layers(b)[0]
        sigma, theta = (a.new_empty(len(a), len(b)) for _ in range(2))
        pixels = a.shape[2] * a.shape[3]
        pairs = max(1, _AT_ONCE // (pixels**2 if self.pooled else pixels))
        columns = min(len(b), max(1, int(pairs**0.5)))
        rows = max(1, pairs // columns)
        error = 0.0
        for top in range(0, len(a), rows):
            here = slice(top, min(top + rows, len(a)))
            for left in range(0, len(b), columns):
                there = slice(left, min(left + columns, len(b)))
                if symmetric and there.stop <= here.start:
                    continue
                start = self._inner(a[here], b[there])
                end, tangent, missed = self._advance(start, one, other, here, there)
                sigma[here, there], theta[here, there] = end, tangent
                error = max(error, missed)
        if symmetric:
            for kernel in (sigma, theta):
                kernel.copy_(kernel.triu() + kernel.triu(1).T)
            if not self.pooled:  # an image with itself: no angle between a pixel and itself
                sigma.diagonal().copy_(diagonal)
                theta.diagonal().copy_(tangents)
        return LimitKernels(sigma, theta, error)

    def _layers(self, x: Tensor) -> tuple[list[Prepared], Tensor, Tensor]:
        """Per layer, what the activation needs of each pixel's variance; then both diagonals of
        the flattened network."""
        k = self._affine(x.square().mean(1), pooled=False)
        tangent = k
        layers = []
        for layer in range(1, self.depth):
            layers.append(self.dual.prepare(k.flatten(1)))
            found = self.dual.on_diagonal(k)
            assert found.slopes is not None
            k, tangent = found.values, tangent * found.slopes
            if layer < self.depth - 1:
                k = self._affine(k, pooled=False)
                tangent = self._filter(tangent, pooled=False).add_(k)
        k, tangent = k.mean((1, 2)), tangent.mean((1, 2))
        last = self.weight * k + self.bias
        return layers, last, self.weight * tangent + last

    def _inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Covariances of the input's pixels over its channels, `[r, c, h, w]` or
        `[r, c, h, w, h, w]`."""
        pattern = "iahw,jauv->ijhwuv" if self.pooled else "iahw,jahw->ijhw"
        return torch.einsum(pattern, a, b).div_(a.shape[1])

    def _advance(
        self, k: Tensor, one: list[Prepared], other: list[Prepared], rows: slice, columns: slice
    ) -> tuple[Tensor, Tensor, float]:
        k = self._affine(k, pooled=self.pooled)
        tangent = k
        shape, error = k.shape, 0.0
        for layer in range(1, self.depth):
            left, right = self._broadcast(one[layer - 1], other[layer - 1], rows, columns)
            flat = k.flatten(2) if not self.pooled else k.flatten(4).flatten(2, 3)
            found = self.dual.pair(flat, left, right, slopes=True)
            assert found.slopes is not None
            error = max(error, found.error)
            k, tangent = found.values.view(shape), found.slopes.view(shape).mul_(tangent)
            if layer < self.depth - 1:
                k = self._affine(k, pooled=self.pooled)
                tangent = self._filter(tangent, pooled=self.pooled).add_(k)
        end = k.flatten(2).mean(2).mul_(self.weight).add_(self.bias)
        return end, tangent.flatten(2).mean(2).mul_(self.weight).add_(end), error

    def _broadcast(
        self, one: Prepared, other: Prepared, rows: slice, columns: slice
    ) -> tuple[Prepared, Prepared]:
        if self.pooled:
            left = tuple(t[..., rows, None, :, None] for t in one)
            right = tuple(t[..., None, columns, None, :] for t in other)
        else:
            left = tuple(t[..., rows, None, :] for t in one)
            right = tuple(t[..., None, columns, :] for t in other)
        return left, right

    def _affine(self, k: Tensor, *, pooled: bool) -> Tensor:
        return self._filter(k, pooled=pooled).add_(self.bias)

    def _filter(self, k: Tensor, *, pooled: bool) -> Tensor:
        r"""$\frac{\sigma_w^2}{k^2}\sum_\delta k_{p+\delta,p'+\delta}$, one axis at a time."""
        add: Callable[[Tensor, tuple[int, ...], int], Tensor]
        add = _shifted_sum if self.padding == "zeros" else _rolled_sum
        for axes in ((-4, -2), (-3, -1)) if pooled else ((-2,), (-1,)):
            k = add(k, axes, self.side // 2)
        return k.mul_(self.weight / self.side**2)


def _shifted_sum(k: Tensor, axes: tuple[int, ...], reach: int) -> Tensor:
    """Sum over joint shifts of the axes by at most `reach`, with zeros outside."""
    out = k.clone()
    size = k.shape[axes[0]]
    for shift in range(1, min(reach, size - 1) + 1):
        ahead, behind, low, high = k, k, out, out
        for axis in axes:
            ahead = ahead.narrow(axis, shift, size - shift)
            behind = behind.narrow(axis, 0, size - shift)
            low = low.narrow(axis, 0, size - shift)
            high = high.narrow(axis, shift, size - shift)
        low.add_(ahead)
        high.add_(behind)
    return out


def _rolled_sum(k: Tensor, axes: tuple[int, ...], reach: int) -> Tensor:
    """The same on a torus."""
    out = k.clone()
    for shift in range(1, reach + 1):
        for sign in (shift, -shift):
            out.add_(k.roll([sign] * len(axes), axes))
    return out


def _images(x: Tensor, name: str) -> Tensor:
    if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
        raise InvalidType(f"{name} must be a tensor of float32 or float64 images")
    if x.ndim != 4:
        raise ShapeMismatch(f"{name} must be [images, channels, height, width], not {_shape(x)}")
    if x.numel() == 0:
        raise EmptyData(f"{name} is empty: {_shape(x)}")
    all_finite(x, name)
    return x.detach()


def _shape(x: Tensor) -> str:
    return str(list(x.shape))
