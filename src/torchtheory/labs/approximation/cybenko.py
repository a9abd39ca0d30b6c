"""Cybenko's theorem: sums of sigmoids, their density in several dimensions, and what they see."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import box_grid, measured_error
from torchtheory.approximation.targets import Function
from torchtheory.approximation.universality.cybenko import (
    sigmoid_staircase,
    soft_indicator,
    staircase_factor,
)
from torchtheory.approximation.universality.discriminatory import (
    discriminatory_test,
    polynomial_rank,
    ridge_units,
)
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit, span_error
from torchtheory.labs.approximation.interpolants import Judged, kept_promises
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.activations.table import FOURTEEN

#: name, function, Lipschitz constant on [0, 1]
LINES: tuple[tuple[str, Function, float], ...] = (
    ("sin 2πx", lambda x: torch.sin(2 * math.pi * x), 2 * math.pi),
    ("|x - 1/3|", lambda x: (x - 1 / 3).abs(), 1.0),
    ("3x", lambda x: 3 * x, 3.0),
    ("1/(1 + 25x²)", lambda x: 1 / (1 + 25 * x**2), 3.25),
)


def jump(x: Tensor) -> Tensor:
    return (x >= 0.5).double()


@lab(
    "cybenko-sums",
    room="approximation",
    covers=["S-28"],
    title="N + 1 logistic units stay within (Λ/N)(1 + small) of a Λ-Lipschitz function",
    errata=["cybenko-any-function"],
    full={"doublings": 7},
    least={"doublings": 3},
)
def cybenko_sums(run: Run, doublings: int = 5) -> None:
    """Cybenko's sum is written down for four functions, from 4 cells on, doubled `doublings` - 1 times.

    Each unit is a soft step in the middle of a cell. The sup error is at most
    (Λ/N)[1 + $2e^{-s/2}$/(1 - $e^{-s}$)] where s is the sharpness of a step times the length of a
    cell, for soft and for sharp steps alike. A jump stays at distance one half from every
    continuous sum, and beyond the interval the sum is constant. Look at the soft staircase, which
    is the better the softer, until it is too soft.
    """
    cells = [2 ** (k + 2) for k in range(doublings)]
    sharps = [2.0, 4.0, 10.0, 40.0]
    found = {(name, s): [staircase(g, rho, n, s) for n in cells] for name, g, rho in LINES for s in sharps}
    understated = [staircase(LINES[0][1], 1.0, n, 10.0) for n in cells]
    kept_promises(
        run,
        "S-28",
        r"\sup_{[0,1]}|f-G|\le\tfrac\Lambda N\bigl[1+2e^{-s/2}/(1-e^{-s})\bigr],\ s=\kappa/N",
        found.values(),
        understated,
    )
    run.states("S-28", r"\text{a sum of } N+1 \text{ units without an offset}").equal(
        [a.size.units for row in found.values() for a, _ in row], [n + 1 for _ in found for n in cells]
    )
    rows = {name: [e for _, e in found[name, 10.0]] for name, _, _ in LINES}
    says = run.states("S-28", r"\text{error}\sim N^{-1} \text{ for a straight line}")
    says.slope(cells, rows["3x"], -1.0, 0.02, against=(-0.5, -2.0))
    says.fails("a jump", cells, [staircase(jump, 1.0, n, 10.0)[1] for n in cells])
    beyond(run)
    run.refutes("cybenko-any-function", r"n \text{ large enough: } \sup|f-G|\le0.1 \text{ for every } f").at_most(
        [staircase(jump, 1.0, n, 10.0)[1] for n in cells],
        0.1,
        where="a jump at 1/2: wherever a continuous G passes from 0 to 1, it is 1/2 away",
    )
    run.table(
        "staircases",
        ["function", "Λ", "cells", "sharpness s", "promised", "measured"],
        [
            (name, rho, n, s, a.bound, e)
            for name, _, rho in LINES
            for s in sharps
            for n, (a, e) in zip(cells, found[name, s], strict=True)
        ],
        caption="Sums of N + 1 logistic units on [0, 1]",
    )
    run.figure(
        "staircases",
        lambda axes: plot_staircases(axes, cells, found),
        grid=(1, 2),
        caption="Left: eight soft steps of three sharpnesses. Right: promised (lines) and measured "
        "(marks) sup errors for sin 2πx; the promises for s = 10 and s = 40 differ by 1 %.",
    )


def staircase(g: Function, rho: float, cells: int, sharpness: float) -> Judged:
    made = sigmoid_staircase(g, cells, lipschitz=rho, sharpness=sharpness)
    # a few dozen points a cell, or the largest error falls between them
    return made, measured_error(g, made, most_points=max(1 << 12, 64 * cells)).lower


def beyond(run: Run) -> None:
    """Outside the compact set a sum of sigmoids has a limit and a line has none."""
    # steep steps, which a line does not meet between them
    made = sigmoid_staircase(lambda x: 3 * x, 64, lipschitz=3.0, sharpness=40.0)
    # many points per cell: the error is largest next to the steps
    inside = torch.linspace(0, 1, 6401, dtype=torch.float64)
    outside = torch.linspace(2, 10, 9, dtype=torch.float64)
    says = run.states("S-28", r"|3x-G(x)|\le\text{bound on the compact set } [0,1]")
    says.at_most((made(inside) - 3 * inside).abs(), made.bound)
    says.fails("on [2, 10]: G is bounded", (made(outside) - 3 * outside).abs())


def plot_staircases(axes: Any, cells: list[int], found: dict[tuple[str, float], list[Judged]]) -> None:
    left, right = axes[0]
    name, g, rho = LINES[0]
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    left.plot(x, g(x), color="0.4", linewidth=1, label=name)
    for color, s in zip(COLORS, (2.0, 10.0, 100.0), strict=False):
        made = sigmoid_staircase(g, 8, lipschitz=rho, sharpness=s)
        left.plot(x, made(x), color=color, label=f"s = {s:g}")
    left.set(xlabel="x", ylabel="value", title="nine logistic units")
    left.legend()
    for color, mark, s in zip(COLORS, "os^d", (2.0, 4.0, 10.0, 40.0), strict=False):
        row = found[name, s]
        right.loglog(cells, [a.bound for a, _ in row], color=color, linewidth=0.8)
        label = f"s = {s:g}, factor {staircase_factor(s):.2f}"
        right.loglog(cells, [e for _, e in row], mark, color=color, label=label)
    right.set_xscale("log", base=2)
    right.set(xlabel="cells N", ylabel="sup error", title="promise and measurement")
    right.legend()


#: dimension, name, function of [n, d]
CUBES: tuple[tuple[int, str, Function], ...] = (
    (1, "sin 2πx", lambda x: torch.sin(2 * math.pi * x.squeeze(-1))),
    (1, "|x - 1/3|", lambda x: (x.squeeze(-1) - 1 / 3).abs()),
    (2, "|x₁ - x₂|", lambda x: (x[:, 0] - x[:, 1]).abs()),
    (2, "exp(-4|x - ½|²)", lambda x: torch.exp(-4 * (x - 0.5).square().sum(1))),
    (3, "x₁x₂x₃", lambda x: x.prod(1)),
)
GRIDS = {1: 257, 2: 21, 3: 8}


def square(z: Tensor) -> Tensor:
    return z**2


@lab(
    "cybenko-density",
    room="approximation",
    covers=["A-27", "S-30", "X-10", "X-12"],
    title="Wider is closer in one, two and three dimensions, unless σ is a polynomial",
    full={"doublings": 6, "seeds": 7},
    least={"doublings": 3, "seeds": 1},
)
def cybenko_density(run: Run, doublings: int = 4, seeds: int = 3) -> None:
    """Random units of the activations of the table, output weights by least squares.

    Beforehand: for every function of one to three variables and every activation that is not a
    polynomial, the median sup error over `seeds` draws, with 8 times 2 to the `doublings` units, is below a fifth
    of the best constant's, and for the logistic unit it has fallen from the least to the largest
    width. For z² it cannot go below the distance from polynomials of degree 2, which a linear
    program finds. On finitely many points the condition is not needed: three points are met by z²
    as well. Look at the plateau.
    """
    widths = [8 * 2**k for k in range(doublings + 1)]
    drawn = torch.randint(2**31, (seeds,), generator=run.generator).tolist()
    curves = {name: [errors_of(name, d, g, widths, drawn) for d, _, g in CUBES] for name in ("logistic", "relu")}
    curves["z²"] = [errors_of(square, d, g, widths, drawn) for d, _, g in CUBES]
    constants = [float(values(d, g).max() - values(d, g).min()) / 2 for d, _, g in CUBES]
    others = [name for name in FOURTEEN if name not in ("linear", "logistic", "relu")]
    last = {name: [row[-1] for row in rows] for name, rows in curves.items()}
    for name in others:
        last[name] = [errors_of(name, d, g, widths[-1:], drawn[:1])[0] for d, _, g in CUBES]
    rough = {"heaviside"}  # no continuous function: uniform fits on a grid are another matter
    says = run.states(
        ["A-27", "S-30", "X-10", "X-12"],
        r"\sigma \text{ no polynomial: error at the largest width}\ /\ \text{best constant's}",
    )
    says.below(
        [
            e / c
            for name, row in last.items()
            if name != "z²" and name not in rough
            for e, c in zip(row, constants, strict=True)
        ],
        0.2,
        where=f"{widths[-1]} random units; logistic and ReLU: medians over {seeds} draws",
    )
    says.fails("σ(z) = z²", [e / c for e, c in zip(last["z²"], constants, strict=True)])
    says = run.states(["S-30", "X-10"], r"\text{logistic: error at the largest}\ /\ \text{error at the least width}")
    says.below([row[-1] / row[0] for row in curves["logistic"]], 0.5)
    says.fails("σ(z) = z²", [row[-1] / row[0] for row in curves["z²"]])
    plateau(run, curves["z²"], curves["logistic"])
    few_points(run)
    names = list(last)
    run.table(
        "errors",
        ["function", "d", "best constant", *names],
        [(name, d, constants[i], *[last[n][i] for n in names]) for i, (d, name, _) in enumerate(CUBES)],
        caption=f"Sup errors on a grid with {widths[-1]} random units",
    )
    run.table(
        "widths",
        ["function", "error asked for", *curves],
        [
            (name, eps, *[width_for(widths, rows[i], eps) for rows in curves.values()])
            for i, (_, name, _) in enumerate(CUBES)
            for eps in (0.1, 0.03)
        ],
        caption="The least width tried whose median error is below ε (an upper bound of the true "
        "one); empty where none was",
    )
    run.figure(
        "density",
        lambda axes: plot_density(axes, widths, curves),
        grid=(1, 2),
        caption="Median sup error over the number of random units: logistic and ReLU units get "
        "closer, z² stays where the polynomials of degree 2 end.",
    )


def grid_of(dimension: int) -> Tensor:
    return box_grid(((0.0, 1.0),) * dimension, GRIDS[dimension])


def values(dimension: int, g: Function) -> Tensor:
    return g(grid_of(dimension))


def errors_of(activation: Any, dimension: int, g: Function, widths: list[int], seeds: list[int]) -> list[float]:
    """Median sup errors of least squares fits, one a width."""
    x = grid_of(dimension)
    y = g(x)
    rows = []
    for seed in seeds:
        features = ridge_units(activation, widths[-1], x, steepness=8.0, generator=seed)
        rows.append([span_error(features[:, :m], y) for m in widths])
    return torch.tensor(rows).median(0).values.tolist()


def width_for(widths: list[int], errors: list[float], error: float) -> int | None:
    return next((m for m, e in zip(widths, errors, strict=True) if e < error), None)


def plateau(run: Run, squares: list[list[float]], logistic: list[list[float]]) -> None:
    """No output weights of z² units beat the best polynomial of degree 2."""
    floors = []
    for d, _, g in CUBES:
        x = grid_of(d)
        pairs = [x[:, i] * x[:, j] for i in range(d) for j in range(i, d)]
        monomials = torch.stack([torch.ones(len(x)).double(), *x.T, *pairs], 1)
        floors.append(best_uniform_fit(monomials, g(x)).error)
    says = run.states(
        ["A-27", "X-12", "X-10"], r"\sigma(z)=z^2:\ \text{error}\ge\text{distance from the polynomials of degree 2}"
    )
    says.at_least(
        [e for row in squares for e in row], [f for f, row in zip(floors, squares, strict=True) for _ in row], 1e-7
    )
    says.fails("the logistic unit", [e for row in logistic for e in row])


def few_points(run: Run) -> None:
    """The 'only if' is about all compact sets: on three points z² is universal."""
    x = torch.linspace(-1, 1, 3, dtype=torch.float64).unsqueeze(1)
    more = torch.linspace(-1, 1, 7, dtype=torch.float64).unsqueeze(1)
    found, missed = [], []
    for _ in range(5):
        units = ridge_units(square, 10, x, generator=run.generator)
        found.append(best_uniform_fit(units, run.randn(3)).error)
        units = ridge_units(square, 10, more, generator=run.generator)
        missed.append(best_uniform_fit(units, run.randn(7)).error)
    says = run.states("A-27", r"K \text{ three points},\ \sigma(z)=z^2:\ \text{every } f \text{ is met}")
    says.equal(found, within=1e-7, where="so the theorem's 'only if' needs more points than the degree allows")
    says.fails("seven points", missed)


def plot_density(axes: Any, widths: list[int], curves: dict[str, list[list[float]]]) -> None:
    for axis, index in zip(axes[0], (1, 2), strict=True):
        for color, (name, rows) in zip(COLORS, curves.items(), strict=False):
            axis.loglog(widths, rows[index], "o-", markersize=4, color=color, label=name)
        axis.set_xscale("log", base=2)
        d, name, _ = CUBES[index]
        axis.set(xlabel="hidden units", ylabel="sup error", title=f"{name}, d = {d}")
        axis.legend()


SEEING = ("logistic", "tanh", "relu", "heaviside", "gaussian", "softplus")


@lab(
    "discriminatory-activations",
    room="approximation",
    covers=["A-28", "S-29", "X-09", "X-10"],
    title="Sigmoids see every measure on distinct points; polynomials of degree q miss some",
    full={"points": 50, "units": 500},
    least={"points": 12, "units": 12},
)
def discriminatory_activations(run: Run, points: int = 30, units: int = 300) -> None:
    """`units` random units at `points` random points of a square, apart: the rank of their values.

    Six activations reach the number of points, so no measure on the points is unseen, and as many
    units interpolate any values. Powers of degree q reach no more than the number of monomials,
    and a measure of total variation 1 is found that all units, also new ones, integrate to 0. Then
    the proof's limit: steep sigmoids become steps and indicators, at the rate $e^{-as}$ in the distance s.
    Look at the unseen measure in the figure.
    """
    run.assumes(
        units >= 5 * points,
        f"{units} random lines may leave two of {points} points on the same side of each: steps see all points with "
        "five times as many",
    )
    # one point in the middle of a cell each: steps do not see two points that none of so many lines parts
    side = math.ceil(math.sqrt(points))
    cells = torch.randperm(side**2, generator=run.generator)[:points]
    x = (torch.stack([cells // side, cells % side], 1) + 0.25 + 0.5 * run.rand(points, 2)) / side
    tests = {n: discriminatory_test(n, x, units, generator=run.generator) for n in SEEING}
    powers: dict[int, Any] = {
        q: discriminatory_test(lambda z, q=q: z**q, x, units, generator=run.generator)  # type: ignore[misc]
        for q in (1, 2, 3)
    }
    says = run.states(
        ["S-29", "X-09", "A-28"], r"\operatorname{rank}[\sigma(w_j^\top x_i+b_j)]=m, \text{ the number of points}"
    )
    says.equal(
        [t.rank for t in tests.values()], points, where="logistic, tanh, ReLU, Heaviside, Gaussian and softplus units"
    )
    says.fails("powers of degree 1, 2, 3", [t.rank for t in powers.values()])
    says = run.states(["S-29", "X-09", "A-28"], r"\sigma(z)=z^q:\ \operatorname{rank}\le\binom{d+q}q=3,6,10")
    says.at_most([t.rank for t in powers.values()], [polynomial_rank(q, 2) for q in powers])
    says.fails("tanh", tests["tanh"].rank, promised=10)
    unseen(run, x, powers[2].null_measure)
    interpolation(run, x)
    steps(run)
    run.table(
        "ranks",
        ["activation", "points", "units", "rank", "largest", "least singular value"],
        [
            (name, points, units, t.rank, t.singular_values[0], t.singular_values[-1])
            for name, t in [*tests.items(), *((f"$z^{q}$", t) for q, t in powers.items())]
        ],
        caption="The matrix of values of random units at random points of the square",
    )
    run.figure(
        "unseen",
        lambda axes: plot_unseen(axes, x, powers[2].null_measure, tests, powers),
        grid=(1, 2),
        caption="Left: masses (blue above, red below 0) that every unit (w·x + b)² integrates to "
        "0. Right: singular values; those of powers stop.",
    )


def unseen(run: Run, x: Tensor, measure: Tensor) -> None:
    """New units do not see the measure either; other activations do."""
    fresh = ridge_units(square, 200, x, steepness=5.0, generator=run.generator)
    other = ridge_units("tanh", 200, x, steepness=5.0, generator=run.generator)
    says = run.states(
        ["S-29", "X-09"], r"\int(w^\top x+b)^2d\mu=0 \text{ for 200 new units},\ \|\mu\|=1: \text{ largest integral}"
    )
    says.equal((measure @ fresh).abs().max(), within=1e-12)
    says.fails("tanh units see it", (measure @ other).abs().max())
    run.states(["S-29", "X-09"], r"\|\mu\|=1, \text{ so it is not } 0").equal(measure.abs().sum(), 1.0, 1e-12)


def interpolation(run: Run, x: Tensor) -> None:
    """As many logistic units as points meet any values there."""
    m = min(len(x), 20)
    sample, y = x[:m], run.randn(m)
    left = []
    for layer in ("logistic", square):
        features = ridge_units(layer, m, sample, steepness=50.0, generator=run.generator)
        solved = torch.linalg.lstsq(features, y.unsqueeze(1), driver="gelsd").solution[:, 0]
        left.append(float((features @ solved - y).abs().max()))
    says = run.states("X-10", r"m \text{ points}, m \text{ logistic units: values met, largest difference}")
    says.equal(left[0], within=1e-6)
    says.fails("σ(z) = z²", left[1])


def steps(run: Run) -> None:
    """Steep units become steps, and differences of two indicators."""
    sharp = [10.0, 20.0, 40.0, 80.0]
    x = torch.linspace(-1, 2, 301, dtype=torch.float64)
    inside = ((x > 0) & (x < 1)).double()
    distance = torch.minimum(x.abs(), (x - 1).abs())
    promised, found, at_ends = [], [], []
    for a in sharp:
        values = soft_indicator(0.0, 1.0, a)(x.unsqueeze(1))[:, 0]
        away = distance > 1e-9
        promised.append(2 * torch.exp(-a * distance[away]))
        found.append((values - inside)[away].abs())
        at_ends.append((values - inside)[~away].abs())
    says = run.states("A-28", r"|\sigma(a(x-c_1))-\sigma(a(x-c_2))-1_{(c_1,c_2)}(x)|\le2e^{-a\,\mathrm{dist}}")
    says.at_most(torch.cat(found), torch.cat(promised), 1e-15)
    says.fails(
        "a tenth as steep",
        (soft_indicator(0.0, 1.0, 1.0)(x.unsqueeze(1))[:, 0] - inside).abs(),
        promised=2 * torch.exp(-10 * distance),
    )
    run.states("A-28", r"\text{at the ends the limit is } \sigma(0)=\tfrac12, \text{ not } 0 \text{ or } 1").equal(
        at_ends[-1], 0.5, 1e-9
    )
    b = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    for_b = torch.sigmoid(1e6 * torch.tensor([-0.01, 0.0, 0.01]).double()[:, None] + b)
    limit = torch.stack([torch.zeros(3).double(), torch.sigmoid(b), torch.ones(3).double()])
    linear = torch.relu(1e6 * torch.tensor([-0.01, 0.0, 0.01]).double()[:, None] + b)
    says = run.states("A-28", r"\varrho(ax+b)\to1_{(0,\infty)}(x)+\varrho(b)1_{\{0\}}(x),\ a=10^6")
    says.equal(for_b.flatten(), limit.flatten(), 1e-12)
    says.fails("ReLU, not sigmoidal", linear.flatten())


def plot_unseen(axes: Any, x: Tensor, measure: Tensor, tests: dict[str, Any], powers: dict[int, Any]) -> None:
    left, right = axes[0]
    size = 2500 * measure.abs()
    left.scatter(
        x[:, 0],
        x[:, 1],
        s=size.tolist(),
        c=[COLORS[0] if m > 0 else COLORS[1] for m in measure],
        alpha=0.7,
    )
    left.set(xlabel="$x_1$", ylabel="$x_2$", title="a measure no square sees")
    left.set_aspect("equal")
    for color, name in zip(COLORS, ("logistic", "relu", "heaviside"), strict=False):
        right.semilogy(tests[name].singular_values, color=color, label=name)
    for style, (q, t) in zip(("--", "-.", ":"), powers.items(), strict=True):
        right.semilogy(t.singular_values.clamp(min=1e-18), style, color="0.3", label=f"$z^{q}$")
    right.set(xlabel="number", ylabel="singular value", title="units at the points")
    right.legend(ncols=2, fontsize=7)
