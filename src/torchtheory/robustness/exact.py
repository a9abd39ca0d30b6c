r"""The smallest perturbation that changes the class of a small ReLU network, exactly.

Two ways, which agree where both run:

* *a mixed-integer program* for the norms $\ell_\infty$ and $\ell_1$ (Tjeng, Xiao and Tedrake
  2019), through HiGHS. A unit that bends is $z\ge0$, $z\ge y$, $z\le y-l(1-b)$, $z\le ub$ with a
  binary $b$; the bounds $l\le y\le u$ come from CROWN on a ball that is doubled until it holds an
  answer, and any answer inside the ball is the nearest of all;
* *the cells in the order of their distance*, for all three norms. A cell is a polytope on which
  the network is affine. Units are decided one after another; the distance from $x$ to the polytope
  of the decisions made so far, a projection (Lawson and Hanson's least distance program) or a
  linear program, is a lower bound for all cells inside of it, so the first cell whose wrong side
  is reached in the order of these bounds holds the nearest adversarial point.

Both take time exponential in the number of units that bend, at worst: some dozen of them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog, milp, nnls
from scipy.sparse import lil_matrix
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import as_batch, as_module, one_of, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged, UnsupportedModel
from torchtheory.models.untouched import copied
from torchtheory.robustness.attacks.balls import Norm, as_norm
from torchtheory.robustness.bounds.balls import Ball, Limits
from torchtheory.robustness.bounds.certified import class_rows
from torchtheory.robustness.bounds.graph import Affine, Bend, Graph, Largest, Picks, Sum
from torchtheory.robustness.bounds.propagation import Propagation
from torchtheory.robustness.bounds.relaxations import Kinked
from torchtheory.robustness.bounds.tracing import trace

_Array = np.ndarray[Any, Any]

#: How far the solvers may be off, in units of the distance.
_TOLERANCE = 1e-9

#: Doublings of the ball, from a distance that is surely too small.
_DOUBLINGS = 60


@dataclass(frozen=True)
class MinimalPerturbation:
    """The nearest input of another class.

    Attributes:
        distance: its distance from the sample; infinite if there is none.
        adversarial: the input itself, of the sample's shape, on the boundary between the classes.
        target: the class it borders on.
        searched: cells that were looked at, or nodes of the mixed-integer programs.
    """

    distance: float
    adversarial: Tensor | None
    target: int | None
    searched: int


def minimal_perturbation(
    model: nn.Module,
    x: Tensor,
    y: int,
    norm: str | float = "inf",
    *,
    method: Literal["auto", "milp", "cells"] = "auto",
    box: Limits | None = None,
    largest: float = 1e3,
    most: int = 20_000,
) -> MinimalPerturbation:
    r"""The distance from a sample to the nearest input that is not of class $y$.

    Args:
        model: a network of affine operations and ReLUs (leaky ones for `method="cells"`).
        x: one input, without a batch dimension.
        y: its class; the distance is 0 if the model does not choose it.
        norm: `"inf"`, `"2"` or `"1"`.
        method: `"milp"` for the mixed-integer program, `"cells"` for the cells in the order of
            their distance; the program where the norm allows it unless given.
        box: least and largest valid input.
        largest: distances beyond this are not looked for.
        most: refuse to look at more cells than this.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    >>> for layer in (net[0], net[2]):
    ...     layer.weight.data, layer.bias.data = torch.eye(2).double(), torch.zeros(2).double()
    >>> x = torch.tensor([3.0, 1.0])                       # the classes part at equal entries
    >>> [round(minimal_perturbation(net, x, 0, norm).distance, 6) for norm in ("inf", "2", "1")]
    [1.0, 1.414214, 2.0]
    """
    as_module(model)
    named = as_norm(norm)
    one_of(method, "method", ("auto", "milp", "cells"))
    whole_number(most, "most", least=1)
    if method == "milp" and named == "2":
        raise InvalidInput("a mixed-integer linear program cannot hold the norm '2': use 'cells'")
    given = as_batch(x[None], "x").double()
    own = copied(model).double().requires_grad_(False)
    graph = trace(model, given[0], own=own)
    shape = graph.vertices[graph.output].shape
    rows = class_rows(torch.tensor([y]), shape)[0].double()
    network = _PiecewiseAffine(graph)
    limits = None
    if box is not None:
        low, high = (
            torch.as_tensor(v, dtype=torch.float64).expand(given.shape[1:]).reshape(-1).numpy()
            for v in box
        )
        limits = (low, high)
    Ball(given, 0.0, named, box)  # refuses a sample outside of the box
    with torch.no_grad():
        margins = (rows @ own.eval()(given).reshape(-1)).numpy()
    targets = [k for k in range(len(rows) + 1) if k != y]
    if (margins <= 0).any():
        worst = int(margins.argmin())
        return MinimalPerturbation(0.0, x.clone(), targets[worst], 0)
    search = _by_cells if method == "cells" or named == "2" else _by_program
    searched = 0
    reach = _first_reach(network, given, rows, named)
    for _ in range(_DOUBLINGS):
        reach = min(reach, largest)
        run = Propagation(graph, Ball(given, reach, named, box))
        with torch.no_grad():
            run.relax()
            certain = (run.least(rows.reshape(1, len(rows), *shape), graph.output) > 0)[0]
        best: tuple[float, _Array, int] | None = None
        for k, row in enumerate(rows.numpy()):
            check_time()
            if certain[k]:  # no input of the ball is of this class
                continue
            limit = reach if best is None else best[0]
            found, count = search(network, run, row, named, limit, limits, most)
            searched += count
            if found is not None and (best is None or found[0] < best[0]):
                best = (*found, targets[k])
        if best is not None:
            point = torch.as_tensor(best[1]).reshape(x.shape)
            return MinimalPerturbation(best[0], point, best[2], searched)
        if reach >= largest:
            break
        reach *= 2
    return MinimalPerturbation(math.inf, None, None, searched)


class _PiecewiseAffine:
    """A graph of affine operations and kinks, with dense matrices."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bends = []
        for vertex in graph.vertices[1:]:
            operation = vertex.operation
            if isinstance(operation, Bend):
                if not isinstance(operation.activation, Kinked):
                    raise UnsupportedModel(
                        "exact distances are for networks of ReLUs and affine layers, and this "
                        f"one has another activation (in {vertex.name})"
                    )
                self.bends.append(vertex.place)
            elif isinstance(operation, Largest):
                raise UnsupportedModel(
                    f"exact distances are for ReLUs, and this network takes maxima (in "
                    f"{vertex.name})"
                )
        self.inputs = graph.vertices[0].entries
        self._matrices: dict[int, tuple[list[_Array], _Array]] = {}

    def matrices(self, place: int) -> tuple[list[_Array], _Array]:
        """The matrices and the shift of an affine operation, dense."""
        if place not in self._matrices:
            self._matrices[place] = self._dense(place)
        return self._matrices[place]

    def _dense(self, place: int) -> tuple[list[_Array], _Array]:
        vertex = self.graph.vertices[place]
        operation = vertex.operation
        shapes = [self.graph.vertices[k].shape for k in vertex.operands]
        zeros = [torch.zeros(1, *s, dtype=torch.float64) for s in shapes]

        def image(values: list[Tensor]) -> Tensor:
            if isinstance(operation, Affine):
                made = operation.linear(values[0])
                return made if operation.shift is None else made + operation.shift
            if isinstance(operation, Picks):
                return operation._moved(values)
            assert isinstance(operation, Sum)
            return values[0] + operation.sign * values[1]

        shift = image(zeros).reshape(-1)
        found = []
        for k, shape in enumerate(shapes):
            size = math.prod(shape)
            basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
            given = [z.expand(size, *s) for z, s in zip(zeros, shapes, strict=True)]
            given[k] = basis
            found.append((image(given).reshape(size, -1) - shift).T.numpy())
        return found, shift.numpy()

    def slopes(self, place: int) -> tuple[_Array, _Array]:
        """Left and right slopes of every unit of a bend."""
        operation = self.graph.vertices[place].operation
        assert isinstance(operation, Bend)
        activation = operation.activation
        assert isinstance(activation, Kinked)
        shape = self.graph.vertices[place].shape

        def wide(slope: float | Tensor) -> _Array:
            made: _Array = torch.as_tensor(slope, dtype=torch.float64).expand(shape).numpy()
            return made.reshape(-1)

        return wide(activation.left), wide(activation.right)


def _first_reach(network: _PiecewiseAffine, x: Tensor, rows: Tensor, norm: Norm) -> float:
    """Where the tangent plane at the sample would cross the boundary."""
    forms, shifts = _forms_at(network, x)
    dual = {"inf": 1, "2": 2, "1": np.inf}[norm]
    slopes = rows.numpy() @ forms
    values = slopes @ x.reshape(-1).numpy() + rows.numpy() @ shifts
    sizes = np.linalg.norm(slopes, dual, axis=1)
    near = np.where(sizes > 0, values / np.maximum(sizes, 1e-300), np.inf).min()
    return float(1.5 * near) if math.isfinite(near) and near > 0 else 1.0


def _forms_at(network: _PiecewiseAffine, x: Tensor) -> tuple[_Array, _Array]:
    """The affine map of the output around a point."""
    state = _State.start(network)
    while True:
        place = state.advance(network)
        if place is None:
            return state.forms[network.graph.output]
        forms, shifts = state.forms[network.graph.vertices[place].operands[0]]
        state = state.decided(network, place, forms @ x.reshape(-1).numpy() + shifts >= 0)


@dataclass
class _State:
    """The values of a network as affine functions of the input, as far as they are decided."""

    forms: dict[int, tuple[_Array, _Array]]
    next: int = 1

    @classmethod
    def start(cls, network: _PiecewiseAffine) -> _State:
        n = network.inputs
        return cls({0: (np.eye(n), np.zeros(n))})

    def advance(self, network: _PiecewiseAffine) -> int | None:
        """Go on to the next bend; its place, or None at the end."""
        while self.next <= network.graph.output:
            place = self.next
            if place in network.bends:
                return place
            matrices, shift = network.matrices(place)
            operands = network.graph.vertices[place].operands
            form = sum(m @ self.forms[k][0] for m, k in zip(matrices, operands, strict=True))
            rest = sum(m @ self.forms[k][1] for m, k in zip(matrices, operands, strict=True))
            self.forms[place] = (np.asarray(form), np.asarray(rest) + shift)
            self.next += 1
        return None

    def decided(self, network: _PiecewiseAffine, place: int, right: _Array) -> _State:
        """The state behind a bend whose units are on these sides."""
        left_slopes, right_slopes = network.slopes(place)
        slopes = np.where(right, right_slopes, left_slopes)
        forms, shifts = self.forms[network.graph.vertices[place].operands[0]]
        made = dict(self.forms)
        made[place] = (slopes[:, None] * forms, slopes * shifts)
        return _State(made, place + 1)


# -- cells in the order of their distance ----------------------------------------------------------


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


def _by_cells(
    network: _PiecewiseAffine,
    run: Propagation,
    row: _Array,
    norm: Norm,
    reach: float,
    limits: tuple[_Array, _Array] | None,
    most: int,
) -> tuple[tuple[float, _Array] | None, int]:
    x = run.ball.center.reshape(-1).numpy()
    numbers = itertools.count()
    state = _State.start(network)
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
            raise InvalidInput(
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
    rows: _Array,
    x: _Array,
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


def nearest_point(rows: _Array, norm: Norm) -> _Array | None:
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
        u, _ = nnls(np.vstack([g.T, h[None] / scale]), e, maxiter=50 * max(10, len(h)))
        r = np.vstack([g.T, h[None] / scale]) @ u - e
        if np.linalg.norm(r) <= 1e-10 or r[-1] >= -1e-13:
            return None
        z: _Array = scale * r[:-1] / -r[-1]
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
    found = linprog(cost, a, b, bounds=sides, method="highs")
    if found.status == 2:
        return None
    if not found.success:
        raise NotConverged(f"a linear program of a cell failed: {found.message}")
    z = found.x[:n] if norm == "inf" else found.x[:n] - found.x[n:]
    return scale * z


# -- the mixed-integer program ---------------------------------------------------------------------


def _by_program(
    network: _PiecewiseAffine,
    run: Propagation,
    row: _Array,
    norm: Norm,
    reach: float,
    limits: tuple[_Array, _Array] | None,
    most: int,
) -> tuple[tuple[float, _Array] | None, int]:
    graph = network.graph
    starts, total = {}, 0
    for vertex in graph.vertices[: graph.output + 1]:
        starts[vertex.place] = total
        total += vertex.entries
    n = network.inputs
    distances = total  # one for the norm "inf", n for "1"
    total += 1 if norm == "inf" else n
    bits: dict[tuple[int, int], int] = {}
    for place in network.bends:
        left, right = network.slopes(place)
        if (left != 0).any() or (right != 1).any():
            raise UnsupportedModel("the mixed-integer program is for ReLUs; use method='cells'")
        low, high = _sides(run, place)
        for k in np.flatnonzero((low < 0) & (high > 0)):
            bits[place, int(k)] = total
            total += 1
    lower, upper = np.full(total, -np.inf), np.full(total, np.inf)
    rules: list[tuple[list[int], list[float], float, float]] = []
    x = run.ball.center.reshape(-1).numpy()
    lower[:n], upper[:n] = (v.reshape(-1).numpy() for v in run.ball.entries)
    for i in range(n):
        t = distances if norm == "inf" else distances + i
        rules.append(([i, t], [1.0, -1.0], -np.inf, x[i]))
        rules.append(([i, t], [1.0, 1.0], x[i], np.inf))
    lengths = list(range(distances, distances + (1 if norm == "inf" else n)))
    lower[lengths] = 0.0
    # the bounds of all values hold in the ball, and not beyond
    rules.append((lengths, [1.0] * len(lengths), 0.0, reach))
    for vertex in graph.vertices[1 : graph.output + 1]:
        place, start = vertex.place, starts[vertex.place]
        low, high = (v.reshape(-1).numpy() for v in run.boxes[place])
        lower[start : start + len(low)], upper[start : start + len(low)] = low, high
        if place not in network.bends:
            matrices, shift = network.matrices(place)
            for i in range(vertex.entries):
                columns, values = [start + i], [1.0]
                for m, operand in zip(matrices, vertex.operands, strict=True):
                    for j in np.flatnonzero(m[i]):
                        columns.append(starts[operand] + int(j))
                        values.append(-float(m[i, j]))
                rules.append((columns, values, float(shift[i]), float(shift[i])))
            continue
        below = starts[vertex.operands[0]]
        low, high = _sides(run, place)
        for i in range(vertex.entries):
            z, y = start + i, below + i
            lower[z] = 0.0
            if low[i] >= 0:
                rules.append(([z, y], [1.0, -1.0], 0.0, 0.0))
            elif high[i] <= 0:
                upper[z] = 0.0
            else:
                b = bits[place, i]
                lower[b], upper[b] = 0.0, 1.0
                rules.append(([z, y], [1.0, -1.0], 0.0, np.inf))
                rules.append(([z, y, b], [1.0, -1.0, -low[i]], -np.inf, -low[i]))
                rules.append(([z, b], [1.0, -high[i]], -np.inf, 0.0))
    last = starts[graph.output]
    rules.append(([last + int(j) for j in np.flatnonzero(row)], list(row[row != 0]), -np.inf, 0.0))
    matrix = lil_matrix((len(rules), total))
    for i, (columns, values, _, _) in enumerate(rules):
        for c, v in zip(columns, values, strict=True):
            matrix[i, c] += v
    cost = np.zeros(total)
    cost[lengths] = 1.0
    whole = np.zeros(total)
    whole[list(bits.values())] = 1
    with _silent():
        found = milp(
            cost,
            constraints=LinearConstraint(
                matrix.tocsr(), [r[2] for r in rules], [r[3] for r in rules]
            ),
            integrality=whole,
            bounds=Bounds(lower, upper),
            options={"mip_rel_gap": _TOLERANCE, "presolve": False},
        )
    if found.status == 2:
        return None, int(found.mip_node_count or 0)
    if found.x is None or not found.success:
        raise NotConverged(f"the mixed-integer program failed: {found.message}")
    exponent = np.inf if norm == "inf" else 1
    point = found.x[:n]
    return (float(np.linalg.norm(point - x, exponent)), point), int(found.mip_node_count or 0)


@contextmanager
def _silent() -> Iterator[None]:
    """HiGHS prints a line about its heuristics to the process's own output, whatever it is told."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no output to keep clean
        yield
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def _sides(run: Propagation, place: int) -> tuple[_Array, _Array]:
    below = run.graph.vertices[place].operands[0]
    low, high = (v.reshape(-1).numpy() for v in run.boxes[below])
    return low, high
