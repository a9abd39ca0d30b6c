"""Errors of operations that are not affine: products, reductions, extremes, normalizations, and
functions of each entry."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.tracing.network import Value
from torchtheory.training.backpropagation.evaluated import Errors, Evaluated
from torchtheory.training.backpropagation.slopes import SLOPES, Slope

# -------------------------------------------------------------------------------------- products


def multiplied(call: Evaluated) -> Errors:
    return {
        "input": lambda: call.delta * call["other"],
        "other": lambda: call.delta * call["input"],
    }


def divided(call: Evaluated) -> Errors:
    if call.get("rounding_mode") is not None:
        return NotImplemented
    return {
        "input": lambda: call.delta / call["other"],
        "other": lambda: -call.delta * call.made / call["other"],
    }


def matrices_multiplied(call: Evaluated) -> Errors:
    left, right = (k for k, v in call.arguments.items() if isinstance(v, Tensor))
    if call.name == "rmatmul":
        left, right = right, left
    a, b, delta = call[left], call[right], call.delta
    if a.ndim == 1:
        delta = delta.unsqueeze(-1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        delta = delta.unsqueeze(-1)
    matrix_a = a if a.ndim > 1 else a.unsqueeze(0)
    matrix_b = b if b.ndim > 1 else b.unsqueeze(1)

    def of(error: Tensor, like: Tensor, dim: int) -> Tensor:
        return error.squeeze(dim) if like.ndim == 1 else error

    return {
        left: lambda: of(delta @ matrix_b.mT, a, -2),
        right: lambda: of(matrix_a.mT @ delta, b, -1),
    }


def contracted(call: Evaluated) -> Errors:
    """Of a sum over indices: the error takes the place of the operand."""
    operands = call["operands"]
    letters, right = _indices(str(call["equation"]), [t.ndim for t in operands])
    if any(len(set(own)) < len(own) for own in letters):  # a diagonal
        return NotImplemented

    def at(k: int) -> Tensor:
        others = [i for i in range(len(operands)) if i != k]
        known = set(right).union(*(letters[i] for i in others))
        seen = "".join(c for c in letters[k] if c in known)
        equation = ",".join([right, *(letters[i] for i in others)]) + "->" + seen
        error = torch.einsum(equation, call.delta, *(operands[i] for i in others))
        for d, (c, size) in enumerate(zip(letters[k], operands[k].shape, strict=True)):
            if c not in known:  # an index that is only summed over
                error = error.unsqueeze(d)
                error = error.expand(*error.shape[:d], size, *error.shape[d + 1 :])
        return error

    return {"operands": [partial(at, k) for k in range(len(operands))]}


def _indices(equation: str, dimensions: Sequence[int]) -> tuple[list[str], str]:
    """The indices of operands and result, with letters in the place of dots."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    wide = [n - len(own.replace("...", "")) for own, n in zip(operands, dimensions, strict=True)]
    dots = "".join(free[: max(wide)])
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        right = "..." + "".join(once)
    named = [
        own.replace("...", dots[len(dots) - n :]) for own, n in zip(operands, wide, strict=True)
    ]
    return named, right.replace("...", dots)


def crossed(call: Evaluated) -> Errors:
    dim, delta = call["dim"], call.delta
    if dim is None:
        return NotImplemented
    a, b = (t.expand(delta.shape) for t in (call["input"], call["other"]))
    return {
        "input": lambda: torch.linalg.cross(b, delta, dim=dim),
        "other": lambda: torch.linalg.cross(delta, a, dim=dim),
    }


def inverted(call: Evaluated) -> Errors:
    (name,) = (k for k, v in call.arguments.items() if isinstance(v, Tensor))
    return {name: -call.made.mT @ call.delta @ call.made.mT}


# ------------------------------------------------------------------------------------ reductions


def _back_in(call: Evaluated, tensor: Tensor) -> Tensor:
    """What was reduced, with the dimensions that are gone as ones."""
    h, dims = call["input"], call.get("dim")
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tensor.reshape((1,) * h.ndim)
    if call.get("keepdim"):
        return tensor
    for d in sorted(d % max(h.ndim, 1) for d in ([dims] if isinstance(dims, int) else dims)):
        tensor = tensor.unsqueeze(d)
    return tensor


def summed(call: Evaluated) -> Errors:
    h = call["input"]
    return {"input": _back_in(call, call.delta).to(h.dtype).expand(h.shape)}


def mean(call: Evaluated) -> Errors:
    h = call["input"]
    share = max(call.made.numel(), 1) / max(h.numel(), 1)
    return {"input": (_back_in(call, call.delta).to(h.dtype) * share).expand(h.shape)}


def summed_so_far(call: Evaluated) -> Errors:
    dim = call["dim"]
    return {"input": call.delta.flip(dim).cumsum(dim).flip(dim)}


def product(call: Evaluated) -> Errors:
    """Every factor's error is the product of the others, which may be 0 themselves."""
    h, dim = call["input"], call.get("dim")
    rows = h.reshape(1, -1) if dim is None else h.movedim(dim, -1)
    ahead = torch.cat([torch.ones_like(rows[..., :1]), rows[..., :-1].cumprod(-1)], -1)
    behind = rows.flip(-1)
    behind = torch.cat([torch.ones_like(rows[..., :1]), behind[..., :-1].cumprod(-1)], -1).flip(-1)
    others = ahead * behind
    others = others.reshape(h.shape) if dim is None else others.movedim(-1, dim)
    return {"input": _back_in(call, call.delta) * others}


def euclidean(call: Evaluated) -> Errors:
    r"""$h/\|h\|$, and 0 at 0."""
    if call.get("ord", call.get("p", 2)) not in (None, 2, 2.0, "fro"):
        return NotImplemented
    h, norm, delta = call["input"], _back_in(call, call.made), _back_in(call, call.delta)
    return {"input": torch.where(norm == 0, torch.zeros_like(h), delta * h / norm)}


# --------------------------------------------------------------------------------------- extremes


def largest_of_windows(call: Evaluated) -> Errors:
    """The error goes to the largest entry of each window."""
    h, count = call["input"], int(call.name[-2])
    delta = call.delta if isinstance(call.delta, Tensor) else call.delta[0]
    if call.name.startswith("adaptive"):
        pool: Any = getattr(F, f"{call.name}_with_indices")
        _, places = pool(h, call["output_size"])
    else:
        pool = getattr(F, f"{call.name}_with_indices")
        how = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        _, places = pool(h, *((call[k] or None) if k == "stride" else call[k] for k in how))
    below = torch.zeros_like(h).flatten(-count)
    below = below.scatter_add(-1, places.flatten(-count), delta.flatten(-count))
    return {"input": below.reshape(h.shape)}


def chosen(call: Evaluated) -> Errors:
    """Entries along a dimension whose places are returned with them."""
    h = call["input"]
    if isinstance(call.made, Tensor):
        return shared_by_equals(call)
    places, delta = call.made[1], call.delta[0]
    dim = call.get("dim")
    dim = -1 if dim is None else dim
    if places.ndim < h.ndim:
        places, delta = places.unsqueeze(dim), delta.unsqueeze(dim)
    return {"input": torch.zeros_like(h).scatter_add(dim, places, delta)}


def largest(call: Evaluated) -> Errors:
    """`max` and `min`: of two tensors, of a tensor, or along a dimension."""
    if isinstance(call.get("other"), Tensor):
        return larger(call)
    return chosen(call)


def shared_by_equals(call: Evaluated) -> Errors:
    """The error is shared by all entries that are the extreme one."""
    h = call["input"]
    best = (h == _back_in(call, call.made)).to(h)
    dims = call.get("dim")
    count = best.sum() if dims is None or dims in ((), []) else best.sum(dims, keepdim=True)
    return {"input": _back_in(call, call.delta) * best / count}


def larger(call: Evaluated) -> Errors:
    """Of two entries the one that is taken has the error; equal ones share it."""
    a, b = call["input"], call["other"]
    same = (a == b).to(call.delta) / 2
    first = (a > b) if call.name in ("max", "maximum") else (a < b)
    other = (a < b) if call.name in ("max", "maximum") else (a > b)
    return {"input": call.delta * (first + same), "other": call.delta * (other + same)}


# --------------------------------------------------------------------------------- normalization


def softmax(call: Evaluated) -> Errors:
    r"""$(\mathrm{diag}\,p-pp^\top)\delta$."""
    dim, p, delta = call.get("dim"), call.made, call.delta
    if dim is None:
        return NotImplemented
    return {"input": (p * (delta - (p * delta).sum(dim, keepdim=True))).to(call["input"].dtype)}


def log_softmax(call: Evaluated) -> Errors:
    r"""$(I-p1^\top)\delta$."""
    dim, delta = call.get("dim"), call.delta
    if dim is None:
        return NotImplemented
    back = delta - call.made.exp() * delta.sum(dim, keepdim=True)
    return {"input": back.to(call["input"].dtype)}


def batch_norm(call: Evaluated) -> Errors:
    r"""For $\gamma\hat h+\beta$ with running statistics: $\gamma\delta/\sigma$."""
    h, mean, variance = (call.get(k) for k in ("input", "running_mean", "running_var"))
    if mean is None or variance is None or call.get("training"):
        return NotImplemented
    named = {call.operation.arguments[k] for k in ("running_mean", "running_var")}
    if any(isinstance(v, Value) and call.active(v) for v in named):
        return NotImplemented
    shape = (1, -1, *[1] * (h.ndim - 2))
    scale = torch.rsqrt(variance + call["eps"]).reshape(shape)
    weight, others = call.get("weight"), [0, *range(2, h.ndim)]
    inner = call.delta if weight is None else call.delta * weight.reshape(shape)
    return {
        "input": inner * scale,
        "weight": lambda: (call.delta * (h - mean.reshape(shape)) * scale).sum(others),
        "bias": lambda: call.delta.sum(others),
    }


def layer_norm(call: Evaluated) -> Errors:
    r"""For $\gamma\hat h+\beta$ and $\epsilon=\gamma\delta$, with means over what is normalized:
    $(\epsilon-\overline\epsilon-\hat h\,\overline{\epsilon\hat h})/\sigma$."""
    h, delta, weight = call["input"], call.delta, call.get("weight")
    dims = list(range(-len(call["normalized_shape"]), 0))
    centered = h - h.mean(dims, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(dims, keepdim=True) + call["eps"])
    hat = centered * scale
    inner = delta if weight is None else delta * weight
    along = hat * (inner * hat).mean(dims, keepdim=True)
    return {
        "input": (inner - inner.mean(dims, keepdim=True) - along) * scale,
        "weight": delta * hat,  # the sum over the samples follows from the shape
        "bias": delta,
    }


# ----------------------------------------------------------------------- functions of each entry


def entrywise(slope: Slope) -> Callable[[Evaluated], Errors]:
    return lambda call: {"input": call.delta * slope(call, call["input"], call.made)}


def power(call: Evaluated) -> Errors:
    made: Tensor = call.made
    delta: Tensor = call.delta
    base, exponent = (
        torch.as_tensor(call[k], dtype=made.dtype, device=made.device)
        for k in ("input", "exponent")
    )

    def to_base() -> Tensor:
        slope = exponent * base ** (exponent - 1)
        return delta * torch.where(exponent == 0, torch.zeros_like(slope), slope)

    def to_exponent() -> Tensor:
        slope = made * base.log()
        return delta * torch.where(base == 0, torch.zeros_like(slope), slope)

    return {"input": to_base, "exponent": to_exponent}


def power_of(call: Evaluated) -> Errors:
    """A number to the power of a tensor."""
    return {"input": call.delta * call.made * math.log(call["other"])}


def prelu(call: Evaluated) -> Errors:
    h, weight, delta = call["input"], call["weight"], call.delta
    over = weight if weight.numel() == 1 or h.ndim < 2 else weight.reshape(-1, *(1,) * (h.ndim - 2))
    others = [d for d in range(h.ndim) if d != 1 or weight.numel() == 1]

    def to_weight() -> Tensor:
        part = torch.where(h > 0, torch.zeros_like(h), h * delta)
        return part.sum(others).reshape(weight.shape)

    return {
        "input": delta * torch.where(h > 0, torch.ones_like(h), over.to(h)),
        "weight": to_weight,
    }


def clamp(call: Evaluated) -> Errors:
    h, delta = call["input"], call.delta
    low, high = call.get("min"), call.get("max")
    errors: dict[str, Any] = {"input": delta * SLOPES["clamp_min"](call, h, call.made)}
    if isinstance(low, Tensor):
        errors["min"] = delta * ((h < low) & (True if high is None else low < high))
    if isinstance(high, Tensor):
        below = h if low is None else torch.clamp(h, min=low)
        errors["max"] = delta * (below > high)
    return errors


def two_arguments(
    slopes: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Callable[[Evaluated], Errors]:
    def rule(call: Evaluated) -> Errors:
        first, second = slopes(call["input"], call["other"], call.made)
        return {"input": call.delta * first, "other": call.delta * second}

    return rule
