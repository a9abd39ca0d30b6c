"""One neuron a block is enough for a residual network, where width d is not for a plain one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.architectures.residual import (
    ResidualBlock,
    folding_network_of_norm,
    radial_network,
)
from torchtheory.approximation.certificates import Approximant, mean_error
from torchtheory.approximation.depth.narrow import sphere_witness
from torchtheory.labs.engine import COLORS, Interval, Run, lab
from torchtheory.nets.feedforward import mlp


@lab(
    "one-neuron-resnets",
    room="approximation",
    covers=["X-87"],
    title="Residual blocks of a single neuron fold the plane and approximate what width 2 cannot",
    full={"folds": 12, "pieces": 32, "samples": 200_000},
    least={"folds": 4, "pieces": 2, "samples": 3_000},
)
def one_neuron_resnets(run: Run, folds: int = 8, pieces: int = 8, samples: int = 20_000) -> None:
    """Blocks x + v ρ(u·x + b) of one neuron each are written down for |x|, |x|² and a disc.

    One block reflects one side of a line onto the other; m of them fold the plane to a thin
    sector, in which a linear function is nearly |x|. Further blocks bend that into any function of
    |x|. The measured errors stay within the promised bounds, the one for |x|² goes below the floor
    1/2 that no plain network of width 2 can pass, and the mean error for the indicator of a disc
    falls as the ramp at its edge steepens. Look at the level lines: they are closed.

    Args:
        folds: of the plane, at most.
        pieces: of the function of the length, at most.
        samples: random points for the mean error of a disc.
    """
    rows = [(m, *error_of(folding_network_of_norm(m), norm)) for m in range(1, folds + 1)]
    unfolded = [folding_network_of_norm(m) for m in range(2, folds + 1)]
    for a in unfolded:
        for block in a.network.modules():
            if isinstance(block, ResidualBlock):  # projects onto the line in place of reflecting
                block.outer.weight.mul_(0.5)
    says = run.states("X-87", r"m \text{ folds: } |\Phi(x)-|x||\le(1-\cos(\pi/2^m))\,|x|")
    says.at_most([row[2] for row in rows], [row[1] for row in rows], 1e-12)
    says.fails(
        "blocks that project on the line in place of reflecting",
        [error_of(a, norm)[1] for a in unfolded],
        promised=[a.bound for a in unfolded],
    )
    squares = below_the_floor(run, folds, pieces)
    discs = disc(run, folds, samples)
    run.table(
        "folds",
        ["folds", "bound for |x|", "measured"],
        rows,
        caption="|x| on the square [-1, 1]² by blocks of one neuron",
    )
    run.table(
        "disc",
        ["width of the ramp", "folds", "bound of the mean error", "measured"],
        [(w, m, b, i.estimate) for w, m, b, i in discs],
        caption="The indicator of the unit disc on [-2, 2]²",
    )
    run.figure(
        "one-neuron",
        lambda axes: plot(axes, rows, squares, discs),
        grid=(1, 2),
        caption="Left: level lines of the network with three folds, regular octagons. Right: "
        "promised (lines) and measured (marks) errors against the number of blocks.",
    )


def norm(x: Tensor) -> Tensor:
    return x.square().sum(1).sqrt()


def on_square(radius: float) -> Tensor:
    """Points at many angles and distances; the corners of the square are among them."""
    side = torch.linspace(-radius, radius, 201, dtype=torch.float64)
    return torch.cartesian_prod(side, side)


def error_of(a: Approximant, f: Any) -> tuple[float, float]:
    x = on_square(a.domain[0][1])
    return a.bound, float((a(x) - f(x)).abs().max())


def below_the_floor(run: Run, folds: int, pieces: int) -> list[tuple[int, float, float]]:
    """|x|² on the unit ball: the broken line of r², bent out of the folded plane."""
    rows = []
    for m in range(2, folds + 1):
        knots = torch.linspace(0, math.sqrt(2), pieces + 1, dtype=torch.float64)
        a = radial_network(knots, knots.square(), m)
        bound = a.bound + (math.sqrt(2) / pieces) ** 2 / 4
        x = on_square(1.0)
        error = float((a(x) - x.square().sum(1)).abs().max())
        rows.append((m + pieces - 1, bound, error))
    short = radial_network(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 4.0]), folds)
    x = on_square(1.0)
    says = run.states("X-87", r"|\Phi(x)-|x|^2|\le R\,[S(1-\cos\beta)+\sin\beta]+h^2/4,\ \beta=\pi/2^m")
    says.at_most([e for *_, e in rows], [b for _, b, _ in rows], 1e-12)
    says.fails(
        "one piece in place of many, with the same promise",
        float((short(x) - x.square().sum(1)).abs().max()),
        promised=rows[-1][1],
    )
    ball = x[x.norm(dim=1) <= 1]
    best = []
    for m, count in ((3, 2), (4, 2), (folds, pieces)):
        knots = torch.linspace(0, math.sqrt(2), count + 1)
        best.append(float((radial_network(knots, knots.square(), m)(ball) - ball.square().sum(1)).abs().max()))
    plain = []
    for depth in (1, 2, 4, 8, 16):
        for _ in range(4):
            net = mlp([2, *[2] * depth, 1], generator=run.generator).requires_grad_(False)
            where = torch.stack([torch.zeros(2).double(), sphere_witness(net)])
            plain.append(float((net(where)[:, 0] - where.square().sum(1)).abs().max()))
    says = run.states("X-87", r"\sup_{|x|\le1}|\Phi(x)-|x|^2|<\tfrac12 \text{ with one neuron a block}")
    says.below(best, 0.5, where="four, five and many blocks")
    says.fails(f"{len(plain)} plain networks of width 2, at 0 and at their witness: the nearest", min(plain))
    return rows


def disc(run: Run, folds: int, samples: int) -> list[tuple[float, int, float, Interval]]:
    """The indicator of the unit disc in the mean: a ramp of width w at its edge."""
    rows = []
    for k in range(1, 5):
        width, m = 2.0**-k, folds + k
        made, bound = ramp(width, m)
        rows.append((width, m, bound, mean_error(inside, made, samples, generator=run.generator)))
    blunt, _ = ramp(1.0, folds)
    loose = mean_error(inside, blunt, samples, generator=run.generator)
    says = run.states(
        "X-87",
        r"\text{mean of }|\Phi-\mathbf 1_{|x|\le1}| \text{ over } [-2,2]^2 \le\pi(1+w/3)w/16+\text{bound of the folds}",
    )
    says.at_most(
        [i.low for *_, i in rows],
        [b for *_, b, _ in rows],
        where=f"lower ends of 99% intervals, {samples} points each; the promise halves with w",
    )
    says.fails("a ramp of width 1 under the promise of the steepest", loose.low, promised=rows[-1][2])
    still = [mean_error(inside, ramp(0.5, folds + k)[0], samples, generator=run.generator) for k in range(1, 5)]
    falling = [rows[k + 1][3].high - rows[k][3].low for k in range(len(rows) - 1)]
    says = run.states("X-87", r"\text{the mean error falls with every halving of the ramp}")
    says.below(falling, 0.0, where="upper end of the finer minus lower end of the coarser")
    says.fails(
        "more folds, but the ramp as wide as before", [still[k + 1].high - still[k].low for k in range(len(still) - 1)]
    )
    return rows


def inside(x: Tensor) -> Tensor:
    return (norm(x) <= 1).double()


def ramp(width: float, folds: int) -> tuple[Approximant, float]:
    """1 up to |x| = 1, 0 from 1 + width on; and the bound of its mean error on [-2, 2]²."""
    knots = torch.tensor([0.0, 1.0, 1.0 + width, 4.0], dtype=torch.float64)
    made = radial_network(knots, torch.tensor([1.0, 1.0, 0.0, 0.0]), folds, 2.0)
    # the integral of (1 - (r - 1) / w) over the ring 1 < r < 1 + w, divided by the area 16
    ring = 2 * math.pi * (width / 2 + width**2 / 6) / 16
    return made, ring + made.bound


def plot(
    axes: Any,
    rows: list[tuple[int, float, float]],
    squares: list[tuple[int, float, float]],
    discs: list[tuple[float, int, float, Interval]],
) -> None:
    left, right = axes[0]
    side = torch.linspace(-1, 1, 201, dtype=torch.float64)
    values = folding_network_of_norm(3)(torch.cartesian_prod(side, side)).reshape(201, 201).T
    drawn = left.contour(side, side, values, levels=[0.2, 0.4, 0.6, 0.8, 1.0], cmap="viridis")
    left.clabel(drawn, fontsize=7)
    for angle in (0.0, 0.5 * math.pi, 0.25 * math.pi):
        line = torch.tensor([math.cos(angle), math.sin(angle)])
        ends = torch.stack([-1.5 * line, 1.5 * line])
        left.plot(ends[:, 0], ends[:, 1], "--", color="0.6", linewidth=0.8)
    left.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", title="three folds, along dashed lines")
    for color, label, data in (
        (COLORS[0], "|x|, sup", rows),
        (COLORS[1], "|x|², sup", squares),
        (COLORS[2], "disc, mean", [(m + 2, b, i.estimate) for _, m, b, i in discs]),
    ):
        blocks = [row[0] for row in data]
        right.semilogy(blocks, [row[1] for row in data], color=color, linewidth=0.8)
        right.semilogy(blocks, [row[2] for row in data], "o", color=color, label=label)
    right.axhline(0.5, color="0.4", linestyle="--", linewidth=0.8, label="floor of width 2, |x|²")
    right.set(xlabel="blocks of one neuron", ylabel="error", title="promise and measurement")
    right.legend()
