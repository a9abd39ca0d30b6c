"""Names of labs, findings, tables and figures, and how several are listed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torchtheory.core.errors import InvalidInput


def check_name(name: str, kind: str) -> None:
    """Names become file names: refuse anything else."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InvalidInput(f"a {kind} is named by lower-case words and hyphens, not {name!r}")


def several(names: Sequence[object], most: int = 5) -> str:
    """The first of some names or numbers, and how many follow.

    >>> several([3, 5, 8], 2)
    '3, 5 and 1 more'
    """
    first = ", ".join(str(name) for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"


def runs(numbers: Sequence[int]) -> list[str]:
    """Numbers that follow each other as ranges.

    >>> runs([0, 1, 2, 5, 7, 8])
    ['0 to 2', '5', '7 to 8']
    """
    found: list[list[int]] = []
    for k in numbers:
        if found and k == found[-1][-1] + 1:
            found[-1].append(k)
        else:
            found.append([k])
    return [str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in found]


def same_function(old: Callable[..., object], new: Callable[..., object]) -> bool:
    """Whether one is the other defined again, as when a notebook's cell is run twice."""
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)


#: Operations whose names in torch are no words.
_OPERATIONS = {
    "getitem": "indexing",
    "setitem": "writing into a tensor",
    "multi_head_attention_forward": "attention",
    "scaled_dot_product_attention": "attention",
}


def operation_words(name: str) -> str:
    """What to call an operation of torch in a sentence.

    >>> operation_words("getitem_3"), operation_words("__getitem__"), operation_words("relu_1")
    ('indexing', 'indexing', 'relu_1')
    """
    plain = re.sub(r"_\d+$", "", name).strip("_")
    return _OPERATIONS.get(plain, name)
