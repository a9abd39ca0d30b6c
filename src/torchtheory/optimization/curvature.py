r"""Curvature of the mean loss :math:`L(\theta)` of a problem, as operators on parameter vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.linear_operators import LinearOperator
from torchtheory.core.model import Parameters, flatten, unflatten
from torchtheory.core.problem import Problem
from torchtheory.core.samples import Samples


def gradient(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> Tensor:
    r""":math:`\nabla L(\theta)` as a vector ``[p]``, summed over chunks of the samples.

    Costs one forward and one backward pass over the samples; memory is that of one chunk.
    """
    samples = problem.train if samples is None else samples
    point = problem.parameters if parameters is None else parameters
    total = torch.zeros_like(flatten(point))
    for x, y in samples.chunks(problem.chunk):
        part = torch.func.grad(problem.objective(Samples(x, y)))(point)
        total += flatten(part) * (len(x) / len(samples))
    return total


def hessian_operator(
    problem: Problem,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> LinearOperator:
    r"""The Hessian :math:`\nabla^2 L(\theta)` of the mean loss, given by its action.

    .. math:: v \mapsto \nabla_\theta \langle \nabla_\theta L(\theta), v \rangle

    One product costs about four forward passes over the samples and the memory of one chunk.

    Args:
        problem: model, loss and data.
        samples: the data of the loss; the training data unless given.
        parameters: the point :math:`\theta`; the model's own unless given.

    >>> from torch import nn
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1, bias=False), (x, 3 * x), task="regression")
    >>> hessian_operator(p).to_dense()          # 2 * mean of x squared
    tensor([[5.]])
    """
    samples = problem.train if samples is None else samples
    point = problem.parameters if parameters is None else parameters
    like = flatten(point)

    def pull_back(part: Samples) -> Callable[[Parameters], tuple[Parameters]]:
        slope = torch.func.grad(problem.objective(part))
        made: Callable[[Parameters], tuple[Parameters]] = torch.func.vjp(slope, point)[1]
        return made

    # one chunk: its graph is recorded once and serves every product
    kept = pull_back(samples) if len(samples) <= problem.chunk else None

    def product(v: Tensor) -> Tensor:
        direction = unflatten(v, point)
        if kept is not None:
            return flatten(kept(direction)[0])
        total = torch.zeros_like(like)
        for x, y in samples.chunks(problem.chunk):
            part = flatten(pull_back(Samples(x, y))(direction)[0])
            total += part * (len(x) / len(samples))
        return total

    return LinearOperator(
        (like.numel(), like.numel()), product, symmetric=True, dtype=like.dtype, device=like.device
    )
