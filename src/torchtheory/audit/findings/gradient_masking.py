"""Whether gradients show where a classifier errs, or hide it."""

from __future__ import annotations

import warnings
from typing import Any

from scipy import stats

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    differentiable,
    floating_inputs,
)
from torchtheory.audit.findings.input_units import Scene, no_noise, scene
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.report.numbers import share_words
from torchtheory.robustness.attacks.ensemble import (
    GradientMasking,
    GradientMaskingWarning,
    gradient_masking,
)

#: How far inputs are moved, in standard deviations: far enough for a search without gradients to
#: get somewhere in a few hundred queries.
RADIUS = 0.3

#: Steps along the gradient, for each of two losses, and queries of the search without gradients.
STEPS, QUERIES = 20, 300

#: Samples attacked, at most and at least.
MOST, FEWEST = 128, 16

#: Shares of the samples that are worth a look: gradients that vanish, and samples misled by
#: nothing but the search without gradients. Of an ordinary network both are 0 or nearly.
VANISHING, MORE = 0.1, 0.02

STATEMENT = (
    r"\text{share misled by a search without gradients and not along the gradient}"
    r" \le " + str(MORE)
)


@finding(
    "gradient-masking",
    area="robustness",
    title="Whether gradients hide where the network errs",
    cost="gradient",
    needs=[classification, deterministic, no_noise, floating_inputs, differentiable],
)
def masked_gradients(problem: Problem, record: FindingRecord) -> None:
    """Gradients that vanish, and a search without gradients against ascents along them."""
    passes = 2 * 3 * (STEPS + 2) + QUERIES
    room = min(MOST, max(FEWEST, problem.capacity))
    at = scene(problem, record, min(room, problem.affordable(passes)))
    at = at.within(at.attack(RADIUS, STEPS, record), passes / 3, 0.7, FEWEST)
    if len(at.x) < min(FEWEST, at.samples.population):
        record.not_done((), STATEMENT, f"there was no time for {FEWEST} samples")
        return
    right = at.right().nonzero().flatten()
    if not len(right):
        record.not_applicable(
            (), STATEMENT, f"every {at.name} sample is misclassified", samples=at.samples
        )
        return
    with warnings.catch_warnings():  # said in the report's own words
        warnings.simplefilter("ignore", GradientMaskingWarning)
        found = gradient_masking(
            at.model,
            at.x[right],
            at.samples.y[right],
            RADIUS,
            box=at.box,
            steps=STEPS,
            max_queries=QUERIES,
            generator=record.generator,
        )
    _assess(record, at, found, len(right))


def _assess(record: FindingRecord, at: Scene, found: GradientMasking, count: int) -> None:
    # two ways to be accused, each with half of the error allowed
    each = 1 - (1 - record.confidence) / 2
    zero = clopper_pearson(round(found.zero_gradients * count), count, each)
    only_search = round(found.found_more.estimate * count)
    only_gradient = only_search - round((found.by_search - found.by_gradient) * count)
    more = clopper_pearson(only_search, count, each)
    chance = _sign_test(only_search, only_gradient)
    vanish = record.quantity(
        "vanishing-gradients",
        "share of right samples whose gradient in the input is 0 or no number",
        zero,
        samples=at.samples,
    )
    missed = record.quantity(
        "missed-by-gradients",
        "share of right samples that only a search without gradients misleads",
        more,
        samples=at.samples,
    )
    record.states((), STATEMENT).at_most(
        more.low,
        MORE,
        where=f"lower end of the range, {count} {at.name} samples classified right, when "
        f"{at.step.format(f'{RADIUS:.0%}')}",
    )
    record.figure(
        "attacks",
        lambda ax: _plot(ax, found, more),
        caption=f"Shares of {count} {at.name} samples that are misled when "
        f"{at.step.format(f'{RADIUS:.0%}')}.",
        size=(5, 2.2),
    )
    compared = (
        f"When {at.step.format(f'{RADIUS:.0%}')}, steps along the gradient mislead "
        f"{found.by_gradient:.0%} of {count} {at.name} samples that are classified right, "
        f"{QUERIES} queries without gradients {found.by_search:.0%}{at.part}"
    )
    action = (
        "Judge robustness by attacks without gradients (Square), and by attacks on the margin of "
        "a copy without rounding, saturated activations or large factors of its outputs."
    )
    if chance < 1 - each and more.low > MORE:
        record.look(
            f"{compared}: the gradients do not show where the network errs.",
            number=missed,
            usual=below(MORE),
            action=action,
            figure="attacks",
        )
    if zero.low > VANISHING:
        record.look(
            f"The gradient of the loss in the input is 0 at {share_words(zero)} of the "
            f"{at.name} samples classified right{at.part}: attacks along it find nothing there, "
            "which makes the network look more robust than it is.",
            number=vanish,
            usual=below(VANISHING),
            action=action,
            figure="attacks",
        )
    record.headline(f"{compared}. Of the gradients {found.zero_gradients:.0%} are 0.")


def _sign_test(search: int, gradient: int) -> float:
    """How likely so many samples misled by the search alone are if both were as good."""
    if search + gradient == 0:
        return 1.0
    return float(stats.binomtest(search, search + gradient, 0.5, alternative="greater").pvalue)


def _plot(ax: Any, found: GradientMasking, more: Interval) -> None:
    names = ["along the gradient", "without gradients", "only without gradients", "gradient is 0"]
    shares = [found.by_gradient, found.by_search, more.estimate, found.zero_gradients]
    colors = [COLORS[0], COLORS[2], COLORS[1], "0.6"]
    ax.barh(names[::-1], shares[::-1], color=colors[::-1])
    ax.set_axisbelow(True)
    ax.set(xlabel="share of the samples classified right", xlim=(0, 1))
