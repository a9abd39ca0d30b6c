r"""Three objectives of the prerequisites with their gradients written out.

Least squares, matrix factorization and nonlinear least squares (Foundations of Deep Learning,
section 1.3.4 and Problem 2 of section 1.7). The minimizer of least squares is
`torchtheory.neurons.regression.least_squares`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.primer.differences import Function
from torchtheory.primer.taylor import derivative


def squared_residual(A: Tensor, y: Tensor, x: Tensor) -> Tensor:
    r"""$\|Ax-y\|_2^2$ for `A[n, d]`, `y[n]`, `x[d]`.

    >>> squared_residual(torch.eye(2), torch.ones(2), torch.tensor([4.0, 5.0]))
    tensor(25.)
    """
    _check_system(A, y, x)
    return (A @ x - y).square().sum()


def squared_residual_gradient(A: Tensor, y: Tensor, x: Tensor) -> Tensor:
    r"""The gradient $2A^\top(Ax-y)$ of `squared_residual`, `[d]`.

    The row form $2(Ax-y)^\top A$ of Eq. (1.21) has the same entries.

    >>> squared_residual_gradient(torch.eye(2), torch.ones(2), torch.tensor([4.0, 5.0]))
    tensor([6., 8.])
    """
    _check_system(A, y, x)
    return 2 * A.T @ (A @ x - y)


def squared_norm_gradient(function: Function, x: Tensor) -> Tensor:
    r"""The gradient $2J_g(x)^\top g(x)$ of $\|g(x)\|_2^2$, by one backward pass.

    >>> squared_norm_gradient(torch.exp, torch.zeros(2))
    tensor([2., 2.])
    """
    value, pullback, *_ = torch.func.vjp(function, x)
    made: Tensor = pullback(2 * value)[0]
    return made


def factorization_gradients(U: Tensor, V: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    r"""Gradients of $L(U,V)=\frac12\|UV-R\|_F^2$.

    $\partial L/\partial U=(UV-R)V^\top$ and $\partial L/\partial V=U^\top(UV-R)$, for
    `U[n, p]`, `V[p, m]`, `R[n, m]`.

    >>> one = torch.ones(1, 1)
    >>> factorization_gradients(2 * one, 3 * one, one)
    (tensor([[15.]]), tensor([[10.]]))
    """
    if U.ndim != 2 or V.ndim != 2 or U.shape[1] != V.shape[0]:
        raise ShapeMismatch(f"factors of shapes {list(U.shape)} and {list(V.shape)} do not chain")
    if R.shape != (U.shape[0], V.shape[1]):
        raise ShapeMismatch(f"the target is {list(R.shape)}, the product of the factors is not")
    residual = U @ V - R
    return residual @ V.T, U.T @ residual


@dataclass(frozen=True, slots=True)
class Factorization:
    r"""A low-rank approximation $R\approx UV$.

    Attributes:
        U: `[n, p]`.
        V: `[p, m]`.
        losses: $\frac12\|UV-R\|_F^2$ after every sweep.
    """

    U: Tensor
    V: Tensor
    losses: Tensor


def factorize(
    R: Tensor, rank: int, *, sweeps: int = 200, generator: RandomSource = None
) -> Factorization:
    r"""Minimize $\frac12\|UV-R\|_F^2$ by alternating least squares.

    Each half step solves for one factor exactly, so the loss never increases. From a random start
    it converges to $\frac12\sum_{i>p}\sigma_i(R)^2$, the least that rank $p$ can do,
    linearly with the factor $(\sigma_{p+1}/\sigma_p)^4$ in the loss.

    Args:
        R: `[n, m]`, every entry known.
        rank: $p\le\min(n,m)$.
        sweeps: how often each factor is solved for.
        generator: seed or generator of the start.

    Cost: $O(nmp)$ a sweep.

    >>> R = torch.diag(torch.tensor([3.0, 2.0, 1.0])).double()
    >>> round(float(factorize(R, 2).losses[-1]), 9)
    0.5
    """
    R = as_matrix(R)
    whole_number(rank, "rank", least=1, most=min(R.shape))
    whole_number(sweeps, "sweeps", least=1)
    U = gaussian(
        R.shape[0], rank, generator=as_generator(generator), dtype=R.dtype, device=R.device
    )
    losses = []
    for _ in range(sweeps):
        Q, _ = torch.linalg.qr(U)  # the same span, well conditioned
        V = Q.T @ R
        U = R @ torch.linalg.pinv(V)
        losses.append(0.5 * (U @ V - R).square().sum())
    return Factorization(U, V, torch.stack(losses))


Link = Callable[[Tensor], Tensor]


def nonlinear_least_squares(link: Link, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""$L(w)=\frac1{2n}\sum_i(y_i-\ell(x_i^\top w))^2$ for `x[n, d]`, `y[n]`.

    >>> nonlinear_least_squares(torch.tanh, torch.zeros(2), torch.eye(2), torch.tensor([0.0, 2.0]))
    tensor(1.)
    """
    _check_system(x, y, w)
    return (y - link(x @ w)).square().mean() / 2


def nonlinear_least_squares_gradient(link: Link, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""$\nabla L=-\frac1n\sum_i(y_i-\ell(z_i))\,\ell'(z_i)\,x_i$, $z_i=x_i^\top w$.

    The link acts on every entry by itself; its derivative is taken by automatic differentiation.

    >>> x, y = torch.eye(2), torch.tensor([0.0, 2.0])
    >>> nonlinear_least_squares_gradient(torch.tanh, torch.zeros(2), x, y)
    tensor([ 0., -1.])
    """
    _check_system(x, y, w)
    z = x @ w
    return -x.T @ ((y - link(z)) * derivative(link, z)) / len(x)


def nonlinear_least_squares_hessian(link: Link, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""$\nabla^2L=\frac1n\sum_i[\ell'(z_i)^2-(y_i-\ell(z_i))\,\ell''(z_i)]\,x_ix_i^\top$.

    The first term alone is the Gauss-Newton matrix. For the identity as link the Hessian is
    $X^\top X/n$.

    >>> x, y = torch.eye(2), torch.tensor([0.0, 2.0])
    >>> nonlinear_least_squares_hessian(torch.exp, torch.zeros(2), x, y)
    tensor([[1., 0.],
            [0., 0.]])
    """
    _check_system(x, y, w)
    z = x @ w
    weights = derivative(link, z) ** 2 - (y - link(z)) * derivative(link, z, 2)
    return (x.T * weights) @ x / len(x)


def _check_system(A: Tensor, y: Tensor, x: Tensor) -> None:
    if A.ndim != 2 or y.shape != A.shape[:1] or x.shape != A.shape[1:]:
        raise ShapeMismatch(
            f"a matrix {list(A.shape)} does not fit a vector {list(x.shape)} on the right and "
            f"{list(y.shape)} as target"
        )
    if len({A.dtype, x.dtype, y.dtype}) > 1:
        raise InvalidInput(f"the dtypes {A.dtype}, {x.dtype} and {y.dtype} differ: convert them")
