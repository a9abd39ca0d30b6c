r"""How many labelings of a point set can a hyperplane produce?

For $s$ points in general position in $\mathbb R^n$ and hyperplanes through the origin
Cover's count is $C(s,n)=2\sum_{i=0}^{n-1}\binom{s-1}{i}$, whatever the points; for any
other point set the labelings can be listed, with weights for each of them.
Source: notes "Deep Learning", Theorem 1.4 (Cover 1965).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.checks import as_points, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.separability import Array, separate

#: Labelings are kept as the bits of a signed 64-bit integer.
MOST_POINTS = 62

#: Unit vectors closer to dependent than this count as dependent, or parallel.
_TOLERANCE = 1e-9


def cover_count(samples: int, dimension: int, *, bias: bool = False) -> int:
    r"""Cover's count $C(s,n)=2\sum_{i=0}^{n-1}\binom{s-1}{i}$, exactly.

    The number of labelings of $s$ points in general position in $\mathbb R^n$ by
    $\operatorname{sgn}(w^\top x)$; a bias counts as one more dimension. It is also the
    number of regions into which $s$ hyperplanes through the origin cut the space. It
    satisfies $C(s+1,n)=C(s,n)+C(s,n-1)$.

    >>> [cover_count(s, n) for s, n in [(4, 2), (4, 3), (5, 3), (6, 3), (8, 4)]]
    [8, 14, 22, 32, 128]
    """
    s = whole_number(samples, "samples", least=1)
    n = whole_number(dimension, "dimension", least=1) + bool(bias)
    total, term = 0, 1
    for i in range(min(n, s)):
        total += term
        term = term * (s - 1 - i) // (i + 1)
    return 2 * total


def cover_fraction(samples: int, dimension: int, *, bias: bool = False) -> float:
    r"""Share $C(s,n)/2^s=P(\mathrm{Bin}(s-1,\tfrac12)\le n-1)$ of all labelings.

    Equal to 1 up to $s=n$, to ½ at $s=2n$, and soon to 0 beyond.

    >>> cover_fraction(40, 20)
    0.5
    """
    return cover_count(samples, dimension, bias=bias) / (1 << samples)


def capacity_curve(dimension: int, *, largest_load: float = 4.0) -> tuple[Tensor, Tensor]:
    """Cover's fraction against the load `s/n`, for `s = 1, 2, ...` up to `largest_load`.

    >>> load, fraction = capacity_curve(2, largest_load=2.0)
    >>> load, fraction
    (tensor([0.5000, 1.0000, 1.5000, 2.0000], dtype=torch.float64),
     tensor([1.0000, 1.0000, 0.7500, 0.5000], dtype=torch.float64))
    """
    n = whole_number(dimension, "dimension", least=1)
    if not (math.isfinite(largest_load) and largest_load * n >= 1):
        raise InvalidInput(f"largest_load must be a number >= 1/dimension, not {largest_load}")
    counts = range(1, math.floor(largest_load * n) + 1)
    load = torch.tensor([s / n for s in counts], dtype=torch.float64)
    return load, torch.tensor([cover_fraction(s, n) for s in counts], dtype=torch.float64)


def in_general_position(x: Tensor, *, bias: bool = False) -> bool:
    r"""Whether every $\min(s,n)$ of the points are linearly independent.

    Points are normalized first; a subset counts as dependent when its least singular value is
    below $10^{-9}$. $O(\binom sn n^3)$.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> in_general_position(x), in_general_position(torch.cat([x, 2 * x[:1]]))
    (True, False)
    """
    z = _unit_points(x, bias)
    if z is None:
        return False
    size = min(z.shape)
    for chunk in _chunks(itertools.combinations(range(len(z)), size), 20_000):
        if np.linalg.svd(z[np.array(chunk)], compute_uv=False)[:, -1].min() <= _TOLERANCE:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Dichotomies:
    """The labelings of a point set that hyperplanes produce.

    Attributes:
        labels: `[count, s]` of ±1, in ascending order of their bits.
        weights: `[count, n]` (the bias last, where there is one), one hyperplane for each.
    """

    labels: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def realizable_dichotomies(x: Tensor, *, bias: bool = False) -> Dichotomies:
    r"""Every labeling of the rows of `x` by a hyperplane, with weights that produce it.

    This is the proof of Cover's theorem run as an algorithm, one point $x_k$ at a time. A
    labeling of the first $k-1$ points splits in two iff a hyperplane that contains
    $x_k$ produces it, i.e. iff it is a labeling of their projections along $x_k$,
    a problem with one dimension less; otherwise its own weights say on which side $x_k$
    falls. The points may be in any position. About $\binom s{n-1}$ steps on arrays of at
    most `count` rows; no linear programs.

    Args:
        x: `[s, n]`, at most 62 points.
        bias: hyperplanes that need not pass through the origin.

    Raises:
        NotConverged: if the points are so nearly degenerate that weights fail their labeling.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> len(realizable_dichotomies(corners, bias=True))      # all 16 but xor and its negation
    14
    """
    x = as_points(x)
    if len(x) > MOST_POINTS:
        raise InvalidInput(f"at most {MOST_POINTS} points can be enumerated, not {len(x)}")
    z = _unit_points(x, bias)
    if z is None:
        # a point at the origin is on no side of any hyperplane
        return Dichotomies(x.new_zeros(0, len(x)), x.new_zeros(0, x.shape[1] + bool(bias)))
    codes, weights = _cells(z)
    order = np.argsort(codes)
    labels = 2.0 * ((codes[order, None] >> np.arange(len(x))) & 1) - 1
    weights = weights[order]
    if not (np.sign(weights @ z.T) == labels).all():
        raise NotConverged("the points are degenerate up to rounding; move them a little")
    return Dichotomies(torch.from_numpy(labels).to(x), torch.from_numpy(weights).to(x))


def count_dichotomies(x: Tensor, *, bias: bool = False) -> int:
    """How many labelings of the rows of `x` hyperplanes produce; see `realizable_dichotomies`.

    >>> count_dichotomies(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]))   # not 6: parallel
    4
    """
    return len(realizable_dichotomies(x, bias=bias))


def count_dichotomies_by_programs(x: Tensor, *, bias: bool = False) -> int:
    r"""The same count by deciding each labeling with a linear program: slow, and independent.

    Half of the $2^s$ are decided; a labeling is realizable iff its negation is.

    >>> count_dichotomies_by_programs(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]))
    4
    """
    x = as_points(x)
    if len(x) > 20:
        raise InvalidInput(f"2^{len(x)} linear programs are too many; use count_dichotomies")
    rest = itertools.product((-1.0, 1.0), repeat=len(x) - 1)
    found = (separate(x, x.new_tensor([1.0, *labels]), bias=bias) for labels in rest)
    return 2 * sum(1 for answer in found if answer)


def _unit_points(x: Tensor, bias: bool) -> Array | None:
    """The points as unit vectors, or None when one of them is the origin."""
    x = as_points(x)
    z = np.asarray((homogeneous(x) if bias else x).double().cpu().numpy())
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    return z / lengths if lengths.all() else None


def _cells(z: Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Array]:
    """Codes (bit k: the sign at row k) and weights of all labelings of the unit rows `z`."""
    first = z[0]
    codes = np.array([1, 0], dtype=np.int64)
    weights = np.stack([first, -first])
    for k in range(1, len(z)):
        new = z[k]
        sides = weights @ new
        flat = z[:k] - np.outer(z[:k] @ new, new)
        lengths = np.linalg.norm(flat, axis=1, keepdims=True)
        if (lengths <= _TOLERANCE).any():
            # an earlier point is parallel to this one: its sign decides, nothing splits
            twin = int(np.argmin(lengths))
            sides = np.where((codes >> twin) & 1, 1.0, -1.0) * np.sign(z[twin] @ new)
            codes = codes | ((sides > 0).astype(np.int64) << k)
            continue
        split, flat_weights = _cells(flat / lengths)
        flat_weights = flat_weights - np.outer(flat_weights @ new, new)
        # from inside the hyperplane, step to either side without crossing another one
        along = np.abs(z[:k] @ new) + 1e-300
        step = 0.5 * (np.abs(flat_weights @ z[:k].T) / along).min(1, keepdims=True)
        step = np.minimum(step, np.linalg.norm(flat_weights, axis=1, keepdims=True))
        kept = ~np.isin(codes, split)
        codes = np.concatenate(
            [codes[kept] | ((sides[kept] > 0).astype(np.int64) << k), split, split | (1 << k)]
        )
        weights = np.concatenate(
            [weights[kept], flat_weights - step * new, flat_weights + step * new]
        )
        weights = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return codes, weights


def _chunks(items: Iterator[tuple[int, ...]], size: int) -> Iterator[list[tuple[int, ...]]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk
