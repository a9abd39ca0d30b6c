"""What weight decay charges a function, and the networks in which it adds up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense
from torchtheory.optimization.parallel_networks.induced_regularizer import (
    InducedPenalty,
    induced_penalty,
)
from torchtheory.optimization.parallel_networks.polar_problems import polar
from torchtheory.optimization.parallel_networks.subnetworks import (
    HalfSquares,
    ParallelNetwork,
    deep_subnetwork,
    linear_unit,
    parallel_network,
    relu_unit,
    split_hidden_units,
)


@lab(
    "induced-regularizer",
    room="optimization",
    covers=["B-46", "B-48"],
    title="Weight decay on a wide ReLU layer is a norm of its outputs",
    full={"samples": 8, "trials": 30, "grids": (8, 16, 32, 64, 128, 256, 512, 1024)},
    least={"samples": 3, "trials": 2, "grids": 5},
    items={"grids": 2},
)
def induced_regularizer(
    run: Run, samples: int = 5, trials: int = 4, grids: tuple[int, ...] = (8, 16, 32, 64, 128)
) -> None:
    """The least weight decay of any network with given outputs, as a function of the outputs.

    Networks that are sums of subnetworks come first: a dense layer taken apart into its units,
    deep networks side by side, and what scaling the weights of one of them does. Then the least
    penalty Ω(Z) of ReLU units on points of the plane, exactly, from both sides: by a network and
    by a dual certificate. It is homogeneous, convex and a norm, and needs no more units than Z has
    entries; with linear units it is the nuclear norm. Look at its unit ball: the convex hull of
    what single units can say.

    Args:
        samples: of a data set, three or more.
        trials: random data sets.
        grids: numbers of directions by which the norm is approached.
    """
    sums_of_networks(run)
    x = run.randn(samples, 2)
    known = penalties(run, x, trials)
    linear_units(run)
    curves = against_grids(run, x, known[0][0], grids)
    three_dimensions(run)
    run.figure(
        "parallel-networks",
        plot_networks,
        caption="A hidden layer of four ReLU units as four subnetworks (left), and three deep "
        "subnetworks of four layers of weights side by side (right), a color each.",
        grid=(1, 2),
        size=(9.5, 3.4),
    )
    ball = run.randn(2, 2)
    points = [run.randn(2, 1) for _ in range(8)]
    touching = [z[:, 0] / induced_penalty(relu_unit(2, 1), ball, z).upper for z in points]
    run.figure(
        "unit-ball",
        lambda axes: plot_ball(axes, ball, torch.stack(touching), curves),
        caption="Left, two samples: outputs of single units of penalty 1 (curves), their convex "
        "hull, and outputs Z scaled to Ω(Z) = 1 (dots), which lie on its boundary. Right, Ω by a "
        "linear program over a grid of directions, and how far that can be off.",
        grid=(1, 2),
        size=(9.5, 3.8),
    )


# -- parallel networks --------------------------------------------------------------------------


def sums_of_networks(run: Run) -> None:
    x, y, strength = run.randn(9, 3), run.randn(9, 2), 0.4
    net = nn.Sequential(
        dense(run.randn(6, 3), run.randn(6)), nn.ReLU(), dense(run.randn(2, 6))
    ).double()  # fmt: skip
    units = split_hidden_units(net)
    with torch.no_grad():
        reference = net(x)
        decay = sum(float(p.square().sum()) for p in net.parameters()) / 2
        objective = float((reference - y).square().sum()) / 2 + strength * decay
    loudest = units.parts(x).flatten(1).norm(dim=1).argmax()
    fewer = replace(units, weights=units.weights[torch.arange(6) != loudest])
    says = run.states(
        "B-46", r"\Phi_{n_1}(X)=\sum_i w_i^{[2]}\mathrm{ReLU}(w_i^{[1]\top}X+b_i) \text{ is the dense network}"
    )
    says.equal(
        (units(x) - reference).abs().max(), within=1e-12, where="hidden biases are weights of an input that is always 1"
    )
    says.fails("one unit dropped", (fewer(x) - reference).abs().max())
    says = run.states("B-46", r"\mathcal L(Y,\Phi_r)+\lambda\sum_i\theta(W_i) \text{ is its loss with weight decay}")
    says.equal(units.objective(x, HalfSquares(y), strength), objective, 1e-12)
    says.fails("one unit dropped", fewer.objective(x, HalfSquares(y), strength))
    deep = deep_subnetwork([3, 4, 4, 4, 2], penalty="powers")
    # a deep ReLU network of random weights may be silent: more are drawn until three answer
    drawn = parallel_network(deep, run.randn(3, deep.size))
    while len(heard := drawn.weights[drawn.parts(x).flatten(1).any(dim=1)]) < 3:
        drawn = drawn.append(run.randn(3, deep.size))
    three = replace(drawn, weights=heard[:3])
    stacked = block_network(three, [3, 4, 4, 4, 2])
    with torch.no_grad():
        whole = stacked(x)
    says = run.states("B-46", r"\text{three subnetworks of four layers are a dense network with block-diagonal layers}")
    says.equal((three(x) - whole).abs().max() / whole.abs().max(), within=1e-12)
    says.fails("without the first of them", (replace(three, weights=three.weights[1:])(x) - whole).abs().max())
    scaling(run, x, units, three)


def block_network(network: ParallelNetwork, widths: list[int]) -> nn.Sequential:
    shapes = list(zip(widths[1:], widths, strict=False))
    pieces = [torch.split(w, [a * b for a, b in shapes]) for w in network.weights]
    layers: list[nn.Module] = []
    for k, shape in enumerate(shapes):
        blocks = [piece[k].reshape(shape) for piece in pieces]
        if k == 0:
            layers += [dense(torch.cat(blocks)), nn.ReLU()]
        elif k == len(shapes) - 1:
            layers.append(dense(torch.cat(blocks, 1)))
        else:
            layers += [dense(torch.block_diag(*blocks)), nn.ReLU()]  # type: ignore[no-untyped-call]
    return nn.Sequential(*layers)


def scaling(run: Run, x: Tensor, units: ParallelNetwork, deep: ParallelNetwork) -> None:
    decayed = parallel_network(deep_subnetwork([3, 4, 4, 4, 2], penalty="decay"), deep.weights)

    def departures(network: ParallelNetwork) -> Tensor:
        """Of the loudest part, when scaled, and of its penalty from a^p times what they were."""
        loudest_first = network.parts(x).flatten(1).norm(dim=1).argsort(descending=True)
        network = replace(network, weights=network.weights[loudest_first])
        found = []
        for a in (0.5, 2.0, 3.0):
            weights = network.weights.clone()
            weights[0] *= a
            scaled = replace(network, weights=weights)
            power = a**network.subnetwork.degree
            before, after = network.parts(x), scaled.parts(x)
            of_part = (after[0] / power - before[0]).abs().max() / before[0].abs().max()
            of_penalty = (scaled.penalties()[0] / (power * network.penalties()[0]) - 1).abs()
            of_others = (after[1:] - before[1:]).abs().max()
            found.append(torch.stack([of_part, of_penalty, of_others]).max())
        return torch.stack(found)

    says = run.states(
        "B-46",
        r"W_i\to aW_i: \text{ the } i\text{-th part of } \Phi_r \text{ and of } \Theta_r "
        r"\text{ becomes } a^p \text{ times as large, the others stay}",
    )
    says.equal(
        torch.cat([departures(units), departures(deep)]),
        within=1e-12,
        where="a hidden unit, p = 2; four layers with the penalty of fourth powers, p = 4",
    )
    says.fails("four layers with plain weight decay, which has p = 2", departures(decayed))
    padded = deep.append(torch.zeros(2, deep.subnetwork.size).double())
    says = run.states("B-46", r"\text{zero subnetworks change nothing, and are dropped again: outputs, and number}")
    says.equal([float((padded(x) - deep(x)).abs().max()), len(padded.without_zeros())], [0.0, 3.0])
    more = deep.append(deep.weights[0])
    says.fails(
        "appended subnetworks that are not zero", [float((more(x) - deep(x)).abs().max()), len(more.without_zeros())]
    )


# -- the induced regularizer --------------------------------------------------------------------


def penalties(run: Run, x: Tensor, trials: int) -> list[tuple[Tensor, InducedPenalty]]:
    unit = relu_unit(2, 1)

    def omega(z: Tensor) -> InducedPenalty:
        return induced_penalty(unit, x, z)

    # any outputs, whose best units bend at the samples, and outputs of two units, whose best do not
    drawn = [run.randn(len(x), 1) if i % 2 else parallel_network(unit, run.randn(2, 3))(x) for i in range(trials)]
    known = [(z, omega(z)) for z in drawn]
    upper = torch.tensor([o.upper for _, o in known], dtype=torch.float64)
    lower = torch.tensor([o.lower for _, o in known], dtype=torch.float64)
    says = run.states("B-48", r"\Omega(Z)>0 \text{ for } Z\ne0,\ \Omega(0)=0")
    says.above(lower, 0, where="by the dual certificate")
    says.fails("Z = 0", omega(0 * known[0][0]).lower)
    # a unit along the first sample: it answers that one for certain
    one = unit.outputs(x, torch.cat([nn.functional.normalize(x[0], dim=0), x.new_ones(1)]))
    factors = [0.25, 3.0]
    scaled = [omega(a * z).upper / (a * o.upper) for a in factors for z, o in known]
    # the same units, charged θ²: of degree 4 where the network has degree 2
    squared = [
        float(o.network.scaled(torch.full((len(o.network),), a).double()).penalties().square().sum())
        / (a * float(o.network.penalties().square().sum()))
        for a in factors
        for _, o in known
    ]
    says = run.states("B-48", r"\Omega(aZ)=a\,\Omega(Z) \text{ for } a>0")
    says.equal(scaled, 1, 1e-5)
    says.fails("the penalty θ², of another degree than the network", squared)
    says = run.states(
        "B-48",
        r"\Omega(-Z)=\Omega(Z): \text{ the sign } s=(1,-1) \text{ turns } \phi \text{ and keeps } "
        r"\theta, \text{ so it is a norm}",
    )
    says.equal([omega(-z).upper / o.upper for z, o in known], 1, 1e-5)
    says.fails(
        "outgoing weights kept positive, Z the outputs of a unit: -Z costs this much more",
        one_sided(x, one, omega(one)),
    )
    pairs = [(known[i], known[(i + 1) % trials]) for i in range(trials)]
    sums = torch.tensor([omega(a[0] + b[0]).upper for a, b in pairs], dtype=torch.float64)
    bound = upper + upper.roll(-1)
    says = run.states("B-48", r"\Omega(Q+Z)\le\Omega(Q)+\Omega(Z)")
    says.at_most(sums, bound, 1e-5)
    says.fails(
        "the penalty θ², with the same units, for Z + Z",
        [4 * float(o.network.penalties().square().sum()) for _, o in known],
        promised=[2 * float(o.network.penalties().square().sum()) for _, o in known],
    )
    middle = [omega(0.3 * a[0] + 0.7 * b[0]).upper for a, b in pairs]
    single = omega(one).network
    says = run.states("B-48", r"\Omega(tQ+(1-t)Z)\le t\,\Omega(Q)+(1-t)\,\Omega(Z)")
    says.at_most(middle, 0.3 * upper + 0.7 * upper.roll(-1), 1e-5)
    says.fails(
        "the penalty √θ, of degree 1, on the way from 0 to the outputs of a unit",
        float(single.scaled(torch.full((len(single),), 0.5).double()).penalties().sqrt().sum()),
        promised=0.5 * float(single.penalties().sqrt().sum()),
    )
    run.states("B-48", r"\text{the minimum needs at most as many units as } Z \text{ has entries}").at_most(
        [len(o.network) for _, o in known],
        len(x),
        where=f"outputs are met up to {max(float((o.network(x) - z).abs().max()) for z, o in known):.0e}",
    )
    says = run.states("B-48", r"\text{both bounds meet: } 1-\langle Q,Z\rangle/\Theta_r(W) \text{ for a feasible } Q")
    says.equal(1 - lower / upper, within=1e-5)
    says.fails("the dual of other outputs", [1 - float((b[1].dual * a[0]).sum()) / a[1].upper for a, b in pairs])
    trial = [run.randn(len(x), 1) for _ in range(10)] + [o.dual for _, o in known]
    inner = torch.tensor([[float((q * z).sum()) for z, _ in known] for q in trial], dtype=torch.float64)
    polars = torch.tensor([polar(unit, x, q).value for q in trial], dtype=torch.float64)
    # in a random direction: along a sample it may well be the best
    some = unit.outputs(x, torch.cat([nn.functional.normalize(run.randn(2), dim=0), x.new_ones(1)]))
    lone = torch.tensor([abs(float((q * some).sum())) for q in trial], dtype=torch.float64)
    says = run.states("B-48", r"\langle Q,Z\rangle\le\Omega^\circ(Q)\,\Omega(Z)")
    says.at_most(inner, polars[:, None] * upper, 1e-9)
    # each Z with its own dual, where the two sides are equal
    count = len(known)
    says.fails(
        "Ω° from one unit, drawn at random, instead of the best",
        inner[-count:].diagonal(),
        promised=lone[-count:] * upper,
    )
    balanced_penalties(run, x)
    twice = torch.cat([x, x[:1]])
    different = torch.cat([known[0][0], known[0][0][:1] + 1])
    same = torch.cat([known[0][0], known[0][0][:1]])
    says = run.states("B-48", r"\Omega(Z)=\infty \text{ where no network has the outputs } Z")
    says.equal(
        induced_penalty(unit, twice, different).lower,
        math.inf,
        where="two outputs for one input: Ω is a norm only of outputs that can be reached",
    )
    says.fails("one output for that input", induced_penalty(unit, twice, same).lower)
    return known


def one_sided(x: Tensor, z: Tensor, known: InducedPenalty) -> float:
    """The cost of -Z with units of positive outgoing weight, over that with any; or infinity."""
    angles = torch.arange(720).double() * 2 * math.pi / 720
    features = torch.relu(x @ torch.stack([angles.cos(), angles.sin()]))
    solved = linprog([1.0] * 720, A_eq=features.numpy(), b_eq=-z[:, 0].numpy(), bounds=(0, None))
    return float(solved.fun) / known.upper if solved.status == 0 else math.inf


def balanced_penalties(run: Run, x: Tensor) -> None:
    """‖w₁‖‖w₂‖ is what weight decay becomes when both layers of a unit are made equally large."""
    product = relu_unit(2, 1, penalty="product")
    networks = [parallel_network(relu_unit(2, 1), run.randn(5, 3)) for _ in range(20)]
    before, after, moved, promised = [], [], [], []
    for network in networks:
        w = network.weights
        ratio = (w[:, 2:].norm(dim=1) / w[:, :2].norm(dim=1)).sqrt()[:, None]
        balanced = replace(network, weights=torch.cat([w[:, :2] * ratio, w[:, 2:] / ratio], 1))
        before.append(network.penalties().sum())
        after.append(balanced.penalties().sum())
        moved.append((balanced(x) - network(x)).abs().max())
        promised.append(replace(network, subnetwork=product).penalties().sum())
    says = run.states(
        "B-48",
        r"(\|w_1\|^2+\|w_2\|^2)/2 \text{ and } \|w_1\|\|w_2\| \text{ induce the same } \Omega: "
        r"\text{ equal once the layers are balanced}",
    )
    says.equal(
        torch.stack(after),
        torch.stack(promised),
        1e-12,
        where=f"balancing moves the outputs by {float(torch.stack(moved).max()):.0e}",
    )
    says.fails("before balancing", torch.stack(before))


def linear_units(run: Run) -> None:
    unit, eye = linear_unit(4, 3), torch.eye(4).double()
    matrices = [run.randn(4, 3) for _ in range(5)]
    found = [induced_penalty(unit, eye, z) for z in matrices]
    nuclear = [float(torch.linalg.matrix_norm(z, "nuc")) for z in matrices]
    feasible = [float(torch.linalg.matrix_norm(o.dual, 2)) for o in found]
    misses = [float((o.network(eye) - z).abs().max()) for o, z in zip(found, matrices, strict=True)]
    charged = [float(o.network.penalties().sum()) for o in found]
    says = run.states(
        "B-48", r"\text{linear units, } X=I:\ \Omega=\|Z\|_*, \text{ by a network and by a dual of norm 1}"
    )
    says.equal(
        charged + [o.lower / s for o, s in zip(found, feasible, strict=True)],
        nuclear + nuclear,
        1e-10,
        where=f"the networks have the outputs up to {max(misses):.0e}",
    )
    says.fails(
        "another X",
        [float(induced_penalty(unit, run.randn(4, 4), z).network.penalties().sum()) for z in matrices + matrices],
    )


def kink_directions(x: Tensor) -> Tensor:
    """The angles of the units that bend at a sample."""
    base = torch.atan2(x[:, 1], x[:, 0])
    return torch.cat([base + math.pi / 2, base - math.pi / 2])


def grid_penalty(x: Tensor, z: Tensor, directions: int, kinks: bool) -> float:
    """The least penalty with units of these directions and, if asked, those of all kinks."""
    angles = torch.arange(directions).double() * 2 * math.pi / directions
    if kinks:
        angles = torch.cat([angles, kink_directions(x)])
    features = torch.relu(x @ torch.stack([angles.cos(), angles.sin()]))
    both = torch.cat([features, -features], 1).numpy()
    solved = linprog([1.0] * both.shape[1], A_eq=both, b_eq=z[:, 0].numpy(), bounds=(0, None))
    return float(solved.fun) if solved.status == 0 else math.inf


def against_grids(
    run: Run, x: Tensor, z: Tensor, grids: tuple[int, ...]
) -> tuple[list[int], list[float], list[float], list[float]]:
    unit = relu_unit(2, 1)
    # what single units say is where the unit ball is curved, and a grid has an error at all; units
    # that bend at a sample are its corners, and a grid without them goes round
    unit_length = nn.functional.normalize
    near = unit_length(x[:3], dim=1) + unit_length(run.randn(3, 2), dim=1) / 2
    bent = kink_directions(x[:3])
    bent = torch.stack([bent.cos(), bent.sin()], 1)
    single = [unit.outputs(x, torch.cat([w, z.new_ones(1)])) for w in (*near, *bent)]
    # a unit that bends at a sample with all others behind it says nothing
    heard = [v for v in single if float(v.norm()) > 1e-9]
    outputs = [(v, induced_penalty(unit, x, v).upper) for v in [z, *heard]]
    sizes = sorted(grids)

    def worst(inputs: Tensor, n: int, kinks: bool) -> float:
        return max(grid_penalty(inputs, v, n, kinks) / exact for v, exact in outputs)

    with_kinks = [worst(x, n, True) for n in sizes]
    without = [worst(x, n, False) for n in sizes]
    promised = [1 / math.cos(math.pi / n) for n in sizes]
    says = run.states(
        "B-48",
        r"\Omega\le\Omega_N\le\Omega/\cos(\pi/N) \text{ for units along } N \text{ directions and "
        r"the kinks, by a linear program}",
    )
    says.at_most(with_kinks, promised, 1e-6, where=f"N from {sizes[0]} to {sizes[-1]}")
    says.fails("the directions of the kinks left out", without)
    says = run.states("B-48", r"\text{no grid does better: } \Omega_N/\Omega\ge1")
    says.at_least(with_kinks + without, 1, 1e-6)
    says.fails("units of norm 1.1 counted as norm 1", [worst(1.1 * x, n, True) for n in sizes])
    return sizes, with_kinks, without, promised


def three_dimensions(run: Run) -> None:
    """Four samples of three inputs: the cells of all activation patterns are gone through."""
    unit = relu_unit(3, 1)
    x, z = run.randn(4, 3), run.randn(4, 1)
    found = induced_penalty(unit, x, z)
    w = nn.functional.normalize(run.randn(1500, 3), dim=1)
    features = torch.relu(x @ w.T)
    both = torch.cat([features, -features], 1).numpy()
    upper = linprog([1.0] * both.shape[1], A_eq=both, b_eq=z[:, 0].numpy(), bounds=(0, None)).fun
    turned = found.network.weights[:, :3] + 0.3 * run.randn(len(found.network), 3)
    half = nn.functional.normalize(turned, dim=1)
    worst = (torch.relu(x @ half.T).T @ found.dual).abs().min().clamp(min=1e-3)
    says = run.states(
        "B-48", r"\text{three inputs, over all cells: } \Omega\le\text{ a linear program over 1500 random units}"
    )
    says.at_most(found.lower, float(upper), 1e-9, where=f"within {float(upper) / found.upper - 1:.1e} of it")
    says.fails("the dual scaled by what one other unit allows", found.lower / float(worst))


# -- figures ------------------------------------------------------------------------------------


def plot_networks(axes: Any) -> None:
    panels = [([3, 1, 2], 4), ([3, 2, 2, 2, 2], 3)]
    titles = ["one hidden layer, 4 units", "3 subnetworks of 4 layers"]
    for axis, (widths, count), title in zip(axes[0], panels, titles, strict=True):
        draw_network(axis, widths, count)
        axis.set(title=title, xticks=[], yticks=[])
        axis.grid(visible=False)
        for side in ("left", "bottom"):
            axis.spines[side].set_visible(False)


def draw_network(axis: Any, widths: list[int], count: int) -> None:
    def place(layer: int, block: int, unit: int) -> tuple[float, float]:
        shared = layer in (0, len(widths) - 1)
        total = widths[layer] * (1 if shared else count)
        index = unit + (0 if shared else block * widths[layer])
        return float(layer), index - (total - 1) / 2

    layers = range(len(widths))
    for block in range(count):
        across, up = [], []  # one line with gaps, as many lines are slow to draw
        for layer in layers[:-1]:
            for i in range(widths[layer]):
                for j in range(widths[layer + 1]):
                    ends = place(layer, block, i), place(layer + 1, block, j)
                    across += [ends[0][0], ends[1][0], math.nan]
                    up += [ends[0][1], ends[1][1], math.nan]
        axis.plot(across, up, color=COLORS[block], linewidth=0.8)
        hidden = [place(layer, block, i) for layer in layers[1:-1] for i in range(widths[layer])]
        axis.plot(*zip(*hidden, strict=True), "o", color=COLORS[block], markersize=9)
    outside = [place(layer, 0, i) for layer in (0, layers[-1]) for i in range(widths[layer])]
    axis.plot(*zip(*outside, strict=True), "o", color="black", markersize=9)


def plot_ball(
    axes: Any,
    x: Tensor,
    touching: Tensor,
    curves: tuple[list[int], list[float], list[float], list[float]],
) -> None:
    angles = torch.linspace(0, 2 * math.pi, 721).double()
    said = torch.relu(x @ torch.stack([angles.cos(), angles.sin()])).T
    axis = axes[0, 0]
    hull = ConvexHull(torch.cat([said, -said]).numpy())
    corners = hull.points[hull.vertices]
    axis.fill(corners[:, 0], corners[:, 1], color=COLORS[5], alpha=0.3, label="convex hull")
    axis.plot(said[:, 0], said[:, 1], color=COLORS[0], label="units, outgoing weight 1")
    axis.plot(-said[:, 0], -said[:, 1], color=COLORS[1], label="outgoing weight -1")
    axis.plot(touching[:, 0], touching[:, 1], "k.", markersize=6, label="Z / Ω(Z)")
    axis.set(xlabel="output at the first sample", ylabel="at the second", aspect="equal")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    sizes, kinks, without, promised = curves
    axis = axes[0, 1]
    small = 1e-9
    axis.loglog(sizes, [max(small, v - 1) for v in promised], "k--", label="1/cos(π/N) - 1")
    axis.loglog(sizes, [max(small, v - 1) for v in kinks], "o-", label="grid and kinks")
    finite = [(n, v - 1) for n, v in zip(sizes, without, strict=True) if math.isfinite(v)]
    if finite:
        axis.loglog(*zip(*finite, strict=True), "s-", label="grid without the kinks")
    axis.set(xlabel="directions N", ylabel=r"$\Omega_N/\Omega-1$")
    axis.legend()
