r"""What was written down of a descent: values, and where there are any, points and gradient norms.

The bounds of this room are about $f(x_0),f(x_1),\dots$, whoever computed them: a formula
descended by `gradient_descent`, a network trained with
`torch.optim` or with `torchtheory.training.fit`, or a list of losses from a log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from torchtheory.core.checks import described, first_entry, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.optimization.descent.iterates import Descent, Function, value_and_gradient
from torchtheory.training.loop.history import History

Numbers = Sequence[float] | Sequence[Tensor] | np.ndarray[Any, Any] | Tensor
Points = Tensor | np.ndarray[Any, Any] | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    r"""One run of a descent method, or several independent ones of the same length.

    Attributes:
        values: $f(x_k)$, `[T]`, or `[T, trials]`.
        times: the $k$ at which they were taken, `[T]` of integers, increasing.
        points: $x_k$, `[T, p]` or `[T, trials, p]`; None if they were not kept.
        gradient_norms: $\|\nabla f(x_k)\|$, of the shape of `values`; None if not kept.
    """

    values: Tensor
    times: Tensor
    points: Tensor | None = None
    gradient_norms: Tensor | None = None

    @property
    def every_step(self) -> bool:
        """Whether no step from 0 to the last one is missing."""
        return bool((self.times == torch.arange(len(self.times))).all())

    @property
    def trials(self) -> int:
        """How many independent runs it holds."""
        return 1 if self.values.ndim == 1 else self.values.shape[1]


AnyRun = RecordedRun | Descent | History | Numbers
"""A run in whichever form it was kept."""


def record_run(
    values: Numbers,
    *,
    points: Points | None = None,
    gradient_norms: Numbers | None = None,
    times: Numbers | None = None,
) -> RecordedRun:
    r"""Put together what was written down of a run, refusing what does not fit together.

    Values may become infinite or NaN where a run diverged; they may not at its first entry. What
    counts as rounding follows from their precision: give the losses of a training in single
    precision as a `float32` tensor, not as Python's numbers, which are taken for exact to 16
    digits.

    Args:
        values: $f(x_k)$, `[T]`, or `[T, trials]` for independent runs.
        points: $x_k$, `[T, p]` or `[T, trials, p]`, or a list of `[p]`.
        gradient_norms: $\|\nabla f(x_k)\|$, like `values`.
        times: the $k$ of each entry, for losses that were kept every so many steps;
            0, 1, 2, ... unless given.

    >>> record_run([3.0, 1.0, 0.5], times=[0, 10, 20]).times.tolist()
    [0, 10, 20]
    """
    found = _numbers(values, "the values")
    if found.ndim not in (1, 2):
        raise ShapeMismatch(f"a run has values [T], or [T, trials], not {list(found.shape)}")
    if not found.numel():
        raise EmptyData(f"a run needs the value of at least one point, not {list(found.shape)}")
    if not bool(torch.isfinite(found[0]).all()):
        raise NonFinite(
            "the first value of the run is NaN or infinite: "
            f"{first_entry(found[0], 'the value', ~torch.isfinite(found[0]))}"
        )
    norms = None if gradient_norms is None else _numbers(gradient_norms, "the gradient norms")
    if norms is not None and norms.shape != found.shape:
        raise ShapeMismatch(
            f"the gradient norms have shape {list(norms.shape)}, the values {list(found.shape)}"
        )
    if norms is not None and bool((norms < 0).any()):
        raise InvalidInput(
            f"a gradient norm is negative: {first_entry(norms, 'gradient_norms', norms < 0)}"
        )
    places = None if points is None else _points(points)
    if places is not None and places.shape[:-1] != found.shape:
        raise ShapeMismatch(
            f"the points have shape {list(places.shape)}; {list(found.shape)} values need "
            f"{[*found.shape, 'p']}"
        )
    return RecordedRun(found, _times(times, len(found)), places, norms)


def record_points(function: Function, points: Points) -> RecordedRun:
    r"""A record of iterates that someone else computed: the function and its gradient at each.

    Args:
        function: of `[..., p]`, with one value a vector. For a network,
            `objective_of` gives it.
        points: $x_0,x_1,\dots$, `[T, p]`, or `[T, trials, p]` for independent runs, or a
            list of `[p]`.

    Costs one value and gradient a point, all in one pass.

    >>> path = [torch.tensor([1.0]), torch.tensor([0.5])]
    >>> found = record_points(lambda x: x.square().sum(-1), path)
    >>> found.values, found.gradient_norms
    (tensor([1.0000, 0.2500]), tensor([2., 1.]))
    """
    places = _points(points)
    values, slopes = value_and_gradient(function, places)
    return record_run(values, points=places, gradient_norms=slopes.norm(dim=-1))


def record_optimizer(
    optimizer: Optimizer, closure: Callable[[], Tensor], steps: int, *, keep_points: bool = True
) -> RecordedRun:
    r"""Run an optimizer, writing down the loss, the gradient's norm and the point before each step.

    The parameters are trained, as in a loop of one's own.

    Args:
        optimizer: any of `torch.optim` or of `torchtheory.training`.
        closure: clears the gradients, computes the loss *on all data* and its gradient, and returns
            the loss; as for `torch.optim.LBFGS`. A loss on a batch is not $f(x_k)$.
        steps: how many; the record has one entry more.
        keep_points: all points, $O(Tp)$ memory; without them less can be checked.

    Costs two evaluations of the closure a step: the optimizer may ask for one of its own.

    >>> x = torch.ones(1, requires_grad=True)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = x.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer = torch.optim.SGD([x], lr=0.25)
    >>> run = record_optimizer(optimizer, closure, 2)
    >>> run.values.tolist(), run.points.flatten().tolist(), run.gradient_norms.tolist()
    ([1.0, 0.25, 0.0625], [1.0, 0.5, 0.25], [2.0, 1.0, 0.5])
    """
    whole_number(steps, "the number of steps", least=0)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    values, norms, points = [], [], []
    for k in range(steps + 1):
        with torch.enable_grad():
            loss = closure()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise InvalidType(
                f"the closure must return the loss, a tensor with one number, not {described(loss)}"
            )
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        values.append(loss.detach().reshape(()).clone())
        norms.append(torch.cat([g.detach().reshape(-1) for g in slopes]).norm())
        if keep_points:
            points.append(torch.cat([p.detach().reshape(-1) for p in trained]))
        if k < steps:
            optimizer.step(closure)  # type: ignore[arg-type]
    return record_run(
        torch.stack(values),
        points=torch.stack(points) if keep_points else None,
        gradient_norms=torch.stack(norms),
    )


def as_recorded(run: AnyRun) -> RecordedRun:
    """A run in whichever form it was kept: recorded, a `Descent`, a history, or values.

    Of a `History` the training losses are taken as
    $f(x_0),f(x_1),\\dots$, which they are if every epoch was one step on all data: with
    `batch_size` at least the number of samples, and without dropout, augmentation or weight
    decay. A learning rate that changed is refused: the promises are about constant steps.

    >>> as_recorded([2.0, 1.0]).values
    tensor([2., 1.], dtype=torch.float64)
    """
    if isinstance(run, RecordedRun):
        return run
    if isinstance(run, History):
        if len({e.learning_rate for e in run.epochs}) > 1:
            raise InvalidInput(
                "the learning rate changed during the training; the promises are about constant "
                "steps: give the losses of a part with one"
            )
        return record_run(run.train_losses)
    if isinstance(run, Descent):
        if run.values.ndim != 1:
            raise ShapeMismatch(
                f"the descent holds a batch of runs {list(run.values.shape)}; certify them one at "
                "a time, or give stochastic ones to record_run as [T, trials]"
            )
        return record_run(run.values, points=run.points, gradient_norms=run.gradient_norms)
    return record_run(run)


def _numbers(values: Numbers, name: str) -> Tensor:
    if callable(values):
        raise InvalidType(
            "a function is no record: record_points(function, points) makes one, and of a closure "
            "record_optimizer(optimizer, closure, steps)"
        )
    if isinstance(values, Sequence) and len(values) and isinstance(values[0], Tensor):
        tensors = [v for v in values if isinstance(v, Tensor)]
        if len(tensors) < len(values) or any(v.numel() != 1 for v in tensors):
            raise InvalidType(
                f"{name} must be numbers; of a list of points record_points(function, points) "
                "makes a record"
            )
        values = torch.stack([v.detach().reshape(()) for v in tensors])
    if isinstance(values, Tensor):
        if not values.is_floating_point():
            raise InvalidType(f"{name} must be floating-point numbers, not {values.dtype}")
        return values.detach().cpu()
    try:
        return torch.as_tensor(np.array(values, dtype=np.float64))
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be numbers, not {values!r:.60}") from None


def _points(points: Points) -> Tensor:
    if not isinstance(points, Tensor):
        rows = [torch.as_tensor(p).detach() for p in points]
        if not rows:
            raise EmptyData("a run needs at least one point")
        if len({p.shape for p in rows}) > 1:
            raise ShapeMismatch(
                "the points must all have the same shape, not "
                f"{sorted({tuple(p.shape) for p in rows})}"
            )
        points = torch.stack(rows)
    if not points.is_floating_point() or points.ndim < 2 or not points.numel():
        raise InvalidType(
            f"points are floating-point vectors [T, p], not {points.dtype} {list(points.shape)}"
        )
    return points.detach().cpu()


def _times(times: Numbers | None, count: int) -> Tensor:
    if times is None:
        return torch.arange(count)
    found = _numbers(np.asarray(times).tolist(), "the times")
    if found.shape != (count,):
        raise ShapeMismatch(f"{count} values need {count} times, not {list(found.shape)}")
    whole = found.long()
    if bool((whole != found).any()) or int(whole[0]) != 0 or bool((whole.diff() <= 0).any()):
        raise InvalidInput(
            f"times are whole numbers that start at 0 and increase, not {described(found.tolist())}"
        )
    return whole
