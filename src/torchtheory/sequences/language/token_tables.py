"""Tokens, their numbers, and the norms of their embeddings, as a table."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, MissingPackage, ShapeMismatch
from torchtheory.sequences.language.text import Tokenizer


class TokenRow(NamedTuple):
    """A token of a text: how it reads, its number, its embedding's norm and first entries."""

    token: str
    id: int
    norm: float
    first: tuple[float, ...]


#: What GPT-2 gives for "Like a fish out of water": Foundations of Deep Learning, Table 10.2. All
#: but the first token begin with a space.
GPT2_TABLE = (
    TokenRow("Like", 7594, 3.2995, (-0.166, -0.080, 0.086, -0.043, -0.061, -0.129, -0.217, -0.110)),
    TokenRow(" a", 257, 2.5727, (-0.051, 0.006, 0.047, -0.059, -0.063, -0.030, -0.272, 0.015)),
    TokenRow(" fish", 5916, 3.2591, (0.027, 0.100, 0.066, 0.051, -0.156, -0.080, -0.364, -0.158)),
    TokenRow(" out", 503, 2.7112, (-0.048, -0.044, 0.034, -0.141, 0.091, -0.064, -0.282, -0.014)),
    TokenRow(" of", 286, 2.5936, (-0.057, 0.018, 0.033, 0.041, 0.012, -0.040, -0.253, 0.002)),
    TokenRow(" water", 1660, 3.0460, (0.065, 0.020, 0.023, 0.141, -0.052, -0.019, -0.331, -0.144)),
)


def token_table(
    text: str, embedding: nn.Embedding | Tensor, tokenizer: Tokenizer, *, entries: int = 8
) -> list[TokenRow]:
    """The tokens of a text with their numbers, norms, and the first entries of their embeddings.

    Args:
        text: to be cut into tokens.
        embedding: a module, or its matrix `[V, d]`.
        tokenizer: whose numbers are the matrix's rows.
        entries: how many entries are shown.

    >>> import torch
    >>> from torchtheory.sequences.language.words import CharacterTokenizer
    >>> matrix = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    >>> token_table("ba", matrix, CharacterTokenizer("ab"), entries=1)[1]
    TokenRow(token='a', id=0, norm=5.0, first=(3.0,))
    """
    whole_number(entries, "entries", least=0)
    matrix = embedding.weight if isinstance(embedding, nn.Embedding) else embedding
    if not isinstance(matrix, Tensor):
        raise InvalidType(f"an nn.Embedding or its matrix is needed, not {described(embedding)}")
    if matrix.ndim != 2:
        raise ShapeMismatch(f"an embedding's matrix is [tokens, size], not {list(matrix.shape)}")
    ids = tokenizer.encode(text)
    if ids and max(ids) >= len(matrix):
        raise InvalidInput(
            f"the text has the token {max(ids)}, and the embedding only {len(matrix)} rows: "
            "they belong to different vocabularies"
        )
    rows = matrix.detach()[ids].double()
    return [
        TokenRow(token, i, float(row.norm()), tuple(row[:entries].tolist()))
        for token, i, row in zip(tokenizer.tokens(text), ids, rows, strict=True)
    ]


def gpt2_token_table(text: str, *, name: str = "gpt2", entries: int = 8) -> list[TokenRow]:
    """The same for GPT-2, with its weights and its tokenizer from the package `transformers`.

    Needs the package, and the weights on disk or a connection; `GPT2_TABLE` holds one text's table.

    Raises:
        MissingPackage: if `transformers` is not installed.
        InvalidInput: if the weights cannot be had.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise MissingPackage(
            "GPT-2's weights are read by the package transformers: pip install transformers"
        ) from None
    try:
        model = transformers.GPT2Model.from_pretrained(name)
        theirs = transformers.GPT2TokenizerFast.from_pretrained(name)
    except OSError as error:
        raise InvalidInput(
            f"{name!r} cannot be loaded ({str(error).splitlines()[0]}); GPT2_TABLE has a table "
            "that needs no weights"
        ) from error
    return token_table(text, model.wte, _Foreign(theirs), entries=entries)


class _Foreign:
    """A tokenizer of `transformers` behind our verbs."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def __len__(self) -> int:
        return len(self.theirs)

    def encode(self, text: str) -> list[int]:
        return list(self.theirs.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.theirs.decode(list(ids)))

    def tokens(self, text: str) -> list[str]:
        return [str(self.theirs.decode([i])) for i in self.encode(text)]
