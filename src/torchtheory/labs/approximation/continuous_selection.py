"""Weights that depend continuously on the function: two functions share them, and one is missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import measured_error
from torchtheory.approximation.memorization.label_coding import sobolev_grid_norm
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.bumps import BumpSum, SplineBump
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.rates.lower_bounds import (
    Encoder,
    SelectionWitness,
    antipodal_witness,
    continuous_selection_floor,
    continuous_selection_minimum,
    linear_witness,
    selection_cells,
)
from torchtheory.labs.engine import COLORS, Run, lab

Decoder = Callable[[Tensor], Callable[[Tensor], Tensor]]


@lab(
    "continuous-selection",
    room="approximation",
    covers=["X-16"],
    title="M continuously chosen weights miss some smooth function by $c⌈(M+1)^{1/d}⌉^{-n}$",
    full={"largest": 48, "starts": 40},
    least={"largest": 4, "starts": 6},
)
def continuous_selection(run: Run, largest: int = 9, starts: int = 20) -> None:
    """Against any continuous encoder there is a smooth f with the code of -f: both are computed.

    Encoders of up to `largest` numbers are met: values at points, Fourier coefficients, projection
    on random features, all linear, where f is a null vector; and nonlinear ones, where f solves
    equations Borsuk and Ulam say are solvable. Whatever decodes, f or -f is missed by the promised
    radius. An encoder that is allowed to jump writes all of f into one number and does better.
    Look at the figure: the broken line of ReLUs, whose weights are continuous, comes within a
    small factor of the floor.

    Args:
        starts: from which the equations of a non-linear encoder are solved, at most.
    """
    linear = against_linear(run, largest)
    against_nonlinear(run, starts)
    in_the_ball(run, linear)
    minimum(run)
    run.table(
        "witnesses",
        ["encoder", "M", "n", "d", "radius", "code of f minus code of -f", "worst error"],
        [
            (name, m, w.function.bump.order, w.function.bump.dimension, w.radius, w.residual, e)
            for name, m, w, e in linear
        ],
        caption="Linear encoders, their confused function, and the error of their own decoder",
    )
    run.figure(
        "floor",
        lambda axes: plot(axes, linear),
        grid=(1, 2),
        caption="Left: a function of smoothness 2 that vanishes at eight nodes, and its negative. "
        "Right: the floor for M continuous parameters and the errors promised by broken lines.",
    )


def encoders(run: Run, m: int, d: int) -> list[tuple[str, Encoder, Decoder]]:
    """Values at points, cosine coefficients, least squares on random features."""
    nodes = run.rand(m, d)
    grid = cell_centers(((0.0, 1.0),) * d, 300 if d == 1 else 20)
    waves = torch.randint(0, m, (m, d), generator=run.generator).double()
    directions, shifts = 6 * run.randn(m, d), run.randn(m)

    def cosines(x: Tensor) -> Tensor:
        return torch.cos(torch.pi * x[:, None, :] * waves).prod(2)

    def features(x: Tensor) -> Tensor:
        return torch.tanh(x @ directions.T + shifts)

    # small singular values cut off: or the code is rounding
    solve = torch.linalg.pinv(features(grid), rtol=1e-6)
    measure = cosines(grid).T / len(grid)

    def nearest(code: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: code[torch.cdist(x, nodes).argmin(1)]

    return [
        ("values", lambda f: f(nodes), nearest),
        ("cosines", lambda f: measure @ f(grid),
         lambda code: lambda x: cosines(x) @ code),
        ("features", lambda f: solve @ f(grid), lambda code: lambda x: features(x) @ code),
    ]  # fmt: skip


def against_linear(run: Run, largest: int) -> list[tuple[str, int, SelectionWitness, float]]:
    found, same, generic = [], [], []
    for d, sizes in ((1, (2, largest // 2, largest)), (2, (4, largest))):
        for m in sizes:
            for n in (1, 2, 3):
                for name, encode, decode in encoders(run, m, d):
                    w = linear_witness(encode, m, n, d)
                    found.append((name, m, w, w.worst_error(encode, decode)))
                    other = encode(replaced(w, run.randn(len(w.peaks)))).abs().max()
                    same.append(w.residual / float(other))
                    f = replaced(w, run.randn(len(w.peaks)))
                    generic.append(float((encode(f) - encode(-f)).abs().max() / other))
    jumps = [jumping(run, n, d) for d in (1, 2) for n in (1, 2, 3)]
    says = run.states("X-16", r"\max_\pm\|\pm f-\phi(P(\pm f))\|_\infty\ge\rho=c_\psi\lceil(M+1)^{1/d}\rceil^{-n}")
    says.at_least(
        [e for *_, e in found],
        [w.radius for _, _, w, _ in found],
        1e-12,
        where="linear encoders with their own decoders; the errors are looked for at the peaks",
    )
    says.fails(
        "one number that jumps: the quantized coefficients written as its digits",
        [e for e, _ in jumps],
        promised=[floor for _, floor in jumps],
    )
    says = run.states("X-16", r"P(f)=P(-f): \text{ largest difference of the codes, relative to other codes}")
    says.equal(same, within=1e-9)
    says.fails("any other sum of the bumps", generic)
    return found


def replaced(w: SelectionWitness, coefficients: Tensor) -> BumpSum:
    """Another sum of the same bumps."""
    f = w.function
    return BumpSum(coefficients / coefficients.abs().max(), f.cells, f.height, f.bump)


def jumping(run: Run, n: int, d: int, levels: int = 9) -> tuple[float, float]:
    """The worst error of one discontinuous number over sums of bumps, and the floor for one."""
    cells = selection_cells(1, d)
    bump = SplineBump(n, d)
    floor = continuous_selection_floor(1, n, d)
    peaks = cell_centers(((0.0, 1.0),) * d, cells)
    powers = float(levels) ** torch.arange(len(peaks), dtype=torch.float64)
    errors = []
    for _ in range(20):
        v = 2 * run.rand(len(peaks)) - 1
        f = BumpSum(v / v.abs().max(), cells, floor, bump)
        digits = ((f(peaks) / floor + 1) / 2 * (levels - 1)).round()
        code = (digits * powers).sum()
        back = torch.floor(code / powers) % levels
        g = BumpSum(2 * back / (levels - 1) - 1, cells, floor, bump)
        errors.append(float((f(peaks) - g(peaks)).abs().max()))
    return max(errors), floor


def against_nonlinear(run: Run, starts: int) -> None:
    """Samples passed through a random layer of tanh and squares."""
    radii, errors, residuals = [], [], []
    for m, n in ((2, 1), (3, 2), (5, 1), (6, 2)):
        nodes, mix, shift, bend = run.rand(m, 1), run.randn(m, m), run.randn(m), run.randn(m, m)
        scale = continuous_selection_floor(m, n, 1)

        def encode(
            f: BumpSum,
            nodes: Tensor = nodes,
            mix: Tensor = mix,
            shift: Tensor = shift,
            bend: Tensor = bend,
            scale: float = scale,
        ) -> Tensor:
            values = f(nodes) / scale
            return torch.tanh(mix @ values + shift) + 0.3 * bend @ values**2

        def decode(code: Tensor, nodes: Tensor = nodes, scale: float = scale) -> Callable[[Tensor], Tensor]:
            return lambda x: scale * code[torch.cdist(x, nodes).argmin(1)]

        w = antipodal_witness(encode, m, n, attempts=starts, generator=run.generator)
        radii.append(w.radius)
        residuals.append(w.residual)
        errors.append(w.worst_error(encode, decode))
    run.states("X-16", r"\text{nonlinear encoders: } \max_\pm\|\pm f-\phi(P(\pm f))\|_\infty\ge\rho").at_least(
        errors, radii, 1e-9, where=f"the codes of f and -f differ by at most {max(residuals):.1e}"
    )


def in_the_ball(run: Run, found: list[tuple[str, int, SelectionWitness, float]]) -> None:
    norms = [sobolev_grid_norm(w.function, 21) for _, _, w, _ in found]
    higher = [
        sobolev_grid_norm(
            BumpSum(w.function.coefficients, w.function.cells, w.radius * w.function.cells,
                    w.function.bump), 21
        )
        for _, _, w, _ in found
    ]  # fmt: skip
    says = run.states("X-16", r"\|f\|_{W^{n,\infty}}\le1")
    says.at_most(norms, 1.0, 1e-9)
    says.fails("bumps of height c $m^{1-n}$ instead of c $m^{-n}$", higher)


def minimum(run: Run) -> None:
    """The number of parameters for an error, against what broken lines spend."""
    cases = [(n, 2.0**-k) for n in (1, 2) for k in range(3, 12)]
    needed, spent = [], []
    for n, error in cases:
        pieces = next(
            k for k in range(1, 10_000)
            if relu_bound(k, n) <= error
        )  # fmt: skip
        needed.append(continuous_selection_minimum(error, n, 1))
        spent.append(pieces + 1)
    says = run.states("X-16", r"M\ge(\lceil(c_\psi/\epsilon)^{1/n}\rceil-1)^d \text{ is met by broken lines}")
    says.at_least(spent, needed, where="values at the knots are the parameters: one more than pieces")
    says.fails(
        "the number for one derivative, functions with two",
        [s for (n, _), s in zip(cases, spent, strict=True) if n == 2],
        promised=[continuous_selection_minimum(e, 1, 1) for n, e in cases if n == 2],
    )
    line = relu_interpolant(torch.sin, 8, curvature=1.0)
    run.note(
        f"broken line of 8 units for sin x: error {measured_error(torch.sin, line).lower:.2e}, "
        f"promised {line.bound:.2e}, floor for 9 parameters "
        f"{continuous_selection_floor(9, 2, 1):.2e}"
    )


def relu_bound(pieces: int, n: int) -> float:
    """The error the broken line promises for the unit ball."""
    return 1 / (2 * pieces) if n == 1 else 1 / (8 * pieces**2)


def plot(axes: Any, found: list[tuple[str, int, SelectionWitness, float]]) -> None:
    left, right = axes[0]
    nodes = (torch.arange(8, dtype=torch.float64) + 0.3) / 8
    w = linear_witness(lambda f: f(nodes.unsqueeze(1)), 8, 2)
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    left.plot(x, w.function(x), color=COLORS[0], label="f")
    left.plot(x, -w.function(x), "--", color=COLORS[1], label="-f")
    left.plot(nodes, torch.zeros(8), "ko", markersize=4, label="8 values: all 0")
    left.axhline(w.radius, color="0.6", linewidth=0.8)
    left.axhline(-w.radius, color="0.6", linewidth=0.8)
    left.set(xlabel="x", title="the same code for f and -f")
    left.legend(loc="lower left", ncols=3)
    left.set_ylim(-1.6 * w.radius, 1.3 * w.radius)
    sizes = list(range(2, 65))
    for color, n in zip(COLORS, (1, 2), strict=False):
        floor = [continuous_selection_floor(m, n, 1) for m in sizes]
        right.loglog(sizes, floor, color=color, label=f"floor, n = {n}")
        right.loglog(sizes, [relu_bound(m - 1, n) for m in sizes], "--", color=color,
                     label=f"broken line, n = {n}")  # fmt: skip
    right.set_xscale("log", base=2)
    right.set(xlabel="parameters M", ylabel="worst sup error", title="one dimension")
    right.legend()
