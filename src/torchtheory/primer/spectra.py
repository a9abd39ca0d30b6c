r"""Eigenvalues with their multiplicities, the Loewner order, and what a decomposition says.

These are the dense statements of the prerequisites; extremal eigenvalues and singular values of
large maps are in `torchtheory.core`. Source: Foundations of Deep Learning, section 1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_square, as_symmetric
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def characteristic_polynomial(A: Tensor) -> Tensor:
    r"""Coefficients of $\det(\lambda I-A)$, highest power first, `[d + 1]`.

    By the recursion of Faddeev and LeVerrier, which takes traces of $d$ products and no
    eigenvalue: $O(d^4)$, and accurate only for small $d$. The source writes
    $\det(A-\lambda I)$, which is $(-1)^d$ times this.

    >>> characteristic_polynomial(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    tensor([ 1., -4.,  3.])
    """
    A = as_square(A)
    d = len(A)
    identity = torch.eye(d, dtype=A.dtype, device=A.device)
    coefficients = [A.new_ones(())]
    M = torch.zeros_like(A)
    for k in range(1, d + 1):
        M = A @ M + coefficients[-1] * identity
        coefficients.append(-(A @ M).trace() / k)
    return torch.stack(coefficients)


@dataclass(frozen=True, slots=True)
class Eigenvalue:
    r"""An eigenvalue with both of its multiplicities.

    Attributes:
        value: $\lambda$, complex.
        algebraic: its multiplicity as a root of the characteristic polynomial.
        geometric: the dimension of its eigenspace $\ker(A-\lambda I)$.
    """

    value: complex
    algebraic: int
    geometric: int


def eigenvalues(A: Tensor, *, tolerance: float = 1e-5) -> list[Eigenvalue]:
    r"""The distinct eigenvalues of a real square matrix with their multiplicities.

    Sorted by real part, largest first. Computed eigenvalues nearer than `tolerance` times
    $\|A\|_2$ count as one, which is represented by their mean: rounding splits a
    $k$-fold eigenvalue of a Jordan block by about $\varepsilon^{1/k}$. Singular
    values of $A-\lambda I$ below the same threshold count as 0.

    >>> for e in eigenvalues(torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 5.0]])):
    ...     print(round(e.value.real, 4), e.algebraic, e.geometric)
    5.0 1 1
    2.0 2 1
    """
    A = as_square(A).double()
    if not 0 < tolerance < 1:
        raise InvalidInput(f"the relative tolerance must lie between 0 and 1, not {tolerance}")
    cut = tolerance * max(float(torch.linalg.matrix_norm(A, 2)), torch.finfo(A.dtype).tiny)
    remaining = sorted(torch.linalg.eigvals(A).tolist(), key=lambda z: (-z.real, -z.imag))
    found = []
    while remaining:
        cluster = [remaining.pop(0)]
        for z in list(remaining):
            if min(abs(z - c) for c in cluster) <= cut:
                cluster.append(z)
                remaining.remove(z)
        value = sum(cluster) / len(cluster)
        shifted = A - value * torch.eye(len(A), dtype=torch.complex128, device=A.device)
        kernel = int((torch.linalg.svdvals(shifted) <= cut).sum())
        found.append(Eigenvalue(complex(value), len(cluster), kernel))
    return found


@dataclass(frozen=True, slots=True)
class Definiteness:
    r"""The smallest value of $u^\top Au$ over unit vectors, and where it is taken.

    Attributes:
        smallest: the smallest eigenvalue of the symmetric part.
        witness: `[d]`, the unit vector $u$ with that value.
        rounding: eigenvalues within this of 0 cannot be told from 0.
    """

    smallest: float
    witness: Tensor
    rounding: float

    @property
    def semidefinite(self) -> bool:
        """Whether the form is non-negative, up to rounding."""
        return self.smallest >= -self.rounding


def definiteness(A: Tensor) -> Definiteness:
    r"""Is $u^\top Au\ge0$ for all $u$? With the direction that says no.

    The form sees only the symmetric part $(A+A^\top)/2$, so its smallest eigenvalue is the
    answer. For a matrix that is not symmetric the eigenvalues of $A$ itself are not: they
    can be positive while the form is not.

    >>> found = definiteness(torch.tensor([[1.0, 4.0], [0.0, 1.0]]))   # both eigenvalues are 1
    >>> found.semidefinite, round(found.smallest, 4)
    (False, -1.0)
    """
    A = as_square(A)
    values, vectors = torch.linalg.eigh((A + A.T) / 2)
    rounding = 8 * len(A) * torch.finfo(A.dtype).eps * float(values.abs().max())
    return Definiteness(float(values[0]), vectors[:, 0], rounding)


@dataclass(frozen=True, slots=True)
class LoewnerComparison:
    r"""How two symmetric matrices compare, with the directions that prove it.

    Attributes:
        order: `>=`, `<=`, `==` or `incomparable`.
        smallest, largest: the extreme eigenvalues of $A-B$.
        below: unit vector with $u^\top(A-B)u$ = `smallest`; it refutes
            $A\succeq B$ where that is negative.
        above: unit vector with $u^\top(A-B)u$ = `largest`.
    """

    order: Literal[">=", "<=", "==", "incomparable"]
    smallest: float
    largest: float
    below: Tensor
    above: Tensor


def loewner_order(A: Tensor, B: Tensor) -> LoewnerComparison:
    r"""Compare symmetric matrices: $A\succeq B$ if $A-B$ is positive semidefinite.

    A partial order: most pairs are not comparable (Definition 5). Eigenvalues of $A-B$
    within rounding of 0 count as 0.

    >>> A = torch.diag(torch.tensor([1.0, 0.0]))
    >>> loewner_order(A, torch.eye(2) - A).order
    'incomparable'
    """
    A, B = as_symmetric(A, "the first matrix"), as_symmetric(B, "the second matrix")
    if A.shape != B.shape:
        raise ShapeMismatch(f"matrices of sizes {len(A)} and {len(B)} do not compare")
    values, vectors = torch.linalg.eigh(A - B)
    size = max(float(A.abs().max()), float(B.abs().max()))
    rounding = 8 * len(A) * torch.finfo(A.dtype).eps * size
    not_below, not_above = bool(values[0] >= -rounding), bool(values[-1] <= rounding)
    order: Literal[">=", "<=", "==", "incomparable"] = "incomparable"
    if not_below and not_above:
        order = "=="
    elif not_below:
        order = ">="
    elif not_above:
        order = "<="
    return LoewnerComparison(
        order, float(values[0]), float(values[-1]), vectors[:, 0], vectors[:, -1]
    )


@dataclass(frozen=True, slots=True)
class SingularDecomposition:
    r"""The full decomposition $A=UDV^\top$ with the four subspaces it gives.

    Attributes:
        left: $U$, `[m, m]` orthogonal.
        values: $\sigma_1\ge\dots\ge\sigma_{\min(m,n)}\ge0$.
        right: $V$, `[n, n]` orthogonal; columns are the right singular vectors.
        rank: how many singular values are not 0, up to rounding.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    rank: int

    @property
    def diagonal(self) -> Tensor:
        r"""$D$, `[m, n]`: the singular values, padded with zero rows or columns."""
        D = self.values.new_zeros(len(self.left), len(self.right))
        D.diagonal().copy_(self.values)
        return D

    @property
    def column_space(self) -> Tensor:
        """Orthonormal basis `[m, rank]`: only the first `rank` columns of `left`."""
        return self.left[:, : self.rank]

    @property
    def row_space(self) -> Tensor:
        """Orthonormal basis `[n, rank]`: only the first `rank` columns of `right`."""
        return self.right[:, : self.rank]

    @property
    def kernel(self) -> Tensor:
        """Orthonormal basis `[n, n - rank]` of the vectors that A sends to 0."""
        return self.right[:, self.rank :]

    def terms(self) -> Tensor:
        r"""The matrices $\sigma_iu_iv_i^\top$ of rank one, `[rank, m, n]`."""
        r = self.rank
        return torch.einsum("k,ik,jk->kij", self.values[:r], self.left[:, :r], self.right[:, :r])

    def partial_sum(self, k: int) -> Tensor:
        r"""$A_k=\sum_{i\le k}\sigma_iu_iv_i^\top$, `[m, n]`.

        Its error is $\sigma_{k+1}$ in the operator norm and
        $\sqrt{\sum_{i>k}\sigma_i^2}$ in the Frobenius norm.
        """
        if not 0 <= k <= len(self.values):
            raise InvalidInput(f"there are {len(self.values)} terms; k = {k} is none of them")
        return (self.left[:, :k] * self.values[:k]) @ self.right[:, :k].T


def singular_decomposition(A: Tensor) -> SingularDecomposition:
    r"""The full singular value decomposition of `A[m, n]` (Theorem 6).

    Singular values below $\max(m,n)\,\varepsilon\,\sigma_1$ count as 0. The decomposition is
    unique up to a common sign of $u_i,v_i$ and rotations within equal singular values.

    Cost: $O(mn\min(m,n)+m^3+n^3)$.

    >>> found = singular_decomposition(torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]))
    >>> found.rank, found.values.tolist(), found.column_space.abs().tolist()
    (1, [2.0, 0.0], [[1.0], [0.0], [0.0]])
    """
    A = as_matrix(A)
    left, values, right = torch.linalg.svd(A, full_matrices=True)
    cut = max(A.shape) * torch.finfo(A.dtype).eps * values[0]
    return SingularDecomposition(left, values, right.T, int((values > cut).sum()))
