r"""The decision boundary of a classifier on a plane, as exact segments.

On a cell of the arrangement every output is affine, so the points where two classes tie and no
other is above them form a segment, found by clipping. With one output the classes are its signs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from torchtheory.expressivity.arrangement import Arrangement
from torchtheory.expressivity.polygons import merge_points

#: Ends of segments closer than this part of the largest coordinate are one point.
SNAP = 1e-9


@dataclass(frozen=True)
class Boundary:
    """Segments of a decision boundary.

    Attributes:
        segments: `[n, 2, 2]`, both ends in the coordinates of the plane.
        classes: `[n, 2]`, the classes that meet; with one output 0 is the positive sign.
        cells: `[n]`, the cell each segment lies in.
    """

    segments: Tensor
    classes: Tensor
    cells: Tensor

    @property
    def length(self) -> float:
        """Total length in the coordinates of the plane."""
        return float((self.segments[:, 1] - self.segments[:, 0]).norm(dim=1).sum())


def decision_boundary(arrangement: Arrangement) -> Boundary:
    r"""Where the class changes: $\{x:f_i(x)=f_j(x)\ge f_k(x)\ \forall k\}$ for all pairs.

    Time O(corners x classes), and O(corners) for each pair of classes that can meet.

    >>> from torch import nn
    >>> from torchtheory.expressivity.arrangement import plane_arrangement
    >>> line = nn.Linear(2, 1)
    >>> line.weight.data, line.bias.data = torch.tensor([[1.0, 0.0]]), torch.tensor([-0.5])
    >>> decision_boundary(plane_arrangement(line)).segments.tolist()
    [[[0.5, -1.0], [0.5, 1.0]]]
    """
    cell, values = arrangement.corner_values()
    values = _scores(values)
    c = arrangement.complex
    corners = torch.as_tensor(c.vertices[c.corners])
    after = torch.arange(len(corners)) + 1
    after[torch.as_tensor(c.offsets[1:] - 1)] = torch.as_tensor(c.offsets[:-1])
    segments, classes, cells = [], [], []
    for (i, j), there in _meeting_pairs(cell, values, len(arrangement)).items():
        form = values[:, i] - values[:, j]
        crossed = (((form >= 0) != (form[after] >= 0)) & there[cell]).nonzero()[:, 0]
        if len(crossed) == 0:
            continue
        beyond = after[crossed]
        share = (form[crossed] / (form[crossed] - form[beyond]))[:, None]
        points = torch.lerp(corners[crossed], corners[beyond], share)
        scores = torch.lerp(values[crossed], values[beyond], share)
        # a line crosses the outline of a convex cell twice, and these are next to each other
        ends, their = points.view(-1, 2, 2), scores.view(len(points) // 2, 2, -1)
        low, high = _clip((their - their[..., i : i + 1]), {i, j})
        kept = high > low
        a, b = ends[kept].unbind(1)
        low, high = low[kept, None], high[kept, None]
        segments.append(torch.stack([torch.lerp(a, b, low), torch.lerp(a, b, high)], 1))
        classes.append(torch.tensor([[i, j]]).expand(len(a), 2))
        cells.append(cell[crossed].view(-1, 2)[kept, 0])
    if not segments:
        return Boundary(
            torch.empty(0, 2, 2, dtype=torch.float64),
            torch.empty(0, 2, dtype=torch.int64),
            torch.empty(0, dtype=torch.int64),
        )
    return Boundary(torch.cat(segments), torch.cat(classes), torch.cat(cells))


def _meeting_pairs(cell: Tensor, values: Tensor, count: int) -> dict[tuple[int, int], Tensor]:
    """Pairs of classes that may tie for the first place, with the cells `[count]` where they may.

    Inside a cell no class exceeds its largest corner, and the winner is nowhere below the best of
    the smallest corners.
    """
    where = cell[:, None].expand_as(values)
    shape = (count, values.shape[1])
    low = values.new_full(shape, math.inf).scatter_reduce(0, where, values, "amin")
    high = values.new_full(shape, -math.inf).scatter_reduce(0, where, values, "amax")
    able = high >= low.amax(1, keepdim=True)
    found: dict[tuple[int, int], list[int]] = {}
    for number in (able.sum(1) > 1).nonzero()[:, 0].tolist():
        for pair in itertools.combinations(able[number].nonzero()[:, 0].tolist(), 2):
            found.setdefault(pair, []).append(number)
    made = {}
    for pair in sorted(found):
        made[pair] = torch.zeros(count, dtype=torch.bool)
        made[pair][found[pair]] = True
    return made


def class_cells(arrangement: Arrangement) -> list[tuple[np.ndarray, int, int]]:
    """The cells cut along the decision boundary: corners `[k, 2]`, class and cell of each part.

    >>> from torch import nn
    >>> from torchtheory.expressivity.arrangement import plane_arrangement
    >>> line = nn.Linear(2, 1)
    >>> line.weight.data, line.bias.data = torch.tensor([[1.0, 0.0]]), torch.tensor([-0.5])
    >>> [(part.tolist(), kind) for part, kind, _ in class_cells(plane_arrangement(line))][0]
    ([[0.5, -1.0], [1.0, -1.0], [1.0, 1.0], [0.5, 1.0]], 0)
    """
    values = _scores(arrangement.corner_values()[1]).numpy()
    offsets = arrangement.complex.offsets
    parts: list[tuple[np.ndarray, int, int]] = []
    for cell, corners in enumerate(arrangement.polygons()):
        scores = values[offsets[cell] : offsets[cell + 1]]
        able = np.flatnonzero(scores.max(0) >= scores.min(0).max())
        for kind in able:
            polygon, own = corners, scores
            for other in able:
                if other != kind and len(polygon):
                    polygon, own = _half(polygon, own, own[:, kind] - own[:, other])
            if len(polygon) > 2:
                parts.append((polygon, int(kind), cell))
    return parts


def _scores(values: Tensor) -> Tensor:
    """One score per class: a single output is the score of the positive sign against 0."""
    return values if values.shape[1] > 1 else torch.cat([values, torch.zeros_like(values)], 1)


def _half(polygon: np.ndarray, scores: np.ndarray, form: np.ndarray) -> tuple[np.ndarray, ...]:
    """The part of a convex polygon where an affine form is not negative, with its scores."""
    kept: list[np.ndarray] = []
    their: list[np.ndarray] = []
    for i in range(len(polygon)):
        j = (i + 1) % len(polygon)
        if form[i] >= 0:
            kept.append(polygon[i])
            their.append(scores[i])
        if (form[i] > 0 > form[j]) or (form[i] < 0 < form[j]):
            share = form[i] / (form[i] - form[j])
            kept.append(polygon[i] + share * (polygon[j] - polygon[i]))
            their.append(scores[i] + share * (scores[j] - scores[i]))
    return np.array(kept).reshape(-1, 2), np.array(their).reshape(-1, scores.shape[1])


def _clip(above: Tensor, tied: set[int]) -> tuple[Tensor, Tensor]:
    """The part [low, high] of each segment where no other class is above: `above[n, 2, k]`."""
    low, high = torch.zeros(len(above)).double(), torch.ones(len(above)).double()
    for k in set(range(above.shape[2])) - tied:
        start, end = above[..., k].unbind(1)
        zero = start / (start - end).masked_fill(start == end, 1.0)
        low = torch.where((start > 0) & (end <= 0), torch.maximum(low, zero), low)
        high = torch.where((start <= 0) & (end > 0), torch.minimum(high, zero), high)
        high = torch.where((start > 0) & (end > 0), -1.0, high)
    return low, high


def connected_parts(boundary: Boundary) -> int:
    """How many connected curves the segments make up.

    Ends closer than `SNAP` of the largest coordinate are one point.

    >>> square = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 1.0]]])
    >>> both = Boundary(square, torch.zeros(2, 2), torch.zeros(2))
    >>> connected_parts(both)
    1
    """
    if len(boundary.segments) == 0:
        return 0
    ends = boundary.segments.reshape(-1, 2)
    reach = float(ends.abs().max()) or 1.0
    vertex = merge_points(ends.numpy(), SNAP * reach).reshape(-1, 2)
    n = int(vertex.max()) + 1
    graph = coo_matrix((np.ones(len(vertex)), (vertex[:, 0], vertex[:, 1])), shape=(n, n))
    return int(connected_components(graph, directed=False)[0])
