r"""Does a bound rank problem instances as their gaps do?

A problem instance is a distribution, a sample and a function; instances are ordered by their gaps,

$$
(P,S,f)\preceq(P',S',f') \iff R_P[f]-R_S[f]\le R_{P'}[f']-R_{S'}[f'] .
$$

It is a total preorder: any two instances compare, and different ones with equal gaps come both
before and after each other. Whoever chooses by a bound or a complexity measure follows *its* order
instead, and is misled by every *discordant* pair: one whose gaps are ordered one way and whose
bounds the other. Kendall's $\tau$ counts them: concordant minus discordant pairs, over all
pairs.

Source: Mathematical Aspects of Deep Learning, section 2.6, Open Problem 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from torchtheory.core.checks import described, open_fraction
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.intervals import Interval, mean_interval

Values = Sequence[float] | np.ndarray[Any, Any] | Tensor

#: Misleading pairs that are listed; the rest is only counted.
_MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class MisleadingPair:
    """Two instances that a measure ranks the wrong way round.

    Attributes:
        better, worse: the one with the smaller gap, and the other.
        gap_difference: how much smaller its gap is.
        measure_difference: how much *larger* the measure of the better one is.
    """

    better: str
    worse: str
    gap_difference: float
    measure_difference: float


@dataclass(frozen=True, slots=True)
class OrderComparison:
    r"""How the order of a measure agrees with that of the gaps.

    Attributes:
        instances: how many.
        concordant, discordant: pairs ranked alike, and the other way round.
        merged: pairs with different gaps that the measure cannot tell apart.
        split: pairs with equal gaps that the measure ranks all the same.
        undecided: pairs whose gaps are not known well enough to rank them.
        kendall: $\tau_a$ over the pairs of all instances, with a confidence interval for
            instances that are independent draws (Hoeffding for U-statistics, valid for any number).
        approximate: the same by the jackknife: narrower, valid for many instances.
        kendall_ties, spearman: $\tau_b$ and Spearman's $\rho$, `nan` where one side
            is constant.
        regret: gap of the instance that the measure likes best, minus the least gap.
        misleading: the discordant pairs, the costliest first, at most 100 of them.
    """

    instances: int
    concordant: int
    discordant: int
    merged: int
    split: int
    undecided: int
    kendall: Interval
    approximate: Interval
    kendall_ties: float
    spearman: float
    regret: float
    misleading: tuple[MisleadingPair, ...]

    @property
    def preserved(self) -> bool:
        """Whether the measure has the very preorder of the gaps, on all decided pairs."""
        return self.discordant == self.merged == self.split == 0


def precedes(gaps: Values) -> Tensor:
    r"""The order of the instances: entry $(i,j)$ says whether $i\preceq j$, `[n, n]`.

    >>> precedes([0.1, 0.3, 0.1]).int()
    tensor([[1, 1, 1],
            [0, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    gap = _vector(gaps, "gaps")
    return torch.as_tensor(gap[:, None] <= gap[None])


def compare_orders(
    gaps: Values,
    measure: Values,
    *,
    names: Sequence[str] | None = None,
    radii: Values | None = None,
    confidence: float = 0.95,
) -> OrderComparison:
    r"""Does a measure rank the instances as their gaps do?

    Args:
        gaps: true gaps (or errors), one an instance; smaller is better.
        measure: bounds or complexities of the same instances; smaller should mean better.
        names: of the instances, for the list of misleading pairs; their numbers unless given.
        radii: half-widths within which the gaps are known (a confidence radius of the test risk).
            Pairs whose intervals overlap are undecided and count neither way.
        confidence: of the intervals.

    Cost: $O(n^2)$ time and memory.

    >>> found = compare_orders([0.1, 0.2, 0.3, 0.4], [1.0, 5.0, 2.0, 9.0], names="abcd")
    >>> found.concordant, found.discordant, round(found.kendall.estimate, 4), found.preserved
    (5, 1, 0.6667, False)
    >>> found.misleading[0].better, found.misleading[0].worse
    ('b', 'c')
    """
    gap, other = _vector(gaps, "gaps"), _vector(measure, "the measure", infinite=True)
    n = len(gap)
    if len(other) != n:
        raise ShapeMismatch(f"there are {n} gaps but {len(other)} values of the measure")
    if n < 3:
        raise EmptyData(f"an order needs at least three instances to be judged, not {n!r}")
    labels = [str(i) for i in range(n)] if names is None else [str(name) for name in names]
    if len(labels) != n:
        raise ShapeMismatch(f"there are {n} instances but {len(labels)} names")
    gap_sign = np.sign(gap[:, None] - gap[None])
    measure_sign = _signs(other)
    decided = np.ones((n, n), dtype=bool)
    if radii is not None:
        radius = _vector(radii, "radii")
        if len(radius) != n or (radius < 0).any():
            raise InvalidInput(f"radii must be {n} numbers >= 0, one for each gap")
        decided = np.abs(gap[:, None] - gap[None]) > radius[:, None] + radius[None]
        decided |= (gap_sign == 0) & (radius[:, None] + radius[None] == 0)
    upper = np.triu(np.ones((n, n), dtype=bool), 1)
    kept = upper & decided
    agreement = gap_sign * measure_sign * decided
    tau = float(agreement[upper].mean())
    comparable = bool(np.ptp(gap) > 0 and (measure_sign != 0).any())
    best = np.flatnonzero(other == other.min())
    return OrderComparison(
        instances=n,
        concordant=int((agreement[upper] > 0).sum()),
        discordant=int((agreement[upper] < 0).sum()),
        merged=int((kept & (gap_sign != 0) & (measure_sign == 0)).sum()),
        split=int((kept & (gap_sign == 0) & (measure_sign != 0)).sum()),
        undecided=int((upper & ~decided).sum()),
        kendall=_hoeffding(tau, n, confidence),
        approximate=_jackknife(agreement, tau, confidence),
        kendall_ties=_tau_b(gap_sign[upper], measure_sign[upper]) if comparable else math.nan,
        spearman=_rank_correlation(gap, other) if comparable else math.nan,
        regret=float(gap[best].max() - gap.min()),  # among ties the choice may be the worst
        misleading=_misleading(gap, other, agreement, labels),
    )


def order_table(
    gaps: Values,
    measures: Mapping[str, Values],
    *,
    names: Sequence[str] | None = None,
    radii: Values | None = None,
    confidence: float = 0.95,
) -> dict[str, OrderComparison]:
    r"""Compare several measures with the gaps, the best $\tau$ first.

    Args:
        gaps, names, radii, confidence: as for `compare_orders`.
        measures: values of each measure, by its name.

    >>> gaps = [0.1, 0.2, 0.3]
    >>> table = order_table(gaps, {"size": [3, 2, 1], "norm": [1.0, 4.0, 9.0]})
    >>> {name: found.kendall.estimate for name, found in table.items()}
    {'norm': 1.0, 'size': -1.0}
    """
    if not isinstance(measures, Mapping) or not measures:
        raise EmptyData(
            "give at least one measure, as a mapping from its name to its values, not "
            f"{described(measures)}"
        )
    found = {
        name: compare_orders(gaps, values, names=names, radii=radii, confidence=confidence)
        for name, values in measures.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].kendall.estimate))


def _tau_b(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    """Kendall's coefficient with ties, from the signs of all pairs; scipy adds a slow p-value."""
    untied = np.count_nonzero(first) * np.count_nonzero(second)
    return float((first * second).sum() / math.sqrt(untied))


def _rank_correlation(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    """Spearman's coefficient: the correlation of the ranks."""
    return float(np.corrcoef(stats.rankdata(first), stats.rankdata(second))[0, 1])


def _misleading(
    gap: np.ndarray[Any, Any],
    measure: np.ndarray[Any, Any],
    agreement: np.ndarray[Any, Any],
    names: Sequence[str],
) -> tuple[MisleadingPair, ...]:
    better, worse = np.nonzero((agreement < 0) & (gap[:, None] < gap[None]))
    cost = gap[worse] - gap[better]
    order = np.argsort(-cost, kind="stable")[:_MOST_LISTED]
    return tuple(
        MisleadingPair(
            names[better[k]],
            names[worse[k]],
            float(cost[k]),
            float(measure[better[k]] - measure[worse[k]]),
        )
        for k in order
    )


def _signs(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Signs of all differences; two infinite bounds are equal."""
    return (values[:, None] > values[None]).astype(float) - (values[:, None] < values[None])


def _hoeffding(tau: float, n: int, confidence: float) -> Interval:
    r"""A U-statistic of order 2 with kernel in [-1, 1]: $\exp(-\lfloor n/2\rfloor t^2/2)$."""
    open_fraction(confidence, "confidence")
    radius = math.sqrt(2 * math.log(2 / (1 - confidence)) / (n // 2))
    low, high = max(-1.0, tau - radius), min(1.0, tau + radius)
    return Interval(tau, low, high, confidence, n, "Hoeffding for U-statistics")


def _jackknife(agreement: np.ndarray[Any, Any], tau: float, confidence: float) -> Interval:
    """Student's interval of the pseudo-values: what tau owes to each instance."""
    n = len(agreement)
    total = agreement.sum() / 2
    without = (total - agreement.sum(1)) / ((n - 1) * (n - 2) / 2)
    found = mean_interval(n * tau - (n - 1) * without, confidence)
    low, high = max(-1.0, min(found.low, tau)), min(1.0, max(found.high, tau))
    return Interval(tau, low, high, confidence, n, "jackknife, Student t")


def _vector(values: Values, name: str, *, infinite: bool = False) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be a list of real numbers") from None
    if array.ndim != 1:
        raise ShapeMismatch(f"{name} must be one number an instance, not shape {array.shape}")
    if array.size == 0:
        raise EmptyData(f"{name} must not be empty")
    if np.isnan(array).any() or (not infinite and np.isinf(array).any()):
        raise NonFinite(f"{name} must not contain NaN" + ("" if infinite else " or infinity"))
    return array
