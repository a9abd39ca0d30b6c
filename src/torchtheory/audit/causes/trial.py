"""What the network's error becomes when something is undone: one half chooses, the other judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from torchtheory.audit.causes.cause import Cause
from torchtheory.audit.causes.undoing import Undoing
from torchtheory.core.errors import NonFinite
from torchtheory.core.intervals import mean_interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Share of the gap that may be left by what explains it.
LEFT = 0.5

#: Versions of one cause that are named where they cannot be told apart.
NAMED = 3

PREPARE = "Prepare training and test inputs by the same code, and audit again."


def costs(problem: Problem, samples: Samples) -> Tensor:
    """What counts against the network `[n]`: errors of classes, squared residuals of numbers."""
    if problem.is_classification:
        return problem.errors(samples).double().cpu()
    difference = (problem.outputs(samples) - samples.y).double()
    return difference.reshape(len(samples), -1).square().mean(1).cpu()


def in_words(problem: Problem, cost: float) -> str:
    """An error rate, or a mean squared error."""
    if problem.is_classification:
        return f"errs on {100 * cost:.3g}%"
    return f"has a mean squared error of {cost:.3g}"


def instead(problem: Problem, after: float, before: float) -> str:
    """How the network does with something undone, beside how it does without."""
    unit = f"{100 * before:.3g}%" if problem.is_classification else f"{before:.3g}"
    return f"{in_words(problem, after)} instead of {unit}"


@dataclass(frozen=True, slots=True)
class Gap:
    """The mean cost on training data, and the costs of test samples.

    Attributes:
        problem: with its data.
        train: mean cost on the training data.
        level: probability of a false alarm.
    """

    problem: Problem
    train: float
    level: float

    def judged(
        self, kind: str, words: str, how: str, action: str, before: Tensor, after: Tensor
    ) -> Cause | None:
        """A cause, if the costs `[n]` of the same samples fall beyond doubt when it is undone.

        Explained is what leaves at most half of the gap, at the same level.
        """
        saved = mean_interval(before - after, 1 - self.level)
        if not saved.low > 0:
            return None
        half = (1 - LEFT) * before + LEFT * self.train
        explains = mean_interval(after - half, 1 - self.level).high < 0
        there = instead(self.problem, float(after.mean()), float(before.mean()))
        left = mean_interval(after, 1 - self.level)
        evidence = f"{how} the network {there} ({len(after):,} test samples)"
        return Cause(kind, words, evidence, action, saved, explains, left)


def undone(gap: Gap, every: Sequence[Undoing], samples: Samples, order: Tensor) -> list[Cause]:
    """The best of every family on one half of the samples, judged on the other; the best first."""
    half = len(order) // 2
    choosing, judging = samples.at(order[:half]), samples.at(order[half:])
    here = costs(gap.problem, choosing), costs(gap.problem, judging)
    found: list[tuple[float, Cause]] = []
    by_family = groupby(sorted(every, key=lambda u: u.family), key=lambda u: u.family)
    for family, members in by_family:
        tried = [(u, c) for u in members if (c := _costs_after(gap, u, choosing)) is not None]
        if not tried:
            continue
        best = min(tried, key=lambda pair: float(pair[1].mean()))[1]
        if not float(best.mean()) < float(here[0].mean()):
            continue
        # the simplest, which comes first, of those that are as good
        alike = [u for u, c in tried if float((c - best).mean()) <= _error(c - best)]
        after = _costs_after(gap, alike[0], judging)
        if after is None:
            continue
        words = alike[0].words
        if family != "scale":  # whose versions are of one kind
            words = " or ".join(u.words for u in alike[:NAMED])
        judged = gap.judged(family, f"the test inputs {words}", "undone,", PREPARE, here[1], after)
        if judged is not None:
            found.append((float(after.mean()), judged))
    return [cause for _, cause in sorted(found, key=lambda pair: pair[0])]


def _error(values: Tensor) -> float:
    """Standard error of a mean."""
    return float(values.std()) / math.sqrt(len(values))


def _costs_after(gap: Gap, undoing: Undoing, samples: Samples) -> Tensor | None:
    """None where outputs are not numbers."""
    try:
        found = costs(gap.problem, undoing.of(samples))
    except NonFinite:
        return None
    return found if bool(torch.isfinite(found).all()) else None
