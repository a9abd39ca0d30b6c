r"""Gaussian vectors, degenerate ones included: affine maps, density, characteristic function.

Source: Foundations of Deep Learning, Problem 4 of section 1.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_symmetric, as_vector, open_fraction, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian


@dataclass(frozen=True, slots=True)
class Gaussian:
    r"""The law $N(\mu,\Sigma)$ on $\mathbb R^k$, with any covariance.

    Unlike `torch.distributions.MultivariateNormal` the covariance may be singular (then there
    is no density), and samples come from a given generator.

    Attributes:
        mean: $\mu$, `[k]`.
        covariance: $\Sigma$, `[k, k]`, symmetric positive semidefinite.

    >>> flat = Gaussian(torch.zeros(1).double(), torch.eye(1).double())
    >>> line = flat.affine(torch.tensor([[3.0], [4.0]]).double(), torch.tensor([1.0, 0.0]).double())
    >>> line.mean.tolist(), line.covariance.tolist(), line.rank
    ([1.0, 0.0], [[9.0, 12.0], [12.0, 16.0]], 1)
    """

    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        mean, covariance = as_vector(self.mean, "the mean"), as_symmetric(self.covariance, "Σ")
        if len(mean) != len(covariance):
            raise ShapeMismatch(
                f"the mean has {len(mean)} entries and the covariance is {list(covariance.shape)}"
            )
        if mean.dtype != covariance.dtype:
            raise InvalidInput(f"the mean is {mean.dtype} and the covariance {covariance.dtype}")
        values = torch.linalg.eigvalsh(covariance)
        if bool(values[0] < -_rounding(values)):
            raise InvalidInput(f"a covariance has no negative eigenvalue, and one is {values[0]:g}")

    @property
    def rank(self) -> int:
        """The dimension of the subspace the law lives on (shifted by the mean)."""
        values = torch.linalg.eigvalsh(self.covariance)
        return int((values > _rounding(values)).sum())

    def affine(self, A: Tensor, b: Tensor) -> Gaussian:
        r"""The law $N(A\mu+b,A\Sigma A^\top)$ of $AX+b$, for `A[p, k]`, `b[p]`."""
        A, b = as_matrix(A), as_vector(b, "b")
        if A.shape != (len(b), len(self.mean)):
            raise ShapeMismatch(
                f"a map {list(A.shape)} and a shift {list(b.shape)} do not fit dimension "
                f"{len(self.mean)}"
            )
        covariance = A @ self.covariance @ A.T
        return Gaussian(A @ self.mean + b, (covariance + covariance.T) / 2)

    def root(self) -> Tensor:
        r"""A matrix `[k, k]` with $SS^\top=\Sigma$, from the eigendecomposition."""
        values, vectors = torch.linalg.eigh(self.covariance)
        root: Tensor = vectors * values.clamp_min(0).sqrt()
        return root

    def sample(self, n: int, *, generator: RandomSource = None) -> Tensor:
        """Independent draws `[n, k]`."""
        whole_number(n, "the number of draws", least=1)
        noise = gaussian(
            n,
            len(self.mean),
            generator=as_generator(generator),
            dtype=self.mean.dtype,
            device=self.mean.device,
        )
        return self.mean + noise @ self.root().T

    def log_density(self, x: Tensor) -> Tensor:
        r"""The logarithm of the density at the rows of `x[n, k]`.

        $-\frac k2\log2\pi-\frac12\log\det\Sigma-\frac12(x-\mu)^\top\Sigma^{-1}(x-\mu)$,
        refused for a singular covariance, where there is none.
        """
        if self.rank < len(self.mean):
            raise InvalidInput(
                f"the covariance has rank {self.rank} in dimension {len(self.mean)}: the law lives "
                f"on a subspace and has no density"
            )
        factor = torch.linalg.cholesky(self.covariance)
        white = torch.linalg.solve_triangular(
            factor, (as_matrix(x, "x") - self.mean).T, upper=False
        )
        volume = factor.diagonal().log().sum() + 0.5 * len(self.mean) * math.log(2 * math.pi)
        logarithm: Tensor = -0.5 * white.square().sum(0) - volume
        return logarithm

    def characteristic_function(self, t: Tensor) -> Tensor:
        r"""$\mathbb E e^{it^\top X}=\exp(it^\top\mu-\frac12t^\top\Sigma t)$ at rows of t."""
        t = as_matrix(t, "t")
        return torch.exp(1j * (t @ self.mean) - 0.5 * ((t @ self.covariance) * t).sum(1))

    def ellipse(self, mass: float = 0.95) -> Tensor:
        """The level curve `[200, 2]` of a law on the plane that encloses a given mass."""
        if len(self.mean) != 2:
            raise InvalidInput(
                f"an ellipse is drawn in the plane, not in dimension {len(self.mean)}"
            )
        open_fraction(mass, "the mass")
        angle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64).to(self.mean)
        circle = torch.stack([angle.cos(), angle.sin()], dim=1)
        return self.mean + math.sqrt(stats.chi2.ppf(mass, 2)) * circle @ self.root().T


def moments_by_quadrature(law: Gaussian, *, points: int = 201) -> tuple[float, Tensor, Tensor]:
    r"""Total mass, mean and covariance of a law on the line or the plane, from its density.

    The trapezoidal rule on the box $\mu_i\pm10\sqrt{\Sigma_{ii}}$, which is accurate beyond
    any power of the spacing once it resolves the density's narrowest direction.

    Args:
        law: with a density, in dimension 1 or 2.
        points: along each axis.

    Returns:
        mass (1 for a density), mean `[k]`, covariance `[k, k]`.

    >>> law = Gaussian(torch.tensor([2.0]).double(), torch.tensor([[9.0]]).double())
    >>> mass, mean, covariance = moments_by_quadrature(law)
    >>> round(mass, 12), round(float(mean), 12), round(float(covariance), 12)
    (1.0, 2.0, 9.0)
    """
    k = len(law.mean)
    if k > 2:
        raise InvalidInput(f"quadrature is for dimensions 1 and 2, not {k}; draw samples instead")
    whole_number(points, "points", least=1, most=10**4)
    reach = 10 * law.covariance.diagonal().sqrt()
    axes = [torch.linspace(-1, 1, points, dtype=torch.float64).to(law.mean) * r for r in reach]
    offsets = torch.cartesian_prod(*axes).reshape(-1, k)
    cell = math.prod(float(a[1] - a[0]) for a in axes)
    weights = law.log_density(law.mean + offsets).exp() * cell
    shift = weights @ offsets
    centered = offsets - shift
    return float(weights.sum()), law.mean + shift, (centered.T * weights) @ centered


def _rounding(values: Tensor) -> Tensor:
    return 8 * len(values) * torch.finfo(values.dtype).eps * values.abs().max()
