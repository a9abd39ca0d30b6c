r"""Batch normalization away from the weights it was trained with.

A network with batch normalization carries the means and variances of its layers' inputs beside its
weights. They belong to one point of parameter space: at any other, half way between two solutions
say, they are those of another network, and the loss that is computed with them says more about
that than about the weights. Source: Izmailov et al. (2018), *Averaging Weights Leads to Wider
Optima and Better Generalization*, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchtheory.core.checks import as_module
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples


def batch_normalizations(model: nn.Module) -> list[str]:
    """Names of the layers that carry running means and variances of batches.

    >>> batch_normalizations(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    ['1']
    """
    as_module(model)
    return [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    ]


def with_renewed_statistics(problem: Problem, samples: Samples | None = None) -> Problem:
    """The same problem with the means and variances that its own weights give.

    They are averaged over chunks of the samples, each normalized by its own, as at the end of
    training; `torch.optim.swa_utils.update_bn` does the same to a model, which here is not
    changed. A model without batch normalization comes back as it is.

    Args:
        problem: model, loss and data; `problem.at(parameters)` for other weights.
        samples: to take them from; the training data unless given.

    Costs a forward pass over the samples.

    >>> net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> p = with_renewed_statistics(Problem(net, (x, x), task="regression"))
    >>> p.function.buffers["0.running_mean"], net[0].running_mean
    (tensor([2.]), tensor([0.]))
    """
    names = batch_normalizations(problem.model)
    if not names:
        return problem
    samples = problem.train if samples is None else samples
    seen: dict[str, list[tuple[int, Tensor, Tensor]]] = {name: [] for name in names}

    def look(name: str, layer: nn.Module, arguments: Any) -> None:
        (x,) = arguments
        rows = x.detach().movedim(1, -1).reshape(-1, x.shape[1])
        variance = rows.var(0, correction=min(1, len(rows) - 1))
        seen[name].append((len(rows), rows.mean(0), variance))

    with batches_normalized(problem.model, look), torch.no_grad(), global_randomness_kept():
        for x, _ in samples.chunks(problem.chunk):
            problem.function(problem.parameters, x)
    renewed = problem.at({})
    renewed.function.buffers = dict(problem.function.buffers)
    for name, parts in seen.items():
        total = sum(count for count, _, _ in parts)
        for buffer, place in (("running_mean", 1), ("running_var", 2)):
            mean = sum(part[0] / total * part[place] for part in parts)
            if isinstance(mean, Tensor):  # a layer that is never run keeps what it has
                renewed.function.buffers[f"{name}.{buffer}"] = mean
    return renewed


@contextmanager
def batches_normalized(
    model: nn.Module, look: Callable[[str, nn.Module, Any], None] | None = None
) -> Iterator[None]:
    """Every batch is normalized by its own mean and variance inside this block.

    Args:
        model: run through a `PureFunction`, which puts everything else in evaluation mode.
        look: called with the name, the layer and the arguments before each normalization.
    """

    def before(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(layer: nn.Module, arguments: Any) -> None:
            # a single value has no variance; evaluation mode is back after the pass
            layer.training = arguments[0].numel() > arguments[0].shape[1]
            if look is not None:
                look(name, layer, arguments)

        return hook

    handles = [
        model.get_submodule(name).register_forward_pre_hook(before(name))
        for name in batch_normalizations(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
