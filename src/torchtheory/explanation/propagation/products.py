"""Products of two signals, by the product rule; a denominator is a gate that gets nothing."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.explanation.propagation.affine import linear_map
from torchtheory.explanation.propagation.linear_maps import per_unit
from torchtheory.explanation.propagation.marks import (
    Mark,
    constant_along,
    is_signal,
    mark_of,
    noted,
    together,
)
from torchtheory.explanation.propagation.sums import scaled
from torchtheory.explanation.propagation.tracing import Handler, Step, node
from torchtheory.tracing.names import plain_name
from torchtheory.tracing.recurrent_steps import IN_STEPS

#: Layers whose gates let pass an initial state that is no signal.
_RECURRENT = frozenset(plain_name(function)[0] for function in IN_STEPS)


def _mul(step: Step) -> Any:
    a, b = step.first_two()
    if is_signal(a) and is_signal(b):
        return _product(step, a, b)
    signal, constant = (a, b) if is_signal(a) else (b, a)
    recurrent = step.operation.part_of in _RECURRENT
    if recurrent and mark_of(signal).gate and isinstance(constant, Tensor):
        return _product(step, signal, constant)  # a gate and the initial state
    return scaled(step, signal, constant)


def _product(step: Step, a: Tensor, b: Tensor) -> Tensor:
    """Entry by entry; a constant among the two takes its share to the biases."""
    x, y = a.detach(), b.detach()
    value = x * y
    signals = [t for t in (a, b) if is_signal(t)]
    mark, trace = step.entrywise(signals, value.ndim), step.trace
    gates = [is_signal(t) and mark_of(t).gate for t in (a, b)]
    below = [is_signal(t) and mark_of(t).below for t in (a, b)]
    share = trace.rules.product
    place = step.place(mark.depth)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        here = place()
        to_epsilon: Tensor | None = None
        parts: list[Tensor | None]
        if below[0] != below[1]:  # a quotient, whose denominator gets nothing
            parts = [None, relevance] if below[0] else [relevance, None]
        elif share.share == "all" and gates[0] != gates[1]:
            parts = [None, relevance] if gates[0] else [relevance, None]
        elif share.share == "prop" and gates[0] != gates[1]:
            s, to_epsilon = per_unit(relevance, x + y, trace.rules.rule(here).epsilon)
            parts = [s * x, s * y]
        else:
            parts = [relevance / 2, relevance / 2]
        to_biases: Tensor | None = None
        passed: list[tuple[Tensor | None, Tensor | None]] = []
        given: list[Tensor | None] = []
        for t, part in zip((a, b), parts, strict=True):
            if not is_signal(t):
                to_biases = part
                continue
            own = None if part is None else part.sum_to_size(t.shape)
            given.append(own)
            passed.append((own, mark_of(t).samples))
        trace.book(here, share.name, relevance, mark.samples, passed, to_biases, to_epsilon)
        return given

    known = Mark(mark.samples, all(g for g in gates), mark.depth)
    return noted(node(value, back, signals), known)


def _div(step: Step) -> Any:
    return NotImplemented if step.get("rounding_mode") else _quotient(step, *step.first_two())


def _quotient(step: Step, a: Any, b: Any) -> Any:
    """A denominator that is a signal is a gate which gets nothing."""
    below = b.detach() if isinstance(b, Tensor) else b
    if not is_signal(b):
        return scaled(step, a, 1 / below)
    value = (a.detach() if isinstance(a, Tensor) else a) / below
    gate = not is_signal(a) or mark_of(a).gate
    signals = [t for t in (a, b) if is_signal(t)]
    mark = step.entrywise(signals, value.ndim, gate=gate)
    refused = str(step.refusal("no rule for a constant divided by a signal"))

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        if not is_signal(a):
            raise UnsupportedModel(refused)
        return (relevance.sum_to_size(a.shape), None)

    return noted(node(value, back, signals), mark)


def _matrix_product(step: Step, a: Tensor, b: Tensor) -> Any:
    if a.ndim == 1 or b.ndim == 1:
        left = step.apply(torch.unsqueeze, a, 0) if a.ndim == 1 else a
        right = step.apply(torch.unsqueeze, b, -1) if b.ndim == 1 else b
        made = step.apply(torch.matmul, left, right)
        made = step.apply(torch.squeeze, made, -1) if b.ndim == 1 else made
        return step.apply(torch.squeeze, made, -1 if b.ndim == 1 else -2) if a.ndim == 1 else made
    return _bilinear(step, torch.matmul, a, b, _matmul_samples)


def _matmul_samples(a: Tensor | None, b: Tensor | None, ndim: int) -> Tensor | None:
    if a is not None:
        constant_along(a, [-1])
    if b is not None:
        constant_along(b, [-2])
    return together([a, b], ndim)


def _bilinear(
    step: Step,
    func: Callable[[Tensor, Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    samples_of: Callable[[Tensor | None, Tensor | None, int], Tensor | None],
) -> Any:
    """A product of matrices: linear in a signal if the other is constant or a gate."""
    x, y = a.detach(), b.detach()
    owners = [mark_of(t).samples if is_signal(t) else None for t in (a, b)]
    gates = [is_signal(t) and mark_of(t).gate for t in (a, b)]
    both = is_signal(a) and is_signal(b)
    share = step.trace.rules.product.share
    if both and not (share == "all" and gates[0] != gates[1]):
        if share == "prop" and gates[0] != gates[1]:
            raise step.refusal(
                "the share 'prop' of a matrix product, such as that of attention weights and "
                "values, is not defined (use 'all' or 'half'): no rule for it"
            )
        return _halved(step, func, a, b, samples_of(owners[0], owners[1], _ndim(a, b)))
    left = not gates[0] if both else is_signal(a)  # the signal that gets everything
    signal, weight = (a, y) if left else (b, x)

    def call(t: Tensor, w: Tensor) -> Tensor:
        return func(t, w) if left else func(w, t)

    linear = linear_map(step, signal, lambda t: call(t, weight), call, weight, None)
    samples = samples_of(owners[0], owners[1], linear.output.ndim)
    made = step.linear([signal], linear, samples, weighted=not both)
    mark = mark_of(made)
    depth = max(mark.depth, *(mark_of(t).depth for t in (a, b) if is_signal(t)))
    return noted(made, Mark(samples, mark.gate, depth))


def _ndim(a: Tensor, b: Tensor) -> int:
    return max(a.ndim, b.ndim)


def _halved(
    step: Step,
    func: Callable[[Tensor, Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    samples: Tensor | None,
) -> Tensor:
    """Each product in the sum hands half of its share to either factor."""
    leaves = (a.detach().requires_grad_(), b.detach().requires_grad_())
    with torch.enable_grad():
        y = func(*leaves)
    value = y.detach()
    depth = max(mark_of(t).depth for t in (a, b))
    place, trace = step.place(depth), step.trace

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        here = place()
        s, held = per_unit(relevance, value, trace.rules.rule(here).epsilon)
        slopes = torch.autograd.grad(y, leaves, s)
        parts = [0.5 * g * t.detach() for g, t in zip(slopes, leaves, strict=True)]
        trace.book(
            here, trace.rules.product.name, relevance, samples,
            [(p, mark_of(t).samples) for p, t in zip(parts, (a, b), strict=True)], None, held,
        )  # fmt: skip
        return parts

    return noted(node(value, back, [a, b]), Mark(samples, depth=depth))


def _spelled_out(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Letters of the operands and of the result of `einsum`, also of those that are not written."""
    written, arrow, out = equation.replace(" ", "").partition("->")
    terms = written.split(",")
    hidden = [
        t.ndim - len(term) + 3 if "..." in term else 0
        for term, t in zip(terms, operands, strict=True)
    ]
    free = [c for c in string.ascii_letters if c not in equation][: max(hidden)]
    terms = [
        term.replace("...", "".join(free[len(free) - k :]))
        for term, k in zip(terms, hidden, strict=True)
    ]
    if arrow:
        return terms, out.replace("...", "".join(free))
    letters = "".join(terms)
    once = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in free)
    return terms, "".join([*free, *once])


def _einsum(step: Step) -> Any:
    equation, operands = step["equation"], step["operands"]
    if not isinstance(equation, str):
        return NotImplemented
    terms, out = _spelled_out(equation, operands)
    if any(len(set(t)) != len(t) for t in (*terms, out)):
        return NotImplemented
    if len(operands) == 1:
        (own,) = terms
        summed = [k for k, c in enumerate(own) if c not in out]
        made = step.apply(torch.sum, operands[0], summed) if summed else operands[0]
        left = [c for c in own if c in out]
        return step.apply(torch.permute, made, [left.index(c) for c in out])
    if len(operands) > 2:  # the first two, and then the rest
        later = {*out, *"".join(terms[2:])}
        between = "".join(c for c in dict.fromkeys(terms[0] + terms[1]) if c in later)
        pair = step.apply(torch.einsum, f"{terms[0]},{terms[1]}->{between}", *operands[:2])
        rest = f"{','.join([between, *terms[2:]])}->{out}"
        return step.apply(torch.einsum, rest, pair, *operands[2:])
    (first, second), (a, b) = terms, operands
    equation = f"{first},{second}->{out}"

    def spread(samples: Tensor | None, letters: str) -> Tensor | None:
        if samples is None:
            return None
        constant_along(samples, [k for k, c in enumerate(letters) if c not in out])
        kept = [k for c in out for k in [letters.find(c)] if k >= 0]
        summed = [k for k, c in enumerate(letters) if c not in out]
        samples = samples.permute(*kept, *summed)
        shape = iter(samples.shape[: len(kept)])
        return samples.reshape([next(shape) if c in letters else 1 for c in out])

    return _bilinear(
        step, lambda a, b: torch.einsum(equation, a, b), a, b,
        lambda a, b, ndim: together([spread(a, first), spread(b, second)], ndim),
    )  # fmt: skip


PRODUCTS: dict[str, Handler] = {
    "mul": _mul,
    "div": _div,
    "rdiv": lambda step: _quotient(step, *reversed(step.first_two())),
    "matmul": lambda step: _matrix_product(step, *step.first_two()),
    "rmatmul": lambda step: _matrix_product(step, *reversed(step.first_two())),
    "einsum": _einsum,
}
