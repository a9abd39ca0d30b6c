r"""Pixel flipping: features are taken away in the order of their relevance, and the score watched.

With $x^{(k)}$ the input without its $k$ most relevant features, the area over the curve is

$$
\mathrm{AOPC} = \frac1K\sum_{k=1}^K \bigl(f(x)-f(x^{(k)})\bigr):
$$

large if what is called relevant carries the score. For $f(x)=\sum_i w_ix_i$ and removal to 0 no
order has a larger area than that of $w_ix_i$ (rearrangement). Source: Mathematical Aspects of Deep
Learning, sections 5.3.1 and 5.3.3; Samek et al. (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, open_fraction, whole_number
from torchtheory.core.intervals import Interval
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.by_feature import (
    relevance_of,
    sample_mean,
    target_of,
    totals,
)
from torchtheory.explanation.explanation import Explanation, Relevance
from torchtheory.explanation.removal import Baseline, Patch, Removal
from torchtheory.explanation.score import Inputs, Target, open_score

#: Entries of masks that are made at once.
MASKS = 2**24

Order = Literal["most", "least", "random"]
ORDERS: tuple[Order, ...] = ("most", "least", "random")


@dataclass(frozen=True, slots=True)
class Flipping:
    """What a score does while features are taken away.

    Attributes:
        order: which features went first: the most relevant, the least relevant, or any.
        removed: how many features were gone, `[K + 1]`, from none to all of them.
        scores: `[n, K + 1]`, at each of these; means over the draws of a random order.
        area: the mean of the areas over samples, with its interval.
    """

    order: Order
    removed: Tensor
    scores: Tensor
    area: Interval

    @property
    def areas(self) -> Tensor:
        """The area over each sample's curve, `[n]`."""
        return areas(self.scores)

    @property
    def shares(self) -> Tensor:
        """The share of features that were gone, `[K + 1]`."""
        return self.removed / self.removed[-1]

    @property
    def curve(self) -> Tensor:
        """The mean over samples, `[K + 1]`."""
        return self.scores.mean(0)


def areas(scores: Tensor) -> Tensor:
    """By how much scores `[n, K + 1]` fall below where they begin, on average over removals."""
    return scores[:, 0] - scores[:, 1:].mean(1)


def pixel_flipping(
    model: nn.Module,
    x: Inputs,
    explanation: Explanation | Relevance,
    target: Target = None,
    *,
    order: Order = "most",
    baseline: Baseline = 0.0,
    background: Inputs | None = None,
    patch: Patch | None = None,
    steps: int = 20,
    draws: int = 5,
    output: int | str | None = None,
    probabilities: bool = False,
    confidence: float = 0.95,
    generator: RandomSource = None,
) -> Flipping:
    """The score of a network while features are taken away in the order of their relevance.

    A feature is a number of a table, a pixel with all its channels, a word. Features of equal
    relevance go in the order of their numbers.

    Args:
        model: the network.
        x: inputs `[n, ...]`, or several such tensors.
        explanation: of these inputs, or relevance in their shape.
        target: whose score is watched; the classes that were explained unless given.
        order: whether the most or the least relevant go first, or all at random.
        baseline: what is put in the place of a feature: a number, inputs of one sample or of each.
        background: inputs to draw on instead; scores are means over all of them.
        patch: side, or height and width, of the patches of an image that go as a whole.
        steps: in how many steps all features go; at most one feature each.
        draws: random orders per sample that are averaged.
        output: position or key of the output that is meant, where there are several.
        probabilities: whether outputs go through a softmax first.
        confidence: of the interval of the area over samples.
        generator: of the random order.

    Time: `steps` passes forward (times `draws`) over all samples, in chunks; memory is that of a
    chunk.

    >>> net = nn.Linear(3, 1, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    >>> x = torch.ones(2, 3)
    >>> pixel_flipping(net, x, x * net.weight.detach(), steps=3).scores[0].tolist()
    [6.0, 3.0, 1.0, 0.0]
    """
    one_of(order, "order", ORDERS)
    whole_number(steps, "steps", least=1)
    whole_number(draws, "draws", least=1)
    open_fraction(confidence, "confidence")
    source = as_generator(generator)
    with open_score(
        model, x, target_of(explanation, target), output=output, probabilities=probabilities
    ) as score:
        removal = Removal(score, patch=patch, baseline=baseline, background=background)
        total = totals(removal, relevance_of(explanation, len(score)))
        cuts = torch.linspace(0, removal.count, min(steps, removal.count) + 1).round().long()
        found = torch.zeros(len(score), len(cuts), dtype=torch.float64)
        repeats = draws if order == "random" else 1
        for _ in range(repeats):
            found += _curve(removal, ranks_by(total, order, source), cuts) / repeats
    return Flipping(order, cuts, found, sample_mean(areas(found), confidence))


def ranks_by(total: Tensor, order: Order, source: torch.Generator) -> Tensor:
    """When each feature goes, `[n, features]`, from 0."""
    if order == "random":
        drawn = torch.rand(total.shape, generator=source, device=source.device)
        return drawn.to(total.device).argsort(1).argsort(1)
    return total.argsort(dim=1, descending=order == "most", stable=True).argsort(1)


def _curve(removal: Removal, rank: Tensor, cuts: Tensor) -> Tensor:
    """Scores `[n, K + 1]` of all samples with the first features gone, some removals at a time."""
    rank = rank.to(removal.features.device)
    together = max(1, MASKS // rank.numel())
    groups = torch.split(cuts[1:].to(rank.device), together)
    later = [removal(rank[:, None] >= some[:, None]) for some in groups]
    before = removal.score.values.detach()[:, None]
    return torch.cat([p.double().cpu() for p in (before, *later)], 1)
