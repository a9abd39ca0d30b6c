"""Finding: how many levels predictions of ordered levels are off."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, ordered_levels
from torchtheory.audit.findings.skill import Scored, Words, judge_skill
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

WORDS = Words("mean number of levels off", "always naming the median level")


def levels(problem: Problem, samples: Samples) -> tuple[Tensor, Tensor]:
    """Predicted and true levels `[n]`, whole numbers.

    A single output is rounded to the nearest level of the training data's range; of thresholds,
    those that are reached are counted.
    """
    outputs, y = problem.outputs(samples).flatten(1), samples.y.flatten(1)
    if outputs.shape[1] > 1:
        return (outputs > problem.decision_level).sum(1).cpu(), y.sum(1).long().cpu()
    low, high = float(problem.train.y.min()), float(problem.train.y.max())
    return outputs[:, 0].round().clamp(low, high).long().cpu(), y[:, 0].long().cpu()


@finding(
    "level-errors",
    area="generalization",
    title="Ordered levels: how far off predictions are",
    cost="forward",
    needs=[ordered_levels, deterministic],
    whole=True,
)
def level_errors(problem: Problem, record: FindingRecord) -> None:
    """Levels off on average against those of the median level; shares of wrong ones."""
    middle = levels(problem, problem.train)[1].median()
    scored, rows = {}, []
    for name, samples in (("train", problem.train), ("test", problem.test)):
        if samples is None:
            continue
        said, true = levels(problem, samples)
        off = (said - true).abs()
        scored[name] = Scored(samples, off.double(), (true - middle).abs().double())
        wrong = clopper_pearson(int((off > 0).sum()), len(off), record.confidence)
        known = name == "train" and len(samples) >= samples.population
        where = "new data" if name == "test" else "the training data"
        record.quantity(
            f"{name}-wrong-levels", f"share of wrong levels on {where}",
            wrong.estimate if known else wrong, samples=samples,
        )  # fmt: skip
        rows.append((name, len(off), wrong.estimate, float((off > 1).double().mean()),
                     int(off.max())))  # fmt: skip
    record.table(
        "levels",
        ("data", "samples", "share of wrong levels", "share off by two or more", "most levels off"),
        rows,
    )
    judge_skill(record, scored, WORDS)
    _never_predicted(problem, record)


def _never_predicted(problem: Problem, record: FindingRecord) -> None:
    """Levels that occur and are never predicted, beyond chance."""
    said, true = levels(problem, problem.train)
    n = len(true)
    values = sorted(set(true.tolist()))
    each = 1 - (1 - record.confidence) / len(values)
    most = clopper_pearson(0, n, each).high
    never = [
        v
        for v in values
        if not bool((said == v).any())
        and clopper_pearson(int((true == v).sum()), n, each).low > most
    ]
    if not never:
        return
    share = torch.isin(true, torch.tensor(never)).sum()
    number = record.quantity(
        "never-predicted", "samples whose level is never predicted",
        clopper_pearson(int(share), n, record.confidence), samples=problem.train,
    )  # fmt: skip
    names = ", ".join(map(str, never))
    record.look(
        f"It never predicts level {names} on the training data, and {number.value:.0%} of the "
        "samples have it.",
        number=number, usual=at_most(0, "0"), area=Area.FIT,
        action="Look at the order of the thresholds, or weight rare levels more.",
    )  # fmt: skip
