"""Finding: the user's own loss on training and new data, where nothing else is known of targets."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, has_loss, only_a_loss
from torchtheory.audit.findings.skill import FEWEST, without_test_data
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.usual import above
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.losses.risks import least_constant, sample_losses

#: Training samples that the best constant output is found by, at most.
MOST = 2048


@finding(
    "own-loss",
    area="generalization",
    title="The loss on training and new data",
    cost="forward",
    needs=[only_a_loss, has_loss, deterministic],
    whole=True,
)
def own_loss(problem: Problem, record: FindingRecord) -> None:
    """Mean losses with ranges, and whether outputs are better than the same for all samples."""
    losses = {"train": sample_losses(problem, problem.train).double().cpu()}
    if problem.test is not None:
        losses["test"] = sample_losses(problem, problem.test).double().cpu()
    found: dict[str, Interval] = {}
    for name, values in losses.items():
        samples = problem.train if name == "train" else problem.test
        assert samples is not None
        known = name == "train" and len(samples) >= samples.population
        if len(values) > 1:
            found[name] = mean_interval(values, record.confidence)
            where = "new data" if name == "test" else "the training data"
            record.quantity(
                f"{name}-loss", f"mean loss on {where}",
                found[name].estimate if known else found[name], samples=samples,
            )  # fmt: skip
    record.table(
        "losses",
        ("data", "samples", "mean loss", "from", "to"),
        [(n, len(losses[n]), i.estimate, i.low, i.high) for n, i in found.items()],
        caption=f"Intervals at {record.confidence:.0%}, over samples.",
    )
    if found:
        record.headline(
            "; ".join(
                f"mean loss {i.estimate:.4g} on {'new' if n == 'test' else 'the training'} data"
                for n, i in found.items()
            ).capitalize()
            + "."
        )
    constant = _constant(problem)
    _against_a_constant(problem, record, problem.train, losses["train"], constant)
    if problem.test is None:
        without_test_data(record)
        return
    _against_a_constant(problem, record, problem.test, losses["test"], constant)
    if len(found) == 2:
        _gap(record, found["train"], found["test"])


def _constant(problem: Problem) -> Tensor:
    """The output that serves the training samples best, of all that descent finds."""
    samples = problem.train.first(min(MOST, len(problem.train)))
    outputs = problem.outputs(problem.train)[: len(samples)]
    return least_constant(problem, samples, [outputs.double().mean(0).to(outputs)])


def _against_a_constant(
    problem: Problem, record: FindingRecord, samples: Samples, losses: Tensor, constant: Tensor
) -> None:
    """Whether the outputs are worth more than one for all samples."""
    some = samples.first(min(MOST, len(samples)))
    if len(some) < FEWEST:
        return
    train = samples is problem.train
    own = losses[: len(some)]
    with torch.no_grad():
        other = torch.stack(
            [problem.loss(constant[None], some.y[k : k + 1]).reshape(()) for k in range(len(some))]
        )
    other = other.double().cpu()
    gain = mean_interval(other - own, record.confidence)
    where = "the training data" if train else "new data"
    number = record.quantity(
        f"{'train' if train else 'test'}-gain",
        f"loss of the best constant output found, minus its own, on {where}", gain, samples=some,
    )  # fmt: skip
    compared = (
        f"its mean loss is {float(own.mean()):.4g} on {where}, and {float(other.mean()):.4g} with "
        "one output for all samples"
    )
    usual, area = above(0), Area.FIT if train else Area.GENERALIZATION
    if gain.high < 0:
        action = (
            "Check that these are the trained weights, and that the loss is that of training."
            if train
            else "Check that training and test data are prepared alike; else stop training earlier."
        )
        record.defect(
            f"The network is worse than one output for all samples: {compared}.",
            number=number, usual=usual, area=area, action=action,
        )  # fmt: skip
    elif gain.low > 0:
        sentence = f"{compared[:1].upper()}{compared[1:]}."
        record.fine(sentence, number=number, usual=usual, area=area)
    else:
        record.open(number, usual, area=area)


def _gap(record: FindingRecord, train: Interval, test: Interval) -> None:
    """How much larger the loss is on new data: a number, which no scale judges."""
    record.quantity(
        "gap", "mean loss on new data minus that on the training data",
        test.estimate - train.estimate, low=test.low - train.high, high=test.high - train.low,
        basis=f"{record.confidence:.4g} {test.test}",
    )  # fmt: skip
