r"""Operations that are made of several: products, quotients, softmax, normalizations.

Each is written in operations that lose little. Softmax is
$1\big/\bigl(1+\sum_{j\ne i}e^{x_j-x_i}\bigr)$, which is monotone in every difference, so that its
intervals are the best there are (Wei et al. 2023); a normalization knows that the value that it
divides is part of the norm that it divides by (`graph.Standardized`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.robustness.bounds.activations import ACTIVATIONS
from torchtheory.robustness.bounds.affine_rules import (
    by_matrix,
    contracted,
    dims_of,
    minus,
    negative,
    plus,
    rounded,
    scaled,
    summed_into,
    times,
    times_matrix,
    total,
)
from torchtheory.robustness.bounds.bending_rules import as_number, bend
from torchtheory.robustness.bounds.graph import Affine, Loose, Product, Standardized
from torchtheory.robustness.bounds.moving_rules import expanded, picked, reshaped
from torchtheory.robustness.bounds.relaxations import Reciprocal
from torchtheory.robustness.bounds.vertices import Condition, Signal, signals_in, vertex
from torchtheory.tracing.interpret import Call

#: Roundings of exponentials in softmax: arguments of what does not vanish are no further apart.
_EXPONENTIALS = 800


# -- products --------------------------------------------------------------------------------------


def product_of(a: Any, b: Any) -> Any:
    """The product of two values or constants, entry by entry."""
    a, b = (as_number(v) if isinstance(v, Condition) else v for v in (a, b))
    if not isinstance(a, Signal) or not isinstance(b, Signal):
        return times(a, b) if isinstance(a, Signal) else times(b, a)
    if a.place == b.place and a.shape == b.shape:
        return bend(a, ACTIVATIONS["square"]())
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    return vertex(Product(), (expanded(a, shape), expanded(b, shape)), shape)


def multiply(call: Call) -> Any:
    return product_of(call["input"], call["other"])


def divide(call: Call) -> Any:
    a, b = call["input"], call["other"]
    if call.get("rounding_mode"):
        raise call.refusal("the network rounds a quotient to whole numbers")
    if call.name == "rdiv":
        a, b = b, a
    if not isinstance(b, Signal):
        return times(a, 1 / torch.as_tensor(b, dtype=torch.float64))
    return product_of(bend(b, Reciprocal()), a)


def matmul(call: Call) -> Any:
    a, b = call["input"], call.get("other", call.get("mat2", call.get("vec", call.get("tensor"))))
    if call.name == "rmatmul":
        a, b = b, a
    if not isinstance(a, Signal) or not isinstance(b, Signal):
        return times_matrix(a, b)
    vectors = (a.ndim == 1, b.ndim == 1)
    if a.ndim == 1:
        a = reshaped(a, 1, *a.shape)
    if b.ndim == 1:
        b = reshaped(b, *b.shape, 1)
    # [..., rows, inner, 1] times [..., 1, inner, columns]
    left = picked(lambda v: v.unsqueeze(-1), (a,))
    right = picked(lambda v: v.unsqueeze(-3), (b,))
    made = product_of(left, right)
    made = total(made, [made.ndim - 2])
    for is_vector, d in zip(vectors, (-2, -1), strict=True):
        if is_vector:
            made = picked(torch.squeeze, (made, d))
    return made


def einsum(call: Call) -> Any:
    equation, operands = call["equation"], call["operands"]
    if len(signals_in(operands)) == 1 and len([o for o in operands if isinstance(o, Signal)]) == 1:
        return contracted(equation, operands)
    if len(operands) != 2 or "." in equation or not isinstance(equation, str):
        return NotImplemented
    given, _, wanted = equation.replace(" ", "").partition("->")
    names = given.split(",")
    if "->" not in equation:
        wanted = "".join(sorted(c for c in set("".join(names)) if "".join(names).count(c) == 1))
    if any(len(set(n)) != len(n) for n in names):
        return NotImplemented
    letters = wanted + "".join(dict.fromkeys(c for c in "".join(names) if c not in wanted))

    def aligned(value: Signal, name: str) -> Any:
        order = [name.index(c) for c in letters if c in name]
        shape = [value.shape[name.index(c)] if c in name else 1 for c in letters]
        return picked(lambda v: v.permute(order).reshape(shape), (value,))

    made = product_of(*(aligned(o, n) for o, n in zip(operands, names, strict=True)))
    summed = list(range(len(wanted), len(letters)))
    return total(made, summed) if summed else made


# -- softmax ---------------------------------------------------------------------------------------


def _others(x: Signal, dim: int) -> tuple[Signal, Tensor, Tensor]:
    r"""$e^{x_j-x_i}$ of all pairs that are not hidden, the $i$ of each, and where $i$ are, flat."""
    hidden = torch.zeros(x.shape, dtype=torch.bool) if x.hidden is None else x.hidden.cpu()
    numbers = torch.arange(x.entries).reshape(x.shape).movedim(dim, -1)
    shown = ~hidden.movedim(dim, -1)
    n = numbers.shape[-1]
    here, there = (
        v.expand(*numbers.shape, n) for v in (numbers[..., :, None], numbers[..., None, :])
    )
    pairs = shown[..., :, None] & shown[..., None, :] & ~torch.eye(n, dtype=torch.bool)
    device = x.graph.like.device
    i, j = (v[pairs].to(device) for v in (here, there))
    plain = Signal(x.graph, x.place, x.shape)
    own, other = (picked(lambda v, k=k: v.reshape(-1)[k], (plain,)) for k in (i, j))
    return bend(minus(other, own), ACTIVATIONS["exp"]()), i, numbers[shown].to(device)


def _denominators(x: Signal, dim: int) -> tuple[Signal, Tensor]:
    r"""$1+\sum_{j\ne i}e^{x_j-x_i}$ for all $i$ that are not hidden, and where these are, flat."""
    found, i, shown = _others(x, dim)
    order = torch.empty(x.entries, dtype=torch.long, device=shown.device)
    order[shown] = torch.arange(len(shown), device=shown.device)
    return summed_into(found, order[i], (len(shown),), 1.0), shown


def softmax(call: Call) -> Any:
    x = _same_precision(call)
    if not x.ndim:
        return NotImplemented
    dim = dims_of(x, call["dim"])[0]
    if _some_rows_are_hidden(x, dim):
        raise call.refusal("the network takes softmax of nothing but minus infinity")
    n = x.shape[dim]
    if n == 1:
        return picked(torch.ones_like, (Signal(x.graph, x.place, x.shape),))
    below, shown = _denominators(x, dim)
    made = rounded(bend(below, Reciprocal()), n + _EXPONENTIALS)
    return _in_places(made, shown, x.shape)


def _in_places(made: Signal, places: Tensor, shape: Sequence[int]) -> Signal:
    """Entries put in their places, with 0 in all others."""

    def put(v: Tensor) -> Tensor:
        whole = v.new_zeros(math.prod(shape))
        whole[places] = v
        return whole.reshape(tuple(shape))

    found: Signal = picked(put, (made,))
    return found


def log_softmax(call: Call) -> Any:
    x = _same_precision(call)
    if x.hidden is not None or not x.ndim:
        return NotImplemented
    dim = dims_of(x, call["dim"])[0]
    if x.shape[dim] == 1:
        return picked(torch.zeros_like, (x,))
    below, shown = _denominators(x, dim)
    made = _in_places(negative(bend(below, ACTIVATIONS["log"]())), shown, x.shape)
    return vertex(Loose(4 * x.shape[dim] + 16), (made, _spread(x, dim)), x.shape)


def _spread(x: Signal, dim: int) -> Signal:
    """One and the sizes of all entries along a dimension, by which logarithms are rounded."""
    sizes = total(bend(x, ACTIVATIONS["abs"]()), [dim], keep=True)
    return expanded(plus(sizes, 1.0), x.shape)


def log_sum_exp(call: Call) -> Any:
    r"""$\log\sum_je^{x_j}$."""
    x = call["input"]
    dims = dims_of(x, call.get("dim"))
    keep = bool(call.get("keepdim"))
    if x.hidden is not None:
        return NotImplemented
    summed = total(bend(x, ACTIVATIONS["exp"]()), dims, keep)
    made = bend(summed, ACTIVATIONS["log"]())
    size = total(bend(x, ACTIVATIONS["abs"]()), dims, keep)
    count = math.prod(x.shape[d] for d in dims)
    return vertex(Loose(4 * count + 16), (made, plus(size, 1.0)), made.shape)


def _same_precision(call: Call) -> Signal:
    x: Signal = call["input"]
    dtype = call.get("dtype")
    fewer = isinstance(dtype, torch.dtype) and (
        torch.finfo(dtype).eps > torch.finfo(x.graph.like.dtype).eps
    )
    if fewer:
        raise call.refusal(f"the network takes softmax in {dtype}")
    return x


def _some_rows_are_hidden(x: Signal, dim: int) -> bool:
    return x.hidden is not None and bool(x.hidden.all(dim).any())


# -- normalizations --------------------------------------------------------------------------------


def _standardized(x: Signal, dims: Sequence[int], eps: float, center: bool = True) -> Signal:
    """A value less its mean, over the root of its mean square, along some dimensions."""
    n = math.prod(x.shape[d] for d in dims)
    squares = total(bend(x, ACTIVATIONS["square"]()), dims, keep=True, mean=True)
    if center:
        centered = _centered(x, dims)
        variance = total(bend(centered, ACTIVATIONS["square"]()), dims, keep=True, mean=True)
    else:
        centered, variance = x, squares
    # by one pass or by two, torch may lose digits of the squares, and not only of their spread
    terms = 4 * n + 32
    variance = vertex(Loose(terms), (variance, squares), variance.shape)
    root = bend(scaled(variance, None, x.graph.constant(eps)), ACTIVATIONS["rsqrt"]())
    wide, sizes = (expanded(v, x.shape) for v in (root, squares))
    operation = Standardized(tuple(dims), eps, terms, center)
    return vertex(operation, (centered, wide, sizes), x.shape)


def _centered(x: Signal, dims: Sequence[int]) -> Signal:
    moved = [d + 1 for d in dims]
    n = math.prod(x.shape[d] for d in dims)

    def linear(v: Tensor) -> Tensor:
        return v - v.mean(moved, keepdim=True)

    def absolute(v: Tensor) -> Tensor:
        return v * (1 - 2 / n) + v.mean(moved, keepdim=True)

    # torch rounds the entries themselves, and not what is left of them
    made = Affine(linear, absolute, linear, None, x.shape, 4 * n + 32, n + 1)
    return vertex(made, (x,), x.shape)


def _weighted(x: Signal, weight: Any, bias: Any) -> Signal:
    given = [None if v is None else x.graph.constant(v) for v in (weight, bias)]
    return x if given == [None, None] else scaled(x, *given)


def layer_norm(call: Call) -> Any:
    x, sizes = call["input"], call["normalized_shape"]
    if signals_in((call.get("weight"), call.get("bias"))):
        return NotImplemented
    dims = range(x.ndim - len(sizes), x.ndim)
    eps = call.get("eps")
    center = call.name == "layer_norm"
    eps = torch.finfo(x.graph.like.dtype).eps if eps is None else eps
    return _weighted(_standardized(x, dims, eps, center), call.get("weight"), call.get("bias"))


def group_norm(call: Call) -> Any:
    x = call["input"]
    return _by_groups(call, x, call["num_groups"])


def _by_groups(call: Call, x: Signal, groups: int) -> Signal:
    grouped = reshaped(x, x.shape[0], groups, -1)
    made = reshaped(_standardized(grouped, [2], call["eps"]), *x.shape)
    channels = [
        None if v is None else v.reshape(-1, *[1] * (x.ndim - 2))
        for v in (call.get("weight"), call.get("bias"))
    ]
    return _weighted(made, *channels)


def instance_norm(call: Call) -> Any:
    if not call.get("use_input_stats", True):
        return NotImplemented
    x = call["input"]
    return _by_groups(call, x, x.shape[1])


RULES: dict[str, Callable[[Call], Any]] = {
    "mul": multiply,
    "div": divide,
    "rdiv": divide,
    "matmul": matmul,
    "rmatmul": matmul,
    "einsum": einsum,
    "tensordot": by_matrix,
    "kron": by_matrix,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": log_sum_exp,
    "layer_norm": layer_norm,
    "rms_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
