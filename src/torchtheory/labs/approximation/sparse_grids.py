"""Sparse grids: bounded mixed derivatives take most of the curse of dimension away."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.piecewise.sparse_grids import (
    sparse_grid,
    sparse_grid_error,
    sparse_grid_network,
    sparse_grid_size,
)
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab


def bump(x: Tensor) -> Tensor:
    """Zero on the boundary; the mixed derivative of order (2, ..., 2) is (-2)^d."""
    return (x * (1 - x)).prod(1)


def wave(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x).prod(1)


def corner(x: Tensor) -> Tensor:
    """Not zero on the boundary."""
    return torch.cos(x).prod(1)


#: name, function, bound of its mixed derivative in d dimensions
FUNCTIONS: tuple[tuple[str, Function, float], ...] = (
    ("Π x(1 - x)", bump, 2.0),
    ("Π sin πx", wave, math.pi**2),
)


@lab(
    "sparse-grid-networks",
    room="approximation",
    covers=["X-53"],
    title="Functions with mixed derivatives: about $ε^{-1/2}$ units in any dimension",
    full={"dimensions": 6, "level": 7, "points": 20000},
    least={"dimensions": 2, "level": 4},
)
def sparse_grid_networks(run: Run, dimensions: int = 4, level: int = 5, points: int = 1500) -> None:
    """Hierarchical interpolants on sparse grids in two to `dimensions` variables, and as networks.

    They meet the function at the points of the grid, their coefficients are known for the product
    of x(1 - x), and the error stays within what the omitted levels can add. The number of points
    for an error ε grows with an exponent that tends to 1/2 in every dimension, against d/2 for
    a full grid. The network multiplies the hats; its error stays within the sum of two parts.

    Args:
        level: of the finest sparse grid.
        points: random points at which errors are measured.
    """
    spaces = list(range(2, dimensions + 1))
    interpolation(run, spaces, level)
    found = errors(run, spaces, level, points)
    networks(run, points)
    run.figure(
        "grids",
        lambda axes: plot(axes, found),
        grid=(1, 2),
        caption="Left: the sparse grid of level 5 in the plane. Right: promised (lines) and "
        "measured (marks) errors for Π x(1 - x) against the number of points; dashed the full "
        "grid with its error of $4^{-m}$/8.",
    )


def interpolation(run: Run, spaces: list[int], level: int) -> None:
    apart, elsewhere, counts = [], [], []
    coefficient: list[float] = []
    other: list[float] = []
    for d in spaces:
        for f in (bump, wave):
            grid = sparse_grid(f, level - 1, d)
            at = torch.cat(grid.points)
            apart.append(float((grid(at) - f(at)).abs().max()))
            between = (at + 0.3 * 2.0 ** (1 - level)).clamp(max=1)
            elsewhere.append(float((grid(between) - f(between)).abs().max()))
            counts.append(grid.count)
            sizes = [float((c - 4.0 ** -sum(v)).abs().max() * 4.0 ** sum(v))
                     for v, c in zip(grid.levels, grid.coefficients, strict=True)]  # fmt: skip
            (coefficient if f is bump else other).append(max(sizes))
    says = run.states("X-53", r"\text{the interpolant meets } f \text{ at the points of the sparse grid}")
    says.equal(apart, within=1e-13)
    says.fails("beside the points", elsewhere)
    says = run.states("X-53", r"f=\prod_jx_j(1-x_j):\ v_{l,i}=4^{-|l|_1}: \text{ largest relative difference}")
    says.equal(coefficient, within=1e-9)
    says.fails("Π sin πx", other)
    says = run.states("X-53", r"\text{points}=\sum_{s<m}2^s\binom{s+d-1}{d-1}")
    says.equal(counts, [sparse_grid_size(level - 1, d) for d in spaces for _ in range(2)])
    says.fails("points of the full grid", [(2 ** (level - 1) - 1) ** d for d in spaces for _ in range(2)])


def errors(run: Run, spaces: list[int], level: int, points: int) -> dict[int, list[tuple[int, float, float]]]:
    """The exponent of the measured errors, and of the promise far out."""
    found: dict[int, list[tuple[int, float, float]]] = {}
    promised, measured, wrong = [], [], []
    rows = []
    for d in spaces:
        x = torch.cat([run.rand(points, d), torch.full((1, d), 1 / 3).double()])
        for name, f, root in FUNCTIONS:
            for m in range(1, level + 1):
                grid = sparse_grid(f, m, d)
                gap = float((grid(x) - f(x)).abs().max())
                bound = sparse_grid_error(m, d, root**d)
                promised.append(bound)
                measured.append(gap)
                if f is bump:
                    found.setdefault(d, []).append((grid.count, bound, gap))
                rows.append((name, d, m, grid.count, (2**m - 1) ** d, bound, gap))
        rough = sparse_grid(corner, level, d)
        wrong.append(float((rough(x) - corner(x)).abs().max()))
    says = run.states(
        "X-53",
        r"\|f-f_m\|_\infty\le2^{-d}\|D^{(2,\dots,2)}f\|_\infty\sum_{s\ge m+d}\binom{s-1}{d-1}4^{-s}\sim4^{-m}m^{d-1}",
    )
    says.at_most(measured, promised, where="at random points")
    says.fails(
        "Π cos x, which is not 0 on the boundary", wrong, promised=[sparse_grid_error(level, d, 1.0) for d in spaces]
    )
    levels = range(2, level + 1)
    for d in spaces:
        tail = found[d][1:]
        fitted = fit_slope([1 / gap for *_, gap in tail], [n for n, *_ in tail])
        full = fit_slope([4.0**m for m in levels], [(2.0**m - 1) ** d for m in levels])
        says = run.states("X-53", rf"\text{{points for an error }}\epsilon: \text{{ exponent below }} d/2,\ d={d}")
        says.below(fitted.estimate, d / 2)
        says.fails("the full grid with error $4^{-m}$/8", full.estimate)
    far = [200, 250, 300, 350, 400]
    slopes, near = (
        [
            fit_slope(
                [1 / sparse_grid_error(m, d) for m in some],
                [float(sparse_grid_size(m, d)) for m in some],
            ).estimate
            for d in spaces
        ]
        for some in (far, levels)
    )
    says = run.states("X-53", r"\text{points}\sim\epsilon^{-1/2} \text{ up to logarithms: exponent of the promise}")
    says.equal(slopes, 0.5, 0.05, where="levels 200 to 400, where the logarithms have become small")
    says.fails("the first levels, where they have not", near)
    run.table(
        "grids",
        ["function", "d", "m", "points", "points of the full grid", "promised", "measured"],
        rows,
        caption="Hierarchical interpolants on sparse grids",
    )
    return found


def networks(run: Run, points: int) -> None:
    promised, measured, products, added, few, depths, layers = [], [], [], [], [], [], []
    rows = []
    for d, levels in ((2, (1, 2, 3, 4)), (3, (1, 2, 3))):
        x = run.rand(points, d)
        for m in levels:
            made = sparse_grid_network(bump, m, d, m + 2, mixed=2.0**d)
            values = made(x)
            promised.append(made.bound)
            measured.append(float((values - bump(x)).abs().max()))
            products.append(made.product_error)
            added.append(float((values - made.grid(x)).abs().max()))
            rough = sparse_grid_network(bump, m, d, 1, mixed=2.0**d)
            few.append(float((rough(x) - rough.grid(x)).abs().max()))
            depths.append(made.size.depth)
            layers.append(math.ceil(math.log2(d)) * (m + 3) + 2)
            rows.append((d, m, made.grid.count, made.size.depth, made.size.units,
                         made.size.parameters, promised[-1], measured[-1]))  # fmt: skip
    other = [sparse_grid_network(bump, 2, d, s, mixed=2.0**d).size.depth
             for d, s in ((2, 12), (3, 12))]  # fmt: skip
    says = run.states("X-53", r"\|f-\text{network}\|_\infty\le\text{what the levels left out add}+\text{products}")
    says.at_most(measured, promised)
    says.fails(
        "told a mixed derivative of $2^{-d}$ instead of $2^d$",
        measured,
        promised=[sparse_grid_error(m, d, 2.0**-d) + p for (d, m, *_), p in zip(rows, products, strict=True)],
    )
    says = run.states("X-53", r"\|f_m-\text{network}\|_\infty\le(d-1)4^{-(n+1)}\sum_l\max_i|v_{l,i}|")
    says.at_most(added, products)
    says.fails("squares of one level", few)
    says = run.states("X-53", r"L=\lceil\log_2d\rceil(n+1)+2=O(\log_2\tfrac1\epsilon\,\log_2d)")
    says.equal(depths, layers)
    says.fails("squares of 12 levels at m = 2", other, promised=[layers[1], layers[5]])
    run.table(
        "networks",
        ["d", "m", "points", "affine layers", "units", "parameters", "promised", "measured"],
        rows,
        caption="Sparse grid interpolants of Π x(1 - x) as ReLU networks",
    )


def plot(axes: Any, found: dict[int, list[tuple[int, float, float]]]) -> None:
    left, right = axes[0]
    grid = sparse_grid(bump, 5, 2)
    at = torch.cat(grid.points)
    left.plot(at[:, 0], at[:, 1], ".", color=COLORS[0], markersize=4)
    left.set(aspect="equal", title=f"{grid.count} points", xlim=(0, 1), ylim=(0, 1))
    for color, (d, rows) in zip(COLORS, found.items(), strict=False):
        counts = [n for n, *_ in rows]
        right.loglog(counts, [b for _, b, _ in rows], color=color, linewidth=0.9)
        right.loglog(counts, [g for *_, g in rows], "o", color=color, label=f"d = {d}")
        full = [(2**m - 1) ** d for m in range(1, len(rows) + 1)]
        right.loglog(full, [4.0**-m / 8 for m in range(1, len(rows) + 1)], "--", color=color,
                     linewidth=0.7)  # fmt: skip
    right.set(xlabel="points", ylabel="sup error", title="sparse and full grids")
    right.legend()
