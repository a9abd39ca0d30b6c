"""Layers with weights, averages and sums along dimensions: linear in one signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.explanation.propagation.linear_maps import LinearMap
from torchtheory.explanation.propagation.marks import (
    by_row,
    constant_along,
    is_signal,
    mark_of,
    reduced,
)
from torchtheory.explanation.propagation.names import function_named
from torchtheory.explanation.propagation.tracing import Handler, Propagation

_CONVOLUTIONS = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
"""

_AVERAGES = """
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    interpolate upsample fold
"""


def linear_map(
    trace: Propagation,
    x: Tensor,
    whole: Callable[[Tensor], Tensor],
    call: Callable[[Tensor, Any], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    as_it_stands: bool = False,
) -> LinearMap:
    """A linear operation on one signal; `whole` is it with everything."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        y = whole(leaf)

    def own(s: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(y, leaf, s)

    return LinearMap(
        (x.detach(),), (weight,), call, y.detach(), own, bias, as_it_stands, trace.kept
    )


def _by_weight(
    trace: Propagation, name: str, input: Tensor, weight: Tensor, bias: Any = None, *args: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """`linear` and convolutions."""
    func = F.linear if name == "linear" else getattr(torch, name)
    if is_signal(weight) or is_signal(bias):
        if name != "linear":
            return NotImplemented
        with trace:
            made = input @ weight.mT
            return made if bias is None else made + bias
    linear = linear_map(
        trace,
        input,
        lambda x: func(x, weight, bias, *args, **named),
        lambda x, w: func(x, w, None, *args, **named),
        weight,
        bias if bias is None or name == "linear" else bias.reshape(-1, *[1] * (weight.ndim - 2)),
    )
    samples = mark_of(input).samples
    constant_along(samples, [-1] if name == "linear" else range(1, input.ndim))
    return trace.linear(name, [input], linear, samples, weighted=True)


def _averaged(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """Fixed coefficients that are not negative, within a sample."""
    func = function_named(name) if name in ("cumsum",) else getattr(F, name)
    linear = linear_map(
        trace,
        x,
        lambda a: func(a, *args, **named),
        lambda a, w: func(a, *args, **named),
        None,
        None,
        as_it_stands="bicubic" in (*args, *named.values()),  # some of its coefficients are negative
    )
    return trace.linear(name, [x], linear, by_row(mark_of(x).samples, linear.output.ndim))


def _added_at(
    trace: Propagation, name: str, x: Tensor, dim: int, index: Tensor, source: Tensor, **named: Any
) -> Any:
    """`index_add` and `scatter_add`: entries are added up where an index says, in a graph say."""
    if not is_signal(source):
        return NotImplemented
    mark = mark_of(source)
    constant_along(mark.samples, [dim])
    base = torch.zeros_like(x.detach())

    def put(a: Tensor) -> Tensor:
        added: Tensor = getattr(torch, name)(base, dim, index, a, **named)
        return added

    linear = linear_map(trace, source, put, lambda a, w: put(a), None, None)
    made = trace.linear(name, [source], linear, mark.samples, gate=mark.gate)
    if not is_signal(x) and not bool(x.any()):
        return made
    with trace:
        return x + made


def _summed(
    trace: Propagation, name: str, x: Tensor, dim: Any = None, keepdim: bool = False, *,
    axis: Any = None, dtype: Any = None,
) -> Any:  # fmt: skip
    """Sums and means along dimensions."""
    dim = dim if axis is None else axis
    mark = mark_of(x)
    samples = reduced(mark.samples, dim, keepdim)

    def reduce(a: Tensor) -> Tensor:
        reduced: Tensor = getattr(torch, name)(a, dim=dim, keepdim=keepdim, dtype=dtype)
        return reduced

    linear = linear_map(trace, x, reduce, lambda a, w: reduce(a), None, None)
    return trace.linear(name, [x], linear, samples, gate=mark.gate)


AFFINE: dict[str, Handler] = {
    "linear": _by_weight,
    **dict.fromkeys(_CONVOLUTIONS.split(), _by_weight),
    **dict.fromkeys(_AVERAGES.split(), _averaged),
    "cumsum": _averaged,
    "index_add": _added_at,
    "scatter_add": _added_at,
    "sum": _summed,
    "mean": _summed,
}
