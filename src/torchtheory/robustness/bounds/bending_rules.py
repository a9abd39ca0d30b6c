"""Activations, maxima and choices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.robustness.bounds.activations import ACTIVATIONS, power_of
from torchtheory.robustness.bounds.affine_rules import (
    dims_of,
    each,
    minus,
    negative,
    plus,
    same,
    times,
)
from torchtheory.robustness.bounds.graph import Affine, Bend, Choice, Chosen, Largest, Maximum
from torchtheory.robustness.bounds.moving_rules import expanded, picked, picks, windows
from torchtheory.robustness.bounds.relaxations import (
    Activation,
    Clamped,
    Kinked,
    Smooth,
    Softplus,
)
from torchtheory.robustness.bounds.vertices import Condition, Signal, Untold, signals_in, vertex
from torchtheory.tracing.interpret import Call


def bend(x: Signal, activation: Activation) -> Signal:
    """A function of each entry."""
    return vertex(Bend(activation), (x,), x.shape)


def activation(call: Call) -> Any:
    """A rule for everything in the table of activations."""
    x = call["input"]
    given = {k: v for k, v in call.arguments.items() if k not in ("input", "inplace", "out")}
    if not isinstance(x, Signal) or signals_in(given):
        return NotImplemented
    return bend(x, ACTIVATIONS[call.name](**given))


def prelu(call: Call) -> Any:
    x, slopes = call["input"], call["weight"]
    if isinstance(slopes, Signal) or not isinstance(x, Signal):
        return NotImplemented
    slopes = x.graph.constant(slopes).detach()
    slopes = slopes.reshape(()) if slopes.numel() == 1 else slopes.reshape(-1, *[1] * (x.ndim - 2))
    return bend(x, Kinked(slopes, 1.0))


def log_sigmoid(call: Call) -> Any:
    # beyond its threshold nothing is left of it
    made = negative(bend(negative(call["input"]), Softplus(threshold=40.0)))
    return (made, Untold()) if isinstance(call.operation.result, tuple) else made


def power(call: Call) -> Any:
    base, exponent = call["input"], call.get("exponent", call.get("other"))
    if call.name == "rpow":
        base, exponent = exponent, base
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = float(exponent)
    if isinstance(base, Signal) and isinstance(exponent, int | float):
        if exponent == 1:
            return base
        return bend(base, power_of(float(exponent)))
    if isinstance(exponent, Signal) and not isinstance(base, Signal):
        logarithm = torch.as_tensor(base, dtype=torch.float64).log()
        if bool(logarithm.isfinite().all()):
            return bend(times(exponent, logarithm), ACTIVATIONS["exp"]())
    raise call.refusal(
        "the network takes a power of its values by an exponent that is no positive constant"
    )


def log_add_exp(call: Call) -> Any:
    r"""$\log(e^a+e^b)=a+\log(1+e^{b-a})$."""
    a, b = call["input"], call["other"]
    if not isinstance(a, Signal):
        a, b = b, a
    return plus(a, bend(minus(b, a), Softplus(threshold=40.0)))


# -- the larger of two -----------------------------------------------------------------------------


def larger(a: Any, b: Any) -> Any:
    r"""$\max(a,b)=a+\max(b-a,0)$."""
    if not isinstance(a, Signal):
        a, b = b, a
    if not isinstance(a, Signal):
        return torch.maximum(a, b)
    if not isinstance(b, Signal):
        return plus(bend(minus(a, b), Kinked(0.0, 1.0)), b)
    if a.place == b.place:
        return a
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    a, b = expanded(a, shape), expanded(b, shape)
    rise = bend(minus(b, a), Kinked(0.0, 1.0))
    return vertex(Maximum(), (a, rise, b), shape)


def smaller(a: Any, b: Any) -> Any:
    return negative(larger(negative(a), negative(b)))


def maximum(call: Call) -> Any:
    return larger(call["input"], call["other"])


def minimum(call: Call) -> Any:
    return smaller(call["input"], call["other"])


def clamp(call: Call) -> Any:
    x, low, high = call["input"], call.get("min"), call.get("max")
    if signals_in((low, high)) or not isinstance(x, Signal):
        made = x if low is None else larger(x, low)
        return made if high is None else smaller(made, high)
    constant = x.graph.constant
    low, high = (None if v is None else constant(v) for v in (low, high))
    low = None if low is None or bool((low == -math.inf).all()) else low
    high = None if high is None or bool((high == math.inf).all()) else high
    if low is not None and high is not None:
        shape = torch.broadcast_shapes(x.shape, low.shape, high.shape)  # type: ignore[no-untyped-call]
        low, high = (v.nan_to_num(None, 1e30, -1e30) for v in (torch.minimum(low, high), high))
        sides = (float(v) if not v.ndim else v for v in (low, high))
        return bend(expanded(x, shape), Clamped(*sides))
    if low is not None:
        return larger(x, low)
    return x if high is None else smaller(x, high)


# -- conditions ------------------------------------------------------------------------------------


def comparison(call: Call) -> Any:
    """Where a value is larger or smaller than another one, or than a constant."""
    a, b = call["input"], call["other"]
    above = call.name in ("gt", "ge")
    if isinstance(a, Signal) and isinstance(b, Signal):
        a, b = minus(a, b), 0.0
    elif not isinstance(a, Signal):
        a, b, above = b, a, not above
    if not isinstance(a, Signal):
        return NotImplemented
    threshold = a.graph.constant(b)
    shape = torch.broadcast_shapes(a.shape, threshold.shape)  # type: ignore[no-untyped-call]
    return Condition(expanded(a, shape), threshold, above)


def opposite(call: Call) -> Any:
    given = call["input"]
    if not isinstance(given, Condition):
        return NotImplemented
    return Condition(given.asked, given.threshold, not given.above)


def as_number(given: Condition) -> Signal:
    """1 where a condition holds and 0 elsewhere."""
    return _chosen(given, 1.0, 0.0)


def where(call: Call) -> Any:
    condition = call["condition"]
    if isinstance(condition, Condition):
        return _chosen(condition, call["input"], call["other"])
    if signals_in(condition):
        raise call.refusal("the network decides by the numbers of its input (where)")
    return picks(call)


def masked_fill(call: Call) -> Any:
    if isinstance(call["mask"], Condition):
        return _chosen(call["mask"], call["value"], call["input"])
    return picks(call)


def _chosen(condition: Condition, yes: Any, no: Any) -> Signal:
    """One value where a condition holds and another one elsewhere."""
    shapes = [v.shape for v in (yes, no) if isinstance(v, Signal | Tensor)]
    shape = torch.broadcast_shapes(condition.shape, *shapes)  # type: ignore[no-untyped-call]
    right, left = (_line_of(v, condition.asked) for v in (yes, no))
    if right is not None and left is not None and condition.shape == tuple(shape):
        right, left = (right, left) if condition.above else (left, right)
        return _two_lines(condition.asked, condition.threshold, left, right)
    asked = expanded(condition.asked, shape)
    a, b = (expanded(v, shape) if isinstance(v, Signal) else _constant(v, asked) for v in (yes, no))
    chosen = Chosen(condition.threshold, condition.above)
    part = vertex(chosen, (asked, minus(a, b)), shape)
    return vertex(Choice(chosen=chosen), (b, part, a, asked), shape)


def _constant(value: Any, beside: Signal) -> Signal:
    """A constant of the shape of a value."""
    fixed = beside.graph.constant(value)
    made: Signal = picked(lambda v: fixed.to(v.dtype).expand(v.shape), (beside,))
    return made


_Line = tuple[Tensor, Tensor]


def _line_of(value: Any, base: Signal) -> _Line | None:
    """Slope and offset of a value that is a line in another one, entry by entry; None if not."""
    graph = base.graph
    if not isinstance(value, Signal):
        return graph.constant(0.0), graph.constant(value)
    slope, offset = graph.constant(1.0), graph.constant(0.0)
    while value.place != base.place:
        operation = value.operation
        if not isinstance(operation, Affine) or value.shape != base.shape:
            return None
        if operation.factor is None and operation.linear is not same:
            return None
        if operation.shift is not None:
            offset = offset + slope * operation.shift
        if operation.factor is not None:
            slope = slope * operation.factor
        below = value.operands[0]
        value = Signal(graph, below, graph.vertices[below].shape)
    return slope, offset


def _two_lines(x: Signal, at: Tensor, left: _Line, right: _Line) -> Signal:
    """A function that is one line before a place and another one beyond it."""
    if all(bool((v == 0).all()) for v in (at, left[1], right[1])):
        slopes = (float(s[0]) if not s[0].ndim else s[0] for s in (left, right))
        return bend(x, Kinked(*slopes))
    before, beyond = (slope * at + offset for slope, offset in (left, right))

    def function(v: Tensor) -> Tensor:
        wide = [
            [part[..., None] if v.ndim > x.ndim + 1 and part.ndim else part for part in line]
            for line in ((at,), left, right)
        ]
        (place,), (slope, offset), (other, lifted) = wide
        return torch.where(v > place, other * v + lifted, slope * v + offset)

    return bend(x, Smooth(function, 0.0, jumps=[(at, before, beyond)]))


# -- maxima ----------------------------------------------------------------------------------------


def max_pool(call: Call) -> Any:
    x, name = call["input"], call.name
    d = int(name[name.index("pool") + 4])
    sizes = x.shape[-d:]
    if name.startswith("adaptive"):
        given = call["output_size"]
        wanted = [given] * d if isinstance(given, int) else list(given)
        made = [n if m is None else m for n, m in zip(sizes, wanted, strict=True)]
        along = [
            [range(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
            for n, m in zip(sizes, made, strict=True)
        ]
    else:
        kernel = each(call["kernel_size"], d)
        stride = each(call.get("stride") or kernel, d)
        around, holes = (each(call[k], d) for k in ("padding", "dilation"))
        pool: Any = getattr(F, name)
        example = torch.zeros(1, 1, *sizes)
        made = list(
            pool(example, kernel, stride, around, holes, bool(call.get("ceil_mode"))).shape[-d:]
        )
        along = [
            [range(i * s - p, i * s - p + h * (k - 1) + 1, h) for i in range(m)]
            for m, k, s, p, h in zip(made, kernel, stride, around, holes, strict=True)
        ]
    found = _largest(x, windows(sizes, along), (*x.shape[:-d], *made))
    return _with_places(call, found)


def _with_places(call: Call, found: Signal) -> Any:
    """The maxima, and nothing about where they are."""
    return (found, Untold()) if isinstance(call.operation.result, tuple) else found


def _largest(x: Signal, which: Tensor, shape: Sequence[int]) -> Signal:
    which = which.to(x.graph.like.device)
    channels = math.prod(shape) // len(which)
    return vertex(Largest(channels, which, x.shape, tuple(shape)), (x,), shape)


def extreme(call: Call) -> Any:
    """The largest or the smallest entry along some dimensions, or of two values."""
    x, other = call["input"], call.get("other")
    least = call.name in ("min", "amin")
    if other is not None:
        return smaller(x, other) if least else larger(x, other)
    x = negative(x) if least else x
    dims = dims_of(x, call.get("dim"))
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    shape = kept if call.get("keepdim") else [n for d, n in enumerate(x.shape) if d not in dims]
    if dims:
        rest = [d for d in range(x.ndim) if d not in dims]
        moved = picked(torch.permute, (x, (*rest, *dims)))
        count = math.prod(x.shape[d] for d in dims)
        x = _largest(moved, torch.arange(count)[None], shape)
    return _with_places(call, negative(x) if least else x)


RULES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(ACTIVATIONS, activation),
    **dict.fromkeys(("gt", "ge", "lt", "le"), comparison),
    **dict.fromkeys(("logical_not", "bitwise_not"), opposite),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), clamp),
    **dict.fromkeys(("pow", "rpow"), power),
    **dict.fromkeys(("max", "amax", "min", "amin"), extreme),
    **dict.fromkeys(
        [f"{kind}max_pool{d}d" for kind in ("", "adaptive_") for d in (1, 2, 3)], max_pool
    ),
    "maximum": maximum,
    "minimum": minimum,
    "where": where,
    "masked_fill": masked_fill,
    "prelu": prelu,
    "logsigmoid": log_sigmoid,
    "logaddexp": log_add_exp,
}
