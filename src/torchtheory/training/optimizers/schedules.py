r"""Learning-rate schedules and the conditions of Robbins and Monro.

$$
\sum_{t=1}^\infty\eta_t=\infty,\qquad\sum_{t=1}^\infty\eta_t^2<\infty .
$$

Both are decided by the tail. For $\eta_t=\Theta(t^{-p})$ the first says $p\le1$, the
second $p>\frac12$. They are sufficient for convergence (with conditions on function and
noise), not necessary. Source: slides "Mathematical Foundations of Deep Learning", optimization.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from torchtheory.core.checks import open_fraction, positive_number
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.intervals import Interval

Schedule = Callable[[int], float]

#: A fitted exponent this close to 1 or 1/2 counts as equal, and the logarithm decides.
CRITICAL = 1e-6


@dataclass(frozen=True)
class PowerLaw:
    r"""$\eta_t=c\,t^{-p}$ for $t=1,2,\dots$, as a function of the steps already made.

    `schedule(k)` is the rate of step $t=k+1$, the convention of
    `torch.optim.lr_scheduler.LambdaLR`, which takes it as it is; torch has no power law of its
    own.

    Attributes:
        exponent: $p$.
        scale: $c>0$.

    >>> schedule = PowerLaw(0.5, scale=2.0)
    >>> schedule(0), schedule(3)
    (2.0, 1.0)
    """

    exponent: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.exponent):
            raise InvalidInput(f"the exponent must be a number, not {self.exponent!r}")
        positive_number(self.scale, "the scale")

    def __call__(self, done: int) -> float:
        return float(self.scale * (done + 1) ** -self.exponent)


@dataclass(frozen=True, slots=True)
class RobbinsMonro:
    r"""What a schedule $\eta_t\approx c\,t^{-p}(\log t)^{-q}$ does in the limit.

    Attributes:
        exponent: $p$ with its interval; infinite where the rate decays faster than every
            power, or becomes 0.
        log_exponent: $q$ with its interval; it matters only at the critical exponents.
        exact: whether the tail is known (a power law, a scheduler of torch) or was fitted.
    """

    exponent: Interval
    log_exponent: Interval
    exact: bool

    @property
    def sum_diverges(self) -> bool | None:
        r"""Whether $\sum\eta_t=\infty$; None if the interval leaves it open."""
        return self._slower_than(1.0, 1.0)

    @property
    def squares_converge(self) -> bool | None:
        r"""Whether $\sum\eta_t^2<\infty$; None if the interval leaves it open."""
        diverges = self._slower_than(0.5, 0.5)
        return None if diverges is None else not diverges

    @property
    def satisfied(self) -> bool | None:
        """Whether both hold; None if that is open."""
        both = (self.sum_diverges, self.squares_converge)
        if False in both:
            return False
        return None if None in both else True

    def _slower_than(self, power: float, logarithm: float) -> bool | None:
        r"""Whether $(p,q)\le$ the given pair, the first component first."""
        p, q = self.exponent, self.log_exponent
        if p.high < power - CRITICAL:
            return True
        if p.low > power + CRITICAL:
            return False
        if p.high - p.low > 2 * CRITICAL:
            return None
        if q.high < logarithm - CRITICAL or (self.exact and q.high <= logarithm):
            return True
        return False if q.low > logarithm + CRITICAL else None


def robbins_monro(
    schedule: Schedule | LRScheduler, *, confidence: float = 0.99, last: int = 10**15
) -> RobbinsMonro:
    r"""Whether a learning rate satisfies the conditions of Robbins and Monro.

    `PowerLaw` and the schedulers of torch are answered exactly, as they behave for ever:
    `StepLR` and `ExponentialLR` decay geometrically, `ConstantLR`, `LinearLR` and
    `MultiStepLR` end constant, `PolynomialLR` ends at 0, and the cosine and cyclic ones go up
    and down without end. For any other function $p$ and $q$ are fitted to
    $\log\eta_t=\log c-p\log t-q\log\log t$ over $t$ up to `last` by least squares;
    the answer assumes such a tail, and that it has set in at the cube root of `last` squared
    (the constants of $c/(a+bt)$ must be negligible there).

    Args:
        schedule: a function of the number of steps already made (0, 1, 2, ...), or a scheduler.
        confidence: of the intervals of a fit.
        last: largest time looked at; the function is evaluated there, never stepped up to it.

    Cost: 200 evaluations of the function.

    >>> robbins_monro(PowerLaw(1.0)).satisfied, robbins_monro(PowerLaw(0.5)).satisfied
    (True, False)
    >>> robbins_monro(lambda t: 0.1 / (1 + 0.01 * t)).satisfied
    True
    """
    open_fraction(confidence, "confidence")
    if last < 10**6:
        raise InvalidInput(f"a tail needs a last time of at least 10^6, not {last}")
    if isinstance(schedule, LRScheduler):
        return _of_scheduler(schedule, confidence, last)
    if not callable(schedule):
        raise InvalidType(
            f"a schedule is a function of the step or a torch scheduler, not "
            f"{type(schedule).__name__}"
        )
    if isinstance(schedule, PowerLaw):
        return _known(schedule.exponent)
    return _fitted(schedule, confidence, last)


def _known(exponent: float) -> RobbinsMonro:
    def point(value: float) -> Interval:
        return Interval(value, value, value, 1.0, 1, "exact")

    return RobbinsMonro(point(exponent), point(0.0), True)


def _of_scheduler(scheduler: LRScheduler, confidence: float, last: int) -> RobbinsMonro:
    match scheduler:
        case lr_scheduler.LambdaLR():
            found = [
                robbins_monro(f, confidence=confidence, last=last) for f in scheduler.lr_lambdas
            ]
            if len(set(found)) > 1:
                raise InvalidInput("the parameter groups have different schedules: ask for each")
            return found[0]
        case lr_scheduler.ExponentialLR() | lr_scheduler.StepLR():
            if scheduler.gamma > 1:
                raise InvalidInput(f"the rate grows without end: gamma is {scheduler.gamma}")
            return _known(0.0 if scheduler.gamma == 1 else math.inf)
        case lr_scheduler.MultiStepLR():
            return _known(0.0 if scheduler.gamma > 0 else math.inf)
        case lr_scheduler.LinearLR():
            return _known(0.0 if scheduler.end_factor > 0 else math.inf)
        case lr_scheduler.PolynomialLR():
            return _known(math.inf)
        case (
            lr_scheduler.ConstantLR()
            | lr_scheduler.CosineAnnealingLR()
            | lr_scheduler.CosineAnnealingWarmRestarts()
            | lr_scheduler.CyclicLR()
        ):
            return _known(0.0)
        case _:
            raise InvalidType(
                f"the tail of {type(scheduler).__name__} is not known here; give the rate as a "
                "function of the step"
            )


def _fitted(schedule: Schedule, confidence: float, last: int) -> RobbinsMonro:
    times = np.unique(np.geomspace(last ** (2 / 3), last, 200).astype(np.int64))
    rates = np.array([float(schedule(int(t) - 1)) for t in times])
    if not np.isfinite(rates).all() or (rates < 0).any():
        raise InvalidInput(
            f"a learning rate must be a finite number >= 0, and this one goes from {rates.min():g} "
            f"to {rates.max():g}"
        )
    if rates[-1] == 0:
        return RobbinsMonro(*(2 * (_infinite(confidence, times.size),)), exact=False)
    if (rates == 0).any():
        raise InvalidInput("the rate is 0 at some times and positive later: it has no power tail")
    log = np.log(times)
    design = np.column_stack([np.ones_like(log), -log, -np.log(log)])
    solution, *_ = np.linalg.lstsq(design, np.log(rates), rcond=None)
    residual = np.log(rates) - design @ solution
    freedom = times.size - 3
    covariance = np.linalg.inv(design.T @ design) * (residual @ residual) / freedom
    quantile = float(stats.t.isf((1 - confidence) / 2, freedom))

    def interval(k: int) -> Interval:
        value, radius = float(solution[k]), quantile * math.sqrt(covariance[k, k])
        return Interval(
            value, value - radius, value + radius, confidence, times.size, "least squares on logs"
        )

    return RobbinsMonro(interval(1), interval(2), False)


def _infinite(confidence: float, trials: int) -> Interval:
    return Interval(math.inf, math.inf, math.inf, confidence, trials, "the rate becomes 0")
