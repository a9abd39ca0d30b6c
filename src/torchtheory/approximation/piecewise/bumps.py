r"""Bumps on the unit cube with the smallest possible top derivative, and their Sobolev norms.

Lower bounds of approximation theory put a bump into every cell of a grid, and their constant is
how high a bump of the unit ball of $W^{n,\infty}$ can be. In one dimension the best bump is
a perfect spline: its $n$-th derivative is constant up to sign and changes sign at the zeros
$\cos\frac{k\pi}{n+1}$ of Chebyshev's $U_n$, whose sign is orthogonal to every
polynomial of degree below $n$, so that $n$ integrations leave compact support.
For $n=1$ it is a hat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

import numpy as np
import torch
from scipy import interpolate
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch

#: Beyond, the coefficients of the pieces lose more digits than the constants are worth.
_LARGEST_ORDER = 12


@dataclass(frozen=True, slots=True)
class SplineBump:
    r"""The bump $\phi(x)=\prod_{j\le d}\phi_1(x_j)$, 1 at the origin, 0 outside
    $(-\frac12,\frac12)^d$, with $n$ bounded derivatives.

    Attributes:
        order: $n$.
        dimension: $d$.
        derivative_norms: $\|\phi_1^{(k)}\|_\infty$ for $k=0,\dots,n$.

    >>> [round(norm, 9) for norm in SplineBump(2).derivative_norms]
    [1.0, 4.0, 16.0]
    >>> bump = SplineBump(1, 2)
    >>> bump(torch.tensor([[0.0, 0.0], [0.25, 0.0], [0.25, 0.25], [0.7, 0.0]])).tolist()
    [1.0, 0.5, 0.25, 0.0]
    """

    order: int
    dimension: int = 1
    derivative_norms: tuple[float, ...] = field(init=False)
    _splines: tuple[interpolate.PPoly, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole_number(self.order, "smoothness", least=1)
        whole_number(self.dimension, "dimension", least=1)
        if self.order > _LARGEST_ORDER:
            raise InvalidInput(
                f"the bump is built for a smoothness of at most {_LARGEST_ORDER}, not {self.order}"
            )
        splines, norms = _perfect_splines(self.order)
        object.__setattr__(self, "_splines", splines)
        object.__setattr__(self, "derivative_norms", norms)

    def __call__(self, x: Tensor) -> Tensor:
        """The values `[m]` at points `[m, d]`, in the dtype of the points."""
        return self.derivative(x, (0,) * self.dimension)

    def derivative(self, x: Tensor, alpha: tuple[int, ...]) -> Tensor:
        r"""$D^\alpha\phi$ at `x[m, d]`, at a jump of the top derivative from the right.

        >>> SplineBump(2).derivative(torch.tensor([[0.0], [0.45]]), (2,)).tolist()
        [-16.0, 16.0]
        """
        if x.ndim != 2 or x.shape[1] != self.dimension or len(alpha) != self.dimension:
            raise ShapeMismatch(
                f"points of a bump in {self.dimension} dimensions are [m, {self.dimension}] with "
                f"one order of derivative each, not {list(x.shape)} and {len(alpha)}"
            )
        if min(alpha) < 0 or sum(alpha) > self.order:
            raise InvalidInput(f"the bump has derivatives up to order {self.order}, not {alpha}")
        points = x.detach().cpu().double().numpy()
        inside = np.abs(points).max(axis=1, initial=0.0) < 0.5
        made = np.zeros(len(points))
        factors = [self._splines[k](points[inside, j]) for j, k in enumerate(alpha)]
        made[inside] = np.prod(factors, axis=0)
        return torch.from_numpy(made).to(x)

    @property
    def sobolev_norm(self) -> float:
        r"""$\|\phi\|_{W^{n,\infty}}$, the largest product of norms of derivatives.

        $$
        \max_{|\alpha|_1\le n}\prod_j\|\phi_1^{(\alpha_j)}\|_\infty
        $$

        >>> SplineBump(3, 2).sobolev_norm == SplineBump(3).derivative_norms[3]
        True
        """
        best = [1.0] * (self.order + 1)
        for _ in range(self.dimension):
            best = [
                max(best[k - j] * self.derivative_norms[j] for j in range(k + 1))
                for k in range(self.order + 1)
            ]
        return max(best)

    @property
    def height(self) -> float:
        r"""$c_\phi=\|\phi\|_\infty/\|\phi\|_{W^{n,\infty}}$: a bump on a cell of side
        $1/m$ may be $c_\phi m^{-n}$ high and stay in the unit ball.
        """
        return 1 / self.sobolev_norm

    def moment(self, power: int) -> float:
        r"""$\int\phi^q$ for `power` $q$ 1 or 2.

        >>> round(SplineBump(1).moment(1), 6), round(SplineBump(1, 2).moment(2), 6)
        (0.5, 0.111111)
        """
        if power not in (1, 2):
            raise InvalidInput(f"power is 1 or 2, not {power}")
        spline = self._splines[0]
        nodes, weights = np.polynomial.legendre.leggauss(self.order + 1)
        low, high = spline.x[:-1, None], spline.x[1:, None]
        x = (low + high) / 2 + (high - low) / 2 * nodes
        one = float((spline(x) ** power * weights * (high - low) / 2).sum())
        return one**self.dimension


@cache
def _perfect_splines(n: int) -> tuple[tuple[interpolate.PPoly, ...], tuple[float, ...]]:
    """The bump of one variable and its derivatives, and their largest values."""
    knots = -np.cos(np.pi * np.arange(n + 2) / (n + 1)) / 2
    signs = np.where(np.arange(n + 1) % 2, -1.0, 1.0)
    top = interpolate.PPoly(signs[None], knots)
    made = list(accumulate(range(n), lambda s, _: s.antiderivative(), initial=top))[::-1]
    height = float(made[0](0.0))
    for spline in made:
        spline.c /= height
    return tuple(made), (1.0, *(_largest(s) for s in made[1:]))


def _largest(spline: interpolate.PPoly) -> float:
    """The largest absolute value, at a knot or where the derivative vanishes."""
    if spline.c.shape[0] == 1:
        return float(np.abs(spline.c).max())
    inner = spline.derivative().roots(extrapolate=False) if spline.c.shape[0] > 2 else []
    places = np.concatenate([spline.x, np.asarray(inner, dtype=np.float64)])
    return float(np.abs(spline(places[np.isfinite(places)])).max())


def cells_of(points: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    r"""The cell of the grid of $m^d$ cells of $[0,1]^d$ each point is in, and where.

    Returns:
        The flat index `[k]` of the cell, last coordinate fastest, and the position `[k, d]`
        in it, $mx-i-\frac12\in[-\frac12,\frac12]$.

    >>> index, place = cells_of(torch.tensor([[0.1, 0.75], [1.0, 1.0]]), 2)
    >>> index.tolist(), place[1].tolist()
    ([1, 3], [0.5, 0.5])
    """
    whole_number(cells, "cells", least=1)
    scaled = points * cells
    which = scaled.floor().clamp(0, cells - 1)
    powers = [cells**k for k in range(points.shape[1])][::-1]
    index = (which.long() * torch.tensor(powers, device=points.device)).sum(1)
    return index, scaled - which - 0.5


@dataclass(frozen=True, slots=True)
class BumpSum:
    r"""$f=h\sum_iv_i\,\phi(m(x-x_i))$ over the cells of the unit cube, one bump a cell.

    Attributes:
        coefficients: $v$, `[m ** d]`.
        cells: $m$, cells a side.
        height: $h$.
        bump: $\phi$.

    Calling it gives the values `[k]` at points `[k, d]` (`[k]` when `d = 1`).
    """

    coefficients: Tensor
    cells: int
    height: float
    bump: SplineBump

    def __call__(self, x: Tensor) -> Tensor:
        return self.derivative(x, (0,) * self.bump.dimension)

    def derivative(self, x: Tensor, alpha: tuple[int, ...]) -> Tensor:
        r"""$D^\alpha f$ at `x`."""
        points = x.unsqueeze(1) if x.ndim == 1 else x
        index, place = cells_of(points, self.cells)
        inner = self.bump.derivative(place, alpha) * self.cells ** sum(alpha)
        made: Tensor = self.height * self.coefficients.to(points)[index] * inner
        return made

    def __neg__(self) -> BumpSum:
        return BumpSum(-self.coefficients, self.cells, self.height, self.bump)
