"""Traces and Frobenius norms from products with random vectors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, UnknownName
from torchtheory.core.estimate import Estimate
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.linalg.operators import (
    LinearOperator,
    apply,
    check_finite,
    check_square,
    column_blocks,
    vectors_within,
)

#: Blocks as wide as the sketch that `"hutch++"` holds at a time.
_SKETCHES = 4


def trace(
    A: LinearOperator,
    *,
    samples: int = 99,
    method: Literal["hutch++", "hutchinson"] = "hutch++",
    memory: str | int | None = None,
    generator: RandomSource = None,
) -> Estimate:
    r"""$\operatorname{tr} A$ of a square operator from `samples` products with it; unbiased.

    `"hutchinson"`: $\operatorname{tr} A = \mathbb{E}\, z^\top A z$ for random signs $z$, with
    variance $2(\lVert A\rVert_F^2 - \sum_i A_{ii}^2)$ per sample for symmetric $A$.

    `"hutch++"` (Meyer, Musco, Musco and Woodruff, 2021): with $Q$ an orthonormal basis of $AS$ for
    a random $S$,
    $$\operatorname{tr} A = \operatorname{tr} Q^\top A Q
      + \mathbb{E}\, z^\top (I - QQ^\top) A (I - QQ^\top) z,$$
    where the large eigenvalues are in the first term, exactly. A third of the samples each goes
    into $S$, $Q$ and $z$. For positive semidefinite $A$ the relative error falls like $1/s$
    instead of $1/\sqrt s$. If `samples` $\ge n$, the diagonal is summed and the result is exact.

    Args:
        A: A square operator, symmetric or not.
        samples: The number of products with $A$; at least 6 for `"hutch++"`, or $n$ if fewer.
        method: `"hutch++"` or `"hutchinson"`.
        memory: Bytes for vectors besides those of a product; that of the operator (`A.memory`)
            unless given. Where it is short, fewer samples go into $S$ and $Q$ and more into $z$.
        generator: Seed or generator of the random vectors.

    Returns:
        The estimate; its standard error is that of the random part, its `samples` the products
        that were used.

    Cost: `samples` products; `"hutch++"` adds $O(n s^2)$ and holds $O(ns)$ in memory, at most what
    is allowed.

    Example: a matrix of rank one, which `"hutch++"` captures, so that nothing is left to chance.

    >>> v = torch.arange(100.0).double()
    >>> A = LinearOperator((100, 100), lambda x: v * (v @ x), dtype=torch.float64)
    >>> estimate = trace(A, samples=9)
    >>> round(estimate.value, 6), round(estimate.standard_error, 6)
    (328350.0, 0.0)
    """
    n = check_square(A, "a trace")
    whole_number(samples, "samples", least=1)
    if method not in ("hutch++", "hutchinson"):
        raise UnknownName("trace estimator", method, ["hutch++", "hutchinson"])
    random = as_generator(generator, A.device)
    if method == "hutchinson":
        return Estimate.of(_quadratic_forms(A, samples, random, None))
    if samples >= n:
        return Estimate(_exact_sum(A, "diagonal"), 0.0, n)
    if samples < 6:
        raise InvalidInput(
            f'"hutch++" splits its samples three ways and needs at least 6, not {samples}; '
            f'use method="hutchinson"'
        )
    third = min(samples // 3, vectors_within(A, memory) // _SKETCHES)
    if third == 0:
        return Estimate.of(_quadratic_forms(A, samples, random, None))
    image = apply(A, rademacher(n, third, generator=random, dtype=A.dtype, device=A.device))
    check_finite(image.norm(), "a product with the operator")
    Q, _ = torch.linalg.qr(image)
    del image
    captured = float((Q * apply(A, Q)).sum())
    rest = Estimate.of(_quadratic_forms(A, samples - 2 * third, random, Q))
    return Estimate(captured + rest.value, rest.standard_error, samples)


def _quadratic_forms(
    A: LinearOperator, samples: int, generator: torch.Generator, Q: Tensor | None
) -> Tensor:
    """Samples of `z' A z`, for `z` random signs, projected off the columns of `Q` if given."""
    n = A.shape[0]
    forms = []
    for block in column_blocks(2 * n, samples):
        # a vector is one piece of memory, as the action returns it
        z = rademacher(len(block), n, generator=generator, dtype=A.dtype, device=A.device).T
        if Q is not None:
            z = z - Q @ (Q.T @ z)
            z = z - Q @ (Q.T @ z)
        forms.append(torch.linalg.vecdot(z.T, apply(A, z).T))
    result = torch.cat(forms)
    check_finite(result, "a product with the operator")
    return result


def _exact_sum(A: LinearOperator, what: Literal["diagonal", "squares"]) -> float:
    """The sum of the diagonal, or of the squared entries, from all columns of `A`."""
    m, n = A.shape
    total = 0.0
    for columns in column_blocks(m + n, n):
        index = torch.arange(columns.start, columns.stop, device=A.device)
        unit = torch.zeros(n, len(columns), dtype=A.dtype, device=A.device)
        unit[index, index - columns.start] = 1
        image = apply(A, unit)
        if what == "diagonal":
            total += float(image[index, index - columns.start].sum())
        else:
            total += float(image.square().sum())
    check_finite(total, "a product with the operator")
    return total
