"""Convexity, looked for where it could fail; and directions in which a function falls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.problem import Problem
from torchtheory.optimization.certificates.convexity import (
    ConvexityProbe,
    probe_convex_set,
    probe_convexity,
    tangent_excess,
)
from torchtheory.optimization.descent.directions import descent_report
from torchtheory.optimization.descent.iterates import Function
from torchtheory.optimization.descent.objectives import objective_of
from torchtheory.primer.smoothness import parabola_bounds


@lab(
    "convexity-probe",
    room="optimization",
    covers=["L-116", "L-117", "L-142"],
    title="Convex or not: chords, tangents, curvature, and a counterexample where there is one",
    errata=["descent-direction-right-angle", "descent-direction-negative-step"],
    full={"dim": 20, "pairs": 20_000, "width": 16},
    least={"dim": 2},
)
def convexity_probe(run: Run, dim: int = 5, pairs: int = 400, width: int = 3) -> None:
    """A search for chords below the graph, on functions that are convex and on some that are not.

    A function is convex if and only if no chord lies below its graph, if and only if no tangent
    lies above it, if and only if its curvature is nowhere negative. The search returns the
    counterexample where it finds one: for the loss of a two-layer network in its weights, two
    sets of weights whose mean is worse than both are on average. Then directions: whichever
    makes an angle below a right one with the negative gradient decreases the function at first.

    Args:
        dim: dimension of the inputs.
        pairs: of points between which chords are drawn.
        width: of the network that is probed.
    """
    verdicts(run, dim, pairs, width)
    sets(run, dim, pairs)
    characterizations(run, dim, pairs)
    directions(run, dim)
    run.figure(
        "chord-tangent-parabola",
        plot,
        caption="Left: a convex function lies below its chords, above its tangents, and, being "
        "smooth, below a parabola that touches it. Middle: what a chord of a function that is not "
        "convex shows. Right: two sets of weights of a network and their mean.",
        grid=(1, 3),
        size=(12.5, 3.5),
    )


def network_loss(run_randn: Callable[..., Tensor], width: int) -> tuple[Function, int]:
    """The squared loss of a two-layer network as a function of its weights."""
    inputs = run_randn(20, 2)
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1)).double()
    problem = Problem(net, (inputs, inputs.prod(1, keepdim=True)), task="regression")
    f, start = objective_of(problem)
    return f, len(start)


def verdicts(run: Run, dim: int, pairs: int, width: int) -> None:
    matrix, target = run.randn(3 * dim, dim), run.randn(3 * dim)
    labels = run.signs(3 * dim)
    network, weights = network_loss(run.randn, width)

    def probe(f: Function, size: int = dim) -> ConvexityProbe:
        points = 1.5 * run.randn(200, size)
        return probe_convexity(f, points, pairs=pairs, generator=run.generator)

    convex: list[tuple[str, Function, int]] = [
        ("‖Ax - y‖²", lambda x: (matrix @ x - target).square().sum(), dim),
        ("log Σ exp x", lambda x: x.logsumexp(-1), dim),
        ("logistic regression", lambda x: F.softplus(-labels * (matrix @ x)).mean(), dim),
        ("‖x‖₂ smoothed", lambda x: (1 + x.square().sum()).sqrt(), dim),
        ("Σ x⁴", lambda x: x.square().square().sum(), dim),
    ]
    bent: list[tuple[str, Function, int]] = [
        ("Σ sin x", lambda x: x.sin().sum(), dim),
        ("x₁x₂", lambda x: x[0] * x[1], dim),
        ("Σ x⁴ - x²", lambda x: (x.square().square() - x.square()).sum(), dim),
        ("loss of a two-layer network", network, weights),
    ]
    found = [(n, probe(f, size)) for n, f, size in convex]
    caught = [(n, probe(f, size)) for n, f, size in bent]
    flipped = [probe(lambda x, f=f: -f(x)) for _, f, _ in convex]  # type: ignore[misc]
    says = run.states("L-116", r"f \text{ convex: no chord lies below the graph: excess of the graph}")
    says.at_most([p.worst.excess for _, p in found], 0, 1e-11, where=", ".join(n for n, _ in found))
    says.fails("-f", [p.worst.excess for p in flipped])
    says = run.states("L-116", r"\text{a counterexample is found for every function that is not convex}")
    says.below(
        [-p.worst.excess for _, p in caught],
        0,
        where=", ".join(n for n, _ in caught) + "; minus the excess of the worst chord",
    )
    says.fails("convex functions", [-p.worst.excess for _, p in found])
    # a counterexample has to stand on its own
    chord = caught[-1][1].counterexample
    assert chord is not None
    straight = found[0][1].worst
    says = run.states(
        "L-116",
        r"\text{network: } f(\alpha w+(1-\alpha)v)>\alpha f(w)+(1-\alpha)f(v)"
        r" \text{ at the weights that were returned}",
    )
    says.above(network(chord.between), chord.weight * network(chord.start) + (1 - chord.weight) * network(chord.end))
    says.fails(
        "the worst chord of ‖Ax - y‖²",
        convex[0][1](straight.between),
        promised=straight.weight * convex[0][1](straight.start) + (1 - straight.weight) * convex[0][1](straight.end),
    )
    run.table(
        "functions",
        ["function", "largest excess over a chord", "tangent above graph", "smallest curvature"],
        [(n, p.worst.excess, p.tangent_excess, p.smallest_curvature) for n, p in [*found, *caught]],
        caption="Positive in the first two columns, or negative in the last: not convex",
    )


def sets(run: Run, dim: int, pairs: int) -> None:
    points = run.randn(400, dim) * math.sqrt(5 / dim)  # of length about 2.2 in any dimension
    convex = {
        "ball": lambda x: x.norm(dim=1) <= 2.5,
        "half-space": lambda x: x[:, 0] + x[:, 1] <= 0.3,
        "cone x₁ ≥ ‖rest‖": lambda x: 3 * x[:, 0] >= x[:, 1:].norm(dim=1),
    }
    bent = {
        "shell": lambda x: (x.norm(dim=1) - 2).abs() <= 0.6,
        "two half-spaces": lambda x: x[:, 0].abs() >= 0.5,
        "cross": lambda x: x.abs().amin(1) <= 0.1,
    }

    def found(named: dict[str, Callable[[Tensor], Tensor]]) -> int:
        made = [probe_convex_set(contains, points, pairs=pairs, generator=run.generator) for contains in named.values()]
        return sum(m is not None for m in made)

    says = run.states("L-116", r"\text{convex sets: points between two of their points that lie outside}")
    says.equal(found(convex), where=", ".join(convex))
    says.fails(", ".join(bent), found(bent))


def characterizations(run: Run, dim: int, pairs: int) -> None:
    """Chord, tangent and parabola on random pairs."""
    x, y = 2 * run.randn(pairs, dim), 2 * run.randn(pairs, dim)
    weights = run.rand(pairs, 1)
    matrix = run.randn(2 * dim, dim)
    labels = run.signs(2 * dim)

    def f(w: Tensor) -> Tensor:
        return F.softplus(-labels * (matrix @ w)).mean()

    def wavy(w: Tensor) -> Tensor:
        return w.cos().sum()

    def chord(g: Function) -> Tensor:
        each = torch.func.vmap(g)
        flat = weights[:, 0]
        return each(weights * x + (1 - weights) * y) - flat * each(x) - (1 - flat) * each(y)

    says = run.states("L-142", r"\ell(\alpha x+(1-\alpha)x')\le\alpha\ell(x)+(1-\alpha)\ell(x'): \text{ excess}")
    says.at_most(chord(f), 0, 1e-13, where="logistic regression")
    says.fails("Σ cos w", chord(wavy))
    says = run.states("L-142", r"\ell(x)\ge\ell(x')+\nabla\ell(x')^\top(x-x'): \text{ excess of the tangent}")
    says.at_most(tangent_excess(f, y, x), 0, 1e-13)
    says.fails("Σ cos w", tangent_excess(wavy, y, x))
    big = float(torch.linalg.matrix_norm(matrix, 2)) ** 2 / (4 * len(matrix))
    _, values, above = parabola_bounds(f, y[0], x, big)
    _, _, low = parabola_bounds(f, torch.zeros_like(y[0]), x / 20, big / 4)
    says = run.states(
        "L-142", r"\ell\ L\text{-smooth}: \ell(x)\le\ell(x')+\nabla\ell(x')^\top(x-x')+\tfrac L2\|x-x'\|^2"
    )
    says.at_most(values, above, 1e-13)
    says.fails("a quarter of L, near the point of largest curvature", torch.func.vmap(f)(x / 20), promised=low)
    # the three tests agree on each function: the equivalence, case by case
    agree, disagree = 0, 0
    for name in ("x²", "x⁴", "exp x", "sin x", "x⁴ - x²", "x exp(-x²)", "log cosh x", "x³"):
        g = LINES[name]
        at = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)[:, None]
        probe = probe_convexity(g, at, pairs=800, curvature_points=61, generator=run.generator)
        tests = (probe.violated, probe.tangent_excess > 1e-12, probe.smallest_curvature < -1e-12)
        agree += len(set(tests)) == 1
        disagree += len({tests[0], bool(g(at[45]) > g(at[15]))}) == 1
    says = run.states("L-142", r"\text{chord, tangent and curvature give the same verdict: functions on which they do}")
    says.equal(
        agree, len(LINES), where="x², x⁴, eˣ, log cosh x (convex on [-1.5, 1.5]); sin x, x⁴ - x², x $e^{-x²}$, x³"
    )
    says.fails("monotonicity in place of the tangent test", disagree)


LINES: dict[str, Function] = {
    "x²": lambda x: x.square().sum(),
    "x⁴": lambda x: x.square().square().sum(),
    "exp x": lambda x: x.exp().sum(),
    "sin x": lambda x: x.sin().sum(),
    "x⁴ - x²": lambda x: (x.square().square() - x.square()).sum(),
    "x exp(-x²)": lambda x: (x * (-x.square()).exp()).sum(),
    "log cosh x": lambda x: x.cosh().log().sum(),
    "x³": lambda x: (x * x.square()).sum(),
}


def directions(run: Run, dim: int) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.square() + 3 * x.sin().square()).sum()

    point = run.randn(dim)
    slope = torch.func.grad(f)(point)
    tried = [run.randn(dim) for _ in range(40)]
    facing = [s if float(slope @ s) < 0 else -s for s in tried]
    ahead = [descent_report(f, point, s) for s in facing]
    back = [descent_report(f, point, -s) for s in facing]
    says = run.states(
        "L-117", r"\nabla f(x)^\top s<0 \implies f(x+\alpha s)<f(x) \text{ for small } \alpha>0: \text{ smallest reach}"
    )
    says.above(
        [r.decreases_up_to for r in ahead],
        0,
        where="x² + 3 sin² x in every coordinate, 40 directions; the largest α up to which all do",
    )
    says.fails("the opposite directions", [r.decreases_up_to for r in back])
    angles = torch.tensor([math.acos(r.cosine) for r in ahead])
    says = run.states("L-117", r"\text{their angle with } -\nabla f \text{ is below } \pi/2")
    says.below(angles, math.pi / 2)
    says.fails("the opposite directions", [math.acos(r.cosine) for r in back])
    says = run.states("L-117", r"\nabla f(x)^\top s\ge-\|\nabla f(x)\|\|s\|, \text{ attained by } s=-\nabla f(x)")
    says.at_least(
        [r.slope / float(s.norm()) for r, s in zip(ahead, facing, strict=True)]
        + [float(slope.norm()) + descent_report(f, point, -slope).slope / float(slope.norm())],
        [-float(slope.norm())] * len(facing) + [0.0],
        1e-12,
    )
    says.fails(
        "the gradient is taken close to the minimum, at x/100",
        [r.slope / float(s.norm()) for r, s in zip(ahead, facing, strict=True)] + [0.0],
        promised=[-float(torch.func.grad(f)(point / 100).norm())] * len(facing) + [0.0],
    )

    def bowl(x: Tensor) -> Tensor:
        return x.square().sum()

    east = torch.tensor([1.0, 0.0], dtype=torch.float64)
    side = descent_report(bowl, east, torch.tensor([0.0, 1.0], dtype=torch.float64))
    run.refutes(
        "descent-direction-right-angle",
        r"\langle-\nabla f,s\rangle=\pi/2 \text{ is a descent direction}: f(x+\alpha s)<f(x)",
    ).below(side.changes, 0, where=f"‖x‖² at (1, 0) along (0, 1), cosine {side.cosine:g}: it rises for every α")
    along = -torch.func.grad(bowl)(east)
    alphas = -torch.logspace(-6, -1, 10, dtype=torch.float64)
    run.refutes(
        "descent-direction-negative-step",
        r"\nabla f^\top s<0 \implies f(x+\alpha s)<f(x)\ \forall\alpha \text{ sufficiently small}",
    ).below(
        torch.func.vmap(bowl)(east + alphas[:, None] * along) - bowl(east),
        0,
        where="‖x‖² at (1, 0), s = -∇f, α from -0.1 to -10⁻⁶",
    )


def plot(axes: Any) -> None:
    left, middle, right = axes[0]
    grid = torch.linspace(-2.2, 2.2, 200, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return torch.log(2 * torch.cosh(x - 0.3)).sum(-1)

    values = f(grid[:, None])
    left.plot(grid, values, color="0.2", label="f")
    ends = torch.tensor([[-1.8], [1.5]], dtype=torch.float64)
    left.plot(ends[:, 0], f(ends), "o-", color=COLORS[0], label="chord")
    at = torch.tensor([0.6], dtype=torch.float64)
    low = torch.func.grad(lambda x: f(x))(at)
    left.plot(grid, f(at) + low * (grid - at), color=COLORS[2], label="tangent")
    _, _, high = parabola_bounds(f, at, grid[:, None], 1.0)
    left.plot(grid, high, "--", color=COLORS[1], label="parabola, L = 1")
    left.set(xlabel="x", ylabel="f(x)", ylim=(-0.2, 3.6))
    left.legend(loc="upper center")

    def g(x: Tensor) -> Tensor:
        return (x.square().square() / 4 - x.square()).sum(-1)

    middle.plot(grid, g(grid[:, None]), color="0.2", label="x⁴/4 - x²")
    probe = probe_convexity(g, grid[::10, None], generator=0)
    chord = probe.worst
    pair = torch.stack([chord.start, chord.end])
    middle.plot(pair[:, 0], g(pair), "o-", color=COLORS[0], label="the worst chord found")
    middle.plot(chord.between, chord.height, "*", color=COLORS[1], markersize=11, label="above it")
    middle.set(xlabel="x", ylabel="f(x)")
    middle.legend(loc="upper center")

    random = torch.Generator().manual_seed(3)
    network, size = network_loss(lambda *s: torch.randn(*s, dtype=torch.float64, generator=random), 3)
    points = torch.randn(60, size, dtype=torch.float64, generator=random)
    worst = probe_convexity(network, points, pairs=400, curvature_points=0, generator=random).worst
    shares = torch.linspace(0, 1, 80, dtype=torch.float64)[:, None]
    path = shares * worst.start + (1 - shares) * worst.end
    heights = torch.func.vmap(network)(path)
    right.plot(shares, heights, color="0.2", label="loss between the two")
    right.plot([0, 1], [heights[0], heights[-1]], "o-", color=COLORS[0], label="chord")
    right.set(xlabel=r"$\alpha$", ylabel="loss")
    right.legend(loc="best")
