r"""Kolmogorov's superpositions: functions of many variables from functions of one and addition.

$$
f(x)=\sum_{i=1}^{2d+1}g\Bigl(\sum_{j=1}^dk_j\phi_i(x_j)\Bigr)
$$

with increasing $\phi_i:[0,1]\to[0,1]$ and weights $k_j>0$, $\sum_jk_j\le1$, that
do not depend on $f$. Here is the step that the proof repeats: inner functions that are
nearly constant on intervals, such that every point is inside an interval for most of the
$i$, and an outer function that reads off the cube a point lies in; and two steps in one, with
inner functions that are nearly constant on the intervals of two scales. The theorem goes on to
infinitely many scales; the images of the cubes of a third are closer to each other than double
precision can tell. A given tolerance is reached with more inner functions instead: a point is on
a slope of a smaller part of them. Source: Mathematical Aspects of Deep Learning, section 3.3,
Eq. (3.2); the step is Lorentz's, with the weights of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Box
from torchtheory.approximation.targets import values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch

#: More knots of the outer function than this do not fit.
MOST_KNOTS = 1 << 23

_EPS = 2.0**-52
_KEPT = 1e-3  # part of a tolerance that is kept for rounding


class Superposition(nn.Module):
    r"""$\sum_ig(\sum_jk_j\phi_i(x_j))$ with broken lines $\phi_i$ and $g$.

    As a network: $d(2d+1)$ units in the first hidden layer, $2d+1$ in the second, each
    with an activation of its own. More inner functions than $2d+1$ may be given.

    Args:
        inner_knots, inner_values: `[2d + 1, p]`, the broken lines $\phi_i$.
        weights: `[d]`, the $k_j$.
        outer_knots, outer_values: `[q]`, the broken line $g$.

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
        if weights.ndim != 1 or inner_knots.ndim != 2 or len(inner_knots) < 2 * d + 1:
            raise ShapeMismatch(
                f"{d} weights go with {2 * d + 1} or more inner functions [{2 * d + 1}, p], "
                f"not {list(inner_knots.shape)}"
            )
        if inner_values.shape != inner_knots.shape or outer_values.shape != outer_knots.shape:
            raise ShapeMismatch(
                "every knot of a broken line has one value (inner_values is "
                f"{list(inner_values.shape)}, inner_knots is {list(inner_knots.shape)}, "
                f"outer_values is {list(outer_values.shape)}, outer_knots is "
                f"{list(outer_knots.shape)})"
            )
        if not bool((inner_knots.diff(dim=1) > 0).all() & (outer_knots.diff() > 0).all()):
            raise InvalidInput("the knots of a broken line increase")
        self.inner_knots, self.inner_values, self.weights = inner_knots, inner_values, weights
        self.outer_knots, self.outer_values = outer_knots, outer_values

    @property
    def hidden_units(self) -> tuple[int, int]:
        """Units of the two hidden layers of the network."""
        return self.inner_knots.shape[0] * len(self.weights), self.inner_knots.shape[0]

    def inner(self, t: Tensor) -> Tensor:
        r"""$\phi_i(t)$ for `t[n]`: `[2d + 1, n]`."""
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
    """The broken line through `(knots[p], values[p])` at `t`, constant beyond its ends.

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
    r"""The inner functions of one scale; they serve every $f$.

    Attributes:
        knots, values: `[K, 2(N + 1)]`: two knots for each of $N+1$ plateaus.
        weights: `[d]`.
        images: `[K, (N + 1)^d]`, the least $\sum_jk_j\phi_i$ on every cube.
        rise: how far it rises on a cube.
        centers: `[K, (N + 1)^d, d]` of the cubes.
    """

    knots: Tensor
    values: Tensor
    weights: Tensor
    images: Tensor
    rise: float
    centers: Tensor

    @property
    def gap(self) -> float:
        """The least distance of the images of two cubes; positive: a cube is known by its image."""
        return float(self.images.flatten().sort().values.diff().min()) - self.rise


def inner_functions(
    dimension: int, cells: int, *, functions: int | None = None, separated: bool = True
) -> InnerFunctions:
    r"""Functions $\phi_i$ that are nearly constant on $N$ intervals out of step.

    Each of the $N$ cells of $[0,1]$ has $K=2d+1$ parts, and $\phi_i$ climbs
    on the $i$-th of them and is nearly flat on the others, so that every $t$ is on a
    slope of exactly one $\phi_i$. The weights $k_j\sim\delta^{j-1}$ order the cubes as
    a dictionary does, and no two cubes of any $i$ have values in common.

    Args:
        dimension: $d\ge2$.
        cells: $N$.
        functions: $K\ge2d+1$; the least unless given.
        separated: with equal weights instead, different cubes have the same values.

    >>> inner_functions(2, 4).gap > 0, inner_functions(2, 4, separated=False).gap > 0
    (True, False)
    """
    d, n = whole_number(dimension, "dimension", least=2), whole_number(cells, "cells", least=1)
    families = whole_number(functions or 2 * d + 1, "functions", least=2 * d + 1)
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
        network: the superposition $S$.
        bound: the promised $\sup_{[0,1]^d}|f-S|$.
        contraction: $\theta=(d-1)/(K-d+1)$; the bound tends to $\theta\sup|f|$.
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
    functions: int | None = None,
) -> SuperpositionStep:
    r"""The outer function for given inner ones: $g=f(\text{center})/(K-d+1)$ on each cube.

    A point lies on a slope in one of its first $d-1$ coordinates for between one and
    $d-1$ of the $K=2d+1$ functions; for the others $g$ reads a value of
    $f$ not further away than $r=\sqrt d\,(K+1)/(2KN)$. So

    $$
    |f-S|\le\frac{d-1}{K-d+1}\sup|f|+\frac{K-1}{K-d+1}\,L\,r,
    $$

    and $\frac{d-1}{d+2}\sup|f|$ stays for $2d+1$ functions. Repeating it on $f-S$ at finer scales
    makes the sum converge to $f$. What rounding of the images can do is added to the bound.

    Args:
        function: $f$, from `[n, d]` to `[n]`.
        cells: $N$.
        lipschitz: $L$ of $f$; without it no bound is promised.
        largest: $\sup|f|$.
        functions: $K$.

    >>> made = superposition_step(lambda x: x.sum(1), 2, 8, lipschitz=2**0.5, largest=2.0)
    >>> made.network.hidden_units, made.contraction
    ((10, 5), 0.25)
    """
    inner = inner_functions(dimension, cells, functions=functions)
    d, families = dimension, len(inner.knots)
    if lipschitz < math.inf:
        positive_number(lipschitz, "lipschitz")
    knots, values = _outer_function(inner, values_of(function, inner.centers.reshape(-1, d)))
    # off by a few units in the last place, a sum is read that far up the way to the next cube
    share = min(1.0, 16 * _EPS / inner.gap)
    rounding = 2 * families / (families - d + 1) * share * largest
    bound = rounding + _step_bound(d, families, cells, lipschitz, largest)
    network = Superposition(inner.knots, inner.values, inner.weights, knots, values)
    theta = (d - 1) / (families - d + 1)
    return SuperpositionStep(network, bound, theta, ((0.0, 1.0),) * d)


def _step_bound(d: int, families: int, cells: int, lipschitz: float, largest: float) -> float:
    reach = math.sqrt(d) * (families + 1) / (2 * families * cells)
    return ((d - 1) * largest + (families - 1) * lipschitz * reach) / (families - d + 1)


def fit_superposition(
    function: Callable[[Tensor], Tensor],
    dimension: int,
    tolerance: float,
    *,
    lipschitz: float,
    largest: float,
) -> SuperpositionStep:
    r"""A superposition within a tolerance of $f$ on the cube, or a refusal that says what it takes.

    With $K$ inner functions in the place of $2d+1$ a point is on a slope of at most $d-1$ of many,
    and one step leaves $\frac{d-1}{K-d+1}\sup|f|$ and what the cells are too coarse for: so
    both are made small together, with the fewest knots of the outer function. The inner functions
    depend on $K$ and the cells, and on nothing else of $f$. (With $2d+1$ of them the tolerance
    takes finer and finer scales; `two_scale_superposition` has as many as double precision.)

    Args:
        function: $f$, from `[n, d]` to `[n]`.
        tolerance: of $\sup_{[0,1]^d}|f-S|$, at most the bound of the result.
        lipschitz: $L$ of $f$, in the Euclidean norm.
        largest: $\sup|f|$.

    Time and memory $O(K(N+1)^d)$, where $K$ and $N$ grow as one over the tolerance.

    >>> made = fit_superposition(lambda x: x.prod(1), 2, 0.1, lipschitz=2**0.5, largest=1.0)
    >>> x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> bool((made.network(x) - x.prod(1)).abs().max() <= made.bound), made.bound <= 0.1
    (True, True)
    >>> fit_superposition(lambda x: x.prod(1), 2, 1e-3, lipschitz=2**0.5, largest=1.0)
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: a tolerance of 0.001 takes ... inner functions of ...
    """
    d = whole_number(dimension, "dimension", least=2)
    positive_number(tolerance, "tolerance")
    positive_number(lipschitz, "lipschitz")
    positive_number(largest, "largest")
    wanted = tolerance * (1 - _KEPT)
    families, cells = _cheapest(d, wanted, lipschitz, largest)
    if 2 * families * (cells + 1) ** d > MOST_KNOTS:
        least = tolerance
        while _knots(d, *_cheapest(d, least * (1 - _KEPT), lipschitz, largest)) > MOST_KNOTS:
            least *= 1.05
        raise InvalidInput(
            f"a tolerance of {tolerance:g} takes {families} inner functions of {cells} cells and "
            f"{_knots(d, families, cells):,} knots of the outer one, more than {MOST_KNOTS:,}: for "
            f"these constants {least:.2g} can be had"
        )
    made = superposition_step(
        function, d, cells, lipschitz=lipschitz, largest=largest, functions=families
    )
    if made.bound > tolerance:
        raise InvalidInput(
            f"double precision does not tell the cubes of {cells} cells apart well enough for a "
            f"tolerance of {tolerance:g}: the bound is {made.bound:.3g}"
        )
    return made


def _knots(d: int, families: int, cells: int) -> int:
    count: int = 2 * families * (cells + 1) ** d
    return count


def _cheapest(d: int, tolerance: float, lipschitz: float, largest: float) -> tuple[int, int]:
    """The number of functions and of cells with a bound in the tolerance and the fewest knots."""
    least = max(2 * d + 1, math.floor((d - 1) * (largest / tolerance + 1)) + 1)
    found = []
    for families in sorted({math.ceil(least * (1 + k / 50)) for k in range(400)}):
        left = tolerance * (families - d + 1) - (d - 1) * largest
        if left > 0:
            slope = (families - 1) * lipschitz * math.sqrt(d) * (families + 1) / (2 * families)
            found.append((families, math.ceil(slope / left)))
    return min(found, key=lambda pair: _knots(d, *pair))


def _outer_function(inner: InnerFunctions, heights: Tensor) -> tuple[Tensor, Tensor]:
    """The broken line that is the cube's height over K - d + 1 on the image of every cube."""
    images, order = inner.images.flatten().sort()
    knots = torch.stack([images, images + inner.rise], dim=1).flatten()
    shares = len(inner.knots) - len(inner.weights) + 1
    return knots, (heights / shares)[order].repeat_interleave(2)


def nested_inner_functions(cells: int, refinement: int) -> tuple[InnerFunctions, InnerFunctions]:
    r"""Functions of the plane's coordinates that are nearly constant on two scales at once.

    The coarse scale has $N$ cells and the fine one $5Nm$. On a plateau of the coarse
    scale $\phi_i$ takes equal small steps, one for each fine plateau; on a slope it takes
    steps of irregular height. The weights have the ratio $P/Q$ with $Q>4m$, so that two
    pairs of small steps never have the same sum.

    Args:
        cells: $N$.
        refinement: $m$.

    Returns:
        the coarse and the fine scale: the same knots, values and weights, other cubes.

    >>> coarse, fine = nested_inner_functions(2, 6)
    >>> coarse.values is fine.values, coarse.gap > 0, fine.gap > 0
    (True, True, True)
    """
    n, m = whole_number(cells, "cells", least=1), whole_number(refinement, "refinement", least=2)
    families, fine = 5, 5 * n * m
    if 2 * families * (fine + 1) ** 2 > MOST_KNOTS:
        raise InvalidInput(f"{fine} cells of the fine scale are too many cubes")
    spacing, modulus = 1 / (families * (n + 1)), 4 * m + 3
    share = max(1, round(modulus * spacing / 3))
    while math.gcd(share, modulus) > 1:
        share += 1
    ratio = share / modulus
    climb = ratio * spacing / 3  # on a coarse plateau, less than what tells two coarse cubes apart
    weights = torch.tensor([1.0, ratio], dtype=torch.float64) / (1 + ratio)
    i = torch.arange(families, dtype=torch.float64)[:, None]
    b = torch.arange(fine + 1, dtype=torch.float64)
    plateau = torch.floor((b - (i + 1) * m) / (families * m)) + 1
    inside = b - (i + 1) * m - (plateau - 1) * families * m
    base = (plateau * families + i) * spacing
    # the golden ratio spreads the irregular heights evenly
    irregular = 0.3 * ((i * len(b) + b) * (math.sqrt(5) - 1) / 2 % 1 - 0.5)
    steep = base + climb + (inside - 4 * m + irregular) / m * (families * spacing - climb)
    flat = torch.where(inside <= 4 * m, base + climb * inside / (4 * m), steep)
    images = flat[:, :, None] * weights[0] + flat[:, None, :] * weights[1]
    apart = float(images.flatten().sort().values.diff().min())
    if apart < 1e-13:
        raise InvalidInput(f"double precision does not tell the cubes of {fine} cells apart")
    rise = apart / 10
    start, end = (b - 1 + (i + 1) / families) / fine, (b + i / families) / fine
    knots = torch.stack([start, end], dim=2).reshape(families, -1)
    values = torch.stack([flat, flat + rise], dim=2).reshape(families, -1)
    a = torch.arange(n + 1, dtype=torch.float64)
    low = (a * families + i) * spacing
    coarse_images = low[:, :, None] * weights[0] + low[:, None, :] * weights[1]
    coarse_centers = _centers((a - 1 + (i + 1) / families) / n, (a + i / families) / n)
    return (
        InnerFunctions(
            knots, values, weights, coarse_images.flatten(1), climb + rise, coarse_centers
        ),
        InnerFunctions(knots, values, weights, images.flatten(1), rise, _centers(start, end)),
    )


def _centers(start: Tensor, end: Tensor) -> Tensor:
    """The centers of the squares of plateaus, `[families, plateaus², 2]`."""
    middle = (start.clamp(0, 1) + end.clamp(0, 1)) / 2
    pairs = torch.cartesian_prod(torch.arange(start.shape[1]), torch.arange(start.shape[1]))
    return middle[:, pairs]


def two_scale_superposition(
    function: Callable[[Tensor], Tensor], cells: int, refinement: int
) -> tuple[Superposition, Superposition]:
    r"""Two steps of the proof in one superposition of functions of the plane's coordinates.

    The outer function is $g=g_1+g_2$: $g_1$ reads $f$ off the coarse cubes, and
    $g_2$ what is left of it off the fine ones, with the inner functions and weights of
    `nested_inner_functions` for both. Time and memory $O((5Nm)^2)$.

    Args:
        function: $f$, from `[n, 2]` to `[n]`.
        cells: $N$.
        refinement: $m$; the fine scale has $5Nm$ cells.

    The second scale leaves between a fifth and a half of $\sup|f|$ and promises nothing: for a
    tolerance see `fit_superposition`.

    Returns:
        the superpositions with $g_1$ and with $g_1+g_2$.

    >>> first, both = two_scale_superposition(lambda x: x.prod(1), 1, 10)
    >>> x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> bool((both(x) - x.prod(1)).abs().mean() < (first(x) - x.prod(1)).abs().mean())
    True
    """
    coarse, fine = nested_inner_functions(cells, refinement)
    inner = coarse.knots, coarse.values, coarse.weights
    knots, values = _outer_function(coarse, values_of(function, coarse.centers.reshape(-1, 2)))
    first = Superposition(*inner, knots, values)
    places = fine.centers.reshape(-1, 2)
    left = values_of(function, places) - first(places)
    fine_knots, fine_values = _outer_function(fine, left)
    every = torch.unique(torch.cat([knots, fine_knots]))
    both = broken_line(knots, values, every) + broken_line(fine_knots, fine_values, every)
    return first, Superposition(*inner, every, both)
