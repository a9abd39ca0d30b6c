"""Functions of several variables box by box, and what it costs."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import (
    Approximant,
    box_grid,
    mean_error,
    measured_error,
)
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.boxes import (
    box_indicator,
    box_network,
    cell_centers,
    folklore_size,
    margin_volume,
    piecewise_constant,
    relu_bump,
    wall_distance,
)
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.nets.activations.table import activation
from torchtheory.nets.feedforward import affine_layers
from torchtheory.primer.function_spaces import lebesgue_norm

BOX = ((0.0, 0.6), (0.0, 0.4), (0.1, 0.9))


def waves(x: Tensor) -> Tensor:
    """A product of two waves, 2π-Lipschitz in the maximum norm (the gradient's 1-norm is
    2π(|cos a cos b| + |sin a sin b|), at most 2π)."""
    return torch.sin(2 * math.pi * x[:, 0]) * torch.cos(2 * math.pi * x[:, 1])


def length(x: Tensor) -> Tensor:
    """The Euclidean norm, √d-Lipschitz in the maximum norm."""
    made: Tensor = torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1)
    return made


@lab(
    "box-networks",
    room="approximation",
    covers=["L-072", "L-073", "L-074", "L-075", "L-076"],
    title="ReLU boxes approximate every continuous function, and there are $(ρ/2ε)^d$ of them",
    errata=["cells-of-side-delta", "box-of-thresholds", "mean-error-on-large-cube"],
    full={"samples": 200_000, "finest": 0.05},
    least={"samples": 1000, "finest": 0.03},
    most={"finest": 0.45},
)
def box_networks(run: Run, samples: int = 4000, finest: float = 0.15) -> None:
    """The folklore construction in one to three dimensions, every weight written down.

    A function constant on cells, a bump of four ReLUs, a box of bumps, and a box for every cell:
    each step keeps what its statement promises. The mean error of the final network is estimated
    from `samples` random points, for errors ε down to `finest`. Look at the walls between the
    cells, which make the sup error as large as the values, and at the number of boxes.
    """
    constants(run)
    bump(run)
    boxes(run, samples)
    margin_of_boxes(run)
    rows = networks(run, samples, finest)
    sizes(run)
    run.table(
        "networks",
        ["function", "d", "ε", "boxes", "ReLUs", "mean error", "bound 2ε", "largest weight"],
        rows,
        caption="Networks with two hidden layers and their error on the unit cube",
    )
    run.figure(
        "boxes",
        plot,
        grid=(1, 3),
        size=(14.0, 3.6),
        caption="Left: a box of eight ReLUs. Middle: 144 boxes for a product of waves, with the "
        "walls in between. Right: boxes needed for a mean error of 2ε, ρ = 1.",
    )


def constants(run: Run) -> None:
    """Lemma 15 in the maximum norm, and in the Euclidean norm, where it fails."""
    cases: list[tuple[Function, float, int]] = [
        (torch.sin, 1.0, 1),
        (waves, 2 * math.pi, 2),
        (length, math.sqrt(2), 2),
        (length, math.sqrt(3), 3),
    ]
    bounds, errors = [], []
    for g, rho, d in cases:
        for cells in (2, 5, 11):
            a = piecewise_constant(g, cells, rho, ((0.0, 1.0),) * d)
            bounds.append(a.bound)
            errors.append(measured_error(g, a, most_points=1 << 14).lower)
    steep = piecewise_constant(waves, 11, 1.0, ((0.0, 1.0),) * 2)
    says = run.states("L-072", r"|x-y|_\infty\le\delta/2\Rightarrow|g(x)-g(y)|\le\epsilon:\ \sup|g-h|\le\epsilon")
    says.at_most(errors, bounds, 1e-12)
    says.fails(
        "the waves are 2π-Lipschitz, not 1-Lipschitz",
        measured_error(waves, steep, most_points=1 << 14).lower,
        promised=steep.bound,
    )
    # over the cube the diagonal's function takes every value from 0 to √d
    spread = [best_constant_on_diagonal(d) for d in (5, 9)]
    run.refutes(
        "cells-of-side-delta",
        r"\|x-y\|_2\le\delta\Rightarrow|g(x)-g(y)|\le\epsilon:"
        r"\ \exists\alpha:\ \sup_R|g-\alpha|\le\epsilon,\ R \text{ of side } \delta",
    ).at_most(spread, 1.0, where="g(x) = Σx/√d on the unit cube, d = 5 and 9, δ = ε = 1: the error of the best α")


def best_constant_on_diagonal(d: int) -> float:
    """The error of the best constant on the unit cube; a linear function is extreme at corners."""
    values = box_grid(((0.0, 1.0),) * d, 2).sum(1) / math.sqrt(d)
    return float(values.max() - values.min()) / 2


def bump(run: Run) -> None:
    """Four ReLUs: 1, 0, a ramp between, and γ away from the indicator."""
    ramps = [0.5, 0.1, 0.01]
    found, step = [], []
    for ramp in ramps:
        net = relu_bump(0.25, 0.75, ramp)
        ends = [0.25 - ramp, 0.25, 0.75, 0.75 + ramp]
        found.append(sum(distance_to_indicator(net, a, b) for a, b in pairwise(ends)))
        step.append(distance_to_threshold_bump(ramp))
    says = run.states("L-073", r"\int|g_{[a,b],\gamma}-\mathbf 1_{[a,b]}|=\gamma")
    says.equal(found, ramps, 1e-12)
    says.fails("thresholds in place of the ReLUs", step)
    z = torch.tensor([0.25, 0.4, 0.7499]).double()
    run.refutes("box-of-thresholds", r"\sigma \text{ a threshold: } g^{(j)}=1 \text{ on } [a,b]").equal(
        threshold_bump(z, 0.1), 1.0, where="[a, b] = [0.25, 0.75] and γ = 0.1, at 0.25, 0.4 and 0.7499"
    )


def distance_to_indicator(net: Any, low: float, high: float) -> float:
    """Over an interval on which both are affine; Gauss' rule is exact there."""

    def gap(z: Tensor) -> Tensor:
        made: Tensor = net(z.unsqueeze(1))[:, 0] - ((z >= 0.25) & (z <= 0.75)).double()
        return made

    return lebesgue_norm(gap, 1, low, high, panels=1)


def threshold_bump(z: Tensor, ramp: float) -> Tensor:
    step = activation("closed heaviside")
    up = step((z - 0.25 + ramp) / ramp) - step((z - 0.25) / ramp)
    down = step((z - 0.75) / ramp) - step((z - 0.75 - ramp) / ramp)
    made: Tensor = up - down
    return made


def distance_to_threshold_bump(ramp: float) -> float:
    ends = [0.25 - ramp, 0.25, 0.75, 0.75 + ramp]
    return sum(
        lebesgue_norm(
            lambda z: threshold_bump(z, ramp) - ((z > 0.25) & (z < 0.75)).double(),
            1, a, b, panels=1,
        )
        for a, b in pairwise(ends)
    )  # fmt: skip


def boxes(run: Run, samples: int) -> None:
    """The three cases of (3.4), and the mean distance to the indicator."""
    ramp = 0.15
    inside_error, outside, values = [], [], []
    relations = []
    for d in (1, 2, 3):
        box = BOX[:d]
        x = 2 * run.rand(samples, d) - 0.5
        y = box_indicator(box, ramp)(x)[:, 0]
        away = wall_distance(x, box)
        inside_error.append(float((y[away == 0] - 1).abs().max()))
        outside.append(float(y[away >= ramp].abs().max()))
        values += [float(y.max()) - 1, -float(y.min())]
        narrower = (away < ramp) & (away > 0)
        relations.append(float(y[narrower].abs().max()))
    says = run.states(
        "L-074", r"g_{R,\gamma}=1 \text{ on } R,\ 0 \text{ beyond a margin } \gamma: \text{ largest difference}"
    )
    says.equal(inside_error + outside, within=1e-12)
    says.fails("points within the margin, where neither is promised", relations)
    run.states("L-074", r"0\le g_{R,\gamma}\le1: \text{ by how much it is left}").at_most(values, 0, 1e-12)
    for d in (2, 3):
        box = BOX[:d]
        sides = [b - a for a, b in box]
        wide = tuple((a - ramp, b + ramp) for a, b in box)
        found = box_against_indicator(run, box, wide, ramp, samples)
        without = box_against_indicator(run, box, wide, ramp, samples, subtract=False)
        says = run.states("L-074", rf"d={d}:\ \int|g_{{R,\gamma}}-\mathbf 1_R|\le\prod_j(s_j+2\gamma)-\prod_js_j")
        says.at_most(found, margin_volume(sides, ramp))
        says.fails("without the - (d-1)", without)


def margin_of_boxes(run: Run) -> None:
    """Near a face the ramp integrates to γ/2, near k walls at once to γ^k/(k+1)!."""
    promised, found, without, half_surface, thin = [], [], [], [], []
    for d in (1, 2, 3):
        sides = [b - a for a, b in BOX[:d]]
        products = [sum(math.prod(rest) for rest in combinations(sides, d - k)) for k in range(d + 1)]
        for ramp in (0.2, 0.05, 0.001):
            expected = sum((2 * ramp) ** k / math.factorial(k + 1) * products[k] for k in range(1, d + 1))
            promised.append(expected / ramp)
            found.append(mean_margin(BOX[:d], ramp) / ramp)
            if d > 1:
                without.append(mean_margin(BOX[:d], ramp, subtract=False) / ramp)
        thin.append(found[-1])
        half_surface.append(products[1])
    says = run.states(
        "L-074",
        r"\|g_{R,\gamma}-\mathbf 1_R\|_1=\sum_{k\ge1}\tfrac{(2\gamma)^k}{(k+1)!}\,e_{d-k}(s): \text{ over }\gamma",
    )
    says.equal(
        found,
        promised,
        2e-3,
        where="d = 1, 2, 3, γ = 0.2, 0.05, 0.001; midpoint rule on the parts between the walls; "
        "e are the elementary symmetric functions of the sides",
    )
    says.fails("without the - (d-1)", without, promised=promised[3:])
    says = run.states("L-074", r"\|g_{R,\gamma}-\mathbf 1_R\|_1/\gamma\to\tfrac12|\partial R|")
    says.equal(thin, half_surface, 5e-3, where="at γ = 0.001")
    says.fails("at γ = 0.2", found[::3], promised=half_surface)


def mean_margin(box: Any, ramp: float, *, subtract: bool = True, cells: int = 24) -> float:
    """The integral of |g - 1_R|, walls between the points of the rule."""
    places, weights = [], []
    for a, b in box:
        ends = torch.tensor([a - ramp, a, b, b + ramp], dtype=torch.float64)
        middle = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        places.append((ends[:-1, None] + ends.diff()[:, None] * middle).flatten())
        weights.append((ends.diff()[:, None] / cells).expand(3, cells).flatten())
    x = torch.cartesian_prod(*places).reshape(-1, len(places))
    mass = torch.cartesian_prod(*weights).reshape(-1, len(places)).prod(1)
    maps, between = affine_layers(box_indicator(box, ramp))
    if not subtract:
        maps[1] = (maps[1][0], torch.zeros_like(maps[1][1]))
    gap = chain(maps, between)(x)[:, 0] - (wall_distance(x, box) == 0).double()
    return float(mass @ gap.abs())


def box_against_indicator(
    run: Run, box: Any, wide: Any, ramp: float, samples: int, *, subtract: bool = True
) -> Interval:
    low, high = torch.tensor(wide, dtype=torch.float64).unbind(1)
    x = low + (high - low) * run.rand(samples, len(low))
    maps, between = affine_layers(box_indicator(box, ramp))
    if not subtract:
        maps[1] = (maps[1][0], torch.zeros_like(maps[1][1]))
    net = chain(maps, between)
    gap = (net(x)[:, 0] - (wall_distance(x, box) == 0).double()).abs()
    return mean_interval(gap * (high - low).prod())


def networks(run: Run, samples: int, finest: float) -> list[tuple[Any, ...]]:
    """Theorem 16: the mean error over the unit cube is at most 2ε."""
    rows: list[tuple[Any, ...]] = []
    errors = [e for e in (0.6, 0.3, 0.15, 0.1, 0.05) if e >= finest]
    for name, g, rho, d in (
        ("sin 2πx", lambda x: torch.sin(2 * math.pi * x), 2 * math.pi, 1),
        ("sin 2πx cos 2πy", waves, 2 * math.pi, 2),
        ("‖x‖", length, math.sqrt(3), 3),
    ):
        for e in errors:
            a = box_network(g, d, rho, e)
            found = mean_error(g, a, samples, generator=run.generator)
            rows.append(
                (name, d, e, folklore_size(rho, e, d).boxes, a.size.units, found.high, a.bound,
                 a.size.largest)
            )  # fmt: skip
    steep = box_network(lambda x: 8 * waves(x), 2, 2 * math.pi, finest)
    missed = mean_error(lambda x: 8 * waves(x), steep, samples, generator=run.generator)
    says = run.states("L-075", r"\int_{[0,1]^d}|f-g|\le2\epsilon \text{ (upper end of a 99% interval)}")
    says.at_most([row[5] for row in rows], [row[6] for row in rows], where=f"{samples} random points a network")
    says.fails("eight times as steep as the construction was told", missed.low, promised=steep.bound)
    sup_error(run)
    own, shared = (box_network(waves, 2, 2 * math.pi, 0.6, shared=s) for s in (False, True))
    x = run.rand(500, 2)
    other = box_network(waves, 2, 2 * math.pi, 0.9)
    says = run.states("L-075", r"\text{shared walls give the same function: largest difference}")
    says.equal((own(x) - shared(x)).abs().max(), within=1e-9)
    says.fails("fewer boxes", (own(x) - other(x)).abs().max())
    counted = folklore_size(2 * math.pi, 0.6, 2)
    run.states("L-075", r"N^d(4d+1) \text{ units, and } N^d+d(3N+1) \text{ with shared walls}").equal(
        [own.size.units, shared.size.units], [counted.units, counted.shared_units]
    )
    run.refutes("mean-error-on-large-cube", r"\int_{[0,2]^d}|g-h|\le\epsilon").at_most(
        error_on_large_cube(), 0.5, where="d = 3, g(x) = Σx/√3 and δ = ε = 1/2, centers; 24³ midpoints a cell"
    )
    return rows


def sup_error(run: Run) -> None:
    """In the sup norm nothing is promised: walls are bridges from one value over two."""
    a = box_network(waves, 2, 2 * math.pi, 0.15)
    flat = piecewise_constant(waves, folklore_size(2 * math.pi, 0.15, 2).cells_a_side, 2 * math.pi,
                              a.domain)  # fmt: skip
    says = run.states("L-075", r"\text{only the mean: } \sup|f-g|>2\epsilon \text{ near the walls}")
    # and with boxes so large that the promise itself is no small number
    coarse = box_network(waves, 2, 2 * math.pi, 0.5)
    says.above([measured_error(waves, net, most_points=1 << 16).lower for net in (a, coarse)], [a.bound, coarse.bound])
    says.fails(
        "the piecewise constant function, which has no walls",
        measured_error(waves, flat, most_points=1 << 16).lower,
        promised=a.bound,
    )


def error_on_large_cube() -> float:
    """The mean error of cell centers times the volume 8 of [0, 2]³."""

    def g(x: Tensor) -> Tensor:
        return x.sum(1) / math.sqrt(3)

    # every cell has the same error: the function is linear
    x = cell_centers(((0.0, 0.5),) * 3, 24)
    return 8 * float((g(x) - g(torch.full((1, 3), 0.25).double())).abs().mean())


def sizes(run: Run) -> None:
    """Remark 1: the logarithm of the size is a line in the dimension."""
    dimensions = list(range(1, 13))
    counts = [folklore_size(1.0, 0.05, d).boxes for d in dimensions]
    built = [box_network(length, d, math.sqrt(d), 0.3).size.units for d in (1, 2, 3)]
    run.states("L-076", r"\text{units built}=N^d+d(3N+1),\ N=\lceil\rho/2\epsilon\rceil,\ d=1,2,3").equal(
        built, [folklore_size(math.sqrt(d), 0.3, d).shared_units for d in (1, 2, 3)]
    )
    logs = torch.tensor(counts).double().log10()
    in_error = torch.tensor([folklore_size(1.0, 0.5 / n, 1).boxes for n in dimensions])
    says = run.states("L-076", r"\log\text{boxes is linear in } d: \text{ largest second difference}")
    says.equal(logs.diff().diff().abs().max(), within=1e-12)
    says.fails("one dimension, and 1/ε growing instead", in_error.double().log10().diff().diff().abs().max())
    run.table(
        "curse",
        ["d", "boxes at ε = 0.25", "ε = 0.1", "ε = 0.05"],
        [(d, *(f"{folklore_size(1.0, e, d).boxes:.3g}" for e in (0.25, 0.1, 0.05))) for d in (1, 2, 3, 5, 10, 100)],
        caption="Boxes for a function that is 1-Lipschitz in the maximum norm",
    )


def plot(axes: Any) -> None:
    one, two, three = axes[0]
    side = 161
    window = ((-0.4, 1.0), (-0.4, 0.8))
    x = box_grid(window, side)
    single = Approximant(box_indicator(BOX[:2], 0.3), 1.0, window, "L-074")
    square = ((0.0, 1.0),) * 2
    grid = box_grid(square, 241)
    many = box_network(waves, 2, 2 * math.pi, math.pi / 12)
    for axis, network, at, extent in (
        (one, single, x, (-0.4, 1.0, -0.4, 0.8)),
        (two, many, grid, (0, 1, 0, 1)),
    ):
        values = network(at)
        n = math.isqrt(len(values))
        low = -float(values.abs().max()) if axis is two else 0.0
        shown = axis.imshow(
            values.reshape(n, n).T, origin="lower", extent=extent,
            cmap="RdBu_r" if axis is two else "Blues", vmin=low, vmax=float(values.abs().max()),
        )  # fmt: skip
        axis.grid(False)
        axis.figure.colorbar(shown, ax=axis, shrink=0.85)
        axis.set(xlabel="$x_1$", ylabel="$x_2$")
    one.set_title("one box, γ = 0.3")
    two.set_title(f"{many.size.units} ReLUs")
    dimensions = range(1, 21)
    for color, e in zip(COLORS, (0.25, 0.1, 0.05), strict=False):
        counts = [float(folklore_size(1.0, e, d).boxes) for d in dimensions]
        three.semilogy(dimensions, counts, "o-", markersize=3, color=color, label=f"ε = {e}")
    three.set(
        xlabel="dimension d",
        ylabel="boxes",
        title="the curse of dimensionality",
        xticks=range(2, 21, 3),
    )
    three.legend()
