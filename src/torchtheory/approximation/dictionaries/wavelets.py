r"""Wavelet-like ReLU units: a bump of $4d+1$ ReLUs and differences of its scaled copies.

With the trapezoid $t(x)=\rho(x+3)-\rho(x+1)-\rho(x-1)+\rho(x-3)$,

$$
\varphi(x)=c_d\,\rho\Bigl(\sum_{j=1}^dt(x_j)-2(d-1)\Bigr)
$$

is $2c_d$ on $[-1,1]^d$, 0 outside $[-3,3]^d$, and $c_d$ makes its integral
1. Source: The Modern Mathematics of Deep Learning, section 3.5 (Shaham, Cloninger, Coifman, 2018).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain, combine, compose
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.memory import refuse_too_large


def bump_constant(dimension: int) -> float:
    r"""$c_d$, with $1/c_d=2^d\sum_{k=0}^d\binom dk\frac{2^{k+1}}{(k+1)!}$.

    Each $u_j=2-t(x_j)$ is 0 on a set of length 2 and has density 2 on $(0,2]$; the
    $k$-th term is the integral of $2-\sum u_j$ over a simplex.

    >>> 1 / bump_constant(1)            # the area of the trapezoid
    8.0
    """
    d = whole_number(dimension, "dimension", least=1)
    total = sum(math.comb(d, k) * 2 ** (k + 1) / math.factorial(k + 1) for k in range(d + 1))
    return float(1 / (2**d * total))


def bump_network(dimension: int) -> nn.Sequential:
    r"""The bump $\varphi$: $4d$ ReLUs, then one.

    >>> bump = bump_network(2)
    >>> values = bump(torch.tensor([[1.0, -1.0], [2.9, 2.9], [0.0, 3.0]]).double()).flatten()
    >>> (values / bump_constant(2)).tolist()
    [2.0, 0.0, 0.0]
    """
    c = bump_constant(dimension)
    eye = torch.eye(dimension, dtype=torch.float64)
    first = eye.repeat_interleave(4, 0)
    kinks = torch.tensor([3.0, 1.0, -1.0, -3.0], dtype=torch.float64).repeat(dimension)
    signs = torch.tensor([[1.0, -1.0, -1.0, 1.0]], dtype=torch.float64).repeat(1, dimension)
    shift = signs.new_tensor([-2.0 * (dimension - 1)])
    out = signs.new_tensor([[c]])
    return chain([(first, kinks), (signs, shift), (out, out.new_zeros(1))], [nn.ReLU(), nn.ReLU()])


def wavelet_generator(dimension: int) -> nn.Sequential:
    r"""$\psi(x)=\varphi(x)-\tfrac12\varphi(2^{-1/d}x)$: two scales of the bump, mean 0.

    >>> wavelet_generator(1)(torch.tensor([[7.0]]).double()).item()
    0.0
    """
    bump = bump_network(dimension)
    eye = torch.eye(dimension, dtype=torch.float64) * 2 ** (-1 / dimension)
    wide = compose(bump, chain([(eye, eye.new_zeros(dimension))], []))
    return combine([1.0, -0.5], [bump, wide])


def wavelet_grid(dimension: int, scales: int) -> tuple[Tensor, Tensor]:
    r"""The affine maps $x\mapsto2^j\cdot4x-b$ of the elements that meet $[0,1]^d$.

    Scale $j$ has its centers on the grid of spacing $2^{-j}/2$, so that bumps of
    width $2^{-j}\cdot6/4$ overlap.

    Returns:
        matrices `[N, d, d]` and shifts `[N, d]`, coarse scales first.

    >>> matrices, shifts = wavelet_grid(1, 1)
    >>> matrices.flatten().tolist(), shifts.flatten().tolist()
    ([4.0, 4.0, 4.0], [0.0, 2.0, 4.0])
    """
    whole_number(dimension, "dimension", least=1)
    whole_number(scales, "scales", least=1)
    if dimension > 3:
        raise InvalidInput(f"a grid in {dimension} dimensions is too large; take at most 3")
    finest = (2**scales + 1) ** dimension
    refuse_too_large(32 * finest * dimension**2, f"a grid of {scales} scales")
    matrices, shifts = [], []
    for j in range(scales):
        steps = 2 ** (j + 1)
        axis = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        centers = torch.cartesian_prod(*[axis] * dimension).reshape(-1, dimension)
        scale = 4.0 * 2**j
        matrices.append(scale * torch.eye(dimension).double().expand(len(centers), -1, -1))
        shifts.append(scale * centers)
    return torch.cat(matrices), torch.cat(shifts)
