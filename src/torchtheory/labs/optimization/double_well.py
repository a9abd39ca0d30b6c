"""Two wells and a saddle: where gradient descent stops, and where noise carries it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Interval, Run, clopper_pearson, fit_slope, lab
from torchtheory.optimization.descent.iterates import (
    Direction,
    Function,
    gradient_of,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.descent.noise import accumulated_variance, with_gaussian_noise
from torchtheory.optimization.landscape.critical_points import critical_point, escape_times

TILT = 0.3
STEP = 0.02


#: Confidence of the comparisons with formulas.
SURE = 0.9999


@lab(
    "double-well",
    room="optimization",
    covers=["A-25", "A-26"],
    title="Gradient descent stays in its valley and on its ridge; noise may leave both",
    full={"trials": 5000, "steps": 3000, "grid": 201},
    least={"trials": 60, "steps": 25, "noise": 3.8},
    most={"noise": 47},
)
def double_well(run: Run, trials: int = 400, steps: int = 500, noise: float = 4.7, grid: int = 25) -> None:
    """On r(θ) = (θ² - 1)² + 0.3 θ, with a global minimum on the left and another on the right,
    gradient descent ends in the valley it starts in. With noise of size `noise` the same start
    ends sometimes here and sometimes there.

    Then saddles. Gradient descent on x² - y² from (1, 0) walks into the saddle and stays; the
    smallest noise leaves it, after a time that grows with the logarithm of one over its size. Look
    at the eight runs (the source's Figure 1.3, whose function is not given), and at the
    probability of reaching the global minimum from every start.

    Args:
        trials: runs with noise.
        steps: of a run.
        grid: starts from -1.9 to 1.9.
    """
    left, top, right = stationary_points()
    points_of_rest(run, (left, top, right))
    valleys(run, top, right, trials, steps, noise, grid)
    classification(run)
    saddle(run, trials)
    run.figure(
        "figure-1-3",
        lambda axes: plot_runs(axes, noise, top, run.seed),
        caption="Gradient descent from four starts (left two columns) and stochastic gradient "
        "descent from two (right two), for each a run that failed and one that succeeded. Early "
        "points are light; the last one is a star.",
        grid=(2, 4),
        size=(13, 5.6),
    )


def well(theta: Tensor) -> Tensor:
    return ((theta.square() - 1).square() + TILT * theta).sum(-1)


def stationary_points() -> tuple[float, float, float]:
    """The roots of r' = 4θ³ - 4θ + 0.3, ascending."""
    roots = sorted(np.roots([4.0, 0.0, -4.0, TILT]).real.tolist())
    return roots[0], roots[1], roots[2]


def points_of_rest(run: Run, roots: tuple[float, float, float]) -> None:
    at = torch.tensor(roots, dtype=torch.float64)[:, None]
    end = last_iterate(gradient_of(well), at, [STEP] * 50)
    moved = last_iterate(gradient_of(well), at + 0.01, [STEP] * 50)
    says = run.states("A-26", r"\nabla r(\theta)=0: \text{ gradient descent does not move: distance after 50 steps}")
    says.at_most((end - at).abs(), 0, 1e-9, where="the two minima and the maximum of the double well")
    says.fails("0.01 beside the maximum", (moved - at)[1].abs())
    kinds = [critical_point(well, point).kind for point in at]
    says = run.states(
        "A-25, A-26",
        r"r=(\theta^2-1)^2+0.3\,\theta \text{ has two minima and between them a maximum: points of another kind}",
    )
    says.equal(sum(a != b for a, b in zip(kinds, ["minimum", "maximum", "minimum"], strict=True)))
    says.fails(
        "the second derivative has the wrong sign",
        sum(critical_point(lambda t: -well(t), point).kind != kind for point, kind in zip(at, kinds, strict=True)),
    )
    everywhere = well(torch.linspace(-3, 3, 60_001, dtype=torch.float64)[:, None])
    says = run.states("A-25", r"\text{the left one is global: } r(\theta_-)=\min r")
    says.equal(well(at[0]), everywhere.min(), 1e-7, where="the least value on a grid of [-3, 3]")
    says.fails("the other one", well(at[2]))


def ends(direction: Direction, starts: Tensor, steps: int) -> Tensor:
    return last_iterate(direction, starts, [STEP] * steps)[..., 0]


def valleys(run: Run, top: float, right: float, trials: int, steps: int, noise: float, grid: int) -> None:
    """Where runs end, for starts on a grid and noise of three sizes."""
    slope = gradient_of(well)
    starts = torch.linspace(-1.9, 1.9, grid, dtype=torch.float64)
    copies = max(2, trials // 4)

    def hits(size: float, runs: int) -> Tensor:
        """How many runs from each start end in the global valley."""
        direction = with_gaussian_noise(slope, size, run.generator)
        return (ends(direction, starts.expand(runs, -1)[..., None], steps) < top).sum(0)

    alone, some, most = hits(0.0, 1), hits(0.6 * noise, copies), hits(noise, copies)
    decided = starts < top
    says = run.states(
        "A-25",
        r"\text{gradient descent reaches the global minimum if and only if } \theta^0<"
        r"\theta_{\max}: \text{ starts that do not}",
    )
    says.equal((alone.bool() != decided).sum(), where=f"{grid} starts from -1.9 to 1.9")
    says.fails(f"noise of size {noise:g}: starts with a run in the other valley", (most / copies != decided).sum())
    at = torch.full((trials, 1), right, dtype=torch.float64)
    reached = int((ends(with_gaussian_noise(slope, noise, run.generator), at, steps) < top).sum())
    still = int((ends(slope, at, steps) < top).sum())
    other = int((ends(slope, -at, steps) < top).sum())
    chance = clopper_pearson(reached, trials, 0.99)
    says = run.states("A-25", r"\text{from the other minimum, with noise: } P(\text{global valley})>0")
    says.above(chance.low, 0, where=f"lower end of the 99% interval; {reached} of {trials} runs of {steps} steps")
    says.fails("no noise", clopper_pearson(still, trials, 0.99).low)
    says = run.states("A-25", r"\text{and } P(\text{other valley})>0")
    says.above(1 - chance.high, 0, where="lower end of the same interval for the other runs")
    says.fails("no noise, and a start in the global valley", 1 - clopper_pearson(other, trials, 0.99).high)
    run.curves(
        "basins",
        starts,
        {
            f"noise {noise:.2g}": [clopper_pearson(int(h), copies, 0.99) for h in most],
            f"noise {0.6 * noise:.2g}": [clopper_pearson(int(h), copies, 0.99) for h in some],
            "no noise": alone,
        },
        axes=("start", "share ending in the global valley"),
        at={r"$\theta_{\max}$": top},
        caption="Share of runs that end in the global valley, by their start; bars are 99% intervals.",
    )


def classification(run: Run) -> None:
    """Quadratic forms whose signs are known, and two cases that second order does not decide."""
    size, wrong, flipped = 5, 0, 0
    for negative in range(size + 1):
        signs = torch.ones(size, dtype=torch.float64)
        signs[:negative] = -1
        basis, _ = torch.linalg.qr(run.randn(size, size))
        matrix = basis * (signs * (0.5 + run.rand(size))) @ basis.T
        kind = "minimum" if negative == 0 else "maximum" if negative == size else "saddle"

        def form(x: Tensor, A: Tensor = matrix) -> Tensor:
            return x @ A @ x

        found = critical_point(form, torch.zeros(size, dtype=torch.float64))
        wrong += (found.kind, found.index) != (kind, negative)
        flipped += (found.kind, found.index) != (kind, size - negative)
    says = run.states(
        "A-26", r"x^\top Ax \text{ at } 0: \text{ kind and index from the signs of } A: \text{ wrong ones}"
    )
    says.equal(wrong, where="all signatures in 5 dimensions, random bases")
    says.fails("the positive eigenvalues are counted", flipped)
    zero = torch.zeros(2, dtype=torch.float64)
    flat = [
        critical_point(lambda x: x[0] ** 3 - 3 * x[0] * x[1] ** 2, zero),
        critical_point(lambda x: x[0] ** 2 + x[1] ** 4, zero),
    ]
    says = run.states(
        "A-26", r"\text{a singular Hessian does not decide: } x^3-3xy^2 \text{ and } x^2+y^4 \text{ are degenerate}"
    )
    says.equal(sum(p.kind == "degenerate" for p in flat), 2, where="the first is a saddle, the second a minimum")
    says.fails(
        "a quadratic term removes the degeneracy",
        sum(
            p.kind == "degenerate"
            for p in (
                critical_point(lambda x: x[0] ** 2 - x[1] ** 2 + x[0] ** 3, zero),
                critical_point(lambda x: x[0] ** 2 + x[1] ** 2 + x[1] ** 4, zero),
            )
        ),
    )


def saddle(run: Run, trials: int) -> None:
    eta = 0.05
    zero = torch.zeros(2, dtype=torch.float64)

    def ridge(theta: Tensor) -> Tensor:
        return theta[..., 0].square() - theta[..., 1].square()

    def sharper(theta: Tensor) -> Tensor:
        return theta[..., 0].square() - 2 * theta[..., 1].square()

    def bowl(theta: Tensor) -> Tensor:
        return theta.square().sum(-1)

    slope = gradient_of(ridge)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    rest = last_iterate(slope, start, [eta] * 300)
    gone = last_iterate(slope, start + torch.tensor([0.0, 1e-6]).double(), [eta] * 300)
    says = run.states("A-26", r"r=x^2-y^2 \text{ from } (1,0): \text{ gradient descent converges to the saddle}")
    says.equal(rest.norm(), within=1e-9, where="distance from it after 300 steps")
    says.fails("started at (1, 10⁻⁶)", gone.norm())

    runs = 10 * trials

    def noisy_path(direction: Direction, size: float, steps: int) -> Tensor:
        oracle = with_gaussian_noise(direction, size, run.generator)
        return trajectory(oracle, zero.expand(runs, -1), [eta] * steps)

    size, steps = 0.01, 30
    path = noisy_path(slope, size, steps)
    says = run.states(
        "A-26",
        r"\mathbb E\,y_T^2=\eta^2s^2\,\frac{a^{2T}-1}{a^2-1},\ a=1+2\eta:"
        r" \text{ noise grows along the unstable direction}",
    )
    says.mean(
        path[-1, :, 1].square(),
        accumulated_variance(-2.0, eta, size, steps),
        # a minimum's, a plain's, and the growth counted once in place of squared
        against=[accumulated_variance(curvature, eta, size, steps) for curvature in (2.0, 0.0, -1.0)],
        confidence=SURE,
        where=f"from the saddle, T = {steps}, s = {size}, {runs} runs",
    )
    says.fails(
        "the formula for a minimum, a = 1 - 2η",
        path[-1, :, 1].square(),
        promised=accumulated_variance(2.0, eta, size, steps),
    )
    sizes, longest = [1e-1, 1e-2, 1e-3, 1e-4], 200

    def times(r: Function) -> Tensor:
        paths = [noisy_path(gradient_of(r), s, longest) for s in sizes]
        return torch.stack([escape_times(p, zero, 1.0) for p in paths]).double()

    def growth(waiting: Tensor) -> Interval:
        """Regression of the single times on log(1/s)."""
        logs = torch.tensor([math.log(1 / s) for s in sizes]).double()
        return fit_slope(logs.repeat_interleave(runs), waiting.flatten(), SURE, log=False)

    waiting, kept, quick = times(ridge), times(bowl), times(sharper)
    # y_T is normal: it has left with this probability, and does not come back
    soon = 140
    outside = math.erfc((2 * accumulated_variance(-2.0, eta, sizes[-1], soon)) ** -0.5)
    says = run.states("A-26", r"P(\text{the run has left the saddle by step } T)\ge P(|y_T|>1)")
    says.share(waiting[-1] <= soon, outside, where=f"T = {soon}, s = {sizes[-1]:g}, {runs} runs")
    says.fails("x² + y², a minimum", kept[-1] <= soon)
    says = run.states("A-26", r"\text{mean escape time}=\frac{\log(1/s)}{\log(1+2\eta)}+\text{const}: \text{ slope}")
    # the flow's rate, and twice or half as fast
    says.slope(growth(waiting), 1 / math.log(1 + 2 * eta), against=(1 / (2 * eta), 1 / (4 * eta), 1 / eta))
    says.fails("x² - 2y², twice as steep", growth(quick))
    run.table(
        "escape",
        ["noise s", "mean escape time", "shortest", "longest"],
        [(s, t.mean(), t.min(), t.max()) for s, t in zip(sizes, waiting, strict=True)],
        caption="Steps until a run is farther than 1 from the saddle of x² - y², η = 0.05",
    )


def runs_of_both_kinds(start: float, noise: float, top: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of 32 noisy runs from one start, the first that ends on either side."""
    at = torch.full((32, 1), start, dtype=torch.float64)
    direction = with_gaussian_noise(gradient_of(well), noise, generator)
    paths = trajectory(direction, at, [STEP] * 400)[..., 0]
    side = (paths[-1] < top).int()
    return paths[:, side.argmin()], paths[:, side.argmax()]


def plot_runs(axes: Any, noise: float, top: float, seed: int) -> None:
    grid = torch.linspace(-1.75, 1.75, 120, dtype=torch.float64)
    starts = torch.tensor([[-1.5], [-0.3], [0.35], [1.5]], dtype=torch.float64)
    smooth = trajectory(gradient_of(well), starts, [STEP] * 400)[..., 0]
    random = torch.Generator().manual_seed(seed)
    rough = [runs_of_both_kinds(start, noise, top, random) for start in (0.35, 1.5)]
    for row in range(2):
        panels = [smooth[:, 2 * row], smooth[:, 2 * row + 1], *rough[row]]
        for column, (axis, path) in enumerate(zip(axes[row], panels, strict=True)):
            shown = path[::4]
            axis.plot(grid, well(grid[:, None]), color="0.6", linewidth=1)
            axis.scatter(shown, well(shown[:, None]), c=range(len(shown)), cmap="Blues", s=12, vmin=-40)
            axis.plot(path[-1], well(path[-1:]), "*", color=COLORS[1], markersize=13)
            name = "stochastic gradient descent" if column >= 2 else "gradient descent"
            axis.set_title(f"{name}, from {float(path[0]):g}", fontsize=9)
            axis.set(xlim=(-1.75, 1.75), ylim=(-0.6, 3.6), xticks=[-1, 0, 1], yticks=[0, 1, 2, 3])
            if row == 1:
                axis.set_xlabel(r"$\theta$")
            if column == 0:
                axis.set_ylabel(r"$r(\theta)$")
