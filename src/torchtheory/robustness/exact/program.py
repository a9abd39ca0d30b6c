"""The distance to another class as a mixed-integer linear program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from torchtheory.core.errors import NotConverged, UnsupportedModel
from torchtheory.robustness.attacks.balls import Norm
from torchtheory.robustness.bounds.propagation import Propagation
from torchtheory.robustness.exact.piecewise_affine import Array, PiecewiseAffine

#: The relative gap at which the solver stops.
_TOLERANCE = 1e-9


def by_program(
    network: PiecewiseAffine,
    run: Propagation,
    row: Array,
    norm: Norm,
    reach: float,
    limits: tuple[Array, Array] | None,
    most: int,
) -> tuple[tuple[float, Array] | None, int]:
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
    limits_of_rules = LinearConstraint(matrix.tocsr(), [r[2] for r in rules], [r[3] for r in rules])
    for presolve in (False, True):  # where the solver stumbles, its other way may end
        with _silent():
            found = milp(
                cost,
                constraints=limits_of_rules,
                integrality=whole,
                bounds=Bounds(lower, upper),
                options={"mip_rel_gap": _TOLERANCE, "presolve": presolve},
            )
        if found.status == 2:
            return None, int(found.mip_node_count or 0)
        if found.x is not None and found.success:
            break
    else:
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


def _sides(run: Propagation, place: int) -> tuple[Array, Array]:
    below = run.graph.vertices[place].operands[0]
    low, high = (v.reshape(-1).numpy() for v in run.boxes[below])
    return low, high
