"""Whether the gradient that torch computes is the derivative of a model's outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.models.model import PureFunction, as_leaves, flatten, global_randomness_kept


def gradient_is_slope(function: PureFunction, x: Tensor) -> bool:
    """Whether the gradient in the trainable parameters is the slope of the outputs along a line.

    True at a kink, where the slopes to the two sides differ and nothing can be told. Costs three
    forward passes and a backward pass of `x`.

    Args:
        function: deterministic, in float64.
        x: inputs of a few samples.

    >>> gradient_is_slope(PureFunction(torch.nn.Linear(2, 1).double()), torch.ones(1, 2).double())
    True
    """
    draw = torch.Generator().manual_seed(0)

    def normal(shape: torch.Size, like: Tensor) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(like)

    start = as_leaves(function.trainable)
    line = {k: normal(p.shape, p) for k, p in start.items()}
    length = math.sqrt(sum(float(v.square().sum()) for v in line.values()))
    step = 1e-6 * max(1.0, float(flatten(function.trainable).norm())) / length
    with global_randomness_kept(), torch.enable_grad():
        middle = function(start, x)
        weight = normal(middle.shape, middle)
        found = torch.autograd.grad((weight * middle).sum(), [*start.values()], allow_unused=True)
    slope = sum(
        float((g * v).sum()) for g, v in zip(found, line.values(), strict=True) if g is not None
    )
    with global_randomness_kept(), torch.no_grad():
        after, before = (
            function({k: p + sign * step * line[k] for k, p in start.items()}, x)
            for sign in (1, -1)
        )
    middle = middle.detach()
    right = float((weight * (after - middle)).sum()) / step
    left = float((weight * (middle - before)).sum()) / step
    rounding = 1e-13 * float((weight * middle).abs().sum()) / step
    allowed = 1e-3 * max(abs(right), abs(left), abs(slope)) + rounding
    return abs(right - left) > allowed or abs((right + left) / 2 - slope) <= 2 * allowed


def import_differentiation() -> None:
    """Import what `torch.func` loads at its first call: seconds that should not count as work."""

    def wave(v: Tensor) -> Tensor:
        return v.sin().sum()

    point = torch.ones(1)
    torch.func.jvp(torch.func.grad(wave), (point,), (point,))
