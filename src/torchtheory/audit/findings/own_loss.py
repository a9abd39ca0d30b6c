"""Finding: the user's own loss on training and new data, where nothing else is known of targets."""

from __future__ import annotations

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, has_loss, only_a_loss
from torchtheory.audit.findings.skill import FEWEST, without_test_data
from torchtheory.core.diagnosis import Area
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.usual import above
from torchtheory.models.problem import Problem
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
    _against_a_constant(problem, record)
    if problem.test is None:
        without_test_data(record)
    elif "test" in found and "train" in found:
        _gap(record, found["train"], found["test"])


def _against_a_constant(problem: Problem, record: FindingRecord) -> None:
    """Whether the outputs are worth more than one for all, which descent has found."""
    samples = problem.train.first(min(MOST, len(problem.train)))
    if len(samples) < FEWEST:
        return
    outputs = problem.outputs(problem.train)[: len(samples)]
    constant = least_constant(problem, samples, [outputs.double().mean(0).to(outputs)])
    with torch.no_grad():
        own = torch.stack([problem.loss(outputs[k : k + 1], samples.y[k : k + 1]).reshape(())
                           for k in range(len(samples))]).double()  # fmt: skip
        other = torch.stack([problem.loss(constant[None], samples.y[k : k + 1]).reshape(())
                             for k in range(len(samples))]).double()  # fmt: skip
    gain = mean_interval((other - own).cpu(), record.confidence)
    number = record.quantity(
        "gain-on-constant", "loss of the best constant output found, minus its own, in training",
        gain, samples=samples,
    )  # fmt: skip
    compared = (
        f"its mean loss is {float(own.mean()):.4g} on the training data, and "
        f"{float(other.mean()):.4g} with one output for all samples"
    )
    usual = above(0)
    if gain.high < 0:
        record.defect(
            f"The network is worse than one output for all samples: {compared}.",
            number=number, usual=usual, area=Area.FIT,
            action="Check that these are the trained weights, and that the loss is that of "
            "training.",
        )  # fmt: skip
    elif gain.low > 0:
        record.fine(f"{compared[:1].upper()}{compared[1:]}.", number=number, usual=usual,
                    area=Area.FIT)  # fmt: skip
    else:
        record.open(number, usual, area=Area.FIT)


def _gap(record: FindingRecord, train: Interval, test: Interval) -> None:
    """How much larger the loss is on new data: a number, which no scale judges."""
    record.quantity(
        "gap", "mean loss on new data minus that on the training data",
        test.estimate - train.estimate, low=test.low - train.high, high=test.high - train.low,
        basis=f"{record.confidence:.4g} {test.test}",
    )  # fmt: skip
