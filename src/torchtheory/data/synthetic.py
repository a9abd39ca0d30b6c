r"""Samples made to order: with a known margin, a known rank, a known law.

Every function takes a generator or a seed and gives rows as samples, float64 unless told.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator, gaussian


class Sample(NamedTuple):
    """Points `x[s, d]` and their labels or targets `y[s]`."""

    x: Tensor
    y: Tensor


class PlantedSample(NamedTuple):
    """A sample and the linear function `w·x + b` it was made from."""

    x: Tensor
    y: Tensor
    weight: Tensor
    bias: Tensor


def xor(dtype: torch.dtype = torch.float64) -> Sample:
    """The four corners of the square, labeled +1 where the two bits are equal.

    The notes call it XOR; strictly it is its negation, which is as little separable.

    >>> xor().y.tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    x = torch.tensor([[0, 0], [1, 1], [0, 1], [1, 0]], dtype=dtype)
    return Sample(x, torch.tensor([1, 1, -1, -1], dtype=dtype))


def unit_vectors(dimension: int, dtype: torch.dtype = torch.float64) -> Sample:
    r"""The unit vectors of $\mathbb R^d$, all labeled +1.

    Without a bias $R=1$ and $\gamma^*=1/\sqrt d$; the perceptron makes exactly
    $R^2/\gamma^{*2}=d$ updates, so Novikoff's bound cannot be improved.

    >>> unit_vectors(2).x
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    whole_number(dimension, "dimension", least=1)
    return Sample(torch.eye(dimension, dtype=dtype), torch.ones(dimension, dtype=dtype))


def separable_gaussians(
    samples: int,
    dimension: int,
    *,
    margin: float,
    bias: float = 0.0,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> PlantedSample:
    r"""Gaussian points, labeled by a random hyperplane and pushed `margin` away from it.

    With a uniform unit vector $w$ and $b$ as given, $x\sim N(0,I)$,
    $y=\operatorname{sgn}(w^\top x+b)$ and $x\leftarrow x+y\,\gamma\,w$: the planted
    hyperplane separates the sample with a margin of at least $\gamma$.

    >>> x, y, w, b = separable_gaussians(50, 3, margin=0.2, generator=1)
    >>> bool((y * (x @ w + b)).min() >= 0.2)
    True
    """
    whole_number(samples, "samples", least=1)
    whole_number(dimension, "dimension", least=1)
    nonnegative_number(margin, "margin")
    if not math.isfinite(bias):
        raise InvalidInput(f"bias must be a finite number, not {bias!r}")
    source = as_generator(generator)
    w = gaussian(dimension, generator=source, dtype=dtype)
    w = w / w.norm()
    x = gaussian(samples, dimension, generator=source, dtype=dtype)
    height = x @ w + bias
    y = torch.where(height >= 0, 1.0, -1.0).to(dtype)
    return PlantedSample(x + (margin * y).unsqueeze(1) * w, y, w, w.new_tensor(bias))


def logistic_sample(
    samples: int,
    dimension: int,
    *,
    signal: float = 1.0,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> PlantedSample:
    r"""Data of the logistic model: $x\sim N(0,I)$, $P(y=1\mid x)=\sigma(w^\top x)$.

    The planted $w$ has length `signal` and random direction; labels are 0 or 1.

    >>> x, y, w, b = logistic_sample(100, 2, signal=50.0, generator=3)      # hardly any noise
    >>> bool(((x @ w > 0) == (y == 1)).double().mean() > 0.9)
    True
    """
    whole_number(samples, "samples", least=1)
    whole_number(dimension, "dimension", least=1)
    nonnegative_number(signal, "signal")
    source = as_generator(generator)
    w = gaussian(dimension, generator=source, dtype=dtype)
    w = signal * w / w.norm()
    x = gaussian(samples, dimension, generator=source, dtype=dtype)
    draws = torch.rand(samples, generator=source, device=source.device, dtype=dtype)
    y = (draws.to(x.device) < torch.sigmoid(x @ w)).to(dtype)
    return PlantedSample(x, y, w, w.new_zeros(()))


def linear_sample(
    samples: int,
    dimension: int,
    *,
    noise: float = 0.1,
    rank: int | None = None,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> PlantedSample:
    r"""Data of the linear model: $y=w^\top x+\sigma\varepsilon$ with Gaussian everything.

    With `rank` the features span only that many dimensions, so that $w$ is not
    determined by the data.

    >>> x, y, w, b = linear_sample(9, 4, noise=0.0, rank=2)
    >>> int(torch.linalg.matrix_rank(x))
    2
    """
    whole_number(samples, "samples", least=1)
    whole_number(dimension, "dimension", least=1)
    nonnegative_number(noise, "noise")
    if rank is not None and not 1 <= rank <= min(samples, dimension):
        raise InvalidInput(f"rank must lie in 1..{min(samples, dimension)}, not {rank}")
    source = as_generator(generator)
    w = gaussian(dimension, generator=source, dtype=dtype)
    if rank is None:
        x = gaussian(samples, dimension, generator=source, dtype=dtype)
    else:
        left = gaussian(samples, rank, generator=source, dtype=dtype)
        x = left @ gaussian(rank, dimension, generator=source, dtype=dtype) / math.sqrt(rank)
    y = x @ w + noise * gaussian(samples, generator=source, dtype=dtype)
    return PlantedSample(x, y, w, w.new_zeros(()))
