"""Normalizations: affine by running statistics; by a sample's own, with their scale held fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.propagation.affine import linear_map
from torchtheory.explanation.propagation.linear_maps import LinearMap
from torchtheory.explanation.propagation.marks import constant_along, mark_of
from torchtheory.explanation.propagation.tracing import Handler, Propagation


def _batch_norm(
    trace: Propagation,
    name: str,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """An affine map of each channel, in evaluation mode."""
    if training or running_mean is None or running_var is None:
        raise trace.refusal(
            "batch normalization by the statistics of the batch mixes samples: give it running "
            "statistics and call model.eval();"
        )
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    shape = (-1, *[1] * (input.ndim - 2)) if input.ndim > 1 else (-1,)
    return _scaled_and_shifted(trace, name, input, scale.reshape(shape), shift.reshape(shape))


def _scaled_and_shifted(
    trace: Propagation, name: str, x: Tensor, scale: Tensor, shift: Tensor | None
) -> Tensor:
    a = x.detach()
    output = a * scale if shift is None else torch.addcmul(shift, a, scale)
    linear = LinearMap(
        (a,), (scale,), lambda a, w: a * w, output, lambda s: (s * scale,), shift, False, trace.kept
    )
    return trace.linear(name, [x], linear, mark_of(x).samples)


def _normalized(
    trace: Propagation, name: str, x: Tensor, scale: Tensor, centered: Callable[[Tensor], Tensor],
    weight: Tensor | None, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """A normalization by a sample's own statistics, whose scale counts as a constant."""
    factor = scale if weight is None else scale * weight

    def whole(a: Tensor) -> Tensor:
        made = centered(a) * factor
        return made if bias is None else made + bias

    linear = linear_map(
        trace, x, whole, lambda a, w: centered(a) * factor, None, bias, as_it_stands=True
    )
    return trace.linear(name, [x], linear, mark_of(x).samples)


def _layer_norm(
    trace: Propagation, name: str, input: Tensor, normalized_shape: Any,
    weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    constant_along(mark_of(input).samples, dims)
    scale = torch.rsqrt(input.detach().var(dims, unbiased=False, keepdim=True) + eps)
    return _normalized(
        trace, name, input, scale, lambda a: a - a.mean(dims, keepdim=True), weight, bias
    )


def _rms_norm(
    trace: Propagation, name: str, input: Tensor, normalized_shape: Any,
    weight: Tensor | None = None, eps: float | None = None,
) -> Any:  # fmt: skip
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    constant_along(mark_of(input).samples, dims)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    scale = torch.rsqrt(input.detach().square().mean(dims, keepdim=True) + eps)
    return _normalized(trace, name, input, scale, lambda a: a, weight, None)


def _group_norm(
    trace: Propagation, name: str, input: Tensor, num_groups: int, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    constant_along(mark_of(input).samples, range(1, input.ndim))
    shape = (-1, *[1] * (input.ndim - 2))

    def by_group(a: Tensor) -> Tensor:
        return a.reshape(len(a), num_groups, -1)

    own = by_group(input.detach())
    scale = torch.rsqrt(own.var(-1, unbiased=False, keepdim=True) + eps)
    wide = scale.expand_as(own).reshape(input.shape)

    def centered(a: Tensor) -> Tensor:
        groups = by_group(a)
        return (groups - groups.mean(-1, keepdim=True)).reshape(input.shape)

    channels = [None if t is None else t.reshape(shape) for t in (weight, bias)]
    return _normalized(trace, name, input, wide, centered, channels[0], channels[1])


def _instance_norm(
    trace: Propagation, name: str, input: Tensor, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(
            trace, name, input, running_mean, running_var, weight, bias, False, momentum, eps
        )
    return _group_norm(trace, name, input, input.shape[1], weight, bias, eps)


NORMALIZATIONS: dict[str, Handler] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
}
