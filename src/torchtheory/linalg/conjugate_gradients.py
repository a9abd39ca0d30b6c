"""Linear systems with a positive definite operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.linalg.krylov import agreement_level
from torchtheory.linalg.operators import (
    LinearOperator,
    apply,
    check_finite,
    check_square,
    check_vector,
    effective_tolerance,
)


class NotPositiveDefinite(InvalidInput):
    r"""Conjugate gradients met a direction with $d^\top A d \le 0$.

    Attributes:
        direction: The unit vector $d$, `[n]`: a direction of negative curvature (or none).
        curvature: $d^\top A d$.
    """

    def __init__(self, direction: Tensor, curvature: float) -> None:
        self.direction = direction
        self.curvature = curvature
        super().__init__(
            f"conjugate gradients need a positive definite operator, and this one has curvature "
            f"{curvature:.3g} along a direction (attached as .direction); add damping to it"
        )


@dataclass(frozen=True)
class Solution:
    r"""The result of an iteration for $Ax = b$.

    Attributes:
        x: `[n]` or `[n, k]`, as $b$.
        residual_norms: `[steps + 1]` or `[steps + 1, k]`, $\lVert b - Ax_t\rVert$ by
            the recurrence; the last is computed from $x$ itself.
        steps: Steps of the slowest column.
        converged: Whether the last residuals are all below the tolerance times
            $\lVert b\rVert$.
    """

    x: Tensor
    residual_norms: Tensor
    steps: int
    converged: bool


def conjugate_gradients(
    A: LinearOperator,
    b: Tensor,
    *,
    x0: Tensor | None = None,
    preconditioner: LinearOperator | Callable[[Tensor], Tensor] | None = None,
    tolerance: float = 1e-8,
    steps: int | None = None,
) -> Solution:
    r"""Solve $Ax = b$ for symmetric positive definite $A$ (Hestenes and Stiefel, 1952).

    $x_t$ minimizes $\frac12 x^\top A x - b^\top x$ over $x_0 + \mathcal{K}_t(A, r_0)$, so the
    iteration ends after at most $n$ steps (without rounding), and
    $$\lVert x_t - x\rVert_A \le 2\left(\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}\right)^t
      \lVert x_0 - x\rVert_A.$$

    When the recurrence reports convergence, the true residual is computed, and the iteration goes
    on from there if rounding has left it too large. Not converging is not an error: look at
    `converged`. An indefinite operator is: see `NotPositiveDefinite`.

    Args:
        A: A symmetric positive definite operator on $\mathbb{R}^n$.
        b: Right-hand sides, `[n]` or `[n, k]`. Columns are solved side by side with a step size
            each, and drop out as they converge.
        x0: Start, of the shape of `b`; 0 by default.
        preconditioner: $r \mapsto M^{-1} r$ on `[n, k]`, symmetric positive definite, close to
            $A^{-1}$.
        tolerance: Stop when $\lVert b - Ax\rVert \le$ `tolerance` $\cdot \lVert b\rVert$; at
            least 50 machine epsilons.
        steps: By default $10 n$.

    Cost: one product with $A$ and with the preconditioner and $O(n)$ per step and column; memory
    $O(n)$ per column.

    Example: three distinct eigenvalues, hence three steps.

    >>> A = LinearOperator.from_matrix(torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0, 5.0]).double()))
    >>> solution = conjugate_gradients(A, torch.ones(5).double())
    >>> solution.x, solution.steps
    (tensor([1.0000, 1.0000, 0.5000, 0.5000, 0.2000], dtype=torch.float64), 3)
    """
    n = check_square(A, "conjugate gradients")
    check_vector(A, b, "the right-hand side")
    if steps is None:
        steps = 10 * n
    whole_number(steps, "steps", least=1)
    if x0 is not None:
        check_vector(A, x0, "the start x0")
        if x0.shape != b.shape:
            raise ShapeMismatch(f"x0 is {list(x0.shape)}, the right-hand side {list(b.shape)}")
    B = b.detach().reshape(n, -1)
    X = torch.zeros_like(B) if x0 is None else x0.detach().reshape(n, -1).clone()
    R = B.clone() if x0 is None else B - apply(A, X)
    level = effective_tolerance(tolerance, A.dtype) * B.norm(dim=0)

    def precondition(residual: Tensor) -> Tensor:
        if preconditioner is None:
            return residual
        if isinstance(preconditioner, LinearOperator):
            return apply(preconditioner, residual)
        return preconditioner(residual).detach()

    norms = [R.norm(dim=0)]
    checked = norms[0].clone()  # true residuals, when they were last computed
    stalled = torch.zeros_like(level, dtype=torch.bool)
    P = torch.zeros_like(B)
    AP = torch.zeros_like(B)
    rho = torch.ones_like(level)
    while len(norms) <= steps:
        active = ((norms[-1] > level) & ~stalled).nonzero()[:, 0]
        if len(active) == 0:
            break
        columns = slice(None) if len(active) == B.shape[1] else active
        r = R[:, columns]
        z = precondition(r)
        new_rho = _dot(r, z)
        if preconditioner is not None:
            _refuse_bad_preconditioner(new_rho)
        old_p, old_ap = P[:, columns], AP[:, columns]
        p = z + old_p * (new_rho / rho[columns])
        ap = apply(A, p)
        curvature = _dot(p, ap)
        check_finite(curvature, "a product with the operator")
        if len(norms) <= 10:  # asymmetry shows at once
            _refuse_asymmetric(p, ap, old_p, old_ap)
        _refuse_indefinite(p, curvature)
        step = new_rho / curvature
        X[:, columns] += step * p
        R[:, columns] = r - step * ap
        P[:, columns], AP[:, columns], rho[columns] = p, ap, new_rho

        norm = norms[-1].clone()
        norm[active] = R[:, columns].norm(dim=0)
        done = active[norm[active] <= level[active]]
        if len(done):  # look at the true residual, and go on from it if it is not small enough
            R[:, done] = B[:, done] - apply(A, X[:, done])
            norm[done] = R[:, done].norm(dim=0)
            stalled[done] = (norm[done] > level[done]) & (norm[done] > checked[done] / 2)
            checked[done] = norm[done]
            P[:, done], AP[:, done], rho[done] = 0, 0, 1
        norms.append(norm)

    if len(norms) > steps:
        norms[-1] = (B - apply(A, X)).norm(dim=0)
    history = torch.stack(norms)
    return Solution(
        X.reshape(b.shape),
        history[:, 0] if b.ndim == 1 else history,
        len(norms) - 1,
        bool((norms[-1] <= level).all()),
    )


def _dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(dim=0)


def _refuse_bad_preconditioner(rho: Tensor) -> None:
    check_finite(rho, "a product with the preconditioner")
    if bool((rho <= 0).any()):
        raise InvalidInput(
            "the preconditioner is not positive definite: <r, Mr> <= 0 for some r ("
            f"{first_entry(rho, 'rho', rho <= 0)})"
        )


def _refuse_indefinite(p: Tensor, curvature: Tensor) -> None:
    worst = int(curvature.argmin())
    if float(curvature[worst]) <= 0:
        square = p[:, worst].square().sum()
        raise NotPositiveDefinite(p[:, worst] / square.sqrt(), float(curvature[worst] / square))


def _refuse_asymmetric(p: Tensor, ap: Tensor, old_p: Tensor, old_ap: Tensor) -> None:
    gap = (_dot(old_p, ap) - _dot(old_ap, p)).abs()
    size = old_p.norm(dim=0) * ap.norm(dim=0) + old_ap.norm(dim=0) * p.norm(dim=0)
    if bool((gap > agreement_level(p.dtype) * size).any()):
        raise InvalidInput(
            "the operator is not symmetric: <u, Av> and <Au, v> differ; "
            "solve the normal equations with A.T @ A instead"
        )
