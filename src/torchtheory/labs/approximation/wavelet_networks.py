"""A dictionary that a small network can imitate is a network with as many weights as terms."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.dictionaries.best_terms import (
    best_terms_errors,
    greedy_terms,
    haar_transform,
)
from torchtheory.approximation.dictionaries.cartoons import cartoon
from torchtheory.approximation.dictionaries.networks import (
    dictionary_element,
    dictionary_network,
    haar_generator,
    haar_generator_error,
    transfer_bound,
)
from torchtheory.approximation.dictionaries.wavelets import (
    bump_constant,
    bump_network,
    wavelet_generator,
    wavelet_grid,
)
from torchtheory.approximation.network_calculus import combine
from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.targets import Function
from torchtheory.labs.engine import COLORS, Run, lab

KINDS = ((0, 0), (0, 1), (1, 0), (1, 1))


class Transfer(NamedTuple):
    """A dictionary's best terms and the network made of them."""

    terms: int
    epsilon: float
    error: float
    weights: int
    network: nn.Sequential


@lab(
    "wavelet-networks",
    room="approximation",
    covers=["X-46", "X-47"],
    title="M wavelet terms become a ReLU network with O(M) weights and at most twice the error",
    full={"most_terms": 128, "resolution": 64, "greedy": 64},
    least={"most_terms": 16, "greedy": 8, "resolution": 16},
)
def wavelet_networks(run: Run, most_terms: int = 32, resolution: int = 32, greedy: int = 24) -> None:
    """Bumps of 4d+1 ReLUs and their differences make a wavelet-like system of networks.

    The bump has its plateau, support and integral as computed, and the greedy choice of M elements
    is, to rounding, the network put together from them, with a number of weights proportional to
    M. The same machine turns the best M Haar terms of a cartoon into a network: the Haar generators
    jump, but a network of fixed size comes as close as wanted in L2, so with ramps that are narrow
    enough the network's error is at most twice that of the M terms. Look at the three pictures.

    Args:
        most_terms: of Haar's basis in the largest network.
        resolution: pixels per side of the cartoon.
        greedy: elements that are chosen one by one, at most.
    """
    bumps(run)
    fits = greedy_networks(run, greedy)
    transfers = haar_networks(run, most_terms, resolution)
    run.table(
        "transfer",
        ["terms", "error of the terms", "error of the network", "weights", "weights per term"],
        [(t.terms, t.epsilon, t.error, t.weights, t.weights / t.terms) for t in transfers],
        caption="A cartoon by its best Haar terms, and by the network made of them",
    )
    run.figure(
        "units",
        lambda axes: plot_units(axes, fits),
        grid=(1, 3),
        size=(13, 3.6),
        caption="The bump in two dimensions, the wavelet-like unit on the line, and a function met "
        "by a network of such units.",
    )
    run.figure(
        "transfer",
        lambda axes: plot_transfer(axes, transfers, resolution),
        grid=(1, 3),
        size=(13, 3.6),
        caption="Left: the network of the best Haar terms of a cartoon. Middle: its error and "
        "twice that of the terms. Right: weights grow with the number of terms.",
    )


def bumps(run: Run) -> None:
    """Plateau, support, number of units, and the integral by quadrature."""
    plateau, outside, units, integral, means = [], [], [], [], []
    for d in (1, 2, 3):
        net = bump_network(d)
        inner = 2 * run.rand(2000, d) - 1
        outer = 12 * run.rand(4000, d) - 6
        outer = outer[(outer.abs() >= 3).any(1)]
        plateau += [float(v) for v in (net(inner)[:, 0] / bump_constant(d)).aminmax()]
        outside.append(float(net(outer).abs().max()))
        units.append(network_size(net).units - (4 * d + 1))
        points = (0, 1200, 240, 48)[d]
        x = cell_centers(((-3.0, 3.0),) * d, points)
        integral.append(float(net(x).mean()) * 6**d)
        wave = cell_centers(((-6.0, 6.0),) * d, points)
        means.append(float(wavelet_generator(d)(wave).mean()) * 12**d)
    says = run.states("X-46", r"\varphi=2c_d \text{ on } [-1,1]^d")
    says.equal(plateau, 2.0, 1e-12)
    says.fails("points of $[-2,2]^d$", float(bump_network(2)(torch.full((1, 2), 1.5).double())) / bump_constant(2))
    says = run.states("X-46", r"\varphi=0 \text{ outside } [-3,3]^d")
    says.equal(outside, within=1e-15)
    says.fails("outside $[-2,2]^d$", float(bump_network(1)(torch.tensor([[2.5]]).double())))
    says = run.states("X-46", r"\varphi \text{ has } 4d+1 \text{ ReLUs: the difference}")
    says.equal(units)
    says.fails("the wavelet-like unit, two bumps", network_size(wavelet_generator(1)).units - 5)
    says = run.states("X-46", r"\int\varphi=1 \text{ and } \int\psi=0 \text{ (plus 1), by the midpoint rule}")
    says.equal([*integral, *[1 + m for m in means]], 1.0, 5e-3)
    says.fails("$c_1$ in two dimensions", integral[1] * bump_constant(1) / bump_constant(2))


def target(x: Tensor) -> Tensor:
    """Smooth on the left, a corner, and a short oscillation on the right."""
    return (x[:, 0] - 0.3).abs() + 0.4 * torch.sin(40 * x[:, 0]) * (x[:, 0] - 0.5).clamp_min(0)


class Fit(NamedTuple):
    """A greedy choice and its network."""

    terms: int
    error: float
    network: nn.Sequential


def greedy_networks(run: Run, most: int) -> list[Fit]:
    """The system of the unit on the line: the M chosen elements, and the network of them."""
    generator = wavelet_generator(1)
    bump = bump_network(1)
    waves, at = wavelet_grid(1, 5)
    coarse, where = wavelet_grid(1, 1)
    x = cell_centers(((0.0, 1.0),), 512)
    elements = [dictionary_element(output(bump), a, b) for a, b in zip(coarse, where, strict=True)]
    elements += [dictionary_element(output(generator), a, b) for a, b in zip(waves, at, strict=True)]
    dictionary = torch.stack([e(x) for e in elements], 1)
    sizes = [m for m in (2, 4, 8, 16, 24, 32, 64) if m <= most]
    apart, per_term, lost, fits, errors = [], [], [], [], []
    for m in sizes:
        found = greedy_terms(dictionary, target(x), m)
        net = assemble(found.chosen, found.coefficients, coarse, where, waves, at)
        terms = dictionary[:, found.chosen] @ found.coefficients
        apart.append(float((net(x)[:, 0] - terms).abs().max()))
        short = assemble(found.chosen[:-1], found.coefficients[:-1], coarse, where, waves, at)
        lost.append(float((short(x)[:, 0] - terms).abs().max()))
        per_term.append(network_size(net).parameters / m)
        errors.append(float(found.errors[-1]) / math.sqrt(len(x)))
        fits.append(Fit(m, errors[-1], net))
    most_weights = max(network_size(generator).parameters, network_size(bump).parameters)
    says = run.states("X-46", r"\text{the network is the sum of its } M \text{ terms}")
    says.equal(apart, within=1e-10)
    says.fails("one term left out", lost)
    says = run.states(
        ["X-46", "X-47"], r"\text{weights}\le C\cdot M,\ C \text{ the weights of one unit and a shared bias}"
    )
    says.at_most(per_term, most_weights + 1)
    says.fails("one unit a sample point", 512 * most_weights / max(sizes))
    says = run.states("X-46", r"\text{the largest } M \text{ has less than a tenth of the error of } M=2")
    says.below(errors[-1], errors[0] / 10)
    says.fails("half as many terms as the second size", errors[0])
    return fits


def assemble(
    chosen: Tensor, coefficients: Tensor, coarse: Tensor, where: Tensor, waves: Tensor, at: Tensor
) -> nn.Sequential:
    """Bumps of the coarse scale and wavelets of all scales, each by its own generator."""
    parts = []
    for mask, generator, matrices, shifts, first in (
        (chosen < len(coarse), bump_network(1), coarse, where, 0),
        (chosen >= len(coarse), wavelet_generator(1), waves, at, len(coarse)),
    ):
        if mask.any():
            which = chosen[mask] - first
            parts.append(dictionary_network(generator, matrices[which], shifts[which], coefficients[mask]))
    return combine([1.0] * len(parts), parts)


def haar_networks(run: Run, most_terms: int, resolution: int) -> list[Transfer]:
    """Best Haar terms of the picture of a cartoon, as a step function on its pixels."""
    picture = cartoon(2, generator=run.generator).image(resolution)
    coefficients = haar_transform(picture) / resolution
    sizes = [2**k for k in range(2, 10) if 2**k <= most_terms]
    epsilons = best_terms_errors(coefficients, sizes)
    made, promised, wide, bounds = [], [], [], []
    fine = 4 * resolution
    # one random point a cell: a regular grid would step over the ramps
    x = cell_centers(((0.0, 1.0), (0.0, 1.0)), fine)
    x = x + (run.rand(*x.shape) - 0.5) / fine
    pixel = (x * resolution).long()
    truth = picture[pixel[:, 0], pixel[:, 1]]
    for m, epsilon in zip(sizes, epsilons.tolist(), strict=True):
        where = coefficients.flatten().abs().topk(m).indices
        kept = coefficients.flatten()[where]
        share = epsilon / float(kept.abs().sum())
        # 1 - (1 - 4r)^2 <= 8r is the area of all ramps of the busiest generator
        ramp = min(share**2 / 8, 0.2)
        net = haar_network(where, kept, resolution, ramp)
        worst = max(haar_generator_error(k, ramp) for k in KINDS)
        promised.append(transfer_bound(epsilon, kept, worst))
        bounds.append(2 * epsilon)
        error = l2(net, x, truth)
        made.append(Transfer(m, epsilon, error, network_size(net).parameters, net))
        wide.append(l2(haar_network(where, kept, resolution, ramp, waves=False), x, truth))
    says = run.states("X-47", r"\|g-R\|_2\le\epsilon+\sum_i|c_i|\,\delta\le2\epsilon")
    says.at_most([t.error for t in made], bounds)
    # with few terms ε is large, and nearly any network is within 2ε
    many = sum(m < 16 for m in sizes)
    says.fails("a network that is not close to ψ: 1 on its support", wide[many:], promised=bounds[many:])
    says = run.states("X-47", r"\epsilon+\sum_i|c_i|\,\delta\le2\epsilon \text{ for the chosen ramps}")
    says.at_most(promised, bounds, 1e-12)
    says.fails(
        "ramps of a fifth of the support",
        [transfer_bound(t.epsilon, coefficients.flatten().abs().topk(t.terms).values, 0.9) for t in made],
    )
    largest = max(network_size(haar_generator(k, 0.01)).parameters for k in KINDS)
    # a unit of the first layer reads one coordinate, also after scaling
    says = run.states("X-47", r"\text{weights of the network}\le C\cdot M")
    says.at_most([t.weights for t in made], [largest * t.terms for t in made])
    says.fails("one box a pixel", [network_size(haar_generator((0, 0), 0.01)).parameters * resolution**2] * len(made))
    return made


def haar_network(where: Tensor, kept: Tensor, resolution: int, ramp: float, *, waves: bool = True) -> nn.Sequential:
    """The network of Haar terms given by their places in the array of coefficients."""
    groups: dict[tuple[int, int], list[tuple[float, int, int, float]]] = {}
    for place, c in zip(where.tolist(), kept.tolist(), strict=True):
        i, j = divmod(place, resolution)
        side = 1 if max(i, j) == 0 else 2 ** (max(i, j).bit_length() - 1)
        kind = (int(i >= side), int(j >= side)) if max(i, j) else (0, 0)
        groups.setdefault(kind, []).append((float(side), i % side, j % side, c))
    parts = []
    for kind, terms in groups.items():
        scale = torch.tensor([t[0] for t in terms], dtype=torch.float64)
        matrices = scale[:, None, None] * torch.eye(2, dtype=torch.float64)
        shifts = torch.tensor([[t[1], t[2]] for t in terms], dtype=torch.float64)
        values = torch.tensor([t[3] for t in terms], dtype=torch.float64)
        generator = haar_generator(kind if waves else (0, 0), ramp)
        parts.append(dictionary_network(generator, matrices, shifts, values))
    return combine([1.0] * len(parts), parts)


def l2(network: nn.Module, x: Tensor, truth: Tensor) -> float:
    parts = [network(x[i : i + 8192])[:, 0] for i in range(0, len(x), 8192)]
    return float((torch.cat(parts) - truth).square().mean().sqrt())


def output(network: nn.Module) -> Function:
    return partial(_first, network)


def _first(network: nn.Module, x: Tensor) -> Tensor:
    values: Tensor = network(x)
    return values[:, 0]


def plot_units(axes: Any, fits: list[Fit]) -> None:
    left, middle, right = axes[0]
    t = torch.linspace(-4, 4, 161, dtype=torch.float64)
    z = bump_network(2)(torch.cartesian_prod(t, t)).reshape(161, 161)
    shown = left.imshow(z.T, origin="lower", extent=(-4, 4, -4, 4), cmap="viridis")
    left.figure.colorbar(shown, ax=left)
    left.set(title="the bump φ, 9 ReLUs", xlabel="$x_1$", ylabel="$x_2$")
    left.grid(False)
    x = torch.linspace(-7, 7, 1401, dtype=torch.float64).unsqueeze(1)
    middle.plot(x, bump_network(1)(x), color="0.6", label="φ")
    middle.plot(x, wavelet_generator(1)(x), color=COLORS[0], label="φ(x) - φ(x/2)/2")
    middle.set(title="the unit", xlabel="x")
    middle.legend()
    u = torch.linspace(0, 1, 1001, dtype=torch.float64).unsqueeze(1)
    right.plot(u, target(u), color="0.5", linewidth=2, label="target")
    for color, fit in zip(COLORS, (fits[1], fits[-1]), strict=False):
        right.plot(u, fit.network(u), color=color, linewidth=1, label=f"{fit.terms} terms")
    right.set(title="greedy terms, one network", xlabel="x")
    right.legend()


def plot_transfer(axes: Any, transfers: list[Transfer], resolution: int) -> None:
    left, middle, right = axes[0]
    n = 4 * resolution
    x = cell_centers(((0.0, 1.0), (0.0, 1.0)), n)
    last = transfers[-1]
    values = torch.cat([last.network(x[i : i + 8192]) for i in range(0, len(x), 8192)])
    left.imshow(values.reshape(n, n).T, origin="lower", extent=(0, 1, 0, 1), cmap="gray")
    left.set(title=f"network of {last.terms} Haar terms", xticks=[], yticks=[])
    left.grid(False)
    sizes = [t.terms for t in transfers]
    middle.loglog(sizes, [2 * t.epsilon for t in transfers], color=COLORS[0], label="2ε")
    middle.loglog(sizes, [t.epsilon for t in transfers], "--", color="0.5", label="ε of the terms")
    middle.loglog(sizes, [t.error for t in transfers], "o", color=COLORS[1], label="network")
    middle.set(xlabel="terms M", ylabel="$L_2$ error", title="at most twice the error")
    middle.legend()
    right.plot(sizes, [t.weights for t in transfers], "o-", color=COLORS[2])
    right.set(xlabel="terms M", ylabel="weights", title="O(M) weights")
    for axis in (middle, right):
        axis.tick_params(which="minor", labelbottom=False, labelleft=False)
