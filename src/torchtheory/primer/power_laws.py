r"""Heavy tails: the exponent of a power law, whether it fits, and whether another law fits better.

Beyond a cutoff $x_0$ a power law has the density
$\frac{\alpha-1}{x_0}(x/x_0)^{-\alpha}$. The exponent is that of greatest likelihood, the cutoff the
one beyond which the fit is closest, and the fit is judged by a bootstrap that chooses the cutoff
anew in each draw (Clauset, Shalizi and Newman, SIAM Review 51, 2009). Everything here takes the
values to be independent. Eigenvalues of one matrix are not: they repel each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from torchtheory.core.checks import all_finite, as_vector, first_entry, one_of
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, numpy_generator

#: Fewest values of a tail, and most cutoffs that are tried.
LEAST, CUTOFFS = 20, 40

#: Samples that a p-value is the rank among.
DRAWS = 99

Alternative = Literal["exponential", "lognormal"]


@dataclass(frozen=True, slots=True)
class PowerLaw:
    r"""A fitted power law.

    Attributes:
        exponent: $\alpha$ of the density.
        standard_error: $(\alpha-1)/\sqrt n$, of the exponent for this cutoff.
        cutoff: $x_0$, the smallest value of the tail.
        tail: $n$, how many values are at least the cutoff.
        distance: Kolmogorov and Smirnov's distance between the tail and the fit.
    """

    exponent: float
    standard_error: float
    cutoff: float
    tail: int
    distance: float


def fit_power_law(values: Tensor, cutoff: float | None = None) -> PowerLaw:
    r"""The power law of greatest likelihood, $\alpha=1+n/\sum_i\ln(x_i/x_0)$.

    Args:
        values: `[N]`, positive.
        cutoff: $x_0$; the one with the smallest distance between the tail and its fit unless
            given, among at most 40 quantiles that leave at least 20 values.

    Cost: $O(N\log N)$, times 40 where the cutoff is chosen.

    Example: the mean logarithm of $1,e,e^2$ is 1, so that the density is $x^{-2}$.

    >>> import torch
    >>> law = fit_power_law(torch.tensor([0.0, 1.0, 2.0]).exp(), cutoff=1.0)
    >>> round(law.exponent, 6), law.tail
    (2.0, 3)
    """
    logs = _logs(values)
    if cutoff is None:
        return _closest(logs)
    if not cutoff > 0:
        raise InvalidInput(f"a power law begins at a positive cutoff, not {cutoff}")
    # rounding of the logarithm must not drop the value that is the cutoff
    start = int(np.searchsorted(logs, math.log(cutoff) - 1e-9))
    if len(logs) - start < 2:
        raise InvalidInput(f"fewer than two values are at least the cutoff {cutoff:g}")
    return _at(logs, np.array([start]), float(math.log(cutoff)))


def power_law_p_value(values: Tensor, law: PowerLaw, *, generator: RandomSource = None) -> float:
    r"""How plausible the law is: the share of samples from it that fit their own law worse.

    A sample has the values below the cutoff drawn from those that were given, the others from the
    law; its cutoff and exponent are fitted as those of `values` were. Below 0.1 the law is
    usually given up.

    Cost: 99 fits.

    >>> import torch
    >>> even = torch.linspace(0.5, 1.5, 400)         # no power law beyond any cutoff
    >>> power_law_p_value(even, fit_power_law(even))
    0.01
    """
    logs = _logs(values)
    random = numpy_generator(generator)
    below, start = logs[: len(logs) - law.tail], math.log(law.cutoff)
    worse = 0
    for _ in range(DRAWS):
        from_law = random.random(len(logs)) * len(logs) < law.tail
        count = int(from_law.sum()) if len(below) else len(logs)
        tail = start + random.exponential(1 / (law.exponent - 1), count)
        rest = random.choice(below, len(logs) - count) if len(below) else below
        worse += _closest(np.sort(np.concatenate([rest, tail]))).distance >= law.distance
    return (1 + worse) / (1 + DRAWS)


@dataclass(frozen=True, slots=True)
class LikelihoodRatio:
    r"""A power law against another law of the same tail (Vuong's test).

    Attributes:
        normalized: the sum of the differences of log-likelihoods over its standard deviation;
            positive where the power law is the likelier.
        p_value: probability of a ratio so far from 0 if both laws were equally close to the truth.
    """

    normalized: float
    p_value: float


def power_law_against(values: Tensor, law: PowerLaw, other: Alternative) -> LikelihoodRatio:
    r"""Whether an exponential or a lognormal law describes the tail better than the power law.

    Both are restricted to values beyond the cutoff, and of greatest likelihood there. A lognormal
    law has two parameters and comes arbitrarily near to a power law, so that it is never much less
    likely: there, only a negative ratio says something.

    >>> import torch
    >>> steps = torch.arange(1, 200) / 200
    >>> exponential = 1 - (1 - steps).log()          # its quantiles
    >>> ratio = power_law_against(exponential, fit_power_law(exponential, 1.0), "exponential")
    >>> ratio.normalized < 0 and ratio.p_value < 0.05
    True
    """
    one_of(other, "other", ("exponential", "lognormal"))
    logs = _logs(values)
    tail, start = logs[len(logs) - law.tail :], math.log(law.cutoff)
    own = math.log(law.exponent - 1) - start - law.exponent * (tail - start)
    difference = own - (_exponential if other == "exponential" else _lognormal)(tail, start)
    spread = float(difference.std()) * math.sqrt(len(tail))
    if spread == 0:
        return LikelihoodRatio(0.0, 1.0)
    ratio = float(difference.sum()) / spread
    return LikelihoodRatio(ratio, math.erfc(abs(ratio) / math.sqrt(2)))


Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def _exponential(tail: Array, start: float) -> Array:
    """Log-densities at the exponentials of the tail."""
    beyond = np.exp(tail) - math.exp(start)
    rate = 1 / max(float(beyond.mean()), np.finfo(float).tiny)
    return np.asarray(math.log(rate) - rate * beyond)


def _lognormal(tail: Array, start: float) -> Array:
    from scipy import optimize, special  # they take a second to import

    def densities(parameters: Array) -> Array:
        mean, spread = float(parameters[0]), math.exp(min(max(float(parameters[1]), -20.0), 20.0))
        at = (tail - mean) / spread
        beyond = special.log_ndtr((mean - start) / spread)
        return np.asarray(-tail - at**2 / 2 - math.log(spread * math.sqrt(2 * math.pi)) - beyond)

    first = np.array([float(tail.mean()), math.log(max(float(tail.std()), 1e-9))])
    found = optimize.minimize(
        lambda p: -float(densities(p).sum()),
        first,
        method="Nelder-Mead",
        options={"maxiter": 400, "xatol": 1e-4, "fatol": 1e-6},
    )
    return densities(found.x)


def _logs(values: Tensor) -> Array:
    values = all_finite(as_vector(values, "values").double(), "values")
    if bool((values <= 0).any()):
        wrong = first_entry(values, "values", values <= 0)
        raise InvalidInput(f"a power law is one of positive values, and {wrong}")
    return np.asarray(values.sort().values.log().numpy())


def _closest(logs: Array) -> PowerLaw:
    most = len(logs) - LEAST
    if most < 0:
        raise InvalidInput(f"a tail needs at least {LEAST} values, and there are {len(logs)}")
    return _at(logs, np.unique(np.linspace(0, most, CUTOFFS).astype(int)))


def _at(logs: Array, starts: Array, first: float | None = None) -> PowerLaw:
    """The closest of the fits to the tails that begin at these places."""
    count = len(logs)
    begin = logs[starts] if first is None else np.array([first])
    tails = count - starts
    sums = np.cumsum(logs[::-1])[::-1][starts] - tails * begin
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = tails / sums  # infinite where all values of a tail are the same
        places = np.arange(count)
        inside = places >= starts[:, None]
        fitted = -np.expm1(-rates[:, None] * np.maximum(logs - begin[:, None], 0.0))
        above = (places - starts[:, None] + 1) / tails[:, None]
        apart = np.maximum(above - fitted, fitted - above + 1 / tails[:, None])
    distances = np.where(inside & np.isfinite(rates)[:, None], apart, 0.0).max(axis=1)
    distances = np.where(np.isfinite(rates), distances, math.inf)
    best = int(np.argmin(distances))
    if not math.isfinite(distances[best]):
        raise InvalidInput("all values of the tail are the same, which no power law has")
    rate, tail = float(rates[best]), int(tails[best])
    return PowerLaw(
        1 + rate, rate / math.sqrt(tail), math.exp(begin[best]), tail, float(distances[best])
    )
