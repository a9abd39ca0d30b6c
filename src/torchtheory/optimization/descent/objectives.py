r"""The loss of a network as a function of a vector, which everything that descends can take."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.mapping import Mapped
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.descent.iterates import Function


def objective_of(problem: Problem) -> tuple[Function, Tensor]:
    r"""The mean training loss of a problem as a function of `[..., p]`, and where it is now.

    With it everything that descends or probes a function does so for the user's network, which is
    not changed. Frozen parameters are constants. One call costs a forward pass over the training
    data for every vector, and keeps the graph of all of it.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> f, start = objective_of(Problem(nn.Linear(1, 1, bias=False), (x, 3 * x)))
    >>> f(torch.tensor([1.0])).item(), start.shape           # the mean of 4 and 16
    (10.0, torch.Size([1]))
    """
    like = problem.trainable
    samples = problem.train

    def one(theta: Tensor) -> Tensor:
        point = unflatten(theta, like)
        parts = [
            problem.objective(Samples(x, y))(point) * (len(x) / len(samples))
            for x, y in samples.chunks(problem.chunk)
        ]
        return torch.stack(parts).sum()

    size = sum(p.numel() for p in like.values())
    each = Mapped(one)

    def mean_loss(theta: Tensor) -> Tensor:
        if theta.ndim == 0 or theta.shape[-1] != size:
            raise ShapeMismatch(
                f"the model has {size} trainable parameters, not {list(theta.shape)[-1:]}"
            )
        if theta.ndim == 1:
            return one(theta)
        flat = theta.reshape(-1, theta.shape[-1])
        losses: Tensor = each(flat)
        return losses.reshape(theta.shape[:-1])

    return mean_loss, flatten(like).clone()
