r"""Confidence intervals: what turns a simulation into a claim that can fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import special

from torchtheory.core.checks import open_fraction
from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch

SampleValues = Sequence[float] | np.ndarray[Any, Any] | torch.Tensor

#: The test behind an interval for a probability, from hits among independent trials.
COUNTED = "Clopper-Pearson"


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, with what it rests on.

    Attributes:
        estimate: the point estimate.
        low, high: the ends.
        confidence: probability that such an interval covers the truth.
        trials: number of independent observations.
        test: the method, in words.
        again: makes it at another confidence from the same observations; see `at`.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    trials: int
    test: str
    again: Callable[[float], Interval] | None = field(default=None, compare=False, repr=False)

    def at(self, confidence: float) -> Interval:
        """The interval that the same observations give at another confidence.

        Where it is not known how it was made (it came from a file, or was put together from
        others), its ends are moved as those of a normal law's interval would be, a one-sided one
        if an end is infinite.

        >>> i = mean_interval([1.0, 2.0, 3.0], confidence=0.95)
        >>> i.at(0.99) == mean_interval([1.0, 2.0, 3.0], confidence=0.99)
        True
        """
        open_fraction(confidence, "confidence")
        if self.confidence in (confidence, 1.0):  # of confidence 1: exact, at any confidence
            return self
        # whoever has changed its ends since did not change how it was made
        if self.again is not None and self.again(self.confidence) == self:
            return self.again(confidence)
        sides = 2 if math.isfinite(self.low) and math.isfinite(self.high) else 1
        factor = _normal(confidence, sides) / _normal(self.confidence, sides)

        def moved(end: float, outwards: float) -> float:
            if end == self.estimate:
                return end
            if math.isinf(self.estimate):
                return outwards
            return self.estimate + factor * (end - self.estimate)

        low, high = moved(self.low, -math.inf), moved(self.high, math.inf)
        return replace(self, low=low, high=high, confidence=confidence)

    def to_json(self) -> dict[str, Any]:
        """Plain data; an infinite end becomes the string `"inf"` or `"-inf"`."""
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "again"}
        for end in ("estimate", "low", "high"):
            number = float(data[end])
            data[end] = number if math.isfinite(number) else str(number)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interval:
        """Inverse of `to_json`."""
        return cls(**{**data, **{end: float(data[end]) for end in ("estimate", "low", "high")}})


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    r"""Exact two-sided interval for a proportion.

    With $k$ successes in $n$ trials and $\alpha = 1 -$ confidence, the ends are
    the $\alpha/2$ quantile of $\mathrm{Beta}(k, n-k+1)$ and the $1-\alpha/2$
    quantile of $\mathrm{Beta}(k+1, n-k)$.

    >>> i = clopper_pearson(0, 10)
    >>> i.low, round(i.high, 6)          # 1 - 0.025 ** (1 / 10)
    (0.0, 0.308497)
    """
    open_fraction(confidence, "confidence")
    if trials < 1:
        raise EmptyData(f"a proportion needs at least one trial, not {trials!r}")
    if not 0 <= successes <= trials:
        raise InvalidInput(f"successes must lie in 0..{trials}, not {successes}")
    tail = (1 - confidence) / 2
    failures = trials - successes
    low = 0.0 if successes == 0 else special.betaincinv(successes, failures + 1, tail)
    high = 1.0 if failures == 0 else special.betainccinv(successes + 1, failures, tail)
    again = partial(clopper_pearson, successes, trials)
    return Interval(successes / trials, float(low), float(high), confidence, trials, COUNTED, again)


def quantile_interval(samples: SampleValues, level: float, confidence: float = 0.95) -> Interval:
    r"""Interval for the quantile at `level` of any distribution, from order statistics.

    That a value stays below a radius with probability at least $p$ says that its quantile at $p$
    does. At most $\mathrm{Bin}(n, p)$ observations lie below that quantile, and at least so many
    do not lie above it, so it lies in $[x_{(k)}, x_{(l)}]$ with probability at least the
    confidence for the largest $k$ with $P(\mathrm{Bin}(n,p) < k) \le \alpha/2$ and the smallest
    $l$ with $P(\mathrm{Bin}(n,p)\ge l) \le \alpha/2$. Too few observations give an unbounded
    interval.

    >>> i = quantile_interval(range(1, 101), 0.9)
    >>> i.estimate, i.low, i.high
    (90.5, 84.0, 96.0)
    """
    open_fraction(level, "level")
    open_fraction(confidence, "confidence")
    x = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    n = len(x)
    if n == 0:
        raise EmptyData(f"a quantile needs at least one observation, not {n}")
    if np.isnan(x).any():
        raise NonFinite("the observations contain NaN")
    tail, counts = (1 - confidence) / 2, np.arange(n + 1)
    first = int((special.bdtr(counts, n, level) <= tail).sum())
    last = int(np.argmax(special.bdtrc(counts, n, level) <= tail)) + 1
    low = float(x[first - 1]) if first > 0 else -math.inf
    high = float(x[last - 1]) if last <= n else math.inf
    middle = (x[math.ceil(level * n) - 1] + x[min(math.floor(level * n), n - 1)]) / 2
    again = partial(quantile_interval, x, level)
    return Interval(float(middle), low, high, confidence, n, "order statistics", again)


def median_interval(samples: SampleValues, confidence: float = 0.95) -> Interval:
    """The interval of `quantile_interval` for the median.

    >>> i = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> i.estimate, i.low, i.high            # 2 / 64 < 0.05
    (3.5, 1.0, 6.0)
    """
    return quantile_interval(samples, 0.5, confidence)


def hoeffding_radius(n: int, delta: float, low: float = 0.0, high: float = 1.0) -> float:
    r"""Half-width of the two-sided Hoeffding interval.

    For $n$ independent values in $[a, b]$, with probability at least
    $1-\delta$, $|\bar X - \mathbb E X| \le (b-a)\sqrt{\log(2/\delta) / (2n)}$
    (Foundations of Deep Learning, Eq. 8.1).

    >>> round(hoeffding_radius(1000, 0.05), 6)
    0.042947
    """
    if n < 1:
        raise EmptyData(f"Hoeffding's inequality needs at least one observation, not {n!r}")
    open_fraction(delta, "delta")
    if not low < high:
        raise InvalidInput(f"the range [{low}, {high}] is empty")
    return (high - low) * math.sqrt(math.log(2 / delta) / (2 * n))


def mean_interval(values: SampleValues, confidence: float = 0.99) -> Interval:
    r"""Student's t interval for a mean, $\bar x \pm t_{n-1} s/\sqrt n$.

    >>> i = mean_interval([1.0, 2.0, 3.0], confidence=0.95)
    >>> round(i.estimate, 3), round(i.low, 3), round(i.high, 3)
    (2.0, -0.484, 4.484)
    """
    open_fraction(confidence, "confidence")
    x = _finite(values)
    if x.size < 2:
        raise EmptyData(f"an interval for a mean needs at least two observations, not {x.size!r}")
    error = float(x.std(ddof=1)) / math.sqrt(x.size)
    return _student_interval(float(x.mean()), error, x.size - 1, x.size, "Student t", confidence)


def largest_mean_interval(
    columns: SampleValues | Sequence[Sequence[float]], confidence: float = 0.99
) -> Interval:
    r"""Interval for the largest of several means, $\max_kE\,x_k$, whichever it is.

    The column with the largest sample mean was chosen by the sample, so Student's interval for it
    alone promises too much. Here the intervals of all columns hold together (each misses with the
    $d$-th part of the probability), and the largest mean lies between the largest of their lower
    ends and the largest of their upper ends. The estimate, the largest sample mean, is too large
    on average.

    Args:
        columns: observations `[n, d]`, one column for each mean; columns may depend on each other.

    >>> i = largest_mean_interval([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]], confidence=0.95)
    >>> i.estimate, i.low, round(i.high, 3)               # 2 + 6.205 / sqrt(3)
    (5.0, 5.0, 5.583)
    """
    open_fraction(confidence, "confidence")
    x = _finite_array(columns)
    if x.ndim != 2:
        raise ShapeMismatch(f"observations of several means are [n, d], not {list(x.shape)}")
    n, d = x.shape
    if n < 2 or d < 1:
        raise EmptyData(
            f"the largest of several means needs a column and two rows at least, not {n} x {d}"
        )
    each = 1 - (1 - confidence) / d
    radius = _student(each, n - 1) * x.std(axis=0, ddof=1) / math.sqrt(n)
    mean = x.mean(axis=0)
    return Interval(
        float(mean.max()),
        float((mean - radius).max()),
        float((mean + radius).max()),
        confidence,
        n,
        f"Student t over {d} means together",
        partial(largest_mean_interval, x),
    )


def fit_slope(
    x: SampleValues, y: SampleValues, confidence: float = 0.99, *, log: bool = True
) -> Interval:
    r"""Exponent $\beta$ of $y \approx c\,x^\beta$ by least squares on the logarithms.

    The interval is Student's for the slope of a straight line with independent errors. With
    `log=False` the line is fitted to the values themselves.

    >>> x = [1.0, 2.0, 4.0, 8.0]
    >>> round(fit_slope(x, [3 * v ** -0.5 for v in x]).estimate, 9)
    -0.5
    """
    open_fraction(confidence, "confidence")
    a, b = _finite(x), _finite(y)
    if a.shape != b.shape:
        raise ShapeMismatch(f"x has {a.size} values and y has {b.size}; they must pair up")
    if np.unique(a).size < 3:
        raise EmptyData(
            "a rate with a confidence interval needs at least three different x, not "
            f"{np.unique(a).size}"
        )
    if log:
        if (a <= 0).any() or (b <= 0).any():
            raise InvalidInput(
                "a power law needs positive x and y; use log=False for a line (the smallest are "
                f"{a.min():g} and {b.min():g})"
            )
        a, b = np.log(a), np.log(b)
    centered = a - a.mean()
    spread = float(centered @ centered)
    slope = float(centered @ b) / spread
    residual = b - b.mean() - slope * centered
    error = math.sqrt(float(residual @ residual) / (a.size - 2) / spread)
    name = "least squares on logarithms" if log else "least squares"
    return _student_interval(slope, error, a.size - 2, a.size, name, confidence)


def _student_interval(
    estimate: float, error: float, degrees: int, trials: int, test: str, confidence: float
) -> Interval:
    """Student's interval of an estimate with this standard error and these degrees of freedom."""
    radius = _student(confidence, degrees) * error
    again = partial(_student_interval, estimate, error, degrees, trials, test)
    return Interval(estimate, estimate - radius, estimate + radius, confidence, trials, test, again)


def _student(confidence: float, degrees: int) -> float:
    """Two-sided quantile of Student's t."""
    return -float(special.stdtrit(degrees, (1 - confidence) / 2))


def _normal(confidence: float, sides: int) -> float:
    """Quantile of the normal law, one-sided or two-sided."""
    return -float(special.ndtri((1 - confidence) / sides))


def _finite(values: SampleValues) -> np.ndarray[Any, Any]:
    return _finite_array(values).ravel()


def _finite_array(values: SampleValues | Sequence[Sequence[float]]) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        raise NonFinite("the observations contain NaN or infinity")
    return x
