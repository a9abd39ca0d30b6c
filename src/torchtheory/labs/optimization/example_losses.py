"""Losses of one example, as the labs on stochastic descent take them; and their error bars."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from torchtheory.labs.engine import Interval


def half_square(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Least squares on one example."""
    return ((theta * x).sum(-1) - y).square() / 2


def logistic(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Logistic loss of one example with a label ±1: gradients shorter than the example."""
    return nn.functional.softplus(-y * (theta * x).sum(-1))


def error_bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """How far intervals reach below and above their estimates, as matplotlib takes it."""
    return [[i.estimate - i.low for i in intervals], [i.high - i.estimate for i in intervals]]
