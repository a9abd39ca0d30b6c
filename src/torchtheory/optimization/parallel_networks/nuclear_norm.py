r"""The nuclear norm as what weight decay charges a product of two matrices.

$$
\|Z\|_*=\sum_i\sigma_i(Z)=\min_{UV^\top=Z}\tfrac12(\|U\|_F^2+\|V\|_F^2).
$$

So factoring $Y[n_2,n_0]\approx UV^\top$ with weight decay,
$f(U,V)=\tfrac12\|Y-UV^\top\|_F^2+\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2)$, is the convex problem
$\min_Z\tfrac12\|Y-Z\|_F^2+\lambda\|Z\|_*$ in disguise, which the singular values of
$Y$ solve. The norm itself is `torch.linalg.matrix_norm(Z, "nuc")`.
Source: Mathematical Aspects of Deep Learning, section 4.4.1, Eqs. (4.33) to (4.37).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def balanced_factors(Z: Tensor, width: int | None = None) -> tuple[Tensor, Tensor]:
    r"""The cheapest factors of `Z[n, m]`: $U=U_Z\Sigma^{1/2}$, $V=V_Z\Sigma^{1/2}$.

    They attain $\tfrac12(\|U\|_F^2+\|V\|_F^2)=\|Z\|_*$; every other pair with
    $UV^\top=Z$ costs as much or more, and $(UA,VA^{-\top})$ as much only if $A$
    is orthogonal (on the row space). They satisfy $U^\top U=V^\top V$.

    Args:
        Z: `[n, m]`.
        width: columns of either factor, at least the rank; the rank unless told. Columns beyond
            the rank are 0.

    Costs a singular value decomposition.

    >>> U, V = balanced_factors(torch.diag(torch.tensor([4.0, 1.0])))
    >>> float((U.square().sum() + V.square().sum()) / 2), bool((U @ V.T).trace() == 5)
    (5.0, True)
    """
    Z = as_matrix(Z)
    left, sigma, right = torch.linalg.svd(Z, full_matrices=False)
    rounding = max(Z.shape) * torch.finfo(Z.dtype).eps
    rank = int((sigma > rounding * sigma[0]).sum())
    width = rank if width is None else width
    if isinstance(width, bool) or not isinstance(width, int) or width < rank:
        raise InvalidInput(f"the matrix has rank {rank}: the width must be at least that")
    U, V = Z.new_zeros(Z.shape[0], width), Z.new_zeros(Z.shape[1], width)
    U[:, :rank] = left[:, :rank] * sigma[:rank].sqrt()
    V[:, :rank] = right[:rank].T * sigma[:rank].sqrt()
    return U, V


def threshold_singular_values(Y: Tensor, strength: float) -> Tensor:
    r"""The minimizer $U_Y(\Sigma_Y-\lambda I)_+V_Y^\top$ of
    $\tfrac12\|Y-Z\|_F^2+\lambda\|Z\|_*$ for `Y[n, m]`.

    Costs a singular value decomposition.

    >>> threshold_singular_values(torch.diag(torch.tensor([3.0, 0.5])), 1.0).diagonal()
    tensor([2., 0.])
    """
    Y = as_matrix(Y)
    positive_number(strength, "the strength of the decay")
    left, sigma, right = torch.linalg.svd(Y, full_matrices=False)
    shrunk: Tensor = left * (sigma - strength).clamp(min=0) @ right
    return shrunk


def least_decay_objective(
    singular_values: Tensor, strength: float, width: int | None = None
) -> float:
    r"""The least $f(U,V)$ for a matrix with these singular values.

    A direction that is kept costs $\lambda\sigma-\lambda^2/2$, one that is not
    $\sigma^2/2$; kept are those with $\sigma>\lambda$, the largest `width` of them
    where the width is limited.

    >>> least_decay_objective(torch.tensor([3.0, 2.0, 0.5]), 1.0)           # 5/2 + 3/2 + 1/8
    4.125
    >>> least_decay_objective(torch.tensor([3.0, 2.0, 0.5]), 1.0, width=1)  # 5/2 + 2 + 1/8
    4.625
    """
    positive_number(strength, "the strength of the decay")
    sigma = singular_values.detach().reshape(-1).sort(descending=True).values
    if bool((sigma < 0).any()) or not bool(torch.isfinite(sigma).all()):
        raise InvalidInput(
            "singular values are finite numbers >= 0: "
            f"{first_entry(sigma, 'the value', (sigma < 0) | ~torch.isfinite(sigma))}"
        )
    if width is not None and width < 0:
        raise InvalidInput(f"the width must be a whole number >= 0, not {width!r}")
    kept = sigma > strength
    if width is not None:
        kept[width:] = False
    cost = torch.where(kept, strength * sigma - strength**2 / 2, sigma.square() / 2)
    return float(cost.sum())


@dataclass(frozen=True, slots=True)
class DecayFactorization:
    r"""A global minimizer of $f(U,V)$.

    Attributes:
        U: `[n, w]`.
        V: `[m, w]`.
        objective: $f(U,V)$, from the singular values.
        needed: $\#\{\sigma_i(Y)>\lambda\}$, the width from which more does not help.
    """

    U: Tensor
    V: Tensor
    objective: float
    needed: int


def factorize_with_decay(
    Y: Tensor, strength: float, *, width: int | None = None, inputs: Tensor | None = None
) -> DecayFactorization:
    r"""Minimize $\tfrac12\|Y-UV^\top X\|_F^2+\tfrac\lambda2(\|U\|_F^2+\|V\|_F^2)$ exactly.

    $U=U_Y(\Sigma_Y-\lambda I)_+^{1/2}$, $V=V_Y(\Sigma_Y-\lambda I)_+^{1/2}$, for
    $X=I$. With inputs of $XX^\top=cI$ it is the same problem for $YX^\top/c$ and
    $\lambda/c$, times $c$, plus what no linear map can fit; for other inputs there is
    no closed form: `certify_network` with `linear_unit` certifies what a descent found.

    Args:
        Y: `[n, m]`.
        strength: $\lambda>0$.
        width: columns of the factors; as many as needed unless told. With fewer the best is the
            truncation to the largest singular values, with more the rest is 0.
        inputs: `X[k, m]` with orthogonal rows of one length; the identity unless given.

    Costs a singular value decomposition.

    >>> made = factorize_with_decay(torch.diag(torch.tensor([3.0, 2.0, 0.5])), 1.0)
    >>> made.needed, made.objective, (made.U @ made.V.T).diagonal()
    (2, 4.125, tensor([2.0000, 1.0000, 0.0000]))
    """
    Y = as_matrix(Y)
    positive_number(strength, "the strength of the decay")
    scale, beyond = 1.0, 0.0
    if inputs is not None:
        X = as_matrix(inputs, "the inputs").to(Y)
        if X.shape[1] != Y.shape[1]:
            raise ShapeMismatch(
                f"inputs {list(X.shape)} and targets {list(Y.shape)} must have as many columns"
            )
        gram = X @ X.T
        scale = float(gram.diagonal().mean())
        off = gram - scale * torch.eye(len(gram)).to(gram)
        if scale <= 0 or float(off.abs().max()) > 1e3 * torch.finfo(Y.dtype).eps * scale:
            raise InvalidInput(
                "a closed form needs inputs with X X^T = c I, and this product is off by "
                f"{float(off.abs().max()):.3g}: whiten them, or descend instead"
            )
        whole = float(Y.square().sum())
        Y = Y @ X.T / scale
        beyond = (whole - scale * float(Y.square().sum())) / 2
    left, sigma, right = torch.linalg.svd(Y, full_matrices=False)
    needed = int((sigma > strength / scale).sum())
    width = needed if width is None else width
    whole_number(width, "the width", least=0)
    U, V = Y.new_zeros(Y.shape[0], width), Y.new_zeros(Y.shape[1], width)
    kept = min(width, needed)
    root = (sigma[:kept] - strength / scale).sqrt()
    U[:, :kept], V[:, :kept] = left[:, :kept] * root, right[:kept].T * root
    least = scale * least_decay_objective(sigma, strength / scale, width) + beyond
    return DecayFactorization(U, V, least, needed)
