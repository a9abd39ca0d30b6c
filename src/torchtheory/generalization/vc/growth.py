r"""What a class of classifiers says on finitely many points, and how fast that grows.

The restriction of a class to $z_1,\dots,z_n$ is the set
$\mathcal F_z=\{(f(z_1),\dots,f(z_n)):f\in\mathcal F\}\subset\{\pm1\}^n$, here a matrix
`[count, n]` with one labeling per row, and $S_{\mathcal F}(n)=\sup_z|\mathcal F_z|$ is the
growth function. A class is given by its restriction, a function from points to that matrix.
Sources: Foundations of Deep Learning, section 8.3; Mathematical Aspects of Deep Learning, 1.2.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.generalization.vc.hypothesis_sets import labelings_with_changes
from torchtheory.neurons.dichotomies import cover_count, realizable_dichotomies

#: From points `[n, d]` to the different labelings `[count, n]` a class gives them.
Restriction = Callable[[Tensor], Tensor]


def different_labelings(values: Tensor) -> Tensor:
    r"""The different rows of signs among functions `values[h, n]`; 0 counts as $+1$.

    For a network with parameters drawn at random this is a part of its restriction, and the number
    of rows a lower bound of its growth function. $O(hn\log h)$.

    >>> different_labelings(torch.tensor([[0.5, -2.0], [3.0, -1.0], [0.0, 1.0]]))
    tensor([[ 1., -1.],
            [ 1.,  1.]])
    """
    if values.ndim != 2:
        raise ShapeMismatch(f"functions on points are [h, n], not {list(values.shape)}")
    if values.numel() == 0:
        raise EmptyData("there is no function or no point")
    signs = torch.where(values >= 0, 1.0, -1.0).to(
        values.dtype if values.is_floating_point() else torch.float64
    )
    found: Tensor = torch.unique(signs, dim=0)
    return found


def thresholds(x: Tensor) -> Tensor:
    r"""All $x\mapsto\operatorname{sgn}(x-t)$ on `x[n, 1]`: at most $n+1$ labelings.

    >>> len(thresholds(torch.tensor([[0.3], [0.1], [0.7]])))
    4
    """
    value, place = _on_a_line(x)
    steps = torch.arange(len(value) + 1)[:, None] <= torch.arange(len(value))
    return _back(steps, place, x)


def signed_thresholds(x: Tensor) -> Tensor:
    r"""All $x\mapsto\pm\operatorname{sgn}(x-t)$ on `x[n, 1]`: at most $2n$.

    >>> len(signed_thresholds(torch.tensor([[0.3], [0.1], [0.7]])))
    6
    """
    value, place = _on_a_line(x)
    return _back(labelings_with_changes(len(value), min(1, len(value) - 1)) > 0, place, x)


def intervals(x: Tensor) -> Tensor:
    r"""$+1$ on an interval and $-1$ elsewhere, on `x[n, 1]`: at most
    $n(n+1)/2+1$.

    >>> len(intervals(torch.tensor([[0.3], [0.1], [0.7]])))
    7
    """
    value, place = _on_a_line(x)
    n = len(value)
    ends = torch.tensor([(0, 0), *combinations(range(n + 1), 2)])
    where = torch.arange(n)
    return _back((where >= ends[:, :1]) & (where < ends[:, 1:]), place, x)


def rectangles(x: Tensor) -> Tensor:
    r"""$+1$ in a box with sides along the axes, $-1$ outside, on `x[n, d]`.

    The labelings are the intersections of an interval for every coordinate.
    $O((n^2/2)^d)$ at most.

    >>> len(rectangles(torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])))
    16
    """
    x = _points(x)
    found = intervals(x[:, :1])
    for j in range(1, x.shape[1]):
        along = intervals(x[:, j : j + 1])
        if len(found) * len(along) > 1 << 20:
            raise InvalidInput(f"{len(x)} points in {x.shape[1]} dimensions are too many to list")
        both = torch.minimum(found[:, None], along[None]).reshape(-1, len(x))
        found = torch.unique(both, dim=0)
    return found


def halfspaces(x: Tensor) -> Tensor:
    r"""All $x\mapsto\operatorname{sgn}(w^\top x+b)$ on `x[n, d]`, points in any position.

    >>> square = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> len(halfspaces(square))                               # all but xor and its negation
    14
    """
    return realizable_dichotomies(_points(x), bias=True).labels


def homogeneous_halfspaces(x: Tensor) -> Tensor:
    r"""All $x\mapsto\operatorname{sgn}(w^\top x)$ on `x[n, d]` without a point at 0.

    >>> len(homogeneous_halfspaces(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])))
    6
    """
    return realizable_dichotomies(_points(x)).labels


def log_labelings(restriction: Restriction, samples: Tensor) -> Tensor:
    r"""$\ln|\mathcal F_z|$ of independent samples $z$; its mean is the VC entropy.

    The VC entropy $\mathbb E\ln|\mathcal F_z|$ depends on the distribution and is at most
    $\ln S_{\mathcal F}(n)$, with equality where the distribution has a density and every sample of
    points in general position has the same number of labelings (Foundations of Deep Learning,
    Remark 7).

    Args:
        restriction: of the class.
        samples: `[trials, n, d]`.

    Returns:
        `[trials]`.

    >>> two = torch.tensor([[[0.1], [0.1]], [[0.1], [0.7]]])          # a repeated point, and two
    >>> log_labelings(thresholds, two).exp().round().tolist()
    [2.0, 3.0]
    """
    if samples.ndim != 3:
        raise ShapeMismatch(f"samples are [trials, n, d], not {list(samples.shape)}")
    counts = [len(torch.unique(restriction(z), dim=0)) for z in samples]
    return torch.tensor(counts, dtype=torch.float64).log()


def growth_thresholds(n: int) -> int:
    r"""$n+1$.

    >>> growth_thresholds(3)
    4
    """
    return whole_number(n, "n", least=1) + 1


def growth_signed_thresholds(n: int) -> int:
    r"""$2n$.

    >>> growth_signed_thresholds(3)
    6
    """
    return 2 * whole_number(n, "n", least=1)


def growth_intervals(n: int) -> int:
    r"""$\binom{n+1}2+1$.

    >>> growth_intervals(3)
    7
    """
    return math.comb(whole_number(n, "n", least=1) + 1, 2) + 1


def growth_halfspaces(n: int, dimension: int, *, bias: bool = True) -> int:
    r"""$2\sum_{i\le d}\binom{n-1}i$ with a bias, $2\sum_{i<d}\binom{n-1}i$ without.

    Points in general position attain it (Cover), see
    `torchtheory.neurons.dichotomies.cover_count`.

    >>> [growth_halfspaces(n, 2) for n in (1, 2, 3, 4, 5)]
    [2, 4, 8, 14, 22]
    """
    return cover_count(n, dimension, bias=bias)


def sauer_bound(n: int, dimension: int) -> int:
    r"""Sauer-Shelah: a class of VC dimension $h$ has
    $S(n)\le\sum_{i=0}^h\binom ni$, exactly $2^n$ up to $n=h$.

    Source: Foundations of Deep Learning, Lemma 61.

    >>> [sauer_bound(n, 3) for n in (2, 3, 4, 5)]
    [4, 8, 15, 26]
    """
    n, h = whole_number(n, "n", least=0), whole_number(dimension, "dimension", least=0)
    return sum(math.comb(n, i) for i in range(min(n, h) + 1))


def log_sauer_polynomial(n: int, dimension: int) -> float:
    r"""$h\log(en/h)$, the logarithm of an upper bound of `sauer_bound` for
    $n\ge h\ge1$.

    >>> math.log(sauer_bound(100, 3)) <= log_sauer_polynomial(100, 3)
    True
    """
    h = whole_number(dimension, "dimension", least=1)
    if n < h:
        raise InvalidInput(f"(en/h)^h bounds the growth from n = h = {h} on, not at n = {n}")
    return h * (1 + math.log(n / h))


def growth_on(hypotheses: Tensor, size: int) -> int:
    r"""$\max|\mathcal F_z|$ over all `size` of the points of a finite class `[h, k]`.

    Exhaustive: $O(\binom k{\text{size}}\,h)$.

    >>> from torchtheory.generalization.vc.hypothesis_sets import labelings_with_changes
    >>> [growth_on(labelings_with_changes(5, 1), m) for m in (1, 2, 3)]
    [2, 4, 6]
    """
    table = _table(hypotheses)
    if not 1 <= size <= table.shape[1]:
        raise InvalidInput(f"take 1 to {table.shape[1]} of the points, not {size}")
    subsets = combinations(range(table.shape[1]), size)
    return max(len(torch.unique(_codes(table[:, list(s)]))) for s in subsets)


def shatters(restriction: Restriction, x: Tensor) -> bool:
    r"""Whether all $2^n$ labelings of the points `x[n, d]` occur.

    >>> shatters(intervals, torch.tensor([[0.0], [1.0]]))
    True
    >>> shatters(intervals, torch.tensor([[0.0], [1.0], [2.0]]))
    False
    """
    return len(restriction(x)) == 1 << len(x)


def shattered_subsets(hypotheses: Tensor, size: int) -> list[tuple[int, ...]]:
    r"""The sets of `size` points that a finite class `[h, k]` shatters, all tried.

    >>> from torchtheory.generalization.vc.hypothesis_sets import labelings_with_changes
    >>> shattered_subsets(labelings_with_changes(3, 1), 2)
    [(0, 1), (0, 2), (1, 2)]
    """
    table = _table(hypotheses)
    if not 0 <= size <= table.shape[1]:
        raise InvalidInput(f"take 0 to {table.shape[1]} of the points, not {size}")
    if size == 0:
        return [()]
    wanted = 1 << size
    if len(table) < wanted:
        return []
    subsets = combinations(range(table.shape[1]), size)
    return [s for s in subsets if len(torch.unique(_codes(table[:, list(s)]))) == wanted]


def vc_dimension_on(hypotheses: Tensor) -> int:
    r"""VC dimension of a finite class `[h, k]` on its $k$ points, by exhaustion.

    The largest shattered subset; subsets of shattered sets are shattered, so the search stops at
    the first size without one. For a class on all of space it is a lower bound, with equality when
    the points hold a largest shattered set.

    >>> from torchtheory.generalization.vc.hypothesis_sets import labelings_with_changes
    >>> vc_dimension_on(labelings_with_changes(7, 3))
    4
    """
    table = _table(hypotheses)
    size = 0
    while size < table.shape[1] and shattered_subsets(table, size + 1):
        size += 1
    return size


def _table(hypotheses: Tensor) -> Tensor:
    if hypotheses.ndim != 2:
        raise ShapeMismatch(f"a finite class is [functions, points], not {list(hypotheses.shape)}")
    if hypotheses.numel() == 0:
        raise EmptyData(
            f"the class has no function or no point (the shape is {list(hypotheses.shape)})"
        )
    if not bool((hypotheses.abs() == 1).all()):
        raise LabelOutOfRange(
            "the values of a classifier are -1 and 1: "
            f"{first_entry(hypotheses, 'hypotheses', ~(hypotheses.abs() == 1))}"
        )
    if hypotheses.shape[1] > 62:
        raise InvalidInput(f"subsets of at most 62 points are tried, not {hypotheses.shape[1]}")
    return hypotheses


def _codes(labels: Tensor) -> Tensor:
    """The rows as whole numbers, bit j for column j."""
    return ((labels > 0).long() << torch.arange(labels.shape[1], device=labels.device)).sum(1)


def _points(x: Tensor) -> Tensor:
    if x.ndim != 2:
        raise ShapeMismatch(f"points must be [n, d], not {list(x.shape)}")
    if x.numel() == 0:
        raise EmptyData(f"there are no points (the shape is {list(x.shape)})")
    return x


def _on_a_line(x: Tensor) -> tuple[Tensor, Tensor]:
    """Different values in ascending order, and which of them each point has."""
    if _points(x).shape[1] != 1:
        raise ShapeMismatch(f"this class lives on a line: points are [n, 1], not {list(x.shape)}")
    value, place = torch.unique(x[:, 0], return_inverse=True)
    return value, place


def _back(positive: Tensor, place: Tensor, x: Tensor) -> Tensor:
    """Labelings of the ordered values as labelings of the points."""
    return torch.where(positive.to(x.device)[:, place], 1.0, -1.0).to(x)
