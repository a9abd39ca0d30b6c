r"""Multiplication by a *fixed* number of smooth units, however small the error.

Where $\sigma^{(d)}(x_0)\ne0$, the alternating sum over signs keeps of Taylor's series the
product and terms of two orders more:

$$
\prod_{i=1}^dx_i=\frac1{2^dh^d\sigma^{(d)}(x_0)}\sum_{s\in\{\pm1\}^d}
\Big(\prod_is_i\Big)\,\sigma\Big(x_0+h\sum_is_ix_i\Big)+O(h^2).
$$

One hidden layer takes $2^d$ units for that, a tree of products of two takes
$4(d-1)$. The output weights are of size $h^{-d}$: rounding limits what doubles can
do, and much sooner for the wide network. Sources: Mathematical Aspects of Deep Learning, Remark
3.11 and section 3.7 (Rolnick and Tegmark).
"""

from __future__ import annotations

import math
from itertools import product

import torch

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.layer_maps import Maps
from torchtheory.approximation.network_calculus import block_diagonal, chain
from torchtheory.approximation.polynomials.divided_differences import (
    ROUNDOFF,
    StepError,
    activation_derivative,
    largest_derivative,
    monomial_error,
    smooth_layer,
    vanishes,
)
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput


def smooth_square_network(
    activation: str, center: float, step: float, *, radius: float = 1.0
) -> Approximant:
    r"""$x^2$ on $[-r,r]$ by two units of an activation with $\sigma''(x_0)\ne0$.

    $$
    \frac{\sigma(x_0+hx)-2\sigma(x_0)+\sigma(x_0-hx)}{h^2\sigma''(x_0)}
    =x^2+\frac{h^2x^4}{12}\frac{\sigma''''(x_0)}{\sigma''(x_0)}+O(h^4).
    $$

    The bound is that of the central difference,
    `monomial_error`, rounding included.

    >>> square = smooth_square_network("softplus", 0.0, 1e-3)
    >>> square.size.units, bool((square(torch.tensor([0.5]).double()) - 0.25).abs() < 1e-7)
    (2, True)
    """
    promised = monomial_error(2, activation, center, step, radius=radius, central=True)
    scale = step**2 * _derivative(activation, center, 2)
    inner = torch.tensor([[step], [-step]], dtype=torch.float64)
    outer = torch.full((1, 2), 1 / scale, dtype=torch.float64)
    rest = torch.tensor([-2 * _derivative(activation, center, 0) / scale], dtype=torch.float64)
    maps = [(inner, torch.full((2,), center, dtype=torch.float64)), (outer, rest)]
    network = chain(maps, [smooth_layer(activation)])
    return Approximant(network, promised.total, ((-radius, radius),), "X-29")


def shallow_product_network(
    factors: int, activation: str, center: float, step: float, *, bound: float = 1.0
) -> Approximant:
    r"""$x_1\cdots x_d$ on $[-B,B]^d$ by $2^d$ units of one hidden layer.

    Four units for a product of two; the bound is `shallow_product_error`.

    >>> times = shallow_product_network(2, "exp", 0.0, 1e-3)
    >>> times.size.units, bool((times(torch.tensor([[0.5, -1.0]]).double()) + 0.5).abs() < 1e-6)
    (4, True)
    """
    promised = shallow_product_error(factors, activation, center, step, bound=bound)
    network = chain(_gate(factors, activation, center, step), [smooth_layer(activation)])
    return Approximant(network, promised.total, ((-bound, bound),) * factors, "X-67")


def shallow_product_error(
    factors: int, activation: str, center: float, step: float, *, bound: float = 1.0
) -> StepError:
    r"""What `shallow_product_network` promises.

    Truncation by Taylor's remainder, with the mean over signs at a corner of the box:

    $$
    \frac{h^2B^{d+2}}{(d+2)!}\,\frac{\max|\sigma^{(d+2)}|}{|\sigma^{(d)}(x_0)|}\,
    \mathbb E_s\Big|\sum_is_i\Big|^{d+2};
    $$

    rounding: $(2^d+8)\,u\,(\max|\sigma|+\max|z\sigma'|)/h^d|\sigma^{(d)}(x_0)|$.

    >>> round(shallow_product_error(2, "exp", 0.0, 0.1).truncation, 6)      # 0.01 e^0.2 / 3
    0.004071
    """
    whole_number(factors, "factors", least=1)
    positive_number(step, "step")
    positive_number(bound, "bound")
    d = factors
    slope = abs(_derivative(activation, center, d))
    if vanishes(slope, activation, d, center):
        raise InvalidInput(
            f"derivative {d} of {activation} is 0 at {center:g}: choose another center"
        )
    reach = step * bound * d
    low, high = center - reach, center + reach
    moment = sum(math.comb(d, j) * abs(d - 2 * j) ** (d + 2) for j in range(d + 1)) / 2**d
    bend = largest_derivative(activation, d + 2, low, high)
    truncation = step**2 * bound ** (d + 2) * bend * moment / (math.factorial(d + 2) * slope)
    size = largest_derivative(activation, 0, low, high)
    size += largest_derivative(activation, 1, low, high) * max(abs(low), abs(high))
    return StepError(truncation, (2**d + 8) * ROUNDOFF * size / (step**d * slope))


def best_product_step(factors: int, activation: str, center: float, *, bound: float = 1.0) -> float:
    r"""The step at which truncation and rounding of the product are least together.

    >>> best_product_step(2, "exp", 0.0) < best_product_step(6, "exp", 0.0)
    True
    """
    trial = 0.01
    parts = shallow_product_error(factors, activation, center, trial, bound=bound)
    a, b = parts.truncation / trial**2, parts.rounding * trial**factors
    return trial if a == 0 else float((factors * b / (2 * a)) ** (1 / (factors + 2)))


def deep_product_network(factors: int, activation: str, center: float, step: float) -> Approximant:
    r"""$x_1\cdots x_d$ on $[-1,1]^d$ by a binary tree of products of two.

    $4(d-1)$ units in $\lceil\log_2d\rceil$ hidden layers where $d$ is a power
    of 2. A number left over on a level is handed on by two units more, the central difference of
    $\sigma$ itself, for which $\sigma'(x_0)\ne0$ is needed as well. The error of a
    level is that of its gates, on the range the level before may have reached, and
    $(2+e)\,e$ for the error $e$ of the level before.

    >>> made = deep_product_network(8, "exp", 0.0, 1e-3)
    >>> made.size.units, made.size.depth
    (28, 4)
    """
    whole_number(factors, "factors", least=2)
    gate = _gate(2, activation, center, step)
    slope = _derivative(activation, center, 1)
    maps: Maps = [(torch.eye(factors, dtype=torch.float64), torch.zeros(factors).double())]
    error = 0.0
    while (left := len(maps[-1][0])) > 1:
        reach = 1 + error
        made = shallow_product_error(2, activation, center, step, bound=reach)
        inner, outer = [gate[0][0]] * (left // 2), [gate[1][0]] * (left // 2)
        # merged layers round once more
        handed = made.truncation + 2 * made.rounding
        if left % 2:
            kept = monomial_error(1, activation, center, 2 * step, radius=reach, central=True)
            handed = max(handed, kept.truncation + 2 * kept.rounding)
            inner.append(torch.tensor([[step], [-step]], dtype=torch.float64))
            both = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
            outer.append(both / (2 * step * slope))
        error = handed + (1 + reach) * error
        weight, bias = block_diagonal(*inner), torch.full((1,), center, dtype=torch.float64)
        a, b = maps[-1]
        total = block_diagonal(*outer)
        first = (weight @ a, weight @ b + bias)
        maps = [*maps[:-1], first, (total, total.new_zeros(len(total)))]
    network = chain(maps, [smooth_layer(activation) for _ in maps[1:]])
    return Approximant(network, error, ((-1.0, 1.0),) * factors, "X-67")


def _gate(factors: int, activation: str, center: float, step: float) -> Maps:
    signs = torch.tensor(list(product((1.0, -1.0), repeat=factors)), dtype=torch.float64)
    scale = (2 * step) ** factors * _derivative(activation, center, factors)
    outer = signs.prod(1, keepdim=True).T / scale
    bias = torch.full((len(signs),), center, dtype=torch.float64)
    return [(step * signs, bias), (outer, outer.new_zeros(1))]


def _derivative(activation: str, center: float, order: int) -> float:
    at = torch.tensor(float(center), dtype=torch.float64)
    return float(activation_derivative(activation, at, order))
