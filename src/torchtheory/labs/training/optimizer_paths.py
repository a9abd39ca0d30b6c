"""What an optimizer of torch does, as a trajectory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Function = Callable[[Tensor], Tensor]

#: Agreement of two ways to compute the same trajectory in double precision.
EXACT = 1e-12


def trajectory(
    make: Callable[[list[Tensor]], Optimizer],
    h: Function,
    start: Tensor,
    steps: int,
    rates: Sequence[float] | None = None,
    seen: Callable[[Optimizer, Tensor], Tensor] | None = None,
) -> Tensor:
    """What an optimizer does, `[steps + 1, p]`; `seen` reads another variable off it."""
    theta = start.clone().requires_grad_()
    optimizer = make([theta])

    def closure() -> Any:
        optimizer.zero_grad()
        loss = h(theta)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    points = [start]
    for t in range(steps):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[t]
        optimizer.step(closure)
        points.append((seen(optimizer, theta) if seen else theta).detach().clone())
    return torch.stack(points)
