"""What evaluating a model costs: memory kept for a backward pass, and time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from torchtheory.models.model import Parameters, PureFunction, as_leaves


@contextmanager
def saved_sizes(parameters: Parameters) -> Iterator[list[int]]:
    """The bytes of every tensor that autograd keeps inside this block, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in parameters.values()}
    sizes: list[int] = []

    def count(saved: Tensor) -> Tensor:
        if saved.untyped_storage().data_ptr() not in weights:
            sizes.append(saved.numel() * saved.element_size())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
        yield sizes


def saved_bytes(function: PureFunction, x: Tensor) -> int:
    """Bytes that a forward pass of `x` keeps for its backward pass, and those of its outputs.

    >>> from torch import nn
    >>> saved_bytes(PureFunction(nn.Sequential(nn.Linear(2, 8), nn.Tanh())), torch.ones(1, 2))
    72
    """
    free = as_leaves(function.parameters)
    with torch.enable_grad(), saved_sizes(function.parameters) as sizes:
        outputs = function(free, x)
    return sum(sizes) + outputs.numel() * outputs.element_size()


def seconds_taken(work: Callable[[], object]) -> float:
    """Wall time of a call: the least of a few short ones, the first of which warms up."""
    least = math.inf
    for again in range(4):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
        if least > (0.1 if again else 0.3):
            break
    return least
