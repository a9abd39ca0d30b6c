"""Bernstein's proof of Weierstrass' theorem, with the errors it promises."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.polynomials.bernstein import (
    bernstein_approximant,
    bernstein_basis,
    bernstein_degree,
    binomial_moment,
    far_bound,
    split_residual,
)
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Run, lab


def tent(x: Tensor) -> Tensor:
    return (x - 0.5).abs()


def step(x: Tensor) -> Tensor:
    return (x >= 0.5).double()


def arch(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x)


#: name, function, Lipschitz constant on [0, 1]
TARGETS: tuple[tuple[str, Function, float], ...] = (
    ("|x - 1/2|", tent, 1.0),
    ("sin πx", arch, math.pi),
    ("1/(1 + 25x²)", lambda x: 1 / (1 + 25 * x**2), 3.25),
)


@lab(
    "bernstein-polynomials",
    room="approximation",
    covers=["L-077", "L-078", "L-079", "L-080", "N-31", "S-32"],
    title="Bernstein polynomials converge uniformly to every continuous function",
    errata=["bernstein-sums-from-one"],
    full={"doublings": 10},
    least={"doublings": 5},
)
def bernstein_polynomials(run: Run, doublings: int = 6) -> None:
    """The basis, its moments in exact arithmetic, and the polynomials of degree 4, 8, 16, ...

    The sup error is compared with what the proof promises, the near and far lattice points are
    held apart as in the proof, and the degree it asks for is tried. Look at how slowly the error
    falls: a kink costs 1/√m, and even a parabola 1/4m.

    Args:
        doublings: degrees 4, 8, 16, ..., so many of them.
    """
    degrees = [2 ** (k + 2) for k in range(doublings)]
    basis(run)
    moments(run)
    rows = errors(run, degrees)
    residuals(run)
    exact_cases(run, degrees)
    interval_change(run)
    run.figure(
        "bernstein",
        lambda axes: plot_bernstein(axes, degrees, rows),
        grid=(1, 3),
        size=(13.0, 3.4),
        caption="Left: the basis of degree 3. Middle: the kink of |x - 1/2|. Right: promised "
        "(lines) and measured (marks) sup errors.",
    )


def basis(run: Run) -> None:
    x = torch.linspace(0, 1, 61, dtype=torch.float64)
    sums, missing, peaks, places = [], [], [], []
    for m in (1, 3, 12, 60):
        b = bernstein_basis(m, x)
        sums.append(float((b.sum(1) - 1).abs().max()))
        missing.append(float((b[:, 1:].sum(1) - 1).abs().max()))
        if 60 % m == 0:
            peaks += x[b.argmax(0)].tolist()
            places += [k / m for k in range(m + 1)]
    says = run.states("L-077", r"\sum_{k=0}^mb^m_k=1 \text{ on } [0,1]: \text{ largest difference}")
    says.equal(sums, within=1e-12)
    says.fails("the sum from k = 1, as in the proof's third step", missing)
    run.states("L-077", r"b^m_k \text{ is largest at } k/m").equal(peaks, places, 1e-12)


def moments(run: Run) -> None:
    cases = [(m, Fraction(j, 7)) for m in (1, 2, 5, 20) for j in range(8)]
    measured = [float(binomial_moment(m, x, 2) - x * (1 - x) / m) for m, x in cases]
    fourth = [float(binomial_moment(m, x, 4) - (x * (1 - x) / m) ** 2) for m, x in cases]
    says = run.states("L-079", r"\sum_{k=0}^m(x-k/m)^2b^m_k(x)-x(1-x)/m=0, \text{ exactly}")
    says.equal(measured)
    says.fails("the fourth power, which is not the square of the second", fourth)
    run.refutes("bernstein-sums-from-one", r"\sum_{k=1}^m(x-k/m)^2b^m_k(x)=x(1-x)/m").equal(
        [float(binomial_moment(m, x, 2, first=1)) for m, x in cases],
        [float(x * (1 - x) / m) for m, x in cases],
        where="x = 0, 1/7, ..., 1 and m = 1, 2, 5, 20 in exact arithmetic",
    )
    x = torch.linspace(0, 1, 101, dtype=torch.float64)
    promised, found = [], []
    for m in (10, 100, 400):
        for delta in (0.05, 0.1, 0.3):
            lattice = torch.arange(m + 1) / m
            far = (x.unsqueeze(1) - lattice).abs() > delta
            found.append((bernstein_basis(m, x) * far).sum(1))
            promised.append(x * (1 - x) / (m * delta**2))
    run.states("L-079", r"\sum_{|x-k/m|>\delta}b^m_k(x)\le x(1-x)/m\delta^2").at_most(
        torch.cat(found), torch.cat(promised), 1e-12
    )


def errors(run: Run, degrees: list[int]) -> dict[str, list[tuple[float, float]]]:
    rows = {name: [measure(g, rho, m) for m in degrees] for name, g, rho in TARGETS}
    jump = [measure(step, 1.0, m) for m in degrees]
    says = run.states(["L-078", "N-31", "S-32"], r"f\ \rho\text{-Lipschitz: }\sup|f-q_m|\le\rho/2\sqrt m")
    says.at_most([e for row in rows.values() for _, e in row], [p for row in rows.values() for p, _ in row], 1e-12)
    says.fails("a jump has no Lipschitz constant, and 1 was given", [e for _, e in jump], promised=[p for p, _ in jump])
    roots = [measure(torch.sqrt, 1.0, m)[1] for m in degrees]
    cusps = [measure(lambda x: (x - 0.5).abs().sqrt(), 1.0, m)[1] for m in degrees]
    says = run.states(["N-31", "S-32"], r"|f(x)-f(y)|\le|x-y|^{1/2}, \text{ not Lipschitz: }\sup|f-q_m|\le(4m)^{-1/4}")
    says.at_most(
        roots + cusps,
        [(4 * m) ** -0.25 for m in degrees] * 2,
        where="√x and √|x - 1/2|; Jensen's inequality twice",
    )
    says.fails("a jump: not continuous", [e for _, e in jump], promised=[(4 * m) ** -0.25 for m in degrees])
    says = run.states(
        ["N-31", "S-32"],
        r"|x-\tfrac12| \text{ and } \sqrt x: \text{ error at the largest}\ /\ \text{error at the least degree}",
    )
    says.below([row[-1] / row[0] for row in (roots, [e for _, e in rows[TARGETS[0][0]]])], 0.5)
    says.fails("a jump: not continuous", jump[-1][1] / jump[0][1])
    run.table(
        "errors",
        ["function", "degree", "promised", "measured"],
        [(name, m, *r) for name, row in rows.items() for m, r in zip(degrees, row, strict=True)],
        caption="Sup errors of Bernstein polynomials on [0, 1]",
    )
    return rows


def measure(g: Function, rho: float, m: int) -> tuple[float, float]:
    a = bernstein_approximant(g, m, lipschitz=rho)
    return a.bound, measured_error(g, a, most_points=1 << 11).lower


def residuals(run: Run) -> None:
    """The proof's two halves and its degree."""
    x = torch.linspace(0, 1, 257, dtype=torch.float64)
    parts, bounds, wild = [], [], []
    for m in (50, 200):
        for delta in (0.05, 0.2):
            near, far = split_residual(tent, m, x, delta)
            parts += [float(near.max()), float(far.max())]
            bounds += [delta, far_bound(m, delta, 0.5)]
            near, far = split_residual(step, m, x, delta)
            wild.append(float(near.max()))
    says = run.states("L-078", r"\sum_{\text{near}}|r_k|\le\epsilon/2,\ \sum_{\text{far}}|r_k|\le R/4m\delta^2")
    says.at_most(parts, bounds, 1e-12)
    says.fails("a jump: no δ makes near values close", wild, promised=bounds[::2])
    asked, found = [], []
    for g, rho, spread, error in ((tent, 1.0, 0.5, 0.2), (arch, math.pi, 1.0, 0.5)):
        m = bernstein_degree(error, error / (2 * rho), spread)
        asked.append(error)
        found.append(measured_error(g, bernstein_approximant(g, m, lipschitz=rho)).lower)
    m = bernstein_degree(0.5, 0.5 / (2 * math.pi), 1.0)
    fast = bernstein_approximant(lambda x: arch(40 * x), m, lipschitz=1.0)
    says = run.states("L-078", r"m>R/2\epsilon\delta^2:\ \sup|f-q_m|<\epsilon")
    says.below(
        found,
        asked,
        loose="half of ε is for far nodes, which have next to no weight, and Chebyshev's inequality sets the degree",
    )
    says.fails(
        "δ does not serve: sin 40πx in place of sin πx",
        measured_error(lambda x: arch(40 * x), fast).lower,
        promised=0.5,
    )


def exact_cases(run: Run, degrees: list[int]) -> None:
    made = [bernstein_approximant(torch.square, m, lipschitz=2.0) for m in degrees]
    cubes = [bernstein_approximant(lambda x: x**3, m, lipschitz=3.0) for m in degrees]
    says = run.states("L-078", r"f(x)=x^2:\ \sup|f-q_m|=1/4m")
    says.equal(
        [measured_error(torch.square, a, most_points=1 << 11).lower for a in made], [1 / (4 * m) for m in degrees], 1e-9
    )
    says.fails("x³ instead", [measured_error(lambda x: x**3, a, most_points=1 << 11).lower for a in cubes])
    half = torch.tensor([0.5], dtype=torch.float64)
    at_kink = [bernstein_approximant(tent, m, lipschitz=1.0)(half).item() for m in degrees]
    says = run.states("L-078", r"f(x)=|x-\tfrac12|:\ 1-q_m(\tfrac12)\sqrt{2\pi m}\le1/2m")
    says.at_most(
        [1 - q * math.sqrt(2 * math.pi * m) for q, m in zip(at_kink, degrees, strict=True)],
        [1 / (2 * m) for m in degrees],
    )
    says.fails(
        "at 0.6, beside the kink",
        [
            1 - abs(bernstein_approximant(tent, m, lipschitz=1.0)(half + 0.1).item() - 0.1) * math.sqrt(2 * math.pi * m)
            for m in degrees
        ],
    )


def interval_change(run: Run) -> None:
    low, high, m = -2.0, 5.0, 20
    there = bernstein_approximant(torch.sin, m, (low, high), lipschitz=1.0)
    moved: Function = lambda t: torch.sin((1 - t) * low + t * high)  # noqa: E731
    here = bernstein_approximant(moved, m, lipschitz=high - low)
    x = torch.linspace(low, high, 301, dtype=torch.float64)
    t = (x - low) / (high - low)
    degree = 6
    small = bernstein_approximant(torch.sin, degree, (low, high), lipschitz=1.0)
    lattice = torch.linspace(low, high, 12, dtype=torch.float64)
    says = run.states("L-080", r"(f-q\circ\varphi^{-1})(\varphi(t))=(f\circ\varphi-q)(t): \text{ largest difference}")
    says.equal(((torch.sin(x) - there(x)) - (moved(t) - here(t))).abs().max(), within=1e-12)
    says.fails("composed with φ itself, as printed, where it stays within [0, 1]", wrong_way(here, x, low, high))
    says = run.states("L-080", r"q\circ\varphi^{-1} \text{ is a polynomial of degree } m: \text{ differences } m+1")
    says.equal(small(lattice).diff(degree + 1).abs().max(), within=1e-10)
    says.fails("the function itself", torch.sin(lattice).diff(degree + 1).abs().max())


def wrong_way(here: Function, x: Tensor, low: float, high: float) -> float:
    image = (1 - x) * low + x * high
    inside = (image >= 0) & (image <= 1)
    return float((torch.sin(x[inside]) - here(image[inside])).abs().max())


def plot_bernstein(axes: Any, degrees: list[int], rows: dict[str, list[tuple[float, float]]]) -> None:
    left, middle, right = axes[0]
    x = torch.linspace(0, 1, 301, dtype=torch.float64)
    for k, values in enumerate(bernstein_basis(3, x).T):
        left.plot(x, values, label=f"$b^3_{k}$")
    left.plot(x, torch.ones(301), ":", color="0.4", label="their sum")
    left.set(xlabel="x", title="the basis of degree 3", ylim=(-0.03, 1.35))
    left.legend(ncols=3, loc="upper center")
    middle.plot(x, tent(x), color="0.4", linewidth=1, label="$|x-1/2|$")
    for color, m in zip(COLORS, (4, 16, 64), strict=False):
        q = bernstein_approximant(tent, m, lipschitz=1.0)
        middle.plot(x, q(x), color=color, label=f"degree {m}")
    middle.set(xlabel="x", title="polynomials and a kink")
    middle.legend()
    for color, mark, (name, row) in zip(COLORS, "os^", rows.items(), strict=False):
        right.loglog(degrees, [p for p, _ in row], color=color, linewidth=0.8)
        right.loglog(degrees, [e for _, e in row], mark, color=color, label=name)
    right.set(xlabel="degree m", ylabel="sup error", title="promise and measurement")
    right.legend()
