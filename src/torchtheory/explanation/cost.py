"""What explanations cost: passes through the network, and time.

A backward method needs one pass in each direction, averages need as many as there are points in
them, perturbations one pass per feature, surrogates one per sample of theirs, exact Shapley values
one per set of features. Source: Mathematical Aspects of Deep Learning, section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from torchtheory.core.checks import whole_number
from torchtheory.explanation.by_feature import Method, explained_by, named_methods
from torchtheory.explanation.score import Inputs, Target


@dataclass(frozen=True, slots=True)
class ExplainerCost:
    """What one method costs per explanation.

    Attributes:
        method: its name.
        forwards, backwards: passes through the network.
        seconds: per explanation, the fastest of the repetitions.
        samples: that were explained together.
    """

    method: str
    forwards: float
    backwards: float
    seconds: float
    samples: int

    @property
    def per_second(self) -> float:
        """Explanations per second."""
        return 1 / self.seconds if self.seconds > 0 else float("inf")


def explainer_cost(
    model: nn.Module,
    x: Inputs,
    methods: Method | Mapping[str, Method],
    target: Target = None,
    *,
    repetitions: int = 3,
) -> list[ExplainerCost]:
    """Passes and time per explanation of several methods on the same inputs.

    The first call of a method is not timed; passes are counted by the methods themselves.

    Args:
        model: the network.
        x: inputs `[n, ...]`, explained together.
        methods: called as `method(model, x, target)`, by name.
        target: whose score is explained.
        repetitions: of which the fastest counts.

    Time: `repetitions + 1` explanations of each method.
    """
    whole_number(repetitions, "repetitions", least=1)
    found = []
    for name, method in named_methods(methods).items():
        first = explained_by(method, model, x, target, f"method {name!r}")
        seconds = min(method(model, x, target).seconds for _ in range(repetitions))
        count = len(first)
        found.append(ExplainerCost(name, first.forwards, first.backwards, seconds / count, count))
    return found
