r"""Linear combinations, span and column space.

Source: Foundations of Deep Learning, section 1.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector
from torchtheory.core.errors import ShapeMismatch


@dataclass(frozen=True, slots=True)
class Span:
    r"""All linear combinations $\sum_i c_i v_i$ of the columns of a matrix.

    Attributes:
        vectors: `[d, k]`, the columns $v_i$.
        basis: `[d, r]`, orthonormal columns with the same span.

    >>> plane = span(torch.tensor([[-3.0, 2.0], [2.0, 3.0]]))
    >>> plane.rank, plane.coefficients(torch.tensor([0.5, 4.0]))
    (2, tensor([0.5000, 1.0000]))
    >>> line = span(torch.tensor([[1.0, 2.0], [2.0, 4.0]]).double())
    >>> line.rank, line.contains(torch.tensor([2.0, 4.0]).double())
    (1, True)
    >>> line.contains(torch.tensor([2.0, 3.0]).double())
    False
    """

    vectors: Tensor
    basis: Tensor

    @property
    def rank(self) -> int:
        """The dimension of the span."""
        return self.basis.shape[1]

    def project(self, b: Tensor) -> Tensor:
        """The point of the span that is nearest to `b[d]`."""
        return self.basis @ (self.basis.T @ self._checked(b))

    def distance(self, b: Tensor) -> float:
        """Euclidean distance of `b[d]` from the span."""
        return float((self._checked(b) - self.project(b)).norm())

    def contains(self, b: Tensor) -> bool:
        """Whether `b[d]` is in the span, up to the rounding of the factorization."""
        b = self._checked(b)
        rounding = 32 * max(self.vectors.shape) * torch.finfo(b.dtype).eps
        return self.distance(b) <= rounding * float(b.norm())

    def coefficients(self, b: Tensor) -> Tensor:
        """Of all `c[k]` that come closest to `b`, the shortest; `vectors @ c` projects."""
        inverse: Tensor = torch.linalg.pinv(self.vectors)
        return inverse @ self._checked(b)

    def _checked(self, b: Tensor) -> Tensor:
        b = as_vector(b, "b")
        if len(b) != len(self.vectors):
            raise ShapeMismatch(f"the span is in dimension {len(self.vectors)}, b has {len(b)}")
        return b.to(self.vectors)


def span(vectors: Tensor) -> Span:
    r"""The span of the columns of `vectors[d, k]`, the column space of the matrix.

    Through the singular value decomposition, $O(dk\min(d,k))$; singular values below
    $\max(d,k)\,\varepsilon\,\sigma_1$ count as 0.

    >>> span(torch.zeros(3, 2)).rank
    0
    """
    vectors = as_matrix(vectors, "the matrix of vectors")
    left, sigma, _ = torch.linalg.svd(vectors, full_matrices=False)
    cut = max(vectors.shape) * torch.finfo(vectors.dtype).eps * sigma[0]
    return Span(vectors, left[:, sigma > cut])
