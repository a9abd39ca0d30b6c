r"""WordPiece: each word is cut greedily, the longest piece of the vocabulary first.

Pieces within a word carry the mark `##`; a word that cannot be cut becomes `[UNK]`. Source: Deep
Learning (notes), section 6.5; Foundations of Deep Learning, section 10.4.5, which name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.sequences.language.pair_merging import learn_merges
from torchtheory.sequences.language.text import as_ids, as_text, normalize, split_words
from torchtheory.sequences.language.words import UNKNOWN, as_texts

MARK = "##"
#: BERT's tokens that stand for no text.
SPECIAL = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
#: Longer words are unknown, as in BERT: cutting takes quadratic time.
LONGEST_WORD = 100


def wordpiece(word: str, vocabulary: frozenset[str] | set[str] | dict[str, int]) -> list[str]:
    """The pieces of a word: the longest that fits, then the longest in the rest, and so on.

    >>> wordpiece("unaffable", {"un", "##aff", "##a", "##able", "##ffable"})
    ['un', '##aff', '##able']
    >>> wordpiece("unaffordable", {"un", "##aff", "##able"})
    ['[UNK]']
    """
    if len(word) > LONGEST_WORD:
        return [UNKNOWN]
    found: list[str] = []
    start = 0
    while start < len(word):
        mark = MARK if start else ""
        for end in range(len(word), start, -1):
            piece = mark + word[start:end]
            if piece in vocabulary:
                found.append(piece)
                start = end
                break
        else:
            return [UNKNOWN]
    return found


class WordPiece:
    """The tokenizer of BERT over a vocabulary.

    Args:
        vocabulary: the tokens in the order of their numbers; `[UNK]` must be among them.
        uncased: whether text is put in lower case and loses its accents.

    >>> tokenizer = WordPiece(["[UNK]", "fish", "##es", "in", "water", ","])
    >>> tokenizer.tokens("Fishes, in fire"), tokenizer.decode(tokenizer.encode("fishes in water"))
    (['fish', '##es', ',', 'in', '[UNK]'], 'fishes in water')
    """

    def __init__(self, vocabulary: Sequence[str], *, uncased: bool = True) -> None:
        self.vocabulary = tuple(as_text(v) for v in vocabulary)
        self.number = {v: i for i, v in enumerate(self.vocabulary)}
        self.uncased = uncased
        if len(self.number) != len(self.vocabulary):
            twice = next(v for v, n in Counter(self.vocabulary).items() if n > 1)
            raise InvalidInput(f"the token {twice!r} stands in the vocabulary twice")
        if UNKNOWN not in self.number:
            raise InvalidInput(f"the vocabulary needs the token {UNKNOWN}, for words it cannot cut")

    @classmethod
    def train(
        cls, texts: Iterable[str], size: int, *, uncased: bool = True, least: int = 2
    ) -> WordPiece:
        """A vocabulary of `size` tokens: BERT's special ones, characters, and merged pieces.

        Pieces are merged as in byte-pair encoding, the most frequent pair first; fewer tokens are
        made if no pair occurs `least` times. All characters of the texts are in the vocabulary,
        so `size` must leave room for them.
        """
        counts = Counter(w for text in as_texts(texts) for w in _words(text, uncased))
        spelled = {(w[0], *(MARK + c for c in w[1:])): n for w, n in counts.items()}
        tokens = [*SPECIAL, *sorted({c for word in spelled for c in word})]
        whole_number(size, "size", least=len(tokens))
        number = {v: i for i, v in enumerate(tokens)}

        def join(a: int, b: int) -> int:
            piece = tokens[a] + tokens[b].removeprefix(MARK)
            if piece not in number:
                number[piece] = len(tokens)
                tokens.append(piece)
            return number[piece]

        learn_merges(
            {tuple(number[c] for c in word): n for word, n in spelled.items()},
            join,
            enough=lambda: len(tokens) >= size,
            least=whole_number(least, "least", least=1),
        )
        return cls(tokens, uncased=uncased)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def tokens(self, text: str) -> list[str]:
        """The pieces of the text's words."""
        return [p for w in _words(text, self.uncased) for p in wordpiece(w, self.number)]

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces."""
        return [self.number[p] for p in self.tokens(text)]

    def decode(self, ids: list[int]) -> str:
        """Words with one space between them: the normalized text, punctuation set apart."""
        found = ""
        for piece in (self.vocabulary[i] for i in as_ids(ids, len(self))):
            if piece.startswith(MARK) and found:
                found += piece.removeprefix(MARK)
            else:
                found += f" {piece}" if found else piece
        return found


def _words(text: str, uncased: bool) -> list[str]:
    # not composed again once accents are off: BERT's Korean is spelled in single letters
    made = normalize(text, form=None, lowercase=True, accents=False) if uncased else as_text(text)
    return split_words(made)
