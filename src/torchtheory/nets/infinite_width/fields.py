r"""What is carried through a network of infinite width: covariances of its units and tangents.

As the hidden widths grow, the units of a layer become independent Gaussians with one covariance
$K_{ip,jq}$ of the samples $i,j$ and the places $p,q$ of an image or a sequence, and the tangent
kernel becomes a number $\Theta_{ip,jq}$ for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel


@dataclass(frozen=True, eq=False)
class Raw:
    """Inputs, as long as nothing random was applied to them."""

    x: Tensor

    def covariance(self, channel: int) -> Tensor:
        r"""$K_{ip,jq}=\frac1n\sum_u x_{iup}x_{juq}$ over the dimension of its units."""
        x = self.x.movedim(channel, -1)
        flat = x.reshape(-1, x.shape[-1])
        return (flat @ flat.mT / flat.shape[1]).reshape(x.shape[:-1] * 2)

    def field(self, channel: int) -> Field:
        """As a value among random ones: fixed numbers, whose mean over units is all that counts."""
        k = self.covariance(channel)
        part = Part(k, torch.zeros_like(k), self.x.mean(channel), False, frozenset([Raw]))
        sizes = self.x.movedim(channel, -1).shape[1:-1]
        return Field(((self.x.shape[channel], part),), channel, tuple(sizes))


@dataclass(frozen=True, eq=False)
class Part:
    r"""Units of one kind.

    Attributes:
        covariance: second moments $K$, `[N, *places, N, *places]`.
        tangent: $\Theta$, of the same shape.
        mean: of the units, `[N, *places]`; None for 0.
        gaussian: whether they are Gaussian.
        made_with: the weights of the affine layers whose outputs they are sums of, and the input.
        source: the Gaussian units, and the function that these are of each of them.
    """

    covariance: Tensor
    tangent: Tensor
    mean: Tensor | None
    gaussian: bool
    made_with: frozenset[object]
    source: tuple[Part, Callable[[Tensor], Tensor]] | None = None

    def mapped(self, change: Callable[[Tensor], Tensor], mean: Callable[[Tensor], Tensor]) -> Part:
        r"""The same linear map of $K$ and of $\Theta$, and what it does to the mean."""
        return Part(
            change(self.covariance), change(self.tangent),
            None if self.mean is None else mean(self.mean), self.gaussian, self.made_with,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Field:
    """A value of a network of infinite width.

    Attributes:
        parts: units of several kinds, with how many there are of each.
        channel: the dimension that counts units.
        sizes: of the other dimensions behind the samples, the places.
        flattened: whether places were made units.
        error: how far an expansion may be off.
    """

    parts: tuple[tuple[int, Part], ...]
    channel: int
    sizes: tuple[int, ...]
    flattened: bool = False
    error: float = 0.0

    @property
    def width(self) -> int:
        return sum(count for count, _ in self.parts)

    def each(self, change: Callable[[Part], Part], **other: Any) -> Field:
        """Every part changed."""
        return replace(self, parts=tuple((n, change(p)) for n, p in self.parts), **other)

    def mean_over_units(self) -> tuple[Tensor, Tensor]:
        r"""$K$ and $\Theta$ as the next layer sees them: averages over its inputs."""
        k = sum(n * p.covariance for n, p in self.parts) / self.width
        t = sum(n * p.tangent for n, p in self.parts) / self.width
        assert isinstance(k, Tensor)
        assert isinstance(t, Tensor)
        return (same_place(k), same_place(t)) if self.flattened else (k, t)


def same_place(k: Tensor) -> Tensor:
    """The mean over places that are the same in both samples, `[N, N]`."""
    count = k.shape[0]
    places = math.prod(k.shape[1 : k.ndim // 2])
    return k.reshape(count, places, count, places).diagonal(dim1=1, dim2=3).mean(-1)


def variance(k: Tensor) -> Tensor:
    """Of every sample and place with itself, `[N, *places]`."""
    half = k.shape[: k.ndim // 2]
    size = math.prod(half)
    return k.reshape(size, size).diagonal().reshape(half)


def output_field(made: Any) -> Field:
    """The output of a network, the first of several."""
    several = isinstance(made, tuple | list | dict)
    field = next(iter(made.values() if isinstance(made, dict) else made)) if several else made
    if not isinstance(field, Field):
        raise UnsupportedModel("no limit is known: the network has no layer with random weights")
    return field
