r"""All critical points of the two-layer linear network, written down.

With $\Sigma=\Sigma_{yx}\Sigma_{xx}^+\Sigma_{xy}=Q\Lambda Q^\top$, every critical point
$(U,V)$ has columns of $U$ that span eigenvectors $Q_J$ of $\Sigma$: one
class for every choice $J$, of value $\operatorname{tr}\Sigma_{yy}-\sum_{j\in J} \lambda_j$.
The leading choice is the global minimum; every other one can be left by turning one of
its directions towards a larger eigenvalue, or by giving an unused column to one.

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

from torchtheory.core.checks import as_matrix, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.linalg.operators import effective_tolerance
from torchtheory.optimization.linear_networks.second_moments import (
    Covariances,
    least_squares_map,
    reduced_rank_regression,
)
from torchtheory.optimization.linear_networks.two_layer import (
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
        gains: the eigenvalue of $\Sigma$ that is taken up.
        loses: the eigenvalue that is given up for it; 0 where a column of $U$ is unused.
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
        chosen: $J$, numbers of the eigenvectors of $\Sigma$ from 0, ascending.
        U, V: a point of the class.
        value: the risk, $\operatorname{tr}\Sigma_{yy}-\sum_{j\in J}\lambda_j$.
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
    rank: int | Literal["all"] | None = None,
    mixing: Tensor | None = None,
) -> list[LinearCriticalPoint]:
    r"""One critical point for every choice $J$ of eigenvectors, best first.

    $$
    U=[Q_J,0]\,C,\qquad V=[\Sigma_{xx}^+\Sigma_{xy}Q_J,0]\,C^{-\top},\qquad |J|=r\le n_1.
    $$

    The Hessian there has exactly

    $$
    \#\{(j,k):j\in J,\,k\notin J,\,\lambda_k>\lambda_j\}
    +(n_1-r)\,\#\{k\notin J:\lambda_k>0\}
    $$

    negative eigenvalues. Where it has any, the eigenvector $q_k$ outside $J$ of the
    largest eigenvalue takes an unused column, with curvature $-4\lambda_k$, or, if there is
    none, the place of the $q_j$ of the smallest one, with $2(\lambda_j-\lambda_k)$.

    The $\binom k{n_1}$ classes of rank $n_1$ are all there are with $U$ of full
    column rank if the eigenvalues of $\Sigma$ are positive and differ
    (`Covariances.distinct`); otherwise these are critical points too, but rotations among
    equal eigenvalues give others. In the classes of smaller rank the unused columns of $V$
    need not be 0, only orthogonal to the rows of the residual; value and index stay.

    Args:
        covariances: of inputs and targets; `Covariances.from_samples` makes them from data.
        width: $n_1$, also above $\min(n_0,k)$.
        rank: how many columns $r$ are used, from 0 to $\min(n_1,k)$, which it is unless
            given; `"all"` lists every rank.
        mixing: an invertible $C$, `[n1, n1]`; the identity unless given.

    Eigenvalues that differ by less than 1e-9 of the largest count as equal, or by less than their
    rounding, about ten machine epsilons times the condition number of $\Sigma_{xx}$.

    Cost: $O((n_0+k)n_1^2+n_0^2n_1)$ a class, and $O(n_0^3+k^3)$ once.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> [(p.chosen, p.value, p.label, p.index) for p in linear_critical_points(moments, 1)]
    [((0,), 4.0, 'global minimum', 0), ((1,), 7.0, 'strict saddle', 1)]
    """
    whole_number(width, "the width", least=1)
    most = min(width, covariances.outputs)
    ranks = _ranks(rank, most, covariances.outputs)
    C, inverse = _mixing(mixing, width, covariances)
    values, vectors = covariances.directions()
    images = least_squares_map(covariances).T @ vectors
    resolution = _resolution(covariances) * float(values[0])
    sizes = values.tolist()
    total = float(covariances.yy.trace())
    made = []
    for chosen in (c for r in ranks for c in combinations(range(len(sizes)), r)):
        used = len(chosen)
        # rows of C and of its inverse's transpose belong to the columns of [Q_J, 0]
        U, V = vectors[:, list(chosen)] @ C[:used], images[:, list(chosen)] @ inverse.T[:used]
        outside = [k for k in range(len(sizes)) if k not in chosen]
        turns = sum(sizes[k] > sizes[j] + resolution for j in chosen for k in outside)
        index = turns + (width - used) * sum(sizes[k] > resolution for k in outside)
        escape = None
        if index:
            k, free = outside[0], used < width
            column = used if free else used - 1
            dU = torch.outer(vectors[:, k], C[column])
            dV = torch.outer(images[:, k], inverse.T[column])
            curvature = float(two_layer_curvature(U, V, dU, dV, covariances))
            escape = Escape(dU, dV, curvature, sizes[k], 0.0 if free else sizes[chosen[-1]])
        value = total - sum(sizes[j] for j in chosen)
        label: Literal["global minimum", "strict saddle"]
        label = "strict saddle" if index else "global minimum"
        made.append(LinearCriticalPoint(chosen, U, V, value, label, index, escape))
    return sorted(made, key=lambda point: point.value)


def escape_direction(
    U: Tensor, V: Tensor, covariances: Covariances, tolerance: float = 1e-6
) -> Escape | None:
    r"""A direction of negative curvature at a critical point; None at a global minimum.

    Of the eigenvectors of $\Sigma$ outside the columns of $U$, the one of the largest
    eigenvalue, $q_k$, is taken up by $\Delta_U=q_kb^\top$,
    $\Delta_V=\Sigma_{xx}^+\Sigma_{xy}q_kc^\top$. Where $U=Q_JC$ has full column rank
    it takes the place of the $q_j$ of the smallest eigenvalue: $b^\top=e_j^\top C$,
    $c^\top=e_j^\top C^{-\top}$, curvature $2(\lambda_j-\lambda_k)$. Where
    $Ua=0$ for a unit vector $a$, $b=a$ and $c=\alpha a$ with
    $\alpha=\max(1,a^\top V^\top\Sigma_{xx}Va/\lambda_k)$, curvature at most
    $-2\alpha\lambda_k$. Neither needs $\Sigma_{xx}$ to be invertible nor the
    eigenvalues to differ: every critical point that is not a global minimum is a strict saddle.

    Args:
        U, V: a critical point, `[k, n1]` and `[n0, n1]`.
        covariances: of inputs and targets.
        tolerance: gradients, and drops of the risk, below it (relative to
            $\operatorname{tr}\Sigma_{yy}$) count as 0.

    >>> moments = Covariances(torch.eye(1), 3 * torch.eye(1), 9 * torch.eye(1))
    >>> escape_direction(torch.zeros(1, 1), torch.zeros(1, 1), moments).curvature
    -36.0
    """
    check_weights(U, V, covariances)
    U, V = U.detach(), V.detach()
    tolerance = effective_tolerance(tolerance, U.dtype)
    scale = max(float(covariances.yy.trace()), torch.finfo(U.dtype).tiny)
    slope = max(float(g.abs().max()) for g in two_layer_gradients(U, V, covariances))
    if slope > tolerance * max(1.0, scale):
        raise InvalidInput(f"this is no critical point: the gradient has an entry of {slope:.3g}")
    optimum = reduced_rank_regression(covariances, U.shape[1]).value
    if float(covariances.risk(U @ V.T)) <= optimum + tolerance * scale:
        return None
    left, sigma, right = torch.linalg.svd(U)
    used = int((sigma > effective_tolerance(1e-9, U.dtype) * sigma[0]).sum())
    found = None
    if used == U.shape[1]:
        found = _turn_column(U, V, left[:, :used], left[:, used:], covariances)
    if found is None or found.curvature >= 0:
        # also beside a point where U loses rank, whose smallest direction is rounding
        used = min(used, U.shape[1] - 1)
        found = _fill_column(U, V, left[:, used:], right[used], covariances)
    if found.curvature >= 0:
        raise InvalidInput(
            f"no direction of negative curvature: gradients of {slope:.3g} are too large to tell "
            "which saddle is meant"
        )
    return found


def _outer_eigenvector(outside: Tensor, explained: Tensor) -> tuple[float, Tensor]:
    """The largest eigenvalue of Σ across the columns of U, with which it commutes."""
    high, vectors = torch.linalg.eigh(outside.T @ explained @ outside)
    return float(high[-1]), outside @ vectors[:, -1]


def _turn_column(
    U: Tensor, V: Tensor, inside: Tensor, outside: Tensor, covariances: Covariances
) -> Escape:
    explained = covariances.explained()
    low, low_vectors = torch.linalg.eigh(inside.T @ explained @ inside)
    gains, taken = _outer_eigenvector(outside, explained)
    C = (inside @ low_vectors).T @ U
    unit = torch.eye(len(C), dtype=U.dtype, device=U.device)[:, 0]
    dU = torch.outer(taken, C[0])
    image = least_squares_map(covariances).T @ taken
    dV = torch.outer(image, torch.linalg.solve(C, unit))
    curvature = float(two_layer_curvature(U, V, dU, dV, covariances))
    return Escape(dU, dV, curvature, gains, float(low[0]))


def _fill_column(
    U: Tensor, V: Tensor, outside: Tensor, unused: Tensor, covariances: Covariances
) -> Escape:
    gains, taken = _outer_eigenvector(outside, covariances.explained())
    quadratic = float((V @ unused) @ covariances.xx @ (V @ unused))
    size = max(1.0, quadratic / gains) if gains > 0 else 1.0
    image = least_squares_map(covariances).T @ taken
    dU, dV = torch.outer(taken, unused), torch.outer(size * image, unused)
    curvature = float(two_layer_curvature(U, V, dU, dV, covariances))
    return Escape(dU, dV, curvature, gains, 0.0)


def _resolution(covariances: Covariances) -> float:
    """How far apart eigenvalues of Σ are for certain, relative to the largest."""
    spectrum = torch.linalg.eigvalsh(covariances.xx)
    eps = torch.finfo(spectrum.dtype).eps
    # the pseudo-inverse leaves out what is below this
    kept = spectrum[spectrum > eps * len(spectrum) * spectrum[-1]]
    condition = float(kept[-1] / kept[0]) if len(kept) else 1.0
    return max(effective_tolerance(1e-9, spectrum.dtype), 10 * eps * condition)


def _ranks(rank: int | str | None, most: int, outputs: int) -> list[int]:
    if rank == "all":
        ranks = list(range(most + 1))
    elif rank is None:
        ranks = [most]
    elif isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= most:
        raise InvalidInput(
            f"the rank must be a whole number from 0 to {most} or 'all', not {rank!r}"
        )
    else:
        ranks = [rank]
    classes = sum(math.comb(outputs, r) for r in ranks)
    if classes > MOST_CLASSES:
        raise InvalidInput(
            f"there are {classes} classes; at most {MOST_CLASSES} are listed, so choose a smaller "
            "width or rank, or fewer outputs"
        )
    return ranks


def _mixing(mixing: Tensor | None, width: int, covariances: Covariances) -> tuple[Tensor, Tensor]:
    """C and its inverse."""
    if mixing is None:
        unit = torch.eye(width, dtype=covariances.xx.dtype, device=covariances.xx.device)
        return unit, unit
    C = as_matrix(mixing, "the mixing")
    if C.shape != (width, width):
        raise ShapeMismatch(f"the mixing must be [{width}, {width}], not {list(C.shape)}")
    if C.dtype != covariances.xx.dtype:
        raise InvalidType(
            f"the mixing is {C.dtype}, the covariances are {covariances.xx.dtype}; convert one"
        )
    if int(torch.linalg.matrix_rank(C)) < width:
        raise InvalidInput(
            f"the mixing must be invertible, and its rank is {int(torch.linalg.matrix_rank(C))}, "
            f"not {width}"
        )
    return C, torch.linalg.inv(C)
