"""Errors of operations that move entries about, leave some out, join or add some of them.

Views, indexing, concatenation and masks need no formula: the operation is run on the numbers of the
entries, and every error goes back to the entry whose number arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.tracing.network import Value, leaves, mapped
from torchtheory.training.backpropagation.evaluated import Errors, Evaluated


def moved(call: Evaluated) -> Errors:
    """Every entry of the result is one of the arguments' or a constant: errors go back to it.

    The operation is run on the numbers of all entries, twice with different ones: what does not
    change from one time to the other is a constant.
    """
    named = call.operation.arguments
    raw, held = (leaves(list(own.values())) for own in (named, call.arguments))
    wanted = {
        v: tensor
        for v, tensor in zip(raw, held, strict=True)
        if isinstance(v, Value) and call.active(v)
    }
    sizes = [tensor.numel() for tensor in wanted.values()]
    total = sum(sizes)
    flat = [tensor.reshape(-1) for tensor in wanted.values()]
    every = torch.cat([*flat, flat[0].new_zeros(1)])
    summed = torch.zeros_like(every)
    first, again = (_run_on_numbers(call, wanted, start) for start in (0, total))
    results = (first, again, call.made, call.delta)
    for place, other, made, delta in zip(*map(leaves, results), strict=True):
        if delta is None:
            continue
        moves = other - place == total
        there = torch.where(moves, place, total).long()
        constant = (other == place) | ((other != other) & (place != place))
        came = every.to(made.dtype)[there]
        if not bool((constant | (moves & ((came == made) | (made != made)))).all()):
            return NotImplemented  # entries are more than moved: added up, say
        summed.index_add_(0, there.reshape(-1), delta.to(summed).reshape(-1))
    parts = torch.split(summed[:-1], sizes)
    errors = {v: part.reshape(t.shape) for (v, t), part in zip(wanted.items(), parts, strict=True)}
    # a value that stands there twice has all of its error at the first of the places
    return {
        k: mapped(v, lambda leaf: errors.pop(leaf, None))
        for k, v in named.items()
        if _holds(v, errors)
    }


def _holds(tree: Any, errors: Mapping[Value, Tensor]) -> bool:
    return any(isinstance(leaf, Value) and leaf in errors for leaf in leaves(tree))


def _run_on_numbers(call: Evaluated, wanted: Mapping[Value, Tensor], start: int) -> Any:
    numbers, count = {}, start
    for value, tensor in wanted.items():
        own = torch.arange(count, count + tensor.numel(), device=tensor.device)
        numbers[value] = own.reshape(tensor.shape).double()  # exact below 2^53
        count += tensor.numel()

    def given(raw: Any, held: Any) -> Any:
        if isinstance(raw, Value) and raw in numbers:
            return numbers[raw]
        is_real = isinstance(held, Tensor) and held.is_floating_point()
        return held.double() if is_real else held

    return call.again(given)


def reshaped(call: Evaluated) -> Errors:
    """Entries stay in their order."""
    return {"input": call.delta.reshape(call["input"].shape)}


def cast(call: Evaluated) -> Errors:
    name, tensor = next((k, v) for k, v in call.arguments.items() if isinstance(v, Tensor))
    return {name: call.delta.to(tensor.dtype)}


def transposed(call: Evaluated) -> Errors:
    return {"input": call.delta.transpose(call["dim0"], call["dim1"])}


def matrix_transposed(call: Evaluated) -> Errors:
    return {"input": call.delta.mT if call.delta.ndim > 1 else call.delta}


def permuted(call: Evaluated) -> Errors:
    count = call.delta.ndim
    back = sorted(range(count), key=lambda d: call["dims"][d] % count)
    return {"input": call.delta.permute(back)}


def joined(call: Evaluated) -> Errors:
    parts, dim = call["tensors"], call["dim"]
    if any(part.ndim != call.delta.ndim for part in parts):  # one without entries
        return moved(call)
    return {"tensors": list(call.delta.split([part.shape[dim] for part in parts], dim))}


def embedded(call: Evaluated) -> Errors:
    if call.get("scale_grad_by_freq") or call.get("max_norm") is not None:
        return NotImplemented
    weight, skipped = call["weight"], call.get("padding_idx")
    words = call.get("input", call.get("indices"))
    if "indices" in call.arguments and skipped == -1:  # ATen's word for none
        skipped = None

    def to_weight() -> Tensor:
        rows = call.delta.reshape(-1, weight.shape[1])
        total = torch.zeros_like(weight).index_add_(0, words.reshape(-1), rows)
        if skipped is not None:
            total[skipped] = 0  # one below 0 counts from the end
        return total

    return {"weight": to_weight}


def index_added(call: Evaluated) -> Errors:
    def to_source() -> Tensor:
        taken = call.delta.index_select(call["dim"], call["index"])
        scaled: Tensor = taken.reshape(call["source"].shape) * call.get("alpha", 1)
        return scaled

    return {"input": call.delta, "source": to_source}


def scatter_added(call: Evaluated) -> Errors:
    return {"input": call.delta, "src": lambda: _gathered(call)}


def _gathered(call: Evaluated) -> Tensor:
    """The errors at the places that a scatter wrote to."""
    back = call.delta.gather(call["dim"], call["index"])
    missing = [
        end for n, m in zip(call["src"].shape[::-1], back.shape[::-1], strict=True)
        for end in (0, n - m)
    ]  # fmt: skip
    return F.pad(back, missing)


def scatter_reduced(call: Evaluated) -> Errors:
    if call["reduce"] != "sum":
        return NotImplemented
    if call.get("include_self", True):
        return scatter_added(call)
    kept = torch.ones_like(call["input"]).scatter(call["dim"], call["index"], 0.0)
    return {"input": call.delta * kept, "src": lambda: _gathered(call)}


def folded(call: Evaluated) -> Errors:
    how = (call["kernel_size"], call["dilation"], call["padding"], call["stride"])
    return {"input": F.unfold(call.delta, *how).reshape(call["input"].shape)}
