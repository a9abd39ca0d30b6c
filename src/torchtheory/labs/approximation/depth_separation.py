"""Eldan and Shamir's theorem: what it says, what is unknown, and an illustration."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.depth.ball_measure import draw_band_limited
from torchtheory.approximation.depth.band_limited import tubes_needed
from torchtheory.approximation.depth.comparison import compare_depth
from torchtheory.approximation.depth.radial import RadialShells
from torchtheory.labs.engine import Run, fit_slope, lab

DIMENSIONS = (10, 20, 50, 100, 200, 500, 1000)
CONSTANTS = (1.0, 0.1, 0.01)
REACH = 2.0


@lab(
    "depth-separation-cards",
    room="approximation",
    covers=["A-85", "L-109"],
    title="Two hidden layers of polynomial width against one of exponential width: the statement",
    full={"steps": 3000, "seeds": 5, "parameters": 3000, "dimension": 10},
    least={"dimension": 2, "seeds": 2, "steps": 150, "parameters": 80},
)
def depth_separation_cards(
    run: Run, steps: int = 200, seeds: int = 2, parameters: int = 400, dimension: int = 6
) -> None:
    """The theorem's two widths side by side, and its objects where they can be computed.

    The constants are not known, so the theorem itself cannot be tested; what can be is that a
    polynomial width falls behind an exponential one for every constant, where that happens, and
    that the two-hidden-layer side has a size polynomial in the dimension. Under the density of the
    proof, three shells of alternating signs are drawn by the explicit network; networks with one
    hidden layer are trained on the same points. That last part is an illustration: training finds
    no best network. Look at the table of widths.

    Args:
        steps: of training.
        seeds: trained networks per architecture.
        parameters: of a trained network, about.
        dimension: of the inputs of the trained networks.
    """
    widths(run)
    explicit(run)
    illustration(run, steps, seeds, parameters, dimension)


def crossing(exponent: float, rate: float) -> float:
    """The largest n with n^p = e^{cn}, by bisection on p ln n = cn beyond its maximum."""
    low = exponent / rate
    if exponent * math.log(low) <= rate * low:
        return low
    high = 2 * low
    while exponent * math.log(high) > rate * high:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if exponent * math.log(middle) > rate * middle else (low, middle)
    return high


def widths(run: Run) -> None:
    """n^{19/4} and d^5 against e^{cn}, in logarithms."""
    for key, exponent, name in (("L-109", 19 / 4, "n^{19/4}"), ("A-85", 5.0, "d^5")):
        places = [crossing(exponent, c) for c in CONSTANTS]
        after = [1.5 * n for n in places]
        before = [0.5 * n for n in places]
        says = run.states(
            key,
            rf"{name}<e^{{cn}}\text{{ beyond a crossing, for }}c=1,0.1,0.01\text{{ (logarithms, half as far again)}}",
        )
        says.below([exponent * math.log(n) for n in after], [c * n for c, n in zip(CONSTANTS, after, strict=True)])
        says.fails(
            "half of the way to the crossing",
            [exponent * math.log(n) for n in before],
            promised=[c * n for c, n in zip(CONSTANTS, before, strict=True)],
        )
    run.table(
        "widths",
        ["n", "log₁₀ $n^{19/4}$", "log₁₀ n⁵", *(f"log₁₀ $e^{{cn}}$, c = {c:g}" for c in CONSTANTS)],
        [[n, 4.75 * math.log10(n), 5 * math.log10(n)] + [c * n / math.log(10) for c in CONSTANTS] for n in DIMENSIONS],
        caption="Width that two hidden layers need (up to a constant) and that one must exceed",
    )
    run.table(
        "statement",
        ["", "Theorem 33 (lectures)", "Theorem 1.24 (monograph)"],
        [
            ["measure", "density φ² of the ball of volume 1", "some probability on $R^d$"],
            ["target", "|g| ≤ 2, support ‖x‖ ≤ C√n", "a three-layer network, |Φ| ≤ 2"],
            ["its width", "$Cc_σn^{19/4}$, $c_σ$ of the activation", "C d⁵, weights ≤ $Cd^C$"],
            ["one hidden layer", "width m ≤ $ce^{cn}$", "width n ≤ $ce^{cd}$"],
            ["then", "E(f − g)² ≥ c", "L²(μ) distance ≥ c"],
            ["constants", "C, c universal, not given", "C, c not given"],
        ],
        caption="The theorem of Eldan and Shamir as the two sources state it; the c in the "
        "lectures' width $Ccn^{19/4}$ is the constant $c_σ$ of the activation, not the c of the bound",
    )
    n = torch.logspace(0.5, 4, 200)
    run.curves(
        "widths",
        n,
        {f"one layer, $e^{{cn}}$, c = {c:g}": c * n / math.log(10) for c in CONSTANTS},
        {"two layers, $n^{19/4}$": 4.75 * n.log10(), "two layers, $d^5$": 5 * n.log10()},
        axes=("dimension", "$\\log_{10}$ of the width"),
        log="x",
        ylim=(0, 30),
        beside=True,
        caption="Both widths by dimension: whatever the constant c, the exponential wins in the "
        f"end, for c = {CONSTANTS[-1]:g} beyond dimension {crossing(4.75, CONSTANTS[-1]):.0f}.",
    )


def shells(dimension: int) -> RadialShells:
    """Three shells of alternating signs up to the length 2."""
    return RadialShells(
        dimension,
        torch.linspace(0, REACH, 4, dtype=torch.float64),
        torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64),
    )


def pieces_for(dimension: int) -> int:
    """Pieces a coordinate that keep n(R/K)² = 1/50."""
    return math.ceil(REACH * math.sqrt(50 * dimension))


def explicit(run: Run) -> None:
    """The size of the network with two hidden layers, at an error that stays the same."""
    dims = (2, 4, 8, 16, 32)
    units, errors = [], []
    for n in dims:
        g = shells(n)
        net = g.network(pieces_for(n), 0.01)
        units.append(network_size(net).units)
        x = points(run, 1000, n)
        with torch.no_grad():
            errors.append(float((net(x)[:, 0] - g(x)).square().mean()))
    growth = fit_slope(dims, units)
    says = run.states(
        ["A-85", "L-109"], r"\text{two hidden layers draw three shells with width}\lesssim n^{3/2}\le Cn^{19/4}"
    )
    says.at_most(growth.estimate, 1.5, 0.02)
    says.fails(
        "units of one hidden layer whose tubes cover half of a ball of frequencies",
        fit_slope(dims, [tubes_needed(0.5, n, 3.0) for n in dims]).estimate,
    )
    coarse = []
    for n in dims:
        g = shells(n)
        x = points(run, 1000, n)
        with torch.no_grad():
            coarse.append(float((g.network(6, 0.01)(x)[:, 0] - g(x)).square().mean()))
    says = run.states(
        ["A-85", "L-109"],
        r"\text{under }\varphi^2\text{, within }\|x\|\le2: \quad\mathbb E(\Phi-g)^2\le0.2\text{ in every dimension}",
    )
    says.at_most(errors, 0.2, where="n = 2, 4, 8, 16, 32; values jump by 2, so 0.2 means one point in twenty")
    says.fails("six pieces a coordinate in every dimension", coarse)
    run.table(
        "explicit",
        ["n", "hidden units", "mean squared error", "with six pieces a coordinate"],
        [list(row) for row in zip(dims, units, errors, coarse, strict=True)],
        caption="Three shells by a network with two hidden layers, points drawn from φ²",
    )


def points(run: Run, count: int, dimension: int) -> Tensor:
    """Points of the density within the length 2, where the shells are."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        x = draw_band_limited(4 * count, dimension, run.generator)
        found.append(x[x.norm(dim=1) <= REACH])
    return torch.cat(found)[:count]


def illustration(run: Run, steps: int, seeds: int, parameters: int, dimension: int) -> None:
    """Trained networks with one hidden layer on the same shells."""
    g = shells(dimension)
    train, test = points(run, 400, dimension), points(run, 1000, dimension)

    def ridge(x: Tensor) -> Tensor:
        return torch.sign(torch.sin(3 * x[:, 0]))

    found, easy = (
        compare_depth(
            target,
            train,
            test,
            parameters=parameters,
            steps=steps,
            rate=0.03,
            seeds=seeds,
            generator=run.generator,
        )
        for target in (g, ridge)
    )
    net = g.network(pieces_for(dimension), 0.01)
    with torch.no_grad():
        drawn = float((net(test)[:, 0] - g(test)).square().mean() / g(test).var())
    says = run.states(
        ["A-85", "L-109"],
        rf"\text{{illustration, }}n={dimension}: \text{{trained networks with one hidden layer "
        r"leave at least half of the variance of the shells}",
    )
    says.at_least(
        float(found.shallow.min()),
        0.5,
        where="what training finds; the theorem is about the best network, with unknown constants",
    )
    says.fails("a square wave along one line", float(easy.shallow.min()))
    errors = (found.shallow, easy.shallow, found.deep, easy.deep)
    left = [float(e.mean()) for e in errors]
    run.table(
        "illustration",
        ["network", "units", "shells: variance left", "ridge: variance left"],
        [
            ["one hidden layer, trained", found.shallow_width, *left[:2]],
            ["two hidden layers, trained", 2 * found.deep_width, *left[2:]],
            ["two hidden layers, written down", network_size(net).units, drawn, None],
        ],
        caption=f"Illustration in {dimension} dimensions, {parameters} parameters for trained ones",
    )
