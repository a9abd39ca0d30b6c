r"""The blocks of a transformer: attention, then the same small network at every position.

$$
Z=\alpha_1S(X)+X,\qquad X_{\text{next}}=\alpha_2\,\sigma(ZW_1)W_2+Z,
$$

with S multi-head attention. Layer normalization stands after each sum (`post`, as in the first
transformer), before each part (`pre`, as in GPT-2), or nowhere, as in the formula. Source:
Foundations of Deep Learning, section 10.4.3; Deep Learning (notes), section 6.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, finite_number, one_of
from torchtheory.core.errors import InvalidType, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import Activation, as_layer
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.sequences.attention.cache import KeysAndValues
from torchtheory.sequences.attention.heads import MultiHeadAttention

Norm = Literal["post", "pre"]
Nonlinearity = str | Activation | nn.Module | Callable[..., Any]


class _Block(nn.Module):
    """What blocks share: self-attention, a network, and where the normalization stands."""

    norm: Norm | None

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: int,
        norm: Norm | None,
        activation: Nonlinearity,
        bias: bool,
        source: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.norm = one_of(norm, "norm", ("post", "pre", None))
        self.attention = MultiHeadAttention(width, heads, bias=bias, generator=source, dtype=dtype)
        self.network = mlp(
            [width, hidden, width], as_layer(activation), bias=bias, generator=source, dtype=dtype
        )

    def _sub(
        self, x: Tensor, part: Callable[[Tensor], Tensor], norm: nn.Module, alpha: float = 1.0
    ) -> Tensor:
        r"""$x+\alpha\,\text{part}(x)$, normalized where the block has it."""
        if self.norm == "pre":
            return x + alpha * part(norm(x))
        made: Tensor = norm(x + alpha * part(x))
        return made

    def _norms(self, count: int, width: int, dtype: torch.dtype) -> list[nn.Module]:
        if self.norm is None:
            return [nn.Identity() for _ in range(count)]
        return [nn.LayerNorm(width, dtype=dtype) for _ in range(count)]

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"


class EncoderBlock(_Block):
    r"""Self-attention and a network of one hidden layer, each added to its input.

    With `causal=True` in the call, and `norm="pre"`, it is the block of a decoder-only language
    model such as GPT-2.

    Args:
        width: d.
        hidden: units of the network's hidden layer.
        heads: of the attention.
        norm: `post`, $\mathrm{LN}(x+\alpha S(x))$; `pre`, $x+\alpha S(\mathrm{LN}(x))$; or None.
        alpha1, alpha2: factors of the two parts.
        activation: of the hidden layer.

    Parameters: $4d^2+2d\,h$, and $9d+h$ in biases and norms. Time: $O(Td^2+Tdh+T^2d)$.

    >>> block = EncoderBlock(8, 16, 2)
    >>> block(torch.ones(1, 5, 8).double()).shape
    torch.Size([1, 5, 8])
    >>> sum(p.numel() for p in block.parameters()) == 4 * 64 + 2 * 8 * 16 + 9 * 8 + 16
    True
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: int,
        norm: Norm | None = "post",
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        *,
        activation: Nonlinearity = "relu",
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        source = as_generator(generator)
        super().__init__(width, hidden, heads, norm, activation, bias, source, dtype)
        self.alpha1 = finite_number(alpha1, "alpha1")
        self.alpha2 = finite_number(alpha2, "alpha2")
        self.norm1, self.norm2 = self._norms(2, width, dtype)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        cache: KeysAndValues | None = None,
    ) -> Tensor:
        """Outputs `[B, T, d]` for `x[B, T, d]`; mask and cache as in `MultiHeadAttention`."""

        def look(z: Tensor) -> Tensor:
            made: Tensor = self.attention(z, mask=mask, causal=causal, cache=cache)
            return made

        z = self._sub(x, look, self.norm1, self.alpha1)
        return self._sub(z, self.network, self.norm2, self.alpha2)

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> EncoderBlock:
        """The same function as torch's layer in evaluation, batch first.

        >>> torchs = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> x = torch.ones(1, 5, 8)
        >>> bool(torch.allclose(EncoderBlock.from_torch(torchs)(x), torchs(x), atol=1e-6))
        True
        """
        if not isinstance(layer, nn.TransformerEncoderLayer):
            raise InvalidType(f"an nn.TransformerEncoderLayer is needed, not {described(layer)}")
        made: EncoderBlock = _without_weights(cls, layer)
        made.alpha1 = made.alpha2 = 1.0
        made.attention = MultiHeadAttention.from_torch(layer.self_attn)
        made.network = _network(layer)
        made.norm1, made.norm2 = map(same_norm, (layer.norm1, layer.norm2))
        return made


class DecoderBlock(_Block):
    r"""Causal self-attention, attention to the encoder's output, a network; each is added.

    Args:
        width: d.
        hidden: units of the network's hidden layer.
        heads: of both attentions.
        norm: as in `EncoderBlock`.
        memory_width: size of the encoder's tokens; d unless given.
        activation: of the hidden layer.

    Parameters: $8d^2+2d\,h$, and $15d+h$ in biases and norms.

    >>> block = DecoderBlock(8, 16, 2)
    >>> x, memory = torch.ones(1, 5, 8).double(), torch.ones(1, 3, 8).double()
    >>> block(x, memory).shape
    torch.Size([1, 5, 8])
    >>> sum(p.numel() for p in block.parameters()) == 8 * 64 + 2 * 8 * 16 + 15 * 8 + 16
    True
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: int,
        norm: Norm | None = "post",
        *,
        memory_width: int | None = None,
        activation: Nonlinearity = "relu",
        bias: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        source = as_generator(generator)
        super().__init__(width, hidden, heads, norm, activation, bias, source, dtype)
        self.cross = MultiHeadAttention(
            width, heads, memory_width=memory_width, bias=bias, generator=source, dtype=dtype
        )
        self.norm1, self.norm2, self.norm3 = self._norms(3, width, dtype)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        memory_mask: Tensor | None = None,
        cache: KeysAndValues | None = None,
        memory_cache: KeysAndValues | None = None,
    ) -> Tensor:
        """Outputs `[B, T, d]` for `x[B, T, d]` and the encoder's `memory[B, S, d_b]`.

        Masks and caches are as in `MultiHeadAttention`; no token looks at a later one of x.
        """

        def look(z: Tensor) -> Tensor:
            made: Tensor = self.attention(z, mask=mask, causal=True, cache=cache)
            return made

        def read(z: Tensor) -> Tensor:
            made: Tensor = self.cross(z, memory, mask=memory_mask, cache=memory_cache)
            return made

        z = self._sub(x, look, self.norm1)
        z = self._sub(z, read, self.norm2)
        return self._sub(z, self.network, self.norm3)

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer) -> DecoderBlock:
        """The same function as torch's layer in evaluation with a causal mask, batch first.

        >>> torchs = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval()
        >>> x, memory = torch.ones(1, 5, 8), torch.ones(1, 3, 8)
        >>> mask = nn.Transformer.generate_square_subsequent_mask(5)
        >>> ours = DecoderBlock.from_torch(torchs)(x, memory)
        >>> bool(torch.allclose(ours, torchs(x, memory, tgt_mask=mask), atol=1e-6))
        True
        """
        if not isinstance(layer, nn.TransformerDecoderLayer):
            raise InvalidType(f"an nn.TransformerDecoderLayer is needed, not {described(layer)}")
        made: DecoderBlock = _without_weights(cls, layer)
        made.attention = MultiHeadAttention.from_torch(layer.self_attn)
        made.cross = MultiHeadAttention.from_torch(layer.multihead_attn)
        made.network = _network(layer)
        norms = layer.norm1, layer.norm2, layer.norm3
        made.norm1, made.norm2, made.norm3 = map(same_norm, norms)
        return made


def _without_weights(kind: Any, layer: Any) -> Any:
    """A block whose parts the caller sets: nothing is drawn."""
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    made.norm = "pre" if layer.norm_first else "post"
    return made


def _network(layer: Any) -> nn.Sequential:
    """The two linear maps of torch's layer and what stands between them."""
    first, last = layer.linear1, layer.linear2
    return nn.Sequential(
        dense(first.weight, first.bias), as_layer(layer.activation), dense(last.weight, last.bias)
    )


def same_norm(norm: nn.Module) -> nn.LayerNorm:
    """A copy of a layer normalization; others are refused."""
    if not isinstance(norm, nn.LayerNorm):
        raise UnsupportedModel(f"blocks have layer normalization, not {type(norm).__name__}")
    made = nn.LayerNorm(
        norm.normalized_shape,
        norm.eps,
        norm.elementwise_affine,
        norm.bias is not None,
        dtype=None if norm.weight is None else norm.weight.dtype,
        device=None if norm.weight is None else norm.weight.device,
    )
    made.load_state_dict(norm.state_dict())
    return made
