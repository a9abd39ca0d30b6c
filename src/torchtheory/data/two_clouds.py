r"""Two Gaussian clouds in the plane, and the best that any classifier can do on them.

Class 0 is $N\bigl((2,2),\begin{pmatrix}2&1\\1&2\end{pmatrix}\bigr)$, class 1 is
$N\bigl((-1,-1),\begin{pmatrix}2&-1\\-1&2\end{pmatrix}\bigr)$, both equally likely. Source:
Foundations of Deep Learning, section 2.7.5.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidType, ShapeMismatch
from torchtheory.data.synthetic import Sample

MEANS = ((2.0, 2.0), (-1.0, -1.0))
COVARIANCES = (((2.0, 1.0), (1.0, 2.0)), ((2.0, -1.0), (-1.0, 2.0)))

#: Points of the midpoint rule along each axis.
_POINTS = 400


def legacy_stream(generator: np.random.RandomState | int = 0) -> np.random.RandomState:
    """The stream that `numpy.random.seed(random)` starts, without touching numpy's global one.

    >>> legacy_stream(0).randn(2).round(4).tolist()
    [1.7641, 0.4002]
    """
    if isinstance(generator, np.random.RandomState):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int):
        raise InvalidType(f"a RandomState or a seed is needed, not {type(generator).__name__}")
    return np.random.RandomState(generator)


def two_gaussian_clouds(samples: int = 1000, generator: np.random.RandomState | int = 0) -> Sample:
    """The data set: `samples` points of class 0, then as many of class 1.

    Args:
        samples: of each class.
        generator: the stream the points are drawn from, or its seed; with seed 0 the numbers are
            those of the source, entry by entry. A stream goes on after the last point.

    Returns:
        `x[2 * samples, 2]` and labels `y[2 * samples, 1]`, 0.0 or 1.0.

    >>> x, y = two_gaussian_clouds()
    >>> tuple(x.shape), tuple(y.shape), float(y.mean())
    ((2000, 2), (2000, 1), 0.5)
    """
    whole_number(samples, "samples", least=1)
    stream = legacy_stream(generator)
    parts = [
        stream.multivariate_normal(mean, covariance, samples)
        for mean, covariance in zip(MEANS, COVARIANCES, strict=True)
    ]
    labels = np.repeat([[0.0], [1.0]], samples, axis=0)
    return Sample(torch.from_numpy(np.vstack(parts)), torch.from_numpy(labels))


def log_densities(x: Tensor) -> Tensor:
    """The logarithms of both classes' densities at `x[n, 2]`, `[n, 2]`."""
    if x.ndim != 2 or x.shape[1] != 2:
        raise ShapeMismatch(f"points of the plane are [n, 2], not {list(x.shape)}")
    columns = []
    for mean, covariance in zip(MEANS, COVARIANCES, strict=True):
        sigma = x.new_tensor(covariance)
        away = x - x.new_tensor(mean)
        distance = (away @ torch.linalg.inv(sigma) * away).sum(1)
        columns.append(-distance / 2 - torch.linalg.det(sigma).log() / 2 - math.log(2 * math.pi))
    return torch.stack(columns, dim=1)


def cloud_posterior(x: Tensor) -> Tensor:
    r"""$P(y=1\mid x)$, `[n]`: the best classifier says 1 where it exceeds 1/2.

    Its logit is a quadratic function of $x$ (quadratic discriminant analysis).

    >>> cloud_posterior(torch.tensor([[2.0, 2.0], [-1.0, -1.0]]).double()).round(decimals=4)
    tensor([1.0000e-04, 9.5260e-01], dtype=torch.float64)
    """
    return torch.softmax(log_densities(x), dim=1)[:, 1]


def bayes_accuracy() -> float:
    r"""The accuracy $\frac12\int\max(f_0,f_1)$ of the best classifier, by the midpoint rule.

    On $400^2$ points of the square $[-11,12]^2$, outside which there is less than $10^{-9}$ of
    either class; that gives six digits.

    >>> round(bayes_accuracy(), 4)
    0.9462
    """
    width = 23.0 / _POINTS
    axis = torch.arange(_POINTS, dtype=torch.float64) * width + (width / 2 - 11)
    total = 0.0
    for row in axis:
        line = torch.stack([row.expand(_POINTS), axis], dim=1)
        total += float(log_densities(line).amax(1).exp().sum())
    return total * width**2 / 2
