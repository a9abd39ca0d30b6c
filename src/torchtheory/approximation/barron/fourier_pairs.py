r"""Fourier pairs on the line, and the convolution theorem.

$$
\hat f(\xi)=\int f(x)e^{-2\pi ix\xi}dx,\qquad
\widehat{f*g}=\hat f\,\hat g .
$$

The transform on a grid is `torchtheory.primer.function_spaces.fourier_transform`. Source:
Foundations of Deep Learning, section 4.1, Theorem 25.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number
from torchtheory.core.errors import ShapeMismatch


def convolve_on_grid(f: Tensor, g: Tensor, spacing: float) -> Tensor:
    r"""The convolution $(f*g)(x)=\int f(t)g(x-t)\,dt$ by the convolution theorem.

    The transforms of the zero-padded grids are multiplied and transformed back:
    $\widehat{f*g}=\hat f\hat g$. The result starts at the sum of the two starts and has
    `len(f) + len(g) - 1` points. Cost: $O(n\log n)$.

    >>> box = torch.ones(3, dtype=torch.float64)
    >>> convolve_on_grid(box, box, 1.0).round(decimals=9).tolist()
    [1.0, 2.0, 3.0, 2.0, 1.0]
    """
    if f.ndim != 1 or g.ndim != 1 or not len(f) or not len(g):
        raise ShapeMismatch(
            f"both functions are given on a grid of the line (f is {list(f.shape)}, g is "
            f"{list(g.shape)})"
        )
    positive_number(spacing, "spacing")
    n = len(f) + len(g) - 1
    product = torch.fft.rfft(f, n) * torch.fft.rfft(g, n)
    back: Tensor = torch.fft.irfft(product, n)
    return back * spacing


@dataclass(frozen=True, slots=True)
class FourierPair:
    r"""A function on the line and its transform $\int f(x)e^{-2\pi ix\xi}dx$, both exact."""

    name: str
    function: Callable[[Tensor], Tensor]
    transform: Callable[[Tensor], Tensor]
    barron_constant: float


FOURIER_PAIRS: tuple[FourierPair, ...] = (
    FourierPair(
        "gaussian",
        lambda x: torch.exp(-math.pi * x.square()),
        lambda w: torch.exp(-math.pi * w.square()),
        2.0,
    ),
    FourierPair(
        "box", lambda x: (x.abs() < 0.5).to(x) + (x.abs() == 0.5).to(x) / 2, torch.sinc, math.inf
    ),
    FourierPair(
        "triangle", lambda x: (1 - x.abs()).clamp(min=0), lambda w: torch.sinc(w).square(), math.inf
    ),
    FourierPair(
        "exponential",
        lambda x: torch.exp(-2 * math.pi * x.abs()),
        lambda w: 1 / (math.pi * (1 + w.square())),
        math.inf,
    ),
    FourierPair(
        "lorentzian",
        lambda x: 1 / (math.pi * (1 + x.square())),
        lambda w: torch.exp(-2 * math.pi * w.abs()),
        1 / math.pi,
    ),
)
r"""Pairs on the line with Barron's constant (angular); infinite where there is a kink or jump."""
