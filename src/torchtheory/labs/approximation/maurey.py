"""Maurey's lemma: a few sampled terms stand for a large mixture."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.barron.maurey import compress_network, maurey_average, maurey_error
from torchtheory.approximation.barron.sampled_networks import inverse_sine_integral
from torchtheory.labs.engine import Interval, Run, lab, mean_interval
from torchtheory.nets.feedforward import mlp

TERMS = (4, 8, 16, 32, 64, 128, 256)


@lab(
    "maurey-sampling",
    room="approximation",
    covers=["A-141", "L-098", "L-099", "L-100"],
    title="k random terms of a mixture err by exactly (E‖V‖² − ‖X‖²)/k, whatever the dimension",
    errata=["sine-second-problem"],
    full={"draws": 5000, "width": 4000},
    least={"draws": 30, "width": 50},
)
def maurey_lab(run: Run, draws: int = 300, width: int = 600) -> None:
    """Mixtures in a Hilbert space, a wide network, and the sine as networks of sampled steps.

    The exact error of an average of k sampled terms is compared with the mean over many draws,
    first for points in a space of 50 dimensions, then for a wide network that is cut down to k of
    its units, then for sin(2πx), whose error must be 7.5/k. The best of the draws is never worse
    than the mean. Terms drawn uniformly instead of with their weights miss the target by a bias
    that no k removes. Look at the figure: three lines of slope -1, and one that stays.

    Args:
        draws: random choices of terms.
        width: units of the network that is cut down.
    """
    weights = run.randn(80)
    # signs that agree with the weights' on average: ‖X‖² is half of E‖V‖², not a negligible part
    points = run.randn(80, 50) + weights.sign()[:, None]
    exact, measured = hilbert(run, points, weights, draws)
    compression(run, width, draws)
    sine_errors = sine(run, draws)
    wrong = [mean_square(uniform_average(run, points, weights, k, draws) - weights @ points).mean() for k in TERMS]
    run.curves(
        "error",
        TERMS,
        {"50 dimensions": measured, r"$\sin 2\pi x$": sine_errors, "terms drawn uniformly": [float(v) for v in wrong]},
        {"50 dimensions": exact, r"$\sin 2\pi x$": [7.5 / k for k in TERMS]},
        axes=("sampled terms $k$", "mean squared error"),
        log="xy",
        caption="Mean squared error against the number of sampled terms: dots are means over "
        "draws, dashed lines the exact value.",
    )


def mean_square(difference: Tensor) -> Tensor:
    return difference.square().sum(1)


def uniform_average(run: Run, points: Tensor, weights: Tensor, k: int, draws: int) -> Tensor:
    """Terms drawn uniformly but weighted as if drawn with probability |a_j|/‖a‖₁."""
    chosen = torch.randint(len(points), (draws, k), generator=run.generator)
    scaled = weights.abs().sum() * torch.sign(weights)[:, None] * points
    return scaled[chosen].mean(1)


def hilbert(run: Run, points: Tensor, weights: Tensor, draws: int) -> tuple[list[float], list[float]]:
    target = weights @ points
    exact, found, best, worst_bound = [], [], [], []
    ratios, wrong_ratios = [], []
    for k in run.track(TERMS):
        error = maurey_error(points, weights, k)
        squares = mean_square(maurey_average(points, weights, k, draws, run.generator) - target)
        exact.append(error.expected)
        found.append(float(squares.mean()))
        best.append(float(squares.min()))
        worst_bound.append(error.worst)
        ratios.append(squares / error.expected)
        wrong = uniform_average(run, points, weights, k, draws) - target
        wrong_ratios.append(mean_square(wrong) / error.expected)
    says = run.states(
        ["A-141", "L-098", "L-099"],
        r"\mathbb E\|X-\tfrac1k\sum V_i\|^2=(\mathbb E\|V\|^2-\|X\|^2)/k: \text{ratio of the two}",
    )
    spread = maurey_error(points, weights, 1)
    uncentered = float((spread.expected + target.square().sum()) / spread.expected)
    says.mean(torch.cat(ratios), 1, against=(uncentered, 0.5), where=f"without -‖X‖² it would be {uncentered:.2f}")
    says.fails("terms drawn uniformly: biased", torch.cat(wrong_ratios))
    says = run.states("L-098", r"\text{mean over draws}\le\sup\|V\|^2/k")
    says.at_most(found, worst_bound)
    says.fails(
        "the same term k times: the draws are not independent",
        [float(mean_square(repeated(run, points, weights, k, draws) - target).mean()) for k in TERMS],
    )
    says = run.states("L-098", r"\text{some draw is at least as good as the mean promises}")
    says.at_most(best, exact)
    says.fails(
        "the average of one term only, for every k",
        [float(mean_square(maurey_average(points, weights, 1, draws, 1) - target).min()) for _ in TERMS],
    )
    says = run.states(["L-098", "L-099"], r"\text{squared error}\sim k^{-1}")
    says.slope(TERMS, found, -1, against=(-0.5, -2))
    # with the largest numbers of terms, where the bias is all that is left
    biased = [float(mean_square(uniform_average(run, points, weights, 64 * k, 30) - target).mean()) for k in TERMS]
    says.fails("terms drawn uniformly, 64 times as many", TERMS, biased)
    return exact, found


def repeated(run: Run, points: Tensor, weights: Tensor, k: int, draws: int) -> Tensor:
    """The same single term k times: dependent draws."""
    return maurey_average(points, weights, 1, draws, run.generator)


def compression(run: Run, width: int, draws: int) -> None:
    """A wide network cut down to k units."""
    wide = mlp([3, width, 1], "tanh", generator=run.generator)
    x = run.randn(200, 3)
    before = [p.detach().clone() for p in wide.parameters()]
    after = [p.detach() for p in wide.parameters()]
    rows, ratios = [], []
    with torch.no_grad():
        target = wide(x)[:, 0]
        for k in (10, 40, 160):
            errors, units = [], 0.0
            repeats = max(10, draws // 10)
            for _ in range(repeats):
                slim = compress_network(wide, x, k, generator=run.generator)
                errors.append(float((slim.model(x)[:, 0] - target).square().mean()))
                units += slim.units / repeats
                ratios.append(errors[-1] / slim.error.worst)
            mean = mean_interval(errors)
            rows.append([k, units, mean.estimate, mean.high, slim.error.expected, slim.error.worst])
    run.states(
        "L-099",
        r"\mathbb E\|g-\tfrac1k\sum\tilde g_i\|^2_{L^2(P)}\le\|\mu\|_1^2\sup\|g(\cdot,w)\|^2/k"
        r"\text{: mean ratio over draws and }k",
    ).at_most(mean_interval(ratios), 1)
    says = run.states(
        "L-099", r"\text{expected error known before drawing: mean over draws and all }k\text{, relative}"
    )
    says.mean(relative(rows, ratios), 1, against=(0.5, 2))
    says.fails(
        "the signs of the outer weights forgotten, 16 terms a unit: the bias stays",
        unsigned(run, wide, x, target, draws),
    )
    run.states("L-099", r"\text{the given network is as before}").equal(
        max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True))
    )
    run.table(
        "compression",
        ["k", "different units", "mean squared change", "its 99 % end", "expected", "bound"],
        rows,
        caption=f"A network of {width} tanh units cut down to k sampled ones",
    )


def relative(rows: list[list[float]], ratios: list[float]) -> Interval:
    """Errors over their expectation, from errors over the bound."""
    per = len(ratios) // len(rows)
    return mean_interval([r * rows[i // per][5] / rows[i // per][4] for i, r in enumerate(ratios)])


def unsigned(run: Run, wide: nn.Sequential, x: Tensor, target: Tensor, draws: int) -> Interval:
    last = wide[2]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        values = wide[1](wide[0](x)).T / len(x) ** 0.5
        weights = last.weight[0]
        # with few terms the spread of the draws hides a bias that is the same for every k
        terms, repeats = 16 * len(weights), min(50, max(10, draws // 10))
        error = maurey_error(values, weights, terms).expected
        found = maurey_average(values, weights.abs(), terms, repeats, run.generator)
        wanted = (target - last.bias) / len(x) ** 0.5
        return mean_interval(mean_square(found - wanted) / error)


def sine_errors(run: Run, k: int, draws: int, *, uniform: bool = False, mass: float = 4.0) -> Tensor:
    """Squared distances on [0, 1], one per draw, of sin 2πx and k steps at sampled places."""
    u = run.rand(draws, k)
    # density (π/2)|cos 2πb|: the angle 2πb + π/2 has the density |sin|/4 on one turn
    b = u if uniform else (inverse_sine_integral(1 + 4 * u) - math.pi / 2) / (2 * math.pi)
    places = b.sort(1).values
    signs = torch.sign(torch.cos(2 * math.pi * places))
    ends = torch.nn.functional.pad(torch.nn.functional.pad(places, (1, 0)), (0, 1), value=1.0)
    heights = mass / k * torch.nn.functional.pad(signs.cumsum(1), (1, 0))
    # between two places the sum is constant, so ∫(h - sin 2πx)² is elementary
    crossed = -torch.cos(2 * math.pi * ends).diff(dim=1) / (2 * math.pi)
    return (heights.square() * ends.diff(dim=1) - 2 * heights * crossed).sum(1) + 0.5


def sine(run: Run, draws: int) -> list[float]:
    """sin 2πx on [0, 1] by steps at sampled places."""
    means, ratios = [], []
    for k in TERMS:
        errors = sine_errors(run, k, 8 * draws)
        means.append(float(errors.mean()))
        ratios.append(k * errors)
    # signs at uniform places add up to a triangle wave, which is not far from the sine: with many
    # terms the difference is more than the spread
    wrong = 4096 * sine_errors(run, 4096, 20, uniform=True)
    says = run.states("L-100", r"\sin2\pi x: \quad k\,\mathbb E\|g-g_k\|^2=\|\mu\|_1^2/2-\tfrac12=7.5")
    says.mean(torch.cat(ratios), 7.5, against=8, where="without the part -‖sin 2πx‖² = -1/2 it would be 8")
    says.fails("4096 places drawn uniformly on [0, 1]", wrong)
    says = run.states(["L-100", "L-099"], r"\text{mean squared error}\le\|\mu\|_1^2/k=16/k")
    says.at_most(means, [16 / k for k in TERMS])
    says.fails(
        "total mass 4 left out: the units have weight 1/k",
        [float(sine_errors(run, k, 10, mass=1.0).mean()) for k in (64, 128, 256)],
        promised=[16 / k for k in (64, 128, 256)],
    )
    b = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    mass = (2 * math.pi * torch.cos(2 * math.pi * b)).abs().mean()
    quarter = (2 * math.pi * torch.cos(2 * math.pi * b) * (b <= 0.25)).mean()
    says = run.states("L-100", r"\int_0^1|2\pi\cos2\pi b|\,db=4")
    says.equal(mass, 4, 1e-5)
    says.fails("without the modulus", (2 * math.pi * torch.cos(2 * math.pi * b)).mean())
    run.refutes(
        "sine-second-problem",
        r"\Big|\int_0^11[x\ge b]\,2\pi\cos2\pi b\,db-1\Big|>0\text{ at every }x\text{: at }"
        r"x=\tfrac14\text{, to six digits}",
    ).above(abs(float(quarter) - 1), 1e-6, where="the midpoint rule with 4000 cells has six digits here")
    return means
