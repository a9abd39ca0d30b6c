r"""Linear models that memorize, and interpolate from arbitrarily far away.

For features $\Phi\in\mathbb R^{m\times n}$ of the training inputs, $\Phi_{\rm test}$ of
the test inputs and $M=[\Phi;\Phi_{\rm test}]$:

* if $\operatorname{rank}\Phi=m$, every $Y$ has weights with $\Phi w=Y$;
* if $\operatorname{rank}M<n$, $Y=\Phi w^*$ and $Y_{\rm test}=\Phi_{\rm test}w^*$,
  there are for all $\epsilon,\delta\ge0$ weights $w$ with
  $\Phi w=Y+\epsilon A$, $\Phi_{\rm test}w=Y_{\rm test}+\epsilon B$,
  $\|A\|_F,\|B\|_F\le1$, and $\|w\|_F,\|w-w^*\|_F\ge\delta$.

The condition $\operatorname{rank}M<n$ is about *these* test inputs: with $n$ of them in
general position it fails, and the norm of interpolating weights says something after all. Source:
Mathematical Aspects of Deep Learning, Theorem 2.1 and Corollary 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, as_points, nonnegative_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian


@dataclass(frozen=True, slots=True)
class Memorized:
    r"""Weights that reproduce the targets.

    Attributes:
        weights: $\Phi^+Y$, the ones of least norm, `[n, s]`.
        residual: $\|\Phi w-Y\|_F$, rounding only.
        norm: $\|w\|_F$.
    """

    weights: Tensor
    residual: float
    norm: float


def memorize_targets(features: Tensor, targets: Tensor) -> Memorized:
    r"""Weights $w$ with $\Phi w=Y$, for whatever $Y$.

    Args:
        features: $\Phi$, `[m, n]` with independent rows; of a data set, of random features,
            or of the last hidden layer of a network.
        targets: $Y$, `[m]` or `[m, s]`.

    Raises:
        InvalidInput: if the rows are dependent, so that some targets have no such weights.

    Cost: $O(m^2n)$.

    >>> memorize_targets(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]]), torch.ones(2)).weights
    tensor([[0.5000],
            [0.5000],
            [0.5000]])
    """
    phi = as_points(features, "features")
    y = _columns(targets, len(phi), "targets").to(phi)
    m, n = phi.shape
    u, s, vt = torch.linalg.svd(phi, full_matrices=False)
    rank = _rank(s, phi)
    if rank < m:
        why = f"{m} rows in {n} dimensions" if n < m else "some rows depend on others"
        raise InvalidInput(
            f"the features have rank {rank} and there are {m} samples ({why}): not all targets can "
            "be memorized, for instance not different ones for equal rows"
        )
    weights = vt.T @ ((u.T @ y) / s[:, None])
    return Memorized(weights, float((phi @ weights - y).norm()), float(weights.norm()))


@dataclass(frozen=True, slots=True)
class FarInterpolant:
    r"""Weights that fit training and test data from far away.

    Attributes:
        weights: $w=w^*+\epsilon C_1+\alpha\bar C$, `[n, s]`.
        train_change, test_change: $A=\Phi C_1$ and $B=\Phi_{\rm test}C_1$, the larger
            with Frobenius norm 1 (0 if the features are 0).
        within: $C_1$, columns in the row space of $M$, `[n, s]`.
        beyond: $\alpha\bar C$, columns in the null space of $M$, `[n, s]`.
        norm: $\|w\|_F$.
        distance: $\|w-w^*\|_F$.
    """

    weights: Tensor
    train_change: Tensor
    test_change: Tensor
    within: Tensor
    beyond: Tensor
    norm: float
    distance: float


def far_interpolant(
    features: Tensor,
    test_features: Tensor,
    truth: Tensor,
    *,
    error: float = 0.0,
    distance: float,
    generator: RandomSource = None,
) -> FarInterpolant:
    r"""The construction of the theorem's second part.

    $C_1$ is a random matrix projected on the row space of $M$ and scaled so that
    $\max(\|\Phi C_1\|_F,\|\Phi_{\rm test}C_1\|_F)=1$; $\bar C$ a random one of unit
    norm in the null space, and $\alpha=\delta+\|w^*\|_F$.

    Args:
        features: $\Phi$, `[m, n]`.
        test_features: $\Phi_{\rm test}$, `[k, n]`.
        truth: $w^*$, `[n]` or `[n, s]`.
        error: $\epsilon\ge0$.
        distance: $\delta\ge0$.
        generator: seed or generator of the two matrices.

    Raises:
        InvalidInput: if $\operatorname{rank}M=n$: then training and test predictions fix the
            weights, and none are far away.

    Cost: $O(n^3+(m+k)n^2)$.

    >>> phi, test = torch.eye(3)[:1], torch.eye(3)[1:2]
    >>> found = far_interpolant(phi, test, torch.ones(3), distance=1000.0)
    >>> found.weights[:2].flatten(), found.norm >= 1000
    (tensor([1., 1.]), True)
    """
    phi = as_points(features, "features")
    other = as_points(test_features, "test_features").to(phi)
    if other.shape[1] != phi.shape[1]:
        raise ShapeMismatch(
            f"training features have {phi.shape[1]} columns and test features {other.shape[1]}"
        )
    for value, name in ((error, "the error"), (distance, "the distance")):
        nonnegative_number(value, name)
    star = _columns(truth, phi.shape[1], "truth").to(phi)
    stacked = torch.cat([phi, other])
    _, s, vt = torch.linalg.svd(stacked, full_matrices=True)
    rank = _rank(s, stacked)
    n = phi.shape[1]
    if rank == n:
        raise InvalidInput(
            f"training and test features together have full rank {n}: their predictions determine "
            "the weights, so no others fit; this needs fewer independent rows than columns"
        )
    random = as_generator(generator)
    noise = gaussian(2, *star.shape, generator=random, dtype=phi.dtype, device=phi.device)
    row, null = vt[:rank].T, vt[rank:].T
    within = row @ (row.T @ noise[0])
    largest = max(float((phi @ within).norm()), float((other @ within).norm()))
    within = within / largest if largest > 0 else torch.zeros_like(within)
    beyond = null @ (null.T @ noise[1])
    beyond = (distance + float(star.norm())) * beyond / beyond.norm()
    weights = star + error * within + beyond
    return FarInterpolant(
        weights,
        phi @ within,
        other @ within,
        within,
        beyond,
        float(weights.norm()),
        float((weights - star).norm()),
    )


def _rank(singular_values: Tensor, matrix: Tensor) -> int:
    if not bool(singular_values.max() > 0):
        return 0
    level = max(matrix.shape) * torch.finfo(matrix.dtype).eps * singular_values.max()
    return int((singular_values > level).sum())


def _columns(values: Tensor, rows: int, name: str) -> Tensor:
    if not isinstance(values, Tensor) or values.ndim not in (1, 2) or len(values) != rows:
        shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ShapeMismatch(f"{name} must be [{rows}] or [{rows}, s], not {shape}")
    all_finite(values, name)
    return values.detach().reshape(rows, -1)
