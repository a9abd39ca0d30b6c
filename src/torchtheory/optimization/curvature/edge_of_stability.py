r"""What curvature a step of gradient descent can bear.

Along an eigenvector of the Hessian with eigenvalue $\lambda$ one step of gradient descent
multiplies a small displacement by $1-\eta\lambda$: above $2/\eta$ it grows. Source:
lectures, L-125; Cohen et al., "Gradient descent on neural networks typically occurs at the edge of
stability" (2021), for momentum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch.optim import SGD, Optimizer

from torchtheory.core.errors import InvalidInput


def stability_limit(
    optimizer: Optimizer | None, learning_rate: float | None
) -> tuple[float | None, str]:
    r"""The curvature above which a small displacement grows, and what the reader should know.

    On a quadratic of curvature $\lambda$ gradient descent is stable for
    $\lambda\le2/\eta$, with heavy-ball momentum $\beta$ for
    $\lambda\le(2+2\beta)/\eta$, with Nesterov's for
    $\lambda\le(2+2\beta)/((1+2\beta)\eta)$. A dampening $\tau$ scales the step
    by $1-\tau$, a weight decay $\mu$ adds to the curvature. It is the limit of descent
    with the gradient of the whole loss.

    Args:
        optimizer: only `torch.optim.SGD` has such a limit.
        learning_rate: $\eta$ of plain gradient descent, where there is no optimizer.

    Returns:
        The limit, infinite for a step of 0; None, and a sentence why, where there is none.

    >>> from torch import nn
    >>> weight = nn.Linear(1, 1).weight
    >>> limit, _ = stability_limit(SGD([weight], lr=0.1, momentum=0.9), None)
    >>> round(limit, 9)
    38.0
    """
    if optimizer is None:
        if learning_rate is None:
            return None, "No learning rate was given, so sharpness has no limit to compare with."
        if not learning_rate >= 0:
            raise InvalidInput(f"the learning rate must be at least 0, not {learning_rate!r}")
        return 2 / learning_rate if learning_rate else math.inf, ""
    if type(optimizer) is not SGD:
        return None, (
            f"The limit 2/η is that of gradient descent; {type(optimizer).__name__} preconditions "
            "the step, and no limit on the plain Hessian applies to it."
        )
    if any(group["maximize"] for group in optimizer.param_groups):
        return None, "The optimizer maximizes: uphill there is no limit on the curvature."
    limits = {_limit_of_group(group) for group in optimizer.param_groups}
    if len(limits) != 1:
        return None, "The groups of the optimizer step differently: there is no one limit."
    return limits.pop(), ""


def _limit_of_group(group: Mapping[str, Any]) -> float:
    beta, step = float(group["momentum"]), float(group["lr"])
    if step == 0:
        return math.inf
    if group["nesterov"]:
        limit = (2 + 2 * beta) / ((1 + 2 * beta) * step)
    else:
        damped = (1 - float(group["dampening"])) if beta else 1.0
        limit = (2 + 2 * beta) / (damped * step) if damped else math.inf
    return limit - float(group["weight_decay"])
