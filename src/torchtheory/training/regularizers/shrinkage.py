r"""What weight decay and early stopping do to the minimizer of a quadratic, direction by direction.

With $\ell(\theta)=\ell^\star+\frac12(\theta-\theta^\star)^\top H(\theta-\theta^\star)$ and
the eigenvalues $\lambda_i$ of $H$, both multiply the coordinates of
$\theta^\star$ in the eigenbasis by a factor:

- the penalty $\frac\mu2\|\theta\|^2$ by $\lambda_i/(\lambda_i+\mu)$,
- $t$ steps of gradient descent from 0 by $1-(1-\eta\lambda_i)^t$.

Source: Deep Learning (notes), sections 8.2 and 8.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, first_entry, positive_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch


@dataclass(frozen=True, slots=True)
class Shrinkage:
    r"""How a minimizer moves when weight decay is added.

    Attributes:
        minimizer: `[d]`, $(H+\mu I)^{-1}H\theta^\star$.
        eigenvalues: `[d]` of $H$, ascending.
        factors: `[d]`, $\lambda_i/(\lambda_i+\mu)$.
        basis: `[d, d]`, eigenvectors as columns.
    """

    minimizer: Tensor
    eigenvalues: Tensor
    factors: Tensor
    basis: Tensor


def shrink(hessian: Tensor, minimizer: Tensor, decay: float) -> Shrinkage:
    r"""The minimizer of $\ell+\frac\mu2\|\theta\|^2$ from that of $\ell$.

    Exact if $\ell$ is quadratic, right to first order in $\mu$ otherwise. Time
    $O(d^3)$.

    Args:
        hessian: `[d, d]`, symmetric; with $H+\mu I$ positive definite.
        minimizer: `[d]`.
        decay: $\mu>0$.

    >>> s = shrink(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([4.0, 4.0]), 1.0)
    >>> s.minimizer, s.factors
    (tensor([2., 3.]), tensor([0.5000, 0.7500]))
    """
    h = _symmetric(hessian)
    if minimizer.shape != (len(h),):
        raise ShapeMismatch(
            f"the minimizer must be a vector of {len(h)} numbers, not {list(minimizer.shape)}"
        )
    positive_number(decay, "the weight decay")
    eigenvalues, basis = torch.linalg.eigh(h)
    if float(eigenvalues[0]) + decay <= 0:
        raise InvalidInput(
            f"H + {decay} I is not positive definite (least eigenvalue of H: "
            f"{float(eigenvalues[0]):.3g}), so there is no minimizer"
        )
    factors = weight_decay_factors(eigenvalues, decay)
    return Shrinkage(basis @ (factors * (basis.T @ minimizer)), eigenvalues, factors, basis)


def weight_decay_factors(eigenvalues: Tensor, decay: float) -> Tensor:
    r"""$\lambda/(\lambda+\mu)$; between 0 and 1 where $\lambda\ge0$.

    >>> weight_decay_factors(torch.tensor([0.0, 1.0, 9.0]), 1.0)
    tensor([0.0000, 0.5000, 0.9000])
    """
    positive_number(decay, "the weight decay")
    return eigenvalues / (eigenvalues + decay)


def early_stopping_factors(eigenvalues: Tensor, step: float, steps: float) -> Tensor:
    r"""$1-(1-\eta\lambda)^t$: how far $t$ steps of gradient descent from 0 have come.

    Args:
        eigenvalues: $\lambda$ with $\eta\lambda\le1$, so that no direction overshoots
            and $t$ may be any number; beyond that $t$ must be whole.
        step: $\eta>0$.
        steps: $t\ge0$.

    >>> early_stopping_factors(torch.tensor([0.0, 0.5, 1.0]), 1.0, 2)
    tensor([0.0000, 0.7500, 1.0000])
    """
    positive_number(step, "the step size")
    if not (math.isfinite(steps) and steps >= 0):
        raise InvalidInput(f"the number of steps must be >= 0, not {steps!r}")
    kept = 1 - step * eigenvalues
    if steps != int(steps) and bool((kept < 0).any()):
        raise InvalidInput(
            f"{steps} is not a whole number, and with step * eigenvalue above 1 gradient descent "
            "alternates in sign: round it"
        )
    # 1 - kept ** steps would lose the small factors to rounding
    safe = torch.where(kept > 0, step * eigenvalues, torch.zeros_like(kept))
    return torch.where(kept > 0, -torch.expm1(steps * torch.log1p(-safe)), 1 - kept**steps)


def matching_steps(step: float, decay: float) -> float:
    r"""$t=1/(\eta\mu)$, after which early stopping resembles weight decay $\mu$.

    There $1-(1-\eta\lambda)^t$ and $\lambda/(\lambda+\mu)$ agree to first order in
    $\lambda/\mu$ and both tend to 1; in between they differ by up to
    `LARGEST_RATIO` (small steps).

    >>> matching_steps(0.01, 0.1)
    1000.0
    """
    positive_number(step, "the step size")
    positive_number(decay, "the weight decay")
    return 1 / (step * decay)


def factor_ratio(x: Tensor) -> Tensor:
    r"""Early stopping over weight decay at matching times and small steps.

    $r(x)=(1-e^{-x})(1+x)/x$ with $x=\lambda/\mu$; 1 at 0 and at infinity.

    >>> factor_ratio(torch.tensor([0.0, 1.0], dtype=torch.float64))
    tensor([1.0000, 1.2642], dtype=torch.float64)
    """
    if not bool((x >= 0).all()):
        raise InvalidInput(
            "the ratio of an eigenvalue to the weight decay must be >= 0: "
            f"{first_entry(x, 'x', ~(x >= 0))}"
        )
    safe = torch.where(x > 0, x, torch.ones_like(x))
    return torch.where(x > 0, -torch.expm1(-safe) * (1 + safe) / safe, torch.ones_like(x))


#: Where `factor_ratio` is largest (the root of $e^x=1+x+x^2$), and its value there.
WORST_RATIO_AT = 1.7932821329007607
LARGEST_RATIO = (1 - math.exp(-WORST_RATIO_AT)) * (1 + WORST_RATIO_AT) / WORST_RATIO_AT


def _symmetric(matrix: Tensor) -> Tensor:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ShapeMismatch(f"the Hessian must be a square matrix, not {list(matrix.shape)}")
    all_finite(matrix, "the Hessian")
    scale = float(matrix.abs().max())
    if float((matrix - matrix.T).abs().max()) > 1e3 * torch.finfo(matrix.dtype).eps * scale:
        raise InvalidInput(
            "the Hessian must be symmetric, and it differs from its transpose by "
            f"{float((matrix - matrix.T).abs().max()):.3g}"
        )
    return (matrix + matrix.T) / 2
