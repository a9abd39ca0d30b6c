r"""Kolmogorov's superpositions: functions of many variables from functions of one and addition.

.. math:: f(x)=\sum_{i=1}^{2d+1}g\Bigl(\sum_{j=1}^dk_j\phi_i(x_j)\Bigr)

with increasing :math:`\phi_i:[0,1]\to[0,1]` and weights :math:`k_j>0`, :math:`\sum_jk_j\le1`, that
do not depend on :math:`f`. Here is the step that the proof repeats: inner functions that are
nearly constant on intervals, such that every point is inside an interval for most of the
:math:`i`, and an outer function that reads off the cube a point lies in. Source: Mathematical
Aspects of Deep Learning, section 3.3, Eq. (3.2); the step is Lorentz's, with the lexicographic
weights of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Box, values_of
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.nets.labelled import at_least, positive

#: More knots of the outer function than this do not fit.
MOST_KNOTS = 1 << 23


class Superposition(nn.Module):
    r""":math:`\sum_ig(\sum_jk_j\phi_i(x_j))` with broken lines :math:`\phi_i` and :math:`g`.

    As a network: :math:`d(2d+1)` units in the first hidden layer, :math:`2d+1` in the second, each
    with an activation of its own.

    Args:
        inner_knots, inner_values: ``[2d + 1, p]``, the broken lines :math:`\phi_i`.
        weights: ``[d]``, the :math:`k_j`.
        outer_knots, outer_values: ``[q]``, the broken line :math:`g`.

    >>> line = torch.tensor([[0.0, 1.0]]).double().expand(3, 2)
    >>> g = torch.tensor([0.0, 1.0]).double()
    >>> net = Superposition(line, line, torch.ones(1).double(), g, g)
    >>> net(torch.tensor([[0.25]]).double()).item()
    0.75
    """

    def __init__(
        self,
        inner_knots: Tensor,
        inner_values: Tensor,
        weights: Tensor,
        outer_knots: Tensor,
        outer_values: Tensor,
    ) -> None:
        super().__init__()
        d = len(weights)
        if weights.ndim != 1 or inner_knots.ndim != 2 or len(inner_knots) != 2 * d + 1:
            raise ShapeMismatch(
                f"{d} weights go with {2 * d + 1} inner functions [{2 * d + 1}, p], "
                f"not {list(inner_knots.shape)}"
            )
        if inner_values.shape != inner_knots.shape or outer_values.shape != outer_knots.shape:
            raise ShapeMismatch("every knot of a broken line has one value")
        if not bool((inner_knots.diff(dim=1) > 0).all() & (outer_knots.diff() > 0).all()):
            raise InvalidInput("the knots of a broken line increase")
        self.inner_knots, self.inner_values, self.weights = inner_knots, inner_values, weights
        self.outer_knots, self.outer_values = outer_knots, outer_values

    @property
    def hidden_units(self) -> tuple[int, int]:
        """Units of the two hidden layers of the network."""
        return self.inner_knots.shape[0] * len(self.weights), self.inner_knots.shape[0]

    def inner(self, t: Tensor) -> Tensor:
        r""":math:`\phi_i(t)` for ``t[n]``: ``[2d + 1, n]``."""
        return torch.stack(
            [
                broken_line(knots, values, t)
                for knots, values in zip(self.inner_knots, self.inner_values, strict=True)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != len(self.weights):
            raise ShapeMismatch(f"x must be [n, {len(self.weights)}], not {list(x.shape)}")
        sums = sum(k * self.inner(x[:, j]) for j, k in enumerate(self.weights))
        assert isinstance(sums, Tensor)
        return broken_line(self.outer_knots, self.outer_values, sums).sum(0)


def broken_line(knots: Tensor, values: Tensor, t: Tensor) -> Tensor:
    """The broken line through ``(knots[p], values[p])`` at ``t``, constant beyond its ends.

    >>> ends = torch.tensor([0.0, 1.0])
    >>> broken_line(ends, 2 * ends, torch.tensor([0.25, 5.0])).tolist()
    [0.5, 2.0]
    """
    t = t.clamp(float(knots[0]), float(knots[-1]))
    right = torch.searchsorted(knots, t.contiguous(), right=True).clamp(1, len(knots) - 1)
    low, high = knots[right - 1], knots[right]
    share = (t - low) / (high - low)
    made: Tensor = values[right - 1] * (1 - share) + values[right] * share
    return made


@dataclass(frozen=True, slots=True)
class InnerFunctions:
    r"""The inner functions of one scale; they serve every :math:`f`.

    Attributes:
        knots, values: ``[2d + 1, 2(N + 1)]``: two knots for each of :math:`N+1` plateaus.
        weights: ``[d]``.
        images: ``[2d + 1, (N + 1)^d]``, the least :math:`\sum_jk_j\phi_i` on every cube.
        rise: how far it rises on a cube.
        centres: ``[2d + 1, (N + 1)^d, d]`` of the cubes.
    """

    knots: Tensor
    values: Tensor
    weights: Tensor
    images: Tensor
    rise: float
    centres: Tensor

    @property
    def gap(self) -> float:
        """The least distance of the images of two cubes; positive: a cube is known by its image."""
        return float(self.images.flatten().sort().values.diff().min()) - self.rise


def inner_functions(dimension: int, cells: int, *, separated: bool = True) -> InnerFunctions:
    r"""Functions :math:`\phi_i` that are nearly constant on :math:`N` intervals out of step.

    Each of the :math:`N` cells of :math:`[0,1]` has :math:`2d+1` parts, and :math:`\phi_i` climbs
    on the :math:`i`-th of them and is nearly flat on the others, so that every :math:`t` is on a
    slope of exactly one :math:`\phi_i`. The weights :math:`k_j\sim\delta^{j-1}` order the cubes as
    a dictionary does, and no two cubes of any :math:`i` have values in common.

    Args:
        dimension: :math:`d\ge2`.
        cells: :math:`N`.
        separated: with equal weights instead, different cubes have the same values.

    >>> inner_functions(2, 4).gap > 0, inner_functions(2, 4, separated=False).gap > 0
    (True, False)
    """
    d, n = at_least(dimension, 2, "dimension"), at_least(cells, 1, "cells")
    families = 2 * d + 1
    if 2 * families * (n + 1) ** d > MOST_KNOTS:
        raise InvalidInput(f"{n} cells in {d} dimensions are too many cubes")
    i = torch.arange(families, dtype=torch.float64)[:, None]
    a = torch.arange(n + 1, dtype=torch.float64)
    start, end = (a - 1 + (i + 1) / families) / n, (a + i / families) / n
    spacing = 1 / (families * (n + 1))
    flat = (a * families + i) * spacing
    delta = spacing / 3 if separated else 1.0
    powers = delta ** torch.arange(d, dtype=torch.float64)
    weights = powers / powers.sum()
    slope = 1e-3 * (spacing / 3) ** (d - 1) * spacing
    knots = torch.stack([start, end], dim=2).reshape(families, -1)
    values = torch.stack([flat, flat + slope], dim=2).reshape(families, -1)
    cubes = torch.cartesian_prod(*[torch.arange(n + 1)] * d)
    middle = ((start.clamp(0, 1) + end.clamp(0, 1)) / 2)[:, cubes]
    images = (flat[:, cubes] * weights).sum(-1)
    return InnerFunctions(knots, values, weights, images, float(slope * weights.sum()), middle)


@dataclass(frozen=True, slots=True)
class SuperpositionStep:
    r"""One step of the proof: a superposition that takes most of a function away.

    Attributes:
        network: the superposition :math:`S`.
        bound: the promised :math:`\sup_{[0,1]^d}|f-S|`.
        contraction: :math:`\theta=(d-1)/(d+2)`; the bound tends to :math:`\theta\sup|f|`.
        domain: the unit cube.
    """

    network: Superposition
    bound: float
    contraction: float
    domain: Box


def superposition_step(
    function: Callable[[Tensor], Tensor],
    dimension: int,
    cells: int,
    *,
    lipschitz: float = math.inf,
    largest: float = math.inf,
) -> SuperpositionStep:
    r"""The outer function for given inner ones: :math:`g=f(\text{centre})/(d+2)` on each cube.

    A point lies on a slope in one of its first :math:`d-1` coordinates for between one and
    :math:`d-1` of the :math:`2d+1` functions; for the others :math:`g` reads a value of
    :math:`f` not further away than :math:`r=\sqrt d\,(d+1)/((2d+1)N)`. So

    .. math:: |f-S|\le\frac{d-1}{d+2}\sup|f|+\frac{2d}{d+2}\,L\,r.

    Repeating it on :math:`f-S` at finer scales makes the sum converge to :math:`f`.

    Args:
        function: :math:`f`, from ``[n, d]`` to ``[n]``.
        cells: :math:`N`.
        lipschitz: :math:`L` of :math:`f`; without it no bound is promised.
        largest: :math:`\sup|f|`.

    >>> made = superposition_step(lambda x: x.sum(1), 2, 8, lipschitz=2**0.5, largest=2.0)
    >>> made.network.hidden_units, made.contraction
    ((10, 5), 0.25)
    """
    inner = inner_functions(dimension, cells)
    d = dimension
    if lipschitz < math.inf:
        positive(lipschitz, "lipschitz")
    flat_centres = inner.centres.reshape(-1, d)
    heights = values_of(function, flat_centres) / (d + 2)
    images, order = inner.images.flatten().sort()
    knots = torch.stack([images, images + inner.rise], dim=1).flatten()
    values = heights[order].repeat_interleave(2)
    reach = math.sqrt(d) * (d + 1) / ((2 * d + 1) * cells)
    theta = (d - 1) / (d + 2)
    bound = theta * largest + 2 * d / (d + 2) * lipschitz * reach
    network = Superposition(inner.knots, inner.values, inner.weights, knots, values)
    return SuperpositionStep(network, bound, theta, ((0.0, 1.0),) * d)
