r"""The two-layer linear network $x\mapsto UV^\top x$: gradients, curvature, best factors.

$U\in\mathbb R^{k\times n_1}$ is the second layer, $V^\top$, with
$V\in\mathbb R^{n_0\times n_1}$, the first; the risk is
$R(U,V)=\mathbb E\|y-UV^\top x\|^2$, a function of the `Covariances` alone. The
$\frac12\sum_i\|y_i-ABx_i\|^2$ of other texts is $\frac n2R(A,B^\top)$.

Sources: Mathematical Aspects of Deep Learning, section 4.3.1; Foundations of Deep Learning,
sections 6.1.1 and 6.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, whole_number
from torchtheory.core.errors import InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.optimization.linear_networks.second_moments import Covariances, least_squares_map


def two_layer_gradients(U: Tensor, V: Tensor, covariances: Covariances) -> tuple[Tensor, Tensor]:
    r"""Gradients of the risk in both factors; both vanish at a critical point.

    $\partial R/\partial U=2(UV^\top\Sigma_{xx}-\Sigma_{yx})V$ and
    $\partial R/\partial V=2(\Sigma_{xx}VU^\top-\Sigma_{xy})U$.

    >>> one = torch.ones(1, 1)
    >>> two_layer_gradients(2 * one, 3 * one, Covariances(one, one, one))
    (tensor([[30.]]), tensor([[20.]]))
    """
    check_weights(U, V, covariances)
    slope = covariances.risk_gradient(U @ V.T)
    return slope @ V, slope.T @ U


def two_layer_curvature(
    U: Tensor, V: Tensor, dU: Tensor, dV: Tensor, covariances: Covariances
) -> Tensor:
    r"""The Hessian of the risk along $(\Delta_U,\Delta_V)$: the second derivative of
    $t\mapsto R(U+t\Delta_U,V+t\Delta_V)$ at 0,

    $$
    2\|(U\Delta_V^\top+\Delta_UV^\top)\Sigma_{xx}^{1/2}\|_F^2
    +4\langle\Delta_U\Delta_V^\top,UV^\top\Sigma_{xx}-\Sigma_{yx}\rangle.
    $$

    >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    >>> two_layer_curvature(zero, zero, one, one, Covariances(one, one, one))   # (1 - t²)²
    tensor(-4.)
    """
    check_weights(U, V, covariances)
    check_weights(dU, dV, covariances)
    first = U @ dV.T + dU @ V.T
    slope = covariances.risk_gradient(U @ V.T)
    return 2 * (first * (first @ covariances.xx)).sum() + 2 * (dU @ dV.T * slope).sum()


def two_layer_hessian(U: Tensor, V: Tensor, covariances: Covariances) -> Tensor:
    r"""The Hessian of the risk in all weights, those of the first layer $V^\top$ first, row
    by row, as in `flat_layers([V.T, U])`; `[p, p]` with $p=n_1(n_0+k)$.

    Each column is the derivative of the gradients along one unit direction. Time
    $O(p\,n_0k\max(n_0,n_1))$, memory $O(p^2+p\,n_0k)$.

    >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    >>> two_layer_hessian(zero, zero, Covariances(one, one, one)).tolist()
    [[0.0, -2.0], [-2.0, 0.0]]
    """
    check_weights(U, V, covariances)
    first, second = V.numel(), U.numel()
    units = torch.eye(first + second, dtype=U.dtype, device=U.device)
    dV = units[:, :first].view(-1, *V.T.shape).transpose(1, 2)
    dU = units[:, first:].view(-1, *U.shape)
    slope = covariances.risk_gradient(U @ V.T)
    change = 2 * (dU @ V.T + U @ dV.transpose(1, 2)) @ covariances.xx
    by_U = change @ V + slope @ dV
    by_V = change.transpose(1, 2) @ U + slope.T @ dU
    return torch.cat([by_V.transpose(1, 2).flatten(1), by_U.flatten(1)], 1)


def best_input_factor(U: Tensor, covariances: Covariances) -> Tensor:
    r"""The $V$ of least risk (and least norm) for a given $U$:
    $V=\Sigma_{xx}^+\Sigma_{xy}U(U^\top U)^+$.

    The risk is convex in each factor by itself; this solves
    $U^\top UV^\top\Sigma_{xx}=U^\top\Sigma_{yx}$.

    >>> one = torch.ones(1, 1)
    >>> best_input_factor(2 * one, Covariances(one, 3 * one, 9 * one))
    tensor([[1.5000]])
    """
    _check_one(U, covariances.outputs, "U", covariances)
    inverse: Tensor = torch.linalg.pinv(U)
    return least_squares_map(covariances).T @ inverse.T


def best_output_factor(V: Tensor, covariances: Covariances) -> Tensor:
    r"""The $U$ of least risk for a given $V$:
    $U=\Sigma_{yx}V(V^\top\Sigma_{xx}V)^+$.

    >>> one = torch.ones(1, 1)
    >>> best_output_factor(2 * one, Covariances(one, 3 * one, 9 * one))
    tensor([[1.5000]])
    """
    _check_one(V, covariances.inputs, "V", covariances)
    gram = V.T @ covariances.xx @ V
    inverse: Tensor = torch.linalg.pinv((gram + gram.T) / 2, hermitian=True)
    return covariances.yx @ V @ inverse


@dataclass(frozen=True, slots=True)
class AlternatingFit:
    r"""What alternating minimization came to.

    Attributes:
        U, V: the factors after the last sweep.
        risks: `[2 * sweeps]`, after every half step; never increasing.
    """

    U: Tensor
    V: Tensor
    risks: Tensor


def alternating_minimization(
    covariances: Covariances,
    width: int,
    *,
    sweeps: int = 200,
    start: Tensor | None = None,
    generator: RandomSource = None,
) -> AlternatingFit:
    r"""Solve for $V$, then for $U$, and again.

    The span of $U$ follows a power iteration with $\Sigma$, so that from a random
    start it tends to the leading eigenvectors, the error of the risk falling by
    $(\lambda_{n_1+1}/\lambda_{n_1})^2$ a sweep.

    Args:
        covariances: of inputs and targets.
        width: $n_1$, any.
        sweeps: how often each factor is solved for.
        start: $U$, `[k, n1]`; Gaussian unless given. A critical $U$ stays.
        generator: seed or generator of the start.

    Cost: $O(n_0(n_0+k)n_1)$ a sweep, and $O(n_0^3)$ once.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> round(float(alternating_minimization(moments, 1).risks[-1]), 5)
    4.0
    """
    whole_number(width, "the width", least=1)
    whole_number(sweeps, "sweeps", least=1)
    if start is None:
        U = gaussian(
            covariances.outputs, width, generator=as_generator(generator),
            dtype=covariances.xx.dtype, device=covariances.xx.device,
        )  # fmt: skip
    else:
        U = start.detach()
        _check_one(U, covariances.outputs, "the start", covariances)
        if U.shape[1] != width:
            raise ShapeMismatch(f"the start has {U.shape[1]} columns, the network {width} units")
    risks = []
    best = least_squares_map(covariances)
    for _ in range(sweeps):
        V = best.T @ torch.linalg.pinv(U).T
        risks.append(covariances.risk(U @ V.T))
        U = best_output_factor(V, covariances)
        risks.append(covariances.risk(U @ V.T))
    return AlternatingFit(U, V, torch.stack(risks))


def column_projector(U: Tensor, tolerance: float = 1e-9) -> Tensor:
    r"""$P_U=U(U^\top U)^+U^\top$, the orthogonal projector onto the columns, `[k, k]`.

    Directions in which $U$ is smaller than `tolerance` (or rounding) times its norm do not
    count.

    >>> column_projector(torch.tensor([[2.0], [0.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    as_matrix(U, "U")
    left, sigma, _ = torch.linalg.svd(U, full_matrices=False)
    kept: Tensor = left[:, sigma > max(tolerance, 50 * torch.finfo(U.dtype).eps) * sigma[:1]]
    return kept @ kept.T


def critical_form_residual(
    U: Tensor, V: Tensor, covariances: Covariances, tolerance: float = 1e-9
) -> float:
    r"""How far a point is from the form $UV^\top=P_U\Sigma_{yx}\Sigma_{xx}^{-1}$ that every
    critical point has, in the norm $\|\cdot\,\Sigma_{xx}^{1/2}\|_F$ of the predictions.

    Directions in which $U$ is smaller than `tolerance` times its norm, or times that of a
    balanced factor, $\|\Sigma_{yx}\Sigma_{xx}^+\|^{1/2}$, do not count: near a point where
    $U$ loses rank the tolerance must exceed the error of $U$.

    >>> one = torch.ones(1, 1)
    >>> critical_form_residual(one, 2 * one, Covariances(one, 3 * one, 9 * one))
    1.0
    """
    check_weights(U, V, covariances)
    best = least_squares_map(covariances)
    size, balanced = torch.linalg.matrix_norm(U, 2), torch.linalg.matrix_norm(best, 2).sqrt()
    least = tolerance * float(balanced / size) if float(size) > 0 else tolerance
    gap = U @ V.T - column_projector(U, max(tolerance, least)) @ best
    return float((gap * (gap @ covariances.xx)).sum().clamp(min=0).sqrt())


def check_weights(U: Tensor, V: Tensor, covariances: Covariances) -> None:
    """Refuse factors that do not fit each other or the data."""
    _check_one(U, covariances.outputs, "U", covariances)
    _check_one(V, covariances.inputs, "V", covariances)
    if U.shape[1] != V.shape[1]:
        raise ShapeMismatch(f"U has {U.shape[1]} columns and V has {V.shape[1]}: one a hidden unit")


def _check_one(factor: Tensor, rows: int, name: str, covariances: Covariances) -> None:
    if len(as_matrix(factor, name)) != rows:
        raise ShapeMismatch(f"{name} must be [{rows}, width], not {list(factor.shape)}")
    if factor.dtype != covariances.xx.dtype:
        raise InvalidType(
            f"{name} is {factor.dtype}, the covariances are {covariances.xx.dtype}; convert one"
        )
