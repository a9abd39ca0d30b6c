r"""Norms of smoothness of functions on a box, and on which side the measurement errs.

$$
\|f\|_{C^n}=\max_{|\alpha|\le n}\|D^\alpha f\|_\infty,\qquad
\mathrm{Lip}_\zeta(f)=\sup_{x\ne y}\frac{|f(x)-f(y)|}{|x-y|^\zeta},\qquad
\|f\|_{W^{n,p}}=\Bigl(\sum_{|\alpha|\le n}\|D^\alpha f\|_p^p\Bigr)^{1/p},
$$

and $\|f\|_{W^{n,\infty}}=\|f\|_{C^n}$ for functions with continuous derivatives. The largest
value on a grid is a *lower* bound of a supremum. On an interval
`sobolev_norm` has fractional orders as well. Source:
Mathematical Aspects of Deep Learning, section 3.1.3, where the Sobolev norm is not written down.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Box, as_box, box_grid
from torchtheory.approximation.targets import Function, evaluate
from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.expressivity.pieces import affine_pieces

Direction = Literal["lower bound", "quadrature", "exact"]


@dataclass(frozen=True, slots=True)
class NormEstimate:
    """A measured norm and how to read it.

    Attributes:
        value: the number.
        direction: `lower bound` for the largest value on a grid, `quadrature` for an integral
            by a Gauss rule, `exact` for a piecewise linear function met at every bend.
        points: how many points were looked at.
    """

    value: float
    direction: Direction
    points: int

    def __float__(self) -> float:
        return self.value


def multi_indices(dimension: int, order: int) -> list[tuple[int, ...]]:
    r"""All $\alpha\in\mathbb N_0^d$ with $|\alpha|\le n$, lower orders first.

    >>> multi_indices(2, 1)
    [(0, 0), (0, 1), (1, 0)]
    """
    whole_number(dimension, "dimension", least=1)
    whole_number(order, "order", least=0)
    every = itertools.product(range(order + 1), repeat=dimension)
    return sorted((a for a in every if sum(a) <= order), key=lambda a: (sum(a), a))


def partial_derivatives(function: Function, x: Tensor, order: int) -> dict[tuple[int, ...], Tensor]:
    r"""$D^\alpha f$ at points `[n, d]` for all $|\alpha|\le n$, by differentiation.

    Each derivative is taken once, of one of lower order. At a kink it is what torch makes of it.

    Returns:
        `[n]` for every multi-index.

    >>> x = torch.tensor([[2.0, 3.0]]).double()
    >>> found = partial_derivatives(lambda x: x[:, 0] ** 2 * x[:, 1], x, 2)
    >>> found[(1, 1)].item(), found[(2, 0)].item(), found[(0, 2)].item()
    (4.0, 6.0, 0.0)
    """
    if x.ndim != 2 or x.shape[1] < 1:
        raise ShapeMismatch(f"points are [n, d], not {list(x.shape)}")
    d = x.shape[1]
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        value = evaluate(function, point)
        made: dict[tuple[int, ...], Tensor] = {(0,) * d: value}
        gradients: dict[tuple[int, ...], Tensor] = {}
        for alpha in multi_indices(d, order)[1:]:
            k = next(k for k in range(d) if alpha[k])
            lower = (*alpha[:k], alpha[k] - 1, *alpha[k + 1 :])
            if lower not in gradients:
                below = made[lower]
                gradients[lower] = (
                    torch.autograd.grad(
                        below.sum(), point, create_graph=True, materialize_grads=True
                    )[0]
                    if below.requires_grad
                    else torch.zeros_like(point)
                )
            made[alpha] = gradients[lower][:, k]
    return {alpha: value.detach() for alpha, value in made.items()}


def smooth_norm(
    function: Function, order: int, domain: Box | tuple[float, float], *, points: int = 65
) -> NormEstimate:
    r"""$\|f\|_{C^n}$: the largest derivative up to an order, on a grid.

    A lower bound, from `points` a side. Time and memory: `points ** d` evaluations with
    their derivatives.

    >>> wave = smooth_norm(lambda x: torch.sin(2 * math.pi * x), 2, (0.0, 1.0))
    >>> round(wave.value / (2 * math.pi) ** 2, 12), wave.direction
    (1.0, 'lower bound')
    """
    grid = _grid(domain, points)
    found = partial_derivatives(function, grid, order)
    largest = max(float(_finite(v).abs().max()) for v in found.values())
    return NormEstimate(largest, "lower bound", len(grid))


def holder_constant(
    function: Function,
    exponent: float,
    domain: Box | tuple[float, float],
    *,
    points: int = 33,
) -> NormEstimate:
    r"""$\mathrm{Lip}_\zeta(f)$: the largest quotient of two points of a grid; a lower bound.

    Every pair is looked at: time and memory $O(\text{points}^{2d})$.

    >>> root = holder_constant(lambda x: x.abs().sqrt(), 0.5, (-1.0, 1.0))
    >>> root.value
    1.0
    """
    if not 0 < exponent <= 1:
        raise InvalidInput(f"a Hölder exponent lies in (0, 1], not {exponent!r}")
    grid = _grid(domain, points)
    if len(grid) > 1 << 13:
        raise InvalidInput(
            f"{len(grid)} points make {len(grid) ** 2} pairs, too many for the memory: take fewer"
        )
    values = _finite(evaluate(function, grid).detach())
    apart = torch.pdist(grid)
    rise = torch.pdist(values.unsqueeze(1))
    return NormEstimate(float((rise / apart**exponent).max()), "lower bound", len(grid))


def holder_norm(
    function: Function,
    order: int,
    exponent: float,
    domain: Box | tuple[float, float],
    *,
    points: int = 33,
) -> NormEstimate:
    r"""$\|f\|_{C^{n,\zeta}}$: the larger of `smooth_norm` and the Hölder constants of
    the derivatives of order $n$; a lower bound.

    >>> holder_norm(lambda x: x.abs().sqrt(), 0, 0.5, (-1.0, 1.0)).value
    1.0
    """
    whole = smooth_norm(function, order, domain, points=points)

    def top(alpha: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        def value(x: Tensor) -> Tensor:
            return partial_derivatives(function, x, order)[alpha]

        return value

    d = len(as_box(domain))
    tops = [a for a in multi_indices(d, order) if sum(a) == order]
    constants = [holder_constant(top(a), exponent, domain, points=points).value for a in tops]
    return NormEstimate(max(whole.value, *constants), "lower bound", whole.points)


def box_sobolev_norm(
    function: Function,
    order: int,
    p: float,
    domain: Box | tuple[float, float],
    *,
    panels: int = 8,
) -> NormEstimate:
    r"""$\|f\|_{W^{n,p}}$ on a box in any dimension, for whole orders.

    An 8-point Gauss rule on each of `panels` pieces a side; $p=\infty$ is
    `smooth_norm` on those nodes and the grid of their ends.

    >>> norm = box_sobolev_norm(lambda x: x[:, 0] * x[:, 1], 1, 2.0, ((0.0, 1.0), (0.0, 1.0)))
    >>> round(norm.value**2, 12)                                # 1/9 + 1/3 + 1/3
    0.777777777778
    """
    whole_number(panels, "panels", least=1)
    if math.isnan(p) or p < 1:
        raise InvalidInput(f"the exponent must be from 1 to inf, not {p}")
    box = as_box(domain)
    if p == math.inf:
        return smooth_norm(function, order, box, points=8 * panels + 1)
    if (8 * panels) ** len(box) > 1 << 20:
        raise InvalidInput(
            f"{(8 * panels) ** len(box)} nodes are too many for the memory: take fewer panels"
        )
    roots, weights = np.polynomial.legendre.leggauss(8)
    starts = (np.arange(panels)[:, None] + (roots + 1) / 2).reshape(-1) / panels
    unit, share = torch.from_numpy(starts), torch.from_numpy(np.tile(weights / 2 / panels, panels))
    nodes = torch.cartesian_prod(*[low + (high - low) * unit for low, high in box])
    rule = torch.cartesian_prod(*[(high - low) * share for low, high in box])
    nodes, rule = nodes.reshape(-1, len(box)), rule.reshape(-1, len(box)).prod(1)
    found = partial_derivatives(function, nodes, order).values()
    total = sum(float(_finite(v).abs() ** p @ rule) for v in found)
    return NormEstimate(total ** (1 / p), "quadrature", len(nodes))


def network_lipschitz_norm(network: nn.Module, interval: tuple[float, float]) -> NormEstimate:
    r"""$\|f\|_{C^{0,1}}=\max(\|f\|_\infty,\mathrm{Lip}_1f)$ of a piecewise linear network of
    one variable, exactly: at its bends and from its slopes.

    >>> from torchtheory.approximation.piecewise.boxes import relu_bump
    >>> round(network_lipschitz_norm(relu_bump(0.0, 1.0, 0.25), (-1.0, 2.0)).value, 9)
    4.0
    """
    ((low, high),) = as_box(interval)
    ends = torch.tensor(low).double(), torch.tensor(high).double()
    pieces = affine_pieces(network, *ends)
    values = pieces(pieces.breakpoints)
    slope = float(pieces.slopes.abs().max()) / (high - low)
    return NormEstimate(max(float(values.abs().max()), slope), "exact", len(pieces.breakpoints))


def into_unit_ball(
    function: Function, order: int, p: float, domain: Box | tuple[float, float]
) -> Function:
    r"""$f/\|f\|_{W^{n,p}}$, in the unit ball $F^p_{n,d}$ as far as the norm is known.

    >>> half = into_unit_ball(lambda x: 2 * torch.ones_like(x), 0, math.inf, (0.0, 1.0))
    >>> half(torch.zeros(1)).item()
    1.0
    """
    norm = box_sobolev_norm(function, order, p, domain).value
    if norm == 0:
        raise InvalidInput("the function is 0, and cannot be divided by its norm")
    return lambda x: function(x) / norm


def _grid(domain: Box | tuple[float, float], points: int) -> Tensor:
    box = as_box(domain)
    whole_number(points, "points", least=2)
    if points ** len(box) > 1 << 20:
        raise InvalidInput(
            f"{points} points a side in {len(box)} dimensions are {points ** len(box)}, too many "
            "for the memory: take fewer"
        )
    return box_grid(box, points)


def _finite(values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        raise NonFinite(
            "the function or a derivative is not finite everywhere on the domain: "
            f"{first_entry(values, 'the value', ~torch.isfinite(values))}"
        )
    return values
