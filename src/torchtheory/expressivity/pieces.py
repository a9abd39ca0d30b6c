r"""The affine pieces of a network along a segment or a polyline, exactly.

Along $x(t)=x_0+t(x_1-x_0)$ a piecewise linear network is a piecewise linear function of
$t$. Its breakpoints are found operation by operation: on an interval where nothing before
has bent, an operation's inputs are affine in $t$, so their values at the two ends give every
point where it bends in between. The interval is cut there, and the network is run again on the new
ends only, until no operation bends inside any interval.
Sources: Foundations of Deep Learning, section 4.2.1; Mathematical Aspects of Deep Learning,
sections 1.3.2 and 3.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.expressivity.bends import BendingNetwork, Model, exact_function, sample_shape
from torchtheory.expressivity.cells import (
    ROUNDING,
    AllBent,
    Batches,
    CrossingPoints,
    pattern_hashes,
)
from torchtheory.models.model import PureFunction


@dataclass(frozen=True, slots=True)
class Pieces:
    r"""A piecewise linear function of $t$, piece by piece.

    Attributes:
        breakpoints: `[k + 1]`, ends included, increasing: between two neighbors no unit of the
            network changes its state.
        values: `[k + 1, ...]`, the network's output there.
        bends: `[k + 1]`, whether the *output* bends there; False at the two ends.
        changes: `[k + 1]`, whether a unit changes its state there; False at the two ends.

    Calling it evaluates the function from its pieces.
    """

    breakpoints: Tensor
    values: Tensor
    bends: Tensor
    changes: Tensor

    @property
    def count(self) -> int:
        """How many affine pieces the function has."""
        return int(self.bends.sum()) + 1

    @property
    def patterns(self) -> int:
        """On how many intervals the activation pattern is constant."""
        return int(self.changes.sum()) + 1

    @property
    def kinks(self) -> Tensor:
        """Where the function bends, `[count - 1]`."""
        return self.breakpoints[self.bends]

    @property
    def slopes(self) -> Tensor:
        """The derivative on each affine piece, `[count, ...]`."""
        ends = self.bends.clone()
        ends[0] = ends[-1] = True
        t, y = self.breakpoints[ends], self.values[ends]
        return y.diff(dim=0) / t.diff().reshape(-1, *[1] * (y.ndim - 1))

    def __call__(self, t: Tensor) -> Tensor:
        """Values at `t[n]`, by interpolation between the breakpoints."""
        b = self.breakpoints
        i = torch.searchsorted(b, t.to(b)).clamp(1, len(b) - 1)
        share = ((t - b[i - 1]) / (b[i] - b[i - 1])).reshape(-1, *[1] * (self.values.ndim - 1))
        return torch.lerp(self.values[i - 1], self.values[i], share)

    def crossings(self, level: float = 0.0) -> Tensor:
        """The points where a function with one output passes through `level`, `[n]`."""
        y = self.values.reshape(len(self.breakpoints), -1)
        if y.shape[1] != 1:
            raise ShapeMismatch(f"a level is crossed by one output, and there are {y.shape[1]}")
        left, right = y[:-1, 0] - level, y[1:, 0] - level
        through = left * right < 0
        t = self.breakpoints[:-1] + self.breakpoints.diff() * (left / (left - right))
        on = y[1:-1, 0] == level
        touching = on & (left[:-1] * right[1:] < 0)
        return torch.cat([t[through], self.breakpoints[1:-1][touching]]).sort().values


def affine_pieces(model: Model, start: Tensor | float, end: Tensor | float) -> Pieces:
    r"""The network along the segment from `start` to `end`, $t\in[0,1]$.

    Any module or `.pt2` archive of affine operations (dense, convolutions, average pooling,
    normalization with running statistics, sums over neighbors), kinks (ReLU and its leaky
    relatives, clamps, absolute values, `torch.where` by a comparison if it is continuous), maxima
    (pooling, `torch.max`, maxout) and sorting, with branches and functional calls of its own. The
    network is taken in double precision and evaluation mode, and is not changed.

    Time: O(pieces x depth) forward passes of one point at most; memory: bounded, plus the pieces.

    Args:
        start: a sample in the shape the model takes, without the batch dimension; a number for a
            model of one feature; the whole table for a model whose rows belong together, as the
            nodes of a graph do.
        end: another.

    >>> from torch import nn
    >>> absolute = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    >>> for p, v in zip(absolute.parameters(), [[[1.0], [-1.0]], [[1.0, 1.0]], [0.0]]):
    ...     p.data = torch.tensor(v)
    >>> found = affine_pieces(absolute, -1.0, 3.0)
    >>> found.count, found.kinks.tolist(), found.slopes.flatten().tolist()
    (2, [0.25], [-4.0, 4.0])
    """
    function = exact_function(model)
    return _follow(function, torch.stack(sample_shape(function, start, end)))


def pieces_along(model: Model, corners: Tensor | Sequence[Tensor | float]) -> Pieces:
    r"""The network along a polyline, $t\in[0,m]$ with corner `i` at $t=i$.

    A corner where the derivative jumps separates affine pieces; it does not separate activation
    patterns. See `affine_pieces`.

    Args:
        corners: `[m + 1, ...]`, the corners in order; numbers for a model of one feature.

    >>> from torch import nn
    >>> square = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [1.0, 0.0]])
    >>> pieces_along(nn.Sequential(nn.Linear(2, 5), nn.ReLU()), square).breakpoints[-1].item()
    4.0
    """
    if not isinstance(corners, Tensor | list | tuple):
        raise InvalidType(
            f"corners must be a tensor or a list of them, not {type(corners).__name__}"
        )
    if len(corners) < 2:
        raise InvalidInput(f"a polyline has at least 2 corners, not {len(corners)}")
    function = exact_function(model)
    return _follow(function, torch.stack(sample_shape(function, *corners)))


def _follow(function: PureFunction, corners: Tensor) -> Pieces:
    network = BendingNetwork(function, corners)
    segments = len(corners) - 1
    still = (corners.diff(dim=0).flatten(1) == 0).all(1)
    if bool(still.any()):
        k = int(still.nonzero()[0])
        raise InvalidInput(f"points {k} and {k + 1} are equal: there is no segment between them")

    def place(t: Tensor) -> Tensor:
        """Points of the polyline at `t[...]`, batch dimension first."""
        flat = t.reshape(-1)
        i = flat.floor().clamp(0, segments - 1).long()
        share = (flat - i).reshape(-1, *[1] * (corners.ndim - 1))
        # exact at both ends
        return torch.lerp(corners[i], corners[i + 1], share)

    ends = torch.arange(segments + 1, dtype=torch.float64, device=corners.device)
    pending = torch.stack([ends[:-1], ends[1:]], 1)
    batches = Batches()
    done: list[tuple[Tensor, Tensor, Tensor]] = []
    while len(pending):
        cut: list[Tensor] = []
        for part in batches(len(pending), 2):
            cells = pending[part]
            finder = CrossingPoints(cells[:, 1] - cells[:, 0], 2, float(segments))
            try:
                y = network.watch(place(cells), finder)
                kept = finder.clean
                values = y.reshape(len(cells), 2, *y.shape[1:])[kept]
                largest = torch.maximum(finder.scale, _largest(y).view(-1, 2).amax(1))[kept]
                done.append((cells[kept], values, largest))
            except AllBent:
                pass
            batches.learn(finder.widest)
            cut.append(_cut(cells, finder.found, float(segments)))
        pending = torch.cat(cut)
    return _assemble(network, place, batches, done)


def _largest(y: Tensor) -> Tensor:
    return y.reshape(len(y), -1).abs().amax(1)


def _cut(cells: Tensor, found: list[tuple[Tensor, Tensor]], reach: float) -> Tensor:
    """The intervals that bent, cut at the points found in them."""
    if not found:
        return cells[:0]
    cell = torch.cat([c for c, _ in found])
    share = torch.cat([s for _, s in found])
    length = (cells[:, 1] - cells[:, 0])[cell]
    inner = cells[cell, 0] + length * share
    which = cell.unique()  # type: ignore[no-untyped-call]
    # all ends and cuts, cell by cell in order; neighbors in one cell are the new intervals
    points = torch.cat([inner, cells[which, 0], cells[which, 1]])
    owner = torch.cat([cell, which, which])
    order = points.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    points, owner = points[order], owner[order]
    # what is shorter than rounding is no interval: several units bend at one point
    new = (owner[1:] == owner[:-1]) & (points.diff() > ROUNDING * reach)
    return torch.stack([points[:-1][new], points[1:][new]], 1)


def _assemble(
    network: BendingNetwork,
    place: Callable[[Tensor], Tensor],
    batches: Batches,
    done: list[tuple[Tensor, Tensor, Tensor]],
) -> Pieces:
    cells = torch.cat([c for c, _, _ in done])
    order = cells[:, 0].argsort()
    cells = cells[order]
    values = torch.cat([v for _, v, _ in done])[order]
    scale = torch.cat([s for _, _, s in done])[order]
    hashes = pattern_hashes(network, place, cells.mean(1), batches)
    end = torch.zeros(1, dtype=torch.bool, device=cells.device)
    changes = torch.cat([end, hashes[1:] != hashes[:-1], end])
    t = torch.cat([cells[:, 0], cells[-1:, 1]])
    y = torch.cat([values[:, 0], values[-1:, 1]])
    noise = ROUNDING * torch.cat([scale[:1], torch.maximum(scale[1:], scale[:-1]), scale[-1:]])
    bends = bending_points(t, y.reshape(len(y), -1), noise)
    # a corner of the polyline may bend the function without any unit changing
    keep = changes | bends
    keep[0] = keep[-1] = True
    return Pieces(t[keep], y[keep], bends[keep], changes[keep])


def bending_points(t: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    r"""At which of the points $t_i$ the interpolant of `(t[n], y[n, c])` bends.

    A point does not bend when it is within `noise[n]` of the chord of its neighbors. Such
    points are taken out, never two neighbors at once, so that of several points within rounding
    of one kink one is left.

    >>> t = torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> bending_points(t, t.sub(2).abs()[:, None], torch.full((4,), 1e-9)).tolist()
    [False, False, True, False]
    """
    left = torch.arange(len(t), device=t.device)
    while len(left) > 2:
        s, v = t[left], y[left]
        before, after = s[1:-1] - s[:-2], s[2:] - s[1:-1]
        rise = (v[1:-1] - v[:-2]) * after[:, None] - (v[2:] - v[1:-1]) * before[:, None]
        off = (rise.abs() / (before + after)[:, None]).amax(1) if y.shape[1] else before * 0
        straight = off <= noise[left[1:-1]]
        if not bool(straight.any()):
            break
        # of a run of straight points every second one goes, and the rest is judged again
        index = torch.arange(len(straight), device=t.device)
        start = torch.where(straight, -1, index).cummax(0).values
        gone = straight & ((index - start) % 2 == 1)
        keep = torch.cat([gone.new_ones(1), ~gone, gone.new_ones(1)])
        left = left[keep]
    bends = torch.zeros(len(t), dtype=torch.bool, device=t.device)
    bends[left[1:-1]] = True
    return bends
