"""Cells of a network in the order of their distance from a point."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linprog, nnls

from torchtheory.core.budget import check_time
from torchtheory.core.errors import NotConverged
from torchtheory.robustness.attacks.balls import Norm
from torchtheory.robustness.bounds.propagation import Propagation
from torchtheory.robustness.exact.piecewise_affine import Array, PiecewiseAffine, State


@dataclass(order=True)
class _Cell:
    distance: float
    number: int
    state: Any = field(compare=False)
    place: int | None = field(compare=False)
    sides: Any = field(compare=False)
    unit: int = field(compare=False)
    rows: Any = field(compare=False)
    point: Any = field(compare=False)


def by_cells(
    network: PiecewiseAffine,
    run: Propagation,
    row: Array,
    norm: Norm,
    reach: float,
    limits: tuple[Array, Array] | None,
    most: int,
) -> tuple[tuple[float, Array] | None, int]:
    x = run.ball.center.reshape(-1).numpy()
    numbers = itertools.count()
    state = State.start(network)
    place = state.advance(network)
    # rows g, h of inequalities g·z >= h for the perturbation z
    rows = np.zeros((0, len(x) + 1))
    if limits is not None:
        eye = np.eye(len(x))
        floor = np.hstack([eye, (limits[0] - x)[:, None]])
        ceiling = np.hstack([-eye, (x - limits[1])[:, None]])
        rows = np.vstack([floor, ceiling])
    waiting = [_Cell(0.0, next(numbers), state, place, None, 0, rows, x)]
    seen = 0
    while waiting:
        cell = heapq.heappop(waiting)
        if cell.distance > reach:
            return None, seen
        if cell.place is None and cell.sides == "closed":
            return (cell.distance, cell.point), seen
        check_time()
        seen += 1
        if seen > most:
            raise NotConverged(
                f"more than {most:,} cells lie nearer than the boundary: the network is too large "
                "for this method (raise most=, or use output_bounds)"
            )
        if cell.place is None:
            forms, shifts = cell.state.forms[network.graph.output]
            slope, value = row @ forms, row @ shifts
            # the wrong side: slope · (x + z) + value <= 0
            wrong = np.append(-slope, slope @ x + value)
            _offer(waiting, numbers, cell, np.vstack([cell.rows, wrong]), x, norm, "closed")
            continue
        below = network.graph.vertices[cell.place].operands[0]
        forms, shifts = cell.state.forms[below]
        low, high = (v.reshape(-1).numpy() for v in run.boxes[below])
        sides = cell.sides if cell.sides is not None else {}
        unit = cell.unit
        while unit < len(shifts) and (low[unit] >= 0 or high[unit] <= 0):
            sides = {**sides, unit: bool(low[unit] >= 0)}
            unit += 1
        if unit == len(shifts):
            right = np.array([sides[k] for k in range(len(shifts))], dtype=bool)
            state = cell.state.decided(network, cell.place, right)
            place = state.advance(network)
            heapq.heappush(
                waiting,
                _Cell(cell.distance, next(numbers), state, place, None, 0, cell.rows, cell.point),
            )
            continue
        value = float(forms[unit] @ x + shifts[unit])
        for sign in (1.0, -1.0):
            new = np.append(sign * forms[unit], -sign * value)
            child = _Cell(
                0.0, 0, cell.state, cell.place, {**sides, unit: sign > 0}, unit + 1, None, None
            )
            _offer(waiting, numbers, child, np.vstack([cell.rows, new]), x, norm, child.sides)
    return None, seen


def _offer(
    waiting: list[_Cell],
    numbers: Any,
    cell: _Cell,
    rows: Array,
    x: Array,
    norm: Norm,
    sides: Any,
) -> None:
    """Put a polytope in the queue, unless it is empty."""
    found = nearest_point(rows, norm)
    if found is None:
        return
    exponent = {"inf": np.inf, "2": 2, "1": 1}[norm]
    distance = float(np.linalg.norm(found, exponent))
    made = _Cell(distance, next(numbers), cell.state, cell.place, sides, cell.unit, rows, x + found)
    heapq.heappush(waiting, made)


def nearest_point(rows: Array, norm: Norm) -> Array | None:
    r"""The point $z$ of least norm with $Gz\ge h$, for rows $(g,h)$; None if there is none.

    For the Euclidean norm by non-negative least squares (Lawson and Hanson 1974, chapter 23):
    with $u$ the minimizer of $\|E u-e\|$, $E=(G,h)^\top$, $e=(0,\dots,0,1)$, and $r=Eu-e$, the
    point is $z=-r_{1..n}/r_{n+1}$.

    >>> nearest_point(np.array([[1.0, 1.0, 2.0]]), "2").round(6).tolist()      # z1 + z2 >= 2
    [1.0, 1.0]
    """
    g, h = rows[:, :-1], rows[:, -1]
    n = g.shape[1]
    if not len(rows) or (h <= 0).all():
        return np.zeros(n)
    sizes = np.linalg.norm(g, axis=1)
    if ((sizes == 0) & (h > 0)).any():
        return None
    keep = sizes > 0
    g, h, sizes = g[keep], h[keep], sizes[keep]
    g, h = g / sizes[:, None], h / sizes
    scale = float(np.abs(h).max())
    if norm == "2":
        e = np.zeros(n + 1)
        e[-1] = 1.0
        try:
            u, _ = nnls(np.vstack([g.T, h[None] / scale]), e, maxiter=50 * max(10, len(h)))
        except RuntimeError as error:
            raise NotConverged(f"the projection onto a cell failed: {error}") from error
        r = np.vstack([g.T, h[None] / scale]) @ u - e
        if np.linalg.norm(r) <= 1e-10 or r[-1] >= -1e-13:
            return None
        z: Array = scale * r[:-1] / -r[-1]
        return z if (g @ z >= h - 1e-7 * scale).all() else None
    if norm == "inf":  # z, and the bound of its entries
        cost = np.append(np.zeros(n), 1.0)
        ties = np.hstack([np.vstack([np.eye(n), -np.eye(n)]), -np.ones((2 * n, 1))])
        a = np.vstack([np.hstack([-g, np.zeros((len(g), 1))]), ties])
        b = np.append(-h / scale, np.zeros(2 * n))
        sides: Any = [(None, None)] * n + [(0, None)]
    else:  # positive and negative parts
        cost = np.ones(2 * n)
        a, b = np.hstack([-g, g]), -h / scale
        sides = (0, None)
    for way in ("highs", "highs-ipm"):  # simplex, and where it stumbles an interior point
        found = linprog(cost, a, b, bounds=sides, method=way)
        if found.status == 2:
            return None
        if found.success:
            break
    else:
        raise NotConverged(f"a linear program of a cell failed: {found.message}")
    z = found.x[:n] if norm == "inf" else found.x[:n] - found.x[n:]
    return scale * z
