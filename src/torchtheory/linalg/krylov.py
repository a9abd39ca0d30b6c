r"""Krylov subspaces: the Lanczos process, and thick restarts around it.

Everything a matrix-free method learns about a symmetric $A$ from $k$ products with one vector is
in the Krylov space $\mathcal{K}_k(A, q) = \operatorname{span}\{q, Aq, \dots, A^{k-1}q\}$.
In an orthonormal basis $Q$ of it $A$ is tridiagonal. `SymmetricSpace` and
`RectangularSpace` (the Golub-Kahan process, for any $A$) let such a space grow, shrink to its
best vectors and grow again; `find_extremal` drives them until the wanted values have converged.

All orthogonalization is classical Gram-Schmidt done twice, which keeps $Q^\top Q = I$ to a few
machine epsilons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import gaussian
from torchtheory.linalg.operators import (
    LinearOperator,
    apply,
    check_finite,
    check_square,
    column_blocks,
)


def three_term_recurrence(A: LinearOperator, starts: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""Lanczos from `p` start vectors `[n, p]` that remembers the last two of each only.

    Orthogonality to earlier vectors is lost once an eigenvalue has been found, and copies of it
    appear; the copies share its weight, so that the quadrature rule of the process stays accurate
    (Greenbaum, 1989; Chen, Trogdon and Ubaru, 2021), while eigenvectors cannot be had from it.

    Returns alphas `[p, k]`, the diagonals of the tridiagonal matrices, and betas `[p, k]` beside
    them, 0 where a space is exhausted. Memory: $4np$ numbers besides what a product takes.
    """
    n, p = starts.shape
    alphas, betas = starts.new_zeros(p, k), starts.new_zeros(p, k)
    q = starts.T.clone(memory_format=torch.contiguous_format)
    del starts  # so that a caller who does not keep them frees them here
    q.div_(q.norm(dim=1, keepdim=True))
    last, scale = torch.zeros_like(q), alphas.new_zeros(p)
    for j in range(k):
        w = apply(A, q.T).T.clone()
        if j > 0:
            back = torch.linalg.vecdot(last, w)
            scale = torch.maximum(scale, back.abs())
            _check_symmetric(back, betas[:, j - 1], scale)
            w.addcmul_(betas[:, j - 1, None], last, value=-1)
        alpha = torch.linalg.vecdot(q, w)
        w.addcmul_(alpha[:, None], q, value=-1)
        w.addcmul_(torch.linalg.vecdot(q, w)[:, None], q, value=-1)  # what rounding left of it
        beta = w.norm(dim=1)
        check_finite(alpha + beta, "a product with the operator")
        scale = torch.maximum(scale, torch.maximum(alpha.abs(), beta))
        alive = (beta > breakdown_level(A) * scale) & (j + 1 < n)
        alphas[:, j] = alpha
        betas[:, j] = torch.where(alive, beta, 0)
        if not bool(alive.any()):
            break
        last, q = q, w.div_(beta[:, None])
        q[~alive] = 0
    return alphas, betas


def tridiagonal_matrix(alphas: Tensor, betas: Tensor) -> Tensor:
    """The symmetric `[..., j, j]` matrix with diagonal `alphas` and off-diagonal `betas[:-1]`."""
    off = betas[..., :-1]
    return alphas.diag_embed() + off.diag_embed(1) + off.diag_embed(-1)


# -- subspaces that grow and shrink ---------------------------------------------------------------


class KrylovSpace(Protocol):
    """What `find_extremal` needs to know about a subspace."""

    size: int
    capacity: int
    complete: bool
    products: int
    scale: float

    def expand(self) -> None:
        """Add one vector."""

    def values(self) -> tuple[Tensor, Tensor]:
        """The Ritz (or singular) values of the subspace, and their residuals."""

    def compress(self, keep: Tensor, *, fresh: bool) -> None:
        """Shrink to the chosen Ritz vectors, then go on from the residual or a fresh vector."""


class SymmetricSpace:
    r"""A subspace $V$ with $AV = VH + \beta v_+ e_m^\top$, $H = V^\top A V$, for symmetric $A$.

    The Ritz pair $(\theta, Vs)$ with $Hs = \theta s$ has the residual
    $\lVert A V s - \theta V s\rVert = \beta |s_m|$. Thick restart (Wu and Simon, 2000) keeps the
    best Ritz vectors and goes on from $v_+$; as each product is projected on the whole basis, the
    arrow-shaped $H$ after a restart needs no case of its own.

    Args:
        A: The operator, on $\mathbb{R}^n$.
        capacity: The most vectors of the space.
        generator: Of the directions it starts from.
        images: Whether the products $AV$ are kept as well, which doubles the memory, so that the
            residuals of its vectors cost no further product.

    Memory: `capacity + 3` vectors, and `capacity` more with the images.
    """

    def __init__(
        self,
        A: LinearOperator,
        capacity: int,
        generator: torch.Generator,
        *,
        images: bool = True,
    ) -> None:
        self.A, self.generator = A, generator
        self.dimension = check_square(A, "an eigenvalue method")
        self.capacity = min(capacity, self.dimension)
        self.size = self.products = 0
        self.scale = self.beta = 0.0
        self.complete = False
        self.V = torch.zeros(self.capacity + 1, self.dimension, dtype=A.dtype, device=A.device)
        # zeros take memory only where they are written to
        self.AV = (
            torch.zeros(self.capacity, self.dimension, dtype=A.dtype, device=A.device)
            if images
            else None
        )
        self.H = torch.zeros(self.capacity, self.capacity, dtype=torch.float64)
        # What symmetry predicts for the next column of H, or None where nothing is predicted.
        self.predicted: Tensor | None = None
        # How far a kept vector is from an eigenvector: what the prediction leaves out after it.
        self.residual = 0.0
        self.V[0] = fresh_direction(self.V[:0], generator)

    def expand(self) -> None:
        j = self.size
        image = apply(self.A, self.V[j])
        if self.AV is not None:
            self.AV[j] = image
        coefficients, w = orthogonalize(image[None], self.V[None, : j + 1])
        del image
        h, beta = coefficients[0].cpu().double(), float(w.norm())
        check_finite(beta, "a product with the operator")
        self.H[: j + 1, j] = self.H[j, : j + 1] = h
        self.scale = max(self.scale, float(h.abs().max()), beta)
        if self.predicted is not None:
            _check_symmetric(
                h[:j], self.predicted, torch.tensor(self.scale), self.A.dtype, self.residual
            )
        self.size, self.products = j + 1, self.products + 1
        self.complete = self.size == self.dimension
        if self.complete:
            self.beta = 0.0
            return
        if beta > breakdown_level(self.A) * self.scale:
            self.beta, self.V[j + 1] = beta, w[0] / beta
        else:
            self.beta, self.V[j + 1] = 0.0, fresh_direction(self.V[: j + 1], self.generator)
        self.predicted = torch.zeros(j + 1, dtype=torch.float64)
        self.predicted[j] = self.beta

    def values(self) -> tuple[Tensor, Tensor]:
        values, self._S = torch.linalg.eigh(self.H[: self.size, : self.size])
        self._values = values
        self.scale = max(self.scale, float(values.abs().max()))
        return values, self.beta * self._S[-1].abs()

    def compress(self, keep: Tensor, *, fresh: bool) -> None:
        p, S = len(keep), self._S[:, keep]
        combine_rows(self.V, S)
        if self.AV is not None:
            combine_rows(self.AV, S)
        self.V[p] = fresh_direction(self.V[:p], self.generator) if fresh else self.V[self.size]
        self.H.zero_()
        self.H[:p, :p] = torch.diag(self._values[keep])
        self.predicted = None if fresh else self.beta * S[-1]
        if fresh:
            self.residual += float(self.beta * S[-1].norm())
        self.size = p

    def ritz_pairs(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The Ritz vectors `[k, n]` of the last `values()`, and their images under $A$.

        It uses the space up: what it held is freed before products are made, one for each vector
        if the images were not kept.
        """
        S = self._S[:, keep]
        combine_rows(self.V, S)
        vectors = self.V[: len(keep)].clone()
        self.V = self.V.new_empty(0, self.dimension)
        if self.AV is not None:
            combine_rows(self.AV, S)
            images = self.AV[: len(keep)].clone()
            self.AV = None
            return vectors, images
        images = torch.empty_like(vectors)
        for vector, image in zip(vectors, images, strict=True):
            image.copy_(apply(self.A, vector))
            self.products += 1
        check_finite(images.norm(), "a product with the operator")
        return vectors, images


class RectangularSpace:
    r"""Subspaces with $AV = UB$ and $A^\top U = VB^\top + \beta v_+ e_m^\top$ (Golub and Kahan).

    A singular triple $Bs = \sigma r$ of the small matrix gives $(\sigma, Ur, Vs)$ with
    $AVs = \sigma Ur$ and $\lVert A^\top Ur - \sigma Vs\rVert = \beta |r_m|$. Thick restart as in
    Baglama and Reichel (2005). $A$ must not have fewer rows than columns.
    """

    def __init__(self, A: LinearOperator, capacity: int, generator: torch.Generator) -> None:
        m, n = A.shape
        self.A, self.At, self.generator = A, A.adjoint, generator
        self.dimension = n
        self.capacity = min(capacity, n)
        self.size = self.products = 0
        self.scale = self.beta = 0.0
        self.complete = False
        self.V = torch.zeros(self.capacity + 1, n, dtype=A.dtype, device=A.device)
        self.U = torch.zeros(self.capacity, m, dtype=A.dtype, device=A.device)
        self.B = torch.zeros(self.capacity, self.capacity, dtype=torch.float64)
        self.V[0] = fresh_direction(self.V[:0], generator)

    def expand(self) -> None:
        j, level = self.size, breakdown_level(self.A)
        coefficients, u = orthogonalize(apply(self.A, self.V[j])[None], self.U[None, :j])
        alpha = float(u.norm())
        self.B[:j, j] = coefficients[0].cpu().double()
        check_finite(alpha, "a product with the operator")
        self.scale = max(self.scale, float(self.B[:, j].abs().max()), alpha)
        if alpha > level * self.scale:
            self.B[j, j], self.U[j] = alpha, u[0] / alpha
        else:
            self.B[j, j], self.U[j] = 0.0, fresh_direction(self.U[:j], self.generator)

        coefficients, w = orthogonalize(apply(self.At, self.U[j])[None], self.V[None, : j + 1])
        beta = float(w.norm())
        check_finite(beta, "a product with the adjoint")
        self.scale = max(self.scale, beta)
        self._check_adjoint(coefficients[0].cpu().double() - self.B[j, : j + 1])
        self.size, self.products = j + 1, self.products + 1
        self.complete = self.size == self.dimension
        if self.complete:
            self.beta = 0.0
        elif beta > level * self.scale:
            self.beta, self.V[j + 1] = beta, w[0] / beta
        else:
            self.beta, self.V[j + 1] = 0.0, fresh_direction(self.V[: j + 1], self.generator)

    def _check_adjoint(self, mismatch: Tensor) -> None:
        if float(mismatch.abs().max()) > agreement_level(self.A.dtype) * self.scale:
            raise InvalidInput(
                "<u, Av> and <A'u, v> differ: the map is not linear, or the given rmatvec is not "
                "its adjoint"
            )

    def values(self) -> tuple[Tensor, Tensor]:
        left, values, right = torch.linalg.svd(self.B[: self.size, : self.size])
        self._left, self._values, self._right = left, values, right.T
        self.scale = max(self.scale, float(values[0]))
        return values, self.beta * left[-1].abs()

    def compress(self, keep: Tensor, *, fresh: bool) -> None:
        p = len(keep)
        combine_rows(self.V, self._right[:, keep])
        combine_rows(self.U, self._left[:, keep])
        self.V[p] = fresh_direction(self.V[:p], self.generator) if fresh else self.V[self.size]
        self.B.zero_()
        self.B[:p, :p] = torch.diag(self._values[keep])
        self.size = p

    def right_vectors(self, keep: Tensor) -> Tensor:
        """The right singular vectors `[n, k]` of the last `values()`."""
        vectors: Tensor = self.V[: self.size].T @ self._right[:, keep].to(self.V)
        return vectors


#: Products that a search from a fresh vector makes at least before it says that nothing is left:
#: from a random start an eigenvalue that stands out shows only after a few.
_SECOND_SEARCH = 8


def find_extremal(
    space: KrylovSpace, ends: Sequence[tuple[str, int]], tolerance: float, max_products: int
) -> Tensor:
    r"""Grow and restart a space until its extremal values have converged; their indices in it.

    A Krylov space of one vector contains one direction of each eigenspace, so it cannot see that
    an eigenvalue is multiple. When several values are wanted and have converged, the space is
    therefore cut down to them and goes on from a fresh random vector, and the result stands only
    if the best of what that finds in a few products lies, with its residual, below the values at
    hand.

    Args:
        space: The subspace; it is changed.
        ends: Pairs (`"largest"`, `"smallest"` or `"magnitude"`, how many).
        tolerance: Residuals are converged below `tolerance` times the scale of the operator, the
            largest value (or entry of the projected operator) seen.
        max_products: Stop after this many products in any case.
    """
    total = sum(count for _, count in ends)
    check_multiplicity = any(count > 1 for _, count in ends)
    accepted: Tensor | None = None
    next_look, second = total + 1, 0
    while True:
        space.expand()
        full = space.size == space.capacity
        exhausted = space.products >= max_products
        if space.size < total or not (full or exhausted or space.products >= next_look):
            continue
        next_look = space.products + max(4, space.size // 8)
        values, residuals = space.values()
        orders = [_KEYS[name](values).argsort(descending=True) for name, _ in ends]
        if len(ends) == 2:  # largest and smallest: of equal values each takes its own
            orders[1] = orders[0].flip(0)
        wanted = torch.cat([o[:c] for o, (_, c) in zip(orders, ends, strict=True)])
        level = tolerance * space.scale
        if space.complete or exhausted:
            return wanted
        if bool((residuals[wanted] <= level).all()):
            if not check_multiplicity:
                return wanted
            if accepted is None:
                accepted, second = values[wanted], space.products
                space.compress(wanted, fresh=True)
                continue
            if space.products - second >= _SECOND_SEARCH and all(
                _beyond(_KEYS[name](values)[order], residuals[order], count, level)
                for order, (name, count) in zip(orders, ends, strict=True)
            ):
                if float((values[wanted] - accepted).abs().max()) <= level:
                    return wanted
                accepted, second = values[wanted], space.products
                space.compress(wanted, fresh=True)
                continue
        if full:
            spare = (space.capacity - total) // (2 * len(ends))
            kept = [o[: c + spare] for o, (_, c) in zip(orders, ends, strict=True)]
            space.compress(torch.cat(kept), fresh=False)


def _beyond(keys: Tensor, residuals: Tensor, count: int, level: float) -> bool:
    """Whether the best value that is not wanted stays, with its residual, below the wanted."""
    return count < len(keys) and bool(keys[count] + residuals[count] <= keys[count - 1] + level)


_KEYS: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": torch.clone,
    "smallest": torch.neg,
    "magnitude": torch.abs,
}


# -- small tools ----------------------------------------------------------------------------------


def orthogonalize(w: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    r"""Classical Gram-Schmidt, twice: coefficients $Q^\top w$ and the rest $w - QQ^\top w$.

    Args:
        w: `[p, n]`, one vector for each basis.
        basis: `[p, j, n]`, orthonormal (or zero) rows.
    """
    total, w = w.new_zeros(basis.shape[:2]), w.clone()
    for _ in range(2):
        coefficients = (basis @ w[:, :, None])[:, :, 0]
        w[:, None].baddbmm_(coefficients[:, None, :], basis, alpha=-1)  # in place: w may be long
        total = total + coefficients
    return total, w


def combine_rows(rows: Tensor, weights: Tensor) -> None:
    r"""Replace the first `k` rows $r_i$ of `[j, n]` by $\sum_i w_{ij} r_i$, weights `[m, k]`.

    In place, a block of columns at a time, so that it takes next to no memory.

    >>> rows = torch.eye(3)
    >>> combine_rows(rows, torch.tensor([[1.0], [2.0]]))
    >>> rows[0]
    tensor([1., 2., 0.])
    """
    m, k = weights.shape
    turned = weights.T.to(rows)
    for block in column_blocks(len(rows), rows.shape[1], budget=2**20):
        part = rows[:, block.start : block.stop]
        part[:k] = turned @ part[:m]


def fresh_direction(basis: Tensor, generator: torch.Generator) -> Tensor:
    """A random unit vector `[n]` orthogonal to the orthonormal rows of `basis` `[j, n]`."""
    n = basis.shape[1]
    w = gaussian(n, generator=generator, dtype=basis.dtype, device=basis.device)
    _, rest = orthogonalize(w[None] / w.norm(), basis[None])
    _, rest = orthogonalize(rest / rest.norm(), basis[None])
    direction: Tensor = rest[0] / rest.norm()
    return direction


def default_subspace(n: int, k: int) -> int:
    """How many vectors of length `n` to keep for `k` wanted: many while they cost little memory."""
    return max(2 * k + 10, 30, min(128, 2**23 // n))


def subspace_within(vectors: int, k: int, wanted: int) -> tuple[int, bool]:
    """The size of a `SymmetricSpace` for `k` pairs in so many vectors, and whether with images.

    At most `wanted`, and at least `k + 2` whatever there is room for: with fewer no restart gains
    anything.

    >>> subspace_within(100, 1, 30), subspace_within(50, 1, 30), subspace_within(9, 1, 30)
    ((30, True), (30, False), (6, False))
    """
    besides = max(3, k + 1)  # a product and the rest of it, or the pairs that are returned
    if 2 * wanted + besides <= vectors:
        return wanted, True
    return max(k + 2, min(wanted, vectors - besides)), False


def breakdown_level(A: LinearOperator) -> float:
    """Below this fraction of the operator's scale a new direction is rounding error."""
    return 10 * torch.finfo(A.dtype).eps


def agreement_level(dtype: torch.dtype) -> float:
    """How far two numbers that should be equal may differ, relative to the operator's scale."""
    return math.cbrt(torch.finfo(dtype).eps)


def _check_symmetric(
    found: Tensor,
    predicted: Tensor,
    scale: Tensor,
    dtype: torch.dtype | None = None,
    slack: float = 0.0,
) -> None:
    """Compare $v_i^\\top A v_j$ with $v_j^\\top A v_i$, which the recurrence already knows."""
    level = agreement_level(dtype or found.dtype)
    if bool(((found - predicted).abs() > level * scale + slack).any()):
        raise InvalidInput(
            "the operator is not symmetric: <u, Av> and <Au, v> differ; "
            "use A.T @ A, (A + A.T) / 2, or the singular values"
        )
