"""How smooth is a function? Norms measured on grids, by quadrature, and exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.approximation.piecewise.function_norms import (
    box_sobolev_norm,
    holder_constant,
    holder_norm,
    into_unit_ball,
    network_lipschitz_norm,
    smooth_norm,
)
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import Run, fit_slope, lab
from torchtheory.primer.function_spaces import sobolev_norm

UNIT = ((0.0, 1.0), (0.0, 1.0))


@lab(
    "function-norms",
    room="approximation",
    covers=["X-06"],
    title="Norms of $C^n$, Hölder and Sobolev spaces, and on which side a grid errs",
    full={"waves": 6, "doublings": 7},
    least={"waves": 1, "doublings": 3},
)
def function_norms(run: Run, waves: int = 3, doublings: int = 5) -> None:
    """Norms with known values: waves, the root of |x|, products, and ReLU networks.

    sin 2πkx has the $C^n$ norm $(2πk)^n$; $|x|^{1/2}$ the Hölder constant 1 for exponent 1/2 and none
    for exponent 1, which shows as growth without end on finer grids; integrals are compared with
    closed forms; for a ReLU network of one variable the norm is exact. The largest value on a
    grid is always a lower bound: the finer the grid, the larger. Look at the two lines.

    Args:
        waves: frequencies k = 1, 2, ..., so many of them.
        doublings: grids, each with twice the cells of the one before.
    """
    smooth(run, waves)
    grids = roots(run, doublings)
    integrals(run)
    networks(run)
    run.curves(
        "roots",
        next(iter(grids.values()))[0],
        {f"exponent {z:g}": values for z, (_, values) in grids.items()},
        axes=("points of the grid", "largest quotient of √|x|"),
        log="xy",
        caption="The largest quotient of √|x| on grids with more and more points: 1 for the "
        "exponent 1/2, without end for larger ones. A grid only ever gives a lower bound.",
    )


def smooth(run: Run, waves: int) -> None:
    found, exact, coarse = [], [], []
    for k in range(1, waves + 1):

        def wave(x: Tensor, k: int = k) -> Tensor:
            return torch.sin(2 * math.pi * k * x)

        for n in range(1, 5):
            found.append(smooth_norm(wave, n, (0.0, 1.0), points=8 * k + 1).value)
            exact.append((2 * math.pi * k) ** n)
            # an even derivative, seen only where the wave crosses zero
            coarse.append(smooth_norm(wave, n - n % 2, (0.0, 1.0), points=2 * k + 1).value)
    says = run.states("X-06", r"\|\sin2\pi kx\|_{C^n[0,1]}=(2\pi k)^n,\ n\ge1: \text{ quotient}")
    says.equal([a / b for a, b in zip(found, exact, strict=True)], 1, 1e-9)
    says.fails(
        "a grid that only meets the zeros of the wave, and so loses an order",
        [a / b for a, b in zip(coarse, exact, strict=True)],
    )

    def mixed(x: Tensor) -> Tensor:
        return torch.sin(math.pi * x[:, 0]) * torch.exp(2 * x[:, 1])

    orders = range(4)
    plain = [max(math.pi**a * 2.0**b for a in range(n + 1) for b in range(n + 1 - a)) * math.e**2
             for n in orders]  # fmt: skip
    says = run.states("X-06", r"\|\sin\pi x\,e^{2y}\|_{C^n}=e^2\max_{a+b\le n}\pi^a2^b: \text{ quotient}")
    says.equal([smooth_norm(mixed, n, UNIT, points=17).value / plain[n] for n in orders], 1, 1e-9)
    says.fails(
        "on [0, 1/2]², where $e^{2y}$ stops at e",
        [smooth_norm(mixed, n, ((0.0, 0.5), (0.0, 0.5)), points=17).value / plain[n] for n in orders],
    )


def root(x: Tensor) -> Tensor:
    return x.abs().sqrt()


def roots(run: Run, doublings: int) -> dict[float, tuple[list[int], list[float]]]:
    counts = [2 ** (k + 3) + 1 for k in range(doublings)]
    grids = {
        z: (counts, [holder_constant(root, z, (-1.0, 1.0), points=n).value for n in counts]) for z in (0.5, 0.75, 1.0)
    }
    shifted = [holder_constant(lambda x: 2 * root(x), 0.5, (-1.0, 1.0), points=n).value for n in counts]
    says = run.states("X-06", r"\mathrm{Lip}_{1/2}(|x|^{1/2})=1 \text{ on } [-1,1]")
    says.equal(grids[0.5][1], 1, 1e-12)
    says.fails("$2|x|^{1/2}$", shifted)
    growth = {z: fit_slope([n - 1 for n in counts], v) for z, (_, v) in grids.items()}
    says = run.states(
        "X-06", r"\mathrm{Lip}_1(|x|^{1/2})=\infty: \text{ on grids of spacing } h \text{ it grows as } h^{-1/2}"
    )
    says.slope(growth[1.0], 0.5, 1e-6, against=(0.0, 1.0))
    says.fails("exponent 1/2", growth[0.5])
    functions: list[Function] = [torch.sin, lambda x: 3 * torch.cos(x), lambda x: x**2 / 8 - 1]
    lipschitz = [1.0, 3 * math.sin(1.0), 0.25]
    largest = [math.sin(1.0), 3.0, 1.0]
    says = run.states("X-06", r"\|f\|_{C^{0,1}}=\max(\|f\|_\infty,\mathrm{Lip}_1f): \sin x,\ 3\cos x,\ x^2/8-1")
    says.equal(
        [holder_norm(f, 0, 1.0, (-1.0, 1.0), points=2049).value for f in functions],
        [max(a, b) for a, b in zip(lipschitz, largest, strict=True)],
        1e-3,
    )
    says.fails(
        "the Lipschitz constant alone", [holder_constant(f, 1.0, (-1.0, 1.0), points=2049).value for f in functions]
    )
    nested = [smooth_norm(lambda x: torch.sin(7 * x + 0.4), 2, (0.0, 1.0), points=n).value
              for n in counts]  # fmt: skip
    says = run.states("X-06", r"\text{largest value on a grid}\le\|\sin(7x+0.4)\|_{C^2}=49: \text{ a lower bound}")
    says.at_most(nested, 49.0)
    says.fails(
        "sin 7.1x, whose norm is larger",
        [smooth_norm(lambda x: torch.sin(7.1 * x), 2, (0.0, 1.0), points=n).value for n in counts],
    )
    return grids


def integrals(run: Run) -> None:
    """Closed forms in two variables, and the norm on the line of another module."""

    def plane(x: Tensor) -> Tensor:
        return torch.cos(math.pi * x[:, 0]) * torch.cos(2 * math.pi * x[:, 1])

    # ‖D^α f‖² = (π^a (2π)^b)² / 4 for every α = (a, b)
    exact = [
        math.sqrt(sum((math.pi**a * (2 * math.pi) ** b) ** 2 / 4
                      for a in range(n + 1) for b in range(n + 1 - a)))
        for n in range(3)
    ]  # fmt: skip
    says = run.states("X-06", r"\|\cos\pi x\cos2\pi y\|_{W^{n,2}}^2=\tfrac14\sum_{a+b\le n}\pi^{2a}(2\pi)^{2b}")
    says.equal([box_sobolev_norm(plane, n, 2.0, UNIT).value for n in range(3)], exact, 1e-9)
    says.fails(
        "one derivative less", [box_sobolev_norm(plane, n, 2.0, UNIT).value for n in range(2)], promised=exact[1:]
    )
    cases = [(n, p) for n in (0, 1, 2) for p in (1.0, 2.0, 3.5)]
    says = run.states("X-06", r"d=1:\ \|e^{-x}\sin3x\|_{W^{n,p}} \text{ by two quadratures}")
    says.equal(
        [box_sobolev_norm(_damped, n, p, (0.0, 2.0), panels=32).value for n, p in cases],
        [sobolev_norm(_damped, n, p, 0.0, 2.0) for n, p in cases],
        1e-4,
        where="p = 1 and 3.5 meet $|f|^p$ at its zeros, where it is not smooth",
    )
    says.fails(
        "on half of the interval", [box_sobolev_norm(_damped, n, p, (0.0, 1.0), panels=32).value for n, p in cases]
    )
    scaled = into_unit_ball(plane, 2, 2.0, UNIT)
    says = run.states("X-06", r"f/\|f\|_{W^{n,p}}\in F^p_{n,d}: \text{ its norm}")
    says.equal(
        box_sobolev_norm(scaled, 2, 2.0, UNIT, panels=11).value,
        1,
        1e-9,
        where="measured with another rule than the one that scaled it",
    )
    says.fails(
        "scaled in $W^{1,2}$", box_sobolev_norm(into_unit_ball(plane, 1, 2.0, UNIT), 2, 2.0, UNIT, panels=11).value
    )


def _damped(x: Tensor) -> Tensor:
    return torch.exp(-x) * torch.sin(3 * x)


def networks(run: Run) -> None:
    """The broken line through random values: its norm is known from the values."""
    exact, found, grid = [], [], []
    for pieces in (3, 7, 20):
        values = run.randn(pieces + 1)
        knots = torch.linspace(0, 1, pieces + 1, dtype=torch.float64)

        def through(x: Tensor, v: Tensor = values, k: Tensor = knots) -> Tensor:
            return v[(x.reshape(-1, 1) - k).abs().argmin(1)]

        line = relu_interpolant(through, pieces, lipschitz=1.0)
        exact.append(max(float(values.abs().max()), float(values.diff().abs().max()) * pieces))
        found.append(network_lipschitz_norm(line.network, (0.0, 1.0)).value)
        grid.append(holder_norm(line, 0, 1.0, (0.0, 1.0), points=4).value)
    says = run.states("X-06", r"\|f\|_{C^{0,1}} \text{ of a ReLU network: largest value at a bend, or slope}")
    says.equal(found, exact, 1e-9)
    says.fails("a grid of four points, which misses bends", grid)
