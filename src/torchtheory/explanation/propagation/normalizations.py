"""Normalizations: affine by running statistics; by a sample's own, with their scale held fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.propagation.affine import linear_map
from torchtheory.explanation.propagation.linear_maps import LinearMap
from torchtheory.explanation.propagation.marks import constant_along, mark_of
from torchtheory.explanation.propagation.tracing import Handler, Step


def _batch_norm(step: Step) -> Any:
    """An affine map of each channel, in evaluation mode."""
    x, weight, bias = step["input"], step["weight"], step["bias"]
    mean, variance = step["running_mean"], step["running_var"]
    if step.get("training", False) or mean is None or variance is None:
        raise step.refusal(
            "batch normalization by the statistics of the batch mixes samples: give it running "
            "statistics and call model.eval()"
        )
    scale = torch.rsqrt(variance + step["eps"])
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else (-1,)
    return _scaled_and_shifted(step, x, scale.reshape(shape), shift.reshape(shape))


def _scaled_and_shifted(step: Step, x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    a = x.detach()
    output = a * scale if shift is None else torch.addcmul(shift, a, scale)
    linear = LinearMap(
        (a,),
        (scale,),
        lambda a, w: a * w,
        output,
        lambda s: (s * scale,),
        shift,
        False,
        step.trace.kept,
    )
    return step.linear([x], linear, mark_of(x).samples)


def _normalized(
    step: Step, x: Tensor, scale: Tensor, centered: Callable[[Tensor], Tensor],
    weight: Tensor | None, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """A normalization by a sample's own statistics, whose scale counts as a constant."""
    factor = scale if weight is None else scale * weight

    def whole(a: Tensor) -> Tensor:
        made = centered(a) * factor
        return made if bias is None else made + bias

    linear = linear_map(
        step, x, whole, lambda a, w: centered(a) * factor, None, bias, as_it_stands=True
    )
    return step.linear([x], linear, mark_of(x).samples)


def _last_dimensions(step: Step) -> tuple[int, ...]:
    dims = tuple(range(-len(tuple(step["normalized_shape"])), 0))
    constant_along(mark_of(step["input"]).samples, dims)
    return dims


def _layer_norm(step: Step) -> Any:
    x, dims = step["input"], _last_dimensions(step)
    scale = torch.rsqrt(x.detach().var(dims, unbiased=False, keepdim=True) + step["eps"])
    return _normalized(
        step, x, scale, lambda a: a - a.mean(dims, keepdim=True), step["weight"], step["bias"]
    )


def _rms_norm(step: Step) -> Any:
    x, dims, eps = step["input"], _last_dimensions(step), step["eps"]
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = torch.rsqrt(x.detach().square().mean(dims, keepdim=True) + eps)
    return _normalized(step, x, scale, lambda a: a, step["weight"], None)


def _by_groups(step: Step, groups: int) -> Any:
    x = step["input"]
    constant_along(mark_of(x).samples, range(1, x.ndim))
    shape = (-1, *[1] * (x.ndim - 2))

    def by_group(a: Tensor) -> Tensor:
        return a.reshape(len(a), groups, -1)

    own = by_group(x.detach())
    scale = torch.rsqrt(own.var(-1, unbiased=False, keepdim=True) + step["eps"])
    wide = scale.expand_as(own).reshape(x.shape)

    def centered(a: Tensor) -> Tensor:
        grouped = by_group(a)
        return (grouped - grouped.mean(-1, keepdim=True)).reshape(x.shape)

    channels = [None if t is None else t.reshape(shape) for t in (step["weight"], step["bias"])]
    return _normalized(step, x, wide, centered, channels[0], channels[1])


def _instance_norm(step: Step) -> Any:
    if not step["use_input_stats"]:
        return _batch_norm(step)
    return _by_groups(step, step["input"].shape[1])


NORMALIZATIONS: dict[str, Handler] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": lambda step: _by_groups(step, step["num_groups"]),
    "instance_norm": _instance_norm,
}
