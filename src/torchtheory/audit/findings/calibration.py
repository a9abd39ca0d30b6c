"""Is the network right as often as it says it is?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.audit.causes.differential import differential
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import classification, deterministic, test_data
from torchtheory.audit.findings.over_draws import mixed_outputs
from torchtheory.core.errors import InvalidInput
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import at_most, below
from torchtheory.generalization.learning.calibration import (
    CalibrationTest,
    ReliabilityBin,
    calibration_error,
    calibration_test,
    fit_temperature,
    predicted_confidence,
    reliability_curve,
)
from torchtheory.models.losses import are_log_probabilities, are_probabilities
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.wording import counted
from torchtheory.training.losses.risks import split_indices

#: Test samples below which nothing is said.
LEAST = 50

#: A calibrated network is accused with this probability at most.
SIGNIFICANT = 0.001

#: Calibration errors that are worth a look, and that are a defect.
SMALL, LARGE = 0.05, 0.1

#: Times that samples of a model with noise are given draws of their own.
MIXES = 8

#: Causes that are something done to the test inputs.
INPUTS = ("scale", "order", "orientation")

STATEMENT = r"P(\hat y = y \mid \hat p) = \hat p"


def probabilities(problem: Problem) -> str | None:
    """Outputs must be meant as probabilities: by themselves, or by the loss."""
    outputs = problem.outputs(problem.train)
    if problem.task == "multiclass" and (
        are_probabilities(outputs) or are_log_probabilities(outputs)
    ):
        return None
    within = bool(((outputs >= 0) & (outputs <= 1)).all())
    if problem.loss_takes_logits or (problem.task == "binary" and within):
        return None
    return "the loss does not make probabilities of the outputs, and they are none themselves"


@finding(
    "calibration",
    area="calibration",
    title="Is the network right as often as it says?",
    cost="forward",
    needs=[classification, test_data, deterministic, probabilities],
    whole=True,
)
def calibration(problem: Problem, record: FindingRecord) -> None:
    """Confidence against accuracy on the test data, and the temperature that closes a gap."""
    assert problem.test is not None
    samples = problem.test
    if too_few_to_judge(record, samples, LEAST):
        return
    logits, labels = class_logits(problem, mixed_outputs(problem, samples), samples.y)
    confidence, right = predicted_confidence(logits, labels)
    bins = reliability_curve(confidence, right, level=record.confidence)
    tested = calibration_test(confidence, right, generator=record.generator)
    error = record.quantity(
        "calibration-error",
        "expected calibration error",
        _error_over_draws(problem, samples, record.confidence),
        samples=samples,
    )
    gap = record.quantity(
        "mean-confidence-gap",
        "mean confidence minus accuracy on new data",
        _gap(confidence, right, record.confidence),
        samples=samples,
    )
    tabulate_bins(record, bins, tested)
    repaired = _repair(logits, labels, record)
    record.figure(
        "reliability",
        lambda ax: plot_reliability(ax, bins, repaired),
        caption="Accuracy against confidence on the test data, in bins of equally many samples, "
        f"with {record.confidence:.0%} intervals; on the dashed line it is right as often as it "
        "says.",
        size=(4.6, 3.4),
    )
    found = differential(problem)
    cause = Rival(found.words, found.causes[0].action) if found.explained else None
    changed = [c for c in found.partly if c.kind in INPUTS]
    if cause is None and changed:  # how sure it is changes with its inputs, right or wrong
        said = changed[0].sentence
        cause = Rival(said[:1].upper() + said[1:], changed[0].action)
    judge_calibration(
        record, confidence, right, error, gap, tested, repaired,
        f"on {len(samples):,} test samples", cause,
    )  # fmt: skip


def too_few_to_judge(
    record: FindingRecord, samples: Samples, least: int, one: str = "sample"
) -> bool:
    """Whether nothing can be said of so few test samples, and why: by their number, or for time."""
    if len(samples) >= least:
        return False
    are = "is" if len(samples) == 1 else "are"
    reason = f"{counted(len(samples), f'test {one}')} {are} too few; it takes {least}"
    if len(samples) < samples.population:
        record.not_done((), STATEMENT, f"{reason}, and a larger budget")
    else:
        record.not_applicable((), STATEMENT, reason)
    return True


def class_logits(problem: Problem, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits `[n, C]` whose softmax are the probabilities that the outputs mean, and the labels."""
    labels = y.reshape(len(y)).long()
    if problem.task == "multiclass":
        whole = problem.outputs(problem.train)
        return (_log(outputs) if are_probabilities(whole) else outputs.double()), labels
    one = outputs.reshape(-1).double()
    if not problem.loss_takes_logits:
        return torch.stack([_log(1 - one), _log(one)], 1), labels
    return torch.stack([torch.zeros_like(one), one], 1), labels


def _log(probability: Tensor) -> Tensor:
    return probability.double().clamp_min(torch.finfo(probability.dtype).tiny).log()


def _error_over_draws(problem: Problem, samples: Samples, level: float) -> Interval:
    """The calibration error; of a model with noise, its range covers several of its draws."""
    found = []
    for seed in range(MIXES if problem.draws_random_numbers else 1):
        logits, labels = class_logits(problem, mixed_outputs(problem, samples, seed), samples.y)
        found.append(calibration_error(*predicted_confidence(logits, labels), level=level))
    if len(found) == 1:
        return found[0]
    return Interval(
        found[0].estimate, min(f.low for f in found), max(f.high for f in found), level,
        len(samples), f"{found[0].test}, over {MIXES} draws of the noise",
    )  # fmt: skip


def _gap(confidence: Tensor, right: Tensor, level: float) -> Interval:
    return mean_interval(confidence.double() - right.double(), level)


@dataclass(frozen=True, slots=True)
class Repair:
    """A temperature, and what it does to samples it was not fitted to.

    Attributes:
        temperature: that fits all test data best.
        saved: share of the loss that it saves.
        loss_before, loss_after: the loss without and with it.
        gain: the difference, with its range.
        bins: confidence and accuracy with it.
    """

    temperature: Quantity
    saved: Quantity
    loss_before: float
    loss_after: float
    gain: Interval
    bins: list[ReliabilityBin]

    @property
    def helps(self) -> bool:
        """Whether the loss falls by it; an infinite one says the same of all samples."""
        return math.isfinite(self.temperature.value) and self.loss_after < self.loss_before

    @property
    def clearly(self) -> bool:
        """Whether it takes off a quarter of the loss, and more than chance does."""
        return self.loss_after < 0.75 * self.loss_before and self.gain.low > 0


def _repair(logits: Tensor, labels: Tensor, record: FindingRecord) -> Repair | None:
    """Fitted on one half of the test data, tried on the other; None where none can be fitted."""
    one, other = split_indices(len(labels), 0.5)
    logits, labels = logits.cpu(), labels.cpu()
    try:
        half = fit_temperature(logits[one], labels[one], level=record.confidence).estimate
        whole = fit_temperature(logits, labels, level=record.confidence)
    except InvalidInput as error:
        record.note(f"No temperature was fitted: {error}.")
        return None
    number = record.quantity("temperature", "temperature that fits the test data best", whole)
    if not math.isfinite(half):
        return None
    each = [
        F.cross_entropy(logits[other] / t, labels[other], reduction="none") for t in (1.0, half)
    ]
    before, after = (float(losses.mean()) for losses in each)
    gain = mean_interval(each[0] - each[1], record.confidence)
    saved = loss_saved(record, gain, before)
    record.table(
        "temperature",
        ("temperature", "mean loss on the other half of the test data"),
        [(1.0, before), (half, after)],
        caption="Fitted on one half of the test data, tried on the other.",
    )
    confidence, right = predicted_confidence(logits[other] / half, labels[other])
    bins = reliability_curve(confidence, right, level=record.confidence)
    return Repair(number, saved, before, after, gain, bins)


def loss_saved(record: FindingRecord, gain: Interval, before: float) -> Quantity:
    """What a temperature takes off the loss of samples that it was not fitted to, as a share."""
    scale = max(before, 1e-300)
    return record.quantity(
        "loss-saved-by-temperature",
        "share of the loss on held-out test data that a fitted temperature saves",
        gain.estimate / scale,
        low=gain.low / scale,
        high=gain.high / scale,
        basis=f"{record.confidence:.4g} {gain.test}, {gain.trials} samples",
    )


def repair_action(repaired: Repair | None) -> str:
    """What to do about a gap, in a sentence."""
    if repaired is None or not repaired.helps:
        return (
            "No single temperature fixes it: fit probabilities to held-out data, as by isotonic "
            "regression."
        )
    t = repaired.temperature
    verb, ends = "Divide", (t.value, t.low, t.high)
    if t.value < 1:
        verb, ends = "Multiply", (1 / t.value, 1 / t.high, 1 / t.low)
    return (
        f"{verb} the logits by {ends[0]:.2g} (between {ends[1]:.2g} and {ends[2]:.2g}). Fitted on "
        f"half of the test data, this lowers the mean loss on the other half from "
        f"{repaired.loss_before:.3g} to {repaired.loss_after:.3g}."
    )


@dataclass(frozen=True, slots=True)
class Rival:
    """Why new data is answered worse than training data, and what to do about that first."""

    words: str
    action: str


def judge_calibration(
    record: FindingRecord,
    confidence: Tensor,
    right: Tensor,
    error: Quantity,
    gap: Quantity,
    tested: CalibrationTest,
    repaired: Repair | None,
    where: str,
    cause: Rival | None = None,
) -> None:
    """Is it fine, worth a look or a defect that it is as sure as it is?

    A temperature that lowers the loss on samples it was not fitted to settles what bins may not.
    Where the test data is to blame, none is advised: it would be fitted to the mistake.
    """
    said, true = float(confidence.mean()), float(right.double().mean())
    sentence = f"It is {said:.1%} sure on average and right {true:.1%} of the time {where}"
    fixed = repaired is not None and repaired.clearly
    if tested.p_value > SIGNIFICANT and error.low >= SMALL:
        record.open(error, at_most(0, "0, but for chance"), figure="reliability")
        return
    if tested.p_value > SIGNIFICANT or (error.low < SMALL and not fixed):
        small = "" if tested.p_value > 0.05 else ", a small gap"
        record.fine(f"{sentence}{small}.", number=error, usual=below(SMALL), figure="reliability")
        return
    number, usual = error, below(SMALL)
    if error.low < SMALL and repaired is not None:
        number, usual = repaired.saved, at_most(0, "0, where confidence is as it should be")
    # too little confidence is a loss of information; too much misleads
    say = record.defect if error.low > LARGE and gap.low > 0 else record.look
    way = (
        "claims to be more certain than it is"
        if gap.low > 0
        else "claims to be less certain than it is"
        if gap.high < 0
        else "is too certain of some and too little of others"
    )
    blamed = cause if gap.low > 0 else None
    say(
        f"{sentence}: it {way}." + (f" {blamed.words}." if blamed is not None else ""),
        number=number,
        usual=usual,
        action=blamed.action if blamed is not None else repair_action(repaired),
        figure="reliability",
    )


def tabulate_bins(
    record: FindingRecord,
    bins: list[ReliabilityBin],
    tested: CalibrationTest,
    label: str = "sample",
) -> None:
    """The bins as a table, and what chance explains of their gaps."""
    record.table(
        "reliability",
        (f"{label}s", "confidence", "accuracy", "from", "to"),
        [
            (b.samples, b.confidence, b.accuracy.estimate, b.accuracy.low, b.accuracy.high)
            for b in bins
        ],
        caption=f"Bins of equally many {label}s. Their mean gap is {tested.gap:.3g}; if the "
        f"network were calibrated it would be {tested.by_chance:.3g} on average by chance, and as "
        f"large with probability {tested.p_value:.2g}.",
    )


def plot_reliability(ax: Any, bins: list[ReliabilityBin], repaired: Repair | None) -> None:
    """Accuracy against confidence, as it is and with the temperature that helps."""
    ax.plot([0, 1], [0, 1], "--", color="0.5", linewidth=1)
    sets = [("as it is", bins, COLORS[0], "o")]
    if repaired is not None and repaired.helps:
        label = f"logits divided by {repaired.temperature.value:.2g}"
        sets.append((label, repaired.bins, COLORS[1], "s"))
    for label, shown, color, mark in sets:
        rates = [b.accuracy for b in shown]
        ax.errorbar(
            [b.confidence for b in shown],
            [r.estimate for r in rates],
            yerr=[[r.estimate - r.low for r in rates], [r.high - r.estimate for r in rates]],
            fmt=mark,
            color=color,
            capsize=3,
            markersize=4,
            label=label,
        )
    least = min(b.confidence for _, shown, _, _ in sets for b in shown)
    ax.set(xlim=(min(0.5, least) - 0.03, 1.03), ylim=(-0.03, 1.03))
    ax.set(xlabel="confidence", ylabel="accuracy")
    ax.legend(loc="best")
