r"""The origin of a product of factors: the deeper the network, the flatter the saddle.

$R(w)=\sigma_{yy}-2\sigma_{yx}w_1\cdots w_L+\sigma_{xx}(w_1\cdots w_L)^2$ is the risk of the
linear network of depth $L$ and width 1. At the origin the first derivative that is not 0 has
order $L$, so that the saddle is strict for $L=2$ only. Source: Mathematical Aspects of
Deep Learning, (4.32).
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.optimization.descent.iterates import Function

#: Derivatives of at most this size count as 0.
ZERO = 1e-9


def product_risk(xx: float, yx: float, yy: float) -> Function:
    r"""The risk of $x\mapsto w_1\cdots w_Lx$ as a function of `[..., L]`.

    Its least value is $\sigma_{yy}-\sigma_{yx}^2/\sigma_{xx}$, where the product is
    $\sigma_{yx}/\sigma_{xx}$.

    >>> product_risk(1.0, 1.0, 1.0)(torch.tensor([[0.0, 0.0], [2.0, 0.5]]))
    tensor([1., 0.])
    """
    positive_number(xx, "the second moment of the input")
    if not (math.isfinite(yx) and math.isfinite(yy)) or yx**2 > xx * yy * (1 + 1e-12):
        raise InvalidInput(f"no pair has the second moments {xx!r}, {yx!r} and {yy!r}")

    def risk(w: Tensor) -> Tensor:
        # factor by factor: the higher derivatives of torch.prod are wrong where factors are 0
        product = reduce(torch.mul, w.unbind(-1))
        return yy - 2 * yx * product + xx * product.square()

    return risk


def derivative_along(function: Function, point: Tensor, direction: Tensor, order: int) -> float:
    r"""The derivative $\frac{d^k}{dt^k}f(x+tv)$ at $t=0$, by $k$ nested
    differentiations.

    >>> derivative_along(lambda u: (1 - u[0] ** 3) ** 2, torch.zeros(1), torch.ones(1), 3)
    -12.0
    """
    whole_number(order, "the order", least=0)
    if point.shape != direction.shape or point.ndim != 1:
        raise ShapeMismatch(
            f"a point [p] and a direction [p] are needed, not {list(point.shape)} and "
            f"{list(direction.shape)}"
        )

    def along(t: Tensor) -> Tensor:
        return function(point + t * direction)

    differentiated = along
    for _ in range(order):
        differentiated = torch.func.grad(differentiated)
    return float(differentiated(torch.zeros((), dtype=point.dtype, device=point.device)))


def first_derivative_order(
    function: Function, point: Tensor, direction: Tensor, most: int = 8
) -> int:
    r"""The order of the first derivative along a line that is not 0; `most + 1` if none is.

    >>> risk = product_risk(1.0, 1.0, 2.0)
    >>> first_derivative_order(risk, torch.zeros(4), torch.ones(4))
    4
    """
    whole_number(most, "the largest order", least=1)
    for order in range(1, most + 1):
        if abs(derivative_along(function, point, direction, order)) > ZERO:
            return order
    return most + 1


def plateau_time(depth: int, size: float, slope: float, height: float) -> float:
    r"""Time for gradient flow to leave the saddle at the origin, to leading order.

    From the diagonal $w=(\epsilon,\dots,\epsilon)$ the flow
    $\dot w=2\sigma_{yx}w^{L-1}$ (the quadratic term being small) reaches $h$ at

    $$
    t=\frac1{2\sigma_{yx}}\ln\frac h\epsilon\ (L=2),\qquad
    t=\frac{\epsilon^{2-L}-h^{2-L}}{2\sigma_{yx}(L-2)}\ (L\ge3):
    $$

    logarithmic for a strict saddle, a power for a degenerate one.

    Args:
        depth: $L\ge2$.
        size: $\epsilon$.
        slope: $\sigma_{yx}>0$.
        height: $h\ge\epsilon$.

    >>> plateau_time(3, 0.01, 0.5, 1.0)
    99.0
    """
    whole_number(depth, "the depth", least=2)
    positive_number(size, "the size")
    positive_number(slope, "the slope")
    if not size <= height < math.inf:
        raise InvalidInput(f"the height must be at least the size {size!r}, not {height!r}")
    if depth == 2:
        return math.log(height / size) / (2 * slope)
    power = 2 - depth
    return (size**power - height**power) / (2 * slope * (depth - 2))
