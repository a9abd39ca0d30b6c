"""Why a layer breaks equivariance, as its settings and the place of the defect tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchtheory.equivariance.actions import Element, GridGroup, Group
from torchtheory.equivariance.layouts import Layout, Moved
from torchtheory.equivariance.rules import JOINS, REARRANGEMENTS, Settings, window_kind

_SUMS = {"add", "sub", "rsub"}
_FACTORS = {"mul", "div"}

#: Share of the squared defect that lies at the border where a border is its reason.
_MOST = 0.99


def reason_for(
    group: Group,
    element: Element,
    name: str,
    settings: Settings,
    tensors: Sequence[Tensor],
    out: Tensor,
    before: Sequence[Moved],
    layout: Layout,
    difference: Tensor | None,
) -> str:
    """What a layer does that breaks equivariance, to follow its name in a sentence.

    Args:
        group, element: under which it breaks.
        name, settings, tensors: the operation, its layer's settings, and what it reads.
        out, before, layout: what it returns, and the actions on what it reads and returns.
        difference: between what it returns for moved inputs and what it should; None where the
            element has no counterpart on the outputs.
    """
    kind = window_kind(name)
    if difference is None:
        return _lost(group, element, name, out, before, layout)
    turned = isinstance(group, GridGroup) and (element[0] or element[1])
    if kind == "conv" and turned:
        return "has kernels without this symmetry"
    if kind and not turned and before and layout:
        said = _grids(kind, settings, before[0], layout[0], difference)
        if said:
            return said
    if name in ("linear", "bilinear"):
        return "has weights of its own for every position"
    if name in _SUMS | _FACTORS and len(tensors) > 1:
        verb = "adds" if name in _SUMS else "multiplies by"
        return f"{verb} numbers that belong to fixed positions (a position encoding, say)"
    if name == "recurrent":
        return "reads the positions one after the other"
    if name in JOINS:
        return "joins numbers that belong to fixed positions (coordinates, say)"
    if name in REARRANGEMENTS:
        return "takes fixed positions"
    if name == "setitem":
        return "writes to fixed positions"
    if settings.weighted:
        return "has weights that belong to fixed positions"
    return "does not treat all positions alike"


def _lost(
    group: Group, element: Element, name: str, out: Tensor, before: Sequence[Moved], layout: Layout
) -> str:
    if name in REARRANGEMENTS:
        for moved in layout:
            part = moved.subgrid([out.shape[a] for a in moved.axes])
            if part is not None and max(part.strides) > max(moved.grid.strides):
                step = max(a / b for a, b in zip(part.strides, moved.grid.strides, strict=True))
                return f"keeps one position in {step}, which no {group.label(element)} fits"
        return "takes fixed positions"
    for moved in layout:
        if moved.grid.strides and not group.acts(element, moved.grid):
            first = next((m for m in before if m.grid.strides), moved)
            steps = {a / b for a, b in zip(moved.grid.strides, first.grid.strides, strict=False)}
            step = max(steps)
            return f"has stride {step}, which does not divide a {group.label(element)}"
    return "returns a grid that the group does not act on"


def _grids(kind: str, settings: Settings, before: Moved, after: Moved, difference: Tensor) -> str:
    """Of convolutions, poolings and paddings."""
    border = at_border(difference, after)
    if kind == "pad":
        return "pads the border" + (" with zeros" if border else "")
    steps = [b / a for a, b in zip(before.grid.strides, after.grid.strides, strict=True)]
    divides = all(
        (size / step).denominator == 1 for size, step in zip(before.grid.sizes, steps, strict=True)
    )
    if kind != "transposed" and not divides:
        return f"has stride {max(steps)}, which does not divide the grid of {before.grid}"
    smaller = any(
        b < math.ceil(a / s)
        for a, b, s in zip(before.grid.sizes, after.grid.sizes, steps, strict=True)
    )
    if smaller and kind in ("conv", "pool"):
        return "drops the border: it has no padding"
    if kind in ("conv", "pool", "transposed"):
        mode = settings.padding_mode
        how = "with zeros" if mode == "zeros" and kind == "conv" else f"({mode})"
        how = "" if kind == "pool" else f" {how}"
        if border or _padding(settings.padding):
            return f"pads the border{how}"
    return ""


def _padding(given: Any) -> bool:
    if isinstance(given, str):
        return given == "same"
    return bool(any(given) if isinstance(given, tuple | list) else given)


def at_border(difference: Tensor, moved: Moved) -> bool:
    """Whether a defect lies in the outer quarter of the grid alone, on all sides."""
    squares = difference.detach().double().square()
    total = float(squares.sum())
    if total == 0:
        return False
    inner = squares
    for axis, size in zip(moved.axes, moved.grid.sizes, strict=True):
        width = max(1, size // 4)
        if size <= 2 * width:
            return True
        inner = inner.narrow(axis, width, size - 2 * width)
    return float(inner.sum()) <= (1 - _MOST) * total
