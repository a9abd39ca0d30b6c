r"""Steps drawn one from every stratum: the rate of Makovoz.

A mixture of half-spaces on the unit ball of $\mathbb R^d$,

$$
f(x)=\int s(\theta,b)\,1[\theta^\top x>b]\,d\nu(\theta,b),
$$

has $d$ parameters a step. $N$ steps drawn independently err by $N^{-1/2}$ in
$L_2$, whatever $d$ is. With one step from each of $N$ cells of equal probability
and diameter of order $N^{-1/d}$ only what varies *within* a cell is left,

$$
\mathbb E\Big\|f-\frac1N\sum_iV_i\Big\|^2=\frac1{N^2}\sum_i\operatorname{Var}_iV
\lesssim\frac1N\cdot N^{-1/d},
$$

because two half-spaces at distance $\delta$ differ on a set of measure of order
$\delta$: the error is of order $N^{-1/2-1/2d}$. Source: Mathematical Aspects of Deep
Learning, Theorem 3.9 (Makovoz, 1996).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.approximation.barron.sampled_networks import Steps
from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator

#: Cells altogether; their number is a power of the dimension.
_MOST_CELLS = 1 << 22

Amplitude = Callable[[Tensor, Tensor], Tensor]


def half_spaces(u: Tensor) -> tuple[Tensor, Tensor]:
    r"""The unit cube as directions `[n, d]`, uniform on the sphere, and thresholds in [-1, 1].

    The map keeps the measure and is Lipschitz away from the poles: cells that are small in the cube
    are families of similar half-spaces. Written down for $d=1,2,3$; on the line the direction
    is 1.

    Args:
        u: `[n, d]`, between 0 and 1.

    >>> directions, thresholds = half_spaces(torch.tensor([[0.25, 0.75]]).double())
    >>> directions.round(decimals=6).abs().tolist(), thresholds.tolist()
    ([[0.0, 1.0]], [0.5])
    """
    if u.ndim != 2 or not 1 <= u.shape[1] <= 3:
        raise ShapeMismatch(
            f"half-spaces have coordinates [n, d], d = 1, 2 or 3, not {list(u.shape)}"
        )
    if not bool(((u >= 0) & (u <= 1)).all()):
        raise InvalidInput(
            "the coordinates of half-spaces lie between 0 and 1: "
            f"{first_entry(u, 'u', ~((u >= 0) & (u <= 1)))}"
        )
    thresholds = 2 * u[:, -1] - 1
    if u.shape[1] == 1:
        return torch.ones_like(u), thresholds
    angle = 2 * math.pi * u[:, 0]
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    if u.shape[1] == 2:
        return circle, thresholds
    height = 2 * u[:, 1:2] - 1  # uniform on the sphere, by Archimedes
    return torch.cat([(1 - height**2).sqrt() * circle, height], 1), thresholds


def steps_in_strata(
    amplitude: Amplitude,
    per_side: int,
    dimension: int,
    *,
    strata: bool = True,
    generator: RandomSource = None,
) -> Steps:
    r"""One step from each of $N=k^d$ cells; their mean has $f$ as expectation.

    Args:
        amplitude: $s$, from directions `[n, d]` and thresholds `[n]` to `[n]`.
        per_side: $k$.
        dimension: $d$, at most 3.
        strata: without, all $N$ are drawn from the whole.

    >>> steps = steps_in_strata(lambda theta, b: torch.ones_like(b), 50, 1, generator=0)
    >>> x = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]          # the mean is (x + 1)/2
    >>> bool(((steps(x).mean(1) - (x[:, 0] + 1) / 2).abs() <= 1 / 50).all())
    True
    """
    whole_number(per_side, "per_side", least=1)
    if whole_number(dimension, "dimension", least=1) > 3:
        raise InvalidInput(f"cells of half-spaces are written down for d <= 3, not {dimension}")
    if per_side**dimension > _MOST_CELLS:
        raise InvalidInput(f"{per_side} cells a side make more than {_MOST_CELLS} steps")
    count = per_side**dimension
    u = torch.rand(count, dimension, dtype=torch.float64, generator=as_generator(generator))
    if strata:
        side = torch.arange(per_side, dtype=torch.float64)
        corners = torch.cartesian_prod(*[side] * dimension).reshape(count, dimension)
        u = (corners + u) / per_side
    directions, thresholds = half_spaces(u)
    return Steps(directions, thresholds, amplitude(directions, thresholds))
