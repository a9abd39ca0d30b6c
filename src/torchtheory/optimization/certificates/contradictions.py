r"""Which assumption a recorded descent contradicts, from the record alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.optimization.certificates.assumptions import Assumptions
from torchtheory.optimization.certificates.promises import LIMITS, Kind, Promise
from torchtheory.optimization.certificates.recorded_runs import RecordedRun
from torchtheory.optimization.certificates.run_constants import (
    Constant,
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
        assumption: its name, as in `Assumptions` (or `quadratic`, `convex`).
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
    constants: Mapping[str, Constant],
) -> list[Contradiction]:
    r"""Which assumptions the run refutes, one entry each.

    A step above the limit, values below the minimum, gradients above their bound; and for plain
    gradient descent, steps of another length than $\eta\|\nabla f\|$, values that rise or fall
    by less than the descent lemma says, curvature that was met above $L$ or below $\mu$,
    gradients too small for the Polyak-Łojasiewicz inequality, and steps that no quadratic makes.
    A constant that is known to be a bound is refuted from one side only: curvature 5 contradicts
    $L=3$ and $L\le3$, not $L\ge3$.

    Args:
        run: the record.
        promise: the theorem.
        given: its assumptions.
        constants: those that are used, by name.
    """
    known = {name: c.value for name, c in constants.items()}
    found = []
    if _refutable(constants, "smoothness", "smaller") is not None:
        limit = LIMITS[promise.limit](known)
        if given.step > limit * (1 + 1e-9):
            found.append(
                Contradiction(
                    "step",
                    0,
                    f"The step {given.step:.4g} exceeds the limit {promise.limit} = {limit:.4g}.",
                )
            )
    found += _momentum(given, constants)
    for name in ("convexity", "dominance"):
        low, high = (
            _refutable(constants, name, "smaller"),
            _refutable(constants, "smoothness", "larger"),
        )
        if low is not None and high is not None and low > high * (1 + 1e-9):
            found.append(
                Contradiction(name, 0, f"μ = {low:.4g} above L = {high:.4g}: no function has both.")
            )
    least = _refutable(constants, "minimum", "smaller")
    if least is not None:
        below = least - run.values
        wrong = below > 300 * _eps(run) * run.values.abs().maximum(run.values[0].abs())
        if below.ndim == 2:
            below, wrong = below.amax(1), wrong.any(1)
        found += _first(
            "minimum",
            wrong,
            below,
            f"A value lies {{:.3g}} below the minimum {least:.4g} that was assumed.",
            run.times,
        )
    bound = _refutable(constants, "gradient_bound", "larger")
    if bound is not None and run.points is not None and run.every_step:
        long = run.points.diff(dim=0).norm(dim=-1) / given.step
        long = long.amax(1) if long.ndim == 2 else long
        found += _first(
            "gradient_bound",
            long > bound * (1 + _share(run)),
            long,
            f"A stochastic gradient has norm {{:.3g}}, above the bound {bound:.4g}.",
        )
    return found + (_of_plain_descent(run, given, constants) if given.kind in PLAIN else [])


def _of_plain_descent(
    run: RecordedRun, given: Assumptions, constants: Mapping[str, Constant]
) -> list[Contradiction]:
    share, found = _share(run), _method(run, given.step) + _descent(run, given, constants)
    smooth, convex = smoothness_met(run, given.step), convexity_met(run, given.step)
    largest = _refutable(constants, "smoothness", "larger")
    if smooth is not None and largest is not None:
        found += _first(
            "smoothness",
            smooth > largest * (1 + share),
            smooth,
            f"A step shows a smoothness constant of at least {{:.4g}}, not {largest:.4g}.",
        )
    low, high = _dominance_met(run, given.step, constants)
    if low is not None and largest is not None:
        found += _first(
            "smoothness",
            low > largest * (1 + share),
            low,
            "A squared gradient is 2·{:.4g} times the gap to the minimum: L is at least that, or "
            "the minimum is lower.",
        )
    least = 0.0 if given.kind == "convex" else _refutable(constants, "convexity", "smaller")
    if convex is not None and least is not None:
        found += _first(
            "convexity" if least else "convex",
            convex < least * (1 - share),
            convex,
            "A step falls below its tangent: the function is not convex (μ at most {:.3g})."
            if not least
            else f"A step shows a strong convexity of at most {{:.4g}}, not {least:.4g}.",
        )
    dominance = _refutable(constants, "dominance", "smaller")
    if high is not None and dominance is not None:
        found += _first(
            "dominance",
            high < dominance * (1 - share),
            high,
            f"A point allows a Polyak-Łojasiewicz constant of at most {{:.4g}}, not "
            f"{dominance:.4g}.",
        )
    slopes = gradients_of_run(run, given.step)
    if given.kind == "quadratic" and slopes is not None and len(slopes) > 1:
        assert run.points is not None  # the slopes come from them
        # along a segment of a quadratic the trapezoidal rule is exact
        rule = given.step / 2 * (slopes[:-1] * (slopes[:-1] + slopes[1:])).sum(-1)
        off = (run.values[:-2] - run.values[1:-1] - rule).abs()
        scale = run.values[:-2].abs() + run.values[1:-1].abs() + rule.abs()
        lengths = run.points[:-2].norm(dim=-1) * slopes[:-1].norm(dim=-1)
        found += _first(
            "quadratic",
            off > share * scale + 100 * _eps(run) * lengths,
            off / scale,
            "A step decreases the function by another amount than a quadratic would (off by "
            "{:.2g} of its size).",
        )
    return found


def _descent(
    run: RecordedRun, given: Assumptions, constants: Mapping[str, Constant]
) -> list[Contradiction]:
    r"""Values that do not fall as $f(x_{k+1})\le f(x_k)-\eta(1-\frac{\eta L}2)\|\nabla f(x_k)\|^2$.

    That holds for every step below $2/L$, so no value rises. With the gap $g$ to the minimum,
    $\|\nabla f\|^2$ is at least $2\mu g$, and for convex functions $g^2/R^2$, as no step leads
    further than $R=\|x_0-x^\star\|$ away from the minimizer: a value that hardly falls while
    the gap is large is no less telling.
    """
    largest = _refutable(constants, "smoothness", "larger")
    if largest is None or given.step * largest >= 2 or run.values.ndim != 1:
        return []
    before, after = run.values[:-1].double(), run.values[1:].double()
    # a small value may be what is left of numbers as large as those at the start
    rounding = 300 * _eps(run) * after.abs().maximum(before.abs()).maximum(before[:1].abs())
    rise = after - before
    found = _first(
        "smoothness",
        rise > rounding,
        rise,
        f"A value rises by {{:.3g}}, which no step of gradient descent below 2/L does: L is larger "
        f"than {largest:.4g}, or this is not gradient descent with the step {given.step:.4g}.",
        run.times[1:],
    )
    name, square = _least_squared_gradient(before, given, constants)
    if found or square is None:
        return found
    least = given.step * (1 - given.step * largest / 2) * square
    return _first(
        name,
        rise + least * (1 - _share(run)) > rounding,
        -rise / least,
        "A value falls by {:.3g} of the least that a step must bring at that gap to the minimum: "
        "one of the constants is wrong, or this is not gradient descent with that step.",
        run.times[1:],
    )


def _least_squared_gradient(
    values: Tensor, given: Assumptions, constants: Mapping[str, Constant]
) -> tuple[str, Tensor | None]:
    """What the squared gradient is at least by the gap, and the assumption that says so."""
    minimum = constants.get("minimum")
    if minimum is None or minimum.truth not in _BELOW:
        return "", None
    gaps = (values - minimum.value).clamp_min(0.0)
    for name in ("convexity", "dominance"):
        constant = _refutable(constants, name, "smaller")
        if constant is not None:
            return name, 2 * constant * gaps
    distance = _refutable(constants, "distance", "larger")
    if given.kind == "convex" and distance:
        return "convex", (gaps / distance).square()
    return "", None


def _refutable(
    constants: Mapping[str, Constant], name: str, by: Literal["larger", "smaller"]
) -> float | None:
    """The value of a constant, if meeting something larger (smaller) contradicts it."""
    constant = constants.get(name)
    sides = ("equal", "at most") if by == "larger" else ("equal", "at least")
    return constant.value if constant is not None and constant.truth in sides else None


def _eps(run: RecordedRun) -> float:
    return torch.finfo(run.values.dtype).eps


def _share(run: RecordedRun) -> float:
    """By which share a quotient of recorded numbers has to exceed a constant to contradict it."""
    return max(1e-6, 1e3 * _eps(run))


def _method(run: RecordedRun, step: float) -> list[Contradiction]:
    """Steps of another length than that of gradient descent, where lengths and norms are known."""
    if run.points is None or run.gradient_norms is None or not run.every_step:
        return []
    lengths = run.points.diff(dim=0).norm(dim=-1)
    norms = run.gradient_norms[:-1]
    rounding = 100 * _eps(run) * run.points[:-1].norm(dim=-1)
    off = (lengths - step * norms).abs() > 1e-3 * lengths.maximum(step * norms) + rounding
    return _first(
        "step",
        off,
        lengths / norms,
        f"A step is {{:.4g}} times as long as the gradient, not {step:.4g} times: this is not "
        "gradient descent with that step.",
    )


def _dominance_met(
    run: RecordedRun, step: float, constants: Mapping[str, Constant]
) -> tuple[Tensor | None, Tensor | None]:
    r"""Lower and upper ends of $\|\nabla f(x_k)\|^2/(2(f(x_k)-f^\star))$, `[T]` each.

    The lower one bounds $L$ from below, the upper one the Polyak-Łojasiewicz constant from
    above; None where the side on which the minimum is known does not give one.
    """
    norms, minimum = gradient_norms_of_run(run, step), constants.get("minimum")
    if norms is None or minimum is None or run.values.ndim != 1:
        return None, None
    values = run.values[: len(norms)]
    rounding = 100 * _eps(run) * values.abs().maximum(values[0].abs())
    gaps, squares = values - minimum.value, norms.square() / 2
    low = squares / (gaps + rounding).clamp_min(0.0)
    high = torch.where(gaps > 10 * rounding, squares / (gaps - rounding), torch.inf)
    return (
        torch.where(gaps > 10 * rounding, low, 0.0) if minimum.truth in _ABOVE else None,
        high if minimum.truth in _BELOW else None,
    )


# where the true minimum lies for a gap to be an upper, and a lower bound of the true gap
_ABOVE, _BELOW = ("equal", "at least"), ("equal", "at most")


def _momentum(given: Assumptions, constants: Mapping[str, Constant]) -> list[Contradiction]:
    if given.kind == "heavy ball" and constants["convexity"].truth in ("equal", "at most"):
        least = (1 - math.sqrt(min(1.0, given.step * constants["convexity"].value))) ** 2
        if constants["momentum"].value < least * (1 - 1e-9):
            return [
                Contradiction(
                    "momentum",
                    0,
                    f"The momentum {constants['momentum'].value:.4g} is below (1-√(ημ))² = "
                    f"{least:.4g}, which the slowest direction needs.",
                )
            ]
    if given.kind == "nesterov strongly convex" and given.momentum is not None:
        root = math.sqrt(given.step * constants["convexity"].value)
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


def _first(
    name: str, wrong: Tensor, shown: Tensor, sentence: str, times: Tensor | None = None
) -> list[Contradiction]:
    """The first step that refutes an assumption; the most telling number of all that do."""
    wrong = wrong & torch.isfinite(shown)
    if not bool(wrong.any()):
        return []
    met = shown[wrong]
    worst = met.min() if name in ("convexity", "convex", "dominance") else met.max()
    at = int(wrong.int().argmax())
    return [
        Contradiction(name, at if times is None else int(times[at]), sentence.format(float(worst)))
    ]
