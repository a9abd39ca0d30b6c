r"""What the spectrum of the features says about minimum-norm regression.

The variance of the fit is $\sigma^2\operatorname{tr}(S^+\,\mathbb E[XX^\top])$ with
$S=\sum_iX_iX_i^\top$. For features of equal variance its limit follows from Marchenko and
Pastur's law; for a decaying spectrum two effective ranks give its size. Source: Mathematical
Aspects of Deep Learning, section 1.2.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, first_entry, positive_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch

#: Points of the midpoint rule for Marchenko and Pastur's distribution function.
_NODES = 4000


def asymptotic_variance(ratio: float) -> float:
    r"""The limit of $\operatorname{tr}(S^+)$ for $m,d\to\infty$ with
    $d/m\to\kappa$.

    $\frac{1-\max(1-\kappa,0)}{|1-\kappa|}$, that is $\kappa/(1-\kappa)$ below the
    interpolation threshold and $1/(\kappa-1)$ beyond; infinite at 1. The features have
    independent entries of mean 0 and variance 1.

    >>> [asymptotic_variance(k) for k in (0.5, 1.0, 2.0, 3.0)]
    [1.0, inf, 1.0, 0.5]
    """
    _ratio(ratio)
    return math.inf if ratio == 1 else min(ratio, 1.0) / abs(1 - ratio)


def marchenko_pastur_support(ratio: float) -> tuple[float, float]:
    r"""Where the nonzero eigenvalues of $\frac1mS$ end up: $(1\mp\sqrt\kappa)^2$.

    >>> marchenko_pastur_support(0.25)
    (0.25, 2.25)
    """
    _ratio(ratio)
    return (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2


def marchenko_pastur_density(x: Tensor, ratio: float) -> Tensor:
    r"""The density of the eigenvalues of $\frac1mS$ in the limit $d/m\to\kappa$.

    $\frac{\sqrt{(b-x)(x-a)}}{2\pi\kappa x}$ on $[a,b]$. For $\kappa>1$ it has
    mass $1/\kappa$ only; the share $1-1/\kappa$ of the eigenvalues is 0.

    >>> marchenko_pastur_density(torch.tensor([0.1, 1.0]), 0.25).round(decimals=4)
    tensor([0.0000, 0.6164])
    """
    low, high = marchenko_pastur_support(ratio)
    inside = (x > low) & (x < high)
    at = torch.where(inside, x, torch.full_like(x, (low + high) / 2))
    density = ((high - at) * (at - low)).sqrt() / (2 * math.pi * ratio * at)
    return torch.where(inside, density, torch.zeros_like(x))


def marchenko_pastur_cdf(x: Tensor, ratio: float) -> Tensor:
    r"""The share of eigenvalues of $\frac1mS$ at most $x$, those that are 0 included.

    By the midpoint rule in the angle $x=1+\kappa-2\sqrt\kappa\cos t$, where the density is
    smooth, and linear interpolation between 4000 points.

    >>> marchenko_pastur_cdf(torch.tensor([-1.0, 0.0, 99.0]), 4.0).round(decimals=4)
    tensor([0.0000, 0.7500, 1.0000])
    """
    low, _ = marchenko_pastur_support(ratio)
    edges = torch.linspace(0, math.pi, _NODES + 1, dtype=torch.float64)
    t = (edges[1:] + edges[:-1]) / 2
    width = 2 * math.sqrt(ratio)
    at = 1 + ratio - width * torch.cos(t)
    mass = width**2 * torch.sin(t).square() / (2 * math.pi * ratio * at) * (math.pi / _NODES)
    zero = max(0.0, 1 - 1 / ratio)
    total = torch.cat([mass.new_zeros(1), mass.cumsum(0)])
    total = zero + total * (min(1.0, 1 / ratio) / total[-1])
    angle = torch.acos(((1 + ratio - x.double()) / width).clamp(-1, 1)) / math.pi * _NODES
    left = angle.floor().clamp(0, _NODES - 1).long()
    value = total[left] + (angle - left) * (total[left + 1] - total[left])
    value = torch.where(x < low, torch.where(x < 0, 0.0, zero), value)
    return value.to(x.dtype)


@dataclass(frozen=True, slots=True)
class EffectiveRanks:
    r"""The two terms that give the size of the variance of the minimum-norm fit.

    Attributes:
        index: $k^*$, the number of directions that are fitted in earnest.
        head: $k^*/m$.
        tail: $m\sum_{i>k^*}\lambda_i^2/(\sum_{i>k^*}\lambda_i)^2$, what hiding the noise in
            the other directions costs.
    """

    index: int
    head: float
    tail: float

    @property
    def size(self) -> float:
        """Their sum: the variance for unit noise, up to constants."""
        return self.head + self.tail


def effective_ranks(
    eigenvalues: Tensor, samples: int, constant: float = 1.0
) -> EffectiveRanks | None:
    r"""Benign overfitting: how large $\operatorname{tr}(S^+\,\mathbb E[XX^\top])$ is.

    $k^*=\min\{k\ge0:\sum_{i>k}\lambda_i\ge c\,m\,\lambda_{k+1}\}$ for eigenvalues
    $\lambda_1\ge\lambda_2\ge\dots$ of $\mathbb E[XX^\top]$; the variance is
    $\asymp k^*/m+m\sum_{i>k^*}\lambda_i^2/(\sum_{i>k^*}\lambda_i)^2$ if $k^*/m$ is
    small, for Gaussian features (Mathematical Aspects of Deep Learning, Eq. 1.28).

    Args:
        eigenvalues: `[d]`, >= 0, in any order, zeros count for nothing. They may also be those
            of an empirical second moment.
        samples: $m$.
        constant: $c>0$.

    Returns:
        the ranks, or None where no $k$ qualifies: with so few directions left the noise
        cannot be hidden. Cost: $O(d\log d)$.

    >>> effective_ranks(torch.ones(1000), 50)
    EffectiveRanks(index=0, head=0.0, tail=0.05)
    >>> effective_ranks(torch.ones(10), 50) is None
    True
    """
    if eigenvalues.ndim != 1 or eigenvalues.numel() == 0:
        raise ShapeMismatch(f"the eigenvalues must be a vector, not {list(eigenvalues.shape)}")
    all_finite(eigenvalues, "the eigenvalues")
    if bool((eigenvalues < 0).any()):
        raise InvalidInput(
            "eigenvalues of a second moment are >= 0: "
            f"{first_entry(eigenvalues, 'eigenvalues', eigenvalues < 0)}"
        )
    if samples < 1 or not (math.isfinite(constant) and constant > 0):
        raise InvalidInput(f"samples must be >= 1 and constant > 0, not {samples} and {constant}")
    values = eigenvalues.double().sort(descending=True).values
    values = values[values > 0]
    if len(values) == 0:
        raise InvalidInput("all eigenvalues are 0: there are no features")
    rest = values.flip(0).cumsum(0).flip(0)  # the sum from each eigenvalue on
    enough = (rest >= constant * samples * values).nonzero()
    if len(enough) == 0:
        return None
    k = int(enough[0])
    tail = samples * float(values[k:].square().sum()) / float(rest[k]) ** 2
    return EffectiveRanks(k, k / samples, tail)


def _ratio(ratio: float) -> None:
    positive_number(ratio, "the ratio of features to samples")
