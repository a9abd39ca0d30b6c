r"""PAC-Bayes bounds on the risk of a stochastic classifier, one small function each.

A classifier $f\sim Q$ is drawn anew for every prediction; its risk is
$\mathbb E_QR(f)$ and its empirical risk $\mathbb E_QR_S(f)$. Hypotheses of *every*
bound here: the $N$ samples are independent with one law, the loss lies in [0, 1], and the
prior $P$ was fixed without looking at them. The posterior $Q$ may depend on them in any
way; the bounds hold for all $Q$ at once with probability at least $1-\delta$.
Source: Foundations of Deep Learning, section 9.1.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy import optimize, special
from torch import Tensor

from torchtheory.core.checks import open_fraction, positive_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import as_generator
from torchtheory.generalization.pac_bayes.bernoulli_kl import binary_kl, upper_kl_inverse

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

GRID = 65
#: Halvings of cells on which a supremum is bounded, and how near to a value that shall come.
CELLS, TOLERANCE = 500, 1e-9


@dataclass(frozen=True)
class Deviation:
    r"""A measure $\Delta(r,\hat r)$ of how far a risk is from an empirical risk.

    It must be jointly convex on $[0,1]^2$; a midpoint that shows it is not is refused.

    Attributes:
        name: for people.
        function: $\Delta$, entry by entry on tensors `(risk, empirical_risk)`.

    >>> Deviation("root", lambda r, e: (r - e).abs().sqrt())
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: the deviation root is not jointly convex...
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        a = torch.rand(4, 2000, dtype=torch.float64, generator=as_generator(0))
        (r, s), (e, f) = a[:2], a[2:]
        middle = self.function((r + s) / 2, (e + f) / 2)
        chord = (self.function(r, e) + self.function(s, f)) / 2
        if not bool((middle <= chord + 1e-12 * (1 + chord.abs())).all()):
            raise InvalidInput(
                f"the deviation {self.name} is not jointly convex on [0, 1] x [0, 1], "
                f"and the theorem needs that"
            )

    def __call__(self, risk: Tensor, empirical: Tensor) -> Tensor:
        return self.function(risk, empirical)


SQUARE = Deviation("square", lambda risk, empirical: (risk - empirical).square())
TWICE_SQUARE = Deviation("twice the square", lambda risk, empirical: 2 * (risk - empirical) ** 2)
KL = Deviation("kl", lambda risk, empirical: binary_kl(empirical, risk))


@lru_cache(maxsize=256)
def log_moment(deviation: Deviation, n: int) -> float:
    r"""$\ln J_\Delta(N)$, computed in log-space.

    $$
    J_\Delta(N)=\sup_{m\in[0,1]}\sum_{k=0}^N\binom Nkm^k(1-m)^{N-k}
    e^{N\Delta(m,k/N)}
    $$

    For `KL` the sum is the same for every $m$ inside and is taken as it stands. For another
    deviation it is bounded from above on cells of $[0,1]$: there the logarithm of the binomial law
    is below its tangent and $\Delta$ below its chord, and a sum of exponentials of lines is largest
    at an end. Cells are halved until the bound is within $10^{-9}$ of a value, or as near as 500 of
    them bring it; for `SQUARE` it is at most $\frac12\ln2$, by the Gaussian moments above those of
    errors. A deviation that is infinite at an end of $[0,1]$ has no such bound: what is
    given then is the largest value that a search finds, which is a lower bound. Cost $O(N)$ for
    `KL`, else up to $O(1000N)$.
    Source: Foundations of Deep Learning, Theorem 69.

    >>> round(math.exp(log_moment(KL, 20)), 4), round(math.exp(log_moment(TWICE_SQUARE, 20)), 4)
    (6.2936, 2.9948)
    """
    _count(n)
    k = np.arange(n + 1, dtype=np.float64)
    choose = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    if deviation is KL:
        # m^k (1-m)^(N-k) e^{N kl(k/N || m)} = (k/N)^k (1-k/N)^(N-k)
        return float(
            special.logsumexp(choose + special.xlogy(k, k / n) + special.xlogy(n - k, 1 - k / n))
        )
    empirical = torch.as_tensor(k / n)

    def distance(m: float) -> FloatArray:
        return deviation(torch.full_like(empirical, m), empirical).numpy()

    def moment(m: float) -> float:
        law = choose + special.xlogy(k, m) + special.xlogy(n - k, 1 - m)
        # what has no probability adds nothing, however large its deviation
        possible = law > -np.inf
        terms = np.where(possible, law + n * np.where(possible, distance(m), 0), -np.inf)
        return float(special.logsumexp(terms))

    def most_between(low: float, high: float) -> float:
        middle = (low + high) / 2
        # the law's tangent is a line in k as well
        start = n * math.log1p(-middle), math.log(middle) - math.log1p(-middle)
        turn = -n / (1 - middle), 1 / middle + 1 / (1 - middle)
        largest = -math.inf
        for m in (low, high):
            constant, slope = (a + b * (m - middle) for a, b in zip(start, turn, strict=True))
            terms = n * distance(m) + choose + (constant + slope * k)
            top = float(terms.max())
            largest = max(largest, top + math.log(float(np.exp(terms - top).sum())))
        return largest

    if all(np.isfinite(distance(m)).all() for m in (0.0, 1.0)):
        found = _supremum(moment, most_between)
        return min(found, math.log(2) / 2) if deviation is SQUARE else found
    grid = np.linspace(0.0, 1.0, GRID)
    values = [moment(float(m)) for m in grid]
    best = int(np.argmax(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined = optimize.minimize_scalar(
        lambda m: -moment(m), bounds=around, method="bounded", options={"xatol": 1e-10}
    )
    return max(values[best], -float(refined.fun))


def _supremum(value: Callable[[float], float], most: Callable[[float, float], float]) -> float:
    """An upper bound of a function on [0, 1] from upper bounds on intervals, by branch and bound.

    Args:
        value: of the function at a point.
        most: at least its largest value between two points.
    """
    best = max(value(0.0), value(1.0))
    cells = [(-most(0.0, 1.0), 0.0, 1.0)]
    for _ in range(CELLS):
        bound, low, high = heapq.heappop(cells)
        if -bound <= best + TOLERANCE:
            return max(best, -bound)
        middle = (low + high) / 2
        best = max(best, value(middle))
        for ends in ((low, middle), (middle, high)):
            heapq.heappush(cells, (-most(*ends), *ends))
    return max(best, -cells[0][0])


def deviation_bound(
    deviation: Deviation, empirical: float, kl: float, n: int, delta: float
) -> float:
    r"""The risk bound of any jointly convex deviation, with the exact constant.

    With probability at least $1-\delta$, for all $Q$,

    $$
    \Delta(\mathbb E_QR,\mathbb E_QR_S)\le
    \frac1N\Bigl(\mathrm{KL}(Q\|P)+\ln\frac{J_\Delta(N)}\delta\Bigr),
    $$

    solved for the largest risk. For the deviations of this module $J_\Delta$ is the moment
    of errors; it covers losses in [0, 1] as well, since those have no larger moments of a convex
    function. Source: Foundations of Deep Learning, Theorem 69.

    Args:
        deviation: `SQUARE`, `TWICE_SQUARE`, `KL`, or your own.
        empirical: $\mathbb E_QR_S$ in [0, 1].
        kl: $\mathrm{KL}(Q\|P)$, at least 0, possibly infinite.
        n: number of samples.
        delta: failure probability.

    >>> round(deviation_bound(KL, 0.028, 5144.0, 55_000, 0.035), 3)
    0.161
    """
    _inputs(empirical, kl, n, delta)
    allowed = (kl + log_moment(deviation, n) - math.log(delta)) / n
    if deviation is KL:
        return upper_kl_inverse(empirical, allowed)
    if deviation in (SQUARE, TWICE_SQUARE):
        factor = 1 if deviation is SQUARE else 2
        return min(1.0, empirical + math.sqrt(allowed / factor))

    def excess(risk: float) -> float:
        pair = torch.tensor([risk, empirical], dtype=torch.float64)
        return float(deviation(pair[0], pair[1])) - allowed

    if excess(1.0) <= 0:
        return 1.0
    if excess(empirical) > 0:
        raise InvalidInput(
            f"the deviation {deviation.name} of equal risks exceeds what the bound allows"
        )
    # where the deviation crosses the level: bisection, and the end that lies outside
    low, high = empirical, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return high


def mcallester_bound(empirical: float, kl: float, n: int, delta: float) -> float:
    r"""$\mathbb E_QR_S+\sqrt{\frac2N\bigl[\mathrm{KL}+\ln\frac{2\sqrt N}\delta\bigr]}$.

    As the lectures print it; a factor 4 under the root above `maurer_bound`.
    Source: Foundations of Deep Learning, Theorem 70.

    >>> round(mcallester_bound(0.028, 5144.0, 55_000, 0.035), 3)
    0.461
    """
    _inputs(empirical, kl, n, delta)
    return empirical + math.sqrt(2 * _complexity(kl, n, delta) / n)


def maurer_bound(empirical: float, kl: float, n: int, delta: float) -> float:
    r"""$\mathbb E_QR_S+\sqrt{\frac1{2N}\bigl[\mathrm{KL}+\ln\frac{2\sqrt N}\delta\bigr]}$.

    Maurer's constant with Pinsker's inequality; $N\ge8$.

    >>> round(maurer_bound(0.028, 5144.0, 55_000, 0.035), 3)
    0.244
    """
    _inputs(empirical, kl, n, delta)
    _large(n)
    return empirical + math.sqrt(_complexity(kl, n, delta) / (2 * n))


def seeger_bound(empirical: float, kl: float, n: int, delta: float) -> float:
    r"""The largest $p$ with
    $\mathrm{kl}(\mathbb E_QR_S\,\|\,p)\le \frac1N[\mathrm{KL}+\ln\frac{2\sqrt N}\delta]$.

    The inverted binary divergence with Maurer's constant; $N\ge8$. `deviation_bound`
    with `KL` has the exact constant instead and is never larger.

    >>> round(seeger_bound(0.028, 5144.0, 55_000, 0.035), 3)
    0.161
    """
    _inputs(empirical, kl, n, delta)
    _large(n)
    return upper_kl_inverse(empirical, _complexity(kl, n, delta) / n)


def catoni_bound(
    empirical: float, kl: float, n: int, delta: float, *, temperature: float = 1.0
) -> float:
    r"""Catoni's bound, for a temperature $C>0$ fixed before the samples are seen.

    $$
    \mathbb E_QR\le\frac1{1-e^{-C}}\Bigl[1-\exp\Bigl(-C\,\mathbb E_QR_S
    -\frac{\mathrm{KL}+\ln(1/\delta)}N\Bigr)\Bigr]
    $$

    The least over all $C$ is the inverted kl at $(\mathrm{KL}+\ln(1/\delta))/N$, which
    would hold only if the best $C$ had been guessed: several temperatures share
    $\delta$.

    >>> round(catoni_bound(0.028, 5144.0, 55_000, 0.035, temperature=1.9), 3)
    0.161
    """
    _inputs(empirical, kl, n, delta)
    positive_number(temperature, "the temperature")
    exponent = temperature * empirical + (kl - math.log(delta)) / n
    return math.expm1(-exponent) / math.expm1(-temperature)


def _complexity(kl: float, n: int, delta: float) -> float:
    return kl + math.log(2 * math.sqrt(n) / delta)


def _count(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidInput(f"the number of samples is a whole number from 1 on, not {n!r}")


def _large(n: int) -> None:
    if n < 8:
        raise InvalidInput(
            f"the constant 2√N is proved for 8 samples or more, not {n}; "
            f"deviation_bound has the exact one"
        )


def _inputs(empirical: float, kl: float, n: int, delta: float) -> None:
    _count(n)
    if not 0 <= empirical <= 1:
        raise InvalidInput(f"an empirical risk lies between 0 and 1, not {empirical}")
    if not kl >= 0:
        raise InvalidInput(f"a divergence is at least 0, not {kl}")
    open_fraction(delta, "delta")
