r"""Barron's networks in the sup norm: the rate $n^{-1/2}$ again, times a power of the dimension.

A network of $n$ steps drawn as the proof of Barron's theorem draws them is, point by point, a mean
of $n$ independent values, and the points of a set are told apart only by the half-spaces of
$\mathbb R^d$, a class of dimension $d+1$. Hence
$\mathbb E\sup_x|f-f_n|=O(C_f\sqrt{d/n})$. A supremum over a ball in many dimensions is no matter
of looking at points. For a sum of plane waves along the axes the error of the network is a sum of
functions of one coordinate each,

$$
f_n(x)-f(x)=\sum_jD_j(x_j),
$$

and its supremum is found exactly over the cube, where every coordinate has its own maximum, and
between two close numbers over the ball, where the coordinates share $\sum_jx_j^2\le r^2$. Source:
The Modern Mathematics of Deep Learning, section 1.4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.approximation.barron.sampled_networks import Steps
from torchtheory.approximation.barron.spectra import PlaneWaves
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch


class SupOverSets(NamedTuple):
    """The supremum over the cube, and what is known of it over the ball inside."""

    cube: float
    ball_low: float
    ball_high: float


def additive_waves(dimension: int) -> PlaneWaves:
    r"""$f(x)=\frac1d\sum_j\sin x_j$, with $C_f=1$ in every dimension.

    >>> additive_waves(7).barron_constant
    1.0
    """
    whole_number(dimension, "dimension", least=1)
    return PlaneWaves(
        torch.full((dimension,), 1 / dimension, dtype=torch.float64),
        torch.eye(dimension, dtype=torch.float64),
        torch.full((dimension,), -math.pi / 2, dtype=torch.float64),
    )


def additive_sup_error(
    steps: Steps, target: PlaneWaves, radius: float = 1.0, *, parts: int = 256
) -> SupOverSets:
    r"""$\sup|f-f_n|$ over the cube $[-r,r]^d$ and over the ball of radius $r$ inside it.

    The larger of the two numbers of `additive_extremes`, whose arguments it takes.

    >>> from torchtheory.approximation.barron.sampled_networks import draw_steps
    >>> wave = additive_waves(1)
    >>> found = additive_sup_error(draw_steps(wave, 1000, generator=0), wave)
    >>> 0 < found.ball_low == found.cube < 0.2                  # a cube of one dimension is a ball
    True
    """
    sides = additive_extremes(steps, target, radius, parts=parts)
    return SupOverSets(*(max(side[k] for side in sides) for k in range(3)))


def additive_extremes(
    steps: Steps, target: PlaneWaves, radius: float = 1.0, *, parts: int = 256
) -> tuple[SupOverSets, SupOverSets]:
    r"""$\sup(f_n-f)$ and $\sup(f-f_n)$ over the cube and over the ball.

    Between two thresholds a coordinate's error $D_j$ is a constant minus a wave: its extrema are at
    the thresholds, from both sides, at the ends and where the wave turns. Over the ball the sum
    is maximized by dynamic programming over shares of $r^2$ in `parts` equal parts, which are
    further ends; rounding what a point takes up and down gives the two numbers.

    Args:
        steps: from `draw_steps` of the target.
        target: at most one plane wave along each axis.
        radius: $r$, of the set where the supremum is taken.
        parts: of $r^2$.

    Cost: $O(n\log n+d\,\text{parts}^2)$.

    >>> from torchtheory.approximation.barron.sampled_networks import draw_steps
    >>> waves = additive_waves(2)
    >>> above, _ = additive_extremes(draw_steps(waves, 100, generator=0), waves)
    >>> 0 <= above.ball_low <= above.ball_high <= above.cube
    True
    """
    positive_number(radius, "radius")
    whole_number(parts, "parts", least=2)
    frequencies = target.frequencies
    d = target.dimension
    axis_of = frequencies.abs().argmax(1)
    if bool(((frequencies != 0).sum(1) > 1).any()) or len(set(axis_of.tolist())) < len(axis_of):
        raise InvalidInput("the waves must go along the axes, at most one along each")
    if steps.directions.shape[1] != d:
        raise ShapeMismatch(
            f"steps in {steps.directions.shape[1]} dimensions and a target in {d} of them"
        )
    axes = steps.directions.abs().argmax(1)
    signs = steps.directions.gather(1, axes[:, None])[:, 0]
    weights = steps.weights / len(steps.weights)
    errors = []
    for j in range(d):
        mine = axes == j
        wave = axis_of == j
        errors.append(
            _candidates(
                signs[mine] * steps.thresholds[mine],
                signs[mine],
                weights[mine],
                float(target.amplitudes[wave].sum()),
                float(frequencies[wave, j].sum()),
                float(target.phases[wave].sum()),
                radius,
                parts,
            )
        )
    return _sup(errors, radius, parts), _sup([(at, -v) for at, v in errors], radius, parts)


def _sup(errors: list[tuple[Tensor, Tensor]], radius: float, parts: int) -> SupOverSets:
    cube = sum(float(v.max()) for _, v in errors)
    if len(errors) == 1:
        return SupOverSets(cube, cube, cube)
    low, high = (_shared(errors, radius, parts, rounded) for rounded in (torch.ceil, torch.floor))
    return SupOverSets(cube, low, min(high, cube))


def _candidates(
    places: Tensor,
    sides: Tensor,
    weights: Tensor,
    amplitude: float,
    frequency: float,
    phase: float,
    radius: float,
    parts: int,
) -> tuple[Tensor, Tensor]:
    """Points of one axis where the error may be extreme, and its values there, minus that at 0."""
    # where the share of the ball that is left to an axis ends it may be extreme as well
    shares = radius * (torch.arange(1, parts + 1).to(places) / parts).sqrt()
    ends = torch.cat([-shares, shares.new_zeros(1), shares])
    turns = places.new_zeros(0)
    if frequency:
        k = torch.arange(
            math.ceil((-abs(frequency) * radius + phase) / math.pi),
            math.floor((abs(frequency) * radius + phase) / math.pi) + 1,
        )
        turns = (math.pi * k.to(places) - phase) / frequency
        turns = turns[turns.abs() <= radius]
    inner = places[places.abs() <= radius]
    at = torch.cat([ends, turns, inner, inner])
    order = places.argsort()
    sorted_places = places[order].contiguous()
    ahead = torch.where(sides > 0, weights, 0.0)[order].cumsum(0)
    behind = torch.where(sides < 0, weights, 0.0)[order].cumsum(0)
    total = behind[-1] if len(behind) else places.new_tensor(0.0)
    zero = places.new_zeros(1)
    ahead, behind = torch.cat([zero, ahead]), torch.cat([zero, behind])
    # at a threshold itself the step is still 0; the second copy looks from its right
    right = torch.arange(len(at)) >= len(at) - len(inner)
    below = torch.searchsorted(sorted_places, at.contiguous(), right=False)
    through = torch.searchsorted(sorted_places, at.contiguous(), right=True)
    passed = torch.where(right, through, below)
    # steps that look back are on while the point is below their place
    step = ahead[passed] + total - behind[passed]
    wave = amplitude * (torch.cos(frequency * at + phase) - math.cos(phase))
    return at, step - wave


def _shared(
    sides: list[tuple[Tensor, Tensor]],
    radius: float,
    parts: int,
    rounded: Callable[[Tensor], Tensor],
) -> float:
    """The largest sum of one value per axis whose squared places fit into the squared radius."""
    best = torch.zeros(parts + 1, dtype=torch.float64)
    unreached = torch.full((parts,), -math.inf, dtype=torch.float64)
    for at, values in sides:
        # a place at the end of the ball costs all parts, whatever the rounding of its square
        cost = rounded((at / radius).square() * parts * (1 - 1e-12)).long().clamp(max=parts)
        reach = torch.full((parts + 1,), -math.inf, dtype=torch.float64)
        reach.scatter_reduce_(0, cost, values, "amax")
        reach = reach.cummax(0).values
        # row g of the windows ends with best[g]: all ways of spending g parts
        windows = torch.cat([unreached, best]).unfold(0, parts + 1, 1)
        best = (windows + reach.flip(0)).amax(1)
    return float(best[parts])
