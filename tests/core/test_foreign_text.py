"""Text from outside: nothing a terminal obeys, a page reorders or a file refuses."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from torchtheory.core.foreign_text import json_text, one_line, printable

#: Marks, embeddings, overrides and isolates of bidirectional text.
BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def obeyed(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in BIDIRECTIONAL


def test_every_character_of_unicode() -> None:
    every = "".join(map(chr, range(0x110000)))
    kept = printable(every)
    assert [c for c in kept if obeyed(c)] == ["\n"]
    lost = set(every) - set(kept)
    assert all(obeyed(c) or c in "\t\u200e\u200f\u061c\ufeff" for c in lost)
    kept.encode("utf-8")


@given(st.text())
def test_one_line_and_json(text: str) -> None:
    assert not any(obeyed(c) for c in one_line(text))
    made = json_text({"a": [text]})
    assert json.loads(made) == {"a": [text]}
    assert all(c == "\n" or not obeyed(c) for c in made)
    made.encode("utf-8")
    json_text({"a": [text]}, ascii_only=True).encode("ascii")
