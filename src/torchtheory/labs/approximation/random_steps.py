"""Barron's proof with two steps a draw: the right signs, the right factor, and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from scipy import integrate, special
from torch import Tensor

from torchtheory.approximation.barron.random_steps import (
    MeanOfSteps,
    StepPairs,
    draw_step_pairs,
    sampled_exponentials,
    step_pair_network,
)
from torchtheory.approximation.barron.sampled_networks import ball_points
from torchtheory.approximation.barron.spectra import GaussianBump, PlaneWaves, Spectrum
from torchtheory.approximation.certificates import network_size
from torchtheory.labs.engine import Interval, Run, fit_slope, lab, mean_interval

COUNTS = (16, 64, 256, 1024)


@lab(
    "random-steps",
    room="approximation",
    covers=["A-104", "A-105", "A-106", "A-107"],
    title="Random steps, exponentials and half-spaces: n draws err by a constant over √n",
    errata=[
        "barron-steps-one-sign",
        "barron-steps-without-turn",
        "barron-measure-with-phase",
        "mean-steps-without-amplitude",
    ],
    full={"seeds": 100, "points": 1000, "draws": 20_000},
    least={"seeds": 4, "points": 20, "draws": 1_000},
)
def random_steps_lab(run: Run, seeds: int = 40, points: int = 40, draws: int = 4000) -> None:
    """Pairs of steps, and complex exponentials, at random frequencies of a function.

    Their mean is the function, point by point; n of them err by at most (2πC)²/n in the mean
    square, in 1, 5 and 20 dimensions and for even and odd functions, with slope -1. Steps become
    ReLUs or sigmoids at a price that is computed. The printed formulas fail: one sign for both
    steps makes every mean odd, a factor 2π is missing, and the measure has phases. Means of random
    half-spaces err by at most 1/(4n) at every point. Look at the figure: the odd pairs never get
    better.

    Args:
        seeds: random networks per size.
        points: random points of the ball at which errors are measured.
        draws: single terms for means, point by point.
    """
    unbiased(run, draws)
    curves = rates(run, seeds, points)
    printed(run, draws)
    realized(run, max(4, seeds // 4), points)
    half_spaces(run, draws)
    run.figure(
        "rates",
        lambda axes: plot(axes, curves),
        caption="Mean squared error over draws, times ($C_f$)⁻²: below 1/n (black) with the right "
        "weights; with one sign for both steps (dashed) a Gaussian is not met at all.",
        grid=(1, 2),
    )


def targets(run: Run) -> dict[str, Spectrum]:
    """Gaussians with constant 4 in three dimensions, and an odd sum of sines."""
    sines = PlaneWaves(
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([[3.0, 1.0], [-1.0, 5.0]], dtype=torch.float64),
        torch.full((2,), -math.pi / 2, dtype=torch.float64),
    )
    made: dict[str, Spectrum] = {
        f"Gaussian, d = {d}": GaussianBump(d, GaussianBump(d).barron_constant / 4) for d in (1, 5, 20)
    }
    made["two sines, d = 2"] = sines
    return made


def nearly_nothing() -> tuple[PlaneWaves, Tensor]:
    """Two slow waves that nearly cancel: every exponential has its largest size, and the mean gains nothing."""
    frequencies = torch.tensor([[0.4], [0.5]], dtype=torch.float64)
    phases = torch.full((2,), -math.pi / 2, dtype=torch.float64)
    return PlaneWaves(torch.tensor([1.0, -1.0]).double(), frequencies, phases), torch.full((1, 1), 0.9).double()


def one_sign(pairs: StepPairs) -> StepPairs:
    """The printed pairs: one sign for both steps, the size that the theorem has."""
    return StepPairs(pairs.directions, pairs.thresholds, pairs.ahead, -pairs.ahead, pairs.at_origin)


def scores(values: Tensor, wanted: Tensor) -> Tensor:
    """Distance of the means over the columns from the wanted, in standard errors."""
    return (values.mean(1) - wanted).abs() / (values.std(1) / math.sqrt(values.shape[1]))


def unbiased(run: Run, draws: int) -> None:
    """The mean of one draw is the function, at points of the ball."""
    waves: list[Tensor] = []
    functions = {"Gaussian": GaussianBump(2, 0.6, center=[0.3, -0.2]), "sines": targets(run)["two sines, d = 2"]}
    for name, f in functions.items():
        x = ball_points(8, 2, generator=run.generator)
        pairs = draw_step_pairs(f, 4 * draws, generator=run.generator)
        wanted = f(x) - f.at_origin()
        # the share of the function in every draw: its mean is 1
        share = wanted / wanted.square().sum()
        says = run.states(
            "A-104",
            rf"g(x)-g(0)=2\pi C_g\,\mathbb E\,\Gamma(x),\ \text{{ {name}: }}"
            r"\mathbb E\langle2\pi C_g\Gamma,g-g(0)\rangle/\|g-g(0)\|^2 \text{ at 8 points}",
        )
        says.mean(share @ pairs(x), 1, against=(1 / (2 * math.pi), 0.5), where="1/2π: the turn left out")
        if name == "Gaussian":
            says.fails("one sign for both steps, as printed", share @ one_sign(pairs)(x))
        terms = exponential_terms(run, f, x, draws)
        waves += [scores(terms.real, f(x)), scores(terms.imag, torch.zeros_like(wanted))]
    says = run.states(
        "A-106",
        r"g(x)-g(0)=C_g\,\mathbb E\,e^{i\vartheta}(e^{2\pi i\langle x,\xi\rangle}-1)/\|\xi\|: "
        r"\text{standard errors away, real and imaginary}",
    )
    says.at_most(torch.cat(waves), -float(special.ndtri(0.005 / 32)))
    says.fails("the function at the opposite points", opposite(run, draws))


def exponential_terms(run: Run, f: Spectrum, x: Tensor, draws: int) -> Tensor:
    """What each single exponential would estimate: `[points, draws]`."""
    sampled = sampled_exponentials(f, draws, run.generator)
    change = torch.exp(1j * (x @ sampled.frequencies.T)) - 1
    return f.at_origin() + draws * sampled.coefficients * change


def opposite(run: Run, draws: int) -> Tensor:
    f = GaussianBump(2, 0.6, center=[0.3, -0.2])
    x = ball_points(8, 2, generator=run.generator)
    return scores(exponential_terms(run, f, x, draws).real, f(-x))


Curves = dict[str, list[Interval]]


def rates(run: Run, seeds: int, points: int) -> dict[str, Curves]:
    """Mean squared errors over the ball, relative to the squared constant."""
    pairs: Curves = {}
    waves: Curves = {}
    odd: Curves = {}
    slopes: dict[str, list[Interval]] = {"pairs": [], "waves": [], "odd": []}

    def errors(f: Spectrum, x: Tensor, terms: Callable[[int], Tensor]) -> list[list[float]]:
        # terms are independent, so the draws of all seeds are made together
        means = (terms(seeds * n).reshape(len(x), seeds, n).mean(2) for n in COUNTS)
        return [((m - f(x)[:, None]).abs().square().mean(0) / f.barron_constant**2).tolist() for m in means]

    confidence = 1 - 0.01 / 8
    for name, f in targets(run).items():
        x = ball_points(points, f.dimension, generator=run.generator)

        def of_pairs(n: int, f: Spectrum = f, x: Tensor = x) -> Tensor:
            return draw_step_pairs(f, n, generator=run.generator)(x) + f.at_origin()

        def of_waves(n: int, f: Spectrum = f, x: Tensor = x) -> Tensor:
            return exponential_terms(run, f, x, n)

        def of_odd(n: int, f: Spectrum = f, x: Tensor = x) -> Tensor:
            return one_sign(draw_step_pairs(f, n, generator=run.generator))(x) + f.at_origin()

        for kind, store, make in (("pairs", pairs, of_pairs), ("waves", waves, of_waves), ("odd", odd, of_odd)):
            table = errors(f, x, make)
            store[name] = [mean_interval(row, 1 - 0.01 / len(COUNTS)) for row in table]
            one = [fit_slope(COUNTS, row).estimate for row in zip(*table, strict=True)]
            slopes[kind].append(mean_interval(one, confidence))
    claims(run, pairs, waves, odd, slopes)
    far = far_away(run, seeds, points)
    says = run.states(
        "A-106",
        r"\mathbb E\|g-g_n\|^2_{L^2(\mu)}\cdot n/(2\pi C_g)^2\le1\text{ for }n\text{ exponentials, }\mu\text{ on }B_1",
    )
    hard, at = nearly_nothing()
    met = (exponential_terms(run, hard, at, 16 * 2000).reshape(2000, 16).mean(1) - hard(at)).abs().square()
    near = 16 * mean_interval(met).high / hard.barron_constant**2
    says.at_most(
        [*(n * i.high for c in waves.values() for n, i in zip(COUNTS, c, strict=True)), near],
        1,
        where="99 % ends; the last function is two slow waves that nearly cancel, at a point of length 0.9",
    )
    says.fails("a measure on points of length 8", far)
    return {"pairs of steps": pairs, "exponentials": waves, "odd": odd}


def far_away(run: Run, seeds: int, points: int) -> float:
    f = GaussianBump(3, 2.0)
    x = ball_points(points, 3, generator=run.generator)
    x = 8 * x / x.norm(dim=1, keepdim=True)
    errors = [
        float((sampled_exponentials(f, 64, run.generator)(x) - f(x)).abs().square().mean()) for _ in range(4 * seeds)
    ]
    return 64 * mean_interval(errors).low / f.barron_constant**2


def claims(run: Run, pairs: Curves, waves: Curves, odd: Curves, slopes: dict[str, list[Interval]]) -> None:
    even = [c for name, c in odd.items() if name.startswith("Gaussian")]
    says = run.states(
        "A-104",
        r"\mathbb E\|g-g_n\|^2_{L^2(\mu)}\cdot n/(2\pi C_g)^2\le1\text{ for }n\text{ pairs of "
        r"steps, upper ends of the intervals}",
    )
    says.at_most([n * i.high for c in pairs.values() for n, i in zip(COUNTS, c, strict=True)], 1)
    says.fails("one sign for both steps, Gaussians, n = 1024", [COUNTS[-1] * c[-1].low for c in even])
    for name, kept, bad in zip(pairs, slopes["pairs"], slopes["odd"], strict=True):
        says = run.states("A-104", rf"\text{{{name}: squared error}}\sim n^{{-1}}")
        says.slope(kept, -1, against=(-0.5, -2))
        if name == "Gaussian, d = 5":
            says.fails("one sign for both steps", bad)
    for name, kept in zip(waves, slopes["waves"], strict=True):
        run.states("A-106", rf"\text{{{name}, exponentials: squared error}}\sim n^{{-1}}").slope(
            kept, -1, against=(-0.5, -2)
        )
    run.table(
        "rates",
        ["target", "n", "pairs of steps", "exponentials", "one sign (printed)", "promised"],
        [
            [
                name,
                n,
                pairs[name][j].estimate,
                waves[name][j].estimate,
                odd[name][j].estimate,
                1 / n,
            ]
            for name in pairs
            for j, n in enumerate(COUNTS)
        ],
        caption="Mean squared error on the unit ball over (2πC_g)²",
    )


def printed(run: Run, draws: int) -> None:
    """Three printed statements, each with a function that refutes it."""
    bell = GaussianBump(2, 0.5)
    x = ball_points(20, 2, generator=run.generator)
    pairs = one_sign(draw_step_pairs(bell, draws, generator=run.generator))
    run.refutes(
        "barron-steps-one-sign", r"\mathbb E[\Gamma(x)+\Gamma(-x)]\,C_g=g(x)+g(-x)-2g(0)\text{ for a Gaussian}"
    ).equal((pairs(x) + pairs(-x)).mean(1), bell(x) + bell(-x) - 2 * bell.at_origin(), 1e-9)
    # a wide bump whose steepest place is the origin
    slope = GaussianBump(1, 3.0, center=[3.0])
    ends = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    run.refutes("barron-steps-without-turn", r"|g(x)-g(0)|=|C_g\mathbb E\,\Gamma(x)|\le C_g").at_most(
        (slope(ends) - slope.at_origin()).abs(), slope.barron_constant / (2 * math.pi)
    )
    # e^{-(x-c)²/2} in cycles: |g^| = sqrt(2π) exp(-2π²ξ²), phase -2πξc
    center = 1.0

    def weight(xi: float) -> float:
        return xi * math.sqrt(2 * math.pi) * math.exp(-2 * (math.pi * xi) ** 2)

    total = 2 * integrate.quad(lambda t: weight(t) * math.cos(2 * math.pi * t * center), 0, 4)[0]
    constant = GaussianBump(1).barron_constant / (2 * math.pi)
    run.refutes(
        "barron-measure-with-phase", r"\int d\mu_g=\tfrac1{C_g}\int\|\xi\|\hat g(\xi)d\xi=1\text{ for }g=e^{-(x-1)^2/2}"
    ).equal(total / constant, 1, 1e-9)


def realized(run: Run, seeds: int, points: int) -> None:
    """Steps replaced by ReLUs and by sigmoids."""
    f = targets(run)["Gaussian, d = 5"]
    x = ball_points(points, 5, generator=run.generator)
    widths = (0.1, 0.03, 0.01, 0.003, 0.001)
    rows, counted = [], []
    for delta in widths:
        relu, soft, squares = [], [], []
        for _ in range(seeds):
            pairs = draw_step_pairs(f, 200, generator=run.generator)
            steps = step_pair_network(pairs)(x)
            with_relu = step_pair_network(pairs, "relu", width=delta)
            with_sigmoid = step_pair_network(pairs, "sigmoid", width=delta)
            relu.append(float((with_relu(x) - steps).abs().mean()))
            soft.append(float((with_sigmoid(x) - steps).abs().mean()))
            squares.append(float((with_relu(x) - steps).square().mean().sqrt()))
        counted += [network_size(with_relu).units, network_size(with_sigmoid).units]
        a, b = mean_interval(relu, 1 - 0.01 / 10), mean_interval(soft, 1 - 0.01 / 10)
        c = f.barron_constant
        up = math.log1p(math.exp(-1 / math.sqrt(delta)))  # softplus(-1/√δ)
        sigmoid_bound = c * delta * (1 / math.sqrt(delta) + 3 * up)
        rows.append([delta, a.high, c * delta, b.high, sigmoid_bound, sum(squares) / seeds])
    says = run.states(
        "A-105",
        r"\text{ReLUs: }\mathbb E\|\Phi_\delta-\Phi\|_{L^1(\mu)}\le C_f\delta"
        r"\text{; sigmoids}\le C_f(\sqrt\delta+3\delta\ln(1+e^{-1/\sqrt\delta}))",
    )
    says.at_most(
        [r[1] for r in rows] + [r[3] for r in rows],
        [r[2] for r in rows] + [r[4] for r in rows],
        where="u is uniform, so a step is between its ends with a chance of at most δ",
    )
    says.fails("the slope of the widest ramps for all δ", [rows[0][1]], promised=[rows[-1][2]])
    run.states("A-105", r"\|\Phi_\delta-\Phi\|_{L^2(\mu)}\to0: \text{less with every third of }\delta").below(
        [r[5] for r in rows[1:]], [r[5] for r in rows[:-1]]
    )
    run.states("A-105", r"n\text{ pairs: }4n\text{ ReLUs, }2n\text{ sigmoids}").equal(counted, [800, 400] * len(widths))
    steep = [1e2, 1e4, 1e6]
    origin = [float(torch.sigmoid(torch.tensor(-math.sqrt(a)).double())) for a in steep]
    says = run.states("A-105", r"\varrho(at-\sqrt a)\to1_{(0,\infty)}(t)\text{ also at }t=0\text{: at }a=10^6")
    says.equal(origin[-1], within=1e-12)
    says.fails("without the shift √a", float(torch.sigmoid(torch.zeros(1))))
    run.table(
        "realized",
        ["δ", "ReLU, L¹", "promised", "sigmoid, L¹", "promised", "ReLU, L²"],
        rows,
        caption="Change of 200 pairs of steps when the steps become ramps or sigmoids (99 % ends)",
    )


def half_planes(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Directions uniform on the circle, thresholds uniform on [-1, 1]."""
    angle = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    inner = torch.stack([angle.cos(), angle.sin()], 1)
    thresholds = 2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1
    return inner, thresholds, torch.ones(n, dtype=torch.float64)


def ramps(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """P(x > T) = x on [0, 1]."""
    thresholds = torch.rand(n, generator=generator, dtype=torch.float64)
    return torch.ones(n, 1, dtype=torch.float64), thresholds, torch.ones_like(thresholds)


def signed(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Amplitudes ±3: 3(min(x, 1/2) - max(x - 1/2, 0)) on [0, 1]."""
    inner, thresholds, ones = ramps(n, generator)
    return inner, thresholds, 3 * torch.where(thresholds < 0.5, ones, -ones)


def half_spaces(run: Run, draws: int) -> None:
    """Mean squared errors of subsampled networks, point by point."""
    units, repeats = 25, draws // 20
    x = torch.linspace(0.05, 0.95, 7, dtype=torch.float64)[:, None]
    circle = ball_points(7, 2, generator=run.generator)
    cases: list[tuple[str, MeanOfSteps, Tensor, Tensor]] = [
        ("ramp", MeanOfSteps(ramps), x, x[:, 0]),
        # a half-plane through the unit disc holds a point of it with chance 1/2 + E⟨e, x⟩/2 = 1/2
        ("half-planes", MeanOfSteps(half_planes), circle, torch.full((7,), 0.5).double()),
        (
            "signed",
            MeanOfSteps(signed, -3.0, 3.0),
            x,
            3 * (x[:, 0].clamp(max=0.5) - (x[:, 0] - 0.5).clamp(min=0)),
        ),
    ]
    bounds, lows, rows = [], [], []
    ratios: list[Tensor] = []
    for name, f, at, exact in cases:
        nets = [f.subsample(units, run.generator) for _ in range(repeats)]
        values = torch.stack([net(at)[:, 0] for net in nets])
        squares = (values - exact).square()
        found = [mean_interval(s, 1 - 0.01 / 21) for s in squares.T]
        bounds += [f.error_bound(units)] * len(at)
        lows += [i.low for i in found]
        rows += [[name, float(p), i.estimate, f.error_bound(units)] for p, i in zip(exact, found, strict=True)]
        if name != "signed":
            ratios.append(squares * units / (exact * (1 - exact)))
    # one step, n times: no averaging at all
    same = torch.stack([MeanOfSteps(ramps).subsample(1, run.generator)(x)[:, 0] for _ in range(repeats)])
    alone = [mean_interval(s, 1 - 0.01 / 21).low for s in (same - x[:, 0]).square().T]
    says = run.states(
        "A-107",
        r"\mathbb E\big(f(x)-\tfrac1n\textstyle\sum_i1[\langle\Xi_i,x\rangle>\tilde\Xi_i]\big)^2"
        r"\le\tfrac1{4n}\text{ at every }x\text{ (and }a^2/n\text{ with amplitudes up to }a)",
    )
    says.at_most(lows, bounds, where="lower ends of 21 intervals that hold together at 99 %: refuted only by data")
    says.fails("the same step n times instead of independent ones", alone, promised=[1 / (4 * units)] * len(alone))
    says = run.states("A-107", r"\text{without amplitudes it is }f(x)(1-f(x))/n: \text{ratio}")
    # with the largest value 1/4 for f(1 - f)
    quarter = float((0.25 / (x * (1 - x))).mean() + 1) / 2
    says.mean(torch.cat([r.mean(1) for r in ratios]), 1, against=(0.5, quarter))
    says.fails("the same step n times", ((same - x[:, 0]).square() * units / (x * (1 - x))[:, 0]).mean(1))
    run.refutes(
        "mean-steps-without-amplitude", r"\text{the sum of two means of steps is a mean of steps, so}\le1"
    ).at_most(2 * MeanOfSteps(ramps).subsample(units, run.generator)(x + 1).max(), 1)
    run.table(
        "half-spaces",
        ["function", "f(x)", "mean squared error", "promised"],
        rows,
        caption=f"Means of {units} random steps, over {repeats} draws",
    )


def plot(axes: Any, curves: dict[str, Curves]) -> None:
    for axis, kind in zip(axes[0], ("pairs of steps", "exponentials"), strict=True):
        for j, (name, found) in enumerate(curves[kind].items()):
            middle = [i.estimate for i in found]
            spread = [[i.estimate - i.low for i in found], [i.high - i.estimate for i in found]]
            axis.errorbar(COUNTS, middle, spread, fmt="o-", ms=4, lw=1, color=f"C{j}", label=name)
            if kind == "pairs of steps" and name.startswith("Gaussian"):
                odd = [i.estimate for i in curves["odd"][name]]
                axis.plot(COUNTS, odd, "s--", ms=3, lw=1, color=f"C{j}")
        axis.plot(COUNTS, [1 / n for n in COUNTS], "k-", label="promised 1/n")
        axis.set(xscale="log", yscale="log", xlabel="draws $n$", title=kind)
        axis.set_ylim(3e-5, 0.2)
    axes[0, 0].set_ylabel("squared error / $C_f^2$")
    axes[0, 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
