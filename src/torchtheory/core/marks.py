"""Marks: every file that a report consists of says what it is, in its first or last bytes.

So a file of ours is told from one of the user's when a report is to be replaced
(`torchtheory.core.outputs`), and one kind of report from another.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from torchtheory.core.foreign_text import json_text

#: So many bytes of a file are looked at, from its beginning and from its end.
HEAD, TAIL = 2048, 64

# What the beginning (or the end) of each form looks like; a group is the kind of report.
_FORMS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (form, re.compile(pattern, re.DOTALL))
    for form, pattern in {
        "page": rb'\A<!DOCTYPE html>.{,400}?<meta name="generator" content="torchtheory (\w+)">',
        "text": rb"\A<!-- torchtheory (\w+) -->",
        "record": rb'\A\{\s*"made_by": "torchtheory (\w+)"',
        "SARIF log": rb'\A\{\s*"\$schema": "[^"]*sarif[^"]*",\s*"version": "[^"]*",\s*"runs": '
        rb'\[\s*\{\s*"tool": \{\s*"driver": \{\s*"name": "torchtheory"',
        "JUnit log": rb'\A<\?xml[^>]*>\s*<testsuites name="torchtheory audit"',
        "picture": rb"\A\x89PNG\r\n\x1a\n.{,200}?tEXtSoftware\0torchtheory",
        "drawing": rb"\A<svg [^>]*>\s*<metadata>.{,800}?<dc:title>torchtheory</dc:title>",
        "arrays": rb"\APK.*torchtheory (\w+)\Z",
    }.items()
)


#: Where the first chunk of a PNG ends, which says how large it is.
_PNG_HEADER = 33

#: What may stand in a folder of a report.
PICTURES = ("picture", "drawing", "nothing")


def form_of(content: bytes) -> str | None:
    """What one of our outputs is, read off its first and last bytes; None if it is none of ours.

    An empty file has the form `"nothing"`.

    >>> form_of(b"<!-- torchtheory audit -->\\n# A report")
    'audit text'
    >>> form_of(b"# A report about torchtheory") is None
    True
    """
    if not content:
        return "nothing"
    seen = content if len(content) <= HEAD + TAIL else content[:HEAD] + content[-TAIL:]
    for form, pattern in _FORMS:
        if found := pattern.search(seen):
            return " ".join([*(kind.decode() for kind in found.groups()), form])
    return None


def record_text(kind: str, data: Mapping[str, Any]) -> str:
    """Data as JSON that says what it is the record of.

    Half a character, such as of the name of a file that is no UTF-8, becomes a question mark: no
    record that holds one is read back.

    >>> record_text("audit", {"title": "net"})
    '{\\n "made_by": "torchtheory audit",\\n "title": "net"\\n}'
    """
    made = {"made_by": f"torchtheory {kind}", **data}
    text = json_text(made)
    if "\\ud" not in text:
        return text
    plain = json.dumps(made, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
    return json_text(json.loads(plain))


def marked_markdown(kind: str, text: str) -> str:
    """Markdown that says what it is a report of, in a comment that nobody sees."""
    return f"<!-- torchtheory {kind} -->\n\n{text}"


def marked_archive(kind: str, packed: bytes) -> bytes:
    """A ZIP archive, such as an `.npz` file, with what it holds in the comment that ends it."""
    stream = io.BytesIO(packed)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = f"torchtheory {kind}".encode()
    return stream.getvalue()


def marked_picture(content: bytes) -> bytes:
    """A picture that somebody else drew, PNG or SVG, with our mark; anything else as it is.

    >>> form_of(marked_picture(b"<svg width='9'><path/></svg>"))
    'drawing'
    """
    if form_of(content) is not None:
        return content
    if content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > _PNG_HEADER:
        chunk = b"tEXtSoftware\0torchtheory"
        size, check = len(chunk) - 4, zlib.crc32(chunk)
        text = struct.pack(">I", size) + chunk + struct.pack(">I", check)
        return content[:_PNG_HEADER] + text + content[_PNG_HEADER:]
    title = b"<metadata><dc:title>torchtheory</dc:title></metadata>"
    names = b' xmlns:dc="http://purl.org/dc/elements/1.1/"'
    return re.sub(rb"\A<svg( [^>]*)>", rb"<svg\1" + names + b">" + title, content, count=1)
