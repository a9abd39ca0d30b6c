r"""Layers of torch that are made of several operations, written out for a watched pass.

Attention with several heads, transformer encoders, and recurrent layers. A recurrent cell has
bounded gates: $c'=\sigma(f)\odot c+\sigma(i)\odot\tanh(g)$ and $h'=\sigma(o)\odot\tanh(c')$ are
products of signals with entries of at most 1 (and $|c'|\le|c|+1$), so the rules of products and of
functions of entries bound them, step by step of the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel


def multihead_attention(
    layer: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, None]:
    """Its output; attention weights are not given."""
    if layer.bias_k is not None or layer.add_zero_attn or key_padding_mask is not None:
        raise UnsupportedModel(
            "attention with a bias of keys, added zeros or padding has no bound here"
        )
    if query.ndim != 3:
        raise UnsupportedModel("attention without a dimension of samples has no bound here")
    inputs: list[Any] = [query, key, value]
    if not layer.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    weights: Any
    if layer._qkv_same_embed_dim:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    shifts: Any = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)

    def split(x: Any, weight: Tensor, shift: Tensor | None) -> Any:
        rows: Any = F.linear(x, weight, shift)
        return rows.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)

    q, k, v = (split(x, w, b) for x, w, b in zip(inputs, weights, shifts, strict=True))
    mask: Any = attn_mask
    if mask is not None and mask.ndim == 3:  # one for every sample and head
        mask = mask.unflatten(0, (-1, layer.num_heads))
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask  # there, what is true is left out; here, what is true takes part
    made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    made = F.linear(made.transpose(1, 2).flatten(2), layer.out_proj.weight, layer.out_proj.bias)
    return (made if layer.batch_first else made.transpose(0, 1)), None


def encoder_layer(
    layer: nn.TransformerEncoderLayer,
    src: Any,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Any:
    """Attention and a dense network, each with a shortcut and a normalization."""

    def attend(x: Any) -> Any:
        made, _ = layer.self_attn(
            x, x, x, attn_mask=src_mask, key_padding_mask=src_key_padding_mask
        )
        return made

    def dense(x: Any) -> Any:
        activation: Callable[[Any], Any] = layer.activation
        return layer.linear2(activation(layer.linear1(x)))

    if layer.norm_first:
        x = src + attend(layer.norm1(src))
        return x + dense(layer.norm2(x))
    x = layer.norm1(src + attend(src))
    return layer.norm2(x + dense(x))


def encoder(
    layer: nn.TransformerEncoder,
    src: Any,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Any:
    """Its layers one after another, and a last normalization where there is one."""
    x = src
    for one in layer.layers:
        x = one(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
    return x if layer.norm is None else layer.norm(x)


def recurrent(layer: nn.RNNBase, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """A plain, LSTM or GRU layer from the initial state 0, step by step."""
    if hx is not None or layer.proj_size or input.ndim != 3:
        raise UnsupportedModel(
            "a recurrent layer with an initial state, a projection or without a dimension of "
            "samples has no bound here"
        )
    x = input if layer.batch_first else input.transpose(0, 1)
    steps = [x[:, t] for t in range(x.shape[1])]
    last: list[tuple[Any, ...]] = []
    for k in range(layer.num_layers):
        ways = []
        for suffix in ("", "_reverse") if layer.bidirectional else ("",):
            cell = _cell(layer, f"_l{k}{suffix}")
            zero = torch.zeros(len(x), layer.hidden_size, dtype=torch.float64, device=input.device)
            state: tuple[Any, ...] = (zero, zero) if isinstance(layer, nn.LSTM) else (zero,)
            made = []
            for z in steps[::-1] if suffix else steps:
                state = cell(z, state)
                made.append(state[0])
            last.append(state)
            ways.append(made[::-1] if suffix else made)
        pairs = zip(*ways, strict=True)
        steps = [p[0] if len(p) == 1 else torch.cat(p, -1) for p in pairs]
    outputs = torch.stack(steps, 1)
    ends = [torch.stack([s[j] for s in last], 0) for j in range(len(last[0]))]
    outputs = outputs if layer.batch_first else outputs.transpose(0, 1)
    return outputs, (tuple(ends) if len(ends) > 1 else ends[0])


def _cell(layer: nn.RNNBase, suffix: str) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
    count = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)

    def parts(name: str) -> list[Any]:
        tensor = getattr(layer, name + suffix, None)
        return [None] * count if tensor is None else list(tensor.detach().chunk(count))

    w, u, b, c = (parts(n) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))

    def gate(k: int, x: Any, h: Any) -> Any:
        return F.linear(x, w[k], b[k]) + F.linear(h, u[k], c[k])

    def lstm(x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        h, old = state
        keep, write, out = (torch.sigmoid(gate(k, x, h)) for k in (1, 0, 3))
        new = keep * old + write * torch.tanh(gate(2, x, h))
        return out * torch.tanh(new), new

    def gru(x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = state
        reset, keep = (torch.sigmoid(gate(k, x, h)) for k in (0, 1))
        new = torch.tanh(F.linear(x, w[2], b[2]) + reset * F.linear(h, u[2], c[2]))
        return (new + keep * (h - new),)

    def plain(x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        made = gate(0, x, state[0])
        return (torch.tanh(made) if layer.mode == "RNN_TANH" else torch.relu(made),)

    return {"LSTM": lstm, "GRU": gru}.get(layer.mode, plain)


#: What a layer of each kind is written out as.
COMPOSED: dict[type[nn.Module], Callable[..., Any]] = {
    nn.MultiheadAttention: multihead_attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
    nn.LSTM: recurrent,
    nn.GRU: recurrent,
    nn.RNN: recurrent,
}
