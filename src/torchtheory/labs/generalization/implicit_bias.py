"""Gradient descent finds the closest interpolant, and stopping it early resembles ridge."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.generalization.implicit_bias.least_norm import (
    closest_interpolant,
    effective_degrees,
    least_squares_step_limit,
    quadratic_iterate,
    ridge_predictions,
    solution_set,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.training.regularizers.shrinkage import (
    LARGEST_RATIO,
    early_stopping_factors,
    matching_steps,
    shrink,
    weight_decay_factors,
)


@lab(
    "closest-interpolant",
    room="generalization",
    covers=["M-120", "M-121", "A-70"],
    title="Of all interpolants gradient descent finds the one closest to where it started",
    errata=["least-squares-gradient-sign", "more-unknowns-than-equations-unique"],
    full={"samples": 100, "dimension": 1000, "steps": 3000},
    least={"samples": 3, "steps": 50, "dimension": 5},
)
def closest_interpolant_lab(run: Run, samples: int = 12, dimension: int = 40, steps: int = 900) -> None:
    """Least squares with more weights than equations has an affine space of exact solutions.

    Gradients are combinations of the data, so descent moves only in their span: the component of
    the start in the null space stays as it was, and the limit is the interpolant nearest to the
    start (the one of least norm if the start is 0). The same for stochastic gradient descent,
    which may keep a constant step because every example is fitted exactly in the end. Look at the
    picture of Figure 11.2: three starts, three ends on one line, all paths at right angles to it.

    Args:
        samples: fewer than the dimension, so that many interpolants exist.
        dimension: of the inputs, and so of the parameters.
        steps: of gradient descent.
    """
    run.assumes(dimension >= samples + 2, f"{samples} equations in {dimension} unknowns leave no plane of solutions")
    x = run.randn(samples, dimension)
    y = run.randn(samples)
    solution_space(run, samples, dimension)
    limit(run, x, y, steps)
    stochastic(run, x, y, steps)
    printed_errors(run, x, y)

    rows = torch.tensor([[1.0, 0.4, 0.2], [-0.2, 1.0, 0.5]], dtype=torch.float64)
    run.figure(
        "interpolants",
        lambda axes: plot_paths(axes, rows, torch.tensor([1.0, -1.0], dtype=torch.float64)),
        caption="Two equations, three weights. Left: seen along the null space the line of "
        "interpolants is a point, which every path of descent reaches. Right: the coordinate "
        "along the null space never changes, so each start keeps its own end.",
        grid=(1, 2),
    )


def solution_space(run: Run, samples: int, dimension: int) -> None:
    """The dimension of the set of minimizers, also where rows depend on each other."""
    dimensions, promised, inside = [], [], []
    for rank in range(1, samples + 1):
        x = run.randn(samples, rank) @ run.randn(rank, dimension)
        y = x @ run.randn(dimension)
        found = solution_set(x, y)
        dimensions.append(found.dimension)
        promised.append(dimension - rank)
        other = found.particular + found.null_space @ run.randn(found.dimension)
        inside.append(float((x @ other - y).norm() / y.norm()))
    says = run.states("M-120", r"\dim\{w:Xw=y\}=d-\operatorname{rank}X")
    says.equal(dimensions, promised, where=f"ranks 1 to {samples} with n = {samples}, d = {dimension}")
    says.fails("d - n, which assumes full rank", [dimension - samples] * samples)
    deficient = x.clone()
    deficient[0] = deficient[1]
    says = run.states("M-120", r"X(X^+y+Nz)=y \text{ for every } z: \text{ largest relative residual}")
    says.equal(inside, within=1e-9)
    says.fails("two equal rows with different targets: y is outside the range", solution_set(deficient, y).residual)


def limit(run: Run, x: Tensor, y: Tensor, steps: int) -> None:
    """Gradient descent from a start away from 0: where it goes, how fast, and what it keeps."""
    start = run.randn(x.shape[1])
    goal = closest_interpolant(x, y, start)
    space = solution_set(x, y)
    largest = least_squares_step_limit(x)

    def loss(w: Tensor) -> Tensor:
        return (w @ x.T - y).square().mean(-1)

    step = 0.9 * largest
    path = gradient_descent(loss, start, step, steps).points
    distance = (path - goal).norm(dim=1)
    singular = torch.linalg.svdvals(x)
    rate = (1 - 2 * step * singular.square() / len(x)).abs().max()
    times = torch.arange(len(distance)).double()
    diverging = (gradient_descent(loss, start, 1.05 * largest, steps).points - goal).norm(dim=1)
    says = run.states(
        "M-121", r"\|w_t-w_\infty\|\le q^t\|w_0-w_\infty\|,\ w_\infty=w_0+X^+(y-Xw_0),\ q=\max_i|1-2\eta\sigma_i^2/n|"
    )
    says.at_most(
        distance, rate**times * distance[0], 1e-9, where=f"η = 0.9 n/σ²max, q = {float(rate):.4f}, {steps} steps"
    )
    says.fails("a step of 1.05 n/σ²max", diverging)
    says = run.states("M-121", r"\text{the limit is } w_\infty: \text{ relative distance of a late iterate}")
    late = int((rate**times >= 1e-6).sum()) - 1  # later, rounding is all that is left
    says.at_most(
        float(distance[late] / distance[0]),
        float(rate**late),
        1e-9,
        loose="of the start only the part along the slowest direction is left by then",
        where=f"t = {late}",
    )
    says.fails(
        "the interpolant of least norm, for a start that is not 0",
        float((path[late] - space.particular).norm() / distance[0]),
    )

    def decayed(w: Tensor) -> Tensor:
        return loss(w) + 0.01 * w.square().sum(-1)

    kept = (path - start) @ space.null_space
    lost = (gradient_descent(decayed, start, step, steps).points - start) @ space.null_space
    says = run.states(
        "M-121", r"w_t-w_0\in\operatorname{row}(X) \text{ at every } t: \text{ largest component outside}"
    )
    says.equal(kept.abs().max(), within=1e-10)
    says.fails("with weight decay 0.01", lost.abs().max())
    others = goal + run.randn(50, space.dimension) @ space.null_space.T
    says = run.states("M-121", r"\|w_\infty-w_0\|\le\|w-w_0\| \text{ for every interpolant } w")
    says.at_most(float((goal - start).norm()), (others - start).norm(dim=1))
    says.fails(
        "the interpolant of least norm instead",
        float((space.particular - start).norm()),
        promised=float((goal - start).norm()),
    )


def stochastic(run: Run, x: Tensor, y: Tensor, steps: int) -> None:
    """One example at a time, constant step: exact where every example can be fitted."""

    def descend(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        eta = 1.0 / float(x.square().sum(1).max())
        order = torch.randint(0, len(x), (5 * steps,), generator=run.generator)
        for i in order.tolist():
            w = w - eta * (x[i] @ w - y[i]) * x[i]
        return w

    zero = torch.zeros(x.shape[1], dtype=torch.float64)
    least = solution_set(x, y).particular
    start = run.randn(x.shape[1])
    # a step makes the mean squared distance smaller by this share at least
    share = float(torch.linalg.svdvals(x)[-1].square() / (len(x) * x.square().sum(1).max()))
    needed = 2 * math.log(1e6 * max(float(least.norm()), float((start - least).norm()))) / share
    run.assumes(
        5 * steps >= needed,
        f"single examples come within 10⁻⁶ of the limit in about {needed:.0f} steps at these inputs, and there are "
        f"{5 * steps}",
    )
    reached = descend(x, y, zero)
    says = run.states("A-70", r"\text{stochastic gradient descent from } 0 \text{ reaches } X^+y: \text{ distance}")
    says.equal(float((reached - least).norm()), within=1e-6, where=f"constant step, {5 * steps} single examples")
    says.fails("a start outside the row space", float((descend(x, y, start) - least).norm()))
    tall = run.randn(3 * x.shape[1], x.shape[1])
    noise = run.randn(len(tall))
    best = solution_set(tall, noise).particular
    says = run.states("A-70", r"\text{from any } w_0 \text{ it reaches } X^+y+P_{\ker X}w_0: \text{ distance}")
    says.equal(float((descend(x, y, start) - closest_interpolant(x, y, start)).norm()), within=1e-6)
    says.fails(
        "more equations than weights: a constant step keeps jumping", float((descend(tall, noise, best) - best).norm())
    )


def printed_errors(run: Run, x: Tensor, y: Tensor) -> None:
    w = run.randn(x.shape[1]).requires_grad_()
    (slope,) = torch.autograd.grad((y - x @ w).square().mean(), w)
    residual = (y - x @ w).detach()
    says = run.states("M-121", r"\nabla L(w)=-\tfrac2n\sum_i(y_i-w^\top x_i)x_i")
    says.equal(slope, -2 * residual @ x / len(x), 1e-12)
    says.fails("another sign", -slope)
    run.refutes("least-squares-gradient-sign", r"\nabla L(w)=\tfrac1n\sum_i(y_i-w^\top x_i)x_i").equal(
        slope, residual @ x / len(x), 1e-9
    )
    found = solution_set(x, y)
    other = found.particular + found.null_space[:, 0]
    run.refutes("more-unknowns-than-equations-unique", r"d>n,\ X(w_1-w_2)=0\ \Rightarrow\ w_1=w_2").equal(
        float((other - found.particular).norm()),
        within=1e-9,
        where=f"‖X(w₁ - w₂)‖ = {float((x @ (other - found.particular)).norm()):.0e}",
    )


def plot_paths(axes: Any, x: Tensor, y: Tensor) -> None:
    found = solution_set(x, y)
    frame = torch.cat([found.row_space, found.null_space], dim=1)
    starts = torch.tensor([[0.0, 0, 0], [1.5, 1.0, -1.0], [-1.5, 0.5, 1.5]], dtype=torch.float64)
    left, right = axes[0]
    for k, start in enumerate(starts):
        hessian = 2 * x.T @ x / len(x)
        goal = closest_interpolant(x, y, start)
        path = torch.stack([quadratic_iterate(hessian, goal, 0.15, t, start) for t in range(80)])
        seen = path @ frame
        name = "from 0" if k == 0 else f"another start, {k}"
        left.plot(seen[:, 0], seen[:, 1], ".-", ms=3, lw=1, color=COLORS[k], label=name)
        right.plot(seen[:, 0], seen[:, 2], ".-", ms=3, lw=1, color=COLORS[k])
    ends = found.particular @ frame
    left.plot(ends[0], ends[1], "*", color=COLORS[6], ms=10, label="the interpolants")
    right.axvline(float(ends[0]), color=COLORS[6], lw=1, label="the interpolants")
    left.set(xlabel="row space, first axis", ylabel="row space, second axis")
    right.set(xlabel="row space, first axis", ylabel="null space")
    left.legend()
    right.legend()


@lab(
    "ridge-and-early-stopping",
    room="generalization",
    covers=["M-138", "M-139", "M-140", "M-141"],
    title="Ridge shrinks along singular directions; stopping early almost does the same",
    errata=["ridge-half-penalty", "ridge-eigenbasis-half-penalty"],
    full={"samples": 300, "dimension": 100},
    least={"dimension": 3, "samples": 3},
)
def ridge_and_early_stopping(run: Run, samples: int = 30, dimension: int = 12) -> None:
    """The two problems of section 11.3, with the constants the printed answers need.

    Ridge regression multiplies the component of the targets along the i-th left singular vector
    by d²/(d²+λ); gradient descent on a quadratic, k steps from 0, has come the fraction
    1-$(1-ηλ)^k$ of the way along each eigenvector; ridge λ/(λ+μ) of it. Matching them gives
    k = 1/(ημ). Look at the two filters: they agree at both ends of the spectrum and differ by at
    most 30 % in between, which is what "equals" means here.

    Args:
        samples: rows of the design.
        dimension: columns of the design, of singular values that differ by a factor of about 50.
    """
    scale = torch.logspace(-1, 0.7, dimension, dtype=torch.float64)
    x = run.randn(samples, dimension) * scale
    y = run.randn(samples)
    penalties = torch.logspace(-3, 3, 13, dtype=torch.float64).tolist()
    identity = torch.eye(dimension, dtype=torch.float64)

    def solved(penalty: float) -> Tensor:
        return torch.mv(x, torch.linalg.solve(x.T @ x + penalty * identity, x.T @ y))

    direct = torch.stack([solved(p) for p in penalties])
    halves = torch.stack([solved(p / 2) for p in penalties])
    spectral = torch.stack([ridge_predictions(x, y, p) for p in penalties])
    says = run.states(
        "M-138", r"\min\|Xw-y\|^2+\lambda\|w\|^2:\ \hat y=\sum_iu_i\tfrac{d_i^2}{d_i^2+\lambda}u_i^\top y"
    )
    says.equal(direct, spectral, 1e-9, where="λ from 1e-3 to 1e3, against the normal equations")
    says.fails("the objective with λ/2, as printed", halves)
    run.refutes(
        "ridge-half-penalty",
        r"\min\|Xw-y\|^2+\tfrac\lambda2\|w\|^2:\ \hat y=\sum_iu_i\tfrac{d_i^2}{d_i^2+\lambda}u_i^\top y",
    ).equal(halves, spectral, 1e-9)
    fit = x @ solution_set(x, y).particular
    tiny = ridge_predictions(x, y, 1e-10)
    says = run.states("M-138", r"\lambda\to0:\ \hat y\to \text{ the projection of } y \text{ on the range of } X")
    says.equal(tiny, fit, 1e-6)
    says.fails("λ = 1", ridge_predictions(x, y, 1.0))
    degrees = torch.tensor([effective_degrees(x, p) for p in penalties])
    says = run.states(
        "M-138", r"\sum_i\tfrac{d_i^2}{d_i^2+\lambda} \text{ falls with } \lambda: \text{ largest change}"
    )
    says.below(degrees.diff(), 0.0)
    says.fails("λ falling instead", degrees.flip(0).diff())
    quadratic(run, dimension, penalties)
    matching(run)


def quadratic(run: Run, dimension: int, penalties: list[float]) -> None:
    """Iterates and penalized minimizers of a quadratic in its eigenbasis."""
    basis = torch.linalg.qr(run.randn(dimension, dimension)).Q
    values = torch.logspace(-2, 1, dimension, dtype=torch.float64)
    hessian = basis @ torch.diag(values) @ basis.T
    best, start = run.randn(dimension), run.randn(dimension)

    def risk(w: Tensor) -> Tensor:
        return torch.einsum("...i,ij,...j->...", w - best, hessian, w - best) / 2

    counts = (0, 1, 2, 5, 20, 100)
    step = 1.9 / float(values[-1])
    path = gradient_descent(risk, start, step, max(counts)).points
    formula = torch.stack([quadratic_iterate(hessian, best, step, k, start) for k in counts])
    late = torch.stack([quadratic_iterate(hessian, best, step, k + 1, start) for k in counts])
    says = run.states("M-139", r"Q^\top w_k=Q^\top w^*+(I-\eta\Lambda)^kQ^\top(w_0-w^*)")
    says.equal(path[list(counts)], formula, 1e-9, where="0 to 100 steps of η = 1.9/λ_max")
    says.fails("one step more in the formula", path[list(counts)], promised=late)
    far = 200_000
    slow = [quadratic_iterate(hessian, best, c / float(values[-1]), far, start) for c in (0.5, 1.9)]
    fast = quadratic_iterate(hessian, best, 2.001 / float(values[-1]), far, start)
    says = run.states("M-139", r"w_k\to w^* \text{ if } 0<\eta<2/\lambda_{\max}: \text{ distance}")
    says.equal([float((w - best).norm()) for w in slow], within=1e-9, where=f"η = 0.5/λ_max and 1.9/λ_max, k = {far}")
    says.fails("η = 2.001/λ_max", float((fast - best).norm()))
    identity = torch.eye(dimension, dtype=torch.float64)
    shrunk = torch.stack([shrink(hessian, best, p).minimizer for p in penalties])
    solved = torch.stack([torch.linalg.solve(hessian + p * identity, hessian @ best) for p in penalties])
    doubled = torch.stack([torch.linalg.solve(hessian + 2 * p * identity, hessian @ best) for p in penalties])
    says = run.states(
        "M-140", r"\min\mathcal R+\tfrac\lambda2\|w\|^2:\ Q^\top w=[I-\lambda(\Lambda+\lambda I)^{-1}]Q^\top w^*"
    )
    says.equal(solved, shrunk, 1e-10)
    says.fails("the penalty λ‖w‖², as printed", doubled)
    run.refutes(
        "ridge-eigenbasis-half-penalty",
        r"\min\mathcal R+\lambda\|w\|^2:\ Q^\top w=[I-\lambda(\Lambda+\lambda I)^{-1}]Q^\top w^*",
    ).equal(doubled, shrunk, 1e-10)


def matching(run: Run) -> None:
    """The two filters at the matching time."""
    eta, penalty = 1e-6, 1.0
    x = torch.logspace(-5, 4, 181, dtype=torch.float64)
    stopped = early_stopping_factors(x, eta, matching_steps(eta, penalty))
    ridge = weight_decay_factors(x, penalty)
    apart = (stopped / ridge - 1).abs()
    ends = (x <= 1e-3) | (x >= 1e3)
    middle = (x > 0.3) & (x < 3)
    says = run.states(
        "M-141",
        r"\tau=\tfrac1{\eta\lambda}:\ \text{the filters agree where } \lambda_i\ll\lambda"
        r"\text{ or } \lambda_i\gg\lambda: \text{ relative difference}",
    )
    says.equal(
        apart[ends],
        within=2e-3,
        where="λ_i/λ at most 1e-3 or at least 1e3; to first order the difference is λ_i/(2λ), respectively λ/λ_i",
    )
    says.fails("λ_i between 0.3 λ and 3 λ", apart[middle])
    half = early_stopping_factors(x, eta, 2 * matching_steps(eta, penalty))
    says = run.states("M-141", r"\text{and nowhere by more than the factor } 1.2985")
    says.at_most(apart, LARGEST_RATIO - 1, 1e-5)
    says.fails("stopped at twice that time", (half / ridge - 1).abs())
    rows = [
        (float(v), float(w), float(s), float(s / w - 1))
        for v, w, s in zip(x[::20], ridge[::20], stopped[::20], strict=True)
    ]
    run.table(
        "filters",
        ["λ_i/λ", "ridge", "early stopping", "relative difference"],
        rows,
        caption="Fraction of the way to the minimizer along an eigenvector, τ = 1/(ηλ)",
    )

    def plot(axes: Any) -> None:
        left, right = axes[0]
        left.semilogx(x, ridge, label=r"ridge, $\lambda_i/(\lambda_i+\lambda)$", color=COLORS[0])
        left.semilogx(x, stopped, label=r"stopped at $\tau=1/(\eta\lambda)$", color=COLORS[1], ls="--")
        left.set(xlabel=r"$\lambda_i/\lambda$", ylabel="fraction of the way")
        left.legend()
        right.semilogx(x, stopped / ridge - 1, color=COLORS[2])
        right.set(xlabel=r"$\lambda_i/\lambda$", ylabel="relative difference")

    run.figure(
        "filters",
        plot,
        caption="The two filters are nearly the same step, and part by at most 30 % in the middle.",
        grid=(1, 2),
    )
