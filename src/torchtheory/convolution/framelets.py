r"""Convolutional framelets: an encoder and a decoder that give back what they were given.

With $\tilde UU^\top=I_d$ and $V\tilde V^\top=I_n$, or whenever
$\mathbb H_n(x)=\tilde UU^\top\mathbb H_n(x)V\tilde V^\top$,

$$
C=U^\top\mathbb H_n(x)V,\quad C_{ij}=\langle x,u_i*v_j\rangle,\qquad
x=\frac1n\sum_{ij}C_{ij}\,\tilde u_i*\tilde v_j=\frac1n\mathbb H_n^*(\tilde UC\tilde V^\top).
$$

The $v_j$ are the filters of a convolutional layer, the $u_i$ its pooling. Bases are their own
duals; a frame has the canonical dual $\tilde U=(UU^\top)^{-1}U$. From the singular vectors of
$\mathbb H_n(x)$ itself come coefficients that are diagonal, and no sparser ones of this form exist
for a signal of that rank. Source: Mathematical Aspects of Deep Learning, section 1.6.3, Equations
(1.57) to (1.59).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy import fft
from torch import Tensor

from torchtheory.convolution.hankel import from_hankel, hankel
from torchtheory.core.checks import as_matrix, as_vector, described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator


@dataclass(frozen=True, slots=True)
class Framelet:
    r"""A global and a local family with their duals.

    Attributes:
        pooling: $U$, `[d, p]`, one global vector a column.
        filters: $V$, `[n, q]`, one local filter a column.
        dual_pooling: $\tilde U$, `[d, p]`.
        dual_filters: $\tilde V$, `[n, q]`.
    """

    pooling: Tensor
    filters: Tensor
    dual_pooling: Tensor
    dual_filters: Tensor

    def encode(self, x: Tensor) -> Tensor:
        r"""The coefficients $C=U^\top\mathbb H_n(x)V$, `[..., p, q]`, of signals `[..., d]`.

        Time $O(dnq+dpq)$ per signal.
        """
        if not isinstance(x, Tensor) or x.shape[-1:] != self.pooling.shape[:1]:
            raise ShapeMismatch(f"signals must be [..., {len(self.pooling)}], not {described(x)}")
        _refuse_other_kind(x, self.pooling, "signals")
        return self.pooling.T @ (hankel(x, len(self.filters)) @ self.filters)

    def decode(self, coefficients: Tensor) -> Tensor:
        r"""$\frac1n\sum_{ij}C_{ij}\,\tilde u_i*\tilde v_j$, `[..., d]`, of `[..., p, q]`."""
        wanted = (self.pooling.shape[1], self.filters.shape[1])
        if not isinstance(coefficients, Tensor) or coefficients.shape[-2:] != wanted:
            raise ShapeMismatch(
                f"coefficients must be [..., {wanted[0]}, {wanted[1]}], not "
                f"{described(coefficients)}"
            )
        _refuse_other_kind(coefficients, self.pooling, "coefficients")
        return from_hankel(self.dual_pooling @ coefficients @ self.dual_filters.T)


def framelet(pooling: Tensor, filters: Tensor) -> Framelet:
    r"""The framelet of two frames with their canonical duals; bases are frames.

    Args:
        pooling: $U$, `[d, p]` with columns that span $\mathbb R^d$, $p\ge d$.
        filters: $V$, `[n, q]` with columns that span $\mathbb R^n$, $q\ge n$, $n\le d$.

    >>> made = framelet(cosine_basis(8), haar_basis(4))
    >>> x = torch.arange(8, dtype=torch.float64)
    >>> bool(torch.allclose(made.decode(made.encode(x)), x))
    True
    """
    pooling, filters = as_matrix(pooling, "pooling"), as_matrix(filters, "filters")
    if len(filters) > len(pooling):
        raise ShapeMismatch(
            f"filters of length {len(filters)} do not fit on a circle of {len(pooling)}"
        )
    _refuse_other_kind(filters, pooling, "filters")
    return Framelet(
        pooling, filters, dual_frame(pooling, "pooling"), dual_frame(filters, "filters")
    )


def dual_frame(frame: Tensor, name: str = "the frame") -> Tensor:
    r"""The canonical dual $\tilde F=(FF^\top)^{-1}F$ of the columns of `frame[d, p]`.

    $\tilde FF^\top=I$, and of all such $\tilde F$ it has the least norm: it is the pseudo-inverse
    of $F^\top$. By a QR decomposition: the condition number is not squared.

    Raises:
        InvalidInput: if the columns do not span the space.

    >>> dual_frame(torch.tensor([[1.0, 1.0]], dtype=torch.float64)).round(decimals=6).tolist()
    [[0.5, 0.5]]
    """
    frame = as_matrix(frame, name)
    d, p = frame.shape
    values = torch.linalg.svdvals(frame) if p >= d else frame.new_zeros(1)
    if p < d or float(values[-1]) <= max(d, p) * torch.finfo(frame.dtype).eps * float(values[0]):
        raise InvalidInput(f"the {p} columns of {name} do not span the space of dimension {d}")
    # F^T = Q R, so (F F^T)^{-1} F = R^{-1} Q^T
    q, r = torch.linalg.qr(frame.T)
    dual: Tensor = torch.linalg.solve_triangular(r, q.T, upper=True)
    return dual


def svd_framelet(x: Tensor, n: int, rank: int | None = None) -> Framelet:
    r"""The framelet of a signal's own singular vectors, each its own dual.

    Its coefficients of `x[d]` are $\operatorname{diag}(\sigma_1,\dots,\sigma_r)$. With fewer than
    all of them it gives back $\hat x=\frac1n\mathbb H_n^*\big(\sum_{i\le r}\sigma_iu_iv_i^\top
    \big)$, and $\|x-\hat x\|\le\big(\frac1n\sum_{i>r}\sigma_i^2\big)^{1/2}$
    (`truncation_bound`).

    Args:
        x: one signal `[d]`.
        n: length of the filters.
        rank: how many singular vectors; all n unless given.

    >>> x = torch.tensor([1.0, 3.0, -2.0, 0.0, 1.0], dtype=torch.float64)
    >>> made = svd_framelet(x, 3)
    >>> c = made.encode(x)
    >>> bool((c - c.diagonal().diag()).abs().max() < 1e-12)
    True
    """
    if not isinstance(x, Tensor) or x.ndim != 1:
        raise ShapeMismatch(f"the singular vectors are those of one signal [d], not {described(x)}")
    left, _, right = torch.linalg.svd(hankel(x, n), full_matrices=False)
    kept = n if rank is None else whole_number(rank, "rank", least=1, most=n)
    u, v = left[:, :kept], right[:kept].T
    # a pair of singular vectors has no sign of its own: the largest entry of a filter is positive
    signs = v.gather(0, v.abs().argmax(0, keepdim=True)).sign()
    u, v = u * signs, v * signs
    return Framelet(u, v, u, v)


def truncation_bound(singular_values: Tensor, rank: int) -> float:
    r"""$\big(\frac1n\sum_{i>r}\sigma_i^2\big)^{1/2}$ of `singular_values[n]`.

    What a signal loses at most when only the first $r$ singular vectors of its Hankel matrix are
    used. It is lost exactly when the rest is a Hankel matrix, as it is of waves that are orthogonal
    on the filter's support.

    >>> truncation_bound(torch.tensor([9.0, 3.0, 4.0, 0.0]), 1)
    2.5
    """
    singular_values = as_vector(singular_values, "the singular values")
    n = len(singular_values)
    rank = whole_number(rank, "rank", least=0, most=n)
    return float((singular_values[rank:].square().sum() / n).sqrt())


def _refuse_other_kind(value: Tensor, pooling: Tensor, name: str) -> None:
    if value.dtype != pooling.dtype or value.device != pooling.device:
        raise InvalidType(
            f"{name} must be {pooling.dtype} on {pooling.device}, as the pooling is, not "
            f"{value.dtype} on {value.device}"
        )


# ----------------------------------------------------------------------------------------- bases


def cosine_basis(d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The orthonormal cosine basis (DCT-II), `[d, d]`, one vector a column, slow ones first.

    >>> cosine_basis(2).round(decimals=3).tolist()
    [[0.707, 0.707], [0.707, -0.707]]
    """
    whole_number(d, "d", least=1)
    rows = fft.dct(torch.eye(d, dtype=torch.float64).numpy(), norm="ortho", axis=0)
    return torch.from_numpy(rows).T.to(dtype).contiguous()


def haar_basis(d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The orthonormal Haar basis, `[d, d]` for a power of 2, one vector a column.

    >>> haar_basis(2).round(decimals=3).tolist()
    [[0.707, 0.707], [0.707, -0.707]]
    """
    whole_number(d, "d", least=1)
    if d & (d - 1):
        raise InvalidInput(f"the Haar basis needs a power of 2, not {d}")
    made = torch.ones(1, 1, dtype=torch.float64)
    while len(made) < d:
        size = len(made)
        coarse = made.repeat_interleave(2, 0)
        fine = torch.eye(size, dtype=torch.float64).repeat_interleave(2, 0)
        fine[1::2] *= -1
        made = torch.cat([coarse, fine], 1) / 2**0.5
    return made.to(dtype)


def random_basis(
    d: int, generator: RandomSource = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """A uniformly random orthonormal basis, `[d, d]`: that of Gram and Schmidt for a normal matrix.

    >>> u = random_basis(5)
    >>> bool(torch.allclose(u.T @ u, torch.eye(5, dtype=torch.float64)))
    True
    """
    whole_number(d, "d", least=1)
    gauss = torch.randn(d, d, generator=as_generator(generator), dtype=torch.float64)
    q, r = torch.linalg.qr(gauss)
    # without the signs of the diagonal it would not be uniform
    made: Tensor = q * r.diagonal().sign()
    return made.to(dtype)
