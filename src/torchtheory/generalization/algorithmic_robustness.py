r"""Algorithmic robustness: a loss that varies little within the cells of a fixed partition.

Let the space of pairs $(x,y)$ be split into $K$ cells, fixed before the sample is
drawn. If every $z$ of the sample and every $z'$ of its cell have
$|\ell(f_S;z)-\ell(f_S;z')|\le\zeta(S)$, and the loss takes values in an interval of width
$M$, then with probability at least $1-\delta$ (Xu and Mannor, 2012)

$$
|R-R_S|\le\zeta(S)+M\sqrt{\frac{2K\ln2+2\ln(1/\delta)}m} .
$$

Source: Mathematical Aspects of Deep Learning, section 2.2. A grid of side $h$ has
$\lceil1/h\rceil^d$ cells: for images the bound needs more samples than there are atoms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import (
    all_finite,
    described,
    nonnegative_number,
    open_fraction,
    positive_number,
)
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Data, Samples, collect
from torchtheory.training.losses.risks import sample_losses

Cells = Callable[[Tensor, Tensor], Tensor]
"""`cells(x, y)` -> the number of the cell of each pair, `[n]` of whole numbers."""


def robustness_bound(
    oscillation: float, cells: float, samples: float, delta: float, *, width: float = 1.0
) -> float:
    r"""Xu and Mannor's $\zeta+M\sqrt{(2K\ln2+2\ln(1/\delta))/m}$, a bound on
    $|R-R_S|$.

    Args:
        oscillation: $\zeta(S)$, *proved* for every point of the cells the sample meets;
            what `measure_robustness` finds is a lower estimate.
        cells: $K$, all cells of the partition, met or not.
        samples: $m$.
        delta: the probability that it fails.
        width: $M$, the largest minus the smallest loss.

    >>> round(robustness_bound(0.1, 10, 10_000, 0.05), 5)
    0.14456
    """
    nonnegative_number(oscillation, "the oscillation")
    if not cells >= 1:
        raise InvalidInput(f"a partition has at least one cell, not {cells!r}")
    if not samples >= 1:
        raise EmptyData(f"a sample has at least one member, not {samples!r}")
    open_fraction(delta, "delta")
    positive_number(width, "the width of the loss")
    numerator = 2 * cells * math.log(2) + 2 * math.log(1 / delta)
    return oscillation + width * math.sqrt(numerator / samples)


def samples_for_robustness(
    oscillation: float, cells: float, bound: float, delta: float, *, width: float = 1.0
) -> float:
    r"""The number of samples from which `robustness_bound` is below `bound`.

    A float, as it soon exceeds what a whole number of samples could mean; infinite if the
    oscillation alone is not below the bound.

    >>> f"{samples_for_robustness(0.0, 10 * 2.0**784, 1.0, 0.05):.2g}"   # pixels halved once
    '1.4e+237'
    """
    robustness_bound(oscillation, cells, 1, delta, width=width)
    if not oscillation < bound:
        return math.inf
    numerator = 2 * cells * math.log(2) + 2 * math.log(1 / delta)
    return numerator * (width / (bound - oscillation)) ** 2


@dataclass(frozen=True, slots=True)
class Grid:
    r"""The cubes of a box, one copy per class: the usual partition of $X\times Y$.

    Attributes:
        low, high: the box $[\text{low},\text{high}]^d$ that all inputs lie in.
        intervals: how many equal pieces every axis has.
        dimension: $d$.
        classes: number of labels; 1 for a partition of the inputs alone.
    """

    low: float
    high: float
    intervals: int
    dimension: int
    classes: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(f"the box [{self.low}, {self.high}] is empty or not finite")
        if self.intervals < 1 or self.dimension < 1 or self.classes < 1:
            raise InvalidInput(
                "a grid needs at least one interval, one dimension and one class (intervals = "
                f"{self.intervals!r}, dimension = {self.dimension!r}, classes = {self.classes!r})"
            )

    @property
    def count(self) -> float:
        """All cells, met or not; infinite where a float cannot hold it.

        >>> Grid(0.0, 1.0, 4, dimension=3, classes=2).count
        128.0
        """
        try:
            return self.classes * float(self.intervals) ** self.dimension
        except OverflowError:
            return math.inf

    @property
    def diameter(self) -> float:
        """Euclidean diameter of a cube."""
        return (self.high - self.low) / self.intervals * math.sqrt(self.dimension)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The cell of every pair, numbered among those that occur: `[n]`.

        Numbers compare within one call only: call it once for all points that are compared.
        """
        if len(x) != len(y):
            raise ShapeMismatch(f"there are {len(x)} inputs but {len(y)} targets")
        flat = x.reshape(len(x), -1)
        if flat.shape[1] != self.dimension:
            raise ShapeMismatch(
                f"the grid has {self.dimension} dimensions and the inputs {flat.shape[1]}"
            )
        if bool((flat < self.low).any() or (flat > self.high).any()):
            raise InvalidInput(
                f"some inputs lie outside [{self.low:g}, {self.high:g}]; a partition must hold "
                "every input that can occur"
            )
        scaled = (flat.double() - self.low) / (self.high - self.low) * self.intervals
        places = scaled.floor().clamp(max=self.intervals - 1).long()
        if self.classes > 1:
            labels = y.reshape(len(y), -1)
            if labels.shape[1] != 1:
                raise ShapeMismatch(
                    f"a grid with classes needs one label per sample, not {list(labels.shape)}"
                )
            whole = labels.long()
            if not bool(((whole == labels) & (whole >= 0) & (whole < self.classes)).all()):
                raise InvalidInput(
                    f"labels are whole numbers from 0 to {self.classes - 1}: a bound with "
                    f"{self.classes} copies of the cubes counts no other (smallest "
                    f"{float(labels.min()):g}, largest {float(labels.max()):g})"
                )
            places = torch.cat([places, whole.to(places.device)], dim=1)
        cells: Tensor = torch.unique(places, dim=0, return_inverse=True)[1]
        return cells


@dataclass(frozen=True, slots=True)
class MeasuredRobustness:
    r"""How much the loss was seen to vary within cells.

    Attributes:
        oscillation: largest $|\ell(z)-\ell(z')|$ of a training sample and a point of its
            cell: a *lower* estimate of $\zeta(S)$.
        met: cells that hold a training sample.
        compared: points that share a cell with a training sample.
        alone: points whose cell holds no training sample.
    """

    oscillation: float
    met: int
    compared: int
    alone: int


def cell_oscillation(
    losses: Tensor, cells: Tensor, other_losses: Tensor, other_cells: Tensor
) -> MeasuredRobustness:
    r"""The largest difference of losses between sample and other points of the same cell.

    Args:
        losses, cells: of the sample, `[m]`.
        other_losses, other_cells: of the points it is compared with, `[n]`; the sample's members
            are compared with each other as well.

    Cost: $O((m+n)\log(m+n))$.

    >>> a, b = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 9.0])
    >>> cell_oscillation(a, torch.tensor([0, 1]), b, torch.tensor([0, 2])).oscillation
    0.5
    """
    if losses.shape != cells.shape or other_losses.shape != other_cells.shape:
        raise ShapeMismatch(
            f"every loss needs the number of its cell (losses is {list(losses.shape)}, cells is "
            f"{list(cells.shape)}, other_losses is {list(other_losses.shape)}, other_cells is "
            f"{list(other_cells.shape)})"
        )
    if losses.ndim != 1 or other_losses.ndim != 1:
        raise ShapeMismatch(
            f"losses must be [n] (losses is {list(losses.shape)}, other_losses is "
            f"{list(other_losses.shape)})"
        )
    if not len(losses):
        raise EmptyData(
            "robustness is about the cells of a sample, and there is none (the shape is "
            f"{list(losses.shape)})"
        )
    everything = torch.cat([losses, other_losses]).double()
    all_finite(everything, "the losses")
    _, where = torch.unique(torch.cat([cells, other_cells]), return_inverse=True)
    count = int(where.max()) + 1
    mine, yours = where[: len(losses)], where[len(losses) :]

    def extreme(values: Tensor, index: Tensor, how: str) -> Tensor:
        start = torch.full((count,), math.inf if how == "amin" else -math.inf).to(everything)
        return start.scatter_reduce(0, index, values, how)

    sample = everything[: len(losses)]
    highest, lowest = extreme(sample, mine, "amax"), extreme(sample, mine, "amin")
    top, bottom = extreme(everything, where, "amax"), extreme(everything, where, "amin")
    met = highest > -math.inf
    spread = torch.maximum(highest - bottom, top - lowest)[met]
    shared = met[yours]
    return MeasuredRobustness(
        float(spread.max()), int(met.sum()), int(shared.sum()), int((~shared).sum())
    )


def measure_robustness(problem: Problem, partition: Cells, other: Data) -> MeasuredRobustness:
    r"""The oscillation of a network's loss within the cells its training samples lie in.

    Args:
        problem: model, loss and training data.
        partition: `cells(x, y)`, such as a `Grid`; it must not depend on the data.
        other: further pairs, to be compared with the training samples.

    Cost: one forward pass over all data, in chunks; the model is not changed.

    >>> from torch import nn
    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(net.weight)
    >>> p = Problem(net, (torch.tensor([[0.1], [0.9]]), torch.zeros(2, 1)), task="regression")
    >>> measure_robustness(p, Grid(0.0, 1.0, 2, 1), (torch.tensor([[0.2]]), torch.ones(1, 1)))
    MeasuredRobustness(oscillation=1.0, met=2, compared=1, alone=0)
    """
    samples = problem.prepare(collect(other, "other", limit=10**9), "other")
    train = problem.train
    both = Samples(torch.cat([train.x, samples.x]), torch.cat([train.y, samples.y]))
    cells = partition(both.x, both.y)
    if not isinstance(cells, Tensor) or cells.shape != (len(both),) or cells.is_floating_point():
        raise ShapeMismatch(
            f"a partition gives one whole number per pair, [{len(both)}], not {described(cells)}"
        )
    losses = sample_losses(problem, both).reshape(len(both))
    m = len(train)
    return cell_oscillation(losses[:m], cells[:m], losses[m:], cells[m:])


def best_grid(
    lipschitz: float,
    dimension: int,
    samples: int,
    delta: float,
    *,
    classes: int = 1,
    width: float = 1.0,
    low: float = 0.0,
    high: float = 1.0,
) -> tuple[Grid, float]:
    r"""The grid with the smallest bound for a loss that is Lipschitz in the input.

    $\zeta=L\cdot\text{diameter}$ holds for every sample, so this is a guarantee, and the
    grid may be chosen beforehand. Both come back: the grid and its
    `robustness_bound`.

    Args:
        lipschitz: $L$ of $x\mapsto\ell(f(x),y)$ for every label.
        dimension: of the inputs, which lie in $[\text{low},\text{high}]^d$.
        samples, delta, width: as for the bound.
        classes: number of labels.

    >>> grid, bound = best_grid(1.0, 1, 10_000, 0.05)
    >>> grid.intervals, round(bound, 4)
    (32, 0.1022)
    """
    nonnegative_number(lipschitz, "the Lipschitz constant")
    best: tuple[Grid, float] | None = None
    intervals = 1
    # the second term grows with the intervals: past the best bound nothing better comes
    while True:
        grid = Grid(low, high, intervals, dimension, classes)
        rest = robustness_bound(0.0, grid.count, samples, delta, width=width)
        if best is not None and rest >= best[1]:
            return best
        bound = rest + lipschitz * grid.diameter
        if best is None or bound < best[1]:
            best = grid, bound
        intervals += 1
