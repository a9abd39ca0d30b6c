r"""Explicit variance reduction: stochastic directions whose noise vanishes at the solution.

A single gradient $\nabla f_i(\theta)$ is corrected by one that is known at an older point, so that
the mean stays $\nabla f(\theta)$ and the variance goes to 0 together with the distance of the two
points. With a constant step the iterates then converge linearly, where plain stochastic descent
stops at a plateau. Source: Foundations of Deep Learning, 5.7 (remarks on the variance); the methods
are those of Johnson and Zhang (2013) and of Defazio, Bach and Lacoste-Julien (2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.optimization.descent.iterates import Direction
from torchtheory.optimization.descent.minibatch import (
    ExampleLoss,
    minibatch_direction,
    minibatch_gradient,
)


def corrected_gradients(
    loss: ExampleLoss, theta: Tensor, anchor: Tensor, *examples: Tensor
) -> Tensor:
    r"""Every $\nabla f_i(\theta)-\nabla f_i(\tilde\theta)+\nabla f(\tilde\theta)$, `[n, p]`.

    Their mean is $\nabla f(\theta)$ whatever the anchor $\tilde\theta$.

    Args:
        loss: of one example, broadcasting; see `minibatch_gradient`.
        theta: `[p]`.
        anchor: $\tilde\theta$, `[p]`.
        examples: tensors with the $n$ examples in front, `[n, *]` each.

    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> corrected_gradients(half_square, torch.tensor([5.0]), torch.tensor([0.0]), x).tolist()
    [[3.0], [3.0]]
    """
    n = len(examples[0])
    single = [part.unsqueeze(1) for part in examples]
    here = minibatch_gradient(loss, theta.expand(n, -1), *single)
    there = minibatch_gradient(loss, anchor.expand(n, -1), *single)
    return here - there + there.mean(0)


def svrg_direction(
    loss: ExampleLoss, examples: Sequence[Tensor], indices: Tensor, refresh: int
) -> Direction:
    r"""Stochastic variance-reduced gradient, for `descend`.

    Every `refresh` steps the current iterate becomes the anchor $\tilde\theta$, at which the full
    gradient is computed; in between a step costs two gradients of its batch.

    Args:
        loss: of one example, broadcasting.
        examples: tensors with the $n$ examples in front, `[n, *]` each.
        indices: `[..., K, m]`, from `draw_batches`; the runs in front.
        refresh: steps between two full gradients.

    >>> from torchtheory.optimization.descent.iterates import last_iterate
    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> direction = svrg_direction(half_square, [x], torch.zeros(30, 1).long(), refresh=4)
    >>> round(last_iterate(direction, torch.zeros(1), [0.5] * 30).item(), 6)    # the mean of x
    2.0
    """
    whole_number(refresh, "refresh", least=1)
    batch = minibatch_direction(loss, examples, indices)
    anchor: list[Tensor] = []

    def direction(theta: Tensor, k: int) -> Tensor:
        if k % refresh == 0:
            everything = [part.expand(*theta.shape[:-1], *part.shape) for part in examples]
            anchor[:] = [theta, minibatch_gradient(loss, theta, *everything)]
        return batch(theta, k) - batch(anchor[0], k) + anchor[1]

    return direction


def saga_direction(
    loss: ExampleLoss, examples: Sequence[Tensor], indices: Tensor, start: Tensor
) -> Direction:
    r"""SAGA: the gradient of every example at the point where it was last seen, for `descend`.

    Memory: $n p$ numbers a run. A step costs one gradient.

    Args:
        loss: of one example, broadcasting.
        examples: tensors with the $n$ examples in front, `[n, *]` each.
        indices: `[..., K, 1]`, one example per step; the runs in front.
        start: `[..., p]`, where the gradients are first computed.

    >>> from torchtheory.optimization.descent.iterates import last_iterate
    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> chosen = torch.arange(40).reshape(40, 1) % 2
    >>> direction = saga_direction(half_square, [x], chosen, torch.zeros(1))
    >>> round(last_iterate(direction, torch.zeros(1), [0.3] * 40).item(), 3)
    2.0
    """
    batch = minibatch_direction(loss, examples, indices)
    n = len(examples[0])
    runs = start.shape[:-1]
    single = [part.unsqueeze(1).expand(*runs, n, 1, *part.shape[1:]) for part in examples]
    kept = minibatch_gradient(loss, start.unsqueeze(-2).expand(*runs, n, -1), *single).clone()

    def direction(theta: Tensor, k: int) -> Tensor:
        chosen = indices[..., k, 0]
        place = chosen[..., None, None].expand(*runs, 1, theta.shape[-1])
        fresh, old = batch(theta, k), torch.gather(kept, -2, place).squeeze(-2)
        move = fresh - old + kept.mean(-2)
        kept.scatter_(-2, place, fresh.unsqueeze(-2))
        return move

    return direction
