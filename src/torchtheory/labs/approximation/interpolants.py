"""One hidden layer of steps or ReLUs, written down: the error never passes the promise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, measured_error, network_size
from torchtheory.approximation.piecewise.broken_lines import broken_line_network
from torchtheory.approximation.piecewise.interpolants import relu_interpolant, threshold_interpolant
from torchtheory.approximation.targets import Function
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.labs.engine import COLORS, Run, lab

Judged = tuple[Approximant, float]
"""A network with its promise, and its measured error."""

#: name, function, Lipschitz constant on [0, 1], bound of the curvature
TARGETS: tuple[tuple[str, Function, float, float], ...] = (
    ("sin 2πx", lambda x: torch.sin(2 * math.pi * x), 2 * math.pi, 4 * math.pi**2),
    ("|x - 1/2|", lambda x: (x - 0.5).abs(), 1.0, math.inf),
    ("√(x + 0.01)", lambda x: torch.sqrt(x + 0.01), 5.0, 250.0),
    ("x sin(1/(x + 0.1))", lambda x: x * torch.sin(1 / (x + 0.1)), 3.5, math.inf),
)


@lab(
    "threshold-interpolants",
    room="approximation",
    covers=["A-83", "L-071", "N-38", "N-39"],
    title="⌈ρ/ε⌉ threshold units stay within ε of a ρ-Lipschitz function",
    errata=["threshold-network-any"],
    full={"halvings": 9},
    least={"halvings": 4},
)
def threshold_interpolants(run: Run, halvings: int = 5) -> None:
    """The weights of Theorem 14 are written down for four functions and `halvings` errors ε.

    The measured sup error, looked for on both sides of every step, is at most ε with ⌈ρ/ε⌉ units,
    and equal to ε for a straight line. Values from the middle of the steps halve it, and a broken
    line of ReLUs needs half as many units, or the square root of their number where the function
    bends smoothly. With a Lipschitz constant that is too small, the promise fails. Look at how
    closely the promise is followed.
    """
    errors = [0.5 * 2.0**-k for k in range(halvings)]
    found = {name: staircases(g, rho, errors) for name, g, rho, _ in TARGETS}
    _, sine, _, _ = TARGETS[0]
    understated = staircases(sine, 1.0, errors)
    kept_promises(run, "L-071", r"\sup_{[0,1]}|f-g|\le\epsilon", found.values(), understated)
    run.states("L-071", r"\text{hidden units}=\lceil\rho/\epsilon\rceil").equal(
        [a.size.units for row in found.values() for a, _ in row],
        [math.ceil(rho / e) for _, _, rho, _ in TARGETS for e in errors],
    )
    at_steps(run, errors)
    tight(run)
    halved(run, errors)
    rates = broken_lines(run, halvings)
    any_broken_line(run)
    run.table(
        "staircases",
        ["function", "ρ", "ε", "units", "measured error", "largest weight"],
        [
            (name, rho, a.bound, a.size.units, e, a.size.largest)
            for (name, _, rho, _) in TARGETS
            for a, e in found[name]
        ],
        caption="Threshold networks with the weights of Theorem 14",
    )
    run.figure(
        "errors",
        lambda axes: plot(axes, found, rates),
        grid=(1, 2),
        caption="Left: a staircase of 13 steps, and sin 2πx. Right: promised (lines) and measured "
        "(marks) errors; broken lines fall with the square of the width where g is smooth.",
    )


def staircases(g: Function, rho: float, errors: list[float]) -> list[Judged]:
    made = [threshold_interpolant(g, rho, e) for e in errors]
    return [(a, measured_error(g, a, most_points=1 << 13).lower) for a in made]


def kept_promises(run: Run, id: str, statement: str, found: Iterable[list[Judged]], understated: list[Judged]) -> None:
    """No error passes its bound, unless the construction was told too small a constant."""
    judged = [pair for row in found for pair in row]
    says = run.states(id, statement)
    says.at_most([e for _, e in judged], [a.bound for a, _ in judged], 1e-12)
    says.fails(
        "sin 2πx is not 1-Lipschitz, as the construction was told",
        [e for _, e in understated],
        promised=[a.bound for a, _ in understated],
    )


def at_steps(run: Run, errors: list[float]) -> None:
    """The staircase meets the function where it steps; without the telescope it does not."""
    apart, wrong = [], []
    for _, g, rho, _ in TARGETS:
        a = threshold_interpolant(g, rho, errors[-1])
        first = next(a.network.children())
        assert isinstance(first, nn.Linear)
        starts = -first.bias.detach()
        apart.append(float((a(starts) - g(starts)).abs().max()))
        level = g(starts)
        steps = (starts.unsqueeze(1) >= starts).double()
        wrong.append(float((steps @ level - level).abs().max()))
    says = run.states("L-071", r"f(b_k)=g(b_k): \text{ largest difference}")
    says.equal(apart, within=1e-12)
    says.fails("output weights g($b_i$) instead of their differences", wrong)


def tight(run: Run) -> None:
    """A straight line attains the bound; and another network of the same size misses it."""
    slopes = [1.0, 2.0, 4.0]
    error = 0.25
    lines: list[Function] = [lambda x, s=s: s * x for s in slopes]  # type: ignore[misc]
    made = [threshold_interpolant(g, s, error) for g, s in zip(lines, slopes, strict=True)]
    says = run.states("L-071", r"g(x)=\rho x,\ \rho/\epsilon\in\mathbb N:\ \sup|f-g|=\epsilon")
    says.equal([measured_error(g, a).lower for g, a in zip(lines, made, strict=True)], error, 1e-12)
    says.fails(
        "a function that is not a line",
        measured_error(TARGETS[2][1], threshold_interpolant(TARGETS[2][1], 5.0, error)).lower,
    )
    silent = threshold_interpolant(torch.zeros_like, 4.0, error)
    run.refutes(
        "threshold-network-any",
        r"f \text{ a network with } \lceil\rho/\epsilon\rceil \text{ threshold units}\implies\sup|f-g|\le\epsilon",
    ).at_most(
        measured_error(lines[2], silent).lower,
        error,
        where=f"{silent.size.units} threshold units with output weights 0, and g(x) = 4x",
    )


def halved(run: Run, errors: list[float]) -> None:
    """Values from the middles, and the broken line of half as many ReLUs."""
    middles, lines, bounds, left = [], [], [], []
    for _, g, rho, _ in TARGETS:
        for e in errors:
            a = threshold_interpolant(g, rho, e, value_at="middle")
            middles.append(measured_error(g, a, most_points=1 << 13).lower)
            pieces = math.ceil(rho / (2 * e))
            line = relu_interpolant(g, pieces, lipschitz=rho)
            lines.append(measured_error(g, line, most_points=1 << 13).lower)
            bounds.append(line.bound)
            a = threshold_interpolant(g, rho, e)
            left.append(measured_error(g, a, most_points=1 << 13).lower)
    halves = [e / 2 for _ in TARGETS for e in errors]
    says = run.states("L-071", r"\text{values from the middle of each step: }\sup|f-g|\le\epsilon/2")
    says.at_most(middles, halves, 1e-12)
    says.fails("values from the left ends", left)
    root = relu_interpolant(torch.sqrt, 64, lipschitz=1.0)
    says = run.states(["L-071", "N-39", "A-83"], r"\text{broken line of } m \text{ ReLUs: }\sup|f-g|\le\rho/2m")
    says.at_most(lines, bounds, 1e-12)
    says.fails(
        "√x has no Lipschitz constant, and 1 was given", measured_error(torch.sqrt, root).lower, promised=root.bound
    )


def broken_lines(run: Run, halvings: int) -> dict[str, tuple[list[int], list[float], list[float]]]:
    """Smooth functions: a quarter of the error for twice the units."""
    widths = [8 * 2**k for k in range(halvings)]
    rows = {}
    for name, g, _, curvature in (TARGETS[0], TARGETS[2]):
        made = [relu_interpolant(g, m, curvature=curvature) for m in widths]
        errors = [measured_error(g, a, most_points=1 << 14).lower for a in made]
        rows[name] = (widths, [a.bound for a in made], errors)
    kinked = [
        measured_error(lambda x: (x - 1 / math.pi).abs(), a, most_points=1 << 14).lower
        for a in (relu_interpolant(lambda x: (x - 1 / math.pi).abs(), m, curvature=1.0) for m in widths)
    ]
    says = run.states(
        ["L-071", "N-39", "A-83"], r"|g''|\le M:\ \sup|f-g|\le M/8m^2 \text{ for the broken line of } m \text{ ReLUs}"
    )
    says.at_most(
        [e for *_, errors in rows.values() for e in errors],
        [b for _, bounds, _ in rows.values() for b in bounds],
        1e-12,
    )
    says.fails("|x - 1/π| has a kink, and no bounded curvature", kinked, promised=[1 / (8 * m * m) for m in widths])
    parabola = [relu_interpolant(torch.square, m, curvature=2.0) for m in widths]
    cube = [relu_interpolant(lambda x: x**3, m, curvature=6.0) for m in widths]
    says = run.states(["N-39", "A-83"], r"g(x)=x^2:\ \sup|f-g|=1/4m^2")
    says.equal([between_knots(torch.square, a) for a in parabola], [1 / (4 * m * m) for m in widths], 1e-13)
    says.fails("x³ instead", [between_knots(lambda x: x**3, a) for a in cube])
    knots = [torch.linspace(0, 1, m + 1, dtype=torch.float64) for m in widths]
    says = run.states(["A-83", "N-39"], r"f(j/m)=g(j/m): \text{ largest difference}")
    says.equal(
        [float((a(t) - torch.square(t)).abs().max()) for a, t in zip(parabola, knots, strict=True)], within=1e-12
    )
    says.fails(
        "at the middles",
        [
            float((a(t + 0.5 / m) - torch.square(t + 0.5 / m))[:-1].abs().max())
            for a, t, m in zip(parabola, knots, widths, strict=True)
        ],
    )
    roots = [relu_interpolant(torch.sqrt, m, lipschitz=1.0) for m in widths]
    says = run.states("N-39", r"\sin2\pi x: \text{ error}\sim m^{-2}")
    says.slope(widths, rows[TARGETS[0][0]][2], -2.0, 0.02, against=(-1.0, -1.5))
    says.fails("√x, of unbounded curvature", widths, [between_knots(torch.sqrt, a) for a in roots])
    tent = relu_interpolant(lambda x: (x - 0.5).abs(), 2, lipschitz=1.0)
    third = relu_interpolant(lambda x: (x - 0.5).abs(), 3, lipschitz=1.0)
    says = run.states("L-071", r"|x-\tfrac12| \text{ is a network of 2 ReLUs: the exact sup error of 2 pieces}")
    says.equal(measured_error(Distance(), tent).lower, within=1e-15)
    says.fails("three pieces, whose knots miss the kink", measured_error(Distance(), third).lower)
    return rows


def between_knots(g: Function, broken: Approximant) -> float:
    """The largest error over sixteen points a piece, the middles among them."""
    x = torch.linspace(0, 1, 16 * broken.size.units + 1, dtype=torch.float64)
    return float((broken(x) - g(x)).abs().max())


def any_broken_line(run: Run) -> None:
    """Twelve random broken lines as ReLUs: values on all of the line, and the knots given back."""
    apart, trip, without, units, promised = [], [], [], [], []
    for count in range(1, 13):
        knots = (0.1 + run.rand(count)).cumsum(0) - 3
        values, (left, right) = run.randn(count), run.randn(2).tolist()
        net = broken_line_network(knots, values, left, right)
        x = torch.cat([knots, 20 * run.rand(200) - 8])
        between = np.interp(x.numpy(), knots.numpy(), values.numpy())
        wanted = torch.from_numpy(between) + left * (x - knots[0]).clamp(max=0)
        wanted = wanted + right * (x - knots[-1]).clamp(min=0)
        apart.append(float((net(x.unsqueeze(1))[:, 0] - wanted).abs().max()))
        flat = broken_line_network(knots, values, 0.0, right)
        without.append(float((flat(x.unsqueeze(1))[:, 0] - wanted).abs().max()))
        found = affine_pieces(net, knots[:1] - 1, knots[-1:] + 1)
        place = knots[0] - 1 + (knots[-1] - knots[0] + 2) * found.kinks
        trip.append(float((place - knots).abs().max()) if len(place) == count else math.inf)
        units.append(network_size(net).units)
        promised.append(count + 2)
    says = run.states("N-38", r"g(x)=ax+b+\sum_ic_i(x-x_i)_+,\ c_i=s_{i+1}-s_i: \text{ largest difference}")
    says.equal(
        apart, within=1e-12, where="random knots, values and outer slopes; at the knots and at 200 points of [-8, 12]"
    )
    says.fails("without the affine part a x", without)
    run.states("N-38", r"\text{the network's kinks are the knots: largest difference}").equal(trip, within=1e-10)
    run.states("N-38", r"m-1 \text{ bends on all of } \mathbb R: \text{ units}=m-1+2").equal(
        units, promised, where="the affine part costs two units, which the theorem does not count"
    )


class Distance(nn.Module):
    """The distance to 1/2, as a module: the comparison with a broken line is then exact."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).abs()


def plot(
    axes: Any,
    found: dict[str, list[Judged]],
    rates: dict[str, tuple[list[int], list[float], list[float]]],
) -> None:
    left, right = axes[0]
    name, g, rho, _ = TARGETS[0]
    x: Tensor = torch.linspace(0, 1, 2001, dtype=torch.float64)
    stairs = threshold_interpolant(g, rho, 0.5)
    left.plot(x, g(x), color="0.4", linewidth=1, label="$g(x) = \\sin 2\\pi x$")
    left.plot(x, stairs(x), color=COLORS[0], label=f"{stairs.size.units} threshold units")
    left.fill_between(x, g(x) - 0.5, g(x) + 0.5, color=COLORS[0], alpha=0.1, linewidth=0)
    left.set(xlabel="x", title="within ε = 1/2, the shaded tube")
    left.legend()
    marks = "os^d"
    for color, mark, (label, row) in zip(COLORS, marks, found.items(), strict=False):
        units = [a.size.units for a, _ in row]
        right.loglog(units, [a.bound for a, _ in row], color=color, linewidth=0.8)
        right.loglog(units, [e for _, e in row], mark, color=color, label=label)
    widths, bounds, errors = rates[name]
    right.loglog(widths, bounds, "--", color=COLORS[4], linewidth=0.8)
    right.loglog(widths, errors, "x", color=COLORS[4], label=f"{name}, ReLUs")
    right.set(xlabel="hidden units", ylabel="sup error", title="promise and measurement")
    right.legend(ncols=2)
