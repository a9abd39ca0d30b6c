"""The notation of the monograph at work: matrix norms, Fourier transform, Sobolev norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.primer.function_spaces import (
    fourier_transform,
    lebesgue_norm,
    slobodeckij_seminorm,
    sobolev_norm,
)
from torchtheory.primer.rationals import rational_between


@lab(
    "primer-function-spaces",
    room="primer",
    covers=["A-02", "L-031"],
    title="The Fourier transform without factors, Sobolev norms of any order, dense rationals",
    full={"pairs": 20_000, "panels": 128},
    least={"panels": 16},
)
def primer_function_spaces(run: Run, pairs: int = 2000, panels: int = 48) -> None:
    """Conventions that later results rest on, checked against closed forms.

    The operator norm and the Frobenius norm bound each other through the rank. With
    exp(-2πi⟨x, ξ⟩) in the exponent the Fourier transform is unitary without a factor and leaves
    exp(-π‖x‖²) alone. Sobolev-Slobodeckij norms of fractional order are computed from their
    double integral and compared with closed forms, on the whole line with the Fourier side. A
    rational is constructed between any two numbers. The figure shows that half a derivative is
    what a jump lacks.

    Args:
        pairs: of numbers between which a rational one is found.
        panels: of the quadrature of the Slobodeckij norm.
    """
    matrices_of_a_rank(run)
    transforms(run)
    sobolev(run, panels)
    rationals(run, pairs)
    widths = [2.0**-k for k in range(8)]
    orders = (0.3, 0.5, 0.7)
    steps = {s: [slobodeckij_seminorm(steep_step(e), s, 2, -1.0, 1.0, panels=panels) for e in widths] for s in orders}
    run.figure(
        "function-spaces",
        lambda axes: plot(axes, widths, steps),
        caption="Left: functions of one width and the moduli of their transforms; the jump decays "
        "as 1/ξ. Right: a step that gets steeper keeps a bounded norm of order below ½ only.",
        grid=(1, 2),
    )


def matrices_of_a_rank(run: Run) -> None:
    operator, frobenius, ranks = [], [], []
    for rank in (1, 2, 5, 8):
        for _ in range(50):
            A = run.randn(10, rank) @ run.randn(rank, 8)
            operator.append(torch.linalg.matrix_norm(A, 2))
            frobenius.append(torch.linalg.matrix_norm(A, "fro"))
            ranks.append(rank)
    op, fro, root = (
        torch.stack(operator),
        torch.stack(frobenius),
        torch.tensor(ranks).double().sqrt(),
    )
    isometry = torch.linalg.qr(run.randn(10, 6)).Q
    says = run.states("A-02", r"\|A\|_{op}\le\|A\|_F\le\sqrt{\operatorname{rank}A}\,\|A\|_{op}")
    says.at_most(torch.cat([op, fro]), torch.cat([fro, root * op]), 1e-12)
    says.fails(
        "the rank is taken one too small, for orthonormal columns",
        isometry.norm(),
        promised=math.sqrt(5) * float(torch.linalg.matrix_norm(isometry, 2)),
    )


def transforms(run: Run) -> None:
    start, spacing = -10.0, 0.05
    x = start + spacing * torch.arange(400, dtype=torch.float64)
    xi, gaussian = fourier_transform(bell(x), start, spacing)
    x2 = -5.0 + 0.1 * torch.arange(100, dtype=torch.float64)
    xi2, plane = fourier_transform(bell(x2)[:, None] * bell(x2), -5.0, 0.1)
    _, wider = fourier_transform(torch.exp(-x.square() / 2), start, spacing)
    says = run.states(
        "A-02",
        r"f(x)=e^{-\pi\|x\|^2} \text{ is its own transform, on } \mathbb R \text{ and }"
        r" \mathbb R^2 \text{ (largest error)}",
    )
    says.equal(
        [float((gaussian - bell(xi)).abs().max()), float((plane - bell(xi2)[:, None] * bell(xi2)).abs().max())],
        within=1e-12,
    )
    says.fails(
        "the Gaussian of another convention, exp(-x²/2)", float((wider - torch.exp(-xi.square() / 2)).abs().max())
    )
    slope = -2 * torch.pi * x * bell(x)
    _, slope_hat = fourier_transform(slope, start, spacing)
    _, shifted_hat = fourier_transform(bell(x - 1), start, spacing)
    says = run.states("A-02", r"\widehat{f'}(\xi)=2\pi i\xi\hat f(\xi),\quad \widehat{f(\cdot-1)}=e^{-2\pi i\xi}\hat f")
    says.equal(
        [
            float((slope_hat - 2j * torch.pi * xi * gaussian).abs().max()),
            float((shifted_hat - torch.exp(-2j * torch.pi * xi) * gaussian).abs().max()),
        ],
        within=1e-12,
    )
    says.fails("angular frequency: no 2π", float((slope_hat - 1j * xi * gaussian).abs().max()))
    energies = {
        "e^{-πx²}": (bell(x), 1 / math.sqrt(2)),
        "x e^{-πx²}": (x * bell(x), 1 / (4 * math.sqrt(2) * math.pi)),
        "e^{-πx²} cos 6πx": (
            bell(x) * torch.cos(6 * torch.pi * x),
            (1 + math.exp(-18 * math.pi)) / (2 * math.sqrt(2)),
        ),
    }
    width = float(xi[1] - xi[0])
    spectral = [
        float(fourier_transform(f, start, spacing)[1].abs().square().sum()) * width for f, _ in energies.values()
    ]
    says = run.states("A-02", r"\|\hat f\|_2 = \|f\|_2 \text{ (Plancherel; the squares, against closed forms)}")
    says.equal(spectral, [exact for _, exact in energies.values()], 1e-12)
    says.fails("integrated over the angular frequency 2πξ", [2 * math.pi * e for e in spectral])


def sobolev(run: Run, panels: int) -> None:
    exponents = (1.0, 1.5, 2.0, 3.0)
    says = run.states("A-02", r"W^{0,p}=L^p:\ \|x^2\|_{0,p}=(2p+1)^{-1/p} \text{ on } (0,1)")
    says.equal(
        [sobolev_norm(torch.square, 0, p, 0.0, 1.0, panels=panels) for p in exponents],
        [(2 * p + 1) ** (-1 / p) for p in exponents],
        1e-10,
    )
    says.fails(
        "order 1 in the place of order 0",
        [sobolev_norm(torch.square, 1, p, 0.0, 1.0, panels=panels) for p in exponents],
    )
    whole = [sobolev_norm(torch.sin, m, 2, 0.0, 2 * math.pi, panels=panels) for m in (0, 1, 2, 3)]
    says = run.states("A-02", r"\|\sin\|_{W^{m,2}(0,2\pi)}^2=(m+1)\pi")
    says.equal([value**2 for value in whole], [(m + 1) * math.pi for m in (0, 1, 2, 3)], 1e-10)
    says.fails(
        "half a period is missing",
        [sobolev_norm(torch.sin, 1, 2, 0.0, math.pi, panels=panels) ** 2],
        promised=[2 * math.pi],
    )
    cases = [(s, p) for s in (0.2, 0.5, 0.8) for p in exponents]
    powers = [p - 1 - s * p for s, p in cases]
    says = run.states("A-02", r"|x|_{s,p}^p=\iint_{(0,1)^2}|x-y|^{q}=\frac2{(q+1)(q+2)},\ q=p-1-sp")
    says.equal(
        [slobodeckij_seminorm(lambda x: x, s, p, 0.0, 1.0, panels=panels) ** p for s, p in cases],
        [2 / ((q + 1) * (q + 2)) for q in powers],
        1e-10,
    )
    says.fails(
        "s in the place of 1 − s",
        [slobodeckij_seminorm(lambda x: x, 1 - s, p, 0.0, 1.0, panels=panels) ** p for s, p in cases],
    )
    reach = 4.0
    inside = slobodeckij_seminorm(bell, 0.5, 2, -reach, reach, panels=panels) ** 2
    # pairs with one point beyond ±4, where the bell is below 1e-21
    tail = 2 * lebesgue_norm(lambda x: bell(x) * (1 / (reach - x) + 1 / (reach + x)).sqrt(), 2, -reach, reach) ** 2
    says = run.states(
        "A-02",
        r"|f|_{1/2,2}^2=4\pi^2\int|\xi||\hat f(\xi)|^2d\xi=2\pi \text{ for } f(x)=e^{-\pi x^2} \text{ on } \mathbb R",
    )
    says.equal(inside + tail, 2 * math.pi, 1e-8)
    says.fails("only pairs within (−4, 4)", inside)
    root = [slobodeckij_seminorm(torch.sqrt, 0.5, math.inf, 0.0, 1.0, panels=k) for k in (4, 8, 16, 32)]
    says = run.states(
        "A-02",
        r"W^{s,\infty} \text{ is Hölder: } \sup|\sqrt x-\sqrt y|/|x-y|^{1/2} = 1 \text{ on } (0,1), \text{ from below}",
    )
    says.at_most(root, 1.0)
    says.fails(
        "order 0.8 in the place of ½",
        [slobodeckij_seminorm(torch.sqrt, 0.8, math.inf, 0.0, 1.0, panels=k) for k in (4, 8, 16, 32)],
    )
    run.table(
        "sobolev",
        ["s", *[f"p = {p:g}" for p in exponents]],
        [
            (s, *[sobolev_norm(bell, s, p, -2.0, 2.0, panels=panels) for p in exponents])
            for s in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
        ],
        caption="Norms of exp(-πx²) in $W^{s,p}$(−2, 2)",
    )


def rationals(run: Run, pairs: int) -> None:
    ends = run.randn(pairs).tolist()
    gaps = (10.0 ** (-15 * run.rand(pairs))).tolist()
    intervals = [(a, a + g) for a, g in zip(ends, gaps, strict=True) if a < a + g]
    intervals += [(0.0, 1.0), (1.0, math.nextafter(1.0, 2.0)), (-1e-300, 0.0), (-3.0, -2.0)]

    def coarse(a: float, b: float) -> Fraction:
        low, gap = Fraction(a), Fraction(b) - Fraction(a)
        q = max(1, math.floor(1 / gap))
        return Fraction(math.floor(q * low) + 1, q)

    says = run.states(
        "L-031",
        r"a<b:\ q=\lfloor1/(b-a)\rfloor+1,\ p=\lfloor qa\rfloor+1 \text{ give } a<p/q<b"
        r" \text{ (intervals missed, exact arithmetic)}",
    )
    says.equal(
        sum(not Fraction(a) < rational_between(a, b) < Fraction(b) for a, b in intervals),
        where=f"{len(intervals)} intervals, as short as {min(b - a for a, b in intervals):.1g}",
    )
    says.fails("q is one too small", sum(not Fraction(a) < coarse(a, b) < Fraction(b) for a, b in intervals))


def steep_step(width: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.tanh(x / width)


def bell(x: Tensor) -> Tensor:
    return torch.exp(-torch.pi * x.square())


def plot(axes: Any, widths: list[float], steps: dict[float, list[float]]) -> None:
    start, spacing = -16.0, 1 / 64
    x = start + spacing * torch.arange(2048, dtype=torch.float64)
    functions = {
        "Gaussian": bell(x),
        "hat": (1 - x.abs()).clamp_min(0),
        "jump": (x.abs() < 0.5).double() + 0.5 * (x.abs() == 0.5).double(),
    }
    for name, f in functions.items():
        xi, transform = fourier_transform(f, start, spacing)
        keep = (xi >= 0) & (xi <= 6)
        axes[0, 0].plot(xi[keep], transform[keep].abs().clamp_min(1e-6), label=name)
    axes[0, 0].set(yscale="log", ylim=(1e-6, 2), xlabel="frequency ξ", ylabel="|f̂(ξ)|")
    axes[0, 0].legend()
    for s, values in steps.items():
        axes[0, 1].plot(widths, values, "o-", ms=4, label=f"s = {s}")
    axes[0, 1].set(xscale="log", xlabel="width ε of the step tanh(x/ε)", ylabel="seminorm, p = 2")
    axes[0, 1].invert_xaxis()
    axes[0, 1].legend()
