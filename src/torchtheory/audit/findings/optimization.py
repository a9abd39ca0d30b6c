"""Findings about the loss around the solution: its curvature, and the step it allows."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, differentiable, has_parameters
from torchtheory.core.budget import time_left
from torchtheory.core.errors import InvalidInput, NonFinite, UnsupportedModel
from torchtheory.core.estimate import Estimate
from torchtheory.core.figure import COLORS
from torchtheory.linalg.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.trace import trace
from torchtheory.models.cost import seconds_taken
from torchtheory.models.model import flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient, hessian_operator

#: Curvature is that of the mean loss over at most this many training samples, and at least
#: `FEWEST` where time is short.
SAMPLES, FEWEST = 2048, 16

#: Products with the Hessian that the largest eigenvalue, the trace and their checks take, and what
#: one costs in forward passes.
PRODUCTS, PASSES = 80, 10

#: Vectors of the parameters' size that are held at once.
VECTORS = 48

#: Steps of gradient descent that are tried with the user's learning rate.
STEPS = 20


@finding(
    "curvature",
    area="training",
    title="Top Hessian eigenvalue, trace and the largest stable step",
    cost="curvature",
    covers=["L-125"],
    needs=[has_parameters, deterministic, differentiable],
)
def curvature(problem: Problem, record: FindingRecord) -> None:
    """Lanczos and Hutch++ on the Hessian of the training loss, checked by loss values alone."""
    problem = precise(problem)
    samples, others = affordable_samples(problem, record)
    hessian = hessian_operator(problem, samples)
    top = _sharpest(hessian, record)
    sharpness, residual = float(top.values[0]), float(top.residuals[0])
    total = _trace(hessian, record)
    slope = float(gradient(problem, samples).norm())
    unseen = _on_other_samples(problem, others, top.vectors[:, 0])
    record.quantity(
        "sharpness", "largest eigenvalue of the Hessian, λ", sharpness,
        error=residual, basis="residual of Lanczos, for these samples",
        unit="loss per squared weight",
    )  # fmt: skip
    if unseen is not None:
        record.quantity(
            "sharpness-unseen", "curvature in the same direction on other samples", unseen
        )
    if total is not None:
        record.quantity("hessian-trace", "trace of the Hessian", total)
        record.quantity(
            "mean-curvature", "mean eigenvalue, trace / parameters",
            total.value / hessian.shape[0], error=2 * total.standard_error / hessian.shape[0],
            basis="two standard errors",
        )  # fmt: skip
    record.quantity("gradient-norm", "norm of the gradient", slope)
    if sharpness <= 0:
        record.not_applicable(
            "L-125", r"\eta < 2/\lambda_{\max}", "no direction of positive curvature was found"
        )
        return
    record.quantity(
        "step-limit", "largest stable step of gradient descent, 2 / λ", 2 / sharpness,
        low=2 / (sharpness + residual),
        high=2 / max(sharpness - residual, 1e-300),
        basis="residual of Lanczos, for these samples",
    )  # fmt: skip
    _step_limit(problem, record, top, samples)
    _slice(problem, record, top, samples)
    record.headline(
        f"The loss curves by {sharpness:.3g} in its sharpest direction: gradient descent with a "
        f"step above {2 / sharpness:.3g} is unstable here.",
        2,
    )
    if problem.learning_rate is None:
        record.advise(
            f"Keep the learning rate of plain gradient descent below {2 / sharpness:.3g} near "
            "these weights; with heavy-ball momentum β the limit is (1 + β) times that."
        )
    else:
        _try_learning_rate(problem, record, samples, sharpness, problem.learning_rate)


def precise(problem: Problem) -> Problem:
    """In double precision, where so many vectors of that size fit into the memory."""
    if problem.function.count * 8 * VECTORS > problem.memory:
        return problem
    return problem.in_double_if_possible()


def affordable_samples(problem: Problem, record: FindingRecord) -> tuple[Samples, Samples]:
    """As many training samples as the time allows the products to be made with, and others."""
    train = problem.train
    count = min(SAMPLES, len(train), max(FEWEST, problem.affordable(PASSES * PRODUCTS)))
    order = torch.randperm(len(train), generator=record.generator)
    if count < len(train):
        record.note(
            f"Curvature of the mean loss over {count} of the {len(train)} training samples, drawn "
            "at random; a larger budget takes more."
        )
    return train.at(order[:count].sort().values), train.at(order[count : 2 * count])


def _sharpest(hessian: LinearOperator, record: FindingRecord) -> EigenResult:
    try:
        return top_eigenpairs(
            hessian,
            1,
            tolerance=1e-4 if hessian.dtype == torch.float64 else 1e-3,
            steps=products_in(hessian, 0.5),
            generator=record.generator,
        )
    except NonFinite:
        raise
    except InvalidInput as error:
        raise UnsupportedModel(
            "second derivatives taken in two orders differ: a layer's double backward is wrong "
            "in torch (that of weight_norm is), or the loss is flat up to rounding"
        ) from error


def products_in(hessian: LinearOperator, share: float) -> int:
    """How many products fit into a share of the time left, at most 300."""
    if time_left() == math.inf:
        return 300
    direction = torch.ones(hessian.shape[1], dtype=hessian.dtype, device=hessian.device)
    seconds = seconds_taken(lambda: hessian @ direction)
    return max(1, min(300, int(share * time_left() / max(seconds, 1e-9))))


def _trace(hessian: LinearOperator, record: FindingRecord) -> Estimate | None:
    """By as many products as the rest of the time allows; None where it allows too few."""
    size = hessian.shape[0]
    if size <= 45:
        return trace(hessian, samples=size, generator=record.generator)
    large = size > 1_000_000
    count = min(45, products_in(hessian, 0.6))
    if count < 6:
        record.note("There was no time for the trace of the Hessian.")
        return None
    return trace(
        hessian,
        samples=count,
        method="hutchinson" if large else "hutch++",
        generator=record.generator,
    )


def _on_other_samples(problem: Problem, others: Samples, direction: Tensor) -> Estimate | None:
    """Curvature along the eigenvector for samples that did not choose it, where there are any."""
    if len(others) < FEWEST:
        return None
    parts = [others.at(part) for part in torch.chunk(torch.arange(len(others)), 8)]
    values = [direction @ (hessian_operator(problem, part) @ direction) for part in parts]
    return Estimate.of(torch.stack(values))


def _step_limit(
    problem: Problem, record: FindingRecord, top: EigenResult, samples: Samples
) -> None:
    """Along the top eigenvector one step multiplies a small displacement by |1 - step * λ|."""
    problem = problem.in_double_if_possible()  # two gradients, so the memory is no matter
    vector = top.vectors[:, 0].to(problem.function.reference().dtype)
    vector = vector / vector.norm()
    samples = samples.in_precision(vector.dtype)
    sharpness = float(top.values[0])
    # an eigenvalue that is not known better than that allows no finer test
    slack = min(0.5, max(0.05, 3 * float(top.residuals[0]) / sharpness))
    direction = unflatten(vector, problem.trainable)
    scale = max(1.0, float(flatten(problem.trainable).norm()))
    finest = torch.finfo(vector.dtype).eps
    longest = math.sqrt(finest) * scale

    def curvature_from(displacement: float) -> float:
        """Along the eigenvector, from the slopes on both sides."""
        slopes = []
        for sign in (1.0, -1.0):
            moved = {
                k: p + sign * displacement * direction[k] for k, p in problem.trainable.items()
            }
            slopes.append(float(gradient(problem, samples, parameters=moved) @ vector))
        return (slopes[0] - slopes[1]) / (2 * displacement)

    # a long step moves ReLUs to their other side, a short one drowns in rounding: where two agree
    found = [curvature_from(longest * shorter) for shorter in (1.0, 0.1, 0.01, 0.001)]
    measured = min(pairwise(found), key=lambda pair: abs(pair[0] - pair[1]))[1]

    def factor(step: float) -> float:
        return abs(1.0 - step * measured)

    limit = 2 / sharpness
    says = record.states(
        "L-125", r"\eta < 2/\lambda_{\max} \;\Rightarrow\; |1 - \eta\, v^\top \nabla^2 L\, v| < 1"
    )
    says.below(
        factor((1 - slack) * limit),
        1.0,
        where="growth of a small displacement along the top eigenvector in one step of gradient "
        f"descent, from two directional derivatives; step {1 - slack:.3g} times the limit",
    )
    says.fails(f"the step is {1 + slack:.3g} times the limit", factor((1 + slack) * limit))


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
        "these weights (0).",
        size=(5, 2.8),
    )


def _plot_slice(ax: Any, steps: list[float], losses: list[float], parabola: list[float]) -> None:
    ax.plot(steps, losses, color=COLORS[0], label="loss")
    ax.plot(steps, parabola, "--", color=COLORS[1], label="parabola")
    ax.set(xlabel="distance", ylabel="loss")
    ax.legend()


def _try_learning_rate(
    problem: Problem, record: FindingRecord, samples: Samples, sharpness: float, rate: float
) -> None:
    """Some steps of gradient descent from these weights, and the same at half the limit.

    A step past the limit need not diverge: where the sharpest direction flattens on the way, the
    loss stays near the edge of stability. So the losses decide, not the limit alone.
    """
    limit = 2 / sharpness
    ours = _descend(problem, samples, rate)
    gentle = _descend(problem, samples, limit / 2)
    record.quantity("step-over-limit", "learning rate over the stability limit", rate / limit)
    record.quantity(
        "loss-after-steps", f"loss after {STEPS} steps of this rate over the loss now",
        ours[-1] / ours[0] if ours[0] > 0 else math.nan,
    )  # fmt: skip
    record.figure(
        "steps",
        lambda ax: _plot_steps(ax, ours, gentle, rate, limit),
        caption=f"Loss along {STEPS} steps of full gradient descent from these weights, tried on "
        "a copy.",
        size=(5, 2.8),
    )
    worse = not ours[-1] <= ours[0]
    if rate > limit and worse:
        record.defect(
            f"The learning rate {rate:g} is {rate / limit:.3g} times the stability limit 2/λ = "
            f"{limit:.3g} at these weights: {STEPS} steps of gradient descent take the loss from "
            f"{ours[0]:.3g} to {ours[-1]:.3g}.",
            action=f"Lower the learning rate below {limit:.3g}, or warm up to it from there.",
        )
    elif rate > limit:
        record.headline(
            f"The learning rate {rate:g} is {rate / limit:.3g} times the stability limit "
            f"{limit:.3g}, but {STEPS} steps did not raise the loss: training moves along the edge "
            "of stability.",
            2,
        )
    else:
        record.headline(
            f"The learning rate {rate:g} is {rate / limit:.2g} of the stability limit {limit:.3g}.",
            2,
        )


def _descend(problem: Problem, samples: Samples, rate: float) -> list[float]:
    """The losses along gradient descent, until they are no longer finite."""
    point = dict(problem.trainable)
    losses = []
    for _ in range(STEPS + 1):
        try:
            losses.append(problem.at(point).risk(samples))
        except NonFinite:
            losses.append(math.inf)
        if not math.isfinite(losses[-1]):
            break
        step = unflatten(gradient(problem, samples, parameters=point), point)
        point = {k: p - rate * step[k] for k, p in point.items()}
    return losses


def _plot_steps(ax: Any, ours: list[float], gentle: list[float], rate: float, limit: float) -> None:
    for losses, step, color in ((ours, rate, COLORS[1]), (gentle, limit / 2, COLORS[0])):
        seen = [min(v, 1e30) for v in losses if math.isfinite(v)]
        ax.plot(range(len(seen)), seen, "o-", color=color, markersize=3, label=f"step {step:.3g}")
    if min(ours + gentle) > 0:
        ax.set_yscale("log")
    ax.set(xlabel="step", ylabel="loss")
    ax.legend()
