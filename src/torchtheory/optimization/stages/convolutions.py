r"""A convolution and its two adjoints, with channels last.

A convolution $y=w*x$ is bilinear, and its adjoints, $\bar x=w^\star\bar y$ and
$\bar w=x^\star\bar y$, are bilinear as well. Differentiating any of the three gives the other two
again, so all derivatives are made of these three maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Setting:
    """What a convolution is besides its filters, one number per spatial dimension.

    Attributes:
        stride, padding, dilation: as torch has them.
        groups: of channels.
        transposed: whether it is the adjoint of one.
        extra: places at the end of a transposed one.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    extra: tuple[int, ...] = ()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In ATen's order."""
        extra = self.extra or (0,) * len(self.stride)
        return (
            list(self.stride), list(self.padding), list(self.dilation), self.transposed,
            list(extra), self.groups,
        )  # fmt: skip


def setting_of(given: dict[str, Any], spatial: int) -> Setting | None:
    """Of the arguments of a convolution by name; None for what is described in words ("same").

    >>> setting_of({"stride": 2, "padding": (1,), "dilation": 1, "groups": 1}, 2)
    Setting(stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=1, transposed=False, extra=())
    """

    def each(n: Any) -> tuple[int, ...]:
        return (n,) * spatial if isinstance(n, int) else tuple(n) * (spatial // len(n))

    if isinstance(given["padding"], str):
        return None
    stride, padding, dilation = (each(given[k]) for k in ("stride", "padding", "dilation"))
    transposed = bool(given.get("transposed", "output_padding" in given))
    extra = each(given["output_padding"]) if transposed else ()
    return Setting(stride, padding, dilation, given["groups"], transposed, extra)


def channels_last(tensor: Tensor) -> Tensor:
    """Images and filters with their channels last, in which convolutions run fastest.

    >>> channels_last(torch.zeros(2, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    """
    if tensor.ndim == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def convolved(x: Tensor, w: Tensor, setting: Setting, bias: Tensor | None = None) -> Tensor:
    """The convolution, channels last."""
    x, w = channels_last(x), channels_last(w)
    return channels_last(torch.ops.aten.convolution(x, w, bias, *setting.arguments))


def adjoint(outer: Tensor, x: Tensor, w: Tensor, setting: Setting, *, to_weight: bool) -> Tensor:
    """Its adjoint in `x` or in `w`, channels last; of the one it is in, only the shape counts."""
    outer, x, w = channels_last(outer), channels_last(x), channels_last(w)
    mask = [not to_weight, to_weight, False]
    made: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        outer, x, w, None, *setting.arguments, mask
    )
    return channels_last(made[int(to_weight)])
