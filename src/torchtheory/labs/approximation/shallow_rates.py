"""One hidden layer of a smooth unit: as good as polynomials, with weights to match."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import box_grid
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.polynomials.divided_differences import (
    activation_derivative,
    good_bias,
    smooth_layer,
)
from torchtheory.approximation.polynomials.shallow import (
    ShallowPolynomial,
    SpanDistance,
    exponential_span,
    kolmogorov_width,
    shallow_polynomial,
)
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab

BOTH = ["A-31", "X-18"]


@lab(
    "shallow-smooth-rates",
    room="approximation",
    covers=["A-31", "X-17", "X-18"],
    title="N units of a smooth activation err by $N^{-k/d}$ for k derivatives",
    errata=["shallow-rate-exponent"],
    full={"largest_degree": 128, "panels": 64},
    least={"largest_degree": 32, "panels": 16},
)
def shallow_smooth_rates(run: Run, largest_degree: int = 64, panels: int = 32) -> None:
    """Polynomials in one to three variables by differences of an activation, and what they reach.

    A polynomial of degree m in each variable takes $(m + 1)^d$ units, and its error falls with the
    step as promised until rounding takes over. Networks of four activations are built for a
    function with a kink, networks of units $e^{jx}$ for functions with just k derivatives in L₁, L₂
    and L_∞. With units $e^{j·x}$, whose weights do not depend on the function, the least L₂ error is
    measured for functions with exactly k derivatives, and for analytic ones. Its exponent is at
    most -k/d. Look at the size of the output weights that this takes.

    Args:
        largest_degree: of the polynomials in one variable.
        panels: of the quadrature on the line; half as many per direction in the plane.
    """
    polynomials(run)
    built(run)
    found = rates(run, largest_degree, panels)
    analytic = fast(run, panels)
    widths(run)
    run.figure(
        "rates",
        lambda axes: plot(axes, found, analytic),
        grid=(1, 3),
        caption="Least L₂ error of units $e^{j·x}$ for functions of finite smoothness (left; lines: "
        "$N^{-k/d}$) and for an analytic one (middle), where the Taylor polynomial at 1/2 diverges. "
        "Right: the output weights that the fits need.",
    )


def steps_error(made: ShallowPolynomial, c: Tensor, points: Tensor) -> float:
    exact = torch.zeros(len(points), dtype=torch.float64)
    for alpha in c.nonzero().tolist():
        exact += float(c[tuple(alpha)]) * (points ** torch.tensor(alpha)).prod(1)
    return float((made.network(points)[:, 0] - exact).abs().max())


def polynomials(run: Run) -> None:
    biases = {name: good_bias(name, 6)[0] for name in ("exp", "logistic", "tanh", "softplus")}
    promised, measured, beyond, beyond_promise, units, counts = [], [], [], [], [], []
    rows = []
    for name, bias in biases.items():
        for d, m in ((1, 3), (2, 2), (3, 1)):
            c = run.randn(*[m + 1] * d)
            inside = torch.cat([run.rand(200, d), box_grid(((0.0, 1.0),) * d, 3)])
            for step in (0.05, 0.01, 0.002):
                made = shallow_polynomial(c, name, bias, step)
                measured.append(steps_error(made, c, inside))
                promised.append(made.bound)
                size = made.size
                rows.append((name, d, m, step, size.units, made.truncation,
                             made.rounding, measured[-1], size.largest))  # fmt: skip
                beyond.append(steps_error(made, c, 6 * inside))
                beyond_promise.append(made.bound)
            units.append(rows[-1][4])
            counts.append((m + 1) ** d)
    says = run.states(
        "X-17",
        r"\sup_{[0,1]^d}|p-\text{network}|\le\tfrac h2\sum_\alpha|c_\alpha||\alpha|"
        r"\tfrac{\max|\sigma^{(|\alpha|+1)}|}{|\sigma^{(|\alpha|)}(b)|}+\text{rounding}",
    )
    says.at_most(measured, promised)
    says.fails("on $[0, 6]^d$, beyond the cube", beyond, promised=beyond_promise)
    run.states("X-17", r"\text{degree } m \text{ in each of } d \text{ variables: } (m+1)^d \text{ units}").equal(
        units, counts
    )
    c = torch.zeros(3, 3, dtype=torch.float64)
    c[2, 1], c[0, 2] = 1.0, -2.0
    coarse = [0.1 * 2 ** (-k / 2) for k in range(13)]
    grid = box_grid(((0.0, 1.0), (0.0, 1.0)), 11)
    errors = [steps_error(shallow_polynomial(c, "exp", 0.0, h), c, grid) for h in coarse]
    fine = [1e-5 * h for h in coarse]
    rounded = [steps_error(shallow_polynomial(c, "exp", 0.0, h), c, grid) for h in fine]
    says = run.states("X-17", r"\text{error}\sim h \text{ for } x^2y-2y^2: \text{ exponent}")
    says.slope(coarse, errors, 1, 0.1, against=(0, 2))
    says.fails("steps of 10⁻⁶, where rounding decides", fine, rounded)
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    says = run.states(
        "X-17", r"\sigma^{(k)}(1)\ne0,\ k\le6 \text{ for the logistic function: } \min_k|\sigma^{(k)}(1)|"
    )
    says.above([float(activation_derivative("logistic", one, k).abs()) for k in range(7)], 0)
    says.fails(
        "at 0, where even derivatives vanish",
        [float(activation_derivative("logistic", zero, k).abs()) for k in (2, 4, 6)],
    )
    run.table(
        "polynomials",
        ["activation", "d", "m", "step", "units", "truncation", "rounding", "measured",
         "largest weight"],
        rows,
        caption="Random polynomials as one hidden layer",
    )  # fmt: skip


def middles(d: int, count: int) -> Tensor:
    """Midpoints of a grid of the unit cube, `[count ** d, d]`."""
    axis = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.cartesian_prod(*[axis] * d).reshape(-1, d)


def norm(values: Tensor, p: float) -> float:
    """The norm in L_p of the unit cube, from values at midpoints."""
    return float(values.abs().max()) if math.isinf(p) else float(values.abs().pow(p).mean() ** (1 / p))


def built(run: Run) -> None:
    """Networks with their weights: of any smooth unit at low degree, of e^(jx) at higher degrees."""
    measured, promised = [], []
    for d, m in ((1, 3), (1, 4), (2, 2)):
        x = middles(d, 2000 if d == 1 else 60)
        f = (x - 0.5).abs().prod(1)
        line = np.polynomial.Chebyshev.interpolate(lambda t: abs(t - 0.5), m, domain=[0, 1])
        powers = torch.from_numpy(line.convert(kind=np.polynomial.Polynomial).coef)
        c = powers if d == 1 else torch.outer(powers, powers)
        exact = torch.from_numpy(np.prod(line(x.numpy()), axis=1))
        for name in ("exp", "logistic", "tanh", "softplus"):
            bias = good_bias(name, 6)[0]
            made = min((shallow_polynomial(c, name, bias, 4.0**-i) for i in range(1, 9)), key=lambda net: net.bound)
            for p in (1.0, 2.0, math.inf):
                measured.append(norm(made(x) - f, p))
                promised.append(norm(exact - f, p) + made.bound)
    run.states(
        ["X-17", "X-18"],
        r"\|f-\Phi\|_p\le\|f-q\|_p+\text{bound of }q:\ q \text{ a polynomial for } f=\textstyle\prod|x_i-\tfrac12|,"
        r"\ p=1,2,\infty",
    ).at_most(measured, promised, where="exp, logistic, tanh and softplus units, the step with the least bound")
    degrees = list(range(4, 15))
    units = [m + 1 for m in degrees]
    rougher: dict[float, list[float]] = {}
    for k, p in ((1, 2.0), (2, 2.0), (1, math.inf), (2, math.inf), (2, 1.0)):
        errors = cusp_errors(k, p, degrees)
        name = r"\infty" if math.isinf(p) else f"{p:g}"
        says = run.states(
            "X-18", rf"\text{{networks of }} N \text{{ units }} e^{{jx}}:\ \|f-\Phi\|_{{{name}}}\sim N^{{-{k}}}"
        )
        says.slope(units, errors, -k, 0.1, against=(-k + 1, -k - 1), where="root mean square over 17 functions")
        if p in rougher:
            says.fails("a function with one derivative", units, rougher[p])
        rougher.setdefault(p, errors)


def cusp_errors(k: int, p: float, degrees: list[int]) -> list[float]:
    """Errors in L_p of networks for functions with k derivatives there, just, by degree.

    The error for one function goes up and down with the degree, at a pace that its place decides;
    the mean over places does not.
    """
    # of k = p = 1 nearly a constant is left
    power = k - (0.99 / p if math.isfinite(p) else 0.0)
    x, squares = middles(1, 4000), torch.zeros(len(degrees), dtype=torch.float64)
    places = np.linspace(0.3, 0.7, 17).tolist()  # near the ends polynomials do better for long
    for place in places:
        f = torch.from_numpy(cusp(x[:, 0].numpy(), power, place))
        nets = of_exponentials(power, place, degrees, averaged=p == 1)
        with torch.no_grad():
            squares += torch.tensor([norm(net(x)[:, 0] - f, p) ** 2 for net in nets], dtype=torch.float64)
    return (squares / len(places)).sqrt().tolist()


def cusp(x: np.ndarray, power: float, place: float) -> np.ndarray:
    """|x - place|^power, odd around it where the power is near an even number and no cusp is left."""
    t = x - place
    return np.abs(t) ** power * (np.sign(t) if round(power) % 2 == 0 else 1.0)


def of_exponentials(power: float, place: float, degrees: list[int], averaged: bool) -> Iterator[nn.Sequential]:
    """Networks of units e^(jx) with Chebyshev's partial sums, in e^x, of the function above.

    In L_1 partial sums lose a factor log N against the best polynomials; de la Vallée Poussin's
    means of those of the upper half of the degrees (`averaged`) do not.
    """
    series = np.polynomial.Chebyshev.interpolate(lambda u: cusp(np.log(u), power, place), 600, domain=[1, math.e])
    for degree in degrees:
        half = (degree + 1) // 2 if averaged else degree
        kept = np.minimum(1.0, np.arange(degree + 1, 0, -1) / (degree + 1 - half))
        chosen = np.polynomial.Chebyshev(series.coef[: degree + 1] * kept, domain=[1, math.e])
        powers = torch.from_numpy(chosen.convert(kind=np.polynomial.Polynomial).coef)
        rates = torch.arange(degree + 1, dtype=torch.float64)[:, None]
        yield chain([(rates, 0 * rates[:, 0]), (powers[None], powers.new_zeros(1))], [smooth_layer("exp")])


def corner(k: int, d: int) -> Function:
    """A function in W^{k,2} and no better: |x - 1/2|^(k - 0.49), and products of it."""
    if d == 1:
        return lambda x: (x - 0.5).abs() ** (k - 0.49)
    return lambda x: ((x - 0.5).abs() ** (k - 0.49)).prod(1)


def rates(run: Run, largest: int, panels: int) -> dict[tuple[int, int], list[SpanDistance]]:
    """Decided beforehand: degrees from 8 on (4 in the plane), half a doubling apart."""
    found: dict[tuple[int, int], list[SpanDistance]] = {}
    slopes: dict[tuple[int, int], Interval] = {}
    for k, d in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2)):
        start, stop = (8, largest) if d == 1 else (4, min(32, largest // 2))
        halves = 2 * int(math.log2(stop / start))
        degrees = [round(start * 2 ** (i / 2)) for i in range(halves + 1)]
        side = panels if d == 1 else panels // 2
        made = [exponential_span(corner(k, d), m, d, panels=side) for m in degrees]
        found[k, d] = made
        slopes[k, d] = fit_slope([s.units for s in made], [s.mean_square for s in made])
    for (k, d), slope in slopes.items():
        rougher = slopes[1, d] if k > 1 else fit_jump(largest, panels, d)
        says = run.states(
            BOTH, rf"\min_{{\theta^{{(2)}}}}\|\Phi-g\|_{{L_2}}\sim N^{{-k/d}}: \text{{ exponent for }} k={k},\ d={d}"
        )
        says.at_most(
            slope, -k / d, where="products of $|x - 1/2|^{k - 0.49}$, which have k square integrable derivatives"
        )
        says.fails("a function with less than k derivatives", rougher)
    run.table(
        "rates",
        ["k", "d", "promised exponent", "exponent", "from", "to"],
        [(k, d, -k / d, s.estimate, s.low, s.high) for (k, d), s in slopes.items()],
        caption="Exponents of the least L₂ error in the number of units (99% intervals)",
    )
    return found


def fit_jump(largest: int, panels: int, d: int) -> Interval:
    """The exponent for a jump at 1/2, which has no derivative at all."""

    def jump(x: Tensor) -> Tensor:
        return (x.reshape(len(x), -1)[:, 0] > 0.5).double()

    degrees = [8, 11, 16, 23, 32] if d == 1 else [4, 6, 8, 11, 16]
    made = [exponential_span(jump, m, d, panels=panels if d == 1 else panels // 2) for m in degrees]
    return fit_slope([s.units for s in made], [s.mean_square for s in made])


def pole(x: Tensor) -> Tensor:
    return 1 / (1 + 16 * (x - 0.5) ** 2)


def fast(run: Run, panels: int) -> list[tuple[int, SpanDistance, float]]:
    """Decided beforehand: ten degrees more divide the error at least by a hundred."""
    functions: dict[str, Function] = {
        "1/(1 + x²)": lambda x: 1 / (1 + x**2),
        "1/(1 + 16(x - 1/2)²)": pole,
        "sin 5x": lambda x: torch.sin(5 * x),
    }
    measured = []
    for f in functions.values():
        errors = [exponential_span(f, m, 1, panels=panels).mean_square for m in (2, 12)]
        measured.append(errors[1] / errors[0])
    rough = [exponential_span(corner(2, 1), m, 1, panels=panels).mean_square for m in (12, 22)]
    says = run.states(BOTH, r"g \text{ analytic: ten degrees more divide the error by 100}")
    says.at_most(measured, 0.01, where=", ".join(functions))
    says.fails("$|x - 1/2|^{1.51}$ is not analytic", rough[1] / rough[0])
    x = torch.linspace(0, 1, 401, dtype=torch.float64)
    rows = []
    for m in range(2, 31, 2):
        series = sum((-16 * (x - 0.5) ** 2) ** i for i in range(m // 2 + 1))
        rows.append((m, exponential_span(pole, m, 1, panels=panels), float((series - pole(x)).abs().max())))
    run.note(
        "the proof speaks of Taylor polynomials: for 1/(1 + 16(x - 1/2)²) the one of degree 30 at "
        f"1/2 errs by {rows[-1][2]:.1e} on [0, 1], and the best fit of degree 30 by "
        f"{rows[-1][1].largest:.1e}"
    )
    return rows


def widths(run: Run) -> None:
    counts = [4, 16, 64, 256, 1024]
    slope = fit_slope(counts, [kolmogorov_width(n, 2) for n in counts])
    run.refutes("shallow-rate-exponent", r"d=2,\ k=1,\ p=2:\ \text{error}\le c\,n^{-d/k}: \text{ exponent}").at_most(
        slope, -2, where="the distance that some g of norm 1 keeps from any first layer of n units"
    )


def plot(
    axes: Any,
    found: dict[tuple[int, int], list[SpanDistance]],
    analytic: list[tuple[int, SpanDistance, float]],
) -> None:
    left, middle, right = axes[0]
    for color, mark, ((k, d), made) in zip(COLORS, "os^dv", found.items(), strict=False):
        units = [s.units for s in made]
        left.loglog(units, [s.mean_square for s in made], mark, color=color,
                    label=f"k = {k}, d = {d}")  # fmt: skip
        line = [made[0].mean_square * (u / units[0]) ** (-k / d) for u in units]
        left.loglog(units, line, color=color, linewidth=0.8)
        right.loglog(units, [s.weight for s in made], mark + "-", color=color, markersize=4,
                     label=f"k = {k}, d = {d}")  # fmt: skip
    left.set(xlabel="units N", ylabel="$L_2$ error", title="k derivatives in d variables")
    left.legend()
    degrees = [m for m, _, _ in analytic]
    middle.semilogy(degrees, [s.largest for _, s, _ in analytic], "o-", label="best fit")
    middle.semilogy(degrees, [t for _, _, t in analytic], "s-", label="Taylor at 1/2")
    middle.set(xlabel="degree", ylabel="sup error", title="1/(1 + 16(x - 1/2)²)")
    middle.legend()
    right.set(xlabel="units N", ylabel="largest output weight", title="the price")
    right.legend()
