"""Operations that choose entries by their sizes: the winner gets all of the relevance."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.explanation.propagation.marks import (
    Mark,
    constant_along,
    is_signal,
    mark_of,
    noted,
    reduced,
)
from torchtheory.explanation.propagation.names import function_named
from torchtheory.explanation.propagation.tracing import Handler, Propagation

_MAXIMA = """
    max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
"""


def _pooled_maximum(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """The largest entry of each window gets everything; of several, the first."""
    made = getattr(F, name)(x, *args, **named)
    constant_along(mark_of(x).samples, range(1, x.ndim))
    return _first_noted(made, mark_of(x))


def _first_noted(made: Any, mark: Mark) -> Any:
    noted(made if isinstance(made, Tensor) else made[0], mark)
    return made


def _chosen(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """Some entries along a dimension, by their sizes."""
    if not is_signal(x):
        return NotImplemented
    if args and isinstance(args[0], Tensor):
        return _larger(trace, {"max": "maximum", "min": "minimum"}[name], x, args[0])
    func = function_named(name)
    made = func(x, *args, **named)
    mark = mark_of(x)
    first = made if isinstance(made, Tensor) else made[0]
    if mark.samples is None:
        return _first_noted(made, mark)
    if name in ("sort", "topk", "msort"):
        dim = {"topk": 1, "sort": 0}.get(name, 0)
        along = named.get("dim", args[dim] if len(args) > dim else -1 if name != "msort" else 0)
        constant_along(mark.samples, [along])
        return _first_noted(made, mark)
    at = 1 if name == "kthvalue" else 0
    dims = named.get("dim", args[at] if len(args) > at else None)
    keep = bool(named.get("keepdim", args[at + 1] if len(args) > at + 1 else False))
    samples = reduced(mark.samples, dims, keep)
    assert samples is None or samples.ndim == first.ndim
    return _first_noted(made, Mark(samples, mark.gate, mark.depth))


def _larger(trace: Propagation, name: str, a: Any, b: Any) -> Any:
    """The larger or smaller of two; equal ones share."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return NotImplemented
    if is_signal(a) and is_signal(b):
        made = function_named(name)(a, b)
        return noted(made, trace.entrywise([a, b], made.ndim))
    signal, constant = (a, b) if is_signal(a) else (b, a)
    wins = signal.detach() >= constant if name == "maximum" else signal.detach() <= constant
    with trace:
        return torch.where(wins, signal, constant)


CHOICES: dict[str, Handler] = {
    **dict.fromkeys(_MAXIMA.split(), _pooled_maximum),
    **dict.fromkeys("amax amin max min sort topk msort kthvalue median".split(), _chosen),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), _larger),
}
