"""The differential diagnosis: why new data is answered worse than training data.

A cause is named when the error it makes is gone where it is undone, on samples that did not choose
it. Over-fitting is what is left when its rivals are excluded; where some are not, the symptom is
said, with its possible causes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from torchtheory.audit.causes.cause import Cause
from torchtheory.audit.causes.relation import another_relation
from torchtheory.audit.causes.rivals import (
    drift,
    judging_order,
    noise_on_inputs,
    own_kind,
    renamed,
    turned_at_random,
    wrong_test_labels,
)
from torchtheory.audit.causes.trial import Gap, costs, undone
from torchtheory.audit.causes.undoing import Undoing, undoings
from torchtheory.audit.findings.hypotheses import one_label_per_sample
from torchtheory.audit.findings.input_neighbors import input_neighbors, real_inputs
from torchtheory.core.errors import EmptyData
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import as_generator
from torchtheory.data.wide_rows import rows_within
from torchtheory.models.problem import Problem

#: Fewest test samples that anything is tried on, and the most.
FEWEST, TRIED = 40, 1024

#: Probability of a false alarm.
LEVEL = 0.01

#: Why nothing was tried, where more time would help.
NO_TIME = "there was no time"

_kept: WeakKeyDictionary[Problem, Differential] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Differential:
    """What was found.

    Attributes:
        causes: that explain the gap, each alone; several where they cannot be told apart.
        partly: that account for some of it.
        source: share of samples that are nearest to their own kind, if that is not as by chance.
        tried: what was looked for, in words.
        untried: why nothing was tried, or not all, or empty.
        gap: error on new data minus that on training data; None where it is not above 0.
    """

    causes: tuple[Cause, ...] = ()
    partly: tuple[Cause, ...] = ()
    source: float | None = None
    tried: tuple[str, ...] = ()
    untried: str = ""
    gap: Interval | None = None

    @property
    def explained(self) -> bool:
        """Whether something other than over-fitting explains it."""
        return bool(self.causes)

    @property
    def open(self) -> bool:
        """Whether rivals of over-fitting are left."""
        return bool(self.partly or self.source is not None or self.untried)

    @property
    def words(self) -> str:
        """The causes as one sentence, without its end."""
        said = "; or ".join(c.sentence for c in self.causes)
        if len(self.causes) > 1:
            return f"One of these is the cause: {said}"
        return said[:1].upper() + said[1:]

    @property
    def possible(self) -> str:
        """What may be the cause, in words that follow 'it may be that'."""
        rivals = [f"{c.words} ({c.evidence}, which is a part of it)" for c in self.partly]
        if self.source is not None:
            rivals.append(
                "the test inputs come from another source than the training inputs "
                f"({100 * self.source:.3g}% of one of them are nearest to their own kind, and 50% "
                "where both follow one law)"
            )
        if self.untried:
            rivals.append(
                f"the test data is prepared otherwise, which was not tried: {self.untried}"
            )
        return "; or that ".join([*rivals, "the network overfits"])


def differential(problem: Problem) -> Differential:
    """Why the test error is above the training error; kept with the problem.

    Where it is not, nothing is to be explained. Rivals: scale, orientation and order of the inputs,
    names of the classes or units of the targets, wrong test labels, drift, augmentation and noise
    in the test data, another source.
    """
    if problem in _kept:
        return _kept[problem]
    found = _diagnosed(problem)
    if found.untried != NO_TIME:  # who asks later may have more of it
        _kept[problem] = found
    return found


def _diagnosed(problem: Problem) -> Differential:
    test = problem.test
    if test is None or one_label_per_sample(problem) is not None or not problem.deterministic:
        return Differential()
    if len(test) < FEWEST:
        return Differential(untried=f"{len(test)} test samples are too few")
    train = float(costs(problem, problem.train).mean())
    above = mean_interval(costs(problem, test) - train, 1 - LEVEL)
    if not above.low > 0:
        return Differential()
    gap, source = Gap(problem, train, LEVEL), as_generator(0)
    real = real_inputs(problem) is None
    every = _undoings(problem) if real else []
    most = rows_within(TRIED, problem.train.x[0].numel(), least=FEWEST) if real else TRIED
    tried = min(most, len(test), problem.affordable(len(every) / 2 + 4, share=0.3))
    if tried < FEWEST:
        return Differential(untried=NO_TIME, gap=above)
    order = judging_order(problem)
    samples = test.at(order[:tried])
    found = [cause for cause in (renamed(gap, order), drift(gap)) if cause is not None]
    tries = ["the names of the classes" if problem.is_classification else "the units of targets"]
    tries.append("drift")
    if every:
        found += undone(gap, every, samples, torch.randperm(tried, generator=source))
        tries += ["the scale, order and orientation of the inputs"]
    if real and not any(c.explains for c in found):
        search = input_neighbors(problem)
        some = problem.train.some(tried, source)
        maps = [u for u in every if u.family == "orientation"]
        later = (
            wrong_test_labels(gap, search),
            turned_at_random(gap, samples, some, maps),
            noise_on_inputs(gap, some, source),
        )
        tries += ["wrong test labels", "augmentation and noise in the test inputs"]
        found += [cause for cause in later if cause is not None]
    if real and not any(c.explains for c in found):
        other = another_relation(gap, input_neighbors(problem))
        found += [other] if other is not None else []
        tries.append("another relation of labels to inputs")
    causes = _not_clearly_worse([c for c in found if c.explains])
    apart = None
    if real and not causes:
        apart = own_kind(problem, input_neighbors(problem))
        tries.append("another source of the inputs")
    return Differential(
        causes,
        tuple(c for c in found if not c.explains) if not causes else (),
        apart,
        tuple(tries),
        "" if real else "the inputs have no distances",
        above,
    )


def _not_clearly_worse(causes: list[Cause]) -> tuple[Cause, ...]:
    """Those that leave no more than the best of them does, as far as can be told; the best first.

    What also takes errors off, and leaves many, is no rival of what leaves none.
    """
    known = [c.left for c in causes if c.left is not None]
    best = min((left.high for left in known), default=math.inf)
    kept = [c for c in causes if c.left is None or c.left.low <= best]
    return tuple(sorted(kept, key=lambda c: math.inf if c.left is None else c.left.estimate))


def _undoings(problem: Problem) -> list[Undoing]:
    try:
        return undoings(problem)
    except EmptyData:
        return []
