"""The Polyak-Łojasiewicz inequality: what it implies, what implies it, and at which step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.figure import COLOURS
from torchtheory.core.lab import lab
from torchtheory.core.problem import Problem
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.optimization.certificates import ConvergenceCertificate, certify
from torchtheory.optimization.convergence import polyak_lojasiewicz_constant
from torchtheory.optimization.convexity import probe_convexity
from torchtheory.optimization.descent import Function, gradient_descent, gradient_of
from torchtheory.optimization.descent_assumptions import Assumptions
from torchtheory.optimization.objectives import objective_of
from torchtheory.optimization.promises import dominated_factor
from torchtheory.optimization.recorded_runs import as_recorded
from torchtheory.optimization.run_constants import Constant, dominance_from_run

SMOOTH = 8.0  # of x² + 3 sin² x, whose second derivative is 2 + 6 cos 2x


@lab(
    "polyak-lojasiewicz",
    room="optimization",
    covers=["L-133", "L-134"],
    title="Gradients that control the gap: a linear rate without convexity",
    errata=["polyak-lojasiewicz-weaker-than-convexity", "polyak-lojasiewicz-step"],
    full={"starts": 200, "iterations": 400, "width": 60},
)
def polyak_lojasiewicz(run: Run, starts: int = 30, iterations: int = 60, width: int = 12) -> None:
    """½‖∇f‖² ≥ μ(f - f*) at every point: then gradient descent converges geometrically.

    The inequality holds for strongly convex functions, for least squares of deficient rank, for
    x² + 3 sin² x and for a winding valley of minima, none of the last two convex; it fails for x⁴,
    which is convex. The rate 1 - μ/L belongs to the step 1/L, not to half of it. A wide network is
    trained and its own constant read off the run: with it, the promise is kept. Look at the two
    functions, and at how close the slowest run comes to its bound.
    """
    constants(run, starts)
    certificates = rates(run, starts, iterations)
    steps(run)
    network = wide_network(run, width, iterations)
    run.figure(
        "functions",
        plot_functions,
        caption="Two functions with the Polyak-Łojasiewicz inequality that are not convex: "
        "x² + 3 sin² x on the line, and ½(y - sin x)², whose minima form a curve.",
        grid=(1, 2),
        size=(9.5, 3.6),
    )
    run.figure(
        "rates",
        lambda axes: plot_rates(axes, certificates, network),
        caption="Promised (dashed) and measured gaps; for the network the constants are read off "
        "the run itself.",
        grid=(1, 3),
        size=(12, 3.3),
    )


def wavy(x: Tensor) -> Tensor:
    return (x.square() + 3 * x.sin().square()).sum(-1)


def valley(z: Tensor) -> Tensor:
    return (z[..., 1] - z[..., 0].sin()).square() / 2


def ratio(f: Function, points: Tensor, minimum: float = 0.0) -> float:
    return polyak_lojasiewicz_constant(f(points), gradient_of(f)(points, 0).norm(dim=-1), minimum)


def constants(run: Run, starts: int) -> None:
    matrix = torch.diag(torch.tensor([0.0, 0.5, 2.0, 7.0], dtype=torch.float64))

    def flat(x: Tensor) -> Tensor:
        return (x @ matrix * x).sum(-1) / 2

    points = run.randn(40 * starts, 4)
    plane = 3 * run.randn(40 * starts, 2)
    grid = torch.linspace(-30, 30, 40_001, dtype=torch.float64)[:, None]
    line = wavy(grid)
    near = torch.logspace(-3, 0, 40, dtype=torch.float64)[:, None]

    def quartic(x: Tensor) -> Tensor:
        return x.square().square().sum(-1)

    run.claim(
        "L-133",
        r"\inf\frac{\|\nabla f\|^2}{2(f-f^\star)}\ge\mu: \text{ deficient least squares with }"
        r" \lambda^+_{\min}=\tfrac12;\ \tfrac12(y-\sin x)^2 \text{ with } 1;\ x^2+3\sin^2x"
        r" \text{ with } \tfrac1{32}",
        promised=[0.5, 1.0, 1 / 32],
        relation=">=",
        measured=[
            ratio(flat, points),
            ratio(valley, plane),
            polyak_lojasiewicz_constant(line, gradient_of(wavy)(grid, 0).abs()[:, 0], 0.0),
        ],
        tolerance=1e-9,
        reason="smallest ratio over random points, and over a grid of [-30, 30]",
        control=Control("x⁴ near 0", [ratio(quartic, near)] * 3),
    )
    best = polyak_lojasiewicz_constant(line, gradient_of(wavy)(grid, 0).abs()[:, 0], 0.0)
    fine = torch.linspace(1.9, 2.5, 60_001, dtype=torch.float64)[:, None]
    finer = polyak_lojasiewicz_constant(wavy(fine), gradient_of(wavy)(fine, 0).abs()[:, 0], 0.0)
    run.claim(
        "L-133",
        r"x^2+3\sin^2x: \text{ the best constant is met near } x=2.2",
        promised=finer,
        relation="==",
        measured=best,
        tolerance=1e-4,
        reason=f"{finer:.6f}, on a grid a hundred times as fine around it",
        control=Control("1/32, which is valid and not the best", 1 / 32),
    )
    probes = [
        probe_convexity(lambda x: wavy(x), grid[::400], generator=run.generator),
        probe_convexity(lambda z: valley(z), plane[:60], generator=run.generator),
    ]
    bowl = probe_convexity(lambda x: flat(x), points[:60], generator=run.generator)
    run.claim(
        "L-133",
        r"\text{and neither of the last two is convex: smallest curvature}",
        promised=0,
        relation="<",
        measured=[p.smallest_curvature for p in probes],
        control=Control("deficient least squares", max(0.0, bowl.smallest_curvature)),
    )
    strong = torch.diag(torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64))

    def convex(x: Tensor) -> Tensor:
        made: Tensor = (x @ strong * x).sum(-1) / 2 + x.square().square().sum(-1)
        return made

    at = run.randn(40 * starts, 3)
    run.claim(
        "L-133",
        r"\mu\text{-strongly convex} \implies \mu\text{-PL}: \text{ smallest ratio}",
        promised=0.3,
        relation=">=",
        measured=ratio(convex, at),
        tolerance=1e-12,
        control=Control("the quadratic part is left out", ratio(quartic, at / 20)),
    )
    # how x⁴ fails: on [-r, r] without 0 the best constant is 8 r² of the innermost point
    inner = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
    run.claim(
        "L-133",
        r"x^4: \frac{f'^2}{2f}=8x^2\to0: \text{ no constant}",
        promised=8 * inner.square(),
        relation="==",
        measured=[ratio(quartic, r.reshape(1, 1)) for r in inner],
        tolerance=1e-12,
        control=Control(
            "x² in place of x⁴",
            [ratio(lambda x: x.square().sum(-1), r.reshape(1, 1)) for r in inner],
        ),
    )
    run.erratum(
        "polyak-lojasiewicz-weaker-than-convexity",
        r"f \text{ convex with a minimum} \implies \tfrac12\|\nabla f\|^2\ge\mu(f-f^\star)"
        r" \text{ for a } \mu>0",
        promised=1e-3,
        relation=">=",
        measured=[ratio(quartic, r.reshape(1, 1)) for r in inner],
        reason="x⁴ at 1, 0.1, 0.01 and 0.001; a smaller μ fails closer to 0",
    )


def rates(run: Run, starts: int, iterations: int) -> list[tuple[str, ConvergenceCertificate]]:
    grid = torch.linspace(1e-3, 40, 100_001, dtype=torch.float64)[:, None]
    mu = 0.999 * polyak_lojasiewicz_constant(
        wavy(grid), gradient_of(wavy)(grid, 0).abs()[:, 0], 0.0
    )
    # ½(y - sin x)²: the Hessian has norm at most 1 + cos² x + |r sin x| on |r| ≤ r₀
    found, worst = [], []
    for k in range(min(starts, 8)):
        start = 5 * run.randn(1)
        done = gradient_descent(wavy, start, 1 / SMOOTH, iterations)
        known: dict[str, Any] = {"smoothness": SMOOTH, "dominance": mu, "minimum": 0.0}
        found.append((f"x² + 3 sin² x, {k}", certify(done, Assumptions(
            "polyak-lojasiewicz", 1 / SMOOTH, **known))))  # fmt: skip
        place = run.randn(2) * torch.tensor([3.0, 1.0])
        big = 2.0 + float((2 * valley(place)).sqrt())
        path = gradient_descent(valley, place, 1 / big, iterations)
        other: dict[str, Any] = {"smoothness": big, "dominance": 1.0, "minimum": 0.0}
        worst.append((f"½(y - sin x)², {k}", certify(path, Assumptions(
            "polyak-lojasiewicz", 1 / big, **other))))  # fmt: skip
    slow = gradient_descent(
        lambda x: x.square().square().sum(-1), torch.full((1,), 0.05).double(), 1 / 8, iterations
    )
    bad = certify(
        slow,
        Assumptions("polyak-lojasiewicz", 1 / 8, smoothness=8.0, dominance=mu, minimum=0.0),
    )
    everything = found + worst
    run.claim(
        "L-134",
        r"\eta=1/L:\ f(x_k)-f^\star\le(1-\mu/L)^k(f(x_0)-f^\star)",
        promised=torch.cat([c.promised for _, c in everything]),
        relation="<=",
        measured=torch.cat([c.measured for _, c in everything]),
        tolerance=1e-14,
        reason=f"{len(everything)} runs of {iterations} steps on two functions that are not convex",
        control=Control("x⁴, which has no such constant", bad.measured, bad.promised),
    )
    run.claim(
        "L-134",
        r"\text{and the runs contradict no assumption; the control's names the constant}",
        promised=0,
        relation="==",
        measured=sum(len(c.contradictions) for _, c in everything),
        control=Control("x⁴", sum(c.assumption == "dominance" for c in bad.contradictions)),
    )
    return [found[0], worst[0]]


def steps(run: Run) -> None:
    """The quadratic on which the printed step fails, and the factor of every step below 2/L."""
    mu, big = 0.5, 1.0
    curvature = torch.tensor([mu, big], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        made: Tensor = (curvature * x.square()).sum(-1) / 2
        return made

    east = torch.tensor([1.0, 0.0], dtype=torch.float64)
    done = gradient_descent(f, east, 1 / (2 * big), 1)
    run.erratum(
        "polyak-lojasiewicz-step",
        r"\eta=\tfrac1{2L}:\ f(x_{k+1})-f^\star\le(1-\tfrac\mu L)(f(x_k)-f^\star)",
        promised=(1 - mu / big) * done.values[0],
        relation="<=",
        measured=done.values[1],
        reason="½(½x₁² + x₂²) from (1, 0): the factor is (1 - μ/2L)² = 0.5625",
    )
    shares = (0.1, 0.5, 1.0, 1.5, 1.9)
    factors, promised = [], []
    at = run.randn(60, 2)
    for share in shares:
        path = gradient_descent(f, at, share / big, 1).values
        factors.append((path[1] / path[0]).max())
        promised.append(dominated_factor(share / big, mu, big))
    run.claim(
        "L-134",
        r"0<\eta<2/L:\ f(x_{k+1})-f^\star\le(1-\eta\mu(2-\eta L))(f(x_k)-f^\star)",
        promised=promised,
        relation="<=",
        measured=torch.stack(factors),
        tolerance=1e-12,
        reason="η = 0.1, 0.5, 1, 1.5 and 1.9 in units of 1/L: 1 - ¾μ/L at half of 1/L",
        control=Control(
            "half of the curvature along x₁",
            [
                float(
                    (lambda v: v[1] / v[0])(
                        gradient_descent(
                            lambda x: (curvature * torch.tensor([0.5, 1.0]) * x.square()).sum(-1),
                            east,
                            share / 2,
                            1,
                        ).values
                    )
                )
                for share in shares
            ],
        ),
    )


def wide_network(run: Run, width: int, iterations: int) -> ConvergenceCertificate:
    """A user's network: constants from its own run, with the direction of their error."""
    inputs = run.randn(8, 2)
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / math.sqrt(p.shape[-1]))
    problem = Problem(net, (inputs, inputs[:, :1].sin()), task="regression")
    f, start = objective_of(problem)
    done = gradient_descent(f, start, 0.05, iterations)
    found = certify(done, Assumptions("polyak-lojasiewicz", 0.05, minimum=0.0))
    early = dominance_from_run(
        as_recorded(type(done)(done.points[:2], done.values[:2], done.gradient_norms[:2])),
        0.05,
        Constant(0.0),
    )
    assert early is not None
    hasty = certify(
        done, Assumptions("polyak-lojasiewicz", 0.05, dominance=early.value, minimum=0.0)
    )
    run.claim(
        ["L-133", "L-134"],
        r"\text{a trained network, } \mu \text{ and } L \text{ read off its run: the promise is "
        r"kept}",
        promised=found.promised,
        relation="<=",
        measured=found.measured,
        tolerance=1e-12,
        reason="; ".join(f"{name}: {c}" for name, c in found.constants.items()),
        control=Control(
            "μ from the first two points only, where the gradient is large",
            hasty.measured,
            hasty.promised,
        ),
    )
    run.claim(
        "L-133",
        r"\text{more points can only lower the estimate of } \mu",
        promised=early.value,
        relation="<=",
        measured=found.constants["dominance"].value,
        control=Control(
            "read the other way", early.value, promised=found.constants["dominance"].value
        ),
    )
    return found


def plot_functions(axes: Any) -> None:
    left, right = axes[0]
    grid = torch.linspace(-5, 5, 300, dtype=torch.float64)
    left.plot(grid, wavy(grid[:, None]), color=COLOURS[0], label=r"$x^2+3\sin^2x$")
    slopes = gradient_of(wavy)(grid[:, None], 0)[:, 0]
    left.plot(grid, slopes.square() / (2 * 0.175), "--", color=COLOURS[1],
              label=r"$f'^2/(2\cdot0.175)$")  # fmt: skip
    left.set(xlabel="x", ylim=(0, 30))
    left.legend(loc="lower left")
    x, y = torch.meshgrid(
        torch.linspace(-4, 4, 120).double(), torch.linspace(-2.2, 2.2, 90).double(), indexing="xy"
    )
    drawn = right.contourf(x, y, valley(torch.stack([x, y], -1)), levels=12, cmap="Blues_r")
    right.figure.colorbar(drawn, ax=right)
    line = torch.linspace(-4, 4, 200).double()
    right.plot(line, line.sin(), color=COLOURS[1], linewidth=2, label="minima")
    for k in range(6):
        start = torch.tensor([-3.2 + 1.3 * k, 2.0 if k % 2 else -2.0], dtype=torch.float64)
        path = gradient_descent(valley, start, 0.2, 40).points
        right.plot(path[:, 0], path[:, 1], ".-", color="0.15", markersize=3, linewidth=0.7)
    right.set(xlabel="x", ylabel="y", ylim=(-2.2, 2.2))
    right.grid(visible=False)
    right.legend(loc="upper right", frameon=True)


def plot_rates(
    axes: Any, shown: list[tuple[str, ConvergenceCertificate]], network: ConvergenceCertificate
) -> None:
    for axis, (name, c) in zip(axes[0], [*shown, ("a wide network, 0", network)], strict=True):
        axis.semilogy(c.times, c.promised, "--", color=COLOURS[1], label="promised")
        axis.semilogy(c.times, c.measured.clamp_min(1e-17), color=COLOURS[0], label="measured")
        axis.set_title(name.rpartition(",")[0], fontsize=9)
        axis.set(xlabel="step", ylabel="gap")
        axis.locator_params(axis="y", numticks=5)
        axis.legend(loc="center right")
