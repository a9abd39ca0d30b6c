"""Affine operations: matrices, convolutions, means, products with constants, sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.robustness.bounds.graph import Affine, Map, Sum
from torchtheory.robustness.bounds.vertices import COPIES, per_sample, run_with, vertex
from torchtheory.robustness.lipschitz.affine_operations import function_of
from torchtheory.robustness.lipschitz.watched_pass import Pass, Signal, signals_in


def _generic(
    linear: Map,
    absolute: Map,
    x: Signal,
    fans: tuple[int, int],
    shift: Tensor | None = None,
    multiplies: bool = False,
) -> Affine:
    """An affine map whose transpose is torch's derivative."""
    shape = tuple(x.shape[1:])

    def transpose(a: Tensor) -> Tensor:
        pull: Any = torch.func.vjp(linear, a.new_zeros(len(a), *shape))[1]
        made: Tensor = pull(a)[0]
        return made

    return Affine(linear, absolute, transpose, shift, shape, *fans, multiplies=multiplies)


def average(watch: Pass, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Signal:
    x: Any = args[0]
    _refuse_other_precision(watch, x, options)

    def linear(v: Tensor) -> Tensor:
        made: Tensor = function(v, *args[1:], **options)
        return made

    value = linear(x.value)
    split = linear(torch.cat([x.value[:1] + 1, x.value[1:]]))
    if value.shape[:1] != (COPIES,) or not torch.equal(split[1:], value[1:]):
        raise watch.refuse("the network moves samples to another dimension, or mixes them")
    fans = _windows(function.__name__, x, value, args[1:], options)
    return vertex(watch, _generic(linear, linear, x, fans), (x,), value)


def _windows(
    name: str, x: Signal, value: Tensor, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[int, int]:
    """Entries that are summed up to one, and sums that an entry is in, at most."""
    if name == "cumsum":
        longest = max(x.shape[1:])
        return longest, longest
    d = int(name[-2])
    sizes, made = x.shape[-d:], value.shape[-d:]
    if name.startswith("adaptive"):  # windows of neighbors may overlap
        each_side = [
            (math.ceil(n / m) + 1, math.ceil(m / n) + 1) for n, m in zip(sizes, made, strict=True)
        ]
        return math.prod(k for k, _ in each_side), math.prod(k for _, k in each_side)
    given = dict(zip(("kernel_size", "stride"), args, strict=False)) | options
    kernel = each(given["kernel_size"], d)
    stride = each(given.get("stride") or kernel, d)
    # a kernel of one number may be given in a tuple
    kernel, stride = (v if len(v) == d else v * d for v in (kernel, stride))
    overlap = [math.ceil(k / s) for k, s in zip(kernel, stride, strict=True)]
    return math.prod(kernel), math.prod(overlap)


def reduction(function: Any) -> Callable[..., Any]:
    def rule(watch: Pass, x: Any, dim: Any = None, *rest: Any, **options: Any) -> Any:
        dim = options.pop("axis", dim)
        if dim is None:
            raise watch.refuse("the network sums over the samples of a batch")
        dims = [d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim)]
        if 0 in dims:
            raise watch.refuse("the network sums over the samples of a batch")
        _refuse_other_precision(watch, x, options)

        def linear(v: Tensor) -> Tensor:
            made: Tensor = function(v, dims, *rest, **options)
            return made

        fan_in = math.prod(x.shape[d] for d in dims)
        return vertex(watch, _generic(linear, linear, x, (fan_in, 1)), (x,), linear(x.value))

    return rule


def linear(watch: Pass, x: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(x, Signal) or isinstance(weight, Signal) or isinstance(bias, Signal):
        return NotImplemented
    if x.ndim < 2:
        raise watch.refuse("the network multiplies the samples of a batch with each other")
    held = _Held(weight)
    operation = Affine(
        lambda v: F.linear(v, weight),
        lambda v: F.linear(v, held()),
        lambda a: a @ weight,
        bias,
        tuple(x.shape[1:]),
        weight.shape[1],
        weight.shape[0],
        multiplies=True,
    )
    return vertex(watch, operation, (x,), F.linear(x.value, weight, bias))


class _Held:
    """The absolute values of a weight, computed when asked for, and kept unless it is trained."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.kept: Tensor | None = None

    def __call__(self) -> Tensor:
        if self.weight.requires_grad:
            return self.weight.abs()
        if self.kept is None:
            self.kept = self.weight.abs()
        return self.kept


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def convolution(
    watch: Pass, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    if not isinstance(x, Signal) or isinstance(weight, Signal) or x.ndim != weight.ndim:
        raise watch.refuse("the network convolves with something else than constant filters")
    d = x.ndim - 2
    forward, back = _CONVOLUTIONS[d - 1], _TRANSPOSED[d - 1]
    held = _Held(weight)

    def act(v: Tensor, w: Tensor) -> Tensor:
        return forward(v, w, None, stride, padding, dilation, groups)

    value = act(x.value, weight)
    fans = math.prod(weight.shape[1:]), math.prod(weight.shape) // weight.shape[1] // groups
    shift = None if bias is None else bias.reshape(-1, *[1] * d)
    if isinstance(padding, str):
        made = _generic(lambda v: act(v, weight), lambda v: act(v, held()), x, fans, shift, True)
    else:
        steps, pads, holes = (each(v, d) for v in (stride, padding, dilation))
        extra = [
            n - ((m - 1) * s - 2 * p + h * (k - 1) + 1)
            for n, m, s, p, h, k in zip(
                x.shape[2:], value.shape[2:], steps, pads, holes, weight.shape[2:], strict=True
            )
        ]

        def transpose(a: Tensor) -> Tensor:
            return back(a, weight, None, steps, pads, extra, groups, holes)

        made = Affine(
            lambda v: act(v, weight), lambda v: act(v, held()), transpose, shift,
            tuple(x.shape[1:]), *fans, multiplies=True,
        )  # fmt: skip
    return vertex(watch, made, (x,), value)


def transposed_convolution(
    watch: Pass, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    if not isinstance(x, Signal) or isinstance(weight, Signal) or x.ndim != weight.ndim:
        raise watch.refuse("the network convolves with something else than constant filters")
    d = x.ndim - 2
    forward, back = _TRANSPOSED[d - 1], _CONVOLUTIONS[d - 1]
    held = _Held(weight)

    def act(v: Tensor, w: Tensor) -> Tensor:
        return forward(v, w, None, stride, padding, output_padding, groups, dilation)

    made = Affine(
        lambda v: act(v, weight),
        lambda v: act(v, held()),
        lambda a: back(a, weight, None, stride, padding, dilation, groups),
        None if bias is None else bias.reshape(-1, *[1] * d),
        tuple(x.shape[1:]),
        math.prod(weight.shape) // weight.shape[1] // groups,
        math.prod(weight.shape[1:]),
        multiplies=True,
    )
    return vertex(watch, made, (x,), act(x.value, weight))


def each(value: Any, dimensions: int) -> tuple[int, ...]:
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def batch_norm(
    watch: Pass, x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5, **_: Any,
) -> Any:  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise watch.refuse(
            "a normalization by the statistics of the batch, so that an output is no function of "
            "one input"
        )
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    moved = running_mean * scale
    shift = -moved if bias is None else bias - moved
    # the two may cancel, and what they are made of is rounded
    parts = moved.detach().abs() if bias is None else moved.detach().abs() + bias.detach().abs()
    scale, shift, parts = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, shift, parts))
    made = Affine(
        lambda v: v * scale,
        lambda v: v * scale.abs(),
        lambda a: a * scale,
        shift,
        tuple(x.shape[1:]),
        parts=parts,
    )
    return vertex(watch, made, (x,), x.value * scale + shift)


def multiply(watch: Pass, a: Any, b: Any, **_: Any) -> Any:
    if isinstance(a, Signal) and isinstance(b, Signal):
        raise watch.refuse("the network multiplies two values that depend on its input")
    x, factor = (a, b) if isinstance(a, Signal) else (b, a)
    factor = torch.as_tensor(per_sample(watch, factor, x.ndim), dtype=x.dtype, device=x.device)
    shape = torch.broadcast_shapes(x.shape[1:], factor.shape)  # type: ignore[no-untyped-call]
    if tuple(shape) != tuple(x.shape[1:]):
        x = x.expand(COPIES, *shape)
    made = Affine(
        lambda v: v * factor,
        lambda v: v * factor.abs(),
        lambda a: a * factor,
        None,
        tuple(x.shape[1:]),
    )
    return vertex(watch, made, (x,), x.value * factor)


def divide(watch: Pass, a: Any, b: Any, **options: Any) -> Any:
    if isinstance(b, Signal) or options.get("rounding_mode"):
        raise watch.refuse("the network divides by a number that depends on its input")
    return multiply(watch, a, 1 / b)


def negative(watch: Pass, x: Any) -> Any:
    return multiply(watch, x, -1.0)


def add(watch: Pass, a: Any, b: Any, *, alpha: float = 1, sign: int = 1, **_: Any) -> Any:
    if alpha != 1:
        b = b * alpha
    if isinstance(a, Signal) and isinstance(b, Signal):
        shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
        a, b = (s if s.shape == shape else s.expand(shape) for s in (a, b))
        value = a.value + sign * b.value
        return vertex(watch, Sum(sign), (a, b), value)
    if isinstance(b, Signal):
        a, b, flip = b, a, sign == -1
    else:
        flip = False
    shift = torch.as_tensor(per_sample(watch, b, a.ndim), dtype=a.dtype, device=a.device)
    if flip:
        a = negative(watch, a)
    elif sign == -1:
        shift = -shift
    if not bool(shift.detach().isfinite().all()):
        raise watch.refuse("the network adds infinity to a value")
    shape = torch.broadcast_shapes(a.shape[1:], shift.shape)  # type: ignore[no-untyped-call]
    if tuple(shape) != tuple(a.shape[1:]):
        a = a.expand(COPIES, *shape)
    made = Affine(same, same, same, shift, tuple(a.shape[1:]))
    return vertex(watch, made, (a,), a.value + shift)


def same(v: Tensor) -> Tensor:
    return v


def subtract(watch: Pass, a: Any, b: Any, **options: Any) -> Any:
    return add(watch, a, b, sign=-1, **options)


def bilinear(name: str) -> Callable[..., Any]:
    """A function that is linear in each of its tensors, all but one of them constant."""
    function = function_of(name)

    def rule(watch: Pass, *args: Any, **options: Any) -> Any:
        among = list(signals_in((args, options)))
        if len(among) != 1:
            raise watch.refuse("the network multiplies two values that depend on its input")
        (x,) = among
        if name in ("matmul", "mm", "bmm") and (x is not args[0] or x.ndim < 2):
            raise watch.refuse("the network multiplies the samples of a batch with each other")
        if name == "bmm":
            args = (args[0], per_sample(watch, args[1], 3))
            return watch.apply(watch, torch.matmul, args, {})  # type: ignore[misc]

        def act(v: Tensor, change: Map) -> Tensor:
            made: Tensor = run_with(function, args, options, {id(x): v}, change)
            return made

        value = act(x.value, same)
        split = act(torch.cat([x.value[:1] + 1, x.value[1:]]), same)
        if value.shape[:1] != (COPIES,) or not torch.equal(split[1:], value[1:]):
            raise watch.refuse("the network moves samples to another dimension, or mixes them")
        made = _generic(
            lambda v: act(v, same), lambda v: act(v, torch.abs), x, _terms(act, x), multiplies=True
        )
        return vertex(watch, made, (x,), value)

    return rule


def _terms(act: Callable[[Tensor, Map], Tensor], x: Signal) -> tuple[int, int]:
    """Products that are summed up to one entry, and those that an entry is in: 1 for each."""
    ones = torch.ones_like(x.value)
    with torch.enable_grad():
        ones.requires_grad_(True)
        count = act(ones, torch.ones_like)
        back = torch.autograd.grad(count.sum(), ones)[0]
    return math.ceil(float(count.detach().max()) * 1.01), math.ceil(float(back.max()) * 1.01)


def _refuse_other_precision(watch: Pass, x: Signal, options: dict[str, Any]) -> None:
    """Sums may be asked for in another type than that of what is summed."""
    dtype = options.get("dtype")
    if dtype is not None and dtype != x.dtype:
        raise watch.refuse(f"the network sums in {dtype}, and its values are {x.dtype}")
