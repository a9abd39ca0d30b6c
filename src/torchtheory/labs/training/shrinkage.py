"""Weight decay and early stopping, direction by direction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.training.regularizers.shrinkage import (
    LARGEST_RATIO,
    WORST_RATIO_AT,
    early_stopping_factors,
    factor_ratio,
    matching_steps,
    shrink,
    weight_decay_factors,
)

EXACT = 1e-12


@lab(
    "weight-decay-and-early-stopping",
    room="training",
    covers=["N-124", "N-126"],
    title="Weight decay shrinks along eigenvectors, and early stopping almost does the same",
    errata=["taylor-without-half", "early-stopping-time"],
    full={"samples": 400, "dimension": 40},
    least={"dimension": 3, "samples": 5},
)
def weight_decay_and_early_stopping(run: Run, samples: int = 60, dimension: int = 8) -> None:
    """A regression with a spread-out spectrum, solved with a penalty and by stopped descent.

    The penalized minimizer is the unpenalized one with its coordinates in the Hessian's
    eigenbasis multiplied by λ/(λ+μ): exact for the quadratic, right to first order in μ for a
    logistic loss. Stopped gradient descent multiplies by 1-$(1-ηλ)^t$. At t = 1/(ημ) the two agree
    for λ far below and far above μ; in between they differ by up to 30 %. Look at the two curves
    of factors, and at the two paths through the plane.

    Args:
        samples: rows of the design.
        dimension: columns of the design.
    """
    run.assumes(samples >= dimension + 2, f"{samples} samples leave some of {dimension} directions flat")
    spread = torch.logspace(-1.5, 1.0, dimension, dtype=torch.float64)
    x = run.randn(samples, dimension) * spread
    y = x @ run.randn(dimension) + run.randn(samples)
    hessian = x.T @ x / samples
    best = torch.linalg.lstsq(x, y).solution
    shrinks(run, x, y, hessian, best)
    first_order(run, samples, dimension)
    filters(run, hessian, best)
    paths(run, hessian, best)


def shrinks(run: Run, x: Tensor, y: Tensor, hessian: Tensor, best: Tensor) -> None:
    """The formula against the solution of the penalized least squares problem."""
    decays = torch.logspace(-3, 2, 11, dtype=torch.float64).tolist()
    n = len(x)
    identity = torch.eye(len(hessian), dtype=torch.float64)
    penalized = torch.stack(
        [
            torch.linalg.lstsq(
                torch.cat([x, math.sqrt(n * mu) * identity]),
                torch.cat([y, torch.zeros(len(identity), dtype=torch.float64)]),
            ).solution
            for mu in decays
        ]
    )
    formula = torch.stack([shrink(hessian, best, mu).minimizer for mu in decays])
    far = torch.stack([shrink(hessian, best + 1, mu).minimizer for mu in decays])
    says = run.states("N-124", r"\theta_\mu^\star=(H+\mu I)^{-1}H\theta^\star \text{ for least squares}")
    says.equal(penalized, formula, 1e-10, where="the penalized problem solved as least squares with d more rows")
    says.fails("a point that is not the minimizer", penalized, promised=far)
    basis = shrink(hessian, best, 1.0)
    coordinates = penalized @ basis.basis / (best @ basis.basis)
    factors = torch.stack([weight_decay_factors(basis.eigenvalues, mu) for mu in decays])
    says = run.states("N-124", r"(Q\theta_\mu^\star)_i=\tfrac{\lambda_i}{\lambda_i+\mu}(Q\theta^\star)_i")
    says.equal(coordinates, factors, 1e-8)
    says.fails("coordinates in the standard basis", penalized / best)
    indefinite = torch.tensor([-0.5, -0.1, 0.2], dtype=torch.float64)
    says = run.states("N-124", r"0<\tfrac{\lambda}{\lambda+\mu}<1 \text{ where } \lambda>0: \text{ distance from } 1/2")
    says.below((factors - 0.5).abs(), 0.5)
    says.fails("λ < 0 with μ = 1: a saddle", (weight_decay_factors(indefinite, 1.0) - 0.5).abs())
    run.refutes(
        "taylor-without-half",
        r"\ell(\theta)=\ell(\theta^\star)+(\theta-\theta^\star)^\top H(\theta-\theta^\star)"
        r" \text{ for a quadratic } \ell",
    ).equal(
        float(_risk(x, y, penalized[-1])),
        float(_risk(x, y, best) + (penalized[-1] - best) @ hessian @ (penalized[-1] - best)),
        1e-10,
        where="with the factor 1/2 the two sides agree, next claim",
    )
    moved = penalized - best
    taylor = torch.einsum("ki,ij,kj->k", moved, hessian, moved)
    start = _risk(x, y, best)
    says = run.states(
        "N-124", r"\ell(\theta)=\ell(\theta^\star)+\tfrac12(\theta-\theta^\star)^\top H(\theta-\theta^\star)"
    )
    says.equal(torch.stack([_risk(x, y, p) for p in penalized]), start + taylor / 2, 1e-10)
    says.fails("the factor 1/2 left out", torch.stack([_risk(x, y, p) for p in penalized]), promised=start + taylor)


def first_order(run: Run, samples: int, dimension: int) -> None:
    """A loss that is not quadratic: the formula's error is of second order in μ."""
    x = run.randn(4 * samples, min(dimension, 5))
    y = torch.where(run.rand(len(x)) < torch.sigmoid(x @ run.randn(x.shape[1])), 1.0, -1.0)

    def minimize(mu: float) -> tuple[Tensor, Tensor]:
        theta = torch.zeros(x.shape[1], dtype=torch.float64)
        for _ in range(60):  # Newton, far beyond its quadratic convergence
            p = torch.sigmoid(-y * (x @ theta))
            gradient = -(x * (y * p)[:, None]).mean(0) + mu * theta
            h = x.T @ (x * (p * (1 - p))[:, None]) / len(x)
            theta = theta - torch.linalg.solve(h + mu * torch.eye(len(theta), dtype=torch.float64), gradient)
        return theta, h

    best, hessian = minimize(0.0)
    decays = torch.logspace(-5, -3, 7, dtype=torch.float64).tolist()
    exact = [minimize(mu)[0] for mu in decays]
    error = [float((shrink(hessian, best, mu).minimizer - e).norm()) for mu, e in zip(decays, exact, strict=True)]
    wrong = [float((shrink(2 * hessian, best, mu).minimizer - e).norm()) for mu, e in zip(decays, exact, strict=True)]
    says = run.states(
        "N-124", r"\text{logistic loss: } \|\theta_\mu^\star-(H+\mu I)^{-1}H\theta^\star\|=O(\mu^2)\text{, exponent}"
    )
    says.slope(decays, error, 2.0, 0.02, against=(1.0, 3.0), where="μ from 1e-5 to 1e-3; minimizers by Newton's method")
    says.fails("twice the Hessian, as the expansion without 1/2 has it", decays, wrong)


def filters(run: Run, hessian: Tensor, best: Tensor) -> None:
    """The factors of early stopping, exactly, and how far they are those of weight decay."""
    eigenvalues, basis = torch.linalg.eigh(hessian)
    step = 0.2 / float(eigenvalues[-1])
    theta, counts = torch.zeros_like(best), (1, 10, 100, 1000)
    reached = {}
    for t in range(1, max(counts) + 1):
        theta = theta - step * hessian @ (theta - best)
        if t in counts:
            reached[t] = basis.T @ theta / (basis.T @ best)
    says = run.states(
        "N-126", r"\text{gradient descent from } 0:\ (Q\theta_t)_i=(1-(1-\eta\lambda_i)^t)(Q\theta^\star)_i"
    )
    says.equal(
        torch.stack([reached[t] for t in counts]),
        torch.stack([early_stopping_factors(eigenvalues, step, t) for t in counts]),
        1e-9,
        where="after 1, 10, 100 and 1000 steps",
    )
    says.fails(
        "one step fewer in the formula",
        torch.stack([reached[t] for t in counts]),
        promised=torch.stack([early_stopping_factors(eigenvalues, step, t - 1) for t in counts]),
    )
    mu = 0.1
    x = torch.logspace(-6, 6, 2401, dtype=torch.float64)
    small = early_stopping_factors(mu * x, 1e-9, matching_steps(1e-9, mu))
    decay = weight_decay_factors(mu * x, mu)
    tiny = x <= 1e-3
    low = torch.linspace(0, 1, 1001, dtype=torch.float64)[1:]
    # one step reaches ηλ, a whole unit above the factor of weight decay at λ = μ
    coarse = early_stopping_factors(low, 1.0, matching_steps(1.0, 1.0)) / weight_decay_factors(low, 1.0)
    exact_ratio = factor_ratio(x)
    inside = x * 1e-9 * mu < 1e-3
    says = run.states(
        "N-126",
        r"t=\tfrac1{\eta\mu},\ \eta\lambda\to0:\ \text{the ratio of the factors is } "
        r"(1-e^{-x})\tfrac{1+x}x,\ x=\tfrac\lambda\mu",
    )
    says.equal((small / decay)[inside], exact_ratio[inside], 1e-6, where="η = 1e-9, λ/μ from 1e-6 to 1e6")
    says.fails("ημ = 1: one single step", coarse, promised=factor_ratio(low))
    says = run.states("N-126", r"\lambda\ll\mu:\ \text{the factors agree to first order, ratio}\to1")
    says.equal(exact_ratio[tiny], 1.0, 1e-3, where="λ/μ ≤ 1e-3; the ratio is 1 + x/2 + ...")
    says.fails("λ = μ", factor_ratio(torch.ones(1, dtype=torch.float64)))
    says = run.states("N-126", r"1\le(1-e^{-x})\tfrac{1+x}x\le1.2985")
    says.at_most(
        exact_ratio, LARGEST_RATIO, EXACT, where=f"largest at x = {WORST_RATIO_AT:.4f}, where it is {LARGEST_RATIO:.5f}"
    )
    says.fails("one large step, ηλ = 1", coarse)
    says = run.states("N-126", r"1\le(1-e^{-x})\tfrac{1+x}x")
    says.at_least(exact_ratio, 1.0, EXACT)
    says.fails("stopped at half that time", (early_stopping_factors(mu * x, 1e-9, 0.5 / (1e-9 * mu)) / decay)[inside])
    eta = 0.01
    printed = early_stopping_factors(torch.tensor([mu], dtype=torch.float64), eta, eta / mu)
    run.refutes(
        "early-stopping-time",
        r"1-(1-\eta\lambda)^t\approx\tfrac\lambda{\lambda+\mu} \text{ at } t=\eta/\mu\text{, within a factor } 1.3",
    ).at_least(float(printed), 0.5 / 1.3, where=f"η = {eta}, λ = μ = {mu}: stopping after t = {eta / mu:g} steps")


def paths(run: Run, hessian: Tensor, best: Tensor) -> None:
    """Both ways through parameter space, and how near they come."""
    eigenvalues, _ = torch.linalg.eigh(hessian)
    step = 0.2 / float(eigenvalues[-1])
    basis = torch.linalg.eigh(hessian)[1]
    coordinates = basis.T @ best
    rows = []
    for mu in (0.01, 0.1, 1.0, 10.0):
        target = weight_decay_factors(eigenvalues, mu) * coordinates
        t = matching_steps(step, mu)
        at_match = early_stopping_factors(eigenvalues, step, t) * coordinates
        times = t * torch.logspace(-1, 1, 201, dtype=torch.float64)
        all_of_them = torch.stack([early_stopping_factors(eigenvalues, step, float(s)) * coordinates for s in times])
        distances = (all_of_them - target).norm(dim=1) / target.norm()
        nearest = int(distances.argmin())
        rows.append(
            (
                mu,
                round(t, 1),
                float((at_match - target).norm() / target.norm()),
                float(times[nearest] / t),
                float(distances[nearest]),
            )
        )
    run.table(
        "correspondence",
        ["μ", "t = 1/(ημ)", "relative distance there", "best t / that t", "distance at best t"],
        rows,
        caption="How near stopped descent comes to the minimizer with weight decay.",
    )

    def plot(axes: Any) -> None:
        x = torch.logspace(-2, 2, 300, dtype=torch.float64)
        left, right = axes[0, 0], axes[0, 1]
        left.plot(x.log10(), x / (1 + x), color=COLORS[0], label="weight decay λ/(λ+μ)")
        left.plot(x.log10(), -torch.expm1(-x), color=COLORS[1], label="early stopping, t = 1/(ημ)")
        left.plot(x.log10(), factor_ratio(x) - 1, "--", color=COLORS[6], lw=1, label="ratio - 1")
        left.axvline(math.log10(WORST_RATIO_AT), color=COLORS[6], lw=0.5, ls=":")
        left.set_xlabel("log₁₀ of λ/μ")
        left.set_title("factor on the minimizer's coordinate")
        left.legend(loc="upper left")
        h = torch.tensor([4.0, 0.5], dtype=torch.float64)
        goal = torch.tensor([1.0, 1.6], dtype=torch.float64)
        grid = torch.linspace(-0.5, 2.4, 120, dtype=torch.float64)
        u, v = torch.meshgrid(grid, grid, indexing="xy")
        loss = (h[0] * (u - goal[0]) ** 2 + h[1] * (v - goal[1]) ** 2) / 2
        right.contour(u, v, loss, levels=[0.05, 0.2, 0.5, 1, 2, 4], colors="0.75", linewidths=0.8)
        right.contour(u, v, u**2 + v**2, levels=[0.25, 1, 2.25], colors="0.5", linewidths=0.6, linestyles=":")
        decays = torch.logspace(-3, 3, 200, dtype=torch.float64)
        ridge = torch.stack([weight_decay_factors(h, float(m)) * goal for m in decays])
        stop = torch.stack([early_stopping_factors(h, 1e-3, 1e3 / float(m)) * goal for m in decays])
        right.plot(*ridge.T, color=COLORS[0], label="weight decay, all μ")
        right.plot(*stop.T, color=COLORS[1], label="descent from 0, all t")
        right.plot(*goal, "*", color=COLORS[6], ms=9, label="minimizer of the loss")
        right.set_xlim(-0.5, 2.4)
        right.set_ylim(-0.5, 2.4)
        right.set_xlabel("curved direction, λ = 4")
        right.set_ylabel("flat direction, λ = 0.5")
        right.set_title("the two paths")
        right.legend(loc="lower right")

    run.figure(
        "shrinkage",
        plot,
        caption="Left: the two factors and how far they part. Right: the paths of the penalized "
        "minimizer and of gradient descent, with contours of the loss and (dotted) of the penalty; "
        "both go along the curved direction first.",
        grid=(1, 2),
        size=(10.5, 4.0),
    )


def _risk(x: Tensor, y: Tensor, theta: Tensor) -> Tensor:
    return (y - x @ theta).square().mean() / 2
