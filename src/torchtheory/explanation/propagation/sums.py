"""Sums of signals and constants, and a signal times a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.propagation.linear_maps import LinearMap
from torchtheory.explanation.propagation.marks import Mark, is_signal, mark_of, noted, together
from torchtheory.explanation.propagation.tracing import Handler, Propagation


def _sum_of(trace: Propagation, name: str, terms: Sequence[tuple[Any, float]]) -> Any:
    """Signals and constants, each times a number, added up."""
    value: Any = None
    for t, factor in terms:
        t = t.detach() if isinstance(t, Tensor) else t
        part = t if factor == 1 else t * factor
        value = part if value is None else value + part
    signals = [(t, f) for t, f in terms if is_signal(t)]
    constants = [t if f == 1 else t * f for t, f in terms if not is_signal(t)]
    mark = trace.entrywise([t for t, _ in signals], value.ndim)
    if len(signals) == 1 and not constants:
        return scaled(trace, name, signals[0][0], signals[0][1])
    if mark.gate and len(signals) == 1 and not any(isinstance(c, Tensor) for c in constants):
        # 1 - u of a gate u is a gate that lets pass what the other does not
        return noted(trace.node(value, lambda relevance: (relevance,), [signals[0][0]]), mark)
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
        raise trace.refusal(f"{name} of tensors of several precisions has no rule")
    linear = LinearMap(inputs, weights, call, value, own, bias, False, trace.kept)
    return trace.linear(name, [t for t, _ in signals], linear, mark.samples, gate=mark.gate)


def _add(trace: Propagation, name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _sum_of(trace, name, [(a, 1.0), (b, float(alpha))])


def _sub(trace: Propagation, name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _sum_of(trace, name, [(a, 1.0), (b, -float(alpha))])


def _rsub(trace: Propagation, name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _sum_of(trace, "sub", [(b, 1.0), (a, -float(alpha))])


def scaled(trace: Propagation, name: str, x: Tensor, factor: Any) -> Tensor:
    """A signal times a constant: each entry of the result has one source, which gets everything."""
    value = x.detach() * factor
    mark = mark_of(x)
    samples = together([mark.samples], value.ndim)
    known = Mark(samples, mark.gate, mark.depth)
    place = trace.place(name, mark.depth, weighted=False)
    zero = factor == 0

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        share = relevance
        if zero if isinstance(zero, bool) else bool(zero.any()):
            lost = relevance * torch.as_tensor(zero, device=relevance.device)
            if bool(lost.any()):  # entries that a mask removed have nothing to hand on
                share = relevance - lost
                trace.book(place(), "moved", relevance, samples, [(share, samples)], leaked=lost)
        return (share.sum_to_size(x.shape).to(x.dtype),)

    return noted(trace.node(value, back, [x]), known)


def _neg(trace: Propagation, name: str, x: Tensor) -> Any:
    return scaled(trace, name, x, -1.0)


SUMS: dict[str, Handler] = {
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "neg": _neg,
}
