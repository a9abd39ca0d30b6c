r"""What an activation makes of two correlated Gaussians: its dual functions.

For $(z,z')\sim N\bigl(0,\begin{pmatrix}k_{11}&k_{12}\\k_{12}&k_{22}\end{pmatrix}\bigr)$ the
kernels of infinitely wide networks need $\mathbb E\,\varphi(z)\varphi(z')$ and
$\mathbb E\,\varphi'(z)\varphi'(z')$. Both are closed forms for the activations of this table:

| name | $\varphi(z)$ |
|---|---|
| `linear`, `relu`, `leaky relu`, `parametric relu`, `abs` | `PiecewiseLinear` |
| `power relu` with k = 2 | $\max(z,0)^2$ |
| `heaviside`, `sign` | the steps, whose slope is 0 almost everywhere |
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
        error: a bound on the error of every entry beyond rounding; 0 for closed forms.
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
        #: $r/m$, how strongly the kink bends the kernel: $1/\pi$ for ReLU
        self.bend = (negative - positive) ** 2 / (2 * math.pi) / self.mean_square

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
        return (variance.sqrt(),)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        size = one[0] * other[0]
        # x/0 is infinite or not a number; where a variance is 0 so is the covariance
        cosine = (k12 / size).nan_to_num_(nan=0.0).clamp_(-1.0, 1.0)
        t, rest = angle_and_rest(1 - cosine)
        values = cosine.add_(rest, alpha=self.bend).mul_(size).mul_(self.mean_square)
        if not slopes:
            return Moments(values, None)
        return Moments(values, t.mul_(-self.bend).add_(1).mul_(self.mean_square))

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        values = self.mean_square * variance
        return Moments(values, torch.full_like(variance, self.mean_square) if slopes else None)


def angle_and_rest(distance: Tensor) -> tuple[Tensor, Tensor]:
    r"""$t$ and $\sin t-t\cos t$ from $\delta=1-\cos t$.

    Both are exact to rounding for small angles, where the cosine itself has lost them: it differs
    from 1 by $t^2/2$ only. Two square roots and one arc sine an entry.

    >>> t, rest = angle_and_rest(torch.tensor([0.0, 1.0, 2.0]))
    >>> t / torch.pi, rest
    (tensor([0.0000, 0.5000, 1.0000]), tensor([0.0000, 1.0000, 3.1416]))
    """
    t, rest = half_angle_and_rest(distance)
    return t.mul_(2), rest


def half_angle_and_rest(distance: Tensor) -> tuple[Tensor, Tensor]:
    r"""$t/2$ and $\sin t-t\cos t$: `angle_and_rest` with one pass less."""
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
        return (variance.sqrt(),)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        size = one[0] * other[0]
        cosine = (k12 / size).nan_to_num_(nan=0.0).clamp_(-1.0, 1.0)
        t, rest = angle_and_rest(1 - cosine)
        sine = rest + t * cosine
        values = 3 * sine * cosine + (math.pi - t) * (1 + 2 * cosine.square())
        values = values.mul_(size.square()).div_(2 * math.pi)
        if not slopes:
            return Moments(values, None)
        slope = (math.pi * cosine).add_(rest).mul_(size).mul_(2 / math.pi)
        return Moments(values, slope)


class Step(DualActivation):
    r"""The jump from `low` to 1 at 0: $\ell^2+\frac{(1-\ell)^2(\pi-t)}{2\pi}+\ell(1-\ell)$.

    The slope is 0 wherever there is one, so its tangent kernel is that of the last layer alone.
    """

    def __init__(self, low: float, name: str) -> None:
        self.low, self.name = low, name

    def layer(self) -> nn.Module:
        return activation(self.name).layer()

    def prepare(self, variance: Tensor) -> Prepared:
        return (variance.sqrt(),)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        cosine = (k12 / (one[0] * other[0])).nan_to_num_(nan=0.0).clamp_(-1.0, 1.0)
        t, _ = angle_and_rest(1 - cosine)
        height = 1 - self.low
        values = t.mul_(-(height**2) / (2 * math.pi)).add_(height**2 / 2)
        values = values.add_(self.low**2 + self.low * height)
        return Moments(values, torch.zeros_like(values) if slopes else None)

    def on_diagonal(self, variance: Tensor, *, slopes: bool = True) -> Moments:
        values = torch.full_like(variance, (1 + self.low**2) / 2)
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
        values = (double / size).clamp_(-1.0, 1.0).asin_().mul_(2 / math.pi)
        if not slopes:
            return Moments(values, None)
        # a difference of squares as a product, which keeps its digits
        gap = (size - double).mul_(size + double)
        return Moments(values, gap.rsqrt_().mul_(4 / math.pi))


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
        both = (k12 / root).clamp_(-1.0, 1.0).asin_().div_(2 * math.pi).add_(0.25)
        determinant = (root - k12).mul_(root + k12)
        q = determinant.rsqrt().div_(2 * math.pi)
        inverses = 1 / a + 1 / b
        square = k12.square()
        values = square.mul_(inverses - 1).add_((a - 1) * (b - 1)).mul_(q).addcmul_(k12, both)
        if not slopes:
            return Moments(values, None)
        slope = determinant.reciprocal_().add_(inverses).mul_(k12).mul_(q).add_(both)
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
        together, against = (k12 - middle).exp_(), (-k12 - middle).exp_()
        cosines = (together + against).div_(2)
        sines = together.sub_(against).div_(2)
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
        values = (root - k12).mul_(root + k12).rsqrt_()
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
    error for nearly equal points, and one with a kink elsewhere than at 0 also has an error in the
    coefficients themselves; the bound does not cover that.

    Args:
        function: $\varphi$, entry by entry.
        terms: most terms.

    Cost: 900 evaluations and $900J$ multiplications for each distinct variance, then
    $2J$ operations a pair.
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
        """Standard deviations, coefficients of the function and the derivative, and what each
        partial sum leaves: `[*k]`, `[terms, *k]` and `[terms, *k]` twice each."""
        distinct, place = torch.unique(variance.double(), return_inverse=True)
        found = []
        for f in (self._values, self.derivative):
            a, left = self._coefficients(f, distinct)
            found += [a[:, place].to(variance), left[:, place].to(variance)]
        return (variance.sqrt(), *found)

    def pair(self, k12: Tensor, one: Prepared, other: Prepared, *, slopes: bool) -> Moments:
        size = one[0] * other[0]
        cosine = (k12 / size).nan_to_num_(nan=0.0).clamp_(-1.0, 1.0)
        values, error = _series(cosine, one[1], other[1], one[2], other[2])
        if not slopes:
            return Moments(values, None, error)
        slope, slope_error = _series(cosine, one[3], other[3], one[4], other[4])
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
    ) -> tuple[Tensor, Tensor]:
        """`a [terms, n]`, and the part of the second moment that the first terms leave."""
        nodes, weighted = (t.to(variance.device) for t in _weighted_polynomials(self.terms))
        pieces = [
            weighted @ f(scale[:, None] * nodes).T
            for scale in torch.split(variance.sqrt(), _ROWS_AT_ONCE)
        ]
        a = torch.cat(pieces, 1)
        whole = gaussian_mean(lambda z: f(z).square(), variance)
        return a, (whole - a.square().cumsum(0)).clamp_min(0)


@cache
def _weighted_polynomials(terms: int) -> tuple[Tensor, Tensor]:
    """Nodes `[n]`, and the normalized Hermite polynomials there times the weights
    `[terms, n]`."""
    z, weights = gaussian_rule(torch.float64, torch.device("cpu"))
    rows = [torch.ones_like(z), z]
    for j in range(1, terms - 1):
        rows.append((z * rows[j] - math.sqrt(j) * rows[j - 1]) / math.sqrt(j + 1))
    return z, torch.stack(rows[:terms]) * weights


def _series(
    cosine: Tensor, a: Tensor, b: Tensor, left_a: Tensor, left_b: Tensor
) -> tuple[Tensor, float]:
    """Mehler's sum by Horner's rule, and the bound on what was cut off."""
    worst = (left_a.reshape(len(a), -1).amax(1) * left_b.reshape(len(b), -1).amax(1)).sqrt()
    scale = float((a.square().sum(0).max() * b.square().sum(0).max()).sqrt())
    enough = torch.finfo(cosine.dtype).eps * scale
    small = (worst <= enough).nonzero()
    count = int(small[0]) + 1 if len(small) else len(a)
    total = (a[count - 1] * b[count - 1]).expand_as(cosine).clone()
    for j in range(count - 2, -1, -1):
        total.mul_(cosine).addcmul_(a[j], b[j])
    error = float(worst[count - 1])
    return total, error if error > 16 * enough else 0.0


#: A name of the tables, a row of one, a module or its class, a function of a tensor, or a dual.
AnyActivation = str | Activation | nn.Module | type[nn.Module] | Callable[..., Any] | DualActivation

_RELU = PiecewiseLinear(0.0, 1.0, "relu")
_LINEAR = PiecewiseLinear(1.0, 1.0, "linear")
_ABS = PiecewiseLinear(-1.0, 1.0, "abs")
_ERF, _SIN, _COS = ErrorFunction(), Wave("sin"), Wave("cos")

#: The closed forms without parameters, by name.
CLOSED_FORMS: Mapping[str, DualActivation] = MappingProxyType(
    {
        dual.name: dual
        for dual in (
            *(_LINEAR, _RELU, _ABS, SquaredRelu(), Step(0.0, "heaviside"), Step(-1.0, "sign")),
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
    name = "heaviside" if row.name == "closed heaviside" else row.name
    return CLOSED_FORMS[name] if name in CLOSED_FORMS else HermiteExpansion(row)


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
    return dual.pair(k12, dual.prepare(k11), dual.prepare(k22), slopes=slopes)
