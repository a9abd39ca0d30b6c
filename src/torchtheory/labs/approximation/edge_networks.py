"""Jumps by networks: a five-weight step, horizons, and the rate that a boundary dictates."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant, network_size
from torchtheory.approximation.dictionaries.cartoons import Waves
from torchtheory.approximation.dictionaries.horizons import (
    boundary_exponent,
    gated_network,
    heaviside_error,
    heaviside_network,
    horizon_error,
    horizon_network,
    indicator_bound,
    indicator_network,
    lp_distance,
    matching_smoothness,
)
from torchtheory.approximation.piecewise.hats import hat_interpolant
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab
from torchtheory.nets.feedforward import affine_layers

EXPONENTS = (0.5, 1.0, 2.0, 4.0)
WIDTHS = (0.3, 0.1, 0.03, 0.01)


class Rate(NamedTuple):
    """Errors of one family of networks against their sizes."""

    smoothness: int
    p: float
    sizes: list[int]
    errors: list[float]
    bounds: list[float]

    @property
    def slope(self) -> Interval:
        return fit_slope(self.sizes, self.errors)


@lab(
    "edge-networks",
    room="approximation",
    covers=["X-49", "X-50"],
    title="A jump costs five weights; a curve of jumps costs what its smoothness says",
    full={"doublings": 8, "points": 1 << 16},
    least={"doublings": 4, "points": 3},
)
def edge_networks(run: Run, doublings: int = 6, points: int = 1 << 13) -> None:
    """A step is two ReLUs with a steep ramp, and a horizon is that step of a network.

    The ramp of width δ misses the step by exactly $(δ/(p+1))^{1/p}$ in every $L_p$, and by 1 in the sup
    norm whatever δ is. A horizon whose boundary is met within e errs by at most $(e+δ)^{1/p}$, so the
    boundary has to be met within $ε^p$: a broken line of M pieces meets a curve of smoothness β
    within $M^{-β}$, and the $L_p$ error falls as $M^{-β/p}$. Gating a smooth network by an indicator gives
    piecewise smooth functions at the same rate. Look at how p and β change the slopes.

    Args:
        doublings: numbers of pieces 4, 8, 16, ... of the boundary, so many of them, and one between any two.
        points: of the midpoint rule for the error of a horizon.
    """
    steps(run)
    rates = horizons(run, doublings, points)
    exponents(run, rates)
    polygons(run)
    pieces = piecewise(run, doublings)
    run.table(
        "rates",
        ["β", "p", "promised exponent of M", "fitted exponent", "99% interval"],
        [
            (
                r.smoothness,
                r.p,
                -1 / boundary_exponent(r.smoothness, 2, r.p),
                r.slope.estimate,
                f"[{r.slope.low:.3f}, {r.slope.high:.3f}]",
            )
            for r in rates
        ],
        caption="Horizon networks: the exponent of the error in the number of weights",
    )
    run.figure(
        "edges",
        lambda axes: plot(axes, rates, pieces),
        grid=(2, 2),
        caption="Top: a horizon network with 16 pieces, and the indicator of a flower from 40 "
        "patches. Bottom: promised (lines) and measured (marks) errors of horizons, and of a "
        "piecewise smooth function.",
    )


def steps(run: Run) -> None:
    """The ramp against the step: in L_p by quadrature of the network itself, and in sup norm."""
    exact, measured, wrong, sup = [], [], [], []
    for delta in WIDTHS:
        net = heaviside_network(delta)
        x = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000 * 2 - 1
        gap = (net(x.unsqueeze(1))[:, 0] - (x >= 0).double()).abs()
        maps, between = affine_layers(net)
        halved = between[0](x.unsqueeze(1) @ (maps[0][0].T / 2) + maps[0][1]) @ maps[1][0].T
        flat = (halved[:, 0] - (x >= 0).double()).abs()
        for p in EXPONENTS:
            exact.append(heaviside_error(delta, p))
            measured.append(float((gap**p).mean() * 2) ** (1 / p))
            wrong.append(float((flat**p).mean() * 2) ** (1 / p))
        least = torch.finfo(torch.float64).eps
        near = torch.tensor([[-least], [0.0], [least]], dtype=torch.float64)
        sup.append(float((net(near)[:, 0] - (near[:, 0] >= 0).double()).abs().max()))
    says = run.states("X-49", r"\|\mathbf 1_{[0,\infty)}-H_\delta\|_p=(\delta/(p+1))^{1/p}")
    says.equal(measured, exact, 1e-4)
    says.fails("weights 1/2δ instead of 1/δ: the ramp is twice as long", wrong)
    says = run.states("X-49", r"H_\delta \text{ has exactly } 5 \text{ parameters that are not } 0")
    says.equal([network_size(heaviside_network(d)).parameters for d in WIDTHS], 5)
    says.fails("the step at 1/2 needs a second bias", network_size(_shifted(0.1)).parameters)
    says = run.states("X-49", r"\sup_x|\mathbf 1_{[0,\infty)}-H_\delta|\ge1 \text{ for every } \delta")
    says.at_least(sup, 1.0)
    says.fails(
        "a continuous target, ρ(x) - ρ(x-1)",
        float((heaviside_network(0.5)(_line()) - heaviside_network(1.0)(_line())).abs().max()),
    )


def curve(smoothness: int, octaves: int = 12) -> Waves:
    """A function of [0, 1] whose derivative of that order is bounded and holds every octave."""
    frequency = 2.0 ** torch.arange(octaves, dtype=torch.float64)
    amplitude = 0.5 * frequency**-smoothness / octaves
    phase = torch.arange(octaves, dtype=torch.float64) ** 2
    return Waves(amplitude, 2 * math.pi * frequency.unsqueeze(1), phase, 0.5)


def on_line(waves: Waves) -> Function:
    return lambda x: waves(x.unsqueeze(1))


def horizons(run: Run, doublings: int, points: int) -> list[Rate]:
    """Broken lines for boundaries of smoothness 1 and 2, ramps as narrow as their errors."""
    rates, understated, far = [], [], []
    for smoothness in (1, 2):
        waves = curve(smoothness)
        gamma = on_line(waves)
        constant = waves.derivative_bound(smoothness)
        for p in (1.0, 2.0):
            sizes, errors, bounds = [], [], []
            for k in range(2 * doublings - 1):
                made = line(gamma, round(4 * 2 ** (k / 2)), smoothness, constant)
                delta = made.bound
                net = horizon_network(made, delta)
                sizes.append(net.size.parameters)
                errors.append(horizon_error(gamma, made, delta, p, points=points))
                bounds.append(net.bound ** (1 / p))
            rates.append(Rate(smoothness, p, sizes, errors, bounds))
    for k in range(doublings):
        made = line(on_line(curve(1)), 4 * 2**k, 2, 0.01)
        far.append(horizon_error(on_line(curve(1)), made, made.bound, 1.0, points=points))
        understated.append(2 * made.bound)
    says = run.states(
        "X-49", r"\|\mathbf 1[x_d\le\gamma]-H_\delta(\tilde\gamma-x_d)\|_p^p\le\|\gamma-\tilde\gamma\|_\infty+\delta"
    )
    # a flat edge moved by 0.05 errs all along it
    flat = relu_interpolant(lambda x: 0.5 + 0 * x, 2, lipschitz=1.0)
    moved = [horizon_error(lambda x: 0.55 + 0 * x, flat, 0.01, p, points=points) ** p for p in (1.0, 2.0)]
    says.at_most(
        [e**r.p for r in rates for e in r.errors] + moved,
        [b**r.p for r in rates for b in r.bounds] + [0.05 + 0.01] * 2,
    )
    says.fails("γ with no bounded curvature, and a curvature bound given", far, promised=understated)
    smooth = on_line(curve(2))
    made = line(smooth, 16, 2, curve(2).derivative_bound(2))
    net = horizon_network(made, made.bound)
    pixels = lp_distance(lambda x: (x[:, 1] <= smooth(x[:, 0])).double(), net, 1.0, points=300)
    exact = horizon_error(smooth, made, made.bound, 1.0)
    twice = horizon_network(made, 2 * made.bound)
    says = run.states("X-49", r"\text{the integral in closed form is the one over } 300^2 \text{ pixels}")
    says.equal(pixels, exact, 1e-3)
    says.fails(
        "a ramp of another width", lp_distance(lambda x: (x[:, 1] <= smooth(x[:, 0])).double(), twice, 1.0, points=300)
    )
    return rates


def line(gamma: Function, pieces: int, smoothness: int, constant: float) -> Approximant:
    if smoothness == 1:
        return relu_interpolant(gamma, pieces, lipschitz=constant)
    return relu_interpolant(gamma, pieces, curvature=constant)


def exponents(run: Run, rates: list[Rate]) -> None:
    """Stated before running: the fitted exponent is -β/p(d-1) within 0.15, or within its own
    99% interval."""
    for r in rates:
        other = next(o for o in rates if (o.smoothness, o.p) == (3 - r.smoothness, r.p))
        says = run.states("X-50", rf"\beta={r.smoothness},\ p={r.p:g},\ d=2:\ \text{{error}}\sim M^{{-\beta/(p(d-1))}}")
        rate = -1 / boundary_exponent(r.smoothness, 2, r.p)
        # the exponent with d for d - 1, and that of twice the smoothness
        says.slope(r.slope, rate, 0.15, against=(rate / 2, 2 * rate))
        says.fails(f"a boundary of smoothness {other.smoothness}", other.slope)
    cases = [(b, d, p) for b in (1.0, 1.5, 2.0, 3.0) for d in (2, 3, 5) for p in (0.5, 1.0, 2.0)]
    says = run.states(
        "X-50",
        r"\text{the inside, at } \epsilon^{-d/\beta'}, \text{ costs no more than the edge: }d/\beta'\le p(d-1)/\beta",
    )
    says.at_most(
        [d / matching_smoothness(b, d, p) for b, d, p in cases],
        [boundary_exponent(b, d, p) for b, d, p in cases],
        1e-12,
    )
    says.fails("an inside of the boundary's own smoothness, β' = β", [d / b for b, d, p in cases])
    says = run.states("X-50", r"p=2:\ p(d-1)/\beta=2(d-1)/n, \text{ the optimal exponent of cartoons}")
    says.equal(
        [boundary_exponent(n, d) for n in (1, 2) for d in (2, 3, 4)],
        [2 * (d - 1) / n for n in (1, 2) for d in (2, 3, 4)],
    )
    says.fails("p = 1", [boundary_exponent(n, d, 1.0) for n in (1, 2) for d in (2, 3, 4)])


def flower(sides: int) -> tuple[Tensor, Tensor]:
    """A polygon on a star-shaped curve around the middle of the square, far from convex."""
    angle = 2 * math.pi * torch.arange(sides, dtype=torch.float64) / sides
    radius = 0.3 + 0.1 * torch.cos(5 * angle)
    ray = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    center = torch.tensor([0.5, 0.5], dtype=torch.float64)
    return center + radius.unsqueeze(1) * ray, center


def inside(vertices: Tensor) -> Function:
    """Crossing number of a ray to the right: the other way to know what is inside."""
    a, b = vertices, vertices.roll(-1, 0)

    def indicator(x: Tensor) -> Tensor:
        spans = (a[:, 1] > x[:, 1:]) != (b[:, 1] > x[:, 1:])
        at = a[:, 0] + (x[:, 1:] - a[:, 1]) / (b[:, 1] - a[:, 1]) * (b[:, 0] - a[:, 0])
        return ((spans & (x[:, :1] < at)).sum(1) % 2).double()

    return indicator


def polygons(run: Run) -> None:
    """The fan of horizon patches against the crossing number, and its size."""
    found, bounds, sizes, wrong = [], [], [], []
    for sides in (20, 40, 80):
        vertices, center = flower(sides)
        for delta in (0.02 / sides, 0.2 / sides):
            net = indicator_network(vertices, center, delta)
            bounds.append(indicator_bound(vertices, center, delta))
            found.append(lp_distance(inside(vertices), _values(net), 1.0, points=160))
            sizes.append(network_size(net).parameters / sides)
            circle = indicator_network(_round(sides), center, delta)
            wrong.append(lp_distance(inside(vertices), _values(circle), 1.0, points=160))
    says = run.states("X-49", r"\int|\mathbf 1_P-\chi|\le\delta\,\text{perimeter}+\pi(\delta/\sin\alpha)^2")
    says.at_most(found, bounds, 1e-4)
    says.fails("the patches of a circle instead of the flower's", wrong)
    says = run.states("X-49", r"\text{the indicator of a star of } m \text{ sides has at most } 20m \text{ parameters}")
    says.at_most(sizes, 20)
    says.fails(
        "hats on a mesh of 64 cells a side, coarser than the ramp of the star of 20 sides",
        hat_interpolant(lambda x: x[:, 0], 64, ((0.0, 1.0), (0.0, 1.0)), curvature=1.0).size.parameters / 20,
    )


def piecewise(run: Run, doublings: int) -> Rate:
    """A smooth function gated by a horizon: β = 2, p = 2, so β' = 2 and M^-1 is promised."""
    waves = curve(2, 8)
    gamma = on_line(waves)
    smooth = smooth_part()
    total = smooth.derivative_bound(0)

    def target(x: Tensor) -> Tensor:
        return (x[:, 1] <= gamma(x[:, 0])).double() * smooth(x)

    sizes, errors, bounds = [], [], []
    for k in range(doublings - 2):
        cells = 4 * 2 ** (k / 2)
        made = line(gamma, 8 * 2**k, 2, waves.derivative_bound(2))
        edge = horizon_network(made, made.bound)
        mesh = hat_interpolant(smooth, round(cells), ((0.0, 1.0), (0.0, 1.0)), curvature=2 * smooth.derivative_bound(2))
        net = gated_network(_chain(edge), _chain(mesh), total)
        sizes.append(network_size(net).parameters)
        errors.append(lp_distance(target, _values(net), 2.0, points=200))
        bounds.append(mesh.bound + 2 * total * math.sqrt(edge.bound))
    rate = Rate(2, 2.0, sizes, errors, bounds)
    ungated = hat_interpolant(smooth, 16, ((0.0, 1.0), (0.0, 1.0)), curvature=1.0)
    says = run.states(
        "X-50",
        r"\|\mathbf 1_Kg-R\|_2\le\|g-\tilde g\|_\infty+2\|g\|_\infty(\|\gamma-\tilde\gamma\|_\infty+\delta)^{1/2}",
    )
    # the constant 1 behind a flat edge that is moved by 0.05
    flat = horizon_network(relu_interpolant(lambda x: 0.5 + 0 * x, 2, lipschitz=1.0), 0.01)
    ones = hat_interpolant(lambda x: 1 + 0 * x[:, 0], 2, ((0.0, 1.0), (0.0, 1.0)), curvature=1e-9)
    moved = _values(gated_network(_chain(flat), _chain(ones), 1.0))
    beside = lp_distance(lambda x: (x[:, 1] <= 0.55).double(), moved, 2.0, points=200)
    says.at_most([*errors, beside], [*bounds, ones.bound + 2 * math.sqrt(0.05 + 0.01)])
    says.fails("g without the gate", [lp_distance(target, ungated, 2.0, points=200)] * len(bounds), promised=bounds)
    return rate


def smooth_part() -> Waves:
    frequency = torch.tensor([[3.0, 1.0], [-1.0, 4.0]], dtype=torch.float64)
    phase = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return Waves(torch.tensor([0.05, 0.04], dtype=torch.float64), frequency, phase, 0.6)


def _values(network: torch.nn.Module) -> Function:
    return lambda x: network(x)[:, 0]


def _chain(made: Approximant) -> torch.nn.Sequential:
    assert isinstance(made.network, torch.nn.Sequential)
    return made.network


def _line() -> Tensor:
    return torch.linspace(-1, 2, 3001, dtype=torch.float64).unsqueeze(1)


def _shifted(delta: float) -> torch.nn.Module:
    """The step at 1/2."""
    made = relu_interpolant(lambda x: 0 * x + 0.5, 1, lipschitz=1e-9)
    return horizon_network(made, delta).network


def _round(sides: int) -> Tensor:
    angle = 2 * math.pi * torch.arange(sides, dtype=torch.float64) / sides
    return 0.5 + 0.3 * torch.stack([torch.cos(angle), torch.sin(angle)], 1)


def plot(axes: Any, rates: list[Rate], pieces: Rate) -> None:
    (first, second), (third, fourth) = axes
    gamma = on_line(curve(1))
    made = relu_interpolant(gamma, 16, lipschitz=curve(1).derivative_bound(1))
    net = horizon_network(made, 0.02)
    picture(first, _values(net.network))
    x = torch.linspace(0, 1, 2000, dtype=torch.float64)
    first.plot(x, gamma(x), color=COLORS[1], linewidth=1, label="γ")
    first.legend(loc="upper right")
    first.set(title=f"horizon: {net.size.parameters} weights", xlabel="$x_1$", ylabel="$x_2$")
    vertices, center = flower(40)
    star = indicator_network(vertices, center, 0.006)
    picture(second, _values(star))
    loop = torch.cat([vertices, vertices[:1]])
    second.plot(loop[:, 0], loop[:, 1], color=COLORS[1], linewidth=0.8)
    second.set(title=f"indicator: {network_size(star).parameters} weights", xlabel="$x_1$", ylabel="$x_2$")
    for color, mark, r in zip(COLORS, "os^d", rates, strict=False):
        third.loglog(r.sizes, r.bounds, color=color, linewidth=0.8)
        third.loglog(r.sizes, r.errors, mark, color=color, label=f"β = {r.smoothness}, p = {r.p:g}")
    third.set(xlabel="weights", ylabel="$L_p$ error", title="horizons")
    third.legend()
    third.tick_params(which="minor", labelbottom=False)
    fourth.loglog(pieces.sizes, pieces.bounds, color=COLORS[0], linewidth=0.8, label="promise")
    fourth.loglog(pieces.sizes, pieces.errors, "o", color=COLORS[0], label="measured")
    fourth.set(xlabel="weights", ylabel="$L_2$ error", title="smooth inside a jump, β = β' = 2")
    fourth.legend()
    fourth.tick_params(which="minor", labelbottom=False)


def picture(axis: Any, values: Function, points: int = 200) -> None:
    x = torch.linspace(0, 1, points, dtype=torch.float64)
    z = values(torch.cartesian_prod(x, x)).reshape(points, points).T
    axis.imshow(z, origin="lower", extent=(0, 1, 0, 1), cmap="Greys", aspect="equal")
    axis.grid(False)
