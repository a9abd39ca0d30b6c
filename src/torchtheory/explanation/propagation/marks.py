"""What is known of a tensor inside the network besides its numbers.

Books are kept per sample, but inside a network a sample need not be a row: a recurrent layer has
time first, attention puts samples and heads into one dimension. So each tensor carries for every
entry the number of its sample, as a tensor with size 1 along dimensions where it does not change,
which goes through the same moves as the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_NAME = "_torchtheory_mark"


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known of a tensor.

    Attributes:
        samples: number of the sample of each entry, broadcastable to the tensor; None if unknown.
        gate: whether it came out of a sigmoid, a softmax or the like, which let pass what they are
            multiplied with.
        depth: layers with weights between it and the input, at most.
        ends: name of the normalizing function that it came out of, if it did.
        below: whether it is 1 over something, so that as a factor it is a denominator.
        refused: what to say if relevance arrives, for a tensor that was made without a rule.
    """

    samples: Tensor | None
    gate: bool = False
    depth: int = 0
    ends: str = ""
    below: bool = False
    refused: str = ""


class SamplesMixed(Exception):
    """Entries of several samples are needed for one."""


def mark_of(tensor: Any) -> Mark:
    """What is known of a tensor; nothing, unless somebody noted it."""
    found = getattr(tensor, _NAME, None)
    return found if isinstance(found, Mark) else Mark(None)


def is_signal(value: Any) -> bool:
    """Whether it is a tensor of the pass, which relevance may come to."""
    return isinstance(value, Tensor) and value.requires_grad


def noted(tensor: Tensor, mark: Mark) -> Tensor:
    """The tensor, with what is known of it."""
    setattr(tensor, _NAME, mark)
    return tensor


def numbered(points: Tensor) -> Tensor:
    """Samples of points `[n, ...]`, one per row."""
    numbers = torch.arange(len(points), dtype=torch.float32, device=points.device)
    return numbers.reshape(-1, *[1] * (points.ndim - 1))


def moved(samples: Tensor | None, shape: torch.Size, move: Callable[[Tensor], Any]) -> Any:
    """What a move of a tensor of this shape makes of the numbers of its samples.

    The same structure as the move returns, with None in place of what is unknown.
    """
    if samples is None:
        return None
    made = move(samples.expand(shape))
    if isinstance(made, Tensor):
        return narrowed(made)
    return [narrowed(m) if isinstance(m, Tensor) else None for m in made]


def narrowed(numbers: Tensor) -> Tensor:
    """With size 1 along dimensions where nothing changes."""
    free = [d for d in range(numbers.ndim) if numbers.shape[d] > 1 and numbers.stride(d) == 0]
    for d in free:
        numbers = numbers.narrow(d, 0, 1)
    for d in range(numbers.ndim):
        if numbers.shape[d] > 1 and bool((numbers == numbers.narrow(d, 0, 1)).all()):
            numbers = numbers.narrow(d, 0, 1)
    return numbers


def together(all_samples: Sequence[Tensor | None], ndim: int) -> Tensor | None:
    """Samples of the result of an operation that acts entry by entry and broadcasts.

    Raises:
        SamplesMixed: if an entry of the result belongs to several samples.
    """
    joined: Tensor | None = None
    for samples in all_samples:
        if samples is None or samples is joined:
            continue
        own = samples.reshape(*[1] * (ndim - samples.ndim), *samples.shape)
        if joined is not None:
            if not bool((joined == own).all()):
                raise SamplesMixed
            # equal though broadcast: along a dimension that one of them lacks, nothing changes
            own = own if own.numel() <= joined.numel() else joined
        joined = own
    return joined


def constant_along(samples: Tensor | None, dims: Sequence[int]) -> None:
    """Refuse what sums over several samples."""
    if samples is not None and any(samples.shape[d] > 1 for d in dims):
        raise SamplesMixed


def by_row(samples: Tensor | None, ndim: int) -> Tensor | None:
    """Samples of the result of an operation within rows, which may have another shape.

    Raises:
        SamplesMixed: if a row has entries of several samples.
    """
    if samples is None:
        return None
    constant_along(samples, range(1, samples.ndim))
    return samples.reshape(-1, *[1] * (ndim - 1))


def reduced(samples: Tensor | None, dims: Any, keep: bool) -> Tensor | None:
    """Samples of sums along dimensions; all of them for None."""
    if samples is None:
        return None
    over = range(samples.ndim) if dims is None or dims == () or dims == [] else dims
    over = [over] if isinstance(over, int) else list(over)
    constant_along(samples, over)
    return samples.amax(over, keepdim=keep) if samples.ndim else samples


def totals(values: Tensor, samples: Tensor | None, count: int) -> Tensor:
    """Sums over the entries of each sample, `[count]`."""
    made = values.new_zeros(count)
    if samples is None:  # nobody will see them: what follows has no rule
        return made
    over = [d for d in range(values.ndim) if samples.shape[d] == 1]
    if over:
        values = values.sum(over, keepdim=True)
    return made.index_add_(0, samples.reshape(-1).long(), values.reshape(-1))


def weighted_totals(values: Tensor, weights: Tensor, samples: Tensor | None, count: int) -> Tensor:
    """Sums of values times weights that are broadcast to them, over the entries of each sample."""
    wide = weights.reshape(*[1] * (values.ndim - weights.ndim), *weights.shape)
    if samples is not None:
        # along dimensions where neither changes, values are added up first
        over = [d for d in range(values.ndim) if samples.shape[d] == 1 and wide.shape[d] == 1]
        values = values.sum(over, keepdim=True) if over else values
    return totals(values * wide, samples, count)
