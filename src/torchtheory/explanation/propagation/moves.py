"""Operations that put entries elsewhere, repeat or leave out some, or do nothing.

They need no rule: the derivative takes the relevance of every entry where the entry came from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.propagation.marks import Mark, is_signal, mark_of, moved, noted
from torchtheory.explanation.propagation.tracing import Handler, Step
from torchtheory.tracing.kinds import Kind

_SAME = """
    to float double half bfloat16 type type_as cpu cuda contiguous clone alias requires_grad
    positive identity lift_fresh resolve_conj resolve_neg
"""


def _move(step: Step) -> Any:
    """An operation that puts entries of one signal elsewhere, or repeats or leaves out some."""
    if step.name.startswith("atleast") and len(step.args) > 1:  # several, each for itself
        return tuple(step.apply(step.function, t) for t in step.args)
    x = step.args[0] if step.args else step.signals[0]
    if not is_signal(x):
        return NotImplemented
    made, mark = step.of(), mark_of(x)
    if isinstance(made, Tensor) and not made.requires_grad:
        return made  # a copy that no slope passes

    def of_samples(numbers: Tensor) -> Any:
        # they are laid out in another way, so that they have no such view
        if step.name in ("view", "view_as"):
            return torch.reshape(numbers, made.shape)
        return step.of((x, numbers))

    return _noted_like(made, moved(mark.samples, x.shape, of_samples), mark)


def _noted_like(made: Any, samples: Any, mark: Mark) -> Any:
    if isinstance(made, Tensor):
        return noted(made, replace(mark, samples=samples))
    each = [None] * len(made) if samples is None else samples
    for t, s in zip(made, each, strict=True):
        noted(t, replace(mark, samples=s))
    return made


def _same(step: Step) -> Any:
    """A cast, or a copy."""
    x, made = step.signals[0], step.of()
    return noted(made, mark_of(x)) if made is not x and is_signal(made) else made


def _emptied(step: Step) -> Any:
    """Constants in the place of a signal."""
    if len(step.args) > 1 and is_signal(step.args[1]):
        return NotImplemented
    return step.of().detach()


MOVES: dict[str, Handler] = {
    **dict.fromkeys(_SAME.split(), _same),
    **dict.fromkeys(("fill", "zero"), _emptied),
}

#: Whatever else moves or selects entries; strides of samples are none of the tensor's.
BY_KIND: dict[Kind, Handler] = {
    "moves": _move,
    "selects": lambda step: NotImplemented if step.name == "as_strided" else _move(step),
}
