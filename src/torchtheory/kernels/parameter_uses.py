r"""Where and how the parameters enter a computation.

A model's Jacobian with respect to a weight is determined by what went into the operation that used
the weight and by what came back through it: for $y = W a$,

$$
\frac{\partial f_c}{\partial W} = g_c\, a^\top,
\qquad g_c = \frac{\partial f_c}{\partial y},
$$

a product that need not be written out. `ParameterUses` watches a forward pass at the level of
torch's functions, so it sees a weight whether a layer of `torch.nn` or the user's own code uses
it, once or many times; each use it understands becomes one of the objects below, and a parameter
that goes anywhere else is listed as unknown, for the caller to differentiate as a whole.
"""

from __future__ import annotations

import inspect
import string
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtheory.kernels.recurrent_steps import IN_STEPS


@dataclass(frozen=True, slots=True)
class Role:
    """A parameter as one operation sees it: `scale` times it, transposed or not.

    A matrix that is `spread` has dimensions before its own two, along which it is repeated.
    """

    name: str
    scale: float = 1.0
    transposed: bool = False
    spread: bool = False


@dataclass(frozen=True)
class Use(ABC):
    """One operation on parameters; `a` is what went in, `g [n, C, *y]` what came back.

    Attributes:
        weight: the parameter the input is multiplied by, if it is followed.
        bias: the parameter that is added, if it is followed.
    """

    weight: Role | None
    bias: Role | None

    def roles(self) -> Iterator[tuple[str, Role]]:
        if self.weight is not None:
            yield "weight", self.weight
        if self.bias is not None:
            yield "bias", self.bias

    @abstractmethod
    def jacobian(self, part: str, a: Tensor, g: Tensor) -> Tensor:
        """Jacobian `[n, C, P]` with respect to the weight or the bias."""


class OuterUse(Use):
    r"""A use with $\partial f_c / \partial W = \sum_t g_{ct}\, a_t^\top$, positions t."""

    @abstractmethod
    def left(self, parts: tuple[str, ...], a: Tensor, positions: int) -> Tensor:
        """What the parameters are multiplied by: `[n, T, d]`, or `[n, T]` row numbers."""

    @abstractmethod
    def right(self, g: Tensor) -> Tensor:
        """What came back at each position, `[n, C, T, o]`."""


class Multiplication(OuterUse):
    """A weight that multiplies inputs, and a bias that multiplies ones."""

    @abstractmethod
    def inputs(self, a: Tensor, extra: int = 0) -> Tensor:
        """What the weight is multiplied by at each position, `[n, T, d]`.

        `extra` columns of ones may follow: the input of a bias.
        """

    def left(self, parts: tuple[str, ...], a: Tensor, positions: int) -> Tensor:
        """`[n, T, d]` for the weight, `d + 1` columns for both, one for the bias."""
        if "weight" not in parts:
            assert self.bias is not None
            return a.new_full((len(a), positions, 1), self.bias.scale)
        assert self.weight is not None
        both = "bias" in parts and self.bias is not None
        made = self.inputs(a, 1 if both else 0)
        if self.weight.scale != 1.0:
            made = made * self.weight.scale
        if both and self.bias is not None and (self.weight.scale, self.bias.scale) != (1.0, 1.0):
            made[..., -1] = self.bias.scale
        return made

    def jacobian(self, part: str, a: Tensor, g: Tensor) -> Tensor:
        right = self.right(g)
        if part == "bias":
            assert self.bias is not None
            return right.sum(2).mul_(self.bias.scale)
        assert self.weight is not None
        made = outer_sum(right, self.left((part,), a, right.shape[2]))
        return (made.transpose(2, 3) if self.weight.transposed else made).flatten(2)


@dataclass(frozen=True)
class Affine(Multiplication):
    """`linear(a, W, b)` with `W [o, d]`."""

    def inputs(self, a: Tensor, extra: int = 0) -> Tensor:
        flat = a.reshape(len(a), -1, a.shape[-1])
        return F.pad(flat, (0, extra), value=1.0) if extra else flat

    def right(self, g: Tensor) -> Tensor:
        return g.reshape(*g.shape[:2], -1, g.shape[-1])


@dataclass(frozen=True)
class Convolution(Multiplication):
    """`conv(a, W, b)` in any dimension with one group."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def inputs(self, a: Tensor, extra: int = 0) -> Tensor:
        return unfold(a, self.size, self.stride, self.padding, self.dilation, extra)

    def right(self, g: Tensor) -> Tensor:
        # [n, C, (1,) o, *space] to [n, C, T, o]: a batch dimension of one may stand before
        space = len(self.size)
        return g.reshape(*g.shape[:2], g.shape[-space - 1], -1).transpose(2, 3)


@dataclass(frozen=True)
class GroupedConvolution(Use):
    """A convolution in several groups, each with its own inputs and outputs."""

    whole: Convolution
    groups: int

    def jacobian(self, part: str, a: Tensor, g: Tensor) -> Tensor:
        if part == "bias":
            return self.whole.jacobian(part, a, g)
        assert self.weight is not None
        right = self.whole.right(g)
        right = right.reshape(*right.shape[:3], self.groups, -1)
        left = self.whole.inputs(a)
        left = left.reshape(*left.shape[:2], self.groups, -1)
        made = torch.einsum("nctgo,ntgd->ncgod", right, left).flatten(2)
        return made if self.weight.scale == 1.0 else made.mul_(self.weight.scale)


@dataclass(frozen=True)
class Lookup(OuterUse):
    """`embedding(ids, W)`: the left factor is the row's number, as one-hot vectors would be."""

    rows: int
    padding: int | None

    def left(self, parts: tuple[str, ...], a: Tensor, positions: int) -> Tensor:
        ids = a.reshape(len(a), -1)
        # a padding row gets no gradient: a number that equals no other row's
        return ids if self.padding is None else ids.masked_fill(ids == self.padding, -1)

    def right(self, g: Tensor) -> Tensor:
        made = g.reshape(*g.shape[:2], -1, g.shape[-1])
        assert self.weight is not None
        return made if self.weight.scale == 1.0 else made * self.weight.scale

    def jacobian(self, part: str, a: Tensor, g: Tensor) -> Tensor:
        assert self.weight is not None
        made = outer_sum(self.right(g), self.left((part,), a, 0), self.rows)
        # outer_sum gives [n, C, o, rows]; the parameter is [rows, o]
        return (made if self.weight.transposed else made.transpose(2, 3)).flatten(2)


@dataclass(frozen=True)
class Scaling(Use):
    """`y = a * w + b` entry by entry, the parameters broadcast from `shape`."""

    shape: tuple[int, ...]
    sign: float = 1.0

    def jacobian(self, part: str, a: Tensor, g: Tensor) -> Tensor:
        role = self.weight if part == "weight" else self.bias
        assert role is not None
        if part == "weight":
            missing = g.ndim - 1 - a.ndim
            g = g * a.reshape(len(a), 1, *([1] * missing), *a.shape[1:])
        factor = self.sign * role.scale
        made = _sum_to(g, self.shape)
        if role.transposed:
            made = made.transpose(-1, -2)
        made = made if factor == 1.0 else made * factor
        return made.reshape(*made.shape[:2], -1)  # of a scalar parameter as well


def outer_sum(right: Tensor, left: Tensor, rows: int = 0) -> Tensor:
    r"""$\sum_t g_t a_t^\top$ `[n, C, o, d]` from `[n, C, T, o]` and `[n, T, d]`.

    Whole-number `left [n, T]` stands for one-hot vectors of length `rows`.
    """
    n, classes, positions, width = right.shape
    if not left.is_floating_point():
        made = right.new_zeros(n, classes, rows + 1, width)
        index = left.remainder(rows + 1)[:, None, :, None].expand_as(right)  # -1: the spare row
        return made.scatter_add_(2, index, right)[:, :, :rows].transpose(2, 3)
    flat = right.transpose(2, 3).reshape(n, classes * width, positions)
    return torch.bmm(flat, left).view(n, classes, width, left.shape[-1])


def unfold(
    a: Tensor,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    extra: int = 0,
) -> Tensor:
    """The patches `[n, T, channels * prod(size) + extra]` a convolution multiplies.

    In any dimension; `extra` columns of ones follow.
    """
    space = len(size)
    a = a.reshape(len(a), a.shape[-space - 1], *a.shape[-space:])
    if any(p for side in padding for p in side):
        a = F.pad(a, [p for side in reversed(padding) for p in side])
    for k in range(space):
        reach = dilation[k] * (size[k] - 1) + 1
        a = a.unfold(2 + k, reach, stride[k])[..., :: dilation[k]]
    # [n, channels, *places, *size] to [n, channels, *size, *places], where rows are long
    order = (0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space))
    patches = a.permute(order)
    width, places = patches.shape[1 : 2 + space].numel(), patches.shape[2 + space :]
    made = a.new_empty(len(a), width + extra, places.numel())
    made[:, :width].view(patches.shape).copy_(patches)
    made[:, width:] = 1.0
    return made.transpose(1, 2)


def _sum_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum `g [n, C, *y]` over what was broadcast from `shape`."""
    lead = g.ndim - 2 - len(shape)
    dims = [*range(2, 2 + lead)] + [
        2 + lead + k for k, size in enumerate(shape) if size == 1 and g.shape[2 + lead + k] > 1
    ]
    return (g.sum(dims) if dims else g).reshape(*g.shape[:2], *shape)


class ParameterUses(TorchFunctionMode):
    """Watches a forward pass of one sample and notes every use of the parameters it follows.

    Args:
        followed: the tensors to follow, by the name they have.
        perturbations: what to add to the output of each use (zeros to differentiate by); none to
            find out which there are.

    Attributes:
        uses: one entry an operation, in the order of the computation.
        inputs: what went into each of them.
        shapes: of the output of each of them.
        unknown: names of parameters that went into something else.
    """

    def __init__(
        self, followed: dict[str, Tensor], perturbations: tuple[Tensor, ...] | None = None
    ) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.inputs: list[Tensor] = []
        self.shapes: list[torch.Size] = []
        self.unknown: set[str] = set()
        self._perturbations = perturbations
        # aliases are kept alive with their role: another tensor could take over the id
        self._roles = {id(t): (Role(name), t) for name, t in followed.items()}

    def role(self, tensor: Any) -> Role | None:
        found = self._roles.get(id(tensor))
        return None if found is None else found[0]

    def alias(self, tensor: Tensor, role: Role) -> Tensor:
        self._roles[id(tensor)] = (role, tensor)
        return tensor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in IN_STEPS:
            with self:
                return IN_STEPS[func](*args, **kwargs)
        touched = [role for t in _tensors(args, kwargs) if (role := self.role(t)) is not None]
        if not touched:
            return func(*args, **kwargs)
        if func in _ALIASES and _takes(_ALIASES[func], self, func, *args, **kwargs):
            made = _ALIASES[func](self, func, *args, **kwargs)
            if made is not None:
                return made
        if func in _REWRITTEN and _takes(_REWRITTEN[func], self, *args, **kwargs):
            with self:
                product = _REWRITTEN[func](self, *args, **kwargs)
            if product is not None:
                return product
        if func in _RULES and _takes(_RULES[func], self, *args, **kwargs):
            found = _RULES[func](self, *args, **kwargs)
            # each followed tensor must have found a place: a weight times a weight has none
            if found is not None and len(list(found[0].roles())) == len(touched):
                return self._note(*found, func(*args, **kwargs))
        if isinstance(func, _PYTHON) and func.__module__ == "torch.nn.functional":
            with self:
                return _body(func)(*args, **kwargs)
        result = func(*args, **kwargs)
        if func not in _CUTS and any(True for _ in _tensors((result,), {})):
            self.unknown.update(role.name for role in touched)
        return result

    def _note(self, use: Use, a: Tensor, result: Tensor) -> Tensor:
        self.uses.append(use)
        self.inputs.append(a)
        self.shapes.append(result.shape)
        # uses beyond the expected ones are noticed by the caller, who compares the lists
        if self._perturbations is None or len(self.uses) > len(self._perturbations):
            return result
        return result + self._perturbations[len(self.uses) - 1]


_PYTHON = types.FunctionType

_signature = cache(inspect.signature)


def _takes(rule: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a rule knows the names by which torch's function was given its arguments."""
    try:
        _signature(rule).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@cache
def _body(func: Any) -> Callable[..., Any]:
    """A function of `torch.nn.functional` that does not hand itself to the mode once more.

    Such functions ask first whether somebody overrides them. To watch what attention, say, does
    inside, its body runs with that question answered by no.
    """

    def no(*_: Any) -> bool:
        return False

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    made = types.FunctionType(
        func.__code__,
        {**func.__globals__, **dict.fromkeys(names, no)},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (v for v in value if isinstance(v, Tensor))


# -- rules: (watcher, the operation's own arguments) -> (use, what went in), or None ------------

Found = tuple[Use, Tensor]


def _linear(
    seen: ParameterUses, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Found | None:
    if weight.ndim != 2:
        return None
    return Affine(seen.role(weight), seen.role(bias)), input


def _matmul(seen: ParameterUses, input: Tensor, other: Tensor, **more: Any) -> Found | None:
    role = seen.role(other)
    if more or role is None or (other.ndim != 2 and not role.spread):
        return None
    if role.spread:  # each copy must meet inputs of its own: then it is one matrix for them all
        leading = list(zip(reversed(input.shape[:-2]), reversed(other.shape[:-2]), strict=False))
        if input.ndim < other.ndim or any(copies not in (1, size) for size, copies in leading):
            return None
    return Affine(Role(role.name, role.scale, not role.transposed), None), input


def _convolution(
    seen: ParameterUses,
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
    seen: ParameterUses,
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
    seen: ParameterUses,
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
    seen: ParameterUses,
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
    seen: ParameterUses,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Found | None:
    plain = F.group_norm(input, num_groups, None, None, eps)
    return Scaling(seen.role(weight), seen.role(bias), _channels(input)), plain


def _batch_norm(
    seen: ParameterUses,
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
    seen: ParameterUses,
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


def _mul(seen: ParameterUses, input: Any, other: Any, **more: Any) -> Found | None:
    for p, a in ((input, other), (other, input)) if not more else ():
        role = seen.role(p)
        if role is not None and isinstance(a, Tensor):
            if role.transposed or role.spread:
                return None
            return Scaling(role, None, tuple(p.shape)), a
    return None


def _sum(sign: float) -> Callable[..., Found | None]:
    def rule(seen: ParameterUses, input: Any, other: Any, **more: Any) -> Found | None:
        for p, factor in ((input, 1.0), (other, sign)) if not more else ():
            role = seen.role(p)
            if role is not None:
                if role.transposed or role.spread:
                    return None
                return Scaling(None, role, tuple(p.shape), factor), torch.zeros_like(p)
        return None

    return rule


# -- aliases: a parameter that is only turned around or multiplied by a number -------------------


def _transpose(
    seen: ParameterUses, func: Any, tensor: Tensor, *dims: Any, **named: Any
) -> Tensor | None:
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


def _spread(
    seen: ParameterUses, func: Any, tensor: Tensor, *sizes: Any, **named: Any
) -> Tensor | None:
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
    def rule(seen: ParameterUses, func: Any, input: Any, other: Any, **more: Any) -> Tensor | None:
        tensor, number = (input, other) if isinstance(input, Tensor) else (other, input)
        role = seen.role(tensor)
        if role is None or more or isinstance(number, bool) or not isinstance(number, int | float):
            return None
        if divide and tensor is not input:
            return None
        scale = role.scale / number if divide else role.scale * number
        return seen.alias(func(input, other), replace(role, scale=scale))

    return rule


def _same(seen: ParameterUses, func: Any, tensor: Tensor) -> Tensor | None:
    role = seen.role(tensor)
    return None if role is None else seen.alias(func(tensor), role)


# -- products written in other ways: the same as a matrix product with the weight on the right ----


def _from_left(seen: ParameterUses, input: Tensor, other: Tensor, **more: Any) -> Tensor | None:
    """`W a` as the transpose of `aᵀ Wᵀ`."""
    role = seen.role(input)
    if more or role is None or seen.role(other) is not None or other.ndim == 0:
        return None
    if input.ndim != 2 and not role.spread:
        return None
    if other.ndim == 1:
        return torch.matmul(other, input.mT)
    return torch.matmul(other.mT, input.mT).mT


def _matrix_vector(seen: ParameterUses, input: Tensor, vec: Tensor, **more: Any) -> Tensor | None:
    return None if more else torch.matmul(input, vec)


def _added_product(
    seen: ParameterUses,
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


def _inner(seen: ParameterUses, input: Tensor, other: Tensor, **more: Any) -> Tensor | None:
    if more or input.ndim == 0 or other.ndim == 0:
        return None
    if seen.role(other) is not None and other.ndim == 2:
        return torch.matmul(input, other.t())
    if seen.role(input) is not None and input.ndim == 2:
        return torch.matmul(other, input.t()).movedim(-1, 0)
    return None


def _einsum(seen: ParameterUses, equation: Any, *operands: Any) -> Tensor | None:
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


def _tensordot(
    seen: ParameterUses, a: Tensor, b: Tensor, dims: Any = 2, out: Any = None
) -> Tensor | None:
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


_T = torch.Tensor
_REWRITTEN: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys((torch.matmul, _T.matmul, torch.mm, _T.mm, torch.bmm, _T.bmm), _from_left),
    **dict.fromkeys((torch.mv, _T.mv), _matrix_vector),
    **dict.fromkeys((torch.addmm, _T.addmm, torch.addmv, _T.addmv), _added_product),
    **dict.fromkeys((torch.baddbmm, _T.baddbmm), _added_product),
    **dict.fromkeys((torch.inner, _T.inner), _inner),
    torch.einsum: _einsum,
    torch.tensordot: _tensordot,
}
_RULES: dict[Any, Callable[..., Found | None]] = {
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
_ALIASES: dict[Any, Callable[..., Tensor | None]] = {
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
_CUTS = {torch.detach, _T.detach, _T.data.__get__}  # type: ignore[attr-defined]


def _each(value: Any, count: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * count
    given = tuple(int(v) for v in value)
    return given * count if len(given) == 1 else given
