r"""Looking for what convexity forbids: a chord below the graph, a tangent above it, negative
curvature.

No search proves that a function is convex; one counterexample proves that it is not, and it is
returned. Source: Foundations of Deep Learning, section 5.1 and Problem 1 of section 5.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, first_entry, whole_number
from torchtheory.core.errors import EmptyData, NonFinite, ShapeMismatch
from torchtheory.core.mapping import Mapped, hessian
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.primer.differences import Function, hessian_at

_WEIGHTS = (0.1, 0.25, 0.5, 0.75, 0.9)


#: Half the length of chords along the flattest direction, relative to the size of the point.
REACH = 1e-2


@dataclass(frozen=True, slots=True)
class Chord:
    r"""Two points and what lies between them.

    Attributes:
        start, end: `[p]` each.
        weight: $\alpha$; the point between is $\alpha x+(1-\alpha)y$.
        height: $f$ there.
        chord: $\alpha f(x)+(1-\alpha)f(y)$.
        rounding: an excess up to this may be rounding.
    """

    start: Tensor
    end: Tensor
    weight: float
    height: float
    chord: float
    rounding: float

    @property
    def excess(self) -> float:
        """How far the graph is above the chord; positive contradicts convexity."""
        return self.height - self.chord

    @property
    def between(self) -> Tensor:
        """The point between, `[p]`."""
        return self.weight * self.start + (1 - self.weight) * self.end


@dataclass(frozen=True, slots=True)
class ConvexityProbe:
    """What a search for non-convexity came to.

    Attributes:
        worst: the chord with the largest excess, beyond its rounding, that was met.
        tangent_excess: the largest amount by which a tangent lies above the graph.
        smallest_curvature: the smallest second derivative along a direction that was met.
        tried: number of points on chords that were looked at.
    """

    worst: Chord
    tangent_excess: float
    smallest_curvature: float
    tried: int

    @property
    def violated(self) -> bool:
        """Whether a chord was found that lies below the graph."""
        return self.worst.excess > self.worst.rounding

    @property
    def counterexample(self) -> Chord | None:
        """That chord, or None where no violation was found, which is no proof of convexity."""
        return self.worst if self.violated else None

    def __str__(self) -> str:
        if self.violated:
            return (
                f"Not convex: at {self.worst.weight:.3g} of a segment the function is "
                f"{self.worst.height:.6g}, its chord {self.worst.chord:.6g}."
            )
        return (
            f"No violation of convexity in {self.tried:,} points on chords; that is no proof of it."
        )


def probe_convexity(
    function: Function,
    points: Tensor,
    *,
    pairs: int = 1000,
    curvature_points: int = 10,
    generator: RandomSource = None,
) -> ConvexityProbe:
    r"""Search for $f(\alpha x+(1-\alpha)y)>\alpha f(x)+(1-\alpha)f(y)$.

    First over random pairs of the points. Then, at some of the points, along the direction of
    smallest curvature: if the Hessian has a negative eigenvalue, the short chord across the point
    in that direction lies below the graph, and random pairs rarely show it in many dimensions.

    Args:
        function: of `[p]`, one value, twice differentiable for the second search. For a network,
            `objective_of(problem)` gives it.
        points: `[n, p]`, from the domain, which has to be convex itself.
        pairs: how many random pairs, with five points on each chord.
        curvature_points: at how many points to look at the Hessian (dense up to 200 parameters,
            by Lanczos above); 0 for none. Half a chord there is at most `REACH` times the size of
            the point (at least 1).
        generator: seed or generator of the pairs.

    >>> grid = torch.linspace(-2, 2, 9).double()[:, None]
    >>> print(probe_convexity(lambda x: (x**4).sum(), grid))
    No violation of convexity in 5,027 points on chords; that is no proof of it.
    >>> found = probe_convexity(lambda x: (x**4 - x**2).sum(), grid)
    >>> found.violated, found.smallest_curvature
    (True, -2.0)
    """
    points = as_matrix(points, "the points")
    if len(points) < 2:
        raise EmptyData(f"a chord needs at least two points, not {list(points.shape)}")
    whole_number(pairs, "pairs", least=1)
    whole_number(curvature_points, "curvature_points", least=0)
    random = as_generator(generator)
    values = Mapped(function)
    first, second = torch.randint(len(points), (2, pairs), generator=random)
    second = torch.where(first == second, (second + 1) % len(points), second)
    found, tangents = [], []
    for a, b in zip(*(i.split(max(1, 2**22 // points.shape[1])) for i in (first, second)),
                    strict=True):  # fmt: skip
        found.append(_worst_chord(values, points[a], points[b]))
        tangents.append(tangent_excess(function, points[a], points[b]).max())
    smallest = float("inf")
    for x in points[:curvature_points]:
        eigenvalue, vector = _flattest(function, x)
        smallest = min(smallest, eigenvalue)
        lengths = REACH * max(1.0, float(x.norm())) * torch.tensor([0.01, 0.1, 1.0])
        across = lengths.to(x)[:, None] * vector
        found.append(_worst_chord(values, x - across, x + across, weights=(0.5,)))
    worst = max(found, key=lambda c: c.excess - c.rounding)
    tried = pairs * len(_WEIGHTS) + 3 * min(curvature_points, len(points))
    return ConvexityProbe(worst, float(torch.stack(tangents).max()), smallest, tried)


def _flattest(function: Function, x: Tensor) -> tuple[float, Tensor]:
    """The smallest eigenvalue of the Hessian at a point, and its vector."""
    if len(x) <= 200:
        eigenvalues, vectors = torch.linalg.eigh(hessian(function)(x))
        return float(eigenvalues[0]), vectors[:, 0]
    pair = top_eigenpairs(hessian_at(function, x), which="smallest", tolerance=1e-4)
    return float(pair.values[0]), pair.vectors[:, 0]


def tangent_excess(function: Function, x: Tensor, y: Tensor) -> Tensor:
    r"""$f(x)+\nabla f(x)^\top(y-x)-f(y)$: how far the tangent at $x$ is above
    $f(y)$.

    At most 0 everywhere if and only if a differentiable function is convex; at most
    $-\frac\mu2\|x-y\|^2$ if it is $\mu$-strongly convex; and of size at most
    $\frac L2\|x-y\|^2$ if it is $L$-smooth.

    Args:
        function: of `[p]`, one value.
        x, y: `[n, p]` each.

    Returns:
        `[n]`.

    >>> tangent_excess(lambda x: (x**2).sum(), torch.zeros(1, 1), torch.ones(1, 1))
    tensor([-1.])
    """
    x, y = as_matrix(x, "x"), as_matrix(y, "y")
    if x.shape != y.shape:
        raise ShapeMismatch(f"x {list(x.shape)} and y {list(y.shape)} must have one shape")
    slopes, heights = Mapped(torch.func.grad_and_value(function))(x)
    excess: Tensor = heights + (slopes * (y - x)).sum(1) - Mapped(function)(y)
    return excess


def probe_convex_set(
    contains: Callable[[Tensor], Tensor],
    points: Tensor,
    *,
    pairs: int = 1000,
    generator: RandomSource = None,
) -> tuple[Tensor, Tensor, float] | None:
    r"""Search for two points of a set with a point between them outside.

    Args:
        contains: from `[n, p]` to `[n]` of bool.
        points: `[n, p]`; those outside the set are left out.
        pairs: how many random pairs, with five points between.
        generator: seed or generator.

    Returns:
        Both points and the weight of the first, or None where nothing was found.

    >>> ring = lambda x: (x.norm(dim=1) - 1).abs() < 0.1
    >>> x, y, weight = probe_convex_set(ring, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> bool(ring((weight * x + (1 - weight) * y)[None]))
    False
    """
    points = as_matrix(points, "the points")
    inside = points[contains(points)]
    if len(inside) < 2:
        raise EmptyData(f"fewer than two of the points lie in the set: {len(inside)} of them")
    first, second = torch.randint(len(inside), (2, pairs), generator=as_generator(generator))
    x, y = inside[first], inside[second]
    for weight in _WEIGHTS:
        outside = ~contains(weight * x + (1 - weight) * y)
        if bool(outside.any()):
            at = int(outside.int().argmax())
            return x[at], y[at], weight
    return None


def _worst_chord(
    values: Function, x: Tensor, y: Tensor, weights: Sequence[float] = _WEIGHTS
) -> Chord:
    here, there = values(x), values(y)
    if here.ndim != 1:
        raise ShapeMismatch(f"the function must give one value per point, not {list(here.shape)}")
    best: Chord | None = None
    unit = 100 * torch.finfo(x.dtype).eps
    for weight in weights:
        heights = values(weight * x + (1 - weight) * y)
        chords = weight * here + (1 - weight) * there
        excess = heights - chords
        if not bool(torch.isfinite(excess).all()):
            raise NonFinite(
                "the function is NaN or infinite on a chord: "
                f"{first_entry(excess, 'the value', ~torch.isfinite(excess))}"
            )
        rounding = unit * heights.abs().maximum(chords.abs()).clamp_min(1.0)
        at = int((excess - rounding).argmax())
        if best is None or float(excess[at] - rounding[at]) > best.excess - best.rounding:
            best = Chord(
                x[at], y[at], weight, float(heights[at]), float(chords[at]), float(rounding[at])
            )
    assert best is not None
    return best
