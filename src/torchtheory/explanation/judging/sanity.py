r"""Randomization of parameters: an explanation that does not change with the model is none.

Layer by layer, from the output on, weights are drawn anew by the layers' own rules, either one
after the other (*cascading*) or each alone (*independent*), and the explanation of the same score
is compared with the first one: the rank correlation of $R$ over the features. A method that looks
at the input alone, such as an edge detector, keeps a correlation of 1 all the way. That of $|R|$
is less telling: whatever is multiplied by the input has the order of $|x|$, also if the model has
turned every sign. Source: Adebayo et al. (2018), among the criteria that Mathematical Aspects of
Deep Learning, sections 5.3.3 and 5.6, refers to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, open_fraction, whole_number
from torchtheory.core.errors import UnknownName, UnsupportedModel
from torchtheory.core.intervals import Interval
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.by_feature import (
    Method,
    explained_by,
    feature_totals,
    rank_correlation,
    sample_mean,
)
from torchtheory.explanation.score import Inputs, Target, open_score
from torchtheory.nets.fresh_weights import drawn_anew, renewable_layers

Order = Literal["cascading", "independent"]

#: A rank correlation above which more than half of the variance of the ranks is not the model's.
LIMIT = math.sqrt(0.5)


@dataclass(frozen=True, slots=True)
class RandomizationCheck:
    """How similar explanations stay while weights are drawn anew.

    Attributes:
        order: whether layers were drawn anew one after the other, or each alone.
        layers: their names, from the output on.
        similarity: the rank correlation with the first explanation, after each: its mean over
            samples, with the interval. Samples whose explanation is the same number everywhere
            count for nothing; if there are no others, it is between -1 and 1.
        last: the same with all weights drawn anew.
    """

    order: Order
    layers: tuple[str, ...]
    similarity: tuple[Interval, ...]
    last: Interval

    @property
    def passed(self) -> bool | None:
        """Whether most of the explanation comes from the trained weights.

        True if the rank correlation with all weights drawn anew stays below √½ at the stated
        confidence, so that less than half of the variance of ranks is left; False if it stays
        above; None if that cannot be told from these samples.
        """
        if self.last.high < LIMIT:
            return True
        return False if self.last.low > LIMIT else None


def randomization_check(
    model: nn.Module,
    x: Inputs,
    method: Method,
    target: Target = None,
    *,
    order: Order = "cascading",
    layers: Sequence[str] | None = None,
    absolute: bool = False,
    draws: int = 1,
    confidence: float = 0.95,
    generator: RandomSource = None,
) -> RandomizationCheck:
    """Explanations before and after weights are drawn anew, layer by layer from the output.

    Args:
        model: the network; copies of it are changed.
        x: inputs `[n, ...]`, or several such tensors.
        method: that is judged, called as `method(model, x, target)`.
        target: whose score is explained; the classes that the model itself predicts unless given,
            also after its weights are others.
        order: one layer after the other, or each alone.
        layers: names of those that are drawn anew before all of them are; every layer with weights
            of its own unless given.
        absolute: whether sizes of relevance are compared, without their signs.
        draws: of each layer; similarities are averaged over them.
        confidence: of the intervals: over samples, and over draws if there are several.
        generator: of the weights.

    Time: `draws * (layers + 1) + 1` explanations.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> def edges(model, x, target):                       # looks at the input alone
    ...     return Explanation(x.diff(dim=1, prepend=x[:, :1]).abs(), x.sum(1), "edges")
    >>> from torchtheory.explanation.explanation import Explanation
    >>> check = randomization_check(net, torch.randn(20, 4), edges)
    >>> check.layers, round(check.last.estimate, 6), check.passed
    (('2', '0'), 1.0, False)
    """
    one_of(order, "order", ("cascading", "independent"))
    whole_number(draws, "draws", least=1)
    open_fraction(confidence, "confidence")
    source = as_generator(generator)
    every = renewable_layers(model)[::-1]
    if not every:
        raise UnsupportedModel("the model has no layer whose weights could be drawn anew")
    chosen = every if layers is None else tuple(layers)
    for name in chosen:
        if name not in every:
            raise UnknownName("layer", name, every)
    fixed = target  # of whichever output the method explains
    if target is None:
        with open_score(model, x) as score:
            fixed = score.classes

    def explained(network: nn.Module) -> Tensor:
        found = feature_totals(explained_by(method, network, x, fixed).relevance)
        return found.abs() if absolute else found

    first = explained(model)
    ordered = (first != first[:, :1]).any(1).cpu()  # a constant map has no order to lose

    def compared(names: Sequence[str]) -> Interval:
        if not bool(ordered.any()):
            return Interval(0.0, -1.0, 1.0, confidence, 0, "no explanation has an order")
        found = []
        for _ in range(draws):
            seed = int(torch.randint(2**31, (1,), generator=source))
            found.append(rank_correlation(first, explained(drawn_anew(model, seed, names))))
        rows = torch.stack(found).cpu()[:, ordered]
        over_samples = sample_mean(rows.mean(0), confidence)
        if draws == 1:
            return over_samples
        over_draws = sample_mean(rows.mean(1), confidence)
        more = over_draws.high - over_draws.estimate
        return Interval(
            over_samples.estimate,
            max(-1.0, over_samples.low - more),
            min(1.0, over_samples.high + more),
            confidence,
            over_samples.trials,
            "Student t over samples and over draws",
        )

    similarity = []
    for k, name in enumerate(chosen):
        similarity.append(compared(chosen[: k + 1] if order == "cascading" else [name]))
    all_of_them = order == "cascading" and set(chosen) == set(every)
    last = similarity[-1] if all_of_them else compared(every)
    return RandomizationCheck(order, chosen, tuple(similarity), last)
