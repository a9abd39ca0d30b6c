"""Operations that move entries about, followed by numbering the entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.graph import Picks
from torchtheory.robustness.bounds.vertices import Signal, run_with, signals_in, source_of, vertex
from torchtheory.tracing.interpret import Call

#: What is added to the numbers of entries, so that they are told from numbers of the network.
_APART = 2.0**40

#: Entries up to which the same ones that are picked twice are one value.
_REMEMBERED = 2**16


def picks(call: Call) -> Any:
    """A rule for all operations whose results are entries of what they are given."""
    return picked(call.function, call.args, call.kwargs)


def picked(function: Callable[..., Any], args: Any, options: Any = None) -> Any:
    """What a function does to numbers it does to entries.

    Every entry has a number. The function runs on the numbers, and on the numbers moved: what does
    not move with them is a constant, which a third run on zeros shows.
    """
    options = options or {}
    among = signals_in((args, options))
    tags, start = {}, 0
    for signal in among:
        numbers = torch.arange(start, start + signal.entries, dtype=torch.float64)
        tags[id(signal)] = numbers.reshape(signal.shape).to(among[0].graph.like.device)
        start += signal.entries
    moved = {k: t + _APART for k, t in tags.items()}
    like = among[0].graph.like
    zeros = {id(s): like.new_zeros(s.shape) for s in among}
    runs = (
        run_with(function, args, options, tags, torch.Tensor.double),
        run_with(function, args, options, moved, torch.Tensor.double),
        run_with(function, args, options, zeros, lambda t: t.to(like.dtype)),
    )
    if isinstance(runs[0], Tensor):
        return _made(among, *runs)
    return tuple(_made(among, *each) for each in zip(*runs, strict=True))


def _made(among: Sequence[Signal], numbers: Tensor, moved: Tensor, filled: Tensor) -> Signal:
    graph = among[0].graph
    shape = tuple(filled.shape)
    flat = numbers.reshape(-1)
    free = (moved.reshape(-1) == flat) | flat.isnan()
    constant = hidden = None
    if bool(free.any()):
        constant = torch.where(free, filled.reshape(-1).to(graph.like.dtype), 0.0)
        gone = hides(constant)
        if bool(gone.any()):
            hidden, constant = gone, torch.where(gone, 0.0, constant)
        if not bool(constant.isfinite().all()):
            raise UnsupportedModel(f"the network fills entries with infinity (in {graph.name})")
    rows = flat.nan_to_num(0, 0, 0).long()
    operands, places, sources = [], [], []
    first = 0
    for signal in among:
        inside = ~free & (rows >= first) & (rows < first + signal.entries)
        place, source = inside.nonzero()[:, 0], rows[inside] - first
        first += signal.entries
        if signal.hidden is not None:
            lost = torch.zeros_like(inside)
            lost[place] = signal.hidden.reshape(-1)[source]
            hidden = lost if hidden is None else hidden | lost
        if len(place):
            below = source_of(signal)
            if below is None:
                operands.append(Signal(graph, signal.place, signal.shape))
            else:  # picked from what was picked itself
                operands.append(Signal(graph, below[0], below[1]))
                source = below[2][source]
            places.append(place)
            sources.append(source)
    if not operands:  # nothing of them is left
        operands, places, sources = (
            [Signal(graph, 0, graph.vertices[0].shape)],
            [rows[:0]],
            [rows[:0]],
        )
    key = None
    if len(operands) == 1 and constant is None and len(sources[0]) <= _REMEMBERED:
        key = (operands[0].place, shape, sources[0].cpu().numpy().tobytes())
    known = graph.picked.get(key)
    if known is None:
        inputs = tuple(o.shape for o in operands)
        picking = Picks(shape, inputs, tuple(places), tuple(sources), constant)
        known = vertex(picking, operands, shape).place
        if key is not None:
            graph.picked[key] = known
    made = Signal(graph, known, shape)
    made.hidden = None if hidden is None else hidden.reshape(shape)
    return made


def hides(constant: Tensor) -> Tensor:
    """Where a constant is minus infinity, or what stands for it in masks of attention."""
    return constant < torch.finfo(constant.dtype).min / 2


def reshaped(x: Signal, *shape: int) -> Signal:
    made: Signal = picked(torch.reshape, (x, shape))
    return made


def expanded(x: Signal, shape: Sequence[int]) -> Signal:
    """A value of a shape that it broadcasts to."""
    if x.shape == tuple(shape):
        return x
    made: Signal = picked(torch.broadcast_to, (x, tuple(shape)))
    return made


def windows(sizes: Sequence[int], starts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Entries of windows, `[outputs, k]` with -1 for none, from those along each dimension.

    Args:
        sizes: of the dimensions.
        starts: for each dimension, for each output, the entries that its window holds; numbers
            beyond the ends are none.
    """
    found = torch.zeros(1, 1, dtype=torch.long)
    for size, along in zip(sizes, starts, strict=True):
        longest = max(len(entries) for entries in along)
        here = torch.full((len(along), longest), -1)
        for row, entries in enumerate(along):
            for column, entry in enumerate(entries):
                if 0 <= entry < size:
                    here[row, column] = entry
        both = found[:, None, :, None] * size + here[None, :, None, :]
        none = (found[:, None, :, None] < 0) | (here[None, :, None, :] < 0)
        outputs = found.shape[0] * here.shape[0]
        found = torch.where(none, -1, both).reshape(outputs, -1)
    return found
