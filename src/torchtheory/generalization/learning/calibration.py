r"""Calibration: of what is said with confidence $p$, a share $p$ should be right.

A classifier names the class $\hat y$ with confidence $\hat p$, its largest probability. It is
*calibrated* if

$$ P(\hat y = y \mid \hat p) = \hat p, $$

and its *expected calibration error* over bins $I_1,\dots,I_B$ of confidences is

$$
\mathrm{ECE} = \sum_b P(\hat p\in I_b)\,|\delta_b|,\qquad
\delta_b = P(\hat y=y\mid \hat p\in I_b) - \mathbb E(\hat p\mid \hat p\in I_b).
$$

The usual estimate puts frequencies for probabilities, and is too large: also the gaps of a
calibrated classifier are not 0 in a finite sample. Bins here hold equally many samples each, and
depend on the confidences alone, so that given these the samples of a bin are independent trials.

Sources: Guo, Pleiss, Sun and Weinberger (2017), *On Calibration of Modern Neural Networks*;
Bröcker and Smith (2007), *Increasing the Reliability of Reliability Diagrams*; Kumar, Liang and Ma
(2019), *Verified Uncertainty Calibration*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector, open_fraction
from torchtheory.core.errors import EmptyData, InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.random import as_generator

#: Most bins, and samples that a bin should hold before there is a second one.
BINS, SAMPLES_PER_BIN = 15, 40

#: Sets of answers that a test draws.
DRAWS = 999

#: Entries drawn at once.
_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Samples of similar confidence.

    Attributes:
        confidence: their mean confidence.
        accuracy: the share that is right, with its Clopper-Pearson interval.
    """

    confidence: float
    accuracy: Interval

    @property
    def samples(self) -> int:
        return self.accuracy.trials


@dataclass(frozen=True, slots=True)
class CalibrationTest:
    """Whether the gaps are larger than those of a calibrated classifier by chance.

    Attributes:
        gap: the usual estimate of the expected calibration error.
        by_chance: its mean if the classifier were calibrated.
        p_value: probability that a calibrated classifier shows a gap as large.
    """

    gap: float
    by_chance: float
    p_value: float


@dataclass(frozen=True, slots=True)
class ClusteredCalibration:
    """Calibration of answers that depend on each other within clusters.

    Attributes:
        bins: as of `reliability_curve`, with ranges over clusters.
        error: the expected calibration error.
        excess: mean confidence minus accuracy.
        test: whether the gaps are larger than by chance.
    """

    bins: list[ReliabilityBin]
    error: Interval
    excess: Interval
    test: CalibrationTest


def predicted_confidence(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Largest probability and whether its class is the right one, each `[n]`.

    Args:
        logits: `[n, classes]`.
        labels: class indices `[n]`.

    >>> p, right = predicted_confidence(torch.tensor([[0.0, 0.0], [0.0, 20.0]]), torch.ones(2))
    >>> p.round(decimals=3).tolist(), right.tolist()
    ([0.5, 1.0], [False, True])
    """
    z, y = _checked(logits, labels)
    p, chosen = z.softmax(1).max(1)
    return p, chosen == y


def reliability_curve(
    confidence: Tensor, correct: Tensor, *, level: float = 0.95
) -> list[ReliabilityBin]:
    """The share that is right at every level of confidence.

    Bins hold equally many samples each; there are up to 15 of them, of at least 40.

    Args:
        confidence: `[n]` in [0, 1].
        correct: `[n]` of bool.
        level: of the interval of a bin.

    >>> p = torch.tensor([0.6, 0.9]).repeat(40)
    >>> right = torch.tensor([True, True, False, True]).repeat(20)
    >>> for b in reliability_curve(p, right):
    ...     round(b.confidence, 3), b.accuracy.estimate
    (0.6, 0.5)
    (0.9, 1.0)
    """
    p, right = _trials(confidence, correct)
    return [
        ReliabilityBin(
            float(p[part].mean()), clopper_pearson(int(right[part].sum()), len(part), level)
        )
        for part in _bins(p)
    ]


def calibration_error(confidence: Tensor, correct: Tensor, *, level: float = 0.95) -> Interval:
    r"""The expected calibration error without the bias of its usual estimate, and its interval.

    Every bin is cut in halves $A$ and $B$. With the gaps $g^A_b, g^B_b$ measured in them,

    $$ \tfrac12\sum_b w_b\bigl(\operatorname{sgn}(g^A_b)\,g^B_b+
    \operatorname{sgn}(g^B_b)\,g^A_b\bigr) $$

    has the mean $\sum_b w_b\,\delta_b\,\mathbb E\operatorname{sgn}(g_b)\le\mathrm{ECE}$, with
    equality where no $\delta_b$ is 0 and its sign is clear, and 0 for a calibrated classifier.
    That is the estimate (0 where it is negative); the lower end is a normal quantile below it. The
    usual estimate $\sum_b w_b|g_b|$ has a mean of at least ECE, and the upper end is a quantile
    above that one. With $s_b$ the standard error of a bin the variances are at most
    $2\sum_b w_b^2s_b^2$ and $\sum_b w_b^2s_b^2$. The mean gap of all samples is at most ECE too,
    whatever the bins: where it is clearly not 0, estimate and lower end do not lie below it.

    Args:
        confidence: `[n]` in [0, 1].
        correct: `[n]` of bool.
        level: confidence of the interval.

    $O(n\log n)$.

    >>> sure = torch.full((1000,), 0.9)
    >>> error = calibration_error(sure, torch.arange(1000) % 10 < 7)     # 70 % are right
    >>> round(error.estimate, 3), 0.1 < error.low < 0.2 < error.high < 0.3
    (0.2, True)
    """
    open_fraction(level, "level")
    p, right = _trials(confidence, correct)
    quantile = _normal(level)
    plain = crossed = variance = 0.0
    for part in _bins(p):
        weight, n = len(part) / len(p), len(part)
        gaps = right[part].double() - p[part].double()
        # a bin where all are right is not free of error: as if one more were right and one wrong
        share = (float(right[part].double().sum()) + 1) / (n + 2)
        plain += weight * abs(float(gaps.mean()))
        variance += weight**2 * share * (1 - share) / n
        if n > 1:
            one, two = float(gaps[::2].mean()), float(gaps[1::2].mean())
            crossed += weight * (math.copysign(two, one * two) + math.copysign(one, one * two)) / 2
    # two lower ends share the level
    stricter = _normal((1 + level) / 2)
    whole = abs(float((right.double() - p.double()).mean()))
    least = whole - stricter * math.sqrt(variance)
    if least > 0:
        crossed = max(crossed, whole)
    low = max(0.0, crossed - stricter * math.sqrt(2 * variance), least)
    high = min(1.0, plain + quantile * math.sqrt(variance))
    return Interval(
        min(max(crossed, low), high), low, high, level, len(p), "halves of bins against each other"
    )


def calibration_test(
    confidence: Tensor,
    correct: Tensor,
    *,
    generator: torch.Generator | int = 0,
) -> CalibrationTest:
    r"""Is the classifier calibrated? An exact test, at every sample size.

    If it is, each answer is right with probability its confidence, independently. 999 sets of
    answers are drawn, and the usual estimate of the calibration error of the given ones takes its
    rank among theirs: $p = (1 + \#\{\text{draws with as large a gap}\})/(1+\text{draws})$.

    Args:
        confidence: `[n]` in [0, 1].
        correct: `[n]` of bool.

    $O(n)$, a thousand times.

    >>> sure = torch.full((1000,), 0.9)
    >>> calibration_test(sure, torch.arange(1000) % 10 < 9).p_value > 0.5
    True
    >>> calibration_test(sure, torch.arange(1000) % 10 < 7).p_value
    0.001
    """
    p, right = _trials(confidence, correct)
    source = as_generator(generator)
    parts = _bins(p)
    member = torch.zeros(len(p), len(parts), dtype=torch.float64)
    for k, part in enumerate(parts):
        member[part, k] = 1 / len(p)
    expected = p @ member

    def gaps(answers: Tensor) -> Tensor:
        return (answers.double() @ member - expected).abs().sum(-1)

    gap = gaps(right)
    drawn = []
    at_once = max(1, _AT_ONCE // len(p))
    for start in range(0, DRAWS, at_once):
        count = min(at_once, DRAWS - start)
        uniform = torch.rand(count, len(p), generator=source, dtype=torch.float64)
        drawn.append(gaps(uniform < p))
    null = torch.cat(drawn)
    # sums in another order may differ in their last bits, and ties count
    as_large = int((null >= gap - 1e-12).sum())
    return CalibrationTest(float(gap), float(null.mean()), (1 + as_large) / (1 + DRAWS))


def clustered_calibration(
    confidence: Tensor,
    correct: Tensor,
    cluster: Tensor,
    *,
    level: float = 0.95,
    generator: torch.Generator | int = 0,
) -> ClusteredCalibration:
    r"""Calibration where answers of one cluster depend on each other: the tokens of a sequence.

    With $c_{sb}$ the sum of (right − confidence) of cluster s in bin b over the number of all
    answers, the gaps are $g_b=\sum_sc_{sb}$, and $\sum_bv_bg_b$ has the standard error of a sum
    over independent clusters, $\bigl(\tfrac S{S-1}\sum_s(\sum_bv_b(c_{sb}-\tfrac{n_s}ng_b))^2\bigr)
    ^{1/2}$. The estimate and its ends are as in `calibration_error`, with clusters for samples:
    halves are halves of the clusters, and $v=\operatorname{sgn}g$. The test compares $\sum_b|g_b|$
    with $\sum_b|\sum_s\epsilon_sc_{sb}|$ for random signs.

    Args:
        confidence: `[n]` in [0, 1].
        correct: `[n]` of bool.
        cluster: to which cluster each belongs, `[n]` of whole numbers; at least two clusters.
        level: confidence of the intervals.

    $O(n\log n)$, and a thousand sums over clusters.

    >>> p, who = torch.full((1000,), 0.9), torch.arange(1000) // 20
    >>> found = clustered_calibration(p, torch.arange(1000) % 10 < 7, who)
    >>> round(found.error.estimate, 3), found.test.p_value
    (0.2, 0.001)
    """
    open_fraction(level, "level")
    p, right = _trials(confidence, correct)
    who = torch.unique(as_vector(cluster.double(), "cluster").cpu(), return_inverse=True)[1]
    if len(who) != len(p):
        raise ShapeMismatch(f"there are {len(p)} confidences but {len(who)} numbers of clusters")
    count = int(who.max()) + 1
    if count < 2:
        raise EmptyData("ranges over clusters need at least two of them")
    parts = _bins(p)
    place = torch.empty(len(p), dtype=torch.long)
    for k, part in enumerate(parts):
        place[part] = k

    def table(values: Tensor) -> Tensor:
        cells = torch.zeros(count * len(parts), dtype=torch.float64)
        return cells.index_add(0, who * len(parts) + place, values).view(count, len(parts))

    numbers, hits = table(torch.ones_like(p)), table(right.double())
    own = table((right.double() - p) / len(p))
    gaps = own.sum(0)
    centered = own - numbers.sum(1, keepdim=True) / len(p) * gaps
    quantile, stricter = (
        -float(special.stdtrit(count - 1, (1 - c) / 2)) for c in (level, (1 + level) / 2)
    )

    def error_of(weights: Tensor) -> float:
        return math.sqrt(count / (count - 1) * float((centered @ weights).square().sum()))

    plain, wobble = float(gaps.abs().sum()), error_of(gaps.sign())
    # each half of the clusters alone: its gaps are those of twice as few
    order = torch.arange(count) % 2 == 0
    one, two = 2 * own[order].sum(0), 2 * own[~order].sum(0)
    crossed = float((one.sign() * two + two.sign() * one).sum()) / 2
    whole, around = float(gaps.sum()), error_of(torch.ones_like(gaps))
    least = abs(whole) - stricter * around
    if least > 0:
        crossed = max(crossed, abs(whole))
    low = max(0.0, crossed - stricter * math.sqrt(2) * wobble, least)
    high = min(1.0, plain + quantile * wobble)
    test = "halves of clusters against each other"
    signs = torch.randint(0, 2, (DRAWS, count), generator=as_generator(generator)).double() * 2 - 1
    null = (signs @ own).abs().sum(1)
    as_large = int((null >= plain - 1e-12).sum())
    return ClusteredCalibration(
        [_clustered_bin(p, part, hits[:, k], numbers[:, k], level) for k, part in enumerate(parts)],
        Interval(min(max(crossed, low), high), low, high, level, count, test),
        Interval(
            -whole, -whole - quantile * around, -whole + quantile * around, level, count,
            "Student t over clusters",
        ),
        CalibrationTest(plain, float(null.mean()), (1 + as_large) / (1 + DRAWS)),
    )  # fmt: skip


def _clustered_bin(
    p: Tensor, part: Tensor, hits: Tensor, numbers: Tensor, level: float
) -> ReliabilityBin:
    """One bin: its share of right answers is a ratio of sums over clusters."""
    there = numbers > 0
    hits, numbers = hits[there], numbers[there]
    share, count = float(hits.sum() / numbers.sum()), len(hits)
    if count < 2 or share in (0.0, 1.0):
        # of clusters that are all right or all wrong, as of single answers
        around = clopper_pearson(round(share) * count, count, level)
        low, high = min(around.low, share), max(around.high, share)
    else:
        squares = float((hits - share * numbers).square().sum())
        spread = math.sqrt(count / (count - 1) * squares) / float(numbers.sum())
        reach = -float(special.stdtrit(count - 1, (1 - level) / 2)) * spread
        low, high = max(0.0, share - reach), min(1.0, share + reach)
    return ReliabilityBin(
        float(p[part].mean()),
        Interval(share, low, high, level, len(part), "Student t over clusters"),
    )


def fit_temperature(
    logits: Tensor, labels: Tensor, *, level: float = 0.95, cluster: Tensor | None = None
) -> Interval:
    r"""The temperature $T$ whose probabilities $\mathrm{softmax}(z/T)$ fit the labels best.

    The mean negative log-likelihood is convex in $\beta=1/T$; its derivatives are
    $\frac1n\sum_i g_i$ with $g_i = \mathbb E_\beta z_i - z_{i,y_i}$ and
    $h = \frac1n\sum_i\mathrm{Var}_\beta z_i$, and Newton's method finds the minimum, guarded by
    a bracket. The interval is that of a maximum-likelihood estimate whose model need not be right,
    $\beta\pm q\,\sqrt{\sum_i g_i^2}\,/(nh)$.

    Args:
        logits: `[n, classes]`.
        labels: class indices `[n]`.
        level: confidence of the interval.
        cluster: to which cluster each sample belongs, `[n]`, where those of one depend on each
            other; the sum in the interval is then over squares of sums of clusters.

    $T=\infty$ where the logits are no better than none. $O(n\cdot\text{classes})$ a step.

    Raises:
        InvalidInput: if every sample is right, for then the best temperature is 0.

    >>> z = torch.tensor([[0.0, 6.0]]).repeat(100, 1)
    >>> y = (torch.arange(100) % 10 < 9).long()           # right 9 times of 10: log 9 = 6 / T
    >>> round(fit_temperature(z, y).estimate, 4)
    2.7307
    """
    open_fraction(level, "level")
    z, y = _checked(logits, labels)
    own = z.gather(1, y[:, None]).squeeze(1)
    if bool((own >= z.max(1).values).all()):
        raise InvalidInput(
            "every sample is classified correctly, so the likelihood grows without end as the "
            "temperature tends to 0"
        )

    def slopes(beta: float) -> tuple[Tensor, float]:
        p = (beta * z).softmax(1)
        mean = (p * z).sum(1)
        return mean - own, float((p * (z - mean[:, None]).square()).sum(1).mean())

    beta = _root(slopes, float(z.std())) if float(slopes(0.0)[0].mean()) < 0 else 0.0
    g, h = slopes(beta)
    error = math.inf
    if h > 0:
        if cluster is not None:
            who = torch.unique(cluster.cpu(), return_inverse=True)[1]
            g = torch.zeros(int(who.max()) + 1, dtype=g.dtype).index_add(0, who, g)
        error = _normal(level) * math.sqrt(float(g.square().sum())) / (len(y) * h)
    estimate, low, high = (1 / b if b > 0 else math.inf for b in (beta, beta + error, beta - error))
    return Interval(estimate, low, high, level, len(y), "maximum likelihood")


def _root(slopes: Callable[[float], tuple[Tensor, float]], size: float) -> float:
    """Where the mean slope is 0: Newton's steps while they stay in the bracket, else halves."""
    low, high = 0.0, 1 / max(size, 1e-300)
    while float(slopes(high)[0].mean()) < 0:
        low, high = high, 2 * high
    beta = (low + high) / 2
    for _ in range(200):
        g, h = slopes(beta)
        first = float(g.mean())
        low, high = (beta, high) if first < 0 else (low, beta)
        step = beta - first / h if h > 0 else math.inf
        following = step if low < step < high else (low + high) / 2
        if abs(following - beta) <= 1e-12 * beta:
            break
        beta = following
    return beta


def _normal(level: float) -> float:
    """Two-sided quantile of the normal law."""
    return float(special.ndtri((1 + level) / 2))


def _checked(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    z = as_matrix(logits, "logits").detach().double().cpu()
    y = labels.detach().reshape(-1).long().cpu()
    if len(y) != len(z):
        raise ShapeMismatch(f"there are {len(z)} rows of logits but {len(y)} labels")
    if z.shape[1] < 2:
        raise ShapeMismatch(
            f"logits have one column per class, at least two, not {list(z.shape)}; of one take "
            "(0, logit)"
        )
    if int(y.min()) < 0 or int(y.max()) >= z.shape[1]:
        raise LabelOutOfRange(
            f"labels run from {int(y.min())} to {int(y.max())}, but there are {z.shape[1]} classes"
        )
    return z, y


def _trials(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    p = as_vector(confidence, "confidence").detach().double().cpu()
    right = correct.detach().reshape(-1).bool().cpu()
    if len(p) == 0:
        raise EmptyData("calibration needs at least one sample")
    if len(right) != len(p):
        raise ShapeMismatch(f"there are {len(p)} confidences but {len(right)} answers")
    if float(p.min()) < 0 or float(p.max()) > 1 + 1e-6:
        raise InvalidInput(
            f"a confidence lies in [0, 1]; these run from {float(p.min()):g} to {float(p.max()):g}"
        )
    return p.clamp(max=1.0), right


def _bins(confidence: Tensor) -> list[Tensor]:
    """Numbers of the samples of every bin, in the order of their confidence."""
    bins = max(1, min(BINS, len(confidence) // SAMPLES_PER_BIN))
    return list(torch.argsort(confidence, stable=True).tensor_split(bins))
