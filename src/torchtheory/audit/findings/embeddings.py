"""Which rows of its embedding tables does the network ever use?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of
from torchtheory.core.intervals import clopper_pearson
from torchtheory.core.usual import below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.wording import counted
from torchtheory.tracing.network import Operation, Value
from torchtheory.tracing.passes import network_of, values_of

#: A table with a larger share of rows that no training sample uses is worth a look.
UNUSED = 0.1

#: Test samples that use rows which no training sample used, beyond this share, are worth a look.
UNTRAINED = 0.01


def has_embeddings(problem: Problem) -> str | None:
    return None if tables(problem) else "the model has no embedding table"


@finding(
    "embeddings",
    area="signals",
    title="Rows of embedding tables that no training sample uses",
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
    worst: tuple[int, str, int] | None = None
    for name, mask in used.items():
        padding = tables(problem)[name].padding
        counted_rows = torch.ones_like(mask)
        if padding is not None:
            counted_rows[padding] = False
        total, unused = int(counted_rows.sum()), int((counted_rows & ~mask).sum())
        rows.append((name, total, total - unused, unused))
        if total and (worst is None or unused > worst[0]):
            worst = (unused, name, total)
    record.table(
        "embeddings",
        ("table", "rows", "used", "not used"),
        rows,
        caption=f"Rows that the training data looks up{part}.",
    )
    if worst is None:
        return
    unused, name, total = worst
    share = unused / total
    # samples that were not looked at may use more rows, but no more than they have entries
    further = (samples.population - len(samples)) * most[name]
    surely = max(0, unused - further)
    number = record.quantity(
        "unused-rows",
        "share of rows of an embedding table that no training sample uses",
        share,
        low=surely / total,
        high=share,
        basis="rows that the other samples could use",
        samples=samples,
    )
    whole = len(samples) == samples.population
    if share > UNUSED:
        width = tables(problem)[name].width
        record.look(
            f"{surely:,} {'' if whole else 'or more '}of the {total:,} rows of the embedding table "
            f"{name} are used by no training sample: this training does not change them.",
            number=number,
            usual=below(UNUSED),
            action=f"Unless new data needs them, a table of {total - unused:,} rows would do "
            f"({unused * width:,} parameters fewer); map what is not in the training data to one "
            "row of its own."
            if whole
            else "",
        )
    else:
        least = "all" if share == 0 else f"{1 - share:.0%}{'' if whole else ' or more'}"
        record.headline(f"The training data uses {least} of the rows of the table {name}{part}.")
    if problem.test is not None and whole:
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
            usual=below(UNTRAINED),
            action="Map rare values to one row in training as well, so that this row is trained.",
        )


@dataclass(frozen=True)
class Table:
    """An embedding table: a weight of which rows are looked up.

    Attributes:
        weight: `[rows, width]`.
        padding: the row that stands for nothing, if there is one.
        indices: what is looked up, one value for each lookup.
        otherwise: whether another operation reads the weight as well, as the last layer does.
    """

    weight: Value
    padding: int | None
    indices: tuple[Value, ...]
    otherwise: bool

    @property
    def rows(self) -> int:
        return int(self.weight.shape[0])  # type: ignore[arg-type]

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])  # type: ignore[arg-type]


def tables(problem: Problem, x: Tensor | None = None) -> dict[str, Table]:
    """Embedding tables by the names of their layers.

    >>> from torch import nn
    >>> class Tied(nn.Embedding):
    ...     def forward(self, x):
    ...         return super().forward(x) @ self.weight.mT
    >>> data = torch.tensor([[0, 1], [2, 1]])
    >>> {k: (t.rows, t.otherwise) for k, t in tables(Problem(Tied(3, 2), (data, data))).items()}
    {'': (3, True)}
    """
    network = network_of(problem.function, problem.train.x if x is None else x)
    found = {}
    for name, weight in network.parameters.items():
        users = network.users.get(weight, [])
        lookups = [op for op in users if op.name in _LOOKUPS and op.arguments["weight"] is weight]
        if not lookups:
            continue
        padding = lookups[0].arguments.get("padding_idx")
        found[name.rpartition(".")[0]] = Table(
            weight,
            padding if padding is not None and padding >= 0 else None,
            tuple(_index(op) for op in lookups),
            len(lookups) < len(users),
        )
    return found


#: Operations that read rows alone.
_LOOKUPS = ("embedding", "embedding_bag")


def _index(op: Operation) -> Value:
    given = op.arguments
    found: Value = given["indices"] if "indices" in given else given["input"]
    return found


def rows_used(problem: Problem, samples: Samples) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Which rows of every table are looked up, `[rows]` of bool, and most entries of a sample.

    Without tables that are used otherwise: as the last layer as well, or cut at a length. One that
    is read at 0, 1, 2, … has a row for every place, and which of them are used is no matter of the
    data's words.
    """
    known = tables(problem, samples.x)
    found = {
        name: torch.zeros(table.rows, dtype=torch.bool)
        for name, table in known.items()
        if not table.otherwise
    }
    most = dict.fromkeys(found, 0)
    places = set(found)
    for count, here in _indices(problem, samples):
        for name, index in here:
            if name in found:
                if not _counts_up(index, known[name].padding):
                    places.discard(name)
                found[name][index.flatten().cpu()] = True
                most[name] = max(most[name], -(-index.numel() // max(1, count)))
    for name in places:
        del found[name]
    return found, most


def _counts_up(index: Tensor, padding: int | None = None) -> bool:
    """Whether what is looked up are the places themselves, counted from one number in every sample.

    Places without a token may have the row of padding, as where lengths differ.

    >>> _counts_up(torch.arange(3).expand(2, 3)), _counts_up(torch.tensor([[4, 5], [1, 2]]))
    (True, False)
    >>> _counts_up(torch.tensor([[2, 3, 4], [2, 3, 1]]), padding=1)
    True
    """
    if index.ndim == 0 or index.shape[-1] < 2:
        return False
    rows = index.reshape(-1, index.shape[-1])
    tokens = torch.ones_like(rows, dtype=torch.bool) if padding is None else rows != padding
    if not bool((tokens.sum(1) > 1).any()):
        return False
    places = rows[tokens].min() + tokens.cumsum(1) - 1
    return bool((rows == places)[tokens].all())


def _indices(problem: Problem, samples: Samples) -> Iterator[tuple[int, list[tuple[str, Tensor]]]]:
    """For every chunk of samples, its size and what was looked up in which table."""
    for x, _ in samples.chunks(problem.chunk):
        named = [(name, v) for name, table in tables(problem, x).items() for v in table.indices]
        network = network_of(problem.function, x)
        found = values_of(problem.function, network, x, *(value for _, value in named))
        yield len(x), [(k, t.long()) for (k, _), t in zip(named, found, strict=True)]
