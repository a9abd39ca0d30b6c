r"""All activation regions of a small network in its input space, by linear programming.

A region is a set of affine inequalities. While an operation bends inside it (a linear program
finds a point of the other sign), it is cut in two. Every region is met once and comes with an
interior point, the center of its largest ball. For a few inputs and some dozen units; on a segment
or a plane `pieces` and
`arrangement` are faster by orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from torchtheory.core.budget import check_time
from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, NotConverged, ShapeMismatch, UnsupportedModel
from torchtheory.expressivity.bends import BendingNetwork, Model
from torchtheory.expressivity.cells import Batches, pattern_hashes

_Array = np.ndarray[Any, Any]
#: A ball smaller than this (in a box of size 1) is no interior: what the solver can tell from 0.
_SMALLEST = 1e-8


@dataclass(frozen=True)
class RegionList:
    """Activation regions, each with a point inside and the network's affine map there.

    Attributes:
        points: `[regions, d]`, centers of the largest balls.
        radii: `[regions]`, of these balls.
        values: `[regions, ...]`, the network there.
    """

    points: Tensor
    radii: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.points)


class _Forms:
    """All forms whose signs are the pattern, operation by operation: `[points, forms]`."""

    def __init__(self) -> None:
        self.operations: list[Tensor] = []
        self.choices: set[int] = set()
        self.gaps: dict[int, Tensor] = {}

    def kink(self, forms: Tensor, gap: Tensor | None = None) -> None:
        if gap is not None:
            self.gaps[len(self.operations)] = gap.clone()
        self.operations.append(forms.clone())

    def choice(self, values: Tensor) -> None:
        """The winner at the first point against every other entry."""
        winner = values[:1].argmax(2, keepdim=True).expand(len(values), -1, -1)
        lead = values.gather(2, winner) - values
        self.choices.add(len(self.operations))
        others = torch.ones_like(lead[0], dtype=torch.bool).scatter(1, winner[0], False)
        self.operations.append(lead[:, others])


def enumerate_regions(
    model: Model, low: Tensor | float, high: Tensor | float, *, most: int = 5000
) -> RegionList:
    r"""The activation regions that meet the box $\prod_i[low_i,high_i]$ in their interior.

    Time: about one linear program for each region and unit.

    Args:
        low: `[d]`, the box's smallest corner.
        high: its largest corner.
        most: refuse to list more regions than that.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> net[0].weight.data, net[0].bias.data = torch.eye(2), torch.zeros(2)
    >>> ones = torch.ones(2)
    >>> len(enumerate_regions(net, -ones, ones))
    4
    """
    box = [torch.as_tensor(v, dtype=torch.float64).reshape(-1) for v in (low, high)]
    if box[0].shape != box[1].shape:
        raise ShapeMismatch(f"low has {len(box[0])} coordinates and high {len(box[1])}")
    if not all(bool(side.isfinite().all()) for side in box):
        raise InvalidInput(
            "the box must be finite: regions that reach further are met where they are ("
            f"{described([side.tolist() for side in box])})"
        )
    if not bool((box[0] < box[1]).all()):
        raise InvalidInput(
            f"low must be below high in every coordinate, not {described(box[0].tolist())} and "
            f"{described(box[1].tolist())}"
        )
    a, b = box[0].numpy(), box[1].numpy()
    network = BendingNetwork(model, torch.stack(box))
    d, size = len(a), float((b - a).max())
    inequalities = np.hstack([np.vstack([np.eye(d), -np.eye(d)]), np.append(b, -a)[:, None]])
    waiting: list[tuple[_Array, frozenset[tuple[int, int]]]] = [(inequalities, frozenset())]
    points, radii, values = [], [], []
    while waiting:
        check_time()
        rows, settled = waiting.pop()
        center, radius = _largest_ball(rows)
        if radius <= _SMALLEST * size:
            continue
        cut = _first_cut(network, rows, center, radius, settled, _SMALLEST * size)
        if isinstance(cut, Tensor):
            points.append(torch.as_tensor(center))
            radii.append(radius)
            values.append(cut)
            if len(points) > most:
                raise InvalidInput(
                    f"there are more than {most:,} regions; take a smaller box, or raise most="
                )
            continue
        form, known = cut
        waiting += [(np.vstack([rows, sign * form]), known) for sign in (1.0, -1.0)]
    found = RegionList(torch.stack(points), torch.tensor(radii).double(), torch.stack(values))
    # where three entries of a maximum meet, a line between two of them may cut the third's part
    hashes = pattern_hashes(network, lambda x: x, found.points, Batches())
    _, number = hashes.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    once = torch.full((int(number.max()) + 1,), len(found))
    once.scatter_reduce_(0, number, torch.arange(len(found)), "amin")
    once = once.sort().values
    return RegionList(found.points[once], found.radii[once], found.values[once])


def _first_cut(
    network: BendingNetwork,
    rows: _Array,
    center: _Array,
    radius: float,
    settled: frozenset[tuple[int, int]],
    smallest: float,
) -> Tensor | tuple[_Array, frozenset[tuple[int, int]]]:
    """The next form (as an inequality) that changes sign inside, or the output if none does."""
    d = len(center)
    step = 0.5 * radius
    x = torch.as_tensor(np.vstack([center, center + step * np.eye(d)]))
    visitor = _Forms()
    y = network.watch(x, visitor)
    known = set(settled)
    for number, forms in enumerate(visitor.operations):
        at = forms.numpy()
        slopes = (at[1:] - at[0]).T / step
        offsets = at[0] - slopes @ center
        for unit in range(at.shape[1]):
            if (number, unit) in known:
                continue
            slope, norm = slopes[unit], float(np.linalg.norm(slopes[unit]))
            if number not in visitor.choices:  # their forms depend on who wins at the center
                known.add((number, unit))
            if norm <= 1e-12 * max(1.0, float(np.abs(at).max())):
                continue
            sign = 1.0 if at[0, unit] > 0 else -1.0
            # the furthest point on the other side, in units of length
            best = _minimize(sign * slope / norm, rows) + sign * offsets[unit] / norm
            form = np.append(slope, -offsets[unit]) / norm
            if number in visitor.gaps and (best < -smallest or _is_facet(form, rows[2 * d :])):
                _refuse_jump(visitor.gaps[number][:, unit].numpy(), at[:, unit])
            if best < -smallest:
                return form, frozenset(known)
    return y[0]


def _is_facet(form: _Array, rows: _Array) -> bool:
    return any(np.allclose(sign * form, row, atol=1e-9) for row in rows for sign in (1, -1))


def _refuse_jump(gap: _Array, form: _Array) -> None:
    """A gap that is 0 wherever the form is 0 is a multiple of it."""
    steps, bends = gap[1:] - gap[0], form[1:] - form[0]
    off = np.abs(bends * gap[0] - steps * form[0]).max()
    if off > 1e-9 * np.abs(bends).max() * np.abs(gap).max():
        raise UnsupportedModel(
            "the network jumps where one of its conditions changes, so it is not continuous"
        )


def _minimize(objective: _Array, rows: _Array) -> float:
    found = linprog(objective, rows[:, :-1], rows[:, -1], bounds=(None, None), method="highs")
    if not found.success:
        raise NotConverged(f"a linear program of a region failed: {found.message}")
    return float(found.fun)


def _largest_ball(rows: _Array) -> tuple[_Array, float]:
    """Center and radius of the largest ball in `{x : A x <= b}`."""
    lengths = np.linalg.norm(rows[:, :-1], axis=1, keepdims=True)
    objective = np.zeros(rows.shape[1])
    objective[-1] = -1.0
    found = linprog(
        objective,
        np.hstack([rows[:, :-1], lengths]),
        rows[:, -1],
        bounds=[(None, None)] * (rows.shape[1] - 1) + [(0, None)],
        method="highs",
    )
    if not found.success:
        return np.zeros(rows.shape[1] - 1), 0.0
    return found.x[:-1], float(found.x[-1])
