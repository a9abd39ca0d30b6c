r"""Text before tokens: normalization, and the split into words that no token crosses."""

from __future__ import annotations

import functools
import operator
import re
import sys
import unicodedata
from typing import Literal, Protocol

from torchtheory.core.checks import described, one_of
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
#: White space in Unicode; Python's own has the separators U+001C to U+001F as well.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
#: The blocks of ideographs that BERT names.
_CHINESE = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip
FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")


class Tokenizer(Protocol):
    """What turns text into numbers and back."""

    def __len__(self) -> int:
        """The size of the vocabulary."""
        ...

    def encode(self, text: str) -> list[int]:
        """The numbers of the text's tokens."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text that these tokens stand for."""
        ...

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text, as they can be shown."""
        ...


def normalize(
    text: str,
    *,
    form: Form | None = "NFC",
    lowercase: bool = False,
    accents: bool = True,
    strip: bool = False,
) -> str:
    """Text in one spelling: a Unicode form, lower case, without accents, without outer spaces.

    >>> normalize("  Déjà vu ", lowercase=True, accents=False, strip=True)
    'deja vu'
    """
    text = as_text(text)
    if lowercase:
        text = text.lower()
    if not accents:
        parts = unicodedata.normalize("NFD", text)
        text = "".join(c for c in parts if unicodedata.category(c) != "Mn")
    if form is not None:
        text = unicodedata.normalize(one_of(form, "form", FORMS), text)
    return text.strip() if strip else text


def split_text(text: str) -> list[str]:
    """Pieces that no token crosses, as GPT-2 has them; joined they are the text.

    English contractions, then letters, digits or other signs with one space before them, then the
    spaces that are left.

    >>> split_text("It's 9 o'clock,  dear!")
    ['It', "'s", ' 9', ' o', "'", 'clock', ',', ' ', ' dear', '!']
    """
    found: list[str] = _pattern().findall(as_text(text))
    return found


def split_words(text: str) -> list[str]:
    """Words, single punctuation marks and single Chinese characters, as BERT has them.

    Spaces and characters that control are dropped.

    >>> split_words("It's 9 o'clock,  dear!")
    ['It', "'", 's', '9', 'o', "'", 'clock', ',', 'dear', '!']
    """
    found: list[str] = []
    for word in "".join(map(_cleaned, as_text(text))).split():
        start = 0
        for i, c in enumerate(word):
            if _is_punctuation(c) or _is_chinese(c):
                found += [word[start:i], c] if i > start else [c]
                start = i + 1
        if start < len(word):
            found.append(word[start:])
    return found


def bytes_per_token(tokenizer: Tokenizer, text: str) -> float:
    """How many bytes of UTF-8 a token stands for on average: the compression.

    >>> from torchtheory.sequences.language.words import CharacterTokenizer
    >>> bytes_per_token(CharacterTokenizer("ab"), "abba")
    1.0
    """
    count = len(tokenizer.encode(text))
    if count == 0:
        raise EmptyData("the text has no tokens, so nothing is compressed")
    return len(as_text(text).encode()) / count


def as_text(text: str) -> str:
    """A string that has a UTF-8 encoding."""
    if not isinstance(text, str):
        raise InvalidType(f"a text is a string, not {described(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"character {error.start} of the text is half of a surrogate pair, which UTF-8 cannot "
            "hold: decode the file with the right encoding"
        ) from None
    return text


def as_ids(ids: list[int], size: int) -> list[int]:
    """Numbers of tokens, each of them in the vocabulary."""
    try:
        found = [operator.index(i) for i in ids]
    except TypeError:
        raise InvalidType(f"tokens are a list of whole numbers, not {described(ids)}") from None
    for i in found:
        if not 0 <= i < size:
            raise InvalidInput(f"the token {i} is not in the vocabulary of {size}: 0 to {size - 1}")
    return found


def _is_punctuation(c: str) -> bool:
    # BERT counts all signs of ASCII, also those that Unicode calls symbols
    ascii_sign = c.isascii() and c.isprintable() and not c.isalnum() and c != " "
    return ascii_sign or unicodedata.category(c).startswith("P")


def _is_chinese(c: str) -> bool:
    # ideographs, which are written without spaces; not the signs of Korean and Japanese
    code = ord(c)
    return code >= _CHINESE[0][0] and any(a <= code <= b for a, b in _CHINESE)


def _cleaned(c: str) -> str:
    if c in "\t\n\r":
        return " "
    return "" if c == "\ufffd" or unicodedata.category(c).startswith("C") else c


@functools.cache
def _pattern() -> re.Pattern[str]:
    letter, number, space = _class("L"), _class("N"), _SPACE
    return re.compile(
        rf"'(?:[stmd]|re|ve|ll)| ?[{letter}]+| ?[{number}]+| ?[^{space}{letter}{number}]+"
        rf"|[{space}]+(?![^{space}])|[{space}]+"
    )


def _class(kind: str) -> str:
    """The characters of a Unicode category as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] == kind:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges)
