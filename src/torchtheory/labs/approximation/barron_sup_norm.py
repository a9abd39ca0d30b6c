"""Barron's networks in the sup norm: the same rate, and what the dimension costs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torchtheory.approximation.barron.sampled_networks import barron_network, draw_steps
from torchtheory.approximation.barron.spectra import PlaneWaves
from torchtheory.approximation.barron.uniform import SupOverSets, additive_extremes, additive_sup_error, additive_waves
from torchtheory.labs.engine import Interval, Run, fit_slope, lab, mean_interval

COUNTS = (1024, 4096, 16384)
DIMENSIONS = (4, 8, 16, 32)
Sides = tuple[SupOverSets, SupOverSets]
IDS = ["L-101", "A-104"]


@lab(
    "barron-sup-norm",
    room="approximation",
    covers=["L-101", "A-104"],
    title="Barron's theorem in the sup norm: $n^{-1/2}$, times √d on a cube and $d^{1/4}$ on a ball",
    full={"seeds": 80, "parts": 512},
    least={"seeds": 8, "parts": 32},
)
def barron_sup_norm(run: Run, seeds: int = 16, parts: int = 192) -> None:
    """The largest error of a network of random steps, exactly, for sums of waves along the axes.

    All targets have Barron's constant 1, in 1 to 32 dimensions. The largest error falls with
    $n^{-1/2}$, as the mean squared one does. The theorem allows it to grow with √d at equal
    constants: on the cube, where every coordinate may be at its worst at once, it does; on the ball
    the coordinates share one radius, and what is found is $d^{1/4}$. Drawn for the unit ball, a network
    knows nothing of a larger one: there the error stays.

    Args:
        seeds: random networks per size.
        parts: of the squared radius, which coordinates share in whole parts where the set is the ball.
    """
    agrees(run)
    found = {
        d: [[one(run, additive_waves(d), n, parts) for n in COUNTS] for _ in range(seeds)] for d in (1, *DIMENSIONS)
    }
    in_units(run, found, parts)
    in_dimensions(run, found, seeds, parts)
    constants = {
        name: [mean_interval([math.sqrt(COUNTS[-1]) * pick(row[-1]) for row in found[d]]) for d in DIMENSIONS]
        for name, pick in (("cube", on_cube), ("ball", on_ball))
    }
    run.curves(
        "constants",
        DIMENSIONS,
        constants,
        {
            name: [constants[name][0].estimate * (d / DIMENSIONS[0]) ** power for d in DIMENSIONS]
            for name, power in (("cube", 0.5), ("ball", 0.25))
        },
        axes=("dimension $d$", r"$\sqrt{n}\,\mathbb{E}\,\sup(f_n-f)/C_f$"),
        log="xy",
        caption=f"n = {COUNTS[-1]} steps; dashed: √d and $d^{{1/4}}$ from the values in four dimensions on.",
    )
    run.table(
        "errors",
        ["d", "n", "cube", "ball, at least", "ball, at most"],
        [
            [d, n, *(sum(max(side[i] for side in row[k]) for row in found[d]) / seeds for i in range(3))]
            for d in found
            for k, n in enumerate(COUNTS)
        ],
        caption="Mean of the largest error over the draws",
    )


def one(run: Run, target: PlaneWaves, units: int, parts: int, radius: float = 1.0) -> Sides:
    return additive_extremes(draw_steps(target, units, generator=run.generator), target, radius, parts=parts)


def on_cube(found: Sides) -> float:
    """The mean of both sides: the larger one gains less in more dimensions, which would hide the rate."""
    return (found[0].cube + found[1].cube) / 2


def on_ball(found: Sides) -> float:
    """The same, of the middle of the two bounds, which differ by a few hundredths."""
    return sum(side.ball_low + side.ball_high for side in found) / 4


def agrees(run: Run) -> None:
    """The exact supremum against many points of the network that a user gets."""
    gaps, outside = [], []
    for d in (1, 2, 3):
        target = additive_waves(d)
        seed = int(torch.randint(2**31, (1,), generator=run.generator))
        exact = additive_sup_error(draw_steps(target, 30, generator=seed), target)
        network = barron_network(target, 30, generator=seed).model.requires_grad_(False)
        x = 2 * run.rand(100_000, d) - 1
        apart = (network(x)[:, 0] - target(x)).abs()
        inside = apart[x.norm(dim=1) <= 1]
        gaps += [float(apart.max()) / exact.cube, float(inside.max()) / exact.ball_high]
        larger = (network(4 * x)[:, 0] - target(4 * x)).abs()
        outside += [float(larger.max()) / exact.cube, float(larger[x.norm(dim=1) <= 1].max()) / exact.ball_high]
    says = run.states(IDS, r"\max_{i\le10^5}|f-f_n|(x_i)\le\sup|f-f_n|: \text{ ratio, cube and ball, } d=1,2,3")
    says.at_most(gaps, 1.0, 1e-9)
    says.fails("points of a cube and a ball four times as large", outside)


def in_units(run: Run, found: dict[int, list[list[Sides]]], parts: int) -> None:
    for d, rows in found.items():
        for name, pick in (("[-1,1]^d", on_cube), ("B_1", on_ball)):
            if (d == 1 and name == "B_1") or d not in (1, 4, 16):
                continue
            # decided beforehand: 0.03 for the units it takes to fill every axis
            says = run.states(IDS, rf"d={d}: \quad\mathbb E\sup_{{{name}}}(f_n-f)\sim n^{{-1/2}}")
            says.slope(slope([[pick(s) for s in row] for row in rows]), -0.5, 0.03, against=(-0.25, -1.0))
            if d == 4:
                far = [[pick(one(run, additive_waves(d), n, parts, 2.0)) for n in COUNTS] for _ in rows]
                says.fails("a set twice as large as the network was drawn for", slope(far))


def slope(rows: list[list[float]]) -> Interval:
    """The exponent in n, with a confidence that holds for all five together."""
    return mean_interval([fit_slope(COUNTS, row).estimate for row in rows], 1 - 0.01 / 5)


def in_dimensions(run: Run, found: dict[int, list[list[Sides]]], seeds: int, parts: int) -> None:
    ridge = PlaneWaves(torch.ones(1).double(), torch.eye(1).double(), torch.full((1,), -math.pi / 2).double())

    def exponents(pick: Callable[[Sides], float]) -> Interval:
        # of all counts together, each with √n taken out
        rows = [
            [sum(math.sqrt(n) * pick(s) for n, s in zip(COUNTS, row, strict=True)) for row in draws]
            for draws in zip(*(found[d] for d in DIMENSIONS), strict=True)
        ]
        return mean_interval([fit_slope(DIMENSIONS, row).estimate for row in rows])

    flat = [
        fit_slope(DIMENSIONS, [on_cube(one(run, ridge, COUNTS[-1], parts)) for _ in DIMENSIONS]).estimate
        for _ in range(seeds)
    ]
    # decided beforehand: 0.03 for the units it takes to fill every axis
    says = run.states(IDS, r"C_f=1: \quad\mathbb E\sup_{[-1,1]^d}(f_n-f)\sim\sqrt d")
    says.slope(exponents(on_cube), 0.5, 0.03, against=(0.25, 0.0, 1.0))
    says.fails("waves along one axis only", mean_interval(flat))
    # and 0.05 on the ball, whose points have short coordinates only in many dimensions
    says = run.states(IDS, r"C_f=1: \quad\mathbb E\sup_{B_1}(f_n-f)\sim d^{1/4}")
    says.slope(exponents(on_ball), 0.25, 0.05, against=(0.5, 0.0))
    says.fails("the cube around the ball", exponents(on_cube))

    def worst(d: int) -> list[float]:
        return [max(side.ball_high for side in row[-1]) for row in found[d]]

    line = additive_waves(1)
    alone = mean_interval(
        [max(side.cube for side in one(run, line, COUNTS[-1], parts)) for _ in range(12 * seeds)]
    ).estimate
    ratios = [mean_interval(worst(d)).low / (alone * math.sqrt(d)) for d in DIMENSIONS]
    says = run.states(IDS, r"\mathbb E\sup_{B_1}|f-f_n|\big/\bigl(\sqrt d\;\mathbb E\sup_{[-1,1]}|f-f_n|\bigr)\le1")
    says.at_most(ratios, 1.0, where="at equal constants; lower ends")
    # without the factor 1/d the same network, scaled: the constant grows with d
    says.fails("sums of waves, with constants d", [d * r for d, r in zip(DIMENSIONS, ratios, strict=True)])
