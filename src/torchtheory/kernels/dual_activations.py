r"""What an activation makes of two correlated Gaussians: its dual functions.

For $(z,z')\sim N\bigl(0,\begin{pmatrix}k_{11}&k_{12}\\k_{12}&k_{22}\end{pmatrix}\bigr)$ the
kernels of infinitely wide networks need $\mathbb E\,\varphi(z)\varphi(z')$ and
$\mathbb E\,\varphi'(z)\varphi'(z')$. Both are closed forms for the activations of this table:

| name | $\varphi(z)$ |
|---|---|
| `linear`, `relu`, `leaky relu`, `parametric relu`, `abs` | `PiecewiseLinear` |
| `power relu` with k = 2 | $\max(z,0)^2$ |
| `heaviside`, `closed heaviside`, `sign` | the steps, whose slope is 0 almost everywhere |
| `erf`, `gelu` | $\operatorname{erf}z$, $z\,\Phi(z)$ |
| `sin`, `cos`, `gaussian` | $\sin z$, $\cos z$, $e^{-z^2/2}$ |

Anything else is expanded in Hermite polynomials, with a bound on what was cut off
(`HermiteExpansion`). Sources: Foundations of Deep Learning, Theorem 57 and what follows it;
Mathematical Aspects of Deep Learning, section 1.2.1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.kernels.two_layer import slope_of
from torchtheory.nets.activations import Activation, Pointwise, activation, as_layer
from torchtheory.primer.gaussian_means import gaussian_mean, gaussian_rule

#: What was computed once for each point, each tensor of shape `[..., *variances]`.
Prepared = tuple[Tensor, ...]

_TERMS = 200
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Moments:
    r"""Two expectations, entry by entry.

    Attributes:
        values: $\mathbb E\,\varphi(z)\varphi(z')$.
        slopes: $\mathbb E\,\varphi'(z)\varphi'(z')$, unless left out.
        error: how far entries may be off beyond rounding; 0 for closed forms.
    """

    values: Tensor
    slopes: Tensor | None
    error: float = 0.0


class DualActivation(ABC):
    """An activation with its two expectations.

    `prepare` does what depends on one point only; `pair` combines two prepared points, whose
    tensors may broadcast against the covariances.
    """

    name = "activation"

    @abstractmethod
    def layer(self) -> nn.Module:
        """The activation as a module."""

    @abstractmethod
    def prepare(self, variance: Tensor) -> Prepared:
        """What depends on one point only."""

    @abstractmethod
    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        """The expectations of two prepared points."""

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        r"""The case $z'=z$: $\mathbb E\varphi(z)^2$, $\mathbb E\varphi'(z)^2$."""
        point = self.prepare(variance)
        return self.pair(variance, point, point, slopes=slopes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


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
        cosine, t, rest = _angles(k12, one, other)
        values = (cosine + self.bend * rest) * size * self.mean_square
        return Moments(values, (1 - self.bend * t) * self.mean_square if slopes else None)

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        values = self.mean_square * variance
        return Moments(values, torch.full_like(variance, self.mean_square) if slopes else None)


def _angles(
    k12: Tensor, one: Prepared, other: Prepared, *, rounding: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    r"""$\cos t$, $t$ and $\sin t-t\cos t$ of pairs, $t$ from the smaller of $1\mp\cos t$.

    Args:
        one, other: standard deviations and variances.
        rounding: points this near to being equal or opposite count as that.
    """
    (root, variance), (other_root, other_variance) = one, other
    cosine = correlation(k12, root * other_root)
    # the roots' product may differ from equal variances by a rounding, which the angle would feel
    ends = (variance == other_variance) & (k12.abs() == variance)
    acute = cosine >= 0
    small = torch.where(acute, 1 - cosine, 1 + cosine)
    small = _moved(small, small.where(~ends & (small > rounding), 0.0))
    half, rest = _HalfAngleAndRest.apply(small)  # type: ignore[no-untyped-call]
    t = torch.where(acute, 2 * half, math.pi - 2 * half)
    # with s = pi - t it is pi cos s + (sin s - s cos s)
    rest = torch.where(acute, rest, math.pi * (1 - small) + rest)
    return torch.where(acute, 1 - small, small - 1), t, rest


def correlation(k12: Tensor, size: Tensor) -> Tensor:
    r"""$\cos t=k_{12}/\sqrt{k_{11}k_{22}}$ between -1 and 1, and 0 where a variance is 0.

    What rounding puts beyond the ends is brought back to them, and gradients pass as if it had
    been there: those of equal points are not lost.

    >>> correlation(torch.tensor([0.5, 2.0, 0.0]), torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.5000, 1.0000, 0.0000])
    """
    cosine = k12 / size.where(size > 0, 1.0)
    return _moved(cosine, cosine.clamp(-1.0, 1.0))


def _moved(value: Tensor, to: Tensor) -> Tensor:
    """The second tensor, with the gradient of the first: a correction of rounding."""
    return value + (to - value).detach() if value.requires_grad else to


class _HalfAngleAndRest(torch.autograd.Function):
    r"""`half_angle_and_rest` with its derivatives by $\delta$: $\frac1{2\sin t}$ and $t$.

    The second one is finite at all angles, which plain differentiation of the formula does not
    see; the first one is not, and asking for it at equal or opposite points is refused.
    """

    @staticmethod
    def forward(ctx: Any, distance: Tensor) -> tuple[Tensor, Tensor]:
        half, rest = half_angle_and_rest(distance)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(distance, half)
        return half, rest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        distance, half = ctx.saved_tensors
        by_half, by_rest = gradients
        total = None if by_rest is None else 2 * by_rest * half
        if by_half is None:
            return total
        sine = (distance * (2 - distance)).sqrt()
        if bool(((sine == 0) & (by_half != 0)).any()):
            raise InvalidInput(
                "the angle of two equal or opposite points has no derivative: the activation has "
                "a kink or a step, and what is differentiated depends on the angle itself"
            )
        share = torch.where(sine > 0, by_half / (2 * sine.where(sine > 0, 1.0)), 0.0)
        return share if total is None else total + share


def half_angle_and_rest(distance: Tensor) -> tuple[Tensor, Tensor]:
    r"""$t/2$ and $\sin t-t\cos t$ from $\delta=1-\cos t$.

    Both are exact to rounding for small angles, where the cosine itself has lost them: it differs
    from 1 by $t^2/2$ only. Two square roots and one arc sine an entry.

    >>> half, rest = half_angle_and_rest(torch.tensor([0.0, 1.0, 2.0]))
    >>> 2 * half / torch.pi, rest
    (tensor([0.0000, 0.5000, 1.0000]), tensor([0.0000, 1.0000, 3.1416]))
    """
    half = (distance * 0.5).sqrt_().asin_()
    other = 2 - distance  # 1 + cos t
    rest = (other * distance).sqrt_()
    return half, rest.addcmul_(half, other.sub_(1), value=-2)


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
        cosine, t, rest = _angles(k12, one, other)
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
        _, t, _ = _angles(k12, one, other, rounding=16 * torch.finfo(k12.dtype).eps)
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


class HermiteExpansion(DualActivation):
    r"""Any activation, by its coefficients in the normalized Hermite polynomials.

    With $a_j(k)=\mathbb E\,\varphi(\sqrt kZ)h_j(Z)$ and the correlation $\rho$,
    Mehler's formula gives

    $$
    \mathbb E\varphi(z)\varphi(z')=\sum_{j\ge0}a_j(k_{11})a_j(k_{22})\rho^j,
    $$

    and the same for the slopes with the coefficients of $\varphi'$. What is cut off after
    $J$ terms is at most $\sqrt{R(k_{11})R(k_{22})}$ by Cauchy and Schwarz, where
    $R(k)=\mathbb E\varphi(\sqrt kZ)^2-\sum_{j\le J}a_j(k)^2$; terms are added until that is
    at the level of rounding, at most `terms` of them, and the bound for the worst pair of points
    is the `error` of the result. A smooth activation needs a few dozen. One with a kink leaves an
    error for nearly equal points, and one with a kink elsewhere than at 0 also has an error
    $\Delta(k)$ in the coefficients themselves, because the quadrature rule does not split there:
    it is taken as twice the largest difference to rules with two and three times as many panels,
    and enters the `error` as $\|\Delta\|\,\|a'\|+\|a\|\,\|\Delta'\|+\|\Delta\|\,\|\Delta'\|$. That
    part is an estimate, not a bound.

    Args:
        function: $\varphi$, entry by entry.
        terms: most terms.

    Cost: 900 evaluations and $900J$ multiplications for each distinct variance (six times as
    many with a kink elsewhere than at 0), then $2J$ operations a pair. It is not differentiated.
    """

    def __init__(self, function: Any, *, terms: int = _TERMS) -> None:
        if isinstance(terms, bool) or not isinstance(terms, int) or not 1 <= terms <= 400:
            raise InvalidInput(f"terms must be a whole number from 1 to 400, not {terms!r}")
        self.module = function if isinstance(function, nn.Module) else as_layer(function)
        self.derivative = slope_of(function)
        self.terms = terms
        self.name = str(getattr(function, "name", type(self.module).__name__))

    def layer(self) -> nn.Module:
        return self.module

    def prepare(self, variance: Tensor) -> Prepared:
        """Standard deviations `[*k]`; then for the function and for its derivative coefficients
        `[terms, *k]`, what each partial sum leaves `[terms, *k]`, and their error `[*k]`."""
        distinct, place = torch.unique(variance.double(), return_inverse=True)
        found = []
        for f in (self._values, self.derivative):
            a, left, error = self._coefficients(f, distinct)
            found += [a[:, place].to(variance), left[:, place].to(variance), error[place]]
        return (variance.sqrt(), *found)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        cosine = correlation(k12, one[0] * other[0])
        values, error = _series(cosine, one[1:4], other[1:4])
        if not slopes:
            return Moments(values, None, error)
        slope, slope_error = _series(cosine, one[4:], other[4:])
        return Moments(values, slope, max(error, slope_error))

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        q = variance.double()
        values = gaussian_mean(lambda z: self._values(z).square(), q).to(variance)
        if not slopes:
            return Moments(values, None)
        slope = gaussian_mean(lambda z: self.derivative(z).square(), q).to(variance)
        return Moments(values, slope)

    def _values(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            return self.module(z)  # type: ignore[no-any-return]

    def _coefficients(
        self, f: Callable[[Tensor], Tensor], variance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`a [terms, n]`, the part of the second moment that the first terms leave, and the
        length `[n]` of the error of `a`."""
        a, whole = self._projected(f, variance, 1)
        # the widest Gaussian meets every kink that a narrower one meets
        error = self._quadrature_error(f, variance[-1:], a[:, -1:], whole[-1:])
        rounding = 1e3 * torch.finfo(variance.dtype).eps * whole[-1:].sqrt()
        if bool((error > rounding).any()):
            error = self._quadrature_error(f, variance, a, whole)
        else:
            error = torch.zeros_like(variance)
        left = (whole - a.square().cumsum(0)).clamp_min(0)
        # the second moment is off by as much as twice its root times the error of the function
        return a, left + 2 * error * whole.sqrt(), error

    def _quadrature_error(
        self, f: Callable[[Tensor], Tensor], variance: Tensor, a: Tensor, whole: Tensor
    ) -> Tensor:
        """How far coefficients may be off: by what finer rules say, `[n]`."""
        finer = [self._projected(f, variance, panels) for panels in (2, 3)]
        lengths = [(a - b).norm(dim=0) for b, _ in finer]
        lengths.append((finer[0][0] - finer[1][0]).norm(dim=0))
        size = whole.sqrt().where(whole > 0, 1.0)
        lengths += [(whole - w).abs() / (2 * size) for _, w in finer]
        return 2 * torch.stack(lengths).amax(0)

    def _projected(
        self, f: Callable[[Tensor], Tensor], variance: Tensor, panels: int
    ) -> tuple[Tensor, Tensor]:
        """Coefficients `[terms, n]` and second moments `[n]`, by a rule so many times as fine."""
        nodes, weights, weighted = (
            t.to(variance.device) for t in _weighted_polynomials(self.terms, panels)
        )
        made = []
        for scale in torch.split(variance.sqrt(), _ROWS_AT_ONCE):
            at_nodes = f(scale[:, None] * nodes)
            made.append((weighted @ at_nodes.T, at_nodes.square() @ weights))
        return torch.cat([a for a, _ in made], 1), torch.cat([whole for _, whole in made])


@cache
def _weighted_polynomials(terms: int, panels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes and weights `[n]`, and the normalized Hermite polynomials at the nodes times the
    weights `[terms, n]`."""
    z, weights = gaussian_rule(torch.float64, torch.device("cpu"), panels)
    rows = [torch.ones_like(z), z]
    for j in range(1, terms - 1):
        rows.append((z * rows[j] - math.sqrt(j) * rows[j - 1]) / math.sqrt(j + 1))
    return z, weights, torch.stack(rows[:terms]) * weights


def _series(cosine: Tensor, one: Prepared, other: Prepared) -> tuple[Tensor, float]:
    """Mehler's sum by Horner's rule, and how far it may be off for the worst pair."""
    (a, left_a, error_a), (b, left_b, error_b) = one, other
    worst = (left_a.reshape(len(a), -1).amax(1) * left_b.reshape(len(b), -1).amax(1)).sqrt()
    size_a, size_b = (float(c.square().sum(0).max()) ** 0.5 for c in (a, b))
    enough = torch.finfo(cosine.dtype).eps * size_a * size_b
    small = (worst <= enough).nonzero()
    count = int(small[0]) + 1 if len(small) else len(a)
    total = (a[count - 1] * b[count - 1]).expand_as(cosine).clone()
    for j in range(count - 2, -1, -1):
        total.mul_(cosine).addcmul_(a[j], b[j])
    off_a, off_b = float(error_a.max()), float(error_b.max())
    error = float(worst[count - 1]) + off_a * size_b + size_a * off_b + off_a * off_b
    return total, error if error > 16 * enough else 0.0


#: A name of the tables, a row of one, a module or its class, a function of a tensor, or a dual.
AnyActivation = str | Activation | nn.Module | type[nn.Module] | Callable[..., Any] | DualActivation

_RELU = PiecewiseLinear(0.0, 1.0, "relu")
_LINEAR = PiecewiseLinear(1.0, 1.0, "linear")
_ABS = PiecewiseLinear(-1.0, 1.0, "abs")
_ERF, _SIN, _COS = ErrorFunction(), Wave("sin"), Wave("cos")
_WITH_ANGLES = (PiecewiseLinear, SquaredRelu, Step)

#: The closed forms without parameters, by name.
CLOSED_FORMS: Mapping[str, DualActivation] = MappingProxyType(
    {
        dual.name: dual
        for dual in (
            *(_LINEAR, _RELU, _ABS, SquaredRelu(), Step(0.0, "heaviside", at_zero=0.0)),
            *(Step(0.0, "closed heaviside", at_zero=1.0), Step(-1.0, "sign", at_zero=1.0)),
            *(_ERF, Gelu(), _SIN, _COS, Bell()),
        )
    }
)

_FUNCTIONS: Mapping[Any, DualActivation] = {
    torch.relu: _RELU,
    torch.nn.functional.relu: _RELU,
    torch.erf: _ERF,
    torch.sin: _SIN,
    torch.cos: _COS,
    torch.abs: _ABS,
    nn.functional.gelu: CLOSED_FORMS["gelu"],
}


def dual_activation(given: AnyActivation) -> DualActivation:
    """The dual of an activation: a closed form where one is known, an expansion otherwise.

    >>> dual_activation("relu"), dual_activation(nn.LeakyReLU(0.2)), dual_activation(torch.erf)
    (PiecewiseLinear(relu), PiecewiseLinear(leaky relu), ErrorFunction(erf))
    >>> dual_activation("tanh")
    HermiteExpansion(tanh)
    """
    if isinstance(given, DualActivation):
        return given
    if isinstance(given, str):
        if given in CLOSED_FORMS:
            return CLOSED_FORMS[given]
        given = activation(given)
    if isinstance(given, Activation):
        return _of_row(given)
    if isinstance(given, type) and issubclass(given, nn.Module):
        given = as_layer(given)
    if isinstance(given, nn.Module):
        return _of_module(given)
    try:
        return _FUNCTIONS[given]
    except (KeyError, TypeError):
        return HermiteExpansion(given)


def _of_row(row: Activation) -> DualActivation:
    if row.name == "leaky relu":
        return PiecewiseLinear(row.parameters["slope"], 1.0, row.name)
    if row.name == "parametric relu":
        # max(ax, x): the larger slope is on the right
        a = row.parameters["a"]
        return PiecewiseLinear(min(a, 1.0), max(a, 1.0), row.name)
    if row.name == "power relu" and row.parameters["k"] != 2:
        return _RELU if row.parameters["k"] == 1 else HermiteExpansion(row)
    return CLOSED_FORMS[row.name] if row.name in CLOSED_FORMS else HermiteExpansion(row)


def _of_module(module: nn.Module) -> DualActivation:
    match module:
        case nn.ReLU():
            return _RELU
        case nn.LeakyReLU():
            return PiecewiseLinear(module.negative_slope, 1.0, "leaky relu")
        case nn.PReLU() if module.num_parameters == 1:
            return PiecewiseLinear(module.weight.item(), 1.0, "parametric relu")
        case nn.Identity():
            return _LINEAR
        case nn.GELU() if module.approximate == "none":
            return CLOSED_FORMS["gelu"]
    return HermiteExpansion(module)


def activation_layer(given: AnyActivation) -> nn.Module:
    """The activation as a module, for everything `dual_activation` takes.

    >>> activation_layer("erf"), activation_layer("relu"), activation_layer("softplus")
    (erf(), ReLU(), Softplus(beta=1.0, threshold=40))
    """
    if isinstance(given, DualActivation):
        return given.layer()
    if isinstance(given, str) and given in CLOSED_FORMS:
        return CLOSED_FORMS[given].layer()
    return as_layer(given)


def dual_moments(
    activation: AnyActivation, k11: Tensor, k12: Tensor, k22: Tensor, *, slopes: bool = True
) -> Moments:
    r"""$\mathbb E\varphi(z)\varphi(z')$ and $\mathbb E\varphi'(z)\varphi'(z')$,
    entry by entry.

    Args:
        k11, k22: variances of $z$ and $z'$.
        k12: their covariances, of the same shape.
        slopes: whether the second expectation is wanted.

    Closed forms can be differentiated, wherever there is a derivative: not the angle of two equal
    or opposite points (on which the slopes of ReLU and the values of a step depend), nor, for
    activations with a kink or a step, at a variance of 0; these are refused, as are expansions.

    >>> k = torch.tensor([2.0, 2.0], dtype=torch.float64)
    >>> 2 * dual_moments("relu", k, torch.tensor([2.0, 1.0], dtype=torch.float64), k).values
    tensor([2.0000, 1.2180], dtype=torch.float64)
    """
    for k, name in ((k11, "k11"), (k12, "k12"), (k22, "k22")):
        if not isinstance(k, Tensor) or k.dtype not in (torch.float32, torch.float64):
            raise InvalidType(f"{name} must be a tensor of float32 or float64")
    if not k11.shape == k12.shape == k22.shape:
        raise ShapeMismatch(
            "k11, k12 and k22 must have one shape, not "
            + ", ".join(str(list(k.shape)) for k in (k11, k12, k22))
        )
    if not bool((k11 >= 0).all() and (k22 >= 0).all()):  # also for NaN
        raise InvalidInput("a variance is a number >= 0")
    if not bool((k12.abs() <= (k11.sqrt() * k22.sqrt()) * (1 + 1e-4) + 1e-30).all()):
        raise InvalidInput("a covariance is larger than the product of the standard deviations")
    dual = dual_activation(activation)
    if torch.is_grad_enabled() and any(k.requires_grad for k in (k11, k12, k22)):
        if isinstance(dual, HermiteExpansion):
            raise InvalidInput(
                f"the expansion of {dual.name} is not differentiated; detach the covariances, or "
                "use an activation with a closed form"
            )
        if isinstance(dual, _WITH_ANGLES) and not bool((k11 > 0).all() and (k22 > 0).all()):
            raise InvalidInput(
                f"the moments of {dual.name} have no derivative where a variance is 0"
            )
    return dual.pair(k12, dual.prepare(k11), dual.prepare(k22), slopes=slopes)
