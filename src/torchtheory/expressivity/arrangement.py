r"""The cells of a network on a two-dimensional slice, exactly.

On the plane $x=o+a\,u+b\,v$ a piecewise linear network divides a rectangle of
$(a,b)$ into convex polygons on each of which it is affine. They are found by cutting: while
an operation bends inside a polygon, the polygon is cut along the line where it does. Every cut
makes one more cell, so time is linear in the number of cells.
Sources: Mathematical Aspects of Deep Learning, sections 1.3.3 and 3.7; Deep Learning (notes),
section 2.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.expressivity.bends import BendingNetwork, Model, exact_function, sample_shape
from torchtheory.expressivity.cells import (
    ROUNDING,
    AllBent,
    Batches,
    CuttingLine,
    pattern_hashes,
)
from torchtheory.expressivity.polygons import Complex, join_polygons, split_by_lines, widths


@dataclass(frozen=True)
class PlaneSlice:
    r"""A rectangle in a plane of inputs: $o+a\,u+b\,v$ with $(a,b)$ in a box.

    Attributes:
        origin: $o$, a sample in the shape the model takes.
        first: $u$.
        second: $v$.
        low: smallest $(a,b)$.
        high: largest $(a,b)$.
    """

    origin: Tensor
    first: Tensor
    second: Tensor
    low: tuple[float, float] = (-1.0, -1.0)
    high: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if not all(isinstance(t, Tensor) for t in (self.origin, self.first, self.second)):
            raise InvalidType("origin, first and second are tensors in the shape of a sample")
        if self.first.shape != self.origin.shape or self.second.shape != self.origin.shape:
            raise ShapeMismatch(
                f"origin {list(self.origin.shape)}, first {list(self.first.shape)} and second "
                f"{list(self.second.shape)} must have one shape"
            )
        if not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise InvalidInput(f"the rectangle from {self.low} to {self.high} is empty")
        numbers = [*self.low, *self.high]
        spanned = torch.stack([self.origin, self.first, self.second])
        if not (all(map(math.isfinite, numbers)) and bool(spanned.isfinite().all())):
            raise NonFinite("origin, directions or rectangle of the plane hold NaN or infinity")
        both = spanned[1:].flatten(1).double()
        if int(torch.linalg.matrix_rank(both)) < 2:
            raise InvalidInput("the two directions are parallel: they span no plane")

    @classmethod
    def of_the_plane(
        cls, low: tuple[float, float] = (-1.0, -1.0), high: tuple[float, float] = (1.0, 1.0)
    ) -> PlaneSlice:
        """A rectangle of the input space of a model with two features."""
        axes = torch.eye(2, dtype=torch.float64)
        return cls(torch.zeros(2, dtype=torch.float64), axes[0], axes[1], low, high)

    @classmethod
    def through(cls, p: Tensor, q: Tensor, r: Tensor, margin: float = 0.5) -> PlaneSlice:
        """The plane through three points: p is (0, 0), q is (1, 0), r is (0, 1)."""
        return cls(p, q - p, r - p, (-margin, -margin), (1 + margin, 1 + margin))

    def points(self, coordinates: Tensor) -> Tensor:
        """Inputs `[n, ...]` at coordinates `[n, 2]`."""
        o = self.origin.to(coordinates)
        a, b = (c.reshape(-1, *[1] * o.ndim) for c in coordinates.reshape(-1, 2).unbind(1))
        return o + a * self.first.to(o) + b * self.second.to(o)


@dataclass(frozen=True)
class Arrangement:
    r"""The cells of a network on a rectangle; the network is affine on each.

    Attributes:
        plane: the rectangle.
        complex: vertices, corners and edges with the cells on both sides.
        centers: `[cells, 2]`, a point inside each.
        values: `[cells, ...]`, the network at the centers.
        gradients: `[cells, 2, ...]`, its derivatives in the two coordinates.
        hashes: `[cells]`, a number for the activation pattern.
    """

    plane: PlaneSlice
    complex: Complex
    centers: Tensor
    values: Tensor
    gradients: Tensor
    hashes: Tensor

    def __len__(self) -> int:
        return len(self.centers)

    @property
    def patterns(self) -> int:
        """How many activation patterns have an interior here."""
        return len(self.hashes.unique())  # type: ignore[no-untyped-call]

    @cached_property
    def regions(self) -> np.ndarray:
        """`[cells]`: the number of the affine region each cell belongs to.

        A region is a maximal connected set, across edges, on which the network is one affine map.
        """
        inner = self.complex.sides[self.complex.sides[:, 1] >= 0]
        left, right = (torch.as_tensor(side, device=self.values.device) for side in inner.T)
        same = self._same_map(left, right).cpu().numpy()
        n = len(self)
        graph = coo_matrix((np.ones(same.sum()), tuple(inner[same].T)), shape=(n, n))
        labels: np.ndarray = connected_components(graph, directed=False)[1]
        return labels

    @property
    def count(self) -> int:
        """How many affine regions there are."""
        return int(self.regions.max()) + 1

    def polygons(self) -> Iterator[np.ndarray]:
        """The corners `[k, 2]` of each cell in turn, in order around it."""
        c = self.complex
        for a, b in zip(c.offsets[:-1], c.offsets[1:], strict=True):
            yield c.vertices[c.corners[a:b]]

    def neighbors(self, cell: int) -> list[int]:
        """The cells that share an edge with one."""
        sides = self.complex.sides
        found = np.concatenate([sides[sides[:, 0] == cell, 1], sides[sides[:, 1] == cell, 0]])
        return sorted({int(i) for i in found if i >= 0})

    def corner_values(self) -> tuple[Tensor, Tensor]:
        """Cell numbers `[n]` and the outputs `[n, c]` at all corners, cell after cell."""
        c = self.complex
        counts = torch.as_tensor(np.diff(c.offsets))
        cell = torch.repeat_interleave(torch.arange(len(counts)), counts)
        at = torch.as_tensor(c.vertices[c.corners]) - self.centers.cpu()[cell]
        flat = self.values.cpu().reshape(len(self), -1)
        slope = self.gradients.cpu().reshape(len(self), 2, -1)
        return cell, flat[cell] + torch.einsum("nd,ndc->nc", at, slope[cell])

    def points_inside(self, generator: RandomSource = None) -> Tensor:
        """A point inside every cell, `[cells, 2]`: a random mean of its corners."""
        generator = as_generator(generator)
        points = []
        for corners in self.polygons():
            weight = -torch.log(1 - torch.rand(len(corners), 1, generator=generator).double())
            points.append((weight / weight.sum() * torch.as_tensor(corners)).sum(0))
        return torch.stack(points).to(self.centers)

    def affine(self, cells: Tensor, points: Tensor) -> Tensor:
        """The affine maps of cells `[n]` at coordinates `[n, 2]`: `[n, ...]`."""
        flat = self.values.reshape(len(self), -1)
        slope = self.gradients.reshape(len(self), 2, -1)
        step = (points - self.centers[cells]).unsqueeze(-1)
        made = flat[cells] + (slope[cells] * step).sum(1)
        return made.reshape(len(cells), *self.values.shape[1:])

    def _same_map(self, left: Tensor, right: Tensor) -> Tensor:
        slope = self.gradients.reshape(len(self), 2, -1)
        # two maps that agree on a common edge are one map when their slopes agree; rounding is
        # relative to the largest slope, whatever the units of inputs and outputs
        apart = (slope[left] - slope[right]).abs().amax((1, 2))
        return apart <= 1e4 * ROUNDING * slope.abs().max()


def plane_arrangement(
    model: Model, plane: PlaneSlice | None = None, *, most: int = 1_000_000
) -> Arrangement:
    r"""All cells of the network on a rectangle of a plane.

    Works for the networks that `affine_pieces` takes.
    Time: about ten forward passes of one point for each cell; memory: bounded, plus the cells.

    Args:
        plane: the rectangle; $[-1,1]^2$ for a model with two features unless told.
        most: refuse to find more cells than that.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> lines = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> net[0].weight.data, net[0].bias.data = lines, torch.tensor([0.0, 0.0, -0.5])
    >>> found = plane_arrangement(net)
    >>> len(found), found.patterns, sorted(found.neighbors(0))
    (7, 7, ...)
    """
    plane = PlaneSlice.of_the_plane() if plane is None else plane
    function = exact_function(model)
    origin = sample_shape(function, plane.origin, plane.first, plane.second)[0]
    (a, b), (c, d) = plane.low, plane.high
    device = origin.device
    whole = torch.tensor([[[a, b], [c, b], [c, d], [a, d]]], dtype=torch.float64, device=device)
    network = BendingNetwork(function, plane.points(whole))
    reach = float(whole.abs().max())
    batches = Batches()
    done = _cut_all(network, plane, whole, reach, batches, most)
    centers = torch.cat([g.mean(1) for g in done])
    values, gradients = _affine_maps(network, plane, centers, batches)
    hashes = pattern_hashes(network, plane.points, centers, batches)
    joined = join_polygons(done, 1e-10 * reach)
    return Arrangement(plane, joined, centers, values, gradients, hashes)


def _cut_all(
    network: BendingNetwork,
    plane: PlaneSlice,
    whole: Tensor,
    reach: float,
    batches: Batches,
    most: int,
) -> list[Tensor]:
    """The final cells, one tensor for each number of corners."""
    pending = {4: [whole]}
    done: dict[int, list[Tensor]] = {}
    found = 0
    while pending:
        groups = {k: torch.cat(parts) for k, parts in pending.items()}
        pending = {}
        waiting = sum(len(g) for g in groups.values())
        if found + waiting > most:
            raise InvalidInput(
                f"there are more than {most:,} cells; take a smaller rectangle, or raise most="
            )
        for k, cells in groups.items():
            for part in batches(len(cells), k):
                here = cells[part]
                finder = CuttingLine(widths(here), k, reach)
                try:
                    network.watch(plane.points(here), finder)
                    clean = here[finder.clean]
                    done.setdefault(k, []).append(clean)
                    found += len(clean)
                except AllBent:
                    pass
                batches.learn(finder.widest)
                cut = ~finder.clean
                for new in split_by_lines(here[cut], finder.form[cut]):
                    # a cell thinner than rounding is a line that was met twice
                    thick = widths(new) > ROUNDING * reach
                    pending.setdefault(new.shape[1], []).append(new[thick])
    return [torch.cat(done[k]) for k in sorted(done)]


def _affine_maps(
    network: BendingNetwork, plane: PlaneSlice, centers: Tensor, batches: Batches
) -> tuple[Tensor, Tensor]:
    """Values `[cells, ...]` and slopes `[cells, 2, ...]` at the centers, by forward mode."""
    values, slopes = [], []
    u, v = (d.to(centers) for d in (plane.first, plane.second))

    for part in batches(len(centers), 1):
        x = plane.points(centers[part])
        both = []
        for direction in (u, v):
            y, slope = torch.func.jvp(  # type: ignore[misc]
                network, (x,), (direction.expand_as(x).contiguous(),)
            )
            both.append(slope.detach())
        values.append(y.detach())
        slopes.append(torch.stack(both, 1))
    return torch.cat(values), torch.cat(slopes)
