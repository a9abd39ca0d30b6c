r"""The next bend inside each of many convex cells, and the activation pattern of a point.

A cell is given by its corners. Where no operation before has bent inside it, the next operation is
affine on it, so its values at the corners decide everything: a form that is positive at one corner
and negative at another bends inside, every other one does not. Rounding is met by one rule: a
value counts as 0 when it is below

$$
\tau=64\,\epsilon\,\bigl(\text{largest value so far}+\text{slope}\cdot
\text{largest coordinate}\bigr),
$$

the error that the sums before it and the rounding of the corner's own position can make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import NonFinite, PassEnded
from torchtheory.expressivity.bend_rules import Jump
from torchtheory.expressivity.bends import BendingNetwork

ROUNDING = 64 * torch.finfo(torch.float64).eps
#: Numbers in the largest tensor of a batch of cells.
_BATCH = 1 << 20


class AllBent(PassEnded):
    """Every cell of the batch has bent: the rest of the network need not run."""


class BendFinder(ABC):
    """Meets the operations of a network on `cells` cells with `corners` corners each.

    Attributes:
        clean: `[cells]`, those that have not bent so far.
        scale: `[cells]`, the largest number met in each.
        widest: numbers a point has in the widest operation.
    """

    def __init__(self, widths: Tensor, corners: int, reach: float) -> None:
        self.cells, self.corners = len(widths), corners
        self.reach = reach / widths
        self.clean = torch.ones(self.cells, dtype=torch.bool, device=widths.device)
        self.scale = torch.zeros_like(widths)
        self.widest = 1

    def kink(self, forms: Tensor, gap: Tensor | None = None) -> None:
        z = forms.view(self.cells, self.corners, -1)
        self.widest = max(self.widest, z.shape[2])
        high, low = z.amax(1), z.amin(1)
        self._grow(torch.maximum(high, -low).amax(1))
        zero = self._zero(high - low)
        bends = (high > zero) & (low < -zero) & self.clean[:, None]
        if gap is not None:
            self._refuse_jumps(bends, z, zero, gap.view_as(z))
        self._met(bends.any(1), bends, z, high, low)

    def choice(self, values: Tensor) -> None:
        v = values.view(self.cells, self.corners, *values.shape[1:])
        self.widest = max(self.widest, v.shape[2] * v.shape[3])
        self._grow(v.abs().amax((1, 2, 3)))
        top = v.amax(3, keepdim=True)
        short = (top - v).amax(1)  # [cells, groups, k]: 0 for what wins at every corner
        zero = self._zero((v.amax(1) - v.amin(1)).amax(2))
        bends = (short.amin(2) > zero) & self.clean[:, None]
        rows = bends.any(1)
        if bool(rows.any()):
            self._met_choice(rows, bends, v, zero)
            self._done(rows)

    def _refuse_jumps(self, bends: Tensor, z: Tensor, zero: Tensor, gap: Tensor) -> None:
        """The gap is 0 where a kink crosses the edges of a cell, and at corners on the kink."""
        left, right = z, z.roll(-1, 1)
        crossed = (left * right < 0) & bends[:, None]
        share = left / torch.where(crossed, left - right, 1.0)
        there = torch.lerp(gap, gap.roll(-1, 1), share).abs().masked_fill(~crossed, 0.0)
        # what was cut here before by an earlier kink is no longer inside
        constant = z.abs().amax(1) <= zero
        on = (z.abs() <= zero[:, None]) & (self.clean[:, None] & ~constant)[:, None]
        there = torch.maximum(there, gap.abs().masked_fill(~on, 0.0))
        # a gap that is a multiple of the form inherits the form's rounding
        room = 1e3 * self._zero(gap.amax(1) - gap.amin(1) + gap.abs().amax(1))
        if bool((there.amax(1) > room).any()):
            raise Jump(float(there.max()))

    def _grow(self, largest: Tensor) -> None:
        if not bool(torch.isfinite(largest).all()):
            raise NonFinite(
                "the network's values overflow to infinity or NaN on these points: "
                f"{first_entry(largest, 'the value', ~torch.isfinite(largest))}"
            )
        self.scale = torch.maximum(self.scale, largest)

    def _zero(self, spread: Tensor, at: Tensor | slice = slice(None)) -> Tensor:
        """What counts as 0, `[cells, units]`, for forms with this difference over a cell."""
        return ROUNDING * (self.scale[at, None] + spread * self.reach[at, None])

    def _met(self, rows: Tensor, bends: Tensor, z: Tensor, high: Tensor, low: Tensor) -> None:
        if bool(rows.any()):
            self._met_kink(rows, bends, z, high, low)
            self._done(rows)

    def _done(self, rows: Tensor) -> None:
        self.clean &= ~rows
        if not bool(self.clean.any()):
            raise AllBent

    @abstractmethod
    def _met_kink(self, rows: Tensor, bends: Tensor, z: Tensor, high: Tensor, low: Tensor) -> None:
        """What to note of kinks inside cells, which then count as bent."""

    @abstractmethod
    def _met_choice(self, rows: Tensor, bends: Tensor, v: Tensor, zero: Tensor) -> None:
        """The same for maxima whose argument changes inside cells."""


class CrossingPoints(BendFinder):
    """On intervals: where the first operation that bends inside bends, all its units.

    `found` holds pairs (cells `[n]`, parts of the interval `[n]` in (0, 1)).
    """

    def __init__(self, widths: Tensor, corners: int, reach: float) -> None:
        super().__init__(widths, corners, reach)
        self.found: list[tuple[Tensor, Tensor]] = []

    def _met_kink(self, rows: Tensor, bends: Tensor, z: Tensor, high: Tensor, low: Tensor) -> None:
        cell, unit = bends.nonzero(as_tuple=True)
        left, right = z[cell, 0, unit], z[cell, 1, unit]
        self.found.append((cell, left / (left - right)))

    def _met_choice(self, rows: Tensor, bends: Tensor, v: Tensor, zero: Tensor) -> None:
        cell, group = bends.nonzero(as_tuple=True)
        ends = v[cell, :, group]  # [n, 2, k]
        winners = ends.argmax(2, keepdim=True).mT.expand(-1, 2, -1)
        pair = ends.gather(2, winners)
        left, right = (pair[..., 0] - pair[..., 1]).unbind(1)
        self.found.append((cell, left / (left - right)))


class CuttingLine(BendFinder):
    """On polygons: one form that bends inside, the one that cuts the cell most evenly.

    `form` holds its values at the corners, `[cells, corners]`, where the cell is not clean;
    what counts as 0 is 0.
    """

    def __init__(self, widths: Tensor, corners: int, reach: float) -> None:
        super().__init__(widths, corners, reach)
        self.form = widths.new_zeros(self.cells, corners)

    def _met_kink(self, rows: Tensor, bends: Tensor, z: Tensor, high: Tensor, low: Tensor) -> None:
        at = rows.nonzero()[:, 0]
        high, low = high[at], low[at]
        even = torch.minimum(high, -low) / (high - low)
        unit = even.masked_fill(~bends[at], -1.0).argmax(1)
        zero = self._zero(high.gather(1, unit[:, None]) - low.gather(1, unit[:, None]), at)
        form = z[at, :, unit]
        self.form[at] = form.masked_fill(form.abs() <= zero, 0.0)

    def _met_choice(self, rows: Tensor, bends: Tensor, v: Tensor, zero: Tensor) -> None:
        at = rows.nonzero()[:, 0]
        group = bends[at].double().argmax(1)
        ours, zero = v[at, :, group], zero[at, group]  # [n, corners, k]
        n, corners, k = ours.shape
        tops = torch.zeros(n, k, dtype=torch.bool, device=v.device)
        tops.scatter_(1, ours.argmax(2), True)
        pairs = (ours[..., :, None] - ours[..., None, :]).reshape(n, corners, k * k)
        high, low = pairs.amax(1), pairs.amin(1)
        both = (tops[:, :, None] & tops[:, None, :]).reshape(n, k * k)
        cuts = both & (high > zero[:, None]) & (low < -zero[:, None])
        even = torch.minimum(high, -low) / (high - low).clamp_min(1e-300)
        pair = even.masked_fill(~cuts, -1.0).argmax(1)
        rows[at] &= cuts.any(1)  # differences within rounding do not cut
        form = pairs[torch.arange(n, device=v.device), :, pair]
        self.form[at] = form.masked_fill(form.abs() <= zero[:, None], 0.0)


class PatternHash:
    """A number for the activation pattern at every point: equal patterns have equal numbers.

    Units on their kink (within rounding) count as off, and the first of tied entries wins. Two
    different patterns get one number with probability $2^{-64}$.
    """

    def __init__(self, points: int, device: torch.device) -> None:
        self.hashes = torch.zeros(points, dtype=torch.int64, device=device)
        self.scale = torch.zeros(points, dtype=torch.float64, device=device)
        self.random = torch.Generator().manual_seed(0)
        self.widest = 1

    def kink(self, forms: Tensor, gap: Tensor | None = None) -> None:
        self.scale = torch.maximum(self.scale, forms.abs().amax(1))
        self._add((forms > ROUNDING * self.scale[:, None]).long())

    def choice(self, values: Tensor) -> None:
        self.scale = torch.maximum(self.scale, values.abs().amax((1, 2)))
        top = values.amax(2, keepdim=True)
        near = values >= top - ROUNDING * self.scale[:, None, None]
        self._add(near.to(torch.uint8).argmax(2) + 1)

    def _add(self, states: Tensor) -> None:
        self.widest = max(self.widest, states.shape[1])
        whole = torch.iinfo(torch.int64)
        keys = torch.randint(whole.min, whole.max, (states.shape[1],), generator=self.random)
        self.hashes += (states * keys.to(states.device)).sum(1)


class Batches:
    """Cuts work into batches whose largest tensor has a bounded size, learning how wide it is."""

    def __init__(self) -> None:
        self.widest = 0

    def __call__(self, items: int, points: int) -> Iterator[slice]:
        """Slices of `items` items of `points` points each."""
        start = 0
        while start < items:
            wide = max(self.widest, 1)
            size = max(1, _BATCH // (points * wide)) if self.widest else 64
            yield slice(start, start + size)
            start += size

    def learn(self, widest: int) -> None:
        self.widest = max(self.widest, widest)


def pattern_hashes(
    network: BendingNetwork, place: Callable[[Tensor], Tensor], points: Tensor, batches: Batches
) -> Tensor:
    """A number for the activation pattern at each of `points[n, ...]`; see `PatternHash`."""
    found = []
    for part in batches(len(points), 1):
        x = place(points[part])
        visitor = PatternHash(len(x), x.device)
        network.watch(x, visitor)
        batches.learn(visitor.widest)
        found.append(visitor.hashes)
    return torch.cat(found)
