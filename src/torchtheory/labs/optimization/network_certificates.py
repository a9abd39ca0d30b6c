"""Networks with a proof that no other network does better, and the way there from anywhere."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from torchtheory.labs.engine import COLORS, InvalidInput, Run, lab
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.optimization.parallel_networks.factorization_certificates import (
    certify_factorization,
)
from torchtheory.optimization.parallel_networks.induced_regularizer import induced_penalty
from torchtheory.optimization.parallel_networks.network_certificates import (
    GrownNetwork,
    best_scales,
    certify_network,
    grow_network,
    worth_of_subnetwork,
)
from torchtheory.optimization.parallel_networks.nonincreasing_paths import (
    DescentPath,
    nonincreasing_path,
    required_width,
    slide_to_zero,
)
from torchtheory.optimization.parallel_networks.polar_problems import polar
from torchtheory.optimization.parallel_networks.subnetworks import (
    HalfSquares,
    OutputLoss,
    ParallelNetwork,
    Subnetwork,
    linear_unit,
    parallel_network,
    relu_unit,
)


@lab(
    "network-optimality-certificates",
    room="optimization",
    covers=["B-49", "B-50", "B-51"],
    title="A ReLU network is globally optimal when no further unit is worth its weight decay",
    full={"samples": 9, "starts": 12, "steps": 6000},
    least={"samples": 3, "strength": 0.01},
    most={"strength": 1},
)
def network_optimality_certificates(
    run: Run, samples: int = 6, strength: float = 0.3, starts: int = 4, steps: int = 600
) -> None:
    """One hidden ReLU layer with weight decay, on so few points of the plane that the polar
    problem is solved exactly.

    The convex problem over the outputs bounds the objective of every network from below, and the
    certificate computes that bound without knowing the optimum: at a network it proves optimal
    nobody can do better, and elsewhere it names the unit that is missing. On exclusive or, one,
    two and three units stop in local minima; the fourth is certified. With more units than
    outputs a path leads from random weights to a global minimum without going up. Look at the
    curve of the polar problem: units are worth adding where it rises above λ.

    Args:
        samples: of a data set, three or more.
        strength: of the weight decay.
        starts: trainings.
        steps: of each.
    """
    x, y = run.randn(samples, 2), run.randn(samples, 1)
    best = planted(run, x, y, strength)
    matrix_case(run)
    lower_bound(run, x, y, strength)
    trained(run, x, y, strength, best, starts, steps)
    ladder = exclusive_or(run)
    path = wide_path(run, x, y, strength, best)
    run.figure(
        "certificates",
        lambda axes: plot(axes, ladder, path, best.certificate.objective),
        caption="Exclusive or with λ = ½. Left, what a further unit in each direction is worth "
        "when there are 0 to 4 units (curves agree where the units there do not answer): none is "
        "worth its penalty once the curve stays below λ. Middle, the objective and the "
        "certificate's lower bound. Right, the path of Theorem 4.10 "
        "from random weights, by what was done.",
        grid=(1, 3),
        size=(13.5, 3.6),
    )


def planted(run: Run, x: Tensor, y: Tensor, strength: float) -> GrownNetwork:
    """The optimum by growth, against a convex solver that knows only a grid of directions."""
    unit, loss = relu_unit(2, 1), HalfSquares(y)
    grown = grow_network(unit, x, loss, strength, tolerance=1e-8)
    directions = 2000
    value = grid_optimum(x, y[:, 0], strength, directions)
    says = run.states(
        "B-49",
        r"\min_Z\mathcal L(Z)+\lambda\Omega(Z)=\min_W\mathcal L(\Phi_r)+\lambda\Theta_r: "
        r"\text{ the grown network against a convex solver over 2000 directions}",
    )
    says.equal(
        grown.certificate.objective,
        value,
        1e-5,
        where=f"{len(grown.network)} units; the grid raises it by at most the factor "
        f"1/cos(π/{directions}) = 1 + {1 / math.cos(math.pi / directions) - 1:.1e}",
    )
    says.fails("twice the λ", grow_network(unit, x, loss, 2 * strength, tolerance=1e-8).certificate.objective)
    optimum = grown.network.weights
    perturbed = [replace(grown.network, weights=optimum * (1 + 0.1 * run.randn(*optimum.shape))) for _ in range(5)]
    says = run.states("B-49", r"\text{the optimum is certified: gap of the certificate relative to the objective}")
    says.equal(grown.certificate.relative_gap, within=1e-7)
    says.fails("weights perturbed by a tenth", [certify_network(n, x, loss, strength).relative_gap for n in perturbed])
    rescaled = [n.scaled(best_scales(n, x, loss, strength)) for n in perturbed]
    says = run.states("B-49", r"\langle G,Z\rangle=\lambda\Theta_r \text{ where scaling the units gains nothing}")
    says.equal([certify_network(n, x, loss, strength).balance for n in rescaled], within=1e-8)
    says.fails("before they were rescaled", [certify_network(n, x, loss, strength).balance for n in perturbed])
    return grown


def grid_optimum(x: Tensor, y: Tensor, strength: float, directions: int) -> float:
    """The optimum over units of these directions and those of all kinks, by its dual.

    The dual is the projection of y onto {q: |⟨q, ReLU(Xw)⟩| <= λ for all w}, a problem of least
    distance, which Lawson and Hanson turn into one of non-negative least squares.
    """
    angles = torch.arange(directions).double() * 2 * math.pi / directions
    kinks = torch.atan2(x[:, 1], x[:, 0])
    angles = torch.cat([angles, kinks + math.pi / 2, kinks - math.pi / 2])
    features = torch.relu(x @ torch.stack([angles.cos(), angles.sin()])).T
    rows = torch.cat([features, -features])
    bounds = rows @ y - strength
    system = torch.cat([-rows.T, bounds[None]]).numpy()
    target = np.append(np.zeros(len(y)), 1.0)
    residual = system @ nnls(system, target)[0] - target
    distance = torch.as_tensor(-residual[:-1] / residual[-1])
    return float(y.square().sum() - distance.square().sum()) / 2


def objectives(weights: Tensor, x: Tensor, y: Tensor, strength: float) -> Tensor:
    """Of many networks `[..., r, 3]` at once."""
    hidden = torch.relu(weights[..., :2] @ x.T)
    fit = ((weights[..., 2:] * hidden).sum(-2) - y[:, 0]).square().sum(-1) / 2
    return fit + strength * weights.square().sum((-2, -1)) / 2


def matrix_case(run: Run) -> None:
    """Linear units on the identity: the certificate of factorizations."""
    Y, strength = run.randn(5, 4), 0.5
    unit = linear_unit(5, 4)
    differences: list[float] = []
    elsewhere: list[float] = []
    for width in (0, 1, 3, 5):
        U, V = run.randn(5, width), run.randn(4, width)
        network = parallel_network(unit, torch.cat([U, V]).T)
        reference = certify_factorization(Y, U, V, strength)
        for x, into in ((torch.eye(5).double(), differences), (run.randn(5, 5), elsewhere)):
            found = certify_network(network, x, HalfSquares(Y), strength)
            assert found.lower_bound is not None
            into += [
                found.polar.value - reference.largest_residual,
                found.balance - reference.balance,
                found.objective - reference.objective,
                # the network's bound is the better of two
                min(0.0, found.lower_bound - reference.lower_bound),
            ]
    says = run.states("B-49", r"\text{linear units, } X=I: \text{ the certificate of matrix factorizations}")
    says.equal(differences, within=1e-8, where="polar, balance, objective and lower bound for 0, 1, 3 and 5 columns")
    says.fails("another X", elsewhere)


def lower_bound(run: Run, x: Tensor, y: Tensor, strength: float) -> None:
    unit, loss = relu_unit(2, 1), HalfSquares(y)
    ours, theirs, first = [], [], []
    for width in (2, 4, 8):
        for _ in range(3):
            network = parallel_network(unit, run.randn(width, 3))
            Z = network(x)
            omega = induced_penalty(unit, x, Z)
            ours.append(float(loss(Z)) + strength * omega.lower)
            theirs.append(network.objective(x, loss, strength))
            # the same outputs with small first layers, whose decay alone is counted
            inner = network.weights[:, :2].square().sum() / 2
            first.append(float(loss(Z)) + strength * float(inner) / 100)
    says = run.states(
        "B-49", r"\mathcal L(Z)+\lambda\Omega(Z)\le\mathcal L(\Phi_r(X,W))+\lambda\Theta_r(W),\ Z=\Phi_r(X,W)"
    )
    says.at_most(ours, torch.stack(theirs), 1e-9, where="random networks of 2, 4 and 8 units")
    says.fails("only the first layer is decayed, and it is ten times smaller", ours, promised=first)


def trained(run: Run, x: Tensor, y: Tensor, strength: float, best: GrownNetwork, starts: int, steps: int) -> None:
    """Gradient descent from random starts, wide and with a single unit."""
    unit, loss = relu_unit(2, 1), HalfSquares(y)
    least = best.certificate.objective
    rows, distances, blind = [], [], []
    changes = []
    # long inputs make the objective steep, and the weights of twelve units steeper still
    rate = min(0.1, 1 / (3 * float(torch.linalg.matrix_norm(x, 2)) ** 2))
    for width in (1, 12):

        def objective(theta: Tensor, width: int = width) -> Tensor:
            return objectives(theta.reshape(*theta.shape[:-1], width, 3), x, y, strength)

        ends = gradient_descent(objective, 0.5 * run.randn(starts, 3 * width), rate, steps)
        for theta in ends.points[-1]:
            network = parallel_network(unit, theta.reshape(width, 3))
            found = certify_network(network, x, loss, strength)
            assert found.gap is not None
            rescaled = network.scaled(best_scales(network, x, loss, strength))
            if not certify_network(rescaled, x, loss, strength, tolerance=0.01).optimal:
                changes.append(change(rescaled, x, y, strength))
            distances.append((found.objective - least, found.gap))
            # the polar problem looked at only along the units that are there
            blind.append((found.objective - least, abs(found.balance)))
            silent = int((network.parts(x).flatten(1).norm(dim=1) < 1e-3).sum())
            rows.append((width, found.objective - least, found.gap, silent, found.verdict))
    says = run.states("B-49", r"f(W)-\min f\le\text{gap of the certificate}")
    says.at_most([d for d, _ in distances], [g for _, g in distances], 1e-9)
    says.fails(
        "the polar problem searched only among the units that are there",
        [d for d, _ in blind],
        promised=[g for _, g in blind],
    )
    says = run.states(
        "B-50",
        r"\text{a network that is not optimal is no local minimum once it has a zero unit: what "
        r"the polar unit in its place changes the objective by}",
    )
    open_ = float(best.certificate.gap or 0.0)
    says.below(
        torch.tensor([float(c) for c in changes]) + open_,
        0,
        where=f"{len(changes)} trained networks, rescaled, that are not within 1 % of optimal; "
        f"{open_:.0e}, which the optimum's own certificate leaves open, is added",
    )
    says.fails("at the optimum", float(change(best.network, x, y, strength)) + open_)
    run.table(
        "trained",
        ["units", "above the optimum", "gap", "units that say nothing", "verdict"],
        rows,
        caption=f"Gradient descent on {len(x)} points; the optimum has {len(best.network)} units",
    )


def change(network: ParallelNetwork, x: Tensor, y: Tensor, strength: float) -> float:
    """By how much the objective changes when the best unit is added in its best size."""
    loss = HalfSquares(y)
    way = certify_network(network, x, loss, strength).polar.weights
    size = worth_of_subnetwork(network, way, x, loss, strength)
    before = network.objective(x, loss, strength)
    return float(network.append(math.sqrt(size) * way).objective(x, loss, strength) - before)


XOR = ([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], [[1.0], [-1.0], [-1.0], [1.0]])


def two_wells(z: Tensor) -> Tensor:
    return (z.square() - 1).square().sum()


def exclusive_or(run: Run) -> list[ParallelNetwork]:
    """The unit along a corner answers that corner alone: one more is solved by each unit."""
    x, y = (torch.tensor(v).double() for v in XOR)
    unit, loss, strength = relu_unit(2, 1), HalfSquares(y), 0.5
    root = math.sqrt(2)
    size = (1 - strength / root) / root  # of the product of both layers' weights
    units = torch.cat([x / root, y], 1) * math.sqrt(size)
    ladder = [parallel_network(unit, units[:r]) for r in range(5)]
    found = [certify_network(n, x, loss, strength) for n in ladder]
    solved = strength**2 / 4 + strength * size
    says = run.states(
        ["B-49", "B-50"],
        r"\text{exclusive or: the four units along the corners are optimal, } "
        r"f=4(\lambda^2/4+\lambda(1-\lambda/\sqrt2)/\sqrt2)",
    )
    says.equal(
        [float(found[4].lower_bound or 0.0), found[4].objective],
        4 * solved,
        1e-12,
        where=f"verdict: {found[4].verdict}",
    )
    says.fails("three of them", found[3].objective)
    lowest = []
    for network, here in zip(ladder[1:4], found[1:4], strict=True):
        moves = 1e-3 * run.randn(400, *network.weights.shape)
        values = objectives(network.weights + moves, x, y, strength)
        lowest.append(values.min() - here.objective)
    escapes, gains, again, promised = [], [], [], []
    for network, here in zip(ladder[1:4], found[1:4], strict=True):
        way = here.polar.weights
        tiny = network.append(1e-3 * way)
        escapes.append(tiny.objective(x, loss, strength) - here.objective)
        epsilon = worth_of_subnetwork(network, way, x, loss, strength)
        grown = network.append(math.sqrt(epsilon) * way)
        gains.append(here.objective - grown.objective(x, loss, strength))
        doubled = network.append(network.weights[0])
        again.append(here.objective - doubled.objective(x, loss, strength))
        part = unit.outputs(x, way).square().sum()
        promised.append((here.polar.value - strength) ** 2 / (2 * part))
    says = run.states(
        "B-50", r"\text{1, 2, 3 units: no weights nearby are better, so these are local minima without a zero unit}"
    )
    says.at_least(torch.stack(lowest), 0, where="400 perturbations of each, of size 10⁻³")
    says.fails("with a zero unit, moved by 10⁻³ along the polar solution", torch.stack(escapes))
    says = run.states(
        "B-50", r"\text{they are not global: the certificate leaves a gap of at least what is above } \min f"
    )
    says.above(
        [min(c.objective - 4 * solved, float(c.gap or 0.0)) - 1e-9 for c in found[1:4]],
        0,
        where="the smaller of the gap and of the objective above the optimum, with 1e-9 for rounding",
    )
    says.fails("four units", min(found[4].objective - 4 * solved, float(found[4].gap or 0.0)) - 1e-9)
    says = run.states(
        "B-50", r"\text{the polar unit lowers the objective by } (\Omega^\circ(G)-\lambda)^2/(2\|\phi\|^2)"
    )
    says.equal(torch.stack(gains), torch.stack(promised), 1e-12)
    says.fails("the unit of the corner that is solved already, again", torch.stack(again))
    angles = torch.linspace(0, 2 * math.pi, 181).double()[:-1]
    circle = torch.stack([angles.cos(), angles.sin()], 1) / root
    ways = torch.cat([torch.cat([circle, k * torch.ones(180, 1) / root], 1) for k in (1, -1)])

    def least_change(network: ParallelNetwork) -> Tensor:
        """With a zero unit more, moved every way by 10⁻³, the others kept and moved at random."""
        spare = network.append(torch.zeros(3).double()).weights
        moves = 1e-3 * run.randn(len(ways), *spare.shape)
        alone = torch.zeros_like(moves)
        alone[:, -1] = moves[:, -1] = 1e-3 * ways
        values = objectives(spare + torch.cat([alone, moves]), x, y, strength)
        return values.min() - network.objective(x, loss, strength)

    says = run.states("B-50", r"\text{the global minimum stays a local one with a zero unit: least change nearby}")
    says.at_least(
        least_change(ladder[4]),
        0.0,
        1e-12,
        where="the zero unit moved in 360 directions, alone and with random moves of the others",
    )
    says.fails(
        "local minima that are not global: 1, 2 and 3 units and a zero one",
        torch.stack([least_change(n) for n in ladder[1:4]]),
    )
    # (z² - 1)² at z = 0: the gradient is 0, no unit seems worth anything, and the bound is f(0)
    nothing = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(two_wells(nothing), nothing)
    worth = polar(unit, x[:1], -slope).value
    other = parallel_network(unit, torch.tensor([[0.5, 0.5, 1.0]]).double())
    reached = other.objective(x[:1], two_wells, 0.1)
    says = run.states("B-49", r"\text{the lower bound is below every network, if the loss is convex in the outputs}")
    says.at_most(
        [float(c.lower_bound or 0.0) for c in found],
        torch.stack([n.objective(x, loss, strength) for n in ladder]),
        1e-12,
    )
    says.fails(
        f"the loss (z² - 1)², not convex: at 0 no unit is worth more than {worth:g}, and yet "
        "the bound from there is above a network (certify_network refuses this loss)",
        float(two_wells(nothing.detach())) - float((slope * nothing.detach()).sum()),
        promised=reached,
    )
    return ladder


#: Outputs and samples whose |φ| = outputs × samples the slide is tried at.
SHAPES = ((1, 2), (1, 6), (2, 2), (3, 2), (2, 5))


def entry_units(run: Run, outputs: int, samples: int) -> tuple[Tensor, Tensor]:
    """Inputs, and |φ| units with independent outputs: each answers one sample alone."""
    x = run.randn(samples, samples)
    alone = torch.linalg.inv(x).T.repeat_interleave(outputs, 0)
    return x, torch.cat([alone, run.randn(len(alone), outputs)], 1)


def slides(unit: Subnetwork, weights: Tensor, x: Tensor) -> float:
    """Whether a unit can be emptied with the outputs kept and the penalty no larger: 1 or 0."""
    network = parallel_network(unit, weights)
    try:
        slide = slide_to_zero(network, x)
    except InvalidInput:
        return 0.0
    along = [slide.at(k / 10) for k in range(11)]
    kept = max(float((n(x) - network(x)).abs().max()) for n in along) <= 1e-8
    charges = torch.stack([n.penalties().sum() for n in along])
    emptied = float(along[-1].weights.abs().amax(1).min()) <= 1e-6
    return float(kept and emptied and bool((charges.diff() <= 1e-10).all()))


def enough_units(run: Run) -> None:
    """One unit more than |φ| is what the slide asks for: with |φ| of them there is none."""
    wide, narrow = [], []
    for outputs, samples in SHAPES:
        x, units = entry_units(run, outputs, samples)
        unit = relu_unit(samples, outputs)
        more = required_width(outputs, samples) - len(units)
        wide.append(slides(unit, torch.cat([units, run.randn(more, units.shape[1]).abs()]), x))
        fewer = required_width(outputs, samples) - 1
        narrow.append(slides(unit, units[:fewer], x) if fewer <= len(units) else 1.0)
    says = run.states(
        "B-51",
        r"r=|\phi|+1: \text{ a unit is emptied on a way that keeps } \Phi_r \text{ and raises no } \Theta_r",
    )
    says.equal(
        wide, 1.0, where="outputs × samples: " + ", ".join(f"{c} × {m}" for c, m in SHAPES) + "; 1 where there is one"
    )
    says.fails("r = |φ|, each unit answers one sample alone", narrow)


def between_points(path: DescentPath, x: Tensor, loss: OutputLoss, strength: float) -> float:
    """How far the objective ever rises above what it was, at eight times between any two points."""
    values = [
        path.between(point, k / 8).objective(x, loss, strength)
        for point in range(1, len(path.networks))
        for k in range(1, 9)
    ]
    found = torch.stack([torch.tensor(path.objectives[0], dtype=torch.float64), *values])
    return float((found - found.cummin(0).values).max())


def straight(path: DescentPath, x: Tensor, loss: OutputLoss, strength: float) -> float:
    """The same with straight lines in the weights, on which the outputs are not affine."""
    every = replace(path, stages=["descend"] * len(path.stages))
    return between_points(every, x, loss, strength)


def wide_path(run: Run, x: Tensor, y: Tensor, strength: float, best: GrownNetwork) -> DescentPath:
    enough_units(run)
    unit, loss = relu_unit(2, 1), HalfSquares(y)
    width = required_width(1, len(x))
    units = run.randn(width, 3)
    silent = (units[:, :2] @ x.T <= 0).all(1)
    units[silent, :2] *= -1  # one that says nothing could be dropped without a slide
    start = parallel_network(unit, units)
    path = nonincreasing_path(start, x, loss, strength, tolerance=1e-4)
    slide = slide_to_zero(start, x)
    times = [k / 20 for k in range(21)]
    along = [slide.at(t) for t in times]
    outputs = torch.stack([n(x) for n in along])
    penalties = torch.stack([n.penalties().sum() for n in along])
    linear = [replace(start, weights=(1 + t * slide.beta)[:, None] * start.weights)(x) for t in times]
    says = run.states("B-51", r"\Phi_r(W(t))=\Phi_r(W(0)),\quad W_i(t)=(1+t\beta_i)^{1/p}W_i")
    says.equal((outputs - outputs[0]).abs().amax((1, 2)), within=1e-10)
    says.fails("without the root: $W_i$(t) = (1 + tβ_i) $W_i$", (torch.stack(linear) - outputs[0]).abs().amax((1, 2)))
    back = -slide.beta / max(float(slide.beta.max()), 1.0)
    wrong = torch.stack([start.scaled(1 + t * back).penalties().sum() for t in times])
    says = run.states("B-51", r"\Theta_r \text{ does not rise on the slide}")
    says.at_most(penalties.diff(), 0, 1e-12, where="at random weights, where it falls; at stationary ones it stays")
    says.fails("β with the other sign", wrong.diff())
    says = run.states("B-51", r"\text{at } t=1 \text{ a subnetwork is zero: its largest weight}")
    says.equal(along[-1].weights.abs().amax(1).min(), within=1e-7)
    says.fails("at t = ½", along[10].weights.abs().amax(1).min())
    corners, signs = (torch.tensor(v).double() for v in XOR)
    cases: list[tuple[DescentPath, Tensor, OutputLoss, float]] = [(path, x, loss, strength), (*repeated_corner(), 0.1)]
    for m in (2, 3):
        inputs, two = run.randn(m, 2), HalfSquares(run.randn(m, 2))
        wide = parallel_network(relu_unit(2, 2), run.randn(required_width(2, m), 4))
        cases.append((nonincreasing_path(wide, inputs, two, strength, tolerance=1e-4), inputs, two, strength))
    says = run.states(
        "B-51", r"r>|\phi|: \text{ the largest rise of the objective on the path, at its points and between them}"
    )
    says.at_most(
        [between_points(*case) for case in cases],
        0,
        1e-9,
        where=f"{len(x)} samples and 1 output, 2 and 3 samples and 2 outputs, exclusive or with the logistic loss; "
        + ", ".join(f"{n} {s}" for s, n in Counter(s for case in cases for s in case[0].stages).items()),
    )
    says.fails("straight lines in the weights on rescalings and slides", [straight(*case) for case in cases])
    says = run.states("B-51", r"\text{what is proven, by convexity, of the rise on rescalings, slides and growths}")
    says.at_most(torch.tensor([r for case in cases for r in case[0].rises]), 0, 1e-7)
    says.fails("the slide with β of the other sign", [rise_backwards(start, back, x, loss, strength)])
    says = run.states("B-51", r"\text{to a global minimum: relative gap of the certificate at its end}")
    says.at_most(
        [case[0].certificate.relative_gap for case in cases],
        1e-4,
        where=f"the first has {width} units for {len(x)} samples and ends above the optimum by "
        f"{path.certificate.objective - best.certificate.objective:.1e}",
    )
    says.fails(
        "r = 3 < |φ| = 4 at a local minimum of exclusive or: no path leads on", stuck(corners, HalfSquares(signs))
    )
    run.note(
        f"The theorem asks for one unit more than outputs times samples: {width} here, and "
        f"{required_width(10, 60_000)} for sixty thousand images in ten classes. It is an "
        "existence theorem: gradient descent alone need not find the path."
    )
    return path


def rise_backwards(start: ParallelNetwork, back: Tensor, x: Tensor, loss: OutputLoss, strength: float) -> float:
    """The objective's slope at the end of a slide that raises the penalty."""
    end = start.scaled(1 + back)
    return float((end.objective(x, loss, strength) - start.objective(x, loss, strength)).detach())


def repeated_corner() -> tuple[DescentPath, Tensor, OutputLoss]:
    """The path from units for three corners, the third in three copies: one is slid to zero."""
    x, y = (torch.tensor(v).double() for v in XOR)
    units = 0.7 * torch.cat([x / math.sqrt(2), y], 1)
    copies = torch.cat([units[:2], units[[2, 2, 2]] / math.sqrt(3)])

    def loss(z: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-z * y).sum()

    start = parallel_network(relu_unit(2, 1), copies)
    return nonincreasing_path(start, x, loss, 0.1, tolerance=1e-4), x, loss


def stuck(x: Tensor, loss: OutputLoss) -> float:
    """The relative gap where the path of three units from a local minimum ends: where it began."""
    strength, root = 0.5, math.sqrt(2)
    size = (1 - strength / root) / root
    units = math.sqrt(size) * torch.cat([x / root, torch.tensor(XOR[1]).double()], 1)[:3]
    network = parallel_network(relu_unit(2, 1), units)
    try:
        return nonincreasing_path(network, x, loss, strength, tolerance=1e-4).certificate.relative_gap
    except InvalidInput:  # the units are independent, so that none can be emptied
        return certify_network(network, x, loss, strength).relative_gap


def plot(axes: Any, ladder: list[ParallelNetwork], path: DescentPath, least: float) -> None:
    x, y = (torch.tensor(v).double() for v in XOR)
    loss, strength = HalfSquares(y), 0.5
    angles = torch.linspace(0, 2 * math.pi, 721).double()
    hidden = torch.relu(x @ torch.stack([angles.cos(), angles.sin()]))
    axis = axes[0, 0]
    for r in (0, 1, 2, 4):
        worth = ((y - ladder[r](x)).T @ hidden).abs()[0]
        axis.plot(angles.rad2deg(), worth, color=COLORS[min(r, 3)], label=f"{r} unit" + "s" * (r != 1))
    axis.axhline(strength, color="black", linewidth=0.9, linestyle="--", label="λ")
    axis.set(xlabel="direction of the unit (degrees)", ylabel="worth of a further unit",
             xticks=[0, 90, 180, 270, 360], ylim=(0, 2.1))  # fmt: skip
    axis.legend(ncols=3, loc="upper center")
    axis = axes[0, 1]
    found = [certify_network(n, x, loss, strength) for n in ladder]
    axis.plot([c.objective for c in found], "o-", color=COLORS[0], label="objective")
    axis.plot([c.lower_bound for c in found], "s-", color=COLORS[1], label="lower bound")
    axis.set(xlabel="units", ylabel="objective", xticks=range(5), ylim=(0, None))
    axis.legend()
    axis = axes[0, 2]
    values = torch.tensor(path.objectives).double() - least
    stages = ["descend", "rescale", "slide", "grow"]
    axis.plot(values.clamp(min=1e-9), color="0.75", linewidth=0.8)
    for i, stage in enumerate(stages):
        where = [k for k, s in enumerate(path.stages) if s == stage]
        if where:
            axis.plot(where, values[where].clamp(min=1e-9), ".", markersize=4, color=COLORS[i],
                      label=stage)  # fmt: skip
    axis.set(yscale="log", xlabel="point of the path", ylabel="objective above the optimum")
    axis.legend()
