"""Smooth activations multiply with a fixed number of units; deep ones with linearly many."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.polynomials.divided_differences import (
    activation_derivative,
    best_difference_step,
    good_bias,
    monomial_network,
)
from torchtheory.approximation.polynomials.smooth_gates import (
    best_product_step,
    deep_product_network,
    shallow_product_error,
    shallow_product_network,
    smooth_square_network,
)
from torchtheory.approximation.polynomials.squaring import square_network, squaring_levels
from torchtheory.labs.engine import COLORS, Run, lab

ACTIVATIONS = ("tanh", "logistic", "softplus", "exp", "sin")
X = torch.linspace(-1, 1, 401, dtype=torch.float64)


@lab(
    "smooth-gates",
    room="approximation",
    covers=["X-29", "X-67"],
    title="Two smooth units square, four multiply; d factors take $2^d$ units or 4(d - 1)",
    full={"factors": 12, "points": 4000},
    least={"factors": 4, "points": 50},
)
def smooth_gates(run: Run, factors: int = 8, points: int = 500) -> None:
    """Differences of a smooth activation square and multiply, with a step h instead of layers.

    The measured errors stay below Taylor's remainder plus what rounding can add, for steps from
    0.5 to 10⁻⁶; they fall with h², with the predicted constant, until rounding takes over; the
    number of weights never changes. Products of d factors are then made by one layer of $2^d$ units
    and by a tree of 4(d - 1). Units that do not sit where the formula takes its derivative spoil
    everything. Look at the V of the left panel, and at how much earlier the shallow network meets
    the limit of double precision.

    Args:
        factors: of a product, at most.
        points: random points.
    """
    centers = {a: good_bias(a, 4)[0] for a in ACTIVATIONS}
    curves = squares(run, centers)
    rates(run, centers)
    constant_size(run)
    exact_identity(run, factors)
    rows = many(run, factors, points)
    run.figure(
        "smooth-products",
        lambda axes: plot(axes, curves, rows),
        grid=(1, 3),
        caption="Left: error of the square against the step, measured (marks) and promised "
        "(lines). Middle: units of a product of d factors. Right: its error at the best step in "
        "double precision.",
    )


def square_error(a: Approximant) -> float:
    return float((a(X) - X**2).abs().max())


def moved(a: Approximant, by: float) -> Approximant:
    """The same network with its units at another point than the formula's."""
    first = next(m for m in a.network.modules() if isinstance(m, nn.Linear))
    first.bias.add_(by)
    return a


def squares(run: Run, centers: dict[str, float]) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Measured errors against Taylor's remainder plus rounding."""
    steps = [0.5 * 10 ** (-0.75 * j) for j in range(8)]
    curves = {}
    wrong, wrong_promise = [], []
    for name, center in centers.items():
        made = [smooth_square_network(name, center, h) for h in steps]
        curves[name] = (steps, [a.bound for a in made], [square_error(a) for a in made])
        fine = smooth_square_network(name, center, 1e-2)
        wrong_promise.append(fine.bound)
        wrong.append(square_error(moved(fine, 0.3)))
    says = run.states(
        "X-29",
        r"\Big|\tfrac{\sigma(x_0+hx)-2\sigma(x_0)+\sigma(x_0-hx)}{h^2\sigma''(x_0)}-x^2\Big|"
        r"\le\tfrac{h^2}{12}\tfrac{\max|\sigma''''|}{|\sigma''(x_0)|}+\text{rounding}",
    )
    says.at_most(
        [e for *_, errors in curves.values() for e in errors], [b for _, bounds, _ in curves.values() for b in bounds]
    )
    says.fails("units at x₀ + 0.3", wrong, promised=wrong_promise)
    return curves


def rates(run: Run, centers: dict[str, float]) -> None:
    """The square of the step, with the constant of the next Taylor term."""
    steps = [0.2 * 2.0**-j for j in range(5)]
    for name in ("softplus", "tanh"):
        errors = [square_error(smooth_square_network(name, centers[name], h)) for h in steps]
        one_sided = [square_error(monomial_network(2, name, centers[name], h)) for h in steps]
        says = run.states("X-29", rf"\text{{the error falls as }} h^2 \text{{ ({name})}}")
        says.slope(steps, errors, 2.0, 0.02, against=(1.0, 3.0))
        says.fails("differences to one side", steps, one_sided)
    ratios = []
    for name, center in centers.items():
        at = torch.tensor(center, dtype=torch.float64)
        fourth = float(activation_derivative(name, at, 4) / activation_derivative(name, at, 2))
        h = 0.01
        error = square_error(smooth_square_network(name, center, h))
        ratios.append(error / (h**2 / 12 * abs(fourth)))
    coarse = square_error(smooth_square_network("tanh", centers["tanh"], 1.0))
    at = torch.tensor(centers["tanh"], dtype=torch.float64)
    tanh = float(activation_derivative("tanh", at, 4) / activation_derivative("tanh", at, 2))
    says = run.states(
        "X-29", r"\sup|\ldots-x^2|\big/\tfrac{h^2}{12}\big|\tfrac{\sigma''''(x_0)}{\sigma''(x_0)}\big|\to1"
    )
    says.equal(ratios, 1.0, 0.01, where="at h = 0.01, five activations")
    says.fails("h = 1, where the next terms count", coarse / (abs(tanh) / 12))


def constant_size(run: Run) -> None:
    """A fixed number of weights, where ReLU needs a layer more for a quarter of the error."""
    errors = [10.0**-k for k in range(2, 7)]
    smooth = [smooth_square_network("softplus", 0.0, math.sqrt(12 * e)) for e in errors]
    relu = [square_network(squaring_levels(e)) for e in errors]
    says = run.states(
        "X-29", r"\text{weights that are not 0, whatever }\epsilon: \text{ as many as at }\epsilon=10^{-2}"
    )
    says.equal([a.size.parameters for a in smooth], [smooth[0].size.parameters] * len(errors))
    says.fails(
        "the squaring network of ReLUs",
        [a.size.parameters for a in relu],
        promised=[relu[0].size.parameters] * len(errors),
    )
    run.table(
        "squares-of-equal-error",
        ["error at most", "softplus: measured", "weights", "depth", "ReLU: weights", "depth "],
        [
            (e, square_error(a), a.size.parameters, 2, r.size.parameters, r.size.depth)
            for e, a, r in zip(errors, smooth, relu, strict=True)
        ],
        caption="x² by softplus and by ReLU",
    )
    run.states("X-29", r"h=\sqrt{12\epsilon} \text{ gives an error below }\epsilon \text{ for softplus at 0}").at_most(
        [square_error(a) for a in smooth], errors
    )


def exact_identity(run: Run, factors: int) -> None:
    """The algebra behind it, in whole numbers."""
    gaps, wrong = [], []
    for d in range(2, min(factors, 9) + 1):
        x = torch.randint(-5, 6, (d,), generator=run.generator).tolist()
        x = [v or 1 for v in x]
        target = 2**d * math.factorial(d) * math.prod(x)
        gaps.append(abs(alternating(x, d) - target))
        wrong.append(abs(alternating(x, d + 2) - target))
    says = run.states("X-67", r"\sum_{s\in\{\pm1\}^d}\prod_is_i\Big(\sum_is_ix_i\Big)^d-2^dd!\prod_ix_i")
    says.equal(gaps, where="in whole numbers, without rounding")
    says.fails("the power d + 2", wrong)


def alternating(x: list[int], power: int) -> int:
    return sum(
        math.prod(s) * sum(a * b for a, b in zip(s, x, strict=True)) ** power for s in product((1, -1), repeat=len(x))
    )


def many(run: Run, factors: int, points: int) -> list[tuple[int, int, int, float, float]]:
    """Products of d factors by one layer and by a tree, each at its best step."""
    rows, promised, measured, wrong = [], [], [], []
    widths, counted = [], []
    center = 0.0
    gate_step = best_product_step(2, "exp", center)
    for d in range(2, factors + 1):
        # factors near ±1, where errors are handed on undiminished
        x = (1 - 0.5 * run.rand(points, d) ** 2) * run.signs(points, d)
        shallow = shallow_product_network(d, "exp", center, best_product_step(d, "exp", center))
        deep = deep_product_network(d, "exp", center, gate_step)
        errors = [product_error(a, x) for a in (shallow, deep)]
        promised += [shallow.bound, deep.bound]
        measured += errors
        rows.append((d, shallow.size.units, deep.size.units, errors[0], errors[1]))
        counted += [shallow.size.units]
        widths += [2**d]
        if d & (d - 1) == 0:
            counted.append(deep.size.units)
            widths.append(4 * (d - 1))
        other = shallow_product_network(d, "exp", center, best_product_step(d, "exp", center))
        wrong.append(product_error(moved(other, 0.5), x) / other.bound)
    says = run.states(
        "X-67",
        r"\Big|\prod x_i-\text{network}\Big|\le\text{truncation}+\text{rounding},\ d=2,3,\dots: "
        r"\text{ error over promise}",
    )
    says.at_most([m / p for m, p in zip(measured, promised, strict=True)], 1.0)
    says.fails("units at x₀ + 1/2", wrong)
    run.states(
        "X-67", r"\text{units: } 2^d \text{ (one layer)},\ 4(d-1) \text{ (tree, } d \text{ a power of 2)}"
    ).equal(counted, widths)
    larger = [row for row in rows if row[0] >= 4]
    smaller = [row for row in rows if row[0] < 4]
    says = run.states("X-67", r"\text{from } d=4 \text{ on the tree has fewer units: deep over shallow}")
    says.below([row[2] / row[1] for row in larger], 1.0)
    says.fails("two or three factors", [row[2] / row[1] for row in smaller])
    run.states(
        "X-67",
        r"\text{from } d=4 \text{ on the tree is a hundred times as accurate in doubles: error, deep over shallow}",
    ).below([row[4] / row[3] for row in larger], 0.01)
    parts = [shallow_product_error(d, "exp", center, 1e-2) for d in range(2, factors + 1)]
    run.table(
        "products-of-many",
        ["d", "units, one layer", "units, tree", "error, one layer", "error, tree",
         "rounding of one layer at h = 0.01"],
        [(*row, part.rounding) for row, part in zip(rows, parts, strict=True)],
        caption="Products by exp units, each network at its best step",
    )  # fmt: skip
    return rows


def product_error(a: Approximant, x: Tensor) -> float:
    return float((a(x) - x.prod(1)).abs().max())


def plot(
    axes: Any,
    curves: dict[str, tuple[list[float], list[float], list[float]]],
    rows: list[tuple[int, int, int, float, float]],
) -> None:
    left, middle, right = axes[0]
    for color, (name, (steps, bounds, errors)) in zip(COLORS, curves.items(), strict=False):
        left.loglog(steps, bounds, color=color, linewidth=0.8)
        left.loglog(steps, errors, "o", markersize=3, color=color, label=name)
    best = best_difference_step(2, "softplus", 0.0, central=True)
    left.axvline(best, color="0.6", linewidth=0.8, linestyle=":")
    left.set(xlabel="step h", ylabel="sup error", title="$x^2$ by two units")
    left.legend()
    d = [row[0] for row in rows]
    for axis, first in ((middle, 1), (right, 3)):
        axis.semilogy(d, [row[first] for row in rows], "o-", color=COLORS[1], label="one layer")
        axis.semilogy(d, [row[first + 1] for row in rows], "s-", color=COLORS[0], label="tree")
        axis.set(xlabel="factors d")
        axis.legend()
    middle.set(title="units")
    right.set(title="error in double precision")
