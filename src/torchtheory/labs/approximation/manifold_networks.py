"""On a manifold, accuracy costs what the manifold's own dimension says, and not the space's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.dictionaries.best_terms import best_terms_errors
from torchtheory.approximation.dictionaries.cartoons import Waves
from torchtheory.approximation.dictionaries.horizons import horizon_network
from torchtheory.approximation.network_calculus import chain, compose, deepen, stack
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.piecewise.manifold_networks import (
    Chart,
    ManifoldNetwork,
    chart_inverse,
    chart_weights,
    l1_terms_bound,
    manifold_network,
    tangent_charts,
)
from torchtheory.approximation.piecewise.manifolds import (
    ParametrizedManifold,
    circle_curve,
    intrinsic_dimension,
    swiss_roll,
    swiss_roll_sheet,
)
from torchtheory.core.errors import NotConverged
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.nets.feedforward import affine_layers

AMBIENT = (3, 30, 300)
RADIUS, HEIGHT = 3.0, 1.6


class Atlas(NamedTuple):
    """The roll in one ambient space, with its charts."""

    sheet: ParametrizedManifold
    charts: list[Chart]


class Refinement(NamedTuple):
    """Networks on one atlas: cells of all meshes, and the largest error."""

    squares: list[int]
    errors: list[float]

    @property
    def exponent(self) -> float:
        """Of the cells in the error."""
        return fit_slope(self.errors, self.squares).estimate


class Reduction(NamedTuple):
    """Networks for one target that factors through two coordinates."""

    inputs: int
    sizes: list[int]
    errors: list[float]
    all_weights: list[int]

    @property
    def slope(self) -> Interval:
        return fit_slope(self.sizes, self.errors)


@lab(
    "manifold-networks",
    room="approximation",
    covers=["X-54", "X-55", "X-56", "X-57", "A-101"],
    title="On a manifold the ambient dimension enters the network's size once, and linearly",
    errata=["manifold-l1-rate", "manifold-extension-dimension"],
    full={"samples": 8000, "cells": (6, 9), "atlases": 40, "draws": 200_000},
    least={"samples": 500, "atlases": 3, "cells": 2, "draws": 5_000},
    items={"cells": 2},
)
def manifold_networks(
    run: Run,
    samples: int = 2000,
    cells: tuple[int, int] = (4, 6),
    atlases: int = 26,
    draws: int = 10_000,
) -> None:
    """A function on a rolled-up sheet is put together from charts, each a linear projection.

    Local principal components find tangent spaces, a partition of unity cuts the function into
    pieces that live in one chart each, and hats in the charts' coordinates approximate them: four
    layers, of which only the first sees the ambient space. Laid isometrically into 3, 30 and 300
    dimensions, the network has the same error and the same size but for that layer, and the number
    of terms grows as $ε^{-d/2}$ with d = 2 (and d = 1 on the circle); the exponents are means over
    `atlases`, each from new points. Targets g∘h that factor through two coordinates behave alike.
    Look at how the lines for different D lie on each other.

    Args:
        samples: random points of the manifold.
        cells: of the two meshes of a chart, per direction.
        draws: random points for mean squares.
    """
    dimensions(run, min(samples, 3000))
    u = swiss_roll_sheet(height=2.0).draw(samples, run.generator)
    fresh = swiss_roll_sheet(height=2.0).draw(500, run.generator)
    rolls = {}
    for d in AMBIENT:
        sheet = swiss_roll_sheet(d, height=2.0, generator=run.generator)
        rolls[d] = Atlas(sheet, tangent_charts(sheet(u), 2, RADIUS, HEIGHT))
    atlas_checks(run, rolls[30], u, fresh)
    nets = {d: [manifold_network(a.sheet, target, a.charts, n, u) for n in cells] for d, a in rolls.items()}
    errors = {d: [error(rolls[d].sheet, net, fresh) for net in row] for d, row in nets.items()}
    sizes(run, nets, errors, rolls, u, fresh)
    refined = {
        2: [end_of_the_roll(run) for _ in range(atlases)],
        1: [circle(run) for _ in range(atlases)],
    }
    rates(run, refined)
    coefficients(run)
    reductions = [reduced(run, d, 3 * draws) for d in (5, 100)]
    factored(run, reductions)
    run.table(
        "roll",
        ["D", "charts", "terms", "weights that see D", "other weights", "largest error"],
        [
            (d, len(net.charts), net.terms, net.projection_parameters, net.other_parameters, e)
            for d in AMBIENT
            for net, e in zip(nets[d], errors[d], strict=True)
        ],
        caption="Networks on the Swiss roll: the ambient dimension is in one column only",
    )
    cloud = swiss_roll(1500, generator=run.generator)
    run.figure(
        "roll",
        lambda axes: plot(axes, cloud.x, rolls[3], nets, refined, reductions),
        grid=(2, 2),
        size=(11, 8),
        caption="Top: the Swiss roll from the side, colored along the sheet, with the tangent "
        "planes of its charts; parameters against D. Bottom: errors against cells of the meshes on "
        "the end of the roll and on the circle, every mark an atlas, dotted the powers of the "
        "theorem; targets that factor through two coordinates.",
    )


def target(u: Tensor) -> Tensor:
    """Smooth on the sheet, and different on sheets that lie close to each other in space."""
    return torch.sin(0.7 * u[:, 0]) + 0.2 * u[:, 1]


def error(sheet: ParametrizedManifold, net: ManifoldNetwork, fresh: Tensor) -> float:
    return float((net(sheet(fresh)) - target(fresh)).abs().max())


def dimensions(run: Run, samples: int) -> None:
    """The estimated dimension of the roll is 2 in every space; noise in all directions adds."""
    found = [intrinsic_dimension(swiss_roll(samples, d, generator=run.generator).x) for d in AMBIENT]
    noisy = intrinsic_dimension(swiss_roll(samples, 30, noise=2.0, generator=run.generator).x)
    says = run.states("X-54", r"\hat d=2 \text{ in } D=3,30,300 \text{ (within a quarter)}")
    says.equal(found, 2.0, 0.125)
    says.fails("noise of size 2 in all 30 directions", noisy)
    cube = run.rand(samples, 3)
    with_height = torch.cat([cube, run.rand(samples, 1)], 1)
    run.refutes(
        "manifold-extension-dimension",
        r"\dim(\mathcal X\times[0,1])=d'+1 \text{ (within 0.4), with } \mathcal X\subset\mathbb R^3,\ d'=2",
    ).equal(
        intrinsic_dimension(with_height),
        3.0,
        0.13,
        where="points of a cube times an interval: the extension lives in d + 1 dimensions",
    )


def atlas_checks(run: Run, atlas: Atlas, u: Tensor, fresh: Tensor) -> None:
    """The charts cover, and going into a chart and back is the identity on its part."""
    sheet, charts = atlas
    x = sheet(fresh)
    says = run.states(["A-101", "X-55"], r"\sum_i\phi_i=1 \text{ at new points of the manifold}")
    says.equal(chart_weights(charts, x).sum(1), 1.0, 1e-12)
    says.fails("seven of eight charts left out", chart_weights(charts[::8], x).sum(1))
    apart = []
    for chart in charts[::3]:
        here = chart.contains(x)
        if here.any():
            start = u[(sheet(u) - chart.center).norm(dim=1).argmin()].expand(int(here.sum()), -1)
            back = chart_inverse(sheet, chart, chart(x[here]), start)
            apart.append(float((sheet(back) - x[here]).norm(dim=1).max()))
    wide = Chart(charts[0].center, charts[0].tangent, charts[0].normal, 30.0, 30.0)
    folded = wide.contains(x)
    z = wide(x[folded])
    near = torch.cdist(z, wide(sheet(u))).argmin(1)
    try:
        lost = sheet(chart_inverse(sheet, wide, z, u[near].flip(0))) - x[folded]
        far = float(lost.norm(dim=1).max())
    except NotConverged:
        far = float((sheet(u[near]) - x[folded]).norm(dim=1).max())
    says = run.states("A-101", r"\gamma_i^{-1}\circ\gamma_i=\mathrm{id} \text{ on } U_i\cap\mathcal M")
    says.equal(apart, within=1e-8)
    says.fails("a chart so large that the roll folds under its projection", far)


def sizes(
    run: Run,
    nets: dict[int, list[ManifoldNetwork]],
    errors: dict[int, list[float]],
    rolls: dict[int, Atlas],
    u: Tensor,
    fresh: Tensor,
) -> None:
    """One part of the parameters is linear in D and knows no N; the other knows no D."""
    pairs = [(d, k) for d in AMBIENT for k in (0, 1)]
    # a network whose second layer reads the ambient space itself, without the projections
    direct = [int(affine_layers(merged(nets[d][k]))[0][0][0].count_nonzero()) for d, k in pairs]
    says = run.states(
        ["X-55", "A-101"], r"\text{parameters that see the space}=3\,C_K\,D, \text{ whatever } N \text{ is}"
    )
    says.equal([nets[d][k].projection_parameters for d, k in pairs], [3 * len(rolls[d].charts) * d for d, _ in pairs])
    says.fails("every hat reads the ambient coordinates itself", direct)
    says = run.states(["X-55", "A-101"], r"\text{all other parameters per chart are those of } D=3")
    says.equal(
        [nets[d][k].other_parameters / len(nets[d][k].charts) for d, k in pairs],
        [nets[3][k].other_parameters / len(nets[3][k].charts) for _, k in pairs],
        0.01,
    )
    says.fails(
        "every hat reads the ambient coordinates itself",
        [direct[i] / len(nets[d][k].charts) for i, (d, k) in enumerate(pairs)],
    )
    says = run.states("X-55", r"\text{depth: affine layers}")
    says.equal([network_size(n.network).depth for row in nets.values() for n in row], 4)
    says.fails("the hats read the ambient coordinates", network_size(merged(nets[3][0])).depth)
    ungated = ManifoldNetwork(without_gate(nets[3][1]), nets[3][1].charts, 0, 0, 0)
    says = run.states(["X-55", "A-101"], r"\sup_{\mathcal M}|f-R| \text{ in } D=30,300 \text{ is that of } D=3")
    says.equal([errors[d][k] for d, k in pairs], [errors[3][k] for _, k in pairs], 1e-6)
    says.fails(
        "charts that do not tell their own sheet from others", [error(rolls[3].sheet, ungated, fresh)] * len(pairs)
    )


def merged(net: ManifoldNetwork) -> nn.Sequential:
    """The same function on the manifold, where the units of the projections are never negative,
    with the hats' lines read from the ambient space."""
    maps, between = affine_layers(net.network)
    (a, b), (c, d) = maps[0], maps[1]
    return chain([(c @ a, c @ b + d), *maps[2:]], between[1:])


def without_gate(net: ManifoldNetwork) -> nn.Sequential:
    """The network with the units of the normal coordinates cut off."""
    maps, between = affine_layers(net.network)
    third = maps[2][0].clone()
    third[third == -1 / HEIGHT] = 0.0
    return chain([maps[0], maps[1], (third, maps[2][1]), maps[3]], between)


def refine(
    run: Run,
    manifold: ParametrizedManifold,
    function: Callable[[Tensor], Tensor],
    sizes: tuple[float, float],
    cells: tuple[int, ...],
) -> Refinement:
    """An atlas from new points, and the networks of finer and finer meshes on its charts."""
    u, fresh = manifold.draw(600, run.generator), manifold.draw(1000, run.generator)
    d, x = manifold.dimension, manifold(fresh)
    charts = tangent_charts(manifold(u), d, *sizes)
    made = [manifold_network(manifold, function, charts, n, u) for n in cells]
    return Refinement(
        [len(charts) * n**d for n in cells],
        [float((net(x) - function(fresh)).abs().max()) for net in made],
    )


def end_of_the_roll(run: Run) -> Refinement:
    """The last fifth of a turn: a few charts, so that their meshes can be fine."""
    end = replace(swiss_roll_sheet(height=2.0), domain=((4.1 * math.pi, 4.5 * math.pi), (0.0, 2.0)))
    return refine(run, end, target, (RADIUS, HEIGHT), (6, 10, 16))


def circle(run: Run) -> Refinement:
    """The same construction in one dimension: circles in ten dimensions."""
    curve = circle_curve(10, generator=run.generator)
    return refine(run, curve, lambda v: torch.sin(3 * v[:, 0]), (0.6, 0.3), (8, 16, 32, 64))


def rates(run: Run, refined: dict[int, list[Refinement]]) -> None:
    """Stated before running: the exponent of N in ε, a mean over atlases, is at least -d/2 - 1/4,
    and so above -(d+1)/2. N counts the cells of the meshes, no fewer than the hats inside."""
    found = {d: mean_interval([r.exponent for r in row]) for d, row in refined.items()}
    for name, d, other in (("roll", 2, None), ("circle", 1, found[2])):
        says = run.states(
            ["X-56", "A-101"],
            rf"\text{{ {name}: }}N\lesssim\epsilon^{{-d/2}},\ d={d}: "
            r"\text{ the exponent of } N \text{ in } \epsilon",
        )
        says.at_least(found[d], -d / 2, 0.25, where=f"mean over {len(refined[d])} atlases, each from new points")
        if other is not None:
            says.fails("two dimensions instead of one", other)


def coefficients(run: Run) -> None:
    """What coefficients in l1 give: the square of the error, not the error, falls as 1/N."""
    counts = [1, 4, 16, 64, 256]
    measured, bounds = [], []
    for n in counts:
        for row in (
            run.randn(2 * n + 3),
            torch.full((2 * n,), 1.0).double(),
            1 / (1 + run.rand(900)),
        ):
            measured.append(float(best_terms_errors(row, [min(n, len(row))])[0]))
            bounds.append(l1_terms_bound(float(row.abs().sum()), n))
    flat = [float(best_terms_errors(torch.ones(4 * n).double(), [n])[0]) for n in counts]
    says = run.states("X-56", r"\Sigma_N\le\tfrac12\|c\|_1N^{-1/2} \text{ for an orthonormal system}")
    says.at_most(measured, bounds, 1e-12)
    says.fails("the norm in l2 instead of l1", flat, promised=[l1_terms_bound(math.sqrt(4 * n), n) for n in counts])
    sharp = [float(best_terms_errors(torch.full((2 * n,), 0.5 / n).double(), [n])[0]) for n in counts]
    slope = fit_slope(counts, sharp)
    run.refutes(
        "manifold-l1-rate",
        r"\|c\|_1=1: N=O(\epsilon^{-1}) \text{ terms give an } L_2 \text{ error } \epsilon, "
        r"\text{ so }\Sigma_N \text{ falls with exponent at most } -1",
    ).at_most(slope.estimate, -1.0, where="2N coefficients 1/2N: the error of the best N is $N^{-1/2}$/2, exactly")


def boundary(x: Tensor) -> Tensor:
    waves = Waves(
        torch.tensor([0.2, 0.05], dtype=torch.float64),
        torch.tensor([[4.0], [9.0]], dtype=torch.float64),
        torch.tensor([0.0, 1.0], dtype=torch.float64),
        0.5,
    )
    return waves(x.unsqueeze(1))


def reduced(run: Run, inputs: int, draws: int) -> Reduction:
    """f = 1[h_2 <= γ(h_1)] with h_j = (1 + sin(a_j x))/2, and the network of the two networks."""
    directions = run.randn(2, inputs)
    directions = directions / directions.norm(dim=1, keepdim=True) * math.sqrt(12)
    x = run.rand(draws, inputs) - 0.5
    most = float(directions.abs().sum(1).max()) / 2
    h = 0.5 + 0.5 * torch.sin(x @ directions.T)
    height = h[:, 1] - boundary(h[:, 0])
    # further away than the bounds of both networks nothing is wrong, and need not be looked at
    near = height.abs() < 0.3
    x, truth = x[near], (height[near] <= 0).double()
    sizes, errors, everything = [], [], []
    for pieces in (4, 5, 7, 10, 14, 20, 28):
        made = relu_interpolant(boundary, pieces, curvature=0.2 * 16 + 0.05 * 81)
        outer = horizon_network(made, made.bound)
        assert isinstance(outer.network, nn.Sequential)
        inner = ridges(directions, most, 10 * pieces)
        # a layer between, or merging would join every unit of h with every unit of g
        net = compose(outer.network, deepen(inner, len(affine_layers(inner)[0]) + 1))
        first = affine_layers(net)[0][0][0]
        everything.append(network_size(net).parameters)
        sizes.append(everything[-1] - int(first.count_nonzero()))
        gap = torch.cat([net(x[i : i + 8192])[:, 0] for i in range(0, len(x), 8192)]) - truth
        errors.append(math.sqrt(float(gap.square().sum()) / draws))
    return Reduction(inputs, sizes, errors, everything)


def ridges(directions: Tensor, most: float, pieces: int) -> nn.Sequential:
    """Both coordinates of h: projections first, then broken lines of one variable each."""
    lines = []
    for j in (0, 1):
        wave = relu_interpolant(half_wave, pieces, (-4.0, 4.0), curvature=0.5)
        assert isinstance(wave.network, nn.Sequential)
        pick = torch.zeros(1, 2, dtype=torch.float64)
        pick[0, j] = 1.0
        # the projection hands over t + most, which is never negative
        shift = torch.full((1,), -most, dtype=torch.float64)
        lines.append(compose(wave.network, chain([(pick, shift)], [])))
    up = torch.full((2,), most, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    project = chain([(directions, up), (eye, eye.new_zeros(2))], [nn.ReLU()])
    return compose(stack(*lines), project)


def half_wave(t: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.sin(t)


def factored(run: Run, reductions: list[Reduction]) -> None:
    """Stated before running: β = p = d = 2 give the exponent -1 within 0.2, for every D."""
    for r in reductions:
        run.states("X-57", rf"f=g\circ h,\ D={r.inputs}:\ \text{{error}}\sim M^{{-\beta/(p(d-1))}}=M^{{-1}}").slope(
            r.slope, -1.0, 0.2, against=(-0.5, -2.0)
        )
    says = run.states("X-57", r"\text{weights behind the projection do not depend on } D")
    says.equal(reductions[-1].sizes, reductions[0].sizes)
    says.fails("weights that read the inputs count as well", reductions[-1].all_weights)


def plot(
    axes: Any,
    cloud: Tensor,
    atlas: Atlas,
    nets: dict[int, list[ManifoldNetwork]],
    refined: dict[int, list[Refinement]],
    reductions: list[Reduction],
) -> None:
    (first, second), (third, fourth) = axes
    along = cloud[:, [0, 2]].norm(dim=1)
    first.scatter(cloud[:, 0], cloud[:, 2], c=along, s=5, cmap="viridis", rasterized=True)
    for chart in atlas.charts:
        direction = chart.tangent[:, [0, 2]]
        longest = direction[int(direction.norm(dim=1).argmax())]
        middle = chart.center[[0, 2]]
        ends = torch.stack([middle - RADIUS * longest, middle + RADIUS * longest])
        first.plot(ends[:, 0], ends[:, 1], color=COLORS[1], linewidth=0.8)
    first.set(
        aspect="equal",
        title=f"the roll from the side, {len(atlas.charts)} charts",
        xlabel="$x_1$",
        ylabel="$x_3$",
    )
    for k, mark in ((0, "o"), (1, "s")):
        ds = list(AMBIENT)
        n = nets[3][k].terms
        second.loglog(
            ds,
            [nets[d][k].projection_parameters for d in ds],
            mark + "-",
            color=COLORS[0],
            label=f"see the space, N ≈ {n}",
            alpha=0.7,
            markersize=9 - 4 * k,
        )
        second.loglog(
            ds,
            [nets[d][k].other_parameters for d in ds],
            mark + "-",
            color=COLORS[1],
            label=f"do not, N ≈ {n}",
        )
    second.set(xlabel="ambient dimension D", ylabel="parameters", title="where D enters")
    second.legend()
    for d, name, mark, color in ((2, "roll", "o", COLORS[0]), (1, "circle", "s", COLORS[1])):
        for k, row in enumerate(refined[d]):
            label = f"{name}, d = {d}" if k == 0 else None
            third.loglog(row.squares, row.errors, mark, color=color, alpha=0.6, ms=4, label=label)
        squares, found = refined[d][0]
        guide = found[0] * (torch.tensor(squares) / squares[0]) ** (-2 / d)
        third.loglog(squares, guide, ":", color=color, label=f"$N^{{{-2 // d}}}$")
    third.set(xlabel="cells N", ylabel="largest error", title="accuracy on the manifold")
    third.legend()
    for color, mark, r in zip(COLORS, "os^", reductions, strict=False):
        fourth.loglog(r.sizes, r.errors, mark + "-", color=color, label=f"D = {r.inputs}")
    fourth.set(xlabel="weights behind the projection", ylabel="$L_2$ error", title="f = g∘h")
    fourth.legend()
    for axis in (second, third, fourth):
        axis.minorticks_off()
