r"""How many linear regions a network has: on a segment, a polyline, a plane, or in a box.

An *activation region* is a maximal set on which every unit keeps its state; a *linear region* is a
maximal connected set on which the network is one affine map. Neighboring activation regions can
carry the same map, so there are at most as many linear regions.
Sources: Mathematical Aspects of Deep Learning, sections 1.3.3 and 3.7 (footnote 19); Deep Learning
(notes), section 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType
from torchtheory.expressivity.arrangement import PlaneSlice, plane_arrangement
from torchtheory.expressivity.bends import BendingNetwork, Model, exact_function, sample_shape
from torchtheory.expressivity.cells import ROUNDING
from torchtheory.expressivity.enumeration import enumerate_regions
from torchtheory.expressivity.pieces import pieces_along

Count = Literal["affine", "patterns"]


@dataclass(frozen=True)
class Polyline:
    """A path through input space with straight parts; two corners make a segment.

    Attributes:
        corners: samples in the shape the model takes, or numbers for a model of one feature.
    """

    corners: Sequence[Tensor | float]


@dataclass(frozen=True)
class Box:
    """A box in the input space of a model with few features."""

    low: Tensor
    high: Tensor


def count_regions(model: Model, where: Polyline | PlaneSlice | Box, count: Count = "affine") -> int:
    """The number of regions of a piecewise linear network, exactly.

    Args:
        where: a `Polyline` or a `PlaneSlice`
            (any network), or a `Box` (`count="patterns"`; small networks).
        count: `affine` for linear regions, `patterns` for activation regions.

    >>> from torch import nn
    >>> from torchtheory.nets.feedforward import dense
    >>> lines = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> net = nn.Sequential(dense(lines, torch.tensor([0.0, 0.0, -0.5])), nn.ReLU())
    >>> count_regions(net, PlaneSlice.of_the_plane())
    7
    >>> count_regions(net, Polyline([torch.tensor([-1.0, 0.25]), torch.tensor([1.0, 0.25])]))
    3
    >>> count_regions(net, Box(-torch.ones(2), torch.ones(2)), "patterns")
    7
    """
    if count not in ("affine", "patterns"):
        raise InvalidInput(f"count must be 'affine' or 'patterns', not {count!r}")
    if isinstance(where, Polyline):
        pieces = pieces_along(model, where.corners)
        return pieces.count if count == "affine" else pieces.patterns
    if isinstance(where, PlaneSlice):
        found = plane_arrangement(model, where)
        return found.count if count == "affine" else found.patterns
    if isinstance(where, Box):
        if count == "affine":
            raise InvalidInput(
                "in a box activation regions are listed, without their neighbors: say "
                "count='patterns', or count linear regions on a plane"
            )
        return len(enumerate_regions(model, where.low, where.high))
    raise InvalidType(
        f"where must be a Polyline, a PlaneSlice or a Box, not {type(where).__name__}"
    )


class _States:
    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def kink(self, forms: Tensor, gap: Tensor | None = None) -> None:
        zero = ROUNDING * forms.abs().amax(1, keepdim=True)
        self.states.append((forms > zero).long())

    def choice(self, values: Tensor) -> None:
        self.states.append(values.argmax(2))


def activation_pattern(model: Model, x: Tensor) -> list[Tensor]:
    r"""The state of every unit at `x[n, ...]`, one tensor `[n, units]` an operation.

    1 where a unit is above its kink and 0 where it is not; for a maximum, who wins.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
    >>> net[0].weight.data = torch.tensor([[1.0], [-1.0]])
    >>> activation_pattern(net, torch.tensor([[-2.0], [0.0], [2.0]]))
    [tensor([[0, 1], [0, 0], [1, 0]])]
    """
    if not isinstance(x, Tensor) or x.ndim == 0:
        raise InvalidType(f"x must be a tensor of points, [n, ...], not {described(x)}")
    if len(x) == 0:
        raise EmptyData(
            f"there is no point whose pattern could be asked for (the shape is {list(x.shape)})"
        )
    function = exact_function(model)
    points = torch.stack(sample_shape(function, *x))
    states = _States()
    BendingNetwork(function, points).watch(points, states)
    return states.states
