"""Where gradient flow goes, gradient descent beside it, and what kind of point it ends at."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.linalg.eigenvalues import extremal_eigenvalues
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.optimization.descent.flow import function_flow
from torchtheory.optimization.descent.iterates import (
    Function,
    gradient_descent,
    gradient_of,
    last_iterate,
)
from torchtheory.optimization.descent.objectives import objective_of
from torchtheory.optimization.landscape.critical_points import classify, critical_point


@lab(
    "descent-and-flow",
    room="optimization",
    covers=["L-118", "L-120"],
    title="Gradient flow from many starts, and gradient descent beside it",
    errata=["flow-unique-minimizer", "definite-at-zero"],
    full={"side": 9, "width": 8},
    least={"side": 2},
)
def descent_and_flow(run: Run, side: int = 4, width: int = 3) -> None:
    """ẋ = -∇f(x) from a grid of starts, on a strictly convex function and on one with four valleys.

    Along the flow the function falls at the rate ‖∇f‖². Gradient descent with step η is its Euler
    method, and stays within a distance proportional to η over any fixed time. Where the flow ends
    the gradient is 0, and the Hessian says what kind of point it is, unless it is singular: x³ and
    x⁴ look the same to it at 0. Look at the paths: one goal on the left, four on the right.

    Args:
        side: starts along each side of the grid.
        width: of the network in the part on critical points.
    """
    flows = paths(run, side)
    energy(run, flows)
    sizes = discretization(run)
    critical(run, width)
    run.figure(
        "figure-5-2",
        lambda axes: plot_paths(axes, flows),
        caption="Gradient flow from many starts (dots) on a convex function and on one that is "
        "not; stars are where the paths end.",
        grid=(1, 2),
        size=(9, 4),
    )
    run.curves(
        "euler",
        [eta for eta, _, _ in sizes],
        {"measured": [away for _, away, _ in sizes]},
        {"bound": [bound for _, _, bound in sizes]},
        axes=(r"step $\eta$", "distance from the flow"),
        log="xy",
        caption="Largest distance between gradient descent and gradient flow up to time 1, by "
        "step, and the bound ½ηG($e^L$ - 1).",
    )


def bowl(x: Tensor) -> Tensor:
    a, b = x[..., 0], x[..., 1]
    return a.square() / 2 + b.square() + 0.5 * a * b + a.square().square() / 8


def valleys(x: Tensor) -> Tensor:
    return ((x.square() - 1).square() / 4).sum(-1) + 0.1 * x[..., 0] * x[..., 1]


def trench(x: Tensor) -> Tensor:
    return x[..., 0].square()


def distinct(ends: Tensor) -> int:
    """How many different points there are among the ends."""
    kept: list[Tensor] = []
    for end in ends:
        if all(float((end - k).norm()) > 1e-2 for k in kept):
            kept.append(end)
    return len(kept)


def paths(run: Run, side: int) -> list[tuple[str, Function, Tensor, list[float]]]:
    # off the lines of symmetry, on which the flow runs into saddles
    line = torch.linspace(-2, 2, side, dtype=torch.float64) + 0.05
    starts = torch.cartesian_prod(line, line - 0.1)
    times: list[float] = [0.0, *torch.logspace(-2, math.log10(12), 20).tolist()]
    found: list[tuple[str, Function, Tensor, list[float]]] = []
    for name, f in (("convex", bowl), ("not convex", valleys), ("flat", trench)):
        found.append((name, f, function_flow(f, starts, times), times))
    counts = {name: distinct(path[-1]) for name, _, path, _ in found}
    says = run.states("L-120", r"f \text{ strictly convex: all trajectories end at one point: different ends}")
    says.equal(counts["convex"], 1, where=f"{len(starts)} starts, time 12")
    says.fails("a function that is not convex", counts["not convex"])

    def judged(f: Function, path: Tensor) -> list[float]:
        """Different ends, how many of them are minima, and the largest gradient there."""
        kinds = [critical_point(f, end, 1e-4).kind for end in path[-1]]
        slope = gradient_of(f)(path[-1], 0).norm(dim=-1).max()
        return [distinct(path[-1]), kinds.count("minimum"), float(slope)]

    # a start on the line of symmetry runs into the saddle at 0
    ridge = function_flow(valleys, torch.cat([starts[:-1], 0 * starts[:1]]), times)
    says = run.states(
        ["L-120", "L-118"], r"f \text{ not convex: four different ends, all of them minima, with gradient } 0"
    )
    says.equal(judged(valleys, found[1][2]), [4, len(starts), 0], 1e-4)
    says.fails("one of the starts is the maximum at 0", judged(valleys, ridge))
    run.refutes(
        "flow-unique-minimizer",
        r"f \text{ convex} \implies \text{all trajectories end at one minimizer: different ends}",
    ).at_most(counts["flat"], 1, where="x₁² in the plane: convex, and the second coordinate does not move")
    return found[:2]


def energy(run: Run, flows: list[tuple[str, Function, Tensor, list[float]]]) -> None:
    rises, rates, promised, others, up = [], [], [], [], []
    for (_, f, path, _), (_, other, _, _) in zip(flows, reversed(flows), strict=True):
        rises.append(f(path).diff(dim=0).max())
        up.append(other(path).diff(dim=0).max())
        # a central difference over a short time, at the points of the path
        at, width = path[5], 1e-3
        ahead = function_flow(f, at, [width, 2 * width])
        rates.append((f(ahead[1]) - f(at)) / (2 * width))
        promised.append(-gradient_of(f)(ahead[0], 0).square().sum(-1))
        others.append((other(ahead[1]) - other(at)) / (2 * width))
    says = run.states("L-120", r"f \text{ does not increase along the flow: largest rise between two times}")
    says.at_most(torch.stack(rises), 0, 1e-8)
    says.fails("along the flow of the other function", torch.stack(up))
    says = run.states("L-120", r"\frac{d}{dt}f(x(t))=-\|\nabla f(x(t))\|^2")
    says.equal(torch.cat(rates), torch.cat(promised), 1e-4, where="central differences over 0.002")
    says.fails("the other function along the flow", torch.cat(others))


def discretization(run: Run) -> list[tuple[float, float, float]]:
    """Euler's method: distance from the flow, against the classical bound."""

    def f(x: Tensor) -> Tensor:
        return x.cos().sum(-1) + 0.5 * (x[..., 0] - x[..., 1]).cos()

    # second derivatives: 1 from each cosine, and ½ times the matrix of (1, -1), of norm 2
    smooth, start = 2.0, torch.tensor([[0.4, -0.9]], dtype=torch.float64)
    longest = math.sqrt(2) * 1.5  # no coordinate of the gradient exceeds 1 + ½
    found = []
    for count in (5, 10, 20, 40):
        eta = 1.0 / count
        moments = [eta * k for k in range(count + 1)]
        along = function_flow(f, start, moments)
        path = gradient_descent(f, start, eta, count).points
        away = float((path - along).norm(dim=-1).max())
        found.append((eta, away, eta * longest / 2 * (math.exp(smooth) - 1)))
    # -x²/4 curves away all the time, and the gradient is longest at the end: the bound is nearly met
    hardest = []
    for eta, _, _ in found:
        moments = [eta * k for k in range(round(1 / eta) + 1)]
        ahead = torch.tensor(moments, dtype=torch.float64).div(2).exp()
        path = gradient_descent(lambda x: -x.square().sum(-1) / 4, torch.ones(1).double(), eta, len(moments) - 1).points
        steepest = math.exp(0.5) / 2
        hardest.append((float((path[:, 0] - ahead).abs().max()), eta * steepest / 2 * (math.exp(0.5) - 1)))
    fast = gradient_descent(f, start, 1 / 40, 80).points[::2][:41]
    twice = float((fast - along).norm(dim=-1).max())
    says = run.states("L-120", r"\max_{k\eta\le1}\|x_k-x(k\eta)\|\le\tfrac\eta2G(e^{L}-1)")
    says.at_most(
        [*(a for _, a, _ in found), *(a for a, _ in hardest)],
        [*(b for _, _, b in found), *(b for _, b in hardest)],
        where="η = 1/5 to 1/40; ‖∇f‖ ≤ G and ‖∇²f‖ ≤ L; a sum of cosines, and -x²/4",
    )
    says.fails("time is counted at twice its speed", twice, promised=found[-1][2])
    ratios = [a[1] / b[1] for a, b in pairwise(found)]
    says = run.states(
        "L-120", r"\text{distance } O(\eta): \text{ half the step, half of it: ratio at the smallest steps}"
    )
    says.equal(ratios[-1], 2.0, 0.02, where="criterion set beforehand: within 4% of 2 at η = 1/20 against 1/40")
    says.fails("η = 1/40 at twice the speed, against itself", twice / found[-1][1])
    return found


def critical(run: Run, width: int) -> None:
    zero = torch.zeros(1, dtype=torch.float64)

    def cubic(x: Tensor) -> Tensor:
        return (x * x.square()).sum(-1)

    def quartic(x: Tensor) -> Tensor:
        return x.square().square().sum(-1)

    kinds = [critical_point(f, zero).kind for f in (cubic, quartic)]
    bent = [
        critical_point(lambda x: x.square().sum(-1) + cubic(x), zero).kind,
        critical_point(lambda x: x.square().sum(-1) + quartic(x), zero).kind,
    ]
    says = run.states("L-118", r"x^3 \text{ and } x^4 \text{ at } 0: f'=f''=0, \text{ second order does not decide}")
    says.equal(kinds.count("degenerate"), 2)
    says.fails("x² is added", bent.count("degenerate"))
    near = torch.linspace(0.005, 0.1, 20, dtype=torch.float64)[:, None]
    says = run.states("L-118", r"0 \text{ is a minimizer of } x^4: \text{ smallest value at } \pm x")
    says.at_least(torch.minimum(quartic(near), quartic(-near)), 0)
    says.fails("x³", torch.minimum(cubic(near), cubic(-near)))
    # necessary: at a minimum of a random quartic well no curvature is negative
    pull = run.randn(4)
    matrix = run.randn(4, 4)
    matrix = matrix - matrix.trace() / 4 * torch.eye(4).double()  # so that it curves down somewhere at 0

    def well(x: Tensor) -> Tensor:
        made: Tensor = x.square().square().sum(-1) + (x @ matrix * x).sum(-1) + x @ pull
        return made

    slope, ends = gradient_of(well), run.randn(20, 4)
    # until nothing moves: a path that passes a saddle stays there for long, with a gradient that is
    # small and not 0
    for _ in range(20):
        ends = last_iterate(slope, ends, [0.02] * 1000)
        if float(slope(ends, 0).norm(dim=-1).max()) < 1e-9:
            break
    lowest = torch.linalg.eigvalsh(torch.func.vmap(torch.func.hessian(well))(ends))[:, 0]
    starts = run.randn(20, 4) / 20
    between = torch.linalg.eigvalsh(torch.func.vmap(torch.func.hessian(well))(starts))[:, 0]
    says = run.states(
        "L-118",
        r"x^\star \text{ a local minimizer} \implies \nabla f=0,\ \nabla^2f\succeq0: \text{ smallest eigenvalue}",
    )
    says.at_least(lowest, 0, 1e-6, where="Σx⁴ + xᵀAx + bᵀx with a random A of trace 0, where 20 descents end")
    says.fails("points near 0", between)
    step = run.randn(20, 4)
    says = run.refutes(
        "definite-at-zero", r"\nabla^2f \text{ positive definite, i.e. } s^\top\nabla^2f\,s>0 \text{ for all } s"
    )
    says.above(
        (0 * step[0]) @ torch.eye(4, dtype=torch.float64) @ (0 * step[0]),
        0,
        where="s = 0, with the identity for the Hessian",
    )
    network(run, width)


def network(run: Run, width: int) -> None:
    """A network's critical points by the ends of its spectrum, without the dense Hessian."""
    inputs = run.randn(40, 2)
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1)).double()
    problem = Problem(net, (inputs, inputs[:, :1] * inputs[:, 1:]), task="regression")
    f, start = objective_of(problem)
    zero = torch.zeros_like(start)
    # all weights 0 and the output bias at the mean: stationary for every target
    zero[-1] = float(problem.train.y.mean())

    def kinds(theta: Tensor) -> tuple[str, str]:
        at = unflatten(theta, problem.parameters)
        ends = extremal_eigenvalues(hessian_operator(problem, parameters=at))
        tolerance = max(1e-7, 10 * ends.residual)
        dense = critical_point(lambda t: f(t), theta, 1e-6)
        return classify(ends.smallest, ends.largest, tolerance), dense.kind

    by_lanczos, dense = kinds(zero)
    slope = float(gradient_of(f)(zero, 0).norm())
    moved = zero + 0.3 * run.randn(len(zero))
    says = run.states(
        "L-118", r"\text{a network with all weights 0: stationary, and a saddle by Lanczos as by the dense Hessian}"
    )
    says.equal([slope, float(by_lanczos == "saddle"), float(dense == "saddle")], [0.0, 1.0, 1.0], 1e-9)
    says.fails(
        "weights that are not 0", [float(gradient_of(f)(moved, 0).norm()), 1.0, float(kinds(moved)[1] == "saddle")]
    )


def plot_paths(axes: Any, flows: list[tuple[str, Function, Tensor, list[float]]]) -> None:
    grid = torch.linspace(-2.4, 2.4, 100, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="xy")
    for axis, (name, f, path, _) in zip(axes[0], flows, strict=True):
        heights = f(torch.stack([first, second], -1))
        levels = torch.quantile(heights.flatten(), torch.linspace(0, 0.95, 14).double())
        axis.contour(first, second, heights, levels=sorted(set(levels.tolist())), colors="0.8",
                     linewidths=0.7)  # fmt: skip
        for k in range(path.shape[1]):
            axis.plot(path[:, k, 0], path[:, k, 1], color=COLORS[0], linewidth=0.8)
        axis.plot(path[0, :, 0], path[0, :, 1], ".", color="0.3", markersize=4)
        axis.plot(path[-1, :, 0], path[-1, :, 1], "*", color=COLORS[1], markersize=10)
        axis.set(title=name, xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        axis.grid(visible=False)
