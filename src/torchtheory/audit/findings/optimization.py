"""Findings about the loss around the solution: its curvature, and the step it allows."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import (
    grouped,
    largest_eigenvalue_range,
    loss_range,
    mean_range,
    part_of,
    spread_over_both,
    student,
)
from torchtheory.audit.findings.descent import change_of_loss, descend
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.core.budget import time_left
from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    UnsupportedModel,
)
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.random import rademacher
from torchtheory.core.usual import below
from torchtheory.linalg.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.linalg.operators import LinearOperator, apply
from torchtheory.linalg.trace import trace
from torchtheory.models.cost import seconds_taken
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient, hessian_operator
from torchtheory.report.numbers import size_words

#: Curvature is that of the mean loss over at most this many training samples. Fewer than `FEWEST`
#: of a larger number say too little about the others.
SAMPLES, FEWEST = 2048, 32

#: Products with the Hessian that the largest eigenvalue, the trace and their checks take, and what
#: one costs in forward passes.
PRODUCTS, PASSES = 80, 10

#: Vectors of the parameters' size that are held at once.
VECTORS = 16

#: Random vectors of the trace on all samples and on groups of some, where the samples' spread is
#: larger than that of the vectors; and how many are too few to tell theirs.
PROBES, GROUP_PROBES, FEW_PROBES = 45, 24, 6

#: Steps of gradient descent that are tried with the user's learning rate.
STEPS = 20

#: Times the stability limit beyond which even a network that flattens on its way is thrown out of
#: its valley (Lewkowycz et al., 2020: up to 4/λ it may be caught by a flatter one).
CATAPULT = 2.0

#: Two measurements of one curvature, at steps of different lengths, that are called equal.
AGREE = 0.01

STABLE = r"\eta < 2/\lambda_{\max} \;\Rightarrow\; |1 - \eta\, v^\top \nabla^2 L\, v| < 1"


@finding(
    "curvature",
    area="training",
    title="Top Hessian eigenvalue, trace and the largest stable step",
    cost="curvature",
    covers=["L-125"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def curvature(problem: Problem, record: FindingRecord) -> None:
    """Lanczos and random vectors on the Hessian of the training loss, checked by its gradients."""
    problem = precise(problem)
    drawn = affordable_samples(problem, record)
    if drawn is None:
        too_few(record, ["L-125"], STABLE)
        return
    samples, others = drawn
    hessian = hessian_operator(problem, samples)
    top = sharpest(hessian, record)
    sharpness = _sharpness(problem, record, top, samples, others)
    if sharpness.estimate <= 0:
        record.not_applicable(
            "L-125", STABLE, "no direction of positive curvature was found", samples=samples
        )
        _record_trace(problem, record, hessian, top, samples)
        return
    step = _step_limit(record, sharpness, samples)
    record.headline(
        f"The loss curves by {size_words(sharpness)} in its sharpest direction{part_of(samples)}: "
        + (
            f"gradient descent with a step above {step.high:.3g} is unstable here."
            if math.isfinite(step.high)
            else "too few samples to tell which steps of gradient descent are stable here."
        )
    )
    if problem.learning_rate is None and math.isfinite(step.high):
        record.advise(
            f"Keep the learning rate of plain gradient descent below {step.low:.3g} near "
            "these weights; with heavy-ball momentum β the limit is (1 + β) times that."
        )
    elif problem.learning_rate is not None:
        _try_learning_rate(problem, record, sharpness, samples, others, problem.learning_rate)
    _check_limit(problem, record, top, samples)
    _record_trace(problem, record, hessian, top, samples)
    if float(top.values[0]) > 0:
        _slice(problem, record, top, samples)


# ------------------------------------------------------------------------------- what is used


def precise(problem: Problem) -> Problem:
    """In double precision, where so many vectors of that size fit into the memory."""
    if problem.function.count * 8 * VECTORS > problem.memory:
        return problem
    return problem.in_double_if_possible()


def affordable_samples(
    problem: Problem, record: FindingRecord, passes: float = PASSES * PRODUCTS
) -> tuple[Samples, Samples] | None:
    """As many training samples as the time allows so many passes over, and others.

    The others are empty if all samples there are can be used. None where both are too few to say
    anything about the rest.
    """
    train = problem.train
    order = torch.randperm(len(train), generator=record.generator)
    count = problem.affordable(passes)
    if count < FEWEST <= problem.affordable(passes, share=1.5):
        count = FEWEST  # a little longer than planned is better than nothing
    count = min(SAMPLES, len(train), count)
    if count >= train.population:
        return train, train.at(order[:0])
    # a third at least has not chosen the direction of largest curvature, and judges it
    count = min(count, 2 * len(train) // 3)
    if count < FEWEST:
        return None
    return train.at(order[:count].sort().values), train.at(order[count : 2 * count].sort().values)


def too_few(record: FindingRecord, ids: list[str], statement: str) -> None:
    """Say that nothing was measured, because there was time for too few samples."""
    record.not_done(
        ids,
        statement,
        f"not measured: there was time for fewer than {FEWEST} samples, which say too little about "
        "the others; give a larger budget",
    )


def products_in(hessian: LinearOperator, share: float) -> int:
    """How many products fit into a share of the time left, at most 300."""
    if time_left() == math.inf:
        return 300
    direction = torch.ones(hessian.shape[1], dtype=hessian.dtype, device=hessian.device)
    seconds = seconds_taken(lambda: hessian @ direction)
    return max(1, min(300, int(share * time_left() / max(seconds, 1e-9))))


# ------------------------------------------------------------------------------ the curvature


def sharpest(
    hessian: LinearOperator,
    record: FindingRecord,
    *,
    tolerance: float | None = None,
    most: int = 300,
) -> EigenResult:
    """The largest eigenvalue with its vector, as near as the time allows."""
    try:
        return top_eigenpairs(
            hessian,
            1,
            tolerance=tolerance or (1e-4 if hessian.dtype == torch.float64 else 1e-3),
            steps=min(most, products_in(hessian, 0.5)),
            generator=record.generator,
        )
    except NonFinite:
        raise
    except InvalidInput as error:
        raise UnsupportedModel(
            "second derivatives taken in two orders differ: a layer's double backward is wrong "
            "in torch (that of weight_norm is), or the loss is flat up to rounding"
        ) from error


def eigenvalue_range(
    problem: Problem,
    record: FindingRecord,
    value: float,
    direction: Tensor,
    residual: float,
    samples: Samples,
    others: Samples,
    *,
    smallest: bool = False,
) -> Interval:
    """An end of the Hessian's spectrum on all training data, from one on some of them."""
    rounding = 100 * torch.finfo(direction.dtype).eps * abs(value)
    sign = -1.0 if smallest else 1.0

    def along(chosen: Samples) -> Tensor:
        if len(samples) >= samples.population or not len(chosen):
            return torch.zeros(0)
        parts, _ = grouped(chosen, record.generator)
        forms = [direction @ (hessian_operator(problem, p) @ direction) for p in parts]
        return sign * torch.stack(forms).cpu().double()

    found = largest_eigenvalue_range(
        sign * value,
        along(samples),
        along(others),
        used=len(samples),
        unseen=len(others),
        population=samples.population,
        residual=residual + rounding,
        confidence=record.confidence,
    )
    low, high = found.low - rounding, found.high
    if smallest:
        low, high = -high, -low
    return Interval(
        sign * found.estimate, low, high, record.confidence, len(samples), basis_of(samples)
    )


def basis_of(samples: Samples, more: str = "residual of Lanczos") -> str:
    if len(samples) >= samples.population:
        return more
    return f"{len(samples):,} of {samples.population:,} samples, {more}"


def _sharpness(
    problem: Problem, record: FindingRecord, top: EigenResult, samples: Samples, others: Samples
) -> Interval:
    found = eigenvalue_range(
        problem, record, float(top.values[0]), top.vectors[:, 0], float(top.residuals[0]),
        samples, others,
    )  # fmt: skip
    record.quantity(
        "sharpness", "largest eigenvalue of the Hessian, λ", found.estimate,
        low=found.low, high=found.high, basis=found.test, unit="loss per squared weight",
        samples=samples,
    )  # fmt: skip
    return found


def _record_trace(
    problem: Problem,
    record: FindingRecord,
    hessian: LinearOperator,
    top: EigenResult,
    samples: Samples,
) -> None:
    found = _trace(problem, record, hessian, top.vectors[:, 0], samples)
    if found is None:
        record.note("Not measured for want of time: the trace of the Hessian.")
        return
    count = hessian.shape[0]
    for name, label, divisor in (
        ("hessian-trace", "trace of the Hessian", 1),
        ("mean-curvature", "mean eigenvalue, trace / parameters", count),
    ):
        record.quantity(
            name, label, found.estimate / divisor,
            low=found.low / divisor, high=found.high / divisor,
            basis=basis_of(samples, "random vectors" if found.low < found.high else "all of it"),
            samples=samples,
        )  # fmt: skip


def _trace(
    problem: Problem,
    record: FindingRecord,
    hessian: LinearOperator,
    direction: Tensor,
    samples: Samples,
) -> Interval | None:
    """By as many products as the rest of the time allows; None where it allows too few."""
    size = hessian.shape[0]
    complete = len(samples) >= samples.population
    # groups are recorded one by one, which costs about as much again
    count = min(
        size,
        PROBES if complete or size <= PROBES else GROUP_PROBES,
        products_in(hessian, 0.6 if complete else 0.3),
    )
    if count < min(size, FEW_PROBES):
        return None
    if complete:
        few = size > 1_000_000  # no room for a second basis of that length
        found = trace(
            hessian, samples=count, method="hutchinson" if few else "hutch++",
            generator=record.generator,
        )  # fmt: skip
        random = count if few else count - 2 * (count // 3)
        error = student(record.confidence, max(1, random - 1)) * found.standard_error
        error += 100 * torch.finfo(hessian.dtype).eps * abs(found.value)
        ends = found.value - error, found.value + error
        return Interval(found.value, *ends, record.confidence, len(samples), "random vectors")
    parts, shares = grouped(samples, record.generator)
    if count == size:
        vectors = torch.eye(size, dtype=hessian.dtype, device=hessian.device)
    else:
        # the sharpest direction is taken as it is: it is what random vectors differ by most
        vectors = rademacher(
            size, count, generator=record.generator, dtype=hessian.dtype, device=hessian.device
        )
        vectors = vectors - torch.outer(direction, direction @ vectors)
    rows = []
    for part in parts:
        here = hessian_operator(problem, part)
        forms = (vectors * apply(here, vectors)).sum(0)
        if count < size:
            forms = forms + direction @ (here @ direction)
        rows.append(forms.cpu().double())
    table = torch.stack(rows)
    if count == size:
        sums = table.sum(1)
        value = float(shares @ sums)
        return mean_range(sums, len(samples), samples.population, record.confidence, value=value)
    value = float(shares @ table.mean(1))
    return spread_over_both(table, len(samples), samples.population, record.confidence, value=value)


# ---------------------------------------------------------------------------- the step it allows


def _step_limit(record: FindingRecord, sharpness: Interval, samples: Samples) -> Quantity:
    value = 2 / sharpness.estimate
    return record.quantity(
        "step-limit", "largest stable step of gradient descent, 2 / λ", value,
        low=2 / sharpness.high, high=2 / sharpness.low if sharpness.low > 0 else math.inf,
        basis=sharpness.test, samples=samples,
    )  # fmt: skip


def curvature_along(problem: Problem, samples: Samples, vector: Tensor) -> float | None:
    """The second derivative of the loss along a unit vector, from slopes on both sides.

    A long step moves ReLUs to their other side, a short one drowns in rounding: where two steps
    agree. None where no two do, as at a kink, or where the model cannot be run in double precision.
    """
    problem = problem.in_double_if_possible()  # two gradients, so the memory is no matter
    if problem.function.reference().dtype != torch.float64:
        return None
    vector = vector.to(torch.float64)
    samples = samples.in_precision(torch.float64)
    direction = unflatten(vector / vector.norm(), problem.trainable)
    vector = flatten(direction)
    scale = max(1.0, float(flatten(problem.trainable).norm()))
    longest = math.sqrt(torch.finfo(torch.float64).eps) * scale

    def measured(displacement: float) -> float:
        slopes = []
        for sign in (1.0, -1.0):
            moved = {
                k: p + sign * displacement * direction[k] for k, p in problem.trainable.items()
            }
            slopes.append(float(gradient(problem, samples, parameters=moved) @ vector))
        return (slopes[0] - slopes[1]) / (2 * displacement)

    found = [measured(longest * shorter) for shorter in (1.0, 0.1, 0.01, 0.001)]
    one, two = min(pairwise(found), key=lambda pair: abs(pair[0] - pair[1]))
    return two if abs(one - two) <= AGREE * max(abs(one), abs(two)) else None


def _check_limit(
    problem: Problem, record: FindingRecord, top: EigenResult, samples: Samples
) -> None:
    """Along the top eigenvector one step multiplies a small displacement by |1 - step * λ|."""
    sharpness = float(top.values[0])
    if sharpness <= 0:
        return
    measured = curvature_along(problem, samples, top.vectors[:, 0])
    if measured is None:
        record.not_applicable(
            "L-125",
            STABLE,
            "no two short steps along the top eigenvector agree on the curvature there: the loss "
            "has a kink at these weights, is flat up to rounding, or is computed too coarsely",
            samples=samples,
        )
        return
    # an eigenvalue that is not known better than that allows no finer test
    slack = min(0.5, max(0.05, 3 * float(top.residuals[0]) / sharpness))
    limit = 2 / sharpness
    says = record.checks("L-125", STABLE)
    says.below(
        abs(1.0 - (1 - slack) * limit * measured),
        1.0,
        where="growth of a small displacement along the top eigenvector in one step of gradient "
        f"descent, from two directional derivatives; step {1 - slack:.3g} times the limit",
    )
    says.fails(
        f"the step is {1 + slack:.3g} times the limit", abs(1.0 - (1 + slack) * limit * measured)
    )


def _slice(problem: Problem, record: FindingRecord, top: EigenResult, samples: Samples) -> None:
    """The loss along the sharpest direction, beside the parabola of its curvature."""
    sharpness = float(top.values[0])
    direction = unflatten(top.vectors[:, 0], problem.trainable)
    base = problem.risk(samples)
    slope = float(gradient(problem, samples) @ top.vectors[:, 0])
    # as far as the parabola rises by the loss itself, and at least by a hundredth
    reach = math.sqrt(2 * max(base, 0.01) / sharpness)
    steps = [reach * k / 10 for k in range(-10, 11)]
    losses = []
    for step in steps:
        moved = {k: p + step * direction[k] for k, p in problem.trainable.items()}
        losses.append(problem.at(moved).risk(samples))
    parabola = [base + slope * t + sharpness * t * t / 2 for t in steps]
    record.figure(
        "slice",
        lambda ax: _plot_slice(ax, steps, losses, parabola),
        caption="Training loss along its sharpest direction, and the parabola of its curvature at "
        f"these weights (0){part_of(samples)}.",
        size=(5, 2.8),
    )


def _plot_slice(ax: Any, steps: list[float], losses: list[float], parabola: list[float]) -> None:
    ax.plot(steps, losses, color=COLORS[0], label="loss")
    ax.plot(steps, parabola, "--", color=COLORS[1], label="parabola")
    ax.set(xlabel="distance", ylabel="loss")
    ax.legend()


# ------------------------------------------------------------------------ the user's learning rate


def _try_learning_rate(
    problem: Problem,
    record: FindingRecord,
    sharpness: Interval,
    samples: Samples,
    others: Samples,
    rate: float,
) -> None:
    """Some steps of gradient descent from these weights, and the same at half the limit.

    A step past the limit need not diverge: where the sharpest direction flattens on the way, the
    loss stays near the edge of stability. So the losses decide, not the limit alone.
    """
    limit = 2 / sharpness.estimate
    ours, point = descend(problem, samples, rate, STEPS)
    gentle, _ = descend(problem, samples, limit / 2, STEPS)
    over = record.quantity(
        "step-over-limit", "learning rate over the stability limit", rate / limit,
        low=max(0.0, rate * sharpness.low / 2), high=rate * sharpness.high / 2,
        basis=sharpness.test, samples=samples,
    )  # fmt: skip
    worse = _loss_after(problem, record, ours, point, samples, others)
    record.figure(
        "steps",
        lambda ax: _plot_steps(ax, ours, gentle, rate, limit),
        caption=f"Loss along {STEPS} steps of full gradient descent from these weights, tried on "
        f"a copy{part_of(samples)}.",
        size=(5, 2.8),
    )
    usual = below(1)
    times = f"{size_words(over)} times the stability limit 2/λ"
    if over.low > 1 and worse:
        record.defect(
            f"The learning rate {rate:g} is {times} at these weights: {STEPS} steps of gradient "
            f"descent take the loss from {ours[0]:.3g} to {ours[-1]:.3g}{part_of(samples)}.",
            number=over,
            usual=usual,
            action=f"Lower the learning rate below {2 / sharpness.high:.3g}, or warm up to it from "
            "there.",
            figure="steps",
        )
    elif over.low > CATAPULT:
        record.look(
            f"The learning rate {rate:g} is {times} at these weights, though {STEPS} steps did "
            f"not raise the loss{part_of(samples)}.",
            number=over,
            usual=usual,
            action=f"Lower the learning rate below {2 / sharpness.high:.3g} and see whether "
            "training is calmer.",
            figure="steps",
        )
    elif over.low > 1:
        record.headline(
            f"The learning rate {rate:g} is {times}, but {STEPS} steps did not raise the loss "
            "beyond doubt: training moves along the edge of stability.",
        )
    else:
        record.fine(
            f"The learning rate {rate:g} is {size_words(over)} of the stability limit "
            f"2/λ{part_of(samples)}.",
            number=over,
            usual=usual,
        )


def _loss_after(
    problem: Problem,
    record: FindingRecord,
    ours: list[float],
    point: Parameters | None,
    samples: Samples,
    others: Samples,
) -> bool:
    """Record what the steps did to the loss; whether it rose, beyond doubt."""
    label = f"loss after {STEPS} steps of this rate over the loss now"
    if point is None:
        record.quantity(
            "loss-after-steps", label, math.inf,
            low=1.0, high=math.inf, basis="it overflows", samples=samples,
        )  # fmt: skip
        return True
    if not ours[0] > 0:
        return False
    change = change_of_loss(problem, record, point, samples, others)
    now = loss_range(problem, samples, record.generator, record.confidence)
    lowest, highest = max(now.low, 1e-300), max(now.high, 1e-300)
    ends = [1 + c / base for c in (change.low, change.high) for base in (lowest, highest)]
    record.quantity(
        "loss-after-steps", label, 1 + change.estimate / ours[0],
        low=max(0.0, min(ends)), high=max(ends),
        basis=basis_of(samples, "samples that steer the steps and others")
        if len(others) else "all samples",
        samples=samples,
    )  # fmt: skip
    return change.low > 0


def _plot_steps(ax: Any, ours: list[float], gentle: list[float], rate: float, limit: float) -> None:
    for losses, step, color in ((ours, rate, COLORS[1]), (gentle, limit / 2, COLORS[0])):
        seen = [min(v, 1e30) for v in losses if math.isfinite(v)]
        ax.plot(range(len(seen)), seen, "o-", color=color, markersize=3, label=f"step {step:.3g}")
    if min(ours + gentle) > 0:
        ax.set_yscale("log")
    ax.set(xlabel="step", ylabel="loss")
    ax.legend()
