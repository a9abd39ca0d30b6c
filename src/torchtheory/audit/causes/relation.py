"""Do labels follow from inputs in the test data as they do in the training data?

Where an over-fitted network errs, whatever else learns from as many training samples has it no
easier than what learns from test samples. Where simple rules learned from test samples predict the
others far better than the same rules learned from training samples do, the relation itself is
another one: something was done to inputs or labels, though it is not known what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from torchtheory.audit.causes.cause import Cause
from torchtheory.audit.causes.trial import PREPARE, Gap, costs, in_words
from torchtheory.audit.findings.input_neighbors import InputNeighbors
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import as_generator
from torchtheory.data.neighbors import nearest

#: Parts of the test data that are predicted from the others in turn, and neighbors that vote.
FOLDS, NEIGHBORS = 5, 10

#: Most samples that rules are learned from, and the fewest.
MOST, FEWEST = 1000, 50

#: Other divisions of the samples, which tell what such a difference comes to by chance.
DIVISIONS = 12


def another_relation(gap: Gap, search: InputNeighbors) -> Cause | None:
    """Rules from test samples against the same rules from as many training samples."""
    problem, test = gap.problem, gap.problem.test
    assert test is not None
    source = as_generator(0)
    order = torch.randperm(len(test), generator=source)[:MOST]
    learned = min(len(order) * (FOLDS - 1) // FOLDS, len(problem.train))
    if learned < FEWEST:
        return None
    some = torch.randperm(len(problem.train), generator=source)[:learned]
    x, y = _rows(search, "test", order), _goals(gap, test.y, order)
    a, b = _rows(search, "train", some), _goals(gap, problem.train.y, some)
    tried = {rule: _compared(gap, rule, (x, y), (a, b)) for rule in (_linear, _by_neighbors)}
    rule = min(tried, key=lambda one: float(tried[one][0].mean()))
    own, across = tried[rule]
    more = mean_interval(across - own, 1 - gap.level)
    if more.low > 0:
        more = _with_draws(gap, rule, more, (torch.cat([x, a]), torch.cat([y, b])), len(x), source)
    if not more.low > 0:
        return None
    half = (float(costs(problem, test).mean()) - gap.train) / 2
    return Cause(
        "relation",
        "test samples tell of each other what training samples do not: labels follow from inputs "
        "otherwise in the test data, or its samples come from another source",
        f"a simple rule learned from test samples {in_words(problem, float(own.mean()))} of the "
        f"others, and learned from as many training samples it "
        f"{in_words(problem, float(across.mean()))}",
        PREPARE,
        more,
        more.low > half,
    )


Samples = tuple[Tensor, Tensor]
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


def _compared(gap: Gap, rule: Rule, test: Samples, train: Samples) -> tuple[Tensor, Tensor]:
    """Costs at test samples of a rule learned from the others of them, and from training."""
    x, y = test
    own = torch.empty_like(y)
    for k in range(FOLDS):
        outside = torch.arange(len(x)) % FOLDS == k
        inside = (~outside).nonzero().flatten()[: len(train[0])]
        own[outside] = rule(x[inside], y[inside], x[outside])
    return _costs(gap, own, y), _costs(gap, rule(*train, x), y)


def _with_draws(
    gap: Gap, rule: Rule, more: Interval, pooled: Samples, tested: int, source: torch.Generator
) -> Interval:
    """The interval, wider by what the samples that were drawn to learn from make of it.

    Were training and test samples of one kind, any other division of them would be as good: the
    differences of some divisions have the whole spread. Costs one comparison for each.
    """
    found = []
    for _ in range(DIVISIONS):
        order = torch.randperm(len(pooled[0]), generator=source)
        test, train = ((pooled[0][i], pooled[1][i]) for i in (order[:tested], order[tested:]))
        own, across = _compared(gap, rule, test, train)
        found.append(float((across - own).mean()))
    spread = torch.tensor(found).std() * (1 + 1 / DIVISIONS) ** 0.5
    reach = float(stats.t.ppf(1 - gap.level / 2, DIVISIONS - 1)) * float(spread)
    at = more.estimate
    return replace(
        more, low=min(more.low, at - reach), high=max(more.high, at + reach), again=None,
        test=f"{more.test}, and Student t over {DIVISIONS} divisions of the samples",
    )  # fmt: skip


def _rows(search: InputNeighbors, name: str, index: Tensor) -> Tensor:
    rows = search.rows[name]
    return rows[index.to(rows.device)].double().cpu()


def _goals(gap: Gap, y: Tensor, index: Tensor) -> Tensor:
    """Indicators of the classes, or the numbers themselves, `[n, k]`."""
    some = y.reshape(len(y), -1).cpu()[index]
    if not gap.problem.is_classification:
        return some.double()
    return F.one_hot(some[:, 0].long(), max(2, gap.problem.classes or 2)).double()


def _costs(gap: Gap, found: Tensor, goals: Tensor) -> Tensor:
    if gap.problem.is_classification:
        return (found.argmax(1) != goals.argmax(1)).double()
    return (found - goals).square().mean(1)


def _linear(x: Tensor, goals: Tensor, new: Tensor) -> Tensor:
    """Ridge regression with one variance per column, as if each had been seen once more."""
    rows, wanted = (torch.cat([v, torch.ones_like(v[:, :1])], 1) for v in (x, new))
    gram = rows.T @ rows + torch.eye(rows.shape[1], dtype=rows.dtype)
    made: Tensor = wanted @ torch.linalg.solve(gram, rows.T @ goals)
    return made


def _by_neighbors(x: Tensor, goals: Tensor, new: Tensor) -> Tensor:
    _, index = nearest(new, x, min(NEIGHBORS, len(x)))
    return goals[index].mean(1)
