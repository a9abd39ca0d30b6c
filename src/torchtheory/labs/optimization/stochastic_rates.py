"""Stochastic gradient descent with a constant step: what it promises, and where it stops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Interval, Run, lab, mean_interval
from torchtheory.labs.optimization.example_losses import half_square
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import mlp
from torchtheory.optimization.certificates.convergence import iterations_to_critical_point
from torchtheory.optimization.certificates.stochastic_rates import (
    expected_least_squares_error,
    gradient_variance,
    stationarity_bound,
    stationarity_plan,
    step_budget,
)
from torchtheory.optimization.curvature.layer_noise import gradient_noise_by_layer
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.optimization.descent.iterates import (
    descend,
    gradient_descent,
    gradient_of,
    trajectory,
)
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction
from torchtheory.optimization.descent.noise import with_gaussian_noise, with_unit_noise

#: Confidence of each statistical comparison.
SURE = 0.9999


@lab(
    "stochastic-rates",
    room="optimization",
    covers=["L-136", "L-138", "L-140", "L-141"],
    title="The rate of stochastic descent with a constant step",
    errata=["stochastic-telescoping-end"],
    full={"trials": 1000, "longest": 2560},
    least={"trials": 8, "longest": 200},
)
def stochastic_rates(run: Run, trials: int = 120, longest: int = 320) -> None:
    """The distance to a solution changes by a progress term and a noise term: checked by going
    through every sequence of examples.

    With a step of order 1/√K the mean squared gradient over K iterates stays below σ√(2LΔ/K), on
    logistic regression and on a loss that is not convex; an iterate drawn at random has the same
    mean. Look at how closely the measured means follow their bounds over the range of K.

    Args:
        trials: runs.
        longest: run, in steps.
    """
    every_sequence(run)
    noise_of_a_network(run)
    rates = stationarity(run, trials, longest)
    random_iterate(run, trials)
    complexity(run)
    run.curves(
        "rates",
        [count for count, _, _ in next(iter(rates.values()))],
        {name: [found for _, _, found in points] for name, points in rates.items()},
        {name: [bound for _, bound, _ in points] for name, points in rates.items()},
        axes=("iterations K", r"mean of $\|\nabla f\|^2$"),
        log="xy",
        caption="Mean squared gradient over the iterates and the bound, each K with its own step, of order 1/√K.",
    )


#: What the claims on rates are met by, and how.
NAMES = "logistic regression, log(1 + r²) and Huber's function with directions ±1"
LOW = f"the lower ends of intervals of {100 * SURE:g} %"


def constants(problem: Smooth | Hardest) -> dict[str, float]:
    """What the theorem asks to know of a problem."""
    return {"gap": problem.gap, "smoothness": problem.smoothness, "gradient_bound": problem.bound}


def logistic(z: Tensor, y: Tensor) -> Tensor:
    """Logistic loss of a prediction: slope below 1, curvature below 1/4."""
    return nn.functional.softplus(-y * z)


def robust(z: Tensor, y: Tensor) -> Tensor:
    """log(1 + r²) of the residual, not convex: slope below 1, curvature in [-1/4, 2]."""
    return (z - y).square().log1p()


def every_sequence(run: Run) -> None:
    """All sequences of examples of a short run, so that expectations are sums."""
    n, d, length, eta = 3, 2, 6, 0.05
    x, y, start = run.randn(n, d), run.randn(n), run.randn(d)
    goal = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    scaled = math.sqrt(n) * x, math.sqrt(n) * y  # ℓ_i = n/2 (x_i w - y_i)²
    steps = [eta / (k + 1) for k in range(length)]

    def measured(sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Mean squared distance after each step, and what the budget says it is."""
        count = sequences.shape[1]
        direction = minibatch_direction(half_square, scaled, sequences[..., None])
        points = trajectory(direction, start.expand(len(sequences), -1), steps[:count])
        budget = step_budget(half_square, scaled, points[:-1], goal, steps[:count])
        return (points[1:] - goal).square().sum(-1).mean(1), budget.after.mean(1)

    found, promised = measured(torch.tensor(list(itertools.product(range(n), repeat=length))))
    shuffled, wrong = measured(torch.tensor(list(itertools.permutations(range(n)))))
    says = run.states(
        "L-138",
        r"\mathbb E\|w_{k+1}-w_\star\|^2=\mathbb E\|w_k-w_\star\|^2-2\eta_k\mathbb E"
        r"(w_k-w_\star)^\top\nabla\ell(w_k)+\eta_k^2\,\mathbb E\|\nabla\ell_i(w_k)\|^2",
    )
    says.equal(
        found, promised, 1e-12, where=f"least squares, η = {eta}/k, all {n**length} sequences of {length} examples"
    )
    says.fails("the examples of an epoch, each once: not uniform given the past", shuffled, promised=wrong)
    exact = expected_least_squares_error(x, y, start, steps)
    says = run.states(
        "L-138", r"\text{the recursion of second moments gives } \mathbb E\|w_k-w_\star\|^2 \text{ of all sequences}"
    )
    says.equal(found, exact.distance[1:], 1e-12)
    says.fails("one order of the examples", shuffled, promised=exact.distance[1 : n + 1])
    x, truth = run.randn(12, 3), run.randn(3)
    y = x @ truth
    noisy = y + run.randn(12)
    says = run.states(
        "L-136", r"y=Xw_\star:\ \tfrac1n\textstyle\sum_i\|\nabla\ell(w_\star)-\nabla\ell_i(w_\star)\|^2=0"
    )
    says.equal(
        gradient_variance(half_square, truth, x, y),
        within=1e-20,
        where="the noise of the gradient vanishes where one parameter fits every example",
    )
    says.fails(
        "targets with noise: no parameter fits them all, w⋆ is their least squares solution",
        gradient_variance(half_square, torch.linalg.lstsq(x, noisy[:, None]).solution[:, 0], x, noisy),
    )


def noise_of_a_network(run: Run) -> None:
    """Signal and noise in every layer, and what a batch of two makes of the noise."""
    n = 5
    net = mlp([3, 4, 2], "tanh", generator=run.generator)
    problem = Problem(net, (run.randn(n, 3), run.randn(n, 2)), task="regression")
    found = gradient_noise_by_layer(problem)

    def gradients(batches: Sequence[tuple[int, ...]]) -> Tensor:
        rows = [gradient(problem, problem.train.at(torch.tensor(b))) for b in batches]
        return torch.stack(rows)

    whole = gradient(problem, problem.train)

    def spread(batches: Sequence[tuple[int, ...]]) -> list[float]:
        """Mean squared deviation of the batch's gradient, by layer."""
        squares = (gradients(batches) - whole).square().mean(0)
        parts = torch.split(squares, [row.parameters for row in found])
        return [float(part.sum()) for part in parts]

    pairs = list(itertools.product(range(n), repeat=2))
    different = list(itertools.combinations(range(n), 2))
    says = run.states(
        "L-136",
        r"\tfrac1r\,\mathrm{var}(\theta) \text{ in each layer is the mean of }"
        r" \|\nabla f_B-\nabla f\|^2 \text{ over all batches of } r=2",
    )
    says.equal(
        spread(pairs),
        [row.noise / 2 for row in found],
        1e-12,
        where=f"a network of two layers, all {len(pairs)} pairs of {n} examples",
    )
    says.fails("no example twice in a batch", spread(different))
    run.table(
        "noise-by-layer",
        ["layer", "parameters", "signal", "noise", "batch where they are alike"],
        [(row.layer, row.parameters, row.signal, row.noise, row.batch) for row in found],
        caption="Squared length of the gradient, and mean squared deviation of one example's.",
    )


class Smooth(NamedTuple):
    """A sum of losses with what the theorem asks of it."""

    name: str
    cost: Callable[[Tensor, Tensor], Tensor]
    data: tuple[Tensor, Tensor]
    gap: float
    smoothness: float
    bound: float

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.cost((theta * x).sum(-1), y)

    def risk(self, theta: Tensor) -> Tensor:
        x, y = self.data
        return self.cost(theta @ x.T, y).mean(-1)

    def squared_gradients(self, run: Run, step: float, count: int, trials: int, noise: float = 0.0) -> Tensor:
        """‖∇f‖² at the iterates before each of `count` steps, `[count, trials]`."""
        x, _ = self.data
        chosen = draw_batches(len(x), 1, count, trials=(trials,), generator=run.generator)
        direction = minibatch_direction(self.loss, self.data, chosen)
        if noise:
            direction = with_gaussian_noise(direction, noise, run.generator)
        start = torch.zeros(trials, x.shape[1], dtype=torch.float64)
        slope = gradient_of(self.risk)
        path = descend(direction, start, [step] * count)
        # one iterate at a time: all of them with all examples would take gigabytes
        return torch.stack([slope(w, 0).square().sum(-1) for w in itertools.islice(path, count)])


class Hardest(NamedTuple):
    """Huber's function of one number with directions ±1, the noisiest that σ = 1 allows.

    Where it is a parabola a step changes the mean of f by exactly -ηf'² + η²/2, so that the theorem
    loses no more than what f is still above its minimum after the last step.
    """

    name: str = "Huber's function, directions ±1"
    gap: float = 0.5**2 / 2
    smoothness: float = 1.0
    bound: float = 1.0

    def path(self, run: Run, step: float, count: int, trials: int, noise: float) -> Tensor:
        """Iterates from 1/2, `[count + 1, 20 * trials]`; `noise` is added to the directions."""
        direction = with_unit_noise(lambda theta, _: theta.clamp(-1, 1), run.generator)
        if noise:
            direction = with_gaussian_noise(direction, noise, run.generator)
        start = torch.full((20 * trials, 1), 0.5, dtype=torch.float64)
        return trajectory(direction, start, [step] * count)[..., 0]

    def squared_gradients(self, run: Run, step: float, count: int, trials: int, noise: float = 0.0) -> Tensor:
        """The squared slope at the iterates before each of `count` steps."""
        return self.path(run, step, count, trials, noise)[:-1].clamp(-1, 1).square()

    def budget(self, run: Run, step: float, count: int, trials: int, noise: float = 0.0) -> Tensor:
        """The mean squared slope and what is left of f at the end, over ηK, by run."""
        path = self.path(run, step, count, trials, noise)
        left = nn.functional.huber_loss(path[-1], torch.zeros_like(path[-1]), reduction="none")
        return path[:-1].clamp(-1, 1).square().mean(0) + left / (step * count)


def smooth_problems(run: Run) -> list[Smooth]:
    n, d = 40, 3
    x = run.randn(n, d)
    x = x / x.norm(dim=1, keepdim=True)
    largest = float(torch.linalg.matrix_norm(x, 2)) ** 2 / n
    labels = torch.sign(x[:, 0] + 0.5 * run.randn(n))
    values = 3 * x[:, 0] + run.randn(n)
    start = torch.zeros(d, dtype=torch.float64)
    made = []
    for name, cost, y, curvature in (
        ("logistic regression", logistic, labels, 0.25),
        ("log(1 + r²), not convex", robust, values, 2.0),
    ):
        found = Smooth(name, cost, (x, y), 0.0, curvature * largest, 1.0)
        # log(1 + r²) is at least 0; logistic regression is convex and solved
        best = torch.zeros(())
        if cost is logistic:
            best = gradient_descent(found.risk, start, 1 / found.smoothness, 400).values[-1]
        made.append(found._replace(gap=float(found.risk(start) - best)))
    return made


Rates = dict[str, list[tuple[int, float, Interval]]]


def stationarity(run: Run, trials: int, longest: int) -> Rates:
    hardest = Hardest()
    problems: list[Smooth | Hardest] = [*smooth_problems(run), hardest]
    sizes = [max(1, longest // 4**k) for k in (3, 2, 1, 0)]
    rates: Rates = {}
    rows = []

    def mean_square(problem: Smooth | Hardest, step: float, count: int, noise: float = 0.0) -> Interval:
        return mean_interval(problem.squared_gradients(run, step, count, trials, noise).mean(0), SURE)

    for count in sizes:
        bounds, lows = [], []
        for problem in problems:
            plan = stationarity_plan(**constants(problem), steps=count)
            found = mean_square(problem, plan.step, count)
            rates.setdefault(problem.name, []).append((count, plan.bound, found))
            rows.append((problem.name, count, plan.step, plan.bound, found.estimate))
            bounds.append(plan.bound)
            lows.append(found.low)
        plan = stationarity_plan(**constants(hardest), steps=count)
        says = run.states(
            "L-140",
            r"\eta=\sqrt{2\Delta/(L\sigma^2K)}:\ \min_{s<K}\mathbb E\|\nabla "
            r"f(x_s)\|^2\le\tfrac1K\textstyle\sum_{s<K}\mathbb E\|\nabla f(x_s)\|^2\le\sigma\sqrt{2\Delta L/K}",
        )
        says.at_most(lows, bounds, where=f"K = {count}; {NAMES}; {LOW}")
        says.fails(
            "directions not bounded by σ: Gaussian noise of deviation 30 σ added to each",
            mean_square(hardest, plan.step, count, 30.0).low,
            promised=plan.bound,
        )
    for factor in (0.5, 2.0):
        count = sizes[2]
        steps = [factor * stationarity_plan(**constants(p), steps=count).step for p in problems]
        bounds = [stationarity_bound(s, count, **constants(p)) for s, p in zip(steps, problems, strict=True)]
        says = run.states(
            "L-140",
            r"\text{any } \eta:\ \tfrac1K\textstyle\sum_{s<K}\mathbb E\|\nabla f(x_s)\|^2\le"
            r"\frac\Delta{\eta K}+\frac{L\eta\sigma^2}2",
        )
        says.at_most(
            [mean_square(p, s, count).low for s, p in zip(steps, problems, strict=True)],
            bounds,
            where=f"{factor:g} times the planned step, K = {count}; {NAMES}; {LOW}",
        )
        says.fails(
            "directions not bounded by σ: Gaussian noise of deviation 30 σ added to each",
            mean_square(hardest, steps[-1], count, 30.0).low,
            promised=bounds[-1],
        )
        step, drift = steps[-1], hardest.gap / (steps[-1] * count)
        says = run.states(
            "L-140",
            r"f=\tfrac L2x^2,\ D=\pm\sigma:\ \tfrac1K\textstyle\sum_{s<K}\mathbb E\|\nabla f(x_s)\|^2+"
            r"\tfrac1{\eta K}\mathbb Ef(x_K)=\frac\Delta{\eta K}+\frac{L\eta\sigma^2}2",
        )
        says.mean(
            hardest.budget(run, step, count, trials),
            bounds[-1],
            against=(drift, drift + step, bounds[-1] - drift, bounds[-1] + drift),  # a term gone, or twice
            confidence=SURE,
            where=f"{factor:g} times the planned step, K = {count}: all that the bound loses is the last value of f",
        )
        says.fails(
            "Gaussian noise of deviation 2 σ added to the directions", hardest.budget(run, step, count, trials, 2.0)
        )
    run.table(
        "plans",
        ["f", "K", "step η", "bound", "measured"],
        rows,
        caption="The planned step, the bound on the mean squared gradient, and its measurement.",
    )
    # f = √(1 + x²) is 1-smooth with slopes below 1; one deterministic step from 3
    start = torch.tensor([3.0], dtype=torch.float64)
    one = gradient_descent(lambda t: (1 + t.square().sum(-1)).sqrt(), start, 0.1, 1)
    says = run.refutes(
        "stochastic-telescoping-end",
        r"\tfrac1K\sum_{k<K}\mathbb E\|\nabla f(x_k)\|^2\le\tfrac1{\eta K}\mathbb E"
        r"[f(x_0)-f(x_{K-1})]+\tfrac{L\eta}2\sigma^2",
    )
    says.at_most(
        one.gradient_norms[0].square(),
        0.1 / 2,
        where="K = 1, f = √(1 + x²), x₀ = 3, η = 0.1, L = σ = 1: the bracket is 0",
    )
    run.states("L-140", r"\text{the same with } f(x_K) \text{ in place of } f(x_{K-1})").at_most(
        one.gradient_norms[0].square(), (one.values[0] - one.values[1]) / 0.1 + 0.1 / 2
    )
    return rates


def random_iterate(run: Run, trials: int) -> None:
    smooth = smooth_problems(run)[0]
    count, draws = 60, 10 * trials
    squares = smooth.squared_gradients(run, 0.5, count, draws)
    half = draws // 2
    picked = torch.randint(count, (half,), generator=run.generator)
    says = run.states(
        "L-141",
        r"\mathbb E\|\nabla f(x_I)\|^2-\tfrac1K\textstyle\sum_{k<K}\mathbb E\|\nabla f(x_k)\|^2=0"
        r" \text{ for } I \text{ uniform on } 0..K-1",
    )
    says.mean(
        squares[picked, torch.arange(half)] - squares[:, :half].mean(0),
        0.0,
        # the first iterate, the last one
        against=[float(squares[k].mean() - squares.mean()) for k in (0, -1)],
        confidence=SURE,
        where=f"logistic regression, K = {count}, {half} runs with an iterate drawn in each",
    )
    says.fails("I not uniform: always the last iterate", squares[-1, half:] - squares[:, half:].mean(0))


def complexity(run: Run) -> None:
    """How many gradients of single examples each method is promised to need."""
    gap, smoothness, sigma = 1.0, 2.0, 3.0
    tolerances = [10.0**-k for k in range(1, 6)]
    plans = {
        e: stationarity_plan(gap=gap, smoothness=smoothness, gradient_bound=sigma, tolerance=e) for e in tolerances
    }
    fewer = {
        e: stationarity_plan(gap=gap, smoothness=smoothness, gradient_bound=sigma, steps=p.steps - 1)
        for e, p in plans.items()
    }
    says = run.states("L-141", r"K=\lceil2\Delta L\sigma^2/\epsilon^2\rceil:\ \text{the bound over } \epsilon")
    says.at_most([p.bound / e for e, p in plans.items()], 1.0, 1e-12, where="ε = 0.1 to 0.00001")
    says.fails("one iteration less", [p.bound / e for e, p in fewer.items()])
    samples = [10**k for k in range(1, 8)]
    full = {e: iterations_to_critical_point(smoothness, gap, math.sqrt(e)) for e in tolerances}

    def wrong(cost: int) -> int:
        """Verdicts 'stochastic is cheaper' that differ from n ε > σ²."""
        return sum((plans[e].steps < full[e] * n**cost) is not (n * e > sigma**2) for n in samples for e in tolerances)

    says = run.states(
        "L-141", r"\text{stochastic descent needs fewer gradients } \iff n>\sigma^2/\epsilon: \text{ wrong verdicts}"
    )
    says.equal(wrong(1), where="n = 10 to 10⁷, ε = 0.1 to 0.00001, σ = 3")
    says.fails("iterations counted in place of gradients", wrong(0))
    run.table(
        "gradients-needed",
        ["ε", "stochastic", "full gradient, iterations", *[f"n = $10^{k}$" for k in (2, 4, 6)]],
        [(e, plans[e].steps, full[e], *[full[e] * 10**k for k in (2, 4, 6)]) for e in tolerances],
        caption="Gradients of single examples until the mean squared gradient is promised to be "
        "below ε (Δ = 1, L = 2, σ = 3): stochastic, and full gradients for n examples.",
    )
