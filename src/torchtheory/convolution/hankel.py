r"""Hankel matrices of periodic signals: products with them are convolutions.

For $x\in\mathbb R^{\mathbb Z/d}$ and $n\le d$,

$$
\mathbb H_n(x)=(x_{i+j})_{i\in\mathbb Z/d,\ 0\le j<n}\in\mathbb R^{d\times n},\qquad
(\mathbb H_n(x)v)_i=\sum_jx_{i+j}v_j=\langle x,e^{(i)}*\bar v\rangle=(\bar v\star x)_i,
$$

with $\bar v$ the zero-padded kernel. Every entry of $x$ stands in $n$ places, so
$\mathbb H_n^*\mathbb H_n=n\,I$: $\frac1n\mathbb H_n^*$ gives the signal back, and
$\|\mathbb H_n(x)\|_F^2=n\|x\|^2$. The $n$ places need not divide the circle. Source: Mathematical
Aspects of Deep Learning, section 1.6.3, Equations (1.55) and (1.56).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.convolution.discrete import cross_correlate
from torchtheory.core.checks import all_finite, described, number_between, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch


def hankel(x: Tensor, n: int) -> Tensor:
    r"""$\mathbb H_n(x)$, `[..., d, n]`, of signals `x[..., d]` on a circle.

    A view of a copy that is $n-1$ entries longer than the signal: memory $O(d)$, whatever $n$.

    >>> hankel(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0], [3.0, 1.0]]
    """
    x = _signal(x)
    whole_number(n, "n", least=1, most=x.shape[-1])
    return torch.cat([x, x[..., : n - 1]], -1).unfold(-1, n, 1)


def hankel_adjoint(matrix: Tensor) -> Tensor:
    r"""$\mathbb H_n^*(M)_k=\sum_{i+j=k}M_{ij}$, `[..., d]`, of matrices `[..., d, n]`.

    The adjoint of `hankel`: $\langle\mathbb H_n(x),M\rangle_F=\langle x,\mathbb H_n^*(M)\rangle$.

    >>> hankel_adjoint(hankel(torch.tensor([1.0, 2.0, 3.0]), 2)).tolist()
    [2.0, 4.0, 6.0]
    """
    if not isinstance(matrix, Tensor) or not matrix.is_floating_point() or matrix.ndim < 2:
        raise InvalidType(f"a matrix [..., d, n] of real numbers, not {described(matrix)}")
    d, n = matrix.shape[-2:]
    whole_number(n, "the number of columns", least=1, most=d)
    rows = torch.arange(d, device=matrix.device)
    place = (rows[:, None] + rows[:n]).remainder(d).reshape(-1)
    flat = matrix.reshape(*matrix.shape[:-2], d * n)
    return matrix.new_zeros(*matrix.shape[:-2], d).index_add(-1, place, flat)


def from_hankel(matrix: Tensor) -> Tensor:
    r"""The signal whose Hankel matrix is nearest to a matrix: $\frac1n\mathbb H_n^*(M)$.

    Averages over the places where an entry stands. $\mathbb H_n\frac1n\mathbb H_n^*$ is the
    orthogonal projection onto Hankel matrices, so
    $\|x-\frac1n\mathbb H_n^*(M)\|\le\|\mathbb H_n(x)-M\|_F/\sqrt n$.

    >>> x = torch.tensor([1.0, -2.0, 5.0, 0.5])
    >>> from_hankel(hankel(x, 3)).tolist()
    [1.0, -2.0, 5.0, 0.5]
    """
    return hankel_adjoint(matrix) / matrix.shape[-1]


def hankel_product(x: Tensor, v: Tensor) -> Tensor:
    r"""$\mathbb H_n(x)v$, `[..., d]`, for a kernel `v[n]`: a cross-correlation, no matrix is made.

    >>> hankel_product(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0])).tolist()
    [21.0, 32.0, 13.0]
    """
    x = _signal(x)
    if not isinstance(v, Tensor) or v.ndim != 1 or not 1 <= len(v) <= x.shape[-1]:
        raise ShapeMismatch(
            f"the kernel must be [n] with n from 1 to {x.shape[-1]}, not {described(v)}"
        )
    return cross_correlate(v, x, mode="circular")


def hankel_singular_values(x: Tensor, n: int) -> Tensor:
    r"""The singular values of $\mathbb H_n(x)$, `[..., n]`, largest first. Time $O(dn^2)$.

    >>> hankel_singular_values(torch.ones(4), 4).round().tolist()
    [4.0, 0.0, 0.0, 0.0]
    """
    made = hankel(x, n)
    if made.dtype not in (torch.float32, torch.float64):
        raise InvalidType(f"singular values are those of float32 or float64, not {described(x)}")
    values: Tensor = torch.linalg.svdvals(made)
    return values


def hankel_rank(x: Tensor, n: int, *, tolerance: float | None = None) -> int:
    r"""The rank of $\mathbb H_n(x)$: how many waves $x$ is made of.

    A sum of $k$ sinusoids with whole numbers of periods has rank at most $2k$ (one for each of
    $e^{\pm2\pi ift/d}$), whatever $d$ and $n$.

    Args:
        x: one signal `[d]`.
        n: columns.
        tolerance: singular values below this share of the largest count as 0;
            $d\,\varepsilon$ unless given, the rounding of the decomposition.

    >>> t = torch.arange(32, dtype=torch.float64) / 32
    >>> hankel_rank(torch.sin(2 * torch.pi * 3 * t) + torch.cos(2 * torch.pi * 5 * t), 9)
    4
    """
    if not isinstance(x, Tensor) or x.ndim != 1:
        raise ShapeMismatch(f"the rank is that of one signal [d], not of {described(x)}")
    values = hankel_singular_values(x, n)
    if tolerance is None:
        tolerance = len(x) * torch.finfo(x.dtype).eps
    number_between(tolerance, "tolerance", 0, 1, closed="left")
    if float(values[0]) == 0:
        return 0
    return int((values > tolerance * values[0]).sum())


def _signal(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 1:
        raise InvalidType(f"a signal is a tensor [..., d] of real numbers, not {described(x)}")
    if x.shape[-1] == 0:
        raise InvalidInput("a signal needs at least one entry")
    return all_finite(x, "x")
