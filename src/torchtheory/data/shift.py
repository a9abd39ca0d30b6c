r"""Do two data sets follow one law? Class balance, and location and scale of every column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.core.random import numpy_generator
from torchtheory.data.wide_rows import parts

#: Draws of a Monte Carlo test, so that the least p-value is 1/1000.
DRAWS = 999

#: Most numbers that the means of all classes may have.
MEANS = 20_000_000


@dataclass(frozen=True, slots=True)
class BalanceShift:
    r"""How the class shares of two samples differ.

    Attributes:
        distance: total variation $\frac12\sum_c |p_c - q_c|$ of the shares seen.
        beyond_chance: by how much it exceeds its mean for samples of one law.
        p_value: probability that samples of one law have a chi-square statistic as large or larger.
    """

    distance: float
    beyond_chance: float
    p_value: float


def balance_shift(
    train: Tensor, test: Tensor, generator: torch.Generator | int = 0
) -> BalanceShift:
    """Compare two class balances, from the counts `[k]` of the classes in each sample.

    Given how often every class occurs in both together, the counts of the one are hypergeometric if
    the two are samples of one law: an exact test by Monte Carlo, also for rare classes.

    >>> balance_shift(torch.tensor([50, 50]), torch.tensor([40, 0])).p_value
    0.001
    >>> balance_shift(torch.tensor([50, 50]), torch.tensor([22, 18])).p_value > 0.3
    True
    """
    a, b = (np.asarray(counts.cpu(), dtype=np.int64) for counts in (train, test))
    if a.shape != b.shape:
        raise ShapeMismatch(f"there are {a.size} classes in one sample and {b.size} in the other")
    n, m = int(a.sum()), int(b.sum())
    if n == 0 or m == 0:
        raise EmptyData("class balances are compared of samples that are not empty")
    both = a + b
    a, b, both = a[both > 0], b[both > 0], both[both > 0]
    source = numpy_generator(generator)
    drawn = source.multivariate_hypergeometric(both, m, size=DRAWS, method="marginals")
    expected = both * m / (n + m)

    def statistic(count: Any) -> Any:
        return ((count - expected) ** 2 / expected).sum(-1)

    def distance(count: Any) -> Any:
        return np.abs(count / m - (both - count) / n).sum(-1) / 2

    found = float(distance(b))
    # rounding must not make equal counts larger than themselves
    as_large = int((statistic(drawn) >= statistic(b) * (1 - 1e-12)).sum())
    return BalanceShift(
        found,
        max(0.0, found - float(distance(drawn).mean())),
        (1 + as_large) / (1 + DRAWS),
    )


@dataclass(frozen=True, slots=True)
class ColumnShift:
    """How every column of a second sample differs from the first, of samples with the same labels.

    Attributes:
        columns: `[k]`, the numbers of the columns that vary in both samples.
        shift: `[k]`, difference of the means in standard deviations of the first sample.
        shift_p_value: `[k]`, two-sided, by Welch's t.
        ratio: `[k]`, standard deviation of the second sample over that of the first.
        ratio_p_value: `[k]`, two-sided, normal for the logarithm, with the kurtosis seen.
    """

    columns: Tensor
    shift: Tensor
    shift_p_value: Tensor
    ratio: Tensor
    ratio_p_value: Tensor


def column_shift(
    train: Tensor, test: Tensor, labels: tuple[Tensor, Tensor] | None = None
) -> ColumnShift:
    r"""Location and scale of every column of two samples `[n, ...]` and `[m, ...]`.

    With class labels, means and spreads are compared class by class, and the classes weighted by
    their shares of the second sample, so that another class balance alone shifts nothing. A p-value
    that is twice the median of the columns' is valid for all of them at once, however they depend
    on each other.

    Cost: two passes over the data, in parts.

    >>> x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> found = column_shift(x[:200], 255 * x[200:])
    >>> found.ratio.median() > 200, found.ratio_p_value.max() < 1e-3
    (tensor(True), tensor(True))
    """
    one, two = (x.detach().reshape(len(x), -1) for x in (train, test))
    if one.shape[1] != two.shape[1]:
        raise ShapeMismatch(f"one sample has {one.shape[1]} columns and the other {two.shape[1]}")
    y_one, y_two = _classes(one, two, labels)
    kinds = int(max(y_one.max(), y_two.max())) + 1
    n_of, m_of = (torch.bincount(y, minlength=kinds) for y in (y_one, y_two))
    both = (n_of > 1) & (m_of > 1)  # of other classes there is nothing to compare
    n_of, m_of = n_of * both, m_of * both  # samples of the others weigh nothing from here on
    m = int(m_of.sum())
    if m < 4:
        raise EmptyData("the spread of columns needs two samples of a class in both data sets")
    # all moments are those of the first sample with the class shares of the second
    share = m_of.double() / m
    inverse = float((share.square() / n_of.clamp(min=1)).sum())
    means, means_test = _class_means(one, y_one, n_of), _class_means(two, y_two, m_of)
    variance, fourth = _moments(one, y_one, means, share, n_of)
    variance_test, fourth_test = _moments(two, y_two, means_test, share, m_of)
    eps = torch.finfo(train.dtype if train.is_floating_point() else torch.float64).eps
    size = means.abs().amax(0)
    varies = (variance > (8 * eps * size) ** 2) & (variance_test > (8 * eps * size) ** 2)
    columns = varies.nonzero().flatten()
    difference = (share @ (means_test - means))[columns]
    variance, variance_test = variance[columns], variance_test[columns]
    error = (variance * inverse + variance_test / m).sqrt()
    peaked = (fourth[columns] / variance.square()).clamp(min=1)
    peaked_test = (fourth_test[columns] / variance_test.square()).clamp(min=1)
    ratio = (variance_test / variance).sqrt()
    # a variance has relative variance (kurtosis - 1) / n, a logarithm of its root a quarter of it
    least = inverse + 1 / m
    wobble = ((peaked - 1) * inverse + (peaked_test - 1) / m).clamp(min=least).sqrt() / 2
    degrees = min(1 / inverse, m - int(both.sum()))
    t = (difference / error).abs().cpu().numpy()
    z = (ratio.log() / wobble).abs().cpu().numpy()
    return ColumnShift(
        columns,
        difference / variance.sqrt(),
        torch.as_tensor(2 * special.stdtr(max(1.0, degrees), -t)),
        ratio,
        torch.as_tensor(2 * special.ndtr(-z)),
    )


def _classes(
    one: Tensor, two: Tensor, labels: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    if labels is not None:
        y_one, y_two = (y.reshape(len(y)).long() for y in labels)
        kinds = int(max(y_one.max(), y_two.max())) + 1
        if kinds * one.shape[1] <= MEANS:
            return y_one, y_two
    return (
        torch.zeros(len(one), dtype=torch.long, device=one.device),
        torch.zeros(len(two), dtype=torch.long, device=two.device),
    )


def _parts(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    start = 0
    for rows in parts(x):
        yield rows, y[start : start + len(rows)]
        start += len(rows)


def _class_means(x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    total = torch.zeros(len(counts), x.shape[1], dtype=torch.float64, device=x.device)
    for rows, of in _parts(x, y):
        total.index_add_(0, of, rows.double())
    return torch.where(counts[:, None] > 0, total / counts.clamp(min=1)[:, None], 0.0)


def _moments(
    x: Tensor, y: Tensor, means: Tensor, share: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Second and fourth moments about the class means, the classes weighted by their shares."""
    second = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    fourth = torch.zeros_like(second)
    for rows, of in _parts(x, y):
        square = (rows.double() - means[of]).square()
        second += (share / (counts - 1).clamp(min=1))[of] @ square
        fourth += (share / counts.clamp(min=1))[of] @ square.square()
    return second, fourth
