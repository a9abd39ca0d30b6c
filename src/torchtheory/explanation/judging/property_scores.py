r"""Properties that an explanation should have, as numbers.

- *Conservation*: the gap $|\sum_iR_i-f(x)|/|f(x)|$.
- *Interaction* of model and data: the share of relevance that changes with the input,
  $\mathbb E\|R-\mathbb ER\|^2/\mathbb E\|R\|^2$. It is 0 for a map that is the same for every
  input, such as the sensitivity $\partial f/\partial x_i=w_i$ of a linear model.
- *Sign*: how often the sign of $R_i$ is that of $f(x)-f(x\text{ without feature }i)$.
- *Faithfulness*: by how much more the score falls when features go in the order of their relevance
  than in a random one (`torchtheory.explanation.judging.pixel_flipping`).

Source: Mathematical Aspects of Deep Learning, section 5.3.1, items (i) to (iii) and Eq. (5.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import open_fraction
from torchtheory.core.intervals import Interval
from torchtheory.core.random import RandomSource
from torchtheory.explanation.by_feature import (
    relevance_of,
    sample_mean,
    target_of,
    totals,
)
from torchtheory.explanation.explanation import Explanation, Relevance, flat
from torchtheory.explanation.judging.pixel_flipping import ORDERS, pixel_flipping
from torchtheory.explanation.removal import Baseline, Removal
from torchtheory.explanation.score import Inputs, Target, open_score


@dataclass(frozen=True, slots=True)
class PropertyScores:
    """The properties of an explanation, means over samples with intervals.

    Attributes:
        gaps: `[n]`, the relative conservation gap of each sample.
        conservation: their mean.
        interaction: from 0, the same map for every input, to 1.
        sign: share of the features with an effect whose relevance has its sign; None where no
            feature has an effect. Relevance 0 has no sign, so it is a miss.
        faithfulness: area of pixel flipping, above that of a random order.
    """

    gaps: Tensor
    conservation: Interval
    interaction: float
    sign: Interval | None
    faithfulness: Interval


def explanation_scores(
    model: nn.Module,
    x: Inputs,
    explanation: Explanation | Relevance,
    target: Target = None,
    *,
    baseline: Baseline = 0.0,
    steps: int = 20,
    output: int | str | None = None,
    confidence: float = 0.95,
    generator: RandomSource = None,
) -> PropertyScores:
    """Conservation, interaction with the data, sign and faithfulness of an explanation.

    Args:
        model: the network.
        x: inputs `[n, ...]`, or several such tensors.
        explanation: of these inputs, or relevance in their shape.
        target: whose score was explained; the explanation's classes unless given.
        baseline: what stands in the place of a feature that is taken away.
        steps: of pixel flipping.
        output: position or key of the output that is meant, where there are several.
        confidence: of the intervals over samples.
        generator: of the random order that faithfulness is compared with.

    Time: as many passes forward as there are features, and `6 * steps`; in chunks.

    >>> net = nn.Linear(3, 1, bias=False)
    >>> x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    >>> found = explanation_scores(net, x, x * net.weight.detach())
    >>> bool(found.gaps.max() < 1e-3), found.sign.estimate
    (True, 1.0)
    """
    open_fraction(confidence, "confidence")
    fixed = target_of(explanation, target)
    with open_score(model, x, fixed, output=output) as score:
        relevance = relevance_of(explanation, len(score))
        values = score.values.detach().double().cpu()
        removal = Removal(score, baseline=baseline)
        numbers = torch.arange(removal.count, device=score.points.device)
        without = removal.of_sets(removal.count, lambda _, which: numbers != which[:, None])
        effects = values[:, None] - without.double().cpu()
        total = totals(removal, relevance).cpu()
        if fixed is None:
            fixed = score.classes
    every = flat(relevance).double().cpu()
    gaps = (every.sum(1) - values).abs() / values.abs()
    # an effect within rounding of the score has no sign
    real = effects.abs() > 1e-6 * values.abs().clamp(min=1e-12)[:, None]
    agree = torch.where(real, total.sign() == effects.sign(), False).double().sum(1)
    counts = real.sum(1)
    shares = (agree / counts)[counts > 0]
    spread = (every - every.mean(0)).square().sum(1).mean()
    size = every.square().sum(1).mean()
    ordered, drawn = (
        pixel_flipping(
            model, x, relevance, fixed, order=order, baseline=baseline, steps=steps,
            output=output, generator=generator,
        )
        for order in ORDERS[::2]
    )  # fmt: skip
    known = gaps[gaps.isfinite()]
    return PropertyScores(
        gaps,
        sample_mean(known if len(known) else [float("inf")], confidence),
        float(spread / size) if float(size) > 0 else 0.0,
        sample_mean(shares, confidence) if len(shares) else None,
        sample_mean(ordered.areas - drawn.areas, confidence),
    )
