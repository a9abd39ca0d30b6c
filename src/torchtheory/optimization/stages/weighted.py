r"""Stages that have parameters: dense layers, convolutions and normalizations.

A convolution is a dense layer of its patches, and computed as such unless these are much larger
than the image: with channels last, patches and outputs are rows of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.convolution.winograd import TAPS, Tiles
from torchtheory.core.workspace import Workspace as Memory
from torchtheory.optimization.stages.convolutions import (
    Setting,
    adjoint,
    channels_last,
    convolved,
)
from torchtheory.optimization.stages.stage import (
    CurvedStage,
    Kept,
    Move,
    Several,
    Workspace,
    places_first,
    samples_first,
)


@dataclass(frozen=True, slots=True)
class Own:
    """The parameters of an operation.

    Attributes:
        weight: its weight.
        bias: its bias, if it has one.
        names: of those that move, by their place ("weight" or "bias").
        first: whether nothing moves before the operation.
    """

    weight: Tensor
    bias: Tensor | None
    names: dict[str, str]
    first: bool


class Weighted(CurvedStage):
    """An operation with a weight, linear in it and in its input, and a bias or none.

    Args:
        own: its parameters.
    """

    def __init__(self, own: Own) -> None:
        self.names, self.first = own.names, own.first
        self.shape = own.weight.shape
        self.filtering = self.filters(own.weight)
        self.bias = own.bias

    def filters(self, weight: Tensor) -> Tensor:
        """A weight, or a direction of it, in the form that the operation works with."""
        return weight

    def nothing(self) -> Tensor:
        """A sum of no derivatives in the weight."""
        return torch.zeros_like(self.filtering)

    def weight_of(self, total: Tensor, shape: torch.Size) -> Tensor:
        """A sum of derivatives in the shape of the weight."""
        return total.reshape(shape)

    def direction(self, place: str, part: Tensor) -> Tensor:
        """A direction of the weight or the bias, in the form that the operation works with."""
        return self.filters(part) if place == "weight" else part

    def zeros(self, place: str, part: Tensor) -> Tensor:
        """What sums of derivatives begin with."""
        return self.nothing() if place == "weight" else torch.zeros_like(part)

    def total(self, place: str, total: Tensor) -> Tensor:
        """A sum of derivatives in the shape of its parameter."""
        return self.weight_of(total, self.shape) if place == "weight" else total


class Affine(Weighted):
    """A dense layer: its weight is a matrix `[outputs, inputs]`."""

    same_for_all = True

    def add(self, total: Tensor, outer: Tensor, rows: Tensor) -> None:
        """Add derivatives in the weight."""
        total.addmm_(outer.t(), rows)

    def rows(self, x: Tensor, workspace: Workspace, use: str) -> Tensor:
        """Inputs as rows that the matrix acts on."""
        return x.reshape(-1, x.shape[-1])

    def gathered(self, rows: Tensor, x: Tensor, workspace: Workspace) -> Tensor:
        """The adjoint of `rows`, in the shape of `x`."""
        return channels_last(rows.view(x.shape))

    def shaped(self, rows: Tensor, x: Tensor) -> Tensor:
        """Rows of outputs in the shape that the layer gives them."""
        return channels_last(rows.view(*x.shape[:-1], -1))

    def flat(self, outer: Tensor) -> Tensor:
        """What has the shape of the output, in rows again."""
        return outer.reshape(-1, outer.shape[-1])

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        rows = self.rows(x[0], Workspace(x[0]), "still")
        y = rows @ self.filtering.t()
        y = self.shaped(y if self.bias is None else y.add_(self.bias), x[0])
        return y, Kept(x, used=x[0], rows=rows if self.first else None)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        return (outer @ self.filtering,)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        kept.outer = self.flat(outer)
        (x,) = kept.x
        return (self.gathered(kept.outer @ self.filtering, x, Workspace(x)),)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        space, (x,), (ingoing,) = move.workspace, kept.x, moving
        V, c = (move.directions.get((self, place)) for place in ("weight", "bias"))
        moved = None if ingoing is None else self.rows(ingoing, space, "moving")
        rows = None if V is None else self._still(kept, space)
        like = moved if rows is None else rows
        if like is None:  # the bias alone
            like = self._still(kept, space)
        y = space.room(self, "output", (like.shape[0], self.filtering.shape[0]))
        if rows is None or V is None:
            y.zero_() if c is None else y.copy_(c)
        elif c is None:
            torch.mm(rows, V.t(), out=y)
        else:
            torch.addmm(c, rows, V.t(), out=y)
        if moved is not None:
            y.addmm_(moved, self.filtering.t())
        return self.shaped(y, x), (rows, moved)

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        (rows, moved), (x,) = trail, kept.x
        outer = self.flat(outer)
        V = move.directions.get((self, "weight"))
        if (self, "bias") in move.sums:
            move.sums[self, "bias"] += outer.sum(0)
        if rows is not None:
            total = move.sums[self, "weight"]
            self.add(total, outer, rows)
            if kept.outer is not None and moved is not None:
                self.add(total, kept.outer, moved)
        if self.first:
            return (None,)
        inner = move.workspace.room(self, "inner", (outer.shape[0], self.filtering.shape[1]))
        torch.mm(outer, self.filtering, out=inner)
        if kept.outer is not None and V is not None:
            inner.addmm_(kept.outer, V)
        return (self.gathered(inner, x, move.workspace),)

    def _still(self, kept: Kept, workspace: Workspace) -> Tensor:
        """The rows of the input, which are the same in all directions."""
        if kept.rows is not None:
            return kept.rows
        last = workspace.rows.get(self)
        if last is None or last[0] is not kept:
            workspace.rows.pop(self, None)  # overwritten from here on, also if this is interrupted
            last = workspace.rows[self] = kept, self.rows(kept.x[0], workspace, "still")
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
        setting: its stride and padding.
    """

    same_for_all = False

    def __init__(self, own: Own, setting: Setting) -> None:
        super().__init__(own)
        self.kernel = tuple(own.weight.shape[2:])
        self.stride, self.padding = setting.stride, setting.padding
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
    """A convolution as torch has it, for where patches would be too large.

    Args:
        own: its parameters.
        setting: its stride, padding, dilation and groups.
    """

    def __init__(self, own: Own, setting: Setting) -> None:
        super().__init__(own)
        self.setting = setting

    def filters(self, weight: Tensor) -> Tensor:
        return channels_last(weight)

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return convolved(x[0], self.filtering, self.setting, self.bias), Kept(x, used=x[0])

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        first = samples_first(outer)
        shape = (first.shape[0] * first.shape[1], *kept.x[0].shape[1:])
        inner, _, _ = torch.ops.aten.convolution_backward(
            first.reshape(-1, *first.shape[2:]), outer.new_empty(1).expand(shape),
            self.filtering, None, *self.setting.arguments, [True, False, False],
        )  # fmt: skip
        return (places_first(inner.view(*first.shape[:2], *shape[1:])).contiguous(),)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        kept.outer = outer
        return (self._inner(outer, kept.x[0], self.filtering),)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (x,), (ingoing,) = kept.x, moving
        V, c = (move.directions.get((self, place)) for place in ("weight", "bias"))
        y = None
        if V is not None:
            y = convolved(x, V, self.setting, c)
        if ingoing is not None:
            late = None if V is not None else c
            term = convolved(ingoing, self.filtering, self.setting, late)
            y = term if y is None else y.add_(term)
        if y is None:  # the bias alone
            y = torch.zeros_like(convolved(x, self.filtering, self.setting))
            assert c is not None
            y += c.reshape(-1, *[1] * (x.ndim - 2))
        return y, moving

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        (moving,), (x,) = trail, kept.x
        V = move.directions.get((self, "weight"))
        if (self, "bias") in move.sums:
            move.sums[self, "bias"] += outer.sum((0, *range(2, outer.ndim)))
        if V is not None:
            total = move.sums[self, "weight"]
            total += adjoint(outer, x, V, self.setting, to_weight=True)
            if kept.outer is not None and moving is not None:
                total += adjoint(kept.outer, moving, V, self.setting, to_weight=True)
        if self.first:
            return (None,)
        inner = self._inner(outer, x, self.filtering)
        if kept.outer is not None and V is not None:
            inner.add_(self._inner(kept.outer, x, V))
        return (inner,)

    def _inner(self, outer: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return adjoint(outer, x, weight, self.setting, to_weight=False)


class TiledConvolution(DirectConvolution):
    """A convolution with filters of 3 x 3 and stride 1, whose adjoints are worked out by tiles.

    Args:
        own: its parameters.
        setting: its padding.
        size: height and width of its inputs.
    """

    def __init__(self, own: Own, setting: Setting, size: Sequence[int]) -> None:
        super().__init__(own, setting)
        self.weight = own.weight
        self.tiles = Tiles(size, setting.padding, own.weight)
        self.points = self.tiles.filters(own.weight)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        return (self.from_points(self.tiles.of_outputs(outer, space), space),)

    def from_points(self, points: Tensor, space: Memory) -> Tensor:
        """Derivatives in the input, from `Tiles.of_outputs` of those in the output."""
        _, inputs = self.points.shape[1:]
        made = space.room("tiles", "products", (*points.shape[:-1], inputs))
        torch.bmm(points.flatten(1, -2), self.points, out=made.flatten(1, -2))
        return self.tiles.at_inputs(made, space, self)

    def put_jacobian(
        self, kept: Kept, outer: Tensor, points: Tensor, into: Tensor, space: Memory
    ) -> None:
        """Put the Jacobian `[n, C, P]` in its place.

        The order of parameters is that of taps, outputs, inputs; then biases, where there is room
        for them.
        """
        count, inputs = self.weight.shape[:2]
        of_inputs = self.tiles.of_inputs(kept.x[0].permute(2, 3, 0, 1))
        classes = outer.shape[3]
        sums = space.room("tiles", "sums", (len(points), classes * count, inputs))
        taps = space.room("tiles", "taps", (TAPS**2, classes, count * inputs))
        for k, place in enumerate(into[..., : self.weight.numel()]):
            torch.bmm(points[:, :, k].flatten(2).mT, of_inputs[:, :, k], out=sums)
            self.tiles.at_filters(sums, taps)
            place.view(classes, TAPS**2, -1).copy_(taps.transpose(0, 1))
        if into.shape[-1] > self.weight.numel():
            into[..., self.weight.numel() :] = outer.sum((0, 1))

    def reordered(self, jacobian: Tensor) -> Tensor:
        """A Jacobian `[n, C, P]` in the order of `outer_sum`, as `put_jacobian` has it."""
        outputs, inputs = self.weight.shape[:2]
        rows = jacobian.view(*jacobian.shape[:2], outputs, -1)  # the last column may be the bias
        taps = rows[..., : inputs * TAPS**2].reshape(*rows.shape[:3], inputs, -1)
        biases = rows[..., inputs * TAPS**2 :]
        return torch.cat([taps.permute(0, 1, 4, 2, 3).flatten(2), biases.flatten(2)], 2)


class Normalization(Weighted):
    r"""A batch normalization with the statistics of the training: $y=\hat x w+b$ by channel.

    Args:
        own: its parameters; the weight is 1 where it has none.
        mean, variance: of the training.
        eps: what is added to the variance.
    """

    def __init__(self, own: Own, mean: Tensor, variance: Tensor, eps: float) -> None:
        super().__init__(own)
        self.mean, self.variance, self.eps = mean, variance, eps
        self.root = torch.rsqrt(variance + eps)
        self.scale = self.root * self.filtering

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        def normalized(weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return F.batch_norm(x[0], self.mean, self.variance, weight, bias, eps=self.eps)

        y = normalized(self.filtering, self.bias)
        return y, Kept(used=normalized(None, None) if "weight" in self.names else y)

    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        return (torch.mul(outer, self.scale, out=space.room(self, "inner", tuple(outer.shape))),)

    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        kept.outer = outer
        return (outer * self._along(self.scale, outer),)

    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        (ingoing,) = moving
        V, c = (move.directions.get((self, place)) for place in ("weight", "bias"))
        x = kept.used
        assert x is not None
        y = torch.zeros_like(x) if ingoing is None else ingoing * self._along(self.scale, x)
        if V is not None:
            y.addcmul_(x, self._along(V, x))
        if c is not None:
            y += self._along(c, x)
        return y, moving

    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        (moving,), x = trail, kept.used
        assert x is not None
        V, others = move.directions.get((self, "weight")), (0, *range(2, outer.ndim))
        if (self, "bias") in move.sums:
            move.sums[self, "bias"] += outer.sum(others)
        if V is not None:
            total = move.sums[self, "weight"]
            total += (outer * x).sum(others)
            if kept.outer is not None and moving is not None:
                total += (kept.outer * moving).sum(others) * self.root
        if self.first:
            return (None,)
        inner = outer * self._along(self.scale, outer)
        if kept.outer is not None and V is not None:
            inner.addcmul_(kept.outer, self._along(V * self.root, outer))
        return (inner,)

    @staticmethod
    def _along(channels: Tensor, x: Tensor) -> Tensor:
        return channels.reshape(-1, *[1] * (x.ndim - 2))
