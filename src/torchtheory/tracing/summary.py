"""A network as a table: one row for what is done in a layer before another one goes on.

Blocks that follow each other and do the same are shown once, with how often they come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from torchtheory.core.record import Table
from torchtheory.tracing.kinds import Kind
from torchtheory.tracing.multiplications import multiplications, size

if TYPE_CHECKING:
    from torchtheory.tracing.network import Network, Operation, Size, Value

#: Of several operations in a row the one that it is about: the first kind of this list.
_WEIGHT: tuple[Kind | None, ...] = (
    "composite", "affine", "product", "normalization", "extreme", "reduction", "entrywise", "joins",
    "decision", "random", None, "selects", "moves", "constant",
)  # fmt: skip

COLUMNS = ("layer", "class", "operations", "output", "parameters", "multiplications", "bytes")


@dataclass(frozen=True)
class Row:
    """What is done in one layer before another one goes on.

    Attributes:
        layer, kind: its path in the model, and its class.
        operations: what is done, in order.
        shape: sizes of the last value that is made.
        parameters: that are used here for the first time.
        multiplications: multiply-adds, for one sample.
        bytes: of the values that are made, for one sample; a view of another value has none.
        times: how often this row comes, with those of its block.
        block: path of the block that comes several times.
    """

    layer: str
    kind: str
    operations: tuple[Operation, ...] = field(compare=False)
    names: tuple[str, ...]
    shape: tuple[Size, ...]
    parameters: int
    multiplications: int
    bytes: int
    times: int = 1
    block: str = ""

    @property
    def what(self) -> Kind | None:
        """The kind of the operation that it is about."""
        kinds = ("moves" if _is_idle(op) else op.kind for op in self.operations)
        return min(kinds, key=_WEIGHT.index)

    @property
    def words(self) -> str:
        """The operations, moves left out where there are others."""
        kinds = [op.kind for op in self.operations]
        kept = [n for n, k in zip(self.names, kinds, strict=True) if k not in ("moves", "selects")]
        found: list[str] = []
        for name in kept or self.names:
            if not found or found[-1].partition(" ")[0] != name:
                found.append(name)
        return ", ".join(found[:4]) + (", …" if len(found) > 4 else "")

    @property
    def sizes(self) -> str:
        return " × ".join(map(str, self.shape)) or "one number"


def rows_of(network: Network) -> list[Row]:
    """The rows of a network, in the order in which it runs."""
    first_use = _first_uses(network)
    rows: list[Row] = []
    for group in _groups(network):
        last = group[-1]
        rows.append(
            Row(
                last.layer,
                last.layer_kind,
                tuple(group),
                tuple(op.name for op in group),
                last.outputs[0].shape,
                sum(size(v.shape) for op in group for v in first_use.get(op, ())),
                sum(multiplications(op) for op in group),
                sum(_bytes(op) for op in group),
            )
        )
    return rows


def _groups(network: Network) -> list[list[Operation]]:
    """Operations that follow each other in a layer, up to what something else takes as well."""
    runs: list[list[Operation]] = []
    for op in network:
        if not (op.follows and op.outputs):
            continue
        if runs and runs[-1][-1].layer == op.layer:
            runs[-1].append(op)
        else:
            runs.append([op])
    groups: list[list[Operation]] = []
    for run in runs:
        inside, start = set(run), 0
        for place, op in enumerate(run):
            users = [u for value in op.outputs for u in network.users.get(value, ())]
            if not inside.issuperset(u for u in users if u.outputs) or op is run[-1]:
                groups.append(run[start : place + 1])
                start = place + 1
    return [group for group in groups if group]


def _first_uses(network: Network) -> dict[Operation, list[Value]]:
    """Of operations that follow the input the parameters that come in with them."""
    seen: set[Value] = set()
    found: dict[Operation, list[Value]] = {}
    for op in network:
        if op.follows:
            waiting = list(op.inputs)
            while waiting:
                value = waiting.pop()
                if value in seen or value.follows:
                    continue
                seen.add(value)
                if value.origin == "parameter":
                    found.setdefault(op, []).append(value)
                elif value in network.makers:
                    waiting += network.makers[value].inputs
    return found


def _is_idle(op: Operation) -> bool:
    """Dropout in evaluation mode."""
    return op.kind == "random" and not op.draws


def _bytes(op: Operation) -> int:
    if op.kind == "moves" or op.name in _VIEWS or _is_idle(op):
        return 0
    return sum(size(v.shape) * torch.empty(0, dtype=v.dtype).element_size() for v in op.outputs)


# ------------------------------------------------------------------------------------- repetition

_VIEWS = frozenset(
    """
    getitem select slice narrow chunk split split_with_sizes tensor_split unbind diagonal unfold
    expand expand_as broadcast_to as_strided
    """.split()
)

_NUMBERED = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def folded(rows: Sequence[Row], level: int = 0) -> list[Row]:
    """Rows of blocks that follow each other and do the same, once, with how often they come."""
    blocks: list[tuple[str, list[Row]]] = []
    for row in rows:
        path = _block(row.layer, level)
        if blocks and blocks[-1][0] == path:
            blocks[-1][1].append(row)
        else:
            blocks.append((path, [row]))
    made: list[Row] = []
    place = 0
    while place < len(blocks):
        path, own = blocks[place]
        times = 1
        while place + times < len(blocks) and _alike(blocks[place], blocks[place + times]):
            times += 1
        if times > 1:
            made += [replace(row, times=times, block=path) for row in own]
        else:
            deeper = path and any(_block(row.layer, level + 1) for row in own)
            made += folded(own, level + 1) if deeper else own
        place += times
    return made


def _block(layer: str, level: int) -> str:
    """The path up to the number of this level; empty if there is none."""
    found = list(_NUMBERED.finditer(layer))
    return layer[: found[level].end()] if level < len(found) else ""


def _alike(one: tuple[str, list[Row]], other: tuple[str, list[Row]]) -> bool:
    """Whether two blocks of one list do the same, with weights of their own."""
    (path, own), (next_path, theirs) = one, other
    if not path or len(own) < 2 or len(own) != len(theirs):
        return False
    if path.rpartition(".")[0] != next_path.rpartition(".")[0]:
        return False
    return all(
        replace(a, layer=a.layer.removeprefix(path))
        == replace(b, layer=b.layer.removeprefix(next_path))
        for a, b in zip(own, theirs, strict=True)
    )


# ------------------------------------------------------------------------------------------ words


def table_of(network: Network) -> Table:
    """The rows as a table, repeated blocks folded."""
    cells = tuple(
        (
            f"{row.layer or '(the network)'}{f' (×{row.times})' if row.times > 1 else ''}",
            row.kind,
            row.words,
            row.sizes,
            row.parameters,
            row.multiplications,
            row.bytes,
        )
        for row in folded(rows_of(network))
    )
    return Table("network", COLUMNS, cells)


def text_of(network: Network) -> str:
    """The table as plain text, with its sums."""
    rows = rows_of(network)
    body = [[_cell(value) for value in row] for row in table_of(network).rows]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *body, strict=True)]
    lines = [_line(list(COLUMNS), widths), "-" * (sum(widths) + 2 * len(widths) - 2)]
    lines += [_line(row, widths) for row in body]
    unused = sum(t.numel() for v, t in network.tensors.items() if v.origin == "parameter") - sum(
        row.parameters for row in rows
    )
    sums = [
        f"{network.title}: {sum(row.parameters for row in rows):,} parameters",
        f"{sum(row.multiplications for row in rows):,} multiplications",
        f"{sum(row.bytes for row in rows):,} bytes of values for one sample",
    ]
    lines += [lines[1], ", ".join(sums)]
    if unused:
        lines.append(f"{unused:,} more parameters are not used on the way to the output")
    if network.rows is not None:
        lines.append(f"It runs on {network.rows} rows only: {network.fixed_because}")
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    made = [
        cell.rjust(width) if k > 3 else cell.ljust(width)
        for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(made).rstrip()
