r"""Ranges that cover everything which made a number: samples, random vectors, residuals, rounding.

A finding measures on $n$ of $N$ training samples, drawn without replacement, what is meant of all
$N$. Here is what turns such a measurement into a range of stated confidence: for means, for smooth
functions of them (the jackknife), for extreme eigenvalues of a mean of matrices, and for the
length of a mean vector. All shrink to a point as $n\to N$.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from scipy import special
from torch import Tensor

from torchtheory.core.errors import EmptyData
from torchtheory.core.intervals import Interval
from torchtheory.core.random import as_generator
from torchtheory.generalization.pac_bayes.bernoulli_kl import lower_kl_inverse, upper_kl_inverse
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Groups whose spread stands for that of the samples.
GROUPS = 16

#: Draws of the studentized bootstrap.
_DRAWS = 1999

#: Share of the error probability that is kept back for what laws of large numbers leave out: few
#: and skewed values, a spread that is itself estimated. With it a range of 95 % holds its promise
#: also for skewness 5 (the loss of a trained classifier) and a hundred samples.
_KEPT_BACK = 0.8


def part_of(samples: Samples) -> str:
    """How many training samples made a number, as it stands in a sentence; empty for all of them.

    >>> part_of(Samples(torch.zeros(16, 1), torch.zeros(16), total=3088))
    ' (from 16 of 3,088 training samples)'
    """
    if len(samples) >= samples.population:
        return ""
    return f" (from {len(samples):,} of {samples.population:,} training samples)"


def grouped(
    samples: Samples, generator: torch.Generator, groups: int = GROUPS
) -> tuple[list[Samples], Tensor]:
    """The samples at random in groups whose sizes differ by one at most, and their shares `[G]`."""
    count = min(groups, len(samples))
    order = torch.randperm(len(samples), generator=generator)
    parts = [samples.at(part) for part in torch.tensor_split(order, count)]
    return parts, torch.tensor([len(p) for p in parts]).double() / len(samples)


def group_losses(
    problems: Sequence[Problem], samples: Samples, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mean losses of problems on the same groups of samples, `[k, G]`, and the shares `[G]`."""
    order = torch.randperm(len(samples), generator=generator)
    parts = torch.tensor_split(order.to(samples.y.device), min(GROUPS, len(samples)))
    rows = []
    with torch.no_grad():
        for problem in problems:
            outputs = problem.outputs(samples)
            rows.append([float(problem.loss(outputs[p], samples.y[p])) for p in parts])
    shares = torch.tensor([len(p) for p in parts]).double() / len(samples)
    return torch.tensor(rows, dtype=torch.float64), shares


def loss_range(
    problem: Problem, samples: Samples, generator: torch.Generator, confidence: float
) -> Interval:
    """The mean loss on all samples there are, from some of them."""
    (losses,), shares = group_losses([problem], samples, generator)
    value = float(shares @ losses)
    return mean_range(losses, len(samples), samples.population, confidence, value=value)


def mean_range(
    values: Tensor,
    used: int,
    population: float,
    confidence: float,
    *,
    value: float | None = None,
) -> Interval:
    r"""The mean over a population of which `used` samples are known, in equal groups.

    Student's interval $\bar x\pm t\,\frac{s}{\sqrt G}\sqrt{1-n/N}$, widened where the studentized
    bootstrap is wider: it follows the skewness of the values. A part of the error probability is
    kept back.

    Args:
        values: the mean of each group, `[G]`, $G\ge2$ unless all samples are known.
        used: $n$, samples in all groups together.
        population: $N$; infinite for independent draws.
        confidence: of the range.
        value: the mean over the samples, where the groups differ in size.

    >>> found = mean_range(torch.tensor([1.0, 2.0, 3.0, 2.0]), 4, 8, 0.95)
    >>> round(found.estimate, 6), found.low < 1.5, found.high > 2.5
    (2.0, True, True)
    >>> mean_range(torch.tensor([1.0, 3.0]), 2, 2, 0.95).high           # nothing is unknown
    2.0
    """
    x = values.detach().cpu().double().flatten()
    if len(x) == 0:
        raise EmptyData("a mean needs at least one value, and there is none")
    center = float(x.mean()) if value is None else value
    if used >= population:
        return Interval(center, center, center, confidence, used, "all samples")
    if len(x) < 2:
        return Interval(center, -math.inf, math.inf, confidence, used, "a single value")
    error = float(x.std()) * math.sqrt((1 - used / population) / len(x))
    below, above = _studentized(x, confidence)
    return Interval(
        center,
        center - below * error,
        center + above * error,
        confidence,
        used,
        "Student t and bootstrap",
    )


def student(confidence: float, degrees: int) -> float:
    """How many standard errors a range of this confidence reaches, error kept back included."""
    tail = (1 - confidence) * (1 - _KEPT_BACK) / 2
    return -float(special.stdtrit(degrees, tail))


def _studentized(x: Tensor, confidence: float) -> tuple[float, float]:
    """Standard errors from the mean down and up: Student's, or the bootstrap's where more."""
    count = len(x)
    least = student(confidence, count - 1)
    draws = torch.randint(count, (_DRAWS, count), generator=as_generator(0))
    again = x[draws]
    spread = again.std(1)
    mean = x.mean()
    kept = spread > 1e-9 * x.std()  # a draw of one value again and again has no scale
    if int(kept.sum()) < _DRAWS // 2:
        return least, least
    t = (again.mean(1)[kept] - mean) / (spread[kept] / math.sqrt(count))
    tail = (1 - confidence) * (1 - _KEPT_BACK) / 2
    low, high = (float(t.quantile(q)) for q in (tail, 1 - tail))
    return max(least, high), max(least, -low)


def share_range(value: float, used: int, population: float, confidence: float) -> Interval:
    r"""The mean over a population of numbers between 0 and 1, whatever their law.

    Chernoff's bound: where the mean is $\mu$, $n\,\mathrm{kl}(\bar x\,\|\,\mu)\le\log(2/\delta)$
    with probability $1-\delta$, also for draws without replacement. It holds where a spread tells
    nothing, because few samples make most of the mean.

    >>> found = share_range(0.0, 100, 1000, 0.95)
    >>> found.low, round(found.high, 3)
    (0.0, 0.036)
    """
    if used >= population:
        return Interval(value, value, value, confidence, used, "all samples")
    spent = math.log(2 / (1 - confidence)) / used
    low, high = lower_kl_inverse(value, spent), upper_kl_inverse(value, spent)
    return Interval(value, low, high, confidence, used, "Chernoff bound")


def jackknife_range(
    value: float, without: Tensor, used: int, population: float, confidence: float
) -> Interval:
    r"""A smooth function of means, from its values with one group left out each.

    The range is `mean_range` of the pseudo-values $G\,T-(G-1)\,T_{(g)}$ about the value.

    Args:
        value: $T$ of all groups.
        without: $T_{(g)}$, `[G]`.

    >>> x = torch.tensor([1.0, 2.0, 4.0, 5.0]).double()
    >>> found = jackknife_range(3.0, (x.sum() - x) / 3, 4, math.inf, 0.95)
    >>> found == replace(mean_range(x, 4, math.inf, 0.95), test=found.test)
    True
    """
    count = len(without)
    pseudo = count * value - (count - 1) * without.detach().cpu().double()
    found = mean_range(pseudo, used, population, confidence, value=value)
    return replace(found, test="jackknife" if found.low < found.high else found.test)


def spread_over_both(
    table: Tensor, used: int, population: float, confidence: float, *, value: float | None = None
) -> Interval:
    """The mean of a table `[G, K]`: groups of samples down, independent random vectors across.

    The range joins that of the samples with that of the vectors; what both share counts twice.
    """
    samples = mean_range(table.mean(1), used, population, confidence, value=value)
    vectors = mean_range(table.mean(0), table.shape[1], math.inf, confidence)
    center = samples.estimate
    down = math.hypot(center - samples.low, vectors.estimate - vectors.low)
    up = math.hypot(samples.high - center, vectors.high - vectors.estimate)
    return Interval(center, center - down, center + up, confidence, used, "samples and vectors")


def largest_eigenvalue_range(
    value: float,
    inside: Tensor,
    outside: Tensor,
    *,
    used: int,
    unseen: int,
    population: int,
    residual: float,
    confidence: float,
    folds: bool = False,
) -> Interval:
    r"""$\lambda_{\max}$ of the mean of $N$ symmetric matrices $A_i$, from the mean of $n$ of them.

    With $v$ the top eigenvector of the mean $A_n$ of those known, $v^\top A_Nv\le\lambda_{\max}
    (A_N)$, and samples that did not choose $v$ tell $v^\top A_Nv$: that is the lower end, whatever
    the residual. With $u$ the top eigenvector of $A_N$, $\lambda_{\max}(A_N)=u^\top A_Nu$ differs
    from $u^\top A_nu\le\lambda_{\max}(A_n)$ by the error of a mean, whose spread is taken to be
    that along $v$: the upper end. The value is halfway between $v^\top A_Nv$ and
    $\lambda_{\max}(A_n)$, one too small and the other too large on average.

    Args:
        value: the Rayleigh quotient $v^\top A_nv$.
        inside: $v^\top A_gv$ of groups of the known samples, `[G]`.
        outside: the same of groups of other samples, `[G']`; empty where there are none.
        used, unseen: samples inside and outside.
        population: $N$.
        residual: of the eigenpair.
        folds: whether `outside` are the same samples, each judging a direction that others chose.

    >>> alone = largest_eigenvalue_range(2.0, torch.tensor([2.0]), torch.tensor([]), used=5,
    ...                                  unseen=0, population=5, residual=0.1, confidence=0.95)
    >>> alone.low, alone.estimate, alone.high
    (2.0, 2.0, 2.1)
    """
    if used >= population:
        return Interval(value, value, value + residual, confidence, used, "all samples")
    share = 0.0 if folds else used / population
    left = population if folds else population - used
    other = mean_range(outside, unseen, left, confidence)
    here = mean_range(inside, used, population, confidence, value=value)
    # of samples that chose the direction the spread may be too small
    error = math.sqrt((1 - used / population) / used)
    spread = float(outside.std()) * math.sqrt(unseen / len(outside)) if len(outside) > 1 else 0.0
    reach = max(here.high - value, student(confidence, len(outside) - 1) * error * spread)
    known = share * value + (1 - share) * other.estimate
    return Interval(
        (known + max(known, value)) / 2,
        share * value + (1 - share) * other.low,
        max(known, value) + reach + residual,
        confidence,
        used,
        "samples that did not choose the direction, and the spread of those that did",
    )


def quotient(above: Interval, below: Interval) -> Interval:
    """The quotient of two numbers at least 0, from their ranges; both hold, or nothing is said.

    >>> two, four = (Interval(v, v - 1, v + 1, 0.95, 9, "") for v in (2.0, 4.0))
    >>> found = quotient(two, four)
    >>> found.low, found.estimate, found.high
    (0.2, 0.5, 1.0)
    """

    def over(a: float, b: float) -> float:
        return a / b if b > 0 else (0.0 if a == 0 else math.inf)

    return Interval(
        over(above.estimate, below.estimate),
        over(max(above.low, 0.0), max(below.high, 0.0)),
        over(max(above.high, 0.0), max(below.low, 0.0)),
        min(above.confidence, below.confidence),
        min(above.trials, below.trials),
        above.test,
    )


def mean_vector_range(
    gram: Tensor, each: float, population: float, confidence: float
) -> tuple[Interval, Interval]:
    r"""The squared length of a mean vector, and the same over the variance of a single one.

    With $\bar g$ the mean of $G$ groups of $b$ vectors and $V=\frac b{G-1}\sum_g\|g-\bar g\|^2$,
    $\|\bar g\|^2-(1-\frac nN)\frac Vn$ is free of bias for the squared length over all $N$, and
    $V$ for their variance. The ranges are the jackknife's, and at least what noise alone would
    give: with no mean at all the variance of the first is $2\operatorname{tr}\Sigma^2/n^2$.

    Args:
        gram: inner products of the group means, `[G, G]`, $G\ge3$.
        each: $b$, vectors in a group.
        population: $N$.

    >>> rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]]).double()
    >>> square, ratio = mean_vector_range(rows @ rows.T, 1, 4, 0.95)
    >>> square.low, square.high, ratio.estimate                         # variance 4 / 3
    (1.0, 1.0, 0.75)
    """
    gram = gram.detach().cpu().double()
    count = len(gram)
    used = round(count * each)
    squares, total = gram.diagonal(), gram.sum()

    def estimates(sum_of_squares: Tensor, sum_of_all: Tensor, k: int) -> tuple[Tensor, Tensor]:
        mean = sum_of_all / k**2
        variance = (each * (sum_of_squares - k * mean) / (k - 1)).clamp_min(0)
        known = min(1.0, k * each / population)
        return mean - (1 - known) * variance / (k * each), variance

    def over(square: Tensor, variance: Tensor) -> Tensor:
        return torch.where(variance > 0, square / variance.clamp_min(1e-300), math.inf)

    square, variance = estimates(squares.sum(), total, count)
    some = estimates(squares.sum() - squares, total - 2 * gram.sum(1) + squares, count - 1)
    if used >= population:
        # the variance rests on how samples fell into groups, though all of them are known
        whole = population if each == 1 else math.inf
        around = jackknife_range(float(variance), some[1], used, whole, confidence)
        length = float(square)
        known = Interval(length, length, length, confidence, used, "all samples")
        return known, quotient(known, around)
    centered = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    beside = centered[~torch.eye(count, dtype=torch.bool)]
    noise = math.sqrt(2 * float(beside.square().mean())) / count * (1 - used / population)
    reach = student(confidence, count - 1) * noise
    drawn_from = population if each == 1 else math.inf
    found = []
    for value, without, least, size in (
        (square, some[0], reach, population),
        (over(square, variance), over(*some), reach / max(float(variance), 1e-300), drawn_from),
    ):
        if not bool(torch.isfinite(without).all() & torch.isfinite(value)):
            found.append(Interval(math.inf, math.inf, math.inf, confidence, used, "no variance"))
            continue
        there = jackknife_range(float(value), without, used, size, confidence)
        low = min(there.low, there.estimate - least)
        high = max(there.high, there.estimate + least)
        found.append(replace(there, low=max(0.0, low), high=max(0.0, high)))
    return found[0], found[1]
