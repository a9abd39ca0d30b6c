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

Here are the stages without parameters; `weighted_stages` has the others. Images are kept with their
channels last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.workspace import Workspace as Memory
from torchtheory.optimization.curvature.convolution_derivatives import channels_last
from torchtheory.tracing.chain import Average

#: Layers that are linear, and have no parameters.
AVERAGING = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, Average,
)  # fmt: skip


class Workspace(Memory):
    """Memory that piece after piece of the data is worked out in.

    Attributes:
        rows: the rows of its input that every stage used last, and what it kept of that piece.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self.rows: dict[object, tuple[Kept, Tensor]] = {}


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
