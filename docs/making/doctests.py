"""A griffe extension: the doctests of a docstring become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FLAGS = re.compile(r"\s*# doctest:.+$")


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


class Doctests(griffe.Extension):
    """Fences the doctests of every docstring that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fence_doctests(obj.docstring.value)
