"""The width of a network: approximation error falls with it, estimation error grows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.generalization.learning.width_choice import (
    approximation_bound,
    choose_width,
    estimation_order,
)
from torchtheory.labs.engine import Interval, Run, fit_slope, lab, mean_interval

WIDTHS = (2, 4, 8, 16, 32, 64, 128)


@lab(
    "width-choice",
    room="generalization",
    covers=["S-39"],
    errata=["total-error-called-estimation-error"],
    title="Too narrow cannot say it, too wide cannot learn it: the total error has a least width",
    full={"seeds": 60, "samples": 1000, "points": 20000},
    least={"seeds": 4, "samples": 256, "noise": 0.05, "points": 256},
    most={"noise": 2},
)
def width_choice_lab(run: Run, seeds: int = 24, samples: int = 300, noise: float = 0.5, points: int = 2000) -> None:
    """Networks of steps with sampled inner weights and least-squares outer weights.

    The target is a sum of plane waves, whose Barron constant is known. With the target given
    everywhere, the least-squares error of a network of n units is its approximation error; what
    noisy samples add to it is the estimation error. The first falls with n, the second grows, and
    their sum is least in between; without noise and with all points there is no such width. The
    closed form for the least width is compared with a list of all, and the constant in front of
    the rate is seen to grow exponentially with the dimension for a bounded target. Look at the
    figure: the two errors and their sum.

    Args:
        seeds: trainings of each width.
        samples: that are trained on, at least twice the largest width.
        noise: standard deviation of the targets' noise.
        points: that the total error is measured on.
    """
    run.assumes(points >= samples, f"{points} points do not measure what {samples} samples cost")
    target = PlaneWaves(run)
    close, total = measure(run, target, seeds, samples, noise, points)
    report(run, target, close, total, samples, noise)
    calculator(run, target, samples, noise)


class PlaneWaves:
    r"""$f(x)=\sum_jc_j\cos(a_j^\top x+\varphi_j)$ on the unit ball, three dimensions."""

    def __init__(self, run: Run, waves: int = 4, dimension: int = 3) -> None:
        # of one size and length: the least total error lies between the widths whatever is drawn
        self.amplitudes = run.signs(waves) / 2
        directions = run.randn(waves, dimension)
        self.frequencies = 4 * directions / directions.norm(dim=1, keepdim=True)
        self.phases = 2 * math.pi * run.rand(waves)
        self.dimension = dimension

    @property
    def barron_constant(self) -> float:
        r"""$\sum_j|c_j|\|a_j\|$."""
        return float(self.amplitudes.abs() @ self.frequencies.norm(dim=1))

    def __call__(self, x: Tensor) -> Tensor:
        values: Tensor = (x @ self.frequencies.mT + self.phases).cos() @ self.amplitudes
        return values

    def draw_units(self, run: Run, count: int) -> tuple[Tensor, Tensor]:
        r"""Steps $1[a_j^\top x>u]$ with the density of Barron's integral, by rejection."""
        reach = self.frequencies.norm(dim=1)
        chosen: list[Tensor] = []
        while sum(len(c) for c in chosen) < count:
            j = torch.multinomial(self.amplitudes.abs() * reach, 4 * count, replacement=True, generator=run.generator)
            u = (2 * run.rand(4 * count) - 1) * reach[j]
            kept = run.rand(4 * count) < (u + self.phases[j]).sin().abs()
            chosen.append(torch.cat([self.frequencies[j], u[:, None]], 1)[kept])
        units = torch.cat(chosen)[:count]
        return units[:, :-1], units[:, -1]


def ball(run: Run, points: int, dimension: int) -> Tensor:
    x = run.randn(points, dimension)
    inside: Tensor = x / x.norm(dim=1, keepdim=True) * run.rand(points, 1) ** (1 / dimension)
    return inside


def measure(run: Run, target: PlaneWaves, seeds: int, samples: int, noise: float, points: int) -> tuple[Tensor, Tensor]:
    """Approximation and total error over the points, `[seeds, widths]`."""
    x = ball(run, points, target.dimension)
    f = target(x)[:, None]
    close, total = torch.zeros(2, seeds, len(WIDTHS), dtype=torch.float64)
    for s in run.track(range(seeds)):
        weights, thresholds = target.draw_units(run, max(WIDTHS))
        steps = (x @ weights.mT > thresholds).double()
        chosen = torch.randint(0, points, (samples,), generator=run.generator)
        y = f[chosen] + noise * run.randn(samples, 1)
        for k, width in enumerate(WIDTHS):
            h = torch.cat([torch.ones(points, 1).double(), steps[:, :width]], 1)
            best = h @ torch.linalg.lstsq(h, f, driver="gelsd").solution
            found = h @ torch.linalg.lstsq(h[chosen], y, driver="gelsd").solution
            close[s, k] = (best - f).square().mean()
            total[s, k] = (found - f).square().mean()
    return close, total


def above_ends(errors: Tensor) -> Interval:
    """How much worse the better end of the list is than the best width inside, over seeds."""
    middle = errors.mean(0)[1:-1].argmin() + 1
    end = 0 if errors.mean(0)[0] < errors.mean(0)[-1] else -1
    return mean_interval(errors[:, end] - errors[:, middle], 0.99)


def report(run: Run, target: PlaneWaves, close: Tensor, total: Tensor, samples: int, noise: float) -> None:
    constant = target.barron_constant
    bounds = [approximation_bound(n, constant) for n in WIDTHS]
    cost = (total - close).mean(0)
    shape, without = above_ends(total), above_ends(close)
    says = run.states(
        "S-39", r"\text{U-shape: the error at the better end of the widths exceeds that inside by more than } 0"
    )
    says.above(shape.low, 0.0, where="lower end of a 99 % interval over networks and samples")
    says.fails("the target given everywhere, without noise", without.low)
    fall = fit_slope(WIDTHS, close.mean(0))
    growth = fit_slope(WIDTHS[:-1], cost[:-1].clamp_min(1e-12))
    says = run.states("S-39", r"\text{estimation error grows with the width: its exponent}")
    says.above(growth.low, 0.0, where="lower end of the 99 % interval of the slope on logarithms")
    says.fails("the exponent of the approximation error", fall.high)
    order = [estimation_order(n, target.dimension, samples, noise**2) for n in WIDTHS]
    run.table(
        "errors",
        ("width", "approximation", "estimation", "total", "Barron's bound", "nd ln M / M times σ²"),
        [
            (n, float(a), float(e), float(t), b, o)
            for n, a, e, t, b, o in zip(WIDTHS, close.mean(0), cost, total.mean(0), bounds, order, strict=True)
        ],
        caption=f"{len(close)} networks of steps, {samples} samples with noise {noise}. The "
        "inner weights are sampled, not learned, so the estimation error lacks d and ln M.",
    )
    run.curves(
        "width",
        WIDTHS,
        {"approximation": close.mean(0), "estimation": (total - close).mean(0), "total": total.mean(0)},
        axes=("hidden units n", "mean squared error"),
        log="xy",
        at={"least total": WIDTHS[int(total.mean(0).argmin())]},
        caption="Mean squared error against the width: what a network of that width can reach, "
        "what noisy samples add, and their sum, with the width where it is least.",
    )
    run.refutes(
        "total-error-called-estimation-error",
        r"\text{the sum of both terms is what the sample costs: it vanishes with all the data}",
    ).at_most(
        float(close.mean(0)[2]),
        0.0,
        where=f"a network of {WIDTHS[2]} units with the target given everywhere, without noise",
    )


def calculator(run: Run, target: PlaneWaves, samples: int, noise: float) -> None:
    """The closed form against the list of all widths."""
    found, listed, naive = [], [], []
    for m in (samples, 10 * samples, 100 * samples):
        a, d = approximation_bound(1, target.barron_constant), target.dimension
        choice = choose_width(d, m, a, noise**2)
        totals = [a / n + estimation_order(n, d, m, noise**2) for n in range(1, 20_000)]
        listed.append(min(totals))
        found.append(choice.total)
        half = max(1, choice.width // 4)
        naive.append(a / half + estimation_order(half, d, m, noise**2))
    says = run.states("S-39", r"n^\star=\sqrt{AM/(Bd\ln M)} \text{ has the least } A/n+Bnd\ln M/M")
    says.equal(found, listed, 1e-12, where="against all widths below 20000")
    says.fails("a quarter of that width", naive)
    # sup-norm at most 1, yet a Barron constant that grows exponentially: products of waves
    dimensions = list(range(1, 13))
    constants = [product_constant(d) for d in dimensions]
    single = [math.sqrt(d) for d in dimensions]  # ∏ sin(x_j): all frequencies have length √d
    slope = fit_slope(dimensions, [math.log(c) for c in constants], log=False)
    flat = fit_slope(dimensions[4:], [math.log(c) for c in single[4:]], log=False)
    says = run.states(
        "S-39",
        r"C_f \text{ can grow exponentially with } d \text{ at } \|f\|_\infty\le1: "
        r"\text{ exponent at least } \ln(\tfrac43/\|g\|_\infty)",
    )
    says.at_least(
        slope.low,
        math.log((4 / 3) / wave_height()),
        where="f(x) = ∏ g($x_j$)/max|g| with g(t) = sin t + sin(3t)/3: the rate in n has no d, the constant has",
    )
    says.fails("∏ sin($x_j$), whose constant is √d", flat.high)


def wave_height() -> float:
    r"""The maximum of sin t + sin(3t)/3: at t = π/4, where the derivative cos t + cos 3t is 0."""
    return math.sin(math.pi / 4) + math.sin(3 * math.pi / 4) / 3


def product_constant(dimension: int) -> float:
    r"""$C_f$ of $\prod_jg(x_j)/\max|g|$: weights $3^{-k}$, lengths
    $\sqrt{d+8k}$ for $k$ factors of frequency 3."""
    total = sum(math.comb(dimension, k) * 3.0**-k * math.sqrt(dimension + 8 * k) for k in range(dimension + 1))
    return total / wave_height() ** dimension
