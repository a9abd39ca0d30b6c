"""Landau's proof of Weierstrass' theorem, with the error it promises."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.polynomials.landau import (
    LandauForm,
    kernel_moment,
    landau_approximant,
    landau_bound,
    landau_constant,
)
from torchtheory.approximation.targets import Function
from torchtheory.labs.approximation.polynomials import TARGETS, arch
from torchtheory.labs.engine import COLORS, Run, lab


@lab(
    "landau-polynomials",
    room="approximation",
    covers=["L-088", "L-089"],
    title="Landau's kernel: polynomials by smoothing, for functions that vanish at both ends",
    errata=["landau-one-end"],
    full={"largest": 16384},
    least={"largest": 512},
)
def landau_polynomials(run: Run, largest: int = 1024) -> None:
    """Landau's polynomials of degree 2n, for n up to `largest`, with the bound of the exercise.

    The constants are checked in exact arithmetic. The function has to be 0 at both ends of the
    interval: for f(x) = x the printed construction misses f(1) by one half for every n, and works
    once the line through the end values is taken out. Look at the right end of the figure.
    """
    constants(run)
    sizes = [2**k for k in range(2, largest.bit_length())]
    identity(run)
    coefficients(run)
    promised, found = [], []
    for _, g, rho in TARGETS:
        for n in sizes:
            a = landau_approximant(g, n, lipschitz=rho)
            promised.append(a.bound)
            found.append(measured_error(g, a, most_points=513).lower)
    naive = landau_approximant(lambda x: x, largest, lipschitz=1.0, remove_line=False)
    says = run.states(["L-088", "L-089"], r"f\ \rho\text{-Lipschitz, line removed: }\sup|f-P_n|\le3\rho(n+1)^{-1/3}")
    says.at_most(
        found,
        promised,
        1e-9,
        loose="the exponent 1/3 comes from Chebyshev's inequality for the kernel's tail; its width gives 1/2",
    )
    says.fails(
        "f(x) = x with the line left in: f(1) is not 0",
        measured_error(lambda x: x, naive, most_points=513).lower,
        promised=naive.bound,
    )
    ends = torch.ones(1, dtype=torch.float64)
    run.refutes("landau-one-end", r"f(0)=0:\ |f(x)-P_n(x)|\le\epsilon \text{ for large } n,\ x\in[0,1]").at_most(
        [1 - landau_approximant(lambda x: x, n, lipschitz=1.0, remove_line=False)(ends).item() for n in sizes[-3:]],
        0.1,
        where="f(x) = x at x = 1: the error tends to 1/2",
    )
    run.figure(
        "landau",
        lambda axes: plot_landau(axes, sizes, promised[: len(sizes)], found[: len(sizes)]),
        grid=(1, 2),
        caption="Left: f(x) = x without and with its line taken out. Right: the promise for "
        "|x - 1/2| and the measured sup error.",
    )


def constants(run: Run) -> None:
    numbers = [0, 1, 2, 5, 20, 60]
    says = run.states("L-088", r"J_n=2^{2n+1}(n!)^2/(2n+1)!, \text{ exactly}: \text{ difference}")
    says.equal([float(kernel_moment(n, 0) - landau_constant(n)) for n in numbers])
    says.fails(
        "the kernel 1 - u² replaced by u²(1 - u²)", [float(kernel_moment(n, 2) - landau_constant(n)) for n in numbers]
    )
    says = run.states("L-089", r"\int u^2(1-u^2)^n\,du=J_{n+1}/2(n+1), \text{ exactly}: \text{ difference}")
    says.equal([float(kernel_moment(n, 2) - landau_constant(n + 1) / (2 * (n + 1))) for n in numbers])
    says.fails(
        "$J_n$ in place of $J_{n+1}$",
        [float(kernel_moment(n, 2) - landau_constant(n) / (2 * (n + 1))) for n in numbers],
    )
    run.states("L-089", r"J_{n+1}/J_n=(2n+2)/(2n+3)<1").equal(
        [float(landau_constant(n + 1) / landau_constant(n)) for n in numbers],
        [(2 * n + 2) / (2 * n + 3) for n in numbers],
        1e-15,
    )


def identity(run: Run) -> None:
    """(3.12) and (3.13) for a function that is 0 at both ends, and for one that is not."""
    x = torch.linspace(0, 1, 41, dtype=torch.float64)
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 10_000 - 1
    n = 12
    kernel = (1 - u**2) ** n / 10_000 / float(landau_constant(n))

    def by_differences(g: Function, *, extend: bool) -> Tensor:
        at = x.unsqueeze(1) + u
        inside = ((at >= 0) & (at <= 1)).double() if extend else torch.ones_like(at)
        return ((g(at.flatten()).reshape(at.shape) * inside - g(x).unsqueeze(1)) * kernel).sum(1)

    polynomial = landau_approximant(arch, n, lipschitz=math.pi, remove_line=False)
    says = run.states("L-088", r"P_n(x)-f(x)=J_n^{-1}\int_{-1}^1[f(x+u)-f(x)](1-u^2)^n\,du: \text{ largest difference}")
    says.equal(
        (polynomial(x) - arch(x) - by_differences(arch, extend=True)).abs().max(),
        within=1e-6,
        where="both integrals by quadrature, the right one with 20000 midpoints",
    )
    says.fails("f not extended by 0", (polynomial(x) - arch(x) - by_differences(arch, extend=False)).abs().max())
    promised, found, ramp = [], [], []
    line = landau_approximant(lambda x: math.pi * x, 400, lipschitz=math.pi, remove_line=False)
    for n in (10, 100, 400):
        a = landau_approximant(arch, n, lipschitz=math.pi)
        value = measured_error(arch, a, most_points=513).lower
        for delta in (0.1, 0.2, 0.4):
            promised.append(landau_bound(n, delta, math.pi * delta, 1.0))
            found.append(value)
    missed = measured_error(lambda x: math.pi * x, line, most_points=513).lower
    ramp = [landau_bound(400, delta, math.pi * delta, math.pi) for delta in (0.1, 0.2, 0.4)]
    says = run.states("L-089", r"\sup|f-P_n|\le\epsilon/2+M/\delta^2(n+1)")
    says.at_most(
        found,
        promised,
        1e-9,
        loose="near and far parts are taken at their worst, which exclude each other: a kernel with all its mass at "
        "|u| = δ has none beyond",
    )
    says.fails("f(x) = πx, not 0 at 1", [missed] * 3, promised=ramp)


def coefficients(run: Run) -> None:
    """The coefficients for x(1 - x), from its moments in exact arithmetic and from the network."""
    exact, met, not_extended = [], [], []
    for n in (1, 3, 6):
        moments = [Fraction(1, k + 2) - Fraction(1, k + 3) for k in range(2 * n + 1)]
        # over [-1, 1] only even powers have an integral
        whole = [Fraction(2, k + 2) if k % 2 else Fraction(-2, k + 3) for k in range(2 * n + 1)]
        exact += series_from_moments(n, moments)
        not_extended += series_from_moments(n, whole)
        form = landau_approximant(lambda x: x * (1 - x), n, lipschitz=1.0, remove_line=False)
        assert isinstance(form.network, LandauForm)
        series = form.network.series()
        met += series.coef.tolist()
    says = run.states(
        "L-088",
        r"P_n=\sum_{j\le2n}x^j\,\tfrac{(-1)^j}{J_n}\sum_k\tbinom nk(-1)^k\tbinom{2k}j"
        r"\int_0^1f(t)\,t^{2k-j}dt: \text{ coefficients}",
    )
    says.equal(
        met,
        exact,
        1e-12,
        where="f(x) = x(1 - x), n = 1, 3, 6; the moments as fractions, both sides then written in "
        "Chebyshev polynomials, whose coefficients rounding does not blow up",
    )
    says.fails("f not extended by 0: moments over [-1, 1]", not_extended)


def series_from_moments(n: int, moments: list[Fraction]) -> list[float]:
    powers = [
        sum(
            (-1) ** (k + j) * math.comb(n, k) * math.comb(2 * k, j) * moments[2 * k - j]
            for k in range(n + 1)
            if 2 * k >= j
        )
        for j in range(2 * n + 1)
    ]
    exact = np.polynomial.Polynomial([float(c / landau_constant(n)) for c in powers])
    made: list[float] = exact.convert(kind=np.polynomial.Chebyshev, domain=np.array([0.0, 1.0])).coef.tolist()
    return made


def plot_landau(axes: Any, sizes: list[int], promised: list[float], found: list[float]) -> None:
    left, right = axes[0]
    x = torch.linspace(0, 1, 301, dtype=torch.float64)
    for color, n in zip(COLORS, (4, 32, 512), strict=False):
        p = landau_approximant(lambda x: x, n, lipschitz=1.0, remove_line=False)
        left.plot(x, p(x), color=color, label=f"printed, n = {n}")
    p = landau_approximant(lambda x: x, 4, lipschitz=1.0)
    left.plot(x, p(x), "--", color="0.3", label="line taken out, n = 4")
    left.set(xlabel="x", title="f(x) = x")
    left.legend()
    right.loglog(sizes, promised, color=COLORS[0], linewidth=0.8, label="promised")
    right.loglog(sizes, found, "o", color=COLORS[0], label="measured")
    right.set(xlabel="n", ylabel="sup error", title="|x - 1/2|")
    right.legend()
