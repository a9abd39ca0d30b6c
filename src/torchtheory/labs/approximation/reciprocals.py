"""Division by ReLU networks, as long as the denominator stays away from 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant, box_grid
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.polynomials.reciprocals import (
    RationalNetwork,
    rational_network,
    reciprocal_factors,
    reciprocal_network,
)
from torchtheory.approximation.polynomials.relu import Polynomial, polynomial_values
from torchtheory.labs.engine import COLORS, Run, lab

#: name, numerator, denominator, low, high, largest numerator on [-1, 1]^d
QUOTIENTS: tuple[tuple[str, Polynomial, Polynomial, float, float, float], ...] = (
    ("1/(1 + 25x²)", {(0,): 1.0}, {(0,): 1.0, (2,): 25.0}, 1.0, 26.0, 1.0),
    ("(x³ - x)/(2 + x)", {(3,): 1.0, (1,): -1.0}, {(0,): 2.0, (1,): 1.0}, 1.0, 3.0, 0.4),
    ("(x + y)/(2 + xy)", {(1, 0): 1.0, (0, 1): 1.0}, {(0, 0): 2.0, (1, 1): 1.0}, 1.0, 3.0, 2.0),
)


@lab(
    "rational-networks",
    room="approximation",
    covers=["X-33"],
    title="ReLU networks divide with polylogarithmically many weights",
    full={"digits": 6, "points": 20_001},
    least={"digits": 2, "points": 101},
)
def rational_networks(run: Run, digits: int = 2, points: int = 501) -> None:
    """The reciprocal on [a, 1] and three quotients of polynomials, as networks with a certificate.

    The measured errors stay below the certified ones for a = 0.5, 0.1 and 0.01 and `digits`
    accuracies; nothing is promised below a, nor for a denominator that dips below the bound that
    was given, and both fail there. Squaring the accuracy costs at most four times the weights.
    Look at how the depth grows as a falls: 1/a enters through the number of factors.

    Args:
        points: of the grids on which errors are measured.
    """
    products(run, points)
    found = reciprocals(run, digits, points)
    growth(run)
    made = quotients(run, digits, points)
    run.figure(
        "reciprocals",
        lambda axes: plot(axes, found, made),
        grid=(1, 3),
        caption="Left: relative error of 1/x on [0.01, 1] at the coarsest accuracy. Middle: "
        "promised (lines) and measured (marks) errors. Right: errors of two networks for "
        "1/(1 + 25x²), and what was promised (dashed).",
    )


def products(run: Run, points: int) -> None:
    """The product form of the geometric series, before any network."""
    promised, measured, ends, beyond = [], [], [], []
    for a in (0.5, 0.1, 0.01):
        x = torch.linspace(a, 1, points, dtype=torch.float64)
        for k in range(1, 9):
            rest = 1 / x - partial_product(x, k)
            promised.append((1 - a) ** 2**k / a)
            measured.append(float(rest.abs().max()))
            ends.append(float(rest[0]))
            beyond.append(float((1 / (x / 2) - partial_product(x / 2, k)).abs().max()))
    says = run.states(
        "X-33", r"\sup_{[a,1]}\Big|\tfrac1x-\prod_{j<k}\big(1+(1-x)^{2^j}\big)\Big|\le\tfrac{(1-a)^{2^k}}a"
    )
    says.at_most(measured, promised, 1e-12)
    says.fails("on [a/2, 1/2]", beyond)
    run.states("X-33", r"\text{and it is attained at } x=a").equal(ends, promised, 1e-12)


def partial_product(x: Tensor, factors: int) -> Tensor:
    made, power = torch.ones_like(x), 1 - x
    for _ in range(factors):
        made, power = made * (1 + power), power**2
    return made


def reciprocals(run: Run, digits: int, points: int) -> dict[float, list[tuple[float, Approximant, float]]]:
    """Certified and measured errors of 1/x."""
    found: dict[float, list[tuple[float, Approximant, float]]] = {}
    outside, rows = [], []
    for low in (0.5, 0.1, 0.01):
        x = torch.cat([torch.linspace(low, 1, points).double(), low + (1 - low) * run.rand(points)])
        # as many points where 1/x is steep
        x = torch.cat([x, low ** run.rand(points)])
        found[low] = []
        for j in range(1, digits + 1):
            a = reciprocal_network(low, 10.0**-j)
            found[low].append((10.0**-j, a, float((a(x) - 1 / x).abs().max())))
            below = torch.linspace(low / 4, low, points).double()
            outside.append(float((a(below) - 1 / below).abs().max()))
            rows.append((low, 10.0**-j, a.bound, found[low][-1][2],
                         reciprocal_factors(low, 0.5 * 10.0**-j), a.size.depth, a.size.parameters,
                         a.size.largest))  # fmt: skip
    run.states("X-33", r"\sup_{[a,1]}|\Phi-1/x|\le\epsilon, \quad a=0.5,\ 0.1,\ 0.01: \text{ certified}").at_most(
        [a.bound for row in found.values() for _, a, _ in row], [e for row in found.values() for e, _, _ in row]
    )
    says = run.states("X-33", r"\sup_{[a,1]}|\Phi-1/x|\le\text{certificate}: \text{ measured}")
    says.at_most(
        [m for row in found.values() for _, _, m in row], [a.bound for row in found.values() for _, a, _ in row]
    )
    says.fails("on [a/4, a]", outside)
    run.table(
        "reciprocals",
        ["a", "ε", "certified", "measured", "factors", "depth", "weights", "largest weight"],
        rows,
        caption="1/x on [a, 1]",
    )
    return found


def growth(run: Run) -> None:
    """Twice the digits: at most four times the weights, where one hidden layer needs a power."""
    ratios, broken = [], []
    for e in (1e-2, 1e-3):
        pair = [reciprocal_network(0.5, x).size.parameters for x in (e, e * e)]
        ratios.append(pair[1] / pair[0])
        lines = [
            relu_interpolant(
                torch.reciprocal, max(1, round((16 * 0.25 / (8 * x)) ** 0.5)), (0.5, 1.0),
                curvature=16.0,
            ).size.parameters
            for x in (e, e * e)
        ]  # fmt: skip
        broken.append(lines[1] / lines[0])
    says = run.states(
        "X-33",
        r"M\lesssim\mathrm{polylog}(1/\epsilon): \text{ weights at }\epsilon^2 \text{ over weights "
        r"at }\epsilon,\ a=\tfrac12",
    )
    says.at_most(ratios, 4.0, where="log² would be 4; a power of 1/ε would be a power of 1/ε again")
    says.fails("one hidden layer, a broken line", broken)


def quotients(run: Run, digits: int, points: int) -> dict[str, list[tuple[RationalNetwork, float]]]:
    """Quotients of polynomials, and one whose denominator is smaller than was said."""
    made: dict[str, list[tuple[RationalNetwork, float]]] = {}
    rows = []
    for name, p, q, low, high, largest in QUOTIENTS:
        made[name] = []
        d = len(next(iter(p)))
        x = torch.cat([2 * run.rand(points, d) - 1, box_grid(((-1.0, 1.0),) * d, 21)])
        for j in range(1, min(digits, 3) + 1):
            built = rational_network(p, q, 10.0**-j, low=low, high=high, largest=largest)
            made[name].append((built, quotient_error(built, p, q, x)))
            rows.append((name, 10.0**-j, built.numerator, built.denominator, built.product,
                         made[name][-1][1], built.size.depth, built.size.parameters))  # fmt: skip
    x = torch.linspace(-1, 1, points, dtype=torch.float64).unsqueeze(1)
    small: Polynomial = {(0,): 0.1, (2,): 1.0}
    wrong = rational_network({(0,): 1.0}, small, 0.1, low=1.0, high=1.1, largest=1.0)
    says = run.states("X-33", r"\sup\Big|\Phi-\tfrac pq\Big|\le\text{certificate}\le\epsilon \text{ on } [-1,1]^d")
    says.at_most([m for row in made.values() for _, m in row], [b.bound for row in made.values() for b, _ in row])
    says.fails(
        "a denominator that falls to 0.1, where 1 was given",
        quotient_error(wrong, {(0,): 1.0}, small, x),
        promised=wrong.bound,
    )
    run.states("X-33", r"\text{certificate}\le\epsilon").at_most(
        [b.bound for row in made.values() for b, _ in row],
        [10.0**-j for row in made.values() for j in range(1, len(row) + 1)],
    )
    run.table(
        "quotients",
        ["p/q", "ε", "numerator", "denominator", "product", "measured", "depth", "weights"],
        rows,
        caption="Quotients on $[-1, 1]^d$, with the parts of the certificate",
    )
    return made


def quotient_error(a: Approximant, p: Polynomial, q: Polynomial, x: Tensor) -> float:
    truth = polynomial_values(p, x) / polynomial_values(q, x)
    return float((a(x) - truth).abs().max())


def plot(
    axes: Any,
    found: dict[float, list[tuple[float, Approximant, float]]],
    made: dict[str, list[tuple[RationalNetwork, float]]],
) -> None:
    left, middle, right = axes[0]
    x = torch.logspace(-2, 0, 1200, dtype=torch.float64)
    a = found[0.01][0][1]
    left.loglog(x, ((a(x) * x - 1).abs()).clamp(min=1e-7), color=COLORS[0], linewidth=0.8)
    left.set(xlabel="x", title="$|x\\,\\Phi(x) - 1|$")
    for color, (low, row) in zip(COLORS, found.items(), strict=False):
        wanted = [e for e, _, _ in row]
        middle.loglog(wanted, [b.bound for _, b, _ in row], color=color, linewidth=0.8)
        middle.loglog(wanted, [m for _, _, m in row], "o", color=color, label=f"a = {low}")
    middle.set(xlabel="ε", ylabel="sup error", title="$1/x$ on $[a, 1]$")
    middle.legend()
    name, p, q, *_ = QUOTIENTS[0]
    t = torch.linspace(-1, 1, 801, dtype=torch.float64).unsqueeze(1)
    truth = polynomial_values(p, t) / polynomial_values(q, t)
    for color, (built, _) in zip(COLORS, made[name][:2], strict=False):
        gap = (built(t) - truth).abs().clamp(min=1e-6)
        right.semilogy(t, gap, color=color, linewidth=0.8, label=f"within {built.bound:.1g}")
        right.axhline(built.bound, color=color, linestyle="--", linewidth=0.8)
    # room for the legend above the dashed lines
    right.set(xlabel="x", title=f"error of {name}", ylim=(1e-6, 1.0))
    right.legend(loc="upper center", ncols=2)
