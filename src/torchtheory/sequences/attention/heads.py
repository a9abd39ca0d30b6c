r"""Multi-head attention: h attentions side by side, each with its own matrices.

$$
\operatorname{MHA}(A,B)=[\Xi_1,\dots,\Xi_h]\,W_O,\qquad
\Xi_j=\operatorname{Att}(AW_Q^j,\,BW_K^j,\,BW_V^j),
$$

self-attention for $B=A$, cross-attention otherwise. The three projections of all heads are one
product each, and are split afterwards. Source: Deep Learning (notes), sections 6.1 and 6.2;
Foundations of Deep Learning, section 10.4.2.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.sequences.attention.cache import KeysAndValues
from torchtheory.sequences.attention.dot_product import attention, causal_mask, checked_mask


class MultiHeadAttention(nn.Module):
    r"""Attention with several heads, of a sequence to itself or to another one.

    Args:
        width: size $d_a$ of the tokens that look, and of the outputs.
        heads: number h of heads; it divides the width unless key_size and value_size are given.
        memory_width: size $d_b$ of the tokens that are looked at; the width unless given.
        key_size: $d_k$ of one head, width / heads unless given.
        value_size: $d_v$ of one head, as key_size unless given.
        bias: whether the four linear maps have biases.

    Attributes:
        query, key, value: `nn.Linear` to $hd_k$, $hd_k$, $hd_v$ numbers.
        output: $W_O$, an `nn.Linear` from $hd_v$ to the width.

    Parameters: $h(d_ad_k+d_bd_k+d_bd_v+d_vd_a)$ and the biases; $4(d^2+d)$ with the defaults. Time:
    $O((T+S)d^2+TSd)$. Where no weights are asked for, torch's fused attention does it.

    >>> layer = MultiHeadAttention(8, 2)
    >>> x = torch.zeros(3, 5, 8).double()
    >>> out, weights = layer(x, weights=True)
    >>> out.shape, weights.shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]), 288)
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        memory_width: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.width = whole_number(width, "width", least=1)
        self.heads = whole_number(heads, "heads", least=1)
        if key_size is None and width % heads:
            raise InvalidInput(
                f"{heads} heads do not divide the width {width}: choose others, or give key_size"
            )
        key = width // heads if key_size is None else whole_number(key_size, "key_size", least=1)
        size = key if value_size is None else whole_number(value_size, "value_size", least=1)
        seen = width if memory_width is None else memory_width
        self.memory_width = whole_number(seen, "memory_width", least=1)
        source = as_generator(generator)

        def drawn(inputs: int, outputs: int) -> nn.Linear:
            return drawn_linear(inputs, outputs, bias=bias, generator=source, dtype=dtype)

        self.query, self.key = drawn(width, heads * key), drawn(self.memory_width, heads * key)
        self.value, self.output = drawn(self.memory_width, heads * size), drawn(heads * size, width)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: KeysAndValues | None = None,
        weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Outputs `[B, T, d_a]`, and the weights `[B, heads, T, S]` if they are asked for.

        Args:
            x: tokens that look, `[B, T, d_a]`.
            memory: tokens that are looked at, `[B, S, d_b]`; x unless given.
            mask: `[S]`, `[T, S]`, `[B, T, S]` or `[B, heads, T, S]`, with 1 where it is the same
                along an axis; of booleans, true where a token may look (for padding,
                `present[:, None]` of `present[B, S]`), or of numbers that are added to the scores.
            causal: no token looks at a later one; x are the last T of the S positions.
            cache: keys and values so far. Those of x are appended; those of the memory are
                computed once, when the cache is empty.
        """
        q = self._split(self.query(self._checked(x, self.width, "x")))
        k, v = self._keys_and_values(x, memory, cache)
        if len(k) != len(q):
            raise ShapeMismatch(f"{len(q)} sequences cannot look at {len(k)}: one each is needed")
        t, s = q.shape[-2], k.shape[-2]
        if causal and t > s:
            raise ShapeMismatch(
                f"{t} tokens cannot be the last of the {s} that they look at: causal attention is "
                "of a sequence to itself, or of its end to all of it"
            )
        if mask is not None:
            if isinstance(mask, Tensor) and mask.ndim == 3:
                mask = mask.unsqueeze(1)
            mask = checked_mask(mask, torch.Size((*q.shape[:-1], s)))
            mask = mask if mask.dtype == torch.bool else mask.to(q.dtype)
            mask = mask[None] if mask.ndim < 2 else mask  # torch's takes no fewer axes
        if causal and (mask is not None or weights or t < s):
            mask = self._causal(t, s, mask, q)
            causal = False
        if weights:
            heads, seen = attention(q, k, v, mask)
            return self.output(heads.transpose(-2, -3).flatten(-2)), seen
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.output(heads.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.width}, heads={self.heads}"

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same function as torch's layer in evaluation, batch first.

        >>> torchs = nn.MultiheadAttention(8, 2, kdim=3, vdim=3, batch_first=True)
        >>> x, memory = torch.ones(1, 4, 8), torch.ones(1, 5, 3)
        >>> ours = MultiHeadAttention.from_torch(torchs)
        >>> bool(torch.allclose(ours(x, memory), torchs(x, memory, memory)[0], atol=1e-6))
        True
        """
        if not isinstance(layer, nn.MultiheadAttention):
            raise InvalidType(f"an nn.MultiheadAttention is needed, not {described(layer)}")
        if layer.bias_k is not None or layer.add_zero_attn:
            raise UnsupportedModel(
                "an nn.MultiheadAttention with add_bias_kv or add_zero_attn looks at tokens that "
                "are not given, which has no counterpart here"
            )
        if layer.kdim != layer.vdim:
            raise UnsupportedModel("keys and values of different sizes do not come from one memory")
        d = layer.embed_dim
        # torch says of these three that they are always there
        own: list[Any] = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
        matrices = list(layer.in_proj_weight.chunk(3)) if own[0] is None else own
        biases = [None] * 3 if layer.in_proj_bias is None else list(layer.in_proj_bias.chunk(3))
        made = cls._of(d, layer.num_heads, layer.kdim)
        made.query, made.key, made.value = map(dense, matrices, biases)
        made.output = dense(layer.out_proj.weight, layer.out_proj.bias)
        return made

    def to_torch(self) -> nn.MultiheadAttention:
        """torch's layer with the same weights, batch first; keys and values of size width / heads.

        >>> x = torch.ones(1, 4, 8).double()
        >>> ours = MultiHeadAttention(8, 2)
        >>> bool(torch.allclose(ours(x), ours.to_torch()(x, x, x)[0]))
        True
        """
        maps = self.query, self.key, self.value
        if any(m.out_features != self.width for m in maps):
            raise UnsupportedModel(
                "nn.MultiheadAttention has keys and values of size width / heads, not others"
            )
        other = self.memory_width if self.memory_width != self.width else None
        # made without storage, so that torch draws no weights from its own randomness
        made = nn.MultiheadAttention(
            self.width,
            self.heads,
            bias=self.query.bias is not None,
            kdim=other,
            vdim=other,
            batch_first=True,
            dtype=self.query.weight.dtype,
            device="meta",
        ).to_empty(device=self.query.weight.device)
        with torch.no_grad():
            if other is None:
                made.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
            else:
                given = made.q_proj_weight, made.k_proj_weight, made.v_proj_weight
                for weight, m in zip(given, maps, strict=True):
                    weight.copy_(m.weight)
            made.out_proj.weight.copy_(self.output.weight)
            if made.in_proj_bias is not None:
                made.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
                made.out_proj.bias.copy_(self.output.bias)
        return made

    @classmethod
    def _of(cls, width: int, heads: int, memory_width: int) -> MultiHeadAttention:
        """A layer whose maps the caller sets: nothing is drawn."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.width, made.heads, made.memory_width = width, heads, memory_width
        return made

    def _split(self, x: Tensor) -> Tensor:
        """`[B, T, h k]` to `[B, h, T, k]`."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(-2, -3)

    def _keys_and_values(
        self, x: Tensor, memory: Tensor | None, cache: KeysAndValues | None
    ) -> tuple[Tensor, Tensor]:
        if memory is not None and cache is not None and cache.length:
            assert cache.keys is not None
            assert cache.values is not None
            return cache.keys, cache.values
        if memory is None:
            memory, name = x, "x"
        else:
            name = "memory"
        memory = self._checked(memory, self.memory_width, name)
        k, v = self._split(self.key(memory)), self._split(self.value(memory))
        return (k, v) if cache is None else cache.extend(k, v)

    @staticmethod
    def _checked(x: Any, width: int, name: str) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise InvalidType(f"{name} must be a tensor of numbers, not {described(x)}")
        if x.ndim != 3 or x.shape[-1] != width:
            raise ShapeMismatch(f"{name} must be [sequences, tokens, {width}], not {list(x.shape)}")
        if x.numel() == 0:
            raise EmptyData(f"{name} is empty, its shape is {list(x.shape)}")
        return x

    @staticmethod
    def _causal(t: int, s: int, mask: Tensor | None, q: Tensor) -> Tensor:
        """The causal mask for the last t of s positions, together with another one."""
        causal = causal_mask(t, s, dtype=q.dtype, device=q.device)
        if mask is None:
            return causal
        if mask.dtype == torch.bool:
            return mask & (causal == 0)
        return mask + causal
