r"""Rademacher complexity: how well the functions of a class correlate with coin flips.

A class enters only through the supremum $\sigma\mapsto\sup_f\frac1m\sum_i\sigma_if(z_i)$ on
the sample, a function from signs `[s, m]` to numbers `[s]`. Its mean over all signs is the
empirical complexity $\hat R_S(\mathcal F)$: listed where $2^m$ permits, estimated with
a confidence interval elsewhere. Sources: Foundations of Deep Learning, section 8.4; Mathematical
Aspects of Deep Learning, sections 1.1.2 and 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, open_fraction, positive_number
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.generalization.vc.hypothesis_sets import all_labelings

Supremum = Callable[[Tensor], Tensor]
r"""Signs `[s, m]` to $\sup_f\frac1m\sum_i\sigma_if(z_i)$, `[s]`."""

#: How many numbers one step of an enumeration may hold.
TILE = 1 << 22


def finite_class(values: Tensor, *, absolute: bool = False) -> Supremum:
    r"""The class of the functions with values $f(z_i)$ in the rows of `values[h, m]`.

    Args:
        values: one function per row. A loss class has losses in it.
        absolute: take $\sup_f|\frac1m\sum_i\sigma_if(z_i)|$ instead, as some texts do; it
            is the complexity of $\mathcal F\cup-\mathcal F$.

    Cost: $O(s\,h\,m)$ for $s$ sign vectors.

    >>> finite_class(torch.eye(2))(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    tensor([ 0.5000, -0.5000])
    """
    _matrix(values, "values")
    m = values.shape[1]

    def supremum(signs: Tensor) -> Tensor:
        _signs(signs, m)
        best = []
        for part in torch.split(signs.to(values), max(1, TILE // len(values))):
            correlation = part @ values.T / m
            best.append((correlation.abs() if absolute else correlation).amax(1))
        return torch.cat(best)

    return supremum


def linear_class(x: Tensor, radius: float = 1.0) -> Supremum:
    r"""The class $\{x\mapsto\langle w,x\rangle:\|w\|_2\le W\}$ on `x[m, d]`.

    The supremum is attained at $w\propto\sum_i\sigma_ix_i$ and is
    $\frac Wm\|\sum_i\sigma_ix_i\|_2$.

    >>> linear_class(torch.eye(4), 2.0)(torch.tensor([[1.0, -1.0, 1.0, 1.0]]))   # W / √m
    tensor([1.])
    """
    _matrix(x, "x")
    positive_number(radius, "radius")

    def supremum(signs: Tensor) -> Tensor:
        _signs(signs, len(x))
        longest: Tensor = torch.linalg.vector_norm(signs.to(x) @ x, dim=1)
        return radius * longest / len(x)

    return supremum


def exact_rademacher(supremum: Supremum, samples: int) -> float:
    r"""$\hat R_S(\mathcal F)=2^{-m}\sum_\sigma\sup_f\frac1m\sum_i\sigma_if(z_i)$.

    All $2^m$ signs, so $m\le20$; a class that shatters the sample with values
    $\pm1$ has 1, a single function 0 (Foundations of Deep Learning, Definition 29).

    >>> exact_rademacher(finite_class(all_labelings(5)), 5)
    1.0
    >>> exact_rademacher(finite_class(torch.tensor([[0.3, -1.2, 2.0]])), 3)
    0.0
    """
    if not 1 <= samples <= 20:
        raise InvalidInput(
            f"the signs of {samples} samples cannot be listed; from 21 on, estimate_rademacher"
        )
    total = supremum(all_labelings(samples)).double()
    # exchanging σ and -σ leaves the mean alone and cancels the odd part without rounding
    return float((total + total.flip(0)).mean() / 2)


def estimate_rademacher(
    supremum: Supremum,
    samples: int,
    *,
    draws: int = 1000,
    confidence: float = 0.99,
    generator: RandomSource = None,
) -> Interval:
    r"""$\hat R_S(\mathcal F)$ from independent random signs, with Student's interval.

    If the supremum is only approached from below (an optimizer), so is the complexity.

    >>> i = estimate_rademacher(linear_class(torch.ones(1, 1)), 1, draws=50)
    >>> i.estimate, i.trials
    (1.0, 50)
    """
    if samples < 1:
        raise EmptyData(f"a sample needs at least one point, not {samples!r}")
    generator = as_generator(generator)
    signs = rademacher(draws, samples, generator=generator, dtype=torch.float64)
    return mean_interval(supremum(signs), confidence)


def massart_bound(values: Tensor) -> float:
    r"""$\hat R_S\le\frac{\sqrt{2\ln|\mathcal F|}}m\max_f\bigl(\sum_if(z_i)^2\bigr)^{1/2}$.

    Massart's lemma for the rows of `values[h, m]`; with values in $[0,1]$ it is at most
    $\sqrt{2\ln|\mathcal F|/m}$.

    >>> round(massart_bound(all_labelings(3)), 4)                    # not below 1, the truth
    1.1774
    """
    _matrix(values, "values")
    size = len(torch.unique(values, dim=0))
    longest = float(values.norm(dim=1).max())
    return longest * math.sqrt(2 * math.log(size)) / values.shape[1]


def linear_bounds(x: Tensor, radius: float = 1.0) -> tuple[float, float]:
    r"""Two bounds for `linear_class`, from the sample and from its largest norm.

    $\hat R_S\le\frac Wm\bigl(\sum_i\|x_i\|^2\bigr)^{1/2}\le WD/\sqrt m$ with
    $D=\max_i\|x_i\|$ (Foundations of Deep Learning, Lemma 63). Orthogonal points of one
    norm attain both.

    >>> linear_bounds(torch.tensor([[3.0], [4.0]]))
    (2.5, 2.82842712474619)
    """
    _matrix(x, "x")
    positive_number(radius, "radius")
    norms = x.norm(dim=1)
    m = len(x)
    return radius * float(norms.norm()) / m, radius * float(norms.max()) / math.sqrt(m)


def uniform_deviation(
    complexity: float, samples: int, delta: float, *, width: float = 1.0
) -> float:
    r"""With probability $1-\delta$, no $\mathbb E f-\hat{\mathbb E}_Sf$ is larger.

    $2R_m(\mathcal F)+(b-a)\sqrt{\ln(1/\delta)/(2m)}$ for values in $[a,b]$ and the
    *expected* complexity, by McDiarmid's inequality (Mathematical Aspects of Deep Learning,
    section 2.2). Theorem 62 of Foundations of Deep Learning has $\sqrt{\ln(1/\delta)/m}$.

    >>> round(uniform_deviation(0.1, 100, 0.05), 6)
    0.322387
    """
    _deviation(complexity, samples, delta, width)
    return 2 * complexity + width * math.sqrt(math.log(1 / delta) / (2 * samples))


def empirical_uniform_deviation(
    complexity: float,
    samples: int,
    delta: float,
    *,
    width: float = 1.0,
    two_sided: bool = False,
) -> float:
    r"""The same from the *empirical* complexity of the very sample.

    $2\hat R_S(\mathcal F)+3(b-a)\sqrt{\ln(2/\delta)/(2m)}$: McDiarmid once for the deviation
    and once for $\hat R_S$. Two-sided, $\delta$ is halved, which is at most the
    $2\hat R_S+3\sqrt{\ln(2/\delta)/m}$ of Foundations of Deep Learning, section 8.5.

    >>> round(empirical_uniform_deviation(0.1, 100, 0.05), 6)
    0.60743
    """
    _deviation(complexity, samples, delta, width)
    share = delta / 2 if two_sided else delta
    return 2 * complexity + 3 * width * math.sqrt(math.log(2 / share) / (2 * samples))


def sequence_deviations(
    complexities: Sequence[float],
    samples: int,
    delta: float,
    *,
    weights: Sequence[float] | None = None,
    empirical: bool = True,
) -> list[float]:
    r"""Deviations of classes $\mathcal F^{(1)},\mathcal F^{(2)},\dots$, all at once.

    The class $j$ gets $\delta_j=w_j\delta$ with $\sum_jw_j\le1$, so that with
    probability $1-\delta$ all bounds hold together and one may choose the class by the data;
    $\ln(1/\delta)$ becomes $\ln(1/\delta)+\ln(1/w_j)$ (Mathematical Aspects of Deep
    Learning, Appendix A6). The classes themselves are fixed beforehand.

    Args:
        complexities: Rademacher complexity of each class.
        samples, delta: as in `uniform_deviation`.
        weights: $w_j$, by default $2^{-j}$.
        empirical: whether the complexities are those of the sample or expected ones.

    >>> [round(d, 4) for d in sequence_deviations([0.0, 0.0], 100, 0.1, empirical=False)]
    [0.1224, 0.1358]
    """
    if weights is None:
        weights = [2.0 ** -(j + 1) for j in range(len(complexities))]
    if len(weights) != len(complexities):
        raise ShapeMismatch(f"{len(complexities)} classes need as many weights, not {len(weights)}")
    if not (all(w > 0 for w in weights) and math.fsum(weights) <= 1 + 1e-12):
        raise InvalidInput(
            "the weights of the classes must be positive and sum to at most 1, not "
            f"{described(list(weights))}"
        )
    bound = empirical_uniform_deviation if empirical else uniform_deviation
    return [bound(r, samples, delta * w) for r, w in zip(complexities, weights, strict=True)]


def _matrix(values: Tensor, name: str) -> None:
    if values.ndim != 2:
        raise ShapeMismatch(f"{name} must be a matrix, not of shape {list(values.shape)}")
    if values.numel() == 0:
        raise EmptyData(f"{name} is empty: {list(values.shape)}")
    all_finite(values, name)


def _signs(signs: Tensor, samples: int) -> None:
    if signs.ndim != 2 or signs.shape[1] != samples:
        raise ShapeMismatch(f"signs must be [s, {samples}], not {list(signs.shape)}")


def _deviation(complexity: float, samples: int, delta: float, width: float) -> None:
    if not (math.isfinite(complexity) and complexity >= 0):
        raise InvalidInput(f"a Rademacher complexity is a number >= 0, not {complexity!r}")
    if samples < 1:
        raise EmptyData(f"a bound on a deviation needs at least one sample, not {samples!r}")
    open_fraction(delta, "delta")
    positive_number(width, "width")
