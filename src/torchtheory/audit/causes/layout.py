"""Which dimension of the inputs holds channels or features, and which hold places."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from torchtheory.models.problem import Problem

#: Colors and their like, of which there are few where they come last.
COLORS = (1, 3, 4)

#: Smallest side of an image that may stand in a flat row.
SIDE = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """Dimensions of inputs `[n, ...]`, after `shape` was given to each sample.

    Attributes:
        shape: of a sample, `()` for the shape it has.
        channel: dimension of the channels, None where there are none.
        places: dimensions along which neighbors are alike: of images two, of sequences one.
        flat: whether the samples are rows, and the shape is a guess.
    """

    shape: tuple[int, ...]
    channel: int | None
    places: tuple[int, ...]
    flat: bool = False


def layouts(problem: Problem) -> list[Layout]:
    """How inputs may be meant: one way for images and sequences, and guesses for square rows.

    A flat row of $s^2$ or $3s^2$ numbers may be an image.
    """
    shape = tuple(problem.train.x.shape[1:])
    if len(shape) == 3:
        last = shape[-1] in COLORS and shape[0] not in COLORS
        return [Layout(shape, 3, (1, 2)) if last else Layout(shape, 1, (2, 3))]
    if len(shape) == 2:
        first = _first_layer(problem.model)
        if isinstance(first, nn.Conv2d):
            return [Layout(shape, None, (1, 2))]
        return [Layout(shape, 1, (2,)) if isinstance(first, nn.Conv1d) else Layout(shape, 2, (1,))]
    if len(shape) != 1:
        return []
    found = []
    for channels in (1, 3):
        side = math.isqrt(shape[0] // channels)
        if side >= SIDE and channels * side**2 == shape[0]:
            found.append(Layout((channels, side, side), 1, (2, 3), flat=True))
    return found


def _first_layer(model: nn.Module) -> nn.Module | None:
    """The first layer with a matrix, in the order in which layers were made."""
    for module in model.modules():
        if any(p.ndim > 1 for p in module.parameters(recurse=False)):
            return module
    return None
