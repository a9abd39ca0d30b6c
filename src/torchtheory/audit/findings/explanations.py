"""Findings about reasons: what a network looks at, and whether explanations can be trusted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    differentiable,
    floating_inputs,
    has_parameters,
    one_label_per_sample,
)
from torchtheory.audit.findings.input_units import no_noise
from torchtheory.core.errors import EmptyData, UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, largest_mean_interval
from torchtheory.core.usual import below
from torchtheory.explanation.by_feature import (
    Method,
    agreement,
    feature_totals,
    sample_mean,
)
from torchtheory.explanation.composites import Composite, DoubtfulRules, first_layer
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.judging.clever_hans import (
    AREA,
    CONVERTED,
    CleverHans,
    Place,
    clever_hans,
)
from torchtheory.explanation.judging.sanity import LIMIT, RandomizationCheck, randomization_check
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import gradient_times_input, integrated_gradients
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.rules import Epsilon, Gamma
from torchtheory.explanation.score import Inputs, Target
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.numbers import share_words, size_words

#: Samples that are explained, at most and at least.
MOST, LEAST = 256, 8

#: Points of integrated gradients, whose passes cost about three forward passes each.
STEPS = 8

#: Training samples whose mean inputs are compared with, at most.
MEAN_OF = 4096

#: Classes shown as images, and features shown as bars.
CLASSES, BARS = 5, 12

#: Rules of relevance propagation; with epsilon alone it would be gradient times input again, and
#: gamma is for layers whose inputs are not negative.
RULES = Composite(((first_layer, Epsilon(1e-6)),), Gamma(0.25))

#: Samples for agreement and randomization, draws of the weights, and features taken away at most.
COMPARED, DRAWS, TAKEN = 64, 3, 64


def one_score(problem: Problem) -> str | None:
    """One number per sample that can be explained: a class's logit, or a single real output."""
    if reason := one_label_per_sample(problem):
        return reason
    if isinstance(problem.function.output, tuple):
        return "the model has several outputs side by side, and this is about one"
    if problem.is_classification:
        return None
    width = problem.outputs(problem.train.first(1)).reshape(1, -1).shape[1]
    return None if width == 1 else f"the model has {width} real outputs, and this is about one"


def meant(problem: Problem) -> int | str | None:
    """Which of several outputs is explained."""
    which = problem.function.output
    assert not isinstance(which, tuple)  # `one_score` refuses several
    return which


def chosen(problem: Problem, record: FindingRecord, most: int) -> tuple[str, Samples]:
    """At most so many samples, of the test data if there is any."""
    name, source = ("train", problem.train) if problem.test is None else ("test", problem.test)
    return name, source.some(most, record.generator)


def part_of(name: str, samples: Samples) -> str:
    """How many samples were used; empty for all of them."""
    used, every = len(samples), samples.population
    return f" (from {used:,} of {every:,} {name} samples)" if used < every else ""


def usual_inputs(problem: Problem) -> Tensor:
    return problem.train.x[:MEAN_OF].mean(0)


# --------------------------------------------------------------------------- what it looks at


COMPLETE = r"\sum_iR_i=f(x)-f(\bar x)"


@finding(
    "what-it-looks-at",
    area="data",
    title="What the network looks at",
    cost="gradient",
    covers=["C-15"],
    needs=[one_score, deterministic, no_noise, floating_inputs, differentiable],
)
def what_it_looks_at(problem: Problem, record: FindingRecord) -> None:
    """How relevance is divided among features, by integrated gradients from the mean input."""
    name, samples = chosen(problem, record, min(MOST, problem.affordable(3 * STEPS + 4)))
    if len(samples) < min(LEAST, samples.population):
        record.not_done("C-15", COMPLETE, f"there was no time for {LEAST} samples")
        return
    made = integrated_gradients(
        problem.model,
        samples.x,
        baseline=usual_inputs(problem),
        steps=STEPS,
        output=meant(problem),
    )
    shares, known = _shares(feature_totals(made.relevance).double().cpu())
    if not len(shares):
        reason = "the output is the same as for the mean input, so no input matters"
        record.not_applicable("C-15", COMPLETE, reason, samples=samples)
        record.headline(f"{reason[0].upper()}{reason[1:]}{part_of(name, samples)}.")
        return
    count = shares.shape[1]
    half = _needed_for_half(shares)
    few = record.quantity(
        "features-for-half",
        "share of the features that hold half of the relevance of a sample, on average",
        _share(sample_mean(half / count, record.confidence)),
        samples=samples,
    )
    most = record.quantity(
        "largest-share",
        "share of the relevance that the feature with most of it has, on average",
        _largest_mean(shares, record.confidence),
        samples=samples,
    )
    shape = samples.x.shape[1:]
    if len(shape) == 3:
        labels = made.classes if made.classes is not None else torch.zeros(len(samples)).long()
        maps = _mean_maps(shares, labels.cpu()[known], tuple(shape[1:]))
        record.figure(
            "relevance",
            lambda axes: _plot_maps(axes, maps),
            caption="Where relevance lies, on average over samples: all of them, and those of each "
            "predicted class; brighter is more.",
            grid=(1, len(maps)),
            size=(1.9 * len(maps), 2.2),
        )
        where = f"on {share_words(few)} of its pixels"
    else:
        # those that are shown were chosen by the same samples
        together = 1 - (1 - record.confidence) / count
        top = shares.mean(0).argsort(descending=True)[:BARS]
        bars = [
            (_named(int(k), tuple(shape)), _share(sample_mean(shares[:, k], together)))
            for k in top.tolist()
        ]
        record.figure(
            "relevance",
            lambda ax: _plot_bars(ax, bars),
            caption="Share of the relevance that features have, on average over samples, with "
            f"{100 * record.confidence:.4g}% ranges that hold together; those with most of it.",
            size=(5, 0.25 * len(bars) + 0.8),
        )
        where = (
            f"on {share_words(few)} of its features, with the largest share ({share_words(most)}) "
            f"on {bars[0][0]}"
        )
    record.headline(
        f"Half of what moves the output of a sample away from that of the mean input lies, on "
        f"average, {where}{part_of(name, samples)}."
    )


def _shares(total: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes of relevance that add up to 1, of samples that have any, and which these are."""
    size = total.abs()
    known = size.sum(1) > 0
    return size[known] / size[known].sum(1, keepdim=True), known


def _needed_for_half(shares: Tensor) -> Tensor:
    """How many features hold half of it, sample by sample."""
    falling = shares.sort(1, descending=True).values.cumsum(1)
    return (falling < 0.5).sum(1).double() + 1


def _largest_mean(shares: Tensor, confidence: float) -> Interval:
    """The largest of the features' mean shares; one sample says nothing about its error."""
    if len(shares) == 1:
        return _share(sample_mean(shares.amax(1), confidence))
    return _share(largest_mean_interval(shares, confidence))


def _share(interval: Interval) -> Interval:
    """A range within what a share can be at all."""
    low, high = max(0.0, interval.low), max(interval.estimate, min(1.0, interval.high))
    return replace(interval, low=low, high=high)


def _named(place: int, shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"feature {place}"
    entry = []
    for size in reversed(shape):
        place, own = divmod(place, size)
        entry.append(own)
    return "entry " + ", ".join(str(k) for k in reversed(entry))


def _mean_maps(shares: Tensor, labels: Tensor, shape: tuple[int, ...]) -> list[tuple[str, Tensor]]:
    maps = [("all samples", shares.mean(0).reshape(shape))]
    values, counts = torch.unique(labels, return_counts=True)
    if len(values) > 1:
        for k in counts.argsort(descending=True)[: CLASSES - 1].tolist():
            own = shares[labels == values[k]]
            maps.append((f"class {int(values[k])}", own.mean(0).reshape(shape)))
    return maps


def _plot_maps(axes: Any, maps: list[tuple[str, Tensor]]) -> None:
    cells = axes.flat if hasattr(axes, "flat") else [axes]
    for ax, (title, heat) in zip(cells, maps, strict=True):
        ax.imshow(heat.numpy(), cmap="magma", vmin=0)
        ax.set_title(title, fontsize=8)
        ax.set_axis_off()


def _plot_bars(ax: Any, bars: list[tuple[str, Interval]]) -> None:
    names = [name for name, _ in bars][::-1]
    found = [share for _, share in bars][::-1]
    middle = [s.estimate for s in found]
    reach = [[s.estimate - s.low for s in found], [s.high - s.estimate for s in found]]
    ax.barh(names, middle, xerr=reach, color=COLORS[0], ecolor="0.3")
    ax.set(xlabel="share of the relevance", xlim=(0, None))
    ax.set_axisbelow(True)


# ------------------------------------------------------------------------------- Clever Hans

PLANTED = (
    rf"P(\text{{a sample of another class becomes }}c\text{{ by a place of }}\le{AREA:.3g}"
    r"\text{ of its features})\le\tfrac12"
)


@finding(
    "clever-hans",
    area="generalization",
    title="Classes that hang on one small place",
    cost="gradient",
    covers=["C-02"],
    needs=[classification, one_score, deterministic, no_noise, floating_inputs, differentiable],
)
def hangs_on_a_place(problem: Problem, record: FindingRecord) -> None:
    """Places with most relevance, planted on samples of other classes."""
    features = feature_totals(problem.train.x[:1]).shape[1]
    if features * AREA < 1:
        record.not_applicable(
            "C-02",
            PLANTED,
            f"samples have {features} features, and one of them is more than a small place",
        )
        return
    classes = problem.classes or 2
    passes = 3 * STEPS + 4 + 3 * classes
    name, samples = chosen(problem, record, min(4 * MOST, problem.affordable(passes)))
    y = samples.y.reshape(len(samples)).long()
    mean = usual_inputs(problem)
    try:
        found = clever_hans(
            problem.model,
            samples.x,
            y,
            method=partial(
                integrated_gradients,
                baseline=mean,
                steps=STEPS,
                output=meant(problem),
            ),
            output=meant(problem),
            level=problem.decision_level if problem.task == "binary" else 0.0,
            confidence=record.confidence,
            generator=record.generator,
        )
    except EmptyData as error:
        record.not_applicable("C-02", PLANTED, str(error), samples=samples)
        return
    _say_places(record, name, samples, found)


def _say_places(record: FindingRecord, name: str, samples: Samples, found: CleverHans) -> None:
    places = sorted(found.places, key=lambda p: -p.planted.estimate)
    # one that converts most for certain comes before one that may convert more
    worst = max(places, key=lambda p: (p.planted.low > CONVERTED, p.planted.estimate))
    largest = Interval(
        places[0].planted.estimate,
        max(p.planted.low for p in places),
        max(p.planted.high for p in places),
        record.confidence,
        worst.planted.trials,
        "Clopper-Pearson over all classes",
    )
    number = record.quantity(
        "converted",
        "share of other classes' samples that a class's most relevant place converts",
        largest,
        samples=samples,
    )
    says = record.states("C-02", PLANTED)
    says.at_most(
        largest,
        CONVERTED,
        where=f"the class of which it is largest, {worst.label}; {len(samples):,} {name} samples",
    )
    record.table(
        "places",
        ("class", "converts", "share of relevance", "share of features", "recognized", "without"),
        [
            (p.label, p.planted.estimate, p.share.estimate, p.area, p.accuracy.estimate,
             p.without.estimate)
            for p in places[:20]
        ],
        caption="The place with most relevance of each class: how many samples of other classes it "
        "converts, and how often the class is recognized with and without it.",
    )  # fmt: skip
    images = len(worst.mask.shape) == 2
    record.figure(
        "places",
        (lambda axes: _plot_places(axes, found, places[:CLASSES]))
        if images
        else (lambda ax: _plot_converted(ax, places[:BARS])),
        caption="Mean relevance of classes, the place that holds most of it, and the share of "
        "samples of other classes that it converts."
        if images
        else "Share of samples of other classes that one feature of a class converts to it, with "
        "ranges that hold together.",
        grid=(1, len(places[:CLASSES])) if images else (1, 1),
        size=(1.9 * len(places[:CLASSES]), 2.4) if images else (5, 0.3 * len(places[:BARS]) + 0.8),
    )
    sentence = (
        f"{share_words(worst.planted)} of the samples of other classes are called class "
        f"{worst.label} once they get {_where(worst)} of samples of that class"
        f"{part_of(name, samples)}"
    )
    usual = below(CONVERTED, f"below {CONVERTED:.0%}")
    if largest.low > CONVERTED:
        record.look(
            f"{sentence[0].upper()}{sentence[1:]}: the class hangs on this place more than on "
            "anything else.",
            number=number,
            usual=usual,
            action="Look whether a tag, a frame or a leaked feature stands there, and whether new "
            "data will have it; if not, remove it and train again.",
            figure="places",
        )
    elif largest.high <= CONVERTED:
        record.fine(
            f"The small places that hold most relevance make a class of few other samples: where "
            f"they do most, {sentence}.",
            number=number,
            usual=usual,
            figure="places",
        )
    else:
        record.open(number, usual, figure="places")
    record.headline(f"{sentence[0].upper()}{sentence[1:]}.")


def _where(place: Place) -> str:
    """The place in words."""
    if len(place.mask.shape) != 2:
        return _named(int(place.mask.flatten().nonzero()[0]), tuple(place.mask.shape))
    rows, columns = place.mask.nonzero(as_tuple=True)
    height, width = (int(t.max() - t.min()) + 1 for t in (rows, columns))
    return f"the {height} × {width} pixels at row {int(rows[0])}, column {int(columns[0])}"


def _plot_places(axes: Any, found: CleverHans, places: list[Place]) -> None:
    cells = axes.flat if hasattr(axes, "flat") else [axes]
    for ax, place in zip(cells, places, strict=True):
        members = torch.cat([c.members for c in found.clusters if c.label == place.label])
        ax.imshow(found.heatmaps[members].mean(0).numpy(), cmap="magma", vmin=0)
        rows, columns = place.mask.nonzero(as_tuple=True)
        top, bottom = float(rows.min()) - 0.5, float(rows.max()) + 0.5
        left, right = float(columns.min()) - 0.5, float(columns.max()) + 0.5
        ax.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color=COLORS[5])
        ax.set_title(f"class {place.label}: {place.planted.estimate:.0%}", fontsize=8)
        ax.set_axis_off()


def _plot_converted(ax: Any, places: list[Place]) -> None:
    names = [f"class {p.label}: {_where(p)}" for p in places][::-1]
    found = [p.planted for p in places][::-1]
    reach = [[s.estimate - s.low for s in found], [s.high - s.estimate for s in found]]
    ax.barh(names, [s.estimate for s in found], xerr=reach, color=COLORS[0], ecolor="0.3")
    ax.axvline(CONVERTED, color="0.4", linestyle="--")
    ax.set(xlabel="converted", xlim=(0, 1))
    ax.set_axisbelow(True)


# ------------------------------------------------------------- whether explanations can be trusted

RANDOMIZED = r"\text{rank correlation of explanations with weights drawn anew}\le\sqrt{\tfrac12}"


@finding(
    "explanation-sanity",
    area="signals",
    title="Whether explanations of the network can be trusted",
    cost="gradient",
    covers=["C-19"],
    needs=[one_score, has_parameters, deterministic, no_noise, floating_inputs, differentiable],
)
def explanation_sanity(problem: Problem, record: FindingRecord) -> None:
    """Explanations before and after weights are drawn anew, and their agreement with removal."""
    features = feature_totals(problem.train.x[:1]).shape[1]
    taken = min(features, TAKEN)
    passes = 2 * 4 * (DRAWS + 2) + taken + 4
    name, samples = chosen(problem, record, min(COMPARED, problem.affordable(passes)))
    if len(samples) < min(LEAST, samples.population):
        record.not_done("C-19", RANDOMIZED, f"there was no time for {LEAST} samples")
        return
    output = meant(problem)
    methods: dict[str, Method] = {"gradient × input": partial(gradient_times_input, output=output)}
    target = gradient_times_input(problem.model, samples.x, output=output).classes
    try:
        methods["relevance propagation"] = _propagation(problem, samples)
    except UnsupportedModel as error:
        record.note(f"Relevance was not propagated: {error}.")
    together = 1 - (1 - record.confidence) / len(methods)  # the worst of them is judged
    checks = {
        k: randomization_check(
            problem.model, samples.x, m, target, layers=(), draws=DRAWS,
            confidence=together, generator=record.generator,
        )
        for k, m in methods.items()
    }  # fmt: skip
    checks = {k: check for k, check in checks.items() if check.last.trials}
    if not checks:
        reason = "no input matters to the output, so explanations put nothing first"
        record.not_applicable("C-19", RANDOMIZED, reason, samples=samples)
        return
    for k, check in checks.items():
        record.quantity(
            f"{_slug(k)}-randomized",
            f"rank correlation of {k} with that of weights drawn anew",
            check.last,
            samples=samples,
        )
    agreed = _agreements(problem, record, samples, methods, target)
    record.states("C-19", RANDOMIZED).at_most(
        max((c.last for c in checks.values()), key=lambda i: i.low),
        LIMIT,
        where=f"{len(samples)} {name} samples, {DRAWS} draws of all weights",
    )
    _judge(record, name, samples, checks, agreed)


def _propagation(problem: Problem, samples: Samples) -> Method:
    """Relevance propagation by gamma, or by epsilon where units are negative.

    Raises:
        UnsupportedModel: if an operation has no rule; the message names it.
    """
    output = meant(problem)
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", DoubtfulRules)
        lrp(problem.model, samples.x, rules=RULES, output=output)
    rules = None if any(d.category is DoubtfulRules for d in doubts) else RULES

    def propagated(model: nn.Module, x: Inputs, target: Target) -> Explanation:
        with warnings.catch_warnings():  # weights drawn anew may make negative what was positive
            warnings.simplefilter("ignore", DoubtfulRules)
            return lrp(model, x, target, rules, output=output)

    return propagated


def _agreements(
    problem: Problem,
    record: FindingRecord,
    samples: Samples,
    methods: Mapping[str, Method],
    target: Tensor | None,
) -> dict[str, Interval]:
    """Rank correlations with what happens when features are taken away, and among methods."""
    x, output = samples.x, meant(problem)
    patch = None
    if x.ndim == 4:
        side = math.isqrt(TAKEN)
        patch = (-(-x.shape[2] // side), -(-x.shape[3] // side))
    elif feature_totals(x[:1]).shape[1] > TAKEN:
        record.note("There are too many features to take away one by one.")
        return {}
    removed = occlusion(problem.model, x, target, patch=patch, output=output)
    maps = {k: _coarse(m(problem.model, x, target).relevance, patch) for k, m in methods.items()}
    maps["setting features to 0"] = _coarse(removed.relevance, patch)
    found = {}
    names = list(maps)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            label = f"{one} and {other}"
            found[label] = agreement(maps[one], maps[other], record.confidence)
            record.quantity(
                f"agreement-{len(found)}",
                f"rank correlation of {label}",
                found[label],
                samples=samples,
            )
    return found


def _coarse(relevance: Any, patch: tuple[int, int] | None) -> Tensor:
    if patch is None:
        return feature_totals(relevance).double().cpu()
    pixels = relevance.sum(1, keepdim=True).double().cpu()
    return F.avg_pool2d(pixels, patch, ceil_mode=True).flatten(1)


def _judge(
    record: FindingRecord,
    name: str,
    samples: Samples,
    checks: Mapping[str, RandomizationCheck],
    agreed: Mapping[str, Interval],
) -> None:
    worst = max(checks, key=lambda k: (checks[k].passed is False, checks[k].last.estimate))
    number = next(q for q in record.quantities if q.name == f"{_slug(worst)}-randomized")
    usual = below(LIMIT, f"below {LIMIT:.2f}")
    if any(c.passed is False for c in checks.values()):
        record.look(
            f"Explanations of this network by {worst} hardly change when all weights are drawn "
            f"anew (rank correlation {size_words(number)}): they show the input, not "
            f"what the network learned{part_of(name, samples)}.",
            number=number,
            usual=usual,
            action="Do not read heatmaps of it as reasons; train it further, or judge by taking "
            "features away.",
        )
    elif all(c.passed for c in checks.values()):
        record.fine(
            f"Explanations come from the weights of the network: with weights drawn anew, the rank "
            f"correlation is {size_words(number)}{part_of(name, samples)}.",
            number=number,
            usual=usual,
        )
    else:
        undecided = max(record.quantities, key=lambda q: (q.name.endswith("-randomized"), q.high))
        record.open(undecided, usual)
    words = [f"{k} {v.estimate:z.2f}" for k, v in agreed.items()]
    if words:
        record.headline(
            "Rank correlations of explanations: " + ", ".join(words) + f"{part_of(name, samples)}."
        )


def _slug(words: str) -> str:
    return words.replace(" × ", "-times-").replace(" ", "-")
