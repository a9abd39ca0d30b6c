r"""Polynomials by ReLU networks, with an error known from the coefficients alone.

A polynomial is a mapping from exponents to coefficients,
$p(x)=\sum_\alpha c_\alpha x^\alpha$ as `{alpha: c}`, for example $2xy^3-1$ as
`{(1, 3): 2.0, (0, 0): -1.0}`. Each monomial is a tree of products
(`many_product_network`) with an error
$\epsilon_\alpha$, so that the whole errs by at most
$\sum_\alpha|c_\alpha|\epsilon_\alpha$, and that is halved twice for one more level of every
product. Source: Mathematical Aspects of Deep Learning, Theorem 3.10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, Box, as_box
from torchtheory.approximation.network_calculus import chain, combine, compose
from torchtheory.approximation.polynomials.products import many_product_network
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch

Polynomial = Mapping[tuple[int, ...], float]


def polynomial_network(
    terms: Polynomial,
    levels: int,
    domain: Sequence[tuple[float, float]] | tuple[float, float] | None = None,
) -> Approximant:
    r"""$\sum_\alpha c_\alpha x^\alpha$ on a box within

    $$
    \sum_\alpha|c_\alpha|\,B^{|\alpha|}(|\alpha|-1)_+\,4^{-(n+1)},
    $$

    where $B$ is the largest coordinate of the box in absolute value. Constants and linear
    terms are exact. Depth $\lceil\log_2k\rceil(n+1)+1$ for degree $k$.

    Args:
        terms: coefficients by exponents, all of one length $d$.
        levels: $n$, of the squares inside the products.
        domain: the box; $[-1,1]^d$ unless told.

    >>> cubic = polynomial_network({(3,): 4.0, (1,): -3.0}, levels=8)         # Chebyshev's
    >>> bool((cubic(torch.tensor([0.5]).double()) + 1).abs() <= cubic.bound)
    True
    >>> cubic.bound == 4 * 2 * 4.0**-9
    True
    """
    whole_number(levels, "levels", least=1)
    d = polynomial_variables(terms)
    box = as_box(((-1.0, 1.0),) * d if domain is None else domain)
    if len(box) != d:
        raise ShapeMismatch(f"exponents of {d} variables on a box of {len(box)} dimensions")
    reach = _reach(box)
    linear = torch.zeros(1, d, dtype=torch.float64)
    constant = torch.zeros(1, dtype=torch.float64)
    parts, weights = [], []
    for alpha, c in terms.items():
        if sum(alpha) == 0:
            constant += c
        elif sum(alpha) == 1:
            linear[0, alpha.index(1)] += c
        else:
            rows = [i for i, power in enumerate(alpha) for _ in range(power)]
            choose = torch.eye(d, dtype=torch.float64)[rows]
            product = many_product_network(len(rows), levels, reach).network
            assert isinstance(product, nn.Sequential)
            parts.append(compose(product, chain([(choose, choose.new_zeros(len(rows)))], [])))
            weights.append(float(c))
    parts.append(chain([(linear, constant)], []))
    network = combine([*weights, 1.0], parts)
    error = polynomial_scale(terms, reach) * 4.0 ** -(levels + 1)
    return Approximant(network, error, box, "X-28")


def polynomial_levels(terms: Polynomial, error: float, bound: float = 1.0) -> int:
    r"""The fewest levels of `polynomial_network` whose promise is at most `error`.

    >>> p = {(3,): 4.0, (1,): -3.0}
    >>> n = polynomial_levels(p, 1e-4)
    >>> polynomial_network(p, n).bound <= 1e-4 < polynomial_network(p, n - 1).bound
    True
    """
    positive_number(error, "error")
    scale = polynomial_scale(terms, bound)
    levels = 1
    while scale * 4.0 ** -(levels + 1) > error:
        levels += 1
    return levels


def polynomial_scale(terms: Polynomial, bound: float = 1.0) -> float:
    r"""$\sum_\alpha|c_\alpha|B^{|\alpha|}(|\alpha|-1)_+$: the error in units of a product's.

    >>> polynomial_scale({(2, 1): -3.0, (1, 0): 5.0})
    6.0
    """
    polynomial_variables(terms)
    positive_number(bound, "bound")
    return sum(abs(c) * bound ** sum(alpha) * max(sum(alpha) - 1, 0) for alpha, c in terms.items())


def polynomial_values(terms: Polynomial, x: Tensor) -> Tensor:
    r"""$\sum_\alpha c_\alpha x^\alpha$ at points `x[n, d]`: `[n]`.

    >>> polynomial_values({(1, 1): 2.0, (0, 0): -1.0}, torch.tensor([[3.0, 4.0]])).item()
    23.0
    """
    d = polynomial_variables(terms)
    points = x.unsqueeze(1) if x.ndim == 1 else x
    if points.ndim != 2 or points.shape[1] != d:
        raise ShapeMismatch(f"a polynomial of {d} variables takes [n, {d}], not {list(x.shape)}")
    total = points.new_zeros(len(points))
    for alpha, c in terms.items():
        total = total + c * math.prod(points[:, i] ** power for i, power in enumerate(alpha))
    return total


def polynomial_variables(terms: Polynomial) -> int:
    """How many variables a polynomial has; refuses what is none.

    >>> polynomial_variables({(0, 2): 1.0})
    2
    """
    if not terms:
        raise EmptyData("a polynomial needs at least one term; zero is {(0,): 0.0}")
    lengths = {len(alpha) for alpha in terms}
    if len(lengths) > 1 or 0 in lengths:
        raise ShapeMismatch(f"all exponents belong to the same variables, not to {sorted(lengths)}")
    for alpha, c in terms.items():
        if any(isinstance(e, bool) or not isinstance(e, int) or e < 0 for e in alpha):
            raise InvalidInput(f"exponents are whole numbers >= 0, not {alpha}")
        if not math.isfinite(c):
            raise NonFinite(f"the coefficient of {alpha} is {c}")
    return lengths.pop()


def _reach(box: Box) -> float:
    return max(max(abs(low), abs(high)) for low, high in box)
