"""Is the network right as often as it says, token by token? Ranges by whole sequences."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.calibration import (
    Repair,
    judge_calibration,
    loss_saved,
    plot_reliability,
    tabulate_bins,
    too_few_to_judge,
)
from torchtheory.audit.findings.hypotheses import deterministic, labeled_positions, test_data
from torchtheory.audit.findings.positions import ratio_interval
from torchtheory.core.errors import InvalidInput
from torchtheory.generalization.learning.calibration import (
    clustered_calibration,
    fit_temperature,
    predicted_confidence,
)
from torchtheory.models.arrangement import Arrangement
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.targets import IGNORED, position_words
from torchtheory.training.losses.risks import split_indices

#: Sequences or images below which nothing is said.
LEAST = 20

#: Logits that a temperature is fitted to, at most.
FITTED = 2**23


def several_answers(problem: Problem) -> str | None:
    """A class at every position, or several labels that are 0 or 1."""
    if problem.task != "multilabel":
        return labeled_positions(problem)
    y = problem.train.y
    if bool(((y == 0) | (y == 1)).all()):
        return None
    return "labels lie between 0 and 1, and this compares with what is right"


def probabilities(problem: Problem) -> str | None:
    if problem.loss_takes_logits:
        return None
    if problem.task == "multilabel":
        outputs = problem.outputs(problem.train)
        if problem.decision_level == 0.5 and bool(((outputs >= 0) & (outputs <= 1)).all()):
            return None
    if problem.function.arranged is not None and problem.function.arranged.single is not None:
        return None
    return "the loss does not make probabilities of the outputs"


def logits_and_labels(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor]:
    """Logits of classes `[n, ..., C]`, and class indices `[n, ...]`."""
    outputs = problem.outputs(samples)
    if problem.task != "multilabel":
        return outputs, samples.y
    single: Literal["logit", "probability"] = (
        "probability" if problem.decision_level == 0.5 else "logit"
    )
    flat = outputs.flatten(1)
    return Arrangement(flat.shape[1:], single=single)(flat), samples.y.flatten(1).long()


@finding(
    "token-calibration",
    area="calibration",
    title="Is the network right as often as it says, at a token, pixel or label?",
    cost="forward",
    needs=[several_answers, test_data, deterministic, probabilities],
    whole=True,
)
def token_calibration(problem: Problem, record: FindingRecord) -> None:
    """Confidence against accuracy over all labeled positions of the test data."""
    assert problem.test is not None
    samples = problem.test
    one, label = ("sample", "label")
    if problem.task == "labeling":
        one, label = position_words(samples.y, problem.tokens)
    if too_few_to_judge(record, samples, LEAST, one):
        return
    confidence, right, who = _answers(problem, samples)
    found = clustered_calibration(
        confidence, right, who, level=record.confidence, generator=record.generator
    )
    error = record.quantity(
        "calibration-error", f"expected calibration error per {label}", found.error, samples=samples
    )
    gap = record.quantity(
        "mean-confidence-gap",
        f"mean confidence minus accuracy per {label} of new data",
        found.excess,
        samples=samples,
    )
    tabulate_bins(record, found.bins, found.test, label)
    repaired = _repair(problem, record, samples)
    record.figure(
        "reliability",
        lambda ax: plot_reliability(ax, found.bins, repaired),
        caption=f"Accuracy against confidence at the {label}s of the test data, in bins of equally "
        f"many {label}s, with {record.confidence:.0%} intervals over {one}s; on the dashed line it "
        "is right as often as it says.",
        size=(4.6, 3.4),
    )
    judge_calibration(
        record,
        confidence,
        right,
        error,
        gap,
        found.test,
        repaired,
        f"at the {len(right):,} {label}s of {len(samples):,} test {one}s",
    )


def _answers(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, whether it is right, and the sample, of every labeled position."""
    confidences, hits, owners = [], [], []
    start = 0
    outputs, labels = logits_and_labels(problem, samples)
    for f, y in zip(
        torch.split(outputs, problem.chunk), torch.split(labels, problem.chunk), strict=True
    ):
        known = y != IGNORED
        p, right = predicted_confidence(f[known], y[known])
        confidences.append(p)
        hits.append(right)
        owners.append(known.nonzero()[:, 0].cpu() + start)
        start += len(y)
    return torch.cat(confidences), torch.cat(hits), torch.cat(owners)


def _repair(problem: Problem, record: FindingRecord, samples: Samples) -> Repair | None:
    """A temperature fitted on half of the samples, tried on the others; None if there is none."""
    outputs, y = logits_and_labels(problem, samples)
    most = max(LEAST, FITTED // outputs[0].numel())
    some = torch.randperm(len(samples), generator=record.generator)[:most].sort().values
    here = some.to(outputs.device)
    outputs, y = outputs[here], y[here]
    known = y != IGNORED
    who = known.nonzero()[:, 0].cpu()
    logits, labels = outputs[known].double().cpu(), y[known].cpu()
    one, other = split_indices(len(some), 0.5)
    first = torch.isin(who, one)
    try:
        half = fit_temperature(logits[first], labels[first], level=record.confidence).estimate
        whole = fit_temperature(logits, labels, level=record.confidence, cluster=who)
    except InvalidInput as error:
        record.note(f"No temperature was fitted: {error}.")
        return None
    number = record.quantity("temperature", "temperature that fits the test data best", whole)
    if not 0 < half < float("inf"):
        return None
    rest = ~first
    each = [F.cross_entropy(logits[rest] / t, labels[rest], reduction="none") for t in (1.0, half)]
    before, after = (float(losses.mean()) for losses in each)
    record.table(
        "temperature",
        ("temperature", "mean loss on the other half of the test data"),
        [(1.0, before), (half, after)],
        caption="Fitted on one half of the test data, tried on the other.",
    )
    place = torch.unique(who[rest], return_inverse=True)[1]
    sums = torch.zeros(len(other), dtype=torch.float64)
    gain = ratio_interval(
        sums.index_add(0, place, each[0] - each[1]),
        sums.index_add(0, place, torch.ones_like(each[0])),
        record.confidence,
    )
    p, right = predicted_confidence(logits[rest] / half, labels[rest])
    bins = clustered_calibration(p, right, who[rest], level=record.confidence).bins
    return Repair(number, loss_saved(record, gain, before), before, after, gain, bins)
