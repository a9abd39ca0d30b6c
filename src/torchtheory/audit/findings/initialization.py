"""A finding about fresh weights: do gradients survive the depth, and what would let them."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import grouped, mean_range, part_of
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.core.errors import NonFinite, TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.initial_scale import (
    InitializationReport,
    fresh_growths,
    initialization_report,
)
from torchtheory.report.numbers import size_words

#: Samples; draws of fresh weights a factor is found with, and others it is tried on.
SAMPLES, DRAWS, TRIED = 128, 4, 8

#: Passes for each sample and draw while the factor is sought, and at one that it is tried on.
SEARCH, PASSES = 45, 3

#: Groups of samples that tell how much the growth depends on them, each at least so large: batch
#: normalization takes its statistics from a group.
GROUPS, LEAST = 8, 8

#: Growth a layer, as a logarithm, that counts as none.
EVEN = 0.05

#: Growth per layer that a larger scale adds, over the logarithm of the scale: 1 for a plain chain,
#: 0 behind normalization. Below this no scale can be told.
SLOPE = 0.1

#: A gradient that changes more than e to this on its way is lost.
DEPTH_SCALES = 6.0

KEPT = (
    r"\bigl|\mathbb E\tfrac1{L-1}"
    r"\log(\|\partial\ell/\partial z_1\|/\|\partial\ell/\partial z_L\|)\bigr| \le 0.05"
)


@finding(
    "initialization",
    area="signals",
    title="Gradients by depth at fresh weights, and the scale that keeps their length",
    cost="gradient",
    covers=["L-159"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def initialization(problem: Problem, record: FindingRecord) -> None:
    """The layers drawn anew by their own rules, and with all deviations times a common factor."""
    count = min(SAMPLES, problem.affordable(SEARCH * DRAWS + PASSES * (DRAWS + 10 * TRIED)))
    samples = problem.train.some(count, record.generator)
    if len(samples) < min(2 * LEAST, samples.population):
        record.not_done(
            "L-159", KEPT, f"not measured: there was time for fewer than {2 * LEAST} samples"
        )
        return
    try:
        found = initialization_report(problem, samples, draws=DRAWS)
    except NonFinite:
        raise
    except TorchTheoryError as error:
        record.not_applicable("L-159", KEPT, str(error))
        return
    for note in found.notes:
        record.note(note)
    record.table(
        "scales",
        ("layer", "fan-in", "deviation", "gradient", "predicted", "now", "advised", "then"),
        [
            (r.layer, r.fan_in, r.deviation, r.fresh, r.predicted, r.now, r.advised, r.repaired)
            for r in found.layers
        ],
        caption="Fresh weights: their standard deviation and the length of the gradient in the "
        "layer's outputs, measured and predicted from the weights alone; the same at the weights "
        "now; the deviation that would keep the length over depth, and the gradient then"
        f"{part_of(samples)}.",
    )
    _growth_now(problem, record, samples)
    if found.factor is None:
        record.not_applicable(
            "L-159", KEPT, "no scale of the weights was found that keeps it", samples=samples
        )
    else:
        _try(problem, record, samples, found.factor)
    _advise(record, found, samples)
    record.figure(
        "scales",
        lambda ax: _plot(ax, found),
        caption="Length of the gradient in every layer's outputs, in order of use.",
        size=(5.2, 3.0),
    )


def _growth(
    problem: Problem, record: FindingRecord, samples: Samples, factor: float
) -> Interval | None:
    """The mean growth over all draws and all samples; None where weights cannot be drawn anew."""

    def growths(chosen: Samples) -> list[float]:
        return fresh_growths(problem, chosen, factor=factor, draws=TRIED, seed=DRAWS)

    seen = growths(samples)
    if len(seen) < TRIED:
        return None
    draws = mean_range(torch.tensor(seen, dtype=torch.float64), TRIED, math.inf, record.confidence)
    down, up = draws.estimate - draws.low, draws.high - draws.estimate
    groups = min(GROUPS, len(samples) // LEAST)
    if len(samples) < samples.population:
        parts, _ = grouped(samples, record.generator, groups)
        means = torch.tensor(
            [math.fsum(growths(part)) / TRIED for part in parts], dtype=torch.float64
        )
        there = mean_range(means, len(samples), samples.population, record.confidence)
        down = math.hypot(down, there.estimate - there.low)
        up = math.hypot(up, there.high - there.estimate)
    value = draws.estimate
    return Interval(value, value - down, value + up, record.confidence, len(samples), "")


def _basis(samples: Samples) -> str:
    drawn = f"{TRIED} draws of fresh weights"
    if len(samples) >= samples.population:
        return drawn
    return f"{drawn}, {len(samples):,} of {samples.population:,} samples"


def _growth_now(problem: Problem, record: FindingRecord, samples: Samples) -> None:
    found = _growth(problem, record, samples, 1.0)
    if found is None:
        record.note("Not measured: the layers cannot be drawn anew, so no error is known.")
        return
    record.quantity(
        "fresh-gradient-factor", "factor of gradients per layer, fresh weights",
        math.exp(found.estimate), low=math.exp(found.low), high=math.exp(found.high),
        basis=_basis(samples), unit="per layer", samples=samples,
    )  # fmt: skip


def _advised(problem: Problem, record: FindingRecord, samples: Samples, factor: float) -> None:
    """The factor, and how far the uncertainty of the growth moves it."""
    here = _growth(problem, record, samples, factor)
    apart = 1.2
    sides = [_growth(problem, record, samples, f) for f in (factor / apart, factor * apart)]
    if here is None or sides[0] is None or sides[1] is None:
        return
    slope = (sides[1].estimate - sides[0].estimate) / (2 * math.log(apart))
    if not slope > SLOPE:
        record.note(
            "Not measured: a scale that keeps gradients. Their growth hardly depends on the scale "
            "here."
        )
        return
    # the growth at the factor is 0 up to chance; the truth lies where it is 0 without
    ends = [factor * math.exp(-end / slope) for end in (here.high, here.low)]
    record.quantity(
        "advised-scale", "deviation that keeps gradients, over that of the layers", factor,
        low=min(factor, *ends), high=max(factor, *ends), basis=_basis(samples), samples=samples,
    )  # fmt: skip


def _try(problem: Problem, record: FindingRecord, samples: Samples, factor: float) -> None:
    """The factor at draws it was not found with, and the layers' own deviations at the same."""
    _advised(problem, record, samples, factor)

    def growths(scale: float, draws: int, seed: int) -> list[float]:
        return fresh_growths(problem, samples, factor=scale, draws=draws, seed=seed)

    def beyond_chance(scale: float) -> float:
        new = mean_interval(growths(scale, TRIED, DRAWS), record.confidence)
        chance = math.hypot(new.high - new.estimate, found.high - found.estimate)
        return max(0.0, abs(new.estimate) - chance)

    sought = growths(factor, DRAWS, 0)
    if len(sought) < DRAWS:
        record.not_applicable(
            "L-159", KEPT, "the layers cannot be drawn anew, so the advised scale cannot be tried"
        )
        return
    # a factor found with few draws is as uncertain as they differ
    found = mean_interval(sought, record.confidence)
    own = beyond_chance(1.0)
    says = record.states("L-159", KEPT)
    says.at_most(
        beyond_chance(factor),
        EVEN,
        where=f"growth of gradients per layer with all weights times the advised factor, at "
        f"{TRIED} draws it was not found with, beyond what the spread of draws explains",
    )
    if own > EVEN:
        says.fails("the layers' own deviations", own)


def _advise(record: FindingRecord, found: InitializationReport, samples: Samples) -> None:
    """Only where gradients are lost on their way, wherever in their ranges the numbers lie."""
    numbers = {q.name: q for q in record.quantities}
    each, by = numbers.get("fresh-gradient-factor"), numbers.get("advised-scale")
    if each is None or by is None:
        return
    depth = len(found.layers)
    vanish = each.high < math.exp(-DEPTH_SCALES / max(1, depth - 1))
    if not vanish and not each.low > math.exp(DEPTH_SCALES / max(1, depth - 1)):
        return
    record.advise(
        f"At fresh weights gradients {'vanish' if vanish else 'explode'} over the {depth} layers "
        f"(factor {size_words(each)} per layer{part_of(samples)}): multiply the initial weights by "
        f"{size_words(by)}, which keeps them."
    )


def _plot(ax: Any, found: InitializationReport) -> None:
    where = range(1, len(found.layers) + 1)
    rows = found.layers
    ax.semilogy(where, [r.fresh for r in rows], "o-", color=COLORS[0], label="fresh weights")
    ax.semilogy(where, [r.now for r in rows], "s-", color=COLORS[1], label="now")
    if all(r.repaired is not None for r in rows):
        ax.semilogy(where, [r.repaired for r in rows], "^-", color=COLORS[2], label="advised")
    if all(r.predicted is not None for r in rows):
        ax.semilogy(where, [r.predicted for r in rows], "--", color="0.4", label="predicted")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="layer", ylabel="length of the gradient")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
