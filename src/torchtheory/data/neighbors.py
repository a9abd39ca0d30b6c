r"""Nearest neighbors of samples: what their labels have to do with their inputs.

Inputs are first made comparable, see `standardizer`; many columns are replaced by the leading
principal components of some rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.core.random import as_generator
from torchtheory.data.columns import NEARLY, common_share
from torchtheory.data.wide_rows import parts, rows_within

#: Dimensions kept, rows that the principal components are those of, and the largest size of a
#: standardized entry: columns that are nearly always 0 would else outweigh all the others.
DIMENSIONS, ROWS, LARGEST = 64, 512, 3.0

#: Most rows that scales are taken from; fewer of many columns.
SCALED = 5000

#: Permutations of the labels that mean and spread of a score by chance are taken from.
PERMUTATIONS = 200

#: Parts of the data that a cross-fitted prediction leaves out in turn.
FOLDS = 5


def standardizer(train: Tensor, generator: torch.Generator | int = 0) -> Callable[[Tensor], Tensor]:
    """A map of inputs `[n, ...]` to `[n, d]` that gives every entry of `train` its due weight.

    Columns of a table get mean 0 and variance 1, images and sequences one scale for all entries.
    Columns that nearly always have one value count by a sixth of their range, or of what is
    typical of their ranges: by their deviations, their few other values would outweigh everything
    else. No entry is larger than 3.

    Cost: two passes over at most 5,000 rows, of which no more than 64 MiB are copied.

    >>> x = torch.tensor([[1.0, 1000.0], [2.0, 1000.0], [3.0, 1000.0]])
    >>> standardizer(x)(x)
    tensor([[-1.,  0.],
            [ 0.,  0.],
            [ 1.,  0.]])
    """
    if len(train) < 2:
        raise EmptyData(f"a scale needs at least two samples, not {len(train)}")
    flat = train.detach().reshape(len(train), -1)
    most = rows_within(SCALED, flat.shape[1], least=2)
    if len(flat) > most:
        order = torch.randperm(len(flat), generator=as_generator(generator))[:most]
        flat = flat[order.to(flat.device)]
    center = _in_chunks(flat, lambda rows: rows.double().sum(0)) / len(flat)
    squares = _in_chunks(flat, lambda rows: (rows.double() - center).square().sum(0))
    scale = (squares / (len(flat) - 1)).sqrt()
    if train.ndim == 2 and train.is_floating_point():
        rare = common_share(flat, generator).to(scale.device) > NEARLY
        sixth = (flat.amax(0) - flat.amin(0)).double() / 6
        typical = sixth[rare].square().mean().sqrt() if bool(rare.any()) else sixth.new_zeros(())
        scale = torch.where(rare, torch.maximum(torch.maximum(scale, sixth), typical), scale)
    else:
        scale = scale.square().mean().sqrt().expand_as(scale)
    constant = scale <= 8 * torch.finfo(torch.float32).eps * center.abs()
    scale = torch.where(constant | (scale == 0), torch.inf, scale)

    def standardize(rows: Tensor) -> Tensor:
        z = (rows.reshape(len(rows), -1).double() - center) / scale
        return z.clamp(-LARGEST, LARGEST).float()

    return standardize


def comparable(train: Tensor, generator: torch.Generator | int = 0) -> Callable[[Tensor], Tensor]:
    """A map of inputs `[n, ...]` to `[n, p]`, `p` at most 64, in which distances mean something.

    It standardizes, and takes the leading principal components of 512 rows where there are more
    than 64 columns; of fewer rows where they are wide, so that no more than 64 MiB are copied.

    Cost: two passes over at most 5,000 rows, and the eigenvectors of a matrix of 512 rows.

    >>> x = torch.randn(100, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    >>> comparable(x)(x).shape
    torch.Size([100, 64])
    """
    source = as_generator(generator)
    standardize = standardizer(train, source)
    columns = train[0].numel()
    if columns <= DIMENSIONS:
        return standardize
    most = rows_within(ROWS, columns, least=DIMENSIONS + 1)
    some = torch.randperm(len(train), generator=source)[:most].to(train.device)
    z = torch.cat([standardize(part) for part in parts(train[some])])
    z -= z.mean(0)
    values, vectors = torch.linalg.eigh((z @ z.T).double())
    kept = values > 1e-9 * values[-1]
    vectors, values = vectors[:, kept][:, -DIMENSIONS:], values[kept][-DIMENSIONS:]
    directions = z.T @ (vectors / values.sqrt()).float()

    def project(rows: Tensor) -> Tensor:
        return torch.cat([standardize(part) @ directions for part in parts(rows)])

    return project


def _in_chunks(flat: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    total = torch.zeros(flat.shape[1], dtype=torch.float64, device=flat.device)
    for rows in parts(flat):
        total += part(rows)
    return total


def nearest(
    queries: Tensor, base: Tensor, count: int, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The nearest rows of `base [n, p]` to each of `queries [q, p]`, the nearest first.

    Args:
        count: how many of them.
        own: of each query the number of the row that it is itself, which does not count.

    Returns:
        distances `[q, count]` and numbers of rows `[q, count]`.

    Time `q n p`, memory `q n`: give queries in tiles.

    >>> base = torch.tensor([[0.0], [1.0], [3.0]])
    >>> nearest(base, base, 1, own=torch.arange(3))
    (tensor([[1.],
            [1.],
            [2.]]), tensor([[1],
            [0],
            [1]]))
    """
    if queries.shape[1:] != base.shape[1:]:
        raise ShapeMismatch(f"queries have {queries.shape[1]} columns and rows {base.shape[1]}")
    if len(base) < count + (own is not None):
        raise EmptyData(f"{len(base)} rows have no {count} neighbors of each")
    far = base.square().sum(1) - 2 * queries @ base.T
    if own is not None:
        far[torch.arange(len(queries)), own] = torch.inf
    index = far.topk(count, largest=False).indices
    # squares of differences of large numbers lose their digits, so the few found are computed anew
    distances = (queries[:, None] - base[index]).norm(dim=2)
    order = distances.argsort(dim=1, stable=True)
    return distances.gather(1, order), index.gather(1, order)


@dataclass(frozen=True, slots=True)
class LabelInformation:
    """How far labels follow from inputs, for one way of predicting them.

    Attributes:
        score: 0 where they do not, 1 where they do without exception: the agreement beyond chance
            of classes, the correlation of numbers.
        deviation: standard deviation of the score, were the labels independent of the inputs.
        p_value: probability of such a score or a larger one, were they independent.
    """

    score: float
    deviation: float
    p_value: float


def neighbor_information(
    labels: Tensor,
    neighbors: Tensor,
    others: Tensor,
    own: Tensor | None = None,
    generator: torch.Generator | int = 0,
) -> LabelInformation:
    r"""Do samples have the labels of their nearest neighbors? A permutation test.

    With the neighbors fixed, labels that are independent of the inputs can be permuted. For classes
    the score is $(a - c)/(1 - c)$ with the agreement $a$ and its mean $c$ over permutations. It is
    a mean over many samples, so its p-value is Student's, with the spread over permutations.

    Args:
        labels: `[q]` of the queries; whole numbers are classes.
        neighbors: `[q]`, the number of each query's nearest neighbor among `others`.
        others: `[n]` labels of the samples searched.
        own: `[q]`, the numbers of the queries where they are among `others` themselves; all labels
            are then permuted, else those of the queries.

    Cost: 200 permutations.

    >>> y = torch.arange(40) % 2
    >>> neighbor_information(y, (torch.arange(40) + 2) % 40, y, torch.arange(40)).p_value < 1e-6
    True
    """
    if len(labels) < 2:
        raise EmptyData(f"a permutation test needs at least two samples, not {len(labels)}")
    source, mixed = as_generator(generator), labels if own is None else others
    found, wanted = others[neighbors][None], labels[None]
    score = _agreements if not labels.is_floating_point() else _correlations
    real = float(score(found, wanted))
    drawn: list[Tensor] = []
    at_once = max(1, 2_000_000 // len(mixed))
    for start in range(0, PERMUTATIONS, at_once):
        count = min(at_once, PERMUTATIONS - start)
        order = torch.rand(count, len(mixed), generator=source).argsort(1).to(mixed.device)
        some = mixed[order]
        drawn.append(score(found, some) if own is None else score(some[:, neighbors], some[:, own]))
    null = torch.cat(drawn)
    mean, spread = float(null.mean()), float(null.std())
    classes = not labels.is_floating_point()
    middle, unit = (mean, 1 - mean) if classes else (0.0, 1.0)
    if unit <= 0 or spread == 0:
        return LabelInformation(0.0, 0.0, 1.0)
    p_value = float(stats.t.sf((real - mean) / spread, PERMUTATIONS - 1))
    return LabelInformation((real - middle) / unit, spread / unit, p_value)


def _agreements(found: Tensor, wanted: Tensor) -> Tensor:
    return (found == wanted).double().mean(1)


def _correlations(a: Tensor, b: Tensor) -> Tensor:
    """Of the rows of `[r, n]`; 0 where one of them does not vary."""
    a, b = (v.double() - v.double().mean(1, keepdim=True) for v in (a, b))
    size = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(size > 0, (a * b).sum(1) / size.clamp(min=1e-300), 0.0)


def linear_information(x: Tensor, labels: Tensor) -> LabelInformation:
    r"""Does a linear fit predict the labels of samples it was not fitted to?

    Ridge regression on the labels, or on their indicators, predicts each fifth of the samples from
    the other four. Of labels independent of the inputs it meets at most the share of the most
    frequent class; the p-value is binomial for classes, and that of a correlation for numbers.

    Args:
        x: `[n, p]`, comparable columns.
        labels: `[n]`; whole numbers are classes.

    Cost: $n p^2 + p^3$.

    >>> x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> linear_information(x, (x[:, 0] > 0).long()).p_value < 1e-9
    True
    """
    n = len(x)
    if n < 2 * FOLDS:
        raise EmptyData(f"a cross-fitted prediction needs at least {2 * FOLDS} samples, not {n}")
    classes = not labels.is_floating_point()
    columns = torch.cat([x.double(), torch.ones_like(x[:, :1]).double()], 1)
    if classes:
        kinds, codes = torch.unique(labels, return_inverse=True)
        targets = torch.nn.functional.one_hot(codes, len(kinds)).double()
    else:
        codes, targets = labels, labels.double()[:, None]
    fold = torch.arange(n, device=x.device) % FOLDS
    grams = [columns[fold == k].T @ columns[fold == k] for k in range(FOLDS)]
    moments = [columns[fold == k].T @ targets[fold == k] for k in range(FOLDS)]
    gram, moment = (
        sum(grams, torch.zeros_like(grams[0])),
        sum(moments, torch.zeros_like(moments[0])),
    )
    # a ridge of one variance per column, as if each had been seen once more
    ridge = torch.eye(len(gram), dtype=torch.float64, device=x.device)
    found = torch.empty_like(targets)
    for k in range(FOLDS):
        weights = torch.linalg.solve(gram - grams[k] + ridge, moment - moments[k])
        found[fold == k] = columns[fold == k] @ weights
    if not classes:
        r = float(_correlations(found[None, :, 0], labels[None]))
        deviation = (n - 2) ** -0.5
        return LabelInformation(r, deviation, float(stats.norm.sf(r / deviation)))
    right = int((found.argmax(1) == codes).sum())
    chance = float(torch.bincount(codes).max()) / n
    if chance == 1:
        return LabelInformation(0.0, 0.0, 1.0)
    deviation = (chance * (1 - chance) / n) ** 0.5
    p_value = float(stats.binom.sf(right - 1, n, chance))
    return LabelInformation((right / n - chance) / (1 - chance), deviation / (1 - chance), p_value)
