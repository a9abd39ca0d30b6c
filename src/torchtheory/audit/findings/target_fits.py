"""Finding: how well each of several regression targets is predicted, each on its own scale."""

from __future__ import annotations

from dataclasses import replace

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, several_targets
from torchtheory.audit.findings.skill import FEWEST, LITTLE, Scored
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval
from torchtheory.core.usual import above
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.models.target_facts import FAR, scales


def fit_of_each(problem: Problem, samples: Samples, confidence: float) -> list[Interval | None]:
    """R² of every target against the mean of the training targets; None where it does not vary."""
    y = samples.y.double().reshape(len(samples), -1)
    outputs = problem.outputs(samples).double().reshape(len(samples), -1)
    mean = problem.train.y.double().reshape(len(problem.train), -1).mean(0)
    own, constant = (y - outputs).square(), (y - mean).square()
    return [Scored(samples, own[:, k], constant[:, k]).skill(confidence) for k in range(y.shape[1])]


@finding(
    "target-fits",
    area="generalization",
    title="How well each of several targets is predicted",
    cost="forward",
    needs=[several_targets, deterministic],
    whole=True,
)
def target_fits(problem: Problem, record: FindingRecord) -> None:
    """R² of each target with its range: a mean over targets is about those of the largest scale."""
    train = fit_of_each(problem, problem.train, record.confidence)
    tested = problem.test is not None and len(problem.test) >= FEWEST
    test = fit_of_each(problem, problem.test, record.confidence) if problem.test else None
    _, spread = scales(problem.train.y)
    weight = spread.square() / spread.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    shown = test if test is not None else train
    record.table(
        "targets",
        ("target", "standard deviation", "share of the squared scale", "R² in training",
         "R² on new data", "from", "to"),
        [
            (k, float(spread[k]), float(weight[k]), _value(train[k]),
             None if test is None else _value(test[k]),
             *_ends(None if test is None else test[k]))
            for k in range(len(train))
        ],
        caption=f"Against the mean of the training targets; intervals at {record.confidence:.0%}. "
        "The squared scale is what the mean squared error is made of before training.",
    )  # fmt: skip
    known = [k for k, i in enumerate(shown) if i is not None]
    if not known or len(problem.train) < FEWEST:
        return
    # the worst of several is chosen by the data: its range is at the confidence of all of them
    strict = 1 - (1 - record.confidence) / len(known)
    of = problem.test if tested else problem.train
    assert of is not None
    sure = fit_of_each(problem, of, strict)
    where = "new data" if tested else "the training data"
    varying = [(k, i) for k, i in enumerate(sure) if i is not None]
    if not varying:
        return
    worst, found = min(varying, key=lambda pair: pair[1].estimate)
    number = record.quantity(
        "worst-target", f"R² of target {worst}, the least, on {where}",
        replace(found, confidence=record.confidence), samples=of,
        basis=f"{record.confidence:.4g} for all {len(known)} targets, {found.test}",
    )  # fmt: skip
    record.headline(
        f"R² of the {len(known)} targets on {where} runs from {found.estimate:.3g} (target "
        f"{worst}) to {max(i.estimate for _, i in varying):.3g}."
    )
    best = max(i.low for _, i in varying)
    if found.high < LITTLE and best > LITTLE:
        small = float(spread.max()) > FAR * float(spread[worst])
        why = (
            f" Its standard deviation is {float(spread[worst]):.2g}, and that of the largest "
            f"{float(spread.max()):.2g}: a mean squared error is about the latter."
            if small and problem.loss is torch.nn.functional.mse_loss
            else ""
        )
        record.look(
            f"Target {worst} is not learned though others are: its R² is {found.estimate:.2g} on "
            f"{where}.{why}",
            number=number, usual=above(LITTLE, f"above {LITTLE:g}, as others"), area=Area.FIT,
            action="Divide every target by its standard deviation before training, or weight "
            "their losses." if small else "Look at the targets of this column.",
        )  # fmt: skip


def _ends(found: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if found is None else (found.low, found.high)


def _value(found: Interval | None) -> float | None:
    return None if found is None else found.estimate
