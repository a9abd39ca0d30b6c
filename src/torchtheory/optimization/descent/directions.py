r"""Directions in which a function falls at first.

Source: Foundations of Deep Learning, section 5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_vector, positive_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.mapping import Mapped
from torchtheory.primer.differences import Function


@dataclass(frozen=True, slots=True)
class DescentReport:
    r"""What a function does along a direction.

    Attributes:
        slope: $\nabla f(x)^\top s$; negative for a descent direction.
        cosine: of the angle between $s$ and $-\nabla f(x)$; NaN where the gradient
            is 0.
        lengths: `[m]`, the $\alpha>0$ that were tried, ascending.
        changes: `[m]`, $f(x+\alpha s)-f(x)$.
        decreases_up_to: the largest $\alpha$ up to which every one that was tried decreases
            the function; 0 if the smallest does not.
    """

    slope: float
    cosine: float
    lengths: Tensor
    changes: Tensor
    decreases_up_to: float

    @property
    def descends(self) -> bool:
        r"""Whether $\nabla f(x)^\top s<0$: then small $\alpha>0$ decrease it."""
        return self.slope < 0


def descent_report(
    function: Function, point: Tensor, direction: Tensor, *, longest: float = 10.0
) -> DescentReport:
    r"""Slope, angle and reach of a direction $s$ at a point.

    $\nabla f(x)^\top s<0$, an angle below a right one with $-\nabla f(x)$, makes
    $f(x+\alpha s)<f(x)$ for all small $\alpha>0$. The converse fails: at a right angle
    the function may fall ($-x^2$ at 0) or rise ($x^2$ at 0).

    Args:
        function: of `[p]`, one value.
        point, direction: `[p]`; the direction not 0.
        longest: the largest $\alpha$ of 60, from $10^{-6}$ of it on, equally spaced in the
            logarithm.

    >>> f = lambda x: (x**2).sum()
    >>> found = descent_report(f, torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0]))
    >>> found.descends, round(found.cosine, 4), 0.8 < found.decreases_up_to < 1
    (True, 0.7071, True)
    """
    point, direction = as_vector(point, "the point"), as_vector(direction, "the direction")
    if point.shape != direction.shape:
        raise ShapeMismatch(f"a direction {list(direction.shape)} at a point {list(point.shape)}")
    if not bool(direction.any()):
        raise InvalidInput("the direction is 0, which leads nowhere")
    positive_number(longest, "longest")
    slopes, value = torch.func.grad_and_value(function)(point)
    slope = float(slopes @ direction)
    size = float(slopes.norm() * direction.norm())
    top = math.log10(longest)
    lengths = torch.logspace(top - 6, top, 60, dtype=point.dtype, device=point.device)
    changes = Mapped(function)(point + lengths[:, None] * direction) - value
    # a change that rounding decides is taken for what the slope says it is
    rounding = 10 * torch.finfo(point.dtype).eps * float(value.abs())
    falls = torch.where(changes.abs() > rounding, changes < 0, slope < 0)
    falling = falls.int().cumprod(0).sum()
    reach = float(lengths[int(falling) - 1]) if int(falling) else 0.0
    return DescentReport(slope, -slope / size if size else math.nan, lengths, changes, reach)
