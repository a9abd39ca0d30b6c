r"""Networks at initialization: outputs, gradients, and how short a step flips their sign.

A random network with two layers is

$$
f(x)=\frac1{\sqrt k}\sum_{j=1}^ka_j\,\sigma(w_j^\top x),\qquad
w_j\sim\mathcal N(0,I/d),\quad a_j=\pm1\text{ evenly},\quad\|x\|=\sqrt d .
$$

Then $f(x)$ is about $\mathcal N(0,\mathbb E\sigma(X)^2)$ and $\|\nabla f(x)\|^2$ is about
$\mathbb E\sigma'(X)^2$ with $X\sim\mathcal N(0,1)$, whatever the dimension. A step against the sign
of the output, of the length $2|f|/\|\nabla f\|$, would turn $f$ into $-f$ if the network were
linear; it is of order 1 while the input has the length $\sqrt d$, and over so short a way a wide
network nearly is linear.

Source: Foundations of Deep Learning, section 12.3 (Bubeck, Cherapanamjeri, Gidel and Tachet des
Combes 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from torchtheory.core.checks import (
    as_batch,
    number_between,
    open_fraction,
    positive_number,
    whole_number,
    whole_numbers,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.core.intervals import Interval, clopper_pearson, median_interval
from torchtheory.core.random import RandomSource, as_generator, gaussian, rademacher
from torchtheory.models.model import one_output
from torchtheory.models.opened import opened
from torchtheory.nets.activations.moments import Function, second_moment, squared_slope
from torchtheory.nets.activations.table import Activation, activation, as_layer, nth_derivative
from torchtheory.nets.feedforward import dense
from torchtheory.primer.gaussian_means import gaussian_mean, gaussian_rule
from torchtheory.primer.moment_tails import (
    MomentConstants,
    moment_constants,
    nonnegative_mean_floor,
)
from torchtheory.robustness.attacks.victim import refuse_constant

#: The median of |N(0, 1)|.
_MEDIAN = 0.6744897501960817

#: Weights of random networks in memory at a time.
_WEIGHTS = 2**22


def random_two_layer(
    width: int,
    dimension: int,
    function: Function = "relu",
    *,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    r"""$\frac1{\sqrt k}\sum_ja_j\sigma(w_j^\top x)$ with random weights.

    Args:
        width: $k$.
        dimension: $d$.
        function: the activation $\sigma$.
        generator: of the weights.
        dtype: of the weights.

    >>> net = random_two_layer(4, 3)
    >>> net[2].weight.abs()
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]], dtype=torch.float64, grad_fn=<AbsBackward0>)
    """
    whole_number(width, "width", least=1)
    whole_number(dimension, "dimension", least=1)
    source = as_generator(generator)
    inner = gaussian(width, dimension, generator=source, dtype=dtype) / math.sqrt(dimension)
    outer = rademacher(1, width, generator=source, dtype=dtype) / math.sqrt(width)
    return nn.Sequential(dense(inner), as_layer(function), dense(outer))


# ------------------------------------------------------------------------------------ one step


@dataclass(frozen=True, slots=True)
class OneStep:
    r"""What one gradient step does to the sign of an output.

    Attributes:
        before, after: outputs at the inputs and after the step, `[n]`.
        gradient_norms: $\|\nabla f\|$, `[n]`.
        lengths: $\|\Delta\|=2|f|/\|\nabla f\|$, `[n]`; infinite where the gradient vanishes.
        relative: $\|\Delta\|/\|x\|$, `[n]`.
        moved: the inputs after the step; unchanged where the gradient vanishes.
        success: whether the sign is another one, `[n]`.
    """

    before: Tensor
    after: Tensor
    gradient_norms: Tensor
    lengths: Tensor
    relative: Tensor
    moved: Tensor
    success: Tensor


def one_step_attack(model: nn.Module, x: Tensor, *, multiple: float = 1.0) -> OneStep:
    r"""Move by $\Delta=-2f\,\nabla f/\|\nabla f\|^2$ and see whether the sign of the output flips.

    The direction is against the sign of the output: along $+\nabla f$, as Theorem 78 prints it, a
    positive output only grows.

    Args:
        model: any network with one output; it is not changed.
        x: inputs `[n, ...]`.
        multiple: of the step; negative ones go the other way.

    Cost: one gradient and two passes.

    Example: a linear function turns to its negative.

    >>> step = one_step_attack(nn.Linear(3, 1, bias=False), torch.ones(2, 3))
    >>> bool(step.success.all()), torch.allclose(step.after, -step.before)
    (True, True)
    """
    given = as_batch(x, "x")
    number_between(multiple, "multiple", -math.inf, math.inf, closed="neither")
    with opened(model, given, 0) as own, torch.enable_grad():
        point = given.detach().clone().requires_grad_(True)
        value = _single_output(own, point)
        refuse_constant(value)
        (slope,) = torch.autograd.grad(value.sum(), point)
        with torch.no_grad():
            return _stepped(
                lambda z: _single_output(own, z), given.detach(), value.detach(), slope, multiple
            )


def _stepped(
    values: Callable[[Tensor], Tensor], x: Tensor, value: Tensor, slope: Tensor, multiple: float
) -> OneStep:
    norms = slope.flatten(1).norm(dim=1)
    rates = torch.where(norms > 0, 2 * value / norms.square(), 0.0)
    moved = x - multiple * rates.reshape(-1, *[1] * (x.ndim - 1)) * slope
    after = values(moved)
    lengths = torch.where(norms > 0, abs(multiple) * 2 * value.abs() / norms, math.inf)
    relative = lengths / x.flatten(1).norm(dim=1)
    return OneStep(value, after, norms, lengths, relative, moved, value.sign() * after.sign() < 0)


def _single_output(model: nn.Module, x: Tensor) -> Tensor:
    values = one_output(model(x), None)
    if values.numel() != len(x):
        raise ShapeMismatch(
            f"the sign of one output is flipped, and the model gives {list(values.shape)} for "
            f"{len(x)} inputs"
        )
    return values.reshape(len(x))


@dataclass(frozen=True, slots=True)
class FlipCurve:
    r"""Steps that flip random networks, by dimension.

    Attributes:
        dimensions: $d$ of each place.
        success: share of networks whose sign one step changed.
        relative: the median of $\|\Delta\|/\|x\|$.
        predicted: the median for $k,d\to\infty$, `flip_length_median` over $\sqrt d$.
    """

    dimensions: tuple[int, ...]
    success: list[Interval]
    relative: list[Interval]
    predicted: list[float]


def flip_curve(
    dimensions: Sequence[int],
    width: int,
    function: Function = "relu",
    *,
    trials: int = 100,
    generator: RandomSource = None,
    confidence: float = 0.95,
) -> FlipCurve:
    r"""How short a gradient step flips random networks of growing dimension.

    Args:
        dimensions: to look at.
        width: $k$ of all networks.
        function: the activation.
        trials: networks for each dimension, each at one random input of length $\sqrt d$.
        generator: of networks and inputs.
        confidence: of the intervals.

    Cost: that of `random_steps`.

    >>> curve = flip_curve([10, 1000], 100, "tanh", trials=30)
    >>> curve.relative[1].estimate < curve.relative[0].estimate / 5
    True
    """
    sizes = whole_numbers(dimensions, "dimensions")
    whole_number(trials, "trials", least=2)
    source = as_generator(generator)
    shares, medians = [], []
    for d in sizes:
        steps = random_steps(trials, width, d, function, generator=source)
        shares.append(clopper_pearson(int(steps.success.sum()), trials, confidence))
        medians.append(median_interval(steps.relative, confidence))
    limit = flip_length_median(function)
    return FlipCurve(sizes, shares, medians, [limit / math.sqrt(d) for d in sizes])


def random_steps(
    count: int,
    width: int,
    dimension: int,
    function: Function = "relu",
    *,
    length: float | None = None,
    generator: RandomSource = None,
) -> OneStep:
    r"""The step of `one_step_attack` on new random networks, each at a new random input.

    Args:
        count: $n$, networks as `random_two_layer` draws them.
        width, dimension, function: $k$, $d$ and the activation.
        length: of the inputs, $\sqrt d$ unless given.
        generator: of networks and inputs.

    Cost: $O(nkd)$ time, without a module per network; some 4 million weights in memory at a time.

    >>> steps = random_steps(20, 50, 200, "tanh")
    >>> steps.before.shape, bool((steps.relative < 1).all())
    (torch.Size([20]), True)
    """
    for value, name in ((count, "count"), (width, "width"), (dimension, "dimension")):
        whole_number(value, name, least=1)
    if length is not None:
        positive_number(length, "length")
    source = as_generator(generator)
    at_once = max(1, _WEIGHTS // (width * dimension))
    parts = []
    for start in range(0, count, at_once):
        n = min(at_once, count - start)
        w = gaussian(n, width, dimension, generator=source, dtype=torch.float64)
        w /= math.sqrt(dimension)
        a = rademacher(n, width, generator=source, dtype=torch.float64) / math.sqrt(width)
        x = sphere_points(n, dimension, source)
        if length is not None:
            x *= length / math.sqrt(dimension)
        parts.append(_drawn_steps(w, a, x, as_layer(function)))
    return OneStep(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(OneStep)))


def _drawn_steps(w: Tensor, a: Tensor, x: Tensor, layer: nn.Module) -> OneStep:
    """Steps on networks with weights `w[n, k, d]` and `a[n, k]` at inputs `x[n, d]`."""

    def values(points: Tensor) -> Tensor:
        units: Tensor = layer((w @ points[..., None])[..., 0])
        return (a * units).sum(1)

    with torch.enable_grad():
        point = x.clone().requires_grad_(True)
        value = values(point)
        (slope,) = torch.autograd.grad(value.sum(), point)
    with torch.no_grad():
        return _stepped(values, x, value.detach(), slope, 1.0)


def sphere_points(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    r"""Uniform points `[n, d]` of the sphere of radius $\sqrt d$, in double precision.

    >>> round(float(sphere_points(1, 9, torch.Generator()).norm()), 12)
    3.0
    """
    x = gaussian(count, dimension, generator=generator, dtype=torch.float64)
    scaled: Tensor = x * (math.sqrt(dimension) / x.norm(dim=1, keepdim=True))
    return scaled


def flip_length_median(function: Function) -> float:
    r"""The median of $\|\Delta\|$ for $k,d\to\infty$.

    $1.349\sqrt{\mathbb E\sigma(X)^2/\mathbb E\sigma'(X)^2}$, as
    $\|\Delta\|=2|f|/\|\nabla f\|$ with $f\to\mathcal N(0,\mathbb E\sigma(X)^2)$ and
    $\|\nabla f\|^2\to\mathbb E\sigma'(X)^2$.

    >>> round(flip_length_median("relu"), 3)
    1.349
    """
    one = torch.ones((), dtype=torch.float64)
    slope = float(squared_slope(function, one))
    if slope == 0:
        raise InvalidInput("the activation's derivative vanishes: no step is long enough")
    return 2 * _MEDIAN * math.sqrt(float(second_moment(function, one)) / slope)


# ------------------------------------------------------------------------ the gradient's length


def mean_squared_gradient(function: Function, dimension: int) -> float:
    r"""$\mathbb E\|\nabla f(x)\|^2$ of a random network.

    $\frac{d-1}d\mathbb E\sigma'(X)^2+\frac1d\mathbb EX^2\sigma'(X)^2$, exact for every width: the
    signs $a_j$ are independent, so units do not mix. For ReLU it is
    $\frac12$ in every dimension.

    >>> [round(mean_squared_gradient("relu", d), 10) for d in (3, 1000)]
    [0.5, 0.5]
    """
    whole_number(dimension, "dimension", least=1)
    one = torch.ones((), dtype=torch.float64)
    across = float(squared_slope(function, one))
    along = float(gaussian_mean(lambda z: (z * _slope(function, z)).square(), one))
    return ((dimension - 1) * across + along) / dimension


@dataclass(frozen=True, slots=True)
class GradientFloor:
    r"""Lower bounds of $\|\nabla f(x)\|$ that hold with probability at least $1-\gamma$ each.

    Attributes:
        mean_square: $\frac1k\sum_j\sigma'(w_j^\top x)^2$, `[n]`.
        bound: $\bigl(1-5\sqrt{\log(2/\gamma)/d}\bigr)$ times its root, `[n]`; it says nothing, and
            is 0, for $d\le25\log(2/\gamma)$.
        sharper: the same from the lower tail alone,
            $\sqrt{\bigl(d-1-2\sqrt{(d-1)\log(1/\gamma)}\bigr)/d}$ times the root, `[n]`.
    """

    mean_square: Tensor
    bound: Tensor
    sharper: Tensor


def gradient_lower_bound(model: nn.Sequential, x: Tensor, gamma: float) -> GradientFloor:
    r"""How long the gradient of a random network is at least, from what its units do at an input.

    The part of $w_j$ orthogonal to $x$ is independent of $w_j^\top x$. Given the latter,
    the gradient across $x$ is $\sqrt{\frac1{kd}\sum_j\sigma'(w_j^\top x)^2}$ times a standard
    Gaussian vector with $d-1$ entries, whose square is chi-square.

    Args:
        model: as `random_two_layer` makes it: linear without bias, activation, linear.
        x: inputs `[n, d]` of length $\sqrt d$ that were chosen without looking at the weights.
        gamma: probability that a bound fails, below $2/e$.

    Source: Foundations of Deep Learning, Proposition 79.

    >>> net = random_two_layer(200, 1000, "tanh")
    >>> x = sphere_points(1, 1000, torch.Generator().manual_seed(1))
    >>> floor = gradient_lower_bound(net, x, 0.05)
    >>> bool(floor.bound < floor.sharper < one_step_attack(net, x).gradient_norms)
    True
    """
    inner, function = _first_layer(model)
    d = inner.in_features
    points = as_batch(x, "x")
    if points.ndim != 2 or points.shape[1] != d:
        raise ShapeMismatch(f"x must be [n, {d}] for this network, not {list(points.shape)}")
    lengths = points.norm(dim=1)
    if bool(((lengths - math.sqrt(d)).abs() > 1e-4 * math.sqrt(d)).any()):
        raise InvalidInput(
            f"the bound is about inputs of length √{d}, and one has {float(lengths.max()):.4g}"
        )
    number_between(gamma, "gamma", 0.0, 2 / math.e, closed="neither")
    with torch.no_grad():
        signals = inner(points)
    slopes = _slope(function, signals.detach())
    mean_square = slopes.square().mean(1)
    printed, sharper = gradient_factors(d, gamma)
    return GradientFloor(mean_square, printed * mean_square.sqrt(), sharper * mean_square.sqrt())


def gradient_factors(dimension: int, gamma: float) -> tuple[float, float]:
    r"""$1-5\sqrt{\log(2/\gamma)/d}$, and the sharper factor; both at least 0.

    >>> [round(v, 3) for v in gradient_factors(1000, 0.05)]
    [0.696, 0.943]
    """
    d = whole_number(dimension, "dimension", least=1)
    level = math.log(1 / open_fraction(gamma, "gamma"))
    printed = 1 - 5 * math.sqrt((level + math.log(2)) / d)
    left = d - 1 - 2 * math.sqrt((d - 1) * level)
    return max(printed, 0.0), math.sqrt(max(left, 0.0) / d)


def _first_layer(model: nn.Sequential) -> tuple[nn.Linear, nn.Module]:
    layers = list(model.children()) if isinstance(model, nn.Sequential) else []
    if [isinstance(layer, nn.Linear) for layer in layers] == [True, False, True]:
        inner, function, _ = layers
        if isinstance(inner, nn.Linear) and getattr(inner, "bias", None) is None:
            return inner, function
    raise UnsupportedModel(
        "the bound is about networks as random_two_layer makes them: a linear layer without bias, "
        "an activation, a linear layer"
    )


# ---------------------------------------------------------------- moments of the derivative


def slope_log_moments(function: Function, orders: int = 20) -> Tensor:
    r"""$\log\mathbb E|\sigma'(X)|^{2q}$ for $q=2,\dots,$ `orders`, $X\sim\mathcal N(0,1)$.

    By quadrature on $|X|\le14$; exact to rounding for derivatives that are bounded, and to about
    $10^{-6}$ for those that grow like $x^2$, up to order 20.

    >>> slope_log_moments("relu", 4).exp()
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    whole_number(orders, "orders", least=3)
    nodes, weights = gaussian_rule(torch.float64, torch.device("cpu"))
    logs = 2 * _slope(function, nodes).abs().log()
    q = torch.arange(2, orders + 1, dtype=torch.float64)
    return torch.logsumexp(q[:, None] * logs + weights.log(), 1)


def slope_constants(function: Function, orders: int = 20) -> MomentConstants:
    r"""Constants with which the activation's derivative satisfies the moment assumption.

    The least $s^2$, and the least $c$ with it, such that
    $\mathbb E|\sigma'(X)|^{2q}\le\frac{q!}2s^2c^{q-2}$ for $q=2,\dots,$ `orders`. This is
    Assumption 5 of the source, which calls $s$ by the name of the derivative. A derivative
    bounded by $B$ satisfies it for all $q$ with $s^2=B^4$ and $c=B^2$. Where $c$ keeps growing with
    the number of orders, the assumption fails.

    >>> found = slope_constants("relu")
    >>> round(found.variance, 6), round(found.scale, 6)
    (0.5, 0.333333)
    """
    return moment_constants(slope_log_moments(function, orders))


def squared_slope_floor(function: Function, width: int, gamma: float, *, orders: int = 20) -> float:
    r"""What $\frac1k\sum_j\sigma'(w_j^\top x)^2$ is at least, with probability $1-\gamma$.

    $\mu-\sqrt{4s^2\log(1/\gamma)/k}-c\log(1/\gamma)/k$ with $\mu=\mathbb E\sigma'(X)^2$ and the
    constants of `slope_constants`: the last step of Proposition 79, by Bernstein's inequality.

    >>> round(squared_slope_floor("relu", 10_000, 0.05), 4)
    0.4754
    """
    found = slope_constants(function, orders)
    mean = float(squared_slope(function, torch.ones((), dtype=torch.float64)))
    return nonnegative_mean_floor(mean, width, found.variance, found.scale, gamma)


def _slope(function: Function, z: Tensor) -> Tensor:
    row = activation(function) if isinstance(function, str) else function
    if isinstance(row, Activation):
        return row.slope(z)
    return nth_derivative(as_layer(row), z, 1)
