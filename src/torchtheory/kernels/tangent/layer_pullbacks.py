r"""Layers, and what becomes of the derivatives of many outputs on their way back through them.

With C outputs there are C derivatives in every value of a sample. Those in images are kept as
`[h, w, n, C, channels]`, those in rows as `[n, C, d]`; where they are the same for all samples, as
behind the last layer, n is 1. No layer writes to what it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.convolution.winograd import TAPS, Tiles
from torchtheory.core.workspace import Workspace


@dataclass(slots=True)
class Kept:
    """What a layer keeps of some samples.

    Attributes:
        x: its inputs.
        used: what the operation on its parameters is given.
        slopes: of an activation, laid out as the derivatives are; of a pooling, the places that
            its entries are from.
    """

    x: Sequence[Tensor]
    used: Tensor | None = None
    slopes: Tensor | None = None


class Layer(ABC):
    """A layer at its parameters.

    Attributes:
        same_for_all: whether derivatives go back in the same way whatever the sample is.
    """

    same_for_all = False

    @abstractmethod
    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        """Its output, and what is kept."""

    @abstractmethod
    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        """Derivatives in its inputs, from those in its output.

        They may be in memory of the workspace, until the same layer is worked out again.
        """


def samples_first(outer: Tensor) -> Tensor:
    """Derivatives `[n, C, ...]` in the shape of torch's own values.

    >>> samples_first(torch.zeros(5, 4, 2, 3, 7)).shape
    torch.Size([2, 3, 7, 5, 4])
    """
    return outer.permute(2, 3, 4, 0, 1) if outer.ndim == 5 else outer


def places_first(outer: Tensor) -> Tensor:
    """The inverse of `samples_first`.

    >>> places_first(torch.zeros(2, 3, 7, 5, 4)).shape
    torch.Size([5, 4, 2, 3, 7])
    """
    return outer.permute(3, 4, 0, 1, 2) if outer.ndim == 5 else outer


def of_all(outer: Tensor, samples: int) -> Tensor:
    """Derivatives of so many samples, also if they are the same for all."""
    at = 2 if outer.ndim == 5 else 0
    shape = list(outer.shape)
    shape[at] = samples
    return outer.expand(shape)


class Pointwise(Layer):
    """An activation that acts on every entry by itself."""

    def __init__(self, activation: nn.Module) -> None:
        self.activation = activation

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        if type(self.activation) is nn.ReLU:
            y = torch.relu(x[0])
            slopes = (y > 0).to(y.dtype)
        else:
            with torch.enable_grad():
                free = x[0].detach().requires_grad_()
                y = self.activation(free.clone())  # it may work in place
                (slopes,) = torch.autograd.grad(y.sum(), free)
                y = y.detach()
        return y, Kept(x, slopes=places_first(slopes[:, None]).contiguous())

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        assert kept.slopes is not None
        shape = of_all(outer, len(kept.x[0])).shape
        return (torch.mul(outer, kept.slopes, out=space.room(self, "inner", tuple(shape))),)


class Reshaping(Layer):
    """A layer that lays images out in rows, rows in images, or leaves all as it is.

    Args:
        layer: the layer.
        shape: of an input, without the samples.
    """

    same_for_all = True

    def __init__(self, layer: nn.Module, shape: Sequence[int]) -> None:
        self.layer, self.shape = layer, tuple(shape)

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return self.layer(x[0].contiguous()), Kept(x)

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        first = samples_first(outer)
        return (places_first(first.reshape(*first.shape[:2], *self.shape)),)


class Scaling(Layer):
    """A batch normalization with the statistics of the training: a scale for every channel.

    Args:
        mean, variance: of the training.
        eps: what is added to the variance.
        weight, bias: its parameters, if it has some.
    """

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        self.mean, self.variance, self.eps = mean, variance, eps
        self.weight, self.bias = weight, bias
        root = torch.rsqrt(variance + eps)
        self.scale = root if weight is None else root * weight

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        def normalized(weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return F.batch_norm(x[0], self.mean, self.variance, weight, bias, eps=self.eps)

        return normalized(self.weight, self.bias), Kept(x, normalized(None, None))

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        return (torch.mul(outer, self.scale, out=space.room(self, "inner", tuple(outer.shape))),)


class Sum(Layer):
    """The sum of two values."""

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return x[0] + x[1], Kept(x)

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        return outer, outer


class Concatenation(Layer):
    """Values side by side, channel by channel."""

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return torch.cat(x, 1), Kept(x)

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        return torch.split_with_sizes(outer, [x.shape[1] for x in kept.x], -1)


class Largest(Layer):
    """A pooling of images that passes on the largest entry of a window."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self.layer = layer

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        of = self.layer
        y, places = F.max_pool2d(
            x[0], of.kernel_size, of.stride, of.padding, of.dilation, of.ceil_mode,
            return_indices=True,
        )  # fmt: skip
        return y, Kept(x, slopes=places_first(places[:, None]))

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        assert kept.slopes is not None
        n, channels, high, wide = kept.x[0].shape
        outer = of_all(outer, n)
        inner = space.room(self, "inner", (high * wide, n, outer.shape[3], channels)).zero_()
        inner.scatter_add_(0, kept.slopes.expand(outer.shape).flatten(0, 1), outer.flatten(0, 1))
        return (inner.view(high, wide, *inner.shape[1:]),)


class Plain(Layer):
    """Any other layer without parameters that maps samples one by one, by autograd."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return self.layer(x[0]), Kept(x)

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        x = kept.x[0]
        first = samples_first(of_all(outer, len(x)))
        with torch.enable_grad():
            free = x.detach().repeat_interleave(first.shape[1], 0).requires_grad_()
            y = self.layer(free)
            (inner,) = torch.autograd.grad(y, free, first.reshape(y.shape))
        return (places_first(inner.view(*first.shape[:2], *x.shape[1:])).contiguous(),)


class Dense(Layer):
    """A dense layer of rows."""

    same_for_all = True

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        return F.linear(x[0], self.weight, self.bias), Kept(x, x[0])

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        return (outer @ self.weight,)


class Convolution(Layer):
    """A convolution as torch has it.

    Args:
        layer: its stride, padding, dilation and groups.
        weight, bias: its parameters.
    """

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        assert not isinstance(layer.padding, str)  # whoever makes a layer of it has looked
        self.weight, self.bias = weight, bias
        self.stride, self.padding = list(layer.stride), list(layer.padding)
        self.dilation, self.groups = list(layer.dilation), layer.groups

    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        setting = (self.stride, self.padding, self.dilation, self.groups)
        return torch.conv2d(x[0], self.weight, self.bias, *setting), Kept(x, x[0])

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        first = samples_first(outer)
        shape = (first.shape[0] * first.shape[1], *kept.x[0].shape[1:])
        inner, _, _ = torch.ops.aten.convolution_backward(
            first.reshape(-1, *first.shape[2:]), outer.new_empty(1).expand(shape), self.weight,
            None, self.stride, self.padding, self.dilation, False, [0, 0], self.groups,
            [True, False, False],
        )  # fmt: skip
        return (places_first(inner.view(*first.shape[:2], *shape[1:])).contiguous(),)


class TiledConvolution(Convolution):
    """A convolution with filters of 3 x 3 and stride 1, whose adjoints are worked out by tiles.

    Args:
        layer: its padding.
        weight, bias: its parameters.
        size: height and width of its inputs.
    """

    def __init__(
        self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None, size: Sequence[int]
    ) -> None:
        super().__init__(layer, weight, bias)
        self.tiles = Tiles(size, self.padding, weight)
        self.filters = self.tiles.filters(weight)

    def pulled(self, kept: Kept, outer: Tensor, space: Workspace) -> Sequence[Tensor]:
        return (self.from_points(self.tiles.of_outputs(outer, space), space),)

    def from_points(self, points: Tensor, space: Workspace) -> Tensor:
        """Derivatives in the input, from `Tiles.of_outputs` of those in the output."""
        _, inputs = self.filters.shape[1:]
        made = space.room("tiles", "products", (*points.shape[:-1], inputs))
        torch.bmm(points.flatten(1, -2), self.filters, out=made.flatten(1, -2))
        return self.tiles.at_inputs(made, space, self)

    def put_jacobian(
        self, kept: Kept, outer: Tensor, points: Tensor, into: Tensor, space: Workspace
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
