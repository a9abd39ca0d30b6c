r"""Which interpolant gradient descent finds when there are more weights than equations.

For $L(w)=\frac1n\|y-Xw\|^2$ with $X$ of rank below $d$ the interpolants
$\{w:Xw=y\}$ form an affine space. A gradient of $L$ is a combination of the rows of
$X$, so descent never leaves $w_0+\operatorname{row}(X)$, and that meets the affine
space in one point: the interpolant closest to $w_0$.
Source: Foundations of Deep Learning, section 11.1.1; Mathematical Aspects of Deep Learning, 1.2.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import (
    as_points,
    as_targets,
    as_vector,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch


@dataclass(frozen=True, slots=True)
class SolutionSet:
    r"""All minimizers of $\|y-Xw\|^2$: `particular + null_space @ anything`.

    Attributes:
        particular: the one of least norm, $X^+y$; `[d]`.
        null_space: orthonormal columns, `[d, d - rank]`.
        row_space: orthonormal columns, `[d, rank]`.
        residual: $\|y-Xw\|$ for each of them; 0 if they interpolate.
    """

    particular: Tensor
    null_space: Tensor
    row_space: Tensor
    residual: float

    @property
    def dimension(self) -> int:
        """How many directions leave the fit unchanged."""
        return self.null_space.shape[1]


def solution_set(x: Tensor, y: Tensor) -> SolutionSet:
    r"""The affine space of least-squares solutions, of dimension $d-\operatorname{rank}X$.

    Singular values below $\max(n,d)\,\epsilon\,\sigma_{\max}$ count as 0. Time
    $O(nd\min(n,d))$ for $n\ge d$, $O(d^3)$ below.

    Args:
        x: `[n, d]`.
        y: `[n]`, any real numbers.

    >>> found = solution_set(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]]), torch.ones(2))
    >>> found.particular, found.dimension
    (tensor([0.5000, 0.5000, 0.5000]), 1)
    """
    x, y = _regression(x, y)
    u, s, vt = torch.linalg.svd(x, full_matrices=x.shape[0] < x.shape[1])
    kept = s > max(x.shape) * torch.finfo(x.dtype).eps * s.max()
    rank = int(kept.sum())
    best = vt[:rank].T @ ((u[:, :rank].T @ y) / s[:rank])
    return SolutionSet(best, vt[rank:].T, vt[:rank].T, float((y - x @ best).norm()))


def closest_interpolant(x: Tensor, y: Tensor, start: Tensor | None = None) -> Tensor:
    r"""$\arg\min\{\|w-w_0\|:Xw=y\}=w_0+X^+(y-Xw_0)$; from 0, $X^+y$.

    Where no $w$ has $Xw=y$, the least-squares solution closest to $w_0$: the
    limit of gradient descent all the same.

    >>> x, y = torch.tensor([[2.0, 0.0]]), torch.tensor([2.0])
    >>> closest_interpolant(x, y), closest_interpolant(x, y, torch.tensor([3.0, 1.0]))
    (tensor([1., 0.]), tensor([1., 1.]))
    """
    x, y = _regression(x, y)
    if start is None:
        return solution_set(x, y).particular
    origin = as_vector(start, "the start", size=x.shape[1]).to(x)
    return origin + solution_set(x, y - x @ origin).particular


def least_squares_step_limit(x: Tensor) -> float:
    r"""$n/\sigma_{\max}^2(X)$, below which steps on $\frac1n\|y-Xw\|^2$ converge.

    At it and beyond, gradient descent does not converge from almost every start.

    >>> least_squares_step_limit(torch.diag(torch.tensor([1.0, 2.0])))
    0.5
    """
    x = as_points(x)
    top = float(torch.linalg.matrix_norm(x, 2))
    if top == 0:
        raise InvalidInput("x is 0: every step size converges, for nothing moves")
    return len(x) / top**2


def quadratic_iterate(
    hessian: Tensor, minimizer: Tensor, step: float, steps: int, start: Tensor | None = None
) -> Tensor:
    r"""The $k$-th iterate of gradient descent on a quadratic, without iterating.

    For $\frac12(w-w^\star)^\top H(w-w^\star)$ with $H=Q\Lambda Q^\top$,
    $Q^\top w_k=Q^\top w^\star+(I-\eta\Lambda)^kQ^\top(w_0-w^\star)$; from 0 this is
    $[I-(I-\eta\Lambda)^k]Q^\top w^\star$. It converges for every start iff
    $0<\eta<2/\lambda_{\max}$ (and to the minimizer if all $\lambda_i>0$). Time
    $O(d^3)$ whatever $k$.

    Args:
        hessian: `[d, d]`, symmetric positive semi-definite.
        minimizer: $w^\star$, `[d]`.
        step: $\eta>0$.
        steps: $k\ge0$.
        start: $w_0$, `[d]`; 0 unless given.

    >>> quadratic_iterate(torch.diag(torch.tensor([1.0, 0.5])), torch.ones(2), 1.0, 2)
    tensor([1.0000, 0.7500])
    """
    h = as_points(hessian, "hessian")
    if h.shape[0] != h.shape[1]:
        raise ShapeMismatch(f"the Hessian must be a square matrix, not {list(h.shape)}")
    if float((h - h.T).abs().max()) > 1e3 * torch.finfo(h.dtype).eps * float(h.abs().max()):
        raise InvalidInput(
            "the Hessian must be symmetric, and it differs from its transpose by "
            f"{float((h - h.T).abs().max()):.3g}"
        )
    goal = as_vector(minimizer, "the minimizer", size=len(h)).to(h)
    origin = (
        torch.zeros_like(goal)
        if start is None
        else as_vector(start, "the start", size=len(h)).to(h)
    )
    positive_number(step, "the step size")
    whole_number(steps, "steps", least=0)
    eigenvalues, basis = torch.linalg.eigh((h + h.T) / 2)
    moved: Tensor = (1 - step * eigenvalues) ** steps * (basis.T @ (origin - goal))
    return goal + torch.mv(basis, moved)


def ridge_predictions(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    r"""Fitted values of ridge regression $\min\|y-Xw\|^2+\lambda\|w\|^2$, by its spectrum.

    With $X=UDV^\top$, $\hat y=\sum_iu_i\frac{d_i^2}{d_i^2+\lambda}u_i^\top y$: small
    singular directions are damped most. $\sum_id_i^2/(d_i^2+\lambda)$ are the effective
    degrees of freedom (`effective_degrees`). Time $O(nd\min(n,d))$.

    >>> ridge_predictions(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([2.0, 2.0]), 1.0)
    tensor([1.0000, 1.8000])
    """
    x, y = _regression(x, y)
    positive_number(penalty, "the penalty")
    u, d, _ = torch.linalg.svd(x, full_matrices=False)
    shrunk: Tensor = d.square() / (d.square() + penalty) * (u.T @ y)
    return torch.mv(u, shrunk)


def effective_degrees(x: Tensor, penalty: float) -> float:
    r"""$\sum_id_i^2/(d_i^2+\lambda)$: the trace of the map from targets to ridge's fit.

    >>> effective_degrees(torch.eye(3), 1.0)
    1.5
    """
    positive_number(penalty, "the penalty")
    squares = torch.linalg.svdvals(as_points(x)).square()
    return float((squares / (squares + penalty)).sum())


def _regression(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = as_points(x)
    y = as_targets(y, x)
    if y.ndim != 1:
        raise ShapeMismatch(f"y must be [samples], not {list(y.shape)}")
    return x, y
