"""Finding: errors at the tokens or pixels of a sample, with ranges by samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, labeled_positions
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.core.usual import above, below
from torchtheory.models.losses import labeling_loss
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.targets import IGNORED, position_words
from torchtheory.report.numbers import share_words
from torchtheory.training.losses.risks import sample_losses

#: Samples with an error, or without one, below which the spread of shares says little.
FEW = 10

#: A rise of the error from training to new data that is worth a look.
LARGE_GAP = 0.1


@dataclass(frozen=True, slots=True)
class Counted:
    """What the samples of one data set come to.

    Attributes:
        samples: the data.
        wrong: labels of each sample that are predicted wrongly, `[n]`.
        labels: labels it has, `[n]`.
        loss: the sum of its labels' losses, `[n]`; its own loss where the user's loss is not known
            to be a mean over labels.
        weights: what that is divided by, `[n]`.
    """

    samples: Samples
    wrong: Tensor
    labels: Tensor
    loss: Tensor
    weights: Tensor

    @classmethod
    def of(cls, problem: Problem, samples: Samples) -> Counted:
        wrong, labels = (c.double().cpu() for c in problem.wrong_labels(samples))
        weights = labels if problem.loss is labeling_loss else torch.ones_like(labels)
        losses = sample_losses(problem, samples).double().cpu()
        return cls(samples, wrong, labels, losses * weights, weights)

    @property
    def error(self) -> float:
        return float(self.wrong.sum() / self.labels.sum())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.sum() / self.weights.sum())


@finding(
    "position-errors",
    area="generalization",
    title="Errors per token or pixel, samples taken as independent",
    cost="forward",
    needs=[labeled_positions, deterministic],
    whole=True,
)
def position_errors(problem: Problem, record: FindingRecord) -> None:
    """Share of wrong labels, and the loss per label, over all labels of all samples.

    Positions of one sample depend on each other (the words of a sentence, neighboring pixels), so
    a range that counted them as independent would be far too narrow. Samples are taken to be drawn
    independently: ranges are the jackknife's, which leaves out one whole sample at a time.
    """
    one, label = position_words(problem.train.y, problem.tokens)
    counted = {"train": Counted.of(problem, problem.train)}
    if problem.test is not None:
        counted["test"] = Counted.of(problem, problem.test)
    per = label if problem.loss is labeling_loss else one
    record.table(
        "positions",
        (
            "data",
            f"{one}s",
            f"{label}s",
            f"share of wrong {label}s",
            f"loss per {per}",
            *(["exp(loss)"] if problem.tokens else []),
        ),
        [
            (
                name,
                len(c.labels),
                int(c.labels.sum()),
                c.error,
                c.mean_loss,
                *([math.exp(min(700.0, c.mean_loss))] if problem.tokens else []),
            )
            for name, c in counted.items()
        ],
        caption=f"Every {label} counts the same, and those without a label do not."
        + (
            " The exponential of the loss of a language model is its perplexity."
            if problem.tokens
            else ""
        ),
    )
    record.headline(
        f"{one.capitalize()}s are taken as independent samples; the {label}s within one are not."
    )
    train = _quantities(record, "train", counted["train"], label, per)
    if problem.test is None:
        record.headline(
            f"It errs at {share_words(train)} of the {label}s of the training data; without test "
            f"data nothing is known about new {one}s."
        )
        return
    test = _quantities(record, "test", counted["test"], label, per)
    record.headline(
        f"It errs at {share_words(train)} of the {label}s of the training data and at "
        f"{test.estimate:.1%} of those of {len(counted['test'].labels):,} test {one}s; with "
        f"{record.confidence:.0%} confidence at {test.low:.1%} to {test.high:.1%} of those of "
        f"new {one}s.",
    )
    _against_the_most_frequent(problem, record, counted["test"], label)
    _gap(record, train, test, label)


def ratio_interval(sums: Tensor, counts: Tensor, confidence: float) -> Interval:
    r"""$\sum_is_i/\sum_in_i$ over independent samples: a mean per position.

    Student's interval of the jackknife's pseudo-values $nR-(n-1)R_{(i)}$, with one whole sample
    left out each. Of equally many positions per sample it is that of the samples' own means.

    Args:
        sums, counts: of a sample's positions, `[n]`, $n\ge2$.

    >>> found = ratio_interval(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([2.0, 2.0, 2.0]), 0.95)
    >>> found.estimate, found.low == mean_interval([1.0, 2.0, 3.0], 0.95).low
    (2.0, True)
    """
    s, n = sums.double(), counts.double()
    ratio, size = s.sum() / n.sum(), len(s)
    without = (s.sum() - s) / (n.sum() - n)
    found = mean_interval(size * ratio - (size - 1) * without, confidence)
    around = found.high - found.estimate
    center = float(ratio)
    words = "Student t over samples" if bool((n == n[0]).all()) else "jackknife over samples"
    return replace(found, estimate=center, low=center - around, high=center + around, test=words)


def share_interval(wrong: Tensor, labels: Tensor, confidence: float) -> Interval:
    r"""The share $\sum_iw_i/\sum_in_i$ of labels that are wrong, over independent samples.

    `ratio_interval`. Where fewer than ten samples have any error the spread says little: the share
    is then at most the probability that a sample has one, for which the interval of Clopper and
    Pearson is exact, times the largest over the mean number of labels; and the same for samples
    without any correct label.

    >>> none = share_interval(torch.zeros(20), torch.ones(20), 0.95)
    >>> none.low, round(none.high, 3)
    (0.0, 0.168)
    """
    some, full = int((wrong > 0).sum()), int((wrong < labels).sum())
    n, mean = len(wrong), float(wrong.sum() / labels.sum())
    longer = float(labels.max() / labels.double().mean())
    low, high, test = 0.0, 1.0, "Clopper-Pearson over samples"
    if n > 1 and min(some, full) >= FEW:
        found = ratio_interval(wrong, labels, confidence)
        low, high, test = max(0.0, found.low), min(1.0, found.high), found.test
    elif some < FEW:
        high = min(1.0, longer * clopper_pearson(some, n, confidence).high)
    else:
        low = max(0.0, 1 - longer * clopper_pearson(full, n, confidence).high)
    return Interval(mean, min(low, mean), max(high, mean), confidence, n, test)


def _quantities(
    record: FindingRecord, name: str, counted: Counted, label: str, per: str
) -> Interval:
    samples, words = counted.samples, "new data" if name == "test" else "the training data"
    error = share_interval(counted.wrong, counted.labels, record.confidence)
    # of the training data all that is meant may be known
    known = name == "train" and len(samples) >= samples.population
    if known:
        error = replace(error, low=error.estimate, high=error.estimate, test="all samples")
    record.quantity(f"{name}-error", f"share of wrong {label}s on {words}", error, samples=samples)
    several = len(samples) > 1 and not known
    if several or len(samples) >= samples.population:
        record.quantity(
            f"{name}-loss",
            f"mean loss per {per} on {words}",
            ratio_interval(counted.loss, counted.weights, record.confidence)
            if several
            else counted.mean_loss,
            samples=samples,
        )
    return error


def _against_the_most_frequent(
    problem: Problem, record: FindingRecord, counted: Counted, label: str
) -> None:
    known = problem.train.y[problem.train.y != IGNORED]
    common = int(torch.bincount(known.flatten()).argmax())
    y = counted.samples.y
    trivial = ((y != common) & (y != IGNORED)).flatten(1).sum(1).double().cpu()
    if len(y) < 2:
        return
    kind = label if label == "token" else "class"
    gain = ratio_interval(trivial - counted.wrong, counted.labels, record.confidence)
    number = record.quantity(
        "gain-on-most-frequent",
        f"errors of always naming the most frequent {kind}, minus its own",
        gain,
        samples=counted.samples,
    )
    compared = (
        f"it errs at {counted.error:.1%} of the {int(counted.labels.sum()):,} {label}s of the test "
        f"data, and always naming the most frequent {kind} of the training data at "
        f"{float(trivial.sum() / counted.labels.sum()):.1%}."
    )
    if gain.high < 0:
        record.defect(
            "The network is worse than no network: " + compared,
            number=number, usual=above(0), area=Area.FIT,
            action="Check that the labels belong to the positions: one that is off by one, say.",
        )  # fmt: skip
    elif gain.low > 0:
        record.fine(
            f"The network knows more than how frequent {'token' if kind == label else 'classe'}s "
            "are: " + compared,
            number=number, usual=above(0), area=Area.FIT,
        )  # fmt: skip
    else:
        record.open(number, above(0), area=Area.FIT)


def _gap(record: FindingRecord, train: Interval, test: Interval, label: str) -> None:
    number = record.quantity(
        "gap", f"share of wrong {label}s on new data minus that on the training data",
        test.estimate - train.estimate, low=test.low - train.high, high=test.high - train.low,
        basis=f"{record.confidence:.4g} {test.test}",
    )  # fmt: skip
    both = (
        f"it errs at {share_words(train)} of the {label}s of the training data and at "
        f"{share_words(test)} of those of new data."
    )
    usual = below(LARGE_GAP)
    if number.low > LARGE_GAP:
        record.look(
            "The network does much better on the training data: " + both,
            number=number, usual=usual,
            action="Check that the inputs and labels of training and test data are prepared alike "
            "(order, orientation, scale, names of the classes); if they are, it overfits: give "
            "more data, or regularize.",
        )  # fmt: skip
    elif number.high < LARGE_GAP:
        record.fine(
            "What it does on the training data carries over: " + both, number=number, usual=usual
        )
    else:
        record.open(number, usual)
