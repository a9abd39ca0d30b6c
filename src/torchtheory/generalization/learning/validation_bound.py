r"""What a validation set says about many models at once.

The models are chosen independently of the validation set (they may depend on the training set);
if hyper-parameters were searched *with* the validation set, their number is the size of everything
the search could have returned. All bounds hold for all models at once with probability at least
$1-\delta$ and are of the form $R(f)\le R_{\mathrm{val}}(f)+\text{slack}$.
Source: Mathematical Aspects of Deep Learning, Proposition 2.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from torchtheory.core.checks import open_fraction, positive_number
from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.generalization.concentration import bernstein_radius, finite_class_radius
from torchtheory.generalization.vc.bounds import first_whole_number


def validation_slack(
    samples: int,
    models: float,
    delta: float,
    *,
    variance: float = 0.25,
    bound: float = 1.0,
    relaxed: bool = True,
) -> float:
    r"""$\tfrac{2Ct}3+\sqrt{2\gamma^2t}$ with
    $t=\log(|\mathcal F_{\mathrm{val}}|/\delta)/m_{\mathrm{val}}$.

    Args:
        samples: size $m_{\mathrm{val}}$ of the validation set.
        models: how many models could have been chosen.
        delta: the probability that the bound fails.
        variance: $\gamma^2$, an upper bound of the variance of the loss of *every* model;
            it must be known, not estimated from the same set. 1/4 covers every loss in [0, 1].
        bound: $C$, at least $R(f)-\mathcal L(f,z)$ everywhere.
        relaxed: the printed form; otherwise the smaller root it was relaxed from.

    >>> [round(validation_slack(10_000, 1e9, 0.1, variance=v), 6) for v in (1.0, 0.05**2, 0.25)]
    [0.069396, 0.004928, 0.035466]
    """
    _check(samples, models, delta)
    return bernstein_radius(variance, bound, samples, delta / models, relaxed=relaxed)


def validation_sample_size(
    slack: float, models: float, delta: float, *, variance: float = 0.25, bound: float = 1.0
) -> int:
    """Smallest validation set whose `validation_slack` is at most `slack`.

    >>> validation_sample_size(0.05, 1000, 0.05)
    2237
    """
    positive_number(slack, "slack")
    return first_whole_number(
        lambda m: validation_slack(m, models, delta, variance=variance, bound=bound) <= slack, 1
    )


def log_models_allowed(
    slack: float, samples: int, delta: float, *, variance: float = 0.25, bound: float = 1.0
) -> float:
    r"""Logarithm of the number of models that may be compared within `slack`.

    The printed form solved for $|\mathcal F_{\mathrm{val}}|$; negative when not even one
    model has so small a slack.

    >>> round(log_models_allowed(0.069396, 10_000, 0.1, variance=1.0) / math.log(10), 2)
    9.0
    """
    _check(samples, 1, delta)
    if not 0 < slack < math.inf or not variance >= 0 or not bound > 0:
        raise InvalidInput(
            f"slack and bound must be positive, and the variance not negative (slack = {slack!r}, "
            f"variance = {variance!r}, bound = {bound!r})"
        )
    a, b = 2 * bound / 3, math.sqrt(2 * variance)
    root = 2 * slack / (b + math.sqrt(b * b + 4 * a * slack))
    return samples * root**2 + math.log(delta)


@dataclass(frozen=True, slots=True)
class ValidationBounds:
    """Upper bounds of the risk of one of many models, each valid for all of them at once.

    Attributes:
        hoeffding: one-sided, from the range of the loss alone.
        bernstein: with the largest variance a loss in [0, 1] can have, 1/4.
        empirical_bernstein: with the variance seen on the validation set, and the price of that.
        exact: Clopper-Pearson at level delta over the number of models; for 0-1 losses.
    """

    hoeffding: float
    bernstein: float
    empirical_bernstein: float
    exact: float


def validation_bounds(errors: int, samples: int, models: float, delta: float) -> ValidationBounds:
    r"""Upper bounds of the error probability of a classifier with `errors` on validation.

    The empirical Bernstein bound (Maurer and Pontil 2009) is
    $\hat r+\sqrt{2\hat v\log(2/\delta')/m}+7\log(2/\delta')/(3(m-1))$ with the sample
    variance $\hat v$ and $\delta'=\delta/|\mathcal F_{\mathrm{val}}|$. The exact bound
    is the $1-\delta'$ quantile of $\mathrm{Beta}(k+1,m-k)$; it is the smallest.

    >>> found = validation_bounds(100, 10_000, 1e9, 0.1)
    >>> round(found.exact, 4), round(found.empirical_bernstein, 4), round(found.hoeffding, 4)
    (0.0178, 0.0224, 0.0439)
    """
    _check(samples, models, delta)
    if samples < 2:
        raise EmptyData(f"a variance needs at least two validation samples, not {samples!r}")
    if not 0 <= errors <= samples:
        raise InvalidInput(f"errors must lie in 0..{samples}, not {errors}")
    rate, share = errors / samples, delta / models
    variance = rate * (1 - rate) * samples / (samples - 1)
    u = math.log(2 / share)
    maurer = math.sqrt(2 * variance * u / samples) + 7 * u / (3 * (samples - 1))
    exact = 1.0
    if errors < samples:
        exact = float(special.betainccinv(errors + 1, samples - errors, share))
    return ValidationBounds(
        hoeffding=rate + finite_class_radius(models, samples, delta, one_sided=True),
        bernstein=rate + validation_slack(samples, models, delta, relaxed=False),
        empirical_bernstein=rate + maurer,
        exact=exact,
    )


def _check(samples: int, models: float, delta: float) -> None:
    if samples < 1:
        raise EmptyData("the validation set is empty")
    if not 1 <= models < math.inf:
        raise InvalidInput(f"there is at least one model and a finite number, not {models}")
    open_fraction(delta, "delta")
