"""Smooth functions hold labels, so a network that meets them all must have weights enough."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.memorization.label_coding import (
    label_function,
    read_labels,
    sawtooth_position,
    sine_frequency,
    sobolev_grid_norm,
)
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.bumps import BumpSum, SplineBump
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.rates.explicit_sizes import interpolant_units
from torchtheory.approximation.rates.lower_bounds import (
    label_cells,
    vc_minimum_weights,
    weights_vc_bound,
)
from torchtheory.approximation.rates.table import THEOREMS
from torchtheory.approximation.rates.theorems import Setting
from torchtheory.expressivity.folding import sawtooth_network
from torchtheory.generalization.vc.growth import halfspaces, intervals, rectangles, shatters
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.generalization.vc.shattering import radon_partition, relu_shattering
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.nets.feedforward import dense, parameter_count


@lab(
    "label-coding",
    room="approximation",
    covers=["X-34", "X-35", "X-36"],
    title="Approximating every smooth function means shattering: $ε^{-d/2n}$ weights at least",
    errata=["levels-one-error-apart", "threshold-downwards", "label-heights"],
    full={"cells": 10, "sines": 40},
    least={"cells": 4, "sines": 29},
    most={"sines": 40},
)
def label_coding(run: Run, cells: int = 6, sines: int = 32) -> None:
    """Bumps in the unit ball of $W^{n,∞}$ carry one label a cell; whoever comes close reads them.

    The heights of the bumps are those the ball allows, and every approximation within half of it
    returns all labels: broken lines of ReLUs are built for all labelings of `cells` cells and read. So an
    architecture that meets the whole ball shatters $N^d$ points, and with at most 4M(3M + 4) points
    for M weights the least number of weights follows, constants included. The VC dimension itself
    is found by exhaustion for half-spaces, intervals and boxes, and is infinite for sines; ReLU
    networks that end in a sawtooth shatter of the order of M² points. Look at the surface: it is
    flat except where a label is 1.

    Args:
        cells: that carry a label each.
        sines: points that the sines shatter, 29 to 40.
    """
    heights(run)
    reading(run)
    networks(run, cells)
    weights(run)
    dimensions(run, sines)
    run.figure(
        "bumps",
        plot,
        grid=(1, 2),
        caption="Left: a function of smoothness 2 on the square that holds 36 labels, seen from "
        "above. Right: the fewest weights for an error, by labels and by what is enough, d = 2.",
    )


#: why no network comes near the upper bound of the VC dimension
PROOF_COUNTS = (
    "the proof charges every weight with three operations and every operation with 4M points; the networks that "
    "shatter most, weights in front of a sawtooth, reach M²/20"
)


def labels_of(run: Run, count: int) -> Tensor:
    return (run.rand(count) < 0.5).long()


def heights(run: Run) -> None:
    """Values at the middles and the norm."""
    cases = [(n, d, k) for n in (1, 2, 3, 4) for d, k in ((1, 9), (2, 5), (3, 3))]
    made = [(label_function(labels_of(run, k**d), n, d), n, d, k) for n, d, k in cases]
    values = [f(cell_centers(((0.0, 1.0),) * d, k)) / f.height - f.coefficients for f, _, d, k in made]
    shifted = [f(cell_centers(((0.0, 1.0),) * d, k) * 0.97) / f.height - f.coefficients for f, _, d, k in made]
    says = run.states("X-35", r"f_y(x_m)=y_mc_\phi N^{-n}: \text{ largest deviation, in units of the height}")
    says.equal([float(v.abs().max()) for v in values], within=1e-12)
    says.fails("points off the middles", [float(v.abs().max()) for v in shifted])
    high = [BumpSum(f.coefficients, k, f.height * k, f.bump) for f, _, _, k in made]
    fine = {1: 41, 2: 21, 3: 9}
    says = run.states("X-35", r"\|f_y\|_{W^{n,\infty}}\le1")
    says.at_most([sobolev_grid_norm(f, fine[d]) for f, _, d, _ in made], 1.0, 1e-9)
    says.fails("height c $N^{1-n}$", [sobolev_grid_norm(f, 9) for f in high])
    run.refutes("label-heights", r"f_y(x_m)=y_mN^{-n} \text{ and } \|f_y\|_{W^{n,\infty}}\le1").at_most(
        [alternating_derivative(16, n) for n in (2, 3, 4)],
        1.0,
        where="labels 0, 1, 0, 1, ... at points 1/(N - 1) apart: differences bound the derivative "
        "of every function with these values from below",
    )


def alternating_derivative(count: int, n: int) -> float:
    r"""The least $\|f^{(n)}\|_\infty$ the values $y_mN^{-n}$ allow, by differences."""
    values = torch.arange(count, dtype=torch.float64) % 2 * float(count) ** -n
    return float(values.diff(n=n).abs().max()) * float(count - 1) ** n


def reading(run: Run) -> None:
    """Every approximation within half the level returns the labels."""
    right: list[float] = []
    wrong: list[float] = []
    for n, d, k in ((1, 1, 12), (2, 1, 12), (2, 2, 6), (3, 3, 3)):
        f = label_function(labels_of(run, k**d), n, d)
        y = f.coefficients.long()
        for share, kept in ((0.499, right), (0.501, wrong)):
            worst = (1 - 2 * y).double() * share * f.height

            def g(x: Tensor, f: BumpSum = f, worst: Tensor = worst) -> Tensor:
                return f(x) + worst

            kept.append(float((read_labels(g, f) == y).double().mean()))
    says = run.states("X-35", r"\|g-f_y\|_\infty<c_\phi N^{-n}/2: \text{ share of the labels that } g \text{ returns}")
    says.equal(right, 1.0)
    says.fails("an error of 0.501 instead of 0.499 of the level", wrong)
    cells, n = 8, 2
    labelings = (all_labelings(cells) > 0).long()
    error = float(cells) ** -n
    middle = torch.full((cells,), error / 2, dtype=torch.float64)
    bump = SplineBump(n)
    met, gaps, down = [], [], []
    for y in labelings[:: max(1, len(labelings) // 32)]:
        f = BumpSum(y.double(), cells, error, bump)
        x = cell_centers(((0.0, 1.0),), cells)
        gaps.append(float((f(x) - middle).abs().max()))
        thresholds = torch.linspace(0, error, 41, dtype=torch.float64)
        read = (middle[None] > thresholds[:, None]).long()
        met.append(float((read == y).double().mean(1).max()))
        down.append(float(((f(x) <= error / 2).long() == y).double().mean()))
    run.refutes(
        "levels-one-error-apart", r"\|g-f_y\|_\infty\le\epsilon=N^{-n}: \text{ share of labels a threshold returns}"
    ).at_least(met, 1.0, where=f"the constant ε/2 is within {max(gaps) / error:.2f} ε of every $f_y$ and holds none")
    run.refutes("threshold-downwards", r"\mathbf 1_{(-\infty,a]}(f_y(x_m))=y_m: \text{ share of the labels}").at_least(
        down, 1.0, where="the threshold at half the level, $f_y$ itself"
    )


def networks(run: Run, cells: int) -> None:
    """One architecture of ReLUs meets all label functions, so it shatters the middles."""
    shares: list[float] = []
    poor: list[float] = []
    sizes = []
    for n in (1, 2):
        y = (all_labelings(cells) > 0).long()
        # pieces so that the error is below half the level: |f'| <= 1, or |f''| <= 1
        level = SplineBump(n).height * float(cells) ** -n
        pieces = math.ceil(interpolant_units(0.49 * level, smooth=n == 2).size / cells) * cells
        for row in y:
            f = label_function(row, n)
            for count, kept in ((pieces, shares), (cells - 1, poor)):
                net = relu_interpolant(f, count, lipschitz=1.0)
                kept.append(float((read_labels(net, f) == row).double().mean()))
        sizes.append(network_size(relu_interpolant(label_function(y[-1], n), pieces,
                                                   lipschitz=1.0).network).parameters)  # fmt: skip
    says = run.states(
        ["X-34", "X-35"], r"\text{one architecture of ReLUs, all } 2^N \text{ labelings: share of labels read}"
    )
    says.equal(shares, 1.0)
    says.fails("one piece fewer than cells", poor)
    says = run.states("X-34", r"N^d\le\mathrm{VCdim}\le4M(3M+4): \text{ points shattered}")
    says.at_most(cells, [weights_vc_bound(m) for m in sizes], loose=PROOF_COUNTS)
    says.fails(
        "sines, which are no piecewise polynomials: 32 points with one parameter",
        32 if sine_labels_read(run, 32) == 1.0 else 0,
        promised=weights_vc_bound(1),
    )


def weights(run: Run) -> None:
    """The least number of weights: its exponent, and what networks really spend."""
    exponents, promised, wrong = [], [], []
    for n, d, r in ((1, 2, 0), (2, 2, 0), (2, 5, 0), (3, 4, 0), (2, 2, 1), (3, 4, 1)):
        errors = [10.0**-k for k in range(10, 19)]
        found = [vc_minimum_weights(e, n, d, derivative=r) for e in errors]
        exponents.append(fit_slope([1 / e for e in errors], [float(m) for m in found]).estimate)
        promised.append(d / (2 * (n - r)))
        wrong.append(d / (2 * n) if r else d / n)
    says = run.states("X-34", r"\text{exponent of the least } M \text{ in } 1/\epsilon: \ d/2(n-r)")
    says.equal(exponents, promised, 0.01, where="fitted to the numbers with their constants, ε from 1e-10 to 1e-18")
    says.fails("one label a weight, or derivatives not counted", exponents, promised=wrong)
    errors = [10.0**-k for k in range(2, 13)]
    spent = [3 * interpolant_units(e, smooth=n == 2).size + 1 for n in (1, 2) for e in errors]
    needed = [vc_minimum_weights(e, n, 1) for n in (1, 2) for e in errors]
    without = [label_cells(e, 1, 1) for e in errors]
    says = run.states("X-34", r"\text{least } M \text{ by labels} \le M \text{ of broken lines for the ball, } d=1")
    says.at_most(
        needed,
        spent,
        loose="$ε^{-1/2n}$ against $ε^{-1/n}$: the weights of broken lines depend continuously on the function, and "
        "only very deep networks whose weights do not come near the labels' count",
    )
    says.fails(
        "functions with one derivative, networks for two, and one label a weight",
        without,
        promised=spent[len(errors) :],
    )
    rows = {r.id: r for r in THEOREMS if r.function_class == "sobolev"}
    settings = [Setting(n, d, 0.1, weights_exponent=share * d / n)
                for n in (1, 2, 5) for d in (1, 4, 9) for share in (0.5, 0.7, 0.99)]  # fmt: skip
    says = run.states("X-34", r"d/2n\le\zeta")
    says.at_least([rows["X-37"].exponent(s) for s in settings], [rows["X-34"].exponent(s) for s in settings], 1e-12)
    says.fails(
        "derivatives in the error for the bound only",
        [rows["X-37"].exponent(s) for s in settings if s.smoothness > 1],
        promised=[s.dimension / (2 * (s.smoothness - 1)) for s in settings if s.smoothness > 1],
    )


def sine_labels_read(run: Run, count: int) -> float:
    """Share of labels that sines return at 2^-1, ..., 2^-count, over random labelings."""
    x = 2.0 ** -torch.arange(1, count + 1, dtype=torch.float64)
    rows = [labels_of(run, count) for _ in range(64)]
    read = [(torch.sin(sine_frequency(y) * x) > 0).long() for y in rows]
    return float(torch.stack([r == y for r, y in zip(read, rows, strict=True)]).double().mean())


def dimensions(run: Run, sines: int) -> None:
    """VC dimensions by exhaustion, and the class that has none."""
    line = torch.linspace(0, 1, 4, dtype=torch.float64).unsqueeze(1)
    diamond = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]).double()
    plane = run.randn(5, 2)
    simplex = torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()
    kept = [
        shatters(intervals, line[:2]),
        shatters(rectangles, diamond),
        shatters(halfspaces, simplex[:3, :2]),
        shatters(halfspaces, simplex),
    ]
    more = [
        shatters(intervals, line[:3]),
        shatters(rectangles, plane),
        shatters(halfspaces, plane[:4]),
        shatters(halfspaces, run.randn(5, 3)),
    ]
    says = run.states("X-36", r"\text{intervals shatter 2 points, boxes 4, half-spaces of } \mathbb R^d\ d+1")
    says.equal([float(k) for k in kept], 1.0)
    says.fails("one point more", [float(m) for m in more])
    splits = [radon_partition(run.randn(d + 2, d)).residual for d in range(1, 8)]
    run.states("X-36", r"d+2 \text{ points are never shattered: the hulls of Radon's two groups meet}").equal(
        splits, within=1e-9
    )
    x = torch.arange(1, 5, dtype=torch.float64)
    theta = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    seen = torch.unique((torch.sin(theta[:, None] * x) > 0).long(), dim=0)
    says = run.states("X-36", r"\mathbf 1[\sin\theta x>0] \text{ returns all labels at } 2^{-1},\dots,2^{-m}")
    says.equal([sine_labels_read(run, m) for m in (1, 4, 10, 20, sines)], 1.0)
    says.fails("the points 1, 2, 3, 4, all frequencies: share of the 16 labelings", len(seen) / 16)
    shattered(run, sines)


def shattered(run: Run, sines: int) -> None:
    """What ReLU networks shatter, against the number of their weights."""
    counts = [4, 8, 12]
    net_sizes, hit = [], []
    for m in counts:
        points = run.randn(m, 3)
        net, output = relu_shattering(points)
        with torch.no_grad():
            hidden = net[1](net[0](points))
        hit.append(float(((output @ hidden.T).sign() == all_labelings(m)).double().mean()))
        net_sizes.append(parameter_count([3, m, 1]))
    folds = (4, 8, 16, 32)
    deep = [sawtooth_labels_read(run, m, m) for m in folds]
    says = run.states(
        "X-36",
        r"\mathbf 1[\Delta^m(\theta\cdot x)>\tfrac12]: \text{ share of the labels at } 2^{j-m}e_i,\ i\le5m,\ j\le m",
    )
    says.equal([share for share, _ in deep], 1.0)
    says.fails("one fold fewer", [sawtooth_labels_read(run, m, m - 1)[0] for m in folds])
    run.states(
        "X-36", r"C \text{ cannot be small: these } M \text{ weights shatter at least } (M-1)^2/20 \text{ points}"
    ).at_least([5 * m * m for m in folds], [(weights - 1) ** 2 / 20 for _, weights in deep])
    says = run.states("X-36", r"m \text{ points shattered by } M \text{ weights: } m\le4M(3M+4)")
    says.at_most(
        [m if h == 1.0 else math.inf for m, h in zip(counts, hit, strict=True)]
        + [5 * m * m if share == 1.0 else math.inf for m, (share, _) in zip(folds, deep, strict=True)],
        [weights_vc_bound(s) for s in net_sizes + [weights for _, weights in deep]],
        loose=PROOF_COUNTS,
    )
    says.fails(
        "sines: one parameter, and as many points as you like",
        sines if sine_labels_read(run, sines) == 1.0 else 0,
        promised=weights_vc_bound(1),
    )


def sawtooth_labels_read(run: Run, count: int, folds: int) -> tuple[float, int]:
    r"""Share of random labels that a unit in front of a sawtooth returns, and its weights.

    The $5m^2$ points are $2^{j-m}e_i$: every direction has a weight of its own, and the folds, five
    weights each, serve them all.
    """
    inputs = 5 * count
    scale = 2.0 ** torch.arange(1 - count, 1, dtype=torch.float64)
    x = (scale[:, None, None] * torch.eye(inputs, dtype=torch.float64)).reshape(-1, inputs)
    shares = []
    for _ in range(8):
        y = labels_of(run, count * inputs).reshape(count, inputs)
        theta = torch.tensor([sawtooth_position(column) for column in y.T], dtype=torch.float64)
        # the threshold 1/2 is the bias of the output
        net = nn.Sequential(dense(theta[None]), nn.ReLU(), *sawtooth_network(folds))
        last = net[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.fill_(-0.5)
            shares.append(float(((net(x)[:, 0] > 0) == y.flatten()).double().mean()))
    return sum(shares) / len(shares), network_size(net).parameters


def plot(axes: Any) -> None:
    left, right = axes[0]
    generator = torch.Generator().manual_seed(1)
    y = (torch.rand(36, generator=generator) < 0.5).long()
    f = label_function(y, 2, 2)
    x = cell_centers(((0.0, 1.0),) * 2, 150)
    image = (f(x) / f.height).reshape(150, 150).T
    shown = left.imshow(image, origin="lower", extent=(0, 1, 0, 1), cmap="viridis")
    left.figure.colorbar(shown, ax=left, label="value / level")
    left.set(xlabel="$x_1$", ylabel="$x_2$", title="36 labels in a smooth function")
    left.grid(False)
    errors = [10 ** (-k / 4) for k in range(12, 41)]
    for color, n in zip(COLORS, (1, 2), strict=False):
        right.loglog(errors, [vc_minimum_weights(e, n, 2) for e in errors], color=color,
                     label=f"needed by labels, n = {n}")  # fmt: skip
        right.loglog(errors, [e ** (-2 / n) for e in errors], "--", color=color,
                     label=f"order that is enough, n = {n}")  # fmt: skip
    right.invert_xaxis()
    right.set(xlabel="error", ylabel="weights", title="d = 2")
    right.legend()
