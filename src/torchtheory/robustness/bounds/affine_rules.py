"""Affine operations: matrices, convolutions, means, products with constants, sums.

Values are those of one sample, of the shapes that the network has for a batch of one; operations of
the graph take any number of them, `[n, ...]`.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.graph import Affine, Map, Shape, Sum
from torchtheory.robustness.bounds.moving_rules import expanded, hides, picked, picks
from torchtheory.robustness.bounds.vertices import Signal, run_with, signals_in, vertex
from torchtheory.tracing.interpret import Call

#: Entries of a matrix that is made for an operation without a rule of its own.
_LARGEST_MATRIX = 2**24


def generic(
    linear: Map,
    absolute: Map,
    x: Signal,
    fans: tuple[int, int],
    shift: Tensor | None = None,
    multiplies: bool = False,
) -> Signal:
    """An affine map whose transpose is torch's derivative."""

    def transpose(a: Tensor) -> Tensor:
        with torch.enable_grad():
            start = a.new_zeros(len(a), *x.shape).requires_grad_(True)
            made: Tensor = torch.autograd.grad(
                linear(start), start, a, create_graph=a.requires_grad
            )[0]
        return made

    shape = linear(_zero(x)).shape[1:]
    operation = Affine(linear, absolute, transpose, shift, x.shape, *fans, multiplies=multiplies)
    return vertex(operation, (x,), shape)


def _zero(x: Signal) -> Tensor:
    return x.graph.like.new_zeros(1, *x.shape)


def _each_image(function: Map, dimensions: int) -> Map:
    """A function of images `[n, channels, ...]` for any number of dimensions before them."""

    def act(v: Tensor) -> Tensor:
        before = v.shape[: v.ndim - dimensions - 1]
        made = function(v.reshape(-1, *v.shape[len(before) :]))
        return made.reshape(*before, *made.shape[1:])

    return act


# -- sums and means --------------------------------------------------------------------------------


def average(call: Call) -> Any:
    """Pooling by means: sums of entries with coefficients that are not negative."""
    x = call["input"]
    dimensions = int(call.name[-2])
    given = {k: v for k, v in call.arguments.items() if k != "input"}
    function: Any = getattr(F, call.name)

    def pool(v: Tensor) -> Tensor:
        made: Tensor = function(v, **given)
        return made

    linear = _each_image(pool, dimensions)
    made = linear(_zero(x)).shape[-dimensions:]
    sizes = x.shape[-dimensions:]
    if call.name.startswith("adaptive"):  # windows of neighbors may overlap
        each_side = [
            (math.ceil(n / m) + 1, math.ceil(m / n) + 1) for n, m in zip(sizes, made, strict=True)
        ]
        fans = math.prod(k for k, _ in each_side), math.prod(k for _, k in each_side)
    else:
        kernel = each(given["kernel_size"], dimensions)
        stride = each(given.get("stride") or kernel, dimensions)
        overlap = [math.ceil(k / s) for k, s in zip(kernel, stride, strict=True)]
        fans = math.prod(kernel), math.prod(overlap)
    return generic(linear, linear, x, fans)


def each(value: Any, dimensions: int) -> tuple[int, ...]:
    """A setting for every dimension; one number may be given in a list."""
    found = (value,) if isinstance(value, int) else tuple(value)
    return found if len(found) == dimensions else found * dimensions


def dims_of(x: Signal, dim: Any) -> list[int]:
    """Dimensions of a sample; all of them where none is named."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return list(range(x.ndim))
    given = (dim,) if isinstance(dim, int) else dim
    return [d % max(x.ndim, 1) for d in given]


def reduction(call: Call) -> Any:
    """Sums and means."""
    x, dtype = call["input"], call.get("dtype")
    if dtype is not None and dtype != x.graph.like.dtype:
        raise call.refusal(f"the network sums in {dtype}, and its values are {x.graph.like.dtype}")
    return total(x, dims_of(x, call.get("dim")), bool(call.get("keepdim")), call.name == "mean")


def total(x: Signal, dims: Sequence[int], keep: bool = False, mean: bool = False) -> Signal:
    """The sum of entries over some dimensions of a sample, or their mean."""
    if not x.ndim:
        return x
    moved = [d + 1 for d in dims]
    count = math.prod(x.shape[d] for d in dims)
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    shape = kept if keep else [n for d, n in enumerate(x.shape) if d not in dims]
    share = 1 / count if mean else 1.0

    def linear(v: Tensor) -> Tensor:
        return v.mean(moved, keepdim=keep) if mean else v.sum(moved, keepdim=keep)

    def transpose(a: Tensor) -> Tensor:
        wide = a.reshape(len(a), *kept).expand(len(a), *x.shape)
        return wide * share if mean else wide

    return vertex(Affine(linear, linear, transpose, None, x.shape, count, 1), (x,), shape)


def cumulative(call: Call) -> Any:
    x = call["input"]
    d = dims_of(x, call["dim"])[0] + 1
    longest = x.shape[d - 1]

    def linear(v: Tensor) -> Tensor:
        return v.cumsum(d)

    def transpose(a: Tensor) -> Tensor:
        return a.flip(d).cumsum(d).flip(d)

    made = Affine(linear, linear, transpose, None, x.shape, longest, longest)
    return vertex(made, (x,), x.shape)


def summed_into(x: Signal, targets: Tensor, shape: Shape, shift: float | None = None) -> Signal:
    """Entries added up in places: entry k of `x` in entry `targets[k]` of the result, both flat."""
    size = math.prod(shape)
    longest = int(torch.bincount(targets).max()) if len(targets) else 1

    def linear(v: Tensor) -> Tensor:
        flat = v.reshape(len(v), -1)
        made = v.new_zeros(len(v), size).index_add(1, targets, flat)
        return made.reshape(len(v), *shape)

    def transpose(a: Tensor) -> Tensor:
        return a.reshape(len(a), -1)[:, targets].reshape(len(a), *x.shape)

    constant = None if shift is None else x.graph.constant(shift)
    made = Affine(linear, linear, transpose, constant, x.shape, longest, 1)
    return vertex(made, (x,), shape)


def added_at(call: Call) -> Any:
    """`index_add` and `scatter_add`, and `index_put` that adds, at places that are constant."""
    base, name = call["input"], call.name
    if name == "index_put":
        if not call.get("accumulate"):
            return picks(call)
        source = call["values"]
    elif name == "scatter_reduce":
        if call["reduce"] != "sum" or not call.get("include_self", True):
            return NotImplemented
        source = call["src"]
    else:
        source = call["source"] if name == "index_add" else call["src"]
    if call.get("alpha", 1) != 1:
        source = times(source, call["alpha"])
    if signals_in((call.get("index"), call.get("indices"))):
        raise call.refusal("the network adds entries at places that depend on its input")
    if not isinstance(source, Signal):
        options = {"src": source} if "scatter" in name else {"source": source}
        if name == "index_put":
            options = {"values": source}
        zeros = torch.zeros(base.shape, dtype=source.dtype, device=source.device)
        given = {**call.arguments, **options, "input": zeros}
        fixed = given.pop("input")
        return plus(base, call.function(fixed, **given))
    shape = tuple(base.shape)
    numbers = torch.arange(math.prod(shape), device=source.graph.like.device).reshape(shape)
    if name == "index_put":
        targets = numbers[tuple(call["indices"])]
        source = expanded(source, targets.shape)
    elif name == "index_add":
        targets = numbers.index_select(call["dim"], call["index"])
    else:
        index = call["index"]
        targets = numbers.gather(call["dim"], index)
        part = tuple(slice(0, n) for n in index.shape)
        if tuple(index.shape) != source.shape:
            source = picked(lambda v: v[part], (source,))
    return plus(summed_into(source, targets.reshape(-1), shape), base)


# -- matrices --------------------------------------------------------------------------------------


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


def linear(call: Call) -> Any:
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if not isinstance(x, Signal) or isinstance(weight, Signal) or isinstance(bias, Signal):
        turned = (
            picked(torch.t, (weight,)) if isinstance(weight, Signal) else weight.transpose(-2, -1)
        )
        made = times_matrix(x, turned)
        return made if bias is None else plus(made, bias)
    weight = x.graph.constant(weight)
    held = _Held(weight)
    operation = Affine(
        lambda v: F.linear(v, weight),
        lambda v: F.linear(v, held()),
        lambda a: a @ weight,
        None if bias is None else x.graph.constant(bias),
        x.shape,
        weight.shape[1],
        weight.shape[0],
        multiplies=True,
    )
    return vertex(operation, (x,), (*x.shape[:-1], weight.shape[0]))


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def convolution(call: Call) -> Any:
    x, weight = call["input"], call["weight"]
    bias = call.get("bias")
    if not isinstance(x, Signal) or signals_in((weight, bias)):
        raise call.refusal("the network convolves with filters that depend on its input")
    weight = x.graph.constant(weight)
    d = weight.ndim - 2
    transposed = "transpose" in call.name or bool(call.get("transposed"))
    stride, padding, dilation = (call[k] for k in ("stride", "padding", "dilation"))
    groups, held = call["groups"], _Held(weight)
    forward: Any = (_TRANSPOSED if transposed else _CONVOLUTIONS)[d - 1]
    rest = (call["output_padding"], groups, dilation) if transposed else (dilation, groups)

    def act(v: Tensor, w: Tensor) -> Tensor:
        made: Tensor = forward(v, w, None, stride, padding, *rest)
        return made

    straight = _each_image(lambda v: act(v, weight), d)
    absolute = _each_image(lambda v: act(v, held()), d)
    shift = None if bias is None else x.graph.constant(bias).reshape(-1, *[1] * d)
    fans = math.prod(weight.shape[1:]), math.prod(weight.shape) // weight.shape[1] // groups
    if isinstance(padding, str):
        return generic(straight, absolute, x, fans, shift, True)
    made = straight(_zero(x)).shape[1:]
    back: Map
    if transposed:
        fans = fans[::-1]

        def back(a: Tensor) -> Tensor:
            turned: Any = _CONVOLUTIONS[d - 1]
            found: Tensor = turned(a, weight, None, stride, padding, dilation, groups)
            return found
    else:
        steps, pads, holes = (each(v, d) for v in (stride, padding, dilation))
        extra = [
            n - ((m - 1) * s - 2 * p + h * (k - 1) + 1)
            for n, m, s, p, h, k in zip(
                x.shape[-d:], made[-d:], steps, pads, holes, weight.shape[2:], strict=True
            )
        ]

        def back(a: Tensor) -> Tensor:
            turned: Any = _TRANSPOSED[d - 1]
            found: Tensor = turned(a, weight, None, steps, pads, extra, groups, holes)
            return found

    operation = Affine(
        straight, absolute, _each_image(back, d), shift, x.shape, *fans, multiplies=True
    )
    return vertex(operation, (x,), made)


def batch_norm(call: Call) -> Any:
    x, mean, variance = call["input"], call.get("running_mean"), call.get("running_var")
    if call.get("training", call.get("use_input_stats", False)) or mean is None or variance is None:
        raise call.refusal(
            "a normalization by the statistics of the batch, so that an output is no function of "
            "one input"
        )
    constant = x.graph.constant
    weight, bias = call.get("weight"), call.get("bias")
    scale = torch.rsqrt(constant(variance) + call["eps"])
    scale = scale if weight is None else scale * constant(weight)
    moved = constant(mean) * scale
    shift = -moved if bias is None else constant(bias) - moved
    # the two may cancel, and what they are made of is rounded
    parts = moved.detach().abs()
    parts = parts if bias is None else parts + constant(bias).detach().abs()
    scale, shift, parts = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, shift, parts))
    return scaled(x, scale, shift, parts)


# -- arithmetic ------------------------------------------------------------------------------------


def scaled(
    x: Signal, factor: Tensor | None, shift: Tensor | None = None, parts: Tensor | None = None
) -> Signal:
    """A value times a constant, plus a constant, both of which broadcast with it."""
    shapes = [v.shape for v in (factor, shift) if v is not None]
    x = expanded(x, torch.broadcast_shapes(x.shape, *shapes))  # type: ignore[no-untyped-call]
    if factor is None:
        made = Affine(same, same, same, shift, x.shape)
    else:
        held = _Held(factor)
        own = factor
        made = Affine(
            lambda v: v * own, lambda v: v * held(), lambda a: a * own, shift, x.shape,
            parts=parts, factor=factor,
        )  # fmt: skip
    return vertex(made, (x,), x.shape)


def same(v: Tensor) -> Tensor:
    return v


def rounded(x: Signal, terms: int) -> Signal:
    """The value itself, of which torch may lose the digits of so many roundings."""
    return vertex(Affine(same, same, same, None, x.shape, terms), (x,), x.shape)


def times(x: Any, factor: Any) -> Any:
    """A value times a constant."""
    if not isinstance(x, Signal):
        return x * factor
    return scaled(x, x.graph.constant(factor))


def negative(x: Any) -> Any:
    return times(x, -1.0)


def plus(a: Any, b: Any, sign: int = 1) -> Any:
    """The sum of two values or constants, or their difference."""
    if isinstance(a, Signal) and isinstance(b, Signal):
        shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
        return vertex(Sum(sign), (expanded(a, shape), expanded(b, shape)), shape)
    if not isinstance(a, Signal):
        return plus(b if sign == 1 else negative(b), a) if isinstance(b, Signal) else a + sign * b
    shift = a.graph.constant(b)
    shift = shift if sign == 1 else -shift
    gone = hides(shift.detach())
    if bool(gone.any()):
        made = scaled(a, None, torch.where(gone, 0.0, shift))
        made.hidden = gone.expand(made.shape)
        return made
    if not bool(shift.detach().isfinite().all()):
        raise UnsupportedModel(f"the network adds infinity to a value (in {a.graph.name})")
    return scaled(a, None, shift)


def minus(a: Any, b: Any) -> Any:
    return plus(a, b, -1)


def add(call: Call) -> Any:
    a, b = call["input"], call["other"]
    alpha = call.get("alpha", 1)
    b = b if alpha == 1 else times(b, alpha)
    if call.name == "rsub":
        a, b = b, a
    return plus(a, b, 1 if call.name == "add" else -1)


# -- functions that are linear in each of their tensors --------------------------------------------


def times_matrix(a: Any, b: Any) -> Any:
    """The product of two matrices of which one is constant."""
    x, fixed = (a, b) if isinstance(a, Signal) else (b, a)
    fixed = x.graph.constant(fixed)
    is_vector, is_left = x.ndim == 1, x is a
    rank = max(fixed.ndim, 2 if is_vector else x.ndim)

    def act(v: Tensor, change: Map) -> Tensor:
        v = v.unsqueeze(-2 if is_left else -1) if is_vector else v
        # of as many dimensions as the constant has, so that samples are none of them
        v = v.reshape(len(v), *[1] * (rank + 1 - v.ndim), *v.shape[1:])
        made = v @ change(fixed) if is_left else change(fixed) @ v
        if not is_vector:
            return made
        return made.squeeze(-2 if is_left and fixed.ndim > 1 else -1)

    return _bilinear(act, x)


def contracted(equation: str, operands: Sequence[Any]) -> Signal:
    """Einstein's sum of which one operand is no constant."""
    (x,) = signals_in(operands)
    given, _, wanted = equation.replace(" ", "").partition("->")
    names = given.split(",")
    if "->" not in equation:
        letters = given.replace(",", "").replace(".", "")
        wanted = "..." * ("..." in given) + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    free = next(c for c in string.ascii_letters if c not in equation)
    names = [free + n if o is x else n for n, o in zip(names, operands, strict=True)]
    many = f"{','.join(names)}->{free}{wanted}"
    fixed = [None if o is x else x.graph.constant(o) for o in operands]

    def act(v: Tensor, change: Map) -> Tensor:
        return torch.einsum(many, *(v if o is None else change(o) for o in fixed))

    return _bilinear(act, x)


def _bilinear(act: Callable[[Tensor, Map], Tensor], x: Signal) -> Signal:
    """A map of any number of values, with constants that are changed on the way."""
    return generic(
        lambda v: act(v, same), lambda v: act(v, torch.abs), x, _terms(act, x), multiplies=True
    )


def _terms(act: Callable[[Tensor, Map], Tensor], x: Signal) -> tuple[int, int]:
    """Products that are summed up to one entry, and those that an entry is in: 1 for each."""
    with torch.enable_grad():
        ones = torch.ones_like(_zero(x)).requires_grad_(True)
        count = act(ones, torch.ones_like)
        back = torch.autograd.grad(count.sum(), ones)[0]
    return math.ceil(float(count.detach().max()) * 1.01), math.ceil(float(back.max()) * 1.01)


def by_matrix(call: Call) -> Any:
    """Any other affine function of one value, by the matrix that it is."""
    among = signals_in((call.args, call.kwargs))
    if len(among) != 1:
        return NotImplemented
    (x,) = among

    def act(v: Tensor) -> Any:
        return run_with(call.function, call.args, call.kwargs, {id(x): v}, lambda t: t.to(v.dtype))

    zero = _zero(x)[0]
    shift = act(zero)
    if not isinstance(shift, Tensor) or shift.dtype != zero.dtype:
        return NotImplemented
    if shift.numel() * x.entries > _LARGEST_MATRIX:
        raise call.refusal(f"{call.name} of so many entries has no bound here")
    basis = torch.eye(x.entries, dtype=zero.dtype, device=zero.device)
    rows = [act(row.reshape(x.shape)).reshape(-1) - shift.reshape(-1) for row in basis]
    matrix = torch.stack(rows)  # [inputs, outputs]
    shape, held = tuple(shift.shape), _Held(matrix)
    touched = matrix != 0
    fan_in, fan_out = (max(int(touched.sum(d).max()), 1) for d in (0, 1))
    operation = Affine(
        lambda v: (v.reshape(len(v), -1) @ matrix).reshape(len(v), *shape),
        lambda v: (v.reshape(len(v), -1) @ held()).reshape(len(v), *shape),
        lambda a: (a.reshape(len(a), -1) @ matrix.mT).reshape(len(a), *x.shape),
        shift if bool((shift != 0).any()) else None,
        x.shape,
        fan_in,
        fan_out,
        multiplies=True,
    )
    return vertex(operation, (x,), shape)


def upsampled(call: Call) -> Any:
    """Larger images: entries are repeated, or mixed with weights that are not negative."""
    name = call.name
    mode = str(call.get("mode", name.removeprefix("upsample_")))
    if mode.startswith("nearest"):
        return picks(call)
    if "cubic" in mode:
        return by_matrix(call)
    x = call["input"]
    dimensions = x.ndim - 2

    def act(v: Tensor) -> Tensor:
        made: Tensor = run_with(call.function, call.args, call.kwargs, {id(x): v}, same)
        return made

    larger = math.prod(
        math.ceil(m / n) + 1 for n, m in zip(x.shape[2:], act(_zero(x)[0]).shape[2:], strict=True)
    )
    smaller = math.prod(
        math.ceil(n / m) + 1 for n, m in zip(x.shape[2:], act(_zero(x)[0]).shape[2:], strict=True)
    )
    many = _each_image(act, dimensions)
    return generic(many, many, x, (2**dimensions * smaller, 2**dimensions * 2 * larger))
