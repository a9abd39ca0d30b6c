"""The squared length of the gradient of the loss, with its range, beside its noise."""

from __future__ import annotations

import math

import torch

from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.audit.engine.ranges import GROUPS, grouped, mean_vector_range
from torchtheory.core.intervals import Interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient


def squared_gradient(
    problem: Problem, record: FindingRecord, samples: Samples
) -> tuple[Interval, Interval] | None:
    """The gradient's squared length, and that over the variance of a sample's gradient.

    None where there is no room or not enough samples for groups of gradients.
    """
    size = problem.function.count * problem.function.reference().element_size()
    complete = len(samples) >= samples.population
    if complete and len(samples) < 3:
        g = gradient(problem, samples)
        exact = float(g @ g)
        one = Interval(exact, exact, exact, record.confidence, len(samples), "all samples")
        return one, Interval(math.inf, math.inf, math.inf, record.confidence, 0, "")
    groups = min(2 * GROUPS, problem.memory // (8 * size))
    if min(groups, len(samples)) < 3:
        return None
    parts, shares = grouped(samples, record.generator, groups)
    rows = torch.stack([gradient(problem, part).cpu() for part in parts])
    # groups of slightly different size: their means count alike but for the value itself
    rows = rows * (shares * len(parts))[:, None].to(rows)
    each = len(samples) / len(parts)
    gram = (rows @ rows.T).double()
    found = mean_vector_range(gram, each, samples.population, record.confidence)
    rounding = 100 * torch.finfo(rows.dtype).eps * float(gram.diagonal().mean())
    return (
        Interval(
            max(0.0, found[0].estimate),
            max(0.0, found[0].low - rounding),
            found[0].high + rounding,
            record.confidence,
            len(samples),
            found[0].test,
        ),
        found[1],
    )
