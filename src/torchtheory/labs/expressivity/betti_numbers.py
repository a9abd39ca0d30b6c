"""The topology of decision regions: what depth multiplies and one layer only adds to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from scipy import ndimage
from torch import Tensor, nn

from torchtheory.expressivity.folding import folding_network, sawtooth_network
from torchtheory.expressivity.hyperplanes import zaslavsky_bound
from torchtheory.expressivity.pieces import affine_pieces
from torchtheory.expressivity.topology import (
    BettiNumbers,
    betti_numbers,
    decision_betti_numbers,
    most_intervals,
    region_betti_numbers,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.training.many.networks import fit_many

PLANE = ((-1.0, 1.0), (-1.0, 1.0))
SPACE = (*PLANE, (-1.0, 1.0))
UNIT = ((0.0, 1.0), (0.0, 1.0))


def torus(x: Tensor, around: int, middle: float) -> Tensor:
    """A solid torus around one of the axes, with its center moved along the first one."""
    moved = x - torch.tensor([middle, 0.0, 0.0], dtype=x.dtype)
    axis = moved[:, around]
    rest = moved[:, [i for i in range(3) if i != around]].norm(dim=1)
    return 0.15 - torch.sqrt((rest - 0.45) ** 2 + axis**2)


#: name, function that is >= 0 on the set, its Betti numbers
SHAPES: tuple[tuple[str, Any, tuple[int, ...]], ...] = (
    ("disc", lambda x: 0.6 - x.norm(dim=1), (1, 0)),
    ("annulus", lambda x: 0.2 - (x.norm(dim=1) - 0.6).abs(), (1, 1)),
    ("two discs", lambda x: 0.3 - ((x[:, 0].abs() - 0.5) ** 2 + x[:, 1] ** 2).sqrt(), (2, 0)),
    (
        "eight",
        lambda x: 0.1 - (((x[:, 0].abs() - 0.4) ** 2 + x[:, 1] ** 2).sqrt() - 0.35).abs(),
        (1, 2),
    ),
    ("ball", lambda x: 0.7 - x.norm(dim=1), (1, 0, 0)),
    ("shell", lambda x: 0.2 - (x.norm(dim=1) - 0.6).abs(), (1, 0, 1)),
    ("solid torus", lambda x: torus(x, 2, 0.0), (1, 1, 0)),
    (
        "two linked tori",
        lambda x: torch.maximum(torus(x, 2, -0.225), torus(x, 1, 0.225)),
        (2, 2, 0),
    ),
)

#: those with gaps, holes or tubes narrower than 1/2
FINE = ("two discs", "eight", "solid torus", "two linked tori")


@lab(
    "betti-numbers",
    room="expressivity",
    covers=["X-75"],
    title="Depth multiplies the components and holes of a decision region",
    full={"depth": 8, "networks": 60, "resolution": 96, "epochs": 100},
    least={"depth": 3, "resolution": 28},
)
def betti_numbers_lab(run: Run, depth: int = 6, networks: int = 6, resolution: int = 28, epochs: int = 45) -> None:
    """The components, holes and cavities of decision regions, counted exactly on grids.

    Known shapes come first. Then the set where a sawtooth of m layers of two units is at least
    1/2: it has $2^{m-1}$ intervals, while one hidden layer of n units never has more than
    ⌊(n+3)/2⌋. In the plane, folding gives $4^{m-1}$ islands with 4 units a layer; one hidden layer
    stays below twice the number of cells of its lines. Look at the two curves against the number
    of units, and at a trained classifier whose region has a hole.

    Args:
        depth: deepest network whose regions are counted on a line and in the plane.
        networks: random networks at each depth.
        resolution: points per side of the grid on which shapes are counted.
        epochs: epochs of the network that is trained on a ring.
    """
    shapes(run, resolution)
    formula(run)
    on_a_line(run, depth, networks)
    totals = in_the_plane(run, depth, networks)
    ring = trained(run, epochs)
    run.figure(
        "regions",
        lambda axes: plot(axes, totals, ring),
        grid=(1, 3),
        size=(13.5, 3.8),
        caption="Left: the 64 islands of four folding layers of 4 units. Middle: the regions of a "
        "trained classifier. Right: the sum of Betti numbers against the number of units.",
    )


def differing(found: Sequence[int], known: Sequence[int]) -> int:
    return sum(a != b for a, b in zip(found, known, strict=True))


def shapes(run: Run, resolution: int) -> None:
    """Sets whose Betti numbers are known."""
    off, coarse, rows = [], [], []
    for name, function, numbers in SHAPES:
        box = PLANE if len(numbers) == 2 else SPACE
        found = region_betti_numbers(function, box, resolution)
        off.append(differing(found.numbers, numbers))
        if name in FINE:
            coarse.append(differing(region_betti_numbers(function, box, 4).numbers, numbers))
        rows.append((name, str(numbers), str(found.numbers), found.euler, found.cells))
    says = run.states(
        "X-75", r"(b_0,b_1,b_2) \text{ of a disc, an annulus, } \dots \text{, two linked tori: how many differ}"
    )
    says.equal(off)
    says.fails("cells of side 1/2, wider than gaps, holes or tubes of the set", coarse)
    run.table("shapes", ["set", "known", "counted", "Euler number", "cells"], rows)


def formula(run: Run, sets: int = 30) -> None:
    """Two independent counts in the plane: of the faces, and of what is joined."""
    euler, joined, fourfold = [], [], []
    for k in range(sets):
        cells = run.rand(17, 23) < 0.2 + 0.6 * k / sets
        found = betti_numbers(cells)
        euler.append(found.euler)
        joined.append(found.numbers[0] - found.numbers[1])
        fourfold.append(int(ndimage.label(cells.numpy())[1]) - found.numbers[1])
    says = run.states("X-75", r"\#\mathrm{corners}-\#\mathrm{edges}+\#\mathrm{cells}=b_0-b_1 \text{ of random sets}")
    says.equal(joined, euler)
    says.fails("cells that share only a corner not joined", fourfold)


def on_a_line(run: Run, depth: int, networks: int) -> None:
    """Sawtooth against one hidden layer."""
    layers = range(2, depth + 3)
    deep = [sawtooth_network(m).requires_grad_(False) for m in layers]
    exact = [crossings(net) for net in deep]
    grid = [
        region_betti_numbers(net, ((0.0, 1.0),), 16 * 2**m, level=0.5).numbers[0]
        for m, net in zip(layers, deep, strict=True)
    ]
    flat = [zigzag(2 * m) for m in layers]
    wide = [region_betti_numbers(net, ends(2 * m), 100 * m).numbers[0] for m, net in zip(layers, flat, strict=True)]
    says = run.states("X-75", r"b_0\{g_m\ge\tfrac12\}=2^{m-1} \text{ from } m \text{ layers of two units}")
    says.equal(exact + grid, [2 ** (m - 1) for m in layers] * 2)
    says.fails("the same units in one layer", wide * 2)
    widths = list(range(3, 13))
    attained = [region_betti_numbers(zigzag(n), ends(n), 50 * n).numbers[0] for n in widths]
    run.states(
        "X-75", r"\text{one hidden layer of } n \text{ ReLUs: at most }\lfloor(n+3)/2\rfloor\text{ intervals, attained}"
    ).equal(attained, [most_intervals(n) for n in widths])
    random, few = [], widths[::3]
    for _ in range(networks):
        for n in few:
            net = mlp([1, n, 1], "relu", generator=run.generator).requires_grad_(False)
            for layer in net:
                if isinstance(layer, nn.Linear):
                    layer.bias.copy_(run.randn(*layer.bias.shape))
            cells = region_betti_numbers(net, ((-6.0, 6.0),), 1500)
            random.append(cells.numbers[0])
    says = run.states("X-75", r"\text{random networks of one hidden layer: } b_0\le\lfloor(n+3)/2\rfloor")
    says.at_most(random, [most_intervals(n) for n in few] * networks)
    says.fails("as many units, in layers of two", grid, promised=[most_intervals(2 * m) for m in layers])


def crossings(net: nn.Module) -> int:
    """Intervals where a sawtooth is at least 1/2, from its exact pieces: two ends each."""
    return len(affine_pieces(net, 0.0, 1.0).crossings(0.5)) // 2


def zigzag(units: int) -> nn.Sequential:
    """One hidden layer whose kinks lie at -1/2 and 1/2 in turn, on the interval of `ends`.

    All units look to the right but the last, which looks to the left and so gives the slope that
    the others lack where they are still 0. An even number leaves one unit idle.
    """
    n = units - 1 + units % 2
    kinks = torch.tensor([1.0] + [2.0 * i for i in range(1, n)], dtype=torch.float64)
    slopes = torch.tensor([-1.0, 1.0] + [-0.5, 0.5] * n, dtype=torch.float64)[: n + 1]
    first = torch.ones(units, 1, dtype=torch.float64)
    bias = torch.zeros(units, dtype=torch.float64)
    out = torch.zeros(1, units, dtype=torch.float64)
    first[n - 1], bias[: n - 1], bias[n - 1] = -1.0, -kinks[:-1], kinks[-1]
    out[0, :n] = slopes.diff()
    return nn.Sequential(dense(first, bias), nn.ReLU(), dense(out, (-0.5 - (kinks[-1:] - kinks[0])))).requires_grad_(
        False
    )


def ends(units: int) -> tuple[tuple[float, float]]:
    return ((0.0, 2.0 * units + 2.0),)


def islands(depth: int) -> nn.Sequential:
    """Folds every coordinate of the square, then asks whether both are near 1."""
    head = dense(torch.ones(1, 2).double(), torch.tensor([-1.4]).double())
    return folding_network(2, [2] * depth, head).requires_grad_(False)


def in_the_plane(run: Run, depth: int, networks: int) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """Folding against one hidden layer in two dimensions."""
    layers = list(range(1, depth + 1))
    found = [decision_betti_numbers(islands(m), UNIT, 6 * 2**m) for m in layers]
    unfolded = [decision_betti_numbers(halved(m), UNIT, 6 * 2**m) for m in layers]
    says = run.states("X-75", r"b_0=4^{m-1} \text{ islands, and } b_1=4^{m-1} \text{ holes in the sea}")
    says.equal([b[1].numbers[0] for b in found] + [b[0].numbers[1] for b in found], [4 ** (m - 1) for m in layers] * 2)
    says.fails(
        "folds that reach only half as high", [b[1].numbers[0] for b in unfolded] + [b[0].numbers[1] for b in unfolded]
    )
    widths = [4 * m for m in layers]
    deep = max(depth, 6)  # where four to the power of the depth has overtaken the square
    totals: list[BettiNumbers] = []
    largest = []
    for n in widths:
        some = []
        for _ in range(networks):
            net = mlp([2, n, 1], "relu", generator=run.generator).requires_grad_(False)
            inner, outer = net[0], net[2]
            assert isinstance(inner, nn.Linear)
            assert isinstance(outer, nn.Linear)
            inner.bias.copy_(0.5 * run.randn(n) / n**0.5)
            outer.bias.zero_()
            values = net(2 * run.rand(200, 2) - 1)
            outer.bias.copy_(-values.median().reshape(1))
            some.append(region_betti_numbers(net, PLANE, 60))
        totals += some
        largest.append(max(b.total for b in some))
    says = run.states("X-75", r"\text{one hidden layer in the plane: } b_0+b_1\le2\bigl(1+n+\tbinom n2\bigr)")
    says.at_most(
        [b.total for b in totals],
        [2 * zaslavsky_bound(n, 2) for n in widths for _ in range(networks)],
        loose="every cell counts as a component and as a hole at once, and neighbors of one sign are one component",
    )
    says.fails(
        "as many units, in six or more layers of four",
        decision_betti_numbers(islands(deep), UNIT, 6 * 2**deep)[0].total,
        promised=2 * zaslavsky_bound(4 * deep, 2),
    )
    return {
        "folding layers of 4": (widths, [b[0].total for b in found], []),
        "random, one hidden layer": (widths, largest, [2 * zaslavsky_bound(n, 2) for n in widths]),
    }


def halved(depth: int) -> nn.Sequential:
    """The same units with tents that reach 1/2 only, and the same question of their sum."""
    net = islands(depth)
    with torch.no_grad():
        for layer in list(net)[2::2]:
            assert isinstance(layer, nn.Linear)
            layer.weight.mul_(0.5)
    return net


def trained(run: Run, epochs: int) -> nn.Module:
    """A classifier that learned a ring, and the regions it made of it."""
    x = 2 * run.rand(600, 2) - 1
    inside = (x.norm(dim=1) - 0.6).abs() < 0.2
    nets = [mlp([2, 24, 24, 2], "relu", generator=run.generator).float() for _ in range(2)]
    result = fit_many(nets, (x.float(), inside.long()), epochs=epochs, batch_size=100, learning_rate=0.02)
    rows = []
    for k, net in enumerate(result.networks()):
        outside, ring = decision_betti_numbers(net, PLANE, 120)
        error = float(result.train_error[k, -1])
        rows.append((k, error, str(ring.numbers), str(outside.numbers)))
    run.table(
        "trained",
        ["network", "training error", "(b₀, b₁) of the ring's class", "of the other class"],
        rows,
        caption="Classifiers trained on a ring: (1, 1) is right for it, and (2, 1) for the disc "
        "and the frame that are left",
    )
    return result.network(0)


def plot(axes: Any, totals: dict[str, tuple[list[int], list[int], list[int]]], ring: nn.Module) -> None:
    left, middle, right = axes[0]
    for panel, net, box, title in (
        (left, islands(4), UNIT, "four folding layers"),
        (middle, ring, PLANE, "a trained classifier"),
    ):
        t = torch.linspace(*box[0], 240, dtype=torch.float64)
        like = next(net.parameters())
        with torch.no_grad():
            values = net(torch.cartesian_prod(t, t).to(like))
        classes = values.argmax(1) if values.shape[1] > 1 else (values[:, 0] >= 0).long()
        sides = (*box[0], *box[1])
        panel.imshow(classes.reshape(240, 240).T, origin="lower", extent=sides, cmap="Blues", vmax=1.6)
        panel.grid(False)
        panel.set(title=title, xticks=box[0], yticks=box[1], xlabel="$x_1$", ylabel="$x_2$")
    for color, (name, (widths, found, bound)) in zip(COLORS, totals.items(), strict=False):
        right.semilogy(widths, found, "o-", color=color, label=name)
        if bound:
            right.semilogy(widths, bound, "--", color=color, label="bound for one hidden layer")
    right.set_xticks(widths)
    right.set(xlabel="units", ylabel=r"$b_0+b_1$", title="polynomial and exponential")
    right.legend()
