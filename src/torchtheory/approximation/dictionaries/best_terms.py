r"""Best $M$-term approximation: which few coefficients of a system carry a function.

$$
\Sigma_M(f)=\inf_{|I|=M,\,(c_i)}\Bigl\|f-\sum_{i\in I}c_i\phi_i\Bigr\|
$$

For an orthonormal basis the infimum keeps the $M$ largest coefficients, and
$\Sigma_M^2$ is the sum of the squares of all others. For other systems the greedy choice
(orthogonal matching pursuit) gives an upper bound. Source: The Modern Mathematics of Deep Learning,
Definition 3.19.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import as_points, as_targets, first_entry, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, NonFinite, ShapeMismatch


def haar_transform(values: Tensor) -> Tensor:
    r"""Coefficients of an array with $2^J$ entries a side in the orthonormal Haar basis.

    Along each axis $(u,v)\mapsto((u+v)/\sqrt2,(u-v)/\sqrt2)$; the averages are split again.
    Where the entries are averages of a function over the cells of $[0,1]^d$, the result
    times $2^{-Jd/2}$ is that function's coefficients in $L_2$. The coarse corner holds
    the averages, as usual. Time and memory `O(entries)`.

    >>> haar_transform(torch.tensor([1.0, 1.0, 1.0, 1.0])).tolist()
    [2.0, 0.0, 0.0, 0.0]
    """
    out = _dyadic(values).clone()
    size, d = out.shape[0], out.ndim
    while size > 1:
        corner = out[(slice(size),) * d]
        for axis in range(d):
            even, odd = corner.unfold(axis, 2, 2).unbind(-1)
            corner = torch.cat([even + odd, even - odd], dim=axis) / math.sqrt(2)
        out[(slice(size),) * d] = corner
        size //= 2
    return out


def inverse_haar_transform(coefficients: Tensor) -> Tensor:
    """The array with these Haar coefficients; inverse of `haar_transform`.

    >>> inverse_haar_transform(haar_transform(torch.tensor([0.0, 4.0]).double())).round().tolist()
    [0.0, 4.0]
    """
    out = _dyadic(coefficients).clone()
    size, d = 2, out.ndim
    while size <= out.shape[0]:
        corner = out[(slice(size),) * d]
        for axis in range(d):
            mean, difference = corner.chunk(2, dim=axis)
            pairs = torch.stack([mean + difference, mean - difference], axis + 1)
            corner = pairs.flatten(axis, axis + 1) / math.sqrt(2)
        out[(slice(size),) * d] = corner
        size *= 2
    return out


def largest_terms(coefficients: Tensor, terms: int) -> Tensor:
    """The `terms` largest coefficients in absolute value, all others 0.

    >>> largest_terms(torch.tensor([1.0, -3.0, 2.0]), 2).tolist()
    [0.0, -3.0, 2.0]
    """
    if not 0 <= terms <= coefficients.numel():
        raise InvalidInput(f"terms must lie in 0..{coefficients.numel()}, not {terms}")
    flat = coefficients.flatten()
    kept = torch.zeros_like(flat)
    where = flat.abs().topk(terms).indices
    kept[where] = flat[where]
    return kept.reshape(coefficients.shape)


def best_terms_errors(coefficients: Tensor, counts: Sequence[int]) -> Tensor:
    r"""$\Sigma_M$ of an orthonormal expansion for every `M` in `counts`.

    >>> best_terms_errors(torch.tensor([3.0, 4.0, 12.0]), [0, 1, 2, 3]).tolist()
    [13.0, 5.0, 3.0, 0.0]
    """
    if not len(counts):
        raise EmptyData("there is no number of terms to look at")
    if not bool(torch.isfinite(coefficients.abs()).all()):
        found = first_entry(coefficients.abs(), "the value", ~torch.isfinite(coefficients.abs()))
        raise NonFinite(f"the coefficients contain NaN or infinity: {found}")
    if min(counts) < 0 or max(counts) > coefficients.numel():
        raise InvalidInput(f"terms must lie in 0..{coefficients.numel()}, not {list(counts)}")
    squares = coefficients.abs().flatten().square().sort().values
    # summed from the small end, so that nothing is lost to the large ones
    tails = torch.cat([squares.new_zeros(1), squares.cumsum(0)])
    return tails[[len(squares) - m for m in counts]].sqrt()


class GreedyTerms(NamedTuple):
    """Chosen columns, their coefficients, and the error after each choice."""

    chosen: Tensor
    coefficients: Tensor
    errors: Tensor


def greedy_terms(dictionary: Tensor, target: Tensor, terms: int) -> GreedyTerms:
    r"""Orthogonal matching pursuit: a small set of columns by greedy choice.

    Each step takes the column with the largest correlation $|\langle r,d_i\rangle|/\|d_i\|$
    with the residual and then fits all chosen columns by least squares. Errors are Euclidean
    norms; they bound $\Sigma_M$ of the sampled system from above. Time
    `O(terms (m N + m terms^2))`.

    Args:
        dictionary: `[m, N]`, elements as columns.
        target: `[m]`.
        terms: how many columns to choose.

    >>> greedy_terms(torch.eye(3).double(), torch.tensor([1.0, 3.0, 2.0]).double(), 2).chosen
    tensor([1, 2])
    """
    d = as_points(dictionary, "dictionary")
    y = as_targets(target, d, "target")
    whole_number(terms, "terms", least=1)
    if terms > min(d.shape):
        raise InvalidInput(f"at most {min(d.shape)} columns can be independent, not {terms}")
    norms = d.norm(dim=0).clamp_min(torch.finfo(d.dtype).tiny)
    chosen: list[int] = []
    errors = []
    residual, fitted = y, y.new_zeros(0)
    for _ in range(terms):
        correlation = (residual @ d).abs() / norms
        correlation[chosen] = -1.0
        chosen.append(int(correlation.argmax()))
        basis = d[:, chosen]
        fitted = torch.linalg.lstsq(basis, y.unsqueeze(1)).solution[:, 0]
        residual = y - basis @ fitted
        errors.append(residual.norm())
    return GreedyTerms(torch.tensor(chosen), fitted, torch.stack(errors))


def _dyadic(values: Tensor) -> Tensor:
    side = values.shape[0] if values.ndim else 0
    if side < 1 or side & (side - 1) or any(n != side for n in values.shape):
        raise ShapeMismatch(
            f"the Haar basis needs an array with the same power of 2 on every side, not "
            f"{list(values.shape)}"
        )
    if not torch.is_floating_point(values):
        raise InvalidInput(f"values must be real numbers, not {values.dtype}")
    return values
