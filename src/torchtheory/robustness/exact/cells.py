"""Cells of a network in the order of their distance from a point."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linprog, nnls

from torchtheory.core.budget import check_time
from torchtheory.core.errors import NotConverged
from torchtheory.robustness.attacks.balls import Norm
from torchtheory.robustness.bounds.propagation import Propagation
from torchtheory.robustness.exact.piecewise_affine import Array, PiecewiseAffine, State


@dataclass(frozen=True)
class Below:
    """An affine function of the input below a linear function of the outputs.

    Attributes:
        slope, value: the function.
        room: what the lines around each unit of the activation in question may have given away.
    """

    slope: Array
    value: float
    room: Array


@dataclass(order=True)
class _Cell:
    """What is left of the network once some units are decided.

    Attributes:
        distance: a lower bound of the distance to a wrong input of it.
        number: in the order in which they were made, which decides between equal distances.
        state: the values as affine functions of the input, as far as they are.
        place: of the activation whose units are being decided; None at the end.
        sides: on which side of their kinks they are.
        rows: inequalities of the polytope.
        below: a lower bound of the margin, once it was asked for.
        point: where the distance is attained, at the end.
    """

    distance: float
    number: int
    state: State = field(compare=False)
    place: int | None = field(compare=False)
    sides: dict[int, bool] = field(compare=False)
    rows: Array = field(compare=False)
    below: Below | None = field(compare=False, default=None)
    point: Array | None = field(compare=False, default=None)


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
    exponent = {"inf": np.inf, "2": 2, "1": 1}[norm]
    state = State.start(network)
    place = state.advance(network)
    # rows g, h of inequalities g·z >= h for the perturbation z
    rows = np.zeros((0, len(x) + 1))
    if limits is not None:
        eye = np.eye(len(x))
        floor = np.hstack([eye, (limits[0] - x)[:, None]])
        ceiling = np.hstack([-eye, (x - limits[1])[:, None]])
        rows = np.vstack([floor, ceiling])
    waiting = [_Cell(0.0, next(numbers), state, place, {}, rows)]
    seen = 0
    while waiting:
        cell = heapq.heappop(waiting)
        if cell.distance > reach:
            return None, seen
        if cell.point is not None:
            return (cell.distance, cell.point), seen
        check_time()
        seen += cell.below is None
        if seen > most:
            raise NotConverged(
                f"more than {most:,} cells lie nearer than the boundary: the network is too large "
                "for this method (raise most=, or use output_bounds)"
            )
        if cell.below is None:
            cell.below = below_margin(network, run, row, cell.state, cell.place, cell.sides)
            wrong = np.append(-cell.below.slope, cell.below.slope @ x + cell.below.value)
            # an input of the ball is wrong only where the margin's lower bound is not positive
            found = nearest_point(np.vstack([cell.rows, wrong]), norm)
            if found is None:
                continue
            cell.distance = max(cell.distance, float(np.linalg.norm(found, exponent)))
            if cell.place is None:  # the bound is the margin itself
                cell.point = x + found
            heapq.heappush(waiting, cell)  # another one may be nearer
            continue
        for child in _decided(network, run, cell, numbers):
            heapq.heappush(waiting, child)
    return None, seen


def _decided(
    network: PiecewiseAffine, run: Propagation, cell: _Cell, numbers: Iterator[int]
) -> Iterator[_Cell]:
    """The cells that a unit of the activation cuts one into; the next one if all are decided."""
    assert cell.place is not None
    assert cell.below is not None
    room = cell.below.room
    operand = network.graph.vertices[cell.place].operands[0]
    forms, shifts = cell.state.forms[operand]
    low, high = (v.reshape(-1).numpy() for v in run.boxes[operand])
    open_units = [k for k in np.flatnonzero((low < 0) & (high > 0)) if k not in cell.sides]
    if not open_units:
        right = low >= 0
        for k, side in cell.sides.items():
            right[k] = side
        state = cell.state.decided(network, cell.place, right)
        place = state.advance(network)
        yield _Cell(cell.distance, next(numbers), state, place, {}, cell.rows)
        return
    # the unit whose lines leave the most room
    unit = int(max(open_units, key=lambda k: room[k]))
    x = run.ball.center.reshape(-1).numpy()
    value = float(forms[unit] @ x + shifts[unit])
    for sign in (1.0, -1.0):
        rows = np.vstack([cell.rows, np.append(sign * forms[unit], -sign * value)])
        sides = {**cell.sides, unit: sign > 0}
        yield _Cell(cell.distance, next(numbers), cell.state, cell.place, sides, rows)


def below_margin(
    network: PiecewiseAffine,
    run: Propagation,
    row: Array,
    state: State,
    place: int | None,
    sides: dict[int, bool],
) -> Below:
    """CROWN's bound in a cell: units that are decided are affine, the others between lines.

    It holds in the ball that the lines were made for.
    """
    coefficients: dict[int, Array] = {network.graph.output: row}
    slope, value = np.zeros(network.inputs), 0.0
    room = np.zeros(0)
    for k in range(network.graph.output, -1, -1):
        a = coefficients.pop(k, None)
        if a is None:
            continue
        if k in state.forms:
            forms, shifts = state.forms[k]
            slope, value = slope + a @ forms, value + float(a @ shifts)
            continue
        operands = network.graph.vertices[k].operands
        if k not in network.bends:
            matrices, shift = network.matrices(k)
            value += float(a @ shift)
            parts = [a @ m for m in matrices]
        else:
            low, rest, high, over = (v.reshape(-1).numpy().copy() for v in run.relaxed[k])
            if k == place:
                left, right = network.slopes(k)
                room = np.abs(a) * (over - rest)
                for unit, side in sides.items():
                    low[unit] = high[unit] = right[unit] if side else left[unit]
                    rest[unit] = over[unit] = 0.0
            up, down = np.maximum(a, 0.0), np.minimum(a, 0.0)
            value += float(up @ rest + down @ over)
            parts = [up * low + down * high]
        for operand, part in zip(operands, parts, strict=True):
            known = coefficients.get(operand)
            coefficients[operand] = part if known is None else known + part
    return Below(slope, value, room)


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
