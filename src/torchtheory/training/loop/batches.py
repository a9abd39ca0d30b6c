"""Mini-batches: from tensors in memory, or read from a data set that does not fit there.

A source yields the batches of an epoch from any batch on, the same ones every time: that is what
lets a training be taken up in the middle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.models.samples import Data, Samples, collect
from torchtheory.training.loop.seeds import (
    RandomState,
    derived_generator,
    derived_seed,
    epoch_order,
    global_random_state,
    seed_global_generators,
    set_global_random_state,
)
from torchtheory.training.losses.risks import hold_out, split_indices

Prepare = Callable[[Any, Any], Samples]
Indexed = tuple[Tensor, Tensor, Tensor | None]

EVALUATION_CHUNK = 512
PROBE = 256


class BatchSource(Protocol):
    """What yields batches `(x, y, index)`; `index` says which rows, where there are rows."""

    @property
    def samples(self) -> int | None:
        """How many samples an epoch has, where that is known."""

    def batches(self, size: int, epoch: int, start: int = 0) -> Iterator[Indexed]:
        """The batches of an epoch (from 1) in its random order, from batch `start` on.

        There are none from the end of the epoch on: where a training was interrupted after the
        last step, nothing is left but to validate.
        """

    def pass_through(self) -> Iterator[Indexed]:
        """All samples once, in their own order, in chunks."""


class InMemory:
    """Samples held as tensors."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.data, self.seed = samples, seed

    @property
    def samples(self) -> int:
        return len(self.data)

    def batches(self, size: int, epoch: int, start: int = 0) -> Iterator[Indexed]:
        x, y = self.data.x, self.data.y
        order = epoch_order(len(self.data), self.seed, epoch).to(x.device)
        for begin in range(start * size, len(order), size):
            index = order[begin : begin + size]
            # index_select is several times faster than x[index] on the CPU
            yield x.index_select(0, index), y.index_select(0, index), index

    def pass_through(self) -> Iterator[Indexed]:
        for x, y in self.data.chunks(EVALUATION_CHUNK):
            yield x, y, None


class FromDataset:
    """Samples read from a map-style data set whenever they are needed.

    Before each sample is read the global generators are seeded from the seed, the epoch and the
    sample, and put back afterwards: random transforms differ between epochs, yet do not depend on
    the number of workers or on where the epoch was taken up.
    """

    def __init__(self, loader: DataLoader[Any], prepare: Prepare, seed: int) -> None:
        self.loader, self.prepare, self.seed = loader, prepare, seed

    @property
    def samples(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]

    def batches(self, size: int, epoch: int, start: int = 0) -> Iterator[Indexed]:
        order = epoch_order(self.samples, self.seed, epoch)
        yield from self._read(order[start * size :], size, epoch)

    def pass_through(self) -> Iterator[Indexed]:
        yield from self._read(torch.arange(self.samples), EVALUATION_CHUNK, 0)

    def _read(self, order: Tensor, size: int, epoch: int) -> Iterator[Indexed]:
        with global_randomness_kept():
            batches = iter(
                DataLoader(
                    _SeededItems(self.loader.dataset, self.seed, epoch),
                    batch_sampler=[
                        order[begin : begin + size].tolist() for begin in range(0, len(order), size)
                    ],
                    collate_fn=self.loader.collate_fn,
                    num_workers=self.loader.num_workers,
                    generator=derived_generator(self.seed, "workers", epoch),
                )
            )
        while True:
            with global_randomness_kept():
                batch = next(batches, None)
            if batch is None:
                return
            ready = self.prepare(*_pair(batch))
            yield ready.x, ready.y, None


class FromStream:
    """Samples as an iterable data set yields them, in its own order.

    The stream sees global generators of its own, seeded anew in every epoch. It is read in this
    process, and taken up in the middle of an epoch by reading it from the start.
    """

    samples: int | None = None

    def __init__(self, loader: DataLoader[Any], prepare: Prepare, seed: int) -> None:
        self.loader, self.prepare, self.seed = loader, prepare, seed

    def batches(self, size: int, epoch: int, start: int = 0) -> Iterator[Indexed]:
        yield from self._read(size, epoch, start)

    def pass_through(self) -> Iterator[Indexed]:
        yield from self._read(EVALUATION_CHUNK, 0, 0)

    def _read(self, size: int, epoch: int, start: int) -> Iterator[Indexed]:
        own: RandomState | None = None
        batches: Iterator[Any] | None = None
        seen = 0
        while True:
            with global_randomness_kept():
                if batches is None or own is None:
                    seed_global_generators(derived_seed(self.seed, "stream", epoch))
                    batches = iter(
                        DataLoader(
                            self.loader.dataset,
                            batch_size=size,
                            collate_fn=self.loader.collate_fn,
                            generator=derived_generator(self.seed, "workers", epoch),
                        )
                    )
                else:
                    set_global_random_state(own)
                batch = next(batches, None)
                own = global_random_state()
            if batch is None:
                break
            seen += 1
            if seen > start:
                ready = self.prepare(*_pair(batch))
                yield ready.x, ready.y, None
        if seen == 0:
            raise EmptyData(
                f"the stream yielded nothing in epoch {epoch}: an iterable data set must start "
                "anew each time it is iterated"
            )


class _SeededItems(Dataset[Any]):
    def __init__(self, dataset: Dataset[Any], seed: int, epoch: int) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, epoch

    def __getitem__(self, index: int) -> Any:
        seed_global_generators(derived_seed(self.seed, f"sample {index}", self.epoch))
        return self.dataset[index]


class OpenData:
    """The data of a training, checked against the model and ready to be walked through.

    Attributes:
        problem: the model with (a part of) the training data: task, classes, plain loss.
        train, validation: the sources.
        batch_size: the one asked for, or the loader's, or 64.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Data,
        validation: Data | float | None,
        *,
        loss: Loss | None,
        task: Task | None,
        batch_size: int | None,
        seed: int,
        memory: int,
    ) -> None:
        train, self.batch_size = _unwrap(train, batch_size, "train")
        fraction = _fraction(validation)
        held_out = None if fraction is not None else validation
        if held_out is not None:
            held_out, _ = _unwrap(held_out, None, "validation")
        streamed = _too_large(train, memory)
        if not streamed:
            train = collect(train, "train", limit=sys.maxsize, seed=seed)
        if fraction is not None:
            train, held_out = _hold_out(train, fraction, seed)
        self.problem = Problem(
            model,
            train,
            loss=loss,
            task=task,
            limit=PROBE if streamed else sys.maxsize,
            seed=seed,
            plain_mean=False,
        )
        self.train: BatchSource = (
            self._open(train, seed, "train") if streamed else InMemory(self.problem.train, seed)
        )
        self.validation: BatchSource | None = None
        if held_out is not None:
            if _too_large(held_out, memory):
                self.validation = self._open(held_out, seed, "validation")
            else:
                raw = collect(held_out, "validation", limit=sys.maxsize, seed=seed)
                self.validation = InMemory(self.problem.prepare(raw, "validation"), seed)

    def _open(self, loader: DataLoader[Any], seed: int, name: str) -> BatchSource:
        def prepare(x: Any, y: Any) -> Samples:
            return self.problem.prepare(collect((x, y), name, limit=sys.maxsize), name)

        if isinstance(loader.dataset, IterableDataset):
            return FromStream(loader, prepare, seed)
        return FromDataset(loader, prepare, seed)


def _unwrap(data: Data, batch_size: int | None, name: str) -> tuple[Data, int]:
    """Data as samples, a pair or a loader, and the size of its batches."""
    size = 64
    if isinstance(data, DataLoader):
        size = data.batch_size or size
        sampler = data.sampler
        plain = isinstance(sampler, SequentialSampler | RandomSampler) and not getattr(
            sampler, "replacement", False
        )
        if not (plain or isinstance(data.dataset, IterableDataset)):
            raise InvalidInput(
                f"the {name} loader draws with {type(sampler).__name__}, and fit draws every "
                "sample once an epoch in an order of its own: pass the loader's data set"
            )
    if isinstance(data, DataLoader) and type(data.dataset) is TensorDataset:
        data = data.dataset
    if type(data) is TensorDataset and len(data.tensors) == 2:
        data = data.tensors
    elif isinstance(data, Dataset):
        data = DataLoader(data, batch_size=size)
    if batch_size is not None:
        size = batch_size
    whole_number(size, "batch_size", least=1)
    return data, size


def _fraction(validation: Data | float | None) -> float | None:
    if isinstance(validation, bool) or not isinstance(validation, int | float):
        return None
    return float(validation)


def _too_large(data: Data, memory: int) -> bool:
    """Whether a data set is better read batch by batch than held in memory."""
    if not isinstance(data, DataLoader):
        return False
    if isinstance(data.dataset, IterableDataset):
        return True
    if not hasattr(data.dataset, "__len__"):
        raise InvalidType(f"{type(data.dataset).__name__} has no length, and is no IterableDataset")
    if len(data.dataset) == 0:
        raise EmptyData("the data set is empty")
    one = collect(Subset(data.dataset, [0]), "train", limit=1)
    bytes_each = one.x.nbytes + one.y.nbytes
    return bytes_each * len(data.dataset) > memory


def _hold_out(train: Data, fraction: float, seed: int) -> tuple[Data, Data]:
    if isinstance(train, Samples):
        return hold_out(train, fraction, seed=seed)
    if isinstance(train.dataset, IterableDataset):
        raise InvalidInput(
            "a stream has no fraction to hold out: pass the validation data themselves"
        )
    kept, held = split_indices(len(train.dataset), fraction, seed=seed)

    def part(rows: Tensor) -> DataLoader[Any]:
        return DataLoader(
            Subset(train.dataset, rows.tolist()),
            batch_size=train.batch_size,
            collate_fn=train.collate_fn,
            num_workers=train.num_workers,
        )

    return part(kept), part(held)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise InvalidType(f"the data must yield pairs (x, y), not a {type(batch).__name__}")
    return batch[0], batch[1]
