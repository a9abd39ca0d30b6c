"""How signals travel: activations and gradients, layer by layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import grouped, jackknife_range, part_of
from torchtheory.audit.findings.hypotheses import deterministic, differentiable, has_parameters
from torchtheory.core.errors import TorchTheoryError, UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above as more_than
from torchtheory.core.usual import between
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import size_words
from torchtheory.tracing.watching import LayerSignal, watch_signals

#: Samples looked at, and groups of them whose spread gives the range of a number.
SAMPLES, GROUPS = 4096, 16

#: A signal of depth L survives while L is at most six times the depth over which it falls by e
#: (Schoenholz, Gilmer, Ganguli and Sohl-Dickstein, 2017): e to the sixth, some 400-fold.
DEPTH_SCALES = 6.0

#: Where no sample of a part of them has a gradient at the first layer, so many of all might.
SELDOM = 0.05

#: What a ratio of sizes at the two ends of a network usually is.
USUAL_RATIO = between(
    math.exp(-DEPTH_SCALES),
    math.exp(DEPTH_SCALES),
    f"between {math.exp(-DEPTH_SCALES):.2g} and {math.exp(DEPTH_SCALES):.0f}",
)


@finding(
    "gradients-by-depth",
    area="signals",
    title="How activations and gradients grow or shrink with depth",
    cost="gradient",
    covers=["A-130"],
    needs=[has_parameters, deterministic, differentiable],
)
def gradients_by_depth(problem: Problem, record: FindingRecord) -> None:
    """Root mean square of every layer's output, and the length of the loss's gradient in it.

    A product of factors grows or shrinks exponentially with depth unless they are near 1.
    """
    samples = problem.train.some(min(SAMPLES, problem.affordable(8)), record.generator)
    parts, shares = grouped(samples, record.generator, GROUPS)
    watched = _in_parts(problem, parts, problem.parameters)
    now = _together(watched, shares)
    statement = r"\|\partial L/\partial z_1\| \approx \lambda^{L-1} \|\partial L/\partial z_L\|"
    if len(now) < 2:
        record.not_applicable("A-130", statement, "fewer than two layers have a weight matrix")
        return
    before = None if problem.initial is None else _at(problem, problem.initial, parts)
    started = None if before is None else _together(before, shares)
    _tabulate_signals(problem, record, now, started)
    backward = _ratio(now[0].backward, now[-1].backward)
    if math.isnan(backward):
        record.not_applicable(
            "A-130", statement, "the gradient at the last layer is 0", samples=samples
        )
        return
    depth, part = len(now), part_of(samples)
    size = _ratio_range(watched, shares, samples, record, "backward", 0, -1)
    ratio = record.quantity(
        "gradient-ratio", "gradient at the first layer over that at the last", size, samples=samples
    )
    record.quantity(
        "gradient-factor",
        "factor per layer, λ",
        replace(
            size,
            estimate=_root(size.estimate, depth),
            low=_root(size.low, depth),
            high=_root(size.high, depth),
        ),
        unit="per layer",
        samples=samples,
    )
    forward = record.quantity(
        "activation-ratio",
        "activations of the last layer over the first",
        _ratio_range(watched, shares, samples, record, "forward", -1, 0),
        samples=samples,
    )
    record.figure(
        "depth",
        lambda axes: _plot_depth(axes, now, started),
        caption="Layers in order of use. Left: root mean square of the outputs. Right: length of "
        "the gradient of a sample's loss in them.",
        grid=(1, 2),
        size=(8, 2.8),
    )
    bad = _assess_depth(record, ratio, forward, depth, samples)
    if before is not None:
        bad |= _assess_start(problem, record, before, shares, samples)
    if not bad and backward > 0 and not _within(ratio):
        record.not_done(
            "A-130",
            statement,
            f"{len(samples):,} of {samples.population:,} samples do not tell how gradients change "
            "with depth; give a larger budget",
        )
        return
    sentence = _in_words(ratio, depth, part)
    record.headline(sentence)
    if not bad and backward > 0:
        record.fine(sentence, number=ratio, usual=USUAL_RATIO, figure="depth")


def _in_parts(problem: Problem, parts: list[Samples], point: Parameters) -> list[list[LayerSignal]]:
    """The signals at every group of samples."""
    watched = [watch_signals(problem, part, point) for part in parts]
    if any([s.layer for s in one] != [s.layer for s in watched[0]] for one in watched):
        raise UnsupportedModel(
            "the model does not apply the same layers in the same order to every batch, so no "
            "layer has a size of its own"
        )
    return watched


def _together(watched: list[list[LayerSignal]], shares: Tensor) -> list[LayerSignal]:
    """Root mean squares over all groups, of those of each."""

    def size(name: str, k: int) -> float:
        return float((shares * _squares(watched, name, k)).sum().sqrt())

    return [
        LayerSignal(s.layer, size("forward", k), size("backward", k))
        for k, s in enumerate(watched[0])
    ]


def _squares(watched: list[list[LayerSignal]], name: str, layer: int) -> Tensor:
    return torch.tensor([getattr(part[layer], name) for part in watched]).double().square()


def _ratio_range(
    watched: list[list[LayerSignal]],
    shares: Tensor,
    samples: Samples,
    record: FindingRecord,
    name: str,
    above: int,
    below: int,
) -> Interval:
    """A ratio of two sizes, with the jackknife's range of its logarithm."""
    one, other = (shares * _squares(watched, name, k) for k in (above, below))
    value = float((one.sum() / other.sum()).sqrt())
    n, population = len(samples), samples.population
    if n >= population:
        return Interval(value, value, value, record.confidence, n, "all samples")
    if value == 0 or not value < math.inf:  # the same at every sample looked at
        return Interval(value, 0.0, math.inf, record.confidence, n, "no bound is known")
    # a group left out may be the only one with a gradient: then nothing is known
    without = ((one.sum() - one) / (other.sum() - other)).clamp_min(1e-300).sqrt().log()
    if not bool(torch.isfinite(without).all()):
        return Interval(value, 0.0, math.inf, record.confidence, n, "no bound is known")
    made = jackknife_range(math.log(value), without, n, population, record.confidence)
    low, high = (math.exp(min(700.0, end)) for end in (made.low, made.high))
    return replace(made, estimate=value, low=low, high=high)


def _assess_start(
    problem: Problem,
    record: FindingRecord,
    watched: list[list[LayerSignal]],
    shares: Tensor,
    samples: Samples,
) -> bool:
    """Whether signals did not survive at the weights training began with."""
    started = _together(watched, shares)
    before = _ratio(started[0].backward, started[-1].backward)
    if math.isnan(before):
        return False
    asleep = _layers_of_zeros(problem.initial or {})
    if before == 0 and asleep:  # on purpose: it has a gradient, and others after its first step
        record.note(f"Layer {asleep[0]} began with weights of 0, which let no gradient pass.")
        return False
    back = record.quantity(
        "gradient-ratio-at-start",
        "gradient at the first layer over that at the last, at the initial weights",
        _ratio_range(watched, shares, samples, record, "backward", 0, -1),
        samples=samples,
    )
    ahead = record.quantity(
        "activation-ratio-at-start",
        "activations of the last layer over the first, at the initial weights",
        _ratio_range(watched, shares, samples, record, "forward", -1, 0),
        samples=samples,
    )
    gradients = _lost(back.low, back.high, "gradients")
    problems = gradients + _lost(ahead.low, ahead.high, "activations")
    if not problems:
        return False
    depth = len(started)
    record.defect(
        f"Signals did not survive the {depth} layers at the weights training began with"
        f"{part_of(samples)}: {' and '.join(problems)}.",
        number=back if gradients else ahead,
        usual=USUAL_RATIO,
        action=_remedy(before, depth),
        figure="depth",
    )
    return True


def _at(
    problem: Problem, point: Parameters, parts: list[Samples]
) -> list[list[LayerSignal]] | None:
    try:
        return _in_parts(problem, parts, {**problem.parameters, **point})
    except TorchTheoryError:
        return None


def _layers_of_zeros(point: Parameters) -> list[str]:
    return [k.rpartition(".")[0] for k, p in point.items() if p.ndim > 1 and not bool(p.any())]


def _tabulate_signals(
    problem: Problem,
    record: FindingRecord,
    now: list[LayerSignal],
    started: list[LayerSignal] | None,
) -> None:
    rows = []
    for k, s in enumerate(now):
        weight = problem.parameters.get(f"{s.layer}.weight")
        gain = None
        if weight is not None and weight.ndim > 1:
            gain = float(weight.double().square().mean()) * math.prod(weight.shape[1:])
        before = None if started is None or len(started) != len(now) else started[k].backward
        rows.append((s.layer, s.forward, s.backward, before, gain))
    record.table(
        "signals",
        ("layer", "outputs", "gradient", "gradient at the start", "fan-in × mean square weight"),
        rows,
        caption="Outputs: root mean square over units; gradient: its length per sample. For "
        "independent weights, ReLU layers keep the size of a signal where the last column is 2, "
        "and tanh layers where it is 1.",
    )


def _assess_depth(
    record: FindingRecord, backward: Quantity, forward: Quantity, depth: int, samples: Samples
) -> bool:
    """Whether signals do not survive, wherever in their ranges the true sizes lie."""
    part = part_of(samples)
    gradients = _lost(backward.low, backward.high, "gradients")
    number, usual = backward if gradients else forward, USUAL_RATIO
    if backward.value == 0 and not gradients:
        number = record.quantity(
            "samples-with-a-gradient",
            "share of samples with a gradient at the first layer",
            clopper_pearson(0, len(samples), record.confidence),
            samples=samples,
        )
        usual = more_than(SELDOM)
        if number.high <= SELDOM:
            gradients = ["at none of these samples a gradient reaches the first layer"]
    problems = gradients + _lost(forward.low, forward.high, "activations")
    if not problems:
        return False
    if not gradients:
        number, usual = forward, USUAL_RATIO
    record.defect(
        f"Signals do not survive the {depth} layers{part}: {' and '.join(problems)}.",
        number=number,
        usual=usual,
        action=_remedy(backward.value, depth),
        figure="depth",
    )
    return True


def _within(ratio: Quantity) -> bool:
    """Whether all of its range is usual; that of a few samples reaches anywhere."""
    usual = math.exp(DEPTH_SCALES)
    return not ratio.sampled or 1 / usual <= ratio.low <= ratio.high <= usual


def _lost(low: float, high: float, what: str) -> list[str]:
    """What is wrong with a ratio that lies between two numbers, in words; empty if nothing."""
    if what == "gradients" and low == high == 0:
        return ["no gradient reaches the first layer"]
    grown = low > math.exp(DEPTH_SCALES)
    if not grown and not 0 < high < math.exp(-DEPTH_SCALES):
        return []
    fold = f"{low:.2g}-fold or more" if grown else f"{1 / high:.2g}-fold or more"
    if low == high:
        fold = fold.removesuffix(" or more")
    if what == "gradients":
        word = "explode" if grown else "vanish"
        return [f"gradients {word} ({fold} on the way back to the first layer)"]
    word = "grow" if grown else "shrink"
    return [f"activations {word} {fold} from the first layer to the last"]


def _remedy(ratio: float, depth: int) -> str:
    return (
        f"Over {depth} layers the factor per layer must be near 1, and it is "
        f"{_root(ratio, depth):.2g}: draw the weights with variance 2/fan-in before ReLU "
        "(nn.init.kaiming_normal_) or 1/fan-in before tanh (nn.init.xavier_normal_), or add "
        "normalization or skip connections."
    )


def _in_words(ratio: Quantity, depth: int, part: str) -> str:
    if ratio.value == 0:
        return f"No gradient was seen at the first of {depth} layers{part}."
    if ratio.low >= 0.5 and ratio.high <= 2:
        return (
            f"Gradients keep their size over the {depth} layers (factor {size_words(ratio)}){part}."
        )
    word = "grow" if ratio.low > 1 else "shrink" if ratio.high < 1 else "change"
    return (
        f"Gradients {word} from the last to the first of {depth} layers, by a factor of "
        f"{size_words(ratio)}{part}."
    )


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan


def _root(ratio: float, depth: int) -> float:
    return float(ratio ** (1 / (depth - 1)))


def _plot_depth(axes: Any, now: list[LayerSignal], started: list[LayerSignal] | None) -> None:
    for ax, name in zip(axes.flat, ("forward", "backward"), strict=True):
        for label, signals, color in (
            ("at the start", started, COLORS[1]),
            ("now", now, COLORS[0]),
        ):
            if signals is not None:
                values = [max(getattr(s, name), 1e-300) for s in signals]
                ax.semilogy(range(1, len(values) + 1), values, "o-", color=color, label=label)
        ax.set(xlabel="layer", ylabel="output" if name == "forward" else "gradient")
        if len(now) <= 12:
            ax.set_xticks(range(1, len(now) + 1))
    if started is not None:
        axes.flat[0].legend()
