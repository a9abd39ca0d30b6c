r"""Second moments of inputs and targets: all that the squared loss of a linear map depends on.

With $\Sigma_{xx}=\mathbb E\,xx^\top$, $\Sigma_{yx}=\mathbb E\,yx^\top$ and
$\Sigma_{yy}=\mathbb E\,yy^\top$ (nothing is centered) the risk of $x\mapsto Zx$ is

$$
R(Z)=\mathbb E\|y-Zx\|^2
=\operatorname{tr}(\Sigma_{yy}-2\Sigma_{yx}Z^\top+Z\Sigma_{xx}Z^\top),
$$

for a sample with means over the sample. Source: Mathematical Aspects of Deep Learning, section
4.3.1, (4.11)-(4.15).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_points, as_symmetric, as_targets, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch


@dataclass(frozen=True, slots=True)
class Covariances:
    r"""The uncentered second moments of a pair $(x,y)$.

    Attributes:
        xx: $\Sigma_{xx}$, `[n0, n0]`, positive semi-definite.
        yx: $\Sigma_{yx}$, `[k, n0]`.
        yy: $\Sigma_{yy}$, `[k, k]`.

    Matrices that are the moments of no distribution are refused: where the inputs have no
    variance, they have no covariance with the targets either.

    >>> moments = Covariances(torch.eye(2), torch.tensor([[3.0, 0.0]]), torch.tensor([[10.0]]))
    >>> float(moments.risk(torch.tensor([[2.0, 0.0]])))           # 10 - 2 * 6 + 4
    2.0
    """

    xx: Tensor
    yx: Tensor
    yy: Tensor

    def __post_init__(self) -> None:
        xx, yy = as_symmetric(self.xx, "the matrix xx"), as_symmetric(self.yy, "the matrix yy")
        yx = as_matrix(self.yx, "the matrix yx")
        if yx.shape != (len(yy), len(xx)):
            raise ShapeMismatch(
                f"yx must be [{len(yy)}, {len(xx)}] to fit yy and xx, not {list(yx.shape)}"
            )
        if len({xx.dtype, yx.dtype, yy.dtype}) > 1:
            raise InvalidInput(
                f"the three matrices must have one dtype, not {xx.dtype}, {yx.dtype} and {yy.dtype}"
            )
        joint = torch.cat([torch.cat([xx, yx.T], 1), torch.cat([yx, yy], 1)])
        spectrum = torch.linalg.eigvalsh(joint)
        rounding = 100 * len(joint) * torch.finfo(xx.dtype).eps * max(float(spectrum[-1]), 0.0)
        if float(spectrum[0]) < -rounding:
            raise InvalidInput(
                "these are no second moments: the joint matrix of x and y has the eigenvalue "
                f"{float(spectrum[0]):.3g}"
            )

    @classmethod
    def from_samples(cls, x: Tensor, y: Tensor) -> Covariances:
        r"""Means over a sample, `x[n, n0]` and `y[n, k]` (or `y[n]`).

        >>> x = torch.tensor([[1.0], [2.0]])
        >>> Covariances.from_samples(x, 3 * x).yx
        tensor([[7.5000]])
        """
        x = as_points(x)
        y = as_targets(y, x)
        y = y[:, None] if y.ndim == 1 else y
        if y.ndim != 2:
            raise ShapeMismatch(f"y must be [samples, outputs], not {list(y.shape)}")
        return cls(x.T @ x / len(x), y.T @ x / len(x), y.T @ y / len(x))

    @property
    def inputs(self) -> int:
        return len(self.xx)

    @property
    def outputs(self) -> int:
        return len(self.yy)

    @property
    def invertible(self) -> bool:
        r"""Whether $\Sigma_{xx}$ has full rank in this precision."""
        return int(torch.linalg.matrix_rank(self.xx, hermitian=True)) == self.inputs

    def risk(self, maps: Tensor) -> Tensor:
        r"""$R(Z)$ for maps `[..., k, n0]`, one number each.

        Where the risk is many digits smaller than $\operatorname{tr}\Sigma_{yy}$, those
        digits are lost, since the trace formula is a difference.
        """
        if maps.shape[-2:] != self.yx.shape:
            raise ShapeMismatch(
                f"a linear map here is {list(self.yx.shape)}, not {list(maps.shape)}"
            )
        return self.yy.trace() + (maps * (maps @ self.xx - 2 * self.yx)).sum((-2, -1))

    def risk_gradient(self, maps: Tensor) -> Tensor:
        r"""$\nabla R(Z)=2(Z\Sigma_{xx}-\Sigma_{yx})$, `[..., k, n0]`."""
        return 2 * (maps @ self.xx - self.yx)

    def explained(self) -> Tensor:
        r"""$\Sigma=\Sigma_{yx}\Sigma_{xx}^+\Sigma_{xy}$, `[k, k]`: the second moments of
        the best linear prediction."""
        made = least_squares_map(self) @ self.yx.T
        return (made + made.T) / 2

    def directions(self) -> tuple[Tensor, Tensor]:
        r"""Eigenvalues of $\Sigma$, largest first `[k]`, and eigenvectors as columns."""
        values, vectors = torch.linalg.eigh(self.explained())
        return values.flip(0).clamp(min=0), vectors.flip(1)

    def distinct(self) -> bool:
        r"""Whether the eigenvalues of $\Sigma$ are positive and all differ, by 1e-9 of the
        largest."""
        values, _ = self.directions()
        gaps = torch.cat([-values.diff(), values[-1:]])
        return bool((gaps > 1e-9 * values[0]).all())


def least_squares_map(covariances: Covariances) -> Tensor:
    r"""The unconstrained minimizer $Z^*=\Sigma_{yx}\Sigma_{xx}^+$ of the risk, `[k, n0]`.

    Its risk is $\operatorname{tr}(\Sigma_{yy}-\Sigma)$. Where $\Sigma_{xx}$ is
    singular it is the minimizer of least norm. Cost $O(n_0^3)$.

    >>> least_squares_map(Covariances(2 * torch.eye(1), torch.ones(1, 1), torch.ones(1, 1)))
    tensor([[0.5000]])
    """
    inverse: Tensor = torch.linalg.pinv(covariances.xx, hermitian=True)
    return covariances.yx @ inverse


@dataclass(frozen=True, slots=True)
class ReducedRank:
    r"""The best linear map of limited rank.

    Attributes:
        map: $Z=Q_rQ_r^\top\Sigma_{yx}\Sigma_{xx}^+$, `[k, n0]`.
        value: its risk $\operatorname{tr}\Sigma_{yy}-\sum_{i\le r}\lambda_i$.
        rank: $r$, how many directions were allowed.
    """

    map: Tensor
    value: float
    rank: int


def reduced_rank_regression(covariances: Covariances, rank: int) -> ReducedRank:
    r"""Minimize $R(Z)$ over maps of rank at most $r$.

    $Q_r$ holds the leading eigenvectors of $\Sigma$. It is the global minimum of every
    linear network whose narrowest layer has width $r$. No assumption on the covariances: a
    singular $\Sigma_{xx}$ is met by its pseudo-inverse.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> reduced_rank_regression(moments, 1).value                      # 8 - 4
    4.0
    """
    whole_number(rank, "the rank", least=0)
    values, vectors = covariances.directions()
    top = vectors[:, :rank]
    value = float(covariances.yy.trace() - values[:rank].sum())
    return ReducedRank(top @ (top.T @ least_squares_map(covariances)), value, rank)
