"""Further training on a private copy, with steps that know the curvature, as time allows.

Plain gradient descent with a step that the largest curvature allows moves hardly at all along flat
directions, in which late progress is made; quasi-Newton and Adam steps do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.budget import time_left
from torchtheory.core.errors import NonFinite
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient

#: Gradients that further training takes at most, and at least to be worth a try, for each way.
MOST, LEAST = 150, 20

#: Passes over the samples that a gradient and the loss beside it take.
PASSES = 4

#: Steps of Adam, in parts of the root mean square of the weights.
RATES = (0.003, 0.03)


@dataclass(frozen=True, slots=True)
class Further:
    """Where further training got.

    Attributes:
        words: what was done.
        point: the parameters with the least loss on the samples that steered.
        loss: there.
        way: points on the way there, the best after 1, 2, 4, ... gradients, and the last.
    """

    words: str
    point: Parameters
    loss: float
    way: tuple[Parameters, ...]


class _OutOfSteps(Exception):
    pass


def steps_in_time(problem: Problem, samples: Samples) -> int:
    """Gradients for each way of training; 0 where that would be too few to say anything."""
    ways = 1 + len(RATES)
    if time_left() == math.inf:
        return MOST
    count = problem.affordable(PASSES * ways, share=0.6) // max(1, len(samples))
    return min(MOST, count) if count >= LEAST else 0


def train_further(problem: Problem, samples: Samples, steps: int) -> list[Further]:
    """L-BFGS and Adam with two rates, each with so many gradients; the least loss first."""
    found = [_lbfgs(problem, samples, steps)]
    found += [_adam(problem, samples, steps, rate) for rate in RATES]
    return sorted(found, key=lambda f: f.loss)


def _followed(
    problem: Problem, samples: Samples, steps: int, run: Callable[[Tensor, _Watch], None]
) -> tuple[Parameters, float, tuple[Parameters, ...]]:
    """The best point that a way of training came by, its loss, and points on the way."""
    start = flatten(problem.trainable).clone()
    watch = _Watch(problem, samples, steps, start)
    with suppress(_OutOfSteps, NonFinite):  # the best so far counts
        run(start.clone().requires_grad_(), watch)
    like = problem.trainable
    way = tuple(unflatten(v, like) for v in [*watch.way, watch.best])
    return unflatten(watch.best, like), watch.least, way


class _Watch:
    """Evaluates loss and gradient, counts them, and keeps the best point."""

    def __init__(self, problem: Problem, samples: Samples, steps: int, start: Tensor) -> None:
        self.problem, self.samples, self.left = problem, samples, steps
        self.best, self.least = start, problem.risk(samples)
        self.way: list[Tensor] = []
        self._seen, self._next = 0, 2  # the first is the start

    def __call__(self, vector: Tensor) -> Tensor:
        if self.left == 0:
            raise _OutOfSteps
        self.left -= 1
        here = vector.detach().clone()
        point = unflatten(here, self.problem.trainable)
        loss = self.problem.at(point).risk(self.samples)
        if loss < self.least:
            self.best, self.least = here, loss
        self._seen += 1
        if self._seen == self._next:
            self.way.append(self.best)
            self._next *= 2
        vector.grad = gradient(self.problem, self.samples, parameters=point)
        return here.new_tensor(loss)


def _lbfgs(problem: Problem, samples: Samples, steps: int) -> Further:
    def run(vector: Tensor, watch: _Watch) -> None:
        optimizer = torch.optim.LBFGS(
            [vector], max_iter=steps, max_eval=steps, history_size=20, tolerance_grad=0,
            tolerance_change=0, line_search_fn="strong_wolfe",
        )  # fmt: skip
        optimizer.step(lambda: watch(vector))  # type: ignore[no-untyped-call]

    return Further(f"{steps} gradients of L-BFGS", *_followed(problem, samples, steps, run))


def _adam(problem: Problem, samples: Samples, steps: int, rate: float) -> Further:
    def run(vector: Tensor, watch: _Watch) -> None:
        size = float(vector.detach().square().mean().sqrt())
        optimizer = torch.optim.Adam([vector], lr=rate * max(size, 1e-3))
        for k in range(steps):
            optimizer.param_groups[0]["lr"] = rate * max(size, 1e-3) * (1 - k / steps)
            watch(vector)
            optimizer.step()
        watch(vector)

    return Further(f"{steps} steps of Adam", *_followed(problem, samples, steps, run))
