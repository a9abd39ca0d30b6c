r"""Hat functions of a regular mesh in one and two dimensions, as two layers of ReLUs.

On the mesh of squares cut along their rising diagonals, the hat at the origin is
$\rho(1-g(x))$ with the gauge $g(x)=\tfrac12(|x_1|+|x_2|+|x_1-x_2|)$, the largest of the
three numbers; on the line $g(x)=|x|$. So a node costs one unit of the second layer, and the
first layer holds one unit a mesh line. Source: The Modern Mathematics of Deep Learning, sections
1.4.1 and 3.5 (piecewise linear dictionaries are met exactly).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, Box, as_box
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput

Layer = tuple[Tensor, Tensor]


def hat_layers(cells: int, box: Box) -> tuple[Layer, Layer, Tensor]:
    r"""Two affine layers whose ReLUs are all hats of a mesh with `cells` cells a side.

    With $|t|=2\rho(t)-t$, and $t$ affine in coordinates that the first layer passes on
    (they are not negative once the box's corner is subtracted), the first layer needs one unit a
    mesh line: $(2d-1)n$ up to constants.

    Returns:
        the first layer, the second layer (one row a node), and the nodes `[(cells + 1) ** d, d]`.
        The first `d` units of the first layer are the coordinates, counted from the corner.

    >>> first, second, nodes = hat_layers(2, ((0.0, 1.0),))
    >>> hidden = torch.relu(torch.tensor([[0.25]]).double() @ first[0].T + first[1])
    >>> torch.relu(hidden @ second[0].T + second[1]).tolist(), nodes.flatten().tolist()
    ([[0.5, 0.5, 0.0]], [0.0, 0.5, 1.0])
    """
    whole_number(cells, "cells", least=1)
    d = len(box)
    if d not in (1, 2):
        raise InvalidInput(f"the gauge of a hat is written down for 1 or 2 dimensions, not {d}")
    low = torch.tensor([a for a, _ in box], dtype=torch.float64)
    step = torch.tensor([(b - a) / cells for a, b in box], dtype=torch.float64)
    directions = torch.eye(d, dtype=torch.float64) / step.unsqueeze(1)
    if d == 2:
        directions = torch.cat([directions, (directions[0] - directions[1]).unsqueeze(0)])
    # the lines of a family, in units of cells: 0..n for the coordinates, -n..n for the diagonals
    starts = [0] * d + [-cells] * (d - 1)
    ends = [cells] * d + [cells] * (d - 1)
    family, level = [], []
    for k in range(d):
        family.append(k)
        level.append(0)
    for k, (a, b) in enumerate(zip(starts, ends, strict=True)):
        # lines at the far end are never crossed, and those of level 0 are the coordinates
        inner = range(a + 1, b) if k >= d else range(1, b)
        family += [k] * len(inner)
        level += list(inner)
    which = torch.tensor(family)
    height = torch.tensor(level, dtype=torch.float64)
    first = directions[which]
    bias = -(directions @ low)[which] - height
    place = {pair: i for i, pair in enumerate(zip(family, level, strict=True))}
    share = 1.0 if d == 1 else 0.5
    index = torch.cartesian_prod(*[torch.arange(cells + 1)] * d).reshape(-1, d)
    second = torch.zeros(len(index), len(family), dtype=torch.float64)
    offset = torch.ones(len(index), dtype=torch.float64)
    for row, at in enumerate(index.tolist()):
        offsets = [*at] if d == 1 else [*at, at[0] - at[1]]
        for k, node in enumerate(offsets):
            # |t| = 2 ρ(t) - t; beyond the last line the sign of t is known
            sign, unit = -1.0, place.get((k, node))
            if node == starts[k]:
                sign, unit = 1.0, None
            elif unit is not None:
                second[row, unit] -= 2 * share
            for j, c in enumerate([1.0] if d == 1 else [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]][k]):
                second[row, j] -= share * sign * float(c)
            offset[row] += share * sign * node
    nodes = low + index.double() * step
    return (first, bias), (second, offset), nodes


def hat_interpolant(
    function: Function,
    cells: int,
    domain: Box | tuple[float, float] = (0.0, 1.0),
    *,
    curvature: float,
) -> Approximant:
    r"""The piecewise linear interpolant on a regular mesh, within $\frac M8\sum_jh_j^2$.

    Every triangle lies in a ball of radius half its longest side, and linear interpolation errs
    by at most $MR^2/2$ where the Hessian's norm is at most $M$.

    Args:
        function: from `[n, d]` to `[n]` or `[n, 1]`, $d\le2$.
        cells: mesh cells a side.
        curvature: $M$.

    >>> bowl = hat_interpolant(lambda x: (x**2).sum(1), 2, ((0.0, 1.0), (0.0, 1.0)), curvature=2.0)
    >>> bowl(torch.tensor([[0.5, 0.5], [0.25, 0.25]]).double()).tolist(), bowl.bound
    ([0.5, 0.25], 0.125)
    """
    box = as_box(domain)
    positive_number(curvature, "curvature")
    first, second, nodes = hat_layers(cells, box)
    values = values_of(function, nodes).unsqueeze(0)
    network = chain([first, second, (values, values.new_zeros(1))], [nn.ReLU(), nn.ReLU()])
    bound = curvature / 8 * math.fsum(((b - a) / cells) ** 2 for a, b in box)
    return Approximant(network, bound, box, "X-47")
