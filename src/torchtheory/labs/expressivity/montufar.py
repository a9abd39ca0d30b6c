"""Folding: how depth multiplies regions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from torchtheory.expressivity.arrangement import Arrangement, PlaneSlice, plane_arrangement
from torchtheory.expressivity.boundary import decision_boundary
from torchtheory.expressivity.bounds import montufar_bound, most_regions, region_bounds
from torchtheory.expressivity.folding import folding_network, montufar_network, zigzag_network
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp

CUBE = PlaneSlice.of_the_plane((0.0, 0.0), (1.0, 1.0))


@lab(
    "folding-regions",
    room="expressivity",
    covers=["N-37", "S-46", "S-47", "S-48", "S-49", "X-72", "X-73", "A-97"],
    title="Folding layers copy every later boundary: exponentially many regions, counted",
    errata=[
        "montufar-every-network",
        "regions-less-than-lower-bound",
        "regions-binomial-for-ratio",
    ],
    full={"depth": 4, "networks": 30},
    least={"depth": 2},
)
def folding_regions(run: Run, depth: int = 3, networks: int = 4) -> None:
    """A layer that folds the square onto itself shows every later line once in every fold.

    Networks that fold are written down with their weights and their cells counted exactly, by
    cutting polygons: q folds of each of d coordinates, k times, make $q^{kd}$ cells, each mapped onto
    the whole cube; a last layer of hyperplanes then appears in every one of them, which is
    Montúfar's lower bound on the *largest* number of regions. Random weights of the same shape
    have far fewer, and no network has more than the product of Zaslavsky's counts. Look at the
    figure: the pattern of the last layer repeats, mirrored, in every cell of the folding.

    Args:
        depth: folding layers at most.
        networks: random networks whose regions are counted for comparison.
    """
    shapes = [(2, 4, k) for k in range(1, depth + 1)] + [(2, 6, 2)]
    seed = int(torch.randint(0, 2**31, (), generator=run.generator))
    built = [montufar_network(*s, generator=seed) for s in shapes]
    counted = [plane_arrangement(net, CUBE) for net in built]
    random = [
        plane_arrangement(_random(run, 2, 4, depth), PlaneSlice.of_the_plane((-3, -3), (3, 3))) for _ in range(networks)
    ]
    says = run.states(
        ["N-37", "S-48", "X-72", "X-73"],
        r"\text{activation regions of the folding network in } (0,1)^2 ="
        r"\lfloor m/d\rfloor^{d(L-1)}\sum_{j\le d}\binom mj",
    )
    says.equal([a.patterns for a in counted], [montufar_bound(*s) for s in shapes])
    says.fails("random weights of the same shape", [a.patterns for a in random], promised=montufar_bound(2, 4, depth))
    draws = [(s, montufar_network(*s, generator=run.generator)) for s in [(2, 4, 2), (2, 6, 2)] * max(1, networks // 2)]
    dead = [_all_inactive_at(net, 2 / s[1]) for s, net in draws]
    says = run.states(["N-37", "S-48"], r"\text{and as many linear regions: no two cells have the same affine map}")
    says.equal([plane_arrangement(net, CUBE).count for _, net in draws], [montufar_bound(*s) for s, _ in draws])
    says.fails(
        "last units turned so that all are inactive where two folds meet: copies of that cell are one region",
        [plane_arrangement(net, CUBE).count for net in dead],
        promised=[montufar_bound(*s) for s, _ in draws],
    )
    lines = [(1, m, k) for m in (2, 3, 5) for k in (1, 2, 3)]
    run.states(["N-37", "X-72"], r"n=1:\ (m+1)m^{L-1}").equal(
        [affine_pieces(montufar_network(*s, generator=run.generator), 0.0, 1.0).patterns for s in lines],
        [(m + 1) * m ** (k - 1) for _, m, k in lines],
    )
    says = run.states(["X-72", "N-37"], r"\text{regions}\le\prod_\ell\sum_{j\le\min(d,n_1..n_\ell)}\binom{n_\ell}j")
    says.at_most(
        [a.patterns for a in [*counted, *random]],
        [most_regions(2, [m] * k) for _, m, k in shapes] + [most_regions(2, [4] * depth)] * networks,
    )
    says.fails(
        "units with two kinks each (clamps)",
        plane_arrangement(_clamps(run, 6), PlaneSlice.of_the_plane((-9, -9), (9, 9))).patterns,
        promised=most_regions(2, [6]),
    )
    q_values = (2, 3, 5)
    slopes = [affine_pieces(zigzag_network([q]), 0.0, 1.0) for q in q_values]
    run.states("X-73", r"t_q \text{ has } q \text{ pieces with slopes } \pm q").equal(
        torch.cat([p.slopes[:, 0].abs() for p in slopes]), [float(q) for q in q_values for _ in range(q)], 1e-12
    )
    folds = [[2], [2, 2], [3], [3, 3]]
    folded = [plane_arrangement(folding_network(2, q), CUBE) for q in folds]
    says = run.states(
        ["A-97", "X-73", "S-46"], r"k \text{ foldings of } [0,1]^d \text{ in } q \text{ make } q^{kd} \text{ regions}"
    )
    says.equal([a.count for a in folded], [q[0] ** (2 * len(q)) for q in folds])
    says.fails(
        "the first folding maps into a corner of the cube, not onto it",
        plane_arrangement(_into_a_corner(), CUBE).count,
        promised=16,
    )
    says = run.states(
        "S-46",
        r"\text{every cell of the folding is mapped onto the whole cube: largest distance of a"
        r" corner's image from a corner}",
    )
    says.at_most([_off_corners(a) for a in folded], 0.0, 1e-9)
    says.fails("random weights", _off_corners(plane_arrangement(_random(run, 2, 4, 1, 2))))
    head = dense(torch.tensor([[1.0, 0.7]]).double(), torch.tensor([-0.6]).double())
    mirror = folding_network(2, [2, 2], head)
    x = run.rand(200, 2)
    says = run.states("S-47", r"F(x) = F(\text{mirror image of } x)")
    says.equal(mirror(torch.stack([1 - x[:, 0], x[:, 1]], 1)).detach(), mirror(x).detach(), 1e-12)
    says.fails("a mirror that is not one of the folds", mirror(torch.stack([0.9 - x[:, 0], x[:, 1]], 1)).detach())
    copies = [
        len(decision_boundary(plane_arrangement(folding_network(2, [2] * k, head), CUBE)).segments) for k in (1, 2, 3)
    ]
    run.states("S-47", r"\text{one line after } k \text{ foldings is seen } 2^{dk} \text{ times}").equal(
        copies, [4, 16, 64]
    )
    sizes = [(2, 4, k) for k in (2, 3, 4)] + [(2, 8, 2)]
    bounds = [region_bounds(*s) for s in sizes]
    says = run.states(
        ["S-49", "X-72"], r"\text{the deep network has more regions than one hidden layer of as many units can}"
    )
    says.above(
        [plane_arrangement(montufar_network(*s), CUBE).patterns for s in sizes[:2]], [b.shallow for b in bounds[:2]]
    )
    says.fails(
        "random weights", [float(np.mean([a.patterns for a in random]))], promised=region_bounds(2, 4, depth).shallow
    )
    run.refutes(
        "montufar-every-network", r"\text{the number of regions is at least } R(m)\lfloor m/n\rfloor^{n(L-1)}"
    ).at_least([a.patterns for a in random], montufar_bound(2, 4, depth))
    run.refutes(
        "regions-less-than-lower-bound",
        r"d=1,\ n=3,\ \text{two hidden layers: fewer than } (n/d)^{(L-1)d}n^d=9 \text{ regions}",
    ).below(affine_pieces(montufar_network(1, 3, 2), 0.0, 1.0).count, 9)
    run.refutes(
        "regions-binomial-for-ratio",
        r"d=2,\ n=4,\ \ell=4:\ \text{some network has } \binom nd^{d(\ell-1)}n^d \text{ regions}",
    ).at_least(most_regions(2, [4] * 4), 6**6 * 16, where="what no network of this shape exceeds")
    run.table(
        "crossover",
        ["inputs", "width", "hidden layers", "some network has", "no network has more than",
         "one layer of as many units, at most"],
        [(*s, b.lower, b.upper, b.shallow) for s, b in zip(sizes, bounds, strict=True)],
    )  # fmt: skip
    run.figure(
        "folds",
        lambda axes: _plot(axes, counted[:depth]),
        caption=f"The same four lines after 0 to {depth - 1} foldings of the square.",
        grid=(1, depth),
        size=(3.4 * depth, 3.8),
    )


def _all_inactive_at(net: nn.Sequential, place: float) -> nn.Sequential:
    """The same hyperplanes, every last unit turned to be inactive at a corner where folds meet."""
    turned = copy.deepcopy(net)
    last = turned[-3]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        side = -turned[:-2](torch.full((1, 2), place).double())[0].sign()
        last.weight.mul_(side[:, None])
        last.bias.mul_(side)
    return turned


def _random(run: Run, inputs: int, width: int, depth: int, outputs: int = 1) -> nn.Sequential:
    return mlp([inputs, *[width] * depth, outputs], generator=run.generator)


def _clamps(run: Run, width: int) -> nn.Sequential:
    return nn.Sequential(dense(run.randn(width, 2), run.randn(width)), nn.Hardtanh(), dense(run.randn(1, width)))


def _into_a_corner() -> nn.Sequential:
    smaller = dense(0.4 * torch.eye(2).double(), torch.full((2,), 0.05).double())
    return nn.Sequential(folding_network(2, [2]), smaller, folding_network(2, [2]))


def _off_corners(found: Arrangement) -> float:
    """How far the images of the cells' corners are from the corners of the cube."""
    _, images = found.corner_values()
    return float((images - images.round().clamp(0, 1)).abs().max())


def _plot(axes: Any, arrangements: list[Arrangement]) -> None:
    for panel, found in zip(axes[0], arrangements, strict=True):
        draw_cells(panel, found)
        panel.set(title=f"{found.patterns} regions", xlabel="$x_1$")
    axes[0, 0].set_ylabel("$x_2$")


def draw_cells(panel: Any, found: Arrangement) -> None:
    """The cells of an arrangement, no two neighbors in one color while six are enough."""
    from matplotlib.collections import PolyCollection

    chosen: dict[int, int] = {}
    for cell in range(len(found)):
        taken = {chosen[n] for n in found.neighbors(cell) if n in chosen}
        chosen[cell] = next((k for k in range(6) if k not in taken), 0)
    cells = PolyCollection(list(found.polygons()), facecolors=[COLORS[k] for k in chosen.values()], alpha=0.55)
    cells.set_edgecolor("white")
    cells.set_linewidth(0.7)
    panel.add_collection(cells)
    (a, b), (c, d) = found.plane.low, found.plane.high
    panel.set(xlim=(a, c), ylim=(b, d), aspect="equal")
    panel.grid(False)
