"""Finding: classes that are missing, and another balance of classes or targets in the test data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.hypotheses import one_label_per_sample
from torchtheory.core.diagnosis import Area
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.naming import several
from torchtheory.data.shift import balance_shift
from torchtheory.models.problem import Problem

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
    most = record.quantity(
        "most-frequent-class", "share of the most frequent class in the training data",
        clopper_pearson(int(n.max()), int(n.sum()), record.confidence), samples=problem.train,
    )  # fmt: skip
    if int((n > 0).sum()) == 1 and len(problem.train) > 1:
        record.defect(
            f"All {len(problem.train):,} training samples are of class {int(n.argmax())}.",
            number=most,
            usual=f"below {DOMINANT}",
            action="Give samples of the other classes: nothing can be learned from one.",
        )
    elif most.low > DOMINANT:
        record.look(
            f"{most.value:.1%} of the training samples are of class {int(n.argmax())}, so always "
            "naming that class is rarely wrong.",
            number=most,
            usual=f"below {DOMINANT}",
            action="Judge the network by its error on each class.",
        )
    absent = (n == 0).nonzero().flatten().tolist()
    if absent and len(problem.train) >= 10 * count and int((n > 0).sum()) > 1:
        record.look(
            f"The network has {count} outputs, and no training sample is of class "
            f"{several(absent)}.",
            action="Leave the outputs out, or give samples of these classes.",
        )
    if problem.test is None:
        if not record.assessments:
            record.fine("The training data has no class that outweighs all others.", number=most)
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
    distance = record.quantity(
        "balance-distance", "distance of the class shares of training and test data beyond chance",
        found.beyond_chance, low=max(0.0, found.beyond_chance - wobble),
        high=min(1.0, found.distance + wobble), samples=problem.test,
        basis=f"{record.confidence:.4g} McDiarmid, without what chance explains",
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
    missing = [
        c
        for c in (m == 0).nonzero().flatten().tolist()
        if stats.hypergeom.pmf(0, every, int(n[c]), tested) < level / len(n)
    ]
    usual = f"below {NOTICEABLE}"
    if int((m > 0).sum()) == 1 and found.p_value < level:
        record.defect(
            f"All {len(problem.test):,} test samples are of class {int(m.argmax())}, so the test "
            "error says nothing about the others.",
            number=distance, usual=usual,
            action="Draw the test data at random from the same source as the training data.",
            figure="classes",
        )  # fmt: skip
        record.look(
            "The test error says little about new data: the test data has one class only.",
            number=distance, usual=usual, area=Area.GENERALIZATION,
            action="Draw the test data at random from the same source as the training data.",
        )  # fmt: skip
    elif new and int((n > 0).sum()) > 1 and found.p_value < level:
        record.defect(
            f"The test data has {int(m[new].sum()):,} samples of class {several(new)}, which no "
            "training sample has.",
            number=distance, usual=usual,
            action="Train on samples of every class, or take the class out of the test data.",
            figure="classes",
        )  # fmt: skip
    elif missing:
        record.defect(
            f"No test sample is of class {several(missing)}, though "
            f"{float(n[missing].sum() / n.sum()):.1%} of the training samples are.",
            number=distance, usual=usual,
            action="Draw the test data at random from the same source as the training data.",
            figure="classes",
        )  # fmt: skip
    elif found.p_value < level and found.beyond_chance >= NOTICEABLE:
        say = record.defect if distance.low >= NOTICEABLE else record.look
        worst = rows[0]
        say(
            f"The classes have other shares in the test data: class {worst} makes up "
            f"{float(n[worst] / n.sum()):.1%} of the training and {float(m[worst] / m.sum()):.1%} "
            "of the test data.",
            number=distance, usual=usual, figure="classes",
            action="Draw the test data at random from the same source, or weight the error of each "
            "class by its share in use.",
        )  # fmt: skip
    else:
        record.fine(
            "The classes are as frequent in the test data as in the training data.",
            number=distance, usual=usual, figure="classes",
        )  # fmt: skip


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
            f"All {len(train):,} training targets are {train[0]:.3g}: there is nothing to learn.",
            number=number,
            usual="several",
            action="Look at how the targets are read.",
        )
        return
    if problem.test is None:
        record.fine("The targets vary.", number=number, usual="several")
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
    usual = f"below {NOTICEABLE}"
    if found.pvalue < alarm_level(record) and found.statistic >= NOTICEABLE:
        say = record.defect if number.low >= NOTICEABLE else record.look
        say(
            f"The targets of the test data follow another law: their median is "
            f"{float(torch.as_tensor(test).median()):.3g}, that of the training data "
            f"{float(torch.as_tensor(train).median()):.3g}.",
            number=number,
            usual=usual,
            action="Draw the test data at random from the same source as the training data.",
        )
    else:
        record.fine(
            "The targets of training and test data follow one law, as far as can be told.",
            number=number, usual=usual,
        )  # fmt: skip
