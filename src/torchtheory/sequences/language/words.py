"""The two plain tokenizers, by characters and by words, to compare the others with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType
from torchtheory.sequences.language.text import as_ids, as_text, split_text

UNKNOWN = "[UNK]"


class CharacterTokenizer:
    """One token per character; a character that was not among the first is refused.

    Args:
        alphabet: the characters; repeated ones count once.

    >>> tokenizer = CharacterTokenizer("hello")
    >>> tokenizer.encode("hole"), tokenizer.decode([1, 0, 2])
    ([1, 3, 2, 0], 'hel')
    """

    def __init__(self, alphabet: str) -> None:
        self.vocabulary = tuple(sorted(set(as_text(alphabet))))
        if not self.vocabulary:
            raise EmptyData("the alphabet is empty")
        self._number = {c: i for i, c in enumerate(self.vocabulary)}

    def __len__(self) -> int:
        return len(self.vocabulary)

    def tokens(self, text: str) -> list[str]:
        """The characters."""
        return list(as_text(text))

    def encode(self, text: str) -> list[int]:
        """The number of each character."""
        try:
            return [self._number[c] for c in as_text(text)]
        except KeyError as error:
            raise InvalidInput(
                f"the character {error.args[0]!r} is not in the alphabet of {len(self)}"
            ) from None

    def decode(self, ids: list[int]) -> str:
        """The characters of these numbers, joined."""
        return "".join(self.vocabulary[i] for i in as_ids(ids, len(self)))


class WordTokenizer:
    """One token per piece of `split_text`, a word with the space before it; others are unknown.

    Args:
        words: the pieces; number 0 stands for the unknown one.

    >>> tokenizer = WordTokenizer.train(["a cat and a dog, a cat and a cow"], size=5)
    >>> tokenizer.vocabulary, tokenizer.tokens("a cat, a cow")
    (('[UNK]', ' a', ' and', ' cat', ' cow'), ['[UNK]', ' cat', '[UNK]', ' a', ' cow'])
    """

    def __init__(self, words: Iterable[str]) -> None:
        given = dict.fromkeys(as_text(w) for w in words)
        given.pop(UNKNOWN, None)
        self.vocabulary = (UNKNOWN, *given)
        self._number = {w: i for i, w in enumerate(self.vocabulary)}

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> WordTokenizer:
        """The most frequent pieces of the texts, so many that the vocabulary has `size` tokens."""
        counts = Counter(w for text in as_texts(texts) for w in split_text(text))
        ranked = sorted(counts, key=lambda w: (-counts[w], w))
        return cls(sorted(ranked[: whole_number(size, "size", least=2) - 1]))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def tokens(self, text: str) -> list[str]:
        """The pieces, unknown ones as `[UNK]`."""
        return [self.vocabulary[i] for i in self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """The number of each piece, 0 for an unknown one."""
        return [self._number.get(w, 0) for w in split_text(text)]

    def decode(self, ids: list[int]) -> str:
        """The pieces of these numbers, joined."""
        return "".join(self.vocabulary[i] for i in as_ids(ids, len(self)))


def as_texts(texts: Iterable[str]) -> list[str]:
    """A corpus: at least one text that is not empty; a string counts as one text."""
    if not isinstance(texts, Iterable):
        raise InvalidType(f"a corpus is a list of texts, not {described(texts)}")
    found = [as_text(t) for t in ([texts] if isinstance(texts, str) else texts)]
    if not any(found):
        raise EmptyData("the corpus is empty, so there is nothing to learn tokens from")
    return found
