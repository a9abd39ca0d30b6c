r"""The linear autoencoder $x\mapsto DCx$ and what it can do at best.

Samples are rows, $x_i^\top$ of `X[n, d]`; the encoder is $C\in\mathbb R^{m\times d}$
and the decoder $D\in\mathbb R^{d\times m}$. The loss is
$\frac1{2n}\sum_i\|x_i-DCx_i\|^2=\frac1{2n}\|X-XC^\top D^\top\|_F^2$, nothing is centered.
Source: Foundations of Deep Learning, section 2.3, Theorems 12 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_points
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import dense, drawn_linear


@dataclass(frozen=True, slots=True)
class LowRank:
    r"""The best approximation of a matrix by one of rank $r$ (Eckart and Young).

    Attributes:
        matrix: $X_r=U_r\Sigma_rV_r^\top$.
        singular_values: all of $X$, largest first.
        error: $\|X-X_r\|_F=\sqrt{\sum_{i>r}\sigma_i^2}$, from the singular values.
        energy: share of $\|X\|_F^2$ that each rank from 1 on keeps.
    """

    matrix: Tensor
    singular_values: Tensor
    error: float
    energy: Tensor


def low_rank(x: Tensor, rank: int) -> LowRank:
    r"""Truncate the singular value decomposition of `x[n, d]`. $O(nd\min(n,d))$.

    >>> best = low_rank(torch.diag(torch.tensor([4.0, 3.0, 1.0])), 1)
    >>> best.matrix.diagonal(), round(best.error, 6)                  # sqrt(9 + 1)
    (tensor([4., 0., 0.]), 3.162278)
    """
    x = as_points(x)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= min(x.shape):
        raise InvalidInput(f"rank must be a whole number from 0 to {min(x.shape)}, not {rank!r}")
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    energy = s.square().cumsum(0) / s.square().sum().clamp(min=torch.finfo(s.dtype).tiny)
    return LowRank((u[:, :rank] * s[:rank]) @ v[:rank], s, float(s[rank:].norm()), energy)


class LinearAutoencoder(nn.Module):
    r"""$x\mapsto z=Cx\mapsto y=Dz$ with a code of $m$ numbers.

    Args:
        features: $d$.
        code: $m$; below $d$ it compresses.

    >>> net = LinearAutoencoder(5, 2)
    >>> net.encoder.weight.shape, net.decoder.weight.shape
    (torch.Size([2, 5]), torch.Size([5, 2]))
    """

    def __init__(
        self,
        features: int,
        code: int,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.encoder = drawn_linear(
            features, code, bias=False, generator=source, dtype=dtype, device=device
        )
        self.decoder = drawn_linear(
            code, features, bias=False, generator=source, dtype=dtype, device=device
        )

    @classmethod
    def optimal(cls, x: Tensor, code: int, mixing: Tensor | None = None) -> LinearAutoencoder:
        r"""The closed form $C=U_m^\top$, $D=U_m$ (Theorem 13).

        $U_m$ are the first left singular vectors of the matrix whose columns are the
        samples. The optimum is not unique: with an invertible `mixing` $M$,
        $C=M^{-1}U_m^\top$, $D=U_mM$ computes the same map.

        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
        >>> float(LinearAutoencoder.optimal(x, 1).loss(x).detach())     # (1/2n) sigma_2^2
        0.25
        """
        x = as_points(x)
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= min(x.shape):
            raise InvalidInput(
                f"code must be a whole number from 1 to {min(x.shape)}, not {code!r}"
            )
        _, _, v = torch.linalg.svd(x, full_matrices=False)
        encoder, decoder = v[:code], v[:code].T
        if mixing is not None:
            if mixing.shape != (code, code):
                raise ShapeMismatch(f"mixing must be [{code}, {code}], not {list(mixing.shape)}")
            encoder, decoder = torch.linalg.solve(mixing, encoder), decoder @ mixing
        return cls.from_matrices(encoder, decoder)

    @classmethod
    def from_matrices(cls, encoder: Tensor, decoder: Tensor) -> LinearAutoencoder:
        """The autoencoder with given `C[m, d]` and `D[d, m]`."""
        if encoder.ndim != 2 or decoder.shape != encoder.T.shape:
            raise ShapeMismatch(
                f"C [m, d] and D [d, m] are needed, not {list(encoder.shape)} and "
                f"{list(decoder.shape)}"
            )
        made = cls(encoder.shape[1], encoder.shape[0], dtype=encoder.dtype, device=encoder.device)
        made.encoder, made.decoder = dense(encoder), dense(decoder)
        return made

    def encode(self, x: Tensor) -> Tensor:
        """`[n, d]` to codes `[n, m]`."""
        code: Tensor = self.encoder(x)
        return code

    def decode(self, z: Tensor) -> Tensor:
        """Codes `[n, m]` to `[n, d]`."""
        out: Tensor = self.decoder(z)
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))

    def loss(self, x: Tensor) -> Tensor:
        r"""$\frac1{2n}\sum_i\|x_i-DCx_i\|^2$."""
        residual: Tensor = x - self(x)
        return residual.square().sum() / (2 * len(x))

    def gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Gradients of the loss in $C$ and $D$, written out.

        For one sample $\partial\ell/\partial C=D^\top(y-x)x^\top$ and
        $\partial\ell/\partial D=(y-x)x^\top C^\top$; here their mean over the rows.
        """
        with torch.no_grad():
            c, d = self.encoder.weight, self.decoder.weight
            outer = (self(x) - x).T @ x / len(x)
            return d.T @ outer, outer @ c.T


def least_loss(x: Tensor, code: int) -> float:
    r"""The smallest loss any linear autoencoder has: $\frac1{2n}\sum_{i>m}\sigma_i^2$.

    >>> least_loss(torch.diag(torch.tensor([2.0, 1.0])), 1)
    0.25
    """
    return low_rank(x, code).error ** 2 / (2 * len(x))
