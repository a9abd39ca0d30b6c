"""Sums of signals and constants, and a signal times a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.propagation.linear_maps import LinearMap
from torchtheory.explanation.propagation.marks import Mark, is_signal, mark_of, noted, together
from torchtheory.explanation.propagation.tracing import Handler, Step, node


def _sum_of(step: Step, terms: Sequence[tuple[Any, float]]) -> Any:
    """Signals and constants, each times a number, added up."""
    value: Any = None
    for t, factor in terms:
        t = t.detach() if isinstance(t, Tensor) else t
        part = t if factor == 1 else t * factor
        value = part if value is None else value + part
    signals = [(t, f) for t, f in terms if is_signal(t)]
    constants = [t if f == 1 else t * f for t, f in terms if not is_signal(t)]
    mark = step.entrywise([t for t, _ in signals], value.ndim)
    if len(signals) == 1 and not constants:
        return scaled(step, signals[0][0], signals[0][1])
    if mark.gate and len(signals) == 1 and not any(isinstance(c, Tensor) for c in constants):
        # 1 - u of a gate u is a gate that lets pass what the other does not
        return noted(node(value, lambda relevance: (relevance,), [signals[0][0]]), mark)
    bias: Tensor | None = None
    for c in constants:
        c = torch.as_tensor(c, dtype=value.dtype, device=value.device)
        bias = c if bias is None else bias + c
    inputs = tuple(t.detach() for t, _ in signals)
    weights = tuple(value.new_tensor(f) for _, f in signals)
    shapes = [t.shape for t in inputs]

    def own(s: Tensor) -> Sequence[Tensor]:
        return [
            (s if f == 1 else s * f).sum_to_size(shape)
            for (_, f), shape in zip(signals, shapes, strict=True)
        ]

    def call(a: Tensor, w: Tensor) -> Tensor:
        return (a * w).expand(value.shape)

    if value.dtype != inputs[0].dtype and not all(i.dtype == value.dtype for i in inputs):
        raise step.refusal(f"{step.name} of tensors of several precisions has no rule")
    linear = LinearMap(inputs, weights, call, value, own, bias, False, step.trace.kept)
    return step.linear([t for t, _ in signals], linear, mark.samples, gate=mark.gate)


def _add(step: Step) -> Any:
    a, b = step.first_two()
    return _sum_of(step, [(a, 1.0), (b, _factor(step))])


def _sub(step: Step) -> Any:
    a, b = step.first_two()
    return _sum_of(step, [(a, 1.0), (b, -_factor(step))])


def _rsub(step: Step) -> Any:
    a, b = step.first_two()
    return _sum_of(step, [(b, 1.0), (a, -_factor(step))])


def _factor(step: Step) -> float:
    return float(step.kwargs.get("alpha", step.args[2] if len(step.args) > 2 else 1))


def scaled(step: Step, x: Tensor, factor: Any) -> Tensor:
    """A signal times a constant: each entry of the result has one source, which gets everything."""
    value = x.detach() * factor
    mark = mark_of(x)
    samples = together([mark.samples], value.ndim)
    known = Mark(samples, mark.gate, mark.depth)
    place, trace = step.place(mark.depth), step.trace
    zero = factor == 0

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        share = relevance
        if zero if isinstance(zero, bool) else bool(zero.any()):
            lost = relevance * torch.as_tensor(zero, device=relevance.device)
            if bool(lost.any()):  # entries that a mask removed have nothing to hand on
                share = relevance - lost
                trace.book(place(), "moved", relevance, samples, [(share, samples)], leaked=lost)
        return (share.sum_to_size(x.shape).to(x.dtype),)

    return noted(node(value, back, [x]), known)


SUMS: dict[str, Handler] = {
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "neg": lambda step: scaled(step, step.signals[0], -1.0),
}
