r"""Filters made by hand: edges, blurs, sharpening.

A filter of first differences has entries that add up to 0: it gives 0 on a constant image, and a
response along the edges across its direction. Torch's layers do not turn filters around, and
neither does `apply_filters`; turning a filter of differences around changes the sign of its
response. Source: the lectures, section 10.1.3 and Figure 10.8, which names Sobel's and Gaussian
filters and prints no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import all_finite, one_of, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch

_SMOOTHED = {"prewitt": (1.0, 1.0, 1.0), "sobel": (1.0, 2.0, 1.0), "scharr": (3.0, 10.0, 3.0)}

#: Filters of 3 x 3 or 2 x 2 taps by name; `_vertical` finds vertical edges, where rows change.
FILTERS: dict[str, tuple[tuple[float, ...], ...]] = {
    **{
        f"{name}_vertical": tuple((-w, 0.0, w) for w in weights)
        for name, weights in _SMOOTHED.items()
    },
    **{
        f"{name}_horizontal": tuple(tuple(s * w for w in weights) for s in (-1.0, 0.0, 1.0))
        for name, weights in _SMOOTHED.items()
    },
    "roberts_falling": ((1.0, 0.0), (0.0, -1.0)),
    "roberts_rising": ((0.0, 1.0), (-1.0, 0.0)),
    "laplacian": ((0.0, 1.0, 0.0), (1.0, -4.0, 1.0), (0.0, 1.0, 0.0)),
    "sharpen": ((0.0, -1.0, 0.0), (-1.0, 5.0, -1.0), (0.0, -1.0, 0.0)),
}


def edge_filter(name: str) -> Tensor:
    """A filter made by hand, one of `FILTERS`, in double precision.

    >>> edge_filter("sobel_vertical")
    tensor([[-1.,  0.,  1.],
            [-2.,  0.,  2.],
            [-1.,  0.,  1.]], dtype=torch.float64)
    """
    return torch.tensor(FILTERS[one_of(name, "filter", FILTERS)], dtype=torch.float64)


def gaussian_filter(deviation: float, size: int | None = None) -> Tensor:
    r"""The blur $e^{-(i^2+j^2)/2\sigma^2}$ on a square of odd size, with entries that add up to 1.

    Args:
        deviation: $\sigma$, in places.
        size: of the square; $2\lceil3\sigma\rceil+1$ unless told.

    >>> round(float(gaussian_filter(1.0).sum()), 12), gaussian_filter(1.0).shape
    (1.0, torch.Size([7, 7]))
    """
    positive_number(deviation, "deviation")
    count = 2 * math.ceil(3 * deviation) + 1 if size is None else size
    whole_number(count, "size", least=1)
    if count % 2 == 0:
        raise InvalidInput(f"size must be odd, so that there is a place in the middle, not {count}")
    places = torch.arange(count, dtype=torch.float64) - count // 2
    line = torch.exp(-places.square() / (2 * deviation**2))
    line = line / line.sum()
    return torch.outer(line, line)


def apply_filters(image: Tensor, filters: Sequence[str | Tensor], *, padding: int = 0) -> Tensor:
    """What each filter makes of an image, side by side.

    Args:
        image: `[height, width]`.
        filters: names of `FILTERS`, or filters `[taps, taps]`.
        padding: rows and columns that repeat the rim of the image, so that the rim is no edge.

    Returns:
        `[filters, height, width]`, smaller by the taps less the padding. Filters must have one size
        then.

    >>> step = torch.cat([torch.zeros(4, 3), torch.ones(4, 3)], 1)
    >>> apply_filters(step, ["sobel_vertical", "sobel_horizontal"])[:, 0]
    tensor([[0., 4., 4., 0.],
            [0., 0., 0., 0.]])
    """
    if image.ndim != 2 or not image.is_floating_point():
        raise ShapeMismatch(f"an image is [height, width] of real numbers, not {list(image.shape)}")
    if not filters:
        raise InvalidInput("give at least one filter")
    all_finite(image, "image")
    taken = [edge_filter(f) if isinstance(f, str) else f for f in filters]
    shapes = {tuple(f.shape) for f in taken}
    if len(shapes) > 1 or len(next(iter(shapes))) != 2:
        raise ShapeMismatch(
            f"filters side by side must be matrices of one shape, not {sorted(shapes)}"
        )
    whole_number(padding, "padding", least=0)
    height, width = next(iter(shapes))
    if height > image.shape[0] + 2 * padding or width > image.shape[1] + 2 * padding:
        raise ShapeMismatch(
            f"filters of {height} x {width} do not fit an image of {list(image.shape)}"
        )
    weight = torch.stack([f.to(image) for f in taken])[:, None]
    wide = (
        F.pad(image[None, None], [padding] * 4, mode="replicate") if padding else image[None, None]
    )
    return F.conv2d(wide, weight)[0]
