r"""Tails of sums of independent variables whose moments are known.

Bernstein's condition on centered $X$ is

$$
\mathbb E|X|^q\le\tfrac{q!}2\,\sigma^2c^{q-2}\quad\text{for all integers } q\ge2 .
$$

It gives $\mathbb Ee^{\lambda X}\le\exp\frac{\sigma^2\lambda^2}{2(1-\lambda c)}$ for
$0\le\lambda<1/c$, and tails that are Gaussian near the mean and exponential far from it. The
square of a Gaussian is the best known case. For variables with a known bound see
`torchtheory.generalization.concentration`.

Source: Foundations of Deep Learning, section 12.3.1.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from scipy.special import gammaincc
from torch import Tensor

from torchtheory.core.checks import (
    as_vector,
    nonnegative_number,
    number_between,
    open_fraction,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput

_LARGEST = math.log(sys.float_info.max)


def moment_bernstein_radius(k: int, variance: float, scale: float, gamma: float) -> float:
    r"""$\sqrt{2\sigma^2k\log(1/\gamma)}+c\log(1/\gamma)$.

    With probability at least $1-\gamma$ a sum of $k$ independent centered variables that satisfy
    Bernstein's condition is at most this.

    Args:
        k: number of variables.
        variance: $\sigma^2$ of the condition, at least the variance.
        scale: $c$ of the condition.
        gamma: probability that the bound fails.

    Source: Foundations of Deep Learning, Theorem 76.

    >>> round(moment_bernstein_radius(2, 1.0, 1.0, math.exp(-1)), 12)
    3.0
    """
    _check(k, variance, scale)
    level = -math.log(open_fraction(gamma, "gamma"))
    return math.sqrt(2 * variance * k * level) + scale * level


def moment_bernstein_exponent(threshold: float, k: int, variance: float, scale: float) -> float:
    r"""$\inf_{0\le\lambda<1/c}\bigl(-\lambda t+\tfrac{k\sigma^2\lambda^2}{2(1-\lambda c)}\bigr)$.

    Its exponential bounds the probability that the sum reaches $t\ge0$. With $v=k\sigma^2$ and
    $u=ct/v$ it is $-\tfrac v{c^2}(1+u-\sqrt{1+2u})$, attained at
    $\lambda=\tfrac1c(1-1/\sqrt{1+2u})$. At the radius of `moment_bernstein_radius` it is
    exactly $-\log(1/\gamma)$.

    >>> round(moment_bernstein_exponent(3.0, 2, 1.0, 1.0), 12)
    -1.0
    """
    _check(k, variance, scale)
    nonnegative_number(threshold, "the threshold")
    u = scale * threshold / (k * variance)
    # 1 + u - √(1+2u) is (√(1+2u) - 1)²/2, and that difference is 2u over this sum: nothing cancels
    # for small u, and no small scale is squared
    total = math.sqrt(1 + 2 * u) + 1
    return -2 * (threshold / total) * (threshold / total / (k * variance))


def moment_generating_bound(rate: float, variance: float, scale: float) -> float:
    r"""$\exp\frac{\sigma^2\lambda^2}{2(1-\lambda c)}$ for $0\le\lambda<1/c$: at least
    $\mathbb Ee^{\lambda X}$. Infinite where it is beyond the largest number; its logarithm,
    `moment_generating_exponent`, is not.

    >>> moment_generating_bound(0.0, 1.0, 1.0), moment_generating_bound(0.9999, 1.0, 1.0)
    (1.0, inf)
    """
    return _exponential(moment_generating_exponent(rate, variance, scale))


def moment_generating_exponent(rate: float, variance: float, scale: float) -> float:
    r"""$\frac{\sigma^2\lambda^2}{2(1-\lambda c)}$ for $0\le\lambda<1/c$: at least
    $\log\mathbb Ee^{\lambda X}$.

    >>> round(moment_generating_exponent(0.9999, 1.0, 1.0), 6)
    4999.00005
    """
    _check(1, variance, scale)
    number_between(rate, "the rate", 0.0, 1 / scale, closed="left")
    return variance * rate * rate / 2 / (1 - rate * scale)  # rate**2 would raise for large ones


@dataclass(frozen=True, slots=True)
class MomentConstants:
    r"""Constants with which Bernstein's condition holds for the moments that were looked at.

    Attributes:
        variance: $\sigma^2$.
        scale: $c$.
        orders: the largest $q$ among them; more moments may need a larger $c$.
    """

    variance: float
    scale: float
    orders: int


def moment_constants(log_moments: Tensor) -> MomentConstants:
    r"""The least $\sigma^2$, and the least $c$ with it, for given moments.

    $q=2$ asks for $\sigma^2\ge\mathbb E|X|^2$; then
    $c=\max_{q\ge3}\bigl(2\,\mathbb E|X|^q/(q!\,\sigma^2)\bigr)^{1/(q-2)}$.

    Args:
        log_moments: $\log\mathbb E|X|^q$ for $q=2,\dots,Q$, `[Q - 1]`.

    >>> moments = torch.tensor([1.0, 3 / 8]).double()               # E|X|³ = (3!/2) σ² c
    >>> round(moment_constants(moments.log()).scale, 12)
    0.125
    """
    logs = as_vector(log_moments, "log_moments").double()
    if len(logs) < 2:
        raise InvalidInput("give the moments of orders 2 and 3 at least")
    q = torch.arange(3, len(logs) + 2, dtype=torch.float64, device=logs.device)
    roots = (math.log(2) + logs[1:] - torch.lgamma(q + 1) - logs[0]) / (q - 2)
    variance, scale = (_exponential(float(v)) for v in (logs[0], roots.max()))
    return MomentConstants(variance, scale, len(logs) + 1)


def moment_limits(orders: int, variance: float, scale: float) -> Tensor:
    r"""$\log\bigl(\frac{q!}2\sigma^2c^{q-2}\bigr)$ for $q=2,\dots,$ `orders`.

    >>> moment_limits(3, 1.0, 1.0).exp()
    tensor([1.0000, 3.0000], dtype=torch.float64)
    """
    q = torch.arange(2, orders + 1, dtype=torch.float64)
    return torch.lgamma(q + 1) - math.log(2) + math.log(variance) + (q - 2) * math.log(scale)


def sample_log_moments(samples: Tensor, orders: int) -> Tensor:
    r"""$\log\frac1n\sum_i|x_i|^q$ for $q=2,\dots,$ `orders`: what `moment_constants` takes.

    High moments of a sample are those of its largest value: they say little about the law.

    >>> sample_log_moments(torch.tensor([-1.0, 1.0]), 4)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    x = as_vector(samples, "samples").double().abs()
    if not bool((x > 0).any()):
        raise InvalidInput("all samples are 0: every condition holds for them")
    whole_number(orders, "orders", least=2)
    q = torch.arange(2, orders + 1, dtype=torch.float64, device=x.device)
    return torch.logsumexp(q[:, None] * x.log(), 1) - math.log(len(x))


# --------------------------------------------------------------------------------- chi-square


def chi_square_radius(k: int, gamma: float) -> float:
    r"""$4\sqrt{k\log(2/\gamma)}$, where the sum of $k$ squared Gaussians stays within it of $k$.

    With $\ell=\log(2/\gamma)$ it does so with probability at least $1-\gamma$ wherever
    $\ell\le k$ (`chi_square_radii` is then smaller), and for some smaller $\gamma$: there the
    radius exceeds $k$, so that only the upper tail $P(\chi^2_k>k+4\sqrt{k\ell})$ counts, which
    is the incomplete gamma function. Where that is above $\gamma$ the statement is false, and
    refused.

    Source: Foundations of Deep Learning, Lemma 77, which prints it without a condition.

    >>> round(chi_square_radius(100, 2 * math.exp(-4)), 12)
    80.0
    >>> round(chi_square_radius(10, 1e-6), 4)                   # left with probability 8e-9
    48.1808
    """
    whole_number(k, "k", least=1)
    level = _two_sided_level(gamma)
    radius = 4 * math.sqrt(k * level)
    if level > k:
        tail = float(gammaincc(k / 2, (k + radius) / 2))
        if not tail <= gamma * (1 - 1e-9):  # what the function may be off by; 0 is an underflow
            raise InvalidInput(
                f"4√(k log(2/γ)) is no bound here: for k = {k} the sum is farther than "
                f"{radius:.4g} from k with probability {tail:.2g}, more than γ = {gamma:.3g}; use "
                "chi_square_radii"
            )
    return radius


def chi_square_radii(k: int, gamma: float) -> tuple[float, float]:
    r"""$2\sqrt{k\ell}$ below and $2\sqrt{k\ell}+2\ell$ above $k$, with $\ell=\log(2/\gamma)$.

    The sum of the squares of $k$ standard Gaussians stays between with probability at least
    $1-\gamma$, for every $k$ and $\gamma$ (Laurent and Massart 2000). For $\ell\le k$ both are at
    most `chi_square_radius`.

    >>> below, above = chi_square_radii(100, 2 * math.exp(-4))
    >>> round(below, 12), round(above, 12)
    (40.0, 48.0)
    """
    whole_number(k, "k", least=1)
    level = _two_sided_level(gamma)
    return 2 * math.sqrt(k * level), 2 * math.sqrt(k * level) + 2 * level


def nonnegative_mean_floor(
    mean: float, k: int, variance: float, scale: float, gamma: float
) -> float:
    r"""$\mu-\sqrt{4\sigma^2\log(1/\gamma)/k}-c\log(1/\gamma)/k$, below the mean of $k$ of them.

    For independent $Y\ge0$ of mean $\mu$ with $\mathbb EY^q\le\frac{q!}2\sigma^2c^{q-2}$, *not*
    centered: as $|Y-\mu|^q\le Y^q+\mu^q$ and $\mu^q\le\mathbb EY^q$, the centered variable
    satisfies Bernstein's condition with $2\sigma^2$ and $c$. With probability at least $1-\gamma$
    the mean of $k$ of them is at least this number, which may be negative.

    >>> round(nonnegative_mean_floor(0.5, 100, 0.25, 1.0, math.exp(-1)), 12)
    0.39
    """
    nonnegative_number(mean, "the mean")
    return mean - moment_bernstein_radius(k, 2 * variance, scale, gamma) / k


def _exponential(exponent: float) -> float:
    """Infinite where the exponential is beyond the largest number."""
    return math.exp(exponent) if exponent < _LARGEST else math.inf


def _two_sided_level(gamma: float) -> float:
    """log(2/γ): as a difference, since 2/γ itself overflows for the least numbers."""
    return math.log(2) - math.log(open_fraction(gamma, "gamma"))


def _check(k: int, variance: float, scale: float) -> None:
    whole_number(k, "k", least=1)
    positive_number(variance, "the variance")
    positive_number(scale, "the scale")
