"""How many labelings of a point set can a hyperplane produce?"""

from __future__ import annotations

from typing import Any

import torch
from scipy import stats

from torchtheory.data.synthetic import xor
from torchtheory.labs.engine import Interval, Run, clopper_pearson, lab
from torchtheory.neurons.dichotomies import (
    capacity_curve,
    count_dichotomies,
    count_dichotomies_by_programs,
    cover_count,
    cover_fraction,
    in_general_position,
    realizable_dichotomies,
)
from torchtheory.neurons.separability import separate


@lab(
    "cover-dichotomies",
    room="neurons",
    covers=["N-10", "N-11"],
    title="Cover: s points in general position have C(s, n) linear labelings, half at s = 2n",
    errata=["cover-number-decreases"],
    full={"points": 12, "dimension": 5, "programs": 11, "trials": 2000, "features": 30},
    least={"dimension": 2, "programs": 3, "trials": 20, "features": 4, "points": 3},
)
def cover_dichotomies(
    run: Run,
    points: int = 10,
    dimension: int = 4,
    programs: int = 6,
    trials: int = 700,
    features: int = 10,
) -> None:
    """Gaussian points are in general position, so Cover counts their linear labelings exactly.

    For every s up to `points` and n up to `dimension` the labelings are listed point by point
    and compared with the formula; up to `programs` points each of the $2^s$ labelings is also
    decided by a linear program. Points in special position have fewer. Then `trials` random
    labelings in `features` dimensions are tested at several loads s/n: the share that can be
    separated follows a binomial distribution function, exactly ½ at s = 2n, and the step there
    sharpens as the dimension grows. The number itself never falls, contrary to what is printed.
    """
    run.assumes(points >= programs, f"labelings of {programs} points are decided, and {points} are listed")
    formula(run)
    grid = enumeration(run, points, dimension, programs)
    corners(run)
    measured = random_labelings(run, trials, features)

    run.table(
        "labelings",
        ["points", *(f"n = {n}" for n in range(1, dimension + 1)), "$2^s$"],
        [(s, *(grid[s, n] for n in range(1, dimension + 1)), 2**s) for s in range(1, points + 1)],
        caption="Linear labelings found for Gaussian points, by number of points and dimension",
    )
    run.figure(
        "capacity",
        lambda axis: plot_capacity(axis, measured, features),
        caption="Share of all labelings that a hyperplane produces. The step at s/n = 2 sharpens "
        "with the dimension; points are measured, with 99.9% intervals.",
    )


def formula(run: Run) -> None:
    """Closed form, recursion, initial values, binomial distribution function."""
    most_points, most_dimensions = 60, 20
    table = recursion(most_points, most_dimensions)
    cells = sorted(table)
    says = run.states(
        "N-10",
        r"C(s+1,n)=C(s,n)+C(s,n-1),\ C(1,n)=C(s,1)=2 \text{ gives } 2\sum_{i<n}\binom{s-1}{i}:"
        r"\text{ cells that differ}",
    )
    says.equal(sum(table[s, n] != cover_count(s, n) for s, n in cells))
    says.fails(
        "the recursion started from C(s,1) = 1: a hyperplane used on one side only",
        sum(value != cover_count(s, n) for (s, n), value in recursion(most_points, most_dimensions, edge=1).items()),
    )
    known = {(4, 2): 8, (4, 3): 14, (5, 3): 22, (6, 3): 32, (8, 4): 128}
    run.states("N-10", r"C(4,2)=8,\ C(4,3)=14,\ C(5,3)=22,\ C(6,3)=32,\ C(8,4)=128").equal(
        [cover_count(s, n) for s, n in known], list(known.values())
    )
    run.states("N-10", r"C(s,n)/2^s = P(\mathrm{Bin}(s-1,\tfrac12)\le n-1)").equal(
        [cover_fraction(s, n) for s, n in cells], [float(stats.binom.cdf(n - 1, s - 1, 0.5)) for s, n in cells], 1e-12
    )
    dimensions = range(1, 101)
    says = run.states("N-10", r"C(2n,n)/2^{2n}=\tfrac12")
    says.equal([cover_fraction(2 * n, n) for n in dimensions], 0.5)
    says.fails(
        "a bias as well, so that the hyperplanes need not pass through the origin",
        [cover_fraction(2 * n, n, bias=True) for n in dimensions],
    )
    loads = [(s, n) for s, n in cells if s <= 2 * n]
    run.states("N-10", r"C(s,n)=2^s \text{ exactly when } s\le n:\ \text{exceptions}").equal(
        sum((cover_count(s, n) == 2**s) != (s <= n) for s, n in loads)
    )
    growth = [cover_count(s + 1, n) - cover_count(s, n) for s, n in cells if n > 1]
    says = run.states("N-10", r"n\ge2:\ C(s+1,n)>C(s,n)")
    says.above([float(g) for g in growth], 0)
    says.fails("n = 1", [float(cover_count(s + 1, 1) - cover_count(s, 1)) for s in (1, 9)])
    run.refutes("cover-number-decreases", r"s\ge2n:\ C(s+1,n)<C(s,n)").below(
        [float(cover_count(2 * n + 1, n)) for n in (2, 5, 10)],
        [float(cover_count(2 * n, n)) for n in (2, 5, 10)],
        where="the number keeps growing; its share of all labelings falls",
    )


def recursion(points: int, dimensions: int, edge: int = 2) -> dict[tuple[int, int], int]:
    """Cover's table from its recursion and its edge alone."""
    table = {(1, n): 2 for n in range(1, dimensions + 1)}
    for s in range(2, points + 1):
        table[s, 1] = edge
        for n in range(2, dimensions + 1):
            table[s, n] = table[s - 1, n] + table[s - 1, n - 1]
    return table


def enumeration(run: Run, points: int, dimension: int, programs: int) -> dict[tuple[int, int], int]:
    """Count labelings of actual points, in general position and not."""
    cells = [(s, n) for s in range(1, points + 1) for n in range(1, dimension + 1)]
    clouds = {(s, n): run.randn(s, n) for s, n in cells}
    found = {cell: count_dichotomies(clouds[cell]) for cell in run.track(cells)}
    special = {cell: clouds[cell].clone() for cell in cells if cell[0] > cell[1] > 1}
    for cloud in special.values():
        cloud[-1] = -2 * cloud[0]
    says = run.states("N-11, N-10", r"\text{general position: } \#\{\operatorname{sgn}(Xw)\} = C(s,n)")
    says.equal([found[cell] for cell in cells], [cover_count(s, n) for s, n in cells])
    says.fails(
        "two points on one line through the origin",
        [count_dichotomies(cloud) for cloud in special.values()],
        promised=[cover_count(s, n) for s, n in special],
    )
    says = run.states("N-11", r"\text{special position: } \#\{\operatorname{sgn}(Xw)\} < C(s,n)")
    says.below([count_dichotomies(cloud) for cloud in special.values()], [cover_count(s, n) for s, n in special])
    says.fails(
        "the same number of points in general position",
        [found[cell] for cell in special],
        promised=[cover_count(s, n) for s, n in special],
    )
    generic = [in_general_position(clouds[cell]) for cell in special]
    says = run.states("N-10", r"\text{Gaussian points are in general position}")
    says.equal(generic, True)
    says.fails("two points on one line through the origin", [in_general_position(cloud) for cloud in special.values()])
    small = [(programs, n) for n in range(2, dimension + 1)]
    run.states("N-11", r"\text{the same count by } 2^s \text{ linear programs}").equal(
        [count_dichotomies_by_programs(clouds[cell]) for cell in small]
        + [count_dichotomies_by_programs(special[programs, 2])],
        [found[cell] for cell in small] + [count_dichotomies(special[programs, 2])],
        where="the last one is a degenerate point set",
    )
    return found


def corners(run: Run) -> None:
    """The four corners of the square with a bias."""
    x, y = xor()
    found = realizable_dichotomies(x, bias=True)
    says = run.states("N-11", r"\text{the corners of the square have 14 labelings with a bias}")
    says.equal(len(found), 14)
    says.fails("no bias: the corner (0,0) is on no side", count_dichotomies(x))
    listed = [(found.labels == labels).all(1).any() for labels in (y, -y)]
    says = run.states("N-11", r"\text{the two that are missing are XOR and XNOR}")
    says.equal([float(found) for found in listed])
    says.fails("AND in place of XOR", float((found.labels == torch.tensor([-1.0, 1.0, -1.0, -1.0])).all(1).any()))


def random_labelings(run: Run, trials: int, features: int) -> list[tuple[int, Interval]]:
    """Share of random labelings that can be separated, against Cover's fraction."""
    loads = [round(features * load) for load in (1.5, 2.0, 2.25)]
    measured = []
    for s in loads:
        count = sum(
            bool(separate(run.randn(s, features), run.signs(s), bias=False))
            for _ in run.track(range(trials), f"{s} points")
        )
        measured.append((s, clopper_pearson(count, trials, 0.999)))
    planted, controls = 0, max(50, trials // 4)
    for _ in range(controls):
        x = run.randn(loads[-1], features)
        planted += bool(separate(x, torch.sign(x @ run.randn(features)), bias=False))
    for s, interval in measured:
        says = run.states(
            "N-11, N-10",
            rf"P(\text{{{s} random labels in }} \mathbb R^{{{features}}}\text{{ are separable}}) = C(s,n)/2^s",
        )
        share = cover_fraction(s, features)
        # half of it is the count of one side of each hyperplane; 0 and 1 are the limit of large n
        limit = () if s == 2 * features else (float(s < 2 * features),)
        says.mean(interval, share, against=(share / 2, *limit))
        if s == loads[-1]:
            says.fails(
                "labels that are not random but those of a hyperplane", clopper_pearson(planted, controls, 0.999)
            )
    return measured


def plot_capacity(axis: Any, measured: list[tuple[int, Interval]], features: int) -> None:
    for n in (5, 20, 100):
        load, share = capacity_curve(n, largest_load=4.0)
        axis.plot(load, share, label=f"n = {n}")
    load, share = capacity_curve(features, largest_load=4.0)
    axis.plot(load, share, color="black", linewidth=0.8, linestyle=":", label=f"n = {features}")
    x = [s / features for s, _ in measured]
    y = [i.estimate for _, i in measured]
    spread = [[i.estimate - i.low for _, i in measured], [i.high - i.estimate for _, i in measured]]
    axis.errorbar(
        x,
        y,
        spread,
        fmt="o",
        color="black",
        capsize=3,
        markersize=4,
        label=f"measured, n = {features}",
    )
    axis.axvline(2, color="0.5", linewidth=0.8, linestyle="--")
    axis.annotate("s = 2n", (2.03, 0.94), color="0.3")
    axis.set(xlabel="load s/n", ylabel="share of labelings $C(s,n)/2^s$", xlim=(0, 4))
    axis.legend(loc="lower left")
