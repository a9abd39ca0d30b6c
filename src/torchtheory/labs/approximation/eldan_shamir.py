"""Why one hidden layer is not enough: a density that spreads frequencies over balls."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import integrate, special

from torchtheory.approximation.band_limited import (
    band_limited_root,
    covered_share,
    tube_share,
    tubes_needed,
    unit_volume_radius,
)
from torchtheory.approximation.sampled_networks import ball_points
from torchtheory.core.intervals import clopper_pearson, fit_slope
from torchtheory.core.lab import lab
from torchtheory.core.record import Control
from torchtheory.core.run import Run
from torchtheory.nets.labelled import at_least
from torchtheory.primer.function_spaces import fourier_transform

RADIUS = 3.0


@lab(
    "eldan-shamir",
    room="approximation",
    covers=["L-110", "L-111"],
    title="A few ridge functions cover exponentially little of a ball of frequencies",
    errata=["band-limited-density-unit-ball"],
    full={"points": 400_000},
)
def eldan_shamir_lab(run: Run, points: int = 20_000) -> None:
    """The two computable steps of Eldan and Shamir's proof.

    The function whose transform is the indicator of the ball of volume 1 has a square that is a
    density, and errors weighted with it are errors of frequencies. The share of a ball that the
    tube around one line covers is a regularised beta function; it is met by counting points, and
    falls exponentially with the dimension. Look at the figure: how many tubes, hence units, half
    of the ball takes.
    """
    at_least(points, 1000, "points")
    density(run)
    tubes(run, points)


def density(run: Run) -> None:
    """The density, its normalisation, and the identity of the loss."""
    dims = (1, 3, 5)
    masses = [mass(n, None) for n in dims]
    unit = [mass(n, 1.0) for n in dims]
    run.claim(
        "L-110",
        r"R_n=\Gamma(\tfrac n2+1)^{1/n}/\sqrt\pi: \quad\int\varphi^2=1",
        promised=1,
        relation="==",
        measured=masses,
        tolerance=1e-4,
        reason="up to the length 200, and beyond it the first term of the tail",
        control=Control("the ball of radius 1", unit),
    )
    run.erratum(
        "band-limited-density-unit-ball",
        r"\text{unit ball, }n=3: \quad\int\varphi^2=1",
        promised=1,
        relation="==",
        measured=unit[1],
        tolerance=1e-4,
    )
    # seen through φ a function's error is that of frequencies: Parseval on the line
    h = 1 / 32
    x = torch.arange(-64, 64, h, dtype=torch.float64)
    phi = band_limited_root(x.abs(), 1)
    f, g = torch.cos(3 * x), torch.exp(-x.square())
    _, left = fourier_transform(f * phi, -64.0, h)
    xi, right = fourier_transform(g * phi, -64.0, h)
    step = float(xi[1] - xi[0])
    _, bare = fourier_transform((f - g) * torch.exp(-x.square() / 100), -64.0, h)
    run.claim(
        "L-110",
        r"\int(f-g)^2\varphi^2=\|\widehat{f\varphi}-\widehat{g\varphi}\|^2",
        promised=((f - g) * phi).square().sum() * h,
        relation="==",
        measured=(left - right).abs().square().sum() * step,
        tolerance=1e-9,
        control=Control("another weight than φ", bare.abs().square().sum() * step),
    )
    # cos(3x) lives at ±3/2π; times φ on those points plus the ball of radius 1/2
    outside = (xi.abs() - 3 / (2 * math.pi)).abs() > 0.55
    energy = left.abs().square()
    _, sharp = fourier_transform(f * (x.abs() < 1), -64.0, h)
    leaked = sharp.abs().square()
    run.claim(
        "L-111",
        r"\operatorname{supp}\widehat{\sigma(\theta^\top\cdot)\varphi}\subseteq"
        r"\operatorname{span}\theta+B: \text{share of the energy outside}",
        promised=1e-2,
        relation="<=",
        measured=energy[outside].sum() / energy.sum(),
        reason="φ falls like 1/|x| and is cut at 64, which blurs the edge of the ball",
        control=Control(
            "a weight of compact support, which no ball of frequencies holds",
            leaked[outside].sum() / leaked.sum(),
        ),
    )


def mass(n: int, radius: float | None) -> float:
    """The integral of φ² over lengths up to 200, and the mean of its oscillating tail beyond."""
    ball = unit_volume_radius(n) if radius is None else radius
    surface = 2 * math.pi ** (n / 2) / special.gamma(n / 2)
    rho = torch.linspace(1e-6, 200, 200_001, dtype=torch.float64)
    values = band_limited_root(rho, n, radius).square() * rho ** (n - 1)
    tail = ball ** (n - 1) / (2 * math.pi**2 * 200)
    return float(surface * (integrate.simpson(values.numpy(), x=rho.numpy()) + tail))


def tubes(run: Run, points: int) -> None:
    """One tube by formula and by counting; many tubes; the fall with the dimension."""
    dims = (2, 4, 6, 8)
    confidence = 1 - 0.01 / len(dims)
    away, wrong = [], []
    for n in dims:
        x = ball_points(points, n, RADIUS, random=run.generator)
        axis = torch.zeros(1, n, dtype=torch.float64)
        axis[0, 0] = 1
        count = round(covered_share(x, axis) * points)
        found = clopper_pearson(count, points, confidence)
        sphere = RADIUS * x / x.norm(dim=1, keepdim=True)
        on_sphere = clopper_pearson(round(covered_share(sphere, axis) * points), points, confidence)
        exact = tube_share(n, RADIUS)
        away.append(max(0.0, found.low - exact, exact - found.high))
        wrong.append(max(0.0, on_sphere.low - exact, exact - on_sphere.high))
    run.claim(
        "L-111",
        r"\text{one tube: share }I_{1/r^2}(\tfrac{n-1}2,\tfrac32)\text{; distance outside the "
        r"interval of the count}",
        promised=0,
        relation="==",
        measured=away,
        reason="four dimensions, together at 99 % confidence",
        control=Control("points of the sphere instead of the ball", wrong),
    )
    x = ball_points(points, 6, RADIUS, random=run.generator)
    lines = run.randn(20, 6)
    lines = lines / lines.norm(dim=1, keepdim=True)
    near = clopper_pearson(round(covered_share(x / RADIUS, lines) * points), points)
    many = clopper_pearson(round(covered_share(x, lines) * points), points)
    run.claim(
        "L-111",
        r"m=20\text{ tubes cover at most }m\,I_{1/r^2}(\tfrac{n-1}2,\tfrac32)",
        promised=20 * tube_share(6, RADIUS),
        relation="<=",
        measured=many.estimate,
        interval=many,
        control=Control(
            "the ball of radius 1, all of which one tube covers", near.estimate, interval=near
        ),
    )
    high = list(range(20, 201, 20))
    fall = fit_slope(high, [math.log(tube_share(n, RADIUS)) for n in high], log=False)
    small = fit_slope(high, [math.log(tube_share(n, 1.5)) for n in high], log=False)
    run.claim(
        "L-111",
        r"r=3>e: \quad\ln\text{share falls by at least 1 a dimension, so share}\lesssim me^{-n}",
        promised=-1,
        relation="<=",
        measured=fall.estimate,
        control=Control("r = 1.5 < e: slower than e^{-n}", small.estimate),
    )
    run.figure(
        "tubes",
        plot,
        caption="Tubes needed to cover half of a ball of radius r: exponential in the dimension.",
    )
    run.table(
        "density",
        ["n", "R_n", "share of one tube, r = 3", "tubes for half of the ball"],
        [
            [n, unit_volume_radius(n), tube_share(n, RADIUS), tubes_needed(0.5, n, RADIUS)]
            for n in (2, 5, 10, 20)
        ],
        caption="Radius of the ball of volume 1, and tubes in a ball of radius 3",
    )


def plot(axis: Any) -> None:
    dims = range(2, 41)
    for radius in (1.5, 2.0, 3.0):
        axis.semilogy(dims, [tubes_needed(0.5, n, radius) for n in dims], label=f"r = {radius:g}")
    axis.set(xlabel="dimension $n$", ylabel="tubes (hidden units)")
    axis.legend()
