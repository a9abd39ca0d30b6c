"""Moves that join several tensors; what entries of constants receive goes to the biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.explanation.propagation.marks import (
    Mark,
    SamplesMixed,
    by_row,
    constant_along,
    is_signal,
    mark_of,
    narrowed,
    noted,
)
from torchtheory.explanation.propagation.names import function_named
from torchtheory.explanation.propagation.tracing import Handler, Propagation


def _joined(
    trace: Propagation,
    name: str,
    made: Tensor,
    signals: Sequence[Tensor],
    kept: Callable[[], Tensor],
    samples: Tensor | None,
    constants: bool,
) -> Tensor:
    """A move of several tensors; relevance of entries that come from constants is noted."""
    depth = max(mark_of(s).depth for s in signals)
    gate = all(mark_of(s).gate for s in signals) and not constants
    mark = Mark(samples, gate, depth)
    if not constants:
        return noted(made, mark)
    place = trace.place(name, depth, weighted=False)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        from_signals = kept().to(relevance)
        stays = relevance * from_signals
        lost = relevance * (1 - from_signals)
        if bool(lost.any()):
            trace.book(place(), "moved", relevance, samples, [(stays, samples)], lost)
        return (relevance,)

    return noted(trace.node(made.detach().clone(), back, [made]), mark)


def _ones(value: Any) -> Any:
    """1 for entries of signals, 0 for those of constants."""
    if isinstance(value, Tensor):
        like = torch.ones_like if value.requires_grad else torch.zeros_like
        return like(value.detach(), dtype=torch.float32)
    return 0.0


def _cat(
    trace: Propagation, name: str, tensors: Any, dim: int = 0, *, axis: int | None = None
) -> Any:
    dim = dim if axis is None else axis
    tensors = list(tensors)
    func = getattr(torch, name)
    made = func(tensors, dim)
    signals = [t for t in tensors if is_signal(t)]
    owners = [mark_of(t).samples for t in signals]
    along = dim % made.ndim
    samples: Tensor | None = None
    known = [o for o in owners if o is not None]
    if known:
        # a new dimension of a stack is one along which samples do not change, yet
        if name == "stack":
            known = [o.unsqueeze(along) for o in known]
        if all(o.shape[along] == 1 for o in known) and _agree(known):
            samples = known[0]
        elif len(known) == len(tensors):
            whole = [
                o if name == "stack"
                else o.expand(*o.shape[:along], t.shape[along], *o.shape[along + 1 :])
                for o, t in zip(known, tensors, strict=True)
            ]  # fmt: skip
            samples = narrowed(torch.cat(_alike(whole, along), along))
        else:
            raise SamplesMixed
    constants = len(signals) < len(tensors)
    return _joined(
        trace, name, made, signals, lambda: func([_ones(t) for t in tensors], dim), samples,
        constants,
    )  # fmt: skip


def _agree(owners: Sequence[Tensor]) -> bool:
    return all(o.shape == owners[0].shape and torch.equal(o, owners[0]) for o in owners[1:])


def _alike(owners: Sequence[Tensor], along: int) -> list[Tensor]:
    shape = [max(o.shape[d] for o in owners) for d in range(owners[0].ndim)]
    return [o.expand(*shape[:along], o.shape[along], *shape[along + 1 :]) for o in owners]


def _side_by_side(trace: Propagation, name: str, tensors: Any) -> Any:
    """`hstack`, `vstack`, `dstack` as what they are."""
    at_least = {"hstack": torch.atleast_1d, "vstack": torch.atleast_2d, "dstack": torch.atleast_3d}
    with trace:
        tensors = [at_least[name](t) for t in tensors]  # type: ignore[no-untyped-call]
        ndim = tensors[0].ndim
        dim = {"hstack": 0 if ndim == 1 else 1, "vstack": 0, "dstack": 2}[name]
        return torch.cat(tensors, dim)


def _pad(
    trace: Propagation, name: str, x: Tensor, pad: Any, mode: str = "constant", value: Any = None
) -> Any:
    made = F.pad(x, pad, mode, value)
    samples = mark_of(x).samples
    padded = [x.ndim - 1 - k for k in range(len(pad) // 2) if pad[2 * k] or pad[2 * k + 1]]
    constant_along(samples, padded)
    return _joined(
        trace, name, made, [x], lambda: F.pad(torch.ones_like(x.detach()), pad), samples,
        mode == "constant",
    )  # fmt: skip


def _windows(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """Windows of images side by side, as `F.unfold` returns them; padding is a constant."""
    func = function_named(name)
    made = func(x, *args, **named)
    return _joined(
        trace, name, made, [x], lambda: func(torch.ones_like(x.detach()), *args, **named),
        by_row(mark_of(x).samples, made.ndim), True,
    )  # fmt: skip


def _copied(trace: Propagation, name: str, x: Tensor, value: Any, *_: Any, **named: Any) -> Any:
    """`x.copy_(value)`: all entries of x are others from now on."""
    with trace:
        return value.to(x.dtype).expand(x.shape).clone()


def _where(trace: Propagation, name: str, condition: Tensor, a: Any = None, b: Any = None) -> Any:
    if a is None or b is None:
        return NotImplemented
    made = torch.where(condition, a, b)
    signals = [t for t in (a, b) if is_signal(t)]
    mark = trace.entrywise(signals, made.ndim)
    return _joined(
        trace,
        name,
        made,
        signals,
        lambda: torch.where(condition, _ones(a), _ones(b)).expand_as(made),
        mark.samples,
        len(signals) < 2,
    )


def _masked_fill(trace: Propagation, name: str, x: Tensor, mask: Tensor, value: Any) -> Any:
    if not is_signal(x) or is_signal(value):
        return NotImplemented
    made = x.masked_fill(mask, value)
    mark = trace.entrywise([x], made.ndim)
    joined = _joined(trace, name, made, [x], lambda: (~mask).expand_as(made), mark.samples, True)
    return noted(joined, mark)


def _triangle(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    func = getattr(torch, name)
    made = func(x, *args, **named)
    return _joined(
        trace, name, made, [x], lambda: func(torch.ones_like(x.detach()), *args, **named),
        mark_of(x).samples, True,
    )  # fmt: skip


def _assigned(trace: Propagation, name: str, x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`: entries of x are put aside for others."""
    new = x.clone()
    new[index] = value
    signals = [t for t in (x, value) if is_signal(t)]
    before, put = mark_of(x).samples, mark_of(value).samples
    samples = before
    if put is not None and (before is not None or not is_signal(x)):
        # where samples lie in a constant is known from the shape of what is put into it
        unknown = torch.full(x.shape, -1.0, device=x.device)
        numbers = unknown if before is None else before.expand(x.shape).clone()
        numbers[index] = put.expand(value.shape)
        samples = _filled(numbers) if before is None else narrowed(numbers)

    def kept() -> Tensor:
        mask: Tensor = _ones(x)
        mask[index] = _ones(value)
        return mask

    made = _joined(trace, "assignment", new, signals, kept, samples, len(signals) < 2)
    trace.write(x, made)
    trace.unwritten(x, value)


def _filled(numbers: Tensor) -> Tensor:
    """Samples of entries of which only some are known: those along dimensions where all agree."""
    for d in range(numbers.ndim):
        best = numbers.amax(d, keepdim=True)
        if bool(((numbers == best) | (numbers < 0)).all()):
            numbers = best
    if bool((numbers < 0).any()):
        raise SamplesMixed
    return numbers


JOINS: dict[str, Handler] = {
    "cat": _cat,
    "stack": _cat,
    **dict.fromkeys(("hstack", "vstack", "dstack"), _side_by_side),
    "pad": _pad,
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle,
    "triu": _triangle,
    "__setitem__": _assigned,
    "im2col": _windows,
    "copy": _copied,
}
