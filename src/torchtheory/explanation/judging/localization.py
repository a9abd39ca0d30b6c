r"""Localization: whether relevance lies where the object is.

For a mask $G$ of features known to matter,

$$
\text{share}=\frac{\sum_{i\in G}R_i^+}{\sum_iR_i^+},\qquad
\text{mass}=\frac{\sum_{i\in G}R_i}{\sum_iR_i},\qquad
\text{rank}=\frac{|\{\text{the }|G|\text{ most relevant}\}\cap G|}{|G|},
$$

and the pointing game asks whether the most relevant feature lies in $G$. Relevance that knows
nothing of $G$ has on average the share $|G|/d$. Source: Mathematical Aspects of Deep Learning,
section 5.3.3; Osman et al. (2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import described, open_fraction
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.explanation.by_feature import feature_totals, relevance_of, sample_mean
from torchtheory.explanation.explanation import Explanation, Relevance


@dataclass(frozen=True, slots=True)
class Localization:
    """How much of the relevance lies in a mask; means over samples, with intervals.

    Attributes:
        share: of the positive relevance; `shares` `[n]` has that of each sample, NaN where a
            sample has no positive relevance, which counts for nothing.
        mass: of all relevance; not between 0 and 1 where some is negative. None where that of
            every sample adds up to 0.
        rank: of the features in the mask, those among as many most relevant ones.
        pointing: how often the most relevant feature lies in the mask.
        area: the share of the features that the mask covers, the mean over samples.
    """

    share: Interval
    mass: Interval | None
    rank: Interval
    pointing: Interval
    area: float
    shares: Tensor

    @property
    def found(self) -> bool:
        """Whether the mask is looked at more than its size alone would make it."""
        return self.share.low > self.area


def localization(
    explanation: Explanation | Relevance, mask: Tensor, *, confidence: float = 0.95
) -> Localization:
    """How much of an explanation lies where it should.

    Args:
        explanation: or its relevance, `[n, ...]` in the shape of the inputs.
        mask: True for features that matter: `[n, features...]`, or `[features...]` for the same in
            every sample. Pixels are `[height, width]`, whatever the channels.
        confidence: of the intervals.

    Time: one sort of the features of each sample.

    >>> found = localization(torch.tensor([[3.0, 1.0, 0.0], [2.0, -1.0, 0.0]]),
    ...                      torch.tensor([True, False, False]))
    >>> found.share.estimate, found.mass.estimate, found.pointing.estimate, round(found.area, 3)
    (0.875, 1.375, 1.0, 0.333)
    """
    open_fraction(confidence, "confidence")
    whole = explanation.relevance if isinstance(explanation, Explanation) else explanation
    first = whole[0] if isinstance(whole, tuple) else whole
    relevance = relevance_of(explanation, len(first))
    if not len(first):
        raise EmptyData("there is no relevance of any sample")
    total = feature_totals(relevance).double()
    inside = features_inside(mask, relevance).to(total.device)
    counts = inside.sum(1)
    if bool((counts == 0).any()):
        raise EmptyData(f"the mask of sample {int((counts == 0).nonzero()[0])} is empty")
    positive = total.clamp(min=0)
    shares = (positive * inside).sum(1) / positive.sum(1)  # 0/0 is NaN, and is left out below
    known = ~shares.isnan()
    if not bool(known.any()):
        raise EmptyData("no sample has positive relevance")
    mass = (total * inside).sum(1) / total.sum(1)
    summed = mass.isfinite()
    place = total.argsort(dim=1, descending=True, stable=True).argsort(1)
    hits = ((place < counts[:, None]) & inside).sum(1) / counts
    pointing = inside.gather(1, total.argmax(1, keepdim=True))[:, 0]
    return Localization(
        sample_mean(shares[known], confidence),
        sample_mean(mass[summed], confidence) if bool(summed.any()) else None,
        sample_mean(hits, confidence),
        clopper_pearson(int(pointing.sum()), len(pointing), confidence),
        float(inside.double().mean()),
        shares,
    )


def features_inside(mask: Tensor, relevance: Relevance) -> Tensor:
    """The mask for every sample and feature, `[n, features]`."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InvalidType(f"a mask is a tensor of True and False, not {described(mask)}")
    if not isinstance(relevance, Tensor):
        raise InvalidType("a mask speaks of one input, and the relevance is of several")
    n, shape = len(relevance), list(relevance.shape[1:])
    pixels = shape[1:] if relevance.ndim == 4 else shape
    if list(mask.shape) == pixels:
        return mask.reshape(1, -1).expand(n, -1)
    if relevance.ndim == 4 and list(mask.shape) == [n, 1, *pixels]:
        mask = mask[:, 0]
    if list(mask.shape) != [n, *pixels]:
        raise ShapeMismatch(
            f"a mask of relevance {list(relevance.shape)} has the shape {pixels} or "
            f"{[n, *pixels]}, not {list(mask.shape)}"
        )
    return mask.reshape(n, -1)
