"""Samples of many entries, such as images: as many of them at once as memory should hold."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Entries that are computed with at once, and entries of a copy of some rows.
AT_ONCE, COPIED = 2**21, 2**24


def parts(x: Tensor) -> Iterator[Tensor]:
    """The samples `[n, ...]` as rows `[k, p]`, in order, about two million entries at a time.

    >>> [tuple(part.shape) for part in parts(torch.zeros(3, 2**10, 2**10))]
    [(2, 1048576), (1, 1048576)]
    """
    flat = x.detach().reshape(len(x), -1)
    yield from torch.split(flat, max(1, AT_ONCE // max(1, flat.shape[1])))


def rows_within(most: int, columns: int, least: int = 1) -> int:
    """How many rows to copy: `most` of them, fewer where they are wide, and at least `least`.

    >>> rows_within(5000, 784), rows_within(5000, 3 * 224 * 224)
    (5000, 111)
    """
    return max(least, min(most, COPIED // max(1, columns)))
