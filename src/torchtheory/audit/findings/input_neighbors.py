"""Neighbors of a problem's samples among its training samples, found as far as time allows.

Several findings ask for them, so they are kept with the problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchtheory.core.budget import check_time, time_left
from torchtheory.core.random import as_generator
from torchtheory.data.neighbors import comparable, nearest
from torchtheory.models.problem import Problem

#: Neighbors found of each sample, and samples whose neighbors are found at once.
COUNT, TILE = 10, 256

_kept: WeakKeyDictionary[Problem, InputNeighbors] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Found:
    """Samples with their nearest training samples.

    Attributes:
        samples: `[q]`, numbers of the samples, in random order.
        distances: `[q, k]`, the nearest first.
        index: `[q, k]`, numbers of the training samples.
    """

    samples: Tensor
    distances: Tensor
    index: Tensor


class InputNeighbors:
    """The nearest training samples of training and test samples, by comparable rows `[n, p]`."""

    def __init__(self, train: Tensor, test: Tensor | None, seed: int = 0) -> None:
        self.count = min(COUNT, len(train) - 1)
        self.rows = {"train": train} | ({} if test is None else {"test": test})
        source = as_generator(seed)
        self._order = {
            name: torch.randperm(len(rows), generator=source) for name, rows in self.rows.items()
        }
        self._found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.rows}

    def of(self, name: str, most: int) -> Found:
        """Neighbors of at most so many samples of `train` or `test`, fewer if time runs out.

        A training sample is not its own neighbor.
        """
        rows, order, found = self.rows[name], self._order[name], self._found[name]
        most = min(most, len(rows))
        done = sum(len(d) for d, _ in found)
        while done < most and (done == 0 or time_left() > 0):
            check_time()
            queries = order[done : done + TILE].to(rows.device)
            own = queries if name == "train" else None
            found.append(nearest(rows[queries], self.rows["train"], self.count, own))
            done += len(queries)
        distances, index = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Found(order[:done].to(rows.device), distances, index)


def own_neighbors(rows: Tensor, count: int) -> Tensor:
    """Of each of `rows [n, p]` the numbers `[n, count]` of its nearest others, in tiles."""
    index = []
    for some in torch.split(torch.arange(len(rows), device=rows.device), TILE):
        check_time()
        index.append(nearest(rows[some], rows, count, some)[1])
    return torch.cat(index)


def real_inputs(problem: Problem) -> str | None:
    """Why inputs have no distances, or None."""
    if problem.several_inputs:
        return "the model takes several inputs, and distances are of one tensor of real numbers"
    if not problem.train.x.is_floating_point():
        return f"the inputs are {problem.train.x.dtype}, which have no distance that means anything"
    if len(problem.train) < 2:
        return "one training sample has no neighbors"
    return None


def input_neighbors(problem: Problem) -> InputNeighbors:
    """Neighbors by the inputs themselves; see `real_inputs` for when there are any."""
    if problem not in _kept:
        to_rows = comparable(problem.train.x)
        test = None if problem.test is None else to_rows(problem.test.x)
        _kept[problem] = InputNeighbors(to_rows(problem.train.x), test)
    return _kept[problem]
