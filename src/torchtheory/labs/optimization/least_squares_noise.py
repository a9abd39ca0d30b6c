"""Single-example descent on least squares, in exact expectations: plateaus and convergence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.optimization.example_losses import half_square
from torchtheory.optimization.certificates.stochastic_rates import (
    LeastSquaresError,
    expected_least_squares_error,
    mean_square_contraction,
    stationary_least_squares_error,
    stochastic_error_floor,
)
from torchtheory.optimization.descent.iterates import gradient_descent, trajectory
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction


@lab(
    "constant-step-least-squares",
    room="optimization",
    covers=["L-141", "L-144"],
    title="A constant step on least squares: where it stops, and when it does not",
    errata=["constant-step-never-converges"],
    full={"trials": 1000, "steps": 2000},
    least={"trials": 20, "steps": 250},  # every other run or so oscillates: one of 20 does for certain
)
def constant_step(run: Run, trials: int = 100, steps: int = 300) -> None:
    """On least squares every expectation along stochastic descent follows from the one before, so
    nothing here is sampled but one share.

    With a constant step the gradient of the last iterate stops at a plateau, whose height a linear
    equation gives. On an inconsistent system the distance to the solution stays above a definite
    floor; on a consistent one it goes to 0 geometrically, whatever the exercise concludes. Look at
    the two curves of the right panel, which share everything but the targets.

    Args:
        trials: runs that the last iterates are averaged over.
        steps: of a run.
    """
    plateau = last_iterates(run, trials, steps)
    errors = consistent_or_not(run, steps)
    run.figure(
        "least-squares",
        lambda axes: plot(axes, plateau, errors),
        caption="Left: exact mean squared gradient of the last iterate. Right: exact mean squared "
        "distance for a constant step, and the floor of the inconsistent system.",
        grid=(1, 2),
        size=(9.5, 3.6),
    )


Plateau = tuple[float, dict[str, Tensor]]


def last_iterates(run: Run, trials: int, steps: int) -> Plateau:
    """Exact moments of the last iterate on least squares with noisy targets."""
    n, d = 8, 3
    # eigenvalues of XᵀX of order 1: the plateau is reached within the run
    x = torch.linalg.qr(run.randn(n, d)).Q * torch.tensor([1.0, 0.9, 0.8]).double()
    y = x @ run.randn(d) + run.randn(n) / math.sqrt(n)
    eta = 0.4 / (n * float(x.square().sum(1).max()))
    start = torch.zeros(d, dtype=torch.float64)
    gram = x.T @ x
    goal = torch.linalg.solve(gram, x.T @ y)
    level = stationary_least_squares_error(x, y, eta).gradient
    paths = {
        "constant step": [eta] * steps,
        "step 1/√k": [eta / math.sqrt(k + 1) for k in range(steps)],
    }
    found = {k: expected_least_squares_error(x, y, start, s).gradient for k, s in paths.items()}
    tail = steps // 4
    says = run.states(
        "L-141",
        r"\text{constant } \eta:\ \mathbb E\|\nabla\ell(w_k)\|^2 \text{ of the last iterate over its stationary value}",
    )
    says.equal(
        found["constant step"][-tail:] / level,
        torch.ones(tail, dtype=torch.float64),
        0.01,
        where=f"the last quarter of {steps} iterations, exact expectations; the stationary "
        "value from a linear equation",
    )
    says.fails("shrinking steps: no plateau", found["step 1/√k"][-tail:] / level)

    def rising(size: int) -> float:
        """Share of runs in which the last step makes the gradient longer."""
        chosen = draw_batches(n, size, steps, trials=(trials,), generator=run.generator)
        scaled = math.sqrt(n) * x, math.sqrt(n) * y
        direction = minibatch_direction(half_square, scaled, chosen)
        points = trajectory(direction, start.expand(trials, -1), [eta] * steps)
        norms = ((points[-2:] - goal) @ gram).norm(dim=-1)
        return float((norms[1] > norms[0] + 1e-12).double().mean())

    says = run.states("L-141", r"\text{share of runs whose gradient grows in step } K: \text{ the iterates oscillate}")
    says.above(rising(1), 0.0, where=f"K = {steps}, {trials} runs")
    says.fails("the full gradient in every step", rising(n))
    everything = gradient_descent(lambda w: (w @ x.T - y).square().sum(-1) / 2, start, eta, steps)
    found["full gradient"] = everything.gradient_norms.square()
    return level, found


Errors = tuple[dict[str, LeastSquaresError], float]


def consistent_or_not(run: Run, steps: int) -> Errors:
    """The exercise's lower bound, and when it keeps descent away from the solution."""
    n, d = 6, 3
    x = torch.linalg.qr(run.randn(n, d)).Q * torch.tensor([1.0, 0.8, 0.6]).double()
    truth = run.randn(d)
    consistent = x @ truth
    inconsistent = consistent + 0.3 * run.randn(n)
    top = float(torch.linalg.matrix_norm(x, 2)) ** 2
    eta = min(1 / (2 * top), 1 / (n * float(x.square().sum(1).max())))
    start = run.randn(d)
    step_sizes = [eta] * steps
    paths = {
        "inconsistent": expected_least_squares_error(x, inconsistent, start, step_sizes),
        "consistent": expected_least_squares_error(x, consistent, start, step_sizes),
    }
    # along the top eigenvector, and with a step for which 1 - 2 η ‖XᵀX‖ < 0
    along = truth + torch.linalg.eigh(x.T @ x).eigenvectors[:, -1]
    long = 2 / top
    one = expected_least_squares_error(x, consistent, along, [long])
    edge = expected_least_squares_error(x, consistent, along, [1 / (2 * top)])
    for name, path in paths.items():
        # until the error of the consistent system is as small as rounding
        clear = path.distance[1:] > 1e-12 * path.distance[0]
        says = run.states(
            "L-144",
            r"\eta\le\tfrac1{2\|X^\top X\|}:\ \mathbb E\|w_{k+1}-w_\star\|^2\,/\,\eta^2\,\mathbb E"
            r"\|\nabla\ell_i(w_k)\|^2\ge1",
        )
        says.at_least(
            torch.cat(
                [
                    (path.distance[1:] / (eta**2 * path.noise[:-1]))[clear],
                    edge.distance[1:] * (2 * top) ** 2 / edge.noise[:-1],
                ]
            ),
            1.0,
            1e-9,
            where=f"{name} system, {int(clear.sum())} steps, exact expectations; and equality at the largest step, "
            "from w⋆ plus the top eigenvector",
        )
        says.fails("η = 2/‖XᵀX‖, from w⋆ plus the top eigenvector", one.distance[1:] / (long**2 * one.noise[:-1]))
    floor = stochastic_error_floor(x, inconsistent, eta)
    # rows of one length, from the solution: the first step is at the floor
    even = x / x.norm(dim=1, keepdim=True)
    gentle = min(1 / (2 * float(torch.linalg.matrix_norm(even, 2)) ** 2), 1 / n)
    best = torch.linalg.lstsq(even, inconsistent).solution
    evenly = expected_least_squares_error(even, inconsistent, best, [gentle] * steps).distance[1:]
    says = run.states(
        "L-144",
        r"Xw\ne y \text{ for all } w:\ \mathbb E\|w_{k+1}-w_\star\|^2\ge\eta^2\min_wn"
        r"\textstyle\sum_i\|x_i\|^2(x_i^\top w-y_i)^2>0 \text{ for every } k",
    )
    says.at_least(
        torch.cat([paths["inconsistent"].distance[1:], evenly]),
        torch.cat(
            [
                torch.full((steps,), value, dtype=torch.float64)
                for value in (floor, stochastic_error_floor(even, inconsistent, gentle))
            ]
        ),
        1e-12,
        where="inconsistent: descent with a constant step does not converge; also rows of one length, from w⋆",
    )
    says.fails("the consistent system", paths["consistent"].distance[1:], promised=floor)
    times = torch.arange(1, steps + 1, dtype=torch.float64)
    away = paths["consistent"].distance
    clear = away[1:] > 1e-12 * away[0]
    factors = mean_square_contraction(x, eta), 1 - eta * float(torch.linalg.eigvalsh(x.T @ x)[0])
    eye = torch.eye(5, dtype=torch.float64)
    grown = expected_least_squares_error(eye, torch.zeros(5).double(), eye[0], [0.5] * 20)
    # the first holds for any step, and needs a consistent system; the second needs both
    stuck = paths["inconsistent"].distance
    for factor, formula, broken in zip(
        factors,
        (
            r"\lambda_{\max}(I-2\eta X^\top X+\eta^2n\textstyle\sum_i\|x_i\|^2x_ix_i^\top)",
            r"1-\eta\lambda_{\min}(X^\top X)",
        ),
        (
            ("the inconsistent system", (stuck[1:] / (factors[0] ** times * stuck[0]))[clear]),
            (
                "ηn max‖xᵢ‖² = 5/2 although η = 1/(2‖XᵀX‖): X is the 5 × 5 identity",
                grown.distance[1:] / (1 - 0.5) ** times[:20],
            ),
        ),
        strict=True,
    ):
        says = run.states(
            "L-144",
            r"y=Xw_\star,\ \eta n\max\|x_i\|^2\le1:\ \mathbb E\|w_k-w_\star\|^2\,/\,\rho^k\|w_0-w_\star\|^2\le1"
            rf",\ \rho={formula}<1",
        )
        says.at_most(
            (away[1:] / (factor**times * away[0]))[clear],
            1.0,
            1e-9,
            where=f"consistent: geometric convergence with a constant step, ρ = {factor:.4f}",
        )
        says.fails(*broken)
    small = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    path = expected_least_squares_error(small, 3 * small[:, 0], torch.zeros(1).double(), [0.1] * 60)
    run.refutes(
        "constant-step-never-converges",
        r"y=Xw_\star,\ \eta\le\tfrac1{2\|X^\top X\|} \implies \mathbb E\|w_k-w_\star\|^2"
        r"\not\to0: \text{ it stays above } 10^{-12}\,\mathbb E\|w_0-w_\star\|^2",
    ).at_least(
        path.distance[-1],
        1e-12 * path.distance[0],
        where="X = (1, 2), y = (3, 6), η = 1/10, k = 60: every step contracts by 0.8 or by 0.2",
    )
    run.states(
        "L-144",
        r"X=(1,2),\ \eta=\tfrac1{10}:\ \mathbb E\|w_{k+1}-w_\star\|^2=\tfrac{0.8^2+0.2^2}2\,\mathbb E\|w_k-w_\star\|^2",
    ).equal(path.distance[1:21] / path.distance[:20], (0.8**2 + 0.2**2) / 2, 1e-12)
    return paths, floor


def plot(axes: Any, plateau: Plateau, errors: Errors) -> None:
    left, right = axes[0]
    level, paths = plateau
    for (name, values), color in zip(paths.items(), COLORS, strict=False):
        left.semilogy(values.clamp_min(1e-12), color=color, label=name)
    left.axhline(level, linestyle="--", color="0.4", label="stationary value")
    left.set(
        xlabel="iteration k",
        ylabel=r"$\mathbb{E}\,\|\nabla\ell(w_k)\|^2$",
        title="the last iterate",
        ylim=(level / 300, None),
    )
    left.legend()
    found, floor = errors
    for (name, path), color in zip(found.items(), (COLORS[1], COLORS[0]), strict=True):
        # below that there is only rounding
        clear = path.distance[path.distance > 1e-16]
        right.semilogy(clear, color=color, label=f"{name} system")
    right.axhline(floor, linestyle="--", color="0.4", label="floor, inconsistent")
    right.set(
        xlabel="iteration k",
        ylabel=r"$\mathbb{E}\,\|w_k-w_\star\|^2$",
        title="a constant step on least squares",
    )
    right.legend()
