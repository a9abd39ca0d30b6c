r"""Numbers of a model that draws random numbers, over its draws.

A network with noise $f(\theta,x,\omega)$ is judged by its expectation over $\omega$: every value of
a sample is computed at $K$ draws, each the same for all samples, and the mean over both has the
variance

$$
\operatorname{Var}\bar v \approx \frac{\sigma_\omega^2}{K} + \frac{\sigma_x^2}{n},
$$

where $\sigma_\omega^2$ is the variance of the draws' means and $\sigma_x^2$ that of the samples'.
A model without noise has one draw, and the interval is Student's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from scipy import special
from torch import Tensor

from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import as_generator
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Draws of the noise: at least and at most.
LEAST, MOST = 4, 32

#: Share of the time that is left which the draws may take.
SHARE = 0.3

_kept: WeakKeyDictionary[Problem, list[int]] = WeakKeyDictionary()


def draws(problem: Problem) -> list[Problem]:
    """The problem at several draws of its noise, as many as time allows; itself without noise.

    The draws are the same for all who ask.
    """
    if not problem.draws_random_numbers:
        return [problem]
    if problem not in _kept:
        every = len(problem.train) + (0 if problem.test is None else len(problem.test))
        count = max(LEAST, min(MOST, problem.affordable(1, share=SHARE) // every))
        source = as_generator(0)
        _kept[problem] = torch.randint(2**31, (count,), generator=source).tolist()
    return [problem.at_draw(seed) for seed in _kept[problem]]


def over_draws(problem: Problem, value: Callable[[Problem], Tensor]) -> Tensor:
    """Values of all samples at every draw, `[K, n]`, in double precision."""
    return torch.stack([value(there).detach().double().cpu() for there in draws(problem)])


def mean_over_draws(values: Tensor, confidence: float, samples: Samples | None = None) -> Interval:
    """The mean of values `[K, n]` over draws and samples.

    Args:
        samples: those the values are of, if they are a part of all there are; new ones otherwise.

    >>> found = mean_over_draws(torch.tensor([[0.0, 1.0], [1.0, 2.0]]).double(), 0.95)
    >>> found.estimate, found.trials
    (1.0, 2)
    """
    k, n = values.shape
    if k == 1 and samples is None:
        return mean_interval(values[0], confidence)
    part = 1.0 if samples is None else 1 - n / samples.population
    by_sample = float(values.mean(0).var()) / n if n > 1 else math.inf
    by_draw = float(values.mean(1).var()) / k if k > 1 else 0.0
    variance = by_draw + (part * by_sample if part else 0.0)
    freedom = k - 1 if k > 1 else max(1, n - 1)
    half = float(special.stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(variance)
    mean = float(values.mean())
    words = "Student t" if k == 1 else f"Student t over samples and {k} draws of the noise"
    return Interval(mean, mean - half, mean + half, confidence, n, words)


def rate_over_draws(values: Tensor, confidence: float, samples: Samples | None = None) -> Interval:
    """The same for values in [0, 1]."""
    found = mean_over_draws(values, confidence, samples)
    return Interval(
        found.estimate, max(0.0, found.low), min(1.0, found.high), confidence, found.trials,
        found.test,
    )  # fmt: skip


def mixed_outputs(problem: Problem, samples: Samples, seed: int = 0) -> Tensor:
    """Outputs `[n, ...]` where every sample has a draw of its own, as where the model is used."""
    every = draws(problem)
    if len(every) == 1:
        return problem.outputs(samples)
    chosen = torch.randint(len(every), (len(samples),), generator=as_generator(seed))
    made: Tensor | None = None
    for k, there in enumerate(every):
        mine = (chosen == k).nonzero().flatten()
        if len(mine):
            part = there.outputs(samples.at(mine))
            made = part.new_zeros(len(samples), *part.shape[1:]) if made is None else made
            made[mine.to(part.device)] = part
    assert made is not None
    return made
