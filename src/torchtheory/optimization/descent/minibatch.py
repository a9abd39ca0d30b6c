r"""Mini-batches: which examples a step sees, and the gradient on them.

The loss of one example is a function `loss(theta, *example)` that broadcasts: parameters
`[..., p]` and examples `[..., d]` (and targets `[...]`) give `[...]`. The choice of
examples is an explicit tensor of indices, so that two runs can be coupled by giving both the same
one. Sources: notes "Deep Learning", 3.4; slides, Algorithm 8.1; The Modern Mathematics of Deep
Learning, Eq. (1.8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.optimization.descent.iterates import Direction

Sampling = Literal["subset", "replacement", "epoch"]
ExampleLoss = Callable[..., Tensor]

#: Random numbers that are held at once to draw subsets.
HELD = 10**7


def draw_batches(
    samples: int,
    batch: int,
    steps: int,
    *,
    trials: Sequence[int] = (),
    sampling: Sampling = "subset",
    generator: RandomSource = None,
) -> Tensor:
    r"""Indices `[*trials, steps, batch]` of the examples of every step.

    Args:
        samples: $n$.
        batch: $m\le n$ (any number with `replacement`).
        steps: number of steps.
        trials: shape of the batch of independent runs.
        sampling: `subset`, a uniformly random subset of size $m$ in every step;
            `replacement`, $m$ independent draws; `epoch`, a random order of all examples
            cut into $n/m$ batches, then the next order (then $m$ must divide
            $n$). The first two give an unbiased gradient at every step; the third only over
            an epoch, not given what the epoch has shown so far.
        generator: seed or generator.

    `subset` with $m>1$ draws $n$ numbers a step, some $10^7$ at a time.

    >>> draw_batches(4, 2, 2, sampling="epoch").flatten().sort().values.tolist()
    [0, 1, 2, 3]
    """
    if samples < 1:
        raise EmptyData("there is no example to draw from")
    if not isinstance(batch, int) or not isinstance(steps, int) or steps < 0 or batch < 1:
        raise InvalidInput(
            "batch and iterations are whole numbers, with at least one example in a batch, not "
            f"{batch!r} and {steps!r}"
        )
    if sampling not in ("subset", "replacement", "epoch"):
        raise UnknownName("sampling", sampling, ["subset", "replacement", "epoch"])
    if sampling != "replacement" and batch > samples:
        raise InvalidInput(f"a batch of {batch} different examples out of {samples} does not exist")
    random = as_generator(generator)
    shape = tuple(trials)
    if sampling == "replacement" or (sampling == "subset" and batch == 1):
        size = (*shape, steps, batch)
        return torch.randint(samples, size, generator=random, device=random.device)
    if sampling == "epoch":
        if samples % batch:
            raise InvalidInput(f"batches of {batch} do not cut {samples} examples evenly")
        epochs = -(-steps * batch // samples)
        order = _random_orders((*shape, epochs), samples, random)
        return order.reshape(*shape, -1, batch)[..., :steps, :]
    total = math.prod((*shape, steps))
    held = max(1, HELD // samples)
    parts = [
        torch.rand((min(held, total - k), samples), generator=random, device=random.device)
        .topk(batch, largest=False)
        .indices
        for k in range(0, total, held)
    ]
    made = torch.cat(parts) if parts else torch.empty(0, batch, dtype=torch.long)
    return made.reshape(*shape, steps, batch)


def minibatch_gradient(loss: ExampleLoss, theta: Tensor, *examples: Tensor) -> Tensor:
    r"""$\frac1m\sum_i\nabla_\theta\ell(\theta,z_i)$, `[..., p]`.

    Args:
        loss: of one example, broadcasting.
        theta: `[..., p]`.
        examples: each `[..., m, *]`, the examples of the batch on the axis after the runs.

    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> minibatch_gradient(half_square, torch.zeros(1), torch.tensor([[1.0], [3.0]]))
    tensor([-2.])
    """
    if not examples or not all(part.numel() for part in examples):
        raise EmptyData("there is no example to take a gradient at")
    if theta.ndim < 1 or not theta.is_floating_point():
        raise InvalidType(
            f"parameters are floating-point vectors [..., p], not {theta.dtype} of shape "
            f"{list(theta.shape)}"
        )
    point = theta.detach().requires_grad_()
    with torch.enable_grad():
        each = loss(point.unsqueeze(-2), *examples)
    if each.ndim != theta.ndim or each.shape[:-1] != theta.shape[:-1]:
        raise ShapeMismatch(
            "the loss of one example must broadcast to [..., m], one number an example, and gives "
            f"{list(each.shape)} for parameters {list(theta.shape)}"
        )
    return torch.autograd.grad(each.sum() / each.shape[-1], point)[0]


def minibatch_direction(
    loss: ExampleLoss, examples: Sequence[Tensor], indices: Tensor
) -> Direction:
    r"""The direction of stochastic gradient descent, for
    `descend`.

    Args:
        loss: of one example, broadcasting.
        examples: tensors with the $n$ examples in front, `[n, *]` each.
        indices: `[..., K, m]`, from `draw_batches`; the runs in front.

    >>> from torchtheory.optimization.descent.iterates import descend
    >>> half_square = lambda theta, x: (theta - x).square().sum(-1) / 2
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> direction = minibatch_direction(half_square, [x], torch.tensor([[0], [1]]))
    >>> path = descend(direction, torch.zeros(1), [1, 0.5])
    >>> [theta.item() for theta in path]                # the running mean of what was seen
    [0.0, 1.0, 2.0]
    """
    if not examples or not len(examples[0]):
        raise EmptyData("there is no example to descend on")
    n = len(examples[0])
    if any(len(part) != n for part in examples):
        raise ShapeMismatch(f"the examples have {[len(part) for part in examples]} rows")
    if indices.ndim < 2 or indices.is_floating_point():
        raise ShapeMismatch(
            f"indices are whole numbers [..., K, m], not {indices.dtype} of shape "
            f"{list(indices.shape)}"
        )
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < n:
        raise InvalidInput(f"an index lies outside 0..{n - 1}")

    def direction(theta: Tensor, k: int) -> Tensor:
        chosen = indices[..., k, :]
        return minibatch_gradient(loss, theta, *[part[chosen] for part in examples])

    return direction


def _random_orders(shape: tuple[int, ...], samples: int, generator: torch.Generator) -> Tensor:
    keys = torch.rand((*shape, samples), generator=generator, device=generator.device)
    return keys.argsort(-1)
