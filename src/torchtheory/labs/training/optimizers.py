"""The optimizers of torch and the printed recursions, step for step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.training.adaptive_optimizers import (
    adagrad_forms,
    adam_forms,
    decay_forms,
)
from torchtheory.labs.training.optimizer_paths import EXACT, Function, trajectory
from torchtheory.optimization.certificates.convergence import accelerated_bound
from torchtheory.training.optimizers.momentum import HeavyBall, Nesterov, effective_step, nesterov_iterate


@lab(
    "optimizers",
    room="training",
    covers=["N-48", "N-49", "N-50", "N-51", "L-066"],
    title="What torch's optimizers compute, and what the printed ones do",
    errata=["heavy-ball-effective-step", "adam-printed-form"],
    full={"dimension": 200, "steps": 1000},
    least={"dimension": 10, "steps": 100},
)
def optimizers(run: Run, dimension: int = 40, steps: int = 200) -> None:
    """Each printed recursion is written out once more, line by line, and compared with the
    optimizer over a whole trajectory on a smooth function that is not convex.

    Where torch's form is another one, the comparison says how: torch keeps Nesterov's extrapolated
    point in the parameters, multiplies the whole velocity by the current learning rate, and
    corrects Adam's averages. Then what momentum buys: on a convex quadratic of `dimension`
    variables Nesterov stays below 2L‖θ⁰-θ*‖²/(T+1)², and gradient descent does not. Look at the
    two curves, and at the first steps of Adam with and without its correction.

    Args:
        steps: of a run.
    """
    wavy, start = rough_function(run, 6)
    nesterov_forms(run, wavy, start)
    heavy_ball_forms(run, wavy, start)
    constant_gradient(run)
    adagrad_forms(run, wavy, start)
    adam_forms(run, wavy, start)
    decay_forms(run)
    chain, minimizer = worst_quadratic(dimension)
    acceleration(run, chain, minimizer, steps)
    strongly_convex(run, dimension, steps)

    run.table(
        "forms",
        ["method", "torch", "how the printed form differs"],
        [
            ("gradient descent", "SGD", "not at all"),
            ("heavy ball", "SGD(momentum)", "the same while the learning rate is constant"),
            ("Nesterov", "SGD(nesterov=True)", "torch's parameters are the extrapolated points"),
            ("AdaGrad", "Adagrad", "not at all (δ outside the root)"),
            ("RMSprop", "RMSprop", "printed Adam with β = 0"),
            ("Adam", "Adam", "printed without bias correction and with η = 1"),
            ("decay of the lectures", "SGD(weight_decay=λ/η)", "λ is not multiplied by η"),
        ],
        caption="The printed recursions and what torch computes",
    )
    times = torch.arange(1, 3001).double()
    run.curves(
        "adam-first-steps",
        times,
        {
            "corrected (torch)": torch.ones_like(times),
            "as printed, without correction": (1 - 0.9**times) / (1 - 0.999**times).sqrt(),
        },
        axes=("step t", r"step length / $\eta$"),
        log="x",
        ylim=(0, None),
        caption="Step lengths of Adam for a constant gradient, in units of η: without the "
        "correction the first steps are up to 7 times too long.",
    )


def rough_function(run: Run, size: int) -> tuple[Function, Tensor]:
    """Smooth and not convex, with coordinates of very different curvature; and a start."""
    scales = torch.logspace(-1, 1, size, dtype=torch.float64)
    mix = run.randn(size, size) / math.sqrt(size)

    def h(theta: Tensor) -> Tensor:
        return (scales * theta.square()).sum() / 2 + torch.cos(mix @ theta).sum()

    return h, run.randn(size)


def printed_momentum(
    h: Function,
    start: Tensor,
    steps: int,
    rates: Sequence[float],
    beta: float | Tensor | None,
    *,
    nesterov: bool,
) -> tuple[Tensor, Tensor]:
    """The two recursions of section 3.3: the iterates, and the points of the gradients."""
    slope = torch.func.grad(h)
    previous, theta = start, start
    iterates, met = [start], []
    for t in range(steps):
        b = t / (t + 3) if beta is None else beta
        carried = b * (theta - previous)
        at = theta + carried if nesterov else theta
        met.append(at)
        theta, previous = theta + carried - rates[t] * slope(at), theta
        iterates.append(theta)
    return torch.stack(iterates), torch.stack(met)


def nesterov_forms(run: Run, h: Function, start: Tensor) -> None:
    steps, eta, beta = 60, 0.05, 0.8
    rates = [eta] * steps
    theta, chi = printed_momentum(h, start, steps, rates, beta, nesterov=True)
    ball, _ = printed_momentum(h, start, steps, rates, beta, nesterov=False)
    ours = trajectory(lambda p: Nesterov(p, lr=eta, momentum=beta), h, start, steps)
    says = run.states(
        "N-48",
        r"\text{Nesterov: } \chi^{t+1}=\theta^t+\beta(\theta^t-\theta^{t-1}),\ "
        r"\theta^{t+1}=\chi^{t+1}-\eta\nabla h(\chi^{t+1}): \text{ largest difference}",
    )
    says.equal((ours - theta).abs().max(), within=EXACT)
    says.fails("the gradient is taken before the extrapolation (the heavy ball)", (ours - ball).abs().max())
    torchs = trajectory(lambda p: SGD(p, lr=eta, momentum=beta, nesterov=True), h, start, steps)
    says = run.states(
        "N-48", r"\text{the parameters of SGD(nesterov=True) are } \chi^{t+1}: \text{ largest difference}"
    )
    says.equal((torchs[:-1] - chi).abs().max(), within=EXACT)
    says.fails("read as the iterates themselves", (torchs - theta).abs().max())

    def recovered(optimizer: Optimizer, parameter: Tensor) -> Tensor:
        assert isinstance(optimizer, SGD)
        return nesterov_iterate(optimizer, parameter)

    back = trajectory(lambda p: SGD(p, lr=eta, momentum=beta, nesterov=True), h, start, steps, seen=recovered)
    run.states("N-48", r"\theta^t=\chi^{t+1}+\eta\beta v_t: \text{ largest difference}").equal(
        (back - theta).abs().max(), within=EXACT
    )
    plain = trajectory(lambda p: SGD(p, lr=eta), h, start, steps)
    still = trajectory(lambda p: Nesterov(p, lr=eta, momentum=0.0), h, start, steps)
    says = run.states("N-48, N-49", r"\beta=0 \text{ is gradient descent: largest difference}")
    says.equal(
        torch.stack(
            [
                (still - plain).abs().max(),
                (trajectory(lambda p: HeavyBall(p, lr=eta, momentum=0.0), h, start, steps) - plain).abs().max(),
            ]
        ),
        [0, 0],
        EXACT,
    )
    says.fails("β = 0.8", (theta - plain).abs().max(), promised=0)


def heavy_ball_forms(run: Run, h: Function, start: Tensor) -> None:
    steps, eta, beta = 60, 0.05, 0.8
    constant, falling = [eta] * steps, [eta * 0.97**t for t in range(steps)]

    def both(rates: list[float], make: Callable[[list[Tensor]], Optimizer]) -> Tensor:
        printed, _ = printed_momentum(h, start, steps, rates, beta, nesterov=False)
        return (trajectory(make, h, start, steps, rates) - printed).abs().max()

    def ours(p: list[Tensor]) -> Optimizer:
        return HeavyBall(p, lr=eta, momentum=beta)

    def torchs(p: list[Tensor]) -> Optimizer:
        return SGD(p, lr=eta, momentum=beta)

    says = run.states(
        "N-49",
        r"\text{HeavyBall: } \theta^{t+1}=\theta^t-\eta_t\nabla h(\theta^t)"
        r"+\beta(\theta^t-\theta^{t-1}): \text{ largest difference}",
    )
    says.equal(
        torch.stack([both(constant, ours), both(falling, ours)]),
        within=EXACT,
        where="a constant and a falling learning rate",
    )
    says = run.states(
        "N-49", r"\text{SGD(momentum=}\beta\text{) is the heavy ball for constant } \eta: \text{ largest difference}"
    )
    says.equal(both(constant, torchs), within=EXACT)
    says.fails("a falling learning rate, which torch also applies to the old velocity", both(falling, torchs))
    quadratic = torch.tensor([1.0, 25.0], dtype=torch.float64)

    betas = torch.tensor([0.0, 0.3, 0.6, 0.9, 1.0], dtype=torch.float64)
    points, _ = printed_momentum(
        lambda x: (quadratic * x.square()).sum() / 2,
        torch.ones(5, 2, dtype=torch.float64),
        400,
        [1 / 25] * 400,
        betas[:, None],
        nesterov=False,
    )
    left = points[-1].norm(dim=1)
    says = run.states("N-49", r"\beta<1:\ \theta^t\to0 \text{ on } \tfrac12(\theta_1^2+25\theta_2^2),\ \eta=1/25")
    says.equal(left[:-1], within=1e-6, where="distance from 0 after 400 steps, from (1, 1), with β = 0, 0.3, 0.6, 0.9")
    says.fails("β = 1", left[-1])


def constant_gradient(run: Run) -> None:
    """A linear function: the steps of the heavy ball, of torch's and with dampening."""
    eta, beta, steps = 0.1, 0.9, 120
    slope = torch.tensor([2.0, -3.0], dtype=torch.float64)

    def h(theta: Tensor) -> Tensor:
        return theta @ slope

    def lengths(make: Callable[[list[Tensor]], Optimizer]) -> Tensor:
        points = trajectory(make, h, torch.zeros(2, dtype=torch.float64), steps)
        return points.diff(dim=0) @ slope / -slope.square().sum()

    moved = lengths(lambda p: HeavyBall(p, lr=eta, momentum=beta))
    exact = [effective_step(eta, beta, t + 1) for t in range(steps)]
    says = run.states("N-49", r"\theta^{t+1}-\theta^t=-\eta\frac{1-\beta^{t+1}}{1-\beta}\delta")
    says.equal(moved, exact, EXACT)
    says.fails(
        "torch's dampening = β, which divides the effect out",
        lengths(lambda p: SGD(p, lr=eta, momentum=beta, dampening=beta)),
    )
    says = run.states("N-49", r"\text{the effective step tends to } \eta/(1-\beta)")
    says.equal(
        moved[-1],
        effective_step(eta, beta),
        1e-5,
        where=f"after {steps} steps, β to that power being {beta**steps:.1g}",
    )
    says.fails("no momentum", lengths(lambda p: SGD(p, lr=eta))[-1])
    says = run.states("N-49", r"\text{SGD(momentum=}\beta\text{, dampening=}\beta\text{): every step is } \eta")
    says.equal(
        lengths(lambda p: SGD(p, lr=eta, momentum=beta, dampening=beta)),
        eta,
        EXACT,
        where="torch does not dampen the first gradient, so the steps do not even start smaller",
    )
    printed = [eta * sum(beta**k for k in range(1, t)) for t in range(steps)]
    says = run.refutes(
        "heavy-ball-effective-step",
        r"\theta^{t+1}-\theta^t=-\eta\bigl(\textstyle\sum_{\tau=1}^{t-1}\beta^\tau\bigr)\delta",
    )
    says.equal(
        moved,
        printed,
        EXACT,
        where="the sum is empty at t = 0 and 1, where the ball has long moved, and its limit is ηβ/(1-β)",
    )


def worst_quadratic(size: int) -> tuple[Tensor, Tensor]:
    """Nesterov's chain: the quadratic on which every first-order method is slow, L = 4."""
    chain = 2 * torch.eye(size, dtype=torch.float64)
    chain -= torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)
    chain -= torch.diag(torch.ones(size - 1, dtype=torch.float64), -1)
    pull = torch.zeros(size, dtype=torch.float64)
    pull[0] = 1
    return chain, torch.linalg.solve(chain, pull)


def acceleration(run: Run, matrix: Tensor, minimizer: Tensor, steps: int) -> None:
    smoothness = 4.0

    def gap(theta: Tensor) -> Tensor:
        offset = theta - minimizer
        return (offset @ matrix * offset).sum(-1) / 2

    start = torch.zeros_like(minimizer)
    fast = trajectory(lambda p: Nesterov(p, lr=1 / smoothness), gap, start, steps)
    slow = trajectory(lambda p: SGD(p, lr=1 / smoothness), gap, start, steps)
    bound = accelerated_bound(float(minimizer.norm()), smoothness, steps)
    says = run.states(
        "N-48",
        r"\eta=1/L,\ \beta_t=\frac{t-1}{t+2}:\ h(\theta^T)-\min h\le\frac{2L\|\theta^0-\theta^\star\|^2}{(T+1)^2}",
    )
    # Huber's function, from where the last step ends the straight part: the slowest start
    far = torch.tensor([1e6]).double()
    slid = trajectory(lambda p: Nesterov(p, lr=1.0), huber, far, steps)
    start = 1 + 2 * (far - slid[-1])
    worst = huber(trajectory(lambda p: Nesterov(p, lr=1.0), huber, start, steps)[1:])
    says.at_most(
        torch.cat([gap(fast[1:]), worst]),
        torch.cat([bound, accelerated_bound(float(start), 1.0, steps)]),
        EXACT,
        where="at every step, on the chain quadratic, L = 4, and on Huber's function",
    )
    says.fails("no extrapolation: gradient descent on the chain", gap(slow[1:]), promised=bound)
    run.states(
        "N-48", r"\text{... and on Huber's function no less than nine tenths of that at the last step}"
    ).at_least(worst[-1], 0.9 * accelerated_bound(float(start), 1.0, steps)[-1])
    run.curves(
        "acceleration",
        range(1, steps + 1),
        {"Nesterov": gap(fast[1:]), "gradient descent": gap(slow[1:])},
        {r"$2L\|\theta^0-\theta^\star\|^2/(T+1)^2$": bound},
        axes=("steps T", r"$h(\theta^T)-\min h$"),
        log="xy",
        caption="The gap on the hardest quadratic: Nesterov's sequence stays below its bound of "
        "order 1/T², gradient descent leaves it.",
    )


def huber(theta: Tensor) -> Tensor:
    return torch.nn.functional.huber_loss(theta, torch.zeros_like(theta), reduction="none").sum(-1)


def strongly_convex(run: Run, size: int, steps: int) -> None:
    condition = 100.0
    spectrum = torch.logspace(0, math.log10(condition), size, dtype=torch.float64)
    start = torch.ones(size, dtype=torch.float64)

    def h(theta: Tensor) -> Tensor:
        return (spectrum * theta.square()).sum(-1) / 2

    root = math.sqrt(condition)
    best = (root - 1) / (root + 1)
    fast = h(trajectory(lambda p: Nesterov(p, lr=1 / condition, momentum=best), h, start, steps))
    slow = h(trajectory(lambda p: SGD(p, lr=1 / condition), h, start, steps))
    times = torch.arange(steps + 1).double()
    says = run.states(
        "N-48",
        r"\beta=\frac{\sqrt\kappa-1}{\sqrt\kappa+1}:\ h(\theta^T)-\min h\le(1-\kappa^{-1/2})^T"
        r"\bigl(h(\theta^0)-\min h+\tfrac\mu2\|\theta^0-\theta^\star\|^2\bigr)",
    )
    says.at_most(fast, (1 - 1 / root) ** times * (h(start) + start.square().sum() / 2), where="κ = 100, at every step")
    says.fails("gradient descent, whose factor is 1 - 1/κ", slow)
    run.states("N-48", r"\text{gradient descent: } h(\theta^T)-\min h\le(1-1/\kappa)^T(h(\theta^0)-\min h)").at_most(
        slow, (1 - 1 / condition) ** times * h(start)
    )
