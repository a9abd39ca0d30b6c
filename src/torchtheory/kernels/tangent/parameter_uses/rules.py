"""Which operation of torch is which use of a parameter: tables of rules.

A rule takes the arguments of its operation. It tells the use with what went into it; or that the
result is the parameter in another form; or computes the same by an operation that has a rule. It
gives None where it does not apply.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
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


class Roles(Protocol):
    """What a rule asks of those who watch: which parameter a tensor is, and to follow another."""

    def role(self, tensor: Any) -> Role | None: ...

    def alias(self, tensor: Tensor, role: Role) -> Tensor: ...


# -- rules: (watcher, the operation's own arguments) -> (use, what went in), or None ------------

Found = tuple[Use, Tensor]


def _linear(seen: Roles, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Found | None:
    if weight.ndim != 2:
        return None
    return Affine(seen.role(weight), seen.role(bias)), input


def _matmul(seen: Roles, input: Tensor, other: Tensor, **more: Any) -> Found | None:
    role = seen.role(other)
    if more or role is None or (other.ndim != 2 and not role.spread):
        return None
    if role.spread:  # each copy must meet inputs of its own: then it is one matrix for them all
        leading = list(zip(reversed(input.shape[:-2]), reversed(other.shape[:-2]), strict=False))
        if input.ndim < other.ndim or any(copies not in (1, size) for size, copies in leading):
            return None
    return Affine(Role(role.name, role.scale, not role.transposed), None), input


def _convolution(
    seen: Roles,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Found | None:
    size = tuple(weight.shape[2:])
    role = seen.role(weight)
    if role is not None and (role.transposed or role.spread):
        return None
    step, apart = _each(stride, len(size)), _each(dilation, len(size))
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [apart[k] * (size[k] - 1) for k in range(len(size))]
        sides = tuple((t // 2, t - t // 2) for t in total)
    else:
        sides = tuple((p, p) for p in _each(padding, len(size)))
    plain = Convolution(role, seen.role(bias), size, step, sides, apart)
    if groups == 1:
        return plain, input
    return GroupedConvolution(role, seen.role(bias), plain, groups), input


def _embedding(
    seen: Roles,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Found | None:
    if max_norm is not None or scale_grad_by_freq:
        return None
    rows = weight.shape[0]
    padding = None if padding_idx is None else padding_idx % rows
    return Lookup(seen.role(weight), None, rows, padding), input


def _layer_norm(
    seen: Roles,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Found | None:
    shape = tuple(normalized_shape)
    plain = F.layer_norm(input, shape, None, None, eps)
    return Scaling(seen.role(weight), seen.role(bias), shape), plain


def _rms_norm(
    seen: Roles,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Found | None:
    shape = tuple(normalized_shape)
    return Scaling(seen.role(weight), None, shape), F.rms_norm(input, shape, None, eps)


def _channels(input: Tensor) -> tuple[int, ...]:
    return (input.shape[1], *([1] * (input.ndim - 2)))


def _group_norm(
    seen: Roles,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Found | None:
    plain = F.group_norm(input, num_groups, None, None, eps)
    return Scaling(seen.role(weight), seen.role(bias), _channels(input)), plain


def _batch_norm(
    seen: Roles,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found | None:
    if training:
        return None
    plain = F.batch_norm(input, running_mean, running_var, None, None, False, momentum, eps)
    return Scaling(seen.role(weight), seen.role(bias), _channels(input)), plain


def _instance_norm(
    seen: Roles,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found | None:
    plain = F.instance_norm(
        input, running_mean, running_var, None, None, use_input_stats, momentum, eps
    )
    return Scaling(seen.role(weight), seen.role(bias), _channels(input)), plain


def _mul(seen: Roles, input: Any, other: Any, **more: Any) -> Found | None:
    for p, a in ((input, other), (other, input)) if not more else ():
        role = seen.role(p)
        if role is not None and isinstance(a, Tensor):
            if role.transposed or role.spread:
                return None
            return Scaling(role, None, tuple(p.shape)), a
    return None


def _sum(sign: float) -> Callable[..., Found | None]:
    def rule(seen: Roles, input: Any, other: Any, **more: Any) -> Found | None:
        for p, factor in ((input, 1.0), (other, sign)) if not more else ():
            role = seen.role(p)
            if role is not None:
                if role.transposed or role.spread:
                    return None
                return Scaling(None, role, tuple(p.shape), factor), torch.zeros_like(p)
        return None

    return rule


# -- aliases: a parameter that is only turned around or multiplied by a number -------------------


def _transpose(seen: Roles, func: Any, tensor: Tensor, *dims: Any, **named: Any) -> Tensor | None:
    role = seen.role(tensor)
    if role is None or (tensor.ndim != 2 and not role.spread):
        return None
    made: Tensor = func(tensor, *dims, **named)
    # whichever way its dimensions were named, sizes and strides tell what was done
    before, after = (list(zip(t.shape, t.stride(), strict=True)) for t in (tensor, made))
    if after == before:
        return seen.alias(made, role)
    if after == [*before[:-2], before[-1], before[-2]]:
        return seen.alias(made, replace(role, transposed=not role.transposed))
    return None


def _spread(seen: Roles, func: Any, tensor: Tensor, *sizes: Any, **named: Any) -> Tensor | None:
    """A matrix with dimensions put before its own two."""
    role = seen.role(tensor)
    if role is None or tensor.ndim < 2:
        return None
    made: Tensor = func(tensor, *sizes, **named)
    if not isinstance(made, Tensor) or made.ndim <= 2 or made.shape[-2:] != tensor.shape[-2:]:
        return None
    repeated = all(
        size == 1 or step == 0
        for size, step in zip(made.shape[:-2], made.stride()[:-2], strict=True)
    )
    same = made.stride()[-2:] == tensor.stride()[-2:]
    if not (repeated and same and made.storage_offset() == tensor.storage_offset()):
        return None
    return seen.alias(made, replace(role, spread=True))


def _times_number(divide: bool) -> Callable[..., Tensor | None]:
    def rule(seen: Roles, func: Any, input: Any, other: Any, **more: Any) -> Tensor | None:
        tensor, number = (input, other) if isinstance(input, Tensor) else (other, input)
        role = seen.role(tensor)
        if role is None or more or isinstance(number, bool) or not isinstance(number, int | float):
            return None
        if divide and tensor is not input:
            return None
        scale = role.scale / number if divide else role.scale * number
        return seen.alias(func(input, other), replace(role, scale=scale))

    return rule


def _same(seen: Roles, func: Any, tensor: Tensor) -> Tensor | None:
    role = seen.role(tensor)
    return None if role is None else seen.alias(func(tensor), role)


# -- products written in other ways: the same as a matrix product with the weight on the right ----


def _from_left(seen: Roles, input: Tensor, other: Tensor, **more: Any) -> Tensor | None:
    """`W a` as the transpose of `aᵀ Wᵀ`."""
    role = seen.role(input)
    if more or role is None or seen.role(other) is not None or other.ndim == 0:
        return None
    if input.ndim != 2 and not role.spread:
        return None
    if other.ndim == 1:
        return torch.matmul(other, input.mT)
    return torch.matmul(other.mT, input.mT).mT


def _matrix_vector(seen: Roles, input: Tensor, vec: Tensor, **more: Any) -> Tensor | None:
    return None if more else torch.matmul(input, vec)


def _added_product(
    seen: Roles,
    input: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    **more: Any,
) -> Tensor | None:
    if more:
        return None
    product = torch.matmul(first, second)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (input if beta == 1 else input * beta) + product


def _inner(seen: Roles, input: Tensor, other: Tensor, **more: Any) -> Tensor | None:
    if more or input.ndim == 0 or other.ndim == 0:
        return None
    if seen.role(other) is not None and other.ndim == 2:
        return torch.matmul(input, other.t())
    if seen.role(input) is not None and input.ndim == 2:
        return torch.matmul(other, input.t()).movedim(-1, 0)
    return None


def _einsum(seen: Roles, equation: Any, *operands: Any) -> Tensor | None:
    """A sum over one index of a matrix of weights, whose other index goes to the result."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    terms, arrow, out = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if seen.role(operands[0]) is not None:
        names, operands = names[::-1], operands[::-1]
    a, weight = operands
    if seen.role(a) is not None or seen.role(weight) is None or not arrow or len(names) != 2:
        return None
    inside, matrix = names
    if "..." in equation:  # dimensions without a name get one that is free
        free = [c for c in string.ascii_letters if c not in equation]
        dots = "".join(free[: a.ndim - len(inside.replace("...", ""))])
        inside, out = inside.replace("...", dots), out.replace("...", dots)
    if len(matrix) != 2 or any(len(set(t)) != len(t) for t in (inside, matrix, out)):
        return None
    summed, kept = (matrix[0], matrix[1]) if matrix[0] in inside else (matrix[1], matrix[0])
    rest = out.replace(kept, "")
    if summed in out or kept in inside or kept not in out or set(inside) != {*rest, summed}:
        return None
    product = torch.matmul(
        a.permute([inside.index(c) for c in rest + summed]),
        weight if matrix == summed + kept else weight.t(),
    )
    return product.permute([(rest + kept).index(c) for c in out])


def _tensordot(seen: Roles, a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> Tensor | None:
    if out is not None or isinstance(dims, Tensor):
        return None
    if isinstance(dims, int):
        dims = (range(a.ndim - dims, a.ndim), range(dims))
    first, second = string.ascii_letters[: a.ndim], list(string.ascii_letters[-b.ndim :])
    over_a, over_b = ([d] if isinstance(d, int) else list(d) for d in dims)
    for i, j in zip(over_a, over_b, strict=True):
        second[j] = first[i]
    free = [c for c in (*first, *second) if (c in first) != (c in second)]
    return _einsum(seen, f"{first},{''.join(second)}->{''.join(free)}", a, b)


def _each(value: Any, count: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * count
    given = tuple(int(v) for v in value)
    return given * count if len(given) == 1 else given


_T = torch.Tensor
REWRITTEN: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys((torch.matmul, _T.matmul, torch.mm, _T.mm, torch.bmm, _T.bmm), _from_left),
    **dict.fromkeys((torch.mv, _T.mv), _matrix_vector),
    **dict.fromkeys((torch.addmm, _T.addmm, torch.addmv, _T.addmv), _added_product),
    **dict.fromkeys((torch.baddbmm, _T.baddbmm), _added_product),
    **dict.fromkeys((torch.inner, _T.inner), _inner),
    torch.einsum: _einsum,
    torch.tensordot: _tensordot,
}
RULES: dict[Any, Callable[..., Found | None]] = {
    F.linear: _linear,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    **dict.fromkeys((torch.matmul, _T.matmul, torch.mm, _T.mm, torch.bmm, _T.bmm), _matmul),
    **dict.fromkeys((torch.mul, _T.mul, torch.multiply, _T.multiply), _mul),
    **dict.fromkeys((torch.add, _T.add), _sum(1.0)),
    **dict.fromkeys((torch.sub, _T.sub), _sum(-1.0)),
}
ALIASES: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys(
        (
            *(torch.t, _T.t, torch.transpose, _T.transpose, _T.T.__get__, _T.mT.__get__),  # type: ignore[attr-defined]
            *(torch.swapaxes, _T.swapaxes, torch.swapdims, _T.swapdims, torch.adjoint, _T.adjoint),
            *(torch.permute, _T.permute, torch.movedim, _T.movedim, torch.moveaxis, _T.moveaxis),
        ),
        _transpose,
    ),
    **dict.fromkeys((torch.mul, _T.mul), _times_number(divide=False)),
    **dict.fromkeys((torch.div, _T.div), _times_number(divide=True)),
    **dict.fromkeys(
        (
            *(torch.unsqueeze, _T.unsqueeze, _T.expand, _T.expand_as, torch.broadcast_to),
            *(_T.broadcast_to, _T.__getitem__),
        ),
        _spread,
    ),
    **dict.fromkeys((torch.clone, _T.clone, _T.contiguous), _same),
}
#: what follows is not differentiated with respect to the parameter
CUTS = {torch.detach, _T.detach, _T.data.__get__}  # type: ignore[attr-defined]
