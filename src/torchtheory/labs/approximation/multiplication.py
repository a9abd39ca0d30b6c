"""Products and polynomials by ReLU networks: what polarization promises, and keeps."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import Any, Literal

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant, box_grid
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.polynomials.divided_differences import (
    best_difference_step,
    good_bias,
    monomial_network,
)
from torchtheory.approximation.polynomials.products import (
    many_product_network,
    product_network,
    unit_product_network,
)
from torchtheory.approximation.polynomials.relu import (
    Polynomial,
    polynomial_levels,
    polynomial_network,
    polynomial_values,
)
from torchtheory.labs.engine import COLORS, Run, lab

Identity = Literal["difference", "sum"]
IDENTITIES: tuple[Identity, Identity] = ("difference", "sum")


@lab(
    "multiplication-network",
    room="approximation",
    covers=["A-91", "X-27", "X-28"],
    title="ReLU networks multiply within $B^24^{-n}$, and a factor 0 gives exactly 0",
    full={"levels": 10, "points": 40_000, "polynomials": 20},
    least={"levels": 2, "points": 100, "polynomials": 1},
)
def multiplication_network(run: Run, levels: int = 5, points: int = 2_000, polynomials: int = 2) -> None:
    """Products of two numbers by three polarization identities, of many numbers by trees of them,
    and random polynomials by trees for their monomials.

    Every measured error is held against its certificate, at random points and at the points where
    the theory puts the largest one, for several sizes. The certificate fails outside the box, and
    the identity for [0, 1] alone does not give 0 for a factor 0. Look at the pattern of the error:
    each level of the squares divides the mesh by two.

    Args:
        levels: of the squares that products are made of, at most.
        points: random points.
        polynomials: random polynomials per number of variables.
    """
    two_factors(run, levels, points)
    unit_square(run, levels, points)
    zeros(run, levels)
    slopes(run, levels)
    rows = many_factors(run, levels, points)
    random_polynomials(run, levels, points, polynomials)
    growth(run)
    run.figure(
        "product-errors",
        lambda axes: plot(axes, levels, rows),
        grid=(1, 3),
        caption="Left and middle: error of the product with 2 levels by the two identities on "
        "[-1, 1]². Right: promised (lines) and measured (marks) errors of products of k numbers.",
    )


def xy(x: Tensor) -> Tensor:
    return x.prod(1)


def worst(a: Approximant, x: Tensor) -> float:
    """The largest error of a product among the points."""
    return float((a(x) - xy(x)).abs().max())


def square_points(run: Run, n: int, bound: float, points: int) -> Tensor:
    """Random points of the square, and a quarter of the network's mesh around the middle."""
    mesh = 2 * bound / 2**n
    fine = box_grid(((-mesh, mesh),) * 2, 9)
    return torch.cat([bound * (2 * run.rand(points, 2) - 1), fine])


def two_factors(run: Run, levels: int, points: int) -> None:
    """Both identities on the square: error, range, depth."""
    promised, measured, outside, ranges, depths = [], [], [], [], []
    largest: dict[str, list[float]] = {i: [] for i in IDENTITIES}
    sizes = []
    for n in range(1, levels + 1):
        for bound in (1.0, 2.5):
            x = square_points(run, n, bound, points)
            for identity in IDENTITIES:
                a = product_network(n, bound, identity=identity)
                promised.append(a.bound)
                measured.append(worst(a, x))
                outside.append(worst(a, 1.5 * x))
                ranges.append(float(a(x).abs().max()) / bound**2)
                depths.append(a.size.depth)
                if bound == 1.0:
                    largest[identity].append(measured[-1] / a.bound)
                    sizes.append((identity, n, a.bound, measured[-1], a.size))
    says = run.states(
        "X-27",
        r"|\tilde\times(x,y)-xy|\le B^24^{-n} \text{ (three squares)},\ B^24^{-(n+1)} "
        r"\text{ (two)} \text{ on } [-B,B]^2",
    )
    says.at_most(measured, promised, 1e-12)
    says.fails("factors up to 3B/2", outside)
    run.states("X-27", r"\text{both bounds are attained: largest error over bound}").equal(
        [v for i in IDENTITIES for v in largest[i]], 1.0, 1e-9, where="at points of a quarter of the network's mesh"
    )
    beyond = product_network(2)(1.5 * square_points(run, 2, 1.0, points))
    says = run.states(["X-27", "X-28"], r"|\tilde\times(x,y)|\le B^2: \text{ products can be nested without clipping}")
    says.at_most(ranges, 1.0, 1e-12)
    says.fails("factors up to 3B/2", float(beyond.abs().max()))
    run.states("X-27", r"L=n+2").equal(depths, [n + 2 for n in range(1, levels + 1) for _ in range(4)])
    run.table(
        "products-of-two",
        ["identity", "n", "promised", "measured", "depth", "width", "units", "weights"],
        [(i, n, p, m, s.depth, s.width, s.units, s.parameters) for i, n, p, m, s in sizes],
        caption="xy on [-1, 1]²: two squares do better than three",
    )


def unit_square(run: Run, levels: int, points: int) -> None:
    """The identity of section 1.3 on [0, 1]²: the error lies between -δ and 2δ."""
    above, below, outside = [], [], []
    for n in range(1, levels + 1):
        a = unit_product_network(n)
        fine = box_grid(((0.0, min(1.0, 4.0 * 2.0**-n)),) * 2, 9)
        x = torch.cat([run.rand(points, 2), fine])
        error = (a(x) - xy(x)) * 4.0 ** (n + 1)
        above.append(float(error.max()))
        below.append(float(error.min()))
        far = (a(x - 1) - xy(x - 1)) * 4.0 ** (n + 1)
        outside.append(float(far.abs().max()))
    says = run.states(
        "A-91",
        r"|2s_n(\tfrac{x+y}2)-\tfrac12s_n(x)-\tfrac12s_n(y)-xy|\le2\delta: "
        r"\text{ largest, in units of }\delta=2^{-2n-2}",
    )
    says.at_most([max(a, -b) for a, b in zip(above, below, strict=True)], 2.0, 1e-9)
    says.fails("factors in [-1, 0], without absolute values", outside)
    run.states("A-91", r"\ldots\ge-\delta \text{ and both are attained: least and largest, in units of }\delta").equal(
        [v for pair in zip(below[1:], above[1:], strict=True) for v in pair],
        [-1.0, 2.0] * (levels - 1),
        1e-9,
        where="from n = 2 on; with one level -δ is not reached",
    )


def zeros(run: Run, levels: int) -> None:
    """A factor 0 gives 0, which localized sums depend on."""
    line = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    axis = torch.stack([line, torch.zeros_like(line)], 1)
    found, other = [], []
    for n in range(1, levels + 1):
        for identity in IDENTITIES:
            a = product_network(n, identity=identity)
            found += [float(a(axis).abs().max()), float(a(axis.flip(1)).abs().max())]
        other.append(float(unit_product_network(n)(axis[500:]).abs().max()))
    many = 2 * run.rand(500, 5) - 1
    many[torch.arange(500), torch.randint(5, (500,), generator=run.generator)] = 0
    found.append(float(many_product_network(5, levels)(many).abs().max()))
    says = run.states(["A-91", "X-27", "X-28"], r"\tilde\times(x,0)=\tilde\times(0,y)=0: \text{ largest value}")
    says.equal(found, within=1e-15)
    says.fails("the identity for [0, 1], where the three errors do not cancel", other)


def slopes(run: Run, levels: int) -> None:
    """The partial derivatives err by 2^-n, not 4^-n."""
    promised, measured = [], []
    for n in range(1, levels + 1):
        for bound in (1.0, 2.5):
            for identity, factor in zip(IDENTITIES, (1.0, 2.0), strict=True):
                a = product_network(n, bound, identity=identity)
                x = (bound * (2 * run.rand(1000, 2) - 1)).requires_grad_()
                (slope,) = torch.autograd.grad(a.network(x).sum(), x)
                measured.append(float((slope - x.detach().flip(1)).abs().max()))
                promised.append(factor * bound * 2.0**-n)
    kept = [4.0 * p**2 for p in promised]
    run.states(
        "X-27", r"|\partial_x\tilde\times-y|\le B2^{-n} \text{ (two squares)},\ 2B2^{-n} \text{ (three)}"
    ).at_most(measured, promised, 1e-12)
    run.note(
        "The derivatives of the product are worse than its values: largest error "
        f"{measured[-1]:.2g} at n = {levels}, B = 2.5, where a law of $4^{{-n}}$ would give less than "
        f"{kept[-1]:.2g}."
    )


def many_factors(run: Run, levels: int, points: int) -> dict[int, tuple[list[float], list[float]]]:
    """Trees of products: the errors add up and are not multiplied."""
    rows: dict[int, tuple[list[float], list[float]]] = {}
    outside, depths, expected = [], [], []
    for k in (2, 3, 5, 8):
        made = [many_product_network(k, n) for n in range(1, levels + 1)]
        # factors near ±1, where errors are handed on undiminished
        x = (1 - 0.3 * run.rand(points, k) ** 2) * run.signs(points, k)
        rows[k] = ([a.bound for a in made], [worst(a, x) for a in made])
        outside += [worst(a, 1.3 * x) for a in made]
        depths += [a.size.depth for a in made]
        expected += [math.ceil(math.log2(k)) * (n + 1) + 1 for n in range(1, levels + 1)]
    says = run.states("X-28", r"|\tilde\prod x_i-\prod x_i|\le(k-1)4^{-(n+1)} \text{ on } [-1,1]^k")
    says.at_most(
        [v for _, errors in rows.values() for v in errors], [v for bounds, _ in rows.values() for v in bounds], 1e-12
    )
    says.fails("factors up to 1.3", outside)
    run.states("X-28", r"L=\lceil\log_2k\rceil(n+1)+1").equal(depths, expected)
    return rows


def random_polynomials(run: Run, levels: int, points: int, count: int) -> None:
    """Random coefficients, certified from them alone."""
    promised, measured, outside, table = [], [], [], []
    for d, degree in ((1, 6), (2, 4), (3, 3)):
        exponents = [
            tuple(c.count(i) for i in range(d))
            for k in range(degree + 1)
            for c in combinations_with_replacement(range(d), k)
        ]
        for case in range(count):
            terms = dict(zip(exponents, run.randn(len(exponents)).tolist(), strict=True))
            a = polynomial_network(terms, levels - case % levels)
            x = 2 * run.rand(points // 2, d) - 1
            promised.append(a.bound)
            measured.append(float((a(x) - polynomial_values(terms, x)).abs().max()))
            far = 1.5 * x
            outside.append(float((a(far) - polynomial_values(terms, far)).abs().max()))
        size = a.size
        table.append((d, degree, len(terms), a.bound, measured[-1], size.depth, size.units))
    says = run.states("X-28", r"|\tilde p-p|\le\sum_\alpha|c_\alpha|(|\alpha|-1)_+4^{-(n+1)} \text{ on } [-1,1]^d")
    says.at_most(measured, promised, 1e-12)
    says.fails("on $[-3/2, 3/2]^d$", outside)
    run.table(
        "random-polynomials",
        ["d", "degree", "terms", "promised", "measured", "depth", "units"],
        table,
        caption="Polynomials with Gaussian coefficients, the last of each kind",
    )


def growth(run: Run) -> None:
    """A quarter of the error costs the same number of layers and units each time."""
    power: Polynomial = {(6,): 1.0}
    errors = [4.0**-j for j in range(4, 11)]
    made = [polynomial_network(power, polynomial_levels(power, e)) for e in errors]
    shallow = [
        relu_interpolant(lambda x: x**6, math.ceil(math.sqrt(30 * 4 / (8 * e))), (-1.0, 1.0),
                         curvature=30.0)
        for e in errors
    ]  # fmt: skip
    steps = torch.tensor([[a.size.depth, a.size.units] for a in made]).diff(dim=0)
    broken = torch.tensor([[a.size.depth, a.size.units] for a in shallow]).diff(dim=0)
    says = run.states(
        "X-28",
        r"\text{a quarter of }\epsilon \text{ costs } x^6 \text{ equally many layers and units "
        r"each time: spread of the increments}",
    )
    says.equal((steps - steps[0]).abs().max().double())
    says.fails("one hidden layer, a broken line", (broken - broken[0]).abs().max().double())
    bias, _ = good_bias("tanh", 6)
    step = best_difference_step(6, "tanh", bias, central=True)
    smooth = monomial_network(6, "tanh", bias, step, central=True)
    rows = [("deep ReLU", a.bound, a.size.depth, a.size.units, a.size.parameters) for a in made[::2]]
    rows += [("one layer of ReLU", a.bound, a.size.depth, a.size.units, a.size.parameters) for a in shallow[::2]]
    rows.append(("one layer of tanh", smooth.bound, 2, smooth.size.units, smooth.size.parameters))
    run.table(
        "sixth-power",
        ["network of x⁶ on [-1, 1]", "promised", "depth", "units", "weights"],
        rows,
        caption="Depth pays for ReLU; a smooth activation needs seven units, and in doubles cannot do better than this",
    )


def plot(axes: Any, levels: int, rows: dict[int, tuple[list[float], list[float]]]) -> None:
    left, middle, right = axes[0]
    side = 129
    x = box_grid(((-1.0, 1.0),) * 2, side)
    for axis, identity in ((left, "difference"), (middle, "sum")):
        a = product_network(2, identity=identity)  # type: ignore[arg-type]
        error = (a(x) - xy(x)).reshape(side, side).T
        shown = axis.imshow(error, origin="lower", extent=(-1, 1, -1, 1), cmap="RdBu_r", vmin=-1 / 16, vmax=1 / 16)
        axis.set(title=f"{identity}: {2 if identity == 'difference' else 3} squares", xlabel="x",
                 ylabel="y")  # fmt: skip
        axis.grid(visible=False)
        axis.figure.colorbar(shown, ax=axis, shrink=0.8)
    n = range(1, levels + 1)
    for color, mark, (k, (bounds, errors)) in zip(COLORS, "os^d", rows.items(), strict=False):
        right.semilogy(n, bounds, color=color, linewidth=0.8)
        right.semilogy(n, errors, mark, color=color, label=f"k = {k}")
    right.set(xlabel="levels n", ylabel="sup error", title="$x_1\\cdots x_k$ on $[-1,1]^k$")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend()
