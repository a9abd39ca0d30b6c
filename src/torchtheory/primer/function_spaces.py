r"""Functions as vectors: the Fourier transform and Sobolev-Slobodeckij norms, on the line.

Conventions of The Modern Mathematics of Deep Learning, section 1.1.1: the Fourier transform is
$\hat f(\xi)=\int f(x)e^{-2\pi i\langle x,\xi\rangle}dx$, which is unitary without a factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import roots_jacobi
from torch import Tensor

from torchtheory.core.checks import nonnegative_number, open_fraction, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.primer.taylor import derivative

#: The power of 2 of the smallest part of an interval at which roughness is looked for, and
#: how near to each other two powers of it count as one.
_FINEST, _POWERS_APART = 14, 1e-3


def fourier_transform(values: Tensor, start: float, spacing: float) -> tuple[Tensor, Tensor]:
    r"""The transform $\hat f(\xi)=\int f(x)e^{-2\pi i\langle x,\xi\rangle}dx$ on a grid.

    The integral is the Riemann sum over the grid, summed by the fast Fourier transform. It is
    accurate beyond any power of the spacing for a smooth function that has decayed at the ends
    of the grid. Every axis has the same grid `start + spacing * arange(n)`.

    Args:
        values: `[n]`, or `[n, ..., n]` for a function of several variables.
        start: first point of each axis.
        spacing: distance of neighbors.

    Returns:
        frequencies: `[n]`, ascending, from $-1/(2h)$ in steps of $1/(nh)$.
        transform: complex, of the shape of the values, axis by axis at those frequencies.

    Cost: $O(N\log N)$ for $N$ values.

    >>> x = torch.arange(-8, 8, 1 / 16).double()
    >>> xi, transform = fourier_transform(torch.exp(-torch.pi * x**2), -8.0, 1 / 16)
    >>> bool((transform - torch.exp(-torch.pi * xi**2)).abs().max() < 1e-14)
    True
    """
    if values.ndim == 0 or len(set(values.shape)) != 1:
        raise ShapeMismatch(f"every axis needs the same grid, the shape is {list(values.shape)}")
    if not (math.isfinite(spacing) and spacing > 0 and math.isfinite(start)):
        raise InvalidInput(f"the spacing must be positive and finite, not {spacing!r}")
    real = values.dtype.to_real()
    n = values.shape[0]
    frequencies = torch.fft.fftfreq(n, spacing, dtype=real, device=values.device)
    transform = torch.fft.fftn(values) * spacing**values.ndim
    phase = torch.exp(-2j * torch.pi * frequencies * start)
    for axis in range(values.ndim):
        transform = transform * phase.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    return torch.fft.fftshift(frequencies), torch.fft.fftshift(transform)


def lebesgue_norm(
    function: Callable[[Tensor], Tensor],
    p: float,
    low: float,
    high: float,
    *,
    panels: int = 64,
) -> float:
    r"""$\|f\|_{L^p(a,b)}=(\int_a^b|f|^p)^{1/p}$; the largest value met for $p=\infty$.

    Args:
        function: $f$, applied to a tensor entry by entry.
        p: from 1 to `math.inf`.
        low, high: the interval.
        panels: pieces of the interval, each with an 8-point Gauss rule.

    >>> round(lebesgue_norm(torch.sin, 2, 0.0, 2 * math.pi), 12)      # the root of pi
    1.772453850906
    """
    _check_exponent(p)
    nodes, weights = _gauss_panels(low, high, panels)
    return _norm(function(nodes), weights, p)


def slobodeckij_seminorm(
    function: Callable[[Tensor], Tensor],
    s: float,
    p: float,
    low: float,
    high: float,
    *,
    panels: int = 64,
) -> float:
    r"""$|f|_{s,p}=\bigl(\iint\frac{|f(x)-f(y)|^p}{|x-y|^{1+sp}}dx\,dy\bigr)^{1/p}$ on (a, b).

    In the distance $h=|x-y|$ the integrand behaves as $h^{p(1-s)-1}$ near 0, which
    a Gauss-Jacobi rule has as its weight, so the singularity costs no accuracy for a function
    with a derivative. For $p=\infty$ it is the Hölder seminorm, as the largest quotient met,
    which is a lower bound.

    It is infinite where $\int|f(x+h)-f(x)|^pdx$, which falls like a power of $h$, does not fall
    faster than $h^{sp}$, as with a jump for $sp\ge1$. That power is measured at $h=(b-a)2^{-14}$,
    below which nothing is seen.

    Args:
        function: $f$, applied to a tensor entry by entry.
        s: strictly between 0 and 1.
        p: from 1 to `math.inf`.
        low, high: the interval.
        panels: pieces of the interval; the cost is $O(\text{panels}^2)$.

    >>> linear = slobodeckij_seminorm(lambda x: x, 0.5, 2, 0.0, 1.0)
    >>> round(linear, 12)                                # the integrand is 1
    1.0
    >>> slobodeckij_seminorm(torch.sign, 0.5, 2, -1.0, 1.0)
    inf
    """
    _check_exponent(p)
    open_fraction(s, "the fractional order")
    unit, unit_weights = _gauss_panels(0.0, 1.0, panels)
    if _is_too_rough(function, s, p, low, high):
        return math.inf
    if p == math.inf:
        x = low + (high - low) * unit
        gaps = (x[:, None] - x).abs().fill_diagonal_(math.inf)
        values = function(x)
        return float(((values[:, None] - values).abs() / gaps**s).max())
    length = high - low
    h, h_weights = _singular_panels(length, p * (1 - s) - 1, panels)
    x = low + (length - h)[:, None] * unit
    steps = (function(x + h[:, None]) - function(x)).abs() / h[:, None]
    inner = (length - h) * (steps**p @ unit_weights)
    return float((2 * inner @ h_weights) ** (1 / p))


def sobolev_norm(
    function: Callable[[Tensor], Tensor],
    s: float,
    p: float,
    low: float,
    high: float,
    *,
    panels: int = 64,
) -> float:
    r"""The norm of $W^{s,p}(a,b)$.

    With $s=m+\sigma$, $m$ whole and $0\le\sigma<1$, it is
    $\bigl(\sum_{j\le m}\|f^{(j)}\|_p^p+|f^{(m)}|_{\sigma,p}^p\bigr)^{1/p}$, where the last
    term is `slobodeckij_seminorm` and absent for $\sigma=0$; for $p=\infty$ the
    largest of the terms. Derivatives come from automatic differentiation: of a function with a
    kink only the first is right, of one with a jump none.

    >>> round(sobolev_norm(lambda x: x, 1, 2, 0.0, 1.0) ** 2, 12)     # 1/3 + 1
    1.333333333333
    """
    _check_exponent(p)
    nonnegative_number(s, "the order of smoothness")
    whole = math.floor(s)
    derivatives = [lambda x, j=j: derivative(function, x, j) for j in range(whole + 1)]
    terms = [lebesgue_norm(f, p, low, high, panels=panels) for f in derivatives]
    if s > whole:
        terms.append(slobodeckij_seminorm(derivatives[-1], s - whole, p, low, high, panels=panels))
    return max(terms) if p == math.inf else sum(t**p for t in terms) ** (1 / p)


def _is_too_rough(
    function: Callable[[Tensor], Tensor], s: float, p: float, low: float, high: float
) -> bool:
    """Whether differences at small distances fall too slowly for a finite seminorm."""
    h = (high - low) * 2.0**-_FINEST
    coarse, fine = (_shift_differences(function, low, high, t) for t in (2 * h, h))
    if not bool(fine.any() and coarse.any()):
        return False
    largest = math.log2(coarse.max() / fine.max())
    if p == math.inf:  # the quotient of x^s itself is finite
        return largest < s - _POWERS_APART
    # all of the function, and the one place where it is roughest, of a width like h
    power = min(math.log2(2 * (coarse**p).sum() / (fine**p).sum()), 1 + p * largest)
    return power <= s * p + min(_POWERS_APART, p * (1 - s) / 4)


def _shift_differences(
    function: Callable[[Tensor], Tensor], low: float, high: float, h: float
) -> Tensor:
    """`|f(x + h) - f(x)|` at points whose spacing divides `h`.

    So a jump is met by the same number of points wherever it is.
    """
    per_shift = 4
    count = round((high - low) / h * per_shift)
    values = function(low + (torch.arange(count, dtype=torch.float64) + 0.5) * (h / per_shift))
    return (values[per_shift:] - values[:-per_shift]).abs()


def _gauss_panels(low: float, high: float, panels: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an 8-point Gauss rule on each of equal pieces of an interval."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"the interval [{low}, {high}] must be finite and not empty")
    whole_number(panels, "panels", least=1, most=10**6)
    roots, root_weights = np.polynomial.legendre.leggauss(8)
    half = (high - low) / (2 * panels)
    middles = low + half * (2 * torch.arange(panels, dtype=torch.float64) + 1)
    nodes = middles[:, None] + half * torch.from_numpy(roots)
    return nodes.reshape(-1), half * torch.from_numpy(root_weights).repeat(panels)


def _singular_panels(length: float, power: float, panels: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights for integrals of `h^power g(h)` over (0, length), g smooth, power > -1.

    Only the first piece meets the singularity, and has it as the weight of a Gauss-Jacobi rule.
    """
    width = length / panels
    roots, root_weights = roots_jacobi(16, 0.0, power)
    near = torch.from_numpy((np.asarray(roots) + 1) / 2 * width)
    near_weights = torch.from_numpy(np.asarray(root_weights)) * (width / 2) ** (power + 1)
    if panels == 1:
        return near, near_weights
    far, far_weights = _gauss_panels(width, length, panels - 1)
    return torch.cat([near, far]), torch.cat([near_weights, far_weights * far**power])


def _norm(values: Tensor, weights: Tensor, p: float) -> float:
    if p == math.inf:
        return float(values.abs().max())
    return float((values.abs() ** p @ weights) ** (1 / p))


def _check_exponent(p: float) -> None:
    if math.isnan(p) or p < 1:
        raise InvalidInput(f"the exponent must be from 1 to inf, not {p}")
