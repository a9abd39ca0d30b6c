"""Operations that choose entries by their sizes: the winner gets all of the relevance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.propagation.marks import (
    Mark,
    constant_along,
    is_signal,
    mark_of,
    noted,
    reduced,
)
from torchtheory.explanation.propagation.tracing import Handler, Step
from torchtheory.tracing.kinds import MAXIMA


def _pooled_maximum(step: Step) -> Any:
    """The largest entry of each window gets everything; of several, the first."""
    x = step.signals[0]
    constant_along(mark_of(x).samples, range(1, x.ndim))
    return _first_noted(step.of(), mark_of(x))


def _first_noted(made: Any, mark: Mark) -> Any:
    noted(made if isinstance(made, Tensor) else made[0], mark)
    return made


def _chosen(step: Step) -> Any:
    """Some entries along a dimension, by their sizes."""
    if len(step.signals) > 1 or isinstance(step.get("other"), Tensor):
        return _larger(step)
    x, made = step.signals[0], step.of()
    mark = mark_of(x)
    if mark.samples is None:
        return _first_noted(made, mark)
    dims = step.get("dim", 0 if step.name == "msort" else None)
    if step.name in ("sort", "topk", "msort"):
        constant_along(mark.samples, [dims])
        return _first_noted(made, mark)
    samples = reduced(mark.samples, dims, bool(step.get("keepdim", False)))
    return _first_noted(made, Mark(samples, mark.gate, mark.depth))


def _larger(step: Step) -> Any:
    """The larger or smaller of two; equal ones share."""
    a, b = step.first_two()
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return NotImplemented
    largest = step.name in ("max", "maximum")
    if is_signal(a) and is_signal(b):
        made = torch.maximum(a, b) if largest else torch.minimum(a, b)
        return noted(made, step.entrywise([a, b], made.ndim))
    signal, constant = (a, b) if is_signal(a) else (b, a)
    wins = signal.detach() >= constant if largest else signal.detach() <= constant
    return step.apply(torch.where, wins, signal, constant)


CHOICES: dict[str, Handler] = {
    **dict.fromkeys(MAXIMA, _pooled_maximum),
    **dict.fromkeys("amax amin max min sort topk msort kthvalue median".split(), _chosen),
    **dict.fromkeys(("maximum", "minimum"), _larger),
}
