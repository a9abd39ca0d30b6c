r"""Sparse grids: functions with bounded mixed derivatives, without most of the curse of dimension.

With the hat $\phi(t)=\max(0,1-|t|)$ and $\phi_{l,i}(x)=\prod_j\phi(2^{l_j}x_j-i_j)$,
a function that vanishes on the boundary of the cube is the sum of
$v_{l,i}\phi_{l,i}$ over levels $l\ge1$ and odd $i$; the coefficient is the
stencil $[-\frac12,1,-\frac12]$ in every coordinate, applied to $f$, and
$|v_{l,i}|\le2^{-d}4^{-|l|_1}\|D^{(2,\dots,2)}f\|_\infty$. Keeping $|l|_1\le m+d-1$
keeps $\sim2^mm^{d-1}$ points. Source: Mathematical Aspects of Deep Learning, section 3.6.1
(Montanelli and Du).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.piecewise.shifted_sums import Copies, ShiftedSum
from torchtheory.approximation.piecewise.yarotsky import compose_product
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.feedforward import affine_layers

#: Points of a grid.
MOST_POINTS = 1 << 18


@dataclass(frozen=True, slots=True)
class SparseGrid:
    """The hierarchical interpolant of a function on a sparse grid.

    Attributes:
        levels: the vectors l.
        points: for each of them `[b, d]`, the points it adds.
        coefficients: for each of them `[b]`.

    Calling it evaluates the interpolant at `[n, d]`: `[n]`, time `O(n)` a level.
    """

    levels: list[tuple[int, ...]]
    points: list[Tensor]
    coefficients: list[Tensor]

    @property
    def count(self) -> int:
        """How many points the grid has."""
        return sum(len(p) for p in self.points)

    def __call__(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.float64)
        for level, coefficients in zip(self.levels, self.coefficients, strict=True):
            # on a level the hats do not overlap: each point meets one of them
            cells = torch.tensor([2.0 ** (k - 1) for k in level], dtype=torch.float64)
            at = (x * cells).floor().clamp(min=0).minimum(cells - 1)
            hats = (1 - (2 * (x * cells - at) - 1).abs()).clamp(min=0).prod(1)
            place = torch.zeros(len(x), dtype=torch.int64)
            for j, c in enumerate(cells.tolist()):
                place = place * int(c) + at[:, j].long()
            total += hats * coefficients[place]
        return total


def sparse_levels(level: int, dimension: int) -> list[tuple[int, ...]]:
    r"""The vectors $l\ge1$ with $|l|_1\le m+d-1$.

    >>> sparse_levels(2, 2)
    [(1, 1), (1, 2), (2, 1)]
    """
    whole_number(level, "level", least=1)
    whole_number(dimension, "dimension", least=1)

    def grow(left: int, axes: int) -> list[tuple[int, ...]]:
        if axes == 0:
            return [()]
        return [(k, *rest) for k in range(1, left - axes + 2) for rest in grow(left - k, axes - 1)]

    return grow(level + dimension - 1, dimension)


def sparse_grid_size(level: int, dimension: int) -> int:
    r"""The number of points, $\sum_{|l|_1\le m+d-1}2^{|l|_1-d}$.

    >>> sparse_grid_size(3, 1), sparse_grid_size(3, 2)
    (7, 17)
    """
    whole_number(level, "level", least=1)
    whole_number(dimension, "dimension", least=1)
    return sum(2**s * math.comb(s + dimension - 1, dimension - 1) for s in range(level))


def sparse_grid(function: Function, level: int, dimension: int) -> SparseGrid:
    r"""The interpolant of a function with zero boundary values on $[0,1]^d$.

    Time and memory: $3^d$ values of the function a point of the grid.

    >>> bump = sparse_grid(lambda x: (x * (1 - x)).prod(1), 3, 2)
    >>> bump.count, bump.coefficients[0].tolist()                  # 4 ** -2
    (17, [0.0625])
    """
    if sparse_grid_size(level, dimension) > MOST_POINTS:
        raise InvalidInput(
            f"level {level} in {dimension} dimensions has {sparse_grid_size(level, dimension)} "
            "points, too many for the memory: lower the level"
        )
    levels = sparse_levels(level, dimension)
    points, steps = [], []
    for vector in levels:
        axes = [(2 * torch.arange(2 ** (k - 1)).double() + 1) / 2**k for k in vector]
        points.append(torch.cartesian_prod(*axes).reshape(-1, dimension))
        step = torch.tensor([2.0**-k for k in vector], dtype=torch.float64)
        steps.append(step.expand_as(points[-1]))
    at, step = torch.cat(points), torch.cat(steps)
    total = torch.zeros(len(at), dtype=torch.float64)
    for move in itertools.product((-1, 0, 1), repeat=dimension):
        shift = torch.tensor(move, dtype=torch.float64) * step
        total += (-0.5) ** sum(map(abs, move)) * values_of(function, at + shift)
    coefficients = list(torch.split(total, [len(p) for p in points]))
    return SparseGrid(levels, points, coefficients)


def sparse_grid_error(level: int, dimension: int, mixed: float = 1.0) -> float:
    r"""The sup error of the interpolant where $|D^{(2,\dots,2)}f|\le R$:

    $$
    2^{-d}R\sum_{s\ge m+d}\binom{s-1}{d-1}4^{-s}\ \sim\ 4^{-m}m^{d-1},
    $$

    what the levels that were left out can add, since the hats of a level do not overlap.

    >>> round(sparse_grid_error(1, 1) * 24, 12)               # 4^-2 / (1 - 1/4) / 2
    1.0
    """
    whole_number(level, "level", least=1)
    whole_number(dimension, "dimension", least=1)
    positive_number(mixed, "mixed")
    first = level + dimension
    terms = (math.comb(s - 1, dimension - 1) * 4.0**-s for s in range(first, first + 400))
    return mixed * 2.0**-dimension * math.fsum(terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseGridNetwork(Approximant):
    """A sparse grid interpolant as a ReLU network; its bound is the sum of two parts.

    Attributes:
        grid_error: bound of what the interpolant leaves.
        product_error: bound of what the approximate products of hats add.
        grid: the interpolant itself.
    """

    network: ShiftedSum
    grid_error: float
    product_error: float
    grid: SparseGrid


def sparse_grid_network(
    function: Function, level: int, dimension: int, squarings: int, *, mixed: float = 1.0
) -> SparseGridNetwork:
    r"""The interpolant as a ReLU network, hats multiplied by trees of products.

    A tree of $d$ factors errs by $(d-1)4^{-(n+1)}$ and is 0 where a factor is, so
    the products add $(d-1)4^{-(n+1)}\sum_l\max_i|v_{l,i}|$.

    Args:
        function: with zero boundary values on the cube.
        squarings: levels $n$ of each squaring.
        mixed: $R\ge\|D^{(2,\dots,2)}f\|_\infty$.

    >>> made = sparse_grid_network(lambda x: (x * (1 - x)).prod(1), 2, 2, 6, mixed=4.0)
    >>> made.size.depth, len(made.grid.levels)
    (9, 3)
    """
    whole_number(squarings, "squarings", least=1)
    grid = sparse_grid(function, level, dimension)
    hats = [_hat(j, dimension) for j in range(dimension)]
    (weight, bias), *rest = affine_layers(compose_product(hats, squarings))[0]
    groups, added = [], 0.0
    for vector, points, coefficients in zip(
        grid.levels, grid.points, grid.coefficients, strict=True
    ):
        if not bool(coefficients.any()):
            continue
        scale = torch.tensor([2.0**k for k in vector], dtype=torch.float64)
        template = chain([(weight * scale, bias), *rest], [nn.ReLU() for _ in rest])
        groups.append(Copies(template, points, coefficients, 1 / scale))
        added += (dimension - 1) * 4.0 ** -(squarings + 1) * float(coefficients.abs().max())
    if not groups:
        raise InvalidInput("the function vanishes at every point of the grid")
    network = ShiftedSum(groups)
    left = sparse_grid_error(level, dimension, mixed)
    return SparseGridNetwork(
        network=network,
        bound=left + added,
        domain=((0.0, 1.0),) * dimension,
        theorem="X-53",
        grid_error=left,
        product_error=added,
        grid=grid,
    )


def _hat(axis: int, dimension: int) -> nn.Sequential:
    """The hat of a coordinate around 0, three ReLUs."""
    pick = torch.zeros(3, dimension, dtype=torch.float64)
    pick[:, axis] = 1.0
    maps = [
        (pick, torch.tensor([1.0, 0.0, -1.0]).double()),
        (torch.tensor([[1.0, -2.0, 1.0]]).double(), torch.zeros(1).double()),
    ]
    return chain(maps, [nn.ReLU()])
