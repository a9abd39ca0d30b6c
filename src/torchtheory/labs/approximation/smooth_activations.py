"""Smooth activations: every power of x by differences, and what polynomials cannot say."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.polynomials.divided_differences import (
    activation_derivative,
    best_difference_step,
    good_bias,
    leshno_network,
    monomial_error,
    monomial_network,
)
from torchtheory.approximation.targets import Function
from torchtheory.approximation.universality.uniform_fit import (
    best_uniform_fit,
    random_units,
    span_error,
)
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.nets.activations.table import nth_derivative
from torchtheory.neurons.regression import least_squares

GRID = torch.linspace(-1, 1, 401, dtype=torch.float64)
ACTIVATIONS = ("exp", "logistic", "tanh", "sin", "softplus")


@lab(
    "monomials-by-differences",
    room="approximation",
    covers=["A-32", "L-082", "L-083", "L-084", "N-32", "X-11"],
    title="k + 1 units of any smooth activation give $x^k$, as far as rounding lets them",
    errata=["degree-k-derivative-k"],
    full={"orders": 6},
    least={"orders": 2},
)
def monomials_by_differences(run: Run, orders: int = 4) -> None:
    """Difference quotients of an activation in its input weight, as networks, up to the power `orders`.

    The error is held against the promise over eight decades of steps; in double precision it is a
    V whose bottom is found from the bound, and in 80 digits it is a line. A bias where no
    derivative vanishes is looked for, and whole functions follow through their Bernstein
    polynomials. Look at how fast the bottom of the V rises with the power.
    """
    steps = [10 ** (-e / 2) for e in range(1, 17)]
    biases = {name: good_bias(name, orders + 1)[0] for name in ACTIVATIONS}
    promises(run, orders, steps, biases)
    shape_of_the_v(run, orders, biases)
    leading_error(run)
    many_digits(run)
    common_point(run, orders)
    whole_functions(run)
    run.figure(
        "steps",
        lambda axes: plot_steps(axes, orders, steps, biases["tanh"]),
        grid=(1, 2),
        caption="Sup error of $x^k$ on [-1, 1] by differences of tanh, and its promise (lines). "
        "Left one-sided, right central differences; the cross is the step found from the bound.",
    )


def error_on(grid: Tensor, order: int, name: str, bias: float, step: float, central: bool) -> float:
    net = monomial_network(order, name, bias, step, central=central)
    return float((net(grid) - grid**order).abs().max())


def promises(run: Run, orders: int, steps: list[float], biases: dict[str, float]) -> None:
    cases = [
        (k, name, biases[name], h, central)
        for name in ACTIVATIONS
        for k in range(1, orders + 1)
        for h in steps[::5]
        for central in (False, True)
    ]
    bounds = [monomial_error(k, n, b, h, central=c).total for k, n, b, h, c in cases]
    large = [(k, "exp", 0.0, 0.05, False) for k in range(1, orders + 1)]
    says = run.states(
        ["L-083", "A-32", "N-32", "X-11"],
        r"\sup_{[-1,1]}|x^k-f(x)|\le\tfrac k2h\,\tfrac{\max|\sigma^{(k+1)}|}{|\sigma^{(k)}(b)|}"
        r"+\text{rounding}, \text{ and its central form: measured/promised}",
    )
    says.at_most([error_on(GRID, *case) / p for case, p in zip(cases, bounds, strict=True)], 1.0)
    says.fails(
        "on [-2, 2], beyond the compact set",
        [error_on(2 * GRID, *case) / monomial_error(*case[:4]).total for case in large],
    )
    for central, power in ((False, 1), (True, 2)):
        coarse = [0.2, 0.1, 0.05, 0.025, 0.0125]
        fitted = fit_slope(coarse, [error_on(GRID, 2, "exp", 0.0, h, central) for h in coarse])
        other = fit_slope(coarse, [error_on(GRID, 2, "exp", 0.0, h, not central) for h in coarse])
        says = run.states(
            ["L-083", "A-32", "X-11"] if central else ["L-083", "N-32", "X-11"],
            rf"\text{{{'central' if central else 'one-sided'} differences: error}}\sim h^{power}",
        )
        says.slope(fitted, power, 0.1, against=(power - 1, power + 1))
        says.fails("the other kind of difference", other)
    gap, wrong = [], []
    for k in range(1, orders + 1):
        closed = (torch.expm1(0.1 * GRID) / 0.1) ** k
        gap.append(float((monomial_network(k, "exp", 0.0, 0.1)(GRID) - closed).abs().max()))
        wrong.append(float((monomial_network(k, "logistic", 1.0, 0.1)(GRID) - closed).abs().max()))
    says = run.states("L-083", r"\sigma=\exp,\ b=0:\ f(x)=\bigl((e^{hx}-1)/h\bigr)^k: \text{ largest difference}")
    says.equal(gap, within=1e-7)
    says.fails("another activation", wrong)


def shape_of_the_v(run: Run, orders: int, biases: dict[str, float]) -> None:
    at_best, beside = [], []
    rows = []
    for k in range(1, orders + 1):
        for central in (False, True):
            h = best_difference_step(k, "tanh", biases["tanh"], central=central)
            around = [error_on(GRID, k, "tanh", biases["tanh"], h * f, central) for f in (1e-2, 0.1, 1.0, 10.0)]
            at_best.append(around[2] / min(around))
            beside.append(around[0] / min(around))
            rows.append((k, "central" if central else "one-sided", h, around[2], around[0]))
    says = run.states(
        ["L-083", "A-32", "X-11"],
        r"\text{error at the step of the bound}\le3\times\text{the least among } h/100,\ h/10,\ h,\ 10h",
    )
    says.at_most(at_best, 3.0)
    says.fails("a step a hundred times shorter: rounding takes over", beside)
    run.table(
        "best-steps",
        ["power", "differences", "best step", "error there", "error at a 100th of it"],
        rows,
        caption="Powers by differences of tanh in double precision",
    )


def leading_error(run: Run) -> None:
    """The first term of the error of central differences, for exp, tanh and the logistic unit."""
    step = 0.02
    cases = [(k, name, bias) for name, bias in (("exp", 0.0), ("tanh", 0.5), ("logistic", 0.7)) for k in (1, 2, 3)]
    ratios: list[float] = []
    one_sided: list[float] = []
    for k, name, bias in cases:
        point = torch.tensor(bias, dtype=torch.float64)
        top, slope = (float(activation_derivative(name, point, i)) for i in (k + 2, k))
        one = torch.ones(1, dtype=torch.float64)
        first = k / 24 * step**2 * top / slope
        for central, kept in ((True, ratios), (False, one_sided)):
            net = monomial_network(k, name, bias, step, central=central)
            kept.append(float(net(one) - 1) / first)
    says = run.states(
        "A-32", r"\text{error at } 1\ /\ \tfrac p{24}h^2\varrho^{(p+2)}(\lambda)/\varrho^{(p)}(\lambda)\to1,\ h=0.02"
    )
    says.equal(ratios, 1.0, 0.02, where="the next term is smaller by a factor of the order h²; for exp, p = 2: h²x⁴/12")
    says.fails("one-sided differences, whose first term is of order h", one_sided)


def many_digits(run: Run) -> None:
    """The same weights in 80 digits: only truncation is left, at any step."""
    order, step = 8, 1e-6
    promised = monomial_error(order, "exp", 0.0, step).truncation
    worst = Decimal(0)
    with localcontext() as context:
        context.prec = 80
        h = Decimal(step)
        for i in range(-4, 5):
            x = Decimal(i) / 4
            terms = [(-1) ** (order - j) * math.comb(order, j) * (j * h * x).exp() for j in range(order + 1)]
            worst = max(worst, abs(sum(terms, Decimal(0)) / h**order - x**order))
    says = run.states("L-083", r"x^8,\ h=10^{-6},\ \sigma=\exp \text{ in 80 digits: error}\le\text{truncation alone}")
    says.at_most(float(worst), promised)
    says.fails("the same in double precision", error_on(GRID, order, "exp", 0.0, step, False))


def common_point(run: Run, orders: int) -> None:
    found = [good_bias(name, orders + 2)[1] for name in ACTIVATIONS]
    zero = torch.zeros(1, dtype=torch.float64)
    at_zero = [
        min(float(activation_derivative(name, zero, k).abs()) for k in range(orders + 1))
        for name in ("tanh", "logistic", "sin")
    ]
    says = run.states("L-084", rf"\exists x_0:\ \sigma^{{(k)}}(x_0)\ne0,\ k\le{orders + 2}:\ \min_k|\sigma^{{(k)}}|/k!")
    says.above(found, 0, where="exp, logistic, tanh, sin and softplus, the best of 2401 points of [-3, 3]")
    says.fails("at 0, where odd functions have no even derivatives", at_zero)
    point = torch.tensor([0.3], dtype=torch.float64)
    run.refutes("degree-k-derivative-k", r"\deg\sigma=k\implies\sigma^{(k)}=0").equal(
        [nth_derivative(lambda z, k=k: z**k, point, k).item() for k in (1, 2, 3)],  # type: ignore[misc]
        where="z, z² and z³ at 0.3",
    )


def whole_functions(run: Run) -> None:
    targets: tuple[tuple[str, Function, float], ...] = (
        ("sin 3x", lambda x: torch.sin(3 * x), 3.0),
        ("|x - 1/2|", lambda x: (x - 0.5).abs(), 1.0),
        ("exp x", torch.exp, math.e),
    )
    rows = []
    for name, g, rho in targets:
        for degree, step in ((1, 1e-6), (2, 1e-4), (3, 1e-3), (4, 3e-3)):
            a = leshno_network(g, degree, "logistic", 0.9, step, lipschitz=rho)
            error = measured_error(g, a, most_points=1 << 11).lower
            rows.append((name, degree, a.size.units, a.polynomial, a.truncation,
                         a.rounding, a.bound, error, a.size.largest))  # fmt: skip
    fast = leshno_network(lambda x: torch.sin(40 * x), 4, "logistic", 0.9, 3e-3, lipschitz=0.1)
    missed = measured_error(lambda x: torch.sin(40 * x), fast).lower
    says = run.states("L-082", r"\sup|f-\text{network}|\le\|f-q_r\|_\infty+\sum_k|\alpha_k|\epsilon_k+\text{rounding}")
    says.at_most([row[7] for row in rows], [row[6] for row in rows])
    says.fails("sin 40x is not 0.1-Lipschitz, as was said", missed, promised=fast.bound)
    run.states("L-082", r"\text{a polynomial of degree } r \text{ needs } r+1 \text{ units}").equal(
        [row[2] for row in rows], [row[1] + 1 for row in rows]
    )
    run.table(
        "leshno",
        ["function", "degree", "units", "polynomial part", "truncation part", "rounding part",
         "promised", "measured", "largest weight"],
        rows,
        caption="Functions on [0, 1] through Bernstein polynomials and logistic differences",
    )  # fmt: skip


def plot_steps(axes: Any, orders: int, steps: list[float], bias: float) -> None:
    for axis, central in zip(axes[0], (False, True), strict=True):
        for color, k in zip(COLORS, range(1, orders + 1), strict=False):
            bounds = [monomial_error(k, "tanh", bias, h, central=central).total for h in steps]
            found = [error_on(GRID, k, "tanh", bias, h, central) for h in steps]
            axis.loglog(steps, bounds, color=color, linewidth=0.8)
            axis.loglog(steps, found, "o", color=color, markersize=3, label=f"$x^{k}$")
            h = best_difference_step(k, "tanh", bias, central=central)
            at = error_on(GRID, k, "tanh", bias, h, central)
            axis.loglog([h], [at], "x", color="black", markersize=8)
        axis.set(
            xlabel="step h",
            ylabel="sup error",
            title="central" if central else "one-sided",
            ylim=(1e-15, 1e4),
        )
        axis.legend(ncols=4, loc="lower left")


NON_POLYNOMIAL = ("tanh", "logistic", "softplus", "relu", "gaussian")
TARGETS: tuple[tuple[str, Function], ...] = (
    ("|x|", torch.abs),
    ("tanh 8x", lambda x: torch.tanh(8 * x)),
    ("x³", lambda x: x**3),
    ("sin 5x", lambda x: torch.sin(5 * x)),
)


def square(z: Tensor) -> Tensor:
    return z**2


@lab(
    "universality-of-activations",
    room="approximation",
    covers=["L-070", "L-081", "L-085", "N-32", "S-34", "X-12"],
    errata=["hornik-any-activation"],
    title="One hidden layer is universal unless its activation is a polynomial",
    full={"doublings": 8, "seeds": 10},
    least={"doublings": 3, "seeds": 1},
)
def universality_of_activations(run: Run, doublings: int = 6, seeds: int = 3) -> None:
    """Random units of seven activations, output weights by least squares, in ever more units.

    The criterion, set beforehand: for each of four targets and each activation that is not a
    polynomial, the median sup error over `seeds` draws at the largest width is below 0.15 of
    that of the best constant. A polynomial activation of degree k only ever gives polynomials of
    degree k: the features have rank at most k + 1 and $x^{k+1}$ stays at distance $2^{-k}$. Look at
    the plateau.

    Args:
        doublings: the largest width is 2 to this power.
        seeds: draws of the units of each width.
    """
    widths = [2**k for k in range(1, doublings + 1)]
    drawn = torch.randint(2**31, (seeds,), generator=run.generator).tolist()
    layers: dict[str, Any] = {
        **{name: name for name in NON_POLYNOMIAL}, "sin": torch.sin, "z²": square,
    }  # fmt: skip
    curves = {
        (name, target): [
            sorted(span_error(random_units(layer, m, GRID, generator=seed), g(GRID)) for seed in drawn)[seeds // 2]
            for m in widths
        ]
        for name, layer in layers.items()
        for target, g in TARGETS
    }
    constant = {t: float(g(GRID).max() - g(GRID).min()) / 2 for t, g in TARGETS}
    says = run.states(
        ["L-070", "L-081", "N-32", "S-34", "X-12"],
        r"\sigma \text{ no polynomial: error at the largest width}\ /\ \text{best constant's}",
    )
    says.below(
        [row[-1] / constant[target] for (name, target), row in curves.items() if name != "z²"],
        0.15,
        where=f"{widths[-1]} random units, medians over {seeds} draws",
    )
    says.fails("σ(z) = z², a polynomial", [curves["z²", target][-1] / constant[target] for target, _ in TARGETS])
    run.table(
        "rates",
        ["activation", *[target for target, _ in TARGETS]],
        [(name, *[fit_slope(widths, curves[name, target]).estimate for target, _ in TARGETS]) for name in layers],
        caption="Fitted exponent of the median sup error in the number of random units",
    )
    polynomials(run)
    floors(run)
    run.figure(
        "curves",
        lambda axes: plot_curves(axes, widths, curves),
        grid=(1, 2),
        caption="Sup error of the least squares fit over the number of random units, medians: "
        "every activation but z² gets closer.",
    )


def polynomials(run: Run) -> None:
    """Rank k + 1 and Chebyshev's distance 2^-k, whatever the number of units."""
    # the grid holds the extrema of Chebyshev's polynomials of degree 2, 3 and 4
    x = torch.cos(torch.arange(121, dtype=torch.float64) * math.pi / 120)
    ranks, smooth_ranks, distances, tanh_distances = [], [], [], []
    degrees = [1, 2, 3]
    for k in degrees:
        features = random_units(lambda z, k=k: z**k, 40, x, steepness=1.5, generator=run.generator)  # type: ignore[misc]
        ranks.append(least_squares(features, x).rank)
        distances.append(best_uniform_fit(features, x ** (k + 1)).error)
        other = random_units("tanh", 40, x, generator=run.generator)
        smooth_ranks.append(least_squares(other, x).rank)
        tanh_distances.append(best_uniform_fit(other[:, :12], x ** (k + 1)).error)
    says = run.states("L-085", r"\deg\sigma=k:\ \operatorname{rank}\le k+1 \text{ for 40 units}")
    says.at_most(ranks, [k + 1 for k in degrees])
    says.fails("tanh, no polynomial", smooth_ranks)
    says = run.states(
        ["L-085", "S-34", "N-32"],
        r"\deg\sigma=k:\ \min_c\max_{[-1,1]}|x^{k+1}-\textstyle\sum_jc_j\sigma(a_jx+b_j)|=2^{-k}",
    )
    says.equal(
        distances, [2.0**-k for k in degrees], 1e-6, where="40 random units, the best weights by a linear program"
    )
    says.fails("tanh, 12 units", tanh_distances)


def floors(run: Run) -> None:
    """What z² leaves of |x| and of x³, exactly, however many units there are."""
    x = torch.cos(torch.arange(121, dtype=torch.float64) * math.pi / 120)
    widths = [3, 10, 40]
    square_floor: list[float] = []
    tanh_floor: list[float] = []
    for m in widths:
        for floor, layer in ((square_floor, square), (tanh_floor, "tanh")):
            features = random_units(layer, m, x, generator=run.generator)
            floor += [best_uniform_fit(features, y).error for y in (x.abs(), x**3)]
    says = run.states(
        ["X-12", "S-34"],
        r"\sigma(z)=z^2 \text{ on } [-1,1]:\ \text{distance of } |x| \text{ and } x^3"
        r" \text{ is } \tfrac18 \text{ and } \tfrac14 \text{ at every width}",
    )
    says.equal(
        square_floor,
        [1 / 8, 1 / 4] * len(widths),
        1e-6,
        where="3, 10 and 40 random units; the best approximants are x² + 1/8 and 3x/4",
    )
    says.fails("tanh", tanh_floor)
    run.refutes(
        "hornik-any-activation",
        r"\text{any activation: } 40 \text{ units come within } 0.05 \text{ of } |x| \text{ and } x^3",
    ).below(
        square_floor[-2:], 0.05, where="σ(z) = z² and the best output weights; the distance is the same at all widths"
    )


def plot_curves(axes: Any, widths: list[int], curves: dict[tuple[str, str], list[float]]) -> None:
    for axis, target in zip(axes[0], ("|x|", "sin 5x"), strict=True):
        named = [(name, row) for (name, t), row in curves.items() if t == target]
        for color, (name, row) in zip(COLORS, named, strict=False):
            axis.loglog(widths, row, "o-", markersize=3, color=color, label=name)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="hidden units", ylabel="sup error", title=target)
        axis.legend(ncols=2)
