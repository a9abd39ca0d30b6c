r"""Functions of several variables as sums of ridge functions; networks lifted from one variable.

Every monomial is a sum of powers of linear forms (polarization), so polynomials are sums of ridge
functions, and ridge functions take networks of one variable to several. Source: Foundations of
Deep Learning, Theorems 21 and 22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import torch
from torch import nn

from torchtheory.approximation.certificates import Approximant, as_box
from torchtheory.approximation.network_calculus import chain, combine, compose
from torchtheory.core.checks import described
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch, UnsupportedModel


@dataclass(frozen=True, slots=True)
class RidgePowers:
    r"""$\sum_ic_i(\theta_i\cdot x)^k$ with whole directions and rational coefficients.

    Attributes:
        directions: $\theta_i$, no two parallel.
        coefficients: $c_i$, none 0.
        power: $k$.

    Calling it at a point of whole numbers or fractions gives the exact value.
    """

    directions: tuple[tuple[int, ...], ...]
    coefficients: tuple[Fraction, ...]
    power: int

    def __call__(self, x: Sequence[int | Fraction]) -> Fraction:
        return sum(
            (
                c * Fraction(sum(t * v for t, v in zip(theta, x, strict=True))) ** self.power
                for theta, c in zip(self.directions, self.coefficients, strict=True)
            ),
            Fraction(0),
        )


def monomial_as_ridges(exponents: Sequence[int]) -> RidgePowers:
    r"""$x_1^{e_1}\cdots x_n^{e_n}$ as a sum of powers of linear forms.

    Polarization: for $k$ factors,

    $$
    y_1\cdots y_k=\frac1{2^kk!}\sum_{s\in\{\pm1\}^k}\Bigl(\prod_is_i\Bigr)
    \Bigl(\sum_is_iy_i\Bigr)^k,
    $$

    with equal factors put together. Time: $O(2^k)$.

    >>> xy = monomial_as_ridges([1, 1])              # xy = ¼(x + y)² - ¼(x - y)²
    >>> xy.directions, xy.coefficients
    (((1, 1), (1, -1)), (Fraction(1, 4), Fraction(-1, 4)))
    """
    if not exponents or any(isinstance(e, bool) or e < 0 for e in exponents):
        raise InvalidInput(f"exponents are whole numbers >= 0, at least one, not {exponents}")
    factors = [i for i, e in enumerate(exponents) for _ in range(e)]
    k = len(factors)
    if k == 0:
        raise EmptyData("the constant 1 is no power of a linear form: some exponent must be > 0")
    weight = Fraction(1, 2**k * math.factorial(k))
    found: dict[tuple[int, ...], Fraction] = {}
    for signs in product((1, -1), repeat=k):
        theta = [0] * len(exponents)
        for i, s in zip(factors, signs, strict=True):
            theta[i] += s
        lead = next((t for t in theta if t), 0)
        if lead == 0:
            continue
        turn = 1 if lead > 0 else -1
        key = tuple(turn * t for t in theta)
        found[key] = found.get(key, Fraction(0)) + math.prod(signs) * turn**k * weight
    kept = {theta: c for theta, c in found.items() if c}
    return RidgePowers(tuple(kept), tuple(kept.values()), k)


def ridge_interval(
    direction: Sequence[float], domain: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    r"""The values $\theta\cdot x$ takes on a box.

    >>> ridge_interval([1, -2], [(0.0, 1.0), (0.0, 1.0)])
    (-2.0, 1.0)
    """
    box = as_box(domain)
    if len(direction) != len(box):
        raise ShapeMismatch(f"a direction of {len(direction)} entries in {len(box)} dimensions")
    ends = [sorted((t * low, t * high)) for t, (low, high) in zip(direction, box, strict=True)]
    return float(sum(e[0] for e in ends)), float(sum(e[1] for e in ends))


def lift_networks(
    directions: Sequence[Sequence[float]],
    parts: Sequence[Approximant],
    coefficients: Sequence[float],
    domain: Sequence[tuple[float, float]],
    *,
    ridge_error: float = 0.0,
) -> Approximant:
    r"""The network $\sum_kc_k\,n_k(\theta_k\cdot x)$ from networks of one variable.

    If $|f-\sum_kc_kg_k(\theta_k\cdot x)|\le\epsilon_0$ on the box and each $n_k$ is
    within $\epsilon_k$ of $g_k$ on the interval of $\theta_k\cdot x$, the error
    is at most $\epsilon_0+\sum_k|c_k|\epsilon_k$. Hidden weights are
    $\alpha_{kj}\theta_k$, and units add up.

    >>> from torchtheory.approximation.piecewise.interpolants import relu_interpolant
    >>> square = relu_interpolant(torch.square, 40, (-2.0, 2.0), curvature=2.0)
    >>> times = lift_networks([[1, 1], [1, -1]], [square] * 2, [0.25, -0.25], [(-1, 1), (-1, 1)])
    >>> abs(times(torch.tensor([[0.5, -0.7]]).double()).item() + 0.35) <= times.bound
    True
    """
    box = as_box(domain)
    if not (len(directions) == len(parts) == len(coefficients)) or not parts:
        raise ShapeMismatch(
            f"{len(directions)} directions, {len(parts)} networks and {len(coefficients)} "
            "coefficients: there must be equally many, at least one"
        )
    lifted = []
    for theta, part in zip(directions, parts, strict=True):
        low, high = ridge_interval(theta, box)
        ((from_, to),) = part.domain
        if low < from_ or high > to:
            raise InvalidInput(
                f"direction {list(theta)} takes values in [{low:g}, {high:g}], and its network is "
                f"promised on [{from_:g}, {to:g}] only"
            )
        inner = part.network
        if not isinstance(inner, nn.Sequential):
            raise UnsupportedModel(
                f"a network to lift is a chain of layers, an nn.Sequential, not {described(inner)}"
            )
        form = torch.tensor([list(theta)], dtype=torch.float64)
        lifted.append(compose(inner, chain([(form, form.new_zeros(1))], [])))
    bound = ridge_error + sum(
        abs(float(c)) * p.bound for c, p in zip(coefficients, parts, strict=True)
    )
    network = combine([float(c) for c in coefficients], lifted)
    return Approximant(network, bound, box, "L-087")
