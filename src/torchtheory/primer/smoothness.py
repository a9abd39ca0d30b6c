r"""Lipschitz and smoothness constants of torch functions, measured from below.

A function is $L$-Lipschitz if $\|f(x)-f(y)\|\le L\|x-y\|$, and $L$-smooth if
its gradient is $L$-Lipschitz. What is met at points is always a LOWER bound of the constant;
upper bounds for networks are in `torchtheory.robustness`. Source: Foundations of Deep Learning,
sections 1.3.5 and 1.3.6, and Problem 3 of section 1.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.core.mapping import Mapped, jacobian
from torchtheory.primer.differences import Function
from torchtheory.primer.norms import pairwise_distances

_PAIRS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class ConstantFromBelow:
    r"""A lower bound of a Lipschitz constant; `float(b)` is the value.

    Attributes:
        from_pairs: the largest $\|f(x)-f(y)\|/\|x-y\|$ over pairs of the given points.
        from_derivatives: the largest $\|J_f(x)\|_2$ over the points and the ascents from
            them. On a convex domain its supremum is the constant, for a differentiable function.
        point: `[d]`, where the derivative is that large.
    """

    from_pairs: float
    from_derivatives: float
    point: Tensor

    @property
    def value(self) -> float:
        """The better of the two."""
        return max(self.from_pairs, self.from_derivatives)

    def __float__(self) -> float:
        return self.value


def lipschitz_from_below(
    function: Function,
    points: Tensor,
    *,
    box: tuple[float, float] | None = None,
    ascent_steps: int = 60,
    climbers: int = 8,
) -> ConstantFromBelow:
    r"""A lower bound of the Lipschitz constant of a torch function of vectors.

    Slopes of all pairs of points, norms of the derivative at all points, and then ascent on
    $\|J_f\|_2$ from the best of them. The pairs count only if the function is defined on
    them; the derivative only bounds the constant from below, never from above.

    Args:
        function: from `[d]` to a number or to `[m]`; twice differentiable for the ascent to
            do anything.
        points: `[n, d]`, the start.
        box: keep the ascent within this range in every coordinate.
        ascent_steps: per climber; 0 for none.
        climbers: how many of the points to climb from.

    Cost: $n$ Jacobians, $O(n^2d)$ for the pairs, and `climbers * ascent_steps`
    derivatives of Jacobian norms.

    >>> w = torch.tensor([3.0, 4.0]).double()
    >>> points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]]).double()
    >>> found = lipschitz_from_below(lambda x: w @ x, points)
    >>> round(found.from_pairs, 12), round(found.from_derivatives, 12)
    (5.0, 5.0)
    """
    points = as_matrix(points, "the points")
    if box is not None and not box[0] < box[1]:
        raise InvalidInput(f"the box {box} is empty")
    if ascent_steps < 0 or climbers < 1:
        raise InvalidInput(
            "the ascent needs at least one climber and no negative steps (ascent_steps = "
            f"{ascent_steps!r}, climbers = {climbers!r})"
        )

    def outputs(x: Tensor) -> Tensor:
        return function(x).reshape(-1)

    def size(x: Tensor) -> Tensor:
        rows = jacobian(outputs)(x)
        # for one row the spectral norm is the Euclidean one, which needs no decomposition
        norm: Tensor = torch.linalg.matrix_norm(rows, "fro" if len(rows) == 1 else 2)
        return norm

    sizes = Mapped(size)
    norms = sizes(points)
    best = norms.topk(min(climbers, len(points))).indices
    climbed, heights = _climb(sizes, points[best], box, ascent_steps)
    top = int(heights.argmax())
    values = Mapped(outputs)(points)
    return ConstantFromBelow(_largest_slope(points, values), float(heights[top]), climbed[top])


def smoothness_from_below(
    function: Function,
    points: Tensor,
    *,
    box: tuple[float, float] | None = None,
    ascent_steps: int = 60,
    climbers: int = 8,
) -> ConstantFromBelow:
    r"""A lower bound of the smoothness constant: `lipschitz_from_below` of the gradient.

    `from_derivatives` is the largest $\|\nabla^2f(x)\|_2=\max_i|\lambda_i(\nabla^2f(x))|$
    that was met. The Hessians are dense, `[d, d]` each; for large $d$ take
    `top_eigenpairs(hessian_at(f, x), which="magnitude")` instead.

    >>> points = torch.linspace(-1, 1, 5)[:, None].double()
    >>> float(smoothness_from_below(lambda x: (x**2).sum(), points))
    2.0
    """
    gradient = torch.func.grad(lambda x: function(x).reshape(()))
    return lipschitz_from_below(
        gradient, points, box=box, ascent_steps=ascent_steps, climbers=climbers
    )


def parabola_bounds(
    function: Function, x: Tensor, y: Tensor, constant: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The sandwich of an $L$-smooth function between two parabolas.

    $f(x)+\nabla f(x)^\top(y-x)\mp\frac L2\|y-x\|^2$ and the value $f(y)$ between
    them.

    Args:
        function: from `[d]` to a number.
        x: `[d]`, where the parabolas touch.
        y: `[n, d]`, where they are compared.
        constant: $L\ge0$.

    Returns:
        lower, value, upper: `[n]` each.

    >>> f = lambda x: torch.cos(x).sum()
    >>> y = torch.linspace(-3, 3, 7)[:, None].double()
    >>> low, value, high = parabola_bounds(f, torch.ones(1).double(), y, 1.0)
    >>> bool(((low <= value) & (value <= high)).all())
    True
    """
    x, y = as_vector(x, "x"), as_matrix(y, "y")
    if not (math.isfinite(constant) and constant >= 0):
        raise InvalidInput(f"a smoothness constant is a number >= 0, not {constant!r}")
    step = y - x
    tangent = function(x) + step @ torch.func.grad(function)(x)
    curve = constant / 2 * step.square().sum(1)
    return tangent - curve, Mapped(function)(y), tangent + curve


def _climb(
    sizes: Function, x: Tensor, box: tuple[float, float] | None, steps: int
) -> tuple[Tensor, Tensor]:
    """Ascent with a step per climber that doubles on success and halves on failure."""

    def total(at: Tensor) -> tuple[Tensor, Tensor]:
        heights = sizes(at)
        return heights.sum(), heights

    slopes_and_heights = torch.func.grad(total, has_aux=True)
    slopes, heights = slopes_and_heights(x)
    length = torch.full_like(heights, 0.1 * max(1.0, float(x.abs().max())))
    for _ in range(steps):
        direction = torch.nan_to_num(slopes)
        direction = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)
        trial = x + length[:, None] * direction
        if box is not None:
            trial = trial.clamp(*box)
        new_slopes, reached = slopes_and_heights(trial)
        better = reached > heights
        x = torch.where(better[:, None], trial, x)
        slopes = torch.where(better[:, None], new_slopes, slopes)
        heights = torch.where(better, reached, heights)
        length = torch.where(better, 2 * length, length / 2)
        if float(length.max()) < 1e-9 * max(1.0, float(x.abs().max())):
            break
    return x, heights


def _largest_slope(points: Tensor, values: Tensor) -> float:
    if len(points) < 2:
        raise EmptyData(f"a slope needs at least two points, not {list(points.shape)}")
    largest = 0.0
    blocks = torch.split(points, _PAIRS_AT_ONCE), torch.split(values, _PAIRS_AT_ONCE)
    for block, outputs in zip(*blocks, strict=True):
        gaps, rises = pairwise_distances(block, points), pairwise_distances(outputs, values)
        slopes = torch.where(gaps > 0, rises / gaps, 0.0)
        largest = max(largest, float(slopes.max()))
    return largest
