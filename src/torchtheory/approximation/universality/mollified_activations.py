r"""Smoothing an activation by a bump, as a network: the second step of Leshno's proof.

$(\sigma*z)(x)=\int\sigma(x-y)z(y)\,dy\approx\sum_i\sigma(x-y_i)z(y_i)\Delta y$ is a hidden
layer of weights 1, biases $-y_i$ and output weights $z(y_i)\Delta y$. The limit is
smooth even where $\sigma$ has kinks, and no polynomial unless $\sigma$ is one, so that
powers follow by differences as for smooth activations. Source: Mathematical Aspects of Deep
Learning, Theorem 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain, combine, compose
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.activations.table import as_layer


def smooth_bump(y: Tensor, width: float) -> Tensor:
    r"""The bump $c\,e^{-1/(1-(y/\delta)^2)}$ on $|y|<\delta$, of mass 1; else 0.

    >>> y = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    >>> round(float(smooth_bump(y, 0.5).sum() * 0.001), 9)
    1.0
    """
    positive_number(width, "width")
    t = (y / width).square()
    inside = t < 1
    exponent = -1 / torch.where(inside, 1 - t, torch.ones_like(t))
    return torch.where(inside, torch.exp(exponent), torch.zeros_like(t)) / (_MASS * width)


#: The integral of exp(-1/(1 - y^2)) over [-1, 1].
_MASS = 0.4439938161680794


def mollified_activation(
    activation: str | Callable[[Tensor], Tensor], width: float, nodes: int
) -> nn.Sequential:
    r"""$\sigma*z$ with a `smooth_bump` of a width, by the trapezoid rule.

    Args:
        activation: $\sigma$, a name of the table or a function.
        width: $\delta$, half the support of the bump.
        nodes: how many $y_i$, equally spaced inside the support. The rule is accurate
            beyond any power of the spacing where $\sigma$ is smooth.

    Returns:
        One hidden layer of `nodes` units, from `[n, 1]` to `[n, 1]`.

    >>> soft = mollified_activation("relu", 0.5, 31)
    >>> soft(torch.tensor([[-0.6], [0.0], [0.6]]).double()).round(decimals=3).flatten().tolist()
    [0.0, 0.083, 0.6]
    """
    whole_number(nodes, "nodes", least=1)
    positive_number(width, "width")
    step = 2 * width / (nodes + 1)
    y = step * (torch.arange(1, nodes + 1, dtype=torch.float64) - (nodes + 1) / 2)
    out = (smooth_bump(y, width) * step).unsqueeze(0)
    return chain(
        [(torch.ones(nodes, 1).double(), -y), (out, out.new_zeros(1))], [as_layer(activation)]
    )


def smoothed_relu_power(order: int, width: float, nodes: int, step: float) -> nn.Sequential:
    r"""$x^k$, $k\ge2$, by differences of a smoothed ReLU, and so by ReLUs alone.

    $(\sigma*z)^{(k)}=z^{(k-2)}$, which for even $k$ does not vanish at 0 (and at
    $\delta/2$ for odd $k$); central differences of step $h$ in the weight. There
    are $(k+1)\cdot$ `nodes` units. The sum over nodes of spacing $\Delta$ errs by
    about $\Delta^2z/12$, which the differences multiply by $2^k/h^k$: the nodes must
    be much closer than $h$.

    Args:
        order: $k$, 2 or 3.
        width: $\delta$ of the bump.
        nodes: of the sum.
        step: $h$, in the weight.

    >>> square = smoothed_relu_power(2, 1.0, 400, 0.2)
    >>> bool((square(torch.tensor([[0.5]]).double()) - 0.25).abs() < 0.02)
    True
    """
    if order not in (2, 3):
        raise InvalidInput(f"the power is 2 or 3, not {order!r}")
    positive_number(step, "step")
    smooth = mollified_activation("relu", width, nodes)
    bias = 0.0 if order == 2 else width / 2
    at = torch.tensor(bias, dtype=torch.float64)
    density = float(smooth_bump(at, width))
    ratio = bias / width
    # z' = -2 y / (δ² (1 - (y/δ)²)²) z
    slope = density if order == 2 else -2 * ratio / (width * (1 - ratio**2) ** 2) * density
    scale = step**order * slope
    parts = []
    for j in range(order + 1):
        weight = torch.tensor([[(j - order / 2) * step]], dtype=torch.float64)
        parts.append(compose(smooth, chain([(weight, at.reshape(1))], [])))
    signs = [(-1) ** (order - j) * math.comb(order, j) / scale for j in range(order + 1)]
    return combine(signs, parts)
