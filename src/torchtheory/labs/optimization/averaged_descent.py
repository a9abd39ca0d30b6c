"""Averaged iterates: the rate for convex functions, and Polyak and Ruppert's average."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.labs.optimization.example_losses import error_bars, half_square, logistic
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.certificates.convergence import averaged_descent_bound
from torchtheory.optimization.certificates.stochastic_rates import (
    LeastSquaresError,
    expected_least_squares_error,
    stationary_least_squares_error,
)
from torchtheory.optimization.descent.iterates import (
    Direction,
    Function,
    average_iterate,
    gradient_of,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction
from torchtheory.optimization.descent.noise import with_gaussian_noise, with_unit_noise
from torchtheory.training.optimizers.projection import onto_ball

#: Confidence of each statistical comparison.
SURE = 0.9999


@lab(
    "averaged-descent",
    room="optimization",
    covers=["A-24", "L-139"],
    title="Averaging the iterates of stochastic descent: when it helps, and how much is promised",
    errata=[
        "averaged-descent-index",
        "averaged-descent-leaves-ball",
        "averaged-descent-strict-convexity",
    ],
    full={"trials": 2000, "longest": 10000, "steps": 6400},
    least={"trials": 6, "longest": 25, "steps": 400},
)
def averaged_descent(run: Run, trials: int = 300, longest: int = 400, steps: int = 800) -> None:
    """For a convex function, the noisiest oracle that the theorem allows and the step 1/√K, the
    average of K iterates is within 1/√K of the best point.

    On least squares with a constant step the average of Polyak and Ruppert goes on to improve like
    1/K, at a rate that a linear equation gives, where the last iterate has stopped; without noise
    at the solution it is the other way round. All of that is computed in exact expectations. Look
    at which of the two curves wins, with noise and without.

    Args:
        trials: runs that gaps are averaged over.
        longest: run of the convex part, in steps.
        steps: of the part on Polyak and Ruppert's averages.
    """
    gaps = convex_rate(run, trials, longest)
    real_problem(run, trials)
    printed_theorem(run)
    recursion(run)
    errors = polyak_ruppert(run, steps)
    run.figure(
        "averages",
        lambda axes: plot(axes, gaps, errors),
        caption="Left: mean gap of the averaged iterate with its interval, which is mostly smaller "
        "than the mark. Middle and right: exact mean squared distance to the least squares "
        "solution of the last iterate and of the average, constant step.",
        grid=(1, 3),
        size=(13, 3.6),
    )


def smoothed_norm(center: Tensor, softness: float) -> tuple[Function, Direction]:
    r"""½√(‖θ-c‖² + ε²), convex and nearly half a norm, and its gradient, shorter than ½."""

    def r(theta: Tensor) -> Tensor:
        made: Tensor = ((theta - center).square().sum(-1) + softness**2).sqrt() / 2
        return made

    return r, lambda theta, _: (theta - center) / (4 * r(theta)[..., None])


def root_steps(count: int) -> list[float]:
    """The step 1/√K, K times."""
    return [1 / math.sqrt(count)] * count


def hardest_gap(run: Run, count: int, trials: int, *, goal: float = 1.0, noise: float = 0.0) -> Interval:
    """The averaged iterate on (3/2)|θ - 1|/√K with directions ±1, where the bound is nearly met.

    The slope is so small that noise and drift move the iterates equally far: the start is forgotten
    only at the end, and what noise adds is not averaged away.
    """
    slope = 1.5 / math.sqrt(count)
    direction = with_unit_noise(lambda theta, _: slope * (theta - goal).sign(), run.generator)
    if noise:
        direction = with_gaussian_noise(direction, noise, run.generator)
    start = torch.zeros(10 * trials, 1, dtype=torch.float64)
    mean = average_iterate(direction, start, root_steps(count))
    return mean_interval(slope * (mean - goal).abs()[:, 0], SURE)


def convex_rate(run: Run, trials: int, longest: int) -> list[tuple[int, Interval]]:
    center = torch.tensor([0.6, 0.0, 0.5], dtype=torch.float64)
    softness = 1e-3
    r, slope = smoothed_norm(center, softness)
    sizes = [round(10 * (longest / 10) ** (k / 6)) for k in range(7)]
    start = torch.zeros(trials, 3, dtype=torch.float64)

    def gap(count: int, projection: Function | None, height: float = 1.0) -> Interval:
        oracle = with_unit_noise(slope, run.generator)
        steps = [height * step for step in root_steps(count)]
        return mean_interval(r(average_iterate(oracle, start, steps, projection)) - softness / 2, SURE)

    free = {count: gap(count, None) for count in run.track(sizes, "averaged descent")}
    for count in sizes[::3]:
        hardest, promised = hardest_gap(run, count, trials), averaged_descent_bound(count)
        says = run.states(
            "A-24",
            r"\mathbb E\,r(\bar\Theta)-r(\theta^*)\le1/\sqrt K,\ \bar\Theta=\tfrac1K\sum_{k=0}^{K-1}\Theta^{(k)}",
        )
        says.at_most(
            [found.low for found in (free[count], gap(count, onto_ball(1.0)), hardest)],
            promised,
            where=f"K = {count}; ½√(‖θ-c‖² + 10⁻⁶) on ℝ³, the same projected onto the ball, and (3/2)|θ - 1|/√K with "
            f"directions ±1: lower ends of intervals of {100 * SURE:g} %",
        )
        says.fails(
            "directions longer than 1: Gaussian noise of deviation 5 added",
            hardest_gap(run, count, trials, noise=5.0).low,
        )
        says = run.states("A-24", r"\text{and in the worst case no less than half of it}")
        says.at_least(hardest, promised / 2, where=f"K = {count}: (3/2)|θ - 1|/√K with directions ±1")
    says = run.states(
        "A-24", r"\text{the best point has } \|\theta^*\|\le1:\ \mathbb E\,r(\bar\Theta)-r(\theta^*)\le1/\sqrt K"
    )
    says.at_most(hardest_gap(run, 100, trials), averaged_descent_bound(100), where="(3/2)|θ - 1|/√K, K = 100")
    says.fails("a best point at distance 5", hardest_gap(run, 100, trials, goal=5.0))
    rate = fit_slope(sizes, [g.estimate for g in free.values()])
    far = fit_slope(sizes, [gap(count, None, 1 / math.sqrt(count)).estimate for count in sizes])
    says = run.states("A-24", r"\text{the gap falls at least like } K^{-1/2}: \text{ slope on logarithmic scales}")
    says.at_most(rate, -0.5, where=f"r(θ) = ½√(‖θ-c‖² + 10⁻⁶), directions of length 1, K = {sizes[0]} to {sizes[-1]}")
    says.fails("steps of 1/K in place of 1/√K", far)
    return list(free.items())


def real_problem(run: Run, trials: int) -> None:
    """Logistic regression with inputs of norm 1, one example per step."""
    x = run.randn(50, 3)
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.sign(x[:, 0] + 0.3 * run.randn(50))

    def risk(theta: Tensor) -> Tensor:
        return logistic(theta[..., None, :], x, y).mean(-1)

    best = last_iterate(gradient_of(risk), torch.zeros(3, dtype=torch.float64), [4.0] * 400, onto_ball(1.0))
    count = 100
    chosen = draw_batches(50, 1, count, trials=(trials,), generator=run.generator)

    def gap(labels: Tensor) -> Interval:
        direction = minibatch_direction(logistic, [x, labels], chosen)
        start = torch.zeros(trials, 3, dtype=torch.float64)
        mean = average_iterate(direction, start, root_steps(count))
        return mean_interval(risk(mean) - risk(best), SURE)

    says = run.states(
        "A-24",
        r"\text{unbiased directions of norm at most 1: } \mathbb E\,r(\bar\Theta)-r(\theta^*)\le1/\sqrt K",
    )
    says.at_most(
        [gap(y).low, hardest_gap(run, count, trials).low],
        averaged_descent_bound(count),
        where=f"K = {count}; logistic regression with ‖x‖ = 1, one example per step, and (3/2)|θ - 1|/√K with ±1",
    )
    says.fails("biased directions: those of the other labels", gap(-y).low)


def printed_theorem(run: Run) -> None:
    # K = 1, r = 100 θ², D = ±0.9: both outcomes
    coin = torch.tensor([[0.9], [-0.9]], dtype=torch.float64)
    start = torch.zeros(2, 1, dtype=torch.float64)
    end = last_iterate(lambda _t, _k: coin, start, [1.0])
    run.refutes(
        "averaged-descent-index", r"\mathbb E\,r\bigl(\tfrac1K\sum_{k=1}^K\Theta^{(k)}\bigr)-r(\theta^*)\le1/\sqrt K"
    ).at_most(
        (100 * end.square()).mean(),
        averaged_descent_bound(1),
        where="K = 1, r(θ) = 100 θ², D = ±0.9 with probability 1/2, whose mean is r'(0) = 0",
    )
    first = average_iterate(lambda _t, _k: coin, start, [1.0])
    run.states("A-24", r"\text{the same with } \bar\Theta=\tfrac1K\sum_{k=0}^{K-1}\Theta^{(k)}").at_most(
        torch.stack([(100 * first.square()).mean(), (first - 1).abs().mean()]),
        averaged_descent_bound(1),
        where="K = 1: the average is the start; r(θ) = 100 θ², and |θ - 1|, where the bound is met",
    )
    path = trajectory(lambda t, _: -torch.ones_like(t), torch.zeros(1).double(), root_steps(100))
    run.refutes("averaged-descent-leaves-ball", r"\bar\Theta\in B_1(0), \text{ where } r \text{ is defined}").at_most(
        path[1:].mean(), 1, where="r(θ) = -θ, D = -1, K = 100"
    )
    scaled = []
    for count in (10, 100, 1000):
        height = 1 / math.sqrt(count)
        # far from its minimum the strictly convex function is as good as linear
        r, slope = smoothed_norm(torch.ones(1, dtype=torch.float64), 1e-6)
        path = trajectory(
            lambda t, k, a=height, g=slope: a * g(t, k),  # type: ignore[misc]
            torch.zeros(1, dtype=torch.float64),
            root_steps(count),
        )
        gap = height * (r(path[:-1].mean(0)) - 5e-7)
        scaled.append(float(gap) * math.sqrt(count))
    run.refutes(
        "averaged-descent-strict-convexity",
        r"r \text{ strictly convex} \implies \sqrt K\,(\mathbb E\,r(\bar\Theta)-r(\theta^*))\to0:"
        r" \text{ its value at } K=10^3 \text{ is below half of that at } K=10",
    ).at_most(scaled[-1], scaled[0] / 2, where="r = √((θ-1)² + ε²)/(2√K), the exact gradient as direction")


Errors = dict[str, LeastSquaresError]


def recursion(run: Run) -> None:
    """The running average, as torch keeps it."""
    x, y, iterations = run.randn(20, 3), run.randn(20), 50
    chosen = draw_batches(20, 1, iterations, generator=run.generator)
    direction = minibatch_direction(half_square, [x, y], chosen)
    points = trajectory(direction, torch.zeros(3).double(), [0.05] * iterations)
    layer = dense(points[:1])
    after, before = AveragedModel(layer), AveragedModel(layer)
    for k in range(iterations):
        for averaged, point in ((before, points[k]), (after, points[k + 1])):
            with torch.no_grad():
                layer.weight.copy_(point[None])
            averaged.update_parameters(layer)
    means = [m.module.get_parameter("weight").detach()[0] for m in (after, before)]
    says = run.states(
        "L-139",
        r"\bar x_{k+1}=\tfrac k{k+1}\bar x_k+\tfrac1{k+1}x_{k+1} \text{ is } \tfrac1K(x_1+\dots+"
        r"x_K): \text{ largest difference}",
    )
    says.equal(
        (means[0] - points[1:].mean(0)).abs().max(),
        within=1e-12,
        where="torch's AveragedModel, updated after each step",
    )
    says.fails("updated before each step", (means[1] - points[1:].mean(0)).abs().max())


def polyak_ruppert(run: Run, steps: int) -> Errors:
    """Last iterate and average on least squares, with noise at the solution and without."""
    n, d = 20, 3
    # eigenvalues of XᵀX of order 1: the last iterate comes to rest within the run
    x = torch.linalg.qr(run.randn(n, d)).Q * torch.tensor([1.0, 0.9, 0.8]).double()
    consistent = x @ run.randn(d)
    noisy = consistent + run.randn(n) / math.sqrt(n)
    eta = 0.4 / (n * float(x.square().sum(1).max()))
    start = torch.zeros(d, dtype=torch.float64)
    found = {
        name: expected_least_squares_error(x, y, start, [eta] * steps)
        for name, y in (("targets with noise", noisy), ("no noise at the solution", consistent))
    }
    with_noise, without = found.values()
    # how long the error of the last iterate is more than rounding
    clear = int((without.distance[1:] > 1e-12 * without.distance[0]).sum())
    says = run.states(
        "L-139", r"\text{targets with noise: } \mathbb E\|\bar x_K-x_\star\|^2\,/\,\mathbb E\|x_K-x_\star\|^2<1"
    )
    limit = stationary_least_squares_error(x, noisy, eta)
    # where the two limits cross
    soon = math.ceil(limit.averaged / limit.distance)
    settled = expected_least_squares_error(x, noisy, torch.linalg.lstsq(x, noisy).solution, [eta] * soon)
    says.below(
        [
            float(with_noise.averaged[-1] / with_noise.distance[-1]),
            float(settled.averaged[-1] / settled.distance[-1]),
        ],
        1.0,
        where=f"least squares, constant step, exact expectations; K = {steps} from 0, and K = {soon} from x⋆, "
        "where the limits of both cross",
    )
    says.fails(
        "no noise at the solution: the last iterate has converged, the average drags its past",
        without.averaged[clear - 1] / without.distance[clear],
    )
    counts = [round(steps / 2 ** (k / 3)) for k in range(9, -1, -1)]

    def exponent(values: Tensor) -> Interval:
        return fit_slope(counts, [abs(k * float(values[k - 1]) / limit.averaged - 1) for k in counts])

    rate, stuck = exponent(with_noise.averaged), exponent(with_noise.distance[1:])
    says = run.states(
        "L-139",
        r"K\,\mathbb E\|\bar x_K-x_\star\|^2\to\operatorname{tr}H^{-1}\Sigma H^{-1}:"
        r" \text{ exponent of the relative distance}",
    )
    says.slope(
        rate,
        -1.0,
        0.02,
        against=(-2.0, -0.5),
        where=f"K = {counts[0]} to {counts[-1]}, exact expectations; Σ, the covariance of the "
        "noise at rest, from a linear equation",
    )
    says.fails("the last iterate", stuck)
    return found


def plot(axes: Any, gaps: list[tuple[int, Interval]], errors: Errors) -> None:
    left, *others = axes[0]
    counts, found = [c for c, _ in gaps], [g for _, g in gaps]
    left.loglog(counts, [c**-0.5 for c in counts], "--", color="0.4", label=r"bound $1/\sqrt{K}$")
    left.errorbar(
        counts,
        [g.estimate for g in found],
        yerr=error_bars(found),
        fmt="o-",
        color=COLORS[0],
        markersize=4,
        label="averaged iterate",
    )
    left.set(xlabel="iterations K", ylabel="gap to the best value")
    left.set_title("convex function, unit directions")
    left.legend()
    for ax, (name, path) in zip(others, errors.items(), strict=True):
        times = range(1, len(path.averaged) + 1)
        # below that there is only rounding
        shown = [v if v > 1e-14 else math.nan for v in path.distance[1:].tolist()]
        ax.loglog(times, shown, color=COLORS[1], label="last iterate")
        ax.loglog(times, path.averaged, color=COLORS[0], label="average")
        ax.set(xlabel="iterations K", ylabel="mean squared distance", title=name)
        ax.minorticks_off()
        ax.legend(loc="lower left")
