"""Finding: every cell of the network on a plane through training samples, and its boundary."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, floating_inputs
from torchtheory.audit.findings.regions import EXACT, PASSES, piecewise_linear
from torchtheory.core.errors import InvalidInput
from torchtheory.core.figure import COLORS
from torchtheory.expressivity.arrangement import Arrangement, PlaneSlice, plane_arrangement
from torchtheory.expressivity.boundary import (
    Boundary,
    class_cells,
    connected_parts,
    decision_boundary,
)
from torchtheory.expressivity.regions import activation_pattern
from torchtheory.models.problem import Problem
from torchtheory.report.wording import counted

#: Cells of a picture, at most.
CELLS = 4000

#: Of more classes no boundary is drawn: nearly all of them may meet in a cell.
MOST_CLASSES = 50

CELLWISE = r"f(x) = A_\kappa x + c_\kappa \text{ on every cell } \kappa"


@finding(
    "plane-slice",
    area="capacity",
    title="Cells and decision boundary on a plane through training samples",
    cost="gradient",
    covers=["X-71"],
    needs=[deterministic, floating_inputs, piecewise_linear],
)
def plane_slice(problem: Problem, record: FindingRecord) -> None:
    """All cells of the network on a rectangle of the plane, each with its affine map."""
    made = _slice(problem, record)
    if made is None:
        record.not_applicable(
            "X-71", CELLWISE, "no three training samples span a plane", samples=problem.train
        )
        return
    plane, corners = made
    found = _arrangement(problem, plane)
    if found is None:
        record.not_done(
            "X-71", CELLWISE, "even a small rectangle has more cells than the time given allows"
        )
        return
    few = found.values.reshape(len(found), -1).shape[1] <= MOST_CLASSES
    boundary = decision_boundary(found) if problem.is_classification and few else None
    points = found.points_inside(record.generator)
    cells = torch.arange(len(found))
    function = problem.function.in_precision(torch.float64)
    with torch.no_grad():
        parts = _points(found.plane, points, problem.chunk)
        truth = torch.cat([function(function.parameters, x) for x in parts])
    scale = float(truth.abs().max().clamp_min(torch.finfo(torch.float64).tiny))

    def deviation(of: Tensor) -> float:
        return float((found.affine(of, points) - truth).abs().max()) / scale

    next_door = torch.tensor([(found.neighbors(int(c)) or [int(c)])[0] for c in cells])
    other = deviation(next_door)
    says = record.checks("X-71", CELLWISE)
    says.equal(
        deviation(cells),
        within=EXACT,
        where=f"largest difference at a random point of each of {counted(len(found), 'cell')}, "
        "relative to the largest output",
    )
    if other > EXACT:
        says.fails("the map of a neighboring cell", other)
    # of the rectangle that was drawn, which another audit may draw elsewhere: no quantities
    rows: list[tuple[str, int]] = [
        ("cells on the rectangle of the picture", len(found)),
        ("linear regions there", found.count),
    ]
    if boundary is not None:
        rows.append(("connected parts of the decision boundary there", connected_parts(boundary)))
    record.table("counts", ("what", "how many"), rows)
    whole = found.plane.low == plane.low
    caption = f"{counted(len(found), 'cell')} of the network on "
    caption += "a plane" if whole else "a part of a plane"
    caption += " through three training samples" + (" (crosses)" if whole else "")
    caption += ", by output." if boundary is None else ", by class; black: the exact boundary."
    record.figure(
        "cells",
        lambda ax: plot_cells(ax, found, boundary, corners),
        caption=caption,
        size=(5.6, 5.2),
    )


def _points(plane: PlaneSlice, points: Tensor, chunk: int) -> list[Tensor]:
    return [plane.points(part) for part in torch.split(points, chunk)]


def _slice(problem: Problem, record: FindingRecord) -> tuple[PlaneSlice, Tensor] | None:
    """A rectangle about three samples, of different classes where there are; their places."""
    samples = problem.train.some(min(64, len(problem.train)), record.generator)
    chosen: list[int] = []
    labels = samples.y.flatten().tolist() if problem.is_classification else []
    for fresh in (True, False) if problem.is_classification else (False,):
        for i in range(len(samples)):
            new = all(bool((samples.x[i] != samples.x[k]).any()) for k in chosen)
            other = not fresh or labels[i] not in [labels[k] for k in chosen]
            if len(chosen) < 3 and i not in chosen and new and other:
                chosen.append(i)
    if len(chosen) < 3:
        return None
    p, q, r = (samples.x[i].double() for i in chosen)
    u, v = q - p, r - p
    # at right angles, so that the picture shows true angles and distances
    first = u / u.norm()
    rest = v - (v * first).sum() * first
    if float(rest.norm()) < 1e-6 * float(v.norm()):
        return None
    second = rest / rest.norm()
    places = torch.stack(
        [torch.stack([((z - p) * d).sum() for d in (first, second)]) for z in (p, q, r)]
    )
    low, high = places.amin(0), places.amax(0)
    margin = 0.25 * float((high - low).max())
    ends = [tuple(float(c) for c in e) for e in (low - margin, high + margin)]
    return PlaneSlice(p, first, second, ends[0], ends[1]), places.cpu()  # type: ignore[arg-type]


def _arrangement(problem: Problem, plane: PlaneSlice) -> Arrangement | None:
    """The cells, those of a smaller rectangle where they are too many."""
    allowed = min(CELLS, problem.affordable(2 * PASSES))
    low, high = (torch.tensor(e, dtype=torch.float64) for e in (plane.low, plane.high))
    states = activation_pattern(problem.function, plane.points(torch.stack([low, high])))
    lines = sum(int((s[0] != s[1]).sum()) for s in states) + 1
    # so many lines, all crossing one another, have half as many cells as their number squared
    size = min(1.0, 2 * math.sqrt(allowed) / lines)
    middle, half = (low + high) / 2, (high - low) / 2
    for _ in range(4):
        if size < 1 and problem.is_classification:
            middle = _change_near_the_middle(problem, plane)
        smaller = plane
        if size < 1:
            ends = [tuple(e.tolist()) for e in (middle - size * half, middle + size * half)]
            smaller = PlaneSlice(plane.origin, plane.first, plane.second, ends[0], ends[1])
        try:
            return plane_arrangement(problem.function, smaller, most=2 * allowed)
        except InvalidInput:  # more cells than that
            size /= 2
    return None


def _change_near_the_middle(problem: Problem, plane: PlaneSlice) -> Tensor:
    """Of a grid on the rectangle, the point nearest to its middle next to another class."""
    low, high = (torch.tensor(e, dtype=torch.float64) for e in (plane.low, plane.high))
    steps = torch.linspace(0, 1, 21, dtype=torch.float64)
    grid = low + (high - low) * torch.cartesian_prod(steps, steps)
    function = problem.function.in_precision(torch.float64)
    with torch.no_grad():
        parts = _points(plane, grid, problem.chunk)
        scores = torch.cat([function(function.parameters, x) for x in parts]).cpu()
    scores = scores.reshape(len(grid), -1)
    winner = scores.argmax(1) if scores.shape[1] > 1 else (scores[:, 0] > 0).long()
    square = winner.reshape(21, 21)
    changes = torch.zeros(21, 21, dtype=torch.bool)
    changes[:-1] |= square[1:] != square[:-1]
    changes[:, :-1] |= square[:, 1:] != square[:, :-1]
    middle = (low + high) / 2
    if not bool(changes.any()):
        return middle
    where = grid[changes.flatten()]
    return where[(where - middle).norm(dim=1).argmin()]


def plot_cells(ax: Any, found: Arrangement, boundary: Boundary | None, corners: Tensor) -> None:
    """Cells by class, or by the size of the output, each in a shade of its own."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    kinds: list[int] = []
    if boundary is None:
        y = found.values.cpu().reshape(len(found), -1)[:, 0]
        place = ((y - y.min()) / (y.max() - y.min()).clamp_min(1e-300)).numpy()
        polygons, cells = list(found.polygons()), np.arange(len(found))
        base = colormaps["viridis"](place)[:, :3]
    else:
        parts = class_cells(found)
        polygons, cells = [p for p, _, _ in parts], np.array([c for _, _, c in parts])
        # colors in the order of the classes that are seen here, so that few of them repeat
        kinds = sorted({kind for _, kind, _ in parts})
        base = np.array([to_rgb(_color(kinds.index(kind))) for _, kind, _ in parts])
    grain = (found.hashes.cpu().numpy()[cells] % 97) / 97
    colors = 1 - (0.35 + 0.25 * grain[:, None]) * (1 - base)
    ax.add_collection(
        PolyCollection(polygons, facecolors=colors, edgecolors="white", linewidths=0.4)
    )
    if boundary is not None and len(boundary.segments):
        ax.add_collection(
            LineCollection(list(boundary.segments.numpy()), colors="black", linewidths=1.8)
        )
    ax.plot(corners[:, 0], corners[:, 1], "x", color="black", ms=7, mew=2)
    (a, b), (c, d) = found.plane.low, found.plane.high
    ax.set(xlim=(a, c), ylim=(b, d), aspect="equal", xlabel="distance", ylabel="distance")
    ax.grid(False)
    if 0 < len(kinds) <= len(COLORS):
        one = found.values.reshape(len(found), -1).shape[1] == 1
        marks = [Patch(color=_color(k), alpha=0.5) for k in range(len(kinds))]
        # with one output the boundary calls its positive sign 0
        names = [("positive", "negative")[k] if one else str(k) for k in kinds]
        ax.legend(marks, names, title="output" if one else "class", loc="upper left",
                  bbox_to_anchor=(1, 1))  # fmt: skip


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]
