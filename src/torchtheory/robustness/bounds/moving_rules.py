"""Operations that move entries about, followed by numbering the entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.robustness.bounds.graph import Picks
from torchtheory.robustness.bounds.vertices import COPIES, run_with, vertex
from torchtheory.robustness.lipschitz.operations import MOVES, SELECTS
from torchtheory.robustness.lipschitz.watched_pass import Pass, Signal, signals_in

JOINS = {
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack",
}  # fmt: skip


def picks(
    watch: Pass, name: str, function: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Follow entries by numbering them: what an operation does to numbers it does to entries."""
    among = list({id(s): s for s in signals_in((args, options))}.values())
    if name in JOINS:
        args = (_numbers(args[0], among[0], True), *args[1:])
    if name == "where":
        args = tuple(_numbers(a, among[0], False) for a in args)
        options = {k: _numbers(v, among[0], False) for k, v in options.items()}
    tags, start = {}, 1
    for signal in among:
        count = signal.value.numel()
        numbers = torch.arange(start, start + count, dtype=torch.float64)
        tags[id(signal)] = numbers.reshape(signal.shape).to(signal.device)
        start += count
    values = {id(s): torch.zeros_like(s.value) for s in among}
    # a constant has no number
    numbered = run_with(function, args, options, tags, lambda t: torch.zeros_like(t).double())
    filled = run_with(function, args, options, values, lambda t: t)
    if (
        name == "pad"
        and options.get("mode", args[2] if len(args) > 2 else "constant") == "constant"
    ):
        given = {**options, "value": 0.0} if "value" in options else options
        numbered = run_with(function, args[:3], given, tags, lambda t: t)
    if name == "masked_fill":
        mask = args[1] if len(args) > 1 else options["mask"]
        numbered = run_with(function, (args[0], mask, 0.0), {}, tags, lambda t: t)
    view = name in MOVES | SELECTS or name == "__getitem__"
    if isinstance(filled, Tensor):
        return _picked(watch, name, among, tags, numbered, filled, view)
    pairs = zip(numbered, filled, strict=True)
    return tuple(_picked(watch, name, among, tags, n, f, view) for n, f in pairs)


def _numbers(thing: Any, like: Signal, truths: bool) -> Any:
    """Constants in the type of the values they are put beside, so that they are told from places.

    Args:
        truths: whether true and false stand for 1 and 0, or say where to choose what.
    """
    if type(thing) in (tuple, list):
        return type(thing)(_numbers(part, like, truths) for part in thing)
    if isinstance(thing, bool | int | float):
        return torch.tensor(thing, dtype=like.dtype, device=like.device)
    if isinstance(thing, Tensor) and (truths or thing.dtype != torch.bool):
        return thing.to(like.dtype)
    return thing


def _picked(
    watch: Pass,
    name: str,
    among: list[Signal],
    tags: dict[int, Tensor],
    numbered: Tensor,
    filled: Tensor,
    view: bool,
) -> Signal:
    mixes = f"{name.strip('_')} moves samples to another dimension, or mixes them"
    if filled.shape[:1] != (COPIES,):
        raise watch.refuse(mixes)
    shape = tuple(filled.shape[1:])
    rows = numbered.reshape(COPIES, -1).long()
    places, sources = [], []
    for signal in among:
        first = int(tags[id(signal)].flatten()[0]) if signal.value.numel() else 1
        size = signal.value.numel() // COPIES
        maps = [rows[k] - first - k * size for k in range(COPIES)]
        inside = [(m >= 0) & (m < size) for m in maps]
        taken = [(m + k * size >= 0) & (m + k * size < size * COPIES) for k, m in enumerate(maps)]
        if any(bool((i != t).any()) for i, t in zip(inside, taken, strict=True)) or any(
            not torch.equal(torch.where(inside[0], maps[0], -1), torch.where(i, m, -1))
            for i, m in zip(inside, maps, strict=True)
        ):
            raise watch.refuse(mixes)
        places.append(inside[0].nonzero()[:, 0])
        sources.append(maps[0][inside[0]])
    free = rows[0] == 0
    if len(torch.cat(places)) + int(free.sum()) != rows.shape[1]:
        raise watch.refuse("the network fills entries with numbers that cannot be followed")
    constant = None
    if bool(free.any()):
        fill = filled.reshape(COPIES, -1)
        if not torch.equal(torch.where(free, fill[0], 0.0), torch.where(free, fill[1], 0.0)):
            raise watch.refuse("the network joins a sample with a constant of the batch")
        constant = torch.where(free, fill[0], 0.0)
        if not bool(constant.isfinite().all()):
            raise watch.refuse("the network fills entries with infinity")
    inputs = tuple(tuple(s.shape[1:]) for s in among)
    operation = Picks(shape, inputs, tuple(places), tuple(sources), constant)
    return vertex(watch, operation, among, filled, view)
