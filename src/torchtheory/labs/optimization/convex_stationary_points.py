"""What convexity adds: one value at all stationary points, a rate for the gradient, 1/k with strong convexity."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.optimization.descent.iterates import gradient_descent, gradient_of, last_iterate, trajectory


@lab(
    "convex-stationary-points",
    room="optimization",
    covers=["L-129", "L-130", "A-24"],
    title="Convex functions: one value at all stationary points, small gradients, and 1/k where curvature helps",
    full={"trials": 5000, "longest": 4096},
    least={"trials": 50, "longest": 100},
)
def convex_stationary_points(run: Run, trials: int = 400, longest: int = 512) -> None:
    """Gradient descent from many starts on convex functions with many minimizers, and on one with two
    valleys; then stochastic descent with steps 1/(μk).

    Where a function is convex every stationary point has the least value, and the gradient at the
    k-th iterate is bounded by the distance of the start. A strongly convex function lets the steps
    fall like 1/k, and the gap then falls like 1/k as well. Look at the last slope.

    Args:
        trials: runs with noise.
        longest: run, in steps.
    """
    one_value(run)
    gradient_rate(run)
    strong(run, trials, longest)


def one_value(run: Run) -> None:
    a = run.randn(3, 6)
    b = run.randn(3)

    def flat(theta: Tensor) -> Tensor:
        return ((theta @ a.T) - b).square().sum(-1) / 2

    def valleys(theta: Tensor) -> Tensor:
        first = theta[..., 0]
        return (first.square() - 1).square() / 8 + 0.1 * first + theta[..., 1:].square().sum(-1) / 2

    starts = 2 * run.randn(30, 6)
    smooth = float(torch.linalg.matrix_norm(a, 2)) ** 2
    ends = last_iterate(gradient_of(flat), starts, [1 / smooth] * 3000)
    others = last_iterate(gradient_of(valleys), starts.clamp(-2, 2), [0.1] * 1000)
    says = run.states(
        "L-129", r"\nabla f(x)=0 \text{ and } f \text{ convex} \Rightarrow f(x)=\min f: \text{ spread of the values}"
    )
    says.equal(float(flat(ends).max() - flat(ends).min()), within=1e-9, where="30 starts; the ends themselves differ")
    says.fails("a function with two valleys", float(valleys(others).max() - valleys(others).min()))


def gradient_rate(run: Run) -> None:
    """Huber's function is linear far out: there the gradient does not shrink until it arrives."""

    def huber(theta: Tensor) -> Tensor:
        size = theta.abs()
        return torch.where(size <= 1, theta.square() / 2, size - 0.5).sum(-1)

    distances, eta = torch.tensor([4.0, 8.0, 16.0, 64.0]).double(), 1.0
    found, promised = [], []
    for distance in distances:
        steps = int(distance) - 1
        path = gradient_descent(huber, distance[None], eta, steps).points
        slope = gradient_of(huber)(path[-1], 0)
        found.append(float(slope.square().sum()))
        promised.append(float(distance**2 / (eta * steps)))
    # the k-th gradient itself: with L = 1 and η = 1 the sum of the first k gaps is at most ‖x₀-x*‖²/(2η)
    says = run.states("L-130", r"\|\nabla f(x_k)\|^2\le\frac{L\|x_0-x^*\|^2}{\eta k}")
    near = gradient_descent(lambda x: x.square().sum(-1) / 2, torch.tensor([1.0]).double(), 0.5, 1).points[-1]
    says.at_most(
        [*found, float(near.square().sum())],
        [*promised, 1.0 / 0.5],
        where="Huber's function from distances 4 to 64, up to its last linear step, and ½x² after one step of a half",
        loose="the printed rate is that of the values; the gradient's own rate is 1/k², by a longer proof",
    )
    says.fails(
        "a step of 3, beyond 2/L",
        float(gradient_descent(huber, distances[:1], 3.0, 60).points[-1].abs().clamp_max(1.0)),
        promised=16 / (3.0 * 60),
    )


def strong(run: Run, trials: int, longest: int) -> None:
    mu, noise = 0.5, 1.0
    counts = [c for c in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if c <= longest]

    def gaps(steps: list[float], curvature: float) -> Tensor:
        pushes = noise * run.randn(len(steps), trials, 1)
        path = trajectory(lambda theta, k: curvature * theta + pushes[k], torch.zeros(trials, 1).double(), steps)
        return curvature / 2 * path[counts].square().sum(-1)

    falling = [1 / (mu * (k + 1)) for k in range(counts[-1])]
    each = torch.tensor(counts).repeat_interleave(10)

    def blocks(values: Tensor) -> Tensor:
        """Means of tenths of the runs: a single gap may be next to 0."""
        return values.reshape(len(counts), 10, -1).mean(2).flatten()

    says = run.states(
        "A-24", r"r\ \mu\text{-strongly convex},\ \eta_k=\tfrac1{\mu k}:\ \mathbb E\,r(\Theta^{(k)})-r^*\sim k^{-1}"
    )
    says.slope(each, blocks(gaps(falling, mu)), -1.0, against=(-0.5, -2.0), confidence=0.9999)
    says.fails("curvature ten times less than the step assumes", each, blocks(gaps(falling, mu / 10)))
    run.curves(
        "gaps",
        counts,
        {"curvature μ": gaps(falling, mu).mean(1), "curvature μ/10": gaps(falling, mu / 10).mean(1)},
        {"1/k": [1 / c for c in counts]},
        axes=("steps k", "gap"),
        log="xy",
        caption="Mean gap of stochastic descent with steps 1/(μk) on a quadratic, and on one flatter than assumed.",
    )
