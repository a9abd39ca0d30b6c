r"""How far a sample can be from the truth: Bernstein, McDiarmid, and unions over a class.

Hoeffding's radius for one function is `torchtheory.core.intervals.hoeffding_radius`. It
holds for a function chosen *before* the sample was seen; for one chosen by it, the radius must
hold for all functions at once, and pays with a logarithm of how many there are.
Sources: Foundations of Deep Learning, sections 8.1 and 8.4; Mathematical Aspects of Deep Learning,
Theorem 1.19, section 1.2.1 and Lemma 2.11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchtheory.core.checks import (
    all_finite,
    first_entry,
    nonnegative_number,
    open_fraction,
    whole_number,
)
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch


def finite_class_radius(
    functions: float,
    n: int,
    delta: float,
    *,
    low: float = 0.0,
    high: float = 1.0,
    one_sided: bool = False,
) -> float:
    r"""$(b-a)\sqrt{(\log N+\log(2/\delta))/(2n)}$, for all $N$ functions at once.

    With probability at least $1-\delta$, $|R(f)-R_S(f)|$ is at most this for every
    function of the class, losses in $[a,b]$. `one_sided` bounds $R-R_S$ only, with
    $\log(1/\delta)$. The number may be huge, such as $2^{\text{bits}}$; use
    `weighted_class_radius` where it is too large for a float.

    Source: Foundations of Deep Learning, Eq. (8.3).

    >>> round(finite_class_radius(100, 1000, 0.05), 6), round(finite_class_radius(1, 1000, 0.05), 6)
    (0.064397, 0.042947)
    """
    if not functions >= 1:
        raise InvalidInput(f"a class has at least one function, not {functions}")
    return weighted_class_radius(
        math.log(functions), n, delta, low=low, high=high, one_sided=one_sided
    )


def weighted_class_radius(
    cost: float,
    n: int,
    delta: float,
    *,
    low: float = 0.0,
    high: float = 1.0,
    one_sided: bool = False,
) -> float:
    r"""$(b-a)\sqrt{(\log(1/p(f))+\log(2/\delta))/(2n)}$ for a function of weight
    $p(f)$.

    The weights of a countable class are fixed before the sample is seen and sum to at most 1; then
    with probability at least $1-\delta$ this holds for every function with its own radius.
    A function described by $k$ bits in a prefix code has the weight $2^{-k}$.

    Args:
        cost: $\log(1/p(f))\ge0$, in nats.
        n: sample size.
        delta: the probability that the bound fails.
        low, high: range of the loss.
        one_sided: bound $R-R_S$ only, with $\log(1/\delta)$.

    Source: Mathematical Aspects of Deep Learning, Theorem 1.19.

    >>> round(weighted_class_radius(math.log(1000), 10_000, 0.05), 5)
    0.02302
    """
    _check(n, delta)
    nonnegative_number(cost, "log(1/p(f))")
    if not low < high:
        raise InvalidInput(f"the range [{low}, {high}] is empty")
    confidence = math.log((1 if one_sided else 2) / delta)
    return (high - low) * math.sqrt((cost + confidence) / (2 * n))


def bernstein_radius(
    variance: float, bound: float, n: int, delta: float, *, relaxed: bool = False
) -> float:
    r"""One-sided Bernstein radius of the mean of $n$ independent variables.

    For $\mathbb E\,\kappa=0$, $\kappa\le C$ and $\mathbb E\,\kappa^2\le\gamma^2$,
    with $t=\log(1/\delta)/n$, the mean is at most
    $\tfrac{Ct}3+\sqrt{(\tfrac{Ct}3)^2+2\gamma^2t}$ with probability at least
    $1-\delta$; `relaxed` is the larger $\tfrac{2Ct}3+\sqrt{2\gamma^2t}$.

    >>> bernstein_radius(0.0, 3.0, 10, math.exp(-5)), bernstein_radius(1.0, 1e-9, 2, math.exp(-1))
    (1.0, 1.0000000001666667)
    """
    _check(n, delta)
    return matrix_bernstein_radius(n * variance, bound, 1, delta, relaxed=relaxed) / n


def matrix_bernstein_tail(threshold: float, variance: float, bound: float, dimension: int) -> float:
    r"""$d\exp\bigl(-\tfrac{t^2/2}{\gamma^2+Rt/3}\bigr)$, capped at 1.

    It bounds the probability that the largest eigenvalue of a sum of independent symmetric
    $d\times d$ matrices with mean 0 and largest eigenvalues at most $R$ reaches
    $t$, where $\gamma^2=\|\sum_i\mathbb E\,M_i^2\|$.

    Source: Mathematical Aspects of Deep Learning, Lemma 2.11 (Tropp).

    >>> matrix_bernstein_tail(0.0, 1.0, 1.0, 3)
    1.0
    """
    _check_matrices(variance, bound, dimension)
    if not threshold >= 0:
        raise InvalidInput(f"the threshold must not be negative, and {threshold} is")
    if threshold == 0:
        return 1.0
    exponent = threshold**2 / 2 / (variance + bound * threshold / 3)
    return min(1.0, dimension * math.exp(-exponent))


def matrix_bernstein_radius(
    variance: float, bound: float, dimension: int, delta: float, *, relaxed: bool = False
) -> float:
    r"""Where `matrix_bernstein_tail` falls to $\delta$.

    $\tfrac R3u+\sqrt{(\tfrac R3u)^2+2\gamma^2u}$ with $u=\log(d/\delta)$; `relaxed`
    is the larger $\tfrac{2R}3u+\sqrt{2\gamma^2u}$.

    >>> t = matrix_bernstein_radius(2.0, 1.0, 5, 0.1)
    >>> round(matrix_bernstein_tail(t, 2.0, 1.0, 5), 12)
    0.1
    """
    _check(1, delta)
    _check_matrices(variance, bound, dimension)
    u = math.log(dimension / delta)
    third = bound * u / 3
    if relaxed:
        return 2 * third + math.sqrt(2 * variance * u)
    return third + math.sqrt(third**2 + 2 * variance * u)


def mcdiarmid_tail(differences: Sequence[float] | Tensor, threshold: float) -> float:
    r"""McDiarmid: $\Pr(|f(X)-\mathbb E f(X)|\ge\varepsilon)\le 2\exp(-2\varepsilon^2/\sum_ic_i^2)$,
    capped at 1.

    For independent $X_1,\dots,X_n$ and a function *of all of them* that changes by at most
    $c_i$ when the $i$-th is replaced.

    Source: Foundations of Deep Learning, section 8.4.

    >>> round(mcdiarmid_tail([0.5, 0.5], 0.5), 6) == round(2 * math.exp(-1), 6)
    True
    """
    if not threshold >= 0:
        raise InvalidInput(f"the threshold must not be negative, and {threshold} is")
    spread = _sum_of_squares(differences)
    if spread == 0:
        return 0.0 if threshold > 0 else 1.0
    return min(1.0, 2 * math.exp(-2 * threshold**2 / spread))


def mcdiarmid_radius(differences: Sequence[float] | Tensor, delta: float) -> float:
    r"""$\sqrt{\tfrac12\log(2/\delta)\sum_ic_i^2}$, where the tail falls to $\delta$.

    For the mean of $n$ values in $[0,1]$, $c_i=1/n$ gives Hoeffding's radius; so
    it does for $\sup_f|R(f)-R_S(f)|$ over any class with losses in $[0,1]$.

    >>> from torchtheory.core.intervals import hoeffding_radius
    >>> abs(mcdiarmid_radius([1 / 50] * 50, 0.05) - hoeffding_radius(50, 0.05)) < 1e-15
    True
    """
    _check(1, delta)
    return math.sqrt(math.log(2 / delta) * _sum_of_squares(differences) / 2)


def observed_differences(
    function: Callable[[Tensor], Tensor], x: Tensor, replacements: Tensor
) -> Tensor:
    r"""How much $f$ changes when one of its arguments is replaced: a *lower* bound of
    $c_i$.

    Args:
        function: of `[..., n]`, value `[...]`.
        x: `[k, n]`, places to start from.
        replacements: `[k, n]`, what to put there, one argument at a time.

    Returns:
        `[n]`, the largest change seen for each argument. $kn$ evaluations.

    >>> observed_differences(lambda x: x.mean(-1), torch.zeros(1, 4), torch.ones(1, 4))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    if x.ndim != 2 or x.shape != replacements.shape:
        raise ShapeMismatch(
            f"x and replacements must be [k, n] alike, not {list(x.shape)} and "
            f"{list(replacements.shape)}"
        )
    if x.numel() == 0:
        raise EmptyData(f"there is nothing to replace (the shape is {list(x.shape)})")
    before = function(x)
    found = []
    for i in range(x.shape[1]):
        moved = x.clone()
        moved[:, i] = replacements[:, i]
        found.append((function(moved) - before).abs().max())
    return torch.stack(found)


def _sum_of_squares(differences: Sequence[float] | Tensor) -> float:
    c = torch.as_tensor(differences, dtype=torch.float64)
    if c.numel() == 0:
        raise EmptyData(f"McDiarmid's inequality needs at least one argument, not {list(c.shape)}")
    all_finite(c, "the differences")
    if bool((c < 0).any()):
        raise InvalidInput(
            f"a bound of a difference is not negative: {first_entry(c, 'the value', c < 0)}"
        )
    return float(c.square().sum())


def _check(n: int, delta: float) -> None:
    if n < 1:
        raise EmptyData(f"an inequality for a sample needs at least one observation, not {n!r}")
    open_fraction(delta, "delta")


def _check_matrices(variance: float, bound: float, dimension: int) -> None:
    if not 0 <= variance < math.inf or not 0 <= bound < math.inf or variance + bound == 0:
        raise InvalidInput(
            f"variance and bound must be finite, >= 0 and not both 0, not {variance} and {bound}"
        )
    whole_number(dimension, "the dimension", least=1)
