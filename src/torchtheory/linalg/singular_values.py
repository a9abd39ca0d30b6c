"""Singular values and the operator norm of any linear map, from its action."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.linalg.krylov import RectangularSpace, default_subspace, find_extremal
from torchtheory.linalg.operators import LinearOperator, apply, effective_tolerance

#: Sides up to which a matrix is decomposed as a whole; beyond, its norm is bounded from products.
DENSE = 512

#: Probability with which such a bound fails, and products that it takes.
FAILURE, PRODUCTS = 1e-6, 40


@dataclass(frozen=True)
class SingularResult:
    r"""Approximate singular triples of an operator.

    Attributes:
        values: `[k]`, descending.
        left: `[m, k]`, orthonormal columns $u$.
        right: `[n, k]`, orthonormal columns $v$.
        residuals: `[k]`,
            $\sqrt{\frac12(\lVert Av - \sigma u\rVert^2 + \lVert A^\top u - \sigma v\rVert^2)}$,
            from products with the final vectors. Some singular value of $A$ lies within the
            residual of $\sigma$.
        steps: Pairs of products with $A$ and $A^\top$, without those for the residuals.
        converged: Whether all residuals are below the tolerance times the largest value.
    """

    values: Tensor
    left: Tensor
    right: Tensor
    residuals: Tensor
    steps: int
    converged: bool


def singular_values(
    A: LinearOperator,
    k: int = 1,
    *,
    tolerance: float = 1e-6,
    steps: int = 1000,
    subspace: int | None = None,
    generator: RandomSource = None,
) -> SingularResult:
    r"""The $k$ largest singular values $Av = \sigma u$, $A^\top u = \sigma v$ of any operator.

    Golub-Kahan bidiagonalization with thick restarts, in which $A^\top A$ is never formed, so
    that small singular values are as accurate as large ones. The adjoint is taken by automatic
    differentiation if it was not given; a map that turns out not to be linear is refused.
    Multiple values are looked for as in `top_eigenpairs`.

    Args:
        A: An operator from $\mathbb{R}^n$ to $\mathbb{R}^m$.
        k: How many, at most $\min(m, n)$.
        tolerance: Largest residual, relative to the largest value; at least 50 machine epsilons.
        steps: Largest number of pairs of products.
        subspace: Vectors kept in memory on each side; by default at least $\max(2k + 10, 30)$,
            and up to 128 where that is at most 64 MB.
        generator: Seed or generator of the start vectors.

    Cost: `steps + k` products with $A$ and as many with $A^\top$; memory $O((m + n) s)$ with
    $s$ the subspace.

    Example: the forward difference of $n$ numbers has the singular values
    $2\sin\frac{j\pi}{2n}$, $j = 1, \dots, n-1$.

    >>> D = LinearOperator((49, 50), torch.diff, dtype=torch.float64)
    >>> found = singular_values(D, 2)
    >>> exact = 2 * torch.sin(torch.tensor([49, 48]) * torch.pi / 100)
    >>> found.converged, bool((found.values - exact).abs().max() < 1e-6)
    (True, True)
    """
    m, n = A.shape
    whole_number(k, "the number of singular values", least=1, most=min(m, n))
    whole_number(steps, "steps", least=1)
    tolerance = effective_tolerance(tolerance, A.dtype)
    if subspace is None:
        subspace = default_subspace(max(m, n), k)
    whole_number(subspace, "subspace", least=1)
    tall = A if m >= n else A.adjoint
    space = RectangularSpace(tall, max(subspace, k + 2), as_generator(generator, A.device))
    wanted = find_extremal(space, [("largest", k)], tolerance, steps)
    right, _ = torch.linalg.qr(space.right_vectors(wanted))
    image = apply(tall, right)
    left, values, rotation = torch.linalg.svd(image, full_matrices=False)
    right, image = right @ rotation.T, image @ rotation.T
    forward = image - left * values
    backward = apply(space.At, left) - right * values
    residuals = torch.sqrt((forward.square().sum(0) + backward.square().sum(0)) / 2)
    converged = bool((residuals <= tolerance * max(space.scale, float(values[0]))).all())
    if m < n:
        left, right = right, left
    return SingularResult(values, left, right, residuals, space.products, converged)


@dataclass(frozen=True)
class OperatorNorm:
    r"""The largest singular value with its error bar; `float(result)` is the value.

    Attributes:
        value: $u^\top A v$ for unit vectors $u$, $v$. This is a lower bound of
            $\lVert A\rVert$, whatever the iteration did (up to rounding).
        residual: A singular value lies within this of `value`.
        left: `[m]`, the vector $u$.
        right: `[n]`, the vector $v$. `left @ (A @ right)` is differentiable in what `A` depends
            on, and its gradient is that of the norm.
        steps: Pairs of products with $A$ and $A^\top$.
        converged: Whether the residual met the tolerance.
    """

    value: float
    residual: float
    left: Tensor
    right: Tensor
    steps: int
    converged: bool

    @property
    def upper(self) -> float:
        r"""`value + residual`: an upper *estimate* of $\lVert A\rVert$.

        It is above a singular value for certain, and above the largest one unless the random
        start was nearly orthogonal to it; `operator_norm_upper_bound` puts a probability on that.
        """
        return self.value + self.residual

    def __float__(self) -> float:
        return self.value


def operator_norm(
    A: LinearOperator,
    *,
    tolerance: float = 1e-6,
    steps: int = 1000,
    generator: RandomSource = None,
) -> OperatorNorm:
    r"""$\lVert A\rVert = \max_{\lVert v\rVert = 1} \lVert Av\rVert$, the largest singular value.

    Works for any linear map given by its action, such as a convolution: the norm is its Lipschitz
    constant. The value is a certified lower bound, and comes with a residual. Arguments and cost
    are those of `singular_values` with $k = 1$.

    Example: a periodic convolution is diagonal in the Fourier basis, and its norm is the largest
    modulus of the kernel's transfer function, here $|1 + 2e^{i\omega}|$ at $\omega = 0$.

    >>> def convolve(x):
    ...     return x + 2 * torch.roll(x, 1, dims=-1)
    >>> A = LinearOperator.from_function(convolve, (64,), dtype=torch.float64)
    >>> round(float(operator_norm(A)), 8)
    3.0
    """
    found = singular_values(A, 1, tolerance=tolerance, steps=steps, generator=generator)
    return OperatorNorm(
        float(found.values[0]),
        float(found.residuals[0]),
        found.left[:, 0],
        found.right[:, 0],
        found.steps,
        found.converged,
    )


def operator_norm_upper_bound(
    A: LinearOperator,
    *,
    steps: int = 30,
    failure_probability: float = 1e-3,
    generator: RandomSource = None,
) -> float:
    r"""An upper bound of $\lVert A\rVert$ that holds with probability $1 - \delta$.

    Golub-Kahan bidiagonalization from a unit vector $v_1$ gives, after $j$ steps, a unit vector
    $v_{j+1} = p_j(A^\top A) v_1$ with a known polynomial
    $p_j(t) = \prod_i (t - \theta_i) / (\alpha_i \beta_i)$. If $c$ is the component of $v_1$ along
    the top singular vector, then $p_j(\lVert A\rVert^2)\,|c| \le \lVert v_{j+1}\rVert = 1$; and
    $p_j$ grows beyond its zeros, so $\lVert A\rVert^2$ is at most the root of $p_j(t) = 1/|c|$.
    For $v_1$ uniform on the sphere of $\mathbb{R}^d$, $c^2$ follows a
    $\mathrm{Beta}(\frac12, \frac{d-1}{2})$ law, whose $\delta$-quantile bounds $|c|$ from below
    (Hochstenbach, 2013). The bound is exact arithmetic's: rounding is not accounted for.

    Args:
        A: An operator from $\mathbb{R}^n$ to $\mathbb{R}^m$.
        steps: $j$; more steps tighten the bound, at most $\min(m, n)$ are done.
        failure_probability: $\delta$, over the random start vector.
        generator: Seed or generator of the start vector.

    Cost: $j$ products with $A$ and with $A^\top$; memory $O((m + n) j)$.

    >>> A = LinearOperator.from_matrix(torch.diag(torch.linspace(0.1, 1, 200).double()))
    >>> 1.0 <= operator_norm_upper_bound(A, steps=40) <= 1.02
    True
    """
    # Imported here, as scipy.special would double the time to import this module.
    from scipy.special import betaincinv

    if not 0 < failure_probability < 1:
        raise InvalidInput(
            f"a failure probability is strictly between 0 and 1, not {failure_probability}"
        )
    m, n = A.shape
    whole_number(steps, "steps", least=1, most=10**6)
    tall = A if m >= n else A.adjoint
    space = RectangularSpace(tall, steps, as_generator(generator, A.device))
    log_couplings = 0.0
    for j in range(space.capacity):
        space.expand()
        coupling = float(space.B[j, j]) * space.beta
        if coupling <= 0:  # an invariant subspace, which contains the top singular vector
            return float(space.values()[0][0])
        log_couplings += math.log(coupling)
    theta = space.values()[0].square()
    quantile = float(betaincinv(0.5, (space.dimension - 1) / 2, failure_probability))
    target = log_couplings - 0.5 * math.log(quantile)

    low, high = float(theta[0]), 2 * float(theta[0])
    while float((high - theta).log().sum()) < target:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if float((middle - theta).log().sum()) < target:
            low = middle
        else:
            high = middle
    return math.sqrt(high)


def spectral_norm(weight: Tensor) -> float:
    r"""$\|W\|_2$ of a matrix, or above `DENSE` rows and columns an upper bound of it.

    The bound takes 40 products, is above the norm with probability $1-10^{-6}$, and within a few
    percent of it; a decomposition of a matrix of 4096 rows and columns takes a minute.

    >>> spectral_norm(torch.diag(torch.tensor([3.0, 4.0])))
    4.0
    """
    weight = all_finite(weight.detach().double(), "the matrix")
    if min(weight.shape) == 0:
        return 0.0
    if min(weight.shape) <= DENSE:
        return float(torch.linalg.matrix_norm(weight, 2))
    operator = LinearOperator.from_matrix(weight)
    return operator_norm_upper_bound(operator, steps=PRODUCTS, failure_probability=FAILURE)
