r"""Test samples that belong to training samples: copies that were changed, and mates of a source.

A copy that was mirrored, turned, moved or re-encoded is found by undoing that and looking for its
neighbors; that samples of one law come so near each other is judged by training samples, changed in
the same way, among the others. Mates are far nearer than the samples around: with the distances
$r_1\le\dots\le r_{10}$ to the nearest samples and a density that varies little,
$P(r_1 < t\,r_{10}) = 1-(1-t^p)^9$ in $p$ dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from torchtheory.audit.causes.layout import layouts
from torchtheory.audit.causes.trial import costs
from torchtheory.audit.causes.undoing import orientations
from torchtheory.audit.findings.input_neighbors import COUNT, input_neighbors
from torchtheory.core.budget import time_left
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.data.neighbors import comparable, nearest
from torchtheory.models.problem import Problem

#: Samples that are changed and compared, and pixels that they are moved by.
COMPARED, MOVED = 500, 2

#: A copy is closer than one of these parts of the distance that samples usually keep, exact ones
#: first; and so many times more test than training samples are that close.
CLOSER, TIMES = (0.05, 0.5), 3

#: Tests of distances, which come in pairs, are asked for so many times more.
STRICTER = 10

#: Mates are nearer than this part of the distance to the tenth neighbor.
NEARER = 0.3

#: The first of the neighbors that the dimension is taken from.
FIFTH = 5

#: Fewest samples of either kind whose errors are compared, and distances that say anything.
FEWEST, ENOUGH = 15, 100


@dataclass(frozen=True, slots=True)
class ChangedCopies:
    """Test samples `[k]` that are training samples `[k]` but for a change, in words."""

    test: Tensor
    train: Tensor
    compared: int
    p_value: float
    words: str


def _changes(problem: Problem) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """What may have been done to copies, in words, and what undoes it."""
    made: list[tuple[str, Callable[[Tensor], Tensor]]] = [("re-encoded", _reencoded)]
    for layout in layouts(problem)[:1]:
        made += [(u.words.removeprefix("are "), u.undo) for u in orientations(layout)]
        if len(layout.places) == 2:
            for down in range(-MOVED, MOVED + 1):
                for right in range(-MOVED, MOVED + 1):
                    if down or right:
                        made.append(
                            (
                                "moved by a few pixels",
                                lambda x, by=(-down, -right), at=layout: (  # type: ignore[misc]
                                    x.reshape(len(x), *at.shape)
                                    .roll(by, at.places)
                                    .reshape(x.shape)
                                ),
                            )
                        )
    return made


def _reencoded(x: Tensor) -> Tensor:
    """Samples with mean 0 and size 1 each: brightness and contrast do not count."""
    flat = x.reshape(len(x), -1)
    flat = flat - flat.mean(1, keepdim=True)
    made: Tensor = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return made.reshape(x.shape)


def changed_places(problem: Problem, level: float) -> ChangedCopies | None:
    """The change under which most test samples turn out to be training samples."""
    test, train = problem.test, problem.train
    if test is None or len(train) < ENOUGH or len(test) < FEWEST or train.x[0].numel() < COUNT:
        return None
    every = _changes(problem)
    source = torch.Generator().manual_seed(0)
    some = torch.randperm(len(test), generator=source)[:COMPARED]
    inside = torch.randperm(len(train), generator=source)[:COMPARED]
    found: list[ChangedCopies] = []
    plain = comparable(train.x)
    base = plain(train.x)
    for words, undo in every:
        if time_left() <= 0:
            break
        rows, base_rows, to_rows = undo(test.x[some.to(test.x.device)]), base, plain
        own_rows = undo(train.x[inside.to(train.x.device)])
        if words == "re-encoded":
            whole = _reencoded(train.x)
            to_rows = comparable(whole)
            base_rows = to_rows(whole)
        ours, index = nearest(to_rows(rows), base_rows, 1)
        own, _ = nearest(to_rows(own_rows), base_rows, 1, inside.to(base_rows.device))
        for closer in CLOSER:
            within = closer * float(own.median())
            here, there = int((ours < within).sum()), int((own < within).sum())
            if here == 0 or here * len(own) < TIMES * there * len(ours):
                continue
            p_value = stats.hypergeom.sf(here - 1, len(ours) + len(own), here + there, len(ours))
            p_value = min(1.0, STRICTER * len(CLOSER) * len(every) * float(p_value))
            if p_value < level:
                close = (ours[:, 0] < within).cpu()
                found.append(
                    ChangedCopies(some[close], index[:, 0].cpu()[close], len(some), p_value, words)
                )
                break
    return max(found, key=lambda f: len(f.test), default=None)


@dataclass(frozen=True, slots=True)
class Mates:
    """Test samples with a training sample far nearer than the others around.

    Attributes:
        beyond_chance: their share, less what one cloud of samples has.
        with_mates, without: mean cost of both kinds, None where there are too few.
        difference: of the second and the first.
    """

    beyond_chance: Interval
    with_mates: float | None = None
    without: float | None = None
    difference: Interval | None = None


def mates(problem: Problem, confidence: float = 0.99) -> Mates | None:
    """Samples of one source on both sides, by their neighbors, and what the network does there."""
    search = input_neighbors(problem)
    if problem.test is None or search.count < COUNT or len(problem.test) < ENOUGH:
        return None
    found = search.of("test", len(problem.test))
    r = found.distances.double().cpu()
    fine = r[:, 0] > 0
    r, samples = r[fine], found.samples.cpu()[fine]
    if len(r) < ENOUGH:
        return None
    # the dimension p, by the fifth to the tenth neighbor, which few sources reach: of a density
    # that varies little, the mean of log(r_10 / r_j) is (1/j + ... + 1/9) / p (Levina, Bickel)
    seen_logs = float((r[:, -1:] / r[:, FIFTH - 1 : -1]).log().mean())
    expected = [sum(1 / i for i in range(j, COUNT)) for j in range(FIFTH, COUNT)]
    dimension = sum(expected) / len(expected) / max(seen_logs, 1e-9)
    near = r[:, 0] < NEARER * r[:, -1]
    chance = 1 - (1 - NEARER**dimension) ** (COUNT - 1)
    seen = clopper_pearson(int(near.sum()), len(near), confidence)
    beyond = Interval(
        max(0.0, seen.estimate - chance), max(0.0, seen.low - 2 * chance),
        max(0.0, seen.high - chance / 2), confidence, len(near), f"{seen.test}, less chance",
    )  # fmt: skip
    if min(int(near.sum()), int((~near).sum())) < FEWEST or not problem.deterministic:
        return Mates(beyond)
    cost = costs(problem, problem.test)[samples]
    with_, without = cost[near], cost[~near]
    spread = [mean_interval(c, confidence) for c in (with_, without)]
    half = math.hypot(*(i.high - i.estimate for i in spread))
    gap = float(without.mean() - with_.mean())
    difference = Interval(gap, gap - half, gap + half, confidence, len(near), "Student t")
    return Mates(beyond, float(with_.mean()), float(without.mean()), difference)
