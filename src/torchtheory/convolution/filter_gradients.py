r"""Gradients of a convolution layer, and filters learned by them.

With $y=f\star h$ (torch's convolution) and $g=\partial L/\partial y$ the gradient in the input is
the transposed convolution of $g$ with the filters, $H^\top g$, and the gradient in the filters is
the correlation of the input with $g$,
$\partial L/\partial h[t]=\sum_u g[u]\,f[su+\delta t-p]$: stride and dilation change places. With
channels both are summed over the partner channel, with a batch the second over the samples.
Sources: the notes, section 4.2 (where it is left to be done); the lectures, section 10.1.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.convolution.layer_matrices import map_of_arguments, resized
from torchtheory.core.checks import (
    all_finite,
    described,
    positive_number,
    whole_number,
    whole_numbers,
)
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch

_CONVOLVE: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)


class ConvolutionGradients(NamedTuple):
    """What back-propagation gives: in the input, in the filters, in the biases."""

    x: Tensor
    weight: Tensor
    bias: Tensor


def convolution_backward(
    x: Tensor,
    weight: Tensor,
    upstream: Tensor,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    flip: bool = False,
) -> ConvolutionGradients:
    r"""Gradients of $L$ in the input, the filters and the biases of a convolution layer.

    Args:
        x: inputs `[n, in, ...]` of 1 to 3 dimensions.
        weight: filters `[out, in / groups, ...]`.
        upstream: $g=\partial L/\partial y$, `[n, out, ...]`.
        stride, padding, dilation, groups: of the layer, with zeros around the image.
        flip: whether the layer turns its filters around, as the convolution of mathematics does.

    Cost: two convolutions, that of `torch.autograd`.

    >>> x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    >>> y = F.conv2d(x, w, stride=2, padding=1)
    >>> auto, = torch.autograd.grad(y.square().sum() / 2, w)
    >>> found = convolution_backward(x, w, y, stride=2, padding=1)
    >>> bool(torch.allclose(found.weight, auto, rtol=1e-4, atol=1e-4))
    True
    """
    for value, name in ((x, "x"), (weight, "weight"), (upstream, "upstream")):
        if not isinstance(value, Tensor):
            raise InvalidType(f"{name} must be a torch tensor, not {described(value)}")
    x, weight, upstream = x.detach(), weight.detach(), upstream.detach()
    if x.ndim != weight.ndim or x.ndim not in (3, 4, 5):
        raise ShapeMismatch(
            f"inputs [n, channels, ...] and filters must have 3 to 5 dimensions each, not {x.ndim} "
            f"and {weight.ndim}"
        )
    spatial = tuple(range(2, x.ndim))
    kernels = weight.flip(spatial) if flip else weight
    found = map_of_arguments(
        kernels, x.shape[1:], stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    wanted = (len(x), *found.output_shape)
    if tuple(upstream.shape) != wanted:
        raise ShapeMismatch(
            f"the gradient of the output must be {list(wanted)}, not {list(upstream.shape)}"
        )
    windows = found.windows
    by_input = replace(found, transposed=True).apply(upstream)
    strides = tuple(w.stride for w in windows)
    dilations = tuple(w.dilation for w in windows)
    around = tuple(w.before for w in windows)
    by_filter = []
    for image, gradient in zip(x.chunk(groups, 1), upstream.chunk(groups, 1), strict=True):
        # samples are summed over as channels are: they change places with them
        made = _CONVOLVE[x.ndim - 3](
            image.transpose(0, 1), gradient.transpose(0, 1), None, dilations, around, strides
        ).transpose(0, 1)
        for d, w in enumerate(windows):
            made = resized(made, d + 2, 0, w.taps)
        by_filter.append(made)
    filters = torch.cat(by_filter)
    return ConvolutionGradients(
        by_input, filters.flip(spatial) if flip else filters, upstream.sum((0, *spatial))
    )


@dataclass(frozen=True, slots=True)
class LearnedFilter:
    """A filter found from images and what it makes of them.

    Attributes:
        weight: `[out, in, ...]`.
        losses: half of the mean squared error before every step.
    """

    weight: Tensor
    losses: Tensor


def learn_filter(
    x: Tensor,
    y: Tensor,
    taps: Sequence[int],
    *,
    padding: int | Sequence[int] = 0,
    steps: int = 500,
    rate: float | None = None,
    flip: bool = False,
) -> LearnedFilter:
    r"""Filters by gradient descent from 0 on $\frac1{2N}\sum(f\star h-y)^2$: back-propagation.

    The loss is quadratic, so with a rate of at most $1/\lambda$, $\lambda$ the largest eigenvalue
    of the second moments of the patches, it falls at every step, and the filters converge to those
    that made `y` as long as the patches of `x` span the space of filters.

    Args:
        x: images `[n, in, ...]`.
        y: what the filters made of them, `[n, out, ...]`.
        taps: of the filters, per dimension.
        padding: zeros around the images.
        steps: of gradient descent.
        rate: the step size; $1/\lambda$ unless given.
        flip: whether the filters are turned around before they are applied.

    Cost: three convolutions per step.

    >>> seed = torch.Generator().manual_seed(0)
    >>> x = torch.randn(4, 1, 12, 12, dtype=torch.float64, generator=seed)
    >>> edge = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
    >>> learn_filter(x, F.conv2d(x, edge), (1, 2)).weight.round(decimals=6)
    tensor([[[[ 1., -1.]]]], dtype=torch.float64)
    """
    sizes = whole_numbers(tuple(taps), "taps")
    whole_number(steps, "steps", least=1)
    if x.ndim != y.ndim or x.ndim != len(sizes) + 2 or len(x) != len(y):
        raise ShapeMismatch(
            f"x and y must be images [n, channels, ...] of {len(sizes)} dimensions with as many "
            f"samples, not {list(x.shape)} and {list(y.shape)}"
        )
    all_finite(x, "x")
    all_finite(y, "y")
    spatial = tuple(range(2, x.ndim))
    weight = x.new_zeros(y.shape[1], x.shape[1], *sizes)
    shape = map_of_arguments(weight, x.shape[1:], padding=padding).output_shape
    if tuple(y.shape[1:]) != shape:
        raise ShapeMismatch(f"y must be [n, {', '.join(map(str, shape))}], not {list(y.shape)}")
    step = 1 / _largest_curvature(x, weight, padding) if rate is None else rate
    positive_number(step, "rate")
    losses = []
    convolve = _CONVOLVE[x.ndim - 3]
    per_entry = y[:, 0].numel()
    for _ in range(steps):
        kernels = weight.flip(spatial) if flip else weight
        errors = convolve(x, kernels, None, 1, padding) - y
        losses.append(errors.square().sum() / (2 * per_entry))
        slope = convolution_backward(x, weight, errors / per_entry, padding=padding, flip=flip)
        weight = weight - step * slope.weight
    found = torch.stack(losses)
    if not bool(torch.isfinite(found).all()):
        raise InvalidInput(
            f"gradient descent diverges at the rate {step:.3g}; give a smaller one, or none"
        )
    return LearnedFilter(weight, found)


def _largest_curvature(x: Tensor, weight: Tensor, padding: int | Sequence[int]) -> float:
    """The largest eigenvalue of the second moments of the patches."""
    rows = patches(x, weight.shape[2:], padding=padding).flatten(0, -2)
    moments = rows.T @ rows / len(rows)
    largest = float(torch.linalg.eigvalsh(moments.double())[-1])
    if not largest > 0:
        raise InvalidInput("the images are 0 everywhere, so they tell nothing about a filter")
    return largest


def patches(x: Tensor, taps: Sequence[int], *, padding: int | Sequence[int] = 0) -> Tensor:
    """What the windows of a filter see: `[n, windows..., channels * taps]`.

    A convolution layer applies its filters, flattened, to each of them.

    Args:
        x: images `[n, channels, ...]`.
        taps: of the filter, per dimension.
        padding: zeros around the images.

    >>> patches(torch.arange(4.0)[None, None], (2,))
    tensor([[[0., 1.],
             [1., 2.],
             [2., 3.]]])
    """
    dims = len(taps)
    sides = [padding] * dims if isinstance(padding, int) else list(padding)
    seen = F.pad(x, [side for p in reversed(sides) for side in (p, p)])
    for d, k in enumerate(taps):
        seen = seen.unfold(d + 2, k, 1)
    return seen.movedim(1, dims + 1).flatten(dims + 1)
