r"""Barron's theorem as a generator of networks with a guaranteed error.

On the ball of radius $r$ a plane wave is a mixture of steps: for $|z|\le R$,

$$
\cos(z+\varphi)-\cos\varphi=-\int_0^R1[z>u]\sin(u+\varphi)\,du
+\int_{-R}^01[z<u]\sin(u+\varphi)\,du .
$$

With $z=\omega^\top x$, $R=r|\omega|$, integrated over the magnitudes of a
`Spectrum`, this writes $f-f(0)$ as an integral
over steps (a network of infinite width) with total mass

$$
v=\int\int_{-r|\omega|}^{r|\omega|}|\sin(u+\varphi(\omega))|\,du\,|F|(d\omega)
\le2rC_f .
$$

$n$ steps drawn from it, each with weight $\pm v/n$, are a network whose mean squared
error, for any probability on the ball, is at most $v^2/n\le(2rC_f)^2/n$ on average over
the draws. Sources: Foundations of Deep Learning, Theorems 26 and 27; Mathematical Foundations of
Deep Learning (slides), "Barron's Theorem".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.barron.spectra import PlaneWaves, Spectrum
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.generalization.learning.width_choice import (
    approximation_bound,
    approximation_constant,
)
from torchtheory.nets.feedforward import dense


def absolute_sine_integral(angle: Tensor) -> Tensor:
    r"""$G(y)=\int_0^y|\sin t|\,dt$, increasing; 2 for every half turn.

    >>> absolute_sine_integral(torch.tensor([0.0, torch.pi / 2, -torch.pi])).tolist()
    [0.0, 1.0, -2.0]
    """
    half_turns = torch.floor(angle / math.pi)
    return 2 * half_turns + 1 - torch.cos(angle - math.pi * half_turns)


def inverse_sine_integral(value: Tensor) -> Tensor:
    r"""The angle $y$ with $\int_0^y|\sin t|\,dt$ equal to `value`.

    >>> inverse_sine_integral(torch.tensor([1.0, 2.0])) / torch.pi
    tensor([0.5000, 1.0000])
    """
    half_turns = torch.floor(value / 2)
    return math.pi * half_turns + torch.acos((1 - (value - 2 * half_turns)).clamp(-1, 1))


def wave_variation(reach: Tensor, phases: Tensor) -> Tensor:
    r"""$\int_{-R}^R|\sin(u+\varphi)|\,du\le2R$, the mass of steps one wave needs.

    Args:
        reach: $R=r|\omega|$.
        phases: $\varphi$.

    >>> round(float(wave_variation(torch.tensor(torch.pi), torch.tensor(0.3))), 6)
    4.0
    """
    return absolute_sine_integral(phases + reach) - absolute_sine_integral(phases - reach)


def total_variation(target: PlaneWaves, radius: float = 1.0) -> float:
    r"""$v=\sum_j|c_j|\int_{-r|a_j|}^{r|a_j|}|\sin(u+\varphi_j)|\,du\le2rC_f$, exactly.

    >>> wave = PlaneWaves(torch.ones(1).double(), torch.tensor([[torch.pi]]).double())
    >>> round(total_variation(wave), 6), round(2 * wave.barron_constant, 6)
    (4.0, 6.283185)
    """
    positive_number(radius, "radius")
    reach = radius * target.frequencies.norm(dim=1)
    return float(target.amplitudes @ wave_variation(reach, target.phases))


class OpenStep(nn.Module):
    r"""$1[z>0]$, or the steep sigmoid $1/(1+e^{-\kappa z})$ with a finite sharpness.

    >>> OpenStep()(torch.tensor([-1.0, 0.0, 1.0])).tolist()
    [0.0, 0.0, 1.0]
    """

    def __init__(self, sharpness: float = math.inf) -> None:
        super().__init__()
        if not sharpness > 0:
            raise InvalidInput(f"sharpness must be a positive number, not {sharpness!r}")
        self.sharpness = sharpness

    def forward(self, z: Tensor) -> Tensor:
        if math.isinf(self.sharpness):
            return (z > 0).to(z.dtype)
        return torch.sigmoid(self.sharpness * z)

    def extra_repr(self) -> str:
        return f"sharpness={self.sharpness}"


@dataclass(frozen=True, slots=True)
class Steps:
    r"""Steps $x\mapsto\beta_i1[\theta_i^\top x>t_i]$, one per row.

    Attributes:
        directions: $\theta$, unit vectors `[n, d]`.
        thresholds: $t$, `[n]`, from 0 to the radius.
        weights: $\beta$, `[n]`; the mean over the rows estimates $f-f(0)$.
    """

    directions: Tensor
    thresholds: Tensor
    weights: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The values of the weighted steps at the points `x[m, d]`, `[m, n]`."""
        return (x @ self.directions.T > self.thresholds) * self.weights


@dataclass(frozen=True, slots=True)
class SampledNetwork:
    r"""A network drawn by the proof of Barron's theorem.

    Attributes:
        model: `Linear -> OpenStep -> Linear` with $n$ hidden units and offset
            $f(0)$.
        guarantee: $(2rC_f)^2/n$: the mean squared error on the ball is at most this, on
            average over the draws and hence for some of them.
        weight_sum: $\sum_i|a_i|$, at most $2rC_f$.
        radius: of the ball on which this holds.
    """

    model: nn.Sequential
    guarantee: float
    weight_sum: float
    radius: float


def draw_steps(
    target: Spectrum, count: int, radius: float = 1.0, generator: RandomSource = None
) -> Steps:
    r"""Independent steps whose mean is $f-f(0)$ on the ball of radius $r$.

    A frequency is drawn from $|\omega||F|/C_f$, an offset $u$ from the density
    proportional to $|\sin(u+\varphi)|$ on $[-r|\omega|,r|\omega|]$ by inverting its
    integral, and the step gets the weight
    $\pm\frac{C_f}{|\omega|}\int|\sin(u+\varphi)|du$, at most $2rC_f$ in size. For
    plane waves the wave is drawn with the mass of its steps instead, and every weight is
    $\pm v$. Cost: $O(nd)$.

    >>> wave = PlaneWaves(torch.ones(1).double(), torch.tensor([[2 * torch.pi]]).double())
    >>> draw_steps(wave, 3).weights.abs().round(decimals=6).tolist()
    [8.0, 8.0, 8.0]
    """
    whole_number(count, "count", least=1)
    positive_number(radius, "radius")
    source = as_generator(generator)
    if isinstance(target, PlaneWaves):
        masses = wave_variation(radius * target.frequencies.norm(dim=1), target.phases)
        frequencies, phases = target.pick(target.amplitudes * masses, count, source)
        reach = radius * frequencies.norm(dim=1)
        size = torch.full_like(phases, total_variation(target, radius))
    else:
        frequencies, phases = target.draw(count, source)
        reach = radius * frequencies.norm(dim=1)
        size = target.barron_constant * radius * wave_variation(reach, phases) / reach
    uniform = torch.rand(count, generator=source, dtype=phases.dtype)
    low = absolute_sine_integral(phases - reach)
    angle = inverse_sine_integral(low + uniform * wave_variation(reach, phases))
    offset = (angle - phases).clamp(min=-reach, max=reach)
    side = torch.where(offset >= 0, 1.0, -1.0).to(offset)
    length = reach / radius
    return Steps(
        side[:, None] * frequencies / length[:, None],
        offset.abs() / length,
        -side * torch.sign(torch.sin(angle)) * size,
    )


def barron_network(
    target: Spectrum,
    units: int,
    radius: float = 1.0,
    *,
    sharpness: float = math.inf,
    generator: RandomSource = None,
) -> SampledNetwork:
    r"""A network with `units` hidden steps, drawn as the proof of Barron's theorem draws them.

    $$
    \mathbb E\int_{B_r}(f-f_n)^2d\mu\le\frac{(2rC_f)^2}n
    \quad\text{for every probability }\mu\text{ on }B_r .
    $$

    Args:
        target: $f$, with known magnitudes.
        units: $n$.
        radius: $r$.
        sharpness: of the sigmoids in place of the steps; the guarantee is for steps, its limit.

    >>> from torchtheory.approximation.barron.spectra import GaussianBump
    >>> f = GaussianBump(10)
    >>> found = barron_network(f, 2000, generator=1)
    >>> x = torch.nn.functional.normalize(torch.eye(10, dtype=torch.float64))
    >>> bool((found.model(x)[:, 0] - f(x)).square().mean() <= found.guarantee)
    True
    """
    steps = draw_steps(target, units, radius, generator)
    outer = steps.weights / units
    offset = torch.tensor([target.at_origin()], dtype=outer.dtype)
    model = nn.Sequential(
        dense(steps.directions, -steps.thresholds), OpenStep(sharpness), dense(outer[None], offset)
    )
    guarantee = approximation_bound(units, target.barron_constant, radius)
    return SampledNetwork(model, guarantee, float(outer.abs().sum()), radius)


def best_network(
    target: Spectrum,
    units: int,
    points: Tensor,
    draws: int,
    radius: float = 1.0,
    generator: RandomSource = None,
) -> tuple[SampledNetwork, list[float]]:
    r"""The best of several draws on given points of the ball, and the errors of all of them.

    Some draw is at most as bad as the mean: the existence part of the theorem.

    >>> from torchtheory.approximation.barron.spectra import GaussianBump
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> found, errors = best_network(GaussianBump(1), 20, x, 10)
    >>> len(errors), min(errors) <= found.guarantee
    (10, True)
    """
    whole_number(draws, "draws", least=1)
    if float(points.norm(dim=1).max()) > radius * (1 + 1e-12):
        raise InvalidInput(f"some points lie outside the ball of radius {radius}")
    source = as_generator(generator)
    wanted = target(points)
    found = [barron_network(target, units, radius, generator=source) for _ in range(draws)]
    with torch.no_grad():
        errors = [float((net.model(points)[:, 0] - wanted).square().mean()) for net in found]
    return found[min(range(draws), key=errors.__getitem__)], errors


def units_for_error(error: float, barron_constant: float, radius: float = 1.0) -> int:
    r"""The width with that mean squared error promised, $\lceil(2rC_f)^2/\epsilon\rceil$.

    >>> units_for_error(0.01, 2.0)
    1600
    """
    return math.ceil(
        approximation_constant(barron_constant, radius) / positive_number(error, "error") - 1e-9
    )


def ball_points(
    count: int, dimension: int, radius: float = 1.0, generator: RandomSource = None
) -> Tensor:
    r"""Points uniform on the ball $|x|\le r$, `[n, d]`, double precision.

    >>> bool((ball_points(100, 3, 2.0).norm(dim=1) <= 2).all())
    True
    """
    whole_number(count, "count", least=1)
    whole_number(dimension, "dimension", least=1)
    source = as_generator(generator)
    z = torch.randn(count, dimension, generator=source, dtype=torch.float64)
    lengths = torch.rand(count, 1, generator=source, dtype=torch.float64) ** (1 / dimension)
    directions: Tensor = z / z.norm(dim=1, keepdim=True)
    return positive_number(radius, "radius") * lengths * directions
