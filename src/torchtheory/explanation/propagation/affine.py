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
from torchtheory.explanation.propagation.tracing import Handler, Step
from torchtheory.tracing.kinds import AVERAGES, RESIZES

_CONVOLUTIONS = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
"""


def linear_map(
    step: Step,
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
        (x.detach(),), (weight,), call, y.detach(), own, bias, as_it_stands, step.trace.kept
    )


def _by_weight(step: Step) -> Any:
    """`linear` and convolutions."""
    given = step.arguments
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    func: Any = F.linear if step.name == "linear" else getattr(torch, step.name)
    if is_signal(weight) or is_signal(bias):
        if step.name != "linear":
            return NotImplemented
        made = step.apply(torch.matmul, x, step.apply(torch.transpose, weight, -2, -1))
        return made if bias is None else step.apply(torch.add, made, bias)
    linear = linear_map(
        step,
        x,
        lambda a: func(**{**given, "input": a}),
        lambda a, w: func(**{**given, "input": a, "weight": w, "bias": None}),
        weight,
        bias
        if bias is None or step.name == "linear"
        else bias.reshape(-1, *[1] * (weight.ndim - 2)),
    )
    samples = mark_of(x).samples
    constant_along(samples, [-1] if step.name == "linear" else range(1, x.ndim))
    return step.linear([x], linear, samples, weighted=True)


def _of_one(step: Step, **settings: Any) -> LinearMap:
    """An operation with fixed coefficients, of its one signal."""
    x = step.signals[0]

    def whole(a: Tensor) -> Tensor:
        made: Tensor = step.of((x, a))
        return made

    return linear_map(step, x, whole, lambda a, w: whole(a), None, None, **settings)


def _averaged(step: Step) -> Any:
    """Fixed coefficients that are not negative, within a sample."""
    x = step.signals[0]
    # some of the coefficients are negative
    bicubic = step.name == "upsample_bicubic2d" or step.get("mode") == "bicubic"
    linear = _of_one(step, as_it_stands=bicubic)
    return step.linear([x], linear, by_row(mark_of(x).samples, linear.output.ndim))


def _added_at(step: Step) -> Any:
    """`index_add` and `scatter_add`: entries are added up where an index says, in a graph say."""
    x, source = step["input"], step.get("source", step.get("src"))
    if not is_signal(source):
        return NotImplemented
    mark = mark_of(source)
    constant_along(mark.samples, [step["dim"]])
    base = torch.zeros_like(x.detach())

    def put(a: Tensor) -> Tensor:
        added: Tensor = step.of((x, base), (source, a))
        return added

    linear = linear_map(step, source, put, lambda a, w: put(a), None, None)
    made = step.linear([source], linear, mark.samples, gate=mark.gate)
    if not is_signal(x) and not bool(x.any()):
        return made
    return step.apply(torch.add, x, made)


def _summed(step: Step) -> Any:
    """Sums and means along dimensions."""
    x = step.signals[0]
    samples = reduced(mark_of(x).samples, step.get("dim"), bool(step.get("keepdim", False)))
    return step.linear([x], _of_one(step), samples, gate=mark_of(x).gate)


AFFINE: dict[str, Handler] = {
    "linear": _by_weight,
    **dict.fromkeys(_CONVOLUTIONS.split(), _by_weight),
    **dict.fromkeys((*AVERAGES, *RESIZES, "fold", "col2im", "cumsum"), _averaged),
    "index_add": _added_at,
    "scatter_add": _added_at,
    "sum": _summed,
    "mean": _summed,
}
