r"""Finding: the deviance of predicted counts, and whether they scatter as Poisson's law says."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import counts, deterministic
from torchtheory.audit.findings.skill import FEWEST, Scored, Words, judge_skill, per_sample
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import mean_interval
from torchtheory.core.usual import below, between
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: A rate of 0 would make any count impossible.
LEAST_RATE = 1e-8

#: How the scatter, and the sum of predictions over that of counts, may differ from 1.
SCATTER, TOTAL = 2.0, 1.25

WORDS = Words("mean deviance of the counts", "always predicting the mean count")


def rates(problem: Problem, samples: Samples) -> Tensor:
    """Predicted mean counts, in the shape of the outputs, in float64."""
    outputs = problem.outputs(samples).double()
    return (outputs.exp() if problem.outputs_are_logarithms else outputs).clamp_min(LEAST_RATE)


def deviance(y: Tensor, rate: Tensor) -> Tensor:
    r"""$2(y\log(y/\mu)-y+\mu)$ of counts $y$ and rates $\mu$, entry by entry.

    >>> deviance(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0])).tolist()
    [2.0, 0.0]
    """
    y, rate = y.double(), rate.double()
    logarithms: Tensor = torch.special.xlogy(y, y / rate)
    return 2 * (logarithms - y + rate)


@finding(
    "count-errors",
    area="generalization",
    title="Predicted counts: their deviance and scatter",
    cost="forward",
    needs=[counts, deterministic],
    whole=True,
)
def count_errors(problem: Problem, record: FindingRecord) -> None:
    """Deviance against that of the mean count; predictions in sum; scatter around them."""
    mean = problem.train.y.double().mean(0).clamp_min(LEAST_RATE)
    sets = {"train": problem.train} | ({} if problem.test is None else {"test": problem.test})
    scored = {
        name: Scored(s, per_sample(deviance(s.y, rates(problem, s))),
                     per_sample(deviance(s.y, mean.expand_as(s.y))))
        for name, s in sets.items()
    }  # fmt: skip
    judge_skill(record, scored, WORDS)
    if problem.test is not None and len(problem.test) >= FEWEST:
        _law(problem, record, problem.test)


def _law(problem: Problem, record: FindingRecord, samples: Samples) -> None:
    """Sum and scatter on new data: 1 of both where counts follow Poisson's law with these rates."""
    rate, y = rates(problem, samples), samples.y.double()
    scatter = record.quantity(
        "scatter", "squared error over the predicted count, on average, on new data",
        mean_interval(per_sample((y - rate).square() / rate), record.confidence), samples=samples,
    )  # fmt: skip
    found = Scored(samples, per_sample(rate), per_sample(y)).skill(record.confidence)
    if found is None:
        return
    total = record.quantity(
        "total", "sum of the predictions over that of the counts, on new data", 1 - found.estimate,
        low=1 - found.high, high=1 - found.low, basis=f"{record.confidence:.4g} {found.test}",
        samples=samples,
    )  # fmt: skip
    usual = between(1 / TOTAL, TOTAL)
    if total.low > TOTAL or total.high < 1 / TOTAL:
        side = "many" if total.value > 1 else "few"
        record.defect(
            f"It predicts too {side}: its predictions sum to {total.value:.2g} times the counts of "
            "the test data.",
            number=total, usual=usual, area=Area.CALIBRATION,
            action="Check the exposure and whether outputs are logarithms of rates; else multiply "
            f"the rates by {1 / total.value:.2g}.",
        )  # fmt: skip
    elif scatter.low > SCATTER:
        record.look(
            f"Counts scatter {scatter.value:.2g} times as much around the predictions as Poisson's "
            "law says, so ranges by that law are too narrow.",
            number=scatter, usual=below(SCATTER), area=Area.CALIBRATION,
            action="Use a law with a variance of its own, such as the negative binomial one.",
        )  # fmt: skip
    elif scatter.high > SCATTER:
        record.open(scatter, below(SCATTER), area=Area.CALIBRATION)
    else:
        record.fine(
            f"Its predictions sum to {total.value:.3g} times the counts of the test data, which "
            f"scatter {scatter.value:.2g} times as much as Poisson's law says.",
            number=total, usual=usual, area=Area.CALIBRATION,
        )  # fmt: skip
