"""Another relation of labels to inputs is told from few samples to learn from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.audit.causes.differential import LEVEL
from torchtheory.audit.causes.relation import another_relation
from torchtheory.audit.causes.trial import Gap
from torchtheory.audit.findings.input_neighbors import input_neighbors
from torchtheory.models.problem import Problem


def drawn(seed: int, count: int, *, turned: bool = False) -> tuple[Tensor, Tensor]:
    """Two classes in 30 dimensions, one rarer; turned ones follow from another feature."""
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(count, generator=g) < 0.3).long()
    x = torch.randn(count, 30, generator=g)
    x[:, 20 if turned else 0] += 3.0 * y
    return x, y


def gap(seed: int, learned: int, *, turned: bool) -> Gap:
    train, test = drawn(seed, learned), drawn(1000 + seed, 400, turned=turned)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        problem = Problem(nn.Linear(30, 2), train, test)
    return Gap(problem, 0.0, LEVEL)


def test_few_training_samples_are_no_other_relation() -> None:
    """What 60 samples teach differs from draw to draw by more than the test samples tell."""
    found = [gap(seed, 60, turned=False) for seed in range(25)]
    assert [another_relation(g, input_neighbors(g.problem)) for g in found] == [None] * 25


def test_labels_that_follow_from_another_feature_are_one() -> None:
    for seed in range(5):
        found = gap(seed, 200, turned=True)
        cause = another_relation(found, input_neighbors(found.problem))
        assert cause is not None
        assert "divisions of the samples" in cause.saved.test
