"""Extremal eigenvalues of a symmetric operator, each with an error bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, UnknownName
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.linalg.krylov import (
    SymmetricSpace,
    combine_rows,
    default_subspace,
    find_extremal,
    subspace_within,
)
from torchtheory.linalg.operators import (
    LinearOperator,
    check_square,
    column_blocks,
    effective_tolerance,
    vectors_within,
)

Which = Literal["largest", "smallest", "magnitude", "both"]


@dataclass(frozen=True)
class EigenResult:
    r"""Approximate eigenpairs of a symmetric operator.

    Attributes:
        values: `[k]`.
        vectors: `[n, k]`, orthonormal columns.
        residuals: `[k]`, $\lVert Av - \lambda v\rVert$, computed from products with $A$.
            Some eigenvalue of $A$ lies within the residual of $\lambda$ (which one it is
            in the order of the spectrum, no residual can say).
        steps: Products with $A$.
        converged: Whether all residuals are below the tolerance times the largest $|\lambda|$
            seen.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    steps: int
    converged: bool


def top_eigenpairs(
    A: LinearOperator,
    k: int = 1,
    *,
    which: Which = "largest",
    tolerance: float = 1e-6,
    steps: int = 1000,
    subspace: int | None = None,
    memory: str | int | None = None,
    start: Tensor | None = None,
    generator: RandomSource = None,
) -> EigenResult:
    r"""Extremal eigenpairs $Av = \lambda v$ of a symmetric operator, by thick-restart Lanczos.

    For symmetric $A$ and a unit vector $v$, an eigenvalue of $A$ lies within
    $\lVert Av - \lambda v\rVert$ of $\lambda$, so the residuals that are returned are error bars
    (and pessimistic ones: the error is of the order of the residual squared over the gap).

    Multiple eigenvalues: a single Krylov space sees one vector of each eigenspace. For $k \ge 2$
    the result is therefore checked against a second search, orthogonal to what was found and from
    a fresh random vector, until nothing new appears. It could still miss an eigenvector to which
    the random vectors are nearly orthogonal; no method that sees only products can exclude that.
    For $k = 1$ there is no such check: the value is right, the vector is one of its eigenspace.

    Args:
        A: A symmetric operator on $\mathbb{R}^n$.
        k: How many pairs, at most $n$.
        which: `"largest"` (descending), `"smallest"` (ascending), `"magnitude"` (by
            $|\lambda|$, descending), or `"both"`: $\lceil k/2\rceil$ largest, then
            $\lfloor k/2\rfloor$ smallest, the whole in descending order.
        tolerance: Largest residual, relative to the largest $|\lambda|$ seen; at least 50 machine
            epsilons.
        steps: Largest number of products with $A$ (at least one subspace is built).
        subspace: Vectors kept in memory, more than $k$; by default at least $\max(2k + 10, 30)$,
            and up to 128 where that is at most 64 MB.
        memory: Bytes for vectors besides those of a product, such as `"500MB"`; that of the
            operator (`A.memory`) unless given. Where it is short, fewer vectors are kept and the
            search restarts more often; $k + 2$ and three more are held whatever it is.
        start: A vector near the one wanted, such as that of a similar operator. A little of a
            random direction is mixed in: what is orthogonal to the start would stay unseen.
        generator: Seed or generator of the start vectors.

    Cost: `steps` products, $O(n s)$ each for orthogonalization, $n(2s + 3)$ numbers of memory with
    $s$ the subspace; $n(s + 3)$ and $k$ more products where these do not fit.

    Example: the path matrix $\operatorname{tridiag}(-1, 2, -1)$ has the eigenvalues
    $2 - 2\cos\frac{j\pi}{n+1}$.

    >>> def laplacian(v):
    ...     padded = torch.nn.functional.pad(v, (1, 1))
    ...     return 2 * v - padded[2:] - padded[:-2]
    >>> A = LinearOperator((100, 100), laplacian, dtype=torch.float64)
    >>> found = top_eigenpairs(A, 3)
    >>> exact = 2 - 2 * torch.cos(torch.tensor([100, 99, 98]) * torch.pi / 101)
    >>> found.converged, bool((found.values - exact).abs().max() < 1e-6)
    (True, True)
    """
    n = check_square(A, "an eigenvalue method")
    whole_number(k, "the number of eigenpairs", least=1, most=n)
    whole_number(steps, "steps", least=1)
    tolerance = effective_tolerance(tolerance, A.dtype)
    if which not in ("largest", "smallest", "magnitude", "both"):
        raise UnknownName(
            "end of the spectrum", which, ["largest", "smallest", "magnitude", "both"]
        )
    ends = [(str(which), k)] if which != "both" else [("largest", k - k // 2), ("smallest", k // 2)]
    ends = [end for end in ends if end[1] > 0]
    if subspace is None:
        subspace = default_subspace(n, k)
    whole_number(subspace, "subspace", least=1)
    subspace, images = subspace_within(vectors_within(A, memory), k, max(subspace, k + 2))

    space = SymmetricSpace(A, subspace, as_generator(generator, A.device), images=images)
    if start is not None:
        if start.shape != (n,) or not bool(torch.isfinite(start).all()) or not bool(start.any()):
            raise InvalidInput(f"start must be a vector of {n} finite numbers that are not all 0")
        mixed = start.to(space.V) / start.norm().to(space.V) + 0.1 * space.V[0]
        space.V[0] = mixed / mixed.norm()
    wanted = find_extremal(space, ends, tolerance, max(1, steps if images else steps - k))
    vectors, products = space.ritz_pairs(wanted)
    values, residuals = _rayleigh_ritz(vectors, products, which)
    converged = bool((residuals <= tolerance * max(space.scale, float(values.abs().max()))).all())
    return EigenResult(
        values.to(vectors), vectors.T, residuals.to(vectors), space.products, converged
    )


def _rayleigh_ritz(V: Tensor, AV: Tensor, which: Which) -> tuple[Tensor, Tensor]:
    """The best approximate eigenpairs in the span of nearly orthonormal rows `V` `[k, n]`.

    `V` is replaced by the vectors, in the order that `which` asks for; returns values and
    residuals in float64. Sums over the length of the vectors are taken in float64, a block of
    columns at a time, so that neither rounding nor memory grows with it.
    """
    k, n = V.shape
    gram, H = (torch.zeros(k, k, dtype=torch.float64, device=V.device) for _ in range(2))
    blocks = [slice(b.start, b.stop) for b in column_blocks(4 * k, n, budget=2**22)]
    for part in blocks:
        v = V[:, part].double()
        gram += v @ v.T
        H += v @ AV[:, part].double().T
    inverse = torch.linalg.inv(torch.linalg.cholesky(gram))
    H = inverse @ H @ inverse.T
    values, S = torch.linalg.eigh((H + H.T) / 2)
    if which != "smallest":
        order = (values.abs() if which == "magnitude" else values).argsort(descending=True)
        values, S = values[order], S[:, order]
    for rows in (V, AV):
        combine_rows(rows, inverse.T @ S)
    squares = torch.zeros(k, dtype=torch.float64, device=V.device)
    for part in blocks:
        squares += (AV[:, part].double() - values[:, None] * V[:, part].double()).square().sum(1)
    return values, squares.sqrt()


@dataclass(frozen=True)
class ExtremalEigenvalues:
    """The two ends of the spectrum.

    Attributes:
        smallest: The smallest eigenvalue.
        largest: The largest eigenvalue.
        residual: The larger of the two residuals: an error bar for both.
        steps: Products with the operator.
        converged: Whether the residual met the tolerance.
    """

    smallest: float
    largest: float
    residual: float
    steps: int
    converged: bool


def extremal_eigenvalues(
    A: LinearOperator,
    *,
    tolerance: float = 1e-6,
    steps: int = 1000,
    generator: RandomSource = None,
) -> ExtremalEigenvalues:
    r"""$\lambda_{\min}$ and $\lambda_{\max}$ of a symmetric operator, from one Krylov space.

    Arguments and cost are those of `top_eigenpairs` with $k = 2$ and `which="both"`.

    >>> A = LinearOperator.from_matrix(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> ends = extremal_eigenvalues(A)
    >>> round(ends.smallest, 5), round(ends.largest, 5)
    (1.0, 3.0)
    """
    found = top_eigenpairs(
        A,
        min(2, A.shape[0]),
        which="both",
        tolerance=tolerance,
        steps=steps,
        generator=generator,
    )
    largest, smallest = float(found.values[0]), float(found.values[-1])
    residual = float(found.residuals.max())
    return ExtremalEigenvalues(smallest, largest, residual, found.steps, found.converged)
