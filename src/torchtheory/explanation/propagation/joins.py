"""Moves that join several tensors; what entries of constants receive goes to the biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
from torchtheory.explanation.propagation.tracing import Handler, Step, node
from torchtheory.tracing.kinds import PADS


def _joined(
    step: Step,
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
    place, trace = step.place(depth), step.trace

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        from_signals = kept().to(relevance)
        stays = relevance * from_signals
        lost = relevance * (1 - from_signals)
        if bool(lost.any()):
            trace.book(place(), "moved", relevance, samples, [(stays, samples)], lost)
        return (relevance,)

    return noted(node(made.detach().clone(), back, [made]), mark)


def _ones(value: Any) -> Any:
    """1 for entries of signals, 0 for those of constants."""
    if isinstance(value, Tensor):
        like = torch.ones_like if value.requires_grad else torch.zeros_like
        return like(value.detach(), dtype=torch.float32)
    return 0.0


def _cat(step: Step) -> Any:
    tensors, dim, name = list(step["tensors"]), step["dim"], step.name
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
        step, made, signals, lambda: func([_ones(t) for t in tensors], dim), samples, constants
    )


def _agree(owners: Sequence[Tensor]) -> bool:
    return all(o.shape == owners[0].shape and torch.equal(o, owners[0]) for o in owners[1:])


def _alike(owners: Sequence[Tensor], along: int) -> list[Tensor]:
    shape = [max(o.shape[d] for o in owners) for d in range(owners[0].ndim)]
    return [o.expand(*shape[:along], o.shape[along], *shape[along + 1 :]) for o in owners]


def _pad(step: Step) -> Any:
    x, pad = step["input"], step.get("pad", step.get("padding"))
    constant = step.name == "constant_pad_nd" or step.get("mode", "") == "constant"
    samples = mark_of(x).samples
    padded = [x.ndim - 1 - k for k in range(len(pad) // 2) if pad[2 * k] or pad[2 * k + 1]]
    constant_along(samples, padded)
    return _joined(
        step, step.of(), [x], lambda: F.pad(torch.ones_like(x.detach()), pad), samples, constant
    )


def _windows(step: Step) -> Any:
    """Windows of images side by side, as `F.unfold` returns them; padding is a constant."""
    x, made = step.signals[0], step.of()
    samples = by_row(mark_of(x).samples, made.ndim)
    return _joined(step, made, [x], lambda: step.of((x, _ones(x).to(x.dtype))), samples, True)


def _copied(step: Step) -> Any:
    """`x.copy_(value)`: all entries of x are others from now on."""
    x, value = step.args if step.args else (step.kwargs["self"], step.kwargs["src"])
    if not is_signal(value):
        return step.of((x, x.detach()))
    cast = step.apply(Tensor.to, value, x.dtype)
    return step.apply(torch.clone, step.apply(Tensor.expand, cast, x.shape))


def _where(step: Step) -> Any:
    condition, a, b = step["condition"], step.get("input"), step.get("other")
    if a is None or b is None:
        return NotImplemented
    made = torch.where(condition, a, b)
    signals = [t for t in (a, b) if is_signal(t)]
    mark = step.entrywise(signals, made.ndim)

    def kept() -> Tensor:
        return torch.where(condition, _ones(a), _ones(b)).expand_as(made)

    return _joined(step, made, signals, kept, mark.samples, len(signals) < 2)


def _masked_fill(step: Step) -> Any:
    x, mask = step["input"], step["mask"]
    if not is_signal(x) or is_signal(step["value"]):
        return NotImplemented
    made = step.of()
    mark = step.entrywise([x], made.ndim)
    joined = _joined(step, made, [x], lambda: (~mask).expand_as(made), mark.samples, True)
    return noted(joined, mark)


def _triangle(step: Step) -> Any:
    x = step.signals[0]
    return _joined(step, step.of(), [x], lambda: step.of((x, _ones(x))), mark_of(x).samples, True)


def _assigned(step: Step) -> Any:
    """`x[index] = value`, or a part that was written to, put back where it came from."""
    if step.name == "put" and not isinstance(step.function, partial):
        return NotImplemented
    at = 2 if step.name == "setitem" else 1

    def of(whole: Any, part: Any) -> Tensor:
        made: Tensor = step.function(whole, *step.args[1:at], part, *step.args[at + 1 :])
        return made

    return _exchanged(step, step.args[0], step.args[at], of)


def _scattered(step: Step) -> Any:
    """The same by a function."""
    x, value = step["input"], step.get("values", step.get("src"))
    if step.get("accumulate", False):
        return NotImplemented
    return _exchanged(step, x, value, lambda whole, part: step.of((x, whole), (value, part)))


def _exchanged(step: Step, x: Tensor, value: Any, of: Callable[[Any, Any], Tensor]) -> Tensor:
    """Entries of x are put aside for others."""
    new = of(x, value)
    signals = [t for t in (x, value) if is_signal(t)]
    before, put = mark_of(x).samples, mark_of(value).samples
    samples = before
    if put is not None and (before is not None or not is_signal(x)):
        # where samples lie in a constant is known from the shape of what is put into it
        unknown = torch.full(x.shape, -1.0, device=x.device)
        numbers = of(
            unknown if before is None else before.expand(x.shape).clone(), put.expand(value.shape)
        )
        samples = _filled(numbers) if before is None else narrowed(numbers)
    return _joined(
        step, new, signals, lambda: of(_ones(x), _ones(value)), samples, len(signals) < 2
    )


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
    **dict.fromkeys(PADS, _pad),
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle,
    "triu": _triangle,
    **dict.fromkeys(("setitem", "put"), _assigned),
    **dict.fromkeys(("index_put", "slice_scatter", "select_scatter"), _scattered),
    "im2col": _windows,
    "copy": _copied,
}
