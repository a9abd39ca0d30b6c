"""Algorithmic robustness: the bound of Xu and Mannor, and why its cells are its undoing."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from torchtheory.generalization.algorithmic_robustness import (
    Grid,
    best_grid,
    cell_oscillation,
    measure_robustness,
    robustness_bound,
    samples_for_robustness,
)
from torchtheory.labs.engine import Interval, Run, lab, quantile_interval
from torchtheory.models.problem import Problem

PIECES = 10


@lab(
    "algorithmic-robustness",
    room="generalization",
    covers=["B-04"],
    title="A loss that varies little within fixed cells, and the number of cells",
    errata=["robustness-needs-a-range-of-losses"],
    full={"trials": 3000, "samples": 20_000},
    least={"samples": 100, "trials": 50, "delta": 0.01},
    most={"delta": 0.5},
)
def algorithmic_robustness(run: Run, samples: int = 1000, trials: int = 200, delta: float = 0.1) -> None:
    """A partition fixed beforehand, and how much the loss varies within the cells a sample meets.

    For a network with a known Lipschitz constant the variation is at most that times the diameter
    of a cell; for one that remembers its sample it is not. Then the worst that a rule can do: its
    losses go up, after the sample is seen, in the cells that came up too rarely. The gap is within
    the bound, and far outside where the cells are chosen after the sample.
    Last its price: a grid has exponentially many cells. Look at the samples needed by dimension.

    Args:
        samples: size of a sample.
        trials: samples that the bound is tried on.
        delta: probability with which the bound may fail.
    """
    lipschitz_network(run)
    large_margin(run)
    single_cell(run)
    coverage(run, samples, trials, delta)
    losses_without_a_floor(run, delta)
    price(run, delta)


class Remember(nn.Module):
    """The label of the training point it is given, 0 anywhere else."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y)

    def forward(self, a: Tensor) -> Tensor:
        same = (a[:, None] == self.get_buffer("x")[None]).all(-1).double()
        return (same @ self.get_buffer("y")).clamp(max=1.0)


def clipped_distance(outputs: Tensor, y: Tensor) -> Tensor:
    """|f - y|, at most 1: Lipschitz with constant 1 in f."""
    return (outputs - y).abs().clamp(max=1.0).mean()


def lipschitz_network(run: Run) -> None:
    """Oscillation within the cubes of a grid against Lipschitz constant times diameter."""
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(run.randn(*p.shape) / p.shape[-1] ** 0.5)
    constant = math.prod(float(torch.linalg.matrix_norm(m.weight.detach(), 2)) for m in net if isinstance(m, nn.Linear))
    diagonal = nn.Linear(2, 1, bias=False).double()  # steepest from corner to corner
    with torch.no_grad():
        diagonal.weight.fill_(0.5**0.5)
    x, y = run.rand(300, 2), run.rand(300, 1).round()
    other = run.rand(3000, 2), run.rand(3000, 1).round()
    grids = [Grid(0.0, 1.0, k, 2, classes=2) for k in (2, 4, 8, 16)]

    def oscillations(net: nn.Module) -> list[float]:
        problem = Problem(net, (x, y), loss=clipped_distance, task="regression")
        return [measure_robustness(problem, g, other).oscillation for g in grids]

    diameters = [g.diameter for g in grids]
    says = run.states("B-04", r"\zeta(S)\le\mathrm{Lip}\cdot\operatorname{diam}")
    says.at_most(
        oscillations(net) + oscillations(diagonal),
        [constant * d for d in diameters] + diameters,
        where="ReLU network with the product of its spectral norms, and a linear one of slope 1 along the "
        "diagonal; grids of 2² to 16² cubes with two labels each, 3000 points beside the sample",
    )
    says.fails(
        "a rule that remembers its sample, with no Lipschitz constant", oscillations(Remember(x, y)), promised=diameters
    )
    filled = Grid(0.0, 1.0, 4, 3, classes=2)
    many, labels = run.rand(20_000, 3), run.rand(20_000).round()
    cells = filled(many, labels)
    says = run.states("B-04", r"|\Omega|=\text{classes}\cdot\lceil1/h\rceil^d")
    says.equal(
        len(torch.unique(cells)),
        filled.count,
        where="cells met by 20 000 points of the cube, h = 1/4, d = 3, two classes",
    )
    says.fails(
        "points on a line in the cube: not all cells can be met",
        len(torch.unique(filled(run.rand(20_000, 1).expand(-1, 3), labels))),
    )


def large_margin(run: Run) -> None:
    """The 0-1 loss does not vary at all in cells smaller than the distance to the boundary."""
    grid = Grid(0.0, 1.0, 12, 2, classes=2)
    normal = torch.tensor([0.6, 0.8]).double()

    def classify(x: Tensor) -> Tensor:
        return (x @ normal > 0.7).double()

    x, other = run.rand(400, 2), run.rand(5000, 2)
    far = x[(x @ normal - 0.7).abs() > grid.diameter]

    def oscillation(sample: Tensor) -> float:
        y = (run.rand(len(sample)) < 0.5).double()  # any labels
        z = (run.rand(len(other)) < 0.5).double()
        cells = grid(torch.cat([sample, other]), torch.cat([y, z]))
        m = len(sample)
        mine = (classify(sample) != y).double()
        yours = (classify(other) != z).double()
        return cell_oscillation(mine, cells[:m], yours, cells[m:]).oscillation

    says = run.states(
        "B-04",
        r"\text{every sample farther from the boundary than diam}\ \Rightarrow\ \zeta(S)=0\text{ for the 0-1 loss}",
    )
    says.equal(oscillation(far), where="linear classifier on the unit square, 12² cubes with two labels")
    says.fails("samples up to the boundary", oscillation(x))


def law(atoms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points of [0, 1] with target 0 or 1, and their masses."""
    x = (torch.arange(atoms).double() + 0.5) / atoms
    chance = 0.2 + 0.6 * x
    both = torch.cat([1 - chance, chance]) / atoms
    return x.repeat(2), torch.arange(2).double().repeat_interleave(atoms), both


def single_cell(run: Run) -> None:
    """One cell: zeta is the oscillation of the loss, and the bound is trivial."""
    x, y, mass = law(200)
    losses = (0.7 * x - y).square()
    found, gaps = [], []
    zeros = torch.zeros(400, dtype=torch.long)
    for m in [1] * 25 + [30] * 25:
        drawn = torch.multinomial(mass, m, replacement=True, generator=run.generator)
        found.append(cell_oscillation(losses[drawn], zeros[:m], losses, zeros).oscillation)
        gaps.append(abs(float(losses @ mass - losses[drawn].mean())))
    run.states("B-04", r"|\Omega|=1:\quad|R-R_S|\le\zeta(S)\text{ on every sample}").at_most(
        gaps,
        found,
        where="samples of 1 and of 30; a mean of losses and an expectation of losses never differ by more than they do",
    )


def worst_gaps(run: Run, m: int, trials: int, grid: Grid, within: float) -> list[tuple[float, float]]:
    """|R - R_S| and ζ(S) of the worst rule for each sample, where all cells are equally likely.

    Its losses are higher by `1 - within` in the cells that came up too rarely, and by `within` at
    the points of each cell that are not in the sample, which have all the mass.
    """
    x, y = run.rand(trials * m), (run.rand(trials * m) < 0.5).long()
    middles = (torch.arange(grid.intervals).double() + 0.5) / grid.intervals
    others, labels = middles.repeat(grid.classes), torch.arange(grid.classes).repeat_interleave(grid.intervals)
    cells = grid(torch.cat([x, others])[:, None], torch.cat([y, labels]))
    found, rest = [], cells[trials * m :]
    for sample in cells[: trials * m].reshape(trials, m):
        share = torch.bincount(sample, minlength=len(rest)).double() / m
        raised = (1 - within) * (share < 1 / len(rest)).double()
        oscillation = cell_oscillation(raised[sample], sample, within + raised[rest], rest).oscillation
        found.append((abs(float(within + raised.mean() - share @ raised)), oscillation))
    return found


def coverage(run: Run, m: int, trials: int, delta: float) -> None:
    """The gap of the worst rules against the bound."""
    grid = Grid(0.0, 1.0, PIECES, 1, classes=2)
    after = remembering(run, m, 50, delta)
    for within in (0.0, 0.3):
        worst = worst_gaps(run, m, trials, grid, within)
        bounds = [robustness_bound(zeta, grid.count, m, delta) for _, zeta in worst]
        says = run.states(
            "B-04", r"|R-R_S|\le\zeta(S)+M\sqrt{(2|\Omega|\ln2+2\ln(1/\delta))/m}\text{ with probability }1-\delta"
        )
        says.at_most(
            quantile_interval([gap for gap, _ in worst], 1 - delta, 0.999),
            max(bounds),
            where=f"quantile of the gap at 1 - δ over {trials} samples of m = {m}; {grid.count:g} cells, losses that "
            f"vary by {within} within them and go up where the sample has fewer points than it should",
        )
        says.fails(
            "two cells chosen after the sample: the sample, and the rest; a rule that looks labels up has ζ = 0",
            after,
            promised=robustness_bound(0.0, 2, m, delta),
        )


def remembering(run: Run, m: int, trials: int, delta: float) -> Interval:
    """The quantile of gap less ζ where the partition is {S, everything else}."""
    atoms = 20 * m
    gaps = []
    for _ in range(trials):
        labels = (run.rand(atoms) < 0.5).double()
        seen = torch.zeros(atoms, dtype=torch.bool)
        drawn = torch.randint(atoms, (m,), generator=run.generator)
        seen[drawn] = True
        losses = torch.where(seen, 0.0, labels)  # it says 0 where it has seen nothing
        cells = seen.long()
        zeta = cell_oscillation(losses[drawn], cells[drawn], losses, cells).oscillation
        gaps.append(abs(float(losses.mean() - losses[drawn].mean())) - zeta)
    return quantile_interval(gaps, 1 - delta, 0.999)


def losses_without_a_floor(run: Run, delta: float) -> None:
    """The printed condition, an upper bound of the loss, is not enough."""
    m = 101
    gaps = []
    for _ in range(20):
        heads = int(torch.randint(0, 2, (m,), generator=run.generator).sum())
        gaps.append(abs(-50 + 100 * heads / m))
    run.refutes(
        "robustness-needs-a-range-of-losses",
        r"\ell\le M\ \Rightarrow\ |R-R_S|\le\zeta(S)+M\sqrt{(2|\Omega|\ln2+2\ln(1/\delta))/m}",
    ).at_most(
        min(gaps),
        robustness_bound(0.0, 2, m, delta, width=0.01),
        where="losses -100 and 0 at two points, each a cell, M = 0.01; the smallest gap of 20 samples of 101",
    )


def price(run: Run, delta: float) -> None:
    """Samples needed for a bound below 1, by dimension."""
    side = 4
    dimensions = list(range(1, 21))
    needed = [samples_for_robustness(0.5, Grid(0.0, 1.0, side, d, classes=10).count, 1.0, delta) for d in dimensions]
    ratios = [after / before for before, after in itertools.pairwise(needed[9:])]
    met_only = [samples_for_robustness(0.5, 1000, 1.0, delta) for _ in dimensions]
    says = run.states("B-04", r"m(d+1)/m(d)=\lceil1/h\rceil\text{: the samples needed grow exponentially in }d")
    says.equal(ratios, float(side), 1e-3, where="h = 1/4, ten classes, ζ = 1/2, bound below 1, d from 10")
    says.fails(
        "cells that do not depend on d, such as the 1000 a data set happens to meet: then they "
        "are not fixed beforehand",
        [after / before for before, after in itertools.pairwise(met_only)],
    )
    rows = []
    for d in (1, 2, 3, 5, 10):
        grid, bound = best_grid(1.0, d, 60_000, delta, classes=10)
        rows.append((d, grid.intervals, grid.count, bound, "says nothing" if bound >= 1 else ""))
    run.table(
        "best-grids",
        ("dimension", "intervals an axis", "cells", "bound", ""),
        rows,
        caption=f"A loss in [0, 1] with Lipschitz constant 1 on the unit cube, ten classes, 60 000 "
        f"samples, δ = {delta:g}: the best grid and its bound.",
    )

    run.curves(
        "samples-by-dimension",
        dimensions,
        {
            f"h = 1/{k}": [
                samples_for_robustness(0.5, Grid(0.0, 1.0, k, d, classes=10).count, 1.0, delta) for d in dimensions
            ]
            for k in (2, 4, 8)
        },
        {"60 000 samples": 60_000},
        axes=("dimension of the input", "samples for a bound below 1"),
        log="y",
        caption="Samples from which the bound is below 1 although ζ is 1/2, for grids of three "
        "sides: the images of a digit have 784 dimensions.",
    )
