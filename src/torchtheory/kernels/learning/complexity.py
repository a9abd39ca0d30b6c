r"""How hard a labeling is for a kernel, $y^\top H^{-1}y$, and how easy linear targets are.

$y^\top H^{-1}y$ is the squared norm of the smallest function of the kernel's space that
takes the values $y$. The measure $\sqrt{2\,y^\top H^{-1}y\,\operatorname{tr}H}/n$ is
the leading term of a Rademacher bound for that function. It is *not* a bound on the
classification error: it has no confidence term, and it shrinks with the size of the labels, which
the classification error does not see. Source: Foundations of Deep Learning, exercise 7.4,
Problem 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_points, as_symmetric, as_targets, as_vector
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.kernels.infinite.two_layer import relu_gram_limit


def squared_kernel_norm(gram: Tensor, y: Tensor) -> float:
    r"""$y^\top H^{-1}y=\min\{\|g\|_H^2: g(x_i)=y_i\}$ for a kernel matrix `gram[n, n]`.

    Infinite where no function of the space takes the values: $y$ has a part outside the
    range of a singular $H$ (eigenvalues below rounding count as 0). Costs $O(n^3)$.

    >>> squared_kernel_norm(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([2.0, 2.0]))
    5.0
    >>> squared_kernel_norm(torch.ones(2, 2), torch.tensor([1.0, -1.0]))
    inf
    """
    gram, y = as_symmetric(gram, "the kernel matrix"), as_vector(y, "y")
    if len(gram) != len(y):
        raise ShapeMismatch(f"a kernel matrix of {len(gram)} points has no {len(y)} labels")
    values, vectors = torch.linalg.eigh(gram)
    eps = torch.finfo(gram.dtype).eps
    rounding = 8 * len(gram) * eps * float(values.abs().max())
    if float(values[0]) < -rounding:
        raise InvalidInput(
            f"a kernel matrix has no negative eigenvalue, and one is {float(values[0]):.3g}"
        )
    parts = vectors.T @ y.to(gram)
    inside = values > rounding
    if float(parts[~inside].norm()) > 1e3 * len(gram) * eps * float(y.norm()):
        return math.inf
    return float((parts[inside].square() / values[inside]).sum())


def label_complexity(gram: Tensor, y: Tensor) -> float:
    r"""$\sqrt{2\,y^\top H^{-1}y\,\operatorname{tr}H}\,/\,n$, a complexity measure of labels.

    `gram` may be any kernel matrix on the training points: `relu_gram_limit`, or the
    empirical tangent kernel of a network. Labels that vary along the large eigenvectors are
    simple, random ones are not. It is homogeneous in $y$, so only values for labels of one
    size compare.

    >>> round(label_complexity(torch.eye(2), torch.tensor([1.0, -1.0])), 6)    # sqrt(2 * 2 * 2) / 2
    1.414214
    """
    return math.sqrt(2 * squared_kernel_norm(gram, y) * float(gram.diagonal().sum())) / len(y)


@dataclass(frozen=True, slots=True)
class LinearTargetComplexity:
    r"""Both sides for targets $y=X\beta$ on the unit sphere.

    Attributes:
        measure: $\sqrt{2\,y^\top(H^\infty)^{-1}y\,\operatorname{tr}H^\infty}/n$.
        printed_bound: $2\sqrt2\|\beta\|/\sqrt n$, from
            $\operatorname{tr}H^\infty\le n$.
        bound: $2\|\beta\|/\sqrt n$, from $\operatorname{tr}H^\infty=n/2$.
    """

    measure: float
    printed_bound: float
    bound: float


def linear_target_complexity(x: Tensor, beta: Tensor) -> LinearTargetComplexity:
    r"""The complexity of a linear target for the infinitely wide two-layer ReLU network.

    From $H^\infty\succeq\frac14XX^\top$ follows, with the pseudo-inverse,
    $y^\top(H^\infty)^{-1}y\le4\,y^\top(XX^\top)^+y\le4\|\beta\|^2$ for every
    $y=X\beta$, also where $n>d$ and $XX^\top$ is singular.

    Args:
        x: unit vectors, `[n, d]`.
        beta: `[d]`.

    >>> found = linear_target_complexity(torch.eye(2).double(), torch.tensor([3.0, 4.0]))
    >>> found.measure, round(found.bound, 12)         # sqrt(2 * 50 * 1) / 2, 2 * 5 / sqrt(2)
    (5.0, 7.071067811865)
    """
    x, beta = as_points(x), as_vector(beta, "beta")
    if beta.shape != x.shape[1:]:
        raise ShapeMismatch(f"x has {x.shape[1]} features and beta {len(beta)} entries")
    lengths = x.norm(dim=1)
    if float((lengths - 1).abs().max()) > 1e4 * torch.finfo(x.dtype).eps:
        raise InvalidInput(
            "the bound is for unit vectors, and the rows of x have lengths "
            f"{float(lengths.min()):g} to {float(lengths.max()):g}: normalize them first"
        )
    beta = beta.to(x)
    y = as_targets(x @ beta, x)
    size = float(beta.norm()) / math.sqrt(len(x))
    return LinearTargetComplexity(
        label_complexity(relu_gram_limit(x), y), 2 * math.sqrt(2) * size, 2 * size
    )
