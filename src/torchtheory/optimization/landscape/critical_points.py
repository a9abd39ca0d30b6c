r"""Stationary points: what the Hessian says about them, what a search around them adds where it is
silent, and how long it takes to leave one.

Sources: The Modern Mathematics of Deep Learning, section 1.1.2, after Theorem 1.15; Mathematical
Aspects of Deep Learning, Figure 4.1; Foundations of Deep Learning, Definitions 22-24.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.mapping import hessian
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.optimization.descent.iterates import (
    Function,
    check_start,
    gradient_of,
    last_iterate,
)

Kind = Literal["minimum", "maximum", "saddle", "degenerate", "not stationary"]
Label = Literal[
    "global minimum",
    "local minimum",
    "local maximum",
    "strict saddle",
    "degenerate saddle",
    "plateau",
    "not stationary",
]
Evidence = Literal["gradient", "Hessian", "known infimum", "search"]


#: Steps of a search for a lower point.
STEPS = 100


@dataclass(frozen=True, slots=True)
class CriticalPoint:
    """A point, its slope and its curvature.

    Attributes:
        kind: what it is, see `classify`.
        gradient_norm: 0 at a stationary point.
        eigenvalues: `[p]`, of the Hessian, ascending.
        index: how many of them are negative: the dimensions in which it falls off.
    """

    kind: Kind
    gradient_norm: float
    eigenvalues: Tensor
    index: int


def classify(smallest: float, largest: float, tolerance: float) -> Kind:
    r"""The kind of a stationary point from the two ends of its Hessian's spectrum.

    Both signs make a saddle; all positive a minimum; all negative a maximum; and where an end is
    within `tolerance` of 0 and the other does not decide, the Hessian is singular and second
    order does not tell: degenerate. For a network, see `classify_network`.

    >>> classify(-2.0, 2.0, 1e-9), classify(0.0, 2.0, 1e-9)
    ('saddle', 'degenerate')
    """
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, not {tolerance!r}")
    if math.isnan(smallest) or math.isnan(largest):
        raise NonFinite(f"an eigenvalue is NaN (smallest = {smallest!r}, largest = {largest!r})")
    if smallest > largest:
        raise InvalidInput(f"the smallest eigenvalue {smallest} exceeds the largest {largest}")
    if smallest < -tolerance and largest > tolerance:
        return "saddle"
    if smallest > tolerance:
        return "minimum"
    return "maximum" if largest < -tolerance else "degenerate"


def critical_point(function: Function, point: Tensor, tolerance: float = 1e-6) -> CriticalPoint:
    r"""Classify a point of a twice differentiable function.

    Args:
        function: of `[p]`, one value.
        point: `[p]`.
        tolerance: gradients of at most this norm count as 0, and eigenvalues of at most this
            size (relative to the largest, if that exceeds 1).

    The Hessian is dense: $O(p^2)$ memory, $O(p^3)$ time.

    >>> saddle = critical_point(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(2))
    >>> saddle.kind, saddle.index, saddle.eigenvalues.tolist()
    ('saddle', 1, [-2.0, 2.0])
    """
    slope, eigenvalues, _, small = _second_order(function, point, tolerance)
    kind: Kind = "not stationary"
    if slope <= tolerance:
        kind = classify(float(eigenvalues[0]), float(eigenvalues[-1]), small)
    return CriticalPoint(kind, slope, eigenvalues, int((eigenvalues < -small).sum()))


def _second_order(
    function: Function, point: Tensor, tolerance: float
) -> tuple[float, Tensor, Tensor, float]:
    """Norm of the gradient, eigenvalues, eigenvectors, and what of them counts as 0."""
    check_start(point)
    if point.ndim != 1:
        raise ShapeMismatch(f"one point [p] is classified at a time, not {list(point.shape)}")
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, not {tolerance!r}")
    shape = list(function(point).shape)
    if shape:
        raise ShapeMismatch(f"the function must have one value at a point [p], not {shape}")
    slope = float(torch.func.grad(function)(point).norm())
    bends = hessian(function)(point)
    all_finite(bends, "the Hessian at the point")
    eigenvalues, vectors = torch.linalg.eigh((bends + bends.T) / 2)
    small = tolerance * max(1.0, float(eigenvalues.abs().max()))
    return slope, eigenvalues, vectors, small


def escape_times(points: Tensor, center: Tensor, radius: float) -> Tensor:
    r"""First time each run is farther than `radius` from `center`; $T+1$ if never.

    Args:
        points: `[T + 1, ..., p]`, time first.
        center: `[p]`.
        radius: positive.

    >>> escape_times(torch.tensor([[0.0], [1.0], [3.0]]), torch.zeros(1), 2.0)
    tensor(2)
    """
    if not radius > 0:
        raise InvalidInput(f"the radius must be positive, not {radius!r}")
    if points.ndim < 2 or points.shape[-1:] != center.shape:
        raise ShapeMismatch(
            f"points {list(points.shape)} and center {list(center.shape)} do not fit together"
        )
    outside = (points - center).norm(dim=-1) > radius
    return torch.where(outside.any(0), outside.int().argmax(0), len(points))


@dataclass(frozen=True, slots=True)
class ProbedPoint:
    r"""What a point of a function is, and on which grounds.

    Attributes:
        label: what it is, see `landscape_probe`.
        evidence: what decided: the `Hessian` proves its label up to rounding, a `search`
            proves a lower or higher point but never that there is none.
        value: the function there.
        gradient_norm: 0 at a stationary point.
        eigenvalues: `[p]`, of the Hessian, ascending.
        index: least and largest number of negative eigenvalues the rounding allows.
        direction: the unit eigenvector of the smallest eigenvalue where that is negative.
        lower, higher: points within the radius where the function is lower or higher by more than
            rounding, None where none was found or looked for.
    """

    label: Label
    evidence: Evidence
    value: float
    gradient_norm: float
    eigenvalues: Tensor
    index: tuple[int, int]
    direction: Tensor | None
    lower: Tensor | None
    higher: Tensor | None


def landscape_probe(
    function: Function,
    point: Tensor,
    *,
    infimum: float | None = None,
    radius: float = 0.1,
    tolerance: float = 1e-6,
    generator: RandomSource = None,
) -> ProbedPoint:
    r"""Say what a point of a landscape is.

    At a stationary point the Hessian decides where it can: all eigenvalues positive is a *local
    minimum* (*global* where the value is the known infimum), all negative a *local maximum*, both
    signs a *strict saddle*. Where it is singular and does not decide, a projected descent from
    random starts in a ball looks for lower and for higher values: both found is a *degenerate
    saddle* (strict if an eigenvalue is negative), only higher ones a local minimum, only lower ones
    a local maximum, none a *plateau*. A saddle here is a stationary point that is neither a
    minimum nor a maximum, whether or not its Hessian is indefinite.

    Args:
        function: of `[..., p]`, one value a vector; `objective_of` makes it from a
            network and its data.
        point: `[p]`.
        infimum: the least value of the function, where it is known.
        radius: of the ball that is searched.
        tolerance: gradients of at most this norm count as 0, and eigenvalues of at most this
            size (relative to the largest, if that exceeds 1).
        generator: seed or generator of the starts.

    The Hessian is dense: $O(p^2)$ memory, $O(p^3)$ time. For a large network use
    `classify_network`.

    >>> origin = torch.zeros(1, dtype=torch.float64)
    >>> [landscape_probe(lambda u: (1 - u[..., 0] ** power) ** 2, origin).label for power in (2, 3)]
    ['local maximum', 'degenerate saddle']
    """
    positive_number(radius, "the radius")
    slope, eigenvalues, vectors, small = _second_order(function, point, tolerance)
    value = float(function(point))
    index = (int((eigenvalues < -small).sum()), int((eigenvalues < small).sum()))
    falls = index[0] > 0
    lower: Tensor | None = None
    higher: Tensor | None = None
    label: Label
    evidence: Evidence
    if slope > tolerance:
        label, evidence = "not stationary", "gradient"
    elif infimum is not None and value <= infimum + tolerance * max(1.0, abs(infimum)):
        label, evidence = "global minimum", "known infimum"
    elif index == (0, 0):
        label, evidence = "local minimum", "Hessian"
    elif index[0] == len(point):
        label, evidence = "local maximum", "Hessian"
    elif falls and float(eigenvalues[-1]) > small:
        label, evidence = "strict saddle", "Hessian"
    else:
        source = as_generator(generator)
        lower = lower_point(function, point, radius, generator=source)
        higher = lower_point(lambda x: -function(x), point, radius, generator=source)
        label, evidence = _searched(falls, lower is not None, higher is not None), "search"
    direction = vectors[:, 0] if falls else None
    return ProbedPoint(label, evidence, value, slope, eigenvalues, index, direction, lower, higher)


def lower_point(
    function: Function,
    point: Tensor,
    radius: float,
    *,
    trials: int = 32,
    generator: RandomSource = None,
) -> Tensor | None:
    r"""The lowest point found within `radius` of a point, None if none is lower than it.

    Random starts in the ball, each followed by `STEPS` steps along the normalized gradient,
    projected back onto the ball: where second derivatives vanish the gradient is tiny, but its
    direction still leads down. Lower means by more than rounding, $10^3\varepsilon$ times
    the size of the value.

    Args:
        function: of `[..., p]`, one value a vector.
        point: `[p]`.
        radius: of the ball.
        trials: random starts.
        generator: seed or generator of the starts.

    >>> lower_point(lambda x: x[..., 0] ** 2, torch.zeros(1), 0.5) is None
    True
    >>> lower_point(lambda x: x[..., 0] ** 3, torch.zeros(1), 0.5)
    tensor([-0.5000])
    """
    check_start(point)
    positive_number(radius, "the radius")
    whole_number(trials, "trials", least=1)
    draw = gaussian(
        trials,
        len(point) + 1,
        generator=as_generator(generator),
        dtype=point.dtype,
        device=point.device,
    )
    # the first coordinates of a point on a sphere of one dimension more: inside the ball
    starts = point + radius * draw[:, :-1] / draw.norm(dim=1, keepdim=True)
    slope = gradient_of(function)

    def direction(theta: Tensor, k: int) -> Tensor:
        by = slope(theta, k)
        size: Tensor = by.norm(dim=-1, keepdim=True)
        return by / size.clamp(min=torch.finfo(by.dtype).tiny)

    def project(theta: Tensor) -> Tensor:
        offset = theta - point
        distance: Tensor = offset.norm(dim=-1, keepdim=True)
        return point + offset * (radius / distance).clamp(max=1)

    shrinking = radius * torch.logspace(-0.3, -4, STEPS)
    ends = torch.cat([starts, last_iterate(direction, starts, shrinking, project)])
    with torch.no_grad():
        values, own = function(ends), function(point)
    rounding = 1e3 * torch.finfo(point.dtype).eps * max(float(own.abs()), float(values.abs().max()))
    best = int(values.argmin())
    return ends[best] if float(values[best]) < float(own) - rounding else None


def _searched(falls: bool, lower: bool, higher: bool) -> Label:
    """The label from what a search has found; `falls` means a negative eigenvalue."""
    if falls:
        return "strict saddle" if higher else "local maximum"
    if lower:
        return "degenerate saddle" if higher else "local maximum"
    return "local minimum" if higher else "plateau"
