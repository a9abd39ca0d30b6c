r"""A network as a graph of a few kinds of operations, each with two rules.

*Forwards*, the interval rule: bounds of the operands to bounds of the result. *Backwards*, the
linear rule: a linear function $\langle a, z\rangle$ of the result to linear functions of the
operands and a number, with $\langle a,z\rangle\ge\sum_k\langle a_k,x_k\rangle+c$. For affine
operations this is the transpose, and equality; for activations and maxima $a$ is multiplied by
slopes of lines around them (`relaxations`).

| kind | what it is |
|---|---|
| `Picks` | entries moved, left out, repeated, joined or filled: views, permutations, slices, padding, concatenation |
| `Affine` | matrices, convolutions, means, products with constants, normalization by stored statistics |
| `Sum` | $a\pm b$ |
| `Bend` | a function of each entry |
| `Largest` | maxima over windows |

Coefficients of linear functions are `[b, s, ...]` for $b$ samples, or 1 where they are the same for
all, and $s$ functions.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from torchtheory.robustness.bounds.relaxations import Activation, Box, Lines
from torchtheory.robustness.watched_pass import Node

Map: TypeAlias = Callable[[Tensor], Tensor]
Shape: TypeAlias = tuple[int, ...]

#: Roundings of sums of n terms are taken to be at most so many times √n units of the last place;
#: sums in blocks and roundings of both signs keep far below it.
ROUNDING = 1.0


@dataclass(eq=False)
class Vertex(Node):
    """A value of the network: a node of the watched pass with an operation.

    Attributes:
        operation: how it is made; None for the input.
        operands: places of what it is made of.
        shape: of one sample.
        place: its own number.
        name: of the module that makes it.
    """

    operation: Operation | None = None
    operands: tuple[int, ...] = ()
    shape: Shape = ()
    place: int = 0
    name: str = ""

    @property
    def entries(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Graph:
    """The values of a network in the order in which they are made; the first is the input."""

    vertices: tuple[Vertex, ...]
    output: int

    def ancestors(self, place: int) -> list[int]:
        """The values that one is made of, itself included, in their order."""
        found = {place}
        for k in range(place, -1, -1):
            if k in found:
                found.update(self.vertices[k].operands)
        return sorted(found)

    @property
    def widest(self) -> int:
        return max(v.entries for v in self.vertices)


# -- affine operations -----------------------------------------------------------------------------


@dataclass(eq=False)
class Affine:
    r"""$x\mapsto Ax+c$ of each sample, with $A$ as a function.

    Attributes:
        linear: $A$, `[n, ...]` to `[n, ...]` for any number of samples.
        absolute: the matrix of absolute values $\lvert A\rvert$.
        transpose: $A^\top$.
        shift: $c$, or None for 0; broadcasts with a sample's shape.
        inputs: shape of one sample before the map.
        fan_in: entries of the input that enter one of the output, at most.
        cached: whether |A|1 can be kept: not while the weights are being trained.
    """

    linear: Map
    absolute: Map
    transpose: Map
    shift: Tensor | None
    inputs: Shape
    fan_in: int
    cached: bool = True
    _sizes: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def interval(self, box: Box) -> Box:
        middle = (box.lower + box.upper) / 2
        half = (box.upper - box.lower) / 2
        center, spread = self.linear(middle), self.absolute(half)
        # what rounding may have moved: an entry is a sum of fan_in products
        unit = torch.finfo(center.dtype).eps * ROUNDING * math.sqrt(self.fan_in + 2)
        largest = torch.maximum(box.lower.detach().abs(), box.upper.detach().abs())
        top = largest.flatten(1).amax(1).reshape(-1, *[1] * (center.ndim - 1))
        spread = spread + unit * self._size(middle) * top
        if self.shift is not None:
            center = center + self.shift
        return Box(center - spread, center + spread)

    def _size(self, like: Tensor) -> Tensor:
        """|A|1: how much an entry of the result can be of entries of at most 1."""
        if like.dtype not in self._sizes:
            with torch.no_grad():
                made = self.absolute(like.new_ones(1, *self.inputs))
                if self.shift is not None:
                    made = made + self.shift.abs() / 4
            if not self.cached:
                return made
            self._sizes[like.dtype] = made
        return self._sizes[like.dtype]

    def terms(self) -> float:
        return self.fan_in + 2.0

    def pull_back(self, a: Tensor) -> tuple[Tensor, Tensor | None]:
        samples, count = a.shape[:2]
        moved = self.transpose(a.flatten(0, 1))
        return moved.reshape(samples, count, *self.inputs), _against(a, self.shift)


def _against(a: Tensor, shift: Tensor | None) -> Tensor | None:
    """⟨a, shift⟩ for coefficients `[b, s, ...]`, or None for 0."""
    if shift is None:
        return None
    wide = shift.expand(a.shape[2:]).reshape(-1)
    return a.flatten(2) @ wide


@dataclass(eq=False)
class Picks:
    """Entries of operands and constants, put in new places.

    Attributes:
        shape: of one sample of the result.
        inputs: shapes of one sample of each operand.
        places, sources: for each operand, which entries of the result are which of its own.
        constant: the entries that come from no operand, flat; None if there are none.
    """

    shape: Shape
    inputs: tuple[Shape, ...]
    places: tuple[Tensor, ...]
    sources: tuple[Tensor, ...]
    constant: Tensor | None
    plain: bool = field(init=False)
    simple: tuple[bool, ...] = field(init=False)

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        whole = torch.arange(size, device=self.places[0].device)
        self.plain = (
            len(self.inputs) == 1
            and len(self.sources[0]) == size == math.prod(self.inputs[0])
            and bool((self.sources[0] == whole).all())
        )
        self.simple = tuple(len(s.unique()) == len(s) for s in self.sources)  # type: ignore[no-untyped-call]

    def interval(self, *operands: Box) -> Box:
        return Box(*(self._moved([o[k] for o in operands]) for k in range(2)))

    def _moved(self, values: Sequence[Tensor]) -> Tensor:
        if self.plain:
            return values[0].reshape(-1, *self.shape)
        flat = [v.flatten(1) for v in values]
        if len(flat) == 1 and self.constant is None:
            return flat[0][:, self.sources[0]].reshape(-1, *self.shape)
        made = flat[0].new_zeros(len(flat[0]), math.prod(self.shape))
        if self.constant is not None:
            made = made + self.constant.to(made)
        for value, place, source in zip(flat, self.places, self.sources, strict=True):
            made = made.index_copy(1, place, value[:, source])
        return made.reshape(-1, *self.shape)

    def terms(self) -> float:
        return 0.0

    def pull_back(self, a: Tensor) -> tuple[list[Tensor], Tensor | None]:
        samples, count = a.shape[:2]
        if self.plain:
            return [a.reshape(samples, count, *self.inputs[0])], None
        flat = a.reshape(samples, count, -1)
        found = []
        for shape, place, source in zip(self.inputs, self.places, self.sources, strict=True):
            made = flat.new_zeros(samples, count, math.prod(shape))
            made = made.index_add(2, source, flat[..., place])
            found.append(made.reshape(samples, count, *shape))
        shift = None if self.constant is None else flat @ self.constant.to(flat)
        return found, shift


@dataclass(eq=False)
class Sum:
    r"""$a+\sigma b$ of two values of the same shape, $\sigma=\pm1$."""

    sign: int = 1

    def interval(self, a: Box, b: Box) -> Box:
        if self.sign == 1:
            made = Box(a.lower + b.lower, a.upper + b.upper)
        else:
            made = Box(a.lower - b.upper, a.upper - b.lower)
        return widened(made)

    def terms(self) -> float:
        return 2.0

    def pull_back(self, a: Tensor) -> tuple[list[Tensor], None]:
        return [a, a if self.sign == 1 else -a], None


def widened(box: Box, units: float = ROUNDING) -> Box:
    """Bounds moved apart by some units of their last place."""
    eps = units * torch.finfo(box.lower.dtype).eps
    size = torch.maximum(box.lower.detach().abs(), box.upper.detach().abs()) * eps
    return Box(box.lower - size, box.upper + size)


# -- what bends ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Bend:
    """A function of each entry."""

    activation: Activation

    def interval(self, box: Box) -> Box:
        made = widened(self.activation.image(box))
        eps = ROUNDING * torch.finfo(box.lower.dtype).eps * self.activation.terms(box)
        return Box(made.lower - eps, made.upper + eps)

    def terms(self) -> float:
        return 2.0

    def relaxed(self, box: Box) -> Lines:
        """Lines around it, moved apart by what rounding may do."""
        lines = self.activation.lines(box)
        eps = ROUNDING * torch.finfo(box.lower.dtype).eps
        reach = torch.maximum(box.lower.abs(), box.upper.abs())
        inside = self.activation.terms(box)
        low = eps * (lines.lower_offset.abs() + lines.lower_slope.abs() * reach + inside)
        high = eps * (lines.upper_offset.abs() + lines.upper_slope.abs() * reach + inside)
        # where the line is the function itself (of activations with kinks), nothing is rounded
        exact = (
            (lines.lower_slope == lines.upper_slope)
            & (lines.lower_offset == lines.upper_offset)
            & (torch.as_tensor(inside, device=reach.device) == 0)
        )
        return lines._replace(
            lower_offset=torch.where(exact, lines.lower_offset, lines.lower_offset - low),
            upper_offset=torch.where(exact, lines.upper_offset, lines.upper_offset + high),
        )


def pull_back_lines(a: Tensor, lines: Lines) -> tuple[Tensor, Tensor]:
    r"""$\langle a,\varrho(x)\rangle\ge\langle a',x\rangle+c$ from lines around $\varrho$.

    Positive coefficients meet the line below, negative ones that above.
    """
    above, below = a.clamp_min(0.0), a.clamp_max(0.0)

    def wide(line: Tensor) -> Tensor:
        return line[:, None] if line.ndim == a.ndim - 1 else line

    shift = _sums(above, wide(lines.lower_offset)) + _sums(below, wide(lines.upper_offset))
    made = above * wide(lines.lower_slope) + below * wide(lines.upper_slope)
    return made, shift


def _sums(a: Tensor, offsets: Tensor) -> Tensor:
    """Sums over entries of products, `[b, s]`."""
    if offsets.shape[1] == 1:
        return (a.flatten(2) @ offsets.flatten(2).mT)[..., 0]
    return (a * offsets).flatten(2).sum(2)


@dataclass(eq=False)
class Largest:
    """Maxima over windows of the last dimension of a value seen as `[b, channels, entries]`.

    Attributes:
        channels: how many there are.
        windows: `[outputs, k]`, the entries of each window; -1 stands for none.
        inputs, shape: of one sample.
    """

    channels: int
    windows: Tensor
    inputs: Shape
    shape: Shape

    def interval(self, box: Box) -> Box:
        return Box(
            *(self._entries(v).amax(-1).reshape(-1, *self.shape) for v in (box.lower, box.upper))
        )

    def _entries(self, value: Tensor) -> Tensor:
        flat = value.reshape(len(value), self.channels, -1)
        taken = flat[..., self.windows.clamp_min(0)]
        return torch.where(self.windows < 0, -math.inf, taken)

    def terms(self) -> float:
        return 1.0

    def relaxed(self, box: Box) -> tuple[Tensor, Tensor, Tensor]:
        """Which entry bounds a maximum from below; whether it is the maximum; and the upper bound.

        The entry with the largest lower bound; it wins for certain if that exceeds the upper
        bounds of all others, and otherwise the maximum is at most the largest upper bound.
        """
        low, high = self._entries(box.lower), self._entries(box.upper)
        best = low.argmax(-1, keepdim=True)
        others = high.scatter(-1, best, -math.inf).amax(-1)
        wins = low.gather(-1, best)[..., 0] >= others
        index = self.windows.expand(*low.shape).gather(-1, best)[..., 0]
        return index, wins, high.amax(-1)

    def pull_back(self, a: Tensor, relaxed: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        index, wins, top = relaxed
        count = a.shape[1]
        flat = a.reshape(len(a), count, self.channels, -1)
        kept = torch.where(wins[:, None], flat, flat.clamp_min(0.0))
        samples = len(kept)
        made = kept.new_zeros(
            samples, count, self.channels, math.prod(self.inputs) // self.channels
        )
        made = made.scatter_add(3, index[:, None].expand(samples, count, -1, -1), kept)
        left = torch.where(wins[:, None], 0.0, flat.clamp_max(0.0))
        shift = (left * top[:, None]).flatten(2).sum(2)
        return made.reshape(samples, count, *self.inputs), shift


#: How a value is made from others.
Operation: TypeAlias = Affine | Picks | Sum | Bend | Largest
