r"""Barron's constant where no formula is at hand: by quadrature, by the FFT, by sampling.

$$
C_f=\int_{\mathbb R^d}|\omega|\,|F(\omega)|\,d\omega,\qquad
f(x)=\int e^{i\omega^\top x}F(\omega)\,d\omega .
$$

Frequencies are angular; the lectures' constant with $e^{2\pi i\omega^\top x}$ is
$C_f/2\pi$. Exact values belong to the classes of
`torchtheory.approximation.barron.spectra`. A finite constant needs a continuous gradient: a kink or
a jump makes the estimates grow with every refinement. Sources: Foundations of Deep Learning,
sections 4.1 and 4.4; Mathematical Foundations of Deep Learning (slides), "Barron's Theorem".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import integrate, special
from torch import Tensor

from torchtheory.approximation.barron.spectra import GaussianBump
from torchtheory.core.checks import all_finite, first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.primer.function_spaces import fourier_transform


@dataclass(frozen=True, slots=True)
class BarronEstimate:
    r"""An estimate of $C_f$.

    Attributes:
        value: $C_f$, angular frequencies.
        error: how far the estimate on half the resolution is away.
    """

    value: float
    error: float

    @property
    def in_cycles(self) -> float:
        r"""$C_f/2\pi$, the constant for $e^{2\pi i\omega^\top x}$."""
        return self.value / (2 * math.pi)


def grid_barron_constant(values: Tensor, start: float, spacing: float) -> BarronEstimate:
    r"""The constant of a function given on a grid, by the fast Fourier transform.

    The function must have decayed at the ends of the grid. The error compares with the same grid
    with every second point left out; where $C_f$ is infinite the value grows with every
    refinement and the error does not shrink. Cost: $O(N\log N)$.

    Args:
        values: `[n]` or `[n, ..., n]`, the same grid on every axis.
        start, spacing: of each axis.

    >>> x = torch.arange(-40, 40, 0.125).double()
    >>> found = grid_barron_constant(torch.exp(-x**2 / 2), -40.0, 0.125)
    >>> abs(found.value - (2 / torch.pi) ** 0.5) < 0.001
    True
    """
    all_finite(values, "the values on the grid")
    if values.ndim == 0 or min(values.shape) < 8:
        raise ShapeMismatch(f"the grid needs 8 points or more an axis, not {list(values.shape)}")
    fine = _grid_constant(values, start, spacing)
    coarse = _grid_constant(values[(slice(None, None, 2),) * values.ndim], start, 2 * spacing)
    return BarronEstimate(fine, abs(fine - coarse))


def _grid_constant(values: Tensor, start: float, spacing: float) -> float:
    frequencies, transform = fourier_transform(values, start, spacing)
    squares = torch.zeros((), dtype=frequencies.dtype)
    for axis in range(values.ndim):
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        squares = squares + frequencies.square().reshape(shape)
    step = float(frequencies[1] - frequencies[0])
    return 2 * math.pi * float((squares.sqrt() * transform.abs()).sum()) * step**values.ndim


def radial_barron_constant(
    magnitude: Callable[[float], float], dimension: int, *, cutoff: float = math.inf
) -> BarronEstimate:
    r"""The constant of a function with radial magnitudes, $|F(\omega)|=m(|\omega|)$.

    $$
    C_f=\frac{2\pi^{d/2}}{\Gamma(d/2)}\int_0^\Omega\rho^d\,m(\rho)\,d\rho
    $$

    Args:
        magnitude: $m$, of a length.
        dimension: $d$.
        cutoff: $\Omega$; the frequencies above it are left out.

    >>> bell = lambda rho: math.exp(-rho**2 / 2) / (2 * math.pi)
    >>> round(radial_barron_constant(bell, 2).value, 6)
    1.253314
    """
    whole_number(dimension, "dimension", least=1)
    if not cutoff > 0:
        raise InvalidInput(f"cutoff must be a positive number, not {cutoff!r}")
    surface = 2 * math.exp(dimension / 2 * math.log(math.pi) - special.gammaln(dimension / 2))
    value, error = integrate.quad(lambda rho: rho**dimension * magnitude(rho), 0, cutoff, limit=400)
    return BarronEstimate(surface * value, surface * error)


def monte_carlo_barron_constant(
    magnitude: Callable[[Tensor], Tensor],
    density: Callable[[Tensor], Tensor],
    frequencies: Tensor,
    confidence: float = 0.99,
) -> Interval:
    r"""The constant by importance sampling, $\mathbb E_q\,|\omega||F(\omega)|/q(\omega)$.

    Args:
        magnitude: $|F|$, of rows of frequencies.
        density: $q$, the density the frequencies were drawn from.
        frequencies: draws, `[n, d]`.

    Returns:
        the mean with Student's interval; it means something when the terms have a variance.

    >>> w = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> bell = lambda w: torch.exp(-w.square().sum(1) / 2) / (2 * math.pi) ** 1.5
    >>> found = monte_carlo_barron_constant(bell, bell, w)
    >>> found.low < 1.595769 < found.high
    True
    """
    if frequencies.ndim != 2:
        raise ShapeMismatch(f"the frequencies must be [n, d], not {list(frequencies.shape)}")
    chance = density(frequencies)
    if not (chance > 0).all():
        raise InvalidInput(
            "the density must be positive wherever a frequency was drawn: "
            f"{first_entry(chance, 'the value', ~(chance > 0))}"
        )
    return mean_interval(frequencies.norm(dim=1) * magnitude(frequencies) / chance, confidence)


def gaussian_density(dimension: int, deviation: float) -> GaussianBump:
    r"""The density of $N(0,\sigma^2I_d)$ as a function with known frequencies.

    $$
    C_f=(2\pi\sigma^2)^{-d/2}\,\frac{\sqrt2\,\Gamma(\frac{d+1}2)}{\sigma\Gamma(\frac d2)}
    \le(2\pi\sigma^2)^{-d/2}\frac{\sqrt d}\sigma
    $$

    As $d$ grows it vanishes for $2\pi\sigma^2>1$, explodes for
    $2\pi\sigma^2<1$, and grows like $\sqrt{2\pi d}$ at equality.

    >>> f = gaussian_density(1, 1.0)
    >>> round(f.barron_constant / (2 * math.pi), 6), round(1 / (2 * math.pi**2), 6)
    (0.050661, 0.050661)
    """
    positive_number(deviation, "deviation")
    height = math.exp(
        -whole_number(dimension, "dimension", least=1) / 2 * math.log(2 * math.pi * deviation**2)
    )
    return GaussianBump(dimension, deviation, height=height)


def root_dimension_bound(bump: GaussianBump) -> float:
    r"""$|h|\sqrt d/s$, Jensen's upper bound on the constant of a Gaussian.

    >>> round(root_dimension_bound(gaussian_density(1, 1.0)) / (2 * math.pi), 5)
    0.06349
    """
    return bump.mass * math.sqrt(bump.dimension) / bump.width
