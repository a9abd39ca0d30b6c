"""Polynomials of growing degree: nearest ones, least squares, and Runge's warning."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import measured_error, sup_distance
from torchtheory.approximation.polynomials.fits import (
    NearestPolynomial,
    best_polynomial,
    chebyshev_basis,
    equispaced_interpolant,
    weierstrass_degree,
)
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.regression import least_squares

DEGREES = (2, 3, 6, 20)
INTERVAL = (-1.0, 1.0)


def runge(x: Tensor) -> Tensor:
    return 1 / (1 + 25 * x**2)


TARGETS: tuple[tuple[str, Function], ...] = (
    ("exp(-x) sin 5x", lambda x: torch.exp(-x) * torch.sin(5 * x)),
    ("|x|", torch.abs),
    ("1/(1 + 25x²)", runge),
)


@lab(
    "polynomial-fits",
    room="approximation",
    covers=["S-32", "S-33"],
    title="Nearest polynomials of degree 2, 3, 6, 20; interpolation diverges where they converge",
    full={"points": 4001},
    least={"points": 101},
)
def polynomial_fits(run: Run, points: int = 801) -> None:
    """Three functions on [-1, 1], and the polynomials of degree 2, 3, 6 and 20 nearest to them.

    The sup error of the nearest polynomial does not grow with the degree, nor does the mean
    square of a least squares fit on `points` points; both nest. The degree that an error asks for
    is found by trying. Interpolation at equally spaced points runs away from Runge's function.
    Look at the ends of the interval in the last row.
    """
    best = {name: [best_polynomial(g, m, INTERVAL) for m in DEGREES] for name, g in TARGETS}
    errors = {name: [measured_error(g, a, most_points=1 << 12).lower for a in best[name]] for name, g in TARGETS}
    through = [sup_distance(runge, equispaced_interpolant(runge, m, INTERVAL), INTERVAL).lower for m in DEGREES]
    # measured between the points of the linear program
    says = run.states(
        ["S-33", "S-32"], r"\text{the nearest polynomial's sup error does not grow with the degree: change}"
    )
    says.at_most([b - a for row in errors.values() for a, b in pairwise(row)], 0, 1e-4)
    says.fails("interpolation of 1/(1 + 25x²) at equally spaced points", [b - a for a, b in pairwise(through)])
    says = run.states(
        "S-33", r"\text{no polynomial of the degree is nearer: sup error}\ge\text{distance on the points}"
    )
    says.at_least([e for row in errors.values() for e in row], [a.floor for row in best.values() for a in row], 1e-9)
    says.fails(
        "a higher degree", [row[-1] for row in errors.values()], promised=[row[0].floor for row in best.values()]
    )
    fits = squares(run, points)
    degrees_asked(run)
    run.table(
        "errors",
        ["function", "degree", "nearest", "least squares", "equally spaced interpolation"],
        [
            (
                name,
                m,
                errors[name][i],
                fits[name][i],
                sup_distance(g, equispaced_interpolant(g, m, INTERVAL), INTERVAL).lower,
            )
            for name, g in TARGETS
            for i, m in enumerate(DEGREES)
        ],
        caption="Sup errors of three polynomials of the same degree on [-1, 1]",
    )
    run.figure(
        "fits",
        lambda axes: plot(axes, best, errors),
        grid=(2, 4),
        size=(14.0, 5.6),
        caption="Nearest polynomials of degree 2, 3, 6 and 20, above to exp(-x) sin 5x, below to "
        "1/(1 + 25x²) with the interpolating polynomial (dashed).",
    )


def squares(run: Run, points: int) -> dict[str, list[float]]:
    """Least squares fits: their mean squares nest; sup errors are at least those of the nearest."""
    x = torch.linspace(-1, 1, points, dtype=torch.float64)
    sup: dict[str, list[float]] = {}
    means, through = [], []
    for name, g in TARGETS:
        found = [least_squares(chebyshev_basis(m, x), g(x)).residual for m in DEGREES]
        sup[name] = [float(r.abs().max()) for r in found]
        mean = [float(r.square().mean()) for r in found]
        means += [b - a for a, b in pairwise(mean)]
    missed = [float((equispaced_interpolant(runge, m, INTERVAL)(x) - runge(x)).square().mean()) for m in DEGREES]
    through = [b - a for a, b in pairwise(missed)]
    says = run.states("S-33", r"\text{the mean square of least squares fits does not grow with the degree: change}")
    says.at_most(means, 0, 1e-12)
    says.fails("interpolation of 1/(1 + 25x²)", through)
    return sup


def degrees_asked(run: Run) -> None:
    rows = []
    for name, g in TARGETS:
        for eps in (0.3, 0.1):
            degree, made = weierstrass_degree(g, eps, INTERVAL)
            below = best_polynomial(g, max(degree - 1, 0), INTERVAL)
            rows.append((name, eps, degree, measured_error(g, made).lower, below.floor))
    says = run.states(["S-32", "S-33"], r"\epsilon>0: \text{ a polynomial with } |f-W_n|<\epsilon \text{ on } [-1,1]")
    says.below([row[3] for row in rows], [row[1] for row in rows])
    says.fails("a degree less", [row[4] for row in rows])
    run.table(
        "degrees",
        ["function", "ε", "degree", "sup error", "distance from a degree less"],
        rows,
        caption="The least degree whose nearest polynomial is within ε on [-1, 1]",
    )


def plot(axes: Any, best: dict[str, list[NearestPolynomial]], errors: dict[str, list[float]]) -> None:
    x = torch.linspace(-1, 1, 601, dtype=torch.float64)
    for row, (name, g) in zip(axes, (TARGETS[0], TARGETS[2]), strict=True):
        for axis, m, made, error in zip(row, DEGREES, best[name], errors[name], strict=True):
            axis.plot(x, g(x), color="0.5", linewidth=1, label=name)
            axis.plot(x, made(x), color=COLORS[0], label="nearest")
            if g is runge:
                through = equispaced_interpolant(g, m, INTERVAL)
                axis.plot(x, through(x), "--", color=COLORS[1], label="equally spaced")
                axis.set(ylim=(-0.6, 1.4), xlabel="x")
            axis.set_title(f"degree {m}, error {error:.2g}")
        row[0].legend(loc="upper right", fontsize=7)
