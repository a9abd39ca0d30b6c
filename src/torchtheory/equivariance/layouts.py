r"""How a group acts on a tensor inside a network: which axes it moves, and by which index.

A tensor that was made of an input by moving entries about (flattened, transposed, cut, joined)
has an action too: the one that makes the rearrangement $R$ equivariant, $g' = R\,g\,R^{-1}$. Each
position on the moved axes carries the position of the grid it came from (`place`) and what tells
apart entries that came from the same (`rest`); $g'$ moves the one and leaves the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.equivariance.actions import Element, Grid, Group, source_index


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Axes of a tensor that a group moves together.

    Attributes:
        axes: the axes.
        grid: the positions behind them.
        place: `[positions on the axes]`, each one's position on the grid, -1 for one that stays;
            None where the axes are the grid's own.
        rest: `[positions on the axes]`, which of the entries with the same place it is.
    """

    axes: tuple[int, ...]
    grid: Grid
    place: Tensor | None = None
    rest: Tensor | None = None

    def index(self, group: Group, element: Element) -> Tensor | None:
        """Where the value of each position comes from; None if the element does not act here."""
        source = source_index(group, element, self.grid)
        if source is None or self.place is None:
            return source
        assert self.rest is not None
        rows = int(self.rest.max()) + 1
        keys = self.place * rows + self.rest
        fixed = self.place < 0
        wanted = source[self.place.clamp_min(0)] * rows + self.rest
        wanted = torch.where(fixed, keys, wanted)
        known, where = keys.sort()
        found = torch.searchsorted(known, wanted).clamp_max(len(keys) - 1)
        filled = ~fixed & (source[self.place.clamp_min(0)] < 0)
        if not bool(((known[found] == wanted) | filled).all()):
            return None
        return torch.where(filled, -1, where[found])

    def subgrid(self, sizes: Sequence[int]) -> Grid | None:
        """The coarser grid of these sizes that the places are, if they are one."""
        if self.place is None:
            return self.grid
        if len(sizes) != len(self.grid.sizes) or math.prod(sizes) != len(self.place):
            return None
        steps = []
        rest = self.place
        for axis in reversed(range(len(sizes))):
            along = (rest % self.grid.sizes[axis]).reshape(tuple(sizes)).movedim(axis, 0)
            rest = rest.div(self.grid.sizes[axis], rounding_mode="floor")
            gaps = set(along.diff(dim=0).flatten().tolist())
            lines = along.reshape(len(along), -1)  # a grid of one axis has lines of one place
            if bool((lines != lines[:, :1]).any()):
                return None
            if len(gaps) > 1 or min(gaps, default=1) < 1:
                return None
            steps.append(int(min(gaps, default=1)))
        strides = (s * t for s, t in zip(self.grid.strides, reversed(steps), strict=True))
        return Grid(tuple(sizes), tuple(strides))


Layout = tuple[Moved, ...]
"""How a group acts on a tensor; empty for the trivial action."""


def input_layout(group: Group, shape: Sequence[int]) -> Layout:
    """The action on the inputs of a network."""
    return tuple(
        Moved(axes, Grid.fine([shape[a] for a in axes])) for axes in group.axes_of(list(shape))
    )


def act(group: Group, element: Element, z: Tensor, layout: Layout) -> Tensor | None:
    """The tensor $gz$, or None if the element does not act on it. Time: one pass over the tensor.

    >>> from torchtheory.equivariance.actions import translations
    >>> x = torch.arange(3.0).reshape(1, 1, 3)
    >>> act(translations(), (0, 0, 1), x, input_layout(translations(), x.shape))
    tensor([[[2., 0., 1.]]])
    """
    for moved in layout:
        index = moved.index(group, element)
        if index is None:
            return None
        z = gathered(z, moved.axes, index, group.fill)
    return z


def act_back(group: Group, element: Element, z: Tensor, layout: Layout) -> Tensor | None:
    """The tensor $g^{-1}z$ for an element that permutes positions."""
    for moved in reversed(layout):
        index = moved.index(group, element)
        if index is None:
            return None
        z = gathered(z, moved.axes, index.argsort(), group.fill)
    return z


def gathered(z: Tensor, axes: tuple[int, ...], index: Tensor, fill: float = 0.0) -> Tensor:
    """Entries along some axes, taken as one, in another order; -1 stands for `fill`."""
    others = [a for a in range(z.ndim) if a not in axes]
    order = [*others, *axes]
    flat = z.permute(order)
    shape = flat.shape
    index = index.to(z.device)
    taken = flat.reshape(*shape[: len(others)], -1).index_select(-1, index.clamp_min(0))
    if bool((index < 0).any()):
        taken = taken.masked_fill(index < 0, fill)
    back = [order.index(a) for a in range(z.ndim)]
    return taken.reshape(shape).permute(back)


# -------------------------------------------------------------------------------- rearrangements


def pushed(
    layouts: Sequence[tuple[Tensor, Layout | None]],
    run: Callable[[Callable[[Tensor], Tensor]], list[Tensor]],
) -> list[Layout | None]:
    """The actions on what a rearrangement returns.

    Args:
        layouts: the tensors that it takes and their actions; None for one that is constant.
        run: runs it with every tensor replaced, and returns the tensors that it gives back.
    """
    known = [layout for _, layout in layouts if layout is not None]
    if any(len(layout) != len(known[0]) for layout in known):
        return []
    results: list[list[Moved]] | None = None
    for number, first in enumerate(known[0]):
        if any(layout[number].grid != first.grid for layout in known):
            return []
        places, rests = {}, {}
        offset = 0
        for tensor, layout in layouts:
            place, rest = _labels(tensor, None if layout is None else layout[number], offset)
            places[id(tensor)], rests[id(tensor)] = place, rest
            offset = max(offset, int(rest.max()) + 1) if rest.numel() else offset
        found = [
            _relabeled(place, rest, first.grid)
            for place, rest in zip(
                run(lambda t: places[id(t)]),  # noqa: B023 - called at once
                run(lambda t: rests[id(t)]),  # noqa: B023
                strict=True,
            )
        ]
        results = [[] for _ in found] if results is None else results
        for collected, moved in zip(results, found, strict=True):
            collected += moved
    if results is None:
        return [()] * len(run(lambda t: t))
    return [tuple(r) for r in results]


def _labels(tensor: Tensor, moved: Moved | None, offset: int) -> tuple[Tensor, Tensor]:
    """For every entry, where on the grid it belongs, and a number of all the rest."""
    shape = tensor.shape
    if moved is None:
        rest = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape) + offset
        return torch.full(shape, -1.0, dtype=torch.float64), rest
    others = [a for a in range(len(shape)) if a not in moved.axes]
    order = [*others, *moved.axes]
    back = [order.index(a) for a in range(len(shape))]
    count = math.prod(shape[a] for a in moved.axes)
    many = math.prod(shape[a] for a in others)
    place = torch.arange(count) if moved.place is None else moved.place
    rest = torch.zeros(count) if moved.rest is None else moved.rest
    permuted = [shape[a] for a in order]
    places = place.double().expand(many, count).reshape(permuted).permute(back)
    rests = torch.arange(many)[:, None] + many * rest.double()
    # joined tensors are told apart by place, as long as each place occurs once
    return places, rests.reshape(permuted).permute(back)


def _relabeled(place: Tensor, rest: Tensor, grid: Grid) -> list[Moved]:
    if place.numel() == 0 or bool((place < 0).all()):
        return []
    axes = tuple(a for a in range(place.ndim) if not bool((place == place.narrow(a, 0, 1)).all()))
    if not axes:
        return []  # one position alone: nothing is left that could move
    corner = tuple(slice(None) if a in axes else 0 for a in range(place.ndim))
    own, other = place[corner].flatten().long(), rest[corner].flatten().long()
    other = other - other.min()
    sizes = tuple(place.shape[a] for a in axes)
    plain = sizes == grid.sizes and torch.equal(own, torch.arange(len(own)))
    if plain and bool((other == other[0]).all()):
        return [Moved(axes, grid)]
    return [Moved(axes, grid, own, other)]
