r"""Functions of entries, which hand on relevance unchanged.

Where $f(0)\ne0$, as for softplus, this part of the output is nobody's: $f(0)/f(x)$ of the relevance
goes to the biases. Gates (sigmoid, softmax) hand on everything, as in the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.explanation.propagation.marks import (
    Mark,
    constant_along,
    is_signal,
    mark_of,
    noted,
)
from torchtheory.explanation.propagation.names import function_named
from torchtheory.explanation.propagation.tracing import Handler, Propagation
from torchtheory.models.model import tensors_in

_FUNCTIONS = """
    relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardtanh tanh softsign tanhshrink
    softshrink hardshrink sigmoid hardsigmoid softplus threshold logsigmoid prelu rrelu abs sin cos
    tan atan sinh cosh asinh erf exp expm1 log log1p square sqrt rsqrt reciprocal clamp clamp_min
    clamp_max sign nan_to_num
"""

_GATES = {"sigmoid", "hardsigmoid", "exp"}
_BELOW = {"rsqrt", "reciprocal"}


def _activation(trace: Propagation, name: str, x: Any, *args: Any, **named: Any) -> Any:
    if not is_signal(x) or any(is_signal(t) for t in tensors_in([*args, *named.values()])):
        return NotImplemented
    func = function_named(name)
    value = func(x.detach(), *args, **named)
    mark = mark_of(x)
    at_zero = 0.0
    if name not in ("sigmoid", "hardsigmoid", "prelu"):
        at_zero = float(func(x.new_zeros(()), *args, **named))
    below = name in _BELOW or (name == "pow" and at_zero == math.inf)
    gate = below or name in _GATES or (mark.gate and name in ("clamp", "clamp_min", "clamp_max"))
    ends = name if name in ("sigmoid", "hardsigmoid") else ""
    known = Mark(mark.samples, gate, mark.depth, ends, below)
    if at_zero == 0:
        return noted(trace.node(value, lambda relevance: (relevance,), [x]), known)
    if not math.isfinite(at_zero):
        refused = trace.located(f"no rule for {name}, which is not finite at 0,")

        def refuse(relevance: Tensor) -> Sequence[Tensor | None]:
            raise UnsupportedModel(refused)

        return noted(trace.node(value, refuse, [x]), known)
    place = trace.place(name, mark.depth, weighted=False)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        none = value == 0
        share = torch.where(none, 0, (value - at_zero) / value) * relevance
        fixed = torch.where(none, 0, at_zero / value) * relevance
        trace.book(
            place(), "change from 0", relevance, mark.samples, [(share, mark.samples)], fixed,
            leaked=relevance * none,
        )  # fmt: skip
        return (share,)

    return noted(trace.node(value, back, [x]), known)


def _power(trace: Propagation, name: str, x: Any, exponent: Any) -> Any:
    if not is_signal(x) or is_signal(exponent):
        return NotImplemented
    return _activation(trace, name, x, exponent)


def _softmax(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    named.pop("_stacklevel", None)
    args = args[:1]
    func = getattr(torch, name)
    value = func(x.detach(), *args, **named)
    mark = mark_of(x)
    dim = named.get("dim", args[0] if args else None)
    if isinstance(dim, int):
        constant_along(mark.samples, [dim])
    made = trace.node(value, lambda relevance: (relevance,), [x])
    return noted(made, Mark(mark.samples, name == "softmax", mark.depth, name))


ENTRYWISE: dict[str, Handler] = {
    **dict.fromkeys(_FUNCTIONS.split(), _activation),
    "pow": _power,
    "softmax": _softmax,
    "log_softmax": _softmax,
}
