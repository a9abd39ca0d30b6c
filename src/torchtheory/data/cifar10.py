"""CIFAR-10 from files on this machine, in its binary version or as torchvision keeps it.

Looked for in `data_directory`: `cifar-10-batches-bin` (records
of one label and 3072 pixels) or `cifar-10-batches-py` (Python pickles). A pickle is a program;
here its instructions are only *read*, for the bytes and numbers among them, and never executed.
"""

from __future__ import annotations

import pickletools
from pathlib import Path

import torch
from torch import Tensor

from torchtheory.core.errors import FileProblem
from torchtheory.core.files import kind_of
from torchtheory.core.memory import refuse_too_large
from torchtheory.data.image_sets import data_directory

TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = ("test_batch",)
PIXELS = 3 * 32 * 32

_NUMBERS = {"BININT1", "BININT2", "BININT", "INT", "LONG1"}
_BETWEEN = {"MARK", "APPENDS", "APPEND", "EMPTY_LIST", "BINPUT", "LONG_BINPUT", "MEMOIZE"}


def locate_cifar10() -> Path | None:
    """The directory with all six files, or None."""
    for name, ending in (("cifar-10-batches-bin", ".bin"), ("cifar-10-batches-py", "")):
        place = data_directory() / name
        if all(kind_of(place / f"{file}{ending}") == "file" for file in TRAIN + TEST):
            return place
    return None


def load_cifar10() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Train and test: pixels `[n, 3, 32, 32]` of uint8 and labels `[n]` in 0..9."""
    place = locate_cifar10()
    if place is None:
        raise FileProblem(
            f"CIFAR-10 is not on this machine: unpack cifar-10-batches-bin or cifar-10-batches-py "
            f"into {data_directory()}, or set TORCHTHEORY_DATA"
        )
    read = read_records if place.name.endswith("-bin") else read_pickled_batch
    ending = ".bin" if place.name.endswith("-bin") else ""

    def join(files: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        parts = [read(place / f"{file}{ending}") for file in files]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    return join(TRAIN), join(TEST)


def read_records(path: Path) -> tuple[Tensor, Tensor]:
    """A file of the binary version: one byte of label and 3072 of pixels a record."""
    content = _bytes(path)
    if not content or len(content) % (1 + PIXELS):
        raise FileProblem(f"{path} is not a whole number of records of {1 + PIXELS} bytes")
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, 1 + PIXELS)
    return _checked(rows[:, 1:], rows[:, 0].long(), path)


def read_pickled_batch(path: Path) -> tuple[Tensor, Tensor]:
    """A file of the Python version, without unpickling it."""
    pixels, labels = b"", list[int]()
    collecting = False
    try:
        for instruction, argument, _ in pickletools.genops(_bytes(path)):
            if isinstance(argument, (str, bytes)):
                raw = argument.encode("latin-1") if isinstance(argument, str) else argument
                collecting = raw == b"labels"
                if len(raw) > len(pixels) and len(raw) % PIXELS == 0:
                    pixels = raw
            elif collecting and argument is not None and instruction.name in _NUMBERS:
                labels.append(int(argument))
            elif instruction.name not in _BETWEEN:
                collecting = False
    except (ValueError, UnicodeError, OverflowError) as error:
        raise FileProblem(f"{path} is not a batch of CIFAR-10: {error}") from None
    if not pixels or len(labels) * PIXELS != len(pixels):
        raise FileProblem(
            f"{path} holds {len(pixels) // PIXELS} images and {len(labels)} labels; a batch of "
            "CIFAR-10 has as many of each"
        )
    rows = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(-1, PIXELS)
    return _checked(rows, torch.tensor(labels), path)


def _bytes(path: Path) -> bytes:
    try:
        refuse_too_large(path.stat().st_size, str(path), FileProblem)
        return path.read_bytes()
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}") from None


def _checked(rows: Tensor, labels: Tensor, path: Path) -> tuple[Tensor, Tensor]:
    if not bool(((labels >= 0) & (labels <= 9)).all()):
        raise FileProblem(f"{path} has labels outside 0..9")
    return rows.reshape(-1, 3, 32, 32).clone(), labels
