"""What decoding asks of a model: read tokens, give the logits of the next, reorder the sequences.

`continuation` finds out how a model is asked: a `LanguageModel` with its cache of keys and values,
an encoder-decoder with the encoder's output kept, a recurrent `Seq2Seq` with its state, and any
other function from tokens `[B, T]` to logits `[B, T, V]` or `[B, V]` (also behind an attribute
`logits`, as Hugging Face's models have it), which reads everything again at each step, and so does
an encoder-decoder of Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.sequences.attention.cache import KeyValueCache
from torchtheory.sequences.attention.transformers import LanguageModel, Transformer
from torchtheory.sequences.recurrent.sequence_to_sequence import Decoding, Seq2Seq


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
        model: a `LanguageModel`, a `Transformer`, `Seq2Seq` or encoder-decoder of Hugging Face's
            with `source`, or a function from tokens to logits.
        source: what an encoder reads, `[B, m]`.
        cache: keep keys and values where the model has them to keep.
    """
    foreign = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if foreign or isinstance(model, Seq2Seq | Transformer):
        if source is None:
            raise InvalidInput(
                f"a {type(model).__name__} writes what its encoder reads: give source="
            )
        if isinstance(model, Seq2Seq):
            return _Recurrent(model, source)
        if foreign:
            return _Rereading(_ForeignDecoder(model, source))
        decoder = _Decoder(model, source)
        return _Caching(decoder, model.cache()) if cache else _Rereading(decoder)
    if source is not None:
        raise InvalidInput(f"{described(model)} has no encoder that could read source")
    if isinstance(model, LanguageModel) and cache:
        return _Caching(model, model.cache())
    return _Rereading(model)


def as_prompt(prompt: Tensor, name: str = "a prompt") -> Tensor:
    """Tokens `[B, T]`, one sequence `[T]` being a batch of one; not empty, and none negative.

    >>> as_prompt(torch.tensor([5, 3])).shape
    torch.Size([1, 2])
    """
    if not isinstance(prompt, Tensor) or prompt.dtype != torch.int64:
        raise InvalidType(
            f"{name} is a tensor of tokens (torch.long), not {described(prompt)}: "
            "torch.tensor makes one of a list of numbers"
        )
    if prompt.ndim not in (1, 2):
        raise ShapeMismatch(f"{name} is [T] or [sequences, T], not {list(prompt.shape)}")
    if prompt.numel() == 0:
        raise EmptyData(f"{name} is empty: begin with a start token")
    if int(prompt.min()) < 0:
        raise InvalidInput(f"tokens count from 0, and {name} holds {int(prompt.min())}")
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
        if isinstance(self.model, _Decoder | _ForeignDecoder):
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


class _ForeignDecoder:
    """The decoder of an encoder-decoder of Hugging Face's; the source is read again each time."""

    def __init__(self, model: Any, source: Tensor) -> None:
        self.model, self.source = model, source

    def __call__(self, tokens: Tensor) -> Any:
        return self.model(input_ids=self.source, decoder_input_ids=tokens)

    def select(self, rows: Tensor) -> None:
        self.source = self.source[rows]


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
    made = all_logits(model, tokens)
    if made.ndim == 3:
        made = made[:, -1]
    if made.ndim != 2 or len(made) != len(tokens):
        raise ShapeMismatch(
            f"for tokens {list(tokens.shape)} the model must give logits [{len(tokens)}, T, V], "
            f"not {list(made.shape)}"
        )
    made = made if made.dtype == torch.float64 else made.float()
    if not made.amax(-1).isfinite().all():  # a maximum is NaN where anything is
        raise NonFinite(
            "the model's logits hold NaN or infinity, or are all minus infinity: no token comes "
            "next"
        )
    return made


def all_logits(model: Callable[..., Any], tokens: Tensor) -> Tensor:
    """What the model gives for `tokens[B, T]`, if it is a tensor of real numbers."""
    if not callable(model):
        raise InvalidType(
            f"the model must be a function from tokens [B, T] to logits [B, T, V], "
            f"not {described(model)}"
        )
    try:
        made = model(tokens)
    except IndexError as error:
        raise InvalidInput(
            f"the model cannot read {tokens.shape[1]} tokens, the largest of them "
            f"{int(tokens.max())} ({error}): it takes fewer at once, or fewer different ones"
        ) from error
    made = getattr(made, "logits", made)
    if not isinstance(made, Tensor) or not made.is_floating_point():
        raise InvalidType(f"the model must give logits, a tensor [B, T, V], not {described(made)}")
    return made
