"""Findings about linear regions: activation patterns, and pieces between training samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, floating_inputs
from torchtheory.audit.findings.sizes import relu_widths
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import mean_interval, median_interval
from torchtheory.expressivity.bounds import most_pieces
from torchtheory.expressivity.cells import ROUNDING
from torchtheory.expressivity.pieces import Pieces, affine_pieces
from torchtheory.expressivity.regions import activation_pattern
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.wording import counted

#: Samples whose patterns are compared and segments followed, at most.
PATTERN_SAMPLES, SEGMENTS = 512, 24

#: Passes of one point in double precision that a piece, or a cell, costs; counted on MLPs and
#: ResNets, where it lies between 10 and 30.
PASSES = 30

#: Half-width of what counts as near a change of class, in lengths of the segment.
NEAR = 0.05

#: Relative rounding of a network in double precision: that of a bend, over the width of a layer.
EXACT = 1e4 * ROUNDING

AFFINE = r"f \text{ is affine between neighboring breakpoints}"


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
    area="capacity",
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
    record.note(f"{distinct} different activation patterns among {len(samples)} training samples.")
    record.quantity("switching-units", "units that can be on or off", states.shape[1])
    x = samples.x.double()
    i, j, alike = _pairs(samples, problem, record.generator)
    apart = _apart(states, i, j)
    groups = [("any two", torch.ones_like(alike))]
    if problem.is_classification:
        groups = [("one class", alike), ("two classes", ~alike)]
    groups = [(name, chosen) for name, chosen in groups if int(chosen.sum()) > 1]
    rows = []
    for name, chosen in groups:
        share = mean_interval(apart[chosen] / states.shape[1], record.confidence)
        rows.append((name, int(chosen.sum()), share.estimate, share.low, share.high))
        record.quantity(
            f"pattern-distance-{name.replace(' ', '-')}",
            f"share of units in different states at two training samples, {name}",
            share,
            samples=samples,
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
    """`[n, units]`: the state of every unit at every sample."""
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


def _pairs(
    samples: Samples, problem: Problem, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Disjoint random pairs, and whether both are of one class; data often come sorted by it."""
    half = len(samples) // 2
    i, j = torch.randperm(len(samples), generator=generator)[: 2 * half].view(2, half)
    if not problem.is_classification:
        return i, j, torch.ones(half, dtype=torch.bool)
    labels = samples.y.reshape(len(samples))
    return i, j, (labels[i] == labels[j]).cpu()


def _apart(states: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """How many units are in different states, `[pairs]`."""
    pairs = zip(i.tolist(), j.tolist(), strict=True)
    return torch.tensor([int((states[a] != states[b]).sum()) for a, b in pairs])


def _plot_distances(
    ax: Any, between: Tensor, apart: Tensor, groups: list[tuple[str, Tensor]]
) -> None:
    for (name, chosen), color in zip(groups, COLORS, strict=False):
        ax.plot(between[chosen].cpu(), apart[chosen], "o", ms=3, color=color, label=name)
    ax.set(xlabel="distance of two samples", ylabel="share of units in different states")
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
    area="capacity",
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
            "X-69",
            AFFINE,
            "all training samples are equal: no way leads from one to another",
            samples=problem.train,
        )
        return
    worst = [_deviation(problem, s.pieces, e, record) for s, e in zip(segments, ends, strict=True)]
    whole, halved = (max(w[k] for w in worst) for k in (0, 1))
    says = record.checks("X-69", AFFINE)
    says.equal(
        whole,
        within=EXACT,
        where="largest difference of the network and its pieces at random points of "
        f"{counted(len(segments), 'segment')}, relative to the largest output",
    )
    if halved > EXACT:
        says.fails("every second breakpoint left out", halved)
    counts = [s.pieces.count / s.share for s in segments]
    _bounded_pieces(problem, record, max(s.pieces.count for s in segments))
    middle = median_interval(counts, record.confidence)
    followed = min(s.share for s in segments)
    # of the rest of a segment nothing is known: the middle may bend more, or less
    if followed == 1 and math.isfinite(middle.low) and math.isfinite(middle.high):
        record.quantity(
            "affine-pieces", "median number of affine pieces between two training samples", middle
        )
    elif followed == 1:
        record.note(
            f"Too few segments ({len(counts)}) for the range of the number of pieces; give a "
            "larger budget."
        )
    if followed < 1:
        record.note(
            f"Only the middle {segments[0].share:.2%} of each segment was followed in the time "
            "given; numbers are those of whole segments at the same density."
        )
    _near_the_boundary(record, segments)
    record.headline(
        f"On a straight way from one training sample to another the network has about "
        f"{middle.estimate:,.0f} affine pieces (median of {counted(len(counts), 'segment')}"
        + ("" if followed == 1 else ", if all of it is like its middle")
        + ").",
    )
    shown = max(segments, key=lambda s: len(s.crossings))
    record.figure(
        "segment",
        lambda ax: _plot_segment(ax, shown),
        caption="The outputs on a straight way from one training sample (0) to another (1). Ticks "
        "at the bottom: where the network bends."
        + (" Dotted: where the class changes." if problem.is_classification else ""),
        size=(6.4, 3.2),
    )


def _segments(
    problem: Problem, record: FindingRecord
) -> tuple[list[Segment], list[tuple[Tensor, Tensor]]]:
    """As many segments as fit into the time; one that does not fit is shortened."""
    # in random order: data often come sorted by class
    order = torch.randperm(len(problem.train), generator=record.generator)[: 2 * SEGMENTS]
    samples = problem.train.at(order)
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
    hidden = relu_widths(problem.function, problem.train.x)
    if not hidden:
        return
    bound = sum(math.log(n + 1) for n in hidden)
    alone = math.log(count) / (len(hidden) * math.log(2))
    says = record.states(
        "X-69", r"\log(\text{pieces on a segment})\,/\,\log\textstyle\prod_\ell(n_\ell+1) \le 1"
    )
    says.at_most(
        math.log(count) / bound,
        1.0,
        where=f"at most {most_pieces(hidden):.3g} pieces with hidden widths "
        f"{', '.join(map(str, hidden))}, and {count} were found",
    )
    if alone > 1:
        says.fails("one unit of each layer counted", alone)


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
    """Length of the union of the neighborhoods of the crossings within [0, 1]."""
    low, high = (crossings - NEAR).clamp_min(0), (crossings + NEAR).clamp_max(1)
    end, total = 0.0, 0.0
    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


def _plot_segment(ax: Any, shown: Segment) -> None:
    t = shown.pieces.breakpoints.cpu()
    y = shown.pieces.values.cpu().reshape(len(t), -1)
    spread = (y.amax(0) - y.amin(0)).argsort(descending=True)[:4]
    for k, color in zip(sorted(spread.tolist()), COLORS, strict=False):
        ax.plot(t, y[:, k], color=color, lw=1.2, label=f"output {k}")
    bends = shown.pieces.kinks.cpu()
    # along x the data's coordinates, along y the axes' own: the ticks stay at the bottom
    bottom = ax.get_xaxis_transform()
    ax.plot(bends, torch.zeros(len(bends)), "|", color="0.3", ms=9, transform=bottom)
    for crossing in shown.crossings.tolist():
        ax.axvline(crossing, color="black", ls=":", lw=1)
    ax.set(xlabel="way from one sample to the other", ylabel="output", xlim=(0, 1))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
