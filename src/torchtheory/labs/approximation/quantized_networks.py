"""Few bits a weight, and a depth that does not grow: Hölder functions by networks on a diet."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import box_grid, network_size
from torchtheory.approximation.piecewise.shifted_sums import ShiftedSum
from torchtheory.approximation.piecewise.yarotsky import smooth_network
from torchtheory.approximation.rates.quantization import (
    HolderApproximant,
    WeightGrid,
    decode,
    encode,
    holder_error,
    holder_network,
    quantize,
)
from torchtheory.approximation.targets import Function, values_of
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit
from torchtheory.labs.engine import COLORS, Run, lab


def cusp(x: Tensor) -> Tensor:
    """|x - 1/5|^(1/2): Hölder constant 1 for exponent 1/2."""
    return (x - 0.2).abs().sqrt()


def distance(x: Tensor) -> Tensor:
    return (x - 0.2).abs()


def bent(x: Tensor) -> Tensor:
    """cos x, with a derivative of Lipschitz constant 1."""
    return torch.cos(x)


def cone(x: Tensor) -> Tensor:
    return torch.hypot(x[:, 0] - 0.2, x[:, 1] + 0.1)


#: order, exponent, dimension, function of norm at most 1
CASES: tuple[tuple[int, float, int, Function], ...] = (
    (0, 0.5, 1, cusp),
    (0, 1.0, 1, distance),
    (1, 1.0, 1, bent),
    (0, 1.0, 2, cone),
)


@lab(
    "quantized-networks",
    room="approximation",
    covers=["X-38"],
    title="Hölder functions by networks of fixed depth whose weights have O(log 1/ε) bits",
    errata=["fixed-depth-without-layers"],
    full={"halvings": 7, "points": 2001},
    least={"halvings": 3, "points": 20},
)
def quantized_networks(run: Run, halvings: int = 4, points: int = 401) -> None:
    """Finite element networks for Hölder functions, rounded, written as bits and read back.

    For errors ε halved `halvings` times the network keeps its promise with $ε^{-d/(n+ζ)}$ weights
    and always the same number of layers; after rounding every weight to the grid of spacing
    $2^{-s⌈log₂ 1/ε⌉}$ the error stays below 2ε; the string of bits grows as M log 1/ε, and what is
    read back is the network itself. Look at what fewer bits do.

    Args:
        points: of the grid of the interval on which errors are measured.
    """
    errors = [2.0 ** -(2 + k) for k in range(halvings)]
    promises(run, errors, points)
    rates(run)
    bits = rounding(run, errors, points)
    no_layers(run)
    run.figure(
        "bits",
        lambda axes: plot(axes, bits),
        grid=(1, 2),
        caption="Left: the error of the rounded network for |x - 1/5| against the spacing of its "
        "weights, for three ε; dotted the level 2ε. Right: bits of the written network.",
    )


def error_of(f: Function, network: nn.Module, d: int, points: int) -> float:
    x = box_grid(((-0.5, 0.5),) * d, points if d == 1 else 47)
    return float((network(x)[:, 0] - values_of(f, x)).abs().max())


def promises(run: Run, errors: list[float], points: int) -> None:
    made: list[tuple[HolderApproximant, float]] = []
    depths: dict[int, set[int]] = {}
    rows = []
    for n, zeta, d, f in CASES:
        for e in errors[: len(errors) if d == 1 else 3]:
            a = holder_network(f, n, zeta, d, e)
            measured = error_of(f, a.network, d, points)
            made.append((a, measured))
            depths.setdefault(d, set()).add(a.size.depth)
            rows.append((d, n + zeta, e, a.cells, a.size.depth, a.size.parameters,
                         a.bound, measured))  # fmt: skip
    wrong = [holder_network(lambda x: cusp(x), 1, 1.0, 1, e) for e in errors]
    says = run.states(
        "X-38", r"\|f-\text{network}\|_\infty\le\tfrac{\sqrt d^{\,n}}{1+n\zeta}(h\sqrt d)^{n+\zeta}\le\epsilon"
    )
    says.at_most(
        [m for _, m in made],
        [a.bound for a, _ in made],
        where="and so in every $L_p$ on the cube, whose volume is 1",
    )
    says.fails(
        "$|x - 1/5|^{1/2}$ as if it had a Lipschitz derivative",
        [error_of(cusp, a.network, 1, points) for a in wrong],
        promised=[a.bound for a in wrong],
    )
    growing = {smooth_network(bent, 3, 1, e).size.depth for e in errors}
    says = run.states("X-38", r"\text{the depth does not depend on } \epsilon: \text{ different depths for each } d")
    says.equal([len(v) for v in depths.values()], 1)
    says.fails("Taylor polynomials multiplied out, whose depth grows", len(growing))
    run.table(
        "networks",
        ["d", "n + ζ", "ε", "cells", "affine layers", "parameters", "promised", "measured"],
        rows,
        caption="Networks of fixed depth for functions of Hölder norm at most 1",
    )


def rates(run: Run) -> None:
    """Decided beforehand: errors for 16 to 256 cells a side, 4 to 64 in the plane; exponent within 0.1."""
    for n, zeta, d, f in CASES:
        counts = [16, 32, 64, 128, 256] if d == 1 else [4, 8, 16, 32, 64]
        other = [1 / holder_error(0, 1.0, d, c) for c in counts]
        errors = [holder_error(n, zeta, d, c) for c in counts]
        sizes = [holder_network(f, n, zeta, d, e).size.parameters for e in errors]
        beta = n + zeta
        says = run.states("X-38", rf"M\sim\epsilon^{{-d/(n+\zeta)}}: \text{{ exponent for }} n+\zeta={beta:g},\ d={d}")
        # one derivative more, half of them
        says.slope([1 / e for e in errors], sizes, d / beta, 0.1, against=(d / (beta + 1), 2 * d / beta))
        if beta <= 0.5:
            says.fails("measured against the errors of n + ζ = 1", other, sizes)


def rounding(run: Run, errors: list[float], points: int) -> list[tuple[float, list[float], list[float], int, int]]:
    """Spacing 2^(-s⌈log₂ 1/ε⌉) with s = 4."""
    after, doubled, coarse, same, changed, share, found = [], [], [], [], [], [], []
    for n, zeta, d, f in CASES:
        for e in errors[: 1 if d == 2 else 3 if n + zeta < 1 else len(errors)]:
            network = holder_network(f, n, zeta, d, e).network
            assert isinstance(network, ShiftedSum)
            dense = network.as_sequential()
            grid = WeightGrid(e, 4)
            rounded = quantize(dense, grid)
            after.append(error_of(f, rounded, d, points))
            doubled.append(2 * e)
            if e == min(errors):
                coarse.append(error_of(f, _rounded_to(dense, 0.5), d, points))
            text = encode(rounded, grid)
            back = decode(text, grid)
            pairs = list(zip(rounded.parameters(), back.parameters(), strict=True))
            same.append(max(float((a - b).abs().max()) for a, b in pairs))
            flipped = text[:-1] + ("0" if text[-1] == "1" else "1")
            pairs = list(zip(rounded.parameters(), decode(flipped, grid).parameters(), strict=True))
            changed.append(max(float((a - b).abs().max()) for a, b in pairs))
            size = network_size(rounded)
            places = math.ceil(math.log2(size.width * (size.width + 1)))
            heads = 32 * (1 + 3 * size.depth)
            share.append((len(text) - heads) / (size.parameters * (grid.bits + places)))
            if f is distance:
                spacings = [2.0**-k for k in range(1, 17)]
                tried = [error_of(f, _rounded_to(dense, s), d, points) for s in spacings]
                found.append((e, spacings, tried, len(text), size.parameters))
    says = run.states(
        "X-38",
        r"\text{weights rounded to } 2^{-s\lceil\log_21/\epsilon\rceil}\mathbb Z:\ "
        r"\|f-\text{network}\|_\infty\le2\epsilon",
    )
    for e in errors[:3]:
        cells = holder_network(cusp, 0, 0.5, 1, e).cells

        def comb(x: Tensor, cells: int = cells) -> Tensor:
            """The root of the distance to the nodes of the mesh: all that a network misses between them."""
            return ((cells * x - (cells * x).round()).abs() / cells).sqrt()

        network = holder_network(comb, 0, 0.5, 1, e).network
        assert isinstance(network, ShiftedSum)
        after.append(error_of(comb, quantize(network.as_sequential(), WeightGrid(e, 4)), 1, points))
        doubled.append(2 * e)
    says.at_most(after, doubled)
    says.fails("rounded to halves, the smallest ε", coarse, promised=2 * min(errors))
    says = run.states("X-38", r"\text{decode(encode)}=\text{identity: largest difference of a weight}")
    says.equal(same)
    says.fails("with the last bit flipped", changed)
    says = run.states("X-38", r"\text{bits}\le M\,(\text{bits of a value}+\text{of a place})=O(M\log_2\tfrac1\epsilon)")
    says.at_most(share, 1, where="the head of 32 bits for every count aside; a place takes 2 log₂ of the width")
    says.fails(
        "weights as double precision numbers, one after another without zeros left out",
        [
            64 * sum(p.numel() for p in m.parameters()) / (network_size(m).parameters * 64)
            for m in [holder_network(bent, 1, 1.0, 1, 1e-3).network.as_sequential()]
        ],
    )
    return found


def _rounded_to(network: nn.Sequential, spacing: float) -> nn.Sequential:
    return quantize(network, _Spacing(spacing))


class _Spacing(WeightGrid):
    """A grid of any spacing, without end."""

    def __init__(self, spacing: float) -> None:
        object.__setattr__(self, "error", spacing)
        object.__setattr__(self, "exponent", 1)

    @property
    def spacing(self) -> float:
        return self.error

    @property
    def largest(self) -> float:
        return math.inf


def no_layers(run: Run) -> None:
    x = torch.linspace(-0.5, 0.5, 101, dtype=torch.float64)
    affine = torch.stack([torch.ones_like(x), x], dim=1)
    run.refutes(
        "fixed-depth-without-layers",
        r"n+\zeta=1:\ L\le c\log_2(n+\zeta)\cdot(n+\zeta)/d=0 \text{ hidden layers give }\|f-\text{network}\|\le0.1",
    ).at_most(best_uniform_fit(affine, x.abs()).error, 0.1, where="the best affine function for |x| on [-1/2, 1/2]")


def plot(axes: Any, found: list[tuple[float, list[float], list[float], int, int]]) -> None:
    left, right = axes[0]
    for color, (e, spacings, tried, _, _) in zip(COLORS, found[:3], strict=False):
        left.loglog(spacings, tried, "o-", color=color, markersize=3, label=f"ε = {e:g}")
        left.axhline(2 * e, color=color, linestyle=":", linewidth=1)
    left.set(xlabel="spacing of the weights", ylabel="sup error", title="|x - 1/5|, rounded")
    left.set_ylim(top=2.0)
    left.legend(ncols=3, loc="upper left")
    scale = [m * math.log2(1 / e) for e, *_, m in found]
    right.plot(scale, [b for *_, b, _ in found], "o-", color=COLORS[0])
    right.set(xlabel="M log₂ 1/ε", ylabel="bits", title="length of the string")
    right.set_xlim(left=0)
    right.set_ylim(bottom=0)
