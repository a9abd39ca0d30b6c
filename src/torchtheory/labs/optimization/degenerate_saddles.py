"""How long descent stays near the origin of a product of factors, against their number."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.optimization.descent.iterates import (
    Function,
    gradient_descent,
    last_iterate,
    trajectory,
)
from torchtheory.optimization.linear_networks.deep import (
    deep_linear_function,
    deep_linear_optimum,
    deep_linear_slope,
    flat_layers,
)
from torchtheory.optimization.linear_networks.degenerate_saddles import (
    derivative_along,
    first_derivative_order,
    plateau_time,
    product_risk,
)
from torchtheory.optimization.linear_networks.second_moments import (
    Covariances,
    reduced_rank_regression,
)
from torchtheory.optimization.linear_networks.two_layer_critical_points import (
    linear_critical_points,
)

RATE = 0.1
LEFT = 0.4  # a factor of this size has left the saddle; the minimum is at 1


@lab(
    "degenerate-saddles",
    room="optimization",
    covers=["B-37", "B-44"],
    title="Strict saddles hold descent for a logarithm, degenerate ones for a power of 1/distance",
    full={"starts": 400, "steps": 4000, "scales": 20},
    least={"steps": 300, "scales": 10},
)
def degenerate_saddles(run: Run, starts: int = 100, steps: int = 600, scales: int = 14) -> None:
    """At the origin of $σ_{yy}-2σ_{yx}w_1⋯w_L+σ_{xx}(w_1⋯w_L)^2$ the first derivative that is not 0 has
    order L. Gradient descent from distance ε leaves it after a time of order log(1/ε) for L = 2
    and $ε^{-(L-2)}$ for L > 2. In networks of two layers every random start reaches the optimum; on
    the way the loss pauses at the levels of saddles. Look at the escape times, and at the steps of
    the loss of a deeper network.

    Args:
        starts: of descent in the two-layer network.
        steps: of descent.
        scales: how many distances from the saddle descents start at.
    """
    derivatives(run)
    times = escapes(run, scales)
    two_layers(run, starts, steps)
    levels, paths = staircase(run)
    run.figure(
        "escape",
        lambda axes: plot_escape(axes, times, levels, paths),
        grid=(1, 2),
        size=(11, 4),
        caption="Left: time for which gradient descent stays at the origin, measured (points) and "
        "predicted to leading order for the flow (lines), which steps of 0.1 lag behind by up to a "
        "tenth. Right: loss of networks of widths 4, 3, ..., 3 from small weights; "
        "dashed are the values of saddles with the leading 0, 1, 2 directions, and the optimum.",
    )


def derivatives(run: Run) -> None:
    slope, square, total = 0.7, 1.3, 2.0
    depths = range(2, 6)
    risk, unrelated = product_risk(square, slope, total), product_risk(square, 0.0, total)

    def order(function: Any, depth: int) -> int:
        zero, one = torch.zeros(depth).double(), torch.ones(depth).double()
        return first_derivative_order(function, zero, one, most=5)

    says = run.states(
        ["B-37"],
        r"\text{the first derivative at } 0 \text{ along } (1,\dots,1) \text{ that is not } 0 \text{ has order } L",
    )
    says.equal([order(risk, d) for d in depths], list(depths))
    says.fails("targets uncorrelated with inputs", [order(unrelated, d) for d in depths])
    third = torch.func.jacfwd(torch.func.hessian(risk))(torch.zeros(3).double())
    off_center = torch.func.jacfwd(torch.func.hessian(risk))(torch.full((3,), 0.5).double())
    says = run.states("B-37", r"\partial^3R/\partial w_1\partial w_2\partial w_3=-2\sigma_{yx} \text{ at } 0")
    says.equal(float(third[0, 1, 2]), -2 * slope, 1e-12)
    says.fails("at (½, ½, ½)", float(off_center[0, 1, 2]))
    bends = {d: float(torch.func.hessian(risk)(torch.zeros(d).double()).norm()) for d in depths}
    says = run.states("B-37", r"\|\nabla^2R(0)\|=0 \text{ for } L\ge3")
    says.equal([bends[d] for d in (3, 4, 5)])
    says.fails("L = 2", bends[2])
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    powers = {p: lambda u, p=p: (1 - u[0] ** p) ** 2 for p in (2, 3)}
    run.states("B-37", r"(1-u^2)^2 \text{ has } f''(0)=-4;\ (1-u^3)^2 \text{ has } f''(0)=0,\ f'''(0)=-12").equal(
        [
            derivative_along(powers[2], zero, one, 2),
            derivative_along(powers[3], zero, one, 2),
            derivative_along(powers[3], zero, one, 3),
        ],
        [-4, 0, -12],
        1e-12,
    )
    starts = 0.3 + run.rand(20, 3)
    done = gradient_descent(risk, starts, 0.05, 400)
    says = run.states("B-37", r"\min R=\sigma_{yy}-\sigma_{yx}^2/\sigma_{xx}")
    says.equal(done.values[-1], total - slope**2 / square, 1e-8)
    says.fails("from the origin", gradient_descent(risk, 0 * starts[0], 0.05, 5).values[-1])


def escapes(run: Run, scales: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Scales and times, by depth, of descent on (1 - w₁⋯w_L)² from the diagonal."""
    smallest = {2: 1e-6, 3: 5e-3, 4: 4e-2, 5: 9e-2}
    found = {}
    for depth, least in smallest.items():
        sizes = torch.logspace(-1 if depth < 5 else -0.8, torch.tensor(least).log10(), scales)
        sizes = sizes.double()

        def slope(w: Tensor, _: int) -> Tensor:
            product = w.prod(-1, keepdim=True)
            return 2 * (product - 1) * product / w

        most = int(1.5 * plateau_time(depth, least, 1.0, LEFT) / RATE) + 20
        path = trajectory(slope, sizes[:, None].expand(-1, depth), [RATE] * most)
        out = path[..., 0] > LEFT
        found[depth] = (sizes, RATE * out.int().argmax(0).double())
    predicted = {
        d: torch.tensor([plateau_time(d, float(s), 1.0, LEFT) for s in sizes]).double()
        for d, (sizes, _) in found.items()
    }
    deep = [d for d in found if d > 2]
    taken = torch.cat([times for _, times in found.values()])
    leading = torch.cat([predicted[d] for d in found])
    says = run.states(
        "B-44",
        r"\text{descent needs at least } \frac{\epsilon^{2-L}-h^{2-L}}{2\sigma_{yx}(L-2)},\ "
        r"\frac1{2\sigma_{yx}}\ln\frac h\epsilon \text{ for } L=2",
    )
    says.at_least(
        taken, leading, where="the speed grows on the way, so a step is behind the flow; all depths and scales"
    )
    says.fails(
        "started further away than ε",
        torch.cat([times[:-1] for _, times in found.values()]),
        promised=torch.cat([predicted[d][1:] for d in found]),
    )
    # from one step to the next the speed 2(1-w^L)w^(L-1) grows at most by this factor
    slower = {d: (1 + 2 * RATE * LEFT ** (d - 2)) ** (d - 1) / (1 - LEFT**d) for d in found}
    strict_time = {d: torch.tensor([plateau_time(2, float(s), 1.0, LEFT) for s in found[d][0]]) for d in deep}
    says = run.states(
        "B-44", r"\text{and at most } \frac{(1+2\eta h^{L-2})^{L-1}}{1-h^L} \text{ times that, and a step}"
    )
    says.at_most(
        taken,
        torch.cat([slower[d] * predicted[d] + RATE for d in found]),
        where="what the quadratic term and the length of a step can add",
    )
    says.fails(
        "the logarithm of a strict saddle, for L > 2",
        torch.cat([found[d][1] for d in deep]),
        promised=torch.cat([slower[d] * strict_time[d] + RATE for d in deep]),
    )
    logarithms = {d: fit_slope(-found[d][0].log(), found[d][1], log=False) for d in (2, 3)}
    says = run.states("B-44", r"L=2: \text{ time}=\frac\eta{\ln(1+2\eta)}\ln\tfrac1\epsilon+\text{const}")
    says.slope(
        logarithms[2],
        RATE / math.log(1 + 2 * RATE),
        0.01,
        against=(0.5, 1.0),  # the flow's, and without the factor 2
        where="a step multiplies small factors by 1 + 2η",
    )
    says.fails("L = 3", logarithms[3])
    for depth in deep:
        sizes, times = found[depth]
        small = slice(scales // 2, None)
        says = run.states("B-44", rf"\text{{time}}\propto\epsilon^{{-(L-2)}} \text{{ for }} L={depth}")
        says.slope(
            sizes[small],
            times[small],
            -(depth - 2),
            0.1,
            against=(1 - depth, 3 - depth),
            where="fitted to the smaller half of the scales",
        )
        says.fails("L = 2, a strict saddle", found[2][0][small], found[2][1][small])
    run.table(
        "escape-times",
        ["layers", "distance ε", "time measured", "time predicted"],
        [(d, float(s), float(t), float(p)) for d in found for s, t, p in zip(*found[d], predicted[d], strict=True)],
        caption="Rate times steps until the factors exceed 0.4, on $(1-w_1⋯w_L)^2$",
    )
    return found


def diagonal_moments(*roots: float) -> Covariances:
    """White inputs and targets with these singular values: eigenvectors are unit vectors."""
    size = torch.tensor(roots, dtype=torch.float64)
    eye = torch.eye(len(roots)).double()
    return Covariances(eye, torch.diag(size), torch.diag(size.square() + 0.1))


def two_layers(run: Run, starts: int, steps: int) -> None:
    moments = diagonal_moments(2.0, 1.5, 1.0, 0.5)
    function = deep_linear_function((4, 2, 4), moments)
    slope = deep_linear_slope((4, 2, 4), moments)
    best = deep_linear_optimum(moments, (4, 2, 4)).value
    saddles = [p for p in linear_critical_points(moments, 2) if p.escape is not None]
    at = torch.stack([flat_layers([p.V.T, p.U]) for p in saddles])

    def end(start: Tensor, steps: int) -> Tensor:
        return last_iterate(lambda theta, _: slope(theta), start, [RATE] * steps)

    done, stay = end(0.5 * run.randn(starts, 16), steps), end(at, steps // 3)
    says = run.states("B-44", r"\text{two layers: every random start ends within } 10^{-6} \text{ of the optimum}")
    says.equal(int((function(done) < best + 1e-6).sum()), starts)
    says.fails("started exactly at saddles", int((function(stay) < best + 1e-6).sum()), promised=len(saddles))
    nudged = end(at + 1e-6 * run.randn(*at.shape), steps)
    says = run.states("B-44", r"\text{from every saddle a perturbation of } 10^{-6} \text{ leads to the optimum}")
    says.equal(function(nudged), best, 1e-6, where=f"{len(saddles)} saddles, {steps} steps")
    says.fails("without it", function(stay))


def iterates(slope: Function, start: Tensor, rate: float, steps: int) -> Tensor:
    return trajectory(lambda theta, _: slope(theta), start, [rate] * steps)


def staircase(run: Run) -> tuple[list[float], dict[int, Tensor]]:
    """Loss curves of networks of two, three and four layers from small weights."""
    moments = diagonal_moments(3.0, 1.5, 0.6, 0.05)
    levels = [reduced_rank_regression(moments, r).value for r in range(4)]
    paths, flat, steep = {}, [], []
    for depth, scale in ((2, 1e-3), (3, 0.05), (4, 0.15)):
        widths = (4, *[3] * (depth - 1), 4)
        start = torch.cat([scale * torch.eye(b, a).double().reshape(-1) for a, b in pairwise(widths)])
        start = start + 1e-2 * scale * run.randn(len(start))
        slope = deep_linear_slope(widths, moments)
        path = iterates(slope, start, 0.03, 750)
        paths[depth] = deep_linear_function(widths, moments)(path)
        speed, inside = slope(path).norm(dim=1), paths[depth][1:-1]
        inner, before, after = speed[1:-1], speed[:-2], speed[2:]
        # once at the optimum the gradient goes to 0 for good
        going = inside > levels[-1] + 1e-3
        flat += inside[(inner < before) & (inner < after) & going].tolist()
        steep += inside[(inner > before) & (inner > after) & going].tolist()
    known = torch.tensor(levels).double()

    def nearest(values: list[float]) -> Tensor:
        return (torch.tensor(values).double()[:, None] - known).abs().amin(1) / levels[0]

    says = run.states(
        "B-44",
        r"\text{where the gradient is smallest on the way, the loss is at a level } "
        r"\operatorname{tr}\Sigma_{yy}-\sum_{i\le r}\lambda_i",
    )
    says.equal(nearest(flat), within=0.03, where="distance to the nearest level, as a share of the loss at 0")
    says.fails("where it is largest", nearest(steep))
    return levels, paths


def plot_escape(
    axes: Any,
    times: dict[int, tuple[Tensor, Tensor]],
    levels: list[float],
    paths: dict[int, Tensor],
) -> None:
    escape, loss = axes[0]
    for k, (depth, (sizes, measured)) in enumerate(times.items()):
        escape.loglog(sizes, measured, "o", color=COLORS[k], markersize=4, label=f"L = {depth}")
        grid = torch.logspace(float(sizes[-1].log10()), float(sizes[0].log10()), 60)
        predicted = [plateau_time(depth, float(s), 1.0, LEFT) for s in grid]
        escape.loglog(grid, predicted, color=COLORS[k], linewidth=1)
    escape.set(
        xlabel="start at distance ε", ylabel="time at the origin",
        title=r"Escape from the origin of $(1-w_1\cdots w_L)^2$",
    )  # fmt: skip
    escape.legend()
    for k, (depth, path) in enumerate(paths.items()):
        loss.plot(path, color=COLORS[k], label=f"L = {depth}")
    for level in levels:
        loss.axhline(level, color="0.5", linewidth=0.8, linestyle="--")
    loss.set(xlabel="step", ylabel="risk", title="Steps of the loss", xscale="log")
    loss.legend(loc="center right")
