r"""The layers of a chain, and how they move along a direction of the parameters.

Moving the parameters $\theta$ along $v$ moves every value of a network. With
$\dot z=\frac{d}{dt}z(\theta+tv)|_{t=0}$ (Pearlmutter's R-operator), a layer $y=xW^\top+b$ whose
parameters move along $(V,c)$, and the derivative $\delta$ of the loss in $y$,

$$
\dot y=xV^\top+\dot xW^\top+c,\qquad
\dot\delta_x=\dot\delta W+\delta V,\qquad
\dot G=\dot\delta^\top x+\delta^\top\dot x,
$$

where $\dot G$ is what the product is in place of $W$; and for $y=\varphi(x)$, entry by entry,
$\dot y=\varphi'(x)\dot x$ and $\dot\delta_x=\varphi'(x)\dot\delta+\varphi''(x)\delta\dot x$.
Without the terms in $\delta$ it is the Gauss-Newton matrix that is multiplied.

A convolution is a dense layer of its patches, and computed as such unless these are much larger
than the image. Images are kept with their channels last, where patches and outputs are rows of
matrices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from torchtheory.nets.chain import Average, Rearrangement
from torchtheory.optimization.curvature.convolution_derivatives import (
    Setting,
    adjoint,
    channels_last,
    convolved,
)

#: Layers that pass on what they are given, in another shape or in the same.
RESHAPING = (nn.Flatten, nn.Unflatten, nn.Identity, Rearrangement)

#: Layers that are linear, and have no parameters.
AVERAGING = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, Average,
)  # fmt: skip

#: Layers that do nothing in evaluation mode.
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class Workspace:
    """Memory that piece after piece of the data is worked out in, so that caches hold it."""

    def __init__(self, like: Tensor) -> None:
        self._like = like.new_empty(0)  # its kind, and not its numbers
        self._held: dict[tuple[object, str], Tensor] = {}
        self._views: dict[tuple[object, str, tuple[int, ...]], Tensor] = {}
        #: The rows of its input that every stage used last, and what it kept of that piece.
        self.rows: dict[object, tuple[Kept, Tensor]] = {}

    def room(self, owner: object, use: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor for one use; what the last piece left is still in it, and zeros at first."""
        view = self._views.get((owner, use, shape))
        if view is None:
            size = math.prod(shape)
            held = self._held.get((owner, use))
            if held is None or len(held) < size:
                with torch.inference_mode(False):  # to be written to also when that is over
                    held = self._held[owner, use] = self._like.new_zeros(size)
            view = self._views[owner, use, shape] = held[:size].view(shape)
        return view


@dataclass(slots=True)
class Move:
    """A direction of the parameters, what a product makes of it, and where it is worked out.

    Attributes:
        directions: by the names of parameters, weights as `Weighted.filters` gives them.
        sums: the product, weights as in `Weighted.nothing`.
        workspace: of the thread.
    """

    directions: dict[str, Tensor]
    sums: dict[str, Tensor]
    workspace: Workspace


@dataclass(slots=True)
class Kept:
    """What a stage keeps of one piece of the data.

    Attributes:
        x: its input; of an activation its slopes, or for a ReLU its output.
        outer: the derivative of the loss in its output; of an activation, times its second
            derivatives. None where that is zero, or left out.
        rows: the rows that a first layer acts on, which no product changes; of a pooling, the
            places `[n, h, w, channels]` that its entries are from.
    """

    x: Tensor
    outer: Tensor | None = None
    rows: Tensor | None = None


class Stage(ABC):
    """One layer of a chain.

    What moves is None before the first layer with parameters. The tensors that `pushed` and
    `pulled` return are theirs to write to who gets them.
    """

    @abstractmethod
    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        """The output, and what is kept of it."""

    @abstractmethod
    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        """The derivative of the loss in the input, from that in the output, which is kept."""

    @abstractmethod
    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        """How the output moves, where the input moves as given; and what `pulled` needs of it."""

    @abstractmethod
    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        """How the derivative in the input moves, where that in the output moves as given."""


#: Tensors that the way back needs of the way there.
Trail = tuple[Tensor | None, ...]


class Weighted(Stage):
    """A layer with a weight, linear in it and in its input, and a bias or none.

    Args:
        weight: the name of its weight, and its value.
        bias: likewise, if it has one.
        first: whether nothing moves before it.
    """

    def __init__(
        self, weight: tuple[str, Tensor], bias: tuple[str, Tensor] | None, *, first: bool
    ) -> None:
        self.weight, self.filtering = weight[0], self.filters(weight[1])
        self.bias = bias
        self.first = first

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
        image: channels, height and width.
        weight: as for a dense layer.
        bias: likewise.
        first: likewise.
    """

    def __init__(
        self,
        image: Sequence[int],
        weight: tuple[str, Tensor],
        bias: tuple[str, Tensor] | None,
        *,
        first: bool,
    ) -> None:
        self.image = tuple(image)
        super().__init__(weight, bias, first=first)

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
        layer: its kernel, stride and padding.
        weight: as for a dense layer.
        bias: likewise.
        first: likewise.
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        weight: tuple[str, Tensor],
        bias: tuple[str, Tensor] | None,
        *,
        first: bool,
    ) -> None:
        super().__init__(weight, bias, first=first)
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
        layer: its stride, padding, dilation and groups.
        weight: as for a dense layer.
        bias: likewise.
        first: likewise.
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        weight: tuple[str, Tensor],
        bias: tuple[str, Tensor] | None,
        *,
        first: bool,
    ) -> None:
        super().__init__(weight, bias, first=first)
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


class Largest(Stage):
    """A pooling of images that passes on the largest entry of a window.

    Args:
        layer: the pooling.
    """

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self.layer = layer

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        y, places = nn.functional.max_pool2d(
            x,
            self.layer.kernel_size,
            self.layer.stride,
            self.layer.padding,
            self.layer.dilation,
            self.layer.ceil_mode,
            return_indices=True,
        )
        return channels_last(y), Kept(x, rows=places.permute(0, 2, 3, 1).contiguous())

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        assert kept.rows is not None
        inner = torch.zeros_like(kept.x, memory_format=torch.channels_last)
        places = kept.rows.flatten(1, 2)
        _channels_in_rows(inner).scatter_add_(1, places, _channels_in_rows(outer))
        return inner

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        if moving is None:
            return None, ()
        assert kept.rows is not None
        passed = _channels_in_rows(moving).gather(1, kept.rows.flatten(1, 2))
        return passed.view(kept.rows.shape).permute(0, 3, 1, 2), ()

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        return self.slopes(kept, outer)


def _channels_in_rows(images: Tensor) -> Tensor:
    """`[n, places, channels]`, a view of images with their channels last."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


class Averaging(Stage):
    """A layer without parameters that is linear, such as the average over windows.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        return channels_last(self.layer(x)), Kept(x)

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        with torch.enable_grad():
            free = kept.x.detach().requires_grad_()
            (inner,) = torch.autograd.grad(self.layer(free), free, outer)
        return channels_last(inner)

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        return None if moving is None else channels_last(self.layer(moving)), ()

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        return self.slopes(kept, outer)


class Rectified(Stage):
    """A ReLU, whose slopes are read off its output."""

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        y = torch.relu(x)
        return y, Kept(y)

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        return _gated(outer.clone(), kept.x)

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        return None if moving is None else _gated(moving, kept.x), ()

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        return _gated(outer, kept.x)


def _gated(moving: Tensor, y: Tensor) -> Tensor:
    """What moves where `y > 0`, in place."""
    passed: Tensor = torch.ops.aten.threshold_backward.grad_input(moving, y, 0, grad_input=moving)
    return passed


class Pointwise(Stage):
    """Any activation that acts on every entry by itself.

    Args:
        activation: the layer.
    """

    def __init__(self, activation: nn.Module) -> None:
        self.activation = activation

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            y = self.activation(free.clone())  # it may work in place
            (slope,) = torch.autograd.grad(y.sum(), free, create_graph=True)
            bend = None
            # torch has no second derivative of the hard sigmoid, which is 0
            if slope.requires_grad and not isinstance(self.activation, nn.Hardsigmoid):
                (bend,) = torch.autograd.grad(slope.sum(), free, allow_unused=True)
        return y.detach(), Kept(slope.detach(), outer=bend)

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        if kept.outer is not None:
            kept.outer = kept.outer * outer
        return kept.x * outer

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        return None if moving is None else kept.x * moving, (moving,)

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        (moving,) = trail
        inner = outer.mul_(kept.x)
        if kept.outer is not None and moving is not None:
            inner.addcmul_(kept.outer, moving)
        return inner


class Reshaping(Stage):
    """A layer that passes on what it is given, in another shape or in the same.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def reshaped(self, x: Tensor) -> Tensor:
        """Images with their channels last before and behind it, but not inside."""
        return channels_last(self.layer(x.contiguous()))

    def values(self, x: Tensor) -> tuple[Tensor, Kept]:
        return self.reshaped(x), Kept(x)

    def slopes(self, kept: Kept, outer: Tensor) -> Tensor:
        return channels_last(outer.reshape(kept.x.shape))

    def pushed(self, kept: Kept, moving: Tensor | None, move: Move) -> tuple[Tensor | None, Trail]:
        return None if moving is None else self.reshaped(moving), ()

    def pulled(self, kept: Kept, trail: Trail, outer: Tensor, move: Move) -> Tensor | None:
        return self.slopes(kept, outer)
