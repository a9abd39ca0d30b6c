r"""Division by ReLU networks: the reciprocal, and quotients of polynomials.

On $[a,1]$, with $y=1-x$, the geometric series in its product form

$$
\frac1x=\prod_{j\ge0}\big(1+y^{2^j}\big),\qquad
0\le\frac1x-\prod_{j<k}\big(1+y^{2^j}\big)\le\frac{(1-a)^{2^k}}a
$$

needs one square and one product more for twice as many terms. The number of factors grows like
$\log_2\big(\tfrac1a\log\tfrac1{a\epsilon}\big)$: denominators have to stay away from 0.
Source: Mathematical Aspects of Deep Learning, section 3.4, footnote 9 (Telgarsky).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.layer_maps import (
    Maps,
    affine_map,
    layer_maps_of,
    merge_maps,
    relu_chain,
)
from torchtheory.approximation.network_calculus import stack
from torchtheory.approximation.polynomials.products import product_network
from torchtheory.approximation.polynomials.relu import (
    Polynomial,
    polynomial_levels,
    polynomial_network,
)
from torchtheory.approximation.polynomials.squaring import square_network, squaring_levels
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput


def reciprocal_factors(low: float, error: float) -> int:
    r"""The fewest $k$ with $(1-a)^{2^k}/a\le\epsilon$.

    >>> reciprocal_factors(0.5, 1e-3), 0.5 ** 2**4 / 0.5 <= 1e-3 < 0.5 ** 2**3 / 0.5
    (4, True)
    """
    _below_one(low)
    positive_number(error, "error")
    k = 1
    while (1 - low) ** 2**k / low > error:
        k += 1
    return k


def reciprocal_error(low: float, factors: int, levels: int) -> float:
    r"""What squares and products of `levels` $n$ add to the error of the reciprocal.

    With $\delta=4^{-(n+1)}$ and $\hat y_j=(1-a)^{2^j}$, the error $e_j$ of the
    $j$-th power and the error $q_j$ of half of $a$ times the product follow

    $$
    e_{j+1}=\delta+(2\hat y_j+e_j)\,e_j,\qquad
    q_{j+1}=(1+\hat y_j)\,q_j+\delta+(\tfrac12+q_j)\,e_j,
    $$

    and the sum is $2q_k/a$; infinite where $q_j$ passes 1/2, the room that was left.

    >>> reciprocal_error(0.1, 6, 20) < 1e-7
    True
    """
    _below_one(low)
    whole_number(factors, "factors", least=1)
    whole_number(levels, "levels", least=1)
    delta = 4.0 ** -(levels + 1)
    power, total = 0.0, 0.0
    for j in range(factors):
        top = (1 - low) ** 2**j
        total = (1 + top) * total + delta + (0.5 + total) * power
        if total > 0.5:
            return math.inf
        power = delta + (2 * top + power) * power
    return 2 * total / low


def reciprocal_network(low: float, error: float) -> Approximant:
    r"""$1/x$ on $[a,1]$ within $\epsilon$.

    Half of the error is for the factors left out and half for squares and products. The state
    $(y_j,Q_j)=(y^{2^j},\tfrac a2\prod_{i<j}(1+y^{2^i}))$ stays in
    $[0,1]\times[0,1]$, and one stage computes
    $(f_n(y_j),\,Q_j+Q_j\tilde\times y_j)$. Depth $O(kn)$, width at most 11.

    Args:
        low: $a$, above 0 and below 1.
        error: $\epsilon$.

    >>> import torch
    >>> inverse = reciprocal_network(0.25, 1e-3)
    >>> bool((inverse(torch.tensor([0.25, 0.5, 1.0]).double()) - torch.tensor([4, 2, 1])).abs()
    ...     .max() <= inverse.bound <= 1e-3)
    True
    """
    factors = reciprocal_factors(low, error / 2)
    levels = 1
    while reciprocal_error(low, factors, levels) > error / 2:
        levels += 1
    maps = affine_map([[-1.0], [0.0]], [1.0, low / 2])
    stage = _stage(levels)
    for _ in range(factors - 1):
        maps = merge_maps(stage, maps)
    maps = merge_maps(_last_stage(levels), maps)
    network = relu_chain(merge_maps(affine_map([[2 / low]]), maps))
    bound = (1 - low) ** 2**factors / low + reciprocal_error(low, factors, levels)
    return Approximant(network, bound, ((float(low), 1.0),), "X-33")


@dataclass(frozen=True, slots=True, kw_only=True)
class RationalNetwork(Approximant):
    """A quotient of polynomials as a network; its bound is the sum of three parts.

    Attributes:
        numerator: what the numerator's error is worth.
        denominator: what the errors of the denominator and of its reciprocal are worth.
        product: error of the last product.
    """

    numerator: float
    denominator: float
    product: float


def rational_network(
    numerator: Polynomial,
    denominator: Polynomial,
    error: float,
    *,
    low: float,
    high: float,
    largest: float,
    domain: Sequence[tuple[float, float]] | tuple[float, float] | None = None,
) -> RationalNetwork:
    r"""$p/q$ on a box within $\epsilon$, where $0<a\le q\le b$, $|p|\le P$.

    $\tilde q$ is kept within $a/2$ of $q$, so that the reciprocal is asked on
    $[\tfrac a2,b+\tfrac a2]$ only, and

    $$
    \Big|\tilde p\,\tilde\times\,\tilde r-\frac pq\Big|\le\epsilon_\times
    +\tfrac2a\,\epsilon_p\,+P\Big(\epsilon_r+\frac{2\epsilon_q}{a^2}\Big),
    $$

    with the factor $\tfrac2a$ increased by $\epsilon_r$. A third of $\epsilon$
    goes to each part.

    Args:
        numerator: $p$; see `torchtheory.approximation.polynomials.relu`.
        denominator: $q$.
        error: $\epsilon$.
        low: $a$; the promise is wrong if the denominator falls below it on the box.
        high: $b$.
        largest: $P$.
        domain: the box; $[-1,1]^d$ unless told.

    >>> import torch
    >>> made = rational_network({(1,): 1.0}, {(0,): 1.0, (2,): 1.0}, 1e-2, low=1, high=2, largest=1)
    >>> bool((made(torch.tensor([0.5]).double()) - 0.4).abs() <= 1e-2)
    True
    """
    positive_number(error, "error")
    positive_number(low, "low")
    positive_number(largest, "largest")
    if not (math.isfinite(high) and high >= low):
        raise InvalidInput(f"high must be a number >= low = {low:g}, not {high}")
    part = error / 3
    top = high + low / 2
    # of the two halves of the denominator's third, one is for q and one for its reciprocal
    room = min(low / 2, part / 2 * low**2 / (2 * largest))
    inverse = reciprocal_network(low / 2 / top, part / 2 / largest * top)
    inverse_error = inverse.bound / top
    steepest = 2 / low + inverse_error
    q = _polynomial(denominator, room, domain)
    p = _polynomial(numerator, part / steepest, domain)
    reach = largest + p.bound
    gate = product_network(squaring_levels(part, scale=reach * steepest))
    quotient = merge_maps(affine_map([[1 / (top * steepest)]]), layer_maps_of(inverse))
    quotient = merge_maps(quotient, merge_maps(affine_map([[1 / top]]), layer_maps_of(q)))
    above = merge_maps(affine_map([[1 / reach]]), layer_maps_of(p))
    both = layer_maps_of(stack(relu_chain(above), relu_chain(quotient)))
    network = relu_chain(
        merge_maps(affine_map([[reach * steepest]]), merge_maps(layer_maps_of(gate), both))
    )
    parts = (
        p.bound * steepest,
        largest * (inverse_error + 2 * q.bound / low**2),
        reach * steepest * gate.bound,
    )
    return RationalNetwork(
        network=network,
        bound=sum(parts),
        domain=p.domain,
        theorem="X-33",
        numerator=parts[0],
        denominator=parts[1],
        product=parts[2],
    )


def _polynomial(
    terms: Polynomial,
    error: float,
    domain: Sequence[tuple[float, float]] | tuple[float, float] | None,
) -> Approximant:
    trial = polynomial_network(terms, 1, domain)
    reach = max(max(abs(a), abs(b)) for a, b in trial.domain)
    return polynomial_network(terms, polynomial_levels(terms, error, reach), domain)


def _stage(levels: int) -> Maps:
    """From (y, Q) to (y², Q + Qy)."""
    first = affine_map([[1.0, 0.0]])
    square = relu_chain(merge_maps(layer_maps_of(square_network(levels)), first))
    joined = stack(square, _second(), relu_chain(layer_maps_of(product_network(levels))))
    return merge_maps(affine_map([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]), layer_maps_of(joined))


def _last_stage(levels: int) -> Maps:
    """From (y, Q) to Q + Qy."""
    joined = stack(_second(), relu_chain(layer_maps_of(product_network(levels))))
    return merge_maps(affine_map([[1.0, 1.0]]), layer_maps_of(joined))


def _second() -> nn.Sequential:
    return relu_chain(affine_map([[0.0, 1.0]]))


def _below_one(low: float) -> None:
    if not 0 < low < 1:
        raise InvalidInput(f"the reciprocal is taken on [low, 1] with 0 < low < 1, not {low}")
