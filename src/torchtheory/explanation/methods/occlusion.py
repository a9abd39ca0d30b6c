r"""Occlusion: by how much the score falls when a feature is taken away.

$$
R_i = f(x) - f(x\text{ without feature }i).
$$

Source: Mathematical Aspects of Deep Learning, sections 5.3.3 and 5.5; Zeiler and Fergus (2014).
"""

from __future__ import annotations

import time

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
from torchtheory.explanation.score import Inputs, Target, open_score


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
        if patch is not None and stride is not None:
            removal = Removal(score, features=features, baseline=baseline, background=background)
            relevance = _sliding(removal, patch, stride)
        elif stride is not None:
            raise InvalidInput("stride says how far a patch moves: give patch as well")
        else:
            removal = Removal(
                score, features=features, patch=patch, baseline=baseline, background=background
            )
            every = torch.arange(removal.count, device=score.points.device)
            without = removal.of_sets(removal.count, lambda _, which: which[:, None] != every)
            relevance = score.values[:, None] - without
        return explained(score, removal.spread(relevance), "occlusion", started=started)


def _sliding(removal: Removal, patch: Patch, stride: Patch) -> Tensor:
    """Relevance of pixels `[n, height * width]`: means over the patches that cover them."""
    score = removal.score
    height, width = image_size(score)
    tall, wide = patch_size(patch, height, width)
    down, right = patch_size(stride, height, width, "stride")
    if down > tall or right > wide:
        raise InvalidInput(
            f"a stride of {down} x {right} is longer than the patch of {tall} x {wide} and would "
            "leave pixels out"
        )
    rows = _intervals(height, tall, down).to(score.points.device)
    columns = _intervals(width, wide, right).to(score.points.device)

    def kept(_: Tensor, which: Tensor) -> Tensor:
        down, right = rows[which // len(columns)], columns[which % len(columns)]
        return ~(down[:, :, None] & right[:, None]).flatten(1)

    without = removal.of_sets(len(rows) * len(columns), kept)
    fall = (score.values[:, None] - without).reshape(-1, len(rows), len(columns))
    r, c = rows.to(fall), columns.to(fall)
    total = torch.einsum("nij,ih,jw->nhw", fall / (tall * wide), r, c)
    return (total / (r.sum(0)[:, None] * c.sum(0))).flatten(1)


def _intervals(length: int, size: int, step: int) -> Tensor:
    """Which places each interval covers, `[intervals, length]`; the last one ends at the end."""
    starts = torch.tensor(sorted({*range(0, length - size, step), length - size}))
    places = torch.arange(length)
    return (places >= starts[:, None]) & (places < starts[:, None] + size)
