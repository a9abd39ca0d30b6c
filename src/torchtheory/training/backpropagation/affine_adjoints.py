"""Errors of affine operations: dense layers, convolutions, sums, averages and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import grad as convolutions

from torchtheory.tracing.kinds import AVERAGES
from torchtheory.training.backpropagation.evaluated import Errors, Evaluated


def dense(call: Evaluated) -> Errors:
    r"""For $z=Wh+b$: $W^\top\delta$; $\delta h^\top$ and $\delta$, summed over the samples."""
    h, weight, delta = call["input"], call["weight"], call.delta
    if weight.ndim == 1:
        return {
            "input": delta.unsqueeze(-1) * weight,
            "weight": (delta.unsqueeze(-1) * h).reshape(-1, len(weight)).sum(0),
            "bias": delta.sum(),
        }
    rows = delta.reshape(-1, delta.shape[-1])
    return {
        "input": lambda: delta @ weight,
        "weight": lambda: rows.T @ h.reshape(-1, h.shape[-1]),
        "bias": rows.sum(0),
    }


def convolved(call: Evaluated) -> Errors:
    """Correlation with the kernel pulls back to convolution with it."""
    h, weight, delta = call["input"], call["weight"], call.delta
    count = weight.ndim - 2
    one = h.ndim == count + 1  # a single sample
    h, delta = (h.unsqueeze(0), delta.unsqueeze(0)) if one else (h, delta)
    stride, dilation = (_sizes(call[k], count) for k in ("stride", "dilation"))
    before, after = _padding(call["padding"], weight.shape[2:], dilation)
    if before != after:  # padding "same" of an even kernel: one zero more at the end
        more = [e for b, a in zip(before[::-1], after[::-1], strict=True) for e in (0, a - b)]
        h = F.pad(h, more)
    how = (stride, before, dilation, call["groups"])
    to_input = getattr(convolutions, f"conv{count}d_input")
    to_weight = getattr(convolutions, f"conv{count}d_weight")

    def at_input() -> Tensor:
        back: Tensor = to_input(h.shape, weight, delta, *how)
        for d, size in enumerate(call["input"].shape[-count:]):
            back = back.narrow(d - count, 0, size)
        return back[0] if one else back

    return {
        "input": at_input,
        "weight": lambda: to_weight(h, weight.shape, delta, *how),
        "bias": delta.sum([0, *range(2, delta.ndim)]),
    }


def _sizes(given: Any, count: int) -> tuple[int, ...]:
    if isinstance(given, int):
        return (given,) * count
    return tuple(given) if len(given) == count else tuple(given) * count


def _padding(
    given: Any, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many zeros stand before and after."""
    if isinstance(given, str):
        reach = [
            0 if given == "valid" else d * (k - 1) for k, d in zip(kernel, dilation, strict=True)
        ]
        return tuple(r // 2 for r in reach), tuple(r - r // 2 for r in reach)
    both = _sizes(given, len(kernel))
    return both, both


def transposed_convolution(call: Evaluated) -> Errors:
    """Its transpose is the correlation that it is the transpose of."""
    h, weight, delta = call["input"], call["weight"], call.delta
    count = weight.ndim - 2
    one = h.ndim == count + 1
    h, delta = (h.unsqueeze(0), delta.unsqueeze(0)) if one else (h, delta)
    stride, padding, dilation = (_sizes(call[k], count) for k in ("stride", "padding", "dilation"))
    how = (stride, padding, dilation, call["groups"])
    correlate: Any = getattr(F, f"conv{count}d")
    to_weight = getattr(convolutions, f"conv{count}d_weight")

    def at_input() -> Tensor:
        back: Tensor = correlate(delta, weight, None, *how)
        for d, size in enumerate(h.shape[2:]):
            back = back.narrow(d + 2, 0, size)  # output_padding may leave room for more
        return back[0] if one else back

    return {
        "input": at_input,
        "weight": lambda: to_weight(delta, weight.shape, h, *how),
        "bias": delta.sum([0, *range(2, delta.ndim)]),
    }


def added(call: Evaluated) -> Errors:
    return {"input": call.delta, "other": call.delta * call.get("alpha", 1)}


def subtracted(call: Evaluated) -> Errors:
    return {"input": call.delta, "other": call.delta * -call.get("alpha", 1)}


def averaged(call: Evaluated) -> Errors:
    r"""An average over windows: every error is shared out over its window."""
    h, delta = call["input"], call.delta
    count = int(call.name[-2])
    kernel, padding = _sizes(call["kernel_size"], count), _sizes(call["padding"], count)
    stride = _sizes(call["stride"] or kernel, count)
    sizes, ends = h.shape[-count:], delta.shape[-count:]
    alone = h.new_ones(1, 1, *sizes)
    share = call.on(alone)
    inside = h.new_ones(1, 1, *(1,) * count)  # how many of a window's entries there are
    for d in range(count):
        start = torch.arange(ends[d], device=h.device) * stride[d] - padding[d]
        held = (start + kernel[d]).clamp(max=sizes[d]) - start.clamp(min=0)
        inside = inside * held.to(h).reshape(-1, *(1,) * (count - 1 - d))
    spread: Any = getattr(F, f"conv_transpose{count}d")
    images = (delta.reshape(-1, 1, *ends)) * (share / inside)
    full = spread(images, h.new_ones(1, 1, *kernel), stride=stride)
    for d in range(count):
        have, want = full.shape[2 + d], sizes[d]
        after = [0, 0] * (count - 1 - d)
        full = F.pad(full, (*after, -padding[d], want + padding[d] - have))
    return {"input": full.reshape(h.shape)}


def resized(call: Evaluated) -> Errors:
    """Each dimension is resized by a matrix of its own, whose rows sum to 1: the operation on unit
    vectors along it."""
    h, delta = call["input"], call.delta
    count = h.ndim - 2 if call.name not in AVERAGES else int(call.name[-2])
    sizes = h.shape[-count:]
    for d, size in enumerate(sizes):
        unit = torch.eye(size, dtype=h.dtype, device=h.device)
        unit = unit.reshape(size, 1, *(size if e == d else 1 for e in range(count)))
        made = call.on(unit.expand(size, 1, *sizes).contiguous())
        for e in range(count - 1, -1, -1):
            made = made if e == d else made.select(2 + e, 0)
        axis = d - count
        delta = torch.tensordot(delta, made[:, 0], ([axis], [1])).movedim(-1, axis)
    return {"input": delta.reshape(h.shape)}
