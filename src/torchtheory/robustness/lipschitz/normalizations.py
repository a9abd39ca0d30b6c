"""Softmax, and normalization by the entries themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.robustness.lipschitz.affine_operations import batch_norm, value_of
from torchtheory.robustness.lipschitz.entrywise_operations import slope_bounded
from torchtheory.robustness.lipschitz.watched_pass import Extent, Pass, Signal, times


def softmax(watch: Pass, input: Any, dim: Any = None, **_: Any) -> Any:
    x = input
    value = torch.softmax(x.value, dim)
    rows = value.numel() // (watch.centers * value.shape[dim])

    def rule(one: Extent) -> Extent:
        # two probability vectors are at most √2 apart
        far = torch.full_like(one.distance, math.sqrt(2 * rows))
        return Extent(one.lipschitz / 2, torch.minimum(one.distance / 2, far), torch.ones_like(far))

    return watch.node(value, (x,), rule)


def log_softmax(watch: Pass, input: Any, dim: Any = None, **_: Any) -> Any:
    r"""Its Jacobian is $I - \mathbb 1p^\top$; the norm is convex in p, so largest at a corner."""
    value = torch.log_softmax(input.value, dim)
    constant = math.sqrt(value.shape[dim])
    return slope_bounded(watch, input, value, constant, "log_softmax")


def normalization(
    watch: Pass,
    x: Signal,
    value: Tensor,
    groups: Callable[[Tensor], Tensor],
    eps: float,
    steepest: float,
    *,
    centered: bool,
) -> Signal:
    r"""Every group of $d$ entries, less its mean, over its standard deviation.

    With $u$ the group, centered or not, $\sigma=\sqrt{\|u\|^2/d+\varepsilon}$, the Jacobian of
    $u/\sigma$ is

    $$
    \frac1\sigma\Big(I-\frac{uu^\top}{\|u\|^2+d\varepsilon}\Big),
    $$

    of norm at most $1/\sigma$, attained in every direction at a right angle to $u$ (and, of the
    centered one, to the constants). On a ball of radius $r$ about $c$ the group is no shorter
    than $\|c\|-r$, since centering is a projection; on the whole space $\sigma\ge\sqrt\varepsilon$.
    What comes out is no longer than $\sqrt d$, before the scales $\gamma$.

    Args:
        groups: the entries of a value as `[b, groups, d]`.
        steepest: $\max|\gamma|$.
    """
    grouped = groups(x.value)
    if centered:
        grouped = grouped - grouped.mean(-1, keepdim=True)
    d, count = grouped.shape[-1], grouped.shape[-2]
    shortest = grouped.norm(dim=-1).amin(1)

    def rule(one: Extent) -> Extent:
        least = (shortest - one.distance).clamp_min(0.0)
        constant = steepest / (least.square() / d + eps).sqrt()
        far = torch.full_like(least, 2 * steepest * math.sqrt(d * count))
        lipschitz = times(constant, one.lipschitz)
        distance = torch.minimum(times(constant, one.distance), far)
        return Extent(lipschitz, distance, torch.full_like(far, math.inf))

    return watch.node(value, (x,), rule)


def _steepest(watch: Pass, weight: Any) -> float:
    return 1.0 if weight is None else float(watch.double(weight).abs().max())


def layer_norm(
    watch: Pass,
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    eps: float = 1e-5,
    **_: Any,
) -> Any:
    x, value = input, value_of(watch)
    d = math.prod(normalized_shape)

    def groups(v: Tensor) -> Tensor:
        return v.reshape(watch.centers, -1, d)

    return normalization(watch, x, value, groups, eps, _steepest(watch, weight), centered=True)


def rms_norm(
    watch: Pass,
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    eps: Any = None,
    **_: Any,
) -> Any:
    small = torch.finfo(torch.float32).eps if eps is None else eps
    x, value = input, value_of(watch)
    d = math.prod(normalized_shape)

    def groups(v: Tensor) -> Tensor:
        return v.reshape(watch.centers, -1, d)

    return normalization(watch, x, value, groups, small, _steepest(watch, weight), centered=False)


def group_norm(
    watch: Pass, input: Any, num_groups: int, weight: Any = None, eps: float = 1e-5, **_: Any
) -> Any:
    x, value = input, value_of(watch)

    def groups(v: Tensor) -> Tensor:
        return v.reshape(watch.centers, -1, v[0].numel() // num_groups)

    return normalization(watch, x, value, groups, eps, _steepest(watch, weight), centered=True)


def instance_norm(
    watch: Pass,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    eps: float = 1e-5,
    **_: Any,
) -> Any:
    x = input
    if not use_input_stats:
        return batch_norm(watch, x, running_mean, running_var, weight, bias, eps=eps)
    value = value_of(watch)

    def groups(v: Tensor) -> Tensor:
        return v.reshape(watch.centers, -1, v[0, 0].numel())

    return normalization(watch, x, value, groups, eps, _steepest(watch, weight), centered=True)
