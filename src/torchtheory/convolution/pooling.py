r"""Pooling: maps that make images smaller, and blocks of convolution and pooling.

On the grid $(\mathbb Z/2d)^2$ *subsampling* keeps every second place,
$x\mapsto(x[2i,2j])_{i,j<d}$, a map onto functions on $(\mathbb Z/d)^2$. The *maximum* or the
*average* over windows of $r$ places, at a distance of $s$, takes $n$ places to
$\lfloor(n-r)/s\rfloor+1$; only a stride $s>1$ makes an image smaller by a factor. Averaging is the
convolution with the even filter followed by subsampling. Sources: the notes, section 4.2; the
lectures, section 10.1.3, Figures 10.9 and 10.10; the monograph, section 1.8, (1.53).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import convolution_layer
from torchtheory.core.checks import described, one_of, whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch

Pooling = Literal["none", "subsample", "average", "max"]
POOLINGS: tuple[Pooling, ...] = ("none", "subsample", "average", "max")

_MAXIMUM: tuple[Any, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE: tuple[Any, ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


class Maximum(NamedTuple):
    """Maxima over windows, and the places of the image that they come from.

    Attributes:
        values: `[n, channels, ...]`.
        places: of the same shape, indices into the flattened dimensions of one image; the first
            where several entries of a window are largest.
    """

    values: Tensor
    places: Tensor


def max_pool(x: Tensor, size: int, stride: int | None = None) -> Maximum:
    r"""The maximum over windows, $y[i]=\max\{x[si+k]:0\le k<r\}$, in each of 1 to 3 dimensions.

    It is monotone and changes by no more than its input does, in the maximum norm; its gradient
    goes to the place of the maximum and nowhere else.

    Args:
        x: images `[n, channels, ...]`.
        size: $r$.
        stride: $s$; the size of the window unless told, so that windows do not overlap.

    >>> x = torch.tensor([[[1.0, 4.0, 2.0, 3.0]]])
    >>> max_pool(x, 2).values.tolist(), max_pool(x, 2).places.tolist()
    ([[[4.0, 3.0]]], [[[1, 3]]])
    >>> max_pool(x, 2, stride=1).values.tolist()
    [[[4.0, 4.0, 3.0]]]
    """
    dims = _checked(x, size, stride)
    return Maximum(*_MAXIMUM[dims - 1](x, size, stride, return_indices=True))


def average_pool(x: Tensor, size: int, stride: int | None = None) -> Tensor:
    r"""The mean over windows, $y[i]=r^{-d}\sum_{0\le k<r}x[si+k]$; see `max_pool`.

    >>> average_pool(torch.tensor([[[1.0, 4.0, 2.0, 3.0]]]), 2).tolist()
    [[[2.5, 2.5]]]
    """
    dims = _checked(x, size, stride)
    pooled: Tensor = _AVERAGE[dims - 1](x, size, stride)
    return pooled


def subsample(x: Tensor, stride: int) -> Tensor:
    r"""Every $s$-th place, $y[i]=x[si]$, in every dimension.

    On a torus of $sd$ places it is the restriction to the subgroup $s\mathbb Z/sd\mathbb Z$, which
    is $\mathbb Z/d$.

    >>> subsample(torch.arange(6.0)[None, None], 2).tolist()
    [[[0.0, 2.0, 4.0]]]
    """
    _checked(x, 1, stride)
    return x[(slice(None), slice(None), *[slice(None, None, stride)] * (x.ndim - 2))]


def average_as_convolution(
    channels: int,
    size: int,
    stride: int | None = None,
    *,
    dimensions: int = 2,
    dtype: torch.dtype | None = None,
) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
    r"""Average pooling as the layer that it is: even filters $r^{-d}$, one per channel.

    >>> layer = average_as_convolution(3, 2)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> bool(torch.allclose(layer(x), average_pool(x, 2)))
    True
    """
    count = whole_number(channels, "channels", least=1)
    r = whole_number(size, "size", least=1)
    dims = whole_number(dimensions, "dimensions", least=1, most=3)
    kernels = torch.full((count, 1, *[r] * dims), float(r) ** -dims, dtype=dtype)
    return convolution_layer(kernels, stride=stride or r, groups=count)


class ConvolutionBlock(nn.Module):
    r"""A convolution on a torus, a pooling, an activation: $x\mapsto\varrho(p(x*\kappa_i)+b_i)_i$.

    Args:
        kernels: $\kappa$, `[out, in, ...]`; one kernel for each pair of channels, whose images are
            added.
        pooling: `none`, `subsample`, `average` or `max`, over windows of `stride` places.
        stride: by which pooling divides the size.
        bias: `[out]`.
        activation: $\varrho$, the identity unless told.

    The convolution is that of the group, $(x*\kappa)[u]=\sum_t\kappa[t]\,x[u-t]$ with indices
    modulo the size, so the kernels are turned around in torch's layer.

    >>> block = ConvolutionBlock(torch.ones(2, 1, 3, 3), "subsample")
    >>> block(torch.ones(1, 1, 8, 8)).shape
    torch.Size([1, 2, 4, 4])
    """

    def __init__(
        self,
        kernels: Tensor,
        pooling: Pooling = "none",
        *,
        stride: int = 2,
        bias: Tensor | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.pooling = one_of(pooling, "pooling", POOLINGS)
        self.stride = whole_number(stride, "stride", least=1)
        self.convolution = convolution_layer(kernels, bias, flip=True)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.convolution.kernel_size
        self._refuse_misfit(x)
        # u - t for t = 0, ..., k - 1: the image is continued before its start
        around = [side for k in reversed(kernel) for side in (k - 1, 0)]
        made: Tensor = self.convolution(F.pad(x, around, mode="circular"))
        if self.pooling == "subsample":
            made = subsample(made, self.stride)
        elif self.pooling == "average":
            made = average_pool(made, self.stride)
        elif self.pooling == "max":
            made = max_pool(made, self.stride).values
        return made if self.activation is None else self.activation(made)

    def strided_layer(self) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
        """The linear part with subsampling, or none, as one layer: subsampling is a stride.

        It gives what the block does up to a shift of the image, by one less than the kernel's size:
        torch pads both sides alike.
        """
        if self.pooling not in ("none", "subsample"):
            raise InvalidInput(
                f"a block with {self.pooling} pooling is no convolution layer; one with "
                "subsampling is"
            )
        own = self.convolution
        if any(k % 2 == 0 for k in own.kernel_size):
            raise InvalidInput(
                "torch pads both sides alike, so the kernel must have an odd size, not "
                f"{list(own.kernel_size)}"
            )
        return convolution_layer(
            own.weight.detach(),
            None if own.bias is None else own.bias.detach(),
            stride=1 if self.pooling == "none" else self.stride,
            padding=tuple((k - 1) // 2 for k in own.kernel_size),
            padding_mode="circular",
        )

    def _refuse_misfit(self, x: Tensor) -> None:
        if x.ndim != self.convolution.weight.ndim:
            raise ShapeMismatch(
                f"the block takes images [n, channels, ...] of {self.convolution.weight.ndim} "
                f"dimensions, not {list(x.shape)}"
            )
        divided = 1 if self.pooling == "none" else self.stride
        for n, k in zip(x.shape[2:], self.convolution.kernel_size, strict=True):
            if n % divided or k > n:
                raise ShapeMismatch(
                    f"images of {list(x.shape[2:])} do not fit: sizes must be multiples of "
                    f"{divided} and no smaller than the kernel"
                )


def _checked(x: Tensor, size: int, stride: int | None) -> int:
    whole_number(size, "size", least=1)
    if stride is not None:
        whole_number(stride, "stride", least=1)
    if not isinstance(x, Tensor):
        raise InvalidType(f"images must be a tensor [n, channels, ...], not {described(x)}")
    if x.ndim not in (3, 4, 5):
        raise ShapeMismatch(
            f"images must be [n, channels, ...] with 1 to 3 more dimensions, not {list(x.shape)}"
        )
    if min(whole_numbers(x.shape[2:], "the size of the image")) < size:
        raise ShapeMismatch(f"windows of {size} places do not fit images of {list(x.shape[2:])}")
    return x.ndim - 2
