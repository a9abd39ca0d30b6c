"""Deep networks of short convolutions are all shallow networks; how deep they must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor, nn

from torchtheory.approximation.architectures.filter_factorization import (
    DeepConvolutional,
    FullConvolution,
    convolve_filters,
    deep_convolutional_network,
    factor_filter,
    sobolev_depth_exponents,
)
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.generalization.vc.networks import piecewise_linear_vc_order
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.nets.feedforward import affine_layers

#: dimension and smoothness, with smoothness above d/2 + 2
SPACES: tuple[tuple[int, int], ...] = ((3, 4), (5, 5), (10, 8), (16, 11))

#: amplitude, frequency and phase of the plane waves of the target
WAVES: tuple[tuple[float, tuple[float, float, float], float], ...] = (
    (0.5, (1.0, 0.5, 0.0), 0.3),
    (0.3, (0.0, -1.0, 1.5), 1.0),
    (0.2, (1.5, 0.5, -1.0), 0.0),
)


@lab(
    "filter-factorization",
    room="approximation",
    covers=["X-82", "X-83"],
    title="Short filters in a row are any filter, and deep convolutional networks any shallow one",
    errata=["convolutional-depth-too-small"],
    full={"degree": 199, "units": 64},
    least={"degree": 9, "units": 8},
)
def filter_factorization(run: Run, degree: int = 79, units: int = 16) -> None:
    r"""Long filters are factored, shallow networks written as convolutions, depths compared.

    The factors of filters with up to `degree` + 1 taps give them back, in at most ⌈S/(s-1)⌉
    factors. A deep convolutional network made from them equals the shallow network it was made
    for, as long as the input stays in the cube for which its biases were chosen. For a sum of
    plane waves its error falls with the depth, within the promise of the broken lines and faster
    than the theorem needs. The printed depth is below what the VC dimension asks for. Look at
    the exponents in the table, and at how the layers before the last only carry sums along.

    Args:
        units: pieces of the broken line for a plane wave, at most.
    """
    factors(run, degree)
    made = equal_networks(run)
    ladder = rate(run, units)
    shatter(run)
    depths = exponents(run)
    run.figure(
        "depth",
        lambda axes: plot(axes, made, ladder, depths),
        grid=(1, 3),
        caption="Left: a layer's values in the deep network, for one input, before the last layer. "
        "Middle: error for a sum of plane waves in 3 variables. Right: the least depth for d = 10, "
        "r = 8, against the printed one.",
    )


def factors(run: Run, degree: int) -> None:
    """Convolving the factors returns the filter."""
    errors, counts, bounds, cut, rows = [], [], [], [], []
    for length in (4, 9, 19, 39, degree):
        for span in (2, 3, 6):
            long = run.randn(length + 1)
            short = factor_filter(long, span)
            product = convolve_filters(short)[: length + 1]
            errors.append(float((product - long).abs().max() / long.abs().max()))
            counts.append(len(short))
            bounds.append(math.ceil(length / (span - 1)))
            if span == 2:
                cut.append(real_roots_only(long))
            rows.append((length, span, len(short), bounds[-1], errors[-1]))
    says = run.states("X-82", r"w^{(p)}*\dots*w^{(1)}=W: \text{ relative difference}")
    says.equal(errors, within=1e-8)
    says.fails("s = 1: one real root per factor, complex ones by their real parts", cut)
    run.states("X-82", r"p\le\lceil S/(s-1)\rceil").at_most(counts, bounds)
    run.table(
        "factors",
        ["S", "s", "factors", "at most", "relative difference"],
        rows,
        caption="Filters with normal entries",
    )


def real_roots_only(long: Tensor) -> float:
    """The least relative difference of a filter and a multiple of factors (z - Re z_j), s = 1."""
    roots = np.roots(long.flip(0).numpy()).real
    product = torch.from_numpy(np.polynomial.polynomial.polyfromroots(roots))
    scale = float(product @ long / (product @ product))
    return float((scale * product - long).abs().max() / long.abs().max())


def ridges(run: Run, m: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    a = run.randn(m, d)
    return a / a.norm(dim=1, keepdim=True), run.randn(m) / 3, run.randn(m)


def difference(made: DeepConvolutional, a: Tensor, t: Tensor, c: Tensor, x: Tensor) -> float:
    return float((made.network(x)[:, 0] - torch.relu(x @ a.T - t) @ c).abs().max())


def equal_networks(run: Run) -> DeepConvolutional:
    """The deep network against the shallow one, inside its cube and outside."""
    inside, outside, depth, least, width, expected = [], [], [], [], [], []
    for m, d, span in ((1, 2, 2), (3, 2, 2), (4, 3, 3), (8, 4, 2), (12, 5, 4)):
        a, t, c = ridges(run, m, d)
        made = deep_convolutional_network(a, t, c, radius=1.0, span=span)
        x = 2 * run.rand(400, d) - 1
        inside.append(difference(made, a, t, c, x))
        outside.append(difference(made, a, t, c, 20 * x))
        depth.append(made.depth)
        least.append(max(1, math.ceil((m * d - 1) / (span - 1))))
        layers = [p for p in made.network.children() if isinstance(p, FullConvolution)]
        width += [len(p.bias) for p in layers]
        expected += [d + (j + 1) * span for j in range(len(layers))]
        example = made
    says = run.states("X-82", r"\text{deep convolutional network}=\sum_kc_k\rho(a_k\cdot x-t_k) \text{ on } [-1,1]^d")
    says.equal(inside, within=1e-9)
    says.fails("inputs in a cube twenty times as large: units fall silent", outside)
    run.states("X-82", r"L\le\lceil(md-1)/(s-1)\rceil").at_most(depth, least)
    run.states("X-82", r"d_j=d+js").equal(width, expected)
    return example


def target(x: Tensor) -> Tensor:
    return sum(
        (a * torch.cos(x @ torch.tensor(w, dtype=x.dtype) + p) for a, w, p in WAVES),
        start=torch.zeros(len(x), dtype=x.dtype),
    )


def waves_network(pieces: int) -> tuple[DeepConvolutional, float]:
    """Each wave by a broken line along its direction; all lines in one deep network."""
    directions, thresholds, coefficients, offset, bound = [], [], [], 0.0, 0.0
    for amplitude, frequency, phase in WAVES:
        reach = sum(abs(w) for w in frequency)
        line = relu_interpolant(
            lambda u, p=phase: torch.cos(u + p),  # type: ignore[misc]
            pieces,
            (-reach, reach),
            curvature=1.0,
        )
        assert isinstance(line.network, nn.Sequential)
        ((first, shift), (last, constant)), _ = affine_layers(line.network)
        w = torch.tensor([frequency], dtype=torch.float64)
        directions.append(first @ w)
        thresholds.append(-shift)
        coefficients.append(amplitude * last[0])
        offset += amplitude * float(constant)
        bound += amplitude * line.bound
    made = deep_convolutional_network(
        torch.cat(directions), torch.cat(thresholds), torch.cat(coefficients), offset=offset
    )
    return made, bound


def rate(run: Run, units: int) -> list[tuple[int, int, float, float]]:
    """Depth against error for a smooth function of three variables."""
    d = 3
    x = 2 * run.rand(1000, d) - 1
    rows, jumps = [], []
    pieces = sorted({max(2, round(units * 2 ** (-k / 2))) for k in range(7)})
    for k in run.track(pieces, "depths"):
        made, bound = waves_network(k)
        out = made.network(x)[:, 0]
        rows.append((made.depth, made.free, bound, float((out - target(x)).abs().max())))
        # the same networks for a function with a jump, in no Sobolev space of the theorem
        jumps.append(float((out - target(x) - torch.sign(x[:, 0]) / 2).abs().max()))
    says = run.states(
        ["X-82", "X-83"], r"\|f-\Phi\|_\infty\le\sum_j|A_j||\omega_j|_1^2/2k^2 \text{ for a sum of plane waves}"
    )
    says.at_most([row[3] for row in rows], [row[2] for row in rows])
    says.fails("half a jump added to the function", jumps)
    depths = [row[0] for row in rows]
    slope = fit_slope(depths, [row[3] for row in rows])
    flat = fit_slope(depths, jumps)
    says = run.states(
        "X-83",
        r"\|f-\Phi\|_\infty\lesssim\sqrt{\log L}\,L^{-1/2-1/d}: \text{ slope in } L \text{ at most}"
        r"\ -\tfrac12-\tfrac1d",
    )
    says.at_most(slope, -0.5 - 1 / d)
    says.fails("half a jump added to the function", flat)
    counts = [row[1] / row[0] for row in rows]
    says = run.states("X-83", r"\text{free parameters}\le(5s+4)L+2d+1: \text{ they grow like the depth}")
    says.at_most(
        [row[1] for row in rows],
        [(5 * 2 + 4) * row[0] + 2 * d + 1 for row in rows],
        where=f"between {min(counts):.1f} and {max(counts):.1f} parameters a layer",
    )
    says.fails(
        "dense layers of the same widths", [sum((d + 2 * j) * (d + 2 * j + 2) for j in range(row[0])) for row in rows]
    )
    run.table(
        "depths",
        ["layers", "free parameters", "promised", "measured"],
        rows,
        caption="Convolutional networks for a sum of three plane waves",
    )
    return rows


def bump_norms(order: int) -> list[float]:
    r"""Squared norms $\int|\phi^{(k)}|^2$, k up to the order, of (1 - 4x²)^(order + 1)."""
    bump = np.polynomial.Polynomial([1.0, 0.0, -4.0]) ** (order + 1)
    found = []
    for _ in range(order + 1):
        whole = (bump * bump).integ()
        found.append(float(whole(0.5) - whole(-0.5)))
        bump = bump.deriv()
    return found


def ball_norm(d: int, r: int, cells: int, height: float) -> float:
    """The norm of W^{r,2} of one bump of this height in every cell of a grid."""
    one = bump_norms(r)
    # products of one-dimensional norms, collected by the total order of the derivative
    total = np.array([1.0])
    for _ in range(d):
        total = np.convolve(total, one)[: r + 1]
    # cells^d bumps, each on a volume smaller by cells^-d
    scaled = sum(float(v) * cells ** (2 * k) for k, v in enumerate(total))
    return height * math.sqrt(scaled)


def shatter(run: Run) -> None:
    """Any labels on a grid, by functions of the ball: how high the bumps may be."""
    fit, low = [], []
    for d, r in SPACES:
        unit = 1 / ball_norm(d, r, 1, 1.0)
        for cells in (1, 2, 4, 8, 16, 64):
            fit.append(ball_norm(d, r, cells, unit * cells**-r))
            low.append(ball_norm(d, r, cells, unit * float(cells) ** (1 - r)))
    says = run.states("X-83", r"\text{bumps of height } cN^{-r} \text{ in } N^d \text{ cells}:\ \|f_y\|_{W^{r,2}}\le1")
    says.at_most(fit, 1.0, 1e-12, where="so approximations within a third of the height shatter $N^d$ points")
    says.fails("bumps of height $cN^{1-r}$", low)


def least_depth(d: int, r: int, log_error: float, span: int = 2) -> float:
    r"""Log10 of the depth whose VC order $PL\log P$ reaches $\epsilon^{-d/r}$."""
    wanted = -log_error * d / r

    def missing(log_depth: float) -> float:
        depth = 10.0**log_depth
        order = piecewise_linear_vc_order(max(2, round((5 * span + 4) * depth)), max(1, round(depth)))
        return math.log10(order) - wanted

    return float(optimize.brentq(missing, 0.0, 140.0))


def exponents(run: Run) -> tuple[list[float], list[float], list[float]]:
    """The exponents of the printed depth, of the theorem quoted, and of the least depth."""
    rows, measured, printed = [], [], []
    errors = [-10.0 * k for k in range(4, 13)]
    for d, r in SPACES:
        found = sobolev_depth_exponents(r, d)
        needed = [least_depth(d, r, e) for e in errors]
        slope = fit_slope([-e for e in errors], needed, log=False)
        measured.append(slope.estimate)
        printed.append(found.printed)
        rows.append((d, r, found.printed, found.least, slope.estimate, found.theorem))
    run.states(
        "X-83", r"\gamma_{\mathrm{least}}\le2d/(d+2): \text{ the theorem quoted allows for the VC bound}"
    ).at_most(measured, [row[5] for row in rows])
    run.refutes(
        "convolutional-depth-too-small", r"L\lesssim\epsilon^{-1/d}: \text{ least exponent of the depth}\le1/d"
    ).at_most(measured, printed, where="slope of the depth at which P L log P reaches the number of shattered points")
    run.table(
        "exponents",
        ["d", "r", "printed 1/d", "d/2r", "least, with the logarithm", "quoted 2d/(d+2)"],
        rows,
        caption="Exponents γ of the depth $ε^{-γ}$",
    )
    d, r = 10, 8
    line = [-0.5 * k for k in range(4, 25)]
    return line, [least_depth(d, r, e) for e in line], [-e / d for e in line]


def plot(
    axes: Any,
    made: DeepConvolutional,
    ladder: list[tuple[int, int, float, float]],
    depths: tuple[list[float], list[float], list[float]],
) -> None:
    left, middle, right = axes[0]
    x = torch.linspace(-0.8, 0.9, made.widths[0], dtype=torch.float64)[None]
    shown = {1: COLORS[0], 2 * (made.depth // 2) - 1: COLORS[1], 2 * made.depth - 1: COLORS[2]}
    for i, layer in enumerate(made.network.children()):
        x = layer(x)
        if i in shown:
            place = torch.linspace(0, 1, x.shape[1])
            left.plot(place, x[0] / x.max(), ".-", linewidth=0.7, color=shown[i],
                      label=f"layer {i // 2 + 1}")  # fmt: skip
    left.set(xlabel="place, first to last", ylabel="value / largest", title="units kept active")
    left.legend()
    layers = [row[0] for row in ladder]
    middle.loglog(layers, [row[2] for row in ladder], color="0.4", label="promised")
    middle.loglog(layers, [row[3] for row in ladder], "o", color=COLORS[0], label="measured")
    start = ladder[0][3]
    theory = [start * math.sqrt(math.log(n) / math.log(layers[0])) * (n / layers[0]) ** (-5 / 6) for n in layers]
    middle.loglog(layers, theory, "--", color=COLORS[1], label="rate of the theorem")
    middle.set(xlabel="layers", ylabel="largest error", title="three plane waves")
    middle.set_xticks(layers[::2], [str(n) for n in layers[::2]])
    middle.minorticks_off()
    middle.legend()
    errors, least, printed = depths
    accuracy = [-e for e in errors]
    right.plot(accuracy, least, color=COLORS[0], label="least, by VC dimension")
    right.plot(accuracy, printed, "--", color=COLORS[1], label="printed, constant 1")
    right.set(xlabel=r"$\log_{10}1/\epsilon$", ylabel=r"$\log_{10}L$", title="depth, d = 10, r = 8")
    right.legend()
