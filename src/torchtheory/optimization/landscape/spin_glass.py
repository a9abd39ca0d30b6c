r"""Critical points by value and index: the spherical spin glass, and any smooth function.

The Hamiltonian is $H(s)=n^{-(p-1)/2}\sum J_{i_1\dots i_p}s_{i_1}\cdots s_{i_p}$ on the sphere
$\|s\|^2=n$, with independent standard normal $J$. At a critical point of energy
$e=H/n$ a share of the eigenvalues of the Hessian on the sphere is negative: the *index*. For
large $n$ that Hessian is a matrix of the Gaussian orthogonal ensemble less $pe$, so

$$
\text{index}\to F\Bigl(e\sqrt{\tfrac p{p-1}}\Bigr),\qquad
F\text{ the distribution function of Wigner's semicircle on }[-2,2]:
$$

the lower the energy, the fewer the ways down, and none is left below
$-2\sqrt{(p-1)/p}$. Source: Mathematical Aspects of Deep Learning, section 1.5.1, Figure 1.14.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.core.mapping import Mapped
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.linalg.operators import effective_tolerance
from torchtheory.optimization.descent.iterates import Function, check_start

#: Couplings that are drawn at most: 8 gigabytes of them.
MOST_COUPLINGS = 10**9

#: Gradients `[b, p]` and Hessians `[b, p, p]` at points `[b, p]`.
Derivatives = Callable[[Tensor], tuple[Tensor, Tensor]]


class SphericalSpinGlass:
    r"""A random polynomial of degree $p$ on the sphere of radius $\sqrt n$.

    Args:
        couplings: $J$, `[n, ..., n]` with $p\ge2$ axes; its symmetric part counts.

    Memory $O(n^p)$, and $O(n^{p-1})$ for each of the spin vectors that energies and
    derivatives are asked for together.

    >>> glass = SphericalSpinGlass(torch.tensor([[1.0, 2.0], [2.0, -1.0]]))
    >>> round(float(glass.energy(torch.tensor([1.0, 1.0]))), 5)     # (1 + 4 - 1) / sqrt(2)
    2.82843
    """

    def __init__(self, couplings: Tensor) -> None:
        if couplings.ndim < 2 or len(set(couplings.shape)) != 1 or couplings.shape[0] < 2:
            raise ShapeMismatch(
                f"couplings have p >= 2 axes of one length n >= 2, not {list(couplings.shape)}"
            )
        if not couplings.is_floating_point() or not bool(torch.isfinite(couplings).all()):
            raise NonFinite(f"couplings must be finite real numbers, not {described(couplings)}")
        self.size, self.degree = couplings.shape[0], couplings.ndim
        orders = list(permutations(range(self.degree)))
        symmetric = sum((couplings.permute(order) for order in orders), 0 * couplings)
        self.couplings = symmetric / len(orders) * self.size ** (-(self.degree - 1) / 2)

    @classmethod
    def random(
        cls,
        size: int,
        degree: int = 3,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> SphericalSpinGlass:
        """Independent standard normal couplings.

        >>> SphericalSpinGlass.random(5).couplings.shape
        torch.Size([5, 5, 5])
        """
        whole_number(size, "the number of spins", least=1, most=10**6)
        whole_number(degree, "degree", least=1, most=8)
        if size**degree > MOST_COUPLINGS:
            raise InvalidInput(
                f"{size} spins and degree {degree} have {size**degree:.2g} couplings, which is too "
                f"many for memory; at most {MOST_COUPLINGS:.0e} are drawn"
            )
        draws = gaussian(*[size] * degree, generator=as_generator(generator), dtype=dtype)
        return cls(draws)

    def energy(self, spins: Tensor) -> Tensor:
        """$H(s)$ at `[..., n]`."""
        pairs = self._pairs(spins)
        return torch.einsum("...i,...ij,...j->...", spins, pairs, spins)

    def derivatives(self, spins: Tensor) -> tuple[Tensor, Tensor]:
        r"""Gradient `[..., n]` and Hessian `[..., n, n]` on the sphere.

        With $P=I-ss^\top/n$ they are $P\nabla H$ and
        $P(\nabla^2H-\frac{pH}nI)P$; the normal direction is in the kernel.
        """
        pairs = self._pairs(spins)
        slope = self.degree * torch.einsum("...ij,...j->...i", pairs, spins)
        multiplier = torch.einsum("...i,...i->...", spins, slope) / self.size
        eye = torch.eye(self.size).to(spins)
        project = eye - spins[..., :, None] * spins[..., None, :] / self.size
        hessian = self.degree * (self.degree - 1) * pairs - multiplier[..., None, None] * eye
        gradient: Tensor = slope - multiplier[..., None] * spins
        return gradient, project @ hessian @ project

    def to_sphere(self, points: Tensor) -> Tensor:
        r"""The points scaled to norm $\sqrt n$."""
        made: Tensor = points * (math.sqrt(self.size) / points.norm(dim=-1, keepdim=True))
        return made

    def _pairs(self, spins: Tensor) -> Tensor:
        """The couplings with all but two axes contracted with the spins, `[..., n, n]`."""
        if spins.shape[-1] != self.size:
            raise ShapeMismatch(f"there are {self.size} spins, not {spins.shape[-1]}")
        if spins.dtype != self.couplings.dtype:
            raise InvalidType(
                f"the couplings are {self.couplings.dtype}, the spins {spins.dtype}; convert one"
            )
        batch = spins.reshape(-1, self.size)
        made = self.couplings.expand(len(batch), *self.couplings.shape)
        if self.degree > 2:
            # the first contraction as one product of matrices: no copy of the couplings a point
            flat = batch @ self.couplings.reshape(-1, self.size).T
            made = flat.reshape(-1, *[self.size] * (self.degree - 1))
        for _ in range(self.degree - 3):
            made = torch.einsum("b...i,bi->b...", made, batch)
        shaped: Tensor = made.reshape(*spins.shape[:-1], self.size, self.size)
        return shaped


@dataclass(frozen=True, slots=True)
class CriticalSet:
    """Different critical points of a function, lowest first.

    Attributes:
        points: `[m, p]`.
        values: of the function, `[m]`.
        index: share of negative eigenvalues of the Hessian, `[m]`.
        gradient_norms: what is left of the gradient, `[m]`.
    """

    points: Tensor
    values: Tensor
    index: Tensor
    gradient_norms: Tensor


def critical_points_of_glass(glass: SphericalSpinGlass, starts: Tensor) -> CriticalSet:
    r"""Critical points of the Hamiltonian on the sphere that a damped Newton method finds.

    Args:
        glass: the Hamiltonian.
        starts: `[b, n]`, scaled to the sphere.

    The gradient of a critical point is at most 1e-8, or 50 machine epsilons. The values are $H$;
    the index is the share among $n-1$ tangent directions.

    >>> glass = SphericalSpinGlass(torch.diag(torch.tensor([1.0, 2.0, 3.0])).double())
    >>> starts = torch.eye(3).double() + 0.1
    >>> found = critical_points_of_glass(glass, starts)               # the eigenvectors
    >>> (found.values / 3**0.5).round(decimals=6).tolist(), found.index.tolist()
    ([1.0, 2.0, 3.0], [0.0, 0.5, 1.0])
    """
    check_start(starts)
    if bool((starts.norm(dim=-1) == 0).any()):
        raise InvalidInput("a start of norm 0 has no direction to be scaled to the sphere along")
    tolerance = effective_tolerance(1e-8, starts.dtype)
    points, norms = descend_gradient_norm(
        glass.derivatives,
        glass.to_sphere(starts),
        retract=glass.to_sphere,
        tolerance=tolerance,
    )
    points, norms = points[norms <= tolerance], norms[norms <= tolerance]
    _, hessians = glass.derivatives(points)
    values = glass.energy(points)
    return _distinct(points, values, hessians, norms, glass.size - 1)


def critical_points_of(
    function: Function, starts: Tensor, *, tolerance: float = 1e-8, steps: int = 200
) -> CriticalSet:
    r"""Critical points of a smooth function that a damped Newton method finds.

    Args:
        function: of `[p]`, one value; twice differentiable by `torch.func`.
        starts: `[b, p]`.
        tolerance: largest gradient norm of a critical point; at least 50 machine epsilons.
        steps: most steps.

    Costs a dense Hessian a start and step, $O(bp^2)$ memory; for networks of some dozen
    parameters.

    >>> def wave(x):
    ...     return x.cos().sum()
    >>> starts = torch.tensor([[0.1, 0.1], [0.2, 3.0], [3.0, 3.3]]).double()
    >>> found = critical_points_of(wave, starts)
    >>> found.values.round(decimals=6).tolist(), found.index.tolist()
    ([-2.0, 0.0, 2.0], [0.0, 0.5, 1.0])
    """
    check_start(starts)
    for first in starts[:1]:
        if shape := list(function(first).shape):
            raise ShapeMismatch(f"the function must have one value at a point [p], not {shape}")
    tolerance = effective_tolerance(tolerance, starts.dtype)
    slopes, bends = Mapped(torch.func.grad(function)), Mapped(torch.func.hessian(function))

    def derivatives(points: Tensor) -> tuple[Tensor, Tensor]:
        return slopes(points), bends(points)

    points, norms = descend_gradient_norm(derivatives, starts, tolerance=tolerance, steps=steps)
    points, norms = points[norms <= tolerance], norms[norms <= tolerance]
    if not len(points):  # vmap refuses to map over nothing
        empty = starts.new_empty(0)
        return CriticalSet(points, empty, empty, empty)
    _, hessians = derivatives(points)
    values = Mapped(function)(points)
    return _distinct(points, values, hessians, norms, starts.shape[-1])


def descend_gradient_norm(
    derivatives: Derivatives,
    starts: Tensor,
    *,
    retract: Function | None = None,
    tolerance: float = 1e-8,
    steps: int = 200,
) -> tuple[Tensor, Tensor]:
    r"""Minimize $\|g\|^2$ from many starts at once by damped Newton steps.

    $d=-(A^2+\mu I)^{-1}Ag$ with gradient $g$ and Hessian $A$: Newton's step for
    $\mu\to0$, and one that lowers $\|g\|$ for any $A$ if $\mu$ is large
    enough; each start has its own $\mu$, a third after a step that helped and four times as
    large after one that did not. It goes to critical points of every index, unlike descent on the
    function. A start may end at a minimum of $\|g\|$ that is not 0.

    Args:
        derivatives: see `Derivatives`.
        starts: `[b, p]`.
        retract: back onto the manifold after a step; none unless given.

    Returns:
        Points `[b, p]` and gradient norms `[b]`.
    """
    whole_number(steps, "steps", least=1)
    if starts.ndim != 2:
        raise ShapeMismatch(f"starts are [b, p], not {list(starts.shape)}")
    if not tolerance > 0:
        raise InvalidInput(f"the tolerance must be positive, not {tolerance!r}")
    points = starts.clone()
    gradient, hessian = derivatives(points)
    norms = gradient.norm(dim=-1)
    damping = norms.square().clamp_min(1e-12)
    eye = torch.eye(points.shape[1]).to(points)
    for _ in range(steps):
        going = (norms > tolerance) & (damping < 1e12)
        if not bool(going.any()):
            break
        A, g = hessian[going], gradient[going]
        system = A @ A + damping[going, None, None] * eye
        step = torch.linalg.solve(system, torch.einsum("bij,bj->bi", A, g))
        moved = points[going] - step
        moved = moved if retract is None else retract(moved)
        new_gradient, new_hessian = derivatives(moved)
        new_norms = new_gradient.norm(dim=-1)
        better = new_norms < norms[going]
        which = going.nonzero()[:, 0]
        taken = which[better]
        points[taken], norms[taken] = moved[better], new_norms[better]
        gradient[taken], hessian[taken] = new_gradient[better], new_hessian[better]
        damping[taken] = damping[taken] / 3
        damping[which[~better]] *= 4
    return points, norms


def expected_index(energy: Tensor, degree: int) -> Tensor:
    r"""$F(e\sqrt{p/(p-1)})$, the index of critical points of energy $e=H/n$ as
    $n\to\infty$; $F(x)=\frac12+\frac{x\sqrt{4-x^2}}{4\pi}+\frac1\pi\arcsin\frac x2$.

    >>> expected_index(torch.tensor([-2.0, 0.0]), degree=3).tolist()
    [0.0, 0.5]
    """
    if degree < 2:
        raise InvalidInput(f"the degree of a spin glass is at least 2, not {degree}")
    x = (energy * math.sqrt(degree / (degree - 1))).clamp(-2, 2)
    made: Tensor = 0.5 + x * (4 - x.square()).sqrt() / (4 * math.pi) + (x / 2).asin() / math.pi
    return made


def _distinct(
    points: Tensor, values: Tensor, hessians: Tensor, norms: Tensor, directions: int
) -> CriticalSet:
    """Each point once, lowest first; `directions` is what the index is a share of."""
    eigenvalues = torch.linalg.eigvalsh((hessians + hessians.mT) / 2)
    rounding = max(1e-7, 50 * torch.finfo(points.dtype).eps)
    small = rounding * eigenvalues.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    index = (eigenvalues < -small).sum(-1).to(points) / directions
    order = values.argsort()
    kept: list[int] = []
    size = float(points.norm(dim=-1).max()) if len(points) else 1.0
    for k in order.tolist():
        if not kept or float((points[kept] - points[k]).norm(dim=-1).min()) > 1e-4 * size:
            kept.append(k)
    return CriticalSet(points[kept], values[kept], index[kept], norms[kept])
