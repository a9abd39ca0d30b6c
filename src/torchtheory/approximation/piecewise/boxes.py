r"""Continuous functions of several variables by boxes: exactly, and as ReLU networks.

A box is the set where all of its coordinates' bumps are 1; a ReLU of their sum finds it. As many
boxes as $(\rho/2\epsilon)^d$ are needed: the curse of dimensionality in this construction.
Distances are measured in the maximum norm, since a cube of side $\delta$ has points at
Euclidean distance $\tfrac\delta2\sqrt d$ from its center. Source: Foundations of Deep
Learning, Lemma 15, Theorem 16 and Remark 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, Box, as_box
from torchtheory.approximation.network_calculus import block_diagonal, chain, combine
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.memory import refuse_too_large
from torchtheory.nets.feedforward import affine_layers


class CellValues(nn.Module):
    """A function that is constant on each cell of a regular partition of a box.

    Cells are half open, the last of each row closed; points outside take the nearest cell.

    Args:
        values: `[N, ..., N]`, one value a cell.
        domain: the box.
    """

    values: Tensor
    low: Tensor
    side: Tensor

    def __init__(self, values: Tensor, domain: Box) -> None:
        super().__init__()
        ends = torch.tensor(domain, dtype=torch.float64)
        self.register_buffer("values", values)
        self.register_buffer("low", ends[:, 0])
        self.register_buffer("side", (ends[:, 1] - ends[:, 0]) / values.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        cell = ((x - self.low) / self.side).floor().long().clamp(0, self.values.shape[0] - 1)
        return self.values[cell.unbind(1)].unsqueeze(1)


def piecewise_constant(
    function: Function, cells: int, lipschitz: float, domain: Box | tuple[float, float]
) -> Approximant:
    r"""The function's value at the center of each of $N^d$ cells: error at most
    $\rho\delta/2$.

    Args:
        function: from `[n, d]` to `[n]`.
        cells: $N$, along each side.
        lipschitz: $\rho$ in the maximum norm, $|g(x)-g(y)|\le\rho\max_j|x_j-y_j|$.
        domain: the box; $\delta$ is the longest side of a cell.

    >>> steps = piecewise_constant(lambda x: x.sum(1), 2, 2.0, ((0.0, 1.0), (0.0, 1.0)))
    >>> steps(torch.tensor([[0.1, 0.1], [0.9, 0.5]]).double()).tolist(), steps.bound
    ([0.5, 1.5], 0.5)
    """
    whole_number(cells, "cells", least=1)
    positive_number(lipschitz, "lipschitz")
    box = as_box(domain)
    values = values_of(function, cell_centers(box, cells)).reshape([cells] * len(box))
    side = max(high - low for low, high in box) / cells
    return Approximant(CellValues(values, box), lipschitz * side / 2, box, "L-072")


def cell_centers(box: Box, cells: int) -> Tensor:
    """The centers of the cells of a regular partition, `[cells ** d, d]`.

    >>> cell_centers(((0.0, 1.0),), 2).tolist()
    [[0.25], [0.75]]
    """
    refuse_too_large(8 * len(box) * cells ** len(box), f"a grid of {cells}^{len(box)} cells")
    steps = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    axes = [low + (high - low) * steps for low, high in box]
    return torch.cartesian_prod(*axes).reshape(-1, len(box))


def relu_bump(low: float, high: float, ramp: float) -> nn.Sequential:
    r"""Four ReLUs that are 1 on $[a,b]$ and 0 outside $[a-\gamma,b+\gamma]$.

    $$
    g(z)=\tfrac1\gamma\bigl(\sigma(z-a+\gamma)-\sigma(z-a)-\sigma(z-b)+\sigma(z-b-\gamma)\bigr)
    $$

    It is linear in between, and $\int|g-\mathbf 1_{[a,b]}|=\gamma$.

    >>> z = torch.tensor([[-1.0], [-0.25], [0.0], [1.0], [1.25], [9.0]]).double()
    >>> relu_bump(0.0, 1.0, 0.5)(z).flatten().tolist()
    [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
    """
    as_box((low, high))
    positive_number(ramp, "ramp")
    kinks = torch.tensor([low - ramp, low, high, high + ramp], dtype=torch.float64)
    signs = torch.tensor([[1.0, -1.0, -1.0, 1.0]], dtype=torch.float64)
    scaled = torch.full((4, 1), 1 / ramp, dtype=torch.float64)
    return chain([(scaled, -kinks / ramp), (signs, kinks.new_zeros(1))], [nn.ReLU()])


def box_indicator(box: Sequence[tuple[float, float]], ramp: float) -> nn.Sequential:
    r"""Two hidden layers of $4d$ and 1 ReLUs: 1 on the box, 0 beyond a margin of `ramp`.

    $$
    g(x)=\sigma\Bigl(\sum_jg_j(x_j)-(d-1)\Bigr)
    $$

    with a bump $g_j$ for every side. $\int|g-\mathbf 1_R|$ is at most
    `margin_volume`.

    >>> box = box_indicator([(0.0, 1.0), (0.0, 1.0)], 0.5)
    >>> x = torch.tensor([[0.5, 1.0], [1.25, 0.0], [1.25, 1.25], [2.0, 0.5]]).double()
    >>> box(x).flatten().tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    sides = as_box(box)
    d = len(sides)
    bumps = [affine_layers(relu_bump(low, high, ramp))[0] for low, high in sides]
    weight = block_diagonal(*[first[0] for first, _ in bumps])
    bias = torch.cat([first[1] for first, _ in bumps])
    signs = torch.cat([last[0] for _, last in bumps], dim=1)
    one = torch.ones(1, 1, dtype=torch.float64)
    return chain(
        [(weight, bias), (signs, one[0] * (1.0 - d)), (one, 0 * one[0])], [nn.ReLU(), nn.ReLU()]
    )


def margin_volume(sides: Sequence[float], ramp: float) -> float:
    r"""$\prod_j(s_j+2\gamma)-\prod_js_j$: what a box gains by a margin $\gamma$.

    >>> margin_volume([1.0, 1.0], 0.5)
    3.0
    """
    return math.prod(s + 2 * ramp for s in sides) - math.prod(sides)


def box_network(
    function: Function, dimension: int, lipschitz: float, error: float, *, shared: bool = True
) -> Approximant:
    r"""Two hidden layers of ReLUs with $\int_{[0,1]^d}|f-g|\le2\epsilon$.

    $N=\lceil\rho/2\epsilon\rceil$ cells a side make the piecewise constant error at most
    $\epsilon$; $f=\sum_i\alpha_ig_{R_i,\gamma}$ with $\alpha_i$ the value at the
    center of cell $R_i$, and the ramp

    $$
    \gamma=\tfrac12\Bigl[\bigl(\delta^d+\epsilon/\textstyle\sum_i|\alpha_i|\bigr)^{1/d}-\delta\Bigr]
    $$

    makes all the margins together weigh at most $\epsilon$. Only the mean is promised: near
    the walls of the cells the error can be as large as the values.

    Args:
        function: from `[n, d]` to `[n]`.
        dimension: $d$.
        lipschitz: $\rho$ in the maximum norm.
        error: $\epsilon$.
        shared: neighbors share the ReLUs of their walls: $N^d+d(3N+1)$ units, instead of
            $N^d(4d+1)$.

    >>> net = box_network(lambda x: x.sum(1), 2, lipschitz=2.0, error=0.25)
    >>> net.size.units, net.bound, net.norm
    (42, 0.5, 'mean')
    """
    whole_number(dimension, "dimension", least=1)
    positive_number(lipschitz, "lipschitz")
    positive_number(error, "error")
    cells = folklore_size(lipschitz, error, dimension).cells_a_side
    box: Box = ((0.0, 1.0),) * dimension
    heights = values_of(function, cell_centers(box, cells))
    side = 1 / cells
    weight = float(heights.abs().sum()) or 1.0  # a function that is 0 at every center: any ramp
    ramp = ((side**dimension + error / weight) ** (1 / dimension) - side) / 2
    if shared:
        network = _shared_walls(heights, dimension, cells, ramp)
    else:
        corners = cell_centers(box, cells) - side / 2
        parts = [box_indicator([(float(a), float(a) + side) for a in c], ramp) for c in corners]
        network = combine(heights, parts)
    return Approximant(network, 2 * error, box, "L-075", norm="mean")


def _shared_walls(heights: Tensor, d: int, cells: int, ramp: float) -> nn.Sequential:
    """All boxes of a grid at once: every wall has its kinks only once."""
    walls = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    # unit 3k + s - 1 of a coordinate bends at wall k, shifted by s in {-1, 0, 1} ramps;
    # nobody needs the first wall shifted right or the last shifted left
    kinks = (walls.unsqueeze(1) + ramp * torch.tensor([-1.0, 0.0, 1.0]).double()).flatten()
    needed = torch.ones(len(kinks), dtype=torch.bool)
    needed[2] = needed[-3] = False
    bumps = torch.zeros(cells, len(kinks), dtype=torch.float64)
    for k in range(cells):
        bumps[k, 3 * k] = bumps[k, 3 * (k + 1) + 2] = 1.0
        bumps[k, 3 * k + 1] = bumps[k, 3 * (k + 1) + 1] = -1.0
    kinks, bumps = kinks[needed], bumps[:, needed]
    n = len(kinks)
    first = block_diagonal(*[torch.full((n, 1), 1 / ramp, dtype=torch.float64)] * d)
    which = torch.cartesian_prod(*[torch.arange(cells)] * d).reshape(-1, d)
    second = torch.cat([bumps[which[:, j]] for j in range(d)], dim=1)
    return chain(
        [
            (first, (-kinks / ramp).repeat(d)),
            (second, torch.full((len(second),), 1.0 - d, dtype=torch.float64)),
            (heights.unsqueeze(0), heights.new_zeros(1)),
        ],
        [nn.ReLU(), nn.ReLU()],
    )


@dataclass(frozen=True, slots=True)
class FolkloreSize:
    r"""How large the box construction is for an error $\epsilon$.

    Attributes:
        cells_a_side: $N=\lceil\rho/2\epsilon\rceil$.
        boxes: $N^d$.
        units: $N^d(4d+1)$, every box with its own ReLUs.
        shared_units: $N^d+d(3N+1)$, walls shared.
    """

    cells_a_side: int
    boxes: int
    units: int
    shared_units: int


def folklore_size(lipschitz: float, error: float, dimension: int) -> FolkloreSize:
    r"""The size of `box_network` without building it: $(\rho/2\epsilon)^d$.

    >>> [folklore_size(1.0, 0.05, d).boxes for d in (1, 2, 3, 10)]
    [10, 100, 1000, 10000000000]
    """
    whole_number(dimension, "dimension", least=1)
    ratio = positive_number(lipschitz, "lipschitz") / (2 * positive_number(error, "error"))
    if not math.isfinite(ratio):
        raise InvalidInput(
            "the Lipschitz constant is too large next to the error to count cells (ratio = "
            f"{ratio!r})"
        )
    n = max(1, math.ceil(ratio))
    boxes = n**dimension
    return FolkloreSize(n, boxes, boxes * (4 * dimension + 1), boxes + dimension * (3 * n + 1))


def wall_distance(x: Tensor, box: Sequence[tuple[float, float]]) -> Tensor:
    r"""How far each point `[n, d]` lies outside a box in the maximum norm; 0 inside it.

    >>> wall_distance(torch.tensor([[0.5, 3.0]]), [(0.0, 1.0), (0.0, 1.0)]).tolist()
    [2.0]
    """
    low, high = torch.tensor(as_box(box), dtype=x.dtype).unbind(1)
    if x.ndim != 2 or x.shape[1] != len(low):
        raise ShapeMismatch(f"points of this box are [n, {len(low)}], not {list(x.shape)}")
    return torch.maximum(low - x, x - high).clamp(min=0).amax(1)
