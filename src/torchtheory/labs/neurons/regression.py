"""Least squares and logistic regression: gradients, minimizers, and when there is none."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from torchtheory.data.synthetic import linear_sample, logistic_sample, separable_gaussians
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.regression import (
    NoMinimizer,
    least_squares,
    logistic_gradient,
    logistic_hessian,
    logistic_loss,
    logistic_regression,
    logistic_smoothness,
)
from torchtheory.neurons.separability import max_margin, weakly_separating_direction


@lab(
    "regression",
    room="neurons",
    covers=["N-20", "N-21"],
    title="Least squares and logistic regression, down to where the minimizer ceases to exist",
    errata=["least-squares-transposed"],
    full={"samples": 500, "dimension": 20, "trials": 60, "steps": 200_000, "epochs": 60},
    least={"samples": 10, "dimension": 2, "trials": 1, "steps": 1_000},
)
def regression(
    run: Run,
    samples: int = 120,
    dimension: int = 4,
    trials: int = 10,
    steps: int = 4000,
    epochs: int = 12,
) -> None:
    """Both regressions are fitted to data of their own model and compared with what is promised.

    Least squares: the residual is orthogonal to every feature, the gradient is the one calculus
    gives, and gradient descent from 0 finds the minimizer of smallest norm where there are many.
    Logistic regression: the loss is convex and max‖x‖²/4-smooth, and Newton, gradient descent and
    SGD agree on its minimizer. On data that a hyperplane separates there is none: the loss goes
    to 0, the weights to infinity, and their direction to that of the largest margin.

    Args:
        samples: of the data.
        dimension: of the inputs.
        trials: random samples for which the minimizer may not exist.
        steps: of descent where the minimizer is at infinity.
        epochs: of stochastic gradient descent.
    """
    linear(run, samples, dimension)
    minimum_norm(run, dimension)
    printed_formula(run, dimension)
    calculus(run, samples, dimension)
    curves = minimizer(run, samples, dimension, epochs)
    existence(run, trials)
    path = divergence(run, steps)

    line = linear_sample(30, 1, noise=0.5, generator=run.generator)
    run.figure(
        "least-squares",
        lambda axes: plot_least_squares(axes, line.x, line.y),
        caption="The fitted line with its residuals, and the loss as a function of slope and "
        "intercept with gradient descent from 0.",
        grid=(1, 2),
    )
    run.figure(
        "logistic-loss",
        lambda axis: plot_curves(axis, curves),
        caption="Excess of the logistic loss over its minimum: Newton, gradient descent at step "
        "1/L, and SGD by epochs.",
    )
    run.figure(
        "separable",
        lambda axes: plot_divergence(axes, path),
        caption="Gradient descent on separable data: the loss vanishes and the norm grows like the "
        "logarithm of time. Right, a sample whose mean is far from the largest-margin direction: "
        "the angle closes, slowly.",
        grid=(1, 3),
        size=(10.5, 3.0),
    )


def half_sum_of_squares(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (x @ w - y).square().sum() / 2


def gradient_of(function: Any, w: Tensor, *data: Tensor) -> Tensor:
    """Automatic differentiation, which knows none of the formulas."""
    w = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(w, *data), w)
    return found


def linear(run: Run, samples: int, dimension: int) -> None:
    """Orthogonality, gradient, minimality, and a solver by somebody else."""
    x, y, planted, _ = linear_sample(samples, dimension, generator=run.generator)
    fit = least_squares(x, y)
    fresh_x = run.randn(samples, dimension)
    fresh = fresh_x @ planted + 0.1 * run.randn(samples) - fresh_x @ fit.weight
    says = run.states("N-20", r"X(y-X^\top w^\star)=0:\ \text{the residual is orthogonal to every feature}")
    says.equal(x.T @ fit.residual, within=1e-9)
    says.fails("residual on data it was not fitted to", fresh_x.T @ fresh)
    w = run.randn(dimension)
    run.states("N-20", r"\nabla\tfrac12\|X^\top w-y\|^2=X(X^\top w-y)").equal(
        x.T @ (x @ w - y), gradient_of(half_sum_of_squares, w, x, y), 1e-10
    )
    nearby = fit.weight + 0.01 * run.randn(1000, dimension)
    losses = ((nearby @ x.T - y) ** 2).sum(1) / 2
    says = run.states("N-20", r"\ell(w)\ge\ell(w^\star)")
    says.at_least(losses, fit.loss, 1e-12)
    says.fails(
        "the weights that made the data in place of the minimizer",
        fit.loss,
        promised=half_sum_of_squares(planted, x, y),
    )
    run.states("N-20", r"w^\star=(XX^\top)^{-1}Xy").equal(fit.weight, torch.linalg.solve(x.T @ x, x.T @ y), 1e-9)


def minimum_norm(run: Run, dimension: int) -> None:
    """More features than samples: which of the many minimizers?"""
    x, y, *_ = linear_sample(2 * dimension, 5 * dimension, generator=run.generator)
    fit = least_squares(x, y)
    step = 1 / torch.linalg.matrix_norm(x, ord=2) ** 2
    ends = []
    for start in (torch.zeros_like(x[0]), run.randn(x.shape[1])):
        w = start
        for _ in range(3000):
            w = w - step * x.T @ (x @ w - y)
        ends.append(w)
    says = run.states("N-20", r"XX^\top \text{ singular: gradient descent from } 0 \text{ ends at } X^{\top+}y")
    says.equal(ends[0], fit.weight, 1e-7)
    says.fails("started elsewhere", ends[1])
    blind = run.randn(200, x.shape[1])
    blind = blind - blind @ torch.linalg.pinv(x) @ x
    others = fit.weight + blind
    says = run.states("N-20", r"\|w\|\ge\|X^{\top+}y\| \text{ for every } w \text{ that fits as well}")
    says.at_least(others.norm(dim=1), fit.weight.norm(), 1e-12)
    says.fails("w that does not fit: half of it", (fit.weight / 2).norm())


def printed_formula(run: Run, dimension: int) -> None:
    """The formulas as printed, where their shapes happen to match: as many samples as features."""
    columns = run.randn(dimension, dimension)
    y = run.randn(dimension)
    w = run.randn(dimension)

    def loss(w: Tensor) -> Tensor:
        return (columns.T @ w - y).square().sum() / 2

    run.refutes(
        "least-squares-transposed", r"X\in\mathbb R^{d\times s}:\ \nabla\tfrac12\|X^\top w-y\|^2=X^\top Xw-X^\top y"
    ).equal(
        gradient_of(loss, w),
        columns.T @ columns @ w - columns.T @ y,
        1e-9,
        where=f"d = s = {dimension}; for d ≠ s the printed product is not defined",
    )
    printed = torch.linalg.solve(columns.T @ columns, columns.T @ y)
    right = torch.linalg.solve(columns @ columns.T, columns @ y)
    says = run.states("N-20", r"X\in\mathbb R^{d\times s}:\ \nabla\ell=0 \text{ at } (XX^\top)^{-1}Xy")
    says.equal(gradient_of(loss, right), within=1e-9)
    says.fails("at the printed (XᵀX)⁻¹Xᵀy", gradient_of(loss, printed))


def calculus(run: Run, samples: int, dimension: int) -> None:
    """The logistic loss, its gradient, its curvature."""
    x, y, *_ = logistic_sample(samples, dimension, signal=2.0, generator=run.generator)
    w = run.randn(dimension)
    run.states("N-21", r"-\log\sigma((2y-1)w^\top x)=-y\log p-(1-y)\log(1-p)").equal(
        logistic_loss(w, x, y), binary_cross_entropy(torch.sigmoid(x @ w), y), 1e-12
    )
    signs = 2 * y - 1
    says = run.states("N-21", r"\nabla\ell=\tfrac1s\textstyle\sum_i(\sigma(w^\top x_i)-y_i)x_i")
    says.equal(logistic_gradient(w, x, y), gradient_of(logistic_loss, w, x, y), 1e-12)
    says.fails("labels ±1 in place of 0 and 1", x.T @ (torch.sigmoid(x @ w) - signs) / samples)
    places = 3 * run.randn(200, dimension)
    lowest = torch.stack([torch.linalg.eigvalsh(logistic_hessian(v, x))[0] for v in places])
    squared = torch.stack([squared_error_curvature(v, x, y) for v in places])
    says = run.states("N-21", r"\nabla^2\ell\succeq0:\ \lambda_{\min}\ge0")
    says.at_least(lowest, 0, 1e-12)
    says.fails("squared error in place of cross-entropy", squared)
    run.states("N-21", r"\nabla^2\ell \text{ by automatic differentiation is } \tfrac1s\sum p(1-p)xx^\top").equal(
        logistic_hessian(w, x),
        torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda v: logistic_loss(v, x, y), w
        ),
        1e-12,
    )
    largest = torch.stack([torch.linalg.eigvalsh(logistic_hessian(v, x))[-1] for v in (0 * w, *places)])
    radius = float(x.square().sum(1).max())
    says = run.states("N-21", r"\lambda_{\max}(\nabla^2\ell)\le L=\lambda_{\max}(XX^\top)/4s\le\max\|x\|^2/4")
    says.at_most(
        torch.cat([largest, largest.new_tensor([logistic_smoothness(x)])]),
        torch.cat([torch.full_like(largest, logistic_smoothness(x)), largest.new_tensor([radius / 4])]),
        1e-12,
    )
    says.fails(
        "exponential in place of logistic loss",
        torch.stack([exponential_curvature(v, x, y) for v in places]),
        promised=radius / 4,
    )


def exponential_curvature(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Largest eigenvalue of the Hessian of the mean of exp(-(2y - 1) w·x)."""
    curvature = torch.exp((1 - 2 * y) * (x @ w))
    values: Tensor = torch.linalg.eigvalsh((x.T * curvature) @ x / len(x))
    return values[-1]


def squared_error_curvature(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Least eigenvalue of the Hessian of the mean of (σ(w·x) - y)²/2."""
    p = torch.sigmoid(x @ w)
    curvature = (p * (1 - p)) ** 2 + (p - y) * p * (1 - p) * (1 - 2 * p)
    values: Tensor = torch.linalg.eigvalsh((x.T * curvature) @ x / len(x))
    return values[0]


def minimizer(run: Run, samples: int, dimension: int, epochs: int) -> dict[str, Tensor]:
    """Three methods, one minimizer."""
    x, y, *_ = logistic_sample(samples, dimension, signal=2.0, generator=run.generator)
    newton = logistic_regression(x, y)
    first = logistic_regression(x, y, steps=1)
    descent = logistic_regression(x, y, method="gradient")
    stochastic = logistic_regression(x, y, method="stochastic", steps=epochs, generator=run.generator)
    says = run.states("N-21", r"\nabla\ell(w^\star)=0 \text{ at the minimizer Newton's method finds}")
    says.equal(logistic_gradient(newton.weight, x, y), within=1e-9)
    says.fails("after one step only", logistic_gradient(first.weight, x, y))
    run.states("N-21", r"\text{gradient descent at step } 1/L \text{ ends at the same } w^\star").equal(
        descent.weight, newton.weight, 1e-6
    )
    says = run.states("N-21", r"\max_t\ell(w_{t+1})-\ell(w_t)\le0 \text{ at step } 1/L")
    says.at_most(descent.losses.diff().max(), 0, 1e-14)
    rising = logistic_regression(x, y, method="gradient", step=30 / logistic_smoothness(x), steps=50).losses
    says.fails("step 30/L", rising.diff().max())
    wild = logistic_regression(x, y, method="stochastic", steps=2, step=100.0, generator=run.generator)
    says = run.states(
        "N-21",
        r"\text{SGD, one example per step, lowers the loss: the excess } \ell(w_t)-\ell(w^\star)"
        r"\text{ at the end is below that at the start}",
    )
    # also one pass with so short a step that the excess is about halved
    gentle = logistic_regression(x, y, method="stochastic", steps=1, step=1.5 / samples, generator=run.generator)
    says.below(
        torch.stack([run_.losses[-1] for run_ in (stochastic, gentle)]) - newton.losses[-1],
        newton.losses[0] - newton.losses[-1],
    )
    says.fails("step 100", wild.losses[-1] - newton.losses[-1])
    best = newton.losses[-1]
    return {
        "Newton (iterations)": newton.losses - best,
        "gradient descent (iterations)": descent.losses - best,
        "SGD (epochs)": stochastic.losses - best,
    }


def existence(run: Run, trials: int) -> None:
    """A minimizer exists iff no direction separates the classes, not even weakly."""
    disagree, without = [], 0
    for _ in run.track(range(trials), "existence"):
        x, signs = run.randn(24, 12), run.signs(24)
        direction = weakly_separating_direction(x, signs, bias=False)
        disagree.append(float((balance(x, signs) > 1e-6) != (direction is not None)))
        without += direction is not None
    run.states(
        "N-21",
        r"\text{a minimizer exists iff no } v \text{ has } (2y_i-1)v^\top x_i\ge0, \text{ not all }"
        r"0: \text{ exceptions}",
    ).equal(disagree, where=f"{trials} random labelings of 24 points in 12 dimensions, {without} without one")
    x, signs = run.randn(100, 5), run.signs(100)
    planted = separable_gaussians(100, 5, margin=0.1, generator=run.generator)
    says = run.states(
        "N-21",
        r"\text{the pulls } |p_i-y_i| \text{ of a minimizer cancel: }"
        r"\|\textstyle\sum|p_i-y_i|(2y_i-1)x_i\|/\sum|p_i-y_i|=0",
    )
    says.equal(balance(x, signs), within=1e-8)
    says.fails("separable classes: never below their margin", balance(planted.x, planted.y))
    x = torch.tensor([[0.0], [1.0], [1.0], [2.0]], dtype=torch.float64)
    touching = torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    mixed = torch.tensor([-1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    says = run.states("N-21", r"\text{classes that touch have no minimizer either}")
    says.equal(weakly_separating_direction(x, touching) is not None, True)
    says.fails("overlapping classes", weakly_separating_direction(x, mixed) is not None)


def balance(x: Tensor, signs: Tensor) -> float:
    """Norm of the weighted mean of the signed points where Newton's method ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoMinimizer)
        fit = logistic_regression(x, (signs + 1) / 2, steps=60, tolerance=1e-12)
    pulls = torch.sigmoid(-signs * (x @ fit.weight))
    return float(((pulls * signs) @ x).norm() / pulls.sum())


def divergence(run: Run, steps: int) -> dict[str, Tensor]:
    """Gradient descent on separable data, and on data that overlap."""
    x, signs, *_ = separable_gaussians(40, 2, margin=0.2, generator=run.generator)
    y = (signs + 1) / 2
    best = max_margin(x, signs, bias=False)
    # nothing separates points that have both labels, and their lengths and smoothness are the same
    both_x, both_y = torch.cat([x, x]), torch.cat([y, 1 - y])
    marks = sorted({round(10 ** (k / 4)) for k in range(60) if 10 ** (k / 4) <= steps})
    path, overlap = descend(x, y, marks), descend(both_x, both_y, marks)
    t = torch.tensor(marks, dtype=torch.float64)

    def losses_of(path: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([logistic_loss(w, x, y) for w in path])

    def ceiling_of(x: Tensor, margin: float) -> Tensor:
        """Gradient descent is never worse than L‖u‖²/2t above any u; take u = w* log(t)/γ."""
        return 1 / t + logistic_smoothness(x) * (t.log() / margin).square() / (2 * t)

    losses, ceiling = losses_of(path, x, y), ceiling_of(x, best.margin)
    # near the bounds: two long points that differ little along w*, and a single point
    narrow, one = (torch.tensor(v, dtype=torch.float64) for v in ([[10.0, 1.0], [-10.0, 1.0]], [[1.0]]))
    paths = {points: descend(points, torch.ones(len(points)).double(), marks) for points in (narrow, one)}
    says = run.states(
        "N-21", r"\text{separable: } \ell(w_t)\to0, \text{ as } \ell(w_t)\le\tfrac1t+\tfrac{L\log^2t}{2\gamma^2t}"
    )
    says.at_most(
        torch.cat(
            [losses, *(losses_of(path, points, torch.ones(len(points)).double()) for points, path in paths.items())]
        ),
        torch.cat([ceiling, ceiling_of(narrow, 1.0), ceiling_of(one, 1.0)]),
        where="a random sample, the points (±10, 1), and a single one",
    )
    says.fails("each point with both labels", losses_of(overlap, both_x, both_y)[-1], promised=ceiling[-1])

    def floor_of(points: Tensor, ceiling: Tensor) -> Tensor:
        lowest: Tensor = -torch.log(torch.expm1(ceiling)) / points.norm(dim=1).max()
        return lowest

    floor = floor_of(x, ceiling)
    says = run.states(
        "N-21", r"\text{separable: } \|w_t\|\to\infty, \text{ as } \|w_t\|\ge-\log(e^{\ell(w_t)}-1)/\max\|x\|"
    )
    says.at_least(
        torch.cat([path.norm(dim=1), paths[one].norm(dim=1)]),
        torch.cat([floor, floor_of(one, ceiling_of(one, 1.0))]),
        where="a random sample, and a single point",
    )
    says.fails("each point with both labels", overlap[-1].norm(), promised=floor[-1])
    angle = direction(run, marks)
    return {"steps": torch.tensor(marks), "loss": losses, "norm": path.norm(dim=1), "angle": angle}


def direction(run: Run, marks: list[int]) -> Tensor:
    """A sample whose mean points far away from the largest margin, until time corrects it."""
    x = torch.eye(2, dtype=torch.float64)[[0] * 20 + [1]]
    signs = torch.ones(21, dtype=torch.float64)
    signs[::2] = -1
    x = signs.unsqueeze(1) * x
    best = max_margin(x, signs, bias=False).weight
    undecided = torch.cat([x, x[-1:]]), torch.cat([signs, -signs[-1:]])

    def angles(x: Tensor, signs: Tensor) -> Tensor:
        path = descend(x, (signs + 1) / 2, marks)
        return torch.arccos((path @ best / path.norm(dim=1)).clamp(-1, 1))

    found = angles(x, signs)
    decades = slice(0, None, 4)
    says = run.states(
        "N-21", r"\text{separable: } \angle(w_t,w^*) \text{ to the largest margin falls, decade by decade}"
    )
    says.below(
        found[decades].diff(), 0, where="20 points at ±e₁ and one at ±e₂: the mean is near e₁, w* is between the two"
    )
    says.fails("not separable: the point at ±e₂ once more, with the other label", angles(*undecided)[decades].diff())
    return found


def descend(x: Tensor, y: Tensor, marks: list[int]) -> Tensor:
    """Gradient descent at step 1/L from 0; the weights after the given numbers of steps."""
    step = 1 / logistic_smoothness(x)
    w = torch.zeros_like(x[0])
    kept, done = [], 0
    for mark in marks:
        for _ in range(mark - done):
            w = w - step / len(x) * (torch.sigmoid(x @ w) - y) @ x
        done = mark
        kept.append(w)
    return torch.stack(kept)


def plot_least_squares(axes: Any, x: Tensor, y: Tensor) -> None:
    left, right = axes[0]
    fit = least_squares(x, y, intercept=True)
    line = torch.linspace(float(x.min()) - 0.2, float(x.max()) + 0.2, 2, dtype=x.dtype)
    fitted = x[:, 0] * fit.weight[0] + fit.bias
    left.vlines(x[:, 0], torch.minimum(y, fitted), torch.maximum(y, fitted), color="0.6", linewidth=1)
    left.plot(x[:, 0], y, "o", markersize=4, label="data")
    left.plot(line, line * fit.weight[0] + fit.bias, color=COLORS[1], label="least squares")
    left.set(xlabel="x", ylabel="y")
    left.legend()
    reach = 1.4 * float(torch.maximum(fit.weight[0].abs(), fit.bias.abs())) + 0.3
    grid = torch.linspace(-reach, reach, 121, dtype=x.dtype)
    slope, offset = torch.meshgrid(grid, grid, indexing="xy")
    errors = slope[..., None] * x[:, 0] + offset[..., None] - y
    right.contour(slope, offset, errors.square().sum(-1) / 2, levels=14, cmap="Greys_r", linewidths=0.8)
    design = torch.cat([x, torch.ones_like(x)], 1)
    rate = 0.15 / torch.linalg.matrix_norm(design, ord=2) ** 2
    w = torch.zeros(2, dtype=x.dtype)
    steps = [w]
    for _ in range(60):
        w = w - rate * design.T @ (design @ w - y)
        steps.append(w)
    walk = torch.stack(steps)
    right.plot(walk[:, 0], walk[:, 1], ".-", color=COLORS[0], linewidth=1, label="gradient descent")
    right.plot(*fit.weight, fit.bias, "*", color=COLORS[1], markersize=12, label="minimizer")
    right.set(xlabel="slope", ylabel="intercept", aspect="equal")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def plot_curves(axis: Any, curves: dict[str, Tensor]) -> None:
    for (name, excess), style in zip(curves.items(), ("o-", "-", "s-"), strict=True):
        shown = excess.clamp_min(1e-16)
        axis.semilogy(range(len(shown)), shown, style, markersize=4, label=name)
    axis.set(xlabel="iterations or epochs", ylabel=r"$\ell(w_t) - \ell(w^\star)$")
    axis.set(xlim=(-0.5, 60), ylim=(1e-16, 2), yticks=[10.0**-k for k in (0, 4, 8, 12, 16)])
    axis.minorticks_off()
    axis.legend()


def plot_divergence(axes: Any, path: dict[str, Tensor]) -> None:
    panels = zip(axes[0], ("loss", "norm", "angle"), strict=True)
    labels = {"loss": "loss", "norm": r"$\|w_t\|$", "angle": "angle to the largest margin (rad)"}
    for axis, name in panels:
        axis.plot(path["steps"], path[name], "o-", markersize=3)
        axis.set(xscale="log", xlabel="steps t", ylabel=labels[name])
        if name == "loss":
            axis.set(yscale="log")
        axis.minorticks_off()
