"""Data sets in files, read as data: nothing is ever unpickled."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import FileProblem
from torchtheory.models.loading import existing_file
from torchtheory.models.samples import from_numpy

#: One tensor, or several by name for a model that takes a dictionary.
Inputs = Tensor | dict[str, Tensor]
Pair = tuple[Inputs, Tensor]
Read = Callable[[str], np.ndarray[Any, Any]]

_NAMES = {
    "x_train": ("x_train", "train_x", "train_images", "train_data", "x"),
    "y_train": ("y_train", "train_y", "train_labels", "train_targets", "y"),
    "x_test": ("x_test", "test_x", "test_images", "test_data"),
    "y_test": ("y_test", "test_y", "test_labels", "test_targets"),
}


def load_npz(path: str | Path) -> tuple[Pair, Pair | None]:
    """Train and test data from an `.npz` archive.

    It holds `x_train` and `y_train`, and `x_test` and `y_test` unless there is no test set;
    `X_train`, `train_images`, `train_labels` and `x`, `y` alone are understood as well.
    Arrays `x_train.NAME` are the inputs of a model that takes several, by their names. Other
    arrays are not looked at.
    """
    file = existing_file(path)
    if file.suffix != ".npz":
        raise FileProblem(f"{file} must be an .npz file with x_train, y_train, x_test and y_test")
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
    except Exception as error:
        raise FileProblem(f"{file} is not a readable .npz file of numbers: {error}") from None
    with archive:
        return _pairs(archive.files, archive.__getitem__, file)


def load_npy_folder(path: str | Path) -> tuple[Pair, Pair | None]:
    """Train and test data from a directory of `.npy` files, named like the arrays of an archive.

    `x_train.npy` and `y_train.npy`, and `x_test.npy` and `y_test.npy` unless there is no
    test set. Inputs by name are `x_train.NAME.npy`, or `NAME.npy` in a directory `x_train`.
    The arrays stay on the disk until they are used, and are never written to.
    """
    folder = existing_folder(path)
    files = _array_files(folder)
    return _pairs(list(files), lambda name: _mapped(files[name]), folder)


def existing_folder(path: str | Path) -> Path:
    """The path, or one sentence on why there is no such directory."""
    folder = Path(path)
    try:
        if not folder.exists():
            raise FileProblem(f"there is no directory {folder}")
        if not folder.is_dir():
            raise FileProblem(f"{folder} is not a directory")
        next(folder.iterdir(), None)
    except OSError as error:
        raise FileProblem(f"cannot read {folder}: {error.strerror}") from None
    return folder


def holds_arrays(folder: Path) -> bool:
    """Whether a directory has `.npy` files that `load_npy_folder` would look at."""
    return any(_canonical(name) for name in _array_files(folder))


def _array_files(folder: Path) -> dict[str, Path]:
    found = {file.stem: file for file in sorted(folder.glob("*.npy"))}
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and _canonical(inner.name):
            found |= {f"{inner.name}.{file.stem}": file for file in sorted(inner.glob("*.npy"))}
    return found


def _mapped(file: Path) -> np.ndarray[Any, Any]:
    # copy on write: memory torch accepts, and a file that nothing changes
    return np.lib.format.open_memmap(file, mode="c")


def _canonical(name: str) -> str | None:
    """`x_train`, `y_train`, `x_test` or `y_test`, or None for a name of something else."""
    head = name.partition(".")[0].lower()
    return next((known for known, names in _NAMES.items() if head in names), None)


def _pairs(names: list[str], read: Read, where: Path) -> tuple[Pair, Pair | None]:
    chosen: dict[str, dict[str, str]] = {}
    for name in names:
        if (known := _canonical(name)) is not None:
            part = name.partition(".")[2]
            other = chosen.setdefault(known, {}).setdefault(part, name)
            if other != name:
                raise FileProblem(f"{where} has both {other} and {name}: which is {known}?")
    for known in ("x_train", "y_train"):
        if known not in chosen:
            raise FileProblem(f"{where} has no array {known}; it has {', '.join(names) or 'none'}")
    if ("x_test" in chosen) != ("y_test" in chosen):
        raise FileProblem(f"{where} has only one of x_test and y_test")
    for known, parts in chosen.items():
        if "" in parts and len(parts) > 1:
            raise FileProblem(f"{where} has {known} both as one array and by name")
        if known.startswith("y") and list(parts) != [""]:
            raise FileProblem(f"{where} has targets by name, and one array {known} is needed")
    tensors = {
        known: {part: _numbers(read, name, where) for part, name in parts.items()}
        for known, parts in chosen.items()
    }
    train = _inputs(tensors["x_train"]), tensors["y_train"][""]
    if "x_test" not in tensors:
        return train, None
    return train, (_inputs(tensors["x_test"]), tensors["y_test"][""])


def _inputs(parts: dict[str, Tensor]) -> Inputs:
    return parts.get("", parts)


def _numbers(read: Read, name: str, where: Path) -> Tensor:
    try:
        array = read(name)
    except Exception as error:
        kind = ".npz file" if where.suffix == ".npz" else "directory of arrays"
        raise FileProblem(f"{where} is not a readable {kind} of numbers: {name}: {error}") from None
    if array.dtype.kind not in "biuf":
        raise FileProblem(f"{name} in {where} holds {array.dtype}, not numbers")
    return from_numpy(array)


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
