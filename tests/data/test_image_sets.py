"""Downloading MNIST: only when asked, checked, from the next mirror when one fails."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from torchtheory.core.errors import FileProblem, UnknownName
from torchtheory.data import image_sets
from torchtheory.data.image_sets import FILES, download_image_set, load_image_set


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mirror on this machine with four tiny files, and an empty data directory."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    arrays = [np.zeros((2, 28, 28)), np.array([3, 7]), np.ones((1, 28, 28)), np.array([5])]
    sums = {}
    for file, array in zip(FILES, arrays, strict=True):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        content = head + array.astype("u1").tobytes()
        sums[file] = hashlib.sha256(content).hexdigest()
        (folder / f"{file}.gz").write_bytes(gzip.compress(content))
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    closed = "http://127.0.0.1:1/"
    monkeypatch.setattr(image_sets, "MIRRORS", (closed, f"http://127.0.0.1:{server.server_port}/"))
    monkeypatch.setattr(image_sets, "CHECKSUMS", {"mnist": sums})
    monkeypatch.setenv("TORCHTHEORY_DATA", str(tmp_path / "data"))
    yield folder
    server.shutdown()
    server.server_close()


def test_nothing_is_fetched_unless_asked_for(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="pass download=True"):
        load_image_set("mnist")
    assert not (tmp_path / "data").exists()


def test_download_from_the_second_mirror(mirror: Path, tmp_path: Path) -> None:
    (x, y), (test_x, test_y) = load_image_set("mnist", download=True)
    assert (x.shape, x.dtype, y.tolist()) == ((2, 28, 28), torch.uint8, [3, 7])
    assert (int(test_x.sum()), test_y.tolist()) == (784, [5])
    place = tmp_path / "data" / "MNIST" / "raw"
    assert sorted(p.name for p in place.iterdir()) == sorted(f"{f}.gz" for f in FILES)
    for file in mirror.iterdir():  # what is there is not fetched again
        file.unlink()
    assert download_image_set("mnist") == place


def test_a_wrong_file_is_refused_and_not_kept(mirror: Path, tmp_path: Path) -> None:
    (mirror / f"{FILES[1]}.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(FileProblem, match="wrong SHA-256"):
        load_image_set("mnist", download=True)
    assert [p.name for p in (tmp_path / "data/MNIST/raw").iterdir()] == [f"{FILES[0]}.gz"]
    (mirror / f"{FILES[1]}.gz").write_bytes(b"no gzip at all")
    with pytest.raises(FileProblem, match=f"cannot download {FILES[1]}.gz of mnist"):
        load_image_set("mnist", download=True)


def test_offline_is_one_sentence(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sets, "MIRRORS", ("http://127.0.0.1:1/",))
    with pytest.raises(FileProblem, match=r"cannot download .*127\.0\.0\.1:1.*online\?$"):
        load_image_set("mnist", download=True)


def test_only_mnist_is_fetched(mirror: Path) -> None:
    with pytest.raises(UnknownName, match="no image data set that can be downloaded"):
        download_image_set("fashion-mnist")
