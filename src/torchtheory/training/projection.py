r"""Projections onto convex sets, and optimizers kept inside one.

A projection takes vectors along the last axis, `[..., p]`, to the nearest points of the set.
Projected gradient descent is $\theta^{t+1}=P_C(\theta^t-\eta g_t)$.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchtheory.core.checks import positive_number
from torchtheory.core.errors import InvalidInput

Projection = Callable[[Tensor], Tensor]


def onto_ball(radius: float = 1.0, center: Tensor | float = 0.0) -> Projection:
    r"""Onto $\{\theta:\|\theta-c\|_2\le r\}$: vectors outside are shortened to $r$.

    >>> onto_ball(1.0)(torch.tensor([[3.0, 4.0], [0.1, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.1000, 0.0000]])
    """
    positive_number(radius, "the radius")

    def project(theta: Tensor) -> Tensor:
        offset = theta - center
        length = offset.norm(dim=-1, keepdim=True)
        inside = offset * (radius / length.clamp_min(radius))
        return torch.where(length <= radius, theta, center + inside)

    return project


def onto_box(low: float, high: float) -> Projection:
    r"""Onto $[l,u]^p$, coordinate by coordinate.

    >>> onto_box(0.0, 1.0)(torch.tensor([-2.0, 0.5, 7.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    if not low <= high:
        raise InvalidInput(f"the box [{low}, {high}] is empty")
    return lambda theta: theta.clamp(low, high)


def onto_simplex(total: float = 1.0) -> Projection:
    r"""Onto $\{\theta\ge0,\ \sum_i\theta_i=s\}$.

    The nearest point is $\max(\theta-\tau,0)$ with the one $\tau$ that makes the sum
    $s$; sorting finds it in $O(p\log p)$.

    >>> onto_simplex()(torch.tensor([[0.5, 0.5], [2.0, 0.0], [0.75, 0.75]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    positive_number(total, "the sum")

    def project(theta: Tensor) -> Tensor:
        ordered = theta.sort(dim=-1, descending=True).values
        count = torch.arange(1, theta.shape[-1] + 1, dtype=theta.dtype, device=theta.device)
        thresholds = (ordered.cumsum(-1) - total) / count
        # the coordinates that stay positive are the first ones, as many as exceed their threshold
        kept = (ordered > thresholds).sum(-1, keepdim=True)
        return (theta - thresholds.gather(-1, kept - 1)).clamp_min(0)

    return project


def project_after_step(optimizer: Optimizer, projection: Projection) -> RemovableHandle:
    r"""Make any optimizer a projected one: after each step every parameter group is projected.

    The parameters of a group together are the vector $\theta$ that is projected; give
    several groups for several constraints. The optimizer's own state and its `state_dict` are
    untouched; `.remove()` on the result ends the projecting.

    >>> x = torch.zeros(2, requires_grad=True)
    >>> optimizer = torch.optim.SGD([x], lr=1.0)
    >>> handle = project_after_step(optimizer, onto_ball(1.0))
    >>> x.grad = torch.tensor([-3.0, -4.0])
    >>> optimizer.step()
    >>> x.detach()
    tensor([0.6000, 0.8000])
    """

    @torch.no_grad()
    def project(stepped: Optimizer, *_: Any) -> None:
        for group in stepped.param_groups:
            theta = projection(parameters_to_vector(group["params"]))
            pieces = torch.split(theta, [p.numel() for p in group["params"]])
            for p, piece in zip(group["params"], pieces, strict=True):
                p.copy_(piece.view_as(p))

    return optimizer.register_step_post_hook(project)
