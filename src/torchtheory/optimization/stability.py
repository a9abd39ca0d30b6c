r"""Algorithmic stability: how much one training example matters, and what that says about the gap.

An algorithm :math:`A` is :math:`\epsilon`-uniformly stable if
:math:`\sup_{S,S',z}\mathbb E_A[\ell(A(S);z)-\ell(A(S');z)]\le\epsilon` over samples :math:`S,S'`
that differ in one example. Then :math:`|\mathbb E_{S,A}[\hat J(A(S))-J(A(S))]|\le\epsilon`. Source:
slides "Mathematical Foundations of Deep Learning", Hardt's theorem (Hardt, Recht and Singer 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator

Trained = Callable[[Tensor, Tensor], Tensor]
"""A trained model as its losses: ``losses(x, y)`` gives one number an example."""

Training = Callable[[Tensor, Tensor, int], Trained]
"""``train(x, y, seed)``: everything random in it must follow from the seed."""


def stability_bound(
    lipschitz: float, smoothness: float, steps: Sequence[float] | Tensor, samples: int
) -> Tensor:
    r"""Hardt, Recht and Singer's :math:`\frac{2L^2}n\sum_{t\le T}\eta_t` for
    :math:`T=1,2,\dots`, convex case.

    It bounds the uniform stability of stochastic gradient descent with one example a step when the
    loss of every example is convex, :math:`\beta`-smooth and :math:`L`-Lipschitz *as a function of
    the parameters*, and :math:`\eta_t\le2/\beta`. It is attained by linear losses. For a neural
    network the loss is not convex in the parameters and the number is no guarantee.

    Args:
        lipschitz: :math:`L`.
        smoothness: :math:`\beta`; 0 for a linear loss.
        steps: :math:`\eta_1,\dots,\eta_T`; one above :math:`2/\beta` is refused.
        samples: :math:`n`.

    Returns:
        ``[T]``, double precision.

    >>> stability_bound(1.0, 0.25, [8.0, 4.0], samples=100).tolist()
    [0.16, 0.24]
    """
    return lipschitz * distance_bound(lipschitz, smoothness, steps, samples)


def distance_bound(
    lipschitz: float, smoothness: float, steps: Sequence[float] | Tensor, samples: int
) -> Tensor:
    r""":math:`\mathbb E\|\theta_T-\theta'_T\|\le\frac{2L}n\sum_{t\le T}\eta_t` for coupled runs.

    Arguments and conditions of :func:`stability_bound`.

    >>> distance_bound(2.0, 1.0, [1.0], samples=4).tolist()
    [1.0]
    """
    if not (math.isfinite(lipschitz) and lipschitz >= 0):
        raise InvalidInput(f"the Lipschitz constant must be a number >= 0, not {lipschitz!r}")
    if not (math.isfinite(smoothness) and smoothness >= 0):
        raise InvalidInput(f"the smoothness constant must be a number >= 0, not {smoothness!r}")
    if samples < 1:
        raise EmptyData("a sample has at least one example")
    etas = torch.as_tensor(steps, dtype=torch.float64)
    if etas.ndim != 1 or not bool((torch.isfinite(etas) & (etas >= 0)).all()):
        raise InvalidInput("the step sizes must be a list of finite numbers >= 0")
    if etas.numel() and smoothness > 0 and float(etas.max()) > 2 / smoothness * (1 + 1e-12):
        raise InvalidInput(
            f"a step of {float(etas.max()):.6g} exceeds 2/β = {2 / smoothness:.6g}: there a "
            "gradient step can expand, and the bound does not hold"
        )
    return 2 * lipschitz / samples * etas.cumsum(0)


def logistic_constants(x: Tensor) -> tuple[float, float]:
    r"""Lipschitz and smoothness constants of logistic regression in the parameters.

    For :math:`\ell(\theta;x,y)=\log(1+e^{-y\langle\theta,x\rangle})` they are
    :math:`L=\max\|x\|` and :math:`\beta=\max\|x\|^2/4`, for ``x[n, d]``.

    >>> logistic_constants(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    (5.0, 6.25)
    """
    if x.ndim != 2 or not len(x):
        raise ShapeMismatch(f"examples have the shape [n, d] with n > 0, not {list(x.shape)}")
    largest = float(x.norm(dim=1).max())
    return largest, largest**2 / 4


def replace_example(indices: Tensor, old: Tensor | int, new: Tensor | int) -> Tensor:
    r"""The same steps on a sample whose example ``old`` is exchanged for ``new``.

    With both samples in one tensor (:math:`S` and the replacements behind it), coupled runs are
    two runs of ``minibatch_direction`` with ``indices`` and with the result. ``old`` and ``new``
    broadcast against ``indices[..., K, m]``: ``[..., 1, 1]`` for another exchange in each run.

    >>> replace_example(torch.tensor([[0], [2], [0]]), old=0, new=9).flatten().tolist()
    [9, 2, 9]
    """
    return torch.where(indices == old, new, indices)


@dataclass(frozen=True, slots=True)
class MeasuredStability:
    r"""What retraining with one example exchanged showed.

    Attributes:
        stability: largest :math:`|\mathbb E_A[\ell(A(S);z)-\ell(A(S');z)]|` over the exchanges and
            the examples :math:`z` looked at; a lower estimate of the uniform stability, up to the
            noise of the average over runs.
        standard_error: of the average that attains it; NaN for a single run.
        expected_gap: mean of :math:`\ell(A(S^{i});z_i)-\ell(A(S);z_i)`, where :math:`z_i` is the
            example taken out of :math:`S` to make :math:`S^i`. Its expectation over :math:`S` is
            exactly :math:`\mathbb E[J(A(S))-\hat J(A(S))]`: no test set is needed.
        differences: ``[runs, exchanges, probes]``, :math:`\ell(A(S);z)-\ell(A(S^i);z)`.
    """

    stability: float
    standard_error: float
    expected_gap: float
    differences: Tensor


def measure_stability(
    train: Training,
    x: Tensor,
    y: Tensor,
    other_x: Tensor,
    other_y: Tensor,
    *,
    runs: int = 5,
    generator: RandomSource = None,
) -> MeasuredStability:
    r"""Train on a sample and on samples with one example exchanged, with the same randomness.

    Args:
        train: ``train(x, y, seed)`` returns ``losses(x, y)``; see :data:`Training`.
        x: inputs of the sample, ``[n, ...]``.
        y: targets, ``[n, ...]``.
        other_x: fresh examples of the same law, ``[k, ...]``; each replaces a random example.
        other_y: their targets.
        runs: seeds to average over; one is enough for a deterministic training.
        generator: seed or generator of the choice of examples and seeds.

    The probes :math:`z` are all examples given. Costs ``runs * (k + 1)`` trainings.

    >>> def mean(x, y, seed):                            # the mean; losses are squared distances
    ...     centre = x.mean()
    ...     return lambda x, y: (x - centre).square()
    >>> x = torch.tensor([0.0, 0.0, 0.0, 0.0])
    >>> found = measure_stability(mean, x, x, torch.tensor([4.0]), torch.tensor([0.0]), runs=1)
    >>> found.stability, found.expected_gap              # the mean moves from 0 to 1
    (7.0, 1.0)
    """
    n, k = len(x), len(other_x)
    if len(y) != n or len(other_y) != k:
        raise ShapeMismatch("inputs and targets must have the same number of rows")
    if n < 1 or k < 1 or runs < 1:
        raise EmptyData("stability needs an example, a replacement and a run at least")
    random = as_generator(generator)
    taken = torch.randint(n, (k,), generator=random)
    seeds = torch.randint(2**31, (runs,), generator=random).tolist()
    probes = torch.cat([x, other_x]), torch.cat([y, other_y])
    rows = []
    for seed in seeds:
        before = _losses(train(x, y, seed), *probes)
        after = []
        for j, i in enumerate(taken.tolist()):
            new_x, new_y = x.clone(), y.clone()
            new_x[i], new_y[i] = other_x[j], other_y[j]
            after.append(_losses(train(new_x, new_y, seed), *probes))
        rows.append(before - torch.stack(after))
    differences = torch.stack(rows)
    means = differences.mean(0)
    worst = int(means.abs().argmax())
    spread = float(differences.std(0).flatten()[worst]) / math.sqrt(runs) if runs > 1 else math.nan
    own = -differences[:, torch.arange(k), taken]
    return MeasuredStability(
        float(means.abs().max()), spread, float(own.mean()), differences.detach()
    )


def _losses(trained: Trained, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        losses = trained(x, y)
    if losses.shape != x.shape[:1]:
        raise ShapeMismatch(
            f"a trained model must give one loss an example, [{len(x)}], not {list(losses.shape)}"
        )
    return losses
