r"""Byte-pair encoding: start from the 256 bytes, merge the most frequent pair, again and again.

Every text is a sequence of bytes, so that nothing is unknown and decoding gives the text back. The
vocabulary has 256 tokens and one for each merge. Tokens are numbered as in GPT-2, whose merges can
be loaded. Source: Foundations of Deep Learning, section 10.4.5, which names the algorithm.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.sequences.language.pair_merging import Pair, apply_merges, learn_merges
from torchtheory.sequences.language.text import as_ids, split_text
from torchtheory.sequences.language.words import as_texts

#: Words whose tokens are remembered; a text has few different words.
_REMEMBERED = 100_000


class BytePairEncoding:
    """A tokenizer of bytes and merged pairs of tokens.

    Args:
        merges: pairs of tokens' numbers, in the order in which they were learned. The first 256
            numbers are the bytes', in GPT-2's order: those of printable characters first.

    >>> tokenizer = BytePairEncoding.train(["low low lower lowest newest"], merges=5)
    >>> tokenizer.tokens("lower newest"), len(tokenizer)
    (['low', 'e', 'r', ' ', 'n', 'e', 'w', 'est'], 261)
    >>> tokenizer.decode(tokenizer.encode("any text: \N{SNOWMAN}"))
    'any text: \N{SNOWMAN}'
    """

    def __init__(self, merges: Sequence[Pair] = ()) -> None:
        self.pieces: list[bytes] = [bytes([b]) for b in BYTE_ORDER]
        self._number = {piece: i for i, piece in enumerate(self.pieces)}
        self._rules: dict[Pair, tuple[int, int]] = {}
        try:
            self.merges = tuple((operator.index(a), operator.index(b)) for a, b in merges)
        except (TypeError, ValueError):
            raise InvalidType(
                f"merges are pairs of tokens' numbers, not {described(merges)}"
            ) from None
        for rank, (a, b) in enumerate(self.merges):
            if not (0 <= a < len(self.pieces) and 0 <= b < len(self.pieces)):
                raise InvalidInput(
                    f"merge {rank} joins the tokens {a} and {b}, and there are only "
                    f"{len(self.pieces)} then"
                )
            self._rules.setdefault((a, b), (rank, _joined(self.pieces, self._number, a, b)))
        self._remembered: dict[str, list[int]] = {}

    @classmethod
    def train(cls, texts: Iterable[str], merges: int, *, least: int = 2) -> BytePairEncoding:
        """Learn merges from texts.

        Args:
            texts: the corpus, as one string or several.
            merges: how many tokens are added to the bytes; fewer if no pair is left.
            least: pairs that occur less often are not merged.
        """
        added = whole_number(merges, "merges", least=0)
        least = whole_number(least, "least", least=1)
        pieces = [bytes([b]) for b in BYTE_ORDER]
        number = {piece: i for i, piece in enumerate(pieces)}
        counts = Counter(w for text in as_texts(texts) for w in split_text(text))
        words = {tuple(_BYTE_NUMBER[b] for b in w.encode()): n for w, n in counts.items()}
        found = learn_merges(
            words,
            lambda a, b: _joined(pieces, number, a, b),
            enough=lambda: len(pieces) >= 256 + added,
            least=least,
        )
        return cls(found)

    @classmethod
    def from_gpt2(cls, lines: Iterable[str]) -> BytePairEncoding:
        """From the lines of GPT-2's `merges.txt`: two tokens each, in its spelling of bytes.

        >>> BytePairEncoding.from_gpt2(["#version: 0.2", "Ġ t", "h e", "Ġt he"]).tokens("in the")
        ['i', 'n', ' the']
        """
        made = cls()
        pairs: list[Pair] = []
        for place, line in enumerate(lines, 1):
            parts = line.split()
            if not parts or line.startswith("#version"):
                continue
            try:
                a, b = (bytes(_BYTE_OF_CHARACTER[c] for c in part) for part in parts)
                pair = made._number[a], made._number[b]
            except (KeyError, ValueError):
                raise InvalidInput(
                    f"line {place} of the merges, {described(line)}, is not a pair of tokens "
                    "that are known by then"
                ) from None
            pairs.append(pair)
            _joined(made.pieces, made._number, *pair)
        return cls(pairs)

    def __len__(self) -> int:
        return len(self.pieces)

    def tokens(self, text: str) -> list[str]:
        """The tokens; bytes that are no character by themselves are shown as `\\xe2`."""
        return [self.shown(i) for i in self.encode(text)]

    def shown(self, token: int) -> str:
        """A token as text; bytes that are no character by themselves as `\\xe2`."""
        (known,) = as_ids([token], len(self))
        return self.pieces[known].decode(errors="backslashreplace")

    def encode(self, text: str) -> list[int]:
        """The numbers of the tokens. Time: n log n in the longest word, once per word."""
        found: list[int] = []
        for word in split_text(text):
            known = self._remembered.get(word)
            if known is None:
                known = apply_merges([_BYTE_NUMBER[b] for b in word.encode()], self._rules)
                if len(self._remembered) < _REMEMBERED:
                    self._remembered[word] = known
            found += known
        return found

    def decode(self, ids: list[int]) -> str:
        """The text; bytes that are no UTF-8 become the replacement character."""
        whole = b"".join(self.pieces[i] for i in as_ids(ids, len(self)))
        return whole.decode(errors="replace")


def _joined(pieces: list[bytes], number: dict[bytes, int], a: int, b: int) -> int:
    """The number of two tokens joined; pairs that give the same bytes share one."""
    piece = pieces[a] + pieces[b]
    if piece not in number:
        number[piece] = len(pieces)
        pieces.append(piece)
    return number[piece]


def _byte_order() -> tuple[int, ...]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    return tuple(printable + [b for b in range(256) if b not in printable])


#: The bytes in GPT-2's order.
BYTE_ORDER = _byte_order()
_BYTE_NUMBER = {b: i for i, b in enumerate(BYTE_ORDER)}
# GPT-2 writes a byte that has no printable character as the next one from 256 on
_PRINTABLE = 188
_BYTE_OF_CHARACTER = {
    chr(b) if i < _PRINTABLE else chr(256 + i - _PRINTABLE): b for i, b in enumerate(BYTE_ORDER)
}
