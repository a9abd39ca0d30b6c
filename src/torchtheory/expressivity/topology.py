r"""Betti numbers of decision regions: components, holes, cavities.

A set of grid cells is a cubical complex: the closed cubes, with all their faces. Its Betti numbers
count components ($b_0$), holes through it ($b_1$) and closed cavities ($b_2$).
In up to three dimensions two counts and Euler's formula give all of them, exactly:

$$
\chi=\sum_k(-1)^k\#\{\text{faces of dimension }k\}=\sum_k(-1)^kb_k,
$$

$b_0$ by joining cells that touch, and in dimension $d$ the last one, $b_{d-1}$,
by Alexander duality: the components of the complement (cells joined through facets), one less.
Source: Mathematical Aspects of Deep Learning, section 3.7 (Bianchini and Scarselli).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

from torchtheory.core.checks import described, first_entry, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.models.model import evaluation_mode

Sides = tuple[tuple[float, float], ...]
_Array = np.ndarray[Any, Any]

#: Points evaluated together.
_CHUNK = 1 << 15

#: Cells of the largest grid: some gigabytes.
_MOST_CELLS = 10**8


@dataclass(frozen=True, slots=True)
class BettiNumbers:
    r"""The Betti numbers of a set of cells.

    Attributes:
        numbers: `(b_0,)`, `(b_0, b_1)` or `(b_0, b_1, b_2)`, as many as dimensions.
        euler: $\chi$, counted from the faces.
        cells: how many cells the set has.

    >>> betti_numbers(torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 1]]).bool())
    BettiNumbers(numbers=(1, 1), euler=0, cells=8)
    """

    numbers: tuple[int, ...]
    euler: int
    cells: int

    @property
    def total(self) -> int:
        """Their sum, the measure of complexity of the source."""
        return sum(self.numbers)


def betti_numbers(cells: Tensor) -> BettiNumbers:
    """The Betti numbers of the union of the closed cells where `cells` is true.

    Cells that share a corner are connected, so two diagonal pixels are one component.

    Args:
        cells: boolean, `[r]`, `[r, s]` or `[r, s, t]`.

    Time and memory: linear in the number of cells of the grid.

    >>> betti_numbers(torch.eye(2).bool()).numbers
    (1, 0)
    """
    if not isinstance(cells, Tensor) or cells.dtype is not torch.bool:
        raise InvalidType(
            "cells are a boolean tensor: compare the values with a level first (given: "
            f"{described(cells)})"
        )
    if cells.ndim not in (1, 2, 3) or 0 in cells.shape:
        raise ShapeMismatch(f"a grid has 1, 2 or 3 dimensions, not the shape {list(cells.shape)}")
    # one empty layer around: the outside is then one component of the complement
    mask: _Array = np.pad(cells.detach().cpu().numpy(), 1)
    d = mask.ndim
    touching = np.ones((3,) * d, dtype=bool)
    components = int(ndimage.label(mask, structure=touching)[1])
    euler = euler_characteristic(mask)
    if d == 1:
        numbers: tuple[int, ...] = (components,)
    else:
        enclosed = int(ndimage.label(~mask)[1]) - 1
        if d == 2:
            numbers = (components, enclosed)
        else:
            numbers = (components, components + enclosed - euler, enclosed)
    return BettiNumbers(numbers, euler, int(mask.sum()))


def euler_characteristic(cells: _Array) -> int:
    r"""$\sum_k(-1)^k$ times the number of faces of dimension $k$ of a set of cells.

    A face of the grid belongs to the complex if one of the cells around it does: for every choice
    of axes along which the face is flat, the neighbors along them are joined by *or*.

    >>> euler_characteristic(np.ones((2, 2), dtype=bool))        # 9 corners - 12 edges + 4 cells
    1
    """
    mask = np.pad(cells, 1)
    total = 0
    for flat in product((False, True), repeat=mask.ndim):
        faces = mask
        for axis, is_flat in enumerate(flat):
            if is_flat:
                ahead = [slice(None)] * mask.ndim
                behind = list(ahead)
                ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
                faces = faces[tuple(ahead)] | faces[tuple(behind)]
        total += (-1) ** (mask.ndim - sum(flat)) * int(faces.sum())
    return total


def region_betti_numbers(
    function: Callable[[Tensor], Tensor], box: Sides, resolution: int, *, level: float = 0.0
) -> BettiNumbers:
    r"""The Betti numbers of $\{x:f(x)\ge c\}$ in a box, on a grid.

    A cell belongs to the set if its center does. The numbers are exact for that set of cells, and
    those of the region itself once the resolution is finer than its smallest feature: double it
    and see whether they stay.

    Args:
        function: from `[n, d]` to `[n]` or `[n, 1]`; or a module, in evaluation mode and its
            own precision.
        box: one pair of ends a dimension, at most 3.
        resolution: cells along every side.
        level: $c$.

    >>> ring = lambda x: 0.3 - (x.norm(dim=1) - 0.6).abs()
    >>> region_betti_numbers(ring, ((-1.0, 1.0), (-1.0, 1.0)), 40).numbers
    (1, 1)
    """
    points = _centers(box, resolution)
    if isinstance(function, nn.Module):
        values = _scores(function, points)
    else:
        values = _values(function, points)
    if values.numel() != resolution ** len(box):
        raise ShapeMismatch(
            f"a region needs one value per point, {resolution ** len(box)} of them, not "
            f"{list(values.shape)}; see decision_betti_numbers"
        )
    return betti_numbers((values >= level).reshape([resolution] * len(box)))


def decision_betti_numbers(model: nn.Module, box: Sides, resolution: int) -> list[BettiNumbers]:
    """The Betti numbers of every class's region of a classifier, on a grid.

    Args:
        model: from `[n, d]` to scores `[n, classes]`; with one output, its sign decides
            between class 0 (negative) and class 1. Evaluation mode; it is not changed.
        box, resolution: as for `region_betti_numbers`.

    >>> sectors = nn.Linear(2, 3, bias=False)
    >>> angles = torch.tensor([0.2, 2.3, 4.4])
    >>> sectors.weight.data = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> regions = decision_betti_numbers(sectors, ((-1.0, 1.0), (-1.0, 1.0)), 30)
    >>> [region.numbers for region in regions]                    # convex: one piece, no hole
    [(1, 0), (1, 0), (1, 0)]
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"a classifier is a torch.nn.Module, not {type(model).__name__}")
    points = _centers(box, resolution)
    scores = _scores(model, points).reshape(len(points), -1)
    if scores.shape[1] == 1:
        scores = torch.cat([-scores, scores], dim=1)
    chosen = scores.argmax(1).reshape([resolution] * len(box))
    return [betti_numbers(chosen == c) for c in range(scores.shape[1])]


def most_intervals(width: int) -> int:
    r"""The most intervals that $\{f\ge0\}$ has on a line for one hidden layer of ReLUs.

    $k$ intervals need a kink in each of the $k-1$ gaps and in each of the
    $k-2$ inner intervals: $k\le\lfloor(n+3)/2\rfloor$. A single unit is flat on one
    side and has one interval at most.

    >>> [most_intervals(n) for n in (0, 1, 2, 3, 4, 5)]
    [1, 1, 2, 3, 3, 4]
    """
    whole_number(width, "width", least=0)
    return (width + 3) // 2 if width > 1 else 1


def _centers(box: Sides, resolution: int) -> Tensor:
    """The centers of `resolution ** d` equal cells of a box, `[resolution ** d, d]`."""
    whole_number(resolution, "resolution", least=1)
    ends = torch.tensor(box, dtype=torch.float64)
    if ends.ndim != 2 or ends.shape[1] != 2 or len(ends) not in (1, 2, 3):
        raise InvalidInput(f"a box has 1, 2 or 3 sides, each a pair of ends, and {box} has not")
    if resolution ** len(ends) > _MOST_CELLS:
        raise InvalidInput(
            f"the grid would have {resolution ** len(ends):,} cells, more than {_MOST_CELLS:,}; "
            "take a smaller resolution"
        )
    if not bool((ends.isfinite().all(1) & (ends[:, 0] < ends[:, 1])).all()):
        raise InvalidInput(f"every side of a box has two finite ends, the first smaller, not {box}")
    shares = (torch.arange(resolution, dtype=torch.float64) + 0.5) / resolution
    axes = [low + (high - low) * shares for low, high in ends]
    return torch.cartesian_prod(*axes).reshape(-1, len(ends))


def _scores(model: nn.Module, points: Tensor) -> Tensor:
    like = next(model.parameters(), points)
    with evaluation_mode(model):
        try:
            return _values(lambda x: model(x.to(like)), points).cpu()
        except RuntimeError as error:
            sentence = str(error).partition("\n")[0]
            raise ShapeMismatch(
                f"the model does not run on points of {points.shape[1]} features: {sentence}"
            ) from error


def _values(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        made = torch.cat([function(part) for part in torch.split(x, _CHUNK)])
    if len(made) != len(x):
        raise ShapeMismatch(f"one row of values a point is needed, {len(x)}, not {len(made)}")
    if not bool(torch.isfinite(made).all()):
        raise NonFinite(
            "the function is not finite everywhere on the grid: "
            f"{first_entry(made, 'the value', ~torch.isfinite(made))}"
        )
    return made
