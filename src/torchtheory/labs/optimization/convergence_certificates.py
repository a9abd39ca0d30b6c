"""What theorems promise of recorded descents, beside what the descents did."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates.assumptions import Assumptions
from torchtheory.optimization.certificates.certify import ConvergenceCertificate, certify
from torchtheory.optimization.certificates.convexity import tangent_excess
from torchtheory.optimization.certificates.promises import PROMISES
from torchtheory.optimization.certificates.recorded_runs import as_recorded
from torchtheory.optimization.certificates.regression_constants import (
    logistic_ridge_constants,
    ridge_constants,
)
from torchtheory.optimization.certificates.run_constants import smoothness_from_run
from torchtheory.optimization.descent.iterates import (
    Descent,
    Function,
    gradient_descent,
    gradient_of,
    last_iterate,
)
from torchtheory.optimization.descent.newton import newton_direction
from torchtheory.optimization.descent.objectives import objective_of

PENALTY = 0.1


@lab(
    "convergence-certificates",
    room="optimization",
    covers=["L-119", "L-127", "L-128", "L-129", "L-130", "L-131", "L-132"],
    title="A certificate for a descent: promised and measured, side by side",
    errata=["smoothness-from-above-only"],
    full={"samples": 500, "features": 30, "steps": 400, "width": 10},
    least={"samples": 2, "steps": 40},
)
def convergence_certificates(run: Run, samples: int = 60, features: int = 6, steps: int = 100, width: int = 4) -> None:
    """Gradient descent on regressions, on functions without convexity and on a small network.

    Each run is certified: the promise of the theorem at every step, beside what was measured.
    Ridge and penalized logistic regression are strongly convex, and the distance to the minimizer
    falls geometrically; least squares of deficient rank, plain logistic regression and Huber's
    loss are convex, and the gap falls like 1/k; Rosenbrock's function and a tanh network are
    neither, and still some gradient is small. In the controls an assumption is broken, and the
    promise with it. Look at how far below its promise each run stays.

    Args:
        samples: of the data.
        features: of an input.
        steps: of gradient descent.
        width: hidden units in the part without convexity.
    """
    x = run.randn(samples, features)
    y = torch.sign(x[:, 0] + run.randn(samples))
    constants(run, x, y)
    shown = strongly_convex(run, x, y, steps)
    shown += convex(run, x, y, steps)
    shown += nonconvex(run, width, steps)
    lower_bound_on_gap(run, x, y, steps)
    run.table(
        "certificates",
        ["function", "promise for", "largest share of the promise used", "first broken"],
        [(name, PROMISES[c.kind].title, c.share, "never" if c.kept else c.first_broken) for name, c in shown],
        caption="Measured over promised, largest over all steps; nothing above 1",
    )
    run.figure(
        "certificates",
        lambda axes: plot(axes, [*shown[:3], shown[4], *shown[5:7]]),
        caption="Promised (dashed) and measured (solid). Logarithmic steps where the promise is a "
        "power of them; what rounding decides is not drawn.",
        grid=(2, 3),
        size=(11, 5.6),
    )


# -------------------------------------------------------------------------------- functions


def ridge(x: Tensor, y: Tensor, penalty: float) -> Function:
    return lambda w: (w @ x.T - y).square().mean(-1) / 2 + penalty / 2 * w.square().sum(-1)


def logistic(x: Tensor, y: Tensor, penalty: float) -> Function:
    return lambda w: F.softplus(-y * (w @ x.T)).mean(-1) + penalty / 2 * w.square().sum(-1)


def huber(x: Tensor, y: Tensor) -> Function:
    return lambda w: F.huber_loss(w @ x.T, y.expand(*w.shape[:-1], -1), reduction="none").mean(-1)


def rosenbrock(z: Tensor) -> Tensor:
    a, b = z[..., 0], z[..., 1]
    return (1 - a).square() + 100 * (b - a.square()).square()


def tilted(z: Tensor) -> Tensor:
    return ((z.square() - 1).square() + 0.3 * z).sum(-1)


def minimizer_of(function: Function, start: Tensor, steps: int = 12) -> Tensor:
    """By Newton's method, which has converged to rounding on the regressions here."""
    return last_iterate(newton_direction(function), start, [1.0] * steps)


# -------------------------------------------------------------------------------- constants


def constants(run: Run, x: Tensor, y: Tensor) -> None:
    d = x.shape[1]
    points = torch.cat([3 * run.randn(40, d), torch.zeros(1, d, dtype=torch.float64)])
    least, largest, low, high = [], [], [], []
    for f, (mu, big) in (
        (ridge(x, y, PENALTY), ridge_constants(x, PENALTY)),
        (logistic(x, y, PENALTY), logistic_ridge_constants(x, PENALTY)),
    ):
        spectra = torch.linalg.eigvalsh(torch.func.vmap(torch.func.hessian(f))(points))
        least.append(mu)
        largest.append(big)
        low.append(float(spectra[:, 0].min()))
        high.append(float(spectra[:, -1].max()))
    unpenalized = torch.func.vmap(torch.func.hessian(logistic(x, y, 0.0)))(points)
    bent = torch.func.vmap(torch.func.hessian(lambda w: ridge(x, y, PENALTY)(w) + w.square().square().sum()))(points)
    says = run.states("L-127", r"\mu I\preceq\nabla^2f: \text{ smallest eigenvalue met, ridge and penalized logistic}")
    says.at_least(low, least, 1e-10)
    says.fails(
        "the logistic regression has no penalty",
        float(torch.linalg.eigvalsh(unpenalized)[:, 0].min()),
        promised=PENALTY,
    )
    says = run.states("L-127", r"\nabla^2f\preceq LI, \text{ attained: largest eigenvalue met}")
    says.equal(high, largest, 1e-9, where="the logistic Hessian is largest at 0, which is among the points")
    says.fails("a quartic term is added to the ridge regression", [float(torch.linalg.eigvalsh(bent)[:, -1].max())] * 2)
    # Definition 19 and its restatement are not the same without convexity
    a, b = run.randn(200, 1), run.randn(200, 1)

    def cap(z: Tensor) -> Tensor:
        return -5 * z.square().sum(-1)

    def bowl(z: Tensor) -> Tensor:
        return 5 * z.square().sum(-1)

    above = -tangent_excess(cap, a, b) - (a - b).square().sum(1) / 2
    says = run.states(
        "L-127",
        r"f=-5x^2:\ f(x+\Delta)\le f(x)+f'(x)\Delta+\tfrac12\Delta^2"
        r"\text{: the upper parabola with } L=1 \text{ holds, excess}",
    )
    says.at_most(above, 0, 1e-12)
    says.fails("f = 5x²", -tangent_excess(bowl, a, b) - (a - b).square().sum(1) / 2)
    slopes = (gradient_of(cap)(a, 0) - gradient_of(cap)(b, 0)).abs() / (a - b).abs()
    run.refutes(
        "smoothness-from-above-only",
        r"f(x+\Delta)\le f(x)+\nabla f(x)\cdot\Delta+\tfrac L2\|\Delta\|^2 \implies"
        r" \|\nabla f(x)-\nabla f(y)\|\le L\|x-y\|",
    ).at_most(slopes, 1.0, where="f = -5x² satisfies the left side with L = 1; its derivative has slope 10")


# ----------------------------------------------------------------------------- certificates


def kept(
    run: Run,
    ids: list[str],
    found: list[tuple[str, ConvergenceCertificate]],
    broken: str,
    bad: ConvergenceCertificate,
) -> None:
    """All certificates against their promise; the control is a certificate that is broken."""
    statement = found[0][1].statement
    says = run.states(ids, statement)
    measured, promised = (torch.cat([getattr(c, side) for _, c in found]) for side in ("measured", "promised"))
    # where less is promised, rounding decides
    clear = promised > 1e-9
    says.at_most(
        measured[clear],
        promised[clear],
        1e-13,
        where=", ".join(name for name, _ in found) + f": every step up to {found[0][1].times[-1]}",
    )
    says.fails(broken, bad.measured.nan_to_num(math.inf), promised=bad.promised)
    says = run.states(ids, r"\text{and no assumption is contradicted by the runs: contradictions}")
    says.equal(
        sum(len(c.contradictions) for _, c in found),
        where="steps, curvature, minimum and inequalities, checked from the records alone",
    )
    says.fails(broken, len(bad.contradictions))


def strongly_convex(run: Run, x: Tensor, y: Tensor, steps: int) -> list[tuple[str, ConvergenceCertificate]]:
    d = x.shape[1]
    matrix = torch.diag(torch.logspace(-1, 1, d, dtype=torch.float64))
    basis, _ = torch.linalg.qr(run.randn(d, d))
    matrix = basis @ matrix @ basis.T
    cases: list[tuple[str, Function, tuple[float, float]]] = [
        ("ridge", ridge(x, y, PENALTY), ridge_constants(x, PENALTY)),
        ("logistic with penalty", logistic(x, y, PENALTY), logistic_ridge_constants(x, PENALTY)),
        ("random quadratic", lambda w: (w @ matrix * w).sum(-1) / 2, (0.1, 10.0)),
    ]
    distances, gaps = [], []
    start = 2 * run.randn(d)
    for name, f, (mu, big) in cases:
        best = minimizer_of(f, torch.zeros(d, dtype=torch.float64))
        for share in (1.0, 0.5):
            eta = share / big
            done = gradient_descent(f, start, eta, steps)
            known: dict[str, Any] = {
                "smoothness": big,
                "convexity": mu,
                "minimum": float(f(best)),
                "minimizer": best,
            }
            far = certify(done, Assumptions("strongly convex distance", eta, **known))
            high = certify(done, Assumptions("strongly convex", eta, **known))
            distances.append((f"{name}, η = {share:g}/L", far))
            gaps.append((f"{name}, η = {share:g}/L", high))
    # the same theorem on a function that is convex and no more
    flat = gradient_descent(lambda w: w.square().square().sum(-1), start[:1] / 10, 0.1, steps)
    wrong: dict[str, Any] = {
        "smoothness": 10.0,
        "convexity": 5.0,
        "minimum": 0.0,
        "minimizer": torch.zeros(1, dtype=torch.float64),
    }
    broken = "x⁴ near its minimum, which is not strongly convex"
    far = certify(flat, Assumptions("strongly convex distance", 0.1, **wrong))
    kept(run, ["L-128", "L-119"], distances, broken, far)
    kept(run, ["L-128"], gaps, broken, certify(flat, Assumptions("strongly convex", 0.1, **wrong)))
    return [distances[0], gaps[2]]


def convex(run: Run, x: Tensor, y: Tensor, steps: int) -> list[tuple[str, ConvergenceCertificate]]:
    d = x.shape[1]
    rank = max(1, d // 2)
    narrow = run.randn(len(x), rank) @ run.randn(rank, d) / math.sqrt(d)
    target = x[:, 0] + run.randn(len(x))
    start = 2 * run.randn(d)
    pull = torch.linalg.lstsq(narrow, target[:, None], driver="gelsd").solution[:, 0]
    # the closest of all minimizers differs from the start in the row space only
    rows = torch.linalg.pinv(narrow) @ narrow
    closest = start + rows @ (pull - start)
    cases: list[tuple[str, Function, float, Tensor]] = [
        ("least squares, deficient rank", ridge(narrow, target, 0.0), ridge_constants(narrow)[1],
         closest),
        ("logistic", logistic(x, y, 0.0), logistic_ridge_constants(x)[1],
         minimizer_of(logistic(x, y, 0.0), torch.zeros(d, dtype=torch.float64))),
        # the second derivative of Huber's loss is 1 or 0
        ("Huber", huber(x, target), ridge_constants(x)[1],
         last_iterate(gradient_of(huber(x, target)), start, [1.9 / ridge_constants(x)[1]] * 2000)),
    ]  # fmt: skip
    found = []
    for name, f, big, best in cases:
        eta = 1 / big
        done = gradient_descent(f, start, eta, steps)
        known: dict[str, Any] = {"minimum": float(f(best)), "minimizer": best}
        found.append((name, certify(done, Assumptions("convex", eta, smoothness=big, **known))))

    # smooth with L = 2 and one minimizer, but flat far out
    plateau = gradient_descent(
        lambda w: (w.square() / (1 + w.square())).sum(-1),
        torch.full((1,), 5.0, dtype=torch.float64),
        0.5,
        steps,
    )
    bad = certify(plateau, Assumptions("convex", 0.5, smoothness=2.0, minimum=0.0, distance=5.0))
    kept(run, ["L-130"], found, "x²/(1 + x²) from 5, which is not convex", bad)
    return found


def nonconvex(run: Run, width: int, steps: int) -> list[tuple[str, ConvergenceCertificate]]:
    # Rosenbrock on the sublevel set of the start, which gradient descent does not leave
    start = torch.tensor([-0.6, 0.9], dtype=torch.float64)
    side = torch.linspace(-2.5, 2.5, 151, dtype=torch.float64)
    plane = torch.cartesian_prod(side, side)
    inside = plane[rosenbrock(plane) <= rosenbrock(start)]
    # a margin for what lies between the points of the grid
    big = 1.1 * hessian_norm(rosenbrock, inside)
    done = gradient_descent(rosenbrock, start, 1 / big, 10 * steps)
    found = [
        (
            "Rosenbrock",
            certify(done, Assumptions("smooth", 1 / big, smoothness=big, minimum=0.0)),
        )
    ]
    # the slope of Huber's function is 1 until the last step: half of the promise is met
    slide = gradient_descent(
        lambda w: F.huber_loss(w, torch.zeros_like(w), reduction="none").sum(-1),
        torch.full((1,), steps + 1.0, dtype=torch.float64),
        1.0,
        steps,
    )
    found.append(("Huber's function", certify(slide, Assumptions("smooth", 1.0, smoothness=1.0, minimum=0.0))))
    # a network given as nn.Module: the constant along the way from its Hessian
    network, problem = small_network(run, width)
    f, theta = objective_of(problem)
    guess = 4 * hessian_norm(f, theta[None])
    trained = gradient_descent(f, theta, 1 / guess, steps)
    met = hessian_norm(f, trained.points[:: max(1, steps // 12)])
    certificate = certify(trained, Assumptions("smooth", 1 / guess, smoothness=max(met, guess), minimum=0.0))
    found.append(("tanh network", certificate))
    fast = gradient_descent(rosenbrock, start, 20 / big, steps)
    bad = certify(fast, Assumptions("smooth", 20 / big, smoothness=big / 20, minimum=0.0))
    kept(
        run,
        ["L-132"],
        found,
        "Rosenbrock with L assumed 20 times too small and the step 1/L: the run leaves the sublevel set",
        bad,
    )
    changed = float((problem.parameters["0.weight"] - network).abs().max())
    says = run.states("L-119", r"\text{descending a network leaves it as it was: largest change of its weights}")
    says.equal(changed)
    says.fails(
        "the last iterate is loaded into it",
        float((unflatten(trained.points[-1], problem.parameters)["0.weight"] - network).abs().max()),
    )
    descent_lemma(run, problem, trained, 1 / guess, done, 1 / big)
    return found


def small_network(run: Run, width: int) -> tuple[Tensor, Problem]:
    inputs = run.randn(30, 2)
    targets = torch.sin(2 * inputs[:, :1]) + inputs[:, 1:]
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / math.sqrt(width))
    problem = Problem(net, (inputs, targets), task="regression")
    return problem.parameters["0.weight"].clone(), problem


def hessian_norm(f: Function, points: Tensor) -> float:
    """The largest spectral norm of the Hessian at points `[n, p]`."""
    hessians = torch.func.vmap(torch.func.hessian(f))(points)
    return float(torch.linalg.eigvalsh(hessians).abs().max())


def descent_lemma(run: Run, problem: Problem, trained: Descent, eta: float, valley: Descent, small: float) -> None:
    def slack(done: Descent, step: float) -> Tensor:
        fall = done.values[:-1] - done.values[1:]
        return fall - step / 2 * done.gradient_norms[:-1].square()

    wild = gradient_descent(rosenbrock, valley.points[0], 8 * small, 20)
    says = run.states("L-131", r"\eta\le1/L:\ f(x_{k+1})-f(x_k)\le-\tfrac\eta2\|\nabla f(x_k)\|^2: \text{ slack}")
    says.at_least(
        torch.cat([slack(trained, eta), slack(valley, small)]),
        0,
        1e-14,
        where="a tanh network and Rosenbrock's function",
    )
    says.fails("Rosenbrock with a step of 8/L", slack(wild, 8 * small))
    # what the run itself shows of L, against the Hessian on the segments it visited
    shown = smoothness_from_run(as_recorded(trained), eta)
    assert shown is not None
    pieces = torch.stack([trained.points[:-1], trained.points[1:]])
    stops = pieces[:, :: max(1, pieces.shape[1] // 6)].flatten(0, 1)
    norm = hessian_norm(objective_of(problem)[0], stops)
    says = run.states(
        "L-131",
        r"\text{the run's own lower estimate of } L \text{ is at most } \max\|\nabla^2f\| \text{ where it went}",
    )
    parabola = gradient_descent(lambda w: 1.5 * w.square().sum(-1), torch.ones(1, dtype=torch.float64), 0.1, 10)
    says.at_most(
        [shown.value, smoothness_value(parabola, 0.1)],
        [1.05 * norm, 3.0],
        1e-9,
        where="a network, 5% for what lies between the points where the Hessian was taken, and a parabola",
    )
    says.fails(
        "the record of steps five times as long is read as one of this length",
        smoothness_value(gradient_descent(objective_of(problem)[0], trained.points[0], 5 * eta, 30), eta),
        promised=1.05 * norm,
    )


def smoothness_value(done: Descent, eta: float) -> float:
    found = smoothness_from_run(as_recorded(done), eta)
    return 0.0 if found is None else found.value


def lower_bound_on_gap(run: Run, x: Tensor, y: Tensor, steps: int) -> None:
    d = x.shape[1]
    start = 2 * run.randn(d)
    gaps, squares, bound = [], [], []
    for f, (_, big) in (
        (ridge(x, y, PENALTY), ridge_constants(x, PENALTY)),
        (logistic(x, y, PENALTY), logistic_ridge_constants(x, PENALTY)),
    ):
        best = minimizer_of(f, torch.zeros(d, dtype=torch.float64))
        done = gradient_descent(f, start, 1 / big, steps)
        gaps.append(done.values - f(best))
        squares.append(done.gradient_norms.square())
        bound.append(squares[-1] / (2 * big))
    # across the valley at the minimum the curvature is largest
    across = torch.tensor([[1.0, 1.0]], dtype=torch.float64) + 0.05 * torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    valley = gradient_descent(rosenbrock, torch.cat([2 * run.rand(20, 2) - 1, across]), 1e-4, 50)

    def root(z: Tensor) -> Tensor:
        return (z.square() + 1e-24).pow(0.75).sum(-1)

    near = torch.logspace(-6, 0, 30, dtype=torch.float64)[:, None]
    says = run.states("L-129", r"f(x)-f^\star\ge\frac{\|\nabla f(x)\|^2}{2L} \text{ at every iterate}")
    says.at_least(torch.cat(gaps), torch.cat(bound), 1e-14, where="ridge and penalized logistic regression")
    says.fails(
        "$|x|^{1.5}$, whose gradient is not Lipschitz at 0, with L = 2",
        root(near),
        promised=gradient_of(root)(near, 0).square().sum(1) / 4,
    )
    # |f''| = |12x² - 4| is at most 46 on [-2, 2]
    wells = torch.linspace(-1.5, -0.5, 21, dtype=torch.float64)[:, None]
    local = last_iterate(newton_direction(tilted), torch.ones(1, dtype=torch.float64), [1.0] * 8)
    # without convexity: L on a box that holds the points and their steps
    box = torch.cartesian_prod(*[torch.linspace(-1.2, 1.2, 61, dtype=torch.float64)] * 2)
    big = hessian_norm(rosenbrock, box)
    says = run.states("L-129", r"\text{and without convexity (Rosenbrock, global minimum 0)}")
    says.at_least(valley.values, valley.gradient_norms.square() / (2 * big))
    says.fails(
        "f* is the value at a minimum that is not global: (x² - 1)² + 0.3x in its other well",
        tilted(wells) - tilted(local),
        promised=gradient_of(tilted)(wells, 0).square().sum(1) / (2 * 46),
    )
    w = run.randn(50, d)
    says = run.states("L-129", r"f=\tfrac L2\|x\|^2: \text{ equality}")
    says.equal(
        gradient_of(lambda v: 1.5 * v.square().sum(-1))(w, 0).square().sum(1) / 6, 1.5 * w.square().sum(1), 1e-12
    )
    says.fails(
        "f has another curvature in one coordinate",
        gradient_of(lambda v: 1.5 * v.square().sum(-1) - v[..., 0].square())(w, 0).square().sum(1) / 6,
        promised=1.5 * w.square().sum(1) - w[:, 0].square(),
    )


def plot(axes: Any, shown: list[tuple[str, ConvergenceCertificate]]) -> None:
    for axis, (name, certificate) in zip(axes.flat, shown, strict=True):
        certificate.draw_on(axis)
        axis.set_title(name, fontsize=9)
