"""Finding: errors at the tokens or pixels of a sample, with ranges by samples."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, labeled_positions
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.targets import IGNORED
from torchtheory.training.risks import sample_losses

#: Samples with an error, or without one, below which the spread of shares says little.
FEW = 10

#: A rise of the error from training to new data that is worth a look.
LARGE_GAP = 0.1


@finding(
    "position-errors",
    area="generalization",
    title="Errors per token or pixel, samples taken as independent",
    cost="forward",
    needs=[labeled_positions, deterministic],
    whole=True,
)
def position_errors(problem: Problem, record: FindingRecord) -> None:
    """Share of wrong labels in a sample, averaged over the samples.

    Positions of one sample depend on each other (the words of a sentence, neighboring pixels), so
    a range that counted them as independent would be far too narrow. Samples are taken to be drawn
    independently, and every sample counts the same.
    """
    shares = {"train": wrong_shares(problem, problem.train)}
    if problem.test is not None:
        shares["test"] = wrong_shares(problem, problem.test)
    losses = {"train": sample_losses(problem, problem.train).double().cpu()}
    if problem.test is not None:
        losses["test"] = sample_losses(problem, problem.test).double().cpu()
    common = _most_frequent(problem.train.y)
    record.table(
        "positions",
        ("data", "samples", "labels", "share of wrong labels", "loss per label", "exp(loss)"),
        [
            (
                name,
                len(share),
                int((_of(problem, name).y != IGNORED).sum()),
                float(share.mean()),
                float(losses[name].mean()),
                math.exp(min(700.0, float(losses[name].mean()))),
            )
            for name, share in shares.items()
        ],
        caption="Means over samples of a sample's own means. The exponential of the loss of a "
        "language model is its perplexity.",
    )
    train = _quantities(problem, record, "train", shares["train"], losses["train"])
    if problem.test is None:
        record.headline(
            f"It errs at {train.estimate:.1%} of the labels of a training sample; without test "
            "data nothing is known about new samples."
        )
        return
    test = _quantities(problem, record, "test", shares["test"], losses["test"])
    record.headline(
        f"It errs at {train.estimate:.1%} of the labels of a training sample and at "
        f"{test.estimate:.1%} of those of a test sample; with {record.confidence:.0%} confidence "
        f"at {test.low:.1%} to {test.high:.1%} of a new one's.",
    )
    _against_the_most_frequent(problem, record, shares["test"], common)
    _gap(record, train, test)


def _of(problem: Problem, name: str) -> Samples:
    chosen = problem.train if name == "train" else problem.test
    assert chosen is not None
    return chosen


def wrong_shares(problem: Problem, samples: Samples) -> Tensor:
    """Share of a sample's labels that are predicted wrongly, `[n]`."""
    wrong, labels = problem.wrong_labels(samples)
    return (wrong.double() / labels).cpu()


def share_interval(shares: Tensor, confidence: float) -> Interval:
    r"""The mean of shares in $[0, 1]$ of independent samples.

    Student's interval. Where fewer than ten samples have any error the spread of the shares says
    little: the mean is then at most the probability that a sample has one, for which the interval
    of Clopper and Pearson is exact; and the same for samples without any correct label.

    >>> share_interval(torch.zeros(20), 0.95).low, round(share_interval(torch.zeros(20), 0.95).high, 3)
    (0.0, 0.168)
    """  # noqa: E501 - a doctest
    some, full = int((shares > 0).sum()), int((shares < 1).sum())
    n, mean = len(shares), float(shares.mean())
    low, high, test = 0.0, 1.0, "Clopper-Pearson over samples"
    if n > 1 and min(some, full) >= FEW:
        student = mean_interval(shares, confidence)
        low, high, test = max(0.0, student.low), min(1.0, student.high), "Student t over samples"
    elif some < FEW:
        high = clopper_pearson(some, n, confidence).high
    else:
        low = 1 - clopper_pearson(full, n, confidence).high
    return Interval(mean, min(low, mean), max(high, mean), confidence, n, test)


def _quantities(
    problem: Problem, record: FindingRecord, name: str, shares: Tensor, losses: Tensor
) -> Interval:
    samples, words = _of(problem, name), "new data" if name == "test" else "the training data"
    error = share_interval(shares, record.confidence)
    loss = mean_interval(losses, record.confidence) if len(losses) > 1 else None
    if name == "train" and len(samples) >= samples.population:  # all that is meant is known
        mean = float(shares.mean())
        error = replace(error, low=mean, high=mean, test="all samples")
        loss = None
    record.quantity(f"{name}-error", f"share of wrong labels on {words}", error, samples=samples)
    if loss is not None:
        record.quantity(f"{name}-loss", f"mean loss per label on {words}", loss, samples=samples)
    elif len(samples) >= samples.population:
        record.quantity(
            f"{name}-loss", f"mean loss per label on {words}", float(losses.mean()), samples=samples
        )
    return error


def _most_frequent(y: Tensor) -> int:
    return int(torch.bincount(y[y != IGNORED]).argmax())


def _against_the_most_frequent(
    problem: Problem, record: FindingRecord, shares: Tensor, common: int
) -> None:
    assert problem.test is not None
    y = problem.test.y
    labeled = y != IGNORED
    other = ((y != common) & labeled).flatten(1).sum(1) / labeled.flatten(1).sum(1)
    trivial = other.double().cpu()
    if len(shares) < 2:
        return
    gain = mean_interval(trivial - shares, record.confidence)
    number = record.quantity(
        "gain-on-most-frequent", "errors of always naming the most frequent label, minus its own",
        gain, samples=problem.test,
    )  # fmt: skip
    compared = (
        f"it errs at {float(shares.mean()):.1%} of the labels of new data, and always naming the "
        f"most frequent label of the training data at {float(trivial.mean()):.1%}."
    )
    if gain.high < 0:
        record.defect(
            "The network is worse than no network: " + compared,
            number=number, usual="above 0", area=Area.FIT,
            action="Check that the labels belong to the positions: one that is off by one, say.",
        )  # fmt: skip
    elif gain.low > 0:
        record.fine(
            "The network knows more than the frequencies of the labels: " + compared,
            number=number, usual="above 0", area=Area.FIT,
        )  # fmt: skip
    else:
        record.look(
            "The network cannot be told from always naming the most frequent label: " + compared,
            number=number, usual="above 0", area=Area.FIT,
            action="Train it longer, or give more test samples.",
        )  # fmt: skip


def _gap(record: FindingRecord, train: Interval, test: Interval) -> None:
    number = record.quantity(
        "gap", "share of wrong labels on new data minus that on the training data",
        test.estimate - train.estimate, low=test.low - train.high, high=test.high - train.low,
        basis=f"{record.confidence:.4g} {test.test}",
    )  # fmt: skip
    both = (
        f"it errs at {train.estimate:.1%} of the labels of the training data and at "
        f"{test.estimate:.1%} of those of new data."
    )
    usual = f"below {LARGE_GAP}"
    if number.low > LARGE_GAP:
        record.look(
            "The network does much better on the training data: " + both,
            number=number, usual=usual, action="Give more data, or regularize.",
        )  # fmt: skip
    elif number.high < LARGE_GAP:
        record.fine(
            "What it does on the training data carries over: " + both, number=number, usual=usual
        )
