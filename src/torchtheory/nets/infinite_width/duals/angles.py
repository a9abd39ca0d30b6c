"""The angle of two Gaussians, whose cosine is their correlation, and what is made of it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.nets.infinite_width.duals.moments import Prepared


def pair_angles(
    k12: Tensor, one: Prepared, other: Prepared, *, rounding: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    r"""$\cos t$, $t$ and $\sin t-t\cos t$ of pairs, $t$ from the smaller of $1\mp\cos t$.

    Args:
        one, other: standard deviations and variances.
        rounding: points this near to being equal or opposite count as that.
    """
    (root, variance), (other_root, other_variance) = one, other
    cosine = correlation(k12, root * other_root)
    # the roots' product may differ from equal variances by a rounding, which the angle would feel
    ends = (variance == other_variance) & (k12.abs() == variance)
    acute = cosine >= 0
    small = torch.where(acute, 1 - cosine, 1 + cosine)
    small = _moved(small, small.where(~ends & (small > rounding), 0.0))
    half, rest = _HalfAngleAndRest.apply(small)  # type: ignore[no-untyped-call]
    t = torch.where(acute, 2 * half, math.pi - 2 * half)
    # with s = pi - t it is pi cos s + (sin s - s cos s)
    rest = torch.where(acute, rest, math.pi * (1 - small) + rest)
    return torch.where(acute, 1 - small, small - 1), t, rest


def correlation(k12: Tensor, size: Tensor) -> Tensor:
    r"""$\cos t=k_{12}/\sqrt{k_{11}k_{22}}$ between -1 and 1, and 0 where a variance is 0.

    What rounding puts beyond the ends is brought back to them, and gradients pass as if it had
    been there: those of equal points are not lost.

    >>> correlation(torch.tensor([0.5, 2.0, 0.0]), torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.5000, 1.0000, 0.0000])
    """
    cosine = k12 / size.where(size > 0, 1.0)
    return _moved(cosine, cosine.clamp(-1.0, 1.0))


def _moved(value: Tensor, to: Tensor) -> Tensor:
    """The second tensor, with the gradient of the first: a correction of rounding."""
    return value + (to - value).detach() if value.requires_grad else to


class _HalfAngleAndRest(torch.autograd.Function):
    r"""`half_angle_and_rest` with its derivatives by $\delta$: $\frac1{2\sin t}$ and $t$.

    The second one is finite at all angles, which plain differentiation of the formula does not
    see; the first one is not, and asking for it at equal or opposite points is refused.
    """

    @staticmethod
    def forward(ctx: Any, distance: Tensor) -> tuple[Tensor, Tensor]:
        half, rest = half_angle_and_rest(distance)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(distance, half)
        return half, rest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        distance, half = ctx.saved_tensors
        by_half, by_rest = gradients
        total = None if by_rest is None else 2 * by_rest * half
        if by_half is None:
            return total
        sine = (distance * (2 - distance)).sqrt()
        if bool(((sine == 0) & (by_half != 0)).any()):
            raise InvalidInput(
                "the angle of two equal or opposite points has no derivative: the activation has "
                "a kink or a step, and what is differentiated depends on the angle itself"
            )
        share = torch.where(sine > 0, by_half / (2 * sine.where(sine > 0, 1.0)), 0.0)
        return share if total is None else total + share


def half_angle_and_rest(distance: Tensor) -> tuple[Tensor, Tensor]:
    r"""$t/2$ and $\sin t-t\cos t$ from $\delta=1-\cos t$.

    Both are exact to rounding for small angles, where the cosine itself has lost them: it differs
    from 1 by $t^2/2$ only. Two square roots and one arc sine an entry.

    >>> half, rest = half_angle_and_rest(torch.tensor([0.0, 1.0, 2.0]))
    >>> 2 * half / torch.pi, rest
    (tensor([0.0000, 0.5000, 1.0000]), tensor([0.0000, 1.0000, 3.1416]))
    """
    half = (distance * 0.5).sqrt_().asin_()
    other = 2 - distance  # 1 + cos t
    rest = (other * distance).sqrt_()
    return half, rest.addcmul_(half, other.sub_(1), value=-2)
