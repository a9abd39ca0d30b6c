"""The table of rates: what is needed is never more than what is enough, unless it is misprinted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import optimize, special

from torchtheory.approximation.memorization.label_coding import label_function
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.rates.budget import size_needed
from torchtheory.approximation.rates.code_length import cartoon_packing, smooth_packing
from torchtheory.approximation.rates.lower_bounds import continuous_selection_floor, label_cells
from torchtheory.approximation.rates.table import (
    THEOREMS,
    code_exponent,
    depth_for_weights,
    exponent_gaps,
)
from torchtheory.approximation.rates.theorems import Setting
from torchtheory.generalization.vc.networks import piecewise_linear_vc_order
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab


@lab(
    "rates-table",
    room="approximation",
    covers=["X-14", "X-15", "X-37", "X-42"],
    title="Every proved rate in one table: the curse of dimension, and who escapes it",
    errata=["ridge-exponent", "depth-for-weights-exponent"],
    full={"dimensions": 40, "degrees": 6000, "directions": 96},
    least={"dimensions": 3, "degrees": 400, "directions": 8},
)
def rates_table(run: Run, dimensions: int = 12, degrees: int = 1500, directions: int = 48) -> None:
    """The theorems on how many units or weights approximate a class, as rows that compare.

    A lower bound speaks about the networks of many an upper bound; its exponent must not be larger,
    for any smoothness and dimension. The exponents as printed fail that, which is how the
    misprints are found. Sums of ridge functions are met in numbers: on the disc their best
    approximation of a radial function is computed exactly, for directions as many as you like.
    Depth traded for weights is held against the VC dimension, and the exponents of codes against
    functions that are really that far apart. Look at the figure: sizes grow by a factor with every
    dimension, except for the classes made to escape.

    Args:
        dimensions: from 1 up to this.
        degrees: of the polynomials that a radial function is expanded in.
        directions: of the ridge functions, at most.
    """
    consistency(run, dimensions)
    constants(run)
    ridges(run, degrees, directions)
    trade(run)
    exponents(run)
    run.table(
        "rates",
        ["ids", "class", "side", "counts", "exponent at n=2, d=3", "logs", "norm", "networks",
         "continuous", "few bits", "number known", "erratum"],
        [table_row(row) for row in THEOREMS],
        caption="Size as a power of 1/error, with a power of log(1/error)",
    )  # fmt: skip
    run.figure(
        "curse",
        plot,
        grid=(1, 2),
        caption="Left: weights needed (solid, constants known) and the order enough (dashed) "
        "for error 0.001. Right: Pareto front of depth and weights in dimension d = 4 for "
        "smoothness n = 2; the shaded side is excluded by the VC dimension.",
    )


def table_row(row: Any) -> tuple[Any, ...]:
    p = 2.0 if row.missing(Setting(2, 3, 0.1)) else math.inf
    setting = Setting(2, 3, 0.1, p=p)
    return (
        row.id, row.function_class, row.side, row.counts, row.exponent(setting),
        row.log_power(setting), row.norm, f"{row.activation}, {row.depth}", row.continuous,
        row.encodable, row.number is not None, row.erratum,
    )  # fmt: skip


def consistency(run: Run, dimensions: int) -> None:
    """Every lower exponent against every upper exponent it speaks about."""
    settings = [
        Setting(n, d, 0.1, p=p, order=r)
        for n in (1, 2, 3, 5, 8, 13)
        for d in range(1, dimensions + 1)
        for p in (1.0, 2.0, math.inf)
        for r in (0.0, 1.0)
    ]
    gaps = [gap for s in settings for *_, gap in exponent_gaps(s)]
    printed = [gap for s in settings for *_, gap in exponent_gaps(s, as_printed=True)]
    wrong = [there for here, there in zip(gaps, printed, strict=True) if there < here]
    says = run.states("X-14", r"a_{\text{upper}}-a_{\text{lower}}\ge0 \text{ for all rows that compare}")
    says.at_least(gaps, 0.0, 1e-12)
    says.fails("the exponents as they are printed, where that is not right", wrong)
    many = [Setting(2, d, 0.1, p=2.0) for d in range(1, 10 * dimensions)]
    barron = [r for r in THEOREMS if r.function_class == "barron"]
    smooth = next(r for r in THEOREMS if r.id == "X-16" and r.function_class == "sobolev")
    says = run.states("X-14", r"\text{functions with a Fourier moment: the exponent stays below 2 in every dimension}")
    says.at_most([r.exponent(s) for r in barron for s in many], 2.0)
    says.fails("functions with two derivatives", [smooth.exponent(s) for s in many])


def constants(run: Run) -> None:
    """With their constants: the floor stays below the error of a network that is written down."""
    sizes = [2**k for k in range(1, 9)]
    lines = [
        (n, relu_interpolant(torch.sin, m, lipschitz=1.0, curvature=math.inf if n == 1 else 1.0))
        for n in (1, 2)
        for m in sizes
    ]
    bounds = [line.bound for _, line in lines]
    # the knots do not depend on the function: m bends and one value are chosen
    floors = [continuous_selection_floor(a.size.units + 1, n, 1) for n, a in lines]
    says = run.states("X-14", r"c_\phi(M+1)^{-n}\le \text{ error promised by the broken line of }M-1\text{ units}")
    says.at_most(floors, bounds)
    says.fails(
        "the floor of functions with one derivative, against broken lines for two",
        [continuous_selection_floor(a.size.units + 1, 1, 1) for n, a in lines if n == 2],
        promised=[a.bound for n, a in lines if n == 2],
    )


def radial_coefficients(power: float, degrees: int, edge: float = 0.5) -> np.ndarray[Any, Any]:
    r"""Squared norms of the parts of even degree $2j$ of $(b-|x|^2)_+^s$ on the disc.

    A radial function is $\sum_jc_jP_j(2r^2-1)$; in $u=2r^2-1$ it is
    $((u_0-u)/2)_+^s$, and Gauss-Jacobi quadrature meets its Legendre coefficients exactly.
    """
    count = degrees // 2
    top = 2 * edge - 1
    nodes, weights = special.roots_jacobi(count // 2 + 8, power, 0.0)
    u = (top + 1) / 2 * (nodes + 1) - 1
    scale = ((top + 1) / 2) ** (power + 1) / 2**power
    return legendre_squares(u, weights * scale, count)


def legendre_squares(u: np.ndarray[Any, Any], weighted: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The squares of the coefficients in orthonormal Legendre polynomials, by their recursion."""
    before, now = np.zeros_like(u), np.ones_like(u)
    found = []
    for j in range(count):
        found.append((2 * j + 1) / 2 * float(weighted @ now) ** 2)
        before, now = now, ((2 * j + 1) * u * now - j * before) / (j + 1)
    return np.array(found)


def equispaced_error(squares: np.ndarray[Any, Any], directions: int) -> float:
    r"""Best $L_2$ error on the disc by sums of ridge functions in equispaced directions.

    Ridge functions of degree $k$ in direction $\varphi$ have the coordinates
    $e^{-il\varphi}$, $l=-k,-k+2,\dots,k$, in the orthogonal polynomials of degree
    $k$, and a radial part sits at $l=0$: of it the share
    $1/(2\lfloor k/2N\rfloor+1)$ is met, alias frequencies taking the rest.
    """
    k = 2 * np.arange(len(squares))
    met = 1 / (2 * (k // (2 * directions)) + 1)
    return math.sqrt(float(squares @ (1 - met)))


def directions_error(squares: np.ndarray[Any, Any], angles: np.ndarray[Any, Any]) -> float:
    """The same for any directions, by projecting on their span in every degree."""
    total = 0.0
    for j, square in enumerate(squares):
        frequencies = np.arange(-2 * j, 2 * j + 1, 2)
        columns = np.exp(-1j * np.outer(frequencies, angles))
        basis = np.linalg.svd(columns, full_matrices=False)
        span = basis[0][:, basis[1] > 1e-9 * basis[1][0]]
        total += square * (1 - float(np.sum(np.abs(span[j]) ** 2)))
    return math.sqrt(max(total, 0.0))


def ridges(run: Run, degrees: int, directions: int) -> None:
    """Sums of N ridge functions with any profiles, on the disc."""
    # a statement about large N: the first third of the directions is left out
    counts = list(range(max(4, directions // 3), directions + 1))
    gauss_nodes, gauss_weights = np.polynomial.legendre.leggauss(400)
    analytic = legendre_squares(gauss_nodes, gauss_weights * np.exp(-4 * (gauss_nodes + 1)), 120)
    few = [3, 4, 5, 6, 7]  # beyond, the error is rounding
    fast = fit_slope([1 / equispaced_error(analytic, n) for n in few], few)
    powers = (0.75, 1.75, 2.75)
    slopes, smoothness = [], [s + 0.5 for s in powers]
    for s, n in zip(powers, smoothness, strict=True):
        squares = radial_coefficients(s, degrees)
        slope = fit_slope([1 / equispaced_error(squares, k) for k in counts], counts)
        slopes.append(slope.estimate)
        says = run.states(
            "X-15", rf"N\gtrsim\epsilon^{{-(d-1)/n}},\ d=2: \text{{ exponent for }} (\tfrac12-|x|^2)_+^{{{s}}},\ n={n}"
        )
        says.at_least(
            slope,
            1 / n,
            0.01,
            where="N directions, equispaced, and the best profiles; the function has every "
            "smoothness below n and not n itself",
        )
        if s == powers[0]:
            says.fails("exp(-8|x|²), which has all derivatives", fast)
    run.refutes("ridge-exponent", r"N\gtrsim\epsilon^{-(d-1/n)} \text{ for } d=2").at_least(
        slopes,
        [2 - 1 / n for n in smoothness],
        where="functions of just that smoothness are met with far fewer ridge functions",
    )
    squares = radial_coefficients(powers[0], 200)[:24]
    sizes = (2, 3, 4)
    best, even, random = [], [], []
    for k in sizes:
        start = np.arange(k) * math.pi / k
        found = optimize.minimize(
            lambda a: directions_error(squares, a),
            start + 0.2 * run.randn(k).numpy(),
            method="Nelder-Mead",
            options={"maxiter": 25 * k},
        )
        best.append(float(found.fun))
        even.append(directions_error(squares, start))
        random.append(directions_error(squares, math.pi * run.rand(k).numpy()))
    says = run.states("X-15", r"\text{two ways to the error of equispaced directions: alias count and projection}")
    says.equal(even, [equispaced_error(squares, k) for k in sizes], 1e-9)
    says.fails("random directions", random)
    run.table(
        "directions",
        ["directions", "error, equispaced", "error, directions searched", "error, random"],
        list(zip(sizes, even, best, random, strict=True)),
        caption="Ridge functions for $(1/2-|x|^2)_+^{0.75}$: searching directions gains little",
    )


def trade(run: Run) -> None:
    """Depth for weights: M weights in L layers shatter of order M L log M points."""
    cases = [(n, d, d / n * share) for n in (1, 2, 4) for d in (1, 2, 5) for share in (0.5, 0.6, 0.75, 0.9, 0.99)]
    pairs = [depth_for_weights(n, d, z) for n, d, z in cases]
    error = 1e-12
    needed = [label_cells(error, n, d) ** d for n, d, _ in cases]
    says = run.states(
        "X-37",
        r"M L\log M \text{ for } M=\epsilon^{-\zeta},\ L=\epsilon^{-(d/n-\zeta)} \text{ is no less "
        r"than the labels to be shattered, } \lfloor(c_\phi/3\epsilon)^{1/n}\rfloor^d",
    )
    says.at_least(
        [vc_order(error, *pair) for pair in pairs],
        needed,
        loose="an order without its constants, and its logarithm is what the exponents leave out",
    )
    least = [i for i, (n, d, z) in enumerate(cases) if z == d / n * 0.5]
    says.fails(
        "half the exponent of the depth, with the fewest weights",
        [vc_order(error, pairs[i][0], pairs[i][1] / 2) for i in least],
        promised=[needed[i] for i in least],
    )
    short = [0.8 * d / (2 * n) for n, d, _ in cases]
    says = run.states("X-37", r"\text{no more layers than weights: } \lambda\le\zeta \text{ for } \zeta\in[d/2n,d/n)")
    says.at_most([layers for _, layers in pairs], [weights for weights, _ in pairs], 1e-12)
    says.fails("ζ below d/2n", [d / n - z for (n, d, _), z in zip(cases, short, strict=True)], promised=short)
    printed = [d / (n * (z - 1)) for n, d, z in cases if z < 1]
    run.refutes(
        "depth-for-weights-exponent", r"L=\epsilon^{-d/(r(\zeta-1))} \text{ layers are at least 1, read with } r=n"
    ).at_least(
        [1e-3**-a for a in printed],
        1.0,
        where="for exponents ζ below 1; with r = 0, as the theorem it extends has it, there is no number at all",
    )


def vc_order(error: float, weights: float, layers: float) -> float:
    return piecewise_linear_vc_order(round(error**-weights), max(1, round(error**-layers)))


def exponents(run: Run) -> None:
    """The optimal exponents, from functions that are as far apart as the packing says."""
    for name, pack in (("holder", smooth_packing), ("cartoon", cartoon_packing)):
        cases = [(n, d) for n in (1, 2) for d in (2, 3)]
        low = []
        for n, d in cases:
            found = [pack(k, n, d) for k in (4, 8, 16, 32)]
            low.append(fit_slope([1 / f.error for f in found], [f.bits for f in found]).estimate)
        says = run.states(
            "X-42",
            r"\gamma^* \text{ of the unit ball of } C^n:\ d/n"
            if name == "holder"
            else r"\gamma^* \text{ of cartoons}:\ 2(d-1)/n",
        )
        says.equal(
            low,
            [code_exponent(name, n, d) for n, d in cases],
            1e-9,
            where="bits that functions so far apart need, fitted against their distance",
        )
        says.fails(
            "the other class, in three dimensions",
            [code_exponent("holder" if name == "cartoon" else "cartoon", n, d) for n, d in cases if d > 2],
            promised=[found for found, (_, d) in zip(low, cases, strict=True) if d > 2],
        )
    pairs = [(n, d) for n in (1, 2) for d in range(2, 9)]
    says = run.states("X-42", r"\text{edges cost more than smooth parts: } 2(d-1)/n\ge d/n")
    says.at_least([code_exponent("cartoon", n, d) for n, d in pairs], [code_exponent("holder", n, d) for n, d in pairs])
    says.fails(
        "dimension 1, where an edge is a point", [2 * (1 - 1) / n for n in (1, 2)], promised=[1 / n for n in (1, 2)]
    )
    distances(run)
    edge = next(r for r in THEOREMS if r.id == "X-50" and r.side == "upper")
    says = run.states("X-42", r"p(d-1)/n \text{ of piecewise smooth functions is } \gamma^* \text{ for } p=2")
    says.equal(
        [edge.exponent(Setting(n, d, 0.1, p=2.0)) for n, d in pairs], [code_exponent("cartoon", n, d) for n, d in pairs]
    )
    says.fails("p = 1", [edge.exponent(Setting(n, d, 0.1, p=1.0)) for n, d in pairs])


def distances(run: Run) -> None:
    """Label functions a quarter of whose labels differ are as far apart as the packing says."""
    measured, near = [], []
    for n in (1, 2, 3):
        for cells in (8, 16, 32):
            y = (run.rand(cells) < 0.5).long()
            flips = torch.randperm(cells, generator=run.generator)[: cells // 4]
            z = y.clone()
            z[flips] = 1 - z[flips]
            one = y.clone()
            one[0] = 1 - one[0]
            x = (torch.arange(cells * 200, dtype=torch.float64) + 0.5) / (cells * 200)
            f, g, h = (label_function(v, n) for v in (y, z, one))
            apart = 2 * smooth_packing(cells, n, 1).error
            measured.append(float((f(x) - g(x)).square().mean().sqrt()) / apart)
            near.append(float((f(x) - h(x)).square().mean().sqrt()) / apart)
    says = run.states("X-42", r"\|f_y-f_z\|_2/2\epsilon\ge1 \text{ where a quarter of the labels differ}")
    says.at_least(measured, 1.0, 1e-4, where="integrated with 200 points a cell")
    says.fails("labels that differ in one place", near)


def plot(axes: Any) -> None:
    left, right = axes[0]
    dims = list(range(1, 21))
    error = 1e-3
    for color, n in zip(COLORS, (1, 2), strict=False):
        tables = [size_needed("sobolev", smoothness=n, dimension=d, error=error) for d in dims]
        needed = [next(e for e in t.lower if e.theorem.id == "X-16").log10_size for t in tables]
        enough = [next(e for e in t.upper if e.theorem.id.startswith("X-18")).log10_size for t in tables]
        left.plot(dims, needed, color=color, label=f"n = {n}: needed")
        left.plot(dims, enough, "--", color=color, label=f"n = {n}: enough (order)")
    barron = [size_needed("barron", dimension=d, error=error).upper[-1].log10_size for d in dims]
    left.plot(dims, barron, color=COLORS[3], label="Fourier moment 1: enough")
    left.set(xlabel="dimension d", ylabel="log10 of the size", title="the curse of dimension")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend()
    zeta = np.linspace(1.0, 2.0, 60)[:-1]
    right.plot(zeta, [depth_for_weights(2, 4, z)[1] for z in zeta], color=COLORS[0],
               label="exponent of the layers")  # fmt: skip
    right.fill_between(zeta, 0, 2 - zeta, color=COLORS[0], alpha=0.12, linewidth=0)
    right.plot([1.0], [1.0], "o", color=COLORS[1], label="bounded width")
    right.plot([2.0], [0.0], "s", color=COLORS[2], label="depth log(1/ε), continuous weights")
    right.set(xlabel="exponent of the weights", ylabel="exponent of the layers",
              title="depth for weights, d/n = 2")  # fmt: skip
    right.legend()
