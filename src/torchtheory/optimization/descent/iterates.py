r"""Descent: $\Theta^{(k)}=\Theta^{(k-1)}-\eta_kD^{(k)}$, many runs at once.

With $D^{(k)}=\nabla h(\Theta^{(k-1)})$ it is gradient descent; with a random direction whose
conditional mean is the gradient it is stochastic gradient descent (The Modern Mathematics of Deep
Learning, Algorithm 1.1). Parameters are vectors along the last axis, `[..., p]`; everything in
front is a batch of independent runs. For a network with an `nn.Module` use `torch.optim.SGD`,
which is the same step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch

Function = Callable[[Tensor], Tensor]
"""A function of `[..., p]` with one value `[...]` a vector."""

Direction = Callable[[Tensor, int], Tensor]
"""The direction $D$ at `[..., p]` in iteration 0, 1, 2, ..., of the same shape."""


def descend(
    direction: Direction,
    start: Tensor,
    step_sizes: Sequence[float] | Tensor,
    projection: Function | None = None,
) -> Iterator[Tensor]:
    r"""The iterates $\Theta^{(0)},\dots,\Theta^{(K)}$ of
    $\Theta^{(k)}=P(\Theta^{(k-1)}-\eta_kD^{(k)})$, one after the other.

    Only the current iterate is held; `trajectory` keeps them all.

    Args:
        direction: $D$, see `gradient_of` and `minibatch_direction`.
        start: $\Theta^{(0)}$, `[..., p]`.
        step_sizes: $\eta_1,\dots,\eta_K$.
        projection: onto the set that holds the iterates; none unless given.

    >>> h = lambda x: x.square().sum(-1) / 2
    >>> path = descend(gradient_of(h), torch.tensor([[1.0], [8.0]]), [0.5, 0.5])
    >>> [x.flatten().tolist() for x in path]
    [[1.0, 8.0], [0.5, 4.0], [0.25, 2.0]]
    """
    check_start(start)
    etas = [float(eta) for eta in step_sizes]
    if not all(math.isfinite(eta) and eta >= 0 for eta in etas):
        raise InvalidInput(
            "every step size must be a finite number >= 0, not "
            f"{next(eta for eta in etas if not (math.isfinite(eta) and eta >= 0))!r}"
        )
    return _iterates(direction, start, etas, projection)


def _iterates(
    direction: Direction, theta: Tensor, step_sizes: Sequence[float], projection: Function | None
) -> Iterator[Tensor]:
    yield theta
    for k, eta in enumerate(step_sizes):
        move = direction(theta, k)
        if move.shape != theta.shape:
            raise ShapeMismatch(
                f"the direction has shape {list(move.shape)}, the parameters {list(theta.shape)}"
            )
        theta = theta - eta * move
        if projection is not None:
            theta = projection(theta)
        yield theta


def trajectory(
    direction: Direction,
    start: Tensor,
    step_sizes: Sequence[float] | Tensor,
    projection: Function | None = None,
) -> Tensor:
    r"""All iterates of `descend`, `[K + 1, ..., p]`.

    >>> h = lambda x: x.square().sum(-1) / 2
    >>> trajectory(gradient_of(h), torch.ones(1), [0.5, 0.5]).flatten().tolist()
    [1.0, 0.5, 0.25]
    """
    # filled in place: many small tensors that stay, between large ones that go, waste memory
    points = start.new_empty(len(step_sizes) + 1, *start.shape)
    for k, theta in enumerate(descend(direction, start, step_sizes, projection)):
        points[k] = theta
    return points


def last_iterate(
    direction: Direction,
    start: Tensor,
    step_sizes: Sequence[float] | Tensor,
    projection: Function | None = None,
) -> Tensor:
    r"""$\Theta^{(K)}$ of `descend`, `[..., p]`, holding one iterate at a time.

    >>> last_iterate(gradient_of(lambda x: x.square().sum(-1) / 2), torch.ones(1), [0.5] * 3)
    tensor([0.1250])
    """
    return deque(descend(direction, start, step_sizes, projection), maxlen=1).pop()


def average_iterate(
    direction: Direction,
    start: Tensor,
    step_sizes: Sequence[float] | Tensor,
    projection: Function | None = None,
) -> Tensor:
    r"""The average $\frac1K\sum_{k=0}^{K-1}\Theta^{(k)}$ of `descend`, `[..., p]`.

    It is over the points where directions were taken, the start among them and the last iterate
    not: the average of the theorem on convex functions. For a network,
    `torch.optim.swa_utils.AveragedModel` updated *before* each step is the same.

    >>> average_iterate(gradient_of(lambda x: x.square().sum(-1) / 2), torch.ones(1), [0.5] * 2)
    tensor([0.7500])
    """
    count = len(step_sizes)
    if count < 1:
        raise InvalidInput(f"an average needs at least one step, not {count!r}")
    total = torch.zeros_like(start)
    for theta in islice(descend(direction, start, step_sizes, projection), count):
        total += theta
    return total / count


def gradient_of(function: Function) -> Direction:
    r"""The gradient of a function of `[..., p]`, for all vectors of a batch in one pass.

    >>> gradient_of(lambda x: x.square().sum(-1))(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0)
    tensor([[2., 4.],
            [6., 8.]])
    """

    return lambda theta, _: value_and_gradient(function, theta)[1]


def value_and_gradient(function: Function, theta: Tensor) -> tuple[Tensor, Tensor]:
    r"""A function of `[..., p]` and its gradient, `[...]` and `[..., p]`, in one pass.

    >>> value_and_gradient(lambda x: x.square().sum(-1), torch.tensor([1.0, 2.0]))
    (tensor(5.), tensor([2., 4.]))
    """
    # several times faster than torch.func.grad on the small functions this is used for
    point = theta.detach().requires_grad_()
    with torch.enable_grad():
        values = function(point)
    if values.shape != theta.shape[:-1]:
        raise ShapeMismatch(
            f"the function maps {list(theta.shape)} to {list(values.shape)}; it must give one "
            f"value a vector, {list(theta.shape[:-1])}"
        )
    if not values.requires_grad:
        return values, torch.zeros_like(theta)
    return values.detach(), torch.autograd.grad(values.sum(), point)[0]


@dataclass(frozen=True, slots=True)
class Descent:
    """A run of gradient descent, or a batch of them.

    Attributes:
        points: `[T + 1, ..., p]`.
        values: `[T + 1, ...]`, the function there.
        gradient_norms: `[T + 1, ...]`.
    """

    points: Tensor
    values: Tensor
    gradient_norms: Tensor


def gradient_descent(function: Function, start: Tensor, step: float, steps: int) -> Descent:
    r"""Gradient descent $\theta^{t+1}=\theta^t-\eta\nabla h(\theta^t)$ with a constant step.

    On $\frac12\theta^\top A\theta$ the iterates are $(I-\eta A)^t\theta^0$: they
    converge for $\eta<2/\lambda_{\max}$, keep the size of their top component at equality and
    diverge beyond (values become infinite, without an error). Source: notes "Deep Learning", 3.2.

    Args:
        function: of `[..., p]`, with one value a vector.
        start: `[..., p]`.
        step: $\eta>0$.
        steps: $T$.

    Costs $T+1$ values and gradients; all points are kept.

    >>> run = gradient_descent(lambda x: x.square().sum(-1) / 2, torch.ones(1), 0.5, 3)
    >>> run.points.flatten().tolist(), run.gradient_norms.tolist()
    ([1.0, 0.5, 0.25, 0.125], [1.0, 0.5, 0.25, 0.125])
    """
    check_start(start)
    positive_number(step, "the step")
    whole_number(steps, "the number of iterations", least=0)
    points = start.new_empty(steps + 1, *start.shape)
    values, norms = (start.new_empty(steps + 1, *start.shape[:-1]) for _ in range(2))
    theta = start
    for t in range(steps + 1):
        points[t] = theta
        values[t], slope = value_and_gradient(function, theta)
        norms[t] = slope.norm(dim=-1)
        theta = theta - step * slope
    return Descent(points, values, norms)


def check_start(start: Tensor) -> None:
    """Refuse what is no batch of floating-point vectors."""
    if not isinstance(start, Tensor) or not start.is_floating_point():
        raise InvalidType(
            f"the start must be a tensor of floating-point numbers, not {described(start)}"
        )
    if start.ndim < 1 or start.shape[-1] < 1:
        raise ShapeMismatch(f"the start must be vectors [..., p], not {list(start.shape)}")
    all_finite(start, "the start")
