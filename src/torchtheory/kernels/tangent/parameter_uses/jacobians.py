r"""Jacobians of a model with respect to its parameters, from what each operation on them saw.

A model's Jacobian with respect to a weight is determined by what went into the operation that used
the weight and by what came back through it: for $y = W a$,

$$
\frac{\partial f_c}{\partial W} = g_c\, a^\top,
\qquad g_c = \frac{\partial f_c}{\partial y},
$$

a product that need not be written out. Each way to use a parameter is one of the classes below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """`linear(a, W, b)` with `W [o, d]`.

    Attributes:
        inside: order of the dimensions of `a` in which the one that is summed over is the last;
            None for their own.
        outside: that of the result in which the new one is the last and the others are as inside.
    """

    inside: tuple[int, ...] | None = None
    outside: tuple[int, ...] | None = None

    def inputs(self, a: Tensor, extra: int = 0) -> Tensor:
        if self.inside is not None:
            a = a.permute(0, *(1 + k for k in self.inside))
        flat = a.reshape(len(a), -1, a.shape[-1])
        return F.pad(flat, (0, extra), value=1.0) if extra else flat

    def right(self, g: Tensor) -> Tensor:
        if self.outside is not None:
            g = g.permute(0, 1, *(2 + k for k in self.outside))
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
