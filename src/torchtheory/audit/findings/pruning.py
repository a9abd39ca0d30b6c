"""What the network could do without: weights and units that can go at no loss of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    has_parameters,
    test_data,
)
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import below
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.pruning.magnitude import magnitude_thresholds
from torchtheory.training.pruning.masks import prunable_weights
from torchtheory.training.pruning.units import largest_units, unit_masks, unit_scores

#: Test samples looked at, and training samples by which units are ranked.
SAMPLES, RANKED_BY = 4096, 512

#: Shares that are removed, in the order in which they are tested.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)

#: Accuracy that may be lost: more is a loss.
LOSS = 0.01

#: Shares of weights and of units without which a network is larger than its task needs.
MANY_WEIGHTS, MANY_UNITS = 0.9, 0.5

STATEMENT = rf"P(\text{{right}}) - P(\text{{right after pruning}}) \le {LOSS}"


@dataclass(frozen=True, slots=True)
class Removal:
    """One thing that was removed, and what it cost.

    Attributes:
        share: of the weights, or of the units, that went.
        loss: of accuracy, of new samples.
    """

    share: float
    loss: Interval


@finding(
    "pruning",
    area="capacity",
    title="Weights and units that can go",
    cost="forward",
    covers=["A-140"],
    needs=[classification, test_data, has_parameters, deterministic],
)
def pruning(problem: Problem, record: FindingRecord) -> None:
    """The accuracy on test data without the smallest weights, and without the least used units.

    What goes is chosen by the weights and the training data alone, so that the test data judges.
    Shares are tested in order, the smallest first for what can go and the largest first for what
    cannot, each time up to the first that fails: so all statements hold together at the stated
    confidence.
    """
    assert problem.test is not None
    passes = 2 * len(SHARES) + 3
    samples = problem.test.some(min(SAMPLES, problem.affordable(passes)), record.generator)
    if reason := _too_few(samples, record.confidence):
        if len(samples) < samples.population:
            record.not_done("A-140", STATEMENT, f"{reason}; give a larger budget")
        else:
            record.not_applicable("A-140", STATEMENT, reason)
        return
    wrong = problem.errors(samples)
    if not _beats_a_constant(problem, samples, wrong, record.confidence):
        record.not_applicable(
            "A-140",
            STATEMENT,
            "the network is not shown to be better than always naming the most frequent class, so "
            "there is no accuracy to lose",
            samples=samples,
        )
        return
    by_weight = _without_weights(problem, samples, wrong, record.confidence)
    weights = _range_of(by_weight)
    number = _record(record, "weights", weights, samples)
    _state(problem, record, samples, wrong, by_weight, weights)
    by_unit, units = _try_units(problem, record, samples, wrong)
    figure = "pruning"
    record.figure(
        figure,
        lambda ax: _plot(ax, by_weight, by_unit),
        caption="Accuracy lost on test data, with its range, against the share that was removed: "
        "the smallest weights of all layers, and the units of each layer that contribute least.",
        size=(6, 3),
    )
    _assess(record, weights, number, units, figure)


# ----------------------------------------------------------------------------- what is measured


def paired_loss(before: Tensor, after: Tensor, confidence: float) -> Interval:
    r"""The accuracy lost from one model to another, from their errors on the same samples.

    $P(\text{harmed})-P(\text{helped})$, each with an exact interval; both hold at once.

    Args:
        before, after: which samples are wrong, `[n]` of bool.

    >>> wrong = torch.zeros(400, dtype=torch.bool)
    >>> worse = wrong.clone()
    >>> worse[:100] = True
    >>> found = paired_loss(wrong, worse, 0.95)
    >>> found.estimate, 0.19 < found.low < 0.25 < found.high < 0.31
    (0.25, True)
    """
    each = 1 - (1 - confidence) / 2
    harmed = clopper_pearson(int((after & ~before).sum()), len(before), each)
    helped = clopper_pearson(int((before & ~after).sum()), len(before), each)
    return Interval(
        harmed.estimate - helped.estimate,
        harmed.low - helped.high,
        harmed.high - helped.low,
        confidence,
        len(before),
        "two Clopper-Pearson intervals",
    )


def _too_few(samples: Samples, confidence: float) -> str | None:
    none = torch.zeros(len(samples), dtype=torch.bool)
    if paired_loss(none, none, confidence).high <= LOSS:
        return None
    return (
        f"{len(samples)} test samples are too few to show that a loss of accuracy is below "
        f"{LOSS:.0%}"
    )


def _beats_a_constant(problem: Problem, samples: Samples, wrong: Tensor, confidence: float) -> bool:
    usual = problem.train.y.flatten().mode().values
    constant = samples.y.reshape(len(samples), -1)[:, 0] != usual
    return paired_loss(wrong, constant, confidence).low > LOSS


def _without_weights(
    problem: Problem, samples: Samples, wrong: Tensor, confidence: float
) -> list[Removal]:
    weights = prunable_weights(problem.model)  # without what a mask of torch's own takes away
    total = sum(w.numel() for w in weights.values())
    found = []
    for threshold in magnitude_thresholds(weights, SHARES):
        smaller = {k: w.where(w.abs() > threshold, 0) for k, w in weights.items()}
        gone = total - sum(int((w != 0).sum()) for w in smaller.values())
        loss = paired_loss(wrong, problem.at(smaller).errors(samples), confidence)
        found.append(Removal(gone / total, loss))
    return found


def _without_units(
    problem: Problem, samples: Samples, wrong: Tensor, confidence: float
) -> list[Removal]:
    x = None if problem.several_inputs else problem.train.x[:RANKED_BY]
    scores = unit_scores(problem.model, x)
    total = sum(layer.units for layer in scores)
    found: list[Removal] = []
    for share in SHARES:
        kept = largest_units(scores, share)
        gone = 1 - sum(len(stay) for stay in kept.values()) / total
        if gone == 0 or (found and gone == found[-1].share):
            continue  # small layers: nothing more goes
        smaller: Parameters = {
            k: problem.parameters[k].where(mask, 0)
            for k, mask in unit_masks(problem.model, kept).items()
        }
        loss = paired_loss(wrong, problem.at(smaller).errors(samples), confidence)
        found.append(Removal(gone, loss))
    if not found:
        raise UnsupportedModel("its hidden layers have a unit each")
    return found


def _range_of(removed: Sequence[Removal]) -> tuple[float, float, float]:
    """The largest share that can go: its value, and the ends of its range."""
    value = low = 0.0
    high = 1.0
    for step in removed:
        if step.loss.estimate > LOSS:
            break
        value = step.share
    for step in removed:
        if step.loss.high > LOSS:
            break
        low = step.share
    for step in reversed(removed):
        if step.loss.low <= LOSS:
            break
        high = step.share
    return value, low, high


# ----------------------------------------------------------------------------- what is said


def _record(
    record: FindingRecord, what: str, found: tuple[float, float, float], samples: Samples
) -> Quantity:
    value, low, high = found
    return record.quantity(
        f"removable-{what}",
        f"share of {what} that can go for at most {LOSS:.0%} of accuracy",
        value,
        low=low,
        high=high,
        basis=f"{record.confidence:.4g} paired exact tests in order",
        samples=samples,
    )


def _state(
    problem: Problem,
    record: FindingRecord,
    samples: Samples,
    wrong: Tensor,
    removed: Sequence[Removal],
    found: tuple[float, float, float],
) -> None:
    """The claim at the largest share that was shown to be free, and as many weights at random."""
    low = found[1]
    shown = [step for step in removed if step.share == low]
    if not shown:
        return
    says = record.states("A-140", STATEMENT)
    says.at_most(
        shown[-1].loss,
        LOSS,
        where=f"the smallest {low:.0%} of the weights are 0, {len(samples):,} test samples",
    )
    weights = {k: problem.parameters[k] for k in prunable_weights(problem.model)}
    (threshold,) = magnitude_thresholds(weights, [low])
    at_random = {}
    for name, w in weights.items():
        stays = (w.abs() > threshold).flatten().cpu()
        drawn = stays[torch.randperm(len(stays), generator=record.generator)]
        at_random[name] = w.where(drawn.view(w.shape).to(w.device), 0)
    loss = paired_loss(wrong, problem.at(at_random).errors(samples), record.confidence)
    if loss.low > LOSS:
        says.fails("as many weights of each layer, drawn at random", loss)


def _try_units(
    problem: Problem, record: FindingRecord, samples: Samples, wrong: Tensor
) -> tuple[list[Removal], tuple[tuple[float, float, float], Quantity] | None]:
    try:
        removed = _without_units(problem, samples, wrong, record.confidence)
    except UnsupportedModel as error:
        record.note(f"No units were removed: {error}.")
        return [], None
    found = _range_of(removed)
    return removed, (found, _record(record, "units", found, samples))


def _assess(
    record: FindingRecord,
    weights: tuple[float, float, float],
    number: Quantity,
    units: tuple[tuple[float, float, float], Quantity] | None,
    figure: str,
) -> None:
    _, low, high = weights
    usual = below(MANY_WEIGHTS, f"below {MANY_WEIGHTS:.0%}")
    many_units = units is not None and units[0][1] >= MANY_UNITS
    if many_units:
        assert units is not None
        record.look(
            f"{units[0][1]:.0%} of the units of every hidden layer can go for at most {LOSS:.0%} "
            "of accuracy: the network is wider than this task needs.",
            number=units[1],
            usual=below(MANY_UNITS, f"below {MANY_UNITS:.0%}"),
            action="Remove them (torchtheory.training.pruning.units.prune_units gives the smaller "
            "network), or train a narrower one.",
            figure=figure,
        )
    elif low >= MANY_WEIGHTS:
        record.look(
            f"{low:.0%} of the weights, the smallest ones, can go for at most {LOSS:.0%} of "
            "accuracy: the network is larger than this task needs.",
            number=number,
            usual=usual,
            action="Prune it (torchtheory.training.pruning.magnitude.prune), or train a smaller "
            "one.",
            figure=figure,
        )
    elif high <= MANY_WEIGHTS:
        record.fine(
            f"The weights are in use: removing the smallest {high:.0%} of them costs more than "
            f"{LOSS:.0%} of accuracy.",
            number=number,
            usual=usual,
            figure=figure,
        )
    elif units is None or units[0][2] > MANY_UNITS or high > MANY_WEIGHTS:
        record.open(number, usual, figure=figure)
    can = f"{low:.0%} of the weights can go" if low else "It was not shown that any weights can go"
    cannot = f"{high:.0%} cannot" if low else f"but that {high:.0%} of them cannot"
    record.headline(f"{can}." if high >= 1 else f"{can}, {cannot}.")


def _plot(ax: Any, weights: Sequence[Removal], units: Sequence[Removal]) -> None:
    for removed, label, color in (
        (weights, "smallest weights", COLORS[0]),
        (units, "least used units", COLORS[1]),
    ):
        if not removed:
            continue
        shares = [step.share for step in removed]
        ax.plot(
            shares, [step.loss.estimate for step in removed], "o-", color=color, label=label,
            markersize=4,
        )  # fmt: skip
        ax.fill_between(
            shares, [step.loss.low for step in removed], [step.loss.high for step in removed],
            color=color, alpha=0.2, linewidth=0,
        )  # fmt: skip
    ax.axhline(LOSS, color="black", linestyle="--", linewidth=1, label=f"a loss of {LOSS:.0%}")
    ax.set(xlabel="share removed", ylabel="accuracy lost", xlim=(0, 1.02))
    ax.legend()
