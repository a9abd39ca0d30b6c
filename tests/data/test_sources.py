"""One entry point for every kind of data a user has."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType
from torchtheory.data.files import load_npz
from torchtheory.data.image_sets import FILES
from torchtheory.data.sources import call_loader, load_data, load_idx_folder
from torchtheory.models.samples import Samples, collect


def test_archives_and_folders_of_arrays(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y)
    np.save(tmp_path / "x_train.npy", x)
    np.save(tmp_path / "y_train.npy", y)
    (tmp_path / "notes.txt").write_text("")
    for place in (tmp_path / "a.npz", str(tmp_path / "a.npz"), tmp_path):
        train, test = load_data(place)
        assert test is None
        samples = collect(train, "train", limit=2)
        assert (len(samples), samples.x.shape[1:]) == (2, (2,))
    assert torch.equal(load_data(tmp_path)[0][0], load_npz(tmp_path / "a.npz")[0][0])


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n5,6\n")
    train, test = load_data(tmp_path / "a.csv", target="b", test_fraction=0.34)
    assert (len(train), len(test)) == (2, 1)
    (tmp_path / "b.csv").write_text("a,b\n7,8\n")
    train, test = load_data(tmp_path / "a.csv", target="b", test=tmp_path / "b.csv")
    assert (len(train), test.x.tolist()) == (3, [[7.0]])


def images(folder: Path, names: tuple[str, ...] = FILES, *, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(2 * 4 * 4, dtype="u1").reshape(2, 4, 4) * 8
    labels = np.array([3, 7], "u1")
    for name, array in zip(names, (pixels, labels, pixels[:1], labels[:1]), strict=False):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        content = head + array.tobytes()
        file = folder / (f"{name}.gz" if packed else name)
        file.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("inner", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_images_in_the_layout_of_mnist(tmp_path: Path, inner: str, packed: bool) -> None:
    images(tmp_path / inner, packed=packed)
    train, test = load_data(tmp_path)
    assert isinstance(train, Samples)
    assert isinstance(test, Samples)
    assert (train.x.shape, train.x.dtype, test.x.shape) == (
        (2, 1, 4, 4),
        torch.float32,
        (1, 1, 4, 4),
    )
    assert float(train.x[0, 0, 0, 1]) == pytest.approx(8 / 255)
    assert (train.y.tolist(), train.y.dtype, test.y.tolist()) == ([3, 7], torch.int64, [3])
    assert train.note == "pixels divided by 255, one channel"
    flat, _ = load_data(tmp_path, channel=False)
    assert flat.x.shape == (2, 4, 4)


def test_images_under_other_names(tmp_path: Path) -> None:
    images(tmp_path, tuple(f"emnist-letters-{n.replace('t10k', 'test')}" for n in FILES))
    train, test = load_idx_folder(tmp_path)
    assert test is not None
    assert (len(train), len(test)) == (2, 1)
    images(tmp_path / "dots", tuple(n.replace("-idx", ".idx") for n in FILES[:2]))
    assert load_idx_folder(tmp_path / "dots")[1] is None


def test_folders_that_hold_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match=r"neither x_train\.npy .*package\.module:loader"):
        load_data(tmp_path)
    images(tmp_path / "a", FILES[:1])
    with pytest.raises(FileProblem, match="train-images but no train-labels"):
        load_data(tmp_path / "a")
    for name in ("MNIST", "FashionMNIST"):
        images(tmp_path / "both" / name / "raw")
    with pytest.raises(InvalidInput, match="holds several data sets"):
        load_data(tmp_path / "both")
    for kind in ("letters", "digits"):
        images(tmp_path / "emnist", tuple(f"emnist-{kind}-{n}" for n in FILES))
    with pytest.raises(InvalidInput, match="several files train-images"):
        load_data(tmp_path / "emnist")


MODULE = """
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(6, 2), torch.arange(6) % 2
data = TensorDataset(x, y)
number = 3

def pair(): return x, y
def arrays(): return x.numpy(), y.numpy()
def pairs(): return (x, y), (x[:2], y[:2])
def without(): return (x, y), None
def sets(): return data, TensorDataset(x[:2], y[:2])
def loaders(): return DataLoader(data, 4), DataLoader(data, 2)
def one(): return DataLoader(data, 4)
def by_name(): return {"u": x, "v": x}, y
def by_position(): return (x, x), y
def two_rows(): return [[1.0, 2.0], [3.0, 4.0]], [0, 1]
def raises(): raise RuntimeError("no\\ndata")
def nothing(): return None
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "zz_data.py").write_text(MODULE)
    sys.modules.pop("zz_data", None)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("pair", 6, None),
        ("arrays", 6, None),
        ("pairs", 6, 2),
        ("without", 6, None),
        ("sets", 6, 2),
        ("loaders", 6, 6),
        ("one", 6, None),
        ("by_name", 6, None),
        ("by_position", 6, None),
        ("two_rows", 2, None),
    ],
)
def test_a_loader(here: Path, name: str, train: int, test: int | None) -> None:
    parts = load_data(f"zz_data:{name}")
    assert len(collect(parts[0], "train", limit=100)) == train
    assert (parts[1] is None) == (test is None)
    if test is not None:
        assert len(collect(parts[1], "test", limit=100)) == test


def test_loaders_that_are_none(here: Path) -> None:
    with pytest.raises(InvalidInput, match=r"raises\(\) raised RuntimeError: no data"):
        load_data("zz_data:raises")
    with pytest.raises(InvalidType, match="is a int, not a function"):
        load_data("zz_data:number")
    with pytest.raises(InvalidInput, match="has no 'other'"):
        load_data("zz_data:other")
    with pytest.raises(InvalidInput, match=r"name the data as package\.module:loader"):
        call_loader("zz_data")
    with pytest.raises(InvalidType, match="not NoneType"):
        collect(load_data("zz_data:nothing")[0], "train", limit=1)
    with pytest.raises(InvalidInput, match=r"a target column goes with a \.csv"):
        load_data("zz_data:pair", target="y")


class Malicious:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_other_files_are_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    for name, sentence in (
        ("a.pkl", "is a pickle, which can run code"),
        ("a.pt", "may be a pickle"),
        ("a.npy", "give its directory"),
        ("a.parquet", "is none of them"),
        ("a", "is none of them"),
    ):
        (tmp_path / name).write_bytes(pickle.dumps(Malicious(trace)))
        with pytest.raises(FileProblem, match=sentence):
            load_data(tmp_path / name)
    assert not trace.exists()
    pickle.loads((tmp_path / "a.pkl").read_bytes())
    assert trace.exists()  # the pickle would have left it
    with pytest.raises(InvalidInput, match=r"a second file goes with a \.csv"):
        load_data(tmp_path / "a.npz", test="b.npz")
    for missing in ("none", "none.npz", "none.csv"):
        with pytest.raises(FileProblem, match="there is no"):
            load_data(tmp_path / missing)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000 + ".npz", "a" * 300 + ":b", "null\0name"])
def test_names_that_no_file_system_takes(name: str) -> None:
    with pytest.raises(FileProblem, match=r"cannot read|there is no"):
        load_data(name)
