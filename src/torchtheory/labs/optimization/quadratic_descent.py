"""Gradient descent on quadratics, where everything is known: steps, rates, preconditioners."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.problem import Problem
from torchtheory.neurons.regression import least_squares
from torchtheory.optimization.curvature.operators import gauss_newton_operator
from torchtheory.optimization.descent.iterates import Function, gradient_descent
from torchtheory.optimization.descent.quadratic_dynamics import (
    ConditionReport,
    condition_report,
    least_squares_bound,
    preconditioned_matrix,
    quadratic_descent,
)


@lab(
    "quadratic-descent",
    room="optimization",
    covers=["L-124", "L-125", "L-126", "L-143"],
    title="On a quadratic every eigendirection shrinks by its own factor",
    errata=["quadratic-step-limit", "optimal-step-above-limit"],
    full={"size": 40, "steps": 300, "samples": 200},
    least={"size": 2, "steps": 20, "samples": 12},
)
def quadratic_descent_lab(run: Run, size: int = 6, steps: int = 60, samples: int = 30) -> None:
    """f(x) = ½xᵀQx - qᵀx, descended step by step and in closed form.

    In the basis of eigenvectors gradient descent multiplies coordinate i by 1 - ηλᵢ. So it
    converges for every step below 2/λmax, not only below 1/λmax; the best constant step is
    2/(λmax + λmin), at which the two ends of the spectrum are equally slow; and the condition
    number decides how slow, until a preconditioner makes it 1. Look at the contours before and
    after preconditioning, and at the rate as a function of the step.

    Args:
        size: dimension of the quadratic.
        steps: of descent.
        samples: of the regression.
    """
    spectrum = torch.logspace(-1, 1, size, dtype=torch.float64)
    basis, _ = torch.linalg.qr(run.randn(size, size))
    matrix = basis * spectrum @ basis.T
    linear, start = run.randn(size), run.randn(size)
    f = quadratic(matrix, linear)
    closed_form(run, f, matrix, linear, start, steps)
    report = step_limits(run, f, matrix, linear, start)
    optimal_rates(run, matrix, linear, start, report)
    preconditioning(run, matrix, linear, start)
    regression(run, samples, size, steps)
    network_condition(run, samples)
    two = condition_report(torch.diag(torch.tensor([1.0, 4.0])))
    etas = torch.linspace(0, 2.15, 300, dtype=torch.float64)
    run.curves(
        "rate-by-step",
        etas,
        {r"$\max_i(1-\eta\lambda_i)^2$": [two.rate(float(e) / two.largest) for e in etas]},
        axes=(r"step $\eta$, in units of $1/\lambda_{\max}$", "factor per step"),
        at={
            r"$1/\lambda_{\max}$": 1.0,
            r"$\eta^\star$": two.optimal_step * two.largest,
            r"$2/\lambda_{\max}$": 2.0,
        },
        ylim=(0, None),
        caption="The factor of the gap per step, max (1-ηλ)², for κ = 4: below 1 up to 2/λmax, "
        "least at 2/(λmax + λmin). The printed condition η ≤ 1/λmax excludes the optimum.",
    )
    run.figure(
        "preconditioning",
        plot_contours,
        caption="An ill-conditioned quadratic, and the same in the variables of a preconditioner: "
        "by the diagonal, and by Q itself, where one step suffices.",
        grid=(1, 3),
        size=(11.5, 3.5),
    )


def quadratic(matrix: Tensor, linear: Tensor) -> Function:
    return lambda x: (x @ matrix * x).sum(-1) / 2 - x @ linear


def closed_form(run: Run, f: Function, matrix: Tensor, linear: Tensor, start: Tensor, steps: int) -> None:
    def waved(x: Tensor) -> Tensor:
        return f(x) + x.cos().sum(-1) / 10

    off, gaps, wrong, wrong_gaps = [], [], [], []
    for eta in (0.05, 0.15, 0.19):
        exact = quadratic_descent(matrix, linear, start, eta, steps)
        done = gradient_descent(f, start, eta, steps)
        off.append((exact.points - done.points).abs().max())
        gaps.append((exact.values - done.values).abs().max())
        bent = gradient_descent(waved, start, eta, steps)
        wrong.append((exact.points - bent.points).abs().max())
        wrong_gaps.append((exact.values - bent.values).abs().max())
    says = run.states(
        "L-124",
        r"z_i^k=z_i^\star+(1-\eta\lambda_i)^k(z_i^0-z_i^\star): \text{ largest difference from simulated descent}",
    )
    says.at_most(torch.stack(off), 0, 1e-10)
    says.fails("0.1 Σ cos x is added", torch.stack(wrong))
    exact = quadratic_descent(matrix, linear, start, 0.15, steps)
    pulled, at = exact.basis.T @ linear, exact.basis.T @ start
    own = (exact.eigenvalues * at - pulled).square() / (2 * exact.eigenvalues)
    k = torch.arange(steps + 1).double()[:, None]
    # the same direction by direction, from simulated points and the printed formula for g
    g, other = (
        (exact.eigenvalues * (done.points @ exact.basis) - pulled).square() / (2 * exact.eigenvalues)
        for done in (gradient_descent(h, start, 0.15, steps) for h in (f, waved))
    )
    says = run.states("L-124", r"g_i(z^K)=(1-\lambda_i\eta)^{2K}g_i(z^0) \text{ in each of the } d \text{ directions}")
    says.equal(g, (1 - exact.eigenvalues * 0.15) ** (2 * k) * own, 1e-10)
    says.fails("0.1 Σ cos x is added", other)
    says = run.states(
        "L-124", r"f^\star=-\sum_iq_i^2/(2\lambda_i), \text{ and } f(x_k) \text{ from the sum of all directions}"
    )
    says.equal(
        [float(f(torch.linalg.solve(matrix, linear))), float(torch.stack(gaps).max())],
        [float(-(pulled.square() / (2 * exact.eigenvalues)).sum()), 0.0],
        1e-10,
    )
    says.fails(
        "0.1 Σ cos x is added",
        [float(waved(torch.linalg.solve(matrix, linear))), float(torch.stack(wrong_gaps).max())],
    )


def growth(f: Function, best: Tensor, start: Tensor, eta: float, steps: int = 400) -> float:
    """Distance from the minimizer after many steps, over the distance before."""
    last = gradient_descent(f, start, eta, steps).points[-1]
    return float((last - best).norm() / (start - best).norm())


def step_limits(run: Run, f: Function, matrix: Tensor, linear: Tensor, start: Tensor) -> ConditionReport:
    report = condition_report(matrix)
    best = torch.linalg.solve(matrix, linear)
    shares = (0.5, 1.0, 1.5, 1.9, 1.98)
    wide = 2.02 / report.largest
    says = run.states(
        "L-125",
        r"0<\eta<2/\lambda_{\max} \implies \|x_K-x^\star\|\le\max_i|1-\eta\lambda_i|^K\,"
        r"\|x_0-x^\star\|, \text{ a factor below } 1",
    )
    says.at_most(
        [growth(f, best, start, s / report.largest) for s in shares],
        [report.rate(s / report.largest) ** 200 for s in shares],
        1e-12,
        where="K = 400; η = 0.5, 1, 1.5, 1.9 and 1.98 in units of 1/λmax, κ = 100",
    )
    says.fails("η = 2.02/λmax, where no factor is below 1", growth(f, best, start, wide), promised=1)
    top = torch.linalg.eigh(matrix).eigenvectors[:, -1]
    share = float((top @ (start - best)).abs() / (start - best).norm())
    says = run.states(
        "L-125",
        r"\eta>2/\lambda_{\max} \implies \|x_K-x^\star\|\ge|\langle u_{\max},x_0-x^\star\rangle|:"
        r" \text{ no convergence}",
    )
    says.above(
        [growth(f, best, start, s / report.largest) for s in (2.0001, 2.02, 2.1, 3.0)],
        share,
        where="K = 400, relative to ‖x₀ - x⋆‖; η = 2.0001, 2.02, 2.1 and 3 in units of 1/λmax",
    )
    says.fails("η = 1.98/λmax", growth(f, best, start, 1.98 / report.largest))
    run.refutes(
        "quadratic-step-limit", r"\text{the objective falls by a constant factor below 1 only if } \eta<1/\lambda"
    ).at_least(gap_factor(1.5), 1, where="λ = 1, η = 1.5: the factor is (1 - 1.5)² = 1/4, with alternating sign of z")
    says = run.refutes(
        "optimal-step-above-limit",
        r"\eta\le1/\lambda_{\max} \text{ is the condition, and } \eta^\star=2/(\lambda_{\max}+"
        r"\lambda_{\min}) \text{ meets it}",
    )
    says.at_most(
        report.optimal_step,
        1 / report.largest,
        where="it is above 1/λmax whenever the eigenvalues differ, and η* is where the minimum "
        "of the worst factor is attained, not its value",
    )
    return report


def gap_factor(eta: float) -> float:
    """By how much one step changes z²/2."""
    done = gradient_descent(lambda z: z.square().sum(-1) / 2, torch.ones(1, dtype=torch.float64), eta, 1)
    return float(done.values[1] / done.values[0])


def optimal_rates(run: Run, matrix: Tensor, linear: Tensor, start: Tensor, report: ConditionReport) -> None:
    around = torch.linspace(0.2, 1.9, 35, dtype=torch.float64) / report.largest
    slower = [report.rate(float(e)) for e in around]
    says = run.states(
        "L-125",
        r"\eta^\star=\arg\min_\eta\max_i(1-\eta\lambda_i)^2=\frac2{\lambda_{\max}+\lambda_{\min}}"
        r": \text{ worst factor at other steps}",
    )
    says.at_least(slower, report.rate(report.optimal_step))
    says.fails("1/λmax is taken for the optimal step", slower, promised=report.rate(report.largest**-1))
    # the measured factor, once only the slowest directions are left
    away = start - torch.linalg.solve(matrix, linear)
    late = 60 * len(matrix)

    def late_factor(eta: float) -> float:
        # around the minimizer, where nothing is lost to rounding
        path = gradient_descent(quadratic(matrix, 0 * linear), away, eta, late)
        return float((path.values[late] / path.values[late - 20]) ** (1 / 20))

    says = run.states(
        "L-126", r"\text{asymptotic factor of the gap at } \eta^\star=\Bigl(\frac{\kappa-1}{\kappa+1}\Bigr)^2"
    )
    says.equal(
        late_factor(report.optimal_step),
        report.optimal_rate,
        1e-6,
        where=f"κ = {report.condition:.4g}; steps {late - 20} to {late}",
    )
    says.fails("the step 1/λmax", late_factor(1 / report.largest))
    ends = torch.tensor([report.smallest, report.largest])
    says = run.states(
        "L-126",
        r"\text{at } \eta^\star \text{ both ends are equally slow: } |1-\eta^\star\lambda_{\min}|"
        r"=|1-\eta^\star\lambda_{\max}|",
    )
    says.equal(abs(1 - report.optimal_step * report.largest), abs(1 - report.optimal_step * report.smallest), 1e-12)
    says.fails(
        "at 1/λmax",
        float((1 - ends / report.largest).abs().min()),
        promised=float((1 - ends / report.largest).abs().max()),
    )
    kappas = torch.logspace(0.01, 4, 50, dtype=torch.float64)
    rates = torch.tensor([condition_report(torch.diag(torch.tensor([1.0, k]))).optimal_rate for k in kappas.tolist()])
    tight = (1 - 2 / kappas).square()
    says = run.states("L-126", r"\Bigl(\frac{\kappa-1}{\kappa+1}\Bigr)^2\le\Bigl(1-\frac1\kappa\Bigr)^2")
    says.at_most(
        rates,
        (1 - 1 / kappas).square(),
        1e-12,
        where="the notes print (1-κ)², which is no smaller, and above 1 from κ = 2 on",
    )
    says.fails("with 2/κ in place of 1/κ, at κ from 1 to 10⁴", rates, promised=tight)


def preconditioning(run: Run, matrix: Tensor, linear: Tensor, start: Tensor) -> None:
    white = preconditioned_matrix(matrix, matrix)
    by_diagonal = preconditioned_matrix(matrix, torch.diag(matrix.diag()))
    values, vectors = torch.linalg.eigh(matrix)
    root = vectors / values.sqrt() @ vectors.T
    best = torch.linalg.solve(matrix, linear)
    done = gradient_descent(lambda u: quadratic(matrix, linear)(u @ root), start, 1.0, 1)
    plain = gradient_descent(quadratic(matrix, linear), start, 0.19, 1)
    says = run.states("L-126", r"x=Q^{-1/2}u,\ \eta=1: \text{ one step reaches the minimizer, distance}")
    says.at_most((done.points[1] @ root - best).norm(), 0, 1e-10)
    says.fails("no preconditioner", (plain.points[1] - best).norm())
    says = run.states("L-126", r"\kappa(Q^{-1/2}QQ^{-1/2})=1")
    says.equal(condition_report(white).condition, 1, 1e-9)
    says.fails("only the diagonal of Q", condition_report(by_diagonal).condition)
    # badly scaled coordinates, which a diagonal repairs
    scales = torch.logspace(-2, 2, len(matrix), dtype=torch.float64)
    mild = torch.eye(len(matrix), dtype=torch.float64) + 0.1
    scaled = scales[:, None] * mild * scales
    rows = []
    for name, Q in (("random basis", matrix), ("badly scaled", scaled)):
        for how, P in (("none", None), ("diagonal", torch.diag(Q.diag())), ("Q", Q)):
            report = condition_report(Q if P is None else preconditioned_matrix(Q, P))
            rows.append((name, how, report.condition, report.optimal_rate, report.steps_to(1e-6)))
    run.table(
        "conditioning",
        ["matrix", "preconditioner", "κ", "factor per step", "steps for 10⁻⁶"],
        rows,
        caption="At the optimal step; the diagonal repairs bad scaling, not a random basis",
    )
    says = run.states(
        "L-126", r"\text{badly scaled } Q=DMD: \kappa \text{ after dividing by the diagonal is that of } M"
    )
    says.equal(rows[4][2], condition_report(mild).condition, 1e-9)
    says.fails("without a preconditioner", rows[3][2])


def regression(run: Run, samples: int, size: int, steps: int) -> None:
    x, y = run.randn(samples, size), run.randn(samples)

    def loss(w: Tensor) -> Tensor:
        return (w @ x.T - y).square().sum(-1) / 2

    def robust(w: Tensor) -> Tensor:
        return F.huber_loss(w @ x.T, y, reduction="sum")

    w = run.randn(20, size)
    slopes = torch.func.vmap(torch.func.grad(loss))(w)
    says = run.states("L-143", r"\nabla\ell=X^\top(Xw-y)")
    says.equal(slopes, (w @ x.T - y) @ x, 1e-10)
    says.fails("Huber's loss of the residual", torch.func.vmap(torch.func.grad(robust))(w))
    spectrum, vectors = torch.linalg.eigh(x.T @ x)
    top, low = float(spectrum[-1]), float(spectrum[0])
    solution = least_squares(x, y).weight
    start = run.randn(size)
    bounds, far = [], []
    for share in (0.5, 0.95, 1.5):
        done = gradient_descent(loss, start, share / top, steps)
        bounds.append(least_squares_bound(x, start, solution, share / top, steps))
        far.append((done.points - solution).norm(dim=-1))
    bent = gradient_descent(lambda v: loss(v) - 2 * low / 5 * (v - solution).square().sum(-1), start, 0.95 / top, steps)
    says = run.states("L-143", r"\|w_t-w^\star\|\le\|I-\eta X^\top X\|^t\,\|w_0-w^\star\|")
    says.at_most(torch.stack(far), torch.stack(bounds), 1e-11, where="η = 0.5, 0.95 and 1.5 in units of 1/‖XᵀX‖")
    says.fails(
        "four fifths of the smallest curvature are taken away from the loss",
        (bent.points - solution).norm(dim=-1),
        promised=bounds[1],
    )
    slow = gradient_descent(loss, solution + vectors[:, 0], 0.95 / top, steps)
    quick = gradient_descent(loss, solution + vectors[:, -1], 0.95 / top, steps)
    curve = least_squares_bound(x, solution + vectors[:, 0], solution, 0.95 / top, steps)
    says = run.states("L-143", r"\text{equality for } w_0-w^\star \text{ along the slowest eigenvector}")
    says.equal((slow.points - solution).norm(dim=-1), curve, 1e-10)
    says.fails("along the fastest", (quick.points - solution).norm(dim=-1))
    # fewer independent rows than columns: only the part in the row space moves
    few = x[: max(1, size // 2)]
    goal = y[: len(few)]
    project = torch.linalg.pinv(few) @ few
    limit = start + torch.linalg.pinv(few) @ (goal - few @ start)
    ends = gradient_descent(
        lambda v: (v @ few.T - goal).square().sum(-1) / 2, start, 1 / torch.linalg.matrix_norm(
            few, 2).item() ** 2, 1500).points[-1]  # fmt: skip
    says = run.states(
        "L-143", r"\operatorname{rank}X<d: \text{ the limit is the solution closest to } w_0 \text{: distance from it}"
    )
    says.at_most(
        (ends - limit).norm(), 0, 1e-8, where="the factor ‖I - ηXᵀX‖ is then 1, and the bound promises nothing"
    )
    says.fails("the solution of least norm", (ends - least_squares(few, goal).weight).norm())
    still = (ends - start) - project @ (ends - start)
    says = run.states("L-143", r"\text{and the part of } w_0 \text{ outside the row space does not move}")
    says.at_most(still.norm(), 0, 1e-10)
    says.fails("the part inside", (project @ (ends - start)).norm())


def network_condition(run: Run, samples: int) -> None:
    """The report for a network given as a module: a linear layer, where it is known."""
    inputs = run.randn(samples, 3) * torch.tensor([1.0, 2.0, 5.0])
    model = nn.Linear(3, 1, bias=False).double()
    problem = Problem(model, (inputs, run.randn(samples, 1)), task="regression")
    spectrum = torch.linalg.eigvalsh(2 * inputs.T @ inputs / samples)
    found = condition_report(gauss_newton_operator(problem))
    whitened = inputs / inputs.square().mean(0).sqrt()
    other = Problem(model, (whitened, run.randn(samples, 1)), task="regression")
    says = run.states(
        "L-126", r"\kappa \text{ of a network's Gauss-Newton matrix (one linear layer: } \tfrac2nX^\top X)"
    )
    says.equal(found.condition, float(spectrum[-1] / spectrum[0]), 1e-5)
    says.fails("inputs divided by their size", condition_report(gauss_newton_operator(other)).condition)


def plot_contours(axes: Any) -> None:
    angle = math.pi / 6
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
    matrix = turn @ torch.diag(torch.tensor([1.0, 20.0]).double()) @ turn.T
    grid = torch.linspace(-1.6, 1.6, 90, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="xy")
    start = torch.tensor([1.5, 0.4], dtype=torch.float64)
    cases = [
        ("no preconditioner", torch.eye(2, dtype=torch.float64)),
        ("diagonal of Q", torch.diag(matrix.diag())),
        ("Q itself", matrix),
    ]
    for axis, (name, P) in zip(axes[0], cases, strict=True):
        seen = preconditioned_matrix(matrix, P)
        report = condition_report(seen)
        f = quadratic(seen, torch.zeros(2, dtype=torch.float64))
        heights = f(torch.stack([first, second], -1))
        path = gradient_descent(f, start, report.optimal_step, 30).points
        levels = torch.quantile(heights.flatten(), torch.tensor([0.02, 0.1, 0.25, 0.45, 0.7]).double())
        axis.contour(first, second, heights, levels=levels.tolist(), colors="0.6", linewidths=0.8)
        axis.plot(path[:, 0], path[:, 1], "o-", markersize=3, linewidth=0.6, color=COLORS[0])
        axis.plot(0, 0, "*", color=COLORS[1], markersize=10)
        axis.set_title(rf"{name}: $\kappa = {report.condition:.3g}$", fontsize=9)
        axis.set(xlabel="$u_1$", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
    axes[0, 0].set_ylabel("$u_2$")
