"""Functions of each entry of a signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.lipschitz.affine_operations import value_of
from torchtheory.robustness.lipschitz.pointwise import operation_constant
from torchtheory.robustness.lipschitz.watched_pass import Extent, Pass, Signal, signals_in, times


def pointwise(watch: Pass, x: Any, constant: float, name: str) -> Signal:
    """A function of each entry whose slope is at most a constant."""
    if not isinstance(x, Signal) or len(list(signals_in(watch.now[1:]))) > 1:
        raise watch.refuse(f"the network uses {name} with parameters that depend on its input")
    return slope_bounded(watch, x, value_of(watch), constant, name)


def slope_bounded(watch: Pass, x: Signal, value: Tensor, constant: float, name: str) -> Signal:
    """The value at the centers of a function of each entry, and the supremum of its slope."""
    highest = watch.rows(x.value).amax(1)
    unlimited = torch.full_like(highest, math.inf)

    def rule(one: Extent) -> Extent:
        largest = unlimited
        if name == "sigmoid":
            largest = torch.sigmoid(highest + one.distance)
        elif name == "tanh":
            largest = torch.tanh(one.largest)
        elif name in ("relu", "leaky_relu", "leakyrelu") and constant <= 1:
            largest = one.largest
        return Extent(constant * one.lipschitz, constant * one.distance, largest)

    return watch.node(value, (x,), rule)


def activation(name: str) -> Callable[..., Any]:
    """The rule of an activation of torch."""

    def rule(watch: Pass, input: Any, **options: Any) -> Any:
        if any(True for _ in signals_in(options)):
            raise watch.refuse(f"the network uses {name} with parameters that depend on its input")
        try:
            constant = operation_constant(name, options)
        except UnsupportedModel as error:
            raise watch.refuse(str(error)) from None
        return pointwise(watch, input, constant, name)

    return rule


def square(watch: Pass, input: Any, **_: Any) -> Any:
    x = input
    value = x.value.square()

    def rule(one: Extent) -> Extent:
        return Extent(
            2 * times(one.largest, one.lipschitz),
            2 * times(one.largest, one.distance),
            one.largest.square(),
        )

    return watch.node(value, (x,), rule)


def power(watch: Pass, input: Any, exponent: Any, **_: Any) -> Any:
    x = input
    if isinstance(x, Signal) and exponent == 2:
        return square(watch, x)
    if isinstance(x, Signal) and exponent == 1:
        return x
    raise watch.refuse(f"the network uses a power of {exponent}, of which no bound is known here")
