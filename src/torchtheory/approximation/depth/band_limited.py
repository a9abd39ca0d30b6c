r"""The density of Eldan and Shamir, and how little of a ball a few tubes cover.

Let $\varphi$ have the indicator of the ball of volume 1 as its transform,

$$
\varphi(x)=\Big(\frac{R_n}{\|x\|}\Big)^{n/2}J_{n/2}(2\pi R_n\|x\|),\qquad
R_n=\frac{\Gamma(n/2+1)^{1/n}}{\sqrt\pi} .
$$

Then $\varphi^2$ is a density, and seen through it a sum of $m$ ridge functions lives,
on the side of the frequencies, in $m$ tubes around lines. One tube of radius 1 covers the
share $I_{1/r^2}(\frac{n-1}2,\frac32)$ of the ball of radius $r$, which falls
exponentially with $n$. Source: Foundations of Deep Learning, section 4.2.2.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from torchtheory.core.checks import first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch

Array = NDArray[np.float64]


def unit_volume_radius(dimension: int) -> float:
    r"""$R_n=\Gamma(n/2+1)^{1/n}/\sqrt\pi$, the radius of the ball of volume 1.

    >>> unit_volume_radius(1), round(unit_volume_radius(2) ** 2 * math.pi, 12)
    (0.5, 1.0)
    """
    whole_number(dimension, "dimension", least=1)
    return math.exp(special.gammaln(dimension / 2 + 1) / dimension) / math.sqrt(math.pi)


def band_limited_root(lengths: Tensor, dimension: int, radius: float | None = None) -> Tensor:
    r"""$\varphi$ at points of given lengths: the transform of a ball's indicator.

    Args:
        lengths: $\|x\|\ge0$.
        dimension: $n$.
        radius: of the ball of frequencies; $R_n$, where $\int\varphi^2=1$, unless told.

    >>> x = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    >>> torch.allclose(band_limited_root(x, 1), torch.sinc(x))
    True
    """
    if (lengths < 0).any():
        raise InvalidInput(
            f"lengths are not negative: {first_entry(lengths, 'lengths', lengths < 0)}"
        )
    ball = unit_volume_radius(dimension) if radius is None else positive_number(radius, "radius")
    half = dimension / 2
    z = lengths.detach().cpu().double().numpy()
    w = 2 * math.pi * ball * z
    volume = math.exp(half * math.log(math.pi * ball**2) - special.gammaln(half + 1))
    values = np.empty_like(z)
    # the Bessel function is exponentially small before its first peak near w = n/2
    far = w >= half
    values[far] = (ball / z[far]) ** half * special.jv(half, w[far])
    values[~far] = volume * _bessel_over_its_power(half, w[~far])
    return torch.from_numpy(values).to(lengths.device)


def _bessel_over_its_power(order: float, w: Array) -> Array:
    r"""$F_\nu(w)=\Gamma(\nu+1)(2/w)^\nu J_\nu(w)$ for $0\le w\le\nu$, which is 1 at 0.

    Its power series has no cancellation for $w^2/4\le k+1$, and from there
    $F_{k-1}=F_k-\frac{w^2/4}{k(k+1)}F_{k+1}$ is stable downwards.
    """
    quarter = w**2 / 4
    top = order + math.ceil(max(0.0, float(quarter.max(initial=0.0)) - order))
    upper, here = _power_series(top + 1, quarter), _power_series(top, quarter)
    for k in range(round(top - order)):
        at = top - k
        upper, here = here, here - quarter / (at * (at + 1)) * upper
    return here


def _power_series(order: float, quarter: Array) -> Array:
    term = np.ones_like(quarter)
    total = term.copy()
    for k in range(1, 40):  # the terms fall at least like 1/k!
        term = -term * quarter / (k * (order + k))
        total += term
    return total


def tube_share(dimension: int, radius: float) -> float:
    r"""The share of the ball of radius $r$ within distance 1 of a line through its center.

    The squared distance from the line, over $r^2$, of a uniform point of the ball is
    $\mathrm{Beta}(\frac{n-1}2,\frac32)$, hence $I_{1/r^2}(\frac{n-1}2,\frac32)$.

    >>> round(tube_share(3, 2.0), 6)                 # 1 - (1 - 1/4)^(3/2)
    0.350481
    """
    whole_number(dimension, "dimension", least=2)
    if not (math.isfinite(radius) and radius >= 1):
        raise InvalidInput(f"radius must be a number >= 1, not {radius!r}")
    return float(special.betainc((dimension - 1) / 2, 1.5, 1 / radius**2))


def covered_share(points: Tensor, directions: Tensor) -> float:
    r"""The share of given points within distance 1 of one of several lines through the origin.

    Args:
        points: `[N, n]`, e.g. uniform on a ball.
        directions: unit vectors `[m, n]`.

    >>> covered_share(torch.tensor([[3.0, 0.5], [2.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
    0.5
    """
    if points.ndim != 2 or directions.ndim != 2 or points.shape[1] != directions.shape[1]:
        raise ShapeMismatch(
            f"points are [N, n] and directions [m, n] (points is {list(points.shape)}, directions "
            f"is {list(directions.shape)})"
        )
    if not torch.allclose(directions.norm(dim=1), torch.ones_like(directions[:, 0])):
        raise InvalidInput(
            "the directions must be unit vectors: a norm differs from 1 by "
            f"{float((directions.norm(dim=1) - 1).abs().max()):.3g}"
        )
    squares = points.square().sum(1, keepdim=True) - (points @ directions.T).square()
    return float((squares.min(dim=1).values <= 1).double().mean())


def tubes_needed(share: float, dimension: int, radius: float) -> int:
    r"""Fewer tubes than this cannot cover the share of the ball: $\lceil s/I\rceil$.

    >>> tubes_needed(0.5, 3, 2.0) <= tubes_needed(0.5, 20, 2.0)
    True
    """
    if not 0 < share <= 1:
        raise InvalidInput(f"a share lies in (0, 1], not {share!r}")
    return math.ceil(share / tube_share(dimension, radius) - 1e-12)
