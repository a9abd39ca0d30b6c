"""Kolmogorov's superposition: the step that the proof repeats, and two of them in one sum."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import box_grid
from torchtheory.approximation.targets import Function
from torchtheory.approximation.universality.superpositions import (
    InnerFunctions,
    Superposition,
    fit_superposition,
    inner_functions,
    nested_inner_functions,
    superposition_step,
    two_scale_superposition,
)
from torchtheory.labs.engine import COLORS, Run, lab

#: name, function on the square, Lipschitz constant, largest absolute value
TARGETS: tuple[tuple[str, Function, float, float], ...] = (
    ("2x₁x₂ - ½", lambda x: 2 * x[:, 0] * x[:, 1] - 0.5, 2 * math.sqrt(2), 1.5),
    ("x₁ - x₂", lambda x: x[:, 0] - x[:, 1], math.sqrt(2), 1.0),
    (
        "sin 2πx₁ cos πx₂",
        lambda x: torch.sin(2 * math.pi * x[:, 0]) * torch.cos(math.pi * x[:, 1]),
        2 * math.pi,
        1.0,
    ),
)


@lab(
    "kolmogorov-superposition",
    room="approximation",
    covers=["X-21"],
    title="Sums of functions of one variable take away three quarters of any function of two",
    full={"finest": 256, "points": 601, "refinement": 48},
    least={"finest": 8, "refinement": 12},
)
def kolmogorov_superposition(run: Run, finest: int = 32, points: int = 121, refinement: int = 24) -> None:
    """Inner functions that know nothing of f, and an outer one that reads f off: 2d + 1 terms.

    The inner functions climb on narrow intervals, each on its own, and the weights give every cube
    an image of its own. One step leaves at most (d-1)/(d+2) of sup|f|, and what the cells are too
    coarse for: measured for three functions with the same inner functions. The proof repeats the
    step on what is left, on a finer scale and with the same inner functions. Here that is done
    once: inner functions that are nearly constant on the intervals of two scales, one outer
    function, and the largest error falls with the second scale for every f. A third is beyond
    double precision. With more than 2d + 1 inner functions one step is enough for any tolerance.
    With equal weights the sum is symmetric, and nothing of x₁ - x₂ is taken
    away. Look at the outer function: continuous, rough.

    Args:
        finest: intervals of the finest inner functions.
        points: per side of the grid on which errors are measured.
        refinement: a fifth of the number of cells of the second scale per cell of the first.
    """
    sizes = [n for n in (4, 8, 16, 32, 64, 128, 256) if n <= finest]
    grid = box_grid(((0.0, 1.0),) * 2, points)
    rows = one_step(run, sizes, grid)
    any_tolerance(run, grid)
    universal(run, sizes)
    left = two_scales(run, refinement, grid)
    run.table(
        "steps",
        ["function", "N", "bound", "measured", "knots of g"],
        rows,
        caption="One step with N cells, on the unit square",
    )
    run.figure(
        "superposition",
        lambda axes: plot(axes, rows, left, refinement),
        grid=(2, 2),
        caption="Top: the five inner functions for N = 3 cells, and part of the outer function for "
        "2x₁x₂ - ½. Bottom: promised (lines) and measured (marks) errors of one step, and "
        "what is left after the coarse and after the fine scale of one superposition.",
    )


def one_step(run: Run, sizes: list[int], grid: Tensor) -> list[tuple[str, int, float, float, int]]:
    rows = []
    for name, f, rho, top in TARGETS:
        for n in sizes:
            step = superposition_step(f, 2, n, lipschitz=rho, largest=top)
            error = float((step.network(grid) - f(grid)).abs().max())
            rows.append((name, n, step.bound, error, len(step.network.outer_knots)))
    cube = box_grid(((0.0, 1.0),) * 3, 24)
    solid: Function = lambda x: x.prod(1) - 0.5  # noqa: E731
    for n in (4, 8):
        step = superposition_step(solid, 3, n, lipschitz=math.sqrt(3), largest=0.5)
        error = float((step.network(cube) - solid(cube)).abs().max())
        rows.append(("x₁x₂x₃ - ½", n, step.bound, error, len(step.network.outer_knots)))
    cones = [cone(place, 8) for place in ((0.45, 0.95), (0.25, 0.875, 0.625))]
    fast: Function = lambda x: torch.sin(60 * x[:, 0]) * torch.sin(60 * x[:, 1])  # noqa: E731
    understated = superposition_step(fast, 2, 16, lipschitz=1.0, largest=1.0)
    says = run.states(
        "X-21", r"\sup_{[0,1]^d}|f-S|\le\tfrac{d-1}{d+2}\sup|f|+\tfrac{2d}{d+2}Lr,\ r=\sqrt d\,\tfrac{d+1}{(2d+1)N}"
    )
    says.at_most(
        [row[3] for row in rows] + [error for error, _ in cones],
        [row[2] for row in rows] + [bound for _, bound in cones],
        1e-6,
        where="three functions of two variables, one of three, on a grid; cones no wider than a cube, at their tips",
    )
    says.fails(
        "sin 60x₁ sin 60x₂ is not 1-Lipschitz, as the construction was told",
        float((understated.network(grid) - fast(grid)).abs().max()),
        promised=understated.bound,
    )
    return rows


def any_tolerance(run: Run, grid: Tensor) -> None:
    """As many inner functions as a tolerance takes, in one step."""
    x = torch.cat([grid, run.rand(20_000, 2)])
    # of a constant function nothing is left but the share of the slopes: there the bound is met
    constant = ("1", lambda z: torch.ones_like(z[:, 0]), 0.01, 1.0)
    tolerances = (0.4, 0.2, 0.1)
    errors, bounds = [], []
    for _, f, rho, top in (*TARGETS, constant):
        for tolerance in tolerances:
            made = fit_superposition(f, 2, tolerance, lipschitz=rho, largest=top)
            errors.append(float((made.network(x) - f(x)).abs().max()))
            bounds.append(made.bound)
    fast: Function = lambda x: torch.sin(60 * x[:, 0]) * torch.sin(60 * x[:, 1])  # noqa: E731
    understated = fit_superposition(fast, 2, tolerances[0], lipschitz=1.0, largest=1.0)
    says = run.states(
        "X-21",
        r"K\ge2d+1 \text{ inner functions of } N \text{ cells}:\ \sup|f-S|\le"
        r"\tfrac{(d-1)\sup|f|+(K-1)Lr}{K-d+1}\le\epsilon",
    )
    promised = list(tolerances) * (len(TARGETS) + 1)
    says.at_most(errors + bounds, bounds + promised, 1e-9, where="ε = 0.4, 0.2, 0.1; the last function is 1")
    says.fails(
        "sin 60x₁ sin 60x₂ is not 1-Lipschitz, as the construction was told",
        float((understated.network(x) - fast(x)).abs().max()),
        promised=understated.bound,
    )


def cone(place: tuple[float, ...], cells: int) -> tuple[float, float]:
    """Error and bound at the tip of a cone of the height Lr: what the cells are too coarse for counts most.

    Args:
        place: of the tip in its cell, chosen such that the centers of its cubes are far away.
        cells: of the inner functions.
    """
    d = len(place)
    tip = (cells // 2 + torch.tensor([place], dtype=torch.float64)) / cells
    height = math.sqrt(d) * (d + 1) / ((2 * d + 1) * cells)
    step = superposition_step(
        lambda x: (x - tip).norm(dim=1).clamp(max=height), d, cells, lipschitz=1.0, largest=height
    )
    return float(step.network(tip)), step.bound


def universal(run: Run, sizes: list[int]) -> None:
    """The inner functions: increasing, into [0, 1], the same for every f, cubes told apart."""
    made = [inner_functions(2, n) for n in sizes] + [inner_functions(3, n) for n in (4, 8)]
    equal = [inner_functions(2, n, separated=False) for n in sizes]
    says = run.states("X-21", r"\text{images of different cubes under } \sum_jk_j\phi_i \text{ are apart}")
    says.above([m.gap for m in made], 0.0)
    says.fails("equal weights $k_j$", [m.gap for m in equal])
    says = run.states("X-21", r"\phi_i \text{ strictly increasing: the least rise between two knots}")
    says.above([float(m.values.diff(dim=1).min()) for m in made], 0.0)
    says.fails(
        "plateaus that are quite flat",
        [float(m.values[:, ::2].repeat_interleave(2, dim=1).diff(dim=1).min()) for m in made],
    )
    run.states("X-21", r"\phi_i([0,1])\subset[0,1],\ k_j>0,\ \textstyle\sum_jk_j\le1").at_most(
        [v for m in made for v in constraint_values(m)], 1.0, 1e-12
    )
    steps = [superposition_step(f, 2, sizes[0]).network for _, f, _, _ in TARGETS]
    says = run.states(
        "X-21", r"\phi_i \text{ and } k_j \text{ do not depend on } f,\ \text{only } g \text{ does: largest difference}"
    )
    says.equal(
        [
            float((a.inner_values - steps[0].inner_values).abs().max())
            + float((a.weights - steps[0].weights).abs().max())
            for a in steps
        ]
    )
    says.fails("the outer functions", [float((a.outer_values - steps[0].outer_values).abs().max()) for a in steps])
    run.states("X-21", r"d=2:\ d(2d+1)=10 \text{ and } 2d+1=5 \text{ units}").equal(
        list(steps[0].hidden_units), [10, 5]
    )


def constraint_values(m: InnerFunctions) -> list[float]:
    """Numbers that must be at most 1."""
    return [
        float(m.values.max()),
        1 - float(m.values.min()),
        float(m.weights.sum()),
        1 - float(m.weights.min()),
    ]


def two_scales(run: Run, refinement: int, grid: Tensor) -> dict[str, list[float]]:
    """What is left of a function after either scale of one superposition."""
    coarse, fine = nested_inner_functions(2, refinement)
    equal = inner_functions(2, 10 * refinement, separated=False)
    says = run.states("X-21", r"\text{the same } \phi_i, k_j \text{ tell the cubes of two scales apart}")
    says.above([coarse.gap, fine.gap], 0.0)
    says.fails("equal weights $k_j$", equal.gap)
    run.states(
        "X-21", r"\phi_i \text{ of two scales: increasing, into } [0,1],\ k_j>0,\ \textstyle\sum_jk_j\le1"
    ).at_most([*constraint_values(fine), 1 - float(fine.values.diff(dim=1).min())], 1.0, 1e-12)
    # the errors are largest on thin strips, which a grid alone may miss
    x = torch.cat([grid, run.rand(20_000, 2)])
    found, means = {}, []
    for name, f, *_ in TARGETS:
        left = [f(x)] + [f(x) - net(x) for net in two_scale_superposition(f, 2, refinement)]
        found[name] = [float(rest.abs().max()) for rest in left]
        means += [float(b.abs().mean() / a.abs().mean()) for a, b in pairwise(left)]
    says = run.states(
        "X-21",
        r"f=\textstyle\sum_ig(\sum_jk_j\phi_i(x_j)),\ g=g_1+g_2:\ \text{the largest error left "
        r"falls with either scale}",
    )
    says.below([b - a for v in found.values() for a, b in pairwise(v)], 0.0)
    largest, mean = symmetric_step(TARGETS[1][1], grid)
    says.fails("equal weights, for x₁ - x₂", largest)

    def left_of(f: Function) -> Tensor:
        return torch.stack([f(x) - net(x) for net in two_scale_superposition(f, 2, 12)])

    says = run.states("X-21", r"f=1:\ \text{five terms of a quarter leave } f-S=-\tfrac14,\text{ and then }\tfrac1{16}")
    leaves = torch.tensor([[-0.25], [0.0625]], dtype=torch.float64).expand(-1, len(x))
    says.equal(left_of(lambda z: torch.ones_like(z[:, 0])), leaves, 1e-9)
    says.fails("f is not constant: ½ + x₁", left_of(lambda z: 0.5 + z[:, 0]))
    # one of five terms is on a slope, and what it adds is a quarter of another value of f
    says = run.states(
        "X-21", r"\text{and on the average to at most half of it: } \|f-S\|_1/\|f\|_1 \text{ at either scale}"
    )
    says.at_most(means, 0.5, where=f"three functions, N = 2 and {10 * refinement}")
    says.fails("equal weights, for x₁ - x₂", mean)
    return found


def symmetric_step(f: Function, grid: Tensor) -> tuple[float, float]:
    """A step with equal weights, for which cubes mirrored at the diagonal have one image.

    Returns:
        by how much the largest error changes, and the share of the mean that is left.
    """
    inner = inner_functions(2, 6, separated=False)
    rounded = inner.images.flatten().round(decimals=12)
    images, which = torch.unique(rounded, return_inverse=True)
    heights = f(inner.centers.reshape(-1, 2)) / 4
    met = torch.bincount(which, heights) / torch.bincount(which)
    net = Superposition(inner.knots, inner.values, inner.weights, images, met)
    before, after = f(grid).abs(), (f(grid) - net(grid)).abs()
    return float(after.max() - before.max()), float(after.mean() / before.mean())


def plot(
    axes: Any,
    rows: list[tuple[str, int, float, float, int]],
    left: dict[str, list[float]],
    refinement: int,
) -> None:
    inner, outer, one, many = axes.flatten()
    shown = superposition_step(TARGETS[0][1], 2, 3).network
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for color, values in zip(COLORS, shown.inner(t), strict=False):
        inner.plot(t, values, color=color, linewidth=1.2)
    inner.set(xlabel="t", ylabel="$\\phi_i(t)$", title="inner functions, N = 3")
    dense = superposition_step(TARGETS[0][1], 2, 8).network
    positions = dense.outer_knots
    outer.plot(positions, dense.outer_values, color=COLORS[0], linewidth=0.6)
    outer.set(xlabel="u", ylabel="g(u)", title="outer function g, N = 8", xlim=(0, 1))
    names = list(dict.fromkeys(row[0] for row in rows))
    for color, mark, name in zip(COLORS, "os^d", names, strict=False):
        mine = [row for row in rows if row[0] == name]
        one.loglog([r[1] for r in mine], [r[2] for r in mine], color=color, linewidth=0.8)
        one.loglog([r[1] for r in mine], [r[3] for r in mine], mark, color=color, label=name)
    cells = sorted({row[1] for row in rows})
    one.set_xticks(cells, [str(n) for n in cells])
    one.set_xticks([], minor=True)
    one.set(xlabel="cells N", ylabel="sup error", title="one step")
    one.legend(fontsize=7)
    for color, (name, sizes) in zip(COLORS, left.items(), strict=False):
        many.semilogy(range(len(sizes)), sizes, "o-", color=color, label=name)
    many.set_xticks(range(3), ["none", "N = 2", f"N = 2 and {10 * refinement}"])
    many.set(xlabel="scales", ylabel="sup error left", title="two scales, one superposition")
    many.legend(fontsize=7)
