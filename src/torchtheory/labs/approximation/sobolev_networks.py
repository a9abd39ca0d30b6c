"""Smooth functions by deep ReLU networks: Taylor polynomials, glued together and multiplied out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.architectures.skip_connections import (
    skip_local_line,
    skip_taylor_network,
    skip_to_plain,
)
from torchtheory.approximation.certificates import box_grid, network_size
from torchtheory.approximation.piecewise.function_norms import multi_indices, partial_derivatives
from torchtheory.approximation.piecewise.partition_of_unity import (
    partition_of_unity_values,
    patch_centers,
    trapezoid_network,
)
from torchtheory.approximation.piecewise.yarotsky import (
    SmoothApproximant,
    cells_and_levels,
    local_monomial,
    product_error,
    smooth_network,
    taylor_patches,
)
from torchtheory.approximation.rates.explicit_sizes import yarotsky_units
from torchtheory.approximation.targets import Function, values_of
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab
from torchtheory.primer.function_spaces import slobodeckij_seminorm

YAROTSKY = ["X-31", "A-92"]


def wave(x: Tensor) -> Tensor:
    """Every derivative is at most 1."""
    return torch.sin(x + 0.3)


def ripple(x: Tensor) -> Tensor:
    """Every partial derivative is at most 1."""
    return torch.sin(x[:, 0] + 0.5 * x[:, 1] + 0.3)


def fast(x: Tensor) -> Tensor:
    return torch.sin(20 * x)


#: smoothness, dimension, function, its norm
CASES: tuple[tuple[int, int, Function], ...] = (
    (1, 1, wave),
    (2, 1, wave),
    (3, 1, wave),
    (2, 2, ripple),
)


@lab(
    "sobolev-networks",
    room="approximation",
    covers=["X-30", "X-31", "X-32", "X-88", "A-92"],
    title="A ReLU network within ε of a smooth function, with its certificate",
    errata=["taylor-coefficient-by-order"],
    full={"halvings": 9, "points": 4001, "refinements": 5},
    least={"halvings": 3, "refinements": 3},
)
def sobolev_networks(run: Run, halvings: int = 4, points: int = 401, refinements: int = 4) -> None:
    """The network of Yarotsky's proof for errors ε halved `halvings` times, one and two variables.

    The measured error, its Taylor part and its product part each stay within their promise; the
    number of parameters follows $ε^{-d/n}$, with a logarithm, and the depth log 1/ε. The error of
    the derivative falls by one power of the number of patches less. With skips instead of handed
    on numbers a logarithm is saved; a running sum saves it as well. Look at how much smaller than
    its promise the error is, and at the two slopes.

    Args:
        points: of the grids on which errors are measured.
        refinements: numbers of patches 8, 16, 32, ..., so many of them, and two between any two.
    """
    gluing(run, points)
    made = certified(run, halvings, points)
    growth(run, halvings)
    derivatives = sobolev_slopes(run, refinements, points)
    ratios = skips(run)
    whole_networks(run, halvings)
    printed_taylor(run)
    run.figure(
        "certificates",
        lambda axes: plot(axes, made, derivatives, ratios),
        grid=(1, 3),
        caption="Left: promised (lines) and measured (marks) sup error against the number of "
        "parameters. Middle: the error in three norms against the number of patches, n = 2, d = 1. "
        "Right: parameters of a patch without skips, in multiples of those with skips.",
    )


def gluing(run: Run, points: int) -> None:
    total, most, outside, overlap, low = [], [], [], [], []
    beyond, wide, added = [], [], []
    for d, cells in ((1, 5), (2, 3), (3, 2)):
        x = run.rand(points, d)
        values = partition_of_unity_values(cells, x)
        far = (x.unsqueeze(1) - patch_centers(cells, d)).abs().amax(2) >= 1 / cells
        total.append(float((values.sum(1) - 1).abs().max()))
        beyond.append(float((partition_of_unity_values(cells, x + 1.2).sum(1) - 1).abs().max()))
        most.append(float(values.max()))
        low.append(float(values.min()))
        outside.append(float((values * far).abs().max()))
        wide.append(float((_wider(cells, x) * far).abs().max()))
        factors = [trapezoid_network(cells)(x[:, k : k + 1])[:, 0] for k in range(d)]
        added.append(max(0.0, float(torch.stack(factors).sum(0).max()) - 1))
        overlap.append(int((values > 1e-12).sum(1).max()) / 2**d)
    says = run.states("X-30", r"\sum_m\phi_m=1 \text{ on } [0,1]^d,\ d=1,2,3: \text{ largest difference}")
    says.equal(total, within=1e-12)
    says.fails("beyond the cube", beyond)
    says = run.states("X-30", r"0\le\phi_m\le1: \text{ largest distance from } [0,1]")
    says.equal([max(0.0, h - 1, -v) for h, v in zip(most, low, strict=True)], within=1e-12)
    says.fails("factors added instead of multiplied", added)
    says = run.states("X-30", r"|x_k-m_k/N|\ge1/N \text{ for some } k\implies\phi_m(x)=0")
    says.equal(outside, within=1e-12)
    says.fails("trapezoids of half as many cells around the same centers", wide)
    says = run.states("X-30", r"\#\{m:\phi_m(x)>0\}\le2^d: \text{ largest share of } 2^d")
    says.at_most(overlap, 1)
    says.fails(
        "trapezoids of half as many cells around the same centers",
        [int((_wider(8, run.rand(points, d)) > 1e-12).sum(1).max()) / 2**d for d in (1, 2)],
    )


def _wider(cells: int, x: Tensor) -> Tensor:
    """Products of trapezoids twice as wide, around the same centers."""
    made = torch.ones(len(x), 1, dtype=torch.float64)
    for k in range(x.shape[1]):
        t = 1.5 * cells * (x[:, k : k + 1] - torch.arange(cells + 1).double() / cells)
        made = (made.unsqueeze(2) * (2 - t.abs()).clamp(0, 1).unsqueeze(1)).flatten(1)
    return made


def certified(run: Run, halvings: int, points: int) -> dict[str, list[tuple[SmoothApproximant, float]]]:
    made: dict[str, list[tuple[SmoothApproximant, float]]] = {}
    taylor, taylor_promise, products, product_promise, coarse = [], [], [], [], []
    rows = []
    for n, d, f in CASES:
        x = torch.cat([box_grid(((0.0, 1.0),) * d, points if d == 1 else 41), run.rand(points, d)])
        exact = values_of(f, x)
        found = []
        for k in range(halvings if d == 1 else halvings - 2):
            a = smooth_network(f, n, d, 0.2 * 2.0**-k)
            values = a(x)
            ideal = taylor_patches(f, n, a.cells, x)
            found.append((a, float((values - exact).abs().max())))
            taylor.append(float((ideal - exact).abs().max()))
            taylor_promise.append(a.taylor_error)
            if n + d > 2:
                products.append(float((values - ideal).abs().max()))
                product_promise.append(a.product_error)
            rows.append((d, n, 0.2 * 2.0**-k, a.cells, a.size.depth, a.size.units,
                         a.size.parameters, a.taylor_error, taylor[-1], a.product_error,
                         float((values - ideal).abs().max()), found[-1][1]))  # fmt: skip
        made[f"d = {d}, n = {n}"] = found
    x = box_grid(((0.0, 1.0),), points)
    understated = [smooth_network(fast, 2, 1, 0.2 * 2.0**-k) for k in range(3)]
    missed = [float((a(x) - fast(x[:, 0])).abs().max()) for a in understated]
    says = run.states(YAROTSKY, r"\sup_{[0,1]^d}|f-\text{network}|\le\text{Taylor part}+\text{product part}\le\epsilon")
    says.at_most([e for row in made.values() for _, e in row], [a.bound for row in made.values() for a, _ in row])
    says.fails(
        "sin 20x, whose second derivative is 400 and not 1, as was said",
        missed,
        promised=[a.bound for a in understated],
    )
    cases = [(n, d, row) for (n, d, _), row in zip(CASES, made.values(), strict=True)]
    asked = [(n, d, 0.2 * 2.0**-k, a) for n, d, row in cases for k, (a, _) in enumerate(row)]
    says = run.states("X-31", r"\text{hidden units, from } n,d,\epsilon \text{ alone, of the network within }\epsilon")
    says.equal(
        [a.size.units for *_, a in asked],
        [yarotsky_units(e, n, d).size for n, d, e, _ in asked],
        where="no derivative of these functions is 0 at a center, so no part is left out",
    )
    says.fails("the count for twice the error", [yarotsky_units(2 * e, n, d).size for n, d, e, _ in asked])
    says = run.states("X-31", r"\|f-f_1\|_\infty\le\tfrac1{n!}\bigl(\tfrac{2d}{3N}\bigr)^n\le\tfrac{2^dd^n}{n!}N^{-n}")
    says.at_most(taylor, taylor_promise, 1e-14)
    says.fails(
        "sin 20x",
        [float((taylor_patches(fast, 2, a.cells, x) - fast(x[:, 0])).abs().max()) for a in understated],
        promised=[a.taylor_error for a in understated],
    )
    for m in (2, 4, 6):
        few = smooth_network(wave, 2, 1, cells=4, levels=max(1, m - 3))
        ideal = taylor_patches(wave, 2, 4, x)
        coarse.append((float((few(x) - ideal).abs().max()), product_error(2, 1, m)))
    says = run.states(
        "X-31", r"\|f_1-\text{network}\|_\infty\le2^d\,4^{-(\ell+1)}\sum_{|\alpha|<n}(d+|\alpha|-1)/\alpha!"
    )
    says.at_most(products, product_promise)
    says.fails("squares of three levels less", [e for e, _ in coarse], promised=[p for _, p in coarse])
    run.table(
        "networks",
        ["d", "n", "ε", "N", "affine layers", "units", "parameters", "Taylor promised",
         "Taylor measured", "products promised", "products measured", "error"],
        rows,
        caption="Networks for sin(x + 0.3) and sin(x + y/2 + 0.3); only non-zero parameters count",
    )  # fmt: skip
    return made


def growth(run: Run, halvings: int) -> None:
    """Decided beforehand: errors from 4^-5 on, exponent within 0.1."""
    errors = [2.0 ** -(10 + k) for k in range(2 * halvings)]
    exponents: dict[tuple[int, int], Interval] = {}
    depths, promised = [], []
    for n, d, f in CASES[1:3]:
        made = [smooth_network(f, n, d, e) for e in errors]
        per_level = [a.size.parameters / a.size.depth for a in made]
        exponents[n, d] = fit_slope([1 / e for e in errors], per_level)
        for a, e in zip(made, errors, strict=True):
            depths.append(a.size.depth)
            trees = math.ceil(math.log2(n))
            promised.append(trees * (math.log2(8 * n / e) / 2 + 1) + 3)
    for (n, d), found in exponents.items():
        other = exponents[5 - n, d]
        says = run.states(YAROTSKY, rf"M/L\sim\epsilon^{{-d/n}}: \text{{ exponent for }} d={d},\ n={n}")
        # one derivative less, and a power of the logarithm only
        says.slope(found, d / n, 0.1, against=(d / (n - 1), 0.0))
        says.fails(f"n = {5 - n}", other)
    slow = [smooth_network(wave, 2, 1, 2.0**-8, levels=m).size.depth for m in (20, 30)]
    says = run.states(YAROTSKY, r"L\le\lceil\log_2(d+n-1)\rceil\bigl(\tfrac12\log_2\tfrac{8n}\epsilon+1\bigr)+3")
    says.at_most(depths, promised)
    says.fails("more levels than the error asks for", slow, promised=promised[0])


def sobolev_slopes(run: Run, refinements: int, points: int) -> dict[str, list[float]]:
    """Decided beforehand: exponents within 0.1, N from 8 on, squares of 16 levels."""
    found: dict[str, list[float]] = {"patches": [], "0": [], "1/2": [], "1": []}
    x = run.rand(4 * points, 1)
    for k in range(3 * refinements - 2):
        cells = round(8 * 2 ** (k / 3))
        a = smooth_network(wave, 2, 1, cells=cells, levels=16)

        def gap(t: Tensor, a: SmoothApproximant = a) -> Tensor:
            at = t.reshape(-1, 1)
            left: Tensor = a.network(at)[:, 0] - wave(at[:, 0])
            return left.reshape(t.shape)

        both = partial_derivatives(gap, x, 1)
        found["patches"].append(cells + 1.0)
        found["0"].append(float(both[(0,)].abs().max()))
        found["1"].append(max(float(v.abs().max()) for v in both.values()))
        found["1/2"].append(slobodeckij_seminorm(gap, 0.5, 2, 0.0, 1.0, panels=3 * cells // 4))
    slopes = {r: fit_slope(found["patches"], found[r], 0.95) for r in ("0", "1/2", "1")}
    for r, exponent, other in (("0", 2.0, "1"), ("1/2", 1.5, "0"), ("1", 1.0, "0")):
        fitted, wrong = slopes[r], slopes[other]
        says = run.states(
            ["X-32", "A-92"],
            rf"\text{{error in }} W^{{r,p}}\sim M^{{-(n-r)/d}}: \text{{ exponent, }} n=2,\ d=1,\ r={r}",
        )
        says.slope(
            fitted,
            -exponent,
            0.1,
            against=(-exponent - 0.5, -exponent + 0.5),
            where="at a fixed number of levels, so that M is a multiple of the number of patches",
        )
        says.fails(f"the error with r = {other}", wrong)
    return found


def skips(run: Run) -> list[tuple[int, float, float]]:
    """Decided beforehand: twice the levels raise the ratio at least 1.5-fold."""
    x = (2 * run.rand(400, 1) - 1) * 0.5
    apart, wrong, rows = [], [], []
    for levels in (2, 4, 8, 16, 32, 64):
        skip = skip_local_line(4, levels)
        plain = skip_to_plain(skip)
        kept = local_monomial((1,), 4, levels)
        if levels <= 16:
            apart += [
                float((skip(x) - plain(x)).abs().max()),
                float((skip(x) - kept(x)).abs().max()),
            ]
            wrong.append(float((skip_local_line(4, levels)(x) - x).abs().max()))
        counts = [network_size(net).parameters for net in (plain, kept)]
        rows.append((levels, skip.nonzero_parameters, *counts))
    says = run.states("X-88", r"\text{with skips, without, and with a running sum: the same function}")
    says.equal(apart, within=1e-12)
    says.fails("without the trapezoid", wrong)
    ratio = [(m, plain / skip, kept / skip) for m, skip, plain, kept in rows]
    pairs = list(itertools.pairwise(ratio[3:]))
    says = run.states(
        "X-88", r"M_{\text{plain}}/M_{\text{skip}}\sim\log_2(1/\epsilon): \text{ twice the levels, factor}"
    )
    says.at_least([b[1] / a[1] for a, b in pairs], 1.5, where="a patch with 16, 32 and 64 levels")
    says.fails("a plain network with a running sum", [b[2] / a[2] for a, b in pairs])
    run.note(
        "the second logarithm is the price of handing every saw-tooth on to the end: a running sum "
        "removes it from plain networks as well"
    )
    run.table(
        "skips",
        ["levels", "with skips", "numbers handed on", "running sum"],
        rows,
        caption="Non-zero parameters of x ψ(3Nx), one patch of the network for d = 1, n = 2",
    )
    return ratio


def whole_networks(run: Run, halvings: int) -> None:
    """Decided beforehand: the ratio gains between 1/10 and 1/7 with every further quarter of ε."""
    x = run.rand(200, 1)
    apart, rows = [], []
    for k in range(2, 3 + min(halvings, 5)):
        cells, levels = cells_and_levels(2, 1, 4.0**-k)
        skip = skip_taylor_network(wave, cells, levels)
        plain = skip_to_plain(skip)
        kept = smooth_network(wave, 2, 1, 4.0**-k)
        apart += [
            float((skip(x) - plain(x)).abs().max()),
            float((skip(x)[:, 0] - kept(x)).abs().max()),
        ]
        rows.append((4.0**-k, cells + 1, levels, skip.nonzero_parameters,
                     network_size(plain).parameters, kept.size.parameters))  # fmt: skip
    cells, levels = cells_and_levels(2, 1, 1 / 16)
    fewer = skip_taylor_network(wave, cells, max(1, levels - 1))
    says = run.states(
        "X-88", r"\text{the network for the whole interval, with skips, without, with running sums: the same function}"
    )
    says.equal(apart, within=1e-10)
    says.fails("one level less", float((fewer(x)[:, 0] - smooth_network(wave, 2, 1, 1 / 16)(x)).abs().max()))
    ratio = [(plain / skip, kept / skip) for *_, skip, plain, kept in rows]
    gains = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ratio)]
    says = run.states(
        "X-88",
        r"M_{\text{plain}}/M_{\text{skip}} \text{ gains a constant whenever }\epsilon "
        r"\text{ is quartered: } M\sim\epsilon^{-1/2}\log^2 \text{ against } \epsilon^{-1/2}\log",
    )
    says.at_least(
        [a for a, _ in gains],
        0.1,
        where="a level more is 4 numbers more to hand on through every later layer, 2 levels² "
        "a patch, and 14 weights with skips: the gain tends to 1/7 from below",
    )
    says.fails("running sums", [b for _, b in gains])
    run.states("X-88", r"\text{and no more than that constant, } 1/7").at_most([a for a, _ in gains], 1 / 7)
    run.table(
        "whole-networks",
        ["ε", "patches", "levels", "with skips", "numbers handed on", "running sums"],
        rows,
        caption="Non-zero parameters of the whole network for sin(x + 0.3), d = 1, n = 2",
    )


def printed_taylor(run: Run) -> None:
    """With one coefficient an order, not even x_1 is its own Taylor polynomial in the plane."""
    left = []
    for h in (1.0, 0.1, 0.01):
        x = h * (2 * box_grid(((0.0, 1.0), (0.0, 1.0)), 7) - 1)
        by_order = torch.stack(
            [
                sum((x[:, 0] ** a * x[:, 1] ** b for a, b in multi_indices(2, 2) if a + b == k),
                    start=torch.zeros(len(x)).double())
                for k in range(3)
            ],
            dim=1,
        )  # fmt: skip
        left.append(best_uniform_fit(by_order, x[:, 0]).error / h**3)
    run.refutes(
        "taylor-coefficient-by-order", r"\inf_c\sup_{|x|\le h}|x_1-\sum_{|\alpha|\le2}c_{|\alpha|}x^\alpha|\,/\,h^3\le1"
    ).at_most(left, 1, where="h = 1, 0.1, 0.01 in the plane")


def plot(
    axes: Any,
    made: dict[str, list[tuple[SmoothApproximant, float]]],
    found: dict[str, list[float]],
    ratios: list[tuple[int, float, float]],
) -> None:
    left, middle, right = axes[0]
    for color, (label, row) in zip(COLORS, made.items(), strict=False):
        size = [a.size.parameters for a, _ in row]
        left.loglog(size, [a.bound for a, _ in row], color=color, linewidth=0.9)
        left.loglog(size, [e for _, e in row], "o", color=color, label=label)
    left.set(xlabel="non-zero parameters", ylabel="sup error", title="promise and measurement")
    left.legend()
    n = found["patches"]
    for color, (r, power) in zip(COLORS, (("0", 2.0), ("1/2", 1.5), ("1", 1.0)), strict=False):
        middle.loglog(n, found[r], "o", color=color, label=f"r = {r}")
        line = [found[r][0] * (v / n[0]) ** -power for v in n]
        middle.loglog(n, line, color=color, linewidth=0.8)
    middle.set_xticks([round(v) for v in n], [str(round(v)) for v in n])
    middle.minorticks_off()
    middle.set(xlabel="patches", title="error in $W^{r,p}$; lines: powers r - 2")
    middle.legend()
    levels = [m for m, _, _ in ratios]
    right.semilogx(levels, [a for _, a, _ in ratios], "o-", label="handed on", base=2)
    right.semilogx(levels, [b for _, _, b in ratios], "s-", label="running sum", base=2)
    right.set(xlabel="levels, about ½ log₂ 1/ε", title="parameters, with skips = 1")
    right.legend()
