r"""Learning algorithms on a finite input space, run on many samples at once.

An algorithm takes samples `seen[b, m]`, the numbers of the points drawn, with their labels
`[b, m]` of $\pm1$, and returns its decisions `[b, k]` on all $k$ points. It is a
plain function; those here are made by the functions of this module.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.generalization.learning.finite_distributions import multisets
from torchtheory.generalization.vc.hypothesis_sets import all_labelings

Learner = Callable[[Tensor, Tensor], Tensor]


def nearest_neighbor(x: Tensor) -> Learner:
    """The label of the closest point of the sample; of equally close ones, of the first.

    Args:
        x: the input space `[k, d]`.

    >>> rule = nearest_neighbor(torch.tensor([[0.0], [1.0], [5.0]]))
    >>> rule(torch.tensor([[0, 2]]), torch.tensor([[1.0, -1.0]]))
    tensor([[ 1.,  1., -1.]])
    """
    if x.ndim != 2:
        raise ShapeMismatch(f"the input space is [points, features], not {list(x.shape)}")
    # "first" must not hang on rounding: differences, not a product of matrices
    distance = (x[:, None] - x[None]).square().sum(-1)

    def rule(seen: Tensor, labels: Tensor) -> Tensor:
        return labels.gather(1, distance[seen].argmin(1))

    return rule


def majority(points: int) -> Learner:
    """The constant that is right more often on the sample; +1 in case of a tie.

    >>> majority(3)(torch.tensor([[0, 1, 1]]), torch.tensor([[1.0, -1.0, -1.0]]))
    tensor([[-1., -1., -1.]])
    """
    return lambda seen, labels: _sign(labels.sum(1, keepdim=True)).expand(-1, points)


def memorize(points: int, otherwise: float = 1.0) -> Learner:
    """The label seen at a point, the more frequent one if they differ; elsewhere `otherwise`.

    >>> memorize(3)(torch.tensor([[1, 1]]), torch.tensor([[-1.0, -1.0]]))
    tensor([[ 1., -1.,  1.]])
    """
    if otherwise not in (-1, 1):
        raise LabelOutOfRange(f"the label of unseen points must be -1 or 1, not {otherwise}")

    def rule(seen: Tensor, labels: Tensor) -> Tensor:
        votes = _votes(points, seen, labels)
        return torch.where(votes == 0, otherwise, votes.sign())

    return rule


def minimize_errors(hypotheses: Tensor) -> Learner:
    r"""Empirical risk minimization over a finite class `[h, k]`; the first of equals wins.

    $\mathcal A(s)\in\arg\min_{f\in\mathcal F}\sum_i1[f(x_i)\ne y_i]$, in
    $O(bhk)$.

    >>> rule = minimize_errors(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
    >>> rule(torch.tensor([[0, 1], [0, 0]]), torch.tensor([[1.0, -1.0], [-1.0, -1.0]]))
    tensor([[ 1.,  1.],
            [-1.,  1.]])
    """
    if hypotheses.ndim != 2 or not bool((hypotheses.abs() == 1).all()):
        raise LabelOutOfRange(
            f"a hypothesis set is [functions, points] of -1 and 1, not {described(hypotheses)}"
        )

    def rule(seen: Tensor, labels: Tensor) -> Tensor:
        votes = _votes(hypotheses.shape[1], seen, labels)
        return hypotheses[(votes @ hypotheses.to(votes).T).argmax(1)]

    return rule


def train_network(
    x: Tensor, hidden: int, *, steps: int, rate: float, generator: RandomSource = None
) -> Learner:
    r"""Gradient descent on the logistic loss of a $\tanh$ network with one hidden layer.

    Every sample starts from the same weights, drawn once, so that the rule is a function of the
    sample; all samples of a call are trained side by side.

    Args:
        x: the input space `[k, d]`.
        steps, rate: full-batch steps and their size.

    >>> rule = train_network(torch.tensor([[-1.0], [1.0]]), 3, steps=50, rate=0.5)
    >>> rule(torch.tensor([[0, 1]]), torch.tensor([[1.0, -1.0]]))
    tensor([[ 1., -1.]])
    """
    if hidden < 1 or steps < 0 or not rate > 0:
        raise InvalidInput(
            f"a network needs hidden units, steps >= 0 and a positive rate (hidden = {hidden!r}, "
            f"steps = {steps!r}, rate = {rate!r})"
        )
    generator = as_generator(generator)
    shapes = [(x.shape[1], hidden), (1, hidden), (hidden, 1), (1, 1)]
    start = [torch.randn(s, generator=generator, dtype=x.dtype).to(x.device) for s in shapes]

    def outputs(parameters: list[Tensor], points: Tensor) -> Tensor:
        first, shift, second, offset = parameters
        return (torch.tanh(points @ first + shift) @ second + offset).squeeze(-1)

    def rule(seen: Tensor, labels: Tensor) -> Tensor:
        parameters = [p.expand(len(seen), *p.shape).clone() for p in start]
        points, signs = x[seen], labels.to(x)
        for _ in range(steps):
            leaves = [p.requires_grad_() for p in parameters]
            with torch.enable_grad():
                # a sum over samples: each has its own parameters, hence its own gradient
                total = F.softplus(-signs * outputs(leaves, points)).mean(1).sum()
            slopes = torch.autograd.grad(total, leaves)
            parameters = [(p - rate * s).detach() for p, s in zip(leaves, slopes, strict=True)]
        every = x.expand(len(seen), *x.shape)
        return _sign(outputs(parameters, every)).detach().to(labels)

    return rule


def outside_hypothesis_set(learner: Learner, hypotheses: Tensor, samples: int) -> int:
    """On how many labeled samples an algorithm leaves a hypothesis set `[h, k]`.

    Every sample of that size, up to order and with any labels, also contradictory ones, is tried.

    >>> constants = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    >>> outside_hypothesis_set(majority(3), constants, 2)
    0
    >>> outside_hypothesis_set(memorize(3), constants, 2) > 0
    True
    """
    points = hypotheses.shape[1]
    seen, _ = multisets(points, samples)
    labels = all_labelings(samples).to(hypotheses)
    decisions = learner(seen.repeat_interleave(len(labels), dim=0), labels.repeat(len(seen), 1)).to(
        hypotheses
    )
    agreement = (decisions @ hypotheses.T).amax(1)
    return int((agreement < points).sum())


def _votes(points: int, seen: Tensor, labels: Tensor) -> Tensor:
    return labels.new_zeros(len(seen), points).scatter_add_(1, seen, labels)


def _sign(values: Tensor) -> Tensor:
    return torch.where(values < 0, -1.0, 1.0).to(values)
