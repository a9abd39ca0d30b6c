r"""Is a factorization with weight decay globally optimal? One singular pair answers.

For $f(U,V)=\tfrac12\|Y-UV^\top\|_F^2+\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2)$, minimized over the
width as well, with the residual $R=Y-UV^\top$: a pair is a global minimum if and only if
$\langle R,UV^\top\rangle=\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2)$, which holds at every
stationary point, and $\sigma_{\max}(R)\le\lambda$. Where the second fails, the top singular
pair is a column that lowers the objective. Where both hold nearly, the dual
$\max\{\langle Q,Y\rangle-\tfrac12\|Q\|_F^2:\sigma_{\max}(Q)\le\lambda\}$ bounds what is left
to gain. Source: Mathematical Aspects of Deep Learning, Theorem 4.5 and Corollary 4.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, as_matrix, positive_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import operator_norm

#: Relative change of the factors at which a descent ends.
SETTLED = 1e-12


def decay_objective(Y: Tensor, U: Tensor, V: Tensor, strength: float) -> Tensor:
    r"""$\tfrac12\|Y-UV^\top\|_F^2+\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2)$, differentiable.

    Args:
        Y: `[n, m]`.
        U: `[n, w]`.
        V: `[m, w]`.
        strength: $\lambda$.

    >>> one = torch.ones(1, 1)
    >>> decay_objective(3 * one, one, one, 1.0)                      # (3 - 1)^2 / 2 + (1 + 1) / 2
    tensor(3.)
    """
    fit = (Y - U @ V.T).square().sum() / 2
    return fit + strength * (U.square().sum() + V.square().sum()) / 2


@dataclass(frozen=True, slots=True)
class FactorizationCertificate:
    r"""How far a factorization can be from the best one of any width.

    Attributes:
        optimal: whether the gap is within the tolerance.
        objective: $f(U,V)$.
        lower_bound: what no factorization goes below.
        balance: $\langle R,UV^\top\rangle-\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2)$; 0 where the
            objective is stationary.
        largest_residual: $\sigma_{\max}(R)$; at most $\lambda$ at a global minimum.
        column: the unit vectors $(u,v)$ of that singular value: with
            $\sigma_{\max}(R)>\lambda$, the columns $\sqrt\epsilon u,\sqrt\epsilon v$
            change the objective by $\epsilon(\lambda-\sigma_{\max})+\epsilon^2/2$.
    """

    optimal: bool
    objective: float
    lower_bound: float
    balance: float
    largest_residual: float
    column: tuple[Tensor, Tensor]

    @property
    def gap(self) -> float:
        r"""$f(U,V)-$ the lower bound: at least $f(U,V)-\min f$."""
        return self.objective - self.lower_bound


def certify_factorization(
    Y: Tensor,
    U: Tensor,
    V: Tensor,
    strength: float,
    *,
    tolerance: float = 1e-6,
    generator: RandomSource = None,
) -> FactorizationCertificate:
    r"""Certify that $UV^\top$ is the best factorization, or give the column that is missing.

    With $s=\min(1,\lambda/\sigma_{\max}(R))$ the matrix $Q=sR$ is feasible in the dual,
    so $\min f\ge\langle Q,Y\rangle-\tfrac12\|Q\|_F^2$.

    Args:
        Y: `[n, m]`.
        U: `[n, w]`; `w` may be 0.
        V: `[m, w]`.
        strength: $\lambda>0$.
        tolerance: the largest gap, relative to the objective, that counts as optimal.
        generator: of the start vector of the singular value.

    Costs one singular pair of $R$, by products; the residual is formed, `[n, m]`, in
    double precision whatever the factors have, so that the bound does not hang on rounding. The
    largest singular value is taken with its error bar added. The best factors in single precision
    are about 1e-5 of the objective off the best ones there are: ask for no more.

    >>> Y = torch.diag(torch.tensor([3.0, 0.5])).double()
    >>> root = torch.tensor([[2.0**0.5], [0.0]]).double()
    >>> certify_factorization(Y, root, root, 1.0).optimal
    True
    >>> found = certify_factorization(Y, 0 * root, 0 * root, 1.0)
    >>> found.optimal, round(found.largest_residual, 6), found.column[0].abs().round().tolist()
    (False, 3.0, [1.0, 0.0])
    """
    own = Y
    Y, U, V = (factor.double() for factor in check_factors(Y, U, V))
    positive_number(strength, "the strength of the decay")
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, not {tolerance!r}")
    product = U @ V.T
    R = Y - product
    objective = float(decay_objective(Y, U, V, strength))
    top = operator_norm(
        LinearOperator.from_matrix(R), tolerance=1e-12, steps=5000, generator=generator
    )
    scale = min(1.0, strength / top.upper) if top.upper > 0 else 1.0
    Q = scale * R
    lower = float((Q * Y).sum() - Q.square().sum() / 2)
    penalty = strength * float(U.square().sum() + V.square().sum()) / 2
    return FactorizationCertificate(
        objective - lower <= tolerance * objective,
        objective,
        lower,
        float((R * product).sum()) - penalty,
        top.value,
        (top.left.to(own), top.right.to(own)),
    )


def shared_null_direction(U: Tensor, V: Tensor, *, tolerance: float = 1e-6) -> Tensor | None:
    r"""A unit vector $e$ with $Ue=0$ and $Ve=0$, or None.

    A local minimum with such a direction (a zero column of both factors is one) is global. The
    reverse does not hold: a global minimum of exactly the width it needs has none.

    Args:
        U: `[n, w]`.
        V: `[m, w]`.
        tolerance: below which part of the largest singular value one counts as 0.

    >>> shared_null_direction(torch.eye(2), torch.tensor([[1.0, 0.0]])) is None
    True
    >>> shared_null_direction(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])).abs()
    tensor([0., 1.])
    """
    if U.ndim != 2 or V.ndim != 2 or U.shape[1] != V.shape[1]:
        raise ShapeMismatch(f"factors {list(U.shape)} and {list(V.shape)} need equal widths")
    if U.shape[1] == 0:
        return None
    _, sigma, right = torch.linalg.svd(torch.cat([U, V]), full_matrices=True)
    small = len(sigma) < U.shape[1] or float(sigma[-1]) <= tolerance * float(sigma[0])
    return right[-1] if small else None


@dataclass(frozen=True, slots=True)
class GrownFactorization:
    """A factorization grown column by column.

    Attributes:
        U, V: the factors.
        widths: after every round, the first before any column was appended.
        objectives: then.
        residuals: the largest singular value of the residual then.
        certificate: of the last round.
    """

    U: Tensor
    V: Tensor
    widths: list[int]
    objectives: list[float]
    residuals: list[float]
    certificate: FactorizationCertificate


def grow_factorization(
    Y: Tensor,
    strength: float,
    *,
    start: tuple[Tensor, Tensor] | None = None,
    generator: RandomSource = None,
) -> GrownFactorization:
    r"""Descend, certify, append the missing column, until the certificate holds.

    The column $\sqrt\epsilon(u,v)$ of the top singular pair of the residual is appended with
    the best $\epsilon=\sigma_{\max}-\lambda$, which lowers the objective by exactly
    $(\sigma_{\max}-\lambda)^2/2$. From no columns it ends with as many as
    $\sigma_i(Y)$ exceed $\lambda$.

    Args:
        Y: `[n, m]`.
        strength: $\lambda>0$.
        start: factors to begin with; none unless given.
        generator: of the start vectors of the singular values.

    >>> grown = grow_factorization(torch.diag(torch.tensor([3.0, 2.0, 0.5])).double(), 1.0)
    >>> grown.widths, [round(v, 6) for v in grown.objectives], grown.certificate.optimal
    ([0, 1, 2], [6.625, 4.625, 4.125], True)
    """
    Y = as_matrix(Y)
    if start is None:
        start = Y.new_zeros(Y.shape[0], 0), Y.new_zeros(Y.shape[1], 0)
    Y, U, V = check_factors(Y, *start)
    positive_number(strength, "the strength of the decay")
    most = U.shape[1] + min(Y.shape)
    widths, objectives, residuals = [], [], []
    while True:
        U, V = descend_factors(Y, U, V, strength)
        found = certify_factorization(Y, U, V, strength, generator=generator)
        widths.append(U.shape[1])
        objectives.append(found.objective)
        residuals.append(found.largest_residual)
        if found.optimal or U.shape[1] >= most or found.largest_residual <= strength:
            return GrownFactorization(U, V, widths, objectives, residuals, found)
        size = (found.largest_residual - strength) ** 0.5
        u, v = found.column
        U, V = torch.cat([U, size * u[:, None]], 1), torch.cat([V, size * v[:, None]], 1)


def descend_factors(
    Y: Tensor, U: Tensor, V: Tensor, strength: float, *, sweeps: int = 200
) -> tuple[Tensor, Tensor]:
    r"""Alternating ridge regressions: $U=YV(V^\top V+\lambda I)^{-1}$ and the same for V.

    Each half step minimizes over one factor exactly, so the objective never increases; it ends
    where a sweep changes the factors by less than `SETTLED` of their size.
    $O(nmw)$ a sweep.

    >>> one = torch.ones(1, 1).double()
    >>> U, V = descend_factors(3 * one, one, one, 1.0)
    >>> round(float(U @ V.T), 6)                                     # 3 less the strength
    2.0
    """
    Y, U, V = check_factors(Y, U, V)
    positive_number(strength, "the strength of the decay")
    identity = strength * torch.eye(U.shape[1]).to(Y)
    for _ in range(sweeps if U.shape[1] else 0):
        before = torch.cat([U, V])
        U = torch.linalg.solve(V.T @ V + identity, V.T @ Y.T).T
        V = torch.linalg.solve(U.T @ U + identity, U.T @ Y).T
        after = torch.cat([U, V])
        if float((after - before).norm()) <= SETTLED * float(after.norm()):
            break
    return U, V


def check_factors(Y: Tensor, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three matrices, detached, in one precision, once they fit together."""
    Y = as_matrix(Y)
    if U.ndim != 2 or V.ndim != 2 or (*U.shape, *V.shape[:1]) != (
        Y.shape[0], V.shape[1], Y.shape[1]
    ):  # fmt: skip
        raise ShapeMismatch(
            f"a matrix [n, m] needs factors [n, w] and [m, w]: {list(Y.shape)} was given with "
            f"{list(U.shape)} and {list(V.shape)}"
        )
    all_finite(U, "U")
    all_finite(V, "V")
    return Y, U.detach().to(Y), V.detach().to(Y)
