"""Depth for nothing: universality passes from shallow networks to any number of layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, measured_error, sup_distance
from torchtheory.approximation.network_calculus import deepen
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.targets import Function
from torchtheory.approximation.universality.approximate_identity import (
    deepen_approximately,
    identity_network,
)
from torchtheory.approximation.universality.cybenko import sigmoid_staircase
from torchtheory.labs.engine import COLORS, Run, lab


@lab(
    "deepening-networks",
    room="approximation",
    covers=["X-22"],
    title="Two units near the identity add layers to any network, within any tolerance",
    full={"layers": 16},
    least={"layers": 2},
)
def deepening_networks(run: Run, layers: int = 6) -> None:
    """A staircase of logistic units gets up to `layers` more layers of logistic or tanh units.

    Each layer is a difference quotient of two units, and the errors add up: the deeper network is
    within the tolerance of the shallow one on its box. ReLU layers pass a value on exactly. Then
    two approximations are composed: the error is that of the outer one on a slightly larger
    interval, plus the outer function's modulus of continuity at the error of the inner one. Look
    at how little the depth costs.
    """

    def target(x: Tensor) -> Tensor:
        return torch.sin(2 * math.pi * x)

    base = sigmoid_staircase(target, 12, lipschitz=2 * math.pi)
    shallow = base.network
    assert isinstance(shallow, nn.Sequential)
    extras = sorted({1, 2, layers // 2, layers})
    rows = []
    for activation, bias in (("logistic", 0.5), ("tanh", 0.5), ("sin", 0.3)):
        for extra in extras:
            for tolerance in (1e-1, 1e-3, 1e-6):
                made = deepen_approximately(shallow, extra, activation, (0.0, 1.0), tolerance, bias=bias)
                rows.append((activation, extra, tolerance, made.bound, made.size.depth,
                             made.size.units, measured_error(base, made).lower,
                             beyond(base, made)))  # fmt: skip
    says = run.states("X-22", r"\sup_K|f-\text{deeper}|\le\sum_j\epsilon_j\le\mathrm{tol}")
    says.at_most(
        [row[6] for row in rows],
        [row[3] for row in rows],
        where="1 to many more layers of logistic, tanh and sine units",
    )
    says.fails("the identity's layers made for a range a tenth as wide", narrow(base, shallow), promised=1e-3)
    run.states("X-22", r"\text{the promise is at most the tolerance}").at_most(
        [row[3] for row in rows], [row[2] for row in rows]
    )
    run.states("X-22", r"\text{hidden layers: those of } f \text{ and the ones asked for}").equal(
        [row[4] for row in rows], [2 + row[1] for row in rows]
    )
    exact(run, extras)
    composed = composition(run)
    run.table(
        "deeper",
        ["activation", "layers added", "tolerance", "promised", "affine layers", "units",
         "measured", "on [-1, 2]"],
        rows,
        caption="Twelve logistic steps near sin 2πx, with more layers",
    )  # fmt: skip
    run.figure(
        "deeper",
        lambda axes: plot(axes, rows, composed),
        grid=(1, 2),
        caption="Left: distance from the shallow network (marks) and the promise (lines), by the "
        "number of layers added. Right: the error of a composition and its budget.",
    )


def beyond(base: Approximant, made: Approximant) -> float:
    x = torch.linspace(-1, 2, 301, dtype=torch.float64)
    return float((base(x) - made(x)).abs().max())


def narrow(base: Approximant, shallow: nn.Sequential) -> float:
    """The range of the network is [-1, 1]; one added layer, good to 1e-3 on [-0.1, 0.1] only."""
    part = identity_network("logistic", 0.5, 0.1, 1e-3)
    x = torch.linspace(0, 1, 401, dtype=torch.float64)
    with torch.no_grad():
        return float((part(shallow(x.unsqueeze(1))[:, 0]) - base(x)).abs().max())


def exact(run: Run, extras: list[int]) -> None:
    """The identity of two ReLUs is exact."""
    line = relu_interpolant(torch.square, 8, curvature=2.0)
    assert isinstance(line.network, nn.Sequential)
    x = torch.linspace(0, 1, 401, dtype=torch.float64).unsqueeze(1)
    signed = nn.Sequential(*line.network)
    gaps, cut = [], []
    for extra in extras:
        deep = deepen(signed, 2 + extra)
        gaps.append(float((deep(x) - signed(x)).abs().max()))
        shifted = relu_interpolant(lambda x: x**2 - 0.5, 8, curvature=2.0)
        cut.append(float((torch.relu(shifted(x[:, 0])) - shifted(x[:, 0])).abs().max()))
    says = run.states("X-22", r"u=\max(u,0)-\max(-u,0): \text{ ReLU layers added, largest difference}")
    says.equal(gaps, within=1e-14)
    says.fails("one ReLU a layer, and values below 0", cut)


def composition(run: Run) -> list[tuple[int, float, float]]:
    """|sin 3x| through a broken line of the inner, and a staircase of the outer function."""

    def inner(x: Tensor) -> Tensor:
        return torch.sin(3 * x)

    outer: Function = torch.abs
    rows, lost = [], []
    for n in (8, 16, 32, 64, 128):
        g = relu_interpolant(inner, n, curvature=9.0)
        # the inner network may leave [-1, 1] by its error: the outer is good on a wider interval
        f = sigmoid_staircase(outer, n, (-1 - g.bound, 1 + g.bound), lipschitz=1.0)
        budget = f.bound + g.bound  # |u| has modulus of continuity t
        found = sup_distance(
            lambda x: outer(inner(x)), lambda x, f=f, g=g: f(g(x)), (0.0, 1.0),  # type: ignore[misc]
            most_points=1 << 12,
        ).lower  # fmt: skip
        small = sigmoid_staircase(outer, n, (-0.5, 0.5), lipschitz=1.0)
        lost.append(
            sup_distance(
                lambda x: outer(inner(x)), lambda x, f=small, g=g: f(g(x)), (0.0, 1.0),  # type: ignore[misc]
                most_points=1 << 12,
            ).lower
        )  # fmt: skip
        rows.append((n, budget, found))
    says = run.states(
        "X-22", r"\|f\circ g-\tilde f\circ\tilde g\|\le\|f-\tilde f\|_{g(K)+\text{margin}}+\omega_f(\|g-\tilde g\|)"
    )
    # x⁴ as the square of the square: both broken lines lie above, and the errors add up
    squares = {n: relu_interpolant(torch.square, n, curvature=2.0) for n in (8, 16, 32)}
    added = [sup_distance(lambda x: x**4, lambda x, a=a: a(a(x)), (0.0, 1.0), most_points=1 << 12).lower  # type: ignore[misc]
             for a in squares.values()]  # fmt: skip
    says.at_most([row[2] for row in rows] + added, [row[1] for row in rows] + [3 * a.bound for a in squares.values()])
    says.fails("the outer one good on [-1/2, 1/2] only", lost, promised=[row[1] for row in rows])
    return rows


def plot(axes: Any, rows: list[tuple[Any, ...]], composed: list[tuple[int, float, float]]) -> None:
    left, right = axes[0]
    for color, tolerance in zip(COLORS, (1e-1, 1e-3, 1e-6), strict=False):
        some = [r for r in rows if r[0] == "tanh" and r[2] == tolerance]
        left.semilogy([r[1] for r in some], [r[3] for r in some], color=color, linewidth=0.8)
        left.semilogy(
            [r[1] for r in some],
            [r[6] for r in some],
            "o",
            color=color,
            label=f"tol {tolerance:g}",
        )
    left.set(xlabel="layers added", ylabel="sup distance", title="tanh layers", ylim=(1e-8, 10))
    left.legend(ncols=3, loc="upper center")
    widths = [n for n, _, _ in composed]
    right.loglog(widths, [b for _, b, _ in composed], color=COLORS[0], label="budget")
    right.loglog(widths, [e for *_, e in composed], "o", color=COLORS[0], label="measured")
    right.set(xlabel="units of each", ylabel="sup error", title="|sin 3x| as |·| after sin 3x")
    right.legend()
