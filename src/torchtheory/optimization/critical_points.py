r"""Stationary points: what the Hessian says about them, and how long it takes to leave one.

Source: The Modern Mathematics of Deep Learning, section 1.1.2, after Theorem 1.15.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.optimization.descent import Function, check_start

Kind = Literal["minimum", "maximum", "saddle", "degenerate", "not stationary"]


@dataclass(frozen=True, slots=True)
class CriticalPoint:
    """A point, its slope and its curvature.

    Attributes:
        kind: what it is, see :func:`classify`.
        gradient_norm: 0 at a stationary point.
        eigenvalues: ``[p]``, of the Hessian, ascending.
        index: how many of them are negative: the dimensions in which it falls off.
    """

    kind: Kind
    gradient_norm: float
    eigenvalues: Tensor
    index: int


def classify(smallest: float, largest: float, tolerance: float) -> Kind:
    r"""The kind of a stationary point from the two ends of its Hessian's spectrum.

    Both signs make a saddle; all positive a minimum; all negative a maximum; and where an end is
    within ``tolerance`` of 0 and the other does not decide, the Hessian is singular and second
    order does not tell: degenerate. For a network the ends come from
    ``extremal_eigenvalues(hessian_operator(problem))``, its residual being the tolerance.

    >>> classify(-2.0, 2.0, 1e-9), classify(0.0, 2.0, 1e-9)
    ('saddle', 'degenerate')
    """
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, not {tolerance!r}")
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
        function: of ``[p]``, one value.
        point: ``[p]``.
        tolerance: gradients of at most this norm count as 0, and eigenvalues of at most this
            size (relative to the largest, if that exceeds 1).

    The Hessian is dense: :math:`O(p^2)` memory, :math:`O(p^3)` time.

    >>> saddle = critical_point(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(2))
    >>> saddle.kind, saddle.index, saddle.eigenvalues.tolist()
    ('saddle', 1, [-2.0, 2.0])
    """
    check_start(point)
    if point.ndim != 1:
        raise ShapeMismatch(f"one point [p] is classified at a time, not {list(point.shape)}")
    slope = float(torch.func.grad(function)(point).norm())
    hessian = torch.func.hessian(function)(point)
    if not bool(torch.isfinite(hessian).all()):
        raise InvalidInput("the Hessian at the point contains NaN or infinity")
    eigenvalues = torch.linalg.eigvalsh((hessian + hessian.T) / 2)
    small = tolerance * max(1.0, float(eigenvalues.abs().max()))
    kind: Kind = "not stationary"
    if slope <= tolerance:
        kind = classify(float(eigenvalues[0]), float(eigenvalues[-1]), small)
    return CriticalPoint(kind, slope, eigenvalues, int((eigenvalues < -small).sum()))


def escape_times(points: Tensor, centre: Tensor, radius: float) -> Tensor:
    r"""First time each run is farther than ``radius`` from ``centre``; :math:`T+1` if never.

    Args:
        points: ``[T + 1, ..., p]``, time first.
        centre: ``[p]``.
        radius: positive.

    >>> escape_times(torch.tensor([[0.0], [1.0], [3.0]]), torch.zeros(1), 2.0)
    tensor(2)
    """
    if not radius > 0:
        raise InvalidInput(f"the radius must be positive, not {radius!r}")
    if points.ndim < 2 or points.shape[-1:] != centre.shape:
        raise ShapeMismatch(
            f"points {list(points.shape)} and centre {list(centre.shape)} do not fit together"
        )
    outside = (points - centre).norm(dim=-1) > radius
    return torch.where(outside.any(0), outside.int().argmax(0), len(points))
