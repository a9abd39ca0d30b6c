"""Affine maps of signals: composed, and only their norm is taken in the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.convolution.layer_matrices import map_of_arguments
from torchtheory.robustness.lipschitz.watched_pass import (
    Extent,
    Kind,
    Pass,
    Signal,
    Step,
    signals_in,
)


def _constants(watch: Pass, thing: Any) -> Any:
    """Arguments with their signals left in place and every constant in double precision."""
    if isinstance(thing, Tensor):
        return watch.double(thing)
    if isinstance(thing, tuple | list):
        parts = [_constants(watch, part) for part in thing]
        return type(thing)(parts) if type(thing) in (tuple, list) else tuple(parts)
    if isinstance(thing, dict):
        return {k: _constants(watch, v) for k, v in thing.items()}
    return thing


def _filled(thing: Any, values: Callable[[Signal], Tensor]) -> Any:
    """Arguments with every signal replaced by a tensor."""
    if isinstance(thing, Signal):
        return values(thing)
    if isinstance(thing, tuple | list):
        return type(thing)(_filled(part, values) for part in thing)
    if isinstance(thing, dict):
        return {k: _filled(v, values) for k, v in thing.items()}
    return thing


def value_of(watch: Pass) -> Any:
    """What the operation that is followed makes at the centers, in double precision."""
    function, args, options = watch.now
    given, named = _filled(_constants(watch, (tuple(args), options)), lambda s: s.value)
    return function(*given, **named)


def affine(
    watch: Pass, function: Any, kind: Kind, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """One affine map of one node, of one signal or several."""
    args, options = _constants(watch, tuple(args)), _constants(watch, options)
    given, named = _filled((args, options), lambda s: s.value)
    value = function(*given, **named)
    among = list(signals_in((args, options)))
    if len(among) > 1:
        return _affine_of_several(watch, function, args, options, value)
    (signal,) = among

    def action(v: Tensor, place: int | None = None) -> Any:
        given, named = _filled((args, options), lambda _: v)
        made = function(*given, **named)
        return made if place is None else made[place]

    if isinstance(value, Tensor):
        return signal.then(Step(kind, action), value)
    parts = [
        signal.then(Step(kind, lambda v, k=k: action(v, k)), part)  # type: ignore[misc]
        for k, part in enumerate(value)
    ]
    return tuple(parts)


def _affine_of_several(
    watch: Pass, function: Callable[..., Any], args: Any, options: Any, value: Tensor
) -> Signal:
    """Of signals that all come from one node: the whole is one affine map of it."""
    among = {id(s): s for s in signals_in((args, options))}
    node = next(iter(among.values())).node

    def action(v: Tensor) -> Tensor:
        images: dict[int, Tensor] = {}
        for key, signal in among.items():
            image = v
            for step in signal.steps:
                image = step.action(image)
            images[key] = image
        given, named = _filled((args, options), lambda s: images[id(s)])
        return function(*given, **named)  # type: ignore[no-any-return]

    return Signal(watch, node, (Step("affine", action),), value)


def widened(watch: Pass, signal: Signal, shape: Any) -> Any:
    """A signal repeated along dimensions, as where it meets a larger one."""
    if signal.shape == shape:
        return signal
    return affine(watch, Tensor.expand, "affine", (signal, tuple(shape)), {})


def item(watch: Pass, input: Any, index: Any) -> Any:
    signal = input
    places = index if isinstance(index, tuple) else (index,)
    if any(True for _ in signals_in(index)):
        raise watch.refuse("the network picks entries by the numbers of its input")
    if signal.node.parts is not None and not signal.steps:
        dim, parts = signal.node.parts
        whole = [p == slice(None) for k, p in enumerate(places) if k != dim]
        if len(places) > dim and isinstance(places[dim], int) and all(whole):
            return parts[places[dim]]
    simple = all(p is None or p is Ellipsis or isinstance(p, int | slice) for p in places)
    kind: Kind = "selects" if simple else "affine"
    return signal.then(Step(kind, lambda v: v[index]), signal.value[index])


def linear(watch: Pass, input: Any, weight: Any, bias: Any = None) -> Any:
    x = input
    if not isinstance(x, Signal) or isinstance(weight, Signal) or isinstance(bias, Signal):
        return NotImplemented
    matrix, shift = watch.double(weight), None if bias is None else watch.double(bias)
    step = Step("matrix", lambda v: F.linear(v, matrix, shift), matrix)
    return x.then(step, step.action(x.value))


def convolution(
    watch: Pass,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """One step of known norm, with the padding before it where that is a step of its own."""
    x = input
    if not _is_convolution(x, weight, bias):
        return NotImplemented
    kernels, shift = watch.double(weight), None if bias is None else watch.double(bias)
    function = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]

    def alone(v: Tensor) -> Tensor:
        return function(v, kernels, shift, stride, padding, dilation, groups)

    action: Callable[[Tensor], Tensor] = alone
    value = alone(x.value)
    mode, before, after, steps, shape = "zeros", padding, None, x.steps, x.shape
    last = steps[-1] if steps else None
    plain = padding == "valid" or (not isinstance(padding, str) and not any(_numbers(padding)))
    if last is not None and last.padding is not None and plain:
        named, around = last.padding
        if len(around) == 2 * (x.ndim - 2) and min(around) >= 0:
            mode = "zeros" if named == "constant" else named
            before, after = around[-2::-2], around[::-2]
            sizes = zip(x.shape[2:], before, after, strict=True)
            shape = (*x.shape[:2], *(n - b - a for n, b, a in sizes))
            action, steps = _composed(last.action, alone), steps[:-1]
    found = map_of_arguments(
        kernels, shape[1:], stride=stride, padding=before, after=after, dilation=dilation,
        groups=groups, mode=mode,
    )  # fmt: skip
    return Signal(watch, x.node, (*steps, Step("affine", action, convolution=found)), value)


def transposed_convolution(
    watch: Pass,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    x = input
    if not _is_convolution(x, weight, bias):
        return NotImplemented
    kernels, shift = watch.double(weight), None if bias is None else watch.double(bias)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.ndim - 3]

    def action(v: Tensor) -> Tensor:
        return function(v, kernels, shift, stride, padding, output_padding, groups, dilation)

    found = map_of_arguments(
        kernels, x.shape[1:], stride=stride, padding=padding, dilation=dilation, groups=groups,
        transposed=True, output_padding=output_padding,
    )  # fmt: skip
    return x.then(Step("affine", action, convolution=found), action(x.value))


def padded(watch: Pass, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    x, around = input, pad
    if not isinstance(x, Signal):
        return NotImplemented

    def action(v: Tensor) -> Tensor:
        return F.pad(v, around, mode, value)

    # what is put around it moves nothing
    step = Step("affine", action, padding=(mode, tuple(around)))
    return x.then(step, action(x.value))


def _is_convolution(x: Any, weight: Any, bias: Any) -> bool:
    """Of one signal with a dimension of samples, with constant weights."""
    if not isinstance(x, Signal) or isinstance(weight, Signal) or isinstance(bias, Signal):
        return False
    return x.ndim == weight.ndim and x.value.numel() > 0


def _numbers(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _composed(
    first: Callable[[Tensor], Tensor], then: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    return lambda v: then(first(v))


def batch_norm(
    watch: Pass,
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    **_: Any,
) -> Any:
    x = input
    if training or running_mean is None or running_var is None:
        raise watch.refuse(
            "a normalization by the statistics of the batch, so that an output is no function of "
            "one input"
        )
    mean, variance = watch.double(running_mean), watch.double(running_var)
    gamma, beta = (None if t is None else watch.double(t) for t in (weight, bias))

    def action(v: Tensor) -> Tensor:
        return F.batch_norm(v, mean, variance, gamma, beta, False, 0.0, eps)

    last = x.steps[-1] if x.steps else None
    if last is not None and last.convolution is not None:  # it scales the filters
        scale = (variance + eps).rsqrt() * (1.0 if gamma is None else gamma)
        step = Step(
            "affine",
            _composed(last.action, action),
            convolution=last.convolution.scaled(scale),
        )
        return Signal(watch, x.node, (*x.steps[:-1], step), action(x.value))
    return x.then(Step("affine", action), action(x.value))


def divide(watch: Pass, input: Any, other: Any, **options: Any) -> Any:
    a, b = input, other
    if isinstance(b, Signal) or options.get("rounding_mode"):
        raise watch.refuse("the network divides by a number that depends on its input")
    divisor = watch.double(b) if isinstance(b, Tensor) else b
    step = Step("affine", lambda v: v / divisor)
    return a.then(step, step.action(a.value))


def masked_fill(watch: Pass, input: Any, mask: Tensor, value: Any) -> Any:
    x = input
    if any(True for _ in signals_in((mask, value))):
        raise watch.refuse("the network masks entries by the numbers of its input")
    # what is put in moves nothing, and may be infinite
    step = Step("affine", lambda v: v.masked_fill(mask, 0.0))
    return x.then(step, x.value.masked_fill(mask, float(value)))


def _several(a: Any, b: Any) -> bool:
    """Whether both are signals, of different nodes."""
    return isinstance(a, Signal) and isinstance(b, Signal) and a.node is not b.node


def add(watch: Pass, input: Any, other: Any, *, alpha: float = 1, sign: int = 1, **_: Any) -> Any:
    a, b = input, other
    if alpha != 1:
        signal = isinstance(b, Signal)
        b = affine(watch, torch.mul, "affine", (b, alpha), {}) if signal else b * alpha
    if isinstance(a, Signal) and isinstance(b, Tensor):  # such as a mask with infinite entries
        shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
        wide = widened(watch, a, shape)
        shift = watch.double(b)
        value = a.value + shift if sign == 1 else a.value - shift
        return wide.then(Step("shifts", lambda v: v), value)
    if not _several(a, b):
        return affine(watch, torch.add if sign == 1 else torch.sub, "affine", (a, b), {})
    a, b = broadcast(watch, a, b)
    center = a.value + b.value if sign == 1 else a.value - b.value

    def rule(one: Extent, two: Extent) -> Extent:
        return Extent(*(p + q for p, q in zip(one, two, strict=True)))

    return watch.node(center, (a, b), rule)


def subtract(watch: Pass, input: Any, other: Any, **options: Any) -> Any:
    return add(watch, input, other, sign=-1, **options)


def broadcast(watch: Pass, a: Signal, b: Signal) -> tuple[Any, Any]:
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    return widened(watch, a, shape), widened(watch, b, shape)


def join(
    watch: Pass, tensors: Sequence[Any], dim: int = 0, *, stack: bool = False, **_: Any
) -> Any:
    among = [t for t in tensors if isinstance(t, Signal)]
    function = torch.stack if stack else torch.cat
    if len({id(t.node) for t in among}) == 1:
        return affine(watch, function, "affine", (list(tensors), dim), {})
    given = _filled(_constants(watch, list(tensors)), lambda s: s.value)
    center = function(given, dim)
    made = watch.node(center, among, joined)
    if stack and len(among) == len(tensors):
        made.node.parts = (dim % center.ndim, list(tensors))
    return made


def put_together(watch: Pass, **given: Any) -> Any:
    """Entries of several values, each at places that do not depend on the input."""
    function, args, options = watch.now
    decides = [given[k] for k in ("condition", "index", "mask", "indices") if k in given]
    if any(True for _ in signals_in(decides)):
        raise watch.refuse("the network chooses entries by the numbers of its input")
    among = list(signals_in((args, options)))
    if len({id(s.node) for s in among}) == 1:
        return affine(watch, function, "affine", args, options)
    center = value_of(watch)
    wide = [
        s if s.shape[:1] == center.shape[:1] else widened(watch, s, center.shape) for s in among
    ]
    return watch.node(center, wide, joined)


def joined(*extents: Extent) -> Extent:
    """Of a value whose entries are those of others, side by side."""
    lipschitz = torch.stack([e.lipschitz for e in extents]).square().sum(0).sqrt()
    distance = torch.stack([e.distance for e in extents]).square().sum(0).sqrt()
    return Extent(lipschitz, distance, torch.full_like(distance, math.inf))
