r"""Rows that occur more than once, and test rows that occur in the training data.

Equal rows are found by a hash of 128 bits: time and memory are linear in the data. Whether two
parts of a data set share more rows than chance lets them is an exact test: of independent samples
of one law, given all rows, it is a draw without replacement which of them are test rows. So it does
not matter whether the law has atoms, as tables of few categories have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.core.random import numpy_generator

#: Draws of a Monte Carlo test, so that the least p-value is 1/1000.
DRAWS = 999

#: Most groups of equal rows that the test looks at.
GROUPS = 500


def row_digests(*parts: Tensor) -> list[bytes]:
    """A hash of every row of tensors `[n, ...]`, taken together; equal rows have equal ones.

    Zeros of both signs are equal.

    >>> a, b, c = row_digests(torch.tensor([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0]]))
    >>> a == c, a == b
    (True, False)
    """
    if not parts or any(len(p) != len(parts[0]) for p in parts):
        given = ", ".join(str(len(p)) for p in parts) or "no tensor"
        raise ShapeMismatch(f"tensors must have the same number of rows, not {given}")
    hashes = [hashlib.blake2b(digest_size=16) for _ in range(len(parts[0]))]
    for part in parts:
        flat = part.detach().reshape(len(part), -1).cpu()
        for start in range(0, len(flat), 1024):
            rows = flat[start : start + 1024]
            rows = (rows + 0.0 if rows.is_floating_point() else rows).contiguous()
            plain = rows.view(torch.uint8).numpy() if rows.shape[1] else rows.numpy()
            for k, row in enumerate(plain, start):
                hashes[k].update(row.tobytes())
    return [h.digest() for h in hashes]


def equal_rows(digests: Sequence[bytes]) -> list[list[int]]:
    """The numbers of rows that occur more than once, in groups of equal ones.

    >>> equal_rows(row_digests(torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 2.0])))
    [[0, 2, 4], [1, 5]]
    """
    groups: dict[bytes, list[int]] = {}
    for k, digest in enumerate(digests):
        groups.setdefault(digest, []).append(k)
    return [g for g in groups.values() if len(g) > 1]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Test rows that occur in the training data.

    Attributes:
        test: their numbers among the test rows.
        train: of each, the number of the first training row that equals it.
        p_value: probability that independent samples of one law share as many rows or more, given
            which rows there are; by Monte Carlo, so at least 1/1000.
    """

    test: list[int]
    train: list[int]
    p_value: float


def shared_rows(
    train: Sequence[bytes], test: Sequence[bytes], generator: torch.Generator | int = 0
) -> SharedRows:
    """Test rows that occur in the training data, and whether chance explains them.

    Args:
        train, test: digests of the rows, from `row_digests`.

    Cost: linear in the rows, and 999 draws of a hypergeometric vector of at most 500 entries.

    >>> x = torch.arange(40.0)
    >>> found = shared_rows(row_digests(x[:30]), row_digests(x[20:]))
    >>> found.test[:3], found.train[:3], found.p_value
    ([0, 1, 2], [20, 21, 22], 0.001)
    >>> coin = torch.randint(0, 2, (100,), generator=torch.Generator().manual_seed(0)).float()
    >>> found = shared_rows(row_digests(coin[:60]), row_digests(coin[60:]))
    >>> len(found.test), found.p_value
    (40, 1.0)
    """
    if not train or not test:
        raise EmptyData("rows are shared between two sets that are not empty")
    first: dict[bytes, int] = {}
    for k, digest in enumerate(train):
        first.setdefault(digest, k)
    here = [k for k, digest in enumerate(test) if digest in first]
    there = [first[test[k]] for k in here]
    if not here:
        return SharedRows(here, there, 1.0)
    source = numpy_generator(generator)
    groups = equal_rows([*train, *test])
    if len(groups) > GROUPS:
        groups = [groups[k] for k in source.choice(len(groups), GROUPS, replace=False)]
    sizes = np.array([len(g) for g in groups])
    tested = np.array([sum(k >= len(train) for k in g) for g in groups])
    others = len(train) + len(test) - int(sizes.sum())
    drawn = source.multivariate_hypergeometric(
        [*sizes.tolist(), others], len(test), size=DRAWS, method="marginals"
    )[:, :-1]

    def crossing(count: Any) -> Any:
        return np.where(count < sizes, count, 0).sum(-1)

    as_many = int((crossing(drawn) >= crossing(tested)).sum())
    return SharedRows(here, there, (1 + as_many) / (1 + DRAWS))
