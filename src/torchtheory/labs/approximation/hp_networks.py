"""The hp method as networks: errors that fall geometrically at a size that grows with the cube."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Size, network_size
from torchtheory.approximation.piecewise.finite_elements import finite_element_network, line_mesh
from torchtheory.approximation.piecewise.hp_elements import (
    HpSpline,
    derivative_error,
    geometric_mesh,
    hp_network,
    hp_spline,
)
from torchtheory.labs.engine import Run, lab

BOTH = ["A-92", "X-39"]
RATIO = 0.15
#: Levels of the products beyond those of the mesh: their errors stay below a tenth of the whole.
MORE = 6


@lab(
    "hp-networks",
    room="approximation",
    covers=["A-92", "X-39"],
    title="Elements that shrink and degrees that grow: a ReLU network with an H¹ error of $e^{-cN^{1/3}}$",
    full={"levels": 14, "points": 1000},
    least={"levels": 5, "points": 50},
)
def hp_networks(run: Run, levels: int = 7, points: int = 200) -> None:
    """$x^{3/4}$ on (0, 1) by polynomials on a geometric mesh, written down as ReLU networks.

    The derivative of the function is infinite at 0. Elements that shrink towards 0 by the factor
    0.15, with degrees that grow by one per element, make the error in H¹ fall by $0.15^{1/4}$ = 0.622
    per level, which the networks keep: their products are followed by an error bound for values
    and derivatives. The number of units is a polynomial of degree 3 in the number of levels, so the
    size is polylogarithmic in the error. Look at what is left of it with degree 1, or on a mesh of
    equal elements.

    Args:
        levels: of the geometric mesh, at most.
        points: random points per element of the mesh.
    """
    slopes(run, points)
    built = [build(run, 0.75, k, points) for k in range(1, levels + 1)]
    straight = [build(run, 0.75, k, points, degrees=[1] * (k + 1)) for k in range(1, levels + 1)]
    equal = [build(run, 0.75, k, points, nodes=equal_elements(k)) for k in range(1, levels + 1)]
    rates(run, built, straight, equal, points, levels)
    linear = linear_elements(run, points)
    sizes(run, built, linear)
    run.table(
        "levels",
        ["levels", "largest degree", "H¹ error", "promised", "non-zero weights", "units", "depth"],
        [[b.levels, b.levels + 1, b.error, b.promised, b.size.parameters, b.size.units, b.size.depth] for b in built],
        caption="The network for $x^{3/4}$, measured by its derivative at random points",
    )
    run.figure(
        "errors",
        lambda axes: plot(axes, built, straight, equal, linear),
        grid=(1, 2),
        size=(9.6, 3.4),
        caption="Error of the derivative in L². Left: a level more multiplies it by 0.622 (dashed); not so with "
        "degree 1 or on equal elements. Right: against the cube root of the number of units the logarithm of the "
        "error is a line (dashed: continued). Linear elements on their best mesh gain like 1/N: smaller networks down "
        "to errors of about 10⁻⁵, larger ones below.",
    )


@dataclass(frozen=True, slots=True)
class Built:
    """A network with its measured error and what was promised about it."""

    levels: int
    error: float
    promised: float
    size: Size


def power(alpha: float) -> Any:
    return lambda x: x**alpha


def slope_of(alpha: float) -> Any:
    return lambda x: alpha * x ** (alpha - 1)


def equal_elements(levels: int) -> Tensor:
    return torch.linspace(0, 1, levels + 2, dtype=torch.float64)


def build(
    run: Run,
    alpha: float,
    levels: int,
    points: int,
    *,
    degrees: list[int] | None = None,
    nodes: Tensor | None = None,
) -> Built:
    """The network of so many levels; degrees grow by one per element unless given."""
    mesh = geometric_mesh(levels, RATIO) if nodes is None else nodes
    spline = hp_spline(power(alpha), mesh, degrees or range(1, levels + 2))
    made = hp_network(spline, levels + MORE)
    seed = int(torch.randint(2**31, (1,), generator=run.generator))

    def exact(x: Tensor) -> Tensor:
        return spline(x[:, 0]).unsqueeze(1)

    # at the same points, so that the triangle inequality holds for the sums as well
    of_network, of_spline = (
        derivative_error(slope_of(alpha), f, mesh, points, generator=seed) for f in (made.network, exact)
    )
    return Built(levels, of_network, of_spline + made.deviation, made.size)


def slopes(run: Run, points: int) -> None:
    """The error bound of Horner's scheme, element by element."""
    square = HpSpline(
        torch.tensor([-1.0, 1.0], dtype=torch.float64), (torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64),)
    )
    root = hp_spline(power(0.75), geometric_mesh(3, RATIO), [1, 2, 3, 4])
    n = 7

    def off(spline: HpSpline, levels: int) -> tuple[Tensor, Tensor]:
        made = hp_network(spline, levels)
        mesh = spline.nodes
        x = mesh[:-1, None] + mesh.diff()[:, None] * run.rand(len(mesh) - 1, 10 * points)
        at = x.reshape(-1, 1).requires_grad_()
        (found,) = torch.autograd.grad(made.network(at).sum(), at)
        apart = (found[:, 0] - spline.derivative(at.detach()[:, 0])).abs().reshape(x.shape).amax(1)
        curved = torch.tensor(spline.degrees) > 1
        return apart[curved], made.slope_errors[curved]

    found = [off(s, n) for s in (square, root)]
    says = run.states(
        BOTH, r"\sup|q_j'-\phi'|\le\tfrac2{h_j}e_0': \text{ Horner's scheme of products with } n \text{ levels}"
    )
    says.at_most(
        torch.cat([f[0] for f in found]),
        torch.cat([f[1] for f in found]),
        where="s² and the polynomials of $x^{3/4}$ with degrees 2 to 4",
    )
    says.fails(
        "products of three levels less",
        torch.cat([off(s, n - 3)[0] for s in (square, root)]),
        promised=torch.cat([f[1] for f in found]),
    )


def rates(run: Run, built: list[Built], straight: list[Built], equal: list[Built], points: int, levels: int) -> None:
    everything = [b for made in (built, straight, equal) for b in made]
    says = run.states(
        BOTH, r"|u-\phi|_{H^1}\le|u-q|_{H^1}+\bigl(\textstyle\sum_jh_j(\tfrac2{h_j}e_{0,j}')^2\bigr)^{1/2}"
    )
    # of degree 1 both sides are the same sum, up to rounding
    says.at_most([b.error for b in everything], [b.promised for b in everything], 1e-12)
    # decided beforehand: from level 3 on, ratios within 0.005
    for alpha in (0.75, 0.65):
        mine = built if alpha == 0.75 else [build(run, alpha, k, points) for k in range(1, levels + 1)]
        says = run.states(
            BOTH,
            rf"u=x^{{{alpha}}}: \ |u-\phi_{{L+1}}|_{{H^1}}/|u-\phi_L|_{{H^1}}=\sigma^{{{alpha}-1/2}},\ L\ge3",
        )
        says.equal(ratios(mine), RATIO ** (alpha - 0.5), 0.005)
        if alpha == 0.75:
            says.fails("degree 1 on every element", ratios(straight))
    says = run.states(BOTH, r"u=x^{0.75}: \text{ no slower than } 0.622 \text{ per level}")
    says.at_most(ratios(built), RATIO**0.25, 0.005)
    says.fails("as many equal elements of the same degrees", ratios(equal))


def ratios(made: list[Built]) -> list[float]:
    return [b.error / a.error for a, b in itertools.pairwise(made[2:])]


def linear_elements(run: Run, points: int) -> list[tuple[int, float]]:
    """Continuous piecewise linear interpolants as networks, on a mesh graded for H¹."""
    found = []
    for cells in (8, 16, 32, 64):
        # u'' = x^{-5/4} up to a factor: equal errors on all elements from nodes (i/N)^6 on
        nodes = torch.linspace(0, 1, cells + 1, dtype=torch.float64) ** 6
        network = finite_element_network(line_mesh(nodes), power(0.75)(nodes))
        seed = int(torch.randint(2**31, (1,), generator=run.generator))
        error = derivative_error(slope_of(0.75), network, nodes, points, generator=seed)
        found.append((network_size(network).units, error))
    return found


def sizes(run: Run, built: list[Built], linear: list[tuple[int, float]]) -> None:
    units = [b.size.units for b in built]
    constant = linear[-1][0] * linear[-1][1]
    needed = [math.ceil(constant / b.error) for b in built]
    says = run.states(
        BOTH, r"\text{units} = \text{a polynomial of degree 3 in } L\sim\log(1/\epsilon): \text{ fourth differences}"
    )
    says.equal(differences(units, 4))
    says.fails("linear elements of the same errors", differences(needed, 4))
    says = run.states(BOTH, r"\text{non-zero weights}\le4\cdot\text{units}")
    says.at_most([b.size.parameters for b in built], [4 * b.size.units for b in built])


def differences(values: list[int], order: int) -> list[int]:
    for _ in range(order):
        values = [b - a for a, b in itertools.pairwise(values)]
    return values


def plot(
    axes: Any, built: list[Built], straight: list[Built], equal: list[Built], linear: list[tuple[int, float]]
) -> None:
    left, right = axes[0]
    kinds = {"geometric mesh, growing degrees": built, "geometric mesh, degree 1": straight, "equal elements": equal}
    for name, made in kinds.items():
        left.plot([b.levels for b in made], [b.error for b in made], "o-", ms=4, label=name)
    first = built[2]
    left.plot(
        [b.levels for b in built],
        [first.error * RATIO ** (0.25 * (b.levels - first.levels)) for b in built],
        "k--",
        lw=1,
        label="0.622 per level",
    )
    left.set(yscale="log", xlabel="levels $L$", ylabel="error of the derivative")
    left.legend(fontsize=7)
    roots = [b.size.units ** (1 / 3) for b in built]
    right.plot(roots, [b.error for b in built], "o-", ms=4, color="C0", label="hp network")
    units, errors = zip(*linear, strict=True)
    right.plot([u ** (1 / 3) for u in units], errors, "s", ms=4, color="C1", label="linear elements")
    constant = units[-1] * errors[-1]
    across = torch.linspace(2, 55, 100)
    steep = math.log(built[-1].error / built[-3].error) / (roots[-1] - roots[-3])
    beyond = across[across > roots[-1]]
    right.plot(beyond, built[-1].error * torch.exp(steep * (beyond - roots[-1])), "--", lw=1, color="C0")
    right.plot(across, constant / across**3, "--", lw=1, color="C1")
    right.set(yscale="log", xlabel="cube root of the number of units")
    right.legend(fontsize=7)
