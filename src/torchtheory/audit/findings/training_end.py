"""Finding: is training at its end, or do further steps still lower the loss?

A few products with the Hessian give a step, and ten plain steps a first answer. Where they gain
little, steps that know the curvature are tried, for slow, late progress.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of, quotient
from torchtheory.audit.findings.descent import change_of_loss, descend, losses_beside_constant
from torchtheory.audit.findings.further_training import Further, steps_in_time, train_further
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
from torchtheory.core.diagnosis import Assessment, State
from torchtheory.core.errors import NonFinite
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.training.losses.risks import sample_losses

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

#: Fewest test samples that tell whether new data gains.
FEWEST_NEW = 20

FALL = (
    r"L(\theta) - L(\theta_{10}), \quad \theta_{k+1} = \theta_k"
    r" - \tfrac1{2\lambda}\nabla L(\theta_k)"
)


def one_draw(problem: Problem) -> str | None:
    """Steps at one draw of a model's noise lower the loss at that draw, trained or not."""
    if problem.draws_random_numbers:
        return "the model draws random numbers, and steps at one draw of them would fit that draw"
    return None


@finding(
    "training-end",
    area="training",
    title="Is training at its end?",
    cost="gradient",
    needs=[has_loss, has_parameters, deterministic, one_draw, differentiable],
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
    elif most <= STILL_FALLING:
        record.fine(
            "Training is at its end: the loss that is left is at most "
            f"{100 * most:.2g}% of that of a constant prediction{part_of(samples)}.",
            number=number, usual=usual,
        )  # fmt: skip
    else:
        _left_to_gain(problem, record, reference, most, samples, others)


def _left_to_gain(
    problem: Problem,
    record: FindingRecord,
    reference: Interval,
    most: float,
    samples: Samples,
    others: Samples,
) -> None:
    """What curvature-aware steps gain on training data, and whether new data gains by them.

    Late progress is slow: plain steps do not show it.
    """
    name, label = "loss-left-to-gain", "what further training takes off the loss, over a constant's"
    usual = below(STILL_FALLING, f"below {STILL_FALLING:g} at the end of training")
    steps = steps_in_time(problem, samples)
    if steps == 0:
        number = record.quantity(
            name, label, 0.0, low=0.0, high=most, samples=samples,
            basis="nothing at least and all of the loss at most: no time to train further",
        )  # fmt: skip
        record.open(number, usual)
        return
    ways = train_further(problem, samples, steps)
    further = ways[0]
    change = change_of_loss(problem, record, further.point, samples, others)
    gained = quotient(_negative(change), reference)
    number = record.quantity(
        name, label, max(0.0, gained.estimate), low=gained.low, high=min(gained.high, most),
        samples=samples,
        basis=basis_of(samples, "on samples that steer the steps and on others")
        if len(others) else f"all samples, the best of L-BFGS and Adam with {steps} gradients each",
    )  # fmt: skip
    removed = f"{100 * gained.estimate:.2g}% of the loss of a constant prediction{part_of(samples)}"
    if gained.high <= STILL_FALLING:
        record.fine(
            f"Training is at its end: {DESCENT} steps of gradient descent and {steps} of L-BFGS or "
            f"Adam remove only {removed}.",
            number=number, usual=usual,
        )  # fmt: skip
        return
    if gained.low <= STILL_FALLING:
        record.open(number, usual)
        return
    new = _gain_on_new_data(problem, record, ways, reference)
    if new is None:
        sentence = f"{further.words} remove {removed}; without test data it is not known whether "
        record.assessments.append(
            Assessment(
                record.area, State.OPEN, f"{sentence}new data would gain as well.", number, usual,
                "Give data that training has not seen: test=(x, y).", finding=record.name,
            )
        )  # fmt: skip
        return
    on_new = below(STILL_FALLING)
    if new.low > STILL_FALLING:
        record.look(
            f"Training is not at its end: {further.words} remove {removed}, and on the way there "
            f"the loss on new data falls by {100 * new.value:.2g}% of it.",
            number=new, usual=on_new,
            action="Train for longer: late progress is slow, a larger learning rate or Adam may "
            "shorten it.",
        )  # fmt: skip
    elif new.high <= STILL_FALLING:
        record.fine(
            f"Training is at its end for new data: {further.words} would remove {removed}, and new "
            "data gains little or nothing on the way there.",
            number=new, usual=on_new,
        )  # fmt: skip
    else:
        record.open(new, on_new)


def _negative(change: Interval) -> Interval:
    return Interval(
        -change.estimate, -change.high, -change.low, change.confidence, change.trials, change.test
    )


def _gain_on_new_data(
    problem: Problem, record: FindingRecord, ways: list[Further], reference: Interval
) -> Quantity | None:
    """What new data gains at the best point on the way of further training.

    One half of the test data chooses the point, the other tells its loss.
    """
    if problem.test is None or len(problem.test) < FEWEST_NEW:
        return None
    order = torch.randperm(len(problem.test), generator=record.generator)
    half = len(order) // 2
    choosing, judging = problem.test.at(order[:half]), problem.test.at(order[half:])
    points = [point for further in ways for point in further.way]
    losses = [_finite_risk(problem.at(point), choosing) for point in points]
    there = problem.at(points[min(range(len(points)), key=losses.__getitem__)])
    try:
        before, after = (sample_losses(p, judging).double().cpu() for p in (problem, there))
    except NonFinite:
        return None
    gain = quotient(mean_interval(before - after, record.confidence), reference)
    return record.quantity(
        "new-data-gain",
        "gain of further training on new data, over the loss of a constant prediction",
        max(0.0, gain.estimate), low=gain.low, high=gain.high, samples=judging,
        basis=f"{record.confidence:.4g} Student t, at the point that other samples chose",
    )  # fmt: skip


def _finite_risk(problem: Problem, samples: Samples) -> float:
    try:
        return problem.risk(samples)
    except NonFinite:
        return math.inf
