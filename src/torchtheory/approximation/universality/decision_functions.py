r"""Decision functions: labels of a partition, met by a continuous sum except on a small set.

A sum of continuous sigmoids cannot be uniformly near a function that jumps, but it can be within
$\epsilon$ on a set of measure $1-\epsilon$. For a half space one unit does it: it errs
by $\epsilon$ or more only in a strip around the boundary. Source: Mathematical Foundations of
Deep Learning (slides), "Universal Approximation Theorem", Theorem 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Box
from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import as_points, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.random import RandomSource, as_generator


def half_space_unit(weight: Tensor, bias: float, sharpness: float) -> nn.Sequential:
    r"""The unit $\sigma(\kappa(w^\top x+b))$, near the indicator of $w^\top x+b>0$.

    >>> unit = half_space_unit(torch.tensor([1.0, 0.0]).double(), -0.5, 100.0)
    >>> unit(torch.tensor([[0.9, 0.3]]).double()).round(decimals=6).item()
    1.0
    """
    positive_number(sharpness, "sharpness")
    w = as_points(weight.unsqueeze(0), "weight")
    if not w.any():
        raise InvalidInput("the weight is 0: it defines no half space")
    one = torch.ones(1, 1, dtype=w.dtype)
    return chain(
        [(sharpness * w, sharpness * bias * one[0]), (one, torch.zeros_like(one[0]))],
        [nn.Sigmoid()],
    )


def strip_width(sharpness: float, norm: float, error: float) -> float:
    r"""$\frac2{\kappa\|w\|}\ln\frac{1-\epsilon}\epsilon$, where the unit errs by
    $\epsilon$ or more.

    >>> round(strip_width(10.0, 1.0, 0.1), 4)
    0.4394
    """
    positive_number(sharpness, "sharpness")
    positive_number(norm, "norm")
    if not 0 < error < 0.5:
        raise InvalidInput(f"the error lies strictly between 0 and 1/2, not {error!r}")
    return 2 / (sharpness * norm) * math.log((1 - error) / error)


def half_space_sharpness(norm: float, error: float, dimension: int) -> float:
    r"""A steepness with which a unit is within $\epsilon$ on a share $1-\epsilon$.

    A strip of width $s$ covers at most $s\sqrt2$ of the unit cube, as no section of
    the cube by a hyperplane is larger than $\sqrt2$ (Ball), and $s$ in one dimension.

    >>> strip_width(half_space_sharpness(1.0, 0.1, 2), 1.0, 0.1) * 2**0.5 <= 0.1 + 1e-12
    True
    """
    section = math.sqrt(2) if whole_number(dimension, "dimension", least=1) > 1 else 1.0
    return strip_width(1.0, norm, error) * section / error


def disagreement(
    labels: Function,
    network: Function,
    error: float,
    domain: Box,
    samples: int = 10_000,
    *,
    generator: RandomSource = None,
    confidence: float = 0.99,
) -> Interval:
    r"""The share of a box on which $|G-f|\ge\epsilon$, with an exact interval.

    Args:
        labels: $f$, from `[n, d]` to `[n]` or `[n, 1]`.
        network: $G$, likewise.

    >>> half = disagreement(lambda x: (x > 0.5).double(), torch.zeros_like, 0.1, ((0.0, 1.0),))
    >>> half.low < 0.5 < half.high
    True
    """
    positive_number(error, "error")
    whole_number(samples, "samples", least=1)
    low, high = torch.tensor(domain, dtype=torch.float64).unbind(1)
    draws = torch.rand(samples, len(low), dtype=torch.float64, generator=as_generator(generator))
    x = low + (high - low) * draws
    far = (values_of(network, x) - values_of(labels, x)).abs() >= error
    return clopper_pearson(int(far.sum()), samples, confidence)
