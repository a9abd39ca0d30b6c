"""Certificates for momentum and stochastic descent, and faults that they have to name."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from torchtheory.labs.engine import Run, lab
from torchtheory.optimization.certificates.assumptions import Assumptions
from torchtheory.optimization.certificates.certify import ConvergenceCertificate, certify
from torchtheory.optimization.certificates.recorded_runs import (
    RecordedRun,
    record_optimizer,
    record_points,
    record_run,
)
from torchtheory.optimization.descent.iterates import (
    Direction,
    Function,
    gradient_descent,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction
from torchtheory.optimization.descent.newton import newton_direction
from torchtheory.optimization.descent.noise import with_gaussian_noise, with_unit_noise
from torchtheory.training.optimizers.momentum import HeavyBall, Nesterov


@lab(
    "certificates-of-methods",
    room="optimization",
    covers=["N-48", "N-49", "L-131", "L-133"],
    title="Certificates for momentum and stochastic descent, and the faults they name",
    full={"size": 20, "steps": 300, "trials": 200},
    least={"size": 2, "steps": 15, "trials": 2},
)
def certificates_of_methods(run: Run, size: int = 6, steps: int = 60, trials: int = 30) -> None:
    """Losses written down while an optimizer ran are all that is given.

    The heavy ball on a quadratic, Nesterov's method on convex and strongly convex functions,
    stochastic descent and its average: each against its own theorem. The heavy ball's bound is one
    for quadratics: on a strongly convex function made of three parabolas the same tuning runs in a
    circle, and the certificate says so. Then nine faults are planted in the assumptions, and the
    certificate has to name each.

    Args:
        size: of the quadratics.
        steps: of a run.
        trials: runs of the stochastic methods.
    """
    shown = [*momentum(run, size, steps), *stochastic(run, size, steps, trials)]
    faults(run, size)
    run.figure(
        "methods",
        lambda axes: plot(axes, shown),
        caption="Promised (dashed) and measured (solid); the heavy ball on three parabolas breaks "
        "the promise it would keep on a quadratic. Logarithmic steps where the promise is a power "
        "of them.",
        grid=(2, 3),
        size=(11.5, 5.8),
    )


def losses_of(f: Function, start: Tensor, optimizer: type[Optimizer], steps: int, **settings: Any) -> RecordedRun:
    """What a user would write down: the loss before every step, and nothing else."""
    x = start.clone().requires_grad_()
    method = optimizer([x], **settings)

    def closure() -> Tensor:
        method.zero_grad()
        loss = f(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return record_run(record_optimizer(method, closure, steps, keep_points=False).values)


def three_parabolas(x: Tensor) -> Tensor:
    """Convex with curvature 25, 1, 25 on three pieces; minimum 0 at 0."""
    middle = 12.5 + 25 * (x - 1) + (x - 1).square() / 2
    right = 38 + 26 * (x - 2) + 12.5 * (x - 2).square()
    return torch.where(x < 1, 12.5 * x.square(), torch.where(x < 2, middle, right)).sum(-1)


def momentum(run: Run, size: int, steps: int) -> list[tuple[str, ConvergenceCertificate]]:
    mu, big = 1.0, 25.0
    spectrum = torch.linspace(mu, big, size, dtype=torch.float64)
    basis, _ = torch.linalg.qr(run.randn(size, size))
    matrix = basis * spectrum @ basis.T

    def f(x: Tensor) -> Tensor:
        made: Tensor = (x @ matrix * x).sum(-1) / 2
        return made

    start = run.randn(size)
    eta, beta = 4 / (math.sqrt(big) + math.sqrt(mu)) ** 2, (2 / 3) ** 2
    known: dict[str, Any] = {"smoothness": big, "convexity": mu, "minimum": 0.0}
    ball = losses_of(f, start, HeavyBall, steps, lr=eta, momentum=beta)
    kept = certify(ball, Assumptions("heavy ball", eta, momentum=beta, **known))
    circle = losses_of(three_parabolas, torch.tensor([3.3]).double(), HeavyBall, steps, lr=eta, momentum=beta)
    cycling = certify(circle, Assumptions("heavy ball", eta, momentum=beta, **known))
    says = run.states("N-49", kept.statement)
    says.at_most(
        kept.measured,
        kept.promised,
        1e-14,
        where="a quadratic of condition 25 with the best step and momentum, from losses alone",
    )
    says.fails(
        "a strongly convex function with the same constants that is no quadratic",
        cycling.measured,
        promised=cycling.promised,
    )
    distance = float(start.norm())
    fast = losses_of(f, start, Nesterov, steps, lr=1 / big)
    convex = certify(fast, Assumptions("nesterov", 1 / big, smoothness=big, minimum=0.0, distance=distance))
    far = farthest_start(steps)
    hardest = certify(
        losses_of(huber_like, torch.tensor([far]).double(), Nesterov, steps, lr=1.0),
        Assumptions("nesterov", 1.0, smoothness=1.0, minimum=0.0, distance=far),
    )
    slow = certify(
        gradient_descent(huber_like, torch.full((1,), 2.0 * steps).double(), 1.0, steps),
        Assumptions("nesterov", 1.0, smoothness=1.0, minimum=0.0, distance=2.0 * steps),
    )
    says = run.states("N-48", convex.statement)
    says.at_most(
        torch.cat([convex.measured, hardest.measured]),
        torch.cat([convex.promised, hardest.promised]),
        where="a quadratic, and Huber's function from where its last step ends the straight part",
    )
    says.fails("no extrapolation: gradient descent on Huber's function", slow.measured, promised=slow.promised)
    root = math.sqrt(mu / big)
    tuned = losses_of(f, start, Nesterov, steps, lr=1 / big, momentum=(1 - root) / (1 + root))
    strong = certify(tuned, Assumptions("nesterov strongly convex", 1 / big, distance=distance, **known))
    plain = certify(
        gradient_descent(f, basis[:, 0], 1 / big, steps),
        Assumptions("nesterov strongly convex", 1 / big, distance=1.0, **known),
    )
    says = run.states("N-48", strong.statement)
    says.at_most(strong.measured, strong.promised, 1e-14)
    says.fails("plain gradient descent along the slowest direction", plain.measured, promised=plain.promised)
    return [
        ("heavy ball, quadratic", kept),
        ("heavy ball, three parabolas", cycling),
        ("Nesterov, convex", convex),
        ("Nesterov, strongly convex", strong),
    ]


def farthest_start(steps: int) -> float:
    """Where Nesterov's method is slowest on Huber's function: 1 + 2S, if S is how far slope 1 takes it."""
    high = torch.tensor([1e6]).double()
    sliding = losses_of(huber_like, high, Nesterov, steps, lr=1.0).values
    return 1 + 2 * float(sliding[0] - sliding[-1])


def huber_like(x: Tensor) -> Tensor:
    return F.huber_loss(x, torch.zeros_like(x), reduction="none").sum(-1)


def stochastic(run: Run, size: int, steps: int, trials: int) -> list[tuple[str, ConvergenceCertificate]]:
    # ten noisy examples a parameter: far from separable, so that there is a minimizer
    x = run.randn(10 * size, size)
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.sign(x[:, 0] + 0.5 * run.randn(len(x)))

    def loss(w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.softplus(-b * (w * a).sum(-1))

    def f(w: Tensor) -> Tensor:
        return F.softplus(-y * (w @ x.T)).mean(-1)

    best = last_iterate(newton_direction(f), torch.zeros(size, dtype=torch.float64), [1.0] * 20)
    eta, least = 0.5, float(f(best))
    # ‖∇f_i‖ < ‖x_i‖ = 1, and the second derivative of softplus is at most ¼
    big = float(torch.linalg.matrix_norm(x, 2)) ** 2 / (4 * len(x))
    kinds: dict[str, Assumptions] = {
        "L-140": Assumptions("stochastic", eta, smoothness=big, minimum=least, gradient_bound=1.0),
        "L-139, A-24": Assumptions("averaged", eta, minimum=least, distance=float(best.norm()), gradient_bound=1.0),
    }

    chosen = draw_batches(len(x), 1, steps, trials=[trials], generator=run.generator)
    direction = minibatch_direction(loss, [x, y], chosen)

    def recorded(directed: Direction) -> RecordedRun:
        start = torch.zeros(trials, size, dtype=torch.float64)
        return record_points(f, trajectory(directed, start, [eta] * steps))

    fair = recorded(direction)
    wild = recorded(with_gaussian_noise(direction, 10.0, run.generator))
    steep, signs = slope_with_signs(run, eta / 10, steps, trials)
    shown = []
    for ids, assumed in kinds.items():
        good, bad = certify(fair, assumed), certify(wild, assumed)
        shown.append(good)
        measured, promised = good.measured + 5 * error_of_mean(fair, assumed), good.promised
        if assumed.kind == "averaged":
            hardest = certify(steep, signs)
            # so close to the bound that the estimate may lie above it
            measured = torch.cat([measured, hardest.measured - 5 * error_of_mean(steep, signs)])
            promised = torch.cat([promised, hardest.promised])
        says = run.states(ids, good.statement)
        says.at_most(
            measured,
            promised,
            where=f"logistic regression with ‖x‖ = 1, mean of {trials} runs plus five standard errors; "
            "for the average also 0.9|x - 1| with directions ±1, minus five",
        )
        says.fails(
            "noise of size 10 is added: the directions are not bounded by σ = 1",
            bad.measured + 5 * error_of_mean(wild, assumed),
            promised=bad.promised,
        )
    return [
        ("stochastic descent, gradients", shown[0]),
        ("stochastic descent, average", shown[1]),
    ]


def slope_with_signs(run: Run, eta: float, steps: int, trials: int) -> tuple[RecordedRun, Assumptions]:
    """0.9|x - 1| from 0 with directions ±1: all that the bound loses is the last distance."""

    def f(x: Tensor) -> Tensor:
        return 0.9 * (x - 1).abs().sum(-1)

    direction = with_unit_noise(lambda x, _: 0.9 * (x - 1).sign(), run.generator)
    points = trajectory(direction, torch.zeros(trials, 1, dtype=torch.float64), [eta] * steps)
    return record_points(f, points), Assumptions("averaged", eta, minimum=0.0, distance=1.0, gradient_bound=1.0)


def error_of_mean(record: RecordedRun, assumed: Assumptions) -> Tensor:
    """Standard errors of the means over runs of the running means, `[T - 1]`."""
    assert record.gradient_norms is not None
    each = record.gradient_norms.square() if assumed.kind == "stochastic" else record.values
    counts = torch.arange(1, len(each), dtype=torch.float64)[:, None]
    running = each[:-1].cumsum(0) / counts
    return running.std(1) / math.sqrt(record.trials)


def faults(run: Run, size: int) -> None:
    """Assumptions with one fault each; the certificate has to name it."""
    spectrum = torch.linspace(1.0, 10.0, size, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        made: Tensor = (spectrum * x.square()).sum(-1) / 2
        return made

    def bent(x: Tensor) -> Tensor:
        return f(x) + 0.5 * x.square().square().sum(-1)

    def cap(x: Tensor) -> Tensor:
        return x.cos().sum(-1)

    # as much of every eigendirection: a run shows a fault only where it meets the curvature
    start = run.signs(size)
    good = gradient_descent(f, start, 0.05, 30)
    right: dict[str, Any] = {"smoothness": 10.0, "minimum": 0.0}
    ball: dict[str, Any] = {"smoothness": 10.0, "convexity": 1.0, "minimum": 0.0}
    noisy = record_run(good.values, points=good.points, gradient_norms=good.gradient_norms)
    cases: list[tuple[str, Any, Assumptions, Assumptions]] = [
        ("step", gradient_descent(f, start, 0.15, 30),
         Assumptions("convex", 0.15, **right),
         Assumptions("quadratic", 0.15, convexity=1.0, **right)),
        ("smoothness", good,
         Assumptions("smooth", 0.05, smoothness=5.0, minimum=0.0),
         Assumptions("smooth", 0.05, **right)),
        ("convexity", good,
         Assumptions("strongly convex", 0.05, convexity=3.0, **right),
         Assumptions("strongly convex", 0.05, convexity=1.0, **right)),
        ("minimum", good,
         Assumptions("smooth", 0.05, smoothness=10.0, minimum=float(good.values[5])),
         Assumptions("smooth", 0.05, **right)),
        ("dominance", good,
         Assumptions("polyak-lojasiewicz", 0.05, dominance=3.0, **right),
         Assumptions("polyak-lojasiewicz", 0.05, dominance=1.0, **right)),
        ("convex", gradient_descent(cap, start / 10, 0.5, 30),
         Assumptions("convex", 0.5, smoothness=1.0, minimum=-float(size), distance=10.0),
         Assumptions("smooth", 0.5, smoothness=1.0, minimum=-float(size))),
        ("quadratic", gradient_descent(bent, start, 0.01, 30),
         Assumptions("quadratic", 0.01, smoothness=100.0, convexity=1.0, minimum=0.0),
         Assumptions("strongly convex", 0.01, smoothness=100.0, convexity=1.0, minimum=0.0)),
        ("gradient_bound", noisy,
         Assumptions("averaged", 0.05, minimum=0.0, distance=9.0, gradient_bound=0.5),
         Assumptions("averaged", 0.05, minimum=0.0, distance=9.0, gradient_bound=99.0)),
        ("momentum", good.values.tolist(),
         Assumptions("heavy ball", 0.05, momentum=0.1, **ball),
         Assumptions("heavy ball", 0.05, momentum=0.9, **ball)),
    ]  # fmt: skip
    named, spurious, rows = 0, 0, []
    for fault, record, wrong, sound in cases:
        said = certify(record, wrong).contradictions
        honest = certify(record, sound).contradictions
        named += any(c.assumption == fault for c in said)
        spurious += any(c.assumption == fault for c in honest)
        first = next((c for c in said if c.assumption == fault), None)
        rows.append((fault, "" if first is None else first.time,
                     "not named" if first is None else first.sentence))  # fmt: skip
    says = run.states(["L-131", "L-133"], r"\text{nine planted faults: how many the certificate names}")
    says.equal(named, len(cases))
    says.fails("the same records with sound assumptions", spurious)
    run.table(
        "faults",
        ["fault", "seen at step", "what the certificate says"],
        rows,
        caption="Assumptions with one fault each",
    )


def plot(axes: Any, shown: list[tuple[str, ConvergenceCertificate]]) -> None:
    for axis, (name, certificate) in zip(axes.flat, shown, strict=True):
        certificate.draw_on(axis)
        axis.set_title(name, fontsize=9)
