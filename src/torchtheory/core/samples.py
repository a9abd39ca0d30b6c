"""Data as the rest of torchtheory sees it: checked tensors ``x [n, ...]`` and ``y [n, ...]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from torchtheory.core.model import global_randomness_kept
from torchtheory.core.random import as_generator

#: A pair of arrays, a map-style or iterable Dataset, or a DataLoader.
Data = Any


@dataclass(frozen=True)
class Samples:
    """Inputs and targets with one row a sample.

    Attributes:
        x: inputs ``[n, ...]``.
        y: targets ``[n]`` or ``[n, ...]``.
        note: how they were chosen when they are not all there was.
    """

    x: Tensor
    y: Tensor
    note: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Consecutive pieces of at most ``size`` samples."""
        for start in range(0, len(self), size):
            yield self.x[start : start + size], self.y[start : start + size]

    def in_precision(self, dtype: torch.dtype) -> Samples:
        """The same samples with floating inputs and targets in another precision."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return Samples(x, y, self.note)

    def first(self, count: int) -> Samples:
        """The first ``count`` samples."""
        return Samples(self.x[:count], self.y[:count], self.note)


def collect(data: Data, name: str, *, limit: int, seed: int = 0) -> Samples:
    """Read data of any accepted kind into checked tensors.

    Args:
        data: ``(x, y)`` of tensors or arrays, a ``Dataset`` or a ``DataLoader`` of such pairs.
        name: what to call it in messages (``train``, ``test``).
        limit: most samples to keep. Beyond it a map-style data set is sub-sampled at random
            (with ``seed``) and a stream is cut; the result's ``note`` says so.

    >>> len(collect((torch.zeros(5, 2), torch.zeros(5)), "train", limit=3))
    3
    """
    if isinstance(data, Samples):
        x, y, note = _from_pair((data.x, data.y), name, limit, seed)
        note = "; ".join(n for n in (data.note, note) if n)
    elif isinstance(data, DataLoader):
        x, y, note = _from_loader(data, name, limit, seed)
    elif isinstance(data, Dataset):
        if not isinstance(data, IterableDataset) and not hasattr(data, "__len__"):
            raise InvalidType(
                f"the {name} data set {type(data).__name__} has no __len__; give it one, or make "
                "it an IterableDataset"
            )
        x, y, note = _from_loader(DataLoader(data, batch_size=256), name, limit, seed)
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y, note = _from_pair(data, name, limit, seed)
    else:
        raise InvalidType(
            f"{name} data must be (x, y), a Dataset or a DataLoader, not {type(data).__name__}"
        )
    _check(x, y, name)
    return Samples(x, y, note)


def _from_pair(data: Any, name: str, limit: int, seed: int) -> tuple[Tensor, Tensor, str]:
    x, y = (
        _tensor(part, f"{part_name} of the {name} data")
        for part_name, part in zip("xy", data, strict=True)
    )
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeMismatch(
            f"x and y of the {name} data must have one row a sample, not be scalars"
        )
    if len(x) != len(y):
        raise ShapeMismatch(f"the {name} data has {len(x)} inputs but {len(y)} targets")
    chosen, note = _choose(len(x), name, limit, seed)
    return (x, y, "") if chosen is None else (x[chosen], y[chosen], note)


def _from_loader(
    loader: DataLoader[Any], name: str, limit: int, seed: int
) -> tuple[Tensor, Tensor, str]:
    note = ""
    kept = loader.dataset
    if not isinstance(kept, IterableDataset) and hasattr(kept, "__len__"):
        chosen, note = _choose(len(kept), name, limit, seed)
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
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    count, cut = 0, False
    with global_randomness_kept():
        torch.manual_seed(seed)
        for batch in _batches(quiet, name):
            if count >= limit:
                cut = True
                break
            if not (isinstance(batch, tuple | list) and len(batch) == 2):
                raise InvalidType(f"the {name} data must yield pairs (x, y), not {_kind(batch)}")
            x, y = (
                _tensor(part, f"{part_name} of the {name} data")
                for part_name, part in zip("xy", batch, strict=True)
            )
            if not batched and y.ndim == 0:  # a stream of single samples
                x, y = x[None], y[None]
            if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
                raise ShapeMismatch(
                    f"a batch of the {name} data has inputs of shape {list(x.shape)} and targets "
                    f"of shape {list(y.shape)}; both need one row a sample"
                )
            xs.append(x)
            ys.append(y)
            count += len(x)
    if not xs:
        raise EmptyData(f"the {name} data is empty")
    if cut or count > limit:
        note = f"the first {limit} {name} samples of a stream were used"
    try:
        return torch.cat(xs)[:limit], torch.cat(ys)[:limit], note
    except RuntimeError:
        shapes = sorted({str(list(x.shape[1:])) for x in xs})
        raise ShapeMismatch(
            f"the batches of the {name} data do not fit together: inputs have the shapes "
            f"{', '.join(shapes[:3])} a sample"
        ) from None


def _batches(loader: DataLoader[Any], name: str) -> Iterator[Any]:
    """The batches; what a user's data set raises becomes a sentence."""
    try:
        yield from loader
    except Exception as error:
        sentence = " ".join(str(error).split())[:300]
        raise InvalidInput(
            f"reading the {name} data raised {type(error).__name__}: {sentence}"
        ) from error


def _choose(n: int, name: str, limit: int, seed: int) -> tuple[Tensor | None, str]:
    if n <= limit:
        return None, ""
    order = torch.randperm(n, generator=as_generator(seed))[:limit]
    return order.sort().values, f"{limit} of {n} {name} samples, drawn at random with seed {seed}"


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray | list | tuple | int | float | np.generic):
        try:
            array = np.asarray(value)
        except ValueError:
            raise InvalidType(f"{what} must be an array, and its rows differ in length") from None
        if array.dtype.kind in "biuf":
            return from_numpy(array)
        raise InvalidType(f"{what} must be numbers, not an array of {array.dtype}")
    raise InvalidType(f"{what} must be a tensor or an array, not {_kind(value)}")


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


def _check(x: Tensor, y: Tensor, name: str) -> None:
    if len(x) == 0:
        raise EmptyData(f"the {name} data is empty")
    if len(x) != len(y):
        raise ShapeMismatch(f"the {name} data has {len(x)} inputs but {len(y)} targets")
    for part, tensor in (("inputs", x), ("targets", y)):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = (~torch.isfinite(tensor.reshape(len(tensor), -1))).any(1).nonzero()
            raise NonFinite(
                f"the {name} {part} contain NaN or infinity, first at sample {int(bad[0])}"
            )
