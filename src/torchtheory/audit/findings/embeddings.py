"""Which rows of its embedding tables does the network ever use?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.core.intervals import clopper_pearson
from torchtheory.models.model import global_randomness_kept, tensors_in
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.wording import counted

#: A table with a larger share of rows that are never used is worth a look.
UNUSED = 0.1

#: Test samples that use rows which no training sample used, beyond this share, are worth a look.
UNTRAINED = 0.01


def has_embeddings(problem: Problem) -> str | None:
    return None if tables(problem.model) else "the model has no embedding table"


@finding(
    "embeddings",
    area="signals",
    title="Rows of embedding tables that are never used",
    cost="forward",
    needs=[has_embeddings],
    whole=True,
)
def embeddings(problem: Problem, record: FindingRecord) -> None:
    """Every row that a training sample looks up; a row of padding does not count.

    A row that is never looked up gets no gradient and keeps its initial value.
    """
    samples = problem.train.some(problem.affordable(2, share=0.6), record.generator)
    used, most = rows_used(problem, samples)
    if not used:
        record.headline(
            "Its tables are read otherwise than row by row (as the last layer as well, or in "
            "part), so that which rows are looked up says little."
        )
        return
    part = part_of(samples)
    rows = []
    worst: tuple[float, str, int, int] | None = None
    for name, mask in used.items():
        padding = tables(problem.model)[name].padding_idx
        counted_rows = torch.ones_like(mask)
        if padding is not None:
            counted_rows[padding] = False
        total, unused = int(counted_rows.sum()), int((counted_rows & ~mask).sum())
        rows.append((name, total, total - unused, unused))
        if total and (worst is None or unused / total > worst[0]):
            worst = (unused / total, name, unused, total)
    record.table(
        "embeddings",
        ("table", "rows", "used", "never used"),
        rows,
        caption=f"Rows that the training data looks up{part}.",
    )
    if worst is None:
        return
    share, name, unused, total = worst
    # samples that were not looked at may use more rows, but no more than they have entries
    further = (samples.population - len(samples)) * most[name]
    number = record.quantity(
        "unused-rows",
        "share of rows never used",
        share,
        low=max(0, unused - further) / total,
        high=share,
        basis="rows that the other samples could use",
        samples=samples,
    )
    if share > UNUSED:
        width = tables(problem.model)[name].embedding_dim
        record.look(
            f"{unused:,} of the {total:,} rows of the embedding table {name} are never used by the "
            f"training data"
            f"{part}: they keep the values they were drawn with.",
            number=number,
            usual=f"below {UNUSED:g}",
            action=f"A table of {total - unused:,} rows would do ({unused * width:,} parameters "
            "fewer); map what is not in the training data to one row of its own.",
        )
    else:
        record.headline(
            f"The training data uses {1 - share:.0%} of the rows of the table {name}{part}."
        )
    if problem.test is not None and len(samples) == samples.population:
        _rows_of_test(problem, record, used)


def _rows_of_test(problem: Problem, record: FindingRecord, trained: dict[str, Tensor]) -> None:
    """Test samples that look up rows which training never reached."""
    assert problem.test is not None
    samples = problem.test.some(problem.affordable(2, share=0.6), record.generator)
    strange = torch.zeros(len(samples), dtype=torch.bool)
    start = 0
    for part, here in _indices(problem, samples):
        for name, index in here:
            if name in trained and len(index) == part and index.numel():
                known = trained[name].to(index.device)
                new = ~known[index.clamp(0, len(known) - 1)]
                strange[start : start + part] |= new.reshape(part, -1).any(1).cpu()
        start += part
    share = clopper_pearson(int(strange.sum()), len(samples), record.confidence)
    number = record.quantity(
        "test-samples-with-untrained-rows",
        "test samples that use untrained rows",
        share,
        samples=samples,
    )
    if share.low > UNTRAINED:
        record.look(
            f"{counted(int(strange.sum()), 'test sample')} of {len(samples):,} use rows of an "
            "embedding table that no training sample uses: what they look up was never trained.",
            number=number,
            usual=f"below {UNTRAINED:g}",
            action="Map rare values to one row in training as well, so that this row is trained.",
        )


def tables(model: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """Embedding tables by name, without those whose weights another layer shares.

    A table that is also the last layer gets a gradient in all of its rows.

    >>> list(tables(nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 1))))
    ['0']
    """
    owners: dict[int, int] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            owners[id(p)] = owners.get(id(p), 0) + 1
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and owners[id(module.weight)] == 1
    }


def rows_used(problem: Problem, samples: Samples) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Which rows of every table are looked up, `[rows]` of bool, and most entries of a sample.

    Without tables that are used otherwise: as the last layer as well, or cut at a length.
    """
    otherwise = used_otherwise(problem, samples.x[:1])
    found = {
        name: torch.zeros(t.num_embeddings, dtype=torch.bool)
        for name, t in tables(problem.model).items()
        if name not in otherwise
    }
    most = dict.fromkeys(found, 0)
    for count, here in _indices(problem, samples):
        for name, index in here:
            if name in found:
                found[name][index.flatten().cpu()] = True
                most[name] = max(most[name], -(-index.numel() // max(1, count)))
    return found, most


def used_otherwise(problem: Problem, x: Tensor) -> set[str]:
    """Names of the tables whose weights a function other than a lookup reads.

    >>> class Tied(nn.Embedding):
    ...     def forward(self, x):
    ...         return super().forward(x) @ self.weight.mT
    >>> data = torch.tensor([[0, 1], [2, 1]])
    >>> used_otherwise(Problem(Tied(3, 2), (data, data)), data)
    {''}
    """
    watch = _Uses(
        {
            id(problem.parameters[f"{name}.weight".lstrip(".")]): name
            for name in tables(problem.model)
        }
    )
    with torch.no_grad(), global_randomness_kept(), watch:
        problem.function(problem.parameters, x)
    return watch.found


#: Functions that read rows alone; and copies, which a model that writes to its weights is run with.
_LOOKUPS = ("embedding", "embedding_bag", "clone", "detach")


class _Uses(TorchFunctionMode):
    def __init__(self, weights: dict[int, str]) -> None:
        super().__init__()
        self.weights, self.found = weights, set[str]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        looks_up = getattr(func, "__name__", "") in _LOOKUPS
        # what makes no tensor of it reads its shape, say
        if not looks_up and next(tensors_in([result]), None) is not None:
            read = tensors_in([*args, *(kwargs or {}).values()])
            self.found |= {self.weights[id(t)] for t in read if id(t) in self.weights}
        return result


def _indices(problem: Problem, samples: Samples) -> Iterator[tuple[int, list[tuple[str, Tensor]]]]:
    """For every chunk of samples, its size and what was looked up in which table."""
    with _lookups(problem.model) as seen:
        for x, _ in samples.chunks(problem.chunk):
            seen.clear()
            with torch.no_grad(), global_randomness_kept():
                problem.function(problem.parameters, x)
            yield len(x), list(seen)


@contextmanager
def _lookups(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    seen: list[tuple[str, Tensor]] = []

    def before(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(layer: nn.Module, arguments: Any) -> None:
            if arguments and isinstance(arguments[0], Tensor):
                seen.append((name, arguments[0].detach().long()))

        return hook

    handles = [t.register_forward_pre_hook(before(name)) for name, t in tables(model).items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
