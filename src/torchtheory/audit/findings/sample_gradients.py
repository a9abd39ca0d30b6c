"""The gradients of single samples: their mean, and the noise of batches of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.audit.findings.optimization import FEWEST, precise
from torchtheory.audit.findings.squared_gradient import squared_gradient
from torchtheory.core.intervals import Interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.report.numbers import size_words

#: Gradients that are taken one by one for their noise, and the fewest it is told from.
GRADIENTS, FEWEST_GRADIENTS = 64, 8

UNBIASED = r"\frac1n\sum_i\nabla L_i=\nabla L"

BATCHES = r"\mathbb E\|\nabla L_B-\nabla L\|^2=\frac{\operatorname{var}}{r}\cdot\frac{n-r}{n-1}"


@finding(
    "gradient-noise",
    area="training",
    title="How large a batch the gradient's noise asks for",
    cost="gradient",
    covers=["L-136", "L-137"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def gradient_noise(problem: Problem, record: FindingRecord) -> None:
    """Gradients of groups of samples: their spread against their mean; and of single samples."""
    problem = precise(problem)
    train = problem.train
    size = problem.function.count * problem.function.reference().element_size()
    room = problem.memory // (8 * size)
    count = min(len(train), problem.affordable(6, 0.3))
    samples = train.some(count, record.generator)
    complete = count >= train.population
    found = None
    if complete or count >= FEWEST:
        found = squared_gradient(problem, record, samples)
    if found is None:
        record.not_done(
            "L-136",
            UNBIASED,
            "not measured, the gradient and its noise: there was time or memory for too few "
            "gradients",
        )
    else:
        _record_gradient(record, found, samples)
    most = min(GRADIENTS, problem.affordable(12, 0.3), room)
    if min(most, len(train)) < FEWEST_GRADIENTS:
        record.not_done("L-137", BATCHES, "there is time or memory for too few gradients")
        return
    single = samples.some(most, record.generator)
    rows = [gradient(problem, single.at(torch.tensor([i]))) for i in range(len(single))]
    g = torch.stack(rows).double().cpu()
    _unbiased(record, g, gradient(problem, single).cpu(), single)
    _batches(record, g @ g.T, single)


def _record_gradient(
    record: FindingRecord, found: tuple[Interval, Interval], samples: Samples
) -> None:
    square, ratio = found
    basis = (
        "all samples, rounding"
        if len(samples) >= samples.population
        else f"jackknife over groups, {len(samples):,} of {samples.population:,} samples; the part "
        "that is noise is taken off"
    )
    norm = record.quantity(
        "gradient-norm", "norm of the gradient of the training loss", math.sqrt(square.estimate),
        low=math.sqrt(square.low), high=math.sqrt(square.high), basis=basis, samples=samples,
    )  # fmt: skip
    if ratio.estimate == math.inf:
        return  # no noise, so no batch to ask for
    value, low, high = (
        1 / v if v > 0 else math.inf for v in (ratio.estimate, ratio.high, ratio.low)
    )
    scale = record.quantity(
        "gradient-noise-scale", "batch at which the gradient's noise equals the gradient",
        value, low=low, high=high, unit="samples", samples=samples,
        basis=f"jackknife over groups, {len(samples):,} of {samples.population:,} samples",
    )  # fmt: skip
    if math.isfinite(high):
        record.advise(
            f"Batches far beyond {max(1.0, high):,.0f} samples hardly reduce the number of steps "
            f"at these weights{part_of(samples)}: there the gradient stands out of its noise."
        )
    known = size_words(scale) if high > 1 else "1"
    record.headline(
        f"The gradient of the training loss has norm {size_words(norm)}{part_of(samples)}; the "
        f"noise of batches of {known} samples is as large.",
    )


def _batches(record: FindingRecord, gram: Tensor, samples: Samples) -> None:
    """The mean over all batches of two samples, one by one, beside the formula."""
    n, r = len(gram), 2
    centered = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    variance = float(centered.diagonal().mean())
    if variance <= 1e-12 * float(gram.diagonal().mean()):
        record.not_applicable(
            "L-137", BATCHES, "all gradients are equal: there is no noise", samples=samples
        )
        return
    one, two = torch.triu_indices(n, n, 1)
    own = centered.diagonal()
    noise = (own[one] + own[two] + 2 * centered[one, two]) / r**2
    says = record.checks("L-137", BATCHES)
    says.equal(
        float(noise.mean()) / variance,
        (n - r) / (n - 1) / r,
        1e-9,
        where=f"over var, for all {len(one):,} batches of {r} of {n} samples without replacement",
    )
    again = (own[:, None] + own + 2 * centered).mean() / r**2
    says.fails("batches drawn with replacement", float(again) / variance)


def _unbiased(record: FindingRecord, single: Tensor, whole: Tensor, samples: Samples) -> None:
    """The gradients of single samples have the gradient of the loss for their mean."""
    size = float(single.norm(dim=1).mean())
    # sums over samples in another order
    rounding = 300 * torch.finfo(whole.dtype).eps
    if rounding > 0.01:
        coarse = str(whole.dtype).removeprefix("torch.")
        record.not_applicable("L-136", UNBIASED, f"{coarse} is too coarse to tell")
        return
    if size == 0:
        record.not_applicable("L-136", UNBIASED, "all gradients are 0", samples=samples)
        return
    error, without = (float((g.mean(0) - whole).norm()) / size for g in (single, single[1:]))
    says = record.checks("L-136", UNBIASED)
    says.equal(
        error,
        within=rounding,
        where="norm of the difference over the mean norm of a single gradient",
    )
    if without > rounding:
        says.fails("one sample is left out", without)
