"""Why the span of one activation is dense: algebras, ridge functions, and lifting."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.approximation.certificates import SupError, box_grid, measured_error
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.polynomials.divided_differences import (
    best_difference_step,
    good_bias,
    monomial_network,
)
from torchtheory.approximation.universality.ridge_sums import (
    RidgePowers,
    lift_networks,
    monomial_as_ridges,
    ridge_interval,
)
from torchtheory.approximation.universality.stone_weierstrass import (
    CosineNetwork,
    algebra_conditions,
    separating_cosine,
)
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit
from torchtheory.labs.engine import Run, lab
from torchtheory.neurons.regression import least_squares

GRID = torch.linspace(0, 1, 201, dtype=torch.float64)


@lab(
    "stone-weierstrass",
    room="approximation",
    covers=["L-090", "L-091", "L-092"],
    title="Algebras that separate points are dense; each condition is needed",
    full={"cases": 200},
    least={"cases": 1},
)
def stone_weierstrass(run: Run, cases: int = 20) -> None:
    """Cosine networks are multiplied and added, tested for the conditions, and fitted.

    Products of networks are networks again, a single unit tells any two points apart, and the
    conditions hold on a sample. Then each condition is dropped in turn: the distance of a target
    from the family, by linear programming, is the number the counterexample promises. Look at the
    plateaus.

    Args:
        cases: random products of networks.
    """
    products(run, cases)
    conditions(run)
    rows = counterexamples(run)
    run.table(
        "dropped",
        ["condition dropped", "family", "target", "distance promised", "distance found"],
        rows,
        caption="A family for each condition that meets the other three, and what it misses",
    )
    y = (GRID - 1 / 3).abs()
    counts = [1, 2, 3, 4, 6, 8, 11, 16]
    chebyshev = torch.cos(torch.arccos(2 * GRID - 1).unsqueeze(1) * torch.arange(17, dtype=torch.float64))
    families: dict[str, Callable[[int], Tensor]] = {
        "cosines": lambda m: cosines(GRID, m),
        "polynomials": lambda m: chebyshev[:, :m],
        "polynomials, f(0) = 0": lambda m: GRID.unsqueeze(1) * chebyshev[:, :m],
    }
    run.curves(
        "plateaus",
        counts,
        {name: [best_uniform_fit(family(m), y).error for m in counts] for name, family in families.items()},
        axes=("functions", "distance of $|x - 1/3|$ on [0, 1]"),
        log="y",
        caption="Distance of |x - 1/3| from growing families on [0, 1]: cosines and polynomials "
        "get closer, polynomials without a constant do not.",
    )


def draw(run: Run, units: int, dimension: int) -> CosineNetwork:
    return CosineNetwork(run.randn(units, dimension), run.randn(units), run.randn(units))


def products(run: Run, cases: int) -> None:
    gaps, counts, promised, squares, separated = [], [], [], [], []
    for k in range(cases):
        d = 1 + k % 4
        f, g = draw(run, 3, d), draw(run, 5, d)
        x = run.randn(50, d)
        made = f * g
        gaps.append(float((made(x) - f(x) * g(x)).abs().max()))
        gaps.append(float(((f + g)(x) - f(x) - g(x)).abs().max()))
        wrong = torch.tanh(x @ made.weight.T + made.bias) @ made.output
        tanh = [torch.tanh(x @ n.weight.T + n.bias) @ n.output for n in (f, g)]
        squares.append(float((wrong - tanh[0] * tanh[1]).abs().max()))
        counts.append(made.units)
        promised.append(2 * f.units * g.units)
        unit = separating_cosine(x[0], x[1])
        separated.append(float(unit(x[1:2]) - unit(x[:1])))
    says = run.states("L-091", r"fg \text{ and } f+g \text{ are networks: largest difference}")
    says.equal(gaps, within=1e-11)
    says.fails("the same weights with tanh in place of cos", squares)
    run.states("L-091", r"\text{units of } fg=2m_1m_2").equal(counts, promised)
    says = run.states("L-091", r"x\ne x':\ |f(x)-f(x')|=1-\cos1 \text{ for one unit}")
    says.equal(separated, 1 - math.cos(1), 1e-11)
    says.fails("one point twice, by a unit made for others", repeated(run))


def repeated(run: Run) -> float:
    x = run.randn(2, 3)
    unit = separating_cosine(x[0], x[1])
    return float(unit(x[1:2]) - unit(x[1:2]))


def cosines(x: Tensor, count: int) -> Tensor:
    return torch.cos(math.pi * x.unsqueeze(1) * torch.arange(count, dtype=torch.float64))


def conditions(run: Run) -> None:
    x = run.rand(40)
    family, larger = cosines(x, 5), cosines(x, 9)
    found = algebra_conditions(family, larger)
    sigmoids = [torch.tanh(3 * (x.unsqueeze(1) - torch.linspace(0, 1, m))).double() for m in (5, 9)]
    other = algebra_conditions(sigmoids[0], sigmoids[1])
    says = run.states(
        ["L-090", "L-091"],
        r"\text{products of } \cos(j\pi x),\ j<5, \text{ lie in the span of } j<9: \text{ largest residual}",
    )
    says.equal(found.product_gap, within=1e-10)
    says.fails("units tanh 3(x - c): no algebra", other.product_gap)
    mirrored = torch.cat([x, 1 - x[:1]])
    symmetric = torch.stack([(mirrored - 0.5) ** 2, (mirrored - 0.5) ** 4], 1)
    says = run.states("L-090", r"\text{the family separates points and vanishes nowhere: least differences and values}")
    says.above(
        [found.separation, found.nonvanishing],
        1e-9,
        loose="a distance is compared with 0",
        where="cos(jπx), j < 5, at 40 random points of [0, 1]",
    )
    says.fails(
        "even powers of x - 1/2, at a point and its mirror image", algebra_conditions(symmetric, symmetric).separation
    )
    targets = {"|x - 1/3|": (GRID - 1 / 3).abs(), "x²": GRID**2, "sin 7x": torch.sin(7 * GRID)}
    ratios, flat = [], []
    for y in targets.values():
        constant = float(y.max() - y.min()) / 2
        ratios.append(best_uniform_fit(cosines(GRID, 16), y).error / constant)
        flat.append(best_uniform_fit(cosines(GRID, 1), y).error / constant)
    says = run.states("L-090", r"\text{dense: 16 cosines leave less than a tenth of the best constant's error}")
    says.below(ratios, 0.1)
    says.fails("constants alone, which separate nothing", flat)


def counterexamples(run: Run) -> list[tuple[Any, ...]]:
    powers = torch.stack([GRID**k for k in range(7)], 1)
    spikes = torch.zeros(len(GRID), 5, dtype=torch.float64)
    spikes[[0, 40, 80, 120, 200], range(5)] = 1.0
    one, square, wave = torch.ones_like(GRID), GRID**2, torch.sin(7 * GRID)
    spread = float(wave.max() - wave.min()) / 2
    dropped = [
        ("i) continuity", "functions of finite support", "1", spikes, one, 1.0),
        ("ii) non-vanishing", "polynomials with f(0) = 0", "1", powers[:, 1:], one, 1.0),
        ("iii) separation", "constants", "sin 7x", powers[:, :1], wave, spread),
        ("iv) products", "affine functions", "x²", powers[:, :2], square, 1 / 8),
    ]
    found = [best_uniform_fit(family, target).error for *_, family, target, _ in dropped]
    restored = [best_uniform_fit(powers, target).error for target in (one, one, wave, square)]
    promised = [row[-1] for row in dropped]
    says = run.states("L-092", r"\text{each condition dropped: distances } 1,\ 1,\ (\max g-\min g)/2,\ 1/8")
    says.equal(found, promised, 1e-6)
    says.fails("all four conditions: polynomials of degree 6", restored)
    return [
        (name, family, target, p, e) for (name, family, target, *_), p, e in zip(dropped, promised, found, strict=True)
    ]


@lab(
    "sums-of-ridge-functions",
    room="approximation",
    covers=["L-086", "L-087", "N-33", "N-40"],
    title="Sums of ridge functions lift universality from one variable to several",
    errata=["ridges-without-bias"],
    least={"largest": 2},
)
def ridge_functions(run: Run, largest: int = 4) -> None:
    """Monomials of two and three variables, up to degree `largest`, as sums of powers of lines.

    The identity is checked in whole numbers. Then every power is replaced by a difference network
    of tanh units on the interval its direction takes, and the error on the square is held against
    the sum of the parts' promises. Two parabolas of ReLUs multiply. Without biases tanh gives odd
    functions only.
    """
    exact = [e for e in product(range(largest + 1), repeat=2) if 0 < sum(e) <= largest]
    exact += [(1, 1, 1), (2, 1, 1)]
    worst: list[float] = []
    plain: list[float] = []
    for exponents in exact:
        ridges = monomial_as_ridges(exponents)
        unsigned = RidgePowers(ridges.directions, tuple(abs(c) for c in ridges.coefficients), ridges.power)
        for made, where in ((ridges, worst), (unsigned, plain)):
            where.append(
                max(
                    float(abs(made(x) - math.prod(v**e for v, e in zip(x, exponents, strict=True))))
                    for x in product(range(-2, 3), repeat=len(exponents))
                )
            )
    says = run.states("L-086", r"x^\alpha=\sum_ic_i(\theta_i\cdot x)^{|\alpha|} \text{ in whole numbers: difference}")
    says.equal(worst)
    says.fails("all signs +", plain)
    lifted(run)
    bell(run)
    parabolas(run)
    generic_directions(run)
    without_bias(run)


def lifted(run: Run) -> None:
    bias, _ = good_bias("tanh", 5)
    square = ((-1.0, 1.0), (-1.0, 1.0))
    rows = []
    # a power of one variable is a single ridge, whose own error nothing can make up for
    for exponents in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 0)):
        ridges = monomial_as_ridges(exponents)
        k = ridges.power
        parts = []
        for theta in ridges.directions:
            radius = ridge_interval(theta, square)[1]
            h = best_difference_step(k, "tanh", bias, radius=radius, central=True)
            parts.append(monomial_network(k, "tanh", bias, h, radius=radius, central=True))
        weights = [float(c) for c in ridges.coefficients]
        net = lift_networks(ridges.directions, parts, weights, square)

        def target(x: Tensor, e: tuple[int, int] = exponents) -> Tensor:
            return x[:, 0] ** e[0] * x[:, 1] ** e[1]

        error = measured_error(target, net, most_points=1 << 13).lower
        wide = 3 * (2 * run.rand(500, 2) - 1)
        beyond = float((net(wide) - target(wide)).abs().max())
        units = sum(p.size.units for p in parts)
        rows.append((f"$x^{exponents[0]}y^{exponents[1]}$", len(parts), net.size.units, units,
                     net.bound, error, beyond))  # fmt: skip
    says = run.states(["L-087", "N-33"], r"\sup_{[-1,1]^2}|f-\text{network}|\le\sum_k|c_k|\epsilon_k")
    says.at_most([row[5] for row in rows], [row[4] for row in rows])
    says.fails("on [-3, 3]², beyond the compact set", [row[6] for row in rows])
    run.states("L-087", r"\text{units}=\sum_km_k").equal([row[2] for row in rows], [row[3] for row in rows])
    run.table(
        "lifted",
        ["function", "ridges", "units", "sum of the parts' units", "promised", "measured",
         "on [-3, 3]²"],
        rows,
        caption="Monomials of two variables by tanh units",
    )  # fmt: skip


def bell(run: Run) -> None:
    """exp(-|x|²) is a mean of cosines over normal frequencies: a ridge for every pair of nodes."""
    square = ((-1.0, 1.0), (-1.0, 1.0))
    promised, found, units, parts_units, lost = [], [], [], [], []
    for nodes, pieces in ((4, 16), (5, 32), (6, 64)):
        s, w = (torch.from_numpy(v) for v in np.polynomial.hermite.hermgauss(nodes))
        directions = 2 * torch.cartesian_prod(s, s)
        weights = torch.outer(w, w).flatten() / math.pi

        def ridges(x: Tensor, directions: Tensor = directions, weights: Tensor = weights) -> Tensor:
            return torch.cos(x @ directions.T) @ weights

        grid = box_grid(square, 201)
        # the rule's own error, on a grid that is fine beside the shortest wave
        apart = float((ridges(grid) - gaussian(grid)).abs().max())
        parts = []
        for theta in directions.tolist():
            low, high = ridge_interval(theta, square)
            parts.append(relu_interpolant(torch.cos, pieces, (min(low, -0.1), max(high, 0.1)), curvature=1.0))
        net = lift_networks(directions.tolist(), parts, weights.tolist(), square, ridge_error=1.01 * apart)
        promised.append(net.bound)
        found.append(measured_error(gaussian, net, most_points=1 << 13).lower)
        units.append(net.size.units)
        parts_units.append(sum(p.size.units for p in parts))
        few = lift_networks(directions.tolist()[::2], parts[::2], weights.tolist()[::2], square)
        lost.append(measured_error(gaussian, few, most_points=1 << 12).lower)
    says = run.states(
        "L-087",
        r"e^{-|x|^2}\approx\sum_kw_k\cos\theta_k\cdot x \text{ by ReLUs: }"
        r"\sup_{[-1,1]^2}\le\epsilon_0+\sum_k|w_k|\epsilon_k",
    )
    says.at_most(found, promised, where="ridges from 16, 25 and 36 pairs of Gauss-Hermite nodes, ε₀ their own error")
    says.fails("every other ridge left out", lost)
    run.states("L-087", r"e^{-|x|^2}: \text{ units}=\sum_km_k").equal(units, parts_units)


def gaussian(x: Tensor) -> Tensor:
    return torch.exp(-x.square().sum(1))


def parabolas(run: Run) -> None:
    """The product of two numbers through two parabolas of ReLUs."""
    square = ((-1.0, 1.0), (-1.0, 1.0))
    pieces = [2, 4, 8, 16, 32]
    promised = []
    found: list[SupError] = []
    thin: list[SupError] = []
    for m in pieces:
        part = relu_interpolant(torch.square, m, (-2.0, 2.0), curvature=2.0)
        net = lift_networks([[1, 1], [1, -1]], [part] * 2, [0.25, -0.25], square)
        lone = lift_networks([[1, 1]], [part], [0.25], square)
        promised.append(0.25 * 2 * (4 / m) ** 2 / 4)
        for made, errors in ((net, found), (lone, thin)):
            errors.append(measured_error(lambda x: x[:, 0] * x[:, 1], made, most_points=1 << 14))
    says = run.states(
        ["N-40", "N-33"],
        r"x_1x_2=\tfrac14[(x_1+x_2)^2-(x_1-x_2)^2] \text{ by ReLUs: }\sup\le\tfrac14\cdot2\cdot h^2/4,\ h=4/m",
    )
    says.at_most([e.lower for e in found], promised, 1e-12)
    says.fails("one ridge instead of two", [e.lower for e in thin])
    run.table(
        "product",
        ["pieces", "units", "promised", "measured"],
        [(m, 2 * m, p, e.lower) for m, p, e in zip(pieces, promised, found, strict=True)],
        caption="x₁x₂ on the square [-1, 1]² by one hidden layer of ReLUs",
    )


def generic_directions(run: Run) -> None:
    """Powers of as many random lines as there are monomials span them; parallel lines do not."""
    cases = [(n, k) for n in (2, 3, 4) for k in (1, 2, 3, 4)]
    ranks, parallel, monomials = [], [], []
    for n, k in cases:
        count = math.comb(n + k - 1, k)
        theta, x = run.randn(2 * count, n), run.randn(4 * count, n)
        ranks.append(least_squares((x @ theta.T) ** k, x[:, 0]).rank)
        flat = theta[:1] * run.randn(2 * count, 1)
        parallel.append(least_squares((x @ flat.T) ** k, x[:, 0]).rank)
        monomials.append(count)
    says = run.states("N-33", r"\operatorname{rank}\{(w_j^\top x)^k\}=\binom{n+k-1}k, \text{ generic } w_j")
    says.equal(ranks, monomials, where="twice as many random lines as monomials")
    says.fails("parallel lines", parallel)


def without_bias(run: Run) -> None:
    x = 2 * run.rand(60, 2) - 1
    x = torch.cat([x, -x])
    theta = 2 * run.randn(80, 2)
    one = torch.ones(len(x), dtype=torch.float64)
    bare = torch.tanh(x @ theta.T)
    biased = torch.tanh(x @ theta.T + run.randn(80))
    run.refutes(
        "ridges-without-bias",
        r"\operatorname{span}\{\tanh(\theta\cdot x)\} \text{ comes within } \tfrac12 \text{ of the constant } 1",
    ).at_most(
        best_uniform_fit(bare, one).error,
        0.5,
        where="80 random directions, the best weights by a linear program, on a symmetric sample",
    )
    says = run.states("L-086", r"\text{with biases the constant 1 is met: distance}")
    says.equal(best_uniform_fit(biased, one).error, within=0.01)
    says.fails("no biases: odd functions only", best_uniform_fit(bare, one).error)
