"""Finding: answers that depend on how much padding follows a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.audit.causes.rivals import classes_said
from torchtheory.audit.causes.trial import costs, instead
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, one_label_per_sample
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: A token is padding if so many sequences end with it, of several lengths, and so few of its
#: occurrences are elsewhere.
ENDS, ELSEWHERE = 0.2, 0.1

#: Samples that are shortened, at least and at most.
FEWEST, MOST = 20, 512

#: Shares of answers that change, and of the outputs' spread, worth a look.
CHANGED, MOVED = 0.01, 0.02


SAME = r"f(x, \text{padding}) = f(x)"


@dataclass(frozen=True, slots=True)
class Padding:
    """A token that stands for nothing, and how often each sequence ends (or begins) with it.

    Attributes:
        token: its number.
        runs: `[n]`, how many of it in a row.
        first: whether they come first.
    """

    token: int
    runs: Tensor
    first: bool


def padding_of(x: Tensor) -> Padding | None:
    """The padding of sequences `[n, T]` of whole numbers, if they have any.

    >>> padding_of(torch.tensor([[3, 1, 0, 0], [2, 3, 1, 0], [1, 2, 3, 0], [3, 2, 1, 2]])).token
    0
    """
    for first in (False, True):
        rows = x if first else x.flip(1)
        token = int(rows[:, 0].mode().values)
        same = rows == token
        runs = same.long().cumprod(1).sum(1)
        inside = int(same.sum()) - int(runs.sum())
        often = float((runs > 0).double().mean())
        if (
            often >= ENDS
            and inside <= ELSEWHERE * int(same.sum())
            and len(torch.unique(runs)) > 1
            and int(runs.max()) > 1
        ):
            return Padding(token, runs, first)
    return None


def sequences_of_tokens(problem: Problem) -> str | None:
    x = problem.train.x
    if problem.several_inputs or x.is_floating_point() or x.ndim != 2 or x.shape[1] < 3:
        return "the inputs are no sequences of tokens"
    return None


@finding(
    "padding",
    area="data",
    title="Do answers depend on the padding?",
    cost="forward",
    needs=[sequences_of_tokens, one_label_per_sample, deterministic],
    whole=True,
)
def padding(problem: Problem, record: FindingRecord) -> None:
    """Padded sequences are shortened by some of their padding: the same answer is expected."""
    found = padding_of(problem.train.x)
    if found is None:
        reason = "the sequences have no padding that could be told"
        record.not_applicable((), SAME, reason, samples=problem.train)
        return
    runs = found.runs.cpu()
    cut = int(runs[runs > 0].median())
    rows = (runs >= cut).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=record.generator)[:MOST]]
    if len(rows) < FEWEST:
        reason = f"fewer than {FEWEST} sequences have padding enough to be shortened"
        record.not_applicable((), SAME, reason, samples=problem.train)
        return
    samples = problem.train.at(rows)
    shorter = samples.x[:, cut:] if found.first else samples.x[:, :-cut]
    short = Samples(shorter, samples.y)
    try:
        outputs = problem.outputs(short)
    except TorchTheoryError:
        reason = "the model takes sequences of one length, so padding could not be taken away"
        record.not_applicable((), SAME, reason)
        return
    changed = _changed(problem, samples, short, outputs, record.confidence)
    number = record.quantity(
        "changed-by-padding",
        "share of answers that change when padding is taken away"
        if problem.is_classification
        else "change of the answers when padding is taken away, in deviations of the answers",
        changed, samples=samples,
    )  # fmt: skip
    usual = below(CHANGED if problem.is_classification else MOVED)
    before, after = (float(costs(problem, s).mean()) for s in (samples, short))
    where = "before" if found.first else "after"
    if number.high <= usual.high:
        record.fine("Answers do not depend on the padding.", number=number, usual=usual)
        return
    record.look(
        f"Padding is attended: of sequences with {cut} fewer padding tokens (token {found.token}) "
        f"{where} them, the network {instead(problem, after, before)}, and "
        f"{100 * number.value:.3g}% "
        + ("of its answers change." if problem.is_classification else "of their spread is moved."),
        number=number, usual=usual,
        action="Mask the padding: in attention by key_padding_mask, in means by the lengths, in "
        "recurrent layers by pack_padded_sequence.",
    )  # fmt: skip


def _changed(
    problem: Problem, samples: Samples, short: Samples, outputs: Tensor, confidence: float
) -> Interval:
    """Share of other classes, or root mean square change over the spread of the outputs."""
    if problem.is_classification:
        (one, _), (two, _) = classes_said(problem, samples), classes_said(problem, short)
        return clopper_pearson(int((one != two).sum()), len(samples), confidence)
    before = problem.outputs(samples).double()
    spread = float(problem.outputs(problem.train).double().std()) or 1.0
    each = (outputs.double() - before).reshape(len(samples), -1).square().mean(1).cpu()
    found = mean_interval(each, confidence)
    low, mean, high = (max(0.0, v) ** 0.5 / spread for v in (found.low, found.estimate, found.high))
    return Interval(mean, low, high, confidence, len(samples), found.test)
