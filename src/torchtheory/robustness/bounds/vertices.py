"""How the rules of tracing make a value of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.robustness.bounds.graph import Map, Operation, Vertex
from torchtheory.robustness.lipschitz.watched_pass import Pass, Signal

#: Copies of a sample that run.
COPIES = 2


def vertex(
    watch: Pass, operation: Operation, parents: Sequence[Signal], value: Tensor, view: bool = False
) -> Signal:
    if value.shape[:1] != (COPIES,):
        raise watch.refuse("the network moves samples to another dimension, or mixes them")
    where = watch.place[-1] if watch.place else ""
    made = Vertex(
        value, tuple(parents), operation=operation,
        operands=tuple(_place(p) for p in parents), shape=tuple(value.shape[1:]),
        place=len(watch.nodes), name=where,
    )  # fmt: skip
    watch.nodes.append(made)
    return Signal(watch, made, (), value, parents[0].memory if view else None)


def _place(signal: Signal) -> int:
    assert isinstance(signal.node, Vertex)
    return signal.node.place


def run_with(
    function: Any, args: Any, options: Any, stand_ins: dict[int, Tensor], constant: Map
) -> Any:
    """A function with other tensors in the place of signals and of constants that hold numbers."""

    def changed(thing: Any) -> Any:
        if isinstance(thing, Signal):
            return stand_ins[id(thing)]
        if isinstance(thing, Tensor) and thing.is_floating_point():
            return constant(thing.detach())
        if type(thing) in (tuple, list):
            return type(thing)(changed(part) for part in thing)
        if isinstance(thing, dict):
            return {k: changed(v) for k, v in thing.items()}
        return thing

    return function(*changed(args), **changed(options))


def per_sample(watch: Pass, constant: Any, ndim: int) -> Any:
    """A constant for one sample, with as many dimensions as the value it meets or fewer."""
    if not isinstance(constant, Tensor) or constant.ndim < ndim:
        return constant
    if len(constant) > 1 and not torch.equal(constant[0], constant[1]):
        raise watch.refuse("the network adds a constant that differs from sample to sample")
    return constant[0]
