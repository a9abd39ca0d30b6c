r"""Mean value theorems: the points by root finding, the integrals by quadrature.

Source: Foundations of Deep Learning, section 1.3.3, Theorems 3 and 4, Eqs. (1.14)-(1.18).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.checks import as_vector, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.mapping import Mapped
from torchtheory.primer.differences import Function
from torchtheory.primer.taylor import Scalar, derivative

_NODES = 64  # of the Gauss rule on a segment
_TOLERANCE = 1e-6  # of the mean value equation, relative to the largest slope
_STEP = 2.0**-22  # of one-sided quotients, relative to the interval


def mean_value_points(function: Scalar, low: float, high: float, *, grid: int = 2000) -> Tensor:
    r"""The points $c\in(a,b)$ with $f'(c)=(f(b)-f(a))/(b-a)$, ascending.

    Sign changes of $f'-\text{slope}$ between neighbors of a grid are bisected to machine
    precision, and only those are kept where the equation then holds, within $10^{-6}$ of the
    largest $|f'|$ met, and where the quotients from both sides agree to that: at a jump of the
    derivative no point exists, whatever automatic differentiation puts there. Points
    closer than the grid, or where the difference touches 0 between two grid points without
    changing its sign, are missed. Where $f'$ equals the slope on a stretch, its grid points are
    returned.

    Args:
        function: $f$, applied to a tensor entry by entry.
        low, high: $a<b$.
        grid: number of intervals searched.

    Cost: `grid` derivatives and 65 more per sign change, batched.

    >>> mean_value_points(lambda x: x**3, 0.0, 1.0)               # the root of 1/3
    tensor([0.5774], dtype=torch.float64)
    >>> mean_value_points(torch.abs, -1.0, 2.0).numel()           # the slope 1/3 is none of its own
    0
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"the interval ({low}, {high}) must be finite and not empty")
    whole_number(grid, "grid", least=1, most=10**8)
    ends = torch.tensor([low, high], dtype=torch.float64)
    slope = (function(ends[1]) - function(ends[0])) / (high - low)

    def excess(x: Tensor) -> Tensor:
        return derivative(function, x) - slope

    # not the ends themselves: there the derivative need not exist
    inside = torch.linspace(low, high, grid + 3, dtype=torch.float64)[1:-1]
    values = excess(inside)
    allowed = _TOLERANCE * max(float((values + slope).abs().max()), 1e-300)
    flat = values.abs() <= 4 * torch.finfo(torch.float64).eps * float(values.abs().max() + 1)
    change = (values[:-1] * values[1:] < 0) & ~flat[:-1] & ~flat[1:]
    left, right = inside[:-1][change], inside[1:][change]
    sign = values[:-1][change].sign()
    for _ in range(60):
        middle = (left + right) / 2
        same = excess(middle).sign() == sign
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    found = torch.cat([inside[flat], (left + right) / 2]).sort().values
    smooth = _one_sided_gap(function, found, _STEP * (high - low)) <= allowed
    return found[(excess(found).abs() <= allowed) & smooth]


def _one_sided_gap(function: Scalar, x: Tensor, step: float) -> Tensor:
    """How far the quotients from both sides are apart at step 0, beyond their rounding."""
    middle = function(x)
    sides = [(function(x + t) - middle) + (function(x - t) - middle) for t in (step, 2 * step)]
    gap = 2 * sides[0] / step - sides[1] / (2 * step)
    rounding = 16 * torch.finfo(x.dtype).eps * (middle.abs() + x.abs()) / step
    return (gap.abs() - rounding).clamp(min=0)


def segment_gradients(function: Function, x: Tensor, y: Tensor) -> Tensor:
    r"""The integral $\int_0^1\nabla f(x+ty)^\top y\,dt$ (Theorem 4).

    It equals $f(x+y)-f(x)$, by a Gauss rule with 64 gradients.

    >>> x, y = torch.zeros(2).double(), torch.tensor([1.0, 2.0]).double()
    >>> round(float(segment_gradients(lambda v: v.prod(), x, y)), 12)
    2.0
    """
    x, y = _segment(x, y)
    gradient = Mapped(torch.func.grad(function))
    return _integrate(lambda t: gradient(x + t[:, None] * y) @ y, x)


def segment_hessians(function: Function, x: Tensor, y: Tensor) -> Tensor:
    r"""The vector $\int_0^1\nabla^2f(x+ty)\,y\,dt$ of Eq. (1.18).

    It equals $\nabla f(x+y)-\nabla f(x)$; 64 Hessian-vector products, the nodes of a Gauss rule.

    >>> x, y = torch.zeros(2).double(), torch.tensor([1.0, 2.0]).double()
    >>> segment_hessians(lambda v: v.prod(), x, y).round(decimals=12).tolist()
    [2.0, 1.0]
    """
    x, y = _segment(x, y)
    return _integrate(lambda t: _products(function, x, y, t), x)


def second_order_remainder(function: Function, x: Tensor, y: Tensor) -> Tensor:
    r"""The integral $\int_0^1(1-t)\,y^\top\nabla^2f(x+ty)\,y\,dt$.

    It equals $f(x+y)-f(x)-\nabla f(x)^\top y$. (Eq. (1.17) prints $\frac12$ in the
    place of $1-t$, which is right for a constant Hessian only.)

    >>> one = torch.ones(1).double()
    >>> round(float(second_order_remainder(lambda v: (v**3).sum(), 0 * one, one)), 12)
    1.0
    """
    x, y = _segment(x, y)
    return _integrate(lambda t: (1 - t) * (_products(function, x, y, t) @ y), x)


def _products(function: Function, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    def product(at: Tensor) -> Tensor:
        made: Tensor = torch.func.jvp(torch.func.grad(function), (at,), (y,))[1]
        return made

    made: Tensor = Mapped(product)(x + t[:, None] * y)
    return made


def _integrate(integrand: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    roots, weights = np.polynomial.legendre.leggauss(_NODES)
    values = integrand(torch.from_numpy((roots + 1) / 2).to(like))
    total: Tensor = torch.tensordot(torch.from_numpy(weights / 2).to(like), values, dims=1)
    return total


def _segment(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = as_vector(x, "x"), as_vector(y, "y")
    if x.shape != y.shape:
        raise ShapeMismatch(f"x has {len(x)} entries and y has {len(y)}")
    return x, y.to(x)
