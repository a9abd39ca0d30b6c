"""Makovoz's rate: steps drawn one from every stratum do better than independent ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.barron.sampled_networks import ball_points
from torchtheory.approximation.barron.stratified_steps import steps_in_strata
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval

#: cells a side, by dimension; cells must be small beside the ball for the rate to show
SIZES = {1: (8, 16, 32, 64, 128), 2: (6, 8, 10, 13, 16, 20, 26), 3: (5, 6, 8, 10, 12, 14, 17)}


@lab(
    "stratified-steps",
    room="approximation",
    covers=["X-19"],
    title="One step from every stratum: the error falls as $N^{-1/2-1/2d}$, not $N^{-1/2}$",
    full={"pairs": 60_000, "draws": 60, "points": 2000},
    least={"pairs": 1_000, "draws": 5, "points": 50},
)
def stratified_steps(run: Run, pairs: int = 3000, draws: int = 60, points: int = 300) -> None:
    """The bowl (|x|²/d - 1)/4 on the unit ball is a mixture of half-spaces b·1[θ·x > b].

    N steps are drawn independently, or one from each of N cells of directions and thresholds. The
    expected squared error is known from pairs: it is half the mean squared distance of two steps of
    the same cell, over N. Independent steps err by $N^{-1/2}$ in every dimension, with the exact
    constant; cells gain the factor $N^{-1/2d}$, much on the line and less the more dimensions there
    are. Networks that are drawn err as expected. Look at how the slopes approach -1 with d.

    Args:
        pairs: of random steps per size, about.
        draws: random networks per size.
        points: random points of the ball at which steps are compared.
    """
    found = {
        (d, strata): [
            mean_interval([from_pairs(run, k, d, points, strata) for _ in range(max(3, pairs // k**d))]) for k in sizes
        ]
        for d, sizes in SIZES.items()
        for strata in (True, False)
    }
    exponents = slopes(run, found)
    independent(run, found)
    networks(run, found, draws, points)
    run.table(
        "errors",
        ["d", "steps N", "independent", "one from every cell", "gain", "$N^{1/d}$"],
        [
            (d, k**d, b.estimate, a.estimate, b.estimate / a.estimate, float(k))
            for d, sizes in SIZES.items()
            for k, a, b in zip(sizes, found[d, True], found[d, False], strict=True)
        ],
        caption="Expected squared error in L2 of the ball, uniform measure",
    )
    run.figure(
        "strata",
        lambda axes: plot(axes, found, exponents),
        grid=(1, 2),
        caption="Left: expected squared error of N steps, independent (dashed) and one from every "
        "cell (solid); the dashed lines nearly coincide. Right: a bowl on the line by 24 steps of "
        "either kind.",
    )


def bowl(x: Tensor) -> Tensor:
    r"""The integral of b over b < θ·x, b uniform in [-1, 1] and θ on the sphere."""
    return (x.square().sum(1) / x.shape[1] - 1) / 4


def threshold(directions: Tensor, thresholds: Tensor) -> Tensor:
    return thresholds


def from_pairs(run: Run, per_side: int, d: int, points: int, strata: bool) -> float:
    """An unbiased estimate of the expected squared error, from two steps a cell."""
    x = ball_points(points, d, generator=run.generator)
    one, other = (steps_in_strata(threshold, per_side, d, strata=strata, generator=run.generator)(x) for _ in range(2))
    return float((one - other).square().mean()) / (2 * len(one.T))


def slopes(run: Run, found: dict[tuple[int, bool], list[Interval]]) -> dict[int, Interval]:
    """Decided beforehand: the exponent of the squared error is at most -1 - 1/d, within 0.05.

    It may be less at these sizes: steps of a cell differ in their weights as well, and the square
    of that falls twice as fast as the measure of where their half-spaces differ.
    """
    made = {}
    for d, sizes in SIZES.items():
        counts = [k**d for k in sizes]
        made[d], plain = (fit_slope(counts, [i.estimate for i in found[d, strata]]) for strata in (True, False))
        says = run.states(
            "X-19",
            rf"\mathbb E\|f-f_N\|^2\lesssim N^{{-1-1/d}},\ d={d}: \text{{ one step from each of }} N \text{{ cells}}",
        )
        says.at_most(made[d], -1 - 1 / d, 0.05)
        says.fails("independent steps", plain)
    return made


def independent(run: Run, found: dict[tuple[int, bool], list[Interval]]) -> None:
    """What independent steps cost is known exactly."""
    exact, measured, cells, uncentered = [], [], [], []
    for d, sizes in SIZES.items():
        # E b² 1[θx > b] = 1/6 by symmetry; E|x|² = d/(d+2), E|x|⁴ = d/(d+4) on the ball
        square = (1 / (d * (d + 4)) - 2 / (d + 2) + 1) / 16
        for k, plain, strata in zip(sizes, found[d, False], found[d, True], strict=True):
            exact.append((1 / 6 - square) / k**d)
            uncentered.append((1 / 6) / (1 / 6 - square))
            measured.append(plain.estimate / exact[-1])
            cells.append(strata.estimate / exact[-1])
    says = run.states("X-19", r"\text{independent steps: }N\,\mathbb E\|f-f_N\|^2=\tfrac16-\|f\|^2: \text{ ratio}")
    says.mean(
        measured, 1.0, against=sum(uncentered) / len(uncentered), where="without -‖f‖² it would be a quarter more"
    )
    says.fails("one from every cell", cells)


def networks(run: Run, found: dict[tuple[int, bool], list[Interval]], draws: int, points: int) -> None:
    """Networks that are drawn, and their measured errors."""
    ratios, uniform = [], []
    for d, sizes in SIZES.items():
        k, expected = sizes[1], found[d, True][1].estimate
        for _ in range(draws):
            x = ball_points(points, d, generator=run.generator)
            steps = steps_in_strata(threshold, k, d, generator=run.generator)
            ratios.append(error(steps(x), x) / expected)
            loose = steps_in_strata(threshold, k, d, strata=False, generator=run.generator)
            uniform.append(error(loose(x), x) / expected)
    says = run.states("X-19", r"\text{networks that are drawn: mean of }\|f-f_N\|^2/\mathbb E\|f-f_N\|^2")
    says.mean(
        ratios,
        1.0,
        0.05,
        against=(0.5, 2.0),
        where=f"{draws} networks in each of 3 dimensions; the expectation is an estimate itself",
    )
    says.fails("independent steps", uniform)


def error(values: Tensor, x: Tensor) -> float:
    return float((values.mean(1) - bowl(x)).square().mean())


def plot(axes: Any, found: dict[tuple[int, bool], list[Interval]], exponents: dict[int, Interval]) -> None:
    left, right = axes[0]
    for color, (d, sizes) in zip(COLORS, SIZES.items(), strict=False):
        counts = [k**d for k in sizes]
        cells = [i.estimate for i in found[d, True]]
        label = f"d = {d}: exponent {exponents[d].estimate:.2f}"
        left.loglog(counts, cells, "o-", color=color, markersize=4, label=label)
        left.loglog(counts, [i.estimate for i in found[d, False]], "--", color=color)
    left.set(xlabel="steps N", ylabel="expected squared error", title="cells against chance")
    left.legend()
    x = torch.linspace(-1, 1, 801, dtype=torch.float64)[:, None]
    right.plot(x, bowl(x), color="0.5", linewidth=3, alpha=0.5, label="(x² - 1)/4")
    for color, strata, label in ((COLORS[0], True, "cells"), (COLORS[1], False, "independent")):
        steps = steps_in_strata(threshold, 24, 1, strata=strata, generator=3)
        right.plot(x, steps(x).mean(1), color=color, linewidth=1.2, label=label)
    right.set(xlabel="x", title="24 steps")
    right.legend(loc="upper center")
    right.set_ylim(-0.45, math.ceil(10 * float(bowl(x).max()) + 1) / 10)
