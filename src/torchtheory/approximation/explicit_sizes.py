r"""Sizes with their constants: what a construction really costs for an error, without building it.

Units are hidden units, layers affine maps, the last one included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtheory.approximation.boxes import folklore_size
from torchtheory.approximation.sampled_networks import units_for_error
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.labelled import at_least, positive


@dataclass(frozen=True, slots=True)
class CountedSize:
    """A number of units, weights or parameters, and of layers where the proof fixes them."""

    size: int
    layers: int | None = None


def interpolant_units(error: float, *, lipschitz: float = 1.0, smooth: bool = False) -> CountedSize:
    r"""Units of the broken line within :math:`\epsilon` on :math:`[0,1]`.

    :math:`\lceil\rho/2\epsilon\rceil` for a Lipschitz function; :math:`\lceil\sqrt{\rho/8\epsilon}
    \rceil` where ``smooth``, and :math:`\rho` bounds the second derivative. As many steps as in
    the first case serve a staircase with values from the middles.

    >>> interpolant_units(0.01).size, interpolant_units(0.01, smooth=True).size
    (50, 4)
    """
    positive(error, "error")
    ratio = positive(lipschitz, "lipschitz") / (8 * error if smooth else 2 * error)
    pieces = math.sqrt(ratio) if smooth else ratio
    return CountedSize(max(1, math.ceil(pieces - 1e-9)), 2)


def box_units(error: float, dimension: int, lipschitz: float) -> CountedSize:
    r"""Units of the boxes with mean error :math:`\epsilon`: half for the cells, half for the ramps.

    >>> box_units(0.1, 2, 1.0).size                        # 10 cells a side: 100 + 2 * 31
    162
    """
    return CountedSize(folklore_size(lipschitz, error / 2, dimension).shared_units, 3)


def barron_units(error: float, barron_constant: float, radius: float) -> CountedSize:
    r""":math:`\lceil(2rC/\epsilon)^2\rceil` threshold units for the :math:`L_2` error
    :math:`\epsilon`.

    >>> barron_units(0.1, 1.0, 1.0).size
    400
    """
    return CountedSize(units_for_error(error**2, barron_constant, radius), 2)


def taylor_grid(error: float, smoothness: int, dimension: int) -> tuple[int, float]:
    r"""Patches a side and accuracy of a product in Yarotsky's construction.

    :math:`N=\lceil(\frac{n!}{2^dd^n}\frac\epsilon2)^{-1/n}\rceil` and
    :math:`\delta=\epsilon/(2^{d+1}d^n(d+n))`; then the Taylor part and the products err by
    :math:`\epsilon/2` each.

    >>> taylor_grid(0.1, 1, 1)
    (40, 0.0125)
    """
    positive(error, "error")
    n, d = at_least(smoothness, 1, "smoothness"), at_least(dimension, 1, "dimension")
    # by logarithms: 2^d d^n overflows floats in high dimension
    log2_bound = 1 + d + n * math.log2(d) - math.lgamma(n + 1) / math.log(2) - math.log2(error)
    if log2_bound / n > 500 or d > 900:
        raise InvalidInput("the construction is too large to count")
    patches = math.ceil(2 ** (log2_bound / n) - 1e-9)
    return patches, error * 2.0 ** -(d + 1 + n * math.log2(d)) / (d + n)


def yarotsky_units(error: float, smoothness: int, dimension: int) -> CountedSize:
    r"""Units of Yarotsky's network for the unit ball of :math:`W^{n,\infty}`, skips allowed.

    :math:`(N+1)^d` patches; in each the monomials of degree below :math:`n`, :math:`\binom{j+d-1}
    {d-1}` of degree :math:`j`, times :math:`d` trapezoids: :math:`d+j-1` products. A product of
    factors in :math:`[-(d+n),d+n]` is three squares: an absolute value (2 ReLUs) and
    :math:`s` levels of a sawtooth (3 ReLUs) each, :math:`6(d+n)^24^{-(s+1)}\le\delta`. The
    trapezoids take :math:`4d(N+1)` ReLUs. Layers: the products stand in a chain.

    >>> yarotsky_units(0.1, 2, 1).size            # 4 * 6 + 6 patches, 1 product, 6 levels
    384
    """
    patches, accuracy = taylor_grid(error, smoothness, dimension)
    n, d = smoothness, dimension
    levels = max(1, math.ceil(math.log(6 * (d + n) ** 2 / accuracy, 4)) - 1)
    products = sum(math.comb(j + d - 1, d - 1) * (d + j - 1) for j in range(n))
    units = 4 * d * (patches + 1) + (patches + 1) ** d * products * (6 + 9 * levels)
    return CountedSize(units, 2 + (d + n - 2) * (levels + 1))
