"""Which theorem covers which activation, and two of the constructions behind the chart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import network_size, sup_distance
from torchtheory.approximation.polynomials.divided_differences import smooth_layer
from torchtheory.approximation.universality.chart import (
    SPACES,
    UNIVERSALITY_CHART,
    which_universality,
)
from torchtheory.approximation.universality.discriminatory import ridge_units
from torchtheory.approximation.universality.fourier_networks import CosineSquasher, fourier_network
from torchtheory.approximation.universality.mollified_activations import (
    mollified_activation,
    smooth_bump,
    smoothed_relu_power,
)
from torchtheory.approximation.universality.uniform_fit import span_error
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.activations.table import as_layer

GRID = torch.linspace(-1, 1, 201, dtype=torch.float64).unsqueeze(1)


def square(z: Tensor) -> Tensor:
    return z**2


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "logistic": as_layer("logistic"),
    "tanh": as_layer("tanh"),
    "heaviside": as_layer("heaviside"),
    "relu": as_layer("relu"),
    "softplus": as_layer("softplus"),
    "gaussian": as_layer("gaussian"),
    "sin": smooth_layer("sin"),
    "cosine squasher": CosineSquasher(),
    "z²": square,
    "linear": as_layer("linear"),
}


@lab(
    "universality-chart",
    room="approximation",
    covers=["X-07"],
    title="Eight universality theorems, ten activations: which one covers which",
    full={"units": 256},
    least={"units": 16},
)
def universality_chart(run: Run, units: int = 96) -> None:
    """The chart of theorems is applied to ten activations by measuring their properties.

    All theorems cover the logistic unit, only Leshno's the ReLU, and none z². Where some theorem
    on C(K) applies, a network of `units` random units comes closer to three functions than a
    tenth of the best constant's error (the bound is set before the fit), and where none applies
    to a continuous function it does not. Look at the table: rows are theorems.
    """
    found = {name: which_universality(f) for name, f in ACTIVATIONS.items()}
    covered = {name: sum(c.applies for c in rows) for name, rows in found.items()}
    says = run.states("X-07", r"\text{theorems that cover: logistic, all; ReLU, Leshno's alone; } z^2, \text{ none}")
    says.equal([covered[name] for name in ("logistic", "relu", "z²")], [len(UNIVERSALITY_CHART), 1, 0])
    says.fails(
        "the logistic unit minus 1, the ReLU cut off at 1, z² plus a sine: one property changed in each",
        [
            sum(c.applies for c in which_universality(f))
            for f in (
                lambda z: torch.sigmoid(z) - 1,
                lambda z: z.clamp(0, 1),
                lambda z: z.square() + torch.sin(z),
            )
        ],
    )
    leshno = [name for name, rows in found.items() if rows[-1].applies]
    says = run.states("X-07", r"\text{ReLU fails Funahashi (bounded) and Cybenko (limits): hypotheses failed}")
    says.equal(
        [float("bounded" in found["relu"][0].failed), float("limits 0 and 1" in found["relu"][2].failed)], [1, 1]
    )
    says.fails(
        "the logistic unit",
        [float("bounded" in found["logistic"][0].failed), float("limits 0 and 1" in found["logistic"][2].failed)],
    )
    targets = [GRID[:, 0].abs(), torch.sin(5 * GRID[:, 0]), GRID[:, 0] ** 3]
    errors = {name: max(relative(run, f, y, units) for y in targets) for name, f in
              ACTIVATIONS.items() if name != "heaviside"}  # fmt: skip
    uncovered = [name for name, rows in found.items() if not any(c.applies for c in rows if "C(K)" in c.theorem.spaces)]
    says = run.states("X-07", r"\text{a theorem on } C(K) \text{ applies: error}\ /\ \text{best constant's}")
    says.below([errors[name] for name in leshno], 0.1, where=f"{units} random units, the worst of |x|, sin 5x and x³")
    says.fails("no theorem applies", [errors[name] for name in uncovered])
    run.table(
        "chart",
        ["theorem", "spaces", *ACTIVATIONS],
        [
            (
                theorem.authors,
                ", ".join(map(spelled, theorem.spaces)),
                *["yes" if found[name][i].applies else "no: " + ", ".join(
                    f"not {h}" if not h.startswith("not ") else h[4:] for h in found[name][i].failed
                ) for name in ACTIVATIONS],
            )
            for i, theorem in enumerate(UNIVERSALITY_CHART)
        ],
        caption="Which theorem covers which activation, or which hypothesis fails",
    )  # fmt: skip
    run.table(
        "spaces",
        ["space", *ACTIVATIONS],
        [
            (
                spelled(space),
                *[sum(c.applies for c in rows if space in c.theorem.spaces) for rows in found.values()],
            )
            for space in SPACES
        ],
        caption="How many theorems cover an activation, by the space of functions",
    )
    run.figure(
        "chart",
        lambda axis: plot_chart(axis, found),
        size=(8.4, 3.6),
        caption="Filled: the theorem covers the activation. The number: hypotheses that fail.",
    )


def spelled(space: str) -> str:
    """The name of a space of functions as a formula."""
    return {"C^n(K)": "$C^n(K)$", "Wnp(K)": "$W^{n,p}(K)$"}.get(space, space)


def relative(run: Run, f: Callable[[Tensor], Tensor], y: Tensor, units: int) -> float:
    features = ridge_units(f, units, GRID, steepness=8.0, generator=run.generator)
    return span_error(features, y) / (float(y.max() - y.min()) / 2)


def plot_chart(axis: Any, found: dict[str, Any]) -> None:
    failed = [[len(c.failed) for c in rows] for rows in found.values()]
    shown = torch.tensor([[float(n == 0) for n in row] for row in failed]).T
    axis.imshow(shown.numpy(), cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
    for i, row in enumerate(failed):
        for j, count in enumerate(row):
            if count:
                axis.text(i, j, str(count), ha="center", va="center", color="0.4", fontsize=8)
    axis.set_xticks(range(len(found)), list(found), rotation=30, ha="right")
    names = [t.authors.replace("Hornik, Stinchcombe and White", "Hornik et al.")
             .replace("Gallant and White 1988, ", "Gallant, White 1988;\n")
             .replace("Hornik et al. 1990, ", "Hornik et al. 1990;\n")
             for t in UNIVERSALITY_CHART]  # fmt: skip
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.grid(visible=False)


def rest(f: Callable[[Tensor], Tensor], made: Callable[[Tensor], Tensor], nodes: Tensor) -> float:
    """The L² distance on [-1, 1], by the midpoint rule."""
    return math.sqrt(2 * float((f(nodes) - made(nodes)).square().mean()))


@lab(
    "fourier-networks",
    room="approximation",
    covers=["X-08"],
    title="Squashers along half a cosine add up to cosines, and so to every Fourier sum",
    full={"largest": 64},
    least={"largest": 8},
)
def fourier_networks(run: Run, largest: int = 16) -> None:
    """Fourier sums of three functions up to frequency `largest`, as networks of squashers.

    On the interval the network is the partial sum up to rounding; beyond it, it is constant and
    no longer periodic. The mean square of what is left is the tail of the squared coefficients
    (Parseval), and falls with its rate. Look at the right panel.
    """
    terms = [2**k for k in range(largest.bit_length()) if 2**k <= largest]
    functions: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
        "|x|": (torch.abs, -1.5),
        "x": (lambda x: x, -0.5),
        "exp(cos πx)": (lambda x: torch.exp(torch.cos(math.pi * x)), math.nan),
    }
    x = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    outside = torch.linspace(3, 5, 101, dtype=torch.float64)
    nodes = (torch.arange(8192, dtype=torch.float64) + 0.5) / 4096 - 1
    same, beyond, rows = [], [], []
    left: dict[str, list[float]] = {}
    for name, (f, _) in functions.items():
        left[name] = []
        finest = fourier_network(f, 4 * largest, (-1.0, 1.0), samples=8192)
        size = 2 * finest.cosines[1:].square() / 2 + 2 * finest.sines[1:].square() / 2
        norm = float(f(nodes).square().mean()) * 2
        for n in terms:
            made = fourier_network(f, n, (-1.0, 1.0), samples=8192)
            same.append(float((made(x) - made.series(x)).abs().max()))
            beyond.append(float((made(outside) - made.series(outside)).abs().max()))
            found = rest(f, made, nodes)
            mean = float(finest.cosines[0]) ** 2 / 2
            tail = norm - mean - float(size[:n].sum())
            units = network_size(made.network).units
            rows.append((name, n, units, math.sqrt(max(tail, 0.0)), found))
            left[name].append(found)
    says = run.states("X-08", r"\text{network}=\text{partial Fourier sum on } [-1,1]: \text{ largest difference}")
    says.equal(same, within=1e-12)
    says.fails("on [3, 5]: the network is no longer periodic", beyond)
    says = run.states("X-08", r"\|f-S_nf\|_2^2=\|f\|_2^2-\tfrac{a_0^2}2-\sum_{k\le n}(a_k^2+b_k^2) \text{ (Parseval)}")
    says.equal([row[4] ** 2 for row in rows], [row[3] ** 2 for row in rows], 1e-9)
    says.fails(
        "a sup norm instead",
        [
            sup_distance(f, fourier_network(f, n, (-1.0, 1.0)), (-1.0, 1.0), most_points=1 << 10).lower ** 2
            for f, _ in functions.values()
            for n in terms
        ],
    )
    even = list(range(4, largest + 1, 2))  # |x| has odd frequencies only
    rates = {
        name: [rest(f, fourier_network(f, n, (-1.0, 1.0), samples=8192), nodes) for n in even]
        for name, (f, exponent) in functions.items()
        if not math.isnan(exponent)
    }
    for name, (_, exponent) in functions.items():
        if math.isnan(exponent):
            continue
        other = "x" if name == "|x|" else "|x|"
        says = run.states("X-08", rf"\|f-S_nf\|_2\sim n^{{{exponent:g}}} \text{{ for }} f={name.replace('|', '|')}")
        says.slope(even, rates[name], exponent, 0.1, against=(exponent - 0.5, exponent + 0.5))
        says.fails(f"{other} instead, of other smoothness", even, rates[other])
    run.table(
        "errors",
        ["function", "frequencies", "units", "L² tail", "L² error"],
        rows,
        caption="Fourier sums on [-1, 1] as networks of cosine squashers",
    )
    run.figure(
        "fourier",
        lambda axes: plot_fourier(axes, terms, left),
        grid=(1, 3),
        size=(13.0, 3.3),
        caption="Left: the squasher. Middle: |x| by frequencies up to 4, on the interval and "
        "beyond. Right: the error in the mean.",
    )


def plot_fourier(axes: Any, terms: list[int], left: dict[str, list[float]]) -> None:
    first, middle, right = axes[0]
    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    first.plot(x, CosineSquasher()(x), label="cosine squasher")
    first.plot(x, torch.sigmoid(2 * x), "--", color="0.5", label="logistic, σ(2x)")
    first.set(xlabel="x", title="half a wave")
    first.legend()
    made = fourier_network(torch.abs, 4, (-1.0, 1.0))
    x = torch.linspace(-2.5, 2.5, 1001, dtype=torch.float64)
    middle.plot(x, made.series(x), color="0.6", linewidth=1, label="Fourier sum")
    middle.plot(x, made(x), color=COLORS[0], label="network")
    middle.axvspan(-1, 1, color=COLORS[0], alpha=0.08, linewidth=0)
    middle.set(xlabel="x", title="the sum is met on [-1, 1]", ylim=(-0.05, 1.3))
    middle.legend(loc="upper center", ncols=2)
    for color, (name, row) in zip(COLORS, left.items(), strict=False):
        right.loglog(terms, row, "o-", markersize=4, color=color, label=name)
    right.set(xlabel="largest frequency", ylabel="L² error", title="what is left")
    right.legend()


@lab(
    "mollified-activations",
    room="approximation",
    covers=["X-13"],
    title="ReLUs summed along a bump are smooth, and powers follow by their differences",
    full={"nodes": 6400},
    least={"nodes": 256},
)
def mollified_activations(run: Run, nodes: int = 800) -> None:
    """A bump of width δ smooths ReLU, tanh and polynomials, by up to `nodes` units.

    Smoothed ReLUs equal ReLUs beyond δ and are smooth within; the sum over the nodes converges
    beyond any power for a smooth activation, and with the square of the spacing for ReLU.
    Polynomials of degree k stay polynomials of degree k. Differences of the smoothed ReLU give x²
    and x³ by ReLUs alone. Look at how far apart nodes may be.
    """
    width = 0.5
    x = torch.linspace(-2, 2, 401, dtype=torch.float64).unsqueeze(1)
    soft = mollified_activation("relu", width, nodes)(x)[:, 0]
    away = x[:, 0].abs() > width
    says = run.states("X-13", r"\mathrm{ReLU}*z=\mathrm{ReLU} \text{ for } |x|>\delta: \text{ largest difference}")
    says.equal((soft - torch.relu(x[:, 0]))[away].abs().max(), within=1e-9)
    says.fails("inside", (soft - torch.relu(x[:, 0]))[~away].abs().max())
    second = soft.diff(n=2) / 0.01**2
    inner = x[1:-1, 0]
    says = run.states("X-13", r"(\mathrm{ReLU}*z)''=z: \text{ largest difference of second differences}")
    says.equal(
        (second - smooth_bump(inner, width)).abs().max(),
        within=0.05,
        where="differences of step 0.01; z is at most 1.66",
    )
    says.fails("ReLU itself: a kink", (torch.relu(x[:, 0]).diff(n=2) / 0.01**2 - smooth_bump(inner, width)).abs().max())
    curves = quadrature(run, width, nodes)
    stays_polynomial(run, width)
    powers(run, nodes)
    run.figure(
        "mollified",
        lambda axes: plot_mollified(axes, width, curves),
        grid=(1, 2),
        caption="Left: ReLU and its smoothed copies. Right: the error of the sum over the nodes, "
        "at its fastest for a smooth activation.",
    )


def quadrature(run: Run, width: float, nodes: int) -> dict[str, tuple[list[int], list[float]]]:
    """The trapezoid sum against one on many more nodes."""
    x = torch.linspace(-1, 1, 97, dtype=torch.float64).unsqueeze(1)
    # 2^k - 1 nodes: a spacing of 2δ/2^k
    counts = [2**k - 1 for k in range(2, nodes.bit_length())]
    curves = {}
    for name in ("tanh", "relu"):
        exact = mollified_activation(name, width, 2**15 - 1)(x)
        errors = [float((mollified_activation(name, width, n)(x) - exact).abs().max()) for n in counts]
        curves[name] = (counts, errors)
    # exponents of the spacing, from 15 to 63 and from 63 to 255 nodes
    growth = {}
    for name, (_, errors) in curves.items():
        a, b, c = (errors[counts.index(n)] for n in (15, 63, 255))
        growth[name] = math.log(b / c, 4) - math.log(a / b, 4)
    says = run.states("X-13", r"\text{smooth } \sigma: \text{ the exponent of the spacing grows as it falls}")
    # decided beforehand: by 3, which no power of the spacing would do
    says.above(growth["tanh"], 3.0, where="from 15 to 63, then to 255 nodes: no power bounds the rate")
    says.fails("ReLU, with a kink: always the square", growth["relu"])
    run.table(
        "nodes",
        ["nodes", *curves],
        [(n, *[row[i] for _, row in curves.values()]) for i, n in enumerate(counts)],
        caption="Sup error on [-1, 1] of the sum over the nodes, δ = 1/2",
    )
    return curves


def stays_polynomial(run: Run, width: float) -> None:
    lattice = torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(1)
    found, bent = [], []
    for k in (1, 2, 3):
        made = mollified_activation(lambda z, k=k: z**k, width, 101)(lattice)[:, 0]  # type: ignore[misc]
        found.append(float(made.diff(n=k + 1).abs().max()))
        bent.append(float(mollified_activation("relu", width, 101)(lattice)[:, 0].diff(n=k + 1)
                          .abs().max()))  # fmt: skip
    says = run.states("X-13", r"\deg\sigma=k\implies\sigma*z \text{ of degree } k: \text{ differences of order } k+1")
    says.equal(found, within=1e-11)
    says.fails("ReLU", bent)


def powers(run: Run, nodes: int) -> None:
    """x² and x³ by ReLUs alone, as the step falls and the nodes keep up."""
    x = torch.linspace(-1, 1, 101, dtype=torch.float64).unsqueeze(1)
    steps = [0.4, 0.2, 0.1]
    rows = []
    for k in (2, 3):
        for h in steps:
            made = smoothed_relu_power(k, 1.0, nodes, h)
            error = float((made(x) - x**k).abs().max())
            size = network_size(made)
            rows.append((k, h, size.units, error, size.largest))
    squares = [row[3] for row in rows if row[0] == 2]
    coarse = float((smoothed_relu_power(2, 1.0, 15, steps[-1])(x) - x**2).abs().max())
    # (ReLU * z)''' and '''' are z' and z'': second order in h with max |z''| / z(0)
    y = torch.linspace(-0.4, 0.4, 801, dtype=torch.float64)
    bend = float((smooth_bump(y, 1.0).diff(n=2) / 0.001**2).abs().max())
    top = float(smooth_bump(torch.zeros(1, dtype=torch.float64), 1.0))
    # a kink of size z inside a cell of length Δ costs the sum at most zΔ²/8, and the second
    # difference divides four such values by h² z(0)
    spacing = 2 / (nodes + 1)
    promised = [h**2 / 12 * bend / top + spacing**2 / (2 * h**2) for h in steps]
    says = run.states("X-13", r"x^2 \text{ by ReLUs: error}\le\tfrac1{12}h^2\max|z''|/z(0)+\Delta^2/2h^2")
    says.at_most(squares, promised)
    says.fails("15 nodes: the differences see the kinks", coarse, promised=promised[-1])
    run.table(
        "powers",
        ["power", "step h", "ReLUs", "sup error on [-1, 1]", "largest weight"],
        rows,
        caption="Powers by differences of smoothed ReLUs",
    )


def plot_mollified(axes: Any, width: float, curves: dict[str, tuple[list[int], list[float]]]) -> None:
    left, right = axes[0]
    x = torch.linspace(-1, 1, 401, dtype=torch.float64)
    left.plot(x, torch.relu(x), color="0.5", linewidth=1, label="ReLU")
    for color, n in zip(COLORS, (3, 201), strict=False):
        made = mollified_activation("relu", width, n)
        left.plot(x, made(x.unsqueeze(1))[:, 0], color=color, label=f"{n} nodes")
    left.plot(x, smooth_bump(x, width) / 10, ":", color="0.4", label="bump / 10")
    left.set(xlabel="x", title="smoothed over |y| < 1/2", xlim=(-0.6, 0.6), ylim=(-0.02, 0.6))
    left.legend()
    for color, (name, (counts, errors)) in zip(COLORS, curves.items(), strict=False):
        right.loglog(counts, errors, "o-", markersize=4, color=color, label=name)
    right.set(xlabel="nodes", ylabel="sup error", title="error of the sum")
    right.legend()
