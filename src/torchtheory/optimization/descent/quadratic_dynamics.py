r"""Gradient descent on a quadratic, solved: every eigendirection shrinks by its own factor.

For $f(x)=\frac12x^\top Qx-q^\top x$ with $Q=U\Lambda U^\top$ the coordinates
$z=U^\top x$ move independently,
$z_i^{k}-z_i^\star=(1-\eta\lambda_i)^k(z_i^0-z_i^\star)$, and everything about steps, rates
and preconditioners follows. Source: Foundations of Deep Learning, section 5.4 and Problem 2 of
section 5.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_symmetric, as_vector, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.linalg.eigenvalues import extremal_eigenvalues
from torchtheory.linalg.operators import LinearOperator


@dataclass(frozen=True, slots=True)
class QuadraticDescent:
    r"""The exact course of gradient descent on a quadratic.

    Attributes:
        eigenvalues: `[d]`, ascending.
        basis: `[d, d]`, eigenvectors as columns.
        minimizer: `[d]`; the one closest to the start where there are several.
        coordinates: `[K + 1, d]`, along the eigenvectors.
        gaps: `[K + 1, d]`, what each eigendirection contributes to $f(x_k)-f^\star$.
        minimum: $f^\star$.
    """

    eigenvalues: Tensor
    basis: Tensor
    minimizer: Tensor
    coordinates: Tensor
    gaps: Tensor
    minimum: float

    @property
    def points(self) -> Tensor:
        """The iterates, `[K + 1, d]`."""
        return self.coordinates @ self.basis.T

    @property
    def values(self) -> Tensor:
        """The function along them, `[K + 1]`."""
        return self.gaps.sum(1) + self.minimum


def quadratic_descent(
    matrix: Tensor, linear: Tensor, start: Tensor, step: float, steps: int
) -> QuadraticDescent:
    r"""Gradient descent on $\frac12x^\top Qx-q^\top x$ in closed form.

    $g_i(z_i^k)=(1-\eta\lambda_i)^{2k}g_i(z_i^0)$ for each
    $g_i(z)=\frac{(\lambda_iz-q_i)^2}{2\lambda_i}$. Directions of curvature 0 stand still, if
    $q$ does not point along them; if it does, there is no minimum and an error says so.

    Args:
        matrix: $Q\succeq0$, `[d, d]` symmetric.
        linear: $q$, `[d]`.
        start: $x_0$, `[d]`.
        step: $\eta>0$, of any size.
        steps: $K$.

    Costs one eigendecomposition, $O(d^3)$, and $O(Kd)$.

    >>> run = quadratic_descent(torch.eye(1) * 2, torch.zeros(1), torch.ones(1), 0.25, 2)
    >>> run.points.flatten().tolist(), run.values.tolist()
    ([1.0, 0.5, 0.25], [1.0, 0.25, 0.0625])
    """
    matrix, linear, start = (
        as_symmetric(matrix),
        as_vector(linear, "q"),
        as_vector(start, "the start"),
    )
    if linear.shape != matrix.shape[:1] or start.shape != linear.shape:
        raise ShapeMismatch(
            f"a matrix {list(matrix.shape)} goes with vectors [{len(matrix)}], not "
            f"{list(linear.shape)} and {list(start.shape)}"
        )
    positive_number(step, "the step")
    whole_number(steps, "the number of iterations", least=0)
    eigenvalues, basis = torch.linalg.eigh(matrix)
    small = len(matrix) * torch.finfo(matrix.dtype).eps * float(eigenvalues.abs().max())
    if float(eigenvalues[0]) < -small:
        raise InvalidInput(
            f"the matrix has the negative eigenvalue {float(eigenvalues[0]):.3g}: the quadratic "
            "has no minimum"
        )
    flat = eigenvalues <= small
    eigenvalues = torch.where(flat, 0.0, eigenvalues)
    pull, at = basis.T @ linear, basis.T @ start
    resolved = 1e3 * len(matrix) * torch.finfo(matrix.dtype).eps * float(linear.norm())
    if bool((flat & (pull.abs() > resolved)).any()):
        raise InvalidInput("q points along a direction without curvature: there is no minimum")
    rest = torch.where(flat, at, pull / torch.where(flat, 1.0, eigenvalues))
    k = torch.arange(steps + 1, dtype=matrix.dtype, device=matrix.device)[:, None]
    factors = (1 - step * eigenvalues) ** k
    away = factors * (at - rest)
    return QuadraticDescent(
        eigenvalues,
        basis,
        basis @ rest,
        rest + away,
        eigenvalues / 2 * away.square(),
        -float((pull * torch.where(flat, 0.0, rest)).sum()) / 2,
    )


@dataclass(frozen=True, slots=True)
class ConditionReport:
    r"""What the two ends of a spectrum mean for gradient descent.

    Attributes:
        smallest, largest: the ends.
        condition: $\kappa=\lambda_{\max}/\lambda_{\min}$; infinite for a singular matrix.
        largest_step: $2/\lambda_{\max}$: gradient descent converges below it, not above.
        optimal_step: $\eta^\star=2/(\lambda_{\max}+\lambda_{\min})$.
        optimal_rate: $\bigl(\frac{\kappa-1}{\kappa+1}\bigr)^2$, by which the gap shrinks per
            step at $\eta^\star$; both ends of the spectrum are equally slow there.
        residual: error bar of the two ends, 0 where they are exact.
    """

    smallest: float
    largest: float
    condition: float
    largest_step: float
    optimal_step: float
    optimal_rate: float
    residual: float

    def rate(self, step: float) -> float:
        r"""$\max_i(1-\eta\lambda_i)^2$, the factor of the gap per step; above 1 it diverges.

        >>> condition_report(torch.diag(torch.tensor([1.0, 3.0]))).rate(0.5)
        0.25
        """
        return max(abs(1 - step * self.smallest), abs(1 - step * self.largest)) ** 2

    def steps_to(self, tolerance: float) -> float:
        """Steps at the optimal one until the gap is this fraction of what it was."""
        if not 0 < tolerance < 1:
            raise InvalidInput(f"the tolerance must lie between 0 and 1, not {tolerance!r}")
        if self.optimal_rate == 0:
            return 1.0
        if self.optimal_rate >= 1:
            return math.inf
        return math.ceil(math.log(tolerance) / math.log(self.optimal_rate))


def condition_report(matrix: Tensor | LinearOperator) -> ConditionReport:
    r"""Condition number, step limits and the best rate, of a matrix or of a network's curvature.

    Args:
        matrix: positive semi-definite, `[d, d]`, or an operator such as
            `gauss_newton_operator(problem)` or `hessian_operator(problem)` at a minimum.

    A dense matrix costs $O(d^3)$, an operator a few dozen products.

    >>> report = condition_report(torch.diag(torch.tensor([1.0, 3.0])))
    >>> report.condition, report.optimal_step, report.optimal_rate, report.steps_to(1e-6)
    (3.0, 0.5, 0.25, 10)
    """
    if isinstance(matrix, LinearOperator):
        ends = extremal_eigenvalues(matrix)
        low, high, residual = ends.smallest, ends.largest, ends.residual
    else:
        spectrum = torch.linalg.eigvalsh(as_symmetric(matrix))
        low, high, residual = float(spectrum[0]), float(spectrum[-1]), 0.0
        if abs(low) <= len(spectrum) * torch.finfo(spectrum.dtype).eps * abs(high):
            low = 0.0
    if high <= 0 or low < -max(residual, 1e-9 * high):
        raise InvalidInput(
            f"the spectrum reaches from {low:.3g} to {high:.3g}; conditioning is about matrices "
            "without negative eigenvalues"
        )
    low = max(low, 0.0)
    rate = ((high - low) / (high + low)) ** 2
    return ConditionReport(
        low, high, high / low if low > 0 else math.inf, 2 / high, 2 / (high + low), rate, residual
    )


def preconditioned_matrix(matrix: Tensor, preconditioner: Tensor) -> Tensor:
    r"""$P^{-1/2}QP^{-1/2}$, the curvature in the variables $u=P^{1/2}x$.

    Gradient descent in $u$ is $x\leftarrow x-\eta P^{-1}\nabla f(x)$. With $P=Q$
    it is the identity, of condition number 1; with $P=\operatorname{diag}Q$ its
    diagonal is 1.

    Args:
        matrix: $Q$, `[d, d]` symmetric.
        preconditioner: $P\succ0$, `[d, d]` symmetric.

    >>> Q = torch.tensor([[4.0, 1.0], [1.0, 1.0]]).double()
    >>> [round(v, 6) for v in preconditioned_matrix(Q, torch.diag(Q.diag())).flatten().tolist()]
    [1.0, 0.5, 0.5, 1.0]
    """
    matrix, preconditioner = (
        as_symmetric(matrix),
        as_symmetric(preconditioner, "the preconditioner"),
    )
    if matrix.shape != preconditioner.shape:
        raise ShapeMismatch(
            f"a preconditioner of {list(preconditioner.shape)} for a matrix of {list(matrix.shape)}"
        )
    scales, basis = torch.linalg.eigh(preconditioner)
    if float(scales[0]) <= 0:
        raise InvalidInput(
            "a preconditioner must be positive definite, and its smallest eigenvalue is "
            f"{float(scales[0]):.3g}"
        )
    root = basis / scales.sqrt() @ basis.T
    made: Tensor = root @ matrix @ root
    return (made + made.T) / 2


def least_squares_bound(x: Tensor, start: Tensor, solution: Tensor, step: float, k: int) -> Tensor:
    r"""$\|I-\eta X^\top X\|^t\,\|w_0-w^\star\|$ for $t=0,\dots,k$: how far gradient
    descent on $\frac12\|Xw-y\|^2$ can still be from the solution.

    Attained where $w_0-w^\star$ is the slowest eigenvector. It needs a unique solution: for
    fewer independent rows than columns the factor is 1 and only the part in the row space moves.

    Args:
        x: `[n, d]`.
        start, solution: `[d]`.
        step: $\eta$.
        k: the last $t$.

    >>> least_squares_bound(torch.eye(1).double(), torch.ones(1), torch.zeros(1), 0.5, 2).tolist()
    [1.0, 0.5, 0.25]
    """
    if x.ndim != 2 or start.shape != x.shape[1:] or solution.shape != start.shape:
        raise ShapeMismatch(
            f"X {list(x.shape)} goes with vectors of its columns, not {list(start.shape)} and "
            f"{list(solution.shape)}"
        )
    if not (math.isfinite(step) and step > 0) or k < 0:
        raise InvalidInput(f"a positive step and k >= 0 are needed, not {step!r} and {k!r}")
    spectrum = torch.linalg.eigvalsh(x.T @ x)
    factor = (1 - step * spectrum).abs().max()
    times = torch.arange(k + 1, dtype=x.dtype, device=x.device)
    bound: Tensor = factor**times * (start - solution).norm().to(x)
    return bound
