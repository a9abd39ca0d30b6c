"""How many labelings a class gives n points, and the lemma that bounds it by the VC dimension."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.vc.growth import (
    Restriction,
    different_labelings,
    growth_halfspaces,
    growth_intervals,
    growth_on,
    growth_signed_thresholds,
    growth_thresholds,
    halfspaces,
    homogeneous_halfspaces,
    intervals,
    log_sauer_polynomial,
    rectangles,
    sauer_bound,
    signed_thresholds,
    thresholds,
    vc_dimension_on,
)
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.dichotomies import count_dichotomies_by_programs


@lab(
    "growth-function",
    room="generalization",
    covers=["M-33", "M-34", "M-38", "A-35"],
    title="A class of VC dimension h gives n points at most Σ C(n, i) labelings, i ≤ h",
    errata=["exponential-until-four-points", "growth-faster-than-exponential"],
    full={"points": 11, "draws": 20, "classes": 60},
    least={"points": 5, "draws": 3, "classes": 5},
    most={"points": 16},
)
def growth_function(run: Run, points: int = 8, draws: int = 8, classes: int = 15) -> None:
    """The restrictions of simple classes are listed on random points and counted.

    Thresholds, signed thresholds and intervals on a line meet their closed forms, which a grid
    over the parameters confirms; half-spaces meet Cover's count, which linear programs confirm.
    Lines in the plane make 2, 4, 8 and then 14 labelings of four points, never 16. Then the
    Sauer-Shelah lemma: for the classes above, for boxes, and for random finite classes whose VC
    dimension is found by exhaustion. Look at the figure: below its VC dimension a class grows like
    2ⁿ, beyond it like a polynomial.

    Args:
        points: that labelings are counted on, 5 to 16.
        draws: random placements of the points.
        classes: random classes of functions.
    """
    on_a_line(run, points, draws)
    half_planes(run, points, draws)
    sauer_shelah(run, points, draws, classes)
    run.figure(
        "growth",
        lambda axes: plot(axes, 20),
        caption="Left, growth functions and the bound of the lemma for h = 3; the dotted line is "
        "2ⁿ. Middle, three points that lines shatter, with the lines. Right, the two labelings "
        "of a square that no line makes: the diagonals cross.",
        grid=(1, 3),
        size=(13.0, 3.6),
    )


def most(restriction: Restriction, samples: list[Tensor]) -> int:
    """The largest count over several point sets."""
    return max(len(restriction(x)) for x in samples)


def on_a_line(run: Run, points: int, draws: int) -> None:
    """Thresholds and intervals: listed, by formula, and by a grid over the parameters."""
    listed, formula, grid, tied = [], [], [], []
    for n in range(1, points + 1):
        samples = [run.rand(n, 1) for _ in range(draws)]
        x = torch.arange(n).double()
        cuts = torch.arange(n + 1).double() - 0.5
        low, high = torch.cartesian_prod(cuts, cuts).T
        above = x - cuts[:, None]
        between = torch.minimum(x - low[:, None], high[:, None] - x)
        for restriction, count, values in (
            (thresholds, growth_thresholds(n), above),
            (signed_thresholds, growth_signed_thresholds(n), torch.cat([above, -above])),
            (intervals, growth_intervals(n), between),
        ):
            listed.append(most(restriction, samples))
            formula.append(count)
            grid.append(len(different_labelings(values)))
            tied.append(len(restriction((samples[0] * n / 2).floor())))
    says = run.states(
        ["M-33", "A-35"], r"S(n)=n+1\ \text{(thresholds)},\ 2n\ \text{(signed)},\ \tbinom{n+1}2+1\ \text{(intervals)}"
    )
    says.equal(
        listed + grid,
        formula + formula,
        where=f"n = 1..{points}, listed on random points and by a grid over the parameters",
    )
    says.fails("points that coincide", tied, promised=formula)
    net = different_labelings(_random_networks(run, 3000, 6))
    few = different_labelings(_random_networks(run, 3000, 6)[:, :1].expand(-1, 6))
    says = run.states(
        ["M-33", "A-35"],
        r"S(6)\ge|\{\operatorname{sgn}\Phi_\theta(z):\theta\ \text{drawn}\}|\ge "
        r"S_{\text{half-planes}}(6)\ \text{ for the ReLU networks } (2,8,1)",
    )
    says.at_least(
        len(net), growth_halfspaces(6, 2), where=f"3000 random networks make {len(net)} of the 64 labelings of 6 points"
    )
    says.fails("six times the same point", len(few))


def _random_networks(run: Run, number: int, points: int) -> Tensor:
    """Values `[number, points]` of random ReLU networks with 2 inputs and 8 hidden units."""
    x = run.randn(points, 2)
    hidden = torch.relu(run.randn(number, 8, 2) @ x.T + run.randn(number, 8, 1))
    return (run.randn(number, 1, 8) @ hidden).squeeze(1) + run.randn(number, 1)


def half_planes(run: Run, points: int, draws: int) -> None:
    """Cover's count, linear programs, and four points that are never shattered."""
    listed, formula = [], []
    for d, top in ((1, points), (2, points), (3, min(points, 9))):
        for n in range(1, top + 1):
            samples = [run.randn(n, d) for _ in range(3)]
            listed += [most(halfspaces, samples), most(homogeneous_halfspaces, samples)]
            formula += [growth_halfspaces(n, d), growth_halfspaces(n, d, bias=False)]
    says = run.states(
        "A-35",
        r"S(n)=2\sum_{j\le d}\tbinom{n-1}j\ \text{(half-spaces)},\ "
        r"2\sum_{j<d}\tbinom{n-1}j\ \text{(through the origin)}",
    )
    says.equal(listed, formula)
    says.fails(
        "a plane in space: the points are not in general position",
        len(halfspaces(torch.cat([run.randn(6, 2), torch.zeros(6, 1).double()], 1))),
        promised=growth_halfspaces(6, 3),
    )
    programs = [count_dichotomies_by_programs(run.randn(n, 2), bias=True) for n in (1, 2, 3, 4, 5)]
    line = torch.stack([torch.arange(3.0), torch.arange(3.0)], 1).double()
    says = run.states("M-34", r"S(1),\dots,S(5)=2,4,8,14,22\ \text{ for lines in the plane}")
    says.equal(
        [*programs, *(most(halfspaces, [run.randn(n, 2)]) for n in (1, 2, 3, 4, 5))],
        [2, 4, 8, 14, 22] * 2,
        where="decided by linear programs, and by listing",
    )
    says.fails("three points on one line", len(halfspaces(line)), promised=8)
    four = [len(halfspaces(run.randn(4, 2))) for _ in range(20 * draws)]
    run.refutes("exponential-until-four-points", r"S(4)=2^4\ \text{ for lines in the plane}").equal(
        max(four), 16, where=f"the most labelings of four points in {20 * draws} draws"
    )


def sauer_shelah(run: Run, points: int, draws: int, classes: int) -> None:
    """Growth functions against the sum of binomial coefficients, and that against (en/h)^h."""
    growth: list[int] = []
    bound: list[int] = []
    low: list[int] = []
    for n in range(1, points + 1):
        flat = [run.randn(n, 2) for _ in range(draws // 2)]
        angles = torch.arange(n).double() * 2 * math.pi / n
        flat.append(torch.stack([angles.cos(), angles.sin()], 1))
        for count, h in (
            (growth_thresholds(n), 1),
            (growth_signed_thresholds(n), 2),
            (growth_intervals(n), 2),
            (growth_halfspaces(n, 2), 3),
            (growth_halfspaces(n, 5), 6),
            (most(rectangles, flat), 4),
        ):
            growth.append(count)
            bound.append(sauer_bound(n, h))
            low.append(sauer_bound(n, h - 1))
    says = run.states(["M-38", "A-35"], r"S_{\mathcal F}(n)\le\sum_{i=0}^h\tbinom ni")
    says.at_most(
        growth,
        bound,
        where="thresholds, intervals, half-spaces and boxes; for thresholds and intervals it is an equality",
    )
    says.fails("h too small by one", growth, promised=low)
    sizes, caps = [], []
    for _ in range(classes):
        number = int(torch.randint(3, 60, (1,), generator=run.generator))
        table = torch.unique(run.signs(number, 7), dim=0)
        h = vc_dimension_on(table)
        for m in range(1, 8):
            sizes.append(growth_on(table, m))
            caps.append(sauer_bound(m, h))
    every = all_labelings(7)
    largest, short = [], []
    for h in range(1, 7):  # at most h ones: as many labelings as the lemma allows
        table = every[(every > 0).sum(1) <= h]
        for m in range(h, 8):
            largest.append(growth_on(table, m))
            caps.append(sauer_bound(m, h))
            short.append(sauer_bound(m, h - 1))
    says = run.states("M-38", r"S_{\mathcal F}(n)\le\sum_{i=0}^h\tbinom ni\ \text{ for classes on 7 points}")
    says.at_most(
        sizes + largest,
        caps,
        where=f"{classes} random classes, growth and VC dimension by exhaustion; and the sets of at most h points",
    )
    says.fails("the sets of at most h points, charged for h - 1", largest, promised=short)
    pairs = [(n, h) for h in range(1, 21) for n in range(1, 201)]
    beyond = [(n, h) for n, h in pairs if n >= h]
    before = [(n, h) for n, h in pairs if n < h]
    says = run.states("M-38", r"\log\sum_{i\le h}\tbinom ni\le h\log(en/h),\ n\ge h")
    says.at_most([math.log(sauer_bound(n, h)) for n, h in beyond], [log_sauer_polynomial(n, h) for n, h in beyond])
    says.fails(
        "n < h",
        [math.log(sauer_bound(n, h)) for n, h in before],
        promised=[h * (1 + math.log(n / h)) for n, h in before],
    )
    says = run.states("M-38", r"\sum_{i\le h}\tbinom ni=2^n\ \text{ for } n\le h")
    says.equal(
        [float(sauer_bound(n, h)) for h in range(1, 21) for n in range(1, h + 1)],
        [2.0**n for h in range(1, 21) for n in range(1, h + 1)],
    )
    says.fails(
        "n = h + 1",
        [float(sauer_bound(h + 1, h)) for h in range(1, 21)],
        promised=[2.0 ** (h + 1) for h in range(1, 21)],
    )
    run.refutes("growth-faster-than-exponential", r"\sum_{i\le h}\tbinom ni\ \text{ grows faster than } 2^n").above(
        [float(sauer_bound(n, 20)) for n in range(1, 21)], [2.0**n for n in range(1, 21)], where="h = 20, n up to h"
    )


def plot(axes: Any, most_points: int) -> None:
    curves, triangle, square = axes[0]
    n = list(range(1, most_points + 1))
    curves.semilogy(n, [2.0**k for k in n], ":", color=COLORS[6], label="$2^n$")
    curves.semilogy(n, [sauer_bound(k, 3) for k in n], "--", color=COLORS[1], label="lemma, h = 3")
    shown = (
        ([growth_halfspaces(k, 2) for k in n], "lines in the plane (h = 3)"),
        ([growth_intervals(k) for k in n], "intervals (h = 2)"),
        ([growth_thresholds(k) for k in n], "thresholds (h = 1)"),
    )
    for (values, name), color in zip(shown, (COLORS[0], COLORS[2], COLORS[3]), strict=True):
        curves.semilogy(n, values, "o-", markersize=3, color=color, label=name)
    curves.set(xlabel="n", ylabel="labelings", title="growth functions", xticks=range(0, 21, 5))
    curves.legend()
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.9]])
    triangle.scatter(*corners.T, s=60, color=COLORS[0], zorder=3)
    for slope, offset in ((0.0, 0.45), (1.8, -0.9), (-1.8, 0.9), (0.0, 1.15)):
        triangle.axline((0.5, slope * 0.5 + offset), slope=slope, color=COLORS[6], lw=0.8)
    triangle.set(xlim=(-0.4, 1.4), ylim=(-0.3, 1.3), title="shattered: four lines, two signs each")
    for marker, color, rows in (("o", COLORS[0], (0, 3)), ("s", COLORS[1], (1, 2))):
        chosen = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])[list(rows)]
        square.plot(*chosen.T, marker=marker, ms=8, color=color, lw=0.8)
    square.set(xlim=(-0.4, 1.4), ylim=(-0.3, 1.3), title="not a labeling by a line")
    for ax in (triangle, square):
        ax.set(xticks=[], yticks=[], aspect="equal")
