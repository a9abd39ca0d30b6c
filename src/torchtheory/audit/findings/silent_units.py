"""Which units take part: those that are silent, saturated or linear on the training data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import grouped, part_of, share_range
from torchtheory.audit.findings.hypotheses import deterministic, differentiable, has_parameters
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.figure import COLORS, label_text
from torchtheory.core.intervals import COUNTED, Interval, clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.report.numbers import share_words
from torchtheory.tracing.watching import WatchedUnits, watch_units

#: Samples looked at, and groups of them whose spread gives the range of a number.
SAMPLES, GROUPS = 4096, 16

#: More than this share of a layer's units silent, or of its slopes flat, is a defect.
MUCH_SILENT, MUCH_FLAT = 0.5, 0.9

#: A unit that passes a gradient at a smaller share of the samples counts as silent in the numbers,
#: and so many samples are needed that one which is never seen to do so does so less often.
SELDOM = 0.05

#: Activations that saturate without ever being flat.
SMOOTH = ("sigmoid", "tanh")


@finding(
    "units",
    area="signals",
    title="Units that are silent, saturated or linear",
    cost="forward",
    needs=[has_parameters, deterministic, differentiable],
)
def units(problem: Problem, record: FindingRecord) -> None:
    """The slopes of every activation over the training data: where they are 0, no gradient passes.

    A unit whose slope is 0 at every sample gets no gradient and cannot learn; one whose slope is
    the same everywhere is a linear unit on these data.
    """
    samples = problem.train.some(min(SAMPLES, problem.affordable(8)), record.generator)
    parts, _ = grouped(samples, record.generator, GROUPS)
    watched = [[u for u in watch_units(problem, part) if u.units > 0] for part in parts]
    found = watched[0]
    for more in watched[1:]:
        if [u.units for u in more] != [u.units for u in found]:
            raise UnsupportedModel("the model does not apply the same layers to every batch")
        found = [a.joined(b) for a, b in zip(found, more, strict=True)]
    statement = r"\varrho'(z_i(x)) \ne 0 \text{ for some } x"
    if not found:
        record.not_applicable((), statement, "the network applies no pointwise activation")
        return
    record.table(
        "units",
        ("after layer", "activation", "units", "silent", "linear", "flat slopes"),
        [
            (u.layer or "(input)", u.function, u.units, u.silent_share, u.linear_share, u.flat)
            for u in found
        ],
        caption=f"Shares over {len(samples):,} training samples. Silent: the slope is 0 at every "
        "sample. Linear: it is the same everywhere. Flat: below a hundredth of the largest slope.",
    )
    _silent_units_get_no_gradient(problem, record, samples, found)
    if reason := _too_few(samples, record.confidence):
        if len(samples) < samples.population:
            record.not_done((), statement, f"{reason}; give a larger budget")
        else:
            record.not_applicable((), statement, reason)
        return
    silent = record.quantity(
        "silent-units",
        f"units active at under {SELDOM:.0%} of samples",
        _silent_range(found, samples, record.confidence),
        samples=samples,
    )
    record.quantity(
        "flat-slopes",
        "slopes below a hundredth of the largest",
        _flat_range(found, samples, record.confidence),
        samples=samples,
    )
    shown = "units" if len(found) > 1 else ""
    _assess_units(record, found, silent, samples, shown)
    if shown:
        record.figure(
            shown,
            lambda ax: _plot_units(ax, found),
            caption="Shares of units or slopes behind every activation, in order.",
            size=(6, 2.8),
        )


def _too_few(samples: Samples, confidence: float) -> str | None:
    """Why silence at these samples says nothing, if so.

    What is silent at all the training data gets no gradient, so there a handful is enough: a unit
    that fires at every second input is silent at n of them with probability 2^-n. Silence at a
    part of them must mean that the unit seldom fires anywhere.
    """
    n = len(samples)
    if n >= samples.population:
        need = math.ceil(math.log2(1 / (1 - confidence)))
        return None if n >= need else f"{n} samples are too few to call a unit silent"
    if clopper_pearson(0, n, confidence).high <= SELDOM:
        return None
    return (
        f"{n} of {samples.population:,} samples are too few to tell a unit that is silent from one "
        "that seldom fires"
    )


def _silent_range(found: list[WatchedUnits], samples: Samples, confidence: float) -> Interval:
    """The share of units that seldom fire; all units' own ranges hold at once."""
    total = sum(u.units for u in found)
    rate = torch.cat([u.active.double().cpu() / u.samples for u in found])
    share = float((rate < SELDOM).double().mean())
    if len(samples) >= samples.population:
        return Interval(share, share, share, confidence, len(samples), "all samples")
    each = 1 - (1 - confidence) / total
    rare = surely = 0
    known: dict[tuple[int, int], Interval] = {}
    for u in found:
        for count in u.active.tolist():
            pair = (min(count, u.samples), u.samples)
            if pair not in known:
                known[pair] = clopper_pearson(*pair, each)
            rare += known[pair].low < SELDOM
            surely += known[pair].high < SELDOM
    return Interval(share, surely / total, rare / total, confidence, len(samples), COUNTED)


def _flat_range(found: list[WatchedUnits], samples: Samples, confidence: float) -> Interval:
    """A few samples, or units, may have most of the flat slopes: the range is one for any law."""
    share = sum(u.flat * u.units for u in found) / sum(u.units for u in found)
    return share_range(min(1.0, share), len(samples), samples.population, confidence)


def _silent_units_get_no_gradient(
    problem: Problem, record: FindingRecord, samples: Samples, found: list[WatchedUnits]
) -> None:
    """The rows of a weight matrix that feed silent units, against those that feed the others."""
    slopes = gradient(problem, samples)
    shapes = {k: p.shape for k, p in problem.trainable.items()}
    pieces = torch.split(slopes, [math.prod(s) for s in shapes.values()])
    rows = {
        k: g.reshape(s[0], -1).abs().amax(1)
        for (k, s), g in zip(shapes.items(), pieces, strict=True)
        if len(s) > 1
    }
    largest = max((float(r.max()) for r in rows.values()), default=0.0)
    behind: list[Tensor] = []
    others: list[Tensor] = []
    once = [u.layer for u in found]
    for u in found:
        own = rows.get(f"{u.layer}.weight")
        if own is not None and len(own) == u.units and once.count(u.layer) == 1:
            behind.append(own[u.silent])
            others.append(own[~u.silent])
    if not any(len(b) for b in behind) or largest == 0:
        return
    says = record.checks(
        (), r"\varrho'(z_i(x)) = 0 \ \forall x \in S \Rightarrow \nabla_{W_i} L_S = 0"
    )
    says.equal(
        torch.cat(behind) / largest,
        where="largest gradient of a weight into a silent unit, relative to the largest of all",
    )
    # past a layer that is silent as a whole no signal comes, and no unit gets a gradient
    if any(len(o) for o in others) and not any(bool(u.silent.all()) for u in found):
        says.fails("units that do fire", float(torch.cat(others).max()) / largest)


def _assess_units(
    record: FindingRecord,
    found: list[WatchedUnits],
    silent: Quantity,
    samples: Samples,
    figure: str,
) -> None:
    # a sigmoid's slope is 0 by rounding alone: such a unit is saturated, not dead
    bent = [u for u in found if u.function not in SMOOTH]
    dead = [u for u in bent if u.silent_share > MUCH_SILENT]
    curved = [
        u for u in found if u not in dead and u.function in (*SMOOTH, "hardtanh", "hardsigmoid")
    ]
    saturating = [u for u in curved if u.flat > MUCH_FLAT]
    part, n = part_of(samples), len(samples)
    least = below(MUCH_SILENT, f"below {MUCH_SILENT:.0%} in each layer")
    usual_flat = below(MUCH_FLAT, f"below {MUCH_FLAT:.0%} in each layer")
    silent_there = flat_there = None
    if bent:
        silent_there = _largest_of(
            record, "silent-units-of-a-layer",
            f"units active at under {SELDOM:.0%} of samples, in the layer with most of them",
            [_silent_range([u], samples, 1 - (1 - record.confidence) / len(bent)) for u in bent],
            samples,
        )  # fmt: skip
    if curved:
        flat_there = _largest_of(
            record, "flat-slopes-of-a-layer",
            "slopes below a hundredth of the largest, in the layer with most of them",
            [_flat_range([u], samples, 1 - (1 - record.confidence) / len(curved)) for u in curved],
            samples,
        )  # fmt: skip
    if dead:
        worst = max(dead, key=lambda u: u.silent_share)
        which = "the training samples" if n >= samples.population else "the samples looked at"
        record.defect(
            f"{worst.silent_share:.0%} of the {worst.units} units after {_place(worst)} are dead: "
            f"their {worst.function} is flat at all {n:,} of {which}{part}, so no gradient from "
            "these reaches their weights and they cannot recover.",
            number=silent_there,
            usual=least,
            action="Dead units stay dead under gradient descent: initialize anew with a smaller "
            "learning rate or biases of 0, or use an activation without a flat side "
            "(nn.LeakyReLU).",
            figure=figure,
        )
    if saturating:
        worst = max(saturating, key=lambda u: u.flat)
        record.defect(
            f"{worst.flat:.0%} of the {worst.function} outputs after {_place(worst)} are "
            f"saturated at {n:,} training samples{part}: their slope is below a hundredth of its "
            "largest value, and gradients are multiplied by it.",
            number=flat_there,
            usual=usual_flat,
            action="Scale the inputs to mean 0 and variance 1 and the weights to variance 1/fan-in "
            "(nn.init.xavier_normal_), so that what the activation gets is of order 1.",
            figure=figure,
        )
    total = sum(u.units for u in found)
    count = sum(int(u.silent.sum()) for u in found)
    if count:
        record.headline(
            f"{count} of {total} hidden units pass no gradient at any of {n:,}"
            f"{f' of {samples.population:,}' if part else ''} training samples."
        )
    if dead or saturating:
        return
    if silent_there is not None and silent_there.low >= MUCH_SILENT:
        record.look(
            f"In one layer {share_words(silent_there)} of the units are active at fewer than "
            f"{SELDOM:.0%} of the samples{part}: they learn from these alone.",
            number=silent_there,
            usual=least,
            action="Where such units are not wanted, use a smaller learning rate or an activation "
            "without a flat side (nn.LeakyReLU); the layer may also be narrower.",
            figure=figure,
        )
    elif silent_there is not None:
        record.fine(
            f"Gradients reach the weights of the hidden units: of {total}, {share_words(silent)} "
            f"are active at fewer than {SELDOM:.0%} of the samples{part}.",
            number=silent_there,
            usual=least,
            figure=figure,
        )
    if flat_there is not None:
        record.fine(
            f"Gradients pass the saturating activations: in the layer with most flat slopes they "
            f"are {share_words(flat_there)} of all{part}.",
            number=flat_there,
            usual=usual_flat,
            figure=figure,
        )


def _largest_of(
    record: FindingRecord, name: str, label: str, shares: list[Interval], samples: Samples
) -> Quantity:
    """The largest of several shares, whose ranges hold at once."""
    return record.quantity(
        name,
        label,
        max(s.estimate for s in shares),
        low=max(s.low for s in shares),
        high=max(s.high for s in shares),
        basis=f"{record.confidence:.4g} {shares[0].test}, all layers at once",
        samples=samples,
    )


def _place(found: WatchedUnits) -> str:
    return f"layer {found.layer}" if found.layer else "the input"


def _plot_units(ax: Any, found: list[WatchedUnits]) -> None:
    where = range(len(found))
    parts = (
        ("silent", [u.silent_share for u in found], COLORS[1]),
        ("linear", [u.linear_share for u in found], COLORS[0]),
        ("flat slopes", [u.flat for u in found], COLORS[2]),
    )
    for label, shares, color in parts:
        ax.plot(where, shares, "o-", color=color, label=label, markersize=4)
    labels = [label_text(u.layer or "input") for u in found]
    every = max(1, len(found) // 12)
    ax.set_xticks(list(where)[::every], labels[::every], rotation=45, ha="right")
    ax.set(ylim=(-0.04, 1.04), ylabel="share", xlabel="activation after layer")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
