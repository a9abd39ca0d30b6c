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
from torchtheory.explanation.propagation.marks import Mark, constant_along, mark_of, noted
from torchtheory.explanation.propagation.tracing import Handler, Step, node
from torchtheory.tracing.activations import ACTIVATION_FACTS

#: Beside those of the table of activations.
_FUNCTIONS = """
    tan asin acos sinh cosh atanh erfc exp exp2 expm1 log log2 log10 log1p square sqrt rsqrt
    reciprocal pow rpow sign nan_to_num
"""

_GATES = {"sigmoid", "hardsigmoid", "exp"}
_BELOW = {"rsqrt", "reciprocal"}


def _activation(step: Step) -> Any:
    if len(step.signals) > 1:
        return NotImplemented
    (x,), name = step.signals, step.name
    if name == "pow" and x is not step.first_two()[0]:  # an exponent
        return NotImplemented
    value, mark = step.of((x, x.detach())), mark_of(x)
    at_zero = 0.0
    if name not in ("sigmoid", "hardsigmoid", "prelu"):
        there = step.of((x, x.new_zeros(())))
        if there.numel() != 1:
            return NotImplemented
        at_zero = float(there)
    below = name in _BELOW or (name == "pow" and at_zero == math.inf)
    gate = below or name in _GATES or (mark.gate and name in ("clamp", "clamp_min", "clamp_max"))
    ends = name if name in ("sigmoid", "hardsigmoid") else ""
    known = Mark(mark.samples, gate, mark.depth, ends, below)
    if at_zero == 0:
        return noted(node(value, lambda relevance: (relevance,), [x]), known)
    if not math.isfinite(at_zero):
        refused = str(step.refusal(f"no rule for {name}, which is not finite at 0"))

        def refuse(relevance: Tensor) -> Sequence[Tensor | None]:
            raise UnsupportedModel(refused)

        return noted(node(value, refuse, [x]), known)
    place, trace = step.place(mark.depth), step.trace

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        none = value == 0
        share = torch.where(none, 0, (value - at_zero) / value) * relevance
        fixed = torch.where(none, 0, at_zero / value) * relevance
        trace.book(
            place(), "change from 0", relevance, mark.samples, [(share, mark.samples)], fixed,
            leaked=relevance * none,
        )  # fmt: skip
        return (share,)

    return noted(node(value, back, [x]), known)


def _softmax(step: Step) -> Any:
    x = step.signals[0]
    value, mark = step.of((x, x.detach())), mark_of(x)
    dim = step.get("dim")
    if isinstance(dim, int):
        constant_along(mark.samples, [dim])
    made = node(value, lambda relevance: (relevance,), [x])
    return noted(made, Mark(mark.samples, step.name == "softmax", mark.depth, step.name))


ENTRYWISE: dict[str, Handler] = {
    **dict.fromkeys((*ACTIVATION_FACTS, *_FUNCTIONS.split()), _activation),
    "softmax": _softmax,
    "log_softmax": _softmax,
}
