r"""Activations whose expectations of two correlated Gaussians are closed forms.

Sources: Foundations of Deep Learning, Theorem 57 and what follows it; Mathematical Aspects of Deep
Learning, section 1.2.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.nets.activations.table import Pointwise, activation
from torchtheory.nets.infinite_width.duals.angles import correlation, pair_angles
from torchtheory.nets.infinite_width.duals.moments import DualActivation, Moments, Prepared


class PiecewiseLinear(DualActivation):
    r"""$\varphi(z)=\alpha\min(z,0)+\beta\max(z,0)$: ReLU, leaky ReLU, modulus, identity.

    With $\cos t=k_{12}/\sqrt{k_{11}k_{22}}$, $m=\frac{\alpha^2+\beta^2}2$ and
    $r=\frac{(\alpha-\beta)^2}{2\pi}$,

    $$
    \mathbb E\varphi\varphi'=\sqrt{k_{11}k_{22}}\,\bigl(m\cos t+r(\sin t-t\cos t)\bigr),
    \qquad \mathbb E\varphi'(z)\varphi'(z')=m-r\,t,
    $$

    which for ReLU are $\frac{\sqrt{k_{11}k_{22}}}{2\pi}(\sin t+(\pi-t)\cos t)$ and
    $\frac{\pi-t}{2\pi}$. Where a variance is 0 the angle is taken as $\pi/2$.

    >>> from torchtheory.nets.infinite_width.dual_activations import dual_moments
    >>> one = torch.ones((), dtype=torch.float64)
    >>> found = dual_moments(PiecewiseLinear(0.0, 1.0), one, 0.5 * one, one)
    >>> round(float(found.values), 6), round(float(found.slopes), 6)      # Theorem 57's golden 1/3
    (0.304499, 0.333333)
    """

    def __init__(self, negative: float, positive: float, name: str = "piecewise linear") -> None:
        if not (math.isfinite(negative) and math.isfinite(positive)):
            raise InvalidInput(
                f"the two slopes must be finite numbers (negative = {negative!r}, positive = "
                f"{positive!r})"
            )
        if negative == positive == 0:
            raise InvalidInput("the activation that is 0 everywhere has no kernel")
        self.negative, self.positive, self.name = float(negative), float(positive), name
        #: $m$, the mean squared slope
        self.mean_square = (negative**2 + positive**2) / 2
        #: $\pi r/m$, what half a turn adds to the correlation: 1 for ReLU, 2 for the modulus
        self.half_turn = (negative - positive) ** 2 / (2 * self.mean_square)
        #: $r/m$, how strongly the kink bends the kernel: $1/\pi$ for ReLU
        self.bend = self.half_turn / math.pi

    def layer(self) -> nn.Module:
        a, b = self.negative, self.positive
        if (a, b) == (0.0, 1.0):
            return nn.ReLU()
        if a == b == 1.0:
            return nn.Identity()
        if b == 1.0:
            return nn.LeakyReLU(a)
        if (a, b) == (-1.0, 1.0):
            return Pointwise(torch.abs, "abs")
        return Pointwise(lambda z: torch.where(z > 0, b * z, a * z), self.name)

    def prepare(self, variance: Tensor) -> Prepared:
        return variance.sqrt(), variance

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        size = one[0] * other[0]
        cosine, t, rest = pair_angles(k12, one, other)
        values = (cosine + self.bend * rest) * size * self.mean_square
        return Moments(values, (1 - self.bend * t) * self.mean_square if slopes else None)

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        values = self.mean_square * variance
        return Moments(values, torch.full_like(variance, self.mean_square) if slopes else None)


class SquaredRelu(DualActivation):
    r"""$\varphi(z)=\max(z,0)^2$: the arc-cosine kernel of order 2.

    $\mathbb E\varphi\varphi'=\frac{k_{11}k_{22}}{2\pi}\bigl(3\sin t\cos t+(\pi-t)(1+2\cos^2t)
    \bigr)$; the slopes are four times ReLU's values.
    """

    name = "power relu"

    def layer(self) -> nn.Module:
        return activation("power relu").layer()

    def prepare(self, variance: Tensor) -> Prepared:
        return variance.sqrt(), variance

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        size = one[0] * other[0]
        cosine, t, rest = pair_angles(k12, one, other)
        # sin t, which has no derivative for equal points, is rest + t cos t: 3 sin t cos t
        # + (pi - t)(1 + 2 cos^2 t) is the sum of terms that have one
        square = cosine.square()
        values = math.pi * (1 + 2 * square) + 3 * cosine * rest - t * (1 - square)
        values = values * size.square() / (2 * math.pi)
        slope = (math.pi * cosine + rest) * size * (2 / math.pi)
        return Moments(values, slope if slopes else None)


class Step(DualActivation):
    r"""The jump from `low` to 1 at 0: $\ell^2+\frac{(1-\ell)^2(\pi-t)}{2\pi}+\ell(1-\ell)$.

    The slope is 0 wherever there is one, so its tangent kernel is that of the last layer alone.
    Near equal points the value falls like $\sqrt{2(1-\cos t)}$: what rounding leaves of their
    covariance tells it to half of the digits only, so correlations within 16 units of rounding of
    1 or -1 count as 1 or -1. A variance of 0 stands for $z=0$, where the step has the value
    `at_zero`.
    """

    def __init__(self, low: float, name: str, *, at_zero: float) -> None:
        self.low, self.name, self.at_zero = low, name, at_zero
        #: $\mathbb E\varphi$ and $\mathbb E\varphi^2$
        self.mean, self.mean_square = (1 + low) / 2, (1 + low**2) / 2
        #: how much of the correlation half a turn takes: 1 for the Heaviside step, 2 for the sign
        self.half_turn = (1 - low) ** 2 / (1 + low**2)

    def layer(self) -> nn.Module:
        return activation(self.name).layer()

    def prepare(self, variance: Tensor) -> Prepared:
        return variance.sqrt(), variance

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        _, t, _ = pair_angles(k12, one, other, rounding=16 * torch.finfo(k12.dtype).eps)
        values = self.mean_square * (1 - self.half_turn / math.pi * t)
        still, other_still = one[0] == 0, other[0] == 0
        values = values.where(~(still | other_still), self.at_zero * self.mean)
        values = values.where(~(still & other_still), self.at_zero**2)
        return Moments(values, torch.zeros_like(values) if slopes else None)

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        values = torch.full_like(variance, self.mean_square)
        values = values.where(variance > 0, self.at_zero**2)
        return Moments(values, torch.zeros_like(values) if slopes else None)


class ErrorFunction(DualActivation):
    r"""$\mathbb E\operatorname{erf}z\operatorname{erf}z'=\frac2\pi\arcsin\frac{2k_{12}}{ab}$
    with $a^2=1+2k_{11}$, $b^2=1+2k_{22}$; slopes
    $\frac4\pi(a^2b^2-4k_{12}^2)^{-1/2}$."""

    name = "erf"

    def layer(self) -> nn.Module:
        return Pointwise(torch.erf, "erf")

    def prepare(self, variance: Tensor) -> Prepared:
        return ((1 + 2 * variance).sqrt(),)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        size = one[0] * other[0]
        double = 2 * k12
        values = correlation(double, size).asin() * (2 / math.pi)
        if not slopes:
            return Moments(values, None)
        # a difference of squares as a product, which keeps its digits
        return Moments(values, ((size - double) * (size + double)).rsqrt() * (4 / math.pi))


class Gelu(DualActivation):
    r"""$\varphi(z)=z\,\Phi(z)$. With $A=1+k_{11}$, $B=1+k_{22}$,
    $D=AB-k_{12}^2$, $P=\frac14+\frac1{2\pi}\arcsin\frac{k_{12}}{\sqrt{AB}}$ and
    $Q=\frac1{2\pi\sqrt D}$,

    $$
    \mathbb E\varphi\varphi'=k_{12}P+Q\Bigl(k_{11}k_{22}
    +k_{12}^2\bigl(\tfrac1A+\tfrac1B-1\bigr)\Bigr),\qquad
    \mathbb E\varphi'(z)\varphi'(z')=P+Qk_{12}\bigl(\tfrac1A+\tfrac1B+\tfrac1D\bigr).
    $$

    Both follow from integrating by parts.
    """

    name = "gelu"

    def layer(self) -> nn.Module:
        return nn.GELU()

    def prepare(self, variance: Tensor) -> Prepared:
        return (1 + variance,)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        a, b = one[0], other[0]
        root = a.sqrt() * b.sqrt()
        both = correlation(k12, root).asin() / (2 * math.pi) + 0.25
        determinant = (root - k12) * (root + k12)
        q = determinant.rsqrt() / (2 * math.pi)
        inverses = 1 / a + 1 / b
        values = k12 * both + q * ((a - 1) * (b - 1) + k12.square() * (inverses - 1))
        slope = both + q * k12 * (inverses + 1 / determinant) if slopes else None
        return Moments(values, slope)


class Wave(DualActivation):
    r"""Sine and cosine:
    $\mathbb E\cos z\cos z'=\frac12\bigl(e^{k_{12}-s}+e^{-k_{12}-s}\bigr)$ with
    $s=\frac{k_{11}+k_{22}}2$, and $\mathbb E\sin z\sin z'$ with a minus sign; each is
    the slopes of the other."""

    def __init__(self, name: str) -> None:
        self.name = name

    def layer(self) -> nn.Module:
        return Pointwise(torch.sin if self.name == "sin" else torch.cos, self.name)

    def prepare(self, variance: Tensor) -> Prepared:
        return (variance / 2,)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        middle = one[0] + other[0]
        together, against = (k12 - middle).exp(), (-k12 - middle).exp()
        cosines, sines = (together + against) / 2, (together - against) / 2
        values, slope = (sines, cosines) if self.name == "sin" else (cosines, sines)
        return Moments(values, slope if slopes else None)


class Bell(DualActivation):
    r"""$\varphi(z)=e^{-z^2/2}$: $\mathbb E\varphi\varphi'=D^{-1/2}$ and slopes
    $k_{12}D^{-3/2}$ with $D=(1+k_{11})(1+k_{22})-k_{12}^2$."""

    name = "gaussian"

    def layer(self) -> nn.Module:
        return activation("gaussian").layer()

    def prepare(self, variance: Tensor) -> Prepared:
        return ((1 + variance).sqrt(),)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        root = one[0] * other[0]
        values = ((root - k12) * (root + k12)).rsqrt()
        return Moments(values, k12 * values**3 if slopes else None)
