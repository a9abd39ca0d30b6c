"""Functions of a length: cheap with two hidden layers, out of reach for training with one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.barron.sampled_networks import ball_points
from torchtheory.approximation.certificates import measured_error, network_size
from torchtheory.approximation.depth.band_limited import tubes_needed
from torchtheory.approximation.depth.comparison import compare_depth
from torchtheory.approximation.depth.radial import (
    RadialShells,
    absolute_sum_network,
    radial_shells,
    squared_length_network,
    squared_length_size,
)
from torchtheory.labs.engine import Run, fit_slope, lab

SIZES = ((2, 4), (4, 16), (8, 64), (16, 256))
SQUARES = (8, 16, 32, 64)


@lab(
    "radial-networks",
    room="approximation",
    covers=["A-84", "X-70", "L-112"],
    title="Two hidden layers write functions of a length down; their size is polynomial",
    errata=["radial-functions-upper-bound"],
    full={"points": 20_000, "steps": 2000, "seeds": 5, "parameters": 2000},
    least={"points": 200, "seeds": 2, "steps": 25, "parameters": 40},
)
def radial_networks_lab(run: Run, points: int = 1500, steps: int = 200, seeds: int = 2, parameters: int = 600) -> None:
    """Profiles of the squared length, broken lines of the 1-norm, and shells with random signs.

    The first are met within Lip·d/(4k²) + Lip·d/(2m), over a range of sizes and in up to ten
    dimensions; the second exactly; the third everywhere but next to the radii, on a share of
    points that falls with the number of pieces. Networks with one hidden layer of the same budget
    are trained on a tent of the 1-norm: in 12 dimensions they do no better than a constant,
    though a tent along a line, as an illustration of the same training, is no problem. Look at
    the figure: the error against its promise, and the shells.

    Args:
        points: random points.
        steps: of training.
        seeds: trained networks per architecture.
        parameters: of a trained network, about.
    """
    rows = profiles(run, points)
    sizes(run)
    exact(run, points)
    shells, blurred = signs_on_shells(run, points)
    trained(run, steps, seeds, parameters)
    run.figure(
        "radial",
        lambda axes: plot(axes, rows, shells, blurred),
        caption="Left: sup error of cos(3‖x‖²) (dots) below the promise (lines) for each size. "
        "Right: five shells along a ray, and the network with 8 and 32 pieces a coordinate.",
        grid=(1, 2),
    )


def wave(s: Tensor) -> Tensor:
    return torch.cos(3 * s)


def profiles(run: Run, points: int) -> list[list[float]]:
    """Sup errors of cos(3‖x‖²), Lipschitz constant 3, over sizes and dimensions."""
    rows: list[list[float]] = []
    for d in (1, 2, 10):
        for k, m in SIZES:
            made = squared_length_network(wave, d, k, m, lipschitz=3.0)
            if d <= 2:
                error = measured_error(
                    lambda x: wave(x.square().reshape(len(x), -1).sum(1)), made, most_points=10_000
                ).lower
            else:
                # the diagonal, where all coordinates err alike, besides random points
                line = torch.linspace(0, 1, points, dtype=torch.float64)[:, None].expand(-1, d)
                x = torch.cat([run.rand(points, d), line])
                error = float((made(x) - wave(x.square().sum(1))).abs().max())
            rows.append([d, k, m, error, made.bound])
    fast = squared_length_network(lambda s: torch.cos(40 * s), 2, 16, 256, lipschitz=3.0)
    wrong = measured_error(lambda x: torch.cos(40 * x.square().sum(1)), fast, most_points=10_000).lower
    says = run.states(
        "A-84", r"\|\tilde g(\|x\|^2)-\Phi\|_\infty\le\mathrm{Lip}\big(\tfrac d{4k^2}+\tfrac d{2m}\big),\ d=1,2,10"
    )
    says.at_most([r[3] for r in rows], [r[4] for r in rows])
    says.fails("cos 40s, whose Lipschitz constant is 40 and not 3", wrong, promised=fast.bound)
    run.table(
        "profiles",
        ["d", "k", "m", "sup error", "promised"],
        rows,
        caption="cos(3‖x‖²) on the unit cube by a network (d, dk, m, 1)",
    )
    return rows


def sizes(run: Run) -> None:
    """The size that an error takes, and how it grows with the dimension."""
    dims = (2, 4, 8, 16, 32)
    error = 0.5
    counted, layout, found = [], [], []
    for d in dims:
        k, m = squared_length_size(3.0, d, error)
        made = squared_length_network(wave, d, k, m, lipschitz=3.0)
        size = network_size(made.network)
        counted.append(size.parameters)
        layout.append(size.units - d * k - m)
        x = torch.cat([run.rand(500, d), torch.linspace(0, 1, 500)[:, None].expand(-1, d)])
        found.append(float((made(x) - wave(x.square().sum(1))).abs().max()))
    says = run.states(
        "A-84",
        rf"k=\lceil\sqrt{{\mathrm{{Lip}}d/2\epsilon}}\rceil,\ m=\lceil\mathrm{{Lip}}d/\epsilon"
        rf"\rceil: \text{{error}}\le\epsilon={error}",
    )
    says.at_most(found, error)
    says.fails("k and m of two dimensions in 32", coarse(run, squared_length_size(3.0, 2, error)))
    run.states("A-84", r"\text{architecture }(d,dk,m,1): \text{hidden units}-(dk+m)").equal(layout)
    says = run.states("A-84", r"\#\text{parameters polynomial in }d: \text{exponent at most }\tfrac52")
    says.at_most(fit_slope(dims, counted).estimate, 2.5, 0.05)
    says.fails(
        "units of one hidden layer whose tubes cover half of a ball of frequencies",
        fit_slope(dims, [tubes_needed(0.5, d, 3.0) for d in dims]).estimate,
    )
    many = list(range(20, 101, 10))
    growth = fit_slope(many, [math.log2(tubes_needed(0.5, d, 3.0)) for d in many], log=False)
    run.refutes(
        "radial-functions-upper-bound",
        r"\text{units required}\lesssim2^d: \quad\log_2\text{ grows by at most 1 a dimension}",
    ).at_most(growth.estimate, 1)


def coarse(run: Run, size: tuple[int, int]) -> float:
    made = squared_length_network(wave, 32, *size, lipschitz=3.0)
    x = run.rand(500, 32)
    return float((made(x) - wave(x.square().sum(1))).abs().max())


def exact(run: Run, points: int) -> None:
    """Broken lines of the 1-norm."""
    dims = (1, 2, 5, 10, 20)
    away, euclidean, hidden = [], [], []
    for d in dims:
        # knots well apart: the slopes between two that nearly meet would magnify rounding at will
        knots = d * (torch.arange(6, dtype=torch.float64) + run.rand(6) / 2) / 6
        values = run.randn(6)
        net = absolute_sum_network(knots, values, d, right_slope=0.7)
        x = 4 * run.rand(points, d) - 2
        line = broken_line(knots, values, 0.7)
        away.append(float((net(x)[:, 0] - line(x.abs().sum(1))).abs().max()))
        euclidean.append(float((net(x)[:, 0] - line(x.norm(dim=1))).abs().max()))
        hidden.append(network_size(net).units - 2 * d - 6)
    says = run.states("X-70", r"g\text{ a broken line of 6 knots: }g(\|x\|_1)=\Phi(x)\text{ exactly, }d=1,\dots,20")
    says.equal(away, within=1e-12)
    says.fails("the Euclidean length", euclidean[1:])
    run.states("X-70", r"\text{hidden units}-(2d+6)").equal(hidden)
    run.note(
        "The footnote defines radial by the 1-norm, where three layers are exact for broken lines. "
        "Eldan and Shamir use the Euclidean length, where three layers approximate."
    )


def broken_line(knots: Tensor, values: Tensor, right_slope: float) -> Any:
    """The same broken line by interpolation in a table."""

    def at(s: Tensor) -> Tensor:
        j = torch.searchsorted(knots, s).clamp(1, len(knots) - 1)
        share = ((s - knots[j - 1]) / (knots[j] - knots[j - 1])).clamp(0, 1)
        inside = values[j - 1] + share * (values[j] - values[j - 1])
        return inside + right_slope * (s - knots[-1]).clamp(min=0)

    return at


def signs_on_shells(run: Run, points: int) -> tuple[RadialShells, dict[int, float]]:
    """Shells in six dimensions and the networks that draw them."""
    shells = RadialShells(6, torch.linspace(0, 2, 6, dtype=torch.float64), torch.tensor([1.0, -1, 1, -1, 1]).double())
    x = ball_points(points, 6, 2.0, generator=run.generator)
    ramps = (0.1, 0.01)
    wrong_far, rows = [], []
    squares = x.square().sum(1)
    ends = shells.radii[1:].square()
    for ramp in ramps:
        for pieces in SQUARES:
            net = shells.network(pieces, ramp)
            with torch.no_grad():
                away = (net(x)[:, 0] - shells(x)).abs()
            blur = shells.blur(pieces, ramp)
            gap = ends - squares[:, None]
            near = ((gap >= 0) & (gap <= blur)).any(1)
            wrong_far.append(float(away[~near].max()))
            rows.append([pieces, ramp, float(away.square().mean()), float(near.double().mean())])
    sloppy = shells.network(SQUARES[0], ramps[0])
    with torch.no_grad():
        far = (sloppy(x)[:, 0] - shells(x)).abs()
    gap = ends - squares[:, None]
    only_ramp = ((gap >= 0) & (gap <= ramps[0])).any(1)
    says = run.states(
        "L-112", r"\|x\|^2\text{ not within }n(R/K)^2+\delta\text{ below some }r_i^2: \quad|\Phi(x)-g(x)|=0"
    )
    says.equal(wrong_far, within=1e-9)
    says.fails("the broken lines' own error n(R/K)² left out", far[~only_ramp].max())
    first = [r[2] for r in rows[: len(SQUARES)]]
    sharp = [r[2] for r in rows[len(SQUARES) :]]
    says = run.states("L-112", r"\mathbb E|\Phi-g|^2\text{ falls with every doubling of }K")
    says.below(
        [*first[1:], *sharp[1:]], [*first[:-1], *sharp[:-1]], where="K = 8, 16, 32, 64 with ramps of 0.1 and 0.01"
    )
    says.fails("the same K with random outer signs", other_signs(run, shells, x), promised=sharp[0])
    steepening = [float((shells.network(64, ramp)(x)[:, 0] - shells(x)).square().mean()) for ramp in (0.1, 0.05, 0.02)]
    run.states("L-112", r"K=64,\ \delta=0.1,0.05,0.02: \text{ steeper ramps err less}").below(
        steepening[1:], steepening[:-1]
    )
    drawn = [radial_shells(3, 200, 1.0, generator=run.generator) for _ in range(20)]
    run.states("L-112", r"\varepsilon_i\text{ fair: mean sign over 4000 shells}").mean(
        torch.cat([g.signs for g in drawn]), 0, against=(-0.1, 0.1)
    )
    run.table(
        "shells",
        ["pieces K", "ramp δ", "mean squared error", "share of points near a radius"],
        rows,
        caption="Five shells in six dimensions by a network with two hidden layers",
    )
    return shells, {8: 0.1, 32: 0.01}


def other_signs(run: Run, shells: RadialShells, x: Tensor) -> float:
    turned = RadialShells(shells.dimension, shells.radii, -shells.signs)
    with torch.no_grad():
        return float((turned.network(64, 0.01)(x)[:, 0] - shells(x)).square().mean())


def trained(run: Run, steps: int, seeds: int, parameters: int) -> None:
    """A tent of the 1-norm, and of a line, by training."""
    rows = []
    shallow: dict[tuple[str, int], list[float]] = {}
    for d in (2, 12):
        middle, spread = d / 2, math.sqrt(d / 12)
        knots = middle + 1.5 * spread * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        heights = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
        tent = absolute_sum_network(knots, heights, d)
        line = broken_line(knots, heights, 0.0)
        train, test = 2 * run.rand(300, d) - 1, 2 * run.rand(1000, d) - 1

        def of_length(x: Tensor, tent: Any = tent) -> Tensor:
            made: Tensor = tent(x)[:, 0]
            return made

        def along_line(x: Tensor, line: Any = line, middle: float = middle) -> Tensor:
            # the halved sum of the coordinates has the same spread as the 1-norm
            made: Tensor = line(middle + x.sum(1) / 2)
            return made

        targets: dict[str, Callable[[Tensor], Tensor]] = {
            "‖x‖₁": of_length,
            "a line": along_line,
        }
        for name, target in targets.items():
            if (name, d) == ("a line", 2):
                continue
            found = compare_depth(
                target,
                train,
                test,
                parameters=parameters,
                steps=steps,
                rate=0.03,
                seeds=seeds,
                generator=run.generator,
            )
            shallow[name, d] = found.shallow.tolist()
            left = float(found.shallow.mean()), float(found.deep.mean())
            rows.append([name, d, found.shallow_width, left[0], found.deep_width, left[1]])
    says = run.states(
        ["X-70", "L-112"],
        r"\text{illustration, }d=12: \text{trained networks with one hidden layer do no better than a constant "
        r"on a tent of }\|x\|_1",
    )
    says.at_least(
        shallow["‖x‖₁", 12], 1.0, where="what training finds, not what the best network of this size could do"
    )
    says.fails("the same tent along a line", shallow["a line", 12])
    run.table(
        "training",
        ["tent of", "d", "units (one layer)", "error", "units (each of two)", "error"],
        rows,
        caption=f"Share of the variance that trained networks of {parameters} parameters leave; "
        "the explicit network with two hidden layers leaves none",
    )


def plot(axes: Any, rows: list[list[float]], shells: RadialShells, drawn: dict[int, float]) -> None:
    left, right = axes[0]
    for j, d in enumerate((1, 2, 10)):
        mine = [r for r in rows if r[0] == d]
        places = range(len(mine))
        left.semilogy(places, [r[4] for r in mine], "-", color=f"C{j}")
        left.semilogy(places, [r[3] for r in mine], "o", color=f"C{j}", label=f"d = {d}")
    left.set_xticks(range(len(SIZES)), [f"{k}, {m}" for k, m in SIZES])
    left.set(xlabel="size $k$, $m$", ylabel="sup error (dots), promise (lines)")
    left.legend()
    s = torch.linspace(0, 2.1, 1200, dtype=torch.float64)
    ray = s[:, None] * torch.full((1, 6), 1 / math.sqrt(6), dtype=torch.float64)
    right.plot(s, shells(ray), color="0.7", lw=4, label="shells")
    for pieces, ramp in drawn.items():
        right.plot(s, shells.network(pieces, ramp)(ray)[:, 0], lw=1, label=f"K = {pieces}")
    right.set(xlabel="$\\|x\\|$ along the diagonal", ylabel="value")
    right.set_ylim(-1.2, 1.8)
    right.legend(ncols=3, loc="upper center")
