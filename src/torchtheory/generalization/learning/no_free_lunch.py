r"""No free lunch: averaged over all targets, every learner is a coin outside its sample.

On $k$ points with uniform inputs, all $2^k$ targets and all samples of size
$m$, the share of wrong decisions on points that the sample misses is exactly
$\frac12$ whatever the algorithm, so the average risk is at least
$\frac12(1-1/k)^m$, with equality for those that reproduce what they have seen. Some target
is at least that bad, although its Bayes risk is 0. On infinitely many points one target can be
bad for every $m$ at once, at any rate that tends to zero. Source: Mathematical Aspects of
Deep Learning, Theorem 1.14.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.generalization.learning.finite_distributions import multisets
from torchtheory.generalization.learning.learners import Learner
from torchtheory.generalization.vc.hypothesis_sets import all_labelings

#: Numbers in the largest array that is held at once.
TILE = 1 << 22


@dataclass(frozen=True, slots=True)
class TargetCensus:
    r"""What a learner does on every target and every sample; all averages are exact.

    Attributes:
        targets: `[t, k]` of $\pm1$.
        risks: `[t]`, the expected risk $\mathbb E\,R(\mathcal A(S))$ for every target.
        mean_risk: their average.
        mean_unseen_error: the average share of errors among the points that a sample misses
            (over the samples that miss one); None if every sample has all points.
    """

    targets: Tensor
    risks: Tensor
    mean_risk: Fraction
    mean_unseen_error: Fraction | None


def no_free_lunch_bound(points: int, samples: int) -> Fraction:
    r"""$\frac12(1-1/k)^m$, at most the average risk of any learner over all targets.

    It is half the mass that a sample is expected to miss; for $k=2m$ at least 1/4.

    >>> no_free_lunch_bound(4, 2)
    Fraction(9, 32)
    """
    if points < 1 or samples < 0:
        raise InvalidInput(f"there must be points and no fewer than 0 samples, not {samples}")
    return Fraction(points - 1, points) ** samples / 2


def target_census(
    learner: Learner, points: int, samples: int, targets: Tensor | None = None
) -> TargetCensus:
    r"""Run a learner on every sample of `samples` uniform draws, labeled by every target.

    Samples are listed up to order, and shown to the learner in ascending order. A learner is
    called once for each labeled sample, not once for each target: with $u$ different
    points there are $2^u$ of them.

    Args:
        learner: `(seen[b, m], labels[b, m]) -> decisions[b, k]`, a function of the sample.
        points: $k$.
        samples: $m$.
        targets: `[t, k]`; all $2^k$ unless given.

    >>> from torchtheory.generalization.learning.learners import majority, memorize
    >>> census = target_census(memorize(4), 4, 2)
    >>> census.mean_unseen_error, census.mean_risk
    (Fraction(1, 2), Fraction(9, 32))
    >>> census = target_census(majority(4), 4, 2)
    >>> census.mean_unseen_error, census.mean_risk
    (Fraction(1, 2), Fraction(3, 8))
    """
    if targets is None:
        targets = all_labelings(points)
    if targets.ndim != 2 or targets.shape[1] != points:
        raise ShapeMismatch(f"targets are [t, {points}], not {list(targets.shape)}")
    if len(targets) == 0 or not bool((targets.abs() == 1).all()):
        raise LabelOutOfRange(
            f"targets must be -1 and 1, and there must be one (given: {described(targets.tolist())}"
            ")"
        )
    targets = targets.double()
    every, orderings = multisets(points, samples)
    first = torch.ones(len(every), 1, dtype=torch.bool)
    new = torch.cat([first, every.diff(dim=1) > 0], dim=1)
    different = new.sum(1)
    wrong = torch.zeros(len(targets), dtype=torch.int64)
    unseen_error, unseen_weight = Fraction(0), 0
    for u in range(1, min(points, samples) + 1):
        group = (different == u).nonzero().flatten()
        for part in torch.split(group, max(1, TILE // (points * (len(targets) + (1 << u))))):
            missed, off = _errors(learner, targets, every[part], new[part], u)
            weight = orderings[part]
            wrong += (weight[:, None] * missed).sum(0)
            if u < points:
                unseen_error += Fraction(int(weight @ off.sum(1)), points - u)
                unseen_weight += int(weight.sum())
    total = points ** (samples + 1)
    return TargetCensus(
        targets=targets,
        risks=wrong.double() / total,
        mean_risk=Fraction(int(wrong.sum()), total * len(targets)),
        mean_unseen_error=unseen_error / (unseen_weight * len(targets)) if unseen_weight else None,
    )


def _errors(
    learner: Learner, targets: Tensor, seen: Tensor, new: Tensor, u: int
) -> tuple[Tensor, Tensor]:
    """Errors on all points and on the unseen ones, `[samples, targets]`, as whole numbers."""
    count, points = len(seen), targets.shape[1]
    place = new.long().cumsum(1) - 1
    distinct = seen[new].reshape(count, u)
    labels = all_labelings(u)[:, place].transpose(0, 1).reshape(count << u, -1)
    decisions = learner(seen.repeat_interleave(1 << u, dim=0), labels)
    if decisions.shape != (count << u, points) or not bool((decisions.abs() == 1).all()):
        raise InvalidInput(
            f"a learner must decide -1 or 1 on each of the {points} points, "
            f"and this one gave {list(decisions.shape)}"
        )
    decisions = (decisions > 0).reshape(count, 1 << u, points)
    unseen = torch.ones(count, 1, points, dtype=torch.bool)
    unseen.scatter_(2, distinct[:, None], False)
    # which labeled sample a target makes of the distinct points
    positive = targets > 0
    which = (positive[:, distinct].long() << torch.arange(u)).sum(-1).T
    wrong = decisions[torch.arange(count)[:, None], which] != positive
    return wrong.sum(-1), (wrong & unseen).sum(-1)


def slow_distribution(rates: Tensor) -> Tensor:
    r"""Masses $p_1,p_2,\dots$ on which every learner converges slower than given rates.

    The tails $T_n=\sum_{i>n}p_i$ are the least with $T_0=1$, $T_1=\frac12$,
    $T_n\ge8a_n$ and $p_{n+1}\le T_n/(32n)$, as in the proof of Devroye, Györfi and
    Lugosi (1996), Theorem 7.2. What is left beyond the last rate is spread evenly over so many
    points that the last inequality stays true.

    Args:
        rates: $a_1\ge a_2\ge\dots\ge a_M>0$ with $a_1\le1/16$, `[M]`.

    Returns:
        masses that sum to 1, about `[33 M]`. Averaged over all labelings of the points, the
        risk of every learner after $m\le M$ draws is more than $3a_m$.

    >>> mass = slow_distribution(1 / (16 * torch.arange(1.0, 9.0, dtype=torch.float64).sqrt()))
    >>> round(float(mass.sum()), 12), len(mass)
    (1.0, 264)
    """
    if rates.ndim != 1 or len(rates) == 0 or not bool((rates > 0).all()):
        raise InvalidInput(
            f"rates must be a row of positive numbers, not {described(rates.tolist())}"
        )
    if bool((rates.diff() > 0).any()) or float(rates[0]) > 1 / 16:
        raise InvalidInput(
            "rates must not increase, and the first must be at most 1/16, not "
            f"{described(rates.tolist())}"
        )
    tails = [1.0, 0.5]
    for n, rate in enumerate(rates.tolist()[1:], start=1):
        tails.append(max(8 * rate, tails[-1] * (1 - 1 / (32 * n))))
    tail = torch.tensor(tails, dtype=rates.dtype, device=rates.device)
    spread = 32 * len(rates)
    rest = tail[-1:].expand(spread) / spread
    return torch.cat([tail[:-1] - tail[1:], rest])


def missed_mass(mass: Tensor, samples: Tensor) -> Tensor:
    r"""The mass that $m$ draws are expected to miss, $\sum_ip_i(1-p_i)^m$.

    Half of it is the average risk, over all labelings, of every learner that reproduces the
    labels it has seen, and a lower bound for every other.

    >>> missed_mass(torch.tensor([0.5, 0.5]), torch.tensor([0, 1, 2]))
    tensor([1.0000, 0.5000, 0.2500])
    """
    if mass.ndim != 1 or not bool((mass >= 0).all()):
        raise InvalidInput(f"masses are a row of numbers >= 0, not {described(mass.tolist())}")
    return ((1 - mass) ** samples[:, None].to(mass)) @ mass
