"""A function as a network of infinite width: an integral over cosines, an integral over steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.barron.infinite_width import cosine_integral, step_integral
from torchtheory.approximation.barron.sampled_networks import (
    ball_points,
    draw_steps,
    total_variation,
)
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves
from torchtheory.labs.engine import Interval, Run, lab, mean_interval

WIDTH, CENTER = 0.6, 0.4


@lab(
    "infinite-width-representation",
    room="approximation",
    covers=["L-096", "L-097"],
    title="A smooth function is an infinitely wide network, of cosines or, on a ball, of steps",
    errata=["gradient-of-the-transform"],
    full={"offsets": 1000, "draws": 400_000},
    least={"offsets": 50, "draws": 1_000},
)
def infinite_width_lab(run: Run, offsets: int = 400, draws: int = 20_000) -> None:
    """The two integrals of the representation theorem against the function they should give.

    A shifted Gaussian (its frequencies have phases) is put together again from cosines and from
    steps on the line; in two dimensions the integral over steps is taken by sampling. The steps
    reach only as far as the radius they were made for: beyond it the integral is constant. Look
    at the figure, at the edges of the interval.

    Args:
        offsets: cells of the integral over offsets of steps.
        draws: random steps in two dimensions.
    """
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)
    w = torch.linspace(-14, 14, 281, dtype=torch.float64)
    bump = GaussianBump(1, WIDTH, center=[CENTER])
    change = bump(x[:, None]) - bump.at_origin()
    cosines(run, x, w, change)
    steps(run, x, w, bump, offsets)
    plane(run, draws)
    run.figure(
        "steps",
        lambda axis: plot(axis, bump, w),
        caption="The integral over steps made for the radius 1 is the function minus its value at "
        "0 inside the interval and constant outside; made for the radius 2 it reaches further.",
    )


def magnitude(w: Tensor) -> Tensor:
    return WIDTH * torch.exp(-(WIDTH**2) * w.square() / 2) / math.sqrt(2 * math.pi)


def phase(w: Tensor) -> Tensor:
    return -w * CENTER


def cosines(run: Run, x: Tensor, w: Tensor, change: Tensor) -> None:
    says = run.states(
        "L-096", r"f(x)-f(0)=\int(\cos(\omega x+\varphi(\omega))-\cos\varphi(\omega))|F(\omega)|\,d\omega"
    )
    says.equal(cosine_integral(magnitude, phase, x, w), change, 1e-10)
    says.fails("phases left out: the bump moves to 0", cosine_integral(magnitude, torch.zeros_like, x, w))
    angle = 2 * math.pi * torch.outer(x, w) + phase(w)
    factor = (torch.cos(angle) - torch.cos(phase(w))).abs() / w.abs().clamp(min=1e-12)
    moving = (torch.cos(angle) - 1).abs() / w.abs().clamp(min=1e-12)
    says = run.states("L-096", r"|\cos(2\pi\omega^\top x+2\pi\theta)-\cos2\pi\theta|/|\omega|\le2\pi|x|")
    says.at_most(factor, (2 * math.pi * x.abs())[:, None].expand_as(factor).contiguous(), 1e-9)
    nearest = int(x.abs().argmin())
    says.fails(
        "two different phases, at the smallest |x|",
        moving[nearest][w != 0],
        promised=2 * math.pi * float(x[nearest].abs()),
    )
    # e^{-x²/2} with frequencies in cycles: f^ = sqrt(2π) exp(-2π²ξ²)
    xi = torch.linspace(-3, 3, 241, dtype=torch.float64)
    transform = math.sqrt(2 * math.pi) * torch.exp(-2 * (math.pi * xi) ** 2)
    gradient_of_transform = 4 * math.pi**2 * xi.abs() * transform
    cosine = torch.cos(2 * math.pi * torch.outer(x, xi)) - 1
    weight = torch.where(xi.abs() > 1e-9, gradient_of_transform / (2 * math.pi * xi.abs()), 0.0)
    printed = cosine @ weight * float(xi[1] - xi[0])
    run.refutes(
        "gradient-of-the-transform", r"e^{-x^2/2}-1=\int\frac{\cos2\pi\xi x-1}{2\pi|\xi|}\,|\nabla\hat f(\xi)|\,d\xi"
    ).equal(printed, torch.exp(-x.square() / 2) - 1, 1e-6)


def steps(run: Run, x: Tensor, w: Tensor, bump: GaussianBump, offsets: int) -> None:
    """Steps on the line: inside the radius, and beyond it."""

    def error(points: Tensor, radius: float, cells: int) -> float:
        found = step_integral(magnitude, phase, points, w, radius=radius, offsets=cells)
        return float((found - (bump(points[:, None]) - bump.at_origin())).abs().max())

    # one midpoint cell on either side of the threshold may be counted wrongly
    allowed = float((w.abs() * magnitude(w)).sum() * (w[1] - w[0])) / offsets
    beyond = torch.linspace(1.5, 2, 5, dtype=torch.float64)
    says = run.states(
        "L-097", r"|x|\le1: \text{the integral over steps is }f(x)-f(0)\text{ up to one cell of the rule}"
    )
    says.equal(error(x, 1.0, offsets), within=allowed)
    says.fails("points beyond the radius the steps are made for", error(beyond, 1.0, offsets))
    says = run.states("L-097", r"\text{offsets up to }2|\omega|: \text{the same for }|x|\le2")
    says.equal(error(beyond, 2.0, offsets), within=2 * allowed)
    says.fails("offsets up to 1.2|ω| only", error(beyond, 1.2, offsets))


def plane(run: Run, draws: int) -> None:
    """Two dimensions, by sampling; total mass."""
    bump = GaussianBump(2, 0.7, center=[0.3, -0.2])
    x = ball_points(6, 2, generator=run.generator)
    values = draw_steps(bump, draws, 1.0, run.generator)(x)
    confidence = 1 - 1e-6 / len(x)  # all six together fail by chance once in a million runs
    found = [mean_interval(v, confidence) for v in values]
    wanted = bump(x) - bump.at_origin()
    far = 3 * x / x.norm(dim=1, keepdim=True)
    outside = [mean_interval(v, confidence) for v in draw_steps(bump, draws, 1.0, run.generator)(far)]
    says = run.states(
        "L-097", r"d=2: \text{the mean of sampled steps is }f(x)-f(0)\text{; distance outside its interval}"
    )
    says.equal(
        [outside_by(i, float(f)) for i, f in zip(found, wanted, strict=True)],
        where="six points, together at one in a million",
    )
    says.fails(
        "points beyond the radius",
        [outside_by(i, float(f)) for i, f in zip(outside, bump(far) - bump.at_origin(), strict=True)],
    )
    waves = PlaneWaves(run.signs(4), 3 * run.randn(4, 2), 6 * run.rand(4))
    says = run.states("L-097", r"\|\mu\|_1=\textstyle\int\!\int|\sin(u+\varphi)||F|\le2rC_f")
    says.at_most(
        [total_variation(waves, r) for r in (0.1, 1.0, 5.0)], [2 * r * waves.barron_constant for r in (0.1, 1.0, 5.0)]
    )
    says.fails(
        "steps for the double radius, which the bound does not know of",
        [total_variation(waves, 2 * r) for r in (0.1, 1.0, 5.0)],
    )


def outside_by(interval: Interval, value: float) -> float:
    return max(0.0, interval.low - value, value - interval.high)


def plot(axis: Any, bump: GaussianBump, w: Tensor) -> None:
    x = torch.linspace(-2, 2, 121, dtype=torch.float64)
    axis.plot(x, bump(x[:, None]) - bump.at_origin(), color="0.6", lw=4, label="$f(x)-f(0)$")
    for radius, style in ((1.0, "-"), (2.0, "--")):
        found = step_integral(magnitude, phase, x, w, radius=radius, offsets=200)
        axis.plot(x, found, style, label=f"steps for r = {radius:g}")
    axis.axvspan(-1, 1, color="0.9", zorder=0)
    axis.set(xlabel="$x$")
    axis.legend()
