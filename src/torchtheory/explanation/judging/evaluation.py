"""Several explanations of the same scores, judged side by side.

Whether relevance adds up, whether its signs are right, whether the score falls when relevant
features go, whether relevance lies in a known place, whether it comes from the trained weights,
whether it changes where the input hardly does, and what it costs. Source: Mathematical Aspects of
Deep Learning, sections 5.3.1, 5.3.3 and 5.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from torchtheory.core.checks import open_fraction
from torchtheory.core.intervals import Interval
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.core.record import Cell, Table
from torchtheory.explanation.by_feature import Method, agreement, explained_by, named_methods
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.judging.localization import Localization, localization
from torchtheory.explanation.judging.pixel_flipping import Flipping, pixel_flipping
from torchtheory.explanation.judging.property_scores import PropertyScores, explanation_scores
from torchtheory.explanation.judging.sanity import RandomizationCheck, randomization_check
from torchtheory.explanation.judging.stability import Stability, explanation_stability
from torchtheory.explanation.removal import Baseline
from torchtheory.explanation.score import Inputs, Target, open_score


@dataclass(frozen=True, slots=True)
class Judgment:
    """Everything that is known of one method.

    Attributes:
        explanation: what it says of the samples, with its passes and time.
        scores: conservation, interaction, sign, faithfulness.
        most, least: pixel flipping from either end.
        randomization: whether it comes from the trained weights.
        stability: under small perturbations; None for words.
        localization: in the mask, if one was given.
    """

    explanation: Explanation
    scores: PropertyScores
    most: Flipping
    least: Flipping
    randomization: RandomizationCheck
    stability: Stability | None
    localization: Localization | None

    @property
    def gain(self) -> float:
        """By how much the area from the most relevant on exceeds that from the least."""
        return self.most.area.estimate - self.least.area.estimate


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Methods judged on the same samples.

    Attributes:
        judgments: by the method's name.
        random: pixel flipping in a random order, the baseline of all.
    """

    judgments: Mapping[str, Judgment]
    random: Flipping

    def __getitem__(self, method: str) -> Judgment:
        return self.judgments[method]

    @property
    def best(self) -> str:
        """The method with the largest area of pixel flipping, the most relevant first."""
        return max(self.judgments, key=lambda k: self.judgments[k].most.area.estimate)

    def agreement(self, one: str, other: str, confidence: float = 0.95) -> Interval:
        """The rank correlation of two methods' relevance, its mean over samples."""
        first, second = (self.judgments[k].explanation.relevance for k in (one, other))
        return agreement(first, second, confidence)

    @property
    def table(self) -> Table:
        """A row per method."""
        masked = any(j.localization is not None for j in self.judgments.values())
        columns = (
            "method", "conservation gap", "sign", "interaction", "area, most first",
            "area, least first", "above random", "similar after randomization", "from the model",
            "change at 1%", *(("in the mask",) if masked else ()), "forward", "backward", "seconds",
        )  # fmt: skip
        rows = tuple(_row(name, j, masked) for name, j in self.judgments.items())
        return Table(
            "explanations",
            columns,
            rows,
            f"A random order has the area {self.random.area.estimate:.3g}.",
        )


def evaluate_explanations(
    model: nn.Module,
    x: Inputs,
    methods: Method | Mapping[str, Method],
    target: Target = None,
    *,
    mask: Tensor | None = None,
    baseline: Baseline = 0.0,
    steps: int = 20,
    confidence: float = 0.95,
    generator: RandomSource = None,
) -> Evaluation:
    """Judge several methods on the same samples.

    Args:
        model: the network.
        x: inputs `[n, ...]`, or several such tensors.
        methods: called as `method(model, x, target)`, by name.
        target: whose score is explained; the classes that are predicted unless given.
        mask: where relevance should lie, if known; see `localization`.
        baseline, steps: of pixel flipping.
        confidence: of every interval.
        generator: of random orders, weights and perturbations.

    Time per method: about `10 + layers` explanations and `features + 8 * steps` passes forward.

    >>> def by_hand(model, x, target):
    ...     return Explanation(x * model.weight.detach()[0], model(x)[:, 0].detach(), "by hand")
    >>> import torch
    >>> net = nn.Linear(4, 1)
    >>> found = evaluate_explanations(net, torch.randn(6, 4), {"by hand": by_hand})
    >>> found.best, len(found.table.rows)
    ('by hand', 1)
    """
    open_fraction(confidence, "confidence")
    source = as_generator(generator)
    with open_score(model, x, target) as score:
        fixed: Target = score.classes if target is None else target
        real = all(t.is_floating_point() for t in score.x)
    judged: dict[str, Judgment] = {}
    drawn: Flipping | None = None

    def flipped(given: Explanation, order: str) -> Flipping:
        return pixel_flipping(
            model,
            x,
            given,
            fixed,
            order=order,  # type: ignore[arg-type]
            baseline=baseline,
            steps=steps,
            confidence=confidence,
            generator=source,
        )

    for name, method in named_methods(methods).items():
        made = explained_by(method, model, x, fixed, f"method {name!r}")
        drawn = drawn or flipped(made, "random")
        judged[name] = Judgment(
            made,
            explanation_scores(
                model,
                x,
                made,
                fixed,
                baseline=baseline,
                steps=steps,
                confidence=confidence,
                generator=source,
            ),
            flipped(made, "most"),
            flipped(made, "least"),
            randomization_check(model, x, method, fixed, confidence=confidence, generator=source),
            explanation_stability(model, x, method, fixed, confidence=confidence, generator=source)
            if real
            else None,
            None if mask is None else localization(made, mask, confidence=confidence),
        )
    assert drawn is not None
    return Evaluation(judged, drawn)


def _row(name: str, judged: Judgment, masked: bool) -> tuple[Cell, ...]:
    scores, made = judged.scores, judged.explanation
    verdict = {True: "yes", False: "no", None: "not known"}[judged.randomization.passed]
    place = judged.localization
    return (
        name,
        scores.conservation.estimate,
        None if scores.sign is None else scores.sign.estimate,
        scores.interaction,
        judged.most.area.estimate,
        judged.least.area.estimate,
        scores.faithfulness.estimate,
        judged.randomization.last.estimate,
        verdict,
        None if judged.stability is None else judged.stability.change.estimate,
        *((None if place is None else place.share.estimate,) if masked else ()),
        made.forwards,
        made.backwards,
        made.seconds,
    )
