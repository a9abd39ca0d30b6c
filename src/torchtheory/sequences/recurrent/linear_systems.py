r"""Linear recurrences $z_{t+1}=Az_t+Bx_t$ in the basis where they are diagonal.

With $A=P\Lambda P^{-1}$ over the complex numbers, $\zeta=P^{-1}z$ and $C=P^{-1}B$,

$$
\zeta_{t+1}=\Lambda\zeta_t+Cx_t,
$$

which is one scan per entry, and a convolution with the kernel $A^kB=P\Lambda^kC$. Almost every
matrix can be written so; a Jordan block cannot, and near one $P$ is badly conditioned. Source:
Deep Learning (notes), section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_square, described, one_of, positive_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.recurrent.linear_scans import linear_scan

Method = Literal["loop", "scan", "convolution"]

METHODS: tuple[Method, ...] = ("loop", "scan", "convolution")


@dataclass(frozen=True, slots=True)
class DiagonalSystem:
    r"""$\zeta_{t+1}=\Lambda\zeta_t+Cx_t$ with $z=P\zeta$.

    Attributes:
        eigenvalues: the diagonal of $\Lambda$, `[m]`, complex.
        entering: $C=P^{-1}B$, `[m, n]`, complex.
        basis: $P$, `[m, m]`: eigenvectors of length 1 in its columns.
        condition: of $P$ in the spectral norm; rounding errors grow by up to this factor.
    """

    eigenvalues: Tensor
    entering: Tensor
    basis: Tensor
    condition: float

    def states(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        r"""$\zeta_1,\dots,\zeta_T$, `[..., T, m]`, for inputs `[..., T, n]` from $\zeta_0$."""
        return linear_scan(
            self.eigenvalues, x.to(self.entering.dtype) @ self.entering.mT, initial=start
        )


def diagonalize(A: Tensor, B: Tensor, *, largest_condition: float | None = None) -> DiagonalSystem:
    r"""The recurrence $z_{t+1}=Az_t+Bx_t$ in a basis of eigenvectors of $A$.

    Args:
        A: `[m, m]`, real.
        B: `[m, n]`, real.
        largest_condition: of the basis; beyond it the matrix counts as one that cannot be
            diagonalized and is refused. Unless given, $1/\sqrt\varepsilon$ of the dtype, where
            half of the digits are lost: rounding alone moves the eigenvalues of a Jordan block
            apart by some $\varepsilon^{1/k}$.

    Time $O(m^3)$.

    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    >>> found = diagonalize(turn, torch.eye(2).double())
    >>> sorted((found.eigenvalues.imag).tolist()), round(found.condition, 6)
    ([-1.0, 1.0], 1.0)
    >>> diagonalize(torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double(), torch.eye(2).double())
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: A cannot be diagonalized, or hardly: ...
    """
    as_square(A, "A")
    as_matrix(B, "B", rows=len(A))
    if largest_condition is None:
        largest_condition = float(torch.finfo(A.dtype).eps) ** -0.5
    positive_number(largest_condition, "largest_condition")
    values, basis = torch.linalg.eig(A)
    condition = float(torch.linalg.cond(basis))
    if not condition <= largest_condition:
        raise InvalidInput(
            f"A cannot be diagonalized, or hardly: its eigenvectors have the condition number "
            f"{condition:.1e}, and at most {largest_condition:.1e} is allowed. It has a Jordan "
            "block or is close to a matrix that has; run the recurrence by the loop"
        )
    entering = torch.linalg.solve(basis, B.to(basis.dtype))
    return DiagonalSystem(values, entering, basis, condition)


def linear_states(
    A: Tensor, B: Tensor, x: Tensor, *, start: Tensor | None = None, method: Method = "scan"
) -> Tensor:
    r"""The states $z_1,\dots,z_T$ of $z_t=Az_{t-1}+Bx_t$, `[..., T, m]`.

    Args:
        A: `[m, m]`, real.
        B: `[m, n]`, real.
        x: inputs `[..., T, n]`.
        start: $z_0$, `[m]` or with the batch of x; 0 unless given.
        method: `loop`: step by step, $O(Tm^2)$, for every matrix; `scan`: diagonalized,
            $O(Tm^2+m^3)$ in $O(\sqrt T)$ steps; `convolution`: with the kernel $A^kB$ through the
            fast Fourier transform, $O(T\log T\,mn)$.

    >>> half, one = torch.tensor([[0.5]]).double(), torch.tensor([[1.0]]).double()
    >>> linear_states(half, one, torch.ones(3, 1).double()).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    one_of(method, "method", METHODS)
    as_square(A, "A")
    as_matrix(B, "B", rows=len(A))
    if not isinstance(x, Tensor) or x.dtype != A.dtype:
        raise InvalidType(f"x must be a tensor of the dtype of A, {A.dtype}, not {described(x)}")
    if x.ndim < 2 or x.shape[-1] != B.shape[1] or x.shape[-2] == 0:
        raise ShapeMismatch(f"x must be [..., T, {B.shape[1]}], not {list(x.shape)}")
    if method == "scan":
        system = diagonalize(A, B)
        inner = None
        if start is not None:
            inner = torch.linalg.solve(system.basis, start.to(system.basis.dtype).unsqueeze(-1))[
                ..., 0
            ]
        return (system.states(x, inner) @ system.basis.mT).real
    if method == "convolution":
        kernel = impulse_response(A, B, x.shape[-2])
        made = causal_convolution(kernel, x)
        if start is None:
            return made
        return (
            made + (impulse_response(A, A, x.shape[-2]) @ start.unsqueeze(-2).unsqueeze(-1))[..., 0]
        )
    z = x.new_zeros(*x.shape[:-2], len(A)) if start is None else start
    found = []
    for moment in (x @ B.mT).unbind(-2):
        z = z @ A.mT + moment
        found.append(z)
    return torch.stack(found, -2)


def impulse_response(A: Tensor, B: Tensor, steps: int) -> Tensor:
    r"""$B,AB,\dots,A^{T-1}B$, `[T, m, n]`: the kernel of the recurrence as a convolution.

    By doubling, in $\log_2T$ products.

    >>> impulse_response(torch.tensor([[0.5]]), torch.tensor([[1.0]]), 4).flatten().tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    found, power = B.unsqueeze(0), A
    while len(found) < steps:
        found = torch.cat([found, power @ found])
        power = power @ power
    return found[:steps]


def causal_convolution(kernel: Tensor, x: Tensor) -> Tensor:
    r"""$y_t=\sum_{k=0}^{t-1}K_kx_{t-k}$ for matrices `K[T', m, n]` and inputs `[..., T, n]`.

    By transforms padded with zeros, so that nothing winds round: $O(T\log T)$ per entry of K.

    >>> ones = torch.ones(4, 1).double()
    >>> causal_convolution(ones[:2, :, None], ones).flatten().round(decimals=9).tolist()
    [1.0, 2.0, 2.0, 2.0]
    """
    steps = x.shape[-2]
    size = next_fast_len(steps + len(kernel) - 1, real=True)
    at = torch.fft.rfft(kernel, size, 0)
    values = torch.fft.rfft(x, size, -2)
    product = torch.einsum("fmn,...fn->...fm", at, values)
    made: Tensor = torch.fft.irfft(product, size, -2)
    return made[..., :steps, :]
