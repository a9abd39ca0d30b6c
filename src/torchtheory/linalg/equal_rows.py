"""Rows of a matrix that are equal up to rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.random import RandomSource, as_generator, gaussian

# Directions that rows are projected on, and how many with nearly the same first projection are
# compared with each.
_DIRECTIONS, _NEIGHBORS = 4, 8


def copied_rows(matrix: Tensor, within: float, *, generator: RandomSource = None) -> Tensor:
    r"""Which rows are copies of another one, `[n]` of bool; of equal rows all but one are.

    Row $b$ is a copy of $a$ if $\|a-b\|\le\text{within}\cdot\max(\|a\|,\|b\|)$. Projections onto a
    unit vector are no farther apart than the rows, so copies are next to each other in the order of
    one random projection: each row is compared with the eight that follow it.

    Args:
        matrix: `[n, p]`.
        within: share of the length of a row.

    Cost: four products of the matrix with a vector, and $O(n\log n)$.

    >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    >>> int(copied_rows(rows, 1e-6).sum())
    1
    """
    copied = torch.zeros(len(matrix), dtype=torch.bool, device=matrix.device)
    if len(matrix) < 2:
        return copied
    lengths = torch.linalg.vector_norm(matrix, dim=1)
    directions = gaussian(
        matrix.shape[1],
        _DIRECTIONS,
        generator=as_generator(generator),
        dtype=matrix.dtype,
        device=matrix.device,
    )
    places = matrix @ (directions / torch.linalg.vector_norm(directions, dim=0))
    order = places[:, 0].argsort()
    for step in range(1, min(_NEIGHBORS, len(order) - 1) + 1):
        one, two = order[:-step], order[step:]
        near = within * torch.maximum(lengths[one], lengths[two])
        # projections are no farther apart than the rows, up to rounding: most pairs end here
        apart = (places[one] - places[two]).abs().amax(dim=1)
        close = (apart <= 2 * near).nonzero().flatten()
        apart = torch.linalg.vector_norm(matrix[one[close]] - matrix[two[close]], dim=1)
        copied[two[close]] |= apart <= near[close]
    return copied
