"""Sontag's interpolation: N + 1 sigmoidal units for 2N + 1 points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.memorization.networks import shallow_memorizer
from torchtheory.approximation.memorization.sontag import SontagInterpolant, sontag_interpolant
from torchtheory.approximation.network_calculus import chain
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import affine_layers


@lab(
    "sontag-interpolation",
    room="approximation",
    covers=["X-20"],
    title="N + 1 sigmoidal units come within ε of any 2N + 1 points",
    full={"most": 50},
    least={"most": 3},
)
def sontag_interpolation(run: Run, most: int = 25) -> None:
    """2N + 1 random points on a line are approximated by N + 1 units, written down.

    One unit is used where it is nearly straight and carries a multiple of x; each of the others
    is a steep step through three points. The residual stays below the ε asked for, from 1/10 to
    10⁻⁵, for every N up to `most`, with the logistic function and with tanh. Steps that are not
    steep enough, or no straight unit, break it. Look at what the network does between the points.
    """
    errors = [1e-1, 1e-3, 1e-5]
    rows: list[tuple[int, float, str, SontagInterpolant]] = []
    flat, untilted, taken, naive = [], [], [], []
    for n in range(1, most + 1):
        x, y = points(run, n)
        for error in errors:
            for name in ("logistic", "tanh"):
                made = sontag_interpolant(x, y, error, activation=name)
                rows.append((n, error, name, made))
        naive.append(network_size(shallow_memorizer(x[:, None], y, "relu").network).units)
        maps, between = affine_layers(made.network)
        (weight, bias), (output, shift) = maps
        centers = -bias[:-1] / weight[:-1, 0]
        blunt = weight.clone()
        blunt[:-1] /= 20
        moved = torch.cat([-blunt[:-1, 0] * centers, bias[-1:]])
        flat.append(missed(chain([(blunt, moved), (output, shift)], between), x, y))
        kept = output.clone()
        kept[0, -1] = 0.0
        untilted.append(missed(chain([(weight, bias), (kept, shift)], between), x, y))
        only = output - kept
        alone = chain([(weight, bias), (only, torch.zeros_like(shift))], between)
        taken.append(float(alone(x[:, None]).abs().max()) - errors[-1])
    says = run.states("X-20", r"\max_{i\le2N+1}|\Phi(x_i)-y_i|\le\epsilon")
    says.at_most(
        [row[3].residual for row in rows],
        [row[1] for row in rows],
        where=f"N from 1 to {most}, ε = 0.1, 0.001, 0.00001, logistic and tanh",
    )
    says.fails("steps a twentieth as steep around the same centers", flat, promised=errors[-1])
    says = run.states(
        "X-20",
        r"\text{without the unit } u \text{ that takes } Ax \text{ away, the error is at least } "
        r"\max_i|u(x_i)|-\epsilon",
    )
    says.at_least(untilted, taken, 1e-9)
    says.fails("with it", [row[3].residual for row in rows if row[1:3] == (errors[-1], "tanh")])
    says = run.states("X-20", r"\text{units}=N+1 \text{ for } 2N+1 \text{ points}")
    says.equal([row[3].units for row in rows], [row[0] + 1 for row in rows])
    says.fails("exact interpolation, which takes a unit a point", naive, promised=list(range(2, most + 2)))
    shown = [row for row in rows if row[0] in (1, most // 2, most) and row[2] == "logistic"]
    run.table(
        "sontag",
        ["N", "points", "units", "ε", "residual", "tilt A", "steepness B", "h"],
        [(n, 2 * n + 1, a.units, e, a.residual, a.tilt, a.steepness, a.step) for n, e, _, a in shown],
        caption="Weights grow as ε falls: the steps become steep, and the straight unit is multiplied by 4A/h",
    )
    x, y = points(run, 5)
    run.figure(
        "sontag",
        lambda axes: plot(axes, x, y, rows, errors),
        grid=(1, 2),
        caption="Left: 11 points, 6 logistic units. Right: residuals (marks) and the ε that was asked for (lines).",
    )


def points(run: Run, n: int) -> tuple[Tensor, Tensor]:
    """2n + 1 random points, no two nearer than a third of their mean distance."""
    steps = 1 / 3 + run.rand(2 * n + 1)
    x = steps.cumsum(0) / steps.sum()
    order = torch.randperm(len(x), generator=run.generator)
    return x[order], 2 * run.rand(2 * n + 1) - 1


def missed(network: Any, x: Tensor, y: Tensor) -> float:
    return float((network(x[:, None])[:, 0] - y).abs().max())


def plot(
    axes: Any,
    x: Tensor,
    y: Tensor,
    rows: list[tuple[int, float, str, SontagInterpolant]],
    errors: list[float],
) -> None:
    left, right = axes[0]
    t = torch.linspace(0, 1.03, 3000, dtype=torch.float64)[:, None]
    made = sontag_interpolant(x, y, 1e-3)
    left.plot(t, made.network(t), color=COLORS[0], linewidth=1)
    left.plot(x, y, "o", color="black", markersize=4)
    left.set(xlabel="x", title=f"{len(x)} points, {made.units} units")
    for color, error in zip(COLORS, errors, strict=False):
        mine = [r for r in rows if r[1] == error and r[2] == "logistic"]
        right.semilogy([r[0] for r in mine], [r[3].residual for r in mine], ".", color=color)
        right.axhline(error, color=color, linewidth=0.8, label=f"ε = {error:g}")
    right.set(xlabel="N", ylabel="largest error at the points", title="2N + 1 points")
    right.legend(loc="center right", bbox_to_anchor=(1, 0.7))
