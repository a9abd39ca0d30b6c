"""MNIST and Fashion-MNIST from files on this machine.

They are looked for in the directory that the environment variable ``TORCHTHEORY_DATA`` names (or
``data`` in the current one), in torchvision's layout (``MNIST/raw``) or in a directory of the
set's name; Fashion-MNIST also where Debian's package ``dataset-fashion-mnist`` puts it.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from torchtheory.core.errors import FileProblem, UnknownName
from torchtheory.data.files import read_idx

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_DIRECTORIES = {
    "mnist": ("MNIST/raw", "mnist"),
    "fashion-mnist": ("FashionMNIST/raw", "fashion-mnist"),
}


def data_directory() -> Path:
    """Where data sets are looked for: ``TORCHTHEORY_DATA``, or ``data`` in this directory."""
    return Path(os.environ.get("TORCHTHEORY_DATA") or "data")


def locate_image_set(name: str) -> Path | None:
    """The directory that holds all four files of a set, or None."""
    if name not in _DIRECTORIES:
        raise UnknownName("image data set", name, _DIRECTORIES)
    places = [data_directory() / d for d in _DIRECTORIES[name]]
    places.append(Path("/usr/share/datasets") / name)
    return next((p for p in places if all(_file(p, f) for f in FILES)), None)


def load_image_set(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Train and test: pixels ``[n, 28, 28]`` of uint8 and labels ``[n]``."""
    place = locate_image_set(name)
    if place is None:
        raise FileProblem(
            f"{name} is not on this machine: put its four IDX files into "
            f"{data_directory() / _DIRECTORIES[name][0]}, or set TORCHTHEORY_DATA"
        )
    train_x, train_y, test_x, test_y = (read_idx(str(_file(place, f))) for f in FILES)
    return (train_x, train_y.long()), (test_x, test_y.long())


def _file(directory: Path, name: str) -> Path | None:
    return next((p for p in (directory / name, directory / f"{name}.gz") if p.is_file()), None)
