r"""A network as a graph of a few kinds of operations, each with two rules.

*Forwards*, the interval rule: bounds of the operands to bounds of the result. *Backwards*, the
linear rule: a linear function $\langle a, z\rangle$ of the result to linear functions of the
operands and a number, with $\langle a,z\rangle\ge\sum_k\langle a_k,x_k\rangle+c$. For affine
operations this is the transpose, and equality; for activations and maxima $a$ is multiplied by
slopes of lines around them (`relaxations`).

Both rules count what rounding can do at worst (`rounding`). Each value is its exact image plus an
error that torch makes, and going back makes errors in the coefficients: `error` bounds both of
them, entry by entry, so that $\langle a,z\rangle$ is lowered by
$\langle\lvert a\rvert,e\rangle$.

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
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from torchtheory.robustness.bounds.relaxations import Activation, Box, Lines, largest_entries
from torchtheory.robustness.bounds.rounding import chain, coarseness, entries, gamma, products, sums
from torchtheory.robustness.lipschitz.watched_pass import Node

Map: TypeAlias = Callable[[Tensor], Tensor]
Shape: TypeAlias = tuple[int, ...]

#: Roundings of an operation besides those of its sums: of its factors, middles and halves.
_FEW = 8


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
    _ancestors: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def ancestors(self, place: int) -> list[int]:
        """The values that one is made of, itself included, in their order."""
        if place not in self._ancestors:
            found = {place}
            for k in range(place, -1, -1):
                if k in found:
                    found.update(self.vertices[k].operands)
            self._ancestors[place] = sorted(found)
        return self._ancestors[place]

    @cached_property
    def uses(self) -> list[int]:
        """How many values are made of each one."""
        found = [0] * len(self.vertices)
        for vertex in self.vertices:
            for k in vertex.operands:
                found[k] += 1
        return found

    @cached_property
    def only_bent(self) -> list[bool]:
        """Whether nothing but activations looks at a value."""
        found = [uses > 0 for uses in self.uses]
        found[self.output] = False
        for vertex in self.vertices:
            if not isinstance(vertex.operation, Bend):
                for k in vertex.operands:
                    found[k] = False
        return found


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
        fan_out: entries of the output that one of the input enters, at most.
        parts: the absolute terms that the shift was computed from, where they are more than it.
        multiplies: whether torch multiplies matrices for it, which it may do with fewer digits.
    """

    linear: Map
    absolute: Map
    transpose: Map
    shift: Tensor | None
    inputs: Shape
    fan_in: int = 1
    fan_out: int = 1
    parts: Tensor | None = None
    multiplies: bool = False

    def interval(self, box: Box) -> Box:
        middle = (box.lower + box.upper) / 2
        half = (box.upper - box.lower) / 2
        # of the sums here and of those that torch makes of the values themselves
        share = 2 * self._share(self.fan_in, middle)
        center = self.linear(middle)
        spread = self.absolute(half + share * largest_entries(box))
        if self.shift is not None:
            center = center + self.shift
            spread = spread + share * self._parts()
        return Box(center - spread, center + spread)

    def _share(self, terms: int, like: Tensor) -> float:
        coarse = coarseness(like.dtype, like.device) if self.multiplies else 0.0
        return gamma(terms + _FEW, like.dtype) + coarse

    def _parts(self) -> Tensor:
        assert self.shift is not None
        return self.shift.detach().abs() if self.parts is None else self.parts

    def error(self, made: Box, uses: int, box: Box) -> Tensor:
        size = self.absolute(largest_entries(box))
        share = self._share(self.fan_in, size) + self._share(self.fan_out + uses, size)
        if self.shift is None:
            return share * size
        summed = gamma(chain(math.prod(made.lower.shape[1:])), size.dtype)
        return share * size + (share + summed) * self._parts()

    def pull_back(self, a: Tensor) -> tuple[Tensor, Tensor | None]:
        samples, count = a.shape[:2]
        moved = self.transpose(a.flatten(0, 1))
        return moved.reshape(samples, count, *self.inputs), _against(a, self.shift)


def _against(a: Tensor, shift: Tensor | None) -> Tensor | None:
    """⟨a, shift⟩ for coefficients `[b, s, ...]`, or None for 0."""
    if shift is None:
        return None
    return products(entries(a), shift.expand(a.shape[2:]).reshape(1, -1))


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
    copies: int = field(init=False)

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        whole = torch.arange(size, device=self.places[0].device)
        self.plain = (
            len(self.inputs) == 1
            and len(self.sources[0]) == size == math.prod(self.inputs[0])
            and bool((self.sources[0] == whole).all())
        )
        self.copies = max(int(torch.bincount(s).max()) if len(s) else 1 for s in self.sources)

    def interval(self, *operands: Box) -> Box:
        return Box(*(self._moved([o[k] for o in operands]) for k in range(2)))

    def _moved(self, values: Sequence[Tensor]) -> Tensor:
        if self.plain:
            return values[0].reshape(-1, *self.shape)
        flat = [v.reshape(len(v), -1) for v in values]
        if len(flat) == 1 and self.constant is None:
            return flat[0][:, self.sources[0]].reshape(-1, *self.shape)
        made = flat[0].new_zeros(len(flat[0]), math.prod(self.shape))
        if self.constant is not None:
            made = made + self.constant.to(made)
        for value, place, source in zip(flat, self.places, self.sources, strict=True):
            made = made.index_copy(1, place, value[:, source])
        return made.reshape(-1, *self.shape)

    def error(self, made: Box, uses: int, *_: Box) -> Tensor | None:
        """Of going back only: nothing is rounded where entries are moved."""
        if self.copies == uses == 1 and self.constant is None:
            return None
        size = largest_entries(made)
        share = gamma(self.copies + uses, size.dtype)
        if self.constant is None:
            return share * size
        fixed = self.constant.abs().to(size).reshape(self.shape)
        return share * size + gamma(chain(math.prod(self.shape)), size.dtype) * fixed

    def pull_back(self, a: Tensor) -> tuple[list[Tensor], Tensor | None]:
        samples, count = a.shape[:2]
        if self.plain:
            return [a.reshape(samples, count, *self.inputs[0])], None
        flat = entries(a)
        found = []
        for shape, place, source in zip(self.inputs, self.places, self.sources, strict=True):
            made = flat.new_zeros(samples, count, math.prod(shape))
            made = made.index_add(2, source, flat[..., place])
            found.append(made.reshape(samples, count, *shape))
        shift = None if self.constant is None else _against(flat, self.constant.to(flat))
        return found, shift


@dataclass(eq=False)
class Sum:
    r"""$a+\sigma b$ of two values of the same shape, $\sigma=\pm1$."""

    sign: int = 1

    def interval(self, a: Box, b: Box) -> Box:
        if self.sign == 1:
            return widened(Box(a.lower + b.lower, a.upper + b.upper))
        return widened(Box(a.lower - b.upper, a.upper - b.lower))

    def error(self, made: Box, uses: int, a: Box, b: Box) -> Tensor:
        size = largest_entries(a) + largest_entries(b)
        return gamma(uses + _FEW, size.dtype) * size

    def pull_back(self, a: Tensor) -> tuple[list[Tensor | None], None]:
        return [a, a if self.sign == 1 else -a], None


@dataclass(eq=False)
class Maximum(Sum):
    r"""$\max(a,b)$ as $a+\max(b-a,0)$, of which intervals forget that $a$ occurs twice.

    Its operands are $a$, $\max(b-a,0)$ and $b$; the last one serves the interval alone.
    """

    def interval(self, a: Box, rise: Box, b: Box) -> Box:  # type: ignore[override]
        summed = super().interval(a, rise)
        lower = torch.maximum(torch.maximum(a.lower, b.lower), summed.lower)
        return Box(lower, torch.minimum(torch.maximum(a.upper, b.upper), summed.upper))

    def error(self, made: Box, uses: int, a: Box, rise: Box, b: Box) -> Tensor:  # type: ignore[override]
        return super().error(made, uses, a, rise)

    def pull_back(self, a: Tensor) -> tuple[list[Tensor | None], None]:
        return [a, a, None], None


def widened(box: Box, units: int = 2) -> Box:
    """Bounds moved apart by roundings of their size: of this sum, and of torch's own."""
    size = gamma(units, box.lower.dtype) * largest_entries(box)
    return Box(box.lower - size, box.upper + size)


# -- what bends ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Bend:
    """A function of each entry."""

    activation: Activation

    def interval(self, box: Box) -> Box:
        made = self.activation.image(box)
        if self.activation.exact:
            return made
        inside = gamma(2 * _FEW, box.lower.dtype) * (
            largest_entries(made) + self.activation.terms(box)
        )
        return Box(made.lower - inside, made.upper + inside)

    def relaxed(self, box: Box, uses: int, below: Tensor | None) -> Lines:
        """Lines around it that count what rounding may do.

        Args:
            box: of what enters it, `[b, ...]`.
            uses: how many values are made of what enters it.
            below: the error of what enters it, where it is to be counted here.
        """
        lines = self.activation.lines(box)
        return _apart(lines, *self._slack([lines], box, uses, below))

    def family(self, box: Box, uses: int, below: Tensor | None) -> tuple[list[Lines], Tensor]:
        """Lines of which any mixture of two neighbors is one as well, and where CROWN's is."""
        members, start = self.activation.family(box)
        low, high = self._slack(members, box, uses, below)
        return [_apart(lines, low, high) for lines in members], start

    def _slack(
        self, members: Sequence[Lines], box: Box, uses: int, below: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """By how much to lower lines below it, and to lift lines above it."""
        reach = largest_entries(box)
        dtype = reach.dtype
        offsets = gamma(chain(math.prod(reach.shape[1:])) + uses + 2 * _FEW, dtype)
        slopes = gamma(uses + 2 * _FEW, dtype)
        inside = gamma(2 * _FEW, dtype) * self.activation.terms(box)
        found = []
        for slope, offset in (("lower_slope", "lower_offset"), ("upper_slope", "upper_offset")):
            steep = _largest([getattr(m, slope) for m in members])
            slack = slopes * steep * reach + offsets * _largest(
                [getattr(m, offset) for m in members]
            )
            slack = slack + inside
            if below is not None:
                slack = slack + steep * below
            # of values that are not bounded nothing is known
            found.append(torch.where(reach < math.inf, slack, math.nan))
        return found[0], found[1]


def _largest(values: Sequence[Tensor]) -> Tensor:
    made = values[0].abs()
    for value in values[1:]:
        made = torch.maximum(made, value.abs())
    return made


def _apart(lines: Lines, low: Tensor, high: Tensor) -> Lines:
    return lines._replace(
        lower_offset=lines.lower_offset - low, upper_offset=lines.upper_offset + high
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
        return products(entries(a), offsets.reshape(len(offsets), -1))
    return sums(entries(a * offsets))


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

    @cached_property
    def fan_out(self) -> int:
        """Windows that an entry is in, at most."""
        return int(torch.bincount(self.windows[self.windows >= 0]).max())

    def error(self, made: Box, uses: int, box: Box) -> Tensor:
        """Of going back only: a maximum is one of its entries."""
        size = largest_entries(made)
        terms = self.fan_out + uses + chain(math.prod(self.shape)) + _FEW
        return gamma(terms, size.dtype) * size

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
        shift = sums(entries(left * top[:, None]))
        return made.reshape(samples, count, *self.inputs), shift


#: How a value is made from others.
Operation: TypeAlias = Affine | Picks | Sum | Bend | Largest
