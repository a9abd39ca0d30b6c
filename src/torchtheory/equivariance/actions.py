r"""Groups that act on grids, sets and graphs by moving positions, and any action a user gives.

An element $g$ moves the positions of a tensor: $(gx)(p) = x(\sigma_g(p))$ with a source position
$\sigma_g(p)$ for every position $p$. That is one index tensor per element, whatever the group is:
shifts, quarter turns, flips, permutations. A network whose feature grids are coarser by a stride
$s$ has an action on them as well, for those shifts that $s$ divides.

Sources: Lecture notes of Deep Learning, §4.1; Foundations of Deep Learning, §10.1; Mathematical
Aspects of Deep Learning, §1.6.1.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_function, described, finite_number, one_of, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.foreign_text import one_line

Element = Any
"""An element of a group: a tuple of whole numbers, or whatever a user's action takes."""

#: Characters of a user's own element that are shown.
_LONGEST_LABEL = 60

Border = Literal["circular", "edge"] | float
"""What a shift brings in: the other end, the nearest pixel again, or a number."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Positions that a group moves.

    Attributes:
        sizes: of the grid, one for each axis.
        strides: how many steps of the input's grid are one step of this one; none for an axis of
            orientations, which only turns and flips move.
    """

    sizes: tuple[int, ...]
    strides: tuple[Fraction, ...]

    @classmethod
    def fine(cls, sizes: Sequence[int]) -> Grid:
        """The input's own grid."""
        return cls(tuple(sizes), (Fraction(1),) * len(sizes))

    def __str__(self) -> str:
        return " × ".join(map(str, self.sizes))


class Group(ABC):
    """Elements that move the positions of a grid; see `translations`, `permutations` and others.

    Attributes:
        name: in words, plural.
        invertible: whether every element has an inverse; a shift that fills the border has none.
    """

    name: str
    invertible: bool = True

    @abstractmethod
    def axes_of(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """The axes of an input that are moved, those that are moved together in one tuple.

        Raises:
            ShapeMismatch: if an input of this shape has none.
        """

    @abstractmethod
    def order(self, grid: Grid, on: Sequence[Grid] = ()) -> int:
        """Number of elements on the input's grid that act on other grids as well."""

    @abstractmethod
    def elements(self, grid: Grid, on: Sequence[Grid] = ()) -> Iterator[Element]:
        """All of them, the identity first."""

    @abstractmethod
    def draw(self, grid: Grid, generator: torch.Generator, on: Sequence[Grid] = ()) -> Element:
        """One of them at random, uniformly."""

    @abstractmethod
    def acts(self, element: Element, grid: Grid) -> bool:
        """Whether the element moves a coarser grid by whole steps."""

    @abstractmethod
    def source(self, element: Element, grid: Grid) -> Tensor:
        """For every position of the grid, `[positions]`, where its value comes from; -1: filled."""

    @abstractmethod
    def steps(self, grid: Grid) -> list[Element]:
        """Elements that generate all those which act on this grid."""

    @abstractmethod
    def label(self, element: Element) -> str:
        """An element in words."""

    @property
    def fill(self) -> float:
        """What stands where nothing comes from."""
        return 0.0

    def __repr__(self) -> str:
        return self.name


# --------------------------------------------------------------------------------------- grids


class GridGroup(Group):
    """Shifts, quarter turns and flips of a grid: $x\\mapsto$ flipped, then turned, then shifted.

    An element is `(flip, turns, *shifts)`.
    """

    def __init__(
        self,
        name: str,
        *,
        shifts: bool = False,
        turns: bool = False,
        flips: tuple[int, ...] = (),
        step: int = 1,
        border: Border = "circular",
        most: int | None = None,
        axes: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self.shifts, self.turns, self.flips = shifts, turns, flips
        self.step = whole_number(step, "step", least=1)
        self.border = border if isinstance(border, str) else finite_number(border, "border")
        if isinstance(border, str):
            one_of(border, "border", ["circular", "edge"])
        self.most = None if most is None else whole_number(most, "most", least=self.step)
        self.axes = None if axes is None else tuple(axes)
        self.invertible = border == "circular" or not shifts

    @property
    def fill(self) -> float:
        return 0.0 if isinstance(self.border, str) else float(self.border)

    def axes_of(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        axes = tuple(range(2, len(shape))) if self.axes is None else self.axes
        if any(
            not isinstance(a, int) or not -len(shape) <= a < len(shape) or a % len(shape) == 0
            for a in axes
        ):
            raise ShapeMismatch(
                f"{self.name} move the axes {list(axes)} of x, and its shape is {list(shape)}: "
                "give axes that it has, not that of the samples"
            )
        axes = tuple(a % len(shape) for a in axes) if len(shape) > 1 else ()
        if not axes:
            raise ShapeMismatch(
                f"{self.name} move a grid, and x of shape {list(shape)} has none: give images "
                "[n, channels, height, width] or signals [n, channels, length]"
            )
        if self.turns or self.flips:
            if len(axes) != 2:
                raise ShapeMismatch(
                    f"{self.name} are of a plane, and x of shape {list(shape)} has a grid of "
                    f"{len(axes)} axes: give images [n, channels, height, width]"
                )
            height, width = (shape[a] for a in axes)
            if self.turns and height != width:
                raise ShapeMismatch(
                    f"{self.name} turn a square, and the images are {height} × {width}: crop or "
                    "pad them, or take flips"
                )
        return [axes]

    def order(self, grid: Grid, on: Sequence[Grid] = ()) -> int:
        return math.prod(len(c) for c in self._choices(grid, on))

    def elements(self, grid: Grid, on: Sequence[Grid] = ()) -> Iterator[Element]:
        flip, turns, *shifts = self._choices(grid, on)
        for shift in itertools.product(*shifts):
            for first in itertools.product(flip, turns):
                yield (*first, *shift)

    def draw(self, grid: Grid, generator: torch.Generator, on: Sequence[Grid] = ()) -> Element:
        choices = self._choices(grid, on)
        return tuple(c[int(torch.randint(len(c), (), generator=generator))] for c in choices)

    @property
    def orientations(self) -> int:
        """How many ways a filter can be turned (and flipped); 0 where there are no turns."""
        return 4 * self._flips() if self.turns and self.flips in ((), (1,)) else 0

    def acts(self, element: Element, grid: Grid) -> bool:
        if not grid.strides:
            return True
        return all(
            size == 1 or (Fraction(shift) / stride).denominator == 1
            for shift, stride, size in zip(element[2:], grid.strides, grid.sizes, strict=True)
        )

    def source(self, element: Element, grid: Grid) -> Tensor:
        flip, turns, *shifts = element
        if not grid.strides:
            # filters turned r times after m flips: g^-1 turns them to m + flip, +-(r - turns)
            m, r = torch.arange(grid.sizes[0]).div(4, rounding_mode="floor"), torch.arange(4)
            sign = -1 if flip else 1
            back: Tensor = (sign * (r.repeat(grid.sizes[0] // 4) - turns)) % 4
            turned: Tensor = back + 4 * (m + flip) % grid.sizes[0]
            return turned
        index = torch.arange(math.prod(grid.sizes)).reshape(grid.sizes)
        if flip:
            index = index.flip([self.flips[a] for a in range(len(self.flips)) if flip >> a & 1])
        index = index.rot90(turns) if turns else index
        for axis, (shift, stride) in enumerate(zip(shifts, grid.strides, strict=True)):
            if shift and grid.sizes[axis] > 1:
                index = self._shifted(index, int(shift / stride), axis)
        return index.flatten()

    def steps(self, grid: Grid) -> list[Element]:
        none = (0,) * len(grid.sizes)
        found: list[Element] = [(1 << a, 0, *none) for a in range(len(self.flips))]
        found += [(0, 1, *none)] if self.turns else []
        if self.shifts:
            for axis, (stride, size) in enumerate(zip(grid.strides, grid.sizes, strict=True)):
                # the least multiple of the group's step that this grid follows
                step = self.step * (stride / self.step).numerator
                if size > 1 and (self.most is None or step <= self.most):
                    found.append((0, 0, *none[:axis], step, *none[axis + 1 :]))
        return found

    def label(self, element: Element) -> str:
        flip, turns, *shifts = element
        said = []
        if flip:
            names = ("vertical", "horizontal")
            both = [names[self.flips[a]] for a in range(len(self.flips)) if flip >> a & 1]
            said.append(f"{' and '.join(both)} flip")
        if turns:
            said.append(f"{90 * turns} degrees")
        if any(shifts) or not said:
            step = str(shifts[0]) if len(shifts) == 1 else f"({', '.join(map(str, shifts))})"
            said.append(f"shift by {step}")
        return ", ".join(said)

    def _flips(self) -> int:
        return int(2 ** len(self.flips))

    def _turns(self) -> int:
        return 4 if self.turns else 1

    def _choices(self, grid: Grid, on: Sequence[Grid]) -> list[Sequence[int]]:
        """Flips, turns and the shifts along each axis that all the grids follow."""
        shifts = [
            [
                s
                for s in self._along(size)
                if all((Fraction(s) / t).denominator == 1 for t in strides)
            ]
            for axis, size in enumerate(grid.sizes)
            for strides in [[g.strides[axis] for g in on if g.strides and g.sizes[axis] > 1]]
        ]
        return [range(self._flips()), range(self._turns()), *shifts]

    def _along(self, size: int) -> Sequence[int]:
        if not self.shifts:
            return range(1)
        if self.border != "circular" or self.most is not None:
            most = min(size - 1, size if self.most is None else self.most) // self.step * self.step
            return [0, *(s for s in range(-most, most + 1, self.step) if s)]
        # beyond a turn around the ring shifts repeat
        return range(0, math.lcm(size, self.step), self.step)

    def _shifted(self, index: Tensor, shift: int, axis: int) -> Tensor:
        if self.border == "circular":
            return index.roll(shift, axis)
        size = index.shape[axis]
        wanted = torch.arange(size) - shift
        moved = index.index_select(axis, wanted.clamp(0, size - 1))
        if self.border == "edge":
            return moved
        shape = [size if a == axis else 1 for a in range(index.ndim)]
        outside = ((wanted < 0) | (wanted >= size)).reshape(shape)
        return moved.masked_fill(outside, -1)


def translations(
    step: int = 1,
    *,
    border: Border = "circular",
    most: int | None = None,
    axes: Sequence[int] | None = None,
) -> GridGroup:
    r"""Shifts of a grid by multiples of `step` along every axis.

    Circular ones are a group, $(gx)_p = x_{p-s}$ with indices modulo the sizes. With another
    border the shift is that of a camera: what leaves is lost, and what comes in is the nearest
    pixel (`"edge"`) or a number.

    Args:
        step: 2 for the even shifts, which a layer of stride 2 may follow.
        border: `"circular"`, `"edge"` or the number that comes in.
        most: the largest shift along an axis.
        axes: of the input, those of the grid; all from the third on unless given.

    >>> shifts = translations()
    >>> grid = Grid.fine((4,))
    >>> list(shifts.elements(grid))
    [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)]
    >>> shifts.source((0, 0, 1), grid).tolist()                   # what comes from where
    [3, 0, 1, 2]
    """
    kind = {"circular": "circular shifts", "edge": "shifts that repeat the edge"}.get(
        str(border), f"shifts that fill with {border}"
    )
    limit = "" if most is None else f" by at most {most}"
    name = kind + limit + ("" if step == 1 else f" by multiples of {step}")
    return GridGroup(name, shifts=True, step=step, border=border, most=most, axes=axes)


def rotations() -> GridGroup:
    """Quarter turns of a square image, counterclockwise: `torch.rot90` by 0, 1, 2, 3."""
    return GridGroup("quarter turns", turns=True)


def flips(which: Literal["horizontal", "vertical", "both"] = "both") -> GridGroup:
    """Reflections of an image: left and right, top and bottom, or both."""
    one_of(which, "flip", ["horizontal", "vertical", "both"])
    axes = {"horizontal": (1,), "vertical": (0,), "both": (0, 1)}[which]
    return GridGroup("flips" if which == "both" else f"{which} flips", flips=axes)


def roto_translations(*, mirrored: bool = False, step: int = 1) -> GridGroup:
    """Quarter turns and circular shifts, the wallpaper group p4; p4m with reflections as well."""
    name = "quarter turns, flips and shifts (p4m)" if mirrored else "quarter turns and shifts (p4)"
    return GridGroup(name, shifts=True, turns=True, flips=(1,) if mirrored else (), step=step)


# ---------------------------------------------------------------------------------- permutations


class Permutations(Group):
    """Permutations of the elements of a set, the tokens of a sequence, the nodes of a graph."""

    name = "permutations"

    def __init__(self, axes: Sequence[int] = (1,)) -> None:
        self.axes = tuple(axes)
        if not self.axes:
            raise InvalidInput("permutations need an axis to act on, such as axes=(1,)")

    def axes_of(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        if any(not -len(shape) <= a < len(shape) or a % len(shape) == 0 for a in self.axes):
            raise ShapeMismatch(
                f"permutations move axis {list(self.axes)} of x, and its shape is {list(shape)}: "
                "give [n, elements, features], or the axes"
            )
        axes = [a % len(shape) for a in self.axes]
        if len({shape[a] for a in axes}) > 1:
            raise ShapeMismatch(
                f"one permutation moves the axes {axes} of x, so they need one size, and x has the "
                f"shape {list(shape)}"
            )
        return [(a,) for a in axes]

    def order(self, grid: Grid, on: Sequence[Grid] = ()) -> int:
        return math.factorial(grid.sizes[0])

    def elements(self, grid: Grid, on: Sequence[Grid] = ()) -> Iterator[Element]:
        return itertools.permutations(range(grid.sizes[0]))

    def draw(self, grid: Grid, generator: torch.Generator, on: Sequence[Grid] = ()) -> Element:
        return tuple(torch.randperm(grid.sizes[0], generator=generator).tolist())

    def acts(self, element: Element, grid: Grid) -> bool:
        return grid.sizes[0] in (1, len(element))

    def source(self, element: Element, grid: Grid) -> Tensor:
        return torch.tensor([0] if grid.sizes[0] == 1 else element)

    def steps(self, grid: Grid) -> list[Element]:
        n = grid.sizes[0]
        if n < 2:
            return []
        # a transposition and a cycle generate all of them
        return [(1, 0, *range(2, n)), (*range(1, n), 0)][: 1 if n == 2 else 2]

    def label(self, element: Element) -> str:
        moved = [i for i, j in enumerate(element) if i != j]
        if len(moved) == 2:
            return f"exchange of {moved[0]} and {moved[1]}"
        if len(element) <= 12:
            return f"order {' '.join(map(str, element))}"
        return f"permutation that moves {len(moved)} of {len(element)}"


def permutations(axes: Sequence[int] = (1,)) -> Permutations:
    """All orders of the entries along an axis; along several at once for an adjacency matrix.

    >>> list(permutations().elements(Grid.fine((2,))))
    [(0, 1), (1, 0)]
    """
    return Permutations(axes)


# ------------------------------------------------------------------------------ a user's own pair


@dataclass(frozen=True)
class Actions:
    """A pair of actions of one's own: what an element does to inputs and what to outputs.

    Args:
        elements: the elements to try, the identity left out; anything that the two functions take.
        on_input: `on_input(element, x)` -> tensor like `x[n, ...]`.
        on_output: the same for outputs; None asks for invariance.
        inverse: `inverse(element)` -> element, for an average over the group.
        name: in words.

    >>> signs = Actions([-1.0], lambda s, x: s * x, lambda s, y: s * y, name="changes of sign")
    >>> signs
    changes of sign
    """

    elements: Sequence[Element]
    on_input: Callable[[Element, Tensor], Tensor]
    on_output: Callable[[Element, Tensor], Tensor] | None = None
    inverse: Callable[[Element], Element] | None = None
    name: str = "the given actions"

    def __post_init__(self) -> None:
        as_function(self.on_input, "on_input")
        if self.on_output is not None:
            as_function(self.on_output, "on_output")
        if not isinstance(self.elements, Collection):  # an iterator would be used up
            raise InvalidType(
                f"elements must be a list of those to try, not {described(self.elements)}"
            )
        if len(self.elements) == 0:
            raise EmptyData("there is no element to try: give at least one")

    def label(self, element: Element) -> str:
        """An element in words, the beginning of a long one."""
        words = one_line(str(element))
        return words if len(words) <= _LONGEST_LABEL else f"{words[:_LONGEST_LABEL]}..."

    def __repr__(self) -> str:
        return self.name


# ---------------------------------------------------------------------------------- by their names

GROUPS: dict[str, Callable[[], Group]] = {
    "translations": translations,
    "rotations": rotations,
    "flips": flips,
    "horizontal-flips": lambda: flips("horizontal"),
    "vertical-flips": lambda: flips("vertical"),
    "p4": roto_translations,
    "p4m": lambda: roto_translations(mirrored=True),
    "permutations": permutations,
}
"""The groups that can be asked for by name."""


def as_group(group: str | Group | Actions) -> Group | Actions:
    """A group by its name, or as it is given.

    >>> as_group("rotations")
    quarter turns
    >>> as_group("rotation")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.UnknownName: no group is named 'rotation'; did you mean ...
    """
    if isinstance(group, str):
        return GROUPS[one_of(group, "group", GROUPS)]()
    if not isinstance(group, Group | Actions):
        raise InvalidType(
            f"group must be a name such as 'translations', a Group or Actions, not "
            f"{described(group)}"
        )
    return group


@lru_cache(maxsize=32)
def _cached(group: Group, element: Hashable, grid: Grid) -> Tensor:
    return group.source(element, grid)


def source_index(group: Group, element: Element, grid: Grid) -> Tensor | None:
    """`Group.source`, kept for the next time; None where the element does not act."""
    return _cached(group, element, grid) if group.acts(element, grid) else None
