r"""Monomials, and so every polynomial, as differences of one smooth activation.

$\frac{d^k}{da^k}\sigma(ax+b)|_{a=0}=x^k\sigma^{(k)}(b)$, and a derivative is a limit of
differences of values, which are what a hidden layer computes. For a step $h$ the output
weights are of size $h^{-k}$: in floating point the step has a best value, below which
rounding takes over. Source: Foundations of Deep Learning, section 3.4 (Leshno et al.).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise

import torch
from scipy import optimize
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant, as_box
from torchtheory.approximation.network_calculus import chain, compose
from torchtheory.approximation.polynomials.bernstein import (
    bernstein_approximant,
    power_coefficients,
)
from torchtheory.approximation.targets import Function, values_of
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.activations.table import as_layer, logistic_derivative, nth_derivative

#: The unit roundoff of double precision.
ROUNDOFF = 2.0**-53

_CLOSED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "exp": lambda z, k: torch.exp(z),
    "sin": lambda z, k: torch.sin(z + k * math.pi / 2),
    "cos": lambda z, k: torch.cos(z + k * math.pi / 2),
    "logistic": logistic_derivative,
    "tanh": lambda z, k: 2.0 ** (k + 1) * logistic_derivative(2 * z, k) - (1.0 if k == 0 else 0.0),
    "softplus": lambda z, k: logistic_derivative(z, k - 1) if k else nn.functional.softplus(z),
}

_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "exp": lambda: as_layer(torch.exp),
    "sin": lambda: as_layer(torch.sin),
    "cos": lambda: as_layer(torch.cos),
}


def smooth_layer(activation: str) -> nn.Module:
    """The layer of a smooth activation: `exp`, `sin`, `cos` or a name of the table.

    >>> smooth_layer("exp"), smooth_layer("tanh")
    (exp(), Tanh())
    """
    return _LAYERS[activation]() if activation in _LAYERS else as_layer(activation)


def activation_derivative(activation: str, z: Tensor, order: int) -> Tensor:
    r"""$\sigma^{(k)}(z)$: closed formulas where they are known, else by differentiation.

    >>> activation_derivative("tanh", torch.zeros(1, dtype=torch.float64), 3).item()
    -2.0
    """
    whole_number(order, "order", least=0)
    if activation in _CLOSED:
        return _CLOSED[activation](z, order)
    return nth_derivative(smooth_layer(activation), z, order)


def largest_derivative(activation: str, order: int, low: float, high: float) -> float:
    r"""$\max|\sigma^{(k)}|$ over an interval.

    For `exp`, `sin`, `cos`, `logistic`, `tanh` and `softplus` it is taken at the ends and at all
    zeros of $\sigma^{(k+1)}$ between them, which are known. For another activation it is the
    largest of 1025 values, a lower bound, and what is promised with it is an estimate.

    >>> largest_derivative("sin", 1, -1.0, 1.0)
    1.0
    """
    if activation in _TURNS:
        turns = [t for t in _TURNS[activation](order, low) if low < t < high]
        z = torch.tensor([low, high, *turns], dtype=torch.float64)
    else:
        z = torch.linspace(low, high, 1025, dtype=torch.float64)
    return float(activation_derivative(activation, z, order).abs().max())


@cache
def logistic_zeros(order: int) -> tuple[float, ...]:
    r"""All zeros of $\sigma^{(k)}$, $k\ge1$, of the logistic function: $k-1$ of them, in order.

    By Rolle one lies between any two neighbors among those of the order before and the ends of the
    line, and $P_k$ with $\sigma^{(k)}=P_k(\sigma)$ has no more.

    >>> [round(z, 4) for z in logistic_zeros(3)]          # ln(2 ± √3)
    [-1.317, 1.317]
    """
    if order == 1:
        return ()

    def value(z: float) -> float:
        return float(logistic_derivative(torch.tensor(z, dtype=torch.float64), order))

    # they are symmetric about 0, and the first one is near -k ln 2
    before = [-order - 2.0, *(z for z in logistic_zeros(order - 1) if z <= 0)]
    below = [float(optimize.brentq(value, *ends, xtol=1e-14)) for ends in pairwise(before)]
    return (*below, *[0.0] * (order % 2 == 0), *(-z for z in reversed(below)))


def _first_zero_of_sine(shift: float, low: float) -> tuple[float, ...]:
    """The first zero of sin(z + shift) from a point on."""
    return (math.ceil((low + shift) / math.pi) * math.pi - shift,)


#: Where the derivative of an order turns, from a point on as far as it matters: all values of a
#: sine at its turns have the same size.
_TURNS: dict[str, Callable[[int, float], tuple[float, ...]]] = {
    "exp": lambda k, low: (),
    "sin": lambda k, low: _first_zero_of_sine((k + 1) * math.pi / 2, low),
    "cos": lambda k, low: _first_zero_of_sine((k + 2) * math.pi / 2, low),
    "logistic": lambda k, low: logistic_zeros(k + 1),
    "tanh": lambda k, low: tuple(z / 2 for z in logistic_zeros(k + 1)),
    "softplus": lambda k, low: logistic_zeros(k) if k else (),
}


def vanishes(slope: float, activation: str, order: int, bias: float) -> bool:
    r"""Whether a value of $|\sigma^{(k)}(b)|$ is 0 up to rounding, judged by those nearby.

    >>> vanishes(1.0, "exp", 15, 0.0), vanishes(1e-17, "tanh", 2, 0.0)
    (False, True)
    """
    return slope <= 1e-12 * largest_derivative(activation, order, bias - 1, bias + 1)


@dataclass(frozen=True, slots=True)
class StepError:
    r"""The two parts of the error of a difference quotient of step $h$.

    Attributes:
        truncation: what exact arithmetic leaves, growing with the step.
        rounding: what double precision adds, growing as $h^{-k}$.
    """

    truncation: float
    rounding: float

    @property
    def total(self) -> float:
        return self.truncation + self.rounding


def monomial_error(
    order: int,
    activation: str,
    bias: float,
    step: float,
    *,
    radius: float = 1.0,
    central: bool = False,
) -> StepError:
    r"""What `monomial_network` promises on $[-r,r]$, with the maxima of `largest_derivative`.

    The difference quotient is $x^k\,\mathbb E\,\sigma^{(k)}(b+hxS)$ with $S$ a sum of
    $k$ uniform numbers, hence

    $$
    \frac k2\,h\,r^{k+1}\frac{\max|\sigma^{(k+1)}|}{|\sigma^{(k)}(b)|},\qquad
    \frac k{24}\,h^2r^{k+2}\frac{\max|\sigma^{(k+2)}|}{|\sigma^{(k)}(b)|}
    $$

    for one-sided and central differences; rounding adds
    $(k+8)\,2^ku\,(\max|\sigma|+\max|z\sigma'|)/h^k|\sigma^{(k)}(b)|$.

    >>> round(monomial_error(1, "exp", 0.0, 0.01).truncation, 6)      # e^0.01 / 200
    0.00505
    """
    whole_number(order, "order", least=0)
    positive_number(step, "step")
    positive_number(radius, "radius")
    point = torch.tensor(float(bias), dtype=torch.float64)
    slope = abs(float(activation_derivative(activation, point, order)))
    if vanishes(slope, activation, order, bias):
        raise InvalidInput(
            f"derivative {order} of {activation} is 0 at {bias:g}: choose another bias"
        )
    reach = step * radius * (order / 2 if central else order)
    low, high = bias - reach, bias + reach
    if central:
        bend = largest_derivative(activation, order + 2, low, high)
        truncation = order / 24 * step**2 * radius ** (order + 2) * bend / slope
    else:
        bend = largest_derivative(activation, order + 1, low, high)
        truncation = order / 2 * step * radius ** (order + 1) * bend / slope
    size = largest_derivative(activation, 0, low, high) + largest_derivative(
        activation, 1, low, high
    ) * max(abs(low), abs(high))
    rounding = (order + 8) * 2.0**order * ROUNDOFF * size / (step**order * slope)
    return StepError(truncation, rounding)


def best_difference_step(
    order: int, activation: str, bias: float, *, radius: float = 1.0, central: bool = False
) -> float:
    r"""The step at which truncation and rounding together are least: the bottom of the V.

    From $Ah^p+Bh^{-k}$ with $p=1$, or 2 for central differences, at
    $h=(kB/pA)^{1/(k+p)}$.

    >>> 1e-8 < best_difference_step(1, "exp", 0.0) < 1e-6
    True
    """
    whole_number(order, "order", least=1)
    power = 2 if central else 1
    trial = 0.01
    parts = monomial_error(order, activation, bias, trial, radius=radius, central=central)
    a, b = parts.truncation / trial**power, parts.rounding * trial**order
    if a == 0:
        return trial
    return float((order * b / (power * a)) ** (1 / (order + power)))


def monomial_network(
    order: int,
    activation: str,
    bias: float,
    step: float,
    *,
    radius: float = 1.0,
    central: bool = False,
) -> Approximant:
    r"""$x^k$ by $k+1$ units of any activation with $\sigma^{(k)}(b)\ne0$.

    $$
    x^k\approx\frac1{h^k\sigma^{(k)}(b)}\sum_{j=0}^k(-1)^{k-j}\binom kj\,\sigma(jhx+b)
    $$

    With `central` the weights $jh$ are $(j-k/2)h$. The bound is
    `monomial_error`.

    >>> cube = monomial_network(3, "exp", 0.0, 1e-3)
    >>> bool((cube(torch.tensor([0.5]).double()) - 0.125).abs() < 1e-3)
    True
    """
    promised = monomial_error(order, activation, bias, step, radius=radius, central=central)
    j = torch.arange(order + 1, dtype=torch.float64)
    shift = order / 2 if central else 0.0
    point = torch.tensor(float(bias), dtype=torch.float64)
    scale = step**order * float(activation_derivative(activation, point, order))
    signs = [(-1) ** (order - i) * math.comb(order, i) / scale for i in range(order + 1)]
    network = chain(
        [
            (((j - shift) * step).unsqueeze(1), torch.full_like(j, bias)),
            (torch.tensor([signs], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)),
        ],
        [smooth_layer(activation)],
    )
    return Approximant(network, promised.total, ((-radius, radius),), "L-083")


def good_bias(
    activation: str, largest_order: int, interval: tuple[float, float] = (-3.0, 3.0)
) -> tuple[float, float]:
    r"""A point where no derivative up to an order vanishes, and $\min_k|\sigma^{(k)}|/k!$.

    The best of 2401 points of the interval. By Lemma 20 (Donoghue) a smooth function that is not
    a polynomial has a point where *no* derivative is 0.

    >>> b, worst = good_bias("tanh", 4)
    >>> worst > 0.01
    True
    """
    whole_number(largest_order, "largest_order", least=0)
    ((low, high),) = as_box(interval)
    z = torch.linspace(low, high, 2401, dtype=torch.float64)
    sizes = torch.stack(
        [
            activation_derivative(activation, z, k).abs() / math.factorial(k)
            for k in range(largest_order + 1)
        ]
    )
    worst = sizes.amin(0)
    at = int(worst.argmax())
    return float(z[at]), float(worst[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeshnoNetwork(Approximant):
    """A function through its Bernstein polynomial through differences of an activation.

    Its bound is the sum of three parts.

    Attributes:
        polynomial: error of the Bernstein polynomial.
        truncation: error of the differences, weighed by the polynomial's coefficients.
        rounding: what double precision can add.
    """

    polynomial: float
    truncation: float
    rounding: float


def leshno_network(
    function: Function,
    degree: int,
    activation: str,
    bias: float,
    step: float,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    lipschitz: float,
) -> LeshnoNetwork:
    r"""One hidden layer of `degree + 1` units $\sigma(jht+b)$ for a Lipschitz function.

    $f\approx q_r=\sum_k\alpha_kt^k$ on $t=(x-a)/(b-a)\in[0,1]$, and each
    $t^k$ is a difference of the same units. The output weights are put together in exact
    arithmetic and rounded once. Error:
    $\|f-q_r\|_\infty+\sum_k|\alpha_k|\epsilon_k$, and rounding.

    >>> made = leshno_network(torch.sin, 3, "exp", 0.0, 0.01, lipschitz=1.0)
    >>> made.size.units
    4
    """
    whole_number(degree, "degree", least=1)
    ((low, high),) = box = as_box(interval)
    knots = torch.linspace(low, high, degree + 1, dtype=torch.float64).unsqueeze(1)
    alpha = power_coefficients(values_of(function, knots))
    point = torch.tensor(float(bias), dtype=torch.float64)
    weights = [Fraction(0)] * (degree + 1)
    truncation = 0.0
    for k, a in enumerate(alpha):
        truncation += abs(float(a)) * monomial_error(k, activation, bias, step).truncation
        scale = Fraction(step) ** k * Fraction(float(activation_derivative(activation, point, k)))
        for j in range(k + 1):
            weights[j] += a * (-1) ** (k - j) * math.comb(k, j) / scale
    out = torch.tensor([[float(w) for w in weights]], dtype=torch.float64)
    slopes = torch.arange(degree + 1, dtype=torch.float64) * step
    units = chain(
        [(slopes.unsqueeze(1), torch.full_like(slopes, bias)), (out, out.new_zeros(1))],
        [smooth_layer(activation)],
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    to_unit = chain([(one / (high - low), -one[0] * low / (high - low))], [])
    ends = bias, bias + degree * step
    size = largest_derivative(activation, 0, *ends) + largest_derivative(activation, 1, *ends) * (
        max(abs(e) for e in ends) + degree * step * (abs(low) + abs(high)) / (high - low)
    )
    rounding = (degree + 8) * ROUNDOFF * float(out.abs().sum()) * size
    polynomial = bernstein_approximant(function, degree, box[0], lipschitz=lipschitz).bound
    return LeshnoNetwork(
        network=compose(units, to_unit),
        bound=polynomial + truncation + rounding,
        domain=box,
        theorem="L-082",
        polynomial=polynomial,
        truncation=truncation,
        rounding=rounding,
    )
