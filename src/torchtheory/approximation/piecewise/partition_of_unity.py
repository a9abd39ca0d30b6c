r"""A partition of unity of trapezoids on $[0,1]^d$, each factor four ReLUs.

With $\psi(t)=1$ for $|t|\le1$, $2-|t|$ for $1\le|t|\le2$ and 0 beyond,

$$
\phi_m(x)=\prod_{k=1}^d\psi\bigl(3N(x_k-m_k/N)\bigr),\qquad m\in\{0,\dots,N\}^d,
$$

add up to 1 on the cube, and at most $2^d$ of them are positive at any point. The factors are
networks exactly; the product for $d\ge2$ is not, and is left to
`yarotsky`. Source: Mathematical Aspects of Deep Learning,
Theorem 3.10 (Yarotsky).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import block_diagonal, chain
from torchtheory.approximation.piecewise.boxes import relu_bump
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.memory import refuse_too_large
from torchtheory.nets.feedforward import affine_layers


def patch_centers(cells: int, dimension: int) -> Tensor:
    r"""The points $m/N$ of the grid, `[(N + 1) ** d, d]`.

    >>> patch_centers(2, 1).flatten().tolist()
    [0.0, 0.5, 1.0]
    """
    whole_number(cells, "cells", least=1)
    whole_number(dimension, "dimension", least=1)
    refuse_too_large(
        8 * dimension * (cells + 1) ** dimension, f"a grid of {cells}^{dimension} cells"
    )
    side = torch.arange(cells + 1, dtype=torch.float64) / cells
    return torch.cartesian_prod(*[side] * dimension).reshape(-1, dimension)


def trapezoid_network(cells: int) -> nn.Sequential:
    r"""$x\mapsto(\psi(3N(x-m/N)))_{m=0..N}$, from `[n, 1]` to `[n, N + 1]`.

    >>> trapezoid_network(1)(torch.tensor([[0.2], [0.5]]).double()).round(decimals=9).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    third = 1 / (3 * whole_number(cells, "cells", least=1))
    (weight, bias), (signs, _) = affine_layers(relu_bump(-third, third, third))[0]
    shifts = patch_centers(cells, 1)
    biases = bias - shifts * weight[:, 0]
    last = block_diagonal(*[signs] * len(shifts))
    return chain(
        [(weight.repeat(len(shifts), 1), biases.flatten()), (last, last.new_zeros(len(shifts)))],
        [nn.ReLU()],
    )


def partition_of_unity_values(cells: int, x: Tensor) -> Tensor:
    r"""All $\phi_m$ at points `[n, d]`: `[n, (N + 1) ** d]`, in the order of the centers.

    >>> x = torch.tensor([[0.5, 0.0]]).double()
    >>> partition_of_unity_values(1, x).round(decimals=9).tolist()
    [[0.5, 0.0, 0.5, 0.0]]
    """
    if x.ndim != 2 or x.shape[1] < 1:
        raise ShapeMismatch(f"points are [n, d], not {list(x.shape)}")
    factors = trapezoid_network(cells).to(x)
    values = x.new_ones(len(x), 1)
    for k in range(x.shape[1]):
        values = (values.unsqueeze(2) * factors(x[:, k : k + 1]).unsqueeze(1)).flatten(1)
    return values
