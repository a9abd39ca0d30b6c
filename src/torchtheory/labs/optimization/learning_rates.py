"""Learning rates: the conditions of Robbins and Monro, what they are for, and what they are not."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    StepLR,
)

from torchtheory.labs.engine import Interval, Run, lab, mean_interval
from torchtheory.labs.optimization.example_losses import half_square
from torchtheory.optimization.descent.iterates import last_iterate, trajectory
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction
from torchtheory.optimization.descent.noise import accumulated_variance
from torchtheory.training.optimizers.schedules import PowerLaw, Schedule, robbins_monro

#: Confidence of each statistical comparison.
SURE = 0.9999


@lab(
    "robbins-monro",
    room="optimization",
    covers=["S-22"],
    title="The conditions of Robbins and Monro: what they are for, and when they are not needed",
    errata=["robbins-monro-finite-sum", "robbins-monro-necessary"],
    full={"trials": 2000, "horizon": 1000},
    least={"trials": 20, "horizon": 40},
)
def learning_rates(run: Run, trials: int = 400, horizon: int = 200) -> None:
    """A learning rate is to sum up to infinity, and its squares are not: decided for power laws,
    for the schedulers of torch and for others.

    On a noisy quadratic the step 1/i, which satisfies both, is the running mean; a constant step
    stops at a definite variance; a geometric one does not forget its start. Without noise at the
    solution a constant step converges all the same: the conditions are not necessary. Look at
    where each of the three schedules ends.

    Args:
        trials: runs with noise; some claims take ten times as many.
        horizon: steps of a run.
    """
    conditions(run)
    spread = noisy_quadratic(run, trials, horizon)
    interpolation(run)
    times = range(1, horizon + 1)
    limit = accumulated_variance(1.0, 0.2, 1.0)
    run.curves(
        "schedules",
        times,
        spread,
        {r"$\sigma^2/i$": [1 / i for i in times], r"$\eta\sigma^2/(2-\eta)$ at 0.2": limit},
        axes=("step i", r"mean of $(\theta_i-\theta^\star)^2$"),
        log="xy",
        caption="Mean squared error of three schedules on a noisy quadratic (σ = 1), "
        f"{10 * trials} runs. The step 1/i follows σ²/i.",
    )


def conditions(run: Run) -> None:
    """Verdicts on power laws, on torch's schedulers and on others."""
    exponents = [0.0, 0.25, 0.5, 0.51, 0.75, 1.0, 1.01, 1.5, 2.0]
    truth = [0.5 < p <= 1 for p in exponents]

    def power(p: float) -> Schedule:
        return lambda k: 3.0 * (k + 1) ** -p

    exact = [robbins_monro(PowerLaw(p)).satisfied for p in exponents]
    fitted = [robbins_monro(power(p)).satisfied for p in exponents]
    says = run.states(
        "S-22",
        r"c/i^p \text{ satisfies } \sum\eta_i=\infty,\ \sum\eta_i^2<\infty \text{ if and only if }"
        r" \tfrac12<p\le1: \text{ wrong verdicts}",
    )
    says.equal(
        [
            sum(a is not b for a, b in zip(exact, truth, strict=True)),
            sum(a is not b for a, b in zip(fitted, truth, strict=True)),
        ],
        where="decided exactly, and from a fit of the tail; p = 0, 0.25, 0.5, 0.51, ..., 2",
    )
    says.fails(
        "the tail is replaced by partial sums up to 1000 against 100",
        sum(
            (_partial(p, 1) > 100 and _partial(p, 2) < 100) is not wanted
            for p, wanted in zip(exponents, truth, strict=True)
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
        rows.append((name, found.exponent.estimate, found.sum_diverges, found.squares_converge, found.exact))
    says = run.states(
        "S-22",
        r"\text{constant fails the second condition, } cq^i \text{ the first, and so on:"
        r" wrong verdicts on torch's schedulers and others}",
    )
    says.equal(wrong)
    run.table(
        "schedules",
        ["schedule", "p in t⁻ᵖ", "Σ η = ∞", "Σ η² < ∞", "exact"],
        rows,
        caption="The conditions of Robbins and Monro",
    )
    run.refutes("robbins-monro-finite-sum", r"\sum_{i=1}^k\eta_i=\infty").equal(
        sum(1 / i for i in range(1, 10**5 + 1)), math.inf, where="η = 1/i, which satisfies the conditions, and k = 10⁵"
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
    says = run.states(
        "S-22", r"\eta_i=1/i:\ \theta_i=\theta^\star-\tfrac1i\sum_{j\le i}\xi_j: \text{ largest difference}"
    )
    says.equal((shrinking[1:] - means).abs().max(), within=1e-11)
    says.fails("constant η = 0.2", (constant[1:] - means).abs().max())

    def error(paths: Tensor) -> Interval:
        return mean_interval((paths[-1] - goal).square(), SURE)

    def late_error(paths: Tensor) -> Interval:
        """The same over the second half of every run, where a constant step has come to rest."""
        return mean_interval((paths[horizon // 2 :] - goal).square().mean(0), SURE)

    says = run.states("S-22", r"\eta_i=1/i:\ \mathbb E(\theta_i-\theta^\star)^2=\sigma^2/i")
    says.mean(error(shrinking), 1 / horizon, against=(0.5 / horizon, 2 / horizon), where=f"i = {horizon}, {runs} runs")
    says.fails("constant η = 0.2: Σ η² = ∞", error(constant))
    says = run.states("S-22", r"\text{constant } \eta:\ \mathbb E(\theta-\theta^\star)^2\to\frac\eta{2-\eta}\sigma^2")
    says.mean(
        late_error(constant),
        accumulated_variance(1.0, 0.2, 1.0),
        against=(0.2 / 2, 0.2 / (2 + 0.2), 0.2),  # the diffusion limit, a sign, a forgotten 2
        where=f"η = 0.2, the second half of {horizon} steps, {runs} runs",
    )
    says.fails("η = 1/i", late_error(shrinking))
    left = math.prod(1 - 0.5**i for i in times) * (start - goal)
    says = run.states(
        "S-22", r"\eta_i=2^{-i}:\ \mathbb E\theta_\infty-\theta^\star=\prod_i(1-2^{-i})\,(\theta_0-\theta^\star)\ne0"
    )
    says.mean(
        geometric[-1] - goal,
        left,
        against=(0.0, (start - goal) / 2),  # all is forgotten; all but the first step
        confidence=SURE,
        where="Σ η < ∞: the start is never forgotten",
    )
    says.fails("η = 1/i", shrinking[-1] - goal)
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
    says = run.refutes(
        "robbins-monro-necessary",
        r"\sum\eta_i^2=\infty \implies \text{no convergence: } \|\theta_{800}-\theta^\star\|\ge"
        r"10^{-6}\|\theta_0-\theta^\star\|",
    )
    says.at_least(
        ((end - goal).norm(dim=1) / goal.norm()).max(),
        1e-6,
        where="least squares without noise, η = 1, one example per step, the worst of 20 runs",
    )
