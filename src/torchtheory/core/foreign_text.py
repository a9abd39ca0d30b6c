"""Text from outside, before it is shown: names of files, layers and columns, messages of a model.

A terminal obeys control characters, a browser reorders what stands behind a bidirectional override,
and neither a file nor a terminal can take half of a surrogate pair. Whatever shows or stores text
sends it through here.
"""

from __future__ import annotations

import json
import re

# C0 and C1 with the line break and the tab among them; marks, overrides and isolates of
# bidirectional text; breaks of lines and paragraphs; byte order mark; surrogates.
_UNSEEN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_CONTROL = re.compile(f"[{_UNSEEN}]")
_CONTROL_IN_LINE = re.compile(f"(?!\n)[{_UNSEEN}]")


def printable(text: str) -> str:
    r"""The text without control characters; line breaks stay.

    >>> printable("a\x1b[31m red\u202e\ttext\nand more\x9b")
    'a[31m red text\nand more'
    """
    return _CONTROL_IN_LINE.sub("", text.replace("\t", " "))


def one_line(text: str) -> str:
    r"""The same on one line, with single spaces.

    >>> one_line("no\r\n such   file\x07")
    'no such file'
    """
    return printable(" ".join(text.split()))


def json_text(data: object, *, ascii_only: bool = False) -> str:
    r"""Data as JSON without a character that a terminal obeys or a file refuses; NaN is an error.

    Such characters are written as JSON's own escapes, so nothing is lost.

    >>> json_text(["a\x1b", "\u202e", "\ud800", "§"])
    '[\n "a\\u001b",\n "\\u202e",\n "\\ud800",\n "§"\n]'
    """
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=ascii_only)
    return _CONTROL_IN_LINE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
