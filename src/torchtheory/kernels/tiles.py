"""A large array computed in tiles, in memory or in a file that a killed run does not spoil."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import FileProblem, InvalidType

#: finished tiles are written down at this interval; what a kill costs
SECONDS_BETWEEN_MARKS = 2.0


def fingerprint(*parts: Any) -> str:
    """A digest of tensors and plain values: the same for the same computation only."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{list(part.shape)}".encode())
            flat = part.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        else:
            digest.update(repr(part).encode())
        digest.update(b"|")
    return digest.hexdigest()


class TiledFile:
    """A `.npy` file filled tile by tile, with a note beside it of what it is and what is done.

    The note `<file>.tiles` has the fingerprint of the computation in its first line and one line
    for each finished tile. Opened again for the same computation, the finished tiles are kept; a
    file of anything else is refused rather than overwritten.

    Attributes:
        array: the file as a tensor; it is mapped, not read.
        done: names of the finished tiles.
    """

    def __init__(
        self, path: str | Path, shape: tuple[int, ...], dtype: torch.dtype, computation: str
    ) -> None:
        self.path = Path(path)
        self._note = self.path.with_name(self.path.name + ".tiles")
        kind = torch.empty(0, dtype=dtype)
        try:
            numpy_dtype = kind.numpy().dtype
        except TypeError:
            raise InvalidType(f"a .npy file cannot hold {dtype}; use float32 or float64") from None
        head = json.dumps({"computation": computation, "shape": list(shape)})
        try:
            lines = self._begun(head)
            if lines is None:
                # the note first: a file without one is somebody else's
                self._note.write_text(head + "\n", encoding="utf-8")
                lines = [head, ""]
            if len(lines) > 2:
                self._map = np.lib.format.open_memmap(self.path, mode="r+")
            else:  # nothing finished
                self._map = np.lib.format.open_memmap(
                    self.path, mode="w+", dtype=numpy_dtype, shape=shape
                )
        except OSError as error:
            raise FileProblem(f"cannot write {self.path}: {error.strerror}") from None
        # what stands after the last newline was being written when the run was killed
        self.done = set(lines[1:-1])
        if lines[-1]:
            self._note.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
        self.array = torch.from_numpy(self._map)
        self._waiting: list[str] = []
        self._last = time.monotonic()

    def _begun(self, head: str) -> list[str] | None:
        """The lines of the note of this computation, begun earlier; other files are refused."""
        there = self._note.read_text(encoding="utf-8") if self._note.exists() else ""
        lines = there.split("\n")
        if lines[0] == head and len(lines) > 1:
            return lines
        if not self.path.exists() and head.startswith(there):
            return None  # there is nothing, or it was killed in its first line
        raise FileProblem(
            f"{self.path} exists and is not the same computation begun earlier; choose another "
            f"file, or delete it and {self._note.name}"
        )

    def finished(self, tile: str) -> None:
        """Note that a tile is complete (written down together with others, every few seconds)."""
        self._waiting.append(tile)
        if time.monotonic() - self._last > SECONDS_BETWEEN_MARKS:
            self.flush()

    def flush(self) -> None:
        """Write everything, numbers before notes."""
        if self._waiting:
            self._map.flush()
            with self._note.open("a", encoding="utf-8") as note:
                note.write("".join(f"{t}\n" for t in self._waiting))
            self.done.update(self._waiting)
            self._waiting = []
        self._last = time.monotonic()


def blocks(count: int, size: int) -> list[slice]:
    """Consecutive ranges of at most `size`, as equal as possible.

    >>> blocks(10, 4)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    number = max(1, -(-count // max(1, size)))
    short, more = divmod(count, number)
    starts = [k * short + min(k, more) for k in range(number + 1)]
    return [slice(a, b) for a, b in pairwise(starts)]


def pairs(rows: int, columns: int, symmetric: bool) -> Iterable[tuple[int, int]]:
    """Block pairs row by row, every other row backwards: neighbors share a block."""
    for i in range(rows):
        order = range(i if symmetric else 0, columns)
        yield from ((i, j) for j in (order if i % 2 == 0 else reversed(order)))
