"""Which action on the outputs goes with one on the inputs: read off the shapes, and said."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torchtheory.core.checks import described, one_of, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.equivariance.actions import Grid, GridGroup, Group
from torchtheory.equivariance.layouts import Layout, Moved, input_layout

#: What can be asked for by name.
CHOICES = ("auto", "equivariant", "invariant", "orientations")


def output_layout(
    group: Group,
    inputs: Sequence[int],
    outputs: Sequence[int],
    wanted: str = "auto",
    stride: int | None = None,
) -> tuple[Layout, str]:
    """The action on outputs of this shape, and a sentence on what was assumed.

    Args:
        group: moves the inputs.
        inputs, outputs: shapes `[n, ...]`.
        wanted: `auto` takes outputs without the input's positions for invariant, and others for
            equivariant; `orientations` is the regular representation of quarter turns (and flips),
            an axis of 4 (or 8) orientations before the grid, which turns permute.
        stride: steps of the input's grid that are one step of the output's; the quotient of the
            sizes unless given.
    """
    one_of(wanted, "on_output", CHOICES)
    before = input_layout(group, inputs)
    if wanted == "invariant":
        return (), "The outputs are to stay as they are (invariance)."
    if wanted == "orientations":
        return _oriented(group, before, outputs, stride)
    axes = _axes(group, before, inputs, outputs)
    if axes is None:
        if wanted == "equivariant":
            raise ShapeMismatch(
                f"outputs of shape {list(outputs)} have no positions that go with those of inputs "
                f"of shape {list(inputs)}: take on_output='invariant', or give Actions"
            )
        return (), "The outputs have no positions, so they are to stay as they are (invariance)."
    if not isinstance(group, GridGroup):
        moved = tuple(Moved((a,), m.grid) for a, m in zip(axes, before, strict=False))
        return moved, "The outputs are to be permuted as the inputs are."
    grid = _output_grid(before[0].grid, [outputs[a] for a in axes], stride)
    if all(s == 1 for s in grid.sizes):
        return (), "The outputs have a single position, so they are to stay as they are."
    return (Moved(axes, grid),), f"The outputs are to move as the inputs do{_coarser(grid)}."


def _oriented(
    group: Group, before: Layout, outputs: Sequence[int], stride: int | None
) -> tuple[Layout, str]:
    """Outputs `[..., orientations, height, width]`."""
    count = group.orientations if isinstance(group, GridGroup) else 0
    if count == 0 or len(outputs) < 4 or outputs[-3] != count:
        raise ShapeMismatch(
            f"outputs of shape {list(outputs)} have no axis of orientations before the grid: it "
            f"has 4 entries for p4 and 8 for p4m, and the group is {group!r}"
        )
    axes = (len(outputs) - 2, len(outputs) - 1)
    grid = _output_grid(before[0].grid, [outputs[a] for a in axes], stride)
    turned = Moved((axes[0] - 1,), Grid((count,), ()))
    said = f"The outputs are to move as the inputs do{_coarser(grid)}, with their orientations."
    return (turned, Moved(axes, grid)), said


def _output_grid(fine: Grid, sizes: Sequence[int], stride: int | None) -> Grid:
    strides = _strides(fine.sizes, sizes, stride)
    if strides is None:
        raise ShapeMismatch(
            f"the outputs have a grid of {Grid.fine(sizes)}, which is no whole part of the "
            f"inputs' {fine}: say how many input pixels one step of it is (stride=), or take "
            "on_output='invariant'"
        )
    return Grid(tuple(sizes), strides)


def _coarser(grid: Grid) -> str:
    if all(s == 1 for s in grid.strides):
        return ""
    if all(s <= 1 for s in grid.strides):
        return f", on a grid that is {' × '.join(str(1 / s) for s in grid.strides)} times finer"
    return f", on a grid that is {' × '.join(map(str, grid.strides))} times coarser"


def _axes(
    group: Group, before: Layout, inputs: Sequence[int], outputs: Sequence[int]
) -> tuple[int, ...] | None:
    """Axes of the outputs that hold the input's positions."""
    if not isinstance(group, GridGroup):
        kept = tuple(
            m.axes[0]
            for m in before
            if m.axes[0] < len(outputs) and outputs[m.axes[0]] == m.grid.sizes[0]
        )
        return kept or None
    own, sizes = before[0].axes, before[0].grid.sizes
    after = tuple(outputs[1 : 1 + len(sizes)])
    if len(outputs) == len(inputs):
        # [n, height, width, classes] against [n, channels, height, width]
        if after == sizes and tuple(outputs[a] for a in own) != sizes:
            return tuple(range(1, 1 + len(sizes)))
        return own
    if len(outputs) == 1 + len(sizes) and after == sizes:
        return tuple(range(1, 1 + len(sizes)))
    return None


def _strides(
    fine: Sequence[int], sizes: Sequence[int], stride: int | None
) -> tuple[Fraction, ...] | None:
    if stride is not None:
        return (Fraction(whole_number(stride, "stride", least=1)),) * len(sizes)
    found = tuple(Fraction(a, b) if b else Fraction(0) for a, b in zip(fine, sizes, strict=True))
    whole = all(f.denominator == 1 or f.numerator == 1 for f in found)
    return found if whole and all(f > 0 for f in found) else None


def refuse_unknown_output(value: object) -> str:
    """A name of an action on outputs."""
    if not isinstance(value, str):
        raise InvalidInput(
            f"on_output must be one of {', '.join(CHOICES)}, not {described(value)}; give Actions "
            "for a pair of actions of your own"
        )
    return value
