"""Data sets in files, read as data: nothing is ever unpickled."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import FileProblem
from torchtheory.core.loading import existing_file
from torchtheory.core.samples import from_numpy

Pair = tuple[Tensor, Tensor]


def load_npz(path: str | Path) -> tuple[Pair, Pair | None]:
    """Train and test data from an ``.npz`` archive.

    It holds ``x_train`` and ``y_train``, and ``x_test`` and ``y_test`` unless there is no test set.
    """
    file = existing_file(path)
    if file.suffix != ".npz":
        raise FileProblem(f"{file} must be an .npz file with x_train, y_train, x_test and y_test")
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:
        raise FileProblem(f"{file} is not a readable .npz file of numbers: {error}") from None
    for name in ("x_train", "y_train"):
        if name not in arrays:
            raise FileProblem(f"{file} has no array {name}; it has {', '.join(arrays) or 'none'}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise FileProblem(f"{file} has only one of x_test and y_test")
    train = _pair(arrays, "train", file)
    return train, _pair(arrays, "test", file) if "x_test" in arrays else None


def _pair(arrays: dict[str, Any], part: str, file: Path) -> Pair:
    pair = []
    for name in (f"x_{part}", f"y_{part}"):
        if arrays[name].dtype.kind not in "biuf":
            raise FileProblem(f"{name} in {file} holds {arrays[name].dtype}, not numbers")
        pair.append(from_numpy(arrays[name]))
    return pair[0], pair[1]


_IDX_TYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


def read_idx(path: str | Path) -> Tensor:
    """An array in the IDX format of MNIST, plain or gzipped.

    Two zero bytes, the type, the number of dimensions, the sizes as big-endian 32-bit integers,
    then the entries in row-major order.
    """
    file = existing_file(path)
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise FileProblem(f"{file} is not readable: {error}") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise FileProblem(f"{file} is not in IDX format")
    kind, dimensions = _IDX_TYPES[raw[2]], raw[3]
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise FileProblem(f"{file} is cut off in its header")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) != start + math.prod(shape) * kind.itemsize:
        raise FileProblem(f"{file} says it has shape {list(shape)}, but its size does not fit")
    array = np.frombuffer(raw, kind, offset=start).reshape(shape)
    return torch.as_tensor(array.astype(kind.newbyteorder("=")))
