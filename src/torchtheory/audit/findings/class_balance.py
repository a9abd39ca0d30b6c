"""Finding: classes that are missing, and another balance of classes or targets in the test data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from torchtheory.audit.causes.differential import differential
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.hypotheses import one_label_per_sample
from torchtheory.core.diagnosis import Area
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.naming import several
from torchtheory.core.usual import above, at_least, at_most, below
from torchtheory.data.shift import DRAWS, balance_shift
from torchtheory.models.problem import Problem
from torchtheory.report.numbers import share_words

#: A distance between two laws of the labels, from 0 to 1, that is worth a look; one that is
#: certainly larger is a defect.
NOTICEABLE = 0.1

#: A class with so large a share of the training data makes error rates say little.
DOMINANT = 0.9

#: Most classes of a figure.
SHOWN = 40


@finding(
    "class-balance",
    area="data",
    title="How often each class, or each size of the target, occurs",
    cost="parameters",
    needs=[one_label_per_sample],
    whole=True,
)
def class_balance(problem: Problem, record: FindingRecord) -> None:
    """Labels of the training data against those of the test data."""
    if problem.is_classification:
        _classes(problem, record)
    elif problem.train.y[0].numel() == 1:
        _targets(problem, record)
    else:
        record.note("The targets are vectors; their laws were not compared.")


def _classes(problem: Problem, record: FindingRecord) -> None:
    count = problem.classes or 2
    n = _counts(problem.train.y, count)
    whole = len(problem.train) == problem.train.population
    part = "" if whole else " looked at"
    share: float | Interval = int(n.max()) / int(n.sum())
    if not whole:
        share = clopper_pearson(int(n.max()), int(n.sum()), record.confidence)
    most = record.quantity(
        "most-frequent-class", "share of the most frequent class in the training data", share,
        samples=problem.train,
    )  # fmt: skip
    if int((n > 0).sum()) == 1 and len(problem.train) > 1:
        record.defect(
            f"All {len(problem.train):,} training samples{part} are of class {int(n.argmax())}.",
            number=most,
            usual=below(DOMINANT),
            action="Give samples of the other classes: nothing can be learned from one.",
        )
    elif most.low > DOMINANT:
        record.look(
            f"Class {int(n.argmax())} has {share_words(most)} of the training samples, so always "
            "naming it is rarely wrong.",
            number=most,
            usual=below(DOMINANT),
            action="Judge the network by its error on each class.",
        )
    absent = (n == 0).nonzero().flatten().tolist()
    if absent and len(problem.train) >= 10 * count and int((n > 0).sum()) > 1:
        record.look(
            f"The network has {count} outputs, and no training sample is of class "
            f"{several(absent)}.",
            number=record.quantity(
                "classes-without-samples", "classes that no training sample has", len(absent),
                low=len(absent) if whole else 0, high=len(absent), samples=problem.train,
                basis="samples that were not looked at may have them",
            ),
            usual=at_most(0, "0"),
            action="Leave the outputs out, or give samples of these classes.",
        )  # fmt: skip
    if problem.test is None:
        if not record.assessments:
            record.fine(
                "The training data has no class that outweighs all others.",
                number=most, usual=below(DOMINANT),
            )  # fmt: skip
        return
    _against_test(problem, record, n)


def _counts(y: Tensor, count: int) -> Tensor:
    return torch.bincount(y.reshape(len(y)).long().cpu(), minlength=count)


def _against_test(problem: Problem, record: FindingRecord, n: Tensor) -> None:
    assert problem.test is not None
    m = _counts(problem.test.y, len(n))
    found = balance_shift(n, m, record.generator)
    level = alarm_level(record)
    rows = sorted(range(len(n)), key=lambda c: -abs(float(m[c] / m.sum() - n[c] / n.sum())))
    record.table(
        "classes",
        ("class", "training samples", "test samples", "share of training", "share of test"),
        [
            (c, int(n[c]), int(m[c]), float(n[c] / n.sum()), float(m[c] / m.sum()))
            for c in rows[:SHOWN]
        ],
        caption="The classes whose shares differ most come first.",
    )
    # one sample more or less changes the distance by 1/n or 1/m at most
    steps = 1 / len(problem.train) + 1 / len(problem.test)
    wobble = math.sqrt(steps * math.log(2 / (1 - record.confidence)) / 2)
    # the true distance is the difference of two shares, those of the classes that the one law has
    # more of, and no larger a difference of these was seen than the distance
    beyond = -float(stats.norm.ppf((1 - record.confidence) / 2)) * math.sqrt(steps) / 2 + steps / 2
    distance = record.quantity(
        "balance-distance", "distance of the class shares of training and test data beyond chance",
        found.beyond_chance, low=max(0.0, found.beyond_chance - wobble),
        high=min(1.0, found.distance + min(wobble, beyond)), samples=problem.test,
        basis=f"{record.confidence:.4g} McDiarmid, and normal for the upper end",
    )  # fmt: skip
    if len(n) <= SHOWN:
        record.figure(
            "classes",
            lambda ax: _plot(ax, n, m),
            caption="Share of every class in the training and in the test data.",
            size=(6, 2.4),
        )
    new = ((n == 0) & (m > 0)).nonzero().flatten().tolist()
    # given how often a class occurs in all, the chance that the test data has none of it
    every, tested = int((n + m).sum()), int(m.sum())
    chances = {
        c: len(n) * float(stats.hypergeom.pmf(0, every, int(n[c]), tested))
        for c in (m == 0).nonzero().flatten().tolist()
    }
    missing = [c for c, chance in chances.items() if chance < level]
    chance = record.quantity(
        "balance-p-value", "probability of class shares that differ so much by chance alone",
        found.p_value, low=0.0, high=_highest(found.p_value, record.confidence),
        basis=f"{record.confidence:.4g} Clopper-Pearson over {DRAWS} draws",
    )  # fmt: skip
    usual = above(level)
    sampled = any(len(s) < s.population for s in (problem.train, problem.test))
    part = " looked at" if sampled else ""
    if int((m > 0).sum()) == 1 and found.p_value < level:
        record.defect(
            f"All {len(problem.test):,} test samples{part} are of class {int(m.argmax())}, so the "
            "test error says nothing about the others.",
            number=chance, usual=usual,
            action="Draw the test data at random from the same source as the training data.",
            figure="classes",
        )  # fmt: skip
        record.look(
            "The test error says little about new data: the test data has one class only.",
            number=chance, usual=usual, area=Area.GENERALIZATION,
            action="Draw the test data at random from the same source as the training data.",
        )  # fmt: skip
    elif new and int((n > 0).sum()) > 1 and found.p_value < level:
        record.defect(
            f"The test data has {int(m[new].sum()):,} samples of class {several(new)}, which none "
            f"of {len(problem.train):,} training samples{part} is of.",
            number=chance, usual=usual,
            action="Train on samples of every class, or take the class out of the test data.",
            figure="classes",
        )  # fmt: skip
    elif missing:
        record.defect(
            f"No test sample{part} is of class {several(missing)}, though "
            f"{float(n[missing].sum() / n.sum()):.1%} of the training samples are.",
            number=record.quantity(
                "missing-class-p-value",
                "probability that the test data has none of such a class by chance",
                min(1.0, min(chances.values())),
            ),
            usual=usual,
            action="Draw the test data at random from the same source as the training data.",
            figure="classes",
        )  # fmt: skip
    elif found.p_value < level and found.beyond_chance >= NOTICEABLE:
        worst, sure = rows[0], distance.low >= NOTICEABLE
        say = record.defect if sure else record.look
        say(
            f"The classes have other shares in the test data: class {worst} makes up "
            f"{float(n[worst] / n.sum()):.1%} of the training and {float(m[worst] / m.sum()):.1%} "
            "of the test data.",
            number=distance if sure else chance,
            usual=below(NOTICEABLE) if sure else usual,
            figure="classes",
            action="Draw the test data at random from the same source, or weight the error of each "
            "class by its share in use.",
        )  # fmt: skip
    else:
        record.fine(
            "The classes are as frequent in the test data as in the training data, up to a "
            f"distance of {distance.high:.2g}.",
            number=distance, usual=below(NOTICEABLE), figure="classes",
        )  # fmt: skip


def _highest(p_value: float, confidence: float) -> float:
    """The largest p-value that a Monte Carlo test with so many draws is compatible with."""
    as_large = round(p_value * (1 + DRAWS)) - 1
    return clopper_pearson(as_large, DRAWS, confidence).high


def _plot(ax: Any, n: Tensor, m: Tensor) -> None:
    place = torch.arange(len(n))
    ax.bar(place - 0.2, n / n.sum(), width=0.4, color=COLORS[0], label="training")
    ax.bar(place + 0.2, m / m.sum(), width=0.4, color=COLORS[1], label="test")
    ax.set(xlabel="class", ylabel="share")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _targets(problem: Problem, record: FindingRecord) -> None:
    """Kolmogorov and Smirnov's distance of the targets' laws."""
    train = problem.train.y.reshape(len(problem.train)).double().cpu().numpy()
    kinds = len(np.unique(train))
    number = record.quantity(
        "different-targets", "different targets among the training samples", kinds, low=kinds,
        high=kinds + problem.train.population - len(train), samples=problem.train,
        basis="every sample that was not looked at may have one of its own",
    )  # fmt: skip
    if len(train) > 1 and kinds == 1:
        record.defect(
            f"All {len(train):,} training targets looked at are {train[0]:.3g}: there is nothing "
            "to learn.",
            number=number,
            usual=at_least(2, "several"),
            action="Look at how the targets are read.",
        )
        return
    if problem.test is None:
        record.fine("The targets vary.", number=number, usual=at_least(2, "several"))
        return
    test = problem.test.y.reshape(len(problem.test)).double().cpu().numpy()
    found = stats.ks_2samp(train, test, method="auto")
    # Dvoretzky, Kiefer, Wolfowitz and Massart, for both samples at once
    radius = sum(stats.kstwo.ppf(1 - (1 - record.confidence) / 2, len(v)) for v in (train, test))
    number = record.quantity(
        "target-distance", "largest difference of the distribution functions of the targets",
        float(found.statistic), low=max(0.0, found.statistic - radius),
        high=min(1.0, found.statistic + radius), samples=problem.test,
        basis=f"{record.confidence:.4g} Kolmogorov",
    )  # fmt: skip
    level = alarm_level(record)
    if found.pvalue < level and found.statistic >= NOTICEABLE:
        sure = number.low >= NOTICEABLE
        say = record.defect if sure else record.look
        units = next((c for c in differential(problem).causes if c.kind == "units"), None)
        say(
            f"The targets of the test data follow another law: their median is "
            f"{float(torch.as_tensor(test).median()):.3g}, that of the training data "
            f"{float(torch.as_tensor(train).median()):.3g}."
            + ("" if units is None else f" {units.sentence[:1].upper()}{units.sentence[1:]}."),
            number=number if sure else record.quantity(
                "target-p-value", "probability of targets that differ so much by chance alone",
                float(found.pvalue),
            ),
            usual=below(NOTICEABLE) if sure else above(level),
            action="Draw the test data at random from the same source as the training data."
            if units is None else units.action,
        )  # fmt: skip
    else:
        record.fine(
            "The targets of training and test data follow laws whose distribution functions "
            f"differ by {number.high:.2g} or less.",
            number=number, usual=below(NOTICEABLE),
        )  # fmt: skip
