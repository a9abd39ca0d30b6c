"""MNIST and Fashion-MNIST from files on this machine, MNIST also from the network when asked.

They are looked for in the directory that the environment variable `TORCHTHEORY_DATA` names (or
`data` in the current one), in torchvision's layout (`MNIST/raw`) or in a directory of the
set's name; Fashion-MNIST also where Debian's package `dataset-fashion-mnist` puts it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import urllib.error
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path

from torch import Tensor

from torchtheory.core.errors import FileProblem, UnknownName
from torchtheory.core.files import kind_of
from torchtheory.core.outputs import replaced_file
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

#: Where MNIST is kept, first choice first.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
#: SHA-256 of the *unpacked* files: mirrors pack the same bytes differently.
CHECKSUMS = {
    "mnist": dict(
        zip(
            FILES,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            strict=True,
        )
    )
}
TIMEOUT = 20.0
LARGEST_FILE = 50_000_000


def data_directory() -> Path:
    """Where data sets are looked for: `TORCHTHEORY_DATA`, or `data` in this directory."""
    return Path(os.environ.get("TORCHTHEORY_DATA") or "data")


def locate_image_set(name: str) -> Path | None:
    """The directory that holds all four files of a set, or None."""
    if name not in _DIRECTORIES:
        raise UnknownName("image data set", name, _DIRECTORIES)
    places = [data_directory() / d for d in _DIRECTORIES[name]]
    places.append(Path("/usr/share/datasets") / name)
    return next((p for p in places if all(_file(p, f) for f in FILES)), None)


def load_image_set(
    name: str, *, download: bool = False
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Train and test: pixels `[n, 28, 28]` of uint8 and labels `[n]`.

    Args:
        name: `mnist` or `fashion-mnist`.
        download: fetch MNIST (11 MB) when it is not on this machine; see
            `download_image_set`. Nothing is ever fetched without being asked for.
    """
    place = locate_image_set(name)
    if place is None and download:
        place = download_image_set(name)
    if place is None:
        asked = ", or pass download=True" if name in CHECKSUMS else ""
        raise FileProblem(
            f"{name} is not on this machine: put its four IDX files into "
            f"{data_directory() / _DIRECTORIES[name][0]}, or set TORCHTHEORY_DATA{asked}"
        )
    train_x, train_y, test_x, test_y = (read_idx(str(_file(place, f))) for f in FILES)
    return (train_x, train_y.long()), (test_x, test_y.long())


def download_image_set(name: str) -> Path:
    """Fetch the files of MNIST into `data_directory` and return their directory.

    Each file is tried from every mirror in turn, must have the checksum written in this module, and
    appears under its name only when it is complete.
    """
    if name not in CHECKSUMS:
        raise UnknownName("image data set that can be downloaded", name, CHECKSUMS)
    place = data_directory() / _DIRECTORIES[name][0]
    for file, checksum in CHECKSUMS[name].items():
        if _file(place, file):
            continue
        packed = _fetch(f"{file}.gz", checksum, name)
        with replaced_file(place / f"{file}.gz") as stream:
            stream.write(packed)
    return place


def _fetch(file: str, checksum: str, name: str) -> bytes:
    """A packed file from the first mirror that has the right one."""
    reasons = []
    for mirror in MIRRORS:
        host = mirror.split("/")[2]
        try:
            with urllib.request.urlopen(mirror + file, timeout=TIMEOUT) as answer:
                packed: bytes = answer.read(LARGEST_FILE)
            content = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(LARGEST_FILE)
        except (OSError, HTTPException, EOFError, zlib.error) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reasons.append(f"{host}: {cause or type(error).__name__}")
            continue
        if hashlib.sha256(content).hexdigest() == checksum:
            return packed
        reasons.append(f"{host}: the file is not the one expected (wrong SHA-256)")
    raise FileProblem(
        f"cannot download {file} of {name} ({'; '.join(reasons)}); is this machine online?"
    )


def _file(directory: Path, name: str) -> Path | None:
    places = (directory / name, directory / f"{name}.gz")
    return next((p for p in places if kind_of(p) == "file"), None)
