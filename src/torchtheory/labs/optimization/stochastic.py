"""Stochastic gradient descent: an unbiased gradient, the right step, and an average."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    StepLR,
)
from torch.optim.swa_utils import AveragedModel

from torchtheory.core.figure import COLOURS
from torchtheory.core.intervals import Interval, fit_slope, mean_interval
from torchtheory.core.lab import lab
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.optimization.convergence import averaged_descent_bound
from torchtheory.optimization.descent import (
    Function,
    average_iterate,
    descend,
    gradient_of,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.minibatch import (
    draw_batches,
    minibatch_direction,
    minibatch_gradient,
)
from torchtheory.optimization.noise import accumulated_variance, with_unit_noise
from torchtheory.training.projection import onto_ball
from torchtheory.training.schedules import PowerLaw, Schedule, robbins_monro


@lab(
    "stochastic-gradient-descent",
    room="optimization",
    covers=["N-52", "S-21", "S-22", "A-23", "A-24", "L-135", "L-136", "L-137"],
    title="Stochastic gradient descent: unbiased steps, shrinking steps, averaged steps",
    errata=[
        "robbins-monro-finite-sum",
        "robbins-monro-necessary",
        "averaged-descent-index",
        "averaged-descent-leaves-ball",
        "averaged-descent-strict-convexity",
    ],
    full={"trials": 2000, "longest": 10000, "horizon": 1000},
)
def stochastic(run: Run, trials: int = 400, longest: int = 500, horizon: int = 200) -> None:
    """A random subset of the examples gives the full gradient on average, exactly, and its variance
    falls like one over the size of the batch; an epoch of a random order does not, given what it
    has shown so far.

    On a noisy quadratic the step 1/i is the running mean, a constant step stops at a definite
    variance, and a geometric one does not forget its start. For a convex function, the noisiest
    oracle that the theorem allows and the step 1/√K, the average of K iterates is within 1/√K of
    the best point. Look at the gap beside its bound, and at the variance of the three schedules.
    """
    unbiased(run)
    variances = batch_variance(run, trials)
    same_as_torch(run)
    robbins_monro_conditions(run)
    spread = noisy_quadratic(run, trials, horizon)
    interpolation(run)
    gaps = convex_rate(run, trials, longest)
    printed_theorem(run)
    run.figure(
        "noise-and-rate",
        lambda axes: plot_all(axes, variances, spread, gaps),
        caption="Left: variance of the mini-batch gradient. Middle: error of three schedules on a "
        "noisy quadratic (σ = 1). Right: mean gap of the averaged iterate with its 99% interval.",
        grid=(1, 3),
        size=(13, 3.6),
    )


def half_square(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Least squares on one example."""
    return ((theta * x).sum(-1) - y).square() / 2


def unbiased(run: Run) -> None:
    """Every subset of a small sample, and every order of it."""
    samples, size = 8, 3
    x, y, theta = run.randn(samples, 4), run.randn(samples), run.randn(4)
    full = minibatch_gradient(half_square, theta, x, y)
    subsets = [
        torch.tensor(list(itertools.combinations(range(samples), m))) for m in range(1, samples + 1)
    ]

    def mean_gradient(chosen: Tensor) -> Tensor:
        each = minibatch_gradient(half_square, theta.expand(len(chosen), -1), x[chosen], y[chosen])
        return each.mean(0)

    # the control's sampler prefers the examples with large residuals: it leaves the smallest out
    order = ((x @ theta - y).abs()).argsort()
    run.claim(
        "A-23, S-21, N-52, L-136, L-137",
        r"\text{mean of } \tfrac1{m'}\sum_{z\in S'}\nabla\ell(\theta,z) \text{ over all } S'"
        r" \text{ of size } m' = \nabla r(\theta)",
        promised=full.expand(samples, -1),
        relation="==",
        measured=torch.stack([mean_gradient(s) for s in subsets]),
        tolerance=1e-12,
        reason="all subsets of 8 examples; m' = 1, the average of single gradients, to m' = 8",
        control=Control(
            "only the harder half is drawn from",
            mean_gradient(order[samples // 2 :][subsets[0][: samples // 2]]),
            promised=full,
        ),
    )
    # given the first n - 1 examples of an epoch the last one is no longer random
    last = minibatch_gradient(half_square, theta.expand(samples, -1), x[:, None], y[:, None])
    remaining = torch.stack(
        [last[list(left)].mean(0) for left in itertools.combinations(range(samples), size)]
    )
    run.claim(
        "A-23",
        r"\mathbb E[D^{(k)}\mid\Theta^{(k-1)}]=\nabla r(\Theta^{(k-1)}) \text{ for independent"
        r" batches: largest deviation}",
        promised=0,
        relation="==",
        measured=(mean_gradient(subsets[0]) - full).norm(),
        tolerance=1e-12,
        control=Control(
            "epoch sampling: the mean over the 3 examples an epoch has not shown yet",
            (remaining - full).norm(dim=1).max(),
        ),
    )
    run.claim(
        "A-23",
        r"\text{epoch sampling is unbiased before the epoch has shown anything:"
        r" mean over all pasts}",
        promised=full,
        relation="==",
        measured=remaining.mean(0),
        tolerance=1e-12,
    )
    counted: list[int] = []

    def counting(point: Tensor, a: Tensor, b: Tensor) -> Tensor:
        counted.append(b.numel())
        return half_square(point, a, b)

    for n in (10, 1000, 100_000):
        data = [run.randn(n, 4), run.randn(n)]
        steps = draw_batches(n, 1, 3, generator=run.generator)
        list(descend(minibatch_direction(counting, data, steps), theta, [0.1] * 3))
    stochastic_evaluations = list(counted)
    counted.clear()
    minibatch_gradient(counting, theta, *data)
    run.claim(
        "N-52",
        r"\text{gradients computed in a step, for } s=10,\,10^3,\,10^5",
        promised=1,
        relation="==",
        measured=stochastic_evaluations,
        control=Control("the full gradient", counted),
    )


def batch_variance(run: Run, trials: int) -> tuple[list[int], Tensor, float]:
    samples, sizes = 64, [1, 2, 4, 8, 16, 32, 64]
    x, y, theta = run.randn(samples, 4), run.randn(samples), run.randn(4)
    each = minibatch_gradient(half_square, theta.expand(samples, -1), x[:, None], y[:, None])
    full = each.mean(0)
    single = float((each - full).square().sum(1).mean())

    def measured(sampling: Any) -> Tensor:
        rows = []
        for m in sizes:
            chosen = draw_batches(
                samples, m, 1, trials=(10 * trials,), sampling=sampling, generator=run.generator
            )
            rows.append((each[chosen[:, 0]].mean(1) - full).square().sum(1))
        return torch.stack(rows)

    drawn = measured("replacement")
    subset = measured("subset")
    rate = fit_slope(sizes, drawn.mean(1))
    copies = fit_slope(sizes, measured_copies(run, each, full, sizes, 10 * trials))
    run.claim(
        "N-52, S-21, L-137",
        r"\mathrm{Var}\,\hat g\propto1/m: \text{ slope on logarithmic scales}",
        promised=-1,
        relation="slope",
        measured=rate.estimate,
        interval=rate,
        reason=f"{10 * trials} batches with replacement for each m = 1, 2, 4, ..., 64",
        control=Control(
            "the draws are not independent: one example, m times",
            copies.estimate,
            interval=copies,
        ),
    )
    eight = mean_interval(drawn[3])
    alone = mean_interval(drawn[0])
    run.claim(
        "N-52, S-21, L-137",
        r"m=8:\ \mathbb E\|\hat g-\nabla r\|^2=\sigma^2/8",
        promised=single / 8,
        relation="~",
        measured=eight.estimate,
        interval=eight,
        control=Control("m = 1", alone.estimate, interval=alone),
    )
    run.claim(
        "S-21, A-23, L-137",
        r"\text{without replacement: } \mathbb E\|\hat g-\nabla r\|^2=\frac{\sigma^2}m"
        r"\frac{n-m}{n-1}",
        promised=single / 32 * (samples - 32) / (samples - 1),
        relation="~",
        measured=float(subset[5].mean()),
        interval=mean_interval(subset[5]),
        reason="m = 32 of n = 64",
        control=Control(
            "with replacement", float(drawn[5].mean()), interval=mean_interval(drawn[5])
        ),
    )
    return sizes, torch.stack([drawn.mean(1), subset.mean(1)]), single


def measured_copies(
    run: Run, each: Tensor, full: Tensor, sizes: list[int], trials: int
) -> list[float]:
    """Variance of the gradient when a batch is one example again and again."""
    found = []
    for m in sizes:
        chosen = draw_batches(len(each), 1, 1, trials=(trials,), generator=run.generator)
        copies = chosen[:, 0].expand(-1, m)
        found.append(float((each[copies].mean(1) - full).square().sum(1).mean()))
    return found


def same_as_torch(run: Run) -> None:
    """The algorithm of the slides, torch's optimiser on the same batches, and the average."""
    samples, steps, size = 24, 40, 6
    x, y, start = run.randn(samples, 3), run.randn(samples), run.randn(3)
    rates = [0.1 / math.sqrt(k + 1) for k in range(steps)]
    chosen = draw_batches(samples, size, steps, generator=run.generator)
    direction = minibatch_direction(half_square, [x, y], chosen)
    path = trajectory(direction, start, rates)
    shuffled = minibatch_direction(half_square, [x, y], chosen.flip(0))

    layer = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(start[None])
    averaged = AveragedModel(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rates[0])
    schedule = LambdaLR(optimizer, lambda k: 1 / math.sqrt(k + 1))
    for k in range(steps):
        averaged.update_parameters(layer)
        optimizer.zero_grad()
        batch = chosen[k]
        loss = (layer(x[batch])[:, 0] - y[batch]).square().mean() / 2
        loss.backward()
        optimizer.step()
        schedule.step()
    run.claim(
        "S-21, A-23, N-52, L-135",
        r"\theta\leftarrow\theta-\epsilon_k\hat g \text{ is torch.optim.SGD with the same batches"
        r" and schedule: largest difference}",
        promised=0,
        relation="==",
        measured=(layer.weight.detach()[0] - path[-1]).abs().max(),
        tolerance=1e-12,
        control=Control(
            "other batches",
            (last_iterate(shuffled, start, rates) - layer.weight.detach()[0]).abs().max(),
        ),
    )
    mean = averaged.module.get_parameter("weight").detach()[0]
    run.claim(
        "A-23, A-24",
        r"\text{torch's AveragedModel before each step: } \bar\Theta=\frac1K\sum_{k=0}^{K-1}"
        r"\Theta^{(k)}: \text{ largest difference}",
        promised=0,
        relation="==",
        measured=(mean - path[:-1].mean(0)).abs().max(),
        tolerance=1e-12,
        control=Control("updated after each step", (mean - path[1:].mean(0)).abs().max()),
    )
    whole = draw_batches(samples, samples, steps, generator=run.generator)
    full = minibatch_direction(half_square, [x, y], torch.arange(samples).expand(steps, -1))
    again = draw_batches(samples, samples, steps, sampling="replacement", generator=run.generator)

    def apart(batches: Tensor) -> Tensor:
        ends = [
            last_iterate(d, start, rates)
            for d in (minibatch_direction(half_square, [x, y], batches), full)
        ]
        return (ends[0] - ends[1]).abs().max()

    run.claim(
        "S-21, A-23",
        r"m=n \text{ without replacement is gradient descent: largest difference}",
        promised=0,
        relation="==",
        measured=apart(whole),
        tolerance=1e-12,
        control=Control("with replacement", apart(again)),
    )


def robbins_monro_conditions(run: Run) -> None:
    exponents = [0.0, 0.25, 0.5, 0.51, 0.75, 1.0, 1.01, 1.5, 2.0]
    truth = [0.5 < p <= 1 for p in exponents]

    def power(p: float) -> Schedule:
        return lambda k: 3.0 * (k + 1) ** -p

    exact = [robbins_monro(PowerLaw(p)).satisfied for p in exponents]
    fitted = [robbins_monro(power(p)).satisfied for p in exponents]
    run.claim(
        "S-22",
        r"c/i^p \text{ satisfies } \sum\eta_i=\infty,\ \sum\eta_i^2<\infty \text{ if and only if }"
        r" \tfrac12<p\le1: \text{ wrong verdicts}",
        promised=0,
        relation="==",
        measured=[
            sum(a is not b for a, b in zip(exact, truth, strict=True)),
            sum(a is not b for a, b in zip(fitted, truth, strict=True)),
        ],
        reason="decided exactly, and from a fit of the tail; p = 0, 0.25, 0.5, 0.51, ..., 2",
        control=Control(
            "the tail is replaced by partial sums up to 1000 against 100",
            sum(
                (_partial(p, 1) > 100 and _partial(p, 2) < 100) is not wanted
                for p, wanted in zip(exponents, truth, strict=True)
            ),
        ),
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedulers: list[tuple[str, LRScheduler | Schedule, bool, bool]] = [
        ("constant", ConstantLR(optimizer, 1.0), True, False),
        ("exponential, 0.99 a step", ExponentialLR(optimizer, 0.99), False, True),
        ("halved every 100 steps", StepLR(optimizer, 100, 0.5), False, True),
        ("cosine, annealed again and again", CosineAnnealingLR(optimizer, 100), True, False),
        ("cosine, then 0", lambda k: 1 + math.cos(math.pi * min(k / 100, 1.0)), False, True),
        ("1/t", LambdaLR(optimizer, PowerLaw(1.0)), True, True),
        ("1/√t", LambdaLR(optimizer, PowerLaw(0.5)), True, False),
        ("0.1/(1 + 0.01 t)", lambda k: 0.1 / (1 + 0.01 * k), True, True),
        ("1/(t log² t)", lambda k: 1 / ((k + 2) * math.log(k + 2) ** 2), False, True),
    ]
    rows, wrong = [], 0
    for name, schedule, diverges, converge in schedulers:
        found = robbins_monro(schedule)
        wrong += (found.sum_diverges, found.squares_converge) != (diverges, converge)
        rows.append(
            (name, found.exponent.estimate, found.sum_diverges, found.squares_converge, found.exact)
        )
    run.claim(
        "S-22",
        r"\text{constant fails the second condition, } cq^i \text{ the first, and so on:"
        r" wrong verdicts on torch's schedulers and others}",
        promised=0,
        relation="==",
        measured=wrong,
    )
    run.table(
        "schedules",
        ["schedule", "p in t⁻ᵖ", "Σ η = ∞", "Σ η² < ∞", "exact"],
        rows,
        caption="The conditions of Robbins and Monro",
    )
    run.erratum(
        "robbins-monro-finite-sum",
        r"\sum_{i=1}^k\eta_i=\infty",
        promised=math.inf,
        relation="==",
        measured=sum(1 / i for i in range(1, 10**5 + 1)),
        reason="η = 1/i, which satisfies the conditions, and k = 10⁵",
    )


def _partial(exponent: float, power: int) -> float:
    return sum(math.pow(i, -exponent * power) for i in range(1, 1001))


def noisy_quadratic(run: Run, trials: int, horizon: int) -> dict[str, Tensor]:
    """θ ← θ - η(θ - θ* + ξ): three schedules, the same noise."""
    goal, start, runs = 2.0, 5.0, 10 * trials
    xi = run.randn(horizon, runs)

    def direction(theta: Tensor, k: int) -> Tensor:
        return theta - goal + xi[k][:, None]

    def path(steps: list[float]) -> Tensor:
        at = torch.full((runs, 1), start, dtype=torch.float64)
        return trajectory(direction, at, steps)[..., 0]

    times = range(1, horizon + 1)
    shrinking = path([1 / i for i in times])
    constant = path([0.2] * horizon)
    geometric = path([0.5**i for i in times])
    means = goal - xi.cumsum(0) / torch.arange(1, horizon + 1).double()[:, None]
    run.claim(
        "S-22",
        r"\eta_i=1/i:\ \theta_i=\theta^\star-\tfrac1i\sum_{j\le i}\xi_j:"
        r" \text{ largest difference}",
        promised=0,
        relation="==",
        measured=(shrinking[1:] - means).abs().max(),
        tolerance=1e-11,
        control=Control("constant η = 0.2", (constant[1:] - means).abs().max()),
    )

    def error(paths: Tensor) -> Interval:
        return mean_interval((paths[-1] - goal).square())

    run.claim(
        "S-22",
        r"\eta_i=1/i:\ \mathbb E(\theta_i-\theta^\star)^2=\sigma^2/i",
        promised=1 / horizon,
        relation="~",
        measured=error(shrinking).estimate,
        interval=error(shrinking),
        reason=f"i = {horizon}, {runs} runs",
        control=Control(
            "constant η = 0.2: Σ η² = ∞", error(constant).estimate, interval=error(constant)
        ),
    )
    run.claim(
        "S-22",
        r"\text{constant } \eta:\ \mathbb E(\theta-\theta^\star)^2\to\frac\eta{2-\eta}\sigma^2",
        promised=accumulated_variance(1.0, 0.2, 1.0),
        relation="~",
        measured=error(constant).estimate,
        interval=error(constant),
        control=Control("η = 1/i", error(shrinking).estimate, interval=error(shrinking)),
    )
    left = math.prod(1 - 0.5**i for i in times) * (start - goal)
    bias = mean_interval(geometric[-1] - goal)
    none = mean_interval(shrinking[-1] - goal)
    run.claim(
        "S-22",
        r"\eta_i=2^{-i}:\ \mathbb E\theta_\infty-\theta^\star=\prod_i(1-2^{-i})\,"
        r"(\theta_0-\theta^\star)\ne0",
        promised=left,
        relation="~",
        measured=bias.estimate,
        interval=bias,
        reason="Σ η < ∞: the start is never forgotten",
        control=Control("η = 1/i", none.estimate, interval=none),
    )
    return {
        name: (paths[1:] - goal).square().mean(1)
        for name, paths in (
            (r"$\eta=1/i$", shrinking),
            (r"$\eta=0.2$", constant),
            (r"$\eta=2^{-i}$", geometric),
        )
    }


def interpolation(run: Run) -> None:
    """One parameter fits every example: a constant step converges."""
    x, goal = run.randn(30, 3), run.randn(3)
    x = x / x.norm(dim=1, keepdim=True)
    chosen = draw_batches(30, 1, 800, trials=(20,), generator=run.generator)
    direction = minibatch_direction(half_square, [x, x @ goal], chosen)
    start = torch.zeros(20, 3, dtype=torch.float64)
    end = last_iterate(direction, start, [1.0] * 800)
    run.erratum(
        "robbins-monro-necessary",
        r"\sum\eta_i^2=\infty \implies \text{no convergence: } \|\theta_{800}-\theta^\star\|\ge"
        r"10^{-6}\|\theta_0-\theta^\star\|",
        promised=1e-6,
        relation=">=",
        measured=(end - goal).norm(dim=1) / goal.norm(),
        reason="least squares without noise, η = 1, one example a step, 20 runs",
    )


def smoothed_norm(centre: Tensor, softness: float) -> Function:
    r"""½√(‖θ-c‖² + ε²): convex, with gradients shorter than ½, nearly half a norm."""

    def r(theta: Tensor) -> Tensor:
        made: Tensor = ((theta - centre).square().sum(-1) + softness**2).sqrt() / 2
        return made

    return r


def root_steps(count: int) -> list[float]:
    """The step 1/√K, K times."""
    return [1 / math.sqrt(count)] * count


def convex_rate(run: Run, trials: int, longest: int) -> list[tuple[int, Interval]]:
    centre = torch.tensor([0.6, 0.0, 0.5], dtype=torch.float64)
    softness = 1e-3
    r = smoothed_norm(centre, softness)
    sizes = [round(10 * (longest / 10) ** (k / 6)) for k in range(7)]

    def gaps(counts: list[int], projection: Function | None) -> dict[int, Interval]:
        found = {}
        for count in run.track(counts, "averaged descent"):
            oracle = with_unit_noise(gradient_of(r), run.generator)
            start = torch.zeros(trials, 3, dtype=torch.float64)
            mean = average_iterate(oracle, start, root_steps(count), projection)
            found[count] = mean_interval(r(mean) - softness / 2)
        return found

    free, inside = gaps(sizes, None), gaps(sizes[::3], onto_ball(1.0))

    def stuck(count: int) -> Interval:
        """Steps of 1 instead of 1/√K."""
        oracle = with_unit_noise(gradient_of(r), run.generator)
        start = torch.zeros(trials, 3, dtype=torch.float64)
        return mean_interval(r(last_iterate(oracle, start, [1.0] * count)) - softness / 2)

    last = sizes[-1]
    broken = stuck(100)
    for intervals, how in ((free, "r convex on all of ℝ³"), (inside, "projected onto the ball")):
        for count, found in intervals.items():
            if count in inside:
                run.claim(
                    "A-24",
                    r"\mathbb E\,r(\bar\Theta)-r(\theta^*)\le1/\sqrt K,\ \bar\Theta=\tfrac1K"
                    r"\sum_{k=0}^{K-1}\Theta^{(k)}",
                    promised=averaged_descent_bound(count),
                    relation="<=",
                    measured=found.estimate,
                    interval=found,
                    reason=f"{how}; K = {count}, {trials} runs",
                    control=Control(
                        "the last of 100 iterates with steps of length 1",
                        broken.estimate,
                        promised=averaged_descent_bound(100),
                        interval=broken,
                    ),
                )
    rate = fit_slope(sizes, [g.estimate for g in free.values()])
    slow = [stuck(count) for count in (10, 30, 100, 300)]
    flat = fit_slope([10, 30, 100, 300], [g.estimate for g in slow])
    run.claim(
        "A-24",
        r"\text{the gap falls at least like } K^{-1/2}: \text{ slope on logarithmic scales}",
        promised=-0.5,
        relation="<=",
        measured=rate.estimate,
        interval=rate,
        reason=f"r(θ) = ½√(‖θ-c‖² + 10⁻⁶), directions of length 1, K = {sizes[0]} to {last}",
        control=Control("steps of length 1 and the last iterate", flat.estimate, interval=flat),
    )
    # the theorem on a real problem: logistic regression with inputs of norm 1, one example a step
    x = run.randn(50, 3)
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.sign(x[:, 0] + 0.3 * run.randn(50))

    def logistic(theta: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return nn.functional.softplus(-b * (theta * a).sum(-1))

    def risk(theta: Tensor) -> Tensor:
        return logistic(theta[..., None, :], x, y).mean(-1)

    best = last_iterate(
        gradient_of(risk), torch.zeros(3, dtype=torch.float64), [4.0] * 400, onto_ball(1.0)
    )
    count = 100
    chosen = draw_batches(50, 1, count, trials=(trials,), generator=run.generator)

    def gap(labels: Tensor) -> Interval:
        direction = minibatch_direction(logistic, [x, labels], chosen)
        start = torch.zeros(trials, 3, dtype=torch.float64)
        mean = average_iterate(direction, start, root_steps(count))
        return mean_interval(risk(mean) - risk(best))

    real, biased = gap(y), gap(-y)
    run.claim(
        "A-24, N-52",
        r"\text{logistic regression, } \|x\|=1, \text{ one example a step: } \mathbb E\,"
        r"r(\bar\Theta)-r(\theta^*)\le1/\sqrt K",
        promised=averaged_descent_bound(count),
        relation="<=",
        measured=real.estimate,
        interval=real,
        reason="K = 100",
        control=Control(
            "biased directions: those of the other labels", biased.estimate, interval=biased
        ),
    )
    return list(free.items())


def printed_theorem(run: Run) -> None:
    # K = 1, r = 100 θ², D = ±0.9: both outcomes
    coin = torch.tensor([[0.9], [-0.9]], dtype=torch.float64)
    start = torch.zeros(2, 1, dtype=torch.float64)
    end = last_iterate(lambda _t, _k: coin, start, [1.0])
    run.erratum(
        "averaged-descent-index",
        r"\mathbb E\,r\bigl(\tfrac1K\sum_{k=1}^K\Theta^{(k)}\bigr)-r(\theta^*)\le1/\sqrt K",
        promised=averaged_descent_bound(1),
        relation="<=",
        measured=(100 * end.square()).mean(),
        reason="K = 1, r(θ) = 100 θ², D = ±0.9 with probability 1/2, whose mean is r'(0) = 0",
    )
    run.claim(
        "A-24",
        r"\text{the same with } \bar\Theta=\tfrac1K\sum_{k=0}^{K-1}\Theta^{(k)}",
        promised=averaged_descent_bound(1),
        relation="<=",
        measured=(100 * average_iterate(lambda _t, _k: coin, start, [1.0]).square()).mean(),
        reason="K = 1: the average is the start",
    )
    path = trajectory(lambda t, _: -torch.ones_like(t), torch.zeros(1).double(), root_steps(100))
    run.erratum(
        "averaged-descent-leaves-ball",
        r"\bar\Theta\in B_1(0), \text{ where } r \text{ is defined}",
        promised=1,
        relation="<=",
        measured=path[1:].mean(),
        reason="r(θ) = -θ, D = -1, K = 100",
    )
    scaled = []
    for count in (10, 100, 1000):
        height = 1 / math.sqrt(count)
        # far from its minimum the strictly convex function is as good as linear
        r = smoothed_norm(torch.ones(1, dtype=torch.float64), 1e-6)
        slope = gradient_of(r)
        path = trajectory(
            lambda t, k, a=height, g=slope: a * g(t, k),  # type: ignore[misc]
            torch.zeros(1, dtype=torch.float64),
            root_steps(count),
        )
        gap = height * (r(path[1:].mean(0)) - 5e-7)
        scaled.append(float(gap) * math.sqrt(count))
    run.erratum(
        "averaged-descent-strict-convexity",
        r"r \text{ strictly convex} \implies \sqrt K\,(\mathbb E\,r(\bar\Theta)-r(\theta^*))\to0:"
        r" \text{ its value at } K=10^3 \text{ is below half of that at } K=10",
        promised=scaled[0] / 2,
        relation="<=",
        measured=scaled[-1],
        reason="r = √((θ-1)² + ε²)/(2√K), the exact gradient as direction",
    )


def plot_all(
    axes: Any,
    variances: tuple[list[int], Tensor, float],
    spread: dict[str, Tensor],
    gaps: list[tuple[int, Interval]],
) -> None:
    left, middle, right = axes[0]
    sizes, measured, single = variances
    left.loglog(sizes, [single / m for m in sizes], "--", color="0.4", label=r"$\sigma^2/m$")
    left.loglog(sizes, measured[0], "o", color=COLOURS[0], label="with replacement")
    left.loglog(sizes[:-1], measured[1][:-1], "s", color=COLOURS[1], label="subsets")
    left.set(xlabel="batch size m", ylabel="variance of the gradient", title="n = 64 examples")
    left.legend()
    for (name, values), colour in zip(spread.items(), COLOURS, strict=False):
        middle.loglog(range(1, len(values) + 1), values, color=colour, label=name)
    times = range(1, len(next(iter(spread.values()))) + 1)
    middle.loglog(times, [1 / i for i in times], "--", color="0.4", label=r"$\sigma^2/i$")
    middle.set(xlabel="step i", ylabel=r"mean of $(\theta_i-\theta^\star)^2$", title="schedules")
    middle.legend(loc="lower left")
    counts = [c for c, _ in gaps]
    right.loglog(counts, [c**-0.5 for c in counts], "--", color="0.4", label=r"$1/\sqrt{K}$")
    right.errorbar(
        counts,
        [g.estimate for _, g in gaps],
        yerr=[[g.estimate - g.low for _, g in gaps], [g.high - g.estimate for _, g in gaps]],
        fmt="o-",
        color=COLOURS[0],
        markersize=4,
        label="averaged iterate",
    )
    right.set(xlabel="iterations K", ylabel="gap", title="convex function, unit directions")
    right.legend()
