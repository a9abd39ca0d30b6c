"""Files are data: read exactly, or refused with a sentence; nothing is unpickled."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchtheory.core.errors import FileProblem, UnknownName
from torchtheory.data.files import load_npy_folder, load_npz, read_idx
from torchtheory.data.image_sets import FILES, load_image_set, locate_image_set


def test_npz_with_and_without_a_test_set(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y)
    train, test = load_npz(tmp_path / "a.npz")
    assert torch.equal(train[0], torch.as_tensor(x))
    assert torch.equal(train[1], torch.as_tensor(y))
    assert test is None
    np.savez_compressed(
        tmp_path / "b.npz", x_train=x.astype(">f4"), y_train=y > 0, x_test=x[::-1], y_test=y
    )
    train, test = load_npz(str(tmp_path / "b.npz"))
    assert (train[0].dtype, train[1].dtype) == (torch.float32, torch.bool)
    assert test is not None
    assert torch.equal(test[0], torch.as_tensor(x).flip(0))


class Malicious:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_object_arrays_are_refused_and_not_run(tmp_path: Path) -> None:
    trace, file = tmp_path / "was-run", tmp_path / "a.npz"
    np.savez(file, x_train=np.array([Malicious(trace)], dtype=object), y_train=np.zeros(1))
    with pytest.raises(FileProblem, match="not a readable"):
        load_npz(file)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"z": np.zeros(3)}, "has no array x_train; it has z"),
        ({}, "has no array x_train; it has none"),
        ({"x_train": np.zeros(3)}, "has no array y_train"),
        ({"x_train": [1], "y_train": [1], "x_test": [1]}, "only one of x_test and y_test"),
        ({"x_train": ["a"], "y_train": [1]}, "x_train in .* holds <U1, not numbers"),
        ({"x_train": [1j], "y_train": [1]}, "complex128, not numbers"),
    ],
)
def test_npz_with_wrong_arrays(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileProblem, match=sentence):
        load_npz(tmp_path / "a.npz")


def test_npz_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="there is no file"):
        load_npz(tmp_path / "a.npz")
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(FileProblem, match=r"must be an \.npz file"):
        load_npz(tmp_path / "a.csv")
    np.savez(tmp_path / "good.npz", x_train=np.zeros(50), y_train=np.zeros(50))
    content = (tmp_path / "good.npz").read_bytes()
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    for damaged in (b"", b"corrupted", content[: len(content) // 2], single.read_bytes()):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(FileProblem, match="not a readable"):
            load_npz(tmp_path / "a.npz")


def test_npz_under_other_names(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    for names in (
        ("X_train", "y_train", "X_test", "Y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("train_x", "train_y", "test_x", "test_y"),
    ):
        arrays = dict(zip(names, (x, y, x[:1], y[:1]), strict=True))
        np.savez(tmp_path / "a.npz", val_images=np.array(["not read"]), **arrays)
        train, test = load_npz(tmp_path / "a.npz")
        assert torch.equal(train[0], torch.as_tensor(x))
        assert test is not None
        assert torch.equal(test[1], torch.as_tensor(y[:1]))
    np.savez(tmp_path / "a.npz", X=x, y=y)
    train, test = load_npz(tmp_path / "a.npz")
    assert torch.equal(train[1], torch.as_tensor(y))
    assert test is None
    np.savez(tmp_path / "a.npz", X_train=x, x_train=x, y_train=y)
    with pytest.raises(FileProblem, match="has both X_train and x_train: which is x_train"):
        load_npz(tmp_path / "a.npz")


def test_npz_with_inputs_by_name(tmp_path: Path) -> None:
    ids, mask, y = np.arange(6).reshape(3, 2), np.ones((3, 2)), np.zeros(3)
    arrays = {"x_train.ids": ids, "x_train.mask": mask, "y_train": y}
    np.savez(tmp_path / "a.npz", **arrays)
    (x, _), test = load_npz(tmp_path / "a.npz")
    assert isinstance(x, dict)
    assert (list(x), test) == (["ids", "mask"], None)
    assert torch.equal(x["ids"], torch.as_tensor(ids))
    for more, sentence in (
        ({"x_train": ids}, "x_train both as one array and by name"),
        ({"y_train.other": y}, "y_train both as one array and by name"),
    ):
        np.savez(tmp_path / "a.npz", **arrays, **more)
        with pytest.raises(FileProblem, match=sentence):
            load_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **{"x": ids, "y.other": y})
    with pytest.raises(FileProblem, match="targets by name, and one array y_train is needed"):
        load_npz(tmp_path / "a.npz")


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    x, y = np.arange(6.0, dtype=">f4").reshape(3, 2), np.array([0, 1, 0])
    np.save(tmp_path / "x_train.npy", x)
    np.save(tmp_path / "y_train.npy", y)
    train, test = load_npy_folder(tmp_path)
    assert isinstance(train[0], torch.Tensor)
    assert (train[0].tolist(), train[1].tolist(), test) == (x.tolist(), y.tolist(), None)
    train[1].fill_(7)  # memory of its own: the file stays as it is
    assert np.load(tmp_path / "y_train.npy").tolist() == y.tolist()
    np.save(tmp_path / "x_test.npy", x[:1])
    with pytest.raises(FileProblem, match="only one of x_test and y_test"):
        load_npy_folder(tmp_path)
    np.save(tmp_path / "y_test.npy", y[:1])
    _, test = load_npy_folder(tmp_path)
    assert test is not None
    assert test[0].tolist() == x[:1].tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", ["x_train.{}.npy", "x_train/{}.npy"])
def test_a_folder_with_inputs_by_name(tmp_path: Path, layout: str) -> None:
    (tmp_path / "x_train").mkdir()
    for name, count in (("ids", 2), ("mask", 3)):
        np.save(tmp_path / layout.format(name), np.ones((4, count)))
    np.save(tmp_path / "y_train.npy", np.zeros(4))
    (x, _), _ = load_npy_folder(tmp_path)
    assert isinstance(x, dict)
    assert {k: tuple(v.shape) for k, v in x.items()} == {"ids": (4, 2), "mask": (4, 3)}


def test_folders_of_objects_are_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    np.save(tmp_path / "y_train.npy", np.zeros(1))
    np.save(tmp_path / "x_train.npy", np.array([Malicious(trace)], dtype=object))
    with pytest.raises(FileProblem, match="not a readable directory of arrays of numbers: x_train"):
        load_npy_folder(tmp_path)
    (tmp_path / "x_train.npy").write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(FileProblem, match="not a readable directory"):
        load_npy_folder(tmp_path)
    assert not trace.exists()
    np.save(tmp_path / "x_train.npy", np.array(["a"]))
    with pytest.raises(FileProblem, match="holds <U1, not numbers"):
        load_npy_folder(tmp_path)
    with pytest.raises(FileProblem, match="there is no directory"):
        load_npy_folder(tmp_path / "none")
    with pytest.raises(FileProblem, match="is not a directory"):
        load_npy_folder(tmp_path / "x_train.npy")


def idx(array: np.ndarray[Any, Any], kind: int) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return head + array.tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx(tmp_path: Path, kind: int, dtype: str, packed: bool) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    file = tmp_path / ("a.gz" if packed else "a")
    content = idx(array, kind)
    file.write_bytes(gzip.compress(content) if packed else content)
    found = read_idx(file)
    assert found.shape == (2, 3, 4)
    assert found.double().flatten().tolist() == list(range(24))
    found += 1  # it is memory of its own


def test_idx_files_that_are_none(tmp_path: Path) -> None:
    good = idx(np.arange(6, dtype="u1").reshape(2, 3), 8)
    broken_gzip = bytearray(gzip.compress(good * 50))
    broken_gzip[20] ^= 0xFF
    for name, content, sentence in (
        ("a", b"", "not in IDX format"),
        ("a", b"PK\x03\x04", "not in IDX format"),
        ("a", b"\0\0\x07\x01", "not in IDX format"),
        ("a", good[:9], "cut off in its header"),
        ("a", good[:-1], r"says it has shape \[2, 3\]"),
        ("a", good + b"\0", "its size does not fit"),
        ("a.gz", good, "not readable"),
        ("a.gz", gzip.compress(good)[:-4], "not readable"),
        ("a.gz", bytes(broken_gzip), "not readable|size does not fit"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileProblem, match=sentence):
            read_idx(tmp_path / name)
    with pytest.raises(FileProblem, match="there is no file"):
        read_idx(tmp_path / "none")


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist"])
def test_image_sets_are_found_in_both_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("TORCHTHEORY_DATA", str(tmp_path))
    assert locate_image_set("mnist") is None
    with pytest.raises(FileProblem, match=r"put its four IDX files into .*TORCHTHEORY_DATA"):
        load_image_set("mnist")
    place = tmp_path / folder
    place.mkdir(parents=True)
    pixels, labels = np.zeros((2, 28, 28), "u1"), np.array([3, 7], "u1")
    for file, array in zip(FILES, (pixels, labels, pixels[:1], labels[:1]), strict=True):
        assert locate_image_set("mnist") is None
        (place / f"{file}.gz").write_bytes(gzip.compress(idx(array, 8)))
    assert locate_image_set("mnist") == place
    (x, y), (_, test_y) = load_image_set("mnist")
    assert (x.shape, x.dtype) == ((2, 28, 28), torch.uint8)
    assert (y.tolist(), y.dtype, test_y.tolist()) == ([3, 7], torch.int64, [3])
    with pytest.raises(UnknownName, match="did you mean 'mnist'"):
        locate_image_set("mnst")


def little_memory(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("torchtheory.core.memory.spare_memory", lambda: count)


def test_an_archive_is_not_unpacked_beyond_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data.npz"
    np.savez_compressed(file, x=np.zeros((1000, 1000)), y=np.zeros(1000))
    assert file.stat().st_size < 100_000
    assert len(load_npz(file)[0][1]) == 1000
    little_memory(monkeypatch, 1_000_000)
    with pytest.raises(FileProblem, match=r"x of .*data\.npz would take .*, more than"):
        load_npz(file)


def test_an_archive_that_states_an_absurd_size(tmp_path: Path) -> None:
    header = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": (10**8, 10**8)}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header.getvalue())
    with pytest.raises(FileProblem, match="more than this machine has to spare"):
        load_npz(tmp_path / "data.npz")


def test_packed_idx_beyond_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = b"\0\0\x08\x01" + struct.pack(">I", 10**6)
    (tmp_path / "a.gz").write_bytes(gzip.compress(header + bytes(10**6)))
    assert len(read_idx(tmp_path / "a.gz")) == 10**6
    (tmp_path / "b.gz").write_bytes(gzip.compress(header + bytes(10**8)))
    with pytest.raises(FileProblem, match="its size does not fit"):
        read_idx(tmp_path / "b.gz")
    little_memory(monkeypatch, 10**6)
    with pytest.raises(FileProblem, match="more than this machine has to spare"):
        read_idx(tmp_path / "a.gz")


@pytest.mark.parametrize("dimensions", [65, 255])
def test_idx_with_more_dimensions_than_arrays_have(tmp_path: Path, dimensions: int) -> None:
    sizes = struct.pack(f">{dimensions}I", *[1] * dimensions)
    (tmp_path / "a").write_bytes(b"\0\0\x08" + bytes([dimensions]) + sizes + b"\0")
    with pytest.raises(FileProblem, match=f"says it has {dimensions} dimensions"):
        read_idx(tmp_path / "a")


@pytest.mark.parametrize("shape", [(0,), (0, 28, 28), (10, 0), (2**32 - 1, 0, *[2**32 - 1] * 3)])
def test_idx_without_entries(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a").write_bytes(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape))
    with pytest.raises(FileProblem, match="has no entries"):
        read_idx(tmp_path / "a")


def test_idx_that_states_an_absurd_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0\0\x0e\x08" + struct.pack(">8I", *[2**32 - 1] * 8))
    with pytest.raises(FileProblem, match="more than this machine has to spare"):
        read_idx(tmp_path / "a")


def test_a_pipe_is_no_array(tmp_path: Path) -> None:
    for name in ("x_train.npy", "y_train.npy"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(FileProblem, match="is not a file"):
        load_npy_folder(tmp_path)
