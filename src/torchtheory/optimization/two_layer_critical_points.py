r"""All critical points of the two-layer linear network, written down.

With :math:`\Sigma=\Sigma_{yx}\Sigma_{xx}^+\Sigma_{xy}=Q\Lambda Q^\top`, every critical point
:math:`(U,V)` has columns of :math:`U` that span eigenvectors :math:`Q_J` of :math:`\Sigma`: one
class for every choice :math:`J`, of value :math:`\operatorname{tr}\Sigma_{yy}-\sum_{j\in J}
\lambda_j`. The leading choice is the global minimum; every other one can be left by turning one of
its directions towards a larger eigenvalue.

Sources: Mathematical Aspects of Deep Learning, Theorems 4.2 and 4.3; Foundations of Deep Learning,
Theorem 45.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.linear_operators import check_count
from torchtheory.optimization.second_moments import (
    Covariances,
    least_squares_map,
    reduced_rank_regression,
)
from torchtheory.optimization.two_layer_linear import (
    check_weights,
    two_layer_curvature,
    two_layer_gradients,
)

#: More classes than anybody reads.
MOST_CLASSES = 20_000


@dataclass(frozen=True, slots=True)
class Escape:
    r"""A direction of negative curvature at a saddle.

    Attributes:
        dU, dV: the direction.
        curvature: the second derivative of the risk along it.
        gains: the eigenvalue of :math:`\Sigma` (or, where :math:`U` has not full rank, the
            singular value of the residual) that is taken up.
        loses: the eigenvalue that is given up for it.
    """

    dU: Tensor
    dV: Tensor
    curvature: float
    gains: float
    loses: float


@dataclass(frozen=True, slots=True)
class LinearCriticalPoint:
    r"""One class of critical points.

    Attributes:
        chosen: :math:`J`, numbers of the eigenvectors of :math:`\Sigma` from 0, ascending.
        U, V: a point of the class.
        value: the risk, :math:`\operatorname{tr}\Sigma_{yy}-\sum_{j\in J}\lambda_j`.
        label: what it is.
        index: how many eigenvalues of the Hessian are negative.
        escape: the way down, None at a global minimum.
    """

    chosen: tuple[int, ...]
    U: Tensor
    V: Tensor
    value: float
    label: Literal["global minimum", "strict saddle"]
    index: int
    escape: Escape | None


def linear_critical_points(
    covariances: Covariances,
    width: int,
    *,
    rank: int | None = None,
    mixing: Tensor | None = None,
) -> list[LinearCriticalPoint]:
    r"""One critical point for every choice :math:`J` of eigenvectors, best first.

    .. math:: U=Q_JC,\qquad V=\Sigma_{xx}^+\Sigma_{xy}Q_JC^{-\top},\qquad |J|=n_1.

    The Hessian there has exactly
    :math:`\#\{(j,k):j\in J,\,k\notin J,\,\lambda_k>\lambda_j\}` negative eigenvalues, and one
    more for each of the :math:`(n_1-r)(\operatorname{rank}\Sigma-r_J)` unused pairs where only
    :math:`r` columns are used, :math:`r_J` being the number of positive eigenvalues among them.

    The :math:`\binom k{n_1}` classes are all there are with :math:`U` of full rank if the
    eigenvalues of :math:`\Sigma` are positive and differ (:meth:`Covariances.distinct`);
    otherwise these are critical points too, but rotations among equal eigenvalues give others.

    Args:
        covariances: of inputs and targets; :meth:`Covariances.from_samples` makes them from data.
        width: :math:`n_1\le\min(n_0,k)`.
        rank: use :math:`r<n_1` columns, the others being 0: the rank-deficient saddles. All
            columns unless given.
        mixing: an invertible :math:`C`, ``[n1, n1]``; the identity unless given.

    Cost: :math:`O(n_0^2)` a class.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> [(p.chosen, p.value, p.label, p.index) for p in linear_critical_points(moments, 1)]
    [((0,), 4.0, 'global minimum', 0), ((1,), 7.0, 'strict saddle', 1)]
    """
    check_count(width, min(covariances.inputs, covariances.outputs), "hidden units")
    rank = width if rank is None else rank
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= width:
        raise InvalidInput(f"the rank must be a whole number from 0 to {width}, not {rank!r}")
    if math.comb(covariances.outputs, rank) > MOST_CLASSES:
        raise InvalidInput(
            f"there are {math.comb(covariances.outputs, rank)} classes; at most {MOST_CLASSES} "
            "are listed, so choose a smaller width or fewer outputs"
        )
    inverse = _inverse_mixing(mixing, width, covariances)
    values, vectors = covariances.directions()
    best = least_squares_map(covariances)
    floor = torch.finfo(values.dtype).eps * 100 * len(values) * float(values[0])
    positive = int((values > floor).sum())
    made = []
    for chosen in combinations(range(covariances.outputs), rank):
        U, V = vectors.new_zeros(len(vectors), width), best.new_zeros(best.shape[1], width)
        U[:, :rank] = vectors[:, list(chosen)]
        V[:, :rank] = best.T @ U[:, :rank]
        if mixing is not None:
            U, V = U @ mixing, V @ inverse.T
        taken = [float(values[j]) for j in chosen]
        left = [float(values[k]) for k in range(len(values)) if k not in chosen]
        used = sum(t > floor for t in taken)
        index = sum(k > j + floor for j in taken for k in left)
        index += (width - rank) * (positive - used)
        value = float(covariances.yy.trace()) - sum(taken)
        saddle = index > 0
        made.append(
            LinearCriticalPoint(
                chosen,
                U,
                V,
                value,
                "strict saddle" if saddle else "global minimum",
                index,
                escape_direction(U, V, covariances) if saddle else None,
            )
        )
    return sorted(made, key=lambda point: point.value)


def escape_direction(
    U: Tensor, V: Tensor, covariances: Covariances, tolerance: float = 1e-6
) -> Escape | None:
    r"""A direction of negative curvature at a critical point; None at a global minimum.

    Where :math:`U=Q_JC` has full column rank, one of its eigenvectors :math:`q_j` is turned
    towards one outside, :math:`q_k`, with the smallest :math:`\lambda_j` and the largest
    :math:`\lambda_k`: :math:`\Delta_U=q_ke_j^\top C`,
    :math:`\Delta_V=\Sigma_{xx}^+\Sigma_{xy}q_ke_j^\top C^{-\top}`, curvature
    :math:`2(\lambda_j-\lambda_k)`. Where :math:`Ua=0` for a unit vector :math:`a`, the leading
    singular pair :math:`(u,v)` of the residual :math:`\Sigma_{yx}-UV^\top\Sigma_{xx}` enters by
    :math:`\Delta_U=ua^\top`, :math:`\Delta_V=\alpha va^\top`, with :math:`\alpha` large enough.
    Neither needs :math:`\Sigma_{xx}` to be invertible nor the eigenvalues to differ: every
    critical point that is not a global minimum is a strict saddle.

    Args:
        U, V: a critical point, ``[k, n1]`` and ``[n0, n1]``.
        covariances: of inputs and targets.
        tolerance: gradients, and drops of the risk, below it (relative to
            :math:`\operatorname{tr}\Sigma_{yy}`) count as 0.

    >>> moments = Covariances(torch.eye(1), 3 * torch.eye(1), 9 * torch.eye(1))
    >>> escape_direction(torch.zeros(1, 1), torch.zeros(1, 1), moments).curvature
    -12.0
    """
    check_weights(U, V, covariances)
    scale = max(float(covariances.yy.trace()), torch.finfo(U.dtype).tiny)
    slope = max(float(g.abs().max()) for g in two_layer_gradients(U, V, covariances))
    if slope > tolerance * max(1.0, scale):
        raise InvalidInput(f"this is no critical point: the gradient has an entry of {slope:.3g}")
    optimum = reduced_rank_regression(covariances, U.shape[1]).value
    if float(covariances.risk(U @ V.T)) <= optimum + tolerance * scale:
        return None
    left, sigma, right = torch.linalg.svd(U)
    used = int((sigma > 1e-9 * sigma[0]).sum()) if float(sigma[0]) > 1e-9 else 0
    if used < U.shape[1]:
        return _fill_column(U, V, right[used], covariances)
    return _turn_column(U, V, left, used, covariances)


def _turn_column(U: Tensor, V: Tensor, left: Tensor, used: int, covariances: Covariances) -> Escape:
    explained = covariances.explained()
    inside, outside = left[:, :used], left[:, used:]
    # the two blocks of Σ, which commutes with the projector onto the columns of U
    low, low_vectors = torch.linalg.eigh(inside.T @ explained @ inside)
    high, high_vectors = torch.linalg.eigh(outside.T @ explained @ outside)
    basis = inside @ low_vectors
    mixing = basis.T @ U
    unit = torch.zeros(used, dtype=U.dtype, device=U.device)
    unit[0] = 1
    taken = outside @ high_vectors[:, -1]
    dU = torch.outer(taken, unit @ mixing)
    dV = torch.outer(
        least_squares_map(covariances).T @ taken, torch.linalg.solve(mixing, unit[:, None])[:, 0]
    )
    curvature = float(two_layer_curvature(U, V, dU, dV, covariances))
    return Escape(dU, dV, curvature, float(high[-1]), float(low[0]))


def _fill_column(U: Tensor, V: Tensor, unused: Tensor, covariances: Covariances) -> Escape:
    residual = covariances.yx - U @ V.T @ covariances.xx
    u, s, v = torch.linalg.svd(residual)
    quadratic = float((V @ unused) @ covariances.xx @ (V @ unused))
    size = max(1.0, quadratic / float(s[0]))
    dU, dV = torch.outer(u[:, 0], unused), torch.outer(size * v[0], unused)
    curvature = float(two_layer_curvature(U, V, dU, dV, covariances))
    return Escape(dU, dV, curvature, float(s[0]), 0.0)


def _inverse_mixing(mixing: Tensor | None, width: int, covariances: Covariances) -> Tensor:
    if mixing is None:
        return torch.eye(width, dtype=covariances.xx.dtype, device=covariances.xx.device)
    if mixing.shape != (width, width):
        raise ShapeMismatch(f"the mixing must be [{width}, {width}], not {list(mixing.shape)}")
    if int(torch.linalg.matrix_rank(mixing)) < width:
        raise InvalidInput("the mixing must be invertible")
    inverse: Tensor = torch.linalg.inv(mixing)
    return inverse
