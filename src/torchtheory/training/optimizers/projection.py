r"""Projections onto convex sets.

A projection takes vectors along the last axis, `[..., p]`, to the nearest points of the set.
Projected gradient descent is $\theta^{t+1}=P_C(\theta^t-\eta g_t)$.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number

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
