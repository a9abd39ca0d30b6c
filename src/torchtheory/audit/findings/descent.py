"""Gradient descent from the weights: the losses along it, beside that of a constant prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.audit.engine.ranges import group_losses, grouped, mean_range
from torchtheory.core.errors import NonFinite, TorchTheoryError
from torchtheory.core.intervals import Interval
from torchtheory.models.model import Parameters, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient
from torchtheory.training.losses.risks import best_constant

#: A network that keeps more than this share of the loss of a constant prediction explains less than
#: a twentieth of what there is: it has learned nothing to speak of.
LEARNED = 0.95


def losses_beside_constant(
    problem: Problem, samples: Samples, record: FindingRecord
) -> tuple[Interval, Interval | None, bool]:
    """The loss of the network, that of the best constant prediction, whether the two are alike.

    The second is None where no constant can be told. Alike: beyond doubt the network keeps more
    than `LEARNED` of the loss of the constant; both are compared on the same samples.
    """
    parts, shares = grouped(samples, record.generator)

    def mean(losses: Tensor) -> Interval:
        return mean_range(
            losses,
            len(samples),
            samples.population,
            record.confidence,
            value=float(shares @ losses),
        )

    here = torch.tensor([problem.risk(part) for part in parts], dtype=torch.float64)
    own = mean(here)
    outputs = best_constant(problem, problem.train)
    if outputs is None:
        return own, None, False
    try:
        with torch.no_grad():
            losses = [
                float(problem.loss(outputs.expand(len(part), *outputs.shape), part.y))
                for part in parts
            ]
    except TorchTheoryError:
        raise
    except Exception:  # a loss of the user's that wants something else
        return own, None, False
    values = torch.tensor(losses, dtype=torch.float64)
    return own, mean(values), mean(here - LEARNED * values).low > 0


def descend(
    problem: Problem, samples: Samples, rate: float, count: int
) -> tuple[list[float], Parameters | None]:
    """The losses along gradient descent, and the last point; None once they are not finite."""
    point = dict(problem.trainable)
    losses = []
    for k in range(count + 1):
        try:
            losses.append(problem.at(point).risk(samples))
        except NonFinite:
            losses.append(math.inf)
        if not math.isfinite(losses[-1]):
            return losses, None
        if k < count:
            step = unflatten(gradient(problem, samples, parameters=point), point)
            point = {name: p - rate * step[name] for name, p in point.items()}
    return losses, point


def change_of_loss(
    problem: Problem, record: FindingRecord, point: Parameters, samples: Samples, others: Samples
) -> Interval:
    """Of the loss on all training data at a point that the samples steered to."""
    there = problem.at(point)

    def change(chosen: Samples, population: int) -> Interval:
        (after, before), shares = group_losses([there, problem], chosen, record.generator)
        values = after - before
        return mean_range(
            values, len(chosen), population, record.confidence, value=float(shares @ values)
        )

    inside = change(samples, samples.population)
    if not len(others):
        return inside
    outside = change(others, samples.population - len(samples))
    share = len(samples) / samples.population
    low, middle, high = (
        share * inside.estimate + (1 - share) * v
        for v in (outside.low, outside.estimate, outside.high)
    )
    return Interval(
        (middle + inside.estimate) / 2,
        min(low, inside.low),
        max(high, inside.high),
        record.confidence,
        len(samples),
        "",
    )
