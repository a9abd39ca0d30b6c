r"""Convex polygons, many at once: cut by a line, measured, and put together along their edges.

Polygons with the same number of corners are one tensor `[cells, corners, 2]`, the corners in
order around the polygon.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor


def areas(polygons: Tensor) -> Tensor:
    """Areas `[cells]`.

    >>> areas(torch.tensor([[[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0]]])).tolist()
    [2.0]
    """
    at = polygons - polygons[:, :1]  # differences first: a small cell far out keeps its digits
    after = at.roll(-1, 1)
    return (at[..., 0] * after[..., 1] - at[..., 1] * after[..., 0]).sum(1).abs() / 2


def widths(polygons: Tensor) -> Tensor:
    """How thin the polygons are, `[cells]`: twice the area over the diagonal of the box."""
    box = polygons.amax(1) - polygons.amin(1)
    diagonal = torch.hypot(box[:, 0], box[:, 1])
    return 2 * areas(polygons) / diagonal.clamp_min(1e-300)


def split_by_lines(polygons: Tensor, forms: Tensor) -> list[Tensor]:
    """Cut each polygon along the zero line of an affine form.

    Args:
        polygons: `[cells, k, 2]`.
        forms: `[cells, k]`, the form at the corners, of both signs in every cell.

    Returns:
        The two parts of each cell, one tensor for each number of corners that occurs.

    >>> square = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    >>> [p.tolist() for p in split_by_lines(square, square[..., 0] - square[..., 1])]
    [[[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]]]]
    """
    after = forms.roll(-1, 1)
    crossed = forms * after < 0
    share = torch.where(crossed, forms / (forms - after).masked_fill(~crossed, 1.0), 0.0)
    between = torch.lerp(polygons, polygons.roll(-1, 1), share[..., None])
    slots = torch.stack([polygons, between], 2).flatten(1, 2)  # corner, cut, corner, cut, ...
    sides = []
    for sign in (1.0, -1.0):
        kept = torch.stack([sign * forms >= 0, crossed], 2).flatten(1, 2)
        order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
        sides.append((slots.gather(1, order[..., None].expand(-1, -1, 2)), kept.sum(1)))
    points = torch.cat([s for s, _ in sides])
    counts = torch.cat([c for _, c in sides])
    return [points[counts == k][:, :k] for k in sorted(set(counts.tolist()))]


@dataclass(frozen=True, slots=True)
class Complex:
    """Polygons that fill a region, with the corners they share.

    Attributes:
        vertices: `[v, 2]`.
        corners: vertex numbers, cell after cell.
        offsets: `[cells + 1]`: cell `i` has `corners[offsets[i]:offsets[i + 1]]`.
        edges: `[e, 2]` vertex numbers; each edge between two cells, or on the border, once.
        sides: `[e, 2]` the cells on both sides; -1 outside.
    """

    vertices: np.ndarray
    corners: np.ndarray
    offsets: np.ndarray
    edges: np.ndarray
    sides: np.ndarray


def join_polygons(groups: Iterable[Tensor], snap: float) -> Complex:
    """Find the corners (up to `snap`) and the edges that polygons share.

    Time O(n log n) in the number of corners. Where an edge of one polygon is met by two of
    another, it is cut in two.
    """
    arrays = [g.cpu().numpy() for g in groups]
    counts = np.concatenate([np.full(len(g), g.shape[1]) for g in arrays])
    points = np.concatenate([g.reshape(-1, 2) for g in arrays])
    offsets = np.concatenate([[0], counts.cumsum()])
    vertex = merge_points(points, snap)
    first = np.full(vertex.max() + 1, -1)
    first[vertex[::-1]] = np.arange(len(points))[::-1]
    vertices = points[first]
    owner = np.repeat(np.arange(len(counts)), counts)
    after = np.arange(len(points)) + 1
    after[offsets[1:] - 1] = offsets[:-1]
    ends = np.sort(np.stack([vertex, vertex[after]], 1), 1)
    real = ends[:, 0] != ends[:, 1]
    edges, sides = _pair(ends[real], owner[real], vertices, snap)
    return Complex(vertices, vertex, offsets, edges, sides)


def merge_points(points: np.ndarray, snap: float) -> np.ndarray:
    """A vertex number for every point; points closer than `snap` share it."""
    # most points coincide to the last digits: number those first, then look for near ones
    grid = np.round(points / snap).astype(np.int64)
    _, kept, number = np.unique(grid, axis=0, return_index=True, return_inverse=True)
    near = cKDTree(points[kept]).query_pairs(snap, output_type="ndarray")
    if len(near) == 0:
        return number.reshape(-1)
    n = len(kept)
    graph = coo_matrix((np.ones(len(near)), (near[:, 0], near[:, 1])), shape=(n, n))
    labels: np.ndarray = connected_components(graph, directed=False)[1]
    return labels[number.reshape(-1)]


def _pair(
    ends: np.ndarray, owner: np.ndarray, vertices: np.ndarray, snap: float
) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    ends, owner = ends[order], owner[order]
    same = (ends[1:] == ends[:-1]).all(1)
    second = np.concatenate([[False], same])
    pairs = np.flatnonzero(same)
    alone = ~second
    alone[pairs] = False
    edges, sides = ends[pairs], np.stack([owner[pairs], owner[pairs + 1]], 1)
    more, their = _match_overlaps(ends[alone], owner[alone], vertices, snap)
    return np.concatenate([edges, more]), np.concatenate([sides, their])


def _match_overlaps(
    ends: np.ndarray, owner: np.ndarray, vertices: np.ndarray, snap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Edges that have no twin: on the border, or opposite several shorter ones.

    An edge that ends in the middle of another cell's edge cuts it there; the parts are paired.
    """
    parts: list[np.ndarray] = []
    whose: list[np.ndarray] = []
    used = np.unique(ends)
    tree = cKDTree(vertices[used])
    for (u, v), cell in zip(ends, owner, strict=True):
        a, b = vertices[u], vertices[v]
        length = float(np.hypot(*(b - a)))
        inside = used[tree.query_ball_point((a + b) / 2, length / 2 + snap)]
        inside = inside[(inside != u) & (inside != v)]
        along = (vertices[inside] - a) @ (b - a) / length**2
        (dx, dy), (ex, ey) = b - a, (vertices[inside] - a).T
        off = np.abs(dx * ey - dy * ex) / length
        on = (off < snap) & (along > 0) & (along < 1)
        chain = np.concatenate([[u], inside[on][along[on].argsort()], [v]])
        parts.append(np.sort(np.stack([chain[:-1], chain[1:]], 1), 1))
        whose.append(np.full(len(chain) - 1, cell))
    if not parts:
        return np.empty((0, 2), int), np.empty((0, 2), int)
    pieces, cells = np.concatenate(parts), np.concatenate(whose)
    order = np.lexsort((pieces[:, 1], pieces[:, 0]))
    pieces, cells = pieces[order], cells[order]
    same = np.concatenate([(pieces[1:] == pieces[:-1]).all(1), [False]])
    second = np.concatenate([[False], same[:-1]])
    start = ~second
    other = np.where(same, np.roll(cells, -1), -1)
    return pieces[start], np.stack([cells[start], other[start]], 1)
