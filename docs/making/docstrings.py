"""A griffe extension: docstrings as the reference renders them."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FLAGS = re.compile(r"\s*# doctest:.+$")
_SEVERAL = re.compile(r"(?P<indent> +)(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)+): (?P<text>.*)")


def fence_doctests(text: str) -> str:
    r"""The text with each doctest, which ends at a blank line, between fences.

    >>> print(fence_doctests("Adds.\n\n>>> 1 + 1  # doctest: +SKIP\n2\n"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    made: list[str] = []
    fenced = inside = False
    indent = ""
    for line in text.splitlines():
        stripped = line.strip()
        if inside and not stripped:
            made.append(f"{indent}```")
            inside = False
        elif not inside and stripped.startswith("```"):
            fenced = not fenced
        elif not inside and not fenced and stripped.startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            if made and made[-1].strip():
                made.append("")
            made.append(f"{indent}```pycon")
            inside = True
        made.append(_FLAGS.sub("", line) if inside else line)
    if inside:
        made.append(f"{indent}```")
    return "\n".join(made)


def separate_names(text: str) -> str:
    r"""`low, high: the range` as two items, since the parser knows only items of one name.

    >>> print(separate_names("Args:\n    low, high: the\n        range."))
    Args:
        low: the
            range.
        high: the
            range.
    """
    made: list[str] = []
    lines = text.splitlines()
    at, listed = 0, False
    while at < len(lines):
        line = lines[at]
        listed = line in ("Args:", "Attributes:") or (listed and line.startswith((" ", "\n")))
        at += 1
        found = _SEVERAL.fullmatch(line) if listed else None
        if found is None:
            made.append(line)
            continue
        more = []
        while at < len(lines) and lines[at].startswith(found["indent"] + " "):
            more.append(lines[at])
            at += 1
        for name in found["names"].split(", "):
            made += [f"{found['indent']}{name}: {found['text']}", *more]
    return "\n".join(made)


class Docstrings(griffe.Extension):
    """Prepares every docstring that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_doctests(separate_names(obj.docstring.value))
