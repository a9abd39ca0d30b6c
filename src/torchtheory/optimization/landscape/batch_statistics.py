r"""Batch normalization away from the weights it was trained with.

A network with batch normalization carries the means and variances of its layers' inputs beside its
weights. They belong to one point of parameter space: at any other, half way between two solutions
say, they are those of another network, and the loss that is computed with them says more about
that than about the weights. Source: Izmailov et al. (2018), *Averaging Weights Leads to Wider
Optima and Better Generalization*, section 3.2.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.tracing.arguments import bind
from torchtheory.tracing.network import Operation, Value, called
from torchtheory.tracing.passes import evaluated, network_of


def batch_normalizations(problem: Problem) -> dict[str, Operation]:
    """The operations that normalize by running means and variances of batches, by their layers.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> list(batch_normalizations(Problem(net, (torch.randn(4, 2), torch.randn(4, 3)))))
    ['1']
    """
    found: dict[str, Operation] = {}
    for op in network_of(problem.function, problem.train.x):
        layer = _carrier(op)
        if layer is not None:
            found.setdefault(layer, op)
    return found


def _carrier(op: Operation) -> str | None:
    """The layer whose running statistics an operation normalizes by, if it does."""
    mean = op.arguments.get("running_mean") if op.name == "batch_norm" else None
    if not isinstance(mean, Value) or mean.origin != "buffer":
        return None
    return mean.name.removesuffix("running_mean").removesuffix(".")


def with_renewed_statistics(problem: Problem, samples: Samples | None = None) -> Problem:
    """The same problem with the means and variances that its own weights give.

    They are averaged over chunks of the samples, each normalized by its own, as at the end of
    training; `torch.optim.swa_utils.update_bn` does the same to a model, which here is not
    changed. A model without batch normalization comes back as it is.

    Args:
        problem: model, loss and data; `problem.at(parameters)` for other weights.
        samples: to take them from; the training data unless given.

    Costs a forward pass over the samples.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> p = with_renewed_statistics(Problem(net, (x, x), task="regression"))
    >>> p.function.buffers["0.running_mean"], net[0].running_mean
    (tensor([2.]), tensor([0.]))
    """
    if not batch_normalizations(problem):
        return problem
    samples = problem.train if samples is None else samples
    seen: dict[str, list[tuple[int, Tensor, Tensor]]] = {}

    def look(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = _carrier(op)
        if layer is not None:
            x = bind(op.function, args, kwargs)["input"]
            rows = x.movedim(1, -1).reshape(-1, x.shape[1])
            variance = rows.var(0, correction=min(1, len(rows) - 1))
            seen.setdefault(layer, []).append((len(rows), rows.mean(0), variance))
        return normalized_by_batch(op, args, kwargs)

    with torch.no_grad():
        for x, _ in samples.chunks(problem.chunk):
            evaluated(problem.function, network_of(problem.function, x), x, look)
    renewed = problem.at({})
    renewed.function.buffers = dict(problem.function.buffers)
    for name, parts in seen.items():
        total = sum(count for count, _, _ in parts)
        for buffer, place in (("running_mean", 1), ("running_var", 2)):
            mean = sum(part[0] / total * part[place] for part in parts)
            if isinstance(mean, Tensor):
                renewed.function.buffers[f"{name}.{buffer}".lstrip(".")] = mean
    return renewed


def normalized_by_batch(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A step of a pass in which every batch is normalized by its own mean and variance."""
    given = {} if _carrier(op) is None else bind(op.function, args, kwargs)
    # a single value has no variance
    if not given or given["input"].numel() == given["input"].shape[1]:
        return called(op, args, kwargs)
    return F.batch_norm(
        given["input"], None, None, given["weight"], given["bias"], training=True, eps=given["eps"]
    )
