"""How narrow and how small a ReLU network may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import measured_error, network_size
from torchtheory.approximation.depth.narrow import (
    Operation,
    fixed_size_floor,
    level_path,
    max_min_network,
    max_min_string,
    minimal_width,
    narrow_broken_line,
    sphere_witness,
    tangent_network,
)
from torchtheory.expressivity.bounds import most_pieces
from torchtheory.expressivity.folding import zigzag_network
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import mlp

HIDDEN = ((2,), (6,), (3, 3), (2, 2, 2))


@lab(
    "narrow-networks",
    room="approximation",
    covers=["X-23", "X-24", "X-25"],
    title="d + 1 units a layer suffice and d do not; no fixed size suffices",
    full={"strings": 60, "networks": 60, "cells": 8, "steps": 2000},
    least={"strings": 2, "cells": 2},
)
def narrow_networks(run: Run, strings: int = 12, networks: int = 12, cells: int = 4, steps: int = 100) -> None:
    """Strings of maxima and minima become networks of width d + 1; width d is shown to fail.

    A network whose hidden layers have at most d units never rises along some path from the origin
    to infinity. The path is computed, for random and for trained networks, and where it meets the
    unit sphere the network misses |x|², or misses it at 0, by at least 1/2. One more unit a layer
    and the tangents of |x|² come as close as one likes. Look at the path in the figure. In one
    dimension, a network of fixed size misses a zigzag with more turns than it has pieces by 1/2,
    trained or not.

    Args:
        strings: random strings of maxima and minima.
        networks: random networks of width d, about.
        cells: of the tangents per direction, at most.
        steps: of training.
    """
    fixed_size(run, steps)
    exact_strings(run, strings)
    broken_lines(run, strings)
    bowls = tangents(run, cells)
    trained = sharpness(run, networks, cells, steps)
    thresholds(run)
    run.figure(
        "narrow",
        lambda axes: plot(axes, bowls, trained),
        grid=(1, 2),
        caption="Left: level lines of a trained network of width 2, and a path from 0 to infinity "
        "on which it never rises; the dot is on the unit circle. Right: sup error for |x|² of "
        "networks of width d + 1 with their bounds, and the floor of width d.",
    )


def train(run: Run, net: nn.Sequential, x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    net = net.requires_grad_(True)
    adam = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        adam.zero_grad()
        loss = (net(x)[:, 0] - y).square().mean()
        loss.backward()
        adam.step()
    return net.requires_grad_(False)


def fixed_size(run: Run, steps: int) -> None:
    """All weights of an architecture miss the zigzag; a larger network is one."""
    found, floors, larger = [], [], []
    rows = []
    for hidden in HIDDEN:
        turns = most_pieces(hidden) + 1
        floors.append(fixed_size_floor(hidden, turns))
        x = torch.linspace(0, 1, turns + 1, dtype=torch.float64)[:, None]
        y = torch.arange(turns + 1).double() % 2
        net = train(run, mlp([1, *hidden, 1], generator=run.generator), x, y, steps)
        found.append(float((net(x)[:, 0] - y).abs().max()))
        larger.append(float((zigzag_network([turns])(x)[:, 0].detach() - y).abs().max()))
        rows.append((str(hidden), most_pieces(hidden), turns, floors[-1], found[-1], larger[-1]))
    says = run.states(
        "X-23",
        r"q>p:\ \max_i|g(x_i)-y_i|\ge\tfrac12 \text{ for a zigzag of } q \text{ turns and any "
        r"weights with at most } p \text{ pieces}",
    )
    says.at_least(found, floors, where=f"trained by {steps} steps of Adam on the corners of the zigzag themselves")
    says.fails("one unit for every turn: more pieces than turns", larger)
    run.table(
        "fixed-size",
        ["hidden widths", "pieces at most", "turns", "floor", "trained", "a unit for every turn"],
        rows,
        caption="The largest error at the corners of a zigzag",
    )


def exact_strings(run: Run, strings: int) -> None:
    apart, widths, promised, depths, lengths, outside = [], [], [], [], [], []
    for k in range(strings):
        d, m = 1 + k % 4, 2 + k
        weight, bias = run.randn(m, d), run.randn(m)
        names: tuple[Operation, ...] = ("max", "min")
        picks = torch.randint(0, 2, (m - 1,), generator=run.generator)
        operations = [names[int(i)] for i in picks]
        net = max_min_network(operations, weight, bias, [(-1.0, 2.0)] * d)
        x = 3 * run.rand(200, d) - 1
        apart.append(float((net(x)[:, 0] - max_min_string(operations, weight, bias, x)).abs().max()))
        far = x - 3
        direct = max_min_string(operations, weight, bias, far)
        outside.append(float((net(far)[:, 0] - direct).abs().max()))
        size = network_size(net)
        widths.append(size.width)
        promised.append(d + 1)
        depths.append(size.depth - 1)
        lengths.append(m - 1)
    says = run.states("X-24", r"\max|\Phi(x)-o_{m-1}(\dots o_1(\ell_1,\ell_2)\dots,\ell_m)| \text{ on the box}")
    says.equal(apart, within=1e-12)
    says.fails("points outside the box, where an input is carried as 0", outside)
    run.states("X-24", r"\text{width}=d+1").equal(widths, promised)
    run.states("X-24", r"\text{hidden layers}=m-1").equal(depths, lengths)


def broken_lines(run: Run, strings: int) -> None:
    apart, unshifted, widths = [], [], []
    for k in range(strings):
        pieces = 2 + 3 * k
        # pieces of some length: slopes, and with them what rounding leaves, stay moderate
        knots = torch.cat([torch.zeros(1), (0.1 + run.rand(pieces)).cumsum(0)]).double()
        values = run.randn(pieces + 1) - 2
        net = narrow_broken_line(knots, values)
        x = torch.cat([knots, knots[-1] * run.rand(300)])
        direct = np.interp(x.numpy(), knots.numpy(), values.numpy())
        apart.append(float((net(x[:, None])[:, 0] - torch.from_numpy(direct)).abs().max()))
        widths.append(network_size(net).width)
        first, last = net[0], net[-1]
        with torch.no_grad():  # the same network without the shift that keeps the sum positive
            first.bias[1] += last.bias[0]  # type: ignore[index, operator]
            last.bias.zero_()  # type: ignore[operator]
        unshifted.append(float((net(x[:, None])[:, 0] - torch.from_numpy(direct)).abs().max()))
    says = run.states(
        "X-24", r"d=1:\ \text{every broken line of } p \text{ pieces by } p-1 \text{ layers of width 2, exactly}"
    )
    says.equal(apart, within=1e-10, where=f"up to {2 + 3 * (strings - 1)} pieces")
    says.fails("partial sums below 0, which ReLU cuts off", unshifted)
    run.states("X-24", r"\text{width}=2").equal(widths, 2)


def bowl(x: Tensor) -> Tensor:
    return x.square() if x.ndim == 1 else x.square().sum(-1)


def tangents(run: Run, cells: int) -> dict[int, list[tuple[int, float, float]]]:
    """Width d + 1: the error falls with the depth, below any floor."""
    found: dict[int, list[tuple[int, float, float]]] = {}
    for d in (1, 2, 3):
        found[d] = []
        for k in range(1, cells + 1 if d < 3 else min(cells, 3) + 1):
            a = tangent_network(bowl, 2.0, k, [(-1.0, 1.0)] * d)
            error = measured_error(bowl, a, most_points=1 << 13).lower
            found[d].append((a.size.depth, a.bound, error))
    understated = [(tangent_network(lambda x: 4 * bowl(x), 2.0, k, [(-1.0, 1.0)] * 2)) for k in (1, 2, 3)]
    says = run.states(
        "X-24",
        r"\text{the largest of } k^d \text{ tangents of } |x|^2 \text{ on } [-1,1]^d,\ "
        r"\text{width } d+1:\ \sup|\Phi-|x|^2|\le d/k^2",
    )
    says.at_most(
        [e for row in found.values() for *_, e in row], [b for row in found.values() for _, b, _ in row], 1e-12
    )
    says.fails(
        "4|x|² bends four times as much as the construction was told",
        [measured_error(lambda x: 4 * bowl(x), a, most_points=1 << 12).lower for a in understated],
        promised=[a.bound for a in understated],
    )
    return found


def missed(net: nn.Sequential) -> tuple[float, float, float]:
    """The error at 0 or at the witness, how far the network rose there, and |witness|."""
    x = sphere_witness(net)
    at = net(torch.stack([torch.zeros_like(x), x]))[:, 0].detach()
    error = max(abs(float(at[0])), abs(float(at[1]) - 1))
    return error, float(at[1] - at[0]), float(x.norm())


def sharpness(run: Run, networks: int, cells: int, steps: int) -> nn.Sequential:
    nets = [
        mlp([d, *[d] * depth, 1], generator=run.generator)
        for d in (1, 2, 3, 5)
        for depth in (1, 2, 4, 8)
        for _ in range(max(1, networks // 12))
    ]
    x = 2 * run.rand(400, 2) - 1
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    nets += [train(run, mlp([2, *[2] * depth, 1], generator=run.generator), x, bowl(x), steps) for depth in (1, 2, 4)]
    found = [missed(net) for net in nets]
    wide = tangent_network(bowl, 2.0, max(3, cells), [(-1.0, 1.0)] * 2)
    says = run.states(
        "X-24", r"\text{all hidden widths}\le d:\ \max(|g(0)|,|g(x)-1|)\ge\tfrac12 \text{ at the witness}"
    )
    says.at_least(
        [e for e, *_ in found],
        0.5,
        1e-9,
        where=f"{len(nets)} networks, three of them trained for |x|² with {steps} steps",
    )
    says.fails("width d + 1: the sup error on the whole square", measured_error(bowl, wide, most_points=1 << 13).lower)
    circle = torch.linspace(0, 6.2832, 721, dtype=torch.float64)
    ring = torch.stack([circle.cos(), circle.sin()], dim=1)
    best = float(wide(ring).min() - wide(torch.zeros(1, 2).double())[0])
    says = run.states("X-24", r"\text{all hidden widths}\le d:\ g(x)\le g(0) \text{ at a computed point with } |x|=1")
    says.at_most([rise for _, rise, _ in found], 0.0, 1e-9)
    says.fails("width d + 1: the least rise on the whole unit circle", best)
    return nets[-2]


def thresholds(run: Run) -> None:
    cases = [(d, n) for d in (1, 2, 3, 10) for n in (1, 2, 5)]
    rows = [("continuous on a cube", d, n, minimal_width("continuous on a cube", d, n)) for d, n in cases]
    rows += [("integrable", d, 1, minimal_width("integrable", d)) for d in (1, 2, 3, 10)]
    run.states("X-25", r"\text{the necessary width is at most the sufficient one}").at_most(
        [w.lower for *_, w in rows], [w.upper for *_, w in rows]
    )
    passed, failed = [], []
    for d in (1, 2, 3):
        a = tangent_network(bowl, 2.0, 3, [(-1.0, 1.0)] * d)
        passed.append(a.size.width if measured_error(bowl, a, most_points=1 << 12).lower < 0.5 else 0)
        net = mlp([d, d, d, 1], generator=run.generator)
        failed.append(network_size(net).width if missed(net)[0] >= 0.5 else 0)
    says = run.states(
        "X-25",
        r"n=1:\ \text{width of a network nearer to } |x|^2 \text{ than the floor}="
        r"\text{necessary}=\text{sufficient}=d+1",
    )
    says.equal(passed, [minimal_width("continuous on a cube", d).upper for d in (1, 2, 3)])
    says.fails("networks that stay above the floor", failed)
    run.table(
        "widths",
        ["space", "inputs", "outputs", "necessary", "sufficient", "source"],
        [(space, d, n, w.lower, w.upper, w.source) for space, d, n, w in rows],
        caption="Least width for density of ReLU networks of any depth",
    )


def plot(axes: Any, bowls: dict[int, list[tuple[int, float, float]]], net: nn.Sequential) -> None:
    left, right = axes[0]
    side = torch.linspace(-2, 2, 161, dtype=torch.float64)
    values = net(torch.cartesian_prod(side, side)).reshape(161, 161).T
    left.contour(side, side, values, levels=14, cmap="viridis", linewidths=0.8)
    corners, ray = level_path(net, torch.zeros(2).double())
    path = torch.cat([corners, (corners[-1] + 6 * ray).unsqueeze(0)])
    left.plot(path[:, 0], path[:, 1], color=COLORS[1], label="never rises")
    angle = torch.linspace(0, 6.2832, 200)
    left.plot(angle.cos(), angle.sin(), color="0.5", linewidth=0.8)
    witness = sphere_witness(net)
    left.plot(*witness, "o", color=COLORS[1], markersize=6)
    left.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", title="width 2, trained for $|x|^2$")
    left.legend(loc="upper right", frameon=True)
    for color, (d, row) in zip(COLORS, bowls.items(), strict=False):
        depth = [r[0] for r in row]
        right.loglog(depth, [r[1] for r in row], "-", color=color, linewidth=0.8)
        right.loglog(depth, [r[2] for r in row], "o", color=color, label=f"d = {d}, width {d + 1}")
    right.axhline(0.5, color="0.4", linestyle="--", label="floor of width d")
    right.set(xlabel="affine layers", ylabel="sup error for $|x|^2$", title="one more unit a layer")
    right.legend()
