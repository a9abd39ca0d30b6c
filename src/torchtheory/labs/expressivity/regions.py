"""Cells, activation patterns and linear regions, counted in three independent ways."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.expressivity.arrangement import Arrangement, PlaneSlice, plane_arrangement
from torchtheory.expressivity.boundary import Boundary, class_cells, decision_boundary
from torchtheory.expressivity.bounds import most_regions
from torchtheory.expressivity.enumeration import enumerate_regions
from torchtheory.expressivity.folding import montufar_network
from torchtheory.expressivity.hyperplanes import hyperplane_regions, zaslavsky_bound
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.expressivity.polygons import areas
from torchtheory.expressivity.regions import activation_pattern
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.neurons.dichotomies import cover_count


@lab(
    "linear-regions",
    room="expressivity",
    covers=["N-35", "N-36", "A-95", "A-96", "X-71"],
    title="The linear regions of a network, cell by cell, with its exact decision boundary",
    full={"width": 24, "steps": 1500},
    least={"width": 10, "steps": 30},
)
def linear_regions(run: Run, width: int = 16, steps: int = 200) -> None:
    """A ReLU network divides its inputs into convex cells and is affine on each of them.

    One layer is an arrangement of hyperplanes. Its regions are counted by deletion and restriction
    in rational arithmetic, by linear programming and by cutting polygons: in general position all
    three agree with Zaslavsky's sum, and special positions have fewer. A trained classifier with
    two hidden layers is then taken apart: its affine map on every cell is compared with the
    network, its cells along a line with the pieces along that line. The picture shows every cell
    and the decision boundary, both exact.

    Args:
        width: of both hidden layers of the network that is taken apart.
        steps: training steps before its regions are listed.
    """
    sizes = [(3, 2), (4, 2), (5, 2), (8, 2), (4, 3), (3, 3), (6, 3)]
    drawn = [(run.randn(m, n), run.randn(m)) for m, n in sizes]
    says = run.states(
        ["N-36", "A-95", "X-71"],
        r"m \text{ generic hyperplanes in } \mathbb R^n:\ \sum_{i\le n}\binom mi"
        r"\text{ regions (deletion and restriction)}",
    )
    says.equal([hyperplane_regions(w, b) for w, b in drawn], [zaslavsky_bound(m, n) for m, n in sizes])
    says.fails(
        "parallel lines",
        hyperplane_regions(run.randn(8, 1) * torch.tensor([[1.0, 2.0]]), run.randn(8)),
        promised=zaslavsky_bound(8, 2),
    )
    says = run.states("N-36", r"\text{hyperplanes through 0: } 2\sum_{i<n}\binom{m-1}i \text{ regions, Cover's number}")
    says.equal([hyperplane_regions(w, torch.zeros_like(b)) for w, b in drawn], [cover_count(m, n) for m, n in sizes])
    says.fails("not through 0", [hyperplane_regions(w, b) for w, b in drawn])
    small = [(3, 2), (4, 3)]
    layers = [montufar_network(n, m, 1, generator=run.generator) for m, n in small]
    run.states(["A-95", "X-71"], r"\text{the same, listed by linear programming}").equal(
        [len(enumerate_regions(net, torch.zeros(n), torch.ones(n))) for net, (_, n) in zip(layers, small, strict=True)],
        [zaslavsky_bound(m, n) for m, n in small],
    )
    unit = PlaneSlice.of_the_plane((0, 0), (1, 1))
    three = plane_arrangement(layers[0], unit)
    run.states(
        ["N-35", "A-95"], r"\text{three generic lines: 7 cells, fewer than the } 2^3 \text{ of the trivial bound}"
    ).equal([len(three), three.patterns, three.count], 7)
    mirrored = nn.Sequential(dense(torch.tensor([[1.0], [-1.0]]).double()), nn.ReLU())
    ends = activation_pattern(mirrored, torch.tensor([[-1.0], [0.0], [1.0]]))[0]
    run.states("N-35", r"w_1=1,w_2=-1,b=0:\ 3 \text{ patterns, one of them at a single point}").equal(
        [len(ends.unique(dim=0)), affine_pieces(mirrored, -1.0, 1.0).patterns],  # type: ignore[no-untyped-call]
        [3, 2],
    )

    x, y = _spirals(run, 150)
    net = _train(mlp([2, width, width, 1], generator=run.generator), x, y, steps)
    plane = PlaneSlice.of_the_plane((-1.3, -1.3), (1.3, 1.3))
    found = plane_arrangement(net, plane)
    boundary = decision_boundary(found)
    inside, cells = found.points_inside(run.generator), torch.arange(len(found))
    with torch.no_grad():
        exact = net(inside)[:, 0]
    says = run.states(["N-35", "A-96", "X-71"], r"\text{on every cell } f(x)=A_\kappa x+c_\kappa")
    says.equal(found.affine(cells, inside)[:, 0], exact, 1e-9)
    says.fails(
        "the map of a neighboring cell",
        found.affine(torch.tensor([found.neighbors(int(c))[0] for c in cells]), inside)[:, 0],
    )
    other = found.points_inside(run.generator)
    first, second, middle = (torch.cat(activation_pattern(net, p), 1) for p in (inside, other, (inside + other) / 2))
    says = run.states("A-96", r"\text{activation regions are convex: share of midpoints that leave the pattern}")
    says.equal(float(((first != middle).any(1) | (second != middle).any(1)).double().mean()))
    says.fails("the same class instead of the same pattern", _leaving_share(net, run.randn(2000, 2)))
    dead = copy.deepcopy(net)
    dead[-1].weight.data *= _first_half(width)  # type: ignore[operator]
    half = plane_arrangement(dead, plane)
    run.states(["A-96", "X-71"], r"\#\text{activation regions}\ge\#\text{linear regions}").at_least(
        [found.patterns, half.patterns],
        [found.count, half.count],
        where="in the second network half of the last units are not read",
    )
    says = run.states(
        ["A-96", "X-71"], r"\text{fewer linear than activation regions where half of the last units are not read}"
    )
    says.below(half.count, half.patterns)
    says.fails("all units are read", found.count, promised=found.patterns)
    cube = PlaneSlice.of_the_plane((0.0, 0.0), (1.0, 1.0))
    folded = [plane_arrangement(montufar_network(2, 4, k, generator=run.generator), cube).patterns for k in (1, 2)]
    run.states("A-96", r"\#\text{activation regions}\le\prod_\ell\sum_{j\le d}\binom{N_\ell}j").at_most(
        [found.patterns, *folded],
        [most_regions(2, [width, width]), most_regions(2, [4]), most_regions(2, [4, 4])],
        where="the trained network, and networks that fold",
    )
    heights = [-0.9, -0.31, 0.17, 0.83]
    says = run.states("X-71", r"\text{cells met by a line} = \text{intervals of constant pattern along it}")
    says.equal(
        [
            affine_pieces(net, torch.tensor([-1.3, h]).double(), torch.tensor([1.3, h]).double()).patterns
            for h in heights
        ],
        [_cells_met(found, h) for h in heights],
    )
    says.fails(
        "another line", [affine_pieces(net, torch.tensor([h, -1.3]), torch.tensor([h, 1.3])).patterns for h in heights]
    )
    c = found.complex
    run.states(["X-71", "A-95"], r"V-E+F=1 \text{ and the areas sum to that of the rectangle}").equal(
        [len(c.vertices) - len(c.edges) + len(found), _area(found)], [1.0, 2.6**2], 1e-9
    )
    run.table(
        "cells",
        ["network", "cells", "patterns", "linear regions", "at most", "boundary segments"],
        [
            ("three lines", len(three), three.patterns, three.count, 7, ""),
            (
                f"2-{width}-{width}-1, trained",
                len(found),
                found.patterns,
                found.count,
                most_regions(2, [width, width]),
                len(boundary.segments),
            ),
        ],
    )
    run.figure(
        "cells",
        lambda axes: _plot(axes, found, boundary, x, y, found.count),
        caption="Every linear region of a trained classifier and its exact decision boundary.",
        size=(7.2, 7.2),
    )


def _plot(axes: Any, found: Arrangement, boundary: Boundary, x: Tensor, y: Tensor, regions: int) -> None:
    """Cells colored by the sign of the output, shaded by its size and by the cell."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import to_rgb

    parts = class_cells(found)
    cells = torch.tensor([cell for _, _, cell in parts])
    value, grain = found.values.reshape(-1)[cells], (found.hashes[cells] % 97).double() / 97
    shade = (0.2 + 0.45 * torch.tanh(value.abs() / 3) + 0.12 * grain).numpy()
    sides = [np.array(to_rgb(COLORS[k])) for k in (4, 0)]
    base = np.array([sides[kind] for _, kind, _ in parts])
    axes.add_collection(
        PolyCollection(
            [corners for corners, _, _ in parts],
            facecolors=1 - shade[:, None] * (1 - base),
            edgecolors="white",
            linewidths=0.6,
        )
    )
    axes.add_collection(LineCollection(list(boundary.segments.numpy()), colors="black", linewidths=2.2))
    for sign, color in ((1, COLORS[1]), (-1, COLORS[0])):
        here = x[y == sign]
        axes.plot(here[:, 0], here[:, 1], "o", ms=3, color=color, mec="white", mew=0.4)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal", xticks=[], yticks=[])
    axes.set_title(f"{regions} linear regions, {len(boundary.segments)} boundary segments")
    axes.grid(False)


def _spirals(run: Run, each: int) -> tuple[Tensor, Tensor]:
    turn = run.rand(each) * 1.35 * math.pi + 0.35 * math.pi
    radius = turn / (1.8 * math.pi)
    arm = torch.stack([radius * turn.cos(), radius * turn.sin()], 1)
    x = torch.cat([arm, -arm]) + 0.02 * run.randn(2 * each, 2)
    return x, torch.cat([torch.ones(each), -torch.ones(each)]).double()


def _train(net: nn.Sequential, x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.softplus(-y * net(x)[:, 0]).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net


def _leaving_share(net: nn.Module, points: Tensor) -> float:
    """How often the midpoint of two points of one class is of the other."""
    with torch.no_grad():
        first, second = points.chunk(2)
        a, b, c = (net(p)[:, 0] >= 0 for p in (first, second, (first + second) / 2))
    return float((c != a)[a == b].double().mean())


def _first_half(width: int) -> Tensor:
    return (torch.arange(width) < width // 2).double()


def _cells_met(found: Arrangement, height: float) -> int:
    """Cells with corners on both sides of a horizontal line."""
    return sum(bool(p[:, 1].min() < height < p[:, 1].max()) for p in found.polygons())


def _area(found: Arrangement) -> float:
    return sum(float(areas(torch.as_tensor(p).unsqueeze(0))) for p in found.polygons())
