r"""What was written down of a descent: values, and where there are any, points and gradient norms.

The bounds of this room are about :math:`f(x_0),f(x_1),\dots`, whoever computed them: a formula
descended by :func:`~torchtheory.optimization.descent.gradient_descent`, a network trained with
``torch.optim``, or a list of losses from a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.optimization.descent import Descent

Numbers = Sequence[float] | np.ndarray[Any, Any] | Tensor


@dataclass(frozen=True, slots=True)
class RecordedRun:
    r"""One run of a descent method, or several independent ones of the same length.

    Attributes:
        values: :math:`f(x_k)`, ``[T]``, or ``[T, trials]``.
        times: the :math:`k` at which they were taken, ``[T]`` of integers, increasing.
        points: :math:`x_k`, ``[T, p]`` or ``[T, trials, p]``; None if they were not kept.
        gradient_norms: :math:`\|\nabla f(x_k)\|`, of the shape of ``values``; None if not kept.
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


AnyRun = RecordedRun | Descent | Numbers
"""A run in whichever form it was kept."""


def record_run(
    values: Numbers,
    *,
    points: Tensor | Sequence[Tensor] | None = None,
    gradient_norms: Numbers | None = None,
    times: Numbers | None = None,
) -> RecordedRun:
    r"""Put together what was written down of a run, refusing what does not fit together.

    Values may become infinite or NaN where a run diverged; they may not at its first entry.

    Args:
        values: :math:`f(x_k)`, ``[T]``, or ``[T, trials]`` for independent runs.
        points: :math:`x_k`, ``[T, p]`` or ``[T, trials, p]``, or a list of ``[p]``.
        gradient_norms: :math:`\|\nabla f(x_k)\|`, like ``values``.
        times: the :math:`k` of each entry, for losses that were kept every so many steps;
            0, 1, 2, ... unless given.

    >>> record_run([3.0, 1.0, 0.5], times=[0, 10, 20]).times.tolist()
    [0, 10, 20]
    """
    found = _numbers(values, "the values")
    if found.ndim not in (1, 2) or not found.numel():
        raise EmptyData("a run needs values [T], or [T, trials], of at least one point")
    if not bool(torch.isfinite(found[0]).all()):
        raise NonFinite("the first value of the run is NaN or infinite")
    norms = None if gradient_norms is None else _numbers(gradient_norms, "the gradient norms")
    if norms is not None and norms.shape != found.shape:
        raise ShapeMismatch(
            f"the gradient norms have shape {list(norms.shape)}, the values {list(found.shape)}"
        )
    if norms is not None and bool((norms < 0).any()):
        raise InvalidInput("a gradient norm is negative")
    if points is not None and not isinstance(points, Tensor):
        points = torch.stack([p.detach().reshape(-1) for p in points])
    if points is not None and points.shape[:-1] != found.shape:
        raise ShapeMismatch(
            f"the points have shape {list(points.shape)}; {list(found.shape)} values need "
            f"{[*found.shape, 'p']}"
        )
    return RecordedRun(
        found, _times(times, len(found)), None if points is None else points.detach(), norms
    )


def as_recorded(run: AnyRun) -> RecordedRun:
    """A run in whichever form it was kept: recorded, a :class:`Descent`, or a list of values.

    >>> as_recorded([2.0, 1.0]).values
    tensor([2., 1.], dtype=torch.float64)
    """
    if isinstance(run, RecordedRun):
        return run
    if isinstance(run, Descent):
        if run.values.ndim != 1:
            raise ShapeMismatch(
                f"the descent holds a batch of runs {list(run.values.shape)}; certify them one at "
                "a time, or give stochastic ones to record_run as [T, trials]"
            )
        return record_run(run.values, points=run.points, gradient_norms=run.gradient_norms)
    return record_run(run)


def _numbers(values: Numbers, name: str) -> Tensor:
    if isinstance(values, Tensor):
        if not values.is_floating_point():
            raise InvalidType(f"{name} must be floating-point numbers, not {values.dtype}")
        return values.detach().cpu()
    try:
        return torch.as_tensor(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be numbers, not {values!r:.60}") from None


def _times(times: Numbers | None, count: int) -> Tensor:
    if times is None:
        return torch.arange(count)
    found = torch.as_tensor(np.asarray(times))
    if found.shape != (count,):
        raise ShapeMismatch(f"{count} values need {count} times, not {list(found.shape)}")
    whole = found.long()
    if bool((whole != found).any()) or int(whole[0]) != 0 or bool((whole.diff() <= 0).any()):
        raise InvalidInput("times are whole numbers that start at 0 and increase")
    return whole
