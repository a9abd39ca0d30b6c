r"""What of a matrix is noise: singular values inside Marchenko and Pastur's bulk, and those beyond.

A matrix with independent entries of variance $\sigma^2$ has its squared singular values inside an
interval whose upper edge is known with its fluctuation (Johnstone, Annals of Statistics 29, 2001).
What lies beyond is structure: training leaves it behind, drawing at random does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, as_vector, open_fraction, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.generalization.interpolation.spectral_asymptotics import (
    marchenko_pastur_cdf,
    marchenko_pastur_support,
)

#: Points at which Marchenko and Pastur's law is inverted.
_GRID = 4001


@dataclass(frozen=True, slots=True)
class NoiseBulk:
    r"""The bulk of a matrix's singular values and what is beyond it.

    Attributes:
        deviation: $\sigma$ of the independent entries that the bulk fits.
        edge: the singular value that pure noise exceeds with the stated small probability.
        outliers: how many singular values are beyond the edge.
        distance: Kolmogorov and Smirnov's distance between the squared singular values that are
            not beyond it and Marchenko and Pastur's law.
    """

    deviation: float
    edge: float
    outliers: int
    distance: float


def noise_bulk(values: Tensor, rows: int, columns: int, *, confidence: float = 0.999) -> NoiseBulk:
    r"""How many singular values noise does not explain.

    The variance is first that for which the median of the squared values is the law's, which a few
    large values do not move. From there on larger values are taken in, as long as they are inside
    the edge of the variance that they are a part of. The edge is $\sigma^2(\mu+q\,s)$ with
    $\mu=(\sqrt{n-1}+\sqrt p)^2$,
    $s=(\sqrt{n-1}+\sqrt p)(\frac1{\sqrt{n-1}}+\frac1{\sqrt p})^{1/3}$ for $n\ge p$ rows and columns
    in either order, and $q$ the quantile of Tracy and Widom's law.

    Args:
        values: `[p]`, all singular values.
        rows, columns: the shape of the matrix, $p$ the smaller of the two and at least 2.
        confidence: that noise has no value beyond the edge.

    Cost: $O(p\log p)$.

    >>> W = torch.randn(200, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> noise_bulk(torch.linalg.svdvals(W), 200, 100).outliers
    0
    >>> noise_bulk(torch.linalg.svdvals(W + 0.3), 200, 100).outliers
    1
    """
    open_fraction(confidence, "confidence")
    for size, name in ((rows, "rows"), (columns, "columns")):
        whole_number(size, name, least=2)
    values = all_finite(as_vector(values, "the singular values").double(), "the singular values")
    long, short = max(rows, columns), min(rows, columns)
    if len(values) != short:
        raise ShapeMismatch(
            f"a matrix of {rows} rows and {columns} columns has {short} singular values, not "
            f"{len(values)}"
        )
    squares = values.square().sort().values
    if float(squares[-1]) == 0:
        raise InvalidInput("a matrix of zeros has no bulk")
    edge = tracy_widom_edge(long, short, confidence)
    ratio = short / long
    # the median is not moved by a few large values
    variance = float(squares.quantile(0.5)) / (long * _median(ratio))
    count = max(1, int((squares <= variance * edge).sum()))
    # the mean is more exact; a value counts as inside if it is, with its own share of the mean
    means = squares.cumsum(0) / torch.arange(1, short + 1)
    while count < short and float(squares[count]) <= edge * float(means[count]) / long:
        count += 1
    variance, found = float(means[count - 1]) / long, short - count
    inside = squares[: len(squares) - found]
    distance = 1.0
    if len(inside) and variance > 0:
        law = marchenko_pastur_cdf(inside / (long * variance), ratio)
        steps = torch.arange(1, len(inside) + 1, dtype=torch.float64) / len(inside)
        distance = float(torch.maximum(steps - law, law - steps + 1 / len(inside)).max())
    return NoiseBulk(math.sqrt(variance), math.sqrt(variance * edge), found, distance)


def tracy_widom_edge(rows: int, columns: int, confidence: float = 0.999) -> float:
    r"""What the largest squared singular value of a standard normal matrix stays below.

    The quantile of Tracy and Widom's law is that of a shifted Gamma law with its first three
    moments (Chiani, Journal of Multivariate Analysis 129, 2014), which agrees with it to 0.02 up to
    a confidence of 0.995.

    >>> round(tracy_widom_edge(1000, 1000, 0.95) / 4000, 2)      # 4 n, and a little more
    1.01
    """
    from scipy.special import gammaincinv  # it takes a while to import

    open_fraction(confidence, "confidence")
    long, short = max(rows, columns), min(rows, columns)
    one, two = math.sqrt(max(long - 1, 1)), math.sqrt(short)
    quantile = 0.186054 * float(gammaincinv(46.446, confidence)) - 9.84801
    return (one + two) ** 2 + quantile * (one + two) * math.pow(1 / one + 1 / two, 1 / 3)


def _median(ratio: float) -> float:
    """Of Marchenko and Pastur's law, at a ratio of at most 1."""
    low, high = marchenko_pastur_support(ratio)
    grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
    at = int(torch.searchsorted(marchenko_pastur_cdf(grid, ratio), 0.5))
    return float(grid[min(at, _GRID - 1)])
