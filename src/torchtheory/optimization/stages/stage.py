r"""What a stage of a network is: an operation that derivatives are carried through.

Two kinds of derivatives are carried. The first are those of **many outputs** of every sample on
their way back, of which tangent kernels are made: C derivatives in every value, kept as
`[h, w, n, C, channels]` in images and as `[n, C, d]` in rows; where they are the same for all
samples, as behind the last layer, n is 1.

The second are derivatives **along a direction** of the parameters, of which products with the
curvature are made. Moving the parameters $\theta$ along $v$ moves every value of a network. With
$\dot z=\frac{d}{dt}z(\theta+tv)|_{t=0}$ (Pearlmutter's R-operator), a layer $y=xW^\top+b$ whose
parameters move along $(V,c)$, and the derivative $\delta$ of the loss in $y$,

$$
\dot y=xV^\top+\dot xW^\top+c,\qquad
\dot\delta_x=\dot\delta W+\delta V,\qquad
\dot G=\dot\delta^\top x+\delta^\top\dot x,
$$

where $\dot G$ is what the product is in place of $W$; for $y=\varphi(x)$, entry by entry,
$\dot y=\varphi'(x)\dot x$ and $\dot\delta_x=\varphi'(x)\dot\delta+\varphi''(x)\delta\dot x$; and
for a product $y=ab$ of two values $\dot y=\dot ab+a\dot b$ and
$\dot\delta_a=\dot\delta b+\delta\dot b$. Without the terms in $\delta$ it is the Gauss-Newton
matrix that is multiplied.

Images are kept with their channels last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchtheory.core.workspace import Workspace as Memory


class Workspace(Memory):
    """Memory that piece after piece of the data is worked out in.

    Attributes:
        rows: the rows of its input that every stage used last, and what it kept of that piece.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self.rows: dict[object, tuple[Kept, Tensor]] = {}


@dataclass(slots=True)
class Kept:
    """What a stage keeps of one piece of the data.

    Attributes:
        x: its inputs, if they are needed.
        used: what the operation on its parameters is given.
        slopes: of an activation, or for a ReLU its output; of a pooling, the places
            `[n, h, w, channels]` that its entries are from.
        outer: the derivative of the loss in its output; of an activation, times its second
            derivatives. None where that is zero, or left out.
        rows: the rows that a first layer acts on, which no product changes.
    """

    x: tuple[Tensor, ...] = ()
    used: Tensor | None = None
    slopes: Tensor | None = None
    outer: Tensor | None = None
    rows: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """All that are kept."""
        found = [*self.x, self.used, self.slopes, self.outer, self.rows]
        return [t for t in found if t is not None]


@dataclass(slots=True)
class Move:
    """A direction of the parameters, what a product makes of it, and where it is worked out.

    Attributes:
        directions: by stage and place ("weight" or "bias"), weights as `Weighted.filters` gives
            them; what does not move is left out.
        sums: the product, weights as in `Weighted.nothing`.
        workspace: of the thread.
    """

    directions: dict[tuple[object, str], Tensor]
    sums: dict[tuple[object, str], Tensor]
    workspace: Workspace


#: What goes through the inputs of a stage, None where nothing does.
Several = tuple[Tensor | None, ...]


class Stage(ABC):
    """An operation at its parameters, for the derivatives of many outputs.

    Attributes:
        same_for_all: whether derivatives go back in the same way whatever the sample is.
    """

    same_for_all = False

    @abstractmethod
    def values(self, *x: Tensor) -> tuple[Tensor, Kept]:
        """Its output, and what is kept."""

    @abstractmethod
    def pulled_many(self, kept: Kept, outer: Tensor, space: Memory) -> Sequence[Tensor]:
        """Derivatives of many outputs in its inputs, from those in its output.

        They may be in memory of the workspace, until the same stage is worked out again. What is
        given is not written to.
        """


class CurvedStage(Stage):
    """A stage that is known to second order.

    The tensors that `pushed` and `pulled` return are theirs to write to who gets them, unless one
    is returned twice.
    """

    @abstractmethod
    def slopes(self, kept: Kept, outer: Tensor) -> Several:
        """The derivative of the loss in the inputs, from that in the output, which is kept."""

    @abstractmethod
    def pushed(self, kept: Kept, moving: Several, move: Move) -> tuple[Tensor, Several]:
        """How the output moves, where the inputs move as given; and what `pulled` needs of it."""

    @abstractmethod
    def pulled(self, kept: Kept, trail: Several, outer: Tensor, move: Move) -> Several:
        """How the derivatives in the inputs move, where that in the output moves as given."""


def samples_first(outer: Tensor) -> Tensor:
    """Derivatives `[n, C, ...]` in the shape of torch's own values.

    >>> import torch
    >>> samples_first(torch.zeros(5, 4, 2, 3, 7)).shape
    torch.Size([2, 3, 7, 5, 4])
    """
    return outer.permute(2, 3, 4, 0, 1) if outer.ndim == 5 else outer


def places_first(outer: Tensor) -> Tensor:
    """The inverse of `samples_first`.

    >>> import torch
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
