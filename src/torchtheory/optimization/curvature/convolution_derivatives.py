r"""Convolutions and rectifiers whose derivatives of every order cost what they must.

A convolution $y=w*x$ is bilinear, and its two adjoints, $\bar x=w^\star\bar y$ and
$\bar w=x^\star\bar y$, are bilinear as well. Differentiating any of the three gives the other
two again, so all derivatives are made of three maps. torch's own second derivative also computes
the part that belongs to an input which needs no gradient, such as an image; here it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Stride, padding and dilation, one number a spatial dimension, and groups.
Setting = tuple[list[int], list[int], list[int], int]
_RELUS = {torch.relu, torch.Tensor.relu, torch.nn.functional.relu}
_SPATIAL = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


def _arguments(setting: Setting) -> tuple[Any, ...]:
    stride, padding, dilation, groups = setting
    return stride, padding, dilation, False, [0] * len(stride), groups


def channels_last(tensor: Tensor) -> Tensor:
    """Images and filters with their channels last, in which convolutions run fastest.

    >>> channels_last(torch.zeros(2, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    """
    if tensor.ndim == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _empty(like: Tensor, shape: torch.Size) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


def convolved(x: Tensor, w: Tensor, setting: Setting, bias: Tensor | None = None) -> Tensor:
    """The convolution, channels last."""
    x, w = channels_last(x), channels_last(w)
    return channels_last(torch.ops.aten.convolution(x, w, bias, *_arguments(setting)))


def adjoint(outer: Tensor, x: Tensor, w: Tensor, setting: Setting, *, to_weight: bool) -> Tensor:
    """Its adjoint in `x` or in `w`, channels last; of the one it is in, only the shape counts."""
    outer, x, w = channels_last(outer), channels_last(x), channels_last(w)
    mask = [not to_weight, to_weight, False]
    made: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        outer, x, w, None, *_arguments(setting), mask
    )
    return channels_last(made[int(to_weight)])


def _patches(x: Tensor, kernel: Sequence[int], stride: list[int], padding: list[int]) -> Tensor:
    """The patches that filters meet, `[n, h, w, channels x height x width]`."""
    x = x.permute(0, 2, 3, 1)
    if any(padding):
        x = torch.nn.functional.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    patches = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    return patches.flatten(3)


class _Convolution(torch.autograd.Function):
    """`y` of `x` and `w`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, setting: Setting) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.setting = setting
        return convolved(x, w, setting)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        x, w = ctx.saved_tensors
        to_x, to_w, _ = ctx.needs_input_grad
        return (
            _ToInput.apply(outer, w, x.shape, ctx.setting) if to_x else None,  # type: ignore[no-untyped-call]
            _ToWeight.apply(outer, x, w.shape, ctx.setting) if to_w else None,  # type: ignore[no-untyped-call]
            None,
        )


class _ToInput(torch.autograd.Function):
    """The adjoint in `x`: of an outer derivative and `w`."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, w: Tensor, shape: torch.Size, setting: Setting) -> Tensor:
        ctx.save_for_backward(outer, w)
        ctx.setting = setting
        x = _empty(outer, shape)  # only its shape is looked at
        return adjoint(outer, x, w, setting, to_weight=False)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Any:
        outer, w = ctx.saved_tensors
        to_outer, to_w, *_ = ctx.needs_input_grad
        return (
            _Convolution.apply(x, w, ctx.setting) if to_outer else None,  # type: ignore[no-untyped-call]
            _ToWeight.apply(outer, x, w.shape, ctx.setting) if to_w else None,  # type: ignore[no-untyped-call]
            None,
            None,
        )


class _ToWeight(torch.autograd.Function):
    """The adjoint in `w`: of an outer derivative and `x`."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, x: Tensor, shape: torch.Size, setting: Setting) -> Tensor:
        ctx.save_for_backward(outer, x)
        ctx.setting = setting
        w = _empty(outer, shape)
        return adjoint(outer, x, w, setting, to_weight=True)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Any:
        outer, x = ctx.saved_tensors
        to_outer, to_x, *_ = ctx.needs_input_grad
        return (
            _Convolution.apply(x, w, ctx.setting) if to_outer else None,  # type: ignore[no-untyped-call]
            _ToInput.apply(outer, w, x.shape, ctx.setting) if to_x else None,  # type: ignore[no-untyped-call]
            None,
            None,
        )


class _Relu(torch.autograd.Function):
    """`max(x, 0)`, whose second derivative torch fills with zeros and adds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return _Gate.apply(outer, y.detach())  # type: ignore[no-untyped-call]


class _Gate(torch.autograd.Function):
    """What of an outer derivative passes where `y > 0`: linear in it, constant in `y`."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        passed: Tensor = torch.ops.aten.threshold_backward(outer, y, 0)
        return passed

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return _Gate.apply(outer, y), None  # type: ignore[no-untyped-call]


class LeanConvolutions(TorchFunctionMode):
    """Inside this block convolutions and ReLUs are differentiated as above; values are torch's own.

    >>> x, w = torch.randn(1, 1, 4, 4), torch.randn(2, 1, 3, 3, requires_grad=True)
    >>> with LeanConvolutions():
    ...     y = torch.nn.functional.conv2d(x, w, padding=1)
    >>> bool((y == torch.nn.functional.conv2d(x, w, padding=1)).all())
    True
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func in _RELUS and len(args) == 1 and not named.get("inplace") and args[0].requires_grad:
            return _Relu.apply(args[0])  # type: ignore[no-untyped-call]
        if func is torch.Tensor.view and not (
            args[0].is_contiguous() or torch.dtype in map(type, args)
        ):
            func = torch.Tensor.reshape  # the order in memory is ours, and no matter of the user's
        if func in _SPATIAL:
            made = self._convolved(_SPATIAL[func], *args, **named)
            if made is not None:
                return made
        return func(*args, **named)

    def _convolved(
        self,
        spatial: int,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        """None for what torch describes in words ("same"), or a single sample."""
        if isinstance(padding, str) or input.ndim != spatial + 2:
            return None
        stride, padding, dilation = (
            [n] * spatial if isinstance(n, int) else list(n) * (spatial // len(n))
            for n in (stride, padding, dilation)
        )
        plain = spatial == 2 and groups == 1 and dilation == [1, 1]
        if plain and not input.requires_grad and weight[0].numel() <= 2 * len(weight):
            # an image of few channels: its patches are made once, and a product is all that is left
            patches = _patches(input, weight.shape[2:], stride, padding)
            return torch.nn.functional.linear(patches, weight.flatten(1), bias).permute(0, 3, 1, 2)
        y: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
            input, weight, (stride, padding, dilation, groups)
        )
        return y if bias is None else y + bias.reshape(-1, *[1] * spatial)
