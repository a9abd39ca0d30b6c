r"""How many pieces and regions a network of given widths can have.

Sources: Foundations of Deep Learning, section 4.2.1; Mathematical Aspects of Deep Learning,
sections 1.3.2, 1.3.3 and 3.7; Deep Learning (notes), section 2.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchtheory.core.checks import whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput
from torchtheory.expressivity.hyperplanes import zaslavsky_bound


def most_pieces(hidden: Sequence[int]) -> int:
    r"""A ReLU network with hidden widths $n_\ell$ has at most $\prod_\ell(n_\ell+1)$
    affine pieces on a line.

    >>> most_pieces([4]), most_pieces([4, 4])
    (5, 25)
    """
    return math.prod(n + 1 for n in whole_numbers(hidden, "hidden", fewest=0))


def doubling_bound(hidden: Sequence[int]) -> int:
    r"""The bound $2^L\prod_{\ell\le L}m_\ell$ that comes from counting a ReLU as doubling
    the pieces and a sum as adding them. Never below `most_pieces`.

    >>> doubling_bound([4]), doubling_bound([4, 4])
    (8, 64)
    """
    return math.prod(2 * m for m in whole_numbers(hidden, "hidden", fewest=0))


def even_bound(units: int, depth: int) -> float:
    r"""$(2m/L)^L$: `doubling_bound` at its largest over all widths that sum to
    $m$ (the geometric mean is below the arithmetic one).

    >>> even_bound(8, 2)
    64.0
    """
    return math.pow(
        2 * whole_number(units, "units", least=1) / whole_number(depth, "depth", least=1), depth
    )


def least_units(pieces: int, depth: int) -> float:
    r"""Hidden units that `depth` hidden layers need for so many pieces on a line.

    From $\prod(n_\ell+1)\ge p$: $\sum_\ell n_\ell\ge L(p^{1/L}-1)$.

    >>> least_units(9, 1), least_units(9, 2)
    (8.0, 4.0)
    """
    whole_number(pieces, "pieces", least=1)
    return whole_number(depth, "depth", least=1) * (math.pow(pieces, 1 / depth) - 1)


def most_regions(inputs: int, hidden: Sequence[int]) -> int:
    r"""Activation regions of a ReLU network: at most
    $\prod_\ell\sum_{j\le\min(d,n_1,\dots,n_\ell)}\binom{n_\ell}{j}$.

    >>> most_regions(2, [4]), most_regions(2, [4, 4]), most_regions(1, [3, 3])
    (11, 121, 16)
    """
    rank, total = whole_number(inputs, "inputs", least=1), 1
    for n in whole_numbers(hidden, "hidden", fewest=0):
        rank = min(rank, n)
        total *= zaslavsky_bound(n, rank)
    return total


def montufar_bound(inputs: int, width: int, depth: int) -> int:
    r"""Some network with `depth` hidden layers of `width` units has at least
    $\lfloor m/n\rfloor^{n(L-1)}\sum_{j\le n}\binom mj$ regions, $m\ge n$.

    >>> montufar_bound(2, 4, 2), montufar_bound(2, 4, 3), montufar_bound(1, 3, 2)
    (44, 176, 12)
    """
    whole_number(inputs, "inputs", least=1), whole_number(depth, "depth", least=1)
    if width < inputs:
        raise InvalidInput(f"the width {width} must be at least the number of inputs, {inputs}")
    folds = (width // inputs) ** (inputs * (depth - 1))
    return int(folds * zaslavsky_bound(width, inputs))


@dataclass(frozen=True)
class RegionBounds:
    """What is known of the largest number of regions of an architecture.

    Attributes:
        lower: some weights reach at least this (Montúfar et al.).
        upper: no weights have more (product of Zaslavsky's counts).
        power: the coarse upper bound $n^{Ld}$ times a constant, here
            $(\\sum_{j\\le d}\\binom nj)^L$.
        shallow: the most of one hidden layer with as many units.
    """

    lower: int
    upper: int
    power: int
    shallow: int


def region_bounds(inputs: int, width: int, depth: int) -> RegionBounds:
    """Bounds for `depth` hidden layers of `width` units each.

    >>> region_bounds(2, 4, 2)
    RegionBounds(lower=44, upper=121, power=121, shallow=37)
    """
    return RegionBounds(
        montufar_bound(inputs, width, depth),
        most_regions(inputs, [width] * depth),
        zaslavsky_bound(width, inputs) ** depth,
        zaslavsky_bound(width * depth, inputs),
    )


def curvature_floor(curvature: float, length: float, pieces: int) -> float:
    r"""No function with `pieces` affine pieces is closer than $\kappa\ell^2/(16p^2)$ to one
    whose second derivative is at least $\kappa$ on an interval of length $\ell$.

    Reached by $x^2$: $1/(8p^2)$ on the unit interval.

    >>> curvature_floor(2.0, 1.0, 1)
    0.125
    """
    if not (0 < curvature < math.inf and 0 < length < math.inf):
        raise InvalidInput(f"curvature and length must be positive, not {curvature} and {length}")
    return curvature * length**2 / (16 * whole_number(pieces, "pieces", least=1) ** 2)


def sawtooth_floor(teeth: int, pieces: int) -> float:
    r"""The $L_1$ distance on [0, 1] of the sawtooth with $2^p$ pieces from any function with
    that many affine pieces is at least $\tfrac14-(\text{pieces}-1)2^{-p-1}$.

    A tooth $f$ of two pieces has $\int\operatorname{sign}(f-\tfrac12)\,g=0$ for every affine $g$,
    so that no affine function is nearer to it than $\int|f-\tfrac12|=2^{-p-1}$; and where a piece
    of $g$ ends, it spoils one of the $2^{p-1}$ teeth at most. The source counts triangles on one
    side of the line $\tfrac12$ and gets $\tfrac12(2^p-2\cdot\text{pieces})2^{-p-2}$, half as much
    at most.

    Args:
        teeth: $p$.
        pieces: of the approximation.

    >>> sawtooth_floor(6, 1), sawtooth_floor(6, 17)
    (0.25, 0.125)
    """
    whole_number(teeth, "teeth", least=1), whole_number(pieces, "pieces", least=1)
    return max(0.0, 0.25 - (pieces - 1) / math.pow(2.0, teeth + 1))


def alternation_floor(points: int, pieces: int) -> float:
    r"""On $N$ points with alternating labels, a threshold of a function with $t$
    affine pieces has an error of at least $\tfrac12-\tfrac{t+1}{2N}$.

    >>> alternation_floor(16, 5)
    0.3125
    """
    whole_number(points, "points", least=1), whole_number(pieces, "pieces", least=1)
    return max(0.0, 0.5 - (pieces + 1) / (2 * points))
