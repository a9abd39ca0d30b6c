"""Data of every accepted kind, and what is refused."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.models.samples import Samples, collect, from_numpy

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10)


class Mapped(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return X[k], int(Y[k])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((X[k], int(Y[k])) for k in range(len(X)))


class Batches(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X.split(4), Y.split(4), strict=True))


def stacked(batch: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x + 100 for x, _ in batch]), torch.tensor([y for _, y in batch])


KINDS = {
    "tensors": (X, Y),
    "list": [X, Y],
    "numpy": (X.numpy(), Y.numpy()),
    "lists": (X.tolist(), Y.tolist()),
    "tensor data set": TensorDataset(X, Y),
    "map-style": Mapped(),
    "iterable": Stream(),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=3),
    "shuffled loader": DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
    "drop_last": DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=True),
    "batch sampler": DataLoader(
        TensorDataset(X, Y), batch_sampler=BatchSampler(SequentialSampler(Y), 3, drop_last=False)
    ),
    "loader of a stream": DataLoader(Stream(), batch_size=3),
    "stream of single samples": DataLoader(Stream(), batch_size=None),
    "stream of batches": DataLoader(Batches(), batch_size=None),
    "samples": Samples(X, Y),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_samples_in_order(kind: str) -> None:
    found = collect(KINDS[kind], "train", limit=100)
    assert torch.equal(found.x, X)
    assert torch.equal(found.y.long(), Y)
    assert found.note == ""


def test_a_users_collate_function_is_used() -> None:
    sampler = BatchSampler(SequentialSampler(Y), 3, drop_last=False)
    for loader in (
        DataLoader(Mapped(), batch_size=3, collate_fn=stacked),
        DataLoader(Mapped(), batch_sampler=sampler, collate_fn=stacked),
    ):
        assert torch.equal(collect(loader, "train", limit=100).x, X + 100)


class Drawing(Dataset[Any]):
    """Augments its samples with all three global generators."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return torch.rand(2) + noise, k


class DrawingStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.rand(2), k) for k in range(6))


@pytest.mark.parametrize("data", [Drawing(), DrawingStream()])
def test_no_generator_of_the_user_moves(data: Any) -> None:
    own = torch.Generator().manual_seed(9)
    loader = DataLoader(
        data, batch_size=2, shuffle=isinstance(data, Drawing) or None, generator=own
    )
    before = own.get_state(), torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    collect(loader, "train", limit=100)
    collect(data, "train", limit=3)
    after = own.get_state(), torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]
    assert np.array_equal(before[3][1], after[3][1])  # type: ignore[index]


@pytest.mark.parametrize("kind", ["tensors", "map-style", "shuffled loader", "samples"])
def test_beyond_the_limit_a_random_subset_is_drawn_and_noted(kind: str) -> None:
    found = collect(KINDS[kind], "train", limit=4, seed=1)
    assert found.note == "4 of 10 train samples, drawn at random with seed 1"
    chosen = found.y.tolist()
    assert len(set(chosen)) == 4
    assert chosen == sorted(chosen)
    assert torch.equal(found.x, X[chosen])
    assert torch.equal(collect(KINDS[kind], "train", limit=4, seed=1).y, found.y)
    assert collect(KINDS[kind], "train", limit=4, seed=2).y.tolist() != chosen


@pytest.mark.parametrize(
    "kind", ["iterable", "loader of a stream", "stream of batches", "stream of single samples"]
)
def test_a_stream_is_cut(kind: str) -> None:
    found = collect(KINDS[kind], "test", limit=4)
    assert torch.equal(found.x, X[:4])
    assert found.note == "the first 4 test samples of a stream were used"
    assert collect(KINDS[kind], "test", limit=10).note == ""


def test_samples() -> None:
    samples = Samples(X, Y, "a note")
    assert len(samples) == 10
    assert [len(x) for x, _ in samples.chunks(4)] == [4, 4, 2]
    assert torch.equal(torch.cat([y for _, y in samples.chunks(3)]), Y)
    double = samples.in_precision(torch.float64)
    assert (double.x.dtype, double.y.dtype, double.note) == (torch.float64, torch.int64, "a note")
    assert torch.equal(samples.first(3).y, Y[:3])


def test_arrays_torch_does_not_take() -> None:
    plain = np.arange(6.0).reshape(3, 2)
    frozen = plain.copy()
    frozen.flags.writeable = False
    for odd in (plain[::-1][::-1], plain.astype(">f8"), plain.astype(np.longdouble), frozen):
        found = from_numpy(odd)
        assert found.dtype == torch.float64
        assert torch.equal(found, torch.as_tensor(plain))
    assert torch.equal(from_numpy(plain[::-1]), torch.as_tensor(plain).flip(0))
    assert from_numpy(np.array(3, dtype=">i2")).shape == ()


class NoLength(Dataset[Any]):
    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return X[k], 0


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return torch.zeros(k + 1), 0


class Raising(Ragged):
    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        raise OSError("the disk\nis gone")


class Words(Ragged):
    def __getitem__(self, k: int) -> Any:
        return {"x": "word"}


@pytest.mark.parametrize(
    ("data", "error", "sentence"),
    [
        (None, InvalidType, r"must be \(x, y\), a Dataset or a DataLoader, not NoneType"),
        ("mnist", InvalidType, "not str"),
        ((X, Y, Y), InvalidType, "not tuple"),
        ([X, Y, Y], InvalidType, "not list"),
        ((X, Y[:3]), ShapeMismatch, "the train data has 10 inputs but 3 targets"),
        ((torch.tensor(1.0), Y), ShapeMismatch, "one row per sample"),
        ((X[:0], Y[:0]), EmptyData, "the train data is empty"),
        ((X.index_fill(0, torch.tensor([7]), torch.nan), Y), NonFinite, "first at sample 7"),
        ((X, Y / 0), NonFinite, "train targets contain NaN or infinity, first at sample 0"),
        ((X, [object()] * 10), InvalidType, "y of the train data must be numbers"),
        ((X, ["a"] * 10), InvalidType, "y of the train data must be numbers"),
        (([[1, 2], [3]], [0, 1]), InvalidType, "differ in length"),
        ((X, {"a": 1}), ShapeMismatch, "targets of the train data must have one row per sample"),
        ((X, {"a": "words"}), InvalidType, "target a of the train data must be a tensor"),
        (NoLength(), InvalidType, "has no __len__"),
        (Ragged(), InvalidInput, "reading the train data raised RuntimeError: stack expects"),
        (DataLoader(Ragged(), batch_size=1), ShapeMismatch, "do not fit together"),
        (Raising(), InvalidInput, "raised OSError: the disk is gone"),
        (DataLoader(Words(), batch_size=2), InvalidType, "they need inputs and one of labels"),
        (DataLoader(Ragged(), batch_size=3, collate_fn=str), InvalidType, "must yield pairs"),
        (TensorDataset(X[:0], Y[:0]), EmptyData, "the train data is empty"),
    ],
)
def test_refused(data: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        collect(data, "train", limit=100)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about what it may change
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested.*padded"),
        (lambda: torch.eye(10).to_sparse(), r"sparse tensor.*to_dense\(\)"),
        (lambda: torch.eye(10).to_sparse_csr(), r"sparse tensor.*to_dense\(\)"),
        (lambda: torch.ones(10, 2, device="meta"), "meta device"),
        (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), "dequantize"),
    ],
)
def test_tensors_without_dense_rows(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidType, match=f"x of the train data is .*{sentence}"):
        collect((make(), Y), "train", limit=5)
    with pytest.raises(InvalidType, match=sentence):
        collect(({"a": make(), "b": X}, Y), "train", limit=5)


class Hostile(Dataset[Any]):
    def __len__(self) -> int:
        raise ZeroDivisionError("no length today")

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __getitem__(self, k: int) -> Any:
        return X[k], Y[k]


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, sampler=range(3))])
def test_a_data_set_whose_length_raises(wrap: Any) -> None:
    with pytest.raises(InvalidInput, match="len of the train data raised ZeroDivisionError: no"):
        collect(wrap(Hostile()), "train", limit=5)


def test_inputs_whose_attributes_raise() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError(name)

    with pytest.raises(InvalidType, match=r"tuple|Odd|numbers"):
        collect(((Odd(), Odd()), Y), "train", limit=5)


def test_inputs_without_targets() -> None:
    for data in (X, X.numpy(), (X,), TensorDataset(X), DataLoader(TensorDataset(X), batch_size=4)):
        found = collect(data, "train", limit=100)
        assert not found.labeled
        assert found.y.shape == (10, 0)
        assert torch.equal(found.x, X)
    few = collect(X, "train", limit=4)
    assert (len(few), few.population, few.y.shape) == (4, 10, (4, 0))
    assert collect((X, Y), "train", limit=100).labeled


class Rowwise:
    """A table as the datasets library has it: a length, and rows that are dictionaries of lists."""

    def __init__(self, ragged: bool = False) -> None:
        self.ragged = ragged

    def __len__(self) -> int:
        return 10

    def __getitem__(self, k: Any) -> dict[str, Any]:
        length = 3 if not self.ragged else 2 + int(k) % 2
        return {
            "input_ids": [int(k) + i for i in range(length)],
            "text": "words",
            "label": int(k) % 2,
        }


class Encoding(UserDict):  # type: ignore[type-arg]
    """What tokenizers return."""


class Keyed:
    """Keys and entries, and no mapping."""

    def __init__(self, **entries: Any) -> None:
        self.entries = entries

    def keys(self) -> Any:
        return self.entries.keys()

    def __getitem__(self, key: str) -> Any:
        return self.entries[key]


def test_tables_of_rows() -> None:
    expected = torch.arange(10)[:, None] + torch.arange(3)
    for data in (
        Rowwise(),
        DataLoader(Rowwise(), batch_size=4),  # type: ignore[arg-type]
        [Rowwise()[k] for k in range(10)],
    ):
        found = collect(data, "train", limit=100)
        assert found.rows is not None
        assert [name for name, _ in found.rows.named()] == ["input_ids"]  # text is left out
        assert torch.equal(found.rows.tensors()[0], expected)
        assert found.y.tolist() == [k % 2 for k in range(10)]
    few = collect(Rowwise(), "train", limit=4)
    assert (len(few), few.population) == (4, 10)
    with pytest.raises(ShapeMismatch, match=r"input_ids of the train data differs in length.*pad"):
        collect(Rowwise(ragged=True), "train", limit=100)


def test_whole_columns() -> None:
    entries = {"input_ids": torch.ones(10, 3).long(), "labels": Y}
    for data in (
        entries,
        Encoding(entries),
        Keyed(**entries),
        (Encoding({"input_ids": entries["input_ids"]}), Y),
        (Keyed(input_ids=entries["input_ids"]), Y),
    ):
        found = collect(data, "train", limit=6)
        assert found.rows is not None
        assert found.rows.shapes() == "input_ids 3"
        assert (len(found), found.population) == (6, 10)


def test_several_targets() -> None:
    y = {"kind": Y, "size": X[:, :2]}
    for data in ((X, y), DataLoader(Several(), batch_size=4)):
        found = collect(data, "train", limit=8)
        assert found.parts == (("kind", torch.Size([])), ("size", torch.Size([2])))
        assert found.y.shape == (8, 3)
        assert (len(found), found.population) == (8, 10)
    with pytest.raises(ShapeMismatch, match="different numbers of rows"):
        collect((X, {"kind": Y, "size": X[:3]}), "train", limit=8)


class Several(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, k: int) -> Any:
        return X[k], {"kind": Y[k], "size": X[k, :2]}


def test_a_table_of_pandas_is_refused_with_what_to_pass() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(InvalidType, match=r"train=\(frame\[features\]\.to_numpy\(\)"):
        collect(frame, "train", limit=8)
    assert collect((frame[["a"]], frame["label"]), "train", limit=8).x.shape == (2, 1)
