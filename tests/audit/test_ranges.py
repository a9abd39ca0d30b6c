"""Ranges for numbers that a part of the samples made."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchtheory.audit.engine.ranges import (
    group_losses,
    grouped,
    jackknife_range,
    largest_eigenvalue_range,
    loss_range,
    mean_range,
    mean_vector_range,
    quotient,
    spread_over_both,
    student,
)
from torchtheory.core.errors import EmptyData
from torchtheory.core.intervals import Interval
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

POPULATION, SEEN, TRIES = 300, 60, 200


def _random(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _chosen(seed: int) -> Tensor:
    return torch.randperm(POPULATION, generator=torch.Generator().manual_seed(seed))


def _covered(hits: list[bool]) -> None:
    """At least the promised 95 %, up to what chance does to so many tries (1 in 1000)."""
    assert sum(hits) >= 0.95 * len(hits) - 3.1 * math.sqrt(0.95 * 0.05 * len(hits))


@pytest.mark.parametrize("skewed", [False, True])
def test_means_of_a_finite_population(skewed: bool) -> None:
    values = _random(0, POPULATION)
    values = values.exp() if skewed else values
    hits, widths = [], []
    for k in range(TRIES):
        groups = values[_chosen(k)[:SEEN]].reshape(20, 3).mean(1)
        found = mean_range(groups, SEEN, POPULATION, 0.95)
        hits.append(found.low <= float(values.mean()) <= found.high)
        widths.append(found.high - found.low)
    _covered(hits)
    # and no wider than twice Student's range of the same confidence
    plain = 2 * 2.09 * float(values.std()) * math.sqrt((1 - SEEN / POPULATION) / SEEN)
    assert sorted(widths)[TRIES // 2] < 2 * plain


def test_nothing_is_unknown_of_all_samples() -> None:
    found = mean_range(torch.tensor([1.0, 5.0]), 10, 10, 0.95)
    assert (found.low, found.estimate, found.high) == (3.0, 3.0, 3.0)
    with pytest.raises(EmptyData):
        mean_range(torch.zeros(0), 1, 2, 0.95)
    alone = mean_range(torch.ones(1), 1, 2, 0.95)
    assert (alone.low, alone.high) == (-math.inf, math.inf)


def test_jackknife_of_a_ratio() -> None:
    above, below = _random(1, POPULATION).exp(), 2 + _random(2, POPULATION).abs()
    truth = float(above.sum() / below.sum())
    hits = []
    for k in range(TRIES):
        a, b = (v[_chosen(k)[:SEEN]] for v in (above, below))
        without = (a.sum() - a) / (b.sum() - b)
        found = jackknife_range(float(a.sum() / b.sum()), without, SEEN, POPULATION, 0.95)
        hits.append(found.low <= truth <= found.high)
    _covered(hits)


def test_samples_and_random_vectors_both_count() -> None:
    """Rows and columns vary on their own: leaving either out misses the mean."""
    rows, columns = 2 * _random(3, POPULATION), 2 * _random(4, POPULATION)
    both, one = [], []
    for k in range(TRIES):
        part, drawn = rows[_chosen(k)[:SEEN]], columns[_chosen(k + TRIES)[:20]]
        table = part.reshape(20, 3).mean(1)[:, None] + drawn
        truth = float(rows.mean() + columns.mean())
        found = spread_over_both(table, SEEN, POPULATION, 0.95)
        both.append(found.low <= truth <= found.high)
        alone = mean_range(table.mean(1), SEEN, POPULATION, 0.95)
        one.append(alone.low <= truth <= alone.high)
    _covered(both)
    assert sum(one) < 0.9 * TRIES


def test_largest_eigenvalue_of_a_mean_of_matrices() -> None:
    """Rank-one matrices in more dimensions than is good for a few samples of them."""
    x = _random(5, POPULATION, 25) * torch.linspace(1, 1.4, 25).double()
    truth = float(torch.linalg.eigvalsh(x.T @ x / POPULATION)[-1])
    hits, naive = [], []
    for k in range(TRIES):
        order = _chosen(k)
        inside, outside = x[order[:SEEN]], x[order[SEEN : 2 * SEEN]]
        values, vectors = torch.linalg.eigh(inside.T @ inside / SEEN)
        forms = [(part @ vectors[:, -1]).square() for part in (inside, outside)]
        found = largest_eigenvalue_range(
            float(values[-1]),
            forms[0].reshape(20, 3).mean(1),
            forms[1].reshape(20, 3).mean(1),
            used=SEEN,
            unseen=SEEN,
            population=POPULATION,
            residual=0.0,
            confidence=0.95,
        )
        hits.append(found.low <= truth <= found.high)
        naive.append(abs(float(values[-1]) - truth) < 0.1 * truth)
    _covered(hits)
    assert sum(naive) < 0.2 * TRIES  # what the samples themselves say is far too large


@pytest.mark.parametrize("size", [0.0, 0.3, 2.0])
def test_length_of_a_mean_vector(size: float) -> None:
    """Nothing but noise, a length below the noise, and one above it."""
    x = _random(6, POPULATION, 12)
    x = x - x.mean(0)
    x[:, 0] += size
    truth = size**2
    ratio = truth / float(x.var(0).sum())
    hits, over, naive = [], [], []
    for k in range(TRIES):
        groups = x[_chosen(k)[:SEEN]].reshape(20, 3, 12).mean(1)
        square, share = mean_vector_range(groups @ groups.T, 3, POPULATION, 0.95)
        hits.append(square.low <= truth + 1e-12 and truth <= square.high)
        over.append(share.low <= ratio + 1e-12 and ratio <= share.high)
        naive.append(float(groups.mean(0).square().sum()))
    _covered(hits)
    _covered(over)
    if size < 1:  # the plain squared length is too large by the noise
        assert min(naive) > truth if size == 0 else sum(naive) / TRIES > 1.5 * truth


def test_quotients_at_zero() -> None:
    def number(value: float, low: float, high: float) -> Interval:
        return Interval(value, low, high, 0.95, 10, "")

    found = quotient(number(0.5, 0.0, 1.0), number(0.5, -1.0, 1.0))
    assert (found.low, found.high) == (0.0, math.inf)
    nothing = quotient(number(0.0, 0.0, 0.0), number(0.0, 0.0, 0.0))
    assert (nothing.low, nothing.estimate, nothing.high) == (0.0, 0.0, 0.0)


def test_groups_are_a_partition_and_losses_are_theirs() -> None:
    x = _random(7, 50, 3)
    problem = Problem(nn.Linear(3, 1).double(), (x, x[:, :1]))
    some = problem.train.first(20)
    parts, shares = grouped(some, torch.Generator().manual_seed(0), 7)
    assert sorted({len(p) for p in parts}) == [2, 3]
    assert float(shares.sum()) == pytest.approx(1.0)
    rows = torch.cat([p.x for p in parts])
    assert torch.equal(rows.sort(0).values, some.x.sort(0).values)
    assert all(p.population == 50 for p in parts)
    losses, shares = group_losses([problem, problem], some, torch.Generator().manual_seed(0))
    assert torch.equal(losses[0], losses[1])
    assert float(shares @ losses[0]) == pytest.approx(problem.risk(some))
    found = loss_range(problem, problem.train, torch.Generator().manual_seed(0), 0.95)
    assert found.low == found.high == pytest.approx(problem.risk(problem.train))
    assert isinstance(some, Samples)


def test_the_range_of_a_mean_by_hand() -> None:
    """Never narrower than the normal range with the finite population's factor, and of its size."""
    x = torch.linspace(-1, 1, 400).double()
    found = mean_range(x, 400, 1600, 0.95)
    error = float(x.std()) * math.sqrt(0.75 / 400)
    half = (found.high - found.low) / 2
    assert 1.96 * error < half < 3.5 * error


def test_noise_alone_by_hand() -> None:
    r"""Orthogonal vectors of one length: the jackknife sees no spread, and noise has variance
    $2\operatorname{tr}\Sigma^2/n^2$.
    """
    count, population = 20, 80
    square, ratio = mean_vector_range(torch.eye(count).double(), 1, population, 0.95)
    known = count / population
    # every centered product of two of them is -1/G
    noise = math.sqrt(2) / count**2 * (1 - known)
    assert square.estimate == pytest.approx(known / count)
    assert square.high == pytest.approx(known / count + student(0.95, count - 1) * noise)
    assert square.low == pytest.approx(
        max(0.0, known / count - student(0.95, count - 1) * noise), abs=1e-12
    )
    assert ratio.estimate == pytest.approx(known / count)  # of variance 1


def test_the_error_of_the_squared_length_is_that_of_noise() -> None:
    """Over many draws without a mean, the estimate varies as the range says."""
    found = []
    count = 40
    for seed in range(400):
        x = _random(seed, count, 5)
        found.append(mean_vector_range(x @ x.T, 1, math.inf, 0.95)[0].estimate)
    spread = float(torch.tensor(found).std())
    assert spread == pytest.approx(math.sqrt(2 * 5) / count, rel=0.15)  # 3 standard errors
