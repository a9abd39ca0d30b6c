"""Slices through the loss of a network: not convex, and with more than one minimum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import NotConverged
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.symmetries import hidden_layers, permute_units
from torchtheory.optimization.landscape.parameter_space import losses_at
from torchtheory.optimization.landscape.slices import (
    LossSlice,
    SegmentProbe,
    eigen_directions,
    loss_slice,
    probe_segment,
    random_directions,
    slice_valleys,
)

ZOOM = 4


@lab(
    "loss-landscape-slices",
    room="optimization",
    covers=["A-52", "A-53"],
    title="The loss of a network is not convex, and a plane through it shows several valleys",
    full={"grid": 97, "samples": 200, "width": 20, "planes": 6},
    least={"grid": 2, "samples": 2, "width": 8, "coarse": 2},
    most={"coarse": 10},
)
def loss_landscape_slices(
    run: Run,
    grid: int = 41,
    samples: int = 40,
    width: int = 8,
    coarse: float = 2.0,
    planes: int = 2,
) -> None:
    """Exchanging two hidden units gives other parameters of the same function. Half way between
    the two lies a network that computes something else: the source's example with six parameters,
    where the loss is 0 at both ends and 1/2 in the middle.

    Then a network of four ReLU layers is trained and its loss drawn on a plane through the trained
    parameters, along two random directions with filters as long as its own, at four scales. In a
    plane of the last layer the loss is convex and has one minimum; in a plane of all layers it has
    several. Look at how ordinary the last panel looks beside the first.

    Args:
        grid: points per side of a slice.
        samples: that the network is trained on.
        width: hidden units.
        coarse: half the side of the widest slice.
        planes: slices in which valleys are looked for.
    """
    if (grid - 1) % (2 * ZOOM):
        grid += 2 * ZOOM - (grid - 1) % (2 * ZOOM)  # so that the grids of all zooms share points
    example(run)
    problem = trained(run, samples, width)
    segments = exchanged(run, problem)
    slices = zooms(run, problem, grid, coarse)
    bottoms = valleys(run, problem, slices[0], planes)
    eigenvectors(run, problem)
    run.figure(
        "zooms",
        lambda axes: plot_zooms(axes, slices, bottoms),
        caption="The loss on a plane through the trained parameters (cross) at four scales, each "
        "panel a quarter of the one before as wide (the dashed square). White dots in the first "
        "are its local minima; colors are on a logarithmic scale.",
        grid=(2, 2),
        size=(10, 8),
    )
    run.figure(
        "segments",
        lambda axis: plot_segments(axis, segments),
        caption="The loss between a trained network and itself with two hidden units exchanged, "
        "for all neighbors in the first hidden layer; the highest in red. A flat line at the "
        "bottom is an exchange of units that do nothing.",
    )


def example(run: Run) -> None:
    """Example 1.22: six parameters, two samples."""
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    y = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    net = nn.Sequential(
        dense(torch.ones(2, 1).double(), torch.tensor([1.0, 0.0]).double()),
        nn.ReLU(),
        dense(torch.tensor([[1.0, -1.0]]).double()),
    )
    problem = Problem(net, (x, y), task="regression")
    theta = flatten(problem.parameters)
    swapped = permute_units(problem.parameters, hidden_layers(net)[0], torch.tensor([1, 0]))
    other = flatten(swapped)
    probe = probe_segment(problem, theta, other, count=3)

    def realize(point: Tensor, at: Tensor) -> Tensor:
        return problem.function(unflatten(point, problem.parameters), at)

    line = torch.linspace(-3, 3, 61, dtype=torch.float64)[:, None]
    function = torch.relu(line + 1) - torch.relu(line)
    middle = (theta + other) / 2
    says = run.states("A-52", r"\Phi(\cdot,\theta)=\Phi(\cdot,\bar\theta)=\varrho_R(x+1)-\varrho_R(x)")
    says.equal(
        torch.stack([realize(theta, line), realize(other, line)]),
        torch.stack([function, function]),
        1e-12,
        where="61 points of [-3, 3]; θ̄ is θ with the two hidden units exchanged",
    )
    says.fails("half way between them", realize(middle, line).expand(2, *line.shape))
    says = run.states(
        "A-52",
        r"\widehat{\mathcal R}(\tfrac{\theta+\bar\theta}2)=\tfrac12",
    )
    says.equal(probe.losses[1], 0.5, where="half way")
    says.fails("a quarter of the way", probe_segment(problem, theta, other, count=5).losses[1])
    run.states("A-52", r"\widehat{\mathcal R}(\theta)=\widehat{\mathcal R}(\bar\theta)=0").equal(probe.losses[::2])
    convex = probe_segment(problem, theta, with_output(problem, other, theta))
    says = run.states("A-52", r"\text{not convex: the loss exceeds the chord somewhere between } \theta, \bar\theta")
    says.above(probe.excess, 0, where="a third point with the two ends is the certificate")
    says.fails("the output weights alone change: convex", convex.excess)


def with_output(problem: Problem, output: Tensor, rest: Tensor) -> Tensor:
    """The last layer of one point with all other layers of another."""
    named, first = (unflatten(v, problem.parameters) for v in (output, rest))
    last = max(int(k.split(".")[0]) for k in named)
    mixed: Parameters = {k: named[k] if k.startswith(f"{last}.") else first[k] for k in problem.parameters}
    return flatten(mixed)


def trained(run: Run, samples: int, width: int) -> Problem:
    """Four ReLU layers fitted to a smooth function of two variables."""
    x = 2 * run.rand(samples, 2) - 1
    y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])
    for _ in range(10):
        net = mlp([2, width, width, width, 1], "relu", generator=run.generator)
        optimizer = torch.optim.LBFGS(
            net.parameters(), max_iter=120, line_search_fn="strong_wolfe", tolerance_change=1e-12
        )

        def closure(net: nn.Module = net, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (net(x) - y).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        problem = Problem(net, (x, y), task="regression")
        # a start with dead units stops high above; near a global minimum is what is wanted
        if problem.risk(problem.train) < 0.05 * float(y.var()):
            return problem
    raise NotConverged("ten starts in a row did not come near a minimum of small loss")


def exchanged(run: Run, problem: Problem) -> list[SegmentProbe]:
    """The loss between a network and its copies with two units exchanged."""
    layer = hidden_layers(problem.model)[0]
    theta = flatten(problem.parameters)
    width = layer.units
    probes, last, half = [], [], []
    for k in range(width - 1):
        order = torch.arange(width)
        order[[k, k + 1]] = order[[k + 1, k]]
        swapped = permute_units(problem.parameters, layer, order)
        probes.append(probe_segment(problem, theta, flatten(swapped)))
        name = f"{layer.outgoing}.weight"
        half.append(flatten({**swapped, name: problem.parameters[name]}))
        moved = theta + 0.3 * run.randn(len(theta))
        last.append(probe_segment(problem, theta, with_output(problem, moved, theta)).excess)
    says = run.states("A-52", r"\text{a trained network and itself with two units exchanged have the same loss}")
    says.equal(
        [float(p.losses[-1]) for p in probes],
        problem.risk(problem.train),
        1e-12,
        where="neighboring units of the first layer",
    )
    says.fails("the weights that leave the units stay where they are", losses_at(problem, torch.stack(half)))
    says = run.states("A-52", r"\text{and between the two it is above the chord: not convex}")
    says.above(max(p.excess for p in probes), 0, where="the largest excess over all exchanges")
    says.fails("the last layer alone changes, at random", max(last))
    return probes


def zooms(run: Run, problem: Problem, grid: int, coarse: float) -> list[LossSlice]:
    directions = random_directions(problem, 2, generator=run.generator)
    positions = torch.linspace(-1, 1, grid, dtype=torch.float64)
    positions[grid // 2] = 0
    slices = [loss_slice(problem, directions, coarse / ZOOM**k * positions) for k in range(4)]
    center = grid // 2
    risk = problem.risk(problem.train)
    shifted = loss_slice(problem, directions, coarse * positions + coarse / grid)
    says = run.states("A-53", r"\text{the value at the center of every zoom is the trained risk}")
    says.equal(
        torch.stack([s.values[center, center] for s in slices]),
        risk,
        1e-12,
        where=f"half widths {', '.join(f'{coarse / ZOOM**k:g}' for k in range(4))} in units of "
        "the network's own filters",
    )
    says.fails("a grid that misses the center", shifted.values[center, center])
    reach = (grid - 1) // 2 // ZOOM
    inner = slice(center - reach, center + reach + 1)
    other = loss_slice(problem, random_directions(problem, 2, generator=run.generator), slices[1].positions[::ZOOM])
    says = run.states("A-53", r"\text{where two zooms share points they agree}")
    says.equal(
        torch.stack([s.values[::ZOOM, ::ZOOM] for s in slices[1:]]),
        torch.stack([s.values[inner, inner] for s in slices[:-1]]),
        1e-9,
        where=f"{(2 * reach + 1) ** 2} points for each pair of neighboring zooms",
    )
    says.fails("the zoom is along two other directions", other.values, promised=slices[0].values[inner, inner])
    run.table(
        "zooms",
        ["half width", "least", "largest", "grid minima"],
        [(float(s.positions[-1]), s.values.min(), s.values.max(), s.minima) for s in slices],
        caption="The loss on the plane at four scales",
    )
    return slices


def valleys(run: Run, problem: Problem, coarse: LossSlice, planes: int) -> Tensor:
    """How many minima a plane has; a plane of the last layer has one."""
    theta = flatten(problem.parameters)
    found, counts, flat, spurious = slice_valleys(problem, coarse), [], [], []
    for _ in range(planes):
        draws = random_directions(problem, 2, generator=run.generator)
        counts.append(len(slice_valleys(problem, loss_slice(problem, draws, coarse.positions[::2]))))
        moves = torch.stack([with_output(problem, theta + d, theta) - theta for d in draws])
        last = loss_slice(problem, moves, coarse.positions[::2])
        flat.append(len(slice_valleys(problem, last)))
        spurious.append(last.minima)
    # what a figure shows is true of some plane, not of every one
    says = run.states("A-53", r"\text{more than one local minimum is visible on the coarse grid of some plane}")
    says.above(
        max(len(found), *counts),
        1,
        loose="the source says more than one, and not how many",
        where=f"grid minima, each followed downhill in its plane: {len(found)} in the one drawn, in "
        f"{planes} others {', '.join(map(str, counts))}",
    )
    says.fails("planes of the last layer alone: the loss is convex there", max(flat))
    run.note(
        "Counting grid minima is not enough: the convex losses in planes of the last layer have "
        f"{', '.join(map(str, spurious))} of them, because a narrow oblique valley meets a grid "
        "in several places. Followed downhill, they end at one point."
    )
    return found


def eigenvectors(run: Run, problem: Problem) -> None:
    """Along an eigenvector of the Hessian the slice is a parabola with that eigenvalue.

    For tanh: trained ReLU networks rest on kinks, where second differences are not derivatives.
    """
    net = mlp([2, 8, 8, 1], "tanh", generator=run.generator)
    problem = Problem(net, (problem.train.x, problem.train.y), task="regression")
    values, vectors = eigen_directions(problem, 2, generator=run.generator)
    other = random_directions(problem, 2, scaling="unit", generator=run.generator)
    step = 1e-4

    def curvature(directions: Tensor) -> Tensor:
        here = flatten(problem.parameters)
        points = torch.cat([here - step * directions, here[None], here + step * directions])
        losses = losses_at(problem, points)
        count = len(directions)
        made: Tensor = (losses[:count] - 2 * losses[count] + losses[count + 1 :]) / step**2
        return made

    says = run.states(
        "A-53",
        r"\frac{L(\theta+hv)-2L(\theta)+L(\theta-hv)}{h^2}=\lambda \text{ along the first two "
        r"eigenvectors of } \nabla^2L",
    )
    says.equal(curvature(vectors), values, 1e-4, where=f"h = {step:g}, a network with tanh; in double precision")
    says.fails("random directions of norm 1", curvature(other))


def plot_zooms(axes: Any, slices: list[LossSlice], bottoms: Tensor) -> None:
    for axis, found in zip(axes.flat, slices, strict=True):
        grid = found.positions
        heights = found.values.clamp_min(1e-12).log10()
        low, high = float(heights.min()), float(heights.max())
        levels = torch.linspace(low, high, 16).tolist()
        shown = axis.contourf(grid, grid, heights.T, levels=levels, cmap="viridis")
        axis.contour(grid, grid, heights.T, levels=levels, colors="white", linewidths=0.25)
        axis.figure.colorbar(shown, ax=axis, label=r"$\log_{10}$ loss", ticks=levels[::5],
                             format="%.1f")  # fmt: skip
        if found is slices[0]:
            axis.plot(*bottoms.T, "o", color="white", markeredgecolor="black", markersize=6)
        axis.plot(0, 0, "+", color=COLORS[1], markersize=12, markeredgewidth=2)
        edge = float(grid[-1])
        if found is not slices[-1]:
            small = edge / ZOOM
            corners = [-small, small, small, -small, -small], [-small, -small, small, small, -small]
            axis.plot(*corners, "--", color="white", linewidth=1.2)
        axis.set(
            title=f"half width {edge:g}",
            xlabel="along $d_1$",
            ylabel="along $d_2$",
            aspect="equal",
        )
        axis.grid(False)


def plot_segments(axis: Any, probes: list[SegmentProbe]) -> None:
    highest = max(probes, key=lambda probe: probe.excess)
    for probe in probes:
        top = probe is highest
        axis.plot(
            probe.positions,
            probe.losses,
            color=COLORS[1] if top else COLORS[0],
            linewidth=1.6 if top else 0.9,
            alpha=1.0 if top else 0.6,
        )
    axis.set(xlabel=r"$\lambda$: from the network to itself with two units exchanged", ylabel="loss")
