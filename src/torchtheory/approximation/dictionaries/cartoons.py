r"""Cartoon-like functions: smooth, but for a jump along a smooth closed curve.

$$
\mathcal E^n([0,1]^2)=\{f_1+\mathbf 1_Bf_2:\ \|f_i\|_{C^n}\le1,\ B\subset(0,1)^2,\
\partial B\in C^n,\ \|\partial B\|_{C^n}\le1\}
$$

The norm of a curve needs a parametrization: here $B$ is star-shaped, and the norm is that of
its radius as a function of the angle. Source: The Modern Mathematics of Deep Learning, section 3.5,
Figure 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator

#: Scales of the radius; a polygon with more than `2**_OCTAVES` sides sees a curve without corners.
_OCTAVES = 10


@dataclass(frozen=True, slots=True)
class Waves:
    r"""A trigonometric polynomial $a_0+\sum_ka_k\cos(\omega_k\cdot x+\theta_k)$.

    Attributes:
        amplitude: `[K]`.
        frequency: `[K, d]`.
        phase: `[K]`.
        constant: $a_0$.
    """

    amplitude: Tensor
    frequency: Tensor
    phase: Tensor
    constant: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cos(x @ self.frequency.T + self.phase) @ self.amplitude + self.constant

    def derivative_bound(self, order: int) -> float:
        r"""A bound of all derivatives of that order, $\sum_k|a_k|\max_j|\omega_{kj}|^n$."""
        largest = self.frequency.abs().amax(1) ** order
        total = float((self.amplitude.abs() * largest).sum())
        return total + (abs(self.constant) if order == 0 else 0.0)

    def norm_bound(self, order: int) -> float:
        r"""A bound of $\|\cdot\|_{C^n}$, the largest derivative of order 0 to `order`."""
        return max(self.derivative_bound(k) for k in range(order + 1))


@dataclass(frozen=True, slots=True)
class Cartoon:
    r"""One element of $\mathcal E^n([0,1]^2)$; calling it evaluates it at `x[m, 2]`.

    Attributes:
        smoothness: $n$.
        background, inside: $f_1$ and $f_2$.
        radius: of $B$ as a function of the angle `[m, 1]`.
        center: `[2]`.
    """

    smoothness: int
    background: Waves
    inside: Waves
    radius: Waves
    center: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.background(x) + self.indicator(x) * self.inside(x)

    def indicator(self, x: Tensor) -> Tensor:
        r"""$\mathbf 1_B$ at `x[m, 2]`, as numbers 0 and 1."""
        if x.ndim != 2 or x.shape[1] != 2:
            raise ShapeMismatch(f"points of the square are [m, 2], not {list(x.shape)}")
        away = x - self.center
        angle = torch.atan2(away[:, 1], away[:, 0]).unsqueeze(1)
        inside: Tensor = away.norm(dim=1) <= self.radius(angle)
        return inside.to(x.dtype)

    def boundary(self, angle: Tensor) -> Tensor:
        r"""The curve $\partial B$ at angles `[m]`: `[m, 2]`."""
        direction = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
        return self.center + self.radius(angle.unsqueeze(1)).unsqueeze(1) * direction

    def polygon(self, sides: int) -> Tensor:
        """Points of the curve at equal angles, counter-clockwise: `[sides, 2]`."""
        angles = torch.arange(whole_number(sides, "sides", least=3), dtype=torch.float64)
        return self.boundary(2 * math.pi * angles / sides)

    def image(self, resolution: int) -> Tensor:
        """The values at the centers of the pixels, `[resolution, resolution]`; the first index
        is $x_1$."""
        return _pixels(self, resolution)

    def edge(self, resolution: int) -> Tensor:
        r"""$\mathbf 1_B$ alone, averaged over four points a pixel: a band-limited system sees
        the curve, and less of the pixels' stairs."""
        fine = _pixels(self.indicator, 2 * whole_number(resolution, "resolution", least=1))
        return fine.unfold(0, 2, 2).unfold(1, 2, 2).mean((2, 3))


def _pixels(function: Callable[[Tensor], Tensor], resolution: int) -> Tensor:
    x = cell_centers(((0.0, 1.0), (0.0, 1.0)), whole_number(resolution, "resolution", least=1))
    size = 1 << 16
    values = torch.cat([function(x[i : i + size]) for i in range(0, len(x), size)])
    return values.reshape(resolution, resolution)


def cartoon(smoothness: int = 2, *, generator: RandomSource = None) -> Cartoon:
    r"""A random cartoon whose curve is no smoother than it has to be.

    The radius is $r_0+\sum_{k<10}a_k\cos(2^k\theta+\theta_k)$ with $\sum_k|a_k|2^{nk}\le1$,
    every octave taking an equal part: the $n$-th derivative is bounded and has every scale
    in it. $f_1,f_2$ are sums of four waves with $C^n$ norm at most 1.

    Args:
        smoothness: $n\ge1$.
        generator: a generator or a seed.

    >>> drawing = cartoon(2, generator=0)
    >>> drawing.radius.norm_bound(2) <= 1, drawing.image(4).shape
    (True, torch.Size([4, 4]))
    """
    whole_number(smoothness, "smoothness", least=1)
    g = as_generator(generator)
    frequency = 2.0 ** torch.arange(_OCTAVES, dtype=torch.float64)
    weight = (0.5 + 0.5 * torch.rand(_OCTAVES, dtype=torch.float64, generator=g)) / _OCTAVES
    amplitude = weight * frequency**-smoothness
    # the curve must stay inside: the radius varies by less than the room its mean leaves
    amplitude = amplitude * min(1.0, 0.1 / float(amplitude.sum()))
    phase = 2 * math.pi * torch.rand(_OCTAVES, dtype=torch.float64, generator=g)
    radius = Waves(amplitude, frequency.unsqueeze(1), phase, 0.3)
    center = 0.5 + 0.1 * (torch.rand(2, dtype=torch.float64, generator=g) - 0.5)
    return Cartoon(smoothness, _waves(smoothness, g), _waves(smoothness, g, 0.5), radius, center)


def _waves(smoothness: int, g: torch.Generator, constant: float = 0.0) -> Waves:
    """Four waves with a norm of at most 1; the constant keeps the jump away from 0."""
    frequency = 6 * (torch.rand(4, 2, dtype=torch.float64, generator=g) - 0.5)
    phase = 2 * math.pi * torch.rand(4, dtype=torch.float64, generator=g)
    amplitude = torch.rand(4, dtype=torch.float64, generator=g)
    raw = Waves(amplitude, frequency, phase)
    return Waves(
        amplitude * (1 - constant) / raw.norm_bound(smoothness), frequency, phase, constant
    )
