r"""Data augmentation: the model learns an invariance from transformed copies of its data.

With transformations $\tau_1, \dots, \tau_K$ the sample becomes

$$
\{(x_i, y_i)\} \mapsto \bigcup_{k=1}^K \{(\tau_k(x_i), y_i)\}.
$$

The identity must be among the $\tau_k$, or the originals are lost. On the fly, each batch
draws a $\tau_k$ for every sample instead; the expected loss is the same. When the
$\tau_k$ form a group that acts linearly, least squares on the union has an invariant
solution. Source: notes "Deep Learning", section 8.7.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.models.model import evaluation_mode, global_randomness_kept, one_output, real_rows
from torchtheory.models.samples import Data, Samples, collect

Transform = Callable[[Tensor], Tensor]
"""A map of a batch `[n, ...]` to a batch of the same shape."""


def augmented(
    data: Data, transforms: Sequence[Transform], *, include_identity: bool = True
) -> Samples:
    """The union of all transformed copies, `K n` samples, copy after copy.

    >>> both = augmented((torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])), [torch.neg])
    >>> both.x.flatten().tolist(), both.y.tolist()
    ([1.0, 2.0, -1.0, -2.0], [0, 1, 0, 1])
    """
    samples = collect(data, "train", limit=sys.maxsize)
    maps = _maps(transforms, include_identity)
    x = torch.cat([_applied(tau, samples.x) for tau in maps])
    return Samples(x, torch.cat([samples.y] * len(maps)), samples.note)


@dataclass(frozen=True)
class OneOf:
    """Draws one of the transformations for every sample: `fit`'s `augment` on the fly.

    >>> draw = OneOf([torch.neg], include_identity=True)
    >>> x = draw(torch.ones(100, 1), torch.Generator().manual_seed(0))
    >>> sorted(set(x.flatten().tolist()))
    [-1.0, 1.0]
    """

    transforms: Sequence[Transform]
    include_identity: bool = True

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        maps = _maps(self.transforms, self.include_identity)
        choice = torch.randint(len(maps), (len(x),), generator=generator).to(x.device)
        out = x.clone()
        for k, tau in enumerate(maps):
            rows = (choice == k).nonzero().flatten()
            if len(rows):
                out[rows] = _applied(tau, x[rows])
        return out


@dataclass(frozen=True)
class Shift:
    """Moves images up or down and left or right; rows of pixels or `[n, ..., h, w]`.

    Attributes:
        down, right: by how many pixels (negative: up, left).
        height, width: of an image that is given as a row of pixels; None when the last two
            axes are the image.
        cyclic: what leaves on one side comes back on the other; otherwise zeros come in.

    >>> Shift(0, 1, 1, 3)(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[0., 1., 2.]])
    >>> Shift(0, 1, 1, 3, cyclic=True)(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[3., 1., 2.]])
    """

    down: int
    right: int
    height: int | None = None
    width: int | None = None
    cyclic: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        images = x
        if self.height is not None and self.width is not None:
            if x.shape[1:] != (self.height * self.width,):
                raise ShapeMismatch(
                    f"rows of {self.height} x {self.width} pixels have shape "
                    f"[{self.height * self.width}], not {list(x.shape[1:])}"
                )
            images = x.reshape(len(x), self.height, self.width)
        moved = torch.roll(images, (self.down, self.right), (-2, -1))
        if not self.cyclic:
            height, width = moved.shape[-2:]
            moved[..., _came_round(self.down, height), :] = 0
            moved[..., :, _came_round(self.right, width)] = 0
        return moved.reshape(x.shape)


def shifts(most: int, height: int | None = None, width: int | None = None) -> list[Transform]:
    """All shifts by at most `most` pixels in either direction, but not the identity.

    Zeros come in where pixels leave; see `Shift`.

    >>> len(shifts(1, 8, 8))
    8
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidInput(f"most must be a whole number of pixels >= 1, not {most!r}")
    steps = range(-most, most + 1)
    return [
        Shift(down, right, height, width)
        for down in steps
        for right in steps
        if (down, right) != (0, 0)
    ]


def invariance_gap(
    model: nn.Module, x: Tensor, transforms: Sequence[Transform], *, chunk: int = 512
) -> Tensor:
    r"""How far outputs move under each transformation, relative to how much they vary: `[K]`.

    $\sqrt{\frac1n\sum_i\|f(\tau_k x_i) - f(x_i)\|^2}$ divided by
    $\sqrt{\frac1n\sum_i\|f(x_i) - \bar f\|^2}$; 0 for an invariant function.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(net.weight)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    >>> invariance_gap(net, x, [lambda x: x.flip(1)])
    tensor([0.])
    """
    if len(x) == 0:
        raise EmptyData(
            f"the invariance of a model is measured on at least one input, not {list(x.shape)}"
        )

    def outputs(inputs: Tensor) -> Tensor:
        with torch.no_grad(), evaluation_mode(model), global_randomness_kept():
            parts = torch.split(inputs, chunk)
            rows = [real_rows(one_output(model(part)), len(part)) for part in parts]
            return torch.cat([made.reshape(len(made), -1) for made in rows])

    still = outputs(x)
    spread = (still - still.mean(0)).square().sum(1).mean().sqrt()
    moves = [
        (outputs(_applied(tau, x)) - still).square().sum(1).mean().sqrt()
        for tau in _maps(transforms, False)
    ]
    return torch.stack(moves) / spread


def _identity(x: Tensor) -> Tensor:
    return x


def _maps(transforms: Sequence[Transform], include_identity: bool) -> list[Transform]:
    maps = [*([_identity] if include_identity else []), *transforms]
    if not maps:
        raise EmptyData("augmentation needs at least one transformation")
    return maps


def _applied(tau: Transform, x: Tensor) -> Tensor:
    out = tau(x)
    if out.shape != x.shape:
        raise ShapeMismatch(
            f"a transformation maps {list(x.shape)} to {list(out.shape)}; it must keep the shape"
        )
    return out


def _came_round(by: int, length: int) -> slice:
    """The rows that a cyclic shift brought round from the other side."""
    if by >= 0:
        return slice(0, min(by, length))
    return slice(max(length + by, 0), length)
