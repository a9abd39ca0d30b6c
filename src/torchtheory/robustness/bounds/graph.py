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
| `Product` | two values, entry by entry, between McCormick's planes |
| `Chosen` | an entry or 0, as a condition on another value says |

Coefficients of linear functions are `[b, s, ...]` for $b$ samples, or 1 where they are the same for
all, and $s$ functions.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchtheory.robustness.bounds.relaxations import Activation, Box, Lines, largest_entries
from torchtheory.robustness.bounds.rounding import chain, coarseness, entries, gamma, products, sums

Map: TypeAlias = Callable[[Tensor], Tensor]
Shape: TypeAlias = tuple[int, ...]

#: Coefficients of operands, None where they are 0, and a number for each function, None for 0.
Pulled: TypeAlias = tuple[Sequence[Tensor | None], Tensor | None]

#: Roundings of an operation besides those of its sums: of its factors, middles and halves.
_FEW = 8


@dataclass(eq=False)
class Vertex:
    """A value of the network.

    Attributes:
        operation: how it is made; None for the input.
        operands: places of what it is made of.
        shape: of one sample, with a first dimension of size 1 where samples stand.
        place: its own number.
        name: of the layer that makes it.
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
    """The values of a network in the order in which they are made; the first is the input.

    Attributes:
        vertices: the values.
        output: place of the one that is meant.
        whole: whether all rows together are one sample, such as the nodes of a graph.
    """

    vertices: tuple[Vertex, ...]
    output: int
    whole: bool = False
    _ancestors: dict[int, list[int]] = field(default_factory=dict, repr=False)

    @property
    def inputs(self) -> Shape:
        """Shape of one sample."""
        shape = self.vertices[0].shape
        return shape if self.whole else shape[1:]

    @property
    def outputs(self) -> Shape:
        """Shape of the output of one sample."""
        shape = self.vertices[self.output].shape
        return shape if self.whole else shape[1:]

    def centers(self, x: Tensor) -> Tensor:
        """Inputs as the network's first value, `[b, ...]`."""
        return x[None] if self.whole else x[:, None]

    def rows(self, values: Tensor, shape: Shape) -> Tensor:
        """Values `[b, ...]` of the graph as the network has them, of a shape for one sample."""
        return values.reshape(shape) if self.whole else values.reshape(-1, *shape)

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
    def useful(self) -> frozenset[int]:
        """The values that linear functions of the output go back through, or are decided by."""
        found = {self.output}
        for k in range(self.output, -1, -1):
            operation = self.vertices[k].operation
            if k in found and operation is not None:
                found.update(self.vertices[k].operands[: operation.enters])
        return frozenset(found)

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
        factor: the map is the product of each entry with this, where it is one.
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
    factor: Tensor | None = None
    relaxes: ClassVar[int] = 0
    enters: ClassVar[int] = 1

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

    def pull_back(self, a: Tensor, _: None = None) -> Pulled:
        samples, count = a.shape[:2]
        moved = self.transpose(a.flatten(0, 1))
        return [moved.reshape(samples, count, *self.inputs)], _against(a, self.shift)


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
    relaxes: ClassVar[int] = 0
    enters: ClassVar[int | None] = None

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

    def pull_back(self, a: Tensor, _: None = None) -> Pulled:
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
    relaxes: ClassVar[int] = 0
    enters: ClassVar[int] = 2

    def interval(self, a: Box, b: Box) -> Box:
        if self.sign == 1:
            return widened(Box(a.lower + b.lower, a.upper + b.upper))
        return widened(Box(a.lower - b.upper, a.upper - b.lower))

    def error(self, made: Box, uses: int, a: Box, b: Box) -> Tensor:
        size = largest_entries(a) + largest_entries(b)
        return gamma(uses + _FEW, size.dtype) * size

    def pull_back(self, a: Tensor, _: None = None) -> Pulled:
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

    def pull_back(self, a: Tensor, _: None = None) -> Pulled:
        return [a, a, None], None


@dataclass(eq=False)
class Loose:
    """A value that torch computes less exactly than the operations here: up to a share of another.

    Attributes:
        terms: roundings, each as large as an entry of the second operand at most.
    """

    terms: int
    relaxes: ClassVar[int] = 0
    enters: ClassVar[int] = 1

    def interval(self, a: Box, size: Box) -> Box:
        slack = gamma(self.terms, a.lower.dtype) * largest_entries(size)
        return Box(a.lower - slack, a.upper + slack)

    def error(self, made: Box, uses: int, a: Box, size: Box) -> Tensor:
        return gamma(self.terms + uses, a.lower.dtype) * largest_entries(size)

    def pull_back(self, a: Tensor, _: None = None) -> Pulled:
        return [a, None], None


def widened(box: Box, units: int = 2) -> Box:
    """Bounds moved apart by roundings of their size: of this sum, and of torch's own."""
    size = gamma(units, box.lower.dtype) * largest_entries(box)
    return Box(box.lower - size, box.upper + size)


# -- what bends ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Bend:
    """A function of each entry."""

    activation: Activation
    relaxes: ClassVar[int] = 1
    enters: ClassVar[int] = 1

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

    def pull_back(self, a: Tensor, lines: Lines) -> Pulled:
        made, shift = pull_back_lines(a, lines)
        return [made], shift

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
    lower_slope, lower, upper_slope, upper = (_wide(line, a) for line in lines)
    shift = _sums(above, lower) + _sums(below, upper)
    return above * lower_slope + below * upper_slope, shift


def _wide(line: Tensor, a: Tensor) -> Tensor:
    """A line for each sample, or one for each of its functions, beside coefficients."""
    return line[:, None] if line.ndim == a.ndim - 1 else line


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
    relaxes: ClassVar[int] = 1
    enters: ClassVar[int] = 1

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

    def pull_back(self, a: Tensor, relaxed: tuple[Tensor, Tensor, Tensor]) -> Pulled:
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
        return [made.reshape(samples, count, *self.inputs)], shift


# -- two values that meet --------------------------------------------------------------------------


class Planes(NamedTuple):
    """Slopes in two values and an offset, of a plane below and of one above, `[b, ...]` each."""

    lower_first: Tensor
    lower_second: Tensor
    lower_offset: Tensor
    upper_first: Tensor
    upper_second: Tensor
    upper_offset: Tensor


@dataclass(eq=False)
class Product:
    r"""$xy$ of two values of the same shape.

    On a box $(x-l_x)(y-l_y)\ge0$ and $(u_x-x)(u_y-y)\ge0$, which are planes below $xy$, and the
    other two corners give planes above it (McCormick 1976). Any mixture of two planes does as well.
    """

    relaxes: ClassVar[int] = 2
    enters: ClassVar[int] = 2

    def interval(self, x: Box, y: Box, *_: Box) -> Box:
        corners = torch.stack([a * b for a in x for b in y])
        return widened(Box(corners.amin(0), corners.amax(0)), 2 * _FEW)

    def error(self, made: Box, uses: int, x: Box, y: Box, *_: Box) -> Tensor:
        size = largest_entries(x) * largest_entries(y)
        # of the product, of slopes and of offsets, each of this size at most
        return 4 * gamma(chain(math.prod(size.shape[1:])) + uses + 2 * _FEW, size.dtype) * size

    def relaxed(self, x: Box, y: Box, *_: Box) -> Planes:
        members = self.family(x, y)[0]
        return Planes(*((a + b) / 2 for a, b in zip(*members, strict=True)))

    def family(self, x: Box, y: Box, *_: Box) -> tuple[list[Planes], Tensor]:
        members = [
            Planes(
                below_y, below_x, -below_x * below_y, above_y, above_x, -above_x * above_y
            )
            for below_x, below_y, above_x, above_y in (
                (x.lower, y.lower, x.lower, y.upper),
                (x.upper, y.upper, x.upper, y.lower),
            )
        ]  # fmt: skip
        return members, torch.full_like(x.lower, 0.5)

    def pull_back(self, a: Tensor, planes: Planes) -> Pulled:
        above, below = a.clamp_min(0.0), a.clamp_max(0.0)
        lower_x, lower_y, lower, upper_x, upper_y, upper = (_wide(p, a) for p in planes)
        shift = _sums(above, lower) + _sums(below, upper)
        return [above * lower_x + below * upper_x, above * lower_y + below * upper_y], shift


@dataclass(eq=False)
class Standardized(Product):
    r"""$c_i\,r$ with $r=(\frac1n\sum_jc_j^2+\varepsilon)^{-1/2}$, of which intervals know both.

    It increases in $c_i$, and with $R_i=\sum_{j\ne i}c_j^2$ it is
    $c_i\big/\sqrt{(c_i^2+R_i)/n+\varepsilon}$.
    The operands are $c$, $r$ and a size whose `terms` roundings torch may make in the mean of
    squares; the last one serves the interval alone.

    Attributes:
        dims: of one sample, over which the mean is taken.
        eps: $\varepsilon$.
        terms: roundings.
        centered: whether the $c_j$ sum up to 0, so that $R_i\ge c_i^2/(n-1)$.
    """

    dims: tuple[int, ...] = ()
    eps: float = 0.0
    terms: int = 0
    centered: bool = False

    def interval(self, x: Box, y: Box, size: Box) -> Box:  # type: ignore[override]
        made = super().interval(x, y)
        dtype, dims = x.lower.dtype, [d + 1 for d in self.dims]
        n = math.prod(x.lower.shape[d] for d in dims)
        largest = largest_entries(x).square()
        nearest = torch.where(x.lower > 0, x.lower, torch.where(x.upper < 0, x.upper, 0.0)).square()
        share = gamma(n + 2 * _FEW, dtype)
        least_sum, largest_sum = (v.sum(dims, keepdim=True) for v in (nearest, largest))
        others = (
            (least_sum * (1 - share) - nearest).clamp_min(0.0) / n,
            (largest_sum * (1 + share) - largest).clamp_min(0.0) / n,
        )
        slack = gamma(self.terms, dtype) * largest_entries(size)

        def at(end: Tensor, upwards: bool) -> Tensor:
            near = (end > 0) == upwards  # where little beside it makes it large
            least = others[0]
            if self.centered and n > 1:
                least = torch.maximum(least, end.square() * (1 - share) / (n * (n - 1)))
            rest = torch.where(near, least - slack, others[1] + slack)
            square = (end.square() / n + rest + self.eps) * torch.where(near, 1 - share, 1 + share)
            return torch.where(square > 0, end * torch.rsqrt(square), math.nan)

        low, high = at(x.lower, False), at(x.upper, True)
        wide = widened(Box(low, high), 4 * _FEW)
        return Box(torch.fmax(made.lower, wide.lower), torch.fmin(made.upper, wide.upper))

    def pull_back(self, a: Tensor, planes: Planes) -> Pulled:
        (first, second), shift = super().pull_back(a, planes)
        return [first, second, None], shift


@dataclass(eq=False)
class Chosen:
    """Of two values: the second where the first is beyond a threshold, and 0 elsewhere.

    Attributes:
        threshold: broadcasts with a sample.
        above: whether it is beyond where it is larger.
    """

    threshold: Tensor
    above: bool
    relaxes: ClassVar[int] = 2
    enters: ClassVar[int] = 2

    def certain(self, asked: Box) -> tuple[Tensor, Tensor]:
        """Where the second value is taken for certain, and where 0 is."""
        larger, smaller = asked.lower > self.threshold, asked.upper < self.threshold
        return (larger, smaller) if self.above else (smaller, larger)

    def interval(self, asked: Box, value: Box) -> Box:
        yes, no = self.certain(asked)
        return Box(
            torch.where(yes, value.lower, torch.where(no, 0.0, value.lower.clamp_max(0.0))),
            torch.where(yes, value.upper, torch.where(no, 0.0, value.upper.clamp_min(0.0))),
        )

    def error(self, made: Box, uses: int, asked: Box, value: Box) -> Tensor:
        size = largest_entries(value)
        return gamma(chain(math.prod(size.shape[1:])) + uses + 2 * _FEW, size.dtype) * size

    def relaxed(self, asked: Box, value: Box) -> Lines:
        r"""Between the lines across $\min(d,0)$ and $\max(d,0)$, where nothing is certain."""
        yes, no = self.certain(asked)
        low, high = value.lower.clamp_max(0.0), value.upper.clamp_min(0.0)
        width = torch.where(high > low, high - low, 1.0)
        level = torch.zeros_like(width)
        open_ = ~(yes | no)

        def of(slope: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
            return torch.where(open_, slope, yes.to(slope)), torch.where(open_, offset, level)

        return Lines(*of(-low / width, low * high / width), *of(high / width, -low * high / width))

    def pull_back(self, a: Tensor, lines: Lines) -> Pulled:
        made, shift = pull_back_lines(a, lines)
        return [None, made], shift


@dataclass(eq=False)
class Choice(Sum):
    """$b+w$ with $w$ the difference $a-b$ or 0, of which intervals forget that $b$ occurs twice.

    Its operands are $b$, $w$, $a$ and the value that decides; the last two serve the interval.
    """

    chosen: Chosen | None = None

    def interval(self, b: Box, w: Box, a: Box, asked: Box) -> Box:  # type: ignore[override]
        assert self.chosen is not None
        yes, no = self.chosen.certain(asked)
        return Box(
            torch.where(yes, a.lower, torch.where(no, b.lower, torch.minimum(a.lower, b.lower))),
            torch.where(yes, a.upper, torch.where(no, b.upper, torch.maximum(a.upper, b.upper))),
        )

    def error(self, made: Box, uses: int, b: Box, w: Box, *_: Box) -> Tensor:  # type: ignore[override]
        return super().error(made, uses, b, w)

    def pull_back(self, a: Tensor, _: None = None) -> Pulled:
        return [a, a, None, None], None


#: How a value is made from others.
Operation: TypeAlias = Affine | Picks | Sum | Loose | Bend | Largest | Product | Chosen
