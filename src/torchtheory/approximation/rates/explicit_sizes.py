r"""Sizes with their constants: what a construction really costs for an error, without building it.

Units are hidden units, layers affine maps, the last one included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtheory.approximation.barron.sampled_networks import units_for_error
from torchtheory.approximation.piecewise.boxes import folklore_size
from torchtheory.approximation.piecewise.yarotsky import cells_and_levels
from torchtheory.core.checks import positive_number


@dataclass(frozen=True, slots=True)
class CountedSize:
    """A number of units, weights or parameters, and of layers where the proof fixes them."""

    size: int
    layers: int | None = None


def interpolant_units(error: float, *, lipschitz: float = 1.0, smooth: bool = False) -> CountedSize:
    r"""Units of the broken line within $\epsilon$ on $[0,1]$.

    $\lceil\rho/2\epsilon\rceil$ for a Lipschitz function; $\lceil\sqrt{\rho/8\epsilon} \rceil$
    where `smooth`, and $\rho$ bounds the second derivative. As many steps as in
    the first case serve a staircase with values from the middles.

    >>> interpolant_units(0.01).size, interpolant_units(0.01, smooth=True).size
    (50, 4)
    """
    positive_number(error, "error")
    ratio = positive_number(lipschitz, "lipschitz") / (8 * error if smooth else 2 * error)
    pieces = math.sqrt(ratio) if smooth else ratio
    return CountedSize(max(1, math.ceil(pieces - 1e-9)), 2)


def box_units(error: float, dimension: int, lipschitz: float) -> CountedSize:
    r"""Units of the boxes with mean error $\epsilon$: half for the cells, half for the ramps.

    >>> box_units(0.1, 2, 1.0).size                        # 10 cells a side: 100 + 2 * 31
    162
    """
    return CountedSize(folklore_size(lipschitz, error / 2, dimension).shared_units, 3)


def barron_units(error: float, barron_constant: float, radius: float) -> CountedSize:
    r"""$\lceil(2rC/\epsilon)^2\rceil$ threshold units for the $L_2$ error
    $\epsilon$.

    >>> barron_units(0.1, 1.0, 1.0).size
    400
    """
    return CountedSize(units_for_error(error**2, barron_constant, radius), 2)


def yarotsky_units(error: float, smoothness: int, dimension: int) -> CountedSize:
    r"""Units of Yarotsky's network for the unit ball of $W^{n,\infty}$, as it is built.

    `smooth_network` has at each of $(N+1)^d$
    centers the $\binom{j+d-1}{d-1}$ monomials of degree $j<n$, each times $d$
    trapezoids of 4 ReLUs. The $k=d+j$ factors are multiplied in a binary tree: a product of
    two is $4+6\ell$ units in $\ell+1$ layers, a factor without partner two units a
    layer, and so is the sum of a monomial whose tree is lower than the highest. The number is that
    of a function with no derivative 0 at any center; others need fewer.

    >>> yarotsky_units(0.1, 1, 1)             # N = 14 and no product: 15 trapezoids
    CountedSize(size=60, layers=2)
    """
    cells, levels = cells_and_levels(smoothness, dimension, error)
    d, patches = dimension, (cells + 1) ** dimension
    trees = [_tree_of_products(d + j, levels) for j in range(smoothness)]
    depth = 2 + max(hidden for _, hidden in trees)
    units = 0
    for j, (products, hidden) in enumerate(trees):
        monomials = math.comb(j + d - 1, d - 1)
        units += monomials * (patches * (4 * d + 2 * j + products) + 2 * (depth - 2 - hidden))
    return CountedSize(units, depth)


def _tree_of_products(factors: int, levels: int) -> tuple[int, int]:
    """Units and hidden layers of a binary tree of approximate products."""
    units = rounds = 0
    while factors > 1:
        units += (factors // 2) * (4 + 6 * levels) + (factors % 2) * 2 * (levels + 1)
        factors = (factors + 1) // 2
        rounds += 1
    return units, rounds * (levels + 1)
