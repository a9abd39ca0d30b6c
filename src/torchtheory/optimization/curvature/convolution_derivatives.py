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

from torchtheory.optimization.stages.convolutions import Setting, adjoint, convolved, setting_of
from torchtheory.tracing.interpret import Call
from torchtheory.tracing.network import Network, Operation
from torchtheory.tracing.written_out import FORMULAS

_SPATIAL = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def _empty(like: Tensor, shape: torch.Size) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


def _patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
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


def takes_lean_steps(network: Network) -> bool:
    """Whether there is something to gain, and nothing that torch has no second derivative of."""
    if torch.is_autocast_enabled("cpu"):
        return False
    lean = any(op.name == "relu" or op.name in _SPATIAL for op in network)
    return lean and all(op.kind != "composite" for op in network)


def lean_step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation makes of tensors, where convolutions and ReLUs have the derivatives above.

    A normalized weight is written out: torch's own second derivative of it holds the norm fixed.
    A step of `Network.evaluate`; the values are torch's but for roundings.

    >>> from torchtheory.tracing.recorder import record
    >>> net, x = torch.nn.Conv2d(1, 2, 3, padding=1), torch.randn(1, 1, 4, 4)
    >>> y = record(net, x).evaluate([x], 1, lean_step)
    >>> torch.allclose(y, net(x), atol=1e-6)
    True
    """
    made = None
    if op.name == "_weight_norm":
        made = FORMULAS[op.name](**Call(op, args, kwargs, 0).arguments)
    if op.name in ("relu", "view") or op.name in _SPATIAL:
        given = Call(op, args, kwargs, 0).arguments
        x = given["input"]
        if op.name in _SPATIAL:
            made = _convolved(_SPATIAL[op.name], given)
        elif op.name == "relu" and x.requires_grad:
            made = _Relu.apply(x)  # type: ignore[no-untyped-call]
        elif op.name == "view" and "size" in given and not x.is_contiguous():
            made = x.reshape(given["size"])  # the order in memory is no matter of the user's
    return op.function(*args, **kwargs) if made is None else made


def _convolved(spatial: int, given: dict[str, Any]) -> Tensor | None:
    """None for what torch describes in words ("same"), or a single sample."""
    x, w, bias = given["input"], given["weight"], given["bias"]
    setting = setting_of(given, spatial)
    if setting is None or x.ndim != spatial + 2:
        return None
    plain = spatial == 2 and setting.groups == 1 and setting.dilation == (1, 1)
    if plain and not x.requires_grad and w[0].numel() <= 2 * len(w):
        # an image of few channels: its patches are made once, and a product is all that is left
        patches = _patches(x, w.shape[2:], setting.stride, setting.padding)
        return torch.nn.functional.linear(patches, w.flatten(1), bias).permute(0, 3, 1, 2)
    y: Tensor = _Convolution.apply(x, w, setting)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias.reshape(-1, *[1] * spatial)
