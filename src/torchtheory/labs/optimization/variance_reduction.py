"""Explicit variance reduction: noise that vanishes at the solution, and what it buys."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.optimization.example_losses import half_square
from torchtheory.optimization.descent.iterates import trajectory
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction, minibatch_gradient
from torchtheory.optimization.descent.variance_reduction import corrected_gradients, saga_direction, svrg_direction


@lab(
    "variance-reduction",
    room="optimization",
    covers=["L-136"],
    title="Variance reduction: linear convergence at a constant step where plain descent stops",
    full={"trials": 200},
    least={"trials": 10},
)
def variance_reduction(run: Run, trials: int = 30) -> None:
    """On an inconsistent least squares problem the gradients of single examples do not vanish at the
    solution, so stochastic descent with a constant step stops at a plateau.

    Correcting each gradient by one that is known from an older point keeps the mean and removes the
    variance. Look at the two lines that go on falling: their logarithm is linear in the step.

    Args:
        trials: runs of each method.
    """
    n, d = 12, 3
    x, y = run.randn(n, d), run.randn(n)
    goal = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    moments(run, x, y, goal)
    paths(run, x, y, goal, trials)


def moments(run: Run, x: Tensor, y: Tensor, goal: Tensor) -> None:
    theta, anchor = run.randn(x.shape[1]), run.randn(x.shape[1])
    full = minibatch_gradient(half_square, theta, x, y)
    each = corrected_gradients(half_square, theta, anchor, x, y)
    says = run.states(
        "L-136",
        r"\tfrac1n\sum_i(\nabla f_i(\theta)-\nabla f_i(\tilde\theta)+\nabla f(\tilde\theta))=\nabla f(\theta)",
    )
    says.equal(each.mean(0), full, 1e-12, where="all examples, an anchor far from the point")
    stale = minibatch_gradient(half_square, run.randn(x.shape[1]), x, y)
    there = minibatch_gradient(half_square, anchor, x, y)
    says.fails("the full gradient is that of another point than the anchor", each.mean(0) - there + stale)

    def variance(gradients: Tensor) -> float:
        return float((gradients - gradients.mean(0)).square().sum(1).mean())

    says = run.states("L-136", r"\mathrm{var}(\theta^*)=\tfrac1n\sum_i\|\nabla f(\theta^*)-g_i\|^2=0")
    says.equal(variance(corrected_gradients(half_square, goal, goal, x, y)), within=1e-20)
    says.fails(
        "gradients that are not corrected",
        variance(minibatch_gradient(half_square, goal.expand(len(x), -1), x[:, None], y[:, None])),
    )


def paths(run: Run, x: Tensor, y: Tensor, goal: Tensor, trials: int) -> None:
    n, d = x.shape
    gram = x.T @ x / n
    largest = float(x.square().sum(1).max())
    eta = 1 / (3 * largest)
    # so long that the slower of the two methods has lost at least five digits by the middle
    slowest = float(torch.linalg.eigvalsh(gram)[0])
    steps = 2 * int(max(n, 25 / (eta * slowest)))
    chosen = draw_batches(n, 1, steps, trials=(trials,), sampling="replacement", generator=run.generator)
    start = goal + 1e4 * run.randn(trials, d)  # far, so that the plateau is orders of magnitude below it

    def distances(kind: str) -> Tensor:
        match kind:
            case "SVRG":
                direction = svrg_direction(half_square, [x, y], chosen, refresh=2 * n)
            case "SAGA":
                direction = saga_direction(half_square, [x, y], chosen, start)
            case _:
                direction = minibatch_direction(half_square, [x, y], chosen)
        apart: Tensor = (trajectory(direction, start, [eta] * steps) - goal).norm(dim=-1)
        return apart

    found = {kind: distances(kind) for kind in ("SVRG", "SAGA", "plain")}
    middle = steps // 2

    def digits(path: Tensor) -> Tensor:
        """Orders of magnitude lost by the end over those lost by the middle."""
        lost = (path[0] / path.clamp_min(1e-13)).log()
        return lost[middle] / lost[middle // 2]

    for kind in ("SVRG", "SAGA"):
        says = run.states(
            "L-136",
            rf"\text{{{kind}, constant step: }}"
            r"\log\frac{\|\theta_0-\theta^*\|}{\|\theta_{2k}-\theta^*\|}\Big/\log\frac{\|\theta_0-\theta^*\|}"
            r"{\|\theta_k-\theta^*\|}\to2",
        )
        says.mean(
            digits(found[kind]),
            2.0,
            0.1,
            against=(1.0, 1.414),
            confidence=0.9999,
            where="twice the steps, twice the digits: 1 would be a plateau, the root of 2 a rate slower than "
            "linear in the exponent",
        )
        says.fails("single gradients without the correction", digits(found["plain"]))
    says = run.states("L-136", r"\|\theta_K-\theta^*\|/\|\theta_0-\theta^*\|\to0")
    says.equal((found["SVRG"][-1] / found["SVRG"][0]).max(), within=1e-9)
    says.fails("single gradients without the correction", float((found["plain"][-1] / found["plain"][0]).median()))
    every = torch.arange(0, steps + 1, max(1, steps // 60))
    run.curves(
        "distances",
        every,
        {k: v[every].log().mean(1).exp().clamp_min(1e-15) for k, v in found.items()},
        axes=("step", "distance to the solution"),
        log="y",
        caption="Geometric mean of the distance over the runs, all with the same constant step and the same examples.",
    )
