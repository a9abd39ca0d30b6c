"""Finding: is training at its end, or do further steps still lower the loss?

It is the cheap answer: a few products with the Hessian give the step, and ten steps the fall.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of, quotient
from torchtheory.audit.findings.descent import change_of_loss, descend, losses_beside_constant
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.audit.findings.optimization import (
    PASSES,
    affordable_samples,
    basis_of,
    eigenvalue_range,
    precise,
    sharpest,
    too_few,
)
from torchtheory.core.intervals import Interval
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import hessian_operator

#: Products with the Hessian that find the step, at most, and how well they need to: a step that is
#: a tenth too short or too long changes little.
PRODUCTS, TOLERANCE = 20, 0.05

#: Steps of gradient descent with 1/(2λ). With 1/λ the curvature of a fresh network grows beyond
#: what the step allows on its way, and what the loss falls by depends on the last digits of λ.
DESCENT = 10

#: Training is not at its end where ten steps of gradient descent remove more of the loss than
#: this. It is a share of the loss of a constant prediction, of which training removed what it
#: could: a network that fits its data has a few per cent of it left in all, a fresh one all of it.
STILL_FALLING = 0.05

FALL = (
    r"L(\theta) - L(\theta_{10}), \quad \theta_{k+1} = \theta_k"
    r" - \tfrac1{2\lambda}\nabla L(\theta_k)"
)


@finding(
    "training-end",
    area="training",
    title="Is training at its end?",
    cost="gradient",
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def training_end(problem: Problem, record: FindingRecord) -> None:
    """The largest eigenvalue of the Hessian gives a step; ten such steps lower the loss, or not."""
    problem = precise(problem)
    # three times ten steps of a gradient and a pass, and as much as a few products for the ranges
    drawn = affordable_samples(problem, record, passes=PASSES * (PRODUCTS + 4) + 12 * DESCENT)
    if drawn is None:
        too_few(record, [], FALL)
        return
    samples, others = drawn
    top = sharpest(hessian_operator(problem, samples), record, tolerance=TOLERANCE, most=PRODUCTS)
    sharpness = eigenvalue_range(
        problem, record, float(top.values[0]), top.vectors[:, 0], float(top.residuals[0]),
        samples, others,
    )  # fmt: skip
    if sharpness.estimate <= 0:
        record.not_applicable(
            (), FALL, "no direction of positive curvature was found", samples=samples
        )
        return
    _still_falling(problem, record, sharpness, samples, others)


def _still_falling(
    problem: Problem,
    record: FindingRecord,
    sharpness: Interval,
    samples: Samples,
    others: Samples,
) -> None:
    """Ten steps of gradient descent with 1/(2λ), on a copy: does the loss still fall?"""
    # λ is known within its range only, and so is the step
    ends = (sharpness.low, sharpness.estimate, sharpness.high)
    steps = {1 / (2 * value) for value in ends if value > 0}
    own, plain, alike = losses_beside_constant(problem, samples, record)
    reference = own if plain is None or own.estimate > plain.estimate else plain
    changes = []
    for step in sorted(steps):
        _, point = descend(problem, samples, step, DESCENT)
        if point is not None:
            changes.append(change_of_loss(problem, record, point, samples, others))
    if not changes or not reference.low > 0:
        return
    # on samples that did not steer them the steps lower the loss too little, on their own too much
    fall = Interval(
        max(0.0, -math.fsum(c.estimate for c in changes) / len(changes)),
        max(0.0, -max(c.high for c in changes)),
        max(0.0, -min(c.low for c in changes)),
        record.confidence,
        len(samples),
        "",
    )
    share = quotient(fall, reference)
    # no more than the loss can go, where losses are at least 0
    most = quotient(own, reference).high if own.low >= 0 else math.inf
    share = replace(share, high=min(share.high, most), estimate=min(share.estimate, most))
    number = record.quantity(
        "loss-still-falling",
        f"what {DESCENT} steps of gradient descent take off the loss, over that of a constant",
        share.estimate, low=share.low, high=share.high,
        basis=basis_of(samples, "the steps on samples that steer them and on others")
        if len(others) else "all samples, with either end of the range of λ",
        samples=samples,
    )  # fmt: skip
    usual = below(STILL_FALLING, f"below {STILL_FALLING:g} at the end of training")
    removed = f"{100 * share.estimate:.2g}% of the loss of a constant prediction{part_of(samples)}"
    if share.low > STILL_FALLING:
        record.look(
            f"Training is not at its end: {DESCENT} steps of gradient descent remove {removed}.",
            number=number,
            usual=usual,
            action="Train for longer, or with a larger learning rate.",
        )
    elif plain is not None and alike:
        record.look(
            f"The network fits hardly better than a constant prediction: its loss is "
            f"{own.estimate:.3g}, that of a constant {plain.estimate:.3g}{part_of(samples)}.",
            action="See whether it was trained, and whether its gradients reach all layers.",
        )
    elif share.high <= STILL_FALLING:
        record.fine(
            f"Training is at its end: {DESCENT} steps of gradient descent remove only {removed}.",
            number=number,
            usual=usual,
        )
    else:
        record.open(number, usual)
