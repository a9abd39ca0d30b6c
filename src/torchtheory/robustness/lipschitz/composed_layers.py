r"""Attention with several heads and recurrent layers, written out in rules of signals.

A recurrent cell has bounded gates: $c'=\sigma(f)\odot c+\sigma(i)\odot\tanh(g)$ and
$h'=\sigma(o)\odot\tanh(c')$ are products of signals with entries of at most 1 (and
$|c'|\le|c|+1$), so the rules of products and of functions of entries bound them, step by step of
the sequence. Every gate has its own part of the weights, whose norm is smaller than that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtheory.robustness.lipschitz.affine_operations import add, affine, item, join, linear
from torchtheory.robustness.lipschitz.entrywise_operations import slope_bounded
from torchtheory.robustness.lipschitz.pointwise import operation_constant
from torchtheory.robustness.lipschitz.products import attention, multiply
from torchtheory.robustness.lipschitz.watched_pass import Pass, Signal, Untold

#: Slopes of the functions of a cell.


def _moved(watch: Pass, function: Callable[..., Any], x: Any, *args: Any) -> Any:
    return affine(watch, function, "moves", (x, *args), {})


def several_heads(
    watch: Pass,
    query: Any,
    key: Any,
    value: Any,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    out_proj_weight: Any,
    out_proj_bias: Any,
    **other: Any,
) -> Any:
    """Attention of torch's layer; attention weights are not given."""
    left_out = ("bias_k", "bias_v", "key_padding_mask", "static_k", "static_v")
    if other.get("add_zero_attn") or any(other.get(name) is not None for name in left_out):
        raise watch.refuse(
            "attention with a bias of keys, added zeros or padding has no bound here"
        )
    inputs = [query, key, value]
    if any(not isinstance(x, Signal) or x.ndim != 3 for x in inputs):
        raise watch.refuse("attention without a dimension of samples has no bound here")
    weights = (
        [other[f"{k}_proj_weight"] for k in "qkv"]
        if in_proj_weight is None
        else in_proj_weight.chunk(3)
    )
    shifts = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)

    def split(x: Any, weight: Tensor, shift: Tensor | None) -> Any:
        rows = linear(watch, _moved(watch, torch.transpose, x, 0, 1), weight, shift)
        heads = _moved(watch, torch.unflatten, rows, -1, (num_heads, -1))
        return _moved(watch, torch.transpose, heads, 1, 2)

    q, k, v = (split(x, w, b) for x, w, b in zip(inputs, weights, shifts, strict=True))
    mask = other.get("attn_mask")
    if mask is not None and mask.ndim == 3:  # one for every sample and head
        mask = mask.unflatten(0, (-1, num_heads))
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask  # there, what is true is left out; here, what is true takes part
    made = _moved(watch, torch.transpose, attention(watch, q, k, v, mask), 1, 2)
    made = linear(watch, _moved(watch, torch.flatten, made, 2), out_proj_weight, out_proj_bias)
    return _moved(watch, torch.transpose, made, 0, 1), Untold("the weights of an attention")


def recurrent(mode: str) -> Callable[..., Any]:
    """The rule of a plain, LSTM or GRU layer."""

    def rule(watch: Pass, **given: Any) -> Any:
        return _layers(watch, mode, **given)

    return rule


def _layers(
    watch: Pass,
    mode: str,
    input: Any,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
    **other: Any,
) -> Any:
    assert not (other.get("train") and other.get("dropout"))  # it runs in evaluation mode
    states = [hx] if isinstance(hx, Tensor | Signal) else list(hx)
    each = len(params) // (num_layers * (2 if bidirectional else 1))
    if each != (4 if has_biases else 2) or not isinstance(input, Signal) or input.ndim != 3:
        raise watch.refuse(
            "a recurrent layer with a projection or without samples has no bound here"
        )
    x = input if batch_first else _moved(watch, torch.transpose, input, 0, 1)
    everything = slice(None)
    steps: list[Any] = [item(watch, x, (everything, t)) for t in range(x.shape[1])]
    last: list[tuple[Any, ...]] = []
    for _ in range(num_layers):
        ways = []
        for side in range(2 if bidirectional else 1):
            number = len(last)
            own = params[number * each : (number + 1) * each]
            cell = _cell(watch, mode, own)
            state = tuple(
                s[number] if isinstance(s, Tensor) else item(watch, s, number) for s in states
            )
            made = []
            for z in steps[::-1] if side else steps:
                state = cell(z, state)
                made.append(state[0])
            last.append(state)
            ways.append(made[::-1] if side else made)
        pairs = zip(*ways, strict=True)
        steps = [p[0] if len(p) == 1 else join(watch, p, -1) for p in pairs]
    outputs = join(watch, steps, 1, stack=True)
    ends = [join(watch, [s[j] for s in last], 0, stack=True) for j in range(len(last[0]))]
    outputs = outputs if batch_first else _moved(watch, torch.transpose, outputs, 0, 1)
    return (outputs, *ends)


def _cell(
    watch: Pass, mode: str, weights: Sequence[Tensor]
) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
    count = {"LSTM": 4, "GRU": 3}.get(mode, 1)
    parts = [list(t.detach().chunk(count)) for t in weights]
    w, u = parts[0], parts[1]
    b, c = parts[2:] if len(parts) == 4 else ([None] * count, [None] * count)

    def dense(z: Any, weight: Tensor, shift: Tensor | None) -> Any:
        if isinstance(z, Signal):
            return linear(watch, z, weight, shift)
        return torch.nn.functional.linear(watch.double(z), weight, shift)

    def plus(one: Any, other: Any) -> Any:
        if isinstance(one, Signal) or isinstance(other, Signal):
            one, other = (other, one) if isinstance(one, Tensor) else (one, other)
            return add(watch, one, other)
        return one + other

    def by(one: Any, other: Any) -> Any:
        signals = isinstance(one, Signal) or isinstance(other, Signal)
        return multiply(watch, one, other) if signals else one * other

    def bent(name: str, z: Any) -> Any:
        function = getattr(torch, name)
        if not isinstance(z, Signal):
            return function(z)
        return slope_bounded(watch, z, function(z.value), operation_constant(name, {}), name)

    def gate(k: int, x: Any, h: Any) -> Any:
        return plus(dense(x, w[k], b[k]), dense(h, u[k], c[k]))

    def lstm(x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        h, old = state
        keep, write, out = (bent("sigmoid", gate(k, x, h)) for k in (1, 0, 3))
        new = plus(by(keep, old), by(write, bent("tanh", gate(2, x, h))))
        return by(out, bent("tanh", new)), new

    def gru(x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = state
        reset, keep = (bent("sigmoid", gate(k, x, h)) for k in (0, 1))
        inner = plus(dense(x, w[2], b[2]), by(reset, dense(h, u[2], c[2])))
        new = bent("tanh", inner)
        return (plus(new, by(keep, add(watch, h, new, sign=-1))),)

    def plain(x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return (bent("tanh" if mode == "RNN_TANH" else "relu", gate(0, x, state[0])),)

    return {"LSTM": lstm, "GRU": gru}.get(mode, plain)
