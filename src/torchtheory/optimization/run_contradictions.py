r"""Which assumption a recorded descent contradicts, from the record alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.optimization.descent_assumptions import Assumptions
from torchtheory.optimization.promises import Kind, Promise
from torchtheory.optimization.recorded_runs import RecordedRun
from torchtheory.optimization.run_constants import (
    convexity_met,
    gradient_norms_of_run,
    gradients_of_run,
    smoothness_met,
)

#: Promises about plain gradient descent, whose steps tell the gradient.
PLAIN: tuple[Kind, ...] = (
    "quadratic",
    "strongly convex",
    "strongly convex distance",
    "convex",
    "smooth",
    "polyak-lojasiewicz",
)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """An assumption that the run itself refutes.

    Attributes:
        assumption: its name, as in :class:`Assumptions` (or ``quadratic``, ``convex``).
        time: the first step that does; 0 where no step is needed to see it.
        sentence: what was assumed, and what was met.
    """

    assumption: str
    time: int
    sentence: str


def contradictions_of(
    run: RecordedRun,
    promise: Promise,
    given: Assumptions,
    numbers: Mapping[str, float],
) -> list[Contradiction]:
    r"""Which assumptions the run refutes, one entry each.

    A step above the limit, values below the minimum, gradients above their bound; and for plain
    gradient descent, curvature that was met above :math:`L` or below :math:`\mu`, gradients too
    small for the Polyak-Łojasiewicz inequality, and steps that no quadratic makes.

    Args:
        run: the record.
        promise: the theorem.
        given: its assumptions.
        numbers: the constants that are used, by name.
    """
    found = []
    if "smoothness" in numbers:
        limit = promise.limit(numbers)
        if given.step > limit * (1 + 1e-9):
            found.append(
                Contradiction(
                    "step",
                    0,
                    f"The step {given.step:.4g} exceeds the limit {promise.limit_name} = "
                    f"{limit:.4g}.",
                )
            )
    found += _momentum(given, numbers)
    if "minimum" in numbers:
        below = numbers["minimum"] - run.values
        below = below.amax(1) if below.ndim == 2 else below
        eps = torch.finfo(run.values.dtype).eps
        found += _first(
            "minimum",
            below > 300 * eps * max(1.0, abs(numbers["minimum"])),
            below,
            f"A value lies {{:.3g}} below the minimum {numbers['minimum']:.4g} that was assumed.",
        )
    if "gradient_bound" in numbers and run.points is not None and run.every_step:
        long = run.points.diff(dim=0).norm(dim=-1) / given.step
        long = long.amax(1) if long.ndim == 2 else long
        found += _first(
            "gradient_bound",
            long > numbers["gradient_bound"] * (1 + 1e-6),
            long,
            f"A stochastic gradient has norm {{:.3g}}, above the bound "
            f"{numbers['gradient_bound']:.4g}.",
        )
    return found + (_of_plain_descent(run, given, numbers) if given.kind in PLAIN else [])


def _of_plain_descent(
    run: RecordedRun, given: Assumptions, numbers: Mapping[str, float]
) -> list[Contradiction]:
    found = []
    size = run.values.abs().maximum(run.values[0].abs())
    smooth, convex = smoothness_met(run, given.step), convexity_met(run, given.step)
    if smooth is not None and "smoothness" in numbers:
        found += _first(
            "smoothness",
            smooth > numbers["smoothness"] * (1 + 1e-6),
            smooth,
            f"A step shows a smoothness constant of at least {{:.4g}}, not "
            f"{numbers['smoothness']:.4g}.",
        )
    norms = gradient_norms_of_run(run, given.step)
    known = {"smoothness", "minimum"} <= numbers.keys() and given.minimum is not None
    if norms is not None and known:
        gaps = (run.values - numbers["minimum"])[: len(norms)]
        small = 1e4 * torch.finfo(gaps.dtype).eps * size[: len(norms)]
        ratio = torch.where(gaps > small, norms.square() / (2 * gaps), 0.0)
        found += _first(
            "smoothness",
            ratio > numbers["smoothness"] * (1 + 1e-6),
            ratio,
            "A squared gradient is 2·{:.4g} times the gap to the minimum: L is at least that, or "
            "the minimum is lower.",
        )
    least = 0.0 if given.kind == "convex" else numbers.get("convexity")
    if convex is not None and least is not None and given.kind != "quadratic":
        name = "convexity" if least else "convex"
        found += _first(
            name,
            convex < least * (1 - 1e-6),
            convex,
            "A step falls below its tangent: the function is not convex (μ at most {:.3g})."
            if not least
            else f"A step shows a strong convexity of at most {{:.4g}}, not {least:.4g}.",
        )
    if "dominance" in numbers and norms is not None:
        gaps = (run.values - numbers["minimum"])[: len(norms)]
        small = 1e4 * torch.finfo(gaps.dtype).eps * size[: len(norms)]
        ratio = torch.where(gaps > small, norms.square() / (2 * gaps), torch.inf)
        found += _first(
            "dominance",
            ratio < numbers["dominance"] * (1 - 1e-6),
            ratio,
            f"A point allows a Polyak-Łojasiewicz constant of at most {{:.4g}}, not "
            f"{numbers['dominance']:.4g}.",
        )
    slopes = gradients_of_run(run, given.step)
    if given.kind == "quadratic" and slopes is not None and len(slopes) > 1:
        # along a segment of a quadratic the trapezoidal rule is exact
        rule = given.step / 2 * (slopes[:-1] * (slopes[:-1] + slopes[1:])).sum(-1)
        off = (run.values[:-2] - run.values[1:-1] - rule).abs()
        scale = run.values[:-2].abs() + run.values[1:-1].abs() + rule.abs()
        found += _first(
            "quadratic",
            off > 1e-6 * scale,
            off / scale,
            "A step decreases the function by another amount than a quadratic would (off by "
            "{:.2g} of its size).",
        )
    return found


def _momentum(given: Assumptions, numbers: Mapping[str, float]) -> list[Contradiction]:
    if given.kind == "heavy ball":
        least = (1 - math.sqrt(min(1.0, given.step * numbers["convexity"]))) ** 2
        if numbers["momentum"] < least * (1 - 1e-9):
            return [
                Contradiction(
                    "momentum",
                    0,
                    f"The momentum {numbers['momentum']:.4g} is below (1-√(ημ))² = {least:.4g}, "
                    "which the slowest direction needs.",
                )
            ]
    if given.kind == "nesterov strongly convex" and given.momentum is not None:
        root = math.sqrt(given.step * numbers["convexity"])
        wanted = (1 - root) / (1 + root)
        if abs(given.momentum - wanted) > 1e-6:
            return [
                Contradiction(
                    "momentum",
                    0,
                    f"The momentum is {given.momentum:.4g}; the theorem has (1-√(ημ))/(1+√(ημ)) = "
                    f"{wanted:.4g}.",
                )
            ]
    return []


def _first(name: str, wrong: Tensor, shown: Tensor, sentence: str) -> list[Contradiction]:
    """The first step that refutes an assumption; the most telling number of all that do."""
    wrong = wrong & torch.isfinite(shown)
    if not bool(wrong.any()):
        return []
    met = shown[wrong]
    worst = met.min() if name in ("convexity", "convex", "dominance") else met.max()
    return [Contradiction(name, int(wrong.int().argmax()), sentence.format(float(worst)))]
