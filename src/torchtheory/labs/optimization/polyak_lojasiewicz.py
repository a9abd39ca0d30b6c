"""The Polyak-Łojasiewicz inequality: what it implies, what implies it, and at which step."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, vmap

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates.assumptions import Assumptions
from torchtheory.optimization.certificates.certify import ConvergenceCertificate, certify
from torchtheory.optimization.certificates.convergence import (
    geometric_bound,
    polyak_lojasiewicz_constant,
)
from torchtheory.optimization.certificates.convexity import probe_convexity
from torchtheory.optimization.certificates.promises import PROMISES, dominated_factor
from torchtheory.optimization.descent.iterates import Function, gradient_descent, gradient_of
from torchtheory.optimization.descent.objectives import objective_of

SMOOTH = 8.0  # of x² + 3 sin² x, whose second derivative is 2 + 6 cos 2x


#: What a computed curvature may be off by.
ROUNDING = 1e-6


@lab(
    "polyak-lojasiewicz",
    room="optimization",
    covers=["N-46", "N-47", "L-133", "L-134"],
    title="Gradients that control the gap: a linear rate without convexity",
    errata=[
        "polyak-lojasiewicz-weaker-than-convexity",
        "polyak-lojasiewicz-step",
        "geometric-convergence-index",
    ],
    full={"starts": 200, "steps": 400, "width": 60, "samples": 500, "features": 20},
    least={"steps": 10, "width": 2, "samples": 6, "features": 5},
)
def polyak_lojasiewicz(
    run: Run,
    starts: int = 30,
    steps: int = 80,
    width: int = 12,
    samples: int = 60,
    features: int = 8,
) -> None:
    """½‖∇f‖² ≥ μ(f - f*) at every point: then gradient descent converges geometrically.

    The inequality holds for strongly convex functions, for least squares of deficient rank, for
    x² + 3 sin² x and for a winding valley of minima, none of the last two convex; it fails for x⁴,
    which is convex. The rate 1 - μ/L belongs to the step 1/L, not to half of it. For a network that
    can fit its data μ comes from the smallest eigenvalue of its tangent kernel on the way. Look at
    the two functions, and at how close the slowest run comes to its bound.

    Args:
        starts: random starts.
        steps: of gradient descent.
        width: of the wide network.
        samples: of the least squares.
        features: of an input.
    """
    squares = deficient_squares(run, samples, features)
    constants(run, squares, starts)
    curves = geometric(run, squares, starts, steps)
    certificates = certified(run, min(starts, 8), steps)
    by_steps(run)
    network = wide_network(run, width, steps)
    run.figure(
        "functions",
        plot_functions,
        caption="Two functions with the Polyak-Łojasiewicz inequality that are not convex: "
        "x² + 3 sin² x on the line, which f'²/2μ touches for the best μ, and ½(y - sin x)², whose "
        "minima form a curve.",
        grid=(1, 2),
        size=(9.5, 3.6),
    )
    run.figure(
        "geometric-convergence",
        lambda axes: plot_geometric(axes, curves),
        caption="Gaps of all runs (thin) and the bound $(1-μ/L)^T$ times the largest initial gap, "
        "on a least squares problem of deficient rank and on x² + 3 sin² x.",
        grid=(1, 2),
    )
    run.figure(
        "certificates",
        lambda axes: plot_certificates(axes, [*certificates, ("a wide network", network)]),
        caption="Promised (dashed) and measured gaps; for the network μ is that of its tangent "
        "kernel, the smallest met. Gaps below rounding are not drawn.",
        grid=(1, 3),
        size=(12, 3.3),
    )


class Squares(NamedTuple):
    """Half the squared residual of deficient rank, above its minimum."""

    function: Function
    solution: Tensor
    spectrum: Tensor  # all eigenvalues of XXᵀ, ascending
    slowest: Tensor  # the eigenvector of the smallest that is not 0
    least: float  # that eigenvalue
    largest: float


def deficient_squares(run: Run, samples: int, features: int) -> Squares:
    rank = features // 2
    patterns = run.randn(features, rank) @ run.randn(rank, samples) / math.sqrt(samples)
    target = run.randn(samples)
    spectrum, vectors = torch.linalg.eigh(patterns @ patterns.T)
    solution = torch.linalg.lstsq(patterns.T, target[:, None], driver="gelsd").solution[:, 0]

    def gap(theta: Tensor) -> Tensor:
        made: Tensor = ((theta - solution) @ patterns).square().sum(-1) / 2
        return made

    return Squares(gap, solution, spectrum, vectors[:, -rank], float(spectrum[-rank]), float(spectrum[-1]))


def wavy(x: Tensor) -> Tensor:
    """x² + 3 sin² x in every coordinate: not convex, one minimum, no other stationary point."""
    return (x.square() + 3 * x.sin().square()).sum(-1)


def valley(z: Tensor) -> Tensor:
    return (z[..., 1] - z[..., 0].sin()).square() / 2


def quartic(x: Tensor) -> Tensor:
    made: Tensor = x.square().square().sum(-1)
    return made


def ratio(f: Function, points: Tensor) -> float:
    """The largest constant that the points allow; all minima here are 0."""
    return polyak_lojasiewicz_constant(f(points), gradient_of(f)(points, 0).norm(dim=-1), 0.0)


def wavy_constant() -> float:
    """The best constant of x² + 3 sin² x, by scipy, where the grid has its smallest ratio."""

    def at(x: float) -> float:
        return ratio(wavy, torch.tensor([[x]], dtype=torch.float64))

    found = minimize_scalar(at, bounds=(1.9, 2.5), method="bounded", options={"xatol": 1e-10})
    return float(found.fun)


def constants(run: Run, squares: Squares, starts: int) -> None:
    at = squares.solution + run.randn(40 * starts, len(squares.solution))
    plane = 3 * run.randn(40 * starts, 2)
    grid = torch.linspace(-30, 30, 40_001, dtype=torch.float64)[:, None]
    near = torch.logspace(-3, 0, 40, dtype=torch.float64)[:, None]
    says = run.states(
        ["N-46", "L-133"],
        r"\inf\frac{\|\nabla f\|^2}{2(f-f^\star)}\ge\mu: \text{ deficient least squares with } \lambda^+_{\min};\ "
        r"\tfrac12(y-\sin x)^2 \text{ with } 1;\ x^2+3\sin^2x \text{ with } \tfrac1{32}",
    )
    says.at_least(
        [ratio(squares.function, at), ratio(valley, plane), ratio(wavy, grid)],
        [squares.least, 1.0, 1 / 32],
        1e-9,
        where="smallest ratio over random points, and over a grid of [-30, 30]; λ⁺ is the "
        f"smallest eigenvalue that is not 0, here {squares.least:.3g}",
    )
    says.fails("x⁴ near 0", [ratio(quartic, near)] * 3)
    along = squares.solution + squares.slowest
    says = run.states(
        "N-46", r"\text{the constant of the quadratic is } \lambda^+_{\min}: \text{ attained along its eigenvector}"
    )
    says.equal(ratio(squares.function, along[None]), squares.least, 1e-8)
    says.fails("along a random direction", ratio(squares.function, at[:1]))
    best = wavy_constant()
    elsewhere = grid[((grid.abs() - 2.2).abs() > 1)[:, 0]]
    says = run.states("L-133", r"x^2+3\sin^2x: \text{ the best constant, 0.175, is met near } x=2.2")
    says.equal(ratio(wavy, grid), best, 1e-4, where=f"scipy's minimum of the ratio is {best:.6f}; measured on the grid")
    says.fails("the grid without its points near ±2.2", ratio(wavy, elsewhere))
    says = run.states("N-46", r"\mu\le L")
    says.at_most(
        [ratio(squares.function, at), best, ratio(lambda x: 1.5 * x.square().sum(-1), at)],
        [squares.largest, SMOOTH, 3.0],
        1e-12,
        where="the two functions, and a quadratic of one curvature, where both are equal",
    )
    says.fails(
        "$|x|^{1.5}$, which is not smooth at 0, with the curvature at 1 for L",
        ratio(lambda x: x.abs().pow(1.5).sum(-1), near),
        promised=0.75,
    )
    probes = [
        probe_convexity(lambda x: wavy(x), grid[::400], generator=run.generator),
        probe_convexity(lambda z: valley(z), plane[:60], generator=run.generator),
    ]
    bowl = probe_convexity(lambda x: squares.function(x), at[:60], generator=run.generator)
    says = run.states("L-133", r"\text{and neither of the last two is convex: smallest curvature}<0")
    says.below([p.smallest_curvature + ROUNDING for p in probes], 0, where=f"with {ROUNDING:g} for rounding")
    says.fails("deficient least squares", bowl.smallest_curvature + ROUNDING)
    strong = torch.diag(torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64))

    def convex(x: Tensor) -> Tensor:
        made: Tensor = (x @ strong * x).sum(-1) / 2 + quartic(x)
        return made

    places = run.randn(40 * starts, 3)
    says = run.states("L-133", r"\mu\text{-strongly convex} \implies \mu\text{-PL}: \text{ smallest ratio}")
    # close to the minimum, along the flattest direction, the quartic part does not help
    flattest = torch.tensor([[1e-3, 0.0, 0.0]], dtype=torch.float64)
    says.at_least([ratio(convex, places), ratio(convex, flattest)], 0.3, 1e-12)
    says.fails("the quadratic part is left out", ratio(quartic, places / 20))
    # how x⁴ fails: on [-r, r] without 0 the best constant is 8 r² of the innermost point
    inner = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
    met = [ratio(quartic, r.reshape(1, 1)) for r in inner]
    says = run.states("L-133", r"x^4: \frac{f'^2}{2f}=8x^2\to0: \text{ no constant}")
    says.equal(met, 8 * inner.square(), 1e-12)
    says.fails("x² in place of x⁴", [ratio(lambda x: x.square().sum(-1), r.reshape(1, 1)) for r in inner])
    run.refutes(
        "polyak-lojasiewicz-weaker-than-convexity",
        r"f \text{ convex with a minimum} \implies \tfrac12\|\nabla f\|^2\ge\mu(f-f^\star) \text{ for a } \mu>0",
    ).at_least(met, 1e-3, where="x⁴ at 1, 0.1, 0.01 and 0.001; a smaller μ fails closer to 0")


def geometric(run: Run, squares: Squares, starts: int, steps: int) -> list[tuple[str, Tensor, Tensor]]:
    """Runs from many starts against the bound, on two functions that are not strongly convex."""
    size, mu = len(squares.solution), wavy_constant()
    flat = gradient_descent(quartic, torch.full((1, size), 0.1, dtype=torch.float64), 1 / 12, steps)
    at = squares.solution + run.randn(starts, size)
    cases: list[tuple[str, Function, Tensor, float, float]] = [
        ("least squares of deficient rank", squares.function, at, squares.least, squares.largest),
        ("x² + 3 sin² x", wavy, 5 * run.randn(starts, 1), mu, SMOOTH),
    ]
    curves = []
    for name, f, start, constant, smooth in cases:
        done = gradient_descent(f, start, 1 / smooth, steps)
        bound = geometric_bound(done.values[0], constant, smooth, steps)
        curves.append((name, done.values, bound.amax(1)))
        says = run.states(["N-47", "L-134"], r"\eta=1/L:\ f(x_k)-f^\star\le(1-\mu/L)^k(f(x_0)-f^\star)")
        says.at_most(done.values, bound, 1e-12, where=f"{name}: {starts} runs of {steps} steps")
        says.fails(
            "Σ xᵢ⁴ near its minimum, which satisfies no such inequality",
            flat.values,
            promised=geometric_bound(flat.values[0], constant, smooth, steps),
        )
    after = curves[1][1][1]
    run.refutes(
        "geometric-convergence-index", r"h(\theta^T)-h(\theta^\star)\le(1-\mu/L)(h(\theta^T)-h(\theta^\star))"
    ).at_most(after, (1 - mu / SMOOTH) * after, where="x² + 3 sin² x after one step; it would force the gap to be 0")
    return curves


def certified(run: Run, starts: int, steps: int) -> list[tuple[str, ConvergenceCertificate]]:
    """Certificates of single runs; what a wrong constant looks like."""

    def judged(f: Function, start: Tensor, big: float, mu: float) -> ConvergenceCertificate:
        return certify(
            gradient_descent(f, start, 1 / big, steps),
            Assumptions("polyak-lojasiewicz", 1 / big, smoothness=big, dominance=mu, minimum=0.0),
        )

    mu = wavy_constant()
    waves = [judged(wavy, 5 * run.randn(1), SMOOTH, mu) for _ in range(starts)]
    valleys = []
    for _ in range(starts):
        place = run.randn(2) * torch.tensor([3.0, 1.0])
        # the Hessian of ½(y - sin x)² has norm at most 1 + cos² x + |r sin x| on |r| ≤ r₀
        valleys.append(judged(valley, place, 2 + float((2 * valley(place)).sqrt()), 1.0))
    slow = judged(quartic, torch.full((1,), 0.05, dtype=torch.float64), 8.0, mu)
    found = waves + valleys
    says = run.states("L-134", PROMISES["polyak-lojasiewicz"].statement)
    says.at_most(
        torch.cat([c.measured for c in found]),
        torch.cat([c.promised for c in found]),
        1e-14,
        where=f"{len(found)} runs of {steps} steps on two functions that are not convex",
    )
    says.fails("x⁴, which has no such constant", slow.measured, promised=slow.promised)
    says = run.states("L-134", r"\text{and the runs contradict no assumption; the control's names the constant}")
    says.equal(sum(len(c.contradictions) for c in found))
    says.fails("x⁴", sum(c.assumption == "dominance" for c in slow.contradictions))
    return [("x² + 3 sin² x", waves[0]), ("½(y - sin x)²", valleys[0])]


def by_steps(run: Run) -> None:
    """The quadratic on which the printed step fails, and the factor of every step below 2/L."""
    mu, big = 0.5, 1.0
    east = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def factors(least: float, start: Tensor, share: float) -> Tensor:
        """By which a step of share/L shrinks ½(least x₁² + L x₂²), the largest over the starts."""
        curvature = torch.tensor([least, big], dtype=torch.float64)
        path = gradient_descent(lambda x: (curvature * x.square()).sum(-1) / 2, start, share / big, 1).values
        return (path[1] / path[0]).max()

    run.refutes(
        "polyak-lojasiewicz-step", r"\eta=\tfrac1{2L}:\ f(x_{k+1})-f^\star\le(1-\tfrac\mu L)(f(x_k)-f^\star)"
    ).at_most(
        factors(mu, east, 0.5), 1 - mu / big, where="½(½x₁² + x₂²) from (1, 0): the factor is (1 - μ/2L)² = 0.5625"
    )
    shares = (0.1, 0.5, 1.0, 1.5, 1.9)
    at = run.randn(60, 2)
    says = run.states("L-134", r"0<\eta<2/L:\ f(x_{k+1})-f^\star\le(1-\eta\mu(2-\eta L))(f(x_k)-f^\star)")
    says.at_most(
        torch.stack([factors(mu, at, share) for share in shares]),
        [dominated_factor(share / big, mu, big) for share in shares],
        1e-12,
        where="η = 0.1, 0.5, 1, 1.5 and 1.9 in units of 1/L: 1 - ¾μ/L at half of 1/L",
    )
    says.fails("a quadratic with half of that μ", torch.stack([factors(mu / 2, east, share) for share in shares]))


def wide_network(run: Run, width: int, steps: int) -> ConvergenceCertificate:
    """A network that can fit its data: constants from its tangent kernel and its Hessian.

    For f = (1/n)Σr², ½‖∇f‖² = (2/n²) rᵀKr ≥ (2λmin(K)/n) f with the tangent kernel K at the point.
    """
    inputs, eta = run.randn(8, 2), 0.05
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / math.sqrt(p.shape[-1]))
    problem = Problem(net, (inputs, inputs[:, :1].sin()), task="regression")
    f, start = objective_of(problem)
    done = gradient_descent(f, start, eta, steps)

    def outputs(theta: Tensor) -> Tensor:
        made: Tensor = functional_call(net, unflatten(theta, problem.parameters), (inputs,))
        return made[:, 0]

    slopes = vmap(jacrev(outputs))(done.points)
    kernels = torch.linalg.eigvalsh(slopes @ slopes.mT)
    met = done.gradient_norms.square() / (2 * done.values)
    says = run.states(
        "L-133",
        r"f=\tfrac1n\|r\|^2:\ \frac{\|\nabla f\|^2}{2f}\ge\tfrac2n\lambda_{\min}(K)"
        r" \text{ at every step of a training, } K \text{ the tangent kernel there}",
    )
    # targets for which the residual at the start is the eigenvector of the smallest eigenvalue
    least = torch.linalg.eigh(slopes[0] @ slopes[0].mT).eigenvectors[:, 0]
    aimed = Problem(net, (inputs, (outputs(start) - least)[:, None]), task="regression")
    aimed_at = gradient_descent(objective_of(aimed)[0], start, eta, 1)
    hardest = (aimed_at.gradient_norms.square() / (2 * aimed_at.values))[:1]
    promised = 2 / len(inputs) * kernels[:, 0]
    says.at_least(
        torch.cat([met, hardest]),
        torch.cat([promised, promised[:1]]),
        1e-10,
        where="and equality where the residual is the eigenvector of the smallest eigenvalue",
    )
    says.fails("the mean eigenvalue in place of the smallest", hardest, promised=2 / len(inputs) * kernels.mean(1)[:1])
    stops = done.points[:: max(1, steps // 20)]
    curvature = torch.linalg.eigvalsh(vmap(hessian(f))(stops)).abs().max()
    # a tenth more for what lies between the points where the Hessian was taken
    big, mu = 1.1 * float(curvature), 2 / len(inputs) * float(kernels[:, 0].min())
    known: dict[str, Any] = {"smoothness": big, "minimum": 0.0}
    found = certify(done, Assumptions("polyak-lojasiewicz", eta, dominance=mu, **known))
    hasty = certify(done, Assumptions("polyak-lojasiewicz", eta, dominance=float(met[0]), **known))
    says = run.states(
        ["L-133", "L-134"],
        r"\text{the training, with } \mu=\tfrac2n\min_k\lambda_{\min}(K_k) \text{ and } L"
        r" \text{ from the Hessian: } f(x_k)\le(1-\eta\mu(2-\eta L))^kf(x_0)",
    )
    says.at_most(
        found.measured,
        found.promised,
        1e-12,
        where=f"μ = {mu:.3g}, L = {big:.3g}, η = {eta:g}, width {width}, {steps} steps",
    )
    says.fails("μ is taken from the gradient at the start alone", hasty.measured, promised=hasty.promised)
    return found


def plot_functions(axes: Any) -> None:
    left, right = axes[0]
    grid = torch.linspace(-5, 5, 300, dtype=torch.float64)
    left.plot(grid, wavy(grid[:, None]), color=COLORS[0], label=r"$x^2+3\sin^2x$")
    slopes = gradient_of(wavy)(grid[:, None], 0)[:, 0]
    left.plot(grid, slopes.square() / (2 * 0.175), "--", color=COLORS[1],
              label=r"$f'^2/(2\cdot0.175)$")  # fmt: skip
    left.set(xlabel="x", ylabel="f(x)", ylim=(0, 30))
    left.legend(loc="lower left")
    x, y = torch.meshgrid(torch.linspace(-4, 4, 120).double(), torch.linspace(-2.2, 2.2, 90).double(), indexing="xy")
    drawn = right.contourf(x, y, valley(torch.stack([x, y], -1)), levels=12, cmap="Blues_r")
    right.figure.colorbar(drawn, ax=right)
    line = torch.linspace(-4, 4, 200).double()
    right.plot(line, line.sin(), color=COLORS[1], linewidth=2, label="minima")
    for k in range(6):
        start = torch.tensor([-3.2 + 1.3 * k, 2.0 if k % 2 else -2.0], dtype=torch.float64)
        path = gradient_descent(valley, start, 0.2, 40).points
        right.plot(path[:, 0], path[:, 1], ".-", color="0.15", markersize=3, linewidth=0.7)
    right.set(xlabel="x", ylabel="y", ylim=(-2.2, 2.2))
    right.grid(visible=False)
    right.legend(loc="upper right", frameon=True)


def plot_geometric(axes: Any, curves: list[tuple[str, Tensor, Tensor]]) -> None:
    for axis, (name, values, bound) in zip(axes[0], curves, strict=True):
        shown = min(len(values), int((values.amax(1) > 1e-15).sum()) + 8)
        axis.semilogy(values[:shown, :40].clamp_min(1e-16), color=COLORS[0], linewidth=0.5)
        axis.semilogy(bound[:shown], "--", color=COLORS[1], label=r"$(1-\mu/L)^T$ bound")
        axis.set(xlabel="steps T", ylabel="gap", title=name, ylim=(1e-16, 1e6))
        axis.legend(loc="upper right")


def plot_certificates(axes: Any, shown: list[tuple[str, ConvergenceCertificate]]) -> None:
    for axis, (name, certificate) in zip(axes[0], shown, strict=True):
        certificate.draw_on(axis)
        axis.set_title(name, fontsize=9)
