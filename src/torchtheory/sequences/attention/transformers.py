r"""Transformers: the encoder, the encoder with a decoder, and the decoder-only language model.

Tokens plus positions go through N blocks. The encoder sees everything at once; a decoder sees the
past only, so that its outputs are the factors of $p(y)=\prod_tp(y_t\mid y_{1:t-1})$, all computed
in one pass. Source: Deep Learning (notes), section 6.4; Foundations of Deep Learning, section
10.4.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import described, one_of, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.sequences.attention.blocks import (
    DecoderBlock,
    EncoderBlock,
    Nonlinearity,
    Norm,
    same_norm,
)
from torchtheory.sequences.attention.cache import KeyValueCache
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.positions import LearnedPositions, SinusoidalPositions

Positions = Literal["sinusoidal", "learned"]


class TransformerEncoder(nn.Module):
    r"""Positions, N encoder blocks, and a last normalization where blocks normalize first.

    Args:
        width: d.
        hidden: units of the blocks' hidden layers.
        heads: of the attention.
        depth: number N of blocks.
        norm: as in `EncoderBlock`.
        positions: a module that adds them, such as `SinusoidalPositions(width)`; None adds none,
            and the encoder is then permutation equivariant.
        activation: of the hidden layers.

    >>> encoder = TransformerEncoder(8, 16, 2, depth=3)
    >>> encoder(torch.ones(2, 5, 8).double()).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: int,
        depth: int,
        *,
        norm: Norm | None = "post",
        positions: nn.Module | None = None,
        activation: Nonlinearity = "relu",
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.width = whole_number(width, "width", least=1)
        self.positions = positions
        self.blocks = nn.ModuleList(
            EncoderBlock(
                width, hidden, heads, norm, activation=activation, generator=source, dtype=dtype
            )
            for _ in range(whole_number(depth, "depth", least=1))
        )
        self.norm = nn.LayerNorm(width, dtype=dtype) if norm == "pre" else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens `[B, T, d]` to tokens `[B, T, d]`; for masks see `MultiHeadAttention`."""
        if self.positions is not None:
            x = self.positions(x)
        for block in self.blocks:
            x = block(x, mask)
        return x if self.norm is None else self.norm(x)

    @classmethod
    def from_torch(cls, encoder: nn.TransformerEncoder) -> TransformerEncoder:
        """The same function as torch's encoder in evaluation, batch first, without positions.

        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> torchs = nn.TransformerEncoder(layer, 2).eval()
        >>> x = torch.ones(1, 5, 8)
        >>> bool(torch.allclose(TransformerEncoder.from_torch(torchs)(x), torchs(x), atol=1e-6))
        True
        """
        if not isinstance(encoder, nn.TransformerEncoder):
            raise InvalidType(f"an nn.TransformerEncoder is needed, not {described(encoder)}")
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.positions = None
        made.blocks = nn.ModuleList(EncoderBlock.from_torch(layer) for layer in encoder.layers)
        made.width = made.blocks[0].attention.width  # type: ignore[union-attr,assignment]
        made.norm = None if encoder.norm is None else same_norm(encoder.norm)
        return made


class Transformer(nn.Module):
    """An encoder that reads x, and a decoder that writes y and looks at what the encoder made.

    Symbols are whole numbers from 0; the decoder starts with a symbol of its own, as in
    `torchtheory.sequences.recurrent.sequence_to_sequence.Seq2Seq`.

    Args:
        inputs: number of symbols that x is made of.
        outputs: number of symbols that y is made of.
        width, hidden, heads: of the blocks.
        depth: number of encoder blocks, and of decoder blocks.
        norm: as in `EncoderBlock`.

    >>> model = Transformer(5, 3, 8, 16, 2, depth=1)
    >>> x, y = torch.zeros(2, 4).long(), torch.ones(2, 6).long()
    >>> model(x, model.after_start(y)).shape
    torch.Size([2, 6, 3])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        width: int,
        hidden: int,
        heads: int,
        depth: int,
        *,
        norm: Norm | None = "post",
        activation: Nonlinearity = "relu",
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.inputs = whole_number(inputs, "inputs", least=1)
        self.outputs = whole_number(outputs, "outputs", least=1)
        self.positions: nn.Module = SinusoidalPositions(width)
        self.symbols = TokenEmbedding(inputs, width, generator=source, dtype=dtype)
        self.written = TokenEmbedding(outputs + 1, width, generator=source, dtype=dtype)
        self.encoder = TransformerEncoder(
            width,
            hidden,
            heads,
            depth,
            norm=norm,
            activation=activation,
            generator=source,
            dtype=dtype,
        )
        self.blocks = nn.ModuleList(
            DecoderBlock(
                width, hidden, heads, norm, activation=activation, generator=source, dtype=dtype
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, dtype=dtype) if norm == "pre" else None
        self.head = drawn_linear(width, outputs, generator=source, dtype=dtype)

    def encode(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The encoder's output `[B, m, d]` for symbols `x[B, m]`."""
        made: Tensor = self.encoder(self.positions(self.symbols(x)), mask)
        return made

    def decode(
        self,
        previous: Tensor,
        memory: Tensor,
        cache: KeyValueCache | None = None,
        *,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits `[B, n, outputs]` after each symbol of `previous[B, n]`.

        With a cache (`cache()` makes an empty one), `previous` holds only the symbols that are new.
        """
        z = self.positions(self.written(previous), 0 if cache is None else cache.length)
        for i, block in enumerate(self.blocks):
            z = block(
                z,
                memory,
                memory_mask=memory_mask,
                cache=None if cache is None else cache.layers[i],
                memory_cache=None if cache is None else cache.memory[i],
            )
        logits: Tensor = self.head(z if self.norm is None else self.norm(z))
        return logits

    def forward(self, x: Tensor, previous: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Logits `[B, n, outputs]` at each step, the decoder reading `previous[B, n]`.

        Args:
            x: symbols `[B, m]` that the encoder reads.
            previous: as `after_start` makes it.
            mask: of x, for the encoder and for the decoder's look at it: with padding,
                `present[:, None]` of `present[B, m]`; see `MultiHeadAttention`.
        """
        return self.decode(previous, self.encode(x, mask), memory_mask=mask)

    def after_start(self, y: Tensor) -> Tensor:
        """What the decoder reads for `y[B, n]`: the start symbol, then y without its end."""
        check_tokens(y, self.outputs, "y")
        return torch.cat([torch.full_like(y[:, :1], self.outputs), y[:, :-1]], 1)

    def cache(self) -> KeyValueCache:
        """An empty cache for `decode`."""
        return KeyValueCache(len(self.blocks))


class LanguageModel(nn.Module):
    r"""A decoder-only transformer: logits of the next token after each token.

    The form of GPT-2: blocks that normalize first, causal attention, a last normalization, and the
    matrix of the embedding once more as the head.

    Args:
        vocabulary: number of tokens.
        width: d.
        heads: of the attention.
        depth: number of blocks.
        length: the longest sequence there are positions for; sinusoidal ones have no limit.
        hidden: units of the blocks' hidden layers, 4 d unless given.
        positions: `learned` or `sinusoidal`.
        norm: as in `EncoderBlock`.
        activation: of the hidden layers; the approximate GELU of GPT-2 unless given.
        tied: whether the head is the embedding's matrix.

    >>> model = LanguageModel(11, 8, heads=2, depth=2, length=16)
    >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
    >>> whole = model(tokens)
    >>> cache = model.cache()
    >>> steps = [model(tokens[:, t : t + 1], cache) for t in range(5)]
    >>> whole.shape, bool(torch.allclose(torch.cat(steps, 1), whole))
    (torch.Size([1, 5, 11]), True)
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        depth: int,
        *,
        length: int = 1024,
        hidden: int | None = None,
        positions: Positions = "learned",
        norm: Norm | None = "pre",
        activation: Nonlinearity | None = None,
        tied: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.vocabulary = whole_number(vocabulary, "vocabulary", least=1)
        self.width = whole_number(width, "width", least=1)
        hidden = 4 * width if hidden is None else hidden
        # of spread 0.02, as in GPT-2: the head is the same matrix, and logits start near 0
        spread = 0.02 if tied else 1.0
        self.embedding = TokenEmbedding(
            vocabulary, width, spread=spread, generator=source, dtype=dtype
        )
        self.positions: nn.Module
        if one_of(positions, "positions", ("learned", "sinusoidal")) == "learned":
            self.positions = LearnedPositions(length, width, generator=source, dtype=dtype)
        else:
            self.positions = SinusoidalPositions(width)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                width,
                hidden,
                heads,
                norm,
                activation=nn.GELU(approximate="tanh") if activation is None else activation,
                generator=source,
                dtype=dtype,
            )
            for _ in range(whole_number(depth, "depth", least=1))
        )
        self.norm = nn.LayerNorm(width, dtype=dtype) if norm == "pre" else None
        self.head = (
            None
            if tied
            else drawn_linear(width, vocabulary, bias=False, generator=source, dtype=dtype)
        )

    def features(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """What the head reads, `[B, T, d]`, for `tokens[B, T]`."""
        x = self.positions(self.embedding(tokens), 0 if cache is None else cache.length)
        for i, block in enumerate(self.blocks):
            x = block(x, causal=True, cache=None if cache is None else cache.layers[i])
        return x if self.norm is None else self.norm(x)  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Logits `[B, T, V]` of the token after each of `tokens[B, T]`.

        With a cache, `tokens` are those after what it holds, and are added to it. Time per new
        token: $O(Nd^2+NTd)$ with a cache that holds T positions.
        """
        x = self.features(tokens, cache)
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def cache(self) -> KeyValueCache:
        """An empty cache for `forward`."""
        return KeyValueCache(len(self.blocks))

    @classmethod
    def from_gpt2(cls, weights: Mapping[str, Tensor], heads: int) -> LanguageModel:
        """The model with the weights of a GPT-2, as the package `transformers` names them.

        Args:
            weights: the state dict of a `GPT2LMHeadModel`, or of a `GPT2Model`, whose head is the
                embedding. Its buffers, if any, are not needed.
            heads: of the attention, which the weights do not tell: 12, 16, 20 or 25 for the
                published ones.

        Other settings are GPT-2's own: the approximate GELU, 1e-5 in the normalizations, scores
        divided by the root of their size.
        """
        if not isinstance(weights, Mapping):
            raise InvalidType(f"a state dict is needed, not {described(weights)}")
        found = {name.removeprefix("transformer."): w.detach() for name, w in weights.items()}
        numbers = [re.match(r"h\.(\d+)\.", name) for name in found]
        depth = 1 + max((int(m.group(1)) for m in numbers if m), default=-1)
        needed = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
        needed += [f"h.{i}.{part}.{kind}" for i in range(depth) for part in _GPT2 for kind in _BOTH]
        missing = [name for name in needed if name not in found]
        if missing or depth == 0:
            raise InvalidInput(
                f"these are not the weights of a GPT-2: {missing[0] if missing else 'h.0'} is not "
                "among them"
            )
        table = found["wte.weight"]
        vocabulary, width = table.shape
        if width % whole_number(heads, "heads", least=1):
            raise InvalidInput(f"{heads} heads do not divide the width {width} of these weights")
        made = cls(
            1,
            width,
            heads,
            depth,
            length=1,
            hidden=1,
            dtype=table.dtype,
        )
        made.vocabulary = vocabulary
        made.embedding = TokenEmbedding.of(table)
        made.positions = LearnedPositions.of(found["wpe.weight"])
        head = found.get("lm_head.weight")
        if head is not None and not torch.equal(head, table):
            made.head = dense(head)
        for i, block in enumerate(made.blocks):
            assert isinstance(block, EncoderBlock)
            _give_gpt2(block, {p: [found[f"h.{i}.{p}.{k}"] for k in _BOTH] for p in _GPT2})
        assert made.norm is not None
        _give_norm(made.norm, found["ln_f.weight"], found["ln_f.bias"])
        return made


class TokenEmbedding(nn.Embedding):
    """A vector per token; tokens that are none are refused.

    >>> TokenEmbedding(3, 2)(torch.tensor([[0, 2]])).shape
    torch.Size([1, 2, 2])
    """

    def __init__(
        self,
        tokens: int,
        width: int,
        *,
        spread: float = 1.0,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        tokens = whole_number(tokens, "tokens", least=1)
        width = whole_number(width, "width", least=1)
        self.spread = spread
        values = gaussian(tokens, width, generator=as_generator(generator), dtype=dtype)
        super().__init__(tokens, width, _weight=values * spread)

    @classmethod
    def of(cls, table: Tensor) -> TokenEmbedding:
        """The embedding with copies of given vectors `[tokens, width]`."""
        made = cls(1, 1, spread=float(table.std(correction=0)))
        made.num_embeddings, made.embedding_dim = table.shape
        made.weight = nn.Parameter(table.detach().clone())
        return made

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.spread)

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens, self.num_embeddings, "tokens")
        return super().forward(tokens)


def check_tokens(x: Tensor, count: int, name: str) -> None:
    """Refuse what are not sequences `[B, T]` of numbers of tokens."""
    if not isinstance(x, Tensor) or x.dtype not in (torch.int64, torch.int32):
        raise InvalidType(f"{name} must be a tensor of whole numbers, not {described(x)}")
    if x.ndim != 2:
        raise ShapeMismatch(f"{name} must be [sequences, positions], not {list(x.shape)}")
    if x.numel() == 0:
        raise EmptyData(f"{name} is empty, its shape is {list(x.shape)}")
    low, high = (int(v) for v in x.aminmax())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise InvalidInput(f"{name} has the token {wrong}, and there are {count}: 0 to {count - 1}")


_BOTH = ("weight", "bias")
_GPT2 = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")


def _give_gpt2(block: EncoderBlock, given: Mapping[str, list[Tensor]]) -> None:
    """GPT-2's matrices stand transposed, and those of queries, keys and values side by side."""

    def linear(name: str) -> nn.Linear:
        weight, bias = given[name]
        return dense(weight.T, bias)

    weight, bias = given["attn.c_attn"]
    attention: MultiHeadAttention = block.attention
    parts: Iterable[Any] = zip(weight.T.chunk(3), bias.chunk(3), strict=True)
    attention.query, attention.key, attention.value = (dense(w, b) for w, b in parts)
    attention.output = linear("attn.c_proj")
    block.network = nn.Sequential(linear("mlp.c_fc"), block.network[1], linear("mlp.c_proj"))
    for norm, name in ((block.norm1, "ln_1"), (block.norm2, "ln_2")):
        assert isinstance(norm, nn.LayerNorm)
        _give_norm(norm, *given[name])


def _give_norm(norm: nn.LayerNorm, weight: Tensor, bias: Tensor) -> None:
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
