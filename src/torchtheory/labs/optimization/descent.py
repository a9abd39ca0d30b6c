"""What smoothness promises gradient descent: a step, a decrease, a small gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.optimization.certificates.convergence import (
    first_critical,
    iterations_to_critical_point,
    sufficient_decrease,
)
from torchtheory.optimization.descent.iterates import Function, gradient_descent
from torchtheory.primer.smoothness import smoothness_from_below


@lab(
    "gradient-descent",
    room="optimization",
    covers=["N-42", "N-43", "N-44", "N-45", "L-131", "L-132"],
    title="Smoothness sets the step of gradient descent, and what it then achieves",
    errata=[
        "sufficient-decrease-taylor",
        "sufficient-decrease-missing-gradient",
        "sufficient-decrease-equality",
    ],
    full={"starts": 300, "samples": 500, "features": 20, "steps": 500},
    least={"features": 2},
)
def descent(run: Run, starts: int = 100, samples: int = 60, features: int = 8, steps: int = 150) -> None:
    """Gradient descent from many starts at once, on quadratics, logistic regression and functions
    that are not convex.

    The step 2/L separates convergence from divergence; below it every step decreases the function
    by a definite amount; and added up, that bounds the time to a point with a small gradient (lab
    polyak-lojasiewicz has what follows where the gradient controls the gap). Look at the three
    regimes of the step, and at how many iterates the bound allows beside how many it took.

    Args:
        starts: random starts.
        samples: of the logistic regression.
        features: of an input.
        steps: of descent.
    """
    quadratic_regimes(run, features)
    smoothness(run, samples, features)
    logistic, constant = logistic_regression(run, samples, features)
    decrease(run, logistic, constant, features, starts, steps)
    printed_lines(run, logistic, constant, features)
    shown = critical_points(run, starts)
    run.figure(
        "step-sizes",
        plot_regimes,
        caption="Gradient descent on ½(θ₁² + 10 θ₂²): below, at and above the step 2/λ with the "
        "largest eigenvalue λ = 10.",
        grid=(1, 3),
        size=(11, 3.3),
    )
    run.figure(
        "critical-points",
        lambda axes: plot_gradients(axes, shown),
        caption="Smallest squared gradient up to step T of every run (thin), and the largest of "
        "their bounds 2L(h(θ⁰) - inf h)/T, on two functions that are not convex.",
        grid=(1, 2),
    )


def quadratic(matrix: Tensor) -> Function:
    return lambda theta: (theta @ matrix * theta).sum(-1) / 2


def spectrum_matrix(run: Run, eigenvalues: Tensor) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with these eigenvalues in a random basis, and the basis."""
    basis, _ = torch.linalg.qr(run.randn(len(eigenvalues), len(eigenvalues)))
    return basis * eigenvalues @ basis.T, basis


def quadratic_regimes(run: Run, size: int) -> None:
    eigenvalues = torch.logspace(-1, 1, size, dtype=torch.float64)
    matrix, basis = spectrum_matrix(run, eigenvalues)
    largest, start, steps = 10.0, run.randn(size), 40
    h = quadratic(matrix)
    eta = 1.5 / largest
    path = gradient_descent(h, start, eta, steps).points
    times = torch.arange(steps + 1).double()
    factors = (1 - eta * eigenvalues) ** times[:, None]
    closed = factors * (start @ basis) @ basis.T
    bent = gradient_descent(lambda x: h(x) + 0.1 * torch.cos(x).sum(-1), start, eta, steps).points
    says = run.states(
        "N-42", r"h=\tfrac12\theta^\top A\theta:\ \theta^t=(I-\eta A)^t\theta^0: \text{ largest difference}"
    )
    says.equal((path - closed).abs().max(), within=1e-10)
    says.fails("h is not quadratic: 0.1 Σ cos θ is added", (bent - closed).abs().max())

    def growth(relative: float) -> Tensor:
        """How the component along the top eigenvector changes over all steps."""
        top = gradient_descent(h, start, relative / largest, steps).points @ basis[:, -1]
        return (top[-1] / top[0]).abs()

    says = run.states("N-42", r"\eta<2/\lambda_{\max}: \text{ the top component shrinks, by a factor per step}")
    says.below(
        torch.stack([growth(r) for r in (0.5, 1.0, 1.5, 1.9)]) ** (1 / steps),
        1,
        where=f"mean over {steps} steps; η = 0.5, 1, 1.5, 1.9 in units of 1/λ",
    )
    says.fails("η = 2.1/λ", growth(2.1) ** (1 / steps))
    says = run.states("N-42", r"\eta=2/\lambda_{\max}: \text{ the top component keeps its size}")
    says.equal(growth(2.0), 1, 1e-9)
    says.fails("η = 2.1/λ", growth(2.1))
    theta = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([theta], lr=eta)
    for _ in range(steps):
        optimizer.zero_grad()
        h(theta).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    run.states(
        "N-42", r"\text{torch.optim.SGD is } \theta^{t+1}=\theta^t-\eta\nabla h(\theta^t): \text{ largest difference}"
    ).equal((theta.detach() - path[-1]).abs().max(), within=1e-12)


def logistic_regression(run: Run, samples: int, features: int) -> tuple[Function, float]:
    """The mean logistic loss of a noisy sample, and its smoothness constant (rows are patterns)."""
    x = run.randn(samples, features)
    y = torch.sign(x[:, 0] + run.randn(samples))

    def h(theta: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-y * (theta @ x.T)).mean(-1)

    return h, float(torch.linalg.matrix_norm(x, 2) ** 2) / (4 * samples)


def smoothness(run: Run, samples: int, features: int) -> None:
    patterns, y = run.randn(features, samples), run.randn(samples)
    exact = float(torch.linalg.eigvalsh(patterns @ patterns.T)[-1])
    points = run.randn(30, features)

    def squares(theta: Tensor) -> Tensor:
        return (theta @ patterns - y).square().sum(-1) / 2

    found = smoothness_from_below(squares, points, ascent_steps=0)
    says = run.states("N-43", r"\text{least squares: } \|\nabla^2h\|_2=\lambda_{\max}(XX^\top)")
    says.equal(found.from_derivatives, exact, 1e-10)
    says.fails(
        "a quartic term is added",
        smoothness_from_below(
            lambda t: squares(t) + t.square().square().sum(), points, ascent_steps=0
        ).from_derivatives,
    )
    logistic, bound = logistic_regression(run, samples, features)
    pieces = torch.cat([points, torch.zeros(1, features, dtype=torch.float64)])
    measured = smoothness_from_below(logistic, pieces, ascent_steps=5)

    def kinked(theta: Tensor) -> Tensor:
        """Steep on one side of 0 and flat on the other: not smooth at all."""
        return torch.relu(theta).sum() * bound

    close = torch.cat([points, -1e-3 * points.abs(), 1e-3 * points.abs()])
    says = run.states(
        "N-43",
        r"\text{logistic regression: } \frac{\|\nabla h(\theta_1)-\nabla h(\theta_2)\|}"
        r"{\|\theta_1-\theta_2\|}\le\lambda_{\max}\bigl(\tfrac1{4s}XX^\top\bigr)",
    )
    says.at_most(
        [measured.from_pairs, measured.from_derivatives],
        bound,
        1e-10,
        where="largest difference quotient over pairs of points, and largest Hessian norm met",
    )
    says.fails(
        "ReLUs, which are not smooth: the gradient jumps",
        smoothness_from_below(kinked, close, ascent_steps=0).from_pairs,
    )
    says = run.states(
        "N-43",
        r"\text{logistic regression: } \|\nabla^2h(0)\|_2=\lambda_{\max}"
        r"\bigl(\tfrac1{4s}XX^\top\bigr): \text{ the bound is attained}",
    )
    says.equal(smoothness_from_below(logistic, pieces, ascent_steps=0).from_derivatives, bound, 1e-10)
    says.fails(
        "θ = 0 is not among the points", smoothness_from_below(logistic, points, ascent_steps=0).from_derivatives
    )
    # on a domain of two pieces the Hessian knows nothing of what lies between them
    path = torch.linspace(0, 4, 400, dtype=torch.float64)[:, None]
    quotients = torch.cdist(-path.sin(), -path.sin()) / torch.cdist(path, path)
    split = torch.cat([path[:40], path[-40:]])
    step = torch.where(split > 2, 10.0, 0.0)  # h' on the two pieces
    says = run.states("N-43", r"\Theta \text{ convex}, \|\nabla^2h\|\le1 \implies \text{difference quotients}\le1")
    says.at_most(
        torch.nan_to_num(quotients).amax(1), 1.0, 1e-9, where="h = cos on [0, 4]; the largest at each of 400 points"
    )
    says.fails(
        "the domain is two intervals; h = 0 on one and 10 θ on the other has Hessian 0",
        torch.nan_to_num(torch.cdist(step, step) / torch.cdist(split, split)).amax(1),
    )


def decrease(run: Run, logistic: Function, constant: float, features: int, starts: int, steps: int) -> None:
    def slack(h: Function, at: Tensor, eta: float, assumed: float) -> Tensor:
        done = gradient_descent(h, at, eta, steps)
        return sufficient_decrease(done.values, done.gradient_norms, eta, assumed)

    def cosines(theta: Tensor) -> Tensor:
        return torch.cos(theta).sum(-1)

    at = 3 * run.randn(starts, features)
    small = constant / 4
    says = run.states(
        ["N-44", "L-131"],
        r"h(\theta-\eta\nabla h)\le h(\theta)-\eta(1-\tfrac{L\eta}2)\|\nabla h(\theta)\|^2:"
        r" \text{ slack of every step}",
    )
    says.at_least(
        torch.stack(
            [slack(logistic, at, r / constant, constant) for r in (0.5, 1.0, 1.9)]
            + [slack(cosines, at, r, 1.0) for r in (0.5, 1.0, 1.9)]
        ),
        0,
        1e-12,
        where="logistic regression and Σ cos θ, steps of 0.5, 1 and 1.9 in units of 1/L",
    )
    says.fails("L is taken four times too small", slack(logistic, at / 30, 1 / small, small))
    says = run.states("N-44", r"h=\tfrac L2\|\theta\|^2: \text{ equality}")
    says.equal(slack(lambda t: 1.5 * t.square().sum(-1), at[:1], 0.2, 3.0), within=1e-10)
    says.fails("logistic regression", slack(logistic, at, 1 / constant, constant))
    ends = gradient_descent(cosines, at, 1.999, 1).values
    far = gradient_descent(lambda t: t.square().sum(-1) / 2, at, 2.001, 1).values
    says = run.states("N-44", r"0<\eta<2/L: \text{ the function decreases strictly}")
    says.below(ends[1], ends[0], where="Σ cos θ, one step of 1.999/L")
    says.fails("η = 2.001/L on ½‖θ‖²", far[1], promised=far[0])


def printed_lines(run: Run, logistic: Function, constant: float, features: int) -> None:
    """The three lines of the printed derivation that are not true."""
    one, two = math.cos(1.0), math.cos(2.0)
    run.refutes(
        "sufficient-decrease-taylor",
        r"h(\theta_2)-h(\theta_1)=\nabla h(\theta_1)^\top(\theta_2-\theta_1)+\tfrac12(\theta_2-"
        r"\theta_1)^\top\nabla^2h(\theta_1)(\theta_2-\theta_1)",
    ).equal(two - one, -math.sin(1.0) - math.cos(1.0) / 2, 1e-3, where="h = cos from 1 to 2")
    at = run.randn(features)
    done = gradient_descent(logistic, at, 1 / constant, 1)
    moved = (done.points[1] - done.points[0]).norm()
    run.refutes(
        "sufficient-decrease-missing-gradient", r"\tfrac L2\|\theta_2-\theta_1\|^2=\tfrac{L\eta^2}2\|h(\theta_1)\|^2"
    ).equal(
        constant / 2 * moved.square(),
        done.values[0].square() / (2 * constant),
        1e-3,
        where="a step of logistic regression, η = 1/L",
    )
    run.refutes("sufficient-decrease-equality", r"h(\theta_2)=h(\theta_1)-\tfrac1{2L}\|\nabla h(\theta_1)\|^2").equal(
        done.values[1],
        done.values[0] - done.gradient_norms[0].square() / (2 * constant),
        1e-4,
        where="a step of logistic regression, η = 1/L: it gains more",
    )


def stairs(theta: Tensor) -> Tensor:
    r"""$h'=1-\mathrm{dist}(\theta,\mathbb Z)$ for $\theta\ge0$, and $(1+\theta)^2/2$ below: smooth with L = 1.

    Steps of 1 go from integer to integer, where the slope is 1; half way between it has fallen to
    1/2 and risen again, so that a step gains 3/4 only.
    """
    part = theta - theta.floor()
    lost = torch.where(part <= 0.5, part.square() / 2, 0.25 - (1 - part).square() / 2)
    above = 0.5 + theta - theta.floor() / 4 - lost
    return torch.where(theta >= 0, above, (1 + theta).square() / 2).sum(-1)


def critical_points(run: Run, starts: int) -> list[tuple[str, Tensor, Tensor]]:
    """Time to an ε-critical point on functions that are not convex."""

    def cosines(theta: Tensor) -> Tensor:
        return torch.cos(theta).sum(-1)

    def well(theta: Tensor) -> Tensor:
        return (theta.square() / (1 + theta.square())).sum(-1)

    cases = [("Σ cos θᵢ", cosines, 1.0, -4.0, 4), ("Σ θᵢ²/(1+θᵢ²)", well, 2.0, 0.0, 4)]
    rows: list[tuple[str, float, int, float]] = []
    needed, allowed = [], []
    best, promised = [], []
    for name, h, constant, infimum, size in cases:
        at = 3 * run.randn(starts, size)
        done = gradient_descent(h, at, 1 / constant, 400)
        gaps = done.values[0] - infimum
        for epsilon in (0.3, 0.1, 0.03):
            hit = first_critical(done.gradient_norms, epsilon).double()
            bound = torch.tensor([iterations_to_critical_point(constant, float(g), epsilon) for g in gaps]).double()
            # times are counted from 0: the first T iterates are 0, ..., T - 1
            needed.append(hit + 1)
            allowed.append(bound)
            rows.append((name, epsilon, int(hit.max()) + 1, float(bound.max())))
        times = torch.arange(1, len(done.values) + 1).double()[:, None]
        best.append(done.gradient_norms.square().cummin(0).values)
        promised.append(2 * constant / times * gaps)

    # slope 1 at every iterate, and as little gained between them as L allows
    far = torch.tensor([[100.0]], dtype=torch.float64)
    sliding = gradient_descent(stairs, far, 1.0, 400)
    needed.append(first_critical(sliding.gradient_norms, 0.99).double() + 1)
    allowed.append(torch.tensor([iterations_to_critical_point(1.0, float(sliding.values[0, 0]), 0.99)]).double())

    def endless(theta: Tensor) -> Tensor:
        """No lower bound: a slope that never ends."""
        return -theta.sum(-1)

    run_away = gradient_descent(endless, run.randn(1, 1), 1.0, 500)
    says = run.states(
        "N-45",
        r"\eta=1/L: \text{ one of the first } \lceil 2L(h(\theta^0)-\inf h)/\epsilon^2\rceil"
        r" \text{ iterates has } \|\nabla h\|\le\epsilon",
    )
    says.at_most(torch.cat(needed), torch.cat(allowed))
    says.fails(
        "h = -θ is not bounded below; the value at step 1 is taken for the infimum",
        first_critical(run_away.gradient_norms, 0.3).double() + 1,
        promised=iterations_to_critical_point(1.0, 1.0, 0.3),
    )
    run.states("N-45", r"\text{... and on a staircase at least three fifths of them are needed}").at_least(
        needed[-1], 0.6 * allowed[-1], where="slope 1 at every iterate, and between them as little gained as L allows"
    )
    # twice as long a step jumps from side to side of a parabola
    swinging = gradient_descent(lambda t: t.square().sum(-1) / 2, torch.ones(1, 1, dtype=torch.float64), 2.0, 30)
    times = torch.arange(1, len(swinging.values) + 1).double()[:, None]
    says = run.states(["N-45", "L-132"], r"\min_{t<T}\|\nabla h(\theta^t)\|^2\le\frac{2L}T(h(\theta^0)-\inf h)")
    says.at_most(torch.cat(best, 1), torch.cat(promised, 1), 1e-12)
    says.fails(
        "steps of 2/L in place of 1/L",
        swinging.gradient_norms.square().cummin(0).values,
        promised=2 / times * swinging.values[0],
    )
    run.table(
        "critical-points",
        ["function", "ε", "iterates needed, slowest run", "allowed, largest gap"],
        rows,
        caption="Iterates until the gradient is at most ε, and how many the lemma allows",
    )
    names = [case[0] for case in cases]
    return [(n, b, p.amax(1)) for n, b, p in zip(names, best, promised, strict=True)]


def plot_regimes(axes: Any) -> None:
    matrix = torch.diag(torch.tensor([1.0, 10.0], dtype=torch.float64))
    h = quadratic(matrix)
    first, second = torch.meshgrid(
        torch.linspace(-0.5, 2.4, 80).double(),
        torch.linspace(-1.1, 1.1, 80).double(),
        indexing="xy",
    )
    heights = h(torch.stack([first, second], -1))
    start = torch.tensor([2.2, 0.5], dtype=torch.float64)
    for axis, relative in zip(axes[0], (1.8, 2.0, 2.06), strict=True):
        path = gradient_descent(h, start, relative / 10, 25).points
        axis.contour(first, second, heights, levels=8, colors="0.75", linewidths=0.7)
        axis.plot(path[:, 0], path[:, 1], "o-", markersize=3, linewidth=0.9, color=COLORS[0])
        axis.plot(0, 0, "*", color=COLORS[1], markersize=10)
        axis.set(
            title=rf"$\eta = {relative:g}/\lambda_{{\max}}$",
            xlabel=r"$\theta_1$",
            xlim=(-0.5, 2.4),
            ylim=(-1.1, 1.1),
        )
    axes[0, 0].set_ylabel(r"$\theta_2$")


def plot_gradients(axes: Any, shown: list[tuple[str, Tensor, Tensor]]) -> None:
    for axis, (name, best, bound) in zip(axes[0], shown, strict=True):
        times = range(1, len(best) + 1)
        axis.loglog(times, best[:, :40].clamp_min(1e-20), color=COLORS[0], linewidth=0.5)
        axis.loglog(times, bound, "--", color=COLORS[1], label="bound, largest gap")
        axis.set(xlabel="iterates T", ylabel="smallest squared gradient", title=name)
        axis.set_ylim(1e-14, 1e4)
        axis.legend(loc="upper right")
