r"""Stages of a chain that have parameters: dense layers and convolutions.

A convolution is a dense layer of its patches, and computed as such unless these are much larger
than the image: with channels last, patches and outputs are rows of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from torchtheory.optimization.curvature.convolution_derivatives import (
    Setting,
    adjoint,
    channels_last,
    convolved,
)
from torchtheory.optimization.curvature.stages import Kept, Move, Stage, Trail, Workspace


@dataclass(frozen=True, slots=True)
class Own:
    """The parameters of a layer.

    Attributes:
        weight: the name of its weight, and its value.
        bias: likewise, if it has one.
        first: whether nothing moves before the layer.
    """

    weight: tuple[str, Tensor]
    bias: tuple[str, Tensor] | None
    first: bool


class Weighted(Stage):
    """A layer with a weight, linear in it and in its input, and a bias or none.

    Args:
        own: its parameters.
    """

    def __init__(self, own: Own) -> None:
        self.weight, self.filtering = own.weight[0], self.filters(own.weight[1])
        self.bias = own.bias
        self.first = own.first

    def filters(self, weight: Tensor) -> Tensor:
        """A weight, or a direction of it, in the form that the layer works with."""
        return weight

    def nothing(self) -> Tensor:
        """A sum of no derivatives in the weight."""
        return torch.zeros_like(self.filtering)

    def weight_of(self, total: Tensor, shape: torch.Size) -> Tensor:
        """A sum of derivatives in the shape of the weight."""
        return total.reshape(shape)


class Affine(Weighted):
    """A dense layer: its weight is a matrix `[outputs, inputs]`."""

    def add(self, total: Tensor, outer: Tensor, rows: Tensor) -> None:
        """Add derivatives in the weight."""
        total.addmm_(outer.t(), rows)

    def rows(self, x: Tensor, workspace: Workspace, use: str) -> Tensor:
        """Inputs as rows that the matrix acts on."""
        return x.reshape(-1, x.shape[-1])

    def gathered(self, rows: Tensor, x: Tensor, workspace: Workspace) -> Tensor:
        """The adjoint of `rows`, in the shape of `x`."""
        return rows.view(x.shape)

    def shaped(self, rows: Tensor, x: Tensor) -> Tensor:
        """Rows of outputs in the shape that the layer gives them."""
        return rows.view(*x.shape[:-1], -1)

    def flat(self, outer: Tensor) -> Tensor:
        """What has the shape of the output, in rows again."""
        return outer.reshape(-1, outer.shape[-1])

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        rows = self.rows(x, Workspace(x), "still")
        y = rows @ self.filtering.t()
        y = self.shaped(y if self.bias is None else y.add_(self.bias[1]), x)
        return y, Kept(x, rows=rows if self.first else None)

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        kept.outer = self.flat(outer)
        return self.gathered(kept.outer @ self.filtering, kept.x, Workspace(kept.x))

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        space, V = move.workspace, move.directions[self.weight]
        rows = self._still(kept, space)
        y = space.room(self, "output", (rows.shape[0], V.shape[0]))
        if self.bias is None:
            torch.mm(rows, V.t(), out=y)
        else:
            torch.addmm(move.directions[self.bias[0]], rows, V.t(), out=y)
        moved = None if moving is None else self.rows(moving, space, "moving")
        if moved is not None:
            y.addmm_(moved, self.filtering.t())
        return self.shaped(y, kept.x), (rows, moved)

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        rows, moved = trail
        assert rows is not None
        outer = self.flat(outer)
        if self.bias is not None:
            move.sums[self.bias[0]] += outer.sum(0)
        total = move.sums[self.weight]
        self.add(total, outer, rows)
        if kept.outer is not None and moved is not None:
            self.add(total, kept.outer, moved)
        if self.first:
            return None
        inner = move.workspace.room(self, "inner", rows.shape)
        torch.mm(outer, self.filtering, out=inner)
        if kept.outer is not None:
            inner.addmm_(kept.outer, move.directions[self.weight])
        return self.gathered(inner, kept.x, move.workspace)

    def _still(self, kept: Kept, workspace: Workspace) -> Tensor:
        """The rows of the input, which are the same in all directions."""
        if kept.rows is not None:
            return kept.rows
        last = workspace.rows.get(self)
        if last is None or last[0] is not kept:
            workspace.rows.pop(self, None)  # overwritten from here on, also if this is interrupted
            last = workspace.rows[self] = kept, self.rows(kept.x, workspace, "still")
        return last[1]


class DenseOfImages(Affine):
    """A dense layer of images that are laid out in rows, channel by channel.

    Their channels stay last, and the columns of the matrix are put in that order instead.

    Args:
        own: its parameters.
        image: channels, height and width.
    """

    def __init__(self, own: Own, image: Sequence[int]) -> None:
        self.image = tuple(image)
        super().__init__(own)

    def filters(self, weight: Tensor) -> Tensor:
        return weight.view(-1, *self.image).permute(0, 2, 3, 1).flatten(1)

    def weight_of(self, total: Tensor, shape: torch.Size) -> Tensor:
        channels, high, wide = self.image
        return total.view(-1, high, wide, channels).permute(0, 3, 1, 2).reshape(shape)

    def rows(self, x: Tensor, workspace: Workspace, use: str) -> Tensor:
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)

    def gathered(self, rows: Tensor, x: Tensor, workspace: Workspace) -> Tensor:
        return rows.view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)

    def shaped(self, rows: Tensor, x: Tensor) -> Tensor:
        return rows


class Convolution(Affine):
    """A convolution of images, as a dense layer of their patches.

    Args:
        own: its parameters.
        layer: its kernel, stride and padding.
    """

    def __init__(self, own: Own, layer: nn.Conv2d) -> None:
        super().__init__(own)
        assert not isinstance(layer.padding, str)  # whoever makes a stage of it has looked
        self.kernel, self.stride, self.padding = layer.kernel_size, layer.stride, layer.padding
        # as many neighbours of a patch as a step has entries overlap nowhere, and are added at once
        tops, lefts = (
            [slice(i, i + s) for i in range(0, k, s)]
            for k, s in zip(self.kernel, self.stride, strict=True)
        )
        self._steps = list(product(tops, lefts))

    def filters(self, weight: Tensor) -> Tensor:
        return weight.permute(0, 2, 3, 1).flatten(1)

    def nothing(self) -> Tensor:
        return torch.zeros_like(self.filtering.t().contiguous())

    def add(self, total: Tensor, outer: Tensor, rows: Tensor) -> None:
        total.addmm_(rows.t(), outer)  # faster where inputs are few and rows many

    def weight_of(self, total: Tensor, shape: torch.Size) -> Tensor:
        filters, channels, high, wide = shape
        return total.view(high, wide, channels, filters).permute(3, 2, 0, 1)

    def rows(self, x: Tensor, workspace: Workspace, use: str) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        if any(self.padding):
            framed = workspace.room(self, f"{use}, framed", self._framed(x))
            self._inside(framed).copy_(last)  # the frame was zero at first, and stays
            last = framed
        patches = self._windows(last)
        if not patches.is_contiguous():
            patches = workspace.room(self, use, patches.shape).copy_(patches)
        return patches.view(-1, math.prod(patches.shape[3:]))

    def gathered(self, rows: Tensor, x: Tensor, workspace: Workspace) -> Tensor:
        framed = workspace.room(self, "gathered", self._framed(x)).zero_()
        places = self._windows(framed)
        patches = rows.view(places.shape)
        for top, left in self._steps:
            places[:, :, :, top, left].add_(patches[:, :, :, top, left])
        return self._inside(framed).permute(0, 3, 1, 2)

    def shaped(self, rows: Tensor, x: Tensor) -> Tensor:
        high, wide = (
            (x.shape[2 + i] + 2 * self.padding[i] - self.kernel[i]) // self.stride[i] + 1
            for i in (0, 1)
        )
        return rows.view(x.shape[0], high, wide, -1).permute(0, 3, 1, 2)

    def flat(self, outer: Tensor) -> Tensor:
        return outer.permute(0, 2, 3, 1).reshape(-1, outer.shape[1])

    def _framed(self, x: Tensor) -> tuple[int, ...]:
        n, channels, high, wide = x.shape
        return n, high + 2 * self.padding[0], wide + 2 * self.padding[1], channels

    def _inside(self, framed: Tensor) -> Tensor:
        (top, left), (_, high, wide, _) = self.padding, framed.shape
        return framed[:, top : high - top, left : wide - left]

    def _windows(self, x: Tensor) -> Tensor:
        """A view of images as patches, `[n, h, w, height, width, channels]`."""
        windows = x.unfold(1, self.kernel[0], self.stride[0])
        return windows.unfold(2, self.kernel[1], self.stride[1]).movedim(3, -1)


class DirectConvolution(Weighted):
    """A convolution of images as torch has it, for where patches would be too large.

    Args:
        own: its parameters.
        layer: its stride, padding, dilation and groups.
    """

    def __init__(self, own: Own, layer: nn.Conv2d) -> None:
        super().__init__(own)
        assert not isinstance(layer.padding, str)
        stride, padding, dilation = map(list, (layer.stride, layer.padding, layer.dilation))
        self.setting: Setting = (stride, padding, dilation, layer.groups)

    def filters(self, weight: Tensor) -> Tensor:
        return channels_last(weight)

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        bias = None if self.bias is None else self.bias[1]
        return convolved(x, self.filtering, self.setting, bias), Kept(x)

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        kept.outer = outer
        return self._inner(outer, kept.x, self.filtering)

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        c = None if self.bias is None else move.directions[self.bias[0]]
        y = convolved(kept.x, move.directions[self.weight], self.setting, c)
        if moving is not None:
            y += convolved(moving, self.filtering, self.setting)
        return y, (moving,)

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        (moving,) = trail
        V, total = move.directions[self.weight], move.sums[self.weight]
        if self.bias is not None:
            move.sums[self.bias[0]] += outer.sum((0, 2, 3))
        total += adjoint(outer, kept.x, V, self.setting, to_weight=True)
        if kept.outer is not None and moving is not None:
            total += adjoint(kept.outer, moving, V, self.setting, to_weight=True)
        if self.first:
            return None
        inner = self._inner(outer, kept.x, self.filtering)
        return inner if kept.outer is None else inner.add_(self._inner(kept.outer, kept.x, V))

    def _inner(self, outer: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return adjoint(outer, x, weight, self.setting, to_weight=False)
