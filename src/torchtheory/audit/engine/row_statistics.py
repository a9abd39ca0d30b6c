"""A statistic of rows, one for each sample, and its range over all samples there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchtheory.audit.engine.ranges import jackknife_range
from torchtheory.core.intervals import Interval
from torchtheory.models.samples import Samples

#: Groups that are left out one after the other.
GROUPS = 16


def row_statistic(
    statistic: Callable[[Tensor], float],
    rows: Tensor,
    samples: Samples,
    confidence: float,
    *,
    least: float = 0.0,
    most: float = float("inf"),
) -> Interval:
    """A smooth statistic of rows `[n, ...]`, with the jackknife's range for all samples.

    Args:
        statistic: of any number of rows.
        rows: one for each of the samples.
        samples: those the rows belong to; a part of all, or all, for which the range is a point.
        least, most: between which the statistic lies by definition.

    >>> rows = torch.arange(6.0)
    >>> row_statistic(lambda r: float(r.mean()), rows, Samples(rows, rows), 0.95).high
    2.5
    """
    n = len(rows)
    value = statistic(rows)
    if n >= samples.population:
        return Interval(value, value, value, confidence, n, "all samples")
    kept = torch.ones(n, dtype=torch.bool, device=rows.device)
    without = []
    for part in torch.tensor_split(torch.arange(n, device=rows.device), min(GROUPS, n)):
        kept[part] = False
        without.append(statistic(rows[kept]) if bool(kept.any()) else value)
        kept[part] = True
    made = jackknife_range(value, torch.tensor(without), n, samples.population, confidence)
    return replace(made, low=max(least, made.low), high=min(most, made.high))
