r"""What BERT reads and what it is asked: segments, masked tokens, pairs of sentences.

A pair of sentences becomes `[CLS] a [SEP] b [SEP]`, cut by WordPiece. Two questions are asked at
once: which tokens were masked, and whether b follows a. Source: Deep Learning (notes), section 6.5,
which calls them stages; in the paper it cites both are trained together.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import closed_fraction, described, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.sequences.attention.transformers import check_tokens
from torchtheory.sequences.language.wordpiece import SPECIAL, WordPiece

#: The label of positions that are not predicted; torch's cross-entropy leaves it out.
IGNORED = -100
#: Shares of the chosen tokens that become [MASK], become another token, and stay.
SPLIT = (0.8, 0.1, 0.1)


class BertInputs(NamedTuple):
    """Sequences of tokens in a batch, `[B, T]` each.

    Attributes:
        ids: numbers of the tokens, `[PAD]` after the end.
        segments: 0 up to the first `[SEP]`, 1 after it.
        present: False where there is only padding.
        special: True at `[CLS]`, `[SEP]` and `[PAD]`.
    """

    ids: Tensor
    segments: Tensor
    present: Tensor
    special: Tensor


class SentencePair(NamedTuple):
    """Two sentences, and whether the second stood after the first."""

    first: str
    second: str
    follows: bool


def bert_inputs(
    texts: Sequence[str | tuple[str, str]], tokenizer: WordPiece, *, length: int | None = None
) -> BertInputs:
    """`[CLS] a [SEP]` for a text and `[CLS] a [SEP] b [SEP]` for a pair, padded to one length.

    Args:
        texts: sentences or pairs of them.
        tokenizer: with BERT's special tokens.
        length: longest sequence; of the longer sentence of a pair tokens are cut off its end.

    >>> words = [*SPECIAL, "cats", "purr", "dogs", "bark"]
    >>> made = bert_inputs([("cats purr", "dogs bark"), "dogs"], WordPiece(words))
    >>> made.ids.tolist()
    [[2, 5, 6, 3, 7, 8, 3], [2, 7, 3, 0, 0, 0, 0]]
    >>> made.segments[0].tolist(), made.present[1].long().tolist()
    ([0, 0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0])
    """
    pad, start, stop = special_numbers(tokenizer, "[PAD]", "[CLS]", "[SEP]")
    if isinstance(texts, str) or not texts:
        raise EmptyData("give a list of sentences or pairs, at least one")
    if length is not None:
        whole_number(length, "length", least=5)
    rows: list[tuple[list[int], list[int]]] = []
    for text in texts:
        pair = (text,) if isinstance(text, str) else text
        if not isinstance(pair, tuple | list) or not 1 <= len(pair) <= 2:
            raise InvalidType(f"a text is a sentence or a pair of them, not {described(text)}")
        parts = [tokenizer.encode(part) for part in pair]
        if length is not None:
            _shorten(parts, length - 1 - len(parts))
        ids = [start]
        segments = [0]
        for number, part in enumerate(parts):
            ids += [*part, stop]
            segments += [number] * (len(part) + 1)
        rows.append((ids, segments))
    longest = max(len(ids) for ids, _ in rows)

    def stacked(values: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (longest - len(row)) for row in values])

    tokens = stacked([ids for ids, _ in rows], pad)
    present = stacked([[1] * len(ids) for ids, _ in rows], 0).bool()
    special = (tokens == start) | (tokens == stop) | ~present
    return BertInputs(tokens, stacked([s for _, s in rows], 0), present, special)


def mask_tokens(
    ids: Tensor,
    vocabulary: int,
    *,
    special: Tensor | None = None,
    mask: int = SPECIAL.index("[MASK]"),
    reserved: Sequence[int] = range(len(SPECIAL)),
    share: float = 0.15,
    split: tuple[float, float, float] = SPLIT,
    generator: RandomSource = None,
) -> tuple[Tensor, Tensor]:
    """Tokens with some of them hidden, and the hidden ones as labels, `[B, T]` each.

    Each token that is not special is chosen with probability `share`. Of the chosen, `split` says
    which share becomes `[MASK]`, which another token, drawn evenly from those not reserved (it may
    be the same by chance), and which stays. Labels elsewhere are `IGNORED`.

    Args:
        ids: `[B, T]`.
        vocabulary: number of tokens.
        special: True where nothing may be chosen, such as `BertInputs.special`; unless given, at
            the reserved tokens.
        mask: number of the token `[MASK]`.
        reserved: numbers of tokens that stand for no text.
        share: of the tokens that are chosen.
        split: of the chosen: masked, replaced, kept; summing to 1.

    >>> hidden, labels = mask_tokens(torch.arange(5, 1005).reshape(1, -1), 1005)
    >>> bool(((hidden == torch.arange(5, 1005)) | (labels != IGNORED)).all())
    True
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64:
        raise InvalidType(f"ids must be a tensor of tokens (torch.long), not {described(ids)}")
    whole_number(vocabulary, "vocabulary", least=1)
    whole_number(mask, "mask", least=0, most=vocabulary - 1)
    closed_fraction(share, "share")
    if len(split) != 3 or abs(sum(closed_fraction(s, "split") for s in split) - 1) > 1e-9:
        raise InvalidInput(f"split is three shares that sum to 1, not {described(split)}")
    check_tokens(ids, vocabulary, "ids")
    if special is None:
        special = torch.isin(ids, torch.tensor([*reserved], dtype=torch.int64, device=ids.device))
    if not isinstance(special, Tensor):
        raise InvalidType(f"special must be a tensor of booleans, not {described(special)}")
    if special.shape != ids.shape:
        raise ShapeMismatch(f"special is {list(special.shape)} and ids {list(ids.shape)}")
    special = special.bool()  # transformers has it as numbers 0 and 1
    kept = set(reserved)
    ordinary = torch.tensor([i for i in range(vocabulary) if i not in kept])
    if len(ordinary) == 0:
        raise InvalidInput("all tokens are reserved, so none can take another's place")
    source = as_generator(generator)

    def uniform() -> Tensor:
        return torch.rand(ids.shape, generator=source, dtype=torch.float64).to(ids.device)

    chosen = (uniform() < share) & ~special
    fate = uniform()
    other = ordinary[torch.randint(len(ordinary), ids.shape, generator=source)].to(ids.device)
    hidden = torch.where(chosen & (fate < split[0]), mask, ids)
    replaced = chosen & (fate >= split[0]) & (fate < split[0] + split[1])
    return torch.where(replaced, other, hidden), torch.where(chosen, ids, IGNORED)


def next_sentence_pairs(
    documents: Sequence[Sequence[str]], *, generator: RandomSource = None
) -> list[SentencePair]:
    """A pair for each sentence that has a successor; half of them with another one in its place.

    The other is drawn from all sentences of the documents that nowhere follow the first. Of an odd
    number of pairs one more is true.

    >>> pairs = next_sentence_pairs([["one", "two", "three"], ["red", "green"]])
    >>> sum(p.follows for p in pairs), len(pairs)
    (2, 3)
    """
    source = as_generator(generator)
    after: dict[str, set[str]] = defaultdict(set)
    true: list[tuple[str, str]] = []
    for document in documents:
        if isinstance(document, str):
            raise InvalidType("a document is a list of sentences, not one string")
        for a, b in itertools.pairwise(document):
            after[a].add(b)
            true.append((a, b))
    if not true:
        raise EmptyData("no document has two sentences, so none follows another")
    everything = [s for document in documents for s in document]
    fake = set(torch.randperm(len(true), generator=source)[: len(true) // 2].tolist())
    found: list[SentencePair] = []
    for i, (a, b) in enumerate(true):
        if i not in fake:
            found.append(SentencePair(a, b, True))
            continue
        others = _others(everything, after[a], source)
        found.append(SentencePair(a, others, False))
    return found


def special_numbers(tokenizer: WordPiece, *names: str) -> list[int]:
    """The numbers of special tokens; a vocabulary without one of them is refused."""
    missing = [name for name in names if name not in tokenizer.number]
    if missing:
        raise InvalidInput(
            f"the vocabulary has no token {missing[0]}; WordPiece.train adds BERT's special tokens"
        )
    return [tokenizer.number[name] for name in names]


def _others(everything: list[str], excluded: set[str], source: torch.Generator) -> str:
    """A sentence that is not excluded: by trial, and by listing them if trials are in vain."""
    for place in torch.randint(len(everything), (32,), generator=source):
        if everything[int(place)] not in excluded:
            return everything[int(place)]
    left = [s for s in everything if s not in excluded]
    if not left:
        raise InvalidInput("every sentence follows this one somewhere, so there is no false pair")
    return left[int(torch.randint(len(left), (1,), generator=source))]


def _shorten(parts: list[list[int]], room: int) -> None:
    while sum(map(len, parts)) > room:
        max(parts, key=len).pop()
