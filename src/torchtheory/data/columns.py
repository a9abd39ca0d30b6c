r"""Columns of a table that carry nothing, that repeat another, or that give the label away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import as_generator
from torchtheory.data.wide_rows import AT_ONCE, rows_within

#: Rows that columns are compared on before all rows are asked, and the fewest of them.
ROWS, FEWEST_ROWS = 1000, 100

#: A column is nearly constant if so large a share of its entries has one value.
NEARLY = 0.9

#: Most columns that are compared with each other.
COLUMNS = 4096


def _table(x: Tensor) -> Tensor:
    if x.ndim != 2 or not x.is_floating_point():
        raise ShapeMismatch(f"a table of real numbers [n, d] is needed, not {list(x.shape)}")
    return x.detach()


def _some(x: Tensor, generator: torch.Generator | int) -> Tensor:
    most = rows_within(ROWS, x.shape[1], least=FEWEST_ROWS)
    order = torch.randperm(len(x), generator=as_generator(generator))[:most]
    return x[order.to(x.device)]


def constant_columns(x: Tensor) -> list[int]:
    """The columns of `x [n, d]` that have one value in all rows.

    >>> constant_columns(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
    [0]
    """
    rows = _table(x)
    same: list[int] = (rows.amax(0) == rows.amin(0)).nonzero().flatten().tolist()
    return same


def common_share(x: Tensor, generator: torch.Generator | int = 0) -> Tensor:
    """Of each column of `x [n, d]` the share `[d]` of its most frequent value, on 1,000 rows.

    Of many columns it is fewer rows, a hundred at least.

    >>> common_share(torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.0, 0.0], [3.0, 5.0]]))
    tensor([0.5000, 0.7500])
    """
    some = _some(_table(x), generator)
    return (some == some.mode(0).values).float().mean(0)


def copied_columns(x: Tensor, generator: torch.Generator | int = 0) -> list[tuple[int, int]]:
    """Pairs `(original, copy)` of columns of `x [n, d]` of which one is the other in other units.

    One column is $a + b$ times the other up to rounding. Columns of which nearly all entries agree
    are left out, as is a pair of columns of two values that are complements: categories are
    encoded that way.

    Cost: the correlations of at most 4,096 columns on 1,000 rows, and one pass for each pair found.

    >>> t = torch.arange(40.0)
    >>> copied_columns(torch.stack([t, t.sin(), 3 - 2 * t], 1))
    [(0, 2)]
    """
    rows = _table(x)[:, :COLUMNS]
    if len(rows) < 3:
        return []
    some = _some(rows, generator)
    usable = (common_share(rows, generator) <= NEARLY).nonzero().flatten()
    z = _standardized(some[:, usable])
    alike = (z.T @ z / len(some)).abs() > 1 - 1e-3  # copies have 1 - 1.3e-4 at least
    pairs, taken = [], set()
    for i, j in alike.triu(1).nonzero().tolist():
        first, second = int(usable[i]), int(usable[j])
        if j not in taken and _affine_copies(rows[:, first], rows[:, second]):
            taken.add(j)
            pairs.append((first, second))
    return pairs


def _standardized(x: Tensor) -> Tensor:
    centered = x.double() - x.double().mean(0)
    return centered / centered.square().mean(0).sqrt().clamp(min=1e-300)


def _affine_copies(a: Tensor, b: Tensor) -> bool:
    pair = torch.stack([a, b], 1)
    z = _standardized(pair)
    sign = torch.sign((z[:, 0] * z[:, 1]).sum())
    if sign < 0 and len(torch.unique(a)) == 2:
        return False
    spread = pair.double().std(0).clamp(min=1e-300)
    # a column far from 0 in units of its spread has few digits left of it
    rounding = torch.finfo(a.dtype).eps * (1 + float((pair.double().abs().amax(0) / spread).max()))
    apart = float((z[:, 0] - sign * z[:, 1]).abs().max())
    return rounding < 1e-3 and apart <= 16 * rounding


@dataclass(frozen=True, slots=True)
class TellingColumn:
    """A column from which the label can be read off.

    Attributes:
        column: its number.
        explained: share of the column's variance that the label explains; 1 for a copy of it.
    """

    column: int
    explained: float


def telling_columns(x: Tensor, labels: Tensor, *, level: float = 0.01) -> list[TellingColumn]:
    r"""Columns of `x [n, d]` that alone give the labels `[n]` away.

    Of classes: each lies in an interval of its own. Were labels independent of the inputs, one of
    $d$ columns would do so with probability at most $d\,k!\,\prod_c n_c!/n!$; none is named where
    that exceeds `level`. Of numbers: the label is the column in other units, up to 0.1 % of its
    variance.

    Cost: one pass over the data, some columns at a time.

    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> found = telling_columns(torch.cat([x, x.argmax(1, keepdim=True).float()], 1), x.argmax(1))
    >>> [(c.column, round(c.explained, 6)) for c in found]
    [(3, 1.0)]
    """
    rows, y = _table(x), labels.detach().reshape(len(labels))
    if len(rows) < 3:
        return []
    if labels.is_floating_point():
        if float(y.max()) == float(y.min()) or len(rows) < 8:
            return []
        explained = partial(_copies_of_numbers, y=_standardized(y[:, None]))
    else:
        _, codes, counts = torch.unique(y, return_inverse=True, return_counts=True)
        k, n, d = len(counts), len(rows), rows.shape[1]
        chance = math.lgamma(k + 1) + math.log(max(1, d)) - math.lgamma(n + 1)
        chance += sum(math.lgamma(int(c) + 1) for c in counts)
        if k < 2 or chance > math.log(level):
            return []
        explained = partial(_separating, codes=codes, counts=counts)
    found = []
    for start in range(0, rows.shape[1], width := max(1, AT_ONCE // len(rows))):
        block = rows[:, start : start + width].double()
        telling, share = explained(block, _standardized(block))
        telling &= block.amax(0) > block.amin(0)
        found += [
            TellingColumn(start + int(j), min(1.0, float(share[j]))) for j in telling.nonzero()
        ]
    return found


def _copies_of_numbers(rows: Tensor, z: Tensor, *, y: Tensor) -> tuple[Tensor, Tensor]:
    """Which columns are the numbers in other units, and the share of variance explained."""
    share = (y.T @ z / len(z)).flatten().square()
    return share > 0.999, share


def _separating(rows: Tensor, z: Tensor, *, codes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Which columns have each class in an interval of its own, and the variance explained."""
    index = codes[:, None].expand_as(rows)
    low = torch.full((len(counts), rows.shape[1]), torch.inf).to(rows)
    low = low.scatter_reduce(0, index, rows, "amin")
    high = (-torch.full_like(low, torch.inf)).scatter_reduce(0, index, rows, "amax")
    order = low.argsort(0)
    apart = (high.gather(0, order)[:-1] < low.gather(0, order)[1:]).all(0)
    mean = torch.zeros_like(low).index_add_(0, codes, z) / counts[:, None]
    return apart, (counts[:, None] * mean.square()).sum(0) / len(rows)
