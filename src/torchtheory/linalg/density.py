"""The whole spectrum of a symmetric operator at once, by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.estimate import Estimate
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.linalg.krylov import three_term_recurrence, tridiagonal_matrix
from torchtheory.linalg.operators import (
    LinearOperator,
    check_square,
    column_blocks,
    vectors_within,
)

#: copies of an eigenvalue lie within so many units of rounding of the largest
_COPIES_WITHIN = 100.0


@dataclass(frozen=True)
class SpectralDensity:
    r"""An estimate of the spectral measure $\frac1n\sum_i \delta_{\lambda_i}$ by point masses.

    Attributes:
        nodes: `[p, k]`, for each of $p$ probes up to $k$ different points, ascending, in float64
            on the CPU; places that are left over at the end of a row hold 0.
        weights: `[p, k]`, their masses, 0 at places left over; each row sums to 1.
    """

    nodes: Tensor
    weights: Tensor

    def moment(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        r"""$\frac1n \operatorname{tr} f(A) = \frac1n \sum_i f(\lambda_i)$, with its standard error.

        Args:
            function: $f$, elementwise on a tensor. Points of weight 0 are not evaluated, so
                $f$ needs to be defined on the spectrum only.
        """
        carried = self.weights > 0
        values = torch.zeros_like(self.nodes)
        values[carried] = self.weights[carried] * function(self.nodes[carried])
        return Estimate.of(values.sum(dim=1))

    def mass_below(self, end: float) -> tuple[Tensor, Tensor]:
        """Bounds `[p]` on what every probe's measure has below a point.

        By the separation theorem of Chebyshev, Markov and Stieltjes, a measure and its Gauss rule
        agree below any point up to the masses of the nodes on its two sides.

        >>> nodes, weights = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.25, 0.5, 0.25]])
        >>> rho = SpectralDensity(nodes, weights)
        >>> [float(bound) for bound in rho.mass_below(1.5)]
        [0.25, 1.0]
        """
        carried, below = self.weights > 0, self.nodes < end
        mass = (self.weights * below).sum(1)
        if math.isinf(end):  # nothing or everything is below
            return mass, mass
        left = torch.where(carried & below, self.nodes, -math.inf).argmax(1, keepdim=True)
        right = torch.where(carried & ~below, self.nodes, math.inf).argmin(1, keepdim=True)
        before, after = (
            torch.where(side.any(1), self.weights.gather(1, place)[:, 0], 0.0)
            for side, place in ((carried & below, left), (carried & ~below, right))
        )
        return mass - before, mass + after

    def share_between(self, low: float, high: float) -> Estimate:
        r"""The share of eigenvalues from `low` to below `high`, and how far it may be off.

        The nodes stand for the eigenvalues around them, and do not tell those on one side of an end
        from those on the other. Half of what `mass_below` leaves open is added to the standard
        error of the probes.

        >>> nodes, weights = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.25, 0.5, 0.25]])
        >>> rho = SpectralDensity(nodes, weights)
        >>> rho.share_between(-math.inf, 1.5).value
        0.75
        """
        (least_low, most_low), (least_high, most_high) = map(self.mass_below, (low, high))
        found = self.moment(lambda t: ((t >= low) & (t < high)).to(t))
        unknown = (most_high - least_low).clamp(max=1) - (least_high - most_low).clamp(min=0)
        error = found.standard_error + float(unknown.mean()) / 2
        return Estimate(found.value, error, found.samples)

    def density(self, grid: Tensor, width: float) -> Tensor:
        r"""The density smoothed by a Gaussian of standard deviation `width`, on `grid` `[g]`.

        $\phi_\sigma(t) = \sum_i w_i\, \mathcal{N}(t; \theta_i, \sigma^2)$; it integrates to 1.
        """
        if not width > 0:
            raise InvalidInput(f"the width of the smoothing must be positive, not {width}")
        points = grid.detach().cpu().double()
        z = (points[:, None] - self.nodes.flatten()) / width
        bumps = torch.exp(-0.5 * z.square()) / (width * math.sqrt(2 * math.pi))
        return (bumps @ self.weights.flatten() / len(self.nodes)).to(grid)

    def cdf(self, grid: Tensor) -> Tensor:
        r"""The share of eigenvalues that are at most $t$, for $t$ in `grid` `[g]`."""
        nodes, order = self.nodes.flatten().sort()
        mass = torch.cat([nodes.new_zeros(1), self.weights.flatten()[order].cumsum(0)])
        index = torch.searchsorted(nodes, grid.detach().cpu().double(), right=True)
        return (mass[index] / len(self.nodes)).to(grid)


def spectral_density(
    A: LinearOperator,
    *,
    probes: int = 10,
    steps: int = 50,
    memory: str | int | None = None,
    generator: RandomSource = None,
) -> SpectralDensity:
    r"""Stochastic Lanczos quadrature: the spectral measure of a symmetric operator.

    For a random sign vector $z$, $\mathbb{E}\, \tfrac1n z^\top f(A) z = \tfrac1n
    \operatorname{tr} f(A)$. The left side is an integral of $f$ against the measure
    $\sum_i \tfrac1n (z^\top v_i)^2 \delta_{\lambda_i}$, whose $k$-point Gauss rule the Lanczos
    process gives: the nodes are the eigenvalues of $T$, the weights the squared first components
    of its eigenvectors. The rule is exact for polynomials of degree up to $2k - 1$, and for every
    $f$ once $k$ reaches the number of distinct eigenvalues (Golub and Meurant; Ubaru, Chen and
    Saad, 2017). What remains is the randomness of the probes.

    The process forgets, once it has found an eigenvalue to rounding, and finds it again and again:
    such copies share the mass of one point, and are merged into it. Fewer than $k$ points are left
    then.

    Args:
        A: A symmetric operator on $\mathbb{R}^n$.
        probes: $p$, the number of random vectors; the standard error falls like $1/\sqrt p$.
        steps: $k$, the products per probe (at most $n$ are done).
        memory: Bytes for vectors besides those of a product; that of the operator (`A.memory`)
            unless given. One probe takes four vectors whatever it is.
        generator: Seed or generator of the probes.

    Cost: $pk$ products and $O(pkn)$; the probes run side by side in blocks of at most $2^{26}$
    numbers of memory.

    Example: the log-determinant of a diagonal matrix with two distinct entries, for which two
    steps and one probe are exact.

    >>> A = LinearOperator.from_matrix(torch.diag(torch.tensor([1.0, 1.0, 1.0, 5.0]).double()))
    >>> rho = spectral_density(A, probes=1, steps=2)
    >>> round(4 * rho.moment(torch.log).value, 10) == round(math.log(5), 10)
    True
    """
    n = check_square(A, "the spectral density")
    whole_number(probes, "probes", least=1)
    whole_number(steps, "steps", least=1)
    steps = min(steps, n)
    random = as_generator(generator, A.device)
    nodes, weights = [], []
    for block in column_blocks(4 * n, probes, budget=min(2**26, n * vectors_within(A, memory))):
        alphas, betas = three_term_recurrence(
            A,
            rademacher(n, len(block), generator=random, dtype=A.dtype, device=A.device),
            steps,
        )
        T = tridiagonal_matrix(alphas.cpu().double(), betas.cpu().double())
        theta, S = torch.linalg.eigh(T)
        rounding = torch.finfo(A.dtype).eps * theta.abs().amax(1, keepdim=True)
        points, masses = _merged(theta, S[:, 0].square(), _COPIES_WITHIN * rounding)
        nodes.append(points)
        weights.append(masses)
    return SpectralDensity(torch.cat(nodes), torch.cat(weights))


def _merged(nodes: Tensor, weights: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending points `[p, k]` with those not `apart` `[p, 1]` from the next one made one.

    The one is at their center of mass, so that the mean of a function changes by the square of
    their distance only.
    """
    first = torch.cat([torch.ones_like(nodes[:, :1]), nodes.diff(dim=1) > apart], 1)
    place = first.cumsum(1).long() - 1
    mass = torch.zeros_like(weights).scatter_add_(1, place, weights)
    center = torch.zeros_like(nodes).scatter_add_(1, place, weights * nodes)
    center = torch.where(mass > 0, center / mass.where(mass > 0, 1.0), 0.0)
    # places without mass go last: those left over, and copies on their way to an eigenvalue
    order = (mass == 0).int().argsort(dim=1, stable=True)
    return center.gather(1, order), mass.gather(1, order)
