"""Classes with a Barron boundary: the share of mistakes falls with n^(-1/2) in any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.approximation.barron.boundaries import barron_classifier
from torchtheory.approximation.barron.random_steps import MeanOfSteps
from torchtheory.approximation.barron.sampled_networks import ball_points
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves, Spectrum
from torchtheory.labs.engine import Interval, Run, fit_slope, lab, mean_interval

COUNTS = (16, 64, 256, 1024)
DIMENSIONS = (2, 5, 10)
#: The last coordinate is uniform on this interval, which holds the boundary and its networks.
LOW, HIGH = -2.0, 3.0
DENSITY = 1 / (HIGH - LOW)


@lab(
    "barron-boundaries",
    room="approximation",
    covers=["A-104", "A-107"],
    title="Two classes with a Barron boundary: mistakes fall with $n^{-1/2}$ in 2, 5 and 10 dimensions",
    full={"seeds": 100, "points": 1000},
    least={"seeds": 50, "points": 50},
)
def barron_boundaries(run: Run, seeds: int = 64, points: int = 200) -> None:
    """Points above and below the graph of a function with a finite Barron constant.

    A network of random steps for the graph makes a classifier whose mistakes lie between the two
    graphs: their share is the mean distance of the graphs, times the density of the last coordinate.
    It falls with $n^{-1/2}$ for Gaussian boundaries of equal constants in 2, 5 and 10 dimensions, and
    the constant of the bound is nearly met by two slow waves that cancel. The same for a boundary
    that is a mean of random half-spaces. Where points crowd at the boundary, so that there is no
    density, the rate is lost.

    Args:
        seeds: random networks per size.
        points: random points at which the distance of two graphs is measured.
    """
    found = {d: shares(run, d, seeds, points) for d in DIMENSIONS}
    crowded = {d: [[distance ** (1 / 3) / 2 for distance in row] for row in found[d][1]] for d in DIMENSIONS}
    for d in DIMENSIONS:
        says = run.states("A-104", rf"d={d}: \quad\mathbb P(\text{{classes differ}})\sim n^{{-1/2}}")
        says.slope(slope(found[d][0]), -0.5, against=(-0.25, -1.0))
        if d == 10:
            says.fails("points that crowd at the boundary as u³, u uniform", slope(crowded[d]))
    counted(run, points)
    bounds(run, found)
    half_spaces(run, seeds)
    run.curves(
        "mistakes",
        COUNTS,
        {f"d = {d}": [mean_interval(row) for row in zip(*found[d][0], strict=True)] for d in DIMENSIONS},
        {"promised": [DENSITY * 4 / math.sqrt(n) for n in COUNTS]},
        axes=("pairs of steps $n$", "share of mistakes"),
        log="xy",
        caption="Gaussian boundaries with constant 4, mean over networks with 99 % intervals. The dimension "
        "changes the constant, not the rate.",
    )


def bump(dimension: int) -> Spectrum:
    """A Gaussian of height 1 with Barron's constant 4."""
    return GaussianBump(dimension, GaussianBump(dimension).barron_constant / 4)


def slope(rows: list[list[float]]) -> Interval:
    """The exponent, from the means of four networks each: a single one's logarithm is skewed."""
    means = torch.tensor(rows).double()
    grouped = means[: len(means) // 4 * 4].reshape(-1, 4, len(COUNTS)).mean(1)
    return mean_interval([fit_slope(COUNTS, row).estimate for row in grouped], 1 - 0.01 / 3)


def graph(score: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The boundary of a classifier: where its score, which grows like t, is 0."""
    at_zero = torch.cat([x, x.new_zeros(len(x), 1)], 1)
    return -score(at_zero)[:, 0]


def shares(run: Run, d: int, seeds: int, points: int) -> tuple[list[list[float]], list[list[float]]]:
    """Mistakes and mean distances of the graphs for each seed and count.

    The last coordinate is integrated out: given the others, mistakes are a piece of the interval.
    """
    g = bump(d - 1)
    x = ball_points(points, d - 1, generator=run.generator)
    mistakes, distances = [], []
    for _ in range(seeds):
        row, far = [], []
        for n in COUNTS:
            made = barron_classifier(g, n, generator=run.generator)
            between = (graph(made.score, x).clamp(LOW, HIGH) - g(x)).abs()
            row.append(DENSITY * float(between.mean()))
            far.append(float(between.mean()))
        mistakes.append(row)
        distances.append(far)
    return mistakes, distances


def counted(run: Run, points: int) -> None:
    """Mistakes counted one by one, against the distance of the graphs."""
    g = bump(4)
    made = barron_classifier(g, 32, generator=run.generator)
    x = ball_points(100 * points, 4, generator=run.generator)
    t = LOW + (HIGH - LOW) * run.rand(len(x))
    wrong = made(torch.cat([x, t[:, None]], 1)) != (t > g(x))
    promised = DENSITY * float((graph(made.score, x) - g(x)).abs().mean())
    says = run.states("A-104", r"\mathbb P(\text{classes differ})=\varrho\,\mathbb E|g-g_n|,\ t\text{ uniform}")
    says.mean(wrong.double(), promised, against=(promised / 2, 2 * promised), confidence=0.999)
    margin = (2 * run.rand(len(x)) - 1) ** 3
    close = g(x) + margin
    says.fails(
        "points that crowd at the boundary",
        (made(torch.cat([x, close[:, None]], 1)) != (margin > 0)).double(),
    )


def bounds(run: Run, found: dict[int, tuple[list[list[float]], list[list[float]]]]) -> None:
    """Gaussians, and the case that comes near the promise."""
    measured, promised, crowded = [], [], []
    for d in DIMENSIONS:
        for k, n in enumerate(COUNTS):
            measured.append(mean_interval([row[k] for row in found[d][0]], 1 - 0.01 / 15).high)
            promised.append(barron_classifier(bump(d - 1), n, generator=0).mistakes_bound(DENSITY))
    n, draws = 64, 400
    for d in DIMENSIONS:
        u = torch.ones(1, d - 1, dtype=torch.float64) / math.sqrt(d - 1)
        waves = PlaneWaves(
            torch.tensor([1.0, -0.8], dtype=torch.float64),
            torch.cat([0.4 * u, 0.5 * u]),
            torch.full((2,), -math.pi / 2, dtype=torch.float64),
        )
        made = [barron_classifier(waves, n, generator=run.generator) for _ in range(draws)]
        between = torch.stack([(graph(m.score, 0.95 * u) - waves(0.95 * u)).abs()[0] for m in made])
        measured.append(DENSITY * mean_interval(between, 1 - 0.01 / 15).high)
        promised.append(made[0].mistakes_bound(DENSITY))
        # a third root of the distance is the share of points that crowd as u³
        crowded.append(mean_interval(between ** (1 / 3) / 2, 1 - 0.01 / 15).low)
    says = run.states("A-104", r"\mathbb E\,\mathbb P(\text{classes differ})\le\varrho\,C_g(r/\sqrt n+\delta)")
    says.at_most(measured, promised, where="upper ends; Gaussians, and two slow waves that nearly cancel")
    says.fails("points that crowd at the boundary as u³", crowded, promised=promised[-len(crowded) :])


def half_spaces(run: Run, seeds: int) -> None:
    """Boundaries that are means of half-spaces, P(e·x > T)."""
    rows: dict[int, list[list[float]]] = {}
    measured, promised, alone = [], [], []
    for d in DIMENSIONS:

        def planes(n: int, generator: torch.Generator, d: int = d) -> tuple[Tensor, Tensor, Tensor]:
            z = torch.randn(n, d - 1, generator=generator, dtype=torch.float64)
            thresholds = 2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1
            return z / z.norm(dim=1, keepdim=True), thresholds, torch.ones_like(thresholds)

        g = MeanOfSteps(planes)
        x = ball_points(40, d - 1, generator=run.generator)

        # half-spaces through the ball hold a point of it with chance 1/2 + E⟨e, x⟩/2 = 1/2
        def distance(n: int, g: MeanOfSteps = g, x: Tensor = x) -> float:
            return float((g.subsample(n, run.generator)(x)[:, 0] - 0.5).abs().mean())

        rows[d] = [[distance(n) for n in COUNTS] for _ in range(4 * seeds)]
        for k, n in enumerate(COUNTS):
            measured.append(DENSITY * mean_interval([row[k] for row in rows[d]], 1 - 0.01 / 12).low)
            promised.append(DENSITY * math.sqrt(g.error_bound(n)))
        alone.append(DENSITY * mean_interval([distance(1) for _ in range(seeds)], 1 - 0.01 / 12).low)
    for d in DIMENSIONS:
        says = run.states(
            "A-107",
            rf"d={d},\ g=\mathbb E\,1[\langle\Xi,x\rangle>T]: \ \mathbb P(\text{{classes differ}})\sim n^{{-1/2}}",
        )
        says.slope(slope(rows[d]), -0.5, against=(-0.25, -1.0))
    says = run.states("A-107", r"\mathbb E\,\mathbb P(\text{classes differ})\le\varrho/(2\sqrt n)")
    says.at_most(measured, promised, where="lower ends of 12 intervals that hold together at 99 %")
    says.fails("the same step n times, n = 16", alone, promised=promised[:: len(COUNTS)])
