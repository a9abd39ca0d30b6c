r"""Occlusion: by how much the score falls when a feature is taken away.

$$
R_i = f(x) - f(x\text{ without feature }i).
$$

Source: Mathematical Aspects of Deep Learning, sections 5.3.3 and 5.5; Zeiler and Fergus (2014).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.removal import (
    Baseline,
    Features,
    Patch,
    Removal,
    image_size,
    patch_size,
)
from torchtheory.explanation.score import Inputs, Score, Target, open_score

#: Entries of masks that are made at once.
_ENTRIES_AT_ONCE = 2**24


def occlusion(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    features: Features | None = None,
    patch: Patch | None = None,
    stride: Patch | None = None,
    baseline: Baseline = 0.0,
    background: Inputs | None = None,
    probabilities: bool = False,
    output: int | str | None = None,
) -> Explanation:
    r"""By how much the score falls without a feature; for a linear score and baseline 0, $w_ix_i$.

    What a feature or patch is worth is shared equally among its entries; an entry that several
    patches cover has the mean of its shares. So the sum over channels is a pixel's, and without
    overlap the sum over all is that of all differences. Nothing else is promised of the sum.

    Args:
        model, x, target, output: see `open_score`.
        features: which entries go together, whole numbers in the shape of one sample; a number of a
            table, a pixel with its channels or a word unless given.
        patch: side, or height and width, of patches of an image that go together.
        stride: how far a patch moves at a time; its own size unless given. The last one ends at the
            border.
        baseline: what is put in the place of a feature: a number, or inputs of one sample or of
            each.
        background: samples whose values stand in the place of a feature, one after the other; the
            scores are averaged over them (prediction difference with marginal sampling).
        probabilities: whether to explain the probability of a class instead of its score.

    Time: one pass forward for each feature (times samples of the background), in chunks; memory is
    that of a chunk.

    >>> net = nn.Linear(3, 1)
    >>> x = torch.randn(4, 3)
    >>> torch.allclose(occlusion(net, x).relevance, net.weight * x, atol=1e-6)
    True
    """
    started = time.perf_counter()
    with open_score(model, x, target, output=output, probabilities=probabilities) as score:
        if stride is not None and patch is None:
            raise InvalidInput("stride says how far a patch moves: give patch as well")
        whole = patch is None or stride is None
        removal = Removal(
            score,
            features=features,
            patch=patch if whole else None,
            baseline=baseline,
            background=background,
        )
        relevance = score.points.new_zeros(len(score), removal.count)
        covered = relevance.new_zeros(removal.count)
        for gone in _masks(score, removal.count, None if whole else (patch, stride)):
            fall = score.values[:, None] - removal(~gone)
            # a window's fall in equal parts on its pixels, and the mean over windows of each pixel
            relevance += fall @ (gone / gone.sum(1, keepdim=True)).to(fall)
            covered += gone.sum(0)
        relevance = removal.spread(relevance / covered)
        return explained(score, relevance, "occlusion", started=started)


def _masks(score: Score, count: int, windows: tuple[Any, Any] | None) -> Iterator[Tensor]:
    """Which features go together, `[some, features]`, as many at a time as memory allows."""
    some = max(1, _ENTRIES_AT_ONCE // count)
    if windows is not None:
        yield from torch.split(_windows(score, *windows), some)
        return
    features = torch.arange(count, device=score.points.device)
    for own in torch.split(features, some):
        yield own[:, None] == features


def _windows(score: Score, patch: Patch, stride: Patch) -> Tensor:
    """Which pixels each patch covers, `[patches, height * width]`."""
    height, width = image_size(score)
    tall, wide = patch_size(patch, height, width)
    down, right = patch_size(stride, height, width, "stride")
    if down > tall or right > wide:
        raise InvalidInput("a stride longer than the patch would leave pixels out")
    rows = _intervals(height, tall, down)
    columns = _intervals(width, wide, right)
    windows = (rows[:, None, :, None] & columns[None, :, None, :]).reshape(-1, height * width)
    return windows.to(score.points.device)


def _intervals(length: int, size: int, step: int) -> Tensor:
    """Which places each interval covers, `[intervals, length]`; the last one ends at the end."""
    last = length - size
    starts = torch.tensor(sorted({*range(0, last, step), last}))
    places = torch.arange(length)
    return (places >= starts[:, None]) & (places < starts[:, None] + size)
