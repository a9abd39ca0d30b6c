"""What decoding asks of a model: read tokens, give the logits of the next, reorder the sequences.

`continuation` finds out how a model is asked: a `LanguageModel` with its cache of keys and values,
an encoder-decoder with the encoder's output kept, a recurrent `Seq2Seq` with its state, and any
other function from tokens `[B, T]` to logits `[B, T, V]` or `[B, V]` (also behind an attribute
`logits`, as Hugging Face's models have it), which reads everything again at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.nets.attention.cache import KeyValueCache
from torchtheory.nets.attention.transformers import LanguageModel, Transformer
from torchtheory.nets.recurrent.sequence_to_sequence import Decoding, Seq2Seq


class Continuation(Protocol):
    """Sequences that are being written."""

    def read(self, tokens: Tensor) -> Tensor:
        """Logits `[B, V]` of the token after these new ones `[B, n]`."""
        ...

    def select(self, rows: Tensor) -> None:
        """Go on with the sequences of these numbers `[b]`, reordered or repeated."""
        ...


def continuation(model: Any, *, source: Tensor | None = None, cache: bool = True) -> Continuation:
    """How to ask this model for the next token, again and again.

    Args:
        model: a `LanguageModel`, a `Transformer` or `Seq2Seq` with `source`, or a function from
            tokens to logits.
        source: what an encoder reads, `[B, m]`.
        cache: keep keys and values where the model has them to keep.
    """
    if isinstance(model, Seq2Seq | Transformer):
        if source is None:
            raise InvalidInput(
                f"a {type(model).__name__} writes what its encoder reads: give source="
            )
        if isinstance(model, Seq2Seq):
            return _Recurrent(model, source)
        decoder = _Decoder(model, source)
        return _Caching(decoder, model.cache()) if cache else _Rereading(decoder)
    if source is not None:
        raise InvalidInput(f"{described(model)} has no encoder that could read source")
    if isinstance(model, LanguageModel) and cache:
        return _Caching(model, model.cache())
    if not callable(model):
        raise InvalidType(
            f"the model must be a function from tokens [B, T] to logits [B, T, V], "
            f"not {described(model)}"
        )
    return _Rereading(model)


def as_prompt(prompt: Tensor) -> Tensor:
    """Tokens `[B, T]`, one sequence `[T]` being a batch of one; not empty, and none negative.

    >>> as_prompt(torch.tensor([5, 3])).shape
    torch.Size([1, 2])
    """
    if not isinstance(prompt, Tensor) or prompt.dtype != torch.int64:
        raise InvalidType(
            f"a prompt is a tensor of tokens (torch.long), not {described(prompt)}: "
            "torch.tensor makes one of a list of numbers"
        )
    if prompt.ndim not in (1, 2):
        raise ShapeMismatch(f"a prompt is [T] or [sequences, T], not {list(prompt.shape)}")
    if prompt.numel() == 0:
        raise EmptyData("the prompt is empty: begin with a start token")
    if int(prompt.min()) < 0:
        raise InvalidInput(f"tokens count from 0, and the prompt holds {int(prompt.min())}")
    return prompt if prompt.ndim == 2 else prompt.unsqueeze(0)


class _Rereading:
    """A model that keeps nothing: all tokens are read again at each step."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.tokens: Tensor | None = None

    def read(self, tokens: Tensor) -> Tensor:
        self.tokens = tokens if self.tokens is None else torch.cat([self.tokens, tokens], 1)
        return next_logits(self.model, self.tokens)

    def select(self, rows: Tensor) -> None:
        assert self.tokens is not None
        self.tokens = self.tokens[rows]
        if isinstance(self.model, _Decoder):
            self.model.select(rows)


class _Caching:
    """A model that keeps keys and values: only new tokens are read."""

    def __init__(self, model: LanguageModel | _Decoder, cache: KeyValueCache) -> None:
        self.model, self.cache = model, cache

    def read(self, tokens: Tensor) -> Tensor:
        return next_logits(lambda new: self.model(new, cache=self.cache), tokens)

    def select(self, rows: Tensor) -> None:
        self.cache = self.cache.select(rows)
        if isinstance(self.model, _Decoder):
            self.model.select(rows)


class _Decoder:
    """The decoder of an encoder-decoder as a language model: what the encoder said is kept."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self.model, self.memory = model, model.encode(source)

    def __call__(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        return self.model.decode(tokens, self.memory, cache=cache)

    def select(self, rows: Tensor) -> None:
        self.memory = self.memory[rows]


class _Recurrent:
    """A recurrent decoder: its state is all it keeps."""

    def __init__(self, model: Seq2Seq, source: Tensor) -> None:
        self.model, self.given = model, model.encode(source)

    def read(self, tokens: Tensor) -> Tensor:
        logits = None
        for symbol in tokens.unbind(1):
            logits, self.given, _ = self.model.step(symbol, self.given)
        assert logits is not None
        return logits

    def select(self, rows: Tensor) -> None:
        self.given = Decoding(self.given.state[rows], self.given.memory[rows])


def next_logits(model: Callable[..., Any], tokens: Tensor) -> Tensor:
    """Logits `[B, V]` of the token after `tokens[B, T]`, in float32 or float64."""
    try:
        made = model(tokens)
    except IndexError as error:
        raise InvalidInput(
            f"the model cannot read these tokens, the largest being {int(tokens.max())} "
            f"({error}); does it come from another tokenizer?"
        ) from error
    made = getattr(made, "logits", made)
    if not isinstance(made, Tensor) or not made.is_floating_point():
        raise InvalidType(f"the model must give logits, a tensor [B, T, V], not {described(made)}")
    if made.ndim == 3:
        made = made[:, -1]
    if made.ndim != 2 or len(made) != len(tokens):
        raise ShapeMismatch(
            f"for tokens {list(tokens.shape)} the model must give logits [{len(tokens)}, T, V], "
            f"not {list(made.shape)}"
        )
    if made.isnan().any():
        raise NonFinite("the model's logits hold NaN")
    return made if made.dtype == torch.float64 else made.float()
