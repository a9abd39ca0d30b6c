"""Are the running statistics of batch normalization those of the data?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import grouped, jackknife_range, part_of
from torchtheory.audit.findings.hypotheses import deterministic
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import at_most, below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.landscape.batch_statistics import (
    batch_normalizations,
    with_renewed_statistics,
)
from torchtheory.report.numbers import size_words
from torchtheory.report.wording import counted

#: Samples looked at, most groups of them, and least samples of a group, which is normalized alone.
SAMPLES, GROUPS, LEAST = 2048, 16, 32

#: Standard deviations that statistics may be off: exponential averages of the last batches of
#: training are off by a twentieth or so, and those that were reset by more than a tenth.
OFF, RESET_OFF = 0.5, 0.1

#: That other statistics make the loss smaller is said at this confidence, and worth a look where
#: they take off this share of it.
CONFIDENCE, WORTH = 0.999, 0.1

#: Where a larger share of its first value is left in an exponential average, it remembers it.
REMEMBERED = 0.05

ACTION = (
    "Let the model see the training data in training mode once: "
    "torch.optim.swa_utils.update_bn(loader, model)."
)


def carries_statistics(problem: Problem) -> str | None:
    if batch_normalizations(problem):
        return None
    return "the model has no batch normalization with running statistics"


@dataclass(frozen=True, slots=True)
class Compared:
    """The running statistics of a layer against those of groups of samples.

    Attributes:
        layer: its name.
        off: how far they are from those of all samples, in standard deviations: the median over
            channels of the distance of (mean, logarithm of the deviation).
        without: the same with one group left out, `[G]`.
        largest: the same as `off` of the channel that is farthest off.
        reset: whether they are those of a layer that has seen no data.
    """

    layer: str
    off: float
    without: Tensor
    largest: float
    reset: bool


@finding(
    "normalization-statistics",
    area="signals",
    title="Are the statistics of batch normalization those of the data?",
    cost="forward",
    needs=[carries_statistics, deterministic],
)
def normalization_statistics(problem: Problem, record: FindingRecord) -> None:
    """Running means and variances against those of the training data, layer by layer.

    Each group of samples is normalized by its own statistics, as in training, so that a layer is
    not blamed for the statistics of those before it.
    """
    samples = problem.train.some(min(SAMPLES, problem.affordable(3)), record.generator)
    statement = r"\mu_{\text{running}} = \mu_{\text{data}}"
    if len(samples) < 2 * LEAST:
        if len(samples) < samples.population:
            record.not_done((), statement, f"there was time for {len(samples)} samples only")
        else:
            record.not_applicable((), statement, f"{len(samples)} samples are too few")
        return
    if problem.chunk < LEAST:  # the statistics of a few samples are not those of a batch
        record.not_done(
            (), statement, f"batches of {LEAST} samples do not fit into the time or memory there is"
        )
        return
    parts, shares = grouped(samples, record.generator, min(GROUPS, len(samples) // LEAST))
    renewed = [with_renewed_statistics(problem, part) for part in parts]
    compared = _compare(problem, renewed, shares)
    record.table(
        "statistics",
        ("layer", "off by (standard deviations)", "worst channel", "as if it had seen no data"),
        [(c.layer, c.off, c.largest, c.reset) for c in compared],
        caption="How far the running statistics of every batch normalization are from those of "
        f"{len(samples):,} training samples: median over channels, and the "
        "channel that is farthest off.",
    )
    reset = [c for c in compared if c.reset and c.off > RESET_OFF]
    worst = max(reset or compared, key=lambda c: c.off)
    made = jackknife_range(
        worst.off, worst.without, len(samples), samples.population, record.confidence
    )
    off = record.quantity(
        "statistics-off",
        "distance of running statistics from the data's, median channel, worst layer",
        made.estimate,
        low=max(0.0, made.low),
        high=made.high,
        basis=f"{record.confidence:.4g} {made.test}",
        unit="standard deviations",
        samples=samples,
    )
    data = problem.test if problem.test is not None else problem.train
    other = _averaged(problem, renewed, shares)
    saved = _saved_loss(problem, other, data)
    gained = None if saved is None else _gained(problem, record, saved, data)
    if not reset and off.low <= OFF:
        farthest = max(compared, key=lambda c: c.largest)
        record.headline(
            f"The running statistics of batch normalization are {size_words(off)} standard "
            f"deviations from those of the training data in the median channel of layer "
            f"{worst.layer}, the worst by that, and {farthest.largest:.2g} in the worst channel of "
            f"all, which is one of layer {farthest.layer}{part_of(samples)}.",
        )
        if gained is not None and gained.low > WORTH:
            record.look(
                "Batch normalization holds statistics that are not the best there are. "
                f"{_effect(problem, other, data)}",
                number=gained,
                usual=below(WORTH),
                action=ACTION,
            )
        return
    _assess(problem, other, record, worst, len(reset), off, saved)


def _gained(
    problem: Problem, record: FindingRecord, saved: Interval, data: Samples
) -> Quantity | None:
    """What renewed statistics take off the loss, as a share of it; None where there is no loss."""
    risk = problem.risk(data)
    if not risk > 0:
        return None
    what = "new data" if data is problem.test else "the training data"
    return record.quantity(
        "loss-saved-by-renewing",
        f"share of the loss on {what} that renewing the statistics saves",
        saved.estimate / risk,
        low=saved.low / risk,
        high=saved.high / risk,
        basis=f"{saved.confidence:.4g} {saved.test}, {saved.trials} groups of samples",
        samples=data,
    )


def _compare(problem: Problem, renewed: list[Problem], shares: Tensor) -> list[Compared]:
    compared = []
    for name, op in batch_normalizations(problem).items():
        eps = float(op.arguments["eps"])
        mean, variance = (
            problem.function.buffers[f"{name}.{b}"].double()
            for b in ("running_mean", "running_var")
        )
        means, variances = (
            torch.stack([r.function.buffers[f"{name}.{b}"].double() for r in renewed])
            for b in ("running_mean", "running_var")
        )

        def each(
            weights: Tensor,
            mean: Tensor = mean,
            variance: Tensor = variance,
            means: Tensor = means,
            variances: Tensor = variances,
            eps: float = eps,
        ) -> Tensor:
            weights = (weights / weights.sum()).to(means)
            center, size = weights @ means, weights @ variances + eps
            shift = (mean - center).square() / size
            scale = ((variance + eps) / size).log().div(2).square()
            return (shift + scale).sqrt()

        without = []
        for k in range(len(renewed)):
            weights = shares.clone()
            weights[k] = 0.0
            without.append(float(each(weights).median()))
        reset = bool((mean == 0).all()) and bool((variance == 1).all())
        off = each(shares)
        compared.append(
            Compared(name, float(off.median()), torch.tensor(without), float(off.max()), reset)
        )
    return compared


def _averaged(problem: Problem, renewed: list[Problem], shares: Tensor) -> Problem:
    """The problem with the statistics of all groups together."""
    other = problem.at({})
    other.function.buffers = dict(problem.function.buffers)
    for name in batch_normalizations(problem):
        for buffer in ("running_mean", "running_var"):
            key = f"{name}.{buffer}"
            parts = torch.stack([r.function.buffers[key] for r in renewed])
            weights = shares.to(parts).reshape(-1, *[1] * (parts.ndim - 1))
            other.function.buffers[key] = (weights * parts).sum(0)
    return other


def _assess(
    problem: Problem,
    renewed: Problem,
    record: FindingRecord,
    worst: Compared,
    reset: int,
    off: Quantity,
    saved: Interval | None,
) -> None:
    data = problem.test if problem.test is not None else problem.train
    if not reset and (saved is None or saved.low <= 0):
        record.note(
            f"The running statistics of layer {worst.layer} are {size_words(off)} standard "
            "deviations from those of the training data, but with those of the data the loss is "
            "not smaller: the network may have been trained with statistics that were kept fixed."
        )
        return
    if not reset and (batches := _few_batches(problem, worst.layer)):
        record.look(
            f"Batch normalization has seen {batches} batches only, and its statistics still "
            f"remember the values they began with. {_effect(problem, renewed, data)}",
            number=off,
            usual=below(OFF, f"below {OFF:g} standard deviations"),
            action=ACTION,
        )
        return
    many = len(batch_normalizations(problem))
    who = (
        f"{counted(reset, 'batch normalization')} of {many} "
        f"{'holds' if reset == 1 else 'hold'} the statistics of a layer that has seen no data"
        if reset
        else f"Batch normalization holds statistics of other data: those of layer {worst.layer} "
        f"are {size_words(off)} standard deviations from the training data's"
    )
    number, usual = off, below(OFF, f"below {OFF:g} standard deviations")
    if reset:
        number = record.quantity(
            "statistics-at-start", "normalizations whose statistics are those of the start", reset
        )
        usual = at_most(0, "0")
    record.defect(
        f"{who}. {_effect(problem, renewed, data)}",
        number=number,
        usual=usual,
        action=ACTION,
    )


def _few_batches(problem: Problem, layer: str) -> int:
    """How many batches a layer has seen, if so few that its averages are not yet those of data."""
    batches = problem.function.buffers.get(f"{layer}.num_batches_tracked")
    # 0 in evaluation mode where all batches count alike
    momentum = batch_normalizations(problem)[layer].arguments["momentum"]
    if batches is None or not momentum:
        return 0
    seen = int(batches)
    return seen if (1 - momentum) ** seen > REMEMBERED else 0


def _saved_loss(problem: Problem, renewed: Problem, data: Samples) -> Interval | None:
    """How much smaller the loss is with the renewed statistics, over groups of samples."""
    parts = torch.tensor_split(torch.arange(len(data)), min(SAMPLES, len(data)))
    if len(parts) < 2:
        return None
    before, after = problem.outputs(data), renewed.outputs(data)
    with torch.no_grad():
        saved = [
            float(problem.loss(before[p], data.y[p]) - problem.loss(after[p], data.y[p]))
            for p in (part.to(before.device) for part in parts)
        ]
    return mean_interval(saved, CONFIDENCE)


def _effect(problem: Problem, renewed: Problem, data: Samples) -> str:
    what = "test data" if data is problem.test else "training data"
    if problem.is_classification:
        now, then = (float(p.errors(data).double().mean()) for p in (problem, renewed))
        return (
            f"It errs on {now:.1%} of the {what}, and on {then:.1%} with the statistics of the "
            "training data."
        )
    return (
        f"The mean loss on the {what} is {problem.risk(data):.3g}, and {renewed.risk(data):.3g} "
        "with the statistics of the training data."
    )
