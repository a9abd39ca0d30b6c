"""Data as the rest of torchtheory sees it: checked tensors `x [n, ...]` and `y [n, ...]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
)
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.random import as_generator, seed_torch
from torchtheory.models.graph_rows import GraphRows, graph_targets, is_graph, single_graphs
from torchtheory.models.inputs import Rows, as_mapping, is_several
from torchtheory.models.model import global_randomness_kept

#: Entries of a dictionary that hold the targets, in the order they are looked for.
TARGET_KEYS = ("labels", "label", "targets", "target", "y")

#: A pair of arrays, a map-style or iterable Dataset, or a DataLoader.
Data = Any


@dataclass(frozen=True)
class Samples:
    """Inputs and targets with one row per sample.

    Attributes:
        x: inputs `[n, ...]`.
        y: targets `[n]` or `[n, ...]`; `[n, 0]` where there are none.
        note: how they were chosen when they are not all there was.
        rows: the inputs themselves where the model takes several; `x` then numbers the samples.
        total: how many there were to choose from, where they are not all there was.
        parts: names and shapes a sample of several targets, which stand side by side in `y`.
    """

    x: Tensor
    y: Tensor
    note: str = ""
    rows: Rows | None = None
    total: int | None = None
    parts: tuple[tuple[str, torch.Size], ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labeled(self) -> bool:
        """Whether there are targets."""
        return self.y.numel() > 0

    @property
    def population(self) -> int:
        """How many samples there were before some were chosen."""
        return len(self) if self.total is None else self.total

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Consecutive pieces of at most `size` samples."""
        for start in range(0, len(self), size):
            yield self.x[start : start + size], self.y[start : start + size]

    def in_precision(self, dtype: torch.dtype) -> Samples:
        """The same samples with floating inputs and targets in another precision."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return replace(self, x=x, y=y)

    def first(self, count: int) -> Samples:
        """The first `count` samples."""
        return replace(self, x=self.x[:count], y=self.y[:count], total=self.population)

    def some(self, count: int, generator: torch.Generator) -> Samples:
        """`count` samples drawn at random without replacement, or all if there are no more."""
        if count >= len(self):
            return self
        return self.at(torch.randperm(len(self), generator=generator)[:count].sort().values)

    def at(self, index: Tensor) -> Samples:
        """The samples of the given numbers."""
        here = index.to(self.x.device)
        return replace(self, x=self.x[here], y=self.y[here], total=self.population)


def collect(data: Data, name: str, *, limit: int, seed: int = 0) -> Samples:
    """Read data of any accepted kind into checked tensors.

    Args:
        data: `(x, y)` of tensors or arrays, a `Dataset` or a `DataLoader` of such pairs, or
            anything with a length whose rows are pairs or dictionaries, such as a data set of the
            `datasets` library. A model that takes several inputs gets them as a dictionary or
            tuple in place of `x`; batches may also be longer tuples, whose last entry is `y`, or
            dictionaries with an entry `labels`, `label`, `targets`, `target` or `y`. One such
            dictionary of whole columns will do as well. Several targets are a dictionary in place
            of `y`. Inputs alone, `x` or batches of it, or dictionaries without such an entry,
            have no targets. Graphs of PyTorch Geometric (a list, a data set, a loader or a
            `Batch` of them) are samples, with one row of `y` each.
        name: what to call it in messages (`train`, `test`).
        limit: most samples to keep. Beyond it a map-style data set is sub-sampled at random
            (with `seed`) and a stream is cut; the result's `note` says so.

    >>> len(collect((torch.zeros(5, 2), torch.zeros(5)), "train", limit=3))
    3
    """
    x: Tensor | Rows
    y: Tensor | Rows
    if (graphs := _graphs(data, name)) is not None:
        return _of_graphs(graphs, name, limit, seed)
    whole: Any = data if isinstance(data, Samples | DataLoader | Dataset) else _columns(data, name)
    if isinstance(whole, Samples):
        inputs = whole.x if whole.rows is None else whole.rows.take(whole.x)
        x, y, note = _from_pair((inputs, whole.y), name, limit, seed)
        note = "; ".join(n for n in (whole.note, note) if n)
    elif isinstance(whole, DataLoader):
        x, y, note = _from_loader(whole, name, limit, seed)
    elif isinstance(whole, _Table):
        loader: DataLoader[Any] = DataLoader(whole, batch_size=256, collate_fn=list)
        x, y, note = _from_loader(loader, name, limit, seed)
    elif isinstance(whole, Dataset):
        if not isinstance(whole, IterableDataset) and not _has_length(whole):
            raise InvalidType(
                f"the {name} data set {type(whole).__name__} has no __len__; give it one, or make "
                "it an IterableDataset"
            )
        x, y, note = _from_loader(DataLoader(whole, batch_size=256), name, limit, seed)
    else:
        x, y, note = _from_pair(whole, name, limit, seed)
    total = _count(data) if note else None
    parts: tuple[tuple[str, torch.Size], ...] = getattr(data, "parts", ())
    if isinstance(y, Rows):
        parts = tuple((part, t.shape[1:]) for part, t in y.named())
        # in float64, which holds class indices as they are
        y = torch.cat([t.reshape(len(t), -1).double() for t in y.tensors()], 1)
    if isinstance(x, Rows):
        for part, tensor in x.named():
            _check(tensor, y, name, f"inputs {part!r}")
        return Samples(torch.arange(len(x)), y, note, x, total, parts)
    _check(x, y, name)
    return Samples(x, y, note, None, total, parts)


def _graphs(data: Any, name: str) -> Any | None:
    """A list or data set of graphs, those of a loader's data set or of a batch; None for others."""
    if isinstance(data, Samples | Tensor | str | Mapping):
        return None
    if is_graph(data):
        return single_graphs(data)
    whole = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(whole, IterableDataset) or not (
        isinstance(whole, list | tuple) or (isinstance(whole, Dataset) and _has_length(whole))
    ):
        return None
    if _length(whole, name) == 0:
        return None
    with ForeignCode(f"reading the {name} data"), global_randomness_kept():
        first = whole[0]
    return whole if is_graph(first) else None


def _of_graphs(graphs: Any, name: str, limit: int, seed: int) -> Samples:
    count = _length(graphs, name)
    chosen, note = _choose(count, name, limit, seed)
    with ForeignCode(f"reading the {name} data"):
        kept = [graphs[k] for k in (range(count) if chosen is None else chosen.tolist())]
    rows, y = GraphRows.of(kept), graph_targets(kept, name)
    for part, tensor in rows.named():
        _check(tensor, tensor, name, f"inputs {part!r}")
    if y is None:
        y = torch.empty(len(kept), 0)
    _check(rows.tensors()[0], y, name)
    return Samples(torch.arange(len(kept)), y, note, rows, count if note else None)


class _Table(Dataset[Any]):
    """Anything with a length and rows, as a data set of torch."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def _columns(data: Any, name: str) -> Any:
    """Data that is none of torch's: a pair `(x, y)`, or a table of rows.

    A pair of lists of rows stays a pair; `x` alone gets targets of no column.
    """
    if isinstance(data, Tensor | np.ndarray):
        return data, _none_of(_tensor(data, f"x of the {name} data"))
    if isinstance(data, tuple | list) and len(data) == 1 and isinstance(data[0], Tensor):
        return _columns(data[0], name)
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], Mapping | str):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return data
    columns = as_mapping(data)
    if columns is not None:
        return _pair_of(columns, name)
    if _is_table(data):
        return _Table(data)
    raise InvalidType(
        f"{name} data must be (x, y), a Dataset or a DataLoader, not {type(data).__name__}"
        + _frame_advice(data, name)
    )


def _frame_advice(data: object, name: str) -> str:
    if type(data).__module__.split(".")[0] not in ("pandas", "polars"):
        return ""
    return f"; pass {name}=(frame[features].to_numpy(), frame[target].to_numpy())"


def _is_table(data: Any) -> bool:
    """Whether it has a length and rows that are dictionaries or pairs."""
    if not (_has_length(data) and hasattr(type(data), "__getitem__")) or isinstance(data, str):
        return False
    try:
        with ForeignCode("the first row"):
            row = data[0]
    except InvalidInput:  # whatever a container without a row 0 raises
        return False
    return as_mapping(row) is not None or (isinstance(row, tuple | list) and len(row) == 2)


def _none_of(x: Tensor | Rows) -> Tensor:
    """Targets of no column for as many samples."""
    return torch.empty(len(x) if isinstance(x, Rows) or x.ndim else 0, 0)


def _count(data: Data) -> int | None:
    """How many samples there are, where that is known."""
    if isinstance(data, Samples):
        return data.population
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, tuple | list) and len(data) == 2:
        data = data[1]
    columns = as_mapping(data)
    if columns is not None:
        return len(next(iter(columns.values())))
    return _length(data, "data") if _has_length(data) else None


def _has_length(data: object) -> bool:
    """By its class: an attribute that is looked up in an instance may raise anything."""
    return hasattr(type(data), "__len__")


def _length(data: Any, name: str) -> int:
    """How many samples a data set says it has; what it raises becomes a sentence."""
    with ForeignCode(f"len of the {name} data"):
        return len(data)


def _from_pair(
    data: Any, name: str, limit: int, seed: int
) -> tuple[Tensor | Rows, Tensor | Rows, str]:
    x, y = _inputs(data[0], name), _targets(data[1], name)
    if _is_scalar(x) or _is_scalar(y):
        raise ShapeMismatch(
            f"x and y of the {name} data must have one row per sample, not be scalars"
        )
    if len(x) != len(y):
        raise ShapeMismatch(f"the {name} data has {len(x)} inputs but {len(y)} targets")
    chosen, note = _choose(len(x), name, limit, seed)
    return (x, y, "") if chosen is None else (_rows_of(x, chosen), _rows_of(y, chosen), note)


def _is_scalar(values: Tensor | Rows) -> bool:
    return isinstance(values, Tensor) and values.ndim == 0


def _targets(value: Any, name: str) -> Tensor | Rows:
    """One tensor, or several by name."""
    columns = as_mapping(value)
    if columns is None:
        return _tensor(value, f"y of the {name} data")
    made = {
        str(k): _tensor(_stacked(v), f"target {k} of the {name} data") for k, v in columns.items()
    }
    if any(t.ndim == 0 for t in made.values()):
        raise ShapeMismatch(f"the targets of the {name} data must have one row per sample")
    return Rows(made)


def _from_loader(
    loader: DataLoader[Any], name: str, limit: int, seed: int
) -> tuple[Tensor | Rows, Tensor | Rows, str]:
    note = ""
    kept = loader.dataset
    if not isinstance(kept, IterableDataset) and _has_length(kept):
        chosen, note = _choose(_length(kept, name), name, limit, seed)
        kept = kept if chosen is None else Subset(kept, chosen.tolist())
    # in order, in this process, and with a generator of its own: the user's loader and the
    # global generators stay where they are
    batched = loader.batch_sampler is not None or not isinstance(kept, IterableDataset)
    quiet: DataLoader[Any] = DataLoader(
        kept,
        batch_size=(loader.batch_size or 256) if batched else None,
        collate_fn=loader.collate_fn if loader.batch_sampler is not None else None,
        generator=as_generator(seed),
    )
    xs: list[Tensor | Rows] = []
    ys: list[Tensor | Rows] = []
    count, cut = 0, False
    with global_randomness_kept():
        seed_torch(seed)
        for batch in _batches(quiet, name):
            if count >= limit:
                cut = True
                break
            x, y = _rows_or_pair(batch, name)
            if not batched and isinstance(y, Tensor) and y.ndim == 0 and isinstance(x, Tensor):
                x, y = x[None], y[None]  # a stream of single samples
            if _is_scalar(x) or _is_scalar(y) or len(x) != len(y):
                shape, wanted = (
                    list(t.shape) if isinstance(t, Tensor) else t.shapes() for t in (x, y)
                )
                raise ShapeMismatch(
                    f"a batch of the {name} data has inputs of shape {shape} and targets "
                    f"of shape {wanted}; both need one row per sample"
                )
            xs.append(x)
            ys.append(y)
            count += len(x)
    if not xs:
        raise EmptyData(f"the {name} data is empty")
    if cut or count > limit:
        note = f"the first {limit} {name} samples of a stream were used"
    first = torch.arange(min(count, limit))
    return _rows_of(_joined(xs, name), first), _rows_of(_joined(ys, name), first), note


def _rows_or_pair(batch: Any, name: str) -> tuple[Tensor | Rows, Tensor | Rows]:
    """Inputs and targets of a batch, or of a list of rows that nobody has put together."""
    row = as_mapping(batch[0]) if isinstance(batch, list) and batch else None
    if row is None:
        return _pair_of(batch, name)
    rows = [as_mapping(r) or {} for r in batch]
    columns: dict[str, Any] = {}
    for key in row:
        values = [r.get(key) for r in rows]
        try:
            columns[key] = torch.stack([torch.as_tensor(v) for v in values])
        except RuntimeError:
            raise ShapeMismatch(
                f"{key} of the {name} data differs in length from sample to sample: pad it, as "
                "tokenizer(..., padding='max_length', truncation=True) does"
            ) from None
        except (TypeError, ValueError):  # text, which the model does not take either
            continue
    return _pair_of(columns, name)


def _pair_of(batch: Any, name: str) -> tuple[Tensor | Rows, Tensor | Rows]:
    """Inputs and targets of a batch: a pair, a longer tuple, a dictionary with labels, or inputs.

    Inputs alone have targets of no column. Text in a dictionary is left out.
    """
    columns = as_mapping(batch)
    if columns is not None:
        numbers = {k: _stacked(v) for k, v in columns.items() if not _is_text(v)}
        key = next((k for k in TARGET_KEYS if k in numbers), None)
        if key is None and numbers:
            alone = _inputs(numbers, name)
            return alone, _none_of(alone)
        if key is None or len(numbers) < 2:
            raise InvalidType(
                f"the {name} data yields dictionaries of {', '.join(map(str, columns))}; they need "
                f"inputs and one of {', '.join(TARGET_KEYS)}"
            )
        inputs: Any = {k: v for k, v in numbers.items() if k != key}
        return _inputs(inputs, name), _targets(numbers[key], name)
    if isinstance(batch, tuple | list) and len(batch) == 1:
        batch = batch[0]
    if isinstance(batch, Tensor):
        x = _tensor(batch, f"x of the {name} data")
        return x, _none_of(x)
    if not (isinstance(batch, tuple | list) and len(batch) >= 2):
        raise InvalidType(f"the {name} data must yield pairs (x, y), not {_kind(batch)}")
    inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
    return _inputs(inputs, name), _targets(batch[-1], name)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str)
    )


def _stacked(value: Any) -> Any:
    """Lists of numbers that torch's collation has turned on their side: one tensor a position."""
    if isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value):
        return torch.stack(value, 1) if value[0].ndim else torch.stack(value)
    return value


def _inputs(value: Any, name: str) -> Tensor | Rows:
    if isinstance(value, Rows):
        return value
    if not is_several(value) and not (
        isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value)
    ):
        return _tensor(value, f"x of the {name} data")
    columns = as_mapping(value)
    if columns is not None:
        return Rows({str(k): _tensor(v, f"{k} of the {name} data") for k, v in columns.items()})
    parts = [_tensor(v, f"input {k} of the {name} data") for k, v in enumerate(value)]
    return Rows(tuple(parts))


def _rows_of(x: Tensor | Rows, index: Tensor) -> Tensor | Rows:
    return x.take(index) if isinstance(x, Rows) else x[index.to(x.device)]


def _joined(xs: list[Tensor | Rows], name: str) -> Tensor | Rows:
    first = xs[0]
    try:
        if isinstance(first, Tensor):
            return torch.cat([x for x in xs if isinstance(x, Tensor)])
        columns = zip(*(x.tensors() for x in xs if isinstance(x, Rows)), strict=True)
        whole = [torch.cat(column) for column in columns]
    except (RuntimeError, ValueError):
        shapes = sorted(
            {str(list(x.shape[1:])) if isinstance(x, Tensor) else x.shapes() for x in xs}
        )
        raise ShapeMismatch(
            f"the batches of the {name} data do not fit together: inputs have the shapes "
            f"{', '.join(shapes[:3])} a sample"
        ) from None
    names = [part for part, _ in first.named()]
    return Rows(
        dict(zip(names, whole, strict=True)) if isinstance(first.parts, dict) else tuple(whole)
    )


def _batches(loader: DataLoader[Any], name: str) -> Iterator[Any]:
    """The batches; what a user's data set raises becomes a sentence."""
    reading, end = ForeignCode(f"reading the {name} data"), object()
    with reading:
        batches = iter(loader)
    while True:
        with reading:
            batch = next(batches, end)
        if batch is end:
            return
        yield batch


def _choose(n: int, name: str, limit: int, seed: int) -> tuple[Tensor | None, str]:
    if n <= limit:
        return None, ""
    order = torch.randperm(n, generator=as_generator(seed))[:limit]
    return order.sort().values, f"{limit} of {n} {name} samples, drawn at random with seed {seed}"


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        _refuse_unusual(value, what)
        return value.detach()
    if isinstance(value, np.ndarray | list | tuple | int | float | np.generic) or hasattr(
        type(value), "__array__"
    ):
        try:
            array = np.asarray(value)
        except ValueError:
            raise InvalidType(f"{what} must be an array, and its rows differ in length") from None
        except Exception as error:  # of an entry that is asked for its numbers
            raise InvalidType(
                f"{what} must be numbers, and reading them raised {type(error).__name__}"
            ) from error
        if array.dtype.kind in "biuf":
            return from_numpy(array)
        raise InvalidType(f"{what} must be numbers, not an array of {array.dtype}")
    raise InvalidType(f"{what} must be a tensor or an array, not {_kind(value)}")


def _refuse_unusual(tensor: Tensor, what: str) -> None:
    """Only dense tensors with values have rows that can be chosen and compared."""
    if tensor.is_nested:
        kind, do = "a nested tensor", "pad it with torch.nested.to_padded_tensor(x, 0.0)"
    elif tensor.is_quantized:
        kind, do = "a quantized tensor", "call .dequantize() first"
    elif tensor.layout != torch.strided:
        kind, do = "a sparse tensor", "call .to_dense() first"
    elif tensor.is_meta:
        kind, do = "on the meta device, which holds no values", "load it first"
    else:
        return
    raise InvalidType(f"{what} is {kind}, and dense rows are needed: {do}")


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of any array of numbers, also where torch takes none.

    Reversed views, foreign byte orders, extended precision and read-only memory are copied.
    """
    kind = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    plain = np.asarray(array, dtype=kind)
    if not plain.flags.writeable or any(step < 0 for step in plain.strides):
        plain = plain.copy()
    return torch.as_tensor(plain)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _check(x: Tensor, y: Tensor, name: str, inputs: str = "inputs") -> None:
    if len(x) == 0:
        raise EmptyData(f"the {name} data is empty")
    if len(x) != len(y):
        raise ShapeMismatch(f"the {name} data has {len(x)} inputs but {len(y)} targets")
    for part, tensor in ((inputs, x), ("targets", y)):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = (~torch.isfinite(tensor.reshape(len(tensor), -1))).any(1).nonzero()
            raise NonFinite(
                f"the {name} {part} contain NaN or infinity, first at sample {int(bad[0])}"
            )
