"""Data sets in files, read as data: nothing is ever unpickled."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import FileProblem
from torchtheory.core.files import Readable, existing_file, existing_folder
from torchtheory.core.memory import refuse_too_large
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
        return _pairs(archive.files, lambda name: _unpacked(archive, name, file), file)


def _unpacked(archive: np.lib.npyio.NpzFile, name: str, file: Path) -> np.ndarray[Any, Any]:
    """An array whose size was looked at while it was still packed."""
    assert archive.zip is not None  # it is open
    part = next(p for p in (f"{name}.npy", name) if p in archive.zip.namelist())
    with archive.zip.open(part) as packed:
        shape, _, dtype = _array_header(packed)
        refuse_too_large(math.prod(shape) * dtype.itemsize, f"{name} of {file}", FileProblem)
    return np.asarray(archive[name])


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array in numpy's format; nothing else is read."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def load_npy_folder(path: str | Path) -> tuple[Pair, Pair | None]:
    """Train and test data from a directory of `.npy` files, named like the arrays of an archive.

    `x_train.npy` and `y_train.npy`, and `x_test.npy` and `y_test.npy` unless there is no
    test set. Inputs by name are `x_train.NAME.npy`, or `NAME.npy` in a directory `x_train`.
    The arrays stay on the disk until they are used, and are never written to.
    """
    folder = existing_folder(path)
    files = _array_files(folder)
    return _pairs(list(files), lambda name: _mapped(files[name]), folder)


def holds_arrays(folder: Path) -> bool:
    """Whether a directory has `.npy` files that `load_npy_folder` would look at."""
    return any(_canonical(name) for name in _array_files(folder))


def _array_files(folder: Path) -> dict[str, Path]:
    found = {file.stem: file for file in sorted(folder.glob("*.npy"))}
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and _canonical(inner.name):
            files = sorted(existing_folder(inner).glob("*.npy"))
            found |= {f"{inner.name}.{file.stem}": file for file in files}
    return found


def _mapped(file: Path) -> np.ndarray[Any, Any]:
    # copy on write: memory torch accepts, and a file that nothing changes
    return np.lib.format.open_memmap(existing_file(file), mode="c")


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
    except FileProblem:
        raise
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
# Of numpy.
_MOST_DIMENSIONS = 64


def read_idx(path: str | Path) -> Tensor:
    """An array in the IDX format of MNIST, plain or gzipped.

    Two zero bytes, the type, the number of dimensions, the sizes as big-endian 32-bit integers,
    then the entries in row-major order.
    """
    file = existing_file(path)
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            kind, shape = _idx_header(stream, file)
            size = math.prod(shape) * kind.itemsize
            refuse_too_large(2 * size, str(file), FileProblem)  # as bytes, and as a tensor
            raw = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileProblem(f"{file} is not readable: {error}") from None
    if len(raw) != size:
        raise FileProblem(f"{file} says it has shape {list(shape)}, but its size does not fit")
    array = np.frombuffer(raw, kind).reshape(shape)
    return torch.as_tensor(array.astype(kind.newbyteorder("=")))


def _idx_header(stream: Readable, file: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of an array in the IDX format."""
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES:
        raise FileProblem(f"{file} is not in IDX format")
    dimensions = start[3]
    if dimensions > _MOST_DIMENSIONS:
        raise FileProblem(
            f"{file} says it has {dimensions} dimensions, and an array has at most "
            f"{_MOST_DIMENSIONS}"
        )
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise FileProblem(f"{file} is cut off in its header")
    shape = struct.unpack(f">{dimensions}I", sizes)
    if 0 in shape:
        raise FileProblem(f"{file} says it has shape {list(shape)}, which has no entries")
    return _IDX_TYPES[start[2]], shape
