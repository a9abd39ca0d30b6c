"""Findings about linear regions: activation patterns, pieces between samples, cells on a plane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.hypotheses import deterministic, floating_inputs
from torchtheory.audit.sizes import relu_widths
from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.core.figure import COLOURS
from torchtheory.core.finding import FindingRecord, finding
from torchtheory.core.intervals import mean_interval, median_interval
from torchtheory.core.problem import Problem
from torchtheory.core.record import Control
from torchtheory.core.samples import Samples
from torchtheory.expressivity.arrangement import Arrangement, PlaneSlice, plane_arrangement
from torchtheory.expressivity.boundary import (
    Boundary,
    class_cells,
    connected_parts,
    decision_boundary,
)
from torchtheory.expressivity.bounds import most_pieces
from torchtheory.expressivity.cells import ROUNDING
from torchtheory.expressivity.pieces import Pieces, affine_pieces
from torchtheory.expressivity.regions import activation_pattern

#: Samples whose patterns are compared, segments followed and cells of a picture, at most.
PATTERN_SAMPLES, SEGMENTS, CELLS = 512, 24, 4000

#: Of more classes no boundary is drawn: nearly all of them may meet in a cell.
MOST_CLASSES = 50

#: Passes of one point in double precision that a piece, or a cell, costs; counted on MLPs and
#: ResNets, where it lies between 10 and 30.
PASSES = 30

#: Half-width of what counts as near a change of class, in lengths of the segment.
NEAR = 0.05

#: Relative rounding of a network in double precision: that of a bend, over the width of a layer.
EXACT = 1e4 * ROUNDING

AFFINE = r"f \text{ is affine between neighbouring breakpoints}"
CELLWISE = r"f(x) = A_\kappa x + c_\kappa \text{ on every cell } \kappa"


def piecewise_linear(problem: Problem) -> str | None:
    """By one pass of one sample, every operation watched."""
    try:
        states = activation_pattern(problem.function, problem.train.x[:1])
    except TorchTheoryError as error:
        return str(error)
    return None if states else "nothing in the model bends: it is one affine map"


# ------------------------------------------------------------------------- activation patterns


@finding(
    "activation-patterns",
    section="Expressivity",
    title="Activation patterns of the training samples",
    cost="forward",
    covers=["X-71"],
    needs=[deterministic, floating_inputs, piecewise_linear],
)
def activation_patterns(problem: Problem, record: FindingRecord) -> None:
    """Which units are on, sample by sample: samples with one pattern share one affine map."""
    samples = _watched(problem, record)
    states = _states(problem, samples)
    distinct = _distinct(states)
    record.quantity(
        "distinct-patterns",
        f"different activation patterns among {len(samples)} training samples",
        distinct,
    )
    record.quantity("switching-units", "units that can be on or off", states.shape[1])
    x = samples.x.double()
    i, j, alike = _pairs(samples, problem)
    apart = _apart(states, i, j)
    groups = [("any two", torch.ones_like(alike))]
    if problem.is_classification:
        groups = [("one class", alike), ("two classes", ~alike)]
    rows = []
    for name, chosen in groups:
        if int(chosen.sum()) < 2:
            continue
        share = mean_interval(apart[chosen] / states.shape[1], record.confidence)
        rows.append((name, int(chosen.sum()), share.estimate, share.low, share.high))
        record.quantity(
            f"pattern-distance-{name.replace(' ', '-')}",
            f"share of units in different states at two training samples, {name}",
            share,
        )
    record.table(
        "patterns",
        ("samples of", "pairs", "units in different states, share", "low", "high"),
        rows,
        caption=f"Disjoint random pairs of training samples; {record.confidence:g} intervals.",
    )
    between = (x[i] - x[j]).flatten(1).norm(dim=1)
    if len(i) >= 10 and float(between.max()) > 0:
        record.figure(
            "distances",
            lambda ax: _plot_distances(ax, between, apart / states.shape[1], groups),
            caption="How far two training samples are apart, and how many units they switch.",
            size=(5.4, 3.2),
        )


def _watched(problem: Problem, record: FindingRecord) -> Samples:
    """As many training samples as time and memory allow."""
    units = sum(s.shape[1] for s in activation_pattern(problem.function, problem.train.x[:1]))
    most = min(PATTERN_SAMPLES, problem.affordable(PASSES), problem.memory // (64 * units))
    return problem.train.some(max(2, most), record.generator)


def _states(problem: Problem, samples: Samples) -> Tensor:
    """``[n, units]``: the state of every unit at every sample."""
    parts = [
        torch.cat(activation_pattern(problem.function, x), 1).to(torch.int16)
        for x, _ in samples.chunks(problem.chunk)
    ]
    return torch.cat(parts)


def _distinct(states: Tensor) -> int:
    """Different rows, by sums of random 64-bit numbers: equal rows have equal sums."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**62), 2**62, (states.shape[1],), generator=generator)
    sums = torch.stack([(row.long() * weights.to(row.device)).sum() for row in states])
    return len(sums.unique())  # type: ignore[no-untyped-call]


def _pairs(samples: Samples, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Disjoint pairs: the samples are in random order. Whether both are of one class."""
    half = len(samples) // 2
    i, j = torch.arange(half), torch.arange(half, 2 * half)
    if not problem.is_classification:
        return i, j, torch.ones(half, dtype=torch.bool)
    labels = samples.y.reshape(len(samples))
    return i, j, (labels[i] == labels[j]).cpu()


def _apart(states: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """How many units are in different states, ``[pairs]``."""
    pairs = zip(i.tolist(), j.tolist(), strict=True)
    return torch.tensor([int((states[a] != states[b]).sum()) for a, b in pairs])


def _plot_distances(
    ax: Any, between: Tensor, apart: Tensor, groups: list[tuple[str, Tensor]]
) -> None:
    for (name, chosen), colour in zip(groups, COLOURS, strict=False):
        ax.plot(between[chosen].cpu(), apart[chosen], "o", ms=3, color=colour, label=name)
    ax.set(xlabel="distance of two samples", ylabel="units in different states")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    if len(groups) > 1:
        ax.legend(title="samples of")


# ------------------------------------------------------------------------ pieces on segments


@dataclass(frozen=True)
class Segment:
    """A segment between two training samples and the network along it."""

    pieces: Pieces
    crossings: Tensor
    share: float


@finding(
    "affine-pieces",
    section="Expressivity",
    title="Affine pieces between training samples",
    cost="forward",
    covers=["X-69"],
    needs=[deterministic, floating_inputs, piecewise_linear],
)
def affine_pieces_between_samples(problem: Problem, record: FindingRecord) -> None:
    """Every bend of the network on straight ways from one training sample to another, exactly."""
    segments, ends = _segments(problem, record)
    if not segments:
        record.not_applicable(
            "X-69", AFFINE, "all training samples looked at are equal: no way leads from one to "
            "another"
        )  # fmt: skip
        return
    worst = [_deviation(problem, s.pieces, e, record) for s, e in zip(segments, ends, strict=True)]
    whole, halved = (max(w[k] for w in worst) for k in (0, 1))
    record.claim(
        "X-69",
        AFFINE,
        promised=0.0,
        relation="==",
        measured=whole,
        tolerance=EXACT,
        reason="largest difference of the network and its pieces at random points of "
        f"{len(segments)} segments, relative to the largest output",
        control=Control("every second breakpoint left out", halved) if halved > EXACT else None,
    )
    counts = [s.pieces.count / s.share for s in segments]
    _bounded_pieces(problem, record, max(s.pieces.count for s in segments))
    middle = median_interval(counts, record.confidence)
    finite = math.isfinite(middle.low) and math.isfinite(middle.high)
    record.quantity(
        "affine-pieces",
        "median number of affine pieces between two training samples",
        middle if finite else middle.estimate,
        basis="" if finite else f"{len(counts)} segments, too few for an interval",
    )
    if min(s.share for s in segments) < 1:
        record.note(
            f"Only the middle {segments[0].share:.2%} of each segment was followed in the time "
            "given; numbers are those of whole segments at the same density."
        )
    _near_the_boundary(record, segments)
    record.headline(
        f"On a straight way from one training sample to another the network has about "
        f"{middle.estimate:,.0f} affine pieces.",
        0,
    )
    shown = max(segments, key=lambda s: len(s.crossings))
    record.figure(
        "segment",
        lambda ax: _plot_segment(ax, shown, problem),
        caption="The outputs on a straight way from one training sample (0) to another (1). Ticks "
        "at the bottom: where the network bends. Dotted: where the class changes.",
        size=(6.4, 3.2),
    )


def _segments(
    problem: Problem, record: FindingRecord
) -> tuple[list[Segment], list[tuple[Tensor, Tensor]]]:
    """As many segments as fit into the time; one that does not fit is shortened."""
    samples = problem.train.some(2 * SEGMENTS, record.generator)
    function = problem.function
    segments: list[Segment] = []
    ends: list[tuple[Tensor, Tensor]] = []
    allowed = problem.affordable(2 * PASSES)  # double precision takes twice the time
    for a, b in zip(samples.x[::2], samples.x[1::2], strict=False):
        a, b = a.double(), b.double()
        if bool((a == b).all()):
            continue
        both = activation_pattern(function, torch.stack([a, b]))
        switched = sum(int((s[0] != s[1]).sum()) for s in both) + 1
        share = min(1.0, allowed / switched)
        if segments and share < segments[0].share:
            break
        if share < 1:
            middle, reach = (a + b) / 2, share * (b - a) / 2
            a, b = middle - reach, middle + reach
        pieces = affine_pieces(function, a, b)
        segments.append(Segment(pieces, _class_changes(problem, pieces), share))
        ends.append((a, b))
        allowed -= pieces.patterns
        if allowed <= 0:
            break
    return segments, ends


def _class_changes(problem: Problem, pieces: Pieces) -> Tensor:
    """Where the class changes along the segment, exactly where two classes meet directly."""
    if not problem.is_classification:
        return pieces.breakpoints[:0]
    scores = pieces.values.reshape(len(pieces.breakpoints), -1)
    if scores.shape[1] == 1:
        scores = torch.cat([scores, torch.zeros_like(scores)], 1)
    winner = scores.argmax(1)
    at = (winner[1:] != winner[:-1]).nonzero()[:, 0]
    old, new = winner[at], winner[at + 1]
    left, right = (scores[k, old] - scores[k, new] for k in (at, at + 1))
    share = left / (left - right)
    return torch.lerp(pieces.breakpoints[at], pieces.breakpoints[at + 1], share)


def _deviation(
    problem: Problem, pieces: Pieces, ends: tuple[Tensor, Tensor], record: FindingRecord
) -> tuple[float, float]:
    """Relative to the largest output: of all pieces, and of those that skip every second bend."""
    t = torch.rand(32, generator=record.generator, dtype=torch.float64)
    a, b = (e.unsqueeze(0).to(pieces.values.device) for e in ends)
    function = problem.function.in_precision(torch.float64)
    shape = (-1, *[1] * (a.ndim - 1))
    with torch.no_grad():
        truth = function(function.parameters, torch.lerp(a, b, t.reshape(shape).to(a)))
    keep = torch.arange(len(pieces.breakpoints)) % 2 == 0
    keep[-1] = True
    fewer = Pieces(*(part[keep] for part in (
        pieces.breakpoints, pieces.values, pieces.bends, pieces.changes
    )))  # fmt: skip
    scale = float(pieces.values.abs().max().clamp_min(torch.finfo(torch.float64).tiny))
    made = [float((p(t) - truth).abs().max()) / scale for p in (pieces, fewer)]
    return made[0], made[1]


def _bounded_pieces(problem: Problem, record: FindingRecord, count: int) -> None:
    """The bound of a plain network of dense layers and ReLUs."""
    hidden = relu_widths(problem.model)
    if not hidden:
        return
    bound = sum(math.log(n + 1) for n in hidden)
    alone = math.log(count) / (len(hidden) * math.log(2))
    record.claim(
        "X-69",
        r"\log(\text{pieces on a segment})\,/\,\log\textstyle\prod_\ell(n_\ell+1) \le 1",
        promised=1.0,
        relation="<=",
        measured=math.log(count) / bound,
        reason=f"at most {most_pieces(hidden):.3g} pieces with hidden widths "
        f"{', '.join(map(str, hidden))}, and {count} were found",
        control=Control("one unit of each layer counted", alone) if alone > 1 else None,
    )


def _near_the_boundary(record: FindingRecord, segments: list[Segment]) -> None:
    """Bends near a change of class, relative to the segment's own density."""
    ratios = []
    for s in segments:
        bends = s.pieces.breakpoints[s.pieces.changes]
        if len(s.crossings) == 0 or len(bends) == 0:
            continue
        near = (bends[:, None] - s.crossings[None]).abs().amin(1) <= NEAR
        ratios.append(float(near.double().mean()) / _covered(s.crossings))
    if len(ratios) < 3:
        return
    density = mean_interval(ratios, record.confidence)
    record.quantity(
        "boundary-density",
        "density of bends near a change of class, relative to the whole segment",
        density,
    )
    where = "denser" if density.low > 1 else "sparser" if density.high < 1 else ""
    if where:
        record.note(
            f"Bends are {where} near the decision boundary: {density.estimate:.2g} times the "
            f"density of their segment ({density.low:.2g} to {density.high:.2g}, "
            f"{len(ratios)} segments)."
        )


def _covered(crossings: Tensor) -> float:
    """Length of the union of the neighbourhoods of the crossings within [0, 1]."""
    low, high = (crossings - NEAR).clamp_min(0), (crossings + NEAR).clamp_max(1)
    end, total = 0.0, 0.0
    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


def _plot_segment(ax: Any, shown: Segment, problem: Problem) -> None:
    t = shown.pieces.breakpoints.cpu()
    y = shown.pieces.values.cpu().reshape(len(t), -1)
    spread = (y.amax(0) - y.amin(0)).argsort(descending=True)[:4]
    for k, colour in zip(sorted(spread.tolist()), COLOURS, strict=False):
        ax.plot(t, y[:, k], color=colour, lw=1.2, label=f"output {k}")
    bends = shown.pieces.kinks.cpu()
    ax.plot(bends, torch.zeros(len(bends)), "|", color="0.3", ms=9, transform=_bottom(ax))
    for crossing in shown.crossings.tolist():
        ax.axvline(crossing, color="black", ls=":", lw=1)
    ax.set(xlabel="way from one sample to the other", ylabel="output", xlim=(0, 1))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _bottom(ax: Any) -> Any:
    """Coordinates of the data along x and of the axes along y."""
    return ax.get_xaxis_transform()


# ------------------------------------------------------------------------- cells on a plane


@finding(
    "plane-slice",
    section="Expressivity",
    title="Cells and decision boundary on a plane through training samples",
    cost="gradient",
    covers=["X-71"],
    needs=[deterministic, floating_inputs, piecewise_linear],
)
def plane_slice(problem: Problem, record: FindingRecord) -> None:
    """All cells of the network on a rectangle of the plane, each with its affine map."""
    made = _slice(problem, record)
    if made is None:
        record.not_applicable("X-71", CELLWISE, "no three training samples span a plane")
        return
    plane, corners = made
    found = _arrangement(problem, plane)
    if found is None:
        record.not_applicable(
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

    next_door = torch.tensor([(found.neighbours(int(c)) or [int(c)])[0] for c in cells])
    other = deviation(next_door)
    record.claim(
        "X-71",
        CELLWISE,
        promised=0.0,
        relation="==",
        measured=deviation(cells),
        tolerance=EXACT,
        reason=f"largest difference at a random point of each of {len(found)} cells, relative to "
        "the largest output",
        control=Control("the map of a neighbouring cell", other) if other > EXACT else None,
    )
    record.quantity("plane-cells", "cells on the rectangle of the picture", len(found))
    record.quantity("plane-regions", "linear regions there", found.count)
    if boundary is not None:
        record.quantity(
            "boundary-parts",
            "connected parts of the decision boundary there",
            connected_parts(boundary),
        )
    shown = "a plane" if found.plane.low == plane.low else "a part of a plane"
    record.figure(
        "cells",
        lambda ax: plot_cells(ax, found, boundary, corners),
        caption=f"The {len(found)} cells of the network on {shown} through three training samples "
        "(crosses)" + (", by output." if boundary is None else ", by class; black: the exact "
        "decision boundary."),
        size=(5.6, 5.2),
    )  # fmt: skip


def _points(plane: PlaneSlice, points: Tensor, chunk: int) -> list[Tensor]:
    return [plane.points(part) for part in torch.split(points, chunk)]


def _slice(problem: Problem, record: FindingRecord) -> tuple[PlaneSlice, Tensor] | None:
    """A rectangle about three samples, of different classes where there are; their places."""
    samples = problem.train.some(min(64, len(problem.train)), record.generator)
    chosen: list[int] = []
    labels = samples.y.reshape(len(samples), -1)[:, 0].tolist()
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

    if boundary is None:
        y = found.values.cpu().reshape(len(found), -1)[:, 0]
        place = ((y - y.min()) / (y.max() - y.min()).clamp_min(1e-300)).numpy()
        polygons, cells = list(found.polygons()), np.arange(len(found))
        base = colormaps["viridis"](place)[:, :3]
    else:
        parts = class_cells(found)
        polygons, cells = [p for p, _, _ in parts], np.array([c for _, _, c in parts])
        base = np.array([to_rgb(COLOURS[kind % len(COLOURS)]) for _, kind, _ in parts])
    grain = (found.hashes.cpu().numpy()[cells] % 97) / 97
    colours = 1 - (0.35 + 0.25 * grain[:, None]) * (1 - base)
    ax.add_collection(
        PolyCollection(polygons, facecolors=colours, edgecolors="white", linewidths=0.4)
    )
    if boundary is not None and len(boundary.segments):
        ax.add_collection(
            LineCollection(list(boundary.segments.numpy()), colors="black", linewidths=1.8)
        )
    ax.plot(corners[:, 0], corners[:, 1], "x", color="black", ms=7, mew=2)
    (a, b), (c, d) = found.plane.low, found.plane.high
    ax.set(xlim=(a, c), ylim=(b, d), aspect="equal", xlabel="distance", ylabel="distance")
    ax.grid(False)
