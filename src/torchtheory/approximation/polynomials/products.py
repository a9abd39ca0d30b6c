r"""Multiplication by a ReLU network: squares, and the polarization identity.

Two of the identities that make a product of squares are

$$
xy=\tfrac14\big((x+y)^2-(x-y)^2\big)=\tfrac12\big((x+y)^2-x^2-y^2\big).
$$

With $f_n$ of `square_network` in place of the
square and $|t|=\sigma(t)+\sigma(-t)$, both vanish *exactly* where a factor vanishes (in
doubles: up to a rounding of the last sum), and neither leaves $[-B^2,B^2]$: the second one
is the piecewise linear interpolant of $xy$ on a triangulated grid of the square. Products
can therefore be nested without any care for the range of what was multiplied before. Source:
Mathematical Aspects of Deep Learning, Figure 1.9 and Theorem 3.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.layer_maps import Maps, layer_maps_of, merge_maps, relu_chain
from torchtheory.approximation.network_calculus import block_diagonal
from torchtheory.approximation.polynomials.squaring import square_network
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput


def product_network(
    levels: int,
    bound: float = 1.0,
    *,
    identity: Literal["difference", "sum"] = "difference",
) -> Approximant:
    r"""$xy$ on $[-B,B]^2$, exactly 0 where $x$ or $y$ is 0.

    $$
    \begin{aligned}
    \text{difference: }\;&B^2\Big[f_n\Big(\frac{|x+y|}{2B}\Big)
        -f_n\Big(\frac{|x-y|}{2B}\Big)\Big],
        &&\text{error}\le B^2\,4^{-(n+1)},\quad\text{width }6;\\
    \text{sum: }\;&2B^2\Big[f_n\Big(\frac{|x+y|}{2B}\Big)-f_n\Big(\frac{|x|}{2B}\Big)
        -f_n\Big(\frac{|y|}{2B}\Big)\Big],
        &&\text{error}\le B^2\,4^{-n},\quad\text{width }9.
    \end{aligned}
    $$

    Both bounds are attained, and the values stay in $[-B^2,B^2]$. Depth $n+2$. The
    partial derivatives err by at most $B2^{-n}$ and $2B2^{-n}$.

    Args:
        levels: $n$, of the squares.
        bound: $B$.
        identity: which of the two formulas.

    >>> times = product_network(8, bound=2.0)
    >>> bool((times(torch.tensor([[1.3, -0.7]]).double()) + 0.91).abs() <= times.bound)
    True
    >>> times.bound, times.size.depth, times.size.width
    (1.52587890625e-05, 10, 6)
    """
    positive_number(bound, "bound")
    if identity == "difference":
        forms, weights, error = [[1.0, 1.0], [1.0, -1.0]], [1.0, -1.0], 4.0 ** -(levels + 1)
    elif identity == "sum":
        forms, weights = [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [2.0, -2.0, -2.0]
        error = 4.0**-levels
    else:
        raise InvalidInput(f"the identity is 'difference' or 'sum', not {identity!r}")
    rows = torch.tensor(forms, dtype=torch.float64)
    signed = torch.stack([rows, -rows], 1).flatten(0, 1)
    absolute = torch.full((1, 2), 1 / (2 * bound), dtype=torch.float64)
    network = relu_chain(
        [
            (signed, signed.new_zeros(len(signed))),
            *_squares(levels, block_diagonal(*[absolute] * len(rows)), bound**2, weights),
        ]
    )
    box = ((-float(bound), float(bound)),) * 2
    return Approximant(network, bound**2 * error, box, "X-27")


def unit_product_network(levels: int) -> Approximant:
    r"""$xy$ on $[0,1]^2$ as $2f_n(\frac{x+y}2)-\frac12f_n(x)-\frac12f_n(y)$.

    Without absolute values, and so a layer less than `product_network`. The error lies in
    $[-\delta,2\delta]$, $\delta=4^{-(n+1)}$, and both ends are attained; where a
    factor is 0 it is up to $2\delta$ as well.

    >>> unit_product_network(1)(torch.tensor([[0.5, 0.5], [1.0, 1.0]]).double()).tolist()
    [0.25, 1.0]
    """
    forms = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    network = relu_chain(_squares(levels, forms, 1.0, [2.0, -0.5, -0.5]))
    return Approximant(network, 2 * 4.0 ** -(levels + 1), ((0.0, 1.0),) * 2, "A-91")


def many_product_network(factors: int, levels: int, bound: float = 1.0) -> Approximant:
    r"""$x_1\cdots x_k$ on $[-B,B]^k$ by a balanced binary tree of products.

    A product of two numbers in $[-1,1]$, each known up to $e_1$ and $e_2$, is
    known up to $\delta+e_1+e_2$, and the network's value is in $[-1,1]$ again. The
    $k-1$ products of the tree therefore err by at most

    $$
    B^k(k-1)\delta,\qquad\delta=4^{-(n+1)},
    $$

    and the network is exactly 0 where a factor is. Depth $\lceil\log_2k\rceil(n+1)+1$.

    >>> triple = many_product_network(3, levels=6)
    >>> triple.bound, triple.size.depth
    (0.0001220703125, 15)
    >>> triple(torch.tensor([[1.0, -1.0, 0.5], [0.3, 0.0, 0.9]]).double()).tolist()
    [-0.5, 0.0]
    """
    whole_number(factors, "factors", least=1)
    whole_number(levels, "levels", least=1)
    positive_number(bound, "bound")
    eye = torch.eye(factors, dtype=torch.float64)
    maps = [(eye / bound, eye.new_zeros(factors))]
    while (left := len(maps[-1][0])) > 1:
        maps = merge_maps(_pairwise(levels, left), maps)
    weight, bias = maps[-1]
    network = relu_chain([*maps[:-1], (bound**factors * weight, bound**factors * bias)])
    box = ((-float(bound), float(bound)),) * factors
    error = bound**factors * (factors - 1) * 4.0 ** -(levels + 1)
    return Approximant(network, error, box, "X-28")


def _squares(levels: int, forms: Tensor, scale: float, weights: Sequence[float]) -> Maps:
    """The layers of a weighted sum of squares of linear forms, side by side."""
    copies = len(weights)
    first, *between, last = (
        (block_diagonal(*[w] * copies), b.repeat(copies))
        for w, b in layer_maps_of(square_network(levels))
    )
    total = scale * torch.tensor([weights], dtype=torch.float64)
    return [(first[0] @ forms, first[1]), *between, (total @ last[0], total @ last[1])]


def _pairwise(levels: int, count: int) -> Maps:
    """Numbers next to each other multiplied; the last of an odd number is handed on."""
    maps = layer_maps_of(product_network(levels))
    both = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    joined = []
    for i, (w, b) in enumerate(maps):
        blocks, bias = [w] * (count // 2), [b] * (count // 2)
        if count % 2:
            keep = both if i == 0 else both.T if i == len(maps) - 1 else torch.eye(2).to(both)
            blocks, bias = [*blocks, keep], [*bias, keep.new_zeros(len(keep))]
        joined.append((block_diagonal(*blocks), torch.cat(bias)))
    return joined
