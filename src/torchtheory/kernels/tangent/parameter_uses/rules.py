"""Which operation of a network is which use of a parameter: tables of rules by plain names.

A rule takes an operation, and whoever follows the parameters. It tells the use with what goes into
it; or that the result is the parameter in another form. It gives None where it does not apply.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.kernels.tangent.parameter_uses.jacobians import (
    Affine,
    Convolution,
    GroupedConvolution,
    Lookup,
    Role,
    Scaling,
    Use,
)
from torchtheory.tracing.kinds import KIND_OF
from torchtheory.tracing.network import Operation, Value


class Roles(Protocol):
    """What a rule asks of those who follow parameters: which one a value is, and its numbers."""

    def role(self, value: Any) -> Role | None: ...

    def tensor(self, value: Value) -> Tensor: ...


@dataclass(frozen=True)
class Found:
    """A use of parameters.

    Attributes:
        use: what is done with them.
        taken: the values that go into it.
        made: what they are made into first, if anything is done with them.
        computed: the same operation in a form that many samples are faster in, of a value that goes
            into it and the weight; with that weight.
    """

    use: Use
    taken: tuple[Value, ...]
    made: Callable[..., Tensor] | None = None
    computed: tuple[Callable[[Tensor, Tensor], Tensor], Value] | None = None


_Rule = Callable[[Roles, Operation], Found | None]


def stays(name: str) -> bool:
    """Whether an operation is one, for the rules here; all others are written out.

    >>> stays("linear"), stays("lstm"), stays("addmm")
    (True, False, False)
    """
    return KIND_OF.get(name) != "composite" and name not in _WRITTEN_OUT


#: Products that are a sum of simpler ones, or another way to write one.
_WRITTEN_OUT = frozenset(("addmm", "addmv", "baddbmm", "tensordot"))


# -- rules for uses -----------------------------------------------------------------------------


def _linear(seen: Roles, op: Operation) -> Found | None:
    given = op.arguments
    if len(given["weight"].shape) != 2:
        return None
    use = Affine(seen.role(given["weight"]), seen.role(given["bias"]))
    return Found(use, (given["input"],))


def _matmul(seen: Roles, op: Operation) -> Found | None:
    left, right = list(op.arguments.values())[:2]
    if op.name == "rmatmul":
        left, right = right, left
    if seen.role(right) is not None:
        return _product(seen, left, right, from_left=False)
    return _product(seen, right, left, from_left=True)


def _product(seen: Roles, a: Value, matrix: Value, *, from_left: bool) -> Found | None:
    r"""`a W`, or `W a` as the transpose of $a^\top W^\top$."""
    role = seen.role(matrix)
    dims, own = len(a.shape), len(matrix.shape)
    if role is None or not dims or (own != 2 and not role.spread):
        return None
    if role.spread:  # each copy must meet inputs of its own: then it is one matrix for them all
        leading = zip(reversed(a.shape[:-2]), reversed(matrix.shape[:-2]), strict=False)
        if dims < own or any(copies not in (1, size) for size, copies in leading):
            return None
    if not from_left:
        return Found(Affine(Role(role.name, role.scale, not role.transposed), None), (a,))
    turned = (*range(dims - 2), dims - 1, dims - 2) if dims > 1 else (0,)
    use = Affine(Role(role.name, role.scale, role.transposed), None, turned, turned)
    return Found(use, (a,), computed=(_rows_times(turned, turned, turns=True), matrix))


def _rows_times(
    before: tuple[int, ...], after: tuple[int, ...], *, turns: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    """A product of rows with a matrix, which may have to be turned.

    `before` and `after` are orders of dimensions as in `Affine`.
    """
    back = tuple(after.index(k) for k in range(len(after)))

    def product(a: Tensor, matrix: Tensor) -> Tensor:
        rows = torch.matmul(a.permute(before), matrix.mT if turns else matrix)
        return rows.permute(back)

    return product


def _inner(seen: Roles, op: Operation) -> Found | None:
    left, right = list(op.arguments.values())[:2]
    dims = (len(left.shape), len(right.shape))
    if 0 in dims:
        return None
    role = seen.role(right)
    if role is not None and dims[1] == 2 and not role.spread:
        return Found(Affine(role, None), (left,))
    role = seen.role(left)
    if role is not None and dims[0] == 2 and not role.spread:
        return Found(Affine(role, None, None, (*range(1, dims[1]), 0)), (right,))
    return None


def _einsum(seen: Roles, op: Operation) -> Found | None:
    """A sum over one index of a matrix of weights, whose other index goes to the result."""
    equation, operands = op.arguments["equation"], list(op.arguments["operands"])
    terms, arrow, out = str(equation).replace(" ", "").partition("->")
    names = terms.split(",")
    if len(operands) != 2 or len(names) != 2 or not arrow:
        return None
    if seen.role(operands[0]) is not None:
        names, operands = names[::-1], operands[::-1]
    (a, weight), (inside, matrix) = operands, names
    role = seen.role(weight)
    if seen.role(a) is not None or role is None or role.spread:
        return None
    if "..." in equation:  # dimensions without a name get one that is free
        free = [c for c in string.ascii_letters if c not in equation]
        dots = "".join(free[: len(a.shape) - len(inside.replace("...", ""))])
        inside, out = inside.replace("...", dots), out.replace("...", dots)
    if len(matrix) != 2 or any(len(set(t)) != len(t) for t in (inside, matrix, out)):
        return None
    summed, kept = (matrix[0], matrix[1]) if matrix[0] in inside else (matrix[1], matrix[0])
    rest = out.replace(kept, "")
    if summed in out or kept in inside or kept not in out or set(inside) != {*rest, summed}:
        return None
    turned = replace(role, transposed=role.transposed != (matrix == summed + kept))
    before = tuple(inside.index(c) for c in rest + summed)
    after = tuple(out.index(c) for c in rest + kept)
    product = _rows_times(before, after, turns=matrix != summed + kept)
    return Found(Affine(turned, None, before, after), (a,), computed=(product, weight))


def _convolution(seen: Roles, op: Operation) -> Found | None:
    given = op.arguments
    role, bias, size = (
        seen.role(given["weight"]), seen.role(given["bias"]), given["weight"].shape[2:],
    )  # fmt: skip
    if given.get("transposed") or (role is not None and (role.transposed or role.spread)):
        return None
    step, apart = _each(given["stride"], len(size)), _each(given["dilation"], len(size))
    padding = given["padding"]
    if padding == "same":
        total = [apart[k] * (size[k] - 1) for k in range(len(size))]
        sides = tuple((t // 2, t - t // 2) for t in total)
    else:
        sides = tuple((p, p) for p in _each(0 if padding == "valid" else padding, len(size)))
    plain = Convolution(role, bias, tuple(size), step, sides, apart)
    if given["groups"] == 1:
        return Found(plain, (given["input"],))
    return Found(GroupedConvolution(role, bias, plain, given["groups"]), (given["input"],))


def _embedding(seen: Roles, op: Operation) -> Found | None:
    given = op.arguments
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        return None
    rows, padding = given["weight"].shape[0], given.get("padding_idx")
    if "indices" in given and padding == -1:  # ATen's word for none
        padding = None
    use = Lookup(
        seen.role(given["weight"]), None, rows, None if padding is None else padding % rows
    )
    return Found(use, (given["indices"] if "indices" in given else given["input"],))


def _normalization(seen: Roles, op: Operation) -> Found | None:
    """One with its statistics, a weight and a bias, which is a scaling behind one without."""
    given = dict(op.arguments)
    if op.name == "batch_norm" and given["training"]:
        return None
    weight, bias = given.pop("weight"), given.pop("bias", None)
    a, shape = given.pop("input"), given.get("normalized_shape")
    if shape is None:
        shape = (a.shape[1], *([1] * (len(a.shape) - 2)))
    statistics = [k for k in ("running_mean", "running_var") if isinstance(given.get(k), Value)]
    values = [given.pop(k) for k in statistics]
    plain: Any = getattr(F, op.name)
    rest = {k: v for k, v in given.items() if k not in ("cudnn_enabled", "cudnn_enable")}

    def made(x: Tensor, *known: Tensor) -> Tensor:
        out: Tensor = plain(x, **rest, **dict(zip(statistics, known, strict=True)))
        return out

    use = Scaling(seen.role(weight), seen.role(bias), tuple(shape))
    return Found(use, (a, *values), made)


def _mul(seen: Roles, op: Operation) -> Found | None:
    left, right = list(op.arguments.values())[:2]
    for p, a in ((left, right), (right, left)):
        role = seen.role(p)
        if role is not None and isinstance(a, Value):
            if role.transposed or role.spread:
                return None
            return Found(Scaling(role, None, tuple(p.shape)), (a,))
    return None


def _sum(seen: Roles, op: Operation) -> Found | None:
    (left, right), sign = list(op.arguments.values())[:2], -1.0 if op.name == "sub" else 1.0
    alpha = op.arguments.get("alpha", 1)
    for p, factor in ((left, 1.0), (right, sign * alpha)):
        role = seen.role(p)
        if role is not None:
            if role.transposed or role.spread:
                return None
            return Found(Scaling(None, role, tuple(p.shape), factor), (p,), _nothing)
    return None


def _nothing(p: Tensor) -> Tensor:
    """What goes into a sum does not matter for its derivative."""
    return p.new_zeros(())


# -- aliases: a parameter that is only turned around or multiplied by a number -------------------


_Alias = Callable[[Roles, Operation, Value, Callable[[], Tensor]], Role | None]


def _transpose(seen: Roles, op: Operation, p: Value, made: Callable[[], Tensor]) -> Role | None:
    role, tensor = seen.role(p), seen.tensor(p)
    assert role is not None
    if tensor.ndim != 2 and not role.spread:
        return None
    # whichever way its dimensions were named, sizes and strides tell what was done
    before, after = (list(zip(t.shape, t.stride(), strict=True)) for t in (tensor, made()))
    if after == before:
        return role
    if after == [*before[:-2], before[-1], before[-2]]:
        return replace(role, transposed=not role.transposed)
    return None


def _spread(seen: Roles, op: Operation, p: Value, made: Callable[[], Tensor]) -> Role | None:
    """A matrix with dimensions put before its own two."""
    role, tensor = seen.role(p), seen.tensor(p)
    assert role is not None
    shape = op.outputs[0].shape
    if tensor.ndim < 2 or len(shape) <= 2 or shape[-2:] != tensor.shape[-2:]:
        return None
    view = made()
    repeated = all(
        size == 1 or step == 0
        for size, step in zip(view.shape[:-2], view.stride()[:-2], strict=True)
    )
    same = view.stride()[-2:] == tensor.stride()[-2:]
    if not (repeated and same and view.storage_offset() == tensor.storage_offset()):
        return None
    return replace(role, spread=True)


def _times_number(seen: Roles, op: Operation, p: Value, made: Callable[[], Tensor]) -> Role | None:
    role, (left, right) = seen.role(p), list(op.arguments.values())[:2]
    assert role is not None
    number = right if left is p else left
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if op.name == "mul":
        return replace(role, scale=role.scale * number)
    plain = left is p and op.arguments.get("rounding_mode") is None
    return replace(role, scale=role.scale / number) if plain else None


def _same(seen: Roles, op: Operation, p: Value, made: Callable[[], Tensor]) -> Role | None:
    return seen.role(p) if op.outputs[0].dtype == p.dtype else None


def _each(value: Any, count: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * count
    given = tuple(int(v) for v in value)
    return given * count if len(given) == 1 else given


RULES: dict[str, _Rule] = {
    "linear": _linear,
    **dict.fromkeys(("matmul", "rmatmul"), _matmul),
    "inner": _inner,
    "einsum": _einsum,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    "embedding": _embedding,
    **dict.fromkeys(
        ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"), _normalization
    ),
    "mul": _mul,
    **dict.fromkeys(("add", "sub"), _sum),
}
ALIASES: dict[str, _Alias] = {
    **dict.fromkeys(("t", "T", "mT", "transpose", "adjoint", "permute", "movedim"), _transpose),
    **dict.fromkeys(("mul", "div"), _times_number),
    **dict.fromkeys(("unsqueeze", "expand", "broadcast_to", "getitem"), _spread),
    **dict.fromkeys(("clone", "contiguous", "to", "type_as", "float", "double"), _same),
}
#: what follows is not differentiated with respect to the parameter
CUTS = frozenset(("detach",))
