r"""Witnesses: point sets with a parameter for each of their labelings, and obstructions.

A class shatters $n$ points when it gives them all $2^n$ labelings, and its VC
dimension is the largest such $n$. A lower bound is a set of points with parameters for each
labeling; the upper bound $d+1$ for half-spaces is Radon's theorem.
Sources: Foundations of Deep Learning, section 8.3; Mathematical Aspects of Deep Learning, 1.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, equal_rows
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.nets.feedforward import mlp


@dataclass(frozen=True, slots=True)
class LinearWitness:
    r"""Points that half-spaces shatter, with weights for each labeling.

    Attributes:
        points: `[d + 1, d]`, the origin and the unit vectors.
        labels: `[2 ** (d + 1), d + 1]`, all labelings.
        weight, bias: `[2 ** (d + 1), d]` and `[2 ** (d + 1)]`;
            $y_i(w^\top x_i+b)=\tfrac12$ at the origin and 1 at the other points.
    """

    points: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor

    def scores(self) -> Tensor:
        """`[2 ** (d + 1), d + 1]`, the affine function of every labeling at every point."""
        return self.weight @ self.points.T + self.bias[:, None]


def linear_shattering(dimension: int) -> LinearWitness:
    r"""The origin and the unit vectors are shattered: $b=s_0/2$, $w_i=s_i-s_0/2$.

    So the half-spaces of $\mathbb R^d$ have VC dimension at least $d+1$.

    >>> witness = linear_shattering(2)
    >>> bool((witness.scores().sign() == witness.labels).all()), len(witness.labels)
    (True, 8)
    """
    if not 1 <= dimension <= 19:
        raise InvalidInput(f"the 2^(d+1) labelings are listed for d = 1..19, not d = {dimension}")
    labels = all_labelings(dimension + 1)
    corner = torch.eye(dimension, dtype=torch.float64)
    points = torch.cat([torch.zeros(1, dimension, dtype=torch.float64), corner])
    return LinearWitness(points, labels, labels[:, 1:] - labels[:, :1] / 2, labels[:, 0] / 2)


@dataclass(frozen=True, slots=True)
class RadonPartition:
    r"""Two disjoint groups of points whose convex hulls meet.

    Attributes:
        labels: `[n]` of ±1, the groups. No half-space gives the points these labels.
        weights: `[n]`, non-negative, of sum 1 in either group.
        common: `[d]`, the point of both hulls.
        residual: distance of the two convex combinations.
    """

    labels: Tensor
    weights: Tensor
    common: Tensor
    residual: float


def radon_partition(x: Tensor) -> RadonPartition:
    r"""Radon's theorem: any $d+2$ points of $\mathbb R^d$ split into two groups whose
    hulls meet.

    From $\lambda\ne0$ with $\sum\lambda_i=0$ and $\sum\lambda_ix_i=0$ (a null
    vector of a matrix with more columns than rows), grouped by sign; a point with
    $\lambda_i=0$ may take either label. Hence no $d+2$ points are shattered by
    half-spaces. $O(d^3)$.

    Args:
        x: `[n, d]` with $n\ge d+2$.

    >>> square = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> split = radon_partition(square)
    >>> (split.labels * split.labels[0]).tolist(), split.common.tolist()
    ([1.0, -1.0, -1.0, 1.0], [0.5, 0.5])
    """
    if x.ndim != 2:
        raise ShapeMismatch(f"points must be [n, d], not {list(x.shape)}")
    n, d = x.shape
    if n < d + 2:
        raise InvalidInput(f"Radon's theorem needs {d + 2} points in {d} dimensions, not {n}")
    all_finite(x, "the points")
    rows = x[: d + 2].double().cpu().numpy()
    centered = rows - rows.mean(0)
    size = np.abs(centered).max() or 1.0
    system = np.vstack([centered.T / size, np.ones(d + 2)])
    null = np.linalg.svd(system)[2][-1]
    null[np.abs(null) < 1e-14] = 0.0
    above = null > 0
    positive = np.where(above, null, 0.0) / null[above].sum()
    negative = np.where(above, 0.0, -null) / -null[~above].sum()
    first, second = positive @ rows, negative @ rows
    labels = np.r_[np.where(above, 1.0, -1.0), np.ones(n - d - 2)]
    weights = np.r_[positive + negative, np.zeros(n - d - 2)]
    return RadonPartition(
        torch.from_numpy(labels).to(x),
        torch.from_numpy(weights).to(x),
        torch.from_numpy((first + second) / 2).to(x),
        float(np.linalg.norm(first - second)),
    )


def relu_shattering(x: Tensor) -> tuple[nn.Sequential, Tensor]:
    r"""A ReLU network with $n$ hidden units and output weights for all labelings of `x`.

    Project the $n$ different points on a direction that keeps them apart, put unit
    $j$ 's kink just before the $j$-th smallest projection: the hidden layer is then a
    triangular matrix with positive diagonal, and the output weights of any labeling solve it. So
    the networks $(d,n,1)$ have VC dimension at least $n$.

    Args:
        x: `[n, d]`, at most 16 different points.

    Returns:
        The network (output bias 0, output weights those of the last labeling) and the output
        weights `[2 ** n, n]`, one row for each row of `all_labelings(n)`.

    >>> net, weights = relu_shattering(torch.tensor([[0.0], [1.0], [3.0]]).double())
    >>> with torch.no_grad():
    ...     hidden = net[1](net[0](torch.tensor([[0.0], [1.0], [3.0]]).double()))
    >>> (weights @ hidden.T).round().tolist() == all_labelings(3).tolist()
    True
    """
    if x.ndim != 2:
        raise ShapeMismatch(f"points must be [n, d], not {list(x.shape)}")
    n, d = x.shape
    if n == 0:
        raise EmptyData("there are no points")
    if n > 16:
        raise InvalidInput(f"the 2^{n} labelings are too many to list; take at most 16 points")
    direction = _injective_direction(x)
    height = x @ direction
    order = height.argsort()
    rising = height[order]
    gaps = rising.diff()
    before = torch.cat([gaps[:1] if n > 1 else gaps.new_ones(1), gaps])
    kinks = rising - before / 2
    net = mlp([d, n, 1], generator=0).to(x)
    first, last = cast(nn.Linear, net[0]), cast(nn.Linear, net[2])
    labels = all_labelings(n).to(x)
    with torch.no_grad():
        first.weight.copy_(direction.expand(n, d))
        first.bias.copy_(-kinks)
        hidden = torch.relu(rising[:, None] - kinks)
        weights = torch.linalg.solve_triangular(hidden, labels[:, order].T, upper=False).T
        last.weight.copy_(weights[-1:])
        last.bias.zero_()
    return net, weights


def _injective_direction(x: Tensor) -> Tensor:
    """A direction on which different points have different projections, well apart."""
    if same := equal_rows(x):
        raise InvalidInput(
            f"points {same[0]} and {same[1]} are equal; no function can label them differently"
        )
    generator = torch.Generator(device=x.device).manual_seed(0)
    tried = torch.randn(64, x.shape[1], generator=generator, dtype=x.dtype, device=x.device)
    tried = torch.nn.functional.normalize(tried, dim=1)
    if len(x) == 1:
        return tried[0]
    least = (tried @ x.T).sort(1).values.diff(dim=1).min(1).values
    return tried[int(least.argmax())]
