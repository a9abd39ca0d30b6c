r"""Least squares in the space of a kernel: interpolation and ridge regression.

Among the functions $f(x)=\theta^\top\phi(x)$ the one that minimizes
$\frac12\sum_i(f(x_i)-y_i)^2+\frac\lambda2\|f\|_K^2$ is
$f(x)=\sum_i\alpha_iK(x,x_i)$ with $(K+\lambda I)\alpha=y$: only values of the kernel
are needed. Sources: Foundations of Deep Learning, section 7.1.1; The Modern Mathematics of Deep
Learning, section 1.2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, described, nonnegative_number
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NotConverged,
    ShapeMismatch,
)
from torchtheory.kernels.learning.functions import Kernel, kernel_operator
from torchtheory.linalg.conjugate_gradients import NotPositiveDefinite, conjugate_gradients
from torchtheory.linalg.operators import LinearOperator

Solver = Literal["cholesky", "cg", "pseudo-inverse"]
SOLVERS: tuple[Solver, ...] = ("cholesky", "cg", "pseudo-inverse")


class SingularKernelMatrix(InvalidInput):
    """The kernel matrix has no inverse, or none that survives rounding."""


@dataclass(frozen=True, slots=True)
class KernelFit:
    r"""The function $f(x)=\sum_i\alpha_iK(x,x_i)$, fitted by `kernel_least_squares`.

    Attributes:
        kernel: $K$.
        x: the training points `[n, ...]`.
        y: the targets `[n]` or `[n, outputs]`.
        ridge: $\lambda$.
        solver: how the system was solved.
        coefficients: $\alpha$, of the shape of `y`.
        fitted: $f(x_i)$, of the shape of `y`.
    """

    kernel: Kernel
    x: Tensor
    y: Tensor
    ridge: float
    solver: Solver
    coefficients: Tensor
    fitted: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """The values at other points, `[m]` or `[m, outputs]`, in blocks of rows."""
        return kernel_operator(self.kernel, x, self.x) @ self.coefficients

    @property
    def norm(self) -> Tensor:
        r"""The norm $\|f\|_K=\sqrt{\alpha^\top K\alpha}$ of each output.

        Without a ridge $\|f\|_K^2=y^\top K^{-1}y$, with $K^+$ if there is no inverse.
        """
        return (self.coefficients * self.fitted).sum(0).clamp_min(0).sqrt()

    def leave_one_out_residuals(self) -> Tensor:
        r"""What each point would be missed by if it were not in the sample, of the shape of `y`.

        $y_i-f_{-i}(x_i)=\alpha_i/(G)_{ii}$ with $G=(K+\lambda I)^{-1}$, without any
        further fit. For the pseudo-inverse, $\alpha_i/(K^+)_{ii}$ at the points whose
        features are independent of the others', and $(y_i-f(x_i))/(1-(KK^+)_{ii})$ at the
        rest, where the left-out fit is the one of least norm again.

        Cost: $O(n^3)$ and the matrix.
        """
        columns = self.coefficients.reshape(len(self.x), -1)
        if self.solver != "pseudo-inverse":
            inverse = torch.cholesky_inverse(regularized_cholesky(self.kernel, self.x, self.ridge))
            return (columns / inverse.diagonal()[:, None]).reshape(self.y.shape)
        values, vectors, kept = _spectrum(self.kernel, self.x, self.ridge)
        weights = vectors.square()
        inverse_diagonal = weights @ torch.where(kept, 1 / values, 0.0)
        leverage = weights @ kept.to(values)
        missed = (self.y - self.fitted).reshape(columns.shape)
        alone = 1 - leverage < math.sqrt(torch.finfo(values.dtype).eps)
        residuals = torch.where(
            alone[:, None],
            columns / inverse_diagonal[:, None],
            missed / torch.where(alone, 1.0, 1 - leverage)[:, None],
        )
        return residuals.reshape(self.y.shape)


def kernel_least_squares(
    kernel: Kernel,
    x: Tensor,
    y: Tensor,
    *,
    ridge: float = 0.0,
    solver: Solver = "cholesky",
    tolerance: float = 1e-10,
) -> KernelFit:
    r"""Minimize $\frac12\sum_i(f(x_i)-y_i)^2+\frac\lambda2\|f\|_K^2$ over the space of a
    kernel.

    Without `ridge` it is the function of least norm among those of least loss: the
    minimum-norm interpolator $f(x)=K_x^\top K^{-1}y$ where $K$ is invertible, which is
    also where gradient flow from 0 ends (Theorem 53 and the closed form after it).

    Args:
        kernel: $K$.
        x: points `[n, ...]`, or `[n]` on the line.
        y: targets `[n]` or `[n, outputs]`, in the dtype of `x`.
        ridge: $\lambda\ge0$; scikit-learn's `alpha`.
        solver: `"cholesky"` needs $K+\lambda I$ to be positive definite;
            `"pseudo-inverse"` takes any matrix, and eigenvalues below $n\varepsilon$ times
            the largest for 0; `"cg"` (conjugate gradients) never writes the matrix down.
        tolerance: relative residual at which `"cg"` stops.

    Raises:
        SingularKernelMatrix: if the solver cannot do without an inverse and there is none.
        NotConverged: if conjugate gradients did not reach the tolerance.

    Cost: $O(n^3)$ and $O(n^2)$ memory; for `"cg"`, $O(n^2)$ values of the
    kernel a step and $O(n)$ memory.

    Example: with the linear kernel and more points than features it is least squares.

    >>> from torchtheory.kernels.learning.functions import laplace, linear
    >>> x, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0.0, 1.0, 3.0])
    >>> kernel_least_squares(linear(), x, y, solver="pseudo-inverse").predict(torch.ones(1, 1))
    tensor([1.4000])
    >>> fit = kernel_least_squares(laplace(), x, y)
    >>> fit.fitted.round(decimals=4), fit.norm
    (tensor([0., 1., 3.]), tensor(3.0280))
    """
    if solver not in SOLVERS:
        raise InvalidInput(f"the solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
    nonnegative_number(ridge, "the ridge")
    y = checked_targets(x, y)
    if solver == "cg":
        alpha = _by_conjugate_gradients(kernel, x, y, ridge, tolerance)
    elif solver == "pseudo-inverse":
        values, vectors, kept = _spectrum(kernel, x, ridge)
        shrunk = (vectors.T @ y.reshape(len(y), -1)) * torch.where(kept, 1 / values, 0.0)[:, None]
        alpha = (vectors @ shrunk).reshape(y.shape)
    else:
        factor = regularized_cholesky(kernel, x, ridge)
        alpha = torch.cholesky_solve(y.reshape(len(y), -1), factor).reshape(y.shape)
    fitted = kernel_operator(kernel, x) @ alpha
    return KernelFit(kernel, x, y, float(ridge), solver, alpha, fitted)


def regularized_cholesky(kernel: Kernel, x: Tensor, ridge: float = 0.0) -> Tensor:
    r"""The lower triangular $L$ `[n, n]` with $LL^\top=K+\lambda I$.

    Raises:
        SingularKernelMatrix: if a pivot is negative or at the level of rounding.

    >>> from torchtheory.kernels.learning.functions import linear
    >>> regularized_cholesky(linear(), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    matrix = kernel(x)
    if ridge:
        matrix = matrix.diagonal_scatter(matrix.diagonal() + ridge)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    n = len(matrix)
    floor = n * torch.finfo(matrix.dtype).eps * matrix.diagonal().detach().max()
    if int(info) or bool((factor.detach().diagonal().square() <= floor).any()):
        raise SingularKernelMatrix(
            f"the matrix of {kernel.name} at these {n} points"
            f"{f' plus {ridge:g} on its diagonal' if ridge else ''} is singular to within "
            f"rounding; use a {'larger ' if ridge else ''}ridge (noise) or, for least squares, "
            "solver='pseudo-inverse'"
        )
    return factor


def checked_targets(x: Tensor, y: Tensor) -> Tensor:
    """Targets `[n]` or `[n, outputs]` for the points `x`, finite and of the same kind."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InvalidType(
            f"points and targets must be torch tensors (x is {described(x)}, y is {described(y)})"
        )
    if y.ndim not in (1, 2) or x.ndim == 0 or len(y) != len(x) or y.numel() == 0:
        raise ShapeMismatch(
            f"points {list(x.shape)} need as many targets, [n] or [n, outputs], not {list(y.shape)}"
        )
    if y.dtype != x.dtype or y.device != x.device:
        raise InvalidType(
            f"x is {x.dtype} on {x.device} and y {y.dtype} on {y.device}; convert one"
        )
    all_finite(y, "y")
    return y


def _spectrum(kernel: Kernel, x: Tensor, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of K + ridge, eigenvectors, and which of them count as not 0."""
    matrix = kernel(x)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    values = values + ridge
    kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    return values, vectors, kept


def _by_conjugate_gradients(
    kernel: Kernel, x: Tensor, y: Tensor, ridge: float, tolerance: float
) -> Tensor:
    operator = kernel_operator(kernel, x)
    if ridge:
        identity = LinearOperator.identity(len(y), dtype=y.dtype, device=y.device)
        operator = operator + ridge * identity
    remedy = "use a ridge, or solver='pseudo-inverse' if the matrix fits in memory"
    try:
        found = conjugate_gradients(operator, y, tolerance=tolerance)
    except NotPositiveDefinite as error:
        raise SingularKernelMatrix(
            f"the matrix of {kernel.name} at these {len(y)} points is singular to within "
            f"rounding; {remedy}"
        ) from error
    if not found.converged:
        raise NotConverged(
            f"conjugate gradients stopped after {found.steps} steps at a residual of "
            f"{float(found.residual_norms[-1].max()):.1e}; {remedy}, or raise the tolerance"
        )
    return found.x
