"""A large array computed in tiles, in memory or in a file that a killed run does not spoil."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import FileProblem, InvalidType
from torchtheory.core.locks import sole_writer
from torchtheory.core.outputs import plain_file

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
    for each finished tile: its name and a checksum of its numbers. Opened again for the same
    computation, the finished tiles are kept; a file of anything else, or one that was changed
    since, is refused rather than overwritten or believed. The file takes its whole size on the
    disk at once: a disk that is too small is met before the work, not in its middle.

    Use `TiledFile.opened`, which keeps other processes away for as long as tiles are written.

    Attributes:
        array: the file as a tensor; it is mapped, not read.
        done: the finished tiles by name, with their checksums.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: torch.dtype, computation: str
    ) -> None:
        self.path = path
        self._note = path.with_name(path.name + ".tiles")
        try:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError:
            raise InvalidType(f"a .npy file cannot hold {dtype}; use float32 or float64") from None
        head = json.dumps({"computation": computation, "shape": list(shape)})
        self._waiting: dict[str, int] = {}
        self._last = time.monotonic()
        with self._told():
            begun = self._begun(head)
            if begun is None:
                # the note first: a file without one is somebody else's
                self._note.write_text(head + "\n", encoding="utf-8")
                begun = {}
            if not begun:
                self._allocate(shape, kind)
            self.done = begun
            start = self._refuse_other_arrays(shape, kind)
            # mapping a file that is too short would make it longer, so it is known not to be
            self._map = np.memmap(self.path, kind, mode="r+", offset=start, shape=shape)
        self.array = torch.from_numpy(self._map)

    @classmethod
    @contextmanager
    def opened(
        cls, path: str | Path, shape: tuple[int, ...], dtype: torch.dtype, computation: str
    ) -> Iterator[TiledFile]:
        """The file for this process alone; what is finished is written down at the end."""
        path = Path(path)
        if not path.parent.is_dir():
            raise FileProblem(f"cannot write {path}: there is no directory {path.parent}")
        for file in (path, path.with_name(f"{path.name}.tiles")):
            plain_file(file)
        with sole_writer(path):
            made = cls(path, shape, dtype, computation)
            try:
                yield made
            finally:
                made.flush()

    def _begun(self, head: str) -> dict[str, int] | None:
        """The finished tiles of this computation, begun earlier; other files are refused."""
        there = self._note.read_bytes() if self._note.exists() else b""
        lines = there.decode("utf-8", errors="replace").split("\n")
        if lines[0] == head and len(lines) > 1:
            # what stands after the last newline was being written when the run was killed
            tiles = [re.fullmatch(r"(\d+ \d+) ([0-9a-f]{8})", line) for line in lines[1:-1]]
            if not all(tiles):
                raise self._damaged()
            if lines[-1]:
                self._note.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
            return {tile[1]: int(tile[2], 16) for tile in tiles if tile is not None}
        if not self.path.exists() and head.encode().startswith(there):
            return None  # there is nothing, or it was killed in its first line
        raise FileProblem(
            f"{self.path} exists and is not the same computation begun earlier; choose another "
            f"file, or delete it and {self._note.name}"
        )

    def _allocate(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        """An empty file of the whole size, with all its blocks on the disk."""
        header = {"descr": kind.str, "fortran_order": False, "shape": shape}
        try:
            with self.path.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                file.flush()
                _reserve(file.fileno(), file.tell(), _bytes(shape, kind))
        except OSError:
            # what could be had of it would be taken for a file that somebody cut off
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
            raise

    def _refuse_other_arrays(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> int:
        """Where the numbers start in the file, if it holds an array of this shape and type."""
        try:
            with self.path.open("rb") as file:
                np.lib.format.read_magic(file)
                found = np.lib.format.read_array_header_1_0(file)
                start = file.tell()
        except ValueError:  # no .npy file, or not even the whole of its header
            raise self._changed() from None
        if found != (shape, False, kind) or self.path.stat().st_size != start + _bytes(shape, kind):
            raise self._changed()
        return start

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileProblem(f"cannot write {self.path}: {error.strerror}") from None

    def _changed(self) -> FileProblem:
        return FileProblem(
            f"{self.path} is not as this computation left it; delete it and {self._note.name} to "
            "start anew"
        )

    def _damaged(self) -> FileProblem:
        return FileProblem(
            f"the note {self._note} is damaged; delete it and {self.path.name} to start anew"
        )

    def refuse_unknown(self, tiles: Collection[str]) -> None:
        """Refuse a note that speaks of tiles which the computation does not have."""
        if not self.done.keys() <= set(tiles):
            raise self._damaged()

    def refuse_changed(self, tile: str, parts: Sequence[Tensor]) -> None:
        """Compare a finished tile with its checksum."""
        if checksum(parts) != self.done[tile]:
            raise self._changed()

    def finished(self, tile: str, parts: Sequence[Tensor]) -> None:
        """Note that a tile is complete (written down together with others, every few seconds)."""
        self._waiting[tile] = checksum(parts)
        if time.monotonic() - self._last > SECONDS_BETWEEN_MARKS:
            self.flush()

    def flush(self) -> None:
        """Write everything, numbers before notes."""
        if self._waiting:
            with self._told():
                self._map.flush()
                with self._note.open("a", encoding="utf-8") as note:
                    note.write("".join(f"{t} {c:08x}\n" for t, c in self._waiting.items()))
            self.done.update(self._waiting)
            self._waiting = {}
        self._last = time.monotonic()


def checksum(parts: Sequence[Tensor]) -> int:
    """CRC-32 of the numbers of some parts of an array, row by row.

    >>> checksum([torch.zeros(2, 3)]) == checksum([torch.zeros(1, 3), torch.zeros(1, 3)])
    True
    """
    total = 0
    for part in parts:
        for row in part:
            total = zlib.crc32(np.ascontiguousarray(row.numpy()).data, total)
    return total


def _bytes(shape: tuple[int, ...], kind: np.dtype[Any]) -> int:
    return math.prod(shape) * kind.itemsize


def _reserve(file: int, start: int, size: int) -> None:
    """Blocks on the disk for so many bytes: a mapped file without them dies at the first write."""
    if hasattr(os, "posix_fallocate"):
        if size:
            os.posix_fallocate(file, start, size)
        return
    empty = bytes(2**20)
    os.lseek(file, start, os.SEEK_SET)
    while size > 0:
        size -= os.write(file, empty[:size])


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
