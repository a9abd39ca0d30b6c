"""The rules that explain a network best, by what can be measured.

Which rule suits which layer is a choice, and pixel flipping (or any other score) can make it: every
candidate explains the same samples, and the one whose order of features takes the score down
fastest wins. Source: Mathematical Aspects of Deep Learning, "Choosing LRP Rules in Practice".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_function, open_fraction
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch
from torchtheory.core.intervals import Interval
from torchtheory.explanation.by_feature import Method, sample_mean
from torchtheory.explanation.composites import Rules
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.judging.pixel_flipping import pixel_flipping
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.removal import Baseline
from torchtheory.explanation.score import Inputs, Target, open_score

#: What judges an explanation: one number per sample `[n]`, the larger the better.
Criterion = Callable[[nn.Module, Inputs, Explanation], Tensor]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Candidates with their scores.

    Attributes:
        best: name of the one with the largest mean score.
        rules: its rules.
        method: that explains by them, called as `method(model, x, target)`.
        scores: `[n]` by candidate.
        confidence: of `mean` and `lead`.
    """

    best: str
    rules: Rules
    method: Method
    scores: Mapping[str, Tensor]
    confidence: float

    def mean(self, candidate: str) -> Interval:
        """The mean score of a candidate over samples."""
        return sample_mean(self.scores[candidate], self.confidence)

    def lead(self, candidate: str) -> Interval:
        """By how much the best exceeds a candidate, sample by sample."""
        return sample_mean(self.scores[self.best] - self.scores[candidate], self.confidence)


def tune(
    model: nn.Module,
    x: Inputs,
    candidates: Mapping[str, Rules],
    target: Target = None,
    *,
    criterion: Criterion | None = None,
    baseline: Baseline = 0.0,
    steps: int = 20,
    confidence: float = 0.95,
) -> Tuned:
    """Choose among rules for layer-wise relevance propagation.

    The choice is made on these samples; to know how well the winner does, judge it on others.

    Args:
        model: the network.
        x: inputs `[n, ...]` that are explained.
        candidates: rules, composites or names of presets, by name.
        target: whose score is explained; the predicted classes unless given.
        criterion: larger is better; the area of pixel flipping, the most relevant first, unless
            given.
        baseline, steps: of pixel flipping.
        confidence: of the intervals over samples.

    Time: one explanation and `steps` passes forward for each candidate.
    """
    open_fraction(confidence, "confidence")
    if not isinstance(candidates, Mapping):
        raise InvalidType("candidates are rules by name, such as {'gamma': Gamma(0.25)}")
    if not candidates:
        raise EmptyData("there are no rules to choose from")
    if criterion is not None:
        as_function(criterion, "the criterion")
    with open_score(model, x, target) as score:
        fixed: Target = score.classes if target is None else target
        count = len(score)
    scores: dict[str, Tensor] = {}
    for name, rules in candidates.items():
        made = lrp(model, x, fixed, rules)
        if criterion is None:
            flipped = pixel_flipping(model, x, made, fixed, baseline=baseline, steps=steps)
            scores[name] = flipped.areas
            continue
        found = torch.as_tensor(criterion(model, x, made)).detach().double().cpu()
        if found.shape != (count,):
            raise ShapeMismatch(
                f"a criterion returns one number for each of {count} samples, not a shape "
                f"{list(found.shape)}"
            )
        scores[name] = found
    best = max(scores, key=lambda name: float(scores[name].mean()))
    return Tuned(best, candidates[best], partial(lrp, rules=candidates[best]), scores, confidence)
