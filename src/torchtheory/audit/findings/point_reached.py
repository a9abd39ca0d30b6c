"""What kind of point the weights are: its gradient, its curvature, the way out of a saddle."""

from __future__ import annotations

import math

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import loss_range, part_of, quotient
from torchtheory.audit.findings.descent import change_of_loss, losses_beside_constant
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.audit.findings.optimization import (
    affordable_samples,
    basis_of,
    curvature_along,
    eigenvalue_range,
    precise,
    products_in,
    too_few,
)
from torchtheory.audit.findings.spectrum import FLAT, record_spectrum
from torchtheory.audit.findings.squared_gradient import squared_gradient
from torchtheory.audit.findings.training_end import STILL_FALLING
from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.core.intervals import Interval
from torchtheory.core.usual import below as less_than
from torchtheory.linalg.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.report.numbers import share_words, size_words

#: One step that gains less of the loss than this has nothing to gain: a stationary point.
STATIONARY = 1e-3

#: Steps tried along a direction of negative curvature, each twice the one before.
DOUBLINGS = 12

NEGATIVE = r"\lambda_{\min} < 0 \;\Rightarrow\; \tfrac12[L(\theta+tv)+L(\theta-tv)] < L(\theta)"


@finding(
    "point-reached",
    area="training",
    title="What kind of point the weights are, and the spectrum of the Hessian there",
    cost="curvature",
    covers=["L-118", "A-116"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def point_reached(problem: Problem, record: FindingRecord) -> None:
    """Both ends of the spectrum by Lanczos, all of it by quadrature, the gradient beside them."""
    problem = precise(problem)
    drawn = affordable_samples(problem, record)
    if drawn is None:
        too_few(record, ["L-118", "A-116"], NEGATIVE)
        return
    samples, others = drawn
    hessian = hessian_operator(problem, samples)
    try:
        ends = top_eigenpairs(
            hessian,
            min(2, hessian.shape[0]),
            which="both",
            tolerance=FLAT / 10,  # of the largest: what counts as flat is to be resolved
            steps=products_in(hessian, 0.4),
            generator=record.generator,
        )
    except NonFinite:
        raise
    except InvalidInput:
        record.not_applicable("L-118", NEGATIVE, "the loss is flat up to rounding", samples=samples)
        return
    below, least = record_spectrum(record, hessian, float(ends.values.abs().max()), samples)
    smallest = _smallest(problem, record, ends, least, samples, others)
    largest = eigenvalue_range(
        problem, record, float(ends.values[0]), ends.vectors[:, 0], float(ends.residuals[0]),
        samples, others,
    )  # fmt: skip
    scale = max(abs(largest.estimate), abs(smallest.estimate))
    gain = _one_step_gain(problem, record, largest, smallest, samples)
    falls = smallest.high < -FLAT * scale
    resolved = float(ends.values[-1] + ends.residuals[-1]) < -FLAT * scale
    _negative_curvature(problem, record, samples, ends, falls=falls, resolved=resolved)
    stationary = gain is None or gain.high <= STATIONARY
    if falls and resolved and stationary:
        _saddle(problem, record, ends, largest, smallest, samples, others)
    record.headline(_point_in_words(gain, smallest, falls, below, samples))


def _point_in_words(
    gain: Interval | None, smallest: Interval, falls: bool, below: bool, samples: Samples
) -> str:
    sign = (
        f"the loss falls on both sides in some direction (curvature {size_words(smallest)}"
        + (", or less)" if below else ")")
        if falls
        else "no direction of negative curvature was found"
        if smallest.low >= 0
        else "whether it falls on both sides in some direction cannot be told"
    )
    if gain is not None and gain.low <= STATIONARY and not gain.high <= 1:  # more than all of it
        return (
            f"Whether the weights are a stationary point cannot be told{part_of(samples)}; {sign}."
        )
    if gain is None:
        kind = "a stationary point: the gradient is 0"
    elif gain.high <= STATIONARY:
        kind = f"a stationary point: one step can gain {size_words(gain)} of the loss"
    elif gain.low > STATIONARY:
        kind = f"no stationary point yet: one step can gain {size_words(gain)} of the loss"
    else:
        kind = f"perhaps a stationary point: one step can gain {size_words(gain)} of the loss"
    return f"The weights are {kind}{part_of(samples)}; {sign}."


def _smallest(
    problem: Problem,
    record: FindingRecord,
    ends: EigenResult,
    least: float,
    samples: Samples,
    others: Samples,
) -> Interval:
    """The smallest eigenvalue, from Lanczos and the least value that the quadrature met."""
    value, residual = float(ends.values[-1]), float(ends.residuals[-1])
    found = eigenvalue_range(
        problem, record, value, ends.vectors[:, -1], residual, samples, others, smallest=True
    )
    if least < value - residual:  # a Ritz value is a mean of eigenvalues: one is as low
        # and how much lower, or on all samples, nothing tells
        high = least if len(samples) >= samples.population else found.high
        found = Interval(
            least, -math.inf, max(least, high), record.confidence, len(samples),
            "it is at most this; no time to find it",
        )  # fmt: skip
    record.quantity(
        "smallest-eigenvalue", "smallest eigenvalue of the Hessian", found.estimate,
        low=found.low, high=found.high, basis=found.test, samples=samples,
    )  # fmt: skip
    return found


def _one_step_gain(
    problem: Problem,
    record: FindingRecord,
    largest: Interval,
    smallest: Interval,
    samples: Samples,
) -> Interval | None:
    """What one step of gradient descent can gain, over the loss; None where there is nothing."""
    slope = squared_gradient(problem, record, samples)
    risk = loss_range(problem, samples, record.generator, record.confidence)
    if slope is None or not risk.estimate > 0:
        return None
    sizes = [(abs(e.low), abs(e.estimate), abs(e.high)) for e in (largest, smallest)]
    low = max(0.0, largest.low, -smallest.high)
    scale = Interval(
        2 * max(s[1] for s in sizes),
        2 * low,
        2 * max(max(s) for s in sizes),
        record.confidence,
        len(samples),
        "",
    )
    gain = quotient(quotient(slope[0], scale), risk)
    record.quantity(
        "one-step-gain",
        "what one step of gradient descent can gain, |∇L|² / (2 λ), over the loss",
        gain.estimate,
        low=gain.low,
        high=gain.high,
        basis="the ranges of the gradient, the curvature and the loss",
        samples=samples,
    )
    return gain


def _negative_curvature(
    problem: Problem,
    record: FindingRecord,
    samples: Samples,
    ends: EigenResult,
    *,
    falls: bool,
    resolved: bool,
) -> None:
    """The slopes of the loss on both sides, along the two extreme eigenvectors."""
    if not falls:
        record.not_applicable(
            "L-118",
            NEGATIVE,
            "no eigenvalue is negative beyond doubt and a thousandth of the largest",
            samples=samples,
        )
        return
    if not resolved:
        record.not_done(
            "L-118",
            NEGATIVE,
            "an eigenvalue is negative, but there was no time to find its direction",
        )
        return
    below = curvature_along(problem, samples, ends.vectors[:, -1])
    if below is None:
        record.not_applicable(
            "L-118",
            NEGATIVE,
            "no two short steps along the eigenvector agree on the curvature there: the loss has a "
            "kink at these weights, is flat up to rounding, or is computed too coarsely",
            samples=samples,
        )
        return
    says = record.checks("L-118", NEGATIVE)
    says.below(
        below / abs(float(ends.values[-1])),
        0.0,
        where="curvature along the eigenvector from the slopes on both sides, so near that no "
        "kink lies between, over the size of the eigenvalue",
    )
    if float(ends.values[0]) > 0:
        above = curvature_along(problem, samples, ends.vectors[:, 0])
        if above is not None:
            says.fails(
                "along the eigenvector of the largest eigenvalue", above / float(ends.values[0])
            )


def _saddle(
    problem: Problem,
    record: FindingRecord,
    ends: EigenResult,
    largest: Interval,
    smallest: Interval,
    samples: Samples,
    others: Samples,
) -> None:
    """The gradient has nothing left to gain: does the direction of negative curvature?"""
    judges = others if len(others) else samples  # those that chose no direction, where there are
    own, plain, _ = losses_beside_constant(problem, judges, record)
    base, most = own.estimate, max(own.high, 0.0 if plain is None else plain.high)
    length = math.sqrt(2 * STATIONARY * max(base, 1e-12) / abs(float(ends.values[-1])))
    lowest, best = base, None
    for sign in (1.0, -1.0):
        direction = unflatten(sign * length * ends.vectors[:, -1], problem.trainable)
        for k in range(DOUBLINGS):
            moved = {n: p + 2.0**k * direction[n] for n, p in problem.trainable.items()}
            try:
                there = problem.at(moved).risk(judges)
            except NonFinite:
                break
            if there < lowest:
                lowest, best = there, moved
    if best is None or not most > 0 or (base - lowest) / most <= STILL_FALLING:
        return
    change = change_of_loss(problem, record, best, samples, others)
    fall = record.quantity(
        "fall-along-negative-curvature",
        "what the loss falls by along negative curvature, over that of a constant",
        -change.estimate / most, low=-change.high / most, high=-change.low / most,
        basis=basis_of(samples, "samples that chose the direction and others")
        if len(others) else "all samples",
        samples=samples,
    )  # fmt: skip
    flipped = Interval(
        -smallest.estimate, -smallest.high, -smallest.low, record.confidence, len(samples), ""
    )
    ratio = quotient(flipped, largest) if largest.low > 0 else flipped
    record.quantity(
        "negative-curvature",
        "size of the most negative eigenvalue over the largest"
        if largest.low > 0
        else "size of the most negative eigenvalue",
        ratio.estimate, low=ratio.low, high=ratio.high, basis=smallest.test, samples=samples,
    )  # fmt: skip
    record.look(
        "The weights are near a saddle: the gradient is almost 0, but the loss falls by "
        f"{share_words(fall)} of that of a constant prediction in a direction of negative curvature"
        f"{part_of(samples)}.",
        number=fall,
        usual=less_than(STILL_FALLING, f"below {STILL_FALLING:g} at a minimum"),
        action="Train on from slightly disturbed weights, or start again from random ones.",
        figure="spectrum",
    )
