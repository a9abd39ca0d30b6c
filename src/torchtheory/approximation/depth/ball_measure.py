r"""Drawing from the density of Eldan and Shamir, and tubes on spheres of frequencies.

The density $\varphi^2$ of `band_limited` is radial. With
$\nu=n/2$ and $z=2\pi R_n\|x\|$ its length has the density $nJ_\nu(z)^2/z$ and
the distribution

$$
P(\|x\|\le\rho)=n\int_0^z\frac{J_\nu(t)^2}t\,dt=J_\nu(z)^2+2\sum_{k\ge1}J_{\nu+k}(z)^2,
$$

with a tail like $n/(\pi z)$: no mean. Source: Mathematical Aspects of Deep Learning, section
1.3.1, Eqs. (1.30) and (1.31).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import special
from torch import Tensor

from torchtheory.approximation.depth.band_limited import unit_volume_radius
from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator, gaussian


def length_distribution(lengths: Tensor, dimension: int) -> Tensor:
    r"""$P(\|x\|\le\rho)$ under $\varphi^2$, at the given $\rho\ge0$.

    Cost: a Bessel function for each of about $z_{\max}$ orders and each length.

    >>> found = length_distribution(torch.tensor([0.0, 1.0, 1000.0]).double(), 1)
    >>> [round(v, 3) for v in found.tolist()]          # n = 1: the integral of sinc² over [-ρ, ρ]
    [0.0, 0.903, 1.0]
    """
    whole_number(dimension, "dimension", least=1)
    if not bool((lengths >= 0).all() & torch.isfinite(lengths).all()):
        found = first_entry(lengths, "lengths", ~((lengths >= 0) & torch.isfinite(lengths)))
        raise InvalidInput(f"lengths are finite and not negative: {found}")
    half = dimension / 2
    z = 2 * math.pi * unit_volume_radius(dimension) * lengths.double().flatten().cpu().numpy()
    most = float(z.max(initial=0.0))
    # beyond order z Bessel functions fall faster than exponentially
    orders = np.arange(int(most + 20 * (1 + most) ** (1 / 3)) + 30)
    total = np.zeros_like(z)
    for k in orders:
        total += (1.0 if k == 0 else 2.0) * special.jv(half + k, z) ** 2
    return torch.as_tensor(total).reshape(lengths.shape)


def draw_band_limited(count: int, dimension: int, generator: RandomSource = None) -> Tensor:
    r"""Independent points with density $\varphi^2$, `[count, n]`, double precision.

    The length by rejection from $\min(c,M/z^2)$, the direction uniform.

    >>> x = draw_band_limited(2000, 3, generator=0)
    >>> share = float((x.norm(dim=1) <= 1).double().mean())
    >>> abs(share - float(length_distribution(torch.ones(1), 3))) < 0.04
    True
    """
    whole_number(count, "count", least=1)
    whole_number(dimension, "dimension", least=1)
    source = as_generator(generator)
    half = dimension / 2

    def density(z: Tensor) -> Tensor:
        values = dimension * special.jv(half, z.numpy()) ** 2 / z.numpy()
        return torch.as_tensor(values)

    # the first maximum of z J² is its largest; the margin covers the spacing of the grid
    grid = torch.linspace(1e-3, 3 * half + 30, 20_001, dtype=torch.float64)
    values = density(grid)
    top = 1.01 * float(values.max())
    tail = 1.01 * float((values * grid.square()).max())
    corner = math.sqrt(tail / top)
    found: list[Tensor] = []
    have = 0
    while have < count:
        u = torch.rand(3, 4 * count + 100, generator=source, dtype=torch.float64)
        # half of the envelope's mass is below its corner
        z = torch.where(u[0] < 0.5, corner * u[1], corner / u[1].clamp(min=1e-300))
        z = z.clamp(min=1e-12, max=1e15)
        envelope = torch.minimum(torch.full_like(z, top), tail / z.square())
        kept = z[u[2] * envelope <= density(z)]
        found.append(kept)
        have += len(kept)
    lengths = torch.cat(found)[:count] / (2 * math.pi * unit_volume_radius(dimension))
    direction = gaussian(count, dimension, generator=source, dtype=torch.float64)
    unit: Tensor = direction / direction.norm(dim=1, keepdim=True)
    return lengths[:, None] * unit


def sphere_tube_share(dimension: int, ratio: float) -> float:
    r"""The share of a sphere of radius $\rho$ within distance $r$ of a line through 0.

    For $\rho/r\ge1$ it is $I_{(r/\rho)^2}(\frac{d-1}2,\frac12)$: the squared distance
    of a uniform point from the line, over $\rho^2$, is
    $\mathrm{Beta}(\frac{d-1}2,\frac12)$.

    >>> round(sphere_tube_share(2, 2.0), 6), round(sphere_tube_share(3, 2.0), 6)
    (0.333333, 0.133975)
    """
    whole_number(dimension, "dimension", least=2)
    if not (math.isfinite(ratio) and ratio >= 1):
        raise InvalidInput(f"ratio = ρ/r must be a number >= 1, not {ratio!r}")
    return float(special.betainc((dimension - 1) / 2, 0.5, 1 / ratio**2))
