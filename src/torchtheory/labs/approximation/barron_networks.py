"""Barron's theorem as a machine: networks drawn from the frequencies of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import special
from torch import Tensor, nn

from torchtheory.approximation.barron.sampled_networks import (
    ball_points,
    barron_network,
    best_network,
    draw_steps,
    total_variation,
    units_for_error,
)
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves, Spectrum
from torchtheory.generalization.interpolation.bias_variance import BiasVariance, decompose_predictions
from torchtheory.generalization.learning.width_choice import approximation_bound
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.nets.activations.properties import inspect_activation
from torchtheory.neurons.regression import least_squares

WIDTHS = (16, 64, 256, 1024)
DIMENSIONS = (1, 2, 10, 100)
CHANCE = 1e-6  # that a true statement fails by the draw


class Untilted(GaussianBump):
    """The same function, with frequencies drawn from |F| where |ω||F| is right."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.draw_plain(count, generator)


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean squared errors over the widths for one target: an interval each, and the slope."""

    target: Spectrum
    means: list[Interval]
    slope: Interval

    @property
    def bounds(self) -> list[float]:
        return [approximation_bound(k, self.target.barron_constant) for k in WIDTHS]

    @property
    def constant(self) -> float:
        """The mean of k times the error: the measured constant of the rate 1/k."""
        return sum(k * m.estimate for k, m in zip(WIDTHS, self.means, strict=True)) / len(WIDTHS)


@lab(
    "barron-networks",
    room="approximation",
    covers=["L-101", "L-103", "N-34", "S-27", "S-35", "S-37", "S-38", "X-19"],
    title="Networks drawn from a function's frequencies err by at most (2rC)²/k in any dimension",
    errata=["sample-sum-without-average", "relu-satisfies-assumption-one"],
    full={"seeds": 60, "points": 1000},
    least={"seeds": 20, "points": 50},
)
def barron_networks_lab(run: Run, seeds: int = 50, points: int = 50) -> None:
    """For a target with known frequencies, the proof is run: k steps are drawn, the network built.

    Gaussians of the same Barron constant and sums of four waves in 1, 2, 10 and 100 dimensions
    are met by networks of 16 to 1024 units; the mean squared error over draws is below
    (2rC)²/k, its slope is -1 whatever the dimension, and the outer weights add up to the mass of
    the steps. Frequencies drawn from the wrong density, or points outside the ball, break the
    promise. Which activations the theorem takes is read off the functions themselves. Look at the
    figure: dots (measured), lines (promised), dashed (wrong density, which levels off).

    Args:
        seeds: random networks per size.
        points: random points of the ball at which errors are measured.
    """
    gaussians = {d: curve(run, gaussian_of(d), seeds, points) for d in DIMENSIONS}
    waves = {d: curve(run, waves_of(run, d), seeds, points) for d in DIMENSIONS}
    # more draws: the interval of a biased slope must not reach -1
    wrong = curve(run, wrong_gaussian(), 3 * seeds, points)
    rate(run, gaussians, waves, wrong)
    few = seeds // 4
    wide(run, few, points)
    construction(run, few)
    theorem(run, waves, few, points)
    cut_off(run)
    integrated_error(run, 80 * seeds, points)
    activations(run)
    run.table(
        "rate",
        ["target", "d", "$C_f$", "slope", "slope from", "to", "k × error", "(2rC)²"],
        [
            [
                name,
                d,
                c.target.barron_constant,
                c.slope.estimate,
                c.slope.low,
                c.slope.high,
                c.constant,
                c.bounds[0] * WIDTHS[0],
            ]
            for name, family in (("Gaussian", gaussians), ("four waves", waves))
            for d, c in family.items()
        ],
        caption="Fitted exponent, with an interval that all eight hold together at 99 %, and the "
        "constant of the squared error",
    )
    run.figure(
        "rate",
        lambda axes: plot(axes, gaussians, waves, wrong),
        caption="Mean squared error over draws (dots, 99 % intervals) and the promise (2rC)²/k "
        "(lines), with the fitted slopes. Dashed: frequencies drawn from |F| instead of |ω||F|.",
        grid=(1, 2),
    )


def gaussian_of(dimension: int) -> GaussianBump:
    """The Gaussian bump with Barron constant 4."""
    return GaussianBump(dimension, GaussianBump(dimension).barron_constant / 4)


def wrong_gaussian() -> GaussianBump:
    return Untilted(1, GaussianBump(1).barron_constant / 4)


def waves_of(run: Run, dimension: int, constant: float = 4.0) -> PlaneWaves:
    frequencies = run.randn(4, dimension)
    frequencies = 4 * frequencies / frequencies.norm(dim=1, keepdim=True)
    sizes = 0.5 + run.rand(4)
    return PlaneWaves(run.signs(4) * sizes * constant / (4 * sizes.sum()), frequencies, 2 * math.pi * run.rand(4))


def errors(run: Run, target: Spectrum, units: int, seeds: int, x: Tensor, radius: float = 1.0) -> list[float]:
    # the units are drawn independently: any `units` of a wider network, with outer weights that
    # many times larger, are a network of their own
    model = barron_network(target, seeds * units, radius, generator=run.generator).model
    last = model[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        terms = (model[:-1](x) * last.weight[0]).reshape(len(x), seeds, units)
        found = seeds * terms.sum(2) + last.bias
        squares: list[float] = (found - target(x)[:, None]).square().mean(0).tolist()
        return squares


def nearly_nothing(dimension: int) -> tuple[PlaneWaves, Tensor]:
    """Two slow waves that nearly cancel, and the point where half of their steps are on.

    Every step then has the size 2C, and nothing is gained by the mean.
    """
    frequencies = torch.zeros(2, dimension, dtype=torch.float64)
    frequencies[:, 0] = torch.tensor([0.4, 0.5])
    amplitudes = torch.tensor([1.0, -1.0], dtype=torch.float64) * 4 / 0.9
    waves = PlaneWaves(amplitudes, frequencies, torch.full((2,), math.pi / 2, dtype=torch.float64))
    return waves, torch.eye(1, dimension, dtype=torch.float64)


def nearest(run: Run, dimension: int, units: int, draws: int = 2000) -> float:
    """The mean error for the hardest function that is known, relative to its bound (99 % end)."""
    target, x = nearly_nothing(dimension)
    found = mean_interval(errors(run, target, units, draws, x))
    return found.high / approximation_bound(units, target.barron_constant)


def curve(run: Run, target: Spectrum, seeds: int, points: int) -> Curve:
    x = ball_points(points, target.dimension, generator=run.generator)
    found = [errors(run, target, k, seeds, x) for k in WIDTHS]
    # slopes of the means of ten groups of draws, not of single ones, whose logarithms are biased: a
    # few large errors among many small ones; all eight intervals hold together at 99 %
    groups = torch.tensor(found, dtype=torch.float64)[:, : seeds // 10 * 10].reshape(len(WIDTHS), 10, -1).mean(2)
    slopes = [fit_slope(WIDTHS, group).estimate for group in groups.T]
    confidence = 1 - 0.01 / (2 * len(DIMENSIONS))
    return Curve(target, [mean_interval(f) for f in found], mean_interval(slopes, confidence))


def rate(run: Run, gaussians: dict[int, Curve], waves: dict[int, Curve], wrong: Curve) -> None:
    """The bound, the exponent, and what breaks them."""
    for d in DIMENSIONS:
        both = (gaussians[d], waves[d])
        run.states(
            ["L-101", "N-34", "S-37", "S-38", "X-19"],
            rf"d={d}: \quad\mathbb E\int_{{B_1}}(f-f_k)^2d\mu\le(2C_f)^2/k"
            r"\text{, upper ends of the intervals at every }k",
        ).at_most(
            [m.high / b for c in both for m, b in zip(c.means, c.bounds, strict=True)] + [nearest(run, d, WIDTHS[0])],
            1,
            where="Gaussians, sums of waves, and two waves that nearly cancel, relative to the bound",
        )
        for name, c in (("Gaussian", both[0]), ("waves", both[1])):
            says = run.states(["L-101", "S-38", "X-19"], rf"d={d}\text{{, {name}: squared error}}\sim k^{{-1}}")
            says.slope(c.slope, -1, against=(-0.5, -2))
            if d == 1:
                says.fails("frequencies drawn from |F| instead of |ω||F|", wrong.slope)


def wide(run: Run, seeds: int, points: int, units: int = 4096) -> None:
    """Where the bound is small enough to see a bias."""
    x = ball_points(points, 1, generator=run.generator)
    bound = approximation_bound(units, gaussian_of(1).barron_constant)
    right = mean_interval(errors(run, gaussian_of(1), units, seeds, x))
    wrong = mean_interval(errors(run, wrong_gaussian(), units, seeds, x))
    says = run.states(["L-101", "S-37"], rf"d=1, k={units}: \quad\mathbb E\int_{{B_1}}(f-f_k)^2d\mu\le(2C_f)^2/k")
    says.at_most(
        [right.high / bound, nearest(run, 1, units, 400)],
        1,
        where="a Gaussian, and two waves that nearly cancel: 99 % ends, relative to the bound",
    )
    says.fails("frequencies drawn from |F| instead of |ω||F|: biased (lower end)", wrong.low / bound)


def construction(run: Run, seeds: int) -> None:
    """The sampled network of S-38: unbiased, with the promised outer weights."""
    target = waves_of(run, 3)
    x = ball_points(20, 3, generator=run.generator)
    count = 4000
    mean_of_steps = draw_steps(target, count, generator=run.generator)(x)
    wanted = target(x) - target.at_origin()
    shifted = PlaneWaves(target.amplitudes, target.frequencies)
    wrong = draw_steps(shifted, count, generator=run.generator)(x)

    def scores(values: Tensor) -> Tensor:
        return (values.mean(1) - wanted).abs() / (values.std(1) / math.sqrt(count))

    says = run.states("S-38", r"\mathbb E\,G(x)=f(x): \text{standard errors away, at 20 points together}")
    says.at_most(scores(mean_of_steps), -float(special.ndtri(CHANCE / 2 / len(x))))
    says.fails("the phases of the waves left out", scores(wrong))
    mass = total_variation(target)
    nets = [barron_network(target, 50, generator=run.generator) for _ in range(seeds)]
    says = run.states(["S-38", "S-37"], r"\textstyle\sum_i|a_i|=v=\sum_j|c_j|\int_{-R_j}^{R_j}|\sin(u+\varphi_j)|du")
    says.equal([n.weight_sum for n in nets], mass, 1e-12)
    says.fails("drawn for the double radius", barron_network(target, 50, 2.0, generator=run.generator).weight_sum)
    wide = [barron_network(t, 50, generator=run.generator).weight_sum for t in (target, gaussian_of(5))]
    says = run.states(["S-37", "S-38"], r"\textstyle\sum_i|a_i|\le2rC_f")
    says.at_most(wide, [2 * target.barron_constant, 2 * gaussian_of(5).barron_constant])
    says.fails("the inner weights in place of the outer ones", [inner_sum(n.model) for n in nets[:2]])
    run.note(
        "The slides print the condition for the inner weights $w_i$. For steps it is empty rather "
        "than false, as 1[w·x > b] does not change when w and b are scaled; what the proof bounds "
        "are the outer weights."
    )
    sums = mean_of_steps[:, :50].sum(1)  # m = 50 steps, not divided by m
    run.refutes(
        "sample-sum-without-average",
        r"\Big|\sum_{j\le50}s_j\tilde\sigma(\omega_j^\top x)-f(x)\Big|\le5\text{ standard errors}",
    ).at_most(
        (sums - wanted).abs(),
        5 * mean_of_steps.std(1) * math.sqrt(50) / 50,
        where="standard errors of an average, as the estimate would have them",
    )


def inner_sum(model: nn.Sequential) -> float:
    return float(next(model.parameters()).detach().norm(dim=1).sum())


def theorem(run: Run, waves: dict[int, Curve], seeds: int, points: int) -> None:
    """Outside the ball; the best draw; the width for an error; sigmoids for steps."""
    target = waves[2].target
    x = ball_points(points, 2, generator=run.generator)
    bound = approximation_bound(1024, target.barron_constant)
    inside = mean_interval(errors(run, target, 1024, seeds, x))
    outside = mean_interval(errors(run, target, 1024, seeds, 4 * x))
    says = run.states(["S-37", "L-101", "X-19"], r"\mu\text{ on }B_r: \quad\mathbb E\int(G-f)^2d\mu\le(2rC_f)^2/n")
    says.at_most(
        [inside.high / bound, nearest(run, 2, 1024, 400)],
        1,
        where="four waves, and two that nearly cancel: 99 % ends, relative to the bound",
    )
    says.fails("points of the ball of radius 4r (lower end)", outside.low / bound)
    error = 0.05
    units = units_for_error(error, target.barron_constant)
    _, found = best_network(target, units, x, 5, generator=run.generator)
    _, few = best_network(target, 1, x, 5, generator=run.generator)
    hard, at = nearly_nothing(2)
    says = run.states(
        "S-37", rf"n=\lceil(2rC_f)^2/\epsilon\rceil\text{{ units err on average by at most }}\epsilon={error}"
    )
    says.at_most(
        [
            sum(found) / len(found),
            mean_interval(errors(run, hard, units_for_error(error, hard.barron_constant), 400, at)).high,
        ],
        error,
        where=f"so some draw does: the best of five draws of four waves errs by {min(found):.4f}",
    )
    says.fails("a single unit", sum(few) / len(few))
    sigmoids(run, target, x)


def sigmoids(run: Run, target: Spectrum, x: Tensor) -> None:
    """The same drawn units with steep sigmoids instead of steps."""
    rows = []
    with torch.no_grad():
        for sharpness in (10.0, 100.0, 1000.0):
            away, error, soft_error = 0.0, 0.0, 0.0
            for seed in range(4):
                soft, hard = (
                    barron_network(target, 256, sharpness=s, generator=seed).model(x)[:, 0]
                    for s in (sharpness, math.inf)
                )
                away += float((soft - hard).square().mean()) / 4
                error += float((hard - target(x)).square().mean()) / 4
                soft_error += float((soft - target(x)).square().mean()) / 4
            rows.append([sharpness, soft_error, error, away / error])
    run.states(
        ["L-101", "S-37"],
        r"\text{steep sigmoids for steps: }\|f_\kappa-f_\infty\|^2 \text{ at most a fifth for ten times the steepness}",
    ).at_most([b[3] for b in rows[1:]], [a[3] / 5 for a in rows[:-1]])
    run.table(
        "sigmoids",
        ["sharpness κ", "error", "error of steps", "squared distance of the two, relative"],
        rows,
        caption="Sigmoids and steps: mean squared errors of 256 units over four draws",
    )


def cut_off(run: Run) -> None:
    """A finite constant does not notice a cut-off; a jump needs ever heavier units."""
    j = torch.arange(1, 162, 2, dtype=torch.float64)

    def mass(amplitudes: Tensor, terms: int) -> float:
        waves = PlaneWaves(amplitudes[:terms], math.pi * j[:terms, None], torch.zeros(terms) - 1.5)
        return total_variation(waves)

    smooth, jump = torch.exp(-j / 4), 4 / (math.pi * j)
    says = run.states(
        ["L-101", "S-37"],
        r"C_f<\infty: \text{twice as many frequencies leave the mass of the steps, and so }"
        r"k\cdot\text{error, as it is}",
    )
    says.equal(mass(smooth, 80) / mass(smooth, 40), 1, 1e-6)
    says.fails("a square wave: infinite constant", mass(jump, 80) / mass(jump, 40))


def integrated_error(run: Run, trainings: int, points: int) -> None:
    """The mean integrated squared error of least squares on sigmoids, in closed form and measured."""
    target = waves_of(run, 2, 6.0)
    x, sample = (ball_points(n, 2, generator=run.generator) for n in (points, 100))
    units = barron_network(target, 6, sharpness=4.0, generator=run.generator).model[:-1]
    with torch.no_grad():
        seen, asked = units(sample), units(x)
    wanted, sigma, group = target(x), 1.0, 5

    def predictions(noise: Tensor, offset: bool = True) -> Tensor:
        """One training for each row of the noise."""
        fit = least_squares(seen, (target(sample) + noise).T, intercept=offset)
        made: Tensor = (asked @ fit.weight + fit.bias).T
        return made

    # the fit is linear in the labels: the mean network is that of the labels without noise
    with_one, answers = (torch.nn.functional.pad(z, (0, 1), value=1.0) for z in (seen, asked))
    hat = answers @ torch.linalg.pinv(with_one, rtol=1e-12)
    bias = float((hat @ target(sample) - wanted).square().mean())
    variance = sigma**2 * float(hat.square().sum(1).mean())

    def parts(stacked: Tensor) -> list[BiasVariance]:
        return [decompose_predictions(five, wanted) for five in torch.split(stacked, group)]

    noise = sigma * run.randn(trainings, 100)
    found, shifted = parts(predictions(noise)), parts(predictions(noise.abs()))
    says = run.states("S-35", r"\mathrm{MISE}=\mathbb E\int(G-f)^2=\int(\mathbb EG-f)^2+\int\operatorname{Var}G")
    says.mean(
        torch.stack([p.total for p in found]),
        bias + variance,
        against=(bias, variance, bias + (1 - 1 / group) * variance),
        confidence=0.999,
        where=f"6 sigmoids and an offset fitted to 100 noisy values, {trainings} times; right: both parts exactly",
    )
    says.fails("noise whose mean is not 0", torch.stack([p.total for p in shifted]))
    says = run.states("S-35", rf"\text{{from }}{group}\text{{ trainings: }}\mathbb E\,\hat V=(1-\tfrac1{group})V")
    says.mean(
        torch.stack([p.variance for p in found]),
        (1 - 1 / group) * variance,
        against=(variance, (1 + 1 / group) * variance),
        confidence=0.999,
    )
    tied = parts(predictions(noise[::group].repeat_interleave(group, 0)))
    says.fails("five times the same sample", torch.stack([p.variance for p in tied]))
    says = run.states("S-35", rf"\text{{from }}{group}\text{{ trainings: }}\mathbb E\,\hat B=B+\tfrac1{group}V")
    says.mean(
        torch.stack([p.bias for p in found]),
        bias + variance / group,
        against=(bias, bias + variance),
        confidence=0.999,
    )
    says.fails("five times the same sample", torch.stack([p.bias for p in tied]))
    lifted = noise[:3] + 2.0
    says = run.states(
        "S-35", r"\text{labels raised by }2\text{ raise }G=\textstyle\sum_ia_i\sigma(w_i^\top x+b_i)+a_0\text{ by }2"
    )
    says.equal(predictions(lifted) - predictions(noise[:3]), 2.0, 1e-6)
    says.fails("no offset $a_0$", predictions(lifted, offset=False) - predictions(noise[:3], offset=False))


def activations(run: Run) -> None:
    """Which activations are sigmoidal, and which satisfy Barron's assumption."""
    rows = [
        ("logistic", torch.sigmoid, True),
        ("(1 + tanh)/2", lambda z: (1 + torch.tanh(z)) / 2, True),
        ("Gaussian cdf", torch.special.ndtr, True),
        ("ramp (z)₊ − (z−1)₊", lambda z: torch.relu(z) - torch.relu(z - 1), True),
        ("tanh", torch.tanh, False),
        ("ReLU", torch.relu, False),
    ]
    found = [inspect_activation(function) for _, function, _ in rows]
    takes = [p.sigmoidal and p.increasing and p.lowest >= -1e-9 and p.highest <= 1 + 1e-9 for p in found]
    says = run.states(
        ["L-103", "S-27"],
        r"\text{bounded, increasing, limits 0 and 1: logistic, rescaled tanh, cdf, ramp; not tanh, not ReLU}",
    )
    says.equal([float(t) for t in takes], [float(r[2]) for r in rows])
    says.fails("the sine for the logistic function", float(inspect_activation(torch.sin).sigmoidal), promised=1.0)
    run.table(
        "activations",
        ["activation", "limit at −∞", "limit at +∞", "increasing", "taken by the theorem"],
        [
            [name, str(p.left_limit), str(p.right_limit), p.increasing, t]
            for (name, _, _), p, t in zip(rows, found, takes, strict=True)
        ],
        caption="What Barron's assumption says of each activation",
    )
    run.refutes("relu-satisfies-assumption-one", r"\sup_z\mathrm{ReLU}(z)\le1").at_most(found[-1].highest, 1)


def plot(axes: Any, gaussians: dict[int, Curve], waves: dict[int, Curve], wrong: Curve) -> None:
    for axis, family, title in (
        (axes[0, 0], gaussians, "Gaussians"),
        (axes[0, 1], waves, "four waves"),
    ):
        for color, (d, c) in zip(COLORS, family.items(), strict=False):
            middle = [m.estimate for m in c.means]
            spread = [[m.estimate - m.low for m in c.means], [m.high - m.estimate for m in c.means]]
            label = f"d = {d}, slope {c.slope.estimate:.2f}"
            axis.errorbar(WIDTHS, middle, spread, fmt="o-", ms=4, lw=1, color=color, label=label)
        axis.plot(WIDTHS, gaussians[1].bounds, "k-", label="promised $(2C)^2/k$")
        if family is gaussians:
            middle = [m.estimate for m in wrong.means]
            axis.plot(WIDTHS, middle, "s--", ms=3, color="0.5", label="d = 1, wrong density")
        axis.set(xscale="log", yscale="log", xlabel="hidden units $k$", title=f"{title}, $C_f=4$")
        axis.set_ylim(bottom=2e-5)
        axis.legend(fontsize=7, loc="lower left")
    axes[0, 0].set_ylabel("mean squared error")
