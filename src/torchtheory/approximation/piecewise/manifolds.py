r"""Data on a manifold: parametrized sheets in any number of dimensions, and their own dimension.

A sheet is rolled up in a few dimensions and then laid into $\mathbb R^D$ by a random
isometry, so that nothing but $D$ changes. Source: The Modern Mathematics of Deep Learning,
section 3.6.2, Figure 3.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Box, as_box
from torchtheory.core.checks import as_points, nonnegative_number, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.primer.norms import pairwise_distances


@dataclass(frozen=True, slots=True)
class ParametrizedManifold:
    r"""A manifold $\{F(u)Q:u\in B\}\subset\mathbb R^D$; calling it embeds `u[n, d]`.

    Attributes:
        roll: $F$, differentiable, from `[n, d]` to `[n, q]`; also defined a little
            outside of the box.
        domain: the box $B$ of the intrinsic coordinates.
        frame: $Q$, `[q, D]` with orthonormal rows.
    """

    roll: Callable[[Tensor], Tensor]
    domain: Box
    frame: Tensor

    @property
    def dimension(self) -> int:
        """The intrinsic dimension."""
        return len(self.domain)

    def __call__(self, u: Tensor) -> Tensor:
        if u.ndim != 2 or u.shape[1] != self.dimension:
            raise ShapeMismatch(f"coordinates are [n, {self.dimension}], not {list(u.shape)}")
        return self.roll(u) @ self.frame

    def draw(self, samples: int, generator: RandomSource = None) -> Tensor:
        """Intrinsic coordinates, uniform in the box: `[samples, d]`."""
        low, high = torch.tensor(self.domain, dtype=torch.float64).unbind(1)
        u = torch.rand(
            whole_number(samples, "samples", least=1),
            self.dimension,
            dtype=torch.float64,
            generator=as_generator(generator),
        )
        return low + (high - low) * u


class RolledSample(NamedTuple):
    """Points `x[n, D]` and their intrinsic coordinates `u[n, d]`."""

    x: Tensor
    u: Tensor


def random_frame(rows: int, columns: int, generator: RandomSource = None) -> Tensor:
    r"""Orthonormal rows `[q, D]`: an isometric embedding of $\mathbb R^q$, uniformly drawn.

    >>> frame = random_frame(2, 5, generator=0)
    >>> bool((frame @ frame.T - torch.eye(2)).abs().max() < 1e-12)
    True
    """
    if not 1 <= rows <= columns:
        raise InvalidInput(f"{rows} dimensions do not fit isometrically into {columns}")
    made = gaussian(columns, rows, generator=as_generator(generator), dtype=torch.float64)
    q, r = torch.linalg.qr(made)
    frame: Tensor = (q * r.diagonal().sign()).T
    return frame


def swiss_roll_sheet(
    ambient: int = 3, *, height: float = 21.0, generator: RandomSource = None
) -> ParametrizedManifold:
    r"""The Swiss roll $(t\cos t,h,t\sin t)$, $t\in[\frac{3\pi}2,\frac{9\pi}2]$,
    $h\in[0,H]$, in $\mathbb R^D$.

    With `ambient=3` the coordinates are as printed; otherwise a random isometry follows.

    >>> swiss_roll_sheet()(torch.tensor([[2 * torch.pi, 1.0]]).double()).round(decimals=3).tolist()
    [[6.283, 1.0, 0.0]]
    """
    positive_number(height, "height")
    frame = (
        torch.eye(3, dtype=torch.float64) if ambient == 3 else random_frame(3, ambient, generator)
    )
    return ParametrizedManifold(
        _roll, as_box(((1.5 * math.pi, 4.5 * math.pi), (0.0, height))), frame
    )


def circle_curve(ambient: int = 2, *, generator: RandomSource = None) -> ParametrizedManifold:
    r"""The unit circle in $\mathbb R^D$, parametrized by the angle in $[-\pi,\pi]$.

    >>> circle_curve()(torch.tensor([[0.0]]).double()).tolist()
    [[1.0, 0.0]]
    """
    frame = (
        torch.eye(2, dtype=torch.float64) if ambient == 2 else random_frame(2, ambient, generator)
    )
    return ParametrizedManifold(_circle, as_box((-math.pi, math.pi)), frame)


def swiss_roll(
    samples: int, ambient: int = 3, *, noise: float = 0.0, generator: RandomSource = None
) -> RolledSample:
    r"""Points of the Swiss roll, uniform in $(t,h)$, with Gaussian noise in all coordinates.

    >>> swiss_roll(5, 100, generator=0).x.shape
    torch.Size([5, 100])
    """
    nonnegative_number(noise, "noise")
    generator = as_generator(generator)
    sheet = swiss_roll_sheet(ambient, generator=generator)
    u = sheet.draw(samples, generator)
    x = sheet(u)
    return RolledSample(x + noise * gaussian(*x.shape, generator=generator, dtype=torch.float64), u)


def intrinsic_dimension(x: Tensor, neighbors: int = 12) -> float:
    r"""The maximum likelihood estimate of the dimension from distances to neighbors.

    With $T_j(x)$ the distance to the $j$-th neighbor, numbers of neighbors in small
    balls grow like a Poisson process of intensity $\propto r^{d-1}$, and
    $1/\hat d$ is the mean of $\log(T_k(x)/T_j(x))$ over all points and
    $j<k$, which has no bias (Levina and Bickel; MacKay and Ghahramani's average). Time and
    memory `O(n^2)`.

    Args:
        x: `[n, D]`, no two rows equal.
        neighbors: $k$, at least 3 and less than `n`.

    >>> line = torch.linspace(0, 1, 200).double().unsqueeze(1) ** 2 * torch.ones(1, 7).double()
    >>> round(intrinsic_dimension(line))
    1
    """
    x = as_points(x)
    whole_number(neighbors, "neighbors", least=3)
    if neighbors >= len(x):
        raise InvalidInput(f"{len(x)} points have at most {len(x) - 1} neighbors each")
    near = pairwise_distances(x, x).topk(neighbors + 1, largest=False).values[:, 1:]
    if not bool((near[:, 0] > 0).all()):
        at = int((~(near[:, 0] > 0)).nonzero()[0])
        raise InvalidInput(
            f"point {at} is equal to another: distances to neighbors must be positive"
        )
    ratios = (near[:, -1:] / near[:, :-1]).log()
    return float(1 / ratios.mean())


def _roll(u: Tensor) -> Tensor:
    t, h = u[..., 0], u[..., 1]
    return torch.stack([t * torch.cos(t), h, t * torch.sin(t)], -1)


def _circle(u: Tensor) -> Tensor:
    return torch.stack([torch.cos(u[..., 0]), torch.sin(u[..., 0])], -1)
